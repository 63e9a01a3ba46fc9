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

package wording

import (
	"testing"
)

func TestShellWord(t *testing.T) {
	for word, want := range map[string]string{
		"deployment/sleep": "deployment/sleep", "--from-file=token": "--from-file=token", "a.b/c=1,2:3@4%5+6": "a.b/c=1,2:3@4%5+6",
		"": "''", "x;curl": "'x;curl'", "it's": `'it'\''s'`, "$(x)": "'$(x)'", "=ls": "'=ls'", "~": "'~'", "a\nb": "'a\nb'",
	} {
		if got := ShellWord(word); got != want {
			t.Errorf("%q becomes %s, want %s", word, got, want)
		}
	}
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"a\r\nb\tc\u0085d\u2028e":   "a  b c d e",
		"\x1b[31m\u009b31m\x7f\x00": "[31m31m", "\u202ea\u2066b\u200f": "ab", "\x9b1m": "\ufffd1m", "é 中 ✔": "é 中 ✔",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	if got := Brief("a \x1b[2J\n b"); got != "a [2J b" {
		t.Errorf("brief: %q", got)
	}
}
