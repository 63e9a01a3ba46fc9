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
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
)

// TestDecideService has the decisions about a check with a delay of 10 s and a deadline of 15 minutes.
func TestDecideService(t *testing.T) {
	const deadline = 15 * time.Minute
	failing := func(ended time.Duration) *queryAnswer {
		return &queryAnswer{Reason: v1alpha1.ReasonUnavailable, Message: "down", Ended: testNow.Add(ended)}
	}
	refused := &queryAnswer{Reason: v1alpha1.ReasonRequestNotAccepted, Message: "HTTP 422", Ended: testNow.Add(time.Minute)}
	running := func(ended time.Duration) *queryAnswer {
		return &queryAnswer{Service: serviceResult{Verdict: "running", RetryAfter: 30 * time.Second}, Ended: testNow.Add(ended)}
	}
	verdict := func(v string) *queryAnswer { return &queryAnswer{Service: serviceResult{Verdict: v, Message: v}} }
	for name, test := range map[string]struct {
		at                 time.Duration
		answer             *queryAnswer
		errors             int
		background, passed bool
		phase              v1alpha1.CheckPhase
		message            string
		asks               bool
		after              time.Duration
	}{
		"before the delay is over":        {at: 4 * time.Second, phase: v1alpha1.CheckRunning, after: 6 * time.Second},
		"due":                             {at: 10 * time.Second, phase: v1alpha1.CheckRunning, asks: true},
		"after an outage of the operator": {at: time.Hour, phase: v1alpha1.CheckRunning, asks: true},
		"the first error": {
			at: time.Minute, answer: failing(time.Minute), phase: v1alpha1.CheckRunning, message: "down", after: 10 * time.Second,
		},
		"the third error": {
			at: time.Minute, answer: failing(time.Minute), errors: 2, phase: v1alpha1.CheckRunning, after: 40 * time.Second,
		},
		"the tenth error": {
			at: time.Minute, answer: failing(time.Minute), errors: 9, phase: v1alpha1.CheckRunning, after: time.Minute,
		},
		"an error in the background": {
			at: time.Minute, answer: failing(time.Minute), background: true, phase: v1alpha1.CheckRunning, after: 10 * time.Second,
		},
		"an error shortly before the end": {
			at: deadline - 4*time.Second, answer: failing(deadline - 4*time.Second), phase: v1alpha1.CheckRunning, after: 4 * time.Second,
		},
		"an error of the last try": {
			at: deadline, answer: failing(deadline), phase: v1alpha1.CheckError, message: "until the deadline: down",
		},
		"a refusal": {at: time.Minute, answer: refused, phase: v1alpha1.CheckError, message: "HTTP 422"},
		"not finished": {
			at: time.Minute, answer: running(time.Minute), errors: 3, phase: v1alpha1.CheckRunning, after: 30 * time.Second,
		},
		"not finished, in the background": {
			at: time.Minute, answer: running(time.Minute), background: true, phase: v1alpha1.CheckRunning, after: 30 * time.Second,
		},
		"not finished at the end": {
			at: deadline, answer: running(deadline), phase: v1alpha1.CheckError, message: "until the deadline: ",
		},
		"an answer that is read late": {
			at: 2 * time.Minute, answer: running(time.Minute), phase: v1alpha1.CheckRunning, asks: true,
		},
		"pass": {
			at: time.Minute, answer: verdict("pass"), phase: v1alpha1.CheckPassed, message: "pass",
		},
		"pass after the deadline": {
			at: time.Hour, answer: verdict("pass"), phase: v1alpha1.CheckPassed, message: "pass",
		},
		"pass in the background": {
			at: time.Minute, answer: verdict("pass"), background: true, phase: v1alpha1.CheckWatching,
		},
		"passed in the background": {at: 2 * time.Minute, passed: true, background: true, phase: v1alpha1.CheckWatching},
		"none": {
			at: time.Minute, answer: verdict("none"), phase: v1alpha1.CheckSkipped, message: "none",
		},
		"none in the background": {
			at: time.Minute, answer: verdict("none"), background: true, phase: v1alpha1.CheckWatching,
		},
		"inconc in the background": {
			at: time.Minute, answer: verdict("inconc"), background: true, phase: v1alpha1.CheckInconclusive, message: "inconc",
		},
		"fail in the background": {
			at: time.Minute, answer: verdict("fail"), background: true, phase: v1alpha1.CheckFailed, message: "fail; look",
		},
		"fail, read long after its answer": {
			at: time.Hour, answer: verdict("fail"), phase: v1alpha1.CheckFailed, message: "fail; look",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := queryInput{Now: testNow.Add(test.at), Answer: test.answer, Errors: test.errors}
			in.Check = &policy.Check{Delay: 10 * time.Second, OnError: v1alpha1.SilenceFails, Suggestion: "look", Service: &v1alpha1.ServiceCheck{}}
			in.Status = v1alpha1.CheckStatus{Phase: v1alpha1.CheckRunning, StartTime: stamp(testNow), Deadline: stamp(testNow.Add(deadline))}
			if test.background {
				in.Status.Phase = v1alpha1.CheckWatching
			}
			if test.passed {
				in.Status.Measured = 1
			}
			got := decideService(in)
			if got.Status.Phase != test.phase || !strings.HasPrefix(got.Status.Message, test.message) || !got.Ask.IsZero() != test.asks ||
				got.After != test.after {
				t.Errorf("%s %q, asks %v, after %s", got.Status.Phase, got.Status.Message, got.Ask, got.After)
			}
			if got.Status.Phase == v1alpha1.CheckError && got.Status.OnSilence != v1alpha1.SilenceFails {
				t.Errorf("effect %q", got.Status.OnSilence)
			}
		})
	}
}
