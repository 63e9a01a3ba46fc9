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

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// OpsConfigInfoReconciler says on each setting whether it is in force, and
// keeps the last valid value for when it is made invalid.
type OpsConfigInfoReconciler struct {
	base
}

// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,namespace=altershieldoperator-system,resources=opsconfiginfoes,verbs=list;watch;create
// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,namespace=altershieldoperator-system,resources=opsconfiginfoes/status,verbs=update

// SetupWithManager adds the controller to the manager.
func (r *OpsConfigInfoReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("opsconfiginfo").
		For(&v1alpha1.OpsConfigInfo{}).
		WithOptions(controller.Options{ReconciliationTimeout: reconcileTimeout}).
		Complete(quiet(r))
}

// Reconcile judges one setting.
func (r *OpsConfigInfoReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var object v1alpha1.OpsConfigInfo
	if err := r.client.Get(ctx, req.NamespacedName, &object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	assessment := settings.Assess(&object)
	updated := object.DeepCopy()
	updated.Status.InForce = assessment.InForce
	updated.Status.ObservedGeneration = object.Generation
	meta.SetStatusCondition(&updated.Status.Conditions, metav1.Condition{
		Type:               v1alpha1.ConditionAccepted,
		Status:             conditionStatus(assessment.Accepted),
		Reason:             assessment.Reason,
		Message:            assessment.Message,
		ObservedGeneration: object.Generation,
		LastTransitionTime: metav1.NewTime(r.clock.Now()),
	})
	if equality.Semantic.DeepEqual(updated.Status, object.Status) {
		return ctrl.Result{}, nil
	}
	if err := r.client.Status().Update(ctx, updated); err != nil {
		return settle(ctx, ctrl.Result{}, fmt.Errorf("update status of opsconfiginfo %s: %w", object.Name, err))
	}
	log.FromContext(ctx).Info("setting changed", "enable", object.Spec.Enable, "content", object.Spec.Content,
		"accepted", assessment.Accepted, "message", assessment.Message)
	return ctrl.Result{}, nil
}

func conditionStatus(ok bool) metav1.ConditionStatus {
	if ok {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}
