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
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// followOrder moves a release that waits for the acceptance of its order.
func followOrder(d *release) {
	s := d.status
	if !record.IsOpen(s.Status) {
		return
	}
	waits := s.Status == v1alpha1.ChangeWorkloadInit
	switch {
	case s.OrderStage == v1alpha1.OrderRefused:
		record.CancelChecks(d.status, d.Now)
		d.enter(v1alpha1.ChangeWorkloadFailed, corev1.EventTypeWarning, v1alpha1.EventReleaseUnverified,
			"the order was refused: "+record.StepMessage(s, v1alpha1.StepAccepted))
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonRefused, "")
	case !waits:
	case failedOrder(d.status, d.Batches) != nil:
		// judge suspends it. If only a check of a policy failed, the order keeps its time: a batch that is created
		// before the order is accepted would be verified without it.
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeNormal, "", "")
	case record.OrderIsOpen(s):
		// An older build wrote the stage without the state.
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeNormal, "", "")
	case d.Cluster == "":
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeWarning, v1alpha1.EventReleaseUnverified,
			"no server is configured now; the release continues without its checks")
	}
	if waits && s.Status == v1alpha1.ChangeWorkloadRunning {
		// The wait for a full batch begins now.
		s.EntryTime, s.EntryTimeUnix = times.Format(d.Now), d.Now.Unix()
	}
}

// orderPreOver reports whether the order allows batches: its PRE check is over, or it has none.
func orderPreOver(s *v1alpha1.ChangeWorkloadStatus, cluster types.UID) bool {
	switch s.OrderStage {
	case v1alpha1.OrderPreWait, v1alpha1.OrderPreSubmitted:
		return cluster == ""
	default:
		return true
	}
}

// orderPostOver reports whether the order allows Success.
func orderPostOver(s *v1alpha1.ChangeWorkloadStatus, cluster types.UID) bool {
	return !record.OrderIsOpen(s) || s.OrderStage == v1alpha1.OrderPostFinish || cluster == ""
}

// preOver reports whether batches may be created: the PRE check of the order and the checks at the begin of the release
// are over.
func preOver(s *v1alpha1.ChangeWorkloadStatus, cluster types.UID) bool {
	return orderPreOver(s, cluster) && record.WaitsForCheck(s, v1alpha1.StageReleasePre) == nil
}

// postOver reports whether the POST check of the order and the checks after all pods allow Success.
func postOver(s *v1alpha1.ChangeWorkloadStatus, cluster types.UID) bool {
	return orderPostOver(s, cluster) && record.WaitsForCheck(s, v1alpha1.StageReleasePost) == nil
}

// awaitOrderPost asks for the POST check of the order after its PRE check.
func awaitOrderPost(s *v1alpha1.ChangeWorkloadStatus, now time.Time) {
	if s.OrderPostDueTimeUnix == 0 && s.OrderStage == v1alpha1.OrderPostWait {
		s.OrderPostDueTimeUnix = now.Unix()
	}
}

func endOrder(s *v1alpha1.ChangeWorkloadStatus, now time.Time, how v1alpha1.FinishState) {
	if record.OrderIsOpen(s) && s.OrderEnd == "" {
		s.OrderEnd, s.OrderEndDueTimeUnix = how, now.Unix()
	}
}

// endBefore ends the order of an attempt before the next attempt begins, and waits at most one deadline. It reports
// whether nothing is left to wait for.
func endBefore(d *release) bool {
	if d.Cluster == "" || !record.OrderIsOpen(d.status) {
		return true
	}
	endOrder(d.status, d.Now, v1alpha1.FinishCancel)
	left := time.Unix(d.status.OrderEndDueTimeUnix, 0).Add(d.Settings.PostTimeout).Sub(d.Now)
	d.plan.RequeueAfter = max(left, 0)
	return left <= 0
}

// failedOrder returns the failing verdict on the order itself, or on an order entry without a known batch; nil for
// none.
func failedOrder(s *v1alpha1.ChangeWorkloadStatus, batches []v1alpha1.ChangePod) *v1alpha1.CheckVerdict {
	if v := record.FailedOrderCheck(s); v != nil {
		return v
	}
	for i := range s.UnclaimedVerdicts {
		if u := &s.UnclaimedVerdicts[i]; record.VerdictFails(u.Verdict) && orphaned(s, batches, u) {
			return &u.CheckVerdict
		}
	}
	return nil
}

// orphaned reports whether no batch will claim a verdict.
func orphaned(s *v1alpha1.ChangeWorkloadStatus, batches []v1alpha1.ChangePod, u *v1alpha1.UnclaimedVerdict) bool {
	return u.Orphaned && record.FoldedEntry(s, u.NodeID) == nil &&
		!slices.ContainsFunc(batches, func(b v1alpha1.ChangePod) bool { return b.Status.ChangePodID == u.NodeID })
}

// markOrphans marks the failing verdicts that came while no start of their entry was in progress: the process died or
// the answer was lost when the entry was created. Later batches change nothing.
func markOrphans(s *v1alpha1.ChangeWorkloadStatus, batches []v1alpha1.ChangePod) {
	if mayKnowMore(s, batches) {
		return
	}
	for i := range s.UnclaimedVerdicts {
		if u := &s.UnclaimedVerdicts[i]; record.VerdictFails(u.Verdict) {
			u.Orphaned = true
		}
	}
}

// mayKnowMore reports whether a start of the order or of a batch is in progress, whose answer names an entry.
func mayKnowMore(s *v1alpha1.ChangeWorkloadStatus, batches []v1alpha1.ChangePod) bool {
	if s.OrderNodeID == "" && (s.OrderStage == v1alpha1.OrderPreWait || !record.OrderIsOpen(s)) && s.OrderStage != v1alpha1.OrderEnded {
		return true
	}
	return slices.ContainsFunc(batches, func(b v1alpha1.ChangePod) bool {
		return b.Status.ChangePodID == "" && b.Status.Status != v1alpha1.ChangePodExecuteDone ||
			b.Status.Status == v1alpha1.ChangePodPreSubmitted && !server.StartedAgain(b.Status.Conditions, v1alpha1.ConditionSubmitted)
	})
}

func describeOrder(s *v1alpha1.ChangeWorkloadStatus, batches []v1alpha1.ChangePod) string {
	v := failedOrder(s, batches)
	text := ""
	switch v {
	case nil:
		return ""
	case s.OrderPreVerdict:
		text = "the PRE check of the order failed: " + v.Verdict
	case s.OrderPostVerdict:
		if v.LatePre {
			return "of the order: " + wording.Cut(v.Message)
		}
		text = "the POST check of the order failed: " + v.Verdict
	default:
		text = fmt.Sprintf("a check of order entry %s, which belongs to no known batch, failed: %s", v.NodeID, v.Verdict)
	}
	if v.Message != "" {
		text += ": " + wording.Cut(v.Message)
	}
	return text
}

// unclaimed drops the verdicts that their batches already have, or have a worse one.
func unclaimed(s *v1alpha1.ChangeWorkloadStatus, batches []v1alpha1.ChangePod) []v1alpha1.UnclaimedVerdict {
	var left []v1alpha1.UnclaimedVerdict
	for i := range s.UnclaimedVerdicts {
		u := &s.UnclaimedVerdicts[i]
		if !slices.ContainsFunc(batches, func(b v1alpha1.ChangePod) bool {
			return b.Status.ChangePodID == u.NodeID && !record.IsWorse(server.VerdictOf(&b.Status, u.Stage), u.CheckVerdict)
		}) {
			left = append(left, *u)
		}
	}
	return left
}
