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
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// queryInput is the input of a decision about a check of type prometheus or alerts.
type queryInput struct {
	Now   time.Time
	Check *policy.Check
	// Status of the check, which has begun, with its progress.
	Status v1alpha1.CheckStatus
	// Range of the samples of the query.
	Range time.Duration
	// Answer to the evaluation that is due; nil if it is not asked yet.
	Answer *queryAnswer
	// Errors is the number of calls of this process in a row without an answer, NotBefore the time of
	// the next call after one.
	Errors    int
	NotBefore time.Time
}

// queryAnswer is the result of one evaluation of a query.
type queryAnswer struct {
	// Query with the values of its variables; empty if it could not be resolved.
	Query   string
	Samples []rules.Sample
	// Crosses: failWhen is true.
	Crosses bool
	// Alerts is set for a check of type alerts, Compared for a check of type compare.
	Alerts   *alertsFound
	Compared *compared
	// Reason and Message are set if nothing was measured.
	Reason, Message string
	Ended           time.Time
	// Service is the result of a call of a service.
	Service serviceResult
}

// queryPlan is a decision about the check.
type queryPlan struct {
	// Status is the new status, which may be equal to the old one.
	Status v1alpha1.CheckStatus
	// Ask is the time as of which the query is to be evaluated now; zero for not now.
	Ask time.Time
	// Errors and NotBefore are the new ones of queryInput.
	Errors    int
	NotBefore time.Time
	// After is the time until the next decision; 0 for never.
	After time.Duration
}

const (
	// queryRetry is the first wait after a call without an answer, maxQueryRetry the longest.
	queryRetry    = 10 * time.Second
	maxQueryRetry = time.Minute
)

// Bounds of the status.
const (
	maxQueryText = 2048
	maxSamples   = 10
	maxSample    = 160
)

// finite returns the samples whose value is a finite number.
func finite(samples []rules.Sample) []rules.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s rules.Sample) bool { return math.IsNaN(s.Value) || math.IsInf(s.Value, 0) })
}

// measurable returns the samples that failWhen reads, and whether there are any. A result without
// series may count as the value 0.
func measurable(empty v1alpha1.EmptyResult, samples []rules.Sample) ([]rules.Sample, bool) {
	if len(samples) == 0 && empty == v1alpha1.EmptyZero {
		return []rules.Sample{{}}, true
	}
	values := finite(samples)
	return values, len(values) > 0
}

// decideQuery decides about a check of type prometheus or alerts. The query is evaluated as of planned times, so
// that an answer does not depend on when the endpoint is asked, or after which outage.
func decideQuery(in queryInput) queryPlan {
	q := query{queryInput: in, plan: queryPlan{Status: *in.Status.DeepCopy(), Errors: in.Errors, NotBefore: in.NotBefore}}
	q.plan.Status.DueTime = stamp(q.planned(int(in.Check.Prometheus.Count) - 1).Add(policy.Lag))
	if in.Answer != nil {
		q.take(in.Answer)
	}
	s := &q.plan.Status
	if s.Phase == v1alpha1.CheckWatching && (q.plan.Errors > 0 || q.goesOn() && s.Measured >= in.Check.Prometheus.Count) {
		s.Phase = v1alpha1.CheckRunning // Watching counts as passed after the deadline
	}
	switch {
	case s.ConsecutiveFailures >= in.Check.Prometheus.Failures:
		q.fail()
	case s.Measured >= in.Check.Prometheus.Count && s.ConsecutiveFailures == 0 && !q.goesOn():
		q.pass()
	default:
		q.goOn()
	}
	return q.plan
}

type query struct {
	queryInput
	plan queryPlan
}

// planned returns the time as of which an evaluation is made, counted from 0.
func (q *query) planned(n int) time.Time {
	if c := q.Check.Compare; c != nil {
		return q.Check.WindowFrom(timeOf(q.Status.StartTime)).Add(time.Duration(n+1) * c.Slice.Duration)
	}
	return timeOf(q.Status.StartTime).Add(q.Check.Delay + q.Range + time.Duration(n)*q.Check.Prometheus.Interval.Duration)
}

// take adds an answer to the progress.
func (q *query) take(a *queryAnswer) {
	s := &q.plan.Status
	if a.Query != "" {
		s.Query = wording.Shortened(a.Query, maxQueryText)
	}
	if a.Reason != "" {
		q.plan.NotBefore = a.Ended.Add(min(queryRetry<<min(q.plan.Errors, 3), maxQueryRetry))
		q.plan.Errors++
		s.Reason, s.Message = a.Reason, a.Message
		return
	}
	s.Measured, q.plan.Errors, q.plan.NotBefore = s.Measured+1, 0, time.Time{}
	if a.Alerts != nil {
		q.takeAlerts(a.Alerts)
		return
	}
	if a.Compared != nil {
		q.takeCompared(a.Compared)
		return
	}
	values, some := measurable(q.Check.Prometheus.Empty, a.Samples)
	s.Samples, s.Value = describeSamples(values), describeValue(values)
	switch {
	case len(a.Samples) == 0 && q.Check.Prometheus.Empty == v1alpha1.EmptyPass:
		s.WithData, s.ConsecutiveFailures, s.Reason = s.WithData+1, 0, v1alpha1.ReasonMeasuring
	case !some:
		s.Reason = v1alpha1.ReasonNoSeries
		if len(a.Samples) > 0 {
			s.Reason = v1alpha1.ReasonNotFinite
		}
	case a.Crosses:
		s.WithData, s.ConsecutiveFailures, s.Reason = s.WithData+1, s.ConsecutiveFailures+1, v1alpha1.ReasonThreshold
	default:
		s.WithData, s.ConsecutiveFailures, s.Reason = s.WithData+1, 0, v1alpha1.ReasonMeasuring
	}
	s.Message = fmt.Sprintf("%d of %d evaluations: %s", s.Measured, q.Check.Prometheus.Count, q.last())
}

// last describes the last answer.
func (q *query) last() string {
	s := &q.plan.Status
	switch alerts := q.Check.Alerts != nil; {
	case q.Check.Compare != nil:
		return strings.Join(s.Samples, "; ")
	case s.Reason == v1alpha1.ReasonAlertBefore:
		return strings.Join(s.Samples[:min(len(s.Samples), 1)], "") + " was pending or firing before the release, and is no verdict on it"
	case s.Reason == v1alpha1.ReasonNoSeries && alerts:
		return noSamples + ", so it cannot tell whether alerts fire"
	case alerts:
		return "no alert fires that counts"
	case s.Reason == v1alpha1.ReasonNoSeries:
		return "the result has no series"
	case s.Reason == v1alpha1.ReasonNotFinite:
		return "no value of the result is a finite number, as 0/0 without traffic"
	case s.Reason == v1alpha1.ReasonThreshold:
		return fmt.Sprintf("%s, failWhen is true %d times in a row", q.value(), s.ConsecutiveFailures)
	default:
		return q.value() + ", failWhen is false"
	}
}

func (q *query) value() string {
	if v := q.plan.Status.Value; v != "" {
		return "value " + v
	}
	return fmt.Sprintf("%d series", len(q.plan.Status.Samples))
}

// fail fails the batch or the release.
func (q *query) fail() {
	s := &q.plan.Status
	s.Phase = v1alpha1.CheckFailed
	if q.Check.Alerts != nil || q.Check.Compare != nil {
		return // the message and the pods are those of the last answer
	}
	s.Reason = v1alpha1.ReasonThreshold
	first := ""
	if len(s.Samples) > 0 && s.Value == "" {
		first = "first series " + s.Samples[0]
	}
	message := fmt.Sprintf("%s; %s is true %d times in a row", cmp.Or(first, q.value()), q.Check.Prometheus.FailWhen, s.ConsecutiveFailures)
	report(s, nil, message, q.Check.Suggestion)
}

// pass ends the check when all evaluations are made. A check whose last evaluation had no data has
// not passed: what was measured before may have ended.
func (q *query) pass() {
	s := &q.plan.Status
	switch {
	case s.Reason == v1alpha1.ReasonAlertBefore:
		s.Phase, s.OnSilence, s.Message = v1alpha1.CheckInconclusive, onSilence(q.Check.OnNoData), q.last()
		return
	case q.comparedNow().Unconfirmed:
		s.Phase, s.OnSilence, s.Reason = v1alpha1.CheckInconclusive, onSilence(q.Check.OnNoData), v1alpha1.ReasonUnsteady
		s.Message = "not confirmed: " + q.last()
		return
	case s.Reason == v1alpha1.ReasonFewData && q.comparedNow().Gone > 0:
		*s = notCompared(*s, q.Check, q.comparedNow().Gone, "", q.comparedNow().Earlier)
		return
	case s.Reason == v1alpha1.ReasonFewData:
		s.Phase, s.OnSilence, s.Message = v1alpha1.CheckNoData, onSilence(q.Check.OnNoData), q.last()
		return
	case q.comparedNow().Missed:
		s.Phase, s.OnSilence, s.Reason = v1alpha1.CheckInconclusive, onSilence(q.Check.OnNoData), v1alpha1.ReasonNoOldPods
		if s.Message = q.last(); q.comparedNow().Earlier {
			s.Phase, s.OnSilence, s.Message = v1alpha1.CheckSkipped, "", s.Message+"; an earlier batch was compared"
		}
		return
	case s.Reason == v1alpha1.ReasonNoSeries || s.Reason == v1alpha1.ReasonNotFinite:
		s.Phase, s.OnSilence = v1alpha1.CheckNoData, onSilence(q.Check.OnNoData)
		s.Message = fmt.Sprintf("%s at the end; %d of %d evaluations had data; see the query in this status", q.last(), s.WithData, s.Measured)
		return
	case s.Phase == v1alpha1.CheckWatching && (q.Check.Compare == nil || q.Check.Compare.Baseline == v1alpha1.BaselineOldPods):
		return // a pass in the background is not written, unless a later batch reads it
	}
	s.Phase, s.Message = v1alpha1.CheckPassed, fmt.Sprintf("%d of %d evaluations had data; the last one: %s", s.WithData, s.Measured, q.last())
	s.Reason = v1alpha1.ReasonPassed
}

// goOn asks for the next evaluation when it is due. Evaluations that are due before the deadline are made
// later, too, so that an outage of the operator changes nothing.
func (q *query) goOn() {
	s := &q.plan.Status
	deadline := timeOf(s.Deadline)
	due := q.planned(int(s.Measured)).Add(policy.Lag)
	switch {
	case q.plan.Errors > 0 && !q.Now.Before(deadline) && q.Answer != nil:
		s.Phase, s.OnSilence = v1alpha1.CheckError, onSilence(q.Check.OnError)
		s.Message = "until the deadline: " + s.Message
	case due.After(deadline):
		q.tooShort()
	default:
		q.next(due, deadline)
	}
}

// tooShort ends a check whose deadline ends before its evaluations do.
func (q *query) tooShort() {
	s := &q.plan.Status
	s.Phase, s.OnSilence, s.Reason = v1alpha1.CheckInconclusive, onSilence(q.Check.OnNoData), v1alpha1.ReasonUnsteady
	if s.WithData == 0 {
		s.Phase, s.Reason = v1alpha1.CheckNoData, v1alpha1.ReasonNoSeries
	}
	s.Message = fmt.Sprintf("the deadline is over after %d evaluations, %d of them bad in a row: set a longer deadline", s.Measured,
		s.ConsecutiveFailures)
}

// next waits for the next evaluation, or asks for it.
func (q *query) next(due, deadline time.Time) {
	s := &q.plan.Status
	at := latest(due, q.plan.NotBefore)
	if q.plan.Errors > 0 && at.After(deadline) {
		at = latest(due, deadline) // the last try
	}
	if left := at.Sub(q.Now); left > 0 {
		q.plan.After = left
		return
	}
	n := int(s.Measured)
	for q.Check.Compare != nil && n < int(longest(q.Check))-1 && !q.planned(n+1).Add(policy.Lag).After(q.Now) {
		n++ // it has all that earlier evaluations have
	}
	q.plan.Ask = q.planned(n)
}

// describeValue returns the value of a result with one series; empty for another result.
func describeValue(samples []rules.Sample) string {
	if len(samples) != 1 {
		return ""
	}
	return number(samples[0].Value)
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// describeSamples returns the series with the largest values.
func describeSamples(samples []rules.Sample) []string {
	samples = slices.Clone(samples)
	slices.SortFunc(samples, func(a, b rules.Sample) int {
		return cmp.Or(cmp.Compare(b.Value, a.Value), strings.Compare(describeLabels(a.Labels), describeLabels(b.Labels)))
	})
	var described []string
	for _, s := range samples[:min(len(samples), maxSamples)] {
		value := " " + number(s.Value)
		described = append(described, wording.Shortened(describeLabels(s.Labels), maxSample-len(value))+value)
	}
	return described
}

// describeLabels returns labels as PromQL writes them.
func describeLabels(labels map[string]string) string {
	parts := make([]string, 0, len(labels))
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, name+"="+strconv.Quote(labels[name]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
