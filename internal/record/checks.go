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

// ChecksOver says that all checks of these names are over.
func ChecksOver(checks []v1alpha1.CheckStatus, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		c := FindCheck(checks, name)
		return c == nil || !CheckIsOver(c)
	})
}

// FailedCheck is the first check beside the server's that failed, and is not only
// observed; nil for none.
func FailedCheck(checks []v1alpha1.CheckStatus) *v1alpha1.CheckStatus {
	for i := range checks {
		if c := &checks[i]; c.Name != ServerCheck && c.Phase == v1alpha1.CheckFailed && c.Mode != v1alpha1.ModeObserve {
			return c
		}
	}
	return nil
}

// SilentCheck is the first of these names that ended without a verdict where that
// fails; nil for none.
func SilentCheck(checks []v1alpha1.CheckStatus, names []string, silenceFails bool) *v1alpha1.CheckStatus {
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

// NamesOf are the names of checks beside the server's.
func NamesOf(checks []v1alpha1.CheckStatus) (names []string) {
	for i := range checks {
		if name := checks[i].Name; name != ServerCheck {
			names = append(names, name)
		}
	}
	return names
}

// DescribeCheck is a check in one line, as the message of a verdict.
func DescribeCheck(c *v1alpha1.CheckStatus) string {
	return c.Name + ": " + cmp.Or(c.Message, c.Reason, string(c.Phase))
}

// IsPending says that a check of a policy waits for those of the stage before.
func IsPending(c *v1alpha1.CheckStatus) bool { return c.Type != "" && c.Phase == v1alpha1.CheckPending }

// Begun is a check that begins now.
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

// CheckGoesOn says that a check of a policy may still come to something. One in the
// background has its deadline: it was written down as watching, and stays so.
func CheckGoesOn(c *v1alpha1.CheckStatus, now time.Time) bool {
	return CheckMayGoOn(c) && (c.Phase != v1alpha1.CheckWatching || now.Before(times.OrZero(c.Deadline)))
}

// CheckMayGoOn says so whatever the time is.
func CheckMayGoOn(c *v1alpha1.CheckStatus) bool {
	return c.Type != "" && c.Phase != v1alpha1.CheckPending && (!CheckIsOver(c) || c.Phase == v1alpha1.CheckWatching)
}

// FailedReleaseCheck is the check of a policy that fails the release as a whole; nil for none.
// One without a verdict does where that was written down when it ended.
func FailedReleaseCheck(s *v1alpha1.ChangeWorkloadStatus) *v1alpha1.CheckStatus {
	return cmp.Or(FailedCheck(s.Checks), SilentCheck(s.Checks, NamesOf(s.Checks), false))
}

// IsUnderWay says that a release has begun, has not ended, and that no check of its
// order fails.
func IsUnderWay(c *v1alpha1.ChangeWorkload) bool {
	s := &c.Status
	return s.Attempt > 0 && s.ObservedRelease == c.Spec.Release && IsOpen(s.Status) && len(s.UnclaimedVerdicts) == 0 &&
		FailedOrderCheck(s) == nil && FailedReleaseCheck(s) == nil
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

// EventOf is the event that tells what happened to a check; empty for none.
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

// The checks of policies of a release as a whole, beside the checks of its order. They
// begin with a write of its release, and what they come to is put into the status by
// [NoteReleaseCheck]; what that means for the release is decided in internal/defense.

// BeginChecks writes down the checks that begin at a stage of the release, unless
// some did before: which there are does not change.
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

// ChecksAt are the checks of policies that began at a stage of the release.
func ChecksAt(s *v1alpha1.ChangeWorkloadStatus, stage v1alpha1.PolicyStage) (at []*v1alpha1.CheckStatus) {
	for i := range s.Checks {
		if c := &s.Checks[i]; c.Stage == stage {
			at = append(at, c)
		}
	}
	return at
}

// WaitsForCheck is the first check of a stage that the release waits for; nil for none.
func WaitsForCheck(s *v1alpha1.ChangeWorkloadStatus, stage v1alpha1.PolicyStage) *v1alpha1.CheckStatus {
	for _, c := range ChecksAt(s, stage) {
		if !c.Background && !CheckIsOver(c) {
			return c
		}
	}
	return nil
}

// FailsRelease says that a check in the status of a release fails it as a whole.
func FailsRelease(c *v1alpha1.CheckStatus) bool {
	return FailedReleaseCheck(&v1alpha1.ChangeWorkloadStatus{Checks: []v1alpha1.CheckStatus{*c}}) != nil
}

// CancelWaiting gives up the checks that a release waits for, where another one has
// failed it: as with a batch, the first failure decides.
func CancelWaiting(s *v1alpha1.ChangeWorkloadStatus, now time.Time) {
	if FailedReleaseCheck(s) != nil {
		giveUp(s, now, "another check failed first", func(c *v1alpha1.CheckStatus) bool { return !c.Background })
	}
}

// MayBeginChecks says that checks of policies may begin with the next write of a
// release.
func MayBeginChecks(change *v1alpha1.ChangeWorkload) bool {
	s := &change.Status
	return s.Attempt == 0 || s.ObservedRelease < change.Spec.Release ||
		IsVerified(s.Status) && s.Status != v1alpha1.ChangeWorkloadSuccess &&
			!slices.ContainsFunc(s.Checks, func(c v1alpha1.CheckStatus) bool { return c.Stage == v1alpha1.StageReleasePost })
}

// ReleaseChecksGoOn says that checks of policies of a release as a whole may still come
// to something.
func ReleaseChecksGoOn(change *v1alpha1.ChangeWorkload, now time.Time) bool {
	return IsCurrentAttempt(change) &&
		slices.ContainsFunc(change.Status.Checks, func(c v1alpha1.CheckStatus) bool { return CheckGoesOn(&c, now) })
}

// IsCurrentAttempt says that a release is at the attempt that is to be verified.
func IsCurrentAttempt(change *v1alpha1.ChangeWorkload) bool {
	return change.DeletionTimestamp == nil && change.Status.Attempt > 0 && change.Status.ObservedRelease == change.Spec.Release &&
		IsVerified(change.Status.Status)
}

// ReleaseCheckInput is what a decision about a check of a release as a whole is made
// from.
type ReleaseCheckInput struct {
	Now      time.Time
	Settings settings.Settings
	// Change is the release.
	Change *v1alpha1.ChangeWorkload
}

// ReleaseCheckPlan is what to do about it.
type ReleaseCheckPlan struct {
	// Status is set when it is to be written.
	Status *v1alpha1.ChangeWorkloadStatus
	// Events say what was done; they are emitted after the status is written.
	Events []Event
}

// NoteReleaseCheck puts what a check of a policy came to into the status of a release,
// and whether one without a verdict fails it: a setting that is changed later fails no
// release after the fact.
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

// CancelChecks gives up the checks of a release that ends: it ends for good.
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
	// Status has its name, type and mode, and how pods are.
	Status v1alpha1.CheckStatus
	// Due is when it has seen all it is to see, and Deadline when it gives up, from
	// when it is written down.
	Due, Deadline time.Duration
}
