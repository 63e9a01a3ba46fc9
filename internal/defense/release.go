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
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// ReleaseInput is what a decision about a release is made from.
type ReleaseInput struct {
	Now time.Time
	// Settings in force for the workload.
	Settings settings.Settings
	// ObservedBy says what makes the workload in observe mode; empty while nothing
	// does. Lowered are the settings by whose annotations the workload is
	// defended less than it would be.
	ObservedBy string
	Lowered    []string
	// Change is the release.
	Change *v1alpha1.ChangeWorkload
	// Workload is the workload that owns it; nil when it is gone.
	Workload *Workload
	// Enrolled says that the namespace is enrolled.
	Enrolled bool
	// Pods are the pods of the workload's current revision.
	Pods []Pod
	// Batches are all ChangePods of this object, of whatever attempt. LiveBatches
	// says that they were read from the API server, not from a cache that may be
	// behind that of the release.
	Batches     []v1alpha1.ChangePod
	LiveBatches bool
	// Others are the other ChangeWorkloads of the workload.
	Others []v1alpha1.ChangeWorkload
	// History are the successful versions of the workload that are remembered.
	History []Revision
	// Limit counts rollbacks for the rollback limit of rollbacks.
	Limit RollbackLimit
	// Causes are what the events of pods say, of those that were asked for.
	Causes map[types.UID]string
	// Unreachable are nodes that do not answer, of those that were asked for; nil when none was.
	Unreachable map[string]bool
	// Sure are batches that were read from the API server, with their pods, and Gone
	// those of these pods that do not exist any more.
	Sure, Gone map[types.UID]bool
	// Live says that the workload's labels and annotations were read from the
	// API server, not from a cache that may be behind.
	Live bool
	// PutOffSince is since when this process has put off writing the status; zero when
	// it has not.
	PutOffSince time.Time
	// Begin are the checks of policies that begin at stages of the release as a whole.
	Begin []BeginCheck
	// HoldSteps are the times of a hold, and Since is since when this process decides.
	HoldSteps HoldSteps
	Since     time.Time
	// Cluster identifies the cluster to AlterShield Server; empty when none is
	// configured.
	Cluster types.UID
	// Tenant and Phase are what the namespace says of its orders; empty where it
	// does not.
	Tenant, Phase string
}

// WorkloadAction is what a release does to the block of its workload.
type WorkloadAction int

const (
	// LeaveWorkload means nothing.
	LeaveWorkload WorkloadAction = iota
	// BlockWorkload means block its releases, because of this version.
	BlockWorkload
	// LiftBlock means remove the block.
	LiftBlock
	// ResumeWorkload means only resume the rollout, with ReleasePlan.Resume.
	ResumeWorkload
	// PaceWorkload means only change the pace of the rollout, with ReleasePlan.Hold, and
	// pause it, with ReleasePlan.Halt.
	PaceWorkload
)

// Batch is a batch to be made.
type Batch struct {
	Number, Attempt int32
	Release         int64
	Pods            []v1alpha1.PodInfo
	// Total is how many batches the release is expected to have by now.
	Total int32
	// Last: every pod the workload is to have is in a batch now.
	Last bool
}

// Event is an event to emit after the write that it is about has succeeded.
type Event struct {
	// Type is corev1.EventTypeNormal or EventTypeWarning.
	Type            string
	Reason, Message string
	// OfRelease: the event is on the release, too, not only on the workload.
	OfRelease bool
	// Settings are those by which an event DefenseChanged says that the defense is lowered.
	Settings []string
	// Act tells the event from others of its reason: it is a part of the event's action.
	Act string
}

// ReleasePlan is what to do about a release. It is carried out in the order of
// its fields; each step may be the last one before a crash, and the next
// decision goes on from there.
type ReleasePlan struct {
	// NeedsLive: the rest was decided from a block that is there or not, or from a
	// workload that has gone on, once for this turn of the release; a view of it
	// that is behind must not decide. Read the workload from the API server and decide again.
	NeedsLive bool
	// NeedsBatches: a batch is to be made while not every batch that the status
	// mentions was seen, so that the pods of one that was not would be put into
	// another; or a failure or a block is to end, and the batch that failed may not
	// have been seen. Read the batches from the API server and decide again.
	NeedsBatches bool
	// NeedsCause is a pod whose events say what it waits for: read them and decide
	// again.
	NeedsCause *Pod
	// NeedsNodes: the release is about to be rolled back because of pods on these nodes;
	// find out which of them are silent, and decide again.
	NeedsNodes []string
	// NeedsSure are batches to be removed, as far as the caches tell: read them and
	// their pods from the API server and decide again.
	NeedsSure []*v1alpha1.ChangePod
	// Spec is set when thresholds are to follow the settings.
	Spec *v1alpha1.ChangeWorkloadSpec
	// Batches to make. Their names are taken once made, so of two makers with
	// stale views only one succeeds.
	Batches []Batch
	// RollbackTo is a version that a rollback is asked for to, by the annotation.
	RollbackTo string
	// Action on the workload; in the same write Halt pauses its rollout, and
	// Resume takes the operator's own pause back.
	Action       WorkloadAction
	Halt, Resume bool
	// Hold is what becomes of the pace of the rollout in the same write; nil for nothing.
	Hold *HoldChange
	// ActionEvents are the events of Action, emitted when it is done.
	ActionEvents []Event
	// Status is set when it is to be written. PutOff says that it is to be written
	// later.
	Status *v1alpha1.ChangeWorkloadStatus
	PutOff bool
	// Remember the template of this version as the newest that succeeded, Prove
	// that it ran well, and Forget others.
	Remember bool
	Prove    *Revision
	Forget   []Revision
	// RemoveBatches are batches of this release that count no more by themselves.
	RemoveBatches []v1alpha1.ChangePod
	// Remove are older releases this one has made obsolete.
	Remove []v1alpha1.ChangeWorkload
	// Events say what was done.
	Events []Event
	// RequeueAfter says when to look again, if nothing happens before.
	RequeueAfter time.Duration
}

const (
	// maxListed bounds the lists in the status of a release; counts are
	// complete.
	maxListed = 100
	// maxPreparing bounds the list of preparing pods, the memory of who was
	// finished. There are fewer of them than a batch holds, unless the order's
	// PRE check holds all batches up.
	maxPreparing = 400
	// maxListedMessage bounds a verdict's text in those lists; the ChangePod
	// has all of it.
	maxListedMessage = 256
)

// DecideRelease says what becomes of a release.
func DecideRelease(in ReleaseInput) ReleasePlan {
	if in.Change.DeletionTimestamp != nil || !in.Enrolled && in.Change.Status.Attempt == 0 {
		// One that never began, where nothing is ever written: somebody restored
		// it from a backup, say.
		return ReleasePlan{}
	}
	in.Now = notBefore(in.Now, in.Change.Status.DecidedTimeUnix)
	d := &release{ReleaseInput: in, status: currentStatus(in.Change)}
	switch standing := d.standing(); standing {
	case standingUnclear:
		return ReleasePlan{}
	case standingCurrent:
		d.follow()
		d.liftRestored()
		d.noteOptOut() // a release that begins forgets what was noted before
		d.followHold()
		d.boundRecords()
		if d.status.Attempt > 0 {
			d.keepPrevious()
		}
	case standingLeft:
		d.noteOptOut()
		d.cancel(standing)
	default:
		d.cancel(standing)
	}
	return d.finish()
}

// release is a decision in the making.
type release struct {
	ReleaseInput
	status *v1alpha1.ChangeWorkloadStatus
	plan   ReleasePlan

	preparing []Pod
	checking  []v1alpha1.PodResult
	passed    []v1alpha1.PodResult
	failed    []v1alpha1.PodResult
	// folded are the numbers of the batches whose counts the status keeps.
	folded numbers
	// batched are the pods in a batch of this attempt.
	batched map[types.UID]bool
	// removeIn is how long until obsolete releases go although their orders
	// have not ended; 0 when none waits for that.
	removeIn time.Duration
	// proveIn is how long until the release is proven; 0 when it waits for nothing.
	proveIn time.Duration
	// unsettled: a pod that may have passed does not run, or was restarted just now;
	// settleIn is how long that keeps the release from Success, where it is known.
	unsettled bool
	settleIn  time.Duration
	// stuckOn is the node on which all stuck pods are, where that is tolerated.
	stuckOn string
}

// standing is where a release stands towards its workload.
type standing string

const (
	standingCurrent  standing = "current"
	standingUnclear  standing = "unclear"
	standingReplaced standing = v1alpha1.ReasonReleaseEnded
	standingDeleted  standing = v1alpha1.ReasonWorkloadDeleted
	standingLeft     standing = v1alpha1.ReasonNotDefended
)

// standing compares the numbers of releases, not versions alone: a view of the
// workload that is older than this release decides nothing, and a version that
// is released again is a newer release.
func (d *release) standing() standing {
	w, spec := d.Workload, &d.Change.Spec
	switch {
	case w == nil || w.Deleting:
		return standingDeleted
	case !d.Enrolled || OptedOut(w.Labels):
		return standingLeft
	case w.Release() > spec.Release:
		return standingReplaced
	case w.Release() < spec.Release, w.RecordedVersion() != spec.Reversion, w.Version != spec.Reversion:
		return standingUnclear
	default:
		return standingCurrent
	}
}

// cancel ends a release that had not ended.
func (d *release) cancel(why standing) {
	// Nothing more is written for it.
	if d.status.DeniedWrite != nil {
		NoteAccepted(d.status, d.Change.Generation, d.Now, d.status.DeniedWrite.Write)
	}
	if reason, ok := rolledBack(d.Workload, d.Change); ok && why == standingReplaced {
		d.rollBack(reason)
		return
	}
	if why != standingLeft || IsOpen(d.status.Status) {
		d.endOrder(v1alpha1.FinishCancel)
	}
	if why == standingReplaced {
		d.rememberLeft()
	}
	if why != standingLeft {
		d.cancelChecks() // what they are about is another release's by now
	}
	if !IsOpen(d.status.Status) {
		return
	}
	reason := map[standing]string{
		standingReplaced: "a newer release replaced it",
		standingDeleted:  "the workload was deleted",
		standingLeft:     "the workload is not defended",
	}[why]
	stuck := ""
	if said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionProgressing); said != nil && said.Reason == v1alpha1.ReasonRolloutStuck {
		stuck = "the rollout was stuck: " + cut(Detail(said))
	}
	if why != standingDeleted {
		// It ends for good: a view of the workload from before this release must not
		// decide that.
		d.plan.NeedsLive = !d.Live
	}
	d.cancelChecks()
	d.enter(v1alpha1.ChangeWorkloadCanceled, corev1.EventTypeNormal, v1alpha1.EventReleaseCanceled, strings.Join(nonEmpty(reason, stuck), "; "))
	d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, string(why), "%s", stuck)
	d.endConditions()
}

// rollBack ends a release whose workload was set back to another version.
func (d *release) rollBack(why QuarantineReason) {
	d.endOrder(v1alpha1.FinishRollback)
	if s := d.status; s.FailCount > 0 || s.OrderFailed || s.CheckFailed {
		d.leaveHistory() // the rollback may have come first, where the block was denied
	}
	if d.status.Status == v1alpha1.ChangeWorkloadRollback && meta.IsStatusConditionTrue(d.status.Conditions, v1alpha1.ConditionRolledBack) {
		return
	}
	reason, message := v1alpha1.EventRolledBack, fmt.Sprintf("to version %s: %s", why.To, why)
	if why.By != "" {
		reason, message = v1alpha1.EventReleaseUndone, why.By+" went back "+message
	}
	d.cancelChecks()
	d.enter(v1alpha1.ChangeWorkloadRollback, corev1.EventTypeWarning, reason, message)
	d.plan.Events[len(d.plan.Events)-1].OfRelease = true
	d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionTrue, why.Cause, "%s", message)
	d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonReleaseEnded, "%s", message)
	d.endConditions()
}

// follow carries a release on.
func (d *release) follow() {
	if d.status.Attempt == 0 || d.Change.Spec.Release > d.status.ObservedRelease {
		if !d.endBefore() {
			return
		}
		d.startAttempt()
	}
	d.takeRequest()
	d.explainDefense()
	d.markOrphans()
	d.followOrder()
	waits := d.explainServer()
	if !IsVerified(d.status.Status) {
		d.plan.RequeueAfter = shortest(d.plan.RequeueAfter, d.explainStart())
		if d.Workload.Annotations[v1alpha1.HaltedAnnotation] != d.Change.Spec.Reversion {
			d.resume()
		}
		return
	}
	d.followSettings()
	if d.status.Status == v1alpha1.ChangeWorkloadInit {
		d.plan.RequeueAfter = shortest(d.explainStart(), waits)
		return
	}
	wait := shortest(waits, d.sortPods())
	wait = shortest(wait, d.fold())
	d.correctFolded()
	made := d.preOver() && d.makeBatches()
	d.judge(made)
	d.resume()
	wait = shortest(wait, d.explainStart())
	d.explain()
	d.requeueIn(wait)
}

// startAttempt resets everything but the numbers of batches, which go on.
func (d *release) startAttempt() {
	d.status = &v1alpha1.ChangeWorkloadStatus{
		Attempt:         d.status.Attempt + 1,
		Batches:         d.status.Batches,
		ObservedRelease: d.Change.Spec.Release,
		StartTime:       FormatTime(d.Now),
		StartTimeUnix:   d.Now.Unix(),
		EntryTime:       FormatTime(d.Now),
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
	d.beginChecks(v1alpha1.StageReleasePre)
	d.explainProgress()
	state := v1alpha1.ChangeWorkloadRunning
	if d.Cluster != "" {
		state = v1alpha1.ChangeWorkloadInit
		d.status.OrderID = OrderID(d.Cluster, d.Workload.UID, d.Change.Spec.Reversion, d.status.ObservedRelease, d.status.Attempt, d.Change.UID)
		d.status.OrderTenant, d.status.OrderPhase = d.Tenant, d.Phase
		d.status.OrderStage = v1alpha1.OrderSubmitting
		started = append(started, "order "+d.status.OrderID)
	}
	d.enter(state, corev1.EventTypeNormal, v1alpha1.EventReleaseStarted, strings.Join(started, ", "))
	release, altered, _ := strings.Cut(d.Workload.Annotations[v1alpha1.SettingsAlteredAnnotation], " ")
	if altered != "" && ParseRelease(release) == d.Change.Spec.Release {
		d.event(corev1.EventTypeWarning, v1alpha1.EventSettingsAltered, altered)
	}
	if q := ParseQuarantine(d.Workload.Annotations, d.Now); q.Holds(d.Change.Spec.Reversion) && d.Settings.Observe {
		d.would(v1alpha1.DryRunDeny, describeQuarantine(d.Change.Spec.Reversion, q)+"; the release would have been denied")
	} else if q.Holds(d.Change.Spec.Reversion) {
		d.event(corev1.EventTypeWarning, v1alpha1.EventAdmissionBypassed, describeQuarantine(d.Change.Spec.Reversion, q)+
			"; the release is verified, and is not rolled back again")
	}
}

func (d *release) followSettings() {
	wait := int64(d.Settings.Wait / time.Second)
	if d.Change.Spec.CountThreshold == d.Settings.BatchSize && d.Change.Spec.WaitTimeThreshold == wait {
		return
	}
	if !IsOpen(d.status.Status) {
		return
	}
	spec := d.Change.Spec.DeepCopy()
	spec.CountThreshold, spec.WaitTimeThreshold = d.Settings.BatchSize, wait
	d.plan.Spec = spec
}

// judge moves the state, and says what that does to the workload.
func (d *release) judge(made bool) {
	before := d.status.Status
	allPassed := d.allPassed()
	if before != v1alpha1.ChangeWorkloadSuccess {
		d.unsettled, d.settleIn = d.waitsForRestarted()
		allPassed = allPassed && !d.unsettled && d.preOver()
	}
	if allPassed && before != v1alpha1.ChangeWorkloadSuccess && !d.hasFailed() {
		d.beginChecks(v1alpha1.StageReleasePost)
	}
	switch {
	case d.hasFailed():
		d.fail(before)

	case allPassed && (before == v1alpha1.ChangeWorkloadSuccess || d.postOver()):
		if before != v1alpha1.ChangeWorkloadSuccess {
			d.plan.NeedsLive = !d.Live
			if before == v1alpha1.ChangeWorkloadSuspend {
				d.correct()
			}
			eventType, message := corev1.EventTypeNormal, fmt.Sprintf("%d pods", d.passCount())
			if n := d.unverifiedCount(); n > 0 {
				eventType, message = corev1.EventTypeWarning, fmt.Sprintf("%s, %d without a verdict of AlterShield Server", message, n)
			}
			d.enter(v1alpha1.ChangeWorkloadSuccess, eventType, v1alpha1.EventReleaseSucceeded, message)
			d.status.SuccessTimeUnix = cmp.Or(d.status.SuccessTimeUnix, d.Now.Unix())
		}
		if fails, _ := d.Settings.ServerSilence(); d.orderPostOver() || fails && d.orderPreOver() {
			d.endOrder(v1alpha1.FinishSuccess)
		} else {
			d.awaitOrderPost() // it was accepted after the release had succeeded
		}
		d.succeed(before != v1alpha1.ChangeWorkloadSuccess)

	case allPassed && before != v1alpha1.ChangeWorkloadSuspend:
		d.awaitOrderPost()
		if before != v1alpha1.ChangeWorkloadRunning {
			d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeNormal, "", "")
		}

	case before == v1alpha1.ChangeWorkloadSuspend:
		d.correct()
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeNormal, "", "")
		d.lift(d.ownBlock(), "the failing verdict was corrected")

	case before == v1alpha1.ChangeWorkloadSuccess:
		d.succeed(false)

	case d.waitsInVain(made):
		if before != v1alpha1.ChangeWorkloadTimeOutPreThreshold {
			d.enter(v1alpha1.ChangeWorkloadTimeOutPreThreshold, corev1.EventTypeNormal, "", "")
		}

	case before == v1alpha1.ChangeWorkloadTimeOutPreThreshold:
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeNormal, "", "")
	}
}

// succeed lifts a block once a pod of this release has passed: the operator's own,
// and when the release succeeds also one that was there when it began. A user who
// set another one since has decided. It emits BlockLifted.
func (d *release) succeed(entered bool) {
	if d.passCount() == 0 {
		return
	}
	d.decideHistory()
	d.proveIn = d.prove()
	d.recordProof()
	lift := hasOwnBlock(d.Workload) || entered && d.blockedAtStart()
	if d.ownBlock() && !d.remembersBlock() {
		lift = false
	}
	d.lift(lift, "the release succeeded")
	for i := range d.Others {
		if d.Others[i].Spec.Release >= d.Change.Spec.Release {
			continue
		}
		if _, restored := rolledBack(d.Workload, &d.Others[i]); restored && d.Others[i].Spec.Release+1 == d.Change.Spec.Release {
			continue // it explains why this one is here, until another succeeds
		}
		// Its order is ended first, for at most one deadline.
		left := time.Unix(d.status.UpdateTimeUnix, 0).Add(d.Settings.PostTimeout).Sub(d.Now)
		if OrderIsOpen(&d.Others[i].Status) && left > 0 {
			d.removeIn = left
			continue
		}
		d.plan.Remove = append(d.plan.Remove, d.Others[i])
	}
}

// shortest is the shorter of two times to wait; 0 is not to.
func shortest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// requeueIn says when to look again: when a pod is finished, or overdue, by time
// alone, or when waiting for a full batch ends.
func (d *release) requeueIn(podWait time.Duration) {
	again := podWait
	waiting := d.preOver() && len(d.preparing) > 0 || d.status.Status == v1alpha1.ChangeWorkloadRunning && d.podsToCome() && !d.overdue()
	if waiting {
		again = shortest(again, max(d.deadline().Sub(d.Now), time.Second/10))
	}
	d.plan.RequeueAfter = shortest(shortest(shortest(again, d.removeIn), d.proveIn), d.settleIn)
}

// CountsPutOff is how long a write of the status of a release is put off while only its
// counts and lists of pods change.
const CountsPutOff = 3 * time.Second

// finish leaves out a status write that would change nothing, and puts off one that
// would tell only of more pods.
func (d *release) finish() ReleasePlan {
	d.pruneFolded()
	if equality.Semantic.DeepEqual(d.status, &d.Change.Status) {
		return d.plan
	}
	if wait := d.putOff(); wait > 0 {
		d.plan.PutOff = true
		d.plan.RequeueAfter = shortest(d.plan.RequeueAfter, wait)
		return d.plan
	}
	d.status.ObservedGeneration = d.Change.Generation
	d.plan.Status = decided(d.status, &d.Change.Status, d.Now)
	return d.plan
}

// decided returns a status with the time of the decision, or nil if it is what it was.
func decided(status, was *v1alpha1.ChangeWorkloadStatus, now time.Time) *v1alpha1.ChangeWorkloadStatus {
	status.DecidedTimeUnix = was.DecidedTimeUnix
	if equality.Semantic.DeepEqual(status, was) {
		return nil
	}
	status.DecidedTimeUnix = notBefore(now, was.DecidedTimeUnix).Unix()
	return status
}

// mostAhead is how far the clocks of two replicas are apart at most: each follows the API
// server's within two seconds.
const mostAhead = 5 * time.Second

// notBefore returns the later of now and the time of the decision before. Two replicas may
// decide at once, and the clock of one is a little behind: without this, it takes back what
// the other wrote when a time was over, the other writes it again, and so on until both agree.
func notBefore(now time.Time, decided int64) time.Time {
	if at := time.Unix(decided, 0); at.After(now) && at.Sub(now) <= mostAhead {
		return at
	}
	return now
}

// putOff is how long a status write may wait, because pods come one by one: it
// tells of more of them, and of nothing else. What is left out of the status in the
// meantime is known from the pods and the batches themselves. The name of a batch is
// taken once it is made, so the pods of one that is not seen yet get into no other.
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
	rest.DefensePreparingPods, rest.DefenseCheckingPods, rest.DefenseCheckPassPods = was.DefensePreparingPods, was.DefenseCheckingPods, was.DefenseCheckPassPods
	rest.PreparingCount, rest.CheckingCount = was.PreparingCount, was.CheckingCount
	rest.PassCount, rest.UnverifiedCount = was.PassCount, was.UnverifiedCount
	rest.Conditions = withMessageOf(v1alpha1.ConditionHeld, rest.Conditions, was.Conditions)
	if !equality.Semantic.DeepEqual(&rest, was) {
		return 0
	}
	return left
}

// withMessageOf are conditions in which one of a type has the message that it had, where
// it was the same else: that tells how many verdicts are waited for.
func withMessageOf(kind string, conditions, was []metav1.Condition) []metav1.Condition {
	now, before := meta.FindStatusCondition(conditions, kind), meta.FindStatusCondition(was, kind)
	if now == nil || before == nil || now.Status != before.Status || now.Reason != before.Reason {
		return conditions
	}
	conditions = slices.Clone(conditions)
	meta.FindStatusCondition(conditions, kind).Message = before.Message
	return conditions
}
