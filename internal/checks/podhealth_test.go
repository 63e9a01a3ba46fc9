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

package checks

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// healthParams are the parameters of a check; a zero value turns a criterion off.
type healthParams struct {
	Delay                           time.Duration
	MaxRestarts, MaxReadinessLosses *int32
	ReadyAtEnd, FailOnOOM           bool
	CompareOldPods                  bool
	MaxFailed                       intstr.IntOrString
	Suggestion                      string
}

func healthCheck(p healthParams) *policy.Check {
	return &policy.Check{Delay: p.Delay, Suggestion: p.Suggestion, PodHealth: &v1alpha1.PodHealthCheck{
		MaxRestarts: p.MaxRestarts, MaxReadinessLosses: p.MaxReadinessLosses, MaxFailedPods: &p.MaxFailed,
		ReadyAtEnd: &p.ReadyAtEnd, FailOnOOM: &p.FailOnOOM, CompareOldPods: &p.CompareOldPods,
	}}
}

// TestPodHealth has the symptoms that fail pods, their messages, and states that fail no pod.
func TestPodHealth(t *testing.T) {
	began := testNow.Add(-time.Minute)
	at := began.Add
	well := func(p *workload.Pod) { p.Ready, p.ReadySince = true, at(-30*time.Second) }
	unready := func(since time.Duration) func(*workload.Pod) {
		return func(p *workload.Pod) {
			p.UnreadySince, p.Stuck = at(since), &workload.Stuck{Reason: reasonNotReady, Slow: true}
		}
	}
	back := func(since time.Duration) func(*workload.Pod) {
		return func(p *workload.Pod) { p.Ready, p.ReadySince = true, at(since) }
	}
	crashes := func(p *workload.Pod) {
		p.UnreadySince = at(50 * time.Second)
		p.CrashLoop = &workload.Ended{Container: "main", Message: "last exit code 1", Finished: at(50 * time.Second), Restarts: 2}
		p.Restarts, p.EndedAt = 2, at(50*time.Second)
	}
	killed := func(when time.Duration) func(*workload.Pod) {
		return func(p *workload.Pod) {
			well(p)
			p.OutOfMemory = &workload.Ended{Container: "main", Message: "last exit code 137", Finished: at(when), Restarts: 1}
			p.Restarts, p.EndedAt = 1, at(when)
		}
	}
	restarted := func(n int32) func(*workload.Pod) {
		return func(p *workload.Pod) { well(p); p.Restarts, p.EndedAt = n, at(20*time.Second) }
	}
	// down is a pod whose container was restarted once, and that is not Ready since.
	down := func(since time.Duration) func(*workload.Pod) {
		return func(p *workload.Pod) { unready(since)(p); p.Restarts, p.EndedAt = 1, at(since) }
	}
	with := func(of func(*workload.Pod), more func(*workload.Pod)) func(*workload.Pod) {
		return func(p *workload.Pod) { of(p); more(p) }
	}
	type pods []func(*workload.Pod)
	many := func(n int, of func(*workload.Pod)) pods {
		all := make(pods, n)
		for i := range all {
			all[i] = of
		}
		return all
	}
	const duration = 5 * time.Minute
	for name, test := range map[string]struct {
		check healthParams
		// now is the time of the decision after the start; pods are in the batch, others in
		// other batches.
		now               time.Duration
		pods, others, old pods
		background        bool
		kept              []v1alpha1.PodAtStart
		// tolerated lists the pods of other batches that failed before.
		tolerated []string
		phase     v1alpha1.CheckPhase
		reason    string
		failed    string
		message   string
		after     time.Duration
	}{
		"well": {now: time.Minute, pods: pods{well, well}, phase: v1alpha1.CheckRunning, after: 4 * time.Minute},
		"well to the end": {
			now: duration, pods: pods{well, well},
			phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed, message: "2 pods were well",
		},
		"well to the end, in the background": {now: duration, pods: pods{well}, background: true, phase: v1alpha1.CheckWatching},
		"it has not begun": {
			check: healthParams{Delay: 2 * time.Minute}, now: time.Minute, pods: pods{crashes},
			phase: v1alpha1.CheckRunning, after: time.Minute,
		},
		"is in CrashLoopBackOff": {
			now: time.Minute, pods: pods{well, crashes},
			phase: v1alpha1.CheckFailed, reason: "CrashLoopBackOff", failed: "pod-1",
			message: "pod pod-1: container main is in CrashLoopBackOff: last exit code 1",
		},
		"crashes in the background": {
			now: time.Minute, pods: pods{crashes}, background: true,
			phase: v1alpha1.CheckFailed, reason: "CrashLoopBackOff", failed: "pod-0",
		},
		"with a suggestion": {
			check: healthParams{Suggestion: "read the logs"}, now: time.Minute, pods: pods{crashes},
			phase: v1alpha1.CheckFailed, reason: "CrashLoopBackOff", failed: "pod-0", message: "read the logs",
		},
		"was OOMKilled": {
			check: healthParams{FailOnOOM: true}, now: time.Minute, pods: pods{killed(30 * time.Second)},
			phase: v1alpha1.CheckFailed, reason: "OOMKilled", failed: "pod-0", message: "was OOMKilled",
		},
		"was OOMKilled, not judged": {
			now: time.Minute, pods: pods{killed(30 * time.Second)},
			phase: v1alpha1.CheckRunning, after: 4 * time.Minute,
		},
		"was OOMKilled long before": {
			check: healthParams{FailOnOOM: true}, now: time.Minute, pods: pods{killed(-time.Minute)},
			phase: v1alpha1.CheckRunning, after: 4 * time.Minute,
		},
		"was OOMKilled after the end": {
			check: healthParams{FailOnOOM: true}, now: 7 * time.Minute, pods: pods{killed(6 * time.Minute)}, background: true,
			phase: v1alpha1.CheckWatching,
		},
		"is not ready for a while": {
			check: healthParams{ReadyAtEnd: true}, now: time.Minute, pods: pods{unready(10 * time.Second)},
			phase: v1alpha1.CheckRunning, after: 4 * time.Minute,
		},
		"is not ready at the end": {
			check: healthParams{ReadyAtEnd: true}, now: duration, pods: pods{unready(time.Minute)},
			phase: v1alpha1.CheckFailed, reason: "NotReady", failed: "pod-0", message: "it has not been Ready since",
		},
		"is not ready at the end, not judged": {
			now: duration, pods: pods{unready(time.Minute)},
			phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed,
		},
		"flaps at the end": {
			check: healthParams{ReadyAtEnd: true}, now: duration, pods: pods{unready(duration - 10*time.Second)},
			phase: v1alpha1.CheckRunning, after: 20 * time.Second,
		},
		"flapped at the end, and stayed so": {
			check: healthParams{ReadyAtEnd: true}, now: duration + 20*time.Second, pods: pods{unready(duration - 10*time.Second)},
			phase: v1alpha1.CheckFailed, reason: "NotReady", failed: "pod-0",
		},
		"asked late, well at the end": {
			check: healthParams{ReadyAtEnd: true}, now: 8 * time.Minute, pods: pods{unready(duration + time.Minute)},
			phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed,
		},
		"asked late, in a crash loop since": {now: 8 * time.Minute, pods: pods{func(p *workload.Pod) {
			p.CrashLoop = &workload.Ended{Container: "main", Finished: at(7 * time.Minute), Restarts: 2}
		}}, phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed},
		"asked late, in a crash loop from before": {now: 8 * time.Minute, pods: pods{func(p *workload.Pod) {
			p.UnreadySince = at(7 * time.Minute)
			p.CrashLoop = &workload.Ended{Container: "main", Finished: at(7 * time.Minute), Restarts: 6}
		}}, phase: v1alpha1.CheckFailed, reason: "CrashLoopBackOff", failed: "pod-0"},
		"its node restarted, and it starts": {
			check: healthParams{ReadyAtEnd: true}, now: duration,
			pods:  pods{with(unready(time.Minute), func(p *workload.Pod) { p.NodeRestarted = true })},
			phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed,
		},
		"its node restarted, and it does not come up": {
			check: healthParams{ReadyAtEnd: true}, now: duration,
			pods:  pods{with(unready(time.Minute), func(p *workload.Pod) { p.NodeRestarted, p.StartedAt = true, at(2*time.Minute) })},
			phase: v1alpha1.CheckFailed, reason: "NotReady", failed: "pod-0",
		},
		"restarted before it was ready, and flaps": {
			check: healthParams{MaxRestarts: ptr.To[int32](0)}, now: time.Minute,
			pods:  pods{with(unready(30*time.Second), func(p *workload.Pod) { p.Restarts, p.EndedAt = 3, at(-time.Minute) })},
			phase: v1alpha1.CheckRunning, after: 4 * time.Minute,
		},
		"some were killed, others crash, and old pods were killed": {
			check: healthParams{CompareOldPods: true, FailOnOOM: true}, now: time.Minute, pods: pods{killed(0), crashes}, old: pods{killed(0)},
			phase: v1alpha1.CheckFailed, reason: "CrashLoopBackOff", failed: "pod-1",
		},
		"an old pod ended once, and runs again": {
			check: healthParams{CompareOldPods: true}, now: time.Minute, pods: pods{crashes}, old: pods{restarted(1)},
			phase: v1alpha1.CheckFailed, reason: "CrashLoopBackOff", failed: "pod-0",
		},
		"an old pod ended again, and runs again": {
			check: healthParams{CompareOldPods: true}, now: time.Minute, pods: pods{crashes}, old: pods{restarted(2)},
			phase: v1alpha1.CheckRunning, reason: v1alpha1.ReasonSameOnOldPods, failed: "pod-0", after: 4 * time.Minute,
		},
		"an old pod ended again, and runs well since": {
			check: healthParams{CompareOldPods: true}, now: 3 * time.Minute, pods: pods{crashes}, old: pods{restarted(2)},
			phase: v1alpha1.CheckFailed, reason: "CrashLoopBackOff", failed: "pod-0",
		},
		"as many were restarted in other batches": {
			check: healthParams{MaxRestarts: ptr.To[int32](0), MaxFailed: intstr.FromString("10%")}, now: time.Minute, pods: pods{restarted(1)},
			others: many(9, well), tolerated: []string{"other-0"},
			phase: v1alpha1.CheckFailed, reason: "Restarted", failed: "pod-0",
		},
		"is deleted": {
			now: time.Minute, pods: pods{with(crashes, func(p *workload.Pod) { p.Terminating = true })},
			phase: v1alpha1.CheckRunning, after: 4 * time.Minute,
		},
		"is evicted": {
			check: healthParams{ReadyAtEnd: true}, now: duration, pods: pods{with(unready(0), func(p *workload.Pod) { p.Disrupted = true })},
			phase: v1alpha1.CheckSkipped, reason: v1alpha1.ReasonNoPods,
		},
		"is lost with its node": {
			check: healthParams{ReadyAtEnd: true}, now: duration, pods: pods{with(unready(0), func(p *workload.Pod) { p.Lost = true })},
			phase: v1alpha1.CheckSkipped, reason: v1alpha1.ReasonNoPods,
		},
		"one restart is not judged": {now: time.Minute, pods: pods{restarted(1)}, phase: v1alpha1.CheckRunning, after: 4 * time.Minute},
		"two restarts": {
			now: time.Minute, pods: pods{restarted(2)},
			phase: v1alpha1.CheckFailed, reason: "Restarted", failed: "pod-0", message: "restarted 2 times",
		},
		"two restarts in the background": {
			now: time.Minute, pods: pods{restarted(2)}, background: true,
			phase: v1alpha1.CheckFailed, reason: "Restarted", failed: "pod-0",
		},
		"two restarts, five are allowed": {
			check: healthParams{MaxRestarts: ptr.To[int32](5)}, now: time.Minute, pods: pods{restarted(2)},
			phase: v1alpha1.CheckFailed, reason: "Restarted", failed: "pod-0", message: "at most 1 are allowed",
		},
		"two restarts, one of them from before": {
			now: time.Minute, pods: pods{restarted(2)}, kept: []v1alpha1.PodAtStart{{Pod: "pod-0", RestartsAtStart: 1}},
			phase: v1alpha1.CheckRunning, after: 4 * time.Minute,
		},
		"two restarts in another batch, too": {
			check: healthParams{MaxFailed: intstr.FromString("10%")}, now: time.Minute, pods: pods{restarted(2)},
			others: append(many(8, well), restarted(2)),
			phase:  v1alpha1.CheckFailed, reason: "Restarted", failed: "pod-0",
		},
		"two restarts, and old pods restarted": {
			check: healthParams{CompareOldPods: true}, now: time.Minute, pods: pods{restarted(2)}, old: pods{restarted(2)},
			phase: v1alpha1.CheckRunning, reason: v1alpha1.ReasonSameOnOldPods, failed: "pod-0", after: 4 * time.Minute,
		},
		"one restart, and not ready for a moment": {
			now: 40 * time.Second, pods: pods{down(20 * time.Second)},
			phase: v1alpha1.CheckRunning, after: 10 * time.Second,
		},
		"one restart, and not ready 30 seconds later": {
			now: 50 * time.Second, pods: pods{down(20 * time.Second)},
			phase: v1alpha1.CheckFailed, reason: "Restarted", failed: "pod-0", message: "has not been Ready since",
		},
		"one restart just before the end, and not ready": {
			now: duration, pods: pods{down(duration - 10*time.Second)},
			phase: v1alpha1.CheckRunning, after: 20 * time.Second,
		},
		"one restart just before the end, in the background": {
			now: duration, pods: pods{down(duration - 10*time.Second)}, background: true, phase: v1alpha1.CheckWatching, after: 20 * time.Second,
		},
		"one restart just before the end, and not ready since": {
			now: duration + 20*time.Second, pods: pods{down(duration - 10*time.Second)},
			phase: v1alpha1.CheckFailed, reason: "Restarted", failed: "pod-0",
		},
		"one restart, and another with its node": {
			now: time.Minute, pods: pods{with(restarted(1), func(p *workload.Pod) { p.NodeRestarted, p.EndedAt = true, at(-time.Minute) })},
			phase: v1alpha1.CheckRunning, after: 4 * time.Minute,
		},
		"restarts after the end, asked late": {
			now: 8 * time.Minute, pods: pods{with(restarted(2), func(p *workload.Pod) { p.EndedAt = at(6 * time.Minute) })},
			phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed,
		},
		"one restart, none is allowed": {
			check: healthParams{MaxRestarts: ptr.To[int32](0)}, now: time.Minute, pods: pods{restarted(1)},
			phase: v1alpha1.CheckFailed, reason: "Restarted", failed: "pod-0", message: "restarted 1 times",
		},
		"restarts from before": {
			check: healthParams{MaxRestarts: ptr.To[int32](0)}, now: time.Minute, pods: pods{restarted(2)},
			kept:  []v1alpha1.PodAtStart{{Pod: "pod-0", RestartsAtStart: 2}},
			phase: v1alpha1.CheckRunning, after: 4 * time.Minute,
		},
		"a loss, none is allowed": {
			check: healthParams{MaxReadinessLosses: ptr.To[int32](0)}, now: time.Minute, pods: pods{unready(30 * time.Second)},
			phase: v1alpha1.CheckFailed, reason: "ReadinessLost", failed: "pod-0",
		},
		"a loss that was not seen": {
			check: healthParams{MaxReadinessLosses: ptr.To[int32](0)}, now: time.Minute, pods: pods{back(30 * time.Second)},
			phase: v1alpha1.CheckFailed, reason: "ReadinessLost", failed: "pod-0",
		},
		"a loss in the second it began": {
			check: healthParams{MaxReadinessLosses: ptr.To[int32](0)}, now: time.Minute, pods: pods{unready(0)},
			phase: v1alpha1.CheckFailed, reason: "ReadinessLost", failed: "pod-0",
		},
		"became ready in the second it began": {
			check: healthParams{MaxReadinessLosses: ptr.To[int32](0)}, now: time.Minute, pods: pods{back(0)},
			phase: v1alpha1.CheckRunning, after: 4 * time.Minute,
		},
		"a loss, one is allowed": {
			check: healthParams{MaxReadinessLosses: ptr.To[int32](1)}, now: time.Minute, pods: pods{unready(30 * time.Second)},
			phase: v1alpha1.CheckRunning, after: 4 * time.Minute,
		},
		"one of ten is tolerated": {
			check: healthParams{MaxFailed: intstr.FromString("10%")}, now: time.Minute, pods: pods{crashes}, others: many(9, well),
			phase: v1alpha1.CheckRunning, reason: v1alpha1.ReasonTolerated, failed: "pod-0",
			message: "1 of 10 pods of the release fail, up to 1 are tolerated", after: 4 * time.Minute,
		},
		"one of nine is not": {
			check: healthParams{MaxFailed: intstr.FromString("10%")}, now: time.Minute, pods: pods{crashes}, others: many(8, well),
			phase: v1alpha1.CheckFailed, reason: "CrashLoopBackOff", failed: "pod-0",
		},
		"two of ten, in two batches": {
			check: healthParams{MaxFailed: intstr.FromString("10%")}, now: time.Minute, pods: pods{crashes}, others: append(many(8, well), crashes),
			phase: v1alpha1.CheckFailed, reason: "CrashLoopBackOff", failed: "pod-0",
		},
		"two are tolerated": {
			check: healthParams{MaxFailed: intstr.FromInt32(2)}, now: duration, pods: pods{crashes, crashes, well},
			phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed, failed: "pod-0 pod-1",
		},
		"old pods fail, too": {
			check: healthParams{CompareOldPods: true}, now: time.Minute, pods: pods{crashes}, old: append(many(9, well), crashes),
			phase: v1alpha1.CheckRunning, reason: v1alpha1.ReasonSameOnOldPods, failed: "pod-0", after: 4 * time.Minute,
		},
		"old pods fail, not compared": {
			now: time.Minute, pods: pods{crashes}, old: pods{crashes},
			phase: v1alpha1.CheckFailed, reason: "CrashLoopBackOff", failed: "pod-0",
		},
		"old pods fail to the end": {
			check: healthParams{CompareOldPods: true}, now: duration, pods: pods{crashes}, old: pods{crashes},
			phase: v1alpha1.CheckInconclusive, reason: v1alpha1.ReasonSameOnOldPods, failed: "pod-0",
		},
		"one old pod of eleven fails": {
			check: healthParams{CompareOldPods: true}, now: time.Minute, pods: pods{crashes}, old: append(many(10, well), crashes),
			phase: v1alpha1.CheckFailed, reason: "CrashLoopBackOff", failed: "pod-0",
		},
		"old pods fail in another way": {
			check: healthParams{CompareOldPods: true, FailOnOOM: true}, now: time.Minute, pods: pods{crashes}, old: pods{killed(0)},
			phase: v1alpha1.CheckFailed, reason: "CrashLoopBackOff", failed: "pod-0",
		},
		"old pods are unready for as long": {
			check: healthParams{ReadyAtEnd: true, CompareOldPods: true}, now: duration, pods: pods{unready(time.Minute)},
			old:   pods{unready(time.Minute)},
			phase: v1alpha1.CheckInconclusive, reason: v1alpha1.ReasonSameOnOldPods, failed: "pod-0",
		},
		"old pods are unready for a moment": {
			check: healthParams{ReadyAtEnd: true, CompareOldPods: true}, now: duration, pods: pods{unready(time.Minute)},
			old:   pods{unready(duration - time.Second)},
			phase: v1alpha1.CheckFailed, reason: "NotReady", failed: "pod-0",
		},
		"old pods became ready after it began": {
			check: healthParams{ReadyAtEnd: true, CompareOldPods: true}, now: duration, pods: pods{unready(time.Minute)},
			old:   many(4, back(20*time.Second)),
			phase: v1alpha1.CheckFailed, reason: "NotReady", failed: "pod-0",
		},
		"old pods were made after it began, and are not ready": {
			check: healthParams{ReadyAtEnd: true, CompareOldPods: true}, now: duration, pods: many(4, unready(0)),
			old:   pods{with(unready(time.Minute), func(p *workload.Pod) { p.Created = at(time.Minute) })},
			phase: v1alpha1.CheckFailed, reason: "NotReady", failed: "pod-0 pod-1 pod-2 pod-3",
		},
		"old pods were made after it began, and crash": {
			check: healthParams{CompareOldPods: true}, now: time.Minute, pods: pods{crashes},
			old:   pods{with(crashes, func(p *workload.Pod) { p.Created = at(time.Second) })},
			phase: v1alpha1.CheckFailed, reason: "CrashLoopBackOff", failed: "pod-0",
		},
		"old pods lose their readiness, too": {
			check: healthParams{MaxReadinessLosses: ptr.To[int32](0), CompareOldPods: true}, now: time.Minute, pods: pods{unready(30 * time.Second)},
			old:   pods{unready(31 * time.Second)},
			phase: v1alpha1.CheckRunning, reason: v1alpha1.ReasonSameOnOldPods, failed: "pod-0", after: 4 * time.Minute,
		},
		"old pods had lost their readiness before": {
			check: healthParams{MaxReadinessLosses: ptr.To[int32](0), CompareOldPods: true}, now: time.Minute, pods: pods{unready(30 * time.Second)},
			old:   pods{unready(-time.Minute)},
			phase: v1alpha1.CheckFailed, reason: "ReadinessLost", failed: "pod-0",
		},
		"no pod exists":            {now: time.Minute, phase: v1alpha1.CheckRunning, after: 4 * time.Minute},
		"no pod exists at the end": {now: duration, phase: v1alpha1.CheckSkipped, reason: v1alpha1.ReasonNoPods},
		"the last pod is being deleted": {
			now: duration, pods: pods{func(p *workload.Pod) { p.Terminating = true }},
			phase: v1alpha1.CheckSkipped, reason: v1alpha1.ReasonNoPods,
		},
		"no pod exists at the end, in the background": {now: duration, background: true, phase: v1alpha1.CheckWatching},
		"the clock of a kubelet is wrong": {
			check: healthParams{FailOnOOM: true}, now: time.Minute, pods: pods{killed(-100 * time.Hour)},
			phase: v1alpha1.CheckRunning, after: 4 * time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			named := func(prefix string, of pods) []workload.Pod {
				all := make([]workload.Pod, len(of))
				for i := range of {
					all[i] = workload.Pod{Name: fmt.Sprint(prefix, i), UID: types.UID(fmt.Sprint(prefix, i)), Created: began.Add(-2 * time.Minute)}
					of[i](&all[i])
				}
				return all
			}
			mine, check := named("pod-", test.pods), healthCheck(test.check)
			in := podHealthInput{Now: at(test.now), Check: check, Pods: mine, Status: v1alpha1.CheckStatus{
				Name: "ns/p/c", Phase: v1alpha1.CheckRunning, Background: test.background, PodsAtStart: test.kept,
				StartTime: stamp(began), DueTime: stamp(at(duration)), Deadline: stamp(at(15 * time.Minute)),
			}}
			if test.background {
				in.Status.Phase = v1alpha1.CheckWatching
			}
			plan := decidePodHealth(in)
			if plan.Failing != "" {
				others := named("other-", test.others)
				failing := countFailing(podHealthInput{Now: in.Now, Check: check, Pods: others, Status: v1alpha1.CheckStatus{
					StartTime: stamp(began), DueTime: stamp(at(duration)), FailedPods: test.tolerated,
				}})
				in.Around = &healthAround{total: len(mine) + len(others), old: named("old-", test.old), failing: failing}
				plan = decidePodHealth(in)
			}
			s := plan.Status
			if s.Phase != test.phase || s.Reason != test.reason || strings.Join(s.FailedPods, " ") != test.failed ||
				!strings.Contains(s.Message, test.message) || plan.After != test.after {
				t.Errorf("got %s %q of %v, again after %s: %s", s.Phase, s.Reason, s.FailedPods, plan.After, s.Message)
			}
			in.Status = s
			if again := decidePodHealth(in); !record.CheckIsOver(&s) && again.Status.Message != s.Message {
				t.Errorf("asked again it says %q", again.Status.Message)
			}
		})
	}
}

// TestReadinessLosses: each time that a pod ceases to be Ready counts once, however often it is
// read.
func TestReadinessLosses(t *testing.T) {
	began := testNow
	in := podHealthInput{Check: healthCheck(healthParams{MaxReadinessLosses: ptr.To[int32](2)}), Status: v1alpha1.CheckStatus{
		Name: "ns/p/c", Phase: v1alpha1.CheckRunning, StartTime: stamp(began), DueTime: stamp(began.Add(10 * time.Minute)),
	}}
	for i, step := range []struct {
		ready  bool
		since  time.Duration
		losses int32
		phase  v1alpha1.CheckPhase
	}{
		{true, -time.Minute, 0, v1alpha1.CheckRunning},
		{false, time.Minute, 1, v1alpha1.CheckRunning},
		{false, time.Minute, 1, v1alpha1.CheckRunning},
		{true, 2 * time.Minute, 1, v1alpha1.CheckRunning},
		{false, 3 * time.Minute, 2, v1alpha1.CheckRunning},
		{true, 4 * time.Minute, 2, v1alpha1.CheckRunning},
		{false, 5 * time.Minute, 3, v1alpha1.CheckFailed},
	} {
		in.Now = began.Add(max(step.since, 0) + time.Second)
		p := workload.Pod{Name: "pod", UID: "pod", Created: began.Add(-time.Hour), Ready: step.ready}
		if step.ready {
			p.ReadySince = began.Add(step.since)
		} else {
			p.UnreadySince = began.Add(step.since)
		}
		in.Pods, in.Around = []workload.Pod{p}, &healthAround{total: 1}
		in.Status = decidePodHealth(in).Status
		losses := int32(0)
		if len(in.Status.PodsAtStart) > 0 {
			losses = in.Status.PodsAtStart[0].ReadinessLosses
		}
		if losses != step.losses || in.Status.Phase != step.phase {
			t.Fatalf("step %d: %d losses, %s; want %d, %s", i, losses, in.Status.Phase, step.losses, step.phase)
		}
	}
}

// TestRestartsWithNode: a restart of the node is no failure, and does not count when a container
// fails later.
func TestRestartsWithNode(t *testing.T) {
	in := podHealthInput{Check: healthCheck(healthParams{}), Around: &healthAround{total: 1}, Status: v1alpha1.CheckStatus{
		Name: "ns/p/c", Phase: v1alpha1.CheckRunning, StartTime: stamp(testNow), DueTime: stamp(testNow.Add(10 * time.Minute)),
	}}
	for i, step := range []struct {
		restarts, kept int32
		withNode       bool
		phase          v1alpha1.CheckPhase
	}{
		{2, 2, true, v1alpha1.CheckRunning},
		{3, 2, false, v1alpha1.CheckRunning},
		{4, 2, false, v1alpha1.CheckFailed},
	} {
		in.Now = testNow.Add(time.Duration(i+1) * time.Minute)
		p := workload.Pod{Name: "pod", UID: "pod", Created: testNow.Add(-time.Hour), Ready: true, ReadySince: in.Now}
		p.Restarts, p.NodeRestarted = step.restarts, step.withNode
		if !step.withNode {
			p.EndedAt = in.Now
		}
		in.Pods = []workload.Pod{p}
		in.Status = decidePodHealth(in).Status
		if len(in.Status.PodsAtStart) != 1 || in.Status.PodsAtStart[0].RestartsAtStart != step.kept || in.Status.Phase != step.phase {
			t.Fatalf("step %d: %s, %+v; want %s, %d", i, in.Status.Phase, in.Status.PodsAtStart, step.phase, step.kept)
		}
	}
}
