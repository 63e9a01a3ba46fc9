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
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// +kubebuilder:rbac:groups="",resources=events,verbs=list

// CauseOf returns the last warning event of a pod, empty without one: the status
// of a pod does not show, for example, that a volume cannot be mounted. It is read
// when it is reported, and not kept.
func (v View) CauseOf(ctx context.Context, namespace string, pod types.UID) (string, error) {
	var list corev1.EventList
	selector := fields.SelectorFromSet(fields.Set{"involvedObject.uid": string(pod), "type": corev1.EventTypeWarning})
	if err := v.Live.List(ctx, &list, client.InNamespace(namespace), client.MatchingFieldsSelector{Selector: selector}); err != nil {
		return "", fmt.Errorf("list the events of pod %s: %w", pod, err)
	}
	var last *corev1.Event
	for i := range list.Items {
		if e := &list.Items[i]; last == nil || eventTime(e).After(eventTime(last)) {
			last = e
		}
	}
	if last == nil {
		return "", nil
	}
	return last.Reason + ": " + last.Message, nil
}

const (
	// refusalMemory is how long the refusals of a workload are remembered, and maxRefusals the
	// number of workloads with remembered refusals.
	refusalMemory = 10 * time.Second
	maxRefusals   = 1000
	// lackingMemory is how long the time is remembered since which pods are lacking, counted
	// from the last read.
	lackingMemory = time.Hour
)

func newRefusals(c clock.PassiveClock) *refusals {
	newCache := func() *cache.LRUExpireCache { return cache.NewLRUExpireCacheWithClock(maxRefusals, c) }
	return &refusals{clock: c, known: newCache(), since: newCache()}
}

// reasonFailedCreate is the event reason of a controller of Kubernetes that cannot create a pod.
const reasonFailedCreate = "FailedCreate"

// Workload reads a workload, as View does, and why its pods are not created. Where only events of
// its controller have the reason, and they cannot be read, the reason stays unknown.
func (c *Cluster) Workload(ctx context.Context, key workload.Key) (*workload.Workload, error) {
	w, err := c.View.Workload(ctx, key)
	if err != nil || w == nil || c.refusals == nil {
		return w, err
	}
	now := c.refusals.clock.Now()
	if w.Lacking = c.refusals.seen(w, now); w.Lacking == nil || w.Lacking.AskAfter(now) > 0 {
		return w, nil
	}
	said, err := c.refusalsOf(ctx, w)
	if err != nil {
		log.FromContext(ctx).Error(err, "cannot read why pods are not created", "workload", key)
	}
	w.NotMade = w.Lacking.RefusedBy(said, now)
	return w, nil
}

// seen notes since when pods of a workload are lacking.
func (r *refusals) seen(w *workload.Workload, now time.Time) *workload.Lacking {
	if w.Lacking == nil {
		r.since.Remove(w.UID)
		return nil
	}
	lacking := *w.Lacking
	lacking.Seen = now
	if since, ok := r.since.Get(w.UID); ok {
		lacking.Seen, _ = since.(time.Time)
	}
	r.since.Add(w.UID, lacking.Seen, lackingMemory)
	return &lacking
}

func (c *Cluster) refusalsOf(ctx context.Context, w *workload.Workload) ([]workload.Refusal, error) {
	if known, ok := c.refusals.known.Get(w.UID); ok {
		said, _ := known.([]workload.Refusal)
		return said, nil
	}
	var list corev1.EventList
	selector := fields.SelectorFromSet(fields.Set{
		"involvedObject.uid": string(w.UID), "reason": reasonFailedCreate, "type": corev1.EventTypeWarning,
	})
	if err := c.Live.List(ctx, &list, client.InNamespace(w.Namespace), client.MatchingFieldsSelector{Selector: selector}); err != nil {
		c.refusals.known.Add(w.UID, []workload.Refusal(nil), refusalMemory)
		return nil, fmt.Errorf("list the events of %s %s/%s: %w", w.Kind(), w.Namespace, w.Name, err)
	}
	var said []workload.Refusal
	for i := range list.Items {
		e := &list.Items[i]
		r := workload.Refusal{First: e.FirstTimestamp.Time, Last: eventTime(e), Message: e.Message}
		if r.First.IsZero() {
			r.First = e.CreationTimestamp.Time
		}
		said = append(said, r)
	}
	c.refusals.known.Add(w.UID, said, refusalMemory)
	return said, nil
}

// eventTime is when an event was last seen.
func eventTime(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	default:
		return e.CreationTimestamp.Time
	}
}
