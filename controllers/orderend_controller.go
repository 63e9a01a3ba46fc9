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
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/verify"
)

// orderEnd is the end of the order of a release whose record is gone.
type orderEnd struct {
	// gone is what is needed of the record, and why says why the order ends.
	gone     *v1alpha1.ChangeWorkload
	why      string
	deadline int64
}

// OrderEndReconciler ends the orders of releases whose records were removed
// before the server was notified, for example because somebody deleted the
// workload. There are no finalizers, so that nothing is stuck. An end that the
// server does not get within one deadline, or before the process ends, is
// dropped.
type OrderEndReconciler struct {
	*cluster.Cluster
	server *verify.AlterShield
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
		log.FromContext(ctx).Info("the record of a release that is gone named an order that is not its own, which is not ended",
			"changeworkload", client.ObjectKeyFromObject(change), "order", s.OrderID)
		return orderEnd{}, false
	}
	set, err := r.InForceIn(ctx, change.Namespace)
	if err != nil {
		log.FromContext(ctx).Error(err, "end the order of a release that is gone", "changeworkload", client.ObjectKeyFromObject(change))
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

// whyGone says why the order of a release ends whose record is gone.
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
