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

// BatchInput is the input of a decision about a batch.
type BatchInput struct {
	Now      time.Time
	Settings settings.Settings
	Batch    *v1alpha1.ChangePod
	// Change is the release of the batch; nil if it does not exist.
	Change *v1alpha1.ChangeWorkload
	// Server reports whether a server is configured.
	Server bool
	// Begin lists the checks of policies that begin with the batch. The batch is done when they
	// and the checks in its status are over, except for checks in the background.
	Begin []record.BeginCheck
	// Calls about the batch by this process.
	Calls Calls
}

// BatchPlan is the plan for a batch.
type BatchPlan = Plan[v1alpha1.ChangePodStatus]

// batch is a decision in the making.
type batch struct {
	BatchInput
	status *v1alpha1.ChangePodStatus
	plan   BatchPlan
	// others lists the checks, beside the server's, that the batch waits for.
	others []string
	// mayBegin lists the checks that begin with a batch, including checks that began.
	mayBegin []record.BeginCheck
}

// current reports whether the batch belongs to the current attempt of its release.
func (b *batch) current() bool { return record.IsOfAttempt(b.Change, b.Batch) }

func (b *batch) condition(kind string, status metav1.ConditionStatus, reason, message string) {
	record.ConditionsOfBatch(b.status, b.Batch.Generation, b.Now).Set(kind, status, reason, "%s", message)
}

// warn emits an event about the batch.
func (b *batch) warn(reason, message string) {
	b.plan.Events = append(b.plan.Events, record.Event{Type: corev1.EventTypeWarning, Reason: reason,
		Message: fmt.Sprintf("batch %d of version %s: %s", record.BatchNumber(b.Batch), b.Change.Spec.Reversion, message)})
}

// failPods fails the pods that a check failed; all pods if the check names none or not all of them.
func (b *batch) failPods(c *v1alpha1.CheckStatus) {
	all := len(c.FailedPods) == 0 || int(c.FailedCount) > len(c.FailedPods)
	for i := range b.status.PodResults {
		r := &b.status.PodResults[i]
		if !record.VerdictFails(r.Verdict) && (all || slices.Contains(c.FailedPods, r.Pod)) {
			r.Verdict, r.Message = record.VerdictFail, record.DescribeCheck(c)
		}
	}
}

// nothingToCheck reports whether the server said at the start of the batch that there is nothing to check.
func (b *batch) nothingToCheck() bool { return batchSkipped(b.status) }

func batchSkipped(s *v1alpha1.ChangePodStatus) bool {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionChecked)
	return c != nil && c.Reason == v1alpha1.ReasonSkipped
}

func (b *batch) entry() *entry { return batchEntry(b.status, &b.Settings, b.Now) }

// batchEntry returns the entry of a batch.
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
	if c := meta.FindStatusCondition(s.Conditions, kind); c != nil && c.Status == metav1.ConditionFalse &&
		c.Reason != v1alpha1.ReasonOrderNotAccepted {
		n.refusal = record.DetailOfBatch(c)
	}
	return n
}

// owesEnd reports whether the server has to be notified of the end of a batch that is done: its entry
// may have no end, and its pods failed, or its POST check did not run, or the release ended.
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

// notifyEnd notifies the server of the end of a batch that is done, until one deadline, or for longer
// if that starts the POST check of pods that still count.
func (b *batch) notifyEnd() {
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
	// The server may have the end already: the callback address decides without Calls.
	if !b.Server || s.PostVerdict != nil || b.Calls.Ended || !b.Now.Before(deadline) {
		s.EndDueTimeUnix = 0
		return
	}
	b.plan.Call, b.plan.RequeueAfter = b.Calls.next(CallFinish, b.Now, deadline)
}

// endAnswered writes the answer to the end of the batch into the status.
func (b *batch) endAnswered(a Answer) {
	// If the PRE check still goes on after all this time, the server lost the entry.
	lost := b.Now.Sub(time.Unix(b.status.EndDueTimeUnix, 0)) > b.Settings.PreTimeout+b.Settings.PostTimeout
	preEnded := b.status.PreVerdict != nil || b.status.PostSubmitTimeUnix != 0 || lost
	if takesEnd(a.Kind, b.Calls, preEnded) {
		b.status.EndDueTimeUnix = 0
	}
}
