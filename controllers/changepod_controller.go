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
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
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
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// ChangePodReconciler carries batches through their checks. It is the only one
// to move status.status of a ChangePod.
type ChangePodReconciler struct {
	base
	// server is nil without AlterShield Server.
	server *Server
	calls  *callMemory
}

// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=changepods/status,verbs=update

// SetupWithManager adds the controller to the manager.
func (r *ChangePodReconciler) SetupWithManager(mgr ctrl.Manager) error {
	concurrency := workers
	if r.server != nil {
		concurrency = serverWorkers
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("changepod").
		For(&v1alpha1.ChangePod{}).
		Watches(&v1alpha1.ChangeWorkload{}, handler.EnqueueRequestsFromMapFunc(r.batchesOfChange), builder.WithPredicates(turned())).
		Watches(r.kind.Object(), handler.EnqueueRequestsFromMapFunc(r.batchesOfWorkload), builder.WithPredicates(defenseChanged())).
		Watches(namespaceMetadata(), handler.EnqueueRequestsFromMapFunc(r.batchesOfNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency, ReconciliationTimeout: reconcileTimeout}).
		Complete(quiet(r))
}

// Reconcile carries one batch on.
func (r *ChangePodReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var batch v1alpha1.ChangePod
	if err := r.client.Get(ctx, req.NamespacedName, &batch); err != nil {
		if apierrors.IsNotFound(err) {
			r.calls.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if batch.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	in, w, err := r.observe(ctx, &batch)
	if err != nil || w == nil {
		return ctrl.Result{}, err
	}
	if a := r.calls.unrecorded(req.NamespacedName, string(batch.UID)); a != nil {
		if err := r.record(ctx, &batch, in, w, *a); err != nil {
			return settle(ctx, ctrl.Result{}, err)
		}
	}
	for {
		in.Batch, in.Now = &batch, r.clock.Now()
		plan := defense.DecideBatch(in)
		if plan.Status != nil {
			before := batch.DeepCopy()
			batch.Status = *plan.Status
			if err := r.update(ctx, &batch); err != nil {
				return settle(ctx, ctrl.Result{}, err)
			}
			r.tell(ctx, before, &batch, w, plan.Events)
		}
		if plan.Call == defense.CallNone {
			if batch.Status.Status == v1alpha1.ChangePodExecuteDone {
				r.calls.forget(req.NamespacedName)
			}
			return ctrl.Result{RequeueAfter: plan.RequeueAfter}, nil
		}
		answer, err := r.call(ctx, in, w, plan.Call)
		if err != nil {
			return ctrl.Result{}, err
		}
		tellCall(ctx, plan.Call, answer, "order", in.Change.Status.OrderID)
		in.Calls = r.calls.remember(req.NamespacedName, string(batch.UID), plan.Call, answer)
		if err := r.record(ctx, &batch, in, w, answered{plan.Call, answer}); err != nil {
			return settle(ctx, ctrl.Result{}, err)
		}
	}
}

// observe reads all a decision needs. There is no workload when nothing is to
// be decided: it is gone, or out of the defense.
func (r *ChangePodReconciler) observe(ctx context.Context, batch *v1alpha1.ChangePod) (in defense.BatchInput, w *defense.Workload, err error) {
	in = defense.BatchInput{Now: r.clock.Now(), Batch: batch, Server: r.server != nil}
	ns, err := r.observeNamespace(ctx, batch.Namespace)
	if err != nil || !r.enrolled(ns) {
		return in, nil, err
	}
	ref := metav1.GetControllerOf(batch)
	if ref == nil {
		return in, nil, nil
	}
	var change v1alpha1.ChangeWorkload
	if err := r.client.Get(ctx, types.NamespacedName{Namespace: batch.Namespace, Name: ref.Name}, &change); err != nil || change.UID != ref.UID {
		return in, nil, client.IgnoreNotFound(err)
	}
	if in.Settings, err = r.observeSettings(ctx); err != nil {
		return in, nil, err
	}
	w, err = r.ownerOf(ctx, &change)
	if err != nil || w == nil || w.Deleting || defense.OptedOut(w.Labels) {
		return in, nil, err
	}
	in.Change = &change
	in.Settings, _ = settings.Override(in.Settings, w.Annotations)
	in.Calls = r.calls.recall(client.ObjectKeyFromObject(batch), string(batch.UID))
	return in, w, nil
}

// call makes a call about a batch. Its error is of reading, never of the call.
func (r *ChangePodReconciler) call(ctx context.Context, in defense.BatchInput, w *defense.Workload, call defense.Call) (defense.Answer, error) {
	change, batch := in.Change, in.Batch
	switch call {
	case defense.CallStart:
		about, err := r.released(ctx, change, w)
		if err != nil {
			return defense.Answer{}, err
		}
		return r.server.startKnown(ctx, change, about, in.Calls, func() defense.Answer {
			return r.server.startBatch(ctx, change, batch, r.clock.Now())
		}), nil
	case defense.CallFinish:
		return r.server.finishBatch(ctx, change, batch, r.clock.Now()), nil
	case defense.CallPollPre:
		return r.server.poll(ctx, change.Status.OrderID, batch.Status.ChangePodID, altershield.StagePre), nil
	case defense.CallPollPost:
		return r.server.poll(ctx, change.Status.OrderID, batch.Status.ChangePodID, altershield.StagePost), nil
	default:
		return defense.Answer{}, fmt.Errorf("no such call about a batch: %q", call)
	}
}

// record writes the answer to a call. What was called cannot be undone, so a
// conflict does not stand in its way: the answer is put into the status as it
// is now. What cannot be written now is remembered.
func (r *ChangePodReconciler) record(ctx context.Context, batch *v1alpha1.ChangePod, in defense.BatchInput, w *defense.Workload, a answered) error {
	key, fresh := client.ObjectKeyFromObject(batch), batch.DeepCopy()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if fresh == nil {
			fresh = &v1alpha1.ChangePod{}
			if err := r.live.Get(ctx, key, fresh); err != nil {
				return err
			}
		}
		defended, err := r.defended(ctx, in.Change)
		if err != nil {
			return err
		}
		if !defended || fresh.UID != batch.UID {
			r.calls.recorded(key)
			return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("changepods").GroupResource(), batch.Name)
		}
		in.Batch, in.Now = fresh, r.clock.Now()
		plan, next := defense.AnswerBatch(in, a.call, a.answer), fresh.DeepCopy()
		if plan.Status != nil {
			next.Status = *plan.Status
			if err := r.update(ctx, next); err != nil {
				fresh = nil
				return err
			}
		}
		r.calls.recorded(key)
		r.tell(ctx, fresh, next, w, plan.Events)
		*batch = *next
		return nil
	})
}

func (r *ChangePodReconciler) update(ctx context.Context, batch *v1alpha1.ChangePod) error {
	if err := r.client.Status().Update(ctx, batch); err != nil {
		return fmt.Errorf("update status of changepod %s: %w", batch.Name, err)
	}
	return nil
}

// tell logs and reports what became of a batch, after it was written.
func (r *ChangePodReconciler) tell(ctx context.Context, before, after *v1alpha1.ChangePod, w *defense.Workload, told []defense.Event) {
	if before.Status.Status != after.Status.Status {
		log.FromContext(ctx).Info("batch changed state", "from", before.Status.Status, "to", after.Status.Status,
			"message", after.Status.Message, "pods", len(after.Spec.PodInfos), "node", after.Status.ChangePodID)
	}
	if before.Status.Status != after.Status.Status && after.Status.Status == v1alpha1.ChangePodExecuteDone {
		metrics.BatchDone(after.Status.Message)
	}
	for _, e := range told {
		r.event(w, after, e, "Verify")
	}
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
	return r.batchesWhere(ctx, func(b *v1alpha1.ChangePod) bool {
		return b.Status.Status != v1alpha1.ChangePodExecuteDone || verdicts[b.Status.ChangePodID]
	}, client.InNamespace(o.GetNamespace()), client.MatchingFields{workload.IndexByOwner: string(o.GetUID())})
}

// batchesOfWorkload maps a workload that opted in again to its batches that are
// not done.
func (r *ChangePodReconciler) batchesOfWorkload(ctx context.Context, o client.Object) []reconcile.Request {
	changes, err := r.changesOf(ctx, o.GetNamespace(), o.GetUID(), client.DisableReadYourWritesConsistency)
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
	return r.batchesWhere(ctx, func(b *v1alpha1.ChangePod) bool {
		return b.Status.Status != v1alpha1.ChangePodExecuteDone
	}, client.InNamespace(ns.GetName()))
}

func (r *ChangePodReconciler) batchesWhere(ctx context.Context, wanted func(*v1alpha1.ChangePod) bool, opts ...client.ListOption) []reconcile.Request {
	var list v1alpha1.ChangePodList
	opts = append(opts, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency)
	if err := r.client.List(ctx, &list, opts...); err != nil {
		log.FromContext(ctx).Error(err, "list changepods")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if wanted(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
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
