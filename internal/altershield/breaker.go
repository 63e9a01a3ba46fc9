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

// BreakerState is the state of the circuit breaker.
type BreakerState string

// States of the circuit breaker.
const (
	// BreakerClosed: calls are made.
	BreakerClosed BreakerState = "Closed"
	// BreakerOpen: calls fail at once.
	BreakerOpen BreakerState = "Open"
	// BreakerHalfOpen: one call is made to see whether the server is back; others
	// fail at once.
	BreakerHalfOpen BreakerState = "HalfOpen"
)

// BreakerOptions tune the circuit breaker. Zero values take the default.
type BreakerOptions struct {
	// Failures in a row that open it; 5 by default.
	Failures int
	// Cooldown is how long it stays open at first, 5 s by default; it doubles
	// with each failed trial up to MaxCooldown, 30 s by default.
	Cooldown, MaxCooldown time.Duration
}

func (o BreakerOptions) withDefaults() BreakerOptions {
	if o.Failures <= 0 {
		o.Failures = 5
	}
	if o.Cooldown <= 0 {
		o.Cooldown = 5 * time.Second
	}
	if o.MaxCooldown <= 0 {
		o.MaxCooldown = 30 * time.Second
	}
	o.MaxCooldown = max(o.MaxCooldown, o.Cooldown)
	return o
}

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

const (
	// trialWait is when to ask again while another call tries the server.
	trialWait = time.Second
	// justFailed is how long the failure of a call counts for the last tries of others,
	// so that a server that is down keeps few callers waiting. It is longer than
	// trialWait, after which they ask again.
	justFailed = 3 * time.Second
)

// breaker counts failures in a row. Results count for the period their call
// began in, so that a slow call of before an outage does not end its cooling.
//
// It is not github.com/sony/gobreaker: in v2.4.0 the time that one stays open is
// fixed when it is made, so it cannot double with each failed trial; its clock is
// time.Now, which tests cannot set; and it does not say when to ask again.
type breaker struct {
	clock clock.PassiveClock
	opts  BreakerOptions

	mu       sync.Mutex
	state    BreakerState
	period   int
	failures int
	cooldown time.Duration
	until    time.Time
	trying   bool
	// cause is the last failure, and failedAt when it was.
	cause    error
	failedAt time.Time
}

func newBreaker(c clock.PassiveClock, opts BreakerOptions) *breaker {
	opts = opts.withDefaults()
	return &breaker{clock: c, opts: opts, state: BreakerClosed, cooldown: opts.Cooldown}
}

// allow says whether to call, and if not, why and when to ask again. The last try of
// something does not wait for the breaker: it is made, or another call has just failed.
// Each allowed call must report to done with the period it got.
func (b *breaker) allow(last bool) (period int, retryAfter time.Duration, refused error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == BreakerOpen {
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
		b.move(BreakerHalfOpen)
	}
	if b.state == BreakerHalfOpen {
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
	if b.state == BreakerOpen {
		b.move(BreakerHalfOpen)
	}
}

// done takes the result of an allowed call.
func (b *breaker) done(period int, result outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if period != b.period {
		return
	}
	b.trying = false
	switch result {
	case answered:
		b.failures = 0
		if b.state == BreakerHalfOpen {
			b.cooldown = b.opts.Cooldown
			b.move(BreakerClosed)
		}
	case failed:
		b.failedAt = b.clock.Now()
		b.failures++
		switch {
		case b.state == BreakerHalfOpen:
			b.cooldown = min(2*b.cooldown, b.opts.MaxCooldown)
			b.open()
		case b.failures >= b.opts.Failures:
			b.open()
		}
	case neutral:
	}
}

// failedBy notes what failed, for those who are not let through because of it.
func (b *breaker) failedBy(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cause = err
}

// because adds the last failure to the error of a call that is not let through. With
// the lock held.
func (b *breaker) because(err error) error {
	if b.cause == nil {
		return err
	}
	return fmt.Errorf("%w, because: %s", err, b.cause.Error())
}

func (b *breaker) open() {
	b.until = b.clock.Now().Add(b.cooldown)
	b.move(BreakerOpen)
}

func (b *breaker) move(to BreakerState) {
	b.state = to
	b.period++
	b.failures = 0
	b.trying = false
}

func (b *breaker) current() BreakerState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}
