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
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRun has a module whose tests notice some mutants.
func TestRun(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"go.mod": "module m\n\ngo 1.26\n",
		"p/p.go": `package p

type T[V any] struct{ v V }

func (t *T[V]) Both(a, b bool) bool { return a && b }

func Double(n int) int { return n + n }
`,
		"p/p_test.go": `package p

import (
	"flag"
	"os"
	"testing"
	"time"
)

var without = flag.String("observer.without", "", "")

func TestMain(m *testing.M) {
	flag.Parse()
	if Double(1) == 7 {
		panic("outside any test")
	}
	os.Exit(m.Run())
}

func TestBoth(t *testing.T) {
	if new(T[int]).Both(true, false) && *without != "S1" {
		t.Error()
	}
}

func TestDouble(t *testing.T) {
	if Double(0) != 0 {
		t.Error()
	}
}

func TestHangs(t *testing.T) {
	for Double(0) != 0 {
		time.Sleep(time.Millisecond)
	}
}

func TestPanics(t *testing.T) {
	done := make(chan bool)
	go func() {
		if Double(0) != 0 {
			panic("elsewhere")
		}
		close(done)
	}()
	<-done
}

func TestSecond(t *testing.T) {
	for _, name := range []string{"first", "second"} {
		t.Run(name, func(t *testing.T) {
			if name == "second" && Double(0) != 0 {
				t.Error()
			}
		})
	}
}

func TestAbove(t *testing.T) {
	t.Run("below", func(t *testing.T) {})
	if Double(0) != 0 {
		t.Error()
	}
}

// TestOnce fails once, as its file says.
func TestOnce(t *testing.T) {
	_, err := os.Stat("once")
	if Double(0) != 0 && err != nil {
		_ = os.WriteFile("once", nil, 0o600)
		t.Error()
	}
}

// TestLuck passes once, as its file says.
func TestLuck(t *testing.T) {
	_, err := os.Stat("luck")
	if err == nil || Double(0) != 0 {
		t.Error()
	} else {
		_ = os.WriteFile("luck", nil, 0o600)
	}
}

func TestFails(t *testing.T) { t.Error() }
`,
		"killed.yaml":      "- {of: p.T.Both, from: '&&', to: '||', test: p ^TestBoth}\n",
		"only.yaml":        "- {of: p.T.Both, from: '&&', to: '||', test: p ^TestBoth, only: S1}\n",
		"notonly.yaml":     "- {of: p.T.Both, from: '&&', to: '||', test: p ^TestBoth, only: S2}\n",
		"survives.yaml":    "- {of: p.Double, from: n + n, to: 'n', test: p ^TestDouble}\n",
		"twice.yaml":       "- {of: p.Double, from: int, to: uint, test: p ^TestDouble}\n",
		"nofunction.yaml":  "- {of: p.Triple, from: int, to: uint, test: p ^TestDouble}\n",
		"notcompiled.yaml": "- {of: p.Double, from: n + n, to: x, test: p ^TestDouble}\n",
		"notest.yaml":      "- {of: p.Double, from: n + n, to: '1', test: p ^TestOther}\n",
		"unhealthy.yaml":   "- {of: p.Double, from: n + n, to: '1', test: p ^TestFails}\n",
		"panics.yaml":      "- {of: p.Double, from: n + n, to: '1', test: p ^TestPanics$}\n",
		"outside.yaml":     "- {of: p.Double, from: n + n, to: '7', test: p ^TestDouble$}\n",
		"hangs.yaml":       "- {of: p.Double, from: n + n, to: '1', test: p ^TestHangs$}\n",
		"subtest.yaml":     "- {of: p.Double, from: n + n, to: '1', test: p ^TestSecond$/^second$}\n",
		"above.yaml":       "- {of: p.Double, from: n + n, to: '1', test: p ^TestAbove$/^below$}\n",
		"once.yaml":        "- {of: p.Double, from: n + n, to: '1', test: p ^TestOnce$}\n",
		"luck.yaml":        "- {of: p.Double, from: n + n, to: '1', test: p ^TestLuck$}\n",
		"none.yaml":        "[]\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for file, test := range map[string]struct {
		want    string
		repeat  int
		timeout time.Duration
	}{
		"killed":      {repeat: 2},
		"only":        {},
		"panics":      {},
		"subtest":     {},
		"notonly":     {want: "noticed without S2, too"},
		"survives":    {want: "survived p ^TestDouble"},
		"twice":       {want: "it occurs 2 times"},
		"nofunction":  {want: "there is no such function"},
		"notcompiled": {want: "no test failed that matches"},
		"notest":      {want: "no tests to run"},
		"unhealthy":   {want: "the test fails without it"},
		"outside":     {want: "no test failed that matches"},
		"hangs":       {want: "timed out", timeout: 2 * time.Second},
		"above":       {want: "no test failed that matches"},
		"once":        {want: "survived", repeat: 2},
		"luck":        {want: "the test fails without it", repeat: 2},
		"none":        {want: "0 of 0"},
	} {
		t.Run(file, func(t *testing.T) {
			var got strings.Builder
			err := run(t.Context(), &got, file+".yaml", "", 1, test.repeat, cmp.Or(test.timeout, time.Minute))
			if (err != nil) != (test.want != "") || err != nil && !strings.Contains(got.String()+err.Error(), test.want) {
				t.Errorf("want %q: %v\n%s", test.want, err, got.String())
			}
			row := "| S1 | `p.T.Both`: `&&` becomes `\\|\\|` | `p ^TestBoth` |\n"
			if strings.Contains(got.String(), row) != (file == "only") {
				t.Errorf("want the row %t:\n%s", file == "only", got.String())
			}
		})
	}
}

// TestList finds entries of the list that code or tests have left behind, without running any.
func TestList(t *testing.T) {
	t.Chdir("../..")
	all, err := load("hack/mutants/mutants.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 80 {
		t.Errorf("there are only %d mutants", len(all))
	}
	tests, known := map[string][]string{}, map[mutant]bool{}
	for _, m := range all {
		if known[m] {
			t.Errorf("%s: it is in the list twice", &m)
		}
		known[m] = true
		_, text, err := m.apply()
		if err == nil {
			_, err = parser.ParseFile(token.NewFileSet(), "", text, parser.SkipObjectResolution)
		}
		if err != nil {
			t.Errorf("%s: %v", &m, err)
		}
		for _, level := range m.pattern() {
			if !strings.HasPrefix(level, "^") || !strings.HasSuffix(level, "$") {
				t.Errorf("%s: write the test %q as ^name$", &m, level)
			}
			if _, err := regexp.Compile(level); err != nil {
				t.Errorf("%s: %v", &m, err)
			}
		}
		folder, _, _ := strings.Cut(m.Test, " ")
		if tests[folder] == nil {
			tests[folder] = testsIn(t, folder)
		}
		if !slices.ContainsFunc(tests[folder], func(name string) bool { return m.names([]string{name}, 1) }) {
			t.Errorf("%s: there is no test %s", &m, m.Test)
		}
	}
}

// testsIn are the names of the test functions in a folder.
func testsIn(t *testing.T, folder string) (names []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}
