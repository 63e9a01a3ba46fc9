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

// Mutate returns what has to be changed in the new object, in a fixed
// order. Applied to its own result for the same request it changes nothing, as
// the API server may ask again after other webhooks.
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

// Validate says whether a request passes the block of a workload.
func Validate(r Request) Verdict {
	if r.Operation != Update || !r.Old.suspended() || r.Own || workload.OptedOut(r.New.Labels) ||
		!r.touches() || r.overrides() || r.wentBack() {
		return Verdict{Allowed: true}
	}
	return Verdict{Message: describeBlock(&r)}
}

// ValidateQuarantine says whether a request releases a version that was rolled
// back. While the workload is blocked the block decides.
func ValidateQuarantine(r Request) Verdict {
	if r.Operation != Update || !r.quarantined() || r.Old.suspended() || r.Own || workload.OptedOut(r.New.Labels) || r.overrides() {
		return Verdict{Allowed: true}
	}
	set := "set the label"
	if r.New.ignoresSuspend() {
		set = "remove this label, which was there before the rollback, and set it again:"
	}
	return Verdict{Message: fmt.Sprintf("%s %s: %s; release another version, or, to release this one anyway, %s %s=%q",
		r.Kind, r.Name, wording.Brief(rollback.DescribeQuarantine(r.New.Version, rollback.ParseQuarantine(r.Old.Annotations, r.Now))), set, v1alpha1.IgnoredSuspendLabel, v1alpha1.IgnoredSuspendValue)}
}

// mutateCreated takes off what a manifest cloned from another workload brought
// along, what the operator halted that one by included; the settings in it are the user's.
func mutateCreated(r *Request, want *Object) {
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
	stamp(r, want)
	want.Annotations[v1alpha1.ReleaseAnnotation] = "1"
	releasedBy(r, want)
	noteSeen(r, want)
}

// mutateOwn records the release that the operator's own write is. The template
// stays as it was written: a rollback sets back the one of a ReplicaSet, which
// is found again only if nothing in it changes.
func mutateOwn(r *Request, want *Object) {
	if r.released() {
		release(r, want)
		noteRestored(r, want)
	}
	markStale(r, want)
}

// noteRestored corrects what a rollback says of the version that it goes to. A revision
// that an older control plane wrote may lack fields of the template that the API server
// sets by now, so that it comes to another version. Only by that one it is known that
// the release was made by a rollback.
func noteRestored(r *Request, want *Object) {
	if !r.rollsBack() {
		return
	}
	q := rollback.ParseQuarantine(want.Annotations, time.Time{}) // of one whose time is over, too
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
	if to, ok := want.Annotations[v1alpha1.RollbackToAnnotation]; ok && workload.OptedOut(r.Old.Labels) && !strings.HasPrefix(to, rollback.BeforeOptIn) {
		want.Annotations[v1alpha1.RollbackToAnnotation] = rollback.BeforeOptIn + wording.CutAtRune(to, record.MaxText)
	}
	if r.Releases() {
		release(r, want)
		noteSeen(r, want)
		dropChangeCause(want)
		noteAltered(r, want)
		// A request is about the release it was made at, not about this one: kubectl
		// rollout undo even brings those of earlier ones back.
		delete(want.Annotations, v1alpha1.RollbackToAnnotation)
		stamp(r, want)
	} else {
		// Also when there was none: putting it in would restart all pods.
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

// markStale keeps the mark that tells a label that was there before the block
// from an override. Only here is the object known as it is stored when the block
// is set, by the operator or by hand, so only here it cannot be missed.
func markStale(r *Request, want *Object) {
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

// noteAltered records the settings that the release changes, for an event once
// it is recorded.
func noteAltered(r *Request, want *Object) {
	if altered := settings.DescribeAltered(r.Old.Annotations, r.New.Annotations); altered != "" {
		want.Annotations[v1alpha1.SettingsAlteredAnnotation] = want.Annotations[v1alpha1.ReleaseAnnotation] + " " + altered
	}
}

// dropChangeCause keeps what explained the operator's rollback from explaining
// this release, too.
func dropChangeCause(want *Object) {
	if strings.HasPrefix(want.Annotations[v1alpha1.ChangeCauseAnnotation], rollback.ChangeCausePrefix) {
		delete(want.Annotations, v1alpha1.ChangeCauseAnnotation)
	}
}

func releasedBy(r *Request, want *Object) {
	want.Annotations[v1alpha1.ReleasedByAnnotation] = r.releaser()
}

// useOverride records the override and uses it up.
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
		rollback.ParseQuarantine(want.Annotations, r.Now).Override(r.New.Version, wording.CutAtRune(cmp.Or(r.User, workload.UnknownUser), workload.MaxUser)).Annotate(want.Annotations)
	}
}

// mapChanges returns what turns one map into the other, sorted by key.
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

// AsWarning makes a denial of a request about a workload in observe mode a
// warning.
func (v Verdict) AsWarning(by string) Verdict {
	if v.Allowed {
		return v
	}
	return Verdict{Allowed: true, Warning: WouldDeny(by, v.Message)}
}

// WouldDeny is the warning about a request that would have been denied.
func WouldDeny(observedBy, message string) string {
	return fmt.Sprintf("allowed in observe mode, by %s; enforce mode denies it: %s", observedBy, message)
}
