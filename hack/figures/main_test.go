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
)

const results = `goos: linux
BenchmarkRelease/stand-alone/batches_of_10-2   1  5000000000 ns/op  1.30 x-undefended  2.04 writes/pod  4.0 cpu-s/1000pods
    release_test.go:238:   1.00 create changeworkloads
BenchmarkRelease/stand-alone/batches_of_10-2   1  5000000000 ns/op  1.60 x-undefended  2.04 writes/pod  6.5 cpu-s/1000pods
BenchmarkRelease/stand-alone/batches_of_10-2   1  5000000000 ns/op  1.35 x-undefended  2.04 writes/pod  6.4 cpu-s/1000pods
BenchmarkFleet/pods=1000/enrolled-2   1  5000000000 ns/op  60 MB-rss
BenchmarkFleet/pods=10000/enrolled-2  1  5000000000 ns/op  600 MB-rss
BenchmarkMutating/handler-2  1000  250000 ns/op
PASS
`

// TestRun reads results as the go command prints them.
func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "figures.json")
	var out strings.Builder
	if err := run(strings.NewReader(results), &out, file); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"not defended | 1.4 x-undefended | 1.35 | 1.3 to 1.6 | 3 |  |\n", // the median reaches its goal
		"batches of 10 | 5 cpu-s/1000pods | 6.4 | 4 to 6.5 | 3 | missed |\n",
		"| memory at rest, 1,000 pods | 80 MB-rss | 60 |",
		"| 10,000 pods | 150 MB-rss | 600 | 600 to 600 | 1 | missed |",
		"| 50,000 pods | 450 MB-rss | not measured |",
		"in process | 5 ms/op | 0.25 |",
		"| Fleet/pods=N/enrolled | MB-rss | 1000: 60, 10000: 600 | 1.00 |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := `"reached": false`; !strings.Contains(string(text), want) || !strings.Contains(string(text), `"1000": 60`) {
		t.Errorf("JSON:\n%s", text)
	}
}
