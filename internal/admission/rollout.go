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
	"fmt"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/hold"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// The halt of a workload and the hold of its rollout, in requests of users: a manifest that is applied again leaves
// them, and a user resumes by an override, by another release or by a value of the user's own.

// NeedsHold reports whether the answer to a request depends on whether the rollout is to be held: it releases a
// workload of a kind that can be held, and it has pods to replace. The status, which has the number of pods of a
// DaemonSet, may be missing in the request.
func (r *Request) NeedsHold() bool {
	return r.Operation == Update && !r.Own && r.New.Pacing != nil && r.New.Rolling && (r.New.Replicas > 0 || r.New.ByEviction) &&
		r.Old.Pacing != nil && r.Old.Replicas > 0 && !workload.OptedOut(r.New.Labels) && r.Releases()
}

// pace sets or restores the fields that a hold changes.
func pace(r *Request, want *Object) {
	if r.New.Pacing == nil {
		delete(want.Annotations, v1alpha1.HeldAnnotation)
		return
	}
	pacing := *r.New.Pacing
	want.Pacing = &pacing
	if r.Operation == Create {
		// The manifest was copied from a held workload.
		if h := pacing.HoldOf(r.New.Annotations); h != nil {
			pacing.Pace = h.Kept(pacing.Pace)
		}
		delete(want.Annotations, v1alpha1.HeldAnnotation)
		return
	}
	held := pacing.HoldOf(r.Old.Annotations)
	switch {
	case r.Own:
		paceOwn(r, want, held)
	case workload.OptedOut(r.New.Labels):
		if held != nil {
			giveBack(r, want, held)
		}
	case r.Releases():
		paceRelease(r, want, held)
	case held == nil:
		delete(want.Annotations, v1alpha1.HeldAnnotation)
	case held.Over, r.New.ObservingOwner() != "":
		giveBack(r, want, held) // a write of its owner is not undone
	case r.New.Pace == r.Old.Pace:
		want.Annotations[v1alpha1.HeldAnnotation] = r.Old.Annotations[v1alpha1.HeldAnnotation]
	case r.reapplied(held) && !r.overridesHold():
		pacing.Pace = r.Old.Pace
		want.Annotations[v1alpha1.HeldAnnotation] = r.Old.Annotations[v1alpha1.HeldAnnotation]
	default:
		giveBack(r, want, held)
		end := workload.HoldEnd{Release: held.Release, Reason: v1alpha1.ReasonHoldEdited, User: r.releaser()}
		want.Annotations[v1alpha1.HoldEndedAnnotation] = end.String()
	}
}

// paceOwn carries out the hold of the operator's own write. It changes only the fields of the hold: the API server does
// not count changes of admission, so no server-side apply of others conflicts with the operator.
func paceOwn(r *Request, want *Object, held *workload.Hold) {
	now := r.New.HoldOf(r.New.Annotations)
	switch {
	case now != nil && now.Over:
		giveBack(r, want, now)
	case r.released() && held != nil && now != nil:
		giveBack(r, want, held) // the operator's rollback
	case now != nil && now.Own(r.New.Pace):
		want.Pacing.Pace = now.Set
	}
}

// giveBack restores the fields that the hold changed, unless others changed them since. If the API server rejects a
// user's value, the request fails.
func giveBack(r *Request, want *Object, held *workload.Hold) {
	want.Pacing.Pace = held.Kept(r.New.Pace)
	if r.Own {
		want.Pacing.Pace = held.Fitting(want.Pacing.Pace)
	}
	delete(want.Annotations, v1alpha1.HeldAnnotation)
}

// paceRelease holds the rollout that the request begins, or restores the fields that the hold of the last release
// changed. Values in the request itself are the user's own.
func paceRelease(r *Request, want *Object, held *workload.Hold) {
	delete(want.Annotations, v1alpha1.HoldEndedAnnotation) // it was about the release before
	release := workload.NextRelease(workload.ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation]))
	own := r.New.Pace
	if r.New.Paused && !want.Paused {
		own = own.Resumed(r.Old.Annotations) // the operator had halted it
	}
	if now := own.HoldOf(r.New.Annotations); now != nil && now.Release == release && now.Set == own {
		own = now.Pace // set by an earlier call for this request
	} else if held != nil {
		own = held.Kept(own)
	}
	want.Pacing.Pace = own
	delete(want.Annotations, v1alpha1.HeldAnnotation)
	if !r.holds() || !own.Valid() {
		return
	}
	if hold := r.Hold.Begin(release, own, r.Hold.Until, r.Hold.AtMost, hold.Wave{Replicas: r.New.Replicas, Batch: r.Hold.Batch}); hold != nil {
		want.Pacing.Pace = hold.Set
		want.Annotations[v1alpha1.HeldAnnotation] = hold.String()
		if hold.ByEviction {
			want.Paused = r.New.Paused // a halt has the same value
		}
	}
}

// holds reports whether the rollout that a request begins is held. An undo has to be fast, so no version of the history
// is held.
func (r *Request) holds() bool {
	return r.NeedsHold() && r.Hold != nil && r.Hold.Until.Holds() && r.Past != nil && !rollback.Remembered(r.Past.History, r.leadsTo())
}

// reapplied reports whether a write sets the fields of the hold to the user's values, as a manifest does, or to earlier
// values of the hold, as a client with an old view of the workload does.
func (r *Request) reapplied(held *workload.Hold) bool {
	return r.New.Pace != r.Old.Pace && held.Own(r.New.Pace)
}

// overridesHold reports whether the request ends a hold: it restores the fields of the hold, with an override in the
// same request.
func (r *Request) overridesHold() bool {
	if r.New.Pacing == nil || r.Old.Pacing == nil || r.Old.ignoresSuspend() || r.Releases() {
		return false
	}
	held := r.New.HoldOf(r.Old.Annotations)
	return held != nil && !held.Over && r.reapplied(held) && r.New.Pace == held.Pace && r.hasOverride()
}

// halted reports whether the stored workload is halted by the operator.
func (r *Request) halted() bool {
	return r.Old.Paused && r.Old.Annotations[v1alpha1.HaltedAnnotation] != ""
}

// halts reports whether the request halts the workload.
func (r *Request) halts() bool {
	return r.Old.Annotations[v1alpha1.HaltedAnnotation] == "" && r.New.Annotations[v1alpha1.HaltedAnnotation] != ""
}

// takeBackPause resumes the operator's pause of an earlier version when a version that is not blocked is released. It
// removes the annotation of the halt when any user resumes the workload: a later pause is not the operator's. A pause
// in this request is the client's own. A halt that cannot be undone stays, with its annotations.
func takeBackPause(r *Request, want *Object) {
	if _, halted := r.Old.Annotations[v1alpha1.HaltedAnnotation]; !halted || r.Old.Stays != "" && r.New.Paused {
		return
	}
	_, back := r.undo()
	switch {
	case r.Old.Paused && r.Releases() && (back || r.overrides() || !r.Old.suspended()):
		want.Paused = false
	case r.reappliesHalted() && !r.hasOverride():
		want.Paused = true
	}
	if !r.Old.Paused || !want.Paused {
		delete(want.Annotations, v1alpha1.HaltedAnnotation)
		delete(want.Annotations, v1alpha1.HaltedFromAnnotation)
	}
}

// reappliesHalted reports whether the request sets the values from before the halt, as a manifest does. A kind with a
// pause has a command to resume, and few manifests have the field.
func (r *Request) reappliesHalted() bool {
	if !r.halted() || r.New.Paused || r.New.Unknown || r.Old.Words.HaltedBy == "" || r.New.ObservingOwner() != "" {
		return false
	}
	return r.New.Pacing == nil || r.New.Partition == workload.HaltedPartition(r.Old.Annotations)
}

// overridesHalt reports whether the request resumes the workload by an override.
func (r *Request) overridesHalt() bool { return r.reappliesHalted() && r.hasOverride() }

// haltChanges returns the changes of the halt.
func haltChanges(r *Request, want *Object) []Change {
	if r.New.Paused == want.Paused {
		return nil
	}
	if want.Paused {
		return []Change{{Target: WorkloadPaused}}
	}
	haltedAs := r.Old.Annotations
	if r.Operation == Create {
		haltedAs = r.New.Annotations
	}
	return []Change{{Target: WorkloadPaused, Remove: true, Value: haltedAs[v1alpha1.HaltedFromAnnotation]}}
}

// PutBack returns the warning of a request whose values for fields of a halt or a hold these changes revert; empty for
// none.
func (r *Request) PutBack(changes []Change) string {
	if r.Own || r.Operation != Update || r.Releases() {
		return ""
	}
	for _, c := range changes {
		what := ""
		switch {
		case c.Target == WorkloadPaused && !c.Remove:
			failed := r.Old.Annotations[v1alpha1.HaltedAnnotation]
			what = fmt.Sprintf("the rollout stays halted%s, because version %s failed", r.Old.Words.Means(), failed)
		case c.Target == WorkloadPace && c.Pace == r.Old.Pace:
			what = "the rollout stays held, until its pods are verified"
		default:
			continue
		}
		return fmt.Sprintf("%s: the value in this request is an earlier one; to resume: %s",
			what, wording.Kubectl("altershield resume "+wording.ShellWord(r.Kind+"/"+r.Name), r.Namespace))
	}
	return ""
}
