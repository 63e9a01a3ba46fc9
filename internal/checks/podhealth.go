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

package checks

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// podHealthInput is the input of a decision about a check of type podHealth.
type podHealthInput struct {
	Now   time.Time
	Check *policy.Check
	// Status of the check, which has begun.
	Status v1alpha1.CheckStatus
	// Pods of the batch that exist.
	Pods []workload.Pod
	// Around is nil until a pod fails.
	Around *healthAround
}

// healthAround has the health of the pods outside a batch.
type healthAround struct {
	// total is the number of pods of the release that are in a batch and exist.
	total int
	// failing is the number of pods in other batches of the release that fail the check.
	failing int
	// old lists the pods of the previous version that exist.
	old []workload.Pod
}

// podHealthPlan is a decision about the check.
type podHealthPlan struct {
	// Failing describes the failing pods of the batch in one text, which changes when a pod
	// fails again. If it is set, load Around and decide again.
	Failing string
	// Status is the new status, which may be equal to the old one.
	Status v1alpha1.CheckStatus
	// After is the time until the next decision if nothing happens before; 0 for never.
	After time.Duration
}

const (
	// oldPodsShare: the release is not the cause if at least one of so many old pods fails
	// in the same way.
	oldPodsShare = 10
	// maxUnreadyGrace bounds the time that a pod must have been unready when a check ends, so
	// that a pod that is unready for a moment does not fail.
	maxUnreadyGrace = 30 * time.Second
	// mostRestarts is the allowed number of restarts of a pod since a check began. A kubelet may
	// back off for one second only, so CrashLoopBackOff may never be visible.
	mostRestarts int32 = 1
	// upAgain is the time for a pod to become Ready after a container ended.
	upAgain = 30 * time.Second
	// againSoon: an old pod whose container was restarted repeatedly, last within this time,
	// counts as in a crash loop.
	againSoon = 2 * time.Minute
)

const (
	reasonCrashLoop     = "CrashLoopBackOff"
	reasonOutOfMemory   = "OOMKilled"
	reasonNotReady      = "NotReady"
	reasonRestarted     = "Restarted"
	reasonReadinessLost = "ReadinessLost"
)

// symptom is a defect of a pod, in one word and in a sentence.
type symptom struct{ reason, message string }

// decidePodHealth decides about a check of type podHealth. Events after the end of the check do
// not count, however late it is called.
func decidePodHealth(in podHealthInput) podHealthPlan {
	h := newPodHealth(in)
	if left := h.begun.Sub(in.Now); left > 0 {
		return podHealthPlan{Status: h.status, After: left}
	}
	h.count()
	failing := map[string]symptom{}
	for i := range in.Pods {
		if s := h.symptomOf(&in.Pods[i]); s.reason != "" {
			failing[in.Pods[i].Name] = s
		}
	}
	if len(failing) > 0 && in.Around == nil {
		return podHealthPlan{Failing: h.describeFailing(failing), Status: h.status}
	}
	unclear := len(failing) > 0 && h.judge(failing)
	if h.status.Phase == v1alpha1.CheckFailed {
		return podHealthPlan{Status: h.status}
	}
	after := h.untilNext()
	switch {
	case after > 0 || h.status.Background:
	case unclear:
		h.status.Phase, h.status.OnSilence = v1alpha1.CheckInconclusive, onSilence(h.Check.OnNoData)
	default:
		h.pass()
	}
	return podHealthPlan{Status: h.status, After: after}
}

// pass ends the check when no pod fails. Excused pods do not count.
func (h *podHealth) pass() {
	s, seen := &h.status, 0
	for i := range h.Pods {
		if !h.Pods[i].Excused() {
			seen++
		}
	}
	if seen == 0 {
		s.Phase, s.Reason, s.Message = v1alpha1.CheckSkipped, v1alpha1.ReasonNoPods, "no pod of the batch is left to check"
		return
	}
	s.Phase, s.Reason = v1alpha1.CheckPassed, v1alpha1.ReasonPassed
	if len(s.FailedPods) == 0 {
		s.Message = fmt.Sprintf("%d pods were well", seen)
	}
}

// describeFailing returns a text that changes whenever a pod fails in another way, or again.
func (h *podHealth) describeFailing(failing map[string]symptom) string {
	var all strings.Builder
	for i := range h.Pods {
		p := &h.Pods[i]
		if s, fails := failing[p.Name]; fails {
			fmt.Fprintln(&all, p.Name, s.reason, p.Restarts, p.EndedAt.Unix(), p.UnreadySince.Unix())
		}
	}
	return all.String()
}

type podHealth struct {
	podHealthInput
	status v1alpha1.CheckStatus
	// begun and due are the first and the last moment that counts.
	begun, due time.Time
}

func newPodHealth(in podHealthInput) *podHealth {
	return &podHealth{
		podHealthInput: in, status: *in.Status.DeepCopy(),
		begun: timeOf(in.Status.StartTime).Add(in.Check.Delay), due: timeOf(in.Status.DueTime),
	}
}

// grace returns the time that a pod must have been unready when the check ends.
func (h *podHealth) grace() time.Duration {
	return min(h.due.Sub(h.begun)/10, maxUnreadyGrace)
}

// untilNext returns the time until the decision may change by time alone: until the end, or
// until a pod that is unready at the end has been so for long enough.
func (h *podHealth) untilNext() time.Duration {
	if left := h.due.Sub(h.Now); left > 0 {
		for i := range h.Pods {
			if since, ok := h.downSince(&h.Pods[i]); ok && h.symptomOf(&h.Pods[i]).reason == "" {
				left = min(left, since.Add(upAgain).Sub(h.Now))
			}
		}
		return left
	}
	wait := time.Duration(0)
	for i := range h.Pods {
		p := &h.Pods[i]
		if since, ok := h.unreadySince(p); ok {
			wait = max(wait, since.Add(h.grace()).Sub(h.Now))
		}
		if since, ok := h.downSince(p); ok {
			wait = max(wait, since.Add(upAgain).Sub(h.Now))
		}
	}
	return wait
}

// symptomOf returns the symptom of a pod of the batch; empty if it is healthy, or excused.
func (h *podHealth) symptomOf(p *workload.Pod) symptom {
	if p.Excused() {
		return symptom{}
	}
	if s := h.crashed(p); s.reason != "" {
		return s
	}
	if s := h.restarted(p); s.reason != "" {
		return s
	}
	kept := h.kept(p.Name)
	if most := h.Check.PodHealth.MaxReadinessLosses; most != nil && kept.ReadinessLosses > *most {
		return symptom{reasonReadinessLost, fmt.Sprintf("it ceased to be Ready %d times since the check began, at most %d are allowed",
			kept.ReadinessLosses, *most)}
	}
	return h.unready(p)
}

// crashed returns the symptom of a pod that is in CrashLoopBackOff, or was OOMKilled, while the
// check runs. A loop began at least one back-off before its container ended last.
func (h *podHealth) crashed(p *workload.Pod) symptom {
	if c := p.CrashLoop; c != nil &&
		!p.Bounded(c.Finished, h.Now).Add(-workload.BackOff(c.Restarts)).After(h.due.Add(workload.ClockTolerance)) {
		return symptom{reasonCrashLoop, joined(": ", "container "+c.Container+" is in CrashLoopBackOff", c.Message)}
	}
	if c := p.OutOfMemory; c != nil && *h.Check.PodHealth.FailOnOOM && h.during(p, c.Finished) {
		return symptom{reasonOutOfMemory, joined(": ", "container "+c.Container+" was OOMKilled", c.Message)}
	}
	return symptom{}
}

// restarts returns the number of times that containers of a pod failed and were restarted since
// the check began.
func (h *podHealth) restarts(p *workload.Pod) int32 {
	if !h.during(p, p.EndedAt) {
		return 0
	}
	return p.Restarts - h.kept(p.Name).RestartsAtStart
}

// restarted returns the symptom of a pod that was restarted too often, or once and is not Ready since.
func (h *podHealth) restarted(p *workload.Pod) symptom {
	most := mostRestarts
	if h.Check.PodHealth.MaxRestarts != nil {
		most = min(most, *h.Check.PodHealth.MaxRestarts)
	}
	n := h.restarts(p)
	if n > most {
		return symptom{reasonRestarted, fmt.Sprintf("its containers were restarted %d times since the check began, at most %d are allowed",
			n, most)}
	}
	since, down := h.downSince(p)
	if !down || h.Now.Sub(since) < upAgain {
		return symptom{}
	}
	message := fmt.Sprintf("a container was restarted, and the pod has not been Ready since %s", times.Format(since))
	if p.Stuck != nil {
		message += ": " + p.Stuck.String()
	}
	return symptom{reasonRestarted, message}
}

// downSince returns since when a pod is unready whose container failed and was restarted.
func (h *podHealth) downSince(p *workload.Pod) (since time.Time, down bool) {
	if p.Excused() || p.UnreadySince.IsZero() || h.restarts(p) <= 0 {
		return since, false
	}
	since = latest(p.Bounded(p.UnreadySince, h.Now), p.Bounded(p.EndedAt, h.Now))
	return since, !since.After(h.due.Add(workload.ClockTolerance))
}

// during reports whether something happened to a pod while the check runs. An impossible time of
// a kubelet counts as the creation of the pod.
func (h *podHealth) during(p *workload.Pod, t time.Time) bool {
	at := p.Bounded(t, h.Now)
	return !t.IsZero() && !at.Before(h.begun.Add(-workload.ClockTolerance)) && !at.After(h.due.Add(workload.ClockTolerance))
}

// unready returns the symptom of a pod that is unready when the check ends, and was for the grace time.
func (h *podHealth) unready(p *workload.Pod) symptom {
	since, ok := h.unreadySince(p)
	if !ok || h.Now.Before(h.due) || !h.unreadyForGrace(since) {
		return symptom{}
	}
	message := fmt.Sprintf("it has not been Ready since %s", times.Format(since))
	if p.Stuck != nil {
		message += ": " + p.Stuck.String()
	}
	return symptom{reasonNotReady, message}
}

func (h *podHealth) unreadyForGrace(since time.Time) bool { return h.Now.Sub(since) >= h.grace() }

// unreadySince returns since when a pod is unready. It counts if the pod was unready when the
// check ended. After a restart of its node, the time begins when the pod is started again.
func (h *podHealth) unreadySince(p *workload.Pod) (since time.Time, ok bool) {
	if !*h.Check.PodHealth.ReadyAtEnd || p.Excused() || p.UnreadySince.IsZero() {
		return since, false
	}
	since = p.Bounded(p.UnreadySince, h.Now)
	if p.NodeRestarted {
		started := p.Bounded(p.StartedAt, h.Now)
		if p.StartedAt.IsZero() || started.Before(since) {
			return since, false // it is not up again
		}
		since = started
	}
	return since, !since.After(h.due)
}

func (h *podHealth) kept(pod string) v1alpha1.PodAtStart {
	if i := slices.IndexFunc(h.status.PodsAtStart, func(k v1alpha1.PodAtStart) bool { return k.Pod == pod }); i >= 0 {
		return h.status.PodsAtStart[i]
	}
	return v1alpha1.PodAtStart{Pod: pod}
}

// count stores counts of the pods in the status, which may be visible only while the check runs.
func (h *podHealth) count() {
	h.countLosses()
	for i := range h.Pods {
		p := &h.Pods[i]
		// Restarts before a container failed were restarts of the node.
		if kept := h.kept(p.Name); p.NodeRestarted && p.Restarts > kept.RestartsAtStart && !h.during(p, p.EndedAt) {
			kept.RestartsAtStart = p.Restarts
			h.keep(kept)
		}
	}
}

// countLosses counts each time a pod ceased to be Ready since the check began, if the check has
// a limit. A pod that became Ready since counts as well.
func (h *podHealth) countLosses() {
	if h.Check.PodHealth.MaxReadinessLosses == nil {
		return
	}
	for i := range h.Pods {
		p := &h.Pods[i]
		kept := h.kept(p.Name)
		// A pod is Ready when it is put into its batch. If it is not now, it ceased to be Ready
		// since, though the clock of its node may say a little earlier.
		at, earliest := p.UnreadySince, h.begun.Add(-workload.ClockTolerance)
		if p.Ready {
			at, earliest = p.ReadySince, h.begun.Add(time.Second)
		}
		at = p.Bounded(at, h.Now).Truncate(time.Second)
		if p.Excused() || p.Ready && kept.ReadinessLosses > 0 || at.Before(earliest) || at.After(h.due) || !at.After(timeOf(kept.LostTime)) {
			continue
		}
		kept.ReadinessLosses, kept.LostTime = kept.ReadinessLosses+1, stamp(at)
		h.keep(kept)
	}
}

func (h *podHealth) keep(kept v1alpha1.PodAtStart) {
	for i := range h.status.PodsAtStart {
		if h.status.PodsAtStart[i].Pod == kept.Pod {
			h.status.PodsAtStart[i] = kept
			return
		}
	}
	h.status.PodsAtStart = append(h.status.PodsAtStart, kept)
}

// judge decides about the failing pods of the batch. It reports whether the cause is unclear,
// because old pods fail in the same way.
func (h *podHealth) judge(failing map[string]symptom) (unclear bool) {
	all := failing
	failing = maps.Clone(failing)
	same := map[string]bool{}
	for _, s := range failing {
		if _, known := same[s.reason]; !known {
			same[s.reason] = h.sameOnOldPods(s.reason)
		}
	}
	maps.DeleteFunc(failing, func(_ string, s symptom) bool { return same[s.reason] })
	if len(failing) == 0 {
		h.note(v1alpha1.ReasonSameOnOldPods, all, "pods of the previous version fail in the same way, so this release is not the cause")
		return true
	}
	count, allowed := len(failing)+h.Around.failing, h.allowed()
	if count <= allowed {
		h.note(v1alpha1.ReasonTolerated, failing,
			fmt.Sprintf("%d of %d pods of the release fail, up to %d are tolerated", count, h.Around.total, allowed))
		return false
	}
	h.status.Phase = v1alpha1.CheckFailed
	h.note("", failing, h.Check.Suggestion)
	return false
}

// note writes the failing pods into the status. A status that names them already is not changed.
func (h *podHealth) note(reason string, failing map[string]symptom, more string) {
	s := &h.status
	names := slices.SortedFunc(maps.Keys(failing), cmp.Compare)
	first := failing[names[0]]
	known := s.FailedPods
	if s.Phase != v1alpha1.CheckFailed && s.Reason == reason &&
		(int(s.FailedCount) >= len(names) && len(names) > record.MaxFailedPods ||
			!slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(known, n) })) {
		return
	}
	s.Reason, s.Value = cmp.Or(reason, first.reason), first.reason
	report(s, names, fmt.Sprintf("pod %s: %s", names[0], first.message), more)
}

// countFailing counts the pods of another batch that fail a check now, or failed it earlier.
func countFailing(in podHealthInput) (count int) {
	there := newPodHealth(in)
	there.count()
	for i := range in.Pods {
		if p := &in.Pods[i]; !p.Excused() && (there.symptomOf(p).reason != "" || slices.Contains(in.Status.FailedPods, p.Name)) {
			count++
		}
	}
	if in.Status.Reason != v1alpha1.ReasonSameOnOldPods && int(in.Status.FailedCount) > len(in.Status.FailedPods) {
		count = max(count, min(int(in.Status.FailedCount), len(in.Pods)))
	}
	return count
}

// allowed returns the number of pods of the release that may fail.
func (h *podHealth) allowed() int {
	n, err := intstr.GetScaledValueFromIntOrPercent(h.Check.PodHealth.MaxFailedPods, h.Around.total, false)
	if err != nil {
		return 0
	}
	return n
}

// sameOnOldPods reports whether enough old pods have failed in the same way since the check began
// to acquit the release. Pods that were created since do not count: they may be starting.
func (h *podHealth) sameOnOldPods(reason string) bool {
	if !*h.Check.PodHealth.CompareOldPods {
		return false
	}
	same, old := 0, 0
	for i := range h.Around.old {
		p := &h.Around.old[i]
		if p.Excused() || !p.Created.Before(h.begun) {
			continue
		}
		old++
		if h.didSame(p, reason) {
			same++
		}
	}
	return same > 0 && same*oldPodsShare >= old
}

// didSame reports whether an old pod failed in the same way as a pod of the batch. A pod counts as
// in a crash loop if a container failed, and if it is not Ready again or was restarted repeatedly
// and lately.
func (h *podHealth) didSame(p *workload.Pod, reason string) bool {
	switch reason {
	case reasonCrashLoop, reasonRestarted:
		killed := p.OutOfMemory != nil && p.OutOfMemory.Finished.Equal(p.EndedAt)
		again := p.Restarts >= workload.Crashes && h.Now.Sub(p.Bounded(p.EndedAt, h.Now)) < againSoon
		return p.CrashLoop != nil || h.during(p, p.EndedAt) && !killed && (!p.Ready || again)
	case reasonOutOfMemory:
		return p.OutOfMemory != nil && h.during(p, p.OutOfMemory.Finished)
	case reasonReadinessLost:
		return !p.Ready && h.during(p, p.UnreadySince)
	default:
		since, ok := h.unreadySince(p)
		return ok && h.unreadyForGrace(since)
	}
}
