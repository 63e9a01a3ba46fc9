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
	"strconv"
	"strings"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// String is the value of HoldEndedAnnotation.
func (e HoldEnd) String() string {
	return strings.TrimSpace(strconv.FormatInt(e.Release, 10) + " " + e.Reason + " " + e.User)
}

// ParseHoldEnd reads the value of HoldEndedAnnotation.
func ParseHoldEnd(value string) (HoldEnd, bool) {
	parts := append(strings.SplitN(value, " ", 3), "")
	if len(parts) < 3 {
		return HoldEnd{}, false
	}
	e := HoldEnd{Release: ParseRelease(parts[0]), Reason: parts[1], User: parts[2]}
	switch e.Reason { // of earlier builds
	case "Failed":
		e.Reason = v1alpha1.ReasonVerificationFailed
	case "Ended":
		e.Reason = v1alpha1.ReasonReleaseEnded
	}
	return e, e.Release > 0 && e.describe() != ""
}

// describe says why a hold ended; empty where that is not known.
func (e HoldEnd) describe() string {
	switch e.Reason {
	case v1alpha1.ReasonHoldVerified:
		return "the pods are verified"
	case v1alpha1.ReasonHoldRanOut:
		return "pods had no verdict in time, and silence does not fail"
	case v1alpha1.ReasonVerificationFailed:
		return "the release failed"
	case v1alpha1.ReasonHoldEdited:
		return cmp.Or(e.User, UnknownUser) + " set a field that the hold had changed"
	case v1alpha1.ReasonHoldStuck:
		return "a pod of an earlier version is not Ready"
	case v1alpha1.ReasonReleaseEnded:
		return "nothing of the release is left to wait for"
	default:
		return ""
	}
}

// NeedsHold says that the answer to a request depends on whether the rollout is to be
// held: it is a release of a workload that can be, and that has pods to replace.
func (r *AdmissionRequest) NeedsHold() bool {
	return r.Operation == AdmissionUpdate && !r.Own && r.New.Pacing != nil && r.New.Rolling && r.New.Replicas > 0 &&
		r.Old.Pacing != nil && r.Old.Replicas > 0 && !OptedOut(r.New.Labels) && r.Releases()
}

// pace sets what a hold changes of the workload, and gives it back.
func (r *AdmissionRequest) pace(want *AdmissionObject) {
	if r.New.Pacing == nil {
		delete(want.Annotations, v1alpha1.HeldAnnotation)
		return
	}
	pacing := *r.New.Pacing
	want.Pacing = &pacing
	if r.Operation == AdmissionCreate {
		// A manifest that was read from a workload that is held.
		if h := pacing.HoldOf(r.New.Annotations); h != nil {
			pacing.Pace = h.Kept(pacing.Pace)
		}
		delete(want.Annotations, v1alpha1.HeldAnnotation)
		return
	}
	held := pacing.HoldOf(r.Old.Annotations)
	switch {
	case r.Own:
		r.paceOwn(want, held)
	case OptedOut(r.New.Labels):
		if held != nil {
			r.giveBack(want, held)
		}
	case r.Releases():
		r.paceRelease(want, held)
	case held == nil:
		delete(want.Annotations, v1alpha1.HeldAnnotation)
	case held.Over, r.New.ObservingOwner() != "":
		r.giveBack(want, held) // its owner's write is not undone
	case r.New.Pace == r.Old.Pace:
		want.Annotations[v1alpha1.HeldAnnotation] = r.Old.Annotations[v1alpha1.HeldAnnotation]
	case r.reapplied(held) && !r.overridesHold():
		pacing.Pace = r.Old.Pace
		want.Annotations[v1alpha1.HeldAnnotation] = r.Old.Annotations[v1alpha1.HeldAnnotation]
	default:
		r.giveBack(want, held)
		want.Annotations[v1alpha1.HoldEndedAnnotation] = HoldEnd{Release: held.Release, Reason: v1alpha1.ReasonHoldEdited, User: r.releaser()}.String()
	}
}

// paceOwn carries out what the operator's own write says of a hold. It changes only
// what it says: nobody else's server-side apply conflicts with the operator then, as
// the API server does not count what admission changes.
func (r *AdmissionRequest) paceOwn(want *AdmissionObject, held *Hold) {
	now := r.New.HoldOf(r.New.Annotations)
	switch {
	case now != nil && now.Over:
		r.giveBack(want, now)
	case r.released() && held != nil && now != nil:
		r.giveBack(want, held) // its rollback
	case now != nil && now.Own(r.New.Pace):
		want.Pacing.Pace = now.Set
	}
}

// giveBack gives back what the hold changed, and nobody else since. What a user asks for
// and the API server does not take, it refuses.
func (r *AdmissionRequest) giveBack(want *AdmissionObject, held *Hold) {
	want.Pacing.Pace = held.Kept(r.New.Pace)
	if r.Own {
		want.Pacing.Pace = held.Fitting(want.Pacing.Pace)
	}
	delete(want.Annotations, v1alpha1.HeldAnnotation)
}

// paceRelease holds the rollout that the request begins, or gives back what the hold of
// the one before changed. What the request itself says of it is the user's own.
func (r *AdmissionRequest) paceRelease(want *AdmissionObject, held *Hold) {
	delete(want.Annotations, v1alpha1.HoldEndedAnnotation) // it was about the release before
	release := NextRelease(ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation]))
	own := r.New.Pace
	if own.ByPartition && r.New.Paused && !want.Paused {
		own.Partition = HaltedPartition(r.Old.Annotations) // the operator had halted it
	}
	if now := own.HoldOf(r.New.Annotations); now != nil && now.Release == release && now.Set == own {
		own = now.Pace // an earlier call for this request said so
	} else if held != nil {
		own = held.Kept(own)
	}
	want.Pacing.Pace = own
	delete(want.Annotations, v1alpha1.HeldAnnotation)
	if !r.holds() || !own.valid() {
		return
	}
	if hold := r.Hold.Begin(release, own, r.Hold.Until, r.Hold.AtMost, Wave{r.New.Replicas, r.Hold.Batch}); hold != nil {
		want.Pacing.Pace = hold.Set
		want.Annotations[v1alpha1.HeldAnnotation] = hold.String()
	}
}

// holds says that the rollout that a request begins is held. An undo has to be fast,
// so no version of the history is.
func (r *AdmissionRequest) holds() bool {
	return r.NeedsHold() && r.Hold != nil && r.Hold.Until.Holds() && r.Past != nil && !remembered(r.Past.History, r.leadsTo())
}

// reapplied says that a write brings what the hold changed to what it was before, as one
// that applies a manifest does, or to what the hold wanted before, as one that read the
// workload a moment ago.
func (r *AdmissionRequest) reapplied(held *Hold) bool {
	return r.New.Pace != r.Old.Pace && held.Own(r.New.Pace)
}

// overridesHold reports whether the request ends a hold: it gives back what the hold changed,
// with an override that is set in it.
func (r *AdmissionRequest) overridesHold() bool {
	if r.New.Pacing == nil || r.Old.Pacing == nil || r.Old.ignoresSuspend() || r.Releases() {
		return false
	}
	held := r.New.HoldOf(r.Old.Annotations)
	return held != nil && !held.Over && r.reapplied(held) && r.New.Pace == held.Pace && r.hasOverride()
}
