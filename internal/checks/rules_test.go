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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/rules"
)

// TestDecideRules has the decisions about a check that began at 0 s, with a delay of 30 s and a
// deadline of 10 min.
func TestDecideRules(t *testing.T) {
	began := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	const running, watching = v1alpha1.CheckRunning, v1alpha1.CheckWatching
	problem := rulesResult{Pods: 1, Problem: "no such key: a"}
	type want struct {
		phase   v1alpha1.CheckPhase
		reason  string
		message string
		failed  []string
		after   time.Duration
	}
	for name, test := range map[string]struct {
		at         time.Duration
		background bool
		was        string // the previous reason
		tries      int
		result     rulesResult
		want       want
	}{
		"true": {at: time.Minute, result: rulesResult{Pods: 2},
			want: want{phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed, message: "for 2 pods"}},
		"true, in the background": {at: time.Minute, background: true, result: rulesResult{Pods: 2}, want: want{phase: watching}},
		"true at last, in the background": {
			at: time.Minute, background: true, was: v1alpha1.ReasonCannotEvaluate, result: rulesResult{Pods: 2},
			want: want{phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed},
		},
		"no pod is left": {
			at: time.Minute, result: rulesResult{},
			want: want{phase: v1alpha1.CheckSkipped, reason: v1alpha1.ReasonNoPods},
		},
		"no pod is left, in the background": {at: time.Minute, background: true, result: rulesResult{}, want: want{phase: watching}},
		"false for the batch": {
			at: time.Minute, result: rulesResult{Pods: 2, False: []rules.Failure{{Message: "bad"}}},
			want: want{phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonRuleFailed, message: "bad; look"},
		},
		"false for pods": {
			at: time.Minute, result: rulesResult{Pods: 3, False: []rules.Failure{{Pod: "b", Message: "worse"}, {Pod: "a", Message: "bad"}}},
			want: want{
				phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonRuleFailed, message: "pod a: bad (and 1 more pods of the batch); look",
				failed: []string{"a", "b"},
			},
		},
		"false in the background": {
			at: time.Minute, background: true, result: rulesResult{Pods: 1, False: []rules.Failure{{Pod: "a", Message: "bad"}}},
			want: want{phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonRuleFailed, message: "pod a: bad", failed: []string{"a"}},
		},
		"false for a pod, wrong for another": {
			at: time.Minute, result: rulesResult{Pods: 2, Problem: "x", False: []rules.Failure{{Pod: "a", Message: "bad"}}},
			want: want{phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonRuleFailed, failed: []string{"a"}},
		},
		"wrong": {
			at: time.Minute, result: problem,
			want: want{phase: running, reason: v1alpha1.ReasonCannotEvaluate, message: "no such key: a", after: 10 * time.Second},
		},
		"wrong again": {
			at: time.Minute, tries: 2, result: problem,
			want: want{phase: running, reason: v1alpha1.ReasonCannotEvaluate, after: 40 * time.Second},
		},
		"wrong again and again": {
			at: time.Minute, tries: 1000, result: problem,
			want: want{phase: running, reason: v1alpha1.ReasonCannotEvaluate, after: time.Minute},
		},
		"wrong, shortly before the deadline": {
			at: 9*time.Minute + 50*time.Second, tries: 9, result: problem,
			want: want{phase: running, reason: v1alpha1.ReasonCannotEvaluate, after: 10 * time.Second},
		},
		"wrong, at the last": {
			at: 10 * time.Minute, result: problem,
			want: want{phase: v1alpha1.CheckError, reason: v1alpha1.ReasonCannotEvaluate, message: "until the deadline: no such key"},
		},
		"wrong, in the background": {
			at: 9*time.Minute + 59*time.Second, background: true, result: problem,
			want: want{phase: running, reason: v1alpha1.ReasonCannotEvaluate, after: time.Second},
		},
		"wrong to the end, in the background": {
			at: 10 * time.Minute, background: true, was: v1alpha1.ReasonCannotEvaluate, result: problem,
			want: want{phase: v1alpha1.CheckError, reason: v1alpha1.ReasonCannotEvaluate},
		},
		"wrong, when it was down until later": {
			at: time.Hour, result: problem,
			want: want{phase: v1alpha1.CheckError, reason: v1alpha1.ReasonCannotEvaluate},
		},
		"wrong for good": {at: time.Minute, result: rulesResult{Whole: true, Problem: "no such key: userInfo", Final: true},
			want: want{phase: v1alpha1.CheckError, reason: v1alpha1.ReasonCannotEvaluate, message: "the rules cannot be evaluated: no such key"}},
		"true, when it was down until later": {
			at: time.Hour, result: rulesResult{Pods: 1},
			want: want{phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := rulesInput{
				Now: began.Add(test.at), Check: &policy.Check{Delay: 30 * time.Second, Suggestion: "look"}, Tries: test.tries, Result: test.result,
				Status: v1alpha1.CheckStatus{
					Name: "shop/p/a", Type: "cel", Phase: running, Reason: test.was,
					StartTime: stamp(began), Deadline: stamp(began.Add(10 * time.Minute)),
				},
			}
			if test.background {
				in.Status.Background = true
				if test.was == "" {
					in.Status.Phase = watching
				}
			}
			s, after := decideRules(in)
			if s.Phase != test.want.phase || s.Reason != test.want.reason || !strings.Contains(s.Message, test.want.message) ||
				!slices.Equal(s.FailedPods, test.want.failed) || after != test.want.after {
				t.Errorf("got %+v, again after %s", s, after)
			}
		})
	}
}

// TestRulesFailMany: the status has the number of failed pods if they are too many to be named.
func TestRulesFailMany(t *testing.T) {
	in := rulesInput{
		Now: time.Unix(1000, 0), Check: &policy.Check{}, Result: rulesResult{Pods: 30},
		Status: v1alpha1.CheckStatus{Name: "shop/p/a", StartTime: stamp(time.Unix(900, 0))},
	}
	for i := range 25 {
		in.Result.False = append(in.Result.False, rules.Failure{Pod: fmt.Sprintf("web-%02d", i), Message: "bad"})
	}
	s, _ := decideRules(in)
	if s.FailedCount != 25 || len(s.FailedPods) != 20 || s.FailedPods[0] != "web-00" || !strings.Contains(s.Message, "and 24 more pods") {
		t.Errorf("the check is %+v", s)
	}
}

// TestRulesOnError: the policy's onError is written with an error, and only then.
func TestRulesOnError(t *testing.T) {
	for on, want := range map[v1alpha1.OnSilence]v1alpha1.OnSilence{
		v1alpha1.SilenceFails: v1alpha1.SilenceFails, v1alpha1.SilencePasses: v1alpha1.SilencePasses, v1alpha1.SilenceDefault: "",
	} {
		in := rulesInput{
			Now: time.Unix(2000, 0), Check: &policy.Check{OnError: on}, Result: rulesResult{Problem: "no such key"},
			Status: v1alpha1.CheckStatus{
				Name: "shop/p/a", Phase: v1alpha1.CheckRunning, StartTime: stamp(time.Unix(900, 0)), Deadline: stamp(time.Unix(2000, 0)),
			},
		}
		if s, _ := decideRules(in); s.Phase != v1alpha1.CheckError || s.OnSilence != want {
			t.Errorf("%s: the check is %+v", on, s)
		}
		in.Now = time.Unix(1000, 0)
		if s, _ := decideRules(in); s.Phase != v1alpha1.CheckRunning || s.OnSilence != "" {
			t.Errorf("%s, before: the check is %+v", on, s)
		}
	}
}
