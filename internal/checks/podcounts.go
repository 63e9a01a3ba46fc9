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
	"time"

	"github.com/traas-stack/altershield-operator/internal/judge"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// failureCounts has the failures of the new pods of a release while their check runs. A pod counts one restart and one loss of readiness
// at most, because the status of a pod has the last one only, and because a second restart fails the check.
type failureCounts struct {
	// began is the start of the first check. Pods were between least and most old while they were checked.
	began            time.Time
	least, most      time.Duration
	restarts, losses []judge.PodMinute
}

// add adds the pods of a batch.
func (f *failureCounts) add(in podHealthInput) {
	h := newPodHealth(in)
	h.count()
	until := earliest(h.Now, h.due)
	for i := range h.Pods {
		p := &h.Pods[i]
		if p.Excused() || p.NodeRestarted || !until.After(h.begun) {
			continue
		}
		if len(f.restarts) == 0 {
			f.began, f.least = h.begun, h.begun.Sub(p.Created)
		}
		f.began, f.least, f.most = earliest(f.began, h.begun), min(f.least, h.begun.Sub(p.Created)), max(f.most, until.Sub(p.Created))
		of := judge.PodMinute{Pod: p.Name, Exposure: until.Sub(h.begun).Minutes()}
		restarts, losses := of, of
		if h.restarts(p) > 0 {
			restarts.Events = 1
		}
		if h.lostReadiness(p) {
			losses.Events = 1
		}
		f.restarts, f.losses = append(f.restarts, restarts), append(f.losses, losses)
	}
}

// worse says by how much new pods fail more often than old ones; empty if they do not.
func (f *failureCounts) worse(now time.Time, old []workload.Pod) string {
	restarts := func(p *workload.Pod) (at time.Time, of judge.PodMinute) {
		// Restarts of the old pod before the release count, too.
		return p.EndedAt, judge.PodMinute{Events: float64(p.Restarts), Exposure: now.Sub(p.Created).Minutes()}
	}
	losses := func(p *workload.Pod) (at time.Time, of judge.PodMinute) {
		at, of.Exposure = readinessChanged(p), now.Sub(f.began).Minutes()
		if !p.Bounded(at, now).Before(f.began.Add(-workload.ClockTolerance)) {
			of.Events = 1
		}
		return at, of
	}
	return joined("; ", f.against("restarts", f.restarts, now, old, restarts), f.against("readiness losses", f.losses, now, old, losses))
}

// against compares the failures of one kind. An old pod whose last failure is later than the age of the new ones may have failed at that
// age, too.
func (f *failureCounts) against(kind string, fresh []judge.PodMinute, now time.Time, old []workload.Pod,
	failures func(*workload.Pod) (at time.Time, of judge.PodMinute),
) string {
	all := judge.Failures{Fresh: fresh}
	for i := range old {
		p := &old[i]
		if p.Excused() || !p.Created.Before(f.began) {
			continue
		}
		at, of := failures(p)
		of.Pod, at = p.Name, p.Bounded(at, now)
		all.Old = append(all.Old, of)
		if !at.Equal(p.Created) && !at.Before(f.began.Add(-workload.ClockTolerance)) {
			all.Same++
		}
		if age := at.Sub(p.Created); age <= f.most {
			all.Aged++
			if age >= f.least && age > 0 {
				all.AgedFailed++
			}
		}
	}
	if !all.Worse() {
		return ""
	}
	return all.Sentence(kind)
}

// mayBeWorse reports whether a pod of the batch failed, so that the new pods may be worse than old ones.
func (h *podHealth) mayBeWorse() bool {
	if !*h.Check.PodHealth.CompareOldPods || h.status.Comparison != "" {
		return false
	}
	for i := range h.Pods {
		if h.failed(&h.Pods[i]) {
			return true
		}
	}
	return false
}

// failed reports whether a pod was restarted or lost readiness while the check runs.
func (h *podHealth) failed(p *workload.Pod) bool {
	return !p.Excused() && !p.NodeRestarted && (h.restarts(p) > 0 || h.lostReadiness(p))
}

// lostReadiness reports whether a pod became unready while the check runs. It is Ready when its batch begins.
func (h *podHealth) lostReadiness(p *workload.Pod) bool {
	from := h.begun.Add(-workload.ClockTolerance)
	if p.Ready {
		from = h.begun.Add(workload.ClockTolerance)
	}
	at := p.Bounded(readinessChanged(p), h.Now)
	return !at.Before(from) && !at.After(h.due)
}

// readinessChanged returns when a pod last became Ready or unready.
func readinessChanged(p *workload.Pod) time.Time {
	if p.Ready {
		return p.ReadySince
	}
	return p.UnreadySince
}
