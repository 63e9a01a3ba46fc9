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
	"reflect"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// gatherPods is how long a release waits for more of its pods, or of its
	// workload, to change, so that it decides once about all that changed.
	gatherPods = 100 * time.Millisecond
	// gatherBatches is how long it waits for more of its batches to get on.
	gatherBatches = 250 * time.Millisecond
)

// What wakes a reconciler. Each watch says at its controller which transition it
// serves; here is what its events are of, and which of them pass.

// to enqueues what an object is mapped to.
func to[R comparable](requests handler.TypedMapFunc[client.Object, R]) handler.TypedEventHandler[client.Object, R] {
	return handler.TypedEnqueueRequestsFromMapFunc(requests)
}

// gathered enqueues requests after a while, so that those that come in between
// become one. How long, the object says; at once when that is zero.
func gathered(wait func(client.Object) time.Duration, requests handler.MapFunc) handler.EventHandler {
	enqueue := func(ctx context.Context, o client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		for _, request := range requests(ctx, o) {
			if d := wait(o); d > 0 {
				q.AddAfter(request, d)
			} else {
				q.Add(request)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.ObjectNew, q)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, q)
		},
		GenericFunc: func(ctx context.Context, e event.GenericEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, q)
		},
	}
}

// acquired lets through objects that are new or have a new controller, and revisions that
// are in use again: these have a new number.
func acquired() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := metav1.GetControllerOf(e.ObjectOld), metav1.GetControllerOf(e.ObjectNew)
			return after != nil && (before == nil || before.UID != after.UID || renumbered(e))
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

func renumbered(e event.UpdateEvent) bool {
	before, ok1 := e.ObjectOld.(*appsv1.ControllerRevision)
	after, ok2 := e.ObjectNew.(*appsv1.ControllerRevision)
	return ok1 && ok2 && before.Revision != after.Revision
}

// recordChanged lets through what may change a workload's record: its spec, its
// labels and annotations, its owner, its deletion. Its status is not among it.
func recordChanged() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
				e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
				defense.OwnerOf(e.ObjectOld) != defense.OwnerOf(e.ObjectNew) ||
				!reflect.DeepEqual(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) ||
				!reflect.DeepEqual(e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations())
		},
	}
}

func unlabelled(o client.Object) bool {
	object, ok := o.(*corev1.Pod)
	if !ok || metav1.GetControllerOf(object) == nil {
		return false
	}
	pod := defense.ReadPod(object)
	return isUnlabelled(&pod)
}

func isUnlabelled(pod *defense.Pod) bool {
	return pod.Ready && !pod.Terminating && pod.Labels[v1alpha1.OperateFinishedLabel] == ""
}

// mayBeFinished lets through pods that are ready and have no label yet.
func mayBeFinished() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return unlabelled(e.Object) },
		UpdateFunc:  func(e event.UpdateEvent) bool { return unlabelled(e.ObjectNew) },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// batchUrgency lets a batch that failed be acted on at once.
func batchUrgency(o client.Object) time.Duration {
	if batch, ok := o.(*v1alpha1.ChangePod); ok && defense.BatchFails(batch) {
		return 0
	}
	return gatherBatches
}

func podUrgency(client.Object) time.Duration { return gatherPods }

// urgent says that a release is not under way, or that a check of its order fails: that
// is acted on at once. What is written of it step by step, the steps of its order for
// one, is looked at together.
func urgent(o client.Object) bool {
	change, ok := o.(*v1alpha1.ChangeWorkload)
	return ok && !defense.IsUnderWay(change)
}

// itself maps an object to its own request.
func itself(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
}

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
			o, n := defense.ReadPod(before), defense.ReadPod(after)
			return o.Ready != n.Ready || o.Terminating != n.Terminating || o.Ended != n.Ended || o.UID != n.UID ||
				!o.RestartedAt.Equal(n.RestartedAt) || o.Stuck.Fails() != n.Stuck.Fails()
		},
	}
}

// podFails lets through pods that begin to fail, or cease to be Ready.
func podFails() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok1 := e.ObjectOld.(*corev1.Pod)
			after, ok2 := e.ObjectNew.(*corev1.Pod)
			if !ok1 || !ok2 || metav1.GetControllerOf(after) == nil {
				return false
			}
			o, n := defense.ReadPod(before), defense.ReadPod(after)
			if n.Terminating || n.Ended {
				return false
			}
			return o.Ready && !n.Ready || n.Restarts != o.Restarts ||
				(o.CrashLoop == nil) != (n.CrashLoop == nil) || n.OutOfMemory != nil && (o.OutOfMemory == nil || !o.OutOfMemory.Finished.Equal(n.OutOfMemory.Finished))
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// releaseEnded lets through the releases that were rolled back or canceled, which the
// one that replaced them tells of, and those whose order was ended, which it may
// remove then.
func releaseEnded() predicate.Predicate {
	ended := func(before, after client.Object) bool {
		was, ok := before.(*v1alpha1.ChangeWorkload)
		is, okNow := after.(*v1alpha1.ChangeWorkload)
		if !ok || !okNow {
			return false
		}
		over := is.Status.Status == v1alpha1.ChangeWorkloadRollback || is.Status.Status == v1alpha1.ChangeWorkloadCanceled
		return over && was.Status.Status != is.Status.Status || defense.OrderIsOpen(&was.Status) && !defense.OrderIsOpen(&is.Status)
	}
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(e event.UpdateEvent) bool { return ended(e.ObjectOld, e.ObjectNew) },
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

// turned lets through what of a release concerns its batches: how far its order
// has come, whether it ended, its attempt, and verdicts that wait for them.
func turned() predicate.Predicate {
	return predicate.Funcs{
		// One that the cache did not show when its batch was looked at.
		CreateFunc: func(event.CreateEvent) bool { return true },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok1 := e.ObjectOld.(*v1alpha1.ChangeWorkload)
			after, ok2 := e.ObjectNew.(*v1alpha1.ChangeWorkload)
			if !ok1 || !ok2 {
				return false
			}
			o, n := &before.Status, &after.Status
			return o.OrderStage != n.OrderStage || o.Status != n.Status || o.Attempt != n.Attempt ||
				len(n.UnclaimedVerdicts) > 0 && !slices.Equal(o.UnclaimedVerdicts, n.UnclaimedVerdicts)
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// defenseChanged lets through workloads that opted out, or in again, or changed
// settings of their own.
func defenseChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return defense.OptedOut(e.ObjectOld.GetLabels()) != defense.OptedOut(e.ObjectNew.GetLabels()) ||
				settings.AnnotationsDiffer(e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations())
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// requestsByOwner are the releases of a workload.
func (r *ChangeWorkloadReconciler) requestsByOwner(ctx context.Context, namespace string, uid types.UID) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, cluster.Any, cluster.OwnedBy(namespace, uid)...)
}

// changesBeside maps a release to those of the same workload.
func (r *ChangeWorkloadReconciler) changesBeside(ctx context.Context, o client.Object) []reconcile.Request {
	ref := metav1.GetControllerOf(o)
	if ref == nil {
		return nil
	}
	return r.requestsByOwner(ctx, o.GetNamespace(), ref.UID)
}

// changesOfRemembered maps a version that was remembered to the releases of its
// workload.
func (r *ChangeWorkloadReconciler) changesOfRemembered(ctx context.Context, o client.Object) []reconcile.Request {
	uid := workload.Remembers(o)
	if uid == "" {
		return nil
	}
	return r.requestsByOwner(ctx, o.GetNamespace(), uid)
}

func (r *ChangeWorkloadReconciler) changesOfWorkload(ctx context.Context, o client.Object) []reconcile.Request {
	return r.requestsByOwner(ctx, o.GetNamespace(), o.GetUID())
}

// changesOf maps an object between a workload and its pods to the releases of the
// workload.
func (r *ChangeWorkloadReconciler) changesOf(s workload.Secondary) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		owner, ok := s.OwnerOf(o)
		if !ok {
			return nil
		}
		return r.requestsByOwner(ctx, o.GetNamespace(), owner.UID)
	}
}

func (r *ChangeWorkloadReconciler) changesOfPod(ctx context.Context, o client.Object) []reconcile.Request {
	owner, ok := r.WorkloadOfPod(ctx, o)
	if !ok {
		return nil
	}
	return r.requestsByOwner(ctx, o.GetNamespace(), owner.UID)
}

func (r *ChangeWorkloadReconciler) changesOfNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, cluster.Any, client.InNamespace(ns.GetName()))
}

// openChanges maps a changed setting to the releases that follow it.
func (r *ChangeWorkloadReconciler) openChanges(ctx context.Context, setting client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, func(c *v1alpha1.ChangeWorkload) bool {
		return defense.IsVerified(c.Status.Status)
	}, r.WhereInForce(setting)...)
}

// namesServer lets policies through that say what silence of the server means.
func namesServer(o client.Object) bool {
	p, ok := o.(*v1alpha1.DefensePolicy)
	return ok && policy.NamesServer(p)
}

// decidesAlone lets policies through that say what silence of the server means, or that
// hold rollouts: before the change or after it.
func decidesAlone() predicate.Predicate {
	does := func(o client.Object) bool {
		p, ok := o.(*v1alpha1.DefensePolicy)
		return ok && (namesServer(p) || policy.MayHold(p))
	}
	only := predicate.NewPredicateFuncs(does)
	return predicate.Funcs{
		CreateFunc: only.Create, DeleteFunc: only.Delete, GenericFunc: only.Generic,
		UpdateFunc: func(e event.UpdateEvent) bool { return does(e.ObjectOld) || does(e.ObjectNew) },
	}
}

// changeOfBatch maps a batch to its release.
func changeOfBatch(_ context.Context, o client.Object) []reconcile.Request {
	ref := metav1.GetControllerOf(o)
	if ref == nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: ref.Name}}}
}

// heldWorkloads maps a setting to the workloads it is in force for that the
// operator holds.
func (r *WorkloadReconciler) heldWorkloads(ctx context.Context, setting client.Object) []workload.Key {
	return r.Workloads(ctx, func(w client.Object) bool {
		_, suspended := w.GetLabels()[v1alpha1.SuspendLabel]
		return suspended || w.GetAnnotations()[v1alpha1.HaltedAnnotation] != "" || w.GetAnnotations()[v1alpha1.HeldAnnotation] != ""
	}, r.WhereInForce(setting)...)
}

// recordedWorkloads maps the setting blocking to the workloads that have a record.
func (r *WorkloadReconciler) recordedWorkloads(ctx context.Context, setting client.Object) []workload.Key {
	return r.Workloads(ctx, func(w client.Object) bool { return w.GetLabels()[v1alpha1.VersionLabel] != "" }, r.WhereInForce(setting)...)
}

// installed lets the operator's setting blocking through when it says since when this
// installation runs.
func (r *WorkloadReconciler) installed() predicate.Predicate {
	since := func(o client.Object) time.Time {
		setting, ok := o.(*v1alpha1.OpsConfigInfo)
		if !ok || setting.Namespace != r.Operator || setting.Name != settings.NameBlocking {
			return time.Time{}
		}
		return defense.InstalledSince(setting)
	}
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return !since(e.Object).IsZero() },
		UpdateFunc:  func(e event.UpdateEvent) bool { return !since(e.ObjectNew).Equal(since(e.ObjectOld)) },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// podsOfWorkload maps a workload to the pods of its release that may be
// finished: pods that became ready before their release was recorded, or before
// the cache showed it, wait for this.
func (r *PodReconciler) podsOfWorkload(kind workload.Kind) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		return r.podsOf(ctx, kind, client.ObjectKeyFromObject(o))
	}
}

// podsOfSecondary does it for an object between a workload and its pods.
func (r *PodReconciler) podsOfSecondary(kind workload.Kind, s workload.Secondary) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		owner, ok := s.OwnerOf(o)
		if !ok {
			return nil
		}
		return r.podsOf(ctx, kind, owner.Key.NamespacedName)
	}
}

func (r *PodReconciler) podsOf(ctx context.Context, kind workload.Kind, key types.NamespacedName) []reconcile.Request {
	w, err := kind.Summary(ctx, r.Cached, key)
	if err != nil {
		log.FromContext(ctx).Error(err, "find the pods of a workload", "workload", key)
	}
	if err != nil || w == nil || w.RecordedVersion() == "" {
		return nil
	}
	pods, err := kind.Pods(ctx, r.Cached, w)
	if err != nil {
		log.FromContext(ctx).Error(err, "find the pods of a workload", "workload", key)
	}
	var requests []reconcile.Request
	for i := range pods {
		if isUnlabelled(&pods[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: pods[i].Namespace, Name: pods[i].Name}})
		}
	}
	return requests
}

func (r *PodReconciler) podsOfNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &corev1.PodList{}, unlabelled, client.InNamespace(ns.GetName()))
}

// batchesOfChange maps a release to its batches that are not done, and to those
// for which there is a verdict.
func (r *ChangePodReconciler) batchesOfChange(ctx context.Context, o client.Object) []reconcile.Request {
	verdicts := map[string]bool{}
	if change, ok := o.(*v1alpha1.ChangeWorkload); ok {
		for i := range change.Status.UnclaimedVerdicts {
			verdicts[change.Status.UnclaimedVerdicts[i].NodeID] = true
		}
	}
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangePodList{}, func(b *v1alpha1.ChangePod) bool {
		return b.Status.Status != v1alpha1.ChangePodExecuteDone || b.Status.EndDueTimeUnix != 0 || verdicts[b.Status.ChangePodID]
	}, cluster.OwnedBy(o.GetNamespace(), o.GetUID())...)
}

// batchesOfPod maps a pod to the batch it is in, while checks of it go on.
func (r *ChangePodReconciler) batchesOfPod(ctx context.Context, o client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangePodList{}, func(b *v1alpha1.ChangePod) bool {
		return slices.ContainsFunc(b.Spec.PodInfos, func(p v1alpha1.PodInfo) bool { return p.UID == string(o.GetUID()) }) && r.goesOn(b)
	}, client.InNamespace(o.GetNamespace()), client.MatchingFields{workload.IndexByPod: workload.PodGroup(o.GetUID())})
}

// goesOn says that a check of a policy goes on of a batch.
func (r *ChangePodReconciler) goesOn(b *v1alpha1.ChangePod) bool {
	return slices.ContainsFunc(b.Status.Checks, func(c v1alpha1.CheckStatus) bool { return defense.CheckGoesOn(&c, r.Clock.Now()) })
}

// batchesOfPolicy maps a policy to the batches whose checks go by it.
func (r *ChangePodReconciler) batchesOfPolicy(ctx context.Context, o client.Object) []reconcile.Request {
	var where []client.ListOption
	if o.GetNamespace() != r.Operator {
		where = append(where, client.InNamespace(o.GetNamespace()))
	}
	prefix := o.GetNamespace() + "/" + o.GetName() + "/"
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangePodList{}, func(b *v1alpha1.ChangePod) bool {
		return slices.ContainsFunc(b.Status.Checks, func(c v1alpha1.CheckStatus) bool {
			return strings.HasPrefix(c.Name, prefix) && defense.CheckGoesOn(&c, r.Clock.Now())
		})
	}, where...)
}

// batchesOfWorkload maps a workload that opted in again to its batches that are
// not done.
func (r *ChangePodReconciler) batchesOfWorkload(ctx context.Context, o client.Object) []reconcile.Request {
	changes, err := r.Releases(ctx, o.GetNamespace(), o.GetUID())
	if err != nil {
		log.FromContext(ctx).Error(err, "find the releases of a workload", "uid", o.GetUID())
	}
	var requests []reconcile.Request
	for i := range changes {
		requests = append(requests, r.batchesOfChange(ctx, &changes[i])...)
	}
	return requests
}

// batchesOfNamespace maps a namespace to its batches that are not done, for
// when it is enrolled again.
func (r *ChangePodReconciler) batchesOfNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangePodList{}, func(b *v1alpha1.ChangePod) bool {
		return b.Status.Status != v1alpha1.ChangePodExecuteDone || b.Status.EndDueTimeUnix != 0
	}, client.InNamespace(ns.GetName()))
}

// openOrders maps a changed setting to the orders that follow it.
func (r *OrderReconciler) openOrders(ctx context.Context, setting client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, defense.OrderWaits, r.WhereInForce(setting)...)
}

// ordersOfNamespace and ordersOfWorkload map what was enrolled again, or opted
// in again, to its orders that wait.
func (r *OrderReconciler) ordersOfNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, defense.OrderWaits, client.InNamespace(ns.GetName()))
}

func (r *OrderReconciler) ordersOfWorkload(ctx context.Context, o client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, defense.OrderWaits, cluster.OwnedBy(o.GetNamespace(), o.GetUID())...)
}

// settingsBelow maps a setting of the operator's to those of namespaces of the
// same name.
func (r *OpsConfigInfoReconciler) settingsBelow(ctx context.Context, o client.Object) []reconcile.Request {
	if o.GetNamespace() != r.Operator {
		return nil
	}
	return cluster.Requests(ctx, r.View, &v1alpha1.OpsConfigInfoList{}, func(s *v1alpha1.OpsConfigInfo) bool {
		return s.Name == o.GetName() && s.Namespace != r.Operator
	})
}

// settingsOf maps a namespace to the settings of its own.
func (r *OpsConfigInfoReconciler) settingsOf(ctx context.Context, ns client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.OpsConfigInfoList{}, cluster.Any, client.InNamespace(ns.GetName()))
}
