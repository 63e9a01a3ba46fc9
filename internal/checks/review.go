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
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

const (
	// pollEvery is the wait after the answer running without a time, maxPoll the longest, in seconds.
	pollEvery = 10
	maxPoll   = 300
	// maxServiceText bounds each text of a service in a message, in bytes.
	maxServiceText = 384
	// maxReviewed bounds the pods of a request. A batch has no more.
	maxReviewed = 200
	// verdictRunning is the verdict of a service that is not finished.
	verdictRunning = "running"
)

// phaseOfVerdict has the phase of a check by the verdict of its service.
var phaseOfVerdict = map[string]v1alpha1.CheckPhase{
	record.VerdictPass: v1alpha1.CheckPassed, record.VerdictFail: v1alpha1.CheckFailed, record.VerdictNone: v1alpha1.CheckSkipped,
	record.VerdictInconclusive: v1alpha1.CheckInconclusive, verdictRunning: v1alpha1.CheckRunning,
}

// serviceResult is the result of a call of a service.
type serviceResult struct {
	Verdict, Message string
	// Pods that fail; empty for all pods of the batch.
	Pods []string
	// RetryAfter is the wait until the next call, for the verdict running.
	RetryAfter time.Duration
}

// reviewAnswer is the answer to a CheckReview.
type reviewAnswer struct {
	ID, Verdict, Message, URL string
	RetryAfterSeconds         float64
	Pods                      []struct{ Name, Verdict, Message string }
}

// callID returns the ID of the calls of a check, which is the same for another process. Signatures separate it by dots.
func callID(s *Subject, of *policy.Check) string {
	return fmt.Sprintf("%s/%s/%d-%d", s.uid(), strings.ReplaceAll(of.Name, ".", ":"), s.Release.Status.Attempt, of.Generation)
}

// text returns the message and the address of an answer.
func (a *reviewAnswer) text() string {
	u, err := url.Parse(a.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || len(u.String()) > maxServiceText {
		u = &url.URL{}
	}
	return joined("; ", wording.Shortened(wording.Printable(a.Message), maxServiceText), u.String())
}

// readReview reads the answer to a CheckReview about pods, also pods that have gone since. The problem is why it is not valid. An
// answer with the status 202 needs no body. Other pods are left out; if a service names no pod of the batch, all pods fail.
func readReview(answer endpoint.Answer, id string, pods []string) (r serviceResult, problem string) {
	var a reviewAnswer
	err := json.Unmarshal(answer.Body, &a)
	if answer.Status == http.StatusAccepted {
		a.ID, a.Verdict, a.Pods, err = id, verdictRunning, nil, nil
	}
	switch {
	case err != nil:
		return r, "its answer is not the JSON of a verdict"
	case a.ID != id:
		return r, "the id of its answer is not the id of the request"
	case phaseOfVerdict[a.Verdict] == "":
		return r, "the verdict of its answer is none of pass, fail, inconc, none and running"
	case a.RetryAfterSeconds <= 0:
		a.RetryAfterSeconds = pollEvery
	}
	wait := time.Duration(min(max(a.RetryAfterSeconds, 1), maxPoll) * float64(time.Second))
	r = serviceResult{Verdict: a.Verdict, Message: a.text(), RetryAfter: wait}
	for _, pod := range a.Pods {
		switch {
		case pod.Verdict != record.VerdictFail || slices.Contains(r.Pods, pod.Name):
			continue
		case a.Verdict != record.VerdictFail:
			return r, "its answer has pods that fail, and the verdict " + a.Verdict
		case !slices.Contains(pods, pod.Name):
			continue
		case len(r.Pods) == 0:
			r.Message = joined("; ", fmt.Sprintf("pod %s: %s", pod.Name, wording.Cut(pod.Message)), r.Message)
		}
		r.Pods = append(r.Pods, pod.Name)
	}
	return r, ""
}

// decideService decides about a check of type service. A call that fails, or is not finished, is repeated with the same ID.
func decideService(in queryInput) queryPlan {
	plan := queryPlan{Status: *in.Status.DeepCopy(), Errors: in.Errors, NotBefore: in.NotBefore}
	s, a, deadline := &plan.Status, in.Answer, timeOf(in.Status.Deadline)
	switch {
	case a == nil && s.Measured > 0:
		return plan // it passed in the background
	case a == nil:
	case a.Reason != "":
		plan.NotBefore = a.Ended.Add(min(queryRetry<<min(plan.Errors, 3), maxQueryRetry))
		plan.Errors++
		s.Phase, s.Reason, s.Message = v1alpha1.CheckRunning, a.Reason, a.Message // Watching would count as passed
	default:
		endService(in.Check, s, &a.Service)
		if s.Phase != v1alpha1.CheckRunning {
			return plan
		}
		plan.NotBefore, plan.Errors = a.Ended.Add(a.Service.RetryAfter), 0
	}
	if over := !in.Now.Before(deadline); a != nil && (over || a.Reason == v1alpha1.ReasonRequestNotAccepted) {
		s.Phase, s.OnSilence = v1alpha1.CheckError, onSilence(in.Check.OnError)
		if over {
			s.Message = "until the deadline: " + s.Message
		}
		return plan
	}
	at := latest(timeOf(s.StartTime).Add(in.Check.Delay), plan.NotBefore)
	if at.After(deadline) {
		at = deadline // the last try
	}
	if plan.After = max(at.Sub(in.Now), 0); plan.After == 0 {
		plan.Ask = in.Now
	}
	return plan
}

// endService sets the status of a check to the verdict of its service.
func endService(of *policy.Check, s *v1alpha1.CheckStatus, r *serviceResult) {
	s.FailedPods, s.FailedCount = nil, 0 // of an answer that was not written
	passes := r.Verdict == record.VerdictPass || r.Verdict == record.VerdictNone
	if passes && s.Phase == v1alpha1.CheckWatching {
		s.Measured = 1 // a pass in the background is not written
		return
	}
	s.Phase, s.Reason, s.Message = phaseOfVerdict[r.Verdict], v1alpha1.ReasonServiceVerdict, r.Message
	switch s.Phase {
	case v1alpha1.CheckFailed:
		report(s, r.Pods, r.Message, of.Suggestion)
	case v1alpha1.CheckInconclusive:
		s.OnSilence = onSilence(of.OnNoData)
	case v1alpha1.CheckRunning:
		s.Reason = v1alpha1.ReasonServiceRunning
	default:
	}
}
