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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func ago(d time.Duration) time.Time { return testNow.Add(-d) }

// beginning is a release of ten replicas, of which some pods run well, and others
// do not come up.
func beginning(well, stuck int, change ...func(*start)) *start {
	s := &start{RollbackInput{
		Now: testNow, Settings: settings.Default(),
		Workload: &workload.Workload{
			GVK: appsv1.SchemeGroupVersion.WithKind("Deployment"), Namespace: "shop", Name: "sleep", Version: versionB,
			Replicas: 10, Rolling: true, InFlight: 5, ProgressDeadline: 10 * time.Minute,
			Annotations:  map[string]string{v1alpha1.ReleaseAnnotation: "2"},
			OldRevisions: []workload.OldRevision{{Name: "sleep-a", Version: versionA, Number: 1, Replicas: 5, Ready: 5}},
		},
		History: []workload.Revision{{Name: "a", Version: versionA, Release: 1}},
	}, &v1alpha1.ChangeWorkloadStatus{Status: v1alpha1.ChangeWorkloadRunning, StartTimeUnix: ago(time.Hour).Unix()}}
	for i := range well {
		s.Pods = append(s.Pods, workload.Pod{Name: fmt.Sprint("well-", i), UID: types.UID(fmt.Sprint("w", i)), Node: fmt.Sprint("n", i),
			Ready: true, Created: ago(time.Hour), ReadySince: ago(30 * time.Minute)})
	}
	for i := range stuck {
		s.Pods = append(s.Pods, workload.Pod{Name: fmt.Sprint("bad-", i), UID: types.UID(fmt.Sprint("b", i)), Node: "bad-node", Created: ago(15 * time.Minute),
			Stuck: &workload.Stuck{Container: "main", Reason: "ImagePullBackOff", Created: ago(15 * time.Minute), Begun: ago(3 * time.Minute), From: ago(3 * time.Minute)}})
	}
	if well > 0 {
		s.status.PassCount = int32(well)
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func (s *start) eachStuck(change func(*workload.Stuck)) {
	for i := range s.Pods {
		if s.Pods[i].Stuck != nil {
			change(s.Pods[i].Stuck)
		}
	}
}

func slowFor(d time.Duration, reason string) func(*start) {
	return func(s *start) {
		s.eachStuck(func(h *workload.Stuck) { h.Slow, h.Reason, h.Begun, h.From = true, reason, ago(d), ago(d) })
	}
}

func onNodes(s *start) {
	for i := range s.Pods {
		s.Pods[i].Node = fmt.Sprint("n", i)
	}
}

func succeeded(since time.Duration) func(*start) {
	return func(s *start) {
		s.status.Status, s.status.UpdateTimeUnix = v1alpha1.ChangeWorkloadSuccess, ago(since).Unix()
		s.Workload.OldRevisions = nil
	}
}

// suspended is a release that succeeded, and failed its verification later.
func suspended(since time.Duration) func(*start) {
	return func(s *start) {
		succeeded(since)(s)
		s.status.Status, s.status.SuccessTimeUnix = v1alpha1.ChangeWorkloadSuspend, s.status.UpdateTimeUnix
		s.status.UpdateTimeUnix = ago(time.Minute).Unix()
	}
}

func stateful(s *start)  { s.Workload.GVK.Kind, s.Workload.Stateful = "StatefulSet", true }
func ownProven(s *start) { s.Settings.RollbackOwnProven = true }
func ready(s *start)     { s.eachStuck(func(h *workload.Stuck) { h.Ready = true }) }

// crashing has each stuck pod be in a crash loop, and have ended ten seconds ago, or
// been started again then where it is Ready.
func crashing(age time.Duration, restarts int32, lastRun time.Duration) func(*start) {
	return func(s *start) {
		s.eachStuck(func(h *workload.Stuck) {
			h.Reason, h.Restarts, h.LastRun, h.Created, h.Begun, h.From = "CrashLoopBackOff", restarts, lastRun, ago(age), ago(age), ago(10*time.Second)
			if h.Ready {
				h.UpSince = h.From
			} else {
				h.DownSince = h.From
			}
		})
	}
}

func TestJudgeStart(t *testing.T) {
	onUnreachable := func(nodes ...string) func(*start) {
		return func(s *start) {
			unreachable := map[string]bool{}
			for _, node := range nodes {
				unreachable[node] = true
			}
			s.Pods = OnUnreachableNodes(s.Pods, unreachable)
		}
	}
	noOlds := func(s *start) { s.Workload.OldRevisions = nil }
	for name, test := range map[string]struct {
		start *start
		// want is what becomes of it, in short.
		want string
		wait time.Duration
	}{
		"all well": {beginning(5, 0), "", 0},
		"fails":    {beginning(0, 1), "running " + versionA, 0},
		"fails for too short": {beginning(0, 1, func(s *start) {
			s.eachStuck(func(h *workload.Stuck) { h.Begun = ago(90 * time.Second); h.From = h.Begun })
		}), "", 30 * time.Second},
		"failed before, in another attempt": {beginning(0, 1, func(s *start) { s.status.StartTimeUnix = ago(time.Minute).Unix() }), "", time.Minute},
		"a kubelet ten minutes behind": {beginning(0, 1, func(s *start) {
			s.eachStuck(func(h *workload.Stuck) {
				h.Created, h.Begun, h.From = ago(time.Minute), ago(11*time.Minute), ago(11*time.Minute)
			})
		}), "", time.Minute},

		"a node that comes after five minutes": {beginning(0, 5, slowFor(5*time.Minute, "Unschedulable")), "slow", 5 * time.Minute},
		"a migration of four minutes":          {beginning(0, 5, slowFor(4*time.Minute, "PodInitializing")), "slow", 6 * time.Minute},
		"a pull of three minutes":              {beginning(0, 5, slowFor(3*time.Minute, "ContainerCreating")), "slow", 7 * time.Minute},
		"slow, not told yet":                   {beginning(0, 5, slowFor(time.Minute, "ContainerCreating")), "", time.Minute},
		"slow for too long":                    {beginning(0, 5, slowFor(10*time.Minute, "ContainerCreating")), "running " + versionA, 0},
		"slow, and may be for longer":          {beginning(0, 5, slowFor(10*time.Minute, "PodInitializing"), func(s *start) { s.Settings.RollbackSlow = time.Hour }), "slow", 50 * time.Minute},
		"slow, and the deadline is longer":     {beginning(0, 5, slowFor(10*time.Minute, "PodInitializing"), func(s *start) { s.Workload.ProgressDeadline = time.Hour }), "slow", 50 * time.Minute},
		"slow, without a deadline":             {beginning(0, 5, slowFor(time.Hour, "PodInitializing"), func(s *start) { s.Workload.ProgressDeadline = 0 }), "slow", 0},

		"one of ten is stuck":             {beginning(9, 1, onNodes), "tolerated: 1 of 10 pods may be stuck", lookAgain},
		"two of ten are stuck":            {beginning(8, 2, onNodes), "running " + versionA, 0},
		"one of ten, none was ever well":  {beginning(0, 1, onNodes), "running " + versionA, 0},
		"one of ten, replaced one by one": {beginning(9, 1, onNodes, func(s *start) { s.Workload.InFlight = 1 }), "tolerated: only pods on node n9 are stuck, and the version runs on other nodes, on n9", lookAgain},
		"nothing is tolerated":            {beginning(8, 2, onNodes, func(s *start) { s.Settings.RollbackTolerate = 0 }), "running " + versionA, 0},
		"all on one node, others run":     {beginning(5, 5), "tolerated: only pods on node bad-node are stuck, and the version runs on other nodes, on bad-node", lookAgain},
		"all on one node, nothing else":   {beginning(0, 5, func(s *start) { s.status.PassCount = 3 }), "running " + versionA, 0},
		"all on no node": {beginning(5, 5, slowFor(time.Hour, "Unschedulable"), func(s *start) {
			for i := range s.Pods {
				if s.Pods[i].Stuck != nil {
					s.Pods[i].Node = ""
				}
			}
		}), "running " + versionA, 0},
		"the only node that others run on":             {beginning(1, 5, func(s *start) { s.Pods[0].Node = "bad-node" }), "running " + versionA, 0},
		"the only node that any is on is unreachable":  {beginning(0, 5, onUnreachable("bad-node")), "slow", 0},
		"each on its node, one of them is unreachable": {beginning(0, 2, onNodes, onUnreachable("n0")), "running " + versionA, 0},
		"each on its node, and all are unreachable":    {beginning(0, 2, onNodes, onUnreachable("n0", "n1")), "slow", 0},
		"well on a node that is unreachable":           {beginning(5, 0, onNodes, onUnreachable("n0")), "", 0},
		"pods come up":                                 {beginning(5, 5, onNodes, func(s *start) { s.Pods[0].ReadySince = ago(50 * time.Second) }), "moves", 70 * time.Second},
		"came up in a crash loop": {beginning(5, 5, onNodes, func(s *start) {
			s.Pods[0].ReadySince = ago(50 * time.Second)
			s.Pods[0].RestartedAt = ago(50 * time.Second)
		}), "running " + versionA, 0},
		"came up after its second restart": {beginning(5, 5, onNodes, func(s *start) {
			s.Pods[0].ReadySince = ago(100 * time.Second)
			s.Pods[0].Stuck = &workload.Stuck{Ready: true, Restarts: workload.Crashes, LastRun: time.Hour, Created: ago(2 * time.Hour), Begun: ago(2 * time.Hour), From: ago(100 * time.Second), UpSince: ago(100 * time.Second)}
		}), "running " + versionA, 0},

		"its node is lost, where it was well": {beginning(0, 1, slowFor(time.Hour, "NotReady"), func(s *start) { s.Pods[0].Lost = true }), "slow", 0},
		"a node that never saw it":            {beginning(0, 1, slowFor(10*time.Minute, "NotSeenByKubelet")), "running " + versionA, 0},
		"a node that never saw it, where each has one": {
			beginning(0, 1, slowFor(time.Hour, "NotSeenByKubelet"), func(s *start) { s.Workload.PerNode = true }), "slow", 0,
		},
		"a lost node, and another pod that fails": {beginning(0, 2, func(s *start) { s.Pods[0].Lost, s.Pods[0].Stuck.Slow = true, true }), "running " + versionA, 0},

		"pods are not made": {beginning(0, 0, func(s *start) {
			s.Workload.NotMade = &workload.NotMade{Count: 3, Since: ago(10 * time.Minute), Message: "exceeded quota"}
		}), "running " + versionA, 0},
		"pods have not been made of late": {beginning(0, 0, func(s *start) {
			s.Workload.NotMade = &workload.NotMade{Count: 3, Since: ago(4 * time.Minute), Message: "exceeded quota"}
		}), "slow", 6 * time.Minute},
		"one is not made, one may be stuck": {beginning(9, 0, func(s *start) {
			s.Workload.NotMade = &workload.NotMade{Count: 1, Since: ago(time.Hour), Message: "exceeded quota"}
		}), "tolerated: 1 of 10 pods may be stuck", lookAgain},

		"nothing is Ready: the history":    {beginning(0, 5, noOlds), "remembered " + versionA, 0},
		"Recreate: the history":            {beginning(0, 10, noOlds, func(s *start) { s.Workload.Rolling = false }), "remembered " + versionA, 0},
		"pods are Ready: nothing is lost":  {beginning(5, 5, onNodes, noOlds), "refused: no pods of an older version run; pods that are Ready: 5", lookAgain},
		"an old pod that is lost":          {beginning(0, 5, func(s *start) { s.Workload.OldRevisions[0].Ready, s.Workload.OldRevisions[0].Lost = 4, 1 }), "running " + versionA, 0},
		"old pods that are all lost":       {beginning(0, 5, func(s *start) { s.Workload.OldRevisions[0].Ready, s.Workload.OldRevisions[0].Lost = 0, 5 }), "remembered " + versionA, 0},
		"some old pods that are not Ready": {beginning(0, 5, func(s *start) { s.Workload.OldRevisions[0].Ready = 2 }), "refused: version " + versionA + ", whose pods still run, is not healthy: 2 of 5 pods are ready; pods that are Ready: 2", lookAgain},
		"old pods that are not Ready":      {beginning(0, 5, func(s *start) { s.Workload.OldRevisions[0].Ready = 0 }), "remembered " + versionA, 0},
		"Ready for a moment": {beginning(2, 5, onNodes, noOlds, func(s *start) {
			for i := range 2 {
				s.Pods[i].RestartedAt, s.Pods[i].ReadySince = ago(20*time.Second), ago(20*time.Second)
			}
		}), "remembered " + versionA, 0},
		"nothing is Ready, no history": {beginning(0, 5, noOlds, func(s *start) { s.History = nil }), "refused: no pods of an older version run; the history has no other successful version", lookAgain},
		"to a proven version": {beginning(0, 5, noOlds, func(s *start) {
			s.History = append(s.History, workload.Revision{Version: "c", Release: 7, Unproven: true})
		}), "remembered " + versionA, 0},
		"to an unproven one, if need be": {beginning(0, 5, noOlds, func(s *start) { s.History = []workload.Revision{{Version: "c", Release: 7, Unproven: true}} }), "remembered c", 0},
		"not to one that is known to be bad": {beginning(0, 5, noOlds, func(s *start) {
			s.Changes = []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadSuspend)}
		}), "refused: no pods of an older version run; the history has no other successful version", lookAgain},
		"not to one whose pods failed soon after its success": {beginning(0, 5, func(s *start) {
			c := change(versionA, 1, v1alpha1.ChangeWorkloadSuccess)
			c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionProven, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPodsFailing}}
			s.Changes, s.History = []v1alpha1.ChangeWorkload{c}, nil
		}), "refused: version " + versionA + ", whose pods still run, failed itself; pods that are Ready: 5", lookAgain},

		"after the Success, at once":      {beginning(0, 10, succeeded(4*time.Minute)), "remembered " + versionA, 0},
		"after the Success, later":        {beginning(0, 10, succeeded(20*time.Minute)), "", 0},
		"in its last moment":              {beginning(0, 10, succeeded(8*time.Minute)), "remembered " + versionA, 0},
		"a moment later":                  {beginning(0, 10, succeeded(8*time.Minute+time.Second)), "", 0},
		"suspended after the Success":     {beginning(0, 10, suspended(8*time.Minute)), "remembered " + versionA, 0},
		"suspended after it, fails later": {beginning(0, 10, suspended(9*time.Minute)), "", 0},
		"suspended without a Success": {
			beginning(0, 10, suspended(9*time.Minute), func(s *start) { s.status.SuccessTimeUnix = 0 }), "remembered " + versionA, 0,
		},
		"never after the Success": {beginning(0, 10, succeeded(time.Minute), func(s *start) { s.Settings.RollbackProven = 0 }), "", 0},
		"after the Success, of a StatefulSet": {beginning(0, 10, succeeded(4*time.Minute), stateful),
			"refused: the release succeeded, and may have changed data; the statefulset is rolled back then only if its own setting rollback, " +
				"or that of its namespace, names proven", lookAgain},
		"of a StatefulSet that wants it": {beginning(0, 10, succeeded(4*time.Minute), stateful, ownProven), "remembered " + versionA, 0},
		"of a StatefulSet before any": {
			beginning(0, 10, stateful, func(s *start) { s.Workload.OldRevisions = nil }), "remembered " + versionA, 0,
		},
		"runs for more than two minutes": {
			beginning(0, 10, succeeded(290*time.Second), crashing(300*time.Second, 2, 135*time.Second)), "remembered " + versionA, 0,
		},
		"ready, its second crash in a month": {
			beginning(0, 10, succeeded(30*24*time.Hour), ready, crashing(30*24*time.Hour, 2, 15*24*time.Hour)), "", 0,
		},
		"its first one soon after": {
			beginning(0, 10, succeeded(30*24*time.Hour), ready, crashing(30*24*time.Hour, 2, 30*24*time.Hour-time.Minute)), "", 0,
		},
		"its second one soon after another": {
			beginning(0, 10, succeeded(30*24*time.Hour), ready, crashing(30*24*time.Hour, 2, time.Minute)), "", 0,
		},
		"another has failed since then": {beginning(0, 10, succeeded(30*24*time.Hour), crashing(30*24*time.Hour, 3, time.Minute), func(s *start) {
			s.status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPodsUnavailable, Status: metav1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(ago(30*24*time.Hour - time.Minute))}}
		}), "", 0},
		"after the Success, merely slow":   {beginning(0, 10, succeeded(11*time.Minute), slowFor(10*time.Minute, "NotReady")), "", 0},
		"after the Success, some are well": {beginning(3, 7, succeeded(4*time.Minute), onNodes), "refused: no pods of an older version run; pods that are Ready: 3", lookAgain},
		"after the Success, a crash loop that was up for long": {beginning(0, 10, succeeded(6*time.Minute), func(s *start) {
			s.eachStuck(func(h *workload.Stuck) {
				h.Reason, h.Restarts, h.LastRun, h.Created, h.Begun, h.From, h.DownSince = "CrashLoopBackOff", 4, 90*time.Second, ago(time.Hour), ago(time.Hour), ago(10*time.Second), ago(10*time.Second)
			})
			s.status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPodsUnavailable, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(ago(5 * time.Minute))}}
		}), "remembered " + versionA, 0},

		"turned off": {beginning(0, 5, func(s *start) { s.Settings.Rollback = false }), "", 0},
		"no room":    {beginning(0, 5, func(s *start) { s.Limit = limitOf(9, 8, 7, 6, 5) }), "braked", time.Minute},
		"no room for its namespace": {beginning(0, 5, func(s *start) {
			s.Limit = limitOf(9, 8, 7)
			for i := range s.Limit.taken {
				s.Limit.taken[i].Namespace = s.Workload.Namespace
			}
		}), "braked", time.Minute},
		"room again": {beginning(0, 5, func(s *start) { s.Limit = limitOf(30, 29, 9, 8, 7) }), "running " + versionA, 0},
		"room again, the release was held": {beginning(0, 5, func(s *start) {
			s.Limit = limitOf(15, 14, 13, 12, 11)
			s.status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRolledBack, Reason: v1alpha1.ReasonRollbackLimit, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(ago(8 * time.Minute))}}
		}), "braked", 2 * time.Minute},
		"room again, the release was held of late": {beginning(0, 5, func(s *start) {
			s.Limit = limitOf(17, 16, 15, 14, 13)
			s.status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRolledBack, Reason: v1alpha1.ReasonRollbackLimit, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(ago(time.Minute))}}
		}), "braked", 6 * time.Minute},
		"and has had its time": {beginning(0, 5, func(s *start) {
			s.Limit = limitOf(17, 16, 15, 14, 13)
			s.status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRolledBack, Reason: v1alpha1.ReasonRollbackLimit, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(ago(8 * time.Minute))}}
		}), "running " + versionA, 0},
	} {
		t.Run(name, func(t *testing.T) {
			still := test.start.judge()
			if got := summary(&still); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
			if still.wait != test.wait {
				t.Errorf("looks again after %s, want %s", still.wait, test.wait)
			}
		})
	}
}

func summary(s *standstill) string {
	switch {
	case s.limited:
		return "braked"
	case s.refusal != "":
		return "refused: " + s.refusal
	case s.stuckOn != "":
		return "tolerated: " + s.tolerated + ", on " + s.stuckOn
	case s.tolerated != "":
		return "tolerated: " + s.tolerated
	case s.moves:
		return "moves"
	case s.old != nil:
		return "running " + s.old.Version
	case s.revision != nil:
		return "remembered " + s.revision.Version
	case s.slow != nil:
		return "slow"
	default:
		return ""
	}
}

// limitOf is a rollback limit that let rollbacks through so many minutes ago.
func limitOf(minutes ...int) RollbackLimit {
	var b RollbackLimit
	for i, m := range minutes {
		b.taken = append(b.taken, LimitEntry{Time: ago(time.Duration(m) * time.Minute).Unix(), UID: types.UID(fmt.Sprint(i)), Release: 1})
	}
	return b
}

// TestRollbackLimitOfFailed: a release that failed its verification and does not come up,
// either, waits for the rollback limit as any other: it is told, once, and has time of its
// own when there is room again.
func TestRollbackLimitOfFailed(t *testing.T) {
	begin := func(t *testing.T, healing bool) *world {
		t.Helper()
		w := newWorld(3).Pods(1).Pods(2, unready)
		w.in.Workload.Rolling, w.in.Workload.ProgressDeadline = true, 10*time.Minute
		w.in.Workload.OldRevisions = []workload.OldRevision{{Name: "b", Version: versionB, Number: 1, Replicas: 2, Ready: 2}}
		w.in.History = []workload.Revision{{Name: "b", Version: versionB}}
		w.in.Settings.SelfHealing = healing
		for i := 1; i < 3; i++ {
			w.in.Pods[i].Stuck = &workload.Stuck{Container: "main", Reason: "ErrImagePull", From: testNow, Begun: testNow, Created: testNow}
		}
		w.Step()
		w.Check().Verdict("sleep-0", "fail").Step()
		if w.in.Change.Status.Status != v1alpha1.ChangeWorkloadSuspend {
			t.Fatalf("the release is %s", w.in.Change.Status.Status)
		}
		w.Later(5 * time.Minute)
		w.in.Limit = RollbackLimit{taken: []LimitEntry{{Time: w.in.Now.Add(-8 * time.Minute).Unix()}}}
		w.in.Settings.LimitCount = 1
		return w
	}
	due := func(w *world) bool {
		plan := DecideRollback(RollbackInput{Now: w.in.Now, Settings: w.in.Settings, Workload: w.in.Workload, Enrolled: true,
			Changes: []v1alpha1.ChangeWorkload{*w.in.Change}, Pods: w.in.Pods, History: w.in.History, Limit: w.in.Limit})
		return plan.Rollback != nil
	}
	for name, healing := range map[string]bool{"self-healing": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, healing)
			var told []string
			for range 3 {
				for _, e := range w.Step().Events {
					told = append(told, e.Reason+" "+e.Act)
				}
			}
			if diff := cmp.Diff([]string{v1alpha1.EventRollbackRefused + " " + v1alpha1.ReasonRollbackLimit}, told); diff != "" {
				t.Errorf("told -want +got:\n%s", diff)
			}
			if got := conditionReason(w, v1alpha1.ConditionRolledBack); got != v1alpha1.ReasonRollbackLimit || due(w) {
				t.Errorf("RolledBack says %q, rolled back: %t", got, due(w))
			}
			w.Later(2 * time.Minute)
			if w.Step(); due(w) {
				t.Error("rolled back as soon as there is room")
			}
			w.Later(2*time.Minute + workload.MaxBackOff)
			if w.Step(); !due(w) {
				t.Error("not rolled back although its own time is over")
			}
		})
	}
	t.Run("comes up meanwhile", func(t *testing.T) {
		w := begin(t, false)
		w.Step()
		w.in.Settings.SelfHealing = true // later than it failed
		for i := range w.in.Pods {
			w.in.Pods[i].Ready, w.in.Pods[i].Stuck = true, nil
		}
		w.in.Workload.OldRevisions = nil
		w.Later(time.Hour).Complete().Settle(t)
		if got := conditionReason(w, v1alpha1.ConditionRolledBack); got != v1alpha1.ReasonRecovered || due(w) {
			t.Errorf("RolledBack says %q, rolled back: %t", got, due(w))
		}
	})
}

// TestQuarantineTerm: it ends by itself, each time after twice as long.
func TestQuarantineTerm(t *testing.T) {
	s := makeScene()
	now := testNow
	var terms []time.Duration
	for range 8 {
		s.Now, s.Pods[0].Ready = now, false
		s.Pods[1].Stuck.From = now.Add(-time.Hour)
		s.Pods[1].Stuck.Begun = s.Pods[1].Stuck.From
		plan := DecideRollback(s.RollbackInput)
		if plan.Rollback == nil {
			t.Fatalf("not rolled back: %+v", plan)
		}
		until, err := time.Parse(time.RFC3339, plan.Rollback.Why.Until)
		if err != nil {
			t.Fatal(err)
		}
		terms = append(terms, until.Sub(now))
		ParseQuarantine(s.Workload.Annotations, now).With(versionB, plan.Rollback.Why).Annotate(s.Workload.Annotations)
		if q := ParseQuarantine(s.Workload.Annotations, until.Add(-time.Second)); !q.Holds(versionB) {
			t.Error("over before its time")
		}
		if again := DecideRollback(s.RollbackInput); again.Rollback != nil {
			t.Error("rolled back again while it is in quarantine")
		}
		if q := ParseQuarantine(s.Workload.Annotations, until); q.Holds(versionB) {
			t.Error("not over")
		}
		// Somebody applies it again: a release like any other.
		now = until
		s.Workload.Annotations[v1alpha1.ReleaseAnnotation] = fmt.Sprint(s.Workload.Release() + 2)
		s.Changes[0].Spec.Release, s.Changes[0].Status.ObservedRelease = s.Workload.Release(), s.Workload.Release()
	}
	s.Now = now
	want := []time.Duration{time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 16 * time.Hour, 24 * time.Hour, 24 * time.Hour, 24 * time.Hour}
	if diff := cmp.Diff(want, terms); diff != "" {
		t.Errorf("terms -want +got:\n%s", diff)
	}
	if got := s.Workload.Annotations[v1alpha1.QuarantinedAnnotation]; got != versionB {
		t.Errorf("quarantined %q", got)
	}
	s.Settings.Quarantine = false
	if plan := DecideRollback(s.RollbackInput); plan.Rollback.Why.Until != "" {
		t.Errorf("with the setting off it ends at %s", plan.Rollback.Why.Until)
	}
	s.Settings.Quarantine, s.Pods[0].Ready = true, true
	if plan := DecideRollback(s.RollbackInput); plan.Rollback.Why.Until != "" || plan.Rollback.Why.Cause != v1alpha1.ReasonNeverStarted {
		t.Errorf("one of which a pod has finished: %+v", plan.Rollback.Why)
	}
	if plan := DecideRollback(s.state(v1alpha1.ChangeWorkloadSuspend).RollbackInput); plan.Rollback.Why.Until != "" || plan.Rollback.Why.Cause != v1alpha1.ReasonVerificationFailed {
		t.Errorf("one that failed its verification: %+v", plan.Rollback.Why)
	}
}

// TestProven: a version that succeeded is proven once it has run well for some
// time, and leaves the history when its pods fail before.
func TestProven(t *testing.T) {
	begin := func(t *testing.T) *world {
		w := newWorld(2).Pods(2).Complete()
		w.in.Workload.AvailableSince, w.in.Workload.InFlight = testNow, 1
		w.Settle(t)
		w.in.History = []workload.Revision{{Name: "a", Version: versionA, Release: 1, Unproven: true}}
		if got := conditionReason(w, v1alpha1.ConditionProven); got != v1alpha1.ReasonChecking {
			t.Fatalf("Proven is %s after the Success", got)
		}
		return w
	}
	t.Run("ran well", func(t *testing.T) {
		w := begin(t)
		if again := DecideRelease(w.in).RequeueAfter; again != 5*time.Minute {
			t.Errorf("looks again after %s", again)
		}
		w.Later(5 * time.Minute)
		plan := w.Step()
		if plan.Prove == nil || conditionReason(w, v1alpha1.ConditionProven) != v1alpha1.ReasonRanWell {
			t.Errorf("not proven: %+v", plan)
		}
		w.in.History[0].Unproven = false
		w.in.Pods[0].Ready = false
		if plan := w.Step(); plan.Prove != nil || plan.Forget != nil {
			t.Errorf("decided again: %+v", plan)
		}
	})
	t.Run("not available all the time", func(t *testing.T) {
		w := begin(t)
		w.in.Workload.AvailableSince = testNow.Add(90 * time.Second)
		w.Later(5 * time.Minute)
		if plan := w.Step(); plan.Prove != nil || DecideRelease(w.in).RequeueAfter != 90*time.Second {
			t.Errorf("proven: %+v", plan)
		}
	})
	for name, fail := range map[string]func(*workload.Pod){
		"restarted": func(p *workload.Pod) { p.RestartedAt = testNow.Add(20 * time.Second) },
		"fails": func(p *workload.Pod) {
			p.Ready, p.Stuck = false, &workload.Stuck{Reason: "OOMKilled", From: testNow.Add(20 * time.Second)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t)
			w.Later(30 * time.Second)
			fail(&w.in.Pods[0])
			plan := w.Step()
			if len(plan.Forget) != 1 || conditionReason(w, v1alpha1.ConditionProven) != v1alpha1.ReasonPodsFailing {
				t.Fatalf("stays in the history: %+v", plan)
			}
			w.in.History = nil
			w.Later(time.Hour)
			w.in.Pods[0].Ready, w.in.Pods[0].Stuck = true, nil
			if plan := w.Step(); plan.Remember || plan.Prove != nil {
				t.Errorf("comes back: %+v", plan)
			}
		})
	}
	t.Run("tolerated", func(t *testing.T) {
		w := begin(t)
		w.in.Settings.RollbackTolerate, w.in.Workload.InFlight = 50, 2
		w.in.Pods[0].RestartedAt = testNow.Add(20 * time.Second)
		w.Later(5 * time.Minute)
		if plan := w.Step(); plan.Prove == nil {
			t.Errorf("not proven: %+v", plan)
		}
	})
}

// TestPodsUnavailable: pods that fail after the Success are told once, and so is
// that they are well again, when that can be believed.
func TestPodsUnavailable(t *testing.T) {
	w := newWorld(1).Pods(1).Complete()
	w.in.Workload.AvailableSince = testNow
	w.Settle(t)
	w.Later(time.Hour).Settle(t)
	w.in.Pods[0].Ready = false
	w.in.Pods[0].Stuck = &workload.Stuck{Container: "main", Reason: "CrashLoopBackOff", Restarts: 2, From: w.in.Now, Created: testNow, Begun: testNow}
	var told []string
	step := func() {
		for _, e := range w.Step().Events {
			told = append(told, e.Reason)
		}
	}
	step()
	since := conditionTime(w, v1alpha1.ConditionPodsUnavailable)
	for range 5 { // it is Ready for a moment each time
		w.Later(30 * time.Second)
		w.in.Pods[0].Ready, w.in.Pods[0].RestartedAt = true, w.in.Now
		w.in.Pods[0].Stuck.Ready, w.in.Pods[0].Stuck.UpSince = true, w.in.Now
		step()
		w.Later(30 * time.Second)
		w.in.Pods[0].Ready, w.in.Pods[0].Stuck.Ready, w.in.Pods[0].RestartedAt = false, false, time.Time{}
		step()
	}
	if got := conditionTime(w, v1alpha1.ConditionPodsUnavailable); !got.Equal(since) {
		t.Errorf("unavailable since %s, want %s", got, since)
	}
	w.in.Pods[0].Ready, w.in.Pods[0].Stuck, w.in.Pods[0].RestartedAt = true, nil, w.in.Now
	w.Later(90 * time.Second)
	step()
	if conditionReason(w, v1alpha1.ConditionPodsUnavailable) != v1alpha1.ReasonPodsFailing {
		t.Error("well again after 90 s")
	}
	w.Later(30 * time.Second)
	step()
	if conditionReason(w, v1alpha1.ConditionPodsUnavailable) != v1alpha1.ReasonRecovered {
		t.Error("not well again after 2 minutes")
	}
	if diff := cmp.Diff([]string{v1alpha1.ConditionPodsUnavailable}, told); diff != "" {
		t.Errorf("told -want +got:\n%s", diff)
	}
}

func conditionTime(w *world, kind string) time.Time {
	for _, c := range w.in.Change.Status.Conditions {
		if c.Type == kind {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// TestExplainStuck: what keeps a release from coming up is told in the order of its
// weight, each once, with the cause that the events of the pod give.
func TestExplainStuck(t *testing.T) {
	w := newWorld(1).Pods(1, unready)
	w.in.Workload.Rolling, w.in.Workload.ProgressDeadline = true, 10*time.Minute
	stuck := &workload.Stuck{Container: "main", Reason: "ContainerCreating", Slow: true, From: testNow, Begun: testNow, Created: testNow}
	w.in.Pods[0].Stuck = stuck
	w.Step()
	w.Later(2 * time.Minute)
	plan := DecideRelease(w.in)
	if plan.NeedsCause == nil || plan.NeedsCause.UID != w.in.Pods[0].UID {
		t.Fatalf("does not ask for the events of the pod: %+v", plan)
	}
	w.in.Causes = map[types.UID]string{w.in.Pods[0].UID: "FailedMount: configmap \"x\" not found"}
	var told []string
	for _, d := range []time.Duration{0, time.Minute, 7 * time.Minute, time.Minute} {
		w.Later(d)
		for _, e := range w.Step().Events {
			told = append(told, strings.TrimPrefix(e.Message, "version "+versionA+": "))
		}
	}
	want := []string{
		"pod sleep-0 does not come up: container main: ContainerCreating (for 2m0s): FailedMount: configmap \"x\" not found; " +
			"not rolled back: it does not fail, and may take 10m0s in total",
		"pod sleep-0 does not come up: container main: ContainerCreating (for 10m0s): FailedMount: configmap \"x\" not found; " +
			"not rolled back: no pods of an older version run; the history has no other successful version",
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("told -want +got:\n%s", diff)
	}
}

// TestNotMade: that pods are refused is told at once.
func TestNotMade(t *testing.T) {
	w := newWorld(3)
	w.Step()
	w.in.Workload.NotMade = &workload.NotMade{Count: 3, Since: testNow, Message: "exceeded quota: pods"}
	var told []string
	for range 3 {
		for _, e := range w.Step().Events {
			told = append(told, e.Reason+": "+strings.TrimPrefix(e.Message, "version "+versionA+": "))
		}
	}
	if diff := cmp.Diff([]string{"PodsUnavailable: 3 of 3 pods cannot be created: exceeded quota: pods"}, told); diff != "" {
		t.Errorf("told -want +got:\n%s", diff)
	}
}
