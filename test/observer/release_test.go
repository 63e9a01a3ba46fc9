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

package observer

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// makeRelease returns a release of Deployment d at attempt 1 of release 1.
func makeRelease(status v1alpha1.ChangeWorkloadStatusType, change ...func(*v1alpha1.ChangeWorkload)) *v1alpha1.ChangeWorkload {
	return wrappers.MakeChangeWorkload("ns", "web--x--v1").UID("c").Of(makeDeployment()).Version("v1").
		State(status).Attempt(1).Order("order", "", v1alpha1.OrderNone).With(change...).Obj()
}

// makeBatch returns batch 1 of that release, with pod p1.
func makeBatch(change ...func(*v1alpha1.ChangePod)) *v1alpha1.ChangePod {
	return wrappers.MakeChangePod("ns", "web--x--v1--x--1").UID("b1").Of(makeRelease(running)).Pods("p1").
		Node("node", "order").With(change...).Obj()
}

func attempt(n int32, release int64) func(*v1alpha1.ChangeWorkload) {
	return func(c *v1alpha1.ChangeWorkload) {
		c.Status.Attempt, c.Status.ObservedRelease, c.Spec.Release = n, release, release
	}
}

func verdict(delivered string) *v1alpha1.CheckVerdict {
	return &v1alpha1.CheckVerdict{NodeID: "node", Delivered: delivered, Verdict: delivered}
}

func corrected(delivered string) *v1alpha1.CheckVerdict {
	return &v1alpha1.CheckVerdict{NodeID: "node", Delivered: delivered, Verdict: "pass"}
}

func done(results ...string) func(*v1alpha1.ChangePod) {
	return func(b *v1alpha1.ChangePod) {
		b.Status.Status = v1alpha1.ChangePodExecuteDone
		b.Status.PodResults = nil
		for _, r := range results {
			b.Status.PodResults = append(b.Status.PodResults, wrappers.PodResult("p1", r))
		}
	}
}

func post(v *v1alpha1.CheckVerdict) func(*v1alpha1.ChangePod) {
	return func(b *v1alpha1.ChangePod) { b.Status.PostVerdict = v }
}

func rolledBack(c *v1alpha1.ChangeWorkload) {
	c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRolledBack, Status: metav1.ConditionTrue}}
}

func TestCheckRelease(t *testing.T) {
	pre := func(v *v1alpha1.CheckVerdict) func(*v1alpha1.ChangeWorkload) {
		return func(c *v1alpha1.ChangeWorkload) { c.Status.OrderPreVerdict = v }
	}
	batches := func(n int32) func(*v1alpha1.ChangeWorkload) {
		return func(c *v1alpha1.ChangeWorkload) { c.Status.Batches = n }
	}
	running, success, suspend := v1alpha1.ChangeWorkloadRunning, v1alpha1.ChangeWorkloadSuccess, v1alpha1.ChangeWorkloadSuspend
	tests := map[string]struct {
		before, after *v1alpha1.ChangeWorkload
		by            Writer
		want          []Invariant
	}{
		"goes on":       {before: makeRelease(running), after: makeRelease(success, batches(2)), by: Operator},
		"first attempt": {before: makeRelease("", attempt(0, 0)), after: makeRelease(running), by: Operator},
		"next attempt":  {before: makeRelease(success, pre(verdict("fail"))), after: makeRelease(running, attempt(2, 3)), by: Operator},
		"attempt skipped": {
			before: makeRelease(success),
			after:  makeRelease(running, attempt(3, 3)), by: Operator, want: []Invariant{VerdictOnce},
		},
		"attempt goes back": {
			before: makeRelease(success, attempt(2, 2)),
			after:  makeRelease(running, attempt(1, 2)), by: Operator, want: []Invariant{VerdictOnce, VerdictOnce},
		},
		"attempt of the same release": {
			before: makeRelease(success),
			after:  makeRelease(running, attempt(2, 1)), by: Operator, want: []Invariant{VerdictOnce},
		},
		"release changes without one": {
			before: makeRelease(success),
			after:  makeRelease(success, attempt(1, 2)), by: Operator, want: []Invariant{VerdictOnce},
		},
		"release goes back": {before: makeRelease(success, attempt(2, 5)), after: makeRelease(success, func(c *v1alpha1.ChangeWorkload) {
			c.Spec.Release = 4
			c.Status.Attempt = 2
			c.Status.ObservedRelease = 5
		}), by: Operator, want: []Invariant{VerdictOnce}},
		"batches go back": {
			before: makeRelease(running, batches(2)),
			after:  makeRelease(running, batches(1)), by: Operator, want: []Invariant{VerdictOnce},
		},
		"success fails":   {before: makeRelease(success), after: makeRelease(suspend), by: Operator},
		"success reopens": {before: makeRelease(success), after: makeRelease(running), by: Operator, want: []Invariant{TerminalStays}},
		"success canceled": {
			before: makeRelease(success),
			after:  makeRelease(v1alpha1.ChangeWorkloadCanceled), by: Operator, want: []Invariant{TerminalStays},
		},
		"success rolled back": {before: makeRelease(success), after: makeRelease(v1alpha1.ChangeWorkloadRollback), by: Operator},
		"suspend corrected":   {before: makeRelease(suspend), after: makeRelease(running), by: Operator},
		"suspend canceled": {
			before: makeRelease(suspend),
			after:  makeRelease(v1alpha1.ChangeWorkloadCanceled), by: Operator, want: []Invariant{TerminalStays},
		},
		"canceled goes on": {
			before: makeRelease(v1alpha1.ChangeWorkloadCanceled),
			after:  makeRelease(running), by: Operator, want: []Invariant{TerminalStays},
		},
		"failed goes on": {
			before: makeRelease(v1alpha1.ChangeWorkloadFailed),
			after:  makeRelease(running), by: Operator, want: []Invariant{TerminalStays},
		},
		"a rollback goes on": {
			before: makeRelease(v1alpha1.ChangeWorkloadRollback, rolledBack),
			after:  makeRelease(success), by: Operator, want: []Invariant{TerminalStays},
		},
		"a rollback by hand is taken back": {before: makeRelease(v1alpha1.ChangeWorkloadRollback), after: makeRelease(success), by: Operator},
		"canceled, released again": {
			before: makeRelease(v1alpha1.ChangeWorkloadCanceled),
			after:  makeRelease(running, attempt(2, 2)), by: Operator,
		},
		"a user writes":     {before: makeRelease(success), after: makeRelease(running, attempt(0, 0)), by: Other},
		"an unknown writer": {before: makeRelease(success), after: makeRelease(running), by: Unknown},
		"verdict arrives":   {before: makeRelease(running), after: makeRelease(running, pre(verdict("pass"))), by: Operator},
		"failure follows pass": {
			before: makeRelease(running, pre(verdict("pass"))),
			after:  makeRelease(running, pre(verdict("fail"))), by: Operator,
		},
		"failure follows silence": {
			before: makeRelease(running, pre(&v1alpha1.CheckVerdict{Verdict: "inconc"})),
			after:  makeRelease(running, pre(verdict("fail"))), by: Operator,
		},
		"pass follows failure": {
			before: makeRelease(suspend, pre(verdict("fail"))),
			after:  makeRelease(suspend, pre(verdict("pass"))), by: Operator, want: []Invariant{VerdictOnce},
		},
		"failure repeated on a correction": {
			before: makeRelease(suspend, pre(corrected("fail"))),
			after:  makeRelease(suspend, pre(verdict("fail"))), by: Operator, want: []Invariant{VerdictOnce},
		},
		"a user corrects": {before: makeRelease(suspend, pre(verdict("fail"))), after: makeRelease(suspend, pre(corrected("fail"))), by: Other},
		"verdict lost": {
			before: makeRelease(running, pre(verdict("pass"))),
			after:  makeRelease(running), by: Operator, want: []Invariant{VerdictOnce},
		},
		"success again, asked to go back": {
			before: makeRelease(v1alpha1.ChangeWorkloadRollback, func(c *v1alpha1.ChangeWorkload) { c.Status.SuccessTimeUnix = 1 }),
			after:  makeRelease(success, func(c *v1alpha1.ChangeWorkload) { c.Status.PreparingCount = 1 }), by: Operator,
		},
		"success at first, asked to go back": {
			before: makeRelease(v1alpha1.ChangeWorkloadRollback),
			after:  makeRelease(success, func(c *v1alpha1.ChangeWorkload) { c.Status.PreparingCount = 1 }), by: Operator,
			want: []Invariant{EachPodOnce},
		},
		"success with a pod unverified": {
			before: makeRelease(running),
			after:  makeRelease(success, func(c *v1alpha1.ChangeWorkload) { c.Status.PreparingCount = 1 }), by: Operator,
			want: []Invariant{EachPodOnce},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, names(checkRelease(tc.before, tc.after, tc.by))); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckBatch(t *testing.T) {
	running := func(b *v1alpha1.ChangePod) { b.Status.Status = v1alpha1.ChangePodPreSubmitted }
	again := func(b *v1alpha1.ChangePod) {
		b.Status.ChangePodID += "-again"
		b.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionSubmitted, Reason: v1alpha1.ReasonStartedAgain}}
	}
	check := func(name string) func(*v1alpha1.ChangePod) {
		return func(b *v1alpha1.ChangePod) {
			b.Status.Checks = append(b.Status.Checks, v1alpha1.CheckStatus{Name: name, Mode: v1alpha1.ModeEnforce, Phase: v1alpha1.CheckFailed})
		}
	}
	results := func(first, second string) func(*v1alpha1.ChangePod) {
		return func(b *v1alpha1.ChangePod) {
			done(first)(b)
			b.Status.PodResults = append(b.Status.PodResults, wrappers.PodResult("p2", second))
		}
	}
	tests := map[string]struct {
		before, after *v1alpha1.ChangePod
		by            Writer
		applied       []string
		want          []Invariant
	}{
		"verdict arrives": {before: makeBatch(), after: makeBatch(post(verdict("fail"))), by: Operator},
		"verdict of another node": {
			before: makeBatch(),
			after:  makeBatch(post(&v1alpha1.CheckVerdict{NodeID: "other", Delivered: "fail"})), by: Operator, want: []Invariant{VerdictOnce},
		},
		"node is lost": {before: makeBatch(running), after: makeBatch(running, again), by: Operator},
		"node is lost twice": {
			before: makeBatch(running, again),
			after:  makeBatch(running, again, again), by: Operator, want: []Invariant{VerdictOnce},
		},
		"node changes": {
			before: makeBatch(),
			after:  makeBatch(func(b *v1alpha1.ChangePod) { b.Status.ChangePodID = "other" }), by: Operator, want: []Invariant{VerdictOnce},
		},
		"pass follows failure": {
			before: makeBatch(post(verdict("fail"))),
			after:  makeBatch(post(verdict("pass"))), by: Operator, want: []Invariant{VerdictOnce},
		},
		"failure follows pass": {before: makeBatch(post(verdict("pass"))), after: makeBatch(post(verdict("fail"))), by: Operator},
		"verdict lost":         {before: makeBatch(post(verdict("pass"))), after: makeBatch(), by: Operator, want: []Invariant{VerdictOnce}},
		"done with a failure":  {before: makeBatch(post(verdict("fail"))), after: makeBatch(post(verdict("fail")), done("fail")), by: Operator},
		"a late failure": {
			before: makeBatch(post(verdict("fail")), done("none")),
			after:  makeBatch(post(verdict("fail")), done("fail")), by: Operator,
		},
		"applied again": {
			before: makeBatch(post(verdict("fail")), done("pass")),
			after:  makeBatch(post(verdict("fail")), done("fail")), by: Operator, applied: []string{"POST"}, want: []Invariant{VerdictOnce},
		},
		"another check fails another pod": {
			before: makeBatch(check("a"), results("fail", "none")), after: makeBatch(check("a"), check("b"), results("fail", "fail")),
			by: Operator, applied: []string{"a"},
		},
		"another check fails a pod again": {
			before: makeBatch(check("a"), results("fail", "none")), after: makeBatch(check("a"), check("b"), results("inconc", "fail")),
			by: Operator, applied: []string{"a"}, want: []Invariant{VerdictOnce},
		},
		"results without a verdict": {
			before: makeBatch(done("pass")),
			after:  makeBatch(done("fail")), by: Operator, want: []Invariant{VerdictOnce},
		},
		"results by a user": {before: makeBatch(done("pass")), after: makeBatch(done("fail")), by: Other},
		"done is not the end": {
			before: makeBatch(done("pass")),
			after:  makeBatch(func(b *v1alpha1.ChangePod) { done("pass")(b); b.Status.Status = v1alpha1.ChangePodPostWait }), by: Operator,
			want: []Invariant{TerminalStays},
		},
		"an unknown writer": {before: makeBatch(done("pass")), after: makeBatch(done("fail")), by: Unknown},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, names(checkBatch(tc.before, tc.after, tc.by, tc.applied))); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFailed(t *testing.T) {
	result := func(pod, uid, verdict string) func(*v1alpha1.ChangePod) {
		return func(b *v1alpha1.ChangePod) {
			b.Status.PodResults = append(b.Status.PodResults, v1alpha1.PodResult{PodInfo: v1alpha1.PodInfo{Pod: pod, UID: uid}, Verdict: verdict})
		}
	}
	tests := map[string]struct {
		batch *v1alpha1.ChangePod
		want  bool
	}{
		"no results":            {makeBatch(), false},
		"passes":                {makeBatch(result("p1", "p1", "pass")), false},
		"none":                  {makeBatch(result("p1", "", "none")), false},
		"fails":                 {makeBatch(result("p1", "p1", "fail")), true},
		"fails, by name only":   {makeBatch(result("p1", "", "unpass")), true},
		"another pod":           {makeBatch(result("p2", "", "fail")), false},
		"an earlier pod's name": {makeBatch(result("p1", "p0", "fail")), false},
		"fails and passes":      {makeBatch(result("p1", "", "fail"), result("p1", "", "pass")), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := failed(tc.batch); got != tc.want {
				t.Errorf("failed() = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestNumberOf(t *testing.T) {
	for name, want := range map[string]int32{"web--x--v1--x--12": 12, "web": 0, "web--x--v1--x--": 0} {
		if got := numberOf(name); got != want {
			t.Errorf("numberOf(%q) = %d, want %d", name, got, want)
		}
	}
}
