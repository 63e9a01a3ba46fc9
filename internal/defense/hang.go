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
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Hang says why a pod is not ready, from what its kubelet and the scheduler
// report.
type Hang struct {
	// Container is the one that hangs; empty when the pod does as a whole.
	Container string
	// Reason is one word of Kubernetes' own, ImagePullBackOff for one; Message
	// explains it.
	Reason, Message string
	// Slow: the pod runs, or nobody has let it yet; it is not ready, and nothing
	// says that it fails.
	Slow bool

	// from is since when the pod is as it is, created since when there is one.
	from, created time.Time
	// restarts of the container that fails, lastRun how long it was up before the
	// last one; since then it is up, or down.
	restarts           int32
	lastRun            time.Duration
	upSince, downSince time.Time
}

const (
	// firstBackOff and maxBackOff are how long a kubelet waits before it starts
	// a container again: not at all before the first restart, and twice as long
	// each time.
	firstBackOff = 10 * time.Second
	maxBackOff   = 5 * time.Minute
	// crashes make a loop.
	crashes = 2
	// maxHangMessage bounds what is told of a hang, in bytes.
	maxHangMessage = 256
)

// slow says that the pod is merely not ready, where a pod has so long to come
// up. One whose container was restarted fails as long as it cannot be told
// whether the restart helped: while it crashes again and again, and is not up
// for longer than that yet.
func (h *Hang) slow(now time.Time, limit time.Duration) bool {
	if h.Slow || h.upSince.IsZero() {
		return h.Slow
	}
	return h.restarts < crashes || h.lastRun >= limit || now.Sub(h.upSince) >= limit
}

// since is from when on a pod has hung, where it has so long to come up. A
// container that crashes and restarts is ready for moments, so since its last
// change says little: it has hung from the beginning unless it can have been up
// for as long as a pod may take to come up.
func (h *Hang) since(now time.Time, limit time.Duration) time.Time {
	up := now.Sub(h.created) - backOff(h.restarts)
	if !h.downSince.IsZero() {
		up -= now.Sub(h.downSince)
	}
	if h.restarts >= crashes && h.lastRun < limit && up < limit {
		return h.created
	}
	return h.from
}

// backOff is how long a kubelet has waited in all before so many restarts.
func backOff(restarts int32) time.Duration {
	total, next := time.Duration(0), firstBackOff
	for range min(restarts, 1000) - 1 {
		total += next
		next = min(2*next, maxBackOff)
	}
	return total
}

// String is one line for a message.
func (h *Hang) String() string {
	s := h.Reason
	if h.Container != "" {
		s = "container " + h.Container + ": " + s
	}
	if h.Message != "" {
		s += ": " + h.Message
	}
	return s
}

// ObserveHang says why a pod is not ready; nil when it is, or is on its way out,
// or has ended and is replaced.
func ObserveHang(pod *corev1.Pod) *Hang {
	ready := podCondition(pod, corev1.PodReady)
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded ||
		ready != nil && ready.Status == corev1.ConditionTrue {
		return nil
	}
	h := &Hang{from: pod.CreationTimestamp.Time, created: pod.CreationTimestamp.Time}
	if pod.Status.Phase == corev1.PodRunning && ready != nil && !ready.LastTransitionTime.IsZero() {
		h.from = ready.LastTransitionTime.Time
	}
	if h.ofContainers(pod.Status.InitContainerStatuses, true) || h.ofContainers(pod.Status.ContainerStatuses, false) {
		return h
	}
	h.ofPod(pod, ready)
	return h
}

// ofContainers takes the first container that fails.
func (h *Hang) ofContainers(statuses []corev1.ContainerStatus, inits bool) bool {
	for i := range statuses {
		s := &statuses[i]
		reason, message := failing(s, inits)
		if reason == "" {
			continue
		}
		h.Container, h.Reason, h.Message, h.restarts = s.Name, reason, Brief(message), s.RestartCount
		if last := s.LastTerminationState.Terminated; last != nil && last.StartedAt.Unix() > 0 {
			h.lastRun = last.FinishedAt.Sub(last.StartedAt.Time)
		}
		switch last := s.LastTerminationState.Terminated; {
		case s.State.Running != nil:
			h.upSince = s.State.Running.StartedAt.Time
		case last != nil:
			h.downSince = last.FinishedAt.Time
		}
		return true
	}
	return false
}

// failing says how a container fails; it does not while it starts, and an init
// container does not that did its work.
func failing(s *corev1.ContainerStatus, init bool) (reason, message string) {
	last := s.LastTerminationState.Terminated
	switch waiting, ended := s.State.Waiting, s.State.Terminated; {
	case waiting != nil && waiting.Reason != "" && waiting.Reason != "ContainerCreating" && waiting.Reason != "PodInitializing":
		return waiting.Reason, strings.Join(nonEmpty(waiting.Message, exit(last)), "; ")
	case ended != nil && (!init || ended.ExitCode != 0):
		return cmp.Or(ended.Reason, "Error"), exit(ended)
	case s.State.Running != nil && !s.Ready && s.RestartCount > 0 && last != nil:
		return cmp.Or(last.Reason, "Error"), "it was restarted, and is not ready: " + exit(last)
	default:
		return "", ""
	}
}

func exit(t *corev1.ContainerStateTerminated) string {
	if t == nil {
		return ""
	}
	return strings.Join(nonEmpty(fmt.Sprintf("last exit code %d", t.ExitCode), t.Message), ": ")
}

func nonEmpty(parts ...string) []string {
	kept := parts[:0]
	for _, p := range parts {
		if p != "" {
			kept = append(kept, p)
		}
	}
	return kept
}

// ofPod explains a pod none of whose containers fails.
func (h *Hang) ofPod(pod *corev1.Pod, ready *corev1.PodCondition) {
	if scheduled := podCondition(pod, corev1.PodScheduled); scheduled != nil && scheduled.Status == corev1.ConditionFalse {
		h.Reason, h.Message = cmp.Or(scheduled.Reason, corev1.PodReasonUnschedulable), Brief(scheduled.Message)
		// Somebody holds the pod back and will let it go.
		h.Slow = scheduled.Reason == corev1.PodReasonSchedulingGated
		return
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			s := &statuses[i]
			if s.Ready || s.State.Terminated != nil {
				continue
			}
			h.Container = s.Name
			switch {
			case s.State.Waiting != nil:
				h.Reason, h.Message = s.State.Waiting.Reason, Brief(s.State.Waiting.Message)
			case pod.Status.Phase == corev1.PodPending:
				h.Reason = "PodInitializing"
			}
			break
		}
		if h.Container != "" {
			break
		}
	}
	switch pod.Status.Phase {
	case corev1.PodRunning, corev1.PodUnknown:
		h.Slow = true
		h.Reason = cmp.Or(h.Reason, "NotReady")
		if ready != nil {
			h.Message = cmp.Or(h.Message, Brief(ready.Message))
		}
	default:
		h.Reason = cmp.Or(h.Reason, string(cmp.Or(pod.Status.Phase, corev1.PodPending)))
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

// Brief makes a text one line that is not too long.
func Brief(message string) string {
	message = strings.Join(strings.Fields(message), " ")
	if len(message) <= maxHangMessage {
		return message
	}
	return cutAtRune(message, maxHangMessage-len("...")) + "..."
}
