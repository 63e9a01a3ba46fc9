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
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// TestFailureCounts compares pods whose batches began five minutes ago, and old pods of a day.
func TestFailureCounts(t *testing.T) {
	began := testNow.Add(-5 * time.Minute)
	type change func(*workload.Pod)
	restarted := func(at time.Time, times int32) change {
		return func(p *workload.Pod) { p.Restarts, p.EndedAt = times, at }
	}
	unready := func(at time.Time) change { return func(p *workload.Pod) { p.Ready, p.UnreadySince = false, at } }
	back := func(at time.Time) change { return func(p *workload.Pod) { p.ReadySince = at } }
	with := func(all ...change) change {
		return func(p *workload.Pod) {
			for _, f := range all {
				f(p)
			}
		}
	}
	node := func(p *workload.Pod) { p.NodeRestarted = true }
	evicted := func(p *workload.Pod) { p.Disrupted = true }
	recently := began.Add(time.Minute)
	for name, test := range map[string]struct {
		fresh, bad, old, oldBad int
		change, oldChange       change
		age                     time.Duration
		want                    string
	}{
		"three of ten restart, and no old pod did": {fresh: 10, bad: 3, old: 40, change: restarted(recently, 1),
			want: "restarts: 3 in 50 pod-minutes of 10 new pods against 0 in 57,600 of 40 old ones; odds 1 : 5,239 that chance does that"},
		"old pods restarted as often before": {fresh: 10, bad: 3, old: 40, oldBad: 40, change: restarted(recently, 1),
			oldChange: restarted(testNow.Add(-3*time.Hour), 90)},
		"old pods restarted less often": {fresh: 10, bad: 9, old: 40, oldBad: 40, change: restarted(recently, 1),
			oldChange: restarted(testNow.Add(-3*time.Hour), 20),
			want:      "restarts: 9 in 50 pod-minutes of 10 new pods against 800 in 57,600 of 40 old ones; odds 1 : 402,939 that chance does that"},
		"old pods restart at the same time": {fresh: 10, bad: 5, old: 40, oldBad: 4, change: restarted(recently, 1),
			oldChange: restarted(recently, 1)},
		"one of many old pods restarts": {fresh: 10, bad: 5, old: 40, oldBad: 1, change: restarted(recently, 1),
			oldChange: restarted(recently, 1), want: "restarts: 5 in 50 pod-minutes"},
		"old pods restarted at the same age": {fresh: 10, bad: 5, old: 40, oldBad: 12, change: restarted(recently, 1),
			oldChange: restarted(testNow.Add(-24*time.Hour+4*time.Minute), 1)},
		"restarts of one pod":       {fresh: 10, bad: 1, old: 40, change: restarted(recently, 2)},
		"restarts before the check": {fresh: 10, bad: 5, old: 40, change: restarted(began.Add(-time.Minute), 1)},
		"restarts of a node":        {fresh: 10, bad: 5, old: 40, change: with(restarted(recently, 1), node)},
		"evicted pods":              {fresh: 10, bad: 5, old: 40, change: with(restarted(recently, 1), evicted)},
		"too few pods":              {fresh: 1, bad: 1, old: 40, change: restarted(recently, 1)},
		"no old pod":                {fresh: 10, bad: 10, change: restarted(recently, 1)},
		"old pods that began since": {fresh: 10, bad: 10, old: 40, age: 4 * time.Minute, change: restarted(recently, 1)},
		"a lost readiness of few":   {fresh: 10, bad: 2, old: 40, change: unready(recently)},
		"a lost readiness of most":  {fresh: 10, bad: 8, old: 40, change: back(recently), want: "readiness losses: 8 in 50 pod-minutes"},
		"a lost readiness of old pods, too": {fresh: 10, bad: 8, old: 40, oldBad: 10, change: unready(recently),
			oldChange: back(recently)},
		"ready a moment after the start by another clock": {fresh: 10, bad: 8, old: 40, change: back(began.Add(3 * time.Second))},
		"both": {fresh: 10, bad: 8, old: 40, change: with(restarted(recently, 1), back(recently)),
			want: "restarts: 8 in 50 pod-minutes of 10 new pods against 0 in 57,600 of 40 old ones; odds of less than 1 : 1,000,000,000 that " +
				"chance does that; readiness losses: 8 in 50 pod-minutes of 10 new pods against 0 in 200 of 40 old ones; odds"},
	} {
		t.Run(name, func(t *testing.T) {
			pods := func(prefix string, n, bad int, age time.Duration, of change) []workload.Pod {
				all := make([]workload.Pod, n)
				for i := range all {
					created := testNow.Add(-age)
					all[i] = workload.Pod{Name: fmt.Sprint(prefix, i), UID: types.UID(fmt.Sprint(prefix, i)), Created: created,
						Ready: true, ReadySince: created.Add(time.Minute)}
					if i < bad {
						of(&all[i])
					}
				}
				return all
			}
			fresh := pods("new-", test.fresh, test.bad, 7*time.Minute, test.change)
			counts := failureCounts{}
			status := v1alpha1.CheckStatus{StartTime: stamp(began), DueTime: stamp(began.Add(5 * time.Minute))}
			check := healthCheck(healthParams{CompareOldPods: true})
			for i := range fresh { // a batch each
				counts.add(podHealthInput{Now: testNow, Check: check, Status: status, Pods: fresh[i : i+1]})
			}
			if test.age == 0 {
				test.age = 24 * time.Hour
			}
			got := counts.worse(testNow, pods("old-", test.old, test.oldBad, test.age, test.oldChange))
			if (test.want == "") != (got == "") || len(got) < len(test.want) || got[:len(test.want)] != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestWorseThanOldPods: the batch of a pod that failed reports that new pods are worse, once, and no pod fails because of it.
func TestWorseThanOldPods(t *testing.T) {
	began := testNow.Add(-time.Minute)
	health := &releaseHealth{worse: "restarts: 3", confirm: 20 * time.Second}
	for i, step := range []struct {
		batch      types.UID
		healthy    bool
		off        bool
		comparison string
		after      time.Duration
	}{
		{batch: "a", healthy: true, after: 4 * time.Minute},
		{batch: "a", off: true, after: 4 * time.Minute},
		{batch: "a", after: 20 * time.Second},
		{batch: "b", after: 20 * time.Second},
		{batch: "b", comparison: "restarts: 3", after: 4 * time.Minute},
		{batch: "b", comparison: "restarts: 3", after: 4 * time.Minute},
		{batch: "a", after: 4 * time.Minute},
	} {
		if step.comparison != "" {
			health.confirm = 0
		}
		p := workload.Pod{Name: "pod", UID: "pod", Created: began.Add(-time.Hour), Ready: true, ReadySince: began.Add(-time.Hour)}
		if !step.healthy {
			p.Restarts, p.EndedAt = 1, began.Add(30*time.Second)
		}
		in := podHealthInput{
			Now: testNow, Check: healthCheck(healthParams{CompareOldPods: !step.off}), Pods: []workload.Pod{p}, Status: v1alpha1.CheckStatus{
				Name: "ns/p/c", Phase: v1alpha1.CheckWatching, Background: true, StartTime: stamp(began), DueTime: stamp(began.Add(5 * time.Minute)),
			},
		}
		plan := decidePodHealth(in)
		if compares := !step.healthy && !step.off; compares != (plan.Failing != "") {
			t.Errorf("step %d: the pods that failed are %q", i, plan.Failing)
			continue
		}
		if plan.Failing != "" {
			in.Around = health.around(step.batch, in.Pods)
			plan = decidePodHealth(in)
		}
		if s := plan.Status; s.Comparison != step.comparison || s.Phase != v1alpha1.CheckWatching || s.Reason != "" || len(s.FailedPods) != 0 ||
			plan.After != step.after {
			t.Errorf("step %d, again after %s: %+v", i, plan.After, s)
		}
		in.Status, in.Around = plan.Status, nil
		if again := decidePodHealth(in); step.comparison != "" && again.Failing != "" {
			t.Errorf("step %d: it compares again", i)
		}
	}
}
