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
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/binaries"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/promql"
	"github.com/traas-stack/altershield-operator/internal/slots"
	"github.com/traas-stack/altershield-operator/test/monitoring"
)

// TestRealSamples asks a Prometheus the queries of the samples for HTTP services, about pods that serve well and badly.
func TestRealSamples(t *testing.T) {
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
	targets, err := monitoring.NewTargets(monitoring.TargetsOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := targets.Close(); err != nil {
			t.Error(err)
		}
	})
	samples := map[string]monitoring.Family{
		"prometheus-otel": monitoring.OpenTelemetry, "prometheus-istio": monitoring.Istio, "prometheus-spring": monitoring.Spring,
		"prometheus": monitoring.OpenTelemetry,
	}
	// Pods of a kind serve for five minutes. want has the results of their checks: whether there is data, and whether they fail.
	type result struct{ data, fails bool }
	good, bad, none := result{data: true}, result{data: true, fails: true}, result{}
	kinds := []struct {
		name string
		monitoring.Traffic
		want map[string]result
		// behind is the age of the newest sample.
		behind time.Duration
	}{
		{"good", monitoring.Traffic{Rate: 50, Latency: 10 * time.Millisecond}, map[string]result{"errors": good, "latency": good}, 0},
		{"failing", monitoring.Traffic{Rate: 50, Errors: .1, Latency: time.Millisecond}, map[string]result{"errors": bad, "latency": good}, 0},
		{"slow", monitoring.Traffic{Rate: 50, Latency: 2 * time.Second}, map[string]result{"errors": good, "latency": bad}, 0},
		{"idle", monitoring.Traffic{}, map[string]result{"errors": none, "latency": none}, 0},
		{"behind", monitoring.Traffic{Rate: 50, Errors: .1}, map[string]result{"errors": none, "latency": none}, time.Hour},
	}
	now := time.Now()
	for sample, family := range samples {
		for _, kind := range kinds {
			end := now.Add(-kind.behind)
			past := []monitoring.Period{{Start: end.Add(-5 * time.Minute), End: end, Step: 15 * time.Second, Traffic: kind.Traffic}}
			// Old pods do not count.
			for pod, past := range map[string][]monitoring.Period{"web-1": past, "web-0": {{
				Start: past[0].Start, End: end, Step: past[0].Step, Traffic: monitoring.Traffic{Rate: 500, Errors: .02, Latency: time.Millisecond},
			}}} {
				o := monitoring.TargetOptions{Family: family, Past: past, Ended: kind.behind > 0}
				if _, err := targets.Add(sample+"-"+kind.name, pod, o); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	p, err := monitoring.StartPrometheus(t.Context(), monitoring.PrometheusOptions{Programs: dir, Targets: targets})
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
	r := newQuerying(t, &prometheus{Server: &httptest.Server{URL: p.URL()}})
	var e v1alpha1.DefenseEndpoint
	if err := r.api.Get(t.Context(), types.NamespacedName{Namespace: "operator", Name: "prom"}, &e); err != nil {
		t.Fatal(err)
	}
	for sample := range samples {
		data, err := os.ReadFile(filepath.Join(root, "config", "samples", "policies", sample+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var of v1alpha1.DefensePolicy
		if err := yaml.UnmarshalStrict(data, &of); err != nil {
			t.Fatal(err)
		}
		of.Spec.WorkloadSelector = nil
		for _, kind := range kinds {
			for name, want := range kind.want {
				t.Run(strings.Join([]string{sample, kind.name, name}, "/"), func(t *testing.T) {
					check := policy.Find([]v1alpha1.DefensePolicy{of}, "operator", policy.Workload{Namespace: of.Namespace},
						of.Namespace+"/"+of.Name+"/"+name)
					if check == nil && sample == "prometheus" {
						t.Skip("it has one check")
					} else if check == nil {
						t.Fatal("the sample has no such check")
					}
					ns := sample + "-" + kind.name
					v := promql.Example()
					v.Namespace, v.Pods = ns, []string{"web-1"}
					q, err := promql.Resolve(check.Prometheus.Query, v, ns)
					if err != nil {
						t.Fatal(err)
					}
					work := slots.Work{Namespace: ns, Release: "web"}
					answer := r.checks.query.evaluate(t.Context(), check, &e, work, &question{Query: q}, now)
					_, some := measurable(check.Prometheus.Empty, answer.Samples)
					if got := (result{some, answer.Crosses}); answer.Reason != "" || got != want {
						t.Errorf("%s: %+v, %v, %s, want %+v", q.Text, got, answer.Samples, answer.Message, want)
					}
				})
			}
		}
	}
}
