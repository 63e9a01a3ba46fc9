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

package declared

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// between returns the kinds of objects between an object and its pods, the object's own first.
func (d *Workloads) between() (kinds []schema.GroupVersionKind) {
	if d.k.Spec.Pods != nil {
		for _, through := range d.k.Spec.Pods.Through {
			kinds = append(kinds, schema.FromAPIVersionAndKind(through.APIVersion, through.Kind))
		}
	}
	return kinds
}

// Secondary implements workload.Kind: the cache has only the metadata of objects between an object and its pods. The
// object owns those of the first kind only.
func (d *Workloads) Secondary() (all []workload.Secondary) {
	for _, gvk := range d.between() {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(gvk)
		all = append(all, workload.Secondary{Object: object, OwnerOf: d.ownerOf})
	}
	return all
}

// ownerOf returns the object of the kind that is the controller of another object.
func (d *Workloads) ownerOf(o metav1.Object) (owner workload.Owner, ok bool) {
	ref := metav1.GetControllerOf(o)
	if ref == nil {
		return workload.Owner{}, false
	}
	owner = workload.Owner{Key: workload.KeyOf(o.GetNamespace(), ref), UID: ref.UID}
	return owner, owner.Key.GroupKind == d.k.GroupKind()
}

// OwnerOfPod implements workload.Kind. Of several objects that select a pod, the first by name is its owner.
func (d *Workloads) OwnerOfPod(ctx context.Context, r client.Reader, pod metav1.Object) (workload.Owner, bool, error) {
	switch p := d.k.Spec.Pods; {
	case p == nil:
		return workload.Owner{}, false, nil
	case p.Find == v1alpha1.FindBySelector:
		return d.selectorOfPod(ctx, r, pod)
	}
	of := pod
	for _, gvk := range slices.Backward(d.between()) {
		ref := metav1.GetControllerOf(of)
		if ref == nil || workload.KeyOf("", ref).GroupKind != gvk.GroupKind() {
			return workload.Owner{}, false, nil
		}
		next := &metav1.PartialObjectMetadata{}
		next.SetGroupVersionKind(gvk)
		err := r.Get(ctx, types.NamespacedName{Namespace: pod.GetNamespace(), Name: ref.Name}, next)
		if err != nil || next.UID != ref.UID {
			return workload.Owner{}, false, client.IgnoreNotFound(err)
		}
		of = next
	}
	owner, ok := d.ownerOf(of)
	return owner, ok, nil
}

func (d *Workloads) selectorOfPod(ctx context.Context, r client.Reader, pod metav1.Object) (owner workload.Owner, ok bool, err error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(d.k.GroupVersion().WithKind(d.k.Kind + "List"))
	if err := r.List(ctx, list, client.InNamespace(pod.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return workload.Owner{}, false, fmt.Errorf("list %s: %w", d.k.Name, err)
	}
	for i := range list.Items {
		u := &list.Items[i]
		selector, err := d.k.Selector(u.Object)
		if err != nil || !selector.Matches(labels.Set(pod.GetLabels())) || ok && owner.Key.Name < u.GetName() {
			continue // Get reports the error
		}
		name := types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}
		owner, ok = workload.Owner{Key: workload.Key{GroupKind: d.k.GroupKind(), NamespacedName: name}, UID: u.GetUID()}, true
	}
	return owner, ok, nil
}

// PodNames implements workload.Kind. The controller of a kind chooses the names; most begin with the name of the object.
func (d *Workloads) PodNames(_ context.Context, _ client.Reader, w *workload.Workload) ([]string, error) {
	if d.k.Spec.Pods == nil {
		return nil, nil
	}
	return []string{regexp.QuoteMeta(w.Name+"-") + "[-a-z0-9.]{1,251}"}, nil
}

// PodLabels implements workload.Kind: the labels that select pods, and those that the expression names.
func (d *Workloads) PodLabels() (keys []string) {
	p := d.k.Spec.Pods
	if p == nil {
		return nil
	}
	keys = slices.Collect(maps.Keys(p.Labels))
	for _, match := range namedLabel.FindAllStringSubmatch(string(p.Current), -1) {
		keys = append(keys, cmp.Or(match[1], match[2], match[3]))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// namedLabel matches the key of a label in an expression.
var namedLabel = regexp.MustCompile(`\blabels\s*\??(?:\[\s*\??\s*(?:'([^']*)'|"([^"]*)")\s*\]|\.\s*\??([A-Za-z_]\w*))`)

// allPods returns the pods of an object, of all its versions. They are read-only.
func (d *Workloads) allPods(ctx context.Context, r client.Reader, w *workload.Workload) ([]corev1.Pod, error) {
	if d.k.Spec.Pods.Find == v1alpha1.FindBySelector {
		selector, err := d.k.Selector(w.Object)
		if err != nil {
			note(w, err)
			return nil, nil
		}
		return podsBy(ctx, r, w, client.MatchingLabelsSelector{Selector: selector})
	}
	owners := []types.UID{w.UID}
	for _, gvk := range d.between() {
		var below []types.UID
		for _, uid := range owners {
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
			if err := r.List(ctx, list, client.InNamespace(w.Namespace), client.MatchingFields{workload.IndexByOwner: string(uid)},
				client.UnsafeDisableDeepCopy); err != nil {
				return nil, fmt.Errorf("list objects of kind %s of %s %s/%s: %w", gvk.Kind, w.Kind(), w.Namespace, w.Name, err)
			}
			for i := range list.Items {
				below = append(below, list.Items[i].UID)
			}
		}
		owners = below
	}
	var all []corev1.Pod
	for _, uid := range owners {
		pods, err := podsBy(ctx, r, w, client.MatchingFields{workload.IndexByOwner: string(uid)})
		if err != nil {
			return nil, err
		}
		all = append(all, pods...)
	}
	return all, nil
}

func podsBy(ctx context.Context, r client.Reader, w *workload.Workload, by client.ListOption) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := r.List(ctx, &list, client.InNamespace(w.Namespace), by, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods of %s %s/%s: %w", w.Kind(), w.Namespace, w.Name, err)
	}
	return list.Items, nil
}

// earlier is the Revision of a workload at all content before the current one.
const earlier = "earlier"

// Pods implements workload.Kind. Pods of a kind with a partition are numbered from the end, the oldest first: those that a
// partition keeps at the previous content have the first numbers.
func (d *Workloads) Pods(ctx context.Context, r client.Reader, w *workload.Workload) (current []workload.Pod, err error) {
	if d.k.Spec.Pods == nil {
		return nil, nil
	}
	all, err := d.allPods(ctx, r, w)
	if err != nil {
		return nil, err
	}
	var since time.Time
	if d.k.Spec.Pods.InPlace {
		if since, err = d.since(ctx, r, w); err != nil {
			return nil, err
		}
	}
	for i := range all {
		is, err := d.isCurrent(w, &all[i])
		if err != nil || is == (w.Revision == earlier) {
			continue
		}
		pod := workload.ReadPod(&all[i])
		// Once the rollout is complete, its controller left alone the pods that are Ready for longer: they had this content.
		pod.MayChange = !w.Rollout.Complete && pod.Ready && pod.ReadySince.Before(since)
		current = append(current, pod)
	}
	slices.SortFunc(current, func(a, b workload.Pod) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	index := w.Replicas
	for i := range current {
		if index--; current[i].Live() && d.k.partition != nil {
			current[i].Index = max(index, 0)
		}
	}
	return current, nil
}

// IsCurrent implements workload.Kind. A pod is not current if the expression cannot be evaluated: the condition of the
// release reports that.
func (d *Workloads) IsCurrent(w *workload.Workload, pod metav1.Object) bool {
	is, err := d.isCurrent(w, pod)
	return is && err == nil
}

func (d *Workloads) isCurrent(w *workload.Workload, pod metav1.Object) (bool, error) {
	if w.Rollout.Stale || d.k.current == nil {
		return false, nil
	}
	content, err := podOf(pod)
	if err != nil {
		return false, err
	}
	return d.k.IsCurrent(w.Object, content, w.Newest)
}

// count sets what the pods of an object show: how many have the current content, how many have another, and how many are missing.
func (d *Workloads) count(w *workload.Workload, pods []corev1.Pod) {
	current, ready, live := int32(0), int32(0), int32(0)
	var newest time.Time
	old := workload.OldRevision{Name: earlier, Revision: earlier} // the labels of pods prove no version
	for i := range pods {
		pod := workload.ReadPod(&pods[i])
		if !pod.Live() {
			continue
		}
		live++
		if pod.Created.After(newest) {
			newest = pod.Created
		}
		is, err := d.isCurrent(w, &pods[i])
		if err != nil {
			note(w, err)
		}
		if pod.Ready {
			ready++
		}
		if is {
			current++
			continue
		}
		old.Replicas++
		switch {
		case pod.Ready:
			old.Ready++
		case pod.Lost:
			old.Lost++
		}
	}
	if w.Rollout.Stale || w.Problem != "" {
		return // no pod counts as current, so nothing is known
	}
	if _, known := d.k.Replicas(w.Object); !known {
		w.Replicas = current
	}
	w.RevisionReplicas = current
	if old.Replicas > 0 {
		w.OldRevisions = []workload.OldRevision{old}
	}
	kept := min(w.Partition, w.Replicas)
	w.Rollout.Partitioned = !w.Rollout.Complete && kept > 0 && current >= w.Replicas-kept && ready >= w.Replicas
	if lacking := w.Replicas - live; lacking > 0 && !w.Paused {
		w.Lacking = &workload.Lacking{Count: lacking, Since: newest}
	}
}

// podOf returns a pod as expressions read it.
func podOf(pod metav1.Object) (map[string]any, error) {
	switch pod := pod.(type) {
	case *corev1.Pod:
		return runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	case *unstructured.Unstructured:
		return pod.Object, nil
	default:
		return map[string]any{"metadata": map[string]any{"name": pod.GetName(), "labels": textsOf(pod.GetLabels())}}, nil
	}
}

func textsOf(labels map[string]string) map[string]any {
	texts := make(map[string]any, len(labels))
	for key, value := range labels {
		texts[key] = value
	}
	return texts
}
