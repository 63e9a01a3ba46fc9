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
	"strconv"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// MutateAdmission returns what has to be changed in the new object, in a fixed
// order. Applied to its own result for the same request it changes nothing, as
// the API server may ask again after other webhooks.
func MutateAdmission(r AdmissionRequest) []AdmissionChange {
	want := AdmissionObject{
		Labels:         cloned(r.New.Labels),
		Annotations:    cloned(r.New.Annotations),
		TemplateLabels: cloned(r.New.TemplateLabels),
		Paused:         r.New.Paused,
	}
	optedOut := OptedOut(r.New.Labels)
	switch {
	case optedOut && (r.Own || r.Operation != AdmissionUpdate):
		return nil
	case optedOut:
		r.mutateOptedOut(&want)
	case r.Operation == AdmissionCreate:
		r.mutateCreated(&want)
	case r.Operation != AdmissionUpdate:
		return nil
	case r.Own:
		r.mutateOwn(&want)
	default:
		r.mutateUpdated(&want)
	}
	r.pace(&want)
	changes := slices.Concat(
		mapChanges(WorkloadLabel, r.New.Labels, want.Labels),
		mapChanges(WorkloadAnnotation, r.New.Annotations, want.Annotations),
		mapChanges(TemplateLabel, r.New.TemplateLabels, want.TemplateLabels),
	)
	changes = append(changes, r.haltChanges(&want)...)
	if want.Pacing != nil && want.Pace != r.New.Pace {
		changes = append(changes, AdmissionChange{Target: WorkloadPace, Pace: want.Pace})
	}
	return changes
}

// ValidateAdmission says whether a request passes the block of a workload.
func ValidateAdmission(r AdmissionRequest) AdmissionVerdict {
	if r.Operation != AdmissionUpdate || !r.Old.suspended() || r.Own || OptedOut(r.New.Labels) ||
		!r.touches() || r.overrides() || r.wentBack() {
		return AdmissionVerdict{Allowed: true}
	}
	return AdmissionVerdict{Message: r.describeBlock()}
}

// ValidateQuarantine says whether a request releases a version that was rolled
// back. While the workload is blocked the block decides.
func ValidateQuarantine(r AdmissionRequest) AdmissionVerdict {
	if r.Operation != AdmissionUpdate || !r.quarantined() || r.Old.suspended() || r.Own || OptedOut(r.New.Labels) || r.overrides() {
		return AdmissionVerdict{Allowed: true}
	}
	set := "set the label"
	if r.New.ignoresSuspend() {
		set = "remove this label, which was there before the rollback, and set it again:"
	}
	return AdmissionVerdict{Message: fmt.Sprintf("%s %s: %s; release another version, or, to release this one anyway, %s %s=%q",
		r.Kind, r.Name, Brief(describeQuarantine(r.New.Version, ParseQuarantine(r.Old.Annotations, r.Now))), set, v1alpha1.IgnoredSuspendLabel, v1alpha1.IgnoredSuspendValue)}
}

// mutateCreated takes off what a manifest cloned from another workload brought
// along, what the operator halted that one by included; the settings in it are the user's.
func (r *AdmissionRequest) mutateCreated(want *AdmissionObject) {
	if r.New.Annotations[v1alpha1.HaltedAnnotation] != "" {
		want.Paused = false
	}
	for _, key := range append(restoredLabels(), v1alpha1.SuspendLabel, v1alpha1.IgnoredSuspendLabel) {
		delete(want.Labels, key)
	}
	for _, key := range append(restoredAnnotations(), v1alpha1.RollbackToAnnotation, v1alpha1.UnquarantineAnnotation) {
		delete(want.Annotations, key)
	}
	want.Labels[v1alpha1.VersionLabel] = r.New.Version
	r.stamp(want)
	want.Annotations[v1alpha1.ReleaseAnnotation] = "1"
	r.releasedBy(want)
	r.noteSeen(want)
}

// mutateOwn records the release that the operator's own write is. The template
// stays as it was written: a rollback sets back the one of a ReplicaSet, which
// is found again only if nothing in it changes.
func (r *AdmissionRequest) mutateOwn(want *AdmissionObject) {
	if r.released() {
		r.release(want)
		r.noteRestored(want)
	}
	r.markStale(want)
}

// noteRestored corrects what a rollback says of the version that it goes to. A revision
// that an older control plane wrote may lack fields of the template that the API server
// sets by now, so that it comes to another version. Only by that one it is known that
// the release was made by a rollback.
func (r *AdmissionRequest) noteRestored(want *AdmissionObject) {
	if !r.rollsBack() {
		return
	}
	q := ParseQuarantine(want.Annotations, time.Time{}) // of one whose time is over, too
	why, ok := q.reasons[r.Old.Version]
	if said := why.To; ok && said != r.New.Version && why.Release == ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation]) {
		why.To = r.New.Version
		q.reasons[r.Old.Version] = why
		q.Annotate(want.Annotations)
		if cause := want.Annotations[v1alpha1.ChangeCauseAnnotation]; strings.HasPrefix(cause, changeCausePrefix) {
			want.Annotations[v1alpha1.ChangeCauseAnnotation] = strings.Replace(cause, said, r.New.Version, 1)
		}
	}
}

func (r *AdmissionRequest) mutateUpdated(want *AdmissionObject) {
	restore(want.Labels, r.Old.Labels, restoredLabels())
	restore(want.Annotations, r.Old.Annotations, restoredAnnotations())
	if to, ok := want.Annotations[v1alpha1.RollbackToAnnotation]; ok && OptedOut(r.Old.Labels) && !strings.HasPrefix(to, laidBefore) {
		want.Annotations[v1alpha1.RollbackToAnnotation] = laidBefore + cutAtRune(to, maxText)
	}
	if r.Releases() {
		r.release(want)
		r.noteSeen(want)
		r.dropChangeCause(want)
		r.noteAltered(want)
		// A request is about the release it was made at, not about this one: kubectl
		// rollout undo even brings those of earlier ones back.
		delete(want.Annotations, v1alpha1.RollbackToAnnotation)
		r.stamp(want)
	} else {
		// Also when there was none: putting it in would restart all pods.
		restore(want.TemplateLabels, r.Old.TemplateLabels, []string{v1alpha1.VersionLabel})
	}
	if r.overrides() && (r.Releases() || r.suspendTouched()) || r.overridesHalt() || r.overridesHold() {
		r.useOverride(want)
	}
	if why, ok := r.undo(); ok && r.Releases() {
		ParseQuarantine(want.Annotations, r.Now).With(r.Old.Version, why).Annotate(want.Annotations)
	}
	r.unquarantine(want)
	r.noteOwner(want)
	r.takeBackPause(want)
	r.markStale(want)
}

// markStale keeps the mark that tells a label that was there before the block
// from an override. Only here is the object known as it is stored when the block
// is set, by the operator or by hand, so only here it cannot be missed.
func (r *AdmissionRequest) markStale(want *AdmissionObject) {
	switch {
	case want.Labels[v1alpha1.IgnoredSuspendLabel] != v1alpha1.IgnoredSuspendValue:
		delete(want.Annotations, v1alpha1.OverrideStaleAnnotation)
	case (!r.Old.suspended() && r.New.suspended() || r.rollsBack() || r.halts()) && r.Old.ignoresSuspend():
		want.Annotations[v1alpha1.OverrideStaleAnnotation] = "true"
	case !r.Old.ignoresSuspend():
		// Set in this request. A mark is of an earlier label, lost while
		// mutation was down.
		delete(want.Annotations, v1alpha1.OverrideStaleAnnotation)
	}
}

// stamp labels a template with its version. Where templates are not labelled the label
// is one that a manifest brought along, which would restart pods when it changed.
func (r *AdmissionRequest) stamp(want *AdmissionObject) {
	if r.Unstamped {
		delete(want.TemplateLabels, v1alpha1.VersionLabel)
	} else {
		want.TemplateLabels[v1alpha1.VersionLabel] = r.New.Version
	}
}

func (r *AdmissionRequest) release(want *AdmissionObject) {
	want.Labels[v1alpha1.VersionLabel] = r.New.Version
	want.Annotations[v1alpha1.ReleaseAnnotation] =
		strconv.FormatInt(NextRelease(ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation])), 10)
	delete(want.Labels, v1alpha1.DefenseStatusLabel)
	delete(want.Annotations, v1alpha1.SettingsAlteredAnnotation)
	delete(want.Annotations, v1alpha1.OptedOutAnnotation) // it was about the release before
	r.releasedBy(want)
}

// noteAltered records the settings that the release changes, for an event once
// it is recorded.
func (r *AdmissionRequest) noteAltered(want *AdmissionObject) {
	if altered := settings.DescribeAltered(r.Old.Annotations, r.New.Annotations); altered != "" {
		want.Annotations[v1alpha1.SettingsAlteredAnnotation] = want.Annotations[v1alpha1.ReleaseAnnotation] + " " + altered
	}
}

// dropChangeCause keeps what explained the operator's rollback from explaining
// this release, too.
func (r *AdmissionRequest) dropChangeCause(want *AdmissionObject) {
	if strings.HasPrefix(want.Annotations[v1alpha1.ChangeCauseAnnotation], changeCausePrefix) {
		delete(want.Annotations, v1alpha1.ChangeCauseAnnotation)
	}
}

func (r *AdmissionRequest) releasedBy(want *AdmissionObject) {
	want.Annotations[v1alpha1.ReleasedByAnnotation] = r.releaser()
}

// useOverride records the override and uses it up.
func (r *AdmissionRequest) useOverride(want *AdmissionObject) {
	delete(want.Labels, v1alpha1.IgnoredSuspendLabel)
	delete(want.Annotations, v1alpha1.OverrideStaleAnnotation)
	want.Annotations[v1alpha1.OverrideAnnotation] = Override{
		Version:         r.New.Version,
		ResourceVersion: r.Old.ResourceVersion,
		User:            cutAtRune(r.User, maxUser),
	}.String()
	if !r.New.suspended() {
		delete(want.Annotations, v1alpha1.SuspendedByAnnotation)
	}
	if r.quarantined() {
		ParseQuarantine(want.Annotations, r.Now).Override(r.New.Version, cutAtRune(cmp.Or(r.User, UnknownUser), maxUser)).Annotate(want.Annotations)
	}
}

// mapChanges returns what turns one map into the other, sorted by key.
func mapChanges(target AdmissionTarget, from, to map[string]string) []AdmissionChange {
	var changes []AdmissionChange
	for key := range from {
		if _, ok := to[key]; !ok {
			changes = append(changes, AdmissionChange{Target: target, Key: key, Remove: true})
		}
	}
	for key, value := range to {
		if differs(from, to, key) {
			changes = append(changes, AdmissionChange{Target: target, Key: key, Value: value})
		}
	}
	slices.SortFunc(changes, func(a, b AdmissionChange) int { return cmp.Compare(a.Key, b.Key) })
	return changes
}
