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

	"github.com/traas-stack/altershield-operator/internal/defense"
)

// callMemory is what this process knows of its calls about the entries of one
// kind of object: when the next try is due, and when it last asked. It may be
// lost at any time.
type callMemory struct {
	clock  clock.PassiveClock
	spread func() float64

	mu      sync.Mutex
	started time.Time
	calls   map[types.NamespacedName]rememberedCalls
}

type rememberedCalls struct {
	// of is what the calls were about: an object of the same name may be made
	// anew, or be about another order.
	of    string
	calls defense.Calls
	// unrecorded is an answer that could not be written yet.
	unrecorded *answered
}

// answered is a call with its answer.
type answered struct {
	call   defense.Call
	answer defense.Answer
}

func newCallMemory(c clock.PassiveClock, spread func() float64) *callMemory {
	m := &callMemory{clock: c, spread: spread, calls: map[types.NamespacedName]rememberedCalls{}}
	if m.spread == nil {
		m.spread = rand.Float64
	}
	return m
}

// recall returns what is known of the calls about an object.
func (m *callMemory) recall(key types.NamespacedName, of string) defense.Calls {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Not when the process began: it may have followed another leader since.
	if m.started.IsZero() {
		m.started = m.clock.Now()
	}
	c := m.calls[key]
	if c.of != of {
		return defense.Calls{Started: m.started}
	}
	c.calls.Started = m.started
	return c.calls
}

// remember notes a call that was answered.
func (m *callMemory) remember(key types.NamespacedName, of string, call defense.Call, a defense.Answer) defense.Calls {
	known := m.recall(key, of)
	known = known.After(call, a, m.clock.Now(), m.spread())
	m.mu.Lock()
	defer m.mu.Unlock()
	// Until recorded says otherwise.
	m.calls[key] = rememberedCalls{of: of, calls: known, unrecorded: &answered{call, a}}
	return known
}

// unrecorded returns the answer that was not written yet, for it must not be
// asked for again: nil when there is none.
func (m *callMemory) unrecorded(key types.NamespacedName, of string) *answered {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.calls[key]; c.of == of {
		return c.unrecorded
	}
	return nil
}

// recorded says that the answer was written.
func (m *callMemory) recorded(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c, ok := m.calls[key]; ok {
		c.unrecorded = nil
		m.calls[key] = c
	}
}

// ended says that the server has the end of what the calls are about.
func (m *callMemory) ended(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c, ok := m.calls[key]; ok {
		c.calls.Ended = true
		m.calls[key] = c
	}
}

// forget drops what is known of an object about which no more calls are made.
func (m *callMemory) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.calls, key)
}
