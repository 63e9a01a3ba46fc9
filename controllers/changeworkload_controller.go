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
	"slices"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	lru "k8s.io/apimachinery/pkg/util/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/verify"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// ChangeWorkloadReconciler verifies releases. It alone creates their batches, blocks their
// workloads, and changes the state of a release, except the step to Running, which is written
// together with the accepted order.
type ChangeWorkloadReconciler struct {
	*cluster.Cluster
	// clusterUID identifies the cluster to AlterShield Server; empty without one.
	clusterUID types.UID
	// putOff has the time since which a status write is put off, by the UID of the release.
	putOff *lru.LRUExpireCache
	// refused has, by the UID of a release, when a refused eviction of its next wave is tried again. An entry may be
	// lost at any time: then the eviction is tried once more.
	refused *lru.LRUExpireCache
	// since returns the time of the first decision.
	since func() time.Time
}

const (
	// maxPutOff is the most entries of putOff, and putOffFor is how long each stays. The time
	// of a release that lost its entry begins again.
	maxPutOff = 10_000
	putOffFor = time.Hour
)

func newChangeWorkloadReconciler(c *cluster.Cluster, clusterUID types.UID) *ChangeWorkloadReconciler {
	return &ChangeWorkloadReconciler{
		Cluster: c, clusterUID: clusterUID, since: sync.OnceValue(c.Clock.Now),
		putOff:  lru.NewLRUExpireCacheWithClock(maxPutOff, c.Clock),
		refused: lru.NewLRUExpireCacheWithClock(maxRefused, c.Clock),
	}
}

// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=changeworkloads/status,verbs=update
// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=changeworkloads/finalizers,verbs=update
// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=changepods,verbs=get;list;watch;create;delete

// SetupWithManager adds the controller to the manager.
func (r *ChangeWorkloadReconciler) SetupWithManager(mgr ctrl.Manager) error {
	b := ctrl.NewControllerManagedBy(mgr).
		Named("changeworkload").
		// A release begins, or a check of its order fails.
		For(&v1alpha1.ChangeWorkload{}, builder.WithPredicates(predicate.NewPredicateFuncs(urgent))).
		// Any other change of the release.
		Watches(&v1alpha1.ChangeWorkload{}, gathered(func(client.Object) time.Duration { return gatherBatches }, itself))
	return watchKinds(b, r.Cluster, r.watchKind).
		// A batch progresses, or fails.
		Watches(&v1alpha1.ChangePod{}, gathered(batchUrgency, changeOfBatch)).
		// A pod becomes ready and waits for a batch, or fails.
		Watches(&corev1.Pod{}, gathered(podUrgency, r.changesOfPod), builder.WithPredicates(podChanged())).
		// The namespace is enrolled, or no longer enrolled.
		Watches(cluster.NamespaceObject(), to(r.changesOfNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		// A version in the history is deleted, perhaps by a user: it is stored again.
		Watches(&appsv1.ControllerRevision{}, to(r.changesOfRemembered), builder.WithPredicates(deletedOnly())).
		// A setting changes decisions about releases that are verified.
		Watches(&v1alpha1.OpsConfigInfo{}, to(r.openChanges)).
		// A policy changes what silence of the server means, or which rollouts are held.
		Watches(&v1alpha1.DefensePolicy{}, to(r.openChanges), builder.WithPredicates(decidesAlone())).
		// An earlier release ended, and the current one reports it; or its order ended, and its record may be removed.
		Watches(&v1alpha1.ChangeWorkload{}, to(r.changesBeside), builder.WithPredicates(releaseEnded())).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, ReconciliationTimeout: reconcileTimeout}).
		Complete(cluster.Quiet(r))
}

// Reconcile decides about one release, and carries the plan out.
func (r *ChangeWorkloadReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var change v1alpha1.ChangeWorkload
	if err := r.Client.Get(ctx, req.NamespacedName, &change); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	ns, err := r.Namespace(ctx, change.Namespace)
	if err != nil || ns.Ending() {
		return ctrl.Result{}, err
	}
	in, current, err := r.load(ctx, ns, &change)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !current {
		return ctrl.Result{RequeueAfter: cluster.ExistsRetry}, nil
	}
	in, plan, err := r.decide(ctx, in)
	if err != nil {
		return cluster.Settle(ctx, ctrl.Result{}, err)
	}
	err = r.apply(ctx, &change, in.Workload, plan)
	again := times.Shortest(plan.RequeueAfter, max(r.refusedUntil(&change).Sub(in.Now), 0))
	return cluster.Settle(ctx, ctrl.Result{RequeueAfter: again}, err)
}

// decide decides about a release, and reads the objects that the decision asks for.
func (r *ChangeWorkloadReconciler) decide(ctx context.Context, in defense.ReleaseInput) (defense.ReleaseInput, defense.ReleasePlan, error) {
	for {
		plan, err := defense.DecideRelease(in), error(nil)
		switch {
		case plan.NeedsBatches:
			in.Batches, err = r.liveBatches(ctx, in.Change, in.Batches)
			in.LiveBatches = true
		case plan.NeedsCause != nil && in.Causes == nil:
			// Read once: an event is emitted only once.
			cause := ""
			cause, err = r.CauseOf(ctx, in.Change.Namespace, plan.NeedsCause.UID)
			in.Causes = map[types.UID]string{plan.NeedsCause.UID: cause}
		case len(plan.NeedsSure) > 0 && in.Sure == nil:
			in, err = r.loadSure(ctx, in, plan.NeedsSure)
		case len(plan.NeedsNodes) > 0 && in.Unreachable == nil:
			in.Unreachable, err = r.UnreachableNodes(ctx, plan.NeedsNodes)
			in.Pods = rollback.OnUnreachableNodes(in.Pods, in.Unreachable)
		case plan.NeedsPlaces && !in.LivePlaces:
			in, err = r.loadLivePlaces(ctx, in)
		case plan.NeedsLive:
			in.Workload, err = r.Reread(ctx, in.Workload)
			in.Live = err == nil
		default:
			return in, plan, nil
		}
		if err != nil {
			return in, plan, err
		}
	}
}

// load reads the input of a decision. current is false while the cache does not have the
// workload that the API server has.
func (r *ChangeWorkloadReconciler) load(
	ctx context.Context, ns cluster.Namespace, change *v1alpha1.ChangeWorkload,
) (in defense.ReleaseInput, current bool, err error) {
	in = defense.ReleaseInput{
		Now: r.Clock.Now(), Change: change, Enrolled: ns.Enrolled, Cluster: r.clusterUID, HoldSteps: r.HoldSteps, Since: r.since(),
	}
	if since, ok := r.putOff.Get(change.UID); ok {
		in.PutOffSince = since.(time.Time) //nolint:errcheck // the cache holds nothing else
	}
	if ns.Meta != nil && r.clusterUID != "" {
		in.Tenant, in.Phase, _ = verify.OrderOf(ns.Meta)
	}
	if current, err = r.loadWorkload(ctx, &in); err != nil || !current || in.Workload == nil {
		return in, current, err
	}
	inForce, err := r.InForceOf(ctx, in.Workload, change)
	if err != nil {
		return in, false, err
	}
	in.Settings, in.ObservedBy, in.Lowered = inForce.Settings, inForce.ObservedBy, inForce.Lowered
	if in.Pods, err = r.Pods(ctx, in.Workload); err != nil {
		return in, false, err
	}
	if in.Places, err = r.places(ctx, in.Workload, nil); err != nil {
		return in, false, err
	}
	in.EvictAfter = r.refusedUntil(change)
	if in.Batches, err = r.Batches(ctx, change); err != nil {
		return in, false, err
	}
	if in.History, err = r.History(ctx, change.Namespace, in.Workload.UID); err != nil {
		return in, false, err
	}
	if in.Limit, err = r.RollbackLimit(ctx); err != nil {
		return in, false, err
	}
	if record.MayBeginChecks(change) {
		if in.Begin, err = checks.BeginRelease(ctx, r.View, in.Workload, change); err != nil {
			return in, false, err
		}
		if err := loadFreeze(ctx, r.View, &in); err != nil {
			return in, false, err
		}
	}
	if in.Baseline, err = checks.Baseline(ctx, r.View, in.Workload, change, in.Batches, in.Now); err != nil {
		return in, false, err
	}
	others, err := r.Releases(ctx, change.Namespace, in.Workload.UID)
	for i := range others {
		if others[i].UID != change.UID {
			in.Others = append(in.Others, others[i])
		}
	}
	return in, true, err
}

// loadWorkload reads the workload that owns the release. If the cache does not have the
// workload, the API server decides whether it is gone: the cache may be behind.
func (r *ChangeWorkloadReconciler) loadWorkload(ctx context.Context, in *defense.ReleaseInput) (current bool, err error) {
	owner, ok := r.Kinds.OwnerOf(in.Change)
	if !ok {
		return true, nil
	}
	w, err := r.Workload(ctx, owner.Key)
	if err != nil {
		return false, err
	}
	if w != nil && w.UID == owner.UID {
		in.Workload = w
		return true, nil
	}
	there, err := r.IsThere(ctx, owner)
	return !there, err
}

// loadSure reads batches and their pods from the API server: the caches of the two kinds have no
// common order, and a batch must not be deleted while one of its pods exists.
func (r *ChangeWorkloadReconciler) loadSure(
	ctx context.Context, in defense.ReleaseInput, batches []*v1alpha1.ChangePod,
) (defense.ReleaseInput, error) {
	in.Sure, in.Gone = map[types.UID]bool{}, map[types.UID]bool{}
	in.Batches = slices.Clone(in.Batches)
	for _, cached := range batches {
		var batch v1alpha1.ChangePod
		err := r.Live.Get(ctx, client.ObjectKeyFromObject(cached), &batch)
		if client.IgnoreNotFound(err) != nil {
			return in, fmt.Errorf("get changepod %s: %w", cached.Name, err)
		}
		i := slices.IndexFunc(in.Batches, func(b v1alpha1.ChangePod) bool { return b.UID == cached.UID })
		if err != nil || batch.UID != cached.UID {
			in.Batches = slices.Delete(in.Batches, i, i+1)
			continue
		}
		in.Batches[i], in.Sure[batch.UID] = batch, true
		for _, info := range batch.Spec.PodInfos {
			pod := &metav1.PartialObjectMetadata{}
			pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
			err := r.Live.Get(ctx, types.NamespacedName{Namespace: batch.Namespace, Name: info.Pod}, pod)
			if client.IgnoreNotFound(err) != nil {
				return in, fmt.Errorf("get pod %s/%s: %w", batch.Namespace, info.Pod, err)
			}
			in.Gone[types.UID(info.UID)] = err != nil || pod.UID != types.UID(info.UID)
		}
	}
	return in, nil
}

// apply carries a plan out. Each step may be the last one before a crash: batches and the block
// are written before the status that reports them, and are found again without that status.
func (r *ChangeWorkloadReconciler) apply(
	ctx context.Context, change *v1alpha1.ChangeWorkload, w *workload.Workload, plan defense.ReleasePlan,
) error {
	updated := change.DeepCopy()
	if plan.Spec != nil {
		updated.Spec = *plan.Spec
		if err := r.Client.Patch(ctx, updated, client.MergeFromWithOptions(change, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("write the settings to changeworkload %s: %w", change.Name, err)
		}
	}
	denied := (*cluster.DeniedError)(nil)
	for i := range plan.Batches {
		if err := r.Try(w, cluster.ActBatch, func() error { return r.createBatch(ctx, updated, w, plan.Batches[i]) }); err != nil {
			return r.ReportDenied(ctx, w, change, err)
		}
	}
	if err := r.askRollback(ctx, w, plan.RollbackTo); err != nil {
		return r.ReportDenied(ctx, w, change, err)
	}
	switch err := r.actOnWorkload(ctx, change, w, &plan); {
	case err == nil:
	case errors.As(err, &denied) && plan.Action == defense.BlockWorkload:
		// The failure is reported, although the block is denied.
		r.EmitDenied(ctx, w, change, denied)
		plan = defense.BlockDenied(change, plan, r.Clock.Now(), denied.Describe())
	case errors.As(err, &denied) && plan.Action == defense.PaceWorkload:
		// The release is verified, although the rollout does not wait for it.
		r.EmitDenied(ctx, w, change, denied)
		plan = defense.PaceDenied(change, plan, r.Clock.Now(), denied.Describe())
	default:
		return r.ReportDenied(ctx, w, change, err)
	}
	for _, e := range plan.ActionEvents {
		r.Event(w, change, e, "Verify")
	}
	if plan.Status != nil {
		updated.Status = *plan.Status
	}
	noted, notEvicted := r.evictWave(ctx, w, updated, plan.Evict)
	// Each write that was denied before has succeeded, or is no longer planned.
	over := denied == nil && defense.NoteAccepted(&updated.Status, change.Generation, r.Clock.Now(), cluster.Writes(releaseActs()...)...)
	if plan.Status != nil || over || noted {
		if err := r.UpdateStatus(ctx, updated); err != nil {
			return err
		}
		r.putOff.Remove(change.UID)
	}
	if _, ok := r.putOff.Get(change.UID); plan.PutOff && !ok {
		r.putOff.Add(change.UID, r.Clock.Now(), putOffFor)
	}
	r.report(ctx, change, updated, w, plan.Events)
	if denied == nil {
		return errors.Join(r.tidy(ctx, change, w, &plan), notEvicted)
	}
	// If the block was denied, the plan has nothing to tidy.
	return errors.Join(r.tidy(ctx, change, w, &plan), denied, notEvicted)
}

// askRollback asks for a rollback as a user would, if the plan says so.
func (r *ChangeWorkloadReconciler) askRollback(ctx context.Context, w *workload.Workload, to string) error {
	if to == "" {
		return nil
	}
	p := cluster.PatchRelease(w)
	p.SetAnnotation(v1alpha1.RollbackToAnnotation, to)
	return r.PatchWorkload(ctx, p, cluster.ActRequest)
}

// releaseActs returns the writes of this controller for a release.
func releaseActs() []cluster.Act {
	return []cluster.Act{cluster.ActBlock, cluster.ActLift, cluster.ActResume, cluster.ActBatch, cluster.ActRequest, cluster.ActPace}
}

// tidy updates the history, and removes obsolete records. After an error, it does the rest.
func (r *ChangeWorkloadReconciler) tidy(
	ctx context.Context, change *v1alpha1.ChangeWorkload, w *workload.Workload, plan *defense.ReleasePlan,
) error {
	var errs []error
	if plan.Remember {
		errs = append(errs, r.remember(ctx, change, w))
	}
	if plan.Prove != nil {
		errs = append(errs, r.Prove(ctx, change.Namespace, plan.Prove))
	}
	for i := range plan.Forget {
		errs = append(errs, r.Forget(ctx, change.Namespace, &plan.Forget[i]))
	}
	for i := range plan.RemoveBatches {
		errs = append(errs, r.remove(ctx, plan.RemoveBatches[i].DeepCopy()))
	}
	for i := range plan.Remove {
		errs = append(errs, r.remove(ctx, plan.Remove[i].DeepCopy()))
	}
	return errors.Join(errs...)
}

func (r *ChangeWorkloadReconciler) createBatch(
	ctx context.Context, change *v1alpha1.ChangeWorkload, w *workload.Workload, b defense.Batch,
) error {
	now := r.Clock.Now()
	batch := &v1alpha1.ChangePod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: change.Namespace,
			Name:      record.BatchName(w, change.Spec.Reversion, b.Number),
			Labels:    cluster.OwnLabels(w, change.Spec.Reversion),
			OwnerReferences: []metav1.OwnerReference{
				cluster.OwnerReference(v1alpha1.GroupVersion.String(), "ChangeWorkload", change.Name, change.UID),
			},
		},
		Spec: v1alpha1.ChangePodSpec{
			ChangeWorkloadID: change.Name,
			WorkloadRef:      cluster.Reference(w),
			PodInfos:         b.Pods,
			CreateTime:       times.Format(now),
			CreateTimeUnix:   now.Unix(),
			Attempt:          b.Attempt,
			Release:          b.Release,
			TotalBatches:     b.Total,
			Last:             b.Last,
		},
	}
	if err := r.Client.Create(ctx, batch); err != nil {
		if apierrors.IsAlreadyExists(err) {
			err = errors.Join(err, r.RemoveOrphan(ctx, batch))
		}
		return fmt.Errorf("create changepod %s: %w", batch.Name, err)
	}
	log.FromContext(ctx).Info("created a batch", "changepod", batch.Name, "pods", len(b.Pods))
	return nil
}

// actOnWorkload writes the block, the halt and the hold of a plan. It fails if the workload is at
// another release than the plan.
func (r *ChangeWorkloadReconciler) actOnWorkload(
	ctx context.Context, change *v1alpha1.ChangeWorkload, w *workload.Workload, plan *defense.ReleasePlan,
) error {
	if plan.Action == defense.LeaveWorkload {
		return nil
	}
	kind, err := r.KindOf(w)
	if err != nil {
		return err
	}
	p, a := (*cluster.Patch)(nil), cluster.ActResume
	switch plan.Action {
	case defense.LeaveWorkload:
	case defense.BlockWorkload:
		p, a = cluster.PatchRelease(w), cluster.ActBlock
		p.SetLabel(v1alpha1.SuspendLabel, strconv.FormatInt(r.Clock.Now().Unix(), 10))
		p.SetAnnotation(v1alpha1.SuspendedByAnnotation, w.BlockedBy(change.UID))
		// Admission does the same from the stored object; this is for when admission is down.
		if w.Labels[v1alpha1.IgnoredSuspendLabel] == v1alpha1.IgnoredSuspendValue {
			p.SetAnnotation(v1alpha1.OverrideStaleAnnotation, "true")
		}
		if plan.Halt {
			p.Halt(kind, change.Spec.Reversion)
		}
	case defense.LiftBlock:
		// Another manager may have failed the release since.
		if err := r.IsCurrent(ctx, change); err != nil {
			return err
		}
		p, a = cluster.PatchRelease(w), cluster.ActLift
		p.DropLabel(v1alpha1.SuspendLabel)
		p.DropAnnotation(v1alpha1.SuspendedByAnnotation)
		if plan.Resume {
			p.Resume(kind)
		}
	case defense.ResumeWorkload:
		p = cluster.PatchRelease(w)
		p.Resume(kind)
	case defense.PaceWorkload:
		p, a = cluster.PatchRelease(w), cluster.ActPace
		if plan.Halt {
			p.Halt(kind, change.Spec.Reversion)
		}
	}
	switch h := plan.Hold; {
	case h == nil:
	case h.Set != nil:
		p.Hold(kind, h.Set)
	default:
		p.GiveBack(kind)
		p.SetAnnotation(v1alpha1.HoldEndedAnnotation, h.End.String())
	}
	if err := r.PatchWorkload(ctx, p, a); err != nil {
		return err
	}
	log.FromContext(ctx).Info(map[defense.WorkloadAction]string{
		defense.BlockWorkload:  "blocked the workload",
		defense.LiftBlock:      "lifted the block of the workload",
		defense.ResumeWorkload: "resumed the workload",
		defense.PaceWorkload:   "changed the pace of the rollout",
	}[plan.Action], "workload", w.Name, "version", change.Spec.Reversion,
		"halted", plan.Halt, "resumed", plan.Resume, "hold", plan.Hold.String())
	return nil
}
