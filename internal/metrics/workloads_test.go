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

package metrics

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

func TestWorkloads(t *testing.T) {
	kinds := []string{"Deployment", "DaemonSet"}
	counted := func() (map[Of]int, error) {
		return map[Of]int{{"Deployment", "shop"}: 2, {"Deployment", "quiet"}: 0, {"DaemonSet", "shop"}: 1, {"DaemonSet", "quiet"}: 4}, nil
	}
	nothing := func() (map[Of]int, error) { return map[Of]int{}, nil }
	unknown := func() (map[Of]int, error) { return nil, errors.New("no cache") }
	for name, test := range map[string]struct {
		count       CountWorkloads
		byNamespace bool
		want        map[string]float64
	}{
		"by namespace": {counted, true, map[string]float64{
			"Deployment shop": 2, "Deployment quiet": 0, "DaemonSet shop": 1, "DaemonSet quiet": 4,
		}},
		"by namespace, nothing enrolled": {nothing, true, map[string]float64{}},
		"by namespace, not known":        {unknown, true, map[string]float64{}},
		"together":                       {counted, false, map[string]float64{"Deployment": 2, "DaemonSet": 5}},
		"together, nothing enrolled":     {nothing, false, map[string]float64{"Deployment": 0, "DaemonSet": 0}},
		"together, not known":            {unknown, false, map[string]float64{"Deployment": math.Inf(1), "DaemonSet": math.Inf(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewPedanticRegistry()
			shown := newWorkloads("altershield_shown_workloads", "that are shown", kinds, test.count, test.byNamespace)
			if err := registry.Register(shown); err != nil {
				t.Fatal(err)
			}
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]float64{}
			for _, f := range families {
				for _, m := range f.GetMetric() {
					of := map[string]string{}
					for _, l := range m.GetLabel() {
						of[l.GetName()] = l.GetValue()
					}
					if _, named := of[NamespaceLabel]; named != test.byNamespace || len(of) > 2 {
						t.Errorf("the labels %v", of)
					}
					key := strings.TrimSpace(of["kind"] + " " + of[NamespaceLabel])
					got[key] = m.GetGauge().GetValue()
					if math.IsNaN(got[key]) {
						got[key] = math.Inf(1) // comparable, unlike NaN
					}
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestWorkloadsAgain: a second manager of the process replaces the function; with
// other labels it is refused.
func TestWorkloadsAgain(t *testing.T) {
	shown := func(n int, byNamespace bool) *workloads {
		count := func() (map[Of]int, error) { return map[Of]int{{"Deployment", "shop"}: n}, nil }
		return newWorkloads("altershield_shown_workloads", "that are shown", []string{"Deployment"}, count, byNamespace)
	}
	registry := prometheus.NewRegistry()
	for n := range 2 {
		if err := registerWorkloads(registry, shown(n, true)); err != nil {
			t.Fatal(err)
		}
	}
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetMetric()[0].GetGauge().GetValue() != 1 {
		t.Errorf("%v, %v, want the count of the second", families, err)
	}
	if err := registerWorkloads(registry, shown(2, false)); err == nil {
		t.Error("one metric with two sets of labels")
	}
}
