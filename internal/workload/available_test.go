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

package workload

import (
	"testing"
	"time"
)

// TestAvailableSince: if a workload does not report since when it is available, that is computed
// from its pods, of which some may be missing.
func TestAvailableSince(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	ready := func(ago ...time.Duration) (pods []Pod) {
		for _, d := range ago {
			pods = append(pods, Pod{Ready: true, Created: now.Add(-time.Hour), ReadySince: now.Add(-d)})
		}
		return pods
	}
	minutes := func(n int) time.Duration { return time.Duration(n) * time.Minute }
	for name, test := range map[string]struct {
		of   Workload
		pods []Pod
		// want is how long ago; -1 for not available.
		want time.Duration
	}{
		"reported":                  {Workload{AvailableSince: now.Add(-minutes(7)), Replicas: 3}, nil, minutes(7)},
		"reported as not available": {Workload{Replicas: 1}, ready(minutes(5)), -1},
		"by its pods":               {Workload{ByPods: true, Replicas: 3}, ready(minutes(5), minutes(9), minutes(2)), minutes(2)},
		"by its pods, of which one may be missing": {
			Workload{ByPods: true, Replicas: 3, MayLack: 1}, ready(minutes(5), minutes(9), minutes(2)), minutes(5),
		},
		"by its pods, of which one may be missing and is": {
			Workload{ByPods: true, Replicas: 3, MayLack: 1}, ready(minutes(5), minutes(9)), minutes(5),
		},
		"by its pods, of which one is missing": {Workload{ByPods: true, Replicas: 3}, ready(minutes(5), minutes(9)), -1},
		"by its pods, of which one is unreachable": {
			Workload{ByPods: true, Replicas: 3}, append(ready(minutes(5), minutes(9)), Pod{Lost: true}), minutes(5),
		},
		"by its pods, of which one may be missing and is unreachable": {
			Workload{ByPods: true, Replicas: 3, MayLack: 1}, append(ready(minutes(5)), Pod{Lost: true}), -1,
		},
		"by its pods, of which all are unreachable": {Workload{ByPods: true, Replicas: 1}, []Pod{{Lost: true}}, -1},
		"a single pod may not be missing":           {Workload{ByPods: true, Replicas: 1, MayLack: 1}, nil, -1},
		"by a single pod":                           {Workload{ByPods: true, Replicas: 1, MayLack: 1}, ready(minutes(5)), minutes(5)},
		"by none":                                   {Workload{ByPods: true, MayLack: 1}, nil, -1},
		"a pod is available only after minReadySeconds": {
			Workload{ByPods: true, Replicas: 1, MinReady: minutes(2)}, ready(minutes(5)), minutes(3),
		},
		"a pod is not available before minReadySeconds": {Workload{ByPods: true, Replicas: 1, MinReady: minutes(6)}, ready(minutes(5)), -1},
		"a terminating pod does not count": {
			Workload{ByPods: true, Replicas: 1},
			[]Pod{{Ready: true, Terminating: true, Created: now.Add(-time.Hour), ReadySince: now.Add(-minutes(5))}}, -1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := test.of.SinceAvailable(test.pods, now)
			if want := now.Add(-test.want); test.want < 0 && !got.IsZero() || test.want >= 0 && !got.Equal(want) {
				t.Errorf("available since %s ago, want %s", now.Sub(got), test.want)
			}
		})
	}
}
