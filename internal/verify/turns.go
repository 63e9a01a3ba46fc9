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

package verify

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// maxCalls of checks of policies are at work at a time, maxCallsOfNamespace of one
	// namespace.
	maxCalls            = 8
	maxCallsOfNamespace = 2
)

// turns bound the calls that are at work. The next one is of the namespace whose calls
// took the least time, and there of the release whose did: where nobody answers, calls
// take long, and must not keep others away.
type turns struct {
	now func() time.Time

	mu      sync.Mutex
	waiting []*turn
	all     share
}

// share is what somebody has of the slots: all together, a namespace, a release.
type share struct {
	// users have a slot, or wait for one.
	users int
	// began is when each call that is at work did, used the time of those that ended.
	began []time.Time
	used  time.Duration
	of    map[string]*share
}

// turn is a call that waits for its turn, or is at work.
type turn struct {
	namespace, release string
	// urgent ones come before the others of their release.
	urgent bool
	// shares it counts in, the widest first.
	shares []*share
	// granted is closed at its turn, which began then.
	granted chan struct{}
	began   time.Time
}

func newTurns() *turns { return &turns{now: time.Now} }

// acquire waits until a call for a release of a namespace may be made. It fails only
// when the context ends.
func (s *turns) acquire(ctx context.Context, namespace, release string, urgent bool) (done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t := &turn{namespace: namespace, release: release, urgent: urgent, granted: make(chan struct{})}
	s.mu.Lock()
	of := s.all.join(namespace, s.now())
	t.shares = []*share{&s.all, of, of.join(release, s.now())}
	s.waiting = append(s.waiting, t)
	s.grant()
	s.mu.Unlock()
	select {
	case <-t.granted:
		return func() { s.leave(t) }, nil
	case <-ctx.Done():
		s.leave(t)
		return nil, ctx.Err()
	}
}

// grant gives the slots that are free to those whose turn it is.
func (s *turns) grant() {
	now := s.now()
	for len(s.all.began) < maxCalls {
		next := -1
		for i, t := range s.waiting {
			if len(t.shares[1].began) < maxCallsOfNamespace && (next < 0 || t.before(s.waiting[next], now)) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		t := s.waiting[next]
		s.waiting = slices.Delete(s.waiting, next, next+1)
		t.began = now
		for _, of := range t.shares {
			of.began = append(of.began, now)
		}
		close(t.granted)
	}
}

// leave ends a call, or the wait for it.
func (s *turns) leave(t *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting, t); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	} else {
		for _, of := range t.shares {
			i := slices.Index(of.began, t.began)
			of.began, of.used = slices.Delete(of.began, i, i+1), of.used+s.now().Sub(t.began)
		}
	}
	t.shares[1].leave(t.release)
	s.all.leave(t.namespace)
	s.grant()
}

// before says that it is the turn of t before that of another one that waits.
func (t *turn) before(other *turn, now time.Time) bool {
	for i := 1; i < len(t.shares); i++ {
		a, b := t.shares[i], other.shares[i]
		if a == b {
			continue
		}
		if c := cmp.Or(cmp.Compare(a.spent(now), b.spent(now)), cmp.Compare(len(a.began), len(b.began))); c != 0 {
			return c < 0
		}
	}
	return t.urgent && !other.urgent && t.shares[2] == other.shares[2]
}

// spent is the time that calls took.
func (s *share) spent(now time.Time) time.Duration {
	d := s.used
	for _, began := range s.began {
		d += now.Sub(began)
	}
	return d
}

// join counts one that waits for a part. A part that is new begins with the time of
// the one that has the least: what it did not use before is no credit.
func (s *share) join(name string, now time.Time) *share {
	of := s.of[name]
	if of == nil {
		of = &share{}
		first := true
		for _, other := range s.of {
			if spent := other.spent(now); first || spent < of.used {
				of.used, first = spent, false
			}
		}
		if s.of == nil {
			s.of = map[string]*share{}
		}
		s.of[name] = of
	}
	of.users++
	return of
}

func (s *share) leave(name string) {
	of := s.of[name]
	if of.users--; of.users == 0 {
		delete(s.of, name)
	}
}
