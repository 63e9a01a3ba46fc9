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

package defense

import (
	"regexp"
	"strings"
	"unicode"
)

// Words are how people speak of what halts the rollout of a workload, and by which
// commands they let it go on. Those of a kind that knows a pause are zero, but for the
// commands.
type Words struct {
	// HaltedBy is what a halted workload has, as in "partition 2147483647"; empty for a
	// pause.
	HaltedBy string
	// Resume takes back what the operator halts the workload by, and leaves what a user
	// wanted before that. GoOn has all pods replaced, whoever kept them from it. Both are
	// commands of kubectl, without that word and without the namespace.
	Resume, GoOn string
}

// Halted is the word for a rollout that was stopped.
func (w *Words) Halted() string {
	if w.HaltedBy == "" {
		return "paused"
	}
	return "halted"
}

// Halt is the word for what stopped it.
func (w *Words) Halt() string {
	if w.HaltedBy == "" {
		return "pause"
	}
	return "halt"
}

// Means is what follows these words: by what the rollout is stopped, where the word does
// not say that.
func (w *Words) Means() string {
	if w.HaltedBy == "" {
		return ""
	}
	return " (" + w.HaltedBy + ")"
}

// by names the command that resumes a rollout, where that is not `kubectl rollout resume`.
func (w *Workload) by(command string) string {
	if w.Words.HaltedBy == "" || command == "" {
		return ""
	}
	return "; resume it with " + Kubectl(command, w.Namespace)
}

// Kubectl is a command of Words in full.
func Kubectl(command, namespace string) string {
	// Behind the command: kubectl finds no plugin behind a flag.
	return strings.Join([]string{"kubectl", command, "-n", ShellWord(namespace)}, " ")
}

// plainWord is a word that every shell takes as it is.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9@%+:,./_-][A-Za-z0-9@%+:,./_=-]*$`)

// ShellWord quotes a word of a command for a shell, where it has to.
func ShellWord(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

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
