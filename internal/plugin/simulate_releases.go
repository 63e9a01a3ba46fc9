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
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// template is a pod template of a workload that the cluster still has, in a ReplicaSet or ControllerRevision.
type template struct {
	name, version string
	created       time.Time
	// numbers of its releases, ascending. A ControllerRevision knows only the last one.
	numbers []int64
}

// occurrence is a release of a template.
type occurrence struct {
	template
	number int64
	// began is zero if unknown; the release was after a time, and before another one unless that is zero.
	began, after, before time.Time
	// again: an earlier release had the template.
	again bool
	// status in the operator's records, and its time; empty without a record.
	status  v1alpha1.ChangeWorkloadStatusType
	updated time.Time
}

// from returns the earliest start.
func (o *occurrence) from() time.Time {
	if o.began.IsZero() {
		return o.after
	}
	return o.began
}

// recordedSoon is the most that the record of a release begins later than its template is created.
const recordedSoon = 5 * time.Minute

// occurrencesOf returns the releases of a workload, the oldest first.
func occurrencesOf(templates []template, records []v1alpha1.PreviousRelease) (all []occurrence) {
	slices.SortFunc(templates, func(a, b template) int { return a.created.Compare(b.created) })
	for i := range templates {
		t := &templates[i]
		again := t.numbers
		// The first release has the first number, unless a later template has a smaller one: then that number is of a release again.
		later := func(n int64) (after time.Time) {
			for _, other := range templates[i+1:] {
				if len(other.numbers) > 0 && other.numbers[0] < n {
					after = other.created
				}
			}
			return after
		}
		first := occurrence{template: *t, began: t.created}
		if len(again) > 0 && later(again[0]).IsZero() {
			first.number, again = again[0], again[1:]
		}
		all = append(all, first)
		for _, n := range again {
			o := occurrence{template: *t, number: n, after: later(n), again: true}
			if o.after.IsZero() {
				o.after = t.created
			}
			if at := slices.IndexFunc(templates, func(t template) bool { return t.created.After(o.after) }); at >= 0 {
				o.before = templates[at].created
			}
			all = append(all, o)
		}
	}
	for i := len(records) - 1; i >= 0; i-- {
		r := &records[i]
		start := time.Unix(r.StartTimeUnix, 0)
		at := slices.IndexFunc(all, func(o occurrence) bool {
			if o.version != r.Version {
				return false
			}
			if o.began.IsZero() {
				return start.After(o.after) && (o.before.IsZero() || start.Before(o.before))
			}
			return start.Sub(o.began).Abs() < recordedSoon
		})
		if at < 0 {
			known := slices.IndexFunc(templates, func(t template) bool { return t.version == r.Version })
			o := occurrence{template: template{version: r.Version}}
			if known >= 0 {
				o.template, o.again = templates[known], start.After(templates[known].created)
			}
			all, at = append(all, o), len(all)
		}
		all[at].status, all[at].updated = r.Status, time.Unix(r.UpdateTimeUnix, 0)
		if all[at].began.IsZero() {
			all[at].began = start
		}
	}
	slices.SortStableFunc(all, func(a, b occurrence) int { return cmp.Or(a.from().Compare(b.from()), cmp.Compare(a.number, b.number)) })
	for i := 1; i < len(all); i++ {
		of, next := &all[i-1], &all[i]
		if of.status == v1alpha1.ChangeWorkloadRollback && next.again && next.began.IsZero() && of.updated.After(next.after) {
			next.began = of.updated // the rollback
		}
	}
	return all
}

// past is a release with its workload and its neighbours.
type past struct {
	occurrence
	workload *workload.Workload
	// previous and next are nil if there is none, or none is known.
	previous, next *occurrence
	// problem is why its start is not known; empty if it is, or no cause is known.
	problem string
}

// pastReleases reads the releases of the workloads of a namespace that are chosen.
func pastReleases(
	ctx context.Context, r *reader, namespace string, chosen func(labels map[string]string) bool,
) (all [][]past, err error) {
	records := map[types.UID][]v1alpha1.ChangeWorkload{}
	var changes v1alpha1.ChangeWorkloadList
	// The operator may not be installed, or the user may not read its records: releases are known without them.
	if err := r.List(ctx, &changes, client.InNamespace(namespace)); err == nil {
		newestFirst(changes.Items)
		for i := range changes.Items {
			if owner := metav1.GetControllerOf(&changes.Items[i]); owner != nil {
				records[owner.UID] = append(records[owner.UID], changes.Items[i])
			}
		}
	}
	for _, kind := range workload.Defended().Kinds() {
		gvk := kind.GroupVersionKind()
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err := r.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("list %s: %w", kind.Resource(), err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			if !chosen(o.GetLabels()) {
				continue
			}
			templates, err := templatesOf(ctx, r, o)
			if err != nil {
				return nil, err
			}
			minReady, _, _ := unstructured.NestedInt64(o.Object, "spec", "minReadySeconds")
			w := &workload.Workload{
				GVK: gvk, Namespace: namespace, Name: o.GetName(), UID: o.GetUID(), Labels: o.GetLabels(),
				MinReady: time.Duration(minReady) * time.Second,
			}
			var of []past
			occurrences := occurrencesOf(templates, releasesIn(records[o.GetUID()]))
			for j := range occurrences {
				p := past{occurrence: occurrences[j], workload: w}
				if j > 0 {
					p.previous = &occurrences[j-1]
				}
				if j+1 < len(occurrences) {
					p.next = &occurrences[j+1]
				}
				of = append(of, p)
			}
			all = append(all, of)
		}
	}
	return all, nil
}

// templatesOf reads the templates that a workload had.
func templatesOf(ctx context.Context, r *reader, of *unstructured.Unstructured) (all []template, err error) {
	if of.GetKind() == (workload.Deployment{}).GroupVersionKind().Kind {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ReplicaSetList"))
		if err := r.List(ctx, list, client.InNamespace(of.GetNamespace())); err != nil {
			return nil, fmt.Errorf("list replicasets: %w", err)
		}
		for i := range list.Items {
			rs := &list.Items[i]
			content, some, err := unstructured.NestedMap(rs.Object, "spec", "template")
			if !isOwnedBy(rs, of.GetUID()) || !some || err != nil {
				continue
			}
			unstructured.RemoveNestedField(content, "metadata", "labels", appsv1.DefaultDeploymentUniqueLabelKey)
			all = append(all, template{rs.GetName(), workload.Version(content), rs.GetCreationTimestamp().Time, numbersOf(rs.GetAnnotations())})
		}
		return all, nil
	}
	var list appsv1.ControllerRevisionList
	if err := r.List(ctx, &list, client.InNamespace(of.GetNamespace())); err != nil {
		return nil, fmt.Errorf("list controllerrevisions: %w", err)
	}
	for i := range list.Items {
		c := &list.Items[i]
		if !isOwnedBy(c, of.GetUID()) || workload.Remembers(c) != "" {
			continue
		}
		if _, version, err := workload.TemplateOf(c); err == nil {
			all = append(all, template{c.Name, version, c.CreationTimestamp.Time, []int64{c.Revision}})
		}
	}
	return all, nil
}

// numbersOf returns the numbers of the releases of a ReplicaSet.
func numbersOf(annotations map[string]string) (numbers []int64) {
	text := annotations["deployment.kubernetes.io/revision-history"] + "," + annotations["deployment.kubernetes.io/revision"]
	for part := range strings.SplitSeq(text, ",") {
		if n, err := strconv.ParseInt(part, 10, 64); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}
