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

package runnable

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// scanners is the number of concurrent scans.
	scanners = 4
	// scanTimeout bounds one scan.
	scanTimeout = time.Minute
	// maxReads is the most pods that one scan reads from the API server.
	maxReads = 10
	// scanAgain is the time until the next scan for changes that are not watched.
	scanAgain = 30 * time.Second
)

// RollbackScanner finds releases that have to be rolled back: their pods are stuck, they failed while
// self-healing is on, or a user asked for the rollback. It scans a workload after a change, and when
// the time of its next pod is over, so that a cluster without changes costs nothing. It runs on the
// leader only.
type RollbackScanner struct {
	*cluster.Cluster
}

// SetupWithManager adds the scanner to the manager.
func (s *RollbackScanner) SetupWithManager(mgr ctrl.Manager) error {
	b := builder.TypedControllerManagedBy[workload.Key](mgr).Named("rollback")
	for _, kind := range s.Kinds.Fixed() {
		b = b.Watches(kind.Object(), to(cluster.Itself(kind)))
	}
	err := b.
		WatchesRawSource(hub.Source(s.Hub, func(kind workload.Kind) []hub.Watch[workload.Key] {
			return []hub.Watch[workload.Key]{{Object: kind.Object(), Handler: to(cluster.Itself(kind))}}
		})).
		// A release is suspended, and self-healing rolls it back.
		Watches(&v1alpha1.ChangeWorkload{}, to(s.WorkloadOf)).
		// A pod becomes stuck, or is stuck for another reason.
		Watches(&corev1.Pod{}, to(s.workloadOfPod), builder.WithPredicates(stuckChanged())).
		// The namespace is enrolled.
		Watches(cluster.NamespaceObject(), to(s.WorkloadsOf),
			builder.WithPredicates(predicate.LabelChangedPredicate{})).
		// A setting gives pods more time or less, or turns rollbacks on.
		Watches(&v1alpha1.OpsConfigInfo{}, to(s.releasing)).
		WithOptions(controller.TypedOptions[workload.Key]{MaxConcurrentReconciles: scanners, ReconciliationTimeout: scanTimeout}).
		WithLogConstructor(cluster.LogWorkload(mgr, "rollback")).
		Complete(cluster.Quiet(s))
	if err != nil {
		return fmt.Errorf("set up the rollback scanner: %w", err)
	}
	return nil
}

// to enqueues the workloads that an object is mapped to.
func to(requests handler.TypedMapFunc[client.Object, workload.Key]) handler.TypedEventHandler[client.Object, workload.Key] {
	return handler.TypedEnqueueRequestsFromMapFunc(requests)
}

// Reconcile scans one workload.
func (s *RollbackScanner) Reconcile(ctx context.Context, key workload.Key) (ctrl.Result, error) {
	in, found, err := s.LoadRollback(ctx, key)
	if err != nil || !found {
		return ctrl.Result{}, err
	}
	plan := rollback.Decide(in)
	// The pod that causes a rollback is read from the API server first, which may change the plan.
	read := map[string]bool{}
	for plan.Rollback != nil && plan.Rollback.Pod != "" && !read[plan.Rollback.Pod] {
		if len(read) == maxReads {
			return ctrl.Result{RequeueAfter: time.Second}, nil
		}
		read[plan.Rollback.Pod] = true
		if in, err = s.loadLive(ctx, in, plan.Rollback.Pod); err != nil {
			return ctrl.Result{}, err
		}
		plan = rollback.Decide(in)
	}
	if plan.Rollback != nil && in.Workload.Annotations[v1alpha1.RollbackToAnnotation] != "" {
		before, known, err := s.LaidBefore(ctx, in.Workload, v1alpha1.RollbackToAnnotation)
		switch {
		case err != nil:
			return ctrl.Result{}, err
		case !known:
			return ctrl.Result{RequeueAfter: time.Second}, nil
		case before:
			plan = rollback.Plan{Refusal: rollback.LaidBefore}
		}
	}
	if plan.Rollback != nil && plan.Rollback.Asked() {
		if wait := s.UntilRequested(key.Namespace); wait > 0 {
			return ctrl.Result{RequeueAfter: wait}, nil
		}
	}
	if plan.Rollback == nil && len(read) > 0 && (plan.RequeueAfter == 0 || plan.RequeueAfter > scanAgain) {
		plan.RequeueAfter = scanAgain // nodes are not watched
	}
	return cluster.Settle(ctx, ctrl.Result{RequeueAfter: plan.RequeueAfter}, s.apply(ctx, in, plan))
}

// workloadOfPod maps a pod to its workload.
func (s *RollbackScanner) workloadOfPod(ctx context.Context, pod client.Object) []workload.Key {
	owner, ok := s.WorkloadOfPod(ctx, pod)
	if !ok {
		return nil
	}
	return []workload.Key{owner.Key}
}

// releasing maps a setting to the workloads for which it is in force, if they have a release without
// Success.
func (s *RollbackScanner) releasing(ctx context.Context, setting client.Object) []workload.Key {
	keyOf := func(c *v1alpha1.ChangeWorkload) (workload.Key, bool) {
		owner, ok := s.Kinds.OwnerOf(c)
		return owner.Key, ok && c.Status.Status != v1alpha1.ChangeWorkloadSuccess
	}
	return cluster.RequestsBy(ctx, s.View, &v1alpha1.ChangeWorkloadList{}, keyOf, s.WhereInForce(setting)...)
}

// stuckChanged lets through pods that become stuck, or are stuck for another reason. The status of
// the workload shows pods that come, go and become Ready.
func stuckChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok1 := e.ObjectOld.(*corev1.Pod)
			after, ok2 := e.ObjectNew.(*corev1.Pod)
			if !ok1 || !ok2 {
				return false
			}
			was, is := workload.ReadStuck(before), workload.ReadStuck(after)
			return is != nil && (was == nil || was.Reason != is.Reason || was.Slow != is.Slow)
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
