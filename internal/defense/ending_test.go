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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/server"
)

// endCalls returns the calls that end something.
func endCalls(journal []string) (calls []string) {
	for _, call := range journal {
		if strings.HasPrefix(call, "Finish") || strings.HasPrefix(call, "End") {
			calls = append(calls, call)
		}
	}
	return calls
}

// TestEndWithoutSuccess: the entries of a release that ends without Success are ended like that, once, before the
// order; a release that is only suspended or stuck ends none yet.
func TestEndWithoutSuccess(t *testing.T) {
	rolledBack := func(d *defended) {
		q := rollback.Quarantine{Reasons: map[string]rollback.QuarantineReason{}}
		q = q.With(versionA, rollback.QuarantineReason{Cause: v1alpha1.ReasonNeverStarted, Release: 1, To: versionB, Pod: "sleep-0",
			Reason: "ImagePullBackOff", Message: "not found"})
		q.Annotate(d.in.Workload.Annotations)
		d.Release(2, versionB)
	}
	for name, test := range map[string]struct {
		world   func(*defended)
		verdict map[string]string
		answer  map[string]server.AnswerKind
		then    func(*defended)
		want    []string
		end     v1alpha1.FinishState
		why     string
		within  time.Duration // of its end
	}{
		"it succeeded": {want: []string{"Finish 1", "Finish order", "End order"}, end: v1alpha1.FinishSuccess,
			why: "the release succeeded: 1 pods passed"},
		"suspended, and not ended yet": {verdict: map[string]string{"POST 1": "fail"}, want: []string{"Finish 1"},
			why: "the release failed: pod sleep-0: fail: the server says fail"},
		"suspended, then replaced": {verdict: map[string]string{"POST 1": "fail"}, then: func(d *defended) { d.Release(2, versionB) },
			end:  v1alpha1.FinishCancel,
			want: []string{"Finish 1", "Finish order without success", "End order"},
			why:  "the release failed: pod sleep-0: fail: the server says fail"},
		"its order failed, then replaced": {verdict: map[string]string{"PRE order": "fail"}, then: func(d *defended) { d.Release(2, versionB) },
			end:  v1alpha1.FinishCancel,
			want: []string{"Finish 1", "Finish order without success", "End order"},
			why:  "the release failed: the PRE check of the order failed: fail: the server says fail"},
		"rolled back": {verdict: map[string]string{"POST 1": ""}, then: rolledBack, end: v1alpha1.FinishRollback,
			want: []string{"Finish 1", "Finish order without success", "End order"},
			why:  "the release was rolled back to version " + versionB + ": NeverStarted: pod sleep-0"},
		"replaced": {verdict: map[string]string{"POST 1": ""}, then: func(d *defended) { d.Release(2, versionB) }, end: v1alpha1.FinishCancel,
			want: []string{"Finish 1", "Finish order without success", "End order"},
			why:  "the release was canceled: A newer release or a rollback replaced this release"},
		"deleted": {verdict: map[string]string{"POST 1": ""}, then: func(d *defended) { d.in.Workload.Deleting = true },
			end:  v1alpha1.FinishCancel,
			want: []string{"Finish 1", "Finish order without success", "End order"}, why: "the release was canceled: The workload was deleted"},
		"stuck, then replaced": {world: func(d *defended) {
			d.in.Workload.Rollout.Complete, d.in.Workload.Rollout.Stuck, d.in.Workload.Rollout.Message = false, true, "progress deadline exceeded"
		}, then: func(d *defended) { d.Release(2, versionB) }, end: v1alpha1.FinishCancel,
			want: []string{"Finish 1", "Finish order without success", "End order"},
			why: "the release was canceled: A newer release or a rollback replaced this release: the rollout was stuck: " +
				"progress deadline exceeded"},
		"stuck, and not ended yet": {world: func(d *defended) {
			d.in.Workload.Rollout.Complete, d.in.Workload.Rollout.Stuck, d.in.Workload.Rollout.Message = false, true, "progress deadline exceeded"
		}, want: []string{"Finish 1"}, why: "the release did not end: progress deadline exceeded"},
		"a batch fails its PRE check": {verdict: map[string]string{"PRE 1": "fail"}, want: []string{"Finish 1 without success"},
			why: "the release failed: pod sleep-0: fail: the server says fail"},
		"replaced while a batch is in its PRE check": {verdict: map[string]string{"PRE 1": ""},
			then: func(d *defended) { d.Release(2, versionB) }, end: v1alpha1.FinishCancel,
			want: []string{"Finish order without success", "End order", "Finish 1 without success"},
			why:  "the release was canceled: A newer release or a rollback replaced this release"},
		"its PRE check goes on": {verdict: map[string]string{"PRE order": ""}, then: func(d *defended) { d.Release(2, versionB) },
			end:    v1alpha1.FinishCancel,
			answer: map[string]server.AnswerKind{"Finish order": server.AnswerUnsupported},
			want:   []string{"Finish order without success", "End order"}, within: 31 * time.Second},
		"the entry cannot be ended": {verdict: map[string]string{"POST 1": ""}, then: func(d *defended) { d.Release(2, versionB) },
			end:    v1alpha1.FinishCancel,
			answer: map[string]server.AnswerKind{"Finish order": server.AnswerRetry},
			want:   []string{"Finish 1", "Finish order without success", "End order"}, within: 31 * time.Second},
		"the entry was ended before": {verdict: map[string]string{"POST 1": ""}, then: func(d *defended) { d.Release(2, versionB) },
			end:    v1alpha1.FinishCancel,
			answer: map[string]server.AnswerKind{"Finish order": server.AnswerUnsupported},
			want:   []string{"Finish 1", "Finish order without success", "End order"}, within: 5 * time.Second},
		"a batch cannot be ended": {verdict: map[string]string{"PRE 1": "fail"},
			answer: map[string]server.AnswerKind{"Finish 1": server.AnswerRetry}, want: []string{"Finish 1 without success"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDefended(1)
			d.server.verdict = byCheck(test.verdict)
			d.server.answer = func(call string) *server.Answer {
				if kind, ok := test.answer[call]; ok {
					return &server.Answer{Kind: kind, Message: "no"}
				}
				return nil
			}
			d.Pods(1).Complete()
			if test.world != nil {
				test.world(d)
			}
			d.Run(t, 0)
			begun := d.in.Now
			if test.then != nil {
				test.then(d)
			}
			d.Run(t, test.within)
			if got := slices.Compact(endCalls(d.server.journal)); !cmp.Equal(test.want, got) {
				t.Errorf("-want +got:\n%s", cmp.Diff(test.want, got))
			}
			s := &d.in.Change.Status
			if s.OrderEnd != test.end || test.end != "" && s.OrderStage != v1alpha1.OrderEnded {
				t.Errorf("after %s order %s as %q, want Ended as %q", d.in.Now.Sub(begun), s.OrderStage, s.OrderEnd, test.end)
			}
			if got := server.HowReleaseEnded(s); !strings.HasPrefix(got, test.why) {
				t.Errorf("it ended because %q, want %q", got, test.why)
			}
			// Every end is reported once, or given up.
			d.Run(t, time.Hour)
			before := len(d.server.journal)
			d.Run(t, time.Hour)
			for i := range d.in.Batches {
				if b := &d.in.Batches[i].Status; b.EndDueTimeUnix != 0 && b.Status == v1alpha1.ChangePodExecuteDone {
					t.Errorf("batch %d is still to be ended", i+1)
				}
			}
			if more := d.server.journal[before:]; len(more) > 0 {
				t.Errorf("more calls: %q", more)
			}
		})
	}
}

// TestLeftRelease: nothing is written for a release that left the defense, but its entry is ended once.
func TestLeftRelease(t *testing.T) {
	d := newDefended(1)
	d.server.verdict = byCheck(map[string]string{"POST 1": ""})
	d.Pods(1).Complete()
	d.Run(t, 0)
	s := &d.in.Change.Status
	s.OrderEnd, s.OrderEndDueTimeUnix = v1alpha1.FinishCancel, d.in.Now.Unix()
	var calls []server.Call
	known := server.Calls{Started: d.in.Now}
	for range 3 {
		in := d.orderInput()
		in.Defended, in.Calls = false, known
		plan := server.DecideOrder(in)
		if plan.Status != nil {
			t.Fatalf("written: %+v", plan.Status)
		}
		calls = append(calls, plan.Call)
		known = known.After(plan.Call, server.Answer{Kind: server.AnswerDone}, d.in.Now, 0.5)
	}
	if diff := cmp.Diff([]server.Call{server.CallFinish, server.CallEnd, server.CallEnd}, calls); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestAnswerAfterTheEnd: for a batch that is done and has to be ended, only the answer to its end counts.
func TestAnswerAfterTheEnd(t *testing.T) {
	for call, want := range map[server.Call]int64{server.CallPollPre: testNow.Unix(), server.CallPollPost: testNow.Unix(),
		server.CallStart: testNow.Unix(), server.CallFinish: 0} {
		d := newDefended(1)
		d.server.verdict = byCheck(map[string]string{"PRE 1": ""})
		d.Pods(1).Complete()
		d.Run(t, 0)
		b := &d.in.Batches[0]
		b.Status.Status, b.Status.EndDueTimeUnix = v1alpha1.ChangePodExecuteDone, testNow.Unix()
		if plan := server.AnswerBatch(d.batchInput(0), call, server.Answer{Kind: server.AnswerDone}); plan.Status != nil {
			b.Status = *plan.Status
		}
		if got := b.Status.EndDueTimeUnix; got != want {
			t.Errorf("%s: its end is due at %d, want %d", call, got, want)
		}
	}
}

// TestNoSecondEndOfABatch: the callback address requests the end of a batch whose PRE check fails late, although the
// server may already have its end.
func TestNoSecondEndOfABatch(t *testing.T) {
	d := newDefended(1)
	d.server.verdict = byCheck(map[string]string{"POST 1": ""})
	d.Pods(1).Complete()
	d.Run(t, 0)
	in := d.batchInput(0)
	if !in.Calls.Ended || in.Batch.Status.Status != v1alpha1.ChangePodPostSubmitted {
		t.Fatalf("batch %s, end received: %t", in.Batch.Status.Status, in.Calls.Ended)
	}
	in.Calls = server.Calls{}
	_, status := server.ApplyToBatch(in, server.Delivered{OrderID: in.Batch.Status.OrderID, NodeID: in.Batch.Status.ChangePodID,
		Stage: v1alpha1.StagePre, Verdict: record.VerdictFail, LatePre: true})
	if status == nil || status.Status != v1alpha1.ChangePodExecuteDone || status.EndDueTimeUnix == 0 {
		t.Fatalf("applied: %+v", status)
	}
	in.Batch.Status = *status
	d.Run(t, time.Hour)
	if diff := cmp.Diff([]string{"Finish 1"}, endCalls(d.server.journal)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if due := d.in.Batches[0].Status.EndDueTimeUnix; due != 0 {
		t.Errorf("its end is still due, at %d", due)
	}
}

// TestNextAttemptWaitsShortly: a version that is released again waits only shortly for the end of its former order,
// whose entry cannot be ended during its PRE check.
func TestNextAttemptWaitsShortly(t *testing.T) {
	for name, between := range map[string]time.Duration{"at once": 0, "while the end is tried": 20 * time.Second} {
		t.Run(name, func(t *testing.T) {
			d := newDefended(1)
			d.server.verdict = byCheck(map[string]string{"PRE order": ""})
			d.server.answer = func(call string) *server.Answer {
				if call == "Finish order" {
					return &server.Answer{Kind: server.AnswerUnsupported, Message: "no"}
				}
				return nil
			}
			d.Pods(1).Complete()
			d.Run(t, 0)
			d.Release(2, versionB)
			d.Run(t, between)
			if got := count(d.server.journal, "End order"); got != 0 {
				t.Fatalf("ended %d times: %q", got, d.server.journal)
			}
			d.Release(3, versionA)
			d.in.Change.Spec.Release = 3
			d.Run(t, 5*time.Second)
			if s := &d.in.Change.Status; s.ObservedRelease != 3 || count(d.server.journal, "End order") != 1 {
				t.Errorf("release %d, %s: %q", s.ObservedRelease, s.Status, d.server.journal)
			}
		})
	}
}

// TestOrderIsNotEndedWellWhenItFails: a pod that fails after the end of the order became due delays the end until the
// failure is corrected.
func TestOrderIsNotEndedWellWhenItFails(t *testing.T) {
	d := newDefended(1)
	d.server.answer = func(call string) *server.Answer {
		if call == "Finish order" && d.in.Now.Sub(testNow) < time.Minute {
			return retryAnswer()
		}
		return nil
	}
	d.Pods(1).Complete()
	d.Run(t, 10*time.Second)
	d.Verdict("sleep-0", record.VerdictFail)
	d.Run(t, 0)
	tried := count(d.server.journal, "Finish order")
	d.Run(t, time.Hour)
	if s := &d.in.Change.Status; s.Status != v1alpha1.ChangeWorkloadSuspend || count(d.server.journal, "Finish order") != tried ||
		s.OrderStage != v1alpha1.OrderPostWait {
		t.Fatalf("%s, order %s, ended %d times after %d: %v", s.Status, s.OrderStage, count(d.server.journal, "Finish order"),
			tried, d.server.journal)
	}
	d.Later(time.Minute).Verdict("sleep-0", record.VerdictPass)
	d.Run(t, time.Hour)
	if s := &d.in.Change.Status; s.Status != v1alpha1.ChangeWorkloadSuccess || s.OrderEnd != v1alpha1.FinishSuccess ||
		count(d.server.journal, "Finish order") != tried+1 {
		t.Errorf("%s, order %s: %v", s.Status, s.OrderStage, d.server.journal)
	}
}

func TestHowEnded(t *testing.T) {
	change := &v1alpha1.ChangeWorkload{}
	s := &change.Status
	s.Attempt, s.Status = 1, v1alpha1.ChangeWorkloadSuspend
	set := func(kind, reason, message string) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message})
	}
	set(v1alpha1.ConditionVerified, v1alpha1.ReasonPodFailed, "pod a: fail")
	for reason, want := range map[string]string{
		v1alpha1.ReasonTolerated:      "the release failed: pod a: fail; pod b does not come up",
		v1alpha1.ReasonRecovered:      "the release failed: pod a: fail",
		v1alpha1.ReasonRequestRefused: "the release failed: pod a: fail",
		v1alpha1.ReasonObserving:      "the release failed: pod a: fail; pod b does not come up",
	} {
		set(v1alpha1.ConditionRolledBack, reason, "pod b does not come up")
		if got := server.HowReleaseEnded(s); got != want {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
	}
	batch := &v1alpha1.ChangePod{Spec: v1alpha1.ChangePodSpec{Attempt: 1}}
	batch.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionChecked, Reason: v1alpha1.ReasonReleaseEnded,
		Message: "the release ended"}}
	set(v1alpha1.ConditionRolledBack, v1alpha1.ReasonRecovered, "")
	if got, want := server.HowBatchEnded(change, batch), "the release ended; the release failed: pod a: fail"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if batch.Spec.Attempt = 2; server.HowBatchEnded(change, batch) != "the release ended" {
		t.Errorf("of another attempt: %q", server.HowBatchEnded(change, batch))
	}
}

// TestHowItWasRolledBack: who rolled a release back, in this build and in an earlier one.
func TestHowItWasRolledBack(t *testing.T) {
	for name, c := range map[string]struct {
		status v1alpha1.ChangeWorkloadStatusType
		reason string
		detail string
		want   string
	}{
		"by the operator": {v1alpha1.ChangeWorkloadRollback, v1alpha1.ReasonNeverStarted, "to version b: x",
			"the release was rolled back to version b: x"},
		"by an earlier build": {v1alpha1.ChangeWorkloadRollback, v1alpha1.ReasonNeverStarted, "rolled back to version b; x",
			"the release was rolled back to version b; x"},
		"undone by a user": {v1alpha1.ChangeWorkloadRollback, v1alpha1.ReasonVerificationFailed, "jane released version b again: x",
			"the release was rolled back: jane released version b again: x"},
		"in observe mode": {v1alpha1.ChangeWorkloadRunning, v1alpha1.ReasonObserving, "to version b: x",
			"the release did not end: The rollout is in progress; it would have been rolled back to version b: x"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &v1alpha1.ChangeWorkloadStatus{Status: c.status}
			set := record.ConditionsOfRelease(s, 1, testNow)
			set.Set(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRollingOut, "")
			status := metav1.ConditionFalse
			if c.status == v1alpha1.ChangeWorkloadRollback {
				status = metav1.ConditionTrue
			}
			set.Set(v1alpha1.ConditionRolledBack, status, c.reason, "%s", c.detail)
			if got := server.HowReleaseEnded(s); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
