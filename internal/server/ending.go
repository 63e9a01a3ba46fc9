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

// What the server is told of releases and batches that end without success. Its
// entries take one end, which says whether the change worked and starts the POST
// check. So a release that is stuck or is suspended is not told to have failed: it may
// go on. When it ends without success, the entry of its order and those of its
// batches that have no end yet get one that says so.

const (
	// entryEndTime bounds how long the end of an order waits for that of its entry.
	entryEndTime = 30 * time.Second
	// entryEndTimeBefore bounds it where the next attempt waits for the end of the order.
	entryEndTimeBefore = 5 * time.Second
	// askLater is for how long the server is asked for a POST check that had no turn when
	// the server did not answer, and askEvery how often.
	askLater = time.Hour
	askEvery = time.Minute
	// refusals are how often an end is refused before it counts as received, where
	// the PRE check is known to have ended.
	refusals = 4
)

// HowReleaseEnded says in one line how a release ended and why, or how far it has
// come.
func HowReleaseEnded(s *v1alpha1.ChangeWorkloadStatus) string {
	said := func(kind string) string { return record.ConditionMessage(s, kind) }
	switch s.Status {
	case v1alpha1.ChangeWorkloadSuccess:
		if s.UnverifiedCount > 0 {
			return fmt.Sprintf("the release succeeded: %d pods passed, %d of them without a verdict", s.PassCount, s.UnverifiedCount)
		}
		return fmt.Sprintf("the release succeeded: %d pods passed", s.PassCount)
	case v1alpha1.ChangeWorkloadRollback:
		how := strings.TrimPrefix(said(v1alpha1.ConditionRolledBack), "rolled back ") // as an earlier build has it
		if !strings.HasPrefix(how, toVersion) {
			return "the release was rolled back: " + how // a user undid it
		}
		return "the release was rolled back " + how
	case v1alpha1.ChangeWorkloadSuspend:
		return "the release failed: " + said(v1alpha1.ConditionVerified) + stuckOf(s)
	case v1alpha1.ChangeWorkloadCanceled:
		why := ""
		if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionProgressing); c != nil {
			why = strings.TrimSuffix(c.Message, ".") // the sentence has why it was canceled, the detail whether it was stuck
		}
		return "the release was canceled: " + why + stuckOf(s)
	case v1alpha1.ChangeWorkloadFailed:
		return "the release is not verified: " + record.StepMessage(s, v1alpha1.StepAccepted)
	default:
		return "the release did not end: " + said(v1alpha1.ConditionProgressing) + stuckOf(s)
	}
}

// stuckOf says why pods of a release did not come up, where that was told and is so
// still.
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

// HowBatchEnded says the same of a batch whose end is told after it.
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

// EntryIsOpen says that the server has the entry of an order that ends without
// success, and does not have the entry's end.
func EntryIsOpen(s *v1alpha1.ChangeWorkloadStatus) bool {
	return s.OrderNodeID != "" && s.OrderEnd != v1alpha1.FinishSuccess &&
		(s.OrderStage == v1alpha1.OrderPreSubmitted || s.OrderStage == v1alpha1.OrderPostWait)
}

// entryEndsUntil is how long the end of the order waits for that of its entry.
func (o *order) entryEndsUntil() time.Time {
	limit := min(entryEndTime, o.Settings.PostTimeout/2)
	if o.Change.Spec.Release > o.status.ObservedRelease {
		limit = min(limit, entryEndTimeBefore)
	}
	return time.Unix(o.status.OrderEndDueTimeUnix, 0).Add(limit)
}

// endsEntry says that the end of the entry comes before that of the order.
func (o *order) endsEntry(until time.Time) bool {
	if !EntryIsOpen(o.status) || !o.Now.Before(until) {
		return false
	}
	switch c := o.Calls; {
	case c.Call == CallEnd:
		return false
	case c.Call == CallFinish && !c.Tried.IsZero():
		// Nothing is written about a release that left the defense: this is all there is.
		return !takesEnd(c.Last, c, preAnswered(o.status))
	default:
		return true
	}
}

// takesEnd says that the server has the end of an entry, or will never take it. It
// refuses an end while the PRE check goes on, and one that it has received.
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

// entryEnded puts the answer to the end of an entry whose order ends into the status.
func (o *order) entryEnded(a Answer) {
	if !EntryIsOpen(o.status) || !takesEnd(a.Kind, o.Calls, preAnswered(o.status)) {
		return
	}
	s := o.status
	s.OrderStage = v1alpha1.OrderPostSubmitted
	s.OrderPostSubmitTime, s.OrderPostSubmitTimeUnix = times.Format(o.Now), o.Now.Unix()
	o.step(v1alpha1.StepPostChecked, metav1.ConditionUnknown, v1alpha1.ReasonReleaseEnded,
		"AlterShield Server was notified that the release did not succeed; what its POST check says does not count")
}

// EndsWithSuccess reports whether the end of a batch's entry says that the change worked:
// also the end that is notified when the batch is done, because its PRE check had no
// verdict in time. That end starts the POST check.
func EndsWithSuccess(b *v1alpha1.ChangePod) bool {
	return b.Status.EndDueTimeUnix == 0 || b.Status.Message == string(v1alpha1.ChangePodPreTimeout) && !record.BatchFails(b)
}
