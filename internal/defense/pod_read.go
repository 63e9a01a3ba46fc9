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
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ReadPod reads what the decisions need off a pod.
func ReadPod(pod *corev1.Pod) Pod {
	p := Pod{
		Namespace:   pod.Namespace,
		Name:        pod.Name,
		UID:         pod.UID,
		HostName:    pod.Name,
		IP:          pod.Status.PodIP,
		Node:        pod.Spec.NodeName,
		Created:     pod.CreationTimestamp.Time,
		Unprobed:    hasUnprobed(pod),
		Terminating: pod.DeletionTimestamp != nil,
		Ended:       pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded,
		Labels:      pod.Labels,
		Stuck:       ReadStuck(pod),
	}
	p.StartedAt, p.RestartedAt = lastStarts(pod)
	if pod.Spec.Hostname != "" {
		p.HostName = pod.Spec.Hostname
	}
	if c := podCondition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		p.Ready, p.ReadySince = true, c.LastTransitionTime.Time
	} else if c != nil {
		p.UnreadySince = c.LastTransitionTime.Time
		// The node controller says only that of a pod on a node that is lost.
		ready := podCondition(pod, corev1.ContainersReady)
		p.Lost = p.Stuck != nil && ready != nil && ready.Status == corev1.ConditionTrue && c.Reason != readinessGatesNotReady
	}
	if c := podCondition(pod, corev1.DisruptionTarget); c != nil {
		p.Disrupted = c.Status == corev1.ConditionTrue
	}
	p.readContainers(pod)
	return p
}

// readinessGatesNotReady is the kubelet's reason for a pod whose containers are ready.
const readinessGatesNotReady = "ReadinessGatesNotReady"

// hasUnprobed says that a container has no readiness probe. Sidecars count, other
// init containers have ended before the pod is Ready.
func hasUnprobed(pod *corev1.Pod) bool {
	unprobed := func(c corev1.Container) bool { return c.ReadinessProbe == nil }
	return slices.ContainsFunc(pod.Spec.Containers, unprobed) ||
		slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return isSidecar(&c) && unprobed(c) })
}

// lastStarts is when the containers that run were last started, and when one of
// them was last started again. Init containers that still run while the pod is
// Ready are sidecars. The end of a node does not count as the end of a
// container.
func lastStarts(pod *corev1.Pod) (started, restarted time.Time) {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			s := &statuses[i]
			if s.State.Running == nil {
				continue
			}
			started = latest(started, s.State.Running.StartedAt.Time)
			if s.RestartCount > 0 && !endedWithNode(s.LastTerminationState.Terminated) {
				restarted = latest(restarted, s.State.Running.StartedAt.Time)
			}
		}
	}
	return started, restarted
}

// readContainers takes how often the containers of a pod were restarted, and how they
// ended by themselves.
func (p *Pod) readContainers(pod *corev1.Pod) {
	for i := range pod.Status.InitContainerStatuses {
		// One that has done its work is none of a pod that runs.
		if s := &pod.Status.InitContainerStatuses[i]; s.State.Terminated == nil {
			p.readEnds(s, restartRules(pod.Spec.InitContainers, s.Name))
		}
	}
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		p.readEnds(s, restartRules(pod.Spec.Containers, s.Name))
	}
}

// readEnds takes how often one container was restarted, and how it ended by itself.
func (p *Pod) readEnds(s *corev1.ContainerStatus, rules []corev1.ContainerRestartRule) {
	last := s.LastTerminationState.Terminated
	switch {
	case len(rules) == 0:
		p.Restarts += s.RestartCount
	case s.RestartCount > 0 && !AllowsEnd(rules, last):
		p.Restarts++
	}
	for _, t := range []*corev1.ContainerStateTerminated{last, s.State.Terminated} {
		if t == nil {
			continue
		}
		if endedWithNode(t) {
			p.NodeRestarted = true
			continue
		}
		if !AllowsEnd(rules, t) {
			p.EndedAt = latest(p.EndedAt, t.FinishedAt.Time)
		}
		if t.Reason == reasonOutOfMemory && (p.OutOfMemory == nil || t.FinishedAt.After(p.OutOfMemory.Finished)) {
			p.OutOfMemory = endedOf(s, t)
		}
	}
	if w := s.State.Waiting; w != nil && w.Reason == reasonCrashLoop && p.CrashLoop == nil && !endedWithNode(last) && !AllowsEnd(rules, last) {
		p.CrashLoop = endedOf(s, last)
	}
}

func restartRules(containers []corev1.Container, name string) []corev1.ContainerRestartRule {
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return containers[i].RestartPolicyRules
}
