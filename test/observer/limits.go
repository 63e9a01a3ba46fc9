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
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func newLimits() limits {
	return limits{
		settings: map[string]*v1alpha1.OpsConfigInfo{}, history: map[types.UID]types.UID{},
		leaving: map[types.UID]leaving{}, writes: map[types.UID]int{},
	}
}

// checkLeaving checks L4 for a deleted object.
func (w *world) checkLeaving(e event) []finding {
	l, known := w.limits.leaving[e.uid]
	switch {
	case e.leaving && !known:
		w.limits.leaving[e.uid] = leaving{e, e.seen}
	case !e.leaving && known:
		delete(w.limits.leaving, e.uid)
		if after := e.seen.Sub(w.attended(l.since, nil)); after > maxLeaving {
			return []finding{found(NothingHangs, "gone %s after it was deleted", after)}
		}
	}
	return nil
}

// attended returns the time from which the operator could act on a workload, or on any object if d
// is nil; not before since.
func (w *world) attended(since time.Time, d *workload) time.Time {
	from := []time.Time{since}
	if n := len(w.holds.outages); n > 0 {
		last := w.holds.outages[n-1]
		if last.to.IsZero() {
			return last.from.AddDate(100, 0, 0)
		}
		from = append(from, last.to.Add(startUp))
	}
	if d != nil {
		from = append(from, w.limits.changed, d.back)
		if ns := w.namespaces[d.Namespace]; ns != nil {
			from = append(from, ns.changed)
		}
	}
	return slices.MaxFunc(from, time.Time.Compare)
}

// applySetting keeps a setting.
func (w *world) applySetting(e event, o *v1alpha1.OpsConfigInfo) {
	key := e.namespace + "/" + e.name
	if before := w.limits.settings[key]; before != nil && before.Generation != o.Generation {
		w.limits.changed = e.seen
	}
	w.limits.settings[key] = o
	if n, err := strconv.Atoi(inForce(o).Content); err == nil && e.name == "history" {
		if e.namespace != w.limits.own { // it is not the setting of other namespaces
			n = max(n, maxHistory)
		}
		w.limits.keeps = max(w.limits.keeps, n)
	}
}

// inForce returns the last valid value of a setting.
func inForce(o *v1alpha1.OpsConfigInfo) v1alpha1.OpsConfigValue {
	return *cmp.Or(o.Status.InForce, &v1alpha1.OpsConfigValue{Enable: o.Spec.Enable, Content: o.Spec.Content})
}

// duration returns a part of a setting: of the workload, of its namespace, or of the operator, in
// this order.
func (w *world) duration(d *workload, name, part string, otherwise time.Duration) time.Duration {
	contents := []string{d.Annotations[v1alpha1.SettingAnnotationPrefix+name]}
	for _, ns := range []string{d.Namespace, w.limits.own} {
		if o := w.limits.settings[ns+"/"+name]; o != nil {
			contents = append(contents, inForce(o).Content)
		}
	}
	for text := range strings.SplitSeq(strings.Join(contents, ","), ",") {
		if value, err := time.ParseDuration(strings.TrimPrefix(strings.TrimSpace(text), part+"=")); err == nil {
			return value
		}
	}
	return otherwise
}

// checkSize checks S11 for a write of the operator to a workload.
func checkSize(before, after *appsv1.Deployment) []finding {
	size := func(d *appsv1.Deployment) (bytes int) {
		for _, key := range ownAnnotations() {
			if key != v1alpha1.RollbackToAnnotation && key != v1alpha1.UnquarantineAnnotation {
				bytes += len(d.Annotations[key])
			}
		}
		return bytes
	}
	if is := size(after); is > maxOwnBytes && is > size(before) {
		return []finding{found(Bounded, "the operator's annotations have %d bytes", is)}
	}
	return nil
}

// countWrite checks L3 for a write of the operator, and S11 for its body.
func (w *world) countWrite(r *Request) (findings []finding) {
	if r.Resource == eventsResource {
		return nil
	}
	if n := len(r.body); n > maxRequest && r.Resource != "controllerrevisions" && workloadKinds()[r.Resource] == "" {
		findings = append(findings, found(Bounded, "it sends %d bytes", n))
	}
	d, _ := w.workloadOf(r)
	if d == nil {
		return findings
	}
	w.limits.writes[d.UID]++
	if n := w.limits.writes[d.UID]; n > maxWrites && n > maxWrites+maxWritesOfPod*w.countPods()[d.UID] {
		w.limits.writes[d.UID] = 0
		findings = append(findings, found(RestsQuiet, "%d writes about %s and no other writer changed it", n, d.Name))
	}
	return findings
}

// countPods counts the pods of each workload.
func (w *world) countPods() map[types.UID]int {
	pods := map[types.UID]int{}
	for _, p := range w.pods {
		pods[w.replicaSets[p.owner].owner]++
	}
	return pods
}

// countAgain resets the count of writes about a workload if a writer other than the operator
// changes the workload, or a pod, ReplicaSet, release or batch of it.
func (w *world) countAgain(e event, by Writer) {
	var of types.UID
	switch o := e.object.(type) {
	case nil:
		if p := w.pods[e.uid]; p != nil {
			of = w.replicaSets[p.owner].owner
		}
	case namespaceFacts:
		clear(w.limits.writes)
	case *v1alpha1.OpsConfigInfo:
		if before := w.limits.settings[e.namespace+"/"+e.name]; before == nil || before.Generation != o.Generation {
			clear(w.limits.writes)
		}
	case *appsv1.Deployment:
		of = e.uid
	case replicaSetFacts:
		of = o.owner
	case revisionFacts:
		of = o.owner
	case podFacts:
		if before := w.pods[e.uid]; before == nil || before.marked == o.marked { // else it is the operator's
			of = w.replicaSets[o.owner].owner
		}
	case *v1alpha1.ChangeWorkload:
		if by == Other {
			of = ownerOf(o)
		}
	case *v1alpha1.ChangePod:
		if r := w.releases[ownerOf(o)]; r != nil && by == Other {
			of = r.owner
		}
	}
	if by != Operator {
		delete(w.limits.writes, of)
	}
}

// wait is the time in which a check waits for a verdict.
type wait struct{ from, until time.Time }

// waits returns the checks of a release or of a batch that wait for a verdict, by name.
func (w *world) waits(d *workload, o client.Object) map[string]wait {
	waits := map[string]wait{}
	add := func(name string, from, seconds int64, part string) {
		if since := time.Unix(from, 0); from > 0 && seconds > 0 {
			waits[name] = wait{since, since.Add(time.Duration(seconds) * time.Second)}
		} else if from > 0 {
			waits[name] = wait{since, since.Add(w.duration(d, "timeouts", part, 2*time.Minute))}
		}
	}
	var checks []v1alpha1.CheckStatus
	switch o := o.(type) {
	case *v1alpha1.ChangePod:
		s := &o.Status
		checks = s.Checks
		if slices.ContainsFunc(checks, func(c v1alpha1.CheckStatus) bool { return c.Type == "" && c.CompletionTime != nil }) {
			break // the server's check is over, and the batch waits for those of policies
		}
		switch s.Status {
		case v1alpha1.ChangePodPreWait, v1alpha1.ChangePodPreSubmitted:
			add("PRE", s.PreSubmitTimeUnix, s.PreTimeoutThreshold, "pre")
		case v1alpha1.ChangePodPostWait, v1alpha1.ChangePodPostSubmitted:
			add("POST", s.PostSubmitTimeUnix, s.PostTimeOutThreshold, "post")
		default:
		}
	case *v1alpha1.ChangeWorkload:
		s := &o.Status
		checks = s.Checks
		switch {
		case s.OrderStage == v1alpha1.OrderSubmitting && s.Status == v1alpha1.ChangeWorkloadInit:
			add("order", s.EntryTimeUnix, 0, "pre")
		case s.OrderStage == v1alpha1.OrderPreSubmitted:
			add("order's PRE", s.OrderPreSubmitTimeUnix, 0, "pre")
		case s.OrderStage == v1alpha1.OrderPostSubmitted:
			add("order's POST", s.OrderPostSubmitTimeUnix, 0, "post")
		}
	}
	for i := range checks {
		if c := &checks[i]; c.Phase == v1alpha1.CheckRunning && c.Type != "" && c.StartTime != nil && c.Deadline != nil {
			waits[c.Name] = wait{c.StartTime.Time, c.Deadline.Time}
		}
	}
	return waits
}

// late checks L2 for a release or a batch: it finds the checks that waited too long at a time.
// Given a later version, it considers only the checks that ended with it.
func (w *world) late(of types.UID, before, after client.Object, at time.Time) (findings []finding) {
	d := w.deployments[of]
	if d == nil {
		return nil
	}
	still := map[string]wait{}
	if after != nil {
		still = w.waits(d, after)
	}
	for name, wait := range w.waits(d, before) {
		limit := wait.until.Sub(wait.from)/8 + maxSilence
		if _, waits := still[name]; !waits && at.Sub(w.attended(wait.until, d)) > limit {
			findings = append(findings, found(SilenceEnds, "the check %s had until %s", name, wait.until.UTC().Format(time.RFC3339)))
		}
	}
	return findings
}

// checkSilence checks L2 for a batch whose check of the server ended without a verdict: its pods
// pass or fail as the setting silence says. Nothing is judged if settings differ, or changed a
// moment ago, or if the workload has its own: the setting that counts is then unknown.
func (w *world) checkSilence(d *workload, before, after *v1alpha1.ChangePod, now time.Time) (findings []finding) {
	checked := func(b *v1alpha1.ChangePod) (reason, message string) {
		if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionChecked); c != nil && c.Status == metav1.ConditionFalse {
			return c.Reason, c.Message
		}
		return "", ""
	}
	was, _ := checked(before)
	reason, message := checked(after)
	silent := reason == v1alpha1.ReasonNoVerdict
	if d == nil || !silent || was == reason || now.Sub(w.limits.changed) <= delay ||
		d.Annotations[v1alpha1.SettingAnnotationPrefix+silenceSetting] != "" {
		return nil
	}
	fail, pass := false, false
	for _, ns := range []string{d.Namespace, w.limits.own} {
		if o := w.limits.settings[ns+"/"+silenceSetting]; o != nil {
			fail, pass = fail || inForce(o).Enable, pass || !inForce(o).Enable
		}
	}
	for _, r := range after.Status.PodResults {
		switch {
		case fail && !pass && !fails(r.Verdict):
			findings = append(findings, found(SilenceEnds, "no verdict came in time: pod %s passes, and the setting silence is on", r.Pod))
		case !fail && fails(r.Verdict) && strings.Contains(message, "the setting "+silenceSetting):
			findings = append(findings, found(SilenceEnds, "no verdict came in time: pod %s fails, and the setting silence is off", r.Pod))
		}
	}
	return findings
}

// unbounded checks L2, L4 and S11 for the objects of some namespaces at a time.
func (w *world) unbounded(namespaces []string, now time.Time) (open []string) {
	add := func(o metav1.Object, findings ...finding) {
		for _, f := range findings {
			open = append(open, fmt.Sprintf("%s: %s/%s: %s", f.invariant, o.GetNamespace(), o.GetName(), f.message))
		}
	}
	for _, l := range w.limits.leaving {
		if slices.Contains(namespaces, l.namespace) && now.Sub(w.attended(l.since, nil)) > maxLeaving {
			open = append(open, fmt.Sprintf("%s: %s %s/%s is still there", NothingHangs, l.kind, l.namespace, l.name))
		}
	}
	pods, versions, records, batches := w.countPods(), map[types.UID]int{}, map[types.UID]int{}, map[types.UID]int{}
	for _, owner := range w.limits.history {
		versions[owner]++
	}
	for _, r := range w.releases {
		d := w.deployments[r.owner]
		if d == nil || !slices.Contains(namespaces, d.Namespace) {
			continue
		}
		records[r.owner]++
		failing := 0
		for _, b := range w.owned[r.UID] {
			if batches[r.owner]++; b.failed {
				failing++
			}
		}
		batches[r.owner] -= min(failing, maxFailedBatches)
		why, _ := w.leftSince(d)
		if why != "" || d.DeletionTimestamp != nil || r.Spec.Reversion != d.Labels[v1alpha1.VersionLabel] || ended(r.Status.Status) {
			continue
		}
		add(r, w.late(r.owner, r.ChangeWorkload, nil, now)...)
		for _, b := range w.owned[r.UID] {
			if b.Spec.Attempt == r.Status.Attempt {
				add(b, w.late(r.owner, b.ChangePod, nil, now)...)
			}
		}
	}
	for of, n := range records {
		d := w.deployments[of]
		for _, kept := range []struct {
			what     string
			is, most int
		}{
			{"releases", n, maxRecords},
			{"batches", batches[of], pods[of]*n + maxBatches},
			{"versions in its history", versions[of], cmp.Or(w.limits.keeps, maxHistory)},
		} {
			if kept.is > kept.most {
				add(d, found(Bounded, "%d %s, at most %d", kept.is, kept.what, kept.most))
			}
		}
	}
	return slices.Sorted(slices.Values(open))
}

// ended reports whether no check of a release goes on.
func ended(s v1alpha1.ChangeWorkloadStatusType) bool {
	return s == v1alpha1.ChangeWorkloadCanceled || s == v1alpha1.ChangeWorkloadRollback || s == v1alpha1.ChangeWorkloadFailed
}
