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
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommandsIn(t *testing.T) {
	const text = `# Title

Type ` + "`kubectl get pods`" + `, then

    kubectl apply -f a.yaml     # a comment
    # another one
    kubectl patch b \
      -p c

and

    $ kubectl get d \
        -o wide
    NAME
    e

    f
    $ kubectl get g


Output and files:

    some: file

` + "```sh\nmake h\n```\n\n```mermaid\nkubectl i\n```\n"
	var got []string
	for _, c := range parse("x.md", text).commands() {
		shown := "-"
		if c.shown {
			shown = ""
			for _, line := range c.output {
				shown += line + "|"
			}
		}
		got = append(got, c.String()+" "+c.text+" "+shown)
	}
	want := []string{
		"x.md:3 kubectl get pods -",
		"x.md:5 kubectl apply -f a.yaml -",
		"x.md:7 kubectl patch b -p c -",
		"x.md:12 kubectl get d -o wide NAME|e||f|",
		"x.md:18 kubectl get g -",
		"x.md:26 make h -",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnchors(t *testing.T) {
	got := parse("x.md", "# A `b` c: d, e-f_g\n\n## A\n\n## A\n\n```\n# no\n```\n").anchors()
	want := map[string]bool{"a-b-c-d-e-f_g": true, "a": true, "a-1": true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParse(t *testing.T) {
	const text = `# Title

See [this *page*](a.md#b), ` + "`code`" + ` and [that][1].

- an item

      kubectl in an item

| head ` + "`h`" + ` | more |
| --- | --- |
| ` + "`a \\| b`" + ` | [x](c.md) ` + "`d` `e`" + ` |

Code ` + "`over\nlines`" + `, a ` + "\\`" + ` alone

[1]: d.md
`
	d := parse("x.md", text)
	type found struct {
		Blocks              []block
		Spans, Links, Loose []span
		Headings            []string
		Rows                []row
	}
	want := found{
		Blocks:   []block{{line: 7, lines: []string{"kubectl in an item"}}},
		Spans:    []span{{3, "code"}, {9, "h"}, {11, "a | b"}, {11, "d"}, {11, "e"}, {13, "over lines"}},
		Links:    []span{{3, "a.md#b"}, {3, "d.md"}, {11, "c.md"}},
		Loose:    []span{{13, "over lines"}, {14, ", a \\` alone"}},
		Headings: []string{"Title"},
		Rows:     []row{{heading: "Title", cells: [][]span{{{11, "a | b"}}, {{11, "d"}, {11, "e"}}}}},
	}
	got := found{d.blocks, d.spans, d.links, d.loose, d.headings, d.rows}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(block{}, span{}, row{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMatches(t *testing.T) {
	for name, tc := range map[string]struct {
		shown, printed string
		want           bool
	}{
		"the same":          {"a  b", "a  b", true},
		"another width":     {"NAME   AGE\nx      30s", "NAME AGE\nx    1m5s", true},
		"another word":      {"a  b", "a  c", false},
		"a line is missing": {"a\nb", "a", false},
		"a line too many":   {"a", "a\nb", false},
		"lines left out":    {"a\n...\nd", "a\nb\nc\nd", true},
		"nothing left out":  {"a\n...\nd", "a\nd", true},
		"left out at first": {"...\nd", "a\nd", true},
		"left out at last":  {"a\n...", "a\nd", true},
		"order":             {"...\nd\n...\na", "a\nd", false},
		"part of a line":    {"a ...: c", "a b: c", true},
		"not that part":     {"a ...: c", "a b: d", false},
		"pods":              {"sleep-76899dd8f8-gcr9j", "sleep-76899dd8f8-zzzzz", true},
		"another hash":      {"sleep-76899dd8f8-gcr9j", "sleep-7f558cb7c6-gcr9j", true},
		"of another app":    {"sleep-76899dd8f8-gcr9j", "web-76899dd8f8-gcr9j", false},
		"times": {
			"2026-11-21 02:17:30 2026-11-21T02:17:30Z suspend=1795240050",
			"2027-01-01 00:00:00 2027-01-01T00:00:00Z suspend=1800000000", true,
		},
		"numbers are kept":  {"5 desired", "4 desired", false},
		"versions are kept": {"c6c45d23c098bdf181853a85b60b5d74", "c6c45d23c098bdf181853a85b60b5d75", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := matches(tc.shown, tc.printed); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
