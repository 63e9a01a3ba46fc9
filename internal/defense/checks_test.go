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
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestChecksOfABatch: a batch is done when all its checks are over, and fails when one of them fails.
func TestChecksOfABatch(t *testing.T) {
	phase := func(name string, p v1alpha1.CheckPhase, pods ...string) v1alpha1.CheckStatus {
		return v1alpha1.CheckStatus{Name: name, Phase: p, Message: "said so", FailedPods: pods}
	}
	type want struct {
		Status  v1alpha1.ChangePodStatusType
		Message string
		Pods    string
		Checks  map[string]v1alpha1.CheckPhase
	}
	type checks = map[string]v1alpha1.CheckPhase
	const pass, none = "a=pass b=pass", "a=none b=none"
	for name, test := range map[string]struct {
		checks       []v1alpha1.CheckStatus
		others       []string
		background   []string
		alone, ended bool
		// late: the time of the POST check is over, and the server did not answer.
		late    bool
		silence bool
		verdict string
		want    want
	}{
		"the server passes, the only check": {verdict: "pass",
			want: want{"ExecuteDone", "PostFinish", pass, checks{record.ServerCheck: v1alpha1.CheckPassed}}},
		"the server passes, another check has not begun": {verdict: "pass", others: []string{"probe"},
			want: want{"PostSubmitted", "PostFinish", pass, checks{record.ServerCheck: v1alpha1.CheckPassed, "probe": v1alpha1.CheckRunning}}},
		"the server passes, another check begins in the background": {verdict: "pass", background: []string{"health"},
			want: want{"ExecuteDone", "PostFinish", pass, checks{record.ServerCheck: v1alpha1.CheckPassed, "health": v1alpha1.CheckWatching}}},
		"without a server, a check begins in the background": {alone: true, background: []string{"health"},
			want: want{"ExecuteDone", "Skipped", none, checks{"health": v1alpha1.CheckWatching}}},
		"without a server, a check passed": {alone: true, others: []string{"probe"},
			checks: []v1alpha1.CheckStatus{phase("probe", v1alpha1.CheckPassed)},
			want:   want{"ExecuteDone", "PostFinish", pass, checks{record.ServerCheck: v1alpha1.CheckSkipped, "probe": v1alpha1.CheckPassed}}},
		"a check that is observed fails": {verdict: "pass",
			checks: []v1alpha1.CheckStatus{{Name: "probe", Phase: v1alpha1.CheckFailed, Mode: v1alpha1.ModeObserve, Background: true}},
			want:   want{"ExecuteDone", "PostFinish", pass, checks{record.ServerCheck: v1alpha1.CheckPassed, "probe": v1alpha1.CheckFailed}}},
		"a check without data fails, as its policy says": {verdict: "pass", others: []string{"probe"},
			checks: []v1alpha1.CheckStatus{{Name: "probe", Phase: v1alpha1.CheckNoData, OnSilence: v1alpha1.SilenceFails}},
			want: want{"ExecuteDone", "PostFinish", "a=fail b=fail",
				checks{record.ServerCheck: v1alpha1.CheckPassed, "probe": v1alpha1.CheckNoData}}},
		"a check without data passes, as its policy says": {verdict: "pass", silence: true, others: []string{"probe"},
			checks: []v1alpha1.CheckStatus{{Name: "probe", Phase: v1alpha1.CheckInconclusive, OnSilence: v1alpha1.SilencePasses}},
			want:   want{"ExecuteDone", "PostFinish", pass, checks{record.ServerCheck: v1alpha1.CheckPassed, "probe": v1alpha1.CheckInconclusive}}},
		"a check in the background could not be made, and its policy fails that": {verdict: "pass",
			checks: []v1alpha1.CheckStatus{{Name: "rule", Phase: v1alpha1.CheckError, Background: true, OnSilence: v1alpha1.SilenceFails}},
			want: want{"ExecuteDone", "PostFinish", "a=fail b=fail",
				checks{record.ServerCheck: v1alpha1.CheckPassed, "rule": v1alpha1.CheckError}}},
		"a check in the background could not be made, and no setting decides": {verdict: "pass",
			checks: []v1alpha1.CheckStatus{{Name: "rule", Phase: v1alpha1.CheckError, Background: true}},
			want:   want{"ExecuteDone", "PostFinish", pass, checks{record.ServerCheck: v1alpha1.CheckPassed, "rule": v1alpha1.CheckError}}},
		"the status names another check": {verdict: "pass", checks: []v1alpha1.CheckStatus{phase("probe", v1alpha1.CheckPending)},
			want: want{"PostSubmitted", "PostFinish", pass, checks{record.ServerCheck: v1alpha1.CheckPassed, "probe": v1alpha1.CheckPending}}},
		"the server passes, another check goes on": {verdict: "pass", others: []string{"probe"},
			checks: []v1alpha1.CheckStatus{phase("probe", v1alpha1.CheckRunning)},
			want:   want{"PostSubmitted", "PostFinish", pass, checks{record.ServerCheck: v1alpha1.CheckPassed, "probe": v1alpha1.CheckRunning}}},
		"both pass": {verdict: "pass", others: []string{"probe"}, checks: []v1alpha1.CheckStatus{phase("probe", v1alpha1.CheckPassed)},
			want: want{"ExecuteDone", "PostFinish", pass, checks{record.ServerCheck: v1alpha1.CheckPassed, "probe": v1alpha1.CheckPassed}}},
		"another check fails one pod": {verdict: "pass", others: []string{"probe"},
			checks: []v1alpha1.CheckStatus{phase("probe", v1alpha1.CheckFailed, "b")},
			want: want{"ExecuteDone", "PostFinish", "a=pass b=fail",
				checks{record.ServerCheck: v1alpha1.CheckPassed, "probe": v1alpha1.CheckFailed}}},
		"another check fails all, a third is given up": {verdict: "pass", others: []string{"probe", "cel"},
			checks: []v1alpha1.CheckStatus{phase("probe", v1alpha1.CheckFailed), phase("cel", v1alpha1.CheckRunning)},
			want: want{"ExecuteDone", "PostFinish", "a=fail b=fail",
				checks{record.ServerCheck: v1alpha1.CheckPassed, "probe": v1alpha1.CheckFailed, "cel": v1alpha1.CheckCanceled}}},
		"the server fails while another check goes on": {verdict: "fail", others: []string{"probe"},
			checks: []v1alpha1.CheckStatus{phase("probe", v1alpha1.CheckRunning)},
			want: want{"ExecuteDone", "PostFinish", "a=fail b=fail",
				checks{record.ServerCheck: v1alpha1.CheckFailed, "probe": v1alpha1.CheckCanceled}}},
		"a check without data passes": {verdict: "pass", others: []string{"probe"},
			checks: []v1alpha1.CheckStatus{phase("probe", v1alpha1.CheckNoData)},
			want:   want{"ExecuteDone", "PostFinish", pass, checks{record.ServerCheck: v1alpha1.CheckPassed, "probe": v1alpha1.CheckNoData}}},
		"a check without data fails where silence does": {verdict: "pass", silence: true, others: []string{"probe"},
			checks: []v1alpha1.CheckStatus{phase("probe", v1alpha1.CheckNoData)},
			want: want{"ExecuteDone", "PostFinish", "a=fail b=fail",
				checks{record.ServerCheck: v1alpha1.CheckPassed, "probe": v1alpha1.CheckNoData}}},
		"the server is silent, and another check passed": {late: true, others: []string{"probe"},
			checks: []v1alpha1.CheckStatus{phase("probe", v1alpha1.CheckPassed)},
			want: want{"ExecuteDone", string(v1alpha1.ChangePodPostTimeout), none,
				checks{record.ServerCheck: v1alpha1.CheckNoData, "probe": v1alpha1.CheckPassed}}},
		"without a server or checks": {alone: true, want: want{"ExecuteDone", "Skipped", none, checks{}}},
		"without a server, a check goes on": {alone: true, others: []string{"probe"},
			checks: []v1alpha1.CheckStatus{phase("probe", v1alpha1.CheckRunning)},
			want:   want{"", "Skipped", none, checks{record.ServerCheck: v1alpha1.CheckSkipped, "probe": v1alpha1.CheckRunning}}},
		"without a server, a check fails": {alone: true, others: []string{"probe"},
			checks: []v1alpha1.CheckStatus{phase("probe", v1alpha1.CheckFailed, "a")},
			want: want{"ExecuteDone", "PostFinish", "a=fail b=none",
				checks{record.ServerCheck: v1alpha1.CheckSkipped, "probe": v1alpha1.CheckFailed}}},
		"the release ended while a check goes on": {alone: true, ended: true, others: []string{"probe"},
			checks: []v1alpha1.CheckStatus{phase("probe", v1alpha1.CheckRunning)},
			want:   want{"ExecuteDone", "Skipped", none, checks{record.ServerCheck: v1alpha1.CheckCanceled, "probe": v1alpha1.CheckCanceled}}},
	} {
		t.Run(name, func(t *testing.T) {
			state := v1alpha1.ChangeWorkloadRunning
			if test.ended {
				state = v1alpha1.ChangeWorkloadCanceled
			}
			change := wrappers.MakeChangeWorkload("ns", "web").Release(1).Attempt(1).State(state).Order("order", "node",
				v1alpha1.OrderPostWait).Obj()
			batch := wrappers.MakeChangePod("ns", "web--x--1").Attempt(1, 1).Pods("a", "b").State(v1alpha1.ChangePodPostSubmitted).Node("batch",
				"order").Obj()
			if test.alone {
				change.Status.OrderStatus, batch.Status.Status = v1alpha1.OrderStatus{}, v1alpha1.ChangePodInit
			}
			batch.Status.Checks = test.checks
			batch.Status.PostSubmitTimeUnix, batch.Status.PostTimeOutThreshold = testNow.Unix(), 60
			if test.verdict != "" {
				batch.Status.PostVerdict = &v1alpha1.CheckVerdict{Verdict: test.verdict, Delivered: test.verdict}
			}
			in := server.BatchInput{Now: testNow, Change: change, Batch: batch, Server: !test.alone, Begin: begin(test.others, test.background),
				Settings: settings.Settings{PreTimeout: time.Minute, PostTimeout: time.Minute, SilenceFails: test.silence}}
			if test.late {
				batch.Status.PostSubmitTimeUnix -= 60
				in.Calls = server.Calls{Ended: true}.After(server.CallPollPost, server.Answer{Kind: server.AnswerRetry}, testNow, 0.5)
			}
			// The decision on the written status changes nothing.
			for range 2 {
				plan := server.DecideBatch(in)
				if plan.Call == server.CallPollPost {
					plan = server.AnswerBatch(in, plan.Call, server.Answer{Kind: server.AnswerDone})
				}
				if plan.Status != nil {
					batch.Status = *plan.Status
				}
			}
			if plan := server.DecideBatch(in); plan.Status != nil {
				t.Errorf("it is not settled, -was +is:\n%s", cmp.Diff(batch.Status, *plan.Status))
			}
			got := want{Status: batch.Status.Status, Message: batch.Status.Message, Checks: checks{}}
			for i, r := range batch.Status.PodResults {
				got.Pods += fmt.Sprintf("%s%s=%s", []string{"", " "}[min(i, 1)], r.Pod, r.Verdict)
			}
			for _, c := range batch.Status.Checks {
				got.Checks[c.Name] = c.Phase
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// begin begins awaited checks, and others in the background.
func begin(waited, background []string) (checks []record.BeginCheck) {
	for _, name := range waited {
		checks = append(checks, record.BeginCheck{Status: v1alpha1.CheckStatus{Name: name}})
	}
	for _, name := range background {
		checks = append(checks, record.BeginCheck{Status: v1alpha1.CheckStatus{Name: name, Background: true}})
	}
	return checks
}

// TestSilenceInBackground: the result of a check in the background without a verdict, after its batch is done. A user
// may have corrected the pods since.
func TestSilenceInBackground(t *testing.T) {
	for name, test := range map[string]struct {
		phase   v1alpha1.CheckPhase
		mode    v1alpha1.PolicyMode
		on      v1alpha1.OnSilence
		silence bool
		// before reports whether the check already had this result.
		before bool
		pods   string
		event  string
	}{
		"its policy fails that": {phase: v1alpha1.CheckError, on: v1alpha1.SilenceFails, pods: "fail",
			event: v1alpha1.EventCheckError},
		"its policy passes that": {phase: v1alpha1.CheckError, on: v1alpha1.SilencePasses, silence: true, pods: "pass",
			event: v1alpha1.EventCheckError},
		"by default": {phase: v1alpha1.CheckError, pods: "pass", event: v1alpha1.EventCheckError},
		"the setting fails that": {phase: v1alpha1.CheckError, silence: true, pods: "fail",
			event: v1alpha1.EventCheckError},
		"it only observes": {phase: v1alpha1.CheckError, mode: v1alpha1.ModeObserve, on: v1alpha1.SilenceFails, pods: "pass",
			event: v1alpha1.EventCheckError},
		"it is inconclusive, and its policy fails that": {phase: v1alpha1.CheckInconclusive, on: v1alpha1.SilenceFails, pods: "fail"},
		"it is inconclusive, by default":                {phase: v1alpha1.CheckInconclusive, pods: "pass"},
		"it was so before":                              {phase: v1alpha1.CheckError, on: v1alpha1.SilenceFails, before: true, pods: "pass"},
		"it goes on":                                    {phase: v1alpha1.CheckRunning, on: v1alpha1.SilenceFails, pods: "pass"},
	} {
		t.Run(name, func(t *testing.T) {
			change := wrappers.MakeChangeWorkload("ns", "web").Release(1).Attempt(1).State(v1alpha1.ChangeWorkloadSuccess).Obj()
			batch := wrappers.MakeChangePod("ns", "web--x--1").Attempt(1, 1).Pods("a").State(v1alpha1.ChangePodExecuteDone).Obj()
			batch.Status.PodResults = []v1alpha1.PodResult{{PodInfo: batch.Spec.PodInfos[0], Verdict: record.VerdictPass}}
			c := v1alpha1.CheckStatus{Name: "ns/p/rule", Type: "cel", Mode: test.mode, Background: true, Phase: v1alpha1.CheckWatching}
			ended := c
			ended.Phase, ended.OnSilence, ended.Message = test.phase, test.on, "no such key"
			batch.Status.Checks = []v1alpha1.CheckStatus{c}
			if test.before {
				batch.Status.Checks = []v1alpha1.CheckStatus{ended}
			}
			plan := server.NoteCheck(server.BatchInput{Now: testNow, Change: change, Batch: batch,
				Settings: settings.Settings{SilenceFails: test.silence}}, ended)
			status := &batch.Status
			if plan.Status != nil {
				status = plan.Status
			}
			var events string
			for _, e := range plan.Events {
				events += e.Reason
			}
			if got := status.PodResults[0].Verdict; got != test.pods || events != test.event {
				t.Errorf("the pod is %s, the events are %q", got, events)
			}
			if test.pods == record.VerdictFail && status.PodResults[0].Message != "ns/p/rule: no such key" {
				t.Errorf("its message is %q", status.PodResults[0].Message)
			}
		})
	}
}

// TestBatchPre: the checks at BatchPost begin, with the policies of that time, when the checks at BatchPre are over,
// and not at all if one of these failed.
func TestBatchPre(t *testing.T) {
	const pre, post, watch = "ns/p/pre", "ns/p/post", "ns/p/watch"
	all := func() []record.BeginCheck {
		return []record.BeginCheck{
			{Due: time.Second, Deadline: time.Minute, Status: v1alpha1.CheckStatus{Name: post, Type: "podHealth"}},
			{Due: time.Second, Deadline: time.Minute, Status: v1alpha1.CheckStatus{Name: watch, Type: "podHealth", Background: true}},
			{Due: time.Second, Deadline: time.Minute, Status: v1alpha1.CheckStatus{Name: pre, Type: "probe", Stage: v1alpha1.StageBatchPre}},
		}
	}
	type phases map[string]v1alpha1.CheckPhase
	for name, test := range map[string]struct {
		// begin changes which checks may begin, at first, and after the first check reached phase.
		begin, later func([]record.BeginCheck) []record.BeginCheck
		phase        v1alpha1.CheckPhase
		first, want  phases
		state        v1alpha1.ChangePodStatusType
		pods         string
	}{
		"it passes": {phase: v1alpha1.CheckPassed,
			first: phases{pre: v1alpha1.CheckRunning, post: v1alpha1.CheckPending, watch: v1alpha1.CheckPending},
			want:  phases{pre: v1alpha1.CheckPassed, post: v1alpha1.CheckRunning, watch: v1alpha1.CheckWatching}, pods: record.VerdictNone},
		"it fails": {phase: v1alpha1.CheckFailed,
			first: phases{pre: v1alpha1.CheckRunning, post: v1alpha1.CheckPending, watch: v1alpha1.CheckPending},
			want:  phases{pre: v1alpha1.CheckFailed, post: v1alpha1.CheckCanceled, watch: v1alpha1.CheckCanceled},
			state: v1alpha1.ChangePodExecuteDone, pods: record.VerdictFail},
		"in the background it holds nothing up": {phase: v1alpha1.CheckFailed,
			begin: func(c []record.BeginCheck) []record.BeginCheck { c[2].Status.Background = true; return c },
			first: phases{pre: v1alpha1.CheckWatching, post: v1alpha1.CheckRunning, watch: v1alpha1.CheckWatching},
			want:  phases{pre: v1alpha1.CheckFailed, post: v1alpha1.CheckCanceled, watch: v1alpha1.CheckWatching},
			state: v1alpha1.ChangePodExecuteDone, pods: record.VerdictFail},
		"the others are gone by then": {phase: v1alpha1.CheckPassed,
			later: func(c []record.BeginCheck) []record.BeginCheck { return c[2:] },
			first: phases{pre: v1alpha1.CheckRunning, post: v1alpha1.CheckPending, watch: v1alpha1.CheckPending},
			want:  phases{pre: v1alpha1.CheckPassed, post: v1alpha1.CheckCanceled, watch: v1alpha1.CheckCanceled},
			state: v1alpha1.ChangePodExecuteDone, pods: record.VerdictPass},
		"only the background waits for it": {phase: v1alpha1.CheckPassed,
			begin: func(c []record.BeginCheck) []record.BeginCheck { return c[1:] },
			first: phases{pre: v1alpha1.CheckRunning, watch: v1alpha1.CheckPending},
			want:  phases{pre: v1alpha1.CheckPassed, watch: v1alpha1.CheckWatching}, state: v1alpha1.ChangePodExecuteDone, pods: record.VerdictPass},
		"only the background waits, and it fails": {phase: v1alpha1.CheckFailed,
			begin: func(c []record.BeginCheck) []record.BeginCheck { return c[1:] },
			first: phases{pre: v1alpha1.CheckRunning, watch: v1alpha1.CheckPending},
			want:  phases{pre: v1alpha1.CheckFailed, watch: v1alpha1.CheckCanceled}, state: v1alpha1.ChangePodExecuteDone, pods: record.VerdictFail},
		"it is waited for no more": {phase: v1alpha1.CheckPassed,
			later: func(c []record.BeginCheck) []record.BeginCheck { c[0].Status.Background = true; return c },
			first: phases{pre: v1alpha1.CheckRunning, post: v1alpha1.CheckPending, watch: v1alpha1.CheckPending},
			want:  phases{pre: v1alpha1.CheckPassed, post: v1alpha1.CheckWatching, watch: v1alpha1.CheckWatching},
			state: v1alpha1.ChangePodExecuteDone, pods: record.VerdictPass},
	} {
		t.Run(name, func(t *testing.T) {
			change := wrappers.MakeChangeWorkload("ns", "web").Release(1).Attempt(1).State(v1alpha1.ChangeWorkloadRunning).Obj()
			batch := wrappers.MakeChangePod("ns", "web--x--1").Attempt(1, 1).Pods("a").State(v1alpha1.ChangePodInit).Obj()
			in := server.BatchInput{Now: testNow, Change: change, Batch: batch, Begin: all()}
			if test.begin != nil {
				in.Begin = test.begin(in.Begin)
			}
			seen := func() phases {
				is := phases{}
				for _, c := range batch.Status.Checks {
					if c.Type != "" {
						is[c.Name] = c.Phase
					}
					if pending := c.Phase == v1alpha1.CheckPending; pending == (c.StartTime != nil) && c.Type != "" && c.Phase != v1alpha1.CheckCanceled {
						t.Errorf("%s is %s, and began at %s", c.Name, c.Phase, c.StartTime)
					}
				}
				return is
			}
			settle := func(plan server.BatchPlan) {
				for range 3 {
					if plan.Status != nil {
						batch.Status = *plan.Status
					}
					plan = server.DecideBatch(in)
				}
			}
			settle(server.DecideBatch(in))
			if diff := cmp.Diff(test.first, seen()); diff != "" {
				t.Errorf("at first (-want +got):\n%s", diff)
			}
			if test.later != nil {
				in.Begin = test.later(in.Begin)
			}
			in.Now = testNow.Add(10 * time.Second)
			c := *record.FindCheck(batch.Status.Checks, pre)
			c.Phase = test.phase
			settle(server.NoteCheck(in, c))
			if diff := cmp.Diff(test.want, seen()); diff != "" {
				t.Errorf("then (-want +got):\n%s", diff)
			}
			if s := &batch.Status; s.Status != test.state || s.PodResults[0].Verdict != test.pods {
				t.Errorf("the batch is %q, %+v", s.Status, s.PodResults)
			}
		})
	}
}
