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

package breaker

import (
	"errors"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestBreaker(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	b := New(clock)
	allowed := func() int {
		t.Helper()
		period, _, err := b.Allow(false)
		if err != nil {
			t.Fatalf("not allowed while %s", b.Current())
		}
		return period
	}
	done := func(results ...Outcome) {
		t.Helper()
		for _, result := range results {
			b.Done(allowed(), result, errors.New("reset"))
		}
	}
	fail := func() { t.Helper(); done(Failed, Failed, Failed, Failed, Failed) }
	denied := func(want time.Duration) {
		t.Helper()
		_, after, err := b.Allow(false)
		if !errors.Is(err, ErrOpen) || after != want || !strings.HasSuffix(err.Error(), "because: reset") {
			t.Fatalf("error %v, retry after %s, want denied for %s", err, after, want)
		}
	}
	state := func(want State) {
		t.Helper()
		if got := b.Current(); got != want {
			t.Fatalf("state %s, want %s", got, want)
		}
	}

	slow, slower := allowed(), allowed()
	done(Failed, Failed, Failed, Failed, Answered, Failed, Failed, Failed, Failed, Neutral) // not in a row; and one that says nothing
	state(Closed)
	done(Failed)
	state(Open)
	denied(MinCooldown)

	// The result of a call that began ahead of the outage does not count.
	b.Done(slow, Answered, nil)
	state(Open)

	clock.SetTime(clock.Now().Add(MinCooldown))
	trial := allowed()
	state(HalfOpen)
	denied(trialWait)
	b.Done(slower, Answered, nil)
	state(HalfOpen)
	denied(trialWait)
	b.Done(trial, Neutral, nil) // the caller went away: the next one tries
	for _, cooldown := range []time.Duration{10 * time.Second, 20 * time.Second, maxCooldown, maxCooldown} {
		done(Failed)
		denied(cooldown) // doubled, up to the maximum
		clock.SetTime(clock.Now().Add(cooldown))
	}
	done(Answered)
	state(Closed)
	fail()
	denied(MinCooldown)

	// An open breaker lets a last try through, unless another call has just Failed. While
	// another call tries the server, a last try waits for that call.
	if _, _, err := b.Allow(true); !errors.Is(err, ErrJustFailed) || errors.Is(err, ErrOpen) {
		t.Fatalf("error %v, want that another call has just Failed", err)
	}
	clock.SetTime(clock.Now().Add(justFailed))
	last, _, err := b.Allow(true)
	if err != nil {
		t.Fatalf("a last try is refused: %v", err)
	}
	if _, after, err := b.Allow(true); !errors.Is(err, ErrOpen) || after != trialWait {
		t.Fatalf("error %v, retry after %s, want to wait for the other one", err, after)
	}
	b.Done(last, Answered, nil)
	state(Closed)
	fail()

	// After a heartbeat that was Answered, the next call is let through at once.
	denied(MinCooldown)
	b.Alive()
	state(HalfOpen)
	done(Failed)
	denied(2 * MinCooldown)

	// A clock that is set back does not keep the breaker open for longer than the cool-down.
	clock.SetTime(clock.Now().Add(-time.Hour))
	allowed()
}
