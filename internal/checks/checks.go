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

// Package checks makes the checks of DefensePolicies, of batches and of releases as a whole.
// Each type of check decides in one file, from what it is given, and is carried out in another:
//
//   - checks.go: what verifies ([Provider]), and of what ([Subject]); the step of a check
//   - begin.go: which checks begin
//   - podhealth.go, releasehealth.go: podHealth, from the caches
//   - probe.go, prober.go: probe; caller.go makes a call, and guard.go says whom it may call
//   - rules.go, cel.go: cel
//
// AlterShield Server is another provider, in internal/verify.
package checks

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// Provider verifies. What it knows of a check is in the status of the subject:
// it is idempotent, and another process goes on where one died.
type Provider interface {
	// Name of the check in status.checks.
	Name() string
	// Next takes the check of a subject one step on. It returns when there is
	// something to write, or to wait for; it does not sleep. What cannot be
	// repeated is done only once its intent is in the status.
	Next(ctx context.Context, s Subject) (Step, error)
	// Forget drops what this process remembers of a subject, which is gone or
	// needs nothing any more.
	Forget(key types.NamespacedName)
}

// Subject is what is verified: a batch of pods, or a release as a whole.
type Subject struct {
	// Workload that is released; nil when it is gone.
	Workload *defense.Workload
	// Settings in force for it.
	Settings settings.Settings
	// Release is the record of the release.
	Release *v1alpha1.ChangeWorkload
	// Batch is nil for the release as a whole.
	Batch *v1alpha1.ChangePod
	// Defended says that the workload is there and defended. Nothing is
	// written about one that is not.
	Defended bool
	// Policies of the workload's namespace and of the operator's, in the order in
	// which they count; read only where a check of theirs goes on, or may begin.
	Policies []v1alpha1.DefensePolicy
	// Selected is what policies select by, of the workload; set with Policies.
	Selected policy.Workload
	// Begin are the checks that begin with the first write of the subject.
	Begin []defense.BeginCheck
}

// Key is the name of the object whose status has the check.
func (s *Subject) Key() types.NamespacedName {
	if s.Batch != nil {
		return types.NamespacedName{Namespace: s.Batch.Namespace, Name: s.Batch.Name}
	}
	return types.NamespacedName{Namespace: s.Release.Namespace, Name: s.Release.Name}
}

// checks of the subject.
func (s *Subject) checks() []v1alpha1.CheckStatus {
	if s.Batch != nil {
		return s.Batch.Status.Checks
	}
	return s.Release.Status.Checks
}

// uid is that of the object whose status has the check.
func (s *Subject) uid() types.UID {
	if s.Batch != nil {
		return s.Batch.UID
	}
	return s.Release.UID
}

// isCurrent reports whether the subject is of the attempt that its release is at, and that
// the release is verified.
func (s *Subject) isCurrent() bool {
	if s.Workload != nil && s.Workload.Release() > s.Release.Spec.Release {
		return false // what it would look at is of the release that replaced it
	}
	if s.Batch != nil {
		return defense.IsCurrentBatch(s.Release, s.Batch)
	}
	return defense.IsCurrentAttempt(s.Release)
}

// isOpen reports whether the subject may still wait for a check.
func (s *Subject) isOpen() bool {
	if s.Batch != nil {
		return s.Batch.Status.Status != v1alpha1.ChangePodExecuteDone
	}
	return defense.IsVerified(s.Release.Status.Status) && s.Release.Status.Status != v1alpha1.ChangeWorkloadSuccess
}

// Step is what one step of a check came to.
type Step struct {
	// Write decides what is to be written, of the subject as it is by then; nil
	// when there is nothing to write.
	Write func(s Subject) Decision
	// Lasting: what was done cannot be undone, so that a change of the subject
	// meanwhile does not stand in its way. Written is called once it is written,
	// or is not to be any more, and what cannot be written now comes again with
	// the next step.
	Lasting bool
	Written func()
	// After says when to look again, where nothing is to be written; 0 for when
	// something happens.
	After time.Duration
}

// Decision is what is to be written about a subject.
type Decision struct {
	// Void: the subject is another one by now, and nothing is to be written.
	Void bool
	// Batch or Release is the new status of the subject; nil when it stays.
	Batch   *v1alpha1.ChangePodStatus
	Release *v1alpha1.ChangeWorkloadStatus
	// Events to emit once it is written.
	Events []defense.Event
}

// Checks makes the checks of policies.
type Checks struct {
	view      cluster.View
	clock     clock.PassiveClock
	podHealth *releaseHealths
	probe     *prober
	cel       *evaluator
}

var _ Provider = &Checks{}

// New makes the checks of policies. Probes call the addresses that the guard lets through.
func New(c *cluster.Cluster, guard Guard) *Checks {
	return &Checks{view: c.View, clock: c.Clock, podHealth: newReleaseHealths(c), probe: newProber(c, guard), cel: newEvaluator(c)}
}

// Name implements Provider.
func (*Checks) Name() string { return "policies" }

// Forget implements Provider: calls that are under way end. What else is remembered of a
// subject is bounded, and a batch that is done may have checks in the background.
func (p *Checks) Forget(key types.NamespacedName) { p.probe.keep(key, nil) }

// Start implements manager.Runnable. When the manager ends, so do all calls.
func (p *Checks) Start(ctx context.Context) error {
	<-ctx.Done()
	p.probe.stop()
	return nil
}

// Next implements Provider: it makes one step of each check that goes on, until something
// is to be written.
func (p *Checks) Next(ctx context.Context, s Subject) (step Step, err error) {
	now, goOn := p.clock.Now(), map[string]bool{}
	checks := s.checks()
	for i := range checks {
		goOn[checks[i].Name] = s.isCurrent() && defense.CheckGoesOn(&checks[i], now)
	}
	p.podHealth.forget()
	p.probe.keep(s.Key(), goOn)
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

// next makes one step of a check. It returns nil where nothing is to be written.
func (p *Checks) next(ctx context.Context, s *Subject, c *v1alpha1.CheckStatus) (next *v1alpha1.CheckStatus, after time.Duration, err error) {
	of, err := find(ctx, p.view, s, c)
	if err != nil {
		return nil, 0, err
	}
	if of == nil {
		canceled := c.DeepCopy()
		canceled.Phase, canceled.Reason = v1alpha1.CheckCanceled, v1alpha1.ReasonPolicyRemoved
		canceled.Message = "the policy is gone, or no longer has this check, or does not select the workload any more"
		return canceled, 0, nil
	}
	var made v1alpha1.CheckStatus
	switch {
	case c.Type == policy.TypePodHealth && s.Batch != nil:
		made, after, err = p.podHealth.next(ctx, s, of, c)
	case c.Type == policy.TypeProbe:
		made, after, err = p.probe.next(ctx, s, of, c)
	case c.Type == policy.TypeCel:
		made, after = p.cel.next(ctx, s, of, c)
	default:
		return nil, 0, nil // of a later release, by which this one was replaced, or by hand
	}
	if err != nil || equality.Semantic.DeepEqual(made, *c) {
		return nil, after, err
	}
	made.Mode, made.Generation = of.Mode, of.Generation
	return &made, 0, nil
}

// write writes what a check came to.
func (p *Checks) write(c v1alpha1.CheckStatus) Step {
	return Step{Write: func(s Subject) Decision {
		if s.Batch == nil {
			plan := defense.NoteReleaseCheck(defense.ReleaseCheckInput{Now: p.clock.Now(), Settings: s.Settings, Change: s.Release}, c)
			return Decision{Void: plan.Status == nil, Release: plan.Status, Events: plan.Events}
		}
		plan := defense.NoteCheck(defense.BatchInput{
			Now: p.clock.Now(), Settings: s.Settings, Batch: s.Batch, Change: s.Release, Begin: s.Begin,
			Server: s.Release.Status.OrderStage != v1alpha1.OrderNone,
		}, c)
		return Decision{Void: plan.Status == nil, Batch: plan.Status, Events: plan.Events}
	}}
}

// find finds a check of a policy as it is by now; nil when the policy does not have it any
// more. That is believed only from the API server.
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

// followed is a check as its policy wants it by now.
func followed(c *v1alpha1.CheckStatus, of *policy.Check, s *Subject) v1alpha1.CheckStatus {
	f := *c.DeepCopy()
	if f.StartTime != nil {
		f.DueTime, f.Deadline = stamp(f.StartTime.Add(of.Due())), stamp(f.StartTime.Add(of.Deadline))
	}
	if s.isOpen() && f.Background != of.Background {
		f.Background, f.Phase = of.Background, v1alpha1.CheckRunning
		if of.Background {
			f.Phase = v1alpha1.CheckWatching
		}
	}
	return f
}

// report writes down the pods that fail, with a message about the first of them, and what
// follows it. Without pods all of the batch fail.
func report(s *v1alpha1.CheckStatus, pods []string, message, more string) {
	if n := len(pods) - 1; n > 0 {
		message += fmt.Sprintf(" (and %d more pods of the batch)", n)
	}
	s.Message = joined("; ", message, more)
	s.FailedCount = int32(len(pods)) //nolint:gosec // a batch has at most 200
	s.FailedPods = pods[:min(len(pods), defense.MaxFailedPods)]
}

// onSilence is what it means that a check has no verdict; empty for what the setting says.
func onSilence(says v1alpha1.OnSilence) v1alpha1.OnSilence {
	if says == v1alpha1.SilenceDefault {
		return ""
	}
	return says
}

// isGone reports whether a pod shows nothing any more: it goes, or ended, or is evicted.
func isGone(p *defense.Pod) bool { return p.Terminating || p.Ended || p.Disrupted }

// stamp is a time as the API keeps it, and timeOf the time of one.
func stamp(t time.Time) *metav1.Time { return ptr.To(metav1.NewTime(t.Truncate(time.Second))) }

func timeOf(t *metav1.Time) time.Time { return ptr.Deref(t, metav1.Time{}).Time }

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// joined joins the parts of a message that are there.
func joined(separator string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), separator)
}
