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
	"regexp"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Workloads is the [workload.Kind] of the objects of an accepted ChangeKind.
type Workloads struct{ k *Kind }

var _ workload.Kind = (*Workloads)(nil)

// NewWorkloads returns the kind of the objects of a ChangeKind.
func NewWorkloads(k *Kind) *Workloads { return &Workloads{k} }

// Declaration returns the accepted ChangeKind.
func (d *Workloads) Declaration() *Kind { return d.k }

// GroupVersionKind implements workload.Kind.
func (d *Workloads) GroupVersionKind() schema.GroupVersionKind { return d.k.GroupVersionKind }

// Resource implements workload.Kind.
func (d *Workloads) Resource() string { return d.k.Resource }

// Stamps implements workload.Kind.
func (d *Workloads) Stamps() bool { return d.k.Spec.VersionLabel == v1alpha1.VersionLabelOnTemplate }

// Object implements workload.Kind.
func (d *Workloads) Object() client.Object {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(d.k.GroupVersionKind)
	return u
}

// ObjectList implements workload.Kind.
func (d *Workloads) ObjectList() client.ObjectList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(d.k.GroupVersion().WithKind(d.k.Kind + "List"))
	return list
}

// Transforms implements workload.Kind.
func (d *Workloads) Transforms() map[client.Object]cache.TransformFunc {
	return map[client.Object]cache.TransformFunc{d.Object(): d.k.Trim}
}

// ContentPaths implements workload.Kind.
func (d *Workloads) ContentPaths() []workload.Path { return d.k.ContentPaths() }

// TemplatePath implements workload.Kind.
func (d *Workloads) TemplatePath() (path workload.Path, ok bool) { return d.k.templatePath() }

// VersionOf implements workload.Kind.
func (d *Workloads) VersionOf(stored *unstructured.Unstructured) (string, error) {
	return d.k.VersionOf(stored.Object), nil
}

// Content implements workload.Kind.
func (d *Workloads) Content(stored *unstructured.Unstructured) ([]byte, error) {
	return d.k.History(stored.Object)
}

// ReadContent implements workload.Kind.
func (d *Workloads) ReadContent(data []byte) (template map[string]any, version string, err error) {
	h, err := d.k.readHistory(data)
	if err != nil {
		return nil, "", err
	}
	e := &edit{object: map[string]any{}}
	for i := range d.k.content {
		path := d.k.content[i].path
		if value := h.Content[path.String()]; value != nil {
			if err := e.set(path, value); err != nil {
				return nil, "", err
			}
		}
	}
	if path, ok := d.TemplatePath(); ok {
		value, _ := get(e.object, path)
		template, _ = value.(map[string]any)
	}
	return template, d.k.VersionOf(e.object), nil
}

// Restore implements workload.Control.
func (d *Workloads) Restore(w *workload.Workload, data []byte) ([]workload.Op, error) {
	e, err := d.k.restore(w.Object, data)
	if err != nil {
		return nil, err
	}
	w.Object = e.object
	return e.ops, nil
}

// Get implements workload.Kind.
func (d *Workloads) Get(ctx context.Context, r client.Reader, key types.NamespacedName) (*workload.Workload, error) {
	w, err := d.read(ctx, r, key)
	if err != nil || w == nil || d.k.Spec.Pods == nil {
		return w, err
	}
	pods, err := d.allPods(ctx, r, w)
	if err != nil {
		return nil, err
	}
	d.count(w, pods)
	return w, nil
}

// Summary implements workload.Kind.
func (d *Workloads) Summary(ctx context.Context, r client.Reader, key types.NamespacedName) (*workload.Workload, error) {
	if d.k.replicas == nil {
		return d.Get(ctx, r, key) // the number of pods is known from the pods alone
	}
	return d.read(ctx, r, key)
}

// read reads an object without its pods.
func (d *Workloads) read(ctx context.Context, r client.Reader, key types.NamespacedName) (*workload.Workload, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(d.k.GroupVersionKind)
	if err := r.Get(ctx, key, u); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	w := &workload.Workload{
		GVK: d.k.GroupVersionKind, Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(),
		Labels: u.GetLabels(), Annotations: u.GetAnnotations(), Deleting: u.GetDeletionTimestamp() != nil, Owner: workload.OwnerOf(u),
		Object: u.Object, Images: d.k.ImagesOf(u.Object), Version: d.k.VersionOf(u.Object), Unstamped: !d.Stamps(), Stamp: d.k.stampOf(u.Object),
		MinReady: d.k.MinReady(u.Object), ByPods: true, InFlight: 1, Rollbacks: d.k.Spec.Rollback,
		WithoutPods: d.k.Spec.Pods == nil, Settle: d.k.Spec.Rollout.Settle.Duration,
		HandBack: keptOf(u.Object)[keptHandBack] == true,
	}
	w.Content = &workload.Content{Hash: d.k.ContentHash(), Generation: u.GetGeneration()}
	if u.GetGeneration() == 1 { // it has not changed since it was created
		w.RevisionCreated = u.GetCreationTimestamp().Time
	}
	if at, _ := keptOf(u.Object)[keptWritten].(int64); at > 0 {
		w.Written = time.Unix(at, 0)
	}
	w.Replicas, _ = d.k.Replicas(u.Object)
	if deadline := d.k.Spec.Rollout.Deadline; deadline != nil {
		w.ProgressDeadline = deadline.Duration
	}
	pacing, err := d.Pace(u)
	if err != nil {
		return nil, err
	}
	if pacing != nil {
		w.SetPace(pacing.Pace)
		w.Rolling = pacing.Rolling
	}
	if w.Stopping, err = d.Stopping(u); err != nil {
		return nil, err
	}
	w.Words = d.Words(w)
	if w.Newest, err = d.newest(ctx, r, w); err != nil {
		return nil, err
	}
	since, err := d.since(ctx, r, w)
	if err != nil {
		return nil, err
	}
	d.readRollout(w, since)
	return w, nil
}

// readRollout sets the progress of the rollout.
func (d *Workloads) readRollout(w *workload.Workload, since time.Time) {
	rollout, stale := &d.k.Spec.Rollout, isStale(w.Object)
	if stale && (d.k.Spec.Pods != nil || !readsGeneration(rollout.Complete)) {
		w.Rollout.Stale = true
		return
	}
	w.Revision = w.Version
	p, err := d.k.ProgressOf(w.Object, since)
	if err != nil {
		note(w, err)
		return
	}
	if stale && !readsGeneration(rollout.Stuck) {
		p.Stuck = "" // of an earlier change
	}
	w.Rollout = workload.Rollout{Complete: p.Complete, Stuck: p.Stuck != "", Message: p.Stuck, Progress: p.Message}
}

// readsGeneration reports whether an expression reads observedGeneration, and so decides itself what an earlier one means: some
// controllers copy it from another object, or do not increase it.
func readsGeneration(e v1alpha1.ChangeKindExpression) bool {
	return strings.Contains(string(e), "observedGeneration")
}

// isStale reports whether the status is of an earlier generation. Not all kinds report it, and some as text.
func isStale(object map[string]any) bool {
	u := &unstructured.Unstructured{Object: object}
	value, _ := get(object, workload.Path{"status", "observedGeneration"})
	observed, ok := value.(int64)
	if text, isText := value.(string); isText {
		n, err := strconv.ParseInt(text, 10, 64)
		observed, ok = n, err == nil
	}
	return ok && observed < u.GetGeneration()
}

// note records the first expression that cannot be evaluated.
func note(w *workload.Workload, err error) { w.Problem = cmp.Or(w.Problem, wording.Brief(err.Error())) }

// readsRevision matches an expression that may read the variable revision.
var readsRevision = regexp.MustCompile(`(^|[^.?\w])revision\b`)

// newest returns the metadata of the newest ControllerRevision of an object, if the expression may read it.
func (d *Workloads) newest(ctx context.Context, r client.Reader, w *workload.Workload) (map[string]any, error) {
	if p := d.k.Spec.Pods; p == nil || !readsRevision.MatchString(string(p.Current)) {
		return nil, nil
	}
	revision, err := workload.NewestRevision(ctx, r, w)
	if err != nil || revision == nil {
		return nil, err
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(&revision.ObjectMeta)
}

// since returns when the current content was released: the time of its record, or of the object if there is none. Only
// expressions about the rollout read it, and pods that get new content in place.
func (d *Workloads) since(ctx context.Context, r client.Reader, w *workload.Workload) (time.Time, error) {
	rollout := &d.k.Spec.Rollout
	inPlace := d.k.Spec.Pods != nil && d.k.Spec.Pods.InPlace
	if !inPlace && !strings.Contains(string(rollout.Complete+rollout.Stuck), "since") {
		return time.Time{}, nil
	}
	var list v1alpha1.ChangeWorkloadList
	if err := r.List(ctx, &list, client.InNamespace(w.Namespace), client.MatchingFields{workload.IndexByOwner: string(w.UID)},
		client.UnsafeDisableDeepCopy); err != nil {
		return time.Time{}, fmt.Errorf("list changeworkloads of %s %s/%s: %w", w.Kind(), w.Namespace, w.Name, err)
	}
	for i := range list.Items {
		if c := &list.Items[i]; c.Spec.Reversion == w.Version {
			return time.Unix(max(c.Spec.CreateTimeUnix, c.Status.StartTimeUnix), 0), nil
		}
	}
	u := &unstructured.Unstructured{Object: w.Object}
	return u.GetCreationTimestamp().Time, nil
}

// Stopping implements workload.Kind. A halted object is paused until no field has the value of the halt: a user may
// have changed one of several.
func (d *Workloads) Stopping(stored *unstructured.Unstructured) (s workload.Stopping, err error) {
	annotations := stored.GetAnnotations()
	from := annotations[v1alpha1.HaltedFromAnnotation]
	if err := whole(stored.Object); err != nil { // the cache may lack its fields
		return workload.Stopping{Paused: from != "", Unknown: true}, nil //nolint:nilerr // Unknown tells the caller
	}
	s.Paused = d.k.Halted(stored.Object) || StaysHalted(stored.Object, from)
	if _, _, err := d.k.Halt(stored.Object); err != nil || len(d.k.halts) == 0 {
		s.Unknown = true
	}
	if s.Paused && annotations[v1alpha1.HaltedAnnotation] != "" {
		_, s.Stays = d.k.Resume(stored.Object, from)
	}
	pacing, err := d.Pace(stored)
	if err == nil && pacing != nil && pacing.Rolling {
		s.Partition, s.Bare = pacing.Users(annotations).Partition, pacing.Bare
	}
	return s, err
}

// Pace implements workload.Kind.
func (d *Workloads) Pace(stored *unstructured.Unstructured) (*workload.Pacing, error) {
	if d.k.Spec.Hold != v1alpha1.HoldByPartition {
		return nil, nil
	}
	p := &workload.Pacing{Pace: workload.Pace{ByPartition: true, Partition: workload.NoPartition, Field: d.k.partition.String()}}
	if partition, ok := d.k.Partition(stored.Object); ok {
		p.Partition, p.Rolling = partition, true
	}
	_, there := get(stored.Object, d.k.partition)
	p.Bare = !there
	p.Replicas, _ = d.k.Replicas(stored.Object)
	return p, nil
}

// PacePaths implements workload.Kind.
func (d *Workloads) PacePaths() []workload.Path { return d.k.PacePaths() }

// SetPace implements workload.Control.
func (d *Workloads) SetPace(from workload.Pacing, to workload.Pace) []workload.Op {
	if from.Pace == to || from.Partition == workload.NoPartition || to.Partition == workload.NoPartition {
		return nil
	}
	test := workload.Op{Op: "test", Path: d.k.partition.Pointer(), Value: from.Partition}
	if from.Bare {
		test.Value = nil
	}
	return []workload.Op{test, {Op: "add", Path: d.k.partition.Pointer(), Value: to.Partition}}
}

// never is a test that fails for each object: the operator decides again.
var never = []workload.Op{{Op: "test", Path: "/metadata/uid"}}

// Halt implements workload.Control.
func (d *Workloads) Halt(w *workload.Workload) []workload.Op {
	ops, _, err := d.k.Halt(w.Object)
	if err != nil || w.Annotations[v1alpha1.HaltedFromAnnotation] != "" {
		return never // the values of a halt must not become the values before it
	}
	return ops
}

// HaltedFrom implements workload.Control.
func (d *Workloads) HaltedFrom(w *workload.Workload) string {
	if from := w.Annotations[v1alpha1.HaltedFromAnnotation]; from != "" {
		return from
	}
	_, from, _ := d.k.Halt(w.Object) // an error has no value
	return from
}

// HaltPaths implements workload.Control.
func (d *Workloads) HaltPaths() []workload.Path { return d.k.HaltPaths() }

// Resume implements workload.Control.
func (d *Workloads) Resume(w *workload.Workload) []workload.Op {
	if whole(w.Object) != nil {
		return never
	}
	ops, _ := d.k.Resume(w.Object, w.Annotations[v1alpha1.HaltedFromAnnotation])
	return ops
}

// Words implements workload.Control.
func (d *Workloads) Words(w *workload.Workload) workload.Words {
	var fields []string
	for _, h := range d.k.halts {
		fields = append(fields, fmt.Sprintf("%s %v", h.path, h.value))
	}
	name := wording.ShellWord(workload.ArgumentOf(d.k.GroupKind()) + "/" + w.Name)
	words := workload.Words{HaltedBy: wording.Brief(strings.Join(fields, ", ")), Resume: "altershield resume " + name, GoOn: "edit " + name}
	if w.Annotations[v1alpha1.HaltedAnnotation] != "" {
		words.GoOn = words.Resume
	}
	return words
}

// Revisions implements workload.Kind: the revisions of declared kinds cannot be read.
func (d *Workloads) Revisions(context.Context, client.Reader, *workload.Workload) ([]workload.OldRevision, error) {
	return nil, nil
}

// RevisionTemplate implements workload.Kind: the revision is one of the operator's history.
func (d *Workloads) RevisionTemplate(
	ctx context.Context, live client.Reader, namespace string, old *workload.OldRevision,
) (template map[string]any, version string, err error) {
	var r appsv1.ControllerRevision
	err = live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: old.Name}, &r)
	if err != nil || r.UID != old.UID {
		return nil, "", client.IgnoreNotFound(err)
	}
	return d.ReadContent(r.Data.Raw)
}

// Images implements workload.Kind.
func (d *Workloads) Images(_ context.Context, _ client.Reader, w *workload.Workload) (current, previous []string, err error) {
	return w.Images, nil, nil
}
