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

package server

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/times"
)

// DecideBatch decides about a batch. [AnswerBatch] writes the answer to a call into the status.
//
// Without a server the batch ends at once as Skipped, and its pods pass, unless a user wrote a verdict
// on a pod. A batch that is done does not change, except by a late failing verdict.
func DecideBatch(in BatchInput) BatchPlan {
	b := newBatch(in)
	b.decide()
	return b.finish()
}

// AnswerBatch writes the server's answer to a call about a batch into its status.
func AnswerBatch(in BatchInput, call Call, a Answer) BatchPlan {
	b := newBatch(in)
	switch {
	case b.status.Status != v1alpha1.ChangePodExecuteDone:
		b.take(b.entry().said(call, a, in.Now), a)
	case call == CallFinish:
		b.endAnswered(a)
	default: // it was done before the answer came
	}
	return b.finish()
}

func (b *batch) decide() {
	s := b.status
	if s.Status == v1alpha1.ChangePodExecuteDone {
		b.applyLate()
		b.notifyEnd()
		return
	}
	if b.Change == nil || b.Change.DeletionTimestamp != nil || b.Batch.Spec.Attempt > b.Change.Status.Attempt {
		// The cache is behind, or the release is gone.
		return
	}
	b.claim(v1alpha1.StagePre, &s.PreVerdict)
	b.claim(v1alpha1.StagePost, &s.PostVerdict)
	stage, verdict := b.verdict()
	switch order := b.Change.Status.OrderStage; {
	case b.counts(verdict):
		b.judged(stage, verdict)
	case b.serverOver():
		b.conclude()
	case !b.current() || !record.IsVerified(b.Change.Status.Status):
		b.end(v1alpha1.ChangePodMessageSkipped, metav1.ConditionFalse, v1alpha1.ReasonReleaseEnded, "its pods pass without a check")
	case !b.Server, order == v1alpha1.OrderNone:
		b.end(v1alpha1.ChangePodMessageSkipped, metav1.ConditionFalse, v1alpha1.ReasonNoServer, "the pods pass without a check")
	case order == v1alpha1.OrderSubmitting, order == v1alpha1.OrderDenied, order == v1alpha1.OrderRefused:
		b.awaitOrder()
	default:
		b.check()
	}
}

// verdict returns the verdict that ends the batch: any failing verdict, or the verdict on its POST
// check; nil for none.
func (b *batch) verdict() (v1alpha1.CheckStage, *v1alpha1.CheckVerdict) {
	for _, stage := range []v1alpha1.CheckStage{v1alpha1.StagePre, v1alpha1.StagePost} {
		if v := VerdictOf(b.status, stage); v != nil && record.VerdictFails(v.Verdict) {
			return stage, v
		}
	}
	return v1alpha1.StagePost, b.status.PostVerdict
}

// counts reports whether there is a verdict that needs no confirmation.
func (b *batch) counts(v *v1alpha1.CheckVerdict) bool {
	return v != nil && (!b.entry().confirm || !deliveredAsPass(v))
}

// awaitOrder handles a batch whose order the server has not accepted. A release that runs without
// checks does not wait. After its success, new pods delay nothing, so their batch waits for the order.
func (b *batch) awaitOrder() {
	message := "AlterShield Server has not accepted the order of the release: " + record.StepMessage(&b.Change.Status, v1alpha1.StepAccepted)
	left := time.Unix(b.Batch.Spec.CreateTimeUnix, 0).Add(b.Settings.PreTimeout).Sub(b.Now)
	if b.Change.Status.Status == v1alpha1.ChangeWorkloadSuccess && b.Change.Status.OrderStage != v1alpha1.OrderRefused && left > 0 {
		b.preWait(v1alpha1.ReasonOrderNotAccepted, message)
		b.plan.RequeueAfter = left
		return
	}
	b.silent(v1alpha1.StagePre, v1alpha1.ReasonOrderNotAccepted, message)
}

// check makes the next step of the batch's entry.
func (b *batch) check() {
	s := b.status
	switch s.Status {
	case v1alpha1.ChangePodPreFailed, v1alpha1.ChangePodPreTimeout, v1alpha1.ChangePodPostFailed, v1alpha1.ChangePodPostTimeout,
		v1alpha1.ChangePodPostFinish, v1alpha1.ChangePodExecuteDone:
		// The operator never stores these states, since it writes such a batch as done. If a
		// user wrote one, the batch ends with it.
		if s.Message == "" {
			s.Message = string(s.Status)
		}
		s.Status = v1alpha1.ChangePodExecuteDone
	default:
		b.take(drive(b.entry(), b.Now, b.Calls, &b.plan), Answer{})
	}
}

// take writes a turn of the batch's entry into the status.
func (b *batch) take(t turn, a Answer) {
	s := b.status
	switch t.to {
	case turnNone:
	case turnStarted:
		b.started(a)
	case turnNotStarted:
		b.preWait(t.reason, t.message)
	case turnPreOver:
		b.over(v1alpha1.StagePre, t)
	case turnFinished:
		b.plan.Ended = true
		if s.Status != v1alpha1.ChangePodPostSubmitted {
			b.postSubmitted()
		}
		if b.nothingToCheck() {
			b.skipped(nothingToCheck)
		}
	case turnNotFinished:
		s.Status = v1alpha1.ChangePodPostWait
		record.ConditionsOfBatch(s, b.Batch.Generation, b.Now).SetReason(v1alpha1.ConditionSubmitted, metav1.ConditionFalse, t.reason, t.message)
	case turnPostOver:
		b.over(v1alpha1.StagePost, t)
	}
}

// over ends a check of the batch.
func (b *batch) over(stage v1alpha1.CheckStage, t turn) {
	switch {
	case t.reason == v1alpha1.ReasonSkipped:
		b.skipped(t.message)
	case t.passed() && stage == v1alpha1.StagePre:
		b.postSubmitted()
	case t.passed() && b.status.PostVerdict != nil:
		b.judged(stage, b.status.PostVerdict)
	case t.passed():
		b.results(record.VerdictPass, "", false)
		b.end(v1alpha1.ChangePodMessagePostFinish, metav1.ConditionTrue, v1alpha1.ReasonPassed, "the POST check passed when asked")
	default:
		b.silent(stage, t.reason, t.message)
	}
}

// claim takes a verdict that arrived before the entry of the batch was known.
func (b *batch) claim(stage v1alpha1.CheckStage, into **v1alpha1.CheckVerdict) {
	if b.status.ChangePodID == "" {
		return
	}
	for i := range b.Change.Status.UnclaimedVerdicts {
		u := &b.Change.Status.UnclaimedVerdicts[i]
		if u.NodeID == b.status.ChangePodID && u.Stage == stage && record.IsWorse(*into, u.CheckVerdict) {
			*into = u.CheckVerdict.DeepCopy()
		}
	}
}

// applyLate applies a failing verdict that came after the batch was done, while its attempt is
// current. Later only a user changes the results.
func (b *batch) applyLate() {
	s := b.status
	if b.Change == nil || !b.current() {
		return
	}
	b.claim(v1alpha1.StagePre, &s.PreVerdict)
	b.claim(v1alpha1.StagePost, &s.PostVerdict)
	if b.serverFailed() {
		return
	}
	if stage, v := b.verdict(); v != nil && record.VerdictFails(v.Verdict) {
		b.judged(stage, v)
	}
}

// serverFailed reports whether a failing verdict of the server was applied. If the condition says that
// a check failed, and no check of a policy did, then the server's check failed.
func (b *batch) serverFailed() bool {
	if c := record.FindCheck(b.status.Checks, record.ServerCheck); c != nil && c.Phase == v1alpha1.CheckFailed {
		return true
	}
	c := meta.FindStatusCondition(b.status.Conditions, v1alpha1.ConditionChecked)
	return c != nil && c.Reason == v1alpha1.ReasonCheckFailed && record.FailedCheck(b.status.Checks) == nil
}

// judged ends the batch with a verdict of the server.
func (b *batch) judged(stage v1alpha1.CheckStage, v *v1alpha1.CheckVerdict) {
	// With a verdict, the condition that it could not be submitted is obsolete.
	if meta.IsStatusConditionFalse(b.status.Conditions, v1alpha1.ConditionSubmitted) {
		meta.RemoveStatusCondition(&b.status.Conditions, v1alpha1.ConditionSubmitted)
	}
	if !record.VerdictFails(v.Verdict) {
		b.results(v.Verdict, v.Message, false)
		b.end(v1alpha1.ChangePodMessagePostFinish, metav1.ConditionTrue, v1alpha1.ReasonPassed, "the "+string(stage)+" check passed")
		return
	}
	b.results(v.Verdict, v.Message, true)
	b.end(v1alpha1.ChangePodMessagePostFinish, metav1.ConditionTrue, v1alpha1.ReasonCheckFailed, record.FailureOf(stage, v))
}

// silent ends the batch without a verdict, because a check got none in time or could not be submitted: its pods
// pass, unless the setting silence is fail.
func (b *batch) silent(stage v1alpha1.CheckStage, reason, message string) {
	late, how := reason == v1alpha1.ReasonNoVerdict, v1alpha1.ChangePodPreFailed
	switch {
	case !late && b.nothingToCheck():
		b.skipped(message)
		return
	case stage == v1alpha1.StagePre && late:
		how = v1alpha1.ChangePodPreTimeout
	case late:
		how = v1alpha1.ChangePodPostTimeout
	case stage == v1alpha1.StagePost:
		how = v1alpha1.ChangePodPostFailed
	}
	if fails, by := b.Settings.ServerSilence(); fails {
		b.results(record.VerdictInconclusive, silence(b.Now, message).Message, true)
		message += ": the pods fail, as " + by + " says"
	} else {
		message += ": the pods pass without a verdict"
	}
	b.end(string(how), metav1.ConditionFalse, reason, message)
	b.warn(v1alpha1.EventCheckError, message)
}

// results writes a verdict on every pod of the batch, or without all only on pods without a result.
func (b *batch) results(verdict, message string, all bool) {
	passed, failed := record.BatchResults(b.Batch)
	b.status.PodResults = nil
	for _, r := range append(failed, passed...) {
		if all || r.Verdict == "" {
			r.Verdict, r.Message = verdict, message
		}
		b.status.PodResults = append(b.status.PodResults, r)
	}
}

// end ends the server's part in the batch. Pods without a result pass.
func (b *batch) end(how string, checked metav1.ConditionStatus, reason, message string) {
	s := b.status
	s.Message = how
	if len(s.PodResults) < len(b.Batch.Spec.PodInfos) {
		b.results(record.VerdictNone, how, false)
	}
	b.condition(v1alpha1.ConditionChecked, checked, reason, message)
	if b.Server || len(b.others) > 0 || reason == v1alpha1.ReasonCheckFailed {
		record.SetCheck(&s.Checks, v1alpha1.CheckStatus{
			Name: record.ServerCheck, Phase: endPhase(reason), Reason: reason, Message: message,
			StartTime: times.Of(times.FromUnix(s.PreSubmitTimeUnix)),
		}, b.Now)
	}
	b.conclude()
}

// endPhase returns the phase of the server's check by the reason of the condition.
func endPhase(reason string) v1alpha1.CheckPhase {
	switch reason {
	case v1alpha1.ReasonPassed:
		return v1alpha1.CheckPassed
	case v1alpha1.ReasonCheckFailed:
		return v1alpha1.CheckFailed
	case v1alpha1.ReasonSkipped, v1alpha1.ReasonNoServer:
		return v1alpha1.CheckSkipped
	case v1alpha1.ReasonReleaseEnded:
		return v1alpha1.CheckCanceled
	case v1alpha1.ReasonNoVerdict:
		return v1alpha1.CheckNoData
	default:
		return v1alpha1.CheckError
	}
}

// serverOver reports whether the server's check of the batch is over.
func (b *batch) serverOver() bool {
	c := record.FindCheck(b.status.Checks, record.ServerCheck)
	return c != nil && record.CheckIsOver(c)
}

// noteServer writes the progress of the server's check into the status.
func (b *batch) noteServer() {
	s := b.status
	phase := v1alpha1.CheckRunning
	switch s.Status {
	case v1alpha1.ChangePodExecuteDone:
		return
	case v1alpha1.ChangePodInit, v1alpha1.ChangePodPreWait:
		phase = v1alpha1.CheckPending
	default:
	}
	if !b.Server || b.serverOver() || equality.Semantic.DeepEqual(b.status, &b.Batch.Status) {
		return
	}
	record.SetCheck(&s.Checks, v1alpha1.CheckStatus{
		Name: record.ServerCheck, Phase: phase, Reason: string(s.Status), StartTime: times.Of(times.FromUnix(s.PreSubmitTimeUnix)),
	}, b.Now)
}

func (b *batch) started(a Answer) {
	s, preOver := b.status, b.preOver()
	if preOver || s.Status == v1alpha1.ChangePodPreSubmitted {
		b.condition(v1alpha1.ConditionSubmitted, metav1.ConditionTrue, v1alpha1.ReasonStartedAgain, lostEntry(s.ChangePodID, a.NodeID))
	} else {
		s.PreSubmitTime, s.PreSubmitTimeUnix = times.Format(b.Now), b.Now.Unix()
		s.PreTimeoutThreshold, s.PostTimeOutThreshold = int64(b.Settings.PreTimeout/time.Second), int64(b.Settings.PostTimeout/time.Second)
		b.submitted()
	}
	s.Status, s.ChangePodID, s.URL, s.OrderID = v1alpha1.ChangePodPreSubmitted, a.NodeID, a.URL, b.Change.Status.OrderID
	if !a.SkipCheck {
		if preOver {
			b.postSubmitted()
		}
		return
	}
	// Its end is notified as well. Nothing waits for a verdict, but a verdict counts.
	b.condition(v1alpha1.ConditionChecked, metav1.ConditionUnknown, v1alpha1.ReasonSkipped, nothingToCheck)
	if a.NodeID == "" {
		b.skipped(nothingToCheck)
		return
	}
	b.postSubmitted()
}

// preOver reports whether the batch is at its POST check, or waits for it.
func (b *batch) preOver() bool {
	return b.status.Status == v1alpha1.ChangePodPostWait || b.status.Status == v1alpha1.ChangePodPostSubmitted
}

// preWait writes why the batch is not submitted yet.
func (b *batch) preWait(reason, message string) {
	s := b.status
	s.Status = v1alpha1.ChangePodPreWait
	if s.PreSubmitTimeUnix == 0 {
		s.PreSubmitTime, s.PreSubmitTimeUnix = times.Format(b.Now), b.Now.Unix()
	}
	record.ConditionsOfBatch(s, b.Batch.Generation, b.Now).SetReason(v1alpha1.ConditionSubmitted, metav1.ConditionFalse, reason, message)
}

// postSubmitted writes that the POST check runs. If the end of the batch is not notified yet, its
// time begins as well.
func (b *batch) postSubmitted() {
	s := b.status
	s.Status = v1alpha1.ChangePodPostSubmitted
	s.PostSubmitTime, s.PostSubmitTimeUnix = times.Format(b.Now), b.Now.Unix()
	b.submitted()
}

// submitted resets the condition that the batch could not be submitted.
func (b *batch) submitted() {
	if meta.FindStatusCondition(b.status.Conditions, v1alpha1.ConditionSubmitted) != nil {
		b.condition(v1alpha1.ConditionSubmitted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	}
}

func (b *batch) skipped(message string) {
	b.end(v1alpha1.ChangePodMessageSkipped, metav1.ConditionFalse, v1alpha1.ReasonSkipped, message)
}

// NoteCheck writes the status of a check of a policy into the status of a batch. If the check fails
// after the batch is done, it fails the pods like a late verdict.
func NoteCheck(in BatchInput, c v1alpha1.CheckStatus) BatchPlan {
	b := newBatch(in)
	known := record.FindCheck(b.status.Checks, c.Name)
	if known == nil || record.CheckIsOver(known) && known.Phase != v1alpha1.CheckWatching || !record.IsCurrentBatch(b.Change, b.Batch) {
		return BatchPlan{}
	}
	before := *known
	record.SetCheck(&b.status.Checks, c, b.Now)
	now := record.FindCheck(b.status.Checks, c.Name)
	if !equality.Semantic.DeepEqual(before, *now) {
		b.emit(&before, now)
	}
	switch {
	case b.status.Status != v1alpha1.ChangePodExecuteDone:
		if b.serverOver() {
			b.conclude()
		}
	case now.Phase == v1alpha1.CheckFailed && now.Mode != v1alpha1.ModeObserve:
		// Failures of other checks are not applied again: a user may have corrected them.
		b.failedBy(now)
	case now.Phase != before.Phase && record.SilentCheck(b.status.Checks, []string{c.Name}, b.Settings.SilenceFails) != nil:
		b.failedBy(now)
	}
	return b.finish()
}

func newBatch(in BatchInput) *batch {
	b := &batch{BatchInput: in, status: in.Batch.Status.DeepCopy(), mayBegin: in.Begin}
	if !b.begins() {
		b.Begin = nil
	}
	for i := range b.Begin {
		if c := &b.Begin[i].Status; !c.Background {
			b.others = append(b.others, c.Name)
		}
	}
	for i := range b.status.Checks {
		if c := &b.status.Checks[i]; c.Name != record.ServerCheck && !c.Background {
			b.others = append(b.others, c.Name)
		}
	}
	return b
}

func (b *batch) finish() BatchPlan {
	b.noteServer()
	if !equality.Semantic.DeepEqual(b.status, &b.Batch.Status) {
		b.begin()
		b.beginPending()
	}
	if !equality.Semantic.DeepEqual(b.status, &b.Batch.Status) {
		b.status.UpdateTime, b.status.UpdateTimeUnix = times.Format(b.Now), b.Now.Unix()
		b.plan.Status = b.status
	}
	return b.plan
}
