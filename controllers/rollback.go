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
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Rollbacks observes what a rollback is decided from, and carries it out.
type Rollbacks struct {
	base
}

// NewRollbacks uses the manager's caches.
func NewRollbacks(mgr ctrl.Manager, o Options) *Rollbacks { return &Rollbacks{base: newBase(mgr, o)} }

// Kind is the kind of workload that is rolled back.
func (r *Rollbacks) Kind() client.Object { return r.kind.Object() }

// Observe reads all a decision needs; found is false when there is no such
// workload under defense.
func (r *Rollbacks) Observe(ctx context.Context, key types.NamespacedName) (in defense.RollbackInput, found bool, err error) {
	ns, err := r.observeNamespace(ctx, key.Namespace)
	if err != nil || !r.enrolled(ns) {
		return in, false, err
	}
	w, err := r.kind.Get(ctx, r.client, key)
	if err != nil || w == nil {
		return in, false, err
	}
	// Pods are as old as the API server says, so its clock counts.
	in = defense.RollbackInput{Now: r.serverClock.Now(), Workload: w, Enrolled: true}
	if in.Settings, err = r.observeSettings(ctx); err != nil {
		return in, false, err
	}
	// Whoever is wrong is told by the release.
	in.Settings, _ = settings.Override(in.Settings, w.Annotations)
	if in.Changes, err = r.changesOf(ctx, w.Namespace, w.UID); err != nil {
		return in, false, err
	}
	if in.History, err = r.observeHistory(ctx, w.Namespace, w.UID); err != nil {
		return in, false, err
	}
	// Only a rollout under way has pods that matter.
	if !w.Rollout.Complete {
		in.Pods, err = r.kind.Pods(ctx, r.client, w)
	}
	return in, true, err
}

// ObserveLive reads a pod from the API server: a rollback because of it must not
// be decided on a view that is behind.
func (r *Rollbacks) ObserveLive(ctx context.Context, in defense.RollbackInput, pod string) (defense.RollbackInput, error) {
	var live corev1.Pod
	err := r.live.Get(ctx, types.NamespacedName{Namespace: in.Workload.Namespace, Name: pod}, &live)
	if client.IgnoreNotFound(err) != nil {
		return in, fmt.Errorf("get pod %s: %w", pod, err)
	}
	pods := make([]defense.Pod, 0, len(in.Pods))
	for i := range in.Pods {
		switch {
		case in.Pods[i].Name != pod:
			pods = append(pods, in.Pods[i])
		case err == nil && live.UID == in.Pods[i].UID:
			pods = append(pods, defense.ObservePod(&live))
		}
	}
	in.Pods = pods
	return in, nil
}

// Apply carries a plan out. What has changed since it was decided makes it
// fail, with an error that [Settle] knows.
func (r *Rollbacks) Apply(ctx context.Context, w *defense.Workload, plan defense.RollbackPlan) error {
	switch {
	case plan.Rollback != nil:
		err := r.rollBack(ctx, w, plan.Rollback)
		if refused := (*RefusedError)(nil); errors.As(err, &refused) && w.Annotations[v1alpha1.RollbackToAnnotation] != "" {
			return r.refuse(ctx, w, refused.Why)
		}
		return err
	case plan.Refusal != "":
		return r.refuse(ctx, w, plan.Refusal)
	default:
		return nil
	}
}

// Settle turns the outcome of a plan into a result: what is outdated is decided
// again.
func (r *Rollbacks) Settle(ctx context.Context, again time.Duration, err error) (ctrl.Result, error) {
	return settle(ctx, ctrl.Result{RequeueAfter: again}, err)
}

// Quiet keeps what is no error out of the log.
func (r *Rollbacks) Quiet(by reconcile.Reconciler) reconcile.Reconciler { return quiet(by) }

// refuse consumes a request that is not carried out, and says why.
func (r *Rollbacks) refuse(ctx context.Context, w *defense.Workload, why string) error {
	request := w.Annotations[v1alpha1.RollbackToAnnotation]
	p := patchRevision(w)
	p.dropAnnotation(v1alpha1.RollbackToAnnotation)
	if err := r.patchWorkload(ctx, p); err != nil {
		return err
	}
	log.FromContext(ctx).Info("refused to roll a workload back", "to", request, "cause", why)
	r.event(w, nil, defense.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.ReasonRollbackRefused,
		Message: fmt.Sprintf("the rollback to %s that the annotation %s asked for is refused: %s", defense.Brief(request), v1alpha1.RollbackToAnnotation, why)}, "Rollback")
	return nil
}

// rollBack sets the template of a workload back, in one write on the very state
// it was decided on: a user's change comes first, whatever it is of.
func (r *Rollbacks) rollBack(ctx context.Context, w *defense.Workload, rb *defense.Rollback) error {
	template, err := r.templateOf(ctx, w, rb)
	if err != nil {
		return err
	}
	p := patchRevision(w)
	p.setTemplate(template)
	p.resume()
	if applied, err := r.lastApplied(ctx, w, template); err != nil {
		return err
	} else if applied != "" {
		p.setAnnotation(corev1.LastAppliedConfigAnnotation, applied)
	}
	p.setAnnotation(v1alpha1.ChangeCauseAnnotation, rb.ChangeCause())
	p.setQuarantine(defense.ParseQuarantine(w.Annotations).With(rb.From, rb.Why))
	p.dropAnnotation(v1alpha1.RollbackToAnnotation)
	// Admission does the same; this is for when it is down.
	p.setLabel(v1alpha1.VersionLabel, rb.To)
	p.setAnnotation(v1alpha1.ReleaseAnnotation, strconv.FormatInt(w.Release()+1, 10))
	p.setAnnotation(v1alpha1.ReleasedByAnnotation, v1alpha1.FieldManager)
	p.dropLabel(v1alpha1.DefenseStatusLabel)
	if w.Labels[v1alpha1.IgnoredSuspendLabel] == v1alpha1.IgnoredSuspendValue {
		p.setAnnotation(v1alpha1.OverrideStaleAnnotation, "true")
	}
	if err := r.patchWorkload(ctx, p); err != nil {
		return err
	}
	metrics.RolledBack(rb.Why.Cause)
	log.FromContext(ctx).Info("rolled a workload back", "from", rb.From, "to", rb.To, "cause", rb.Why.String())
	return nil
}

// lastApplied is what kubectl apply is to believe it applied last; empty where it
// never did. The cache does not have it.
func (r *Rollbacks) lastApplied(ctx context.Context, w *defense.Workload, template map[string]any) (string, error) {
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(r.kind.GroupVersionKind())
	if err := r.live.Get(ctx, types.NamespacedName{Namespace: w.Namespace, Name: w.Name}, live); err != nil {
		return "", fmt.Errorf("get %s %s/%s: %w", w.Kind, w.Namespace, w.Name, err)
	}
	if live.UID != w.UID || live.ResourceVersion != w.ResourceVersion {
		return "", apierrors.NewConflict(schema.GroupResource{Resource: w.Kind}, w.Name, errors.New("it changed"))
	}
	applied, _ := workload.LastApplied(live.Annotations, template)
	return applied, nil
}

// templateOf reads the template a rollback goes to.
func (r *Rollbacks) templateOf(ctx context.Context, w *defense.Workload, rb *defense.Rollback) (map[string]any, error) {
	var template map[string]any
	var version string
	var err error
	if rb.Old != nil {
		template, version, err = r.kind.RevisionTemplate(ctx, r.live, w.Namespace, rb.Old)
	} else {
		template, version, err = r.rememberedTemplate(ctx, w, rb.History)
	}
	switch {
	case err != nil:
		return nil, err
	case template == nil:
		return nil, apierrors.NewNotFound(appsv1.Resource("controllerrevisions"), rb.To)
	case version != rb.To:
		return nil, &RefusedError{fmt.Sprintf("the template that is remembered of version %s is of version %s", rb.To, version)}
	default:
		return template, nil
	}
}

// Errors of a request for a rollback.
var (
	// ErrNoWorkload means that there is no such workload under defense.
	ErrNoWorkload = errors.New("no such workload is under defense")
	// ErrRepeated means that the request is not newer than one that was taken.
	ErrRepeated = errors.New("a request of this time or a later one was taken already")
)

// RefusedError says why a request for a rollback is refused.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return e.Why }

// Request asks for a rollback on the workload, where the leader finds it. It
// returns the version it goes to. Each request is taken once: at is when it was
// made, and the next one has to be newer.
func (r *Rollbacks) Request(ctx context.Context, key types.NamespacedName, version string, at time.Time) (to string, err error) {
	in, found, err := r.Observe(ctx, key)
	if err != nil {
		return "", err
	}
	if !found || in.Workload.Deleting || defense.OptedOut(in.Workload.Labels) {
		return "", ErrNoWorkload
	}
	w := in.Workload
	if last, err := strconv.ParseInt(w.Annotations[v1alpha1.RollbackRequestedAnnotation], 10, 64); err == nil && at.UnixMilli() <= last {
		return "", ErrRepeated
	}
	to, refusal := defense.RequestRollback(in, version)
	if refusal != "" {
		return "", &RefusedError{refusal}
	}
	p := patchRevision(w)
	p.setAnnotation(v1alpha1.RollbackToAnnotation, to)
	p.setAnnotation(v1alpha1.RollbackRequestedAnnotation, strconv.FormatInt(at.UnixMilli(), 10))
	if err := r.patchWorkload(ctx, p); err != nil {
		if outdated(err) {
			err = &RefusedError{"the workload changes at this moment, try again"}
		}
		return "", err
	}
	log.FromContext(ctx).Info("took a request for a rollback", "namespace", w.Namespace, "name", w.Name, "from", w.Version, "to", to)
	return to, nil
}

// OwnerOf maps a revision's pod to its workload.
func (r *Rollbacks) OwnerOf(ctx context.Context, pod client.Object) []reconcile.Request {
	owner, ok := r.ownerOfPod(ctx, pod)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: owner.Key}}
}

// InNamespace maps a namespace to its workloads.
func (r *Rollbacks) InNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	return r.workloadsOfNamespace(ctx, ns)
}

// Releasing maps a setting to the workloads with releases that are not verified.
func (r *Rollbacks) Releasing(ctx context.Context, _ client.Object) []reconcile.Request {
	var list v1alpha1.ChangeWorkloadList
	if err := r.client.List(ctx, &list, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency); err != nil {
		log.FromContext(ctx).Error(err, "list changeworkloads")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		c := &list.Items[i]
		if ref := metav1.GetControllerOf(c); ref != nil && c.Status.Status != v1alpha1.ChangeWorkloadSuccess {
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: c.Namespace, Name: ref.Name}})
		}
	}
	return requests
}

// rememberedTemplate reads the template of a version out of the history; nil
// when it is gone.
func (b *base) rememberedTemplate(ctx context.Context, w *defense.Workload, revision *defense.Revision) (template map[string]any, version string, err error) {
	var stored appsv1.ControllerRevision
	if err := b.live.Get(ctx, types.NamespacedName{Namespace: w.Namespace, Name: revision.Name}, &stored); err != nil {
		return nil, "", client.IgnoreNotFound(err)
	}
	if ref := metav1.GetControllerOf(&stored); stored.UID != revision.UID || ref == nil || ref.UID != w.UID {
		return nil, "", nil
	}
	return workload.TemplateOf(&stored)
}
