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
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// PolicyQueriesReconciler tries the queries of each accepted policy once, and writes what they found
// to the condition QueriesWork. Nothing depends on the condition.
type PolicyQueriesReconciler struct {
	*cluster.Cluster
	try func(context.Context, *v1alpha1.DefensePolicy, *workload.Workload, policy.Workload) (checks.Trial, error)
}

// tryAgain is the time until the next trial while there are no pods, or the endpoint does not answer.
const tryAgain = time.Minute

// SetupWithManager adds the controller to the manager.
func (r *PolicyQueriesReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("policyqueries").
		For(&v1alpha1.DefensePolicy{}).
		// An endpoint that a policy waits for.
		Watches(&v1alpha1.DefenseEndpoint{}, to(r.policiesOfEndpoint)).
		WithOptions(controller.Options{ReconciliationTimeout: reconcileTimeout}).
		Complete(cluster.Quiet(r))
}

// policiesOfEndpoint maps an endpoint to the policies whose trial has no result yet.
func (r *PolicyQueriesReconciler) policiesOfEndpoint(ctx context.Context, e client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.DefensePolicyList{}, func(p *v1alpha1.DefensePolicy) bool {
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionQueriesWork)
		return c != nil && c.Status == metav1.ConditionUnknown && slices.ContainsFunc(p.Spec.Checks, func(c v1alpha1.PolicyCheck) bool {
			return policy.PrometheusOf(&c) == e.GetName()
		})
	})
}

// Reconcile tries the queries of one policy.
func (r *PolicyQueriesReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var p v1alpha1.DefensePolicy
	if err := r.Client.Get(ctx, req.NamespacedName, &p); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	known := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionQueriesWork)
	asks := slices.ContainsFunc(p.Spec.Checks, func(c v1alpha1.PolicyCheck) bool { return policy.PrometheusOf(&c) != "" })
	updated := p.DeepCopy()
	switch {
	case !asks && known == nil, p.Status.InForceGeneration != p.Generation, p.Spec.Mode == v1alpha1.ModeDisabled,
		known != nil && known.ObservedGeneration == p.Generation && known.Status != metav1.ConditionUnknown:
		return ctrl.Result{}, nil
	case !asks:
		meta.RemoveStatusCondition(&updated.Status.Conditions, v1alpha1.ConditionQueriesWork)
		return ctrl.Result{}, r.write(ctx, &p, updated)
	}
	w, selected, err := r.example(ctx, &p)
	if err != nil || w == nil {
		return ctrl.Result{RequeueAfter: tryAgain}, err
	}
	trial, err := r.try(ctx, &p, w, selected)
	if err != nil {
		return ctrl.Result{}, err
	}
	v1alpha1.SetCondition("DefensePolicy", &updated.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionQueriesWork, Status: trial.Status, Reason: trial.Reason, Message: trial.Message,
		ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	})
	result := ctrl.Result{}
	if trial.Status == metav1.ConditionUnknown {
		result.RequeueAfter = tryAgain
	}
	return cluster.Settle(ctx, result, r.write(ctx, &p, updated))
}

func (r *PolicyQueriesReconciler) write(ctx context.Context, p, updated *v1alpha1.DefensePolicy) error {
	if equality.Semantic.DeepEqual(updated.Status, p.Status) {
		return nil
	}
	if err := r.Client.Status().Update(ctx, updated); err != nil {
		return fmt.Errorf("update status of defensepolicy %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// example returns the first workload by name that a policy selects, and that has pods; nil for none.
func (r *PolicyQueriesReconciler) example(ctx context.Context, p *v1alpha1.DefensePolicy) (*workload.Workload, policy.Workload, error) {
	var where []client.ListOption
	if p.Namespace != r.Operator {
		where = append(where, client.InNamespace(p.Namespace))
	}
	var failed error
	selects := func(namespace string, labels map[string]string) (by policy.Workload, does bool) {
		ns, err := r.Namespace(ctx, namespace)
		if err != nil || !ns.Enrolled {
			failed = errors.Join(failed, err)
			return by, false
		}
		by = policy.Workload{Namespace: namespace, NamespaceLabels: ns.Meta.Labels, Labels: labels}
		return by, len(policy.Select([]v1alpha1.DefensePolicy{*p}, r.Operator, by).Checks) > 0
	}
	keys := r.Workloads(ctx, func(o client.Object) bool {
		_, does := selects(o.GetNamespace(), o.GetLabels())
		return does
	}, where...)
	slices.SortFunc(keys, func(a, b workload.Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	for _, key := range keys[:min(len(keys), maxExamples)] {
		w, err := r.Workload(ctx, key)
		if err != nil || w == nil {
			failed = errors.Join(failed, err)
			continue
		}
		by, does := selects(w.Namespace, w.Labels)
		if pods, err := r.Pods(ctx, w); err == nil && does && len(pods) > 0 {
			return w, by, nil
		}
	}
	return nil, policy.Workload{}, failed
}

// maxExamples is the number of workloads of a policy that are looked at for pods.
const maxExamples = 20
