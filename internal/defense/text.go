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
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
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

// Kubectl is a command of Words in full.
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

// MaxText is the limit of the API for texts that are kept of a release.
const MaxText = 512

// MaxUser bounds a user name in an annotation, in bytes.
const MaxUser = 256

// noReason stands for what a server does not say.
const noReason = "the server gave no reason"

// Describe is a verdict on a pod in one line.
func Describe(r *v1alpha1.PodResult) string {
	s := fmt.Sprintf("pod %s: %s", r.Pod, r.Verdict)
	if r.Message != "" {
		s += ": " + Cut(r.Message)
	}
	return s
}

// UnknownUser stands for the user of an override that admission did not see.
const UnknownUser = "unknown"

// FormatTime writes a time as the kinds show it to people.
func FormatTime(t time.Time) string { return t.Format(timeLayout) }

// timeLayout is how times for people are written; the Unix time beside each is
// exact.
const timeLayout = "2006-01-02 15:04:05"

// shortest is the shorter of two times to wait; 0 is not to.
func shortest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// unixOrZero is a time in seconds; none for 0.
func unixOrZero(seconds int64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0)
}

// timeOf is a time as the API keeps it.
func timeOf(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	kept := metav1.NewTime(t.Truncate(time.Second))
	return &kept
}

func timeOrZero(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

// VerdictFails says whether a verdict fails its pod: "pass", "none" (no rule
// was triggered) and the empty string do not, everything else does.
func VerdictFails(verdict string) bool {
	switch verdict {
	case VerdictPass, VerdictNone, "":
		return false
	default:
		return true
	}
}

// Verdicts, as the server words them.
const (
	// VerdictPass means rules were triggered and passed.
	VerdictPass = "pass"
	// VerdictNone means no rule was triggered, or nobody was asked.
	VerdictNone = "none"
	// VerdictFail means a check failed.
	VerdictFail = "fail"
	// VerdictInconclusive does not pass: the server could not decide, or did
	// not in time.
	VerdictInconclusive = "inconc"
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

// MaxRelease bounds the number of a release: every reader of JSON knows it exactly,
// and no workload comes near it by being released.
const MaxRelease int64 = 1<<53 - 1

// ParseRelease reads the value of ReleaseAnnotation: 0 when it is no positive
// number, and MaxRelease when it is a larger one.
func ParseRelease(value string) int64 {
	n, err := strconv.ParseInt(value, 10, 64)
	if errors.Is(err, strconv.ErrRange) && n > 0 {
		return MaxRelease
	}
	if err != nil || n < 0 {
		return 0
	}
	return min(n, MaxRelease)
}

// NextRelease is the number of the release after this one; it stays at MaxRelease.
func NextRelease(n int64) int64 { return min(n, MaxRelease-1) + 1 }
