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

package controllers

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// TestCount: an event is counted by the metric of what it tells, and by that alone.
// A way back is a user's, and so is no rollback of the operator's.
func TestCount(t *testing.T) {
	series := []string{
		"altershield_ways_back_total", "altershield_rollbacks_total", "altershield_rollbacks_braked_total",
		"altershield_observed_total", "altershield_defense_lowered_total",
	}
	for _, test := range []struct {
		event defense.Event
		want  string
	}{
		{defense.Event{Reason: v1alpha1.EventWentBack}, "altershield_ways_back_total"},
		{defense.Event{Reason: v1alpha1.ReasonBrake}, "altershield_rollbacks_braked_total"},
		{defense.Event{Reason: v1alpha1.EventWouldRollBack}, "altershield_observed_total"},
		{defense.Event{Reason: v1alpha1.EventDefenseLowered, Settings: []string{"blocking"}}, "altershield_defense_lowered_total"},
		// It was counted where it was made.
		{defense.Event{Reason: "RolledBack"}, ""},
	} {
		before := counted(t)
		count(test.event)
		after := counted(t)
		for _, name := range series {
			want := 0.0
			if name == test.want {
				want = 1
			}
			if got := after[name] - before[name]; got != want {
				t.Errorf("%s raises %s by %v, want %v", test.event.Reason, name, got, want)
			}
		}
	}
}

// counted are the counters of the process, summed over their labels.
func counted(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			sums[f.GetName()] += m.GetCounter().GetValue()
		}
	}
	return sums
}
