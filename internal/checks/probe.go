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
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// probeOutcome is the result of one call of a pod.
type probeOutcome int

const (
	// probeUnmeasured means that the call shows nothing about the pod.
	probeUnmeasured probeOutcome = iota
	// probeGood means that the pod gave a good response.
	probeGood
	// probeBad means that the pod was reached, and gave a bad response or none.
	probeBad
	// probeUnanswered means that nothing answered at the address of the pod: the pod is
	// broken, or its node is lost.
	probeUnanswered
)

// probeResult is the result of one call of a pod, without any text of the pod.
type probeResult struct {
	Outcome probeOutcome
	// Reason is one word, Message a sentence.
	Reason, Message string
	// Began and Ended are the times of the call.
	Began, Ended time.Time
}

// probeStreak has the results of the calls of a pod so far.
type probeStreak struct {
	// Good and Bad are the numbers of calls in a row.
	Good, Bad int
	// BadSince is the time of the first bad call in a row. Answered: one of them reached
	// the pod.
	BadSince time.Time
	Answered bool
	// Measured: any call showed something. Errors is the number of calls in a row that
	// showed nothing.
	Measured bool
	Errors   int
	// Last is the latest result, LastBad the latest bad result.
	Last, LastBad probeResult
	// Next is the time of the next call.
	Next time.Time
}

// probeInput is the input of a decision about a check of type probe.
type probeInput struct {
	Now   time.Time
	Check *policy.Check
	// Status of the check, which has begun.
	Status v1alpha1.CheckStatus
	// Began is the time when this process began the check: it knows no results of another process.
	Began time.Time
	// Pods of the batch that exist.
	Pods []workload.Pod
	// Streaks are the results so far, Results the latest results, and Busy the pods that are
	// being called.
	Streaks map[types.UID]probeStreak
	Results map[types.UID]probeResult
	Busy    map[types.UID]bool
	// Confirmed are the pods that were read from the API server.
	Confirmed map[types.UID]bool
}

// probePlan is a decision about the check.
type probePlan struct {
	// Confirm lists pods that fail according to the cache: read them from the API server,
	// and decide again.
	Confirm []types.UID
	// Status is the new status, which may be equal to the old one.
	Status v1alpha1.CheckStatus
	// Streaks have the results; keep them.
	Streaks map[types.UID]probeStreak
	// Call lists the pods to call now.
	Call []types.UID
	// After is the time until the next decision if nothing happens before; 0 for never.
	After time.Duration
}

const (
	// probeRetry is the first wait after a call that showed nothing, maxProbeRetry the longest.
	probeRetry    = 10 * time.Second
	maxProbeRetry = time.Minute
	// resultsEvery is the wait between reads of the results of running calls.
	resultsEvery = 500 * time.Millisecond
	// unansweredFor is the time without an answer after which a pod fails. By then a lost
	// node is known.
	unansweredFor = time.Minute
)

// serviceUID stands for the Service of a check in maps of pods by UID.
const serviceUID types.UID = "service"

// decideProbe decides about a check of type probe, and which pods to call.
func decideProbe(in probeInput) probePlan {
	p := &probe{probeInput: in, plan: probePlan{Status: *in.Status.DeepCopy(), Streaks: map[types.UID]probeStreak{}}}
	if left := timeOf(in.Status.StartTime).Add(in.Check.Delay).Sub(in.Now); left > 0 {
		p.plan.After = left
		return p.plan
	}
	maps.Copy(p.plan.Streaks, in.Streaks)
	p.targets = in.Pods
	if in.Check.Probe.Service != "" {
		p.targets = p.service()
	}
	for i := range p.targets {
		pod := &p.targets[i]
		if r, ok := in.Results[pod.UID]; ok {
			p.plan.Streaks[pod.UID] = p.plan.Streaks[pod.UID].add(in.Check, r, pod)
		}
	}
	p.sort()
	p.plan.Confirm = p.confirm()
	switch {
	case len(p.plan.Confirm) > 0:
	case len(p.failed) > 0:
		p.fail()
	case len(p.open) == 0 && len(p.lost) == 0:
		p.pass()
	default:
		p.goOn()
	}
	return p.plan
}

type probe struct {
	probeInput
	plan probePlan
	// targets are the pods to call, or the Service.
	targets []workload.Pod
	// failed and passed targets are done; open and lost ones are not.
	failed, passed, open, lost []*workload.Pod
}

// service returns the Service of the check as a pod, if any pod of the batch is left.
func (p *probe) service() []workload.Pod {
	if p.livePod() == nil {
		return nil
	}
	return []workload.Pod{{Name: p.Check.Probe.Service, UID: serviceUID, Ready: true}}
}

func (p *probe) livePod() *workload.Pod {
	for i := range p.Pods {
		if pod := &p.Pods[i]; !isGone(pod) {
			return pod
		}
	}
	return nil
}

// sort sorts the targets by their progress. Pods that are gone do not count.
func (p *probe) sort() {
	for i := range p.targets {
		pod := &p.targets[i]
		s := p.plan.Streaks[pod.UID]
		switch {
		case s.Good >= int(p.Check.Probe.Successes):
			p.passed = append(p.passed, pod)
		case isGone(pod):
		case pod.Lost:
			// The bad results were due to its node.
			p.plan.Streaks[pod.UID] = probeStreak{Measured: s.Measured, Last: s.Last, LastBad: s.LastBad}
			p.lost = append(p.lost, pod)
		case s.fails(p.Check, p.Now):
			p.failed = append(p.failed, pod)
		default:
			p.open = append(p.open, pod)
		}
	}
	slices.SortFunc(p.failed, func(a, b *workload.Pod) int { return cmp.Compare(a.Name, b.Name) })
}

// confirm returns the pods to read before they fail. If more pods fail than a status names, all
// pods of the batch fail, so one more is enough.
func (p *probe) confirm() (uids []types.UID) {
	if p.Check.Probe.Service != "" && len(p.failed) > 0 {
		// It fails the pods of the batch: one of them must exist.
		if pod := p.livePod(); !p.Confirmed[pod.UID] {
			uids = append(uids, pod.UID)
		}
		return uids
	}
	for _, pod := range p.failed[:min(len(p.failed), record.MaxFailedPods+1)] {
		if !p.Confirmed[pod.UID] {
			uids = append(uids, pod.UID)
		}
	}
	return uids
}

// add returns the streak with one more result. A missing answer of an unready pod shows nothing:
// its node may be lost. A pod that passed stays passed.
func (s probeStreak) add(check *policy.Check, r probeResult, pod *workload.Pod) probeStreak {
	if s.Good >= int(check.Probe.Successes) {
		return s
	}
	if r.Outcome == probeUnanswered && !pod.Ready {
		r.Outcome = probeUnmeasured
	}
	s.Last, s.Next = r, r.Began.Add(check.Probe.Interval.Duration)
	switch r.Outcome {
	case probeUnmeasured:
		s.Next = r.Ended.Add(min(probeRetry<<min(s.Errors, 3), maxProbeRetry))
		s.Errors++
		return s
	case probeGood:
		return probeStreak{Good: s.Good + 1, Measured: true, Last: r, LastBad: s.LastBad, Next: s.Next}
	default:
		if s.Bad == 0 {
			s.BadSince = r.Began
		}
		s.Good, s.Bad, s.Errors, s.Measured, s.LastBad = 0, s.Bad+1, 0, true, r
		s.Answered = s.Answered || r.Outcome == probeBad
		return s
	}
}

// fails reports whether a pod has failed.
func (s probeStreak) fails(check *policy.Check, now time.Time) bool {
	return s.Bad >= int(check.Probe.Failures) && (s.Answered || now.Sub(s.BadSince) >= unansweredFor)
}

// fail fails the check, with the pods that failed.
func (p *probe) fail() {
	first, s := p.plan.Streaks[p.failed[0].UID], &p.plan.Status
	s.Phase, s.Reason, s.Value = v1alpha1.CheckFailed, first.LastBad.Reason, first.LastBad.Reason
	var names []string // none for a Service: all pods of the batch fail
	for _, pod := range p.failed {
		if p.Check.Probe.Service == "" {
			names = append(names, pod.Name)
		}
	}
	report(s, names, fmt.Sprintf("%s: %s, %d times in a row", p.nameOf(p.failed[0]), first.LastBad.Message, first.Bad), p.Check.Suggestion)
}

// nameOf returns the kind and the name of a target.
func (p *probe) nameOf(pod *workload.Pod) string {
	if p.Check.Probe.Service != "" {
		return "Service " + pod.Name
	}
	return "pod " + pod.Name
}

// pass ends the check when no pod is left to be called. A check in the background that passes
// in time writes nothing.
func (p *probe) pass() {
	s := &p.plan.Status
	if s.Phase == v1alpha1.CheckWatching {
		// This process remembers the pass until then.
		p.plan.After = timeOf(s.Deadline).Sub(p.Now)
		return
	}
	passed := p.countPassed()
	if passed == 0 {
		s.Phase, s.Reason, s.Message = v1alpha1.CheckSkipped, v1alpha1.ReasonNoPods, "no pod is left"
		return
	}
	s.Phase, s.Reason = v1alpha1.CheckPassed, v1alpha1.ReasonPassed
	s.Message = fmt.Sprintf("%d pods answered well %d times in a row", passed, p.Check.Probe.Successes)
	if p.Check.Probe.Service != "" {
		s.Message = fmt.Sprintf("Service %s answered well %d times in a row", p.Check.Probe.Service, p.Check.Probe.Successes)
	}
}

// countPassed counts the pods that passed, including pods that no longer exist.
func (p *probe) countPassed() (n int) {
	for _, s := range p.plan.Streaks {
		if s.Good >= int(p.Check.Probe.Successes) {
			n++
		}
	}
	return n
}

// goOn calls the pods that are due, until the deadline.
func (p *probe) goOn() {
	s := &p.plan.Status
	deadline, due := p.deadline(), p.due()
	if !p.Now.Before(deadline) {
		p.giveUp()
		return
	}
	if s.Phase == v1alpha1.CheckWatching && !p.Now.Before(due) {
		s.Phase, s.Reason = v1alpha1.CheckRunning, v1alpha1.ReasonProbing
		s.Message = "in the background, for longer than planned: " + p.describeOpen()
	}
	next := deadline
	if s.Phase == v1alpha1.CheckWatching && due.Before(next) {
		next = due
	}
	for _, pod := range p.open {
		at := p.plan.Streaks[pod.UID].Next
		switch {
		case p.Busy[pod.UID]:
			at = p.Now.Add(resultsEvery)
		case !at.After(p.Now):
			p.plan.Call = append(p.plan.Call, pod.UID)
			at = p.Now.Add(resultsEvery)
		}
		if at.Before(next) {
			next = at
		}
	}
	// Read pods that wait for their node now and then.
	if len(p.lost) > 0 && p.Now.Add(probeRetry).Before(next) {
		next = p.Now.Add(probeRetry)
	}
	p.plan.After = next.Sub(p.Now)
}

// due returns when a check in the background that has not passed leaves the phase Watching, which
// counts as passed after the deadline. A process that begins late has time for one whole probe.
func (p *probe) due() time.Time {
	s := &p.Status
	return slices.MinFunc([]time.Time{
		latest(timeOf(s.DueTime), p.Began.Add(p.takes())), timeOf(s.Deadline).Add(-time.Second),
	}, time.Time.Compare)
}

// takes returns the duration of a probe without failures.
func (p *probe) takes() time.Duration {
	return timeOf(p.Status.DueTime).Sub(timeOf(p.Status.StartTime)) - p.Check.Delay
}

// deadline returns when the check gives up. A process that begins late, or after the deadline, has
// time for one whole probe.
func (p *probe) deadline() time.Time {
	return latest(timeOf(p.Status.Deadline), p.Began.Add(p.takes()))
}

// giveUp ends the check at its deadline: as Inconclusive, or as Error if a pod was never measured.
func (p *probe) giveUp() {
	s := &p.plan.Status
	s.Phase, s.Reason, s.OnSilence = v1alpha1.CheckInconclusive, v1alpha1.ReasonUnsteady, onSilence(p.Check.OnNoData)
	for _, pod := range append(p.open, p.lost...) {
		if !p.plan.Streaks[pod.UID].Measured {
			s.Phase, s.Reason, s.OnSilence = v1alpha1.CheckError, v1alpha1.ReasonNotMeasured, onSilence(p.Check.OnError)
		}
	}
	s.Message = "until the deadline " + p.describeOpen()
}

// describeOpen returns the progress of the pods, and the problem of the first pod that has not
// passed.
func (p *probe) describeOpen() string {
	open := append(slices.Clone(p.open), p.lost...)
	// Pods that were never measured come first, since the phase is about them.
	slices.SortFunc(open, func(a, b *workload.Pod) int {
		x, y := p.plan.Streaks[a.UID].Measured, p.plan.Streaks[b.UID].Measured
		if x != y {
			if y {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	progress := fmt.Sprintf("%d of %d pods have passed", len(p.passed), len(p.passed)+len(open))
	if len(open) == 0 {
		return progress
	}
	streak := p.plan.Streaks[open[0].UID]
	problem := cmp.Or(streak.Last.Message, "it was not called yet")
	switch {
	case open[0].Lost:
		problem = "its node does not answer"
	case streak.Last.Outcome == probeGood:
		problem = fmt.Sprintf("it answered well %d times in a row", streak.Good)
	}
	if p.Check.Probe.Service != "" {
		return p.nameOf(open[0]) + " has not passed: " + problem
	}
	return fmt.Sprintf("%s; %s: %s", progress, p.nameOf(open[0]), problem)
}
