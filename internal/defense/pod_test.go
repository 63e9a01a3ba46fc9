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
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAllowedEnds: an exit code that the restart rules of a container allow is no failure.
func TestAllowedEnds(t *testing.T) {
	in, notIn := corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn
	rule := func(operator corev1.ContainerRestartRuleOnExitCodesOperator, values ...int32) []corev1.ContainerRestartRule {
		return []corev1.ContainerRestartRule{{
			Action:    corev1.ContainerRestartRuleActionRestart,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: operator, Values: values},
		}}
	}
	for name, test := range map[string]struct {
		rules    []corev1.ContainerRestartRule
		code     int32
		reason   string
		restarts int32
		fails    bool
		memory   bool
	}{
		"no rules":              {code: 42, restarts: 3, fails: true},
		"allowed":               {rules: rule(in, 7, 42), code: 42},
		"another code":          {rules: rule(in, 42), code: 1, restarts: 1, fails: true},
		"all codes but one":     {rules: rule(notIn, 42), code: 1},
		"the one":               {rules: rule(notIn, 42), code: 42, restarts: 1, fails: true},
		"the second rule":       {rules: append(rule(in, 7), rule(in, 42)...), code: 42},
		"killed for its memory": {rules: rule(in, 137), code: 137, reason: "OOMKilled", memory: true},
	} {
		for _, init := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " ", init), func(t *testing.T) {
				pod := &corev1.Pod{}
				pod.Spec.Containers = []corev1.Container{{Name: "main", RestartPolicyRules: test.rules}}
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
					Name: "main", RestartCount: 3, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reasonCrashLoop}},
					LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
						ExitCode: test.code, Reason: test.reason, FinishedAt: metav1.NewTime(testNow),
					}},
				}}
				if init {
					pod.Spec.InitContainers, pod.Spec.Containers = pod.Spec.Containers, nil
					pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses = pod.Status.ContainerStatuses, nil
				}
				p := ReadPod(pod)
				if p.Restarts != test.restarts || p.EndedAt.IsZero() == test.fails ||
					(p.CrashLoop != nil) != test.fails || (p.OutOfMemory != nil) != test.memory {
					t.Errorf("%d restarts, ended %s, crash loop %v, out of memory %v", p.Restarts, p.EndedAt, p.CrashLoop, p.OutOfMemory)
				}
			})
		}
	}
}
