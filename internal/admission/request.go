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
	"maps"
	"slices"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/hold"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Operation is the kind of a request to write a workload.
type Operation string

const (
	// Create creates a workload.
	Create Operation = "CREATE"
	// Update changes a workload.
	Update Operation = "UPDATE"
)

// Object is the part of a workload that admission reads. All maps may be nil.
type Object struct {
	Labels      map[string]string
	Annotations map[string]string
	// TemplateLabels are the labels of the pod template.
	TemplateLabels map[string]string
	// Owner is the controller of the workload, as kind and name.
	Owner string
	// Version is computed from the pod template; it is never read off a label.
	Version string
	// Content is nil for a kind that no ChangeKind declares. In a new object, the generation is the one that it gets.
	Content *workload.Content
	// ResourceVersion is empty in a workload that is being created.
	ResourceVersion string
	// Paused reports whether the rollout of the workload is stopped, and Words describe that for people. Unknown and
	// Stays are as in Stopping.
	Paused, Unknown bool
	Stays           string
	Words           workload.Words
	// Pacing is nil for a kind whose rollouts cannot be held.
	*workload.Pacing
}

// ObservingOwner returns the owner that puts a workload in observe mode.
func (o *Object) ObservingOwner() string { return workload.ObservingOwner(o.Owner, o.Labels) }

// Request is one request to write a workload. Its methods are questions about it; functions decide the changes.
type Request struct {
	Operation Operation
	// Now is the time by the clock of the API server: quarantines end by it.
	Now time.Time
	// Own reports whether the operator itself sent the request.
	Own bool
	// Kind is the kind of the workload in lower case, as in messages. Unstamped reports whether templates of this kind
	// have no label with their version.
	Kind            string
	Unstamped       bool
	Namespace, Name string
	User            string
	// Old is the stored workload; empty when a workload is created. New is the workload that the request would store,
	// with the changes of other webhooks, and of this webhook in an earlier call for the same request.
	Old, New Object
	// Past is nil if unknown or not needed: see NeedsPast.
	Past *rollback.Past
	// Hold is nil if unknown or not needed: see NeedsHold.
	Hold *WantedHold
}

// ObservingOwner returns the owner because of which the request is not denied. A request that adds an owner, or removes
// the label that defends the workload, is judged without that change.
func (r *Request) ObservingOwner() string {
	if r.Operation == Update && r.Old.ObservingOwner() == "" {
		return ""
	}
	return r.New.ObservingOwner()
}

// Target is the part of a workload that a change sets.
type Target int

// Change sets or removes one key of a workload.
type Change struct {
	Target Target
	Key    string
	// Value is empty when a key is removed.
	Value  string
	Remove bool
	// Pace is the pace of WorkloadPace.
	Pace workload.Pace
}

// Verdict is the answer to a request.
type Verdict struct {
	Allowed bool
	// Message is, in one line, why a request is denied, and what its user can do.
	Message string
	// Warning is why an allowed request would have been denied.
	Warning string
}

// WantedHold are the settings and policies for rollouts of a workload.
type WantedHold struct {
	Until  v1alpha1.HoldUntil
	AtMost time.Duration
	// Batch is the number of pods of a batch.
	Batch int32
	hold.Times
}

// NeedsOverride reports whether a release passes only by an override, or as an undo: the workload is blocked, or this
// version was rolled back.
func (r *Request) NeedsOverride() bool { return r.Old.suspended() || r.quarantined() }

// released reports whether the request changes the pod template, without the version label, as it is known now: see
// Releases.
func (r *Request) released() bool {
	return r.Old.Version != r.New.Version
}

// templateTouched reports whether the request changes the pod template in any way: if mutation failed, a change of the
// version label restarts pods, too.
func (r *Request) templateTouched() bool {
	return r.released() || differs(r.Old.TemplateLabels, r.New.TemplateLabels, v1alpha1.VersionLabel)
}

// touches reports whether the request changes the pod template or the block.
func (r *Request) touches() bool { return r.templateTouched() || r.suspendTouched() }

// suspendTouched reports whether the request removes or changes the block.
func (r *Request) suspendTouched() bool {
	return r.Old.suspended() && differs(r.Old.Labels, r.New.Labels, v1alpha1.SuspendLabel)
}

// quarantined reports whether the request releases a version that was rolled back.
func (r *Request) quarantined() bool {
	return r.released() && rollback.ParseQuarantine(r.Old.Annotations, r.Now).Holds(r.New.Version)
}

// rollsBack reports whether the request is the operator's rollback.
func (r *Request) rollsBack() bool {
	// For a version that was already rolled back once, only the reasons change.
	return r.Own && r.released() && (differs(r.Old.Annotations, r.New.Annotations, v1alpha1.QuarantinedAnnotation) ||
		differs(r.Old.Annotations, r.New.Annotations, v1alpha1.QuarantineReasonAnnotation))
}

// overrides reports whether the request may pass the block or the quarantine.
func (r *Request) overrides() bool { return r.NeedsOverride() && r.hasOverride() }

// hasOverride reports whether the request has an override that counts.
func (r *Request) hasOverride() bool {
	if r.New.ignoresSuspend() && !r.staleOverride() {
		return true
	}
	// Mutation used up the label earlier in this request. An override of an earlier request names an older resource
	// version.
	o, ok := record.ParseOverride(r.New.Annotations[v1alpha1.OverrideAnnotation])
	return ok && o.ResourceVersion == r.Old.ResourceVersion
}

// staleOverride reports whether the label is older than the block, the rollback or the halt, so it does not count.
func (r *Request) staleOverride() bool {
	_, stale := r.Old.Annotations[v1alpha1.OverrideStaleAnnotation]
	return stale && r.Old.ignoresSuspend()
}

func (o *Object) suspended() bool {
	_, ok := o.Labels[v1alpha1.SuspendLabel]
	return ok
}

func (o *Object) ignoresSuspend() bool {
	return o.Labels[v1alpha1.IgnoredSuspendLabel] == v1alpha1.IgnoredSuspendValue
}

// restore restores the old values of the given keys of a map.
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

// cloned is maps.Clone with a writable result for nil.
func cloned(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return maps.Clone(m)
}

// haltedBy returns the version because of which the operator paused the workload.
func (o *Object) haltedBy() string {
	if !o.Paused {
		return ""
	}
	return o.Annotations[v1alpha1.HaltedAnnotation]
}

func restoredAnnotations() []string {
	return []string{
		v1alpha1.ReleaseAnnotation, v1alpha1.ReleasedByAnnotation, v1alpha1.SuspendedByAnnotation, v1alpha1.OverrideAnnotation,
		v1alpha1.OverrideReportedAnnotation, v1alpha1.OverrideStaleAnnotation, v1alpha1.HaltedAnnotation, v1alpha1.HaltedFromAnnotation,
		v1alpha1.QuarantinedAnnotation, v1alpha1.QuarantineReasonAnnotation, v1alpha1.RollbackRequestedAnnotation,
		v1alpha1.UnquarantinedAnnotation, v1alpha1.FreezeBrokenAnnotation,
		v1alpha1.SettingsAlteredAnnotation, v1alpha1.AdmittedAnnotation, v1alpha1.ContentAnnotation, v1alpha1.OptedOutAnnotation,
		v1alpha1.HoldEndedAnnotation,
	}
}

// userAnnotations are the requests of users to the operator.
func userAnnotations() []string {
	return []string{v1alpha1.RollbackToAnnotation, v1alpha1.UnquarantineAnnotation, v1alpha1.BreakFreezeAnnotation}
}

// restoredLabels and restoredAnnotations are the operator's own on a workload: an update neither removes, changes nor
// adds them. They exclude SuspendLabel, whose removal is denied rather than undone, HeldAnnotation, which stays with
// the fields that it describes, and the labels and annotations of users: IgnoredSuspendLabel, the annotations of
// userAnnotations, and the settings.
func restoredLabels() []string {
	return []string{v1alpha1.VersionLabel, v1alpha1.DefenseStatusLabel}
}

const (
	// WorkloadLabel is a label of the workload.
	WorkloadLabel Target = iota
	// WorkloadAnnotation is an annotation of the workload.
	WorkloadAnnotation
	// TemplateLabel is a label of the pod template.
	TemplateLabel
	// WorkloadPaused is the halt of the rollout. It has no key. If removed, its value is the value of
	// HaltedFromAnnotation, else empty.
	WorkloadPaused
	// WorkloadPace is the pace that a hold changes. It has no key.
	WorkloadPace
)

// seenBefore returns the version that an earlier call for this request released; empty for none. Such a call leaves the
// marks of a release, which no client sends. A client that forges them only spoils the memory of its own workload.
func (r *Request) seenBefore() string {
	_, processed := r.New.Labels[v1alpha1.DefenseStatusLabel]
	seen := r.New.Labels[v1alpha1.VersionLabel]
	release := workload.NextRelease(workload.ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation]))
	if processed || seen == r.Old.Labels[v1alpha1.VersionLabel] ||
		!r.Unstamped && seen != r.New.TemplateLabels[v1alpha1.VersionLabel] ||
		workload.ParseRelease(r.New.Annotations[v1alpha1.ReleaseAnnotation]) != release ||
		r.New.Annotations[v1alpha1.ReleasedByAnnotation] != r.releaser() {
		return ""
	}
	return seen
}

// releaser returns the user of a request.
func (r *Request) releaser() string {
	return cmp.Or(wording.CutAtRune(r.User, workload.MaxUser), workload.UnknownUser)
}

// noteSeen adds the version that an earlier call for this request saw before another webhook changed the template: if a
// manifest is applied again, admission first sees that version.
func noteSeen(r *Request, want *Object) {
	seen := r.seenBefore()
	if seen == r.New.Version {
		// The earlier call saw this template, too, and may have recorded the version of the call before it.
		noted := defense.ParseAdmitted(r.New.Annotations[v1alpha1.AdmittedAnnotation])
		if len(noted) == 0 || noted[len(noted)-1].Stored != seen {
			return
		}
		seen = noted[len(noted)-1].Seen
	}
	if seen != "" {
		want.Annotations[v1alpha1.AdmittedAnnotation] =
			defense.ParseAdmitted(r.Old.Annotations[v1alpha1.AdmittedAnnotation]).With(seen, r.New.Version).String()
	}
}

// noteContent records from what the version of the new object was computed.
func noteContent(r *Request, want *Object) {
	if r.New.Content != nil && want.Labels[v1alpha1.VersionLabel] == r.New.Version {
		want.Annotations[v1alpha1.ContentAnnotation] = r.New.Content.String()
	}
}

// leadsTo returns the version that would be stored, as far as mutation knows.
func (r *Request) leadsTo() string {
	return defense.ParseAdmitted(r.Old.Annotations[v1alpha1.AdmittedAnnotation]).LeadsTo(r.New.Version)
}

// Releases reports whether a request is a release, as far as mutation knows: it changes the stored template. A template
// that led to the stored template leads there again.
//
// Only mutation calls it, before the API server drops fields. Validation compares the template as stored. So block and
// quarantine hold, even if a user changes the annotation or the template leads elsewhere this time.
func (r *Request) Releases() bool {
	return r.released() && (r.Own || r.leadsTo() != r.Old.Version)
}

// UnknownWords names unknown labels and annotations of the request, and unusable settings; none for the operator's own
// requests and for opted-out workloads.
func (r *Request) UnknownWords() []string {
	if r.Own || workload.OptedOut(r.New.Labels) {
		return nil
	}
	return slices.Concat(UnknownWords(r.New.Labels, r.New.Annotations), UnusableSettings(r.New.Annotations))
}

// IsChecked reports whether the checks of policies at the stage Admission count for a request: it is a release, and
// neither the operator's own nor an undo. Only validation calls it, with the template as stored.
func (r *Request) IsChecked() bool {
	if r.Own || workload.OptedOut(r.New.Labels) {
		return false
	}
	switch r.Operation {
	case Create:
		return true
	case Update:
		return r.released() && !r.wentBack()
	default:
		return false
	}
}
