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
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func TestStateRollbackByHand(t *testing.T) {
	good := []workload.Revision{{Name: "b", Version: versionB, Release: 0}}
	for name, test := range map[string]struct {
		world   func(t *testing.T) *world
		history []workload.Revision
		change  func(*world)
		// state is the state of the release afterwards, to the target of the request, and refused the reason for a
		// refusal.
		state   v1alpha1.ChangeWorkloadStatusType
		to      string
		refused string
	}{
		"while it runs":     {world: releaseRunning, history: good, state: v1alpha1.ChangeWorkloadRunning, to: versionB},
		"after its success": {world: releaseSucceeded, history: good, state: v1alpha1.ChangeWorkloadSuccess, to: versionB},
		"while suspended":   {world: releaseSuspended, history: good, state: v1alpha1.ChangeWorkloadSuspend, to: versionB},
		"nothing to go to": {world: releaseSuspended, state: v1alpha1.ChangeWorkloadSuspend,
			refused: "the history has no version except the current one"},
		"all in quarantine": {world: releaseSucceeded, history: good, state: v1alpha1.ChangeWorkloadSuccess,
			refused: "the history has no version except the current one",
			change:  func(w *world) { w.stored.Annotations[v1alpha1.QuarantinedAnnotation] = versionB }},
		"observed only": {world: releaseSucceeded, history: good, state: v1alpha1.ChangeWorkloadSuccess, refused: "in observe mode",
			change: func(w *world) { w.in.Settings.Observe = true }},
		"asked for already": {world: releaseSucceeded, history: good, state: v1alpha1.ChangeWorkloadSuccess,
			change: func(w *world) { w.stored.Annotations[v1alpha1.RollbackToAnnotation] = rollback.LastSuccess }},
	} {
		t.Run(name, func(t *testing.T) {
			w := test.world(t)
			w.in.History = append(w.in.History, test.history...)
			if test.change != nil {
				test.change(w)
			}
			blocked := w.stored.Blocked()
			w.Status(v1alpha1.ChangeWorkloadRollback)
			if plan := DecideRelease(w.in); !plan.NeedsLive {
				t.Error("decided on a cache that may be behind")
			}
			plan := w.Step()
			if plan.RollbackTo != test.to {
				t.Errorf("asked to go to %q, want %q", plan.RollbackTo, test.to)
			}
			if got := w.in.Change.Status.Status; got != test.state {
				t.Errorf("state %s, want %s", got, test.state)
			}
			if reported := len(plan.ActionEvents) == 1 &&
				strings.HasSuffix(plan.ActionEvents[0].Message, ": to version "+test.to); reported != (test.to != "") {
				t.Errorf("events %+v", plan.ActionEvents)
			}
			c := meta.FindStatusCondition(w.in.Change.Status.Conditions, v1alpha1.ConditionRolledBack)
			refused := c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonRequestRefused &&
				strings.Contains(c.Message, test.refused)
			if refused != (test.refused != "") {
				t.Errorf("condition %+v, want refused: %q", c, test.refused)
			}
			if reported := len(plan.Events) == 1 && plan.Events[0].Reason == v1alpha1.ReasonRollbackRefused; reported != (test.refused != "") {
				t.Errorf("events %+v", plan.Events)
			}
			if w.stored.Blocked() != blocked || plan.Action != LeaveWorkload {
				t.Error("the block was touched")
			}
		})
	}
}

// TestStateRollbackByHandThenCrash: the process dies after the request was recorded, and before the state was written;
// the release is rolled back meanwhile, and reports it.
func TestStateRollbackByHandThenCrash(t *testing.T) {
	w := releaseSucceeded(t)
	w.in.History = append(w.in.History, workload.Revision{Name: "b", Version: versionB})
	w.Status(v1alpha1.ChangeWorkloadRollback).Crash()
	rollback.ParseQuarantine(nil, testNow).With(versionA,
		rollback.QuarantineReason{Cause: v1alpha1.ReasonRollbackRequested, Release: 1, To: versionB}).Annotate(w.stored.Annotations)
	w.Release(2, versionB)
	plan := w.Step()
	if !meta.IsStatusConditionTrue(w.in.Change.Status.Conditions, v1alpha1.ConditionRolledBack) || len(plan.Events) != 1 ||
		plan.Events[0].Reason != "RolledBack" {
		t.Errorf("conditions %+v, events %+v", w.in.Change.Status.Conditions, plan.Events)
	}
}

func releaseRunning(t *testing.T) *world {
	t.Helper()
	return newWorld(3).Pods(2).Pods(1, unready).Settle(t)
}

func releaseSucceeded(t *testing.T) *world {
	t.Helper()
	return newWorld(2).Pods(2).Complete().Settle(t)
}

func releaseSuspended(t *testing.T) *world {
	t.Helper()
	w := releaseSucceeded(t)
	return w.Verdict("sleep-0", "unpass").Settle(t)
}

func TestTimeOutPreThreshold(t *testing.T) {
	const state = v1alpha1.ChangeWorkloadTimeOutPreThreshold
	wait := settings.Default().Wait
	t.Run("a batch that is not full: the state first, then the batch", func(t *testing.T) {
		w := newWorld(5).BatchSize(3).Pods(2).Pods(3, unready).Settle(t)
		if n := len(w.in.Batches); n != 0 {
			t.Fatalf("%d batches before the time is over", n)
		}
		plan := w.Later(wait).Step()
		if w.in.Change.Status.Status != state || len(plan.Batches) != 0 || len(plan.Events) != 0 {
			t.Fatalf("%s, %d batches, events %+v", w.in.Change.Status.Status, len(plan.Batches), plan.Events)
		}
		if plan.RequeueAfter <= 0 || plan.RequeueAfter > time.Second {
			t.Errorf("looks again in %s", plan.RequeueAfter)
		}
		plan = w.Step()
		if w.in.Change.Status.Status != v1alpha1.ChangeWorkloadRunning || len(plan.Batches) != 1 || len(plan.Batches[0].Pods) != 2 {
			t.Errorf("%s, batches %+v", w.in.Change.Status.Status, plan.Batches)
		}
	})
	t.Run("none: it stays until one comes", func(t *testing.T) {
		w := newWorld(2).BatchSize(2).Pods(2, unready).Settle(t).Later(wait).Settle(t)
		if w.in.Change.Status.Status != state {
			t.Fatal(w.in.Change.Status.Status)
		}
		w.in.Pods[0].Ready = true
		if plan := w.Later(time.Second).Step(); len(plan.Batches) != 1 || w.in.Change.Status.Status != v1alpha1.ChangeWorkloadRunning {
			t.Errorf("%s, batches %+v", w.in.Change.Status.Status, plan.Batches)
		}
	})
	for name, test := range map[string]struct {
		change  func(*world)
		batches int
	}{
		"paused": {func(w *world) { w.Paused() }, 1},
		"stuck":  {func(w *world) { w.stored.Rollout.Stuck = true }, 1},
		// Only old pods have yet to go.
		"every pod is verified": {func(w *world) { w.in.Pods, w.stored.Replicas = w.in.Pods[:2], 2; w.BatchSize(1) }, 2},
	} {
		t.Run("not entered: "+name, func(t *testing.T) {
			w := newWorld(5).BatchSize(3).Pods(2).Pods(3, unready)
			test.change(w)
			for range 8 {
				w.Step()
				if got := w.Check().in.Change.Status.Status; got == state {
					t.Fatal(got)
				}
				w.Later(wait)
			}
			if len(w.in.Batches) != test.batches {
				t.Errorf("%d batches, want %d", len(w.in.Batches), test.batches)
			}
		})
	}
}

// TestUntilAsked: a replaced pod is missing for a moment, and the operator does not ask why.
func TestUntilAsked(t *testing.T) {
	for name, test := range map[string]struct {
		lacking *workload.Lacking
		want    time.Duration
	}{
		"none":         {nil, 0},
		"just now":     {&workload.Lacking{Count: 1, Since: testNow}, 10 * time.Second},
		"for a while":  {&workload.Lacking{Count: 1, Since: testNow.Add(-10 * time.Second)}, rollback.LookAgain},
		"by its clock": {&workload.Lacking{Count: 1, Since: testNow.Add(time.Second)}, 10*time.Second + time.Second},
	} {
		if got := untilAsked(&workload.Workload{Lacking: test.lacking}, testNow); got != test.want {
			t.Errorf("%s: asked again after %s, want %s", name, got, test.want)
		}
	}
}
