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
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
)

// replace replaces the first n pods.
func (w *world) replace(t *testing.T, n int) *world {
	t.Helper()
	for range n {
		next := w.in.Pods[len(w.in.Pods)-1]
		number := w.made
		w.made++
		next.Name, next.UID = fmt.Sprintf("later-%d", number), types.UID(fmt.Sprintf("later-%d", number))
		w.in.Pods = append(w.in.Pods[1:], next)
		w.Settle(t)
	}
	return w
}

func (w *world) numbers() (n []int32) {
	for i := range w.in.Batches {
		n = append(n, record.BatchNumber(&w.in.Batches[i]))
	}
	slices.Sort(n)
	return n
}

// TestReplacementsDoNotAccumulate: pods come and go, and the records do not grow; counts, numbers and the state stay
// right.
func TestReplacementsDoNotAccumulate(t *testing.T) {
	w := newWorld(2).Pods(2).Complete().Settle(t).replace(t, 200)
	s := &w.in.Change.Status
	if n := len(w.in.Batches); n != 2 {
		t.Errorf("%d batches are left, want 2", n)
	}
	if s.PassCount != 202 || s.Batches != 202 || s.Status != v1alpha1.ChangeWorkloadSuccess || len(s.DefenseCheckPassPods) != 2 {
		t.Errorf("%d passed, %d listed, last batch %d, %s", s.PassCount, len(s.DefenseCheckPassPods), s.Batches, s.Status)
	}
	if s.Folded.Numbers != "1-200" || len(s.Folded.Removing) > 2 {
		t.Errorf("folded %s, removing %v", s.Folded.Numbers, s.Folded.Removing)
	}
	if got := w.numbers(); !slices.Equal(got, []int32{201, 202}) {
		t.Errorf("batches %v", got)
	}
	before := s.PassCount
	if w.replace(t, 1); s.PassCount != before+1 {
		t.Errorf("%d passed after %d", s.PassCount, before)
	}
}

// TestFailuresDoNotAccumulate: of the failed batches without pods, the newest 100 stay. The counts include the others,
// which are corrected with the last one that stayed.
func TestFailuresDoNotAccumulate(t *testing.T) {
	w := newWorld(2).Pods(2).Complete().Settle(t)
	failAll := func(verdict string) {
		for i := range w.in.Pods {
			w.Verdict(w.in.Pods[i].Name, verdict)
		}
		w.Settle(t)
	}
	failAll("fail")
	for range 60 {
		w.replace(t, 2)
		failAll("fail")
	}
	s := &w.in.Change.Status
	if n := len(w.in.Batches); n != maxFailedBatches || s.FailCount != 122 || s.PassCount != 0 || s.Status != v1alpha1.ChangeWorkloadSuspend {
		t.Fatalf("%d batches, %d failed, %d passed, %s", n, s.FailCount, s.PassCount, s.Status)
	}
	if s.Folded.Numbers != "1-22" || s.Folded.FailCount != 22 || s.Batches != 122 {
		t.Errorf("folded %s with %d failed, last batch %d", s.Folded.Numbers, s.Folded.FailCount, s.Batches)
	}
	for i := range w.in.Batches[1:] {
		w.Verdict(w.in.Batches[i+1].Spec.PodInfos[0].Pod, "pass")
	}
	if w.Settle(t); s.FailCount != 23 || s.Status != v1alpha1.ChangeWorkloadSuspend {
		t.Errorf("%d failed, %s, with one batch not corrected", w.in.Change.Status.FailCount, w.in.Change.Status.Status)
	}
	w.Verdict(w.in.Batches[0].Spec.PodInfos[0].Pod, "pass").Settle(t)
	if s := &w.in.Change.Status; s.FailCount != 0 || s.PassCount != 122 || s.Status != v1alpha1.ChangeWorkloadSuccess ||
		s.Folded.FailCount != 0 {
		t.Errorf("%d failed, %d passed, %s, folded %d failed", s.FailCount, s.PassCount, s.Status, s.Folded.FailCount)
	}
}

// TestFoldedFailureCountsOnce: a folded failure that was not deleted, or that a cache still shows, neither counts by
// itself nor makes its batch count again.
func TestFoldedFailureCountsOnce(t *testing.T) {
	w := newWorld(1).Pods(1).Complete().Settle(t)
	w.kept = true
	for range maxFailedBatches + 3 {
		w.Verdict(w.in.Pods[0].Name, "fail").replace(t, 1)
	}
	if s := &w.in.Change.Status; s.FailCount != maxFailedBatches+3 || s.Folded.FailCount != 3 || s.Folded.Numbers != "1-3" ||
		s.PassCount != 1 {
		t.Errorf("%d failed, %d passed, folded %+v", s.FailCount, s.PassCount, s.Folded)
	}
	w.kept = false
	w.Settle(t)
	if s := &w.in.Change.Status; s.FailCount != maxFailedBatches+3 || len(w.in.Batches) != maxFailedBatches+1 {
		t.Errorf("%d failed, %d batches", s.FailCount, len(w.in.Batches))
	}
}

// TestFoldedNumbersAreBounded: pods that stay separate the numbers of folded batches. The list of numbers is bounded,
// and the batches are still folded.
func TestFoldedNumbersAreBounded(t *testing.T) {
	const pods = 2 * (record.MaxRanges + 150)
	w := newWorld(pods).Pods(pods).Complete()
	w.Settle(t)
	for i := range pods / 2 {
		w.in.Pods[2*i].UID, w.in.Pods[2*i].Name = types.UID(fmt.Sprintf("other-%d", i)), fmt.Sprintf("other-%d", i)
		if i%100 == 99 {
			w.Settle(t)
		}
	}
	w.Settle(t)
	s := &w.in.Change.Status
	if n := len(w.in.Batches); n != pods || s.PassCount != pods+pods/2 {
		t.Errorf("%d batches, %d passed", n, s.PassCount)
	}
	if n := len(record.ParseNumbers(s.Folded.Numbers)); n != record.MaxRanges || len(s.Folded.Numbers) > 8192 {
		t.Errorf("%d ranges in %d bytes", n, len(s.Folded.Numbers))
	}
	w.Later(time.Hour)
	w.in.Pods[1].UID, w.in.Pods[1].Name = "last", "last"
	if plan := DecideRelease(w.in); plan.NeedsBatches || len(plan.Batches) != 1 {
		t.Errorf("needs the batches of the API server: %v, makes %d", plan.NeedsBatches, len(plan.Batches))
	}
}

// TestFold: which batches are folded.
func TestFold(t *testing.T) {
	for name, test := range map[string]struct {
		before func(*world) // the first pod goes
		after  func(*world)
		left   []int32
		folded string
		pass   int32
	}{
		"a batch whose pod is gone": {left: []int32{2, 3}, folded: "1", pass: 3},
		"not one with a failed pod": {before: func(w *world) { w.Verdict("sleep-0", "fail") }, left: []int32{1, 2, 3}, pass: 2},
		"not one whose pod exists, though the cache does not show it": {
			before: func(w *world) { w.unseen = map[types.UID]bool{"pod-0": true} }, left: []int32{1, 2, 3}, pass: 3,
		},
		"not one that ended without a verdict just now": {
			before: func(w *world) {
				w.in.Batches[0].Status.Message, w.in.Batches[0].Status.UpdateTimeUnix = string(v1alpha1.ChangePodPostTimeout), w.in.Now.Unix()
			},
			left: []int32{1, 2, 3}, pass: 3,
		},
		"but later": {
			before: func(w *world) {
				w.in.Batches[0].Status.Message, w.in.Batches[0].Status.UpdateTimeUnix = string(v1alpha1.ChangePodPostTimeout), w.in.Now.Unix()
			},
			after: func(w *world) { w.Later(w.in.Settings.PostTimeout) },
			left:  []int32{2, 3}, folded: "1", pass: 3,
		},
		"not one on which a verdict waits": {
			before: func(w *world) {
				w.in.Batches[0].Status.ChangePodID = "node-1"
				w.in.Change.Status.UnclaimedVerdicts = []v1alpha1.UnclaimedVerdict{{Stage: v1alpha1.StagePost, CheckVerdict: v1alpha1.CheckVerdict{
					NodeID: "node-1", Verdict: "fail", Delivered: "fail"}}}
			},
			left: []int32{1, 2, 3}, pass: 2, // the first fails
		},
		"one that the process did not come to remove counts once": {
			before: func(w *world) { w.kept = true }, after: func(w *world) { w.replace(t, 1) },
			left: []int32{1, 2, 3, 4}, folded: "1-2", pass: 4,
		},
		"one that fails before it is deleted is unfolded": {
			before: func(w *world) { w.kept = true },
			after:  func(w *world) { w.kept = false; w.Verdict("sleep-0", "fail") },
			left:   []int32{1, 2, 3}, pass: 2,
		},
		"one that a cache still shows counts once, and its failure of long ago not": {
			after: func(w *world) {
				ghost := w.in.Batches[0].DeepCopy()
				ghost.Name, ghost.UID, ghost.Spec.PodInfos[0].UID = record.ChangePodName("sleep", versionA, 1), "ghost", "pod-0"
				w.replace(t, 1) // forgets the deleted batches
				ghost.Status.PodResults = []v1alpha1.PodResult{{PodInfo: ghost.Spec.PodInfos[0], Verdict: "fail"}}
				w.in.Batches = append(w.in.Batches, *ghost)
			},
			left: []int32{3, 4}, folded: "1-2", pass: 4,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(2).Pods(2).Complete().Settle(t)
			if test.before != nil {
				test.before(w)
			}
			w.replace(t, 1)
			if test.after != nil {
				test.after(w)
				w.Settle(t)
			}
			s := &w.in.Change.Status
			folded := ""
			if s.Folded != nil {
				folded = s.Folded.Numbers
			}
			if diff := cmp.Diff(test.left, w.numbers()); diff != "" || folded != test.folded || s.PassCount != test.pass {
				t.Errorf("folded %q, want %q; %d passed, want %d; batches -want +got:\n%s", folded, test.folded, s.PassCount, test.pass, diff)
			}
		})
	}
}

// TestUnfoldUnverified: a batch that fails before it is deleted subtracts as many unverified pods as it added, whatever
// its status is by then.
func TestUnfoldUnverified(t *testing.T) {
	for name, fail := range map[string]func(*defended){
		"by hand": func(d *defended) { d.in.Batches[0].Status.PodResults[0].Verdict = record.VerdictFail },
		"by a late verdict": func(d *defended) {
			b := &d.in.Batches[0].Status
			b.PodResults[0].Verdict, b.Message = record.VerdictFail, v1alpha1.ChangePodMessagePostFinish
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDefended(4)
			d.BatchSize(2).Pods(4).Complete()
			d.server.answer = func(string) *server.Answer { return retryAnswer() }
			d.Run(t, time.Hour)
			d.in.Batches[0].Status.PodResults[0].Verdict = record.VerdictPass
			d.kept, d.in.Pods, d.stored.Replicas = true, nil, 0
			d.Run(t, time.Hour)
			if f := d.in.Change.Status.Folded; f == nil || f.Numbers != "1-2" || f.UnverifiedCount != 3 {
				t.Fatalf("folded %+v", f)
			}
			d.kept = false
			fail(d)
			d.Run(t, time.Minute)
			if f := d.in.Change.Status.Folded; f.Numbers != "2" || f.PassCount != 2 || f.UnverifiedCount != 2 {
				t.Errorf("folded %+v, want 2 unverified pods of batch 2", f)
			}
		})
	}
}

// TestFoldKeepsAttemptsApart: batches of former attempts are deleted, whatever their result.
func TestFoldKeepsAttemptsApart(t *testing.T) {
	w := newWorld(2).Pods(2).Complete().Settle(t).replace(t, 3)
	w.Verdict("later-2", "fail").Settle(t)
	w.Release(2, versionB).Step()
	w.Release(3, versionA).in.Change.Spec.Release = 3
	w.Settle(t)
	if s := &w.in.Change.Status; s.PassCount != 2 || s.Folded.Numbers != "1-3" || s.Batches != 7 {
		t.Errorf("%d passed, folded %v, last batch %d", s.PassCount, s.Folded, s.Batches)
	}
	w.replace(t, 2)
	if diff := cmp.Diff([]int32{8, 9}, w.numbers()); diff != "" {
		t.Errorf("batches -want +got:\n%s", diff)
	}
	if s := &w.in.Change.Status; s.PassCount != 4 || s.Folded.Numbers != "1-7" {
		t.Errorf("%d passed, folded %v", s.PassCount, s.Folded)
	}
}

// TestLateVerdictOnFolded: a late verdict is recorded, and changes nothing.
func TestLateVerdictOnFolded(t *testing.T) {
	w := newWorld(1).Pods(1).Complete().Settle(t)
	s := &w.in.Change.Status
	s.OrderID, s.OrderStage, s.OrderNodeID = "order", v1alpha1.OrderEnded, "node-0"
	w.in.Batches[0].Status.ChangePodID = "node-1"
	w.replace(t, 1)
	late := server.Delivered{OrderID: "order", NodeID: "node-1", Stage: v1alpha1.StagePost, Verdict: "fail"}
	for _, want := range []server.Placement{server.PlacementStored, server.PlacementKnown} {
		if got := server.PlaceOnRelease(&w.in.Change.Status, late, testNow); got != want {
			t.Errorf("placed as %s, want %s", got, want)
		}
	}
	w.Later(time.Minute).Settle(t)
	if s := &w.in.Change.Status; s.Status != v1alpha1.ChangeWorkloadSuccess || s.Folded.Nodes[0].Verdict != "fail" ||
		len(s.UnclaimedVerdicts) != 0 {
		t.Errorf("%s, nodes %v, unclaimed %v", s.Status, s.Folded.Nodes, s.UnclaimedVerdicts)
	}
}

// TestRecordsAreBounded: releases that never succeed with a pod leave ten records, not one each; a record whose order
// was not ended at the server stays a while.
func TestRecordsAreBounded(t *testing.T) {
	for name, w := range map[string]*world{
		"no pods":       newWorld(0).Complete(),
		"refused order": newWorld(1).Pods(1).Status(v1alpha1.ChangeWorkloadFailed),
	} {
		t.Run(name, func(t *testing.T) {
			w.Step()
			if name == "refused order" {
				w.Status(v1alpha1.ChangeWorkloadFailed)
			}
			w.Release(20, versionA).in.Change.Spec.Release = 20
			w.in.Change.Status.ObservedRelease = 20
			for i := range int64(15) {
				o := change(fmt.Sprintf("%032d", i), i+1, v1alpha1.ChangeWorkloadCanceled)
				o.UID = types.UID(fmt.Sprint(i))
				w.in.Others = append(w.in.Others, o)
			}
			w.in.Others[14].Status.Status = v1alpha1.ChangeWorkloadRunning
			w.in.Others[2].Status.OrderStage = v1alpha1.OrderPostWait
			plan := DecideRelease(w.in)
			var removed []int64
			for i := range plan.Remove {
				removed = append(removed, plan.Remove[i].Spec.Release)
			}
			if diff := cmp.Diff([]int64{4, 2, 1}, removed); diff != "" {
				t.Errorf("removed -want +got:\n%s", diff)
			}
		})
	}
}

func TestNumbers(t *testing.T) {
	n := record.ParseNumbers("7,nonsense,3-5,9-8")
	for _, step := range []struct {
		change func()
		want   string
	}{
		{func() {}, "3-5,7"},
		{func() { n = n.With(6, 6) }, "3-7"},
		{func() { n = n.Without(5) }, "3-4,6-7"},
		{func() { n = n.Without(3).Without(9) }, "4,6-7"},
		{func() { n = n.With(1, 20) }, "1-20"},
	} {
		if step.change(); n.String() != step.want {
			t.Errorf("got %s, want %s", n, step.want)
		}
	}
	n = nil
	for i := int32(1); i <= 1000; i += 2 {
		n = n.With(i, i)
	}
	joined, from := n.Bounded(func(first, _ int32) bool { return first == 2 }, 0)
	if len(joined) != record.MaxRanges || joined.Has(2) || !joined.Has(4) || from != 0 {
		t.Errorf("%d ranges from %d: %s", len(joined), from, joined)
	}
	kept, from := n.Bounded(func(int32, int32) bool { return true }, 0)
	if len(kept) != record.MaxRanges || kept.Has(599) || !kept.Has(601) || from != 600 {
		t.Errorf("%d ranges from %d: %s", len(kept), from, kept)
	}
}
