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

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// ChangePodReconciler carries batches through their checks. It is the only one
// to move status.status of a ChangePod.
type ChangePodReconciler struct {
	base
}

// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=changepods/status,verbs=update

// SetupWithManager adds the controller to the manager.
func (r *ChangePodReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("changepod").
		For(&v1alpha1.ChangePod{}).
		Watches(namespaceMetadata(), handler.EnqueueRequestsFromMapFunc(r.batchesOfNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, ReconciliationTimeout: reconcileTimeout}).
		Complete(quiet(r))
}

// Reconcile carries one batch on.
func (r *ChangePodReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var batch v1alpha1.ChangePod
	if err := r.client.Get(ctx, req.NamespacedName, &batch); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if batch.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	ns, err := r.observeNamespace(ctx, batch.Namespace)
	if err != nil || !enrolled(ns) {
		return ctrl.Result{}, err
	}
	next, changed := defense.DecideBatch(&batch, r.clock.Now())
	if !changed {
		return ctrl.Result{}, nil
	}
	batch.Status = next
	if err := r.client.Status().Update(ctx, &batch); err != nil {
		return settle(ctx, ctrl.Result{}, fmt.Errorf("update status of changepod %s: %w", batch.Name, err))
	}
	log.FromContext(ctx).Info("batch done", "message", next.Message, "pods", len(batch.Spec.PodInfos))
	return ctrl.Result{}, nil
}

// batchesOfNamespace maps a namespace to its batches that are not done, for
// when it is enrolled again.
func (r *ChangePodReconciler) batchesOfNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	var list v1alpha1.ChangePodList
	if err := r.client.List(ctx, &list, client.InNamespace(ns.GetName()), client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency); err != nil {
		log.FromContext(ctx).Error(err, "list the batches of a namespace", "namespace", ns.GetName())
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if list.Items[i].Status.Status != v1alpha1.ChangePodExecuteDone {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}
