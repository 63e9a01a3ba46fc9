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

// Package breaker stops calls to a service that fails repeatedly: AlterShield Server, or an endpoint
// of policies.
package breaker

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Errors of a call that is not let through.
var (
	// ErrOpen: the server failed repeatedly, and nothing is sent for a while. Whether the
	// server works now is not known.
	ErrOpen = errors.New("the circuit breaker is open")
	// ErrJustFailed: another call failed a moment ago, and its failure counts for this
	// call, too.
	ErrJustFailed = errors.New("another call has just failed")
)

// State is the state of the circuit breaker.
type State string

const (
	// Closed lets calls through.
	Closed State = "closed"
	// Open fails calls at once.
	Open State = "open"
	// HalfOpen lets one call through, to see whether the server is back. Others
	// fail at once.
	HalfOpen State = "half-open"
)

const (
	// MaxFailures in a row open the breaker.
	MaxFailures = 5
	// MinCooldown is how long the breaker stays open at first. Each failed trial doubles the time, up to maxCooldown.
	MinCooldown = 5 * time.Second
	maxCooldown = 30 * time.Second
	// trialWait is the wait of a call while another call tries the server.
	trialWait = time.Second
	// justFailed is how long the failure of a call counts for the last tries of others, so
	// that a dead server keeps few callers waiting. It is longer than trialWait.
	justFailed = 3 * time.Second
)

// Outcome is the result of a call for the breaker.
type Outcome int

const (
	// Neutral means that the caller went away, and nothing is known of the server.
	Neutral Outcome = iota
	// Answered means that the application answered, possibly with a refusal.
	Answered
	// Failed means that the call failed on the way, or something else than the application answered.
	Failed
)

// Breaker counts failures in a row. The result of a call counts only in the period in which
// the call began. So a slow call from the time ahead of an outage does not close the breaker.
//
// Two libraries do not do this. With github.com/sony/gobreaker v2.4.0 the time that a breaker stays open is fixed, and the
// breaker does not say when to ask again. With github.com/failsafe-go/failsafe-go v0.9.8 a result counts for the state in
// which the result arrives. So a slow call from the time ahead of an outage closes a half-open breaker and lets a second
// trial in. A trial whose caller goes away keeps its permit there, so no trial follows. Neither library takes the clock of
// a test.
type Breaker struct {
	clock clock.PassiveClock

	mu       sync.Mutex
	state    State
	period   int
	failures int
	cooldown time.Duration
	until    time.Time
	trying   bool
	// cause is the last failure, and failedAt its time.
	cause    error
	failedAt time.Time
}

// New returns a closed breaker.
func New(c clock.PassiveClock) *Breaker {
	return &Breaker{clock: c, state: Closed, cooldown: MinCooldown}
}

// Allow lets a call through, or returns why not and when to ask again. An open breaker lets a
// last try through, unless another call has just failed. The caller of each allowed call must
// call Done with the period that Allow returned.
func (b *Breaker) Allow(last bool) (period int, retryAfter time.Duration, refused error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == Open {
		now := b.clock.Now()
		left := b.until.Sub(now)
		// A clock that is set back must not keep the breaker open for longer.
		waits := left > 0 && left <= b.cooldown
		switch {
		case waits && last && now.Sub(b.failedAt) < justFailed:
			return 0, 0, b.because(ErrJustFailed)
		case waits && !last:
			return 0, left, b.because(ErrOpen)
		}
		b.move(HalfOpen)
	}
	if b.state == HalfOpen {
		if b.trying {
			return 0, trialWait, b.because(ErrOpen)
		}
		b.trying = true
	}
	return b.period, 0, nil
}

// Alive notes that the server answered a heartbeat. The breaker lets the next call through.
func (b *Breaker) Alive() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == Open {
		b.move(HalfOpen)
	}
}

// Done takes the result of an allowed call, and the cause of a failure.
func (b *Breaker) Done(period int, result Outcome, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if result == Failed {
		b.cause = cause
	}
	if period != b.period {
		return
	}
	b.trying = false
	switch result {
	case Answered:
		b.failures = 0
		if b.state == HalfOpen {
			b.cooldown = MinCooldown
			b.move(Closed)
		}
	case Failed:
		b.failedAt = b.clock.Now()
		b.failures++
		if b.state == HalfOpen {
			b.cooldown = min(2*b.cooldown, maxCooldown)
		}
		if b.state == HalfOpen || b.failures >= MaxFailures {
			b.until = b.failedAt.Add(b.cooldown)
			b.move(Open)
		}
	case Neutral:
	}
}

// because adds the last failure to the error of a call that is not let through. The caller
// holds the lock.
func (b *Breaker) because(err error) error {
	if b.cause == nil {
		return err
	}
	return fmt.Errorf("%w, because: %s", err, b.cause.Error())
}

func (b *Breaker) move(to State) {
	b.state = to
	b.period++
	b.failures = 0
	b.trying = false
}

// Current returns the state.
func (b *Breaker) Current() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}
