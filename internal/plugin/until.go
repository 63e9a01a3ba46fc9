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

package plugin

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// lookEvery is how often is looked where nothing can be watched, and how soon a
	// watch that ended is begun again.
	lookEvery = 2 * time.Second
	// lookAtLeast is how often is looked whatever the watches say.
	lookAtLeast = 30 * time.Second
	// lookAtMost keeps many changes in a row from being many looks.
	lookAtMost = 300 * time.Millisecond
)

// errTimedOut says that what was waited for did not happen in time.
var errTimedOut = errors.New("timed out")

// watched is a list of objects whose changes are a reason to look again.
type watched struct {
	list client.ObjectList
	opts []client.ListOption
}

// watcher looks at something until it is as wanted. Watches only say when to look:
// each look reads anew, so that nothing depends on a watch that broke or expired.
type watcher struct {
	api client.WithWatch
	// what changes are a reason to look again.
	what []watched
	// trouble is told, once each time it begins, of a look that failed and is made again.
	trouble func(err error)
	// timeout is for how long is looked; 0 is without end.
	timeout time.Duration
}

// until looks until done, or until an error that another look does not mend, or the end
// of the time: errTimedOut.
func (w *watcher) until(ctx context.Context, look func(context.Context) (done bool, err error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var end <-chan time.Time
	if w.timeout > 0 {
		timer := time.NewTimer(w.timeout)
		defer timer.Stop()
		end = timer.C
	}
	changed := make(chan struct{}, 1)
	for _, what := range w.what {
		go w.watch(ctx, what, changed)
	}
	failing := false
	for {
		done, err := look(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !passes(err):
			return err
		case err != nil && !failing && w.trouble != nil:
			w.trouble(err)
		case done:
			return nil
		}
		failing = err != nil
		again := time.NewTimer(lookAtLeast)
		if failing {
			again.Reset(lookEvery)
		}
		select {
		case <-ctx.Done():
			again.Stop()
			return ctx.Err()
		case <-end:
			again.Stop()
			return errTimedOut
		case <-changed:
		case <-again.C:
		}
		again.Stop()
	}
}

// watch says of each change that there is a reason to look again, until the end.
func (w *watcher) watch(ctx context.Context, what watched, changed chan<- struct{}) {
	tell := func() {
		select {
		case changed <- struct{}{}:
		default: // nobody has looked since
		}
	}
	for ctx.Err() == nil {
		// Of a watch that begins now, whatever is there is told first.
		list, ok := what.list.DeepCopyObject().(client.ObjectList)
		if !ok {
			return
		}
		events, err := w.api.Watch(ctx, list, what.opts...)
		if err == nil {
			follow(ctx, events, tell)
		}
		if !pause(ctx, lookEvery) {
			return
		}
		tell() // what changed meanwhile
	}
}

// follow tells of the events of one watch until it ends.
func follow(ctx context.Context, events watch.Interface, tell func()) {
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-events.ResultChan():
			if !ok || event.Type == watch.Error {
				return // too old, or broken: the next one begins with what is there
			}
			tell()
			if !pause(ctx, lookAtMost) {
				return
			}
		}
	}
}

// pause waits; false where there is nothing left to wait for.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// passes says of an error that looking again may mend it: the API server is restarted,
// or too busy, or the network is down.
func passes(err error) bool {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return apierrors.IsInternalError(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
			apierrors.IsServiceUnavailable(err) || apierrors.IsUnexpectedServerError(err) || apierrors.IsResourceExpired(err) || status.Status().Code >= 500
	}
	known := (*remedied)(nil)
	return !errors.As(err, &known) && !meta.IsNoMatchError(err)
}

// tellTrouble tells of a look that failed and is made again.
func (c *connection) tellTrouble(err error) {
	printError(c.ErrOut, "trying again: ", err)
}
