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

// Command mutants proves that tests can fail: it makes one change at a time to the
// program, as mutants.yaml lists them, and runs the test that has to notice. A mutant
// that nobody notices makes it fail, and so does one that does not compile.
//
// A change is named by the function it is in, so that it does not move with other lines.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"
)

// mutant is one change, and the test that has to notice it.
type mutant struct {
	// Of is the function that is changed: its package's folder, a dot, and its name, with its
	// receiver's type where it has one, as internal/defense.release.halts.
	Of string `json:"of"`
	// From is a part of the function that occurs once in it, To what stands there instead.
	From string `json:"from"`
	To   string `json:"to"`
	// Test is the folder of a package and, after a space, what go test -run takes.
	Test string `json:"test"`
	// Only is the invariant that alone notices: without it the test passes.
	Only string `json:"only,omitempty"`
}

func (m *mutant) String() string { return fmt.Sprintf("%s: %q becomes %q", m.Of, m.From, m.To) }

func main() {
	file := flag.String("file", "hack/mutants/mutants.yaml", "the list of mutants")
	which := flag.String("run", "", "only mutants whose function, test or invariant matches")
	workers := flag.Int("workers", 2, "how many mutants are tried at once")
	timeout := flag.Duration("timeout", 10*time.Minute, "how long one test may take")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *file, *which, *workers, *timeout); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, file, which string, workers int, timeout time.Duration) error {
	matches, err := regexp.Compile(which)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var all []mutant
	if err := yaml.UnmarshalStrict(data, &all); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	all = slices.DeleteFunc(all, func(m mutant) bool {
		return !matches.MatchString(m.Of) && !matches.MatchString(m.Test) && !matches.MatchString(m.Only)
	})
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t := &trial{dir: dir, timeout: timeout, healthy: map[string]error{}}
	next, failed := make(chan int), make([]error, len(all))
	var wait sync.WaitGroup
	for range workers {
		wait.Go(func() {
			for i := range next {
				began := time.Now()
				if failed[i] = t.try(ctx, i, &all[i]); failed[i] == nil {
					fmt.Fprintf(w, "killed by %s (%.0fs): %s\n", strings.TrimSpace(all[i].Test+" "+all[i].Only), time.Since(began).Seconds(), &all[i])
				} else {
					fmt.Fprintf(w, "FAILED (%.0fs): %v\n", time.Since(began).Seconds(), failed[i])
				}
			}
		})
	}
	for i := range all {
		next <- i
	}
	close(next)
	wait.Wait()
	n := len(slices.DeleteFunc(failed, func(err error) bool { return err == nil }))
	fmt.Fprintf(w, "%d mutants, %d killed\n", len(all), len(all)-n)
	if n > 0 || len(all) == 0 {
		return fmt.Errorf("%d of %d mutants were not killed", n, len(all))
	}
	return nil
}

// trial tries mutants.
type trial struct {
	dir     string
	timeout time.Duration
	mu      sync.Mutex
	// healthy is what became of each test without a mutant.
	healthy map[string]error
}

// try returns nil where the test notices the mutant, and only its invariant does.
func (t *trial) try(ctx context.Context, number int, m *mutant) error {
	overlay, err := t.overlay(number, m)
	if err != nil {
		return fmt.Errorf("%s: %w", m, err)
	}
	if err := t.isHealthy(ctx, m); err != nil {
		return fmt.Errorf("%s: the test fails without it: %w", m, err)
	}
	out, err := t.test(ctx, m, "-overlay="+overlay)
	switch {
	case err == nil:
		return fmt.Errorf("%s: survived %s", m, m.Test)
	case !strings.Contains(out, "--- FAIL: ") && !strings.Contains(out, "\npanic: "):
		return fmt.Errorf("%s: no test failed: %w\n%s", m, err, out)
	case m.Only == "":
		return nil
	}
	if out, err := t.test(ctx, m, "-overlay="+overlay, "-args", "-observer.without="+m.Only); err != nil {
		return fmt.Errorf("%s: noticed without %s, too:\n%s", m, m.Only, out)
	}
	return nil
}

// isHealthy runs the test once without any mutant.
func (t *trial) isHealthy(ctx context.Context, m *mutant) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err, known := t.healthy[m.Test]
	if !known {
		var out string
		if out, err = t.test(ctx, m); err == nil && strings.Contains(out, "no tests to run") {
			err = errors.New("no tests to run")
		}
		t.healthy[m.Test] = err
	}
	return err
}

// test runs the test of a mutant. Arguments of the test itself come last.
func (t *trial) test(ctx context.Context, m *mutant, args ...string) (string, error) {
	folder, name, _ := strings.Cut(m.Test, " ")
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	var own []string
	if i := slices.Index(args, "-args"); i >= 0 {
		args, own = args[:i], args[i:]
	}
	all := slices.Concat([]string{"test", "-count=1", "-vet=off", "-run=" + name}, args, []string{"./" + folder}, own)
	out, err := exec.CommandContext(ctx, "go", all...).CombinedOutput()
	return string(out), err
}

// overlay writes what go test -overlay takes to see the mutant.
func (t *trial) overlay(number int, m *mutant) (string, error) {
	path, text, err := m.apply()
	if err != nil {
		return "", err
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	changed := filepath.Join(t.dir, fmt.Sprintf("%d.go", number))
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(t.dir, fmt.Sprintf("%d.json", number))
	return overlay, errors.Join(os.WriteFile(changed, text, 0o600), os.WriteFile(overlay, list, 0o600))
}

// apply returns the file of the function and its text with the change.
func (m *mutant) apply() (path string, text []byte, err error) {
	slash := strings.LastIndex(m.Of, "/")
	folder, name, ok := strings.Cut(m.Of[slash+1:], ".")
	if !ok {
		return "", nil, errors.New("of is no function of a package")
	}
	paths, err := filepath.Glob(filepath.Join(m.Of[:slash+1]+folder, "*.go"))
	if err != nil {
		return "", nil, err
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return "", nil, err
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil || nameOf(f) != name {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return "", nil, err
			}
			from, to := files.Position(f.Pos()).Offset, files.Position(f.End()).Offset
			if n := strings.Count(string(text[from:to]), m.From); n != 1 {
				return "", nil, fmt.Errorf("it occurs %d times in the function, and not once", n)
			}
			changed := strings.Replace(string(text[from:to]), m.From, m.To, 1)
			return path, slices.Concat(text[:from], []byte(changed), text[to:]), nil
		}
	}
	return "", nil, errors.New("there is no such function")
}

// nameOf is the name of a function, with its receiver's type.
func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	if name, ok := of.(*ast.Ident); ok {
		return name.Name + "." + f.Name.Name
	}
	return ""
}
