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
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

const (
	versionA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	versionB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var testNow = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// world is a workload with a release, its pods and batches, for tests: it carries out plans like the controllers.
type world struct {
	in ReleaseInput
	// stored is the workload at the API server; in.Workload is the workload in the cache, the same unless Stale.
	stored *workload.Workload
	// unseen are pods that the cache does not show.
	unseen map[types.UID]bool
	// kept: batches that are to be deleted stay, as if the process died before.
	kept bool
	// made is the number of replaced pods.
	made int
}

func newWorld(replicas int32) *world {
	w := &world{in: ReleaseInput{PutOffSince: testNow.Add(-CountsPutOff),
		Now:      testNow,
		Settings: settings.Default(),
		Enrolled: true,
		Change: wrappers.MakeChangeWorkload("default",
			record.ChangeWorkloadName("sleep", versionA)).UID("change-a").Generation(1).Created(testNow).
			Of(wrappers.MakeDeployment("default", "sleep").UID("sleep-uid").Obj()).Version(versionA).Obj(),
		Workload: &workload.Workload{
			GVK: appsv1.SchemeGroupVersion.WithKind("Deployment"), Namespace: "default", Name: "sleep", UID: "sleep-uid",
			Labels:      map[string]string{v1alpha1.VersionLabel: versionA},
			Annotations: map[string]string{v1alpha1.ReleaseAnnotation: "1"},
			Version:     versionA, Replicas: replicas,
		},
	}}
	w.stored = w.in.Workload
	return w
}

// Stale freezes the workload in the cache, until Fresh.
func (w *world) Stale() *world {
	shown := *w.stored
	shown.Labels, shown.Annotations = maps.Clone(shown.Labels), maps.Clone(shown.Annotations)
	w.in.Workload = &shown
	return w
}

func (w *world) Fresh() *world { w.in.Workload = w.stored; return w }

func (w *world) Pods(n int, change ...func(*workload.Pod)) *world {
	for range n {
		p := workload.Pod{
			Namespace: "default", Name: fmt.Sprintf("sleep-%d", len(w.in.Pods)), UID: types.UID(fmt.Sprintf("pod-%d", len(w.in.Pods))),
			Ready: true, ReadySince: testNow.Add(-time.Second),
		}
		for _, c := range change {
			c(&p)
		}
		w.in.Pods = append(w.in.Pods, p)
	}
	return w
}

func unready(p *workload.Pod)     { p.Ready = false }
func terminating(p *workload.Pod) { p.Terminating = true }
func ended(p *workload.Pod)       { p.Ready, p.Ended = false, true }

func (w *world) Complete() *world { w.in.Workload.Rollout.Complete = true; return w }
func (w *world) Paused() *world   { w.in.Workload.Paused = true; return w }
func (w *world) OnDelete() *world { w.in.Workload.OnDelete = true; return w }
func (w *world) Unknown() *world  { w.in.Workload.Unknown = true; return w }
func (w *world) Partitioned(keep int32) *world {
	w.in.Workload.Partition, w.in.Workload.Rollout.Partitioned = keep, true
	return w
}
func (w *world) BatchSize(n int32) *world     { w.in.Settings.BatchSize = n; return w }
func (w *world) Later(d time.Duration) *world { w.in.Now = w.in.Now.Add(d); return w }
func (w *world) Status(s v1alpha1.ChangeWorkloadStatusType) *world {
	w.in.Change.Status.Status = s
	return w
}

func (w *world) Suspended(by string) *world {
	w.in.Workload.Labels[v1alpha1.SuspendLabel] = "1"
	if by != "" {
		w.in.Workload.Annotations[v1alpha1.SuspendedByAnnotation] = by
	}
	return w
}

// Release makes the n-th release, of a version, the current release of the workload.
func (w *world) Release(n int64, version string) *world {
	w.in.Workload.Labels[v1alpha1.VersionLabel] = version
	w.in.Workload.Annotations[v1alpha1.ReleaseAnnotation] = fmt.Sprint(n)
	w.in.Workload.Version = version
	return w
}

// Verdict writes a verdict on a pod, like a user.
func (w *world) Verdict(pod, verdict string) *world {
	for i := range w.in.Batches {
		b := &w.in.Batches[i]
		for _, info := range b.Spec.PodInfos {
			if info.Pod == pod {
				b.Status.PodResults = []v1alpha1.PodResult{{PodInfo: v1alpha1.PodInfo{Pod: pod}, Verdict: verdict, Message: "find error"}}
			}
		}
	}
	return w
}

// Step decides and carries out the plan.
func (w *world) Step() ReleasePlan { return w.step(false) }

// Crash decides and carries out the plan without the status.
func (w *world) Crash() *world { w.step(true); return w }

func (w *world) step(crash bool) ReleasePlan {
	plan := DecideRelease(w.in)
	if plan.NeedsBatches {
		w.in.LiveBatches = true // there is no cache here
		defer func() { w.in.LiveBatches = false }()
		plan = DecideRelease(w.in)
	}
	if len(plan.NeedsSure) > 0 {
		w.in.Sure, w.in.Gone = map[types.UID]bool{}, map[types.UID]bool{}
		for _, b := range plan.NeedsSure {
			w.in.Sure[b.UID] = true
			for _, p := range b.Spec.PodInfos {
				w.in.Gone[types.UID(p.UID)] = !w.unseen[types.UID(p.UID)]
			}
		}
		defer func() { w.in.Sure, w.in.Gone = nil, nil }()
		plan = DecideRelease(w.in)
	}
	if plan.NeedsLive {
		live := w.in
		live.Workload, live.Live = w.stored, true
		if plan = DecideRelease(live); plan.NeedsLive {
			panic("needs more than a live view")
		}
	}
	if plan.Spec != nil {
		w.in.Change.Spec = *plan.Spec
		w.in.Change.Generation++
	}
	for _, b := range plan.Batches {
		batch := wrappers.MakeChangePod("default", record.ChangePodName("sleep", versionA, b.Number)).Attempt(b.Attempt, b.Release).Obj()
		batch.UID = types.UID(fmt.Sprintf("batch-%d-%d", b.Number, len(w.in.Batches)))
		batch.Spec.PodInfos, batch.Spec.TotalBatches, batch.Spec.Last, batch.Spec.CreateTimeUnix = b.Pods, b.Total, b.Last, w.in.Now.Unix()
		w.in.Batches = append(w.in.Batches, *batch)
	}
	switch plan.Action {
	case BlockWorkload:
		w.stored.Labels[v1alpha1.SuspendLabel] = fmt.Sprint(w.in.Now.Unix())
		w.stored.Annotations[v1alpha1.SuspendedByAnnotation] = w.stored.BlockedBy(w.in.Change.UID)
	case LiftBlock:
		delete(w.stored.Labels, v1alpha1.SuspendLabel)
		delete(w.stored.Annotations, v1alpha1.SuspendedByAnnotation)
	case LeaveWorkload, ResumeWorkload, PaceWorkload:
	}
	if plan.Halt {
		w.stored.Paused = true
		w.stored.Annotations[v1alpha1.HaltedAnnotation] = w.in.Change.Spec.Reversion
	}
	if plan.Resume {
		w.stored.Paused = false
		delete(w.stored.Annotations, v1alpha1.HaltedAnnotation)
	}
	if plan.Status != nil && !crash {
		w.in.Change.Status = *plan.Status
	}
	if !crash && !w.kept {
		for _, gone := range plan.RemoveBatches {
			w.in.Batches = slices.DeleteFunc(w.in.Batches, func(b v1alpha1.ChangePod) bool { return b.UID == gone.UID })
		}
	}
	if plan.Remember && !crash {
		w.in.History = slices.DeleteFunc(w.in.History, func(r workload.Revision) bool { return r.Version == w.in.Change.Spec.Reversion })
		w.in.History = append(w.in.History,
			workload.Revision{Name: w.in.Change.Name, Version: w.in.Change.Spec.Reversion, Release: w.in.Change.Spec.Release})
	}
	for _, r := range plan.Forget {
		w.in.History = slices.DeleteFunc(w.in.History, func(h workload.Revision) bool { return h == r })
	}
	return plan
}

// Check ends all open batches.
func (w *world) Check() *world {
	for i := range w.in.Batches {
		plan := server.DecideBatch(server.BatchInput{Now: w.in.Now, Settings: w.in.Settings, Batch: &w.in.Batches[i], Change: w.in.Change})
		if plan.Status != nil {
			w.in.Batches[i].Status = *plan.Status
		}
	}
	return w
}

// Settle steps and checks until nothing changes.
func (w *world) Settle(t *testing.T) *world {
	t.Helper()
	for range 20 {
		plan := w.Step()
		w.Check()
		plan.RequeueAfter, plan.Remove = 0, nil
		if w.kept {
			plan.RemoveBatches = nil
		}
		if diff := cmp.Diff(ReleasePlan{}, plan); diff == "" {
			return w
		}
	}
	t.Fatal("does not settle")
	return w
}

func TestDecideRelease(t *testing.T) {
	type want struct {
		status                          v1alpha1.ChangeWorkloadStatusType
		batches                         []int // pods in each existing batch
		preparing, checking, pass, fail int32
		suspended                       bool
		reasons                         map[string]string // of conditions
	}
	crash := func(w *world) { w.in.Workload.Rollout.Complete, w.in.Pods[1].Ready = false, false }
	for name, test := range map[string]struct {
		world *world
		then  []func(*world) // each followed by settling
		want  want
	}{
		"pods one by one": {
			world: newWorld(3).Pods(2).Pods(1, unready),
			want: want{status: v1alpha1.ChangeWorkloadRunning, batches: []int{1, 1}, pass: 2,
				reasons: map[string]string{v1alpha1.ConditionProgressing: v1alpha1.ReasonRollingOut,
					v1alpha1.ConditionVerified: v1alpha1.ReasonChecking}},
		},
		"all pods: success": {
			world: newWorld(3).Pods(3).Complete(),
			want: want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1, 1, 1}, pass: 3,
				reasons: map[string]string{v1alpha1.ConditionProgressing: v1alpha1.ReasonRolloutComplete,
					v1alpha1.ConditionVerified: v1alpha1.ReasonAllPassed}},
		},
		"batches of two, the rest when complete": {
			world: newWorld(5).BatchSize(2).Pods(5).Complete(),
			want:  want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{2, 2, 1}, pass: 5},
		},
		"batches of two, the rest waits": {
			world: newWorld(5).BatchSize(2).Pods(3),
			want:  want{status: v1alpha1.ChangeWorkloadRunning, batches: []int{2}, pass: 2, preparing: 1},
		},
		"the rest goes when the wait is over": {
			world: newWorld(5).BatchSize(2).Pods(3),
			then:  []func(*world){func(w *world) { w.Later(time.Minute) }},
			want:  want{status: v1alpha1.ChangeWorkloadRunning, batches: []int{2, 1}, pass: 3},
		},
		"none finished in time": {
			world: newWorld(3).Pods(3, unready),
			then:  []func(*world){func(w *world) { w.Later(time.Minute) }},
			want:  want{status: v1alpha1.ChangeWorkloadTimeOutPreThreshold},
		},
		"then one finishes": {
			world: newWorld(3).BatchSize(2).Pods(3, unready),
			then:  []func(*world){func(w *world) { w.Later(time.Minute) }, func(w *world) { w.in.Pods[0].Ready = true }},
			want:  want{status: v1alpha1.ChangeWorkloadRunning, batches: []int{1}, pass: 1},
		},
		"a paused rollout stays running": {
			world: newWorld(3).Paused().Pods(1),
			then:  []func(*world){func(w *world) { w.Later(time.Hour) }},
			want: want{status: v1alpha1.ChangeWorkloadRunning, batches: []int{1}, pass: 1,
				reasons: map[string]string{v1alpha1.ConditionProgressing: v1alpha1.ReasonRolloutPaused}},
		},
		"a paused rollout that was complete stays so when a pod crashes": {
			world: newWorld(3).Pods(3).Paused().Complete(),
			then:  []func(*world){func(w *world) { w.Verdict("sleep-1", "unpass") }, crash},
			want: want{status: v1alpha1.ChangeWorkloadSuspend, batches: []int{1, 1, 1}, pass: 2, fail: 1, suspended: true,
				reasons: map[string]string{v1alpha1.ConditionProgressing: v1alpha1.ReasonRolloutComplete}},
		},
		"nor does one crash, of pods that only a user replaces": {
			world: newWorld(3).Pods(3).OnDelete().Complete(),
			then:  []func(*world){func(w *world) { w.Verdict("sleep-1", "unpass") }, crash},
			want: want{status: v1alpha1.ChangeWorkloadSuspend, batches: []int{1, 1, 1}, pass: 2, fail: 1, suspended: true,
				reasons: map[string]string{v1alpha1.ConditionProgressing: v1alpha1.ReasonRolloutComplete}},
		},
		"nor does a crash end what a user's partition keeps": {
			world: newWorld(3).Pods(1).Partitioned(2),
			then:  []func(*world){func(w *world) { w.in.Workload.Rollout.Partitioned, w.in.Pods[0].Ready = false, false }},
			want: want{status: v1alpha1.ChangeWorkloadRunning, batches: []int{1}, pass: 1,
				reasons: map[string]string{v1alpha1.ConditionProgressing: v1alpha1.ReasonPartitioned}},
		},
		"it goes on when the partition is lowered": {
			world: newWorld(3).Pods(1).Partitioned(2),
			then: []func(*world){func(w *world) {
				w.in.Workload.Partition, w.in.Workload.Rollout.Partitioned = 1, false
				w.in.Workload.OldRevisions = []workload.OldRevision{{Name: "sleep-b", Version: versionB, Replicas: 2}}
			}},
			want: want{status: v1alpha1.ChangeWorkloadRunning, batches: []int{1}, pass: 1,
				reasons: map[string]string{v1alpha1.ConditionProgressing: v1alpha1.ReasonRollingOut}},
		},
		"it is complete no longer when a pod of another version is there": {
			world: newWorld(3).Pods(3).Paused().Complete(),
			then: []func(*world){func(w *world) { w.Verdict("sleep-1", "unpass") }, crash, func(w *world) {
				w.in.Workload.OldRevisions = []workload.OldRevision{{Name: "sleep-b", Version: versionB, Replicas: 1}}
			}},
			want: want{status: v1alpha1.ChangeWorkloadSuspend, batches: []int{1, 1, 1}, pass: 2, fail: 1, suspended: true,
				reasons: map[string]string{v1alpha1.ConditionProgressing: v1alpha1.ReasonRolloutPaused}},
		},
		"a stuck rollout stays running": {
			world: newWorld(3).Pods(1),
			then: []func(*world){func(w *world) { w.Later(time.Hour) }, func(w *world) {
				w.in.Workload.Rollout = workload.Rollout{Stuck: true, Message: "deadline exceeded"}
			}},
			want: want{status: v1alpha1.ChangeWorkloadRunning, batches: []int{1}, pass: 1,
				reasons: map[string]string{v1alpha1.ConditionProgressing: v1alpha1.ReasonRolloutStuck}},
		},
		"a failing verdict suspends and blocks": {
			world: newWorld(2).Pods(2).Complete(),
			then:  []func(*world){func(w *world) { w.Verdict("sleep-1", "unpass") }},
			want: want{status: v1alpha1.ChangeWorkloadSuspend, batches: []int{1, 1}, pass: 1, fail: 1, suspended: true,
				reasons: map[string]string{v1alpha1.ConditionBlocked: v1alpha1.ReasonPodFailed, v1alpha1.ConditionVerified: v1alpha1.ReasonPodFailed}},
		},
		"with blocking off it only suspends": {
			world: func() *world { w := newWorld(2).Pods(2).Complete(); w.in.Settings.Blocking = false; return w }(),
			then:  []func(*world){func(w *world) { w.Verdict("sleep-1", "unpass") }},
			want: want{status: v1alpha1.ChangeWorkloadSuspend, batches: []int{1, 1}, pass: 1, fail: 1,
				reasons: map[string]string{v1alpha1.ConditionBlocked: v1alpha1.ReasonBlockingDisabled}},
		},
		"blocking turned on later blocks nothing retroactively": {
			world: func() *world { w := newWorld(2).Pods(2).Complete(); w.in.Settings.Blocking = false; return w }(),
			then:  []func(*world){func(w *world) { w.Verdict("sleep-1", "unpass") }, func(w *world) { w.in.Settings.Blocking = true }},
			want:  want{status: v1alpha1.ChangeWorkloadSuspend, batches: []int{1, 1}, pass: 1, fail: 1},
		},
		"but another failure does": {
			world: func() *world { w := newWorld(2).Pods(2).Complete(); w.in.Settings.Blocking = false; return w }(),
			then: []func(*world){func(w *world) { w.Verdict("sleep-1", "unpass") }, func(w *world) {
				w.in.Settings.Blocking = true
				w.Verdict("sleep-0", "unpass")
			}},
			want: want{status: v1alpha1.ChangeWorkloadSuspend, batches: []int{1, 1}, fail: 2, suspended: true},
		},
		"other pods are still verified while suspended": {
			world: newWorld(2).Pods(1),
			then:  []func(*world){func(w *world) { w.Verdict("sleep-0", "fail") }, func(w *world) { w.Pods(1).Complete() }},
			want:  want{status: v1alpha1.ChangeWorkloadSuspend, batches: []int{1, 1}, pass: 1, fail: 1, suspended: true},
		},
		"a corrected verdict lifts its own block: success": {
			world: newWorld(2).Pods(2).Complete(),
			then:  []func(*world){func(w *world) { w.Verdict("sleep-1", "fail") }, func(w *world) { w.Verdict("sleep-1", "pass") }},
			want: want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1, 1}, pass: 2,
				reasons: map[string]string{v1alpha1.ConditionBlocked: v1alpha1.ReasonRecovered}},
		},
		"a corrected verdict lifts its own block: running": {
			world: newWorld(2).Pods(1),
			then:  []func(*world){func(w *world) { w.Verdict("sleep-0", "fail") }, func(w *world) { w.Verdict("sleep-0", "pass") }},
			want: want{status: v1alpha1.ChangeWorkloadRunning, batches: []int{1}, pass: 1,
				reasons: map[string]string{v1alpha1.ConditionBlocked: v1alpha1.ReasonRecovered}},
		},
		"a corrected verdict leaves another version's block": {
			world: newWorld(2).Pods(1).Suspended(versionB),
			then:  []func(*world){func(w *world) { w.Verdict("sleep-0", "fail") }, func(w *world) { w.Verdict("sleep-0", "pass") }},
			want:  want{status: v1alpha1.ChangeWorkloadRunning, batches: []int{1}, pass: 1, suspended: true},
		},
		"success lifts another version's block": {
			world: newWorld(1).Pods(1).Complete().Suspended(versionB),
			want:  want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1}, pass: 1},
		},
		"success lifts a block of unknown origin": {
			world: newWorld(1).Pods(1).Complete().Suspended(""),
			want:  want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1}, pass: 1},
		},
		"a block a user sets after success stays": {
			world: newWorld(1).Pods(1).Complete(),
			then:  []func(*world){func(w *world) { w.Suspended("") }},
			want:  want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1}, pass: 1, suspended: true},
		},
		"one like that before it stays, too": {
			world: newWorld(1).Pods(1).Complete().Suspended(""),
			then:  []func(*world){func(w *world) { w.Suspended("") }},
			want:  want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1}, pass: 1, suspended: true},
		},
		"a block a user sets during the release stays": {
			world: newWorld(2).Pods(1),
			then:  []func(*world){func(w *world) { w.Suspended("") }, func(w *world) { w.Pods(1).Complete() }},
			want:  want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1, 1}, pass: 2, suspended: true},
		},
		"the one that was there is lifted, not the one a user sets after it": {
			world: newWorld(2).Pods(1).Suspended(""),
			then:  []func(*world){func(w *world) { w.in.Workload.Labels[v1alpha1.SuspendLabel] = "2" }, func(w *world) { w.Pods(1).Complete() }},
			want:  want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1, 1}, pass: 2, suspended: true},
		},
		"a pod that becomes unavailable after success changes nothing of the release": {
			world: newWorld(2).Pods(2).Complete(),
			then:  []func(*world){func(w *world) { w.in.Workload.Rollout.Complete = false; w.in.Pods[0].Ready = false }},
			want: want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1, 1}, pass: 2,
				reasons: map[string]string{v1alpha1.ConditionProgressing: v1alpha1.ReasonRolloutComplete,
					v1alpha1.ConditionVerified: v1alpha1.ReasonAllPassed}},
		},
		"nor do a pause, and pods that are still to come": {
			world: newWorld(1).Pods(1).Complete(),
			then: []func(*world){func(w *world) {
				w.in.Workload.Replicas, w.in.Workload.Paused, w.in.Workload.Rollout.Complete = 3, true, false
				w.in.Workload.NotMade = &workload.NotMade{Count: 1, Since: testNow, Message: "exceeded quota"}
				w.Pods(1, unready)
			}},
			want: want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1}, pass: 1,
				reasons: map[string]string{v1alpha1.ConditionProgressing: v1alpha1.ReasonRolloutComplete,
					v1alpha1.ConditionVerified:        v1alpha1.ReasonAllPassed,
					v1alpha1.ConditionPodsUnavailable: v1alpha1.ReasonPodsSlow}},
		},
		"another pod fails while one is corrected: a new failure": {
			world: newWorld(2).Pods(2).Complete(),
			then: []func(*world){
				func(w *world) { w.Verdict("sleep-0", "fail") },
				func(w *world) { delete(w.stored.Labels, v1alpha1.SuspendLabel) },
				func(w *world) { w.Verdict("sleep-0", "pass").Verdict("sleep-1", "fail") },
			},
			want: want{status: v1alpha1.ChangeWorkloadSuspend, batches: []int{1, 1}, pass: 1, fail: 1, suspended: true},
		},
		"success without memory of the failure does not lift its own block": {
			world: newWorld(1).Pods(1).Complete().Suspended(versionA + " 1"),
			want: want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1}, pass: 1, suspended: true,
				reasons: map[string]string{v1alpha1.ConditionBlocked: v1alpha1.ReasonPodFailed}},
		},
		"nor does success of a record that was created later": {
			world: newWorld(1).Pods(1).Complete().Suspended(versionA + " 1 another-record"),
			want: want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1}, pass: 1, suspended: true,
				reasons: map[string]string{v1alpha1.ConditionBlocked: v1alpha1.ReasonPodFailed}},
		},
		"success lifts the block of an earlier release of the same version": {
			world: newWorld(1).Pods(1).Complete().Suspended(versionA + " 0"),
			want:  want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1}, pass: 1},
		},
		"a failure stays when its batch is deleted": {
			world: newWorld(2).Pods(2).Complete(),
			then:  []func(*world){func(w *world) { w.Verdict("sleep-0", "fail") }, func(w *world) { w.in.Batches = w.in.Batches[1:] }},
			want:  want{status: v1alpha1.ChangeWorkloadSuspend, batches: []int{1}, pass: 1, fail: 1, suspended: true},
		},
		"a pass does not: the pod is verified again": {
			world: newWorld(2).Pods(2).Complete(),
			then:  []func(*world){func(w *world) { w.in.Batches = w.in.Batches[1:] }},
			want:  want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1, 1}, pass: 2},
		},
		"the block is lifted although the status with it was lost": {
			world: newWorld(1).Pods(1).Complete(),
			then: []func(*world){
				func(w *world) { w.Verdict("sleep-0", "fail").Crash().Verdict("sleep-0", "pass") },
			},
			want: want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1}, pass: 1},
		},
		"a cache that shows an old block does not keep a new one from being set": {
			world: newWorld(1).Pods(1).Complete(),
			then: []func(*world){
				func(w *world) { w.Verdict("sleep-0", "fail") },
				func(w *world) { w.Stale().Verdict("sleep-0", "pass") },
				func(w *world) { w.Verdict("sleep-0", "fail") },
				func(w *world) { w.Fresh() },
			},
			want: want{status: v1alpha1.ChangeWorkloadSuspend, batches: []int{1}, fail: 1, suspended: true},
		},
		"a cache that does not show the block yet does not keep it from being lifted": {
			world: newWorld(1).Pods(1).Complete(),
			then: []func(*world){
				func(w *world) { w.Stale().Verdict("sleep-0", "fail") },
				func(w *world) { w.Verdict("sleep-0", "pass") },
				func(w *world) { w.Fresh() },
			},
			want: want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1}, pass: 1},
		},
		"a block lifted by hand is not set again, and the condition says so": {
			world: newWorld(1).Pods(1).Complete(),
			then: []func(*world){
				func(w *world) { w.Verdict("sleep-0", "fail") },
				func(w *world) { delete(w.stored.Labels, v1alpha1.SuspendLabel) },
			},
			want: want{status: v1alpha1.ChangeWorkloadSuspend, batches: []int{1}, fail: 1,
				reasons: map[string]string{v1alpha1.ConditionBlocked: v1alpha1.ReasonLifted}},
		},
		"batches of an attempt whose status was lost do not count for the next": {
			world: newWorld(1).Pods(1).Complete(),
			then: []func(*world){
				func(w *world) { w.Release(3, versionA); w.in.Change.Spec.Release = 3; w.Crash().Check() },
				func(w *world) { w.Release(4, versionB) },
				func(w *world) { w.Verdict("sleep-0", "fail") },
				func(w *world) { w.Release(5, versionA); w.in.Change.Spec.Release = 5 },
			},
			want: want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1, 1, 1}, pass: 1},
		},
		"a rollout that says complete before its pods are seen is waited for": {
			world: newWorld(1).Complete(),
			then:  []func(*world){func(w *world) { w.Later(time.Minute) }},
			want:  want{status: v1alpha1.ChangeWorkloadTimeOutPreThreshold},
		},
		"no pods: success that lifts nothing": {
			world: newWorld(0).Complete().Suspended(versionB),
			want: want{status: v1alpha1.ChangeWorkloadSuccess, suspended: true,
				reasons: map[string]string{v1alpha1.ConditionVerified: v1alpha1.ReasonNothingVerified}},
		},
		"until a pod passes": {
			world: newWorld(0).Complete().Suspended(versionB),
			then:  []func(*world){func(w *world) { w.in.Workload.Replicas = 1; w.Pods(1) }},
			want:  want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1}, pass: 1},
		},
		"pods that come after success are verified": {
			world: newWorld(1).Pods(1).Complete(),
			then: []func(*world){func(w *world) { w.in.Workload.Replicas = 3; w.in.Workload.Rollout.Complete = false; w.Pods(2) },
				func(w *world) { w.Complete() }},
			want: want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1, 1, 1}, pass: 3},
		},
		"a pod that fails after success suspends": {
			world: newWorld(1).Pods(1).Complete(),
			then: []func(*world){func(w *world) { w.in.Workload.Replicas = 2; w.in.Workload.Rollout.Complete = false; w.Pods(1) },
				func(w *world) { w.Complete().Verdict("sleep-1", "inconc") }},
			want: want{status: v1alpha1.ChangeWorkloadSuspend, batches: []int{1, 1}, pass: 1, fail: 1, suspended: true},
		},
		"not yet success: the rollout says complete, a pod was not seen": {
			world: newWorld(2).Pods(1).Complete(),
			want:  want{status: v1alpha1.ChangeWorkloadRunning, batches: []int{1}, pass: 1},
		},
		"terminating and evicted pods are not awaited": {
			world: newWorld(1).Pods(1).Pods(1, unready, terminating).Pods(1, ended).Complete(),
			want:  want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1}, pass: 1},
		},
		"once finished, always finished": {
			world: newWorld(3).BatchSize(3).Pods(2).Pods(1, unready),
			then:  []func(*world){func(w *world) { w.in.Pods[0].Ready = false }, func(w *world) { w.in.Pods[2].Ready = true }},
			want:  want{status: v1alpha1.ChangeWorkloadRunning, batches: []int{3}, pass: 3},
		},
		"minReadySeconds": {
			world: func() *world { w := newWorld(1).Pods(1); w.in.Workload.MinReady = 10 * time.Second; return w }(),
			want:  want{status: v1alpha1.ChangeWorkloadRunning},
		},
		"minReadySeconds over": {
			world: func() *world { w := newWorld(1).Pods(1); w.in.Workload.MinReady = 10 * time.Second; return w }(),
			then:  []func(*world){func(w *world) { w.Later(9 * time.Second) }},
			want:  want{status: v1alpha1.ChangeWorkloadRunning, batches: []int{1}, pass: 1},
		},
		"a newer release replaces a running one": {
			world: newWorld(2).Pods(1),
			then:  []func(*world){func(w *world) { w.Release(2, versionB).Pods(3) }},
			want: want{status: v1alpha1.ChangeWorkloadCanceled, batches: []int{1}, pass: 1,
				reasons: map[string]string{v1alpha1.ConditionProgressing: v1alpha1.ReasonReleaseEnded,
					v1alpha1.ConditionVerified: v1alpha1.ReasonReleaseEnded}},
		},
		"a suspended one stays suspended": {
			world: newWorld(1).Pods(1),
			then:  []func(*world){func(w *world) { w.Verdict("sleep-0", "fail") }, func(w *world) { w.Release(2, versionB) }},
			want:  want{status: v1alpha1.ChangeWorkloadSuspend, batches: []int{1}, fail: 1, suspended: true},
		},
		"a verdict for a replaced release is recorded only": {
			world: newWorld(1).Pods(1).Complete(),
			then:  []func(*world){func(w *world) { w.Release(2, versionB) }, func(w *world) { w.Verdict("sleep-0", "fail") }},
			want:  want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1}, pass: 1},
		},
		"a view of the workload older than the release decides nothing": {
			world: func() *world { w := newWorld(1).Pods(1); w.in.Change.Spec.Release = 2; return w }(),
			want:  want{status: v1alpha1.ChangeWorkloadInit},
		},
		"a template that differs from its record decides nothing": {
			world: func() *world { w := newWorld(1).Pods(1); w.in.Workload.Version = versionB; return w }(),
			want:  want{status: v1alpha1.ChangeWorkloadInit},
		},
		"released again: a new attempt, pods verified again": {
			world: newWorld(2).Pods(2).Complete(),
			then: []func(*world){
				func(w *world) { w.Verdict("sleep-0", "fail") },
				func(w *world) { w.Release(2, versionB) },
				func(w *world) { w.Release(3, versionA); w.in.Change.Spec.Release = 3 },
			},
			want: want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1, 1, 1, 1}, pass: 2},
		},
		"opting out cancels": {
			world: newWorld(2).Pods(1),
			then:  []func(*world){func(w *world) { w.in.Workload.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled }},
			want: want{status: v1alpha1.ChangeWorkloadCanceled, batches: []int{1}, pass: 1,
				reasons: map[string]string{v1alpha1.ConditionProgressing: v1alpha1.ReasonNotDefended}},
		},
		"leaving with the namespace cancels, for good": {
			world: newWorld(2).Pods(1),
			then:  []func(*world){func(w *world) { w.in.Enrolled = false }, func(w *world) { w.in.Enrolled = true; w.Pods(1).Complete() }},
			want:  want{status: v1alpha1.ChangeWorkloadCanceled, batches: []int{1}, pass: 1},
		},
		"a record that never began is nothing where nothing is written": {
			world: func() *world { w := newWorld(2).Pods(1); w.in.Enrolled = false; return w }(),
			then:  []func(*world){func(w *world) { w.in.Workload = nil }},
			want:  want{},
		},
		"a deleted workload cancels": {
			world: newWorld(2).Pods(1),
			then:  []func(*world){func(w *world) { w.in.Workload.Deleting = true }},
			want: want{status: v1alpha1.ChangeWorkloadCanceled, batches: []int{1}, pass: 1,
				reasons: map[string]string{v1alpha1.ConditionProgressing: v1alpha1.ReasonWorkloadDeleted}},
		},
		"results of pods outside the batch do not count": {
			world: newWorld(1).Pods(1).Complete(),
			then: []func(*world){func(w *world) {
				w.in.Batches[0].Status.PodResults = []v1alpha1.PodResult{wrappers.PodResult("other", "fail")}
			}},
			want: want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1}, pass: 1},
		},
		"nor do those of an earlier pod of the same name": {
			world: newWorld(1).Pods(1).Complete(),
			then: []func(*world){func(w *world) {
				w.in.Batches[0].Status.PodResults = []v1alpha1.PodResult{{PodInfo: v1alpha1.PodInfo{Pod: "sleep-0", UID: "earlier"}, Verdict: "fail"}}
			}},
			want: want{status: v1alpha1.ChangeWorkloadSuccess, batches: []int{1}, pass: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := test.world
			w.Settle(t)
			for _, change := range test.then {
				change(w)
				w.Settle(t)
			}
			s := w.in.Change.Status
			_, suspended := w.stored.Labels[v1alpha1.SuspendLabel]
			got := want{status: s.Status, preparing: s.PreparingCount, checking: s.CheckingCount, pass: s.PassCount, fail: s.FailCount,
				suspended: suspended}
			for i := range w.in.Batches {
				got.batches = append(got.batches, len(w.in.Batches[i].Spec.PodInfos))
			}
			if test.want.reasons != nil {
				got.reasons = map[string]string{}
				for kind := range test.want.reasons {
					if c := meta.FindStatusCondition(s.Conditions, kind); c != nil {
						got.reasons[kind] = c.Reason
					}
				}
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(want{})); diff != "" {
				t.Errorf("-want +got:\n%s\nevents and state: %+v", diff, s)
			}
			onePodOneBatch(t, w)
		})
	}
}

// onePodOneBatch checks that no pod is in two batches of one attempt.
func onePodOneBatch(t *testing.T, w *world) {
	t.Helper()
	seen := map[string]string{}
	for _, b := range w.in.Batches {
		for _, p := range b.Spec.PodInfos {
			key := fmt.Sprintf("%d of release %d/%s", b.Spec.Attempt, b.Spec.Release, p.UID)
			if other, ok := seen[key]; ok {
				t.Errorf("pod %s is in %s and %s of attempt %d", p.Pod, other, b.Name, b.Spec.Attempt)
			}
			seen[key] = b.Name
		}
	}
}

// TestNotBefore: a replica does not decide at an earlier time than the last decision, unless the clocks differ too
// much.
func TestNotBefore(t *testing.T) {
	now := time.Unix(1000, 850e6)
	for name, test := range map[string]struct {
		decided int64
		want    time.Time
	}{
		"never decided":             {0, now},
		"decided before":            {1000, now},
		"decided by another, ahead": {1001, time.Unix(1001, 0)},
		"as far as clocks may be":   {1005, time.Unix(1005, 0)},
		"further than they may be":  {1006, now},
	} {
		if got := notBefore(now, test.decided); !got.Equal(test.want) {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// TestFailureAfterCorrection: a stale view of a batch before its correction does not suspend the release again.
func TestFailureAfterCorrection(t *testing.T) {
	for name, corrected := range map[string]bool{"the first failure": false, "corrected before": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(2).BatchSize(1).Pods(1).Settle(t)
			if corrected {
				w.Verdict("sleep-0", "unpass").Settle(t)
				w.Verdict("sleep-0", record.VerdictPass).Settle(t)
			}
			w.Verdict("sleep-0", "unpass")
			if plan := DecideRelease(w.in); plan.NeedsBatches != corrected {
				t.Errorf("needs batches: %t, want %t", plan.NeedsBatches, corrected)
			}
		})
	}
}

// TestNeedsBatches: while a batch of the status is unseen, its pods must not be put into another batch.
func TestNeedsBatches(t *testing.T) {
	made := func() *world { w := newWorld(3).BatchSize(1).Pods(2); w.Step(); return w }
	for name, test := range map[string]struct {
		world *world
		needs bool
		made  int
	}{
		"all are seen":                 {made().Pods(1), false, 1},
		"one is not":                   {unseen(made().Pods(1), 1), true, 0},
		"none is":                      {unseen(made().Pods(1), 2), true, 0},
		"no batch is due":              {unseen(withoutPods(made()), 2), false, 0},
		"it is read, and is gone":      {live(unseen(made().Pods(1), 1)), false, 2},
		"one more than the status has": {func() *world { w := made().Pods(1); w.in.Change.Status.Batches = 1; return w }(), false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			plan := DecideRelease(test.world.in)
			if plan.NeedsBatches != test.needs || !test.needs && len(plan.Batches) != test.made {
				t.Errorf("needs batches: %t, makes %d; want %t, %d", plan.NeedsBatches, len(plan.Batches), test.needs, test.made)
			}
		})
	}
}

// TestEndsNoFailureUnseen: the release, or the block of another process, may be seen before the failed batch. This
// lifts nothing.
func TestEndsNoFailureUnseen(t *testing.T) {
	failed := func(pods int) *world {
		w := newWorld(2).Pods(pods)
		w.in.Workload.Rollout.Complete = pods == 2
		return w.Settle(t).Verdict("sleep-0", "unpass").Settle(t)
	}
	for name, w := range map[string]*world{
		"it would go on":   failed(1).Verdict("sleep-0", "pass"),
		"it would succeed": failed(2).Verdict("sleep-0", "pass").Verdict("sleep-1", "pass"),
		"the status does not show the block yet": func() *world {
			w := failed(2).Verdict("sleep-0", "pass").Verdict("sleep-1", "pass")
			w.in.Change.Status.Status = v1alpha1.ChangeWorkloadSuccess
			return w
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			if plan := DecideRelease(w.in); plan.Action != LiftBlock || !plan.NeedsBatches || !plan.NeedsLive {
				t.Errorf("action %d, needs batches %t, live %t; want all", plan.Action, plan.NeedsBatches, plan.NeedsLive)
			}
		})
	}
}

// unseen hides the last batches.
func unseen(w *world, n int) *world { w.in.Batches = w.in.Batches[:len(w.in.Batches)-n]; return w }

func withoutPods(w *world) *world { w.in.Pods = nil; return w }

func live(w *world) *world { w.in.LiveBatches = true; return w }

func TestDecideReleaseSuccessRemovesOlder(t *testing.T) {
	older := *wrappers.MakeChangeWorkload("default", "older").Release(1).Obj()
	newer := *wrappers.MakeChangeWorkload("default", "newer").Release(3).Obj()
	for name, test := range map[string]struct {
		world *world
		want  []string
	}{
		"success":            {newWorld(1).Pods(1).Complete(), []string{"older"}},
		"running":            {newWorld(2).Pods(1), nil},
		"success of no pods": {newWorld(0).Complete(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := test.world.Release(2, versionA)
			w.in.Change.Spec.Release = 2
			w.in.Others = []v1alpha1.ChangeWorkload{older, newer}
			w.Settle(t)
			var got []string
			for _, c := range DecideRelease(w.in).Remove {
				got = append(got, c.Name)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("removed -want +got:\n%s", diff)
			}
		})
	}
}

func TestHistory(t *testing.T) {
	revisions := func(versions ...string) (history []workload.Revision) {
		for i, v := range versions {
			history = append(history, workload.Revision{Name: v, Version: v, Release: int64(i + 1)})
		}
		return history
	}
	versions := func(w *world) (got []string) {
		for _, r := range w.in.History {
			got = append(got, fmt.Sprint(r.Version[:1], " ", r.Release))
		}
		return got
	}
	const v1, v2, v3 = "1111", "2222", "3333"
	for name, test := range map[string]struct {
		world *world
		then  []func(*world)
		want  []string
	}{
		"a success is remembered":   {newWorld(1).Pods(1).Complete(), nil, []string{"a 1"}},
		"not one that is under way": {newWorld(2).Pods(1), nil, nil},
		"not one without pods":      {newWorld(0).Complete(), nil, nil},
		"one without pods, once a pod passed": {newWorld(0).Complete(), []func(*world){func(w *world) { w.stored.Replicas = 1; w.Pods(1) }},
			[]string{"a 1"}},
		"the oldest goes": {func() *world {
			w := newWorld(1).Pods(1).Complete()
			w.in.Settings.History = 2
			w.in.History = revisions(v1, v2, v3)
			w.in.Change.Spec.Release = 9
			w.Release(9, versionA)
			return w
		}(), nil, []string{"3 3", "a 9"}},
		"one that succeeds again is the newest": {func() *world {
			w := newWorld(1).Pods(1).Complete()
			w.in.History = revisions(versionA, v2)
			w.in.Change.Spec.Release = 9
			w.Release(9, versionA)
			return w
		}(), nil, []string{"2 2", "a 9"}},
		"one that fails later leaves": {newWorld(1).Pods(1).Complete(), []func(*world){func(w *world) { w.Verdict("sleep-0", "fail") }}, nil},
		"and comes back when corrected": {newWorld(1).Pods(1).Complete(),
			[]func(*world){func(w *world) { w.Verdict("sleep-0", "fail") }, func(w *world) { w.Verdict("sleep-0", "pass") }}, []string{"a 1"}},
		"turned off": {func() *world {
			w := newWorld(1).Pods(1).Complete()
			w.in.Settings.History = 0
			w.in.History = revisions(v1)
			return w
		}(), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := test.world.Settle(t)
			for _, then := range test.then {
				then(w)
				w.Settle(t)
			}
			if diff := cmp.Diff(test.want, versions(w)); diff != "" {
				t.Errorf("history -want +got:\n%s", diff)
			}
		})
	}
	if got := rollback.NewestSuccess(revisions(v1, v2, v3), v3, nil, testNow); got != v2 {
		t.Errorf("newest success beside %s is %q, want %s", v3, got, v2)
	}
}

// TestNoSuccessOfRestarted: pods that passed and have crashed since make no Success, however often the rollout is
// complete for a moment.
func TestNoSuccessOfRestarted(t *testing.T) {
	w := newWorld(2).Pods(2)
	for range 3 { // they pass before the kubelet reports their crash
		w.Step()
		w.Check()
	}
	state := func() v1alpha1.ChangeWorkloadStatusType { w.Step(); return w.in.Change.Status.Status }
	for range 5 {
		w.Later(40 * time.Second)
		w.in.Pods[1].RestartedAt = w.in.Now
		if got := w.Complete(); state() != v1alpha1.ChangeWorkloadRunning {
			t.Fatalf("%s while a pod crashes again and again", got.in.Change.Status.Status)
		}
		w.Later(8 * time.Second)
		w.in.Pods[1].Ready, w.in.Pods[1].RestartedAt = false, time.Time{}
		if got := state(); got != v1alpha1.ChangeWorkloadRunning {
			t.Fatalf("%s while a pod is down, and the rollout still said to be complete", got)
		}
		w.in.Workload.Rollout.Complete = false
		state()
		w.in.Pods[1].Ready = true
	}
	w.Complete().in.Pods[1].RestartedAt = w.in.Now
	w.Step()
	if again := DecideRelease(w.in).RequeueAfter; again != workload.RestartSettle {
		t.Errorf("looks again after %s", again)
	}
	if got := record.ConditionMessage(&w.in.Change.Status, v1alpha1.ConditionVerified); !strings.Contains(got, "restarted") {
		t.Errorf("says %q", got)
	}
	w.Later(workload.RestartSettle)
	if got := state(); got != v1alpha1.ChangeWorkloadSuccess {
		t.Fatalf("%s although it has run for a minute", got)
	}
	w.in.Pods[1].RestartedAt = w.in.Now
	if got := state(); got != v1alpha1.ChangeWorkloadSuccess || conditionReason(w, v1alpha1.ConditionVerified) != v1alpha1.ReasonAllPassed {
		t.Errorf("a restart after the Success makes it %s, Verified %s", got, conditionReason(w, v1alpha1.ConditionVerified))
	}
}

// TestRememberLeft: the version of a successful release that was replaced before it was remembered is still remembered.
func TestRememberLeft(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*world)
		want   bool
	}{
		"not remembered": {func(*world) {}, true},
		"after an older one": {func(w *world) {
			w.in.History = []workload.Revision{{Name: "b", Version: versionB, Release: 0}}
		}, true},
		"remembered":          {func(w *world) { w.in.History = []workload.Revision{{Name: "a", Version: versionA, Release: 1}} }, false},
		"forgotten, as older": {func(w *world) { w.in.History = []workload.Revision{{Name: "b", Version: versionB, Release: 2}} }, false},
		"a newer one succeeded": {func(w *world) {
			w.in.Others = []v1alpha1.ChangeWorkload{change(versionB, 2, v1alpha1.ChangeWorkloadSuccess)}
		}, false},
		"failed":          {func(w *world) { w.Status(v1alpha1.ChangeWorkloadSuspend) }, false},
		"did not end":     {func(w *world) { w.Status(v1alpha1.ChangeWorkloadRunning) }, false},
		"verified no pod": {func(w *world) { w.in.Change.Status.PassCount = 0 }, false},
		"history is off":  {func(w *world) { w.in.Settings.History = 0 }, false},
		"failed soon after": {func(w *world) {
			w.in.Change.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionProven, Status: metav1.ConditionFalse,
				Reason: v1alpha1.ReasonPodsFailing}}
		}, false},
		"rolled back": {func(w *world) {
			rollback.ParseQuarantine(nil, testNow).With(versionA,
				rollback.QuarantineReason{Cause: v1alpha1.ReasonRollbackRequested, Release: 1}).Annotate(w.stored.Annotations)
		}, false},
		"left the defense":      {func(w *world) { w.in.Enrolled = false }, false},
		"the workload is going": {func(w *world) { w.stored.Deleting = true }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1).Pods(1).Complete().Settle(t)
			w.in.History = nil
			w.Release(2, versionB)
			test.change(w)
			if plan := w.Step(); plan.Remember != test.want {
				t.Errorf("remembers: %t, want %t", plan.Remember, test.want)
			}
		})
	}
}

// TestSettingsAltered: a release reports its changed settings once.
func TestSettingsAltered(t *testing.T) {
	for name, test := range map[string]struct {
		note string
		want string // named by the event
	}{
		"none":              {"", ""},
		"of this release":   {`1 observe from none to "enabled"`, `observe from none to "enabled"`},
		"of an earlier one": {`7 observe from none to "enabled"`, ""},
		"a text of a user":  {"nonsense", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1).Pods(1).Complete()
			w.in.Workload.Annotations[v1alpha1.SettingsAlteredAnnotation] = test.note
			reported := 0
			for range 5 {
				for _, e := range w.Step().Events {
					if e.Reason == "SettingsAltered" {
						reported++
						if !strings.Contains(e.Message, test.want) {
							t.Errorf("event %q, want %q in it", e.Message, test.want)
						}
					}
				}
				w.Check()
			}
			if want := min(len(test.want), 1); reported != want {
				t.Errorf("reported %d times, want %d", reported, want)
			}
		})
	}
}

func TestRevisionNotFound(t *testing.T) {
	alike := func(w *world) {
		w.in.Workload.OldRevisions = []workload.OldRevision{{Name: "sleep-a", Version: versionA, Replicas: 2, Ready: 2}}
	}
	for name, test := range map[string]struct {
		world    *world
		steps    []func(*world)
		reported int
		ends     string
	}{
		"pods of the same template are replaced": {newWorld(3).Pods(1), []func(*world){alike, func(*world) {}}, 1, ": 2 " + alikeReplaced},
		"until they are": {newWorld(3).Pods(1), []func(*world){alike, func(w *world) { w.in.Workload.OldRevisions = nil }},
			1, "in progress."},
		"pods of another one are": {newWorld(3).Pods(1), []func(*world){func(w *world) {
			w.in.Workload.OldRevisions = []workload.OldRevision{{Name: "sleep-b", Version: versionB, Replicas: 2, Ready: 2}}
		}}, 0, "in progress."},
		"nothing is known of the rollout": {newWorld(3).Pods(1), []func(*world){alike, func(w *world) { w.in.Workload.Rollout.Stale = true }},
			1, "in progress."},
		"the revision is not seen yet": {newWorld(3).Pods(1), []func(*world){func(w *world) {
			alike(w)
			w.in.Workload.Revision = ""
		}}, 0, "in progress."},
	} {
		t.Run(name, func(t *testing.T) {
			w := test.world
			w.in.Workload.Revision = "sleep-c"
			w.Settle(t)
			reported := 0
			for _, step := range test.steps {
				step(w)
				for _, e := range DecideRelease(w.in).Events {
					if e.Reason == v1alpha1.EventRevisionNotFound {
						reported++
					}
				}
				w.Settle(t)
			}
			if reported != test.reported {
				t.Errorf("reported %d times, want %d", reported, test.reported)
			}
			if c := meta.FindStatusCondition(w.in.Change.Status.Conditions, v1alpha1.ConditionProgressing); c == nil ||
				!strings.HasSuffix(c.Message, test.ends) {
				t.Errorf("%+v", c)
			}
		})
	}
}

func TestHalting(t *testing.T) {
	fail := func(pod string) func(*world) { return func(w *world) { w.Verdict(pod, "fail") } }
	pass := func(pod string) func(*world) { return func(w *world) { w.Verdict(pod, "pass") } }
	resume := func(w *world) {
		w.stored.Paused = false
		delete(w.stored.Annotations, v1alpha1.HaltedAnnotation)
	}
	forget := func(w *world) { w.in.Change.Status, w.in.Batches = v1alpha1.ChangeWorkloadStatus{}, nil }
	overriding := func() *world { return newWorld(3).Pods(2).Suspended(versionB + " 7") }
	for name, test := range map[string]struct {
		world  *world
		then   []func(*world) // each followed by settling
		paused bool
		halted string
		reason string // of Progressing
	}{
		"a failure halts a rollout that is under way": {newWorld(3).Pods(1), []func(*world){fail("sleep-0")}, true, versionA,
			v1alpha1.ReasonRolloutHalted},
		"not one that is complete": {newWorld(1).Pods(1).Complete(), []func(*world){fail("sleep-0")}, false, "",
			v1alpha1.ReasonRolloutComplete},
		"not one that was, of which nothing was heard since": {newWorld(1).Pods(1).Complete(), []func(*world){
			func(w *world) { w.in.Workload.Rollout = workload.Rollout{Stale: true} }, fail("sleep-0"),
		}, false, "", v1alpha1.ReasonRolloutComplete},
		"not one that was, and lost an available pod": {newWorld(1).Pods(1).Complete(), []func(*world){
			func(w *world) { w.in.Workload.Rollout = workload.Rollout{} }, fail("sleep-0"),
		}, false, "", v1alpha1.ReasonRolloutComplete},
		"one that was, and has a pod of another version again": {newWorld(2).Pods(1).Complete(), []func(*world){
			func(w *world) {
				w.in.Workload.Rollout, w.in.Workload.OldRevisions = workload.Rollout{}, []workload.OldRevision{{Replicas: 1}}
			}, fail("sleep-0"),
		}, true, versionA, v1alpha1.ReasonRolloutHalted},
		"what is halted stays so when the pods that it has are available": {newWorld(1).Pods(1), []func(*world){
			fail("sleep-0"), func(w *world) { w.Complete() },
		}, true, versionA, v1alpha1.ReasonRolloutHalted},
		"one that never was, and of which nothing is known": {newWorld(3).Pods(1), []func(*world){
			func(w *world) { w.in.Workload.Rollout = workload.Rollout{Stale: true} }, fail("sleep-0"),
		}, true, versionA, v1alpha1.ReasonRolloutHalted},
		"not with the setting off": {func() *world { w := newWorld(3).Pods(1); w.in.Settings.Halting = false; return w }(),
			[]func(*world){fail("sleep-0")}, false, "", v1alpha1.ReasonRollingOut},
		"not without a block": {func() *world { w := newWorld(3).Pods(1); w.in.Settings.Blocking = false; return w }(),
			[]func(*world){fail("sleep-0")}, false, "", v1alpha1.ReasonRollingOut},
		"an override, when it is blocked already": {
			overriding(), []func(*world){fail("sleep-0")}, true, versionA, v1alpha1.ReasonRolloutHalted,
		},
		"not under a user's own block": {func() *world {
			w := overriding()
			delete(w.stored.Annotations, v1alpha1.SuspendedByAnnotation)
			return w
		}(), []func(*world){fail("sleep-0")}, false, "", v1alpha1.ReasonRollingOut},
		"a version that is being restored": {func() *world {
			w := overriding()
			rollback.ParseQuarantine(nil, testNow).With(versionB, rollback.QuarantineReason{
				Cause: v1alpha1.ReasonRollbackRequested, Release: w.stored.Release() - 1, To: versionA}).Annotate(w.stored.Annotations)
			return w
		}(), []func(*world){fail("sleep-0")}, false, "", v1alpha1.ReasonRollingOut},
		"an override whose halt was denied": {overriding(), []func(*world){fail("sleep-0"), func(w *world) {
			resume(w)
			NoteDenied(&w.in.Change.Status, 1, testNow, WritePace, "denied")
		}}, true, versionA, v1alpha1.ReasonRolloutHalted},
		"a user who resumes an override decides": {
			overriding(), []func(*world){fail("sleep-0"), resume, fail("sleep-1")}, false, "", v1alpha1.ReasonRollingOut,
		},
		"the correction resumes an override": {
			overriding(), []func(*world){fail("sleep-0"), pass("sleep-0")}, false, "", v1alpha1.ReasonRollingOut,
		},
		"a new failure after that halts it again": {
			overriding(), []func(*world){fail("sleep-0"), pass("sleep-0"), fail("sleep-1")}, true, versionA, v1alpha1.ReasonRolloutHalted,
		},
		"half of a correction does not": {
			overriding(), []func(*world){fail("sleep-0"), fail("sleep-1"), pass("sleep-0")}, true, versionA, v1alpha1.ReasonRolloutHalted,
		},
		"nor does a record that was created later": {
			overriding(), []func(*world){fail("sleep-0"), forget, pass("sleep-0")}, true, versionA, v1alpha1.ReasonRolloutHalted,
		},
		"a user's own pause stays a user's": {newWorld(3).Paused().Pods(1), []func(*world){fail("sleep-0")}, true, "",
			v1alpha1.ReasonRolloutPaused},
		"pods that only a user replaces are left alone": {newWorld(3).OnDelete().Pods(1), []func(*world){fail("sleep-0")}, false, "",
			v1alpha1.ReasonOnDelete},
		"a strategy that is not known is left alone": {newWorld(3).Unknown().Pods(1), []func(*world){fail("sleep-0")}, false, "",
			v1alpha1.ReasonRollingOut},
		"a user's partition is no halt": {newWorld(3).Partitioned(2).Pods(1), []func(*world){fail("sleep-0")}, true, versionA,
			v1alpha1.ReasonRolloutHalted},
		"a user's partition is reported": {newWorld(3).Partitioned(2).Pods(1), nil, false, "", v1alpha1.ReasonPartitioned},
		"a user who resumes decides": {
			newWorld(3).Pods(2), []func(*world){fail("sleep-0"), resume, fail("sleep-1")}, false, "", v1alpha1.ReasonRollingOut,
		},
		"the correction resumes": {newWorld(3).Pods(1), []func(*world){fail("sleep-0"), func(w *world) { w.Verdict("sleep-0", "pass") }}, false,
			"", v1alpha1.ReasonRollingOut},
		"the correction leaves a user's pause": {newWorld(3).Paused().Pods(1),
			[]func(*world){fail("sleep-0"), func(w *world) { w.Verdict("sleep-0", "pass") }},
			true, "", v1alpha1.ReasonRolloutPaused},
		"an override that slipped past admission resumes": {func() *world {
			w := newWorld(3).Paused().Suspended(versionB + " 7")
			w.stored.Annotations[v1alpha1.HaltedAnnotation] = versionB
			w.stored.Annotations[v1alpha1.OverrideAnnotation] = record.Override{Version: versionA, ResourceVersion: "5",
				User: workload.UnknownUser}.String()
			return w
		}(), nil, false, "", v1alpha1.ReasonRollingOut},
		"one that overrides nothing does not while there is a block": {func() *world {
			w := newWorld(3).Paused().Suspended(versionB + " 7")
			w.stored.Annotations[v1alpha1.HaltedAnnotation] = versionB
			return w
		}(), nil, true, versionB, v1alpha1.ReasonRolloutPaused},
		"it does when the block was lifted by hand": {func() *world {
			w := newWorld(3).Paused()
			w.stored.Annotations[v1alpha1.HaltedAnnotation] = versionB
			return w
		}(), nil, false, "", v1alpha1.ReasonRollingOut},
		"a block lifted by hand leaves the pause": {newWorld(3).Pods(1), []func(*world){fail("sleep-0"), func(w *world) {
			delete(w.stored.Labels, v1alpha1.SuspendLabel)
			delete(w.stored.Annotations, v1alpha1.SuspendedByAnnotation)
		}}, true, versionA, v1alpha1.ReasonRolloutHalted},
		"until the verdict is corrected": {newWorld(3).Pods(1), []func(*world){fail("sleep-0"), func(w *world) {
			delete(w.stored.Labels, v1alpha1.SuspendLabel)
			delete(w.stored.Annotations, v1alpha1.SuspendedByAnnotation)
		}, func(w *world) { w.Verdict("sleep-0", "pass") }}, false, "", v1alpha1.ReasonRollingOut},
		"a view from before the pause also resumes": {newWorld(3).Pods(1), []func(*world){func(w *world) {
			w.Stale()
			w.Verdict("sleep-0", "fail")
			w.Step()
			w.Verdict("sleep-0", "pass")
			w.Step()
			w.Fresh()
		}}, false, "", v1alpha1.ReasonRollingOut},
	} {
		t.Run(name, func(t *testing.T) {
			w := test.world.Settle(t)
			for _, then := range test.then {
				then(w)
				w.Settle(t)
			}
			if w.stored.Paused != test.paused || w.stored.Annotations[v1alpha1.HaltedAnnotation] != test.halted {
				t.Errorf("paused %t, halted %q; want %t, %q", w.stored.Paused, w.stored.Annotations[v1alpha1.HaltedAnnotation],
					test.paused, test.halted)
			}
			if c := meta.FindStatusCondition(w.in.Change.Status.Conditions, v1alpha1.ConditionProgressing); c == nil || c.Reason != test.reason {
				t.Errorf("condition Progressing is %+v, want reason %s", c, test.reason)
			}
		})
	}
}

func TestDecideReleaseFollowsSettings(t *testing.T) {
	w := newWorld(10).Pods(1, unready).Settle(t)
	w.in.Settings.BatchSize, w.in.Settings.Wait = 4, 5*time.Second
	if plan := w.Step(); plan.Spec == nil || plan.Spec.CountThreshold != 4 || plan.Spec.WaitTimeThreshold != 5 {
		t.Fatalf("spec = %+v, want thresholds of 4 pods and 5 seconds", plan.Spec)
	}
	w.Settle(t).Pods(9)
	w.in.Pods[0].Ready = true
	w.Complete().Settle(t)
	w.in.Settings.BatchSize = 7
	if plan := w.Step(); plan.Spec != nil {
		t.Errorf("a release that ended follows a setting: %+v", plan.Spec)
	}
}

func TestDecideReleaseRequeue(t *testing.T) {
	for name, test := range map[string]struct {
		world *world
		want  time.Duration
	}{
		"nothing finished yet: until the wait is over": {newWorld(1).Pods(1, unready), time.Minute},
		"batch not full: until the wait is over":       {newWorld(3).BatchSize(2).Pods(1), time.Minute},
		"minReadySeconds first": {func() *world { w := newWorld(1).Pods(1); w.in.Workload.MinReady = 10 * time.Second; return w }(),
			9 * time.Second},
		"all done: never": {newWorld(1).Pods(1).Complete(), 0},
		"wait is over, none came: never, a pod wakes it": {newWorld(1).Pods(1, unready).Later(0), time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			test.world.Settle(t)
			if got := DecideRelease(test.world.in).RequeueAfter; got != test.want {
				t.Errorf("requeue after %s, want %s", got, test.want)
			}
		})
	}
	w := newWorld(1).Pods(1, unready).Settle(t).Later(time.Minute).Settle(t)
	if got := DecideRelease(w.in).RequeueAfter; got != 0 {
		t.Errorf("timed out: requeue after %s, want never", got)
	}
}

func TestDecideReleaseBoundsItsObject(t *testing.T) {
	w := newWorld(5000).BatchSize(50).Pods(5000).Complete().Settle(t)
	for i := range w.in.Batches {
		for _, p := range w.in.Batches[i].Spec.PodInfos {
			w.in.Batches[i].Status.PodResults = append(w.in.Batches[i].Status.PodResults,
				v1alpha1.PodResult{PodInfo: p, Verdict: "fail", Message: strings.Repeat("é", 8000)})
		}
	}
	w.Settle(t)
	s := w.in.Change.Status
	if s.FailCount != 5000 || len(s.DefenseCheckFailPods) != maxListed {
		t.Errorf("%d failed, %d listed, want 5000 and %d", s.FailCount, len(s.DefenseCheckFailPods), maxListed)
	}
	for _, p := range s.DefenseCheckFailPods {
		if len(p.Message) > 256 || !strings.HasSuffix(p.Message, "...") {
			t.Fatalf("message of %d bytes is not cut: %q", len(p.Message), p.Message)
		}
	}
}

// TestPutOff: a write of more finished pods is put off, and every other write is not. A write that was put off is not
// lost.
func TestPutOff(t *testing.T) {
	begun := func() *world {
		w := newWorld(3).Pods(1).Settle(t)
		w.in.PutOffSince = time.Time{}
		return w
	}
	more := begun().Pods(1)
	plan := DecideRelease(more.in)
	if !plan.PutOff || plan.Status != nil || len(plan.Batches) != 1 || plan.RequeueAfter != CountsPutOff {
		t.Errorf("one more pod: %d batches, put off %t for %s", len(plan.Batches), plan.PutOff, plan.RequeueAfter)
	}
	more.in.PutOffSince = more.in.Now.Add(-time.Second)
	if plan = DecideRelease(more.in); !plan.PutOff || plan.RequeueAfter != CountsPutOff-time.Second {
		t.Errorf("a second later: put off %t for %s", plan.PutOff, plan.RequeueAfter)
	}
	for name, since := range map[string]time.Duration{"when the time is over": -CountsPutOff, "when the clock went back": time.Minute} {
		more.in.PutOffSince = more.in.Now.Add(since)
		if plan = DecideRelease(more.in); plan.PutOff || plan.Status == nil || plan.Status.Batches != 2 {
			t.Errorf("%s: put off %t", name, plan.PutOff)
		}
	}

	for name, w := range map[string]*world{
		"a pod fails":             begun().Verdict("sleep-0", "unpass"),
		"the rollout is paused":   begun().Paused(),
		"another release":         begun().Release(9, versionA),
		"the workload opted out":  begun().optedOut(),
		"all that is left passed": newWorld(1).Pods(1).Complete().verdictless(t),
	} {
		if plan := DecideRelease(w.in); plan.PutOff {
			t.Errorf("%s: it is put off", name)
		}
	}
}

func (w *world) optedOut() *world {
	w.in.Workload.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled
	return w
}

// verdictless returns a release whose only batch is done, unknown to its status.
func (w *world) verdictless(t *testing.T) *world {
	t.Helper()
	w.Step()
	w.in.PutOffSince = time.Time{}
	for i := range w.in.Batches {
		w.in.Batches[i].Status.Status = v1alpha1.ChangePodExecuteDone
	}
	return w
}

// TestPodsToFinish: the last batch of a complete rollout waits for pods that are not finished or not seen yet.
func TestPodsToFinish(t *testing.T) {
	unready := func(p *workload.Pod) { p.Ready = false }
	for name, test := range map[string]struct {
		world *world
		want  int
	}{
		"all are finished":       {newWorld(3).BatchSize(5).Pods(3).Complete(), 1},
		"one has to finish":      {newWorld(3).BatchSize(5).Pods(2).Pods(1, unready).Complete(), 0},
		"one is not seen":        {newWorld(3).BatchSize(5).Pods(2).Complete(), 0},
		"a full batch is there":  {newWorld(3).BatchSize(2).Pods(2).Pods(1, unready).Complete(), 1},
		"the wait is over":       {newWorld(3).BatchSize(5).Pods(2).Pods(1, unready).Complete(), 1},
		"the rollout is not yet": {newWorld(3).BatchSize(5).Pods(3), 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := test.world
			w.Settle(t)
			if name == "the wait is over" {
				w.Later(w.in.Settings.Wait).Settle(t)
			}
			if got := len(w.in.Batches); got != test.want {
				t.Errorf("%d batches, want %d", got, test.want)
			}
		})
	}
}

// TestUndoEndsTheRelease: according to the quarantine, the replaced release is rolled back, and the event names the
// user.
func TestUndoEndsTheRelease(t *testing.T) {
	w := newWorld(1).Pods(1).Complete().Settle(t)
	w.Verdict("sleep-0", "unpass").Settle(t)
	why := rollback.QuarantineReason{Cause: v1alpha1.ReasonVerificationFailed, Release: 1, To: versionB, By: "jane"}
	rollback.ParseQuarantine(nil, testNow).With(versionA, why).Annotate(w.stored.Annotations)
	w.Release(2, versionB)
	plan := w.Step()
	if w.in.Change.Status.Status != v1alpha1.ChangeWorkloadRollback || len(plan.Events) != 1 ||
		plan.Events[0].Reason != v1alpha1.EventReleaseUndone ||
		!strings.Contains(plan.Events[0].Message, "jane released version "+versionB+" again") {
		t.Errorf("%s, events %+v", w.in.Change.Status.Status, plan.Events)
	}
}
