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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// oldPod returns a pod that was created a minute ago.
func oldPod(phase corev1.PodPhase) *wrappers.PodWrapper {
	return wrappers.MakePod("default", "sleep-1").Created(testNow.Add(-time.Minute)).Phase(phase)
}

// lacking returns a condition that has been false for ten seconds.
func lacking(kind corev1.PodConditionType, reason, message string) corev1.PodCondition {
	since := metav1.NewTime(testNow.Add(-10 * time.Second))
	return corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: since}
}

func TestReadStuck(t *testing.T) {
	notReady := lacking(corev1.PodReady, "ContainersNotReady", "containers with unready status: [main]")
	waiting, exited, running, restarted := wrappers.Waiting, wrappers.Exited, wrappers.Running, wrappers.Restarted
	again := restarted(running(), 2)
	again.State.Running.StartedAt = metav1.NewTime(testNow.Add(-20 * time.Second))
	startedAs := func(is bool) func(corev1.ContainerStatus) corev1.ContainerStatus {
		return func(s corev1.ContainerStatus) corev1.ContainerStatus { s.Started = &is; return s }
	}
	started, notStarted := startedAs(true), startedAs(false)
	well := func(s corev1.ContainerStatus) corev1.ContainerStatus { s.Ready = true; return started(s) }
	long := strings.Repeat("wörd ", 200)
	for name, test := range map[string]struct {
		pod  *wrappers.PodWrapper
		want string // empty: not stuck
		slow bool
		from time.Duration // before now
	}{
		"ready":       {oldPod(corev1.PodRunning).Ready(testNow.Add(-10 * time.Second)), "", false, 0},
		"evicted":     {oldPod(corev1.PodFailed), "", false, 0},
		"completed":   {oldPod(corev1.PodSucceeded), "", false, 0},
		"new":         {oldPod(""), "Pending", true, time.Minute},
		"terminating": {oldPod(corev1.PodPending).Deleted(testNow), "", false, 0},
		"unschedulable": {oldPod(corev1.PodPending).Condition(lacking(corev1.PodScheduled, "Unschedulable", "0/3 nodes are available")),
			"Unschedulable: 0/3 nodes are available", true, time.Minute},
		"scheduling gate": {oldPod(corev1.PodPending).
			Condition(lacking(corev1.PodScheduled, "SchedulingGated", "blocked due to non-empty scheduling gates")),
			"SchedulingGated: blocked due to non-empty scheduling gates", true, time.Minute},
		"image": {oldPod(corev1.PodPending).Condition(notReady).Container("main", waiting("ImagePullBackOff", `Back-off pulling image "busybo"`)),
			`container main: ImagePullBackOff: Back-off pulling image "busybo"`, false, time.Minute},
		"volume": {oldPod(corev1.PodPending).Condition(notReady).Container("main", waiting("ContainerCreating", "")),
			"container main: ContainerCreating", true, time.Minute},
		"configuration": {oldPod(corev1.PodPending).Container("main", waiting("CreateContainerConfigError", `configmap "x" not found`)),
			`container main: CreateContainerConfigError: configmap "x" not found`, false, time.Minute},
		"init container fails": {oldPod(corev1.PodPending).
			InitContainer("init", restarted(waiting("CrashLoopBackOff", "back-off 10s"), 2)).Container("main", waiting("PodInitializing", "")),
			"container init: CrashLoopBackOff: back-off 10s; last exit code 1", false, time.Minute},
		"init container just failed": {oldPod(corev1.PodPending).
			InitContainer("init", exited(2, "Error")).Container("main", waiting("PodInitializing", "")),
			"container init: Error: last exit code 2", false, time.Minute},
		"init container runs": {oldPod(corev1.PodPending).
			InitContainer("init", running()).Container("main", waiting("PodInitializing", "")),
			"container init: PodInitializing: still running", true, time.Minute},
		"sidecar not ready": {oldPod(corev1.PodRunning).Condition(notReady).
			Sidecar("proxy", started(running())).Container("main", well(running())),
			"container proxy: NotReady: the sidecar runs and is not Ready", true, 10 * time.Second},
		"sidecar not started": {oldPod(corev1.PodPending).
			Sidecar("proxy", notStarted(running())).Container("main", waiting("PodInitializing", "")),
			"container proxy: StartupProbe: its startup probe has not passed yet", true, time.Minute},
		"init container runs behind a sidecar that is not ready": {oldPod(corev1.PodPending).
			Sidecar("proxy", started(running())).InitContainer("init", started(running())).Container("main", waiting("PodInitializing", "")),
			"container init: PodInitializing: still running", true, time.Minute},
		"init container done": {oldPod(corev1.PodPending).
			InitContainer("init", exited(0, "Completed")).Container("main", waiting("ContainerCreating", "")),
			"container main: ContainerCreating", true, time.Minute},
		"ready again after a crash": {oldPod(corev1.PodRunning).Ready(testNow.Add(-50*time.Second)).Container("main", again),
			"container main: Error: it was restarted: last exit code 1", false, 20 * time.Second},
		"crash loop": {oldPod(corev1.PodRunning).Condition(notReady).Container("main", restarted(waiting("CrashLoopBackOff", "back-off 20s"), 2)),
			"container main: CrashLoopBackOff: back-off 20s; last exit code 1", false, 10 * time.Second},
		"between crashes": {oldPod(corev1.PodRunning).Condition(notReady).Container("main", restarted(running(), 1)),
			"container main: Error: it was restarted, and is not ready: last exit code 1", false, 10 * time.Second},
		"ended well, which it must not": {oldPod(corev1.PodRunning).Condition(notReady).Container("main", exited(0, "Completed")),
			"container main: Completed: last exit code 0", false, 10 * time.Second},
		"never ready": {oldPod(corev1.PodRunning).Condition(notReady).Container("main", running()),
			"container main: NotReady: containers with unready status: [main]", true, 10 * time.Second},
		"a readiness gate": {oldPod(corev1.PodRunning).Condition(lacking(corev1.PodReady, "ReadinessGatesNotReady", "gate is missing")).
			Container("main", func() corev1.ContainerStatus { s := running(); s.Ready = true; return s }()),
			"NotReady: gate is missing", true, 10 * time.Second},
		"node lost": {oldPod(corev1.PodUnknown).Container("main", running()), "container main: NotReady", true, time.Minute},
		"a long message": {oldPod(corev1.PodPending).Container("main", waiting("ErrImagePull", long+"\n"+long)),
			"container main: ErrImagePull: " + strings.Repeat("wörd ", 42) + "w...", false, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			h := ReadStuck(test.pod.Obj())
			if h == nil {
				if test.want != "" {
					t.Fatalf("is not stuck, want %q", test.want)
				}
				return
			}
			if got := h.String(); got != test.want {
				t.Errorf("is stuck at %q, want %q", got, test.want)
			}
			if h.Slow != test.slow {
				t.Errorf("slow is %t, want %t", h.Slow, test.slow)
			}
			if got := testNow.Sub(h.From); got != test.from {
				t.Errorf("from %s before now, want %s", got, test.from)
			}
			if len(h.Message) > 256 {
				t.Errorf("a message of %d bytes, want at most %d", len(h.Message), 256)
			}
		})
	}
}

// TestStuckSince: a container that crashes from the beginning has been stuck from the beginning,
// even if it was up for moments. A container that ran for long, or crashed once, has not.
func TestStuckSince(t *testing.T) {
	for name, test := range map[string]struct {
		age, changed time.Duration // before now
		restarts     int32
		lastRun      time.Duration
		want         time.Duration
	}{
		"no restart":                         {time.Hour, time.Minute, 0, 0, time.Minute},
		"crashes from the beginning":         {2 * time.Minute, 5 * time.Second, 4, time.Second, 2 * time.Minute},
		"crashes for longer":                 {20 * time.Minute, 4 * time.Minute, 8, time.Second, 20 * time.Minute},
		"ran for hours, crashes twice":       {3 * time.Hour, 20 * time.Second, 2, time.Second, 20 * time.Second},
		"one crash, just now":                {time.Minute, time.Second, 1, 50 * time.Second, time.Second},
		"one crash near the end of its time": {2 * time.Minute, time.Second, 1, 110 * time.Second, time.Second},
		"crashes, but is up for long":        {5 * time.Minute, time.Second, 2, 3 * time.Minute, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			h := &Stuck{
				From: testNow.Add(-test.changed), Created: testNow.Add(-test.age), Restarts: test.restarts, LastRun: test.lastRun,
				DownSince: testNow.Add(-test.changed),
			}
			if got := testNow.Sub(h.Since(testNow, 2*time.Minute, time.Time{})); got != test.want {
				t.Errorf("since %s before now, want %s", got, test.want)
			}
		})
	}
}

// TestStuckSlow: it takes some time to find out whether a restart helped.
func TestStuckSlow(t *testing.T) {
	for name, test := range map[string]struct {
		up       time.Duration // until now
		restarts int32
		lastRun  time.Duration
		want     bool
	}{
		"one restart, while it waited for something":    {10 * time.Second, 1, 5 * time.Second, true},
		"restarts again and again":                      {10 * time.Second, 3, 5 * time.Second, false},
		"restarts, but is up for longer than it may be": {3 * time.Minute, 3, 5 * time.Second, true},
		"restarts after long runs":                      {10 * time.Second, 3, 3 * time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := oldPod(corev1.PodRunning).Created(testNow.Add(-time.Hour)).Condition(lacking(corev1.PodReady, "", ""))
			h := ReadStuck(pod.Container("main", corev1.ContainerStatus{
				State:        corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(testNow.Add(-test.up))}},
				RestartCount: test.restarts,
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					ExitCode: 1, StartedAt: metav1.NewTime(testNow.Add(-test.up - test.lastRun)), FinishedAt: metav1.NewTime(testNow.Add(-test.up)),
				}},
			}).Obj())
			if got := h.IsSlow(testNow, 2*time.Minute); got != test.want {
				t.Errorf("slow is %t, want %t", got, test.want)
			}
		})
	}
}

func TestBackOff(t *testing.T) {
	var got []time.Duration
	for _, restarts := range []int32{0, 1, 2, 3, 4, 7, 8} {
		got = append(got, BackOff(restarts))
	}
	want := []time.Duration{0, 0, 10 * time.Second, 30 * time.Second, 70 * time.Second, 610 * time.Second, 910 * time.Second}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
