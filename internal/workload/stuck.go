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

package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// Stuck says why a pod is not Ready, from what its kubelet and the scheduler
// report, or of one that is, that a container of it was restarted.
type Stuck struct {
	// Container is the one that is stuck; empty when the pod is as a whole.
	Container string
	// Reason is the one word of a cause; Message explains it.
	Reason, Message string
	// Slow: waiting may help. Otherwise the pod fails.
	Slow bool

	// Ready: the pod is Ready at the moment.
	Ready bool
	// From is since when the pod is as it is; Begun is when its containers could
	// be started, as far as that is known. Neither is believed to be before Created.
	From, Begun, Created time.Time
	// Restarts of the container that fails, LastRun how long it was up before the
	// last one; since then it is up, or down.
	Restarts           int32
	LastRun            time.Duration
	UpSince, DownSince time.Time
}

// firstBackOff and MaxBackOff are how long a kubelet waits before it starts
// a container again: not at all before the first restart, and twice as long
// each time.
const (
	firstBackOff = 10 * time.Second
	MaxBackOff   = 5 * time.Minute
)

// Fails says that a pod is stuck because of something that waiting does not help.
func (h *Stuck) Fails() bool { return h != nil && !h.Slow && !h.Ready }

// NotSeen says that the kubelet of the pod's node has not seen it.
func (h *Stuck) NotSeen() bool { return h.Reason == reasonNotSeen }

// IsStuck says whether a pod is stuck now. One that is Ready is, while a container
// of it crashes again and again: that is Ready for a moment at each start.
func (h *Stuck) IsStuck(now time.Time) bool {
	return h != nil && (!h.Ready || h.Restarts >= Crashes && now.Sub(believable(h.UpSince, h.Created, now)) < RestartSettle)
}

// IsSlow says that the pod is slow rather than fails, where a pod has so long to
// come up. One whose container was restarted fails as long as it cannot be told
// whether the restart helped: while it crashes again and again, and is not up
// for longer than that yet.
func (h *Stuck) IsSlow(now time.Time, limit time.Duration) bool {
	if h.Slow || h.UpSince.IsZero() || h.Ready {
		return h.Slow
	}
	return h.Restarts < Crashes || h.LastRun >= limit || now.Sub(believable(h.UpSince, h.Created, now)) >= limit
}

// Since is from when on a pod has been stuck, where it has so long to come up. A
// container that crashes and restarts is Ready for moments, so since its last
// change says little: it has been stuck from the beginning unless it can have been up
// for as long as a pod may take to come up. known is since when the release says
// that pods fail, if it does.
func (h *Stuck) Since(now time.Time, limit time.Duration, known time.Time) time.Time {
	begun := believable(h.Begun, h.Created, now)
	from := times.Latest(begun, believable(h.From, h.Created, now))
	if h.Restarts < Crashes || h.LastRun >= limit {
		return from
	}
	up := now.Sub(begun) - BackOff(h.Restarts)
	if !h.DownSince.IsZero() {
		up -= now.Sub(believable(h.DownSince, h.Created, now))
	}
	if up < limit {
		return begun
	}
	if !known.IsZero() && known.Before(from) {
		// Of another pod that has failed for longer: this one was up for less than the limit each time.
		spell := BackOff(h.Restarts) + time.Duration(h.Restarts+1)*limit
		return times.Latest(times.Latest(begun, known), now.Add(-spell))
	}
	return from
}

// FirstCrash is when a container that was restarted first ended, at the latest: the runs
// before the last one began no later than the pod.
func (h *Stuck) FirstCrash(now time.Time) time.Time {
	begun := believable(h.Begun, h.Created, now)
	up := now.Sub(begun) - BackOff(h.Restarts) - h.LastRun
	for _, change := range []time.Time{h.UpSince, h.DownSince} {
		if !change.IsZero() {
			up -= now.Sub(believable(change, h.Created, now))
		}
	}
	return times.Latest(begun, begun.Add(up))
}

// Crashes of a container make a loop.
const Crashes = 2

// BackOff is how long a kubelet has waited in all before so many restarts.
func BackOff(restarts int32) time.Duration {
	total, next := time.Duration(0), firstBackOff
	for range min(restarts, 1000) - 1 {
		total += next
		next = min(2*next, MaxBackOff)
	}
	return total
}

// NeedsEvents says that the status of the pod does not say what it waits for,
// while its events may.
func (h *Stuck) NeedsEvents() bool {
	return h.Slow && h.Message == "" && h.Reason != reasonNotReady
}

// String is one line for a message.
func (h *Stuck) String() string {
	s := h.Reason
	if h.Container != "" {
		s = "container " + h.Container + ": " + s
	}
	if h.Message != "" {
		s += ": " + h.Message
	}
	return s
}

// ReadStuck says why a pod is not Ready; nil when it is and no container of it
// was restarted, or when it is on its way out, or has ended and is replaced.
func ReadStuck(pod *corev1.Pod) *Stuck {
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return nil
	}
	ready := podCondition(pod, corev1.PodReady)
	h := &Stuck{Created: pod.CreationTimestamp.Time, Begun: begun(pod)}
	h.From = h.Begun
	if ready != nil && ready.Status == corev1.ConditionTrue {
		h.Ready = true
		if h.ofRestarts(pod.Status.InitContainerStatuses) || h.ofRestarts(pod.Status.ContainerStatuses) {
			h.From = times.Latest(h.From, h.UpSince)
			return h
		}
		return nil
	}
	if pod.Status.Phase == corev1.PodRunning && ready != nil {
		h.From = times.Latest(h.Begun, ready.LastTransitionTime.Time)
	}
	if h.ofContainers(pod.Status.InitContainerStatuses, true) || h.ofContainers(pod.Status.ContainerStatuses, false) {
		return h
	}
	h.ofPod(pod, ready)
	return h
}

// begun is how far the start of a pod has come: when it was made, got a node, was
// seen by the kubelet, and had done with its init containers. That its network was
// ready does not count: a busy kubelet loses sight of that for moments, and the
// pod's time would begin anew.
func begun(pod *corev1.Pod) time.Time {
	at := pod.CreationTimestamp.Time
	if pod.Status.StartTime != nil {
		at = times.Latest(at, pod.Status.StartTime.Time)
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized} {
		if c := podCondition(pod, kind); c != nil && c.Status == corev1.ConditionTrue {
			at = times.Latest(at, c.LastTransitionTime.Time)
		}
	}
	return at
}

// ofContainers takes the first container that fails.
func (h *Stuck) ofContainers(statuses []corev1.ContainerStatus, inits bool) bool {
	for i := range statuses {
		s := &statuses[i]
		reason, message, slow := failing(s, inits)
		if reason == "" {
			continue
		}
		h.Container, h.Reason, h.Message, h.Slow = s.Name, reason, wording.Brief(message), slow
		h.runs(s)
		return true
	}
	return false
}

// ofRestarts takes the first container that runs after an end of its own.
func (h *Stuck) ofRestarts(statuses []corev1.ContainerStatus) bool {
	for i := range statuses {
		s := &statuses[i]
		last := s.LastTerminationState.Terminated
		if s.State.Running == nil || s.RestartCount == 0 || endedWithNode(last) {
			continue
		}
		h.Container, h.Reason, h.Message = s.Name, reasonError, "it was restarted"
		if last != nil {
			h.Reason, h.Message = cmp.Or(last.Reason, reasonError), "it was restarted: "+exit(last)
		}
		h.runs(s)
		return true
	}
	return false
}

// runs takes how often a container was restarted, and what is known of its runs.
func (h *Stuck) runs(s *corev1.ContainerStatus) {
	last := s.LastTerminationState.Terminated
	h.Restarts = s.RestartCount
	if last != nil && last.StartedAt.Unix() > 0 {
		h.LastRun = last.FinishedAt.Sub(last.StartedAt.Time)
	}
	switch {
	case s.State.Running != nil:
		h.UpSince = s.State.Running.StartedAt.Time
	case last != nil:
		h.DownSince = last.FinishedAt.Time
	}
}

// failing says how a container fails, or what it waits for after it did; it does
// not while it starts, and an init container does not that did its work.
func failing(s *corev1.ContainerStatus, init bool) (reason, message string, slow bool) {
	last := s.LastTerminationState.Terminated
	switch waiting, ended := s.State.Waiting, s.State.Terminated; {
	case waiting != nil && waiting.Reason != "" && waiting.Reason != reasonContainerCreating && waiting.Reason != reasonPodInitializing:
		return waiting.Reason, strings.Join(wording.NonEmpty(waiting.Message, exit(last)), "; "), isSlow(waiting.Reason)
	case ended != nil && (!init || ended.ExitCode != 0):
		if endedWithNode(ended) {
			return reasonNodeRestarted, exit(ended), true
		}
		return cmp.Or(ended.Reason, reasonError), exit(ended), false
	case s.State.Running != nil && !s.Ready && s.RestartCount > 0 && last != nil && !endedWithNode(last):
		return cmp.Or(last.Reason, reasonError), "it was restarted, and is not ready: " + exit(last), false
	default:
		return "", "", false
	}
}

// nodeExitCode and nodeReason are what a kubelet says of containers that it does
// not find any more: its node was restarted.
const (
	nodeExitCode = 255
	nodeReason   = "Unknown"
)

// endedWithNode says that a container ended because its node did.
func endedWithNode(t *corev1.ContainerStateTerminated) bool {
	return t != nil && t.ExitCode == nodeExitCode && t.Reason == nodeReason
}

func exit(t *corev1.ContainerStateTerminated) string {
	if t == nil {
		return ""
	}
	return strings.Join(wording.NonEmpty(fmt.Sprintf("last exit code %d", t.ExitCode), t.Message), ": ")
}

// ofPod explains a pod none of whose containers fails: it is slow.
func (h *Stuck) ofPod(pod *corev1.Pod, ready *corev1.PodCondition) {
	h.Slow = true
	if scheduled := podCondition(pod, corev1.PodScheduled); scheduled != nil && scheduled.Status == corev1.ConditionFalse {
		h.Reason, h.Message = cmp.Or(scheduled.Reason, corev1.PodReasonUnschedulable), wording.Brief(scheduled.Message)
		return
	}
	if pod.Spec.NodeName != "" && pod.Status.StartTime == nil {
		h.Reason, h.Message = reasonNotSeen, "node "+pod.Spec.NodeName
		return
	}
	h.ofWaiting(pod.Status.InitContainerStatuses, true, pod.Spec.InitContainers)
	if h.Container == "" {
		h.ofWaiting(pod.Status.ContainerStatuses, false, nil)
	}
	switch pod.Status.Phase {
	case corev1.PodRunning, corev1.PodUnknown:
		h.Reason = cmp.Or(h.Reason, reasonNotReady)
		if ready != nil {
			h.Message = cmp.Or(h.Message, wording.Brief(ready.Message))
		}
	default:
		h.Reason = cmp.Or(h.Reason, string(cmp.Or(pod.Status.Phase, corev1.PodPending)))
	}
}

// ofWaiting takes the first container that is not up yet, and what it waits for. A sidecar
// that is only not Ready keeps no other container from starting, so it comes last.
func (h *Stuck) ofWaiting(statuses []corev1.ContainerStatus, inits bool, specs []corev1.Container) {
	for i := range statuses {
		s := &statuses[i]
		up := s.Started == nil || *s.Started
		if s.Ready && up || s.State.Terminated != nil && !endedWithNode(s.State.Terminated) {
			continue
		}
		sidecar := slices.ContainsFunc(specs, func(c corev1.Container) bool { return c.Name == s.Name && isSidecar(&c) })
		if sidecar && up && s.State.Running != nil {
			if h.Container == "" {
				h.Container, h.Reason, h.Message = s.Name, reasonNotReady, "the sidecar runs and is not Ready"
			}
			continue
		}
		h.Container, h.Reason, h.Message = s.Name, "", ""
		switch {
		case s.State.Waiting != nil:
			h.Reason, h.Message = cmp.Or(s.State.Waiting.Reason, reasonPodInitializing), wording.Brief(s.State.Waiting.Message)
		case s.State.Running != nil && inits && !sidecar:
			h.Reason, h.Message = reasonPodInitializing, "still running"
		case s.State.Running != nil && !up:
			h.Reason, h.Message = reasonStartupProbe, "its startup probe has not passed yet"
		}
		return
	}
}

func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}

func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
