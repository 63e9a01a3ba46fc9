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
	"errors"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestBreaker(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	b := newBreaker(clock, BreakerOptions{Failures: 2, Cooldown: 10 * time.Second, MaxCooldown: 15 * time.Second})
	allowed := func() int {
		t.Helper()
		period, _, err := b.allow(false)
		if err != nil {
			t.Fatalf("not allowed while %s", b.current())
		}
		return period
	}
	denied := func(want time.Duration) {
		t.Helper()
		if _, after, err := b.allow(false); !errors.Is(err, ErrBreakerOpen) || after != want {
			t.Fatalf("error %v, retry after %s, want denied for %s", err, after, want)
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

	// A last try is made while it is open, unless another call has just failed: that
	// counts as a try. While another one tries, it waits for that one.
	if _, _, err := b.allow(true); !errors.Is(err, ErrJustFailed) || errors.Is(err, ErrBreakerOpen) {
		t.Fatalf("error %v, want that another call has just failed", err)
	}
	clock.SetTime(clock.Now().Add(justFailed))
	last, _, err := b.allow(true)
	if err != nil {
		t.Fatalf("a last try is refused: %v", err)
	}
	if _, after, err := b.allow(true); !errors.Is(err, ErrBreakerOpen) || after != trialWait {
		t.Fatalf("error %v, retry after %s, want to wait for the other one", err, after)
	}
	b.done(last, answered)
	state(BreakerClosed)
	b.done(allowed(), failed)
	b.done(allowed(), failed)

	// A heartbeat that is answered has it tried at once.
	denied(10 * time.Second)
	b.alive()
	state(BreakerHalfOpen)
	b.done(allowed(), failed)
	denied(15 * time.Second)

	// A clock set back does not keep it open for longer than the cool-down.
	clock.SetTime(clock.Now().Add(-time.Hour))
	allowed()
}
