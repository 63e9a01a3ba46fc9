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
	"testing"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// records are a release with its order, and a batch with its entry.
func records() (*v1alpha1.ChangeWorkload, *v1alpha1.ChangePod) {
	id := server.OrderID("some-cluster", "web-uid", versionA, 3, 2, "change-uid")
	change := wrappers.MakeChangeWorkload("ns", "change").UID("change-uid").Of(wrappers.MakeDeployment("ns", "web").UID("web-uid").Obj()).
		Version(versionA).Release(3).Attempt(2).State(v1alpha1.ChangeWorkloadRunning).Order(id, "order-node", v1alpha1.OrderPostWait).Obj()
	change.Status.ObservedRelease = 3
	batch := wrappers.MakeChangePod("ns", "batch--x--1").Of(change).Attempt(2, 3).State(v1alpha1.ChangePodPostWait).Node("node", id).Obj()
	return change, batch
}

func TestForeignIDs(t *testing.T) {
	other := server.OrderID("some-cluster", "other-uid", versionA, 3, 2, "other-change")
	for name, test := range map[string]struct {
		change       func(*v1alpha1.ChangeWorkload, *v1alpha1.ChangePod)
		order, entry bool
		// repairedOrder and repairedBatch are the states after the correction; empty for none.
		repairedOrder v1alpha1.OrderStage
		repairedBatch v1alpha1.ChangePodStatusType
	}{
		"their own": {func(*v1alpha1.ChangeWorkload, *v1alpha1.ChangePod) {}, true, true, "", ""},
		"another's order": {func(c *v1alpha1.ChangeWorkload, _ *v1alpha1.ChangePod) { c.Status.OrderID = other },
			false, true, v1alpha1.OrderSubmitting, ""},
		"another's order, to be ended": {func(c *v1alpha1.ChangeWorkload, _ *v1alpha1.ChangePod) {
			c.Status.OrderID, c.Status.OrderEnd = other, v1alpha1.FinishCancel
		}, false, true, v1alpha1.OrderPostWait, ""},
		"another's order that is over": {func(c *v1alpha1.ChangeWorkload, _ *v1alpha1.ChangePod) {
			c.Status.OrderID, c.Status.OrderStage = other, v1alpha1.OrderEnded
		}, false, true, "", ""},
		"another's entry": {func(_ *v1alpha1.ChangeWorkload, b *v1alpha1.ChangePod) { b.Status.OrderID = other },
			true, false, "", v1alpha1.ChangePodPreWait},
		"another's entry in a batch that is done": {func(_ *v1alpha1.ChangeWorkload, b *v1alpha1.ChangePod) {
			b.Status.OrderID, b.Status.Status = other, v1alpha1.ChangePodExecuteDone
		}, true, false, "", ""},
		"an earlier attempt's": {func(c *v1alpha1.ChangeWorkload, b *v1alpha1.ChangePod) {
			b.Status.OrderID = server.OrderID("some-cluster", "web-uid", versionA, 3, 1, "change-uid")
		}, true, false, "", v1alpha1.ChangePodPreWait},
		"a batch of an earlier attempt": {func(c *v1alpha1.ChangeWorkload, b *v1alpha1.ChangePod) {
			b.Spec.Attempt, b.Status.OrderID = 1, server.OrderID("some-cluster", "web-uid", versionA, 3, 1, "change-uid")
		}, true, true, "", ""},
		"another owner": {func(c *v1alpha1.ChangeWorkload, _ *v1alpha1.ChangePod) { c.OwnerReferences[0].UID = "other-uid" },
			false, false, v1alpha1.OrderSubmitting, v1alpha1.ChangePodPreWait},
		"another record": {func(c *v1alpha1.ChangeWorkload, b *v1alpha1.ChangePod) {
			c.UID, b.OwnerReferences[0].UID = "restored", "restored"
		}, false, false, v1alpha1.OrderSubmitting, v1alpha1.ChangePodPreWait},
		"a batch elsewhere": {func(_ *v1alpha1.ChangeWorkload, b *v1alpha1.ChangePod) { b.Namespace = "evil" },
			true, false, "", v1alpha1.ChangePodPreWait},
	} {
		t.Run(name, func(t *testing.T) {
			change, batch := records()
			test.change(change, batch)
			if got := server.OwnsOrder(change); got != test.order {
				t.Errorf("owns the order: %t", got)
			}
			if got := server.OwnsEntry(change, batch); got != test.entry {
				t.Errorf("owns the entry: %t", got)
			}
			order := server.ResetOrder(server.OrderInput{Now: testNow, Settings: settings.Default(), Change: change, Defended: true}, "some-cluster")
			stage := v1alpha1.OrderStage("")
			if order.Status != nil {
				fixed := change.DeepCopy()
				fixed.Status = *order.Status
				if stage = fixed.Status.OrderStage; !server.OwnsOrder(fixed) || fixed.Status.OrderNodeID != "" || len(order.Events) != 1 {
					t.Errorf("repaired to %+v, events %v", fixed.Status.OrderStatus, order.Events)
				}
			}
			if stage != test.repairedOrder {
				t.Errorf("the order is repaired to %q, want %q", stage, test.repairedOrder)
			}
			repaired := server.ResetBatch(server.BatchInput{Now: testNow, Settings: settings.Default(), Change: change, Batch: batch, Server: true})
			status := v1alpha1.ChangePodStatusType("")
			if repaired.Status != nil {
				if status = repaired.Status.Status; repaired.Status.ChangePodID != "" || repaired.Status.OrderID != "" || len(repaired.Events) != 1 {
					t.Errorf("repaired to %+v, events %v", repaired.Status, repaired.Events)
				}
			}
			if status != test.repairedBatch {
				t.Errorf("the batch is repaired to %q, want %q", status, test.repairedBatch)
			}
		})
	}
}

// TestVerdictOfAnotherOrder: a verdict with the id of another order is ignored.
func TestVerdictOfAnotherOrder(t *testing.T) {
	change, batch := records()
	verdict := server.Delivered{OrderID: server.OrderID("some-cluster", "other-uid", versionA, 3, 2, "other-change"), NodeID: "node",
		Stage: v1alpha1.StagePost, Verdict: record.VerdictFail}
	if got := server.PlaceOnBatch(&batch.Status, verdict, testNow); got != server.PlacementElsewhere || batch.Status.PostVerdict != nil {
		t.Errorf("on the batch it is %s: %+v", got, batch.Status.PostVerdict)
	}
	verdict.NodeID, verdict.OfOrder = "order-node", true
	if got := server.PlaceOnRelease(&change.Status, verdict, testNow); got != server.PlacementElsewhere ||
		change.Status.OrderPostVerdict != nil {
		t.Errorf("on the release it is %s: %+v", got, change.Status.OrderPostVerdict)
	}
}

// TestCallsOfAnotherEntry: the recorded end of one entry does not count for the next entry of the same batch.
func TestCallsOfAnotherEntry(t *testing.T) {
	ended := server.Calls{Ended: true}
	if got := ended.After(server.CallPollPost, server.Answer{Kind: server.AnswerNotPassed}, testNow, 0.5); !got.Ended {
		t.Error("a poll makes it forget that the entry has ended")
	}
	if got := ended.After(server.CallStart, server.Answer{Kind: server.AnswerDone}, testNow, 0.5); got.Ended {
		t.Error("a new entry is taken for an ended one")
	}
}
