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
	// breakerClosed: calls are made.
	breakerClosed breakerState = "closed"
	// breakerOpen: calls fail at once.
	breakerOpen breakerState = "open"
	// breakerHalfOpen: one call is made to see whether the server is back; others
	// fail at once.
	breakerHalfOpen breakerState = "half-open"
)

const (
	// maxFailures in a row open it.
	maxFailures = 5
	// minCooldown is how long it stays open at first; that doubles with each failed trial up to maxCooldown.
	minCooldown = 5 * time.Second
	maxCooldown = 30 * time.Second
	// trialWait is when to ask again while another call tries the server.
	trialWait = time.Second
	// justFailed is how long the failure of a call counts for the last tries of others,
	// so that a server that is down keeps few callers waiting. It is longer than
	// trialWait, after which they ask again.
	justFailed = 3 * time.Second
)

// outcome of a call for the breaker.
type outcome int

const (
	// neutral says nothing of the server: the caller went away.
	neutral outcome = iota
	// answered by the application, be it a refusal.
	answered
	// failed on the way or by something that is not the application.
	failed
)

// breaker counts failures in a row. Results count for the period their call
// began in, so that a slow call of before an outage does not end its cooling.
//
// Two libraries lack what it needs. With github.com/sony/gobreaker v2.4.0 the time that one stays open is fixed when
// it is made, and it does not say when to ask again. With github.com/failsafe-go/failsafe-go v0.9.8 a result counts for
// the state it arrives in, so a slow call of before an outage closes a half-open one and lets a second trial in; and a
// trial whose caller goes away cannot give its permit back without a result, so none is made after it. Neither takes
// the clock of a test.
type breaker struct {
	clock clock.PassiveClock

	mu       sync.Mutex
	state    breakerState
	period   int
	failures int
	cooldown time.Duration
	until    time.Time
	trying   bool
	// cause is the last failure, and failedAt when it was.
	cause    error
	failedAt time.Time
}

func newBreaker(c clock.PassiveClock) *breaker {
	return &breaker{clock: c, state: breakerClosed, cooldown: minCooldown}
}

// allow says whether to call, and if not, why and when to ask again. The last try of
// something does not wait for the breaker: it is made, or another call has just failed.
// Each allowed call must report to done with the period it got.
func (b *breaker) allow(last bool) (period int, retryAfter time.Duration, refused error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == breakerOpen {
		now := b.clock.Now()
		left := b.until.Sub(now)
		// A clock that was set back must not keep it open for longer.
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

// alive says that the server answered a heartbeat: the next call tries it.
func (b *breaker) alive() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == breakerOpen {
		b.move(breakerHalfOpen)
	}
}

// done takes the result of an allowed call, and why it failed.
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

// because adds the last failure to the error of a call that is not let through. With
// the lock held.
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
