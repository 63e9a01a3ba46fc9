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
func evidenceOf(w *Workload) (e v1alpha1.ReleaseEvidence) {
	for _, image := range w.Images[:min(len(w.Images), maxImages)] {
		e.Images = append(e.Images, CutAtRune(image, MaxText))
	}
	e.ReleasedBy = CutAtRune(w.Annotations[v1alpha1.ReleasedByAnnotation], MaxText)
	if o, ok := ParseOverride(w.Annotations[v1alpha1.OverrideAnnotation]); ok && o.Version == w.RecordedVersion() {
		e.OverriddenBy = CutAtRune(o.User, MaxText)
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
func OverrideOf(change *v1alpha1.ChangeWorkload, w *Workload) *Overridden {
	s := &change.Status
	if s.OverriddenBy == "" {
		return nil
	}
	o := &Overridden{By: s.OverriddenBy}
	if s.BlockAtStart != nil {
		o.Passed = append(o.Passed, OverrodeBlock)
	}
	if s.BlockAtStart == nil || w != nil && ParseQuarantine(w.Annotations, time.Time{}).overriddenBy(change.Spec.Reversion) == o.By {
		o.Passed = append(o.Passed, OverrodeQuarantine)
	}
	return o
}

// maxCorrectionsTold is how many corrections one event names.
const maxCorrectionsTold = 3

// correct notes, and tells, who may have corrected failing verdicts: of pods that fail
// no more, and of the order.
// The batches are those of the API server: the cache keeps no managed fields, and may
// show a batch from before it failed.
func (d *release) correct() {
	var told []string
	note := func(pod, manager, what string) {
		d.noteCorrection(pod, manager)
		told = append(told, what+" by field manager "+cmp.Or(manager, UnknownUser))
	}
	for i := range d.Change.Status.DefenseCheckFailPods {
		pod := &d.Change.Status.DefenseCheckFailPods[i]
		if slices.ContainsFunc(d.failed, func(r v1alpha1.PodResult) bool { return r.UID == pod.UID && r.Pod == pod.Pod }) {
			continue
		}
		note(pod.Pod, d.managerOf(pod), "of pod "+pod.Pod)
	}
	if d.orderCorrected() {
		note("", "", "of the order")
	}
	if d.Change.Status.CheckFailed && failedReleaseCheck(d.status) == nil {
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
func (d *release) orderCorrected() bool {
	return d.Change.Status.OrderFailed && d.failedOrderCheck() == nil ||
		!d.Change.Status.CheckFailed && len(d.Change.Status.DefenseCheckFailPods) == 0 && !d.hasFailed()
}

func (d *release) noteCorrection(pod, manager string) {
	c := v1alpha1.Correction{Pod: pod, FieldManager: CutAtRune(manager, maxManager), TimeUnix: d.Now.Unix()}
	d.status.Corrections = append(d.status.Corrections, c)
	d.status.Corrections = slices.Delete(d.status.Corrections, 0, max(len(d.status.Corrections)-maxCorrections, 0))
}

// managerOf is the field manager, other than the operator's own, that wrote the
// status of the batch of a pod last.
func (d *release) managerOf(pod *v1alpha1.PodResult) string {
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
func (d *release) keepPrevious() {
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
		first.Message = Cut(first.Message)
		p.FailedPod = &first
	}
	for _, kind := range []string{v1alpha1.ConditionRolledBack, v1alpha1.ConditionVerified} {
		c := meta.FindStatusCondition(s.Conditions, kind)
		if c != nil && c.Status == rolledOrFailed[kind] {
			p.Message = Cut(cmp.Or(Detail(c), c.Message))
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
