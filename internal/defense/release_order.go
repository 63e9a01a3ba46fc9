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

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// followOrder moves a release that waits for its order to be accepted.
func (d *release) followOrder() {
	s := d.status
	if !IsOpen(s.Status) {
		return
	}
	waits := s.Status == v1alpha1.ChangeWorkloadInit
	switch {
	case s.OrderStage == v1alpha1.OrderRefused:
		d.cancelChecks()
		d.enter(v1alpha1.ChangeWorkloadFailed, corev1.EventTypeWarning, v1alpha1.EventReleaseUnverified,
			"the order was refused: "+stepMessage(s, v1alpha1.StepAccepted))
		d.condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonRefused, "")
	case !waits:
	case d.failedOrder() != nil:
		// judge suspends it. Where only a check of a policy failed, the order has its time:
		// a batch that is made before it is accepted would be verified without it.
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeNormal, "", "")
	case orderAccepted(s.OrderStage):
		// An older build wrote one without the other.
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeNormal, "", "")
	case d.Cluster == "":
		d.enter(v1alpha1.ChangeWorkloadRunning, corev1.EventTypeWarning, v1alpha1.EventReleaseUnverified,
			"no server is configured now; the release continues without its checks")
	}
	if waits && s.Status == v1alpha1.ChangeWorkloadRunning {
		// Batches are waited for from now on.
		s.EntryTime, s.EntryTimeUnix = FormatTime(d.Now), d.Now.Unix()
	}
}

// orderPreOver says that batches may be made: the order's PRE check is over, or
// there is none.
func (d *release) orderPreOver() bool {
	switch d.status.OrderStage {
	case v1alpha1.OrderPreWait, v1alpha1.OrderPreSubmitted:
		return d.Cluster == ""
	default:
		return true
	}
}

// orderPostOver says that nothing of the order stands in the way of success.
func (d *release) orderPostOver() bool {
	return !orderAccepted(d.status.OrderStage) || d.status.OrderStage == v1alpha1.OrderPostFinish || d.Cluster == ""
}

// awaitOrderPost asks for the order's POST check, once its PRE check is over.
func (d *release) awaitOrderPost() {
	if d.status.OrderPostDueTimeUnix == 0 && d.status.OrderStage == v1alpha1.OrderPostWait {
		d.status.OrderPostDueTimeUnix = d.Now.Unix()
	}
}

func (d *release) endOrder(how v1alpha1.FinishState) {
	if OrderIsOpen(d.status) && d.status.OrderEnd == "" {
		d.status.OrderEnd, d.status.OrderEndDueTimeUnix = how, d.Now.Unix()
	}
}

// endBefore ends the order of an attempt before the next one begins, for at
// most one deadline. It says that there is nothing left to wait for.
func (d *release) endBefore() bool {
	if d.Cluster == "" || !OrderIsOpen(d.status) {
		return true
	}
	d.endOrder(v1alpha1.FinishCancel)
	left := time.Unix(d.status.OrderEndDueTimeUnix, 0).Add(d.Settings.PostTimeout).Sub(d.Now)
	d.plan.RequeueAfter = max(left, 0)
	return left <= 0
}

// failedOrderCheck is the failing verdict on the order itself; nil when there is none.
func (d *release) failedOrderCheck() *v1alpha1.CheckVerdict {
	for _, v := range []*v1alpha1.CheckVerdict{d.status.OrderPreVerdict, d.status.OrderPostVerdict} {
		if v != nil && VerdictFails(v.Verdict) {
			return v
		}
	}
	return nil
}

// failedOrder is the failing verdict on the order itself, or on an entry of it
// that no batch is known by; nil when there is none.
func (d *release) failedOrder() *v1alpha1.CheckVerdict {
	if v := d.failedOrderCheck(); v != nil {
		return v
	}
	for i := range d.status.UnclaimedVerdicts {
		if u := &d.status.UnclaimedVerdicts[i]; VerdictFails(u.Verdict) && d.orphaned(u) {
			return &u.CheckVerdict
		}
	}
	return nil
}

// orphaned says that nothing will claim a verdict: its entry is no batch's.
func (d *release) orphaned(u *v1alpha1.UnclaimedVerdict) bool {
	return u.Orphaned && foldedEntry(d.status, u.NodeID) == nil &&
		!slices.ContainsFunc(d.Batches, func(b v1alpha1.ChangePod) bool { return b.Status.ChangePodID == u.NodeID })
}

// markOrphans marks the failing verdicts that came while no start was under way that made
// their entry: the process died, or the answer was lost, when it was made. A batch that is
// made later changes nothing of that.
func (d *release) markOrphans() {
	if d.mayKnowMore() {
		return
	}
	for i := range d.status.UnclaimedVerdicts {
		if u := &d.status.UnclaimedVerdicts[i]; VerdictFails(u.Verdict) {
			u.Orphaned = true
		}
	}
}

// mayKnowMore says that a start is under way, of the order or of a batch, whose answer
// names an entry.
func (d *release) mayKnowMore() bool {
	if d.status.OrderNodeID == "" && (d.status.OrderStage == v1alpha1.OrderPreWait || !orderAccepted(d.status.OrderStage)) && d.status.OrderStage != v1alpha1.OrderEnded {
		return true
	}
	return slices.ContainsFunc(d.Batches, func(b v1alpha1.ChangePod) bool {
		return b.Status.ChangePodID == "" && b.Status.Status != v1alpha1.ChangePodExecuteDone ||
			b.Status.Status == v1alpha1.ChangePodPreSubmitted && !startedAgain(b.Status.Conditions, v1alpha1.ConditionSubmitted)
	})
}

func (d *release) describeOrder() string {
	v := d.failedOrder()
	s := ""
	switch v {
	case nil:
		return ""
	case d.status.OrderPreVerdict:
		s = "the PRE check of the order failed: " + v.Verdict
	case d.status.OrderPostVerdict:
		if v.LatePre {
			return "of the order: " + Cut(v.Message)
		}
		s = "the POST check of the order failed: " + v.Verdict
	default:
		s = fmt.Sprintf("a check of order entry %s, which belongs to no known batch, failed: %s", v.NodeID, v.Verdict)
	}
	if v.Message != "" {
		s += ": " + Cut(v.Message)
	}
	return s
}

// unclaimed leaves out the verdicts that their batches have by now, or graver
// ones.
func (d *release) unclaimed() []v1alpha1.UnclaimedVerdict {
	var left []v1alpha1.UnclaimedVerdict
	for i := range d.status.UnclaimedVerdicts {
		u := &d.status.UnclaimedVerdicts[i]
		if !slices.ContainsFunc(d.Batches, func(b v1alpha1.ChangePod) bool {
			return b.Status.ChangePodID == u.NodeID && !isWorse(verdictOf(&b.Status, u.Stage), u.CheckVerdict)
		}) {
			left = append(left, *u)
		}
	}
	return left
}
