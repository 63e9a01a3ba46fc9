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
	// Settings in force for the workload; BadOverrides says which of its own
	// cannot be used, and why.
	Settings     settings.Settings
	BadOverrides []string
	// Change is the release.
	Change *v1alpha1.ChangeWorkload
	// Workload is the workload that owns it; nil when it is gone.
	Workload *Workload
	// Enrolled says that the namespace is under defense.
	Enrolled bool
	// Pods are the pods of the workload's current revision.
	Pods []Pod
	// Batches are all ChangePods of this object, of whatever attempt.
	Batches []v1alpha1.ChangePod
	// Others are the other ChangeWorkloads of the workload.
	Others []v1alpha1.ChangeWorkload
	// History are the successful versions of the workload that are remembered.
	History []Revision
	// Live says that the workload's labels and annotations were read from the
	// API server, not from a cache that may be behind.
	Live bool
	// Cluster identifies the cluster to AlterShield Server; empty when none is
	// configured.
	Cluster types.UID
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

// Event is an event to be told once the write it tells of has succeeded.
type Event struct {
	// Type is corev1.EventTypeNormal or EventTypeWarning.
	Type            string
	Reason, Message string
	// OfRelease: it is told of the release, too, not only of the workload.
	OfRelease bool
}

// ReleasePlan is what to do about a release. It is carried out in the order of
// its fields; each step may be the last one before a crash, and the next
// decision goes on from there.
type ReleasePlan struct {
	// NeedsLive: the rest was decided from a block that is there or not, once
	// for this turn of the release; a view of it that is behind must not
	// decide. Read the workload from the API server and decide again.
	NeedsLive bool
	// Spec is set when thresholds are to follow the settings.
	Spec *v1alpha1.ChangeWorkloadSpec
	// Batches to make. Their names are taken once made, so of two makers with
	// stale views only one succeeds.
	Batches []Batch
	// Action on the workload; in the same write Halt pauses its rollout, and
	// Resume takes the operator's own pause back.
	Action       WorkloadAction
	Halt, Resume bool
	// Told are the events of Action, to be told once it is done.
	Told []Event
	// Status is set when it is to be written.
	Status *v1alpha1.ChangeWorkloadStatus
	// Remember the template of this version as the newest that succeeded, and
	// Forget others.
	Remember bool
	Forget   []Revision
	// Remove are older releases this one has made obsolete.
	Remove []v1alpha1.ChangeWorkload
	// Events tell what was done.
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
	d := &release{ReleaseInput: in, status: in.Change.Status.DeepCopy()}
	switch standing := d.standing(); standing {
	case standingUnclear:
		return ReleasePlan{}
	case standingCurrent:
		d.follow()
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
	// batched are the pods in a batch of this attempt.
	batched map[types.UID]bool
	// removeIn is how long until obsolete releases go although their orders
	// have not ended; 0 when none waits for that.
	removeIn time.Duration
}

// standing is where a release stands towards its workload.
type standing string

const (
	standingCurrent  standing = "current"
	standingUnclear  standing = "unclear"
	standingReplaced standing = v1alpha1.ReasonReplaced
	standingDeleted  standing = v1alpha1.ReasonWorkloadDeleted
	standingLeft     standing = v1alpha1.ReasonUnmanaged
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
	if reason, ok := rolledBack(d.Workload, d.Change); ok && why == standingReplaced {
		d.rollBack(reason)
		return
	}
	if why != standingLeft || IsOpen(d.status.Status) {
		d.endOrder(v1alpha1.FinishCancel)
	}
	if !IsOpen(d.status.Status) {
		return
	}
	message := map[standing]string{
		standingReplaced: "a newer release replaced this one before it ended",
		standingDeleted:  "the workload is deleted",
		standingLeft:     "the workload left the defense",
	}[why]
	d.enter(v1alpha1.ChangeWorkloadCanceled, corev1.EventTypeNormal, "ReleaseCanceled", message)
	d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, string(why), "%s", message)
	d.leaveUnverified()
}

// leaveUnverified says of a release that ended that its verification, if it was
// under way, goes on no more.
func (d *release) leaveUnverified() {
	if said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionVerified); said != nil && said.Reason == v1alpha1.ReasonChecking {
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonReleaseEnded, "the release ended before its verification did")
	}
}

// rollBack ends a release whose workload was set back to another version.
func (d *release) rollBack(why QuarantineReason) {
	d.endOrder(v1alpha1.FinishRollback)
	if d.status.Status == v1alpha1.ChangeWorkloadRollback {
		return
	}
	message := fmt.Sprintf("rolled back to version %s; release a fix, this version is in quarantine: %s", why.To, why)
	d.enter(v1alpha1.ChangeWorkloadRollback, corev1.EventTypeWarning, "RolledBack", message)
	d.plan.Events[len(d.plan.Events)-1].OfRelease = true
	d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionTrue, why.Cause, "%s", message)
	d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonReplaced, "%s", message)
	d.leaveUnverified()
}

// follow carries a release on.
func (d *release) follow() {
	if d.status.Attempt == 0 || d.Change.Spec.Release > d.status.ObservedRelease {
		if !d.endBefore() {
			return
		}
		d.startAttempt()
	}
	d.explainOverrides()
	d.followOrder()
	if !IsVerified(d.status.Status) {
		d.plan.RequeueAfter = shortest(d.plan.RequeueAfter, d.explainHang())
		if d.Workload.Annotations[v1alpha1.HaltedAnnotation] != d.Change.Spec.Reversion {
			d.resume()
		}
		return
	}
	d.followSettings()
	if d.status.Status == v1alpha1.ChangeWorkloadInit {
		d.plan.RequeueAfter = shortest(d.untilUndefended(), d.explainHang())
		return
	}
	wait := d.sortPods()
	made := d.orderPreOver() && d.makeBatches()
	d.judge(made)
	d.resume()
	d.explain()
	d.requeueIn(shortest(wait, d.explainHang()))
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
	message := "verification of the release started"
	if d.status.Attempt > 1 {
		message = fmt.Sprintf("%s, attempt %d of this version", message, d.status.Attempt)
	}
	state := v1alpha1.ChangeWorkloadRunning
	if d.Cluster != "" {
		state = v1alpha1.ChangeWorkloadInit
		d.status.OrderID = OrderID(d.Cluster, d.Workload.UID, d.Change.Spec.Reversion, d.status.ObservedRelease, d.status.Attempt, d.Change.UID)
		d.status.OrderStage = v1alpha1.OrderSubmitting
	}
	d.enter(state, corev1.EventTypeNormal, "ReleaseStarted", message)
	if q := ParseQuarantine(d.Workload.Annotations); q.Holds(d.Change.Spec.Reversion) {
		d.event(corev1.EventTypeWarning, "QuarantineBypassed", describeQuarantine(d.Change.Spec.Reversion, q)+
			"; it got past admission all the same, is verified like any other, and not rolled back again by itself")
	}
}

// explainOverrides tells of settings of the workload's own that cannot be used,
// once for each that comes or changes.
func (d *release) explainOverrides() {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionOverridesAccepted)
	message := strings.Join(d.BadOverrides, "; ")
	switch {
	case message != "" && (said == nil || said.Status == metav1.ConditionTrue || said.Message != message):
		d.condition(v1alpha1.ConditionOverridesAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidOverride, "%s", message)
		d.event(corev1.EventTypeWarning, v1alpha1.ReasonInvalidOverride, message)
	case message == "" && said != nil && said.Status == metav1.ConditionFalse:
		d.condition(v1alpha1.ConditionOverridesAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "the settings of the workload's own are in force")
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

// sortPods puts every pod where it belongs. It returns how long until the next
// pod is finished by time alone.
func (d *release) sortPods() (wait time.Duration) {
	d.batched = map[types.UID]bool{}
	batches := slices.Clone(d.Batches)
	slices.SortFunc(batches, func(a, b v1alpha1.ChangePod) int { return cmp.Compare(BatchNumber(&a), BatchNumber(&b)) })
	for i := range batches {
		b := &batches[i]
		d.status.Batches = max(d.status.Batches, BatchNumber(b))
		// The release tells an attempt from one of the same number whose
		// status was never written.
		if b.Spec.Attempt != d.status.Attempt || b.Spec.Release != d.status.ObservedRelease {
			continue
		}
		for _, info := range b.Spec.PodInfos {
			d.batched[types.UID(info.UID)] = true
		}
		if b.Status.Status != v1alpha1.ChangePodExecuteDone {
			d.checking = append(d.checking, resultsOf(b.Spec.PodInfos)...)
			continue
		}
		passed, failed := batchResults(b)
		d.passed = append(d.passed, passed...)
		d.failed = append(d.failed, failed...)
	}

	// A failure stays one when its batch was deleted: only a corrected verdict
	// or another release undoes it.
	for i := range d.status.DefenseCheckFailPods {
		r := d.status.DefenseCheckFailPods[i]
		if uid := types.UID(r.UID); uid != "" && !d.batched[uid] {
			d.batched[uid] = true
			d.failed = append(d.failed, r)
		}
	}

	finishedBefore := map[string]bool{}
	for i := range d.status.DefensePreparingPods {
		finishedBefore[d.status.DefensePreparingPods[i].UID] = true
	}
	for i := range d.Pods {
		p := &d.Pods[i]
		if d.batched[p.UID] {
			continue
		}
		finished, left := p.Finished(d.Workload.MinReady, d.Now)
		if finished || finishedBefore[string(p.UID)] {
			d.preparing = append(d.preparing, *p)
		} else if left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
	}
	slices.SortFunc(d.preparing, func(a, b Pod) int {
		return cmp.Or(a.ReadySince.Compare(b.ReadySince), cmp.Compare(a.Name, b.Name))
	})
	return wait
}

// makeBatches makes as many full batches as there are pods for, and one of the
// rest when nothing more is to be waited for.
func (d *release) makeBatches() (made bool) {
	size := int(max(d.Settings.BatchSize, 1))
	for len(d.preparing) >= size {
		d.makeBatch(size)
		made = true
	}
	if len(d.preparing) > 0 && (d.Workload.Rollout.Complete || d.overdue()) {
		d.makeBatch(len(d.preparing))
		made = true
	}
	if made {
		d.status.EntryTime, d.status.EntryTimeUnix = FormatTime(d.Now), d.Now.Unix()
	}
	return made
}

func (d *release) makeBatch(size int) {
	d.status.Batches++
	b := Batch{Number: d.status.Batches, Attempt: d.status.Attempt, Release: d.status.ObservedRelease}
	for i := range d.preparing[:size] {
		p := &d.preparing[i]
		b.Pods = append(b.Pods, p.Info(d.Change.Spec.AppName))
		d.batched[p.UID] = true
	}
	d.checking = append(d.checking, resultsOf(b.Pods)...)
	d.preparing = d.preparing[size:]
	perBatch := max(d.Settings.BatchSize, 1)
	b.Total = max(b.Number, (d.Workload.Replicas+perBatch-1)/perBatch)
	b.Last = d.allBatched()
	d.plan.Batches = append(d.plan.Batches, b)
}

// allBatched says that every pod the workload is to have is there and in a
// batch.
func (d *release) allBatched() bool {
	live := 0
	for i := range d.Pods {
		if !d.Pods[i].live() {
			continue
		}
		if !d.batched[d.Pods[i].UID] {
			return false
		}
		live++
	}
	return live == int(d.Workload.Replicas)
}

func (d *release) deadline() time.Time {
	return time.Unix(d.status.EntryTimeUnix, 0).Add(d.Settings.Wait)
}

func (d *release) overdue() bool { return !d.Now.Before(d.deadline()) }

// judge moves the state, and says what that does to the workload.
func (d *release) judge(made bool) {
	before := d.status.Status
	switch {
	case len(d.failed) > 0 || d.failedOrder() != nil:
		d.fail(before)

	case d.allPassed() && (before == v1alpha1.ChangeWorkloadSuccess || d.orderPostOver()):
		if before != v1alpha1.ChangeWorkloadSuccess {
			d.plan.NeedsLive = !d.Live
			d.enter(v1alpha1.ChangeWorkloadSuccess, corev1.EventTypeNormal, "ReleaseSucceeded",
				fmt.Sprintf("all %d pods passed", len(d.passed)))
		}
		if d.orderPreOver() {
			// Also of one that was accepted after the release had succeeded.
			d.endOrder(v1alpha1.FinishSuccess)
		}
		d.succeed(before != v1alpha1.ChangeWorkloadSuccess)

	case d.allPassed() && before != v1alpha1.ChangeWorkloadSuspend:
		d.awaitOrderPost()
		if before != v1alpha1.ChangeWorkloadRunning {
			d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeNormal, "", "")
		}

	case before == v1alpha1.ChangeWorkloadSuspend:
		d.plan.NeedsLive = !d.Live
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeNormal, "VerdictCorrected", "nothing is failed any more; the release goes on")
		d.lift(d.ownBlock(), "the failing verdict was corrected")

	case before == v1alpha1.ChangeWorkloadSuccess:
		d.succeed(false)

	case d.waitsInVain(made):
		if before != v1alpha1.ChangeWorkloadTimeOutPreThreshold {
			d.enter(v1alpha1.ChangeWorkloadTimeOutPreThreshold, corev1.EventTypeNormal, "WaitTimedOut",
				fmt.Sprintf("no pod finished for %s; the next one is verified at once", d.Settings.Wait))
		}

	case before == v1alpha1.ChangeWorkloadTimeOutPreThreshold:
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeNormal, "", "")
	}
}

// fail suspends the release. Each new failure blocks the workload, unless it is
// blocked or blocking is off: a block is an act, so turning blocking on later,
// or lifting the block by hand, is not undone.
func (d *release) fail(before v1alpha1.ChangeWorkloadStatusType) {
	d.leaveHistory()
	isNew := before != v1alpha1.ChangeWorkloadSuspend || len(d.failed) > int(d.status.FailCount)
	if before != v1alpha1.ChangeWorkloadSuspend {
		message := d.describeOrder()
		if len(d.failed) > 0 {
			message = fmt.Sprintf("%d of %d verified pods failed; %s", len(d.failed), len(d.failed)+len(d.passed), describe(&d.failed[0]))
		}
		d.enter(v1alpha1.ChangeWorkloadSuspend, corev1.EventTypeWarning, "ReleaseSuspended", message)
	}
	if isNew && d.Settings.Blocking {
		d.plan.NeedsLive = !d.Live
		if !d.Workload.blocked() {
			d.plan.Action = BlockWorkload
			d.halt()
		}
	}
	if isNew && d.Settings.SelfHealing {
		d.explainSelfHealing()
	}
	if isNew && !d.Settings.Blocking {
		d.condition(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonBlockingDisabled,
			"the OpsConfigInfo blocking is turned off: releases of the workload go on")
	}
}

// halt pauses a rollout that is under way, together with the block. A pause of
// the user's is left alone; whoever resumes decides, since no failure after the
// one that blocked halts again.
func (d *release) halt() {
	if !d.Settings.Halting || d.Workload.Paused || d.Workload.Rollout.Complete {
		return
	}
	d.plan.Halt = true
	d.told(corev1.EventTypeWarning, "RolloutHalted", "the rollout is paused, because this version failed")
}

// resume takes the operator's pause back that lifting the block did not: of an
// older version, when this one passed the block or there is none any more, and
// of this one, when nothing of it is failed and somebody else lifted the block.
// Admission resumes in the request of the release, unless it was down.
func (d *release) resume() {
	w := d.Workload
	halted := w.Annotations[v1alpha1.HaltedAnnotation]
	if d.plan.Action != LeaveWorkload || !w.Paused || halted == "" {
		return
	}
	o, ok := ParseOverride(w.Annotations[v1alpha1.OverrideAnnotation])
	overrides := ok && o.Version == d.Change.Spec.Reversion
	if halted == d.Change.Spec.Reversion && (w.blocked() || len(d.failed) > 0 || d.failedOrder() != nil) ||
		halted != d.Change.Spec.Reversion && w.blocked() && !overrides {
		return
	}
	d.plan.NeedsLive = !d.Live
	d.plan.Action, d.plan.Resume = ResumeWorkload, true
	d.told(corev1.EventTypeNormal, "RolloutResumed", "the pause because of version "+halted+" is taken back")
}

// succeed lifts a block once a pod of this release has passed: any block when
// the release succeeds, later on those of the operator only, since whoever set
// another one meant it.
func (d *release) succeed(entered bool) {
	if len(d.passed) == 0 {
		return
	}
	d.decideHistory()
	lift := d.Workload.blocked() && (entered || hasOwnBlock(d.Workload))
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

// ownBlock says that the workload is blocked because of this release.
func (d *release) ownBlock() bool {
	return d.Workload.blocked() && d.Workload.Annotations[v1alpha1.SuspendedByAnnotation] == d.Workload.BlockedBy()
}

// remembersBlock says that this record was there when the block was set. One
// made later, because the first was deleted, knows nothing of the failure, so
// its success must not lift the block.
func (d *release) remembersBlock() bool {
	since, err := strconv.ParseInt(d.Workload.Labels[v1alpha1.SuspendLabel], 10, 64)
	return err != nil || d.Change.CreationTimestamp.Unix() <= since
}

func (d *release) lift(lift bool, why string) {
	if !lift {
		return
	}
	d.plan.NeedsLive = !d.Live
	d.plan.Action = LiftBlock
	d.told(corev1.EventTypeNormal, "BlockLifted", why)
	if d.Workload.haltedBy(d.Change.Spec.Reversion) {
		d.plan.Resume = true
		d.told(corev1.EventTypeNormal, "RolloutResumed", why)
	}
}

// explainBlock says whether this release blocks its workload. There is nothing
// to say of one that never failed.
func (d *release) explainBlock() {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionBlocked)
	failed := len(d.failed) > 0 || d.failedOrder() != nil
	reason := v1alpha1.ReasonPodFailed
	if len(d.failed) == 0 && failed {
		reason = v1alpha1.ReasonOrderCheckFailed
	}
	switch {
	case d.plan.Action == BlockWorkload, d.plan.Action != LiftBlock && d.ownBlock():
		d.condition(v1alpha1.ConditionBlocked, metav1.ConditionTrue, reason,
			"releases of the workload are blocked; release a repair with the label %s: %q", v1alpha1.IgnoredSuspendLabel, v1alpha1.IgnoredSuspendValue)
	case failed && d.Workload.blocked():
		d.condition(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonBlockedAlready,
			"the workload is blocked because of an earlier release")
	case said == nil || failed && said.Reason == v1alpha1.ReasonBlockingDisabled:
	case failed:
		d.condition(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonLifted, "the block was lifted by hand")
	case said.Status == metav1.ConditionTrue || said.Reason != v1alpha1.ReasonCorrected:
		d.condition(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonCorrected, "nothing of this release is failed any more")
	}
}

// allPassed says that the rollout is complete, with every pod it is to have,
// each of them seen, finished and passed.
func (d *release) allPassed() bool {
	if !d.Workload.Rollout.Complete || len(d.checking) > 0 || len(d.preparing) > 0 {
		return false
	}
	passed := map[string]bool{}
	for i := range d.passed {
		passed[d.passed[i].UID] = true
	}
	live := 0
	for i := range d.Pods {
		if !d.Pods[i].live() {
			continue
		}
		if !passed[string(d.Pods[i].UID)] {
			return false
		}
		live++
	}
	return live == int(d.Workload.Replicas)
}

// waitsInVain says that pods are still to come and none has for the wait
// threshold. A rollout that cannot move does not count: it says so itself.
func (d *release) waitsInVain(made bool) bool {
	if made || len(d.preparing) > 0 || !d.orderPreOver() || d.Workload.Paused || d.Workload.Rollout.Stuck {
		return false
	}
	return d.podsToCome() && d.overdue()
}

func (d *release) podsToCome() bool {
	live := 0
	for i := range d.Pods {
		if d.Pods[i].live() {
			live++
			if !d.batched[d.Pods[i].UID] {
				return true
			}
		}
	}
	// Also while the workload says complete and its pods have not been seen.
	return !d.Workload.Rollout.Complete || live < int(d.Workload.Replicas)
}

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
	s.DefenseCheckFailPods, s.FailCount = bounded(d.failed)

	d.explainBlock()
	w := d.Workload
	switch {
	case w.Rollout.Complete:
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRolloutComplete, "every pod runs this version and is available")
	case d.plan.Halt || w.haltedBy(d.Change.Spec.Reversion) && !d.plan.Resume:
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutHalted,
			"the operator paused the %s because this version failed: release a repair, correct the verdict, or resume it", w.Kind)
	case w.Paused && !d.plan.Resume:
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutPaused, "the %s is paused; the release goes on when it is resumed", w.Kind)
	case w.Rollout.Stuck:
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutStuck, "the rollout does not move: %s", w.Rollout.Message)
	default:
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRollingOut, "pods are being replaced")
	}

	switch {
	case len(d.failed) > 0:
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionFalse, v1alpha1.ReasonPodFailed, "%s", describe(&d.failed[0]))
	case d.failedOrder() != nil:
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionFalse, v1alpha1.ReasonOrderCheckFailed, "%s", d.describeOrder())
	case s.Status == v1alpha1.ChangeWorkloadSuccess && len(d.passed) == 0:
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonNothingVerified, "the release has no pods to verify; it lifts no block")
	case s.Status != v1alpha1.ChangeWorkloadSuccess && d.allPassed():
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonChecking, "every pod passed; the order's POST check goes on")
	case d.allPassed():
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionTrue, v1alpha1.ReasonAllPassed, "every pod passed")
	default:
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonChecking, "verification goes on")
	}
}

// explainSelfHealing says that a release that failed is to be rolled back, or why
// it is not.
func (d *release) explainSelfHealing() {
	target, refusal := selfHealingTarget(d.Workload, d.History)
	if refusal != "" {
		d.refuseRollback(refusal)
		return
	}
	d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionUnknown, v1alpha1.ReasonVerificationFailed,
		"the release failed and is rolled back to version %s", target.Version)
}

// explainHang says of a release whose pods do not come up why it is not rolled
// back, once. It returns when the next pod has had the time to come up.
func (d *release) explainHang() (wait time.Duration) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionRolledBack)
	failed := len(d.failed) > 0 || d.failedOrder() != nil
	refusal := ""
	if canHang(d.Workload, d.status.Status, d.Settings) {
		var pod *Pod
		if pod, wait = overdue(d.Now, d.Workload, d.status, d.Pods, d.Settings.RollbackAfter); pod != nil {
			_, refusal = runningTarget(d.Workload, d.Others)
			if refusal != "" {
				refusal = fmt.Sprintf("%s does not come up: %s; not rolled back: %s", pod.Name, pod.Hang, refusal)
			}
		}
	}
	switch {
	case failed:
	case refusal != "":
		d.refuseRollback(refusal)
	case said != nil && (said.Status == metav1.ConditionUnknown || said.Reason == v1alpha1.ReasonRollbackRefused && d.Workload.Rollout.Complete):
		// A container that crashes is up for moments, so nothing is over before the
		// rollout is.
		d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionFalse, v1alpha1.ReasonRecovered, "what failed or did not come up does not any more")
	}
	return wait
}

// refuseRollback tells it once, whatever becomes of the details.
func (d *release) refuseRollback(why string) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionRolledBack)
	if said != nil && said.Reason == v1alpha1.ReasonRollbackRefused {
		return
	}
	d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionFalse, v1alpha1.ReasonRollbackRefused, "%s", why)
	d.event(corev1.EventTypeWarning, v1alpha1.ReasonRollbackRefused, why)
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
	waiting := d.orderPreOver() && len(d.preparing) > 0 || d.status.Status == v1alpha1.ChangeWorkloadRunning && d.podsToCome() && !d.overdue()
	if waiting {
		again = shortest(again, max(d.deadline().Sub(d.Now), time.Second/10))
	}
	d.plan.RequeueAfter = shortest(again, d.removeIn)
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

// told is an event of the action on the workload.
func (d *release) told(eventType, reason, message string) {
	d.plan.Told = append(d.plan.Told, Event{Type: eventType, Reason: reason,
		Message: fmt.Sprintf("version %s: %s", d.Change.Spec.Reversion, message)})
}

func (d *release) condition(kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
	setCondition(&d.status.Conditions, d.Change.Generation, d.Now, kind, status, reason, format, args...)
}

// finish leaves out a status write that would change nothing.
func (d *release) finish() ReleasePlan {
	if !equality.Semantic.DeepEqual(d.status, &d.Change.Status) {
		d.status.ObservedGeneration = d.Change.Generation
		d.plan.Status = d.status
	}
	return d.plan
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

func bounded(results []v1alpha1.PodResult) (listed []v1alpha1.PodResult, count int32) {
	for i := range results[:min(len(results), maxListed)] {
		r := results[i]
		r.Message = cut(r.Message)
		listed = append(listed, r)
	}
	return listed, int32(len(results)) //nolint:gosec // a workload has far fewer pods
}

func resultsOf(infos []v1alpha1.PodInfo) []v1alpha1.PodResult {
	results := make([]v1alpha1.PodResult, len(infos))
	for i := range infos {
		results[i].PodInfo = infos[i]
	}
	return results
}

// BatchNumber reads the number of a batch, from 1, out of its name; 0 for a name
// that is none of ours.
func BatchNumber(b *v1alpha1.ChangePod) int32 {
	i := strings.LastIndex(b.Name, nameSeparator)
	if i < 0 {
		return 0
	}
	n, err := strconv.ParseInt(b.Name[i+len(nameSeparator):], 10, 32)
	if err != nil || n < 1 {
		return 0
	}
	return int32(n)
}
