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

// Package slots bounds the work on checks of policies: of all namespaces together, and of each.
//
// A semaphore serves in the order of arrival: a namespace or a release whose work takes long
// would make the others wait. So the next slot goes to the namespace, and there to the release,
// whose work took the least time so far.
package slots

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// Slots bound the work. Safe for concurrent use.
type Slots struct {
	// limit is the number of slots, own the number of slots of a namespace.
	limit, own int
	now        func() time.Time

	mu      sync.Mutex
	all     share
	waiting []*waiter
}

// Work is the work of a slot.
type Work struct {
	Namespace string
	// Release is empty if the namespace does not share its slots among releases.
	Release string
	// Urgent work comes first within its release.
	Urgent bool
}

// share is the share of all namespaces, one namespace or one release.
type share struct {
	// users is the number of waiters with or without a slot, and busy of those with one.
	users, busy int
	// used is the total time of work until since.
	used  time.Duration
	since time.Time
	parts map[string]*share
}

// waiter waits for a slot, or has one.
type waiter struct {
	work Work
	// shares are the shares that count the work: of all, of the namespace, of the release.
	shares [3]*share
	// granted is closed when the waiter has a slot.
	granted chan struct{}
}

// New returns a number of slots, and a number for each namespace.
func New(limit, own int) *Slots { return &Slots{limit: limit, own: own, now: time.Now} }

// InUse reports whether any slot is taken or waited for.
func (s *Slots) InUse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all.parts) > 0
}

// Try takes a slot for a namespace if one is free now.
func (s *Slots) Try(namespace string) (release func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.join(Work{Namespace: namespace})
	select {
	case <-w.granted:
		return func() { s.leave(w) }, true
	default:
		s.remove(w)
		return nil, false
	}
}

// Acquire waits for a slot. It fails only when the context ends.
func (s *Slots) Acquire(ctx context.Context, work Work) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	w := s.join(work)
	s.mu.Unlock()
	select {
	case <-w.granted:
		return func() { s.leave(w) }, nil
	case <-ctx.Done():
		s.leave(w)
		return nil, ctx.Err()
	}
}

// join makes work wait, and grants it a slot if one is free.
func (s *Slots) join(work Work) *waiter {
	now := s.now()
	of := s.all.join(work.Namespace, now)
	w := &waiter{work: work, shares: [3]*share{&s.all, of, of.join(work.Release, now)}, granted: make(chan struct{})}
	s.waiting = append(s.waiting, w)
	s.grant(now)
	return w
}

// leave ends work, or the wait for a slot.
func (s *Slots) leave(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(w)
}

func (s *Slots) remove(w *waiter) {
	now := s.now()
	if i := slices.Index(s.waiting, w); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	} else {
		w.count(-1, now)
	}
	w.shares[1].leave(w.work.Release)
	s.all.leave(w.work.Namespace)
	s.grant(now)
}

// grant gives the free slots to waiters.
func (s *Slots) grant(now time.Time) {
	for s.all.busy < s.limit {
		next := -1
		for i, w := range s.waiting {
			if w.shares[1].busy < s.own && (next < 0 || w.before(s.waiting[next], now)) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := s.waiting[next]
		s.waiting = slices.Delete(s.waiting, next, next+1)
		w.count(1, now)
		close(w.granted)
	}
}

// count counts the beginning or the end of work in its shares.
func (w *waiter) count(n int, now time.Time) {
	for _, of := range w.shares {
		of.used, of.since, of.busy = of.spent(now), now, of.busy+n
	}
}

// before reports whether a waiter gets a slot before another one.
func (w *waiter) before(other *waiter, now time.Time) bool {
	for i := 1; i < len(w.shares); i++ {
		a, b := w.shares[i], other.shares[i]
		if a == b {
			continue
		}
		if c := cmp.Or(cmp.Compare(a.spent(now), b.spent(now)), cmp.Compare(a.busy, b.busy)); c != 0 {
			return c < 0
		}
	}
	return w.work.Urgent && !other.work.Urgent && w.shares[2] == other.shares[2]
}

// spent returns the total time of work until now.
func (s *share) spent(now time.Time) time.Duration {
	return s.used + time.Duration(s.busy)*now.Sub(s.since)
}

// join adds a user to a part. A new part begins with the time of the part with the least
// time: it has no credit for the time before.
func (s *share) join(name string, now time.Time) *share {
	of := s.parts[name]
	if of == nil {
		of = &share{}
		first := true
		for _, other := range s.parts {
			if spent := other.spent(now); first || spent < of.used {
				of.used, first = spent, false
			}
		}
		if s.parts == nil {
			s.parts = map[string]*share{}
		}
		s.parts[name] = of
	}
	of.users++
	return of
}

func (s *share) leave(name string) {
	if of := s.parts[name]; of.users > 1 {
		of.users--
	} else {
		delete(s.parts, name)
	}
}
