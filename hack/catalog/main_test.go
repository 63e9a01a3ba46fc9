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
)

func TestFill(t *testing.T) {
	got, err := fill("a\n<!-- catalog DefensePolicy -->\nold\n<!-- end of catalog -->\nb\n<!-- catalog Event --><!-- end of catalog -->\n" +
		"<!-- catalog runbook Held=False/RanOut HoldEnded Proven=False --><!-- end of catalog -->\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"a\n<!-- catalog DefensePolicy -->\n\n| condition |", "| `SetAside` | True `RulesDoNotEnd` |", "\n<!-- end of catalog -->\nb\n",
		"| `ReleaseSuspended` | The release failed its verification. | Owner of the workload: Release a fixed version",
		"| `Held` False `RanOut` |", "| `Proven` False `PodsFailing` |", "<!-- catalog runbook Held=False/RanOut HoldEnded Proven=False -->\n\n| condition or event |",
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
	for _, bad := range []string{"no mark", "<!-- catalog Pod -->", "<!-- catalog Sail --><!-- end of catalog -->", "<!-- catalog runbook Sail --><!-- end of catalog -->"} {
		if _, err := fill(bad); err == nil {
			t.Errorf("%q is filled", bad)
		}
	}
}
