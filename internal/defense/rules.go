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

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// RulesInput is what a decision about a check by rules is made from.
type RulesInput struct {
	Now time.Time
	// Delay after the check was written down, before it is made.
	Delay time.Duration
	// Suggestion for who reads that it failed.
	Suggestion string
	// OnError is what it means that the rules could not be evaluated.
	OnError v1alpha1.OnSilence
	// Status of the check, which has begun.
	Status v1alpha1.CheckStatus
	// Tries are how often this process could not evaluate the rules, and NotBefore is
	// when it is to try again.
	Tries     int
	NotBefore time.Time
	// Result is nil until they were evaluated.
	Result *RulesResult
}

// RulesResult is what one evaluation came to.
type RulesResult struct {
	// Pods of the batch that were looked at.
	Pods int
	// Whole: the rules are about the release as a whole, and no pods.
	Whole bool
	// False are the rules that are false.
	False []FalseRule
	// Problem says why not all rules could be evaluated; empty when they could. Final: it
	// would be the same another time.
	Problem string
	Final   bool
}

// FalseRule is a rule that is false of a pod, or, without one, of the batch.
type FalseRule struct {
	Pod string
	// Rule counts from 0.
	Rule    int
	Message string
}

// RulesPlan is what becomes of the check.
type RulesPlan struct {
	// Evaluate the rules, and decide again.
	Evaluate bool
	// Status is the new one, which may be as it was.
	Status v1alpha1.CheckStatus
	// After says when to look again; 0 for never.
	After time.Duration
	// Done: the rules were evaluated, which is not repeated.
	Done bool
}

const (
	// rulesRetry is how long it takes until rules that could not be evaluated are again,
	// at first; it doubles up to maxRulesRetry.
	rulesRetry    = 10 * time.Second
	maxRulesRetry = time.Minute
)

// DecideRules says what becomes of a check by rules. One evaluation is the
// measurement; what could not be evaluated is tried again until the deadline.
func DecideRules(in RulesInput) RulesPlan {
	plan := RulesPlan{Status: *in.Status.DeepCopy()}
	s := &plan.Status
	from := timeOrZero(s.StartTime).Add(in.Delay)
	if in.NotBefore.After(from) {
		from = in.NotBefore
	}
	if left := from.Sub(in.Now); in.Result == nil && left > 0 {
		plan.After = left
		return plan
	}
	if in.Result == nil {
		plan.Evaluate = true
		return plan
	}
	plan.Done = true
	switch {
	case len(in.Result.False) > 0:
		failByRules(s, in.Result.False, in.Suggestion)
	case in.Result.Problem != "":
		plan.Done = false
		in.retryRules(&plan)
	case in.Result.Whole:
		endRules(s, v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "all rules are true")
	case in.Result.Pods == 0:
		endRules(s, v1alpha1.CheckSkipped, v1alpha1.ReasonNoPods, "no pod of the batch is left: there was nothing to look at")
	default:
		endRules(s, v1alpha1.CheckPassed, v1alpha1.ReasonPassed, fmt.Sprintf("all rules are true, of %d pods", in.Result.Pods))
	}
	return plan
}

// endRules ends a check that failed nobody. In the background that is not written where
// it was to be expected.
func endRules(s *v1alpha1.CheckStatus, phase v1alpha1.CheckPhase, reason, message string) {
	if s.Phase == v1alpha1.CheckWatching {
		return
	}
	s.Phase, s.Reason, s.Message = phase, reason, message
}

// failByRules fails the pods for which a rule is false, or the whole batch.
func failByRules(s *v1alpha1.CheckStatus, failures []FalseRule, suggestion string) {
	failures = slices.Clone(failures)
	slices.SortStableFunc(failures, func(a, b FalseRule) int { return strings.Compare(a.Pod, b.Pod) })
	s.FailedPods, s.FailedCount = nil, 0
	for _, f := range failures {
		if f.Pod == "" {
			continue
		}
		s.FailedCount++
		if len(s.FailedPods) < maxFailedPods {
			s.FailedPods = append(s.FailedPods, f.Pod)
		}
	}
	first := failures[0]
	told := first.Message
	if first.Pod != "" {
		told = "pod " + first.Pod + ": " + told
	}
	if len(failures) > 1 {
		told += fmt.Sprintf(" (and %d more pods of the batch)", len(failures)-1)
	}
	s.Phase, s.Reason, s.Value = v1alpha1.CheckFailed, v1alpha1.ReasonRuleFailed, fmt.Sprintf("rules[%d]", first.Rule)
	s.Message = strings.Join(NonEmpty(told, suggestion), "; ")
}

// onError is what it means that the rules could not be evaluated; empty for what the
// setting says.
func (in *RulesInput) onError() v1alpha1.OnSilence {
	if in.OnError == v1alpha1.SilenceDefault {
		return ""
	}
	return in.OnError
}

// retryRules tries again, until it is too late. One in the background is not Watching
// any more: that would be taken for passed when the deadline is over.
func (in *RulesInput) retryRules(plan *RulesPlan) {
	s := &plan.Status
	s.Reason = v1alpha1.ReasonCannotEvaluate
	left := timeOrZero(s.Deadline).Sub(in.Now)
	if in.Result.Final {
		s.Phase, s.OnSilence, s.Message = v1alpha1.CheckError, in.onError(), "the rules cannot be evaluated: "+in.Result.Problem
		return
	}
	if left <= 0 {
		s.Phase, s.OnSilence, s.Message = v1alpha1.CheckError, in.onError(), "the rules could not be evaluated until the deadline: "+in.Result.Problem
		return
	}
	s.Phase, s.Message = v1alpha1.CheckRunning, "the rules cannot be evaluated, and are tried again until the deadline: "+in.Result.Problem
	wait := rulesRetry
	for range min(in.Tries, 10) {
		wait = min(2*wait, maxRulesRetry)
	}
	plan.After = min(wait, left)
}
