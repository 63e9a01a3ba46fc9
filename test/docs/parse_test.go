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
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extensionast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

// groupsOfDocuments has all documents, each group in the order in which its commands are run: install.md begins without an operator, and
// uninstall.md ends without one.
var groupsOfDocuments = [][]string{
	{
		"docs/getting-started/install.md", "README.md", "README.zh-CN.md", "docs/getting-started/first-block.md", "docs/tasks/enroll.md",
		"docs/reference/plugin.md", "docs/tasks/wait-in-ci.md",
		"docs/tasks/run-in-production.md", "docs/tasks/monitor.md", "docs/tasks/respond-to-an-alert.md",
		"docs/tasks/upgrade.md", "docs/tasks/uninstall.md", "docs/tasks/verify-a-download.md", "docs/tasks/gitops-and-helm.md",
	},
	{
		"docs/concepts/release.md", "docs/concepts/block.md", "docs/tasks/handle-a-failed-release.md", "docs/concepts/rollback.md",
		"docs/concepts/verification.md", "docs/concepts/compared.md",
		"docs/tasks/connect-altershield-server.md", "docs/reference/altershield-server.md",
		"docs/reference/states.md", "docs/reference/api.md", "docs/reference/settings.md", "docs/reference/objects.md",
		"docs/concepts/defaults.md", "docs/concepts/architecture.md", "docs/concepts/security.md", "docs/reference/metrics.md",
		"docs/reference/flags.md", "docs/reference/causes.md", "docs/reference/glossary.md", "docs/faq.md", "docs/index.md", "docs/roadmap.md",
		"docs/design.md", "CONTRIBUTING.md", "CHANGELOG.md",
	},
	{
		"docs/tasks/write-policies.md", "docs/tasks/verify-with-prometheus.md", "docs/tasks/verify-with-your-own-service.md",
		"docs/tasks/use-your-alerts.md", "docs/tasks/try-a-policy.md", "docs/reference/checks.md", "docs/reference/judge.md",
		"docs/tasks/hold-rollouts.md", "docs/concepts/hold.md", "docs/concepts/kinds.md", "docs/tasks/freeze-releases.md",
		"docs/tasks/declare-kind.md",
		"docs/tasks/get-notified.md", "docs/reference/figures.md",
	},
}

// documents are the documents of all groups.
var documents = slices.Concat(groupsOfDocuments...)

// document is a Markdown file of this repository, as GitHub reads it.
type document struct {
	path  string
	lines []string
	// blocks are its code blocks, indented or fenced: commands, outputs and files.
	blocks []block
	// spans are the `code` spans of its prose, in order; links are the targets of its links.
	spans, links []span
	// loose are code spans that do not end in their first line, and single backticks.
	loose []span
	// headings are its titles in order, without markup.
	headings []string
	// rows are the rows of its tables, without headers.
	rows []row
}

type block struct {
	// line is the number of its first line, from 1.
	line     int
	language string
	lines    []string
}

// row is a row of a table below a heading: the code spans of each cell.
type row struct {
	heading string
	cells   [][]span
}

// span is a part of a line.
type span struct {
	line int
	text string
}

// command is a command of a document, with the output that the document shows below it.
type command struct {
	document string
	line     int
	text     string
	// output begins at the line outputAt; shown is false without an output.
	output   []string
	outputAt int
	shown    bool
	// inProse is set for a command in a sentence.
	inProse bool
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

func parse(path, content string) *document {
	r := &reader{document: document{path: path, lines: strings.Split(content, "\n")}, source: []byte(content)}
	root := goldmark.New(goldmark.WithExtensions(extension.Table)).Parser().Parse(text.NewReader(r.source))
	if err := ast.Walk(root, r.visit); err != nil {
		panic(err) // visit returns none
	}
	return &r.document
}

// reader reads a document from its syntax tree.
type reader struct {
	document
	source []byte
}

func (r *reader) visit(n ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	switch n := n.(type) {
	case *ast.FencedCodeBlock:
		r.block(n, string(n.Language(r.source)))
	case *ast.CodeBlock:
		r.block(n, "")
	case *ast.Heading:
		r.headings = append(r.headings, r.shown(n))
	case *ast.Link:
		r.links = append(r.links, span{r.lineOf(n), string(n.Destination)})
	case *ast.Image:
		r.links = append(r.links, span{r.lineOf(n), string(n.Destination)})
	case *ast.CodeSpan:
		s := span{r.lineOf(n), r.shown(n)}
		r.spans = append(r.spans, s)
		if bytes.Contains(r.raw(n), []byte("\n")) {
			r.loose = append(r.loose, s)
		}
		return ast.WalkSkipChildren, nil
	case *ast.Text:
		if value := n.Segment.Value(r.source); bytes.Contains(value, []byte("`")) {
			r.loose = append(r.loose, span{r.lineOf(n), string(value)})
		}
	case *extensionast.TableRow:
		r.row(n)
	}
	return ast.WalkContinue, nil
}

func (r *reader) block(n ast.Node, language string) {
	b := block{language: language}
	for i, segment := range n.Lines().Sliced(0, n.Lines().Len()) {
		if i == 0 {
			b.line = r.lineAt(segment.Start)
		}
		b.lines = append(b.lines, strings.TrimSuffix(string(segment.Value(r.source)), "\n"))
	}
	r.blocks = append(r.blocks, b)
}

func (r *reader) row(n ast.Node) {
	found := row{heading: r.headings[len(r.headings)-1]}
	for cell := n.FirstChild(); cell != nil; cell = cell.NextSibling() {
		of := &reader{source: r.source}
		if err := ast.Walk(cell, of.visit); err != nil {
			panic(err) // visit returns none
		}
		found.cells = append(found.cells, of.spans)
	}
	r.rows = append(r.rows, found)
}

// raw returns the text below a node, with its line breaks.
func (r *reader) raw(n ast.Node) []byte {
	var all []byte
	for child := n.FirstChild(); child != nil; child = child.NextSibling() {
		if t, is := child.(*ast.Text); is {
			all = append(all, t.Segment.Value(r.source)...)
		} else {
			all = append(all, r.raw(child)...)
		}
	}
	return all
}

// shown returns the text below a node in one line.
func (r *reader) shown(n ast.Node) string {
	return strings.ReplaceAll(string(r.raw(n)), "\n", " ")
}

// lineOf returns the line in which the text below a node begins.
func (r *reader) lineOf(n ast.Node) int {
	line := 0
	_ = ast.Walk(n, func(n ast.Node, _ bool) (ast.WalkStatus, error) {
		if t, is := n.(*ast.Text); is {
			line = r.lineAt(t.Segment.Start)
			return ast.WalkStop, nil
		}
		return ast.WalkContinue, nil
	})
	return line
}

func (r *reader) lineAt(offset int) int {
	return bytes.Count(r.source[:offset], []byte("\n")) + 1
}

// text returns the lines as spans.
func (d *document) text() []span {
	all := make([]span, len(d.lines))
	for i, line := range d.lines {
		all[i] = span{i + 1, line}
	}
	return all
}

// programs matches the first line of a block of commands without outputs. A block with outputs begins with a prompt.
var programs = regexp.MustCompile(`^(kubectl|helm|make|curl|head|git|cd|go|sha256sum|gh|cosign|skopeo|ctr|sign\(\)|[A-Za-z_]+=\$\()( |$)|` +
	`^(sign\(\)|[A-Za-z_]+=\$\()`)

var comment = regexp.MustCompile(`(^|\s+)# .*$`)

// commands returns the commands of a block; none for a block of something else.
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
			if !last.shown {
				last.outputAt = b.line + i
			}
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

// commands returns the commands in blocks and in the prose, in order.
func (d *document) commands() []command {
	var all []command
	for _, b := range d.blocks {
		all = append(all, b.commands(d.path)...)
	}
	for _, s := range d.spans {
		if strings.HasPrefix(s.text, "kubectl ") {
			all = append(all, command{document: d.path, line: s.line, text: s.text, inProse: true})
		}
	}
	slices.SortStableFunc(all, func(a, b command) int { return a.line - b.line })
	return all
}

var notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)

// anchors returns the anchors of the headings as GitHub creates them; the library would keep ASCII only.
func (d *document) anchors() map[string]bool {
	found := map[string]bool{}
	for _, title := range d.headings {
		anchor := strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		unique := anchor
		for n := 1; found[unique]; n++ {
			unique = fmt.Sprintf("%s-%d", anchor, n)
		}
		found[unique] = true
	}
	return found
}
