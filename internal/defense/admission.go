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
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// AdmissionOperation is what a request does to a workload.
type AdmissionOperation string

const (
	// AdmissionCreate creates a workload.
	AdmissionCreate AdmissionOperation = "CREATE"
	// AdmissionUpdate changes a workload.
	AdmissionUpdate AdmissionOperation = "UPDATE"
)

// AdmissionObject is what admission looks at in a workload. All maps may be
// nil.
type AdmissionObject struct {
	Labels      map[string]string
	Annotations map[string]string
	// TemplateLabels are the labels of the pod template.
	TemplateLabels map[string]string
	// Owner is the controller of the workload, as kind and name.
	Owner string
	// Version is computed from the pod template; it is never read off a label.
	Version string
	// ResourceVersion is empty in a workload that is being created.
	ResourceVersion string
	// Paused says that the workload does not roll out changes, and Words are how people
	// speak of that. Unknown is as in Stopping.
	Paused, Unknown bool
	Words           Words
	// Pacing is nil of a kind whose rollouts cannot be held.
	*Pacing
}

// ObservingOwner is the owner because of which a workload is in observe mode.
func (o *AdmissionObject) ObservingOwner() string { return observingOwner(o.Owner, o.Labels) }

// ObservingOwner is the owner because of which nothing is denied to a request. A request that
// gives a workload an owner, or takes away the label that defends it, is judged as before it.
func (r *AdmissionRequest) ObservingOwner() string {
	if r.Operation == AdmissionUpdate && r.Old.ObservingOwner() == "" {
		return ""
	}
	return r.New.ObservingOwner()
}

// AdmissionRequest is one request to write a workload.
type AdmissionRequest struct {
	Operation AdmissionOperation
	// Now is the time by the clock of the API server: quarantines end by it.
	Now time.Time
	// Own says that the operator itself sent the request.
	Own bool
	// Kind is the kind of the workload in lower case, as in messages, and Unstamped says
	// that no template of this kind is labelled with its version.
	Kind            string
	Unstamped       bool
	Namespace, Name string
	User            string
	// Old is what is stored; it is empty when a workload is created. New is
	// what the request would store, with what other webhooks, or this one in
	// an earlier call for the same request, have made of it.
	Old, New AdmissionObject
	// Past is nil when it is not known, or not needed: see NeedsPast.
	Past *Past
	// Hold is nil when it is not known whether a rollout is to be held, or not needed:
	// see NeedsHold.
	Hold *WantedHold
}

// AdmissionTarget is the part of a workload that a change is about.
type AdmissionTarget int

const (
	// WorkloadLabel is a label of the workload.
	WorkloadLabel AdmissionTarget = iota
	// WorkloadAnnotation is an annotation of the workload.
	WorkloadAnnotation
	// TemplateLabel is a label of the pod template.
	TemplateLabel
	// WorkloadPaused is what halts the rollout. It has no key. Removed, the value is that
	// of HaltedFromAnnotation; else it is what the operator halts by, and empty.
	WorkloadPaused
	// WorkloadPace is what a hold changes. It has no key.
	WorkloadPace
)

// AdmissionChange sets or removes one key of a workload.
type AdmissionChange struct {
	Target AdmissionTarget
	Key    string
	// Value is empty when a key is removed.
	Value  string
	Remove bool
	// Pace is that of WorkloadPace.
	Pace Pace
}

// AdmissionVerdict is the answer to a request.
type AdmissionVerdict struct {
	Allowed bool
	// Message says in one line why a request is denied, and what its user can do.
	Message string
	// Warning says of a request that is allowed why it would have been denied.
	Warning string
}

// maxUser bounds a user name in an annotation, in bytes.
const maxUser = 256

// restoredLabels and restoredAnnotations are the operator's own on a workload:
// an update neither loses, changes nor adds them. Not among them are
// SuspendLabel, whose loss is denied rather than undone, HeldAnnotation, which goes with
// what it describes, and what users set: IgnoredSuspendLabel, RollbackToAnnotation, UnquarantineAnnotation and the
// settings.
func restoredLabels() []string {
	return []string{v1alpha1.VersionLabel, v1alpha1.DefenseStatusLabel}
}

func restoredAnnotations() []string {
	return []string{
		v1alpha1.ReleaseAnnotation, v1alpha1.ReleasedByAnnotation, v1alpha1.SuspendedByAnnotation, v1alpha1.OverrideAnnotation,
		v1alpha1.OverrideReportedAnnotation, v1alpha1.OverrideStaleAnnotation, v1alpha1.HaltedAnnotation, v1alpha1.HaltedFromAnnotation,
		v1alpha1.QuarantinedAnnotation, v1alpha1.QuarantineReasonAnnotation, v1alpha1.RollbackRequestedAnnotation,
		v1alpha1.UnquarantinedAnnotation,
		v1alpha1.SettingsAlteredAnnotation, v1alpha1.AdmittedAnnotation, v1alpha1.OptedOutAnnotation, v1alpha1.HoldEndedAnnotation,
	}
}

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

// NeedsOverride says that a release passes only by an override, or as an undo:
// the workload is blocked, or this version of it was rolled back.
func (r *AdmissionRequest) NeedsOverride() bool { return r.Old.suspended() || r.quarantined() }

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

// released says that the request changes the pod template, the version label
// aside, as far as it is seen now: see Releases.
func (r *AdmissionRequest) released() bool {
	return r.Old.Version != r.New.Version
}

// templateTouched says that the request changes the pod template in any way:
// where mutation failed, a change of the version label restarts pods, too.
func (r *AdmissionRequest) templateTouched() bool {
	return r.released() || differs(r.Old.TemplateLabels, r.New.TemplateLabels, v1alpha1.VersionLabel)
}

// touches reports whether the request changes the pod template or the block.
func (r *AdmissionRequest) touches() bool { return r.templateTouched() || r.suspendTouched() }

// suspendTouched says that the request loses or changes the block.
func (r *AdmissionRequest) suspendTouched() bool {
	return r.Old.suspended() && differs(r.Old.Labels, r.New.Labels, v1alpha1.SuspendLabel)
}

// quarantined says that the request releases a version that was rolled back.
func (r *AdmissionRequest) quarantined() bool {
	return r.released() && ParseQuarantine(r.Old.Annotations, r.Now).Holds(r.New.Version)
}

// rollsBack says that the request is the operator's rollback.
func (r *AdmissionRequest) rollsBack() bool {
	// A version that was rolled back before changes only the reasons.
	return r.Own && r.released() && (differs(r.Old.Annotations, r.New.Annotations, v1alpha1.QuarantinedAnnotation) ||
		differs(r.Old.Annotations, r.New.Annotations, v1alpha1.QuarantineReasonAnnotation))
}

// overrides reports whether the request may pass the block or the quarantine.
func (r *AdmissionRequest) overrides() bool { return r.NeedsOverride() && r.hasOverride() }

// hasOverride reports whether the request has an override that counts.
func (r *AdmissionRequest) hasOverride() bool {
	if r.New.ignoresSuspend() && !r.staleOverride() {
		return true
	}
	// Mutation, earlier in this very request, used the label up. An override
	// of an earlier request names an older resource version.
	o, ok := ParseOverride(r.New.Annotations[v1alpha1.OverrideAnnotation])
	return ok && o.ResourceVersion == r.Old.ResourceVersion
}

// staleOverride says that the label was there before the block, the rollback or the halt,
// and so was not meant for it.
func (r *AdmissionRequest) staleOverride() bool {
	_, stale := r.Old.Annotations[v1alpha1.OverrideStaleAnnotation]
	return stale && r.Old.ignoresSuspend()
}

func (o *AdmissionObject) suspended() bool {
	_, ok := o.Labels[v1alpha1.SuspendLabel]
	return ok
}

func (o *AdmissionObject) ignoresSuspend() bool {
	return o.Labels[v1alpha1.IgnoredSuspendLabel] == v1alpha1.IgnoredSuspendValue
}

// restore makes the given keys of a map what they were before.
func restore(to, from map[string]string, keys []string) {
	for _, key := range keys {
		if value, ok := from[key]; ok {
			to[key] = value
		} else {
			delete(to, key)
		}
	}
}

func differs(a, b map[string]string, key string) bool {
	va, inA := a[key]
	vb, inB := b[key]
	return inA != inB || va != vb
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

// cloned is maps.Clone that can be written to when there is nothing to clone.
func cloned(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return maps.Clone(m)
}

// cutAtRune shortens s to at most limit bytes of whole characters.
func cutAtRune(s string, limit int) string {
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
