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
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/promql"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/slots"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Trial is what the queries of a policy found when they were tried once. It changes nothing else:
// many queries have no series until something fails.
type Trial struct {
	Status metav1.ConditionStatus
	// Reason is one word, Message a sentence.
	Reason, Message string
}

// maxTrial bounds a message, in bytes: a query may have the names of many pods.
const maxTrial = 1024

// Try tries the queries of a policy for a workload, up to the first that finds nothing.
func (p *Checks) Try(ctx context.Context, of *v1alpha1.DefensePolicy, w *workload.Workload, selected policy.Workload) (Trial, error) {
	s := &Subject{Workload: w, Release: &v1alpha1.ChangeWorkload{}, Selected: selected}
	s.Release.Status.StartTimeUnix = p.clock.Now().Unix()
	s.Release.Namespace, s.Release.Name, s.Release.Spec.Reversion = w.Namespace, w.Name, w.Version
	policies, tried := []v1alpha1.DefensePolicy{*of}, "tried for "+w.Name
	for i := range of.Spec.Checks {
		name := of.Namespace + "/" + of.Name + "/" + of.Spec.Checks[i].Name
		c := policy.Find(policies, p.view.Operator, selected, name)
		if c == nil || c.Prometheus == nil {
			continue
		}
		queries, t, err := p.query.queriesOf(ctx, s, c)
		for n := 0; n < len(queries) && err == nil && t.Status == metav1.ConditionTrue; n++ {
			found := t.Message
			t, _, err = p.query.try(ctx, s, queries[n], c.Compare)
			t.Message = cmp.Or(t.Message, found)
		}
		if err != nil || t.Status != metav1.ConditionTrue {
			t.Message = wording.Shortened("check "+of.Spec.Checks[i].Name+", tried for "+w.Name+": "+t.Message, maxTrial)
			return t, err
		}
		if t.Message != "" {
			tried += "; check " + of.Spec.Checks[i].Name + ": " + t.Message
		}
	}
	return Trial{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSeriesFound, Message: wording.Shortened(tried, maxTrial)}, nil
}

// queriesOf returns a check of one query as it is, and a comparison as checks of one query each. With the preset Auto it asks which metrics
// the pods have; the trial says which.
func (p *querier) queriesOf(ctx context.Context, s *Subject, c *policy.Check) (queries []*policy.Check, t Trial, err error) {
	t.Status = metav1.ConditionTrue
	if c.Compare == nil {
		return []*policy.Check{c}, t, nil
	}
	metrics := c.Compare.Metrics
	if policy.IsAuto(c.Compare) {
		var answer []rules.Sample
		t, answer, err = p.try(ctx, s, oneQuery(c, policy.Discovery(), v1alpha1.EmptyPass), nil)
		if err != nil || t.Status != metav1.ConditionTrue {
			return nil, t, err
		}
		found, looked := policy.Discovered(answer)
		if looked != "" {
			return nil, Trial{metav1.ConditionFalse, v1alpha1.ReasonNoSeries, "Auto: the pods have no series of " + looked}, nil
		}
		names := make([]string, len(found))
		for i := range found {
			names[i] = found[i].Name
		}
		t.Message = "Auto compares " + strings.Join(names, ", ")
		metrics = slices.Concat(metrics, found)
	}
	for i := range metrics {
		m := &metrics[i]
		for _, query := range []string{m.Query, m.Numerator, m.Denominator} {
			empty := v1alpha1.EmptyNoData
			if query == m.Numerator {
				empty = v1alpha1.EmptyZero // no error yet
			}
			if query != "" {
				queries = append(queries, oneQuery(c, query, empty))
			}
		}
	}
	return queries, t, nil
}

// oneQuery returns a check of one query of a comparison.
func oneQuery(c *policy.Check, query string, empty v1alpha1.EmptyResult) *policy.Check {
	one, prometheus := *c, *c.Prometheus
	prometheus.Query, prometheus.FailWhen, prometheus.Empty = query, "false", empty
	one.Compare, one.Prometheus = nil, &prometheus
	return &one
}

// try evaluates a query once, as of now, and finds out why it has no series, or none of pods that perPod could compare.
func (p *querier) try(
	ctx context.Context, s *Subject, of *policy.Check, perPod *v1alpha1.CompareCheck,
) (t Trial, found []rules.Sample, err error) {
	e, refused, err := EndpointFor(ctx, p.view, v1alpha1.EndpointPrometheus, of.Prometheus.EndpointRef.Name, of.IsOf(p.view.Operator),
		s.Release.Namespace)
	if err != nil {
		return t, nil, err
	}
	if refused != "" {
		return Trial{metav1.ConditionUnknown, v1alpha1.ReasonNoEndpoint, refused}, nil, nil
	}
	series := endpoint.SeriesOf(e)
	if perPod != nil && perPod.Slice.Duration < 2*series.ScrapeInterval {
		return Trial{metav1.ConditionFalse, v1alpha1.ReasonQueryFailed, fmt.Sprintf("compare.slice of %s has less than two scrapes, "+
			"one each %s (spec.prometheus.scrapeInterval of the endpoint): set a longer slice",
			perPod.Slice.Duration, series.ScrapeInterval)}, nil, nil
	}
	over := of.Range(series.ScrapeInterval)
	q, _, err := p.resolve(ctx, s, of, e, over, nil)
	if err != nil {
		return t, nil, err
	}
	work, at := slots.Work{Namespace: s.Release.Namespace, Release: s.Release.Name}, p.clock.Now().Add(-policy.Lag)
	answer := p.evaluate(ctx, of, e, work, q, at)
	switch answer.Reason {
	case "":
	case v1alpha1.ReasonQueryFailed, v1alpha1.ReasonManySeries, v1alpha1.ReasonCannotEvaluate:
		return Trial{metav1.ConditionFalse, v1alpha1.ReasonQueryFailed, answer.Message}, nil, nil
	default:
		return Trial{metav1.ConditionUnknown, v1alpha1.ReasonUnavailable, answer.Message}, nil, nil
	}
	if of.Alerts != nil && !answer.Alerts.Recent {
		return Trial{metav1.ConditionFalse, v1alpha1.ReasonNoSeries, noSamples}, nil, nil
	}
	ofPod := func(sample rules.Sample) bool { return sample.Labels[series.PodLabel] != "" }
	if perPod != nil && len(answer.Samples) > 0 && !slices.ContainsFunc(answer.Samples, ofPod) {
		return Trial{metav1.ConditionFalse, v1alpha1.ReasonWrongLabel, fmt.Sprintf(
			"the result has no label %s, so pods cannot be compared: keep it, as sum by ($podLabel) does", series.PodLabel)}, nil, nil
	}
	if len(answer.Samples) > 0 || of.Prometheus.Empty != v1alpha1.EmptyNoData {
		return Trial{Status: metav1.ConditionTrue}, answer.Samples, nil
	}
	t = Trial{metav1.ConditionFalse, v1alpha1.ReasonNoSeries, fmt.Sprintf("no series as of %s ago: %s", policy.Lag, q.Text)}
	for _, step := range q.Explain(model.Duration(over).String(), series.NamespaceLabel) {
		found, err := p.clients.Query(ctx, e, work, step.Text, at, of.Timeout)
		var failed *endpoint.Error
		switch {
		case errors.As(err, &failed):
			return t, nil, nil // the query itself was answered
		case err != nil:
			return t, nil, err
		case len(found) == 0:
			return blame(step, of.IsOf(p.view.Operator), series, over), nil, nil
		}
	}
	return t, nil, nil
}

// blame returns what the first step without series means.
func blame(step promql.Step, operators bool, series endpoint.Series, over fmt.Stringer) Trial {
	switch {
	case step.Matcher != "":
		return Trial{metav1.ConditionFalse, v1alpha1.ReasonWrongLabel, fmt.Sprintf(
			"%s has series in the last %s, but none matches %s: is the label %s right? The endpoint has spec.prometheus.podLabel %s",
			step.Metric, over, wording.Cut(step.Matcher), step.Label, series.PodLabel)}
	case operators:
		return Trial{metav1.ConditionFalse, v1alpha1.ReasonUnknownMetric, fmt.Sprintf("%s has no series in the last %s", step.Metric, over)}
	default:
		return Trial{metav1.ConditionFalse, v1alpha1.ReasonUnknownMetric, fmt.Sprintf("%s has no series of this namespace in the last %s: "+
			"is the name right, and the label %s of its series?", step.Metric, over, series.NamespaceLabel)}
	}
}
