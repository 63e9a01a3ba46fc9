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
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// Awaited is a step of the server that a release waits for.
type Awaited struct {
	// Reason of the condition, and What the release waits for, in one sentence.
	Reason, What string
	Since        time.Time
	// Limit of the wait; 0 for none.
	Limit time.Duration
	// Failing: a call fails, and is retried.
	Failing bool
}

// AwaitedOfOrder returns the step that the entry of an order waits for; nil for none.
func AwaitedOfOrder(s *v1alpha1.ChangeWorkloadStatus, set *settings.Settings, now time.Time) *Awaited {
	return orderEntry(s, set, now).awaited("the order")
}

// AwaitedOfBatch returns the step that the entry of a batch waits for; nil for none.
func AwaitedOfBatch(b *v1alpha1.ChangePod, set *settings.Settings, now time.Time) *Awaited {
	return batchEntry(&b.Status, set, now).awaited(fmt.Sprintf("batch %d", record.BatchNumber(b)))
}

// awaited returns the step that an entry waits for; nil for none, or if no call has failed.
func (n *entry) awaited(of string) *Awaited {
	c, stage := &n.pre, v1alpha1.StagePre
	if n.stage == entryToFinish || n.stage == entryPost {
		c, stage = &n.post, v1alpha1.StagePost
	}
	a := &Awaited{Reason: v1alpha1.ReasonNoVerdict, Since: c.since, Limit: c.limit}
	switch {
	case n.stage == entryPre, n.stage == entryPost:
		a.What = fmt.Sprintf("AlterShield Server has given no verdict on the %s check of %s since %s", stage, of, times.UTC(a.Since))
	case n.stage == entryIdle, n.postponed, n.refusal == "":
		return nil
	default:
		a.Reason, a.Failing = v1alpha1.ReasonNotSubmitted, true
		a.What = fmt.Sprintf("the %s check of %s could not be submitted since %s: %s", stage, of, times.UTC(a.Since), wording.Cut(n.refusal))
	}
	return a
}

// AwaitedSubmission returns the submission of an order that the server has not accepted.
func AwaitedSubmission(s *v1alpha1.ChangeWorkloadStatus, set *settings.Settings) *Awaited {
	since := time.Unix(s.StartTimeUnix, 0)
	a := &Awaited{Reason: v1alpha1.ReasonNotSubmitted, Since: since, Failing: true,
		What: fmt.Sprintf("AlterShield Server has not accepted the order since %s", times.UTC(since))}
	if why := record.StepMessage(s, v1alpha1.StepAccepted); why != "" {
		a.What += ": " + wording.Cut(why)
	}
	switch {
	case s.OrderStage == v1alpha1.OrderDenied:
		a.Reason = v1alpha1.ReasonPermissionDenied
		a.What += "; until platform and token are corrected nothing of the release is verified, however long that takes"
	case s.Status == v1alpha1.ChangeWorkloadInit:
		a.Limit = set.PreTimeout
	default:
		a.What += "; the release continues without its checks until it does"
	}
	return a
}
