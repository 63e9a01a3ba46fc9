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
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestShow(t *testing.T) {
	name := strings.Repeat("n", 60)
	tests := map[string]struct {
		args []string
		want string
	}{
		"short":                 {[]string{"get", "pods", "-o", "wide"}, "$ kubectl get pods -o wide"},
		"quoted":                {[]string{"get", "-o", `jsonpath={.a}{"\n"}`}, `$ kubectl get -o 'jsonpath={.a}{"\n"}'`},
		"long":                  {[]string{"get", name, name}, "$ kubectl get " + name + " \\\n  " + name},
		"a flag and its value":  {[]string{"patch", name, strings.Repeat("m", 15), "-p", name, "--overwrite"}, "$ kubectl patch " + name + " mmmmmmmmmmmmmmm \\\n  -p " + name + " --overwrite"},
		"an argument of lines":  {[]string{"patch", "-p", "{1,\n2}", "--now"}, "$ kubectl patch -p '{1,\n2}' --now"},
		"a flag with its value": {[]string{"get", name, "--subresource=status", name}, "$ kubectl get " + name + " --subresource=status \\\n  " + name},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, show(tc.args)); diff != "" {
				t.Errorf("shown (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFold(t *testing.T) {
	text := strings.Repeat(`,\"`, 40)
	value := `{"a":"` + strings.Repeat("x", 60) + `","b":"` + strings.Repeat("y", 60) + `","c":"` + text + `","d":1}`
	folded := fold(value)
	var want, got any
	if err := json.Unmarshal([]byte(value), &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(folded), &got); err != nil {
		t.Fatalf("%v:\n%s", err, folded)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("folding changed the value (-want +got):\n%s", diff)
	}
	lines := strings.Split(folded, "\n")
	if len(lines) != 4 || len(lines[0]) > width || !strings.HasPrefix(lines[1], `"b"`) {
		t.Errorf("folded into %d lines:\n%s", len(lines), folded)
	}
	if short := `{"a":1,"b":2}`; fold(short) != short {
		t.Errorf("folded although short: %s", fold(short))
	}
}
