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
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// A block that a policy denies is tried again for as long as the release is
// failed, and the release says so without a write for each try.
func TestBlockDenied(t *testing.T) {
	const message = "could not block the workload, it is tried again: admission webhook \"p\" denied the request"
	w := newWorld(2).Pods(2).Complete().Settle(t)
	w.Verdict("sleep-0", "unpass")
	deny := func() ReleasePlan {
		t.Helper()
		in := w.in
		in.Live = true
		plan := DecideRelease(in)
		if plan.Action != BlockWorkload {
			t.Fatalf("action %d, want the block", plan.Action)
		}
		left := BlockDenied(w.in.Change, plan, w.in.Now, message)
		if left.Status != nil {
			w.in.Change.Status = *left.Status
		}
		return left
	}
	says := func(kind string, status metav1.ConditionStatus, reason string) {
		t.Helper()
		c := meta.FindStatusCondition(w.in.Change.Status.Conditions, kind)
		if c == nil || c.Status != status || c.Reason != reason {
			t.Errorf("condition %s: %+v, want %s %s", kind, c, status, reason)
		}
	}
	first := deny()
	if first.Status == nil || first.Status.Status != v1alpha1.ChangeWorkloadSuspend || len(first.Events) != 1 || len(first.ActionEvents) != 0 {
		t.Errorf("first denial: %+v, want Suspend and its event", first)
	}
	says(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonBlockDenied)
	says(v1alpha1.ConditionWritesAccepted, metav1.ConditionFalse, v1alpha1.ReasonBlockDenied)
	w.Later(time.Minute)
	if again := deny(); again.Status != nil || len(again.Events) != 0 {
		t.Errorf("second denial: %+v, want nothing", again)
	}
	// Somebody turns blocking off: there is nothing to block any more.
	off := w.in
	off.Settings.Blocking = false
	if plan := DecideRelease(off); plan.Action != LeaveWorkload {
		t.Errorf("blocking off: action %d", plan.Action)
	}
	// The policy lets it pass at last.
	w.Step()
	if !w.stored.blocked() {
		t.Error("not blocked")
	}
	if !NoteAccepted(&w.in.Change.Status, 1, w.in.Now, v1alpha1.ReasonBlockDenied) {
		t.Error("not noted as accepted")
	}
	says(v1alpha1.ConditionBlocked, metav1.ConditionTrue, v1alpha1.ReasonPodFailed)
	says(v1alpha1.ConditionWritesAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	if NoteAccepted(&w.in.Change.Status, 1, w.in.Now, v1alpha1.ReasonBlockDenied) {
		t.Error("noted as accepted twice")
	}
	// A block that was lifted by hand since stays lifted.
	delete(w.stored.Labels, v1alpha1.SuspendLabel)
	w.Settle(t)
	if w.stored.blocked() {
		t.Error("blocked again although somebody lifted it")
	}
}

func TestNoteDenied(t *testing.T) {
	s := &v1alpha1.ChangeWorkloadStatus{}
	if !NoteDenied(s, 1, testNow, v1alpha1.ReasonRollbackDenied, "first") {
		t.Error("the first denial is not noted")
	}
	if NoteDenied(s, 1, testNow.Add(time.Hour), v1alpha1.ReasonRollbackDenied, "request 7f3a: second") {
		t.Error("noted once more because the policy says it in other words")
	}
	if NoteAccepted(s, 1, testNow, v1alpha1.ReasonBlockDenied) {
		t.Error("another write was accepted, not this one")
	}
	if !NoteDenied(s, 1, testNow, v1alpha1.ReasonBlockDenied, "another") {
		t.Error("another write is denied, and it is not said")
	}
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionWritesAccepted); c == nil || c.Message != "another" {
		t.Errorf("condition: %+v", c)
	}
}
