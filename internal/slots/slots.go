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

// Package slots bounds what is in use at a time, of all keys together and of each. A key is
// the one that uses it: a namespace, a source of requests, or an object that is written to.
package slots

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Slots bound what is in use. Those of a key wait for each other first, so that they do not
// stand in the way of another one's. Safe for concurrent use.
type Slots struct {
	all *semaphore.Weighted
	// own is how many a key has.
	own int64

	mu sync.Mutex
	of map[string]*ownSlots
}

type ownSlots struct {
	*semaphore.Weighted
	// users have one, or wait for one.
	users int
}

// New makes slots for so many at a time, and so many of one key.
func New(all, own int64) *Slots {
	return &Slots{all: semaphore.NewWeighted(all), own: own, of: map[string]*ownSlots{}}
}

// InUse says whether any is taken, or waited for.
func (s *Slots) InUse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.of) > 0
}

// Try is Acquire for who does not wait.
func (s *Slots) Try(key string) (release func(), ok bool) {
	own := s.use(key)
	if !own.TryAcquire(1) {
		s.unuse(key)
		return nil, false
	}
	if !s.all.TryAcquire(1) {
		own.Release(1)
		s.unuse(key)
		return nil, false
	}
	return s.release(key, own, 1), true
}

// Acquire waits for one slot of a key. It fails only when the context ends.
func (s *Slots) Acquire(ctx context.Context, key string) (release func(), err error) {
	return s.AcquireN(ctx, key, 1)
}

// AcquireN waits for n slots at once.
func (s *Slots) AcquireN(ctx context.Context, key string, n int64) (release func(), err error) {
	own := s.use(key)
	if err := own.Acquire(ctx, n); err != nil {
		s.unuse(key)
		return nil, err
	}
	if err := s.all.Acquire(ctx, n); err != nil {
		own.Release(n)
		s.unuse(key)
		return nil, err
	}
	return s.release(key, own, n), nil
}

// release gives back what was acquired.
func (s *Slots) release(key string, own *ownSlots, n int64) func() {
	return func() {
		s.all.Release(n)
		own.Release(n)
		s.unuse(key)
	}
}

func (s *Slots) use(key string) *ownSlots {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.of[key]
	if own == nil {
		own = &ownSlots{Weighted: semaphore.NewWeighted(s.own)}
		s.of[key] = own
	}
	own.users++
	return own
}

func (s *Slots) unuse(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.of[key]
	if own.users--; own.users == 0 {
		delete(s.of, key)
	}
}
