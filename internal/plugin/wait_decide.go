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

// ending is how a release that is waited for ended.
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
	// endedNotDefended: the workload is not defended, or left it.
	endedNotDefended ending = "NotDefended"
	// endedUnknown: the user may not read what tells whether there is a release. It is an
	// error, and not a result.
	endedUnknown ending = "Unknown"
	// endedTimeout: it did not end in time.
	endedTimeout ending = "Timeout"
)

// code is the exit code of an ending.
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

// awaited is the release that is waited for. What is not known yet is empty.
type awaited struct {
	Version string
	// Release is its number; 0 while it is not known.
	Release int64
	// From is a number that its own is not below: the workload has this one. A record of
	// the same version with a lower number is that of an earlier release.
	From int64
	// Proven: it is waited for until its version is proven.
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

// releaseView is what the cluster has of a workload at one time, as far as it is about
// how a release ended.
type releaseView struct {
	// Workload is nil when it is gone.
	Workload *workload.Workload
	// Changes are its releases.
	Changes []v1alpha1.ChangeWorkload
	// NotDefended says why it is not defended; empty where it is.
	NotDefended string
	// Slipped: it may have been released past admission, so that a release may be
	// recorded yet. It is looked at where it has no version of its own.
	Slipped bool
	// Unknown is the right that is missing to tell whether it has.
	Unknown string
}

// verdictOfWait is what a look at a release came to.
type verdictOfWait struct {
	Ending ending
	// Message says how it ended, or, while it goes on, what is waited for.
	Message string
	// Meanwhile is how it is to be told if it does not end in time: what is known
	// already, and not yet final. Empty is a timeout.
	Meanwhile ending
	// Stopped is why its rollout does not go on, where it does not.
	Stopped string
}

// firstAwaited is the release to wait for where the user named none: the one the
// workload is at.
func firstAwaited(w *workload.Workload) awaited {
	a := awaited{Version: w.Version, From: w.Release()}
	if w.RecordedVersion() == w.Version {
		a.Release = w.Release()
	}
	return a
}

// defaultAwaited is the release to wait for where the user named none: the one the
// workload is at, or the one before, which the operator went back from. So the answer is
// the same whether somebody begins to wait before that or after it.
func defaultAwaited(w *workload.Workload) awaited {
	if version, reason, ok := healedFrom(w); ok {
		return awaited{Version: version, Release: reason.Release, From: reason.Release}
	}
	return firstAwaited(w)
}

// healedFrom is the version that the operator by itself went back from to the one the
// workload is at, and why. Who asks to go back, or releases an earlier version, wants the
// version that he goes to.
func healedFrom(w *workload.Workload) (version string, reason rollback.QuarantineReason, ok bool) {
	// Also of a quarantine that is over.
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

// decideWait says how the release that is waited for ended, and what is known of it by
// now.
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

// find is the record of the release, if there is one, whose number it learns.
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

// previous is what a newer release keeps of this one.
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

// ofRecord reads how a release ended off its record.
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
		if rolledBack := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionRolledBack); rolledBack != nil && rolledBack.Status == metav1.ConditionUnknown && v.at(a) {
			// Which of the two it is must not depend on when somebody looks.
			return verdictOfWait{Message: message + "; it is about to be rolled back", Meanwhile: endedSuspend}
		}
		return verdictOfWait{Ending: endedSuspend, Message: message}
	case v1alpha1.ChangeWorkloadRollback:
		return verdictOfWait{Ending: endedRollback, Message: fmt.Sprintf("%s was rolled back: %s", a, conditionText(s, v1alpha1.ConditionRolledBack, "the workload was set back to another version"))}
	case v1alpha1.ChangeWorkloadFailed:
		return verdictOfWait{Ending: endedFailed, Message: fmt.Sprintf("AlterShield Server refused %s: %s", a, conditionText(s, v1alpha1.ConditionServer, "it gave no reason"))}
	case v1alpha1.ChangeWorkloadCanceled:
		return canceled(a, s)
	default:
		return v.open(a, s)
	}
}

// ofSuccess is the look at a release that succeeded, and may have to be proven.
func (v releaseView) ofSuccess(a awaited, s *v1alpha1.ChangeWorkloadStatus) verdictOfWait {
	proven := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionProven)
	switch {
	case !a.Proven:
		return verdictOfWait{Ending: endedSuccess, Message: succeeded(a, s)}
	case proven != nil && proven.Status == metav1.ConditionTrue:
		return verdictOfWait{Ending: endedSuccess, Message: fmt.Sprintf("%s is proven: %s", a, cmp.Or(record.Detail(proven), proven.Message))}
	case proven != nil && proven.Status == metav1.ConditionFalse:
		return verdictOfWait{Ending: endedNotProven, Message: fmt.Sprintf("%s is not proven: %s", a, cmp.Or(record.Detail(proven), proven.Message))}
	case v.Workload == nil || v.Workload.Deleting || !v.at(a):
		return verdictOfWait{Ending: endedCanceled, Message: fmt.Sprintf("%s succeeded, and was replaced before it was proven", a)}
	case v.NotDefended != "":
		return verdictOfWait{Ending: endedNotDefended, Message: fmt.Sprintf("%s succeeded, and nothing proves it: %s", a, v.NotDefended)}
	default:
		const unknown = "it is proven once a pod has run well, while versions are kept (setting history)"
		return verdictOfWait{Message: succeeded(a, s) + "; " + conditionText(s, v1alpha1.ConditionProven, unknown)}
	}
}

// open is the look at a release that its record says goes on.
func (v releaseView) open(a awaited, s *v1alpha1.ChangeWorkloadStatus) verdictOfWait {
	switch {
	case v.Workload == nil || v.Workload.Deleting:
		return verdictOfWait{Ending: endedCanceled, Message: fmt.Sprintf("the workload was deleted before %s ended", a)}
	case v.rolledBack(a) != "":
		return v.unlessRolledBack(a, verdictOfWait{})
	case v.NotDefended != "":
		// The record will say so, too, if the operator is there to write it.
		return verdictOfWait{Ending: endedNotDefended, Message: fmt.Sprintf("%s is not verified any more: %s", a, v.NotDefended)}
	case !v.at(a):
		// It may have ended before it was replaced: its record will say.
		return verdictOfWait{Message: fmt.Sprintf("%s is being replaced by release %d", a, v.Workload.Release()), Meanwhile: endedCanceled}
	default:
		return verdictOfWait{Message: stateAndWaits(s), Stopped: stopped(s)}
	}
}

// ofPrevious reads how a release ended off what a newer one keeps of it.
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
			how.Message += ", and nothing is kept of whether it was proven"
		}
		return v.unlessRolledBack(a, how)
	case v1alpha1.ChangeWorkloadSuspend:
		return v.unlessRolledBack(a, verdictOfWait{Ending: endedSuspend, Message: fmt.Sprintf("%s failed its verification%s; a newer release has followed", a, why)})
	case v1alpha1.ChangeWorkloadRollback:
		return verdictOfWait{Ending: endedRollback, Message: fmt.Sprintf("%s was rolled back%s", a, why)}
	case v1alpha1.ChangeWorkloadFailed:
		return verdictOfWait{Ending: endedFailed, Message: fmt.Sprintf("AlterShield Server refused %s%s; a newer release has followed", a, why)}
	default: // it was canceled, or what is kept of it was written before it was
		return v.unlessRolledBack(a, verdictOfWait{Ending: endedCanceled, Message: fmt.Sprintf("a newer release replaced %s before it ended", a)})
	}
}

// unrecorded is the look at a release of which no record says anything. There may be one
// of an earlier attempt, or of a later one.
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
			return verdictOfWait{Ending: endedCanceled, Message: fmt.Sprintf("a newer release has replaced %s, and nothing is kept of how it ended", a)}
		}
		return verdictOfWait{Message: fmt.Sprintf("%s is being replaced by release %d", a, w.Release()), Meanwhile: endedCanceled}
	case c != nil:
		return verdictOfWait{Message: "the operator has not begun this attempt yet"}
	default:
		return verdictOfWait{Message: "the operator has not recorded the release yet"}
	}
}

// newestRelease is the largest number of a release that has a record; 0 where none has.
func (v releaseView) newestRelease() (newest int64) {
	for i := range v.Changes {
		newest = max(newest, v.Changes[i].Spec.Release)
	}
	return newest
}

// baseline is the look at a workload that has had no recorded release.
func (v releaseView) baseline(awaited) verdictOfWait {
	switch {
	case v.Unknown != "":
		return verdictOfWait{Message: "the operator has not recorded a release, and whether there is one cannot be told: " + v.Unknown, Meanwhile: endedUnknown}
	case v.Slipped:
		return verdictOfWait{Message: "the operator has not recorded the release yet, which admission did not see", Meanwhile: endedNotDefended}
	}
	return verdictOfWait{Ending: endedNothing, Message: "nothing to wait for: its template has not changed since it was enrolled (a baseline)"}
}

// newerBegan says that the operator has begun with the release the workload is at, so
// that what it keeps of earlier ones is written.
func (v releaseView) newerBegan(w *workload.Workload) bool {
	return slices.ContainsFunc(v.Changes, func(c v1alpha1.ChangeWorkload) bool {
		return c.Status.Attempt > 0 && c.Status.ObservedRelease >= w.Release() && c.Spec.Reversion == w.RecordedVersion()
	})
}

// at says that the workload is still at the release.
func (v releaseView) at(a awaited) bool {
	return v.Workload != nil && v.Workload.Release() <= a.Release && v.Workload.Version == a.Version
}

// rolledBack says why the release was rolled back, as the workload itself has it since
// then; empty when it was not.
func (v releaseView) rolledBack(a awaited) string {
	if v.Workload == nil {
		return ""
	}
	// Also of a quarantine that is over.
	reason, ok := rollback.ParseQuarantine(v.Workload.Annotations, time.Time{}).Reason(a.Version)
	if !ok || reason.Release != a.Release {
		return ""
	}
	return fmt.Sprintf("%s; the workload was set back to version %s", reason, reason.To)
}

// unlessRolledBack is how a release ended, or that it was rolled back since then: the
// workload has that at once, and what else there is only once the operator has written it.
func (v releaseView) unlessRolledBack(a awaited, otherwise verdictOfWait) verdictOfWait {
	if why := v.rolledBack(a); why != "" {
		return verdictOfWait{Ending: endedRollback, Message: fmt.Sprintf("%s was rolled back: %s", a, why)}
	}
	return otherwise
}

func succeeded(a awaited, s *v1alpha1.ChangeWorkloadStatus) string {
	if s.PassCount == 0 {
		return fmt.Sprintf("%s succeeded, with no pod to verify", a)
	}
	text := fmt.Sprintf("%s succeeded: %s passed", a, count(int(s.PassCount), "pod"))
	if s.UnverifiedCount > 0 {
		text += fmt.Sprintf(", %d of them without a verdict of AlterShield Server", s.UnverifiedCount)
	}
	return text
}

// canceled reads off a record why a release ended without a result.
func canceled(a awaited, s *v1alpha1.ChangeWorkloadStatus) verdictOfWait {
	progressing := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionProgressing)
	reason := ""
	if progressing != nil {
		reason = progressing.Reason
	}
	switch reason {
	case v1alpha1.ReasonNotDefended:
		return verdictOfWait{Ending: endedNotDefended, Message: fmt.Sprintf("%s was canceled: the workload left the defense", a)}
	case v1alpha1.ReasonWorkloadDeleted:
		return verdictOfWait{Ending: endedCanceled, Message: fmt.Sprintf("%s was canceled: the workload was deleted", a)}
	default:
		return verdictOfWait{Ending: endedCanceled, Message: fmt.Sprintf("a newer release replaced %s before it ended", a)}
	}
}

// stateAndWaits is the state of a release that goes on, with what it waits for.
func stateAndWaits(s *v1alpha1.ChangeWorkloadStatus) string {
	if s.Status == v1alpha1.ChangeWorkloadInit {
		return "Init: " + conditionText(s, v1alpha1.ConditionServer, "the release begins")
	}
	return string(s.Status) + ": " + conditionText(s, v1alpha1.ConditionVerified, "verification goes on")
}

// stopped is why the rollout of a release does not go on; empty where it does.
func stopped(s *v1alpha1.ChangeWorkloadStatus) string {
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionProgressing); c != nil && !isQuiet(c) {
		return strings.TrimSuffix(cmp.Or(c.Message, c.Reason), ".")
	}
	return ""
}

// conditionText is the message of a condition.
func conditionText(s *v1alpha1.ChangeWorkloadStatus, kind, otherwise string) string {
	if c := meta.FindStatusCondition(s.Conditions, kind); c != nil {
		return cmp.Or(record.Detail(c), strings.TrimSuffix(c.Message, "."), c.Reason)
	}
	return otherwise
}

// progressLine is a line about the progress of a release. Key tells it from others: it is
// told again when its text changes.
type progressLine struct{ Key, Text string }

// progressOf are the lines about how far a release has come.
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
	for _, kind := range []string{v1alpha1.ConditionProgressing, v1alpha1.ConditionRolledBack, v1alpha1.ConditionHeld, v1alpha1.ConditionEvictionBlocked, v1alpha1.ConditionServer, v1alpha1.ConditionDefended} {
		c := meta.FindStatusCondition(s.Conditions, kind)
		if c == nil || isQuiet(c) {
			continue
		}
		lines = append(lines, progressLine{kind, fmt.Sprintf("%s: %s", c.Reason, c.Message)})
	}
	return lines
}

// isQuiet says that a condition says nothing that somebody who waits has to know.
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

// podCounts says how many pods of a release are where.
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
