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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// DescribeDenial returns the denied write and the reason.
func DescribeDenial(what, message string) string {
	return fmt.Sprintf("could not %s, the operator tries again: %s", what, wording.Brief(message))
}

// Writes of the operator for a release, in status.deniedWrite.
const (
	WriteBlock    = "Block"
	WriteLift     = "Lift"
	WriteResume   = "Resume"
	WritePace     = "Pace"
	WriteBatch    = "Batch"
	WriteRollback = "Rollback"
	WriteRequest  = "Request"
	WriteRecord   = "Record"
	WriteRemember = "Remember"
)

// NoteDenied records in a status that a write for the release is denied, and reports whether the status changed. The
// message of a policy may differ between attempts, so only a different write replaces it.
func NoteDenied(s *v1alpha1.ChangeWorkloadStatus, generation int64, now time.Time, write, message string) bool {
	if s.DeniedWrite != nil && s.DeniedWrite.Write == write {
		return false
	}
	lowered := loweredMessage(s)
	s.DeniedWrite = &v1alpha1.DeniedWrite{Write: write, Message: wording.Brief(message)}
	setDefended(record.ConditionsOfRelease(s, generation, now), s.DeniedWrite, "", lowered)
	return true
}

// NoteAccepted clears the denied write of a status if it is among writes, and reports whether it was.
func NoteAccepted(s *v1alpha1.ChangeWorkloadStatus, generation int64, now time.Time, writes ...string) bool {
	if s.DeniedWrite == nil || !slices.Contains(writes, s.DeniedWrite.Write) {
		return false
	}
	c, lowered := record.ConditionsOfRelease(s, generation, now), loweredMessage(s)
	s.DeniedWrite = nil
	switch {
	case strings.HasPrefix(lowered, bypassedFreeze):
		setDefended(c, nil, v1alpha1.ReasonFreezeBypassed, lowered)
	case strings.HasPrefix(lowered, loweredByAnnotations):
		setDefended(c, nil, v1alpha1.ReasonLowered, lowered)
	case lowered != "":
		setDefended(c, nil, v1alpha1.ReasonObserving, lowered)
	default:
		c.Set(v1alpha1.ConditionDefended, metav1.ConditionTrue, v1alpha1.ReasonRecovered, WriteAccepted)
	}
	return true
}

// WriteAccepted is the message of ConditionDefended after a denied write.
const WriteAccepted = "the denied write succeeded, or is no longer needed"

// BlockDenied returns the rest of a plan whose block was denied: the release still fails, reports that it blocks
// nothing yet, and blocks later.
func BlockDenied(change *v1alpha1.ChangeWorkload, plan ReleasePlan, now time.Time, message string) ReleasePlan {
	left := ReleasePlan{Events: plan.Events, RequeueAfter: plan.RequeueAfter}
	status := change.Status.DeepCopy()
	if plan.Status != nil {
		status = plan.Status.DeepCopy()
	}
	NoteDenied(status, change.Generation, now, WriteBlock, message)
	said := meta.FindStatusCondition(change.Status.Conditions, v1alpha1.ConditionBlocked)
	if said != nil && said.Reason == v1alpha1.ReasonWriteDenied {
		meta.SetStatusCondition(&status.Conditions, *said)
	} else {
		record.ConditionsOfRelease(status, change.Generation, now).
			Set(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonWriteDenied, "%s", message)
	}
	heldAsBefore(status, change)
	keepTransition(status.Conditions, change.Status.Conditions)
	left.Status = decided(status, &change.Status, now)
	return left
}

// PaceDenied returns the rest of a plan whose only write to the workload changed the pace of the rollout and was
// denied: the release continues, and reports the denial.
func PaceDenied(change *v1alpha1.ChangeWorkload, plan ReleasePlan, now time.Time, message string) ReleasePlan {
	left := plan
	left.Action, left.Hold, left.Halt, left.Evict, left.ActionEvents = LeaveWorkload, nil, false, nil, nil
	left.Events = slices.DeleteFunc(slices.Clone(plan.Events), func(e record.Event) bool { return e.Reason == v1alpha1.EventHoldStarted })
	status := change.Status.DeepCopy()
	if plan.Status != nil {
		status = plan.Status.DeepCopy()
	}
	NoteDenied(status, change.Generation, now, WritePace, message)
	heldAsBefore(status, change)
	left.PutOff = false
	left.Status = decided(status, &change.Status, now)
	return left
}

// heldAsBefore restores the condition Held, because the hold did not change.
func heldAsBefore(status *v1alpha1.ChangeWorkloadStatus, change *v1alpha1.ChangeWorkload) {
	meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionHeld)
	said := meta.FindStatusCondition(change.Status.Conditions, v1alpha1.ConditionHeld)
	if said != nil && change.Status.Attempt == status.Attempt {
		meta.SetStatusCondition(&status.Conditions, *said)
	}
}

// keepTransition restores the transition time of conditions whose status did not change.
func keepTransition(conditions, before []metav1.Condition) {
	for i := range conditions {
		c := &conditions[i]
		if was := meta.FindStatusCondition(before, c.Type); was != nil && was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
	}
}

// paceDenied reports whether the last write of a halt or of a hold was denied.
func paceDenied(s *v1alpha1.ChangeWorkloadStatus) bool {
	return s.DeniedWrite != nil && s.DeniedWrite.Write == WritePace
}

// blockDenied reports whether the block of this release was denied so far.
func blockDenied(d *release) bool {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionBlocked)
	return said != nil && said.Status == metav1.ConditionFalse && said.Reason == v1alpha1.ReasonWriteDenied && !d.Workload.Blocked()
}

// loweredByAnnotations begins the message about annotations of the workload that lower its defense.
const loweredByAnnotations = "annotations: "

// formerLowered is the beginning that an earlier build wrote.
const formerLowered = "annotations of the workload lower its defense: "

// explainDefense sets whether the workload of a release is defended in full. An event reports only annotations of the
// workload itself: a setting of the namespace is reported once, on the setting, not on each workload.
func explainDefense(d *release) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionDefended)
	reason, message := "", ""
	if d.Settings.Observe {
		reason, message = v1alpha1.ReasonObserving, "observe mode by "+d.ObservedBy
	}
	if len(d.Lowered) > 0 {
		reason, message = v1alpha1.ReasonLowered,
			strings.TrimSuffix(loweredByAnnotations+strings.Join(d.Lowered, ", ")+"; "+message, "; ")
	}
	if by := d.status.BypassedFreeze; by != "" {
		reason, message = v1alpha1.ReasonFreezeBypassed, strings.TrimSuffix(bypassedFreeze+by+"; "+message, "; ")
	}
	switch {
	case reason != "" && (said == nil || said.Status == metav1.ConditionTrue || loweredMessage(d.status) != message):
		setDefended(record.ConditionsOfRelease(d.status, d.Change.Generation, d.Now), d.status.DeniedWrite, reason, message)
		if len(d.Lowered) > 0 {
			d.event(corev1.EventTypeWarning, v1alpha1.EventDefenseChanged, message)
			d.plan.Events[len(d.plan.Events)-1].Settings = d.Lowered
		}
	case reason == "" && loweredMessage(d.status) != "":
		own := strings.HasPrefix(loweredMessage(d.status), loweredByAnnotations)
		if d.status.DeniedWrite != nil {
			setDefended(record.ConditionsOfRelease(d.status, d.Change.Generation, d.Now), d.status.DeniedWrite, "", "")
		} else {
			d.condition(v1alpha1.ConditionDefended, metav1.ConditionTrue, v1alpha1.ReasonRecovered, "")
		}
		if own {
			d.event(corev1.EventTypeNormal, v1alpha1.EventDefenseChanged, "no annotation lowers it")
		}
	}
}

// wouldRollBack reports, once, that a release would have been rolled back.
func wouldRollBack(d *release, to, why string) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionRolledBack)
	if said != nil && said.Reason == v1alpha1.ReasonObserving {
		return
	}
	message := fmt.Sprintf("to version %s: %s", to, why)
	d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionFalse, v1alpha1.ReasonObserving, "%s", message)
	dryRun(d, v1alpha1.DryRunRollback, "the release would have been rolled back "+message)
}

// dryRun records an act that observe mode prevents, and emits its event.
func dryRun(d *release, act, message string) {
	if !slices.Contains(d.status.DryRuns, act) {
		d.status.DryRuns = append(slices.Clone(d.status.DryRuns), act)
	}
	d.warn(act, v1alpha1.EventDryRun, message+"; observe mode by "+d.ObservedBy)
}

// loweredMessage returns the part of the message of ConditionDefended about the settings.
func loweredMessage(s *v1alpha1.ChangeWorkloadStatus) string {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDefended)
	if c == nil || c.Status != metav1.ConditionFalse {
		return ""
	}
	lowered := record.Detail(c)
	if s.DeniedWrite != nil {
		_, lowered, _ = strings.Cut(strings.TrimPrefix(lowered, s.DeniedWrite.Message), alsoLowered)
	}
	if former, ok := strings.CutPrefix(lowered, formerLowered); ok {
		return loweredByAnnotations + former
	}
	return lowered
}

// setDefended sets ConditionDefended to False, with the worst reason and a message that lists all reasons.
func setDefended(c record.Conditions, denied *v1alpha1.DeniedWrite, reason, lowered string) {
	message := lowered
	if denied != nil {
		reason, message = v1alpha1.ReasonWriteDenied, denied.Message
		if lowered != "" {
			message += alsoLowered + lowered
		}
	}
	c.Set(v1alpha1.ConditionDefended, metav1.ConditionFalse, reason, "%s", message)
}

// alsoLowered separates a denied write from other reasons in the message of ConditionDefended.
const alsoLowered = "; also: "
