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
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/times"
)

// DefensePolicyReconciler writes to each policy whether it is in force, and keeps its last valid
// spec. A request is for a namespace, because only all policies together show which are too many.
type DefensePolicyReconciler struct {
	*cluster.Cluster
}

// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=defensepolicies,verbs=list;watch
// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,namespace=altershieldoperator-system,resources=defensepolicies,verbs=create
// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=defensepolicies/status,verbs=update

// gatherPolicies is how long changes of policies are gathered, because many come at once.
const gatherPolicies = time.Second

// SetupWithManager adds the controller to the manager.
func (r *DefensePolicyReconciler) SetupWithManager(mgr ctrl.Manager) error {
	soon := func(client.Object) time.Duration { return gatherPolicies }
	b := ctrl.NewControllerManagedBy(mgr).
		Named("defensepolicy").
		Watches(&v1alpha1.DefensePolicy{}, gathered(soon, r.namespacesOfPolicy)).
		// The policies of a namespace count once it is enrolled.
		Watches(cluster.NamespaceObject(), gathered(soon, r.namespaceItself), builder.WithPredicates(predicate.LabelChangedPredicate{}))
	// Policies may be too many for a workload that is new, or has other labels.
	return watchKinds(b, r.Cluster, watchObjects(gathered(soon, r.namespacesOfWorkload), predicate.LabelChangedPredicate{})).
		WithOptions(controller.Options{ReconciliationTimeout: reconcileTimeout}).
		Complete(cluster.Quiet(r))
}

// namespacesOfPolicy maps a policy to its namespace, and a policy of the operator's namespace to
// all namespaces with policies, because it comes before their policies.
func (r *DefensePolicyReconciler) namespacesOfPolicy(ctx context.Context, o client.Object) []reconcile.Request {
	requests := []reconcile.Request{namespaceRequest(o.GetNamespace())}
	if o.GetNamespace() != r.Operator {
		return requests
	}
	seen := map[string]bool{r.Operator: true}
	for _, other := range cluster.Requests(ctx, r.View, &v1alpha1.DefensePolicyList{}, cluster.Any) {
		if !seen[other.Namespace] {
			seen[other.Namespace] = true
			requests = append(requests, namespaceRequest(other.Namespace))
		}
	}
	return requests
}

// namespacesOfWorkload maps a workload to its namespace, and to the operator's.
func (r *DefensePolicyReconciler) namespacesOfWorkload(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{namespaceRequest(o.GetNamespace()), namespaceRequest(r.Operator)}
}

func (*DefensePolicyReconciler) namespaceItself(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{namespaceRequest(o.GetName())}
}

func namespaceRequest(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// Reconcile judges the policies of a namespace, if it is the operator's or enrolled.
func (r *DefensePolicyReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if req.Name != r.Operator {
		ns, err := r.Namespace(ctx, req.Name)
		if err != nil || !ns.Enrolled {
			return ctrl.Result{}, err
		}
	}
	policies, err := r.Policies(ctx, req.Name)
	if err != nil || len(policies) == 0 {
		return ctrl.Result{}, err
	}
	over, err := r.tooMany(ctx, req.Name, policies)
	if err != nil {
		return ctrl.Result{}, err
	}
	var errs []error
	var result ctrl.Result
	for i := range policies {
		if policies[i].Namespace == req.Name {
			after, err := r.judge(ctx, &policies[i], over[policies[i].Name])
			errs = append(errs, err)
			if after > 0 && (result.RequeueAfter == 0 || after < result.RequeueAfter) {
				result.RequeueAfter = after
			}
		}
	}
	return cluster.Settle(ctx, result, errors.Join(errs...))
}

// tooMany returns the policies of a namespace that are too many for a workload, each with the
// name of such a workload: the reported workload while it has too many, otherwise the first by
// name. So the status does not depend on the order of the workloads in the cache.
func (r *DefensePolicyReconciler) tooMany(
	ctx context.Context, namespace string, policies []v1alpha1.DefensePolicy,
) (map[string]string, error) {
	var where []client.ListOption
	if namespace != r.Operator {
		where = append(where, client.InNamespace(namespace))
	}
	over, namespaces, failed := map[string]string{}, map[string]cluster.Namespace{}, error(nil)
	byName := map[string]*v1alpha1.DefensePolicy{}
	for i := range policies {
		if policies[i].Namespace == namespace {
			byName[policies[i].Name] = &policies[i]
		}
	}
	r.Workloads(ctx, func(w client.Object) bool {
		ns, ok := namespaces[w.GetNamespace()]
		if !ok {
			var err error
			if ns, err = r.Namespace(ctx, w.GetNamespace()); err != nil {
				failed = err
			}
			namespaces[w.GetNamespace()] = ns
		}
		if !ns.Enrolled {
			return false
		}
		selected := policy.Select(policies, r.Operator, policy.Workload{
			Namespace: w.GetNamespace(), NamespaceLabels: ns.Meta.Labels, Labels: w.GetLabels(),
		})
		for _, name := range selected.Over {
			of, name, _ := strings.Cut(name, "/")
			if of != namespace {
				continue
			}
			is, known := w.GetNamespace()+"/"+w.GetName(), over[name]
			if p := byName[name]; known == "" || !policy.ReportedFor(p, known) && (is < known || policy.ReportedFor(p, is)) {
				over[name] = is
			}
		}
		return false
	}, where...)
	return over, failed
}

// judge writes whether a policy is in force, and the windows of its freezes. It returns how long the status holds.
func (r *DefensePolicyReconciler) judge(ctx context.Context, p *v1alpha1.DefensePolicy, overFor string) (time.Duration, error) {
	updated := p.DeepCopy()
	status := policy.Judge(updated, r.Operator, overFor)
	condition := metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: conditionStatus(status.Accepted), Reason: status.Reason, Message: status.Message,
		ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	}
	v1alpha1.SetCondition("DefensePolicy", &updated.Status.Conditions, condition)
	updated.Status.ObservedGeneration = p.Generation
	updated.Status.CheckCount = int32(len(p.Spec.Checks)) //nolint:gosec // the schema allows 16
	if status.Valid {
		updated.Status.InForce, updated.Status.InForceGeneration = updated.Spec.DeepCopy(), p.Generation
	}
	now := r.Clock.Now()
	after := times.Shortest(policy.StaysAside(&updated.Status, now), policy.RenewWindows(&updated.Status, p.Status.InForceGeneration, now))
	if equality.Semantic.DeepEqual(updated.Status, p.Status) {
		return after, nil
	}
	if err := r.Client.Status().Update(ctx, updated); err != nil {
		return 0, fmt.Errorf("update status of defensepolicy %s/%s: %w", p.Namespace, p.Name, err)
	}
	log.FromContext(ctx).Info("policy changed", "defensepolicy", p.Namespace+"/"+p.Name, "mode", p.Spec.Mode,
		"accepted", status.Accepted, "reason", status.Reason, "message", status.Message)
	return after, nil
}
