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
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/verify"
)

// ReleaseCheckReconciler carries the checks of releases as a whole on: the order on AlterShield Server, of whose status it is the only one
// to move orderStage and what belongs to it, and those of policies. Which there are is written by the ChangeWorkloadReconciler, which also
// decides what they mean for the release. It is a controller of its own, so that a server that does not answer holds up nothing else.
type ReleaseCheckReconciler struct {
	*cluster.Cluster
	checks *checker
	// server is nil where there is none.
	policies, server checks.Provider
}

// behindCache is when to look again where the workload is not what the release is of.
const behindCache = 5 * time.Second

func newReleaseCheckReconciler(c *cluster.Cluster, policies, server checks.Provider) *ReleaseCheckReconciler {
	r := &ReleaseCheckReconciler{Cluster: c, policies: policies, server: server}
	r.checks = &checker{Cluster: c, emit: r.emit}
	return r
}

// SetupWithManager adds the controller to the manager.
func (r *ReleaseCheckReconciler) SetupWithManager(mgr ctrl.Manager) error {
	looks := workers
	if r.server != nil {
		looks = verify.Workers
	}
	// Also once checks are over: what is remembered of them, and calls, end then.
	checked := func(o client.Object) bool {
		change, ok := o.(*v1alpha1.ChangeWorkload)
		return ok && (r.server != nil || slices.ContainsFunc(change.Status.Checks, func(c v1alpha1.CheckStatus) bool { return c.Type != "" }))
	}
	b := ctrl.NewControllerManagedBy(mgr).
		Named("releasecheck").
		For(&v1alpha1.ChangeWorkload{}, builder.WithPredicates(predicate.NewPredicateFuncs(checked)))
	for _, kind := range r.Kinds.Kinds() {
		// The workload opts out or in again, or has other settings.
		b = b.Watches(kind.Object(), to(r.releaseOfWorkload), builder.WithPredicates(defenseChanged()))
	}
	return b.
		// A setting changes how long a check may take, or what silence means.
		Watches(&v1alpha1.OpsConfigInfo{}, to(r.openOrders)).
		// A policy that the checks go by changes, or what silence means does.
		Watches(&v1alpha1.DefensePolicy{}, to(r.releasesOfPolicy), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// The namespace is enrolled again.
		Watches(cluster.NamespaceObject(), to(r.releasesOfNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: looks, ReconciliationTimeout: reconcileTimeout}).
		Complete(cluster.Quiet(r))
}

// Reconcile carries the checks of one release on.
func (r *ReleaseCheckReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var change v1alpha1.ChangeWorkload
	if err := r.Client.Get(ctx, req.NamespacedName, &change); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
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
	goesOn := subject.Defended && r.goesOn(&change)
	current := goesOn && subject.Workload.Release() == change.Spec.Release && subject.Workload.Version == change.Spec.Reversion
	var providers []checks.Provider
	if current {
		if subject.Policies, subject.Selected, err = r.PoliciesFor(ctx, subject.Workload); err != nil {
			return ctrl.Result{}, err
		}
		providers = append(providers, r.policies)
	} else {
		r.policies.Forget(req.NamespacedName)
	}
	if r.server != nil {
		providers = append(providers, r.server) // last: its calls take long
	}
	result, err := r.checks.run(ctx, subject, providers...)
	if err == nil && goesOn && !current {
		// Another release came, or this one is not seen yet: an event tells when it is.
		result.RequeueAfter = times.Shortest(result.RequeueAfter, behindCache)
	}
	return result, err
}

// forget drops what is remembered of a release that is gone.
func (r *ReleaseCheckReconciler) forget(key types.NamespacedName) {
	r.policies.Forget(key)
	if r.server != nil {
		r.server.Forget(key)
	}
}

// load reads all a decision needs.
func (r *ReleaseCheckReconciler) load(ctx context.Context, change *v1alpha1.ChangeWorkload) (s checks.Subject, err error) {
	s.Release = change
	if s.Defended, err = r.Defended(ctx, change); err != nil {
		return s, err
	}
	if s.Workload, err = r.OwnerOf(ctx, change); err != nil {
		return s, err
	}
	// Settings that cannot be used are reported by the release.
	var inForce settings.InForce
	if s.Workload != nil {
		inForce, err = r.InForceOf(ctx, s.Workload, change)
	} else {
		inForce, err = r.InForceIn(ctx, change.Namespace)
	}
	s.Settings = inForce.Settings
	return s, err
}

// goesOn says that a check of a policy goes on of a release.
func (r *ReleaseCheckReconciler) goesOn(change *v1alpha1.ChangeWorkload) bool {
	return record.ReleaseChecksGoOn(change, r.Clock.Now())
}

// emit reports what became of a check, after it was written.
func (r *ReleaseCheckReconciler) emit(ctx context.Context, by string, before, after checks.Subject, events []record.Event) {
	reportState(ctx, before.Release, after.Release)
	for _, e := range events {
		if by == record.ServerCheck {
			log.FromContext(ctx).Info("something about the order needs attention", "event", e.Reason, "message", e.Message)
			if e.Reason == v1alpha1.EventCheckError {
				metrics.OrderCheckMissing()
			}
		}
		if after.Workload != nil {
			r.Event(after.Workload, after.Release, e, "Verify")
		}
	}
}

// releasesOfPolicy maps a policy to the releases whose checks go by it, and to orders where it says what silence of the server means.
func (r *ReleaseCheckReconciler) releasesOfPolicy(ctx context.Context, o client.Object) []reconcile.Request {
	prefix, names := o.GetNamespace()+"/"+o.GetName()+"/", namesServer(o)
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, func(c *v1alpha1.ChangeWorkload) bool {
		return names && r.orderWaits(c) ||
			r.goesOn(c) && slices.ContainsFunc(c.Status.Checks, func(check v1alpha1.CheckStatus) bool { return strings.HasPrefix(check.Name, prefix) })
	}, r.WhereInForce(o)...)
}

// openOrders maps a changed setting to the orders that follow it.
func (r *ReleaseCheckReconciler) openOrders(ctx context.Context, setting client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, r.orderWaits, r.WhereInForce(setting)...)
}

func (r *ReleaseCheckReconciler) orderWaits(c *v1alpha1.ChangeWorkload) bool {
	return r.server != nil && record.OrderWaits(c)
}

// mayGoOn says that a check of a release goes on once the release is defended again.
func (r *ReleaseCheckReconciler) mayGoOn(c *v1alpha1.ChangeWorkload) bool {
	return r.goesOn(c) || r.orderWaits(c)
}

func (r *ReleaseCheckReconciler) releaseOfWorkload(ctx context.Context, o client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, r.mayGoOn, cluster.OwnedBy(o.GetNamespace(), o.GetUID())...)
}

func (r *ReleaseCheckReconciler) releasesOfNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, r.mayGoOn, client.InNamespace(o.GetName()))
}
