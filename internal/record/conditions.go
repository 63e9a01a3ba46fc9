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

package record

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

// CurrentStatus returns a copy of the status of a release, with conditions of earlier builds as this build expects
// them: the order's conditions in orderSteps, and obsolete ones removed.
func CurrentStatus(change *v1alpha1.ChangeWorkload) *v1alpha1.ChangeWorkloadStatus {
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

// formerReasons maps reasons of earlier builds that a decision reads.
var formerReasons = map[string]string{
	"BlockDenied": v1alpha1.ReasonWriteDenied, "Brake": v1alpha1.ReasonRollbackLimit, "PodsFail": v1alpha1.ReasonPodsFailing,
	"Timeout": v1alpha1.ReasonNoVerdict, "PolledNotPassed": v1alpha1.ReasonNoVerdict, "SubmitFailed": v1alpha1.ReasonNotSubmitted,
}

// Kinds of the catalog.
const (
	kindRelease = "ChangeWorkload"
	kindBatch   = "ChangePod"
	// kindStep is the kind of the steps of an order, which the catalog does not have.
	kindStep = ""
)

// Conditions sets the conditions of one object, at one time. The catalog has the sentence of each condition, and a
// caller its detail.
type Conditions struct {
	kind       string
	list       *[]metav1.Condition
	generation int64
	now        time.Time
}

// ConditionsOfRelease returns the conditions of a release.
func ConditionsOfRelease(s *v1alpha1.ChangeWorkloadStatus, generation int64, now time.Time) Conditions {
	return Conditions{kindRelease, &s.Conditions, generation, now}
}

// ConditionsOfBatch returns the conditions of a batch.
func ConditionsOfBatch(s *v1alpha1.ChangePodStatus, generation int64, now time.Time) Conditions {
	return Conditions{kindBatch, &s.Conditions, generation, now}
}

// StepsOfOrder returns the steps of the order of a release.
func StepsOfOrder(s *v1alpha1.ChangeWorkloadStatus, generation int64, now time.Time) Conditions {
	return Conditions{kindStep, &s.OrderSteps, generation, now}
}

// Set sets a condition; its transition time is the time of the decision and
// changes only with its status.
func (c Conditions) Set(kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
	v1alpha1.SetCondition(c.kind, c.list, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: wording.Printable(fmt.Sprintf(format, args...)),
		ObservedGeneration: c.generation, LastTransitionTime: metav1.NewTime(c.now.Truncate(time.Second)),
	})
}

// Detail returns the message of a condition of a release without the sentence of the catalog.
func Detail(c *metav1.Condition) string { return v1alpha1.Detail(kindRelease, c) }

// SetReason sets a condition unless it already has this status and reason: a changed error text is no reason to write.
func (c Conditions) SetReason(kind string, status metav1.ConditionStatus, reason, message string) {
	if known := meta.FindStatusCondition(*c.list, kind); known == nil || known.Status != status || known.Reason != reason {
		c.Set(kind, status, reason, "%s", message)
	}
}

// Event is an event to emit after its write has succeeded.
type Event struct {
	// Type is corev1.EventTypeNormal or EventTypeWarning.
	Type            string
	Reason, Message string
	// OfRelease: the event is on the release, too, not only on the workload.
	OfRelease bool
	// Settings are the settings that lower the defense, of an event DefenseChanged.
	Settings []string
	// Act distinguishes the event from others of its reason: it is a part of the event's action.
	Act string
}

// DetailOfBatch returns the message of a condition of a batch without the sentence of the catalog.
func DetailOfBatch(c *metav1.Condition) string { return v1alpha1.Detail(kindBatch, c) }
