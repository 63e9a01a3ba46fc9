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

// Command slowest tells which tests took longest, whatever ran them: its arguments
// are reports of Ginkgo suites (--json-report) and outputs of go test -json.
//
// With -show it also copies the output of go test -json from its input to a file,
// and shows it as go test would: of a package that passes its last line, of one that
// fails everything.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

func main() {
	n := flag.Int("n", 10, "how many tests to tell of")
	show := flag.String("show", "", "file to copy standard input to, which is shown")
	flag.Parse()
	if err := run(*n, *show, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "slowest:", err)
		os.Exit(1)
	}
}

func run(n int, show string, reports []string) error {
	if show != "" {
		file, err := os.Create(show)
		if err != nil {
			return err
		}
		return errors.Join(showPackages(io.TeeReader(os.Stdin, file), os.Stdout), file.Close())
	}
	var all []timed
	for _, path := range reports {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		tests, err := read(data)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, tests...)
	}
	for _, t := range slowest(all, n) {
		fmt.Printf("%8.1fs  %s\n", t.took.Seconds(), t.name)
	}
	return nil
}

// timed is a test and how long it took.
type timed struct {
	name string
	took time.Duration
}

// slowest are the n tests that took longest, longest first.
func slowest(tests []timed, n int) []timed {
	sorted := slices.Clone(tests)
	slices.SortStableFunc(sorted, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	return sorted[:min(n, len(sorted))]
}

// read reads a report of either kind: that of Ginkgo is a list, that of go test a
// sequence of objects.
func read(data []byte) ([]timed, error) {
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		return readSuites(data)
	}
	return readTests(data)
}

func readSuites(data []byte) (tests []timed, err error) {
	var suites []types.Report
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, err
	}
	for i := range suites {
		for _, spec := range suites[i].SpecReports {
			if spec.LeafNodeType.Is(types.NodeTypeIt) {
				tests = append(tests, timed{suites[i].SuiteDescription + ": " + spec.FullText(), spec.RunTime})
			}
		}
	}
	return tests, nil
}

// event is a line of go test -json. Its Package is ImportPath where it is of a build.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// readTests leaves out what has parts of its own: those are told.
func readTests(data []byte) (tests []timed, err error) {
	err = eachEvent(bytes.NewReader(data), func(e event) {
		if e.Test == "" || e.Action != "pass" && e.Action != "fail" {
			return
		}
		// The parts of a test end before it does.
		parts := e.Package + " " + e.Test + "/"
		if !slices.ContainsFunc(tests, func(t timed) bool { return strings.HasPrefix(t.name, parts) }) {
			tests = append(tests, timed{e.Package + " " + e.Test, time.Duration(e.Elapsed * float64(time.Second))})
		}
	})
	return tests, err
}

func eachEvent(from io.Reader, do func(event)) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if len(line) > 0 && json.Unmarshal(line, &e) == nil {
			do(e)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// showPackages shows each package when it has ended. Packages run side by side; what
// they say is not mixed.
func showPackages(from io.Reader, to io.Writer) error {
	said := map[string][]string{}
	return eachEvent(from, func(e event) {
		name := cmp.Or(e.Package, e.ImportPath)
		if e.Output != "" {
			said[name] = append(said[name], e.Output)
			if e.ImportPath != "" { // a build that fails
				fmt.Fprint(to, e.Output)
			}
		}
		if e.Test != "" || e.Package == "" {
			return
		}
		lines := said[name]
		switch e.Action {
		case "fail":
			fmt.Fprint(to, strings.Join(lines, ""))
		case "pass", "skip":
			if len(lines) > 0 {
				fmt.Fprint(to, lines[len(lines)-1])
			}
		default:
			return
		}
		delete(said, name)
	})
}
