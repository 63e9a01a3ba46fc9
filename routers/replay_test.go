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

package routers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/internal/altershield"
)

func TestReplayCache(t *testing.T) {
	at := func(minute int) time.Time { return testNow.Add(time.Duration(minute) * time.Minute) }
	c := newReplayCache(3)
	expectFresh := func(sign string, now, expires int, want bool) *replayMark {
		t.Helper()
		mark, fresh := c.mark(sign, at(now), at(expires))
		if fresh != want {
			t.Errorf("%s at minute %d: fresh %v, want %v", sign, now, fresh, want)
		}
		return mark
	}
	a := expectFresh("a", 0, 5, true)
	expectFresh("b", 0, 3, true)
	expectFresh("c", 0, 9, true)
	expectFresh("a", 1, 5, false)
	expectFresh("b", 3, 3, false) // to the last moment
	expectFresh("expired", 3, 2, false)
	if len(c.bySign) != 3 {
		t.Errorf("%d signatures, want 3", len(c.bySign))
	}
	// Full: b goes, which expires first.
	expectFresh("d", 1, 7, true)
	expectFresh("a", 1, 5, false)
	expectFresh("c", 1, 9, false)
	expectFresh("b", 1, 3, true) // at the price of a, now the first to expire
	a2 := expectFresh("a", 1, 5, true)
	// The first mark of a is gone; taking it back must not take this one.
	c.forget(a)
	expectFresh("a", 1, 5, false)
	c.forget(a2)
	c.forget(a2)
	expectFresh("a", 1, 5, true)
	// Whatever expired makes room.
	expectFresh("z", 20, 25, true)
	if len(c.bySign) != 1 || len(c.next) != 1 {
		t.Errorf("%d signatures, %d in the heap, want 1", len(c.bySign), len(c.next))
	}
}

func TestReplayCacheIsBounded(t *testing.T) {
	c := newReplayCache(100)
	for i := range 10_000 {
		c.mark(fmt.Sprint(i), testNow, testNow.Add(time.Duration(i%77)*time.Second))
	}
	if len(c.bySign) != 100 || len(c.next) != 100 {
		t.Errorf("%d signatures, %d in the heap, want 100", len(c.bySign), len(c.next))
	}
}

func TestReplayIsRefused(t *testing.T) {
	f := newFixture(t)
	h := f.handler(t)
	// The timestamp is ahead of our clock, so it is accepted for ten minutes.
	sent := testNow.Add(5 * time.Minute)
	expect(t, serve(h, signed(passed, tokenA, sent)), http.StatusOK, `{"success":true,"retry":false,"msg":"recorded"}`)
	for _, later := range []time.Duration{0, 5 * time.Minute, 10 * time.Minute, 10*time.Minute + time.Millisecond} {
		f.clock.SetTime(testNow.Add(later))
		expect(t, serve(h, signed(passed, tokenA, sent)), http.StatusUnauthorized, refusedBody)
	}
	if f.records() != 1 {
		t.Errorf("recorded %d times, want once", f.records())
	}
	// Sent again with a signature of its own is another matter.
	expect(t, serve(h, signed(passed, tokenA, sent.Add(time.Second))), http.StatusOK, `{"success":true,"retry":false,"msg":"recorded"}`)
}

func TestConcurrentReplayIsRefused(t *testing.T) {
	const others = 20
	refused := make(chan struct{})
	f := newFixture(t, func(f *fixture) {
		f.record = func(context.Context, *altershield.Callback) (Outcome, error) {
			<-refused // not before all others had their answer
			return OutcomeRecorded, nil
		}
	})
	h := f.handler(t)
	codes := make(chan int, others+1)
	for range others + 1 {
		go func() { codes <- serve(h, signed(passed, tokenA, testNow)).Code }()
	}
	for range others {
		if code := receive(t, codes, "the refusals"); code != http.StatusUnauthorized {
			t.Errorf("answer %d, want a refusal", code)
		}
	}
	close(refused)
	if code := receive(t, codes, "the one that is recorded"); code != http.StatusOK {
		t.Errorf("answer %d, want 200", code)
	}
	if f.records() != 1 {
		t.Errorf("recorded %d times, want once", f.records())
	}
}

func TestUnhandledMayComeAgain(t *testing.T) {
	tests := map[string]func() (Outcome, error){
		"not stored":      func() (Outcome, error) { return "", errors.New("the API server is away") },
		"order not known": func() (Outcome, error) { return OutcomeUnknown, nil },
		"panic":           func() (Outcome, error) { panic("a bug") },
	}
	for name, first := range tests {
		t.Run(name, func(t *testing.T) {
			outcome := first
			f := newFixture(t, func(f *fixture) {
				f.record = func(context.Context, *altershield.Callback) (Outcome, error) { return outcome() }
			})
			h := f.handler(t)
			for range 2 {
				if w := serve(h, signed(passed, tokenA, testNow)); w.Code == http.StatusUnauthorized {
					t.Fatalf("refused: %s", w.Body)
				}
			}
			outcome = func() (Outcome, error) { return OutcomeRecorded, nil }
			expect(t, serve(h, signed(passed, tokenA, testNow)), http.StatusOK, `{"success":true,"retry":false,"msg":"recorded"}`)
			expect(t, serve(h, signed(passed, tokenA, testNow)), http.StatusUnauthorized, refusedBody)
			if diff := cmp.Diff(3, f.records()); diff != "" {
				t.Errorf("calls of the recorder (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSlowBodiesAreNoWayAroundTheCache: two copies are checked in time, and
// the first is forgotten before the second has been read.
func TestSlowBodiesAreNoWayAroundTheCache(t *testing.T) {
	f := newFixture(t)
	h := f.handler(t)
	sent := testNow.Add(-5 * time.Minute)
	slow := signed(passed, tokenA, sent)
	slow.Body = &slowBody{Reader: slow.Body, before: func() {
		expect(t, serve(h, signed(passed, tokenA, sent)), http.StatusOK, `{"success":true,"retry":false,"msg":"recorded"}`)
		f.clock.SetTime(testNow.Add(time.Second))
		// Makes the cache drop what has expired.
		expect(t, serve(h, signed(passed, tokenA, testNow)), http.StatusOK, `{"success":true,"retry":false,"msg":"recorded"}`)
	}}
	expect(t, serve(h, slow), http.StatusUnauthorized, refusedBody)
	if f.records() != 2 {
		t.Errorf("recorded %d times, want each of the two once", f.records())
	}
}
