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
	"slices"
	"time"

	"k8s.io/utils/clock"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/slots"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Past is a check of type prometheus, alerts or compare on pods of a past release.
type Past struct {
	Check *policy.Check
	// Subject has the workload, the release with its start, and the policies. Its Batch is set for a check of a batch.
	Subject Subject
	// Endpoint has the series of that time.
	Endpoint *v1alpha1.DefenseEndpoint
	// Began is the start of the check.
	Began time.Time
	// Batch are the pods of the Nth batch, Released the pods of the release, and Old the pods of the version Before that were Ready. Former
	// are those that were Ready when the release began.
	Batch, Released, Old, Former []workload.Pod
	N                            int
	Before                       string
	// Undo: the version succeeded before. Passed: an earlier batch passed the check.
	Undo, Passed bool
}

// Replay decides about past checks as the operator decides about current ones.
type Replay struct{ query *querier }

// NewReplay returns a Replay. operator is the namespace of the operator.
func NewReplay(clients *endpoint.Clients, c clock.PassiveClock, operator string) *Replay {
	none := func(rules.Policy, time.Time) {}
	return &Replay{&querier{view: cluster.View{Operator: operator}, clock: c, clients: clients, watch: rules.NewWatch(c, none)}}
}

// Decide returns the last status of a check, and its time. The phase is Running if the check is not over yet.
func (r *Replay) Decide(ctx context.Context, of Past) (v1alpha1.CheckStatus, time.Time) {
	c, series := of.Check, endpoint.SeriesOf(of.Endpoint)
	status := beginOf(c).Status
	status.Phase, status.StartTime = v1alpha1.CheckRunning, stamp(of.Began)
	status.DueTime, status.Deadline = stamp(of.Began.Add(c.Due())), stamp(of.Began.Add(c.Deadline))
	if c.Compare != nil {
		release, start := of.Subject.Release.DeepCopy(), time.Unix(of.Subject.Release.Status.StartTimeUnix, 0)
		release.Status.Baseline = baselineOf(of.Before, of.Former, start, start)
		of.Subject.Release = release
		status.OldPods = readyNames(of.Old)
		if of.Undo || !hasLive(c.Compare, status.OldPods) && !hasKept(c.Compare, release) {
			return notCompared(status, c, of.N, without(of.Before, of.Undo), isCompared(c, of.N, of.Passed)), of.Began
		}
	}
	work := slots.Work{Namespace: of.Subject.Release.Namespace, Release: of.Subject.Release.Name}
	in := queryInput{Now: of.Began, Check: c, Status: status, Range: c.Range(series.ScrapeInterval)}
	for {
		plan := decideQuery(in)
		in.Status, in.Errors, in.NotBefore, in.Answer = plan.Status, plan.Errors, plan.NotBefore, nil
		switch now := r.query.clock.Now(); {
		case in.Status.Phase != v1alpha1.CheckRunning, in.Now.Add(plan.After).After(now), plan.Ask.IsZero() && plan.After <= 0:
			return in.Status, in.Now
		case plan.Ask.IsZero():
			in.Now = in.Now.Add(plan.After)
			continue
		}
		q := r.question(&of, &in, series)
		if q == nil {
			return withoutPods(in.Status), in.Now
		}
		in.Answer = r.query.evaluate(ctx, c, of.Endpoint, work, q, plan.Ask)
		if in.Answer.Reason != "" { // a later call would not change the past
			in.Status.Phase, in.Status.Reason, in.Status.Message = v1alpha1.CheckError, in.Answer.Reason, in.Answer.Message
			in.Status.OnSilence = onSilence(c.OnError)
			return in.Status, in.Now
		}
		in.Answer.Query, in.Answer.Ended = q.Text, in.Now
	}
}

// question returns the question of an evaluation, about the pods of its time; nil if no pod is left.
func (r *Replay) question(of *Past, in *queryInput, series endpoint.Series) *question {
	released := slices.DeleteFunc(slices.Clone(of.Released), func(pod workload.Pod) bool { return pod.Created.After(in.Now) })
	v := variablesOf(&of.Subject, series, in.Range)
	if of.Check.Compare != nil {
		fresh := newNames(of.Batch, released, of.Began.Add(of.Check.Delay))
		if len(fresh) == 0 {
			return nil
		}
		return r.query.comparison(&of.Subject, of.Check, v, &in.Status, series, fresh, released)
	}
	v.Pods, v.NewPods, v.OldPods = namesOf(of.Batch), namesOf(released), namesOf(of.Old)
	return r.query.about(&of.Subject, of.Check, series, v, of.Batch)
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
