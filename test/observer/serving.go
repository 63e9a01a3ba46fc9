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

package observer

import (
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
)

func (p *pod) serves() bool { return p.live && p.ready }

// availableAt returns when a Ready pod becomes available.
func (p *pod) availableAt(minReadySeconds int32) time.Time {
	return p.readySince.Add(time.Duration(minReadySeconds) * time.Second)
}

// oldServing counts the pods of a Deployment that serve and are not of its current revision.
func (w *world) oldServing(d *workload) (serving int32) {
	for _, p := range w.pods {
		if rs := w.replicaSets[p.owner]; rs.owner == d.UID && rs.template != d.template && p.serves() {
			serving++
		}
	}
	return serving
}

// replaced notes that an old pod of a held Deployment ceased to serve because of something else
// than the rollout: another pod may be in flight in its place.
func (w *world) replaced(p *pod) {
	rs := w.replicaSets[p.owner]
	if d := w.deployments[rs.owner]; d != nil && d.template != rs.template && w.holds.going[d.UID] != nil {
		w.holds.going[d.UID].room++
	}
}

func (w *world) applyPod(e event, o podFacts, by Writer) (findings []finding) {
	next := &pod{podFacts: o, namespace: e.namespace, name: e.name, holdFacts: holdFacts{born: e.rv, listed: e.listed}}
	before := w.pods[e.uid]
	if before == nil && !e.listed {
		findings = w.checkStep(next)
	}
	if before != nil {
		rs, known := w.replicaSets[before.owner]
		before.settle(rs.minReadySeconds, known, e.seen)
		next.holdFacts = before.holdFacts
		if before.serves() && (!next.serves() || next.readySince.After(before.readySince)) {
			next.lost = e.seen
			if !o.deleting {
				w.replaced(before)
			}
		}
		if o.deleting && !before.deleting {
			findings = w.checkDeleted(before, e.seen, by)
		}
	}
	w.pods[e.uid] = next
	return findings
}

func (w *world) removePod(e event, by Writer) (findings []finding) {
	p := w.pods[e.uid]
	if p == nil {
		return nil
	}
	rs, known := w.replicaSets[p.owner]
	if _, h := w.heldSet(rs); h != nil {
		s := w.historyOf(p.owner)
		p.settle(rs.minReadySeconds, known, e.seen)
		if trusted := w.trusted(p, h, e.seen); trusted || p.settled {
			s.settled++
			if trusted {
				s.trusted = append(recent(s.trusted, e.seen), e.seen)
			}
		}
	}
	if !p.deleting {
		findings = w.checkDeleted(p, e.seen, by)
	}
	delete(w.pods, e.uid)
	return findings
}

// checkDeleted checks S10 for a pod that is deleted now. On a control plane its writer is unknown,
// and checkRequest judges an eviction by the operator.
func (w *world) checkDeleted(p *pod, now time.Time, by Writer) []finding {
	if by == Operator {
		return w.checkEvicted(p, now)
	}
	return w.checkServing(p, now)
}

// checkServing checks S10 for a pod that is deleted now: if the rollout deletes it, enough other
// pods serve.
func (w *world) checkServing(p *pod, now time.Time) []finding {
	rs, known := w.replicaSets[p.owner]
	d, h := w.deployments[rs.owner], w.holds.going[rs.owner]
	if !known || d == nil || h == nil || d.DeletionTimestamp != nil || !p.serves() {
		return nil
	}
	h.taken = recent(h.taken, now)
	if !w.rolls(p, d, h) {
		h.taken = append(h.taken, now)
		w.replaced(p)
		return nil
	}
	serve := len(h.taken)
	for _, other := range w.pods {
		if other == p || w.replicaSets[other.owner].owner != d.UID {
			continue
		}
		// The controllers learn late that a pod ceased to serve. A Deployment first deletes pods
		// that are not available, whether others serve or not.
		excused := other.live && (!other.lost.IsZero() && now.Sub(other.lost) <= delay || p.availableAt(rs.minReadySeconds).After(now))
		if other.serves() || excused {
			serve++
		}
	}
	if int32(serve) < h.need {
		return []finding{found(HoldHarmless, "the rollout takes pod %s, which serves: %d others do, and %d have to", p.name, serve, h.need)}
	}
	return nil
}

// rolls reports whether a held rollout deletes a pod of an earlier version. The ReplicaSet
// controller deletes only surplus pods; the StatefulSet controller deletes only pods above the
// partition and, unless it works in parallel, while the others serve. Other pods go because of
// another writer.
func (w *world) rolls(p *pod, d *workload, h *hold) bool {
	rs := w.replicaSets[p.owner]
	if rs.template == d.template {
		return false
	}
	if h.byPartition {
		at := indexOf(p.name, d.Deployment)
		return at >= h.is && at < h.replicas && setSpecIn(d.Annotations[restAnnotation]).PodManagementPolicy != appsv1.ParallelPodManagement
	}
	alive := int32(0)
	for _, other := range w.podsOf(p.owner) {
		if other.live {
			alive++
		}
	}
	return alive > rs.replicas
}

// checkEvicted checks S10 for a pod that the operator evicts: a stuck pod does not serve, or its DaemonSet is held, and
// pods on enough other nodes serve. In a held DaemonSet, S12 wants each pod of the version to be verified, or its time to
// be over.
func (w *world) checkEvicted(p *pod, now time.Time) []finding {
	if p == nil || !p.serves() || now.Sub(p.readySince) <= delay {
		return nil
	}
	rs := w.replicaSets[p.owner]
	if d := w.deployments[rs.owner]; d != nil && d.Annotations[evictsAnnotation] != "" && d.template != rs.template {
		var early []string
		serve := map[string]bool{}
		held, ofWave := &hold{atMost: atMostOf(d.Deployment, &heldAs{})}, true
		for _, other := range w.pods {
			of := w.replicaSets[other.owner]
			if other != p && of.owner == d.UID && (other.serves() || other.live && !other.lost.IsZero() && now.Sub(other.lost) <= delay) {
				serve[other.node] = true
			}
			if of.owner == d.UID && of.template == d.template && other.live && !w.trusted(other, held, now) {
				early = append(early, other.name)
				ofWave = ofWave && now.Sub(other.created) <= delay
			}
		}
		like := d.DeepCopy()
		like.Spec.Replicas = &d.Status.ReadyReplicas
		room, need := fenced(like)
		if len(serve) < int(need) {
			return []finding{found(HoldHarmless, "the operator evicts pod %s, which serves: pods on %d other nodes do, and on %d have to",
				p.name, len(serve), need)}
		}
		if len(early) == 0 || ofWave && len(early) < int(room) {
			return nil
		}
		slices.Sort(early)
		return []finding{found(HoldShut, "the operator evicts pod %s, and these pods are not verified: %s", p.name, strings.Join(early, ", "))}
	}
	since := p.readySince.UTC().Format(time.RFC3339)
	return []finding{found(HoldHarmless, "the operator evicts pod %s, which has been Ready since %s", p.name, since)}
}
