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
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/hold"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// The hold of the rollout of a release: when it begins, how long it waits, and when the workload gets its own pace
// back.

// HoldCheck is the name and the type of the check of a release whose hold ran out where silence fails.
const HoldCheck = "hold"

// forHuman is how long a rollout is held where silence fails and the server waits for a human to accept the order.
const forHuman = 30 * 24 * time.Hour

// checkGrace is how long after its due time a check in the background may still report a failure.
const checkGrace = 5 * time.Second

// followHold makes the rollout of the release wait for its verdicts, and continue.
func followHold(d *release) {
	w := d.Workload
	d.plan.RequeueAfter = max(d.plan.RequeueAfter, 0) // overdue steps wait for events
	defer noteEvictions(d, false)
	lost := lostHold(d)
	begins := d.status.Attempt > 0 &&
		(d.status.Attempt != d.Change.Status.Attempt || d.status.ObservedRelease != d.Change.Status.ObservedRelease)
	switch {
	case d.status.ObservedRelease != d.Change.Spec.Release || d.plan.Action == LiftBlock:
		// The attempt has not begun, or the next turn is about its hold.
	case lost != nil:
		writeHold(d, lost)
	case w.Hold == nil && begins:
		beginHold(d)
	case w.Hold == nil:
		noteHoldGone(d)
		d.status.Hold = nil
	case d.Settings.Observe:
		// DecideWorkload ends the hold.
	case w.Hold.Over:
		endAgain(d)
	case !w.Hold.Own(w.Pace):
		endHold(d, v1alpha1.ReasonHoldEdited)
	case d.hasFailed() && !record.IsOpen(d.status.Status):
		endFailedHold(d)
	case d.status.Status == v1alpha1.ChangeWorkloadSuccess && (w.Hold.InSteps() || d.holding()):
		// The rollout is complete with its last wave, or another replica has seen that.
		endHold(d, v1alpha1.ReasonHoldVerified)
	case !record.IsOpen(d.status.Status), !mayHold(d), !w.Rolling, w.Replicas == 0, !d.holding() && !begins, isUndo(d):
		endHold(d, v1alpha1.ReasonReleaseEnded)
	default:
		followPace(d, begins)
	}
}

// lostHold returns the hold to write when its annotation was lost past admission, or replaced by the annotation of an
// earlier hold, for example by kubectl rollout undo; the release continues from there. A lost hold is recognized by the
// deadline that it set; nil if none was lost.
//
// A user may set the same deadline after the hold, so the record of a release counts only until the next release
// begins.
func lostHold(d *release) *workload.Hold {
	w, record, of := d.Workload, d.status.Hold, d.Change.Spec.Release
	if end, ok := workload.ParseHoldEnd(w.Annotations[v1alpha1.HoldEndedAnnotation]); w.Hold != nil && d.holding() || ok && end.Release == of {
		return nil
	}
	switch {
	case w.Pace.ByPartition:
		return lostPartition(w, record, of)
	case w.Pace.ByEviction:
		return nil // a user's own OnDelete looks the same
	}
	if record == nil && d.status.ObservedRelease != d.Change.Status.ObservedRelease {
		record, of = recordBefore(d.Others, of)
	}
	if record == nil || w.Hold != nil && w.Hold.Release == of || w.Pace.ProgressDeadlineSeconds != record.SetProgressDeadlineSeconds ||
		record.SetProgressDeadlineSeconds == record.ProgressDeadlineSeconds {
		return nil
	}
	own := workload.Pace{MinReadySeconds: record.MinReadySeconds, ProgressDeadlineSeconds: record.ProgressDeadlineSeconds}
	return &workload.Hold{Release: d.Change.Spec.Release, Until: v1alpha1.HoldNone, Pace: own, Set: w.Pace}
}

// recordBefore returns the hold record and the number of the release before this one; nil if that release was not held.
func recordBefore(others []v1alpha1.ChangeWorkload, this int64) (record *v1alpha1.HoldRecord, release int64) {
	for i := range others {
		if o := &others[i]; o.Spec.Release < this && o.Spec.Release > release {
			record, release = o.Status.Hold, o.Spec.Release
		}
	}
	return record, release
}

// lostPartition is lostHold for a hold by a partition. A user may set the same partition at any time, so only the
// partition of this release is recognized, while its hold has no recorded end.
func lostPartition(w *workload.Workload, record *v1alpha1.HoldRecord, release int64) *workload.Hold {
	if w.Hold != nil || record == nil || record.Partition == nil || record.SetPartition == nil ||
		*record.Partition == *record.SetPartition || *record.SetPartition != w.Pace.Partition {
		return nil
	}
	own := w.Pace
	own.Partition = *record.Partition
	return &workload.Hold{Release: release, Until: v1alpha1.HoldNone, Pace: own, Set: w.Pace}
}

// recordHold records the change of the hold in the status, where it is not lost with the workload's annotations.
func recordHold(d *release, h *workload.Hold) {
	if h.ByEviction {
		return // see lostHold
	}
	d.status.Hold = &v1alpha1.HoldRecord{
		MinReadySeconds: h.MinReadySeconds, ProgressDeadlineSeconds: h.ProgressDeadlineSeconds,
		SetProgressDeadlineSeconds: h.Set.ProgressDeadlineSeconds,
	}
	if h.ByPartition {
		d.status.Hold.Partition, d.status.Hold.SetPartition = ptr.To(h.Partition), ptr.To(h.Set.Partition)
	}
}

// beginHold holds the rollout of a release that admission did not hold: admission missed the release or the setting.
func beginHold(d *release) {
	w := d.Workload
	end, ended := workload.ParseHoldEnd(w.Annotations[v1alpha1.HoldEndedAnnotation])
	switch {
	case !d.Settings.Hold.Holds():
	case w.Pace == (workload.Pace{}):
		notHeld(d, "rollouts of a "+w.Kind()+" are not held")
	case !mayHold(d):
		notHeld(d, "the setting holding does not name daemonsets")
	case w.Pace.MaxSurge != "":
		notHeld(d, "a daemonset with maxSurge is not held")
	case ended && end.Release == d.Change.Spec.Release:
		noteHoldGone(d)
	case isUndo(d):
		notHeld(d, "the version succeeded before, and an undo is not held")
	case d.Settings.Observe:
		notHeld(d, "the workload is in observe mode")
		if replacesPods(d) {
			dryRun(d, v1alpha1.DryRunHold, "the rollout would have waited for its verdicts")
		}
	case !replacesPods(d):
		notHeld(d, "it replaces no pods while others run")
	default:
		own := w.Pace
		if d.plan.Resume {
			own = own.Resumed(w.Annotations)
		}
		hold := newHold(d, own)
		if hold == nil {
			notHeld(d, "its partition already limits the rollout to one batch")
			return
		}
		writeHold(d, hold)
		holdStarted(d, "; admission missed this release, and pods that are already available are not held")
	}
}

// newHold returns a hold of this release that begins now; nil if it would hold no pod.
func newHold(d *release, own workload.Pace) *workload.Hold {
	s := &d.Settings
	first := hold.Wave{Replicas: d.Workload.Replicas, Batch: s.BatchSize}
	return d.HoldSteps.OrDefault().Begin(d.Change.Spec.Release, own, s.Hold, s.HoldAtMost, first)
}

// replacesPods reports whether the rollout replaces pods while others run.
func replacesPods(d *release) bool {
	w := d.Workload
	return w.Rolling && w.Replicas > 0 && !w.Rollout.Complete && record.IsOpen(d.status.Status) &&
		slices.ContainsFunc(w.OldRevisions, func(old workload.OldRevision) bool {
			// While the revision of a first release is not known, its own pods are of another revision.
			return old.Replicas > 0 && (!w.Pace.ByEviction || old.Version != "" && old.Version != w.Version)
		})
}

// isUndo reports whether the release is of a version that succeeded, or that the operator restored: it has to be fast.
func isUndo(d *release) bool {
	return rollback.Remembered(d.History, d.Change.Spec.Reversion) || isRestored(d)
}

// isRestored reports whether the release is the operator's own rollback.
func isRestored(d *release) bool {
	for i := range d.Others {
		why, ok := rollback.RolledBack(d.Workload, &d.Others[i])
		if ok && why.To == d.Change.Spec.Reversion && d.Others[i].Spec.Release+1 == d.Change.Spec.Release {
			return true
		}
	}
	return false
}

func notHeld(d *release, why string) {
	d.condition(v1alpha1.ConditionHeld, metav1.ConditionFalse, v1alpha1.ReasonNotHeld, "%s", why)
}

func holdStarted(d *release, more string) {
	first := "all pods are"
	if d.Settings.Hold == v1alpha1.HoldFirstBatch {
		first = "the first pods are"
	}
	message := fmt.Sprintf("until %s verified, at most %s each time%s", first, d.Settings.HoldAtMost, more)
	d.event(corev1.EventTypeNormal, v1alpha1.EventHoldStarted, message)
	d.condition(v1alpha1.ConditionHeld, metav1.ConditionTrue, v1alpha1.ReasonWaitingForVerdicts, "%s", message)
}

// followPace decides when the next pods may be created.
func followPace(d *release, begins bool) {
	w := d.Workload
	if begins {
		holdStarted(d, "")
	}
	if !d.holding() {
		// Released past admission, while the release before was held.
		if hold := newHold(d, w.Hold.Kept(w.Pace)); hold != nil {
			hold.Was = &w.Pace // set by the hold before, not by a user
			writeHold(d, hold)
		} else {
			endHold(d, v1alpha1.ReasonReleaseEnded)
		}
		return
	}
	pods, again := heldPods(d)
	fails, _ := d.Settings.ServerSilence()
	atMost := d.Settings.HoldAtMost
	if fails && d.status.Status == v1alpha1.ChangeWorkloadInit {
		atMost = forHuman // nothing fails before the server accepts the order
	}
	plan := hold.Decide(hold.Input{
		Now: d.Now, Hold: w.Hold, Until: d.Settings.Hold, AtMost: atMost, Times: d.HoldSteps.OrDefault(),
		Replicas: w.Replicas, Made: w.RevisionReplicas, Pods: pods, MinReady: w.MinReady, Batch: d.Settings.BatchSize, Nodes: nodesOf(d),
	})
	if plan = mayEvict(d, plan); d.plan.NeedsPlaces {
		return
	}
	noteEvictions(d, plan.Waiting > 0 || plan.Missing > 0)
	again = times.Shortest(again, plan.Again)
	d.plan.RequeueAfter = times.Shortest(d.plan.RequeueAfter, again)
	stuckIn, stuck := stuckIn(d)
	d.plan.RequeueAfter = times.Shortest(d.plan.RequeueAfter, max(stuckIn, 0))
	switch {
	case plan.RanOut > 0 && fails:
		failHold(d, plan.RanOut)
		return
	case plan.Missing > 0 && stuck && stuckIn <= 0:
		endHold(d, v1alpha1.ReasonHoldStuck)
		return
	case plan.Stuck:
		endHold(d, v1alpha1.ReasonHoldStuck)
		return
	case plan.Done && plan.RanOut > 0:
		ranOut(d, plan.RanOut)
		endHold(d, v1alpha1.ReasonHoldRanOut)
		return
	case plan.Done:
		endHold(d, v1alpha1.ReasonHoldVerified)
		return
	case plan.Set != nil:
		if plan.Opens && plan.RanOut > 0 {
			ranOut(d, plan.RanOut)
		}
		is := w.Pace
		plan.Set.Was = &is
		writeHold(d, plan.Set)
	case w.Pace != w.Hold.Set:
		writeHold(d, w.Hold) // the last write was not carried out
	default:
		recordHold(d, w.Hold)
	}
	d.plan.Evict = plan.Evict
	if len(pods) > 0 || d.LivePlaces || w.Pace.ByEviction && w.Revision == "" { // until then, the message of holdStarted is right
		explainHold(d, &plan)
	}
}

// stuckIn returns how long until the wave has waited long enough for a pod of an earlier version that is not Ready: a
// StatefulSet then creates no pods of the wave. Stuck is false if all such pods are Ready.
func stuckIn(d *release) (left time.Duration, stuck bool) {
	w := d.Workload
	unready := func(old workload.OldRevision) bool { return old.Ready < old.Replicas-old.Lost }
	if !w.Pace.ByPartition || !slices.ContainsFunc(w.OldRevisions, unready) {
		return 0, false
	}
	since := time.Unix(max(d.status.StartTimeUnix, w.Hold.OpenedAt), 0)
	return since.Add(d.Settings.RollbackAfter).Sub(d.Now), true
}

// explainHold sets the awaited verdicts. Between two waves, it describes the next wave.
func explainHold(d *release, p *hold.Plan) {
	until, message := p.Since.Add(d.Settings.HoldAtMost+d.Workload.MinReady), ""
	switch {
	case p.Over && !p.Opens:
		return // the message was set when the rollout continued
	case p.Over && p.RanOut > 0:
		message = describeRanOut(d.Settings.HoldAtMost, p.RanOut) + "; the rollout continues"
	case p.Over:
		message = "the pods are verified; the rollout continues"
	case d.Workload.Pace.ByEviction && d.Workload.Revision == "":
		message = "the " + d.Workload.Kind() + " controller has not recorded this version yet"
	case p.Waiting == 0 && d.Workload.Pace.ByEviction:
		message = "the operator evicts the next pods, as far as maxUnavailable and PodDisruptionBudgets allow"
	case p.Waiting == 0 && p.RanOut > 0:
		message = describeRanOut(d.Settings.HoldAtMost, p.RanOut) + "; the rollout continues when they are Ready"
	case p.Waiting == 0:
		message = "all pods so far are verified; the next pods are not created yet"
	case !d.Now.Before(until):
		message = fmt.Sprintf("for %d pods that are not Ready since %s, without a limit",
			p.Waiting, times.Format(p.Since))
	default:
		message = fmt.Sprintf("for %d verdicts since %s, at most until %s", p.Waiting, times.Format(p.Since), times.Format(until))
	}
	message += describeDown(p.Down)
	d.condition(v1alpha1.ConditionHeld, metav1.ConditionTrue, v1alpha1.ReasonWaitingForVerdicts, "%s", message)
}

func describeRanOut(atMost time.Duration, pods int) string {
	return fmt.Sprintf("%d pods have no verdict after %s", pods, atMost)
}

func ranOut(d *release, pods int) {
	d.actionEvent(corev1.EventTypeWarning, v1alpha1.EventHoldEnded,
		describeRanOut(d.Settings.HoldAtMost, pods)+"; the rollout continues without them, as silence does not fail")
}

// failHold fails the release because its pods have no verdict.
func failHold(d *release, pods int) {
	c := v1alpha1.CheckStatus{
		Name: HoldCheck, Type: HoldCheck, Mode: v1alpha1.ModeEnforce, Phase: v1alpha1.CheckNoData, OnSilence: v1alpha1.SilenceFails,
		Reason: v1alpha1.ReasonHoldRanOut, Message: describeRanOut(d.Settings.HoldAtMost, pods) + ", and silence fails",
		StartTime: times.Of(time.Unix(d.status.StartTimeUnix, 0)),
	}
	if record.FindCheck(d.status.Checks, HoldCheck) == nil {
		record.SetCheck(&d.status.Checks, c, d.Now)
		d.event(corev1.EventTypeWarning, v1alpha1.EventHoldEnded, c.Message)
		d.plan.RequeueAfter = time.Second / 10
	}
}

// heldPods returns the pods of the release for a hold, and how long until time alone verifies one more.
func heldPods(d *release) (pods []workload.HeldPod, again time.Duration) {
	verified := map[types.UID]int64{}
	for i := range d.Batches {
		b := &d.Batches[i]
		if !d.ofAttempt(b) || b.Status.Status != v1alpha1.ChangePodExecuteDone {
			continue
		}
		if left := watched(d.Now, d.Since, b); left > 0 {
			again = times.Shortest(again, left)
			continue
		}
		passed, _ := record.BatchResults(b)
		for j := range passed {
			verified[types.UID(passed[j].UID)] = b.Spec.CreateTimeUnix
		}
	}
	for i := range d.Pods {
		p := &d.Pods[i]
		if !p.Live() {
			continue
		}
		made, ok := verified[p.UID]
		h := workload.HeldPod{
			Created: times.Latest(p.Created, time.Unix(d.status.StartTimeUnix, 0)), Verified: ok, Index: p.Index,
			Node: p.Seat(), Down: p.Lost || d.Down[p.Node],
		}
		if !p.Ready {
			h.UnreadySince = p.Bounded(p.UnreadySince, d.Now)
		} else {
			// The ReplicaSet controller counts like this, also if the kubelet's clock is behind.
			h.ReadySince = p.ReadySince
			if p.ReadySince.After(d.Now) {
				h.ReadySince = d.Now
			}
			if d.Workload.Pace.InSteps() {
				// Here the age of a pod only assigns it to a wave.
				h.ReadySince = p.Bounded(p.ReadySince, d.Now)
			}
			h.Flapped = ok && h.ReadySince.After(time.Unix(made, 0).Add(workload.ClockTolerance))
		}
		pods = append(pods, h)
	}
	return pods, again
}

// watched returns how long a check in the background still watches a batch that is done; 0 for none. A passing check
// writes nothing, so its time decides. Measurements of an earlier process are lost: a check that measures, instead of
// reading records, begins again with this process.
func watched(now, since time.Time, b *v1alpha1.ChangePod) (left time.Duration) {
	for i := range b.Status.Checks {
		c := &b.Status.Checks[i]
		if !c.Background || c.Mode == v1alpha1.ModeObserve || !record.CheckMayGoOn(c) {
			continue
		}
		over := times.OrZero(c.Deadline)
		if c.Phase == v1alpha1.CheckWatching {
			over = times.OrZero(c.DueTime)
			if began := times.OrZero(c.StartTime); c.Type != v1alpha1.CheckTypePodHealth && since.After(began) {
				over = times.Latest(over, since.Add(over.Sub(began)))
			}
		}
		left = max(left, over.Add(checkGrace).Sub(now))
	}
	return left
}

// writeHold changes the pace of the rollout, in the write of the other action on the workload, if any.
func writeHold(d *release, set *workload.Hold) {
	d.plan.Hold = &HoldChange{Set: set}
	if set != nil {
		recordHold(d, set)
	}
	if d.plan.Action == LeaveWorkload {
		d.plan.Action = PaceWorkload
	}
}

// endHold restores the workload's own pace, and records why.
func endHold(d *release, reason string) {
	end := workload.HoldEnd{Release: d.Change.Spec.Release, Reason: reason}
	if reason == v1alpha1.ReasonHoldEdited {
		end.User = workload.UnknownUser
	}
	writeHold(d, nil)
	d.plan.Hold.End = end
	d.actionEvent(corev1.EventTypeNormal, v1alpha1.EventHoldEnded, end.Describe()+describeNumbers(d.Workload))
	noteHoldEnd(d, end, describeNumbers(d.Workload))
}

// noteHoldEnd records that a hold ended. The catalog explains why, except which user did it.
func noteHoldEnd(d *release, end workload.HoldEnd, more string) {
	by := more
	if end.Reason == v1alpha1.ReasonHoldEdited {
		by = "by " + cmp.Or(end.User, workload.UnknownUser) + more
	}
	d.condition(v1alpha1.ConditionHeld, metav1.ConditionFalse, end.Reason, "%s", by)
}

// endAgain repeats the end of a hold that admission missed.
func endAgain(d *release) {
	end, ok := workload.ParseHoldEnd(d.Workload.Annotations[v1alpha1.HoldEndedAnnotation])
	if !ok || end.Release != d.Change.Spec.Release {
		end = workload.HoldEnd{Release: d.Change.Spec.Release, Reason: v1alpha1.ReasonReleaseEnded}
	}
	writeHold(d, nil)
	d.plan.Hold.End = end
}

// endFailedHold restores the workload's own pace, and pauses the rollout in the same write: a user who resumes it gets
// that pace.
func endFailedHold(d *release) {
	if d.Settings.Blocking && !d.Workload.Paused && !d.plan.Halt {
		haltRollout(d)
	}
	endHold(d, v1alpha1.ReasonVerificationFailed)
}

// noteHoldGone reports, once, why a hold is gone. Without a recorded end, the workload left the defense.
func noteHoldGone(d *release) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionHeld)
	end, ended := workload.ParseHoldEnd(d.Workload.Annotations[v1alpha1.HoldEndedAnnotation])
	ended = ended && end.Release == d.Change.Spec.Release
	if said != nil && said.Status == metav1.ConditionFalse || said == nil && !ended {
		return
	}
	if !ended {
		end = workload.HoldEnd{Reason: v1alpha1.ReasonReleaseEnded}
	}
	d.event(corev1.EventTypeNormal, v1alpha1.EventHoldEnded, end.Describe())
	noteHoldEnd(d, end, "")
}
