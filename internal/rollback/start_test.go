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

package rollback

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// beginning returns a release of ten replicas, with some healthy pods and some that do not come up.
func beginning(well, stuck int, change ...func(*start)) *start {
	s := &start{Input{
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
		s.Pods = append(s.Pods, workload.Pod{
			Name: fmt.Sprint("bad-", i), UID: types.UID(fmt.Sprint("b", i)), Node: "bad-node", Created: ago(15 * time.Minute),
			Stuck: &workload.Stuck{
				Container: "main", Reason: "ImagePullBackOff", Created: ago(15 * time.Minute), Begun: ago(3 * time.Minute), From: ago(3 * time.Minute),
			},
		})
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

// suspended is a release that succeeded, and later failed its verification.
func suspended(since time.Duration) func(*start) {
	return func(s *start) {
		succeeded(since)(s)
		s.status.Status, s.status.SuccessTimeUnix = v1alpha1.ChangeWorkloadSuspend, s.status.UpdateTimeUnix
		s.status.UpdateTimeUnix = ago(time.Minute).Unix()
	}
}

func stateful(s *start) { s.Workload.GVK.Kind, s.Workload.Stateful = "StatefulSet", true }

func ownProven(s *start) { s.Settings.RollbackOwnProven = true }

func ready(s *start) { s.eachStuck(func(h *workload.Stuck) { h.Ready = true }) }

// crashing puts each stuck pod into a crash loop. Its container ended ten seconds ago, or was
// restarted then if it is Ready.
func crashing(age time.Duration, restarts int32, lastRun time.Duration) func(*start) {
	return func(s *start) {
		s.eachStuck(func(h *workload.Stuck) {
			h.Reason, h.Restarts, h.LastRun = "CrashLoopBackOff", restarts, lastRun
			h.Created, h.Begun, h.From = ago(age), ago(age), ago(10*time.Second)
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
	declared := func(olds ...workload.OldRevision) func(*start) {
		return func(s *start) {
			w := s.Workload
			w.Rollbacks, w.Rolling, w.OldRevisions, w.Content = v1alpha1.RollbackAutomatic, false, olds, &workload.Content{Hash: "now"}
			s.History = []workload.Revision{
				{Name: "a", Version: versionA, Release: 1, ContentHash: "now"},
				{Name: "c", Version: "c", Release: 3, Unproven: true, ContentHash: "now"},
				{Name: "d", Version: "d", Release: 4, ContentHash: "before"},
			}
		}
	}
	for name, test := range map[string]struct {
		start *start
		// want is the summary of the standstill.
		want string
		wait time.Duration
	}{
		"all well": {beginning(5, 0), "", 0},
		"fails":    {beginning(0, 1), "running " + versionA, 0},
		"fails for too short": {beginning(0, 1, func(s *start) {
			s.eachStuck(func(h *workload.Stuck) { h.Begun = ago(90 * time.Second); h.From = h.Begun })
		}), "", 30 * time.Second},
		"failed before, in another attempt": {
			beginning(0, 1, func(s *start) { s.status.StartTimeUnix = ago(time.Minute).Unix() }), "", time.Minute,
		},
		"a kubelet ten minutes behind": {beginning(0, 1, func(s *start) {
			s.eachStuck(func(h *workload.Stuck) {
				h.Created, h.Begun, h.From = ago(time.Minute), ago(11*time.Minute), ago(11*time.Minute)
			})
		}), "", time.Minute},

		"a node that comes after five minutes": {beginning(0, 5, slowFor(5*time.Minute, "Unschedulable")), "slow", 5 * time.Minute},
		"a migration of four minutes":          {beginning(0, 5, slowFor(4*time.Minute, "PodInitializing")), "slow", 6 * time.Minute},
		"a pull of three minutes":              {beginning(0, 5, slowFor(3*time.Minute, "ContainerCreating")), "slow", 7 * time.Minute},
		"slow, not reported yet":               {beginning(0, 5, slowFor(time.Minute, "ContainerCreating")), "", time.Minute},
		"slow for too long":                    {beginning(0, 5, slowFor(10*time.Minute, "ContainerCreating")), "running " + versionA, 0},
		"slow, and may be for longer": {
			beginning(0, 5, slowFor(10*time.Minute, "PodInitializing"), func(s *start) { s.Settings.RollbackSlow = time.Hour }), "slow",
			50 * time.Minute,
		},
		"slow, and the deadline is longer": {
			beginning(0, 5, slowFor(10*time.Minute, "PodInitializing"), func(s *start) { s.Workload.ProgressDeadline = time.Hour }), "slow",
			50 * time.Minute,
		},
		"slow, without a deadline": {
			beginning(0, 5, slowFor(time.Hour, "PodInitializing"), func(s *start) { s.Workload.ProgressDeadline = 0 }), "slow", 0,
		},

		"one of ten is stuck":            {beginning(9, 1, onNodes), "tolerated: 1 of 10 pods may be stuck", LookAgain},
		"two of ten are stuck":           {beginning(8, 2, onNodes), "running " + versionA, 0},
		"one of ten, none was ever well": {beginning(0, 1, onNodes), "running " + versionA, 0},
		"one of ten, replaced one by one": {
			beginning(9, 1, onNodes, func(s *start) { s.Workload.InFlight = 1 }),
			"tolerated: only pods on node n9 are stuck, and the version runs on other nodes, on n9", LookAgain,
		},
		"nothing is tolerated": {beginning(8, 2, onNodes, func(s *start) { s.Settings.RollbackTolerate = 0 }), "running " + versionA, 0},
		"all on one node, others run": {
			beginning(5, 5), "tolerated: only pods on node bad-node are stuck, and the version runs on other nodes, on bad-node", LookAgain,
		},
		"all on one node, nothing else": {beginning(0, 5, func(s *start) { s.status.PassCount = 3 }), "running " + versionA, 0},
		"all on no node": {beginning(5, 5, slowFor(time.Hour, "Unschedulable"), func(s *start) {
			for i := range s.Pods {
				if s.Pods[i].Stuck != nil {
					s.Pods[i].Node = ""
				}
			}
		}), "running " + versionA, 0},
		"the only node that others run on": {
			beginning(1, 5, func(s *start) { s.Pods[0].Node = "bad-node" }), "running " + versionA, 0,
		},
		"the only node that any is on is unreachable":  {beginning(0, 5, onUnreachable("bad-node")), "slow", 0},
		"each on its node, one of them is unreachable": {beginning(0, 2, onNodes, onUnreachable("n0")), "running " + versionA, 0},
		"each on its node, and all are unreachable":    {beginning(0, 2, onNodes, onUnreachable("n0", "n1")), "slow", 0},
		"well on a node that is unreachable":           {beginning(5, 0, onNodes, onUnreachable("n0")), "", 0},
		"pods come up": {
			beginning(5, 5, onNodes, func(s *start) { s.Pods[0].ReadySince = ago(50 * time.Second) }), "moves", 70 * time.Second,
		},
		"came up in a crash loop": {beginning(5, 5, onNodes, func(s *start) {
			s.Pods[0].ReadySince = ago(50 * time.Second)
			s.Pods[0].RestartedAt = ago(50 * time.Second)
		}), "running " + versionA, 0},
		"came up after its second restart": {beginning(5, 5, onNodes, func(s *start) {
			s.Pods[0].ReadySince = ago(100 * time.Second)
			s.Pods[0].Stuck = &workload.Stuck{
				Ready: true, Restarts: workload.Crashes, LastRun: time.Hour, Created: ago(2 * time.Hour), Begun: ago(2 * time.Hour),
				From: ago(100 * time.Second), UpSince: ago(100 * time.Second),
			}
		}), "running " + versionA, 0},

		"its node is unreachable, it was healthy": {
			beginning(0, 1, slowFor(time.Hour, "NotReady"), func(s *start) { s.Pods[0].Lost = true }), "slow", 0,
		},
		"a node that never saw it": {beginning(0, 1, slowFor(10*time.Minute, "NotSeenByKubelet")), "running " + versionA, 0},
		"a node that never saw it, where each has one": {
			beginning(0, 1, slowFor(time.Hour, "NotSeenByKubelet"), func(s *start) { s.Workload.PerNode = true }), "slow", 0,
		},
		"an unreachable node, and another pod that fails": {
			beginning(0, 2, func(s *start) { s.Pods[0].Lost, s.Pods[0].Stuck.Slow = true, true }), "running " + versionA, 0,
		},

		"pods cannot be created": {beginning(0, 0, func(s *start) {
			s.Workload.NotMade = &workload.NotMade{Count: 3, Since: ago(10 * time.Minute), Message: "exceeded quota"}
		}), "running " + versionA, 0},
		"pods cannot be created recently": {beginning(0, 0, func(s *start) {
			s.Workload.NotMade = &workload.NotMade{Count: 3, Since: ago(4 * time.Minute), Message: "exceeded quota"}
		}), "slow", 6 * time.Minute},
		"one cannot be created, one may be stuck": {beginning(9, 0, func(s *start) {
			s.Workload.NotMade = &workload.NotMade{Count: 1, Since: ago(time.Hour), Message: "exceeded quota"}
		}), "tolerated: 1 of 10 pods may be stuck", LookAgain},

		"nothing is Ready: the history": {beginning(0, 5, noOlds), "remembered " + versionA, 0},
		"Recreate: the history":         {beginning(0, 10, noOlds, func(s *start) { s.Workload.Rolling = false }), "remembered " + versionA, 0},
		"pods are Ready: nothing is lost": {
			beginning(5, 5, onNodes, noOlds), "refused: no pods of an older version run; pods that are Ready: 5", LookAgain,
		},
		"an old pod on an unreachable node": {
			beginning(0, 5, func(s *start) { s.Workload.OldRevisions[0].Ready, s.Workload.OldRevisions[0].Lost = 4, 1 }), "running " + versionA, 0,
		},
		"old pods that are all on unreachable nodes": {
			beginning(0, 5, func(s *start) { s.Workload.OldRevisions[0].Ready, s.Workload.OldRevisions[0].Lost = 0, 5 }), "remembered " + versionA,
			0,
		},
		"some old pods that are not Ready": {
			beginning(0, 5, func(s *start) { s.Workload.OldRevisions[0].Ready = 2 }),
			"refused: version " + versionA + ", whose pods still run, is not healthy: 2 of 5 pods are ready; pods that are Ready: 2", LookAgain,
		},
		"old pods that are not Ready": {beginning(0, 5, func(s *start) { s.Workload.OldRevisions[0].Ready = 0 }), "remembered " + versionA, 0},
		"Ready for a moment": {beginning(2, 5, onNodes, noOlds, func(s *start) {
			for i := range 2 {
				s.Pods[i].RestartedAt, s.Pods[i].ReadySince = ago(20*time.Second), ago(20*time.Second)
			}
		}), "remembered " + versionA, 0},
		"nothing is Ready, no history": {
			beginning(0, 5, noOlds, func(s *start) { s.History = nil }),
			"refused: no pods of an older version run; the history has no other successful version", LookAgain,
		},
		"to a proven version": {beginning(0, 5, noOlds, func(s *start) {
			s.History = append(s.History, workload.Revision{Version: "c", Release: 7, Unproven: true})
		}), "remembered " + versionA, 0},
		"to an unproven one, without a proven one": {
			beginning(0, 5, noOlds, func(s *start) { s.History = []workload.Revision{{Version: "c", Release: 7, Unproven: true}} }), "remembered c",
			0,
		},
		"not to one that is known to be bad": {beginning(0, 5, noOlds, func(s *start) {
			s.Changes = []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadSuspend)}
		}), "refused: no pods of an older version run; the history has no other successful version", LookAgain},
		"not to one whose pods failed soon after its success": {beginning(0, 5, func(s *start) {
			c := change(versionA, 1, v1alpha1.ChangeWorkloadSuccess)
			c.Status.Conditions = []metav1.Condition{
				{Type: v1alpha1.ConditionProven, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPodsFailing},
			}
			s.Changes, s.History = []v1alpha1.ChangeWorkload{c}, nil
		}), "refused: version " + versionA + ", whose pods still run, failed itself; pods that are Ready: 5", LookAgain},

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
				"or that of its namespace, names proven", LookAgain},
		"of a StatefulSet whose own setting names proven": {
			beginning(0, 10, succeeded(4*time.Minute), stateful, ownProven), "remembered " + versionA, 0,
		},
		"of a StatefulSet, before the Success": {
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
		"after the Success, merely slow": {beginning(0, 10, succeeded(11*time.Minute), slowFor(10*time.Minute, "NotReady")), "", 0},
		"after the Success, some are well": {
			beginning(3, 7, succeeded(4*time.Minute), onNodes), "refused: no pods of an older version run; pods that are Ready: 3", LookAgain,
		},
		"after the Success, a crash loop that was up for long": {beginning(0, 10, succeeded(6*time.Minute), func(s *start) {
			s.eachStuck(func(h *workload.Stuck) {
				h.Reason, h.Restarts, h.LastRun = "CrashLoopBackOff", 4, 90*time.Second
				h.Created, h.Begun, h.From, h.DownSince = ago(time.Hour), ago(time.Hour), ago(10*time.Second), ago(10*time.Second)
			})
			s.status.Conditions = []metav1.Condition{
				{Type: v1alpha1.ConditionPodsUnavailable, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(ago(5 * time.Minute))},
			}
		}), "remembered " + versionA, 0},

		"turned off": {beginning(0, 5, func(s *start) { s.Settings.Rollback = false }), "", 0},
		"no room":    {beginning(0, 5, func(s *start) { s.Limit = limitOf(9, 8, 7, 6, 5) }), "limited", time.Minute},
		"no room for its namespace": {beginning(0, 5, func(s *start) {
			s.Limit = limitOf(9, 8, 7)
			for i := range s.Limit.taken {
				s.Limit.taken[i].Namespace = s.Workload.Namespace
			}
		}), "limited", time.Minute},
		"room again": {beginning(0, 5, func(s *start) { s.Limit = limitOf(30, 29, 9, 8, 7) }), "running " + versionA, 0},
		"room again, the release was delayed": {beginning(0, 5, func(s *start) {
			s.Limit = limitOf(15, 14, 13, 12, 11)
			s.status.Conditions = []metav1.Condition{
				{
					Type: v1alpha1.ConditionRolledBack, Reason: v1alpha1.ReasonRollbackLimit, Status: metav1.ConditionFalse,
					LastTransitionTime: metav1.NewTime(ago(8 * time.Minute)),
				},
			}
		}), "limited", 2 * time.Minute},
		"room again, the release was delayed recently": {beginning(0, 5, func(s *start) {
			s.Limit = limitOf(17, 16, 15, 14, 13)
			s.status.Conditions = []metav1.Condition{
				{
					Type: v1alpha1.ConditionRolledBack, Reason: v1alpha1.ReasonRollbackLimit, Status: metav1.ConditionFalse,
					LastTransitionTime: metav1.NewTime(ago(time.Minute)),
				},
			}
		}), "limited", 6 * time.Minute},
		"declared, old pods run": {
			beginning(0, 5, declared(workload.OldRevision{Replicas: 5, Ready: 4, Lost: 1})), "remembered " + versionA, 0,
		},
		"declared, old pods do not run well": {beginning(0, 5, declared(workload.OldRevision{Replicas: 5, Ready: 4})),
			"refused: older pods are not healthy: 4 of 5 are ready; pods that are Ready: 4", LookAgain},
		"declared, no old pods": {beginning(3, 5, declared(), onNodes),
			"refused: no pods of an older version run; pods that are Ready: 3", LookAgain},
		"declared, no pod is Ready": {beginning(0, 5, declared()), "remembered " + versionA, 0},
		"declared, without a history": {beginning(0, 5, declared(workload.OldRevision{Replicas: 5, Ready: 5}), func(s *start) {
			s.History = s.History[2:]
		}), "refused: the history has no other successful version", LookAgain},
		"declared, more than the limit": {beginning(0, 5, declared(workload.OldRevision{Replicas: 5, Ready: 5}), func(s *start) {
			s.Limit = limitOf(5, 4, 3, 2, 1)
		}), "limited", 5 * time.Minute},
		"declared, not by itself": {beginning(0, 5, declared(workload.OldRevision{Replicas: 5, Ready: 5}), func(s *start) {
			s.Workload.Rollbacks = v1alpha1.RollbackOnRequest
		}), "refused: spec.rollback of the ChangeKind is OnRequest", LookAgain},
		"room again, its time is over": {beginning(0, 5, func(s *start) {
			s.Limit = limitOf(17, 16, 15, 14, 13)
			s.status.Conditions = []metav1.Condition{
				{
					Type: v1alpha1.ConditionRolledBack, Reason: v1alpha1.ReasonRollbackLimit, Status: metav1.ConditionFalse,
					LastTransitionTime: metav1.NewTime(ago(8 * time.Minute)),
				},
			}
		}), "running " + versionA, 0},
	} {
		t.Run(name, func(t *testing.T) {
			still := test.start.judge()
			if got := summary(&still); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
			if still.Wait != test.wait {
				t.Errorf("looks again after %s, want %s", still.Wait, test.wait)
			}
		})
	}
}

func summary(s *Standstill) string {
	switch {
	case s.Limited:
		return "limited"
	case s.Refusal != "":
		return "refused: " + s.Refusal
	case s.StuckOn != "":
		return "tolerated: " + s.Tolerated + ", on " + s.StuckOn
	case s.Tolerated != "":
		return "tolerated: " + s.Tolerated
	case s.moves:
		return "moves"
	case s.old != nil:
		return "running " + s.old.Version
	case s.revision != nil:
		return "remembered " + s.revision.Version
	case s.Slow != nil:
		return "slow"
	default:
		return ""
	}
}

// limitOf returns a rollback limit that allowed rollbacks at these times, in minutes ago.
func limitOf(minutes ...int) Limit {
	var b Limit
	for i, m := range minutes {
		b.taken = append(b.taken, limitEntry{Time: ago(time.Duration(m) * time.Minute).Unix(), UID: types.UID(fmt.Sprint(i)), Release: 1})
	}
	return b
}

func ago(d time.Duration) time.Time { return testNow.Add(-d) }

var testNow = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

const (
	versionA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	versionB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func change(version string, release int64, state v1alpha1.ChangeWorkloadStatusType) v1alpha1.ChangeWorkload {
	return *wrappers.MakeChangeWorkload("default", record.ChangeWorkloadName("sleep", version)).
		Version(version).Release(release).State(state).Attempt(1).Obj()
}
