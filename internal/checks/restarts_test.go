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

package checks

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestRestartsOf reads the restarts of one pod whose check lasts from four minutes ago for five minutes.
func TestRestartsOf(t *testing.T) {
	began := testNow.Add(-4 * time.Minute)
	for name, test := range map[string]struct {
		restarts, before int32
		at               time.Duration
		late             bool
		change           func(*workload.Pod)
		counts, want     bool
	}{
		"no restart":                {counts: true},
		"a restart":                 {restarts: 1, at: time.Minute, counts: true, want: true},
		"a restart before":          {restarts: 1, at: -time.Minute, counts: true},
		"no more than before":       {restarts: 2, before: 2, at: time.Minute, counts: true},
		"one more than before":      {restarts: 3, before: 2, at: time.Minute, counts: true, want: true},
		"a restart after the check": {restarts: 1, at: 6 * time.Minute, late: true, counts: true},
		"a restart of its node":     {restarts: 1, at: time.Minute, change: func(p *workload.Pod) { p.NodeRestarted = true }},
		"an evicted pod":            {restarts: 1, at: time.Minute, change: func(p *workload.Pod) { p.Disrupted = true }},
		"a pod that is deleted":     {restarts: 1, at: time.Minute, change: func(p *workload.Pod) { p.Terminating = true }},
	} {
		t.Run(name, func(t *testing.T) {
			now := testNow
			if test.late {
				now = now.Add(time.Hour)
			}
			p := workload.Pod{Name: "pod", Node: "node", Created: began.Add(-time.Hour), Ready: true, Restarts: test.restarts}
			if test.restarts > 0 {
				p.EndedAt = began.Add(test.at)
			}
			if test.change != nil {
				test.change(&p)
			}
			due := began.Add(5 * time.Minute)
			all, restarted := restartsOf(now, &v1alpha1.CheckStatus{
				StartTime: stamp(began), DueTime: stamp(due), PodsAtStart: []v1alpha1.PodAtStart{{Pod: "pod", RestartsAtStart: test.before}},
			}, []workload.Pod{p})
			if (len(all) == 1) != test.counts || (restarted == "pod") != test.want {
				t.Fatalf("got %+v, %q", all, restarted)
			}
			if test.counts && (all[0].Restarted != test.want || all[0].Node != "node" || !all[0].From.Equal(began) ||
				!all[0].Until.Equal(earliest(now, due))) {
				t.Errorf("got %+v", all[0])
			}
		})
	}
}

// TestNotCompared: a policy may turn the comparison off.
func TestNotCompared(t *testing.T) {
	c := newRestartComparer(&cluster.Cluster{Clock: testingclock.NewFakeClock(testNow)})
	pods := []workload.Pod{{Name: "pod", Created: testNow.Add(-time.Hour), Restarts: 1, EndedAt: testNow.Add(-time.Second)}}
	status := &v1alpha1.CheckStatus{StartTime: stamp(testNow.Add(-time.Minute)), DueTime: stamp(testNow.Add(time.Minute))}
	if after := c.next(t.Context(), &Subject{}, healthCheck(healthParams{}), status, pods); after != 0 {
		t.Errorf("it compares again after %s", after)
	}
}

// TestConfirm: new pods have to be worse than old ones for half a minute, without a break.
func TestConfirm(t *testing.T) {
	var known releaseRestarts
	now := testNow
	for i, step := range []struct {
		wait  time.Duration
		worse bool
		after time.Duration
	}{
		{0, false, 0}, {5 * time.Second, true, 5 * time.Second}, {28 * time.Second, true, 5 * time.Second},
		{10 * time.Second, true, 5 * time.Second}, {10 * time.Second, true, 5 * time.Second}, {8 * time.Second, true, 2 * time.Second},
		{time.Second, false, 0}, {time.Second, true, 5 * time.Second}, {15 * time.Second, true, 5 * time.Second}, {15 * time.Second, true, 0},
		{time.Second, true, 0},
	} {
		now = now.Add(step.wait)
		if got := known.confirm(now, step.worse); got != step.after {
			t.Errorf("step %d: again after %s, want %s", i, got, step.after)
		}
	}
}

// TestComparedRelease: memory is of one attempt of a release, and bounded.
func TestComparedRelease(t *testing.T) {
	c := newRestartComparer(&cluster.Cluster{})
	change := wrappers.MakeChangeWorkload("ns", "web").Release(1).Attempt(1).Obj()
	change.UID = "web"
	c.of(change).reported = true
	if !c.of(change).reported {
		t.Error("it is forgotten at once")
	}
	change.Status.Attempt = 2
	if c.of(change).reported {
		t.Error("the next attempt is known")
	}
	for i := range maxComparisons + 1 {
		change.UID = types.UID(time.Duration(i).String())
		c.of(change)
	}
	if n := c.known.Len(); n != maxComparisons {
		t.Errorf("%d are remembered", n)
	}
}

// TestLongestPodHealth: a batch with checks of two policies is compared over the longer one.
func TestLongestPodHealth(t *testing.T) {
	check := func(name, of string, due time.Duration) v1alpha1.CheckStatus {
		return v1alpha1.CheckStatus{Name: name, Type: of, StartTime: stamp(testNow), DueTime: stamp(testNow.Add(due))}
	}
	pending := check("pending", v1alpha1.CheckTypePodHealth, time.Hour)
	pending.StartTime = nil
	checks := []v1alpha1.CheckStatus{
		check("a", v1alpha1.CheckTypePodHealth, time.Minute), check("b", v1alpha1.CheckTypePodHealth, 2*time.Minute),
		check("c", v1alpha1.CheckTypeProbe, time.Hour), check("d", v1alpha1.CheckTypePodHealth, time.Second), pending,
	}
	if got := longestPodHealth(checks); got == nil || got.Name != "b" {
		t.Errorf("got %+v", got)
	}
	if got := longestPodHealth(checks[2:3]); got != nil {
		t.Errorf("got %+v", got)
	}
}
