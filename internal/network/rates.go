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
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
)

// Rate is how many are granted per second, and how many at once after a pause.
type Rate struct {
	PerSecond rate.Limit
	Burst     int
}

func (r Rate) limiter() *rate.Limiter { return rate.NewLimiter(r.PerSecond, r.Burst) }

// RatesOptions bound how much is granted.
type RatesOptions struct {
	// Each is what one key is granted, and All what all are together; without All there is no
	// such limit.
	Each, All Rate
	// Keys are remembered at most, each for Keep since its first one or since Remember.
	Keys int
	Keep time.Duration
}

// Rates bound how often something happens, for each of many keys and for all of them
// together. Safe for concurrent use.
type Rates struct {
	options RatesOptions
	clock   clock.PassiveClock

	mu   sync.Mutex
	each *cache.LRUExpireCache // key -> *rate.Limiter
	all  *rate.Limiter         // nil without a limit
}

// NewRates makes the limits.
func NewRates(o RatesOptions, c clock.PassiveClock) *Rates {
	r := &Rates{options: o, clock: c, each: cache.NewLRUExpireCacheWithClock(o.Keys, c)}
	if o.All != (Rate{}) {
		r.all = o.All.limiter()
	}
	return r
}

// Grant is what a request for one more came to.
type Grant int

const (
	// Granted takes one from what the key has, and one from what all have.
	Granted Grant = iota
	// EachSpent takes none: the key has none left.
	EachSpent
	// AllSpent takes none: all together have none left.
	AllSpent
)

// Take asks for one more of a key.
func (r *Rates) Take(key any) Grant {
	r.mu.Lock()
	defer r.mu.Unlock()
	each, now := r.use(key), r.clock.Now()
	switch {
	case each.TokensAt(now) < 1:
		return EachSpent
	case r.all != nil && !r.all.AllowN(now, 1):
		return AllSpent
	default:
		each.AllowN(now, 1)
		return Granted
	}
}

// Remember restarts the time for which a key is remembered.
func (r *Rates) Remember(key any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.each.Add(key, r.use(key), r.options.Keep)
}

// Remembers reports whether a key is remembered.
func (r *Rates) Remembers(key any) bool {
	_, known := r.each.Get(key)
	return known
}

// use is the limiter of a key. The lock is held.
func (r *Rates) use(key any) *rate.Limiter {
	if known, ok := r.each.Get(key); ok {
		return known.(*rate.Limiter) //nolint:errcheck // the cache holds nothing else
	}
	each := r.options.Each.limiter()
	r.each.Add(key, each, r.options.Keep)
	return each
}
