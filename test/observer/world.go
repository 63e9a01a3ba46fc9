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
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func newWorld() *world {
	return &world{
		namespaces:  map[string]*namespace{},
		declared:    map[string]bool{},
		deployments: map[types.UID]*workload{},
		replicaSets: map[types.UID]replicaSetFacts{},
		revisions:   map[types.UID]types.UID{},
		pods:        map[types.UID]*pod{},
		releases:    map[types.UID]*release{},
		batches:     map[types.UID]*batch{},
		owned:       map[types.UID]map[types.UID]*batch{},
		uids:        map[string]types.UID{},
		delivered:   map[check]string{},
		onBatches:   map[check]string{},
		holds:       newHolds(),
		limits:      newLimits(),
	}
}

// forget drops everything except facts that stay true, after a part of the history was lost.
func (w *world) forget() {
	fresh := newWorld()
	fresh.delivered, fresh.onBatches = w.delivered, w.onBatches
	fresh.holds.outages = w.holds.outages
	fresh.limits.own, fresh.limits.keeps, fresh.limits.changed = w.limits.own, w.limits.keeps, w.limits.changed
	for name, ns := range w.namespaces {
		if ns.ever {
			fresh.namespaces[name] = &namespace{ever: true, changed: ns.changed}
		}
	}
	*w = *fresh
}

// needsWriter reports whether a version cannot be judged without its writer.
func (w *world) needsWriter(e event) bool {
	if e.deleted || e.listed {
		return false
	}
	switch o := e.object.(type) {
	case *appsv1.Deployment:
		before := w.deployments[e.uid]
		return before != nil && (!equality.Semantic.DeepEqual(before.Spec, o.Spec) || !equality.Semantic.DeepEqual(before.Labels, o.Labels) ||
			!equality.Semantic.DeepEqual(before.Annotations, o.Annotations) ||
			!equality.Semantic.DeepEqual(before.OwnerReferences, o.OwnerReferences) ||
			!equality.Semantic.DeepEqual(before.Finalizers, o.Finalizers))
	case *v1alpha1.ChangeWorkload:
		return w.releases[e.uid] != nil
	case *v1alpha1.ChangePod:
		return w.batches[e.uid] != nil
	default:
		return false
	}
}

// apply applies the next version of an object, and returns its violations.
func (w *world) apply(e event, by Writer) []Violation {
	w.countAgain(e, by)
	leaving, findings := w.checkLeaving(e), []finding(nil)
	previous := uint64(0)
	switch o := e.object.(type) {
	case nil:
		return violationsOf(e, 0, append(leaving, w.remove(e, by)...))
	case namespaceFacts:
		w.applyNamespace(e, o)
	case replicaSetFacts:
		findings = w.applyReplicaSet(e, o)
	case historyFacts:
		w.limits.history[e.uid] = o.owner
	case *v1alpha1.OpsConfigInfo:
		w.applySetting(e, o)
	case revisionFacts:
		w.replicaSets[o.ownedBy], w.revisions[e.uid] = o.replicaSetFacts, o.ownedBy
	case podFacts:
		findings = w.applyPod(e, o, by)
	case *appsv1.Deployment:
		if before := w.deployments[e.uid]; before != nil {
			previous = revisionOf(before.ResourceVersion)
		}
		findings = w.applyDeployment(e, o, by)
	case *v1alpha1.ChangeWorkload:
		if before := w.releases[e.uid]; before != nil {
			previous = revisionOf(before.ResourceVersion)
		}
		findings = w.applyRelease(e, o, by)
	case *v1alpha1.ChangePod:
		if before := w.batches[e.uid]; before != nil {
			previous = revisionOf(before.ResourceVersion)
		}
		findings = w.applyBatch(e, o, by)
	}
	w.uids[e.kind+"/"+e.namespace+"/"+e.name] = e.uid
	return violationsOf(e, previous, append(leaving, findings...))
}

// violationsOf returns the violations for the findings about a version that follows another.
func violationsOf(e event, previous uint64, findings []finding) (violations []Violation) {
	for _, f := range findings {
		violations = append(violations, Violation{
			Invariant: f.invariant,
			Namespace: e.namespace,
			Object:    strings.TrimSpace(fmt.Sprintf("%s %s/%s", e.kind, e.namespace, e.name)),
			Versions:  fmt.Sprintf("resource version %d after %d, seen %s", e.rv, previous, e.seen.UTC().Format(time.RFC3339Nano)),
			Message:   f.message,
		})
	}
	return violations
}

func (w *world) remove(e event, by Writer) (findings []finding) {
	key := e.kind + "/" + e.namespace + "/" + e.name
	if w.uids[key] == e.uid {
		delete(w.uids, key)
	}
	switch e.kind {
	case kindNamespace:
		if ns := w.namespaces[e.name]; ns != nil {
			ns.enrolled, ns.changed = false, e.seen
		}
	case kindRevision:
		delete(w.replicaSets, w.revisions[e.uid])
		delete(w.revisions, e.uid)
		delete(w.limits.history, e.uid)
	case kindSetting:
		delete(w.limits.settings, e.namespace+"/"+e.name)
		w.limits.changed = e.seen
	case kindDeployment, kindStatefulSet, kindDaemonSet:
		delete(w.deployments, e.uid)
		delete(w.holds.going, e.uid)
		delete(w.holds.ended, e.uid)
		delete(w.holds.fields, e.uid)
		delete(w.limits.writes, e.uid)
	case kindReplicaSet:
		delete(w.replicaSets, e.uid)
		delete(w.holds.sets, e.uid)
	case kindPod:
		findings = w.removePod(e, by)
	case kindRelease:
		delete(w.releases, e.uid)
		if len(w.owned[e.uid]) == 0 {
			delete(w.owned, e.uid)
		}
	case kindBatch:
		b := w.batches[e.uid]
		delete(w.batches, e.uid)
		if b != nil {
			w.verify(b, e.seen)
			delete(w.owned[b.owner], e.uid)
			w.weigh(w.releases[b.owner], e.rv)
		}
	}
	return findings
}

func (w *world) applyNamespace(e event, o namespaceFacts) {
	ns := w.namespaces[e.name]
	if ns == nil {
		ns = &namespace{changed: e.seen}
		w.namespaces[e.name] = ns
	}
	if ns.enrolled != o.enrolled {
		ns.enrolled, ns.changed = o.enrolled, e.seen
	}
	ns.ever = ns.ever || o.enrolled
}

func (w *world) applyDeployment(e event, o *appsv1.Deployment, by Writer) (findings []finding) {
	before := w.deployments[e.uid]
	next := &workload{Deployment: o, contents: map[string]string{}}
	var content string
	next.template, content = templateOf(&o.Spec.Template)
	recorded := ""
	if before != nil {
		next.contents, next.out, next.tookBack, next.back = before.contents, before.out, before.tookBack, before.back
		recorded = before.Labels[v1alpha1.VersionLabel]
	}
	if version := o.Labels[v1alpha1.VersionLabel]; version != recorded {
		next.contents[version] = content
	}
	switch {
	case !optedOut(o):
		if !next.out.IsZero() {
			next.out, next.back = time.Time{}, e.seen
		}
	case next.out.IsZero():
		next.out = e.seen
	}
	w.deployments[e.uid] = next
	if _, since := w.leftSince(next); since.IsZero() {
		next.tookBack = 0
	}
	if before != nil {
		findings = w.byEither(by, func(by Writer) []finding { return w.checkWorkload(e, before, next, by) })
	}
	w.keepHold(e, before, next, by)
	return findings
}

// byEither judges a version. If its writer is unknown, it returns only violations by both possible
// writers.
func (w *world) byEither(by Writer, check func(by Writer) []finding) []finding {
	if by != Unknown {
		return check(by)
	}
	rollbacks := w.limits.rollbacks
	operators := check(Operator)
	w.limits.rollbacks = rollbacks
	others := check(Other)
	if len(operators) == 0 || len(others) == 0 {
		return nil
	}
	for i := range operators {
		operators[i].message += fmt.Sprintf("; or, if another wrote it: %s: %s", others[0].invariant, others[0].message)
	}
	return operators
}

// checkWorkload judges two consecutive versions of a workload.
func (w *world) checkWorkload(e event, before, next *workload, by Writer) (findings []finding) {
	o, ns := next.Deployment, w.namespaces[e.namespace]
	defended := ns != nil && ns.enrolled && e.seen.Sub(ns.changed) > propagation
	findings = checkDeployment(before.Deployment, o, by, defended)
	if by == Operator {
		findings = slices.Concat(findings, w.checkHasty(e, before, next), checkSize(before.Deployment, o))
	}
	if by == Operator || !w.unattended(e.seen) { // else no replica kept the values of users
		findings = append(findings, w.checkGivenBack(before.Deployment, o, by, defended)...)
	}
	_, was := before.Labels[v1alpha1.SuspendLabel]
	if _, is := o.Labels[v1alpha1.SuspendLabel]; is && !was && by == Operator {
		findings = append(findings, w.checkBlocked(next)...)
	}
	return findings
}

// checkBlocked checks S2: a block names the current release of this very workload, and that release
// fails.
func (w *world) checkBlocked(d *workload) []finding {
	because, record := d.Annotations[v1alpha1.SuspendedByAnnotation], ""
	if fields := strings.Fields(because); len(fields) == 3 {
		because, record = fields[0]+" "+fields[1], fields[2]
	}
	if is := d.Labels[v1alpha1.VersionLabel] + " " + d.Annotations[v1alpha1.ReleaseAnnotation]; because != is {
		return []finding{found(VerdictOnce, "blocked because of release %q, but it is at %q", because, is)}
	}
	version, number, _ := strings.Cut(because, " ")
	for _, r := range w.releases {
		if r.owner != d.UID || r.Spec.Reversion != version || strconv.FormatInt(r.Spec.Release, 10) != number ||
			record != "" && string(r.UID) != record {
			continue
		}
		if r.failing || r.lastFailing >= r.since || r.partial ||
			w.anyFailed(r, func(b *batch) bool { return b.Spec.Release == r.Spec.Release }) {
			return nil
		}
		return []finding{found(VerdictOnce, "blocked because of release %q, but nothing of it failed since it was last right", because)}
	}
	return []finding{found(VerdictOnce, "blocked because of release %q, which this workload does not have", because)}
}

func (w *world) anyFailed(r *release, of func(*batch) bool) bool {
	for _, b := range w.owned[r.UID] {
		if b.failed && of(b) {
			return true
		}
	}
	return false
}

func (w *world) applyRelease(e event, o *v1alpha1.ChangeWorkload, by Writer) (findings []finding) {
	before := w.releases[e.uid]
	next := &release{ChangeWorkload: o, owner: ownerOf(o), partial: e.listed, since: e.rv}
	if before != nil {
		*next = *before
		next.ChangeWorkload, next.owner = o, ownerOf(o)
	}
	w.releases[e.uid] = next
	w.rememberRelease(o)
	was, is := v1alpha1.ChangeWorkloadInit, o.Status.Status
	if before != nil {
		was = before.Status.Status
		if o.Status.Attempt != before.Status.Attempt {
			was = v1alpha1.ChangeWorkloadInit
			next.since, next.failing, next.lastFailing, next.lastClean, next.left = e.rv, false, 0, e.rv, 0
		}
	}
	w.weigh(next, e.rv)
	if e.listed {
		next.entered = e.rv
		return nil
	}
	if before != nil && by == Operator {
		findings = w.late(next.owner, before.ChangeWorkload, o, e.seen)
	}
	if before != nil {
		findings = append(findings, checkRelease(before.ChangeWorkload, o, by)...)
		findings = append(findings, w.checkUnclaimed(before.ChangeWorkload, o, by)...)
		findings = append(findings, w.checkClaim(before.ChangeWorkload, next, e, by)...)
	}
	suspended := v1alpha1.ChangeWorkloadSuspend
	switch {
	case was != suspended && is == suspended:
		next.entered = e.rv
		if by == Operator && !next.partial && !next.failing && next.lastFailing < next.since &&
			(before == nil || before.Status.FailCount == 0) {
			findings = append(findings, found(VerdictOnce, "suspended, but nothing of attempt %d of release %d failed since it was last right",
				o.Status.Attempt, o.Status.ObservedRelease))
		}
	case was == suspended && is != suspended:
		next.since = e.rv
		if by == Operator && is != v1alpha1.ChangeWorkloadRollback && !next.partial && next.failing && next.lastClean < next.entered {
			findings = append(findings, found(TerminalStays, "%q follows %q, but what failed was not corrected", is, was))
		}
	}
	if by == Operator && is == v1alpha1.ChangeWorkloadSuccess && was != is {
		if left := w.leftOut(next, time.Unix(o.Status.UpdateTimeUnix, 0)); len(left) > 0 {
			findings = append(findings, found(EachPodOnce, "success, but finished pods are in no batch: %s", strings.Join(left, ", ")))
		}
	}
	return findings
}

// checkUnclaimed checks S8: a failing verdict that waited for its node to be known goes only to
// that node.
func (w *world) checkUnclaimed(before, after *v1alpha1.ChangeWorkload, by Writer) (findings []finding) {
	if by != Operator || before.Status.Attempt != after.Status.Attempt {
		return nil
	}
	own := map[v1alpha1.CheckStage]*v1alpha1.CheckVerdict{
		v1alpha1.StagePre: after.Status.OrderPreVerdict, v1alpha1.StagePost: after.Status.OrderPostVerdict,
	}
	for _, u := range before.Status.UnclaimedVerdicts {
		waits := slices.ContainsFunc(after.Status.UnclaimedVerdicts, func(v v1alpha1.UnclaimedVerdict) bool {
			return v.NodeID == u.NodeID && v.Stage == u.Stage && fails(v.Delivered)
		})
		claimed := u.OfOrder && own[u.Stage] != nil && fails(own[u.Stage].Delivered) ||
			fails(w.onBatches[check{after.Status.OrderID, u.NodeID, u.Stage}])
		if fails(u.Delivered) && !waits && !claimed {
			findings = append(findings, found(NoVerdictLost, "the failing %s verdict on node %s is gone, and no batch has it", u.Stage, u.NodeID))
		}
	}
	return findings
}

// weigh decides whether a verdict fails a release.
func (w *world) weigh(r *release, rv uint64) {
	if r == nil {
		return
	}
	was := r.failing
	s := &r.Status
	r.failing = orderFailed(s) || checkFailed(s) || w.anyFailed(r, func(b *batch) bool {
		return b.Spec.Attempt == s.Attempt && b.Spec.Release == s.ObservedRelease
	})
	if !r.failing {
		// A failure counts even if its batch was deleted.
		for i := range s.DefenseCheckFailPods {
			r.failing = r.failing || len(w.batchesOf(r, s.DefenseCheckFailPods[i].UID)) == 0
		}
	}
	if was || r.failing {
		r.lastFailing = rv
	}
	if !was || !r.failing {
		r.lastClean = rv
	}
}

// batchesOf returns the batches of the current attempt of a release that have a pod.
func (w *world) batchesOf(r *release, uid string) []*batch {
	var in []*batch
	for _, b := range w.owned[r.UID] {
		if b.Spec.Attempt == r.Status.Attempt && b.Spec.Release == r.Status.ObservedRelease &&
			slices.ContainsFunc(b.Spec.PodInfos, func(p v1alpha1.PodInfo) bool { return p.UID == uid }) {
			in = append(in, b)
		}
	}
	return in
}

func (w *world) applyBatch(e event, o *v1alpha1.ChangePod, by Writer) (findings []finding) {
	before := w.batches[e.uid]
	next := &batch{ChangePod: o, owner: ownerOf(o), failed: failed(o)}
	done := o.Status.Status == v1alpha1.ChangePodExecuteDone
	if done && next.failed {
		next.applied = failures(&o.Status)
	}
	r := w.releases[next.owner]
	if before == nil {
		if !e.listed && r != nil {
			findings = w.checkNewBatch(r, o)
		}
	} else {
		findings = checkBatch(before.ChangePod, o, by, before.applied)
		if r != nil && by == Operator {
			findings = append(findings, w.late(r.owner, before.ChangePod, o, e.seen)...)
			findings = append(findings, w.checkSilence(w.deployments[r.owner], before.ChangePod, o, e.seen)...)
		}
		put := before.Status.Status != v1alpha1.ChangePodExecuteDone ||
			!equality.Semantic.DeepEqual(before.Status.PodResults, o.Status.PodResults)
		if by != Operator || !put {
			next.applied = nil
		}
		next.applied = slices.Concat(before.applied, next.applied)
	}
	if before != nil && before.owner != next.owner {
		delete(w.owned[before.owner], e.uid)
	}
	if before != nil {
		w.verify(before, e.seen) // its watch may have ended before this version
	}
	w.batches[e.uid] = next
	w.verify(next, e.seen)
	if w.owned[next.owner] == nil {
		w.owned[next.owner] = map[types.UID]*batch{}
	}
	w.owned[next.owner][e.uid] = next
	w.rememberVerdict(o.Status.OrderID, o.Status.PreVerdict, v1alpha1.StagePre, w.onBatches)
	w.rememberVerdict(o.Status.OrderID, o.Status.PostVerdict, v1alpha1.StagePost, w.onBatches)
	w.weigh(r, e.rv)
	return findings
}

// checkNewBatch checks S7 and S2: a new batch has an unused number, and only pods of its own
// release that are in no other batch of it.
func (w *world) checkNewBatch(r *release, b *v1alpha1.ChangePod) (findings []finding) {
	if n := numberOf(b.Name); n <= r.Status.Batches {
		findings = append(findings, found(VerdictOnce, "batch number %d was made when %d had been used", n, r.Status.Batches))
	}
	d := w.deployments[r.owner]
	for i := range b.Spec.PodInfos {
		p := &b.Spec.PodInfos[i]
		for _, other := range w.owned[r.UID] {
			if other.Spec.Attempt == b.Spec.Attempt && other.Spec.Release == b.Spec.Release &&
				slices.ContainsFunc(other.Spec.PodInfos, func(q v1alpha1.PodInfo) bool { return q.UID == p.UID }) {
				findings = append(findings, found(EachPodOnce, "pod %s is in batch %s already", p.Pod, other.Name))
			}
		}
		seen := w.pods[types.UID(p.UID)]
		if seen == nil {
			continue // gone by now
		}
		rs, ok := w.replicaSets[seen.owner]
		switch {
		case !ok || d == nil:
		case rs.owner != r.owner:
			findings = append(findings, found(VerdictOnce, "pod %s is of another workload", p.Pod))
		case d.contents[r.Spec.Reversion] != "" && d.contents[r.Spec.Reversion] != rs.content:
			findings = append(findings, found(VerdictOnce, "pod %s is of another version than %s", p.Pod, r.Spec.Reversion))
		}
	}
	return findings
}

// leftOut checks S7: it returns the pods of the current template that were finished long enough
// before a time, and are in no batch of the release.
func (w *world) leftOut(r *release, at time.Time) (left []string) {
	d := w.deployments[r.owner]
	if d == nil || d.Labels[v1alpha1.VersionLabel] != r.Spec.Reversion ||
		d.Annotations[v1alpha1.ReleaseAnnotation] != strconv.FormatInt(r.Status.ObservedRelease, 10) {
		return nil
	}
	for uid, p := range w.pods {
		rs, ok := w.replicaSets[p.owner]
		if !ok || rs.owner != d.UID || rs.template != d.template || !p.live || !p.ready {
			continue
		}
		finished := p.readySince.Add(time.Duration(minReadySeconds(d.Deployment)) * time.Second)
		if at.Sub(finished) > readDelay && len(w.batchesOf(r, string(uid))) == 0 {
			left = append(left, p.name)
		}
	}
	slices.Sort(left)
	return left
}
