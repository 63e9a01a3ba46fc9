/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

// documents are what people read, in the order in which their stories are told:
// operations.md begins without an operator and ends without one.
var documents = []string{
	"docs/operations.md",
	"README.md",
	"README.zh-CN.md",
	"docs/user-guide.md",
	"docs/connect-altershield-server.md",
	"docs/states.md",
	"docs/design.md",
	"docs/reference.md",
	"CONTRIBUTING.md",
	"CHANGELOG.md",
}

// document is a Markdown file of this repository: prose, and blocks of commands,
// outputs and files, which are indented by four spaces or fenced.
type document struct {
	path string
	// prose has the lines outside of blocks, "" for those inside.
	prose  []string
	blocks []block
}

type block struct {
	// line is the number of its first line, from 1.
	line     int
	language string
	lines    []string
}

// span is `code` in the prose.
type span struct {
	line int
	text string
}

// command is what is typed, and what is shown below it.
type command struct {
	document string
	line     int
	text     string
	// output is what the document shows; shown is false when it shows nothing.
	output []string
	shown  bool
}

func (c command) String() string { return fmt.Sprintf("%s:%d", c.document, c.line) }

func repository(t *testing.T) string {
	t.Helper()
	root, err := controlplane.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func read(t *testing.T, path string) *document {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository(t), filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return parse(path, string(data))
}

func parse(path, text string) *document {
	d := &document{path: path}
	lines := strings.Split(text, "\n")
	d.prose = make([]string, len(lines))
	for i := 0; i < len(lines); i++ {
		switch line := lines[i]; {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			b := block{line: i + 2, language: strings.Trim(strings.TrimSpace(line), "`")}
			for i++; i < len(lines) && !strings.HasPrefix(strings.TrimSpace(lines[i]), "```"); i++ {
				b.lines = append(b.lines, lines[i])
			}
			d.blocks = append(d.blocks, b)
		case strings.HasPrefix(line, "    ") && (i == 0 || strings.TrimSpace(lines[i-1]) == ""):
			b := block{line: i + 1}
			for ; i < len(lines) && (strings.HasPrefix(lines[i], "    ") || strings.TrimSpace(lines[i]) == ""); i++ {
				b.lines = append(b.lines, strings.TrimPrefix(lines[i], "    "))
			}
			for strings.TrimSpace(b.lines[len(b.lines)-1]) == "" {
				b.lines = b.lines[:len(b.lines)-1]
			}
			i--
			d.blocks = append(d.blocks, b)
		default:
			d.prose[i] = line
		}
	}
	return d
}

var codeSpan = regexp.MustCompile("`([^`]+)`")

func (d *document) spans() []span {
	var all []span
	for i, line := range d.prose {
		for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
			all = append(all, span{i + 1, m[1]})
		}
	}
	return all
}

// text is everything, line by line, with what is in blocks.
func (d *document) text() []span {
	var all []span
	for i, line := range d.prose {
		if line != "" {
			all = append(all, span{i + 1, line})
		}
	}
	for _, b := range d.blocks {
		for i, line := range b.lines {
			all = append(all, span{b.line + i, line})
		}
	}
	return all
}

// programs are what a block of commands begins with; it has no outputs then. One
// that has begins with a prompt.
var programs = regexp.MustCompile(`^(kubectl|k|make|curl|head|git|cd|go|sign\(\)|[A-Za-z_]+=\$\()( |$)|^(sign\(\)|[A-Za-z_]+=\$\()`)

var comment = regexp.MustCompile(`(^|\s+)# .*$`)

// commands of a block, and whether it has any.
func (b block) commands(path string) []command {
	if b.language != "" && b.language != "sh" && b.language != "console" || len(b.lines) == 0 {
		return nil
	}
	prompt := strings.HasPrefix(b.lines[0], "$ ")
	if !prompt && !programs.MatchString(b.lines[0]) {
		return nil
	}
	var all []command
	for i := 0; i < len(b.lines); i++ {
		line, isCommand := strings.CutPrefix(b.lines[i], "$ ")
		switch {
		case prompt && !isCommand:
			last := &all[len(all)-1]
			last.output, last.shown = append(last.output, line), true
			continue
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
			continue
		}
		c := command{document: path, line: b.line + i}
		for strings.HasSuffix(line, `\`) && i+1 < len(b.lines) {
			i++
			line = strings.TrimSuffix(line, `\`) + strings.TrimSpace(b.lines[i])
		}
		c.text = comment.ReplaceAllString(line, "")
		all = append(all, c)
	}
	return all
}

// commands of a document, those in the prose included, from its beginning to its
// end.
func (d *document) commands() []command {
	var all []command
	at := map[int][]block{}
	for _, b := range d.blocks {
		at[b.line] = append(at[b.line], b)
	}
	for i, line := range d.prose {
		for _, b := range at[i+1] {
			all = append(all, b.commands(d.path)...)
		}
		for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
			if text := m[1]; strings.HasPrefix(text, "kubectl ") || d.path == "docs/operations.md" && strings.HasPrefix(text, "k ") {
				all = append(all, command{document: d.path, line: i + 1, text: text})
			}
		}
	}
	return all
}

var (
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
	link        = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// anchors of the headings, as GitHub makes them.
func (d *document) anchors() map[string]bool {
	found := map[string]bool{}
	for _, line := range d.prose {
		if title := strings.TrimLeft(line, "#"); title != line && strings.HasPrefix(title, " ") {
			anchor := strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), ""), " ", "-")
			unique := anchor
			for n := 1; found[unique]; n++ {
				unique = fmt.Sprintf("%s-%d", anchor, n)
			}
			found[unique] = true
		}
	}
	return found
}
