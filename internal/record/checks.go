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

package record

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// ServerCheck is the name of the check by AlterShield Server.
const ServerCheck = "altershield"

// CheckIsOver reports whether a check has its result.
func CheckIsOver(c *v1alpha1.CheckStatus) bool {
	switch c.Phase {
	case "", v1alpha1.CheckPending, v1alpha1.CheckRunning:
		return false
	default:
		return true
	}
}

// FindCheck finds a check by its name; nil for none.
func FindCheck(checks []v1alpha1.CheckStatus, name string) *v1alpha1.CheckStatus {
	i := slices.IndexFunc(checks, func(c v1alpha1.CheckStatus) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &checks[i]
}

// SetCheck adds or replaces a check by its name. A check keeps the time of its first end.
func SetCheck(checks *[]v1alpha1.CheckStatus, c v1alpha1.CheckStatus, now time.Time) {
	c.Message = wording.Shortened(c.Message, maxCheckMessage)
	c.FailedPods = c.FailedPods[:min(len(c.FailedPods), MaxFailedPods)]
	known := FindCheck(*checks, c.Name)
	if CheckIsOver(&c) && c.Phase != v1alpha1.CheckWatching && c.CompletionTime == nil {
		c.CompletionTime = times.Of(now)
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

// ChecksOver reports whether all checks of these names are over.
func ChecksOver(checks []v1alpha1.CheckStatus, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		c := FindCheck(checks, name)
		return c == nil || !CheckIsOver(c)
	})
}

// FailedCheck returns the first failed check in enforce mode, except the server's; nil for none.
func FailedCheck(checks []v1alpha1.CheckStatus) *v1alpha1.CheckStatus {
	for i := range checks {
		if c := &checks[i]; c.Name != ServerCheck && c.Phase == v1alpha1.CheckFailed && c.Mode != v1alpha1.ModeObserve {
			return c
		}
	}
	return nil
}

// SilentCheck returns the first check of these names that ended without a verdict and fails for this reason; nil for
// none.
func SilentCheck(checks []v1alpha1.CheckStatus, names []string, silenceFails bool) *v1alpha1.CheckStatus {
	for _, name := range names {
		c := FindCheck(checks, name)
		if c == nil || c.Mode == v1alpha1.ModeObserve || c.OnSilence == v1alpha1.SilencePasses ||
			c.OnSilence != v1alpha1.SilenceFails && !silenceFails {
			continue
		}
		if hasNoVerdict(c) {
			return c
		}
	}
	return nil
}

// NamesOf returns the names of checks, except the server's.
func NamesOf(checks []v1alpha1.CheckStatus) (names []string) {
	for i := range checks {
		if name := checks[i].Name; name != ServerCheck {
			names = append(names, name)
		}
	}
	return names
}

// DescribeCheck describes a check in one line, like the message of a verdict.
func DescribeCheck(c *v1alpha1.CheckStatus) string {
	return c.Name + ": " + cmp.Or(c.Message, c.Reason, string(c.Phase))
}

// IsPending reports whether a check of a policy waits for the checks of the stage before.
func IsPending(c *v1alpha1.CheckStatus) bool { return c.Type != "" && c.Phase == v1alpha1.CheckPending }

// Begun returns the status of the check when it begins now.
func (b *BeginCheck) Begun(now time.Time) v1alpha1.CheckStatus {
	c := b.Status
	c.Phase = v1alpha1.CheckRunning
	if c.Background {
		c.Phase = v1alpha1.CheckWatching
	}
	c.StartTime = times.Of(now)
	c.DueTime, c.Deadline = times.Of(c.StartTime.Add(b.Due)), times.Of(c.StartTime.Add(b.Deadline))
	return c
}

// CheckGoesOn reports whether a check of a policy may still get a result. A check in the background stays in the phase
// Watching, so its deadline decides.
func CheckGoesOn(c *v1alpha1.CheckStatus, now time.Time) bool {
	return CheckMayGoOn(c) && (c.Phase != v1alpha1.CheckWatching || now.Before(times.OrZero(c.Deadline)))
}

// CheckMayGoOn is CheckGoesOn at any time.
func CheckMayGoOn(c *v1alpha1.CheckStatus) bool {
	return c.Type != "" && c.Phase != v1alpha1.CheckPending && (!CheckIsOver(c) || c.Phase == v1alpha1.CheckWatching)
}

// FailedReleaseCheck returns the check of a policy that fails the release as a whole; nil for none. A check without a
// verdict fails it if that was recorded when the check ended.
func FailedReleaseCheck(s *v1alpha1.ChangeWorkloadStatus) *v1alpha1.CheckStatus {
	return cmp.Or(FailedCheck(s.Checks), SilentCheck(s.Checks, NamesOf(s.Checks), false))
}

// IsUnderWay reports whether a release has begun and not ended, and no check of its order fails.
func IsUnderWay(c *v1alpha1.ChangeWorkload) bool {
	s := &c.Status
	return s.Attempt > 0 && s.ObservedRelease == c.Spec.Release && IsOpen(s.Status) && len(s.UnclaimedVerdicts) == 0 &&
		FailedOrderCheck(s) == nil && FailedReleaseCheck(s) == nil
}

// hasNoVerdict reports whether a check ended without a verdict.
func hasNoVerdict(c *v1alpha1.CheckStatus) bool {
	switch c.Phase {
	case v1alpha1.CheckError, v1alpha1.CheckNoData, v1alpha1.CheckInconclusive:
		return true
	default:
		return false
	}
}

// EventOf returns the reason of the event about a change of a check; empty for none.
func EventOf(before, now *v1alpha1.CheckStatus) string {
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

// Checks of policies of a release as a whole, without the checks of its order. They begin with a write of the release;
// [NoteReleaseCheck] writes their results to the status, and internal/defense decides the consequence.

// BeginChecks adds the checks that begin at a stage of the release, unless the stage already has checks.
func BeginChecks(s *v1alpha1.ChangeWorkloadStatus, begin []BeginCheck, now time.Time, stage v1alpha1.PolicyStage) {
	if len(ChecksAt(s, stage)) > 0 {
		return
	}
	for i := range begin {
		if begin[i].Status.Stage == stage {
			SetCheck(&s.Checks, begin[i].Begun(now), now)
		}
	}
}

// ChecksAt returns the checks of policies that began at a stage of the release.
func ChecksAt(s *v1alpha1.ChangeWorkloadStatus, stage v1alpha1.PolicyStage) (at []*v1alpha1.CheckStatus) {
	for i := range s.Checks {
		if c := &s.Checks[i]; c.Stage == stage {
			at = append(at, c)
		}
	}
	return at
}

// WaitsForCheck returns the first check of a stage that the release waits for; nil for none.
func WaitsForCheck(s *v1alpha1.ChangeWorkloadStatus, stage v1alpha1.PolicyStage) *v1alpha1.CheckStatus {
	for _, c := range ChecksAt(s, stage) {
		if !c.Background && !CheckIsOver(c) {
			return c
		}
	}
	return nil
}

// FailsRelease reports whether a check in the status of a release fails the release as a whole.
func FailsRelease(c *v1alpha1.CheckStatus) bool {
	return FailedReleaseCheck(&v1alpha1.ChangeWorkloadStatus{Checks: []v1alpha1.CheckStatus{*c}}) != nil
}

// CancelWaiting cancels the awaited checks of a release if another check has failed it: as for a batch, the first
// failure decides.
func CancelWaiting(s *v1alpha1.ChangeWorkloadStatus, now time.Time) {
	if FailedReleaseCheck(s) != nil {
		giveUp(s, now, "another check failed first", func(c *v1alpha1.CheckStatus) bool { return !c.Background })
	}
}

// MayBeginChecks reports whether checks of policies may begin with the next write of a release.
func MayBeginChecks(change *v1alpha1.ChangeWorkload) bool {
	s := &change.Status
	return s.Attempt == 0 || s.ObservedRelease < change.Spec.Release ||
		IsVerified(s.Status) && s.Status != v1alpha1.ChangeWorkloadSuccess &&
			!slices.ContainsFunc(s.Checks, func(c v1alpha1.CheckStatus) bool { return c.Stage == v1alpha1.StageReleasePost })
}

// ReleaseChecksGoOn reports whether checks of policies of a release as a whole may still get a result.
func ReleaseChecksGoOn(change *v1alpha1.ChangeWorkload, now time.Time) bool {
	return IsCurrentAttempt(change) &&
		slices.ContainsFunc(change.Status.Checks, func(c v1alpha1.CheckStatus) bool { return CheckGoesOn(&c, now) })
}

// IsCurrentAttempt reports whether the status of a release is of its current, verified attempt.
func IsCurrentAttempt(change *v1alpha1.ChangeWorkload) bool {
	return change.DeletionTimestamp == nil && change.Status.Attempt > 0 && change.Status.ObservedRelease == change.Spec.Release &&
		IsVerified(change.Status.Status)
}

// ReleaseCheckInput is the input of a decision about a check of a release as a whole.
type ReleaseCheckInput struct {
	Now      time.Time
	Settings settings.Settings
	// Change is the release.
	Change *v1alpha1.ChangeWorkload
}

// ReleaseCheckPlan is the plan for the check.
type ReleaseCheckPlan struct {
	// Status is the status to write; nil for none.
	Status *v1alpha1.ChangeWorkloadStatus
	// Events are emitted after the status is written.
	Events []Event
}

// NoteReleaseCheck writes the result of a check of a policy to the status of a release, and whether a missing verdict
// fails it: a later change of the setting fails no release in retrospect.
func NoteReleaseCheck(in ReleaseCheckInput, c v1alpha1.CheckStatus) (plan ReleaseCheckPlan) {
	known := FindCheck(in.Change.Status.Checks, c.Name)
	if known == nil || !CheckGoesOn(known, in.Now) && CheckIsOver(known) || !IsCurrentAttempt(in.Change) {
		return plan
	}
	if hasNoVerdict(&c) && c.OnSilence != v1alpha1.SilencePasses && c.OnSilence != v1alpha1.SilenceFails {
		c.OnSilence = v1alpha1.SilencePasses
		if in.Settings.SilenceFails {
			c.OnSilence = v1alpha1.SilenceFails
		}
	}
	status := in.Change.Status.DeepCopy()
	SetCheck(&status.Checks, c, in.Now)
	now := FindCheck(status.Checks, c.Name)
	if equality.Semantic.DeepEqual(known, now) {
		return plan
	}
	plan.Status = status
	if reason := EventOf(known, now); reason != "" {
		plan.Events = append(plan.Events, Event{Type: corev1.EventTypeWarning, Reason: reason,
			Message: fmt.Sprintf("version %s: check %s", in.Change.Spec.Reversion, DescribeCheck(now))})
	}
	return plan
}

// CancelChecks cancels the checks of a release that ends.
func CancelChecks(s *v1alpha1.ChangeWorkloadStatus, now time.Time) {
	giveUp(s, now, "the release ended before the check was over", func(*v1alpha1.CheckStatus) bool { return true })
}

func giveUp(s *v1alpha1.ChangeWorkloadStatus, now time.Time, why string, which func(*v1alpha1.CheckStatus) bool) {
	for i := range s.Checks {
		if c := &s.Checks[i]; CheckGoesOn(c, now) && which(c) {
			canceled := *c
			canceled.Phase, canceled.Reason, canceled.Message = v1alpha1.CheckCanceled, v1alpha1.ReasonReleaseEnded, why
			SetCheck(&s.Checks, canceled, now)
		}
	}
}

// BeginCheck is a check to begin, of a batch or of a release as a whole.
type BeginCheck struct {
	// Status has the name, type and mode of the check, and the state of pods.
	Status v1alpha1.CheckStatus
	// Due is how long the check watches, and Deadline how long it waits for a result, both from its begin.
	Due, Deadline time.Duration
}
