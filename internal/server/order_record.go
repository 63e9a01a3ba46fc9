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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/times"
)

// OrderInput is the input of a decision about an order.
type OrderInput struct {
	Now      time.Time
	Settings settings.Settings
	// Change is the release.
	Change *v1alpha1.ChangeWorkload
	// Defended reports whether the workload exists and is defended. Otherwise its order
	// is only ended, and nothing is written about it.
	Defended bool
	// Calls about the order by this process.
	Calls Calls
}

// OrderPlan is the plan for an order.
type OrderPlan = Plan[v1alpha1.ChangeWorkloadStatus]

// order is a decision in the making.
type order struct {
	OrderInput
	status *v1alpha1.ChangeWorkloadStatus
	plan   OrderPlan
}

func (o *order) step(kind string, status metav1.ConditionStatus, reason, message string) {
	record.StepsOfOrder(o.status, o.Change.Generation, o.Now).Set(kind, status, reason, "%s", message)
}

func (o *order) event(reason, message string) {
	o.plan.Events = append(o.plan.Events, record.Event{Type: corev1.EventTypeWarning, Reason: reason,
		Message: fmt.Sprintf("version %s: %s", o.Change.Spec.Reversion, message)})
}

func (o *order) entry() *entry { return orderEntry(o.status, &o.Settings, o.Now) }

// orderEntry returns the entry of the order of a release.
func orderEntry(s *v1alpha1.ChangeWorkloadStatus, set *settings.Settings, now time.Time) *entry {
	n := newEntry(s.OrderNodeID, s.OrderSteps, v1alpha1.StepPreChecked, v1alpha1.StepPostChecked, orderSkipped(s), set, now)
	n.pre = check{since: times.FromUnix(s.OrderPreSubmitTimeUnix), limit: set.PreTimeout, verdict: s.OrderPreVerdict}
	n.post = check{since: times.FromUnix(s.OrderPostSubmitTimeUnix), limit: set.PostTimeout, verdict: s.OrderPostVerdict}
	n.postponed = s.OrderPostDueTimeUnix == 0
	n.doubted = n.doubted && preAnswered(s)
	n.seed = s.OrderID + string(v1alpha1.StagePre)
	step := v1alpha1.StepPreChecked
	switch s.OrderStage {
	case v1alpha1.OrderPreWait:
		n.stage, n.pre.since, n.postponed = entryToStart, times.FromUnix(s.OrderSubmitTimeUnix), false
	case v1alpha1.OrderPreSubmitted:
		n.stage = entryPre
	case v1alpha1.OrderPostWait:
		n.stage, n.post.since, step = entryToFinish, times.FromUnix(s.OrderPostDueTimeUnix), v1alpha1.StepPostChecked
	case v1alpha1.OrderPostSubmitted:
		n.stage, n.seed = entryPost, s.OrderID+string(v1alpha1.StagePost)
	default:
	}
	if c := meta.FindStatusCondition(s.OrderSteps, step); c != nil && c.Status == metav1.ConditionFalse {
		n.refusal = c.Message
	}
	return n
}

// orderSkipped reports whether the server said at the start of the order that there is nothing to check.
func orderSkipped(s *v1alpha1.ChangeWorkloadStatus) bool {
	c := meta.FindStatusCondition(s.OrderSteps, v1alpha1.StepPreChecked)
	return c != nil && c.Reason == v1alpha1.ReasonSkipped
}

// preAnswered reports whether the PRE check ended with an answer of the server, so it has ended there.
func preAnswered(s *v1alpha1.ChangeWorkloadStatus) bool {
	return meta.IsStatusConditionTrue(s.OrderSteps, v1alpha1.StepPreChecked)
}
