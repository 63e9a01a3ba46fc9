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
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// The ids in a status are untrusted: a user who may write the status of one record can copy the
// ids of another record into it. So the id of an order is recomputed before it is used; it has
// the UID of the record, which no user chooses. The id of an entry comes from the server: it
// counts for a batch only together with the order under which the batch was started.

// ownOrderID returns the id of the order of one attempt of a release; empty if the release has
// no owner.
func ownOrderID(cluster types.UID, change *v1alpha1.ChangeWorkload, release int64, attempt int32) string {
	ref := metav1.GetControllerOf(change)
	if ref == nil {
		return ""
	}
	return OrderID(cluster, ref.UID, change.Spec.Reversion, release, attempt, change.UID)
}

// clusterOf reads the cluster out of the id of an order.
func clusterOf(orderID string) types.UID {
	cluster, _, _ := strings.Cut(orderID, "-")
	return types.UID(cluster)
}

// OwnsOrder reports whether the order in the status of a release is its own. It accepts the id of
// any cluster: an order of another cluster has the UID of a record there.
func OwnsOrder(change *v1alpha1.ChangeWorkload) bool {
	s := &change.Status
	return s.OrderID != "" && s.OrderID == ownOrderID(clusterOf(s.OrderID), change, s.ObservedRelease, s.Attempt)
}

// OrderIsOpen reports whether AlterShield Server has the release's own order, and was not notified of its end.
func OrderIsOpen(change *v1alpha1.ChangeWorkload) bool {
	switch change.Status.OrderStage {
	case v1alpha1.OrderNone, v1alpha1.OrderSubmitting, v1alpha1.OrderDenied, v1alpha1.OrderRefused, v1alpha1.OrderEnded:
		return false
	default:
		return OwnsOrder(change)
	}
}

// OwnsEntry reports whether the entry in the status of a batch was started under the order of the
// batch's attempt.
func OwnsEntry(change *v1alpha1.ChangeWorkload, batch *v1alpha1.ChangePod) bool {
	s := &batch.Status
	return change.Namespace == batch.Namespace && metav1.IsControlledBy(batch, change) && s.ChangePodID != "" && s.OrderID != "" &&
		s.OrderID == ownOrderID(clusterOf(s.OrderID), change, batch.Spec.Release, batch.Spec.Attempt)
}

// ResetOrder replaces a foreign order in the status of a release by its own order, which is then
// submitted, or ended. The plan has no status if the order is not foreign, or is no longer needed.
func ResetOrder(in OrderInput, cluster types.UID) OrderPlan {
	own := ownOrderID(cluster, in.Change, in.Change.Status.ObservedRelease, in.Change.Status.Attempt)
	if s := &in.Change.Status; s.OrderID == own || own == "" || s.OrderID == "" || !record.OrderWaits(in.Change) {
		return OrderPlan{}
	}
	o := &order{OrderInput: in, status: record.CurrentStatus(in.Change)}
	foreign := o.status.OrderID
	o.status.OrderID, o.status.OrderNodeID, o.status.OrderURL = own, "", ""
	if o.status.OrderEnd == "" {
		o.status.OrderStage = v1alpha1.OrderSubmitting
	}
	message := fmt.Sprintf("the status named order %s, which does not belong to this release; the release has its own order again",
		wording.Cut(foreign))
	o.event(v1alpha1.EventForeignID, message)
	if o.status.OrderEnd == "" {
		o.refused(v1alpha1.StepAccepted, v1alpha1.EventForeignID, message)
	}
	return o.finishPlan()
}

// ResetBatch restarts a batch whose status names an entry that was not started for it. The plan has
// no status if the entry is not foreign.
func ResetBatch(in BatchInput) BatchPlan {
	s := &in.Batch.Status
	if s.ChangePodID == "" || s.Status == v1alpha1.ChangePodExecuteDone || in.Change == nil || OwnsEntry(in.Change, in.Batch) {
		return BatchPlan{}
	}
	b := newBatch(in)
	message := fmt.Sprintf("the status named order entry %s of order %s, which does not belong to this batch: the batch is checked again",
		wording.Cut(s.ChangePodID), wording.Cut(s.OrderID))
	b.status.ChangePodID, b.status.OrderID, b.status.URL = "", "", ""
	b.status.PreSubmitTime, b.status.PreSubmitTimeUnix, b.status.PostSubmitTime, b.status.PostSubmitTimeUnix = "", 0, "", 0
	b.preWait(v1alpha1.EventForeignID, message)
	b.warn(v1alpha1.EventForeignID, message)
	return b.finish()
}
