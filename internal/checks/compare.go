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
	"math"
	"slices"
	"time"

	"github.com/prometheus/common/model"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/judge"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

const (
	// usualFor is the time before the window from which the usual errors of old pods are known.
	usualFor = time.Hour
	// pastFor is the time before the window from which the spread of old pods is known, by one value in each pastEvery.
	pastFor, pastEvery = 6 * time.Hour, time.Hour
	// suspicious odds are no failure, and keep a comparison open.
	suspicious = 10
	// unknownSpread is assumed between pods of which no past is known: two values that differ by it.
	unknownSpread = 0.3
)

// The defaults of metrics.
const (
	defaultChange, defaultShareChange = 30, 100
	defaultCritical                   = 200
	defaultPoints                     = 0.002
)

// comparison is what is compared at one evaluation of a check of type compare.
type comparison struct {
	of *v1alpha1.CompareCheck
	// fresh and old are the names of the pods.
	fresh, old []string
	podLabel   model.LabelName
	// start is the start of the window, at the end of the last slice.
	start, at time.Time
	// alpha is the share of healthy releases that each metric may fail.
	alpha float64
	// samples is $range, the time that a value covers.
	samples time.Duration
	// gone is the number of the batch within its attempt if none of the old pods is left; else 0.
	gone int
	// before is the time before the release; nil if it is not compared with. earlier: an earlier batch passed the check.
	before  *before
	earlier bool
}

// compared is the result of an evaluation.
type compared struct {
	// Failing and Other are sentences about metrics, those that fail and all others.
	Failing, Other []string
	// Short: a metric has too few data. Open: one is not compared yet, or is suspicious. Unconfirmed: one has to be confirmed.
	Short, Open, Unconfirmed bool
	// Gone is comparison.gone if the time before the release is not compared with, and Earlier is comparison.earlier.
	Gone int
	// Missed: a share cannot be compared, since no old pod is left.
	Missed, Earlier bool
	// Slices of the window that were compared.
	Slices int32
}

// times returns the ends of the slices between two times.
func (c *comparison) times(from, until time.Time) (at []model.Time) {
	for t := from.Add(c.of.Slice.Duration); !t.After(until); t = t.Add(c.of.Slice.Duration) {
		at = append(at, model.TimeFromUnixNano(t.UnixNano()))
	}
	return at
}

// samplesByTime are values of a pod by time.
type samplesByTime map[model.Time]float64

// byPod returns the values of each pod. A pod with several series has none: the query does not aggregate them.
func (c *comparison) byPod(matrix model.Matrix) map[string]samplesByTime {
	of := map[string]samplesByTime{}
	for _, stream := range matrix {
		pod := string(stream.Metric[c.podLabel])
		if _, twice := of[pod]; twice {
			of[pod] = samplesByTime{}
			continue
		}
		of[pod] = samplesByTime{}
		for _, v := range stream.Values {
			of[pod][v.Timestamp] = float64(v.Value)
		}
	}
	return of
}

// counts judges a share of requests: the increase of one counter of each pod by that of another, slice by slice.
func (c *comparison) counts(m *v1alpha1.CompareMetric, numerator, denominator model.Matrix, result *compared) {
	events, requests := c.byPod(numerator), c.byPod(denominator)
	minute := func(pods []string, before, at model.Time) (of []judge.PodMinute) {
		for _, pod := range pods {
			increase := func(counter samplesByTime, absent float64) float64 {
				from, some := counter[before]
				if !some {
					from = absent
				}
				to, some := counter[at]
				if !some {
					to = absent
				}
				return to - from
			}
			e, n := increase(events[pod], 0), increase(requests[pod], math.NaN())
			if e >= 0 && n > 0 { // a counter falls when its container restarts
				of = append(of, judge.PodMinute{Pod: pod, Events: e, Exposure: max(n, e)})
			}
		}
		return of
	}
	floors := judge.RequestFloors
	floors.Points, floors.Times = defaultPoints, 1+float64(valueOr(m.MinChangePercent, defaultShareChange))/100
	if m.MinChange != nil {
		floors.Points = m.MinChange.AsApproximateFloat64()
	}
	var usual []judge.PodMinute
	slice := c.of.Slice.Duration
	for _, at := range c.times(c.start.Add(-usualFor/slice*slice), c.start) {
		usual = append(usual, minute(c.old, at.Add(-slice), at)...)
	}
	counts, fails := judge.NewCounts(floors, usual), false
	for _, at := range c.times(c.start, c.at) {
		counts.Add(minute(c.fresh, at.Add(-slice), at), minute(c.old, at.Add(-slice), at))
		if fails = counts.Fails(c.alpha); fails {
			break
		}
	}
	if c.before != nil && c.gone > 0 && !fails && !counts.Enough() {
		result.miss(m.Name)
		return
	}
	result.add(m.Name, counts.Sentence("requests", slice), fails, !counts.Enough(), counts.Odds() >= suspicious)
}

// measured are the answers about a value: of now, of its past, and both of the time before the release.
type measured struct{ now, past, before, pastBefore model.Matrix }

// values judges a value of each pod.
func (c *comparison) values(m *v1alpha1.CompareMetric, answers *measured, result *compared) {
	of := c.byPod(answers.now)
	v := judge.Values{
		Direction: map[v1alpha1.CompareDirection]judge.Direction{
			v1alpha1.CompareDecrease: judge.Decrease, v1alpha1.CompareEither: judge.Either,
		}[m.Direction],
		MinChange: m.MinChange.AsApproximateFloat64(), MinTimes: float64(valueOr(m.MinChangePercent, defaultChange)) / 100, Alpha: c.alpha,
	}
	v.Past = pastOf(c.byPod(answers.past), c.old, v.MinChange)
	sameTime := func(from, until time.Time) judge.Comparison {
		all := c.times(from, until)
		v.New, v.Old = seriesOf(of, c.fresh, all), seriesOf(of, c.old, all)
		return v.Compare()
	}
	earlier := func(from, until time.Time) judge.Comparison {
		v.New = seriesOf(of, c.fresh, c.times(from, until))
		return c.againstBefore(v, answers)
	}
	if !c.judgesValues() {
		result.Other, result.Open = append(result.Other, m.Name+": compared at the end of the window"), true
		return
	}
	window, slice, from := c.of.Window.Duration, c.of.Slice.Duration, c.valuesFrom()
	end, last := from.Add(window), c.start.Add(c.of.MaxWindow.Duration/slice*slice)
	// All comparisons of an evaluation have the same baseline.
	between, found := sameTime, sameTime(from, earliest(end, c.at))
	if c.before != nil && found.Old < enoughOld {
		if other := earlier(from, earliest(end, c.at)); other.Enough || !found.Enough {
			between, found = earlier, other
		}
	}
	critical := float64(cmp.Or(m.CriticalChangePercent, defaultCritical)) / 100
	switch confirmed := earliest(end.Add(window/2/slice*slice), last); {
	case !found.Enough && c.last():
		found = between(from, c.at)
	case !found.Enough:
	case !found.Fails || !*c.of.Confirm || math.Abs(found.Value-found.Baseline) >= critical*found.Baseline:
	case c.at.Before(confirmed):
		found.Fails, result.Unconfirmed = false, true
	default:
		again := between(confirmed.Add(-window), confirmed)
		found.Fails, result.Unconfirmed = again.Fails, result.Unconfirmed || !again.Enough
	}
	result.add(m.Name, found.Sentence(), found.Fails, !found.Enough, false)
}

// oldWithData returns the number of old pods with enough data at the same time.
func (c *comparison) oldWithData(now model.Matrix) int {
	from := c.valuesFrom()
	v := judge.Values{Old: seriesOf(c.byPod(now), c.old, c.times(from, earliest(from.Add(c.of.Window.Duration), c.at)))}
	return v.Compare().Old
}

// valuesFrom returns the start of the window of values: each covers $range, and none covers the warm-up.
func (c *comparison) valuesFrom() time.Time {
	slice := c.of.Slice.Duration
	return c.start.Add((max(c.samples, slice) - 1) / slice * slice)
}

// judgesValues reports whether values are compared: at the end of their window, or at the last evaluation.
func (c *comparison) judgesValues() bool {
	window := c.of.Window.Duration
	return !c.at.Before(c.valuesFrom().Add(window)) || c.last() || c.gone > 0 && c.before == nil && !c.at.Before(c.start.Add(window))
}

// last reports whether no later evaluation is made.
func (c *comparison) last() bool {
	return c.at.Add(c.of.Slice.Duration).After(c.start.Add(c.of.MaxWindow.Duration))
}

// pastOf returns the past of some pods.
func pastOf(of map[string]samplesByTime, pods []string, minChange float64) (past []float64) {
	for _, pod := range pods {
		for _, value := range of[pod] {
			if !math.IsNaN(value) && !math.IsInf(value, 0) {
				past = append(past, value)
			}
		}
	}
	slices.Sort(past)
	if len(past) < 2 {
		return unknownPast(minChange)
	}
	return past
}

// unknownPast returns a past with the spread that is assumed without one.
func unknownPast(minChange float64) []float64 {
	return []float64{0, minChange * math.Expm1(unknownSpread*math.Sqrt2)}
}

// add adds the result of a metric.
func (r *compared) add(name, sentence string, fails, short, open bool) {
	sentence = name + ": " + sentence
	if fails {
		r.Failing = append(r.Failing, sentence)
		return
	}
	r.Other = append(r.Other, sentence)
	r.Open, r.Short = r.Open || open, r.Short || short
}

// miss adds a share that cannot be compared.
func (r *compared) miss(name string) {
	r.Other, r.Missed = append(r.Other, name+": not compared, since a share needs old pods at the same time"), true
}

func valueOr(p *int32, otherwise int32) int32 {
	if p == nil {
		return otherwise
	}
	return *p
}

// longest returns the most evaluations of a comparison with too few data.
func longest(of *policy.Check) int32 {
	return int32(of.Compare.MaxWindow.Duration / of.Compare.Slice.Duration) //nolint:gosec // at most 60
}

// takeCompared adds a comparison to the progress.
func (q *query) takeCompared(found *compared) {
	s := &q.plan.Status
	s.Measured = found.Slices
	s.Samples, s.ConsecutiveFailures, s.Reason = slices.Concat(found.Failing, found.Other), 0, v1alpha1.ReasonMeasuring
	s.Samples = s.Samples[:min(len(s.Samples), maxSamples)]
	for i, text := range s.Samples {
		s.Samples[i] = wording.Shortened(text, maxSample)
	}
	if !found.Short && !found.Missed {
		s.WithData++
	}
	switch {
	case len(found.Failing) > 0:
		s.ConsecutiveFailures, s.Reason = 1, v1alpha1.ReasonWorse
		message := found.Failing[0]
		if n := len(found.Failing) - 1; n > 0 {
			message += fmt.Sprintf(" (and %d of the other metrics)", n)
		}
		report(s, nil, message, q.Check.Suggestion)
		return
	case found.Short:
		s.Reason = v1alpha1.ReasonFewData
	case found.Open, found.Unconfirmed:
		s.Reason = v1alpha1.ReasonUnsteady
	}
	s.Message = fmt.Sprintf("%d of at least %d evaluations: %s", s.Measured, q.Check.Prometheus.Count, q.last())
}

// goesOn reports whether a comparison goes on beyond its window, as long as old pods are left: with too few data, with a change that is
// not confirmed, and after a call without an answer.
func (q *query) goesOn() bool {
	s := &q.plan.Status
	return q.Check.Compare != nil && s.Measured < longest(q.Check) && q.comparedNow().Gone == 0 && s.Reason != v1alpha1.ReasonMeasuring
}

// comparedNow returns the comparison of the last answer.
func (q *query) comparedNow() compared {
	if q.Answer == nil || q.Answer.Compared == nil {
		return compared{}
	}
	return *q.Answer.Compared
}
