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
	// lookEvery is the time between looks where nothing can be watched, and until a watch that ended begins again.
	lookEvery = 2 * time.Second
	// lookAtLeast is the longest time between looks, and redraw that at one workload, of which pods and ages are printed.
	lookAtLeast = 30 * time.Second
	redraw      = 5 * time.Second
	// lookAtMost is the shortest time between looks. After a look that took long it is restsFor times as long, at most maxRest.
	lookAtMost = 300 * time.Millisecond
	restsFor   = 5
	maxRest    = 10 * time.Second
)

// errTimedOut is the error of a wait whose time is over.
var errTimedOut = errors.New("timed out")

// watched is a list of objects whose changes are a reason to look again.
type watched struct {
	list client.ObjectList
	opts []client.ListOption
}

// watchedTarget watches a workload.
func watchedTarget(t target) watched {
	return watched{t.kind.ObjectList(), []client.ListOption{client.InNamespace(t.key.Namespace), client.MatchingFields{"metadata.name": t.key.Name}}}
}

// watcher looks at something until it is as wanted. Watches only say when to look: each look reads anew, so nothing depends on
// a watch that broke or expired.
type watcher struct {
	api  client.WithWatch
	what []watched
	// trouble is called once each time looks begin to fail, which are made again.
	trouble func(err error)
	// timeout is for how long to look, and atLeast the longest time between looks; 0 is without end, and lookAtLeast.
	timeout, atLeast time.Duration
}

// until looks until done, or until an error that another look does not mend, or the end of the time: errTimedOut.
func (w *watcher) until(ctx context.Context, look func(context.Context) (done bool, err error)) error {
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
		rest, again := max(lookAtMost, min(restsFor*time.Since(begin), maxRest)), lookAtLeast
		if failing {
			rest, again = lookAtMost, lookEvery
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

// watch says of each change that there is a reason to look again, until the end.
func (w *watcher) watch(ctx context.Context, what watched, changed chan<- struct{}) {
	tell := func() {
		select {
		case changed <- struct{}{}:
		default: // nobody has looked since
		}
	}
	for ctx.Err() == nil {
		// A watch that begins now tells first of what is there.
		list, ok := what.list.DeepCopyObject().(client.ObjectList)
		if !ok {
			return
		}
		if events, err := w.api.Watch(ctx, list, what.opts...); err == nil {
			for event := range events.ResultChan() {
				if event.Type == watch.Error {
					break // too old, or broken: the next one begins with what is there
				}
				tell()
			}
			events.Stop()
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookEvery):
			tell() // what changed meanwhile
		}
	}
}

// passes reports whether looking again may mend an error: the API server restarts or is busy, or the network is down.
func passes(err error) bool {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return apierrors.IsInternalError(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
			apierrors.IsServiceUnavailable(err) || apierrors.IsUnexpectedServerError(err) || apierrors.IsResourceExpired(err) || status.Status().Code >= 500
	}
	known := (*remedied)(nil)
	return !errors.As(err, &known) && !meta.IsNoMatchError(err)
}

// tellTrouble prints an error of a look that is made again.
func (c *connection) tellTrouble(err error) { printError(c.ErrOut, "trying again: ", err) }
