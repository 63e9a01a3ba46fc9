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
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// PodHealth is a check that looks at how the pods of a batch are.
type PodHealth struct {
	// Delay after the check was written down, before it begins.
	Delay time.Duration
	// MaxRestarts and MaxReadinessLosses of a pod; nil where they are not judged.
	MaxRestarts, MaxReadinessLosses *int32
	ReadyAtEnd, FailOnOOM           bool
	// MaxFailed pods of the release so far are told, and not failed.
	MaxFailed      intstr.IntOrString
	CompareOldPods bool
	// Suggestion for who reads that it failed.
	Suggestion string
}

// PodHealthInput is what a decision about such a check is made from.
type PodHealthInput struct {
	Now   time.Time
	Check PodHealth
	// Status of the check, which has begun.
	Status v1alpha1.CheckStatus
	// Pods of the batch, as far as they exist.
	Pods []Pod
	// Release is nil until it was asked for.
	Release *ReleaseHealth
}

// ReleaseHealth is how the pods around a batch are.
type ReleaseHealth struct {
	// Batched are the pods of the release that are in a batch and exist, Total how many
	// are or were in one.
	Batched []Pod
	Total   int
	// Old are the pods of the version before that exist.
	Old []Pod
}

// PodHealthPlan is what becomes of the check.
type PodHealthPlan struct {
	// NeedsRelease: a pod fails; look at the others, and decide again.
	NeedsRelease bool
	// Status is the new one, which may be as it was.
	Status v1alpha1.CheckStatus
	// After says when to look again, if nothing happens before; 0 for never.
	After time.Duration
}

const (
	// oldPodsShare is how many of the old pods must do the same, one in so many, for
	// the release not to be the cause.
	oldPodsShare = 10
	// maxUnreadyGrace bounds how long a pod must not have been Ready when a check ends:
	// a flap at that very moment fails nobody.
	maxUnreadyGrace = 30 * time.Second
)

// symptom is what is wrong with a pod, in one word, and in a sentence.
type symptom struct{ reason, message string }

// DecidePodHealth says what becomes of a check of the health of pods. What it says of
// a moment does not depend on when it is asked: a process that was away comes to the
// same.
func DecidePodHealth(in PodHealthInput) PodHealthPlan {
	h := &podHealth{PodHealthInput: in, status: *in.Status.DeepCopy()}
	h.begun = timeOrZero(in.Status.StartTime).Add(in.Check.Delay)
	h.due = timeOrZero(in.Status.DueTime)
	if left := h.begun.Sub(in.Now); left > 0 {
		return PodHealthPlan{Status: h.status, After: left}
	}
	h.countLosses()
	atEnd := !in.Now.Before(h.due)
	failing := map[types.UID]symptom{}
	for i := range in.Pods {
		if s := h.symptomOf(&in.Pods[i]); s.reason != "" {
			failing[in.Pods[i].UID] = s
		}
	}
	if len(failing) > 0 && in.Release == nil {
		return PodHealthPlan{NeedsRelease: true, Status: h.status}
	}
	unclear := false
	if len(failing) > 0 {
		unclear = h.judge(failing)
	}
	switch after := h.lookAgain(); {
	case CheckIsOver(&h.status) && h.status.Phase != v1alpha1.CheckWatching:
		return PodHealthPlan{Status: h.status}
	case after > 0:
		return PodHealthPlan{Status: h.status, After: after}
	case atEnd && !h.status.Background && unclear:
		h.status.Phase = v1alpha1.CheckInconclusive
	case atEnd && !h.status.Background:
		h.status.Phase, h.status.Reason = v1alpha1.CheckPassed, v1alpha1.ReasonPassed
		if len(h.status.FailedPods) == 0 {
			h.status.Message = fmt.Sprintf("%d pods were well", len(in.Pods))
		}
	}
	return PodHealthPlan{Status: h.status}
}

type podHealth struct {
	PodHealthInput
	status v1alpha1.CheckStatus
	// begun and due are the first and the last moment that is looked at.
	begun, due time.Time
}

func timeOrZero(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

// grace is for how long a pod must not have been Ready when the check ends.
func (h *podHealth) grace() time.Duration {
	return min(h.due.Sub(h.begun)/10, maxUnreadyGrace)
}

// lookAgain is how long until something is to be seen by time alone: the end, or that
// a pod that is not Ready at the end stays so.
func (h *podHealth) lookAgain() time.Duration {
	if left := h.due.Sub(h.Now); left > 0 {
		return left
	}
	wait := time.Duration(0)
	for i := range h.Pods {
		p := &h.Pods[i]
		if !h.Check.ReadyAtEnd || p.excused() || p.UnreadySince.IsZero() || p.bounded(p.UnreadySince, h.Now).After(h.due) {
			continue
		}
		if left := p.bounded(p.UnreadySince, h.Now).Add(h.grace()).Sub(h.Now); left > 0 {
			wait = max(wait, left)
		}
	}
	return wait
}

// excused says that what is wrong with a pod is nobody's failure: it goes, or its node
// does.
func (p *Pod) excused() bool { return !p.live() || p.Disrupted || p.Lost }

// symptomOf says what is wrong with a pod of the batch; nothing when it is well, or
// excused.
func (h *podHealth) symptomOf(p *Pod) symptom {
	if p.excused() {
		return symptom{}
	}
	if s := h.crashed(p, h.begun); s.reason != "" {
		return s
	}
	kept := h.kept(p.Name)
	if most := h.Check.MaxRestarts; most != nil && p.Restarts-kept.RestartsAtStart > *most && !h.after(p, p.RestartedAt) {
		return symptom{"Restarted", fmt.Sprintf("its containers were restarted %d times since the check began, at most %d are allowed",
			p.Restarts-kept.RestartsAtStart, *most)}
	}
	if most := h.Check.MaxReadinessLosses; most != nil && kept.ReadinessLosses > *most {
		return symptom{"ReadinessLost", fmt.Sprintf("it ceased to be Ready %d times since the check began, at most %d are allowed", kept.ReadinessLosses, *most)}
	}
	return h.unready(p)
}

// crashed says that a pod crashes, or was killed for its memory since a time.
func (h *podHealth) crashed(p *Pod, since time.Time) symptom {
	if c := p.CrashLoop; c != nil && !h.after(p, c.Started) {
		return symptom{reasonCrashLoop, strings.Join(nonEmpty("container "+c.Container+" crashes again and again", c.Message), ": ")}
	}
	if c := p.OutOfMemory; c != nil && h.Check.FailOnOOM && !h.after(p, c.Finished) && !p.bounded(c.Finished, h.Now).Before(since.Add(-clockTolerance)) {
		return symptom{reasonOutOfMemory, strings.Join(nonEmpty("container "+c.Container+" was killed for its memory", c.Message), ": ")}
	}
	return symptom{}
}

// after says that something happened after the check ended. A kubelet's time that
// cannot be true counts as the pod's creation.
func (h *podHealth) after(p *Pod, t time.Time) bool {
	return !t.IsZero() && p.bounded(t, h.Now).After(h.due.Add(clockTolerance))
}

// unready says that a pod is not Ready when the check ends, and was not for a while.
func (h *podHealth) unready(p *Pod) symptom {
	if !h.Check.ReadyAtEnd || h.Now.Before(h.due) || p.UnreadySince.IsZero() {
		return symptom{}
	}
	since := p.bounded(p.UnreadySince, h.Now)
	if since.After(h.due) || h.Now.Sub(since) < h.grace() {
		return symptom{}
	}
	message := fmt.Sprintf("it has not been Ready since %s", FormatTime(since))
	if p.Hang != nil {
		message += ": " + p.Hang.String()
	}
	return symptom{"NotReady", message}
}

func (h *podHealth) kept(pod string) v1alpha1.PodAtStart {
	if i := slices.IndexFunc(h.status.PodsAtStart, func(k v1alpha1.PodAtStart) bool { return k.Pod == pod }); i >= 0 {
		return h.status.PodsAtStart[i]
	}
	return v1alpha1.PodAtStart{Pod: pod}
}

// countLosses counts each time a pod ceased to be Ready since the check began, where
// that is judged. That it is Ready again shows it, too.
func (h *podHealth) countLosses() {
	if h.Check.MaxReadinessLosses == nil {
		return
	}
	for i := range h.Pods {
		p := &h.Pods[i]
		kept := h.kept(p.Name)
		// It was Ready when it was put into its batch: one that is not now ceased to be
		// since, if a little earlier by the clock of its node.
		at, earliest := p.UnreadySince, h.begun.Add(-clockTolerance)
		if p.Ready {
			at, earliest = p.ReadySince, h.begun.Add(time.Second)
		}
		at = p.bounded(at, h.Now).Truncate(time.Second)
		if p.excused() || p.Ready && kept.ReadinessLosses > 0 || at.Before(earliest) || at.After(h.due) || !at.After(timeOrZero(kept.LostTime)) {
			continue
		}
		kept.ReadinessLosses, kept.LostTime = kept.ReadinessLosses+1, timeOf(at)
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

// judge decides about pods of the batch that fail, of how many of the release do. It
// says whether it is unclear whose fault it is.
func (h *podHealth) judge(failing map[types.UID]symptom) (unclear bool) {
	pods := make([]Pod, 0, len(failing))
	for i := range h.Pods {
		if _, ok := failing[h.Pods[i].UID]; ok {
			pods = append(pods, h.Pods[i])
		}
	}
	slices.SortFunc(pods, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	first := failing[pods[0].UID]
	names := make([]string, len(pods))
	for i := range pods {
		names[i] = pods[i].Name
	}
	told := fmt.Sprintf("pod %s: %s", names[0], first.message)
	if len(names) > 1 {
		told += fmt.Sprintf(" (and %d more pods of the batch)", len(names)-1)
	}
	names = names[:min(len(names), maxFailedPods)]
	count, allowed := h.countFailing(), h.allowed()
	s := &h.status
	reason, message := "", ""
	switch {
	case h.sameOnOldPods(first.reason):
		reason, message = v1alpha1.ReasonSameOnOldPods, told+"; pods of the version before do the same, so that it is not this release"
	case count <= allowed:
		reason = v1alpha1.ReasonTolerated
		message = fmt.Sprintf("%s; %d of %d pods of the release fail, up to %d are tolerated", told, count, h.Release.Total, allowed)
	default:
		s.Phase, reason = v1alpha1.CheckFailed, first.reason
		message = strings.Join(nonEmpty(told, h.Check.Suggestion), "; ")
	}
	known := s.FailedPods
	if s.Phase != v1alpha1.CheckFailed && s.Reason == reason && !slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(known, n) }) {
		return reason == v1alpha1.ReasonSameOnOldPods // told before
	}
	s.Reason, s.Message, s.Value, s.FailedPods = reason, message, first.reason, names
	return reason == v1alpha1.ReasonSameOnOldPods
}

// countFailing counts the pods of the release that fail as those of the batch do.
func (h *podHealth) countFailing() (count int) {
	mine := map[types.UID]bool{}
	for i := range h.Pods {
		mine[h.Pods[i].UID] = true
		if h.symptomOf(&h.Pods[i]).reason != "" {
			count++
		}
	}
	for i := range h.Release.Batched {
		p := &h.Release.Batched[i]
		if mine[p.UID] || p.excused() {
			continue
		}
		// They may have been in a batch for longer.
		if h.crashed(p, p.Created).reason != "" || h.unready(p).reason != "" {
			count++
		}
	}
	return count
}

// allowed is how many pods of the release may fail.
func (h *podHealth) allowed() int {
	n, err := intstr.GetScaledValueFromIntOrPercent(&h.Check.MaxFailed, h.Release.Total, false)
	if err != nil {
		return 0
	}
	return n
}

// sameOnOldPods says that so many pods of the version before do the same that it is
// not the release.
func (h *podHealth) sameOnOldPods(reason string) bool {
	if !h.Check.CompareOldPods {
		return false
	}
	same, old := 0, 0
	for i := range h.Release.Old {
		p := &h.Release.Old[i]
		if p.excused() {
			continue
		}
		old++
		s := h.crashed(p, h.begun)
		if s.reason == "" {
			s = h.unready(p)
		}
		if s.reason == reason {
			same++
		}
	}
	return same > 0 && same*oldPodsShare >= old
}
