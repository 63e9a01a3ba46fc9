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
	"context"
	"fmt"
	"slices"
	"time"

	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/judge"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/promql"
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

// comparedMetric is a metric with its queries. past is about the spread of old pods.
type comparedMetric struct {
	v1alpha1.CompareMetric
	query, past, numerator, denominator string
	// before and pastBefore are about old pods before the release.
	before, pastBefore string
}

// withoutComparison ends a check of type compare that has nothing to compare.
func (p *querier) withoutComparison(
	ctx context.Context, s *Subject, of *policy.Check, c *v1alpha1.CheckStatus,
) (next v1alpha1.CheckStatus, ends bool, err error) {
	if of.Compare == nil || s.Batch == nil || hasLive(of.Compare, c.OldPods) {
		return next, false, nil
	}
	batches, err := p.view.Batches(ctx, s.Release)
	if err != nil {
		return next, false, err
	}
	n := batchOfAttempt(batches, s.Batch)
	if judge.IsLook(n) && hasKept(of.Compare, s.Release) {
		return next, false, nil
	}
	undo, err := isUndo(ctx, p.view, s)
	if err != nil {
		return next, false, err
	}
	_, before, err := p.view.OldTemplate(ctx, s.Workload)
	if err != nil {
		return next, false, err
	}
	why := without(before, undo)
	if why == "" && s.Workload.Rollbacks != "" {
		why = "which pods have the previous version is not known of a declared kind"
	}
	earlier := isCompared(of, n, passedEarlier(batches, s.Batch, of.Name))
	return notCompared(followed(c, of, s), of, n, why, earlier), true, nil
}

// comparing returns the queries of a comparison of a batch and the earlier ones of its attempt. some is false if no new pod is left.
func (p *querier) comparing(
	ctx context.Context, s *Subject, of *policy.Check, v promql.Variables, status *v1alpha1.CheckStatus, series endpoint.Series,
) (q *question, some bool, err error) {
	pods, err := podsOfBatch(ctx, p.view, s.Batch)
	if err != nil {
		return nil, false, err
	}
	released, err := p.view.Pods(ctx, s.Workload)
	if err != nil || len(pods)+len(released) == 0 {
		return nil, false, err
	}
	batches, err := p.view.Batches(ctx, s.Release)
	if err != nil {
		return nil, false, err
	}
	q = p.comparison(s, of, v, status, series, attemptNames(batches, s.Batch), released)
	n := batchOfAttempt(batches, s.Batch)
	q.compare.earlier = isCompared(of, n, passedEarlier(batches, s.Batch, of.Name))
	exists, err := p.anyExists(ctx, s.Release.Namespace, q.compare.old)
	if err == nil && !exists {
		q.compare.gone = n
	}
	return q, true, err
}

// anyExists reports whether one of some pods exists.
func (p *querier) anyExists(ctx context.Context, namespace string, names []string) (bool, error) {
	for _, name := range names {
		err := p.view.Cached.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &corev1.Pod{})
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("get pod %s/%s: %w", namespace, name, err)
		}
		if err == nil {
			return true, nil
		}
	}
	return false, nil
}

// comparison returns the queries of a comparison of new pods, whose release has pods.
func (p *querier) comparison(
	s *Subject, of *policy.Check, v promql.Variables, status *v1alpha1.CheckStatus, series endpoint.Series, fresh []string,
	released []workload.Pod,
) *question {
	c := &comparing{comparison: comparison{
		of: of.Compare, fresh: promql.Sample(fresh, maxCompared), podLabel: model.LabelName(series.PodLabel),
		start: of.WindowFrom(timeOf(status.StartTime)), alpha: p.alphaOf(s, of), samples: of.Samples(series.ScrapeInterval),
		before: beforeOf(of.Compare, s.Release),
	}}
	if hasLive(of.Compare, status.OldPods) {
		// A pod of a StatefulSet has the name of the old pod that it replaces.
		c.old = slices.DeleteFunc(slices.Clone(status.OldPods), func(name string) bool {
			return slices.Contains(fresh, name) || slices.ContainsFunc(released, func(pod workload.Pod) bool { return pod.Name == name })
		})
	}
	v.NewPods, v.OldPods, v.Pods = c.fresh, c.old, slices.Concat(c.fresh, c.old)
	v.Range = model.Duration(c.samples).String()
	c.variables, c.only = v, p.onlyOf(s, of)
	q := &question{Query: &promql.Query{}, compare: c}
	// A check was accepted, perhaps by another version of the operator.
	for _, name := range of.Compare.Presets {
		if name != v1alpha1.PresetAuto {
			q.Problem = fmt.Sprintf("the preset %s is not known to this version of the operator", name)
		}
	}
	if policy.IsAuto(of.Compare) {
		v.Pods = c.old
		if c.before != nil {
			v.Pods = slices.Concat(c.old, c.before.names)
		}
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
		past := func(query string) string {
			window, slice := model.Duration(c.of.Window.Duration), model.Duration(c.of.Slice.Duration)
			return fmt.Sprintf("quantile_over_time(0.5, (%s)[%s:%s])", query, window, slice)
		}
		if m.query != "" {
			m.past = past(m.query)
		}
		if m.query != "" && c.before != nil {
			v := c.variables
			v.OldPods, v.Pods = c.before.names, c.before.names
			resolved, err := promql.Resolve(m.Query, v, c.only)
			if err != nil {
				return "", err
			}
			m.before, m.pastBefore = resolved.Text, past(resolved.Text)
		}
		c.metrics = append(c.metrics, m)
	}
	return last, nil
}

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
	found := &compared{Slices: int32(at.Sub(c.start) / slice), Earlier: c.earlier} //nolint:gosec // at most 60
	if c.before == nil {
		found.Gone = c.gone
	}
	var query string
	var failed error
	if c.auto != nil {
		// Each evaluation finds the same, as of the start of the window.
		answer, err := p.clients.Query(ctx, e, work, c.auto.Text, c.start, of.Timeout)
		metrics, looked := policy.Discovered(answer)
		if err == nil && looked != "" && c.before != nil {
			answer, err = p.clients.Query(ctx, e, work, c.auto.Text, c.before.end, of.Timeout)
			metrics, looked = policy.Discovered(answer)
		}
		if err == nil {
			query, err = c.add(policy.ValuesOnly(of.Compare, metrics))
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
		var values measured
		var err error
		switch {
		case m.query == "":
			from := c.start.Add(-usualFor / slice * slice)
			if first, err = ask(m.numerator, from, at, slice); err == nil {
				second, err = ask(m.denominator, from, at, slice)
			}
		case now.judgesValues():
			values.now, err = ask(m.query, now.valuesFrom().Add(slice), at, slice)
			old := now.oldWithData(values.now)
			if err == nil && (old > 0 || now.before == nil) {
				values.past, err = ask(m.past, c.start.Add(-pastFor), c.start, pastEvery)
			}
			if end := now.before; end != nil && old < enoughOld && err == nil {
				if values.before, err = ask(m.before, end.end.Add(-c.of.Window.Duration/slice*slice), end.end, slice); err == nil {
					values.pastBefore, err = ask(m.pastBefore, end.end.Add(-pastFor), end.end, pastEvery)
				}
			}
		}
		switch {
		case err != nil:
			failed = cmp.Or(failed, err)
		case m.query == "":
			now.counts(&m.CompareMetric, first, second, found)
		default:
			now.values(&m.CompareMetric, &values, found)
		}
	}
	if failed != nil && len(found.Failing) == 0 {
		return unanswered(e, failed) // with a metric that fails, no answer makes that better
	}
	return &queryAnswer{Compared: found, Query: query}
}
