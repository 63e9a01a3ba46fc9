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

package defense

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// TestReleasedOutside: an object of a declared kind that was released while its namespace was not enrolled is a baseline.
func TestReleasedOutside(t *testing.T) {
	for name, test := range map[string]struct {
		seen    string
		written time.Time
		began   time.Duration
		slipped bool
	}{
		"seen outside":                     {versionB, time.Time{}, -2 * time.Hour, false},
		"seen outside, but another":        {versionA, time.Time{}, -2 * time.Hour, true},
		"not seen":                         {"", time.Time{}, -2 * time.Hour, true},
		"not seen, written before":         {"", testNow.Add(-time.Minute), -2 * time.Hour, false},
		"not seen, written while defended": {"", testNow, -2 * time.Hour, true},
		"released since, seen before":      {versionB, testNow.Add(-time.Minute), 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := change(versionA, 1, v1alpha1.ChangeWorkloadSuccess)
			c.Spec.CreateTimeUnix = testNow.Add(test.began).Unix()
			in := WorkloadInput{
				Now: testNow, Enrolled: true, Installed: testNow.Add(-time.Hour), DefendedSince: testNow, SeenBefore: test.seen,
				Changes: []v1alpha1.ChangeWorkload{c},
				Workload: &workload.Workload{
					Version: versionB, Unstamped: true, Written: test.written, Content: &workload.Content{Hash: "h", Generation: 3},
					Labels: map[string]string{
						v1alpha1.VersionLabel: versionA, v1alpha1.DefenseStatusLabel: v1alpha1.DefenseStatusProcessed,
					},
					Annotations: map[string]string{v1alpha1.ReleaseAnnotation: "1", v1alpha1.ContentAnnotation: "h 1"},
				},
			}
			want := WorkloadPlan{Baselined: true}
			if test.slipped {
				want = WorkloadPlan{Record: &Recording{Version: versionB, Release: 2, Slipped: true}}
			}
			if diff := cmp.Diff(want, DecideWorkload(in)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
