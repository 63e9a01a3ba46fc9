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
	// Calls is what this process knows of its calls about the batch.
	Calls Calls
}

// BatchPlan is what to do about a batch.
type BatchPlan struct {
	// Status is set when it is to be written, before anything else is done.
	Status *v1alpha1.ChangePodStatus
	// Call to the server, if any.
	Call Call
	// Events tell what was done, once the status is written.
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
	b.answer(call, a)
	return b.finish()
}

// batch is a decision in the making.
type batch struct {
	BatchInput
	status *v1alpha1.ChangePodStatus
	plan   BatchPlan
}

func newBatch(in BatchInput) *batch {
	return &batch{BatchInput: in, status: in.Batch.Status.DeepCopy()}
}

func (b *batch) finish() BatchPlan {
	if !equality.Semantic.DeepEqual(b.status, &b.Batch.Status) {
		b.status.UpdateTime, b.status.UpdateTimeUnix = FormatTime(b.Now), b.Now.Unix()
		b.plan.Status = b.status
	}
	return b.plan
}

// current says that the batch is of the attempt its release is at.
func (b *batch) current() bool {
	return b.Change != nil && b.Change.DeletionTimestamp == nil &&
		b.Batch.Spec.Attempt == b.Change.Status.Attempt && b.Batch.Spec.Release == b.Change.Status.ObservedRelease
}

func (b *batch) decide() {
	s := b.status
	if s.Status == v1alpha1.ChangePodExecuteDone {
		b.applyLate()
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
	case verdict != nil:
		b.judged(stage, verdict)
	case !b.current() || !IsVerified(b.Change.Status.Status):
		b.end(v1alpha1.ChangePodMessageSkipped, metav1.ConditionFalse, v1alpha1.ReasonReleaseEnded, "the release ended before the batch was checked: its pods pass without a check")
	case !b.Server:
		b.end(v1alpha1.ChangePodMessageSkipped, metav1.ConditionFalse, v1alpha1.ReasonNoServer, "no AlterShield Server is configured: the pods pass without a check")
	case order == v1alpha1.OrderNone:
		b.end(v1alpha1.ChangePodMessageSkipped, metav1.ConditionFalse, v1alpha1.ReasonNoServer, "no AlterShield Server was configured when the release began: the pods pass without a check")
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

// awaitOrder handles a batch whose order the server has not accepted. A release
// that runs undefended does not wait; pods that come after its success hold
// nothing up, so theirs waits for the order to be submitted again.
func (b *batch) awaitOrder() {
	message := "AlterShield Server has not accepted the order of the release: " + conditionMessage(&b.Change.Status, v1alpha1.ConditionOrderAccepted)
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
	case v1alpha1.ChangePodInit, v1alpha1.ChangePodPreWait:
		deadline := time.Unix(b.since(s.PreSubmitTimeUnix), 0).Add(b.Settings.PreTimeout)
		if s.PreSubmitTimeUnix != 0 && b.Calls.tried(CallStart) && !b.Now.Before(deadline) {
			b.unsubmitted(v1alpha1.StagePre, v1alpha1.ReasonSubmitFailed, "the PRE check could not be submitted within "+b.Settings.PreTimeout.String())
			return
		}
		b.plan.Call, b.plan.RequeueAfter = b.Calls.next(CallStart, b.Now, deadline)

	case v1alpha1.ChangePodPreSubmitted:
		if s.PreVerdict != nil {
			b.plan.Call, b.plan.RequeueAfter = b.Calls.next(CallFinish, b.Now, time.Time{})
			return
		}
		b.await(v1alpha1.StagePre, CallPollPre, s.PreSubmitTimeUnix, s.PreTimeoutThreshold)

	case v1alpha1.ChangePodPostWait:
		deadline := time.Unix(b.since(s.PostSubmitTimeUnix), 0).Add(b.Settings.PostTimeout)
		if b.Calls.tried(CallFinish) && !b.Now.Before(deadline) {
			b.unsubmitted(v1alpha1.StagePost, v1alpha1.ReasonSubmitFailed, "the POST check could not be submitted within "+b.Settings.PostTimeout.String())
			return
		}
		b.plan.Call, b.plan.RequeueAfter = b.Calls.next(CallFinish, b.Now, deadline)

	case v1alpha1.ChangePodPostSubmitted:
		b.await(v1alpha1.StagePost, CallPollPost, s.PostSubmitTimeUnix, s.PostTimeOutThreshold)

	case v1alpha1.ChangePodPreFailed, v1alpha1.ChangePodPreTimeout, v1alpha1.ChangePodPostFailed, v1alpha1.ChangePodPostTimeout,
		v1alpha1.ChangePodPostFinish, v1alpha1.ChangePodExecuteDone:
		// Never stored: such a batch is written as done at once. Whoever wrote
		// it, its end is what it says.
		if s.Message == "" {
			s.Message = string(s.Status)
		}
		s.Status = v1alpha1.ChangePodExecuteDone
	}
}

// since is when something was first tried: the time in the status, else now.
func (b *batch) since(unix int64) int64 {
	if unix == 0 {
		return b.Now.Unix()
	}
	return unix
}

// await waits for the verdict on a check that runs.
func (b *batch) await(stage v1alpha1.CheckStage, poll Call, submitted, threshold int64) {
	limit := time.Duration(threshold) * time.Second
	call, wait, timedOut := b.Calls.await(poll, b.Now, time.Unix(submitted, 0), limit, b.status.ChangePodID)
	if !timedOut {
		b.plan.Call, b.plan.RequeueAfter = call, wait
		return
	}
	how := v1alpha1.ChangePodPreTimeout
	if stage == v1alpha1.StagePost {
		how = v1alpha1.ChangePodPostTimeout
	}
	reason, message := timeoutOf(b.Calls, stage, limit)
	b.silent(string(how), reason, message)
}

// claim takes a verdict that arrived before the node of the batch was known.
func (b *batch) claim(stage v1alpha1.CheckStage, into **v1alpha1.CheckVerdict) {
	if b.status.ChangePodID == "" {
		return
	}
	for i := range b.Change.Status.UnclaimedVerdicts {
		u := &b.Change.Status.UnclaimedVerdicts[i]
		if u.NodeID == b.status.ChangePodID && u.Stage == stage && graver(*into, u.CheckVerdict) {
			*into = u.CheckVerdict.DeepCopy()
		}
	}
}

// applyLate applies a failing verdict that came after the batch was done,
// while its attempt is current. Once applied, only whoever corrects the results
// changes them.
func (b *batch) applyLate() {
	s := b.status
	if b.Change == nil || !b.current() {
		return
	}
	b.claim(v1alpha1.StagePre, &s.PreVerdict)
	b.claim(v1alpha1.StagePost, &s.PostVerdict)
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionChecked); c != nil && c.Reason == v1alpha1.ReasonCheckFailed {
		return
	}
	if stage, v := b.verdict(); v != nil && VerdictFails(v.Verdict) {
		b.judged(stage, v)
	}
}

// judged ends the batch with a verdict of the server.
func (b *batch) judged(stage v1alpha1.CheckStage, v *v1alpha1.CheckVerdict) {
	if !VerdictFails(v.Verdict) {
		b.results(v.Verdict, v.Message, false)
		b.end(v1alpha1.ChangePodMessagePostFinish, metav1.ConditionTrue, v1alpha1.ReasonPassed, "the "+string(stage)+" check passed")
		return
	}
	b.results(v.Verdict, v.Message, true)
	b.end(v1alpha1.ChangePodMessagePostFinish, metav1.ConditionTrue, v1alpha1.ReasonCheckFailed, fmt.Sprintf("the %s check failed: %s", stage, cut(v.Message)))
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
	if b.Settings.SilenceFails {
		b.results(VerdictInconclusive, silence(b.Now, message).Message, true)
		message += ": the pods fail, as the setting silence says"
	} else {
		message += ": the pods pass without a verdict"
	}
	b.end(how, metav1.ConditionFalse, reason, message)
	b.plan.Events = append(b.plan.Events, Event{Type: corev1.EventTypeWarning, Reason: how,
		Message: fmt.Sprintf("batch %d of version %s: %s", BatchNumber(b.Batch), b.Change.Spec.Reversion, message)})
}

// results writes a verdict on every pod of the batch; one that passes leaves
// results that somebody else wrote.
func (b *batch) results(verdict, message string, all bool) {
	passed, failed := batchResults(b.Batch)
	b.status.PodResults = nil
	for _, r := range append(failed, passed...) {
		if all || r.Verdict == "" {
			r.Verdict, r.Message = verdict, message
		}
		b.status.PodResults = append(b.status.PodResults, r)
	}
}

// end ends the batch. Pods without a result pass.
func (b *batch) end(how string, checked metav1.ConditionStatus, reason, message string) {
	s := b.status
	s.Status, s.Message = v1alpha1.ChangePodExecuteDone, how
	if len(s.PodResults) < len(b.Batch.Spec.PodInfos) {
		b.results(VerdictNone, how, false)
	}
	b.condition(v1alpha1.ConditionChecked, checked, reason, message)
}

func (b *batch) condition(kind string, status metav1.ConditionStatus, reason, message string) {
	setCondition(&b.status.Conditions, b.Batch.Generation, b.Now, kind, status, reason, "%s", message)
}

func (b *batch) answer(call Call, a Answer) {
	s := b.status
	switch call {
	case CallStart:
		if s.Status == v1alpha1.ChangePodInit || s.Status == v1alpha1.ChangePodPreWait {
			b.started(a)
		}
	case CallFinish:
		if s.Status == v1alpha1.ChangePodPreSubmitted || s.Status == v1alpha1.ChangePodPostWait {
			b.finished(a)
		}
	case CallPollPre:
		if a.Kind == AnswerDone && s.Status == v1alpha1.ChangePodPreSubmitted {
			b.postWait()
		}
	case CallPollPost:
		if a.Kind == AnswerDone && s.Status == v1alpha1.ChangePodPostSubmitted {
			b.results(VerdictPass, "", false)
			b.end(v1alpha1.ChangePodMessagePostFinish, metav1.ConditionTrue, v1alpha1.ReasonPassed, "the POST check passed when asked")
		}
	case CallNone, CallSubmit, CallEnd:
	}
}

func (b *batch) started(a Answer) {
	s := b.status
	switch a.Kind {
	case AnswerDone, AnswerDuplicate:
		s.Status, s.ChangePodID, s.URL, s.OrderID = v1alpha1.ChangePodPreSubmitted, a.NodeID, a.URL, b.Change.Status.OrderID
		s.PreSubmitTime, s.PreSubmitTimeUnix = FormatTime(b.Now), b.Now.Unix()
		s.PreTimeoutThreshold, s.PostTimeOutThreshold = int64(b.Settings.PreTimeout/time.Second), int64(b.Settings.PostTimeout/time.Second)
		b.overcame()
		if a.SkipCheck {
			// Its end is reported all the same; a verdict on it counts when it
			// comes, but nothing waits for it.
			b.postWait()
			b.condition(v1alpha1.ConditionChecked, metav1.ConditionUnknown, v1alpha1.ReasonSkipped, "the server said that there is nothing to check")
			if a.NodeID == "" {
				b.skipped("the server said that there is nothing to check")
			}
		}
	case AnswerNoCheck:
		b.skipped(a.Message)
	case AnswerUnsupported, AnswerRefused:
		b.unsubmitted(v1alpha1.StagePre, v1alpha1.ReasonRefused, a.Message)
	case AnswerDenied:
		b.preWait(v1alpha1.ReasonPermissionDenied, a.Message)
	case AnswerIllegal:
		b.preWait(v1alpha1.ReasonNotConfigured, a.Message)
	case AnswerRetry:
		b.preWait(v1alpha1.ReasonUnreachable, a.Message)
	case AnswerThrottled, AnswerNotPassed:
	}
}

// preWait says why the batch is not submitted yet.
func (b *batch) preWait(reason, message string) {
	s := b.status
	s.Status = v1alpha1.ChangePodPreWait
	if s.PreSubmitTimeUnix == 0 {
		s.PreSubmitTime, s.PreSubmitTimeUnix = FormatTime(b.Now), b.Now.Unix()
	}
	setReason(&s.Conditions, b.Batch.Generation, b.Now, v1alpha1.ConditionSubmitted, metav1.ConditionFalse, reason, message)
}

// postWait says that the end of the batch is to be submitted.
func (b *batch) postWait() {
	s := b.status
	s.Status = v1alpha1.ChangePodPostWait
	if s.PostSubmitTimeUnix == 0 {
		s.PostSubmitTime, s.PostSubmitTimeUnix = FormatTime(b.Now), b.Now.Unix()
	}
}

func (b *batch) postWaitBecause(reason, message string) {
	b.postWait()
	setReason(&b.status.Conditions, b.Batch.Generation, b.Now, v1alpha1.ConditionSubmitted, metav1.ConditionFalse, reason, message)
}

// overcame says that what could not be submitted was.
func (b *batch) overcame() {
	if meta.FindStatusCondition(b.status.Conditions, v1alpha1.ConditionSubmitted) != nil {
		b.condition(v1alpha1.ConditionSubmitted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "AlterShield Server took it")
	}
}

func (b *batch) skipped(message string) {
	b.end(v1alpha1.ChangePodMessageSkipped, metav1.ConditionFalse, v1alpha1.ReasonSkipped, message)
}

func (b *batch) finished(a Answer) {
	s := b.status
	switch a.Kind {
	case AnswerDone, AnswerDuplicate:
		b.received()
	case AnswerUnsupported:
		if unconfirmed(s.Conditions, v1alpha1.ConditionSubmitted) || doubted(s.Conditions, v1alpha1.ConditionSubmitted, b.Now) {
			b.received()
		} else {
			b.postWaitBecause(v1alpha1.ReasonNotYetAccepted, a.Message)
		}
	case AnswerNoCheck:
		b.skipped(a.Message)
	case AnswerIllegal, AnswerRefused:
		b.unsubmitted(v1alpha1.StagePost, v1alpha1.ReasonRefused, a.Message)
	case AnswerDenied:
		b.postWaitBecause(v1alpha1.ReasonPermissionDenied, a.Message)
	case AnswerRetry:
		b.postWaitBecause(retryReason(s.Conditions, v1alpha1.ConditionSubmitted, a), a.Message)
	case AnswerThrottled, AnswerNotPassed:
	}
}

// received says that the server has the end of the batch.
func (b *batch) received() {
	s := b.status
	s.Status = v1alpha1.ChangePodPostSubmitted
	s.PostSubmitTime, s.PostSubmitTimeUnix = FormatTime(b.Now), b.Now.Unix()
	b.overcame()
	if b.nothingToCheck() {
		b.skipped("the server said that there is nothing to check")
	}
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

// batchResults splits the pods of a batch that is done by their verdicts.
// Results count for pods of the batch only, by UID where the result has one; a
// pod without a result passes.
func batchResults(batch *v1alpha1.ChangePod) (passed, failed []v1alpha1.PodResult) {
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

// setCondition sets a condition; its transition time is the time of the
// decision and changes only with its status.
func setCondition(conditions *[]metav1.Condition, generation int64, now time.Time, kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...),
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	})
}

// setReason sets a condition unless it says the same already in other words: the
// text of an error differs from try to try, and no write is worth that.
func setReason(conditions *[]metav1.Condition, generation int64, now time.Time, kind string, status metav1.ConditionStatus, reason, message string) {
	if c := meta.FindStatusCondition(*conditions, kind); c == nil || c.Status != status || c.Reason != reason {
		setCondition(conditions, generation, now, kind, status, reason, "%s", message)
	}
}
