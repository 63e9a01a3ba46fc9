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

// Rate is the number of grants per second, and at once after a pause.
type Rate struct {
	PerSecond rate.Limit
	Burst     int
}

func (r Rate) limiter() *rate.Limiter { return rate.NewLimiter(r.PerSecond, r.Burst) }

// RatesOptions bound the grants.
type RatesOptions struct {
	// Each is the rate of each key, and All the rate of all together; no limit if it is empty.
	Each, All Rate
	// Keys is the number of remembered keys.
	Keys int
	// Keep is how long a key is remembered, since its first use or since Remember.
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

// Grant is the result of Take.
type Grant int

const (
	// Granted takes one grant of the key and one of all.
	Granted Grant = iota
	// EachSpent takes none: the key has none left.
	EachSpent
	// AllSpent takes none: all together have none left.
	AllSpent
)

// Take requests a grant for a key.
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

// use returns the limiter of a key. The lock is held.
func (r *Rates) use(key any) *rate.Limiter {
	if known, ok := r.each.Get(key); ok {
		return known.(*rate.Limiter) //nolint:errcheck // the cache holds nothing else
	}
	each := r.options.Each.limiter()
	r.each.Add(key, each, r.options.Keep)
	return each
}
