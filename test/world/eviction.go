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

package world

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// evict evicts a pod as an API server does: a pending pod always, a pod that is not ready if its
// budget is kept without it, and any other pod if its budget allows it.
func (a *api) evict(
	ctx context.Context, c client.Client, subResource string, o, body client.Object, _ ...client.SubResourceCreateOption,
) error {
	eviction, ok := body.(*policyv1.Eviction)
	if !ok || subResource != "eviction" {
		return fmt.Errorf("the subresource %s of %T is not supported", subResource, o)
	}
	stored, err := a.stored(o)
	if err != nil {
		return err
	}
	pod, ok := stored.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("a %T cannot be evicted", o)
	}
	if pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "" {
		for _, budget := range list[*policyv1.PodDisruptionBudget](a, "PodDisruptionBudget", pod.Namespace) {
			if err := a.keepsTo(budget, pod); err != nil {
				return err
			}
		}
	}
	return a.remove(ctx, pod, eviction.DeleteOptions.Preconditions, request{"create", subResource, whole(eviction)})
}

// keepsTo returns why a budget refuses the eviction of a pod. The budget is for all pods of the
// pod's controller.
func (a *api) keepsTo(budget *policyv1.PodDisruptionBudget, pod *corev1.Pod) error {
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	must(err)
	if !selector.Matches(labels.Set(pod.Labels)) {
		return nil
	}
	healthy, all := int32(0), int32(0)
	owner := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, UID: metav1.GetControllerOf(pod).UID}}
	for _, other := range ownedBy[*corev1.Pod](a, owner) {
		if _, ready := readySince(other); ready {
			healthy++
		}
	}
	for _, o := range a.kinds["StatefulSet"] {
		if o.GetUID() == metav1.GetControllerOf(pod).UID {
			all = *o.(*appsv1.StatefulSet).Spec.Replicas //nolint:errcheck // the kind says so
		}
	}
	for _, o := range a.kinds["DaemonSet"] {
		if o.GetUID() == metav1.GetControllerOf(pod).UID {
			all = daemonNodes
		}
	}
	desired := all
	if m := budget.Spec.MinAvailable; m != nil {
		desired = scaled(m, all, true)
	} else if m := budget.Spec.MaxUnavailable; m != nil {
		desired = all - scaled(m, all, true)
	}
	_, ready := readySince(pod)
	if healthy > desired || !ready && healthy >= desired && desired > 0 {
		return nil
	}
	refused := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	refused.ErrStatus.Details.Causes = append(refused.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    policyv1.DisruptionBudgetCause,
		Message: fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", budget.Name, desired, healthy),
	})
	return refused
}
