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

package workload

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/internal/pages"
)

// Places implements Evicter. Revisions may come from the cache: the version of a revision never
// changes, and the version of a revision that is not cached yet is not known.
func (StatefulSet) Places(ctx context.Context, cached, live client.Reader, key types.NamespacedName) (*Workload, *Places, error) {
	from := cached
	if live != nil {
		from = live
	}
	w, s, all, err := getSetAt(ctx, cached, from, key)
	if err != nil || w == nil {
		return nil, nil, err
	}
	pods, err := allPods(ctx, cached, live, w, s.Spec.Selector)
	if err != nil {
		return nil, nil, err
	}
	version := func(mark string) string {
		if i := slices.IndexFunc(all, func(r revision) bool { return r.mark == mark }); i >= 0 {
			return all[i].version
		}
		return ""
	}
	places := &Places{Ordered: s.Spec.PodManagementPolicy != appsv1.ParallelPodManagement, Kept: version(s.Status.CurrentRevision)}
	for i := range pods {
		pod := &pods[i]
		place := Place{
			Pod: ReadPod(pod), ResourceVersion: pod.ResourceVersion,
			Version: version(pod.Labels[appsv1.ControllerRevisionHashLabelKey]), Current: isOfRevision(w, pod),
		}
		place.Index = indexOf(pod.Name, w)
		places.Pods = append(places.Pods, place)
	}
	return w, places, nil
}

// NodePods implements [NodePods].
func (d DaemonSet) NodePods(ctx context.Context, cached, live client.Reader, w *Workload) (places []Place, err error) {
	typed := &appsv1.DaemonSet{}
	if live != nil {
		obj := d.Object().(*unstructured.Unstructured) //nolint:errcheck // always this type
		if err := live.Get(ctx, types.NamespacedName{Namespace: w.Namespace, Name: w.Name}, obj); err != nil {
			return nil, fmt.Errorf("get %s %s/%s: %w", w.Kind(), w.Namespace, w.Name, err)
		}
		var now *Workload
		if now, typed, err = readDaemonSet(obj); err != nil {
			return nil, err
		}
		w.Replicas, w.MayLack, w.Scheduled, w.Misscheduled = now.Replicas, now.MayLack, now.Scheduled, now.Misscheduled
		w.Rollout.Stale = w.Rollout.Stale || now.Rollout.Stale
	}
	pods, err := allPods(ctx, cached, live, w, typed.Spec.Selector)
	for i := range pods {
		places = append(places, Place{Pod: ReadPod(&pods[i]), ResourceVersion: pods[i].ResourceVersion, Current: isOfRevision(w, &pods[i])})
	}
	return places, err
}

// allPods returns all pods that a workload controls. The API server finds them by the selector.
func allPods(ctx context.Context, cached, live client.Reader, w *Workload, of *metav1.LabelSelector) ([]corev1.Pod, error) {
	if live == nil {
		return podsOwned(ctx, cached, w)
	}
	selector, err := metav1.LabelSelectorAsSelector(of)
	if err != nil {
		return nil, fmt.Errorf("read the selector of %s %s/%s: %w", w.Kind(), w.Namespace, w.Name, err)
	}
	kind := NewRegistry(StatefulSet{}, DaemonSet{})
	var pods []corev1.Pod
	err = pages.Each(ctx, func(ctx context.Context, limit int64, from string) (string, error) {
		var page corev1.PodList
		if err := live.List(ctx, &page, client.InNamespace(w.Namespace), client.MatchingLabelsSelector{Selector: selector},
			client.Limit(limit), client.Continue(from)); err != nil {
			return "", err
		}
		for i := range page.Items {
			if ref := metav1.GetControllerOf(&page.Items[i]); ref == nil || ref.UID != w.UID {
				continue
			}
			trimmed, err := kind.TrimPod(&page.Items[i])
			if err != nil {
				return "", err
			}
			if pod, ok := trimmed.(*corev1.Pod); ok {
				pods = append(pods, *pod)
			}
		}
		return page.Continue, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s %s/%s: %w", w.Kind(), w.Namespace, w.Name, err)
	}
	return pods, nil
}
