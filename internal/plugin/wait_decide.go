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

package plugin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// ending is how the awaited release ended.
type ending string

const (
	// goesOn: it has not ended.
	goesOn ending = ""
	// endedSuccess: it succeeded.
	endedSuccess ending = "Success"
	// endedNothing: there is no release to wait for.
	endedNothing ending = "NoRelease"
	// endedSuspend: it failed its verification.
	endedSuspend ending = "Suspend"
	// endedNotProven: it succeeded, and too many of its pods failed soon after that.
	endedNotProven ending = "NotProven"
	// endedRollback: the workload was set back to another version.
	endedRollback ending = "Rollback"
	// endedCanceled: a newer release replaced it, or the workload was deleted.
	endedCanceled ending = "Canceled"
	// endedFailed: AlterShield Server refused it.
	endedFailed ending = "Failed"
	// endedNotDefended: the workload is not defended.
	endedNotDefended ending = "NotDefended"
	// endedUnknown: the user may not read whether a release exists. It is an error, not a result.
	endedUnknown ending = "Unknown"
	// endedTimeout: it did not end in time.
	endedTimeout ending = "Timeout"
)

// code returns the exit code of an ending.
func (e ending) code() int {
	switch e {
	case endedSuccess, endedNothing:
		return 0
	case endedSuspend, endedNotProven:
		return 2
	case endedRollback:
		return 3
	case endedCanceled:
		return 4
	case endedFailed:
		return 5
	case endedNotDefended:
		return 6
	case endedTimeout:
		return 124
	default:
		return 1
	}
}

// awaited is the release that is waited for. Unknown fields are empty.
type awaited struct {
	Version string
	// Release is its number; 0 while it is not known.
	Release int64
	// From is its least number: the number of the workload when the wait began. A record of the same version with a lower
	// number is the record of an earlier release.
	From int64
	// Proven: the wait lasts until its version is proven.
	Proven bool
}

// String names it.
func (a awaited) String() string {
	switch {
	case a.Release > 0 && a.Version != "":
		return fmt.Sprintf("release %d (version %s)", a.Release, a.Version)
	case a.Release > 0:
		return fmt.Sprintf("release %d", a.Release)
	default:
		return "the release of version " + a.Version
	}
}

// releaseView is all that is read at one time to decide how a release ended.
type releaseView struct {
	// Workload is nil when it is gone.
	Workload *workload.Workload
	// Changes are its releases.
	Changes []v1alpha1.ChangeWorkload
	// NotDefended is why it is not defended; empty if it is.
	NotDefended string
	// Slipped: admission may have missed its release, so that the record may still come. It is set only for a workload
	// without a recorded version.
	Slipped bool
	// Unknown names the right that the user lacks to know Slipped.
	Unknown string
}

// verdictOfWait is the result of one read of a release.
type verdictOfWait struct {
	Ending ending
	// Message says how it ended, or, while it goes on, what is waited for.
	Message string
	// Meanwhile is the ending if the time is over now; empty for a timeout.
	Meanwhile ending
	// Stopped is why its rollout does not continue; empty if it does.
	Stopped string
}

// firstAwaited returns the current release of the workload.
func firstAwaited(w *workload.Workload) awaited {
	a := awaited{Version: w.Version, From: w.Release()}
	if w.RecordedVersion() == w.Version {
		a.Release = w.Release()
	}
	return a
}

// defaultAwaited returns the release to wait for if the user names none: the current release or, after a rollback by the operator,
// the release that failed. So the result is the same whether the wait begins before the rollback or after it.
func defaultAwaited(w *workload.Workload) awaited {
	if version, reason, ok := healedFrom(w); ok {
		return awaited{Version: version, Release: reason.Release, From: reason.Release}
	}
	return firstAwaited(w)
}

// healedFrom returns the version that the operator rolled back without a request to the current version, and why. A user who
// requests a rollback, or releases an earlier version, waits for the restored version.
func healedFrom(w *workload.Workload) (version string, reason rollback.QuarantineReason, ok bool) {
	// Also if the quarantine is over.
	q := rollback.ParseQuarantine(w.Annotations, time.Time{})
	for _, version := range defense.DeniedBy(nil, w.Annotations, time.Time{}).Quarantine {
		reason, known := q.Reason(version)
		healed := reason.Cause == v1alpha1.ReasonNeverStarted || reason.Cause == v1alpha1.ReasonVerificationFailed
		if known && healed && reason.By == "" && reason.To == w.Version && reason.Release > 0 && reason.Release+1 == w.Release() {
			return version, reason, true
		}
	}
	return "", rollback.QuarantineReason{}, false
}

// decideWait returns how the awaited release ended, and the awaited release with the fields that are known now.
func decideWait(a awaited, v releaseView) (verdictOfWait, awaited) {
	change := v.find(&a)
	switch {
	case change != nil && a.Release > 0 && change.Status.ObservedRelease == a.Release:
		return v.ofRecord(a, change), a
	case a.Release > 0:
		if previous := v.previous(a.Release); previous != nil {
			a.Version = cmp.Or(a.Version, previous.Version)
			return v.ofPrevious(a, previous), a
		}
	}
	return v.unrecorded(a, change), a
}

// find returns the record of the release, and notes its version and number; nil for none.
func (v releaseView) find(a *awaited) *v1alpha1.ChangeWorkload {
	for i := range v.Changes {
		c := &v.Changes[i]
		switch {
		case a.Version != "" && c.Spec.Reversion != a.Version:
		case a.Release > 0 && c.Spec.Release == a.Release, a.Release == 0 && c.Spec.Release >= max(a.From, 1):
			a.Version, a.Release = c.Spec.Reversion, c.Spec.Release
			return c
		}
	}
	return nil
}

// previous returns the release as the newest record keeps it; nil for none.
func (v releaseView) previous(release int64) (found *v1alpha1.PreviousRelease) {
	newest := int64(-1)
	for i := range v.Changes {
		c := &v.Changes[i]
		for j := range c.Status.PreviousReleases {
			if p := &c.Status.PreviousReleases[j]; p.Release == release && c.Status.ObservedRelease > newest {
				found, newest = p, c.Status.ObservedRelease
			}
		}
	}
	return found
}

// ofRecord decides from the record of the release.
func (v releaseView) ofRecord(a awaited, c *v1alpha1.ChangeWorkload) verdictOfWait {
	s := &c.Status
	switch s.Status {
	case v1alpha1.ChangeWorkloadSuccess:
		return v.unlessRolledBack(a, v.ofSuccess(a, s))
	case v1alpha1.ChangeWorkloadSuspend:
		if v.rolledBack(a) != "" {
			return v.unlessRolledBack(a, verdictOfWait{})
		}
		message := fmt.Sprintf("%s failed its verification: %s", a, conditionText(s, v1alpha1.ConditionVerified, "a verdict fails it"))
		rolledBack := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionRolledBack)
		if rolledBack != nil && rolledBack.Status == metav1.ConditionUnknown && v.at(a) {
			// The ending must not depend on the time of the read.
			return verdictOfWait{Message: message + "; it is about to be rolled back", Meanwhile: endedSuspend}
		}
		return verdictOfWait{Ending: endedSuspend, Message: message}
	case v1alpha1.ChangeWorkloadRollback:
		why := conditionText(s, v1alpha1.ConditionRolledBack, "the workload was set back to another version")
		return verdictOfWait{Ending: endedRollback, Message: fmt.Sprintf("%s was rolled back: %s", a, why)}
	case v1alpha1.ChangeWorkloadFailed:
		why := conditionText(s, v1alpha1.ConditionServer, "it gave no reason")
		return verdictOfWait{Ending: endedFailed, Message: fmt.Sprintf("AlterShield Server refused %s: %s", a, why)}
	case v1alpha1.ChangeWorkloadCanceled:
		return canceled(a, s)
	default:
		return v.open(a, s)
	}
}

// ofSuccess decides on a release that succeeded, and may have to be proven.
func (v releaseView) ofSuccess(a awaited, s *v1alpha1.ChangeWorkloadStatus) verdictOfWait {
	proven := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionProven)
	switch {
	case !a.Proven:
		return verdictOfWait{Ending: endedSuccess, Message: succeeded(a, s)}
	case proven != nil && proven.Status == metav1.ConditionTrue:
		return verdictOfWait{Ending: endedSuccess, Message: fmt.Sprintf("%s is proven: %s", a, cmp.Or(record.Detail(proven), proven.Message))}
	case proven != nil && proven.Status == metav1.ConditionFalse:
		why := cmp.Or(record.Detail(proven), proven.Message)
		return verdictOfWait{Ending: endedNotProven, Message: fmt.Sprintf("%s is not proven: %s", a, why)}
	case v.Workload == nil || v.Workload.Deleting || !v.at(a):
		return verdictOfWait{Ending: endedCanceled, Message: fmt.Sprintf("%s succeeded, and was replaced before it was proven", a)}
	case v.NotDefended != "":
		return verdictOfWait{Ending: endedNotDefended, Message: fmt.Sprintf("%s succeeded, and nothing proves it: %s", a, v.NotDefended)}
	default:
		const unknown = "it is proven once a pod has run well, while versions are kept (setting history)"
		return verdictOfWait{Message: succeeded(a, s) + "; " + conditionText(s, v1alpha1.ConditionProven, unknown)}
	}
}

// open decides on a release whose record is open.
func (v releaseView) open(a awaited, s *v1alpha1.ChangeWorkloadStatus) verdictOfWait {
	switch {
	case v.Workload == nil || v.Workload.Deleting:
		return verdictOfWait{Ending: endedCanceled, Message: fmt.Sprintf("the workload was deleted before %s ended", a)}
	case v.rolledBack(a) != "":
		return v.unlessRolledBack(a, verdictOfWait{})
	case v.NotDefended != "":
		// The record will say so, too, if the operator runs.
		return verdictOfWait{Ending: endedNotDefended, Message: fmt.Sprintf("%s is no longer verified: %s", a, v.NotDefended)}
	case !v.at(a):
		// It may have ended before it was replaced: its record will say.
		return verdictOfWait{Message: fmt.Sprintf("%s is being replaced by release %d", a, v.Workload.Release()), Meanwhile: endedCanceled}
	default:
		return verdictOfWait{Message: stateAndWaits(s), Stopped: stopped(s)}
	}
}

// ofPrevious decides from the release as a newer record keeps it.
func (v releaseView) ofPrevious(a awaited, p *v1alpha1.PreviousRelease) verdictOfWait {
	why := p.Message
	if p.FailedPod != nil {
		why = describeResult(p.FailedPod)
	}
	if why != "" {
		why = ": " + why
	}
	switch p.Status {
	case v1alpha1.ChangeWorkloadSuccess:
		how := verdictOfWait{Ending: endedSuccess, Message: fmt.Sprintf("%s succeeded; a newer release has followed", a)}
		if a.Proven {
			how.Ending = endedCanceled
			how.Message += ", and no record says whether it was proven"
		}
		return v.unlessRolledBack(a, how)
	case v1alpha1.ChangeWorkloadSuspend:
		message := fmt.Sprintf("%s failed its verification%s; a newer release has followed", a, why)
		return v.unlessRolledBack(a, verdictOfWait{Ending: endedSuspend, Message: message})
	case v1alpha1.ChangeWorkloadRollback:
		return verdictOfWait{Ending: endedRollback, Message: fmt.Sprintf("%s was rolled back%s", a, why)}
	case v1alpha1.ChangeWorkloadFailed:
		message := fmt.Sprintf("AlterShield Server refused %s%s; a newer release has followed", a, why)
		return verdictOfWait{Ending: endedFailed, Message: message}
	default: // it was canceled, or was open when the newer record was written
		return v.unlessRolledBack(a, verdictOfWait{Ending: endedCanceled, Message: fmt.Sprintf("a newer release replaced %s before it ended", a)})
	}
}

// unrecorded decides on a release without a record. c is a record of another attempt; nil for none.
func (v releaseView) unrecorded(a awaited, c *v1alpha1.ChangeWorkload) verdictOfWait {
	w := v.Workload
	switch {
	case w == nil || w.Deleting:
		return verdictOfWait{Ending: endedCanceled, Message: fmt.Sprintf("the workload was deleted before %s ended", a)}
	case a.Release > 0 && v.rolledBack(a) != "":
		return v.unlessRolledBack(a, verdictOfWait{})
	case v.NotDefended != "":
		return verdictOfWait{Ending: endedNotDefended, Message: fmt.Sprintf("%s is not verified: %s", a, v.NotDefended)}
	case w.RecordedVersion() == "" && v.newestRelease() < max(w.Release(), 1) && w.Version == a.Version:
		return v.baseline(a)
	case a.Release > w.Release():
		return verdictOfWait{Message: fmt.Sprintf("%s has not begun: the workload is at release %d", a, w.Release())}
	case a.Release > 0 && w.Release() > a.Release, a.Release == 0 && w.Version != a.Version:
		if v.newerBegan(w) {
			message := fmt.Sprintf("a newer release has replaced %s, and no record says how it ended", a)
			return verdictOfWait{Ending: endedCanceled, Message: message}
		}
		return verdictOfWait{Message: fmt.Sprintf("%s is being replaced by release %d", a, w.Release()), Meanwhile: endedCanceled}
	case c != nil:
		return verdictOfWait{Message: "the operator has not begun this attempt yet"}
	default:
		return verdictOfWait{Message: "the operator has not recorded the release yet"}
	}
}

// newestRelease returns the largest number of a recorded release; 0 for none.
func (v releaseView) newestRelease() (newest int64) {
	for i := range v.Changes {
		newest = max(newest, v.Changes[i].Spec.Release)
	}
	return newest
}

// baseline decides on a workload that has had no recorded release.
func (v releaseView) baseline(awaited) verdictOfWait {
	switch {
	case v.Unknown != "":
		message := "the operator has not recorded a release, and it is not known whether a release exists: " + v.Unknown
		return verdictOfWait{Message: message, Meanwhile: endedUnknown}
	case v.Slipped:
		return verdictOfWait{Message: "the operator has not recorded the release yet, which admission did not see", Meanwhile: endedNotDefended}
	}
	return verdictOfWait{Ending: endedNothing, Message: "nothing to wait for: its template has not changed since it was enrolled (a baseline)"}
}

// newerBegan reports whether the operator has begun with the current release, so that it has written the earlier ones.
func (v releaseView) newerBegan(w *workload.Workload) bool {
	return slices.ContainsFunc(v.Changes, func(c v1alpha1.ChangeWorkload) bool {
		return c.Status.Attempt > 0 && c.Status.ObservedRelease >= w.Release() && c.Spec.Reversion == w.RecordedVersion()
	})
}

// at reports whether the workload is still at the release.
func (v releaseView) at(a awaited) bool {
	return v.Workload != nil && v.Workload.Release() <= a.Release && v.Workload.Version == a.Version
}

// rolledBack returns why the release was rolled back, according to the workload; empty if it was not.
func (v releaseView) rolledBack(a awaited) string {
	if v.Workload == nil {
		return ""
	}
	// Also if the quarantine is over.
	reason, ok := rollback.ParseQuarantine(v.Workload.Annotations, time.Time{}).Reason(a.Version)
	if !ok || reason.Release != a.Release {
		return ""
	}
	return fmt.Sprintf("%s; the workload was set back to version %s", reason, reason.To)
}

// unlessRolledBack returns otherwise, unless the release was rolled back since: the workload shows a rollback at once, its record
// shows it later.
func (v releaseView) unlessRolledBack(a awaited, otherwise verdictOfWait) verdictOfWait {
	if why := v.rolledBack(a); why != "" {
		return verdictOfWait{Ending: endedRollback, Message: fmt.Sprintf("%s was rolled back: %s", a, why)}
	}
	return otherwise
}

func succeeded(a awaited, s *v1alpha1.ChangeWorkloadStatus) string {
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionVerified); c != nil && c.Reason == v1alpha1.ReasonRolloutComplete {
		return fmt.Sprintf("%s succeeded: its rollout is complete", a)
	}
	if s.PassCount == 0 {
		return fmt.Sprintf("%s succeeded, with no pod to verify", a)
	}
	text := fmt.Sprintf("%s succeeded: %s passed", a, count(int(s.PassCount), "pod"))
	if s.UnverifiedCount > 0 {
		text += fmt.Sprintf(", %d of them without a verdict of AlterShield Server", s.UnverifiedCount)
	}
	return text
}

// canceled decides from a record why a release ended without a result.
func canceled(a awaited, s *v1alpha1.ChangeWorkloadStatus) verdictOfWait {
	progressing := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionProgressing)
	reason := ""
	if progressing != nil {
		reason = progressing.Reason
	}
	switch reason {
	case v1alpha1.ReasonNotDefended:
		return verdictOfWait{Ending: endedNotDefended, Message: fmt.Sprintf("%s was canceled: the workload is no longer defended", a)}
	case v1alpha1.ReasonWorkloadDeleted:
		return verdictOfWait{Ending: endedCanceled, Message: fmt.Sprintf("%s was canceled: the workload was deleted", a)}
	default:
		return verdictOfWait{Ending: endedCanceled, Message: fmt.Sprintf("a newer release replaced %s before it ended", a)}
	}
}

// stateAndWaits returns the state of an open release, and why it waits.
func stateAndWaits(s *v1alpha1.ChangeWorkloadStatus) string {
	if s.Status == v1alpha1.ChangeWorkloadInit {
		return "Init: " + conditionText(s, v1alpha1.ConditionServer, "the release begins")
	}
	return string(s.Status) + ": " + conditionText(s, v1alpha1.ConditionVerified, "verification goes on")
}

// stopped returns why the rollout of a release does not continue; empty if it does.
func stopped(s *v1alpha1.ChangeWorkloadStatus) string {
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionProgressing); c != nil && !isQuiet(c) {
		return strings.TrimSuffix(cmp.Or(c.Message, c.Reason), ".")
	}
	return ""
}

// conditionText returns the message of a condition.
func conditionText(s *v1alpha1.ChangeWorkloadStatus, kind, otherwise string) string {
	if c := meta.FindStatusCondition(s.Conditions, kind); c != nil {
		return cmp.Or(record.Detail(c), strings.TrimSuffix(c.Message, "."), c.Reason)
	}
	return otherwise
}

// progressLine is a line about the progress of a release. A changed text of the same key is printed again.
type progressLine struct{ Key, Text string }

// progressOf returns the lines about the progress of a release.
func progressOf(a awaited, v releaseView, verdict verdictOfWait) []progressLine {
	change := v.find(&a)
	if change == nil || change.Status.ObservedRelease != a.Release {
		return []progressLine{{"state", verdict.Message}}
	}
	s := &change.Status
	lines := []progressLine{{"state", verdict.Message}}
	if total := s.PassCount + s.FailCount + s.CheckingCount + s.PreparingCount; total > 0 {
		lines = append(lines, progressLine{"pods", fmt.Sprintf("batch %d: %s", s.Batches, podCounts(s))})
	}
	for _, kind := range []string{
		v1alpha1.ConditionProgressing, v1alpha1.ConditionRolledBack, v1alpha1.ConditionHeld,
		v1alpha1.ConditionEvictionBlocked, v1alpha1.ConditionServer, v1alpha1.ConditionDefended,
	} {
		c := meta.FindStatusCondition(s.Conditions, kind)
		if c == nil || isQuiet(c) {
			continue
		}
		lines = append(lines, progressLine{kind, fmt.Sprintf("%s: %s", c.Reason, c.Message)})
	}
	return lines
}

// isQuiet reports whether a condition has no news for a user who waits.
func isQuiet(c *metav1.Condition) bool {
	switch c.Type {
	case v1alpha1.ConditionHeld, v1alpha1.ConditionEvictionBlocked:
		return c.Status != metav1.ConditionTrue
	case v1alpha1.ConditionRolledBack:
		return c.Reason == v1alpha1.ReasonRecovered
	case v1alpha1.ConditionDefended:
		return c.Reason != v1alpha1.ReasonWriteDenied
	default:
		return c.Status != metav1.ConditionFalse
	}
}

// podCounts counts the pods of a release by their state.
func podCounts(s *v1alpha1.ChangeWorkloadStatus) string {
	parts := []string{fmt.Sprintf("%s passed", count(int(s.PassCount), "pod"))}
	for _, n := range []struct {
		count int32
		what  string
	}{{s.FailCount, "failed"}, {s.CheckingCount, "being verified"}, {s.PreparingCount, "waiting for a batch"}} {
		if n.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n.count, n.what))
		}
	}
	return strings.Join(parts, ", ")
}
