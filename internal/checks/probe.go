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

// probeOutcome is what one call of a pod showed.
type probeOutcome int

const (
	// probeUnmeasured means that it shows nothing of the pod.
	probeUnmeasured probeOutcome = iota
	// probeGood means measured, and good.
	probeGood
	// probeBad means measured, and bad: the pod is there, and did not do its part.
	probeBad
	// probeUnanswered means that nobody answered at the pod's address: the pod does
	// not, or its node is lost.
	probeUnanswered
)

// probeResult is how one call of a pod went. Nothing of it is what the pod said.
type probeResult struct {
	Outcome probeOutcome
	// Reason is it in one word, Message in a sentence.
	Reason, Message string
	// Began and Ended are when the call did.
	Began, Ended time.Time
}

// probeStreak is what the calls of a pod came to so far.
type probeStreak struct {
	// Good and Bad calls, in a row.
	Good, Bad int
	// BadSince is when the first of the bad ones began. Answered: one of them was
	// answered.
	BadSince time.Time
	Answered bool
	// Measured: any call of it showed something. Errors are the calls in a row that
	// did not.
	Measured bool
	Errors   int
	// Last is the newest result, and LastBad the newest bad one.
	Last, LastBad probeResult
	// Next is when to call it again.
	Next time.Time
}

// probeInput is what a decision about such a check is made from.
type probeInput struct {
	Now   time.Time
	Check *policy.Check
	// Status of the check, which has begun.
	Status v1alpha1.CheckStatus
	// Began is when this process began to look: what another one saw is not known.
	Began time.Time
	// Pods of the batch, as far as they exist.
	Pods []workload.Pod
	// Streaks are what calls came to so far, Results what they came to since, and
	// Busy the pods that are being called.
	Streaks map[types.UID]probeStreak
	Results map[types.UID]probeResult
	Busy    map[types.UID]bool
	// Confirmed are the pods that are as the API server has them.
	Confirmed map[types.UID]bool
}

// probePlan is what becomes of the check.
type probePlan struct {
	// Confirm: pods fail, as far as the cache knows; look at these at the API server,
	// and decide again.
	Confirm []types.UID
	// Status is the new one, which may be as it was.
	Status v1alpha1.CheckStatus
	// Streaks are to be kept, without the results that are in them now.
	Streaks map[types.UID]probeStreak
	// Call are the pods to call now.
	Call []types.UID
	// After says when to look again, if nothing happens before; 0 for never.
	After time.Duration
}

const (
	// probeRetry is when a pod is called again that could not be measured, at first,
	// and at most.
	probeRetry    = 10 * time.Second
	maxProbeRetry = time.Minute
	// probeLook is when to look for the results of calls that are under way.
	probeLook = 500 * time.Millisecond
	// unansweredFor is how long nobody must have answered for a pod before it fails: by
	// then it is known that its node is lost, if it is.
	unansweredFor = time.Minute
)

// serviceUID stands for the Service of a check where pods are named by their UIDs.
const serviceUID types.UID = "service"

// decideProbe says what becomes of a probe, and whom to call for it.
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
	// targets are what is called.
	targets []workload.Pod
	// failed and passed are done, open are not, and lost come back, or do not.
	failed, passed, open, lost []*workload.Pod
}

// service is the Service of the check as if it were a pod, while there is any pod of the
// batch.
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

// sort says how far each pod has come. One that goes does not count.
func (p *probe) sort() {
	for i := range p.targets {
		pod := &p.targets[i]
		s := p.plan.Streaks[pod.UID]
		switch {
		case s.Good >= int(p.Check.Probe.Successes):
			p.passed = append(p.passed, pod)
		case isGone(pod):
		case pod.Lost:
			// What was seen of it was seen of its node.
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

// confirm says which pods to look at before they fail. Where more fail than are named,
// one more than these is enough: all pods of the batch fail then.
func (p *probe) confirm() (uids []types.UID) {
	if p.Check.Probe.Service != "" && len(p.failed) > 0 {
		// It fails the pods of the batch: one of them must be there.
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

// add is what a pod has come to with one more result. Where nobody answers for a pod
// that is not Ready, that shows nothing: its node may be lost. A pod that passed has.
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

// fail fails the pods that failed.
func (p *probe) fail() {
	first, s := p.plan.Streaks[p.failed[0].UID], &p.plan.Status
	s.Phase, s.Reason, s.Value = v1alpha1.CheckFailed, first.LastBad.Reason, first.LastBad.Reason
	var names []string // none for a Service, with which all pods of the batch fail
	for _, pod := range p.failed {
		if p.Check.Probe.Service == "" {
			names = append(names, pod.Name)
		}
	}
	report(s, names, fmt.Sprintf("%s: %s, %d times in a row", p.called(p.failed[0]), first.LastBad.Message, first.Bad), p.Check.Suggestion)
}

// called is what is called, in words.
func (p *probe) called(pod *workload.Pod) string {
	if p.Check.Probe.Service != "" {
		return "Service " + pod.Name
	}
	return "pod " + pod.Name
}

// pass ends the check when no pod is left to be called. In the background that is not
// written while it was to be expected.
func (p *probe) pass() {
	s := &p.plan.Status
	if s.Phase == v1alpha1.CheckWatching {
		// Until then it is to be remembered that it passed.
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

// countPassed counts the pods that passed, those that are not there any more, too.
func (p *probe) countPassed() (n int) {
	for _, s := range p.plan.Streaks {
		if s.Good >= int(p.Check.Probe.Successes) {
			n++
		}
	}
	return n
}

// goOn calls the pods whose time it is, until the deadline.
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
			at = p.Now.Add(probeLook)
		case !at.After(p.Now):
			p.plan.Call = append(p.plan.Call, pod.UID)
			at = p.Now.Add(probeLook)
		}
		if at.Before(next) {
			next = at
		}
	}
	// One that waits for its node is looked at now and then.
	if len(p.lost) > 0 && p.Now.Add(probeRetry).Before(next) {
		next = p.Now.Add(probeRetry)
	}
	p.plan.After = next.Sub(p.Now)
}

// due is when a check in the background has passed if nothing is in its way: another
// process begins anew. It is before the deadline, after which nothing is written of
// one that was not said to go on.
func (p *probe) due() time.Time {
	s := &p.Status
	return slices.MinFunc([]time.Time{
		latest(timeOf(s.DueTime), p.Began.Add(p.takes())), timeOf(s.Deadline).Add(-time.Second),
	}, time.Time.Compare)
}

// takes is how long a probe goes on if nothing is in its way.
func (p *probe) takes() time.Duration {
	return timeOf(p.Status.DueTime).Sub(timeOf(p.Status.StartTime)) - p.Check.Delay
}

// deadline is when it gives up. A process that begins late, or after the deadline, has
// the time for one whole probe.
func (p *probe) deadline() time.Time {
	return latest(timeOf(p.Status.Deadline), p.Began.Add(p.takes()))
}

// giveUp ends the check at its deadline. What was measured and shows neither is one
// thing, what could not be measured another.
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

// describeOpen says how far the pods have come, and what is the matter with the first
// that has not passed.
func (p *probe) describeOpen() string {
	open := append(slices.Clone(p.open), p.lost...)
	// Those that were never measured first, as the phase is about them.
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
	told := fmt.Sprintf("%d of %d pods have passed", len(p.passed), len(p.passed)+len(open))
	if len(open) == 0 {
		return told
	}
	streak := p.plan.Streaks[open[0].UID]
	what := cmp.Or(streak.Last.Message, "it was not called yet")
	switch {
	case open[0].Lost:
		what = "its node does not answer"
	case streak.Last.Outcome == probeGood:
		what = fmt.Sprintf("it answered well %d times in a row", streak.Good)
	}
	if p.Check.Probe.Service != "" {
		return p.called(open[0]) + " has not passed: " + what
	}
	return fmt.Sprintf("%s; %s: %s", told, p.called(open[0]), what)
}
