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
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/hold"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestHeldPods: a pod is verified when no check can change its verdict.
func TestHeldPods(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ago := func(d time.Duration) *metav1.Time { at := metav1.NewTime(now.Add(-d)); return &at }
	background := func(phase v1alpha1.CheckPhase, due, deadline time.Duration) v1alpha1.CheckStatus {
		return v1alpha1.CheckStatus{
			Name: "a/b/c", Type: "probe", Background: true, Phase: phase, StartTime: ago(time.Minute), DueTime: ago(due), Deadline: ago(deadline),
		}
	}
	observed := background(v1alpha1.CheckWatching, -time.Minute, -time.Hour)
	observed.Mode = v1alpha1.ModeObserve
	for name, c := range map[string]struct {
		status   v1alpha1.ChangePodStatusType
		checks   []v1alpha1.CheckStatus
		attempt  int32
		since    time.Time
		verified bool
		again    time.Duration
	}{
		"done":               {status: v1alpha1.ChangePodExecuteDone, verified: true},
		"not done":           {status: v1alpha1.ChangePodPostWait},
		"of another attempt": {status: v1alpha1.ChangePodExecuteDone, attempt: 1},
		"watched": {status: v1alpha1.ChangePodExecuteDone,
			checks: []v1alpha1.CheckStatus{background(v1alpha1.CheckWatching, -time.Minute, -time.Hour)}, again: time.Minute + checkGrace},
		"watched, and its time is over": {status: v1alpha1.ChangePodExecuteDone,
			checks: []v1alpha1.CheckStatus{background(v1alpha1.CheckWatching, 10*time.Second, -time.Hour)}, verified: true},
		"measured late": {status: v1alpha1.ChangePodExecuteDone,
			checks: []v1alpha1.CheckStatus{background(v1alpha1.CheckRunning, 10*time.Second, -time.Hour)}, again: time.Hour + checkGrace},
		"measured by a process that is gone": {status: v1alpha1.ChangePodExecuteDone,
			checks: []v1alpha1.CheckStatus{background(v1alpha1.CheckWatching, 10*time.Second, -time.Hour)}, since: now.Add(-time.Second),
			again: 49*time.Second + checkGrace},
		"not watched: it only observes": {status: v1alpha1.ChangePodExecuteDone, checks: []v1alpha1.CheckStatus{observed},
			verified: true},
		"not watched: it passed": {status: v1alpha1.ChangePodExecuteDone,
			checks: []v1alpha1.CheckStatus{background(v1alpha1.CheckPassed, -time.Minute, -time.Hour)}, verified: true},
		"watched, and given up at its deadline": {status: v1alpha1.ChangePodExecuteDone,
			checks: []v1alpha1.CheckStatus{background(v1alpha1.CheckRunning, time.Minute, 10*time.Second)}, verified: true},
	} {
		t.Run(name, func(t *testing.T) {
			change := wrappers.MakeChangeWorkload("default", "sleep").Version(versionA).Release(2).Obj()
			change.Status.Attempt, change.Status.ObservedRelease, change.Status.StartTimeUnix = 2, 2, now.Add(-time.Hour).Unix()
			batch := wrappers.MakeChangePod("default", "sleep--x--1").Attempt(2-c.attempt, 2).Obj()
			batch.Spec.PodInfos = []v1alpha1.PodInfo{{Pod: "sleep-1", UID: "1"}}
			batch.Spec.CreateTimeUnix = now.Add(-2 * time.Minute).Unix()
			batch.Status.Status, batch.Status.Checks = c.status, c.checks
			d := &release{ReleaseInput: ReleaseInput{
				Now: now, Since: c.since, Workload: &workload.Workload{}, Change: change, Batches: []v1alpha1.ChangePod{*batch},
				Pods: []workload.Pod{{Name: "sleep-1", UID: "1", Ready: true, Created: now.Add(-3 * time.Hour), ReadySince: now.Add(-3 * time.Hour)}},
			}, status: change.Status.DeepCopy()}
			pods, again := heldPods(d)
			if len(pods) != 1 || pods[0].Verified != c.verified || again != c.again {
				t.Errorf("pods %+v, again %s, want verified %t and %s", pods, again, c.verified, c.again)
			}
			if !pods[0].Created.Equal(now.Add(-time.Hour)) {
				t.Errorf("it is waited for since %s, before the attempt", pods[0].Created)
			}
		})
	}
}

// TestHeldPodOfAnotherClock: with a hold by partition, a pod belongs to the wave in which it was created, also if the
// clock of its kubelet is behind.
func TestHeldPodOfAnotherClock(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	change := wrappers.MakeChangeWorkload("default", "sleep").Version(versionA).Release(2).Obj()
	for name, c := range map[string]struct{ ready, want time.Duration }{
		"as it is":               {time.Minute, time.Minute},
		"ready before it was":    {time.Hour, 2 * time.Minute},
		"ready in seven minutes": {-7 * time.Minute, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			d := &release{ReleaseInput: ReleaseInput{
				Now: now, Change: change, Workload: &workload.Workload{Pace: workload.Pace{ByPartition: true}},
				Pods: []workload.Pod{{Name: "sleep-1", UID: "1", Ready: true, Created: now.Add(-2 * time.Minute), ReadySince: now.Add(-c.ready)}},
			}, status: change.Status.DeepCopy()}
			if pods, _ := heldPods(d); len(pods) != 1 || !pods[0].ReadySince.Equal(now.Add(-c.want)) {
				t.Errorf("pods %+v, want one that is Ready for %s", pods, c.want)
			}
		})
	}
}

// TestExplainHold: the message of Held about awaited pods does not change after the rollout continues, whatever pods
// come then.
func TestExplainHold(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for name, c := range map[string]struct {
		plans []hold.Plan
		want  string
	}{
		"waiting":       {[]hold.Plan{{Waiting: 2, Since: now}}, "for 2 verdicts since 2023-11-14 22:13:20, at most until 2023-11-14 22:43:20"},
		"between waves": {[]hold.Plan{{}}, "all pods so far are verified; the next pods are not created yet"},
		"opened":        {[]hold.Plan{{Waiting: 2, Since: now}, {Over: true, Opens: true}}, "the pods are verified; the rollout continues"},
		"and more pods": {[]hold.Plan{{Over: true, Opens: true}, {Over: true}, {Over: true}}, "the pods are verified; the rollout continues"},
		"ran out": {[]hold.Plan{{Over: true, Opens: true, RanOut: 1}, {Over: true}},
			"1 pods have no verdict after 30m0s; the rollout continues"},
		"a wave ran out": {[]hold.Plan{{RanOut: 1}}, "1 pods have no verdict after 30m0s; the rollout continues when they are Ready"},
	} {
		t.Run(name, func(t *testing.T) {
			change := wrappers.MakeChangeWorkload("default", "sleep").Version(versionA).Release(2).Obj()
			d := &release{ReleaseInput: ReleaseInput{Now: now.UTC(), Change: change, Workload: &workload.Workload{}},
				status: change.Status.DeepCopy()}
			d.Settings.HoldAtMost = 30 * time.Minute
			for _, p := range c.plans {
				p.Since = p.Since.UTC()
				explainHold(d, &p)
			}
			if said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionHeld); said == nil || record.Detail(said) != c.want {
				t.Errorf("it says %+v, want %q", said, c.want)
			}
		})
	}
}

// TestPaceDenied: a release whose rollout cannot be held continues, and reports it.
func TestPaceDenied(t *testing.T) {
	change := wrappers.MakeChangeWorkload("default", "sleep").Version(versionA).Release(2).Obj()
	status := &v1alpha1.ChangeWorkloadStatus{Attempt: 1, Status: v1alpha1.ChangeWorkloadRunning}
	meta.SetStatusCondition(&status.Conditions,
		metav1.Condition{Type: v1alpha1.ConditionHeld, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonWaitingForVerdicts})
	plan := PaceDenied(change, ReleasePlan{
		Action: PaceWorkload, Hold: &HoldChange{}, Status: status, ActionEvents: []record.Event{{Reason: v1alpha1.EventHoldEnded}},
		Events: []record.Event{{Reason: "ReleaseStarted"}, {Reason: v1alpha1.EventHoldStarted}},
	}, time.Unix(1_700_000_000, 0), "could not")
	if plan.Action != LeaveWorkload || plan.Hold != nil || len(plan.ActionEvents) > 0 || len(plan.Events) != 1 {
		t.Errorf("it does %+v", plan)
	}
	if plan.Status == nil || plan.Status.Attempt != 1 || meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionHeld) != nil {
		t.Errorf("it says %+v", plan.Status)
	}
	if c := plan.Status.DeniedWrite; c == nil || c.Write != WritePace {
		t.Errorf("the condition is %+v", c)
	}
}

// TestLostPartition: the partition of a hold is recognized after its annotation was lost, unless a user may have set
// it.
func TestLostPartition(t *testing.T) {
	record := func(users, set int32) *v1alpha1.HoldRecord {
		return &v1alpha1.HoldRecord{Partition: &users, SetPartition: &set}
	}
	for name, c := range map[string]struct {
		record   *v1alpha1.HoldRecord
		is       int32
		change   func(*release)
		restored bool
	}{
		"lost":                   {record(1, 4), 4, nil, true},
		"never held":             {nil, 4, nil, false},
		"held as a Deployment":   {&v1alpha1.HoldRecord{SetProgressDeadlineSeconds: 600}, 0, nil, false},
		"a user set another":     {record(1, 4), 3, nil, false},
		"down to the user's own": {record(1, 1), 1, nil, false},
		"still held":             {record(1, 4), 4, func(d *release) { d.Workload.Hold = &workload.Hold{Release: 2} }, false},
		"it ended": {record(1, 4), 4,
			func(d *release) { d.Workload.Annotations[v1alpha1.HoldEndedAnnotation] = "2 EditedByUser jane" }, false},
		"of another release":    {record(1, 4), 4, func(d *release) { d.status.ObservedRelease, d.status.Hold = 3, nil }, false},
		"of an earlier attempt": {record(1, 4), 4, func(d *release) { d.status.Hold = nil }, false},
		"only another release was so": {nil, 4, func(d *release) {
			d.Others = append(d.Others, *d.Change.DeepCopy())
			d.Others[0].Spec.Release, d.Others[0].Status.Hold = 1, record(1, 4)
		}, false},
		"it ended with the one before": {record(1, 4), 4,
			func(d *release) { d.Workload.Annotations[v1alpha1.HoldEndedAnnotation] = "1 Verified" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			change := wrappers.MakeChangeWorkload("default", "sleep").Version(versionA).Release(2).Obj()
			change.Status.ObservedRelease, change.Status.Hold = 2, c.record
			d := &release{ReleaseInput: ReleaseInput{Change: change,
				Workload: &workload.Workload{Pace: onePartition(c.is), Annotations: map[string]string{}}}}
			d.status = change.Status.DeepCopy()
			if c.change != nil {
				c.change(d)
			}
			h := lostHold(d)
			if (h != nil) != c.restored {
				t.Fatalf("it is restored as %+v", h)
			}
			if h != nil && (h.Pace != onePartition(1) || h.Set != onePartition(4) || h.Release != 2) {
				t.Errorf("it is restored as %+v", h)
			}
		})
	}
}

// TestLostPace: minReadySeconds and the deadline of a hold are recognized after their annotation was lost. The record
// of a release counts in this release, and when the next one begins.
func TestLostPace(t *testing.T) {
	record := &v1alpha1.HoldRecord{MinReadySeconds: 5, ProgressDeadlineSeconds: 600, SetProgressDeadlineSeconds: 2400}
	raised := workload.Pace{MinReadySeconds: 600, ProgressDeadlineSeconds: 2400}
	other := func(release int64, hold *v1alpha1.HoldRecord) v1alpha1.ChangeWorkload {
		o := wrappers.MakeChangeWorkload("default", "sleep").Version(versionB).Release(release).Obj()
		o.Status.Hold = hold
		return *o
	}
	for name, c := range map[string]struct {
		is       workload.Pace
		own      *v1alpha1.HoldRecord
		seen     int64 // the last observed release
		others   []v1alpha1.ChangeWorkload
		restored bool
	}{
		"lost":                            {raised, record, 3, nil, true},
		"the user's own deadline":         {workload.Pace{MinReadySeconds: 600, ProgressDeadlineSeconds: 700}, record, 3, nil, false},
		"never held":                      {raised, nil, 3, nil, false},
		"lost with the release":           {raised, nil, 0, []v1alpha1.ChangeWorkload{other(1, nil), other(2, record)}, true},
		"lost with one that was not seen": {raised, nil, 0, []v1alpha1.ChangeWorkload{other(1, record)}, true},
		"after this release began":        {raised, nil, 3, []v1alpha1.ChangeWorkload{other(2, record)}, false},
		"of the release before the last":  {raised, nil, 0, []v1alpha1.ChangeWorkload{other(2, nil), other(1, record)}, false},
		"of a later release":              {raised, nil, 0, []v1alpha1.ChangeWorkload{other(4, record)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			change := wrappers.MakeChangeWorkload("default", "sleep").Version(versionA).Release(3).Obj()
			change.Status.ObservedRelease = c.seen
			w := &workload.Workload{Pace: c.is, Annotations: map[string]string{}}
			d := &release{ReleaseInput: ReleaseInput{Change: change, Others: c.others, Workload: w}}
			d.status = &v1alpha1.ChangeWorkloadStatus{ObservedRelease: 3, Hold: c.own}
			h := lostHold(d)
			own := workload.Pace{MinReadySeconds: 5, ProgressDeadlineSeconds: 600}
			if (h != nil) != c.restored || h != nil && (h.Pace != own || h.Set != raised || h.Release != 3) {
				t.Errorf("it is restored as %+v", h)
			}
		})
	}
}

// TestSteppedWaveIsFinished: the size of a wave of a StatefulSet follows from its partition, not from its current pods.
func TestSteppedWaveIsFinished(t *testing.T) {
	at := func(partition int32, pods ...int32) *release {
		d := &release{ReleaseInput: ReleaseInput{
			Change:   wrappers.MakeChangeWorkload("default", "sleep").Version(versionA).Release(2).Obj(),
			Workload: &workload.Workload{Replicas: 5, Hold: &workload.Hold{Release: 2, Pace: onePartition(0), Set: onePartition(partition)}},
		}}
		for _, index := range pods {
			p := workload.Pod{UID: types.UID('a' + index), Index: index}
			d.Pods, d.preparing = append(d.Pods, p), append(d.preparing, p)
		}
		return d
	}
	for name, c := range map[string]struct {
		d    *release
		want bool
	}{
		"all of it":           {at(3, 4, 3), true},
		"one is to come":      {at(3, 4), false},
		"one below it":        {at(3, 4, 1), false},
		"all above, more too": {at(3, 4, 3, 1), true},
		"one is not finished": {func() *release { d := at(3, 4, 3); d.preparing = d.preparing[:1]; return d }(), false},
		"none is to come":     {at(5), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := waveIsFinished(c.d); got != c.want {
				t.Errorf("it is finished: %t", got)
			}
		})
	}
}

func onePartition(p int32) workload.Pace { return workload.Pace{ByPartition: true, Partition: p} }
