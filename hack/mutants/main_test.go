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
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRun has a module with a test that notices one of two mutants.
func TestRun(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"go.mod":           "module m\n\ngo 1.26\n",
		"p/p.go":           "package p\n\ntype T[V any] struct{ v V }\n\nfunc (t *T[V]) Both(a, b bool) bool { return a && b }\n\nfunc Double(n int) int { return n + n }\n",
		"p/p_test.go":      "package p\n\nimport (\n\t\"flag\"\n\t\"testing\"\n)\n\nvar without = flag.String(\"observer.without\", \"\", \"\")\n\nfunc TestBoth(t *testing.T) {\n\tif new(T[int]).Both(true, false) && *without != \"S1\" {\n\t\tt.Error()\n\t}\n}\n\nfunc TestDouble(t *testing.T) {\n\tif Double(0) != 0 {\n\t\tt.Error()\n\t}\n}\n\nfunc TestFails(t *testing.T) { t.Error() }\n",
		"killed.yaml":      "- {of: p.T.Both, from: '&&', to: '||', test: p TestBoth}\n",
		"only.yaml":        "- {of: p.T.Both, from: '&&', to: '||', test: p TestBoth, only: S1}\n",
		"notonly.yaml":     "- {of: p.T.Both, from: '&&', to: '||', test: p TestBoth, only: S2}\n",
		"survives.yaml":    "- {of: p.Double, from: n + n, to: 'n', test: p TestDouble}\n",
		"twice.yaml":       "- {of: p.Double, from: int, to: uint, test: p TestDouble}\n",
		"nofunction.yaml":  "- {of: p.Triple, from: int, to: uint, test: p TestDouble}\n",
		"notcompiled.yaml": "- {of: p.Double, from: n + n, to: x, test: p TestDouble}\n",
		"notest.yaml":      "- {of: p.Double, from: n + n, to: '1', test: p TestOther}\n",
		"unhealthy.yaml":   "- {of: p.Double, from: n + n, to: '1', test: p TestFails}\n",
		"none.yaml":        "[]\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{
		"killed": "", "only": "", "notonly": "noticed without S2, too", "survives": "survived p TestDouble", "twice": "it occurs 2 times",
		"nofunction": "there is no such function", "notcompiled": "no test failed", "notest": "no tests to run", "unhealthy": "the test fails without it", "none": "0 of 0",
	} {
		t.Run(file, func(t *testing.T) {
			var got strings.Builder
			err := run(t.Context(), &got, file+".yaml", "", 1, time.Minute)
			if (err != nil) != (want != "") || err != nil && !strings.Contains(got.String()+err.Error(), want) {
				t.Errorf("want %q: %v\n%s", want, err, got.String())
			}
		})
	}
}
