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

package defense

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/hold"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// The hold of a release whose pods the operator evicts.

// nodesOf returns the pods that a hold by evictions replaces.
func nodesOf(d *release) (n hold.Nodes) {
	w := d.Workload
	if !w.Pace.ByEviction {
		return n
	}
	n = hold.Nodes{
		MaxUnavailable: w.MayLack, Misscheduled: w.Misscheduled, Lacking: w.Replicas - w.Scheduled,
		Began: time.Unix(d.status.StartTimeUnix, 0), Live: d.LivePlaces,
		Unknown: w.Revision == "" || len(d.Places) == 0, Behind: w.Revision != "" && w.Rollout.Stale,
	}
	for i := range d.Places {
		switch p := &d.Places[i]; {
		case !p.Live():
			n.Leaving = append(n.Leaving, *p)
		case !p.Current:
			n.Old = append(n.Old, *p)
		}
	}
	return n
}

// mayEvict asks for the pods and the batches in the API server before a wave is evicted or the hold ends. No pod is
// evicted while a pod of the release has failed, even if the halt was denied, or while the strategy is not the hold's.
func mayEvict(d *release, plan hold.Plan) hold.Plan {
	waits, failed := d.EvictAfter.Sub(d.Now), d.hasFailed() || slices.ContainsFunc(d.Batches, d.failsIn)
	switch {
	case len(plan.Evict) > 0 && (waits > 0 || failed || d.Workload.Pace != d.Workload.Hold.Set):
		plan.Evict, plan.Set, plan.Opens, plan.NeedsLive = nil, nil, false, false
		plan.Again = times.Shortest(plan.Again, max(waits, 0))
	case plan.NeedsLive:
		d.plan.NeedsPlaces, d.plan.NeedsBatches = true, !d.LiveBatches
	}
	return plan
}

// failsIn reports whether a pod failed in a batch of the attempt, which may not be done.
func (d *release) failsIn(b v1alpha1.ChangePod) bool {
	_, failed := record.BatchResults(&b)
	return d.ofAttempt(&b) && len(failed) > 0
}

// noteEvictions reports that no eviction is blocked while a wave waits, or once the rollout is not held.
func noteEvictions(d *release, waits bool) {
	if w := d.Workload; w.Pace.ByEviction && (waits || w.Hold == nil || d.plan.Hold != nil && d.plan.Hold.Set == nil) {
		rollback.NoteEviction(d.status, w, d.Change.Generation, d.Now, nil)
	}
}

// mayHold reports whether the settings hold rollouts of this kind: of DaemonSets only if they name them.
func mayHold(d *release) bool {
	return d.Settings.Hold.Holds() && (!d.Workload.Pace.ByEviction || d.Settings.HoldDaemonSets)
}

// describeNumbers says which numbers a hold that ends gives back, if the API server would refuse the user's.
func describeNumbers(w *workload.Workload) string {
	if h := w.Hold; h.ByEviction && h.Fitting(h.Kept(w.Pace)) != h.Kept(w.Pace) {
		return "; maxUnavailable and maxSurge did not fit together, so they are " + h.MaxUnavailable + " and 0 again"
	}
	return ""
}

// maxDown bounds the nodes that a message names.
const maxDown = 5

func describeDown(nodes []string) string {
	if len(nodes) == 0 {
		return ""
	}
	nodes = slices.Sorted(slices.Values(nodes))
	more := ""
	if n := len(nodes) - maxDown; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("; not Ready: node %s%s", strings.Join(nodes[:min(len(nodes), maxDown)], ", "), more)
}
