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

// maxOrderIDLength is the server's limit of an order's id in bytes.
const maxOrderIDLength = 128

// OrderID is our id of the order of one attempt of a release: the same
// whenever it is computed, and no other order's, also not that of a version
// that is released again after its record was removed.
func OrderID(cluster, workload types.UID, version string, release int64, attempt int32) string {
	compact := func(uid types.UID) string { return strings.ReplaceAll(string(uid), "-", "") }
	id := fmt.Sprintf("%s-%s-%s-%d-%d", compact(cluster), compact(workload), version, release, attempt)
	return shorten(id, maxOrderIDLength)
}

// VersionOfOrder reads the version out of the id of one of our orders; empty
// when it is none.
func VersionOfOrder(orderID string) string {
	parts := strings.Split(orderID, "-")
	if len(parts) < 4 || len(parts[2]) != 32 {
		return ""
	}
	return parts[2]
}

// orderAccepted says that the server knows the order and was not told how it
// ended.
func orderAccepted(stage v1alpha1.OrderStage) bool {
	switch stage {
	case v1alpha1.OrderPreWait, v1alpha1.OrderPreSubmitted, v1alpha1.OrderPostWait, v1alpha1.OrderPostSubmitted, v1alpha1.OrderPostFinish:
		return true
	default:
		return false
	}
}

// OrderIsOpen says that the server knows the order of a release and was not
// told how it ended, as far as its status says.
func OrderIsOpen(s *v1alpha1.ChangeWorkloadStatus) bool { return orderAccepted(s.OrderStage) }

// OrderWaits says that something about the order of a release may still be to
// do.
func OrderWaits(change *v1alpha1.ChangeWorkload) bool {
	switch change.Status.OrderStage {
	case v1alpha1.OrderNone, v1alpha1.OrderRefused, v1alpha1.OrderEnded:
		return false
	default:
		return true
	}
}

// SameStatus says that a release's status did not change.
func SameStatus(before, after *v1alpha1.ChangeWorkload) bool {
	return equality.Semantic.DeepEqual(before.Status, after.Status)
}

// OrderPreIsLate says that a verdict on the order's PRE check is of no use any
// more: once its end was submitted the server always says that it passed.
func OrderPreIsLate(stage v1alpha1.OrderStage) bool {
	switch stage {
	case v1alpha1.OrderPostSubmitted, v1alpha1.OrderPostFinish, v1alpha1.OrderEnded:
		return true
	default:
		return false
	}
}

// The order's part in the decision about its release.

// followOrder moves a release that waits for its order to be accepted.
func (d *release) followOrder() {
	s := d.status
	if !IsOpen(s.Status) {
		return
	}
	waits := s.Status == v1alpha1.ChangeWorkloadInit
	switch {
	case s.OrderStage == v1alpha1.OrderRefused:
		d.enter(v1alpha1.ChangeWorkloadFailed, corev1.EventTypeWarning, "OrderRefused",
			"AlterShield Server refused the order, the release is not verified: "+conditionMessage(s, v1alpha1.ConditionOrderAccepted))
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonRefused, "the server refused the order: the release is not verified")
	case !waits:
	case d.failedOrder() != nil:
		// judge suspends it.
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeNormal, "", "")
	case orderAccepted(s.OrderStage):
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeNormal, "OrderAccepted", "AlterShield Server accepted the order "+s.OrderID)
	case d.Cluster == "":
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeWarning, "ReleaseUndefended",
			"no AlterShield Server is configured any more; the release goes on without its checks")
	case s.OrderStage == v1alpha1.OrderSubmitting && d.undefended():
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeWarning, "ReleaseUndefended",
			fmt.Sprintf("AlterShield Server did not take the order within %s; the release goes on without its checks", d.Settings.PreTimeout))
	}
	if waits && s.Status == v1alpha1.ChangeWorkloadRunning {
		// Batches are waited for from now on.
		s.EntryTime, s.EntryTimeUnix = FormatTime(d.Now), d.Now.Unix()
	}
}

// undefended says that the server had its time to accept the order, and was
// asked at least once. Where silence fails, the order's verdict says so.
func (d *release) undefended() bool {
	return d.untilUndefended() <= 0 && !d.Settings.SilenceFails &&
		meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionOrderAccepted) != nil
}

func (d *release) untilUndefended() time.Duration {
	return time.Unix(d.status.EntryTimeUnix, 0).Add(d.Settings.PreTimeout).Sub(d.Now)
}

// orderPreOver says that batches may be made: the order's PRE check is over, or
// there is none.
func (d *release) orderPreOver() bool {
	switch d.status.OrderStage {
	case v1alpha1.OrderPreWait, v1alpha1.OrderPreSubmitted:
		return d.Cluster == ""
	default:
		return true
	}
}

// orderPostOver says that nothing of the order stands in the way of success.
func (d *release) orderPostOver() bool {
	return !orderAccepted(d.status.OrderStage) || d.status.OrderStage == v1alpha1.OrderPostFinish || d.Cluster == ""
}

// awaitOrderPost asks for the order's POST check.
func (d *release) awaitOrderPost() {
	if d.status.OrderPostDueTimeUnix == 0 {
		d.status.OrderPostDueTimeUnix = d.Now.Unix()
	}
}

func (d *release) endOrder(how v1alpha1.FinishState) {
	if OrderIsOpen(d.status) && d.status.OrderEnd == "" {
		d.status.OrderEnd, d.status.OrderEndDueTimeUnix = how, d.Now.Unix()
	}
}

// failedOrder is the failing verdict on the order itself; nil when there is
// none.
func (d *release) failedOrder() *v1alpha1.CheckVerdict {
	for _, v := range []*v1alpha1.CheckVerdict{d.status.OrderPreVerdict, d.status.OrderPostVerdict} {
		if v != nil && VerdictFails(v.Verdict) {
			return v
		}
	}
	return nil
}

func (d *release) describeOrder() string {
	stage, v := "PRE", d.failedOrder()
	if v == nil {
		return ""
	}
	if v == d.status.OrderPostVerdict {
		stage = "POST"
	}
	s := fmt.Sprintf("the %s check of the order failed: %s", stage, v.Verdict)
	if v.Message != "" {
		s += ": " + cut(v.Message)
	}
	return s
}

// unclaimed leaves out the verdicts that their batches have by now.
func (d *release) unclaimed() []v1alpha1.UnclaimedVerdict {
	var left []v1alpha1.UnclaimedVerdict
	for i := range d.status.UnclaimedVerdicts {
		u := &d.status.UnclaimedVerdicts[i]
		if !slices.ContainsFunc(d.Batches, func(b v1alpha1.ChangePod) bool {
			return b.Status.ChangePodID == u.NodeID && verdictOf(&b.Status, u.Stage) != nil
		}) {
			left = append(left, *u)
		}
	}
	return left
}

func conditionMessage(s *v1alpha1.ChangeWorkloadStatus, kind string) string {
	if c := meta.FindStatusCondition(s.Conditions, kind); c != nil {
		return c.Message
	}
	return ""
}

// The order's own life.

// OrderInput is what a decision about an order is made from.
type OrderInput struct {
	Now      time.Time
	Settings settings.Settings
	// Change is the release.
	Change *v1alpha1.ChangeWorkload
	// Defended says that the workload is there and under defense. The order of
	// one that is not is only ended, and nothing is written about it.
	Defended bool
	// Calls is what this process knows of its calls about the order.
	Calls Calls
}

// OrderPlan is what to do about an order.
type OrderPlan struct {
	// Status is set when it is to be written, before anything else is done.
	Status *v1alpha1.ChangeWorkloadStatus
	// Call to the server, if any.
	Call Call
	// RequeueAfter says when to look again, if nothing happens before.
	RequeueAfter time.Duration
}

// DecideOrder says what to do about the order of a release. The answer to a
// call is put into the status by [AnswerOrder].
func DecideOrder(in OrderInput) OrderPlan {
	o := &order{OrderInput: in, status: in.Change.Status.DeepCopy()}
	if o.status.OrderID == "" || o.status.OrderStage == v1alpha1.OrderEnded || in.Change.Spec.Release > o.status.ObservedRelease {
		return OrderPlan{}
	}
	if o.status.OrderEnd != "" {
		o.end()
	} else if in.Defended {
		o.follow()
	}
	if !equality.Semantic.DeepEqual(o.status, &in.Change.Status) {
		o.plan.Status = o.status
	}
	return o.plan
}

// order is a decision in the making.
type order struct {
	OrderInput
	status *v1alpha1.ChangeWorkloadStatus
	plan   OrderPlan
}

func (o *order) follow() {
	s := o.status
	switch s.OrderStage {
	case v1alpha1.OrderSubmitting, v1alpha1.OrderDenied:
		o.submit()
	case v1alpha1.OrderPreWait:
		since := time.Unix(s.OrderSubmitTimeUnix, 0)
		if o.Calls.tried() && !o.Now.Before(since.Add(o.Settings.PreTimeout)) {
			o.preOver(v1alpha1.ReasonSubmitFailed, "its start could not be notified in time", false)
			return
		}
		o.plan.Call, o.plan.RequeueAfter = o.Calls.next(CallStart, o.Now, since.Add(o.Settings.PreTimeout))
	case v1alpha1.OrderPreSubmitted:
		o.awaitVerdict(v1alpha1.StagePre)
	case v1alpha1.OrderPostWait:
		o.finish()
	case v1alpha1.OrderPostSubmitted:
		o.awaitVerdict(v1alpha1.StagePost)
	case v1alpha1.OrderNone, v1alpha1.OrderRefused, v1alpha1.OrderPostFinish, v1alpha1.OrderEnded:
	}
}

// submit submits the order, while the release needs it: also one that runs
// undefended, so that what is left of it is checked when the server comes back.
func (o *order) submit() {
	s := o.status
	if s.Status == v1alpha1.ChangeWorkloadSuccess || !IsVerified(s.Status) {
		return
	}
	deadline := time.Unix(s.EntryTimeUnix, 0).Add(o.Settings.PreTimeout)
	if s.Status == v1alpha1.ChangeWorkloadInit && s.OrderStage == v1alpha1.OrderSubmitting && o.Settings.SilenceFails &&
		o.Calls.tried() && !o.Now.Before(deadline) && s.OrderPreVerdict == nil {
		s.OrderPreVerdict = silence(o.Now, "AlterShield Server did not take the order within "+o.Settings.PreTimeout.String())
		return
	}
	o.plan.Call, o.plan.RequeueAfter = o.Calls.next(CallSubmit, o.Now, time.Time{})
	if left := deadline.Sub(o.Now); s.Status == v1alpha1.ChangeWorkloadInit && left > 0 && o.plan.Call == CallNone {
		o.plan.RequeueAfter = min(o.plan.RequeueAfter, left)
	}
}

// awaitVerdict waits for the verdict on a check that runs, asks for it from
// half of its time on, and gives up when the time is over.
func (o *order) awaitVerdict(stage v1alpha1.CheckStage) {
	s := o.status
	verdict, submitted, limit, poll, over := &s.OrderPreVerdict, s.OrderPreSubmitTimeUnix, o.Settings.PreTimeout, CallPollPre, o.preOver
	if stage == v1alpha1.StagePost {
		verdict, submitted, limit, poll, over = &s.OrderPostVerdict, s.OrderPostSubmitTimeUnix, o.Settings.PostTimeout, CallPollPost, o.postOver
	}
	o.claim(stage, verdict)
	if v := *verdict; v != nil {
		if VerdictFails(v.Verdict) {
			over(v1alpha1.ReasonCheckFailed, v.Message, true)
		} else {
			over(v1alpha1.ReasonPassed, v.Message, true)
		}
		return
	}
	call, wait, timedOut := o.Calls.await(poll, o.Now, time.Unix(submitted, 0), limit, s.OrderID+string(stage))
	if timedOut {
		reason, message := timeoutOf(o.Calls, stage, limit)
		over(reason, message, false)
		return
	}
	o.plan.Call, o.plan.RequeueAfter = call, wait
}

// finish notifies the end of the order's node when the last pod has passed.
func (o *order) finish() {
	s := o.status
	o.claim(v1alpha1.StagePost, &s.OrderPostVerdict)
	switch {
	case s.OrderPostVerdict != nil:
		// The end was received, and the process died before it could tell.
		s.OrderStage = v1alpha1.OrderPostSubmitted
		s.OrderPostSubmitTime, s.OrderPostSubmitTimeUnix = FormatTime(o.Now), o.Now.Unix()
		return
	case s.OrderPostDueTimeUnix == 0:
		return
	case s.OrderNodeID == "":
		// Its start was refused: there is nothing to end.
		o.postOver(v1alpha1.ReasonSubmitFailed, "the server has no node of the order", false)
		return
	}
	deadline := time.Unix(s.OrderPostDueTimeUnix, 0).Add(o.Settings.PostTimeout)
	if o.Calls.tried() && !o.Now.Before(deadline) {
		o.postOver(v1alpha1.ReasonSubmitFailed, "its end could not be notified in time", false)
		return
	}
	o.plan.Call, o.plan.RequeueAfter = o.Calls.next(CallFinish, o.Now, deadline)
}

// claim takes a verdict that arrived before its node was known.
func (o *order) claim(stage v1alpha1.CheckStage, into **v1alpha1.CheckVerdict) {
	s := o.status
	for i := range s.UnclaimedVerdicts {
		u := s.UnclaimedVerdicts[i]
		if u.NodeID != s.OrderNodeID || u.NodeID == "" || u.Stage != stage {
			continue
		}
		if *into == nil {
			*into = &u.CheckVerdict
		}
		s.UnclaimedVerdicts = slices.Delete(s.UnclaimedVerdicts, i, i+1)
		if len(s.UnclaimedVerdicts) == 0 {
			s.UnclaimedVerdicts = nil
		}
		return
	}
}

func (o *order) preOver(reason, message string, answered bool) {
	o.over("PRE", &o.status.OrderPreVerdict, v1alpha1.OrderPostWait, reason, message, answered)
}

func (o *order) postOver(reason, message string, answered bool) {
	o.over("POST", &o.status.OrderPostVerdict, v1alpha1.OrderPostFinish, reason, message, answered)
}

// over ends a check of the order; answered says that it ended with an answer of
// the server.
func (o *order) over(stage string, verdict **v1alpha1.CheckVerdict, next v1alpha1.OrderStage, reason, message string, answered bool) {
	o.status.OrderStage = next
	status := metav1.ConditionFalse
	if reason == v1alpha1.ReasonPassed || reason == v1alpha1.ReasonSkipped {
		status = metav1.ConditionTrue
	}
	message = strings.TrimSuffix(fmt.Sprintf("%s check of the order: %s", stage, message), ": ")
	o.condition(v1alpha1.ConditionOrderChecked, status, reason, message)
	if !answered && o.Settings.SilenceFails && *verdict == nil {
		*verdict = silence(o.Now, message)
	}
}

// end tells the server how the order ended, once, for at most one deadline.
func (o *order) end() {
	s := o.status
	deadline := time.Unix(s.OrderEndDueTimeUnix, 0).Add(o.Settings.PostTimeout)
	if !o.Now.Before(deadline) && (o.Calls.tried() || !o.Defended) {
		if o.Defended {
			s.OrderStage = v1alpha1.OrderEnded
		}
		return
	}
	o.plan.Call, o.plan.RequeueAfter = o.Calls.next(CallEnd, o.Now, deadline)
}

func (o *order) condition(kind string, status metav1.ConditionStatus, reason, message string) {
	setCondition(&o.status.Conditions, o.Change.Generation, o.Now, kind, status, reason, "%s", message)
}

// AnswerOrder puts the server's answer to a call about an order into the status
// of its release.
func AnswerOrder(in OrderInput, call Call, a Answer) *v1alpha1.ChangeWorkloadStatus {
	o := &order{OrderInput: in, status: in.Change.Status.DeepCopy()}
	s := o.status
	switch call {
	case CallSubmit:
		o.submitted(a)
	case CallStart:
		o.started(a)
	case CallFinish:
		o.finished(a)
	case CallPollPre:
		if a.Kind == AnswerDone && s.OrderStage == v1alpha1.OrderPreSubmitted {
			o.preOver(v1alpha1.ReasonPassed, "passed when asked", true)
		}
	case CallPollPost:
		if a.Kind == AnswerDone && s.OrderStage == v1alpha1.OrderPostSubmitted {
			o.postOver(v1alpha1.ReasonPassed, "passed when asked", true)
		}
	case CallEnd:
		o.ended(a)
	case CallNone:
	}
	return s
}

func (o *order) submitted(a Answer) {
	s := o.status
	accepted := func(message string) {
		if s.OrderStage == v1alpha1.OrderSubmitting || s.OrderStage == v1alpha1.OrderDenied {
			s.OrderStage = v1alpha1.OrderPreWait
		}
		s.OrderSubmitTime, s.OrderSubmitTimeUnix = FormatTime(o.Now), o.Now.Unix()
		if a.URL != "" {
			s.OrderURL = a.URL
		}
		o.condition(v1alpha1.ConditionOrderAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, message)
	}
	switch a.Kind {
	case AnswerDone:
		accepted("AlterShield Server accepted the order")
	case AnswerDuplicate:
		accepted("AlterShield Server has the order already")
	case AnswerDenied:
		s.OrderStage = v1alpha1.OrderDenied
		o.unaccepted(v1alpha1.ReasonPermissionDenied, a.Message)
	case AnswerRetry:
		s.OrderStage = v1alpha1.OrderSubmitting
		o.unaccepted(v1alpha1.ReasonUnreachable, a.Message)
	case AnswerIllegal, AnswerUnsupported, AnswerNoCheck, AnswerRefused:
		s.OrderStage = v1alpha1.OrderRefused
		o.unaccepted(v1alpha1.ReasonRefused, a.Message)
	case AnswerThrottled, AnswerNotPassed:
	}
}

func (o *order) unaccepted(reason, message string) {
	setReason(&o.status.Conditions, o.Change.Generation, o.Now, v1alpha1.ConditionOrderAccepted, metav1.ConditionFalse, reason, message)
}

func (o *order) started(a Answer) {
	s := o.status
	if s.OrderStage != v1alpha1.OrderPreWait {
		return
	}
	switch a.Kind {
	case AnswerDone, AnswerDuplicate:
		s.OrderNodeID, s.OrderStage = a.NodeID, v1alpha1.OrderPreSubmitted
		s.OrderPreSubmitTime, s.OrderPreSubmitTimeUnix = FormatTime(o.Now), o.Now.Unix()
		o.condition(v1alpha1.ConditionOrderChecked, metav1.ConditionUnknown, v1alpha1.ReasonChecking, "PRE check of the order: runs")
		if a.SkipCheck {
			o.preOver(v1alpha1.ReasonSkipped, "the server said that there is nothing to check", true)
		}
	case AnswerNoCheck:
		o.preOver(v1alpha1.ReasonSkipped, a.Message, true)
	case AnswerDenied:
		o.unchecked(v1alpha1.ReasonPermissionDenied, a.Message)
	case AnswerIllegal:
		o.unchecked(v1alpha1.ReasonNotConfigured, a.Message)
	case AnswerRetry:
		o.unchecked(v1alpha1.ReasonUnreachable, a.Message)
	case AnswerUnsupported, AnswerRefused:
		o.preOver(v1alpha1.ReasonSubmitFailed, a.Message, false)
	case AnswerThrottled, AnswerNotPassed:
	}
}

func (o *order) unchecked(reason, message string) {
	setReason(&o.status.Conditions, o.Change.Generation, o.Now, v1alpha1.ConditionOrderChecked, metav1.ConditionFalse, reason, message)
}

func (o *order) finished(a Answer) {
	s := o.status
	if s.OrderStage != v1alpha1.OrderPostWait {
		return
	}
	received := func() {
		s.OrderStage = v1alpha1.OrderPostSubmitted
		s.OrderPostSubmitTime, s.OrderPostSubmitTimeUnix = FormatTime(o.Now), o.Now.Unix()
		o.condition(v1alpha1.ConditionOrderChecked, metav1.ConditionUnknown, v1alpha1.ReasonChecking, "POST check of the order: runs")
	}
	switch a.Kind {
	case AnswerDone, AnswerDuplicate:
		checked := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionOrderChecked)
		skipped := checked != nil && checked.Reason == v1alpha1.ReasonSkipped
		received()
		if skipped {
			o.postOver(v1alpha1.ReasonSkipped, "the server said that there is nothing to check", true)
		}
	case AnswerUnsupported:
		// The server says so of an end it received before, and of one that
		// comes before the PRE check ended there. Time tells them apart.
		if waited := o.Now.Sub(time.Unix(s.OrderPostDueTimeUnix, 0)); waited >= finishDoubt || unconfirmed(s.Conditions, v1alpha1.ConditionOrderChecked) {
			received()
		} else {
			o.unchecked(v1alpha1.ReasonNotYetAccepted, a.Message)
		}
	case AnswerNoCheck:
		o.postOver(v1alpha1.ReasonSkipped, a.Message, true)
	case AnswerDenied:
		o.unchecked(v1alpha1.ReasonPermissionDenied, a.Message)
	case AnswerRetry:
		o.unchecked(retryReason(s.Conditions, v1alpha1.ConditionOrderChecked, a), a.Message)
	case AnswerIllegal, AnswerRefused:
		o.postOver(v1alpha1.ReasonSubmitFailed, a.Message, false)
	case AnswerThrottled, AnswerNotPassed:
	}
}

func (o *order) ended(a Answer) {
	switch a.Kind {
	case AnswerThrottled:
	case AnswerDone, AnswerDuplicate:
		o.status.OrderStage = v1alpha1.OrderEnded
		o.condition(v1alpha1.ConditionOrderEnded, metav1.ConditionTrue, v1alpha1.ReasonAccepted,
			"AlterShield Server was told that the order ended as "+string(o.status.OrderEnd))
	case AnswerRetry, AnswerDenied:
		reason := v1alpha1.ReasonUnreachable
		if a.Kind == AnswerDenied {
			reason = v1alpha1.ReasonPermissionDenied
		}
		setReason(&o.status.Conditions, o.Change.Generation, o.Now, v1alpha1.ConditionOrderEnded, metav1.ConditionFalse, reason, a.Message)
	default:
		// Refused for good.
		o.status.OrderStage = v1alpha1.OrderEnded
		o.condition(v1alpha1.ConditionOrderEnded, metav1.ConditionFalse, v1alpha1.ReasonRefused, a.Message)
	}
}
