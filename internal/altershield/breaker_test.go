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

package altershield

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestBreaker(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	b := newBreaker(clock, BreakerOptions{Failures: 2, Cooldown: 10 * time.Second, MaxCooldown: 15 * time.Second})
	allowed := func() int {
		t.Helper()
		period, _, ok := b.allow()
		if !ok {
			t.Fatalf("not allowed while %s", b.current())
		}
		return period
	}
	denied := func(want time.Duration) {
		t.Helper()
		if _, after, ok := b.allow(); ok || after != want {
			t.Fatalf("allowed %v, retry after %s, want denied for %s", ok, after, want)
		}
	}
	state := func(want BreakerState) {
		t.Helper()
		if got := b.current(); got != want {
			t.Fatalf("state %s, want %s", got, want)
		}
	}

	slow := allowed()
	b.done(allowed(), failed)
	b.done(allowed(), answered) // not in a row
	b.done(allowed(), failed)
	b.done(allowed(), neutral) // says nothing
	state(BreakerClosed)
	b.done(allowed(), failed)
	state(BreakerOpen)
	denied(10 * time.Second)

	// A call from before the outage says nothing about now.
	b.done(slow, answered)
	state(BreakerOpen)

	clock.SetTime(clock.Now().Add(10 * time.Second))
	trial := allowed()
	state(BreakerHalfOpen)
	denied(trialWait)
	b.done(trial, neutral) // the caller went away: the next one tries
	trial = allowed()
	b.done(trial, failed)
	denied(15 * time.Second) // doubled, up to the maximum

	clock.SetTime(clock.Now().Add(15 * time.Second))
	b.done(allowed(), answered)
	state(BreakerClosed)
	b.done(allowed(), failed)
	b.done(allowed(), failed)
	denied(10 * time.Second)

	// A clock set back does not keep it open for longer than the cool-down.
	clock.SetTime(clock.Now().Add(-time.Hour))
	allowed()
}
