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

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// TestDecideRules: a check that was written down at 0 s, with a delay of 30 s and a
// deadline of 10 min.
func TestDecideRules(t *testing.T) {
	began := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	const running, watching = v1alpha1.CheckRunning, v1alpha1.CheckWatching
	problem := &RulesResult{Pods: 1, Problem: "no such key: a"}
	type want struct {
		evaluate, done bool
		phase          v1alpha1.CheckPhase
		reason         string
		message        string
		failed         []string
		after          time.Duration
	}
	for name, test := range map[string]struct {
		at         time.Duration
		background bool
		was        string // the reason before
		tries      int
		notBefore  time.Duration
		result     *RulesResult
		want       want
	}{
		"before its delay is over": {at: 10 * time.Second, want: want{phase: running, after: 20 * time.Second}},
		"when it is":               {at: 30 * time.Second, want: want{phase: running, evaluate: true}},
		"long after":               {at: time.Hour, want: want{phase: running, evaluate: true}},
		"in the background":        {at: 30 * time.Second, background: true, want: want{phase: watching, evaluate: true}},
		"before it is tried again": {at: time.Minute, tries: 1, notBefore: 70 * time.Second, want: want{phase: running, after: 10 * time.Second}},
		"true": {at: time.Minute, result: &RulesResult{Pods: 2},
			want: want{done: true, phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed, message: "of 2 pods"}},
		"true, in the background":             {at: time.Minute, background: true, result: &RulesResult{Pods: 2}, want: want{done: true, phase: watching}},
		"true at last, in the background":     {at: time.Minute, background: true, was: v1alpha1.ReasonCannotEvaluate, result: &RulesResult{Pods: 2}, want: want{done: true, phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed}},
		"nobody is left":                      {at: time.Minute, result: &RulesResult{}, want: want{done: true, phase: v1alpha1.CheckSkipped, reason: v1alpha1.ReasonNoPods}},
		"nobody is left, in the background":   {at: time.Minute, background: true, result: &RulesResult{}, want: want{done: true, phase: watching}},
		"false of the batch":                  {at: time.Minute, result: &RulesResult{Pods: 2, False: []FalseRule{{Message: "bad"}}}, want: want{done: true, phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonRuleFailed, message: "bad; look"}},
		"false of pods":                       {at: time.Minute, result: &RulesResult{Pods: 3, False: []FalseRule{{Pod: "b", Message: "worse"}, {Pod: "a", Message: "bad"}}}, want: want{done: true, phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonRuleFailed, message: "pod a: bad (and 1 more pods of the batch); look", failed: []string{"a", "b"}}},
		"false in the background":             {at: time.Minute, background: true, result: &RulesResult{Pods: 1, False: []FalseRule{{Pod: "a", Message: "bad"}}}, want: want{done: true, phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonRuleFailed, message: "pod a: bad", failed: []string{"a"}}},
		"false of one, and wrong of another":  {at: time.Minute, result: &RulesResult{Pods: 2, Problem: "x", False: []FalseRule{{Pod: "a", Message: "bad"}}}, want: want{done: true, phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonRuleFailed, failed: []string{"a"}}},
		"wrong":                               {at: time.Minute, result: problem, want: want{phase: running, reason: v1alpha1.ReasonCannotEvaluate, message: "no such key: a", after: 10 * time.Second}},
		"wrong again":                         {at: time.Minute, tries: 2, result: problem, want: want{phase: running, reason: v1alpha1.ReasonCannotEvaluate, after: 40 * time.Second}},
		"wrong again and again":               {at: time.Minute, tries: 1000, result: problem, want: want{phase: running, reason: v1alpha1.ReasonCannotEvaluate, after: time.Minute}},
		"wrong, shortly before the deadline":  {at: 9*time.Minute + 50*time.Second, tries: 9, result: problem, want: want{phase: running, reason: v1alpha1.ReasonCannotEvaluate, after: 10 * time.Second}},
		"wrong, at the last":                  {at: 10 * time.Minute, result: problem, want: want{phase: v1alpha1.CheckError, reason: v1alpha1.ReasonCannotEvaluate, message: "until the deadline: no such key"}},
		"wrong, in the background":            {at: 9*time.Minute + 59*time.Second, background: true, result: problem, want: want{phase: running, reason: v1alpha1.ReasonCannotEvaluate, after: time.Second}},
		"wrong to the end, in the background": {at: 10 * time.Minute, background: true, was: v1alpha1.ReasonCannotEvaluate, result: problem, want: want{phase: v1alpha1.CheckError, reason: v1alpha1.ReasonCannotEvaluate}},
		"it was wrong, and is tried again":    {at: time.Minute, background: true, was: v1alpha1.ReasonCannotEvaluate, want: want{phase: running, reason: v1alpha1.ReasonCannotEvaluate, evaluate: true}},
		"wrong, when it was down until later": {at: time.Hour, result: problem, want: want{phase: v1alpha1.CheckError, reason: v1alpha1.ReasonCannotEvaluate}},
		"wrong for good": {at: time.Minute, result: &RulesResult{Whole: true, Problem: "no such key: userInfo", Final: true},
			want: want{phase: v1alpha1.CheckError, reason: v1alpha1.ReasonCannotEvaluate, message: "the rules cannot be evaluated: no such key"}},
		"true, when it was down until later": {at: time.Hour, result: &RulesResult{Pods: 1}, want: want{done: true, phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed}},
	} {
		t.Run(name, func(t *testing.T) {
			in := RulesInput{
				Now: began.Add(test.at), Delay: 30 * time.Second, Suggestion: "look", Tries: test.tries, Result: test.result,
				Status: v1alpha1.CheckStatus{Name: "shop/p/a", Type: "cel", Phase: running, StartTime: timeOf(began), Deadline: timeOf(began.Add(10 * time.Minute)), Reason: test.was},
			}
			if test.background {
				in.Status.Background = true
				if test.was == "" {
					in.Status.Phase = watching
				}
			}
			if test.notBefore > 0 {
				in.NotBefore = began.Add(test.notBefore)
			}
			got := DecideRules(in)
			s := got.Status
			if got.Evaluate != test.want.evaluate || got.Done != test.want.done || s.Phase != test.want.phase || s.Reason != test.want.reason ||
				!strings.Contains(s.Message, test.want.message) || !slices.Equal(s.FailedPods, test.want.failed) || got.After != test.want.after {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestRulesFailMany: of more pods than a status names, all are counted, and so fail.
func TestRulesFailMany(t *testing.T) {
	in := RulesInput{Now: time.Unix(1000, 0), Status: v1alpha1.CheckStatus{Name: "shop/p/a", StartTime: timeOf(time.Unix(900, 0))}, Result: &RulesResult{Pods: 30}}
	for i := range 25 {
		in.Result.False = append(in.Result.False, FalseRule{Pod: fmt.Sprintf("web-%02d", i), Message: "bad"})
	}
	s := DecideRules(in).Status
	if s.FailedCount != 25 || len(s.FailedPods) != 20 || s.FailedPods[0] != "web-00" || !strings.Contains(s.Message, "and 24 more pods") {
		t.Errorf("the check is %+v", s)
	}
}

// TestRulesOnError: what the policy says of an error is written with it, and only then.
func TestRulesOnError(t *testing.T) {
	for on, want := range map[v1alpha1.OnSilence]v1alpha1.OnSilence{
		v1alpha1.SilenceFails: v1alpha1.SilenceFails, v1alpha1.SilencePasses: v1alpha1.SilencePasses, v1alpha1.SilenceDefault: "",
	} {
		in := RulesInput{
			Now: time.Unix(2000, 0), OnError: on, Result: &RulesResult{Problem: "no such key"},
			Status: v1alpha1.CheckStatus{Name: "shop/p/a", Phase: v1alpha1.CheckRunning, StartTime: timeOf(time.Unix(900, 0)), Deadline: timeOf(time.Unix(2000, 0))},
		}
		if s := DecideRules(in).Status; s.Phase != v1alpha1.CheckError || s.OnSilence != want {
			t.Errorf("%s: the check is %+v", on, s)
		}
		in.Now = time.Unix(1000, 0)
		if s := DecideRules(in).Status; s.Phase != v1alpha1.CheckRunning || s.OnSilence != "" {
			t.Errorf("%s, before: the check is %+v", on, s)
		}
	}
}
