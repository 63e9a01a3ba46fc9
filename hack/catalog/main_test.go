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

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func TestFill(t *testing.T) {
	got, err := fill("a\n<!-- catalog DefensePolicy -->\nold\n<!-- end of catalog -->\nb\n<!-- catalog Event --><!-- end of catalog -->\n" +
		"<!-- catalog Step --><!-- end of catalog -->\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"a\n<!-- catalog DefensePolicy -->\n\n| condition, ", "| **`SetAside`** |\n| True `RulesDoNotEnd` |", "\n<!-- end of catalog -->\nb\n",
		"| `ReleaseSuspended` | The release failed its verification. | owner: *fix* |\n",
		"| `ReleaseStarted` | Verification of the release started. |\n",
		"| `RolledBack` | The operator rolled the release back. Its version is quarantined. | Release another version. |\n",
		"| *fix* | Release a fixed version (override a block),",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "\nold\n") {
		t.Error("the old table is still there")
	}
	if again, err := fill(got); err != nil || again != got {
		t.Errorf("filled twice it differs, %v", err)
	}
	for _, bad := range []string{"no mark", "<!-- catalog Pod -->", "<!-- catalog Sail --><!-- end of catalog -->"} {
		if _, err := fill(bad); err == nil {
			t.Errorf("%q is filled", bad)
		}
	}
}

// TestSteps: a step that entries share has a name, and each actor is known.
func TestSteps(t *testing.T) {
	named, used := map[v1alpha1.NextStep]bool{"": true}, map[v1alpha1.NextStep]int{}
	for _, s := range steps {
		named[s.step] = true
	}
	for _, e := range v1alpha1.Catalog() {
		if used[e.Next]++; used[e.Next] > 1 && !named[e.Next] {
			t.Errorf("several entries have the next step %q: name it in steps", e.Next)
		}
		if e.Who != "" && actors[e.Who] == "" {
			t.Errorf("actors has no %q", e.Who)
		}
	}
	for _, s := range steps {
		if used[s.step] < 2 {
			t.Errorf("the next step %q is not shared: remove it from steps", s.name)
		}
	}
}
