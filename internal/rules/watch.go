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

package rules

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

const (
	// AsideFor is how long a policy is set aside whose evaluations do not end.
	AsideFor = 10 * time.Minute
	// maxAbandoned is the number of abandoned evaluations after which a generation of a policy is
	// set aside.
	maxAbandoned = 3
	// maxWatched bounds the remembered generations of policies with abandoned evaluations.
	maxWatched = 256
)

// patience is how long an evaluation may exceed its time before it is abandoned.
const patience = 2 * time.Second

// ErrAbandoned is the error of an evaluation that did not end.
var ErrAbandoned = errors.New("its rules did not end in time: the evaluation was abandoned")

// Policy is one generation of a policy, with rules.
type Policy struct {
	Namespace, Name string
	UID             types.UID
	Generation      int64
	// Operators reports whether the policy is in the operator's namespace: such a policy is
	// never set aside.
	Operators bool
}

// Watch abandons evaluations that ignore the end of their time, and sets aside policies that had
// several of them. No such expression is known, but one may exist. A process has one Watch.
type Watch struct {
	clock clock.PassiveClock
	// onAside is called when a policy is set aside, and must not block.
	onAside func(of Policy, until time.Time)

	mu      sync.Mutex
	watched *lru.Cache
}

// watched has the abandoned evaluations of a generation of a policy.
type watched struct {
	abandoned int
	until     time.Time
}

// NewWatch returns a Watch; it calls onAside when it sets a policy aside, and onAside must not block.
func NewWatch(c clock.PassiveClock, onAside func(of Policy, until time.Time)) *Watch {
	return &Watch{clock: c, onAside: onAside, watched: lru.New(maxWatched)}
}

// Evaluate calls [Program.Evaluate], and returns at the latest 2 seconds after its time is over. It
// calls release when the evaluation returns.
func (w *Watch) Evaluate(ctx context.Context, of Policy, p *Program, in Input, release func()) ([]Failure, error) {
	if until, aside := w.aside(of); aside {
		release()
		return nil, fmt.Errorf("the policy is set aside until %s: %d evaluations of its rules did not end",
			until.UTC().Format(time.RFC3339), maxAbandoned)
	}
	type outcome struct {
		failures []Failure
		err      error
	}
	done := make(chan outcome, 1)
	evaluate := func() (o outcome) {
		defer func() {
			if r := recover(); r != nil {
				o = outcome{err: fmt.Errorf("the evaluation of its rules failed: %v", r)}
			}
		}()
		failures, err := p.Evaluate(ctx, in)
		return outcome{failures, err}
	}
	go func() {
		o := evaluate()
		release() // before the caller returns
		done <- o
	}()
	abandon := time.NewTimer(maxTime + patience)
	defer abandon.Stop()
	select {
	case o := <-done:
		return o.failures, o.err
	case <-abandon.C:
		w.Abandoned(of)
		return nil, ErrAbandoned
	}
}

// Abandoned counts an evaluation that did not end.
func (w *Watch) Abandoned(of Policy) {
	if of.Operators {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.known(of)
	if known.abandoned++; known.abandoned >= maxAbandoned {
		known = watched{until: w.clock.Now().Add(AsideFor)}
		w.onAside(of, known.until)
	}
	w.watched.Add(of, known)
}

func (w *Watch) known(of Policy) watched {
	found, _ := w.watched.Get(of)
	known, _ := found.(watched)
	return known
}

// aside reports whether a policy is set aside, and until when.
func (w *Watch) aside(of Policy) (until time.Time, aside bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	until = w.known(of).until
	return until, w.clock.Now().Before(until)
}
