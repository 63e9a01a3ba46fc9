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
	"time"

	appsv1 "k8s.io/api/apps/v1"
	extensionsv1beta1 "k8s.io/api/extensions/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// +kubebuilder:rbac:groups=apps,resources=daemonsets,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=apps,resources=daemonsets/finalizers,verbs=update

// templateGenerationLabel is the label of a pod with the number of the template from which the
// controller created it.
const templateGenerationLabel = extensionsv1beta1.DaemonSetTemplateGenerationKey

var maxUnavailablePath, maxSurgePath = rollingPath.Join("maxUnavailable"), rollingPath.Join("maxSurge")

// DaemonSet is the Kind of apps/v1 DaemonSets. They own their pods, and keep their templates in
// ControllerRevisions. The desired number of pods is in the status.
type DaemonSet struct{ revisioned }

var _ Kind = DaemonSet{}

// GroupVersionKind implements Kind.
func (DaemonSet) GroupVersionKind() schema.GroupVersionKind { return daemonSetKind }

// Resource implements Kind.
func (DaemonSet) Resource() string { return "daemonsets" }

// Object implements Kind.
func (DaemonSet) Object() client.Object { return newUnstructured(daemonSetKind) }

// ObjectList implements Kind.
func (DaemonSet) ObjectList() client.ObjectList { return newUnstructuredList(daemonSetKind) }

// Secondary implements Kind.
func (DaemonSet) Secondary() []Secondary { return []Secondary{revisions(daemonSetKind.GroupKind())} }

// Transforms implements Kind.
func (d DaemonSet) Transforms() map[client.Object]cache.TransformFunc {
	return map[client.Object]cache.TransformFunc{d.Object(): trimDaemonSet}
}

func trimDaemonSet(obj any) (any, error) {
	return trimWorkload(obj, DaemonSet{}.HaltPaths(), "minReadySeconds", "updateStrategy")
}

// Get implements Kind.
func (d DaemonSet) Get(ctx context.Context, r client.Reader, key types.NamespacedName) (*Workload, error) {
	w, all, mixed, err := d.summary(ctx, r, key)
	if err != nil || w == nil {
		return nil, err
	}
	_, err = readPods(ctx, r, w, all, mixed)
	return w, err
}

// Summary implements Kind.
func (d DaemonSet) Summary(ctx context.Context, r client.Reader, key types.NamespacedName) (*Workload, error) {
	w, _, _, err := d.summary(ctx, r, key)
	return w, err
}

// summary also returns the revisions, and whether the DaemonSet may have pods of several of them.
func (DaemonSet) summary(
	ctx context.Context, r client.Reader, key types.NamespacedName,
) (w *Workload, all []revision, mixed bool, err error) {
	obj := newUnstructured(daemonSetKind)
	if err := r.Get(ctx, key, obj); err != nil {
		return nil, nil, false, client.IgnoreNotFound(err)
	}
	w, d, err := readDaemonSet(obj)
	if err != nil {
		return nil, nil, false, err
	}
	if all, err = revisionsOf(ctx, r, w, markOfDaemonSet); err != nil {
		return nil, nil, false, err
	}
	current := currentRevision(all, w, d)
	if current == nil && !w.Rollout.Stale {
		if current, err = revisionByPods(ctx, r, w, all); err != nil {
			return nil, nil, false, err
		}
	}
	readRevision(w, current)
	if w.Revision == "" {
		// The status is of an unknown revision.
		w.Rollout = Rollout{Stale: true}
	}
	if !w.Rollout.Stale {
		lacks(w, d.Status.DesiredNumberScheduled-d.Status.CurrentNumberScheduled)
	}
	s := &d.Status
	return w, all, w.Rollout.Stale || s.UpdatedNumberScheduled != s.CurrentNumberScheduled || s.NumberMisscheduled != 0, nil
}

// markOfDaemonSet returns the hash label of the revision, which its pods also have.
func markOfDaemonSet(r *appsv1.ControllerRevision) string {
	return r.Labels[appsv1.ControllerRevisionHashLabelKey]
}

// currentRevision returns the revision of the current template. The status of a DaemonSet does not
// name it. It is the newest revision, once the status is of the current generation: the controller
// creates the revision before. The cache of revisions may be behind the cache of DaemonSets, so the
// newest revision has to have the same version, or, if the controller does not know all fields of
// the template, the same generation of the template.
func currentRevision(all []revision, w *Workload, d *appsv1.DaemonSet) *revision {
	if len(all) == 0 {
		return nil
	}
	newest := &all[0]
	if newest.version == w.Version {
		return newest
	}
	made, of := newest.Annotations[appsv1.DeprecatedTemplateGeneration], d.Annotations[appsv1.DeprecatedTemplateGeneration]
	if w.Rollout.Stale || made == "" || made != of {
		return nil
	}
	return newest
}

// revisionByPods returns the revision of a pod that the controller created from the current
// template: the pods have its number as a label. A controller that does not know all fields of a
// template may return to an earlier revision without a trace in the revision. The number of updated
// pods in the status is no proof: status, pods and revisions are not read at the same time.
func revisionByPods(ctx context.Context, r client.Reader, w *Workload, all []revision) (*revision, error) {
	generation := w.Annotations[appsv1.DeprecatedTemplateGeneration]
	if generation == "" {
		return nil, nil
	}
	pods, err := podsOwned(ctx, r, w)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		if pods[i].Labels[templateGenerationLabel] != generation {
			continue
		}
		mark := pods[i].Labels[appsv1.ControllerRevisionHashLabelKey]
		if at := slices.IndexFunc(all, func(one revision) bool { return one.mark == mark }); at >= 0 {
			return &all[at], nil
		}
	}
	return nil, nil
}

// readDaemonSet reads a DaemonSet, trimmed or as the API server sent it.
func readDaemonSet(obj *unstructured.Unstructured) (*Workload, *appsv1.DaemonSet, error) {
	var d appsv1.DaemonSet
	w, _, err := read(obj, &d)
	if err != nil {
		return nil, nil, err
	}
	w.Unstamped, w.ProgressDeadline = true, standingStill
	w.Replicas, w.MinReady = d.Status.DesiredNumberScheduled, time.Duration(d.Spec.MinReadySeconds)*time.Second
	w.Stopping = stoppingOfDaemonSet(&d.Spec.UpdateStrategy, w.Annotations)
	if !w.Unknown {
		w.SetPace(paceOfDaemonSet(&d.Spec.UpdateStrategy, w.Annotations))
	}
	w.Rolling = !w.OnDelete && !w.Unknown // halted it still runs old pods until new ones do
	w.ByPods, w.PerNode = true, true
	w.Scheduled, w.Misscheduled = d.Status.CurrentNumberScheduled, d.Status.NumberMisscheduled
	w.InFlight, w.MayLack = inFlightOfDaemonSet(&d.Spec.UpdateStrategy, w.Replicas)
	w.Rollout = rolloutOfDaemonSet(&d)
	w.Words = DaemonSet{}.Words(w)
	return w, &d, nil
}

// stoppingOfDaemonSet finds out by the annotations whether the operator or a user set OnDelete: the
// operator halts and holds with the same value.
func stoppingOfDaemonSet(s *appsv1.DaemonSetUpdateStrategy, annotations map[string]string) Stopping {
	is := paceOfDaemonSet(s, annotations)
	stops := is.Users(annotations).OnDelete
	return Stopping{
		Paused: stops, OnDelete: stops && !is.Halted,
		Unknown: !is.OnDelete && s.Type != appsv1.RollingUpdateDaemonSetStrategyType && s.Type != "",
	}
}

func paceOfDaemonSet(s *appsv1.DaemonSetUpdateStrategy, annotations map[string]string) Pace {
	is := Pace{ByEviction: true, OnDelete: s.Type == appsv1.OnDeleteDaemonSetStrategyType}
	is.Halted = is.OnDelete && annotations[v1alpha1.HaltedAnnotation] != ""
	if s.RollingUpdate != nil {
		is.MaxUnavailable = intstr.ValueOrDefault(s.RollingUpdate.MaxUnavailable, intstr.FromInt32(1)).String()
		if surges(s) {
			is.MaxSurge = s.RollingUpdate.MaxSurge.String()
		}
	}
	return is
}

// surges reports whether the strategy creates the new pod of a node before it deletes the old pod.
func surges(s *appsv1.DaemonSetUpdateStrategy) bool {
	if s.RollingUpdate == nil {
		return false
	}
	surge := intstr.ValueOrDefault(s.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	n, err := intstr.GetScaledValueFromIntOrPercent(surge, 100, true) //nolint:mnd // a percentage is at least one pod of so many
	return err == nil && n > 0
}

// inFlightOfDaemonSet returns how many pods are replaced at a time, and how many of them are
// missing meanwhile, as the controller computes it.
func inFlightOfDaemonSet(s *appsv1.DaemonSetUpdateStrategy, nodes int32) (all, missing int32) {
	if s.RollingUpdate == nil {
		return 1, 1
	}
	part := func(of *intstr.IntOrString, without int) int {
		n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(of, intstr.FromInt(without)), int(nodes), true)
		if err != nil {
			return 0
		}
		return n
	}
	surge, unavailable := part(s.RollingUpdate.MaxSurge, 0), part(s.RollingUpdate.MaxUnavailable, 1)
	return int32(max(surge+unavailable, 1)), int32(unavailable) //nolint:gosec // parts of the nodes
}

// rolloutOfDaemonSet reads the status, which counts the oldest pod of each node. An unreachable
// node keeps the rollout from being complete: that is reported, and has no deadline.
func rolloutOfDaemonSet(d *appsv1.DaemonSet) Rollout {
	s := &d.Status
	if s.ObservedGeneration < d.Generation {
		return Rollout{Stale: true}
	}
	return Rollout{
		Complete: s.UpdatedNumberScheduled == s.DesiredNumberScheduled && s.NumberAvailable == s.DesiredNumberScheduled,
		Progress: fmt.Sprintf("%d of %d nodes run this version, on %d a pod is available", s.UpdatedNumberScheduled, s.DesiredNumberScheduled,
			s.NumberAvailable),
	}
}

// Pods implements Kind.
func (DaemonSet) Pods(ctx context.Context, r client.Reader, w *Workload) ([]Pod, error) {
	return podsOfRevision(ctx, r, w)
}

// PodNames implements Kind.
func (DaemonSet) PodNames(_ context.Context, _ client.Reader, w *Workload) ([]string, error) {
	return []string{generatedNames(w.Name)}, nil
}

// PodLabels implements Kind.
func (DaemonSet) PodLabels() []string {
	return []string{appsv1.ControllerRevisionHashLabelKey, templateGenerationLabel}
}

// Stopping implements Kind.
func (DaemonSet) Stopping(stored *unstructured.Unstructured) (Stopping, error) {
	var d appsv1.DaemonSet
	if err := typeFields(stored, &d, "updateStrategy"); err != nil {
		return Stopping{}, err
	}
	return stoppingOfDaemonSet(&d.Spec.UpdateStrategy, stored.GetAnnotations()), nil
}

// Pace implements Kind: a DaemonSet is held by OnDelete. If it surges, OnDelete would delete the new
// pods, so it is not held.
func (DaemonSet) Pace(stored *unstructured.Unstructured) (*Pacing, error) {
	var d appsv1.DaemonSet
	if err := typeFields(stored, &d, "updateStrategy"); err != nil {
		return nil, err
	}
	s, annotations := &d.Spec.UpdateStrategy, stored.GetAnnotations()
	if stoppingOfDaemonSet(s, annotations).Unknown {
		return nil, nil
	}
	nodes, _, _ := unstructured.NestedInt64(stored.Object, "status", "desiredNumberScheduled")
	is := paceOfDaemonSet(s, annotations)
	rolls := !surges(s) && (is.Halted || !is.Users(annotations).OnDelete)
	return &Pacing{Pace: is, Rolling: rolls, Replicas: int32(nodes)}, nil //nolint:gosec // the API has them so
}

// PacePaths implements Kind.
func (DaemonSet) PacePaths() []Path {
	return []Path{strategyTypePath, maxUnavailablePath, maxSurgePath}
}

// Halt implements Control. No pod is replaced; a pod that is recreated, on a node that returns, is
// of the new version. The field rollingUpdate may stay. A held DaemonSet has the value already.
func (DaemonSet) Halt(w *Workload) []Op {
	if w.Pace.OnDelete {
		return []Op{{Op: "test", Path: strategyTypePath.Pointer(), Value: onDelete}}
	}
	return replaceField(strategyTypePath, rollingUpdate, onDelete)
}

// HaltedFrom implements Control: only a DaemonSet that replaces its pods is halted.
func (DaemonSet) HaltedFrom(*Workload) string { return "" }

// HaltPaths implements Control.
func (DaemonSet) HaltPaths() []Path { return []Path{strategyTypePath} }

// Resume implements Control.
func (DaemonSet) Resume(w *Workload) []Op {
	if w.Unknown {
		return nil
	}
	if !w.Paused {
		return []Op{{Op: "test", Path: strategyTypePath.Pointer(), Value: rollingUpdate}}
	}
	return replaceField(strategyTypePath, onDelete, rollingUpdate)
}

// Words implements Control.
func (DaemonSet) Words(w *Workload) Words {
	words := Words{HaltedBy: "updateStrategy OnDelete", Resume: resumeCommand("daemonset", w.Name)}
	words.GoOn = words.Resume
	if w.OnDelete {
		words.GoOn = patchCommand("daemonset", w.Name, strategyTypePath, rollingUpdate)
	}
	return words
}

// SetPace implements Control.
func (DaemonSet) SetPace(from Pacing, to Pace) []Op {
	if from.Pace == to {
		return nil
	}
	ops := replaceField(strategyTypePath, from.updateType(), to.updateType())
	if from.MaxUnavailable != to.MaxUnavailable {
		ops = append(ops, replaceField(maxUnavailablePath, intstr.Parse(from.MaxUnavailable), intstr.Parse(to.MaxUnavailable))...)
	}
	if from.MaxSurge != to.MaxSurge {
		ops = append(ops, replaceField(maxSurgePath, intstr.Parse(from.MaxSurge), intstr.FromInt32(0))...)
	}
	return ops
}

// Revisions implements Kind.
func (d DaemonSet) Revisions(ctx context.Context, r client.Reader, w *Workload) ([]OldRevision, error) {
	return nativeRevisions(ctx, r, d, w, markOfDaemonSet)
}

// Images implements Kind.
func (d DaemonSet) Images(ctx context.Context, r client.Reader, w *Workload) (current, previous []string, err error) {
	return nativeImages(ctx, r, d, w, markOfDaemonSet)
}

// OwnerOfPod implements Kind.
func (DaemonSet) OwnerOfPod(_ context.Context, _ client.Reader, pod metav1.Object) (Owner, bool, error) {
	owner, ok := ownerOfPod(daemonSetKind, pod)
	return owner, ok, nil
}
