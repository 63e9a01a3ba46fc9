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
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAllowedEnds: an exit code that the restart rules of a container allow is not a failure.
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
		"all codes except one":  {rules: rule(notIn, 42), code: 1},
		"the excepted code":     {rules: rule(notIn, 42), code: 42, restarts: 1, fails: true},
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

// TestFinished: Ready is not enough if it means only that a process was started.
func TestFinished(t *testing.T) {
	finish := Finish{MinReady: 5 * time.Second, Settle: 10 * time.Second}
	ready := func(since time.Duration, change ...func(*Pod)) Pod {
		p := Pod{Ready: true, Created: ago(time.Hour), ReadySince: ago(since)}
		for _, c := range change {
			c(&p)
		}
		return p
	}
	terminating := func(p *Pod) { p.Terminating = true }
	unprobed := func(p *Pod) { p.Unprobed = true }
	started := func(since time.Duration) func(*Pod) { return func(p *Pod) { p.StartedAt = ago(since) } }
	restarted := func(since time.Duration) func(*Pod) { return func(p *Pod) { p.RestartedAt = ago(since) } }
	for name, test := range map[string]struct {
		pod  Pod
		wait time.Duration // 0 is finished, negative is not
	}{
		"ready for long enough":       {ready(5 * time.Second), 0},
		"ready too short":             {ready(3 * time.Second), 2 * time.Second},
		"not ready":                   {Pod{}, -1},
		"terminating":                 {ready(time.Minute, terminating), -1},
		"no probe, started just now":  {ready(8*time.Second, unprobed), 2 * time.Second},
		"no probe, settled":           {ready(10*time.Second, unprobed), 0},
		"no probe, a gate came later": {ready(5*time.Second, unprobed, started(time.Minute)), 0},
		"restarted, with a probe":     {ready(50*time.Second, restarted(55*time.Second)), 5 * time.Second},
		"restarted long ago":          {ready(time.Minute, restarted(time.Minute)), 0},
		"a kubelet ten minutes behind": {
			ready(0, func(p *Pod) { p.Created, p.ReadySince = ago(2*time.Second), ago(10*time.Minute) }), 3 * time.Second,
		},
		"a kubelet ten minutes ahead": {ready(-10*time.Minute, func(p *Pod) { p.Created = ago(6 * time.Second) }), 0},
		"a kubelet a second ahead":    {ready(-time.Second), 5 * time.Second},
		"one ahead that restarted the pod": {
			ready(10*time.Second, restarted(-10*time.Minute), func(p *Pod) { p.Created = ago(20 * time.Second) }), 40 * time.Second,
		},
		"no probe, and the release restarts": {ready(20*time.Second, unprobed, restarted(5*time.Second)), 55 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			finished, wait := test.pod.Finished(finish, testNow)
			if finished != (test.wait == 0) || wait != max(test.wait, 0) {
				t.Errorf("finished %t in %s, want in %s", finished, wait, test.wait)
			}
		})
	}
}

// TestStartsOfPod covers the starts of containers that are read of a pod.
func TestStartsOfPod(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	probed := corev1.Container{ReadinessProbe: &corev1.Probe{}}
	runs := func(since time.Duration, restarts int32, last *corev1.ContainerStateTerminated) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			State:        corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(ago(since))}},
			RestartCount: restarts, LastTerminationState: corev1.ContainerState{Terminated: last},
		}
	}
	crash, node := &corev1.ContainerStateTerminated{ExitCode: 1}, &corev1.ContainerStateTerminated{ExitCode: 255, Reason: "Unknown"}
	for name, test := range map[string]struct {
		spec               corev1.PodSpec
		inits, containers  []corev1.ContainerStatus
		unprobed           bool
		started, restarted time.Duration // ago; 0 is never
	}{
		"all probed": {
			corev1.PodSpec{Containers: []corev1.Container{probed}}, nil, []corev1.ContainerStatus{runs(time.Minute, 0, nil)}, false, time.Minute, 0,
		},
		"one is not": {
			corev1.PodSpec{Containers: []corev1.Container{probed, {}}}, nil,
			[]corev1.ContainerStatus{runs(time.Minute, 0, nil), runs(time.Second, 0, nil)}, true, time.Second, 0,
		},
		"an init container": {
			corev1.PodSpec{InitContainers: []corev1.Container{{}}, Containers: []corev1.Container{probed}}, nil, nil, false, 0, 0,
		},
		"a sidecar": {corev1.PodSpec{InitContainers: []corev1.Container{{RestartPolicy: &always}}, Containers: []corev1.Container{probed}},
			[]corev1.ContainerStatus{runs(time.Second, 2, crash)}, []corev1.ContainerStatus{runs(time.Minute, 0, nil)},
			true, time.Second, time.Second},
		"an init container that was restarted": {corev1.PodSpec{Containers: []corev1.Container{probed}},
			[]corev1.ContainerStatus{{RestartCount: 3, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}},
			nil, false, 0, 0},
		"its node was restarted": {
			corev1.PodSpec{Containers: []corev1.Container{probed}}, nil, []corev1.ContainerStatus{runs(time.Minute, 1, node)}, false, time.Minute, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := ReadPod(&corev1.Pod{
				Spec: test.spec, Status: corev1.PodStatus{InitContainerStatuses: test.inits, ContainerStatuses: test.containers},
			})
			since := func(at time.Time) time.Duration {
				if at.IsZero() {
					return 0
				}
				return testNow.Sub(at)
			}
			if p.Unprobed != test.unprobed || since(p.StartedAt) != test.started || since(p.RestartedAt) != test.restarted {
				t.Errorf("unprobed %t, started %s ago, restarted %s ago", p.Unprobed, since(p.StartedAt), since(p.RestartedAt))
			}
		})
	}
}

// TestCauses: each cause is listed once, failures first, with an advice, and the page of the docs
// is the same.
func TestCauses(t *testing.T) {
	seen, slow := map[string]bool{}, false
	for _, c := range causes {
		if seen[c.Reason] || c.Means == "" || c.Remedy == "" || slow && !c.Slow {
			t.Errorf("%+v", c)
		}
		seen[c.Reason], slow = true, c.Slow
		if isSlow(c.Reason) != c.Slow {
			t.Errorf("%s is slow: %t", c.Reason, !c.Slow)
		}
	}
	if !isSlow("SomethingNew") {
		t.Error("an unknown cause counts as a failure")
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "causes.md"))
	if err != nil {
		t.Fatal(err)
	}
	var rows, want []string
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| `") {
			rows = append(rows, strings.TrimSpace(line))
		}
	}
	for _, c := range causes {
		counts := "failure"
		if c.Slow {
			counts = "slow"
		}
		want = append(want, fmt.Sprintf("| `%s` | %s | %s | %s |", c.Reason, counts, c.Means, c.Remedy))
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("docs/reference/causes.md -want +got:\n%s", diff)
	}
}

func ago(d time.Duration) time.Time { return testNow.Add(-d) }

var testNow = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
