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

// Command words finds words and phrases that have to be read twice, in the files that are its arguments: in comments, strings and
// identifiers of Go, in the prose of Markdown, and in comments of other files. Code in Markdown is not read.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

var (
	phrases = regexp.MustCompile(`(?i)\b(told|tells? of|says? of|anew|any more|as ever|all the same|but for|but not|mend(s|ed|ing)?|` +
		`somebody|nobody|whoever|what needs|kept back|let go on|be at fault|of before|there is one|made again|` +
		`goes on by itself|in force by now)\b`)
	// begins matches a sentence that begins with a pronoun, up to its end. A question may.
	begins   = regexp.MustCompile(`(?:^|[.!?]\s+)((?:What|Who|Whoever|That)\b[^.!?]*[.!?]?)`)
	spans    = regexp.MustCompile("`+[^`]*`+|\\]\\([^)]*\\)|<!--.*?-->")
	blanks   = regexp.MustCompile(`\s+`)
	markdown = regexp.MustCompile(`^(\s*[-*>]|\s*\d+\.|#+|\|)`)
)

func main() {
	found := 0
	for _, path := range os.Args[1:] {
		content, err := os.ReadFile(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, "words:", err)
			os.Exit(1)
		}
		for _, f := range find(path, content) {
			found++
			fmt.Printf("%s:%d: %s\n", path, f.line, f.what)
		}
	}
	if found > 0 {
		fmt.Fprintf(os.Stderr, "words: %d places have to be read twice: write subject, verb, object (CONTRIBUTING.md, \"Words\")\n", found)
		os.Exit(1)
	}
}

type finding struct {
	line int
	what string
}

// find reads one file, by the ending of its name.
func find(path string, content []byte) []finding {
	switch {
	case bytes.Contains(content[:min(len(content), 400)], []byte("Code generated")):
		return nil
	case strings.HasSuffix(path, ".go"):
		return inGo(path, content)
	case filepath.Ext(path) == ".md":
		return inMarkdown(string(content))
	default:
		return inComments(string(content))
	}
}

// inText finds what a text has. Prose is judged by its sentences, too.
func inText(line int, text string, prose bool) (all []finding) {
	text = blanks.ReplaceAllString(spans.ReplaceAllString(text, "X"), " ")
	for _, m := range phrases.FindAllString(text, -1) {
		all = append(all, finding{line, strconv.Quote(m) + " is forbidden"})
	}
	if !prose {
		return all
	}
	for _, m := range begins.FindAllStringSubmatch(strings.TrimSpace(text), -1) {
		if !strings.HasSuffix(m[1], "?") {
			first, _, _ := strings.Cut(m[1], " ")
			all = append(all, finding{line, "a sentence begins with " + first})
		}
	}
	return all
}

func inGo(path string, content []byte) (all []finding) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return []finding{{1, err.Error()}}
	}
	for _, group := range file.Comments {
		all = append(all, inText(files.Position(group.Pos()).Line, group.Text(), true)...)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				all = append(all, inText(files.Position(n.Pos()).Line, text, false)...)
			}
		case *ast.Ident:
			if n.Obj == nil {
				all = append(all, inText(files.Position(n.Pos()).Line, words(n.Name), false)...)
			}
		}
		return true
	})
	return all
}

// words are those of an identifier, with blanks between.
func words(name string) string {
	var out strings.Builder
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) {
			out.WriteByte(' ')
		}
		out.WriteRune(r)
	}
	return out.String()
}

// inMarkdown reads paragraphs, list items, rows and headings, without code.
func inMarkdown(content string) (all []finding) {
	var text []string
	first, fenced := 0, false
	flush := func() {
		if joined := strings.Join(text, "\n"); joined != "" {
			prose := !strings.HasPrefix(joined, "#") && !strings.HasPrefix(joined, "|")
			all = append(all, inText(first, markdown.ReplaceAllString(joined, ""), prose)...)
		}
		text = nil
	}
	for i, line := range strings.Split(content, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			flush()
			continue
		}
		code := fenced || len(text) == 0 && strings.HasPrefix(line, "    ")
		if code || strings.TrimSpace(line) == "" || markdown.MatchString(line) {
			flush()
		}
		if code || strings.TrimSpace(line) == "" {
			continue
		}
		if len(text) == 0 {
			first = i + 1
		}
		text = append(text, line)
	}
	flush()
	return all
}

// inComments reads lines that begin with a number sign, block by block.
func inComments(content string) (all []finding) {
	var text []string
	first := 0
	for i, line := range append(strings.Split(content, "\n"), "") {
		comment, is := strings.CutPrefix(strings.TrimSpace(line), "#")
		if !is {
			all = append(all, inText(first, strings.Join(text, "\n"), true)...)
			text = nil
			continue
		}
		if len(text) == 0 {
			first = i + 1
		}
		text = append(text, strings.TrimLeft(comment, "# -"))
	}
	return all
}
