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
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// What the status of a release says of it.

// explain fills the lists, counts and conditions.
func (d *release) explain() {
	s := d.status
	s.UnclaimedVerdicts = d.unclaimed()
	s.DefensePreparingPods = nil
	for i := range d.preparing[:min(len(d.preparing), maxPreparing)] {
		s.DefensePreparingPods = append(s.DefensePreparingPods, v1alpha1.PodResult{PodInfo: d.preparing[i].Info(d.Change.Spec.AppName)})
	}
	s.PreparingCount = int32(len(d.preparing)) //nolint:gosec // a workload has far fewer pods
	s.DefenseCheckingPods, s.CheckingCount = bounded(d.checking)
	s.DefenseCheckPassPods, s.PassCount = bounded(d.passed)
	s.PassCount += d.foldedCount()
	s.UnverifiedCount = d.unverifiedCount()
	s.DefenseCheckFailPods, _ = bounded(d.failed)
	s.FailCount = d.failCount()
	s.OrderFailed, s.CheckFailed = d.failedOrderCheck() != nil, d.failedCheck() != nil

	d.explainBlock()
	d.explainProgress()
	d.explainVerification()
}

// explainProgress says how far the rollout has come. Of a release that succeeded it
// is over: what becomes of its pods later is told by PodsUnavailable. What is halted stays
// so, whatever its pods do.
func (d *release) explainProgress() {
	w, wasComplete := d.Workload, d.staysAt(v1alpha1.ReasonRolloutComplete, 0)
	switch {
	case d.status.Status == v1alpha1.ChangeWorkloadSuccess:
		d.explainComplete()
	case d.plan.Halt || w.haltedBy(d.Change.Spec.Reversion) && !d.plan.Resume:
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutHalted,
			"the operator %s the %s%s because this version failed: release a repair, correct the verdict, or resume it%s",
			w.Words.Halted(), w.Kind(), w.Words.Means(), w.by(w.Words.Resume))
	case w.Rollout.Complete || d.wasComplete():
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRolloutComplete, "every pod runs this version and is available")
	case (w.Paused || w.OnDelete) && wasComplete:
		d.explainComplete()
	case w.OnDelete:
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonOnDelete,
			"pods are replaced only when somebody deletes them (updateStrategy OnDelete); those that are get verified%s", w.Rollout.told())
	case w.Paused && !d.plan.Resume:
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutPaused, "the %s is %s%s; the release goes on when it is resumed%s",
			w.Kind(), w.Words.Halted(), w.Words.Means(), w.by(w.Words.GoOn))
	case d.stuckOn != "":
		d.becomeStuck("pods on node " + d.stuckOn + " do not come up")
	case w.NotMade != nil:
		d.becomeStuck(fmt.Sprintf("%d of %d pods cannot be created: %s", w.NotMade.Count, w.Replicas, Brief(w.NotMade.Message)))
	case w.Rollout.Stuck:
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutStuck, "the rollout does not move: %s", w.Rollout.Message)
	case w.Rollout.Partitioned || w.Partition > 0 && d.staysAt(v1alpha1.ReasonPartitioned, w.Partition):
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonPartitioned,
			"a user's partition keeps %d of %d pods at the version before; the release goes on when it is lowered", w.Partition, w.Replicas)
	case wasComplete:
		d.explainComplete()
	default:
		d.explainRollingOut()
	}
}

// explainComplete says that the rollout is over, whatever its pods do now.
func (d *release) explainComplete() {
	d.condition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRolloutComplete, "every pod ran this version and was available")
}

// staysAt reports whether the condition Progressing of this release has the reason, and no
// more pods than old run another version. A pod that crashes changes neither.
func (d *release) staysAt(reason string, old int32) bool {
	for i := range d.Workload.OldRevisions {
		old -= d.Workload.OldRevisions[i].Replicas
	}
	return old >= 0 && d.wasProgressing(reason)
}

// wasComplete says that the rollout was complete when it was last heard of, and
// that nothing has been heard since: an annotation changed just now, say.
func (d *release) wasComplete() bool {
	return d.Workload.Rollout.Unobserved && d.wasProgressing(v1alpha1.ReasonRolloutComplete)
}

// wasProgressing reports whether the condition Progressing of this release has the reason.
func (d *release) wasProgressing(reason string) bool {
	c := meta.FindStatusCondition(d.Change.Status.Conditions, v1alpha1.ConditionProgressing)
	return c != nil && c.Reason == reason && d.Change.Status.ObservedRelease == d.Change.Spec.Release
}

// alikeReplaced is said where pods are replaced by others of the same template.
const alikeReplaced = "pods of this very template are replaced, too, because its revision was not found again"

// explainRollingOut says that pods are being replaced. Those that have the template
// already are where the controller of the workload finds an earlier revision by its
// bytes, and those were written by an older one.
func (d *release) explainRollingOut() {
	w, again := d.Workload, ""
	if n := w.alike(); n > 0 {
		again = fmt.Sprintf("; %d %s", n, alikeReplaced)
		said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionProgressing)
		if said == nil || !strings.Contains(said.Message, alikeReplaced) {
			d.event(corev1.EventTypeWarning, v1alpha1.EventRevisionNotFound, fmt.Sprintf("%d %s", n, alikeReplaced))
		}
	}
	d.condition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRollingOut, "pods are being replaced%s%s", w.Rollout.told(), again)
}

// told is how far a rollout has come, after what else is said of it.
func (r *Rollout) told() string {
	if r.Told == "" {
		return ""
	}
	return ": " + r.Told
}

// explainVerification says what the verification of the release came to. Pods that
// come after its success are in the counts alone, until one fails.
func (d *release) explainVerification() {
	succeeded, goesOn := d.status.Status == v1alpha1.ChangeWorkloadSuccess, ""
	if len(d.checking)+len(d.preparing) > 0 {
		goesOn = "; the other pods are still being verified"
	}
	switch {
	case len(d.failed) > 0:
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionFalse, v1alpha1.ReasonPodFailed, "%s%s", describe(&d.failed[0]), goesOn)
	case d.failedOrder() != nil:
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionFalse, v1alpha1.ReasonOrderCheckFailed, "%s%s", d.describeOrder(), goesOn)
	case d.failedCheck() != nil:
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionFalse, v1alpha1.ReasonCheckFailed, "%s%s", d.describeWhole(), goesOn)
	case succeeded && d.passCount()+len(d.checking)+len(d.preparing) == 0:
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonNothingVerified, "the release has no pods to verify; it lifts no block")
	case succeeded && d.unverifiedCount() > 0:
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionTrue, v1alpha1.ReasonPassedUnverified,
			"%d of %d pods passed without a verdict of AlterShield Server; pods that come later are verified", d.unverifiedCount(), d.passCount())
	case succeeded && d.passCount() > 0:
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionTrue, v1alpha1.ReasonAllPassed, "every pod of the release passed; pods that come later are verified, too")
	case d.unsettled && d.allPassed():
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonChecking, "every pod passed; one was restarted after that and has to run for a minute")
	case d.allPassed() && d.waitsFor(v1alpha1.StageReleasePost) != nil:
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonChecking, "every pod passed; the check %s goes on",
			d.waitsFor(v1alpha1.StageReleasePost).Name)
	case d.waitsFor(v1alpha1.StageReleasePre) != nil:
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonChecking, "the pods wait for the check %s",
			d.waitsFor(v1alpha1.StageReleasePre).Name)
	case d.allPassed():
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonChecking, "every pod passed; the order's POST check goes on")
	default:
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonChecking, "verification goes on")
	}
}

// succeededAt is when an attempt first succeeded; zero where it did not. A record of an older
// build says that only while it is a success.
func succeededAt(s *v1alpha1.ChangeWorkloadStatus) time.Time {
	switch {
	case s.SuccessTimeUnix > 0:
		return time.Unix(s.SuccessTimeUnix, 0)
	case s.Status == v1alpha1.ChangeWorkloadSuccess:
		return time.Unix(s.UpdateTimeUnix, 0)
	default:
		return time.Time{}
	}
}

// becomeStuck says what keeps a rollout from moving, with an event, since somebody
// has to do something about it.
func (d *release) becomeStuck(why string) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionProgressing)
	if said == nil || said.Reason != v1alpha1.ReasonRolloutStuck {
		d.event(corev1.EventTypeWarning, v1alpha1.ReasonRolloutStuck, why)
	}
	d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutStuck, "%s", why)
}

func (d *release) enter(state v1alpha1.ChangeWorkloadStatusType, eventType, reason, message string) {
	d.status.Status = state
	d.status.UpdateTime, d.status.UpdateTimeUnix = FormatTime(d.Now), d.Now.Unix()
	if reason != "" {
		d.event(eventType, reason, message)
	}
}

func (d *release) event(eventType, reason, message string) {
	d.plan.Events = append(d.plan.Events, Event{Type: eventType, Reason: reason,
		Message: fmt.Sprintf("version %s: %s", d.Change.Spec.Reversion, message)})
}

// actionEvent adds an event of the action on the workload.
func (d *release) actionEvent(eventType, reason, message string) {
	d.plan.ActionEvents = append(d.plan.ActionEvents, Event{Type: eventType, Reason: reason,
		Message: fmt.Sprintf("version %s: %s", d.Change.Spec.Reversion, message)})
}

func (d *release) condition(kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
	conditions{&d.status.Conditions, d.Change.Generation, d.Now}.set(kind, status, reason, format, args...)
}

func describe(r *v1alpha1.PodResult) string {
	s := fmt.Sprintf("pod %s: %s", r.Pod, r.Verdict)
	if r.Message != "" {
		s += ": " + cut(r.Message)
	}
	return s
}

func cut(message string) string {
	if len(message) <= maxListedMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxListedMessage-len("...")], "") + "..."
}

// endConditions says of a release that ended that what was under way goes on no
// more: its verification, or a block that was denied. Nothing is known of its pods.
func (d *release) endConditions() {
	if said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionBlocked); said != nil && said.Reason == v1alpha1.ReasonBlockDenied {
		d.condition(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonReleaseEnded, "the release ended before the workload could be blocked")
	}
	if said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionVerified); said != nil && said.Reason == v1alpha1.ReasonChecking {
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonReleaseEnded, "the release ended before its verification ended")
	}
	if meta.IsStatusConditionTrue(d.status.Conditions, v1alpha1.ConditionWaitsForServer) {
		d.condition(v1alpha1.ConditionWaitsForServer, metav1.ConditionFalse, v1alpha1.ReasonReleaseEnded, "the release ended")
	}
	if meta.IsStatusConditionTrue(d.status.Conditions, v1alpha1.ConditionHeld) {
		d.condition(v1alpha1.ConditionHeld, metav1.ConditionFalse, v1alpha1.ReasonHoldEnded, "the release ended")
	}
	if meta.IsStatusConditionTrue(d.status.Conditions, v1alpha1.ConditionRepairBlocked) {
		d.condition(v1alpha1.ConditionRepairBlocked, metav1.ConditionFalse, v1alpha1.ReasonReleaseEnded, "the release ended")
	}
	// It speaks of pods that are being replaced.
	if meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionPodsUnavailable) != nil {
		d.condition(v1alpha1.ConditionPodsUnavailable, metav1.ConditionFalse, v1alpha1.ReasonReleaseEnded, "the release ended")
	}
}
