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
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
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
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// snapshot is what one look at the cluster found of a workload. What is printed, and what a command may do, is decided from it
// alone. Each part of what is printed asks it in a file of its own.
type snapshot struct {
	target
	now time.Time
	// stored is the workload as the API server has it, with the counts of its pods, its first container, and when a user last wrote it.
	stored    *unstructured.Unstructured
	counts    PodCounts
	container string
	written   time.Time
	// workload is what the decisions of the operator read of it. Where whole is false, its pods and revisions are not read.
	workload *workload.Workload
	whole    bool
	// namespace is nil where the user may not read it.
	namespace *metav1.PartialObjectMetadata
	// operator is the namespace of the operator.
	operator string
	// defendedSince is from when on admission should have seen each release; zero where it is not known.
	defendedSince time.Time
	// settings in force for the workload; nil where they are not known.
	settings *settings.InForce
	// changes are its records, the newest release first, with the batches of the attempts that they are at.
	changes []v1alpha1.ChangeWorkload
	batches map[types.UID][]*v1alpha1.ChangePod
	// history are the versions that the workload can be rolled back to, the newest first.
	history []remembered
	// pods are those of the current revision; of many workloads, those of any revision in CrashLoopBackOff.
	pods     []workload.Pod
	revision string
	old      []oldRevision
	// missing are sentences about what the user may not read.
	missing []string
}

// oldRevision is an earlier revision with its pods.
type oldRevision struct {
	name, version string
	pods          []workload.Pod
}

// current returns the record of the release that the workload is at; nil for none.
func (s *snapshot) current() *v1alpha1.ChangeWorkload {
	return cluster.CurrentRelease(s.workload, s.changes)
}

// condition returns a condition of the current release.
func (s *snapshot) condition(kind string) *metav1.Condition {
	c := s.current()
	if c == nil {
		return nil
	}
	return meta.FindStatusCondition(c.Status.Conditions, kind)
}

func (s *snapshot) isTrue(condition string) bool {
	said := s.condition(condition)
	return said != nil && said.Status == metav1.ConditionTrue
}

// Defense is how far a workload is defended.
type Defense string

// Values of Defense.
const (
	// DefenseFull: its releases are verified, and a failing one is blocked or rolled back.
	DefenseFull Defense = "Defended"
	// DefenseObserved: its releases are verified and reported.
	DefenseObserved Defense = "Observed"
	// DefenseOptedOut: its label takes it out of the defense.
	DefenseOptedOut Defense = "OptedOut"
	// DefenseNotEnrolled: its namespace is not enrolled.
	DefenseNotEnrolled Defense = "NotEnrolled"
	// DefenseUnknown: the user may not read whether its namespace is enrolled.
	DefenseUnknown Defense = "Unknown"
)

// defense returns how far a workload is defended, and why not in full.
func (s *snapshot) defense() (Defense, string) {
	w, ns := s.workload, s.namespace
	switch {
	case ns != nil && slices.Contains(workload.SystemNamespaces(), ns.Name):
		return DefenseNotEnrolled, fmt.Sprintf("the namespace %s is one of the cluster itself, which is never enrolled", ns.Name)
	case ns != nil && (ns.Name == s.operator || !workload.NamespaceEnrolled(ns.Name, ns.Labels)):
		return DefenseNotEnrolled, fmt.Sprintf("the namespace %s is not enrolled", ns.Name)
	case ns != nil && ns.DeletionTimestamp != nil:
		return DefenseNotEnrolled, fmt.Sprintf("the namespace %s is being deleted", ns.Name)
	case workload.OptedOut(w.Labels):
		message := fmt.Sprintf("opted out of the defense (label %s=%s)", v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled)
		if o, ok := defense.ParseOptOut(w.Annotations[v1alpha1.OptedOutAnnotation]); ok {
			message += "; " + o.Describe() + " at " + o.At.UTC().Format(time.RFC3339)
		}
		return DefenseOptedOut, message
	}
	var byOwner settings.InForce
	byOwner.ObserveOwned(w.ObservingOwner())
	said := s.condition(v1alpha1.ConditionDefended)
	switch {
	case byOwner.Observe && (s.settings == nil || s.settings.ObservedBy == byOwner.ObservedBy):
		return DefenseObserved, "in observe mode, because the " + w.ObservingOwner() + " owns it"
	case s.settings != nil && s.settings.Observe:
		return DefenseObserved, "in observe mode, because of " + s.settings.ObservedBy
	case s.settings == nil && said != nil && said.Status == metav1.ConditionFalse && said.Reason == v1alpha1.ReasonObserving:
		return DefenseObserved, "in observe mode, as its release says"
	case ns == nil:
		return DefenseUnknown, "whether its namespace is enrolled is not known"
	default:
		return DefenseFull, ""
	}
}

// notDefended returns why a workload is not defended; empty where it is, as far as the user may know.
func (s *snapshot) notDefended() string {
	if level, why := s.defense(); level == DefenseOptedOut || level == DefenseNotEnrolled {
		return why
	}
	return ""
}

// observeStored returns what the decisions of the operator read of a workload itself.
func observeStored(kind workload.Kind, stored *unstructured.Unstructured) (*workload.Workload, error) {
	template, err := workload.Template(kind, stored)
	if err != nil {
		return nil, err
	}
	w := &workload.Workload{
		GVK: kind.GroupVersionKind(), Namespace: stored.GetNamespace(), Name: stored.GetName(), UID: stored.GetUID(),
		ResourceVersion: stored.GetResourceVersion(), Labels: stored.GetLabels(), Annotations: stored.GetAnnotations(),
		Deleting: stored.GetDeletionTimestamp() != nil, Owner: workload.OwnerOf(stored),
		Version: workload.Version(template), Images: workload.Images(template), Hold: workload.ParseHold(stored.GetAnnotations()[v1alpha1.HeldAnnotation]),
	}
	w.Stopping, err = kind.Stopping(stored)
	w.Words = kind.Words(w)
	return w, err
}

// take observes the workload as it was read.
func (s *snapshot) take(stored *unstructured.Unstructured) (err error) {
	s.workload, err = observeStored(s.kind, stored)
	s.stored, s.counts, s.container, s.written = stored, countsOf(stored), containerOf(s.kind, stored), writtenAt(stored)
	return err
}

// read takes a snapshot of a workload itself and of its namespace.
func (c *connection) read(ctx context.Context, r client.Reader, t target) (*snapshot, error) {
	stored, err := t.read(ctx, r)
	if err != nil {
		return nil, err
	}
	s := &snapshot{target: t, now: c.Now()}
	if err := s.take(stored); err != nil {
		return nil, err
	}
	return s, s.seeNamespace(ctx, r)
}

func (s *snapshot) seeNamespace(ctx context.Context, r client.Reader) error {
	ns := cluster.NamespaceObject()
	err := r.Get(ctx, types.NamespacedName{Name: s.workload.Namespace}, ns)
	switch {
	case apierrors.IsForbidden(err):
		s.missing = append(s.missing, "whether its namespace is enrolled is not told: "+reasonOf(err))
		return nil
	case err != nil:
		return fmt.Errorf("get namespace %s: %w", s.workload.Namespace, err)
	}
	s.namespace, s.defendedSince = ns, workload.EnrolledSince(ns.ManagedFields)
	return nil
}

// look takes a snapshot of a workload with all that belongs to it, as far as the user may read it.
func (c *connection) look(ctx context.Context, live client.Reader, operator string, t target) (*snapshot, error) {
	r := newReader(live)
	s, err := c.read(ctx, r, t)
	if err != nil {
		return nil, err
	}
	if r.narrow, err = narrowTo(s); err != nil {
		return nil, err
	}
	w, err := t.kind.Get(ctx, r, t.key)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s in %s: %w", t, t.key.Namespace, err)
	case w == nil: // it was there a moment ago
		return nil, t.gone()
	}
	s.workload, s.whole, s.operator = w, true, operator
	view := cluster.View{Cached: r, Live: r, Kinds: workload.Defended(), Operator: operator}
	if s.changes, err = view.Releases(ctx, t.key.Namespace, w.UID); err != nil {
		return nil, err
	}
	newestFirst(s.changes)
	for _, step := range []struct {
		what string
		see  func(context.Context, cluster.View) error
	}{
		{"batches, and so the checks of pods, are", s.seeBatches},
		{"the versions that it can be rolled back to are", s.seeHistory},
		{"its pods are", s.seePods},
		{"the settings in force are", s.seeSettings},
	} {
		switch err := step.see(ctx, view); {
		case apierrors.IsForbidden(err):
			s.missing = append(s.missing, fmt.Sprintf("%s not told: %s", step.what, reasonOf(err)))
		case err != nil:
			return nil, err
		}
	}
	return s, nil
}

// narrowTo selects what belongs to a workload, by labels. What of it is another workload's is sorted out by UID.
func narrowTo(s *snapshot) (func(string, schema.GroupKind) labels.Selector, error) {
	pods := labels.Everything()
	if content, ok, err := unstructured.NestedMap(s.stored.Object, "spec", "selector"); err == nil && ok {
		var selector metav1.LabelSelector
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &selector); err != nil {
			return nil, fmt.Errorf("read spec.selector of %s: %w", s.target, err)
		}
		if pods, err = metav1.LabelSelectorAsSelector(&selector); err != nil {
			return nil, fmt.Errorf("read spec.selector of %s: %w", s.target, err)
		}
	}
	own := labels.SelectorFromSet(labels.Set(recordLabels(s.target)))
	return func(index string, kind schema.GroupKind) labels.Selector {
		// The revisions of its own controller have the labels of its pods.
		if kind.Group == v1alpha1.GroupVersion.Group || kind.Kind == "ControllerRevision" && index == workload.IndexByOwner {
			return own
		}
		return pods
	}, nil
}

func (s *snapshot) seeBatches(ctx context.Context, view cluster.View) error {
	s.batches = map[types.UID][]*v1alpha1.ChangePod{}
	for i := range s.changes {
		c := &s.changes[i]
		all, err := view.Batches(ctx, c)
		if err != nil {
			return err
		}
		s.batches[c.UID] = record.CountingBatches(c, all)
		slices.SortFunc(s.batches[c.UID], func(a, b *v1alpha1.ChangePod) int {
			return cmp.Compare(record.BatchNumber(a), record.BatchNumber(b))
		})
	}
	return nil
}

func (s *snapshot) seeHistory(ctx context.Context, view cluster.View) error {
	var list appsv1.ControllerRevisionList
	if err := view.Cached.List(ctx, &list, cluster.OwnedBy(s.workload.Namespace, s.workload.UID)...); err != nil {
		return fmt.Errorf("list controllerrevisions: %w", err)
	}
	s.history = rememberedBy(list.Items)
	return nil
}

// seePods reads the pods of the current revision, and those of the earlier ones.
func (s *snapshot) seePods(ctx context.Context, view cluster.View) (err error) {
	if s.pods, err = view.Pods(ctx, s.workload); err != nil {
		return err
	}
	s.revision = s.workload.Revision
	if s.workload.GVK.Kind == (workload.Deployment{}).GroupVersionKind().Kind {
		var sets appsv1.ReplicaSetList
		if err := view.Cached.List(ctx, &sets, cluster.OwnedBy(s.workload.Namespace, s.workload.UID)...); err != nil {
			return fmt.Errorf("list replicasets: %w", err)
		}
		for i := range sets.Items {
			if string(sets.Items[i].UID) == s.workload.Revision {
				s.revision = sets.Items[i].Name
			}
		}
	}
	for i := range s.workload.OldRevisions {
		of, at := &s.workload.OldRevisions[i], *s.workload
		at.Revision = of.Revision
		pods, err := view.Pods(ctx, &at)
		if err != nil {
			return err
		}
		s.old = append(s.old, oldRevision{of.Name, of.Version, pods})
	}
	return nil
}

func (s *snapshot) seeSettings(ctx context.Context, view cluster.View) error {
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

// writtenAt is when a user last wrote more of an object than its status.
func writtenAt(stored *unstructured.Unstructured) (at time.Time) {
	for _, entry := range stored.GetManagedFields() {
		if entry.Subresource == "" && entry.Time != nil && entry.Time.After(at) {
			at = entry.Time.Time
		}
	}
	return at
}

// PodCounts counts the pods of a workload.
type PodCounts struct {
	Desired   int64 `json:"desired"`
	Updated   int64 `json:"updated"`
	Ready     int64 `json:"ready"`
	Available int64 `json:"available"`
}

// countsOf reads the counts of pods off a workload of any kind.
func countsOf(stored *unstructured.Unstructured) PodCounts {
	count := func(paths ...string) int64 {
		for _, path := range paths {
			if n, ok, err := unstructured.NestedInt64(stored.Object, strings.Split(path, ".")...); ok && err == nil {
				return n
			}
		}
		return 0
	}
	return PodCounts{
		Desired: count("spec.replicas", "status.desiredNumberScheduled"), Updated: count("status.updatedReplicas", "status.updatedNumberScheduled"),
		Ready: count("status.readyReplicas", "status.numberReady"), Available: count("status.availableReplicas", "status.numberAvailable"),
	}
}

// containerOf returns the name of the first container of a workload.
func containerOf(kind workload.Kind, stored *unstructured.Unstructured) string {
	containers, _, _ := unstructured.NestedSlice(stored.Object, slices.Concat(kind.TemplatePath(), []string{"spec", "containers"})...)
	if len(containers) > 0 {
		if content, ok := containers[0].(map[string]any); ok {
			return fmt.Sprint(content["name"])
		}
	}
	return "CONTAINER"
}

func noSettings(operator string) string {
	return "the settings in force are not told: there are none in the namespace " + operator + ", name the operator's with --operator-namespace"
}
