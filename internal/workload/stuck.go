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

// Stuck is why a pod is not Ready, from the status that its kubelet and the scheduler report; or,
// for a Ready pod, that one of its containers was restarted.
type Stuck struct {
	// Container is the stuck container; empty if the pod as a whole is stuck.
	Container string
	// Reason is a cause in one word; Message explains it.
	Reason, Message string
	// Slow: the pod may still come up. Otherwise it fails.
	Slow bool

	// Ready: the pod is Ready now.
	Ready bool
	// From is the time of the last change of the pod's state. Begun is when its containers could be
	// started, as far as it is known. Times before Created do not count.
	From, Begun, Created time.Time
	// Restarts is how often the failing container was restarted, and LastRun how long it ran before
	// the last restart. Since then it is up (UpSince) or down (DownSince).
	Restarts           int32
	LastRun            time.Duration
	UpSince, DownSince time.Time
}

// firstBackOff and MaxBackOff bound how long a kubelet waits before it restarts a container: it
// does not wait before the first restart, and doubles the time with each further restart.
const (
	firstBackOff = 10 * time.Second
	MaxBackOff   = 5 * time.Minute
)

// Fails reports whether the pod is stuck and waiting does not help.
func (h *Stuck) Fails() bool { return h != nil && !h.Slow && !h.Ready }

// NotSeen reports whether the kubelet of the pod's node has not seen the pod.
func (h *Stuck) NotSeen() bool { return h.Reason == reasonNotSeen }

// IsStuck reports whether the pod is stuck now. A Ready pod is stuck while one of its containers is
// in a crash loop: such a pod is Ready for a moment after each start.
func (h *Stuck) IsStuck(now time.Time) bool {
	return h != nil && (!h.Ready || h.Restarts >= Crashes && now.Sub(believable(h.UpSince, h.Created, now)) < RestartSettle)
}

// IsSlow reports whether the pod is slow and does not fail; limit is how long a pod may take to
// come up. A pod in a crash loop fails until its container has been up for longer than limit.
func (h *Stuck) IsSlow(now time.Time, limit time.Duration) bool {
	if h.Slow || h.UpSince.IsZero() || h.Ready {
		return h.Slow
	}
	return h.Restarts < Crashes || h.LastRun >= limit || now.Sub(believable(h.UpSince, h.Created, now)) >= limit
}

// Since returns since when the pod has been stuck; limit is how long a pod may take to come up. The
// last change of a container in a crash loop is no measure: the container is Ready for moments. The
// pod has been stuck from the beginning, unless the container may have been up for as long as
// limit. known is since when the release reports failing pods; zero if it does not.
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
		// known is about another pod that has failed for longer: this pod was up for less than limit each
		// time.
		spell := BackOff(h.Restarts) + time.Duration(h.Restarts+1)*limit
		return times.Latest(times.Latest(begun, known), now.Add(-spell))
	}
	return from
}

// FirstCrash returns the latest time at which a restarted container may have ended first: its first
// run took all the time that the last run and the back-offs leave.
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

// Crashes is the number of restarts that make a crash loop.
const Crashes = 2

// BackOff returns how long a kubelet has waited in total before this number of restarts.
func BackOff(restarts int32) time.Duration {
	total, next := time.Duration(0), firstBackOff
	for range min(restarts, 1000) - 1 {
		total += next
		next = min(2*next, MaxBackOff)
	}
	return total
}

// NeedsEvents reports whether the events of the pod may explain its state, while its status does
// not.
func (h *Stuck) NeedsEvents() bool {
	return h.Slow && h.Message == "" && h.Reason != reasonNotReady
}

// String returns one line for a message.
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

// ReadStuck returns why a pod is not Ready; nil if the pod is Ready and no container was restarted,
// if it is terminating, or if it has ended and is replaced.
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

// begun returns when the last step of the pod's start was completed: created, scheduled, seen by
// the kubelet, initialized. The readiness of its network does not count: a busy kubelet reports it
// as lost for moments, and the pod's time would restart.
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

// ofContainers records the first failing container.
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

// ofRestarts records the first running container that was restarted after its own failure.
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

// runs records the restarts of a container, and the times of its runs.
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

// failing returns how a container fails, or what it waits for after a failure; empty for a
// container that starts, or an init container that completed.
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

// nodeExitCode and nodeReason are the kubelet's report of containers that it no longer finds,
// because its node was restarted.
const (
	nodeExitCode = 255
	nodeReason   = "Unknown"
)

// endedWithNode reports whether a container ended because its node did.
func endedWithNode(t *corev1.ContainerStateTerminated) bool {
	return t != nil && t.ExitCode == nodeExitCode && t.Reason == nodeReason
}

func exit(t *corev1.ContainerStateTerminated) string {
	if t == nil {
		return ""
	}
	return strings.Join(wording.NonEmpty(fmt.Sprintf("last exit code %d", t.ExitCode), t.Message), ": ")
}

// ofPod explains a pod without a failing container: it is slow.
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

// ofWaiting records the first container that is not up, and what it waits for. A sidecar that is
// merely not Ready comes last: it keeps no other container from starting.
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
