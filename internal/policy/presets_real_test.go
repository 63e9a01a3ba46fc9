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

package policy

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/binaries"
	"github.com/traas-stack/altershield-operator/internal/promql"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/test/monitoring"
)

// history is the time in which counters have grown from 0 to the values of an exposition.
const history = 5 * time.Minute

// expose writes an exposition as that of a pod, with its past.
func expose(t *testing.T, w *strings.Builder, file, namespace, pod string, now time.Time) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "exporters", file+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		series, number, found := strings.Cut(strings.TrimSpace(line), "} ")
		if !found || strings.HasPrefix(series, "#") {
			continue
		}
		value, err := strconv.ParseFloat(number, 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for after := time.Duration(0); after <= history; after += 15 * time.Second {
			v := value
			if !strings.Contains(series, "memory") { // a counter
				v *= float64(after) / float64(history)
			}
			fmt.Fprintf(w, "%s,namespace=%q,pod=%q} %g %d\n", series, namespace, pod, v, now.Add(after-history).UnixMilli())
		}
	}
}

// TestRealPresets evaluates presets about what exporters expose, with a real Prometheus: each query has one value for each pod.
func TestRealPresets(t *testing.T) {
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
	// want has the values of presets by their exposition: of a share its failed and all requests.
	type result map[v1alpha1.ComparePreset][]float64
	const some = -1 // the recorded latency of a real server
	want := map[string]result{
		"cadvisor": {
			v1alpha1.PresetCPU: {(2.77478078 + 0.030099063) / history.Seconds()}, v1alpha1.PresetMemory: {2 * 282624},
			v1alpha1.PresetThrottling: {546. / (549 + 4)},
		},
		"micrometer": {
			v1alpha1.PresetSpringErrors: {10, 100}, v1alpha1.PresetSpringLatency: {0.1}, v1alpha1.PresetJVMGC: {0.1},
		},
		"istio": {
			v1alpha1.PresetIstioErrors: {10, 100}, v1alpha1.PresetIstioLatency: {10}, v1alpha1.PresetIstioP99: {10 + 15*0.98},
		},
		"linkerd":     {v1alpha1.PresetLinkerdErrors: {10, 100}, v1alpha1.PresetLinkerdLatency: {10}},
		"linkerd-old": {v1alpha1.PresetLinkerdErrors: {10, 100}, v1alpha1.PresetLinkerdLatency: {10}},
		"opentelemetry": {
			v1alpha1.PresetOTelErrors: {1, 4}, v1alpha1.PresetOTelLatency: {some},
			v1alpha1.PresetOTelRPCErrors: {1, 3}, v1alpha1.PresetOTelRPCLatency: {some},
		},
		"opentelemetry-rpc-old": {v1alpha1.PresetOTelRPCErrors: {1, 3}, v1alpha1.PresetOTelRPCLatency: {some}},
	}
	auto := map[string]v1alpha1.ComparePreset{
		"cadvisor": "", "micrometer": v1alpha1.PresetSpringErrors, "istio": v1alpha1.PresetIstioErrors, "linkerd": v1alpha1.PresetLinkerdErrors,
		"linkerd-old": v1alpha1.PresetLinkerdErrors, "opentelemetry": v1alpha1.PresetOTelErrors,
		"opentelemetry-rpc-old": v1alpha1.PresetOTelRPCErrors,
	}
	now := time.Now().Truncate(time.Second)
	var text strings.Builder
	tested := map[v1alpha1.ComparePreset]bool{}
	for file, of := range want {
		// The pod of another workload, and the pod of the same name in another namespace, do not count.
		for _, pod := range []string{"shop/" + file + "-0", "shop/" + file + "-1", "shop/" + file + "-10", "bank/" + file + "-0"} {
			namespace, name, _ := strings.Cut(pod, "/")
			expose(t, &text, file, namespace, name, now)
		}
		for name := range of {
			tested[name] = true
		}
	}
	for name := range presets {
		if !tested[name] {
			t.Errorf("%s is tested with no exposition", name)
		}
	}
	exporter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprint(w, text.String())
	}))
	t.Cleanup(exporter.Close)
	p, err := monitoring.StartPrometheus(t.Context(), monitoring.PrometheusOptions{Programs: dir, Jobs: []monitoring.Job{
		{Name: "pods", Address: strings.TrimPrefix(exporter.URL, "http://"), HonorLabels: true},
	}})
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
	for file, of := range want {
		v := promql.Example()
		v.Namespace, v.Pods, v.Range = "shop", []string{file + "-0", file + "-1"}, "1m"
		ask := func(query, only string) []rules.Sample {
			q, err := promql.Resolve(query, v, only)
			if err != nil {
				t.Fatal(err)
			}
			vector, err := p.Query(t.Context(), q.Text, now)
			if err != nil {
				t.Fatal(err)
			}
			var samples []rules.Sample
			for _, s := range vector {
				sample := rules.Sample{Labels: map[string]string{}, Value: float64(s.Value)}
				for name, value := range s.Metric {
					sample.Labels[string(name)] = string(value)
				}
				samples = append(samples, sample)
			}
			return samples
		}
		metrics, _ := Discovered(ask(Discovery(), ""))
		if names := slices.Collect(func(yield func(string) bool) {
			for i := range metrics {
				if !yield(metrics[i].Name) {
					return
				}
			}
		}); len(names) > 0 != (auto[file] != "") || len(names) > 0 && names[0] != string(auto[file]) {
			t.Errorf("%s: Auto finds %v", file, names)
		}
		for name, values := range of {
			m, _ := preset(name)
			queries := []string{m.Query}
			if m.Query == "" {
				queries = []string{m.Numerator, m.Denominator}
			}
			for i, query := range queries {
				for _, only := range []string{"", "shop"} {
					got := map[string]float64{}
					for _, s := range ask(query, only) {
						if len(s.Labels) != 1 || values[i] == some && s.Value <= 0 || values[i] != some && math.Abs(s.Value/values[i]-1) > 1e-6 {
							t.Errorf("%s of %s: %v %g, want %g", name, file, s.Labels, s.Value, values[i])
						}
						got[s.Labels["pod"]] = s.Value
					}
					if pods := slices.Sorted(maps.Keys(got)); !slices.Equal(pods, v.Pods) {
						t.Errorf("%s of %s: values of %v: %s", name, file, pods, query)
					}
				}
			}
		}
	}
}
