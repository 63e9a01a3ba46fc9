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
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
)

// DefenseEndpointReconciler writes to each endpoint of the operator's namespace whether it is correct,
// and whether it answers. The status changes only when that changes.
type DefenseEndpointReconciler struct {
	*cluster.Cluster
	clients *endpoint.Clients
}

// The Secrets of endpoints are in the operator's namespace, and are read one by one. RBAC cannot
// select them by their label, so the operator uses no Secret without it.

// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,namespace=altershieldoperator-system,resources=defenseendpoints,verbs=list;watch
// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,namespace=altershieldoperator-system,resources=defenseendpoints/status,verbs=update
// +kubebuilder:rbac:groups="",namespace=altershieldoperator-system,resources=secrets,verbs=get

const (
	// reachEvery is the time from one call of an endpoint to the next.
	reachEvery = time.Minute
	// endpointWorkers call endpoints: one that hangs must not delay the others.
	endpointWorkers = 4
)

// SetupWithManager adds the controller to the manager.
func (r *DefenseEndpointReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("defenseendpoint").
		For(&v1alpha1.DefenseEndpoint{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: endpointWorkers, ReconciliationTimeout: reconcileTimeout}).
		Complete(cluster.Quiet(r))
}

// Reconcile calls one endpoint.
func (r *DefenseEndpointReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var e v1alpha1.DefenseEndpoint
	if err := r.Client.Get(ctx, req.NamespacedName, &e); err != nil || e.Namespace != r.Operator {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	updated := e.DeepCopy()
	updated.Status.ObservedGeneration = e.Generation
	accepted, reachable := endpointConditions(r.clients.Reach(ctx, &e))
	for _, c := range []metav1.Condition{accepted, reachable} {
		c.ObservedGeneration, c.LastTransitionTime = e.Generation, metav1.NewTime(r.Clock.Now())
		v1alpha1.SetCondition("DefenseEndpoint", &updated.Status.Conditions, c)
	}
	result := ctrl.Result{RequeueAfter: reachEvery}
	if equality.Semantic.DeepEqual(updated.Status, e.Status) {
		return result, nil
	}
	if err := r.Client.Status().Update(ctx, updated); err != nil {
		return cluster.Settle(ctx, result, fmt.Errorf("update status of defenseendpoint %s/%s: %w", e.Namespace, e.Name, err))
	}
	log.FromContext(ctx).Info("endpoint changed", "defenseendpoint", e.Namespace+"/"+e.Name,
		"accepted", accepted.Reason, "reachable", reachable.Reason, "message", accepted.Message+reachable.Message)
	return result, nil
}

// endpointConditions returns the conditions of an endpoint after a call.
func endpointConditions(err error) (accepted, reachable metav1.Condition) {
	accepted = metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonInForce}
	reachable = metav1.Condition{Type: v1alpha1.ConditionReachable, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAnswers}
	if err == nil {
		return accepted, reachable
	}
	failed := &endpoint.Error{Reason: v1alpha1.ReasonUnavailable, Message: "it cannot be called"}
	errors.As(err, &failed)
	switch failed.Reason {
	case v1alpha1.ReasonInvalidPolicy, v1alpha1.ReasonCredentials:
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, failed.Reason, failed.Message
		reachable.Status, reachable.Reason = metav1.ConditionUnknown, v1alpha1.ReasonNotConfigured
	default:
		reachable.Status, reachable.Reason, reachable.Message = metav1.ConditionFalse, failed.Reason, failed.Message
	}
	return accepted, reachable
}
