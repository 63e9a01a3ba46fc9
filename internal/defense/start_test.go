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
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// TestRollbackLimitOfFailed: a release that failed its verification, and whose pods do not come up, waits for the
// rollback limit like any other: it is reported once, and has its full time when the limit allows it.
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
		w.in.Limit = rollback.ParseLimit(fmt.Sprintf(`[{"time":%d}]`, w.in.Now.Add(-8*time.Minute).Unix()))
		w.in.Settings.LimitCount = 1
		return w
	}
	due := func(w *world) bool {
		plan := rollback.Decide(rollback.Input{Now: w.in.Now, Settings: w.in.Settings, Workload: w.in.Workload, Enrolled: true,
			Changes: []v1alpha1.ChangeWorkload{*w.in.Change}, Pods: w.in.Pods, History: w.in.History, Limit: w.in.Limit})
		return plan.Rollback != nil
	}
	for name, healing := range map[string]bool{"self-healing": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, healing)
			var reported []string
			for range 3 {
				for _, e := range w.Step().Events {
					reported = append(reported, e.Reason+" "+e.Act)
				}
			}
			if diff := cmp.Diff([]string{v1alpha1.EventRollbackRefused + " " + v1alpha1.ReasonRollbackLimit}, reported); diff != "" {
				t.Errorf("events -want +got:\n%s", diff)
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
		w.in.Settings.SelfHealing = true // it failed earlier
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

// TestProven: a successful version is proven after it ran well for some time, and leaves the history if its pods fail
// before.
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

// TestPodsUnavailable: pods that fail after Success are reported once, and their recovery when it is certain.
func TestPodsUnavailable(t *testing.T) {
	w := newWorld(1).Pods(1).Complete()
	w.in.Workload.AvailableSince = testNow
	w.Settle(t)
	w.Later(time.Hour).Settle(t)
	w.in.Pods[0].Ready = false
	w.in.Pods[0].Stuck = &workload.Stuck{Container: "main", Reason: "CrashLoopBackOff", Restarts: 2, From: w.in.Now,
		Created: testNow, Begun: testNow}
	var reported []string
	step := func() {
		for _, e := range w.Step().Events {
			reported = append(reported, e.Reason)
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
	if diff := cmp.Diff([]string{v1alpha1.ConditionPodsUnavailable}, reported); diff != "" {
		t.Errorf("events -want +got:\n%s", diff)
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

// TestExplainStuck: the causes of a stuck release are reported in the order of their weight, each once, with the cause
// from the events of the pod.
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
	var reported []string
	for _, d := range []time.Duration{0, time.Minute, 7 * time.Minute, time.Minute} {
		w.Later(d)
		for _, e := range w.Step().Events {
			reported = append(reported, strings.TrimPrefix(e.Message, "version "+versionA+": "))
		}
	}
	want := []string{
		"pod sleep-0 does not come up: container main: ContainerCreating (for 2m0s): FailedMount: configmap \"x\" not found; " +
			"not rolled back: it does not fail, and may take 10m0s in total",
		"pod sleep-0 does not come up: container main: ContainerCreating (for 10m0s): FailedMount: configmap \"x\" not found; " +
			"not rolled back: no pods of an older version run; the history has no other successful version",
	}
	if diff := cmp.Diff(want, reported); diff != "" {
		t.Errorf("events -want +got:\n%s", diff)
	}
}

// TestNotMade: refused pods are reported at once.
func TestNotMade(t *testing.T) {
	w := newWorld(3)
	w.Step()
	w.in.Workload.NotMade = &workload.NotMade{Count: 3, Since: testNow, Message: "exceeded quota: pods"}
	var reported []string
	for range 3 {
		for _, e := range w.Step().Events {
			reported = append(reported, e.Reason+": "+strings.TrimPrefix(e.Message, "version "+versionA+": "))
		}
	}
	if diff := cmp.Diff([]string{"PodsUnavailable: 3 of 3 pods cannot be created: exceeded quota: pods"}, reported); diff != "" {
		t.Errorf("events -want +got:\n%s", diff)
	}
}

// TestQuarantineTerm: a quarantine ends by itself, each time after twice as long.
func TestQuarantineTerm(t *testing.T) {
	s := makeScene()
	now := testNow
	var terms []time.Duration
	for range 8 {
		s.Now, s.Pods[0].Ready = now, false
		s.Pods[1].Stuck.From = now.Add(-time.Hour)
		s.Pods[1].Stuck.Begun = s.Pods[1].Stuck.From
		plan := rollback.Decide(s.Input)
		if plan.Rollback == nil {
			t.Fatalf("not rolled back: %+v", plan)
		}
		until, err := time.Parse(time.RFC3339, plan.Rollback.Why.Until)
		if err != nil {
			t.Fatal(err)
		}
		terms = append(terms, until.Sub(now))
		rollback.ParseQuarantine(s.Workload.Annotations, now).With(versionB, plan.Rollback.Why).Annotate(s.Workload.Annotations)
		if q := rollback.ParseQuarantine(s.Workload.Annotations, until.Add(-time.Second)); !q.Holds(versionB) {
			t.Error("over before its time")
		}
		if again := rollback.Decide(s.Input); again.Rollback != nil {
			t.Error("rolled back again while it is in quarantine")
		}
		if q := rollback.ParseQuarantine(s.Workload.Annotations, until); q.Holds(versionB) {
			t.Error("not over")
		}
		// A user applies it again: a release like any other.
		now = until
		s.Workload.Annotations[v1alpha1.ReleaseAnnotation] = fmt.Sprint(s.Workload.Release() + 2)
		s.Changes[0].Spec.Release, s.Changes[0].Status.ObservedRelease = s.Workload.Release(), s.Workload.Release()
	}
	s.Now = now
	want := []time.Duration{time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 16 * time.Hour, 24 * time.Hour,
		24 * time.Hour, 24 * time.Hour}
	if diff := cmp.Diff(want, terms); diff != "" {
		t.Errorf("terms -want +got:\n%s", diff)
	}
	if got := s.Workload.Annotations[v1alpha1.QuarantinedAnnotation]; got != versionB {
		t.Errorf("quarantined %q", got)
	}
	s.Settings.Quarantine = false
	if plan := rollback.Decide(s.Input); plan.Rollback.Why.Until != "" {
		t.Errorf("with the setting off it ends at %s", plan.Rollback.Why.Until)
	}
	s.Settings.Quarantine, s.Pods[0].Ready = true, true
	if plan := rollback.Decide(s.Input); plan.Rollback.Why.Until != "" || plan.Rollback.Why.Cause != v1alpha1.ReasonNeverStarted {
		t.Errorf("one of which a pod has finished: %+v", plan.Rollback.Why)
	}
	if plan := rollback.Decide(s.state(v1alpha1.ChangeWorkloadSuspend).Input); plan.Rollback.Why.Until != "" ||
		plan.Rollback.Why.Cause != v1alpha1.ReasonVerificationFailed {
		t.Errorf("one that failed its verification: %+v", plan.Rollback.Why)
	}
}
