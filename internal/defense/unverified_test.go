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
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
)

// TestPassedUnverified: a release whose pods passed without a verdict of the server reports it, also after the server
// is back and the pods are gone, until the version is released again.
func TestPassedUnverified(t *testing.T) {
	d := newDefended(2)
	down := true
	d.server.answer = func(string) *server.Answer {
		if down {
			return retryAnswer()
		}
		return nil
	}
	says := func(count int32, words ...string) {
		t.Helper()
		s := &d.in.Change.Status
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionVerified)
		if c == nil || c.Status != "True" || c.Reason != v1alpha1.ReasonPassedUnverified || s.UnverifiedCount != count {
			t.Fatalf("%d pods are unverified, %+v; want %d", s.UnverifiedCount, c, count)
		}
		for _, w := range words {
			if !strings.Contains(c.Message, w) {
				t.Errorf("the message %q does not say %q", c.Message, w)
			}
		}
	}
	d.Pods(2).Complete()
	d.Run(t, time.Hour)
	says(2, "2 of 2 pods", "without a verdict of AlterShield Server")
	if got := d.Events("ReleaseSucceeded"); len(got) != 1 || !strings.Contains(got[0], "2 without a verdict of AlterShield Server") {
		t.Errorf("events %v", got)
	}
	if c := meta.FindStatusCondition(d.in.Change.Status.Conditions, v1alpha1.ConditionServer); c == nil || c.Status != "False" ||
		c.Reason != v1alpha1.ReasonNoVerdict {
		t.Errorf("the wait for the server ended as %+v", c)
	}

	// The server is back, and a later pod is verified.
	down = false
	d.stored.Replicas = 3
	d.Pods(1)
	d.Run(t, time.Hour)
	says(2, "2 of 3 pods")

	// The unverified pods and their batches are gone.
	d.stored.Replicas = 1
	d.in.Pods = d.in.Pods[2:]
	d.Run(t, time.Hour)
	if f := d.in.Change.Status.Folded; f == nil || f.Numbers != "1-2" || f.UnverifiedCount != 2 || len(d.in.Batches) != 1 {
		t.Fatalf("folded %+v, %d batches", f, len(d.in.Batches))
	}
	says(2, "2 of 3 pods")

	// The version is released again, and verified.
	d.in.Change.Spec.Release = 3
	d.Release(3, versionA)
	d.Run(t, time.Hour)
	s := &d.in.Change.Status
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionVerified); c.Reason != v1alpha1.ReasonAllPassed ||
		s.UnverifiedCount != 0 || s.Attempt != 2 {
		t.Errorf("attempt %d has %d unverified pods, %+v", s.Attempt, s.UnverifiedCount, c)
	}
}

// TestVerifiedByHand: a verdict of a user is a verdict.
func TestVerifiedByHand(t *testing.T) {
	d := newDefended(2)
	d.server.answer = func(string) *server.Answer { return retryAnswer() }
	d.Pods(2).Complete()
	d.Run(t, time.Hour)
	d.Verdict(d.in.Batches[0].Spec.PodInfos[0].Pod, record.VerdictPass)
	d.Run(t, time.Hour)
	if s := &d.in.Change.Status; s.UnverifiedCount != 1 {
		t.Errorf("%d pods are unverified, want 1", s.UnverifiedCount)
	}
}

// TestSuspendedGoesOn: a suspended release reports that its other pods are still verified.
func TestSuspendedGoesOn(t *testing.T) {
	d := newDefended(2)
	d.server.verdict = func(check string) string {
		switch check {
		case "POST 1":
			return "fail"
		case "PRE 2":
			return ""
		}
		return record.VerdictPass
	}
	d.Pods(2).Complete()
	d.Run(t, 0)
	message := func() string { return record.ConditionMessage(&d.in.Change.Status, v1alpha1.ConditionVerified) }
	const goesOn = "the verification of other pods continues"
	if d.in.Change.Status.Status != v1alpha1.ChangeWorkloadSuspend || !strings.Contains(message(), goesOn) {
		t.Errorf("%s: %s", d.in.Change.Status.Status, message())
	}
	d.Run(t, time.Hour)
	if strings.Contains(message(), goesOn) || !slices.Equal(d.numbers(), []int32{1, 2}) {
		t.Errorf("the verification has stopped: %s", message())
	}
}

// TestPostIsAskedLater: a POST check that had no turn is requested when the server answers again, and its failure
// counts like a late verdict.
func TestPostIsAskedLater(t *testing.T) {
	lost := func(check string) string {
		if strings.HasPrefix(check, "PRE 1") {
			return ""
		}
		return record.VerdictPass
	}
	away := func(from, until time.Duration) func(*defended) {
		return func(d *defended) {
			d.server.answer = func(string) *server.Answer {
				if at := d.in.Now.Sub(testNow); from <= at && at < until {
					return retryAnswer()
				}
				return nil
			}
		}
	}
	for name, test := range map[string]struct {
		world  func(*defended)
		lost   func(string) string
		fails  string
		want   v1alpha1.ChangeWorkloadStatusType
		finish string // the call that requests it
		times  int
	}{
		"a batch whose PRE verdict was lost, and fails":  {nil, lost, "POST 1", v1alpha1.ChangeWorkloadSuspend, "Finish 1", 1},
		"a batch whose PRE verdict was lost, and passes": {nil, lost, "", v1alpha1.ChangeWorkloadSuccess, "Finish 1", 1},
		"a batch whose server was away": {
			away(time.Second, 10*time.Minute), lost, "POST 1", v1alpha1.ChangeWorkloadSuspend, "Finish 1", 40,
		},
		"where silence fails it is an end without success": {
			func(d *defended) { d.in.Settings.SilenceFails = true }, lost, "", v1alpha1.ChangeWorkloadSuspend, "Finish 1 without success", 1,
		},
		"an order that was accepted after the Success, and fails": {away(0, 10*time.Minute), nil, "POST order", v1alpha1.ChangeWorkloadSuspend,
			"Finish order", 1},
		"an order that was accepted after the Success, and passes": {away(0, 10*time.Minute), nil, "", v1alpha1.ChangeWorkloadSuccess,
			"Finish order", 1},
		"an order that is never accepted": {away(0, 24*time.Hour), nil, "", v1alpha1.ChangeWorkloadSuccess,
			"Submit order", 80},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDefended(1)
			if test.world != nil {
				test.world(d)
			}
			d.server.verdict = func(check string) string {
				switch {
				case check == test.fails:
					return "fail"
				case test.lost != nil:
					return test.lost(check)
				}
				return record.VerdictPass
			}
			d.Pods(1).Complete()
			d.Run(t, 2*time.Hour)
			if s := &d.in.Change.Status; s.Status != test.want {
				t.Errorf("status %s, want %s\n%v", s.Status, test.want, d.server.journal)
			}
			if n := count(d.server.journal, test.finish); n < 1 || n > test.times {
				t.Errorf("%q was called %d times, want up to %d\n%v", test.finish, n, test.times, d.server.journal)
			}
			before := len(d.server.journal)
			if d.Run(t, 24*time.Hour); len(d.server.journal) > before {
				t.Errorf("calls go on: %v", d.server.journal[before:])
			}
			if b := &d.in.Batches[0].Status; b.EndDueTimeUnix != 0 {
				t.Error("the batch is still to be ended")
			}
		})
	}
}

// TestNotFoldedWhilePostIsDue: a batch whose POST check is still to be requested stays.
func TestNotFoldedWhilePostIsDue(t *testing.T) {
	d := newDefended(2)
	d.server.verdict = func(check string) string {
		if check == "PRE 1" {
			return ""
		}
		return record.VerdictPass
	}
	d.server.answer = func(call string) *server.Answer {
		if call == "Finish 1" && d.in.Now.Sub(testNow) < 20*time.Minute {
			return retryAnswer()
		}
		return nil
	}
	d.Pods(2).Complete()
	d.Run(t, 5*time.Minute)
	d.stored.Replicas, d.in.Pods = 1, d.in.Pods[1:]
	d.Run(t, 10*time.Minute)
	if got := d.numbers(); !slices.Equal(got, []int32{1, 2}) {
		t.Fatalf("batches %v", got)
	}
	d.Run(t, time.Hour)
	if got := d.numbers(); !slices.Equal(got, []int32{2}) {
		t.Errorf("batches %v", got)
	}
}

// TestLostEntry: an entry that the server does not know after half of the time is started once more, and has the rest
// of the time.
func TestLostEntry(t *testing.T) {
	for _, about := range []string{"order", "1"} {
		for name, test := range map[string]struct {
			lost   int // its lost entries
			early  bool
			answer server.AnswerKind
			want   v1alpha1.ChangeWorkloadStatusType
			starts int
		}{
			"once, and its verdict is early":   {1, true, server.AnswerDone, v1alpha1.ChangeWorkloadSuccess, 2},
			"once":                             {1, false, server.AnswerDone, v1alpha1.ChangeWorkloadSuccess, 2},
			"twice":                            {2, false, server.AnswerDone, v1alpha1.ChangeWorkloadSuspend, 2},
			"and the server does not answer":   {1, false, server.AnswerRetry, v1alpha1.ChangeWorkloadSuspend, 9},
			"and the server refuses the start": {1, false, server.AnswerRefused, v1alpha1.ChangeWorkloadSuspend, 2},

			"for good, and the server does not answer": {99, false, server.AnswerRetry, v1alpha1.ChangeWorkloadSuspend, 9},
			"for good, and the platform is unknown":    {99, false, server.AnswerDenied, v1alpha1.ChangeWorkloadSuspend, 4},
			"for good, and the step is unknown":        {99, false, server.AnswerIllegal, v1alpha1.ChangeWorkloadSuspend, 4},
		} {
			t.Run(about+" "+name, func(t *testing.T) {
				d := newDefended(1)
				d.in.Settings.SilenceFails, d.server.early = !test.early, test.early
				start := "Start " + about
				d.server.verdict = func(check string) string {
					if check == "PRE "+about && count(d.server.journal, start) <= test.lost {
						return ""
					}
					return record.VerdictPass
				}
				d.server.answer = func(call string) *server.Answer {
					switch n := count(d.server.journal, start); {
					case call == "PollPre "+about && n <= test.lost:
						return &server.Answer{Kind: server.AnswerUnsupported}
					case call == start && n > 1 && test.answer != server.AnswerDone:
						return &server.Answer{Kind: test.answer}
					}
					return nil
				}
				d.Pods(1).Complete()
				d.Run(t, 10*time.Minute)
				s := &d.in.Change.Status
				if n := count(d.server.journal, start); s.Status != test.want || n < 2 || n > test.starts {
					t.Errorf("status %s after %d starts, want %s and %d\n%v", s.Status, n, test.want, test.starts, d.server.journal)
				}
				// The batch continues at the entry that the server knows.
				known := map[string]string{"order": s.OrderNodeID, "1": d.in.Batches[0].Status.ChangePodID}[about]
				if last := slices.Index(d.server.nodes, about) + 1; test.lost == 1 && test.answer == server.AnswerDone &&
					known != fmt.Sprintf("node-%d", last) {
					t.Errorf("it goes on at %s, want node-%d of %v", known, last, d.server.nodes)
				}
				if took := time.Unix(s.UpdateTimeUnix, 0).Sub(testNow); took > 125*time.Second {
					t.Errorf("it took %s, longer than the time of the check", took)
				}
			})
		}
	}
}

// TestLostEntryOfANewProcess: a process that begins during a check polls it at once. If the server does not know the
// entry, it is started again after half of the time, not before.
func TestLostEntryOfANewProcess(t *testing.T) {
	for _, about := range []string{"order", "1"} {
		for name, second := range map[string]server.AnswerKind{"started again": server.AnswerDone,
			"and the server does not answer": server.AnswerRetry} {
			t.Run(about+" "+name, func(t *testing.T) {
				d := newDefended(1)
				d.server.verdict = byCheck(map[string]string{"PRE " + about: ""})
				d.server.answer = func(call string) *server.Answer {
					if n := count(d.server.journal, "Start "+about); call == "PollPre "+about && n <= 1 {
						return &server.Answer{Kind: server.AnswerUnsupported}
					} else if call == "Start "+about && n > 1 && second != server.AnswerDone {
						return &server.Answer{Kind: second}
					}
					return nil
				}
				d.Pods(1).Complete()
				d.Run(t, 0)
				d.Later(5 * time.Second)
				d.orderCalls = server.Calls{Started: d.in.Now}
				for i := range d.in.Batches {
					d.batchCalls[d.in.Batches[i].Name] = server.Calls{Started: d.in.Now}
				}
				d.Run(t, 0)
				if polls, starts := count(d.server.journal, "PollPre "+about), count(d.server.journal, "Start "+about); polls != 1 || starts != 1 {
					t.Fatalf("%d polls and %d starts at once: %v", polls, starts, d.server.journal)
				}
				d.Run(t, d.in.Settings.PreTimeout/2)
				if starts := count(d.server.journal, "Start "+about); starts < 2 {
					t.Errorf("%d starts after half of the time: %v", starts, d.server.journal)
				}
			})
		}
	}
}

// TestSecondStartAnsweredLate: the PRE verdict on the first entry of a batch arrives during the second start. The batch
// continues at the second entry, whose PRE check has just begun.
func TestSecondStartAnsweredLate(t *testing.T) {
	for _, status := range []v1alpha1.ChangePodStatusType{v1alpha1.ChangePodPostSubmitted, v1alpha1.ChangePodPostWait} {
		for name, test := range map[string]struct {
			answer server.Answer
			entry  string
			status v1alpha1.ChangePodStatusType
		}{
			"another node":     {server.Answer{Kind: server.AnswerDone, NodeID: "second"}, "second", v1alpha1.ChangePodPostSubmitted},
			"nothing to check": {server.Answer{Kind: server.AnswerDone, SkipCheck: true}, "", v1alpha1.ChangePodExecuteDone},
			"none":             {server.Answer{Kind: server.AnswerRetry}, "first", status},
		} {
			t.Run(string(status)+" "+name, func(t *testing.T) {
				d := newDefended(1)
				d.server.verdict = byCheck(map[string]string{"PRE 1": ""})
				d.Pods(1).Complete()
				d.Run(t, 0)
				s := &d.in.Batches[0].Status
				s.ChangePodID, s.Status, s.PostSubmitTimeUnix = "first", status, d.in.Now.Unix()
				s.PreVerdict = &v1alpha1.CheckVerdict{Verdict: record.VerdictPass}
				submitted := s.PreSubmitTimeUnix
				d.Later(5 * time.Second)
				if plan := server.AnswerBatch(d.batchInput(0), server.CallStart, test.answer); plan.Status != nil {
					t.Error("the answer to another replica's first start is taken for a second entry")
				}
				d.Later(time.Duration(s.PreTimeoutThreshold) * time.Second / 2)
				if plan := server.AnswerBatch(d.batchInput(0), server.CallStart, test.answer); plan.Status != nil {
					*s = *plan.Status
				}
				if s.ChangePodID != test.entry || s.Status != test.status || s.PreSubmitTimeUnix != submitted {
					t.Errorf("%s at entry %q, PRE submitted at %d; want %s at %q, %d",
						s.Status, s.ChangePodID, s.PreSubmitTimeUnix, test.status, test.entry, submitted)
				}
				if test.entry == "second" && s.PostSubmitTimeUnix != d.in.Now.Unix() {
					t.Error("its POST check counts from before its start")
				}
			})
		}
	}
}

// TestSecondStartOfAnOrderAnsweredLate: the end that an order waits to report is the end of its second entry then.
func TestSecondStartOfAnOrderAnsweredLate(t *testing.T) {
	d := newDefended(1)
	d.server.verdict = byCheck(map[string]string{"PRE order": ""})
	d.Pods(1).Complete()
	d.Run(t, 0)
	s := &d.in.Change.Status
	s.OrderNodeID, s.OrderStage, s.OrderPreVerdict = "first", v1alpha1.OrderPostWait, &v1alpha1.CheckVerdict{Verdict: record.VerdictPass}
	submitted := s.OrderPreSubmitTimeUnix
	d.Later(d.in.Settings.PreTimeout / 2)
	plan := server.AnswerOrder(d.orderInput(), server.CallStart, server.Answer{Kind: server.AnswerDone, NodeID: "second"})
	if plan.Status == nil || plan.Status.OrderNodeID != "second" || plan.Status.OrderStage != v1alpha1.OrderPostWait ||
		plan.Status.OrderPreSubmitTimeUnix != submitted {
		t.Errorf("%+v", plan.Status)
	}
}

// TestOtherReplicaStarts: two replicas start a batch and an order. The answer that is stored first stands, because its
// entry may have had a verdict.
func TestOtherReplicaStarts(t *testing.T) {
	d := newDefended(1)
	d.server.verdict = byCheck(map[string]string{"PRE 1": ""})
	d.Pods(1).Complete()
	d.Run(t, 0)
	d.Later(time.Second)
	for kind, answer := range map[string]server.Answer{"another node": {Kind: server.AnswerDone, NodeID: "other"},
		"refused": {Kind: server.AnswerRefused}} {
		if plan := server.AnswerBatch(d.batchInput(0), server.CallStart, answer); plan.Status != nil {
			t.Errorf("%s: the batch is %s, entry %q", kind, plan.Status.Status, plan.Status.ChangePodID)
		}
		d.in.Change.Status.OrderStage = v1alpha1.OrderPreSubmitted
		d.in.Change.Status.OrderPreSubmitTimeUnix = d.in.Now.Unix()
		if plan := server.AnswerOrder(d.orderInput(), server.CallStart, answer); plan.Status != nil &&
			(plan.Status.OrderNodeID == "other" || plan.Status.OrderStage != v1alpha1.OrderPreSubmitted) {
			t.Errorf("%s: the order is %s, entry %q", kind, plan.Status.OrderStage, plan.Status.OrderNodeID)
		}
	}
}

// TestVerdictBeforeSecondStart: a failing verdict on an entry without a batch does not suspend the release while the
// second start of a batch may be in progress.
func TestVerdictBeforeSecondStart(t *testing.T) {
	for name, test := range map[string]struct {
		again bool
		want  v1alpha1.ChangeWorkloadStatusType
	}{
		"the answer to the second start may come":    {false, v1alpha1.ChangeWorkloadRunning},
		"the answer to the second start was written": {true, v1alpha1.ChangeWorkloadSuspend},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDefended(1)
			d.server.verdict = byCheck(map[string]string{"PRE 1": ""})
			d.Pods(1).Complete()
			d.Run(t, 0)
			if test.again {
				d.Later(time.Duration(d.in.Batches[0].Status.PreTimeoutThreshold) * time.Second / 2)
				d.in.Batches[0].Status = *server.AnswerBatch(d.batchInput(0), server.CallStart,
					server.Answer{Kind: server.AnswerDone, NodeID: "second"}).Status
			}
			v := server.Delivered{OrderID: d.in.Change.Status.OrderID, NodeID: "other", Stage: v1alpha1.StagePre, Verdict: record.VerdictFail}
			_, status := server.ApplyToRelease(d.orderInput(), v)
			d.in.Change.Status = *status
			d.Run(t, 0)
			if got := d.in.Change.Status.Status; got != test.want {
				t.Errorf("status %s, want %s", got, test.want)
			}
		})
	}
}

// TestEndOfALostEntry: the server no longer knows the entry of a batch whose PRE check had no verdict. The end of the
// entry is given up, and the batch is folded.
func TestEndOfALostEntry(t *testing.T) {
	d := newDefended(2)
	d.server.verdict = byCheck(map[string]string{"PRE 1": ""})
	d.server.answer = func(call string) *server.Answer {
		if call == "Finish 1" {
			return &server.Answer{Kind: server.AnswerUnsupported}
		}
		return nil
	}
	d.Pods(2).Complete()
	d.Run(t, 5*time.Minute)
	if s := &d.in.Batches[0].Status; s.EndDueTimeUnix == 0 {
		t.Fatalf("%s %s owes no end\n%v", s.Status, s.Message, d.server.journal)
	}
	d.stored.Replicas, d.in.Pods = 1, d.in.Pods[1:]
	d.Run(t, 4*time.Minute)
	if got := d.numbers(); !slices.Equal(got, []int32{2}) {
		t.Errorf("batches %v, end due at %d\n%v", got, d.in.Batches[0].Status.EndDueTimeUnix, d.server.journal)
	}
}

// TestOrderIsAskedForFromSuccess: a correction by hand after Success does not restart the hour in which the order is
// requested.
func TestOrderIsAskedForFromSuccess(t *testing.T) {
	for name, test := range map[string]struct {
		older, fails bool
		asks         bool
	}{
		"the time of the success is known":              {false, false, false},
		"a record of an older build":                    {true, false, true},
		"a record of an older build, and silence fails": {true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDefended(2)
			d.server.answer = func(string) *server.Answer { return retryAnswer() }
			d.Pods(2).Complete()
			d.Run(t, 40*time.Minute)
			d.Verdict("sleep-0", record.VerdictFail)
			d.Run(t, time.Minute)
			d.Verdict("sleep-0", record.VerdictPass)
			d.Run(t, time.Minute)
			s := &d.in.Change.Status
			if s.Status != v1alpha1.ChangeWorkloadSuccess || s.UnverifiedCount != 1 {
				t.Fatalf("%s, %d pods are unverified", s.Status, s.UnverifiedCount)
			}
			if test.older {
				s.SuccessTimeUnix = 0
			}
			d.in.Settings.SilenceFails = test.fails
			d.Run(t, 30*time.Minute)
			before := len(d.server.journal)
			if d.Run(t, 20*time.Minute); len(d.server.journal) > before != test.asks {
				t.Errorf("asked %d times, want any: %t", len(d.server.journal)-before, test.asks)
			}
		})
	}
}
