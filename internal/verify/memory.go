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
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/server"
)

// memory is what this process remembers of its calls to AlterShield Server: how those about a record went,
// for which records entries were started, and which orders and entries were ended. It may be lost at any time.
type memory struct {
	clock  clock.PassiveClock
	spread func() float64

	mu    sync.Mutex
	began time.Time
	calls map[recordKey]remembered
	// entries are the UIDs of the records that entries were started for.
	entries *lru.Cache
	// ends are the orders and entries whose ends the server took; false while the call is under way.
	ends *lru.Cache
}

// maxEntries bounds the entries, and the ends, that are remembered.
const maxEntries = 10_000

// recordKey is of a ChangeWorkload or a ChangePod, which may have the same name.
type recordKey struct {
	types.NamespacedName
	batch bool
}

type remembered struct {
	// of is what the calls were about: an object of the same name may be made
	// anew, or be about another order.
	of    string
	calls server.Calls
	// unrecorded is an answer that could not be written yet.
	unrecorded *answered
}

// answered is a call with its answer.
type answered struct {
	call   server.Call
	answer server.Answer
}

func newMemory(c clock.PassiveClock, spread func() float64) *memory {
	if spread == nil {
		spread = rand.Float64
	}
	return &memory{clock: c, spread: spread, calls: map[recordKey]remembered{}, entries: lru.New(maxEntries), ends: lru.New(maxEntries)}
}

// about returns the key under which the calls about a subject are remembered, and what they are about.
func about(s *checks.Subject) (key recordKey, of string) {
	if s.Batch != nil {
		return recordKey{s.Key(), true}, string(s.Batch.UID)
	}
	return recordKey{s.Key(), false}, s.Release.Status.OrderID
}

// recall returns what is known of the calls about a record.
func (m *memory) recall(key recordKey, of string) server.Calls {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Not when the process began: it may have followed another leader since.
	if m.began.IsZero() {
		m.began = m.clock.Now()
	}
	c := m.calls[key]
	if c.of != of {
		c.calls = server.Calls{}
	}
	c.calls.Started = m.began
	return c.calls
}

// remember notes a call that was answered.
func (m *memory) remember(key recordKey, of string, a answered) server.Calls {
	known := m.recall(key, of).After(a.call, a.answer, m.clock.Now(), m.spread())
	m.mu.Lock()
	defer m.mu.Unlock()
	// Until recorded says otherwise.
	m.calls[key] = remembered{of: of, calls: known, unrecorded: &a}
	return known
}

// unrecorded returns the answer that was not written yet, for it must not be
// asked for again: nil when there is none.
func (m *memory) unrecorded(key recordKey, of string) *answered {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.calls[key]; c.of == of {
		return c.unrecorded
	}
	return nil
}

// recorded says that the answer was written, and whether the server has the end of the entry.
func (m *memory) recorded(key recordKey, ended bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c, ok := m.calls[key]; ok {
		c.unrecorded, c.calls.Ended = nil, c.calls.Ended || ended
		m.calls[key] = c
	}
}

// forget drops what is known of a record about which no more calls are made.
func (m *memory) forget(key recordKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.calls, key)
}

// end makes the call that ends an order, or the entry of one, unless the server took it from this process
// before: the record of a release may go before that is written into it. If another worker makes the call
// at this moment, the caller comes back later.
func (m *memory) end(call server.Call, id string, send func() server.Answer) server.Answer {
	type key struct {
		call server.Call
		id   string
	}
	of := key{call, id}
	m.mu.Lock()
	ended, begun := m.ends.Get(of)
	if !begun {
		m.ends.Add(of, false)
	}
	m.mu.Unlock()
	switch {
	case ended == true:
		return server.Answer{Kind: server.AnswerDuplicate}
	case begun:
		return server.Answer{Kind: server.AnswerThrottled, After: time.Second}
	}
	taken := false
	defer func() { // also where the call panics
		if taken {
			m.ends.Add(of, true)
		} else {
			m.ends.Remove(of)
		}
	}()
	a := send()
	// The end of an order that is refused for good counts as taken. That of an entry may only be too early.
	taken = a.Kind == server.AnswerDone || a.Kind == server.AnswerDuplicate || call == server.CallEnd && !triesEndAgain(a)
	return a
}

// triesEndAgain reports whether the end of an order is tried again after an answer.
func triesEndAgain(a server.Answer) bool {
	return a.Kind == server.AnswerRetry || a.Kind == server.AnswerDenied || a.Kind == server.AnswerThrottled
}
