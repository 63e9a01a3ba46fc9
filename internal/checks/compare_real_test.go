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
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/binaries"
	"github.com/traas-stack/altershield-operator/test/monitoring"
)

// TestRealComparisons compares pods whose metrics a Prometheus has, as Auto finds them.
func TestRealComparisons(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Prometheus")
	}
	root, err := binaries.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := monitoring.Programs(t.Context(), root, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	usual := monitoring.Traffic{Rate: 10, Errors: 0.002, Latency: 50 * time.Millisecond}
	with := func(change func(*monitoring.Traffic)) monitoring.Traffic {
		other := usual
		change(&other)
		return other
	}
	bad := with(func(of *monitoring.Traffic) { of.Errors = 0.04 })
	for _, tc := range []struct {
		name string
		// fresh and old is the traffic of new and old pods during the check. Old pods had the usual traffic before.
		fresh, old monitoring.Traffic
		// bursts: in each third minute one pod of each side fails much.
		bursts  bool
		phase   v1alpha1.CheckPhase
		message string
		within  time.Duration
	}{
		{"healthy", usual, usual, false, v1alpha1.CheckPassed, "latency: 0.05 in 2 new pods against 0.05 in 8 old ones: +0 %", 9 * time.Minute},
		{"4 of 100 requests fail", bad, usual, false, v1alpha1.CheckFailed, "errors: 4 % of ", 4 * time.Minute},
		{"twice as slow", with(func(of *monitoring.Traffic) { of.Latency *= 2 }), usual, false, v1alpha1.CheckFailed,
			"latency: 0.1 in 2 new pods against 0.05 in 8 old ones: +100 %", 11 * time.Minute},
		{"all requests fail, with little traffic", monitoring.Traffic{Rate: 0.2, Errors: 1, Latency: time.Millisecond},
			monitoring.Traffic{Rate: 0.2, Latency: time.Millisecond}, false, v1alpha1.CheckFailed, "far more than any old pod", 6 * time.Minute},
		{"a dependency fails for both", bad, bad, false, v1alpha1.CheckPassed, "errors: 4 % of ", 9 * time.Minute},
		{"bursts of errors", usual, usual, true, v1alpha1.CheckPassed, "errors: ", 13 * time.Minute},
		{"three times as slow as before the release", with(func(of *monitoring.Traffic) { of.Latency *= 3 }), monitoring.Traffic{}, false,
			v1alpha1.CheckFailed, "latency: 0.15 in 2 new pods against 0.05 in 8 old ones in the 5 minutes before the release: +200 %",
			11 * time.Minute},
		{"no traffic", monitoring.Traffic{}, monitoring.Traffic{}, false, v1alpha1.CheckNoData, "no requests at the same time", 13 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			targets, err := monitoring.NewTargets(monitoring.TargetsOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := targets.Close(); err != nil {
					t.Error(err)
				}
			})
			end := time.Now()
			began := end.Add(-15 * time.Minute).Truncate(time.Second)
			add := func(pod string, from time.Time, traffic monitoring.Traffic, burst bool) {
				past := []monitoring.Period{{Start: from, End: began, Step: 30 * time.Second, Traffic: usual}}
				if !from.Before(began) {
					past = nil
				}
				for at := began; at.Add(time.Minute).Before(end); at = at.Add(time.Minute) {
					now := traffic
					if burst && len(past)%3 == 0 {
						now.Errors = 0.03 // 18 requests
					}
					past = append(past, monitoring.Period{Start: at, End: at.Add(time.Minute), Step: 15 * time.Second, Traffic: now})
				}
				if _, err := targets.Add("ns", pod, monitoring.TargetOptions{Family: monitoring.OpenTelemetry, Past: past}); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 2 {
				add(fmt.Sprint("web-", i+1), began, tc.fresh, tc.bursts && i == 0)
			}
			for i := range 8 {
				add(fmt.Sprint("old-", i), began.Add(-5*time.Hour), tc.old, tc.bursts && i == 0)
			}
			p, err := monitoring.StartPrometheus(t.Context(), monitoring.PrometheusOptions{
				Programs: dir, Targets: targets, Interval: 5 * time.Second, // the past is long
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			})
			if err := p.Scraped(t.Context()); err != nil {
				t.Fatal(err)
			}
			r := newComparing(t, &ranges{Server: &httptest.Server{URL: p.URL()}}, 8)
			r.s.Policies[0].Spec.Checks[0].Compare.Presets = []v1alpha1.ComparePreset{v1alpha1.PresetAuto}
			r.began = began
			r.clock.SetTime(began)
			*r.check().StartTime = metav1.NewTime(began)
			if strings.HasSuffix(tc.name, "before the release") {
				r.keeps(v1alpha1.BaselineAuto, 0, 4*time.Hour, oldNames(8)...)
			}
			r.run(14 * time.Minute)
			r.ends(tc.phase, r.check().Reason, tc.message)
			if took := r.clock.Now().Sub(began); took > tc.within {
				t.Errorf("it took %s", took)
			}
			t.Log(r.check().Message)
		})
	}
}
