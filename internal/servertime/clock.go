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

// Package servertime has a clock with the time of the API server.
package servertime

import (
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// tolerance is the difference of the clocks that is ignored: the header has whole
// seconds, and an answer takes its time.
const tolerance = 2 * time.Second

// Clock is the clock of the API server, whose answers have the time in a header.
// Every time in a status, every deadline and every age is by this clock, so that
// the clocks of the replicas' machines do not matter.
type Clock struct {
	own clock.PassiveClock
	// ahead is how far this machine is ahead, in nanoseconds.
	ahead atomic.Int64
}

var _ clock.PassiveClock = &Clock{}

// New returns a clock that follows the dates given to Learn.
func New(own clock.PassiveClock) *Clock { return &Clock{own: own} }

// Follow returns a clock that follows all answers to requests with this configuration.
func Follow(config *rest.Config, own clock.PassiveClock) *Clock {
	c := New(own)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if err == nil {
				c.Learn(response.Header.Get("Date"))
			}
			return response, err
		})
	})
	return c
}

type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (t roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// Learn takes the date of an answer, in the format of HTTP. The clock changes only if
// the date differs by more than the tolerance, so that it does not jump from answer to
// answer.
func (c *Clock) Learn(date string) {
	at, err := http.ParseTime(date)
	if err != nil {
		return
	}
	known := time.Duration(c.ahead.Load())
	if ahead := c.own.Since(at); (ahead - known).Abs() > tolerance {
		if ahead.Abs() <= tolerance {
			ahead = 0
		} else {
			// The fraction of the second is unknown.
			ahead -= time.Second / 2
		}
		c.ahead.Store(int64(ahead))
	}
}

// Now implements clock.PassiveClock.
func (c *Clock) Now() time.Time { return c.own.Now().Add(-time.Duration(c.ahead.Load())) }

// Since implements clock.PassiveClock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
