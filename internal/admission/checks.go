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

// The checks of policies at the stage Admission. They answer a request to release; what
// cannot be measured lets pass.

// Check is what one check of a policy came to about a request.
type Check struct {
	// Name is namespace/policy/check.
	Name       string
	Mode       v1alpha1.PolicyMode
	Suggestion string
	// False is the message of the first rule that is false; empty when none is.
	False string
	// Problem says why not all rules could be evaluated; empty when they could.
	Problem string
}

// Phase is what the check came to in one word.
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

// describe says what it came to, and its suggestion where it failed.
func (c *Check) describe() string {
	if c.False == "" {
		return c.Problem
	}
	return strings.Join(wording.NonEmpty(c.False, c.Suggestion), "; ")
}

// Checks are those of one request.
type Checks struct {
	// Kind in lower case, and Name, of the workload.
	Kind, Name string
	// ObservedBy is what makes the workload in observe mode; empty when it is not.
	ObservedBy string
	Checks     []Check
}

// Answer is the answer to it.
type Answer struct {
	// Denial says why the request is refused; empty when it is not.
	Denial string
	// Warnings tell of what it is not refused for.
	Warnings []string
	// WouldDeny: it is not refused because the workload is in observe mode.
	WouldDeny bool
}

const (
	// maxTold is how many bytes are told of all checks that refuse a request, beside
	// their names.
	maxTold = 4 << 10
	// maxWarned is how many bytes are told of a check that refuses none, and maxWarnings
	// how many such checks are told of: clients have a limit, too.
	maxWarned   = 512
	maxWarnings = 8
)

// Decide says what becomes of the request.
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
			warn("%s %s passed the check %s unseen, which could not be made: %s", c)
		default: // it passed
		}
	}
	if more := warned - maxWarnings; more > 0 {
		answer.Warnings = append(answer.Warnings, fmt.Sprintf("the same of %d more checks", more))
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
	told := make([]string, len(by))
	for i, c := range by {
		told[i] = c.Name + ": " + briefly(c.describe(), maxTold/len(by))
	}
	switch len(by) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%s %s is refused by the check %s", a.Kind, a.Name, told[0])
	default:
		return fmt.Sprintf("%s %s is refused by %d checks: %s", a.Kind, a.Name, len(by), strings.Join(told, " | "))
	}
}

// briefly is a text in one line of at most so many bytes.
func briefly(text string, limit int) string {
	return wording.Shortened(strings.Join(strings.Fields(text), " "), limit)
}
