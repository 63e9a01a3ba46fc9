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
	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// NeedsHold says that the answer to a request depends on whether the rollout is to be
// held: it is a release of a workload that can be, and that has pods to replace.
func (r *Request) NeedsHold() bool {
	return r.Operation == Update && !r.Own && r.New.Pacing != nil && r.New.Rolling && r.New.Replicas > 0 &&
		r.Old.Pacing != nil && r.Old.Replicas > 0 && !defense.OptedOut(r.New.Labels) && r.Releases()
}

// pace sets what a hold changes of the workload, and gives it back.
func (r *Request) pace(want *Object) {
	if r.New.Pacing == nil {
		delete(want.Annotations, v1alpha1.HeldAnnotation)
		return
	}
	pacing := *r.New.Pacing
	want.Pacing = &pacing
	if r.Operation == Create {
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
	case defense.OptedOut(r.New.Labels):
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
		want.Annotations[v1alpha1.HoldEndedAnnotation] = defense.HoldEnd{Release: held.Release, Reason: v1alpha1.ReasonHoldEdited, User: r.releaser()}.String()
	}
}

// paceOwn carries out what the operator's own write says of a hold. It changes only
// what it says: nobody else's server-side apply conflicts with the operator then, as
// the API server does not count what admission changes.
func (r *Request) paceOwn(want *Object, held *defense.Hold) {
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
func (r *Request) giveBack(want *Object, held *defense.Hold) {
	want.Pacing.Pace = held.Kept(r.New.Pace)
	if r.Own {
		want.Pacing.Pace = held.Fitting(want.Pacing.Pace)
	}
	delete(want.Annotations, v1alpha1.HeldAnnotation)
}

// paceRelease holds the rollout that the request begins, or gives back what the hold of
// the one before changed. What the request itself says of it is the user's own.
func (r *Request) paceRelease(want *Object, held *defense.Hold) {
	delete(want.Annotations, v1alpha1.HoldEndedAnnotation) // it was about the release before
	release := defense.NextRelease(defense.ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation]))
	own := r.New.Pace
	if own.ByPartition && r.New.Paused && !want.Paused {
		own.Partition = defense.HaltedPartition(r.Old.Annotations) // the operator had halted it
	}
	if now := own.HoldOf(r.New.Annotations); now != nil && now.Release == release && now.Set == own {
		own = now.Pace // an earlier call for this request said so
	} else if held != nil {
		own = held.Kept(own)
	}
	want.Pacing.Pace = own
	delete(want.Annotations, v1alpha1.HeldAnnotation)
	if !r.holds() || !own.Valid() {
		return
	}
	if hold := r.Hold.Begin(release, own, r.Hold.Until, r.Hold.AtMost, defense.Wave{Replicas: r.New.Replicas, Batch: r.Hold.Batch}); hold != nil {
		want.Pacing.Pace = hold.Set
		want.Annotations[v1alpha1.HeldAnnotation] = hold.String()
	}
}

// holds says that the rollout that a request begins is held. An undo has to be fast,
// so no version of the history is.
func (r *Request) holds() bool {
	return r.NeedsHold() && r.Hold != nil && r.Hold.Until.Holds() && r.Past != nil && !defense.Remembered(r.Past.History, r.leadsTo())
}

// reapplied says that a write brings what the hold changed to what it was before, as one
// that applies a manifest does, or to what the hold wanted before, as one that read the
// workload a moment ago.
func (r *Request) reapplied(held *defense.Hold) bool {
	return r.New.Pace != r.Old.Pace && held.Own(r.New.Pace)
}

// overridesHold reports whether the request ends a hold: it gives back what the hold changed,
// with an override that is set in it.
func (r *Request) overridesHold() bool {
	if r.New.Pacing == nil || r.Old.Pacing == nil || r.Old.ignoresSuspend() || r.Releases() {
		return false
	}
	held := r.New.HoldOf(r.Old.Annotations)
	return held != nil && !held.Over && r.reapplied(held) && r.New.Pace == held.Pace && r.hasOverride()
}
