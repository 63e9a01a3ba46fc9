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
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// The part of a release that keeps what is known of the ones before it, after their
// records are gone.

const (
	// maxPrevious, maxCorrections, maxImages and maxManager are the limits of the API.
	maxPrevious    = 10
	maxCorrections = 5
	maxImages      = 10
	maxManager     = 128
)

// evidenceOf is what is kept of the release a workload is at.
func evidenceOf(w *workload.Workload) (e v1alpha1.ReleaseEvidence) {
	for _, image := range w.Images[:min(len(w.Images), maxImages)] {
		e.Images = append(e.Images, wording.CutAtRune(image, record.MaxText))
	}
	e.ReleasedBy = wording.CutAtRune(w.Annotations[v1alpha1.ReleasedByAnnotation], record.MaxText)
	if o, ok := record.ParseOverride(w.Annotations[v1alpha1.OverrideAnnotation]); ok && o.Version == w.RecordedVersion() {
		e.OverriddenBy = wording.CutAtRune(o.User, record.MaxText)
	}
	return e
}

// What a release can get past by an override.
const (
	OverrodeBlock      = "block"
	OverrodeQuarantine = "quarantine"
)

// Overridden is what a release got past, and by whose request.
type Overridden struct {
	By     string   `json:"by"`
	Passed []string `json:"passed"`
}

// OverrideOf is the override that the current attempt of a release used; nil when
// it used none. The workload may be gone, or have gone on.
func OverrideOf(change *v1alpha1.ChangeWorkload, w *workload.Workload) *Overridden {
	s := &change.Status
	if s.OverriddenBy == "" {
		return nil
	}
	o := &Overridden{By: s.OverriddenBy}
	if s.BlockAtStart != nil {
		o.Passed = append(o.Passed, OverrodeBlock)
	}
	if s.BlockAtStart == nil || w != nil && rollback.ParseQuarantine(w.Annotations, time.Time{}).OverriddenBy(change.Spec.Reversion) == o.By {
		o.Passed = append(o.Passed, OverrodeQuarantine)
	}
	return o
}

// maxCorrectionsTold is how many corrections one event names.
const maxCorrectionsTold = 3

// noteCorrections notes, and tells, who may have corrected failing verdicts: of pods that fail
// no more, and of the order.
// The batches are those of the API server: the cache keeps no managed fields, and may
// show a batch from before it failed.
func noteCorrections(d *release) {
	var told []string
	note := func(pod, manager, what string) {
		noteCorrection(d.status, d.Now, pod, manager)
		told = append(told, what+" by field manager "+cmp.Or(manager, workload.UnknownUser))
	}
	for i := range d.Change.Status.DefenseCheckFailPods {
		pod := &d.Change.Status.DefenseCheckFailPods[i]
		if slices.ContainsFunc(d.failed, func(r v1alpha1.PodResult) bool { return r.UID == pod.UID && r.Pod == pod.Pod }) {
			continue
		}
		note(pod.Pod, managerOf(d, pod), "of pod "+pod.Pod)
	}
	if orderCorrected(d) {
		note("", "", "of the order")
	}
	if d.Change.Status.CheckFailed && record.FailedReleaseCheck(d.status) == nil {
		note("", "", "of a check of the release")
	}
	if len(told) == 0 {
		return
	}
	d.needAll()
	more := ""
	if n := len(told) - maxCorrectionsTold; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	message := "the failing verdict was corrected: " + strings.Join(told[:min(len(told), maxCorrectionsTold)], ", ") + more
	if !d.hasFailed() {
		message += "; nothing of this release fails now"
	}
	d.event(corev1.EventTypeWarning, v1alpha1.EventVerdictCorrected, message)
}

// orderCorrected says that the order of a release that is suspended fails no more. An
// older build did not write that it did: there it has to be what suspended the release.
func orderCorrected(d *release) bool {
	return d.Change.Status.OrderFailed && record.FailedOrderCheck(d.status) == nil ||
		!d.Change.Status.CheckFailed && len(d.Change.Status.DefenseCheckFailPods) == 0 && !d.hasFailed()
}

func noteCorrection(s *v1alpha1.ChangeWorkloadStatus, now time.Time, pod, manager string) {
	c := v1alpha1.Correction{Pod: pod, FieldManager: wording.CutAtRune(manager, maxManager), TimeUnix: now.Unix()}
	s.Corrections = append(s.Corrections, c)
	s.Corrections = slices.Delete(s.Corrections, 0, max(len(s.Corrections)-maxCorrections, 0))
}

// managerOf is the field manager, other than the operator's own, that wrote the
// status of the batch of a pod last.
func managerOf(d *release, pod *v1alpha1.PodResult) string {
	var last *metav1.ManagedFieldsEntry
	for i := range d.Batches {
		b := &d.Batches[i]
		if !d.ofAttempt(b) || !slices.ContainsFunc(b.Spec.PodInfos, func(p v1alpha1.PodInfo) bool { return p.UID == pod.UID && p.Pod == pod.Pod }) {
			continue
		}
		for j := range b.ManagedFields {
			entry := &b.ManagedFields[j]
			if entry.Subresource != "status" || entry.Manager == v1alpha1.FieldManager || entry.Time == nil {
				continue
			}
			if last == nil || last.Time.Before(entry.Time) {
				last = entry
			}
		}
	}
	if last == nil {
		return ""
	}
	return last.Manager
}

// keepPrevious brings the list of earlier releases up to date. What a record that is
// there says is newer than what a list says of it.
func keepPrevious(d *release) {
	known := map[int64]v1alpha1.PreviousRelease{}
	keep := func(p v1alpha1.PreviousRelease) {
		if p.Release < d.status.ObservedRelease {
			known[p.Release] = p
		}
	}
	for i := range d.Others {
		for _, p := range d.Others[i].Status.PreviousReleases {
			keep(p)
		}
	}
	for _, p := range d.Change.Status.PreviousReleases {
		keep(p)
	}
	for i := range d.Others {
		if o := &d.Others[i]; o.Status.Attempt > 0 {
			keep(PreviousOf(o))
		}
	}
	if d.Change.Status.Attempt > 0 {
		keep(PreviousOf(d.Change)) // an earlier attempt of this version
	}
	previous := make([]v1alpha1.PreviousRelease, 0, len(known))
	for _, p := range known {
		previous = append(previous, p)
	}
	slices.SortFunc(previous, func(a, b v1alpha1.PreviousRelease) int { return cmp.Compare(b.Release, a.Release) })
	d.status.PreviousReleases = nil
	if len(previous) > 0 {
		d.status.PreviousReleases = previous[:min(len(previous), maxPrevious)]
	}
}

// PreviousOf is what is kept of a release whose record is there.
func PreviousOf(c *v1alpha1.ChangeWorkload) v1alpha1.PreviousRelease {
	s := &c.Status
	p := v1alpha1.PreviousRelease{
		Release: s.ObservedRelease, Version: c.Spec.Reversion, Status: s.Status,
		StartTimeUnix: s.StartTimeUnix, UpdateTimeUnix: s.UpdateTimeUnix, ReleaseEvidence: s.ReleaseEvidence,
	}
	if len(s.DefenseCheckFailPods) > 0 {
		first := s.DefenseCheckFailPods[0]
		first.Message = wording.Cut(first.Message)
		p.FailedPod = &first
	}
	for _, kind := range []string{v1alpha1.ConditionRolledBack, v1alpha1.ConditionVerified} {
		c := meta.FindStatusCondition(s.Conditions, kind)
		if c != nil && c.Status == rolledOrFailed[kind] {
			p.Message = wording.Cut(cmp.Or(record.Detail(c), c.Message))
			break
		}
	}
	return p
}

// rolledOrFailed is the status of a condition that says why a release ended badly.
var rolledOrFailed = map[string]metav1.ConditionStatus{
	v1alpha1.ConditionRolledBack: metav1.ConditionTrue,
	v1alpha1.ConditionVerified:   metav1.ConditionFalse,
}

// decideHistory says what of a workload's history changes when this release has
// succeeded and at least one of its pods passed: it becomes the newest one, and
// the oldest go.
func decideHistory(d *release) {
	keep := d.Settings.History
	others := slices.DeleteFunc(slices.Clone(d.History), func(r workload.Revision) bool { return r.Version == d.Change.Spec.Reversion })
	if keep > 0 {
		keep--
		d.plan.Remember = !meta.IsStatusConditionFalse(d.status.Conditions, v1alpha1.ConditionProven) && !slices.ContainsFunc(d.History, func(r workload.Revision) bool {
			return r.Version == d.Change.Spec.Reversion && r.Release >= d.Change.Spec.Release
		})
	} else {
		others = slices.Clone(d.History)
	}
	slices.SortFunc(others, func(a, b workload.Revision) int {
		return cmp.Or(cmp.Compare(b.Release, a.Release), cmp.Compare(a.Name, b.Name))
	})
	if len(others) > keep {
		d.plan.Forget = append(d.plan.Forget, others[keep:]...)
	}
}

// leaveHistory takes a version out of the history that failed after it had
// succeeded.
func leaveHistory(d *release) {
	for _, r := range d.History {
		if r.Version == d.Change.Spec.Reversion {
			d.plan.Forget = append(d.plan.Forget, r)
		}
	}
}

// recordProof lets the history say what the condition Proven says.
func recordProof(d *release) {
	if !meta.IsStatusConditionTrue(d.status.Conditions, v1alpha1.ConditionProven) {
		return
	}
	for i := range d.History {
		if r := &d.History[i]; r.Version == d.Change.Spec.Reversion && r.Unproven {
			d.plan.Prove = r
		}
	}
}

// rememberLeft remembers the version of a release that succeeded and was replaced
// before that was done: the process died in between, or the next release came in
// the same moment. A newer version in the history says that it was not, or that it
// was forgotten since.
func rememberLeft(d *release) {
	newer := func(r workload.Revision) bool {
		return r.Version == d.Change.Spec.Reversion || r.Release > d.Change.Spec.Release
	}
	succeeded := func(c v1alpha1.ChangeWorkload) bool {
		return c.Spec.Release > d.Change.Spec.Release && c.Status.Status == v1alpha1.ChangeWorkloadSuccess
	}
	if d.status.Status != v1alpha1.ChangeWorkloadSuccess || d.status.PassCount == 0 || d.Settings.History == 0 ||
		meta.IsStatusConditionFalse(d.status.Conditions, v1alpha1.ConditionProven) ||
		slices.ContainsFunc(d.History, newer) || slices.ContainsFunc(d.Others, succeeded) {
		return
	}
	d.plan.Remember = true
}
