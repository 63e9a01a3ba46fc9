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
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
)

const (
	// maxKnown is how many sources that have authenticated are remembered, each for
	// knownFor since it last did.
	maxKnown = 256
	knownFor = time.Hour
	// maxStrangers is how many other sources have a limit of their own at once.
	maxStrangers = 4096
	strangerFor  = time.Minute
)

// budget is how many requests per second are let through, and how many may come at
// once.
type budget struct {
	rate  rate.Limit
	burst int
}

func (b budget) limiter() *rate.Limiter { return rate.NewLimiter(b.rate, b.burst) }

// sources limits requests by the address they come from, before they are
// authenticated. A source that has authenticated has a budget of its own, which no
// other can spend. The others have a small one each, and one together. Safe for
// concurrent use.
type sources struct {
	clock clock.PassiveClock
	// each is the budget of a source that has authenticated, stranger that of
	// another one.
	each, stranger budget

	mu                sync.Mutex
	known, unknown    *cache.LRUExpireCache // netip.Addr -> *rate.Limiter
	strangersTogether *rate.Limiter
}

func newSources(l limits, c clock.PassiveClock) *sources {
	return &sources{
		clock: c, each: l.each, stranger: l.stranger,
		known: cache.NewLRUExpireCacheWithClock(maxKnown, c), unknown: cache.NewLRUExpireCacheWithClock(maxStrangers, c),
		strangersTogether: l.strangers.limiter(),
	}
}

// allow spends one request of a source. It says for the log why it is refused;
// empty when it is not.
func (s *sources) allow(source netip.Addr) (cause string) {
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, ok := s.known.Get(source); ok {
		if !l.(*rate.Limiter).AllowN(now, 1) { //nolint:errcheck // the cache holds nothing else
			return "too many requests per second from this address"
		}
		return ""
	}
	l, ok := s.unknown.Get(source)
	if !ok {
		l = s.stranger.limiter()
		s.unknown.Add(source, l, strangerFor)
	}
	switch {
	case !l.(*rate.Limiter).AllowN(now, 1): //nolint:errcheck // the cache holds nothing else
		return "too many requests per second from an address that has not authenticated"
	case !s.strangersTogether.AllowN(now, 1):
		return "too many requests per second from addresses that have not authenticated"
	default:
		return ""
	}
}

// authenticated says that a source delivered an authenticated request.
func (s *sources) authenticated(source netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.known.Get(source)
	if !ok {
		l = s.each.limiter()
	}
	s.known.Add(source, l, knownFor)
}

// isKnown says that a source has authenticated.
func (s *sources) isKnown(source netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.known.Get(source)
	return ok
}
