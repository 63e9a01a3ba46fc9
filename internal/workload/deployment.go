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
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/internal/wording"
)

// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=apps,resources=deployments/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps,resources=replicasets,verbs=get;list;watch

// Deployment is the Kind of apps/v1 Deployments.
//
// Deployments and ReplicaSets are cached unstructured, because the version is computed from all
// fields of the template, including fields that this build does not know. The cache has the version
// and the hash of the template in place of the template.
type Deployment struct{ templated }

var _ Kind = Deployment{}

var replicaSetKind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

// GroupVersionKind implements Kind.
func (Deployment) GroupVersionKind() schema.GroupVersionKind {
	return appsv1.SchemeGroupVersion.WithKind("Deployment")
}

// Resource implements Kind.
func (Deployment) Resource() string { return "deployments" }

// Stamps implements Kind.
func (Deployment) Stamps() bool { return true }

// Object implements Kind.
func (d Deployment) Object() client.Object { return newUnstructured(d.GroupVersionKind()) }

// ObjectList implements Kind.
func (d Deployment) ObjectList() client.ObjectList { return newUnstructuredList(d.GroupVersionKind()) }

// Secondary implements Kind.
func (d Deployment) Secondary() []Secondary {
	return []Secondary{{Object: newUnstructured(replicaSetKind), OwnerOf: d.ownerOfReplicaSet}}
}

// Transforms implements Kind.
func (d Deployment) Transforms() map[client.Object]cache.TransformFunc {
	return map[client.Object]cache.TransformFunc{
		d.Object():                      trimDeployment,
		newUnstructured(replicaSetKind): trimReplicaSet,
	}
}

// Summary implements Kind: Get lists only ReplicaSets, and they are few.
func (d Deployment) Summary(ctx context.Context, r client.Reader, key types.NamespacedName) (*Workload, error) {
	return d.Get(ctx, r, key)
}

// Get implements Kind.
func (d Deployment) Get(ctx context.Context, r client.Reader, key types.NamespacedName) (*Workload, error) {
	obj := newUnstructured(d.GroupVersionKind())
	if err := r.Get(ctx, key, obj); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	w, hash, err := readDeployment(obj)
	if err != nil {
		return nil, err
	}
	return w, d.readReplicaSets(ctx, r, w, hash)
}

// Pods implements Kind.
func (Deployment) Pods(ctx context.Context, r client.Reader, w *Workload) ([]Pod, error) {
	if w.Revision == "" {
		return nil, nil
	}
	var list corev1.PodList
	// The pods are only read, and read in full here.
	if err := r.List(ctx, &list, client.InNamespace(w.Namespace), client.MatchingFields{IndexByOwner: w.Revision},
		client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods of %s %s/%s: %w", w.Kind(), w.Namespace, w.Name, err)
	}
	pods := make([]Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = ReadPod(&list.Items[i])
	}
	return pods, nil
}

// PodNames implements Kind.
func (d Deployment) PodNames(ctx context.Context, r client.Reader, w *Workload) (patterns []string, err error) {
	list, err := d.replicaSets(ctx, r, w)
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		patterns = append(patterns, generatedNames(list.Items[i].GetName()))
	}
	return patterns, nil
}

// generatedNames returns the pattern of the names that the API server generates for pods of an object.
func generatedNames(of string) string {
	const longest, letters = 58, "[bcdfghjklmnpqrstvwxz2456789]{5}"
	of += "-"
	return regexp.QuoteMeta(of[:min(len(of), longest)]) + letters
}

// PodLabels implements Kind.
func (Deployment) PodLabels() []string { return nil }

// IsCurrent implements Kind.
func (Deployment) IsCurrent(w *Workload, pod metav1.Object) bool {
	ref := metav1.GetControllerOf(pod)
	return ref != nil && string(ref.UID) == w.Revision
}

// Stopping implements Kind.
func (Deployment) Stopping(stored *unstructured.Unstructured) (Stopping, error) {
	paused, _, err := unstructured.NestedBool(stored.Object, "spec", "paused")
	if err != nil {
		return Stopping{}, fmt.Errorf("read deployment %s/%s: %w", stored.GetNamespace(), stored.GetName(), err)
	}
	return Stopping{Paused: paused}, nil
}

const pausedPath = "/spec/paused"

// Halt implements Control.
func (Deployment) Halt(*Workload) []Op {
	return []Op{{Op: "test", Path: pausedPath}, {Op: "add", Path: pausedPath, Value: true}}
}

// HaltedFrom implements Control: only a running Deployment is halted.
func (Deployment) HaltedFrom(*Workload) string { return "" }

// HaltPaths implements Control: Resume removes the field that Halt adds.
func (Deployment) HaltPaths() []Path { return nil }

// Resume implements Control.
func (Deployment) Resume(w *Workload) []Op {
	if !w.Paused {
		return []Op{{Op: "test", Path: pausedPath}}
	}
	return []Op{{Op: "test", Path: pausedPath, Value: true}, {Op: "remove", Path: pausedPath}}
}

// Words implements Control: kubectl can resume a paused Deployment.
func (Deployment) Words(w *Workload) Words {
	resume := "rollout resume " + wording.ShellWord("deployment/"+w.Name)
	return Words{Resume: resume, GoOn: resume}
}

// Pace implements Kind.
func (Deployment) Pace(stored *unstructured.Unstructured) (*Pacing, error) {
	var d appsv1.Deployment
	if err := typeFields(stored, &d, "replicas", "minReadySeconds", "progressDeadlineSeconds", "strategy"); err != nil {
		return nil, err
	}
	return &Pacing{
		Pace:     paceOfDeployment(&d.Spec),
		Rolling:  d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType || d.Spec.Strategy.Type == "",
		Replicas: ptr.Deref(d.Spec.Replicas, 1),
	}, nil
}

func paceOfDeployment(s *appsv1.DeploymentSpec) Pace {
	return Pace{MinReadySeconds: s.MinReadySeconds, ProgressDeadlineSeconds: ptr.Deref(s.ProgressDeadlineSeconds, defaultProgressDeadline)}
}

// defaultProgressDeadline is the default of the API server, in seconds.
const defaultProgressDeadline = 600

var minReadyPath, deadlinePath = Path{"spec", "minReadySeconds"}, Path{"spec", "progressDeadlineSeconds"}

// PacePaths implements Kind.
func (Deployment) PacePaths() []Path { return []Path{minReadyPath, deadlinePath} }

// SetPace implements Control.
func (Deployment) SetPace(from Pacing, to Pace) (ops []Op) {
	minReady, deadline := minReadyPath.Pointer(), deadlinePath.Pointer()
	if from.MinReadySeconds != to.MinReadySeconds {
		// The API server omits 0.
		test, set := Op{Op: "test", Path: minReady}, Op{Op: "remove", Path: minReady}
		if from.MinReadySeconds > 0 {
			test.Value = from.MinReadySeconds
		}
		if to.MinReadySeconds > 0 {
			set = Op{Op: "add", Path: minReady, Value: to.MinReadySeconds}
		}
		ops = append(ops, test, set)
	}
	if from.ProgressDeadlineSeconds != to.ProgressDeadlineSeconds {
		ops = append(ops, Op{Op: "test", Path: deadline, Value: from.ProgressDeadlineSeconds},
			Op{Op: "replace", Path: deadline, Value: to.ProgressDeadlineSeconds})
	}
	return ops
}

// RevisionTemplate implements Kind. The deployment controller sets the label pod-template-hash on
// every ReplicaSet; it is removed.
func (Deployment) RevisionTemplate(
	ctx context.Context, live client.Reader, namespace string, old *OldRevision,
) (template map[string]any, version string, err error) {
	rs := newUnstructured(replicaSetKind)
	if err := live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: old.Name}, rs); err != nil {
		return nil, "", client.IgnoreNotFound(err)
	}
	if rs.GetUID() != old.UID {
		return nil, "", nil
	}
	template, ok, err := unstructured.NestedMap(rs.Object, templatePath...)
	if err != nil || !ok {
		return nil, "", fmt.Errorf("replica set %s/%s has no spec.template: %w", namespace, old.Name, err)
	}
	unstructured.RemoveNestedField(template, "metadata", "labels", appsv1.DefaultDeploymentUniqueLabelKey)
	return template, Version(template), nil
}

// Images implements Kind.
func (d Deployment) Images(ctx context.Context, r client.Reader, w *Workload) (current, previous []string, err error) {
	obj, err := getAgain(ctx, r, d, w)
	if err != nil || obj == nil {
		return nil, nil, err
	}
	others, err := d.others(ctx, r, w, obj)
	if err != nil || len(others) == 0 {
		return imagesOf(obj), nil, err
	}
	return imagesOf(obj), imagesOf(others[0]), nil
}

// Revisions implements Kind. A ReplicaSet that is older than the Deployment was orphaned by another
// Deployment.
func (d Deployment) Revisions(ctx context.Context, r client.Reader, w *Workload) ([]OldRevision, error) {
	obj, err := getAgain(ctx, r, d, w)
	if err != nil || obj == nil {
		return nil, err
	}
	others, err := d.others(ctx, r, w, obj)
	if err != nil {
		return nil, err
	}
	var revisions []OldRevision
	for _, rs := range others {
		if rs.GetCreationTimestamp().Time.Before(obj.GetCreationTimestamp().Time) {
			continue
		}
		version, hash, err := versionAndHash(rs, versionOfReplicaSet)
		if err != nil {
			return nil, err
		}
		old := oldRevision(rs, version)
		old.Stamped = hash != version // they differ only by the version label
		revisions = append(revisions, old)
	}
	return revisions, nil
}

// others returns the ReplicaSets of other templates than the current template, the newest first,
// without ReplicaSets that have no number yet.
func (d Deployment) others(
	ctx context.Context, r client.Reader, w *Workload, obj *unstructured.Unstructured,
) ([]*unstructured.Unstructured, error) {
	hash, err := templateHash(obj)
	if err != nil {
		return nil, err
	}
	list, err := d.replicaSets(ctx, r, w)
	if err != nil {
		return nil, err
	}
	var others []*unstructured.Unstructured
	for i := range list.Items {
		rs := &list.Items[i]
		rsHash, err := templateHash(rs)
		if err != nil {
			return nil, err
		}
		if rsHash != hash && revisionNumber(rs) >= 0 {
			others = append(others, rs)
		}
	}
	slices.SortStableFunc(others, func(a, b *unstructured.Unstructured) int { return cmp.Compare(revisionNumber(b), revisionNumber(a)) })
	return others, nil
}

// OwnerOfPod implements Kind.
func (d Deployment) OwnerOfPod(ctx context.Context, r client.Reader, pod metav1.Object) (Owner, bool, error) {
	ref := metav1.GetControllerOf(pod)
	if ref == nil || ref.Kind != replicaSetKind.Kind || ref.APIVersion != replicaSetKind.GroupVersion().String() {
		return Owner{}, false, nil
	}
	rs := newUnstructured(replicaSetKind)
	err := r.Get(ctx, types.NamespacedName{Namespace: pod.GetNamespace(), Name: ref.Name}, rs)
	if err != nil || rs.GetUID() != ref.UID {
		return Owner{}, false, client.IgnoreNotFound(err)
	}
	owner, ok := d.ownerOfReplicaSet(rs)
	return owner, ok, nil
}

func (d Deployment) ownerOfReplicaSet(rs metav1.Object) (Owner, bool) {
	ref := metav1.GetControllerOf(rs)
	if ref == nil {
		return Owner{}, false
	}
	owner := Owner{Key: KeyOf(rs.GetNamespace(), ref), UID: ref.UID}
	return owner, owner.Key.GroupKind == d.GroupVersionKind().GroupKind()
}

// readReplicaSets sets the current revision of a workload, and the other revisions that have pods.
func (d Deployment) readReplicaSets(ctx context.Context, r client.Reader, w *Workload, hash string) error {
	list, err := d.replicaSets(ctx, r, w)
	if err != nil {
		return err
	}
	var current *unstructured.Unstructured
	for i := range list.Items {
		rs := &list.Items[i]
		version, rsHash, err := versionAndHash(rs, versionOfReplicaSet)
		if err != nil {
			return err
		}
		if rsHash != hash {
			if old := oldRevision(rs, version); old.Replicas > 0 {
				w.OldRevisions = append(w.OldRevisions, old)
			}
			continue
		}
		// Of several, the oldest, as the deployment controller chooses it.
		if current == nil || older(rs, current) {
			current = rs
		}
	}
	if current != nil {
		w.RevisionCreated = current.GetCreationTimestamp().Time
		w.Revision, w.RevisionNumber = string(current.GetUID()), revisionNumber(current)
		replicas, _, _ := unstructured.NestedInt64(current.Object, "spec", "replicas")
		w.RevisionReplicas = int32(replicas) //nolint:gosec // the API has them so
		return readNotMade(current, w)
	}
	return nil
}

// readNotMade sets how many pods of a ReplicaSet are refused. A ReplicaSet with too few pods may be
// about to create them, so only its condition counts.
func readNotMade(current *unstructured.Unstructured, w *Workload) error {
	var rs appsv1.ReplicaSet
	replicas, _, err := unstructured.NestedInt64(current.Object, "spec", "replicas")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{"status": current.Object["status"]}, &rs)
	}
	if err != nil {
		return fmt.Errorf("read replica set %s/%s: %w", current.GetNamespace(), current.GetName(), err)
	}
	for i := range rs.Status.Conditions {
		c := &rs.Status.Conditions[i]
		if c.Type != appsv1.ReplicaSetReplicaFailure || c.Status != corev1.ConditionTrue {
			continue
		}
		if missing := int32(replicas) - rs.Status.Replicas; missing > 0 { //nolint:gosec // the API has them so
			w.NotMade = &NotMade{Count: missing, Since: c.LastTransitionTime.Time, Message: c.Message}
		}
	}
	return nil
}

func (Deployment) replicaSets(ctx context.Context, r client.Reader, w *Workload) (*unstructured.UnstructuredList, error) {
	list := newUnstructuredList(replicaSetKind)
	if err := r.List(ctx, list, client.InNamespace(w.Namespace), client.MatchingFields{IndexByOwner: string(w.UID)}); err != nil {
		return nil, fmt.Errorf("list replica sets of %s/%s: %w", w.Namespace, w.Name, err)
	}
	return list, nil
}

func oldRevision(rs *unstructured.Unstructured, version string) OldRevision {
	replicas, _, _ := unstructured.NestedInt64(rs.Object, "spec", "replicas")
	ready, _, _ := unstructured.NestedInt64(rs.Object, "status", "readyReplicas")
	return OldRevision{
		Name: rs.GetName(), UID: rs.GetUID(), Version: version, Revision: string(rs.GetUID()), Number: revisionNumber(rs),
		Created: rs.GetCreationTimestamp().Time, Replicas: int32(replicas), Ready: int32(ready), //nolint:gosec // the API has them so
	}
}

// revisionNumber returns the number of a ReplicaSet; -1 until the deployment controller sets it.
func revisionNumber(rs *unstructured.Unstructured) int64 {
	n, err := strconv.ParseInt(rs.GetAnnotations()[revisionAnnotation], 10, 64)
	if err != nil {
		return -1
	}
	return n
}

func older(a, b *unstructured.Unstructured) bool {
	ta, tb := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	if ta.Equal(&tb) {
		return a.GetName() < b.GetName()
	}
	return ta.Before(&tb)
}

// readDeployment reads a Deployment, trimmed or as the API server sent it.
func readDeployment(obj *unstructured.Unstructured) (w *Workload, hash string, err error) {
	var deployment appsv1.Deployment
	if w, hash, err = read(obj, &deployment); err != nil {
		return nil, "", err
	}
	w.Stamp, w.Replicas = stampOf(obj), ptr.Deref(deployment.Spec.Replicas, 1)
	w.Stopping = Stopping{Paused: deployment.Spec.Paused}
	w.Rolling = deployment.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType
	w.SetPace(paceOfDeployment(&deployment.Spec))
	w.Words = Deployment{}.Words(w)
	w.Rollout = rolloutOf(&deployment, w.Replicas)
	w.InFlight = inFlight(&deployment.Spec, w.Replicas)
	for i := range deployment.Status.Conditions {
		if c := &deployment.Status.Conditions[i]; c.Type == appsv1.DeploymentAvailable && c.Status == corev1.ConditionTrue {
			w.AvailableSince = c.LastTransitionTime.Time
		}
	}
	return w, hash, nil
}

// inFlight returns how many pods a strategy replaces at a time, as the deployment controller
// computes it.
func inFlight(spec *appsv1.DeploymentSpec, replicas int32) int32 {
	rolling := spec.Strategy.RollingUpdate
	if spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType || rolling == nil {
		return replicas
	}
	part := func(of *intstr.IntOrString, roundUp bool) int32 {
		n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(of, intstr.FromInt32(0)), int(replicas), roundUp)
		if err != nil {
			return 0
		}
		return int32(n) //nolint:gosec // a part of the replicas
	}
	return max(part(rolling.MaxSurge, true)+part(rolling.MaxUnavailable, false), 1)
}

func rolloutOf(d *appsv1.Deployment, replicas int32) Rollout {
	s := &d.Status
	if s.ObservedGeneration < d.Generation {
		return Rollout{Stale: true}
	}
	r := Rollout{
		Complete: s.UpdatedReplicas == replicas && s.Replicas == replicas && s.AvailableReplicas == replicas,
	}
	for i := range s.Conditions {
		if c := &s.Conditions[i]; !r.Complete && c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse {
			r.Stuck, r.Message = true, c.Message
		}
	}
	return r
}

// trimDeployment replaces the template by its version and hash, and drops fields that no decision
// reads.
func trimDeployment(obj any) (any, error) {
	return trimWorkload(obj, nil, "replicas", "minReadySeconds", "paused", "strategy", "progressDeadlineSeconds")
}

func templateHash(u *unstructured.Unstructured) (string, error) {
	_, hash, err := versionAndHash(u, Version)
	return hash, err
}
