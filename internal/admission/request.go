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

// Operation is what a request does to a workload.
type Operation string

const (
	// Create creates a workload.
	Create Operation = "CREATE"
	// Update changes a workload.
	Update Operation = "UPDATE"
)

// Object is what admission looks at in a workload. All maps may be
// nil.
type Object struct {
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
	Words           workload.Words
	// Pacing is nil of a kind whose rollouts cannot be held.
	*workload.Pacing
}

// ObservingOwner is the owner because of which a workload is in observe mode.
func (o *Object) ObservingOwner() string { return workload.ObservingOwner(o.Owner, o.Labels) }

// Request is one request to write a workload. Its methods are questions about it; what admission changes is decided by functions.
type Request struct {
	Operation Operation
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
	Old, New Object
	// Past is nil when it is not known, or not needed: see NeedsPast.
	Past *rollback.Past
	// Hold is nil when it is not known whether a rollout is to be held, or not needed:
	// see NeedsHold.
	Hold *WantedHold
}

// ObservingOwner is the owner because of which nothing is denied to a request. A request that
// gives a workload an owner, or takes away the label that defends it, is judged as before it.
func (r *Request) ObservingOwner() string {
	if r.Operation == Update && r.Old.ObservingOwner() == "" {
		return ""
	}
	return r.New.ObservingOwner()
}

// Target is the part of a workload that a change is about.
type Target int

// Change sets or removes one key of a workload.
type Change struct {
	Target Target
	Key    string
	// Value is empty when a key is removed.
	Value  string
	Remove bool
	// Pace is that of WorkloadPace.
	Pace workload.Pace
}

// Verdict is the answer to a request.
type Verdict struct {
	Allowed bool
	// Message says in one line why a request is denied, and what its user can do.
	Message string
	// Warning says of a request that is allowed why it would have been denied.
	Warning string
}

// WantedHold is what settings and policies say of the rollouts of a workload.
type WantedHold struct {
	Until  v1alpha1.HoldUntil
	AtMost time.Duration
	// Batch is how many pods a batch takes.
	Batch int32
	hold.Times
}

// NeedsOverride says that a release passes only by an override, or as an undo:
// the workload is blocked, or this version of it was rolled back.
func (r *Request) NeedsOverride() bool { return r.Old.suspended() || r.quarantined() }

// released says that the request changes the pod template, the version label
// aside, as far as it is seen now: see Releases.
func (r *Request) released() bool {
	return r.Old.Version != r.New.Version
}

// templateTouched says that the request changes the pod template in any way:
// where mutation failed, a change of the version label restarts pods, too.
func (r *Request) templateTouched() bool {
	return r.released() || differs(r.Old.TemplateLabels, r.New.TemplateLabels, v1alpha1.VersionLabel)
}

// touches reports whether the request changes the pod template or the block.
func (r *Request) touches() bool { return r.templateTouched() || r.suspendTouched() }

// suspendTouched says that the request loses or changes the block.
func (r *Request) suspendTouched() bool {
	return r.Old.suspended() && differs(r.Old.Labels, r.New.Labels, v1alpha1.SuspendLabel)
}

// quarantined says that the request releases a version that was rolled back.
func (r *Request) quarantined() bool {
	return r.released() && rollback.ParseQuarantine(r.Old.Annotations, r.Now).Holds(r.New.Version)
}

// rollsBack says that the request is the operator's rollback.
func (r *Request) rollsBack() bool {
	// A version that was rolled back before changes only the reasons.
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
	// Mutation, earlier in this very request, used the label up. An override
	// of an earlier request names an older resource version.
	o, ok := record.ParseOverride(r.New.Annotations[v1alpha1.OverrideAnnotation])
	return ok && o.ResourceVersion == r.Old.ResourceVersion
}

// staleOverride says that the label was there before the block, the rollback or the halt,
// and so was not meant for it.
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

// cloned is maps.Clone that can be written to when there is nothing to clone.
func cloned(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return maps.Clone(m)
}

// haltedBy is the version because of which the operator paused the workload.
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
		v1alpha1.UnquarantinedAnnotation,
		v1alpha1.SettingsAlteredAnnotation, v1alpha1.AdmittedAnnotation, v1alpha1.OptedOutAnnotation, v1alpha1.HoldEndedAnnotation,
	}
}

// restoredLabels and restoredAnnotations are the operator's own on a workload:
// an update neither loses, changes nor adds them. Not among them are
// SuspendLabel, whose loss is denied rather than undone, HeldAnnotation, which goes with
// what it describes, and what users set: IgnoredSuspendLabel, RollbackToAnnotation, UnquarantineAnnotation and the
// settings.
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
	// WorkloadPaused is what halts the rollout. It has no key. Removed, the value is that
	// of HaltedFromAnnotation; else it is what the operator halts by, and empty.
	WorkloadPaused
	// WorkloadPace is what a hold changes. It has no key.
	WorkloadPace
)

// seenBefore is the version that an earlier call for this request saw and released;
// empty where there was none. It left the marks of a release, which no client sends.
// One that forges them only spoils what is remembered of its own workload.
func (r *Request) seenBefore() string {
	_, processed := r.New.Labels[v1alpha1.DefenseStatusLabel]
	seen := r.New.Labels[v1alpha1.VersionLabel]
	release := workload.NextRelease(workload.ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation]))
	if processed || seen == r.Old.Labels[v1alpha1.VersionLabel] || !r.Unstamped && seen != r.New.TemplateLabels[v1alpha1.VersionLabel] ||
		workload.ParseRelease(r.New.Annotations[v1alpha1.ReleaseAnnotation]) != release || r.New.Annotations[v1alpha1.ReleasedByAnnotation] != r.releaser() {
		return ""
	}
	return seen
}

// releaser names the user of a request.
func (r *Request) releaser() string {
	return cmp.Or(wording.CutAtRune(r.User, workload.MaxUser), workload.UnknownUser)
}

// noteSeen adds what an earlier call for this request saw, before another webhook
// changed it: applied again, the template is first that one.
func noteSeen(r *Request, want *Object) {
	seen := r.seenBefore()
	if seen == r.New.Version {
		// That call saw this template, too, and maybe noted what one before it saw.
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

// leadsTo is the version that would be stored, as far as mutation can tell.
func (r *Request) leadsTo() string {
	return defense.ParseAdmitted(r.Old.Annotations[v1alpha1.AdmittedAnnotation]).LeadsTo(r.New.Version)
}

// Releases says that a request is a release, as far as mutation can tell: it changes
// what is stored of the template. A template that led to the one that is stored
// leads there again.
//
// Only mutation asks this, before the API server drops anything. Validation sees what
// would be stored, and compares that. So whatever somebody made of the annotation,
// and whatever becomes of a template this time, block and quarantine hold.
func (r *Request) Releases() bool {
	return r.released() && (r.Own || r.leadsTo() != r.Old.Version)
}

// UnknownWords names what the request says that the operator does not know, and settings
// that cannot be used. The operator's own requests, and what is opted out, say nothing.
func (r *Request) UnknownWords() []string {
	if r.Own || workload.OptedOut(r.New.Labels) {
		return nil
	}
	return slices.Concat(UnknownWords(r.New.Labels, r.New.Annotations), UnusableSettings(r.New.Annotations))
}

// IsChecked says that the checks of policies at the stage Admission count for a
// request: it releases something, and is neither the operator's own nor an undo.
// Only validation asks this: it looks at what would be stored.
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
