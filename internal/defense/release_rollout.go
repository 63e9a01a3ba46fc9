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
	"fmt"
	"slices"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// Releases of objects without pods. The rollout takes the place of the pods: the release passes when its rollout stays
// complete, and fails when it is stuck or not complete in time.

// RolloutCheck is the name and the type of the check that fails a release because of its rollout.
const RolloutCheck = "rollout"

// pastDeadline is how long a rollout that exceeded its deadline may still become complete: a cache may be behind.
const pastDeadline = 10 * time.Second

// followRollout notes since when the rollout of an object without pods has been complete or stuck, and ends a failure, or
// its correction, when the rollout is complete. It returns when to decide again.
func followRollout(d *release) (wait time.Duration) {
	w, s := d.Workload, d.status
	switch {
	case !w.WithoutPods:
		return 0
	case d.Change.Status.ObservedRelease != d.Change.Spec.Release:
		return time.Second / 10 // the expressions were evaluated with the start of the release before, of the same version
	}
	stopped := record.ReasonOf(&d.Change.Status, v1alpha1.ConditionProgressing)
	if !w.Paused && (stopped == v1alpha1.ReasonRolloutPaused || stopped == v1alpha1.ReasonRolloutHalted) ||
		w.Problem == "" && stopped == v1alpha1.ReasonExpressionFailed {
		s.EntryTime, s.EntryTimeUnix = times.Format(d.Now), d.Now.Unix() // the deadline begins again
	}
	if !w.Rollout.Stale && w.Problem == "" {
		s.CompleteTimeUnix = sinceUnix(w.Rollout.Complete, s.CompleteTimeUnix, d.Now)
	}
	left, overdue := untilDeadline(d)
	s.StuckTimeUnix = sinceUnix(!w.Rollout.Complete && !w.Paused && (w.Rollout.Stuck || overdue), s.StuckTimeUnix, d.Now)
	wait = times.Shortest(left, max(untilSettled(d), 0))
	switch c := record.FindCheck(s.Checks, RolloutCheck); {
	case c == nil:
		left, _ = untilFailed(d)
		wait = times.Shortest(wait, max(left, 0))
	case settled(d) && !w.Paused &&
		(c.Phase == v1alpha1.CheckPassed || c.Phase == v1alpha1.CheckFailed && !slices.ContainsFunc(s.Checks, isCanceled)):
		// A person who corrected the failure judged the rollout until now; it may fail later.
		s.Checks = slices.DeleteFunc(s.Checks, func(c v1alpha1.CheckStatus) bool { return c.Name == RolloutCheck })
	}
	return wait
}

// isCanceled reports whether a failure of the release canceled a check, which does not run again.
func isCanceled(c v1alpha1.CheckStatus) bool { return c.Phase == v1alpha1.CheckCanceled }

// sinceUnix returns since when a fact holds, in Unix seconds; 0 if it does not hold.
func sinceUnix(holds bool, since int64, now time.Time) int64 {
	if !holds {
		return 0
	}
	return cmp.Or(since, now.Unix())
}

// untilDeadline returns how long the rollout has to become complete, 0 without a deadline, and whether it is overdue. A
// rollout whose progress is unknown is not overdue.
func untilDeadline(d *release) (left time.Duration, overdue bool) {
	w := d.Workload
	if w.ProgressDeadline == 0 || w.Rollout.Complete || w.Paused || w.Problem != "" || !record.SucceededAt(d.status).IsZero() ||
		len(record.ChecksAt(d.status, v1alpha1.StageReleasePost)) > 0 { // it was complete for long enough
		return 0, false
	}
	left = time.Unix(d.status.EntryTimeUnix, 0).Add(w.ProgressDeadline).Sub(d.Now)
	return max(left, 0), left <= 0
}

// untilSettled returns how long the complete rollout still has to stay complete.
func untilSettled(d *release) time.Duration {
	if d.status.CompleteTimeUnix == 0 {
		return 0
	}
	return time.Unix(d.status.CompleteTimeUnix, 0).Add(d.Workload.Settle).Sub(d.Now)
}

// settled reports whether the rollout of an object without pods has been complete for long enough.
func settled(d *release) bool {
	return d.Workload.Rollout.Complete && d.status.CompleteTimeUnix > 0 && untilSettled(d) <= 0
}

// untilFailed returns when a rollout that is stuck or overdue fails the release, and why: it has been stuck for longer
// than the setting rollback allows, or has exceeded its deadline. After Success it has to get stuck soon. The reason is
// empty if nothing is wrong.
func untilFailed(d *release) (left time.Duration, why string) {
	since, limit := time.Unix(d.status.StuckTimeUnix, 0), d.Settings.RollbackAfter
	at := record.SucceededAt(d.status)
	if d.status.StuckTimeUnix == 0 || !at.IsZero() && since.After(at.Add(d.Settings.RollbackProven)) {
		return 0, ""
	}
	why = fmt.Sprintf("stuck for longer than %s", limit)
	if _, overdue := untilDeadline(d); overdue {
		limit, why = min(limit, pastDeadline), fmt.Sprintf("not complete within %s", d.Workload.ProgressDeadline)
	}
	if detail := cmp.Or(d.Workload.Rollout.Message, d.Workload.Rollout.Progress); detail != "" {
		why += ": " + wording.Brief(detail)
	}
	return since.Add(limit).Sub(d.Now), why
}

// failStuck fails the release by a check of its own if its rollout does not come to an end. The next decision judges
// it: the block may halt the rollout, which is not stuck then, so the failure is written before.
func failStuck(d *release) {
	left, why := untilFailed(d)
	if why == "" || left > 0 || !d.Workload.WithoutPods || !record.IsVerified(d.status.Status) ||
		record.FindCheck(d.status.Checks, RolloutCheck) != nil {
		return
	}
	record.SetCheck(&d.status.Checks, v1alpha1.CheckStatus{
		Name: RolloutCheck, Type: RolloutCheck, Mode: v1alpha1.ModeEnforce, Phase: v1alpha1.CheckFailed,
		Reason: v1alpha1.ReasonRolloutStuck, Message: why, StartTime: times.Of(time.Unix(d.status.StartTimeUnix, 0)),
	}, d.Now)
	d.plan.RequeueAfter = time.Second / 10
}

// healed reports whether the rollout became complete after it had failed the release.
func healed(d *release) bool {
	c := record.FindCheck(d.Change.Status.Checks, RolloutCheck)
	return c != nil && c.Phase == v1alpha1.CheckFailed && record.FindCheck(d.status.Checks, RolloutCheck) == nil
}

// describeVerification describes the progress of the verification of an object without pods.
func describeVerification(d *release) string {
	pre, post := record.WaitsForCheck(d.status, v1alpha1.StageReleasePre), record.WaitsForCheck(d.status, v1alpha1.StageReleasePost)
	switch {
	case settled(d) && post != nil:
		return "the rollout is complete; the check " + post.Name + " is running"
	case pre != nil:
		return "the release waits for the check " + pre.Name
	case settled(d):
		return "the rollout is complete; the order is being checked"
	case d.status.CompleteTimeUnix > 0:
		return "the rollout has to stay complete until " + times.UTC(d.Now.Add(untilSettled(d)))
	default:
		return "the release waits for its rollout"
	}
}
