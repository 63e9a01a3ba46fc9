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

package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/traas-stack/altershield-operator/hack/controlplane/binaries"
	"github.com/traas-stack/altershield-operator/test/walkthrough"
)

// width is that of the terminal that commands are shown for.
const width = 100

// isTerminal says that somebody may be watching.
var isTerminal = binaries.IsTerminal(os.Stdout)

// show is how a command is typed: broken into lines where it is long, but not
// between a flag and its value.
func show(args []string) string {
	var b strings.Builder
	b.WriteString("$ kubectl")
	column := b.Len()
	for i := 0; i < len(args); i++ {
		part := quote(args[i])
		if strings.HasPrefix(part, "-") && !strings.Contains(part, "=") && i+1 < len(args) {
			i++
			part += " " + quote(args[i])
		}
		first, _, _ := strings.Cut(part, "\n")
		// Room for the space before and the backslash after it.
		if column+1+len(first) > width-2 {
			b.WriteString(" \\\n ")
			column = 1
		}
		b.WriteString(" " + part)
		if i := strings.LastIndexByte(part, '\n'); i >= 0 {
			column = len(part) - i - 1
		} else {
			column += 1 + len(part)
		}
	}
	return b.String()
}

// quote quotes an argument for a shell, where it has to be. None of ours has a
// quote of that kind itself.
func quote(arg string) string {
	if strings.ContainsAny(arg, " {}\"$*\n") {
		return "'" + arg + "'"
	}
	return arg
}

// fold breaks JSON text into lines, after commas between its values.
func fold(json string) string {
	var b strings.Builder
	start, comma := 0, 0
	inText, escaped := false, false
	for i := range len(json) {
		switch c := json[i]; {
		case escaped:
			escaped = false
		case inText && c == '\\':
			escaped = true
		case c == '"':
			inText = !inText
		case c == ',' && !inText:
			comma = i + 1
		}
		// Room for a quote.
		if i+1-start > width-5 && comma > start {
			b.WriteString(json[start:comma])
			b.WriteByte('\n')
			start = comma
		}
	}
	b.WriteString(json[start:])
	return b.String()
}

// progress shows how far something is that is waited for.
func progress(p walkthrough.Progress) {
	text := fmt.Sprintf("%s: %s (%.1fs)", p.What, p.Now, p.Elapsed.Seconds())
	if !p.Over {
		progressLine("   waiting for " + text)
		return
	}
	clearLine()
	fmt.Println("   waited for " + text)
}

// progressLine rewrites the current line where there is a terminal to see it.
// Without automatic wrapping, a terminal of any width shows one line of it.
func progressLine(text string) {
	if isTerminal {
		fmt.Print("\r\x1b[K\x1b[?7l" + text + "\x1b[?7h")
	}
}

func clearLine() {
	if isTerminal {
		fmt.Print("\r\x1b[K")
	}
}
