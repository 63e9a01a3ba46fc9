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

	corev1 "k8s.io/api/core/v1"
)

// How the containers of a pod ended.

const reasonOutOfMemory = "OOMKilled"

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

func restartRules(containers []corev1.Container, name string) []corev1.ContainerRestartRule {
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return containers[i].RestartPolicyRules
}

// AllowsEnd reports whether the restart rules of a container allow its end: each action
// that there is starts it again.
func AllowsEnd(rules []corev1.ContainerRestartRule, t *corev1.ContainerStateTerminated) bool {
	return t != nil && slices.ContainsFunc(rules, func(r corev1.ContainerRestartRule) bool {
		if r.ExitCodes == nil {
			return false
		}
		in := r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn
		return slices.Contains(r.ExitCodes.Values, t.ExitCode) == in
	})
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

func endedOf(s *corev1.ContainerStatus, t *corev1.ContainerStateTerminated) *Ended {
	e := &Ended{Container: s.Name, Message: Brief(exit(t)), Restarts: s.RestartCount}
	if t != nil {
		e.Finished = t.FinishedAt.Time
	}
	return e
}
