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
// program, as mutants.yaml lists them, and runs the test that has to notice. It fails
// where a mutant survives or does not compile. At the end it prints a table of the
// invariants and the mutants that only they notice.
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
	repeat := flag.Int("repeat", 1, "how many times the test must fail with each mutant, and pass without")
	timeout := flag.Duration("timeout", 10*time.Minute, "how long one test may take; a test that takes longer kills no mutant")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *file, *which, *workers, *repeat, *timeout); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// load reads a list of mutants.
func load(file string) (all []mutant, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if err := yaml.UnmarshalStrict(data, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return all, nil
}

func run(ctx context.Context, w io.Writer, file, which string, workers, repeat int, timeout time.Duration) error {
	matches, err := regexp.Compile(which)
	if err != nil {
		return err
	}
	all, err := load(file)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(m mutant) bool {
		return !matches.MatchString(m.Of) && !matches.MatchString(m.Test) && !matches.MatchString(m.Only)
	})
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t := &trial{dir: dir, repeat: max(repeat, 1), timeout: timeout, healthy: map[string]error{}}
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
	printTable(w, all, failed)
	n := len(slices.DeleteFunc(failed, func(err error) bool { return err == nil }))
	fmt.Fprintf(w, "%d mutants, %d killed\n", len(all), len(all)-n)
	if n > 0 || len(all) == 0 {
		return fmt.Errorf("%d of %d mutants were not killed", n, len(all))
	}
	return nil
}

// printTable prints the killed mutants that only one invariant notices, by invariant.
func printTable(w io.Writer, all []mutant, failed []error) {
	var rows []string
	cell := strings.NewReplacer("|", `\|`, "\n", " ", "\t", "").Replace
	for i, m := range all {
		if m.Only != "" && failed[i] == nil {
			rows = append(rows, fmt.Sprintf("| %s | `%s`: `%s` becomes `%s` | `%s` |", m.Only, m.Of, cell(m.From), cell(m.To), cell(m.Test)))
		}
	}
	if len(rows) == 0 {
		return
	}
	slices.SortStableFunc(rows, func(a, b string) int { return strings.Compare(invariantOf(a), invariantOf(b)) })
	fmt.Fprintf(w, "\n| invariant | mutant | killed by |\n| --- | --- | --- |\n%s\n\n", strings.Join(rows, "\n"))
}

// invariantOf is the invariant of a row such that S9 sorts before S10.
func invariantOf(row string) string {
	name := strings.Fields(row)[1]
	return fmt.Sprintf("%s%5s", name[:1], name[1:])
}

// trial tries mutants.
type trial struct {
	dir string
	// repeat is how many times each test runs.
	repeat  int
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
	for range t.repeat {
		switch out, err := t.test(ctx, m, 1, "-overlay="+overlay); {
		case err == nil:
			return fmt.Errorf("%s: survived %s", m, m.Test)
		case timedOut.MatchString(out) || errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("%s: %s timed out, and did not fail\n%s", m, m.Test, out)
		case !m.killedBy(out):
			return fmt.Errorf("%s: no test failed that matches %s: %w\n%s", m, m.Test, err, out)
		}
	}
	if m.Only == "" {
		return nil
	}
	if out, err := t.test(ctx, m, t.repeat, "-overlay="+overlay, "-args", "-observer.without="+m.Only); err != nil {
		return fmt.Errorf("%s: noticed without %s, too:\n%s", m, m.Only, out)
	}
	return nil
}

var (
	// timedOut is in the output of a test that go test ended.
	timedOut = regexp.MustCompile(`(?m)^panic: test timed out after `)
	// failedTest is the name of a test that failed.
	failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+) \(`)
	// panics are where the output of a panic begins, stackedTest is a test in its stacks.
	panics      = regexp.MustCompile(`(?m)^(panic|fatal error): `)
	stackedTest = regexp.MustCompile(`\.(Test\w+)[.(]`)
)

// killedBy reports whether the output of go test has a failure of the mutant's test, or a panic inside it.
func (m *mutant) killedBy(out string) bool {
	for _, match := range failedTest.FindAllStringSubmatch(out, -1) {
		if m.names(strings.Split(match[1], "/"), len(m.pattern())) {
			return true
		}
	}
	begin := panics.FindStringIndex(out)
	if begin == nil {
		return false
	}
	for _, match := range stackedTest.FindAllStringSubmatch(out[begin[0]:], -1) {
		if m.names(match[1:], 1) {
			return true
		}
	}
	return false
}

// pattern is what go test -run matches, by level of tests.
func (m *mutant) pattern() []string {
	_, name, _ := strings.Cut(m.Test, " ")
	return strings.Split(name, "/")
}

// names reports whether the pattern matches a test, by so many of its levels.
func (m *mutant) names(test []string, levels int) bool {
	pattern := m.pattern()
	if len(test) < levels {
		return false
	}
	for i := range levels {
		if ok, err := regexp.MatchString(pattern[i], test[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

// isHealthy runs the test without any mutant.
func (t *trial) isHealthy(ctx context.Context, m *mutant) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err, known := t.healthy[m.Test]
	if !known {
		var out string
		if out, err = t.test(ctx, m, t.repeat); err == nil && strings.Contains(out, "no tests to run") {
			err = errors.New("no tests to run")
		}
		t.healthy[m.Test] = err
	}
	return err
}

// building is how long it may take to build a test.
const building = 10 * time.Minute

// test runs the test of a mutant count times. Arguments of the test itself come last.
func (t *trial) test(ctx context.Context, m *mutant, count int, args ...string) (string, error) {
	folder, name, _ := strings.Cut(m.Test, " ")
	limit := time.Duration(count) * t.timeout
	ctx, cancel := context.WithTimeout(ctx, limit+building)
	defer cancel()
	var own []string
	if i := slices.Index(args, "-args"); i >= 0 {
		args, own = args[:i], args[i:]
	}
	all := slices.Concat([]string{"test", fmt.Sprintf("-count=%d", count), "-timeout=" + limit.String(), "-vet=off", "-run=" + name},
		args, []string{"./" + folder}, own)
	cmd := exec.CommandContext(ctx, "go", all...)
	cmd.WaitDelay = time.Second                       // what go test started may live on
	cmd.Env = append(os.Environ(), "GOTRACEBACK=all") // a panic shows its test
	out, err := cmd.CombinedOutput()
	return string(out), errors.Join(err, ctx.Err())
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
