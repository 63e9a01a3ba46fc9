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
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// loweredByAnnotations begins the message about settings of the workload's own.
const loweredByAnnotations = "annotations: "

// formerLowered began it in an earlier build.
const formerLowered = "annotations of the workload lower its defense: "

// explainDefense says of a release whether its workload is defended in full. An
// event says only how the workload itself lowers the defense. What a namespace
// does is reported once, on its setting, and not on each of its workloads.
func (d *release) explainDefense() {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionDefended)
	reason, message := "", ""
	if d.Settings.Observe {
		reason, message = v1alpha1.ReasonObserving, "observe mode by "+d.ObservedBy
	}
	if len(d.Lowered) > 0 {
		reason, message = v1alpha1.ReasonLowered,
			strings.TrimSuffix(loweredByAnnotations+strings.Join(d.Lowered, ", ")+"; "+message, "; ")
	}
	switch {
	case reason != "" && (said == nil || said.Status == metav1.ConditionTrue || loweredMessage(d.status) != message):
		conditions{kindRelease, &d.status.Conditions, d.Change.Generation, d.Now}.setDefended(d.status.DeniedWrite, reason, message)
		if reason == v1alpha1.ReasonLowered {
			d.event(corev1.EventTypeWarning, v1alpha1.EventDefenseChanged, message)
			d.plan.Events[len(d.plan.Events)-1].Settings = d.Lowered
		}
	case reason == "" && loweredMessage(d.status) != "":
		own := strings.HasPrefix(loweredMessage(d.status), loweredByAnnotations)
		if d.status.DeniedWrite != nil {
			conditions{kindRelease, &d.status.Conditions, d.Change.Generation, d.Now}.setDefended(d.status.DeniedWrite, "", "")
		} else {
			d.condition(v1alpha1.ConditionDefended, metav1.ConditionTrue, v1alpha1.ReasonRecovered, "")
		}
		if own {
			d.event(corev1.EventTypeNormal, v1alpha1.EventDefenseChanged, "no annotation lowers it")
		}
	}
}

// wouldRollBack says, once, that a release would have been rolled back.
func (d *release) wouldRollBack(to, why string) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionRolledBack)
	if said != nil && said.Reason == v1alpha1.ReasonObserving {
		return
	}
	message := fmt.Sprintf("to version %s: %s", to, why)
	d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionFalse, v1alpha1.ReasonObserving, "%s", message)
	d.would(v1alpha1.DryRunRollback, "the release would have been rolled back "+message)
}

// target is the version a release that does not come up is rolled back to; empty
// when it is not.
func (s *standstill) target() string {
	switch {
	case s.refusal != "" || s.first == nil:
		return ""
	case s.old != nil:
		return s.old.Version
	case s.revision != nil:
		return s.revision.Version
	default:
		return ""
	}
}

// would emits the event of an act that observe mode keeps the operator from.
func (d *release) would(act, message string) {
	d.warn(act, v1alpha1.EventDryRun, message+"; observe mode by "+d.ObservedBy)
}

// loweredMessage is the part of the message of ConditionDefended that is about the settings.
func loweredMessage(s *v1alpha1.ChangeWorkloadStatus) string {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDefended)
	if c == nil || c.Status != metav1.ConditionFalse {
		return ""
	}
	lowered := Detail(c)
	if s.DeniedWrite != nil {
		_, lowered, _ = strings.Cut(strings.TrimPrefix(lowered, s.DeniedWrite.Message), alsoLowered)
	}
	if former, ok := strings.CutPrefix(lowered, formerLowered); ok {
		return loweredByAnnotations + former
	}
	return lowered
}

// setDefended sets ConditionDefended to False, with the worst reason and a message that lists all.
func (c conditions) setDefended(denied *v1alpha1.DeniedWrite, reason, lowered string) {
	message := lowered
	if denied != nil {
		reason, message = v1alpha1.ReasonWriteDenied, denied.Message
		if lowered != "" {
			message += alsoLowered + lowered
		}
	}
	c.set(v1alpha1.ConditionDefended, metav1.ConditionFalse, reason, "%s", message)
}

// alsoLowered separates a denied write from other reasons in the message of ConditionDefended.
const alsoLowered = "; also: "
