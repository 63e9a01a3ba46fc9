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

func endedOf(s *corev1.ContainerStatus, t *corev1.ContainerStateTerminated) *Ended {
	e := &Ended{Container: s.Name, Message: Brief(exit(t)), Restarts: s.RestartCount}
	if t != nil {
		e.Finished = t.FinishedAt.Time
	}
	return e
}
