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
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// +kubebuilder:rbac:groups=apps,resources=statefulsets,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=apps,resources=statefulsets/finalizers,verbs=update

// StatefulSet is the Kind of apps/v1 StatefulSets. They own their pods, and keep their templates in
// ControllerRevisions.
type StatefulSet struct{ revisioned }

var (
	_ Kind    = StatefulSet{}
	_ Evicter = StatefulSet{}
)

// haltPartition is above every possible ordinal: with the number of replicas instead, a scale-up
// would create pods of the halted version.
const haltPartition int32 = math.MaxInt32

// standingStill is the progress deadline of kinds without progressDeadlineSeconds: the default of
// the API server for Deployments.
const standingStill = defaultProgressDeadline * time.Second

var (
	rollingPath      = Path{"spec", "updateStrategy", "rollingUpdate"}
	partitionPath    = rollingPath.Join("partition")
	strategyTypePath = Path{"spec", "updateStrategy", "type"}
)

// GroupVersionKind implements Kind.
func (StatefulSet) GroupVersionKind() schema.GroupVersionKind { return statefulSetKind }

// Resource implements Kind.
func (StatefulSet) Resource() string { return "statefulsets" }

// Object implements Kind.
func (StatefulSet) Object() client.Object { return newUnstructured(statefulSetKind) }

// ObjectList implements Kind.
func (StatefulSet) ObjectList() client.ObjectList { return newUnstructuredList(statefulSetKind) }

// Secondary implements Kind.
func (StatefulSet) Secondary() []Secondary {
	return []Secondary{revisions(statefulSetKind.GroupKind())}
}

// Transforms implements Kind.
func (s StatefulSet) Transforms() map[client.Object]cache.TransformFunc {
	return map[client.Object]cache.TransformFunc{s.Object(): trimStatefulSet}
}

func trimStatefulSet(obj any) (any, error) {
	return trimWorkload(obj, StatefulSet{}.HaltPaths(), "replicas", "minReadySeconds", "updateStrategy", "podManagementPolicy", "ordinals")
}

// Get implements Kind.
func (StatefulSet) Get(ctx context.Context, r client.Reader, key types.NamespacedName) (*Workload, error) {
	w, set, all, err := getSetAt(ctx, r, r, key)
	if err != nil || w == nil {
		return nil, err
	}
	mixed := set.Status.UpdatedReplicas != set.Status.Replicas || w.Rollout.Stale
	lacks(w, lackingOfStatefulSet(set, w))
	pods, err := readPods(ctx, r, w, all, mixed)
	if w.Lacking != nil {
		w.Lacking = lackingAmong(pods, set, w)
	}
	return w, err
}

// Summary implements Kind.
func (StatefulSet) Summary(ctx context.Context, r client.Reader, key types.NamespacedName) (*Workload, error) {
	w, _, _, err := getSetAt(ctx, r, r, key)
	return w, err
}

// getSetAt reads a StatefulSet and its revisions, which only a cache can find.
func getSetAt(
	ctx context.Context, cached, r client.Reader, key types.NamespacedName,
) (*Workload, *appsv1.StatefulSet, []revision, error) {
	w, s, err := getStatefulSet(ctx, r, key)
	if err != nil || w == nil {
		return nil, nil, nil, err
	}
	all, err := revisionsOf(ctx, cached, w, markOfStatefulSet)
	if err != nil {
		return nil, nil, nil, err
	}
	readRevision(w, updateRevision(all, w, &s.Status))
	return w, s, all, nil
}

// markOfStatefulSet returns the name of the revision, which is the label of its pods.
func markOfStatefulSet(r *appsv1.ControllerRevision) string { return r.Name }

// updateRevision returns the revision of the current template: the revision in the status, if the
// status is of the current generation. Otherwise it is the newest revision, if its template has the
// same version: either the controller already created it, or another part of the StatefulSet
// changed.
func updateRevision(all []revision, w *Workload, s *appsv1.StatefulSetStatus) *revision {
	if w.Rollout.Stale {
		if len(all) > 0 && all[0].version == w.Version {
			return &all[0]
		}
		return nil
	}
	for i := range all {
		if r := &all[i]; r.mark == s.UpdateRevision {
			return r
		}
	}
	if s.UpdateRevision == "" {
		return nil
	}
	return &revision{ControllerRevision: &appsv1.ControllerRevision{}, mark: s.UpdateRevision} // not seen yet
}

func getStatefulSet(ctx context.Context, r client.Reader, key types.NamespacedName) (*Workload, *appsv1.StatefulSet, error) {
	obj := newUnstructured(statefulSetKind)
	if err := r.Get(ctx, key, obj); err != nil {
		return nil, nil, client.IgnoreNotFound(err)
	}
	return readStatefulSet(obj)
}

// readStatefulSet reads a StatefulSet, trimmed or as the API server sent it.
func readStatefulSet(obj *unstructured.Unstructured) (*Workload, *appsv1.StatefulSet, error) {
	var s appsv1.StatefulSet
	w, _, err := read(obj, &s)
	if err != nil {
		return nil, nil, err
	}
	w.Unstamped, w.ProgressDeadline = true, standingStill
	strategy := &s.Spec.UpdateStrategy
	w.Replicas, w.MinReady = ptr.Deref(s.Spec.Replicas, 1), time.Duration(s.Spec.MinReadySeconds)*time.Second
	if s.Spec.Ordinals != nil {
		w.FirstOrdinal = s.Spec.Ordinals.Start
	}
	w.SetPace(paceOfStatefulSet(strategy))
	w.Stopping = stoppingOfStatefulSet(strategy, w.Annotations)
	w.Rolling = !w.OnDelete && !w.Unknown
	w.InFlight = inFlightOfStatefulSet(strategy, w.Replicas)
	w.ByPods, w.Stateful, w.MayLack = true, true, w.InFlight
	w.Rollout = rolloutOfStatefulSet(&s, w)
	w.Words = StatefulSet{}.Words(w)
	return w, &s, nil
}

// stoppingOfStatefulSet takes the largest partition for the operator's halt: a user who sets it
// pauses the StatefulSet. Under a hold, the annotations have the user's partition.
func stoppingOfStatefulSet(s *appsv1.StatefulSetUpdateStrategy, annotations map[string]string) Stopping {
	is := paceOfStatefulSet(s)
	switch is.Partition {
	case NoPartition:
		onDelete := s.Type == appsv1.OnDeleteStatefulSetStrategyType
		return Stopping{OnDelete: onDelete, Unknown: !onDelete}
	case haltPartition:
		return Stopping{Paused: true}
	default:
		return Stopping{Partition: is.Users(annotations).Partition, Bare: s.RollingUpdate == nil}
	}
}

// paceOfStatefulSet returns the partition. Only rolling updates have one: the API server refuses it
// in a strategy of any other type, even of a type that only a newer Kubernetes knows.
func paceOfStatefulSet(s *appsv1.StatefulSetUpdateStrategy) Pace {
	pace := Pace{ByPartition: true}
	if s.Type != appsv1.RollingUpdateStatefulSetStrategyType && s.Type != "" {
		pace.Partition = NoPartition
	} else if s.RollingUpdate != nil {
		pace.Partition = ptr.Deref(s.RollingUpdate.Partition, 0)
	}
	return pace
}

// inFlightOfStatefulSet returns how many pods are replaced at a time: one if the API server does
// not know maxUnavailable.
func inFlightOfStatefulSet(s *appsv1.StatefulSetUpdateStrategy, replicas int32) int32 {
	if s.RollingUpdate == nil || s.RollingUpdate.MaxUnavailable == nil {
		return 1
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(s.RollingUpdate.MaxUnavailable, int(replicas), true)
	if err != nil {
		return 1
	}
	return max(int32(n), 1) //nolint:gosec // a part of the replicas
}

// rolloutOfStatefulSet counts the pods of the revision. It does not compare currentRevision with
// updateRevision: they become equal when the pods are Ready, before they are available, and never
// with OnDelete. A partition keeps no pods if nothing was released under it.
func rolloutOfStatefulSet(set *appsv1.StatefulSet, w *Workload) Rollout {
	s := &set.Status
	if s.ObservedGeneration < set.Generation {
		return Rollout{Stale: true}
	}
	kept := min(w.Partition, w.Replicas)
	all := s.Replicas == w.Replicas && s.AvailableReplicas == w.Replicas
	r := Rollout{
		Complete: all && s.UpdatedReplicas == w.Replicas,
		Progress: fmt.Sprintf("%d of %d pods run this version, %d are available", s.UpdatedReplicas, w.Replicas, s.AvailableReplicas),
	}
	r.Partitioned = !r.Complete && !w.OnDelete && kept > 0 && all && s.UpdatedReplicas >= w.Replicas-kept
	return r
}

// lackingOfStatefulSet returns how many pods are missing although it is their turn: in order, the
// next pod is created when the pods before it are available.
func lackingOfStatefulSet(set *appsv1.StatefulSet, w *Workload) int32 {
	s := &set.Status
	if w.Rollout.Stale || inOrder(set) && s.AvailableReplicas < s.Replicas {
		return 0
	}
	return w.Replicas - s.Replicas
}

func inOrder(set *appsv1.StatefulSet) bool {
	return set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
}

// lackingAmong returns the missing pods of the current version: the pods that a partition does not
// keep at the previous version. In order, they wait for missing pods of the previous version.
func lackingAmong(pods []corev1.Pod, set *appsv1.StatefulSet, w *Workload) *Lacking {
	there := map[int32]bool{}
	for i := range pods {
		there[indexOf(pods[i].Name, w)] = true
	}
	lacking := Lacking{Since: w.Lacking.Since}
	for index := range w.Replicas {
		switch {
		case there[index]:
		case index >= w.Pace.Partition:
			lacking.Count++
		case inOrder(set):
			return nil
		}
	}
	if lacking.Count == 0 {
		return nil
	}
	return &lacking
}

// Pods implements Kind.
func (StatefulSet) Pods(ctx context.Context, r client.Reader, w *Workload) ([]Pod, error) {
	pods, err := podsOfRevision(ctx, r, w)
	for i := range pods {
		pods[i].Index = indexOf(pods[i].Name, w)
	}
	return pods, err
}

// PodNames implements Kind.
func (StatefulSet) PodNames(_ context.Context, _ client.Reader, w *Workload) ([]string, error) {
	return []string{regexp.QuoteMeta(w.Name+"-") + "[0-9]+"}, nil
}

// PodLabels implements Kind.
func (StatefulSet) PodLabels() []string { return []string{appsv1.ControllerRevisionHashLabelKey} }

// Stopping implements Kind.
func (StatefulSet) Stopping(stored *unstructured.Unstructured) (Stopping, error) {
	var s appsv1.StatefulSet
	if err := typeFields(stored, &s, "updateStrategy"); err != nil {
		return Stopping{}, err
	}
	return stoppingOfStatefulSet(&s.Spec.UpdateStrategy, stored.GetAnnotations()), nil
}

// Pace implements Kind: a StatefulSet is held by its partition.
func (StatefulSet) Pace(stored *unstructured.Unstructured) (*Pacing, error) {
	var s appsv1.StatefulSet
	if err := typeFields(stored, &s, "updateStrategy", "replicas"); err != nil {
		return nil, err
	}
	pace := paceOfStatefulSet(&s.Spec.UpdateStrategy)
	return &Pacing{
		Pace: pace, Rolling: pace.Partition != NoPartition, Replicas: ptr.Deref(s.Spec.Replicas, 1),
		Bare: s.Spec.UpdateStrategy.RollingUpdate == nil,
	}, nil
}

// PacePaths implements Kind.
func (StatefulSet) PacePaths() []Path { return []Path{partitionPath} }

// Halt implements Control. No pod is replaced, and a recreated pod is of the previous version.
// HaltedFrom keeps the user's partition.
func (StatefulSet) Halt(w *Workload) []Op {
	return setPartition(w.Bare, w.Pace.Partition, haltPartition)
}

// HaltedFrom implements Control.
func (StatefulSet) HaltedFrom(w *Workload) string {
	if w.Partition == 0 {
		return ""
	}
	return strconv.Itoa(int(w.Partition))
}

// HaltPaths implements Control.
func (StatefulSet) HaltPaths() []Path { return []Path{partitionPath} }

// Resume implements Control.
func (StatefulSet) Resume(w *Workload) []Op {
	switch {
	case w.Unknown:
		return nil
	case w.OnDelete:
		return []Op{{Op: "test", Path: strategyTypePath.Pointer(), Value: string(appsv1.OnDeleteStatefulSetStrategyType)}}
	case w.Bare:
		return []Op{{Op: "test", Path: rollingPath.Pointer()}}
	case !w.Paused:
		return []Op{{Op: "test", Path: partitionPath.Pointer(), Value: w.Pace.Partition}}
	}
	return replaceField(partitionPath, haltPartition, HaltedPartition(w.Annotations))
}

// Words implements Control.
func (StatefulSet) Words(w *Workload) Words {
	words := Words{
		HaltedBy: fmt.Sprintf("partition %d", haltPartition), Resume: resumeCommand("statefulset", w.Name),
		GoOn: patchCommand("statefulset", w.Name, partitionPath, int32(0)),
	}
	switch {
	case w.OnDelete:
		words.GoOn = patchCommand("statefulset", w.Name, strategyTypePath, string(appsv1.RollingUpdateStatefulSetStrategyType))
	case w.Annotations[v1alpha1.HaltedAnnotation] != "":
		words.GoOn = words.Resume
	}
	return words
}

// resumeCommand returns the command that resumes a workload that the operator halted. A change of
// the field alone would look like a manifest that is applied again.
func resumeCommand(kind, name string) string {
	return "altershield resume " + wording.ShellWord(kind+"/"+name)
}

// patchCommand returns the command that sets one field of a workload.
func patchCommand(kind, name string, path Path, value any) string {
	content := value
	for _, field := range slices.Backward(path) {
		content = map[string]any{field: content}
	}
	patch, err := json.Marshal(content)
	if err != nil {
		return "edit " + wording.ShellWord(kind+"/"+name) // of strings and numbers only
	}
	return fmt.Sprintf("patch %s --type=merge -p %s", wording.ShellWord(kind+"/"+name), wording.ShellWord(string(patch)))
}

// SetPace implements Control.
func (StatefulSet) SetPace(from Pacing, to Pace) []Op {
	if from.Pace == to || from.Partition == NoPartition || to.Partition == NoPartition {
		return nil
	}
	return setPartition(from.Bare, from.Partition, to.Partition)
}

// setPartition changes the partition. The API server sets a default only if the strategy has an
// object for it: a bare strategy gets the object.
func setPartition(bare bool, from, to int32) []Op {
	if bare {
		return []Op{
			{Op: "test", Path: rollingPath.Pointer()}, {Op: "add", Path: rollingPath.Pointer(), Value: map[string]any{"partition": int64(to)}},
		}
	}
	return replaceField(partitionPath, from, to)
}

// Revisions implements Kind.
func (s StatefulSet) Revisions(ctx context.Context, r client.Reader, w *Workload) ([]OldRevision, error) {
	return nativeRevisions(ctx, r, s, w, markOfStatefulSet)
}

// Images implements Kind.
func (s StatefulSet) Images(ctx context.Context, r client.Reader, w *Workload) (current, previous []string, err error) {
	return nativeImages(ctx, r, s, w, markOfStatefulSet)
}

// OwnerOfPod implements Kind.
func (StatefulSet) OwnerOfPod(_ context.Context, _ client.Reader, pod metav1.Object) (Owner, bool, error) {
	owner, ok := ownerOfPod(statefulSetKind, pod)
	return owner, ok, nil
}
