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
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// TestReplay decides about past comparisons as the operator decided about them.
func TestReplay(t *testing.T) {
	usual := exported{requests: 600, errors: 1, latency: 0.2}
	bad, slow := usual, usual
	bad.errors, slow.latency = 24, 0.4
	for name, fresh := range map[string]exported{"healthy": usual, "errors": bad, "slow": slow, "no traffic": {latency: 0.2}} {
		t.Run(name, func(t *testing.T) {
			server := newRanges(t, fleet(fresh, 5, usual))
			r := newComparing(t, server, 5, errorShare(), slowness())
			batch, err := podsOfBatch(t.Context(), r.checks.view, r.s.Batch)
			if err != nil {
				t.Fatal(err)
			}
			e, _, err := EndpointFor(t.Context(), r.checks.view, v1alpha1.EndpointPrometheus, "prom", true, "ns")
			if err != nil {
				t.Fatal(err)
			}
			r.run(20 * time.Minute)
			want, took := r.check(), r.clock.Now().Sub(r.began)
			clock := clocktesting.NewFakePassiveClock(r.began.Add(time.Hour))
			past := Past{
				Check:   policy.Find(r.s.Policies, "operator", r.s.Selected, want.Name),
				Subject: r.s, Endpoint: e, Began: r.began, Batch: batch, Released: batch, N: 1, Before: "v1",
			}
			for _, name := range want.OldPods {
				past.Old = append(past.Old, workload.Pod{Name: name, Ready: true})
			}
			replay := NewReplay(endpoint.NewClients(r.api, clock, endpoint.Guarded(anywhere)), clock, "operator")
			got, at := replay.Decide(t.Context(), past)
			if got.Phase != want.Phase || got.Reason != want.Reason || got.Message != want.Message || !slices.Equal(got.Samples, want.Samples) {
				t.Errorf("got %s %s %q, want %s %s %q", got.Phase, got.Reason, got.Message, want.Phase, want.Reason, want.Message)
			}
			if diff := at.Sub(r.began) - took; diff.Abs() > resultsEvery {
				t.Errorf("decided after %s, the operator after %s", at.Sub(r.began), took)
			}
			for _, pod := range past.Old {
				pod.ReadySince = r.began.Add(-time.Hour)
				past.Former = append(past.Former, pod)
			}
			past.Subject.Release.Status.StartTimeUnix = r.began.Unix()
			past.Check.Compare.Baseline, past.Check.Compare.Metrics = v1alpha1.BaselinePreRelease, []v1alpha1.CompareMetric{slowness()}
			got, _ = replay.Decide(t.Context(), past)
			if !strings.Contains(strings.Join(got.Samples, "; "), " in 5 old ones in the 5 minutes before the release: ") {
				t.Errorf("against the time before the release: %s %v", got.Phase, got.Samples)
			}
			past.Check.Compare.Baseline = v1alpha1.BaselineAuto
			past.Old, past.Former, past.N = nil, nil, 2
			for passed, phase := range map[bool]v1alpha1.CheckPhase{false: v1alpha1.CheckInconclusive, true: v1alpha1.CheckSkipped} {
				past.Passed = passed
				if got, _ := replay.Decide(t.Context(), past); got.Phase != phase {
					t.Errorf("an earlier batch passed: %t: %s", passed, got.Phase)
				}
			}
			past.N, past.Passed = 1, false
			past.Check.Compare.Baseline = v1alpha1.BaselineOldPods
			if got, _ := replay.Decide(t.Context(), past); got.Phase != v1alpha1.CheckInconclusive || got.Reason != v1alpha1.ReasonNoOldPods {
				t.Errorf("without old pods: %s %s", got.Phase, got.Reason)
			}
		})
	}
}
