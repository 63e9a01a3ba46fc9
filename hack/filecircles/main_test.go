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
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// largest is the most files of a circle.
const largest = 5

// larger has the sizes of larger circles, by package. No number here may grow.
var larger = map[string]int{"routers": 6}

// TestCircles: no circle of files is larger than allowed.
func TestCircles(t *testing.T) {
	if testing.Short() {
		t.Skip("loads all packages")
	}
	circles, err := find("../..", "./...")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, c := range circles {
		pkg := strings.TrimPrefix(c.pkg, "github.com/traas-stack/altershield-operator/")
		seen[pkg] = max(seen[pkg], len(c.files))
		if n := max(larger[pkg], largest); len(c.files) > n {
			t.Errorf("%s: %d files use each other in a circle, want at most %d: %s\nsee go run ./hack/filecircles -edges ./%s",
				pkg, len(c.files), n, strings.Join(c.files, " "), pkg)
		}
	}
	for pkg, n := range larger {
		if seen[pkg] < n {
			t.Errorf("%s: the largest circle has %d files now: lower the limit %d", pkg, seen[pkg], n)
		}
	}
}

func TestCirclesOf(t *testing.T) {
	edges := func(to ...string) map[string][]string {
		of := map[string][]string{}
		for _, file := range to {
			of[file] = []string{"x"}
		}
		return of
	}
	g := graph{"a": edges("b"), "b": edges("c", "d"), "c": edges("a"), "d": edges("e"), "e": edges("d"), "f": edges("a")}
	if diff := cmp.Diff([][]string{{"d", "e"}, {"a", "b", "c"}}, circlesOf(g)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
