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
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// maxOrderIDLength is the server's limit of the id of an order, in bytes.
const maxOrderIDLength = 128

// OrderID returns our id of the order of one attempt of a release. The id is deterministic and
// unique: a version that is released again after its record was removed, or whose record was
// recreated, has another id.
func OrderID(cluster, workload types.UID, version string, release int64, attempt int32, of types.UID) string {
	compact := func(uid types.UID) string { return strings.ReplaceAll(string(uid), "-", "") }
	sum := sha256.Sum256([]byte(of))
	id := fmt.Sprintf("%s-%s-%s-%d-%d-%s", compact(cluster), compact(workload), version, release, attempt,
		hex.EncodeToString(sum[:])[:record.NameHashLength])
	return record.Shorten(id, maxOrderIDLength)
}

// VersionOfOrder returns the version in an id of one of our orders; empty for any other id.
func VersionOfOrder(orderID string) string {
	parts := strings.Split(orderID, "-")
	if len(parts) < 4 || len(parts[2]) != 32 {
		return ""
	}
	return parts[2]
}

// DecideOrder decides about the order of a release. [AnswerOrder] writes the answer to a call into
// the status.
func DecideOrder(in OrderInput) OrderPlan {
	o := &order{OrderInput: in, status: record.CurrentStatus(in.Change)}
	switch {
	case o.status.OrderID == "" || o.status.OrderStage == v1alpha1.OrderEnded:
	case o.status.OrderEnd != "":
		o.end()
	case in.Change.Spec.Release > o.status.ObservedRelease:
		// Another attempt is about to begin.
	case in.Defended:
		o.follow()
	}
	return o.finishPlan()
}

// explainServer sets ConditionServer by the steps of the order, while the release is being verified. The
// decision about the release, which knows the batches, ends the report of a long wait.
func (o *order) explainServer() {
	if record.IsVerified(o.status.Status) && !WaitsForServer(o.status) {
		SetCondition(o.status, o.Change.Generation, o.Now)
	}
}

// noteServer writes the progress of the server's check of the release as a whole into the status.
func (o *order) noteServer() {
	s := o.status
	c := v1alpha1.CheckStatus{
		Name: record.ServerCheck, Phase: v1alpha1.CheckRunning, Reason: string(s.OrderStage),
		StartTime: times.Of(times.FromUnix(s.OrderSubmitTimeUnix)),
	}
	kind := v1alpha1.StepPostChecked
	switch s.OrderStage {
	case v1alpha1.OrderNone:
		return
	case v1alpha1.OrderEnded:
		if known := record.FindCheck(s.Checks, record.ServerCheck); known != nil && record.CheckIsOver(known) {
			return
		}
		c.Phase, c.Reason, c.Message = v1alpha1.CheckCanceled, v1alpha1.ReasonReleaseEnded, "the order ended before its POST check"
		record.SetCheck(&s.Checks, c, o.Now)
		return
	case v1alpha1.OrderSubmitting, v1alpha1.OrderDenied:
		c.Phase, kind = v1alpha1.CheckPending, v1alpha1.StepAccepted
	case v1alpha1.OrderRefused:
		c.Phase, kind = v1alpha1.CheckError, v1alpha1.StepAccepted
	default:
	}
	said := meta.FindStatusCondition(s.OrderSteps, kind)
	if said != nil && s.OrderStage == v1alpha1.OrderPostFinish {
		c.Phase, c.Reason = endPhase(said.Reason), said.Reason
	}
	if said != nil {
		c.Message = said.Message
	}
	// A failed PRE check fails the release, with any POST check.
	if pre := s.OrderPreVerdict; pre != nil && record.VerdictFails(pre.Verdict) {
		c.Phase, c.Reason, c.Message = v1alpha1.CheckFailed, v1alpha1.ReasonCheckFailed, pre.Message
	}
	record.SetCheck(&s.Checks, c, o.Now)
}

func (o *order) follow() {
	switch o.status.OrderStage {
	case v1alpha1.OrderSubmitting, v1alpha1.OrderDenied:
		o.submit()
	default:
		o.claim()
		o.take(drive(o.entry(), o.Now, o.Calls, &o.plan), Answer{})
	}
}

// take writes a turn of the order's entry into the status.
func (o *order) take(t turn, a Answer) {
	s := o.status
	if t.reason == v1alpha1.ReasonRefused {
		t.reason = v1alpha1.ReasonNotSubmitted
	}
	switch t.to {
	case turnNone:
	case turnStarted:
		if s.OrderStage == v1alpha1.OrderPostWait {
			s.OrderNodeID = a.NodeID
			break
		}
		if s.OrderStage == v1alpha1.OrderPreSubmitted {
			o.step(v1alpha1.StepPreChecked, metav1.ConditionUnknown, v1alpha1.ReasonStartedAgain, lostEntry(s.OrderNodeID, a.NodeID))
		} else {
			s.OrderPreSubmitTime, s.OrderPreSubmitTimeUnix = times.Format(o.Now), o.Now.Unix()
			o.step(v1alpha1.StepPreChecked, metav1.ConditionUnknown, v1alpha1.ReasonChecking, "the check goes on")
		}
		s.OrderNodeID, s.OrderStage = a.NodeID, v1alpha1.OrderPreSubmitted
		if a.SkipCheck {
			o.preOver(turn{reason: v1alpha1.ReasonSkipped, message: nothingToCheck, answered: true})
		}
	case turnNotStarted:
		o.refused(v1alpha1.StepPreChecked, t.reason, t.message)
	case turnPreOver:
		o.preOver(t)
	case turnFinished:
		s.OrderStage = v1alpha1.OrderPostSubmitted
		s.OrderPostSubmitTime, s.OrderPostSubmitTimeUnix = times.Format(o.Now), o.Now.Unix()
		o.step(v1alpha1.StepPostChecked, metav1.ConditionUnknown, v1alpha1.ReasonChecking, "the check goes on")
		if t.answered && orderSkipped(s) {
			o.postOver(turn{reason: v1alpha1.ReasonSkipped, message: nothingToCheck, answered: true})
		}
	case turnNotFinished:
		o.refused(v1alpha1.StepPostChecked, t.reason, t.message)
	case turnPostOver:
		o.postOver(t)
	}
}

// submit submits the order while the release needs it. A release that runs without checks needs it for
// its later batches, and a release that succeeded without checks needs it for some time.
func (o *order) submit() {
	s := o.status
	later := s.Status == v1alpha1.ChangeWorkloadSuccess && s.CheckingCount == 0
	if !record.IsVerified(s.Status) || later && !o.asksLater() {
		return
	}
	deadline := o.submitDeadline()
	over := !deadline.IsZero() && !o.Now.Before(deadline)
	tried := o.Calls.triedSince(CallSubmit, deadline) || o.unprocessable()
	if over && tried && s.OrderStage == v1alpha1.OrderSubmitting && s.OrderPreVerdict == nil {
		message := notAccepted(s, o.Settings.PreTimeout)
		if fails, _ := o.Settings.ServerSilence(); fails {
			s.OrderPreVerdict = silence(o.Now, message)
			return
		}
		o.event(v1alpha1.EventReleaseUnverified, message+"; the release continues without its checks")
		o.run()
		return
	}
	if s.Status != v1alpha1.ChangeWorkloadInit && o.unprocessable() {
		return // its time is over, and every try fails
	}
	o.plan.Call, o.plan.RequeueAfter = o.Calls.next(CallSubmit, o.Now, deadline)
	o.plan.Last = over && !o.Calls.triedSince(CallSubmit, deadline)
	if wait := o.Calls.Asked.Add(askEvery).Sub(o.Now); later && o.Calls.Call == CallSubmit && wait > 0 {
		o.plan.Call, o.plan.RequeueAfter = CallNone, wait
	}
}

// asksLater reports whether a release that succeeded without verdicts of the server still
// requests the check of the order. A failure counts like a late verdict.
func (o *order) asksLater() bool {
	fails, _ := o.Settings.ServerSilence()
	return !fails && o.status.UnverifiedCount > 0 && o.Now.Before(record.SucceededAt(o.status).Add(askLater))
}

// submitDeadline returns until when a release waits for its order to be accepted; zero if it does
// not wait.
func (o *order) submitDeadline() time.Time {
	if o.status.Status != v1alpha1.ChangeWorkloadInit {
		return time.Time{}
	}
	return time.Unix(o.status.EntryTimeUnix, 0).Add(o.Settings.PreTimeout)
}

// unprocessable reports whether the server can never process the order.
func (o *order) unprocessable() bool {
	c := meta.FindStatusCondition(o.status.OrderSteps, v1alpha1.StepAccepted)
	return c != nil && c.Reason == v1alpha1.ReasonUnprocessable
}

// notAccepted returns the message that the server did not accept the order in time, and why.
func notAccepted(s *v1alpha1.ChangeWorkloadStatus, limit time.Duration) string {
	said := "AlterShield Server did not accept the order within " + limit.String()
	if c := meta.FindStatusCondition(s.OrderSteps, v1alpha1.StepAccepted); c != nil && c.Message != "" {
		said += " (" + c.Message + ")"
	}
	return said
}

// claim takes the verdicts that arrived before their entry was known: verdicts on the order's entry,
// and verdicts on another entry of the order, if its start was repeated although the server had
// received it.
func (o *order) claim() {
	s := o.status
	stage, into := v1alpha1.StagePost, &s.OrderPostVerdict
	if s.OrderStage == v1alpha1.OrderPreSubmitted {
		stage, into = v1alpha1.StagePre, &s.OrderPreVerdict
	}
	if s.OrderNodeID == "" || s.OrderStage == v1alpha1.OrderPreWait || s.OrderStage == v1alpha1.OrderPostFinish {
		return
	}
	s.UnclaimedVerdicts = slices.DeleteFunc(s.UnclaimedVerdicts, func(u v1alpha1.UnclaimedVerdict) bool {
		if u.NodeID != s.OrderNodeID && !u.OfOrder || u.Stage != stage {
			return false
		}
		if record.IsWorse(*into, u.CheckVerdict) {
			*into = u.CheckVerdict.DeepCopy()
		}
		return true
	})
	if len(s.UnclaimedVerdicts) == 0 {
		s.UnclaimedVerdicts = nil
	}
}

func (o *order) preOver(t turn) {
	o.status.OrderStage = v1alpha1.OrderPostWait
	o.over(v1alpha1.StepPreChecked, &o.status.OrderPreVerdict, t)
}

func (o *order) postOver(t turn) {
	o.status.OrderStage = v1alpha1.OrderPostFinish
	o.over(v1alpha1.StepPostChecked, &o.status.OrderPostVerdict, t)
}

// over ends a check of the order.
func (o *order) over(kind string, verdict **v1alpha1.CheckVerdict, t turn) {
	status, message := metav1.ConditionFalse, cmp.Or(t.message, record.NoReason)
	if t.passed() {
		status, message = metav1.ConditionTrue, cmp.Or(t.message, "the check passed")
	}
	o.step(kind, status, t.reason, wording.Cut(message))
	if t.answered {
		return
	}
	consequence := "the release continues without a verdict"
	if fails, by := o.Settings.ServerSilence(); fails {
		consequence = "the release is suspended, as " + by + " says"
		if *verdict == nil || deliveredAsPass(*verdict) {
			*verdict = silence(o.Now, message)
		}
	}
	o.event(v1alpha1.EventCheckError, message+": "+consequence)
}

// end notifies the server of the end of the order, once, until one deadline.
func (o *order) end() {
	s := o.status
	deadline := time.Unix(s.OrderEndDueTimeUnix, 0).Add(o.Settings.PostTimeout)
	if o.Now.Before(deadline) {
		call := CallEnd
		if until := o.entryEndsUntil(); o.endsEntry(until) {
			call, deadline = CallFinish, until
		}
		o.plan.Call, o.plan.RequeueAfter = o.Calls.next(call, o.Now, deadline)
		return
	}
	if !o.Defended {
		return
	}
	s.OrderStage = v1alpha1.OrderEnded
	if c := meta.FindStatusCondition(s.OrderSteps, v1alpha1.StepEnded); c == nil || c.Status != metav1.ConditionFalse {
		o.step(v1alpha1.StepEnded, metav1.ConditionFalse, v1alpha1.ReasonNoVerdict,
			"AlterShield Server was not notified in time that the order ended as "+string(s.OrderEnd))
	}
}

// AnswerOrder writes the server's answer to a call about an order into the status of its release.
func AnswerOrder(in OrderInput, call Call, a Answer) OrderPlan {
	o := &order{OrderInput: in, status: record.CurrentStatus(in.Change)}
	switch stage := o.status.OrderStage; {
	case call == CallSubmit && (stage == v1alpha1.OrderSubmitting || stage == v1alpha1.OrderDenied):
		o.submitted(a)
	case call == CallSubmit: // it was accepted before the answer came
	case call == CallEnd:
		o.ended(a)
	case call == CallFinish && o.status.OrderEnd != "":
		o.entryEnded(a)
	default:
		o.take(o.entry().said(call, a, in.Now), a)
	}
	return o.finishPlan()
}

func (o *order) submitted(a Answer) {
	s := o.status
	accepted := func(message string) {
		s.OrderStage = v1alpha1.OrderPreWait
		s.OrderSubmitTime, s.OrderSubmitTimeUnix = times.Format(o.Now), o.Now.Unix()
		if a.URL != "" {
			s.OrderURL = a.URL
		}
		o.step(v1alpha1.StepAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, message)
		if s.Status == v1alpha1.ChangeWorkloadInit {
			o.run() // in the same write
		}
	}
	switch a.Kind {
	case AnswerDone:
		accepted("AlterShield Server accepted the order")
	case AnswerDuplicate:
		accepted("AlterShield Server has the order already")
	case AnswerDenied:
		if s.OrderStage != v1alpha1.OrderDenied {
			o.event(v1alpha1.EventWaitingForServer,
				"AlterShield Server does not know the platform or its token, the release waits unverified: "+a.Message)
		}
		s.OrderStage = v1alpha1.OrderDenied
		o.refused(v1alpha1.StepAccepted, v1alpha1.ReasonPermissionDenied, a.Message)
	case AnswerRetry:
		// A release that waits for a user continues to wait: its time was over long ago, and
		// a user who corrects the registration may restart the server for it.
		o.refused(v1alpha1.StepAccepted, v1alpha1.ReasonUnreachable, a.Message)
	case AnswerUnprocessable:
		o.refused(v1alpha1.StepAccepted, v1alpha1.ReasonUnprocessable, a.Message)
	case AnswerIllegal, AnswerUnsupported, AnswerNoCheck, AnswerRefused:
		s.OrderStage = v1alpha1.OrderRefused
		o.refused(v1alpha1.StepAccepted, v1alpha1.ReasonRefused, a.Message)
	case AnswerThrottled, AnswerNotPassed:
	}
}

// run ends the wait for the order: the release waits for its batches from now on.
func (o *order) run() {
	s := o.status
	s.Status = v1alpha1.ChangeWorkloadRunning
	s.UpdateTime, s.UpdateTimeUnix = times.Format(o.Now), o.Now.Unix()
	s.EntryTime, s.EntryTimeUnix = times.Format(o.Now), o.Now.Unix()
}

// refused writes why the server does not do a step of the order.
func (o *order) refused(kind, reason, message string) {
	record.StepsOfOrder(o.status, o.Change.Generation, o.Now).SetReason(kind, metav1.ConditionFalse, reason, message)
}

func (o *order) ended(a Answer) {
	switch a.Kind {
	case AnswerThrottled:
	case AnswerDone, AnswerDuplicate:
		message := "AlterShield Server was notified that the order ended as " + string(o.status.OrderEnd)
		if EntryIsOpen(o.status) {
			message += "; it did not take the end of the order entry, which stays open there"
		}
		o.status.OrderStage = v1alpha1.OrderEnded
		o.step(v1alpha1.StepEnded, metav1.ConditionTrue, v1alpha1.ReasonAccepted, message)
	case AnswerRetry, AnswerDenied:
		reason := v1alpha1.ReasonUnreachable
		if a.Kind == AnswerDenied {
			reason = v1alpha1.ReasonPermissionDenied
		}
		o.refused(v1alpha1.StepEnded, reason, a.Message)
	default:
		// Refused for good.
		o.status.OrderStage = v1alpha1.OrderEnded
		o.step(v1alpha1.StepEnded, metav1.ConditionFalse, v1alpha1.ReasonRefused, a.Message)
	}
}

func (o *order) finishPlan() OrderPlan {
	// The server's check gets into the status together with the first other change.
	if record.FindCheck(o.status.Checks, record.ServerCheck) != nil || !equality.Semantic.DeepEqual(o.status, &o.Change.Status) {
		o.noteServer()
		o.explainServer()
	}
	if !equality.Semantic.DeepEqual(o.status, &o.Change.Status) {
		o.plan.Status = o.status
	}
	return o.plan
}
