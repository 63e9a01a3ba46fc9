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

package rollback

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// atRelease returns a workload of a namespace, at a release.
func atRelease(namespace, uid string, release int) *workload.Workload {
	return &workload.Workload{
		Namespace: namespace, UID: types.UID(uid), Annotations: map[string]string{v1alpha1.ReleaseAnnotation: fmt.Sprint(release)},
	}
}

func TestRollbackLimit(t *testing.T) {
	s := settings.Default()
	b := ParseLimit("")
	at := func(minute int) time.Time { return testNow.Add(time.Duration(minute) * time.Minute) }
	for i, step := range []struct {
		name        string
		minute      int
		w           *workload.Workload
		changed, ok bool
	}{
		{"the first of a", 0, atRelease("a", "a1", 1), true, true},
		{"the same, decided again", 1, atRelease("a", "a1", 1), false, true},
		{"its next release counts as the same workload", 1, atRelease("a", "a1", 2), true, true},
		{"the second of a", 2, atRelease("a", "a2", 1), true, true},
		{"the third of a", 3, atRelease("a", "a3", 1), true, true},
		{"a has half of five, rounded up", 3, atRelease("a", "a4", 1), false, false},
		{"a workload of it that was counted is allowed", 3, atRelease("a", "a3", 2), true, true},
		{"the first of b", 4, atRelease("b", "b1", 1), true, true},
		{"the second of b", 4, atRelease("b", "b2", 1), true, true},
		{"there is no room for another namespace", 4, atRelease("c", "c1", 1), false, false},
		{"still no room when the first rollback of a1 is over", 10, atRelease("c", "c1", 1), false, false},
		{"there is room when its last one is over", 11, atRelease("c", "c1", 1), true, true},
		{"and when the rollback of a2 is over", 12, atRelease("a", "a4", 1), true, true},
	} {
		after, changed, ok := b.Take(s, at(step.minute), step.w)
		if changed != step.changed || ok != step.ok {
			t.Fatalf("step %d, %s: changed %t, room %t", i, step.name, changed, ok)
		}
		b = ParseLimit(after.String())
	}
	if after, _, _ := b.Take(s, at(60), atRelease("d", "d1", 1)); len(after.taken) != 1 {
		t.Errorf("%d entries are kept an hour later", len(after.taken))
	}
	s.Limit = false
	if _, _, ok := b.Take(s, at(12), atRelease("a", "a5", 1)); !ok {
		t.Error("the rollback limit holds although it is off")
	}
}

// TestRollbackLimitOfSmallLimits: a namespace gets at least one rollback, even of a limit of one.
func TestRollbackLimitOfSmallLimits(t *testing.T) {
	for limit, want := range map[int]int{1: 1, 2: 1, 3: 2, 4: 2, 10: 5} {
		s := settings.Default()
		s.LimitCount = limit
		b, taken := Limit{}, 0
		for i := range 20 {
			after, _, ok := b.Take(s, testNow, atRelease("a", fmt.Sprint(i), 1))
			if b = after; ok {
				taken++
			}
		}
		if taken != want {
			t.Errorf("of %d, one namespace takes %d, want %d", limit, taken, want)
		}
	}
}

// TestRollbackLimitIsBounded: the largest limit holds with fewer entries, and entries of older
// builds, which have no namespace, count.
func TestRollbackLimitIsBounded(t *testing.T) {
	s := settings.Default()
	s.LimitCount = settings.MaxLimit
	b, taken := ParseLimit(fmt.Sprintf(`[{"time":%d,"uid":"old","release":1}]`, testNow.Unix())), 1
	for i := range settings.MaxLimit {
		after, _, ok := b.Take(s, testNow, atRelease(fmt.Sprint(i%10), fmt.Sprint("u", i), 1))
		if b = after; ok {
			taken++
		}
	}
	if taken != maxLimitEntries || len(b.taken) != maxLimitEntries {
		t.Errorf("%d rollbacks, %d entries", taken, len(b.taken))
	}
	for _, bad := range []string{"no JSON", "{}", "[1]"} {
		if got := ParseLimit(bad); len(got.taken) != 0 {
			t.Errorf("%s is read as %v", bad, got)
		}
	}
}
