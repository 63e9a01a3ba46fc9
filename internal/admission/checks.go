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

package admission

import (
	"fmt"
	"strings"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// The checks of policies at the stage Admission. They answer a request to release; a check that cannot be evaluated
// passes.

// Check is the result of one check of a policy for a request.
type Check struct {
	// Name is namespace/policy/check.
	Name       string
	Mode       v1alpha1.PolicyMode
	Suggestion string
	// False is the message of the first rule that is false; empty for none.
	False string
	// Problem is why not all rules could be evaluated; empty if all were.
	Problem string
}

// Phase returns the result of the check in one word.
func (c *Check) Phase() v1alpha1.CheckPhase {
	switch {
	case c.False != "":
		return v1alpha1.CheckFailed
	case c.Problem != "":
		return v1alpha1.CheckError
	default:
		return v1alpha1.CheckPassed
	}
}

// describe describes the result, with the suggestion if the check failed.
func (c *Check) describe() string {
	if c.False == "" {
		return c.Problem
	}
	return strings.Join(wording.NonEmpty(c.False, c.Suggestion), "; ")
}

// Checks are the checks of one request.
type Checks struct {
	// Kind, in lower case, and Name are of the workload.
	Kind, Name string
	// ObservedBy is the reason for which the workload is in observe mode; empty in enforce mode.
	ObservedBy string
	Checks     []Check
}

// Answer is the answer to the request.
type Answer struct {
	// Denial is why the request is refused; empty if it is not.
	Denial string
	// Warnings describe failed checks that do not refuse the request.
	Warnings []string
	// WouldDeny: only observe mode allows the request.
	WouldDeny bool
}

const (
	// maxDenial bounds the texts of all checks that refuse a request, in bytes, without their names.
	maxDenial = 4 << 10
	// maxWarned bounds the text of a check that does not refuse, in bytes, and maxWarnings the number of such checks:
	// clients have a limit, too.
	maxWarned   = 512
	maxWarnings = 8
)

// Decide returns the answer to the request.
func (a Checks) Decide() (answer Answer) {
	var refuse []*Check
	warned := 0
	warn := func(format string, c *Check) {
		if warned++; warned <= maxWarnings {
			answer.Warnings = append(answer.Warnings, fmt.Sprintf(format, a.Kind, a.Name, c.Name, briefly(c.describe(), maxWarned)))
		}
	}
	for i := range a.Checks {
		c := &a.Checks[i]
		switch {
		case c.False != "" && c.Mode != v1alpha1.ModeObserve:
			refuse = append(refuse, c)
		case c.False != "":
			warn("%s %s would be refused, in enforce mode, by the check %s: %s", c)
		case c.Problem != "":
			warn("%s %s passed without the check %s, which could not be made: %s", c)
		default: // it passed
		}
	}
	if more := warned - maxWarnings; more > 0 {
		answer.Warnings = append(answer.Warnings, fmt.Sprintf("%d more checks have warnings", more))
	}
	denial := a.refusal(refuse)
	if denial != "" && a.ObservedBy != "" {
		answer.WouldDeny, answer.Warnings = true, append([]string{WouldDeny(a.ObservedBy, denial)}, answer.Warnings...)
		return answer
	}
	answer.Denial = denial
	return answer
}

// refusal names all checks that refuse a request; empty for none.
func (a Checks) refusal(by []*Check) string {
	reasons := make([]string, len(by))
	for i, c := range by {
		reasons[i] = c.Name + ": " + briefly(c.describe(), maxDenial/len(by))
	}
	switch len(by) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%s %s is refused by the check %s", a.Kind, a.Name, reasons[0])
	default:
		return fmt.Sprintf("%s %s is refused by %d checks: %s", a.Kind, a.Name, len(by), strings.Join(reasons, " | "))
	}
}

// briefly returns a text in one line of at most limit bytes.
func briefly(text string, limit int) string {
	return wording.Shortened(strings.Join(strings.Fields(text), " "), limit)
}
