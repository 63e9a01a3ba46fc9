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

// Package verify is the provider of verdicts by AlterShield Server, beside the checks of
// policies in internal/checks: altershield.go takes the orders of releases and the entries of
// batches one step on, server.go makes the calls, calls.go, entries.go and ended.go remember
// them, and health.go judges heartbeats.
package verify

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
)

// AlterShield verifies by AlterShield Server: a release is an order there, and a
// batch one of its entries. How far they have come is in fields of the status that
// are older than status.checks. Without a server it says that nobody was asked.
type AlterShield struct {
	view   cluster.View
	clock  clock.PassiveClock
	server *Server
	orders *callMemory
	// batches is apart from orders: a ChangePod may have the name of a
	// ChangeWorkload.
	batches *callMemory
	ended   *endedOrders
	entries *entries
}

var _ checks.Provider = &AlterShield{}

// NewAlterShield verifies by a server, or by none where it is nil. spread spreads
// the tries of calls to it, by a number from 0 up to 1; chance when nil.
func NewAlterShield(c *cluster.Cluster, server *Server, spread func() float64) *AlterShield {
	return &AlterShield{
		view: c.View, clock: c.Clock, server: server,
		orders: newCallMemory(c.Clock, spread), batches: newCallMemory(c.Clock, spread), ended: newEndedOrders(),
		entries: newEntries(c.View),
	}
}

// Name implements Provider.
func (*AlterShield) Name() string { return defense.ServerCheck }

// Forget implements Provider.
func (p *AlterShield) Forget(key types.NamespacedName) {
	p.orders.forget(key)
	p.batches.forget(key)
}

// Next implements Provider.
func (p *AlterShield) Next(ctx context.Context, s checks.Subject) (checks.Step, error) {
	if s.Batch != nil {
		return p.nextOfBatch(ctx, s)
	}
	return p.nextOfOrder(ctx, s)
}

// foreignRetry is when to look again at the batch of a release whose status names
// an order that is not its own.
const foreignRetry = time.Second

func (p *AlterShield) batchInput(s *checks.Subject) defense.BatchInput {
	return defense.BatchInput{
		Now: p.clock.Now(), Settings: s.Settings, Batch: s.Batch, Change: s.Release, Server: p.server != nil, Begin: s.Begin,
		Calls: p.batches.recall(s.Key(), string(s.Batch.UID)),
	}
}

func (p *AlterShield) nextOfBatch(ctx context.Context, s checks.Subject) (checks.Step, error) {
	key, of := s.Key(), string(s.Batch.UID)
	if a := p.batches.unrecorded(key, of); a != nil {
		return p.answeredOfBatch(s, *a), nil
	}
	if p.server != nil && s.Release.Status.OrderID != "" && !defense.OwnsOrder(s.Release) {
		return checks.Step{After: foreignRetry}, nil // the release gets its own order again first
	}
	if p.server != nil && defense.ResetBatch(p.batchInput(&s)).Status != nil {
		metrics.ForeignID("node")
		return checks.Step{Write: func(s checks.Subject) checks.Decision {
			plan := defense.ResetBatch(p.batchInput(&s))
			return checks.Decision{Batch: plan.Status, Events: plan.Events}
		}}, nil
	}
	plan := defense.DecideBatch(p.batchInput(&s))
	switch {
	case plan.Status != nil:
		return checks.Step{Write: func(s checks.Subject) checks.Decision {
			plan := defense.DecideBatch(p.batchInput(&s))
			return checks.Decision{Batch: plan.Status, Events: plan.Events}
		}}, nil
	case plan.Call == defense.CallNone:
		return checks.Step{After: plan.RequeueAfter}, nil
	}
	if plan.Last {
		ctx = altershield.LastTry(ctx)
	}
	answer, err := p.callOfBatch(ctx, &s, plan.Call)
	if err != nil {
		return checks.Step{}, err
	}
	logCall(ctx, plan.Call, answer, s.Release.Status.OrderID)
	p.batches.remember(key, of, plan.Call, answer)
	return p.answeredOfBatch(s, answered{plan.Call, answer}), nil
}

// answeredOfBatch puts the answer to a call into the status of a batch.
func (p *AlterShield) answeredOfBatch(s checks.Subject, a answered) checks.Step {
	key, of, ended := s.Key(), s.Batch.UID, false
	return checks.Step{
		Lasting: true,
		Write: func(s checks.Subject) checks.Decision {
			if s.Batch.UID != of {
				return checks.Decision{Void: true}
			}
			plan := defense.AnswerBatch(p.batchInput(&s), a.call, a.answer)
			ended = plan.Ended
			return checks.Decision{Batch: plan.Status, Events: plan.Events}
		},
		Written: func() {
			p.batches.recorded(key)
			if ended {
				p.batches.ended(key)
			}
		},
	}
}

// callOfBatch makes a call about a batch. Its error is of reading, never of the
// call.
func (p *AlterShield) callOfBatch(ctx context.Context, s *checks.Subject, call defense.Call) (defense.Answer, error) {
	if refusal, err := p.entries.refuse(ctx, call, s.Batch, s.Batch.Status.ChangePodID); refusal != nil || err != nil {
		return ptr.Deref(refusal, defense.Answer{}), err
	}
	switch call {
	case defense.CallStart:
		about, err := loadReleased(ctx, p.view, s.Release, s.Workload)
		if err != nil {
			return defense.Answer{}, err
		}
		known := p.batches.recall(s.Key(), string(s.Batch.UID))
		a := p.server.startKnown(ctx, s.Release, about, known, func() defense.Answer {
			return p.server.startBatch(ctx, s.Release, s.Batch, p.clock.Now())
		})
		p.entries.started(s.Batch, a.NodeID)
		return a, nil
	case defense.CallFinish:
		if s.Batch.Status.Status == v1alpha1.ChangePodExecuteDone && !defense.OwnsEntry(s.Release, s.Batch) {
			metrics.ForeignID("node")
			return defense.Answer{Kind: defense.AnswerRefused, Message: "the order entry was not started for this batch"}, nil
		}
		return p.server.finishBatch(ctx, s.Release, s.Batch, p.clock.Now()), nil
	case defense.CallPollPre:
		return p.server.poll(ctx, s.Release, s.Batch.Status.ChangePodID, altershield.StagePre), nil
	case defense.CallPollPost:
		return p.server.poll(ctx, s.Release, s.Batch.Status.ChangePodID, altershield.StagePost), nil
	default:
		return defense.Answer{}, fmt.Errorf("no such call about a batch: %q", call)
	}
}

func (p *AlterShield) orderInput(s *checks.Subject) defense.OrderInput {
	return defense.OrderInput{
		Now: p.clock.Now(), Settings: s.Settings, Change: s.Release, Defended: s.Defended,
		Calls: p.orders.recall(s.Key(), s.Release.Status.OrderID),
	}
}

func (p *AlterShield) nextOfOrder(ctx context.Context, s checks.Subject) (checks.Step, error) {
	key, of := s.Key(), s.Release.Status.OrderID
	if a := p.orders.unrecorded(key, of); a != nil && s.Defended {
		return p.answeredOfOrder(s, *a), nil
	}
	if defense.ResetOrder(p.orderInput(&s), p.server.Cluster).Status != nil {
		metrics.ForeignID("order")
		if !s.Defended {
			return checks.Step{}, nil // nothing is written about it, and nobody's order is ended
		}
		return checks.Step{Write: func(s checks.Subject) checks.Decision {
			plan := defense.ResetOrder(p.orderInput(&s), p.server.Cluster)
			return checks.Decision{Release: plan.Status, Events: plan.Events}
		}}, nil
	}
	plan := defense.DecideOrder(p.orderInput(&s))
	switch {
	case plan.Status != nil:
		return checks.Step{Write: func(s checks.Subject) checks.Decision {
			plan := defense.DecideOrder(p.orderInput(&s))
			return checks.Decision{Release: plan.Status, Events: plan.Events}
		}}, nil
	case plan.Call == defense.CallNone:
		if !defense.OrderWaits(s.Release) {
			p.orders.forget(key)
		}
		return checks.Step{After: plan.RequeueAfter}, nil
	}
	if plan.Last {
		ctx = altershield.LastTry(ctx)
	}
	answer, err := p.callOfOrder(ctx, &s, plan.Call)
	if err != nil {
		return checks.Step{}, err
	}
	logCall(ctx, plan.Call, answer, of)
	known := p.orders.remember(key, of, plan.Call, answer)
	if !s.Defended {
		// Nothing is written about what left the defense.
		p.orders.recorded(key)
		if plan.Call == defense.CallFinish {
			// No write has it decided again: the end of the order comes next, or a wait.
			return p.nextOfOrder(ctx, s)
		}
		return checks.Step{After: max(known.NotBefore.Sub(p.clock.Now()), 0)}, nil
	}
	return p.answeredOfOrder(s, answered{plan.Call, answer}), nil
}

// answeredOfOrder puts the answer to a call into the status of a release.
func (p *AlterShield) answeredOfOrder(s checks.Subject, a answered) checks.Step {
	key, uid, of := s.Key(), s.Release.UID, s.Release.Status.OrderID
	return checks.Step{
		Lasting: true,
		Write: func(s checks.Subject) checks.Decision {
			if s.Release.UID != uid || s.Release.Status.OrderID != of {
				return checks.Decision{Void: true}
			}
			plan := defense.AnswerOrder(p.orderInput(&s), a.call, a.answer)
			return checks.Decision{Release: plan.Status, Events: plan.Events}
		},
		Written: func() { p.orders.recorded(key) },
	}
}

// callOfOrder makes a call about an order. Its error is of reading, never of the
// call.
func (p *AlterShield) callOfOrder(ctx context.Context, s *checks.Subject, call defense.Call) (defense.Answer, error) {
	change := s.Release
	if refusal, err := p.entries.refuse(ctx, call, change, change.Status.OrderNodeID); refusal != nil || err != nil {
		return ptr.Deref(refusal, defense.Answer{}), err
	}
	switch call {
	case defense.CallSubmit, defense.CallStart:
		about, err := loadReleased(ctx, p.view, change, s.Workload)
		if err != nil {
			return defense.Answer{}, err
		}
		if call == defense.CallSubmit {
			return p.server.submit(ctx, change, about), nil
		}
		a := p.server.startKnown(ctx, change, about, p.orderInput(s).Calls, func() defense.Answer {
			return p.server.startOrder(ctx, change, about, p.clock.Now())
		})
		p.entries.started(change, a.NodeID)
		return a, nil
	case defense.CallFinish:
		return p.ended.endEntry(change.Status.OrderNodeID, func() defense.Answer {
			return p.server.finishOrder(ctx, change, defense.HowReleaseEnded(&change.Status), p.clock.Now())
		}), nil
	case defense.CallPollPre:
		return p.server.poll(ctx, change, change.Status.OrderNodeID, altershield.StagePre), nil
	case defense.CallPollPost:
		return p.server.poll(ctx, change, change.Status.OrderNodeID, altershield.StagePost), nil
	case defense.CallEnd:
		return p.ended.end(change.Status.OrderID, func() defense.Answer {
			return p.server.endOrder(ctx, change, defense.HowReleaseEnded(&change.Status), p.clock.Now())
		}), nil
	default:
		return defense.Answer{}, fmt.Errorf("no such call about an order: %q", call)
	}
}

// loadReleased reads what an order says of a release.
func loadReleased(ctx context.Context, v cluster.View, change *v1alpha1.ChangeWorkload, w *defense.Workload) (released, error) {
	about := released{
		namespace: change.Namespace, workload: change.Spec.ServiceName, by: operatorUser, override: defense.OverrideOf(change, w),
	}
	about.apiVersion, about.kind = kindOf(change)
	if w == nil || w.Release() != change.Spec.Release || w.Version != change.Spec.Reversion {
		// It has moved on.
		return about, nil
	}
	about.apiVersion, about.kind = w.GVK.GroupVersion().String(), w.Kind()
	about.workload, about.by = w.Name, w.ReleasedBy()
	var err error
	about.images, about.oldImages, err = v.Images(ctx, w)
	return about, err
}

// kindOf is the kind of the workload of a release in lower case. A release of an
// earlier build does not say it, and is a Deployment's.
func kindOf(change *v1alpha1.ChangeWorkload) (apiVersion, kind string) {
	if ref := change.Spec.WorkloadRef; ref != nil {
		return ref.APIVersion, strings.ToLower(ref.Kind)
	}
	return "apps/v1", "deployment"
}

// EndGone ends the order of a release whose record is gone, of which there is only
// what its last status said, and why it ended. Its entry is ended with it, where it is
// open and this process has not ended it, in one try. It is called again after the time it returns, if any.
func (p *AlterShield) EndGone(ctx context.Context, gone *v1alpha1.ChangeWorkload, why string) time.Duration {
	s := &gone.Status
	key, now := types.NamespacedName{Name: s.OrderID}, p.clock.Now()
	if wait := p.orders.recall(key, s.OrderID).NotBefore.Sub(now); wait > 0 {
		return wait
	}
	answer := p.ended.end(s.OrderID, func() defense.Answer {
		if defense.EntryIsOpen(s) && !p.ended.hasEntry(s.OrderNodeID) {
			refusal, err := p.entries.refuse(ctx, defense.CallFinish, gone, s.OrderNodeID)
			if refusal == nil && err == nil {
				logCall(ctx, defense.CallFinish, p.server.finishOrder(ctx, gone, why, now), s.OrderID)
			}
		}
		return p.server.endOrder(ctx, gone, why, now)
	})
	logCall(ctx, defense.CallEnd, answer, s.OrderID)
	switch answer.Kind {
	case defense.AnswerRetry, defense.AnswerDenied, defense.AnswerThrottled:
		known := p.orders.remember(key, s.OrderID, defense.CallEnd, answer)
		return max(known.NotBefore.Sub(now), minimumWait)
	default:
		p.orders.forget(key)
		return 0
	}
}

// minimumWait is the least time between two tries.
const minimumWait = 100 * time.Millisecond

// logCall logs a call to the server.
func logCall(ctx context.Context, call defense.Call, a defense.Answer, order string) {
	l := log.FromContext(ctx).WithValues("call", call, "answer", a.Kind, "order", order)
	switch a.Kind {
	case defense.AnswerThrottled, defense.AnswerNotPassed:
		l.V(1).Info("called AlterShield Server")
	case defense.AnswerDone, defense.AnswerDuplicate:
		l.Info("called AlterShield Server", "orderEntry", a.NodeID)
	case defense.AnswerRetry, defense.AnswerDenied, defense.AnswerIllegal, defense.AnswerUnsupported, defense.AnswerNoCheck, defense.AnswerUnprocessable, defense.AnswerRefused:
		l.Info("AlterShield Server did not do as it was asked", "message", a.Message)
	}
}
