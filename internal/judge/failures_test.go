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

package judge

import "testing"

func TestFailures(t *testing.T) {
	three, four := append(minutes("n", 3, 1, 5), minutes("m", 1, 0, 5)...), append(minutes("n", 4, 1, 5), minutes("m", 6, 0, 5)...)
	for _, tc := range []struct {
		name string
		of   Failures
		want bool
	}{
		{"all of three, and none of seven old pods ever", Failures{Fresh: minutes("n", 3, 1, 5), Old: minutes("o", 7, 0, 1440), Aged: 7}, true},
		{"two of three", Failures{Fresh: append(minutes("n", 2, 1, 5), minutes("m", 1, 0, 5)...), Old: minutes("o", 7, 0, 1440), Aged: 7}, false},
		{"nothing is known of the age", Failures{Fresh: three, Old: minutes("o", 7, 0, 1440)}, true},
		{"old pods failed as often", Failures{Fresh: minutes("n", 3, 1, 5), Old: minutes("o", 7, 288, 1440)}, false},
		{"one of seven old pods fails at the same time",
			Failures{Fresh: minutes("n", 3, 1, 5), Old: minutes("o", 7, 0, 1440), Same: 1}, false},
		{"one of forty old pods fails at the same time",
			Failures{Fresh: minutes("n", 3, 1, 5), Old: minutes("o", 40, 0, 1440), Aged: 39, Same: 1}, true},
		{"a fifth of old pods failed soon after their start",
			Failures{Fresh: four, Old: minutes("o", 40, 0, 1440), Aged: 40, AgedFailed: 8}, false},
		{"more new pods did", Failures{Fresh: minutes("n", 10, 1, 5), Old: minutes("o", 40, 0, 1440), Aged: 40, AgedFailed: 8}, true},
		{"no new pod failed", Failures{Fresh: minutes("n", 10, 0, 5), Old: minutes("o", 40, 0, 1440), Aged: 40}, false},
		{"no pods", Failures{}, false},
	} {
		if got := tc.of.Worse(); got != tc.want {
			t.Errorf("%s: worse %t, p %g: %s", tc.name, got, tc.of.byAge(), tc.of.Sentence("restarts"))
		}
	}
}
