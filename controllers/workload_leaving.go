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

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// handBack gives up fields of the operator: the template of a rollback, which goes to the field
// manager that applies the workload, and the fields of a halt. The managed fields are read from the
// API server, because the cache does not have them. A second call changes nothing.
func (r *WorkloadReconciler) handBack(ctx context.Context, w *workload.Workload) error {
	kind, err := r.KindOf(w)
	if err != nil {
		return err
	}
	stored, err := r.Stored(ctx, w)
	if err != nil || stored == nil {
		return err
	}
	fields, due, err := workload.LeftOver(kind, stored)
	if err != nil || !due {
		return err
	}
	p := cluster.PatchFields(w, stored.GetManagedFields(), fields)
	if err := r.PatchWorkload(ctx, p, cluster.ActHandBack); err != nil {
		return err
	}
	log.FromContext(ctx).Info("gave up fields that a rollback or a halt had made the operator's")
	return nil
}

// takeBack removes the operator's own block and pause, and gives back what a hold changed.
func (r *WorkloadReconciler) takeBack(ctx context.Context, in defense.WorkloadInput) error {
	w := in.Workload
	kind, err := r.KindOf(w)
	if err != nil {
		return err
	}
	if w, err = r.whole(ctx, w); err != nil {
		return err
	}
	p := cluster.PatchRelease(w)
	if w.Annotations[v1alpha1.SuspendedByAnnotation] != "" {
		// The block of a user stays.
		p.DropLabel(v1alpha1.SuspendLabel)
		p.DropAnnotation(v1alpha1.SuspendedByAnnotation)
	}
	p.DropAnnotation(v1alpha1.OverrideStaleAnnotation)
	p.Resume(kind)
	if in.Enrolled && !workload.OptedOut(w.Labels) {
		p.GiveBack(kind) // it is in observe mode
	} else {
		p.GiveBackUnseen(kind)
	}
	var left *defense.OptOut
	if _, leaves := kind.(leavingKind); !leaves { // the ChangeKind is being deleted: no user opted this workload out
		if left, err = r.leftUnseen(ctx, w); err != nil {
			return err
		}
	}
	if err := r.PatchWorkload(ctx, p, cluster.ActRecord); err != nil {
		return err
	}
	if left != nil {
		r.left(w, *left)
	}
	// No other event: in a namespace that left the defense this was the last write. The release
	// reports an opt-out that admission saw, and observe mode.
	log.FromContext(ctx).Info("took back the block, the halt and the hold of a workload that left the defense or is in observe mode")
	return nil
}

// dropBlock removes the operator's own block and halt from a workload of a declared kind that becomes a baseline. It returns
// the reason of the event; empty if there is neither.
func dropBlock(p *cluster.Patch, w *workload.Workload, kind workload.Kind) (reason string) {
	if w.Content == nil {
		return ""
	}
	if w.Annotations[v1alpha1.HaltedAnnotation] != "" && w.Stays == "" {
		p.Resume(kind)
		reason = v1alpha1.EventRolloutResumed
	}
	if w.Annotations[v1alpha1.SuspendedByAnnotation] != "" {
		p.DropLabel(v1alpha1.SuspendLabel)
		p.DropAnnotation(v1alpha1.SuspendedByAnnotation)
		p.DropAnnotation(v1alpha1.OverrideStaleAnnotation)
		reason = v1alpha1.EventBlockLifted
	}
	return reason
}

// letGo takes back the halt or the hold of a workload that another object owns. A block stays. The
// write fails if the cache is outdated, because the workload may have no owner now.
func (r *WorkloadReconciler) letGo(ctx context.Context, w *workload.Workload) error {
	kind, err := r.KindOf(w)
	if err != nil {
		return err
	}
	if w, err = r.whole(ctx, w); err != nil {
		return err
	}
	p := cluster.PatchRevision(w)
	p.Resume(kind)
	p.GiveBack(kind)
	if err := r.PatchWorkload(ctx, p, cluster.ActRecord); err != nil {
		return err
	}
	// The release reports an owner that admission saw, and any owner of a blocked workload.
	o, ok := defense.ParseOptOut(w.Annotations[v1alpha1.OptedOutAnnotation])
	if while := r.defenseOf(w); while != v1alpha1.WhileBlocked && (!ok || o.Release != w.Release()) {
		r.left(w, defense.OptOut{
			While: while, Owner: strings.ReplaceAll(w.ObservingOwner(), " ", "/"), User: "a user whom admission did not see",
		})
	}
	log.FromContext(ctx).Info("took back the halt or the hold of a workload that is in observe mode because of its owner",
		"owner", w.ObservingOwner())
	return nil
}

// whole reads a workload again if the cache may lack the fields by which it is halted.
func (r *WorkloadReconciler) whole(ctx context.Context, w *workload.Workload) (*workload.Workload, error) {
	if !w.Unknown {
		return w, nil
	}
	return r.Whole(ctx, w)
}

// left reports a workload that left the defense past admission, while the defense had an effect.
func (r *WorkloadReconciler) left(w *workload.Workload, o defense.OptOut) {
	r.Event(w, nil, record.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventOptedOut, Message: o.Describe()}, "OptOut")
	metrics.LeftWhileBlocked(workload.LabelOf(w.GVK.GroupKind()), metrics.LeftByOptingOut)
}

func (r *WorkloadReconciler) defenseOf(w *workload.Workload) v1alpha1.OptOutWhile {
	return defense.DefenseOf(w.Labels, w.Annotations, r.Clock.Now())
}

// dropped emits the event of a request that was on a workload when its defense began.
func (r *WorkloadReconciler) dropped(w *workload.Workload, annotation, asked, reason string) {
	r.Event(w, nil, record.Event{Type: corev1.EventTypeWarning, Reason: reason,
		Message: fmt.Sprintf("dropped the request %s=%s: %s", annotation, wording.Brief(asked), rollback.LaidBefore)}, "Drop")
}

// leftUnseen returns the opt-out of a workload past admission, with the field manager that wrote it;
// nil if there is no opt-out, or if admission saw it: then the release reports it.
func (r *WorkloadReconciler) leftUnseen(ctx context.Context, w *workload.Workload) (*defense.OptOut, error) {
	o, ok := defense.ParseOptOut(w.Annotations[v1alpha1.OptedOutAnnotation])
	if !workload.OptedOut(w.Labels) || ok && o.Release == w.Release() {
		return nil, nil
	}
	stored, err := r.Stored(ctx, w)
	if err != nil || stored == nil {
		return nil, err
	}
	who := "an unknown field manager"
	if manager := workload.LabelOwner(stored.GetManagedFields(), v1alpha1.DefenseLabel); manager != "" {
		who = "field manager " + manager
	}
	return &defense.OptOut{While: r.defenseOf(w), User: who}, nil
}
