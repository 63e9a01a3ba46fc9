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
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/record"
)

// ReleaseCheckReconciler runs the checks of policies on releases as a whole, and alone writes their
// results. The ChangeWorkloadReconciler adds the checks, and decides what a result means for the
// release.
type ReleaseCheckReconciler struct {
	*cluster.Cluster
	checks *checker
}

// behindCache is the time until the next try if the workload is not at the release.
const behindCache = 5 * time.Second

func newReleaseCheckReconciler(c *cluster.Cluster, providers ...checks.Provider) *ReleaseCheckReconciler {
	r := &ReleaseCheckReconciler{Cluster: c}
	r.checks = &checker{Cluster: c, providers: providers, emit: r.emit}
	return r
}

// SetupWithManager adds the controller to the manager.
func (r *ReleaseCheckReconciler) SetupWithManager(mgr ctrl.Manager) error {
	// Also after the checks ended: then their calls end, and the provider forgets them.
	checked := func(o client.Object) bool {
		change, ok := o.(*v1alpha1.ChangeWorkload)
		return ok && slices.ContainsFunc(change.Status.Checks, func(c v1alpha1.CheckStatus) bool { return c.Type != "" })
	}
	b := ctrl.NewControllerManagedBy(mgr).
		Named("releasecheck").
		For(&v1alpha1.ChangeWorkload{}, builder.WithPredicates(predicate.NewPredicateFuncs(checked)))
	// The workload opts in again, or has other settings.
	return watchKinds(b, r.Cluster, watchObjects(to(r.checksOfWorkload), defenseChanged())).
		// A policy of the checks changes.
		Watches(&v1alpha1.DefensePolicy{}, to(r.checksOfPolicy), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// The namespace is enrolled again.
		Watches(cluster.NamespaceObject(), to(r.checksOfNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, ReconciliationTimeout: reconcileTimeout}).
		Complete(cluster.Quiet(r))
}

// Reconcile runs the checks of one release.
func (r *ReleaseCheckReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var change v1alpha1.ChangeWorkload
	if err := r.Client.Get(ctx, req.NamespacedName, &change); err != nil {
		if apierrors.IsNotFound(err) {
			r.checks.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !r.goesOn(&change) {
		r.checks.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	subject := checks.Subject{Release: &change}
	var err error
	if subject.Workload, err = r.DefendedOwner(ctx, &change); err != nil || subject.Workload == nil {
		return ctrl.Result{}, err
	}
	if subject.Workload.Release() != change.Spec.Release || subject.Workload.Version != change.Spec.Reversion {
		// Another release began, or the cache does not show this release yet.
		r.checks.forget(req.NamespacedName)
		return ctrl.Result{RequeueAfter: behindCache}, nil
	}
	inForce, err := r.InForceOf(ctx, subject.Workload, &change)
	if err != nil {
		return ctrl.Result{}, err
	}
	subject.Settings, subject.Defended = inForce.Settings, true
	if subject.Policies, subject.Selected, err = r.PoliciesFor(ctx, subject.Workload); err != nil {
		return ctrl.Result{}, err
	}
	return r.checks.run(ctx, subject)
}

// goesOn reports whether a check of a policy may still get a result for the release.
func (r *ReleaseCheckReconciler) goesOn(change *v1alpha1.ChangeWorkload) bool {
	return record.ReleaseChecksGoOn(change, r.Clock.Now())
}

// emit reports a written change of a check.
func (r *ReleaseCheckReconciler) emit(ctx context.Context, before, after checks.Subject, events []record.Event) {
	reportState(ctx, r.Kinds, before.Release, after.Release)
	for _, e := range events {
		r.Event(after.Workload, after.Release, e, "Verify")
	}
}

// checksOfPolicy maps a policy to the releases with open checks of the policy.
func (r *ReleaseCheckReconciler) checksOfPolicy(ctx context.Context, o client.Object) []reconcile.Request {
	var where []client.ListOption
	if o.GetNamespace() != r.Operator {
		where = append(where, client.InNamespace(o.GetNamespace()))
	}
	prefix := o.GetNamespace() + "/" + o.GetName() + "/"
	ofPolicy := func(check v1alpha1.CheckStatus) bool { return strings.HasPrefix(check.Name, prefix) }
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, func(c *v1alpha1.ChangeWorkload) bool {
		return r.goesOn(c) && slices.ContainsFunc(c.Status.Checks, ofPolicy)
	}, where...)
}

func (r *ReleaseCheckReconciler) checksOfWorkload(ctx context.Context, o client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, r.goesOn, cluster.OwnedBy(o.GetNamespace(), o.GetUID())...)
}

func (r *ReleaseCheckReconciler) checksOfNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, r.goesOn, client.InNamespace(o.GetName()))
}
