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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// watchKind returns the watches of a kind.
func (r *ChangeWorkloadReconciler) watchKind(kind workload.Kind) []hub.Watch[reconcile.Request] {
	// A rollout progresses, another release begins, a user blocks, overrides, resumes or opts out.
	watches := watchObjects(gathered(podUrgency, r.changesOfWorkload))(kind)
	for _, s := range kind.Secondary() {
		// The revision of the release, which selects its pods, appears.
		watches = append(watches, hub.Watch[reconcile.Request]{
			Object: s.Object, Handler: to(r.changesOf(s)), Predicates: []predicate.Predicate{acquired()},
		})
	}
	return watches
}

// requestsByOwner returns the requests of the releases of a workload.
func (r *ChangeWorkloadReconciler) requestsByOwner(ctx context.Context, namespace string, uid types.UID) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, cluster.Any, cluster.OwnedBy(namespace, uid)...)
}

// changesBeside maps a release to the releases of its workload.
func (r *ChangeWorkloadReconciler) changesBeside(ctx context.Context, o client.Object) []reconcile.Request {
	ref := metav1.GetControllerOf(o)
	if ref == nil {
		return nil
	}
	return r.requestsByOwner(ctx, o.GetNamespace(), ref.UID)
}

// changesOfRemembered maps a version in the history to the releases of its workload.
func (r *ChangeWorkloadReconciler) changesOfRemembered(ctx context.Context, o client.Object) []reconcile.Request {
	uid := workload.Remembers(o)
	if uid == "" {
		return nil
	}
	return r.requestsByOwner(ctx, o.GetNamespace(), uid)
}

func (r *ChangeWorkloadReconciler) changesOfWorkload(ctx context.Context, o client.Object) []reconcile.Request {
	return r.requestsByOwner(ctx, o.GetNamespace(), o.GetUID())
}

// changesOf maps an object between a workload and its pods to the releases of the workload.
func (r *ChangeWorkloadReconciler) changesOf(s workload.Secondary) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		owner, ok := s.OwnerOf(o)
		if !ok {
			return nil
		}
		return r.requestsByOwner(ctx, o.GetNamespace(), owner.UID)
	}
}

func (r *ChangeWorkloadReconciler) changesOfPod(ctx context.Context, o client.Object) []reconcile.Request {
	owner, ok := r.WorkloadOfPod(ctx, o)
	if !ok {
		return nil
	}
	return r.requestsByOwner(ctx, o.GetNamespace(), owner.UID)
}

func (r *ChangeWorkloadReconciler) changesOfNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, cluster.Any, client.InNamespace(ns.GetName()))
}

// openChanges maps a changed setting to the releases that are verified with it.
func (r *ChangeWorkloadReconciler) openChanges(ctx context.Context, setting client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.ChangeWorkloadList{}, func(c *v1alpha1.ChangeWorkload) bool {
		return record.IsVerified(c.Status.Status)
	}, r.WhereInForce(setting)...)
}

// decidesAlone lets policies through that define what silence of the server means, or that hold
// rollouts: before the change or after it.
func decidesAlone() predicate.Predicate {
	does := func(o client.Object) bool {
		p, ok := o.(*v1alpha1.DefensePolicy)
		return ok && (namesServer(p) || policy.MayHold(p))
	}
	only := predicate.NewPredicateFuncs(does)
	only.UpdateFunc = func(e event.UpdateEvent) bool { return does(e.ObjectOld) || does(e.ObjectNew) }
	return only
}

// changeOfBatch maps a batch to its release.
func changeOfBatch(_ context.Context, o client.Object) []reconcile.Request {
	ref := metav1.GetControllerOf(o)
	if ref == nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: ref.Name}}}
}

// remove deletes an obsolete release or batch. If it has changed since it was read, it stays, and
// its event leads to another decision.
func (r *ChangeWorkloadReconciler) remove(ctx context.Context, old client.Object) error {
	uid, version := old.GetUID(), old.GetResourceVersion()
	err := r.Client.Delete(ctx, old,
		client.Preconditions{UID: &uid, ResourceVersion: &version}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if cluster.IgnoreGone(err) != nil {
		return fmt.Errorf("remove %s: %w", old.GetName(), err)
	}
	log.FromContext(ctx).Info("removed an obsolete record", "name", old.GetName())
	return nil
}
