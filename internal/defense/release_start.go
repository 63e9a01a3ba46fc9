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
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// The part of a release that tells of pods that do not come up, and of those
// that fail after they did. Whether it is rolled back because of them is decided
// by DecideRollback, from the same judgement.

// explainStart says of a release whose pods do not come up what becomes of it,
// each time that is something else. It returns when to look again.
func (d *release) explainStart() (wait time.Duration) {
	wait = d.explainUnavailable()
	if d.hasFailed() && d.Settings.SelfHealing && healingIsDue(d.status) {
		d.explainHealingLimit()
		return wait
	}
	s := start{d.rollbackInput(), d.status}
	still := s.judge()
	if still.target() != "" && d.Unreachable == nil {
		d.plan.NeedsNodes = still.nodes
	}
	if len(d.Unreachable) > 0 {
		wait = shortest(wait, lookAgain) // that a node is back is not seen
	}
	switch {
	case still.limited:
		d.explainNoRollback(v1alpha1.ReasonRollbackLimit, still.first, still.refusal)
	case still.refusal != "":
		d.explainNoRollback(v1alpha1.ReasonRollbackRefused, still.first, still.refusal)
	case still.tolerated != "":
		d.explainTolerated(&still)
	case still.target() != "" && d.Settings.Observe && !d.needsCause(still.first):
		d.wouldRollBack(still.target(), fmt.Sprintf("%s does not come up: %s", still.first.name(d.Workload), d.describeCause(still.first)))
	case still.first == nil && still.slow != nil:
		d.explainNoRollback(v1alpha1.ReasonStillWaiting, still.slow, d.describePatience(still.slow))
	case still.first == nil && still.slow == nil:
		d.recover()
	}
	return shortest(shortest(wait, still.wait), untilAsked(d.Workload, d.Now))
}

// recover sets RolledBack to Recovered when pods that were stuck are well again. A
// container that crashes is up for moments, so this waits until the rollout is
// complete. For a release that failed, what was reported of the failure stays.
func (d *release) recover() {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionRolledBack)
	if said == nil || said.Reason == v1alpha1.ReasonRecovered {
		return
	}
	over := rankOfStuck(said.Reason) > 0 && d.Workload.Rollout.Complete && !d.unavailable()
	if d.hasFailed() {
		over = over && said.Reason != v1alpha1.ReasonRollbackRefused && !healingIsDue(d.status)
	} else {
		over = over || said.Status == metav1.ConditionUnknown
	}
	if over {
		d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionFalse, v1alpha1.ReasonRecovered, "")
	}
}

// explainNoRollback reports once why a release whose pods are stuck is not rolled back:
// condition RolledBack, and an event of its reason.
func (d *release) explainNoRollback(reason string, first *stuckPod, why string) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionRolledBack)
	if said != nil && said.Status == metav1.ConditionFalse && rankOfStuck(said.Reason) >= rankOfStuck(reason) {
		return
	}
	if d.needsCause(first) {
		return
	}
	d.refuseAs(reason, fmt.Sprintf("%s does not come up: %s; not rolled back: %s", first.name(d.Workload), d.describeCause(first), why))
}

// refuseAs says why a release is not rolled back, with an event.
func (d *release) refuseAs(reason, message string) {
	d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionFalse, reason, "%s", message)
	event := v1alpha1.EventRollbackRefused
	if reason == v1alpha1.ReasonStillWaiting || reason == v1alpha1.ReasonTolerated {
		event = v1alpha1.EventPodsUnavailable
	}
	d.warn(reason, event, message)
}

// explainTolerated reports that a release goes on although pods are stuck. If all of
// them are on one node, somebody has to look at it.
func (d *release) explainTolerated(still *standstill) {
	d.explainNoRollback(v1alpha1.ReasonTolerated, still.first, still.tolerated)
	d.stuckOn = still.stuckOn
}

// explainHealingLimit says that a release which failed waits for the rollback limit.
func (d *release) explainHealingLimit() {
	why, _ := limited(d.status, d.Workload, d.Limit, d.Settings, d.Now)
	if why != "" && reasonOf(d.status, v1alpha1.ConditionRolledBack) != v1alpha1.ReasonRollbackLimit {
		d.refuseAs(v1alpha1.ReasonRollbackLimit, healingHeld+why)
	}
}

func (d *release) describePatience(h *stuckPod) string {
	if h.ofNode {
		return "its node does not answer, which this version has no part in"
	}
	if h.due.IsZero() {
		return "it does not fail, and has no time limit, because progressDeadlineSeconds is not set"
	}
	return fmt.Sprintf("it does not fail, and may take %s in total", h.due.Sub(h.since).Round(time.Second))
}

// name is what is stuck.
func (h *stuckPod) name(w *Workload) string {
	if h.pod == nil {
		return fmt.Sprintf("%d of %d pods", w.NotMade.Count, w.Replicas)
	}
	return "pod " + h.pod.Name
}

// describeCause says what a pod is stuck at, and of what goes on for how long.
func (d *release) describeCause(h *stuckPod) string {
	s := h.cause.String()
	if h.cause.Slow {
		s += fmt.Sprintf(" (for %s)", d.Now.Sub(h.since).Round(time.Second))
	}
	if cause := d.Causes[h.uid()]; cause != "" {
		s += ": " + Brief(cause)
	}
	return s
}

// needsCause asks for the events of a pod before it is reported, if its status
// does not say what it waits for.
func (d *release) needsCause(h *stuckPod) bool {
	if h.pod == nil || !h.cause.needsEvents() {
		return false
	}
	if _, read := d.Causes[h.pod.UID]; read {
		return false
	}
	d.plan.NeedsCause = h.pod
	return true
}

// explainUnavailable says since when pods of the release fail, in any state, and
// of one that succeeded also that pods are slow. It returns when to look again.
func (d *release) explainUnavailable() (wait time.Duration) {
	var first *Pod
	count, reason := 0, ""
	note := func(p *Pod, why string) {
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
		if left := d.untilQuiet(p); left > 0 {
			quiet, wait = false, shortest(wait, left)
		}
		if !p.live() || !p.Stuck.isStuck(d.Now) {
			continue
		}
		quiet = false
		if !p.Stuck.slow(d.Now, d.Settings.RollbackAfter) {
			note(p, v1alpha1.ReasonPodsFailing)
			continue
		}
		if d.status.Status != v1alpha1.ChangeWorkloadSuccess {
			continue
		}
		if left := p.Stuck.since(d.Now, d.Settings.RollbackAfter, time.Time{}).Add(d.Settings.RollbackAfter).Sub(d.Now); left > 0 {
			wait = shortest(wait, left)
		} else {
			note(p, v1alpha1.ReasonPodsSlow)
		}
	}
	switch w := d.Workload; {
	case first != nil:
		d.becomeUnavailable(reason, fmt.Sprintf("%d of %d pods; pod %s: %s", count, w.Replicas, first.Name, first.Stuck))
	case w.NotMade != nil && d.status.Status == v1alpha1.ChangeWorkloadSuccess:
		d.becomeUnavailable(v1alpha1.ReasonPodsSlow, w.NotMade.describe(w))
	case quiet && d.unavailable():
		d.condition(v1alpha1.ConditionPodsUnavailable, metav1.ConditionFalse, v1alpha1.ReasonRecovered, "")
	}
	return wait
}

// untilQuiet is for how long a pod that was restarted may still be in a crash
// loop: it has to be up for as long as a pod may take to fail.
func (d *release) untilQuiet(p *Pod) time.Duration {
	if !p.live() || p.RestartedAt.IsZero() || !d.unavailable() {
		return 0
	}
	return p.Bounded(p.RestartedAt, d.Now).Add(max(restartSettle, d.Settings.RollbackAfter)).Sub(d.Now)
}

func (d *release) unavailable() bool {
	return meta.IsStatusConditionTrue(d.status.Conditions, v1alpha1.ConditionPodsUnavailable)
}

func (d *release) becomeUnavailable(reason, message string) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionPodsUnavailable)
	if said != nil && said.Status == metav1.ConditionTrue && (said.Reason == reason || said.Reason == v1alpha1.ReasonPodsFailing) {
		return
	}
	d.condition(v1alpha1.ConditionPodsUnavailable, metav1.ConditionTrue, reason, "%s", message)
	if d.status.Status == v1alpha1.ChangeWorkloadSuccess {
		d.warn(reason, v1alpha1.EventPodsUnavailable, message)
	}
}

// prove says whether a release that succeeded runs well for long enough to be
// gone back to. It returns when to look again.
func (d *release) prove() (wait time.Duration) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionProven)
	if d.Settings.History == 0 || said != nil && said.Status != metav1.ConditionUnknown {
		if said != nil && said.Status == metav1.ConditionFalse {
			d.leaveHistory() // the process may have died before it was done
		}
		return 0
	}
	since := succeededAt(d.status)
	bad := 0
	var first *Pod
	for i := range d.Pods {
		p := &d.Pods[i]
		fails := p.Stuck.isStuck(d.Now) && !p.Stuck.slow(d.Now, d.Settings.RollbackAfter)
		if p.live() && (fails || !p.Bounded(p.RestartedAt, d.Now).Before(since) && !p.RestartedAt.IsZero()) {
			bad++
			first = p
		}
	}
	if bad > tolerated(d.Workload, d.Settings) {
		message := fmt.Sprintf("%d of %d pods, for example pod %s",
			bad, d.Workload.Replicas, first.Name)
		d.condition(v1alpha1.ConditionProven, metav1.ConditionFalse, v1alpha1.ReasonPodsFailing, "%s", message)
		d.warn(v1alpha1.ConditionProven, v1alpha1.EventPodsUnavailable, message+" failed or were restarted soon after Success; no rollback targets this version")
		d.plan.Remember = false
		d.leaveHistory()
		return 0
	}
	if available := d.Workload.availableSince(d.Pods, d.Now); !available.IsZero() {
		left := latest(since, available).Add(d.Settings.RollbackProven).Sub(d.Now)
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
