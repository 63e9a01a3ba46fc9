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
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// DecideRelease returns the plan for a release.
func DecideRelease(in ReleaseInput) ReleasePlan {
	if in.Change.DeletionTimestamp != nil || !in.Enrolled && in.Change.Status.Attempt == 0 {
		// A release that never began, in a namespace that is not enrolled, for example restored from a backup: nothing
		// is written.
		return ReleasePlan{}
	}
	in.Now = notBefore(in.Now, in.Change.Status.DecidedTimeUnix)
	d := &release{ReleaseInput: in, status: record.CurrentStatus(in.Change)}
	switch standing := d.standing(); standing {
	case standingUnclear:
		return ReleasePlan{}
	case standingCurrent:
		d.follow()
		failStuck(d)
		liftRestored(d)
		noteOptOut(d) // a release that begins clears its status first
		followHold(d)
		boundRecords(d)
		if d.status.Attempt > 0 {
			keepPrevious(d)
		}
	case standingLeft:
		noteOptOut(d)
		d.cancel(standing)
	default:
		d.cancel(standing)
	}
	return d.finish()
}

// standing is the relation of a release to its workload.
type standing string

const (
	standingCurrent  standing = "current"
	standingUnclear  standing = "unclear"
	standingReplaced standing = v1alpha1.ReasonReleaseEnded
	standingDeleted  standing = v1alpha1.ReasonWorkloadDeleted
	standingLeft     standing = v1alpha1.ReasonNotDefended
)

// standing compares the numbers of releases, not only versions: a view of the workload that is older than this release
// decides nothing, and a version that is released again is a newer release.
func (d *release) standing() standing {
	w, spec := d.Workload, &d.Change.Spec
	switch {
	case w == nil || w.Deleting:
		return standingDeleted
	case !d.Enrolled || workload.OptedOut(w.Labels):
		return standingLeft
	case w.Release() > spec.Release:
		return standingReplaced
	case w.Release() < spec.Release, w.RecordedVersion() != spec.Reversion, w.Version != spec.Reversion:
		return standingUnclear
	default:
		return standingCurrent
	}
}

// cancel ends an open release.
func (d *release) cancel(why standing) {
	// The operator writes nothing more for this release.
	if d.status.DeniedWrite != nil {
		NoteAccepted(d.status, d.Change.Generation, d.Now, d.status.DeniedWrite.Write)
	}
	if reason, ok := rollback.RolledBack(d.Workload, d.Change); ok && why == standingReplaced {
		d.rollBack(reason)
		return
	}
	if why != standingLeft || record.IsOpen(d.status.Status) {
		endOrder(d.status, d.Now, v1alpha1.FinishCancel)
	}
	if why == standingReplaced {
		rememberLeft(d)
	}
	if why != standingLeft {
		record.CancelChecks(d.status, d.Now) // they would check another release
	}
	if !record.IsOpen(d.status.Status) {
		return
	}
	reason := map[standing]string{
		standingReplaced: "a newer release replaced it",
		standingDeleted:  "the workload was deleted",
		standingLeft:     "the workload is not defended",
	}[why]
	stuck := ""
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionProgressing)
	if said != nil && said.Reason == v1alpha1.ReasonRolloutStuck {
		stuck = "the rollout was stuck: " + wording.Cut(record.Detail(said))
	}
	if why != standingDeleted {
		// The end is final: a stale view of the workload must not decide it.
		d.plan.NeedsLive = !d.Live
	}
	record.CancelChecks(d.status, d.Now)
	d.enter(v1alpha1.ChangeWorkloadCanceled, corev1.EventTypeNormal, v1alpha1.EventReleaseCanceled,
		strings.Join(wording.NonEmpty(reason, stuck), "; "))
	d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, string(why), "%s", stuck)
	endConditions(d)
}

// rollBack ends a release whose workload was set back to another version.
func (d *release) rollBack(why rollback.QuarantineReason) {
	endOrder(d.status, d.Now, v1alpha1.FinishRollback)
	if s := d.status; s.FailCount > 0 || s.OrderFailed || s.CheckFailed {
		leaveHistory(d) // if the block was denied, the rollback may come before the failure
	}
	if d.status.Status == v1alpha1.ChangeWorkloadRollback && meta.IsStatusConditionTrue(d.status.Conditions, v1alpha1.ConditionRolledBack) {
		return
	}
	reason, message := v1alpha1.EventRolledBack, fmt.Sprintf("to version %s: %s", why.To, why)
	if why.By != "" {
		reason, message = v1alpha1.EventReleaseUndone, fmt.Sprintf("%s released version %s again: %s", why.By, why.To, why)
	}
	record.CancelChecks(d.status, d.Now)
	d.enter(v1alpha1.ChangeWorkloadRollback, corev1.EventTypeWarning, reason, message)
	d.plan.Events[len(d.plan.Events)-1].OfRelease = true
	d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionTrue, why.Cause, "%s", message)
	d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonReleaseEnded, "%s", message)
	endConditions(d)
}

// follow moves the current release forward.
func (d *release) follow() {
	if d.status.Attempt == 0 || d.Change.Spec.Release > d.status.ObservedRelease {
		if !endBefore(d) {
			return
		}
		d.startAttempt()
	}
	if d.status.Baseline == nil {
		d.status.Baseline = d.Baseline
	}
	takeRequest(d)
	explainDefense(d)
	markOrphans(d.status, d.Batches)
	followOrder(d)
	waits := explainServer(d)
	if !record.IsVerified(d.status.Status) {
		d.plan.RequeueAfter = times.Shortest(d.plan.RequeueAfter, explainStart(d))
		if d.Workload.Annotations[v1alpha1.HaltedAnnotation] != d.Change.Spec.Reversion {
			resumeRollout(d)
		}
		return
	}
	d.followSettings()
	if d.status.Status == v1alpha1.ChangeWorkloadInit {
		d.plan.RequeueAfter = times.Shortest(explainStart(d), waits)
		return
	}
	wait := times.Shortest(waits, d.sortPods())
	wait = times.Shortest(wait, foldBatches(d))
	correctFolded(d)
	wait = times.Shortest(wait, followRollout(d))
	made := preOver(d.status, d.Cluster) && d.makeBatches()
	d.judge(made)
	resumeRollout(d)
	wait = times.Shortest(wait, explainStart(d))
	d.explain()
	d.requeueIn(wait)
}

// startAttempt resets the status, except the numbers of batches, which go on.
func (d *release) startAttempt() {
	d.status = &v1alpha1.ChangeWorkloadStatus{
		Attempt:         d.status.Attempt + 1,
		Batches:         d.status.Batches,
		ObservedRelease: d.Change.Spec.Release,
		StartTime:       times.Format(d.Now),
		StartTimeUnix:   d.Now.Unix(),
		EntryTime:       times.Format(d.Now),
		EntryTimeUnix:   d.Now.Unix(),
	}
	if f := d.Change.Status.Folded; f != nil {
		d.status.Folded = &v1alpha1.FoldedBatches{Numbers: f.Numbers, NumbersFrom: f.NumbersFrom}
	}
	if value, blocked := d.Workload.Labels[v1alpha1.SuspendLabel]; blocked {
		d.status.BlockAtStart = &value
	}
	d.status.ReleaseEvidence = evidenceOf(d.Workload)
	var started []string
	if d.status.Attempt > 1 {
		started = append(started, fmt.Sprintf("attempt %d", d.status.Attempt))
	}
	d.condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonChecking, "")
	record.BeginChecks(d.status, d.Begin, d.Now, v1alpha1.StageReleasePre)
	explainProgress(d)
	state := v1alpha1.ChangeWorkloadRunning
	if d.Cluster != "" {
		state = v1alpha1.ChangeWorkloadInit
		d.status.OrderID = server.OrderID(d.Cluster, d.Workload.UID, d.Change.Spec.Reversion, d.status.ObservedRelease,
			d.status.Attempt, d.Change.UID)
		d.status.OrderTenant, d.status.OrderPhase = d.Tenant, d.Phase
		d.status.OrderStage = v1alpha1.OrderSubmitting
		started = append(started, "order "+d.status.OrderID)
	}
	d.enter(state, corev1.EventTypeNormal, v1alpha1.EventReleaseStarted, strings.Join(started, ", "))
	release, altered, _ := strings.Cut(d.Workload.Annotations[v1alpha1.SettingsAlteredAnnotation], " ")
	if altered != "" && workload.ParseRelease(release) == d.Change.Spec.Release {
		d.event(corev1.EventTypeWarning, v1alpha1.EventSettingsAltered, altered)
	}
	beginFrozen(d)
	if q := rollback.ParseQuarantine(d.Workload.Annotations, d.Now); q.Holds(d.Change.Spec.Reversion) && d.Settings.Observe {
		dryRun(d, v1alpha1.DryRunDeny, rollback.DescribeQuarantine(d.Change.Spec.Reversion, q)+"; the release would have been denied")
	} else if q.Holds(d.Change.Spec.Reversion) {
		d.event(corev1.EventTypeWarning, v1alpha1.EventAdmissionBypassed, rollback.DescribeQuarantine(d.Change.Spec.Reversion, q)+
			"; the release is verified, and is not rolled back again")
	}
}

func (d *release) followSettings() {
	wait := int64(d.Settings.Wait / time.Second)
	if d.Change.Spec.CountThreshold == d.Settings.BatchSize && d.Change.Spec.WaitTimeThreshold == wait {
		return
	}
	if !record.IsOpen(d.status.Status) {
		return
	}
	spec := d.Change.Spec.DeepCopy()
	spec.CountThreshold, spec.WaitTimeThreshold = d.Settings.BatchSize, wait
	d.plan.Spec = spec
}

// judge sets the state, and the action on the workload.
func (d *release) judge(made bool) {
	before := d.status.Status
	allPassed := d.allPassed()
	if before != v1alpha1.ChangeWorkloadSuccess {
		d.unsettled, d.settleIn = d.waitsForRestarted()
		allPassed = allPassed && !d.unsettled && preOver(d.status, d.Cluster)
	}
	if allPassed && before != v1alpha1.ChangeWorkloadSuccess && !d.hasFailed() {
		record.BeginChecks(d.status, d.Begin, d.Now, v1alpha1.StageReleasePost)
	}
	switch {
	case d.hasFailed():
		failRelease(d, before)

	case allPassed && (before == v1alpha1.ChangeWorkloadSuccess || postOver(d.status, d.Cluster)):
		if before != v1alpha1.ChangeWorkloadSuccess {
			d.plan.NeedsLive = !d.Live
			if before == v1alpha1.ChangeWorkloadSuspend {
				noteCorrections(d)
			}
			eventType, message := corev1.EventTypeNormal, fmt.Sprintf("%d pods", d.passCount())
			if d.Workload.WithoutPods {
				message = fmt.Sprintf("the rollout stayed complete for %s", d.Workload.Settle)
			}
			if n := d.unverifiedCount(); n > 0 {
				eventType, message = corev1.EventTypeWarning, fmt.Sprintf("%s, %d without a verdict of AlterShield Server", message, n)
			}
			d.enter(v1alpha1.ChangeWorkloadSuccess, eventType, v1alpha1.EventReleaseSucceeded, message)
			d.status.SuccessTimeUnix = cmp.Or(d.status.SuccessTimeUnix, d.Now.Unix())
		}
		if fails, _ := d.Settings.ServerSilence(); orderPostOver(d.status, d.Cluster) || fails && orderPreOver(d.status, d.Cluster) {
			endOrder(d.status, d.Now, v1alpha1.FinishSuccess)
		} else {
			awaitOrderPost(d.status, d.Now) // the server accepted the order after the release had succeeded
		}
		d.succeed(before != v1alpha1.ChangeWorkloadSuccess)

	case allPassed && before != v1alpha1.ChangeWorkloadSuspend:
		awaitOrderPost(d.status, d.Now)
		if before != v1alpha1.ChangeWorkloadRunning {
			d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeNormal, "", "")
		}

	case before == v1alpha1.ChangeWorkloadSuspend:
		noteCorrections(d)
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeNormal, "", "")
		why := "the failing verdict was corrected"
		if healed(d) {
			why = "the rollout is complete"
		}
		liftBlock(d, ownBlock(d.Workload), why)

	case before == v1alpha1.ChangeWorkloadSuccess:
		d.succeed(false)

	case ownBlock(d.Workload) && remembersBlock(d.Workload, d.Change) && d.Workload.HaltedBy(d.Change.Spec.Reversion):
		// The process died between the block and its record, and the verdict was corrected before the next process started.
		liftBlock(d, true, "the failing verdict was corrected")

	case d.waitsInVain(made):
		if before != v1alpha1.ChangeWorkloadTimeOutPreThreshold {
			d.enter(v1alpha1.ChangeWorkloadTimeOutPreThreshold, corev1.EventTypeNormal, "", "")
		}

	case before == v1alpha1.ChangeWorkloadTimeOutPreThreshold:
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeNormal, "", "")
	}
}

// succeed lifts a block once a pod of this release has passed, or the rollout of an object without pods: the operator's own
// block, and at the moment of success also the block that the release began with. A block that a user set later stays. It
// emits BlockLifted.
func (d *release) succeed(entered bool) {
	if d.passCount() == 0 && !d.Workload.WithoutPods {
		return
	}
	decideHistory(d)
	d.proveIn = proveRelease(d)
	recordProof(d)
	lift := d.Workload.Marks().Blocked || entered && blockedAtStart(d.Workload, d.status)
	if ownBlock(d.Workload) && !remembersBlock(d.Workload, d.Change) {
		lift = false
	}
	liftBlock(d, lift, "the release succeeded")
	for i := range d.Others {
		if d.Others[i].Spec.Release >= d.Change.Spec.Release {
			continue
		}
		if _, restored := rollback.RolledBack(d.Workload, &d.Others[i]); restored && d.Others[i].Spec.Release+1 == d.Change.Spec.Release {
			continue // it explains the current release until another one succeeds
		}
		// The order of the old release is ended first, for at most one deadline.
		left := time.Unix(d.status.UpdateTimeUnix, 0).Add(d.Settings.PostTimeout).Sub(d.Now)
		if record.OrderIsOpen(&d.Others[i].Status) && left > 0 {
			d.removeIn = left
			continue
		}
		d.plan.Remove = append(d.plan.Remove, d.Others[i])
	}
}

// requeueIn sets when to decide again: when time alone finishes a pod, makes it overdue, or ends the wait for a full
// batch.
func (d *release) requeueIn(podWait time.Duration) {
	again := podWait
	waiting := preOver(d.status, d.Cluster) && len(d.preparing) > 0 ||
		d.status.Status == v1alpha1.ChangeWorkloadRunning && !d.everyPod(d.isBatched) && !d.overdue()
	if waiting {
		again = times.Shortest(again, max(d.deadline().Sub(d.Now), time.Second/10))
	}
	d.plan.RequeueAfter = times.Shortest(times.Shortest(times.Shortest(again, d.removeIn), d.proveIn), d.settleIn)
}

// CountsPutOff is how long a status write is put off while only the counts and lists of pods change.
const CountsPutOff = 3 * time.Second

// finish drops a status write that changes nothing, and puts off a status write that only adds pods.
func (d *release) finish() ReleasePlan {
	pruneFolded(d)
	if equality.Semantic.DeepEqual(d.status, &d.Change.Status) {
		return d.plan
	}
	if wait := d.putOff(); wait > 0 {
		d.plan.PutOff = true
		d.plan.RequeueAfter = times.Shortest(d.plan.RequeueAfter, wait)
		return d.plan
	}
	d.status.ObservedGeneration = d.Change.Generation
	d.plan.Status = decided(d.status, &d.Change.Status, d.Now)
	return d.plan
}

// putOff returns how long a status write may wait because it only adds pods. Until then, the pods and the batches
// themselves show the missing part. The name of a batch is taken once the batch exists, so the pods of an unseen batch
// get into no other batch.
func (d *release) putOff() time.Duration {
	left := CountsPutOff
	if !d.PutOffSince.IsZero() {
		left = d.PutOffSince.Add(CountsPutOff).Sub(d.Now)
	}
	if left <= 0 || left > CountsPutOff || d.plan.Action != LeaveWorkload ||
		len(d.plan.Events)+len(d.plan.ActionEvents) > 0 || d.plan.Remember || d.plan.Prove != nil {
		return 0
	}
	rest, was := *d.status, &d.Change.Status
	rest.Batches, rest.EntryTime, rest.EntryTimeUnix = was.Batches, was.EntryTime, was.EntryTimeUnix
	rest.DefensePreparingPods, rest.DefenseCheckingPods = was.DefensePreparingPods, was.DefenseCheckingPods
	rest.DefenseCheckPassPods = was.DefenseCheckPassPods
	rest.PreparingCount, rest.CheckingCount = was.PreparingCount, was.CheckingCount
	rest.PassCount, rest.UnverifiedCount = was.PassCount, was.UnverifiedCount
	rest.Conditions = withMessageOf(v1alpha1.ConditionHeld, rest.Conditions, was.Conditions)
	if !equality.Semantic.DeepEqual(&rest, was) {
		return 0
	}
	return left
}

// explain fills the lists, counts and conditions of the status.
func (d *release) explain() {
	s := d.status
	s.UnclaimedVerdicts = unclaimed(d.status, d.Batches)
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
	s.OrderFailed, s.CheckFailed = record.FailedOrderCheck(d.status) != nil, record.FailedReleaseCheck(s) != nil

	explainBlock(d)
	explainProgress(d)
	explainVerification(d)
}
