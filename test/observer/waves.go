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
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// followPartition notes how many pods a version of a held StatefulSet allows to be replaced. The
// controller decides how many of them are in flight at once, by the strategy of the user, which S6
// protects.
func (w *world) followPartition(h *hold, d *workload, as *heldAs, begins bool, by Writer, now time.Time) {
	_, h.byPartition = d.Annotations[partitionAnnotation]
	was, replicas := h.is, ptr.Deref(d.Spec.Replicas, 1)
	h.is = paceOf(d.Deployment).Partition
	if begins || as.Set.Partition > h.Set.Partition {
		h.wave = max(cmp.Or(as.Replicas, replicas)-as.Set.Partition, 1)
	}
	if replicas > h.replicas {
		h.grown, h.least = now, h.replicas
	}
	if !h.byPartition || begins || h.is >= was || by != Operator {
		return // a user's own value past admission is put back
	}
	if now.Sub(h.grown) <= delay {
		replicas = h.least // the operator may not know yet
	}
	h.early, h.lowered = "", was
	if n := min(was, replicas) - h.is; n > h.wave {
		h.early = fmt.Sprintf("%d pods may be replaced at once, and a wave has %d", n, h.wave)
	}
	verified := int32(0)
	for uid, rs := range w.replicaSets {
		if rs.owner != d.UID || rs.template != d.template {
			continue
		}
		verified += int32(len(recent(w.historyOf(uid).trusted, now)))
		for _, p := range w.podsOf(uid) {
			if at := indexOf(p.name, d.Deployment); at >= was && at < replicas && w.trusted(p, h, now) {
				verified++
			}
		}
	}
	if verified < replicas-was {
		h.early = fmt.Sprintf("%d of %d pods of the earlier waves are verified, or were held for at least %s", verified, replicas-was, h.atMost)
	}
}

// checkStep checks S12 for a new pod of the held version: the partition was lowered for it only
// after the pods of the earlier waves were verified.
func (w *world) checkStep(p *pod) []finding {
	d, h := w.heldSet(w.replicaSets[p.owner])
	if h == nil || !h.byPartition {
		return nil
	}
	at := indexOf(p.name, d.Deployment)
	if own := w.holds.fields[d.UID].own["partition"]; at < own && w.replaces(d) {
		return []finding{found(HoldHarmless, "made at release %s, and the user keeps %d pods", h.release, own)}
	}
	if h.early == "" || at >= h.lowered {
		return nil
	}
	early := h.early
	h.early = "" // it is reported once
	return []finding{found(HoldShut, "made at release %s by partition %d, which was %d: %s", h.release, h.is, h.lowered, early)}
}

// replaces reports whether a workload has another version besides its own: of its only version, all
// pods are created.
func (w *world) replaces(d *workload) bool {
	for _, rs := range w.replicaSets {
		if rs.owner == d.UID && rs.template != d.template {
			return true
		}
	}
	return false
}

func (w *world) applyReplicaSet(e event, o replicaSetFacts) []finding {
	before, known := w.replicaSets[e.uid]
	s := w.historyOf(e.uid)
	if !known || before.minReadySeconds != o.minReadySeconds {
		s.since = e.seen
	}
	w.replicaSets[e.uid] = o
	_, h := w.heldSet(o)
	if h == nil || e.listed {
		return nil
	}
	pods := w.podsOf(e.uid)
	for _, p := range pods {
		p.settle(before.minReadySeconds, known, e.seen)
		p.settle(o.minReadySeconds, true, e.seen)
	}
	var findings []finding
	if before.status != o.status {
		findings = append(findings, w.checkShut(e, o, h, s, pods)...)
	}
	if o.replicas > before.replicas {
		findings = append(findings, w.checkInFlight(e, o, h, s, pods)...)
	}
	return findings
}

// settle notes that a pod was available, if it was Ready long enough.
func (p *pod) settle(minReadySeconds int32, known bool, now time.Time) {
	p.settled = p.settled || known && p.serves() && !p.availableAt(minReadySeconds).After(now.Add(slack))
}

// trusted reports whether a pod may be available: it was verified, its time ran out, it is older
// than the hold, or it became available while no replica could prevent that.
func (w *world) trusted(p *pod, h *hold, now time.Time) bool {
	return p.listed || p.born < h.rv || p.alone || w.isVerified(p, now) || !p.created.Add(h.atMost).After(now.Add(slack))
}

// checkShut checks S12 for a count of the ReplicaSet controller: it counts no more pods as
// available than are trusted among those it may count.
func (w *world) checkShut(e event, o replicaSetFacts, h *hold, s *setHistory, pods []*pod) []finding {
	may := 0
	var others []string
	for _, p := range pods {
		opens := p.availableAt(o.minReadySeconds)
		// A count by an earlier minReadySeconds, or from before the pod ceased to be Ready, may
		// include any pod that was Ready.
		recently := e.seen.Sub(p.lost) <= delay
		counted := recently || p.serves() && (o.status.observed < o.generation || !opens.After(e.seen.Add(slack)))
		if !counted {
			continue
		}
		p.alone = p.alone || p.serves() && (opens.After(s.since) && w.unattended(opens) || !opens.After(s.since) && w.out(s.since))
		if w.trusted(p, h, e.seen) {
			may++
		} else {
			others = append(others, fmt.Sprintf("%s (Ready since %s)", p.name, p.readySince.UTC().Format(time.TimeOnly)))
		}
	}
	may += len(recent(s.trusted, e.seen))
	excess := max(o.status.available-int32(may), 0)
	grew := excess > s.excess
	s.excess = excess
	if !grew {
		return nil
	}
	slices.Sort(others)
	return []finding{found(HoldShut,
		"%d pods are available (minReadySeconds %d), and at most %d are verified, or were held for at least %s; release %s; not: %s",
		o.status.available, o.minReadySeconds, may, h.atMost, h.release, strings.Join(others, ", "))}
}

// recent returns the times that are at most delay ago.
func recent(times []time.Time, now time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(times), func(t time.Time) bool { return now.Sub(t) > delay })
}

// checkInFlight checks S12 for a ReplicaSet that grows: no more of its pods are in flight, never
// available before, than the strategy allows.
func (w *world) checkInFlight(e event, o replicaSetFacts, h *hold, s *setHistory, pods []*pod) []finding {
	settled := s.settled
	for _, p := range pods {
		if p.settled || w.trusted(p, h, e.seen) {
			settled++
		}
	}
	if flying := o.replicas - int32(settled); flying > h.room {
		return []finding{found(HoldShut, "%d of %d pods of release %s are in flight, and %d may be", flying, o.replicas, h.release, h.room)}
	}
	return nil
}

// passed reports whether a batch passed, and was watched to the end. A check in observe mode is not
// waited for.
func passed(b *batch, now time.Time) bool {
	s := &b.Status
	if s.Status != v1alpha1.ChangePodExecuteDone || b.failed ||
		s.PreVerdict != nil && fails(s.PreVerdict.Verdict) || s.PostVerdict != nil && fails(s.PostVerdict.Verdict) {
		return false
	}
	return !slices.ContainsFunc(s.Checks, func(c v1alpha1.CheckStatus) bool {
		if c.Mode == v1alpha1.ModeObserve {
			return false
		}
		switch c.Phase {
		case v1alpha1.CheckFailed:
			return true
		case "", v1alpha1.CheckPending, v1alpha1.CheckRunning:
			return c.Background
		case v1alpha1.CheckWatching:
			return c.DueTime == nil || c.DueTime.After(now.Add(slack))
		default:
			return false
		}
	})
}

// verify notes which pods of a batch are verified.
func (w *world) verify(b *batch, now time.Time) {
	r := w.releases[b.owner]
	if r == nil || !passed(b, now) {
		return
	}
	for i := range b.Spec.PodInfos {
		p := w.pods[types.UID(b.Spec.PodInfos[i].UID)]
		if p != nil && w.replicaSets[p.owner].owner == r.owner {
			p.verified = true
		}
	}
}

// isVerified reports whether a pod is verified by now: no version records the end of a watch, so
// the batches are verified again.
func (w *world) isVerified(p *pod, now time.Time) bool {
	if p.verified {
		return true
	}
	owner := w.replicaSets[p.owner].owner
	for _, r := range w.releases {
		if r.owner != owner {
			continue
		}
		for _, b := range w.owned[r.UID] {
			w.verify(b, now)
		}
	}
	return p.verified
}

// checkClaim checks S12 for a release whose hold claims to be verified, and so goes on: none of its
// pods still waits for a verdict or, if only the first wave is held, one pod is verified. A pod
// whose time ran out does not wait.
func (w *world) checkClaim(before *v1alpha1.ChangeWorkload, r *release, e event, by Writer) []finding {
	claims := func(c *v1alpha1.ChangeWorkload) bool {
		held := meta.FindStatusCondition(c.Status.Conditions, conditionHeld)
		return held != nil && held.Status == "False" && held.Reason == reasonVerified
	}
	d := w.deployments[r.owner]
	if by != Operator || d == nil || d.Labels[v1alpha1.VersionLabel] != r.Spec.Reversion || claims(before) || !claims(r.ChangeWorkload) {
		return nil
	}
	h := cmp.Or(w.holds.going[d.UID], w.holds.ended[d.UID])
	if h == nil || h.release != d.Annotations[v1alpha1.ReleaseAnnotation] {
		return nil
	}
	var waits []string
	verified, unready := false, 0
	for _, p := range w.pods {
		if rs := w.replicaSets[p.owner]; rs.owner != d.UID || rs.template != d.template || h.end > 0 && p.born > h.end {
			continue
		}
		trusted := w.trusted(p, h, e.seen)
		verified = verified || trusted && p.serves()
		if !p.serves() {
			unready++
		}
		if h.byPartition && h.is <= h.Partition && indexOf(p.name, d.Deployment) < h.lowered {
			continue // nothing waits for the last wave, which a check in the background may still watch
		}
		if !trusted && p.serves() && e.seen.Sub(p.availableAt(h.MinReadySeconds)) > readDelay {
			waits = append(waits, p.name)
		}
	}
	if unready > 0 && !verified {
		return []finding{found(HoldShut, "the release says that it is verified, but none of its pods is Ready and verified")}
	}
	if len(waits) == 0 || verified && h.Until != untilEvery {
		return nil
	}
	slices.Sort(waits)
	return []finding{found(HoldShut, "the release says that it is verified, but these pods are not: %s", strings.Join(waits, ", "))}
}
