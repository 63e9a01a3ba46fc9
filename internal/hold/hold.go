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

package hold

import (
	"cmp"
	"math"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// A hold makes the rollout of a Deployment wait for its verdicts. The pods of a wave
// run, are Ready and serve, but count as available only once they are verified, so the
// deployment controller makes no more of them: minReadySeconds is raised while they are
// not, and lowered to their age when they are. No pod is ever removed because of that.
// Should the operator be gone, each wave goes on by itself when it is as old as that.
//
// Workloads whose pods are numbered are held by their partition instead: partition.go.

// Times are the times of a hold that are the same for all workloads.
type Times struct {
	// Step is how long a wave is kept at first from being available. Should the
	// operator be gone, a wave goes on by itself after that.
	Step time.Duration
	// Guard is how long before a wave would become available by itself the operator
	// sees to it that it does not.
	Guard time.Duration
}

// OrDefault fills in what is not set.
func (s Times) OrDefault() Times {
	return Times{Step: cmp.Or(s.Step, 10*time.Minute), Guard: cmp.Or(s.Guard, time.Minute)}
}

// settle is how old pods are at least when they are let become available: the pods that
// are made then have to be that old before they are, too, and are seen before.
func (s Times) settle() time.Duration { return max(s.Guard/5, leastSettle) }

// leastSettle is how long a busy operator, and the controllers of Kubernetes, may take to
// see pods that were made and to act on them.
const leastSettle = 5 * time.Second

// slack is how much younger than the youngest of them a pod is taken for that is let
// become available: times are in whole seconds, and clocks differ.
const slack = 2 * time.Second

// maxStep bounds how long a hold goes on when the operator is gone.
const maxStep = time.Hour

// Input is what the pace of a rollout that is held is decided from.
type Input struct {
	Now time.Time
	// Hold is what the workload says of it.
	Hold *workload.Hold
	// Until and AtMost are wanted now.
	Until  v1alpha1.HoldUntil
	AtMost time.Duration
	Times
	// Replicas are asked for, and Made is how many pods of the current template are by
	// now. Pods are those of it that are not to go.
	Replicas, Made int32
	Pods           []workload.HeldPod
	// MinReady is how long the user wants a pod to be Ready, and Batch how many pods a
	// batch takes.
	MinReady time.Duration
	Batch    int32
}

// Plan is what becomes of a hold.
type Plan struct {
	// Done: nothing is waited for any more. Over: that is so, too, and the fields are given
	// back once the pods are available.
	Done, Over bool
	// Set is the pace it is to have from now on; nil when nothing changes. Opens: pods
	// are let become available by it.
	Set   *workload.Hold
	Opens bool
	// Waiting are the pods that are waited for, the oldest of which was made at Since.
	Waiting int
	Since   time.Time
	// Missing are pods of a wave that are not made yet, where the hold is by a partition.
	Missing int32
	// RanOut are pods that have no verdict after the longest time that is waited, and were
	// not let become available before.
	RanOut int
	// Again is how long until there is something to do by time alone; 0 for never.
	Again time.Duration
}

// wave is what a decision looks at of the pods.
type wave struct {
	Input
	plan Plan
	// verified are pods that are not waited for, because they are verified and Ready, or
	// because their time is over. waiting are the others.
	verified, waiting []workload.HeldPod
	// oldest is how long the oldest pod is Ready that waits; zero when none is Ready.
	oldest time.Duration
	ready  bool
}

// Decide says what becomes of a rollout that is held.
func Decide(in Input) Plan {
	if in.Hold.ByPartition {
		return decidePartition(in)
	}
	w := &wave{Input: in}
	for _, p := range in.Pods {
		// No verdict comes before the user's own minReadySeconds are over.
		left := p.Created.Add(in.AtMost + in.Hold.MinReady()).Sub(in.Now)
		switch {
		case p.Verified && p.IsReady():
			w.verified = append(w.verified, p)
			continue
		case left <= 0 && !p.Verified:
			// Its time is over, Ready or not.
			if !p.IsReady() || p.ReadySince.Unix() > in.Hold.OpenedTo {
				w.plan.RanOut++
			}
			w.verified = append(w.verified, p)
			continue
		case left > 0:
			w.again(left)
		}
		w.waiting = append(w.waiting, p)
		if w.plan.Since.IsZero() || p.Created.Before(w.plan.Since) {
			w.plan.Since = p.Created
		}
		if age := in.Now.Sub(p.ReadySince); !p.ReadySince.IsZero() && (!w.ready || age > w.oldest) {
			w.oldest, w.ready = age, true
		}
	}
	w.plan.Waiting = len(w.waiting)
	switch {
	case w.over():
		w.end()
	case w.open():
	default:
		w.close()
	}
	if minReady := cmp.Or(w.plan.Set, in.Hold).Set.MinReady(); w.ready && !w.plan.Done {
		w.again(minReady - w.oldest - w.early(minReady))
	}
	return w.plan
}

func (w *wave) again(in time.Duration) {
	w.plan.Again = times.Shortest(w.plan.Again, max(in, time.Second/10))
}

// over says that nothing is waited for: the first wave is verified, or all pods are.
func (w *wave) over() bool {
	switch {
	case w.Replicas == 0, w.Until == v1alpha1.HoldFirstBatch && w.Hold.OpenedAt > 0:
		return true
	case len(w.waiting) > 0 || len(w.verified) == 0 || len(w.verified) < int(w.Made):
		return false
	default:
		return w.Until == v1alpha1.HoldFirstBatch || len(w.verified) >= int(w.Replicas)
	}
}

// end gives back what the hold changed. Where the rollout stood still for longer than the
// user lets it, the pods become available first: that is progress, and the deployment
// controller would see the deadline before it.
func (w *wave) end() {
	w.plan.Again, w.plan.Waiting, w.plan.Over = 0, 0, true
	minReady := w.Hold.Set.MinReadySeconds
	switch late := w.stoodStill() >= w.Hold.Deadline()-w.Guard; {
	case late && minReady > w.Hold.MinReadySeconds:
		set := w.with(0)
		set.OpenedAt, set.OpenedTo = w.Now.Unix(), w.Now.Unix()
		w.plan.Set, w.plan.Opens = set, true
		w.again(w.settle())
	case late && w.Now.Before(time.Unix(w.Hold.OpenedAt, 0).Add(w.settle())):
		w.again(time.Unix(w.Hold.OpenedAt, 0).Add(w.settle()).Sub(w.Now))
	default:
		w.plan.Done, w.plan.Over = true, false
	}
}

// stoodStill is how long no pod got Ready.
func (w *wave) stoodStill() time.Duration {
	still := maxStep
	for i := range w.verified {
		if p := &w.verified[i]; !p.ReadySince.IsZero() {
			still = min(still, w.Now.Sub(p.ReadySince))
		}
	}
	return still
}

// open lets the pods become available that are verified and older than the oldest one
// that waits, each once. The first wave is let go on as a whole, when the hold is over.
func (w *wave) open() bool {
	if w.Until == v1alpha1.HoldFirstBatch {
		return false
	}
	opens, youngest := false, time.Duration(math.MaxInt64)
	for i := range w.verified {
		p := &w.verified[i]
		age := w.Now.Sub(p.ReadySince)
		if p.ReadySince.IsZero() || w.ready && age-slack <= w.oldest+w.settle() {
			continue
		}
		if wait := w.settle() + slack - age; wait > 0 {
			if p.Flapped {
				continue // the others do not wait for it
			}
			w.again(wait)
			return false
		}
		youngest = min(youngest, age)
		opens = opens || p.ReadySince.Unix() > w.Hold.OpenedTo
	}
	// What was opened was shut before anything came of it.
	opens = opens || len(w.waiting) == 0 && youngest < w.Hold.Set.MinReady()
	if !opens {
		return false
	}
	set := w.with(min(youngest-slack, w.oldest+maxStep))
	set.OpenedAt, set.OpenedTo = w.Now.Unix(), w.Now.Add(-youngest).Unix()
	w.plan.Set, w.plan.Opens = set, true
	return true
}

// close keeps the pods that wait from becoming available, when they are about to.
func (w *wave) close() {
	minReady := w.Hold.Set.MinReady()
	if len(w.waiting) == 0 || (!w.ready || minReady-w.oldest > w.early(minReady)) && (minReady >= w.Guard || !w.madeSince()) {
		return
	}
	to := w.oldest + w.Step
	if age, ok := w.youngestVerified(); ok && age-slack-w.oldest >= 2*w.Guard {
		// The verified ones stay available.
		to = min(age-slack, w.oldest+maxStep)
	}
	w.plan.Set = w.with(to)
}

// early is how long before a pod would become available it is kept from that: not so
// early that what was opened just now has not been acted on.
func (w *wave) early(minReady time.Duration) time.Duration {
	early := min(w.Guard, max(minReady/2, slack))
	if open := w.Now.Sub(time.Unix(w.Hold.OpenedAt, 0)); w.Hold.OpenedAt > 0 && open >= 0 && !w.madeSince() {
		early = min(early, max((minReady-w.oldest+open)/2, slack))
	}
	return early
}

// madeSince says that pods were made since some were let become available.
func (w *wave) madeSince() bool {
	for i := range w.waiting {
		if w.waiting[i].Created.Unix() >= w.Hold.OpenedAt {
			return true
		}
	}
	return false
}

// youngestVerified is how long the youngest pod is Ready that is verified and older than
// those that wait.
func (w *wave) youngestVerified() (age time.Duration, ok bool) {
	for i := range w.verified {
		p := &w.verified[i]
		if a := w.Now.Sub(p.ReadySince); !p.ReadySince.IsZero() && a > w.oldest && (!ok || a < age) {
			age, ok = a, true
		}
	}
	return age, ok
}

// with is the hold with another MinReadySeconds.
func (w *wave) with(minReady time.Duration) *workload.Hold {
	h, was := *w.Hold, w.Hold.Set
	h.Set, h.Was, h.Until = h.Pace.Paced(minReady, w.AtMost), &was, w.Until
	return &h
}

// Wave is how many pods a rollout makes at first that is held by its partition: a batch
// of the pods that the workload asks for.
type Wave struct{ Replicas, Batch int32 }

// Begin is a hold that begins with this release, from the user's own pace; nil where it
// would keep no pod back.
func (s Times) Begin(release int64, own workload.Pace, until v1alpha1.HoldUntil, atMost time.Duration, first Wave) *workload.Hold {
	h := &workload.Hold{Release: release, Until: until, Pace: own}
	if own.ByPartition {
		h.Set, h.Replicas = own.Keeping(first.Replicas-first.size()), first.Replicas
		if h.Set == own {
			return nil
		}
		return h
	}
	h.Set = own.Paced(s.Step, atMost)
	return h
}
