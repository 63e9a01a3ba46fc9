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
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// sight is what was observed of one workload. What is told of it, and what may be done,
// is decided from it alone, and from the time.
type sight struct {
	// workload is observed in full, or, of many at once, by its metadata alone: whole
	// says which.
	workload *defense.Workload
	whole    bool
	counts   PodCounts
	// containers of its pod template.
	containers []string
	// written is when its spec or metadata were last written, as its managed fields say.
	written time.Time
	// enrolled: its namespace is defended; known says whether that is known.
	enrolled, enrolledKnown bool
	// mistyped is the label of the namespace that was meant to enrol it; empty for none.
	mistyped string
	// defendedSince is since when it is, or since when the operator is there, or knows
	// its kind, whichever is later; zero where that is not known.
	defendedSince time.Time
	// changes are its records, the newest release first.
	changes []v1alpha1.ChangeWorkload
	// batches of the attempts that the records are at.
	batches map[types.UID][]*v1alpha1.ChangePod
	history []remembered
	pods    []defense.Pod
	// down are the pods that may be down; of many workloads, those in CrashLoopBackOff,
	// where unready says that there may be some.
	down    []downPod
	unready bool
	// settings in force for it; nil where they are not known.
	settings *settings.InForce
	// missing are things that the user must not read, and what is not told because of
	// that.
	missing []string
}

// remembered is a version that the workload can be rolled back to.
type remembered struct {
	defense.Revision
	images []string
	since  time.Time
	// unnumbered: which release succeeded with it is not known.
	unnumbered bool
}

// current is the record of the release that the workload is at; nil when there is none.
func (s *sight) current() *v1alpha1.ChangeWorkload {
	return cluster.CurrentRelease(s.workload, s.changes)
}

// optedOut says that the workload is out of the defense by its label.
func (s *sight) optedOut() bool { return defense.OptedOut(s.workload.Labels) }

// defended says that the workload is defended, as far as is known.
func (s *sight) defended() bool {
	return (s.enrolled || !s.enrolledKnown) && !s.optedOut()
}

// observedByOwner says that the workload is in observe mode because another object owns it,
// whatever the settings say.
func (s *sight) observedByOwner() bool {
	var because settings.InForce
	because.ObserveOwned(s.workload.ObservingOwner())
	return because.Observe && (s.settings == nil || s.settings.ObservedBy == because.ObservedBy)
}

// eyes look at the cluster.
type eyes struct {
	kinds *workload.Registry
	// operator is the namespace of the operator.
	operator string
	now      func() time.Time
}

// look observes one workload.
func (e *eyes) look(ctx context.Context, r *reader, t target) (*sight, error) {
	stored, err := t.read(ctx, r)
	if err != nil {
		return nil, err
	}
	selector, err := selectorOf(stored)
	if err != nil {
		return nil, err
	}
	s := &sight{whole: true, counts: countsOf(stored), containers: containersOf(t.kind, stored), written: writtenAt(stored)}
	own := ownSelector(stored, t.kind)
	r.narrow = func(index string, gk schema.GroupKind) labels.Selector {
		// The revisions of its own controller have the labels of its pods.
		if gk.Group == v1alpha1.GroupVersion.Group || gk.Kind == "ControllerRevision" && index == workload.IndexByOwner {
			return own
		}
		return selector
	}
	if s.workload, err = t.kind.Get(ctx, r, t.key); err != nil {
		return nil, fmt.Errorf("read %s in %s: %w", t, t.key.Namespace, err)
	}
	if s.workload == nil { // it was there a moment ago
		return nil, t.gone()
	}
	view := cluster.View{Cached: r, Live: r, Kinds: e.kinds, Operator: e.operator}
	if s.changes, err = view.Releases(ctx, t.key.Namespace, s.workload.UID); err != nil {
		return nil, err
	}
	newestFirst(s.changes)
	for _, step := range []struct {
		what string
		see  func(context.Context, cluster.View) error
	}{
		{"batches, and so the checks of pods, are", s.seeBatches},
		{"whether its namespace is enrolled is", s.seeNamespace},
		{"the versions that it can be rolled back to are", s.seeHistory},
		{"its pods are", s.seePods},
		{"pods of earlier versions are", s.seeOldPods},
		{"the settings in force are", s.seeSettings},
	} {
		err := step.see(ctx, view)
		switch {
		case apierrors.IsForbidden(err):
			s.missing = append(s.missing, fmt.Sprintf("%s not told: %s", step.what, reasonOf(err)))
		case err != nil:
			return nil, err
		}
	}
	return s, nil
}

// reasonOf is what an API server says, without what the operator's code adds.
func reasonOf(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Message
	}
	return err.Error()
}

// newestFirst sorts records by the number of their releases.
func newestFirst(changes []v1alpha1.ChangeWorkload) {
	slices.SortFunc(changes, func(a, b v1alpha1.ChangeWorkload) int {
		return cmp.Or(cmp.Compare(b.Spec.Release, a.Spec.Release), cmp.Compare(b.Spec.CreateTimeUnix, a.Spec.CreateTimeUnix), cmp.Compare(a.Name, b.Name))
	})
}

// selectorOf selects the pods of a workload, and what is between.
func selectorOf(stored *unstructured.Unstructured) (labels.Selector, error) {
	content, ok, err := unstructured.NestedMap(stored.Object, "spec", "selector")
	if err != nil || !ok {
		return labels.Everything(), nil //nolint:nilerr // more is read, and sorted out by owner
	}
	var selector metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &selector); err != nil {
		return nil, fmt.Errorf("read spec.selector of %s: %w", stored.GetName(), err)
	}
	return metav1.LabelSelectorAsSelector(&selector)
}

// ownSelector selects the operator's objects about a workload.
func ownSelector(stored *unstructured.Unstructured, kind workload.Kind) labels.Selector {
	own := cluster.OwnLabels(&defense.Workload{GVK: kind.GroupVersionKind(), Name: stored.GetName()}, "")
	delete(own, v1alpha1.VersionLabel)
	// Objects of earlier builds have this one only.
	if name, ok := own[v1alpha1.DeploymentNameLabel]; ok {
		own = map[string]string{v1alpha1.DeploymentNameLabel: name}
	}
	return labels.SelectorFromSet(own)
}

func (s *sight) seeBatches(ctx context.Context, view cluster.View) error {
	s.batches = map[types.UID][]*v1alpha1.ChangePod{}
	for i := range s.changes {
		c := &s.changes[i]
		all, err := view.Batches(ctx, c)
		if err != nil {
			return err
		}
		batches := defense.CountingBatches(c, all)
		slices.SortFunc(batches, func(a, b *v1alpha1.ChangePod) int {
			return cmp.Compare(defense.BatchNumber(a), defense.BatchNumber(b))
		})
		s.batches[c.UID] = batches
	}
	return nil
}

func (s *sight) seeNamespace(ctx context.Context, view cluster.View) error {
	ns, err := view.Namespace(ctx, s.workload.Namespace)
	if err != nil {
		return err
	}
	s.enrolled, s.enrolledKnown = ns.Enrolled, true
	if ns.Meta != nil {
		s.defendedSince = defense.EnrolledSince(ns.Meta.ManagedFields)
		s.mistyped = defense.MistypedEnrolment(ns.Meta.Labels)
	}
	return nil
}

func (s *sight) seeHistory(ctx context.Context, view cluster.View) error {
	var list appsv1.ControllerRevisionList
	if err := view.Cached.List(ctx, &list, client.InNamespace(s.workload.Namespace),
		client.MatchingFields{workload.IndexByOwner: string(s.workload.UID)}); err != nil {
		return fmt.Errorf("list controllerrevisions: %w", err)
	}
	s.history = rememberedBy(list.Items)
	return nil
}

// rememberedBy are the versions that revisions remember, the newest first.
func rememberedBy(revisions []appsv1.ControllerRevision) []remembered {
	var history []remembered
	for _, revision := range workload.History(revisions) {
		r := remembered{Revision: revision}
		i := slices.IndexFunc(revisions, func(c appsv1.ControllerRevision) bool { return c.UID == revision.UID && c.Name == revision.Name })
		r.since = revisions[i].CreationTimestamp.Time
		if template, _, err := workload.TemplateOf(&revisions[i]); err == nil {
			r.images = workload.Images(template)
		}
		history = append(history, r)
	}
	slices.SortFunc(history, func(a, b remembered) int {
		return cmp.Or(cmp.Compare(b.Release, a.Release), cmp.Compare(a.Name, b.Name))
	})
	return history
}

func (s *sight) seePods(ctx context.Context, view cluster.View) (err error) {
	s.pods, err = view.Pods(ctx, s.workload)
	if err != nil || s.workload.Revision != "" {
		return err
	}
	// So that who watches has them from the start.
	return view.Cached.List(ctx, &corev1.PodList{}, client.InNamespace(s.workload.Namespace), client.MatchingFields{workload.IndexByOwner: "none"})
}

func (s *sight) seeSettings(ctx context.Context, view cluster.View) error {
	operator, err := view.Settings(ctx, view.Operator)
	if err != nil {
		return err
	}
	if len(operator) == 0 {
		s.missing = append(s.missing, noSettings(view.Operator))
		return nil
	}
	for i := range operator {
		if o := &operator[i]; o.Name == settings.NameBlocking {
			s.defendedSince = defense.DefendedSince(s.defendedSince, o, s.workload.GVK)
		}
	}
	inForce, err := view.InForceOf(ctx, s.workload, s.current())
	if err != nil {
		return err
	}
	s.settings = &inForce
	return nil
}

// countsOf reads the counts of pods off a workload of any kind.
func countsOf(stored *unstructured.Unstructured) PodCounts {
	count := func(paths ...[]string) int64 {
		for _, path := range paths {
			if n, ok, err := unstructured.NestedInt64(stored.Object, path...); ok && err == nil {
				return n
			}
		}
		return 0
	}
	c := PodCounts{
		Updated:   count([]string{"status", "updatedReplicas"}, []string{"status", "updatedNumberScheduled"}),
		Ready:     count([]string{"status", "readyReplicas"}, []string{"status", "numberReady"}),
		Available: count([]string{"status", "availableReplicas"}, []string{"status", "numberAvailable"}),
		Desired:   count([]string{"spec", "replicas"}, []string{"status", "desiredNumberScheduled"}),
	}
	return c
}

// writtenAt is when somebody last wrote more of an object than its status.
func writtenAt(o metav1.Object) (at time.Time) {
	for _, entry := range o.GetManagedFields() {
		if entry.Subresource == "" && entry.Time != nil && entry.Time.After(at) {
			at = entry.Time.Time
		}
	}
	return at
}

// containersOf are the names of the containers of a workload.
func containersOf(kind workload.Kind, stored *unstructured.Unstructured) (names []string) {
	path := slices.Concat(kind.TemplatePath(), []string{"spec", "containers"})
	containers, _, _ := unstructured.NestedSlice(stored.Object, path...)
	for _, c := range containers {
		content, _ := c.(map[string]any)
		if name, ok := content["name"].(string); ok {
			names = append(names, name)
		}
	}
	return names
}

// observedByMetadata is a workload as its metadata has it.
func observedByMetadata(kind workload.Kind, m metav1.Object) *defense.Workload {
	w := &defense.Workload{
		GVK: kind.GroupVersionKind(), Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUID(),
		ResourceVersion: m.GetResourceVersion(), Labels: m.GetLabels(), Annotations: maps.Clone(m.GetAnnotations()),
		Deleting: m.GetDeletionTimestamp() != nil, Owner: defense.OwnerOf(m),
	}
	// The annotation goes when somebody resumes it.
	w.Paused = w.Annotations[v1alpha1.HaltedAnnotation] != ""
	w.Words = kind.Words(w)
	w.Hold = defense.ParseHold(w.Annotations[v1alpha1.HeldAnnotation])
	return w
}
