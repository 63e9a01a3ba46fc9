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
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/promql"
	"github.com/traas-stack/altershield-operator/internal/rules"
)

// comparing returns a policy with a check of type compare.
func comparing(c v1alpha1.CompareCheck) v1alpha1.DefensePolicy {
	return made("ns", "p", 0, func(p *v1alpha1.DefensePolicy) { p.Spec.Checks[0] = v1alpha1.PolicyCheck{Name: "a", Compare: &c} })
}

// TestPresets: presets are metrics after those of the user, and Auto is left.
func TestPresets(t *testing.T) {
	own := v1alpha1.CompareMetric{Name: "own", Numerator: "a", Denominator: "b"}
	for name, tc := range map[string]struct {
		of    v1alpha1.CompareCheck
		names string
		left  []v1alpha1.ComparePreset
		count int
	}{
		"metrics only": {v1alpha1.CompareCheck{Metrics: []v1alpha1.CompareMetric{own}}, "own", nil, 1},
		"presets": {
			v1alpha1.CompareCheck{Presets: []v1alpha1.ComparePreset{v1alpha1.PresetCPU, v1alpha1.PresetJVMGC}}, "cpu jvm-gc", nil, 2,
		},
		"both": {
			v1alpha1.CompareCheck{Presets: []v1alpha1.ComparePreset{v1alpha1.PresetOTelErrors}, Metrics: []v1alpha1.CompareMetric{own}},
			"own otel-errors", nil, 2,
		},
		"Auto": {
			v1alpha1.CompareCheck{Presets: []v1alpha1.ComparePreset{v1alpha1.PresetAuto, v1alpha1.PresetMemory}}, "memory",
			[]v1alpha1.ComparePreset{v1alpha1.PresetAuto}, 3,
		},
		"a preset of a later version": {
			v1alpha1.CompareCheck{Presets: []v1alpha1.ComparePreset{"nginx-errors"}}, "", []v1alpha1.ComparePreset{"nginx-errors"}, 0,
		},
	} {
		p := comparing(tc.of)
		got := checksOf(&p, &p.Spec, 1)[0].Compare
		var names []string
		for i := range got.Metrics {
			names = append(names, got.Metrics[i].Name)
		}
		if strings.Join(names, " ") != tc.names || !cmp.Equal(got.Presets, tc.left) || MetricCount(got) != tc.count {
			t.Errorf("%s: %v, left %v, %d metrics", name, names, got.Presets, MetricCount(got))
		}
		if again := p.Spec.Checks[0].Compare; !equality.Semantic.DeepEqual(*again, tc.of) {
			t.Errorf("%s: the policy has changed to %+v", name, again)
		}
	}
}

// TestPresetsAreAccepted: each preset is a metric that a user may write, in each namespace, and reads only the namespace of its pods.
func TestPresetsAreAccepted(t *testing.T) {
	v := promql.Variables{Namespace: "shop", Pods: []string{"web-0"}, Range: "1m", PodLabel: "k8s_pod_name", NamespaceLabel: "k8s_ns"}
	for name := range presets {
		m, _ := preset(name)
		if m.Name != string(name) || (m.Query == "") == (m.Numerator == "") || (m.Numerator == "") != (m.Denominator == "") ||
			m.Query != "" && m.MinChange.Sign() <= 0 {
			t.Errorf("%s: %+v", name, m)
		}
		p := comparing(v1alpha1.CompareCheck{Metrics: []v1alpha1.CompareMetric{m}})
		if problem := Accepted(&p, operator); problem != "" {
			t.Errorf("%s: %s", name, problem)
		}
		for _, query := range []string{m.Query, m.Numerator, m.Denominator, Discovery()} {
			if query == "" {
				continue
			}
			for _, only := range []string{"", "shop"} {
				q, err := promql.Resolve(query, v, only)
				if err != nil {
					t.Fatalf("%s: %s: %v", name, query, err)
				}
				if selectors, limited := strings.Count(q.Text, "k8s_pod_name=~"), strings.Count(q.Text, `k8s_ns="shop"`); selectors == 0 ||
					only == "" && limited != selectors || strings.Contains(q.Text, "$") {
					t.Errorf("%s: %s", name, q.Text)
				}
			}
		}
	}
}

// TestPresetNames: a preset that is not known, and a metric with the name of a preset, are refused.
func TestPresetNames(t *testing.T) {
	named := func(name string) []v1alpha1.CompareMetric {
		return []v1alpha1.CompareMetric{{Name: "own", Numerator: "a", Denominator: "b"}, {Name: name, Numerator: "a", Denominator: "b"}}
	}
	for name, tc := range map[string]struct {
		presets []v1alpha1.ComparePreset
		metric  string
		problem string
	}{
		"another name":           {[]v1alpha1.ComparePreset{v1alpha1.PresetCPU}, "spring-errors", ""},
		"the same name":          {[]v1alpha1.ComparePreset{v1alpha1.PresetCPU}, "cpu", "metrics[1].name: cpu is the name of a preset"},
		"a name that Auto finds": {[]v1alpha1.ComparePreset{v1alpha1.PresetAuto}, "spring-errors", "metrics[1].name: spring-errors is the name"},
		"a name beside Auto":     {[]v1alpha1.ComparePreset{v1alpha1.PresetAuto}, "cpu", ""},
		"a later version":        {[]v1alpha1.ComparePreset{v1alpha1.PresetAuto, "nginx-errors"}, "a", "presets[1]: nginx-errors is not known"},
	} {
		p := comparing(v1alpha1.CompareCheck{Presets: tc.presets, Metrics: named(tc.metric)})
		got := Accepted(&p, operator)
		if (got == "") != (tc.problem == "") || tc.problem != "" && !strings.HasPrefix(got, "spec.checks[0].compare."+tc.problem) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestDiscovered: the first exporter with data gives errors and latency. Requests that pods send do not count.
func TestDiscovered(t *testing.T) {
	series := func(name string, labels ...string) rules.Sample {
		s := rules.Sample{Labels: map[string]string{"__name__": name}, Value: 1}
		for i := 0; i < len(labels); i += 2 {
			s.Labels[labels[i]] = labels[i+1]
		}
		return s
	}
	http, rpc, old := series("http_server_request_duration_seconds_count"), series("rpc_server_call_duration_seconds_count"),
		series("rpc_server_duration_milliseconds_count")
	istio, sent := series("istio_requests_total", "reporter", "destination"), series("istio_requests_total", "reporter", "source")
	linkerd, outbound := series("response_total", "direction", "inbound"), series("response_total", "direction", "outbound")
	spring := series("http_server_requests_seconds_count")
	for _, tc := range []struct {
		answer []rules.Sample
		want   string
	}{
		{[]rules.Sample{spring, linkerd, istio, old, rpc, http}, "otel-errors otel-latency"},
		{[]rules.Sample{spring, linkerd, istio, rpc}, "otel-rpc-errors otel-rpc-latency"},
		{[]rules.Sample{spring, linkerd, istio, old}, "otel-rpc-errors otel-rpc-latency"},
		{[]rules.Sample{spring, linkerd, istio}, "istio-errors istio-latency"},
		{[]rules.Sample{spring, linkerd, sent}, "linkerd-errors linkerd-latency"},
		{[]rules.Sample{sent, outbound, spring}, "spring-errors spring-latency"},
		{[]rules.Sample{sent, outbound, series("response_total"), series("up")}, ""},
		{nil, ""},
	} {
		metrics, looked := Discovered(tc.answer)
		var names []string
		for i := range metrics {
			names = append(names, metrics[i].Name)
		}
		if got := strings.Join(names, " "); got != tc.want || (looked == "") != (tc.want != "") {
			t.Errorf("%v: %q, looked for %q, want %q", tc.answer, got, looked, tc.want)
		}
	}
	const all = "OpenTelemetry (HTTP), OpenTelemetry (gRPC), Istio, Linkerd, Spring"
	if _, looked := Discovered(nil); looked != all {
		t.Errorf("looked for %s", looked)
	}
}

// TestBaselineAccepted: a share has no time before the release to be compared with.
func TestBaselineAccepted(t *testing.T) {
	share := []v1alpha1.CompareMetric{{Name: "errors", Numerator: "a", Denominator: "b"}}
	for name, tc := range map[string]struct {
		of       v1alpha1.CompareCheck
		accepted bool
	}{
		"shares": {v1alpha1.CompareCheck{Metrics: share, Baseline: v1alpha1.BaselinePreRelease}, false},
		"a preset": {v1alpha1.CompareCheck{
			Presets: []v1alpha1.ComparePreset{v1alpha1.PresetOTelErrors}, Baseline: v1alpha1.BaselinePreRelease,
		}, false},
		"shares and Auto":  {v1alpha1.CompareCheck{Metrics: share, Baseline: v1alpha1.BaselineAuto}, true},
		"without baseline": {v1alpha1.CompareCheck{Metrics: share}, true},
		"a share beside a value": {v1alpha1.CompareCheck{
			Metrics: share, Presets: []v1alpha1.ComparePreset{v1alpha1.PresetCPU}, Baseline: v1alpha1.BaselinePreRelease,
		}, false},
		"a value": {v1alpha1.CompareCheck{
			Presets: []v1alpha1.ComparePreset{v1alpha1.PresetCPU}, Baseline: v1alpha1.BaselinePreRelease,
		}, true},
		"found values": {v1alpha1.CompareCheck{
			Presets: []v1alpha1.ComparePreset{v1alpha1.PresetAuto}, Baseline: v1alpha1.BaselinePreRelease,
		}, true},
	} {
		if problem := baselineAccepted(&tc.of); (problem == "") != tc.accepted {
			t.Errorf("%s: %q", name, problem)
		}
	}
}
