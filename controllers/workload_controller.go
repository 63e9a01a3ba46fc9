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
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// WorkloadReconciler creates the ChangeWorkload of each release of a workload, also of a release
// past admission, and evicts stuck pods of abandoned versions. It takes back the operator's block,
// halt and hold from workloads that leave the defense, and the halt and the hold from workloads that
// get an owner.
type WorkloadReconciler struct {
	*cluster.Cluster
	// server: releases are checked by AlterShield Server.
	server bool
	// unenrolled has the last version of each workload whose namespace is not enrolled. It only
	// helps to recognize baselines whose times leave a doubt, so a restart may lose it.
	unenrolled sync.Map // workload.Key -> seenVersion
	// blocked has the workloads whose releases are denied, and deleted has those of them that were
	// deleted within a day. Both are in memory only: a deletion while there is no leader is only
	// in the audit log of the API server.
	blocked sync.Map // workload.Key -> *defense.DeniedWorkload
	deleted *lru.LRUExpireCache
	// tooLarge has the workloads that were reported as too large, until they fit again.
	tooLarge sync.Map // workload.Key -> true
	// unknown has the reported labels and annotations of each workload that the operator does not
	// know.
	unknown sync.Map // workload.Key -> []string
	// mistyped has the namespaces with a mistyped label of their enrolment.
	mistyped sync.Map // name -> string
	// processed has the release for which DefenseStatusLabel was just written, by the UID of the
	// workload.
	processed *lru.LRUExpireCache
	evictions *evictor
}

const (
	// maxProcessed is the most entries of processed, and processedFor is how long each stays:
	// the cache shows a write within moments. Then the workload is reconciled again.
	maxProcessed = 10_000
	processedFor = 2 * time.Second

	// maxDeleted is the most entries of deleted, and deletedFor is how long each stays: users
	// create a deleted workload again soon.
	maxDeleted = 10_000
	deletedFor = 24 * time.Hour
)

func newWorkloadReconciler(c *cluster.Cluster, server bool) *WorkloadReconciler {
	return &WorkloadReconciler{
		Cluster: c, server: server,
		deleted:   lru.NewLRUExpireCacheWithClock(maxDeleted, c.Clock),
		processed: lru.NewLRUExpireCacheWithClock(maxProcessed, c.Clock),
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
	return watchKinds(builder.TypedControllerManagedBy[workload.Key](mgr).Named("workload"), r.Cluster, watchRecorded).
		// A record was created or removed.
		Watches(&v1alpha1.ChangeWorkload{}, to(r.WorkloadOf)).
		// The namespace is enrolled, or no longer enrolled: then its blocks are lifted.
		Watches(cluster.NamespaceObject(), to(r.workloadsOf), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		// Observe mode takes back blocks, halts and holds; eviction is turned on or off.
		Watches(&v1alpha1.OpsConfigInfo{}, to(r.heldWorkloads)).
		// The start of this installation becomes known.
		Watches(&v1alpha1.OpsConfigInfo{}, to(r.recordedWorkloads), builder.WithPredicates(r.installed())).
		WithOptions(controller.TypedOptions[workload.Key]{MaxConcurrentReconciles: workers, ReconciliationTimeout: reconcileTimeout}).
		WithLogConstructor(cluster.LogWorkload(mgr, "workload")).
		Complete(cluster.Quiet(r))
}

// watchRecorded returns the watches of a kind.
func watchRecorded(kind workload.Kind) []hub.Watch[workload.Key] {
	changed := recordChanged()
	if _, ok := kind.(workload.Evicter); ok {
		// The status shows how the controller proceeds after a rollback.
		changed = predicate.Or(changed, predicate.NewPredicateFuncs(mayNeedEviction))
	}
	watches := []hub.Watch[workload.Key]{{
		Object: kind.Object(), Handler: to(cluster.Itself(kind)), Predicates: []predicate.Predicate{changed},
	}}
	for _, s := range kind.Secondary() {
		// The cache shows the revision before the first release, which is the baseline.
		watches = append(watches, hub.Watch[workload.Key]{
			Object: s.Object, Handler: to(cluster.OwnerBy(s)), Predicates: []predicate.Predicate{acquired()},
		})
	}
	return watches
}

// Reconcile records the current release of a workload.
func (r *WorkloadReconciler) Reconcile(ctx context.Context, key workload.Key) (ctrl.Result, error) {
	w, err := r.Workload(ctx, key)
	if err != nil {
		return ctrl.Result{}, err
	}
	if w == nil {
		r.unenrolled.Delete(key)
		r.tooLarge.Delete(key)
		r.unknown.Delete(key)
		return ctrl.Result{}, r.reportDeleted(ctx, key, nil)
	}
	ns, err := r.Namespace(ctx, w.Namespace)
	if err != nil || ns.Ending() {
		return ctrl.Result{}, err
	}
	if err := r.reportDeleted(ctx, key, w); err != nil {
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

// sooner returns the result with the earlier requeue.
func sooner(a, b ctrl.Result) ctrl.Result {
	if a.RequeueAfter == 0 || b.RequeueAfter > 0 && b.RequeueAfter < a.RequeueAfter {
		return b
	}
	return a
}

// denied writes to the release of the workload whether the last write was denied. If the workload
// left the defense, a denial is only logged.
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
	if in.Rebaselines, err = r.Rebaselines(ctx, w); err != nil {
		return in, err
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

// seeOutside remembers the version of a workload whose namespace is not enrolled. The cache of
// namespaces may be behind the cache of workloads, so the namespace of a young revision is read from
// the API server. The times of an older revision show that it is older than the enrolment.
func (r *WorkloadReconciler) seeOutside(ctx context.Context, key workload.Key, w *workload.Workload) error {
	now := seenVersion{uid: w.UID, version: w.Version}
	if seen, ok := r.unenrolled.Load(key); ok && seen == now {
		return nil
	}
	if w.RevisionCreated.IsZero() || r.Clock.Since(w.RevisionCreated) < youngRevision {
		ns, err := r.LiveNamespace(ctx, w.Namespace)
		if err != nil {
			return err
		}
		if ns.Meta == nil || workload.NamespaceEnrolled(ns.Meta.Name, ns.Meta.Labels) {
			return nil // it is gone, or enrolled: the cache will show it, too
		}
	}
	r.unenrolled.Store(key, now)
	return nil
}

// youngRevision is the largest age of a revision that may be younger than the enrolment of its
// namespace although the cache does not show the enrolment yet.
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

// baseline removes the record of an earlier installation, or of another declaration of the content, from a workload, in one
// write: the running version is a baseline until the template changes. The release number increases, so that no older
// ChangeWorkload matches. The quarantine stays. A hold is given back, since no release can end it. For the same reason, a
// workload of a declared kind is not left with the operator's block and halt.
func (r *WorkloadReconciler) baseline(ctx context.Context, w *workload.Workload) error {
	kind, err := r.KindOf(w)
	if err != nil {
		return err
	}
	if w.Content != nil {
		if w, err = r.whole(ctx, w); err != nil {
			return err
		}
	}
	p := cluster.PatchRevision(w)
	p.DropLabel(v1alpha1.VersionLabel)
	p.DropLabel(v1alpha1.DefenseStatusLabel)
	ended := dropBlock(p, w, kind)
	p.SetAnnotation(v1alpha1.ReleaseAnnotation, strconv.FormatInt(workload.NextRelease(w.Release()), 10))
	p.DropAnnotation(v1alpha1.RollbackToAnnotation)
	p.DropAnnotation(v1alpha1.UnquarantineAnnotation)
	if w.Content != nil {
		p.SetAnnotation(v1alpha1.ContentAnnotation, w.Content.String())
	}
	p.GiveBack(kind)
	if err := r.PatchWorkload(ctx, p, cluster.ActRecord); err != nil {
		return err
	}
	key := workload.Key{GroupKind: w.GVK.GroupKind(), NamespacedName: types.NamespacedName{Namespace: w.Namespace, Name: w.Name}}
	r.unenrolled.Store(key, seenVersion{uid: w.UID, version: w.Version}) // it stays a baseline when it is scaled
	log.FromContext(ctx).Info("removed the record of an earlier installation or declaration: the workload is a baseline",
		"version", w.RecordedVersion())
	if ended != "" {
		r.Event(w, nil, record.Event{Type: corev1.EventTypeNormal, Reason: ended,
			Message: "the present content is a baseline, so no release can end the block or the halt"}, "Baseline")
	}
	for annotation, reason := range map[string]string{
		v1alpha1.RollbackToAnnotation: v1alpha1.EventRollbackRefused, v1alpha1.UnquarantineAnnotation: v1alpha1.EventUnknownMetadata,
	} {
		if asked, ok := w.Annotations[annotation]; ok {
			r.dropped(w, annotation, asked, reason)
		}
	}
	return nil
}

// record writes the labels and annotations that admission would have written. It does not write to
// the template, which would restart the pods.
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
		// The request was for the release before.
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
	log.FromContext(ctx).Info("recorded a release that admission did not see, or saw with another template",
		"version", rec.Version, "seen", w.RecordedVersion(), "release", rec.Release, "slipped", rec.Slipped)
	if rec.Slipped {
		message := fmt.Sprintf("version %s was released past the admission webhook; it is verified like any other release", rec.Version)
		r.Event(w, nil, record.Event{Type: corev1.EventTypeNormal, Reason: v1alpha1.EventAdmissionBypassed, Message: message}, "Record")
	}
	return nil
}

// ensureChange creates the ChangeWorkload of the workload's version, or writes the number of a newer
// release of this version to the existing ChangeWorkload.
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
	// The release reports settings that cannot be used.
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

// acknowledge marks the workload whose version has its ChangeWorkload, carries out its request to
// end a quarantine, and reports overrides, resumed rollouts and ended quarantines, each once.
func (r *WorkloadReconciler) acknowledge(ctx context.Context, w *workload.Workload, plan defense.WorkloadPlan) error {
	once := plan.Override != nil || plan.Resumed || plan.Unquarantined != nil || plan.Unquarantine != "" || plan.Content != ""
	if !once && (!plan.Processed || r.processedJustNow(w)) {
		return nil
	}
	p := cluster.PatchRelease(w)
	if once {
		// An outdated cache must neither report twice, nor remove the mark of a later halt.
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
	if plan.Content != "" {
		p.SetAnnotation(v1alpha1.ContentAnnotation, plan.Content)
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
		metrics.Overridden(workload.LabelOf(w.GVK.GroupKind()))
		log.FromContext(ctx).Info("a user overrode the block", "version", o.Version, "user", o.User)
		r.Event(w, nil, record.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventBlockOverridden,
			Message: fmt.Sprintf("version %s, by %s with the label %s",
				o.Version, o.User, v1alpha1.IgnoredSuspendLabel)}, "Override")
	}
	return nil
}

// processedJustNow reports whether the workload was just marked, which the cache may not show yet.
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
