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
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/hold"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// observed puts the workload of a world in observe mode.
func (w *world) observed() *world {
	w.in.Settings.Observe, w.in.ObservedBy = true, "a test"
	return w
}

// settled steps and checks until nothing changes, and lists the reasons of DryRun and DefenseChanged events.
func (w *world) settled(t *testing.T) (reasons []string) {
	t.Helper()
	for range 20 {
		before := w.stored.Paused
		plan := w.Step()
		w.Check()
		for _, e := range slices.Concat(plan.Events, plan.ActionEvents) {
			if e.Reason == v1alpha1.EventDryRun || strings.HasPrefix(e.Reason, "Defense") {
				reasons = append(reasons, strings.TrimSpace(e.Reason+" "+e.Act))
			}
		}
		if plan.Status == nil && plan.Action == LeaveWorkload && len(plan.Batches) == 0 && before == w.stored.Paused {
			return reasons
		}
	}
	t.Fatal("does not settle")
	return nil
}

func TestObserving(t *testing.T) {
	type want struct {
		status            v1alpha1.ChangeWorkloadStatusType
		events            []string
		suspended, paused bool
		reasons           map[string]string // of conditions
	}
	off := func(w *world) { w.in.Settings.Observe, w.in.ObservedBy = false, "" }
	fail := func(pod string) func(*world) { return func(w *world) { w.Verdict(pod, "fail") } }
	success := map[string]string{v1alpha1.ConditionDefended: v1alpha1.ReasonObserving, v1alpha1.ConditionBlocked: ""}
	for name, test := range map[string]struct {
		world *world
		then  []func(*world) // each followed by settling
		want  want
	}{
		"a release that passes": {newWorld(2).Pods(2).Complete().observed(), nil,
			want{status: v1alpha1.ChangeWorkloadSuccess, reasons: success}},
		"one that fails": {newWorld(2).Pods(2).Complete().observed(), []func(*world){fail("sleep-0")},
			want{status: v1alpha1.ChangeWorkloadSuspend, events: []string{"DryRun Suspend"}, reasons: map[string]string{
				v1alpha1.ConditionBlocked: v1alpha1.ReasonObserving, v1alpha1.ConditionVerified: v1alpha1.ReasonPodFailed}}},
		"one that fails under way": {newWorld(3).Pods(1).observed(), []func(*world){fail("sleep-0")},
			want{status: v1alpha1.ChangeWorkloadSuspend, events: []string{"DryRun Suspend", "DryRun Halt"}, reasons: map[string]string{
				v1alpha1.ConditionProgressing: v1alpha1.ReasonRollingOut}}},
		"each failure is reported once": {newWorld(2).Pods(2).Complete().observed(),
			[]func(*world){fail("sleep-0"), fail("sleep-1"), func(*world) {}},
			want{status: v1alpha1.ChangeWorkloadSuspend, events: []string{"DryRun Suspend", "DryRun Suspend"}}},
		"not what blocking off would not have done": {newWorld(1).Pods(1).Complete().observed(),
			[]func(*world){func(w *world) { w.in.Settings.Blocking = false }, fail("sleep-0")},
			want{status: v1alpha1.ChangeWorkloadSuspend}},
		"self-healing would have rolled it back": {func() *world {
			w := newWorld(1).Pods(1).Complete().observed()
			w.in.Settings.SelfHealing = true
			w.in.History = []workload.Revision{{Name: "b", Version: versionB, Release: 1}}
			return w
		}(), []func(*world){fail("sleep-0")},
			want{status: v1alpha1.ChangeWorkloadSuspend, events: []string{"DryRun Suspend", "DryRun Rollback"}, reasons: map[string]string{
				v1alpha1.ConditionRolledBack: v1alpha1.ReasonObserving}}},
		"a pod that does not come up": {func() *world {
			w := newWorld(2).Pods(1, unready).observed()
			w.in.Workload.Rolling = true
			w.in.Workload.OldRevisions = []workload.OldRevision{{Name: "b", Version: versionB, Number: 1, Replicas: 1, Ready: 1}}
			w.in.Pods[0].Created = testNow
			w.in.Pods[0].Stuck = &workload.Stuck{Reason: "ImagePullBackOff"}
			return w
		}(), []func(*world){func(w *world) { w.Later(time.Hour) }, func(w *world) { w.Later(time.Hour) }},
			want{status: v1alpha1.ChangeWorkloadTimeOutPreThreshold, events: []string{"DryRun Rollback"}, reasons: map[string]string{
				v1alpha1.ConditionRolledBack: v1alpha1.ReasonObserving}}},
		"a correction": {newWorld(1).Pods(1).Complete().observed(),
			[]func(*world){fail("sleep-0"), func(w *world) { w.Verdict("sleep-0", "pass") }},
			want{status: v1alpha1.ChangeWorkloadSuccess, events: []string{"DryRun Suspend"}, reasons: map[string]string{
				v1alpha1.ConditionBlocked: v1alpha1.ReasonRecovered}}},
		"turned off, nothing is blocked retroactively": {newWorld(1).Pods(1).Complete().observed(), []func(*world){fail("sleep-0"), off},
			want{status: v1alpha1.ChangeWorkloadSuspend, events: []string{"DryRun Suspend"}, reasons: map[string]string{
				v1alpha1.ConditionBlocked: v1alpha1.ReasonObserving, v1alpha1.ConditionDefended: v1alpha1.ReasonRecovered}}},
		"turned off, the next failure blocks": {newWorld(2).Pods(2).Complete().observed(), []func(*world){fail("sleep-0"), off, fail("sleep-1")},
			want{status: v1alpha1.ChangeWorkloadSuspend, events: []string{"DryRun Suspend"}, suspended: true}},
		"a user's block stays, also after success": {newWorld(1).Pods(1).Complete().Suspended("").observed(), nil,
			want{status: v1alpha1.ChangeWorkloadSuccess, suspended: true}},
		"by the workload itself": {func() *world {
			w := newWorld(1).Pods(1).Complete().observed()
			w.in.Lowered = []string{"observe"}
			return w
		}(), []func(*world){func(*world) {}, func(w *world) { off(w); w.in.Lowered = nil }},
			want{status: v1alpha1.ChangeWorkloadSuccess, events: []string{"DefenseChanged", "DefenseChanged"}, reasons: map[string]string{
				v1alpha1.ConditionDefended: v1alpha1.ReasonRecovered}}},
		"blocking off by the workload itself": {func() *world {
			w := newWorld(1).Pods(1).Complete()
			w.in.Settings.Blocking, w.in.Lowered = false, []string{"blocking"}
			return w
		}(), nil,
			want{status: v1alpha1.ChangeWorkloadSuccess, events: []string{"DefenseChanged"}, reasons: map[string]string{
				v1alpha1.ConditionDefended: v1alpha1.ReasonLowered}}},
		"defended": {newWorld(1).Pods(1).Complete(), nil, want{status: v1alpha1.ChangeWorkloadSuccess, reasons: map[string]string{
			v1alpha1.ConditionDefended: ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := test.world
			events := w.settled(t)
			for _, then := range test.then {
				then(w)
				events = append(events, w.settled(t)...)
			}
			if diff := cmp.Diff(test.want.events, events); diff != "" {
				t.Errorf("events, -want +got:\n%s", diff)
			}
			var acts []string
			for _, e := range events {
				if act, dry := strings.CutPrefix(e, "DryRun "); dry && !slices.Contains(acts, act) {
					acts = append(acts, act)
				}
			}
			if diff := cmp.Diff(acts, w.in.Change.Status.DryRuns); diff != "" {
				t.Errorf("acts in the status, -want +got:\n%s", diff)
			}
			_, suspended := w.stored.Labels[v1alpha1.SuspendLabel]
			if got := w.in.Change.Status.Status; got != test.want.status || suspended != test.want.suspended || w.stored.Paused != test.want.paused {
				t.Errorf("%s, suspended %t, paused %t; want %s, %t, %t", got, suspended, w.stored.Paused,
					test.want.status, test.want.suspended, test.want.paused)
			}
			for kind, reason := range test.want.reasons {
				got := ""
				if c := meta.FindStatusCondition(w.in.Change.Status.Conditions, kind); c != nil {
					got = c.Reason
				}
				if got != reason {
					t.Errorf("condition %s has the reason %q, want %q", kind, got, reason)
				}
			}
		})
	}
}

func TestTakeBackWhileObserved(t *testing.T) {
	own := &workload.Workload{Version: versionA, Labels: map[string]string{v1alpha1.VersionLabel: versionA, v1alpha1.SuspendLabel: "1"},
		Annotations: map[string]string{v1alpha1.ReleaseAnnotation: "1", v1alpha1.SuspendedByAnnotation: versionA + " 1"}}
	users := &workload.Workload{Version: versionA, Labels: own.Labels, Annotations: map[string]string{v1alpha1.ReleaseAnnotation: "1"}}
	halted := &workload.Workload{Version: versionA, Stopping: workload.Stopping{Paused: true},
		Labels:      map[string]string{v1alpha1.VersionLabel: versionA},
		Annotations: map[string]string{v1alpha1.ReleaseAnnotation: "1", v1alpha1.HaltedAnnotation: versionA}}
	open := []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadRunning)}
	for name, test := range map[string]struct {
		workload *workload.Workload
		observe  bool
		want     bool
	}{
		"its own block":            {own, true, true},
		"not while it is defended": {own, false, false},
		"not a user's block":       {users, true, false},
		"its own pause":            {halted, true, true},
		"nothing":                  {&workload.Workload{Version: versionA}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			plan := DecideWorkload(WorkloadInput{Workload: test.workload, Enrolled: true, Observe: test.observe, Changes: open})
			if plan.TakeBack != test.want {
				t.Errorf("takes back %t, want %t", plan.TakeBack, test.want)
			}
		})
	}
}

// TestLetGoWhileOwned: the halt or hold of a workload with an owner is undone. A block stays until a user lifts it.
func TestLetGoWhileOwned(t *testing.T) {
	halted := map[string]string{v1alpha1.ReleaseAnnotation: "1", v1alpha1.HaltedAnnotation: versionA,
		v1alpha1.SuspendedByAnnotation: versionA + " 1"}
	blocked := map[string]string{v1alpha1.ReleaseAnnotation: "1", v1alpha1.SuspendedByAnnotation: versionA + " 1"}
	with := func(owner, defended string, annotations map[string]string, hold *workload.Hold) *workload.Workload {
		w := &workload.Workload{Version: versionA, Owner: owner, Hold: hold, Annotations: annotations,
			Labels: map[string]string{v1alpha1.VersionLabel: versionA, v1alpha1.SuspendLabel: "1"}}
		w.Paused = annotations[v1alpha1.HaltedAnnotation] != ""
		if hold != nil {
			w.Annotations = maps.Clone(annotations)
			w.Annotations[v1alpha1.HeldAnnotation] = hold.String()
		}
		if defended != "" {
			w.Labels[v1alpha1.DefenseLabel] = defended
		}
		return w
	}
	open := []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadRunning)}
	for name, test := range map[string]struct {
		workload *workload.Workload
		observe  bool
		want     WorkloadPlan
	}{
		"halted":       {with("prometheus k8s", "", halted, nil), false, WorkloadPlan{LetGo: true}},
		"held":         {with("prometheus k8s", "", blocked, heldAt(1)), false, WorkloadPlan{LetGo: true}},
		"only blocked": {with("prometheus k8s", "", blocked, nil), false, WorkloadPlan{EnsureChange: true, Processed: true}},
		"but defended by a label": {with("prometheus k8s", v1alpha1.DefenseEnforced, blocked, heldAt(1)), false,
			WorkloadPlan{EnsureChange: true, Processed: true}},
		"without an owner":        {with("", "", blocked, heldAt(1)), false, WorkloadPlan{EnsureChange: true, Processed: true}},
		"opted out":               {with("prometheus k8s", v1alpha1.DefenseDisabled, halted, nil), false, WorkloadPlan{}},
		"observed by its setting": {with("prometheus k8s", "", halted, nil), true, WorkloadPlan{TakeBack: true}},
	} {
		t.Run(name, func(t *testing.T) {
			got := DecideWorkload(WorkloadInput{Workload: test.workload, Enrolled: true, Observe: test.observe, Changes: open})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestBlockDenied: a block that a policy denies is retried while the release is failed, and reported without a write
// for each try.
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
	// Blocking is turned off: nothing to block.
	off := w.in
	off.Settings.Blocking = false
	if plan := DecideRelease(off); plan.Action != LeaveWorkload {
		t.Errorf("blocking off: action %d", plan.Action)
	}
	// The policy allows the block at last.
	w.Step()
	if !w.stored.Blocked() {
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
	// A block that was lifted by hand stays lifted.
	delete(w.stored.Labels, v1alpha1.SuspendLabel)
	w.Settle(t)
	if w.stored.Blocked() {
		t.Error("blocked again although a user lifted it")
	}
}

// TestConditionsOfEarlierBuilds: a decision finds the conditions of an earlier build.
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
	got := record.CurrentStatus(change)
	want := &v1alpha1.ChangeWorkloadStatus{DeniedWrite: &v1alpha1.DeniedWrite{Write: WriteBlock}, Conditions: []metav1.Condition{
		said("Blocked", metav1.ConditionFalse, v1alpha1.ReasonWriteDenied), said("Verified", metav1.ConditionTrue, "AllPassed"),
		said("RolledBack", metav1.ConditionFalse, v1alpha1.ReasonRollbackLimit),
	}}
	want.OrderSteps = []metav1.Condition{
		said(v1alpha1.StepAccepted, metav1.ConditionTrue, "Accepted"), said(v1alpha1.StepPreChecked, metav1.ConditionTrue, "Skipped"),
		said(v1alpha1.StepPostChecked, metav1.ConditionFalse, v1alpha1.ReasonNoVerdict),
		said(v1alpha1.StepEnded, metav1.ConditionFalse, "Unreachable"),
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
		if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDefended); c == nil || c.Status != status || c.Reason != reason ||
			record.Detail(c) != message {
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

// TestDefendedListsAll: a denied write comes first, and the settings that lower the defense remain in the message.
func TestDefendedListsAll(t *testing.T) {
	w := newWorld(1).Pods(1, unready).observed()
	w.Step()
	lowered := record.Detail(meta.FindStatusCondition(w.in.Change.Status.Conditions, v1alpha1.ConditionDefended))
	NoteDenied(&w.in.Change.Status, 1, testNow, WriteBatch, "no quota")
	for range 3 {
		events := w.Step().Events
		c := meta.FindStatusCondition(w.in.Change.Status.Conditions, v1alpha1.ConditionDefended)
		if c.Reason != v1alpha1.ReasonWriteDenied || record.Detail(c) != "no quota; also: "+lowered || len(events) != 0 {
			t.Fatalf("condition %+v, events %v", c, events)
		}
	}
	w.in.Settings.Observe, w.in.ObservedBy = false, ""
	w.Step()
	if c := meta.FindStatusCondition(w.in.Change.Status.Conditions, v1alpha1.ConditionDefended); c.Reason != v1alpha1.ReasonWriteDenied ||
		record.Detail(c) != "no quota" {
		t.Errorf("condition %+v", c)
	}
	NoteDenied(&w.in.Change.Status, 1, testNow, WriteBatch, "no quota")
	w.in.Settings.Observe, w.in.ObservedBy = true, "the setting observe of the operator"
	w.Step()
	if !NoteAccepted(&w.in.Change.Status, 1, testNow, WriteBatch) {
		t.Error("the write is still denied")
	}
	if c := meta.FindStatusCondition(w.in.Change.Status.Conditions, v1alpha1.ConditionDefended); c.Status != metav1.ConditionFalse ||
		c.Reason != v1alpha1.ReasonObserving {
		t.Errorf("condition %+v", c)
	}
	if events := w.Step().Events; len(events) != 0 {
		t.Errorf("events %v", events)
	}
	if c := meta.FindStatusCondition(w.in.Change.Status.Conditions, v1alpha1.ConditionDefended); c.Reason != v1alpha1.ReasonObserving {
		t.Errorf("condition %+v", c)
	}
}

// TestLoweredByAnEarlierBuild: annotations that an earlier build reported are read as this build writes them.
func TestLoweredByAnEarlierBuild(t *testing.T) {
	s := &v1alpha1.ChangeWorkloadStatus{}
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionDefended, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonLowered,
		Message: "annotations of the workload lower its defense: blocking=disabled",
	})
	NoteDenied(s, 1, testNow, WriteBatch, "no quota")
	NoteAccepted(s, 1, testNow, WriteBatch)
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDefended)
	if c.Reason != v1alpha1.ReasonLowered || record.Detail(c) != loweredByAnnotations+"blocking=disabled" {
		t.Errorf("condition %+v", c)
	}
}

func heldAt(release int64) *workload.Hold {
	return (hold.Times{}).OrDefault().Begin(release, workload.Pace{MinReadySeconds: 5, ProgressDeadlineSeconds: 600}, v1alpha1.HoldEveryBatch,
		30*time.Minute, hold.Wave{})
}
