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

	"github.com/google/go-cmp/cmp"
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
	says(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonWriteDenied)
	says(v1alpha1.ConditionDefended, metav1.ConditionFalse, v1alpha1.ReasonWriteDenied)
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
	if !NoteAccepted(&w.in.Change.Status, 1, w.in.Now, WriteBlock) {
		t.Error("not noted as accepted")
	}
	says(v1alpha1.ConditionBlocked, metav1.ConditionTrue, v1alpha1.ReasonPodFailed)
	says(v1alpha1.ConditionDefended, metav1.ConditionTrue, v1alpha1.ReasonRecovered)
	if NoteAccepted(&w.in.Change.Status, 1, w.in.Now, WriteBlock) {
		t.Error("noted as accepted twice")
	}
	// A block that was lifted by hand since stays lifted.
	delete(w.stored.Labels, v1alpha1.SuspendLabel)
	w.Settle(t)
	if w.stored.blocked() {
		t.Error("blocked again although somebody lifted it")
	}
}

// TestConditionsOfEarlierBuilds: what a decision remembers in conditions is found where an earlier build wrote it.
func TestConditionsOfEarlierBuilds(t *testing.T) {
	said := func(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(testNow)}
	}
	change := &v1alpha1.ChangeWorkload{Status: v1alpha1.ChangeWorkloadStatus{Conditions: []metav1.Condition{
		said("OrderAccepted", metav1.ConditionTrue, "Accepted"), said("OrderPreChecked", metav1.ConditionTrue, "Skipped"),
		said("OrderPostChecked", metav1.ConditionFalse, "PolledNotPassed"), said("OrderEnded", metav1.ConditionFalse, "Unreachable"),
		said("WaitsForServer", metav1.ConditionTrue, "CheckNotSubmitted"), said("WritesAccepted", metav1.ConditionFalse, "BlockDenied"),
		said("OverridesAccepted", metav1.ConditionTrue, "Accepted"), said("RepairBlocked", metav1.ConditionTrue, "MadeAgain"),
		said("Blocked", metav1.ConditionFalse, "BlockDenied"), said("Verified", metav1.ConditionTrue, "AllPassed"),
		said("RolledBack", metav1.ConditionFalse, "Brake"),
	}}}
	before := change.Status.DeepCopy()
	got := currentStatus(change)
	want := &v1alpha1.ChangeWorkloadStatus{DeniedWrite: &v1alpha1.DeniedWrite{Write: WriteBlock}, Conditions: []metav1.Condition{
		said("Blocked", metav1.ConditionFalse, v1alpha1.ReasonWriteDenied), said("Verified", metav1.ConditionTrue, "AllPassed"),
		said("RolledBack", metav1.ConditionFalse, v1alpha1.ReasonRollbackLimit),
	}}
	want.OrderSteps = []metav1.Condition{
		said(v1alpha1.StepAccepted, metav1.ConditionTrue, "Accepted"), said(v1alpha1.StepPreChecked, metav1.ConditionTrue, "Skipped"),
		said(v1alpha1.StepPostChecked, metav1.ConditionFalse, v1alpha1.ReasonNoVerdict), said(v1alpha1.StepEnded, metav1.ConditionFalse, "Unreachable"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(before, &change.Status); diff != "" {
		t.Errorf("the record was changed:\n%s", diff)
	}
}

func TestNoteDenied(t *testing.T) {
	s := &v1alpha1.ChangeWorkloadStatus{}
	says := func(status metav1.ConditionStatus, reason, message string) {
		t.Helper()
		if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDefended); c == nil || c.Status != status || c.Reason != reason || Detail(c) != message {
			t.Errorf("condition %+v, want %s %s: %s", c, status, reason, message)
		}
	}
	if !NoteDenied(s, 1, testNow, WriteRollback, "first") {
		t.Error("the first denial is not noted")
	}
	if NoteDenied(s, 1, testNow.Add(time.Hour), WriteRollback, "request 7f3a: second") {
		t.Error("noted once more because the policy says it in other words")
	}
	if NoteAccepted(s, 1, testNow, WriteBlock) {
		t.Error("another write was accepted, not this one")
	}
	if !NoteDenied(s, 1, testNow, WriteBlock, "another") {
		t.Error("another write is denied, and it is not said")
	}
	says(metav1.ConditionFalse, v1alpha1.ReasonWriteDenied, "another")
	if !NoteAccepted(s, 1, testNow, WriteBlock) || s.DeniedWrite != nil {
		t.Errorf("still denied: %+v", s.DeniedWrite)
	}
	says(metav1.ConditionTrue, v1alpha1.ReasonRecovered, WriteAccepted)
}

// TestDefendedListsAll: a denied write comes first, and what lowers the defense remains in the message.
func TestDefendedListsAll(t *testing.T) {
	w := newWorld(1).Pods(1, unready).observed()
	w.Step()
	lowered := Detail(meta.FindStatusCondition(w.in.Change.Status.Conditions, v1alpha1.ConditionDefended))
	NoteDenied(&w.in.Change.Status, 1, testNow, WriteBatch, "no quota")
	for range 3 {
		events := w.Step().Events
		c := meta.FindStatusCondition(w.in.Change.Status.Conditions, v1alpha1.ConditionDefended)
		if c.Reason != v1alpha1.ReasonWriteDenied || Detail(c) != "no quota; also: "+lowered || len(events) != 0 {
			t.Fatalf("condition %+v, events %v", c, events)
		}
	}
	w.in.Settings.Observe, w.in.ObservedBy = false, ""
	w.Step()
	if c := meta.FindStatusCondition(w.in.Change.Status.Conditions, v1alpha1.ConditionDefended); c.Reason != v1alpha1.ReasonWriteDenied || Detail(c) != "no quota" {
		t.Errorf("condition %+v", c)
	}
	NoteDenied(&w.in.Change.Status, 1, testNow, WriteBatch, "no quota")
	w.in.Settings.Observe, w.in.ObservedBy = true, "the setting observe of the operator"
	w.Step()
	if !NoteAccepted(&w.in.Change.Status, 1, testNow, WriteBatch) {
		t.Error("the write is still denied")
	}
	if c := meta.FindStatusCondition(w.in.Change.Status.Conditions, v1alpha1.ConditionDefended); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonObserving {
		t.Errorf("condition %+v", c)
	}
	if events := w.Step().Events; len(events) != 0 {
		t.Errorf("events %v", events)
	}
	if c := meta.FindStatusCondition(w.in.Change.Status.Conditions, v1alpha1.ConditionDefended); c.Reason != v1alpha1.ReasonObserving {
		t.Errorf("condition %+v", c)
	}
}

// TestLoweredByAnEarlierBuild reads annotations that an earlier build reported as this build writes them.
func TestLoweredByAnEarlierBuild(t *testing.T) {
	s := &v1alpha1.ChangeWorkloadStatus{}
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionDefended, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonLowered,
		Message: "annotations of the workload lower its defense: blocking=disabled",
	})
	NoteDenied(s, 1, testNow, WriteBatch, "no quota")
	NoteAccepted(s, 1, testNow, WriteBatch)
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDefended)
	if c.Reason != v1alpha1.ReasonLowered || Detail(c) != loweredByAnnotations+"blocking=disabled" {
		t.Errorf("condition %+v", c)
	}
}
