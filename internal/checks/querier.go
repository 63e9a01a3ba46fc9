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
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/promql"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/slots"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// lateAfter is the time after dueTime at which a check in the background without an answer becomes Running. A hold relies on Watching
// a few seconds later.
const lateAfter = 3 * time.Second

// querier runs the checks of the types prometheus and alerts. The calls run beside the reconciles, which only read the
// answers. The progress of a check in the background is in the memory of this process: another
// process asks again as of the same times.
type querier struct {
	view    cluster.View
	clock   clock.PassiveClock
	clients *endpoint.Clients
	watch   *rules.Watch
	// running has the calls that run, or wait for the limits of their endpoint.
	running sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	// subjects has the checks of each batch and of each release, by their name.
	subjects map[types.NamespacedName]map[string]*querying
}

// querying is a running check.
type querying struct {
	of evaluated
	// progress is the status with the answers so far.
	progress v1alpha1.CheckStatus
	// decided is the status by the last answer of a service, which is written again if its write failed; nil for none.
	decided *v1alpha1.CheckStatus
	// errors and notBefore are of queryInput.
	errors    int
	notBefore time.Time
	// cancel ends the call; nil if none runs. answer is the result of the last call.
	cancel context.CancelFunc
	answer *queryAnswer
}

func newQuerier(c *cluster.Cluster, clients *endpoint.Clients) *querier {
	return &querier{
		view: c.View, clock: c.Clock, clients: clients, watch: c.Rules, subjects: map[types.NamespacedName]map[string]*querying{},
	}
}

// keep forgets all checks of a subject except the named ones.
func (p *querier) keep(key types.NamespacedName, names map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, of := range p.subjects[key] {
		if !names[name] {
			of.stop()
			delete(p.subjects[key], name)
		}
	}
	if len(p.subjects[key]) == 0 {
		delete(p.subjects, key)
	}
}

func (of *querying) stop() {
	if of.cancel != nil {
		of.cancel()
	}
}

// stop ends all calls.
func (p *querier) stop() {
	p.mu.Lock()
	p.stopped = true
	for _, checks := range p.subjects {
		for _, of := range checks {
			of.stop()
		}
	}
	p.mu.Unlock()
	p.running.Wait()
}

// next makes one step of a check.
func (p *querier) next(
	ctx context.Context, s *Subject, of *policy.Check, c *v1alpha1.CheckStatus,
) (next v1alpha1.CheckStatus, after time.Duration, err error) {
	if next, ends, err := p.withoutComparison(ctx, s, of, c); ends || err != nil {
		return next, 0, err
	}
	known, in, busy := p.take(s, of, c)
	if busy {
		return p.late(c), resultsEvery, nil
	}
	e, refused, err := EndpointFor(ctx, p.view, v1alpha1.EndpointPrometheus, of.Prometheus.EndpointRef.Name, of.IsOf(p.view.Operator),
		s.Release.Namespace)
	if err != nil {
		return next, 0, err
	}
	in.Range = of.Range(endpoint.SeriesOf(e).ScrapeInterval)
	plan := decideQuery(in)
	if !plan.Ask.IsZero() {
		var q *question
		var pods bool
		if refused == "" {
			if q, pods, err = p.resolve(ctx, s, of, e, in.Range, &in.Status); err != nil {
				return next, 0, err
			}
			if !pods {
				return withoutPods(plan.Status), 0, nil
			}
		}
		if refused != "" {
			in.Answer = &queryAnswer{Reason: v1alpha1.ReasonNoEndpoint, Message: refused, Ended: in.Now}
			plan = decideQuery(in)
		} else {
			p.ask(ctx, known, s, of, e, q, plan.Ask)
			plan.After = resultsEvery
		}
	}
	next, after = p.settle(known, c, in, plan)
	return next, after, nil
}

// settle keeps the progress of a check, and returns the status to write.
func (p *querier) settle(known *querying, c *v1alpha1.CheckStatus, in queryInput, plan queryPlan) (v1alpha1.CheckStatus, time.Duration) {
	p.mu.Lock()
	if record.CheckIsOver(&plan.Status) && plan.Status.Phase != v1alpha1.CheckWatching {
		known.answer = in.Answer // if its end is not written, it is decided again
	} else {
		known.progress, known.errors, known.notBefore = plan.Status, plan.Errors, plan.NotBefore
	}
	p.mu.Unlock()
	if c.Phase == v1alpha1.CheckWatching && plan.Status.Phase == v1alpha1.CheckWatching {
		if plan.After == 0 { // it passed, and this process remembers that until then
			plan.After = timeOf(plan.Status.Deadline).Sub(in.Now)
		}
		return *c, plan.After
	}
	return plan.Status, plan.After
}

// late returns the status of a check whose answer has not come. Watching counts as passed some seconds after dueTime, and an answer may
// come later: a call waits for the limits of its endpoint.
func (p *querier) late(c *v1alpha1.CheckStatus) v1alpha1.CheckStatus {
	s := *c.DeepCopy()
	if s.Phase == v1alpha1.CheckWatching && p.clock.Since(timeOf(s.DueTime)) >= lateAfter {
		s.Phase, s.Reason, s.Message = v1alpha1.CheckRunning, v1alpha1.ReasonNotMeasured, "the endpoint has not answered yet"
	}
	return s
}

func withoutPods(s v1alpha1.CheckStatus) v1alpha1.CheckStatus {
	s.Phase, s.Reason, s.Message = v1alpha1.CheckSkipped, v1alpha1.ReasonNoPods, "no pod of the batch is left to check"
	return s
}

// take returns what is known of a check, with an answer that has arrived. It begins again if the check
// changed.
func (p *querier) take(s *Subject, of *policy.Check, c *v1alpha1.CheckStatus) (known *querying, in queryInput, busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := s.Key()
	k := evaluated{subject: s.uid(), check: c.Name, started: timeOf(c.StartTime).Unix(), generation: of.Generation}
	known = p.subjects[key][c.Name]
	if known == nil || known.of != k {
		if known != nil {
			known.stop()
		}
		known = &querying{of: k, progress: *c.DeepCopy()}
		if c.Generation != of.Generation {
			known.progress = begunAgain(known.progress)
		}
		if p.subjects[key] == nil {
			p.subjects[key] = map[string]*querying{}
		}
		p.subjects[key][c.Name] = known
	}
	if known.cancel != nil {
		return known, in, true
	}
	status := followed(c, of, s)
	progress := &known.progress
	status.Measured, status.WithData = progress.Measured, progress.WithData
	status.ConsecutiveFailures = progress.ConsecutiveFailures
	status.FailedPods, status.FailedCount = progress.FailedPods, progress.FailedCount
	status.Value, status.Samples, status.Query = progress.Value, progress.Samples, progress.Query
	status.Reason, status.Message = progress.Reason, progress.Message
	in = queryInput{Now: p.clock.Now(), Check: of, Status: status, Answer: known.answer, Errors: known.errors, NotBefore: known.notBefore}
	known.answer = nil
	return known, in, false
}

// begunAgain returns the status of a check without its progress: the policy has another query.
func begunAgain(c v1alpha1.CheckStatus) v1alpha1.CheckStatus {
	c.Measured, c.WithData, c.ConsecutiveFailures = 0, 0, 0
	c.Value, c.Samples, c.Query, c.Reason, c.Message, c.FailedPods, c.FailedCount = "", nil, "", "", "", nil, 0
	return c
}

// question is a query that is asked.
type question struct {
	*promql.Query
	// compare is set for a check of type compare.
	compare *comparing
	// alerts is set for a check of type alerts, and earlier returns the query of promql.Alerts for alerts of some names.
	alerts  *alertScope
	earlier func(names []string) string
}

// alertsAbout returns the question of a check of type alerts. It reads only alerts of the namespace of the release, also for a policy
// of the operator: other alerts are not about its workload.
func (p *querier) alertsAbout(s *Subject, of *policy.Check, series endpoint.Series, pods []workload.Pod) *question {
	queries := func(more ...string) (*promql.Query, string, error) {
		return promql.Alerts(slices.Concat(of.Alerts.Matchers, more), series.NamespaceLabel, s.Release.Namespace,
			model.Duration(4*series.ScrapeInterval).String())
	}
	firing, all, err := queries()
	if err != nil {
		// It was accepted, perhaps by another version of the operator.
		return &question{Query: &promql.Query{Problem: err.Error()}}
	}
	scope := &alertScope{
		podLabel: series.PodLabel, kind: s.Workload.Kind(), name: s.Workload.Name, pods: map[string]time.Time{},
		release: time.Unix(s.Release.Status.StartTimeUnix, 0), stopped: s.stoppedAt(p.clock.Now()),
	}
	if asked := s.Workload.RevisionCreated; defense.Slipped(s.Workload, s.Release) && !asked.IsZero() && asked.Before(scope.release) {
		scope.release = asked // the operator was down
	}
	for i := range pods {
		if !isGone(&pods[i]) {
			scope.pods[pods[i].Name] = pods[i].Created
		}
	}
	earlier := func(names []string) string {
		if _, text, err := queries(fmt.Sprintf("%s=~%q", model.AlertNameLabel, strings.Join(names, "|"))); err == nil {
			return text
		}
		return all // the names are too long
	}
	return &question{Query: firing, alerts: scope, earlier: earlier}
}

// resolve returns the query with the values of its variables. A policy of another namespace than the
// operator's reads only series of the namespace of the release.
func (p *querier) resolve(
	ctx context.Context, s *Subject, of *policy.Check, e *v1alpha1.DefenseEndpoint, over time.Duration, status *v1alpha1.CheckStatus,
) (_ *question, some bool, err error) {
	series := endpoint.SeriesOf(e)
	v := variablesOf(s, series, over)
	var pods []workload.Pod
	if of.Compare != nil && s.Batch != nil {
		return p.comparing(ctx, s, of, v, status, series)
	}
	if s.Batch == nil || strings.Contains(of.Prometheus.Query, "$newPods") {
		if pods, err = p.view.Pods(ctx, s.Workload); err != nil {
			return nil, false, err
		}
		v.NewPods = namesOf(pods)
	}
	v.Pods = v.NewPods
	if s.Batch != nil {
		if pods, err = podsOfBatch(ctx, p.view, s.Batch); err != nil {
			return nil, false, err
		}
		if v.Pods = namesOf(pods); len(v.Pods) == 0 {
			return nil, false, nil
		}
	}
	if strings.Contains(of.Prometheus.Query, "$oldPods") {
		old, err := p.view.OldPods(ctx, s.Workload)
		if err != nil {
			return nil, false, err
		}
		v.OldPods = namesOf(old)
	}
	return p.about(s, of, series, v, pods), true, nil
}

// about returns the question of a check of type prometheus or alerts about pods.
func (p *querier) about(s *Subject, of *policy.Check, series endpoint.Series, v promql.Variables, pods []workload.Pod) *question {
	if of.Alerts != nil {
		return p.alertsAbout(s, of, series, pods)
	}
	q, err := promql.Resolve(of.Prometheus.Query, v, p.onlyOf(s, of))
	if err != nil {
		// It was accepted, perhaps by another version of the operator.
		q = &promql.Query{Problem: err.Error()}
	}
	return &question{Query: q}
}

// onlyOf returns the namespace that the queries of a check are limited to; empty for none.
func (p *querier) onlyOf(s *Subject, of *policy.Check) string {
	if of.IsOf(p.view.Operator) {
		return ""
	}
	return s.Release.Namespace
}

// variablesOf returns the values of the variables of queries about a release, without pods.
func variablesOf(s *Subject, series endpoint.Series, over time.Duration) promql.Variables {
	return promql.Variables{
		Namespace: s.Release.Namespace, Workload: s.Workload.Name, Version: s.Release.Spec.Reversion,
		Range: model.Duration(over).String(), PodLabel: series.PodLabel, NamespaceLabel: series.NamespaceLabel,
	}
}

// ask begins the call of a query.
func (p *querier) ask(
	ctx context.Context, known *querying, s *Subject, of *policy.Check, e *v1alpha1.DefenseEndpoint, q *question, at time.Time,
) {
	p.beside(ctx, known, s, func(ctx context.Context, work slots.Work) *queryAnswer {
		answer := p.evaluate(ctx, of, e, work, q, at)
		answer.Query = cmp.Or(answer.Query, q.Text)
		return answer
	})
}

// beside begins a call beside the reconcile.
func (p *querier) beside(ctx context.Context, known *querying, s *Subject, call func(context.Context, slots.Work) *queryAnswer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	// The call outlives the reconcile.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	known.cancel = cancel
	work := slots.Work{Namespace: s.Release.Namespace, Release: s.Release.Name}
	p.running.Go(func() {
		defer cancel()
		answer := call(ctx, work)
		answer.Ended = p.clock.Now()
		p.mu.Lock()
		defer p.mu.Unlock()
		if known.cancel = nil; ctx.Err() == nil {
			known.answer = answer
		}
	})
}

// evaluate evaluates a query as of a time, and its threshold. An answer that makes the client panic must not end the
// manager.
func (p *querier) evaluate(
	ctx context.Context, of *policy.Check, e *v1alpha1.DefenseEndpoint, work slots.Work, q *question, at time.Time,
) (answer *queryAnswer) {
	defer caught(ctx, e, &answer)
	if q.Problem != "" {
		return &queryAnswer{Reason: v1alpha1.ReasonQueryFailed, Message: "the query cannot be evaluated: " + q.Problem}
	}
	if q.compare != nil {
		return p.compare(ctx, of, e, work, q.compare, at)
	}
	samples, err := p.clients.Query(ctx, e, work, q.Text, at, of.Timeout)
	answer = &queryAnswer{Samples: samples}
	if err == nil && q.alerts != nil {
		if answer.Alerts = q.alerts.firing(samples, nil); len(answer.Alerts.Failing) > 0 {
			var earlier []rules.Sample
			earlier, err = p.clients.Query(ctx, e, work, q.earlier(answer.Alerts.names), q.alerts.release, of.Timeout)
			answer.Alerts = q.alerts.firing(samples, earlier)
		}
	}
	if err != nil {
		return unanswered(e, err)
	}
	if q.alerts != nil {
		return answer
	}
	values, some := measurable(of.Prometheus.Empty, answer.Samples)
	if !some {
		return answer
	}
	program, problem, err := rules.Compile(ctx, rules.Threshold(of.Prometheus.FailWhen), rules.OfResult, of.IsOf(p.view.Operator))
	if err == nil && problem == "" {
		answer.Crosses, err = p.watch.Crosses(ctx, of.Rules(p.view.Operator), program, values)
	}
	if err != nil {
		problem = oneLine(err)
	}
	switch {
	case errors.Is(err, rules.ErrManySeries):
		answer.Reason, answer.Message = v1alpha1.ReasonManySeries, fmt.Sprintf("failWhen: the result has %d series, and %s", len(values), problem)
	case problem != "":
		answer.Reason = v1alpha1.ReasonCannotEvaluate
		answer.Message = "failWhen cannot be evaluated: " + strings.TrimPrefix(problem, "rules[0]: ")
	}
	return answer
}

// caught turns a panic of a client into an answer, deferred.
func caught(ctx context.Context, e *v1alpha1.DefenseEndpoint, answer **queryAnswer) {
	if r := recover(); r != nil {
		log.FromContext(ctx).Error(fmt.Errorf("panic: %v", r), "call an endpoint", "defenseendpoint", e.Name, "stack", string(debug.Stack()))
		*answer = &queryAnswer{Reason: v1alpha1.ReasonUnavailable, Message: "endpoint " + e.Name + ": its answer cannot be read"}
	}
}

// unanswered returns the answer of a call without one.
func unanswered(e *v1alpha1.DefenseEndpoint, err error) *queryAnswer {
	reason, message := endpoint.Sentence(e, err)
	return &queryAnswer{Reason: reason, Message: message}
}
