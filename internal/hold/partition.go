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
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// A workload with numbered pods replaces them from the last one down to its partition. The hold
// raises the partition so that only a batch of pods is replaced, and lowers it by a batch when all
// pods above it are verified, until it is the user's. Nothing continues by time while the operator
// is gone, and no pod is removed because of a hold: pods below the partition stay at the previous
// version, even if they are recreated.

func (w Wave) size() int32 { return max(w.Batch, 1) }

// decidePartition returns the next step of a rollout that is held by its partition. It reads the
// pods of the current version by their places, and waits for a pod that does not exist or is not
// cached. So each wave is opened once, even from an old cache, and a recreated pod has to be
// verified again. If pods are added, the hold restarts with the last ones: a batch of them gets the
// current version.
func decidePartition(in Input) Plan {
	w := &steps{Input: in}
	w.look()
	switch h, batch := in.Hold, (Wave{Batch: in.Batch}).size(); {
	case in.Replicas <= h.Partition, in.Until == v1alpha1.HoldFirstBatch && h.OpenedAt > 0:
		w.plan.Done = true
	case in.Replicas <= h.Set.Partition, h.Replicas > 0 && in.Replicas > h.Replicas && in.Replicas-batch > h.Set.Partition:
		// Scaled down, and no pod is left to be verified; or scaled up.
		w.plan.Set = w.with(in.Replicas - batch)
	case w.plan.Missing > 0 || w.plan.Waiting > 0:
		if in.Replicas < h.Replicas {
			w.plan.Set = w.with(h.Set.Partition) // scaled down: pods that return later count as added
		}
		return w.plan
	case in.Until == v1alpha1.HoldFirstBatch, h.Set.Partition <= h.Partition:
		w.plan.Done = true
	default:
		set := w.with(h.Set.Partition - batch)
		set.OpenedAt, set.OpenedTo = in.Now.Unix(), w.latest.Unix()
		w.plan.Set, w.plan.Opens = set, true
	}
	w.plan.Again = 0
	return w.plan
}

// steps is the state of a decision.
type steps struct {
	Input
	plan Plan
	// latest is when the last of the other pods became Ready.
	latest time.Time
}

// look reads the pods above the partition.
func (w *steps) look() {
	from := w.Hold.Set.Partition
	there := map[int32]bool{}
	w.latest = time.Unix(w.Hold.OpenedTo, 0)
	for _, p := range w.Pods {
		if p.Index < from || p.Index >= w.Replicas {
			continue
		}
		there[p.Index] = true
		w.latest = times.Latest(w.latest, p.ReadySince)
		// No verdict comes before the user's own minReadySeconds are over.
		left := p.Created.Add(w.AtMost + w.MinReady).Sub(w.Now)
		switch {
		case p.Verified && p.IsReady():
			continue
		case left <= 0 && p.IsReady():
			// Its time is over. A pod that is not Ready is waited for: the rollout would not continue.
			if p.ReadySince.Unix() > w.Hold.OpenedTo {
				w.plan.RanOut++
			}
			continue
		case left <= 0 && !p.Verified:
			w.plan.RanOut++ // if silence counts as a failure, the release fails
		case left > 0:
			w.plan.Again = times.Shortest(w.plan.Again, max(left, time.Second/10))
		}
		w.plan.Waiting++
		if w.plan.Since.IsZero() || p.Created.Before(w.plan.Since) {
			w.plan.Since = p.Created
		}
	}
	w.plan.Missing = max(w.Replicas-from, 0) - int32(len(there)) //nolint:gosec // at most as many
}

// with returns the hold with this many pods at the previous version.
func (w *steps) with(pods int32) *workload.Hold {
	h, was := *w.Hold, w.Hold.Set
	h.Set, h.Was, h.Until, h.Replicas = h.Keeping(pods), &was, w.Until, w.Replicas
	return &h
}
