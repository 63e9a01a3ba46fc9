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
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestRefusedBy: refusals before the creation of the newest pod are over, and pods that are missing
// for a moment are being replaced.
func TestRefusedBy(t *testing.T) {
	ago := func(d time.Duration) time.Time { return testNow.Add(-d) }
	lacking := Lacking{Count: 2, Since: ago(5 * time.Minute)}
	refusal := func(first, last time.Duration, why string) Refusal {
		return Refusal{First: ago(first), Last: ago(last), Message: why}
	}
	for name, test := range map[string]struct {
		refusals []Refusal
		want     *NotMade
	}{
		"no refusal":            {nil, nil},
		"before the newest pod": {[]Refusal{refusal(time.Hour, 6*time.Minute, "quota")}, nil},
		"in the second of the newest pod": {
			[]Refusal{refusal(5*time.Minute, 5*time.Minute, "quota")}, &NotMade{Count: 2, Since: ago(5 * time.Minute), Message: "quota"},
		},
		"after the newest pod": {
			[]Refusal{refusal(4*time.Minute, time.Minute, "quota")}, &NotMade{Count: 2, Since: ago(4 * time.Minute), Message: "quota"},
		},
		"before the newest pod, and after it": {
			[]Refusal{refusal(time.Hour, time.Minute, "quota")}, &NotMade{Count: 2, Since: ago(5 * time.Minute), Message: "quota"},
		},
		"the message of the newest, the time of the oldest": {
			[]Refusal{
				refusal(3*time.Minute, 2*time.Minute, "quota"), refusal(2*time.Minute, time.Minute, "a policy"),
				refusal(time.Hour, 6*time.Minute, "old"),
			},
			&NotMade{Count: 2, Since: ago(3 * time.Minute), Message: "a policy"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, lacking.RefusedBy(test.refusals, testNow)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestRefusedLongAgo: an earlier refusal may have been resolved, and pods may be missing for
// another reason now.
func TestRefusedLongAgo(t *testing.T) {
	ago := func(d time.Duration) time.Time { return testNow.Add(-d) }
	lacking := Lacking{Count: 1, Since: ago(2 * time.Hour), Seen: ago(time.Minute)}
	if got := lacking.RefusedBy([]Refusal{{First: ago(time.Hour), Last: ago(longestBackOff + time.Second), Message: "quota"}},
		testNow); got != nil {
		t.Errorf("not repeated within longestBackOff: %+v", got)
	}
	got := lacking.RefusedBy([]Refusal{{First: ago(time.Hour), Last: ago(longestBackOff), Message: "quota"}}, testNow)
	if got == nil || !got.Since.Equal(lacking.Seen) {
		t.Errorf("missing for a minute: %+v", got)
	}
}

// TestOpMarshal checks that a test of a missing member has a value: API servers of Kubernetes 1.33 panic without it.
func TestOpMarshal(t *testing.T) {
	ops := []Op{
		{Op: "test", Path: "/spec/paused"}, {Op: "test", Path: "/a", Value: ""}, {Op: "add", Path: "/spec/paused", Value: true},
		{Op: "remove", Path: "/b"},
	}
	want := `[{"op":"test","path":"/spec/paused","value":null},{"op":"test","path":"/a","value":""},` +
		`{"op":"add","path":"/spec/paused","value":true},{"op":"remove","path":"/b"}]`
	if got, err := json.Marshal(ops); err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}
