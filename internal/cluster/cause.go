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
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// +kubebuilder:rbac:groups="",resources=events,verbs=list

// CauseOf is the last warning about a pod, as its events have it: where a
// volume cannot be mounted, say, the status of the pod does not tell. Empty
// when there is none. It is read when it is reported, and not kept.
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
