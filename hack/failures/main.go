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

// Command failures reads reports in the format of `go test -json`, which are its arguments, and prints each test that failed or did not
// end, and how its message begins. A line of a report may be longer than gotestsum reads: Ginkgo writes all that a spec printed as one.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

const (
	// most is how many lines of a message are printed.
	most = 25
	// mostUnended is how many tests that did not end are printed of a report.
	mostUnended = 3
	// widest is how many bytes of a line are printed.
	widest = 300
)

// event is a line of a report: https://pkg.go.dev/cmd/test2json.
type event struct {
	Action, Package, Test, Output string
}

// test names a test, or a package where Test is empty.
type test struct{ Package, Test string }

// failed is how Ginkgo and Go begin a message. Lines before the first such line are left out.
var failed = regexp.MustCompile(`^\s*\[(FAILED|TIMEDOUT|PANICKED|INTERRUPTED|ABORTED)\] |^panic:|^\s*\S+\.go:\d+: `)

// color matches the codes that set the color of a terminal.
var color = regexp.MustCompile("\x1b\\[[0-9;]*m")

// noise are lines of go test that say nothing.
var noise = regexp.MustCompile(`^(\s*=== |\s*--- (PASS|SKIP)|PASS|FAIL|\[[A-Z]+\] *$)`)

// write prints the tests of a report that failed. The report ends where it cannot be read.
func write(w io.Writer, report io.Reader) error {
	outputs, running := map[test]*bytes.Buffer{}, []test{}
	decoder := json.NewDecoder(report)
	var failure error
	for {
		var e event
		if failure = decoder.Decode(&e); failure != nil {
			break
		}
		t := test{e.Package, e.Test}
		switch e.Action {
		case "run", "start":
			running = append(running, t)
			outputs[t] = &bytes.Buffer{}
		case "output":
			if outputs[t] == nil {
				outputs[t] = &bytes.Buffer{}
			}
			outputs[t].WriteString(e.Output)
		case "pass", "skip":
			delete(outputs, t)
		case "fail":
			tell(w, t, "FAIL", outputs[t])
			delete(outputs, t)
		}
	}
	unended := 0
	for _, t := range running {
		switch {
		case outputs[t] == nil:
		case unended < mostUnended:
			unended++
			tell(w, t, "NOT ENDED", outputs[t])
		}
	}
	if errors.Is(failure, io.EOF) {
		return nil
	}
	return failure
}

// tell prints a test and how its message begins.
func tell(w io.Writer, t test, how string, output *bytes.Buffer) {
	if output == nil {
		output = &bytes.Buffer{}
	}
	if t.Test == "" && output.Len() == 0 {
		return // a test of the package failed
	}
	fmt.Fprintf(w, "=== %s: %s %s\n", how, t.Package, t.Test)
	var lines []string
	for line := range strings.Lines(color.ReplaceAllString(output.String(), "")) {
		if line = strings.TrimRight(line, "\n"); strings.TrimSpace(line) != "" && !noise.MatchString(line) {
			lines = append(lines, line)
		}
	}
	for i, line := range lines {
		if failed.MatchString(line) && !strings.Contains(line, "] in [") { // Ginkgo repeats in which node it failed
			lines = lines[i:]
			break
		}
	}
	for _, line := range lines[:min(most, len(lines))] {
		fmt.Fprintln(w, "   ", line[:min(widest, len(line))])
	}
}

func main() {
	result := 0
	for _, path := range os.Args[1:] {
		file, err := os.Open(path)
		if err == nil {
			err = write(os.Stdout, file)
			_ = file.Close()
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "failures: %s: %v\n", path, err)
			result = 1
		}
	}
	os.Exit(result)
}
