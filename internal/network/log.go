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
	stdlog "log"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/utils/clock"
)

const (
	// lineRate is the number of lines per second; metrics have the numbers.
	lineRate = rate.Limit(1)
	// Burst is the number of lines at once.
	Burst = 10
)

// Log bounds the rate of lines that any client of a port can cause, so that clients cannot fill
// the disk. Each line has the number of lines left out before it. Safe for concurrent use.
type Log struct {
	log   logr.Logger
	clock clock.PassiveClock

	mu         sync.Mutex
	limiter    *rate.Limiter
	suppressed int
}

// NewLog returns a Log that writes to a logger.
func NewLog(log logr.Logger, c clock.PassiveClock) *Log {
	return &Log{log: log, clock: c, limiter: rate.NewLimiter(lineRate, Burst)}
}

// Info logs a line, unless there were too many.
func (l *Log) Info(msg string, keysAndValues ...any) {
	if log, ok := l.next(); ok {
		log.Info(msg, keysAndValues...)
	}
}

// Error logs an error, unless there were too many.
func (l *Log) Error(err error, msg string, keysAndValues ...any) {
	if log, ok := l.next(); ok {
		log.Error(err, msg, keysAndValues...)
	}
}

// next returns the logger for the next line; not ok if the line is left out.
func (l *Log) next() (log logr.Logger, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.limiter.AllowN(l.clock.Now(), 1) {
		l.suppressed++
		return logr.Logger{}, false
	}
	log = l.log
	if l.suppressed > 0 {
		log = log.WithValues("suppressed", l.suppressed)
		l.suppressed = 0
	}
	return log, true
}

// Std returns a logger for net/http, which logs mostly failed TLS handshakes.
func (l *Log) Std() *stdlog.Logger { return stdlog.New(writer{l}, "", 0) }

type writer struct{ log *Log }

func (w writer) Write(p []byte) (int, error) {
	w.log.Info("a connection failed", "cause", strings.TrimSpace(string(p)))
	return len(p), nil
}
