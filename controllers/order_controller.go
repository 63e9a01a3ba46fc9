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

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
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
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/verify"
)

// OrderReconciler carries out the orders of releases at AlterShield Server. It is a controller of
// its own, so that a server that does not answer delays nothing else.
type OrderReconciler struct {
	*cluster.Cluster
	checks *checker
}

func newOrderReconciler(c *cluster.Cluster, providers ...checks.Provider) *OrderReconciler {
	r := &OrderReconciler{Cluster: c}
	r.checks = &checker{Cluster: c, providers: providers, emit: r.emit}
	return r
}

// SetupWithManager adds the controller to the manager.
func (r *OrderReconciler) SetupWithManager(mgr ctrl.Manager) error {
	b := ctrl.NewControllerManagedBy(mgr).
		Named("order").
		For(&v1alpha1.ChangeWorkload{})
	// The workload opts out or in again, or has other settings.
	return watchKinds(b, r.Cluster, watchObjects(to(r.ordersOfWorkload), defenseChanged())).
		// A setting changes how long a check may take, or what silence means.
		Watches(&v1alpha1.OpsConfigInfo{}, to(r.openOrders)).
		// A policy changes what silence means.
		Watches(&v1alpha1.DefensePolicy{}, to(r.openOrders), builder.WithPredicates(predicate.NewPredicateFuncs(namesServer))).
		// The namespace is enrolled again.
		Watches(cluster.NamespaceObject(), to(r.ordersOfNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: verify.Workers, ReconciliationTimeout: reconcileTimeout}).
		Complete(cluster.Quiet(r))
}

// Reconcile carries out the order of one release.
func (r *OrderReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var change v1alpha1.ChangeWorkload
	if err := r.Client.Get(ctx, req.NamespacedName, &change); err != nil {
		if apierrors.IsNotFound(err) {
			r.checks.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if change.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	subject, err := r.load(ctx, &change)
	if err != nil {
		return ctrl.Result{}, err
	}
	return r.checks.run(ctx, subject)
}

// load reads the input of a decision.
func (r *OrderReconciler) load(ctx context.Context, change *v1alpha1.ChangeWorkload) (s checks.Subject, err error) {
	s.Release = change
	if s.Defended, err = r.Defended(ctx, change); err != nil {
		return s, err
	}
	if s.Workload, err = r.OwnerOf(ctx, change); err != nil {
		return s, err
	}
	// The release reports settings that cannot be used.
	var inForce settings.InForce
	if s.Workload != nil {
		inForce, err = r.InForceOf(ctx, s.Workload, change)
	} else {
		inForce, err = r.InForceIn(ctx, change.Namespace)
	}
	s.Settings = inForce.Settings
	return s, err
}

// emit reports a written change of an order.
func (r *OrderReconciler) emit(ctx context.Context, before, after checks.Subject, events []record.Event) {
	reportState(ctx, r.Kinds, before.Release, after.Release)
	for _, e := range events {
		log.FromContext(ctx).Info("something about the order needs attention", "event", e.Reason, "message", e.Message)
		if e.Reason == v1alpha1.EventCheckError {
			metrics.OrderCheckMissing()
		}
		if after.Workload != nil {
			r.Event(after.Workload, after.Release, e, "Verify")
		}
	}
}

// orderEnd is the end of the order of a release whose record is gone.
type orderEnd struct {
	// gone has the fields of the record that are needed, and why is the reason for the end.
	gone *v1alpha1.ChangeWorkload
	why  string
	// deadline is when the end is dropped, in Unix seconds.
	deadline int64
}

// OrderEndReconciler ends the orders of releases whose records were removed before the server was
// notified, for example because a user deleted the workload. There are no finalizers, so that no
// deletion is blocked. An end that the server does not get by its deadline, or before the process
// ends, is dropped.
type OrderEndReconciler struct {
	*cluster.Cluster
	server *verify.AlterShield
}

// SetupWithManager adds the controller to the manager.
func (r *OrderEndReconciler) SetupWithManager(mgr ctrl.Manager) error {
	gone := handler.TypedFuncs[*v1alpha1.ChangeWorkload, orderEnd]{
		DeleteFunc: func(
			ctx context.Context, e event.TypedDeleteEvent[*v1alpha1.ChangeWorkload], q workqueue.TypedRateLimitingInterface[orderEnd],
		) {
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
				l = l.WithValues("changeworkload", client.ObjectKeyFromObject(end.gone))
			}
			return l
		}).
		Complete(r)
}

func (r *OrderEndReconciler) endOf(ctx context.Context, change *v1alpha1.ChangeWorkload) (orderEnd, bool) {
	s := &change.Status
	if !record.OrderIsOpen(s) {
		return orderEnd{}, false
	}
	if !server.OwnsOrder(change) {
		metrics.ForeignID("order")
		log.FromContext(ctx).Info("a removed record named the order of another record; this order is not ended",
			"changeworkload", client.ObjectKeyFromObject(change), "order", s.OrderID)
		return orderEnd{}, false
	}
	set, err := r.InForceIn(ctx, change.Namespace)
	if err != nil {
		log.FromContext(ctx).Error(err, "end the order of a removed record", "changeworkload", client.ObjectKeyFromObject(change))
		return orderEnd{}, false
	}
	since := cmp.Or(s.OrderEndDueTimeUnix, r.Clock.Now().Unix())
	gone := &v1alpha1.ChangeWorkload{ObjectMeta: metav1.ObjectMeta{Namespace: change.Namespace, Name: change.Name, UID: change.UID}}
	gone.Status = v1alpha1.ChangeWorkloadStatus{
		Status: s.Status, PassCount: s.PassCount, FailCount: s.FailCount, CheckingCount: s.CheckingCount,
		OrderStatus: v1alpha1.OrderStatus{
			OrderID: s.OrderID, OrderTenant: s.OrderTenant, OrderNodeID: s.OrderNodeID, OrderStage: s.OrderStage,
			OrderEnd: cmp.Or(s.OrderEnd, v1alpha1.FinishCancel), OrderSubmitTimeUnix: s.OrderSubmitTimeUnix,
		},
	}
	return orderEnd{gone, whyGone(s), since + int64(set.PostTimeout.Seconds())}, true
}

// whyGone returns why the order of a removed record ends.
func whyGone(s *v1alpha1.ChangeWorkloadStatus) string {
	if !record.IsOpen(s.Status) {
		return server.HowReleaseEnded(s)
	}
	return "the release was canceled: its record was removed, as when the workload is deleted; until then " + server.HowReleaseEnded(s)
}

// Reconcile ends one order.
func (r *OrderEndReconciler) Reconcile(ctx context.Context, end orderEnd) (ctrl.Result, error) {
	if r.Clock.Now().Unix() >= end.deadline {
		r.server.Forget(types.NamespacedName{Name: end.gone.Status.OrderID})
		return ctrl.Result{}, nil
	}
	return ctrl.Result{RequeueAfter: r.server.EndGone(ctx, end.gone, end.why)}, nil
}

// openOrders maps a changed setting to the orders for which it is in force.
func (r *OrderReconciler) openOrders(ctx context.Context, setting client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, record.OrderWaits, r.WhereInForce(setting)...)
}

// ordersOfNamespace and ordersOfWorkload map a namespace that is enrolled again, or a workload that
// opted in again, to its orders that wait.
func (r *OrderReconciler) ordersOfNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, record.OrderWaits, client.InNamespace(ns.GetName()))
}

func (r *OrderReconciler) ordersOfWorkload(ctx context.Context, o client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, record.OrderWaits, cluster.OwnedBy(o.GetNamespace(), o.GetUID())...)
}
