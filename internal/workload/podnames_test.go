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

package workload

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPodNames: the patterns match the names that controllers give the pods of a workload, and no names of its neighbours.
func TestPodNames(t *testing.T) {
	sets, err := StatefulSet{}.PodNames(t.Context(), nil, &Workload{Name: "web.eu"})
	if err != nil {
		t.Fatal(err)
	}
	daemons, err := DaemonSet{}.PodNames(t.Context(), nil, &Workload{Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("w", 60)
	for name, test := range map[string]struct {
		patterns []string
		pod      string
		want     bool
	}{
		"of a StatefulSet":        {sets, "web.eu-12", true},
		"a dot is a dot":          {sets, "webxeu-12", false},
		"of another StatefulSet":  {sets, "web.eu-b-1", false},
		"a job of that name":      {sets, "web.eu-b7k2x", false},
		"of a DaemonSet":          {daemons, "web-b7k2x", true},
		"of another DaemonSet":    {daemons, "web-b-b7k2x", false},
		"a word":                  {daemons, "web-debug", false},
		"longer":                  {daemons, "web-b7k2xx", false},
		"of a ReplicaSet":         {[]string{generatedNames("web-7d8f9")}, "web-7d8f9-b7k2x", true},
		"of another ReplicaSet":   {[]string{generatedNames("web-7d8f9")}, "web-7d8f5-b7k2x", false},
		"of a long name":          {[]string{generatedNames(long)}, long[:58] + "b7k2x", true},
		"of another long name":    {[]string{generatedNames(long)}, long[:57] + "xb7k2x", false},
		"the name and its suffix": {[]string{generatedNames("web")}, "xweb-b7k2x", false},
	} {
		t.Run(name, func(t *testing.T) {
			got := slices.ContainsFunc(test.patterns, func(p string) bool { return regexp.MustCompile("^(?:" + p + ")$").MatchString(test.pod) })
			if got != test.want {
				t.Errorf("%q matches %s: %t", test.patterns, test.pod, got)
			}
		})
	}
}
