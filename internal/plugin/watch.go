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
	// readEvery is the time between reads that fail, and until a watch that ended begins again.
	readEvery = 2 * time.Second
	// readAtLeast is the longest time between reads, and redraw the longest time for one workload, whose pods and ages are printed.
	readAtLeast = 30 * time.Second
	redraw      = 5 * time.Second
	// readAtMost is the shortest time between reads. After a slow read it is restsFor times as long as the read, at most maxRest.
	readAtMost = 300 * time.Millisecond
	restsFor   = 5
	maxRest    = 10 * time.Second
)

// errTimedOut is the error of a wait whose time is over.
var errTimedOut = errors.New("timed out")

// watched is a list of objects whose changes are a reason to read again.
type watched struct {
	list client.ObjectList
	opts []client.ListOption
}

// watchedTarget watches a workload.
func watchedTarget(t target) watched {
	named := client.MatchingFields{"metadata.name": t.key.Name}
	return watched{t.kind.ObjectList(), []client.ListOption{client.InNamespace(t.key.Namespace), named}}
}

// watcher reads until a condition is met. Watches only say when to read, and each read is complete: nothing depends on a watch that
// broke or expired.
type watcher struct {
	api  client.WithWatch
	what []watched
	// trouble is called once each time reads begin to fail. They are retried.
	trouble func(err error)
	// timeout is for how long to read; 0 is forever. atLeast is the longest time between reads; 0 is readAtLeast.
	timeout, atLeast time.Duration
}

// until reads until done, or until an error that a retry cannot solve. If the time is over, it returns errTimedOut.
func (w *watcher) until(ctx context.Context, read func(context.Context) (done bool, err error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var end <-chan time.Time
	if w.timeout > 0 {
		end = time.After(w.timeout)
	}
	changed := make(chan struct{}, 1)
	for _, what := range w.what {
		go w.watch(ctx, what, changed)
	}
	failing := false
	for {
		begin := time.Now()
		done, err := read(ctx)
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
		rest, again := max(readAtMost, min(restsFor*time.Since(begin), maxRest)), readAtLeast
		if failing {
			rest, again = readAtMost, readEvery
		} else if w.atLeast > 0 {
			again = w.atLeast
		}
		for _, next := range []struct {
			changed <-chan struct{}
			after   time.Duration
		}{{nil, rest}, {changed, again}} {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-end:
				return errTimedOut
			case <-next.changed:
			case <-time.After(next.after):
			}
		}
	}
}

// watch notes each change as a reason to read again, until ctx ends.
func (w *watcher) watch(ctx context.Context, what watched, changed chan<- struct{}) {
	notify := func() {
		select {
		case changed <- struct{}{}:
		default: // the change before is not read yet
		}
	}
	for ctx.Err() == nil {
		// A new watch begins with the objects that exist.
		list, ok := what.list.DeepCopyObject().(client.ObjectList)
		if !ok {
			return
		}
		if events, err := w.api.Watch(ctx, list, what.opts...); err == nil {
			for event := range events.ResultChan() {
				if event.Type == watch.Error {
					break // too old, or broken: the next watch begins with the objects that exist
				}
				notify()
			}
			events.Stop()
		}
		select {
		case <-ctx.Done():
		case <-time.After(readEvery):
			notify() // there may be changes meanwhile
		}
	}
}

// passes reports whether a retry may solve an error: the API server restarts or is busy, or the network is down.
func passes(err error) bool {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return apierrors.IsInternalError(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
			apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsUnexpectedServerError(err) ||
			apierrors.IsResourceExpired(err) || status.Status().Code >= 500
	}
	known := (*remedied)(nil)
	return !errors.As(err, &known) && !meta.IsNoMatchError(err)
}

// printTrouble prints the error of a read that is retried.
func (c *connection) printTrouble(err error) { printError(c.ErrOut, "trying again: ", err) }
