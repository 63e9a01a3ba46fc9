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
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	goTest = `{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"pass","Package":"p","Test":"TestA/quick","Elapsed":0.5}
{"Action":"fail","Package":"p","Test":"TestA","Elapsed":3}
{"Action":"output","Package":"q","Output":"ok  \tq\t2.0s\n"}
{"Action":"pass","Package":"q","Test":"TestB","Elapsed":2}
{"Action":"pass","Package":"q","Elapsed":2}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t3.0s\n"}
{"Action":"fail","Package":"p","Elapsed":3}
{"ImportPath":"r","Action":"build-output","Output":"r.go:1: undefined: x\n"}
`
	ginkgo = `[{"SuiteDescription":"e2e","SpecReports":[
{"ContainerHierarchyTexts":["a release"],"LeafNodeType":"It","LeafNodeText":"succeeds","State":"passed","RunTime":7000000000},
{"LeafNodeType":"SynchronizedBeforeSuite","State":"passed","RunTime":9000000000}]}]`
)

func TestSlowest(t *testing.T) {
	var all []timed
	for _, report := range []string{goTest, ginkgo} {
		tests, err := read([]byte(report))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, tests...)
	}
	want := []timed{{"e2e: a release succeeds", 7 * time.Second}, {"q TestB", 2 * time.Second}}
	if diff := cmp.Diff(want, slowest(all, 2), cmp.AllowUnexported(timed{})); diff != "" {
		t.Errorf("slowest (-want +got):\n%s", diff)
	}
	if got := slowest(all, 10); len(got) != 3 {
		t.Errorf("%v, want three: a test with parts is not told beside them", got)
	}
	if _, err := read([]byte("[{")); err == nil {
		t.Error("a report that is cut off is read")
	}
}

func TestShowPackages(t *testing.T) {
	var shown strings.Builder
	if err := showPackages(strings.NewReader(goTest), &shown); err != nil {
		t.Fatal(err)
	}
	want := "ok  \tq\t2.0s\n=== RUN   TestA\nFAIL\nFAIL\tp\t3.0s\nr.go:1: undefined: x\n"
	if diff := cmp.Diff(want, shown.String()); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
}

// TestMake runs `make test` with commands in place of its tests: it fails if one of them fails, also one that is over long before
// the end-to-end suite.
func TestMake(t *testing.T) {
	if testing.Short() {
		t.Skip("runs make")
	}
	for name, fails := range map[string]string{"nothing": "", "packages": "TEST_PACKAGES", "tools": "TEST_TOOLS", "the end-to-end suite": "E2E"} {
		t.Run(name+" fails", func(t *testing.T) {
			t.Parallel()
			args := []string{"-C", "../..", "-o", "build", "-o", "controlplane", "test", "REPORTS=" + t.TempDir()}
			for _, tests := range []string{"TEST_PACKAGES", "TEST_TOOLS", "E2E"} {
				run := "echo '{}'"
				if tests == "E2E" {
					run = "sleep 2"
				}
				if tests == fails {
					run += "; false"
				}
				args = append(args, tests+"="+run)
			}
			cmd := exec.CommandContext(t.Context(), "make", args...)
			cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "MAKE") || strings.HasPrefix(e, "MFLAGS=") })
			out, err := cmd.CombinedOutput()
			if (err != nil) != (fails != "") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
