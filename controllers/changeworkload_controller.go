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

package controllers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// ChangeWorkloadReconciler carries releases on: it is the only one to write the
// status of a ChangeWorkload, to make its batches, and to set and lift the
// block of its workload.
type ChangeWorkloadReconciler struct {
	base
}

// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=changeworkloads/status,verbs=update
// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=changeworkloads/finalizers,verbs=update
// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=changepods,verbs=get;list;watch;create;delete

// SetupWithManager adds the controller to the manager.
func (r *ChangeWorkloadReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("changeworkload").
		For(&v1alpha1.ChangeWorkload{}).
		Watches(&v1alpha1.ChangePod{}, gathered(batchUrgency, changeOfBatch)).
		Watches(r.kind.Object(), gathered(podUrgency, r.changesOfWorkload)).
		Watches(r.kind.Revision(), handler.EnqueueRequestsFromMapFunc(r.changesOfRevision), builder.WithPredicates(acquired())).
		Watches(&corev1.Pod{}, gathered(podUrgency, r.changesOfPod), builder.WithPredicates(podChanged())).
		Watches(namespaceMetadata(), handler.EnqueueRequestsFromMapFunc(r.changesOfNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&appsv1.ControllerRevision{}, handler.EnqueueRequestsFromMapFunc(r.changesBeside), builder.WithPredicates(deletedOnly())).
		Watches(&v1alpha1.OpsConfigInfo{}, handler.EnqueueRequestsFromMapFunc(r.openChanges)).
		Watches(&v1alpha1.ChangeWorkload{}, handler.EnqueueRequestsFromMapFunc(r.changesBeside), builder.WithPredicates(orderEnded())).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, ReconciliationTimeout: reconcileTimeout}).
		Complete(quiet(r))
}

// Reconcile carries one release on.
func (r *ChangeWorkloadReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var change v1alpha1.ChangeWorkload
	if err := r.client.Get(ctx, req.NamespacedName, &change); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	ns, err := r.observeNamespace(ctx, change.Namespace)
	if err != nil || ending(ns) {
		return ctrl.Result{}, err
	}
	in, current, err := r.observe(ctx, ns, &change)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !current {
		return ctrl.Result{RequeueAfter: existsRetry}, nil
	}
	plan := defense.DecideRelease(in)
	if plan.NeedsLive {
		if in, err = r.observeLive(ctx, in); err != nil {
			return settle(ctx, ctrl.Result{}, err)
		}
		plan = defense.DecideRelease(in)
	}
	return settle(ctx, ctrl.Result{RequeueAfter: plan.RequeueAfter}, r.apply(ctx, &change, in.Workload, plan))
}

// observe reads all a decision needs. current is false while the cache does not
// show the workload that the API server has.
func (r *ChangeWorkloadReconciler) observe(ctx context.Context, ns *metav1.PartialObjectMetadata, change *v1alpha1.ChangeWorkload) (in defense.ReleaseInput, current bool, err error) {
	in = defense.ReleaseInput{Now: r.clock.Now(), Change: change, Enrolled: r.enrolled(ns), Cluster: r.cluster}
	if in.Settings, err = r.observeSettings(ctx); err != nil {
		return in, false, err
	}
	if current, err = r.observeWorkload(ctx, &in); err != nil || !current || in.Workload == nil {
		return in, current, err
	}
	in.Settings, in.BadOverrides = settings.Override(in.Settings, in.Workload.Annotations)
	if in.Pods, err = r.kind.Pods(ctx, r.client, in.Workload); err != nil {
		return in, false, err
	}
	var batches v1alpha1.ChangePodList
	if err := r.client.List(ctx, &batches, client.InNamespace(change.Namespace),
		client.MatchingFields{workload.IndexByOwner: string(change.UID)}, client.UnsafeDisableDeepCopy); err != nil {
		return in, false, fmt.Errorf("list changepods of %s: %w", change.Name, err)
	}
	in.Batches = batches.Items
	if in.History, err = r.observeHistory(ctx, change.Namespace, in.Workload.UID); err != nil {
		return in, false, err
	}
	others, err := r.changesOf(ctx, change.Namespace, in.Workload.UID)
	for i := range others {
		if others[i].UID != change.UID {
			in.Others = append(in.Others, others[i])
		}
	}
	return in, true, err
}

// observeWorkload reads the workload that owns the release. That it is gone is
// believed only from the API server: a cache that has just been filled may be
// behind.
func (r *ChangeWorkloadReconciler) observeWorkload(ctx context.Context, in *defense.ReleaseInput) (current bool, err error) {
	ref := metav1.GetControllerOf(in.Change)
	if ref == nil {
		return true, nil
	}
	key := types.NamespacedName{Namespace: in.Change.Namespace, Name: ref.Name}
	w, err := r.kind.Get(ctx, r.client, key)
	if err != nil {
		return false, err
	}
	if w != nil && w.UID == ref.UID {
		in.Workload = w
		return true, nil
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(r.kind.GroupVersionKind())
	if err := r.live.Get(ctx, key, live); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get %s %s: %w", ref.Kind, key, err)
	}
	return live.UID != ref.UID, nil
}

// observeLive reads the labels, the annotations and the pause of the workload
// from the API server: the cache may be behind the operator's own last write.
func (r *ChangeWorkloadReconciler) observeLive(ctx context.Context, in defense.ReleaseInput) (defense.ReleaseInput, error) {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(r.kind.GroupVersionKind())
	key := types.NamespacedName{Namespace: in.Workload.Namespace, Name: in.Workload.Name}
	if err := r.live.Get(ctx, key, live); err != nil {
		return in, fmt.Errorf("get %s %s: %w", in.Workload.Kind, key, err)
	}
	if live.GetUID() != in.Workload.UID {
		return in, apierrors.NewNotFound(schema.GroupResource{Resource: in.Workload.Kind}, key.Name)
	}
	paused, _, err := unstructured.NestedBool(live.Object, "spec", "paused")
	if err != nil {
		return in, fmt.Errorf("read %s %s: %w", in.Workload.Kind, key, err)
	}
	w := *in.Workload
	w.Labels, w.Annotations, w.ResourceVersion, w.Deleting = live.GetLabels(), live.GetAnnotations(), live.GetResourceVersion(), live.GetDeletionTimestamp() != nil
	w.Paused = paused
	in.Workload, in.Live = &w, true
	return in, nil
}

// apply carries a plan out, in an order in which each step may be the last one
// before a crash: batches and the block come before the status that tells of
// them, and are found again if it was not written.
func (r *ChangeWorkloadReconciler) apply(ctx context.Context, change *v1alpha1.ChangeWorkload, w *defense.Workload, plan defense.ReleasePlan) error {
	updated := change.DeepCopy()
	if plan.Spec != nil {
		updated.Spec = *plan.Spec
		if err := r.client.Patch(ctx, updated, client.MergeFromWithOptions(change, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("let changeworkload %s follow the settings: %w", change.Name, err)
		}
	}
	for i := range plan.Batches {
		if err := r.createBatch(ctx, updated, w, plan.Batches[i]); err != nil {
			return err
		}
	}
	if err := r.actOnWorkload(ctx, change, w, &plan); err != nil {
		return err
	}
	for _, e := range plan.Told {
		r.event(w, change, e, "Verify")
	}
	if plan.Status != nil {
		updated.Status = *plan.Status
		if err := r.client.Status().Update(ctx, updated); err != nil {
			return fmt.Errorf("update status of changeworkload %s: %w", change.Name, err)
		}
	}
	r.tell(ctx, change, updated, w, plan.Events)
	return r.tidy(ctx, change, w, &plan)
}

// tidy remembers, forgets and removes; what cannot be done keeps nothing else
// from being done.
func (r *ChangeWorkloadReconciler) tidy(ctx context.Context, change *v1alpha1.ChangeWorkload, w *defense.Workload, plan *defense.ReleasePlan) error {
	var errs []error
	if plan.Remember {
		errs = append(errs, r.remember(ctx, change, w))
	}
	for i := range plan.Forget {
		errs = append(errs, r.forget(ctx, change.Namespace, &plan.Forget[i]))
	}
	for i := range plan.Remove {
		errs = append(errs, r.remove(ctx, &plan.Remove[i]))
	}
	return errors.Join(errs...)
}

func (r *ChangeWorkloadReconciler) createBatch(ctx context.Context, change *v1alpha1.ChangeWorkload, w *defense.Workload, b defense.Batch) error {
	now := r.clock.Now()
	batch := &v1alpha1.ChangePod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: change.Namespace,
			Name:      defense.ChangePodName(w.Name, change.Spec.Reversion, b.Number),
			Labels:    ownLabels(w.Name, change.Spec.Reversion),
			OwnerReferences: []metav1.OwnerReference{
				newOwnerReference(v1alpha1.GroupVersion.String(), "ChangeWorkload", change.Name, change.UID),
			},
		},
		Spec: v1alpha1.ChangePodSpec{
			ChangeWorkloadID: change.Name,
			PodInfos:         b.Pods,
			CreateTime:       defense.FormatTime(now),
			CreateTimeUnix:   now.Unix(),
			Attempt:          b.Attempt,
			Release:          b.Release,
			TotalBatches:     b.Total,
			Last:             b.Last,
		},
	}
	if err := r.client.Create(ctx, batch); err != nil {
		if apierrors.IsAlreadyExists(err) {
			err = errors.Join(err, r.removeOrphan(ctx, batch))
		}
		return fmt.Errorf("create changepod %s: %w", batch.Name, err)
	}
	log.FromContext(ctx).Info("created a batch", "changepod", batch.Name, "pods", len(b.Pods))
	return nil
}

// actOnWorkload sets or lifts the block, on the release that was decided about
// and on no other.
func (r *ChangeWorkloadReconciler) actOnWorkload(ctx context.Context, change *v1alpha1.ChangeWorkload, w *defense.Workload, plan *defense.ReleasePlan) error {
	p := (*workloadPatch)(nil)
	switch plan.Action {
	case defense.LeaveWorkload:
		return nil
	case defense.BlockWorkload:
		p = patchRelease(w)
		p.setLabel(v1alpha1.SuspendLabel, strconv.FormatInt(r.clock.Now().Unix(), 10))
		p.setAnnotation(v1alpha1.SuspendedByAnnotation, w.BlockedBy())
		// Admission does the same, from the object as it is stored; this is for
		// when it is down.
		if w.Labels[v1alpha1.IgnoredSuspendLabel] == v1alpha1.IgnoredSuspendValue {
			p.setAnnotation(v1alpha1.OverrideStaleAnnotation, "true")
		}
		if plan.Halt {
			p.pause(change.Spec.Reversion)
		}
	case defense.LiftBlock:
		p = patchRelease(w)
		p.dropLabel(v1alpha1.SuspendLabel)
		p.dropAnnotation(v1alpha1.SuspendedByAnnotation)
		if plan.Resume {
			p.resume()
		}
	case defense.ResumeWorkload:
		p = patchRelease(w)
		p.resume()
	}
	if err := r.patchWorkload(ctx, p); err != nil {
		return err
	}
	log.FromContext(ctx).Info(map[defense.WorkloadAction]string{
		defense.BlockWorkload:  "blocked the workload",
		defense.LiftBlock:      "lifted the block of the workload",
		defense.ResumeWorkload: "resumed the workload",
	}[plan.Action], "workload", w.Name, "version", change.Spec.Reversion, "halted", plan.Halt, "resumed", plan.Resume)
	return nil
}

// tell logs and reports a change of state, after it was written.
func (r *ChangeWorkloadReconciler) tell(ctx context.Context, before, after *v1alpha1.ChangeWorkload, w *defense.Workload, told []defense.Event) {
	if before.Status.Attempt != after.Status.Attempt {
		log.FromContext(ctx).Info("release started", "attempt", after.Status.Attempt, "order", after.Status.OrderID)
	}
	if before.Status.Status != after.Status.Status {
		metrics.ReleaseEntered(stateName(after.Status.Status))
		log.FromContext(ctx).Info("release changed state", "from", stateName(before.Status.Status), "to", stateName(after.Status.Status), "attempt", after.Status.Attempt)
	}
	if w == nil {
		return
	}
	for _, e := range told {
		r.event(w, after, e, "Verify")
	}
}

func stateName(s v1alpha1.ChangeWorkloadStatusType) string {
	if s == v1alpha1.ChangeWorkloadInit {
		return "Init"
	}
	return string(s)
}

// remove deletes an older release as it was observed: one that was released
// again since has changed, and stays.
func (r *ChangeWorkloadReconciler) remove(ctx context.Context, old *v1alpha1.ChangeWorkload) error {
	err := r.client.Delete(ctx, old.DeepCopy(), client.Preconditions{UID: &old.UID, ResourceVersion: &old.ResourceVersion},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove changeworkload %s: %w", old.Name, err)
	}
	log.FromContext(ctx).Info("removed an older release", "changeworkload", old.Name)
	return nil
}

// newChangeWorkload is the record of the release a workload is at.
func newChangeWorkload(kind workload.Kind, w *defense.Workload, set settings.Settings, now time.Time) *v1alpha1.ChangeWorkload {
	name := defense.ChangeWorkloadName(w.Name, w.RecordedVersion())
	apiVersion, kindName := kind.GroupVersionKind().ToAPIVersionAndKind()
	return &v1alpha1.ChangeWorkload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       w.Namespace,
			Name:            name,
			Labels:          ownLabels(w.Name, w.RecordedVersion()),
			OwnerReferences: []metav1.OwnerReference{newOwnerReference(apiVersion, kindName, w.Name, w.UID)},
		},
		Spec: v1alpha1.ChangeWorkloadSpec{
			ChangeWorkloadID:  name,
			AppName:           w.AppName(),
			ServiceName:       w.Name,
			Reversion:         w.RecordedVersion(),
			CountThreshold:    set.BatchSize,
			WaitTimeThreshold: int64(set.Wait / time.Second),
			CreateTime:        defense.FormatTime(now),
			CreateTimeUnix:    now.Unix(),
			Release:           w.Release(),
		},
	}
}

func ownLabels(workloadName, version string) map[string]string {
	return map[string]string{
		v1alpha1.VersionLabel:      version,
		v1alpha1.WorkloadNameLabel: defense.WorkloadNameLabelValue(workloadName),
	}
}

func (r *ChangeWorkloadReconciler) requestsByOwner(ctx context.Context, namespace string, uid types.UID) []reconcile.Request {
	changes, err := r.changesOf(ctx, namespace, uid, client.DisableReadYourWritesConsistency)
	if err != nil {
		log.FromContext(ctx).Error(err, "find the releases of a workload", "uid", uid)
		return nil
	}
	return requestsFor(ctx, &v1alpha1.ChangeWorkloadList{Items: changes})
}

// changesBeside maps a release to those of the same workload.
func (r *ChangeWorkloadReconciler) changesBeside(ctx context.Context, o client.Object) []reconcile.Request {
	ref := metav1.GetControllerOf(o)
	if ref == nil {
		return nil
	}
	return r.requestsByOwner(ctx, o.GetNamespace(), ref.UID)
}

func (r *ChangeWorkloadReconciler) changesOfWorkload(ctx context.Context, o client.Object) []reconcile.Request {
	return r.requestsByOwner(ctx, o.GetNamespace(), o.GetUID())
}

func (r *ChangeWorkloadReconciler) changesOfRevision(ctx context.Context, o client.Object) []reconcile.Request {
	owner, ok := r.kind.OwnerOfRevision(o)
	if !ok {
		return nil
	}
	return r.requestsByOwner(ctx, o.GetNamespace(), owner.UID)
}

func (r *ChangeWorkloadReconciler) changesOfPod(ctx context.Context, o client.Object) []reconcile.Request {
	owner, ok := r.ownerOfPod(ctx, o)
	if !ok {
		return nil
	}
	return r.requestsByOwner(ctx, o.GetNamespace(), owner.UID)
}

func (r *ChangeWorkloadReconciler) changesOfNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	return r.changesWhere(ctx, func(*v1alpha1.ChangeWorkload) bool { return true }, client.InNamespace(ns.GetName()))
}

// openChanges maps a changed setting to the releases that follow it.
func (r *ChangeWorkloadReconciler) openChanges(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.changesWhere(ctx, func(c *v1alpha1.ChangeWorkload) bool { return defense.IsOpen(c.Status.Status) })
}

// changeOfBatch maps a batch to its release.
func changeOfBatch(_ context.Context, o client.Object) []reconcile.Request {
	ref := metav1.GetControllerOf(o)
	if ref == nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: ref.Name}}}
}

// batchUrgency lets a batch that failed be acted on at once.
func batchUrgency(o client.Object) time.Duration {
	if batch, ok := o.(*v1alpha1.ChangePod); ok && defense.BatchFails(batch) {
		return 0
	}
	return gatherBatches
}

func podUrgency(client.Object) time.Duration { return gatherPods }

// podChanged lets through what moves a release: pods that come and go, become
// ready or cease to be.
func podChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return metav1.GetControllerOf(e.Object) != nil },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok1 := e.ObjectOld.(*corev1.Pod)
			after, ok2 := e.ObjectNew.(*corev1.Pod)
			if !ok1 || !ok2 || metav1.GetControllerOf(after) == nil {
				return false
			}
			o, n := defense.ObservePod(before), defense.ObservePod(after)
			return o.Ready != n.Ready || o.Terminating != n.Terminating || o.Ended != n.Ended || o.UID != n.UID
		},
	}
}

// orderEnded lets through the releases whose order was ended: the one that
// replaced them may remove them then.
func orderEnded() predicate.Predicate {
	open := func(o client.Object) bool {
		change, ok := o.(*v1alpha1.ChangeWorkload)
		return ok && defense.OrderIsOpen(&change.Status)
	}
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(e event.UpdateEvent) bool { return open(e.ObjectOld) && !open(e.ObjectNew) },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// deletedOnly lets through the end of objects.
func deletedOnly() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
