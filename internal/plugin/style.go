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

package plugin

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"
)

// style is how a terminal, or a file, shows things.
type style struct {
	// ascii: nothing but ASCII; color: with colours.
	ascii, color bool
	// operator is the namespace of the operator, to name it.
	operator string
}

// styleOf is the style for what a command prints to. Colours are only where a terminal
// is and NO_COLOR is unset.
func styleOf(out io.Writer, env func(string) string) style {
	st := style{color: printers.IsTerminal(out) && env("NO_COLOR") == "" && env("TERM") != "dumb"}
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := env(name); locale != "" {
			locale = strings.ToLower(locale)
			st.ascii = !strings.Contains(locale, "utf-8") && !strings.Contains(locale, "utf8")
			break
		}
	}
	return st
}

// mark is what stands before a line.
type mark int

const (
	markGood mark = iota
	markBad
	markWaits
	markPaused
	markPlain
)

// marks are symbol, ASCII and colour (SGR).
var marks = map[mark][3]string{
	markGood:   {"✔", "+", "32"},
	markBad:    {"✖", "x", "31"},
	markWaits:  {"◷", "~", "33"},
	markPaused: {"⏸", "=", "33"},
	markPlain:  {"·", "-", ""},
}

// of puts a mark before a text.
func (m mark) of(st style, text string) string {
	symbol := marks[m][0]
	if st.ascii {
		symbol = marks[m][1]
	}
	return st.colored(symbol, marks[m][2]) + " " + text
}

func (st style) colored(text, sgr string) string {
	if !st.color || sgr == "" {
		return text
	}
	return own + "[" + sgr + "m" + text + own + "[0m"
}

func (st style) bold(text string) string { return st.colored(text, "1") }

// dots begin what was left out.
func (st style) dots() string {
	if st.ascii {
		return "..."
	}
	return "…"
}

// markOf is the mark of what somebody, or time, has to do.
func markOf(n Needs) mark {
	switch n {
	case NeedsAttention:
		return markBad
	case NeedsTime:
		return markWaits
	case NeedsNothing:
		return markPlain
	default:
		return markGood
	}
}

// node is a line with those below it.
type node struct {
	text string
	sub  []node
}

// tree writes lines below one another.
func (st style) tree(w io.Writer, nodes []node, indent string) {
	branch, last, below, none := "├─ ", "└─ ", "│  ", "   "
	if st.ascii {
		branch, last, below = "|- ", "`- ", "|  "
	}
	for i, n := range nodes {
		at, under := branch, below
		if i == len(nodes)-1 {
			at, under = last, none
		}
		printf(w, "%s\n", indent+at+n.text)
		st.tree(w, n.sub, indent+under)
	}
}

// table prints rows in columns, the first as their heads, each of the others with its
// mark.
func (st style) table(w io.Writer, rows [][]string, marks []mark) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for n, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+3))
			}
		}
		text := strings.TrimRight(line.String(), " ")
		if n == 0 {
			printf(w, "  %s\n", st.bold(text))
			continue
		}
		printf(w, "%s\n", marks[n].of(st, text))
	}
}

// age is a time as kubectl tells it.
func age(d time.Duration) string { return duration.HumanDuration(max(d, 0)) }

// Formats of outputs.
const (
	formatText = ""
	formatWide = "wide"
	formatJSON = "json"
	formatYAML = "yaml"
)

// checkFormat says that an output has a format that there is.
func checkFormat(format string) error {
	if slices.Contains([]string{formatText, formatWide, formatJSON, formatYAML}, format) {
		return nil
	}
	return remedy(fmt.Errorf("-o %s is no format", format), "give json, yaml or wide, or leave it out")
}

// structured says that an output is for programs.
func structured(format string) bool { return format == formatJSON || format == formatYAML }

// printStructured prints something for programs.
func printStructured(w io.Writer, format string, what any) error {
	data, err := json.MarshalIndent(what, "", "  ")
	// JSON escapes line breaks, and C0 alone.
	lines := strings.Split(string(data), "\n")
	for i := range lines {
		lines[i] = clean(lines[i])
	}
	data = []byte(strings.Join(lines, "\n"))
	if err == nil && format == formatYAML {
		data, err = yaml.JSONToYAML(data)
	}
	if err != nil {
		return fmt.Errorf("encode the output: %w", err)
	}
	_, err = io.WriteString(w, strings.TrimSpace(string(data))+"\n")
	return err
}

func environment(name string) string { return os.Getenv(name) }
