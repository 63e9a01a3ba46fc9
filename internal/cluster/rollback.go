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

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// LoadRollback reads the input of a decision about a rollback; found is false when the namespace is
// not enrolled or the workload does not exist.
func (c *Cluster) LoadRollback(ctx context.Context, key workload.Key) (in rollback.Input, found bool, err error) {
	ns, err := c.Namespace(ctx, key.Namespace)
	if err != nil || !ns.Enrolled {
		return in, false, err
	}
	w, err := c.Workload(ctx, key)
	if err != nil || w == nil {
		return in, false, err
	}
	// The ages of pods are by the clock of the API server.
	in = rollback.Input{Now: c.Clock.Now(), Workload: w, Enrolled: true}
	// The release reports a setting that cannot be used.
	inForce, err := c.InForceOf(ctx, w, nil)
	if err != nil {
		return in, false, err
	}
	in.Settings = inForce.Settings
	if in.Changes, err = c.Releases(ctx, w.Namespace, w.UID); err != nil {
		return in, false, err
	}
	if in.History, err = c.History(ctx, w.Namespace, w.UID); err != nil {
		return in, false, err
	}
	if in.Limit, err = c.RollbackLimit(ctx); err != nil {
		return in, false, err
	}
	if in.NeedsPods() {
		in.Pods, err = c.Pods(ctx, w)
	}
	return in, true, err
}

// Errors of a request for a rollback.
var (
	// ErrNoWorkload means that there is no such defended workload.
	ErrNoWorkload = errors.New("no such workload is defended")
	// ErrRepeated means that the request is not newer than one that was taken.
	ErrRepeated = errors.New("a request of this time or a later one was accepted already")
)

// RefusedError is the reason why a request for a rollback is refused.
type RefusedError struct{ Why string }

// Error implements error.
func (e *RefusedError) Error() string { return e.Why }

// maxRequested is the number of rollbacks that may be requested in a namespace in requestWindow.
const (
	maxRequested  = 60
	requestWindow = time.Minute
)

// TooManyError is the error of a namespace with too many requests for rollbacks.
type TooManyError struct {
	Namespace string
	// After is the time until the next try.
	After time.Duration
}

// Error implements error.
func (e *TooManyError) Error() string {
	return fmt.Sprintf("%d rollbacks were requested in namespace %s within a minute: try again in %s",
		maxRequested, e.Namespace, e.After.Truncate(time.Second)+time.Second)
}

// take counts a request, or returns how long to wait if there are too many.
func (r *requestRate) take(namespace string, now time.Time) (wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.taken, func(_ string, times []time.Time) bool { return !now.Before(times[len(times)-1].Add(requestWindow)) })
	taken := slices.DeleteFunc(r.taken[namespace], func(at time.Time) bool { return !now.Before(at.Add(requestWindow)) })
	if len(taken) >= maxRequested {
		r.taken[namespace] = taken
		return taken[0].Add(requestWindow).Sub(now)
	}
	if r.taken == nil {
		r.taken = map[string][]time.Time{}
	}
	r.taken[namespace] = append(taken, now)
	return 0
}

// UntilRequested counts a requested rollback that is about to start, or returns how long it has
// to wait if its namespace has too many.
func (c *Cluster) UntilRequested(namespace string) time.Duration {
	return c.carriedOut.take(namespace, c.Clock.Now())
}

// RequestRollback writes a request for a rollback on the workload, for the leader. It returns
// the version to roll back to. Each request is accepted once: at is its time, and the next
// request has to be newer.
func (c *Cluster) RequestRollback(ctx context.Context, key workload.Key, version string, at time.Time) (to string, err error) {
	in, found, err := c.LoadRollback(ctx, key)
	if err != nil {
		return "", err
	}
	if !found || in.Workload.Deleting || workload.OptedOut(in.Workload.Labels) {
		return "", ErrNoWorkload
	}
	w := in.Workload
	if last, err := strconv.ParseInt(w.Annotations[v1alpha1.RollbackRequestedAnnotation], 10, 64); err == nil && at.UnixMilli() <= last {
		return "", ErrRepeated
	}
	to, why := rollback.Request(in, version)
	if why != "" {
		return "", &RefusedError{why}
	}
	if after := c.requests.take(w.Namespace, c.Clock.Now()); after > 0 {
		return "", &TooManyError{Namespace: w.Namespace, After: after}
	}
	p := PatchRevision(w)
	p.SetAnnotation(v1alpha1.RollbackToAnnotation, to)
	p.SetAnnotation(v1alpha1.RollbackRequestedAnnotation, strconv.FormatInt(at.UnixMilli(), 10))
	// The request is tried even if an earlier one was denied just now.
	if err := c.write(ctx, p); err != nil {
		if message, refused := Refusal(err); refused {
			return "", &RefusedError{defense.DescribeDenial(ActRequest.what, message)}
		}
		if Outdated(err) {
			return "", &RefusedError{"the workload changed concurrently; try again"}
		}
		return "", err
	}
	log.FromContext(ctx).Info("accepted a request for a rollback", "namespace", w.Namespace, "name", w.Name, "from", w.Version, "to", to)
	return to, nil
}
