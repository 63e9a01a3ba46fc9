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

// handBack gives the fields of the template that a rollback made the operator's
// back to the field manager that applies the workload, and gives up those that it was
// halted by. The fields are read from
// the API server, because the cache does not have them. Nothing is done twice:
// after this the fields are not the operator's.
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
	p := cluster.PatchRelease(w)
	if w.Annotations[v1alpha1.SuspendedByAnnotation] != "" {
		// A block that somebody else set stays.
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
	left, err := r.leftUnseen(ctx, w)
	if err != nil {
		return err
	}
	if err := r.PatchWorkload(ctx, p, cluster.ActRecord); err != nil {
		return err
	}
	if left != nil {
		r.left(w, *left)
	}
	// No other event: in a namespace that left the defense this was the last write,
	// the release tells of one that admission saw, and of what is in observe mode.
	log.FromContext(ctx).Info("lifted the block of a workload that left the defense, or is in observe mode")
	return nil
}

// letGo takes back what the operator halts or holds a workload by that another object
// owns, and leaves a block. From a view of before it was defended all the same, nothing is
// taken back.
func (r *WorkloadReconciler) letGo(ctx context.Context, w *workload.Workload) error {
	kind, err := r.KindOf(w)
	if err != nil {
		return err
	}
	p := cluster.PatchRevision(w)
	p.Resume(kind)
	p.GiveBack(kind)
	if err := r.PatchWorkload(ctx, p, cluster.ActRecord); err != nil {
		return err
	}
	// Of an owner that admission saw, and of a blocked workload, the release tells.
	o, ok := defense.ParseOptOut(w.Annotations[v1alpha1.OptedOutAnnotation])
	if while := r.defenseOf(w); while != v1alpha1.WhileBlocked && (!ok || o.Release != w.Release()) {
		o = defense.OptOut{While: while, Owner: strings.ReplaceAll(w.ObservingOwner(), " ", "/"), User: "somebody whom admission did not see"}
		r.left(w, o)
	}
	log.FromContext(ctx).Info("took the halt or the hold of a workload back, which is in observe mode because of its owner", "owner", w.ObservingOwner())
	return nil
}

// left emits the event of a workload that left the defense while it had an effect, past admission.
func (r *WorkloadReconciler) left(w *workload.Workload, o defense.OptOut) {
	r.Event(w, nil, record.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventOptedOut, Message: o.Describe()}, "OptOut")
	metrics.LeftWhileBlocked(w.GVK.Kind, metrics.LeftByOptingOut)
}

func (r *WorkloadReconciler) defenseOf(w *workload.Workload) v1alpha1.OptOutWhile {
	return defense.DefenseOf(w.Labels, w.Annotations, r.Clock.Now())
}

// dropped emits the event of a request that lay on a workload when its defense began.
func (r *WorkloadReconciler) dropped(w *workload.Workload, annotation, asked, reason string) {
	r.Event(w, nil, record.Event{Type: corev1.EventTypeWarning, Reason: reason,
		Message: fmt.Sprintf("dropped the request %s=%s: %s", annotation, wording.Brief(asked), rollback.LaidBefore)}, "Drop")
}

// leftUnseen returns how a workload was opted out past admission while the defense had an
// effect, by the field manager that did; nil where admission saw it, whose user the
// release tells.
func (r *WorkloadReconciler) leftUnseen(ctx context.Context, w *workload.Workload) (*defense.OptOut, error) {
	if o, ok := defense.ParseOptOut(w.Annotations[v1alpha1.OptedOutAnnotation]); !workload.OptedOut(w.Labels) || ok && o.Release == w.Release() {
		return nil, nil
	}
	stored, err := r.Stored(ctx, w)
	if err != nil || stored == nil {
		return nil, err
	}
	who := "a field manager that is not known"
	if manager := workload.LabelOwner(stored.GetManagedFields(), v1alpha1.DefenseLabel); manager != "" {
		who = "field manager " + manager
	}
	return &defense.OptOut{While: r.defenseOf(w), User: who}, nil
}
