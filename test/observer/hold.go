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
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// holds are the rollouts that wait, and what they take.
type holds struct {
	// going are the holds by Deployment, ended the last ones of those that are not held
	// any more; sets is what is known of ReplicaSets.
	going, ended map[types.UID]*hold
	sets         map[types.UID]*setHistory
	// fields are by workload, until what a hold changed is given back.
	fields map[types.UID]*heldFields
	// outages are when no replica of the operator worked.
	outages []outage
}

func newHolds() holds {
	return holds{going: map[types.UID]*hold{}, ended: map[types.UID]*hold{}, sets: map[types.UID]*setHistory{}, fields: map[types.UID]*heldFields{}}
}

// holdFacts are what holds take to know of a pod.
type holdFacts struct {
	// born is the version it was first seen at; listed: it was older than that.
	born   uint64
	listed bool
	// verified: its batch was done well, and watched to the end. settled: it was Ready
	// for long enough to be available. alone: it became available while nobody could
	// have kept it from that. All three stay.
	verified, settled, alone bool
	// lost is when it last ceased to be Ready.
	lost time.Time
}

// heldAs is what the annotation of a hold says: the release, the workload's own
// pace, and the one that is set instead.
type heldAs struct {
	pace
	Release int64
	Until   string
	Set     pace
	Was     *pace
	// OpenedAt is when pods were last let become available, in Unix seconds.
	OpenedAt int64
	// Replicas is for how many pods the partition was set.
	Replicas int32
	// Over: it ends, and what is left of it admission did not see.
	Over bool
}

// hold is a hold of one release of a workload.
type hold struct {
	heldAs
	// release is the number the workload has, rv the version it has it since.
	release string
	rv      uint64
	// end is the version that ended it; 0 while it goes on.
	end uint64
	// atMost is the least that may be what bounds the wait of a pod.
	atMost time.Duration
	// room is how many pods may be in flight, need how many have to serve: the most
	// and the least of what any version since then says.
	room, need, replicas int32
	// taken is when others than the rollout took pods that served.
	taken []time.Time
	// byPartition: it is of a StatefulSet. is is its partition, wave how many pods it lets
	// be replaced at once.
	byPartition bool
	is, wave    int32
	// grown is when it was last scaled up, from least.
	grown time.Time
	least int32
	// early is what was wrong when the partition was lowered last, from lowered.
	early   string
	lowered int32
}

// pace is what makes a rollout wait: the two times of a Deployment, which has no
// partition, and the partition of a StatefulSet, which has nothing else.
type pace struct {
	MinReadySeconds, ProgressDeadlineSeconds, Partition int32
}

// setHistory is what is known of a ReplicaSet.
type setHistory struct {
	// since is when it has had its minReadySeconds.
	since time.Time
	// excess is how many pods were counted as available that must not be.
	excess int32
	// settled counts its pods that are gone and were not in flight any more; trusted
	// is when those went that might be available.
	settled int
	trusted []time.Time
}

// outage has no end while it goes on.
type outage struct{ from, to time.Time }

// holdOf is the hold of a workload, if it has one that can be read.
func holdOf(d *appsv1.Deployment) (h heldAs, held bool) {
	text := d.Annotations[v1alpha1.HeldAnnotation]
	return h, text != "" && json.Unmarshal([]byte(text), &h) == nil
}

// minReadySeconds is when a pod is finished: by the workload's own pace.
func minReadySeconds(d *appsv1.Deployment) int32 {
	_, native := d.Annotations[restAnnotation]
	if h, held := holdOf(d); held && !native {
		return h.MinReadySeconds
	}
	return d.Spec.MinReadySeconds
}

func paceOf(d *appsv1.Deployment) pace {
	if _, native := d.Annotations[restAnnotation]; native {
		partition, err := strconv.ParseInt(d.Annotations[partitionAnnotation], 10, 32)
		if err != nil {
			partition = int64(noPartition) // a DaemonSet
		}
		return pace{Partition: int32(partition)}
	}
	return pace{MinReadySeconds: d.Spec.MinReadySeconds, ProgressDeadlineSeconds: ptr.Deref(d.Spec.ProgressDeadlineSeconds, 600)}
}

// fields are a pace by the names of its fields.
func (p pace) fields() map[string]int32 {
	return map[string]int32{"minReadySeconds": p.MinReadySeconds, "progressDeadlineSeconds": p.ProgressDeadlineSeconds, "partition": p.Partition}
}

// over reports whether the fields are given back, in two writes, and nothing is held.
func (h *heldAs) over() bool { return h.Until != untilEvery && h.OpenedAt > 0 }

// heldFields are the fields that a hold changes, by name: as they were before or as users
// wrote them since, and the values that holds set.
type heldFields struct {
	own map[string]int32
	set map[string][]int32
}

// keepFields remembers what a hold changes. A value of the user's is not what a hold set.
func (w *world) keepFields(before *workload, d *workload, as *heldAs, by Writer) {
	f := w.holds.fields[d.UID]
	if f == nil {
		f = &heldFields{own: as.fields(), set: map[string][]int32{}}
		if before != nil {
			f.own = paceOf(before.Deployment).fields()
		}
		w.holds.fields[d.UID] = f
	}
	sets, is := []pace{as.Set, ptr.Deref(as.Was, as.Set)}, paceOf(d.Deployment)
	if by == Operator && before != nil && is != paceOf(before.Deployment) {
		sets = append(sets, is)
	}
	for _, set := range sets {
		for name, value := range set.fields() {
			f.set[name] = append(f.set[name], value)
		}
	}
	for name, value := range as.fields() {
		if by != Operator && !slices.Contains(f.set[name], value) {
			f.own[name] = value
		}
	}
}

// explains reports whether each field is as a hold set it, or as it was before.
func (f *heldFields) explains(is pace) bool {
	for name, value := range is.fields() {
		if value != f.own[name] && !slices.Contains(f.set[name], value) {
			return false
		}
	}
	return true
}

// stand reports whether a field still has a value that only a hold set.
func (f *heldFields) stand(is pace) bool {
	for name, value := range is.fields() {
		if value != f.own[name] && slices.Contains(f.set[name], value) {
			return true
		}
	}
	return false
}

// checkGivenBack is S10 of the write that ends a hold: each field has the user's own
// value, or one that a user set: in the same request, or past admission.
func (w *world) checkGivenBack(before, after *appsv1.Deployment, by Writer, defended bool) (findings []finding) {
	f := w.holds.fields[after.UID]
	if f == nil || before.Annotations[v1alpha1.HeldAnnotation] == "" || after.Annotations[v1alpha1.HeldAnnotation] != "" || by == Other && (!defended || optedOut(before) || optedOut(after)) {
		return nil
	}
	stood := paceOf(before).fields()
	for name, is := range paceOf(after).fields() {
		edited := by == Other && is != stood[name]
		kept := is == stood[name] && !slices.Contains(f.set[name], is) // a user had set it
		if is != f.own[name] && !edited && !kept {
			findings = append(findings, found(HoldHarmless, "the hold is gone, and %s is %d; the user's is %d", name, is, f.own[name]))
		}
	}
	return findings
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

// fenced is how many pods of a rollout may be in flight, and how many have to serve.
func fenced(d *appsv1.Deployment) (room, need int32) {
	replicas := ptr.Deref(d.Spec.Replicas, 1)
	if rest, ok := d.Annotations[restAnnotation]; ok {
		unavailable := 1
		if r := setSpecIn(rest).UpdateStrategy.RollingUpdate; r != nil && r.MaxUnavailable != nil {
			if n, err := intstr.GetScaledValueFromIntOrPercent(r.MaxUnavailable, int(replicas), true); err == nil {
				unavailable = max(n, 1)
			}
		}
		return int32(unavailable), replicas - int32(unavailable)
	}
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

// keepHold remembers the hold of a version of a workload.
func (w *world) keepHold(e event, before, d *workload, by Writer) {
	text, f := d.Annotations[v1alpha1.HeldAnnotation], w.holds.fields[d.UID]
	as, held := holdOf(d.Deployment)
	if held {
		w.keepFields(before, d, &as, by)
	} else if text == "" && f != nil && !f.stand(paceOf(d.Deployment)) {
		delete(w.holds.fields, d.UID)
	}
	if !held || as.over() || by != Operator && !w.holds.fields[d.UID].explains(paceOf(d.Deployment)) {
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
	w.followPartition(h, d, &as, begins, by, e.seen)
	// Where it is scaled, all that is added may be in flight.
	h.room = max(h.room, room) + max(replicas-h.replicas, 0)
	h.need, h.replicas, h.heldAs = min(h.need, need), replicas, as
	h.MinReadySeconds = minReadySeconds(d.Deployment) // of a StatefulSet it is not held
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
