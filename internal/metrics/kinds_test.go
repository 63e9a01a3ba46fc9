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
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// seriesOf returns the names of the metrics with a series of a kind.
func seriesOf(t *testing.T, kind string) (names []string) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "kind" && l.GetValue() == kind {
					names = append(names, f.GetName())
				}
			}
		}
	}
	return names
}

// TestEnd: no series of a kind stays that is no longer declared. A kind of the same name in another group keeps its series.
func TestEnd(t *testing.T) {
	for _, kind := range []string{"Route.example.com", "Route.other.org"} {
		Begin(kind)
		ReleaseEntered(kind, "Running")
		ReleaseEnded(kind, "Success", time.Minute)
		BlockEnded(kind, time.Minute)
		Eviction(kind, EvictionDone)
	}
	before := len(seriesOf(t, "Route.other.org"))
	End("Route.example.com")
	if left := seriesOf(t, "Route.example.com"); len(left) > 0 {
		t.Errorf("series stay: %s", left)
	}
	if after := len(seriesOf(t, "Route.other.org")); after != before || before < 30 {
		t.Errorf("the other kind has %d of %d series", after, before)
	}
	End("Route.other.org")
}

// TestChangeKinds: the number of ChangeKinds is counted at each scrape, and missing while it is unknown.
func TestChangeKinds(t *testing.T) {
	counted, err := map[Condition]int{{"Ready", "False"}: 1}, error(nil)
	ChangeKinds(func() (map[Condition]int, error) { return counted, err })
	t.Cleanup(func() { declarations.count.Store(nil) })
	r := prometheus.NewRegistry()
	r.MustRegister(declarations)
	is := func(want ...float64) {
		t.Helper()
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []float64
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if l := m.GetLabel(); l[0].GetValue() != "Ready" || l[1].GetValue() != "False" {
					t.Error(l)
				}
				got = append(got, m.GetGauge().GetValue())
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	is(1)
	counted[Condition{"Ready", "False"}] = 0
	is(0)
	counted, err = nil, errors.New("the cache is not filled")
	is()
}
