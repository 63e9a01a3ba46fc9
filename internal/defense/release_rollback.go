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
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Pods of a release that do not come up, or fail after they did. [rollback.Decide] decides whether the release is
// rolled back because of them, from the same judgement, [rollback.JudgeStart].

// explainStart reports the consequence for a release whose pods do not come up, each time it changes. It returns when
// to decide again.
func explainStart(d *release) (wait time.Duration) {
	wait = explainUnavailable(d)
	if d.hasFailed() && d.Settings.SelfHealing && rollback.HealingIsDue(d.status) {
		explainHealingLimit(d)
		return wait
	}
	still := rollback.JudgeStart(rollbackInputOf(d), d.status)
	if still.Target() != "" && d.Unreachable == nil {
		d.plan.NeedsNodes = still.Nodes
	}
	if len(d.Unreachable) > 0 {
		wait = times.Shortest(wait, rollback.LookAgain) // no event reports that a node is back
	}
	switch {
	case still.Limited:
		explainNoRollback(d, v1alpha1.ReasonRollbackLimit, still.First, still.Refusal)
	case still.Refusal != "":
		explainNoRollback(d, v1alpha1.ReasonRollbackRefused, still.First, still.Refusal)
	case still.Tolerated != "":
		explainTolerated(d, &still)
	case still.Target() != "" && d.Settings.Observe && !needsCause(d, still.First):
		wouldRollBack(d, still.Target(), fmt.Sprintf("%s does not come up: %s", still.First.Name(d.Workload), describeCause(d, still.First)))
	case still.First == nil && still.Slow != nil:
		explainNoRollback(d, v1alpha1.ReasonStillWaiting, still.Slow, describePatience(still.Slow))
	case still.First == nil && still.Slow == nil:
		recoverStart(d)
	}
	return times.Shortest(times.Shortest(wait, still.Wait), untilAsked(d.Workload, d.Now))
}

// recoverStart sets RolledBack to Recovered when stuck pods are healthy again. A container that crashes is up for
// moments, so it waits until the rollout is complete. A release that failed keeps the report of its failure.
func recoverStart(d *release) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionRolledBack)
	if said == nil || said.Reason == v1alpha1.ReasonRecovered {
		return
	}
	over := record.RankOfStuck(said.Reason) > 0 && d.Workload.Rollout.Complete && !unavailable(d.status)
	if d.hasFailed() {
		over = over && said.Reason != v1alpha1.ReasonRollbackRefused && !rollback.HealingIsDue(d.status)
	} else {
		over = over || said.Status == metav1.ConditionUnknown
	}
	if over {
		d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionFalse, v1alpha1.ReasonRecovered, "")
	}
}

// explainNoRollback reports, once, why a release with stuck pods is not rolled back: in the condition RolledBack and by
// an event.
func explainNoRollback(d *release, reason string, first *rollback.StuckPod, why string) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionRolledBack)
	if said != nil && said.Status == metav1.ConditionFalse && record.RankOfStuck(said.Reason) >= record.RankOfStuck(reason) {
		return
	}
	if needsCause(d, first) {
		return
	}
	refuseAs(d, reason, fmt.Sprintf("%s does not come up: %s; not rolled back: %s", first.Name(d.Workload), describeCause(d, first), why))
}

// refuseAs reports, with an event, why a release is not rolled back.
func refuseAs(d *release, reason, message string) {
	d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionFalse, reason, "%s", message)
	event := v1alpha1.EventRollbackRefused
	if reason == v1alpha1.ReasonStillWaiting || reason == v1alpha1.ReasonTolerated {
		event = v1alpha1.EventPodsUnavailable
	}
	d.warn(reason, event, message)
}

// explainTolerated reports that a release continues although pods are stuck. If all of them are on one node, a person
// has to look at the node.
func explainTolerated(d *release, still *rollback.Standstill) {
	explainNoRollback(d, v1alpha1.ReasonTolerated, still.First, still.Tolerated)
	d.stuckOn = still.StuckOn
}

// explainHealingLimit reports that a failed release waits for the rollback limit.
func explainHealingLimit(d *release) {
	why, _ := rollback.Limited(d.status, d.Workload, d.Limit, d.Settings, d.Now)
	if why != "" && record.ReasonOf(d.status, v1alpha1.ConditionRolledBack) != v1alpha1.ReasonRollbackLimit {
		refuseAs(d, v1alpha1.ReasonRollbackLimit, rollback.HealingHeld+why)
	}
}

func describePatience(h *rollback.StuckPod) string {
	if h.OfNode {
		return "its node is unreachable, which this version did not cause"
	}
	if h.Due.IsZero() {
		return "it does not fail, and has no time limit, because progressDeadlineSeconds is not set"
	}
	return fmt.Sprintf("it does not fail, and may take %s in total", h.Due.Sub(h.Since).Round(time.Second))
}

// describeCause returns the cause for which a pod is stuck; for a slow pod with the time so far.
func describeCause(d *release, h *rollback.StuckPod) string {
	s := h.Cause.String()
	if h.Cause.Slow {
		s += fmt.Sprintf(" (for %s)", d.Now.Sub(h.Since).Round(time.Second))
	}
	if cause := d.Causes[h.UID()]; cause != "" {
		s += ": " + wording.Brief(cause)
	}
	return s
}

// needsCause requests the events of a pod before the first report, if its status does not name the cause.
func needsCause(d *release, h *rollback.StuckPod) bool {
	if h.Pod == nil || !h.Cause.NeedsEvents() {
		return false
	}
	if _, read := d.Causes[h.Pod.UID]; read {
		return false
	}
	d.plan.NeedsCause = h.Pod
	return true
}

// explainUnavailable reports since when pods of the release fail, in any state, and after Success also which pods are
// slow. It returns when to decide again.
func explainUnavailable(d *release) (wait time.Duration) {
	var first *workload.Pod
	count, reason := 0, ""
	note := func(p *workload.Pod, why string) {
		if reason == v1alpha1.ReasonPodsFailing && why != reason {
			return
		}
		if first == nil || why != reason {
			first, count, reason = p, 0, why
		}
		count++
	}
	quiet := true
	for i := range d.Pods {
		p := &d.Pods[i]
		if left := untilQuiet(d, p); left > 0 {
			quiet, wait = false, times.Shortest(wait, left)
		}
		if !p.Live() || !p.Stuck.IsStuck(d.Now) {
			continue
		}
		quiet = false
		if !p.Stuck.IsSlow(d.Now, d.Settings.RollbackAfter) {
			note(p, v1alpha1.ReasonPodsFailing)
			continue
		}
		if d.status.Status != v1alpha1.ChangeWorkloadSuccess {
			continue
		}
		if left := p.Stuck.Since(d.Now, d.Settings.RollbackAfter, time.Time{}).Add(d.Settings.RollbackAfter).Sub(d.Now); left > 0 {
			wait = times.Shortest(wait, left)
		} else {
			note(p, v1alpha1.ReasonPodsSlow)
		}
	}
	switch w := d.Workload; {
	case first != nil:
		becomeUnavailable(d, reason, fmt.Sprintf("%d of %d pods; pod %s: %s", count, w.Replicas, first.Name, first.Stuck))
	case w.NotMade != nil && d.status.Status == v1alpha1.ChangeWorkloadSuccess:
		becomeUnavailable(d, v1alpha1.ReasonPodsSlow, w.NotMade.Describe(w))
	case quiet && unavailable(d.status):
		d.condition(v1alpha1.ConditionPodsUnavailable, metav1.ConditionFalse, v1alpha1.ReasonRecovered, "")
	}
	return wait
}

// untilQuiet returns for how long a restarted pod may still be in a crash loop: it has to run as long as a pod may take
// to fail.
func untilQuiet(d *release, p *workload.Pod) time.Duration {
	if !p.Live() || p.RestartedAt.IsZero() || !unavailable(d.status) {
		return 0
	}
	return p.Bounded(p.RestartedAt, d.Now).Add(max(workload.RestartSettle, d.Settings.RollbackAfter)).Sub(d.Now)
}

func unavailable(s *v1alpha1.ChangeWorkloadStatus) bool {
	return meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionPodsUnavailable)
}

func becomeUnavailable(d *release, reason, message string) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionPodsUnavailable)
	if said != nil && said.Status == metav1.ConditionTrue && (said.Reason == reason || said.Reason == v1alpha1.ReasonPodsFailing) {
		return
	}
	d.condition(v1alpha1.ConditionPodsUnavailable, metav1.ConditionTrue, reason, "%s", message)
	if d.status.Status == v1alpha1.ChangeWorkloadSuccess {
		d.warn(reason, v1alpha1.EventPodsUnavailable, message)
	}
}

// proveRelease decides whether a successful release has run well for long enough to be a target of rollbacks. It
// returns when to decide again.
func proveRelease(d *release) (wait time.Duration) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionProven)
	if d.Settings.History == 0 || said != nil && said.Status != metav1.ConditionUnknown {
		if said != nil && said.Status == metav1.ConditionFalse {
			leaveHistory(d) // the process may have died before
		}
		return 0
	}
	since := record.SucceededAt(d.status)
	bad := 0
	var first *workload.Pod
	for i := range d.Pods {
		p := &d.Pods[i]
		fails := p.Stuck.IsStuck(d.Now) && !p.Stuck.IsSlow(d.Now, d.Settings.RollbackAfter)
		if p.Live() && (fails || !p.Bounded(p.RestartedAt, d.Now).Before(since) && !p.RestartedAt.IsZero()) {
			bad++
			first = p
		}
	}
	if bad > rollback.Tolerated(d.Workload, d.Settings) {
		message := fmt.Sprintf("%d of %d pods, for example pod %s",
			bad, d.Workload.Replicas, first.Name)
		d.condition(v1alpha1.ConditionProven, metav1.ConditionFalse, v1alpha1.ReasonPodsFailing, "%s", message)
		d.warn(v1alpha1.ConditionProven, v1alpha1.EventPodsUnavailable,
			message+" failed or were restarted soon after Success; no rollback targets this version")
		d.plan.Remember = false
		leaveHistory(d)
		return 0
	}
	available := d.Workload.SinceAvailable(d.Pods, d.Now)
	if at := d.status.CompleteTimeUnix; d.Workload.WithoutPods && at > 0 {
		available = time.Unix(at, 0)
	}
	if !available.IsZero() {
		left := times.Latest(since, available).Add(d.Settings.RollbackProven).Sub(d.Now)
		if left <= 0 {
			d.condition(v1alpha1.ConditionProven, metav1.ConditionTrue, v1alpha1.ReasonRanWell, "it ran well for %s", d.Settings.RollbackProven)
			return 0
		}
		wait = left
	}
	if said == nil {
		d.condition(v1alpha1.ConditionProven, metav1.ConditionUnknown, v1alpha1.ReasonChecking,
			"it has to run well for %s", d.Settings.RollbackProven)
	}
	return wait
}

// takeRequest treats the state Rollback as a request for a rollback: on the current release, only a user can have
// written it. The former state is restored; it becomes Rollback when the rollback is done.
func takeRequest(d *release) {
	if d.status.Status != v1alpha1.ChangeWorkloadRollback {
		return
	}
	d.plan.NeedsLive = !d.Live
	d.status.Status = formerState(d.status)
	change := d.Change.DeepCopy()
	change.Status = *d.status.DeepCopy()
	in := rollbackInputOf(d)
	in.Changes = append(slices.Clone(d.Others), *change)
	to, refusal := rollback.Request(in, rollback.LastSuccess)
	if refusal != "" {
		d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionFalse, v1alpha1.ReasonRequestRefused, "%s", refusal)
		d.event(corev1.EventTypeWarning, v1alpha1.EventRollbackRefused, "a user wrote the state Rollback: "+refusal)
		return
	}
	// An existing request comes first.
	if _, asked := d.Workload.Annotations[v1alpha1.RollbackToAnnotation]; !asked {
		d.plan.RollbackTo = to
		d.actionEvent(corev1.EventTypeWarning, v1alpha1.EventRollbackRequested, "to version "+to)
	}
}

// rollbackInputOf returns the input for a rollback of the release, with the other releases of the workload.
func rollbackInputOf(d *release) rollback.Input {
	return rollback.Input{
		Now: d.Now, Settings: d.Settings, Workload: d.Workload, Enrolled: d.Enrolled,
		Changes: d.Others, Pods: d.Pods, History: d.History, Limit: d.Limit,
	}
}

// formerState returns the state that the rest of the status describes.
func formerState(s *v1alpha1.ChangeWorkloadStatus) v1alpha1.ChangeWorkloadStatusType {
	verified := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionVerified)
	switch {
	case s.OrderStage == v1alpha1.OrderRefused:
		return v1alpha1.ChangeWorkloadFailed
	case s.OrderStage == v1alpha1.OrderSubmitting, s.OrderStage == v1alpha1.OrderDenied:
		return v1alpha1.ChangeWorkloadInit
	case verified == nil:
		return v1alpha1.ChangeWorkloadRunning
	case verified.Status == metav1.ConditionFalse:
		return v1alpha1.ChangeWorkloadSuspend
	case verified.Reason == v1alpha1.ReasonAllPassed, verified.Reason == v1alpha1.ReasonPassedUnverified,
		verified.Reason == v1alpha1.ReasonNothingVerified, verified.Reason == v1alpha1.ReasonRolloutComplete:
		return v1alpha1.ChangeWorkloadSuccess
	default:
		return v1alpha1.ChangeWorkloadRunning
	}
}

// explainSelfHealing reports that a failed release will be rolled back, or why it will not.
func explainSelfHealing(d *release) {
	target, refusal := rollback.SelfHealingTarget(d.Workload, d.History, d.Others, d.Now)
	if refusal != "" {
		refuseRollback(d, refusal)
		return
	}
	if d.Settings.Observe {
		wouldRollBack(d, target.Version, "it failed its verification")
		return
	}
	d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionUnknown, v1alpha1.ReasonVerificationFailed,
		"to version %s", target.Version)
}

// refuseRollback reports a refusal once, even if its details change.
func refuseRollback(d *release, why string) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionRolledBack)
	if said != nil && said.Reason == v1alpha1.ReasonRollbackRefused {
		return
	}
	refuseAs(d, v1alpha1.ReasonRollbackRefused, why)
}

// untilAsked returns how long until the operator asks again why pods of a workload are missing; 0 if none is missing.
func untilAsked(w *workload.Workload, now time.Time) time.Duration {
	if w.Lacking == nil {
		return 0
	}
	if after := w.Lacking.AskAfter(now); after > 0 {
		return after
	}
	return rollback.LookAgain
}
