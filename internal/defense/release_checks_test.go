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
	"github.com/traas-stack/altershield-operator/internal/record"
)

// Begins adds a check of a policy at a stage of the release.
func (w *world) Begins(stage v1alpha1.PolicyStage, change ...func(*record.BeginCheck)) *world {
	b := record.BeginCheck{Due: time.Minute, Deadline: 2 * time.Minute, Status: v1alpha1.CheckStatus{
		Name: "default/p/" + strings.ToLower(string(stage)), Type: "cel", Stage: stage, Mode: v1alpha1.ModeEnforce,
	}}
	for _, c := range change {
		c(&b)
	}
	w.in.Begin = append(w.in.Begin, b)
	return w
}

func background(b *record.BeginCheck) { b.Status.Background = true }
func observed(b *record.BeginCheck)   { b.Status.Background, b.Status.Mode = true, v1alpha1.ModeObserve }

// Ends writes the result of a check to the status, like the controller of checks.
func (w *world) Ends(t *testing.T, stage v1alpha1.PolicyStage, phase v1alpha1.CheckPhase) []record.Event {
	t.Helper()
	c := record.FindCheck(w.in.Change.Status.Checks, "default/p/"+strings.ToLower(string(stage)))
	if c == nil {
		t.Fatalf("no check at %s in %+v", stage, w.in.Change.Status.Checks)
	}
	next := *c
	next.Phase, next.Reason, next.Message = phase, "Reason", "it came to "+string(phase)
	plan := record.NoteReleaseCheck(record.ReleaseCheckInput{Now: w.in.Now, Settings: w.in.Settings, Change: w.in.Change}, next)
	if plan.Status == nil {
		t.Fatalf("%s is not written of %+v", phase, c)
	}
	w.in.Change.Status = *plan.Status
	return plan.Events
}

func phaseAt(w *world, stage v1alpha1.PolicyStage) v1alpha1.CheckPhase {
	c := record.FindCheck(w.in.Change.Status.Checks, "default/p/"+strings.ToLower(string(stage)))
	if c == nil {
		return ""
	}
	return c.Phase
}

func TestReleaseChecks(t *testing.T) {
	const pre, post = v1alpha1.StageReleasePre, v1alpha1.StageReleasePost
	run := func(w *world) *world { return w.Pods(2).Complete() }
	tests := map[string]struct {
		do      func(t *testing.T) *world
		state   v1alpha1.ChangeWorkloadStatusType
		batches int
		reason  string // of the condition Verified
		says    string // the message of Verified
		blocked bool
	}{
		"batches wait for the first": {
			do: func(t *testing.T) *world {
				return run(newWorld(2).Begins(pre)).Settle(t).Later(time.Minute).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadRunning, reason: v1alpha1.ReasonChecking, says: "the pods wait for the check default/p/releasepre",
		},
		"that passed": {
			do: func(t *testing.T) *world {
				w := run(newWorld(2).Begins(pre)).Settle(t)
				w.Ends(t, pre, v1alpha1.CheckPassed)
				return w.Settle(t).Check().Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuccess, batches: 2, reason: v1alpha1.ReasonAllPassed,
		},
		"that failed: its pods are still verified": {
			do: func(t *testing.T) *world {
				w := run(newWorld(2).Begins(pre)).Settle(t)
				if events := w.Ends(t, pre, v1alpha1.CheckFailed); len(events) != 1 || events[0].Reason != v1alpha1.EventCheckFailed {
					t.Errorf("events %+v", events)
				}
				return w.Settle(t).Check().Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuspend, batches: 2, reason: v1alpha1.ReasonCheckFailed,
			says: "the check default/p/releasepre: it came to Failed", blocked: true,
		},
		"that has no verdict: it passes": {
			do: func(t *testing.T) *world {
				w := run(newWorld(2).Begins(pre)).Settle(t)
				w.Ends(t, pre, v1alpha1.CheckError)
				w.in.Settings.SilenceFails = true // a later change fails nothing
				return w.Settle(t).Check().Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuccess, batches: 2, reason: v1alpha1.ReasonAllPassed,
		},
		"that has no verdict, where silence fails": {
			do: func(t *testing.T) *world {
				w := run(newWorld(2).Begins(pre))
				w.in.Settings.SilenceFails = true
				w.Settle(t).Ends(t, pre, v1alpha1.CheckNoData)
				return w.Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuspend, batches: 2, reason: v1alpha1.ReasonCheckFailed, blocked: true,
		},
		"in the background holds nothing up": {
			do: func(t *testing.T) *world {
				return run(newWorld(2).Begins(pre, background).Begins(post, background)).Settle(t).Check().Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuccess, batches: 2, reason: v1alpha1.ReasonAllPassed,
		},
		"in the background fails after success": {
			do: func(t *testing.T) *world {
				w := run(newWorld(2).Begins(post, background)).Settle(t).Check().Settle(t)
				w.Ends(t, post, v1alpha1.CheckFailed)
				return w.Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuspend, batches: 2, reason: v1alpha1.ReasonCheckFailed, blocked: true,
		},
		"in observe mode": {
			do: func(t *testing.T) *world {
				w := run(newWorld(2).Begins(pre, observed)).Settle(t)
				if events := w.Ends(t, pre, v1alpha1.CheckFailed); len(events) != 1 || events[0].Reason != v1alpha1.EventDryRun {
					t.Errorf("events %+v", events)
				}
				return w.Settle(t).Check().Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuccess, batches: 2, reason: v1alpha1.ReasonAllPassed,
		},
		"success waits for the last": {
			do:    func(t *testing.T) *world { return run(newWorld(2).Begins(post)).Settle(t).Check().Settle(t) },
			state: v1alpha1.ChangeWorkloadRunning, batches: 2, reason: v1alpha1.ReasonChecking,
			says: "every pod passed; the check default/p/releasepost is running",
		},
		"the last passed": {
			do: func(t *testing.T) *world {
				w := run(newWorld(2).Begins(post)).Settle(t).Check().Settle(t)
				w.Ends(t, post, v1alpha1.CheckPassed)
				return w.Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuccess, batches: 2, reason: v1alpha1.ReasonAllPassed,
		},
		"the last failed, and was corrected": {
			do: func(t *testing.T) *world {
				w := run(newWorld(2).Begins(post)).Settle(t).Check().Settle(t)
				w.Ends(t, post, v1alpha1.CheckFailed)
				w.Settle(t)
				if w.in.Change.Status.Status != v1alpha1.ChangeWorkloadSuspend || !w.in.Change.Status.CheckFailed {
					t.Errorf("%+v", w.in.Change.Status)
				}
				record.FindCheck(w.in.Change.Status.Checks, "default/p/releasepost").Phase = v1alpha1.CheckPassed
				return w.Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuccess, batches: 2, reason: v1alpha1.ReasonAllPassed,
		},
		"a corrected pod leads to the last check, not past it": {
			do: func(t *testing.T) *world {
				w := run(newWorld(2).Begins(post)).Settle(t).Check().Settle(t)
				w.in.Change.Status.Checks = nil // the check had not begun
				w.Verdict("sleep-0", record.VerdictFail).Settle(t)
				if w.in.Change.Status.Status != v1alpha1.ChangeWorkloadSuspend || phaseAt(w, post) != "" {
					t.Errorf("%+v", w.in.Change.Status)
				}
				return w.Verdict("sleep-0", record.VerdictPass).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadRunning, batches: 2, reason: v1alpha1.ReasonChecking,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := tt.do(t)
			s := &w.in.Change.Status
			if s.Status != tt.state || len(w.in.Batches) != tt.batches {
				t.Errorf("state %q with %d batches, want %q with %d", s.Status, len(w.in.Batches), tt.state, tt.batches)
			}
			c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionVerified)
			if c == nil || c.Reason != tt.reason || !strings.Contains(c.Message, tt.says) {
				t.Errorf("Verified %+v, want %s %q", c, tt.reason, tt.says)
			}
			if w.in.Workload.Blocked() != tt.blocked {
				t.Errorf("blocked: %t", w.in.Workload.Blocked())
			}
			if b := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionBlocked); tt.blocked &&
				(b == nil || b.Status != metav1.ConditionTrue || b.Reason != v1alpha1.ReasonCheckFailed) {
				t.Errorf("Blocked %+v", b)
			}
		})
	}
}

// TestReleaseChecksEnd: a replaced release cancels its checks, and their late results are not written.
func TestReleaseChecksEnd(t *testing.T) {
	w := newWorld(2).Begins(v1alpha1.StageReleasePre).Pods(2).Settle(t)
	running := w.in.Change.DeepCopy()
	w.Release(2, versionB).Settle(t)
	if got := phaseAt(w, v1alpha1.StageReleasePre); got != v1alpha1.CheckCanceled ||
		w.in.Change.Status.Status != v1alpha1.ChangeWorkloadCanceled {
		t.Errorf("check %s of a release %s", got, w.in.Change.Status.Status)
	}
	late := running.Status.Checks[0]
	late.Phase = v1alpha1.CheckFailed
	if plan := record.NoteReleaseCheck(record.ReleaseCheckInput{Now: w.in.Now, Change: w.in.Change}, late); plan.Status != nil {
		t.Errorf("%+v", plan.Status.Checks)
	}
	if plan := record.NoteReleaseCheck(record.ReleaseCheckInput{Now: w.in.Now, Change: running},
		running.Status.Checks[0]); plan.Status != nil {
		t.Errorf("nothing changed, and %+v is written", plan.Status.Checks)
	}
	unknown := late
	unknown.Name = "default/p/other"
	if plan := record.NoteReleaseCheck(record.ReleaseCheckInput{Now: w.in.Now, Change: running}, unknown); plan.Status != nil {
		t.Errorf("%+v", plan.Status.Checks)
	}
}

// TestReleaseChecksOfAttempts: each attempt has its own checks, which do not change during the attempt.
func TestReleaseChecksOfAttempts(t *testing.T) {
	w := newWorld(2).Begins(v1alpha1.StageReleasePre).Pods(2).Settle(t)
	w.Ends(t, v1alpha1.StageReleasePre, v1alpha1.CheckFailed)
	w.in.Begin = append(w.in.Begin,
		record.BeginCheck{Status: v1alpha1.CheckStatus{Name: "default/q/late", Type: "cel", Stage: v1alpha1.StageReleasePre}})
	w.Settle(t)
	if n := len(w.in.Change.Status.Checks); n != 1 {
		t.Errorf("%d checks", n)
	}
	w.in.Change.Spec.Release = 3
	w.in.Workload.Annotations[v1alpha1.ReleaseAnnotation] = "3"
	w.Settle(t)
	if got := phaseAt(w, v1alpha1.StageReleasePre); got != v1alpha1.CheckRunning || len(w.in.Change.Status.Checks) != 2 {
		t.Errorf("%s of the new attempt; %+v", got, w.in.Change.Status.Checks)
	}
}

// TestReleaseChecksBesideOrder: a failed check creates no batches before the order is accepted, because the server
// would not check them.
func TestReleaseChecksBesideOrder(t *testing.T) {
	w := newWorld(2).Pods(2).Complete().Begins(v1alpha1.StageReleasePre)
	w.in.Cluster = "cluster"
	w.Settle(t).Ends(t, v1alpha1.StageReleasePre, v1alpha1.CheckFailed)
	w.Settle(t)
	if s := &w.in.Change.Status; s.Status != v1alpha1.ChangeWorkloadInit || len(w.in.Batches) != 0 {
		t.Errorf("state %q with %d batches, and the order is %s", s.Status, len(w.in.Batches), s.OrderStage)
	}
	w.in.Change.Status.Status, w.in.Change.Status.OrderStage = v1alpha1.ChangeWorkloadRunning, v1alpha1.OrderPostWait
	w.Settle(t)
	if s := &w.in.Change.Status; s.Status != v1alpha1.ChangeWorkloadSuspend || !w.in.Workload.Blocked() {
		t.Errorf("state %q, blocked: %t", s.Status, w.in.Workload.Blocked())
	}
	refused := newWorld(2).Pods(2).Begins(v1alpha1.StageReleasePre)
	refused.in.Cluster = "cluster"
	refused.Settle(t).in.Change.Status.OrderStage = v1alpha1.OrderRefused
	if got := phaseAt(refused.Settle(t), v1alpha1.StageReleasePre); got != v1alpha1.CheckCanceled {
		t.Errorf("the order was refused, and the check is %s", got)
	}
}

// TestReleaseChecksOfNoPods: a release without pods also waits for its checks, one after the other.
func TestReleaseChecksOfNoPods(t *testing.T) {
	w := newWorld(0).Complete().Begins(v1alpha1.StageReleasePre).Begins(v1alpha1.StageReleasePost).Settle(t)
	if s := &w.in.Change.Status; s.Status == v1alpha1.ChangeWorkloadSuccess || phaseAt(w, v1alpha1.StageReleasePost) != "" {
		t.Errorf("state %q, checks %+v", s.Status, s.Checks)
	}
	w.Ends(t, v1alpha1.StageReleasePre, v1alpha1.CheckPassed)
	w.Settle(t).Ends(t, v1alpha1.StageReleasePost, v1alpha1.CheckPassed)
	if s := &w.Settle(t).in.Change.Status; s.Status != v1alpha1.ChangeWorkloadSuccess {
		t.Errorf("state %q, checks %+v", s.Status, s.Checks)
	}
}

// TestReleaseCheckFailsLater: a check that fails after the block of a failed pod was lifted by hand blocks again; known
// failures do not.
func TestReleaseCheckFailsLater(t *testing.T) {
	w := newWorld(2).Pods(2).Complete().Begins(v1alpha1.StageReleasePost, background).Settle(t).Check().Settle(t)
	w.Verdict("sleep-0", record.VerdictFail).Settle(t)
	lift := func() {
		delete(w.stored.Labels, v1alpha1.SuspendLabel)
		delete(w.stored.Annotations, v1alpha1.SuspendedByAnnotation)
		w.Settle(t)
	}
	if lift(); w.stored.Blocked() {
		t.Fatal("what was lifted by hand is blocked again")
	}
	w.Ends(t, v1alpha1.StageReleasePost, v1alpha1.CheckFailed)
	if w.Settle(t); !w.stored.Blocked() {
		t.Error("it is not blocked")
	}
	if lift(); w.stored.Blocked() {
		t.Error("what was lifted by hand is blocked again")
	}
}

// TestReleaseChecksOfReplaced: a successful release that was replaced cancels its checks in the background.
func TestReleaseChecksOfReplaced(t *testing.T) {
	w := newWorld(2).Pods(2).Complete().Begins(v1alpha1.StageReleasePost, background).Settle(t).Check().Settle(t)
	w.Release(2, versionB).Settle(t)
	if got := phaseAt(w, v1alpha1.StageReleasePost); got != v1alpha1.CheckCanceled {
		t.Errorf("the check is %s of a release %s", got, w.in.Change.Status.Status)
	}
}

// TestBatchWaitsAfterCheck: the wait for a full batch begins when the check allows batches.
func TestBatchWaitsAfterCheck(t *testing.T) {
	w := newWorld(10).BatchSize(5).Pods(2).Begins(v1alpha1.StageReleasePre).Settle(t).Later(10 * time.Minute)
	w.Ends(t, v1alpha1.StageReleasePre, v1alpha1.CheckPassed)
	if w.Settle(t); w.in.Change.Status.Status != v1alpha1.ChangeWorkloadRunning || len(w.in.Batches) != 0 {
		t.Errorf("state %q with %d batches", w.in.Change.Status.Status, len(w.in.Batches))
	}
	if w.Later(time.Minute + time.Second).Settle(t); len(w.in.Batches) != 1 {
		t.Errorf("%d batches", len(w.in.Batches))
	}
}

// TestFirstFailureDecides: after a check has failed the release, its other awaited checks are canceled, and its pods
// are verified.
func TestFirstFailureDecides(t *testing.T) {
	other := func(b *record.BeginCheck) { b.Status.Name = "default/p/other" }
	watching := func(b *record.BeginCheck) { b.Status.Name, b.Status.Background = "default/p/watching", true }
	w := newWorld(2).Pods(2).Complete().Begins(v1alpha1.StageReleasePre).Begins(v1alpha1.StageReleasePre,
		other).Begins(v1alpha1.StageReleasePre, watching).Settle(t)
	w.Ends(t, v1alpha1.StageReleasePre, v1alpha1.CheckFailed)
	w.Settle(t).Check().Settle(t)
	for name, want := range map[string]v1alpha1.CheckPhase{"default/p/other": v1alpha1.CheckCanceled,
		"default/p/watching": v1alpha1.CheckWatching} {
		if c := record.FindCheck(w.in.Change.Status.Checks, name); c == nil || c.Phase != want {
			t.Errorf("%s is %+v", name, c)
		}
	}
	if s := &w.in.Change.Status; s.Status != v1alpha1.ChangeWorkloadSuspend || s.PassCount != 2 {
		t.Errorf("%s with %d pods that passed", s.Status, s.PassCount)
	}
}
