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
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/times"
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
	Begin []record.BeginCheck
	// Calls is what this process knows of its calls about the batch.
	Calls Calls
}

// BatchPlan is what to do about a batch.
type BatchPlan = Plan[v1alpha1.ChangePodStatus]

// batch is a decision in the making.
type batch struct {
	BatchInput
	status *v1alpha1.ChangePodStatus
	plan   BatchPlan
	// others are the names of the checks that are waited for beside the server's.
	others []string
	// mayBegin are the checks that begin with a batch, also where they did.
	mayBegin []record.BeginCheck
}

// current says that the batch is of the attempt its release is at.
func (b *batch) current() bool { return record.IsOfAttempt(b.Change, b.Batch) }

func (b *batch) condition(kind string, status metav1.ConditionStatus, reason, message string) {
	record.ConditionsOfBatch(b.status, b.Batch.Generation, b.Now).Set(kind, status, reason, "%s", message)
}

// warn emits an event about the batch.
func (b *batch) warn(reason, message string) {
	b.plan.Events = append(b.plan.Events, record.Event{Type: corev1.EventTypeWarning, Reason: reason,
		Message: fmt.Sprintf("batch %d of version %s: %s", record.BatchNumber(b.Batch), b.Change.Spec.Reversion, message)})
}

// failPods fails the pods that a check failed, or all: also where there are more of
// them than it names.
func (b *batch) failPods(c *v1alpha1.CheckStatus) {
	all := len(c.FailedPods) == 0 || int(c.FailedCount) > len(c.FailedPods)
	for i := range b.status.PodResults {
		r := &b.status.PodResults[i]
		if !record.VerdictFails(r.Verdict) && (all || slices.Contains(c.FailedPods, r.Pod)) {
			r.Verdict, r.Message = record.VerdictFail, record.DescribeCheck(c)
		}
	}
}

// nothingToCheck says that the server said so at the start of the batch.
func (b *batch) nothingToCheck() bool { return batchSkipped(b.status) }

func batchSkipped(s *v1alpha1.ChangePodStatus) bool {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionChecked)
	return c != nil && c.Reason == v1alpha1.ReasonSkipped
}

func (b *batch) entry() *entry { return batchEntry(b.status, &b.Settings, b.Now) }

// batchEntry is a batch as one of the server's entries.
func batchEntry(s *v1alpha1.ChangePodStatus, set *settings.Settings, now time.Time) *entry {
	const kind = v1alpha1.ConditionSubmitted
	n := newEntry(s.ChangePodID, s.Conditions, kind, kind, batchSkipped(s), set, now)
	n.pre = check{since: times.FromUnix(s.PreSubmitTimeUnix), limit: time.Duration(s.PreTimeoutThreshold) * time.Second, verdict: s.PreVerdict}
	n.post = check{since: times.FromUnix(s.PostSubmitTimeUnix), limit: set.PostTimeout, verdict: s.PostVerdict}
	n.early = true
	switch s.Status {
	case v1alpha1.ChangePodInit, v1alpha1.ChangePodPreWait:
		n.stage, n.pre.limit = entryToStart, set.PreTimeout
	case v1alpha1.ChangePodPreSubmitted:
		n.stage = entryPre
	case v1alpha1.ChangePodPostWait:
		n.stage = entryToFinish
	case v1alpha1.ChangePodPostSubmitted:
		n.stage, n.post.limit = entryPost, time.Duration(s.PostTimeOutThreshold)*time.Second
	default:
	}
	if c := meta.FindStatusCondition(s.Conditions, kind); c != nil && c.Status == metav1.ConditionFalse && c.Reason != v1alpha1.ReasonOrderNotAccepted {
		n.refusal = record.DetailOfBatch(c)
	}
	return n
}

// owesEnd says that a batch is done and the server is to be told of it: its entry
// has no end, or is not known to have one, and its pods failed, its POST check had no
// turn, or the release ended.
func (b *batch) owesEnd() bool {
	s := b.status
	if !b.Server || s.ChangePodID == "" || s.PostVerdict != nil || s.Message == string(v1alpha1.ChangePodPostFailed) || b.nothingToCheck() {
		return false
	}
	switch s.Status {
	case v1alpha1.ChangePodPreSubmitted, v1alpha1.ChangePodPostWait:
	case v1alpha1.ChangePodPostSubmitted:
		if b.Calls.Ended {
			return false
		}
	default:
		return false
	}
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionChecked)
	if c != nil && c.Reason == v1alpha1.ReasonReleaseEnded || s.Message == string(v1alpha1.ChangePodPreTimeout) {
		return true
	}
	for i := range s.PodResults {
		if record.VerdictFails(s.PodResults[i].Verdict) {
			return true
		}
	}
	return false
}

// tellEnd notifies the server of the end of a batch that is done, for at most one
// deadline, or for longer where that starts the POST check of pods that still count.
func (b *batch) tellEnd() {
	s := b.status
	if s.EndDueTimeUnix == 0 {
		return
	}
	limit := b.Settings.PostTimeout
	if EndsWithSuccess(b.Batch) {
		if limit = askLater; !b.current() || !record.IsVerified(b.Change.Status.Status) {
			limit = 0
		}
	}
	deadline := time.Unix(s.EndDueTimeUnix, 0).Add(limit)
	// Who decided that it is owed need not have known that the server has it: the
	// callback address knows of no calls.
	if !b.Server || s.PostVerdict != nil || b.Calls.Ended || !b.Now.Before(deadline) {
		s.EndDueTimeUnix = 0
		return
	}
	b.plan.Call, b.plan.RequeueAfter = b.Calls.next(CallFinish, b.Now, deadline)
}

// endAnswered puts the answer into the status.
func (b *batch) endAnswered(a Answer) {
	// An entry whose PRE check still goes on after all this time was lost.
	lost := b.Now.Sub(time.Unix(b.status.EndDueTimeUnix, 0)) > b.Settings.PreTimeout+b.Settings.PostTimeout
	preEnded := b.status.PreVerdict != nil || b.status.PostSubmitTimeUnix != 0 || lost
	if takesEnd(a.Kind, b.Calls, preEnded) {
		b.status.EndDueTimeUnix = 0
	}
}
