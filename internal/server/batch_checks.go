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
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// begin writes the checks that begin with the batch into the status.
func (b *batch) begin() {
	waits := slices.ContainsFunc(b.Begin, func(c record.BeginCheck) bool {
		return c.Status.Stage == v1alpha1.StageBatchPre && !c.Status.Background
	})
	for i := range b.Begin {
		c := b.Begin[i].Begun(b.Now)
		if waits && c.Stage != v1alpha1.StageBatchPre {
			c.Phase, c.StartTime, c.DueTime, c.Deadline = v1alpha1.CheckPending, nil, nil, nil
		}
		record.SetCheck(&b.status.Checks, c, b.Now)
	}
}

// beginPending begins the pending checks, as their policies are now, once the checks at BatchPre are
// over. If one failed, the batch is over, too.
func (b *batch) beginPending() {
	before := func(c v1alpha1.CheckStatus) bool {
		return c.Stage == v1alpha1.StageBatchPre && !c.Background && !record.CheckIsOver(&c)
	}
	if b.status.Status == v1alpha1.ChangePodExecuteDone || record.FailedCheck(b.status.Checks) != nil ||
		slices.ContainsFunc(b.status.Checks, before) {
		return
	}
	for i := range b.status.Checks {
		c := &b.status.Checks[i]
		if !record.IsPending(c) {
			continue
		}
		at := slices.IndexFunc(b.mayBegin, func(m record.BeginCheck) bool { return m.Status.Name == c.Name && m.Status.Stage == c.Stage })
		if at >= 0 {
			record.SetCheck(&b.status.Checks, b.mayBegin[at].Begun(b.Now), b.Now)
			continue
		}
		canceled := *c
		canceled.Phase, canceled.Reason = v1alpha1.CheckCanceled, v1alpha1.ReasonPolicyRemoved
		canceled.Message = "the policy has no such check now"
		record.SetCheck(&b.status.Checks, canceled, b.Now)
	}
}

// begins reports whether checks may begin with the batch. They begin with its first write, so that
// the list of checks does not change. No checks begin if the batch is done, or its release has ended.
func (b *batch) begins() bool {
	return b.Batch.Status.Status != v1alpha1.ChangePodExecuteDone && b.Change != nil && record.IsCurrentBatch(b.Change, b.Batch) &&
		!slices.ContainsFunc(b.Batch.Status.Checks, func(c v1alpha1.CheckStatus) bool { return c.Name != record.ServerCheck })
}

// failedBy fails the pods that a check failed.
func (b *batch) failedBy(c *v1alpha1.CheckStatus) {
	b.failPods(c)
	b.status.Message = v1alpha1.ChangePodMessagePostFinish
	b.condition(v1alpha1.ConditionChecked, metav1.ConditionTrue, v1alpha1.ReasonCheckFailed, "the check "+wording.Cut(record.DescribeCheck(c)))
}

// passedBy passes the pods without a verdict, if a check that the batch waited for passed. If the
// server owed a verdict, the results keep saying that there was none.
func (b *batch) passedBy() {
	s := b.status
	if record.ServerSilent(s) || !slices.ContainsFunc(b.others, func(name string) bool {
		c := record.FindCheck(s.Checks, name)
		return c != nil && c.Phase == v1alpha1.CheckPassed
	}) {
		return
	}
	for i := range s.PodResults {
		if r := &s.PodResults[i]; r.Verdict == record.VerdictNone {
			r.Verdict, r.Message = record.VerdictPass, ""
		}
	}
	if s.Message == v1alpha1.ChangePodMessageSkipped {
		s.Message = v1alpha1.ChangePodMessagePostFinish
		b.condition(v1alpha1.ConditionChecked, metav1.ConditionTrue, v1alpha1.ReasonPassed, "")
	}
}

// emit emits an event about a change of a check, once.
func (b *batch) emit(before, now *v1alpha1.CheckStatus) {
	if reason := record.EventOf(before, now); reason != "" {
		b.warn(reason, "check "+record.DescribeCheck(now))
	}
}

// conclude ends the batch once all checks are over, or a check has failed, or the release has ended.
// It cancels checks that are not over.
func (b *batch) conclude() {
	s := b.status
	b.beginPending()
	over, failed := record.ChecksOver(s.Checks, b.others), record.FailedCheck(s.Checks)
	if failed == nil && over {
		failed = record.SilentCheck(s.Checks, record.NamesOf(s.Checks), b.Settings.SilenceFails)
	}
	switch {
	case failed != nil:
		b.failedBy(failed)
	case over:
		b.passedBy()
	}
	server := record.FindCheck(s.Checks, record.ServerCheck)
	if !over && failed == nil && b.current() && record.IsVerified(b.Change.Status.Status) &&
		(server == nil || server.Phase != v1alpha1.CheckFailed) {
		return
	}
	for i := range s.Checks {
		if c := &s.Checks[i]; slices.Contains(b.others, c.Name) && !record.CheckIsOver(c) || record.IsPending(c) {
			canceled := *c
			canceled.Phase, canceled.Reason = v1alpha1.CheckCanceled, v1alpha1.ReasonReleaseEnded
			canceled.Message = "the batch ended before the check was over"
			record.SetCheck(&s.Checks, canceled, b.Now)
		}
	}
	if b.owesEnd() {
		s.EndDueTimeUnix = b.Now.Unix()
	}
	s.Status = v1alpha1.ChangePodExecuteDone
}
