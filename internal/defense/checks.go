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
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// ServerCheck is the name of the check by AlterShield Server.
const ServerCheck = "altershield"

// CheckIsOver says that a check has said what it had to say.
func CheckIsOver(c *v1alpha1.CheckStatus) bool {
	switch c.Phase {
	case "", v1alpha1.CheckPending, v1alpha1.CheckRunning:
		return false
	default:
		return true
	}
}

// FindCheck finds a check by its name; nil when there is none.
func FindCheck(checks []v1alpha1.CheckStatus, name string) *v1alpha1.CheckStatus {
	i := slices.IndexFunc(checks, func(c v1alpha1.CheckStatus) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &checks[i]
}

// SetCheck puts a check among the others. The time at which it ended is that of
// its first end.
func SetCheck(checks *[]v1alpha1.CheckStatus, c v1alpha1.CheckStatus, now time.Time) {
	if len(c.Message) > maxCheckMessage {
		c.Message = cutAtRune(c.Message, maxCheckMessage-len("...")) + "..."
	}
	c.FailedPods = c.FailedPods[:min(len(c.FailedPods), maxFailedPods)]
	known := FindCheck(*checks, c.Name)
	if CheckIsOver(&c) && c.CompletionTime == nil {
		c.CompletionTime = timeOf(now)
		if known != nil && known.Phase == c.Phase && known.CompletionTime != nil {
			c.CompletionTime = known.CompletionTime
		}
	}
	if known != nil {
		*known = c
		return
	}
	*checks = append(*checks, c)
}

const (
	// maxCheckMessage and maxFailedPods are the limits of the API.
	maxCheckMessage = 1024
	maxFailedPods   = 20
)

// timeOf is a time as the API keeps it.
func timeOf(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	kept := metav1.NewTime(t.Truncate(time.Second))
	return &kept
}

// checksOver says that all checks of these names are over, and which one failed
// first in their order; nil for none.
func checksOver(checks []v1alpha1.CheckStatus, names []string) (over bool, failed *v1alpha1.CheckStatus) {
	over = true
	for _, name := range names {
		c := FindCheck(checks, name)
		if c == nil || !CheckIsOver(c) {
			over = false
			continue
		}
		if c.Phase == v1alpha1.CheckFailed && failed == nil {
			failed = c
		}
	}
	return over, failed
}

// silentCheck is the first of these names that ended without a verdict; nil for
// none.
func silentCheck(checks []v1alpha1.CheckStatus, names []string) *v1alpha1.CheckStatus {
	for _, name := range names {
		c := FindCheck(checks, name)
		if c == nil {
			continue
		}
		switch c.Phase {
		case v1alpha1.CheckError, v1alpha1.CheckNoData, v1alpha1.CheckInconclusive:
			return c
		default:
		}
	}
	return nil
}

// describeCheck is a check in one line, as the message of a verdict.
func describeCheck(c *v1alpha1.CheckStatus) string {
	return c.Name + ": " + cmp.Or(c.Message, c.Reason, string(c.Phase))
}
