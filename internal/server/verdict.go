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

// maxUnclaimed bounds the verdicts whose entries are not known yet.
const maxUnclaimed = 50

// Delivered is a verdict that the server delivered.
type Delivered struct {
	// OrderID is our id of the order.
	OrderID string
	// OfOrder: it is about the order itself, not about a batch.
	OfOrder          bool
	NodeID           string
	Stage            v1alpha1.CheckStage
	Verdict, Message string
	// LatePre: it fails because of a PRE check that was let pass before.
	LatePre bool
}

func (d Delivered) verdict(now time.Time) v1alpha1.CheckVerdict {
	v := v1alpha1.CheckVerdict{
		NodeID: d.NodeID, Verdict: d.Verdict, Delivered: d.Verdict, Message: d.Message, LatePre: d.LatePre,
		Time: times.Format(now), TimeUnix: now.Unix(),
	}
	if d.LatePre {
		v.Message = record.LatePreFailure + ": " + cmp.Or(d.Message, record.NoReason)
	}
	return v
}

// Placement is the result of placing a verdict.
type Placement string

const (
	// PlacementStored means that the status changed.
	PlacementStored Placement = "Stored"
	// PlacementKnown means that the status has this verdict, or one at least as bad.
	PlacementKnown Placement = "Known"
	// PlacementLate means that the verdict no longer counts.
	PlacementLate Placement = "Late"
	// PlacementElsewhere means that the verdict is not about this object.
	PlacementElsewhere Placement = "Elsewhere"
	// PlacementGone means that the object no longer exists.
	PlacementGone Placement = "Gone"
	// PlacementFull means that the status has no room for the verdict.
	PlacementFull Placement = "Full"
)

// PlaceOnBatch writes a verdict on an entry into the status of its batch.
func PlaceOnBatch(s *v1alpha1.ChangePodStatus, d Delivered, now time.Time) Placement {
	if s.ChangePodID == "" || s.ChangePodID != d.NodeID || s.OrderID != d.OrderID {
		return PlacementElsewhere
	}
	return place(&s.PreVerdict, &s.PostVerdict, preIsLate(s), d, now)
}

// ApplyToBatch places a verdict with [PlaceOnBatch], and decides about the batch, so that one write
// has both. A decision with events is left to the reconciler.
func ApplyToBatch(in BatchInput, d Delivered) (Placement, *v1alpha1.ChangePodStatus) {
	batch := in.Batch.DeepCopy()
	placement := PlaceOnBatch(&batch.Status, d, in.Now)
	if placement != PlacementStored {
		return placement, nil
	}
	in.Batch = batch
	if in.Change == nil || in.Change.Status.OrderID != d.OrderID || !record.OrderIsOpen(&in.Change.Status) {
		// The cache of the release is behind.
		return placement, &batch.Status
	}
	if plan := DecideBatch(in); plan.Status != nil && len(plan.Events) == 0 {
		return placement, plan.Status
	}
	return placement, &batch.Status
}

// ApplyToRelease places a verdict with [PlaceOnRelease], and decides about the order.
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

// preIsLate reports whether the end of a batch was notified.
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

// AwaitsOnBatch reports whether the call that caused a verdict is in the status, so that no other
// write about it is pending.
func AwaitsOnBatch(s *v1alpha1.ChangePodStatus, d Delivered) bool {
	switch s.Status {
	case v1alpha1.ChangePodPreSubmitted, v1alpha1.ChangePodPostWait:
		return d.Stage == v1alpha1.StagePre
	default:
		return s.ChangePodID != ""
	}
}

// AwaitsOnRelease reports the same for a verdict on an order.
func AwaitsOnRelease(s *v1alpha1.ChangeWorkloadStatus, d Delivered) bool {
	switch s.OrderStage {
	case v1alpha1.OrderPreSubmitted, v1alpha1.OrderPostWait:
		return d.OfOrder && d.Stage == v1alpha1.StagePre && s.OrderNodeID != ""
	default:
		return d.OfOrder && s.OrderNodeID != ""
	}
}

// PlaceOnRelease writes a verdict on an entry into the status of the release of its order: as a
// verdict on the order itself, or among the verdicts whose entries are not known yet.
func PlaceOnRelease(s *v1alpha1.ChangeWorkloadStatus, d Delivered, now time.Time) Placement {
	if s.OrderID != d.OrderID {
		return PlacementElsewhere
	}
	// The verdict may be on another entry of the order, if its start was repeated although the
	// server had received it.
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
		// Drop a passing verdict: no verdict has the same effect.
		i := slices.IndexFunc(s.UnclaimedVerdicts, func(u v1alpha1.UnclaimedVerdict) bool { return !record.VerdictFails(u.Verdict) })
		if i < 0 {
			return PlacementFull
		}
		s.UnclaimedVerdicts = slices.Delete(s.UnclaimedVerdicts, i, i+1)
	}
	s.UnclaimedVerdicts = append(s.UnclaimedVerdicts,
		v1alpha1.UnclaimedVerdict{CheckVerdict: d.verdict(now), Stage: d.Stage, OfOrder: d.OfOrder})
	return PlacementStored
}

// place stores a verdict on one of the checks of an entry. preIsLate: the end of the entry was notified; from
// then on the server always says that its PRE check passed.
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
