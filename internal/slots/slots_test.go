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

package slots

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
)

// TestSlots: the number of slots is bounded, in all namespaces and in each.
func TestSlots(t *testing.T) {
	const all, own = 8, 2
	s := New(all, own)
	var held []func()
	for i := range all / own {
		for range own {
			release, err := s.Acquire(t.Context(), Work{Namespace: fmt.Sprint("ns", i)})
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, release)
		}
	}
	waits := func(ns string) bool {
		t.Helper()
		if _, ok := s.Try(ns); ok {
			return false
		}
		ctx, cancel := context.WithCancel(t.Context())
		refused := make(chan error)
		go func() {
			_, err := s.Acquire(ctx, Work{Namespace: ns})
			refused <- err
		}()
		waiting(t, s, 1)
		cancel()
		return <-refused != nil
	}
	if !waits("ns0") || !waits("other") {
		t.Error("more than the limit")
	}
	held[0]()
	if !waits("ns1") {
		t.Error("one more of ns1")
	}
	release, ok := s.Try("other")
	if !ok {
		t.Fatal("a free slot is not given")
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, release := range append(held[1:], release) {
		release()
		if _, err := s.Acquire(gone, Work{Namespace: "gone"}); err == nil {
			t.Error("a waiter that gave up has a slot")
		}
	}
	if s.InUse() || len(s.waiting) != 0 || s.all.busy != 0 {
		t.Errorf("it remembers %+v, %v", &s.all, s.waiting)
	}
}

// waiting blocks until n waiters wait for a slot.
func waiting(t *testing.T, s *Slots, n int) {
	t.Helper()
	for {
		s.mu.Lock()
		found := len(s.waiting)
		s.mu.Unlock()
		if found == n {
			return
		}
		if t.Context().Err() != nil {
			t.Fatalf("%d wait, not %d", found, n)
		}
		runtime.Gosched()
	}
}

// queue runs work by a clock of its own.
type queue struct {
	*Slots
	now    time.Time
	grants chan granted
	// at is the current work.
	at []granted
}

// asked is work with its duration.
type asked struct {
	Work
	took time.Duration
}

type granted struct {
	asked
	release func()
	ends    time.Time
}

func newQueue(limit, own int) *queue {
	q := &queue{Slots: New(limit, own), now: time.Unix(0, 0), grants: make(chan granted, 5000)}
	q.Slots.now = func() time.Time { return q.now }
	return q
}

// ask asks for n slots, one after the other.
func (q *queue) ask(t *testing.T, n int, a asked) {
	t.Helper()
	users := func() int {
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.waiting) + q.all.busy
	}
	for range n {
		before := users()
		go func() {
			if release, err := q.Acquire(t.Context(), a.Work); err == nil {
				q.grants <- granted{a, release, q.now.Add(a.took)}
			}
		}()
		for users() == before {
			runtime.Gosched()
		}
	}
}

// run ends work in the order of its end, with a number of busy slots, until done reports true.
// It returns the number of ended works.
func (q *queue) run(busy int, done func(Work) bool) (n int) {
	for len(q.at) < busy {
		q.at = append(q.at, <-q.grants)
	}
	for {
		slices.SortFunc(q.at, func(a, b granted) int { return a.ends.Compare(b.ends) })
		ended := q.at[0]
		q.now = ended.ends
		ended.release()
		q.at[0] = <-q.grants
		if n++; done(ended.Work) {
			return n
		}
	}
}

// TestSlotsAreFair: a release of very many pods that do not answer takes no more than its
// share of the time, and its urgent work comes first.
func TestSlotsAreFair(t *testing.T) {
	const timeout, quick = 10 * time.Second, 10 * time.Millisecond
	of := func(release string) Work { return Work{Namespace: "ns", Release: release} }
	setup := func() *queue {
		q := newQueue(8, 2)
		q.ask(t, 600, asked{of("slow"), timeout})
		q.ask(t, 1, asked{Work{Namespace: "ns", Release: "slow", Urgent: true}, timeout})
		q.ask(t, 300, asked{of("slow, too"), timeout})
		q.ask(t, 200, asked{of("answers"), quick})
		return q
	}
	q, answered := setup(), 0
	q.run(2, func(w Work) bool {
		if w.Release == "answers" {
			answered++
		}
		return answered == 200
	})
	if took := q.now.Sub(time.Unix(0, 0)); took > 45*time.Second {
		t.Errorf("the release that answers took %s", took)
	}
	if n := setup().run(2, func(w Work) bool { return w.Urgent }); n > 220 {
		t.Errorf("the urgent one came after %d others", n)
	}
}

// TestNamespacesAreFair: namespaces whose work takes very long take no more than their share
// of the time. With semaphores, which serve in the order of arrival, the quick namespace
// would wait for all others before each pair of its calls.
func TestNamespacesAreFair(t *testing.T) {
	const timeout, quick = time.Minute, 10 * time.Millisecond
	q := newQueue(8, 2)
	for i := range 20 {
		q.ask(t, 50, asked{Work{Namespace: fmt.Sprint("slow", i)}, timeout})
	}
	q.ask(t, 200, asked{Work{Namespace: "answers"}, quick})
	answered := 0
	q.run(8, func(w Work) bool {
		if w.Namespace == "answers" {
			answered++
		}
		return answered == 200
	})
	if took := q.now.Sub(time.Unix(0, 0)); took > 4*time.Minute {
		t.Errorf("the namespace that answers took %s", took)
	}
}

// TestNewcomers: a namespace that comes late has no credit for the time before.
func TestNewcomers(t *testing.T) {
	q := newQueue(1, 1)
	q.ask(t, 12, asked{Work{Namespace: "first"}, time.Minute})
	n, late := 0, 0
	q.run(1, func(Work) bool { n++; return n == 5 })
	q.ask(t, 12, asked{Work{Namespace: "late"}, time.Minute})
	q.run(1, func(w Work) bool {
		if w.Namespace == "late" {
			late++
		}
		n++
		return n == 11
	})
	if late < 2 || late > 4 {
		t.Errorf("it had %d of 6 slots", late)
	}
}
