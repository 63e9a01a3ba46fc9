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
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// BatchInput is what a decision about a batch is made from.
type BatchInput struct {
	Now      time.Time
	Settings settings.Settings
	Batch    *v1alpha1.ChangePod
	// Change is the release of the batch; nil when it is not there.
	Change *v1alpha1.ChangeWorkload
	// Server says that a server is configured.
	Server bool
	// Begin are the checks by other verifiers that begin with the batch. It is done
	// when they, and those that its status names, are over, too, but for those in
	// the background.
	Begin []BeginCheck
	// Calls is what this process knows of its calls about the batch.
	Calls Calls
}

// BatchPlan is what to do about a batch.
type BatchPlan struct {
	// Status is set when it is to be written, before anything else is done.
	Status *v1alpha1.ChangePodStatus
	// Call to the server, if any, and whether it is the last try.
	Call Call
	Last bool
	// Ended: the server has the end of the batch; to be remembered as
	// [Calls.Ended].
	Ended bool
	// Events say what was done; they are emitted after the status is written.
	Events []Event
	// RequeueAfter says when to look again, if nothing happens before.
	RequeueAfter time.Duration
}

// DecideBatch says what becomes of a batch. The answer to a call is put into the
// status by [AnswerBatch].
//
// Without a server there is nobody to ask: the batch ends at once as Skipped,
// and its pods pass, unless somebody has written a verdict on one already. A
// batch that is done stays as it is, whatever its results say, but for a failing
// verdict that came late.
func DecideBatch(in BatchInput) BatchPlan {
	b := newBatch(in)
	b.decide()
	return b.finish()
}

// AnswerBatch puts the server's answer to a call about a batch into its status.
func AnswerBatch(in BatchInput, call Call, a Answer) BatchPlan {
	b := newBatch(in)
	switch {
	case call == CallStart && a.Kind == AnswerDone && b.preOver() && b.entry().mayStartAgain(in.Now):
		b.started(a) // a second entry, and the verdict on the first one came before this answer
	case b.status.Status != v1alpha1.ChangePodExecuteDone:
		b.take(b.entry().said(call, a, in.Now), a)
	case call == CallFinish:
		b.endAnswered(a)
	default: // it was done before the answer came
	}
	return b.finish()
}

// batch is a decision in the making.
type batch struct {
	BatchInput
	status *v1alpha1.ChangePodStatus
	plan   BatchPlan
	// others are the names of the checks that are waited for beside the server's.
	others []string
	// mayBegin are the checks that begin with a batch, also where they did.
	mayBegin []BeginCheck
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
		if c := &b.status.Checks[i]; c.Name != ServerCheck && !c.Background {
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
		b.status.UpdateTime, b.status.UpdateTimeUnix = FormatTime(b.Now), b.Now.Unix()
		b.plan.Status = b.status
	}
	return b.plan
}

// current says that the batch is of the attempt its release is at.
func (b *batch) current() bool { return isOfAttempt(b.Change, b.Batch) }

func isOfAttempt(change *v1alpha1.ChangeWorkload, batch *v1alpha1.ChangePod) bool {
	return change != nil && change.DeletionTimestamp == nil &&
		batch.Spec.Attempt == change.Status.Attempt && batch.Spec.Release == change.Status.ObservedRelease
}

func (b *batch) decide() {
	s := b.status
	if s.Status == v1alpha1.ChangePodExecuteDone {
		b.applyLate()
		b.tellEnd()
		return
	}
	if b.Change == nil || b.Change.DeletionTimestamp != nil || b.Batch.Spec.Attempt > b.Change.Status.Attempt {
		// A view from before the attempt, or one of nothing.
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
	case !b.current() || !IsVerified(b.Change.Status.Status):
		b.end(v1alpha1.ChangePodMessageSkipped, metav1.ConditionFalse, v1alpha1.ReasonReleaseEnded, "its pods pass without a check")
	case !b.Server:
		b.end(v1alpha1.ChangePodMessageSkipped, metav1.ConditionFalse, v1alpha1.ReasonNoServer, "the pods pass without a check")
	case order == v1alpha1.OrderNone:
		b.end(v1alpha1.ChangePodMessageSkipped, metav1.ConditionFalse, v1alpha1.ReasonNoServer, "the pods pass without a check")
	case order == v1alpha1.OrderSubmitting, order == v1alpha1.OrderDenied, order == v1alpha1.OrderRefused:
		b.awaitOrder()
	default:
		b.check()
	}
}

// verdict is the one that ends the batch: any that fails, or that on its POST
// check. Nil when there is none yet.
func (b *batch) verdict() (v1alpha1.CheckStage, *v1alpha1.CheckVerdict) {
	for _, stage := range []v1alpha1.CheckStage{v1alpha1.StagePre, v1alpha1.StagePost} {
		if v := verdictOf(b.status, stage); v != nil && VerdictFails(v.Verdict) {
			return stage, v
		}
	}
	return v1alpha1.StagePost, b.status.PostVerdict
}

// confirms says that a pass that is delivered counts only when a poll confirms it:
// without one it may be that there is no verdict, which is to fail.
func (b *batch) confirms() bool {
	fails, _ := b.Settings.ServerSilence()
	return fails && !b.nothingToCheck()
}

// counts says that there is a verdict, and that it needs no confirmation.
func (b *batch) counts(v *v1alpha1.CheckVerdict) bool {
	return v != nil && (!b.confirms() || !deliveredAsPass(v))
}

// awaitOrder handles a batch whose order the server has not accepted. A release
// that runs without checks does not wait; pods that come after its success hold
// nothing up, so theirs waits for the order to be submitted again.
func (b *batch) awaitOrder() {
	message := "AlterShield Server has not accepted the order of the release: " + stepMessage(&b.Change.Status, v1alpha1.StepAccepted)
	left := time.Unix(b.Batch.Spec.CreateTimeUnix, 0).Add(b.Settings.PreTimeout).Sub(b.Now)
	if b.Change.Status.Status == v1alpha1.ChangeWorkloadSuccess && b.Change.Status.OrderStage != v1alpha1.OrderRefused && left > 0 {
		b.preWait(v1alpha1.ReasonOrderNotAccepted, message)
		b.plan.RequeueAfter = left
		return
	}
	b.unsubmitted(v1alpha1.StagePre, v1alpha1.ReasonOrderNotAccepted, message)
}

// check carries the batch through its checks.
func (b *batch) check() {
	s := b.status
	switch s.Status {
	case v1alpha1.ChangePodPreFailed, v1alpha1.ChangePodPreTimeout, v1alpha1.ChangePodPostFailed, v1alpha1.ChangePodPostTimeout,
		v1alpha1.ChangePodPostFinish, v1alpha1.ChangePodExecuteDone:
		// The operator never stores these: such a batch is written as done at
		// once. If somebody else wrote one, the batch ends as it says.
		if s.Message == "" {
			s.Message = string(s.Status)
		}
		s.Status = v1alpha1.ChangePodExecuteDone
	default:
		n := b.entry()
		t, call, wait := n.next(b.Now, b.Calls)
		b.plan.Call, b.plan.RequeueAfter, b.plan.Last = call, wait, n.isLast(call, b.Now)
		b.take(t, Answer{})
	}
}

// entry is the batch as one of the server's entries.
func (b *batch) entry() *entry {
	s := b.status
	n := &entry{
		id: s.ChangePodID, seed: s.ChangePodID,
		pre:         check{since: unixOrZero(s.PreSubmitTimeUnix), limit: time.Duration(s.PreTimeoutThreshold) * time.Second, verdict: s.PreVerdict},
		post:        check{since: unixOrZero(s.PostSubmitTimeUnix), limit: b.Settings.PostTimeout, verdict: s.PostVerdict},
		skipped:     b.nothingToCheck(),
		confirm:     b.confirms(),
		early:       true,
		again:       startedAgain(s.Conditions, v1alpha1.ConditionSubmitted),
		unconfirmed: unconfirmed(s.Conditions, v1alpha1.ConditionSubmitted),
		doubted:     doubted(s.Conditions, v1alpha1.ConditionSubmitted, b.Now),
	}
	switch s.Status {
	case v1alpha1.ChangePodInit, v1alpha1.ChangePodPreWait:
		n.stage, n.pre.limit = entryToStart, b.Settings.PreTimeout
	case v1alpha1.ChangePodPreSubmitted:
		n.stage = entryPre
	case v1alpha1.ChangePodPostWait:
		n.stage = entryToFinish
	case v1alpha1.ChangePodPostSubmitted:
		n.stage, n.post.limit = entryPost, time.Duration(s.PostTimeOutThreshold)*time.Second
	default:
		n.stage = entryIdle
	}
	return n
}

// take writes down what becomes of the batch's entry.
func (b *batch) take(t turn, a Answer) {
	s := b.status
	switch t.to {
	case turnNone:
	case turnStarted:
		b.started(a)
	case turnNotStarted:
		b.preWait(t.reason, t.message)
	case turnPreOver:
		switch {
		case t.reason == v1alpha1.ReasonSkipped:
			b.skipped(t.message)
		case t.passed():
			b.postSubmitted()
		case t.reason == v1alpha1.ReasonNoVerdict:
			b.silent(string(v1alpha1.ChangePodPreTimeout), t.reason, t.message)
		default:
			b.unsubmitted(v1alpha1.StagePre, t.reason, t.message)
		}
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
		conditions{kindBatch, &s.Conditions, b.Batch.Generation, b.Now}.setReason(v1alpha1.ConditionSubmitted, metav1.ConditionFalse, t.reason, t.message)
	case turnPostOver:
		switch {
		case t.reason == v1alpha1.ReasonSkipped:
			b.skipped(t.message)
		case t.passed() && s.PostVerdict != nil:
			b.judged(v1alpha1.StagePost, s.PostVerdict)
		case t.passed():
			b.results(VerdictPass, "", false)
			b.end(v1alpha1.ChangePodMessagePostFinish, metav1.ConditionTrue, v1alpha1.ReasonPassed, "the POST check passed when asked")
		case t.reason == v1alpha1.ReasonNoVerdict:
			b.silent(string(v1alpha1.ChangePodPostTimeout), t.reason, t.message)
		default:
			b.unsubmitted(v1alpha1.StagePost, t.reason, t.message)
		}
	}
}

// claim takes a verdict that arrived before the entry of the batch was known.
func (b *batch) claim(stage v1alpha1.CheckStage, into **v1alpha1.CheckVerdict) {
	if b.status.ChangePodID == "" {
		return
	}
	for i := range b.Change.Status.UnclaimedVerdicts {
		u := &b.Change.Status.UnclaimedVerdicts[i]
		if u.NodeID == b.status.ChangePodID && u.Stage == stage && isWorse(*into, u.CheckVerdict) {
			*into = u.CheckVerdict.DeepCopy()
		}
	}
}

// applyLate applies a failing verdict that came after the batch was done, while
// its attempt is current. Once applied, only a correction by hand changes the
// results.
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
	if stage, v := b.verdict(); v != nil && VerdictFails(v.Verdict) {
		b.judged(stage, v)
	}
}

// serverFailed says that a failing verdict of the server was applied. Where only the
// condition says that a check failed, and none of a policy did, it was the server's.
func (b *batch) serverFailed() bool {
	if c := FindCheck(b.status.Checks, ServerCheck); c != nil && c.Phase == v1alpha1.CheckFailed {
		return true
	}
	c := meta.FindStatusCondition(b.status.Conditions, v1alpha1.ConditionChecked)
	return c != nil && c.Reason == v1alpha1.ReasonCheckFailed && failedCheck(b.status.Checks) == nil
}

// judged ends the batch with a verdict of the server.
func (b *batch) judged(stage v1alpha1.CheckStage, v *v1alpha1.CheckVerdict) {
	// Whatever kept it from being submitted is over: there is a verdict.
	if meta.IsStatusConditionFalse(b.status.Conditions, v1alpha1.ConditionSubmitted) {
		meta.RemoveStatusCondition(&b.status.Conditions, v1alpha1.ConditionSubmitted)
	}
	if !VerdictFails(v.Verdict) {
		b.results(v.Verdict, v.Message, false)
		b.end(v1alpha1.ChangePodMessagePostFinish, metav1.ConditionTrue, v1alpha1.ReasonPassed, "the "+string(stage)+" check passed")
		return
	}
	b.results(v.Verdict, v.Message, true)
	b.end(v1alpha1.ChangePodMessagePostFinish, metav1.ConditionTrue, v1alpha1.ReasonCheckFailed, failureOf(stage, v))
}

// unsubmitted ends the batch because a check of it could not be submitted.
func (b *batch) unsubmitted(stage v1alpha1.CheckStage, reason, message string) {
	if b.nothingToCheck() {
		b.skipped(message)
		return
	}
	how := v1alpha1.ChangePodPreFailed
	if stage == v1alpha1.StagePost {
		how = v1alpha1.ChangePodPostFailed
	}
	b.silent(string(how), reason, message)
}

// silent ends the batch without a verdict: its pods pass, unless silence fails.
func (b *batch) silent(how, reason, message string) {
	if fails, by := b.Settings.ServerSilence(); fails {
		b.results(VerdictInconclusive, silence(b.Now, message).Message, true)
		message += ": the pods fail, as " + by + " says"
	} else {
		message += ": the pods pass without a verdict"
	}
	b.end(how, metav1.ConditionFalse, reason, message)
	b.plan.Events = append(b.plan.Events, Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventCheckError,
		Message: fmt.Sprintf("batch %d of version %s: %s", BatchNumber(b.Batch), b.Change.Spec.Reversion, message)})
}

// results writes a verdict on every pod of the batch; one that passes leaves
// results that somebody else wrote.
func (b *batch) results(verdict, message string, all bool) {
	passed, failed := BatchResults(b.Batch)
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
		b.results(VerdictNone, how, false)
	}
	b.condition(v1alpha1.ConditionChecked, checked, reason, message)
	if b.Server || len(b.others) > 0 || reason == v1alpha1.ReasonCheckFailed {
		SetCheck(&s.Checks, v1alpha1.CheckStatus{
			Name: ServerCheck, Phase: endPhase(reason), Reason: reason, Message: message, StartTime: timeOf(unixOrZero(s.PreSubmitTimeUnix)),
		}, b.Now)
	}
	b.conclude()
}

// endPhase is how a check by the server ended, by the reason of the condition.
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

// serverOver says that the server's part in the batch is over, while others are
// not.
func (b *batch) serverOver() bool {
	c := FindCheck(b.status.Checks, ServerCheck)
	return c != nil && CheckIsOver(c)
}

// noteServer says how far the server's part has come.
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
	SetCheck(&s.Checks, v1alpha1.CheckStatus{
		Name: ServerCheck, Phase: phase, Reason: string(s.Status), StartTime: timeOf(unixOrZero(s.PreSubmitTimeUnix)),
	}, b.Now)
}

// conclude ends the batch once all checks are over, or one has failed: those that
// are not over are given up then, as they are when the release has ended.
func (b *batch) conclude() {
	s := b.status
	b.beginPending()
	over, failed := checksOver(s.Checks, b.others), failedCheck(s.Checks)
	if failed == nil && over {
		failed = silentCheck(s.Checks, namesOf(s.Checks), b.Settings.SilenceFails)
	}
	switch {
	case failed != nil:
		b.failedBy(failed)
	case over:
		b.passedBy()
	}
	server := FindCheck(s.Checks, ServerCheck)
	if !over && failed == nil && b.current() && IsVerified(b.Change.Status.Status) && (server == nil || server.Phase != v1alpha1.CheckFailed) {
		return
	}
	for i := range s.Checks {
		if c := &s.Checks[i]; slices.Contains(b.others, c.Name) && !CheckIsOver(c) || isPending(c) {
			canceled := *c
			canceled.Phase, canceled.Reason, canceled.Message = v1alpha1.CheckCanceled, v1alpha1.ReasonReleaseEnded, "the batch ended before the check was over"
			SetCheck(&s.Checks, canceled, b.Now)
		}
	}
	if b.owesEnd() {
		s.EndDueTimeUnix = b.Now.Unix()
	}
	s.Status = v1alpha1.ChangePodExecuteDone
}

// failPods fails the pods that a check failed, or all: also where there are more of
// them than it names.
func (b *batch) failPods(c *v1alpha1.CheckStatus) {
	all := len(c.FailedPods) == 0 || int(c.FailedCount) > len(c.FailedPods)
	for i := range b.status.PodResults {
		r := &b.status.PodResults[i]
		if !VerdictFails(r.Verdict) && (all || slices.Contains(c.FailedPods, r.Pod)) {
			r.Verdict, r.Message = VerdictFail, describeCheck(c)
		}
	}
}

func (b *batch) condition(kind string, status metav1.ConditionStatus, reason, message string) {
	conditions{kindBatch, &b.status.Conditions, b.Batch.Generation, b.Now}.set(kind, status, reason, "%s", message)
}

func (b *batch) started(a Answer) {
	s, preOver := b.status, b.preOver()
	if preOver || s.Status == v1alpha1.ChangePodPreSubmitted {
		b.condition(v1alpha1.ConditionSubmitted, metav1.ConditionTrue, v1alpha1.ReasonStartedAgain, lostEntry(s.ChangePodID, a.NodeID))
	} else {
		s.PreSubmitTime, s.PreSubmitTimeUnix = FormatTime(b.Now), b.Now.Unix()
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
	// Its end is reported all the same; a verdict on it counts when it comes, but
	// nothing waits for it.
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

// preWait says why the batch is not submitted yet.
func (b *batch) preWait(reason, message string) {
	s := b.status
	s.Status = v1alpha1.ChangePodPreWait
	if s.PreSubmitTimeUnix == 0 {
		s.PreSubmitTime, s.PreSubmitTimeUnix = FormatTime(b.Now), b.Now.Unix()
	}
	conditions{kindBatch, &s.Conditions, b.Batch.Generation, b.Now}.setReason(v1alpha1.ConditionSubmitted, metav1.ConditionFalse, reason, message)
}

// postSubmitted says that the POST check runs. Where the end of the batch is yet
// to be notified, the time for it begins now, too.
func (b *batch) postSubmitted() {
	s := b.status
	s.Status = v1alpha1.ChangePodPostSubmitted
	s.PostSubmitTime, s.PostSubmitTimeUnix = FormatTime(b.Now), b.Now.Unix()
	b.submitted()
}

// submitted takes back that the batch could not be submitted.
func (b *batch) submitted() {
	if meta.FindStatusCondition(b.status.Conditions, v1alpha1.ConditionSubmitted) != nil {
		b.condition(v1alpha1.ConditionSubmitted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	}
}

func (b *batch) skipped(message string) {
	b.end(v1alpha1.ChangePodMessageSkipped, metav1.ConditionFalse, v1alpha1.ReasonSkipped, message)
}

// nothingToCheck says that the server said so at the start of the batch.
func (b *batch) nothingToCheck() bool {
	c := meta.FindStatusCondition(b.status.Conditions, v1alpha1.ConditionChecked)
	return c != nil && c.Reason == v1alpha1.ReasonSkipped
}

// BatchFails says that a pod of a batch that is done failed.
func BatchFails(batch *v1alpha1.ChangePod) bool {
	return batch.Status.Status == v1alpha1.ChangePodExecuteDone &&
		slices.ContainsFunc(batch.Status.PodResults, func(r v1alpha1.PodResult) bool { return VerdictFails(r.Verdict) })
}

// BatchResults splits the pods of a batch that is done by their verdicts.
// Results count for pods of the batch only, by UID where the result has one; a
// pod without a result passes.
func BatchResults(batch *v1alpha1.ChangePod) (passed, failed []v1alpha1.PodResult) {
	for _, info := range batch.Spec.PodInfos {
		result := v1alpha1.PodResult{PodInfo: info}
		for i := range batch.Status.PodResults {
			r := &batch.Status.PodResults[i]
			if r.Pod != info.Pod || r.UID != "" && r.UID != info.UID {
				continue
			}
			// A failing entry is never hidden by another one of the same pod.
			if !VerdictFails(result.Verdict) {
				result.Verdict, result.Message = r.Verdict, r.Message
			}
		}
		if VerdictFails(result.Verdict) {
			failed = append(failed, result)
		} else {
			passed = append(passed, result)
		}
	}
	return passed, failed
}
