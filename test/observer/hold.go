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
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// over reports whether the fields are given back, in two writes, and nothing is held.
func (h *heldAs) over() bool { return h.Until != untilEvery && h.OpenedAt > 0 }

// heldText is what the annotation of a hold says, of a StatefulSet too.
func heldText(d *appsv1.Deployment) string {
	_, ofSet, _ := strings.Cut(d.Annotations[heldPartition], " ")
	return cmp.Or(ofSet, d.Annotations[v1alpha1.HeldAnnotation])
}

// explains says that each field is as the hold set it, or as it was before.
func (h *heldAs) explains(is pace) bool {
	own, set, was := h.fields(), h.Set.fields(), cmp.Or(h.Was, &h.Set).fields()
	for name, value := range is.fields() {
		if value != own[name] && value != set[name] && value != was[name] {
			return false
		}
	}
	return true
}

func paceOf(d *appsv1.Deployment) pace {
	if rest, ok := d.Annotations[restAnnotation]; ok {
		return pace{Partition: partitionIn(d.Annotations[heldPartition], rest)}
	}
	return pace{MinReadySeconds: d.Spec.MinReadySeconds, ProgressDeadlineSeconds: ptr.Deref(d.Spec.ProgressDeadlineSeconds, 600)}
}

// fields are a pace by the names of its fields.
func (p pace) fields() map[string]int32 {
	return map[string]int32{"minReadySeconds": p.MinReadySeconds, "progressDeadlineSeconds": p.ProgressDeadlineSeconds, "partition": p.Partition}
}

// checkHold is S10 of two consecutive versions of a Deployment: a hold begins with
// its values, keeps the workload's own, and gives them back when it ends.
func checkHold(before, after *appsv1.Deployment, by Writer, defended bool) []finding {
	if by == Other && (!defended || optedOut(before) || optedOut(after)) {
		return nil
	}
	text := heldText(after)
	was, wasHeld := readHold(heldText(before))
	is, isHeld := readHold(text)
	switch {
	case text != "" && !isHeld:
		return []finding{found(HoldHarmless, "what is held cannot be read: %s", text)}
	case isHeld && is.Set.Partition < is.Partition:
		return []finding{found(HoldHarmless, "the hold sets partition %d, and the user keeps %d pods", is.Set.Partition, is.Partition)}
	case wasHeld && isHeld:
		return checkKept(before, after, &was, &is, by)
	case wasHeld:
		return checkGivenBack(before, after, &was, by)
	case isHeld:
		return checkBegun(before, after, &is, by)
	}
	return nil
}

// checkBegun is S10 of the write that begins a hold. Where the API server does not reach
// admission, which sets the fields, the operator sets them with its next write.
func checkBegun(before, after *appsv1.Deployment, h *heldAs, by Writer) (findings []finding) {
	if is := paceOf(after); is != h.Set && (by != Operator || is != paceOf(before)) {
		findings = append(findings, found(HoldHarmless, "a hold begins that sets %+v, but it is %+v", h.Set, is))
	}
	if release := after.Annotations[v1alpha1.ReleaseAnnotation]; release != fmt.Sprint(h.Release) {
		findings = append(findings, found(HoldHarmless, "a hold of release %d begins at release %q", h.Release, release))
	}
	return findings
}

// checkKept is S10 of a write while a hold goes on.
func checkKept(before, after *appsv1.Deployment, was, is *heldAs, by Writer) (findings []finding) {
	own, set, stood, stands := is.fields(), was.Set.fields(), paceOf(before).fields(), paceOf(after).fields()
	for name, before := range was.fields() {
		switch {
		case own[name] != before && by == Operator:
			findings = append(findings, found(HoldHarmless, "the operator lost %s=%d of the user's, and keeps %d", name, before, own[name]))
		case own[name] != before && (own[name] == set[name] || own[name] == was.Set.fields()[name]):
			findings = append(findings, found(HoldHarmless, "%s=%d, which the hold set, is kept as the user's, which is %d", name, own[name], before))
		case by == Operator && stands[name] != stood[name] && stands[name] != is.Set.fields()[name] && (!is.Over || stands[name] != own[name]):
			findings = append(findings, found(HoldHarmless, "the operator set %s=%d, and says %d", name, stands[name], is.Set.fields()[name]))
		}
	}
	return findings
}

// checkGivenBack is S10 of the write that ends a hold: each field has the user's own
// value, or one that a user set: in the same request, or past admission.
func checkGivenBack(before, after *appsv1.Deployment, h *heldAs, by Writer) (findings []finding) {
	own, stood, set, earlier := h.fields(), paceOf(before).fields(), h.Set.fields(), ptr.Deref(h.Was, h.Set).fields()
	for name, is := range paceOf(after).fields() {
		edited := by == Other && is != stood[name]
		kept := is == stood[name] && is != set[name] && is != earlier[name]
		if is != own[name] && !edited && !kept {
			findings = append(findings, found(HoldHarmless, "the hold is gone, and %s is %d; the user's is %d", name, is, own[name]))
		}
	}
	return findings
}

func newHolds() holds {
	return holds{going: map[types.UID]*hold{}, ended: map[types.UID]*hold{}, sets: map[types.UID]*setHistory{}, figures: map[string]*HoldFigures{}}
}

func (p *pod) serves() bool { return p.live && p.ready }

// availableAt is when a pod that is Ready becomes available.
func (p *pod) availableAt(minReadySeconds int32) time.Time {
	return p.readySince.Add(time.Duration(minReadySeconds) * time.Second)
}

func (w *world) operatorStops(at time.Time) {
	if n := len(w.holds.outages); n == 0 || !w.holds.outages[n-1].to.IsZero() {
		w.holds.outages = append(w.holds.outages, outage{from: at})
	}
}

func (w *world) operatorStarts(at time.Time) {
	if n := len(w.holds.outages); n > 0 && w.holds.outages[n-1].to.IsZero() {
		w.holds.outages[n-1].to = at
	}
}

// unattended says that nobody was there to act before a time.
func (w *world) unattended(at time.Time) bool {
	return slices.ContainsFunc(w.holds.outages, func(o outage) bool {
		return !o.from.After(at) && (o.to.IsZero() || o.to.Add(startUp).After(at))
	})
}

// out says that no manager ran at a time: a user's edit was in force at once.
func (w *world) out(at time.Time) bool {
	return slices.ContainsFunc(w.holds.outages, func(o outage) bool {
		return !o.from.After(at) && (o.to.IsZero() || o.to.After(at))
	})
}

func (w *world) figuresOf(namespace, name string) *HoldFigures {
	key := namespace + "/" + name
	if w.holds.figures[key] == nil {
		w.holds.figures[key] = &HoldFigures{}
	}
	return w.holds.figures[key]
}

// countHeld counts a request of the operator that changes what is held.
func (w *world) countHeld(r *Request) {
	if workloadKinds()[r.Resource] == "" || !r.writes() || r.Code >= 300 {
		return
	}
	paths := r.Paths
	if paths == nil {
		paths = pathsOf(r.body)
	}
	if slices.Contains(paths, "/metadata/annotations/"+strings.ReplaceAll(v1alpha1.HeldAnnotation, "/", "~1")) {
		w.figuresOf(r.Namespace, r.Name).Writes++
	}
}

// fenced is how many pods of a rollout may be in flight, and how many have to serve.
func fenced(d *appsv1.Deployment) (room, need int32) {
	replicas := ptr.Deref(d.Spec.Replicas, 1)
	r := d.Spec.Strategy.RollingUpdate
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return replicas, 0
	}
	if r == nil {
		r = &appsv1.RollingUpdateDeployment{}
	}
	quarter := intstr.FromString("25%")
	part := func(v *intstr.IntOrString, up bool) int32 {
		n, err := intstr.GetScaledValueFromIntOrPercent(cmp.Or(v, &quarter), int(replicas), up)
		if err != nil {
			return 0 // the API server has none such
		}
		return int32(n)
	}
	surge, unavailable := part(r.MaxSurge, true), min(part(r.MaxUnavailable, false), replicas)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge + unavailable, replicas - unavailable
}

// keepHold remembers the hold of a version of a Deployment.
func (w *world) keepHold(e event, before, d *workload) {
	as, held := readHold(heldText(d.Deployment))
	if !held || as.over() || !as.explains(paceOf(d.Deployment)) {
		// It is over, also where a user's own value says so and the operator has not
		// seen it yet.
		if h := w.holds.going[d.UID]; h != nil {
			h.end, w.holds.ended[d.UID] = e.rv, h
		}
		delete(w.holds.going, d.UID)
		return
	}
	delete(w.holds.ended, d.UID)
	room, need := fenced(d.Deployment)
	replicas, release := ptr.Deref(d.Spec.Replicas, 1), d.Annotations[v1alpha1.ReleaseAnnotation]
	h := w.holds.going[d.UID]
	begins := h == nil || h.release != release
	if begins {
		h = &hold{release: release, rv: e.rv, atMost: atMostOf(d.Deployment, &as), room: room, need: need, replicas: replicas}
		if before != nil {
			room, need = fenced(before.Deployment)
			h.replicas = ptr.Deref(before.Spec.Replicas, 1)
		}
		// Pods that do not serve are replaced at any time.
		h.room += max(min(h.need, need)-w.oldServing(d), 0)
		w.holds.going[d.UID] = h
	}
	w.followPartition(h, d, &as, begins, e.seen)
	// Where it is scaled, all that is added may be in flight.
	h.room = max(h.room, room) + max(replicas-h.replicas, 0)
	h.need, h.replicas, h.heldAs = min(h.need, need), replicas, as
	h.MinReadySeconds = minReadySeconds(d.Deployment) // of a StatefulSet it is not held
}

// followPartition notes what a version of a held StatefulSet lets be replaced. How many of
// these pods are in flight at once, and how many serve, its controller sees to: the strategy
// that says so is the user's, which is S6, and a partition takes no pod.
func (w *world) followPartition(h *hold, d *workload, as *heldAs, begins bool, now time.Time) {
	_, h.byPartition = d.Annotations[heldPartition]
	was, replicas := h.is, ptr.Deref(d.Spec.Replicas, 1)
	h.is = paceOf(d.Deployment).Partition
	if begins || as.Set.Partition > h.Set.Partition {
		h.wave = max(cmp.Or(as.Replicas, replicas)-as.Set.Partition, 1)
	}
	if replicas > h.replicas {
		h.grown, h.least = now, h.replicas
	}
	if h.byPartition && begins {
		w.figuresOf(d.Namespace, d.Name).Waves++
	}
	if !h.byPartition || begins || h.is >= was || h.is != as.Set.Partition {
		return // a user's own value past admission is put back
	}
	if now.Sub(h.grown) <= delay {
		replicas = h.least // the operator may not know yet
	}
	h.early, h.lowered = "", was
	w.figuresOf(d.Namespace, d.Name).Waves++
	if n := min(was, replicas) - h.is; n > h.wave {
		h.early = fmt.Sprintf("%d pods are let be replaced at once, and a wave has %d", n, h.wave)
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
		h.early = fmt.Sprintf("%d of %d pods of the waves before are verified, or were held for at least %s", verified, replicas-was, h.atMost)
	}
}

// checkStep is S12 of a pod that is made at the held version: by a lowered partition only
// once the pods of the waves before it are verified.
func (w *world) checkStep(p *pod) []finding {
	d, h := w.heldSet(w.replicaSets[p.owner])
	if h == nil || h.early == "" || indexOf(p.name, d.Deployment) >= h.lowered {
		return nil
	}
	early := h.early
	h.early = "" // it is said once
	return []finding{found(HoldShut, "made at release %s by partition %d, which was %d: %s", h.release, h.is, h.lowered, early)}
}

// oldServing counts the pods of a Deployment that serve, without those of its current revision.
func (w *world) oldServing(d *workload) (serving int32) {
	for _, p := range w.pods {
		if rs := w.replicaSets[p.owner]; rs.owner == d.UID && rs.template != d.template && p.serves() {
			serving++
		}
	}
	return serving
}

// replaced notes that a pod which is not of the current revision of a held Deployment serves no
// longer, without the rollout: another may be in flight in its place.
func (w *world) replaced(p *pod) {
	rs := w.replicaSets[p.owner]
	if d := w.deployments[rs.owner]; d != nil && d.template != rs.template && w.holds.going[d.UID] != nil {
		w.holds.going[d.UID].room++
	}
}

var atMostIn = regexp.MustCompile(`atMost=(\w+)`)

// atMostOf is the least that may bound how long a pod waits. Policies are not seen
// here, but the deadline of the version that begins a hold has room for the wait.
func atMostOf(d *appsv1.Deployment, h *heldAs) time.Duration {
	least := leastAtMost
	if asked := atMostIn.FindStringSubmatch(d.Annotations[v1alpha1.SettingAnnotationPrefix+holdingSetting]); asked != nil {
		if bound, err := time.ParseDuration(asked[1]); err == nil {
			least = max(least, bound)
		}
	}
	if wait := h.Set.ProgressDeadlineSeconds - h.ProgressDeadlineSeconds; wait > h.Set.MinReadySeconds {
		least = max(least, time.Duration(wait)*time.Second)
	}
	return least
}

// heldSet is the Deployment of a ReplicaSet of which it is the current revision, with
// its hold; nil where that is not held.
func (w *world) heldSet(rs replicaSetFacts) (*workload, *hold) {
	if d := w.deployments[rs.owner]; d != nil && d.template == rs.template {
		return d, w.holds.going[d.UID]
	}
	return nil, nil
}

func (w *world) historyOf(set types.UID) *setHistory {
	if w.holds.sets[set] == nil {
		w.holds.sets[set] = &setHistory{}
	}
	return w.holds.sets[set]
}

// podsOf are the pods of a ReplicaSet.
func (w *world) podsOf(set types.UID) (pods []*pod) {
	for _, p := range w.pods {
		if p.owner == set {
			pods = append(pods, p)
		}
	}
	return pods
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

// settle notes that a pod was available, where it was Ready for long enough.
func (p *pod) settle(minReadySeconds int32, known bool, now time.Time) {
	p.settled = p.settled || known && p.serves() && !p.availableAt(minReadySeconds).After(now.Add(slack))
}

// trusted says that a pod may be available: it was verified, had its time, is older
// than what is held, or became available when nobody could keep it from that.
func (w *world) trusted(p *pod, h *hold, now time.Time) bool {
	return p.listed || p.born < h.rv || p.alone || w.isVerified(p, now) || !p.created.Add(h.atMost).After(now.Add(slack))
}

// checkShut is S12 of a count of the ReplicaSet controller: of the pods that it may
// have counted as available, at least so many are verified.
func (w *world) checkShut(e event, o replicaSetFacts, h *hold, s *setHistory, pods []*pod) []finding {
	may := 0
	var others []string
	for _, p := range pods {
		opens := p.availableAt(o.minReadySeconds)
		// What was counted by an earlier minReadySeconds, or before the pod ceased to be
		// Ready, may be any that was.
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
	return []finding{found(HoldShut, "%d pods are available (minReadySeconds %d), of which at most %d are verified, or were held for at least %s; release %s; not: %s",
		o.status.available, o.minReadySeconds, may, h.atMost, h.release, strings.Join(others, ", "))}
}

// recent are the times that are not over for long.
func recent(times []time.Time, now time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(times), func(t time.Time) bool { return now.Sub(t) > delay })
}

// checkInFlight is S12 of a ReplicaSet that grows: of its pods no more are in flight,
// which never were available, than the strategy allows.
func (w *world) checkInFlight(e event, o replicaSetFacts, h *hold, s *setHistory, pods []*pod) []finding {
	settled := s.settled
	for _, p := range pods {
		if p.settled || w.trusted(p, h, e.seen) {
			settled++
		}
	}
	if settled+1 > s.wave {
		s.wave = settled + 1
		d := w.deployments[o.owner]
		w.figuresOf(d.Namespace, d.Name).Waves++
	}
	if flying := o.replicas - int32(settled); flying > h.room {
		return []finding{found(HoldShut, "%d of %d pods of release %s are in flight, and %d may be", flying, o.replicas, h.release, h.room)}
	}
	return nil
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

// checkDeleted is S10 of a pod that is deleted now. On a control plane the request says that the
// operator did it.
func (w *world) checkDeleted(p *pod, now time.Time, by Writer) []finding {
	if by == Operator {
		return w.checkEvicted(p, now)
	}
	return w.checkServing(p, now)
}

// checkServing is S10 of a pod that is deleted now: where that is the rollout's doing,
// as many pods serve without it as have to. The ReplicaSet controller deletes only what
// is too many; a pod that is not goes because of somebody else.
func (w *world) checkServing(p *pod, now time.Time) []finding {
	rs, known := w.replicaSets[p.owner]
	d := w.deployments[rs.owner]
	if !known || d == nil || d.DeletionTimestamp != nil || !p.serves() {
		return nil
	}
	h := w.holds.going[d.UID]
	switch {
	case h == nil:
		return nil
	case h.byPartition:
		return w.checkServingOfSet(d, h, p, now)
	}
	alive := int32(0)
	for _, other := range w.podsOf(p.owner) {
		if other.live {
			alive++
		}
	}
	h.taken = recent(h.taken, now)
	switch {
	case alive <= rs.replicas:
		h.taken = append(h.taken, now)
		w.replaced(p)
		return nil
	case rs.template == d.template:
		return nil // scaled
	}
	serve := len(h.taken) - 1 // without the pod itself
	for _, other := range w.pods {
		if w.replicaSets[other.owner].owner != d.UID {
			continue
		}
		// Where a pod ceased to serve by itself, the controllers do not know at once; and
		// pods that are not available they take first, whether others serve or not.
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

// checkServingOfSet is S10 of a pod of a held StatefulSet that is deleted now. Its controller
// takes a pod of an earlier version above the partition while all others serve, or as many as
// the strategy says; with the policy Parallel it takes one also while a pod before it does not.
func (w *world) checkServingOfSet(d *workload, h *hold, p *pod, now time.Time) []finding {
	at, replicas, spec := indexOf(p.name, d.Deployment), ptr.Deref(d.Spec.Replicas, 1), setSpecIn(d.Annotations[restAnnotation])
	h.taken = recent(h.taken, now)
	if at < h.is || at >= replicas || w.replicaSets[p.owner].template == d.template {
		h.taken = append(h.taken, now) // by another than the rollout
		return nil
	}
	if spec.PodManagementPolicy == appsv1.ParallelPodManagement {
		return nil
	}
	if now.Sub(h.grown) <= delay {
		replicas = h.least
	}
	serve := int32(len(h.taken))
	for _, other := range w.pods {
		excused := other.live && !other.lost.IsZero() && now.Sub(other.lost) <= delay
		if other != p && w.replicaSets[other.owner].owner == d.UID && (other.serves() || excused) {
			serve++
		}
	}
	unavailable := int32(1)
	if r := spec.UpdateStrategy.RollingUpdate; r != nil && r.MaxUnavailable != nil {
		if n, err := intstr.GetScaledValueFromIntOrPercent(r.MaxUnavailable, int(replicas), true); err == nil {
			unavailable = max(int32(n), 1)
		}
	}
	if serve < replicas-unavailable {
		return []finding{found(HoldHarmless, "the rollout takes pod %s, which serves: %d others do, and %d have to",
			p.name, serve, replicas-unavailable)}
	}
	return nil
}

// checkEvicted is S10 of a pod that the operator evicts: one that is stuck does not serve.
func (w *world) checkEvicted(p *pod, now time.Time) []finding {
	if p == nil || !p.serves() || now.Sub(p.readySince) <= delay {
		return nil
	}
	since := p.readySince.UTC().Format(time.RFC3339)
	return []finding{found(HoldHarmless, "the operator evicts pod %s, which has been Ready since %s", p.name, since)}
}

// passed says that a batch is done well, and watched to the end. A check that only
// observes is waited for by nobody.
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

// isVerified says that a pod was verified by now: the end of a watch is written down by
// nobody.
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

// checkClaim is S12 of a release that says that it was verified, and so goes on: no pod
// of it waits for a verdict that the operator had to know by then or, where only the
// first wave is held, some pod has one. A pod whose time ran out is waited for no longer.
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
		if !trusted && p.serves() && e.seen.Sub(p.availableAt(h.MinReadySeconds)) > sight {
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
