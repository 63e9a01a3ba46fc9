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

package policy

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rules"
)

// Judgement is the result of validating a policy.
type Judgement struct {
	// Valid: its spec is correct. Accepted: it also counts for every workload that it selects.
	Valid, Accepted bool
	Reason, Message string
}

// Judge validates a policy. overFor is a workload for which too many policies count, and this
// policy does not; empty for none.
func Judge(p *v1alpha1.DefensePolicy, operator, overFor string) Judgement {
	problem, reason := "", v1alpha1.ReasonInvalidPolicy
	if isTooLarge(p) {
		problem, reason = "the policy takes more than 64 KiB of memory; split it into several policies", v1alpha1.ReasonTooLarge
	} else {
		problem = Accepted(p, operator)
	}
	if problem != "" {
		switch {
		case p.Status.InForce == nil:
		case p.Status.InForceGeneration == p.Generation && selectorsAccepted(p, operator) == "":
			// An earlier version of the operator accepted it.
			problem += "; until it is corrected, this check ends as Error, and the others of the policy count"
		default:
			problem += fmt.Sprintf("; generation %d stays in force", p.Status.InForceGeneration)
		}
		return Judgement{Reason: reason, Message: problem}
	}
	if overFor != "" {
		return Judgement{Valid: true, Reason: v1alpha1.ReasonTooMany, Message: fmt.Sprintf(
			"at most %d policies and %d checks count for a workload, policies of the operator's namespace first, older policies first; "+
				"this policy does not count %snarrow its selector, or remove other policies", MaxPolicies, MaxChecks, forWorkload(overFor))}
	}
	if p.Spec.Mode == v1alpha1.ModeDisabled {
		return Judgement{Valid: true, Accepted: true, Reason: v1alpha1.ReasonInForce, Message: "it is disabled, so nothing is checked"}
	}
	return Judgement{Valid: true, Accepted: true, Reason: v1alpha1.ReasonInForce, Message: "it applies to releases that begin from now on"}
}

// SetAside sets the condition that one process evaluates no rules of the policy until a time, unless
// another generation is in force. It reports whether the status is to be written.
func SetAside(p *v1alpha1.DefensePolicy, of rules.Policy, now, until time.Time) bool {
	if p.UID != of.UID || p.Status.InForceGeneration != of.Generation {
		return false
	}
	meta.RemoveStatusCondition(&p.Status.Conditions, v1alpha1.ConditionSetAside)
	return v1alpha1.SetCondition("DefensePolicy", &p.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionSetAside, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonRulesDoNotEnd, ObservedGeneration: of.Generation,
		LastTransitionTime: metav1.NewTime(now),
		Message:            fmt.Sprintf("one replica until %s", until.UTC().Format(time.RFC3339)),
	})
}

// StaysAside returns how long a policy stays set aside. It removes the condition when that time is
// over, or if another generation is in force.
func StaysAside(s *v1alpha1.DefensePolicyStatus, now time.Time) time.Duration {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionSetAside)
	if c == nil {
		return 0
	}
	left := c.LastTransitionTime.Add(rules.AsideFor).Sub(now)
	if left <= 0 || c.ObservedGeneration != s.InForceGeneration {
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionSetAside)
		return 0
	}
	return left
}

func forWorkload(name string) string { return "for " + name + ": " }

// ReportedFor reports whether the status of a policy says that it does not count for a workload.
func ReportedFor(p *v1alpha1.DefensePolicy, name string) bool {
	c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted)
	return c != nil && c.Reason == v1alpha1.ReasonTooMany && strings.Contains(c.Message, forWorkload(name))
}
