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
)

// The block of a workload because of a release, and the halt of its rollout.

// fail suspends the release. Each new failure blocks the workload, unless it is
// blocked or blocking is off: a block is an act, so turning blocking on later,
// or lifting the block by hand, is not undone.
func (d *release) fail(before v1alpha1.ChangeWorkloadStatusType) {
	d.leaveHistory()
	d.cancelWaiting()
	if d.status.OrderStage == v1alpha1.OrderPostWait {
		// Its node would be told to have ended well.
		d.status.OrderPostDueTimeUnix = 0
	}
	isNew := before != v1alpha1.ChangeWorkloadSuspend || d.failedAnew() || failedReleaseCheck(d.status) != nil && !d.Change.Status.CheckFailed
	if isNew && len(d.Change.Status.Corrections) > 0 {
		// The batch may be seen as it was before it was corrected.
		d.plan.NeedsBatches = d.plan.NeedsBatches || !d.LiveBatches
	}
	if before == v1alpha1.ChangeWorkloadSuspend {
		d.correct() // of some of its pods
	}
	if before != v1alpha1.ChangeWorkloadSuspend {
		_, message := d.failure()
		if len(d.failed) > 0 {
			message = fmt.Sprintf("%d of %d verified pods failed; %s", len(d.failed), len(d.failed)+d.passCount(), message)
		}
		if at := succeededAt(d.status); !at.IsZero() {
			d.status.SuccessTimeUnix = at.Unix() // of an older build, which has it elsewhere until now
		}
		d.enter(v1alpha1.ChangeWorkloadSuspend, corev1.EventTypeWarning, v1alpha1.EventReleaseSuspended, message)
	}
	if d.Settings.Observe {
		d.observeFailure(isNew)
		return
	}
	if (isNew || d.blockDenied()) && d.Settings.Blocking {
		d.plan.NeedsLive = !d.Live
		if !d.Workload.blocked() {
			d.plan.Action = BlockWorkload
			d.halt()
		}
	}
	if (before != v1alpha1.ChangeWorkloadSuspend || d.paceDenied()) && hasOwnBlock(d.Workload) && d.halts() &&
		!ParseQuarantine(d.Workload.Annotations, d.Now).Restored(d.Workload.Version, d.Workload.Release()) {
		// An override failed, while the workload is blocked because of an earlier release. A version that
		// is being restored goes on: the pods that it replaces are of a version known to be bad.
		d.plan.NeedsLive = !d.Live
		d.plan.Action = PaceWorkload
		d.halt()
	}
	if isNew && d.Settings.SelfHealing {
		d.explainSelfHealing()
	}
	if isNew && !d.Settings.Blocking {
		d.condition(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonBlockingDisabled, "")
	}
}

// failure is the reason for which the release failed its verification, and the first failure in words; both are empty
// where it did not.
func (d *release) failure() (reason, message string) {
	if len(d.failed) > 0 {
		return v1alpha1.ReasonPodFailed, Describe(&d.failed[0])
	}
	if message = d.describeOrder(); message != "" {
		return v1alpha1.ReasonOrderCheckFailed, message
	}
	if c := failedReleaseCheck(d.status); c != nil {
		return v1alpha1.ReasonCheckFailed, "the check " + Cut(describeCheck(c))
	}
	return "", ""
}

func (d *release) hasFailed() bool { reason, _ := d.failure(); return reason != "" }

// failedAnew says that a pod failed that had not when the status was written. Where
// the status does not list all that had, their number has to do.
func (d *release) failedAnew() bool {
	if int(d.status.FailCount) > len(d.status.DefenseCheckFailPods) {
		return d.failCount() > d.status.FailCount
	}
	return slices.ContainsFunc(d.failed, func(r v1alpha1.PodResult) bool {
		return !slices.ContainsFunc(d.status.DefenseCheckFailPods, func(known v1alpha1.PodResult) bool {
			return known.UID == r.UID && known.Pod == r.Pod
		})
	})
}

// halt pauses a rollout that is under way, of a workload that is blocked; one that is held also
// where the setting halting is off. A pause of the user's is left alone, and so is a workload
// whose pods only its user replaces. A user who resumes the rollout has decided: no later
// failure of the release halts it again.
func (d *release) halt() {
	if !d.halts() {
		return
	}
	d.plan.Halt = true
	d.actionEvent(corev1.EventTypeWarning, v1alpha1.EventRolloutHalted, "the rollout is "+d.Workload.Words.Halted()+d.Workload.Words.Means())
}

func (d *release) halts() bool {
	w := d.Workload
	return (d.Settings.Halting || d.holding()) && !w.Paused && !w.OnDelete && !w.Unknown && !w.Rollout.Complete &&
		!d.staysAt(v1alpha1.ReasonRolloutComplete, 0)
}

// resume takes the operator's pause back that lifting the block did not: of an
// older version, when this one passed the block or there is none any more, and
// of this one, when nothing of it is failed any more, whatever other block is there. A
// record that knows no failure, because it was made later, resumes nothing that is blocked.
// Admission resumes in the request of the release, unless it was down.
func (d *release) resume() {
	w := d.Workload
	halted := w.Annotations[v1alpha1.HaltedAnnotation]
	if d.plan.Action != LeaveWorkload || !w.Paused || halted == "" {
		return
	}
	o, ok := ParseOverride(w.Annotations[v1alpha1.OverrideAnnotation])
	overrides := ok && o.Version == d.Change.Spec.Reversion
	corrected := !d.ownBlock() && meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionBlocked) != nil
	if halted == d.Change.Spec.Reversion && (d.hasFailed() || w.blocked() && !corrected) ||
		halted != d.Change.Spec.Reversion && w.blocked() && !overrides {
		return
	}
	d.plan.NeedsLive = !d.Live
	d.plan.Action, d.plan.Resume = ResumeWorkload, true
	d.actionEvent(corev1.EventTypeNormal, v1alpha1.EventRolloutResumed, "the "+w.Words.Halt()+" because of version "+halted)
}

// blockedAtStart says that the workload has the block that it had when the attempt
// began.
func (d *release) blockedAtStart() bool {
	value, blocked := d.Workload.Labels[v1alpha1.SuspendLabel]
	return blocked && d.status.BlockAtStart != nil && *d.status.BlockAtStart == value
}

// ownBlock says that the workload is blocked because of this release.
func (d *release) ownBlock() bool {
	version, release, _ := ParseBlockedBy(d.Workload.Annotations)
	return d.Workload.blocked() && version == d.Workload.RecordedVersion() && release == strconv.FormatInt(d.Workload.Release(), 10)
}

// remembersBlock says that the block is because of this very record. One made
// later, because the first was deleted, knows nothing of the failure, so its
// success must not lift the block.
func (d *release) remembersBlock() bool {
	if _, _, record := ParseBlockedBy(d.Workload.Annotations); record != "" {
		return record == string(d.Change.UID)
	}
	since, err := strconv.ParseInt(d.Workload.Labels[v1alpha1.SuspendLabel], 10, 64)
	return err != nil || d.Change.CreationTimestamp.Unix() <= since
}

func (d *release) lift(lift bool, why string) {
	// While a workload is in observe mode, a block that somebody else set is not
	// the operator's business.
	if !lift || d.Settings.Observe && !hasOwnBlock(d.Workload) {
		return
	}
	d.needAll()
	d.plan.Action = LiftBlock
	if d.Workload.haltedBy(d.Change.Spec.Reversion) {
		d.plan.Resume = true
		why += "; the rollout is resumed"
	}
	d.actionEvent(corev1.EventTypeNormal, v1alpha1.EventBlockLifted, why)
}

// liftRestored lifts the operator's block, which is because of an earlier release, once the
// rollout of a version that was restored is complete and a pod of it has finished: no
// release waits for its verdicts, since it has succeeded before. The turn in which its attempt
// begins is about its hold.
func (d *release) liftRestored() {
	w := d.Workload
	if d.plan.Action != LeaveWorkload || d.Change.Status.ObservedRelease != d.Change.Spec.Release || !hasOwnBlock(w) || d.ownBlock() ||
		d.hasFailed() || !w.Rollout.Complete || !ParseQuarantine(w.Annotations, d.Now).Restored(w.Version, w.Release()) {
		return
	}
	wait := time.Duration(0)
	for i := range d.Pods {
		finished, left := d.Pods[i].Finished(FinishOf(w, d.Settings), d.Now)
		if finished {
			d.lift(true, "the version that was restored runs again")
			return
		}
		wait = shortest(wait, left)
	}
	d.plan.RequeueAfter = shortest(d.plan.RequeueAfter, wait)
}

// explainBlock says whether this release blocks its workload. There is nothing
// to say of one that never failed.
func (d *release) explainBlock() {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionBlocked)
	reason, _ := d.failure()
	failed := reason != ""
	switch {
	case d.plan.Action == BlockWorkload, d.plan.Action != LiftBlock && d.ownBlock():
		d.condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, cmp.Or(reason, v1alpha1.ReasonPodFailed),
			"an override release has the label %s: %q", v1alpha1.IgnoredSuspendLabel, v1alpha1.IgnoredSuspendValue)
	case failed && d.Workload.blocked():
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

// explainSelfHealing says that a release that failed is to be rolled back, or why
// it is not.
func (d *release) explainSelfHealing() {
	target, refusal := selfHealingTarget(d.Workload, d.History, d.Others, d.Now)
	if refusal != "" {
		d.refuseRollback(refusal)
		return
	}
	if d.Settings.Observe {
		d.wouldRollBack(target.Version, "it failed its verification")
		return
	}
	d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionUnknown, v1alpha1.ReasonVerificationFailed,
		"to version %s", target.Version)
}

// refuseRollback reports it once, even if the details change.
func (d *release) refuseRollback(why string) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionRolledBack)
	if said != nil && said.Reason == v1alpha1.ReasonRollbackRefused {
		return
	}
	d.refuseAs(v1alpha1.ReasonRollbackRefused, why)
}

// observeFailure reports what would have been done about a release that failed,
// once for each new failure.
func (d *release) observeFailure(isNew bool) {
	if !isNew {
		return
	}
	if d.Settings.Blocking && !d.Workload.blocked() {
		d.would(v1alpha1.DryRunSuspend, "releases of the workload would have been blocked")
		if d.halts() {
			d.would(v1alpha1.DryRunHalt, "the rollout would have been "+d.Workload.Words.Halted()+d.Workload.Words.Means())
		}
	}
	if d.Settings.SelfHealing {
		d.explainSelfHealing()
	}
}
