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

package altershield

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// breakerState is the state of the circuit breaker.
type breakerState string

const (
	// breakerClosed lets calls through.
	breakerClosed breakerState = "closed"
	// breakerOpen fails calls at once.
	breakerOpen breakerState = "open"
	// breakerHalfOpen lets one call through, to see whether the server is back. Others
	// fail at once.
	breakerHalfOpen breakerState = "half-open"
)

const (
	// maxFailures in a row open the breaker.
	maxFailures = 5
	// minCooldown is how long the breaker stays open at first. Each failed trial doubles the time, up to maxCooldown.
	minCooldown = 5 * time.Second
	maxCooldown = 30 * time.Second
	// trialWait is the wait of a call while another call tries the server.
	trialWait = time.Second
	// justFailed is how long the failure of a call counts for the last tries of others, so
	// that a dead server keeps few callers waiting. It is longer than trialWait.
	justFailed = 3 * time.Second
)

// outcome is the result of a call for the breaker.
type outcome int

const (
	// neutral: the caller went away, and nothing is known of the server.
	neutral outcome = iota
	// answered: the application answered, possibly with a refusal.
	answered
	// failed: the call failed on the way, or something else than the application answered.
	failed
)

// breaker counts failures in a row. The result of a call counts only in the period in which
// the call began. So a slow call from the time ahead of an outage does not close the breaker.
//
// Two libraries do not do this. With github.com/sony/gobreaker v2.4.0 the time that a breaker stays open is fixed, and the
// breaker does not say when to ask again. With github.com/failsafe-go/failsafe-go v0.9.8 a result counts for the state in
// which the result arrives. So a slow call from the time ahead of an outage closes a half-open breaker and lets a second
// trial in. A trial whose caller goes away keeps its permit there, so no trial follows. Neither library takes the clock of
// a test.
type breaker struct {
	clock clock.PassiveClock

	mu       sync.Mutex
	state    breakerState
	period   int
	failures int
	cooldown time.Duration
	until    time.Time
	trying   bool
	// cause is the last failure, and failedAt its time.
	cause    error
	failedAt time.Time
}

func newBreaker(c clock.PassiveClock) *breaker {
	return &breaker{clock: c, state: breakerClosed, cooldown: minCooldown}
}

// allow lets a call through, or returns why not and when to ask again. An open breaker lets a
// last try through, unless another call has just failed. The caller of each allowed call must
// call done with the period that allow returned.
func (b *breaker) allow(last bool) (period int, retryAfter time.Duration, refused error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == breakerOpen {
		now := b.clock.Now()
		left := b.until.Sub(now)
		// A clock that is set back must not keep the breaker open for longer.
		waits := left > 0 && left <= b.cooldown
		switch {
		case waits && last && now.Sub(b.failedAt) < justFailed:
			return 0, 0, b.because(ErrJustFailed)
		case waits && !last:
			return 0, left, b.because(ErrBreakerOpen)
		}
		b.move(breakerHalfOpen)
	}
	if b.state == breakerHalfOpen {
		if b.trying {
			return 0, trialWait, b.because(ErrBreakerOpen)
		}
		b.trying = true
	}
	return b.period, 0, nil
}

// alive notes that the server answered a heartbeat. The breaker lets the next call through.
func (b *breaker) alive() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == breakerOpen {
		b.move(breakerHalfOpen)
	}
}

// done takes the result of an allowed call, and the cause of a failure.
func (b *breaker) done(period int, result outcome, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if result == failed {
		b.cause = cause
	}
	if period != b.period {
		return
	}
	b.trying = false
	switch result {
	case answered:
		b.failures = 0
		if b.state == breakerHalfOpen {
			b.cooldown = minCooldown
			b.move(breakerClosed)
		}
	case failed:
		b.failedAt = b.clock.Now()
		b.failures++
		if b.state == breakerHalfOpen {
			b.cooldown = min(2*b.cooldown, maxCooldown)
		}
		if b.state == breakerHalfOpen || b.failures >= maxFailures {
			b.until = b.failedAt.Add(b.cooldown)
			b.move(breakerOpen)
		}
	case neutral:
	}
}

// because adds the last failure to the error of a call that is not let through. The caller
// holds the lock.
func (b *breaker) because(err error) error {
	if b.cause == nil {
		return err
	}
	return fmt.Errorf("%w, because: %s", err, b.cause.Error())
}

func (b *breaker) move(to breakerState) {
	b.state = to
	b.period++
	b.failures = 0
	b.trying = false
}

func (b *breaker) current() breakerState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}
