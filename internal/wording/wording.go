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

// Package wording makes texts of others fit for messages, and commands fit for shells.
package wording

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable is a text that gives a terminal no commands, on one line: it has no control
// characters (C0, C1), and none that set the direction of writing.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.In(r, unicode.Cc, unicode.Bidi_Control):
			return -1
		default:
			return r
		}
	}, text)
}

// ShellWord quotes a word of a command for a shell, where it has to.
func ShellWord(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// plainWord is a word that every shell takes as it is.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9@%+:,./_-][A-Za-z0-9@%+:,./_=-]*$`)

// Kubectl is a command of workload.Words in full.
func Kubectl(command, namespace string) string {
	// Behind the command: kubectl finds no plugin behind a flag.
	return strings.Join([]string{"kubectl", command, "-n", ShellWord(namespace)}, " ")
}

// Brief makes a text one printable line that is not too long.
func Brief(message string) string {
	return Shortened(strings.Join(strings.Fields(Printable(message)), " "), maxMessage)
}

// maxMessage bounds a text of others in a message of the operator, in bytes.
const maxMessage = 256

// Cut makes a message of others printable, and not too long.
func Cut(message string) string {
	return Shortened(Printable(message), maxMessage)
}

// Shortened is a text of at most so many bytes: "..." stands for what it lacks.
func Shortened(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return CutAtRune(text, limit-len("...")) + "..."
}

// CutAtRune shortens s to at most limit bytes of whole characters.
func CutAtRune(s string, limit int) string {
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// NonEmpty returns the parts that are not empty.
func NonEmpty(parts ...string) []string {
	kept := parts[:0]
	for _, p := range parts {
		if p != "" {
			kept = append(kept, p)
		}
	}
	return kept
}
