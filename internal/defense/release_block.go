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

package defense

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// The block of a workload by a release, and the halt of its rollout.

// failRelease suspends the release. Each new failure blocks the workload, unless it is already blocked or blocking is
// off. A block is an act: turning blocking on later, or lifting the block by hand, is not undone.
func failRelease(d *release, before v1alpha1.ChangeWorkloadStatusType) {
	leaveHistory(d)
	record.CancelWaiting(d.status, d.Now)
	if d.status.OrderStage == v1alpha1.OrderPostWait {
		// The order entry would end as successful.
		d.status.OrderPostDueTimeUnix = 0
	}
	isNew := before != v1alpha1.ChangeWorkloadSuspend || hasNewFailure(d) ||
		record.FailedReleaseCheck(d.status) != nil && !d.Change.Status.CheckFailed
	if isNew && len(d.Change.Status.Corrections) > 0 {
		// The cache may show the batch without its correction.
		d.plan.NeedsBatches = d.plan.NeedsBatches || !d.LiveBatches
	}
	if before == v1alpha1.ChangeWorkloadSuspend {
		noteCorrections(d) // of some of its pods
	}
	if before != v1alpha1.ChangeWorkloadSuspend {
		_, message := d.failure()
		if len(d.failed) > 0 {
			message = fmt.Sprintf("%d of %d verified pods failed; %s", len(d.failed), len(d.failed)+d.passCount(), message)
		}
		if at := record.SucceededAt(d.status); !at.IsZero() {
			d.status.SuccessTimeUnix = at.Unix() // an older build recorded it elsewhere
		}
		d.enter(v1alpha1.ChangeWorkloadSuspend, corev1.EventTypeWarning, v1alpha1.EventReleaseSuspended, message)
	}
	if d.Settings.Observe {
		observeFailure(d, isNew)
		return
	}
	if (isNew || blockDenied(d)) && d.Settings.Blocking {
		d.plan.NeedsLive = !d.Live
		if !d.Workload.Blocked() {
			d.plan.Action = BlockWorkload
			haltRollout(d)
		}
	}
	if (before != v1alpha1.ChangeWorkloadSuspend || paceDenied(d.status)) && d.Workload.Marks().Blocked && halts(d) &&
		!rollback.ParseQuarantine(d.Workload.Annotations, d.Now).Restored(d.Workload.Version, d.Workload.Release()) {
		// An override release failed while an earlier release blocks the workload. A version that is being restored
		// continues, because it replaces pods of a bad version.
		d.plan.NeedsLive = !d.Live
		d.plan.Action = PaceWorkload
		haltRollout(d)
	}
	if isNew && d.Settings.SelfHealing {
		explainSelfHealing(d)
	}
	if isNew && !d.Settings.Blocking {
		d.condition(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonBlockingDisabled, "")
	}
}

// hasNewFailure reports whether a pod failed after the last status write. If the status does not list all failed pods,
// their count decides.
func hasNewFailure(d *release) bool {
	if int(d.status.FailCount) > len(d.status.DefenseCheckFailPods) {
		return d.failCount() > d.status.FailCount
	}
	return slices.ContainsFunc(d.failed, func(r v1alpha1.PodResult) bool {
		return !slices.ContainsFunc(d.status.DefenseCheckFailPods, func(known v1alpha1.PodResult) bool {
			return known.UID == r.UID && known.Pod == r.Pod
		})
	})
}

// haltRollout pauses the unfinished rollout of a blocked workload; a held rollout is paused even if the setting halting
// is off. A user's pause is left alone, and so is a workload whose pods only its user replaces. After a user resumes
// the rollout, no later failure of the release halts it again.
func haltRollout(d *release) {
	if !halts(d) {
		return
	}
	d.plan.Halt = true
	d.actionEvent(corev1.EventTypeWarning, v1alpha1.EventRolloutHalted, "the rollout is "+d.Workload.Words.Halted()+d.Workload.Words.Means())
}

func halts(d *release) bool {
	w := d.Workload
	return (d.Settings.Halting || d.holding()) && !w.Paused && !w.OnDelete && !w.Unknown && !w.Rollout.Complete &&
		!d.staysAt(v1alpha1.ReasonRolloutComplete, 0)
}

// resumeRollout undoes the operator's own pause where lifting the block did not: a pause of an older version, if this
// version passed the block or the workload is not blocked; and a pause of this version, if nothing of it fails,
// whatever else blocks. A record without a failure, because it was created later, resumes no blocked workload. Usually
// admission resumes, in the request of the release.
func resumeRollout(d *release) {
	w := d.Workload
	halted := w.Annotations[v1alpha1.HaltedAnnotation]
	if d.plan.Action != LeaveWorkload || !w.Paused || halted == "" || w.Stays != "" {
		return
	}
	o, ok := record.ParseOverride(w.Annotations[v1alpha1.OverrideAnnotation])
	overrides := ok && o.Version == d.Change.Spec.Reversion
	corrected := !ownBlock(d.Workload) && meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionBlocked) != nil
	if halted == d.Change.Spec.Reversion && (d.hasFailed() || w.Blocked() && !corrected) ||
		halted != d.Change.Spec.Reversion && w.Blocked() && !overrides {
		return
	}
	d.plan.NeedsLive = !d.Live
	d.plan.Action, d.plan.Resume = ResumeWorkload, true
	d.actionEvent(corev1.EventTypeNormal, v1alpha1.EventRolloutResumed, "the "+w.Words.Halt()+" because of version "+halted)
}

// blockedAtStart reports whether the workload still has the block that the attempt began with.
func blockedAtStart(w *workload.Workload, s *v1alpha1.ChangeWorkloadStatus) bool {
	value, blocked := w.Labels[v1alpha1.SuspendLabel]
	return blocked && s.BlockAtStart != nil && *s.BlockAtStart == value
}

// ownBlock reports whether this release blocks the workload.
func ownBlock(w *workload.Workload) bool {
	version, release, _ := record.ParseBlockedBy(w.Annotations)
	return w.Blocked() && version == w.RecordedVersion() && release == strconv.FormatInt(w.Release(), 10)
}

// remembersBlock reports whether this record caused the block. A record that was created after the first one was
// deleted knows nothing of the failure, so its success must not lift the block.
func remembersBlock(w *workload.Workload, change *v1alpha1.ChangeWorkload) bool {
	if _, _, record := record.ParseBlockedBy(w.Annotations); record != "" {
		return record == string(change.UID)
	}
	since, err := strconv.ParseInt(w.Labels[v1alpha1.SuspendLabel], 10, 64)
	return err != nil || change.CreationTimestamp.Unix() <= since
}

func liftBlock(d *release, lift bool, why string) {
	// In observe mode, the operator leaves a block of others alone.
	if !lift || d.Settings.Observe && !d.Workload.Marks().Blocked {
		return
	}
	d.needAll()
	d.plan.Action = LiftBlock
	if d.Workload.HaltedBy(d.Change.Spec.Reversion) && d.Workload.Stays == "" {
		d.plan.Resume = true
		why += "; the rollout is resumed"
	}
	d.actionEvent(corev1.EventTypeNormal, v1alpha1.EventBlockLifted, why)
}

// liftRestored lifts the operator's block by an earlier release once the rollout of a restored version is complete and
// one of its pods has finished: the version succeeded before, so no verdict is awaited. The turn in which its attempt
// begins decides its hold.
func liftRestored(d *release) {
	w := d.Workload
	if d.plan.Action != LeaveWorkload || d.Change.Status.ObservedRelease != d.Change.Spec.Release || !w.Marks().Blocked || ownBlock(w) ||
		d.hasFailed() || !w.Rollout.Complete || !rollback.ParseQuarantine(w.Annotations, d.Now).Restored(w.Version, w.Release()) {
		return
	}
	if w.WithoutPods && settled(d) {
		liftBlock(d, true, "the version that was restored is rolled out again")
		return
	}
	wait := time.Duration(0)
	for i := range d.Pods {
		finished, left := d.Pods[i].Finished(workload.FinishOf(w, d.Settings), d.Now)
		if finished {
			liftBlock(d, true, "the version that was restored runs again")
			return
		}
		wait = times.Shortest(wait, left)
	}
	d.plan.RequeueAfter = times.Shortest(d.plan.RequeueAfter, wait)
}

// explainBlock sets whether this release blocks its workload. A release that never failed gets no condition.
func explainBlock(d *release) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionBlocked)
	reason, _ := d.failure()
	failed := reason != ""
	switch {
	case d.plan.Action == BlockWorkload, d.plan.Action != LiftBlock && ownBlock(d.Workload):
		d.condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, cmp.Or(reason, v1alpha1.ReasonPodFailed),
			"an override release has the label %s: %q", v1alpha1.IgnoredSuspendLabel, v1alpha1.IgnoredSuspendValue)
	case failed && d.Workload.Blocked():
		d.condition(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonBlockedAlready, "")
	case failed && d.Settings.Observe:
		d.condition(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonObserving, "%s", d.ObservedBy)
	case said == nil || failed && (said.Reason == v1alpha1.ReasonBlockingDisabled || said.Reason == v1alpha1.ReasonObserving):
	case failed:
		d.condition(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonLifted, "")
	case said.Status == metav1.ConditionTrue || said.Reason != v1alpha1.ReasonRecovered:
		d.condition(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonRecovered, "")
	}
}

// observeFailure reports what enforce mode would have done about a failed release, once for each new failure.
func observeFailure(d *release, isNew bool) {
	if !isNew {
		return
	}
	if d.Settings.Blocking && !d.Workload.Blocked() {
		dryRun(d, v1alpha1.DryRunSuspend, "releases of the workload would have been blocked")
		if halts(d) {
			dryRun(d, v1alpha1.DryRunHalt, "the rollout would have been "+d.Workload.Words.Halted()+d.Workload.Words.Means())
		}
	}
	if d.Settings.SelfHealing {
		explainSelfHealing(d)
	}
}
