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
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// podless returns a release of an object without pods, which has to stay complete for a minute, within ten minutes.
func podless() *world {
	w := newWorld(0)
	w.in.Workload.WithoutPods, w.in.Workload.Settle, w.in.Workload.ProgressDeadline = true, time.Minute, 10*time.Minute
	return w
}

func (w *world) NotComplete() *world { w.in.Workload.Rollout.Complete = false; return w }

func (w *world) Resumed() *world { w.in.Workload.Paused = false; return w }

func (w *world) Stuck(why string) *world {
	w.in.Workload.Rollout.Stuck, w.in.Workload.Rollout.Message = why != "", why
	return w
}

func (w *world) Problem(why string) *world { w.in.Workload.Problem = why; return w }

func TestReleaseWithoutPods(t *testing.T) {
	const pre, post = v1alpha1.StageReleasePre, v1alpha1.StageReleasePost
	tests := map[string]struct {
		do      func(t *testing.T) *world
		state   v1alpha1.ChangeWorkloadStatusType
		reason  string // of the condition Verified
		says    string // the message of Verified
		blocked bool
		// complete and stuck are how long ago the rollout became so, and again is when to decide again.
		complete, stuck, again time.Duration
	}{
		"waits for its rollout": {
			do:    func(t *testing.T) *world { return podless().Settle(t).Later(5 * time.Minute).Settle(t) },
			state: v1alpha1.ChangeWorkloadRunning, reason: v1alpha1.ReasonChecking,
			says: "the release waits for its rollout", again: 5 * time.Minute,
		},
		"has to stay complete": {
			do:    func(t *testing.T) *world { return podless().Complete().Settle(t).Later(50 * time.Second).Settle(t) },
			state: v1alpha1.ChangeWorkloadRunning, reason: v1alpha1.ReasonChecking,
			says:     "the rollout has to stay complete until 2026-03-04T05:07:07Z",
			complete: 50 * time.Second, again: 10 * time.Second,
		},
		"stayed complete": {
			do:    func(t *testing.T) *world { return podless().Complete().Settle(t).Later(time.Minute).Settle(t) },
			state: v1alpha1.ChangeWorkloadSuccess, reason: v1alpha1.ReasonRolloutComplete, complete: time.Minute,
		},
		"was not complete for a moment": {
			do: func(t *testing.T) *world {
				return podless().Complete().Settle(t).Later(50 * time.Second).NotComplete().Settle(t).
					Later(time.Second).Complete().Settle(t).Later(59 * time.Second).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadRunning, reason: v1alpha1.ReasonChecking,
			says:     "the rollout has to stay complete until 2026-03-04T05:07:58Z",
			complete: 59 * time.Second, again: time.Second,
		},
		"is not known for a moment": {
			do: func(t *testing.T) *world {
				w := podless().Complete().Settle(t).Later(50 * time.Second).NotComplete()
				w.in.Workload.Rollout.Stale = true
				w.Settle(t).Later(10 * time.Second).Settle(t).Complete()
				w.in.Workload.Rollout.Stale = false
				return w.Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuccess, reason: v1alpha1.ReasonRolloutComplete, complete: time.Minute,
		},
		"an expression fails for a moment": {
			do: func(t *testing.T) *world {
				w := podless().Complete().Settle(t).Later(50 * time.Second).NotComplete().Problem("no such key").Settle(t)
				return w.Later(10 * time.Second).Settle(t).Complete().Problem("").Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuccess, reason: v1alpha1.ReasonRolloutComplete, complete: time.Minute,
		},
		"an expression that fails exceeds no deadline": {
			do: func(t *testing.T) *world {
				return podless().Problem("no such key").Settle(t).Later(time.Hour).Settle(t).Later(time.Minute).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadRunning, reason: v1alpha1.ReasonChecking, says: "the release waits for its rollout",
		},
		"the process dies before it writes the time": {
			do:    func(t *testing.T) *world { return podless().Settle(t).Complete().Crash().Later(time.Minute).Settle(t) },
			state: v1alpha1.ChangeWorkloadRunning, reason: v1alpha1.ReasonChecking,
			says:  "the rollout has to stay complete until 2026-03-04T05:08:07Z",
			again: time.Minute,
		},
		"is stuck for a moment": {
			do: func(t *testing.T) *world {
				return podless().Stuck("ran aground").Settle(t).Later(time.Minute).Settle(t).Stuck("").Settle(t).
					Later(4 * time.Minute).Stuck("ran aground").Settle(t)
			},
			state: v1alpha1.ChangeWorkloadRunning, reason: v1alpha1.ReasonChecking, says: "the release waits for its rollout",
			again: 2 * time.Minute,
		},
		"is stuck": {
			do: func(t *testing.T) *world {
				return podless().Stuck("ran aground").Settle(t).Later(2 * time.Minute).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuspend, reason: v1alpha1.ReasonRolloutStuck,
			says: "stuck for longer than 2m0s: ran aground", blocked: true,
		},
		"is not complete in time": {
			do: func(t *testing.T) *world {
				return podless().Settle(t).Later(10 * time.Minute).Settle(t).Later(10 * time.Second).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuspend, reason: v1alpha1.ReasonRolloutStuck,
			says: "not complete within 10m0s", blocked: true,
		},
		"an older view of a complete rollout exceeds no deadline": {
			do: func(t *testing.T) *world {
				return podless().Settle(t).Later(590 * time.Second).Complete().Settle(t).Later(30 * time.Second).
					NotComplete().Settle(t).Later(time.Second).Complete().Settle(t)
			},
			state: v1alpha1.ChangeWorkloadRunning, reason: v1alpha1.ReasonChecking,
			says:  "the rollout has to stay complete until 2026-03-04T05:17:28Z",
			again: time.Minute,
		},
		"the time of a paused rollout does not count": {
			do: func(t *testing.T) *world {
				return podless().Paused().Settle(t).
					Later(time.Hour).Settle(t).Resumed().Settle(t).Later(9 * time.Minute).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadRunning, reason: v1alpha1.ReasonChecking,
			says: "the release waits for its rollout", again: time.Minute,
		},
		"is complete after it failed": {
			do: func(t *testing.T) *world {
				return podless().Stuck("ran aground").Settle(t).Later(2 * time.Minute).Settle(t).
					Stuck("").Resumed().Complete().Settle(t).Later(time.Minute).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuccess, reason: v1alpha1.ReasonRolloutComplete, complete: time.Minute,
		},
		"is complete while it is halted": {
			do: func(t *testing.T) *world {
				return podless().Stuck("ran aground").Settle(t).
					Later(2 * time.Minute).Settle(t).Stuck("").Complete().Settle(t).Later(time.Hour).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuspend, reason: v1alpha1.ReasonRolloutStuck,
			says: "stuck for longer than 2m0s: ran aground", blocked: true,
			complete: time.Hour,
		},
		"is complete for a moment after it failed": {
			do: func(t *testing.T) *world {
				return podless().Stuck("ran aground").Settle(t).Later(2 * time.Minute).Settle(t).
					Stuck("").Resumed().Complete().Settle(t).Later(59 * time.Second).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuspend, reason: v1alpha1.ReasonRolloutStuck,
			says: "stuck for longer than 2m0s: ran aground", blocked: true,
			complete: 59 * time.Second, again: time.Second,
		},
		"a person corrected the failure": {
			do: func(t *testing.T) *world {
				w := podless().Stuck("ran aground").Settle(t).Later(2 * time.Minute).Settle(t)
				record.FindCheck(w.in.Change.Status.Checks, RolloutCheck).Phase = v1alpha1.CheckPassed
				return w.Settle(t).Later(time.Hour).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadRunning, reason: v1alpha1.ReasonChecking, says: "the release waits for its rollout",
			stuck: time.Hour,
		},
		"stays corrected until it is complete": {
			do: func(t *testing.T) *world {
				w := podless().Stuck("ran aground").Settle(t).Later(2 * time.Minute).Settle(t)
				record.FindCheck(w.in.Change.Status.Checks, RolloutCheck).Phase = v1alpha1.CheckPassed
				w.Settle(t).Resumed().Stuck("").Complete().Settle(t).Later(time.Minute).Settle(t)
				return w.NotComplete().Stuck("hit a rock").Settle(t).Later(2 * time.Minute).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuspend, reason: v1alpha1.ReasonRolloutStuck,
			says: "stuck for longer than 2m0s: hit a rock", blocked: true,
		},
		"an expression that failed for an hour leaves time for the rollout": {
			do: func(t *testing.T) *world {
				return podless().Problem("no such key").Settle(t).Later(time.Hour).Settle(t).Problem("").Settle(t).
					Later(9 * time.Minute).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadRunning, reason: v1alpha1.ReasonChecking, says: "the release waits for its rollout",
			again: time.Minute,
		},
		"waits for a check at its beginning": {
			do: func(t *testing.T) *world {
				return podless().Begins(pre).Complete().Settle(t).Later(time.Minute).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadRunning, reason: v1alpha1.ReasonChecking,
			says:     "the release waits for the check default/p/releasepre",
			complete: time.Minute,
		},
		"a check at its beginning failed": {
			do: func(t *testing.T) *world {
				w := podless().Begins(pre).Settle(t)
				w.Ends(t, pre, v1alpha1.CheckFailed)
				return w.Settle(t).Complete().Settle(t).Later(time.Minute).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuspend, reason: v1alpha1.ReasonCheckFailed,
			says:    "the check default/p/releasepre: it came to Failed",
			blocked: true, complete: time.Minute,
		},
		"a check at its end runs": {
			do: func(t *testing.T) *world {
				return podless().Begins(post).Complete().Settle(t).Later(time.Minute).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadRunning, reason: v1alpha1.ReasonChecking,
			says: "the rollout is complete; the check default/p/releasepost is running", complete: time.Minute,
		},
		"a check at its end passed": {
			do: func(t *testing.T) *world {
				w := podless().Begins(post).Complete().Settle(t).Later(time.Minute).Settle(t)
				w.Ends(t, post, v1alpha1.CheckPassed)
				return w.Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuccess, reason: v1alpha1.ReasonRolloutComplete, complete: time.Minute,
		},
		"a check at its end failed": {
			do: func(t *testing.T) *world {
				w := podless().Begins(post).Complete().Settle(t).Later(time.Minute).Settle(t)
				w.Ends(t, post, v1alpha1.CheckFailed)
				return w.Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuspend, reason: v1alpha1.ReasonCheckFailed,
			says:    "the check default/p/releasepost: it came to Failed",
			blocked: true, complete: time.Minute,
		},
		"a rollout that stops during the last check, which does not run again": {
			do: func(t *testing.T) *world {
				return podless().Begins(post).Complete().Settle(t).Later(time.Minute).Settle(t).
					NotComplete().Stuck("ran aground").Settle(t).Later(2 * time.Minute).Settle(t).
					Stuck("").Resumed().Complete().Settle(t).Later(time.Hour).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuspend, reason: v1alpha1.ReasonRolloutStuck,
			says: "stuck for longer than 2m0s: ran aground", blocked: true,
			complete: time.Hour,
		},
		"is stuck soon after it succeeded": {
			do: func(t *testing.T) *world {
				return podless().Complete().Settle(t).Later(time.Minute).Settle(t).Later(time.Minute).
					NotComplete().Stuck("ran aground").Settle(t).Later(2 * time.Minute).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuspend, reason: v1alpha1.ReasonRolloutStuck,
			says: "stuck for longer than 2m0s: ran aground", blocked: true,
		},
		"is stuck long after it succeeded": {
			do: func(t *testing.T) *world {
				return podless().Complete().Settle(t).Later(time.Minute).Settle(t).Later(24 * time.Hour).
					NotComplete().Stuck("ran aground").Settle(t).Later(time.Hour).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuccess, reason: v1alpha1.ReasonRolloutComplete, stuck: time.Hour,
		},
		"is not complete after it succeeded": {
			do: func(t *testing.T) *world {
				return podless().Complete().Settle(t).
					Later(time.Minute).Settle(t).NotComplete().Settle(t).Later(time.Hour).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuccess, reason: v1alpha1.ReasonRolloutComplete,
		},
		"lifts the block that it began with": {
			do: func(t *testing.T) *world {
				return podless().Suspended("").Complete().Settle(t).Later(time.Minute).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuccess, reason: v1alpha1.ReasonRolloutComplete, complete: time.Minute,
		},
		"replicas and pods do not count": {
			do: func(t *testing.T) *world {
				w := podless().Complete()
				w.in.Workload.Replicas = 3
				return w.Settle(t).Later(time.Minute).Settle(t)
			},
			state: v1alpha1.ChangeWorkloadSuccess, reason: v1alpha1.ReasonRolloutComplete, complete: time.Minute,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := tt.do(t)
			s := w.in.Change.Status
			verified := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionVerified)
			if s.Status != tt.state || verified.Reason != tt.reason || record.Detail(verified) != tt.says || len(w.in.Batches) != 0 {
				t.Errorf("%s, %s (%s), %d batches", s.Status, verified.Reason, record.Detail(verified), len(w.in.Batches))
			}
			if w.stored.Blocked() != tt.blocked {
				t.Errorf("blocked: %t", w.stored.Blocked())
			}
			ago := func(at int64) time.Duration {
				if at == 0 {
					return 0
				}
				return w.in.Now.Sub(time.Unix(at, 0))
			}
			if ago(s.CompleteTimeUnix) != tt.complete || ago(s.StuckTimeUnix) != tt.stuck {
				t.Errorf("complete for %s, stuck for %s", ago(s.CompleteTimeUnix), ago(s.StuckTimeUnix))
			}
			if plan := DecideRelease(w.in); tt.again != 0 && plan.RequeueAfter != tt.again {
				t.Errorf("again in %s, want %s", plan.RequeueAfter, tt.again)
			}
		})
	}
}

// TestReleasedAgainWithoutPods: an expression may read when the version was released, and the first turn of a release that releases
// it again has the time of the release before. So this turn believes neither that the rollout is complete, nor that it is stuck.
func TestReleasedAgainWithoutPods(t *testing.T) {
	for name, do := range map[string]func(w *world) *world{
		"complete": (*world).Complete, "stuck": func(w *world) *world { return w.Stuck("ran aground") },
	} {
		w := podless().Complete().Settle(t).Later(time.Minute).Settle(t).Later(time.Hour)
		w.in.Workload.Settle, w.in.Settings.RollbackAfter = 0, 0
		w.in.Change.Spec.Release += 2
		w.Release(w.in.Change.Spec.Release, w.in.Change.Spec.Reversion)
		plan := do(w.NotComplete()).Step()
		s := w.in.Change.Status
		if s.Status != v1alpha1.ChangeWorkloadRunning || s.CompleteTimeUnix+s.StuckTimeUnix != 0 || plan.RequeueAfter != time.Second/10 {
			t.Errorf("%s: %s, %+v, again in %s", name, s.Status, s.Checks, plan.RequeueAfter)
		}
		if w.NotComplete().Stuck("").Settle(t); w.in.Change.Status.Status != v1alpha1.ChangeWorkloadRunning {
			t.Errorf("%s: %s", name, w.in.Change.Status.Status)
		}
	}
}

// TestHistoryWithoutPods: a version enters the history although no pod passed, and is proven once its rollout stays complete.
func TestHistoryWithoutPods(t *testing.T) {
	w := podless().Complete().Settle(t).Later(time.Minute)
	if plan := w.Step(); !plan.Remember {
		t.Errorf("not remembered: %+v", plan)
	}
	w.in.History = []workload.Revision{{Name: "a", UID: types.UID("a"), Version: versionA, Release: 1, Unproven: true}}
	w.Later(w.in.Settings.RollbackProven / 2).NotComplete().Settle(t).Complete().Settle(t).
		Later(w.in.Settings.RollbackProven - time.Second).Settle(t)
	c := meta.FindStatusCondition(w.in.Change.Status.Conditions, v1alpha1.ConditionProven)
	if c == nil || c.Reason != v1alpha1.ReasonChecking {
		t.Errorf("too early: %+v", c)
	}
	if plan := w.Later(time.Second).Step(); plan.Prove == nil {
		t.Errorf("not proven: %+v", plan)
	}
}

// TestHealedRolloutIsNoCorrection: an event says why the block is lifted, and no event names a corrected verdict.
func TestHealedRolloutIsNoCorrection(t *testing.T) {
	w := podless().Begins(v1alpha1.StageReleasePost).Stuck("ran aground").Settle(t).Later(2 * time.Minute).Settle(t).
		Stuck("").Resumed().Complete().Settle(t)
	plan := w.Later(time.Minute).Step()
	if plan.Action != LiftBlock || len(plan.ActionEvents) != 1 || !strings.Contains(plan.ActionEvents[0].Message, "the rollout is complete") {
		t.Errorf("action %v, events %+v", plan.Action, plan.ActionEvents)
	}
	for _, e := range plan.Events {
		if e.Reason == v1alpha1.EventVerdictCorrected {
			t.Errorf("event %+v", e)
		}
	}
}
