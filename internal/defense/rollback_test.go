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

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

func TestQuarantine(t *testing.T) {
	q := rollback.ParseQuarantine(nil, testNow)
	for i := range 12 {
		q = q.With(fmt.Sprint("v", i), rollback.QuarantineReason{Time: "t", Cause: v1alpha1.ReasonNeverStarted, Pod: "p", Container: "c",
			Reason: "ErrImagePull", Message: strings.Repeat("x", 256), Release: int64(i), To: "v"})
	}
	annotations := map[string]string{"mine": "1"}
	q.Annotate(annotations)
	read := rollback.ParseQuarantine(annotations, testNow)
	if got, want := annotations[v1alpha1.QuarantinedAnnotation], "v2,v3,v4,v5,v6,v7,v8,v9,v10,v11"; got != want {
		t.Errorf("quarantined %q, want %q: the last ten", got, want)
	}
	if size := len(annotations[v1alpha1.QuarantineReasonAnnotation]); size > 8<<10 {
		t.Errorf("the reasons take %d bytes", size)
	}
	if read.Holds("v1") || !read.Holds("v2") {
		t.Error("what was displaced is held, or what was not is not")
	}
	if r, ok := read.Reason("v11"); !ok || r.Release != 11 {
		t.Errorf("reason of v11: %v %t", r, ok)
	}
	read = read.With("v5", rollback.QuarantineReason{Cause: "again", Release: 20})
	if r, _ := read.Reason("v5"); r.Cause != "again" {
		t.Errorf("the newest reason counts, got %v", r)
	}
	for _, v := range []string{"v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11"} {
		read = read.Without(v)
	}
	read.Annotate(annotations)
	if diff := cmp.Diff(map[string]string{"mine": "1"}, annotations); diff != "" {
		t.Errorf("left over -want +got:\n%s", diff)
	}
}

func TestParseQuarantine(t *testing.T) {
	q := rollback.ParseQuarantine(map[string]string{v1alpha1.QuarantinedAnnotation: " a,,b , a",
		v1alpha1.QuarantineReasonAnnotation: "no JSON"}, testNow)
	if diff := cmp.Diff([]string{"a", "b"}, q.Versions); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got, want := rollback.DescribeQuarantine("a", q), "version a was rolled back"; got != want {
		t.Errorf("described as %q, want %q", got, want)
	}
	q = q.With("a", rollback.QuarantineReason{Time: "2026-01-02T03:04:05Z", Cause: v1alpha1.ReasonNeverStarted, Pod: "p", Container: "c",
		Reason: "ErrImagePull", Message: "no such image"})
	if got, want := rollback.DescribeQuarantine("a", q), "version a was rolled back at 2026-01-02T03:04:05Z: NeverStarted: pod p: container "+
		"c: ErrImagePull: no such image"; got != want {
		t.Errorf("described as %q, want %q", got, want)
	}
}

// scene is a workload at release 2 of version B, which does not come up, while A still runs.
type scene struct{ rollback.Input }

func makeScene() *scene {
	w := newWorld(4).Release(2, versionB)
	s := &scene{rollback.Input{
		Now: testNow, Settings: w.in.Settings, Workload: w.in.Workload, Enrolled: true,
		Changes: []v1alpha1.ChangeWorkload{change(versionB, 2, v1alpha1.ChangeWorkloadRunning),
			change(versionA, 1, v1alpha1.ChangeWorkloadSuccess)},
		Pods: []workload.Pod{
			{Name: "sleep-1", UID: "1", Ready: true, ReadySince: testNow.Add(-time.Hour)},
			{Name: "sleep-2", UID: "2", Stuck: &workload.Stuck{Container: "main", Reason: "ErrImagePull", From: testNow.Add(-2 * time.Minute)}},
		},
		History: []workload.Revision{{Name: "a", Version: versionA, Release: 1}},
	}}
	s.Workload.Rolling, s.Workload.ProgressDeadline = true, 10*time.Minute
	s.Workload.OldRevisions = []workload.OldRevision{{Name: "sleep-a", Version: versionA, Number: 1, Replicas: 3, Ready: 3}}
	return s
}

func change(version string, release int64, state v1alpha1.ChangeWorkloadStatusType) v1alpha1.ChangeWorkload {
	return *wrappers.MakeChangeWorkload("default",
		record.ChangeWorkloadName("sleep", version)).Version(version).Release(release).State(state).Attempt(1).Obj()
}

func (s *scene) with(edit func(*scene)) *scene { edit(s); return s }

func (s *scene) annotation(key, value string) *scene {
	s.Workload.Annotations[key] = value
	return s
}

func (s *scene) state(state v1alpha1.ChangeWorkloadStatusType) *scene {
	s.Changes[0].Status.Status = state
	return s
}

// dueForHealing is a release after DecideRelease saw its failure, with self-healing on.
func (s *scene) dueForHealing() *scene {
	s.Pods, s.Settings.SelfHealing = nil, true
	d := &release{ReleaseInput: ReleaseInput{Now: s.Now, Change: &s.Changes[0], Workload: s.Workload, History: s.History},
		status: &s.Changes[0].Status}
	explainSelfHealing(d)
	d.status.DefenseCheckFailPods = []v1alpha1.PodResult{{PodInfo: v1alpha1.PodInfo{Pod: "sleep-1"}, Verdict: "fail",
		Message: "too many errors"}}
	return s.state(v1alpha1.ChangeWorkloadSuspend)
}

func (s *scene) quarantined(versions ...string) *scene {
	q := rollback.ParseQuarantine(s.Workload.Annotations, testNow)
	for _, v := range versions {
		q = q.With(v, rollback.QuarantineReason{Time: "then", Cause: v1alpha1.ReasonNeverStarted, Release: 1})
	}
	q.Annotate(s.Workload.Annotations)
	return s
}

func TestDecideRollback(t *testing.T) {
	const to, other = v1alpha1.RollbackToAnnotation, "cccccccccccccccccccccccccccccccc"
	for name, test := range map[string]struct {
		scene *scene
		// to is the target of the rollback, why its description in one line.
		to, why string
		// old: from a running revision, not from the history.
		old     bool
		refusal string
		requeue time.Duration
	}{
		"a pod does not come up": {makeScene(), versionA, "NeverStarted: pod sleep-2: container main: ErrImagePull", true, "", 0},
		"not for long enough": {makeScene().with(func(s *scene) { s.Pods[1].Stuck.From = testNow.Add(-time.Minute) }), "", "",
			false, "", time.Minute},
		"the threshold is its own": {makeScene().with(func(s *scene) { s.Settings.RollbackAfter = 10 * time.Minute }),
			"", "", false, "", 8 * time.Minute},
		"merely not ready": {makeScene().with(func(s *scene) { s.Pods[1].Stuck.Slow = true }), "", "", false, "", 8 * time.Minute},
		"not ready for longer than the progress deadline": {makeScene().with(func(s *scene) {
			s.Pods[1].Stuck.Slow, s.Pods[1].Stuck.From = true, testNow.Add(-10*time.Minute)
		}), versionA, "NeverStarted: pod sleep-2: container main: ErrImagePull", true, "", 0},
		"not ready, the threshold is later": {makeScene().with(func(s *scene) {
			s.Pods[1].Stuck.Slow, s.Pods[1].Stuck.From, s.Settings.RollbackAfter = true, testNow.Add(-10*time.Minute), time.Hour
		}), "", "", false, "", 50 * time.Minute},
		"not ready, without a progress deadline": {makeScene().with(func(s *scene) {
			s.Pods[1].Stuck.Slow, s.Pods[1].Stuck.From, s.Workload.ProgressDeadline = true, testNow.Add(-time.Hour), 0
		}), "", "", false, "", 0},
		"the pod that is stuck for longest": {makeScene().with(func(s *scene) {
			s.Pods = append(s.Pods, workload.Pod{Name: "sleep-3", Stuck: &workload.Stuck{Reason: "Unschedulable", From: testNow.Add(-time.Hour)}})
		}), versionA, "NeverStarted: pod sleep-3: Unschedulable", true, "", 0},
		"every pod came up": {makeScene().with(func(s *scene) { s.Pods[1].Stuck = nil }), "", "", false, "", 0},
		"available for a moment": {makeScene().with(func(s *scene) { s.Workload.Rollout.Complete = true }), versionA,
			"NeverStarted: pod sleep-2: container main: ErrImagePull", true, "", 0},
		"the release is a success": {makeScene().state(v1alpha1.ChangeWorkloadSuccess), "", "", false, "", 0},
		"the release was refused": {makeScene().state(v1alpha1.ChangeWorkloadFailed), versionA,
			"NeverStarted: pod sleep-2: container main: ErrImagePull", true, "", 0},
		"the record is of another release": {makeScene().with(func(s *scene) { s.Changes[0].Spec.Release = 1 }),
			"", "", false, "", 0},
		"the attempt has not begun": {makeScene().with(func(s *scene) { s.Changes[0].Status.ObservedRelease = 1 }), "", "", false, "", 0},
		"no record":                 {makeScene().with(func(s *scene) { s.Changes = nil }), "", "", false, "", 0},
		"not recorded yet":          {makeScene().with(func(s *scene) { s.Workload.Version = other }), "", "", false, "", 0},
		"turned off":                {makeScene().with(func(s *scene) { s.Settings.Rollback = false }), "", "", false, "", 0},
		"opted out": {makeScene().with(func(s *scene) { s.Workload.Labels[v1alpha1.DefenseLabel] = "disabled" }),
			"", "", false, "", 0},
		"in observe mode":   {makeScene().with(func(s *scene) { s.Settings.Observe = true }), "", "", false, "", 0},
		"not enrolled":      {makeScene().with(func(s *scene) { s.Enrolled = false }), "", "", false, "", 0},
		"being deleted":     {makeScene().with(func(s *scene) { s.Workload.Deleting = true }), "", "", false, "", 0},
		"Recreate":          {makeScene().with(func(s *scene) { s.Workload.Rolling = false }), "", "", false, "", rollback.LookAgain},
		"the first release": {makeScene().with(func(s *scene) { s.Workload.OldRevisions = nil }), "", "", false, "", rollback.LookAgain},
		"the old one is unhealthy": {makeScene().with(func(s *scene) { s.Workload.OldRevisions[0].Ready = 2 }), "", "", false,
			"", rollback.LookAgain},
		"the version of the old one is not known": {makeScene().with(func(s *scene) { s.Workload.OldRevisions[0].Version = "" }), "", "", false,
			"", rollback.LookAgain},
		"the old one failed itself": {makeScene().with(func(s *scene) { s.Changes[1].Status.Status = v1alpha1.ChangeWorkloadSuspend }), "", "",
			false, "", rollback.LookAgain},
		"the old one was rolled back": {makeScene().quarantined(versionA), "", "", false, "", rollback.LookAgain},
		"this one was, and is back":   {makeScene().quarantined(versionB), "", "", false, "", rollback.LookAgain},
		"this one is back by an override": {makeScene().with(func(s *scene) {
			rollback.ParseQuarantine(nil, testNow).With(versionB,
				rollback.QuarantineReason{Cause: v1alpha1.ReasonNeverStarted, Release: 1}).Override(versionB, "jane").Annotate(s.Workload.Annotations)
		}), "", "", false, "", rollback.LookAgain},
		"paused by a user": {makeScene().with(func(s *scene) { s.Workload.Paused = true }), "", "", false, "", rollback.LookAgain},
		"paused by the operator": {makeScene().with(func(s *scene) { s.Workload.Paused = true }).annotation(v1alpha1.HaltedAnnotation, versionB),
			versionA, "NeverStarted: pod sleep-2: container main: ErrImagePull", true, "", 0},
		"to the newest of those that are healthy": {makeScene().with(func(s *scene) {
			s.Workload.OldRevisions = append(s.Workload.OldRevisions, workload.OldRevision{Version: other, Number: 7, Replicas: 1, Ready: 1},
				workload.OldRevision{Version: "d", Number: 9, Replicas: 1})
		}), other, "NeverStarted: pod sleep-2: container main: ErrImagePull", true, "", 0},

		"self-healing": {makeScene().dueForHealing(), versionA, "VerificationFailed: pod sleep-1: fail: too many errors", false, "", 0},
		"self-healing whatever the strategy": {
			makeScene().with(func(s *scene) { s.Workload.Rolling, s.Workload.Rollout.Complete = false, true }).dueForHealing(),
			versionA, "VerificationFailed: pod sleep-1: fail: too many errors", false, "", 0},
		"self-healing turned on later": {
			makeScene().state(v1alpha1.ChangeWorkloadSuspend).with(func(s *scene) { s.Settings.SelfHealing, s.Pods = true, nil }),
			"", "", false, "", 0},
		"self-healing turned off since": {makeScene().dueForHealing().with(func(s *scene) { s.Settings.SelfHealing = false }),
			"", "", false, "", 0},
		"self-healing, corrected since": {makeScene().dueForHealing().state(v1alpha1.ChangeWorkloadRunning), "", "", false, "", 0},
		"pods that only a user replaces": {makeScene().with(func(s *scene) { s.Workload.OnDelete = true }), "", "", false,
			"", rollback.LookAgain},
		"self-healing, paused by a user": {makeScene().with(func(s *scene) { s.Workload.Paused = true }).dueForHealing(), "", "", false, "", 0},
		"self-healing, in observe mode":  {makeScene().with(func(s *scene) { s.Settings.Observe = true }).dueForHealing(), "", "", false, "", 0},
		"self-healing, itself restored":  {restoring().dueForHealing(), "", "", false, "", 0},
		"self-healing without a history": {makeScene().with(func(s *scene) { s.History = nil }).dueForHealing(), "", "", false, "", 0},
		"self-healing, to one that was rolled back": {makeScene().quarantined(versionA).dueForHealing(),
			"", "", false, "", 0},
		"self-healing, from one that was rolled back": {makeScene().quarantined(versionB).dueForHealing(), "", "", false, "", 0},

		"requested: the newest success": {makeScene().annotation(to, "last-success"), versionA, "Requested", false, "", 0},
		"requested: nothing said":       {makeScene().annotation(to, " "), versionA, "Requested", false, "", 0},
		"requested: by version":         {makeScene().annotation(to, versionA), versionA, "Requested", false, "", 0},
		"requested, after a success": {makeScene().state(v1alpha1.ChangeWorkloadSuccess).annotation(to, versionA), versionA,
			"Requested", false, "", 0},
		"requested, owned by another object": {makeScene().with(func(s *scene) { s.Workload.Owner = "prometheus k8s" }).annotation(to, versionA),
			"", "", false, "in observe mode, because the prometheus k8s owns it", 0},
		"requested, owned by another object and defended": {makeScene().with(func(s *scene) {
			s.Workload.Owner, s.Workload.Labels[v1alpha1.DefenseLabel] = "prometheus k8s", v1alpha1.DefenseEnforced
		}).annotation(to, versionA), versionA, "Requested", false, "", 0},
		"requested, in observe mode": {makeScene().with(func(s *scene) { s.Settings.Observe = true }).annotation(to, versionA), "", "", false,
			"in observe mode (setting observe)", 0},
		"requested, paused by a user": {makeScene().with(func(s *scene) { s.Workload.Paused = true }).annotation(to, versionA), versionA,
			"Requested", false, "", 0},
		"requested, from one that was rolled back": {makeScene().quarantined(versionB).annotation(to, versionA),
			versionA, "Requested", false, "", 0},
		"requested: unknown": {makeScene().annotation(to, other), "", "", false, "the history has no successful version " + other,
			0},
		"requested: current": {makeScene().annotation(to, versionB), "", "", false, "is the current one", 0},
		"requested: in quarantine": {makeScene().quarantined(versionA).annotation(to, versionA), "", "", false,
			"was rolled back at then", 0},
		"requested: nothing but those": {makeScene().quarantined(versionA).annotation(to, "last-success"), "", "", false,
			"the history has no version except the current one", 0},
		"requested, of one not defended": {makeScene().with(func(s *scene) { s.Enrolled = false }).annotation(to, versionA),
			"", "", false, "", 0},
		"requested while being restored":  {restoring().annotation(to, "last-success"), "", "", false, "is being restored already", 0},
		"requested by version, then, too": {restoring().annotation(to, versionA), versionA, "Requested", false, "", 0},
		"requested after it was restored": {restoring().state(v1alpha1.ChangeWorkloadSuccess).annotation(to, "last-success"), versionA,
			"Requested", false, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			plan := rollback.Decide(test.scene.Input)
			if !strings.Contains(plan.Refusal, test.refusal) || test.refusal == "" && plan.Refusal != "" {
				t.Errorf("refused with %q, want %q", plan.Refusal, test.refusal)
			}
			if plan.RequeueAfter != test.requeue {
				t.Errorf("looks again after %s, want %s", plan.RequeueAfter, test.requeue)
			}
			if plan.Rollback == nil {
				if test.to != "" {
					t.Fatalf("not rolled back, want to %s", test.to)
				}
				return
			}
			r := plan.Rollback
			if r.To != test.to || r.From != versionB || (r.Old != nil) != test.old || (r.History != nil) == test.old {
				t.Errorf("rolled back %+v, want to %q, from a running one %t", r, test.to, test.old)
			}
			if got := r.Why.String(); got != test.why {
				t.Errorf("because of %q, want %q", got, test.why)
			}
			if r.Why.Release != 2 || r.Why.To != r.To || r.Why.Time != "2026-03-04T05:06:07Z" {
				t.Errorf("recorded as %+v", r.Why)
			}
		})
	}
}

// restoring is a workload that was rolled back to B, which is not verified yet.
func restoring() *scene {
	s := makeScene()
	rollback.ParseQuarantine(nil, testNow).With("dddd", rollback.QuarantineReason{Release: 1, To: versionB}).Annotate(s.Workload.Annotations)
	return s
}

// TestNoRollbackLoop: whatever comes after a rollback, and however bad all versions are, no second rollback follows
// until a user releases a version.
func TestNoRollbackLoop(t *testing.T) {
	s := makeScene()
	s.History = append(s.History, workload.Revision{Name: "c", Version: "cccc"})
	s.Settings.SelfHealing = true
	var went []string
	for range 20 {
		plan := rollback.Decide(s.Input)
		if plan.Rollback == nil {
			break
		}
		r := plan.Rollback
		went = append(went, r.From[:1]+r.To[:1])
		rollback.ParseQuarantine(s.Workload.Annotations, testNow).With(r.From, r.Why).Annotate(s.Workload.Annotations)
		release := s.Workload.Release() + 1
		// Pods of the failed version still run well; pods of the restored version fail in every way.
		s.Workload.OldRevisions = []workload.OldRevision{{Version: r.From, Number: release, Replicas: 3, Ready: 3}}
		s.Workload.Version, s.Workload.Labels[v1alpha1.VersionLabel] = r.To, r.To
		s.Workload.Annotations[v1alpha1.ReleaseAnnotation] = fmt.Sprint(release)
		s.Changes = []v1alpha1.ChangeWorkload{change(r.To, release, v1alpha1.ChangeWorkloadRunning)}
		pods := s.Pods
		s.dueForHealing()
		s.Pods = pods
	}
	if diff := cmp.Diff([]string{"ba"}, went); diff != "" {
		t.Errorf("rolled back -want +got:\n%s", diff)
	}
}

func TestRollbackOfRelease(t *testing.T) {
	why := rollback.QuarantineReason{Time: "then", Cause: v1alpha1.ReasonNeverStarted, Pod: "sleep-1", Reason: "ErrImagePull",
		Release: 1, To: versionB}
	for name, test := range map[string]struct {
		release int64 // the number of the release that was rolled back
		state   v1alpha1.ChangeWorkloadStatusType
		order   v1alpha1.OrderStage
		want    v1alpha1.ChangeWorkloadStatusType
		end     v1alpha1.FinishState
	}{
		"while it ran": {1, v1alpha1.ChangeWorkloadRunning, v1alpha1.OrderPreSubmitted, v1alpha1.ChangeWorkloadRollback,
			v1alpha1.FinishRollback},
		"suspended": {1, v1alpha1.ChangeWorkloadSuspend, v1alpha1.OrderPostWait, v1alpha1.ChangeWorkloadRollback,
			v1alpha1.FinishRollback},
		"a success, on demand": {1, v1alpha1.ChangeWorkloadSuccess, v1alpha1.OrderEnded, v1alpha1.ChangeWorkloadRollback, ""},
		"an earlier release": {7, v1alpha1.ChangeWorkloadRunning, v1alpha1.OrderPreSubmitted, v1alpha1.ChangeWorkloadCanceled,
			v1alpha1.FinishCancel},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1).Status(test.state).Release(2, versionB)
			w.in.Change.Status.ObservedRelease, w.in.Change.Status.Attempt = 1, 1
			w.in.Change.Status.OrderStage, w.in.Change.Status.OrderID = test.order, "order"
			r := why
			r.Release = test.release
			rollback.ParseQuarantine(nil, testNow).With(versionA, r).Annotate(w.in.Workload.Annotations)
			plan := w.Step()
			s := &w.in.Change.Status
			if s.Status != test.want || s.OrderEnd != test.end {
				t.Errorf("%s, order ends %q, want %s and %q", s.Status, s.OrderEnd, test.want, test.end)
			}
			rolledBack := test.want == v1alpha1.ChangeWorkloadRollback
			if got := len(plan.Events) == 1 && plan.Events[0].OfRelease && plan.Events[0].Reason == "RolledBack"; got != rolledBack {
				t.Errorf("events %+v", plan.Events)
			}
			if again := w.Step(); again.Status != nil || again.Events != nil {
				t.Errorf("decided again: %+v", again)
			}
		})
	}
}

// TestRolledBackStays: the record of the rolled back release explains the current release until another one succeeds.
func TestRolledBackStays(t *testing.T) {
	for name, test := range map[string]struct {
		release int64
		want    int // removed records
	}{
		"restored":      {3, 0},
		"the one after": {4, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1).Pods(1).Complete().Release(test.release, versionA)
			w.in.Change.Spec.Release = test.release
			rollback.ParseQuarantine(nil, testNow).With(versionB,
				rollback.QuarantineReason{Cause: v1alpha1.ReasonNeverStarted, Release: 2, To: versionA}).Annotate(w.in.Workload.Annotations)
			w.in.Others = []v1alpha1.ChangeWorkload{change(versionB, 2, v1alpha1.ChangeWorkloadRollback)}
			w.Settle(t)
			if got := DecideRelease(w.in).Remove; len(got) != test.want {
				t.Errorf("removes %d, want %d", len(got), test.want)
			}
		})
	}
}

// TestRollbackRefused: a refusal is reported once, and removed.
func TestRollbackRefused(t *testing.T) {
	w := newWorld(1).Pods(1, unready)
	w.in.Workload.Rolling = true
	w.in.Pods[0].Stuck = &workload.Stuck{Container: "main", Reason: "ErrImagePull", From: testNow}
	w.Step()
	plan := w.Step()
	if plan.RequeueAfter != time.Minute {
		t.Errorf("looks again after %s: the wait for a batch is sooner than the threshold", plan.RequeueAfter)
	}
	w.Later(2 * time.Minute)
	reported := 0
	for range 3 {
		for _, e := range w.Step().Events {
			if e.Reason == v1alpha1.ReasonRollbackRefused {
				reported++
			}
		}
	}
	if reported != 1 {
		t.Errorf("reported %d times, want once", reported)
	}
	const want = "pod sleep-0 does not come up: container main: ErrImagePull; not rolled back: no pods of an older version run; the history " +
		"has no other successful version"
	if got := record.ConditionMessage(&w.in.Change.Status, v1alpha1.ConditionRolledBack); got != want {
		t.Errorf("condition says %q, want %q", got, want)
	}
	w.in.Pods[0].Stuck, w.in.Pods[0].Ready = nil, true
	w.Complete().Settle(t)
	if got := conditionReason(w, v1alpha1.ConditionRolledBack); got != v1alpha1.ReasonRecovered {
		t.Errorf("condition says %s after all, want %s", got, v1alpha1.ReasonRecovered)
	}
}

// TestSelfHealing: each failure requests a rollback once, if self-healing is on at that time, and its correction
// cancels the request.
func TestSelfHealing(t *testing.T) {
	for name, test := range map[string]struct {
		on      bool
		history []workload.Revision
		want    string
		events  int // refusals
	}{
		"on":                {true, []workload.Revision{{Version: versionB}}, v1alpha1.ReasonVerificationFailed, 0},
		"off":               {false, []workload.Revision{{Version: versionB}}, "", 0},
		"without a history": {true, nil, v1alpha1.ReasonRollbackRefused, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(2).Pods(2).Complete()
			w.in.Settings.SelfHealing, w.in.History = test.on, test.history
			w.Settle(t)
			w.in.History = test.history
			w.Verdict("sleep-0", "fail")
			refused := 0
			for range 3 {
				for _, e := range w.Step().Events {
					if e.Reason == v1alpha1.ReasonRollbackRefused {
						refused++
					}
				}
			}
			if got := conditionReason(w, v1alpha1.ConditionRolledBack); got != test.want || refused != test.events {
				t.Errorf("%q and %d refusals, want %q and %d", got, refused, test.want, test.events)
			}
			w.in.Settings.SelfHealing = true
			w.Settle(t)
			if got := conditionReason(w, v1alpha1.ConditionRolledBack); got != test.want {
				t.Errorf("%q after it was turned on, want %q", got, test.want)
			}
			w.Verdict("sleep-0", "pass").Settle(t)
			if got := conditionReason(w, v1alpha1.ConditionRolledBack); test.want != "" && got != v1alpha1.ReasonRecovered {
				t.Errorf("%q after the correction, want %q", got, v1alpha1.ReasonRecovered)
			}
		})
	}
}

func conditionReason(w *world, kind string) string {
	for _, c := range w.in.Change.Status.Conditions {
		if c.Type == kind {
			return c.Reason
		}
	}
	return ""
}
