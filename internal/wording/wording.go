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

// Package wording makes foreign texts safe for messages, and words safe for shells.
package wording

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable returns a text on one line without control characters (C0, C1) or characters that set
// the direction of writing, so that it gives a terminal no commands.
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

// ShellWord quotes a word for a shell, if needed.
func ShellWord(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// plainWord matches words that every shell takes unquoted.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9@%+:,./_-][A-Za-z0-9@%+:,./_=-]*$`)

// Kubectl returns a command of workload.Words in full.
func Kubectl(command, namespace string) string {
	// The flag follows the command: kubectl finds no plugin behind a flag.
	return strings.Join([]string{"kubectl", command, "-n", ShellWord(namespace)}, " ")
}

// Brief returns a text as one printable line of at most maxMessage bytes.
func Brief(message string) string {
	return Shortened(strings.Join(strings.Fields(Printable(message)), " "), maxMessage)
}

// maxMessage bounds a foreign text in a message of the operator, in bytes.
const maxMessage = 256

// Cut returns a foreign text, printable and at most maxMessage bytes long.
func Cut(message string) string {
	return Shortened(Printable(message), maxMessage)
}

// Shortened returns a text of at most limit bytes; "..." replaces the rest.
func Shortened(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return CutAtRune(text, limit-len("...")) + "..."
}

// CutAtRune returns the first whole characters of s, at most limit bytes.
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
