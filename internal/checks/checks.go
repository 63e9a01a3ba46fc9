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

// Package checks runs the checks of DefensePolicies on batches and on releases as a whole.
// Each type of check has one file with pure decisions and one file that reads and calls:
//
//   - subject.go: the verifier ([Provider]), and the object that it verifies ([Subject])
//   - report.go: the status of a check
//   - begin.go: the checks that begin
//   - checks.go: one step of a check
//   - podhealth.go, releasehealth.go: podHealth, from the caches; restarts.go compares new pods with old ones, by internal/judge
//   - probe.go, prober.go: probe; caller.go makes a call, and guard.go bounds the addresses
//   - rules.go, cel.go: cel
//   - query.go, querier.go: prometheus; alerts.go: alerts; compare.go, comparer.go, compared.go: compare, by internal/judge
//   - replay.go: prometheus, alerts and compare on pods of past releases
//   - review.go, reviewer.go: service
//   - job.go, jobber.go: job
//
// AlterShield Server is another provider, in internal/verify.
package checks

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
)

// Checks runs the checks of policies.
type Checks struct {
	view      cluster.View
	clock     clock.PassiveClock
	podHealth *releaseHealths
	probe     *prober
	cel       *evaluator
	query     *querier
	job       *jobber
}

var _ Provider = &Checks{}

// New returns the checks of policies. Probes call only addresses that the guard allows.
func New(c *cluster.Cluster, guard Guard, clients *endpoint.Clients) *Checks {
	return &Checks{
		view: c.View, clock: c.Clock, podHealth: newReleaseHealths(c), probe: newProber(c, guard), cel: newEvaluator(c),
		query: newQuerier(c, clients), job: newJobber(c),
	}
}

// Name implements Provider.
func (*Checks) Name() string { return "policies" }

// Forget implements Provider: it ends the calls for a subject. All other memory is bounded,
// and a batch that is done may have checks in the background.
func (p *Checks) Forget(key types.NamespacedName) {
	p.probe.keep(key, nil)
	p.query.keep(key, nil)
}

// Start implements manager.Runnable: when the manager ends, it ends all calls.
func (p *Checks) Start(ctx context.Context) error {
	<-ctx.Done()
	p.probe.stop()
	p.query.stop()
	return nil
}

// Next implements Provider: it makes one step of each open check, until one of them has
// something to write.
func (p *Checks) Next(ctx context.Context, s Subject) (step Step, err error) {
	now, goOn := p.clock.Now(), map[string]bool{}
	checks := s.checks()
	for i := range checks {
		goOn[checks[i].Name] = s.isCurrent() && record.CheckGoesOn(&checks[i], now)
	}
	p.podHealth.forget()
	p.probe.keep(s.Key(), goOn)
	p.query.keep(s.Key(), goOn)
	for i := range checks {
		if !goOn[checks[i].Name] {
			continue
		}
		next, after, err := p.next(ctx, &s, &checks[i])
		if err != nil {
			return Step{}, fmt.Errorf("%s: %w", checks[i].Name, err)
		}
		if next != nil {
			return p.write(*next), nil
		}
		if after > 0 && (step.After == 0 || after < step.After) {
			step.After = after
		}
	}
	return step, nil
}

// next makes one step of a check. It returns nil if nothing is to be written.
func (p *Checks) next(
	ctx context.Context, s *Subject, c *v1alpha1.CheckStatus,
) (next *v1alpha1.CheckStatus, after time.Duration, err error) {
	of, err := find(ctx, p.view, s, c)
	if err != nil {
		return nil, 0, err
	}
	if of == nil {
		canceled := c.DeepCopy()
		canceled.Phase, canceled.Reason = v1alpha1.CheckCanceled, v1alpha1.ReasonPolicyRemoved
		canceled.Message = "the policy is gone, or no longer has this check, or no longer selects the workload"
		return canceled, 0, nil
	}
	var made v1alpha1.CheckStatus
	switch {
	case c.Type == v1alpha1.CheckTypePodHealth && s.Batch != nil:
		made, after, err = p.podHealth.next(ctx, s, of, c)
	case c.Type == v1alpha1.CheckTypeProbe:
		made, after, err = p.probe.next(ctx, s, of, c)
	case c.Type == v1alpha1.CheckTypeCel:
		made, after = p.cel.next(ctx, s, of, c)
	case c.Type == v1alpha1.CheckTypePrometheus, c.Type == v1alpha1.CheckTypeAlerts, c.Type == v1alpha1.CheckTypeCompare:
		made, after, err = p.query.next(ctx, s, of, c)
	case c.Type == v1alpha1.CheckTypeService:
		made, after, err = p.query.review(ctx, s, of, c)
	case c.Type == v1alpha1.CheckTypeJob:
		made, after, err = p.job.next(ctx, s, of, c)
	default:
		return nil, 0, nil // written by a later version of the operator, or by hand
	}
	if err != nil || equality.Semantic.DeepEqual(made, *c) {
		return nil, after, err
	}
	made.Mode, made.Generation = of.Mode, of.Generation
	return &made, 0, nil
}

// write returns the step that writes the status of a check.
func (p *Checks) write(c v1alpha1.CheckStatus) Step {
	return Step{Write: func(s Subject) Decision {
		if s.Batch == nil {
			plan := record.NoteReleaseCheck(record.ReleaseCheckInput{Now: p.clock.Now(), Settings: s.Settings, Change: s.Release}, c)
			return Decision{Void: plan.Status == nil, Release: plan.Status, Events: plan.Events}
		}
		plan := server.NoteCheck(server.BatchInput{
			Now: p.clock.Now(), Settings: s.Settings, Batch: s.Batch, Change: s.Release, Begin: s.Begin,
			Server: s.Release.Status.OrderStage != v1alpha1.OrderNone,
		}, c)
		return Decision{Void: plan.Status == nil, Batch: plan.Status, Events: plan.Events}
	}}
}

// find returns a check as its policy has it now; nil if the API server, too, says that the
// policy no longer has it.
func find(ctx context.Context, v cluster.View, s *Subject, c *v1alpha1.CheckStatus) (*policy.Check, error) {
	of := policy.Find(s.Policies, v.Operator, s.Selected, c.Name)
	if of == nil {
		live, err := v.LivePolicies(ctx, s.Release.Namespace)
		if err != nil {
			return nil, err
		}
		of = policy.Find(live, v.Operator, s.Selected, c.Name)
	}
	if of != nil && (of.Type != c.Type || stageOf(of) != cmp.Or(c.Stage, v1alpha1.StageBatchPost)) {
		return nil, nil
	}
	return of, nil
}
