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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// earlier returns the record of an earlier release.
func earlier(release int64, state v1alpha1.ChangeWorkloadStatusType, change ...func(*v1alpha1.ChangeWorkload)) v1alpha1.ChangeWorkload {
	c := wrappers.MakeChangeWorkload("default", "earlier").Release(release).Obj()
	c.Status.Attempt, c.Status.ObservedRelease, c.Status.Status = 1, release, state
	for _, f := range change {
		f(c)
	}
	return *c
}

func numbersOf(releases []v1alpha1.PreviousRelease) (numbers []int64) {
	for i := range releases {
		numbers = append(numbers, releases[i].Release)
	}
	return numbers
}

// TestKeepPrevious: the evidence of earlier releases outlives their records.
func TestKeepPrevious(t *testing.T) {
	listing := func(numbers ...int64) func(*v1alpha1.ChangeWorkload) {
		return func(c *v1alpha1.ChangeWorkload) {
			for _, n := range numbers {
				c.Status.PreviousReleases = append(c.Status.PreviousReleases,
					v1alpha1.PreviousRelease{Release: n, Status: v1alpha1.ChangeWorkloadSuccess})
			}
		}
	}
	for name, test := range map[string]struct {
		others []v1alpha1.ChangeWorkload
		want   []int64
	}{
		"none":                      {nil, nil},
		"of a record that is there": {[]v1alpha1.ChangeWorkload{earlier(3, v1alpha1.ChangeWorkloadSuspend)}, []int64{3}},
		"and of those before it":    {[]v1alpha1.ChangeWorkload{earlier(3, v1alpha1.ChangeWorkloadSuspend, listing(2, 1))}, []int64{3, 2, 1}},
		"each once": {[]v1alpha1.ChangeWorkload{earlier(3, v1alpha1.ChangeWorkloadSuspend, listing(2, 1)),
			earlier(2, v1alpha1.ChangeWorkloadSuccess, listing(1))}, []int64{3, 2, 1}},
		"ten": {[]v1alpha1.ChangeWorkload{earlier(19, v1alpha1.ChangeWorkloadSuccess, listing(18, 17, 16, 15, 14, 13, 12, 11, 10, 9))},
			[]int64{19, 18, 17, 16, 15, 14, 13, 12, 11, 10}},
		"not of one that never began": {
			[]v1alpha1.ChangeWorkload{earlier(3, "", func(c *v1alpha1.ChangeWorkload) { c.Status.Attempt, c.Status.ObservedRelease = 0, 0 })}, nil},
		"not of what is no earlier one": {[]v1alpha1.ChangeWorkload{earlier(21, v1alpha1.ChangeWorkloadSuspend)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1)
			w.in.Change.Spec.Release = 20
			w.Release(20, versionA).in.Others = test.others
			w.Step()
			if diff := cmp.Diff(test.want, numbersOf(w.in.Change.Status.PreviousReleases)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestKeepPreviousTellsHow: a release records who released an earlier one, and how and why it ended, from another
// record or from its own former attempt.
func TestKeepPreviousTellsHow(t *testing.T) {
	begin := func(n int64) *world {
		w := newWorld(1).Release(n, versionA)
		w.in.Change.Spec.Release = n
		w.in.Workload.Images = []string{"registry.example.com/web:2"}
		w.in.Workload.Annotations[v1alpha1.ReleasedByAnnotation] = "deployer"
		w.in.Workload.Annotations[v1alpha1.OverrideAnnotation] = versionA + " 7 oncall"
		return w
	}
	failed := begin(1).Pods(1).Complete().Settle(t).Verdict("sleep-0", "unpass").Settle(t)
	want := v1alpha1.PreviousRelease{
		Release: 1, Version: versionA, Status: v1alpha1.ChangeWorkloadSuspend,
		StartTimeUnix: testNow.Unix(), UpdateTimeUnix: testNow.Unix(), Message: "pod sleep-0: unpass: find error",
		ReleaseEvidence: v1alpha1.ReleaseEvidence{Images: []string{"registry.example.com/web:2"}, ReleasedBy: "deployer", OverriddenBy: "oncall",
			FailedTimeUnix: testNow.Unix()},
	}
	same := failed.in.Change.DeepCopy()

	again := begin(2)
	again.in.Change.Status = *same.Status.DeepCopy()
	again.Step()
	other := begin(2)
	record := *same
	record.Name, record.UID = "other", "other"
	other.in.Others = []v1alpha1.ChangeWorkload{record}
	other.Step()
	for name, w := range map[string]*world{"an earlier attempt": again, "another version": other} {
		previous := w.in.Change.Status.PreviousReleases
		if len(previous) != 1 {
			t.Fatalf("%s: %d releases, want one", name, len(previous))
		}
		if previous[0].FailedPod == nil || previous[0].FailedPod.Pod != "sleep-0" {
			t.Errorf("%s: no word of the pod that failed", name)
		}
		previous[0].FailedPod = nil
		if diff := cmp.Diff(want, previous[0]); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

// TestKeepPreviousFollows: a late end of an earlier release is recorded, also after its record is gone.
func TestKeepPreviousFollows(t *testing.T) {
	w := newWorld(1).Release(2, versionA).Pods(1)
	w.in.Change.Spec.Release = 2
	w.in.Others = []v1alpha1.ChangeWorkload{earlier(1, v1alpha1.ChangeWorkloadRunning)}
	w.Settle(t)
	is := func(want v1alpha1.ChangeWorkloadStatusType) {
		t.Helper()
		if got := w.in.Change.Status.PreviousReleases; len(got) != 1 || got[0].Status != want {
			t.Errorf("it knows %+v, want one that is %s", got, want)
		}
	}
	is(v1alpha1.ChangeWorkloadRunning)
	w.in.Others[0].Status.Status = v1alpha1.ChangeWorkloadCanceled
	w.Settle(t)
	is(v1alpha1.ChangeWorkloadCanceled)
	w.in.Others = nil
	w.Settle(t)
	is(v1alpha1.ChangeWorkloadCanceled)
}

// TestCorrection: the field manager of a correction is recorded.
func TestCorrection(t *testing.T) {
	for name, complete := range map[string]bool{"the release goes on": false, "it succeeds": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(2).Pods(1)
			if complete {
				w = newWorld(1).Pods(1).Complete()
			}
			w.Settle(t).Verdict("sleep-0", "unpass").Settle(t).Later(time.Minute).Verdict("sleep-0", "pass")
			at := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: testNow.Add(d)} }
			for i := range w.in.Batches {
				w.in.Batches[i].ManagedFields = []metav1.ManagedFieldsEntry{
					{Manager: "simulator", Subresource: "status", Time: at(time.Second)},
					{Manager: "kubectl-edit", Subresource: "status", Time: at(time.Minute)},
					{Manager: "labeller", Time: at(time.Hour)},
					{Manager: v1alpha1.FieldManager, Subresource: "status", Time: at(time.Hour)},
				}
			}
			plan := w.Step()
			want := []v1alpha1.Correction{{Pod: "sleep-0", FieldManager: "kubectl-edit", TimeUnix: testNow.Add(time.Minute).Unix()}}
			if diff := cmp.Diff(want, w.in.Change.Status.Corrections); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			messages := eventsOf(plan, v1alpha1.EventVerdictCorrected)
			if len(messages) != 1 || !strings.Contains(messages[0],
				"of pod sleep-0 by field manager kubectl-edit; nothing of this release fails now") {
				t.Errorf("events %q", messages)
			}
		})
	}
}

// TestCorrectionOfSome: a correction of some of the failing verdicts is recorded and reported.
func TestCorrectionOfSome(t *testing.T) {
	w := newWorld(3).Pods(3).Settle(t).Verdict("sleep-0", "unpass").Verdict("sleep-1", "unpass").Settle(t)
	plan := w.Verdict("sleep-1", "pass").Step()
	want := []v1alpha1.Correction{{Pod: "sleep-1", TimeUnix: testNow.Unix()}}
	if diff := cmp.Diff(want, w.in.Change.Status.Corrections); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if messages := eventsOf(plan, v1alpha1.EventVerdictCorrected); len(messages) != 1 ||
		!strings.HasSuffix(messages[0], "of pod sleep-1 by field manager unknown") {
		t.Errorf("events %q", messages)
	}
	if got := w.in.Change.Status.Status; got != v1alpha1.ChangeWorkloadSuspend {
		t.Errorf("the release is %s", got)
	}
	plan = w.Step()
	if messages := eventsOf(plan, v1alpha1.EventVerdictCorrected); len(messages) > 0 {
		t.Errorf("reported again: %q", messages)
	}
}

// TestCorrectionOfTheOrder: a correction of the verdict on the order is reported, also while pods of the release fail,
// and together with corrected pods.
func TestCorrectionOfTheOrder(t *testing.T) {
	older := func(w *world) { w.in.Change.Status.OrderFailed = false }
	for name, test := range map[string]struct {
		pods   []string
		before func(*world)
		change func(*world)
		want   string
	}{
		"alone": {nil, nil, (*world).correctOrder,
			"of the order by field manager unknown; nothing of this release fails now"},
		"alone, in an object of an older build": {nil, older, (*world).correctOrder,
			"of the order by field manager unknown; nothing of this release fails now"},
		"while a pod fails": {[]string{"sleep-0"}, nil, (*world).correctOrder,
			"of the order by field manager unknown"},
		"with one of two pods": {[]string{"sleep-0", "sleep-1"}, nil, func(w *world) { w.Verdict("sleep-1", "pass").correctOrder() },
			"of pod sleep-1 by field manager unknown, of the order by field manager unknown"},
		"with all pods": {[]string{"sleep-0"}, nil, func(w *world) { w.Verdict("sleep-0", "pass").correctOrder() },
			"of pod sleep-0 by field manager unknown, of the order by field manager unknown; nothing of this release fails now"},
		"not when only the pods are": {[]string{"sleep-0"}, nil, func(w *world) { w.Verdict("sleep-0", "pass") },
			"of pod sleep-0 by field manager unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(2).Pods(2).Settle(t)
			for _, pod := range test.pods {
				w.Verdict(pod, "unpass")
			}
			w.in.Change.Status.OrderPostVerdict = &v1alpha1.CheckVerdict{Verdict: "fail"}
			w.Settle(t)
			if test.before != nil {
				test.before(w)
			}
			test.change(w)
			messages := eventsOf(w.Step(), v1alpha1.EventVerdictCorrected)
			want := "version " + versionA + ": the failing verdict was corrected: " + test.want
			if diff := cmp.Diff([]string{want}, messages); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if messages := eventsOf(w.Step(), v1alpha1.EventVerdictCorrected); len(messages) > 0 {
				t.Errorf("reported again: %q", messages)
			}
			var noted []string
			for _, c := range w.in.Change.Status.Corrections {
				noted = append(noted, c.Pod)
			}
			if want := strings.Contains(test.want, "of the order"); slices.Contains(noted, "") != want {
				t.Errorf("corrections of %q, of the order: want %t", noted, want)
			}
		})
	}
}

// TestClaimedIsNotCorrected: a failing verdict on an entry that becomes known belongs to the batch; no user corrected
// it.
func TestClaimedIsNotCorrected(t *testing.T) {
	w := newWorld(2).Pods(1).Settle(t)
	w.in.Change.Status.OrderNodeID, w.in.Change.Status.OrderStage = "order-node", v1alpha1.OrderPostFinish
	w.in.Change.Status.UnclaimedVerdicts = []v1alpha1.UnclaimedVerdict{{Stage: v1alpha1.StagePost,
		CheckVerdict: v1alpha1.CheckVerdict{NodeID: "node", Verdict: "fail"}}}
	w.Settle(t)
	if got := w.in.Change.Status.Status; got != v1alpha1.ChangeWorkloadSuspend {
		t.Fatalf("the release is %s", got)
	}
	w.in.Batches[0].Status.ChangePodID = "node"
	w.Verdict("sleep-0", "unpass")
	if messages := eventsOf(w.Step(), v1alpha1.EventVerdictCorrected); len(messages) > 0 {
		t.Errorf("events %q", messages)
	}
}

// correctOrder corrects the verdict on the order, like a user.
func (w *world) correctOrder() { w.in.Change.Status.OrderPostVerdict.Verdict = record.VerdictPass }

func eventsOf(plan ReleasePlan, reason string) (messages []string) {
	for _, e := range plan.Events {
		if e.Reason == reason {
			messages = append(messages, e.Message)
		}
	}
	return messages
}

// TestOptOut: the opt-out of a blocked workload is recorded and reported once, and recorded by the releases after it.
func TestOptOut(t *testing.T) {
	for name, back := range map[string]bool{"before it is seen": false, "and in again": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1).Release(4, versionA)
			w.in.Change.Spec.Release = 4
			w.Pods(1).Complete().Settle(t).Verdict("sleep-0", "unpass").Settle(t)
			w.in.Workload.Annotations[v1alpha1.OptedOutAnnotation] = "4 1700000000 Blocked jane doe"
			if !back {
				w.in.Workload.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled
			}
			plan := w.Step()
			want := &v1alpha1.OptOut{User: "jane doe", While: v1alpha1.WhileBlocked, TimeUnix: 1700000000}
			if diff := cmp.Diff(want, w.in.Change.Status.OptedOut); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if messages := eventsOf(plan, v1alpha1.EventOptedOut); len(messages) != 1 ||
				!strings.Contains(messages[0], "jane doe opted the workload out") {
				t.Errorf("events %q", messages)
			}
			plan = w.Step()
			if messages := eventsOf(plan, v1alpha1.EventOptedOut); len(messages) > 0 {
				t.Errorf("reported again: %q", messages)
			}
			if diff := cmp.Diff(want, PreviousOf(w.in.Change).OptedOut); diff != "" {
				t.Errorf("previous releases: -want +got:\n%s", diff)
			}
		})
	}
	t.Run("of another release", func(t *testing.T) {
		w := newWorld(1).Release(4, versionA)
		w.in.Change.Spec.Release = 4
		w.in.Workload.Annotations[v1alpha1.OptedOutAnnotation] = "3 1700000000 Blocked jane"
		w.Pods(1).Settle(t)
		if w.in.Change.Status.OptedOut != nil {
			t.Error("it is noted")
		}
	})
}

func TestParseOptOut(t *testing.T) {
	for value, want := range map[string]bool{
		"4 1700000000 Blocked jane":      true,
		"4 1700000000 Quarantined a b c": true,
		"4 1700000000 Quarantined ":      true,
		"4 1700000000 Sleeping jane":     false,
		"4 soon Blocked jane":            false,
		"4 1700000000 Blocked":           false,
		"":                               false,
	} {
		o, ok := ParseOptOut(value)
		if ok != want || ok && o.String() != value {
			t.Errorf("ParseOptOut(%q) = %v, %t, want %t", value, o, ok, want)
		}
	}
}

// TestEvidenceIsBounded: no text of users makes the status too large.
func TestEvidenceIsBounded(t *testing.T) {
	w := newWorld(1).in.Workload
	for range 100 {
		w.Images = append(w.Images, strings.Repeat("i", 2000))
	}
	w.Annotations[v1alpha1.ReleasedByAnnotation] = strings.Repeat("é", 2000)
	e := evidenceOf(w)
	if len(e.Images) != maxImages || len(e.Images[0]) != record.MaxText || len(e.ReleasedBy) > record.MaxText {
		t.Errorf("%d images of %d bytes, user of %d", len(e.Images), len(e.Images[0]), len(e.ReleasedBy))
	}
}

func TestOverrideOf(t *testing.T) {
	quarantine := func(by string) *workload.Workload {
		q := rollback.ParseQuarantine(map[string]string{v1alpha1.QuarantinedAnnotation: versionA}, testNow).Override(versionA, by)
		w := &workload.Workload{}
		w.Annotations = map[string]string{}
		q.Annotate(w.Annotations)
		return w
	}
	since := "1700000000"
	block := &since
	for name, test := range map[string]struct {
		by      string
		blocked *string
		w       *workload.Workload
		want    *Overridden
	}{
		"none":                              {"", block, quarantine("jane"), nil},
		"a block":                           {"jane", block, &workload.Workload{}, &Overridden{"jane", []string{OverrodeBlock}}},
		"a block, and the workload is gone": {"jane", block, nil, &Overridden{"jane", []string{OverrodeBlock}}},
		"a quarantine":                      {"jane", nil, quarantine("jane"), &Overridden{"jane", []string{OverrodeQuarantine}}},
		"both": {"jane", block, quarantine("jane"),
			&Overridden{"jane", []string{OverrodeBlock, OverrodeQuarantine}}},
		"a quarantine that another passed": {"jane", block, quarantine("joe"), &Overridden{"jane", []string{OverrodeBlock}}},
	} {
		t.Run(name, func(t *testing.T) {
			change := &v1alpha1.ChangeWorkload{Spec: v1alpha1.ChangeWorkloadSpec{Reversion: versionA}}
			change.Status.OverriddenBy, change.Status.BlockAtStart = test.by, test.blocked
			if diff := cmp.Diff(test.want, OverrideOf(change, test.w)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestCorrectedAfterADeath: the process died between the block and its record, and the verdict was corrected before the next process
// decided. The record never was Suspend, and the rollout must not stay halted.
func TestCorrectedAfterADeath(t *testing.T) {
	w := newWorld(3).Pods(1).Settle(t)
	w.Verdict("sleep-0", "unpass")
	before := w.in.Change.Status.DeepCopy()
	w.Settle(t)
	if !w.stored.Paused || !w.stored.Blocked() {
		t.Fatalf("not halted and blocked: %+v", w.stored)
	}
	w.in.Change.Status = *before // its write is lost
	w.Verdict("sleep-0", "pass").Settle(t)
	if w.stored.Paused || w.stored.Blocked() {
		t.Errorf("it stays halted: paused %t, blocked %t, %s", w.stored.Paused, w.stored.Blocked(), w.in.Change.Status.Status)
	}
}
