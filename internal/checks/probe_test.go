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
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// probeParams are the parameters of a check.
type probeParams struct {
	Service             string
	Delay, Interval     time.Duration
	Successes, Failures int32
	OnError, OnNoData   v1alpha1.OnSilence
	Suggestion          string
}

func probeCheck(p probeParams) *policy.Check {
	return &policy.Check{
		Delay: p.Delay, OnError: p.OnError, OnNoData: p.OnNoData, Suggestion: p.Suggestion, Probe: &v1alpha1.ProbeCheck{
			Service: p.Service, Interval: &metav1.Duration{Duration: p.Interval}, Successes: p.Successes, Failures: p.Failures,
		},
	}
}

// TestProbe has the decisions by the results of calls. Each letter is the result of one call of a
// pod, every ten seconds: good, bad, unanswered, error.
func TestProbe(t *testing.T) {
	began := testNow
	at := began.Add
	ready := func(*workload.Pod) {}
	terminating := func(p *workload.Pod) { p.Terminating = true }
	evicted := func(p *workload.Pod) { p.Disrupted = true }
	lost := func(p *workload.Pod) { p.Ready, p.Lost = false, true }
	unready := func(p *workload.Pod) { p.Ready = false }
	type pod struct {
		calls string
		is    func(*workload.Pod)
	}
	const deadline, takes = 15 * time.Minute, 40 * time.Second
	running, watching := v1alpha1.CheckRunning, v1alpha1.CheckWatching
	for name, test := range map[string]struct {
		check probeParams
		// now is the time of the decision, process the start of this process, after the start of the check.
		now, process time.Duration
		pods         []pod
		busy         bool
		background   bool
		phase        v1alpha1.CheckPhase
		reason       string
		failed       string
		message      string
		silence      v1alpha1.OnSilence
		call         int
		after        time.Duration
	}{
		"it has not begun":                {check: probeParams{Delay: time.Minute}, pods: []pod{{"", ready}}, phase: running, after: time.Minute},
		"all pods are called at first":    {pods: []pod{{"", ready}, {"", ready}}, phase: running, call: 2, after: resultsEvery},
		"no second call during the first": {pods: []pod{{"", ready}}, busy: true, phase: running, after: resultsEvery},
		"one good answer is not enough":   {now: 5 * time.Second, pods: []pod{{"g", ready}}, phase: running, after: 5 * time.Second},
		"the next one, when it is time":   {now: 10 * time.Second, pods: []pod{{"g", ready}}, phase: running, call: 1, after: resultsEvery},
		"three good answers are": {
			now: 21 * time.Second, pods: []pod{{"ggg", ready}, {"ggg", ready}},
			phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed, message: "2 pods answered well 3 times in a row",
		},
		"not if one pod is behind": {
			now: 22 * time.Second, pods: []pod{{"ggg", ready}, {"bgg", ready}},
			phase: running, after: 8 * time.Second,
		},
		"three that are not in a row": {now: 32 * time.Second, pods: []pod{{"ggbg", ready}}, phase: running, after: 8 * time.Second},
		"an error in between breaks nothing": {
			now: 32 * time.Second, pods: []pod{{"ggeg", ready}},
			phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed,
		},
		"two bad answers": {now: 15 * time.Second, pods: []pod{{"bb", ready}}, phase: running, after: 5 * time.Second},
		"three bad answers": {
			now: 21 * time.Second, pods: []pod{{"ggg", ready}, {"bbb", ready}},
			phase: v1alpha1.CheckFailed, reason: "HTTP500", failed: "pod-1", message: "pod pod-1: it was answered 500, 3 times in a row",
		},
		"three not in a row": {now: 32 * time.Second, pods: []pod{{"bbgb", ready}}, phase: running, after: 8 * time.Second},
		"one bad answer of one": {
			check: probeParams{Failures: 1}, now: time.Second, pods: []pod{{"b", ready}, {"b", ready}},
			phase: v1alpha1.CheckFailed, reason: "HTTP500", failed: "pod-0 pod-1", message: "(and 1 more pods of the batch)",
		},
		"with a suggestion": {
			check: probeParams{Failures: 1, Suggestion: "read the logs"}, now: time.Second, pods: []pod{{"b", ready}},
			phase: v1alpha1.CheckFailed, reason: "HTTP500", failed: "pod-0", message: "; read the logs",
		},
		"a pod that passed is left alone": {
			now: 61 * time.Second, pods: []pod{{"gggbbb", ready}, {"eeeeee", ready}},
			phase: running, call: 0, after: 49 * time.Second,
		},
		"is deleted": {
			now: 21 * time.Second, pods: []pod{{"ggg", ready}, {"bbb", terminating}},
			phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed,
		},
		"is evicted": {
			now: 21 * time.Second, pods: []pod{{"ggg", ready}, {"bbb", evicted}},
			phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed,
		},
		"is lost with its node": {now: 21 * time.Second, pods: []pod{{"ggg", ready}, {"bbb", lost}}, phase: running, after: probeRetry},
		"is lost until the deadline": {
			check: probeParams{OnError: v1alpha1.SilencePasses}, now: deadline, pods: []pod{{"", lost}},
			phase: v1alpha1.CheckError, reason: v1alpha1.ReasonNotMeasured, silence: v1alpha1.SilencePasses,
			message: "0 of 1 pods have passed; pod pod-0: its node does not answer",
		},
		"no pod is left": {now: 21 * time.Second, pods: []pod{{"bb", terminating}}, phase: v1alpha1.CheckSkipped, reason: v1alpha1.ReasonNoPods},
		"no answer":      {now: 31 * time.Second, pods: []pod{{"uuu", ready}}, phase: running, call: 1, after: resultsEvery},
		"no answer for a minute": {
			now: time.Minute, pods: []pod{{"uuuuuu", ready}},
			phase: v1alpha1.CheckFailed, reason: "Timeout", failed: "pod-0",
		},
		"no answer, after a bad one": {
			now: 21 * time.Second, pods: []pod{{"buu", ready}},
			phase: v1alpha1.CheckFailed, reason: "Timeout", failed: "pod-0",
		},
		"no answer, and it is not Ready": {now: 2 * time.Minute, pods: []pod{{"uuuuuuuuuuuu", unready}}, phase: running, after: 50 * time.Second},
		"it is not Ready, and refuses": {
			now: 21 * time.Second, pods: []pod{{"bbb", unready}},
			phase: v1alpha1.CheckFailed, reason: "HTTP500", failed: "pod-0",
		},
		"errors are tried again after 10 s": {now: 5 * time.Second, pods: []pod{{"e", ready}}, phase: running, after: 5 * time.Second},
		"after 20 s":                        {now: 15 * time.Second, pods: []pod{{"ee", ready}}, phase: running, after: 15 * time.Second},
		"after a minute at most":            {now: 90 * time.Second, pods: []pod{{"eeeeeeeeee", ready}}, phase: running, after: time.Minute},
		"errors until the deadline": {
			check: probeParams{OnError: v1alpha1.SilenceFails, OnNoData: v1alpha1.SilencePasses}, now: deadline,
			pods:  []pod{{"ggg", ready}, {"ee", ready}},
			phase: v1alpha1.CheckError, reason: v1alpha1.ReasonNotMeasured, silence: v1alpha1.SilenceFails,
			message: "until the deadline 1 of 2 pods have passed; pod pod-1: it has no IP",
		},
		"the setting silence decides": {
			check: probeParams{OnError: v1alpha1.SilenceDefault}, now: deadline, pods: []pod{{"ee", ready}},
			phase: v1alpha1.CheckError, reason: v1alpha1.ReasonNotMeasured,
		},
		"good and bad until the deadline": {
			check: probeParams{OnError: v1alpha1.SilenceFails, OnNoData: v1alpha1.SilencePasses}, now: deadline, pods: []pod{{"gbgb", ready}},
			phase: v1alpha1.CheckInconclusive, reason: v1alpha1.ReasonUnsteady, silence: v1alpha1.SilencePasses,
			message: "pod pod-0: it was answered 500",
		},
		"good to the deadline, and not enough": {
			check: probeParams{Successes: 60}, now: deadline, pods: []pod{{"gg", ready}},
			phase: v1alpha1.CheckInconclusive, reason: v1alpha1.ReasonUnsteady, message: "it answered well 2 times in a row",
		},
		"it fails at the deadline": {
			now: deadline, pods: []pod{{"bbb", ready}},
			phase: v1alpha1.CheckFailed, reason: "HTTP500", failed: "pod-0",
		},
		"it passes at the deadline": {now: deadline, pods: []pod{{"ggg", ready}}, phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed},
		"passes in the background": {
			now: 21 * time.Second, pods: []pod{{"ggg", ready}}, background: true,
			phase: watching, after: deadline - 21*time.Second,
		},
		"fails in the background": {
			now: 21 * time.Second, pods: []pod{{"bbb", ready}}, background: true,
			phase: v1alpha1.CheckFailed, reason: "HTTP500", failed: "pod-0",
		},
		"goes on in the background": {
			now: 35 * time.Second, pods: []pod{{"ggbg", ready}}, background: true,
			phase: watching, after: 5 * time.Second,
		},
		"for longer than planned": {
			now: takes, pods: []pod{{"ggbg", ready}}, background: true,
			phase: running, reason: v1alpha1.ReasonProbing, call: 1, after: resultsEvery,
		},
		"longer, for a process that began now": {
			now: 5 * time.Minute, process: 5 * time.Minute, pods: []pod{{"", ready}}, background: true,
			phase: watching, call: 1, after: resultsEvery,
		},
		"begun after the deadline": {now: time.Hour, process: time.Hour, pods: []pod{{"", ready}}, phase: running, call: 1, after: resultsEvery},
		"it takes as long as planned, not more": {
			check: probeParams{OnError: v1alpha1.SilenceFails}, now: time.Hour + takes, process: time.Hour, pods: []pod{{"", ready}},
			phase: v1alpha1.CheckError, reason: v1alpha1.ReasonNotMeasured, silence: v1alpha1.SilenceFails,
		},
		"begun just before the deadline": {
			now: deadline, process: deadline - time.Second, pods: []pod{{"", ready}},
			phase: running, call: 1, after: resultsEvery,
		},
		"a process that began at the end": {
			now: deadline - time.Second, process: deadline - time.Second, pods: []pod{{"", ready}}, background: true,
			phase: running, reason: v1alpha1.ReasonProbing, call: 1, after: resultsEvery,
		},
	} {
		t.Run(name, func(t *testing.T) {
			params := test.check
			params.Interval = 10 * time.Second
			params.Successes, params.Failures = cmp.Or(params.Successes, 3), cmp.Or(params.Failures, 3)
			check := probeCheck(params)
			in := probeInput{
				Now: at(test.now), Check: check, Began: at(test.process), Busy: map[types.UID]bool{}, Streaks: map[types.UID]probeStreak{},
				Status: v1alpha1.CheckStatus{
					Name: "ns/p/c", Phase: running, Background: test.background,
					StartTime: stamp(began), DueTime: stamp(at(takes)), Deadline: stamp(at(deadline)),
				},
			}
			if test.background {
				in.Status.Phase = watching
			}
			for i, of := range test.pods {
				p := workload.Pod{Name: fmt.Sprint("pod-", i), UID: types.UID(fmt.Sprint("pod-", i)), Ready: true}
				of.is(&p)
				in.Busy[p.UID] = test.busy
				in.Pods = append(in.Pods, p)
				for n, call := range of.calls {
					when := at(time.Duration(n) * 10 * time.Second)
					r := map[rune]probeResult{
						'g': {Outcome: probeGood, Message: "it was answered 200"},
						'b': {Outcome: probeBad, Reason: "HTTP500", Message: "it was answered 500"},
						'u': {Outcome: probeUnanswered, Reason: "Timeout", Message: "no answer"},
						'e': {Reason: "NoIP", Message: "it has no IP"},
					}[call]
					r.Began, r.Ended = when, when
					in.Streaks[p.UID] = in.Streaks[p.UID].add(check, r, &p)
				}
			}
			plan := decideProbe(in)
			plan = confirmAll(t, in, plan)
			s := plan.Status
			if s.Phase != test.phase || s.Reason != test.reason || strings.Join(s.FailedPods, " ") != test.failed ||
				!strings.Contains(s.Message, test.message) ||
				s.OnSilence != test.silence || len(plan.Call) != test.call || plan.After != test.after {
				t.Errorf("got %s %q of %v, silence %q, calls %d, again after %s: %s",
					s.Phase, s.Reason, s.FailedPods, s.OnSilence, len(plan.Call), plan.After, s.Message)
			}
		})
	}
}

// confirmAll decides until all pods of the decision are confirmed.
func confirmAll(t *testing.T, in probeInput, plan probePlan) probePlan {
	t.Helper()
	in.Confirmed = map[types.UID]bool{}
	for len(plan.Confirm) > 0 {
		if plan.Status.Phase != in.Status.Phase {
			t.Errorf("it is %s before it was confirmed", plan.Status.Phase)
		}
		for _, uid := range plan.Confirm {
			if in.Confirmed[uid] {
				t.Fatalf("%s is to be confirmed again", uid)
			}
			in.Confirmed[uid] = true
		}
		plan = decideProbe(in)
	}
	return plan
}

// badPods returns pods with one bad result each.
func badPods(n int) probeInput {
	in := probeInput{
		Now: testNow, Check: probeCheck(probeParams{Interval: time.Second, Successes: 1, Failures: 1}), Streaks: map[types.UID]probeStreak{},
		Status: v1alpha1.CheckStatus{
			Phase: v1alpha1.CheckRunning, StartTime: stamp(testNow), DueTime: stamp(testNow.Add(time.Minute)),
			Deadline: stamp(testNow.Add(time.Hour)),
		},
	}
	for i := range n {
		pod := workload.Pod{Name: fmt.Sprintf("pod-%03d", i), UID: types.UID(fmt.Sprint(i)), Ready: true}
		in.Pods = append(in.Pods, pod)
		in.Streaks[pod.UID] = probeStreak{}.add(in.Check, probeResult{Outcome: probeBad, Reason: "HTTP500", Began: testNow}, &pod)
	}
	return in
}

// TestProbeFailsMany: the status has the number of failed pods if they are too many to be named.
func TestProbeFailsMany(t *testing.T) {
	in := badPods(60)
	s := confirmAll(t, in, decideProbe(in)).Status
	if s.Phase != v1alpha1.CheckFailed || len(s.FailedPods) != 20 || s.FailedCount != 60 ||
		!strings.Contains(s.Message, "(and 59 more pods of the batch)") {
		t.Errorf("it is %s, with %d pods, %d in all: %s", s.Phase, len(s.FailedPods), s.FailedCount, s.Message)
	}
}

// TestProbeConfirmsEach: if the first failed pods are gone, the others are confirmed, too.
func TestProbeConfirmsEach(t *testing.T) {
	in := badPods(30)
	plan := decideProbe(in)
	in.Confirmed = map[types.UID]bool{}
	for i := range in.Pods {
		for _, uid := range plan.Confirm {
			if in.Pods[i].UID == uid {
				in.Confirmed[uid], in.Pods[i].Terminating = true, true
			}
		}
	}
	if len(in.Confirmed) == 0 || len(in.Confirmed) == len(in.Pods) {
		t.Fatalf("it asks for %d of %d", len(in.Confirmed), len(in.Pods))
	}
	if plan = decideProbe(in); plan.Status.Phase != v1alpha1.CheckRunning || len(plan.Confirm) == 0 {
		t.Errorf("it is %s, and asks for %v", plan.Status.Phase, plan.Confirm)
	}
}

// TestProbeOfNodeThatComesBack: results of a pod from before its node was lost are forgotten.
func TestProbeOfNodeThatComesBack(t *testing.T) {
	in := badPods(1)
	in.Pods[0].Ready, in.Pods[0].Lost = false, true
	plan := decideProbe(in)
	in.Streaks, in.Now = plan.Streaks, in.Now.Add(time.Minute)
	in.Pods[0].Ready, in.Pods[0].Lost = true, false
	if plan = decideProbe(in); plan.Status.Phase != v1alpha1.CheckRunning || len(plan.Confirm) != 0 || len(plan.Call) != 1 {
		t.Errorf("it is %s, asks for %v, and calls %v", plan.Status.Phase, plan.Confirm, plan.Call)
	}
}

// TestProbeTakesResults: a result counts once, and only for a pod that exists.
func TestProbeTakesResults(t *testing.T) {
	in := probeInput{
		Now: testNow, Check: probeCheck(probeParams{Interval: time.Second, Successes: 2, Failures: 1}),
		Status:  v1alpha1.CheckStatus{Phase: v1alpha1.CheckRunning, StartTime: stamp(testNow), Deadline: stamp(testNow.Add(time.Hour))},
		Pods:    []workload.Pod{{Name: "a", UID: "a", Ready: true}},
		Results: map[types.UID]probeResult{"a": {Outcome: probeGood, Began: testNow}, "gone": {Outcome: probeBad, Began: testNow}},
	}
	plan := decideProbe(in)
	if plan.Status.Phase != v1alpha1.CheckRunning || len(plan.Streaks) != 1 || plan.Streaks["a"].Good != 1 || len(in.Streaks) != 0 {
		t.Errorf("it is %s, with %+v", plan.Status.Phase, plan.Streaks)
	}
	in.Streaks, in.Results = plan.Streaks, nil
	if again := decideProbe(in); again.Streaks["a"].Good != 1 {
		t.Errorf("asked again it has %+v", again.Streaks)
	}
}

// TestProbePassedAndGone: a pod that passed counts when it no longer exists.
func TestProbePassedAndGone(t *testing.T) {
	in := badPods(2)
	for i, pod := range in.Pods {
		in.Streaks[pod.UID] = probeStreak{}.add(in.Check, probeResult{Outcome: probeGood, Began: testNow}, &in.Pods[i])
	}
	in.Pods = in.Pods[:1]
	if s := decideProbe(in).Status; s.Phase != v1alpha1.CheckPassed || s.Message != "2 pods answered well 1 times in a row" {
		t.Errorf("it is %s: %s", s.Phase, s.Message)
	}
}

// TestProbeOfService: a Service is called for the batch, which fails as a whole, while a pod
// of the batch exists.
func TestProbeOfService(t *testing.T) {
	good := probeResult{Outcome: probeGood, Message: "it was answered 200"}
	bad := probeResult{Outcome: probeBad, Reason: "HTTP503", Message: "it was answered 503"}
	unanswered := probeResult{Outcome: probeUnanswered, Reason: "Timeout", Message: "no answer"}
	absent := probeResult{Reason: "NotFound", Message: "there is no such Service"}
	for name, test := range map[string]struct {
		results []probeResult
		now     time.Duration
		change  func(*probeInput)
		phase   v1alpha1.CheckPhase
		reason  string
		message string
		call    int
		confirm bool
	}{
		"at first it is called once": {phase: v1alpha1.CheckRunning, call: 1},
		"it passes": {
			results: []probeResult{good, good},
			phase:   v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed, message: "Service web answered well 2 times in a row",
		},
		"it fails": {
			results: []probeResult{bad, bad},
			phase:   v1alpha1.CheckFailed, reason: "HTTP503", message: "Service web: it was answered 503, 2 times in a row", confirm: true,
		},
		"no answer": {results: []probeResult{unanswered, unanswered}, phase: v1alpha1.CheckRunning, call: 1},
		"no answer for long": {
			results: []probeResult{unanswered, unanswered}, now: 2 * time.Minute,
			phase: v1alpha1.CheckFailed, reason: "Timeout", confirm: true,
		},
		"no pod is left": {
			results: []probeResult{bad, bad}, change: func(in *probeInput) { in.Pods[0].Terminating, in.Pods[1].Disrupted = true, true },
			phase: v1alpha1.CheckSkipped, reason: v1alpha1.ReasonNoPods,
		},
		"one pod is left": {
			results: []probeResult{bad, bad}, change: func(in *probeInput) { in.Pods[0].Terminating = true },
			phase: v1alpha1.CheckFailed, reason: "HTTP503", confirm: true,
		},
		"absent": {results: []probeResult{absent}, now: 20 * time.Second, phase: v1alpha1.CheckRunning, call: 1},
		"absent until the deadline": {
			results: []probeResult{absent}, now: time.Hour,
			phase: v1alpha1.CheckError, reason: v1alpha1.ReasonNotMeasured,
			message: "until the deadline Service web has not passed: there is no such Service",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := badPods(2)
			in.Check = probeCheck(probeParams{Service: "web", Interval: time.Second, Successes: 2, Failures: 2})
			in.Streaks, in.Began = map[types.UID]probeStreak{}, in.Now
			for _, r := range test.results {
				r.Began, r.Ended = in.Now, in.Now
				in.Streaks[serviceUID] = in.Streaks[serviceUID].add(in.Check, r, &workload.Pod{Ready: true})
			}
			in.Now = in.Now.Add(max(test.now, time.Second))
			if test.change != nil {
				test.change(&in)
			}
			plan := decideProbe(in)
			if (len(plan.Confirm) > 0) != test.confirm {
				t.Errorf("it asks for %v", plan.Confirm)
			}
			plan = confirmAll(t, in, plan)
			s := plan.Status
			if s.Phase != test.phase || s.Reason != test.reason || !strings.Contains(s.Message, test.message) ||
				len(plan.Call) != test.call || len(s.FailedPods) > 0 || s.FailedCount > 0 {
				t.Errorf("got %s %q of %v, calls %v: %s", s.Phase, s.Reason, s.FailedPods, plan.Call, s.Message)
			}
		})
	}
}
