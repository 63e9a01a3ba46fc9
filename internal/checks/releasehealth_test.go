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

package checks

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/traas-stack/altershield-operator/internal/cluster"
)

// TestReleaseHealthsForget: old results of failing releases are dropped.
func TestReleaseHealthsForget(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	r := newReleaseHealths(&cluster.Cluster{Clock: clock})
	r.forget()
	r.known[healthKey{release: "a"}] = &releaseHealth{at: clock.Now()}
	r.asked[askedKey{batch: "a"}] = asked{since: clock.Now()}
	clock.Step(askedFor - time.Second)
	r.asked[askedKey{batch: "b"}] = asked{since: clock.Now()}
	if r.forget(); len(r.known) != 1 || len(r.asked) != 2 {
		t.Errorf("too early %v and %v are left", r.known, r.asked)
	}
	clock.Step(2 * time.Second)
	if r.forget(); len(r.known) != 0 || len(r.asked) != 1 || r.asked[askedKey{batch: "b"}].since.IsZero() {
		t.Errorf("%v and %v are left", r.known, r.asked)
	}
}
