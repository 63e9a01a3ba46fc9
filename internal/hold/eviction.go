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
	"slices"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// A workload with a pod on each node is held by OnDelete, and the operator evicts a wave of old pods.
// A wave has as many pods as the user lets be unavailable, less the pods that are not available. The
// next wave begins when all pods of the current version are verified and Ready, or their time is
// over, and none is missing. Nodes that the workload does not want (they have a taint, or are deleted)
// may keep their pods. The status only counts these nodes, so as many available pods are subtracted.
// Nothing continues while the operator is gone; a pod that is recreated then has the current version.
//
// Two operators may decide at once. Both choose the same pods in the same state, and a pod that one
// of them evicted is missing for the other.

// Nodes is how the pods of a workload with a pod on each node are.
type Nodes struct {
	// Old are the pods of other versions that are neither terminating nor ended.
	Old []workload.Place
	// Leaving are the terminating and the ended pods of all versions.
	Leaving []workload.Place
	// MaxUnavailable is how many pods the user lets be unavailable.
	MaxUnavailable int32
	// Misscheduled is on how many nodes that the workload does not want it has pods, and Lacking on how many that it wants
	// it has none, by its status.
	Misscheduled, Lacking int32
	// Began is when the release began.
	Began time.Time
	// Unknown: the controller of the workload has not recorded the current version yet. Behind: its status is of an
	// earlier generation, so it may not know the hold.
	Unknown, Behind bool
	// Live: the pods were read from the API server.
	Live bool
}

// readAgain is how long to wait for a change of a pod or a node that may cause no event.
const readAgain = 30 * time.Second

// evictions is the state of a decision.
type evictions struct {
	Input
	plan Plan
	// taken are the nodes with a pod, available those with an available pod.
	taken, available map[string]bool
	// newest is when the last pod of the current version was created, and since when the last pod was evicted, created,
	// deleted or unavailable: there may have been room for a wave until then.
	newest, since time.Time
	// idle are the old pods that are not available, and next those that are.
	idle, next []workload.Place
}

// decideEviction returns the next step of a rollout that the operator carries out by evictions.
func decideEviction(in Input) Plan {
	h := in.Hold
	w := &evictions{
		Input: in, taken: map[string]bool{}, available: map[string]bool{}, since: times.Latest(time.Unix(h.OpenedAt, 0), in.Began),
	}
	w.readCurrent()
	w.readOld()
	more := count(w.taken) - in.Misscheduled - in.Replicas
	w.plan.Missing = max(-more, 0)
	// A pod that was missing in the status is missing for longer than a moment. The pod of a deleted node makes up for a
	// missing one in the number of pods.
	lacking := in.Lacking + w.readLeaving()
	recent := w.plan.Missing > lacking
	left := w.since.Add(in.AtMost + in.MinReady).Sub(in.Now)
	first := in.Until == v1alpha1.HoldFirstBatch && h.OpenedAt > 0
	switch {
	case in.Behind, recent, w.plan.Waiting > 0, left > 0 && (in.Unknown || more != 0 || lacking > 0):
		w.plan.Again = times.Shortest(w.plan.Again, readAgain)
		return w.plan
	case in.Unknown:
		w.plan.Stuck = true
	case len(w.idle)+len(w.next) == 0, first && len(in.Pods) > 0 && len(in.Old) <= int(h.Replicas):
		w.plan.Done = true
	default:
		w.plan.Evict = w.wave(max(more+lacking, 0) + in.Misscheduled)
		if rest := len(in.Old) - int(h.Replicas); first && rest > 0 {
			w.plan.Evict = w.plan.Evict[:min(len(w.plan.Evict), rest)]
		}
		w.plan.Stuck = len(w.plan.Evict) == 0 && left <= 0
		if len(w.plan.Evict) == 0 && !w.plan.Stuck {
			w.plan.Again = times.Shortest(w.plan.Again, min(left, readAgain))
			return w.plan
		}
	}
	if !in.Live {
		w.plan.NeedsLive = true
	}
	// After a refused eviction, the wave is still open.
	if opened := time.Unix(h.OpenedAt, 0); len(w.plan.Evict) > 0 && (!opened.After(w.newest) || in.Now.Sub(opened) > in.AtMost/2) {
		set, was := *h, h.Set
		set.Was, set.Until, set.OpenedAt, set.OpenedTo = &was, in.Until, in.Now.Unix(), max(w.newest.Unix(), 0)
		if !first {
			set.Replicas = int32(len(in.Old) - len(w.plan.Evict)) //nolint:gosec // a cluster has far fewer nodes
		}
		w.plan.Set, w.plan.Opens = &set, true
	}
	return w.plan
}

// readCurrent reads the pods of the current version.
func (w *evictions) readCurrent() {
	for i := range w.Pods {
		p := &w.Pods[i]
		w.newest = times.Latest(w.newest, p.Created)
		w.taken[p.Node] = true
		ready := p.IsReady() && !p.Down
		available := ready && w.isAvailable(p.ReadySince)
		w.available[p.Node] = w.available[p.Node] || available
		if !available {
			w.since = times.Latest(w.since, times.Latest(p.ReadySince, p.UnreadySince))
		}
		if p.Down && !slices.Contains(w.plan.Down, p.Node) {
			w.plan.Down = append(w.plan.Down, p.Node)
		}
		// No verdict comes before the user's own minReadySeconds are over.
		left := p.Created.Add(w.AtMost + w.MinReady).Sub(w.Now)
		switch {
		case p.Verified && ready:
			continue
		case left <= 0:
			// Its time is over, Ready or not: it still counts as unavailable.
			if !p.Verified && p.Created.Unix() > w.Hold.OpenedTo {
				w.plan.RanOut++
			}
			continue
		}
		w.plan.Again = times.Shortest(w.plan.Again, max(left, time.Second/10))
		w.plan.Waiting++
		if w.plan.Since.IsZero() || p.Created.Before(w.plan.Since) {
			w.plan.Since = p.Created
		}
	}
	w.since = times.Latest(w.since, w.newest)
}

// isAvailable reports whether a pod that has been Ready since this time is available, and plans a decision for when it is.
func (w *evictions) isAvailable(since time.Time) bool {
	left := since.Add(w.MinReady).Sub(w.Now)
	w.plan.Again = times.Shortest(w.plan.Again, max(left, 0))
	return left <= 0
}

// readOld reads the pods of other versions. A pod on an unreachable node would never be gone.
func (w *evictions) readOld() {
	for i := range w.Old {
		p := &w.Old[i]
		at := p.Seat()
		w.taken[at] = true
		switch {
		case p.Lost:
			w.since = times.Latest(w.since, p.Bounded(p.UnreadySince, w.Now))
			if !slices.Contains(w.plan.Down, at) {
				w.plan.Down = append(w.plan.Down, at)
			}
		case p.Ready && w.isAvailable(p.Bounded(p.ReadySince, w.Now)):
			w.available[at] = true
			w.next = append(w.next, *p)
		default:
			w.idle = append(w.idle, *p)
		}
	}
	byName := func(a, b workload.Place) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(w.idle, byName)
	slices.SortFunc(w.next, byName)
}

// readLeaving reads the pods that are replaced, and returns how many nodes have no other pod.
func (w *evictions) readLeaving() int32 {
	only := map[string]bool{}
	for i := range w.Leaving {
		p := &w.Leaving[i]
		only[p.Seat()] = !w.taken[p.Seat()]
		w.since = times.Latest(w.since, p.Deleted)
	}
	return count(only)
}

// wave returns the next wave, if so many nodes with a pod are not wanted. Pods that are not available cost nothing, so
// they go first.
func (w *evictions) wave(unwanted int32) []workload.Place {
	idle := int32(len(w.idle)) //nolint:gosec // a cluster has far fewer nodes
	room := w.MaxUnavailable - max(w.Replicas-count(w.available)+unwanted, 0) + idle
	return slices.Concat(w.idle, w.next)[:min(max(room, 0), idle+int32(len(w.next)))] //nolint:gosec // as above
}

func count(nodes map[string]bool) (n int32) {
	for _, is := range nodes {
		if is {
			n++
		}
	}
	return n
}
