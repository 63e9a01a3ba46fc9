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

// holds has the held rollouts, and the facts that judging them takes.
type holds struct {
	// going has the current holds by workload, ended the last holds of workloads that are not held;
	// sets has the histories of ReplicaSets.
	going, ended map[types.UID]*hold
	sets         map[types.UID]*setHistory
	// fields are by workload, until the fields that a hold changed are given back.
	fields map[types.UID]*heldFields
	// outages are the times without a working replica of the operator.
	outages []outage
}

func newHolds() holds {
	return holds{
		going: map[types.UID]*hold{}, ended: map[types.UID]*hold{},
		sets: map[types.UID]*setHistory{}, fields: map[types.UID]*heldFields{},
	}
}

// holdFacts are the facts about a pod that judging holds takes.
type holdFacts struct {
	// born is the version at which it was first seen; listed: it is older.
	born   uint64
	listed bool
	// verified: its batch passed, and was watched to the end. settled: it was Ready long enough to
	// be available. alone: it became available while no replica could prevent that. All three stay.
	verified, settled, alone bool
	// lost is when it last ceased to be Ready.
	lost time.Time
}

// heldAs is the content of the annotation of a hold: the release, the user's pace, and the pace
// that is set instead.
type heldAs struct {
	pace
	Release int64
	Until   string
	Set     pace
	Was     *pace
	// OpenedAt is when pods were last allowed to become available, in Unix seconds.
	OpenedAt int64
	// Replicas is the number of pods for which the partition was set.
	Replicas int32
	// Over: the hold ends, and the annotation was written while admission did not see it.
	Over bool
}

// hold is a hold of one release of a workload.
type hold struct {
	heldAs
	// release is the release annotation of the workload, rv the version that brought it.
	release string
	rv      uint64
	// end is the version that ended the hold; 0 while it goes on.
	end uint64
	// atMost is the shortest possible bound of the wait of a pod.
	atMost time.Duration
	// room is how many pods may be in flight, need how many have to serve: the most and the least
	// of all versions since rv.
	room, need, replicas int32
	// taken are the times at which another writer than the rollout removed pods that served.
	taken []time.Time
	// byPartition: the workload is a StatefulSet. is is its partition, wave how many pods the hold
	// replaces at once.
	byPartition bool
	is, wave    int32
	// grown is when the workload was last scaled up, least its size before.
	grown time.Time
	least int32
	// early is why the last step of the partition, from lowered, was too early; else empty.
	early   string
	lowered int32
}

// pace has the fields that make a rollout wait: two times of a Deployment, or the partition of a
// StatefulSet.
type pace struct {
	MinReadySeconds, ProgressDeadlineSeconds, Partition int32
}

// setHistory is the history of a ReplicaSet.
type setHistory struct {
	// since is when its minReadySeconds last changed.
	since time.Time
	// excess is how many pods were counted as available too early.
	excess int32
	// settled counts the removed pods that were not in flight; trusted are the removal times of
	// pods that might be available.
	settled int
	trusted []time.Time
}

// outage is a time without a working replica of the operator; to is zero while it lasts.
type outage struct{ from, to time.Time }

// holdOf returns the hold of a workload, if its annotation is readable.
func holdOf(d *appsv1.Deployment) (h heldAs, held bool) {
	text := d.Annotations[v1alpha1.HeldAnnotation]
	if isDaemonSet(d) {
		return h, false // checkEvicted judges it
	}
	return h, text != "" && json.Unmarshal([]byte(text), &h) == nil
}

// minReadySeconds returns the user's minReadySeconds, after which a Ready pod is finished.
func minReadySeconds(d *appsv1.Deployment) int32 {
	_, native := d.Annotations[restAnnotation]
	if h, held := holdOf(d); held && !native {
		return h.MinReadySeconds
	}
	return d.Spec.MinReadySeconds
}

func isDaemonSet(d *appsv1.Deployment) bool {
	_, native := d.Annotations[restAnnotation]
	_, numbered := d.Annotations[partitionAnnotation]
	return native && !numbered
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

// fields returns the fields of a pace by name.
func (p pace) fields() map[string]int32 {
	return map[string]int32{
		"minReadySeconds": p.MinReadySeconds, "progressDeadlineSeconds": p.ProgressDeadlineSeconds, "partition": p.Partition,
	}
}

// over reports whether the hold ends, and its fields are given back in two writes.
func (h *heldAs) over() bool { return h.Until != untilEvery && h.OpenedAt > 0 }

// heldFields are the fields that a hold changes, by name: the values before the hold, or that users
// wrote since, and the values that holds set.
type heldFields struct {
	own map[string]int32
	set map[string][]int32
}

// keepFields remembers the fields that a hold changes. A value that a hold set is not a value of
// the user.
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

// explains reports whether each field has a value that a hold set, or its earlier value.
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

// checkGivenBack checks S10 for the write that ends a hold: each field has the value of the user,
// or a value that a user set in the same request or past admission.
func (w *world) checkGivenBack(before, after *appsv1.Deployment, by Writer, defended bool) (findings []finding) {
	f := w.holds.fields[after.UID]
	if f == nil || before.Annotations[v1alpha1.HeldAnnotation] == "" || after.Annotations[v1alpha1.HeldAnnotation] != "" ||
		by == Other && (!defended || optedOut(before) || optedOut(after)) {
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

// unattended reports whether no replica could act at a time.
func (w *world) unattended(at time.Time) bool {
	return slices.ContainsFunc(w.holds.outages, func(o outage) bool {
		return !o.from.After(at) && (o.to.IsZero() || o.to.Add(startUp).After(at))
	})
}

// out reports whether no replica ran at a time: the edit of a user took effect at once.
func (w *world) out(at time.Time) bool {
	return slices.ContainsFunc(w.holds.outages, func(o outage) bool {
		return !o.from.After(at) && (o.to.IsZero() || o.to.After(at))
	})
}

// fenced returns how many pods of a rollout may be in flight, and how many have to serve.
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
			return 0 // the API server denies such a value
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
		// The value of a user ends the hold, too, even if the operator has not read it yet.
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
	// All pods that scaling adds may be in flight.
	h.room = max(h.room, room) + max(replicas-h.replicas, 0)
	h.need, h.replicas, h.heldAs = min(h.need, need), replicas, as
	h.MinReadySeconds = minReadySeconds(d.Deployment) // a hold of a StatefulSet leaves it alone
}

var atMostIn = regexp.MustCompile(`atMost=(\w+)`)

// atMostOf returns the shortest possible bound of the wait of a pod. Policies are unknown here, but
// the deadline of the version that begins a hold has room for the wait.
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

// heldSet returns the Deployment whose current revision a ReplicaSet is, with its hold; the hold is
// nil if there is none.
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

// podsOf returns the pods of a ReplicaSet.
func (w *world) podsOf(set types.UID) (pods []*pod) {
	for _, p := range w.pods {
		if p.owner == set {
			pods = append(pods, p)
		}
	}
	return pods
}
