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

package network

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Places bound how much is in use at a time, by all keys together and by each key. Users of
// one key wait for each other first, so that they do not delay another key. Safe for
// concurrent use.
type Places struct {
	all  *semaphore.Weighted
	each int64

	mu   sync.Mutex
	keys map[string]*places
}

// places are the places of a key.
type places struct {
	*semaphore.Weighted
	// users is the number of users, including waiting ones.
	users int
}

// NewPlaces returns a number of places for all keys, and a number for each key.
func NewPlaces(all, each int64) *Places {
	return &Places{all: semaphore.NewWeighted(all), each: each, keys: map[string]*places{}}
}

// Take waits until n places are free for a key. It fails only when the context ends.
func (p *Places) Take(ctx context.Context, key string, n int64) (release func(), err error) {
	own := p.use(key)
	if err := own.Acquire(ctx, n); err != nil {
		p.unuse(key, own)
		return nil, err
	}
	if err := p.all.Acquire(ctx, n); err != nil {
		own.Release(n)
		p.unuse(key, own)
		return nil, err
	}
	return func() {
		p.all.Release(n)
		own.Release(n)
		p.unuse(key, own)
	}, nil
}

// InUse reports whether any place is taken or waited for.
func (p *Places) InUse() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.keys) > 0
}

func (p *Places) use(key string) *places {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.keys[key]
	if own == nil {
		own = &places{Weighted: semaphore.NewWeighted(p.each)}
		p.keys[key] = own
	}
	own.users++
	return own
}

func (p *Places) unuse(key string, own *places) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(p.keys, key)
	}
}
