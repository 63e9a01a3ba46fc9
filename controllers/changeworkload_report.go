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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// report logs a written change of state, and emits its events.
func (r *ChangeWorkloadReconciler) report(
	ctx context.Context, before, after *v1alpha1.ChangeWorkload, w *workload.Workload, events []record.Event,
) {
	if before.Status.Attempt != after.Status.Attempt {
		log.FromContext(ctx).Info("release started", "attempt", after.Status.Attempt, "order", after.Status.OrderID)
	}
	reportState(ctx, r.Kinds, before, after)
	if w == nil {
		return
	}
	for _, e := range events {
		count(workload.LabelOf(w.GVK.GroupKind()), e)
		r.Event(w, after, e, "Verify")
	}
}

// reportHold counts a hold that began or ended, after the condition Held was written. Each hold
// is counted once, also if its start and its end were written together.
func reportHold(kind string, before, after *v1alpha1.ChangeWorkloadStatus) {
	was := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionHeld)
	now := meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionHeld)
	held := was != nil && was.Status == metav1.ConditionTrue
	if before.Attempt != after.Attempt {
		if held {
			metrics.HoldEnded(kind, v1alpha1.ReasonReleaseEnded)
		}
		was, held = nil, false
	}
	holds := now != nil && now.Status == metav1.ConditionTrue
	ended := now != nil && !holds && now.Reason != v1alpha1.ReasonNotHeld
	if !held && (holds || ended && (was == nil || was.Reason == v1alpha1.ReasonNotHeld)) {
		metrics.HoldStarted(kind)
		held = true
	}
	switch {
	case held && ended:
		metrics.HoldEnded(kind, now.Reason)
	case held && !holds:
		metrics.HoldEnded(kind, v1alpha1.ReasonReleaseEnded)
	}
}

// count counts an event of a workload of this kind, if it has a metric.
func count(kind string, e record.Event) {
	switch e.Reason {
	case v1alpha1.EventDefenseChanged:
		for _, setting := range e.Settings {
			metrics.DefenseLowered(setting, metrics.LevelWorkload)
		}
	case v1alpha1.EventRollbackRefused:
		if e.Act == v1alpha1.ReasonRollbackLimit {
			metrics.RollbackLimited(kind)
		}
	case v1alpha1.EventWaitingForServer:
		metrics.WaitsForServer()
	case v1alpha1.EventOptedOut:
		metrics.LeftWhileBlocked(kind, metrics.LeftByOptingOut)
	case v1alpha1.EventVerdictCorrected:
		metrics.VerdictsCorrected(kind)
	case v1alpha1.EventReleaseUndone:
		metrics.Undone(kind)
	case v1alpha1.EventDryRun:
		metrics.DryRun(kind, e.Act)
	}
}

// kindOf returns the kind of the workload of a record.
func kindOf(change *v1alpha1.ChangeWorkload) schema.GroupKind {
	if owner := metav1.GetControllerOf(change); owner != nil {
		return workload.KeyOf("", owner).GroupKind
	}
	// A user removed the owner reference; old records are of Deployments.
	return workload.Deployment{}.GroupVersionKind().GroupKind()
}

func stateName(s v1alpha1.ChangeWorkloadStatusType) string {
	if s == v1alpha1.ChangeWorkloadInit {
		return "Init"
	}
	return string(s)
}

// remember adds the content of a release to the history. The release reports content that is too large, which is not tried again.
func (r *ChangeWorkloadReconciler) remember(ctx context.Context, change *v1alpha1.ChangeWorkload, w *workload.Workload) error {
	err := r.Remember(ctx, change, w)
	tooLarge := (*workload.TooLargeError)(nil)
	if !errors.As(err, &tooLarge) {
		return err
	}
	updated := change.DeepCopy()
	if w.Version != change.Spec.Reversion || // then the content of another release is too large
		!defense.NoteDenied(&updated.Status, change.Generation, r.Clock.Now(), defense.WriteRemember, tooLarge.Error()) {
		return nil
	}
	if err := r.UpdateStatus(ctx, updated); err != nil {
		return err
	}
	r.Event(w, change, record.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventWriteDenied, Message: tooLarge.Error()}, "Remember")
	return nil
}
