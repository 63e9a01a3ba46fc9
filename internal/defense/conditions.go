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
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// currentStatus is a copy of the status of a release. Conditions of earlier builds are where this
// build expects them: those of the order in orderSteps, and those that exist no longer nowhere.
func currentStatus(change *v1alpha1.ChangeWorkload) *v1alpha1.ChangeWorkloadStatus {
	s := change.Status.DeepCopy()
	steps := map[string]string{
		"OrderAccepted": v1alpha1.StepAccepted, "OrderPreChecked": v1alpha1.StepPreChecked,
		"OrderPostChecked": v1alpha1.StepPostChecked, "OrderEnded": v1alpha1.StepEnded,
	}
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c metav1.Condition) bool {
		step, moved := steps[c.Type]
		if c.Type = step; moved {
			meta.SetStatusCondition(&s.OrderSteps, c)
		}
		return moved
	})
	if c := meta.FindStatusCondition(s.Conditions, "WritesAccepted"); c != nil && c.Status == metav1.ConditionFalse {
		s.DeniedWrite = &v1alpha1.DeniedWrite{Write: strings.TrimSuffix(c.Reason, "Denied"), Message: wording.Brief(c.Message)}
	}
	for _, removed := range []string{"WaitsForServer", "WritesAccepted", "OverridesAccepted", "RepairBlocked"} {
		meta.RemoveStatusCondition(&s.Conditions, removed)
	}
	for _, list := range [][]metav1.Condition{s.Conditions, s.OrderSteps} {
		for i := range list {
			list[i].Reason = cmp.Or(formerReasons[list[i].Reason], list[i].Reason)
		}
	}
	return s
}

// formerReasons are reasons of earlier builds that a decision reads.
var formerReasons = map[string]string{
	"BlockDenied": v1alpha1.ReasonWriteDenied, "Brake": v1alpha1.ReasonRollbackLimit, "PodsFail": v1alpha1.ReasonPodsFailing,
	"Timeout": v1alpha1.ReasonNoVerdict, "PolledNotPassed": v1alpha1.ReasonNoVerdict, "SubmitFailed": v1alpha1.ReasonNotSubmitted,
}

// Kinds of the catalog.
const (
	kindRelease = "ChangeWorkload"
	kindBatch   = "ChangePod"
	// kindStep is of the steps of an order, which the catalog does not have.
	kindStep = ""
)

// conditions sets the conditions of one object, at one time. The catalog has the sentence of each, a caller its detail.
type conditions struct {
	kind       string
	list       *[]metav1.Condition
	generation int64
	now        time.Time
}

// set sets a condition; its transition time is the time of the decision and
// changes only with its status.
func (c conditions) set(kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
	v1alpha1.SetCondition(c.kind, c.list, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: wording.Printable(fmt.Sprintf(format, args...)),
		ObservedGeneration: c.generation, LastTransitionTime: metav1.NewTime(c.now.Truncate(time.Second)),
	})
}

// Detail returns the message of a condition of a release without the sentence of the catalog.
func Detail(c *metav1.Condition) string { return v1alpha1.Detail(kindRelease, c) }

// setReason sets a condition unless it says the same already in other words: the
// text of an error differs from try to try, and no write is worth that.
func (c conditions) setReason(kind string, status metav1.ConditionStatus, reason, message string) {
	if known := meta.FindStatusCondition(*c.list, kind); known == nil || known.Status != status || known.Reason != reason {
		c.set(kind, status, reason, "%s", message)
	}
}
