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
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	lru "k8s.io/apimachinery/pkg/util/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// WorkloadReconciler sees to it that each release of a workload has its
// ChangeWorkload, those that slipped past admission included, evicts pods that are stuck at
// a version that was left, and takes back
// the operator's block from workloads that leave the defense, and its halt and hold also
// from those that another object owns by now.
type WorkloadReconciler struct {
	*cluster.Cluster
	// server: releases are checked by AlterShield Server.
	server bool
	// unenrolled are the versions workloads outside of the defense were last
	// seen with. It only spares baselines a doubt that their times leave, so
	// that it is gone after a restart does no harm.
	unenrolled sync.Map // workload.Key -> seenVersion
	// blocked are the workloads whose releases were denied when they were seen last,
	// and deleted those of them that are gone, for a day. Both are in memory only: of
	// what is deleted while no leader is there, only the audit log of the API server
	// tells.
	blocked sync.Map // workload.Key -> *defense.DeniedWorkload
	deleted *lru.LRUExpireCache
	// tooLarge are the workloads whose event EventDefenseChanged was sent, until they fit again.
	tooLarge sync.Map // workload.Key -> true
	// unknown are the labels and annotations that each workload has and the operator does not
	// know, whose events were sent.
	unknown sync.Map // workload.Key -> []string
	// mistyped are the namespaces with a label that somebody meant to enrol them by.
	mistyped sync.Map // name -> string
	// processed is the release that a workload was told of just now that it has its
	// ChangeWorkload, by its UID.
	processed *lru.LRUExpireCache
	evictions *evictor
}

const (
	// maxProcessed is for how many workloads that is remembered, and processedFor for
	// how long: the cache shows what was written within moments. Then it is looked at
	// again.
	maxProcessed = 10_000
	processedFor = 2 * time.Second

	// maxDeleted is how many deleted workloads are remembered, and deletedFor for how
	// long: whoever creates one of them again does so soon.
	maxDeleted = 10_000
	deletedFor = 24 * time.Hour
)

func newWorkloadReconciler(c *cluster.Cluster, server bool) *WorkloadReconciler {
	return &WorkloadReconciler{
		Cluster: c, server: server, deleted: lru.NewLRUExpireCacheWithClock(maxDeleted, c.Clock), processed: lru.NewLRUExpireCacheWithClock(maxProcessed, c.Clock),
		evictions: &evictor{Cluster: c, refused: lru.NewLRUExpireCacheWithClock(maxRefused, c.Clock)},
	}
}

// seenVersion is a workload with the version of its template.
type seenVersion struct {
	uid     types.UID
	version string
}

// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create
// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=changeworkloads,verbs=get;list;watch;create;patch;delete

// SetupWithManager adds the controller to the manager.
func (r *WorkloadReconciler) SetupWithManager(mgr ctrl.Manager) error {
	b := builder.TypedControllerManagedBy[workload.Key](mgr).Named("workload")
	for _, kind := range r.Kinds.Kinds() {
		changed := recordChanged()
		if _, ok := kind.(workload.Evicter); ok {
			// Its controller gets on after a rollback, which its status tells.
			changed = predicate.Or(changed, predicate.NewPredicateFuncs(mayNeedEviction))
		}
		b = b.Watches(kind.Object(), to(cluster.Itself(kind)), builder.WithPredicates(changed))
		for _, s := range kind.Secondary() {
			// The revision before the first release is seen only now: it is the baseline.
			b = b.Watches(s.Object, to(cluster.OwnerBy(s)), builder.WithPredicates(acquired()))
		}
	}
	return b.
		// A record was made, or somebody removed it.
		Watches(&v1alpha1.ChangeWorkload{}, to(r.WorkloadOf)).
		// The namespace is enrolled, or leaves: what is blocked there is let go.
		Watches(cluster.NamespaceObject(), to(r.workloadsOf), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		// Observing takes back what the operator holds; evicting is turned on or off.
		Watches(&v1alpha1.OpsConfigInfo{}, to(r.heldWorkloads)).
		// It becomes known since when this installation runs.
		Watches(&v1alpha1.OpsConfigInfo{}, to(r.recordedWorkloads), builder.WithPredicates(r.installed())).
		WithOptions(controller.TypedOptions[workload.Key]{MaxConcurrentReconciles: workers, ReconciliationTimeout: reconcileTimeout}).
		WithLogConstructor(cluster.LogWorkload(mgr, "workload")).
		Complete(cluster.Quiet(r))
}

// Reconcile records the release a workload is at.
func (r *WorkloadReconciler) Reconcile(ctx context.Context, key workload.Key) (ctrl.Result, error) {
	w, err := r.Workload(ctx, key)
	if err != nil {
		return ctrl.Result{}, err
	}
	if w == nil {
		r.unenrolled.Delete(key)
		r.tooLarge.Delete(key)
		r.unknown.Delete(key)
		return ctrl.Result{}, r.tellDeleted(ctx, key, nil)
	}
	ns, err := r.Namespace(ctx, w.Namespace)
	if err != nil || ns.Ending() {
		return ctrl.Result{}, err
	}
	if err := r.tellDeleted(ctx, key, w); err != nil {
		return ctrl.Result{}, err
	}
	r.rememberDenied(ns, key, w)
	r.reportTooLarge(ns, key, w)
	r.reportUnknown(ctx, ns, key, w)
	in, err := r.load(ctx, ns, w)
	if err != nil {
		return ctrl.Result{}, err
	}
	plan, again := defense.DecideWorkload(in), ctrl.Result{}
	if plan.Processed {
		again.RequeueAfter = processedFor
	}
	again, err = cluster.Settle(ctx, again, r.denied(ctx, in, r.apply(ctx, in, plan)))
	if err != nil || !rollback.MayNeedEviction(w) {
		return again, err
	}
	evicted, err := r.evictions.reconcile(ctx, key)
	return sooner(again, evicted), err
}

// sooner is the result of the two that comes first.
func sooner(a, b ctrl.Result) ctrl.Result {
	if a.RequeueAfter == 0 || b.RequeueAfter > 0 && b.RequeueAfter < a.RequeueAfter {
		return b
	}
	return a
}

// denied tells whether what was written was denied. Of a workload that left the
// defense only the log does.
func (r *WorkloadReconciler) denied(ctx context.Context, in defense.WorkloadInput, err error) error {
	w, change := in.Workload, cluster.CurrentRelease(in.Workload, in.Changes)
	denied := (*cluster.DeniedError)(nil)
	if !in.Enrolled || workload.OptedOut(w.Labels) {
		if errors.As(err, &denied) {
			denied.Log(ctx)
		}
		return err
	}
	if err == nil && change != nil {
		return r.NoteAccepted(ctx, change, cluster.ActRecord)
	}
	return r.ReportDenied(ctx, w, change, err)
}

func (r *WorkloadReconciler) load(ctx context.Context, ns cluster.Namespace, w *workload.Workload) (in defense.WorkloadInput, err error) {
	in = defense.WorkloadInput{Now: r.Clock.Now(), Workload: w, Enrolled: ns.Enrolled}
	key := workload.Key{GroupKind: w.GVK.GroupKind(), NamespacedName: types.NamespacedName{Namespace: w.Namespace, Name: w.Name}}
	if !in.Enrolled {
		if err := r.seeOutside(ctx, key, w); err != nil {
			return in, err
		}
	} else {
		seen, _ := r.unenrolled.Load(key)
		if s, ok := seen.(seenVersion); ok && s.uid == w.UID {
			in.SeenBefore = s.version
		}
		if in.DefendedSince, in.Installed, err = r.DefendedSince(ctx, w); err != nil {
			return in, err
		}
	}
	if in.Changes, err = r.Releases(ctx, w.Namespace, w.UID); err != nil {
		return in, err
	}
	if in.History, err = r.History(ctx, w.Namespace, w.UID); err != nil {
		return in, err
	}
	set, err := r.InForceOf(ctx, w, nil)
	in.KeepHistory, in.Observe = set.History, set.Observe && !set.ByOwner
	return in, err
}

// seeOutside remembers the version of a workload whose namespace is not enrolled. The
// cache of namespaces may be behind that of workloads: that its namespace is not
// enrolled is believed of a young revision only from the API server. What is older than
// the enrolment its times tell.
func (r *WorkloadReconciler) seeOutside(ctx context.Context, key workload.Key, w *workload.Workload) error {
	now := seenVersion{uid: w.UID, version: w.Version}
	if seen, ok := r.unenrolled.Load(key); ok && seen == now {
		return nil
	}
	if w.RevisionCreated.IsZero() || r.Clock.Since(w.RevisionCreated) < youngRevision {
		ns := cluster.NamespaceObject()
		if err := r.Live.Get(ctx, types.NamespacedName{Name: w.Namespace}, ns); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("get namespace %s: %w", w.Namespace, err)
		}
		if ns.Name == "" || workload.NamespaceEnrolled(ns.Name, ns.Labels) {
			return nil // it is gone, or enrolled: the cache will say so, too
		}
	}
	r.unenrolled.Store(key, now)
	return nil
}

// youngRevision is how old a revision is at most whose namespace may have been enrolled
// before it was made, although the cache does not show that yet.
const youngRevision = time.Minute

func (r *WorkloadReconciler) apply(ctx context.Context, in defense.WorkloadInput, plan defense.WorkloadPlan) error {
	w := in.Workload
	switch {
	case plan.TakeBack:
		return r.takeBack(ctx, in)
	case plan.LetGo:
		return r.letGo(ctx, w)
	case plan.Baselined:
		return r.baseline(ctx, w)
	case plan.Record != nil:
		return r.record(ctx, w, plan.Record)
	}
	if plan.Baseline {
		if err := r.RememberBaseline(ctx, &in); err != nil {
			return err
		}
	}
	if plan.EnsureChange {
		if err := r.ensureChange(ctx, w, in.Changes); err != nil {
			return err
		}
	}
	if err := r.acknowledge(ctx, w, plan); err != nil || !plan.HandBack {
		return err
	}
	return r.handBack(ctx, w)
}

// baseline removes the record of an earlier installation from a workload, in one write: the version
// that runs is a baseline until the template changes. The number of its release goes on, so that no
// older ChangeWorkload is about it. What is in quarantine stays. A hold is given back, since no
// release is there to end it.
func (r *WorkloadReconciler) baseline(ctx context.Context, w *workload.Workload) error {
	kind, err := r.KindOf(w)
	if err != nil {
		return err
	}
	p := cluster.PatchRevision(w)
	p.DropLabel(v1alpha1.VersionLabel)
	p.DropLabel(v1alpha1.DefenseStatusLabel)
	p.SetAnnotation(v1alpha1.ReleaseAnnotation, strconv.FormatInt(workload.NextRelease(w.Release()), 10))
	p.DropAnnotation(v1alpha1.RollbackToAnnotation)
	p.DropAnnotation(v1alpha1.UnquarantineAnnotation)
	p.GiveBack(kind)
	if err := r.PatchWorkload(ctx, p, cluster.ActRecord); err != nil {
		return err
	}
	log.FromContext(ctx).Info("removed the record of an earlier installation: the workload is a baseline", "version", w.RecordedVersion())
	for annotation, reason := range map[string]string{
		v1alpha1.RollbackToAnnotation: v1alpha1.EventRollbackRefused, v1alpha1.UnquarantineAnnotation: v1alpha1.EventUnknownMetadata,
	} {
		if asked, ok := w.Annotations[annotation]; ok {
			r.dropped(w, annotation, asked, reason)
		}
	}
	return nil
}

// record writes on the workload what admission would have written, never on its
// template: that would restart its pods.
func (r *WorkloadReconciler) record(ctx context.Context, w *workload.Workload, rec *defense.Recording) error {
	p := cluster.PatchRevision(w)
	p.SetLabel(v1alpha1.VersionLabel, rec.Version)
	p.SetAnnotation(v1alpha1.ReleaseAnnotation, strconv.FormatInt(rec.Release, 10))
	switch admitted := rec.Admitted.String(); admitted {
	case w.Annotations[v1alpha1.AdmittedAnnotation]:
	case "":
		p.DropAnnotation(v1alpha1.AdmittedAnnotation)
	default:
		p.SetAnnotation(v1alpha1.AdmittedAnnotation, admitted)
	}
	if rec.Slipped {
		p.SetAnnotation(v1alpha1.ReleasedByAnnotation, workload.UnknownUser)
		p.DropLabel(v1alpha1.DefenseStatusLabel)
		// It was about the release before.
		p.DropAnnotation(v1alpha1.RollbackToAnnotation)
	}
	if rec.Override != nil {
		p.DropLabel(v1alpha1.IgnoredSuspendLabel)
		p.SetAnnotation(v1alpha1.OverrideAnnotation, rec.Override.String())
		if q := rollback.ParseQuarantine(w.Annotations, r.Clock.Now()); q.Holds(rec.Version) {
			p.SetQuarantine(q.Override(rec.Version, rec.Override.User))
		}
	}
	if err := r.PatchWorkload(ctx, p, cluster.ActRecord); err != nil {
		return err
	}
	log.FromContext(ctx).Info("recorded a release that admission did not record, or saw otherwise than it is stored",
		"version", rec.Version, "seen", w.RecordedVersion(), "release", rec.Release, "slipped", rec.Slipped)
	if rec.Slipped {
		r.Event(w, nil, record.Event{Type: corev1.EventTypeNormal, Reason: v1alpha1.EventAdmissionBypassed,
			Message: fmt.Sprintf("version %s was released past the admission webhook; it is verified like any other release", rec.Version)}, "Record")
	}
	return nil
}

// ensureChange creates the ChangeWorkload of the workload's version, or tells
// the one that is there of a newer release of the same version.
func (r *WorkloadReconciler) ensureChange(ctx context.Context, w *workload.Workload, changes []v1alpha1.ChangeWorkload) error {
	version := w.RecordedVersion()
	for i := range changes {
		change := &changes[i]
		if change.Spec.Reversion != version {
			continue
		}
		if change.Spec.Release >= w.Release() {
			return nil
		}
		patched := change.DeepCopy()
		patched.Spec.Release = w.Release()
		if err := r.Client.Patch(ctx, patched, client.MergeFromWithOptions(change, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("write release %d to changeworkload %s: %w", w.Release(), change.Name, err)
		}
		return nil
	}
	// A setting that cannot be used is reported by the release.
	set, err := r.InForceOf(ctx, w, nil)
	if err != nil {
		return err
	}
	change := newChangeWorkload(w, set.Settings, r.Clock.Now())
	if change.Spec.Policies, err = r.PoliciesOf(ctx, w); err != nil {
		return err
	}
	switch err := r.Try(w, cluster.ActRecord, func() error { return r.Client.Create(ctx, change) }); {
	case err == nil:
		log.FromContext(ctx).Info("created the changeworkload of a release", "changeworkload", change.Name, "release", w.Release())
		return nil
	case apierrors.IsAlreadyExists(err):
		return errors.Join(err, r.RemoveOrphan(ctx, change))
	default:
		return fmt.Errorf("create changeworkload %s: %w", change.Name, err)
	}
}

// acknowledge says on the workload that its version has its ChangeWorkload, and
// emits an event of an override once.
func (r *WorkloadReconciler) acknowledge(ctx context.Context, w *workload.Workload, plan defense.WorkloadPlan) error {
	once := plan.Override != nil || plan.Resumed || plan.Unquarantined != nil || plan.Unquarantine != ""
	if !once && (!plan.Processed || r.processedJustNow(w)) {
		return nil
	}
	p := cluster.PatchRelease(w)
	if once {
		// Once: a view from before the last report must not report again, nor
		// one from before a pause take its mark away.
		p = cluster.PatchRevision(w)
	}
	before := false
	if plan.Unquarantine != "" && plan.Unquarantined == nil {
		laid, known, err := r.LaidBefore(ctx, w, v1alpha1.UnquarantineAnnotation)
		if err != nil || !known { // the condition Installed wakes it
			return err
		}
		before = laid
	}
	if plan.Resumed {
		p.DropHalted()
	}
	if plan.Processed {
		p.SetLabel(v1alpha1.DefenseStatusLabel, v1alpha1.DefenseStatusProcessed)
	}
	if plan.Override != nil {
		p.SetAnnotation(v1alpha1.OverrideReportedAnnotation, plan.Override.ResourceVersion)
	}
	ended := plan.Unquarantined
	if before {
		p.DropAnnotation(v1alpha1.UnquarantineAnnotation)
	} else if ended != nil {
		p.DropAnnotation(v1alpha1.UnquarantinedAnnotation)
	} else if plan.Unquarantine != "" {
		q, done := rollback.ParseQuarantine(w.Annotations, r.Clock.Now()).Unquarantine(plan.Unquarantine, workload.UnknownUser)
		p.SetQuarantine(q)
		p.DropAnnotation(v1alpha1.UnquarantineAnnotation)
		ended = &done
	}
	if err := r.PatchWorkload(ctx, p, cluster.ActRecord); err != nil {
		return err
	}
	r.processed.Add(w.UID, w.Release(), processedFor)
	r.emitUnquarantined(ctx, w, ended)
	if plan.Resumed {
		message := fmt.Sprintf("the %s because of version %s, by a write that admission did not see",
			w.Words.Halt(), w.Annotations[v1alpha1.HaltedAnnotation])
		r.Event(w, nil, record.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventRolloutResumed, Message: message}, "Resume")
	}
	if before {
		r.dropped(w, v1alpha1.UnquarantineAnnotation, plan.Unquarantine, v1alpha1.EventUnknownMetadata)
	}
	if o := plan.Override; o != nil {
		metrics.Overridden(w.GVK.Kind)
		log.FromContext(ctx).Info("a user overrode the block", "version", o.Version, "user", o.User)
		r.Event(w, nil, record.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventBlockOverridden,
			Message: fmt.Sprintf("version %s, by %s with the label %s",
				o.Version, o.User, v1alpha1.IgnoredSuspendLabel)}, "Override")
	}
	return nil
}

// processedJustNow says that a workload was told so, which its cache may not show yet.
func (r *WorkloadReconciler) processedJustNow(w *workload.Workload) bool {
	release, ok := r.processed.Get(w.UID)
	return ok && release == w.Release()
}

// emitUnquarantined emits an event of a quarantine that a user ended.
func (r *WorkloadReconciler) emitUnquarantined(ctx context.Context, w *workload.Workload, u *rollback.Unquarantined) {
	if u == nil {
		return
	}
	reason := v1alpha1.EventQuarantineEnded
	if len(u.Ended) == 0 {
		reason = v1alpha1.EventUnknownMetadata
	}
	log.FromContext(ctx).Info("a user asked to end a quarantine", "asked", u.Asked, "ended", u.Ended, "user", u.User)
	r.Event(w, nil, record.Event{Type: corev1.EventTypeWarning, Reason: reason, Message: u.Describe()}, "Unquarantine")
}
