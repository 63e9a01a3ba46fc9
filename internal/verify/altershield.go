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

// Package verify gets verdicts of AlterShield Server, beside the checks of policies in
// internal/checks: altershield.go makes one step of the order of a release or the entry of a batch,
// server.go makes the calls, pace.go bounds the batches that are open at the server, memory.go remembers
// calls, entries.go refuses calls about entries of other
// records, and health.go evaluates heartbeats.
package verify

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// AlterShield verifies by AlterShield Server: a release is an order there, and a
// batch one of its entries. Their progress is in fields of the status that are
// older than status.checks. Without a server the pods pass without a check.
type AlterShield struct {
	view   cluster.View
	clock  clock.PassiveClock
	server *Server
	memory *memory
	pace   *pace
}

var _ checks.Provider = &AlterShield{}

// NewAlterShield verifies by a server; nil means without one. spread returns numbers from 0 to 1
// that spread retries; random numbers if it is nil.
func NewAlterShield(c *cluster.Cluster, server *Server, spread func() float64) *AlterShield {
	return &AlterShield{view: c.View, clock: c.Clock, server: server, memory: newMemory(c.Clock, spread), pace: newPace()}
}

// Name implements Provider.
func (*AlterShield) Name() string { return record.ServerCheck }

// Forget implements Provider.
func (p *AlterShield) Forget(key types.NamespacedName) {
	p.memory.forget(recordKey{key, false})
	p.memory.forget(recordKey{key, true})
	p.pace.forget(key)
}

// foreignRetry is the wait of a batch while the status of its release names a foreign order.
const foreignRetry = time.Second

// plan is a decision of internal/server about a batch or an order.
type plan struct {
	checks.Decision
	call        server.Call
	last, ended bool
	after       time.Duration
}

func (p *plan) writes() bool { return p.Batch != nil || p.Release != nil }

// by decides about a subject, with the function batch or order.
func (p *AlterShield) by(
	s *checks.Subject, batch func(server.BatchInput) server.BatchPlan, order func(server.OrderInput) server.OrderPlan,
) plan {
	now, calls := p.clock.Now(), p.memory.recall(about(s))
	if s.Batch != nil {
		d := batch(server.BatchInput{
			Now: now, Settings: s.Settings, Batch: s.Batch, Change: s.Release, Server: p.server != nil, Begin: s.Begin, Calls: calls,
		})
		return plan{checks.Decision{Batch: d.Status, Events: d.Events}, d.Call, d.Last, d.Ended, d.RequeueAfter}
	}
	d := order(server.OrderInput{Now: now, Settings: s.Settings, Change: s.Release, Defended: s.Defended, Calls: calls})
	return plan{checks.Decision{Release: d.Status, Events: d.Events}, d.Call, d.Last, d.Ended, d.RequeueAfter}
}

func (p *AlterShield) decide(s *checks.Subject) plan {
	return p.by(s, server.DecideBatch, server.DecideOrder)
}

// reset removes a foreign id from the status.
func (p *AlterShield) reset(s *checks.Subject) plan {
	return p.by(s, server.ResetBatch, func(in server.OrderInput) server.OrderPlan { return server.ResetOrder(in, p.server.Cluster) })
}

// foreign returns the kind of a foreign id in the status, a label of the metric; empty if there is none.
func (p *AlterShield) foreign(s *checks.Subject) string {
	if p.server == nil {
		return ""
	}
	switch todo := p.reset(s); {
	case todo.Batch != nil:
		return "node"
	case todo.Release != nil:
		return "order"
	default:
		return ""
	}
}

// answer puts the answer to a call into the status.
func (p *AlterShield) answer(s *checks.Subject, a answered) plan {
	return p.by(s,
		func(in server.BatchInput) server.BatchPlan { return server.AnswerBatch(in, a.call, a.answer) },
		func(in server.OrderInput) server.OrderPlan { return server.AnswerOrder(in, a.call, a.answer) })
}

// Next implements Provider: it writes an answer that was not written yet, or writes a decision, or makes a call.
func (p *AlterShield) Next(ctx context.Context, s checks.Subject) (checks.Step, error) {
	key, of := about(&s)
	if p.server != nil && s.Batch != nil {
		p.pace.see(key.NamespacedName, &s.Batch.Status, &s.Settings, p.clock.Now())
	}
	if a := p.memory.unrecorded(key, of); a != nil && s.Defended {
		return p.answered(s, *a), nil
	}
	if p.server != nil && s.Batch != nil && s.Release.Status.OrderID != "" && !server.OwnsOrder(s.Release) {
		return checks.Step{After: foreignRetry}, nil // the release gets back its own order first
	}
	if kind := p.foreign(&s); kind != "" {
		metrics.ForeignID(kind)
		if !s.Defended {
			return checks.Step{}, nil // nothing is written about it, and no foreign order is ended
		}
		return checks.Step{Write: func(s checks.Subject) checks.Decision { return p.reset(&s).Decision }}, nil
	}
	todo := p.decide(&s)
	switch {
	case todo.writes():
		return checks.Step{Write: func(s checks.Subject) checks.Decision { return p.decide(&s).Decision }}, nil
	case todo.call == server.CallNone:
		if s.Batch == nil && !record.OrderWaits(s.Release) {
			p.memory.forget(key)
		}
		return checks.Step{After: todo.after}, nil
	case todo.last:
		ctx = altershield.LastTry(ctx)
	}
	answer, err := p.call(ctx, &s, todo.call)
	if err != nil {
		return checks.Step{}, err
	}
	logCall(ctx, todo.call, answer, s.Release.Status.OrderID)
	a := answered{todo.call, answer}
	known := p.memory.remember(key, of, a)
	if s.Defended {
		return p.answered(s, a), nil
	}
	// Nothing is written about a workload that is not defended.
	p.memory.recorded(key, false)
	if todo.call == server.CallFinish {
		// Without a write, no event follows: decide again about the end of the order.
		return p.Next(ctx, s)
	}
	return checks.Step{After: max(known.NotBefore.Sub(p.clock.Now()), 0)}, nil
}

// answered writes the answer to a call.
func (p *AlterShield) answered(s checks.Subject, a answered) checks.Step {
	key, of := about(&s)
	uid, ended := s.Release.UID, false
	return checks.Step{
		Lasting: true,
		Write: func(s checks.Subject) checks.Decision {
			if _, now := about(&s); now != of || s.Release.UID != uid {
				return checks.Decision{Void: true}
			}
			plan := p.answer(&s, a)
			ended = plan.ended
			return plan.Decision
		},
		Written: func() { p.memory.recorded(key, ended) },
	}
}

// call makes a call about a batch or an order. It returns errors of reads only; an error of the call is in the answer.
func (p *AlterShield) call(ctx context.Context, s *checks.Subject, call server.Call) (server.Answer, error) {
	change, record, entry, now := s.Release, client.Object(s.Release), s.Release.Status.OrderNodeID, p.clock.Now()
	if s.Batch != nil {
		record, entry = s.Batch, s.Batch.Status.ChangePodID
	}
	if refusal, err := p.refuse(ctx, call, record, entry); refusal != nil || err != nil {
		return ptr.Deref(refusal, server.Answer{}), err
	}
	switch call {
	case server.CallSubmit, server.CallStart:
		if wait := p.turn(s, call); wait > 0 {
			return server.Answer{Kind: server.AnswerThrottled, After: wait}, nil
		}
		about, err := loadReleased(ctx, p.view, change, s.Workload)
		if err != nil {
			return server.Answer{}, err
		}
		if call == server.CallSubmit {
			return p.server.submit(ctx, change, about), nil
		}
		return p.start(ctx, s, record, about), nil
	case server.CallFinish:
		switch {
		case s.Batch == nil:
			return p.memory.end(call, entry, func() server.Answer {
				return p.server.finishOrder(ctx, change, server.HowReleaseEnded(&change.Status), now)
			}), nil
		case s.Batch.Status.Status == v1alpha1.ChangePodExecuteDone && !server.OwnsEntry(change, s.Batch):
			metrics.ForeignID("node")
			return server.Answer{Kind: server.AnswerRefused, Message: "the order entry was not started for this batch"}, nil
		default:
			return p.server.finishBatch(ctx, change, s.Batch, now), nil
		}
	case server.CallPollPre:
		return p.server.poll(ctx, change, entry, altershield.StagePre), nil
	case server.CallPollPost:
		return p.server.poll(ctx, change, entry, altershield.StagePost), nil
	case server.CallEnd:
		return p.memory.end(call, change.Status.OrderID, func() server.Answer {
			return p.server.endOrder(ctx, change, server.HowReleaseEnded(&change.Status), now)
		}), nil
	default:
		return server.Answer{}, fmt.Errorf("no such call: %q", call)
	}
}

// turn returns how long the start of a batch waits, because the server has enough to check.
func (p *AlterShield) turn(s *checks.Subject, call server.Call) time.Duration {
	if s.Batch == nil || call != server.CallStart {
		return 0
	}
	return p.pace.wait(s.Key(), &s.Settings, p.clock.Now())
}

// start starts the entry of an order or of a batch, and notes its record.
func (p *AlterShield) start(ctx context.Context, s *checks.Subject, record client.Object, of released) server.Answer {
	a := p.server.startKnown(ctx, s.Release, of, p.memory.recall(about(s)), func() server.Answer {
		if s.Batch != nil {
			return p.server.startBatch(ctx, s.Release, s.Batch, p.clock.Now())
		}
		return p.server.startOrder(ctx, s.Release, of, p.clock.Now())
	})
	if a.NodeID != "" {
		p.memory.entries.Add(a.NodeID, record.GetUID())
	} else if s.Batch != nil {
		p.pace.forget(s.Key())
	}
	return a
}

// loadReleased reads the fields of an order that are not in the record.
func loadReleased(ctx context.Context, v cluster.View, change *v1alpha1.ChangeWorkload, w *workload.Workload) (released, error) {
	about := released{
		namespace: change.Namespace, workload: change.Spec.ServiceName, by: operatorUser, override: defense.OverrideOf(change, w),
	}
	about.apiVersion, about.kind = kindOf(change)
	about.kind = strings.ToLower(about.kind)
	if w == nil || w.Release() != change.Spec.Release || w.Version != change.Spec.Reversion {
		// The workload has another release by now.
		return about, nil
	}
	about.apiVersion, about.kind = w.GVK.GroupVersion().String(), w.Kind()
	about.workload, about.by = w.Name, w.ReleasedBy()
	link, parent, _ := server.OriginOf(w.Annotations)
	about.origin = altershield.Origin{ChangeURL: link, ParentOrderInfo: (*altershield.ParentOrder)(parent)}
	var err error
	about.images, about.oldImages, err = v.Images(ctx, w)
	return about, err
}

// kindOf returns the kind of the workload of a release. A release of an earlier
// version of the operator has no kind, and is a Deployment's.
func kindOf(change *v1alpha1.ChangeWorkload) (apiVersion, kind string) {
	if ref := change.Spec.WorkloadRef; ref != nil {
		return ref.APIVersion, ref.Kind
	}
	return "apps/v1", "Deployment"
}

// EndGone ends the order of a release whose record is gone, with the last known status and the reason. An
// open entry of the order is ended with it, in one try, unless this process ended it before. EndGone returns
// the time until the next try; 0 for none.
func (p *AlterShield) EndGone(ctx context.Context, gone *v1alpha1.ChangeWorkload, why string) time.Duration {
	s, now := &gone.Status, p.clock.Now()
	key := recordKey{NamespacedName: types.NamespacedName{Name: s.OrderID}}
	if wait := p.memory.recall(key, s.OrderID).NotBefore.Sub(now); wait > 0 {
		return wait
	}
	answer := p.memory.end(server.CallEnd, s.OrderID, func() server.Answer {
		if server.EntryIsOpen(s) {
			if refusal, err := p.refuse(ctx, server.CallFinish, gone, s.OrderNodeID); refusal == nil && err == nil {
				a := p.memory.end(server.CallFinish, s.OrderNodeID, func() server.Answer { return p.server.finishOrder(ctx, gone, why, now) })
				logCall(ctx, server.CallFinish, a, s.OrderID)
			}
		}
		return p.server.endOrder(ctx, gone, why, now)
	})
	logCall(ctx, server.CallEnd, answer, s.OrderID)
	if triesEndAgain(answer) {
		known := p.memory.remember(key, s.OrderID, answered{server.CallEnd, answer})
		return max(known.NotBefore.Sub(now), minimumWait)
	}
	p.memory.forget(key)
	return 0
}

// minimumWait is the least time between two tries.
const minimumWait = 100 * time.Millisecond

// logCall logs a call to the server.
func logCall(ctx context.Context, call server.Call, a server.Answer, order string) {
	l := log.FromContext(ctx).WithValues("call", call, "answer", a.Kind, "order", order)
	switch a.Kind {
	case server.AnswerThrottled, server.AnswerNotPassed:
		l.V(1).Info("called AlterShield Server")
	case server.AnswerDone, server.AnswerDuplicate:
		l.Info("called AlterShield Server", "orderEntry", a.NodeID)
	case server.AnswerRetry, server.AnswerDenied, server.AnswerIllegal, server.AnswerUnsupported, server.AnswerNoCheck,
		server.AnswerUnprocessable, server.AnswerRefused:
		l.Info("AlterShield Server did not do as it was asked", "message", a.Message)
	}
}
