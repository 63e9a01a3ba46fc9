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

// explainDefense says of a release whether its workload is defended in full. An
// event says only how the workload itself lowers the defense. What a namespace
// does is reported once, on its setting, and not on each of its workloads.
func (d *release) explainDefense() {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionDefended)
	reason, message := "", ""
	if d.Settings.Observe {
		reason, message = v1alpha1.ReasonObserving,
			"only observed, by "+d.ObservedBy+": nothing is blocked, paused, rolled back or put into quarantine"
	}
	if len(d.Lowered) > 0 {
		reason, message = v1alpha1.ReasonLowered,
			strings.TrimSuffix("annotations of the workload lower its defense: "+strings.Join(d.Lowered, ", ")+"; "+message, "; ")
	}
	switch {
	case reason != "" && (said == nil || said.Status == metav1.ConditionTrue || said.Reason != reason || said.Message != message):
		d.condition(v1alpha1.ConditionDefended, metav1.ConditionFalse, reason, "%s", message)
		if reason == v1alpha1.ReasonLowered {
			d.event(corev1.EventTypeWarning, v1alpha1.EventDefenseLowered, message)
			d.plan.Events[len(d.plan.Events)-1].Settings = d.Lowered
		}
	case reason == "" && said != nil && said.Status == metav1.ConditionFalse:
		own := said.Reason == v1alpha1.ReasonLowered
		d.condition(v1alpha1.ConditionDefended, metav1.ConditionTrue, v1alpha1.ReasonInFull,
			"the workload is fully defended again; releases that failed in the meantime are not blocked")
		if own {
			d.event(corev1.EventTypeNormal, v1alpha1.EventDefenseRestored, "no annotation of the workload lowers its defense any more")
		}
	}
}

// observeFailure reports what would have been done about a release that failed,
// once for each new failure.
func (d *release) observeFailure(isNew bool) {
	if !isNew {
		return
	}
	if d.Settings.Blocking && !d.Workload.blocked() {
		d.would(v1alpha1.EventWouldSuspend, "releases of the workload would have been blocked")
		if d.halts() {
			d.would(v1alpha1.EventWouldHalt, "the rollout would have been "+d.Workload.Words.Halted()+d.Workload.Words.Means())
		}
	}
	if d.Settings.SelfHealing {
		d.explainSelfHealing()
	}
}

// wouldRollBack says, once, that a release would have been rolled back.
func (d *release) wouldRollBack(to, why string) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionRolledBack)
	if said != nil && said.Reason == v1alpha1.ReasonObserving {
		return
	}
	message := fmt.Sprintf("would have been rolled back to version %s: %s", to, why)
	d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionFalse, v1alpha1.ReasonObserving, "%s", message)
	d.would(v1alpha1.EventWouldRollBack, message)
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

func (d *release) would(reason, message string) {
	d.event(corev1.EventTypeWarning, reason, message+"; the workload is only observed, by "+d.ObservedBy)
}

// Observed makes a denial of a request about a workload that is only observed a
// warning.
func (v AdmissionVerdict) Observed(by string) AdmissionVerdict {
	if v.Allowed {
		return v
	}
	return AdmissionVerdict{Allowed: true, Warning: WouldDeny(by, v.Message)}
}

// WouldDeny is the warning about a request that would have been denied.
func WouldDeny(observedBy, message string) string {
	return fmt.Sprintf("allowed, because the workload is only observed, by %s; otherwise it would have been denied: %s", observedBy, message)
}
