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
		c.Message = CutAtRune(c.Message, maxCheckMessage-len("...")) + "..."
	}
	c.FailedPods = c.FailedPods[:min(len(c.FailedPods), MaxFailedPods)]
	known := FindCheck(*checks, c.Name)
	if CheckIsOver(&c) && c.Phase != v1alpha1.CheckWatching && c.CompletionTime == nil {
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

// maxCheckMessage is the limit of the API for the message of a check, in bytes.
const maxCheckMessage = 1024

// MaxFailedPods is the limit of the API for the pods that a check names.
const MaxFailedPods = 20

// checksOver says that all checks of these names are over.
func checksOver(checks []v1alpha1.CheckStatus, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		c := FindCheck(checks, name)
		return c == nil || !CheckIsOver(c)
	})
}

// failedCheck is the first check beside the server's that failed, and is not only
// observed; nil for none.
func failedCheck(checks []v1alpha1.CheckStatus) *v1alpha1.CheckStatus {
	for i := range checks {
		if c := &checks[i]; c.Name != ServerCheck && c.Phase == v1alpha1.CheckFailed && c.Mode != v1alpha1.ModeObserve {
			return c
		}
	}
	return nil
}

// silentCheck is the first of these names that ended without a verdict where that
// fails; nil for none.
func silentCheck(checks []v1alpha1.CheckStatus, names []string, silenceFails bool) *v1alpha1.CheckStatus {
	for _, name := range names {
		c := FindCheck(checks, name)
		if c == nil || c.Mode == v1alpha1.ModeObserve || c.OnSilence == v1alpha1.SilencePasses || c.OnSilence != v1alpha1.SilenceFails && !silenceFails {
			continue
		}
		if hasNoVerdict(c) {
			return c
		}
	}
	return nil
}

// namesOf are the names of checks beside the server's.
func namesOf(checks []v1alpha1.CheckStatus) (names []string) {
	for i := range checks {
		if name := checks[i].Name; name != ServerCheck {
			names = append(names, name)
		}
	}
	return names
}

// describeCheck is a check in one line, as the message of a verdict.
func describeCheck(c *v1alpha1.CheckStatus) string {
	return c.Name + ": " + cmp.Or(c.Message, c.Reason, string(c.Phase))
}

// isPending says that a check of a policy waits for those of the stage before.
func isPending(c *v1alpha1.CheckStatus) bool { return c.Type != "" && c.Phase == v1alpha1.CheckPending }

// begun is a check that begins now.
func (b *BeginCheck) begun(now time.Time) v1alpha1.CheckStatus {
	c := b.Status
	c.Phase = v1alpha1.CheckRunning
	if c.Background {
		c.Phase = v1alpha1.CheckWatching
	}
	c.StartTime = timeOf(now)
	c.DueTime, c.Deadline = timeOf(c.StartTime.Add(b.Due)), timeOf(c.StartTime.Add(b.Deadline))
	return c
}

// CheckGoesOn says that a check of a policy may still come to something. One in the
// background has its deadline: it was written down as watching, and stays so.
func CheckGoesOn(c *v1alpha1.CheckStatus, now time.Time) bool {
	return CheckMayGoOn(c) && (c.Phase != v1alpha1.CheckWatching || now.Before(timeOrZero(c.Deadline)))
}

// CheckMayGoOn says so whatever the time is.
func CheckMayGoOn(c *v1alpha1.CheckStatus) bool {
	return c.Type != "" && c.Phase != v1alpha1.CheckPending && (!CheckIsOver(c) || c.Phase == v1alpha1.CheckWatching)
}

// failedReleaseCheck is the check of a policy that fails the release as a whole; nil for none.
// One without a verdict does where that was written down when it ended.
func failedReleaseCheck(s *v1alpha1.ChangeWorkloadStatus) *v1alpha1.CheckStatus {
	if c := failedCheck(s.Checks); c != nil {
		return c
	}
	i := slices.IndexFunc(s.Checks, func(c v1alpha1.CheckStatus) bool {
		return c.Type != "" && c.Mode != v1alpha1.ModeObserve && hasNoVerdict(&c) && c.OnSilence == v1alpha1.SilenceFails
	})
	if i < 0 {
		return nil
	}
	return &s.Checks[i]
}

// IsUnderWay says that a release has begun, has not ended, and that no check of its
// order fails.
func IsUnderWay(c *v1alpha1.ChangeWorkload) bool {
	s := &c.Status
	return s.Attempt > 0 && s.ObservedRelease == c.Spec.Release && IsOpen(s.Status) && len(s.UnclaimedVerdicts) == 0 &&
		(s.OrderPreVerdict == nil || !VerdictFails(s.OrderPreVerdict.Verdict)) &&
		(s.OrderPostVerdict == nil || !VerdictFails(s.OrderPostVerdict.Verdict)) && failedReleaseCheck(s) == nil
}

// hasNoVerdict says that a check ended without one.
func hasNoVerdict(c *v1alpha1.CheckStatus) bool {
	switch c.Phase {
	case v1alpha1.CheckError, v1alpha1.CheckNoData, v1alpha1.CheckInconclusive:
		return true
	default:
		return false
	}
}

// eventOf is the event that tells what happened to a check; empty for none.
func eventOf(before, now *v1alpha1.CheckStatus) string {
	switch {
	case now.Phase == before.Phase && now.Reason == before.Reason && slices.Equal(now.FailedPods, before.FailedPods):
		return ""
	case now.Phase == v1alpha1.CheckFailed && now.Mode == v1alpha1.ModeObserve:
		return v1alpha1.EventDryRun
	case now.Phase == v1alpha1.CheckFailed:
		return v1alpha1.EventCheckFailed
	case now.Phase == v1alpha1.CheckError:
		return v1alpha1.EventCheckError
	case now.Reason == v1alpha1.ReasonTolerated:
		return v1alpha1.EventPodsUnavailable
	case now.Reason == v1alpha1.ReasonSameOnOldPods && before.Reason != now.Reason:
		return v1alpha1.EventCheckError
	default:
		return ""
	}
}
