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

package checks

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/rules"
)

// rulesInput is the input of a decision about a check of type cel.
type rulesInput struct {
	Now   time.Time
	Check *policy.Check
	// Status of the check, which has begun.
	Status v1alpha1.CheckStatus
	// Tries is the number of evaluations that failed in this process.
	Tries  int
	Result rulesResult
}

// rulesResult is the result of one evaluation.
type rulesResult struct {
	// Pods is the number of pods of the batch that were checked.
	Pods int
	// Whole: the rules are about the release as a whole, not about pods.
	Whole bool
	// False lists the rules that are false.
	False []rules.Failure
	// Problem is the reason why some rules could not be evaluated; empty if all could. Final:
	// another try would have the same problem.
	Problem string
	Final   bool
}

const (
	// rulesRetry is the wait after the first evaluation that failed; it doubles up to maxRulesRetry.
	rulesRetry    = 10 * time.Second
	maxRulesRetry = time.Minute
)

// decideRules returns the next status of a check from the result of its rules. One evaluation is
// enough. An evaluation that failed is repeated until the deadline, after the time that it returns.
func decideRules(in rulesInput) (next v1alpha1.CheckStatus, after time.Duration) {
	next = *in.Status.DeepCopy()
	switch r := &in.Result; {
	case len(r.False) > 0:
		failByRules(&next, r.False, in.Check.Suggestion)
	case r.Problem != "":
		after = in.retry(&next)
	case next.Phase == v1alpha1.CheckWatching: // a pass changes nothing
	case r.Pods == 0 && !r.Whole:
		next.Phase, next.Reason = v1alpha1.CheckSkipped, v1alpha1.ReasonNoPods
		next.Message = "no pod of the batch is left to check"
	default:
		next.Phase, next.Reason, next.Message = v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "all rules are true"
		if !r.Whole {
			next.Message += fmt.Sprintf(" for %d pods", r.Pods)
		}
	}
	return next, after
}

// failByRules fails the pods for which a rule is false, or the batch.
func failByRules(s *v1alpha1.CheckStatus, failures []rules.Failure, suggestion string) {
	failures = slices.Clone(failures)
	slices.SortStableFunc(failures, func(a, b rules.Failure) int { return strings.Compare(a.Pod, b.Pod) })
	first := failures[0]
	var names []string // none for a rule about the batch
	for _, f := range failures {
		if f.Pod != "" {
			names = append(names, f.Pod)
		}
	}
	message := first.Message
	if first.Pod != "" {
		message = "pod " + first.Pod + ": " + message
	}
	s.Phase, s.Reason, s.Value = v1alpha1.CheckFailed, v1alpha1.ReasonRuleFailed, fmt.Sprintf("rules[%d]", first.Rule)
	report(s, names, message, suggestion)
}

// retry tries again until the deadline. A check in the background leaves the phase Watching,
// which counts as passed after the deadline.
func (in *rulesInput) retry(s *v1alpha1.CheckStatus) (after time.Duration) {
	s.Reason = v1alpha1.ReasonCannotEvaluate
	left := timeOf(s.Deadline).Sub(in.Now)
	switch {
	case in.Result.Final:
		s.Phase, s.OnSilence, s.Message = v1alpha1.CheckError, onSilence(in.Check.OnError), "the rules cannot be evaluated: "+in.Result.Problem
	case left <= 0:
		s.Phase, s.OnSilence = v1alpha1.CheckError, onSilence(in.Check.OnError)
		s.Message = "the rules could not be evaluated until the deadline: " + in.Result.Problem
	default:
		s.Phase, s.Message = v1alpha1.CheckRunning, "the rules cannot be evaluated, and are tried again until the deadline: "+in.Result.Problem
		after = min(rulesRetry<<min(in.Tries, 3), maxRulesRetry, left)
	}
	return after
}
