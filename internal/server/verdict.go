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

package server

import (
	"cmp"
	"slices"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/times"
)

// maxUnclaimed bounds the verdicts that wait for their entries to be known.
const maxUnclaimed = 50

// Delivered is a verdict the server delivered.
type Delivered struct {
	// OrderID is our id of the order.
	OrderID string
	// OfOrder: it is on the order itself, not on a batch of it.
	OfOrder          bool
	NodeID           string
	Stage            v1alpha1.CheckStage
	Verdict, Message string
	// LatePre: it fails because the PRE check did, which had been let pass.
	LatePre bool
}

func (d Delivered) verdict(now time.Time) v1alpha1.CheckVerdict {
	v := v1alpha1.CheckVerdict{
		NodeID: d.NodeID, Verdict: d.Verdict, Delivered: d.Verdict, Message: d.Message, LatePre: d.LatePre, Time: times.Format(now), TimeUnix: now.Unix(),
	}
	if d.LatePre {
		v.Message = record.LatePreFailure + ": " + cmp.Or(d.Message, record.NoReason)
	}
	return v
}

// Placement is what became of a verdict.
type Placement string

const (
	// PlacementStored means that it was not there before.
	PlacementStored Placement = "Stored"
	// PlacementKnown means that it was there, or one at least as grave.
	PlacementKnown Placement = "Known"
	// PlacementLate means that it is of no use any more.
	PlacementLate Placement = "Late"
	// PlacementElsewhere means that it is not about this object.
	PlacementElsewhere Placement = "Elsewhere"
	// PlacementGone means that the object is not there any more.
	PlacementGone Placement = "Gone"
	// PlacementFull means that no more verdicts can wait here.
	PlacementFull Placement = "Full"
)

// PlaceOnBatch puts a verdict on an entry of the server into the status of the
// batch that entry is.
func PlaceOnBatch(s *v1alpha1.ChangePodStatus, d Delivered, now time.Time) Placement {
	if s.ChangePodID == "" || s.ChangePodID != d.NodeID || s.OrderID != d.OrderID {
		return PlacementElsewhere
	}
	return place(&s.PreVerdict, &s.PostVerdict, preIsLate(s), d, now)
}

// ApplyToBatch is [PlaceOnBatch] that also says what becomes of the batch, so
// that one write does both. Events are left to the next decision of the
// reconciler.
func ApplyToBatch(in BatchInput, d Delivered) (Placement, *v1alpha1.ChangePodStatus) {
	batch := in.Batch.DeepCopy()
	placement := PlaceOnBatch(&batch.Status, d, in.Now)
	if placement != PlacementStored {
		return placement, nil
	}
	in.Batch = batch
	if in.Change == nil || in.Change.Status.OrderID != d.OrderID || !record.OrderIsOpen(&in.Change.Status) {
		// An old view of the release.
		return placement, &batch.Status
	}
	if plan := DecideBatch(in); plan.Status != nil && len(plan.Events) == 0 {
		return placement, plan.Status
	}
	return placement, &batch.Status
}

// ApplyToRelease is [PlaceOnRelease] that also says what becomes of the order.
func ApplyToRelease(in OrderInput, d Delivered) (Placement, *v1alpha1.ChangeWorkloadStatus) {
	change := in.Change.DeepCopy()
	placement := PlaceOnRelease(&change.Status, d, in.Now)
	if placement != PlacementStored {
		return placement, nil
	}
	in.Change = change
	if plan := DecideOrder(in); plan.Status != nil && len(plan.Events) == 0 {
		return placement, plan.Status
	}
	return placement, &change.Status
}

// preIsLate says that the end of a batch was submitted.
func preIsLate(s *v1alpha1.ChangePodStatus) bool {
	switch s.Status {
	case v1alpha1.ChangePodPostSubmitted, v1alpha1.ChangePodPostFinish:
		return true
	case v1alpha1.ChangePodExecuteDone:
		return s.PostSubmitTimeUnix != 0
	default:
		return false
	}
}

// AwaitsOnBatch says that the submission that caused a verdict is recorded, so
// that nothing else is about to be written because of it.
func AwaitsOnBatch(s *v1alpha1.ChangePodStatus, d Delivered) bool {
	switch s.Status {
	case v1alpha1.ChangePodPreSubmitted, v1alpha1.ChangePodPostWait:
		return d.Stage == v1alpha1.StagePre
	default:
		return s.ChangePodID != ""
	}
}

// AwaitsOnRelease says the same of a verdict on an order.
func AwaitsOnRelease(s *v1alpha1.ChangeWorkloadStatus, d Delivered) bool {
	switch s.OrderStage {
	case v1alpha1.OrderPreSubmitted, v1alpha1.OrderPostWait:
		return d.OfOrder && d.Stage == v1alpha1.StagePre && s.OrderNodeID != ""
	default:
		return d.OfOrder && s.OrderNodeID != ""
	}
}

// PlaceOnRelease puts a verdict on an entry of the server into the status of the
// release whose order has it: on the order itself, or among those that wait for
// their entry to be known.
func PlaceOnRelease(s *v1alpha1.ChangeWorkloadStatus, d Delivered, now time.Time) Placement {
	if s.OrderID != d.OrderID {
		return PlacementElsewhere
	}
	// Also one on another entry of the order: its start was repeated when nobody
	// knew that it had been received.
	if s.OrderNodeID != "" && (s.OrderNodeID == d.NodeID || d.OfOrder) {
		return place(&s.OrderPreVerdict, &s.OrderPostVerdict, record.OrderPreIsLate(s.OrderStage), d, now)
	}
	if n := record.FoldedEntry(s, d.NodeID); n != nil {
		if !record.VerdictFails(d.Verdict) || n.Verdict != "" {
			return PlacementKnown
		}
		n.Verdict = d.Verdict
		return PlacementStored
	}
	for i := range s.UnclaimedVerdicts {
		if u := &s.UnclaimedVerdicts[i]; u.NodeID == d.NodeID && u.Stage == d.Stage {
			if !record.IsWorse(&u.CheckVerdict, d.verdict(now)) {
				return PlacementKnown
			}
			u.CheckVerdict = d.verdict(now)
			return PlacementStored
		}
	}
	if len(s.UnclaimedVerdicts) >= maxUnclaimed {
		// One that passes makes room: it says no more than no verdict does.
		i := slices.IndexFunc(s.UnclaimedVerdicts, func(u v1alpha1.UnclaimedVerdict) bool { return !record.VerdictFails(u.Verdict) })
		if i < 0 {
			return PlacementFull
		}
		s.UnclaimedVerdicts = slices.Delete(s.UnclaimedVerdicts, i, i+1)
	}
	s.UnclaimedVerdicts = append(s.UnclaimedVerdicts, v1alpha1.UnclaimedVerdict{CheckVerdict: d.verdict(now), Stage: d.Stage, OfOrder: d.OfOrder})
	return PlacementStored
}

// place stores a verdict on one of the checks of an entry. preIsLate: its end was submitted, from when on the
// server always says that its PRE check passed.
func place(pre, post **v1alpha1.CheckVerdict, preIsLate bool, d Delivered, now time.Time) Placement {
	into := post
	if d.Stage == v1alpha1.StagePre {
		into = pre
	}
	v := d.verdict(now)
	switch {
	case d.Stage == v1alpha1.StagePre && preIsLate && !record.VerdictFails(d.Verdict):
		return PlacementLate
	case !record.IsWorse(*into, v):
		return PlacementKnown
	default:
		*into = &v
		return PlacementStored
	}
}
