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

// memory has what this process knows of its calls to AlterShield Server: their answers by record, the
// records that entries were started for, and the orders and entries that were ended. It may be lost at any time.
type memory struct {
	clock  clock.PassiveClock
	spread func() float64

	mu    sync.Mutex
	began time.Time
	calls map[recordKey]remembered
	// entries has the UID of the record by the id of its entry.
	entries *lru.Cache
	// ends has the orders and entries whose ends the server took; false while the call runs.
	ends *lru.Cache
}

// maxEntries bounds the entries, and the ends, that are remembered.
const maxEntries = 10_000

// recordKey identifies a ChangeWorkload or a ChangePod, which may have the same name.
type recordKey struct {
	types.NamespacedName
	batch bool
}

type remembered struct {
	// of is the UID of the batch, or the id of the order: an object may be recreated
	// with the same name, or get another order.
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

// about returns the key of the calls about a subject, and the UID of the batch or the id of the order.
func about(s *checks.Subject) (key recordKey, of string) {
	if s.Batch != nil {
		return recordKey{s.Key(), true}, string(s.Batch.UID)
	}
	return recordKey{s.Key(), false}, s.Release.Status.OrderID
}

// recall returns the known calls about a record.
func (m *memory) recall(key recordKey, of string) server.Calls {
	m.mu.Lock()
	defer m.mu.Unlock()
	// The start of the process does not count: another replica may have been the leader since.
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
	m.calls[key] = remembered{of: of, calls: known, unrecorded: &a}
	return known
}

// unrecorded returns an answer that was not written yet, so that the call is not repeated; nil
// for none.
func (m *memory) unrecorded(key recordKey, of string) *answered {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.calls[key]; c.of == of {
		return c.unrecorded
	}
	return nil
}

// recorded notes that the answer was written, and whether the server has the end of the entry.
func (m *memory) recorded(key recordKey, ended bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c, ok := m.calls[key]; ok {
		c.unrecorded, c.calls.Ended = nil, c.calls.Ended || ended
		m.calls[key] = c
	}
}

// forget drops the calls about a record.
func (m *memory) forget(key recordKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.calls, key)
}

// end makes the call that ends an order, or its entry, unless the server took that call from this process
// before: the record of a release may be deleted before the answer is written. If another worker makes the
// call at the same time, the caller has to retry.
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
	// The end of an order that is refused for good counts as taken. The end of an entry may be too early.
	taken = a.Kind == server.AnswerDone || a.Kind == server.AnswerDuplicate || call == server.CallEnd && !triesEndAgain(a)
	return a
}

// triesEndAgain reports whether the end of an order is retried after an answer.
func triesEndAgain(a server.Answer) bool {
	return a.Kind == server.AnswerRetry || a.Kind == server.AnswerDenied || a.Kind == server.AnswerThrottled
}
