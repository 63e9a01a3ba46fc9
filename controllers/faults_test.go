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

package controllers_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/traas-stack/altershield-operator/test/world"
)

var reportFile = flag.String("world.report", "", "write the number of plans and violations, by kind of fault, to this file")

// plans counts the faults that sweeps tried.
var plans faultReport

// faultReport has the numbers of plans and of violations, by kind of fault. A plan is one fault at one write or call of one story.
type faultReport struct {
	mu            sync.Mutex
	stories       int
	tried, failed map[string]int
}

func (r *faultReport) add(faults []world.Fault, found []world.Found) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tried == nil {
		r.tried, r.failed = map[string]int{}, map[string]int{}
	}
	r.stories++
	for _, f := range faults {
		r.tried[kindOfFault(f)]++
	}
	for _, f := range found {
		r.failed[kindOfFault(f.Fault)]++
	}
}

func kindOfFault(f world.Fault) string {
	what := "a write"
	if f.OfCalls {
		what = "a call"
	}
	return fmt.Sprintf("%s %s", f.Kind, what)
}

// markdown returns the report as a table.
func (r *faultReport) markdown() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	b.WriteString("| fault | plans | violations |\n| --- | --- | --- |\n")
	tried, failed := 0, 0
	for _, kind := range slices.Sorted(maps.Keys(r.tried)) {
		fmt.Fprintf(&b, "| %s | %d | %d |\n", kind, r.tried[kind], r.failed[kind])
		tried, failed = tried+r.tried[kind], failed+r.failed[kind]
	}
	fmt.Fprintf(&b, "| all, in %d stories | %d | %d |\n", r.stories, tried, failed)
	return b.String()
}

// write writes the report to the file of -world.report.
func (r *faultReport) write() error {
	if *reportFile == "" {
		return nil
	}
	return os.WriteFile(*reportFile, []byte(r.markdown()), 0o600)
}

func TestFaultReport(t *testing.T) {
	var r faultReport
	lost := world.Fault{Kind: world.AnswerLost, At: 1}
	call := world.Fault{Kind: world.DiesAfter, At: 2, OfCalls: true}
	r.add([]world.Fault{lost, call}, nil)
	r.add([]world.Fault{lost}, []world.Found{{Fault: lost}})
	want := "| fault | plans | violations |\n| --- | --- | --- |\n| dies after a call | 1 | 0 |\n" +
		"| the answer is lost of a write | 2 | 1 |\n| all, in 2 stories | 3 | 1 |\n"
	if got := r.markdown(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
