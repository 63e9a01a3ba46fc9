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

// Package slots bounds what is at work at a time, of all namespaces together and of each.
package slots

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Slots bound what is at work. Those of a namespace wait for each other first, so that
// they do not stand in the way of another one's. Safe for concurrent use.
type Slots struct {
	all *semaphore.Weighted
	// own is how many a namespace has.
	own int64

	mu sync.Mutex
	of map[string]*namespaceSlots
}

type namespaceSlots struct {
	*semaphore.Weighted
	// users have one, or wait for one.
	users int
}

// New makes slots for so many at a time, and so many of one namespace.
func New(all, own int64) *Slots {
	return &Slots{all: semaphore.NewWeighted(all), own: own, of: map[string]*namespaceSlots{}}
}

// InUse says whether any is taken, or waited for.
func (s *Slots) InUse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.of) > 0
}

// Try is Acquire for who does not wait.
func (s *Slots) Try(namespace string) (release func(), ok bool) {
	own := s.use(namespace)
	if !own.TryAcquire(1) {
		s.unuse(namespace)
		return nil, false
	}
	if !s.all.TryAcquire(1) {
		own.Release(1)
		s.unuse(namespace)
		return nil, false
	}
	return s.release(namespace, own), true
}

// Acquire waits until one of a namespace may begin. It fails only when the
// context ends.
func (s *Slots) Acquire(ctx context.Context, namespace string) (release func(), err error) {
	own := s.use(namespace)
	if err := own.Acquire(ctx, 1); err != nil {
		s.unuse(namespace)
		return nil, err
	}
	if err := s.all.Acquire(ctx, 1); err != nil {
		own.Release(1)
		s.unuse(namespace)
		return nil, err
	}
	return s.release(namespace, own), nil
}

// release gives back what was acquired.
func (s *Slots) release(namespace string, own *namespaceSlots) func() {
	return func() {
		s.all.Release(1)
		own.Release(1)
		s.unuse(namespace)
	}
}

func (s *Slots) use(namespace string) *namespaceSlots {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.of[namespace]
	if own == nil {
		own = &namespaceSlots{Weighted: semaphore.NewWeighted(s.own)}
		s.of[namespace] = own
	}
	own.users++
	return own
}

func (s *Slots) unuse(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.of[namespace]
	if own.users--; own.users == 0 {
		delete(s.of, namespace)
	}
}
