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

package admission

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Mutate returns the changes to the new object, in a fixed order. It changes nothing in its own result for the same
// request, because the API server may call again after other webhooks.
func Mutate(r Request) []Change {
	want := Object{
		Labels:         cloned(r.New.Labels),
		Annotations:    cloned(r.New.Annotations),
		TemplateLabels: cloned(r.New.TemplateLabels),
		Paused:         r.New.Paused,
	}
	optedOut := workload.OptedOut(r.New.Labels)
	switch {
	case optedOut && (r.Own || r.Operation != Update):
		return nil
	case optedOut:
		mutateOptedOut(&r, &want)
	case r.Operation == Create:
		mutateCreated(&r, &want)
	case r.Operation != Update:
		return nil
	case r.Own:
		mutateOwn(&r, &want)
	default:
		mutateUpdated(&r, &want)
	}
	if !optedOut {
		noteContent(&r, &want)
	}
	pace(&r, &want)
	changes := slices.Concat(
		mapChanges(WorkloadLabel, r.New.Labels, want.Labels),
		mapChanges(WorkloadAnnotation, r.New.Annotations, want.Annotations),
		mapChanges(TemplateLabel, r.New.TemplateLabels, want.TemplateLabels),
	)
	changes = append(changes, haltChanges(&r, &want)...)
	if want.Pacing != nil && want.Pace != r.New.Pace {
		changes = append(changes, Change{Target: WorkloadPace, Pace: want.Pace})
	}
	return changes
}

// Validate denies a request that does not pass the block of a workload.
func Validate(r Request) Verdict {
	if r.Operation != Update || !r.Old.suspended() || r.Own || workload.OptedOut(r.New.Labels) ||
		!r.touches() || r.overrides() || r.wentBack() {
		return Verdict{Allowed: true}
	}
	return Verdict{Message: describeBlock(&r)}
}

// ValidateQuarantine denies a request that releases a version that was rolled back. While the workload is blocked, the
// block decides.
func ValidateQuarantine(r Request) Verdict {
	if r.Operation != Update || !r.quarantined() || r.Old.suspended() || r.Own || workload.OptedOut(r.New.Labels) || r.overrides() {
		return Verdict{Allowed: true}
	}
	set := "set the label"
	if r.New.ignoresSuspend() {
		set = "remove this label, which was there before the rollback, and set it again:"
	}
	quarantine := rollback.DescribeQuarantine(r.New.Version, rollback.ParseQuarantine(r.Old.Annotations, r.Now))
	return Verdict{Message: fmt.Sprintf("%s %s: %s; release another version, or, to release this one anyway, %s %s=%q",
		r.Kind, r.Name, wording.Brief(quarantine), set, v1alpha1.IgnoredSuspendLabel, v1alpha1.IgnoredSuspendValue)}
}

// mutateCreated removes the operator's marks, and a halt, from a manifest that was copied from another workload; its
// settings are the user's.
func mutateCreated(r *Request, want *Object) {
	if r.New.Annotations[v1alpha1.HaltedAnnotation] != "" {
		want.Paused = false
	}
	for _, key := range append(restoredLabels(), v1alpha1.SuspendLabel, v1alpha1.IgnoredSuspendLabel) {
		delete(want.Labels, key)
	}
	for _, key := range append(restoredAnnotations(), userAnnotations()...) {
		delete(want.Annotations, key)
	}
	want.Labels[v1alpha1.VersionLabel] = r.New.Version
	stamp(r, want)
	want.Annotations[v1alpha1.ReleaseAnnotation] = "1"
	releasedBy(r, want)
	noteSeen(r, want)
}

// mutateOwn records the release of the operator's own write. Its template stays unchanged: a rollback restores the
// template of a ReplicaSet, which is found again only if it is identical.
func mutateOwn(r *Request, want *Object) {
	if r.released() {
		release(r, want)
		noteRestored(r, want)
	}
	markStale(r, want)
}

// noteRestored corrects the version that a rollback recorded as its target. A revision of an older control plane may
// lack fields of the template that the API server sets now, so its version changes. Only the recorded version shows
// that a rollback made the release.
func noteRestored(r *Request, want *Object) {
	if !r.rollsBack() {
		return
	}
	q := rollback.ParseQuarantine(want.Annotations, time.Time{}) // also of an expired quarantine
	why, ok := q.Reasons[r.Old.Version]
	if said := why.To; ok && said != r.New.Version && why.Release == workload.ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation]) {
		why.To = r.New.Version
		q.Reasons[r.Old.Version] = why
		q.Annotate(want.Annotations)
		if cause := want.Annotations[v1alpha1.ChangeCauseAnnotation]; strings.HasPrefix(cause, rollback.ChangeCausePrefix) {
			want.Annotations[v1alpha1.ChangeCauseAnnotation] = strings.Replace(cause, said, r.New.Version, 1)
		}
	}
}

func mutateUpdated(r *Request, want *Object) {
	restore(want.Labels, r.Old.Labels, restoredLabels())
	restore(want.Annotations, r.Old.Annotations, restoredAnnotations())
	to, ok := want.Annotations[v1alpha1.RollbackToAnnotation]
	if ok && workload.OptedOut(r.Old.Labels) && !strings.HasPrefix(to, rollback.BeforeOptIn) {
		want.Annotations[v1alpha1.RollbackToAnnotation] = rollback.BeforeOptIn + wording.CutAtRune(to, record.MaxText)
	}
	if r.Releases() {
		release(r, want)
		noteSeen(r, want)
		dropChangeCause(want)
		noteAltered(r, want)
		// A rollback request is about its release, not about this one: kubectl rollout undo even restores requests of
		// earlier releases.
		delete(want.Annotations, v1alpha1.RollbackToAnnotation)
		useFreezeBreak(r, want)
		stamp(r, want)
	} else {
		// Also if the label was missing: adding it would restart all pods.
		restore(want.TemplateLabels, r.Old.TemplateLabels, []string{v1alpha1.VersionLabel})
	}
	if r.overrides() && (r.Releases() || r.suspendTouched()) || r.overridesHalt() || r.overridesHold() {
		useOverride(r, want)
	}
	if why, ok := r.undo(); ok && r.Releases() {
		rollback.ParseQuarantine(want.Annotations, r.Now).With(r.Old.Version, why).Annotate(want.Annotations)
	}
	unquarantine(r, want)
	noteOwner(r, want)
	takeBackPause(r, want)
	markStale(r, want)
}

// markStale keeps the mark of a label that is older than the block, so it does not count as an override. Only here the
// object is known as it is stored with the block, by the operator or by hand.
func markStale(r *Request, want *Object) {
	switch {
	case want.Labels[v1alpha1.IgnoredSuspendLabel] != v1alpha1.IgnoredSuspendValue:
		delete(want.Annotations, v1alpha1.OverrideStaleAnnotation)
	case (!r.Old.suspended() && r.New.suspended() || r.rollsBack() || r.halts()) && r.Old.ignoresSuspend():
		want.Annotations[v1alpha1.OverrideStaleAnnotation] = "true"
	case !r.Old.ignoresSuspend():
		// Set in this request. The mark is of an earlier label, which was lost while mutation was down.
		delete(want.Annotations, v1alpha1.OverrideStaleAnnotation)
	}
}

// stamp labels a template with its version. In kinds without labelled templates it removes a label that a manifest
// brought, which would restart pods when it changed.
func stamp(r *Request, want *Object) {
	if r.Unstamped {
		delete(want.TemplateLabels, v1alpha1.VersionLabel)
	} else {
		want.TemplateLabels[v1alpha1.VersionLabel] = r.New.Version
	}
}

func release(r *Request, want *Object) {
	want.Labels[v1alpha1.VersionLabel] = r.New.Version
	want.Annotations[v1alpha1.ReleaseAnnotation] =
		strconv.FormatInt(workload.NextRelease(workload.ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation])), 10)
	delete(want.Labels, v1alpha1.DefenseStatusLabel)
	delete(want.Annotations, v1alpha1.SettingsAlteredAnnotation)
	delete(want.Annotations, v1alpha1.OptedOutAnnotation) // it was about the release before
	releasedBy(r, want)
}

// noteAltered records the settings that the release changes, for an event.
func noteAltered(r *Request, want *Object) {
	if altered := settings.DescribeAltered(r.Old.Annotations, r.New.Annotations); altered != "" {
		want.Annotations[v1alpha1.SettingsAlteredAnnotation] = want.Annotations[v1alpha1.ReleaseAnnotation] + " " + altered
	}
}

// dropChangeCause removes the cause of the operator's rollback, which does not explain this release.
func dropChangeCause(want *Object) {
	if strings.HasPrefix(want.Annotations[v1alpha1.ChangeCauseAnnotation], rollback.ChangeCausePrefix) {
		delete(want.Annotations, v1alpha1.ChangeCauseAnnotation)
	}
}

func releasedBy(r *Request, want *Object) {
	want.Annotations[v1alpha1.ReleasedByAnnotation] = r.releaser()
}

// useOverride records and uses up the override.
func useOverride(r *Request, want *Object) {
	delete(want.Labels, v1alpha1.IgnoredSuspendLabel)
	delete(want.Annotations, v1alpha1.OverrideStaleAnnotation)
	want.Annotations[v1alpha1.OverrideAnnotation] = record.Override{
		Version:         r.New.Version,
		ResourceVersion: r.Old.ResourceVersion,
		User:            wording.CutAtRune(r.User, workload.MaxUser),
	}.String()
	if !r.New.suspended() {
		delete(want.Annotations, v1alpha1.SuspendedByAnnotation)
	}
	if r.quarantined() {
		user := wording.CutAtRune(cmp.Or(r.User, workload.UnknownUser), workload.MaxUser)
		rollback.ParseQuarantine(want.Annotations, r.Now).Override(r.New.Version, user).Annotate(want.Annotations)
	}
}

// mapChanges returns the changes from one map to the other, sorted by key.
func mapChanges(target Target, from, to map[string]string) []Change {
	var changes []Change
	for key := range from {
		if _, ok := to[key]; !ok {
			changes = append(changes, Change{Target: target, Key: key, Remove: true})
		}
	}
	for key, value := range to {
		if differs(from, to, key) {
			changes = append(changes, Change{Target: target, Key: key, Value: value})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return cmp.Compare(a.Key, b.Key) })
	return changes
}

// AsWarning turns a denial into a warning, for a workload in observe mode.
func (v Verdict) AsWarning(by string) Verdict {
	if v.Allowed {
		return v
	}
	return Verdict{Allowed: true, Warning: WouldDeny(by, v.Message)}
}

// WouldDeny returns the warning about a request that enforce mode would have denied.
func WouldDeny(observedBy, message string) string {
	return fmt.Sprintf("allowed in observe mode, by %s; enforce mode denies it: %s", observedBy, message)
}
