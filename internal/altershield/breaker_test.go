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
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestBreaker(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	b := newBreaker(clock)
	allowed := func() int {
		t.Helper()
		period, _, err := b.allow(false)
		if err != nil {
			t.Fatalf("not allowed while %s", b.current())
		}
		return period
	}
	done := func(results ...outcome) {
		t.Helper()
		for _, result := range results {
			b.done(allowed(), result, errors.New("reset"))
		}
	}
	fail := func() { t.Helper(); done(failed, failed, failed, failed, failed) }
	denied := func(want time.Duration) {
		t.Helper()
		_, after, err := b.allow(false)
		if !errors.Is(err, ErrBreakerOpen) || after != want || !strings.HasSuffix(err.Error(), "because: reset") {
			t.Fatalf("error %v, retry after %s, want denied for %s", err, after, want)
		}
	}
	state := func(want breakerState) {
		t.Helper()
		if got := b.current(); got != want {
			t.Fatalf("state %s, want %s", got, want)
		}
	}

	slow, slower := allowed(), allowed()
	done(failed, failed, failed, failed, answered, failed, failed, failed, failed, neutral) // not in a row; and one that says nothing
	state(breakerClosed)
	done(failed)
	state(breakerOpen)
	denied(minCooldown)

	// The result of a call that began ahead of the outage does not count.
	b.done(slow, answered, nil)
	state(breakerOpen)

	clock.SetTime(clock.Now().Add(minCooldown))
	trial := allowed()
	state(breakerHalfOpen)
	denied(trialWait)
	b.done(slower, answered, nil)
	state(breakerHalfOpen)
	denied(trialWait)
	b.done(trial, neutral, nil) // the caller went away: the next one tries
	for _, cooldown := range []time.Duration{10 * time.Second, 20 * time.Second, maxCooldown, maxCooldown} {
		done(failed)
		denied(cooldown) // doubled, up to the maximum
		clock.SetTime(clock.Now().Add(cooldown))
	}
	done(answered)
	state(breakerClosed)
	fail()
	denied(minCooldown)

	// An open breaker lets a last try through, unless another call has just failed. While
	// another call tries the server, a last try waits for that call.
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
	b.done(last, answered, nil)
	state(breakerClosed)
	fail()

	// After a heartbeat that was answered, the next call is let through at once.
	denied(minCooldown)
	b.alive()
	state(breakerHalfOpen)
	done(failed)
	denied(2 * minCooldown)

	// A clock that is set back does not keep the breaker open for longer than the cool-down.
	clock.SetTime(clock.Now().Add(-time.Hour))
	allowed()
}
