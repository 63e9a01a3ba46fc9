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
	"reflect"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// WorkloadReconciler sees to it that each release of a workload has its
// ChangeWorkload, those that slipped past admission included, and takes back
// the operator's block from workloads that leave the defense.
type WorkloadReconciler struct {
	base
	// unenrolled are the versions workloads outside of the defense were last
	// seen with. It only spares baselines a doubt that their times leave, so
	// that it is gone after a restart does no harm.
	unenrolled sync.Map // types.NamespacedName -> sighting
}

// sighting is a workload with the version of its template.
type sighting struct {
	uid     types.UID
	version string
}

// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=apps,resources=deployments/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps,resources=replicasets,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create
// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=changeworkloads,verbs=get;list;watch;create;patch;delete

// SetupWithManager adds the controller to the manager.
func (r *WorkloadReconciler) SetupWithManager(mgr ctrl.Manager) error {
	toOwner := handler.TypedEnqueueRequestForOwner[client.Object](mgr.GetScheme(), mgr.GetRESTMapper(), r.kind.Object(), handler.OnlyControllerOwner())
	return ctrl.NewControllerManagedBy(mgr).
		Named("workload").
		For(r.kind.Object(), builder.WithPredicates(recordChanged())).
		Watches(&v1alpha1.ChangeWorkload{}, toOwner).
		Watches(r.kind.Revision(), toOwner, builder.WithPredicates(acquired())).
		Watches(namespaceMetadata(), handler.EnqueueRequestsFromMapFunc(r.workloadsOfNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, ReconciliationTimeout: reconcileTimeout}).
		Complete(quiet(r))
}

// Reconcile records the release a workload is at.
func (r *WorkloadReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	w, err := r.kind.Get(ctx, r.client, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if w == nil {
		r.unenrolled.Delete(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	ns, err := r.observeNamespace(ctx, w.Namespace)
	if err != nil || ending(ns) {
		return ctrl.Result{}, err
	}
	in, err := r.observe(ctx, ns, w)
	if err != nil {
		return ctrl.Result{}, err
	}
	return settle(ctx, ctrl.Result{}, r.apply(ctx, w, in.Changes, defense.DecideWorkload(in)))
}

func (r *WorkloadReconciler) observe(ctx context.Context, ns *metav1.PartialObjectMetadata, w *defense.Workload) (in defense.WorkloadInput, err error) {
	in = defense.WorkloadInput{Workload: w, Enrolled: r.enrolled(ns)}
	key := types.NamespacedName{Namespace: w.Namespace, Name: w.Name}
	if !in.Enrolled {
		r.unenrolled.Store(key, sighting{uid: w.UID, version: w.Version})
	} else {
		seen, _ := r.unenrolled.Load(key)
		if s, ok := seen.(sighting); ok && s.uid == w.UID {
			in.SeenBefore = s.version
		}
		if in.DefendedSince, err = r.defendedSince(ctx, ns); err != nil {
			return in, err
		}
	}
	in.Changes, err = r.changesOf(ctx, w.Namespace, w.UID)
	return in, err
}

// defendedSince is the later of the enrolment of the namespace and of the
// installation of the operator, which is when its first setting was created.
func (r *WorkloadReconciler) defendedSince(ctx context.Context, ns *metav1.PartialObjectMetadata) (time.Time, error) {
	since := defense.EnrolledSince(ns.ManagedFields)
	var installed v1alpha1.OpsConfigInfo
	key := types.NamespacedName{Namespace: r.namespace, Name: settings.NameBlocking}
	if err := r.client.Get(ctx, key, &installed, client.DisableReadYourWritesConsistency); err != nil {
		return time.Time{}, client.IgnoreNotFound(err)
	}
	if since.IsZero() || since.After(installed.CreationTimestamp.Time) {
		return since, nil
	}
	return installed.CreationTimestamp.Time, nil
}

func (r *WorkloadReconciler) apply(ctx context.Context, w *defense.Workload, changes []v1alpha1.ChangeWorkload, plan defense.WorkloadPlan) error {
	switch {
	case plan.TakeBack:
		p := patchRelease(w)
		if w.Annotations[v1alpha1.SuspendedByAnnotation] != "" {
			// A block that somebody else set stays.
			p.dropLabel(v1alpha1.SuspendLabel)
			p.dropAnnotation(v1alpha1.SuspendedByAnnotation)
		}
		p.dropAnnotation(v1alpha1.OverrideStaleAnnotation)
		p.resume()
		if err := r.patchWorkload(ctx, p); err != nil {
			return err
		}
		// No event: this was the last write about a workload that is not ours any
		// more.
		log.FromContext(ctx).Info("took back the block of a workload that left the defense")
		return nil
	case plan.Record != nil:
		return r.record(ctx, w, plan.Record)
	}
	if plan.EnsureChange {
		if err := r.ensureChange(ctx, w, changes); err != nil {
			return err
		}
	}
	return r.acknowledge(ctx, w, plan)
}

// record writes on the workload what admission would have written, never on its
// template: that would restart its pods.
func (r *WorkloadReconciler) record(ctx context.Context, w *defense.Workload, rec *defense.Recording) error {
	p := patchRevision(w)
	p.setLabel(v1alpha1.VersionLabel, rec.Version)
	p.setAnnotation(v1alpha1.ReleaseAnnotation, strconv.FormatInt(rec.Release, 10))
	if rec.Slipped {
		p.setAnnotation(v1alpha1.ReleasedByAnnotation, defense.UnknownUser)
		p.dropLabel(v1alpha1.DefenseStatusLabel)
		// It was about the release before.
		p.dropAnnotation(v1alpha1.RollbackToAnnotation)
	}
	if rec.Override != nil {
		p.dropLabel(v1alpha1.IgnoredSuspendLabel)
		p.setAnnotation(v1alpha1.OverrideAnnotation, rec.Override.String())
		if q := defense.ParseQuarantine(w.Annotations); q.Holds(rec.Version) {
			p.setQuarantine(q.Override(rec.Version, rec.Override.User))
		}
	}
	if err := r.patchWorkload(ctx, p); err != nil {
		return err
	}
	log.FromContext(ctx).Info("recorded a release that admission did not record", "version", rec.Version, "release", rec.Release, "slipped", rec.Slipped)
	if rec.Slipped {
		r.event(w, nil, defense.Event{Type: corev1.EventTypeNormal, Reason: "ReleaseRecorded",
			Message: fmt.Sprintf("version %s was released past the admission webhook; it is verified like any other", rec.Version)}, "Record")
	}
	return nil
}

// ensureChange creates the ChangeWorkload of the workload's version, or tells
// the one that is there of a newer release of the same version.
func (r *WorkloadReconciler) ensureChange(ctx context.Context, w *defense.Workload, changes []v1alpha1.ChangeWorkload) error {
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
		if err := r.client.Patch(ctx, patched, client.MergeFromWithOptions(change, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("tell changeworkload %s of release %d: %w", change.Name, w.Release(), err)
		}
		return nil
	}
	set, err := r.observeSettings(ctx)
	if err != nil {
		return err
	}
	// Whoever is wrong is told by the release.
	set, _ = settings.Override(set, w.Annotations)
	change := newChangeWorkload(r.kind, w, set, r.clock.Now())
	switch err := r.client.Create(ctx, change); {
	case err == nil:
		log.FromContext(ctx).Info("created the changeworkload of a release", "changeworkload", change.Name, "release", w.Release())
		return nil
	case apierrors.IsAlreadyExists(err):
		return errors.Join(err, r.removeOrphan(ctx, change))
	default:
		return fmt.Errorf("create changeworkload %s: %w", change.Name, err)
	}
}

// acknowledge says on the workload that its version has its ChangeWorkload, and
// tells of an override once.
func (r *WorkloadReconciler) acknowledge(ctx context.Context, w *defense.Workload, plan defense.WorkloadPlan) error {
	if !plan.Processed && plan.Override == nil && !plan.Resumed {
		return nil
	}
	p := patchRelease(w)
	if plan.Override != nil || plan.Resumed {
		// Once: a view from before the last report must not report again, nor
		// one from before a pause take its mark away.
		p = patchRevision(w)
	}
	if plan.Resumed {
		p.dropAnnotation(v1alpha1.HaltedAnnotation)
	}
	if plan.Processed {
		p.setLabel(v1alpha1.DefenseStatusLabel, v1alpha1.DefenseStatusProcessed)
	}
	if plan.Override != nil {
		p.setAnnotation(v1alpha1.OverrideReportedAnnotation, plan.Override.ResourceVersion)
	}
	if err := r.patchWorkload(ctx, p); err != nil {
		return err
	}
	if o := plan.Override; o != nil {
		metrics.Overridden()
		log.FromContext(ctx).Info("a user overrode the block", "version", o.Version, "user", o.User)
		r.event(w, nil, defense.Event{Type: corev1.EventTypeWarning, Reason: "BlockOverridden",
			Message: fmt.Sprintf("version %s: %s passed the block or the quarantine with the label %s", o.Version, o.User, v1alpha1.IgnoredSuspendLabel)}, "Override")
	}
	return nil
}

// workloadsOfNamespace maps a namespace to its workloads, for when it is
// enrolled or leaves.
func (b *base) workloadsOfNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	list := b.kind.ObjectList()
	if err := b.client.List(ctx, list, client.InNamespace(ns.GetName()), client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency); err != nil {
		log.FromContext(ctx).Error(err, "list the workloads of a namespace", "namespace", ns.GetName())
		return nil
	}
	return requestsFor(ctx, list)
}

func newOwnerReference(apiVersion, kind, name string, uid types.UID) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, Controller: &yes, BlockOwnerDeletion: &yes}
}

// recordChanged lets through what may change a workload's record: its spec, its
// labels and annotations, its deletion. Its status is not among it.
func recordChanged() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
				e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
				!reflect.DeepEqual(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) ||
				!reflect.DeepEqual(e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations())
		},
	}
}
