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
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/lru"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// OrderReconciler carries the orders of releases through AlterShield Server. Of
// the status of a ChangeWorkload it is the only one to move orderStage and what
// belongs to it; a controller of its own, so that a server that does not answer
// holds up nothing else.
type OrderReconciler struct {
	base
	server *Server
	calls  *callMemory
	ended  *endedOrders
}

// SetupWithManager adds the controller to the manager.
func (r *OrderReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("order").
		For(&v1alpha1.ChangeWorkload{}).
		Watches(&v1alpha1.OpsConfigInfo{}, handler.EnqueueRequestsFromMapFunc(r.openOrders)).
		Watches(r.kind.Object(), handler.EnqueueRequestsFromMapFunc(r.ordersOfWorkload), builder.WithPredicates(defenseChanged())).
		Watches(namespaceMetadata(), handler.EnqueueRequestsFromMapFunc(r.ordersOfNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: serverWorkers, ReconciliationTimeout: reconcileTimeout}).
		Complete(quiet(r))
}

// Reconcile carries the order of one release on.
func (r *OrderReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var change v1alpha1.ChangeWorkload
	if err := r.client.Get(ctx, req.NamespacedName, &change); err != nil {
		if apierrors.IsNotFound(err) {
			r.calls.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if change.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	in, w, err := r.observe(ctx, &change)
	if err != nil {
		return ctrl.Result{}, err
	}
	if a := r.calls.unrecorded(req.NamespacedName, change.Status.OrderID); a != nil && in.Defended {
		if err := r.record(ctx, &change, in, w, *a); err != nil {
			return settle(ctx, ctrl.Result{}, err)
		}
	}
	for {
		in.Change, in.Now = &change, r.clock.Now()
		plan := defense.DecideOrder(in)
		if plan.Status != nil {
			change.Status = *plan.Status
			if err := r.update(ctx, &change); err != nil {
				return settle(ctx, ctrl.Result{}, err)
			}
			r.tell(ctx, &change, w, plan.Events)
			continue
		}
		if plan.Call == defense.CallNone {
			if !defense.OrderWaits(&change) {
				r.calls.forget(req.NamespacedName)
			}
			return ctrl.Result{RequeueAfter: plan.RequeueAfter}, nil
		}
		answer, err := r.call(ctx, &change, w, in.Calls, plan.Call)
		if err != nil {
			return ctrl.Result{}, err
		}
		in.Calls = r.calls.remember(req.NamespacedName, change.Status.OrderID, plan.Call, answer)
		tellCall(ctx, plan.Call, answer, "order", change.Status.OrderID)
		if !in.Defended {
			// Nothing is written about what left the defense.
			r.calls.recorded(req.NamespacedName)
			return ctrl.Result{RequeueAfter: max(in.Calls.NotBefore.Sub(r.clock.Now()), 0)}, nil
		}
		if err := r.record(ctx, &change, in, w, answered{plan.Call, answer}); err != nil {
			return settle(ctx, ctrl.Result{}, err)
		}
	}
}

// observe reads all a decision needs.
func (r *OrderReconciler) observe(ctx context.Context, change *v1alpha1.ChangeWorkload) (in defense.OrderInput, w *defense.Workload, err error) {
	in = defense.OrderInput{Now: r.clock.Now(), Change: change}
	if in.Settings, err = r.observeSettings(ctx); err != nil {
		return in, nil, err
	}
	if in.Defended, err = r.defended(ctx, change); err != nil {
		return in, nil, err
	}
	if w, err = r.ownerOf(ctx, change); err != nil {
		return in, nil, err
	}
	if w != nil {
		// Whoever is wrong is told by the release.
		in.Settings, _ = settings.Override(in.Settings, w.Annotations)
	}
	in.Calls = r.calls.recall(client.ObjectKeyFromObject(change), change.Status.OrderID)
	return in, w, nil
}

// ownerOf reads the workload that owns a release; nil when it is gone.
func (b *base) ownerOf(ctx context.Context, change *v1alpha1.ChangeWorkload) (*defense.Workload, error) {
	ref := metav1.GetControllerOf(change)
	if ref == nil {
		return nil, nil
	}
	w, err := b.kind.Get(ctx, b.client, types.NamespacedName{Namespace: change.Namespace, Name: ref.Name})
	if err != nil || w == nil || w.UID != ref.UID {
		return nil, err
	}
	return w, nil
}

// call makes a call about an order. Its error is of reading, never of the call.
func (r *OrderReconciler) call(ctx context.Context, change *v1alpha1.ChangeWorkload, w *defense.Workload, known defense.Calls, call defense.Call) (defense.Answer, error) {
	switch call {
	case defense.CallSubmit, defense.CallStart:
		about, err := r.released(ctx, change, w)
		if err != nil {
			return defense.Answer{}, err
		}
		if call == defense.CallSubmit {
			return r.server.submit(ctx, change, about), nil
		}
		return r.server.startKnown(ctx, change, about, known, func() defense.Answer {
			return r.server.startOrder(ctx, change, about, r.clock.Now())
		}), nil
	case defense.CallFinish:
		return r.server.finishOrder(ctx, change, r.clock.Now()), nil
	case defense.CallPollPre:
		return r.server.poll(ctx, change.Status.OrderID, change.Status.OrderNodeID, altershield.StagePre), nil
	case defense.CallPollPost:
		return r.server.poll(ctx, change.Status.OrderID, change.Status.OrderNodeID, altershield.StagePost), nil
	case defense.CallEnd:
		return r.ended.end(change.Status.OrderID, func() defense.Answer {
			return r.server.endOrder(ctx, change, r.clock.Now())
		}), nil
	default:
		return defense.Answer{}, fmt.Errorf("no such call about an order: %q", call)
	}
}

// released observes what an order says of a release.
func (b *base) released(ctx context.Context, change *v1alpha1.ChangeWorkload, w *defense.Workload) (released, error) {
	about := released{namespace: change.Namespace, workload: change.Spec.ServiceName, kind: "deployment", by: operatorUser}
	if w == nil || w.Release() != change.Spec.Release || w.Version != change.Spec.Reversion {
		// It has moved on.
		return about, nil
	}
	about.kind, about.workload, about.by = w.Kind, w.Name, w.ReleasedBy()
	var err error
	about.images, about.oldImages, err = b.kind.Images(ctx, b.client, w)
	return about, err
}

// record writes the answer to a call. What was called cannot be undone, so a
// conflict does not stand in its way: the answer is put into the status as it
// is now, if that is still about this order. What cannot be written now is
// remembered.
func (r *OrderReconciler) record(ctx context.Context, change *v1alpha1.ChangeWorkload, in defense.OrderInput, w *defense.Workload, a answered) error {
	key, orderID, fresh := client.ObjectKeyFromObject(change), change.Status.OrderID, change
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if fresh == nil {
			fresh = &v1alpha1.ChangeWorkload{}
			if err := r.live.Get(ctx, key, fresh); err != nil {
				return err
			}
		}
		defended, err := r.defended(ctx, fresh)
		if err != nil {
			return err
		}
		if !defended || fresh.UID != change.UID || fresh.Status.OrderID != orderID {
			r.calls.recorded(key)
			return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("changeworkloads").GroupResource(), change.Name)
		}
		in.Change, in.Now = fresh, r.clock.Now()
		plan, next := defense.AnswerOrder(in, a.call, a.answer), fresh.DeepCopy()
		if plan.Status != nil {
			next.Status = *plan.Status
			if err := r.update(ctx, next); err != nil {
				fresh = nil
				return err
			}
		}
		r.calls.recorded(key)
		r.tell(ctx, next, w, plan.Events)
		*change = *next
		return nil
	})
}

// defended says that a release is still under defense: a call may have taken
// long, and nothing is written about what left meanwhile.
func (b *base) defended(ctx context.Context, change *v1alpha1.ChangeWorkload) (bool, error) {
	ns, err := b.observeNamespace(ctx, change.Namespace)
	if err != nil || !b.enrolled(ns) {
		return false, err
	}
	w, err := b.ownerOf(ctx, change)
	return w != nil && !w.Deleting && !defense.OptedOut(w.Labels), err
}

func (r *OrderReconciler) update(ctx context.Context, change *v1alpha1.ChangeWorkload) error {
	if err := r.client.Status().Update(ctx, change); err != nil {
		return fmt.Errorf("update the order in the status of changeworkload %s: %w", change.Name, err)
	}
	return nil
}

// tell reports what became of an order, after it was written.
func (r *OrderReconciler) tell(ctx context.Context, change *v1alpha1.ChangeWorkload, w *defense.Workload, told []defense.Event) {
	for _, e := range told {
		log.FromContext(ctx).Info("something about the order needs attention", "event", e.Reason, "message", e.Message)
		if e.Reason == defense.EventOrderCheckMissing {
			metrics.OrderCheckMissing()
		}
		if w != nil {
			r.event(w, change, e, "Verify")
		}
	}
}

// tellCall logs a call to the server.
func tellCall(ctx context.Context, call defense.Call, a defense.Answer, about ...any) {
	l := log.FromContext(ctx).WithValues(append([]any{"call", call, "answer", a.Kind}, about...)...)
	switch a.Kind {
	case defense.AnswerThrottled, defense.AnswerNotPassed:
		l.V(1).Info("called AlterShield Server")
	case defense.AnswerDone, defense.AnswerDuplicate:
		l.Info("called AlterShield Server", "node", a.NodeID)
	case defense.AnswerRetry, defense.AnswerDenied, defense.AnswerIllegal, defense.AnswerUnsupported, defense.AnswerNoCheck, defense.AnswerRefused:
		l.Info("AlterShield Server did not do as it was asked", "message", a.Message)
	}
}

// openOrders maps a changed setting to the orders that follow it.
func (r *OrderReconciler) openOrders(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.changesWhere(ctx, defense.OrderWaits)
}

// ordersOfNamespace and ordersOfWorkload map what was enrolled again, or opted
// in again, to its orders that wait.
func (r *OrderReconciler) ordersOfNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	return r.changesWhere(ctx, defense.OrderWaits, client.InNamespace(ns.GetName()))
}

func (r *OrderReconciler) ordersOfWorkload(ctx context.Context, o client.Object) []reconcile.Request {
	return r.changesWhere(ctx, defense.OrderWaits, client.InNamespace(o.GetNamespace()), client.MatchingFields{workload.IndexByOwner: string(o.GetUID())})
}

// defenseChanged lets through workloads that opted out, or in again, or changed
// settings of their own.
func defenseChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return defense.OptedOut(e.ObjectOld.GetLabels()) != defense.OptedOut(e.ObjectNew.GetLabels()) ||
				settings.OverridesDiffer(e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations())
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// endedOrders remembers the orders whose end was told by this process: the
// record of a release may go before that is written into it.
type endedOrders struct {
	mu    sync.Mutex
	cache *lru.Cache
}

const maxEndedOrders = 10_000

func newEndedOrders() *endedOrders { return &endedOrders{cache: lru.New(maxEndedOrders)} }

// end tells the end of an order, unless this process has. Who finds another
// about to tell it comes back later.
func (e *endedOrders) end(orderID string, tell func() defense.Answer) defense.Answer {
	e.mu.Lock()
	told, begun := e.cache.Get(orderID)
	if !begun {
		e.cache.Add(orderID, false)
	}
	e.mu.Unlock()
	switch {
	case told == true:
		return defense.Answer{Kind: defense.AnswerDuplicate}
	case begun:
		return defense.Answer{Kind: defense.AnswerThrottled, After: time.Second}
	}
	a := tell()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch a.Kind {
	case defense.AnswerRetry, defense.AnswerDenied, defense.AnswerThrottled:
		e.cache.Remove(orderID)
	default:
		e.cache.Add(orderID, true)
	}
	return a
}

// orderEnd is the end of the order of a release whose record is gone.
type orderEnd struct {
	types.NamespacedName
	orderID                 string
	state                   v1alpha1.FinishState
	status                  v1alpha1.ChangeWorkloadStatusType
	passed, failed, checked int32
	accepted, deadline      int64
}

// OrderEndReconciler ends the orders of releases whose records were removed
// before the server was told, by whoever deleted the workload for one. There are
// no finalizers, so that nothing hangs; what is not told within one deadline,
// or when the process ends, is not told.
type OrderEndReconciler struct {
	base
	server *Server
	ended  *endedOrders
	calls  *callMemory
}

// SetupWithManager adds the controller to the manager.
func (r *OrderEndReconciler) SetupWithManager(mgr ctrl.Manager) error {
	gone := handler.TypedFuncs[*v1alpha1.ChangeWorkload, orderEnd]{
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[*v1alpha1.ChangeWorkload], q workqueue.TypedRateLimitingInterface[orderEnd]) {
			if end, ok := r.endOf(ctx, e.Object); ok {
				q.Add(end)
			}
		},
	}
	return builder.TypedControllerManagedBy[orderEnd](mgr).
		Named("order-end").
		WatchesRawSource(source.TypedKind(mgr.GetCache(), &v1alpha1.ChangeWorkload{}, gone)).
		WithOptions(controller.TypedOptions[orderEnd]{MaxConcurrentReconciles: 4, ReconciliationTimeout: reconcileTimeout}).
		WithLogConstructor(func(end *orderEnd) logr.Logger {
			l := mgr.GetLogger().WithValues("controller", "order-end")
			if end != nil {
				l = l.WithValues("changeworkload", end.NamespacedName)
			}
			return l
		}).
		Complete(r)
}

func (r *OrderEndReconciler) endOf(ctx context.Context, change *v1alpha1.ChangeWorkload) (orderEnd, bool) {
	s := &change.Status
	if !defense.OrderIsOpen(s) {
		return orderEnd{}, false
	}
	set, err := r.observeSettings(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "end the order of a release that is gone", "changeworkload", client.ObjectKeyFromObject(change))
		return orderEnd{}, false
	}
	since := cmp.Or(s.OrderEndDueTimeUnix, r.clock.Now().Unix())
	return orderEnd{
		NamespacedName: client.ObjectKeyFromObject(change),
		orderID:        s.OrderID, state: cmp.Or(s.OrderEnd, v1alpha1.FinishCancel), status: s.Status,
		passed: s.PassCount, failed: s.FailCount, checked: s.CheckingCount, accepted: s.OrderSubmitTimeUnix,
		deadline: since + int64(set.PostTimeout.Seconds()),
	}, true
}

// Reconcile ends one order.
func (r *OrderEndReconciler) Reconcile(ctx context.Context, end orderEnd) (ctrl.Result, error) {
	key := types.NamespacedName{Name: end.orderID}
	now := r.clock.Now()
	if now.Unix() >= end.deadline {
		r.calls.forget(key)
		return ctrl.Result{}, nil
	}
	if wait := r.calls.recall(key, end.orderID).NotBefore.Sub(now); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	change := &v1alpha1.ChangeWorkload{Status: v1alpha1.ChangeWorkloadStatus{
		OrderID: end.orderID, OrderEnd: end.state, Status: end.status,
		PassCount: end.passed, FailCount: end.failed, CheckingCount: end.checked, OrderSubmitTimeUnix: end.accepted,
	}}
	answer := r.ended.end(end.orderID, func() defense.Answer { return r.server.endOrder(ctx, change, now) })
	tellCall(ctx, defense.CallEnd, answer, "order", end.orderID)
	switch answer.Kind {
	case defense.AnswerRetry, defense.AnswerDenied, defense.AnswerThrottled:
		known := r.calls.remember(key, end.orderID, defense.CallEnd, answer)
		return ctrl.Result{RequeueAfter: max(known.NotBefore.Sub(now), conflictRetry)}, nil
	default:
		r.calls.forget(key)
		return ctrl.Result{}, nil
	}
}
