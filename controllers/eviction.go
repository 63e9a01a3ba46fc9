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
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lru "k8s.io/apimachinery/pkg/util/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// evictor evicts stuck pods of abandoned versions, so that the controllers of their workloads
// replace them, and reports pods that it may not evict.
type evictor struct {
	*cluster.Cluster
	// refused has the refused evictions, by the UID of the pod. An entry may be lost at any
	// time: then the eviction is tried once more.
	refused *lru.LRUExpireCache
}

const (
	// maxRefused is the most entries of refused, and refusedFor is how long each stays.
	maxRefused = 4096
	refusedFor = time.Hour
)

// refusal is an eviction that was refused.
type refusal struct {
	block *rollback.EvictionBlock
	again time.Time
}

// mayNeedEviction reports whether a later release replaced a version of a workload.
func mayNeedEviction(o client.Object) bool {
	return rollback.MayNeedEviction(&workload.Workload{Annotations: o.GetAnnotations()})
}

// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create

// reconcile evicts a pod of a workload, if one is stuck.
func (r *evictor) reconcile(ctx context.Context, key workload.Key) (ctrl.Result, error) {
	kind, _ := r.Kinds.Of(key.GroupKind)
	evicter, ok := kind.(workload.Evicter)
	if !ok {
		return ctrl.Result{}, nil
	}
	in, plan, err := r.decide(ctx, evicter, key)
	if err != nil || in.Workload == nil {
		return ctrl.Result{}, err
	}
	again, err := r.apply(ctx, in, plan)
	return cluster.Settle(ctx, ctrl.Result{RequeueAfter: again}, err)
}

// decide decides from the caches, and again from the API server before an act. The input has no
// workload if there is nothing to do or to report.
func (r *evictor) decide(
	ctx context.Context, kind workload.Evicter, key workload.Key,
) (in rollback.EvictionInput, plan rollback.EvictionPlan, err error) {
	w, err := r.Workload(ctx, key)
	if err != nil || w == nil || !rollback.MayNeedEviction(w) {
		return in, plan, err
	}
	ns, err := r.Namespace(ctx, key.Namespace)
	if err != nil || ns.Ending() {
		return in, plan, err
	}
	for {
		if in, err = r.load(ctx, ns, kind, key, plan.NeedsLive); err != nil || in.Workload == nil {
			return in, plan, err
		}
		if plan = rollback.DecideEviction(in); !plan.NeedsLive {
			return in, plan, nil
		}
	}
}

func (r *evictor) load(
	ctx context.Context, ns cluster.Namespace, kind workload.Evicter, key workload.Key, live bool,
) (in rollback.EvictionInput, err error) {
	from := client.Reader(nil)
	if live {
		from = r.Live
	}
	w, places, err := kind.Places(ctx, r.Cached, from, key.NamespacedName)
	if err != nil || w == nil {
		return in, err
	}
	inForce, err := r.InForceOf(ctx, w, nil)
	if err != nil {
		return in, err
	}
	past, err := r.Past(ctx, w.Namespace, w.UID)
	if err != nil {
		return in, err
	}
	return rollback.EvictionInput{
		Now: r.Clock.Now(), After: rollback.EvictAfter, Settings: inForce.Settings,
		Workload: w, Enrolled: ns.Enrolled, Places: *places, Past: past, Live: live,
	}, nil
}

// apply evicts the pod of a plan, or reports why it may not. A crash loses at most an event: the
// next decision reads the state of the cluster again.
func (r *evictor) apply(ctx context.Context, in rollback.EvictionInput, plan rollback.EvictionPlan) (again time.Duration, err error) {
	w := in.Workload
	if !in.Enrolled || w.Deleting || workload.OptedOut(w.Labels) {
		return 0, nil // nothing is written about such a workload
	}
	change := cluster.CurrentRelease(w, in.Past.Changes)
	switch {
	case plan.Waits != "":
		log.FromContext(ctx).V(1).Info("a stuck pod is not evicted yet", "waitsFor", plan.Waits)
		return plan.RequeueAfter, nil
	case plan.Idle:
		return 0, r.report(ctx, w, change, nil)
	case plan.Block != nil:
		return plan.RequeueAfter, r.report(ctx, w, change, plan.Block)
	}
	if before, ok := r.refused.Get(plan.Stuck.UID); ok {
		known := before.(*refusal) //nolint:errcheck // the cache holds nothing else
		if left := known.again.Sub(in.Now); left > 0 {
			return left, r.report(ctx, w, change, known.block)
		}
	}
	block, wanted, err := r.evict(ctx, w, &plan)
	if err != nil {
		return 0, err
	}
	if block == nil && wanted > 0 {
		return wanted, nil
	}
	if block == nil {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: plan.Stuck.Namespace, Name: plan.Stuck.Name, UID: plan.Stuck.UID}}
		r.Event(w, pod, rollback.Evicted(w, &plan), "Evict")
		return plan.RequeueAfter, r.report(ctx, w, change, nil)
	}
	again = rollback.RetryEviction(statusOf(change), in.Now)
	r.refused.Add(plan.Stuck.UID, &refusal{block, in.Now.Add(again)}, refusedFor)
	return again, r.report(ctx, w, change, block)
}

func statusOf(change *v1alpha1.ChangeWorkload) *v1alpha1.ChangeWorkloadStatus {
	if change == nil {
		return &v1alpha1.ChangeWorkloadStatus{}
	}
	return &change.Status
}

// report writes into the record of the release why a pod is not evicted, or that no eviction is
// blocked. Without a record, it does nothing: the event of the record leads to another call.
func (r *evictor) report(ctx context.Context, w *workload.Workload, change *v1alpha1.ChangeWorkload, block *rollback.EvictionBlock) error {
	if change == nil {
		return nil
	}
	updated := change.DeepCopy()
	changed, event := rollback.NoteEviction(&updated.Status, w, change.Generation, r.Clock.Now(), block)
	if !changed {
		return nil
	}
	if err := r.UpdateStatus(ctx, updated); err != nil {
		return err
	}
	if event != nil {
		log.FromContext(ctx).Info("a stuck pod is not evicted", "reason", block.Reason, "message", block.Message)
		r.Event(w, change, *event, "Evict")
	}
	return nil
}

// evict evicts a pod, unless the pod has changed or was replaced since it was read. A refusal is
// no error: it is returned as block. wanted is the delay until the next try that the API server
// asks for while it computes a PodDisruptionBudget.
func (r *evictor) evict(
	ctx context.Context, w *workload.Workload, plan *rollback.EvictionPlan,
) (block *rollback.EvictionBlock, wanted time.Duration, err error) {
	p := plan.Stuck
	err = evictPod(ctx, r.Client, p)
	outcome, reason, why := noteEvicted(w, err)
	wanted = wantedDelay(err)
	switch outcome {
	case metrics.EvictionDone:
		log.FromContext(ctx).Info("evicted a stuck pod of an abandoned version", "pod", p.Name, "uid", p.UID, "version", p.Version)
		return nil, 0, nil
	case metrics.EvictionBlocked, metrics.EvictionDenied:
		if wanted > 0 { // the API server is computing the budget
			return nil, wanted, nil
		}
		return rollback.BlockedEviction(w, plan, reason, why), wanted, nil
	default:
		return nil, 0, fmt.Errorf("evict pod %s: %w", p.Name, err)
	}
}

// evictPod evicts a pod, unless it changed since it was read.
func evictPod(ctx context.Context, c client.Client, p *workload.Place) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
	return c.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{ObjectMeta: pod.ObjectMeta, DeleteOptions: &metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &p.UID, ResourceVersion: &p.ResourceVersion},
	}})
}

// noteEvicted counts an eviction, and returns the results of outcomeOf.
func noteEvicted(w *workload.Workload, err error) (outcome, reason, why string) {
	if outcome, reason, why = outcomeOf(err); outcome != "" {
		metrics.Eviction(workload.LabelOf(w.GVK.GroupKind()), outcome)
	}
	return outcome, reason, why
}

// wantedDelay returns the delay until the next try that the API server asks for.
func wantedDelay(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return time.Duration(seconds) * time.Second
}

// manyBudgets is part of the message of the API server for a pod with several PodDisruptionBudgets.
// The code of that answer is InternalError.
const manyBudgets = "more than one PodDisruptionBudget"

// outcomeOf returns the outcome of an eviction, and why it was refused; empty if unknown.
func outcomeOf(err error) (outcome, reason, why string) {
	if err == nil {
		return metrics.EvictionDone, "", ""
	}
	if cause, ok := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause); ok {
		return metrics.EvictionBlocked, v1alpha1.ReasonDisruptionBudget, "a PodDisruptionBudget refuses to have it evicted: " + cause.Message
	}
	if message, ok := cluster.Refusal(err); ok {
		return metrics.EvictionDenied, v1alpha1.ReasonNotEvicted, "the API server refuses to have it evicted: " + message
	}
	if strings.Contains(err.Error(), manyBudgets) {
		return metrics.EvictionDenied, v1alpha1.ReasonNotEvicted, "the API server refuses to have it evicted: " + err.Error()
	}
	if cluster.Outdated(err) {
		return metrics.EvictionOutdated, "", ""
	}
	return "", "", ""
}
