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
	"context"
	"fmt"
	"slices"
	"time"

	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/judge"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/promql"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/slots"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// comparing has the queries of a comparison.
type comparing struct {
	comparison
	metrics []comparedMetric
	// auto is the query that finds the metrics of the preset Auto; nil without it.
	auto *promql.Query
	// variables and only are those of promql.Resolve.
	variables promql.Variables
	only      string
}

// comparedMetric is a metric with its queries, of which past is that for the spread of old pods.
type comparedMetric struct {
	v1alpha1.CompareMetric
	query, past, numerator, denominator string
}

// readyNames returns the names of the old pods that new ones can be compared with.
func readyNames(old []workload.Pod) []string {
	old = slices.DeleteFunc(slices.Clone(old), func(pod workload.Pod) bool { return !pod.Ready })
	return promql.Sample(namesOf(old), maxCompared)
}

// newNames returns the names of the pods of a batch, and of those of its release that were Ready when the check began: later ones are not
// warm yet.
func newNames(batch, released []workload.Pod, began time.Time) []string {
	names := namesOf(batch)
	for _, pod := range released {
		if pod.Ready && !pod.ReadySince.After(began) && !slices.Contains(names, pod.Name) {
			names = append(names, pod.Name)
		}
	}
	return names
}

// batchOfAttempt returns the number of a batch within the attempt of its release, from 1: the numbers of batches go on over attempts.
func batchOfAttempt(ctx context.Context, v cluster.View, s *Subject) (int, error) {
	batches, err := v.Batches(ctx, s.Release)
	if err != nil {
		return 0, err
	}
	n := 1
	for i := range batches {
		if batches[i].Spec.Attempt == s.Batch.Spec.Attempt && record.BatchNumber(&batches[i]) < record.BatchNumber(s.Batch) {
			n++
		}
	}
	return n, nil
}

// withoutComparison ends a check of type compare that has nothing to compare.
func (p *querier) withoutComparison(
	ctx context.Context, s *Subject, of *policy.Check, c *v1alpha1.CheckStatus,
) (next v1alpha1.CheckStatus, ends bool, err error) {
	if of.Compare == nil || s.Batch == nil || len(c.OldPods) > 0 {
		return next, false, nil
	}
	n, err := batchOfAttempt(ctx, p.view, s)
	if err != nil {
		return next, false, err
	}
	_, before, err := p.view.OldTemplate(ctx, s.Workload)
	if err != nil {
		return next, false, err
	}
	return notCompared(followed(c, of, s), of, n, before), true, nil
}

// notCompared returns the status of a check of type compare of the nth batch that has no old pods; before is the version before.
func notCompared(next v1alpha1.CheckStatus, of *policy.Check, n int, before string) v1alpha1.CheckStatus {
	next.Phase, next.Reason = v1alpha1.CheckSkipped, v1alpha1.ReasonNoOldPods
	switch {
	case !judge.IsLook(n):
		next.Reason = v1alpha1.ReasonNotDue
		next.Message = fmt.Sprintf("pods are compared after the batches 1, 2, 4, 8 and so on of a release, and this is batch %d", n)
	case before == "":
		next.Message = "no version succeeded before this one"
	case n > 1:
		next.Message = "no Ready pod of the previous version is left; earlier batches were compared"
	default:
		next.Phase, next.OnSilence = v1alpha1.CheckInconclusive, onSilence(of.OnNoData)
		next.Message = "no Ready pod of the previous version was left when the check began: hold the rollout (spec.hold)"
	}
	return next
}

// comparing returns the queries of a comparison, which knows the pods of the batch, and those of the release that were Ready when the
// check began. some is false if no new pod is left.
func (p *querier) comparing(
	ctx context.Context, s *Subject, of *policy.Check, v promql.Variables, status *v1alpha1.CheckStatus, series endpoint.Series,
) (q *question, some bool, err error) {
	pods, err := podsOfBatch(ctx, p.view, s.Batch)
	if err != nil {
		return nil, false, err
	}
	released, err := p.view.Pods(ctx, s.Workload)
	if err != nil {
		return nil, false, err
	}
	q = p.comparison(s, of, v, status, series, pods, released)
	return q, q != nil, nil
}

// comparison returns the queries of a comparison of a batch, whose release has pods; nil if no new pod is left.
func (p *querier) comparison(
	s *Subject, of *policy.Check, v promql.Variables, status *v1alpha1.CheckStatus, series endpoint.Series, batch, released []workload.Pod,
) *question {
	fresh := newNames(batch, released, timeOf(status.StartTime).Add(of.Delay))
	if len(fresh) == 0 {
		return nil
	}
	c := &comparing{comparison: comparison{
		of: of.Compare, fresh: promql.Sample(fresh, maxCompared), podLabel: model.LabelName(series.PodLabel),
		start: of.WindowFrom(timeOf(status.StartTime)), alpha: p.alphaOf(s, of),
	}}
	// A pod of a StatefulSet has the name of the old pod that it replaces.
	c.old = slices.DeleteFunc(slices.Clone(status.OldPods), func(name string) bool {
		return slices.ContainsFunc(released, func(pod workload.Pod) bool { return pod.Name == name })
	})
	v.NewPods, v.OldPods, v.Pods = c.fresh, c.old, slices.Concat(c.fresh, c.old)
	v.Range = model.Duration(of.Samples(series.ScrapeInterval)).String()
	c.variables, c.only = v, p.onlyOf(s, of)
	q := &question{Query: &promql.Query{}, compare: c}
	// A check was accepted, perhaps by another version of the operator.
	for _, name := range of.Compare.Presets {
		if name != v1alpha1.PresetAuto {
			q.Problem = fmt.Sprintf("the preset %s is not known to this version of the operator", name)
		}
	}
	if policy.IsAuto(of.Compare) {
		// The pods of this batch are left out by their names, so that each process asks about the same pods.
		v.Pods = promql.Sample(slices.DeleteFunc(slices.Clone(status.OldPods), func(name string) bool {
			return slices.ContainsFunc(s.Batch.Spec.PodInfos, func(info v1alpha1.PodInfo) bool { return info.Pod == name })
		}), maxAsked)
		var err error
		if c.auto, err = promql.Resolve(policy.Discovery(), v, c.only); err != nil {
			q.Problem = err.Error()
			return q
		}
		q.Text = c.auto.Text
	}
	if text, err := c.add(of.Compare.Metrics); err != nil {
		q.Problem = err.Error()
	} else if text != "" {
		q.Text = text
	}
	return q
}

// add adds metrics with their queries, except those that it has. It returns the last query.
func (c *comparing) add(metrics []v1alpha1.CompareMetric) (last string, err error) {
	for i := range metrics {
		m := comparedMetric{CompareMetric: metrics[i]}
		if slices.ContainsFunc(c.metrics, func(has comparedMetric) bool { return has.Name == m.Name }) {
			continue
		}
		for _, query := range []struct {
			text string
			to   *string
		}{{m.Query, &m.query}, {m.Numerator, &m.numerator}, {m.Denominator, &m.denominator}} {
			if query.text == "" {
				continue
			}
			resolved, err := promql.Resolve(query.text, c.variables, c.only)
			if err != nil {
				return "", err
			}
			*query.to, last = resolved.Text, resolved.Text
		}
		if m.query != "" {
			m.past = fmt.Sprintf("quantile_over_time(0.5, (%s)[%s:%s])", m.query, model.Duration(c.of.Window.Duration),
				model.Duration(c.of.Slice.Duration))
		}
		c.metrics = append(c.metrics, m)
	}
	return last, nil
}

// maxAsked is the number of old pods that Auto asks about.
const maxAsked = 5

// alphaOf returns the share of healthy releases that one metric may fail after one batch. The metrics of all checks that are enforced
// share it, those of the operator's namespace and those of the workload's each among themselves.
func (p *querier) alphaOf(s *Subject, of *policy.Check) float64 {
	metrics := 0
	selected := policy.Select(s.Policies, p.view.Operator, s.Selected)
	for i := range selected.Checks {
		c := &selected.Checks[i]
		if c.Compare != nil && c.IsOf(p.view.Operator) == of.IsOf(p.view.Operator) && (c.Name == of.Name || c.Mode == v1alpha1.ModeEnforce) {
			metrics += policy.MetricCount(c.Compare)
		}
	}
	return judge.LookAlpha(float64(of.Compare.FalsePositivesPerMille)/1000/float64(max(metrics, 1)), int(s.Workload.Replicas))
}

// compare compares the pods as of a time.
func (p *querier) compare(
	ctx context.Context, of *policy.Check, e *v1alpha1.DefenseEndpoint, work slots.Work, c *comparing, at time.Time,
) *queryAnswer {
	now := c.comparison
	now.at = at
	slice := of.Compare.Slice.Duration
	found := &compared{Slices: int32(at.Sub(c.start) / slice)} //nolint:gosec // at most 60
	var query string
	if c.auto != nil {
		// Each evaluation finds the same, as of the start of the window.
		answer, err := p.clients.Query(ctx, e, work, c.auto.Text, c.start, of.Timeout)
		metrics, looked := policy.Discovered(answer)
		if err == nil {
			query, err = c.add(metrics)
		}
		switch {
		case err != nil:
			return unanswered(e, err)
		case looked != "":
			found.Other, found.Short = append(found.Other, "Auto: old pods have no series of "+looked+": name presets or metrics"), true
			if len(c.metrics) == 0 {
				found.Slices = longest(of) // a later evaluation finds no more
			}
		}
	}
	ask := func(query string, from, until time.Time, step time.Duration) (model.Matrix, error) {
		return p.clients.QueryRange(ctx, e, work, query, promv1.Range{Start: from, End: until, Step: step}, of.Timeout)
	}
	for i := range c.metrics {
		m := &c.metrics[i]
		var first, second model.Matrix
		var err error
		switch {
		case m.query == "":
			from := c.start.Add(-usualFor / slice * slice)
			if first, err = ask(m.numerator, from, at, slice); err == nil {
				second, err = ask(m.denominator, from, at, slice)
			}
		case !at.Before(c.start.Add(of.Compare.Window.Duration)):
			if first, err = ask(m.query, c.start.Add(slice), at, slice); err == nil {
				second, err = ask(m.past, c.start.Add(-pastFor), c.start, pastEvery)
			}
		}
		if err != nil && len(found.Failing) > 0 {
			break // no answer makes that better
		}
		if err != nil {
			return unanswered(e, err)
		}
		if m.query == "" {
			now.counts(&m.CompareMetric, first, second, found)
		} else {
			now.values(&m.CompareMetric, first, second, found)
		}
	}
	return &queryAnswer{Compared: found, Query: query}
}
