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
	"sync"
	"time"

	"k8s.io/utils/lru"

	"github.com/traas-stack/altershield-operator/internal/defense"
)

// endedOrders remembers the orders that this process has ended, and their entries: the
// record of a release may go before that is written into it.
type endedOrders struct {
	mu    sync.Mutex
	cache *lru.Cache
	// entries are those of orders whose ends were sent and not refused since, also
	// while the answer is awaited.
	entries *lru.Cache
}

const maxEndedOrders = 10_000

func newEndedOrders() *endedOrders {
	return &endedOrders{cache: lru.New(maxEndedOrders), entries: lru.New(maxEndedOrders)}
}

// endEntry makes the call that ends the entry of an order, and remembers it where the
// server took the end.
func (e *endedOrders) endEntry(entry string, call func() defense.Answer) defense.Answer {
	e.entries.Add(entry, nil)
	a := call()
	if a.Kind != defense.AnswerDone && a.Kind != defense.AnswerDuplicate {
		e.entries.Remove(entry)
	}
	return a
}

// hasEntry says that this process has ended an entry, or does so at this moment.
func (e *endedOrders) hasEntry(entry string) bool {
	_, ended := e.entries.Get(entry)
	return ended
}

// end makes the call that ends an order, unless this process has made it. If
// another worker makes it at this moment, the caller comes back later.
func (e *endedOrders) end(orderID string, call func() defense.Answer) defense.Answer {
	e.mu.Lock()
	ended, begun := e.cache.Get(orderID)
	if !begun {
		e.cache.Add(orderID, false)
	}
	e.mu.Unlock()
	switch {
	case ended == true:
		return defense.Answer{Kind: defense.AnswerDuplicate}
	case begun:
		return defense.Answer{Kind: defense.AnswerThrottled, After: time.Second}
	}
	a := call()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch a.Kind {
	case defense.AnswerRetry, defense.AnswerDenied, defense.AnswerThrottled:
		e.cache.Remove(orderID)
	default:
		e.cache.Add(orderID, true)
	}
	return a
}
