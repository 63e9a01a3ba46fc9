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

package verify

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/policy"
)

// PodHealth makes the checks of type podHealth of policies, from the caches: it looks
// at the pods of a batch when one of them changes, and when the time of the check is
// over.
type PodHealth struct {
	view     cluster.View
	clock    clock.PassiveClock
	releases *releaseHealths
}

var _ Provider = &PodHealth{}

// NewPodHealth looks at the pods that the cache has.
func NewPodHealth(c *cluster.Cluster) *PodHealth {
	return &PodHealth{view: c.View, clock: c.Clock, releases: newReleaseHealths(c.View, c.Clock)}
}

// Name implements Provider.
func (*PodHealth) Name() string { return policy.TypePodHealth }

// Forget implements Provider: what it remembers is dropped soon anyway.
func (*PodHealth) Forget(types.NamespacedName) {}

// Next implements Provider.
func (p *PodHealth) Next(ctx context.Context, s Subject) (step Step, err error) {
	p.releases.forget()
	return eachCheck(p.clock, &s, policy.TypePodHealth, func(c *v1alpha1.CheckStatus) (*v1alpha1.CheckStatus, time.Duration, error) {
		return p.look(ctx, &s, c)
	})
}

// eachCheck makes one step of each check of a type that goes on of a subject, until
// something is to be written.
func eachCheck(
	clk clock.PassiveClock, s *Subject, kind string, look func(c *v1alpha1.CheckStatus) (next *v1alpha1.CheckStatus, after time.Duration, err error),
) (step Step, err error) {
	if !s.isCurrent() {
		return Step{}, nil
	}
	checks := s.checks()
	for i := range checks {
		c := &checks[i]
		if c.Type != kind || !defense.CheckGoesOn(c, clk.Now()) {
			continue
		}
		next, after, err := look(c)
		if err != nil {
			return Step{}, err
		}
		if next != nil {
			return writeCheck(clk, *next), nil
		}
		if after > 0 && (step.After == 0 || after < step.After) {
			step.After = after
		}
	}
	return step, nil
}

// writeCheck writes what a check of a policy came to.
func writeCheck(clock clock.PassiveClock, c v1alpha1.CheckStatus) Step {
	return Step{Write: func(s Subject) Decision {
		if s.Batch == nil {
			plan := defense.NoteReleaseCheck(defense.ReleaseCheckInput{Now: clock.Now(), Settings: s.Settings, Change: s.Release}, c)
			return Decision{Void: plan.Status == nil, Release: plan.Status, Events: plan.Events}
		}
		plan := defense.NoteCheck(defense.BatchInput{
			Now: clock.Now(), Settings: s.Settings, Batch: s.Batch, Change: s.Release, Begin: s.Begin,
			Server: s.Release.Status.OrderStage != v1alpha1.OrderNone,
		}, c)
		return Decision{Void: plan.Status == nil, Batch: plan.Status, Events: plan.Events}
	}}
}

// findCheck finds a check of a policy as it is by now; nil when the policy does not
// have it any more. That is believed only from the API server.
func findCheck(ctx context.Context, v cluster.View, s *Subject, c *v1alpha1.CheckStatus) (*policy.Check, error) {
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

// stageOf is the stage of a release at which a check is made. Where it is made at all of
// a release, one at the stage Admission is made when it begins: admission did not see it.
func stageOf(c *policy.Check) v1alpha1.PolicyStage {
	if c.Stage == v1alpha1.StageAdmission {
		return v1alpha1.StageReleasePre
	}
	return c.Stage
}

// removed is a check that its policy does not have any more.
func removed(c *v1alpha1.CheckStatus) *v1alpha1.CheckStatus {
	canceled := c.DeepCopy()
	canceled.Phase, canceled.Reason = v1alpha1.CheckCanceled, v1alpha1.ReasonPolicyRemoved
	canceled.Message = "the policy is gone, or no longer has this check, or does not select the workload any more"
	return canceled
}

// look makes one step of a check. It returns nil where nothing is to be written.
func (p *PodHealth) look(ctx context.Context, s *Subject, c *v1alpha1.CheckStatus) (next *v1alpha1.CheckStatus, after time.Duration, err error) {
	of, err := findCheck(ctx, p.view, s, c)
	if err != nil {
		return nil, 0, err
	}
	if of == nil {
		return removed(c), 0, nil
	}
	pods, err := observed(ctx, p.view, s.Batch)
	if err != nil {
		return nil, 0, err
	}
	in := defense.PodHealthInput{Now: p.clock.Now(), Check: paramsOf(of), Status: followed(c, of, s), Pods: pods}
	plan := defense.DecidePodHealth(in)
	if plan.NeedsRelease {
		if in.Release, after, err = p.releases.health(ctx, s, of, pods, plan.Failing); in.Release == nil {
			return nil, after, err
		}
		plan = defense.DecidePodHealth(in)
	}
	if equality.Semantic.DeepEqual(plan.Status, *c) {
		return nil, plan.After, nil
	}
	plan.Status.Mode, plan.Status.Generation = of.Mode, of.Generation
	if of.OnNoData != v1alpha1.SilenceDefault {
		plan.Status.OnSilence = of.OnNoData
	}
	return &plan.Status, 0, nil
}

// followed is a check as its policy wants it by now.
func followed(c *v1alpha1.CheckStatus, of *policy.Check, s *Subject) v1alpha1.CheckStatus {
	f := *c.DeepCopy()
	if f.StartTime != nil {
		at := func(after time.Duration) *metav1.Time {
			return ptr.To(metav1.NewTime(f.StartTime.Add(after).Truncate(time.Second)))
		}
		f.DueTime, f.Deadline = at(of.Due()), at(of.Deadline)
	}
	if s.isOpen() && f.Background != of.Background {
		f.Background, f.Phase = of.Background, v1alpha1.CheckRunning
		if of.Background {
			f.Phase = v1alpha1.CheckWatching
		}
	}
	return f
}

// paramsOf are the parameters of a check, with the defaults of the API.
func paramsOf(c *policy.Check) defense.PodHealth {
	h := c.PodHealth
	return defense.PodHealth{
		Delay: c.Delay, MaxRestarts: h.MaxRestarts, MaxReadinessLosses: h.MaxReadinessLosses,
		ReadyAtEnd: ptr.Deref(h.ReadyAtEnd, true), FailOnOOM: ptr.Deref(h.FailOnOOM, true),
		MaxFailed: ptr.Deref(h.MaxFailedPods, intstr.FromInt32(0)), CompareOldPods: ptr.Deref(h.CompareOldPods, true),
		Suggestion: c.Suggestion,
	}
}

// observed are the pods of a batch that exist.
func observed(ctx context.Context, v cluster.View, batch *v1alpha1.ChangePod) ([]defense.Pod, error) {
	pods := make([]defense.Pod, 0, len(batch.Spec.PodInfos))
	for _, info := range batch.Spec.PodInfos {
		var pod corev1.Pod
		err := v.Cached.Get(ctx, types.NamespacedName{Namespace: batch.Namespace, Name: info.Pod}, &pod)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("get pod %s/%s: %w", batch.Namespace, info.Pod, err)
		}
		if err == nil && pod.UID == types.UID(info.UID) {
			pods = append(pods, defense.ReadPod(&pod))
		}
	}
	return pods, nil
}

// Begin says which checks of policies begin with a batch.
func Begin(ctx context.Context, v cluster.View, s *Subject) ([]defense.BeginCheck, error) {
	of := s.Selected
	of.Began = time.Unix(s.Release.Status.StartTimeUnix, 0)
	selected := policy.Select(s.Policies, v.Operator, of).At(v1alpha1.StageBatchPre, v1alpha1.StageBatchPost)
	begin := make([]defense.BeginCheck, 0, len(selected))
	for i := range selected {
		c := &selected[i]
		if s.Release.Status.Status == v1alpha1.ChangeWorkloadSuccess && !c.AfterSuccess() {
			continue
		}
		check := beginOf(c)
		if c.Stage == v1alpha1.StageBatchPre {
			check.Status.Stage = c.Stage
		}
		if c.PodHealth != nil {
			pods, err := observed(ctx, v, s.Batch)
			if err != nil {
				return nil, err
			}
			for j := range pods {
				if n := pods[j].Restarts; n > 0 {
					check.Status.PodsAtStart = append(check.Status.PodsAtStart, v1alpha1.PodAtStart{Pod: pods[j].Name, RestartsAtStart: n})
				}
			}
		}
		begin = append(begin, check)
	}
	return begin, nil
}

// BeginRelease says which checks of policies may begin at stages of a release as a
// whole. Those at the stage Admission do of one that admission did not see.
func BeginRelease(ctx context.Context, v cluster.View, w *defense.Workload, change *v1alpha1.ChangeWorkload) ([]defense.BeginCheck, error) {
	policies, of, err := v.PoliciesFor(ctx, w)
	if err != nil {
		return nil, err
	}
	if change.Status.Attempt > 0 && change.Status.ObservedRelease == change.Spec.Release {
		of.Began = time.Unix(change.Status.StartTimeUnix, 0)
	}
	selected := policy.Select(policies, v.Operator, of).At(v1alpha1.StageReleasePre, v1alpha1.StageReleasePost)
	if defense.Slipped(w, change) {
		// Of those that were there when it was asked for.
		if asked := w.RevisionCreated; !asked.IsZero() && (of.Began.IsZero() || asked.Before(of.Began)) {
			of.Began = asked
		}
		selected = append(selected, policy.Select(policies, v.Operator, of).At(v1alpha1.StageAdmission)...)
	}
	begin := make([]defense.BeginCheck, len(selected))
	for i := range selected {
		begin[i] = beginOf(&selected[i])
		begin[i].Status.Stage = stageOf(&selected[i])
	}
	return begin, nil
}

func beginOf(c *policy.Check) defense.BeginCheck {
	return defense.BeginCheck{
		Status: v1alpha1.CheckStatus{Name: c.Name, Type: c.Type, Mode: c.Mode, Generation: c.Generation, Background: c.Background},
		Due:    c.Due(), Deadline: c.Deadline,
	}
}
