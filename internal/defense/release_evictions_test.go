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
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/hold"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// TestMayEvict: a wave is read live before it is evicted, and not evicted while a pod of the release has failed.
func TestMayEvict(t *testing.T) {
	wave := []workload.Place{{Pod: workload.Pod{Name: "old"}}}
	result := func(verdict string) []v1alpha1.ChangePod {
		b := v1alpha1.ChangePod{Spec: v1alpha1.ChangePodSpec{PodInfos: []v1alpha1.PodInfo{{Pod: "new", UID: "new"}}}}
		b.Status.PodResults = []v1alpha1.PodResult{{PodInfo: b.Spec.PodInfos[0], Verdict: verdict}}
		return []v1alpha1.ChangePod{b}
	}
	refused := func(d *release) { d.EvictAfter = d.Now.Add(time.Minute) }
	failed := func(d *release) { d.Batches = result("unpass") }
	rolls := func(d *release) { d.Workload.Pace.OnDelete = false }
	for name, c := range map[string]struct {
		change       func(*release)
		plan         hold.Plan
		needs, evict bool
	}{
		"from a cache":                   {nil, hold.Plan{Evict: wave, NeedsLive: true}, true, true},
		"live":                           {nil, hold.Plan{Evict: wave, Set: &workload.Hold{}}, false, true},
		"the end, from a cache":          {nil, hold.Plan{Done: true, NeedsLive: true}, true, false},
		"a verdict passed":               {func(d *release) { d.Batches = result("pass") }, hold.Plan{Evict: wave}, false, true},
		"a pod failed in a batch":        {failed, hold.Plan{Evict: wave, NeedsLive: true}, false, false},
		"a pod failed":                   {func(d *release) { d.failed = make([]v1alpha1.PodResult, 1) }, hold.Plan{Evict: wave}, false, false},
		"an eviction was refused":        {refused, hold.Plan{Evict: wave, NeedsLive: true}, false, false},
		"a refusal is long ago":          {func(d *release) { d.EvictAfter = d.Now.Add(-time.Minute) }, hold.Plan{Evict: wave}, false, true},
		"its strategy was applied again": {rolls, hold.Plan{Evict: wave, Set: &workload.Hold{}}, false, false},
		"refused, and the hold is over":  {refused, hold.Plan{Done: true, NeedsLive: true}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := &release{ReleaseInput: ReleaseInput{Now: time.Unix(1_700_000_000, 0)}, status: &v1alpha1.ChangeWorkloadStatus{}}
			stays := workload.Pace{ByEviction: true, OnDelete: true, MaxUnavailable: "1"}
			d.Workload = &workload.Workload{Pace: stays, Hold: &workload.Hold{Set: stays}}
			if c.change != nil {
				c.change(d)
			}
			plan := mayEvict(d, c.plan)
			if d.plan.NeedsPlaces != c.needs || d.plan.NeedsBatches != c.needs || len(plan.Evict) > 0 != c.evict || !c.evict && plan.Set != nil {
				t.Errorf("needs a live view: %t; %+v", d.plan.NeedsPlaces, plan)
			}
		})
	}
}

// TestDescribeNumbers: if a user set maxSurge past admission, the end of the hold names the numbers that it gives back.
func TestDescribeNumbers(t *testing.T) {
	w := &workload.Workload{Hold: &workload.Hold{Pace: workload.Pace{ByEviction: true, MaxUnavailable: "1"}}}
	for is, c := range map[workload.Pace]bool{
		{ByEviction: true, OnDelete: true, MaxUnavailable: "1"}:                false,
		{ByEviction: true, OnDelete: true, MaxUnavailable: "2"}:                false,
		{ByEviction: true, OnDelete: true, MaxUnavailable: "0", MaxSurge: "1"}: false,
		{ByEviction: true, OnDelete: true, MaxUnavailable: "1", MaxSurge: "1"}: true,
		{ByEviction: true, OnDelete: true, MaxUnavailable: "0"}:                true,
	} {
		if w.Pace = is; strings.Contains(describeNumbers(w), "they are 1 and 0 again") != c {
			t.Errorf("%+v: %q", is, describeNumbers(w))
		}
	}
}

// TestDescribeDown bounds the nodes that a message names.
func TestDescribeDown(t *testing.T) {
	for want, nodes := range map[string][]string{
		"":                       nil,
		"; not Ready: node a, b": {"b", "a"},
		"; not Ready: node a, b, c, d, e and 2 more": {"g", "f", "e", "d", "c", "b", "a"},
	} {
		if got := describeDown(nodes); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
