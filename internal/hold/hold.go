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

// A hold makes the rollout of a Deployment wait for its verdicts. The pods of a wave run, are Ready
// and serve, but become available only once they are verified, so the deployment controller creates
// no more pods. The operator raises minReadySeconds while pods are not verified, and lowers it to
// their age once they are: it closes and opens a wave. No pod is removed because of a hold. If the
// operator is gone, a wave continues when it is as old as minReadySeconds.
//
// Workloads with numbered pods are held by their partition instead: partition.go. Workloads with a
// pod on each node are held by OnDelete: eviction.go.

// Times are the times of a hold that all workloads share.
type Times struct {
	// Step is how long a wave is closed at first. If the operator is gone, the wave continues after
	// that.
	Step time.Duration
	// Guard is how long before a wave becomes available without a verdict the operator closes it
	// again.
	Guard time.Duration
}

// OrDefault sets the default of each time that is not set.
func (s Times) OrDefault() Times {
	return Times{Step: cmp.Or(s.Step, 10*time.Minute), Guard: cmp.Or(s.Guard, time.Minute)}
}

// settle is the minimum age of pods that are opened: pods that are created then become available at
// the same age, and the operator sees them before that.
func (s Times) settle() time.Duration { return max(s.Guard/5, leastSettle) }

// leastSettle is how long a busy operator and the controllers of Kubernetes may take to see new
// pods and act on them.
const leastSettle = 5 * time.Second

// slack is subtracted from the age of the youngest pod that is opened: times are in whole seconds,
// and clocks differ.
const slack = 2 * time.Second

// maxStep bounds how long a hold lasts if the operator is gone.
const maxStep = time.Hour

// Input is the input of Decide.
type Input struct {
	Now time.Time
	// Hold is the hold in the annotations of the workload.
	Hold *workload.Hold
	// Until and AtMost are the current settings: what the hold waits for, and at most how long.
	Until  v1alpha1.HoldUntil
	AtMost time.Duration
	Times
	// Replicas is the desired number of pods, and Made how many pods of the current template exist.
	// Pods are these pods without terminating ones.
	Replicas, Made int32
	Pods           []workload.HeldPod
	// MinReady is the user's minReadySeconds, and Batch the number of pods in a batch.
	MinReady time.Duration
	Batch    int32
	// Nodes is how a hold by evictions finds the pods.
	Nodes
}

// Plan is the result of Decide.
type Plan struct {
	// Done: the hold ends. Over: the hold waits for nothing, but the fields are restored only once the
	// pods are available.
	Done, Over bool
	// Set is the next hold; nil if nothing changes. Opens: it opens a wave.
	Set   *workload.Hold
	Opens bool
	// Waiting is how many pods the hold waits for; the oldest was created at Since.
	Waiting int
	Since   time.Time
	// Missing is how many pods of a wave do not exist yet, if the hold is by a partition or by evictions.
	Missing int32
	// Evict are the pods of the next wave. NeedsLive: a wave is to be opened, or the hold to be ended;
	// read the pods and their nodes from the API server and decide again. Stuck: pods that are not
	// Ready left no room for a wave. Down are the nodes of the wave that are not Ready.
	Evict            []workload.Place
	NeedsLive, Stuck bool
	Down             []string
	// RanOut is how many pods have no verdict after the longest wait, and were not opened before.
	RanOut int
	// Again is how long until the next decision that depends on time alone; 0 for never.
	Again time.Duration
}

// wave is the state of a decision.
type wave struct {
	Input
	plan Plan
	// verified are pods that the hold does not wait for: they are verified and Ready, or their time is
	// over. waiting are the other pods.
	verified, waiting []workload.HeldPod
	// oldest is how long the oldest waiting pod has been Ready; ready is false if none is Ready.
	oldest time.Duration
	ready  bool
}

// Decide returns the next step of a held rollout.
func Decide(in Input) Plan {
	switch {
	case in.Hold.ByPartition:
		return decidePartition(in)
	case in.Hold.ByEviction:
		return decideEviction(in)
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

// over reports whether the hold waits for nothing: the first wave is verified, or all pods are.
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

// end restores the fields that the hold changed. If the rollout made no progress for longer than
// the user allows, the pods become available first: that is progress, and otherwise the deployment
// controller would find the deadline exceeded.
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

// stoodStill returns how long no pod has become Ready.
func (w *wave) stoodStill() time.Duration {
	still := maxStep
	for i := range w.verified {
		if p := &w.verified[i]; !p.ReadySince.IsZero() {
			still = min(still, w.Now.Sub(p.ReadySince))
		}
	}
	return still
}

// open opens the verified pods that are older than the oldest waiting pod, each once. The first
// wave is opened as a whole, at the end of the hold.
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
	// A wave was opened, and closed before the controller acted on it.
	opens = opens || len(w.waiting) == 0 && youngest < w.Hold.Set.MinReady()
	if !opens {
		return false
	}
	set := w.with(min(youngest-slack, w.oldest+maxStep))
	set.OpenedAt, set.OpenedTo = w.Now.Unix(), w.Now.Add(-youngest).Unix()
	w.plan.Set, w.plan.Opens = set, true
	return true
}

// close closes the waiting pods shortly before they become available.
func (w *wave) close() {
	minReady := w.Hold.Set.MinReady()
	if len(w.waiting) == 0 || (!w.ready || minReady-w.oldest > w.early(minReady)) && (minReady >= w.Guard || !w.madeSince()) {
		return
	}
	to := w.oldest + w.Step
	if age, ok := w.youngestVerified(); ok && age-slack-w.oldest >= 2*w.Guard {
		// The verified pods stay available.
		to = min(age-slack, w.oldest+maxStep)
	}
	w.plan.Set = w.with(to)
}

// early returns how long before a waiting pod becomes available its wave is closed: late enough for
// the controller to act on a wave that was just opened.
func (w *wave) early(minReady time.Duration) time.Duration {
	early := min(w.Guard, max(minReady/2, slack))
	if open := w.Now.Sub(time.Unix(w.Hold.OpenedAt, 0)); w.Hold.OpenedAt > 0 && open >= 0 && !w.madeSince() {
		early = min(early, max((minReady-w.oldest+open)/2, slack))
	}
	return early
}

// madeSince reports whether pods were created since a wave was opened.
func (w *wave) madeSince() bool {
	for i := range w.waiting {
		if w.waiting[i].Created.Unix() >= w.Hold.OpenedAt {
			return true
		}
	}
	return false
}

// youngestVerified returns how long the youngest verified pod that is older than the waiting pods
// has been Ready.
func (w *wave) youngestVerified() (age time.Duration, ok bool) {
	for i := range w.verified {
		p := &w.verified[i]
		if a := w.Now.Sub(p.ReadySince); !p.ReadySince.IsZero() && a > w.oldest && (!ok || a < age) {
			age, ok = a, true
		}
	}
	return age, ok
}

// with returns the hold with another MinReadySeconds.
func (w *wave) with(minReady time.Duration) *workload.Hold {
	h, was := *w.Hold, w.Hold.Set
	h.Set, h.Was, h.Until = h.Pace.Paced(minReady, w.AtMost), &was, w.Until
	return &h
}

// Wave is the first wave of a rollout that is held by its partition: a batch of the desired pods.
type Wave struct{ Replicas, Batch int32 }

// Begin returns a hold that begins with this release, from the user's pace; nil if it would hold no
// pod.
func (s Times) Begin(release int64, own workload.Pace, until v1alpha1.HoldUntil, atMost time.Duration, first Wave) *workload.Hold {
	h := &workload.Hold{Release: release, Until: until, Pace: own}
	if own.ByPartition {
		h.Set, h.Replicas = own.Keeping(first.Replicas-first.size()), first.Replicas
		if h.Set == own {
			return nil
		}
		return h
	}
	if own.ByEviction {
		h.Set.ByEviction, h.Set.OnDelete, h.Set.MaxUnavailable = true, true, own.MaxUnavailable
		if own.OnDelete || own.MaxSurge != "" {
			return nil
		}
		return h
	}
	h.Set = own.Paced(s.Step, atMost)
	return h
}
