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
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/times"
)

// An entry of the server takes one end, which says whether the change worked, and starts the POST
// check. The server gets no end for a release that is stuck or suspended, because it may go on. When a
// release ends without success, the entries of its order and of its batches that have no end yet get an
// end without success.

const (
	// entryEndTime bounds the wait of the end of an order for the end of its entry.
	entryEndTime = 30 * time.Second
	// entryEndTimeBefore bounds that wait while the next attempt waits for the end of the order.
	entryEndTimeBefore = 5 * time.Second
	// askLater is how long POST checks are requested later that the server missed while it did
	// not answer, and askEvery the time between the tries.
	askLater = time.Hour
	askEvery = time.Minute
	// refusals is the number of refused ends after which the end counts as received, once the
	// PRE check has ended.
	refusals = 4
)

// HowReleaseEnded returns in one line how a release ended and why, or its progress.
func HowReleaseEnded(s *v1alpha1.ChangeWorkloadStatus) string {
	said := func(kind string) string { return record.ConditionMessage(s, kind) }
	switch s.Status {
	case v1alpha1.ChangeWorkloadSuccess:
		if s.UnverifiedCount > 0 {
			return fmt.Sprintf("the release succeeded: %d pods passed, %d of them without a verdict", s.PassCount, s.UnverifiedCount)
		}
		if record.ReasonOf(s, v1alpha1.ConditionVerified) == v1alpha1.ReasonRolloutComplete {
			return "the release succeeded: its rollout is complete"
		}
		return fmt.Sprintf("the release succeeded: %d pods passed", s.PassCount)
	case v1alpha1.ChangeWorkloadRollback:
		how := strings.TrimPrefix(said(v1alpha1.ConditionRolledBack), "rolled back ") // written by an earlier version of the operator
		if !strings.HasPrefix(how, toVersion) {
			return "the release was rolled back: " + how // by a user
		}
		return "the release was rolled back " + how
	case v1alpha1.ChangeWorkloadSuspend:
		return "the release failed: " + said(v1alpha1.ConditionVerified) + stuckOf(s)
	case v1alpha1.ChangeWorkloadCanceled:
		why := ""
		if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionProgressing); c != nil {
			why = strings.TrimSuffix(c.Message, ".") // the first sentence has the reason, the detail only whether it was stuck
		}
		return "the release was canceled: " + why + stuckOf(s)
	case v1alpha1.ChangeWorkloadFailed:
		return "the release is not verified: " + record.StepMessage(s, v1alpha1.StepAccepted)
	default:
		return "the release did not end: " + said(v1alpha1.ConditionProgressing) + stuckOf(s)
	}
}

// stuckOf returns why pods of a release do not come up, if the condition says so.
func stuckOf(s *v1alpha1.ChangeWorkloadStatus) string {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionRolledBack)
	if c == nil || c.Status != metav1.ConditionFalse || record.RankOfStuck(c.Reason) == 0 && c.Reason != v1alpha1.ReasonObserving {
		return ""
	}
	if detail := record.Detail(c); strings.HasPrefix(detail, toVersion) {
		return "; it would have been rolled back " + detail
	}
	return "; " + record.Detail(c)
}

// toVersion begins the detail of ConditionRolledBack that names the target of a rollback.
const toVersion = "to version "

// HowBatchEnded returns in one line how a batch ended and why.
func HowBatchEnded(change *v1alpha1.ChangeWorkload, batch *v1alpha1.ChangePod) string {
	c := meta.FindStatusCondition(batch.Status.Conditions, v1alpha1.ConditionChecked)
	switch {
	case c == nil:
		return "the batch ended"
	case c.Reason != v1alpha1.ReasonReleaseEnded || batch.Spec.Attempt != change.Status.Attempt:
		return cmp.Or(record.DetailOfBatch(c), c.Message)
	default:
		return cmp.Or(record.DetailOfBatch(c), c.Message) + "; " + HowReleaseEnded(&change.Status)
	}
}

// EntryIsOpen reports whether the order ends without success, and the server has its entry without an
// end.
func EntryIsOpen(s *v1alpha1.ChangeWorkloadStatus) bool {
	return s.OrderNodeID != "" && s.OrderEnd != v1alpha1.FinishSuccess &&
		(s.OrderStage == v1alpha1.OrderPreSubmitted || s.OrderStage == v1alpha1.OrderPostWait)
}

// entryEndsUntil returns until when the end of the order waits for the end of its entry.
func (o *order) entryEndsUntil() time.Time {
	limit := min(entryEndTime, o.Settings.PostTimeout/2)
	if o.Change.Spec.Release > o.status.ObservedRelease {
		limit = min(limit, entryEndTimeBefore)
	}
	return time.Unix(o.status.OrderEndDueTimeUnix, 0).Add(limit)
}

// endsEntry reports whether the end of the entry is notified before the end of the order.
func (o *order) endsEntry(until time.Time) bool {
	if !EntryIsOpen(o.status) || !o.Now.Before(until) {
		return false
	}
	switch c := o.Calls; {
	case c.Call == CallEnd:
		return false
	case c.Call == CallFinish && !c.Tried.IsZero():
		// Only the memory has the answer if the workload is not defended.
		return !takesEnd(c.Last, c, preAnswered(o.status))
	default:
		return true
	}
}

// takesEnd reports whether the server has the end of an entry, or will never take it. The server
// refuses an end while the PRE check goes on, and a second end.
func takesEnd(answer AnswerKind, c Calls, preEnded bool) bool {
	switch answer {
	case AnswerRetry, AnswerThrottled, AnswerDenied:
		return false
	case AnswerUnsupported:
		return preEnded && c.Failures >= refusals
	default:
		return true
	}
}

// entryEnded writes the answer to the end of the order's entry into the status.
func (o *order) entryEnded(a Answer) {
	if !EntryIsOpen(o.status) || !takesEnd(a.Kind, o.Calls, preAnswered(o.status)) {
		return
	}
	s := o.status
	s.OrderStage = v1alpha1.OrderPostSubmitted
	s.OrderPostSubmitTime, s.OrderPostSubmitTimeUnix = times.Format(o.Now), o.Now.Unix()
	o.step(v1alpha1.StepPostChecked, metav1.ConditionUnknown, v1alpha1.ReasonReleaseEnded,
		"AlterShield Server was notified that the release did not succeed; the verdict of its POST check does not count")
}

// EndsWithSuccess reports whether the end of a batch's entry says that the change worked. If the PRE
// check had no verdict in time, the end is notified after the batch is done, with success, so that it
// starts the POST check.
func EndsWithSuccess(b *v1alpha1.ChangePod) bool {
	return b.Status.EndDueTimeUnix == 0 || b.Status.Message == string(v1alpha1.ChangePodPreTimeout) && !record.BatchFails(b)
}
