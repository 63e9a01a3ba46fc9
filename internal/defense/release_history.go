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

// The history of a workload: successful versions and earlier releases, after their records are gone.

const (
	// maxPrevious, maxCorrections, maxImages and maxManager are the limits of the API.
	maxPrevious    = 10
	maxCorrections = 5
	maxImages      = 10
	maxManager     = 128
)

// evidenceOf returns the evidence to keep about the workload's release.
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

// Defenses that an override release passes.
const (
	OverrodeBlock      = "block"
	OverrodeQuarantine = "quarantine"
)

// Overridden is what a release passed, and by whose request.
type Overridden struct {
	By     string   `json:"by"`
	Passed []string `json:"passed"`
}

// OverrideOf returns the override that the current attempt of a release used; nil for none. The workload may be gone or
// at another release.
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

// maxNamedCorrections bounds the corrections that one event names.
const maxNamedCorrections = 3

// noteCorrections records and reports who may have corrected failing verdicts: of pods that no longer fail, of the
// order, and of a check. The batches are read from the API server: the cache drops managed fields, and may show a batch
// before its failure.
func noteCorrections(d *release) {
	var corrected []string
	note := func(pod, manager, what string) {
		noteCorrection(d.status, d.Now, pod, manager)
		corrected = append(corrected, what+" by field manager "+cmp.Or(manager, workload.UnknownUser))
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
	if d.Change.Status.CheckFailed && record.FailedReleaseCheck(d.status) == nil && !healed(d) {
		note("", "", "of a check of the release")
	}
	if len(corrected) == 0 {
		return
	}
	d.needAll()
	more := ""
	if n := len(corrected) - maxNamedCorrections; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	message := "the failing verdict was corrected: " + strings.Join(corrected[:min(len(corrected), maxNamedCorrections)], ", ") + more
	if !d.hasFailed() {
		message += "; nothing of this release fails now"
	}
	d.event(corev1.EventTypeWarning, v1alpha1.EventVerdictCorrected, message)
}

// orderCorrected reports whether the order of a suspended release no longer fails. An older build did not record that
// the order failed: there, a suspended release without another failure counts.
func orderCorrected(d *release) bool {
	return d.Change.Status.OrderFailed && record.FailedOrderCheck(d.status) == nil ||
		!d.Change.Status.CheckFailed && len(d.Change.Status.DefenseCheckFailPods) == 0 && !d.hasFailed()
}

func noteCorrection(s *v1alpha1.ChangeWorkloadStatus, now time.Time, pod, manager string) {
	c := v1alpha1.Correction{Pod: pod, FieldManager: wording.CutAtRune(manager, maxManager), TimeUnix: now.Unix()}
	s.Corrections = append(s.Corrections, c)
	s.Corrections = slices.Delete(s.Corrections, 0, max(len(s.Corrections)-maxCorrections, 0))
}

// managerOf returns the field manager, other than the operator's, that last wrote the status of the batch of a pod.
func managerOf(d *release, pod *v1alpha1.PodResult) string {
	var last *metav1.ManagedFieldsEntry
	for i := range d.Batches {
		b := &d.Batches[i]
		has := func(p v1alpha1.PodInfo) bool { return p.UID == pod.UID && p.Pod == pod.Pod }
		if !d.ofAttempt(b) || !slices.ContainsFunc(b.Spec.PodInfos, has) {
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

// keepPrevious updates the list of earlier releases. An existing record is newer than a list.
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

// PreviousOf returns the entry to keep about a release with a record.
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

// rolledOrFailed maps a condition to the status that explains why a release ended badly.
var rolledOrFailed = map[string]metav1.ConditionStatus{
	v1alpha1.ConditionRolledBack: metav1.ConditionTrue,
	v1alpha1.ConditionVerified:   metav1.ConditionFalse,
}

// decideHistory changes the history of a workload after Success with a passed pod, or without pods: this version becomes the newest, and
// the oldest ones are removed.
func decideHistory(d *release) {
	keep := d.Settings.History
	others := slices.DeleteFunc(slices.Clone(d.History), func(r workload.Revision) bool { return r.Version == d.Change.Spec.Reversion })
	if keep > 0 {
		keep--
		known := slices.ContainsFunc(d.History, func(r workload.Revision) bool {
			return r.Version == d.Change.Spec.Reversion && r.Release >= d.Change.Spec.Release
		})
		d.plan.Remember = !meta.IsStatusConditionFalse(d.status.Conditions, v1alpha1.ConditionProven) && !known &&
			(d.status.DeniedWrite == nil || d.status.DeniedWrite.Write != WriteRemember) // content that is too large stays so
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

// leaveHistory removes a version from the history that failed after its Success.
func leaveHistory(d *release) {
	for _, r := range d.History {
		if r.Version == d.Change.Spec.Reversion {
			d.plan.Forget = append(d.plan.Forget, r)
		}
	}
}

// recordProof copies the condition Proven to the history.
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

// rememberLeft remembers the version of a successful release that was replaced first: the process died in between, or
// the next release came at the same moment. A newer version in the history shows that it was remembered, or forgotten
// since.
func rememberLeft(d *release) {
	newer := func(r workload.Revision) bool {
		return r.Version == d.Change.Spec.Reversion || r.Release > d.Change.Spec.Release
	}
	succeeded := func(c v1alpha1.ChangeWorkload) bool {
		return c.Spec.Release > d.Change.Spec.Release && c.Status.Status == v1alpha1.ChangeWorkloadSuccess
	}
	if d.status.Status != v1alpha1.ChangeWorkloadSuccess || d.status.PassCount == 0 && !d.Workload.WithoutPods || d.Settings.History == 0 ||
		meta.IsStatusConditionFalse(d.status.Conditions, v1alpha1.ConditionProven) ||
		slices.ContainsFunc(d.History, newer) || slices.ContainsFunc(d.Others, succeeded) {
		return
	}
	d.plan.Remember = true
}
