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

// snapshot is a workload with all that was read of it at one time. It alone decides what is printed, and what a command may do.
type snapshot struct {
	target
	now time.Time
	// stored is the workload as the API server has it, with the counts of its pods, its first container, and when a user last wrote it.
	stored    *unstructured.Unstructured
	counts    PodCounts
	container string
	written   time.Time
	// workload has the fields that the operator decides by. If whole is false, its pods and revisions are not read.
	workload *workload.Workload
	whole    bool
	// namespace is nil if the user may not read it.
	namespace *metav1.PartialObjectMetadata
	// operator is the namespace of the operator.
	operator string
	// defendedSince is the time since which admission should see each release; zero if unknown.
	defendedSince time.Time
	// settings in force for the workload; nil if unknown.
	settings *settings.InForce
	// changes are its records, the newest release first, with the batches of their current attempts.
	changes []v1alpha1.ChangeWorkload
	batches map[types.UID][]*v1alpha1.ChangePod
	// history are the versions that the workload can be rolled back to, the newest first.
	history []remembered
	// pods of the current revision; in a census, pods of any revision in CrashLoopBackOff.
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
	// DefenseOptedOut: its label opts it out.
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
	case !enrolledBy(s.kind, w.Labels) && !workload.OptedOut(w.Labels):
		return DefenseNotEnrolled, fmt.Sprintf("it has no label %s=%s, which its kind requires", v1alpha1.DefenseLabel, v1alpha1.DefenseEnabled)
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

// notDefended returns why a workload is not defended; empty if it is, or if the user may not know.
func (s *snapshot) notDefended() string {
	if level, why := s.defense(); level == DefenseOptedOut || level == DefenseNotEnrolled {
		return why
	}
	return ""
}

// readStored returns the fields of a workload that the operator decides by.
func readStored(kind workload.Kind, stored *unstructured.Unstructured) (*workload.Workload, error) {
	template, err := workload.Template(kind, stored)
	if err != nil {
		return nil, err
	}
	version, err := kind.VersionOf(stored)
	if err != nil {
		return nil, err
	}
	w := &workload.Workload{
		GVK: kind.GroupVersionKind(), Namespace: stored.GetNamespace(), Name: stored.GetName(), UID: stored.GetUID(),
		ResourceVersion: stored.GetResourceVersion(), Labels: stored.GetLabels(), Annotations: stored.GetAnnotations(),
		Deleting: stored.GetDeletionTimestamp() != nil, Owner: workload.OwnerOf(stored),
		Version: version, Object: stored.Object, Images: workload.Images(template),
		Hold: workload.ParseHold(stored.GetAnnotations()[v1alpha1.HeldAnnotation]),
	}
	if d := declarationOf(kind); d != nil {
		w.Rollbacks, w.WithoutPods = d.Spec.Rollback, d.Spec.Pods == nil
	}
	w.Stopping, err = kind.Stopping(stored)
	w.Words = kind.Words(w)
	return w, err
}

// take sets the workload of the snapshot.
func (s *snapshot) take(stored *unstructured.Unstructured) (err error) {
	s.workload, err = readStored(s.kind, stored)
	s.stored, s.counts, s.container, s.written = stored, countsOf(stored), containerOf(s.kind, stored), writtenAt(stored)
	return err
}

// read reads a workload and its namespace.
func (c *connection) read(ctx context.Context, r client.Reader, t target) (*snapshot, error) {
	stored, err := t.read(ctx, r)
	if err != nil {
		return nil, err
	}
	s := &snapshot{target: t, now: c.Now()}
	if err := s.take(stored); err != nil {
		return nil, err
	}
	return s, s.loadNamespace(ctx, r)
}

func (s *snapshot) loadNamespace(ctx context.Context, r client.Reader) error {
	ns := cluster.NamespaceObject()
	err := r.Get(ctx, types.NamespacedName{Name: s.workload.Namespace}, ns)
	switch {
	case apierrors.IsForbidden(err):
		s.missing = append(s.missing, "whether its namespace is enrolled is not known: "+reasonOf(err))
		return nil
	case err != nil:
		return fmt.Errorf("get namespace %s: %w", s.workload.Namespace, err)
	}
	s.namespace, s.defendedSince = ns, workload.EnrolledSince(ns.ManagedFields)
	return nil
}

// load reads a workload with all that belongs to it, as far as the user may read.
func (c *connection) load(ctx context.Context, live client.Reader, operator string, t target) (*snapshot, error) {
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
	view := cluster.View{Cached: r, Live: r, Kinds: c.knownKinds(), Operator: operator}
	if s.changes, err = view.Releases(ctx, t.key.Namespace, w.UID); err != nil {
		return nil, err
	}
	newestFirst(s.changes)
	for _, step := range []struct {
		what string
		load func(context.Context, cluster.View) error
	}{
		{"its batches, with the checks of pods, are", s.loadBatches},
		{"the versions that it can be rolled back to are", s.loadHistory},
		{"its pods are", s.loadPods},
		{"the settings in force are", s.loadSettings},
	} {
		switch err := step.load(ctx, view); {
		case apierrors.IsForbidden(err):
			s.missing = append(s.missing, fmt.Sprintf("%s not known: %s", step.what, reasonOf(err)))
		case err != nil:
			return nil, err
		}
	}
	return s, nil
}

// narrowTo selects the objects of a workload by labels. Objects of other workloads are sorted out by UID.
func narrowTo(s *snapshot) (func(string, schema.GroupKind) labels.Selector, error) {
	pods := labels.Everything()
	// The field spec.selector of a declared kind may mean anything.
	if content, ok, err := unstructured.NestedMap(s.stored.Object, "spec", "selector"); err == nil && ok && declarationOf(s.kind) == nil {
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

func (s *snapshot) loadBatches(ctx context.Context, view cluster.View) error {
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

func (s *snapshot) loadHistory(ctx context.Context, view cluster.View) error {
	var list appsv1.ControllerRevisionList
	if err := view.Cached.List(ctx, &list, cluster.OwnedBy(s.workload.Namespace, s.workload.UID)...); err != nil {
		return fmt.Errorf("list controllerrevisions: %w", err)
	}
	s.history = rememberedBy(list.Items)
	return nil
}

// loadPods reads the pods of the current revision, and of earlier revisions.
func (s *snapshot) loadPods(ctx context.Context, view cluster.View) (err error) {
	if s.pods, err = view.Pods(ctx, s.workload); err != nil {
		return err
	}
	if declarationOf(s.kind) != nil {
		return nil // which revision its other pods have is not known
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

func (s *snapshot) loadSettings(ctx context.Context, view cluster.View) error {
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

// writtenAt returns the time of the last write to an object, except to its status.
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

// countsOf reads the pod counts of a workload of any kind.
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
		Desired:   count("spec.replicas", "status.desiredNumberScheduled"),
		Updated:   count("status.updatedReplicas", "status.updatedNumberScheduled"),
		Ready:     count("status.readyReplicas", "status.numberReady"),
		Available: count("status.availableReplicas", "status.numberAvailable"),
	}
}

// containerOf returns the name of the first container of a workload.
func containerOf(kind workload.Kind, stored *unstructured.Unstructured) string {
	path, _ := kind.TemplatePath()
	containers, _, _ := unstructured.NestedSlice(stored.Object, slices.Concat(path, []string{"spec", "containers"})...)
	if len(containers) > 0 {
		if content, ok := containers[0].(map[string]any); ok {
			return fmt.Sprint(content["name"])
		}
	}
	return "CONTAINER"
}

func noSettings(operator string) string {
	return "the settings in force are not known: the namespace " + operator +
		" has none; name the operator's namespace with --operator-namespace"
}
