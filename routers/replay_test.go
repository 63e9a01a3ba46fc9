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
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/traas-stack/altershield-operator/internal/altershield"
)

func TestReplays(t *testing.T) {
	at := func(minute int) time.Time { return testNow.Add(time.Duration(minute) * time.Minute) }
	clock := clocktesting.NewFakePassiveClock(testNow)
	r := newReplays(3, clock)
	begin := func(sign string, now, expires int, handled, want bool) {
		t.Helper()
		clock.SetTime(at(now))
		end, fresh, err := r.begin(t.Context(), sign, at(expires))
		if err != nil {
			t.Fatal(err)
		}
		if fresh {
			end(handled)
		}
		if fresh != want {
			t.Errorf("%s at minute %d: fresh %v, want %v", sign, now, fresh, want)
		}
	}
	expectFresh := func(sign string, now, expires int, want bool) {
		t.Helper()
		begin(sign, now, expires, true, want)
	}
	expectFresh("a", 0, 5, true)
	expectFresh("b", 0, 3, true)
	expectFresh("c", 0, 9, true)
	expectFresh("a", 1, 5, false)
	expectFresh("b", 3, 3, false) // until the last moment
	expectFresh("expired", 3, 2, false)
	expectFresh("c", 3, 9, false)
	expectFresh("a", 3, 5, false)
	if n := len(r.used.Keys()); n != 3 {
		t.Errorf("%d signatures, want 3", n)
	}
	// Full: b goes, which was not seen for the longest time.
	expectFresh("d", 1, 7, true)
	expectFresh("a", 1, 5, false)
	expectFresh("c", 1, 9, false)
	expectFresh("d", 1, 7, false)
	expectFresh("b", 1, 3, true) // at the price of a
	begin("a", 1, 5, false, true)
	begin("a", 1, 5, false, true) // it was not handled
	expectFresh("a", 1, 5, true)
	expectFresh("a", 1, 5, false)
	// Expired signatures make room.
	expectFresh("z", 20, 25, true)
	if n := len(r.used.Keys()); n != 1 {
		t.Errorf("%d signatures, want 1", n)
	}
	if r.turns.InUse() {
		t.Error("a request is still being handled")
	}
}

func TestReplaysAreBounded(t *testing.T) {
	r := newReplays(100, clocktesting.NewFakePassiveClock(testNow))
	for i := range 10_000 {
		end, _, err := r.begin(t.Context(), fmt.Sprint(i), testNow.Add(time.Duration(i%77)*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		end(true)
	}
	if n := len(r.used.Keys()); n != 100 {
		t.Errorf("%d signatures, want 100", n)
	}
}

func TestReplayIsRefused(t *testing.T) {
	f := newFixture(t)
	h := f.handler(t)
	// The timestamp is ahead of the operator's clock, so it is accepted for ten minutes.
	sent := testNow.Add(5 * time.Minute)
	expect(t, serve(h, signed(passed, tokenA, sent)), http.StatusOK, `{"success":true,"retry":false,"msg":"recorded"}`)
	for _, later := range []time.Duration{0, 5 * time.Minute, 10 * time.Minute, 10*time.Minute + time.Millisecond} {
		f.clock.SetTime(testNow.Add(later))
		expect(t, serve(h, signed(passed, tokenA, sent)), http.StatusUnauthorized, refusedBody)
	}
	if f.records() != 1 {
		t.Errorf("recorded %d times, want once", f.records())
	}
	// The same content with another signature is another request.
	expect(t, serve(h, signed(passed, tokenA, sent.Add(time.Second))), http.StatusOK, `{"success":true,"retry":false,"msg":"recorded"}`)
}

// TestConcurrentReplay: the server sends a request again within milliseconds when the
// connection breaks without an answer. A repetition that arrives while the first request is
// under way is refused only after the first is stored. Otherwise the repetition is stored.
func TestConcurrentReplay(t *testing.T) {
	for name, test := range map[string]struct {
		failures int
		want     map[int]int
	}{
		"the first is stored": {0, map[int]int{http.StatusOK: 1, http.StatusUnauthorized: 3}},
		"the first fails":     {1, map[int]int{http.StatusServiceUnavailable: 1, http.StatusOK: 1, http.StatusUnauthorized: 2}},
		"none is stored":      {4, map[int]int{http.StatusServiceUnavailable: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			var failures atomic.Int32
			failures.Store(int32(test.failures))
			begun, goOn := make(chan struct{}, 4), make(chan struct{})
			f := newFixture(t, func(f *fixture) {
				f.record = func(context.Context, *altershield.Callback) (Outcome, error) {
					begun <- struct{}{}
					<-goOn
					if failures.Add(-1) >= 0 {
						return "", errors.New("the API server is away")
					}
					return OutcomeRecorded, nil
				}
			})
			h := f.handler(t)
			codes := make(chan int, 4)
			for range 4 {
				go func() { codes <- serve(h, signed(passed, tokenA, testNow)).Code }()
			}
			receive(t, begun, "the first")
			close(goOn)
			got := map[int]int{}
			for range 4 {
				got[receive(t, codes, "an answer")]++
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("answers -want +got:\n%s", diff)
			}
		})
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
		// Makes the cache drop expired signatures.
		expect(t, serve(h, signed(passed, tokenA, testNow)), http.StatusOK, `{"success":true,"retry":false,"msg":"recorded"}`)
	}}
	expect(t, serve(h, slow), http.StatusUnauthorized, refusedBody)
	if f.records() != 2 {
		t.Errorf("recorded %d times, want each of the two once", f.records())
	}
}
