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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// ChangePodReconciler runs the checks of batches. Besides routers.Verdicts, nothing else changes
// status.status of a ChangePod.
type ChangePodReconciler struct {
	*cluster.Cluster
	checks *checker
	// workers is the number of concurrent reconciles.
	workers int
}

func newChangePodReconciler(c *cluster.Cluster, workers int, providers ...checks.Provider) *ChangePodReconciler {
	r := &ChangePodReconciler{Cluster: c, workers: workers}
	r.checks = &checker{Cluster: c, providers: providers, emit: r.emit}
	return r
}

// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=changepods/status,verbs=update

// SetupWithManager adds the controller to the manager.
func (r *ChangePodReconciler) SetupWithManager(mgr ctrl.Manager) error {
	b := ctrl.NewControllerManagedBy(mgr).
		Named("changepod").
		For(&v1alpha1.ChangePod{})
	// The workload opts in again, or has other settings.
	return watchKinds(b, r.Cluster, watchObjects(to(r.batchesOfWorkload), defenseChanged())).
		// The release changes state, or has a verdict for a batch.
		Watches(&v1alpha1.ChangeWorkload{}, to(r.batchesOfChange), builder.WithPredicates(turned())).
		// A pod of the batch fails, or is no longer Ready.
		Watches(&corev1.Pod{}, to(r.batchesOfPod), builder.WithPredicates(podFails())).
		// A policy of its checks changes.
		Watches(&v1alpha1.DefensePolicy{}, to(r.batchesOfPolicy), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// The namespace is enrolled again.
		Watches(cluster.NamespaceObject(), to(r.batchesOfNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.workers, ReconciliationTimeout: reconcileTimeout}).
		Complete(cluster.Quiet(r))
}

// Reconcile runs the checks of one batch.
func (r *ChangePodReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var batch v1alpha1.ChangePod
	if err := r.Client.Get(ctx, req.NamespacedName, &batch); err != nil {
		if apierrors.IsNotFound(err) {
			r.checks.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if batch.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	subject, err := r.load(ctx, &batch)
	if err != nil || !subject.Defended {
		return ctrl.Result{}, err
	}
	return r.checks.run(ctx, subject)
}

// load reads the input of a decision.
func (r *ChangePodReconciler) load(ctx context.Context, batch *v1alpha1.ChangePod) (s checks.Subject, err error) {
	ref := metav1.GetControllerOf(batch)
	if ref == nil {
		return s, nil
	}
	var change v1alpha1.ChangeWorkload
	key := types.NamespacedName{Namespace: batch.Namespace, Name: ref.Name}
	if err := r.Client.Get(ctx, key, &change); err != nil || change.UID != ref.UID {
		return s, client.IgnoreNotFound(err)
	}
	s.Batch, s.Release = batch, &change
	if s.Workload, err = r.DefendedOwner(ctx, &change); err != nil || s.Workload == nil {
		return s, err
	}
	inForce, err := r.InForceOf(ctx, s.Workload, &change)
	if err != nil {
		return s, err
	}
	s.Settings, s.Defended = inForce.Settings, true
	return s, r.loadPolicies(ctx, &s)
}

// loadPolicies reads the policies of a batch if its checks are open, or may begin.
func (r *ChangePodReconciler) loadPolicies(ctx context.Context, s *checks.Subject) (err error) {
	open := s.Batch.Status.Status != v1alpha1.ChangePodExecuteDone
	if !open && !r.goesOn(s.Batch) {
		return nil
	}
	if s.Policies, s.Selected, err = r.PoliciesFor(ctx, s.Workload); err != nil {
		return err
	}
	if open {
		s.Begin, err = checks.Begin(ctx, r.View, s)
	}
	return err
}

// emit logs, counts and reports a written change of a batch.
func (r *ChangePodReconciler) emit(ctx context.Context, was, is checks.Subject, events []record.Event) {
	before, after := was.Batch, is.Batch
	if before.Status.Status != after.Status.Status {
		log.FromContext(ctx).Info("batch changed state", "from", before.Status.Status, "to", after.Status.Status,
			"message", after.Status.Message, "pods", len(after.Spec.PodInfos), "orderEntry", after.Status.ChangePodID)
	}
	if before.Status.Status != after.Status.Status && after.Status.Status == v1alpha1.ChangePodExecuteDone {
		metrics.BatchDone(after.Status.Message)
		metrics.PodsUnverified(defense.UnverifiedPods(after))
	}
	reportChecks(before.Status.Checks, after.Status.Checks)
	for _, e := range events {
		r.Event(is.Workload, after, e, "Verify")
	}
}

// batchesOfChange maps a release to its batches that are not done, or for which it has a verdict.
func (r *ChangePodReconciler) batchesOfChange(ctx context.Context, o client.Object) []reconcile.Request {
	verdicts := map[string]bool{}
	if change, ok := o.(*v1alpha1.ChangeWorkload); ok {
		for i := range change.Status.UnclaimedVerdicts {
			verdicts[change.Status.UnclaimedVerdicts[i].NodeID] = true
		}
	}
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangePodList{}, func(b *v1alpha1.ChangePod) bool {
		return b.Status.Status != v1alpha1.ChangePodExecuteDone || b.Status.EndDueTimeUnix != 0 || verdicts[b.Status.ChangePodID]
	}, cluster.OwnedBy(o.GetNamespace(), o.GetUID())...)
}

// batchesOfPod maps a pod to its batch, while checks of the batch are open.
func (r *ChangePodReconciler) batchesOfPod(ctx context.Context, o client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangePodList{}, func(b *v1alpha1.ChangePod) bool {
		return slices.ContainsFunc(b.Spec.PodInfos, func(p v1alpha1.PodInfo) bool { return p.UID == string(o.GetUID()) }) && r.goesOn(b)
	}, client.InNamespace(o.GetNamespace()), client.MatchingFields{workload.IndexByPod: workload.PodGroup(o.GetUID())})
}

// goesOn reports whether a check of a policy may still get a result for the batch.
func (r *ChangePodReconciler) goesOn(b *v1alpha1.ChangePod) bool {
	return slices.ContainsFunc(b.Status.Checks, func(c v1alpha1.CheckStatus) bool { return record.CheckGoesOn(&c, r.Clock.Now()) })
}

// batchesOfPolicy maps a policy to the batches with open checks of the policy.
func (r *ChangePodReconciler) batchesOfPolicy(ctx context.Context, o client.Object) []reconcile.Request {
	var where []client.ListOption
	if o.GetNamespace() != r.Operator {
		where = append(where, client.InNamespace(o.GetNamespace()))
	}
	prefix := o.GetNamespace() + "/" + o.GetName() + "/"
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangePodList{}, func(b *v1alpha1.ChangePod) bool {
		return slices.ContainsFunc(b.Status.Checks, func(c v1alpha1.CheckStatus) bool {
			return strings.HasPrefix(c.Name, prefix) && record.CheckGoesOn(&c, r.Clock.Now())
		})
	}, where...)
}

// batchesOfWorkload maps a workload that opted in again to its batches that are not done.
func (r *ChangePodReconciler) batchesOfWorkload(ctx context.Context, o client.Object) []reconcile.Request {
	changes, err := r.Releases(ctx, o.GetNamespace(), o.GetUID())
	if err != nil {
		log.FromContext(ctx).Error(err, "find the releases of a workload", "uid", o.GetUID())
	}
	var requests []reconcile.Request
	for i := range changes {
		requests = append(requests, r.batchesOfChange(ctx, &changes[i])...)
	}
	return requests
}

// batchesOfNamespace maps a namespace that is enrolled again to its batches that are not done.
func (r *ChangePodReconciler) batchesOfNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangePodList{}, func(b *v1alpha1.ChangePod) bool {
		return b.Status.Status != v1alpha1.ChangePodExecuteDone || b.Status.EndDueTimeUnix != 0
	}, client.InNamespace(ns.GetName()))
}
