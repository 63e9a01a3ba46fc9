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
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rules"
)

// perPod returns the sum of a metric for each pod, with more matchers. A policy of the operator's namespace is not limited to a namespace,
// so the matcher of the namespace is written.
func perPod(metric string, more ...string) string {
	return "sum by ($podLabel) (" + ofPods(metric, more...) + ")"
}

func ofPods(metric string, more ...string) string {
	return metric + "{" + strings.Join(append(more, `$namespaceLabel="$namespace"`, `$podLabel=~"$pods"`), ",") + "}"
}

// either returns the sum of the series of a metric for each pod that match one of two matchers.
func either(metric, a, b string) string {
	return "sum by ($podLabel) (" + ofPods(metric, a) + " or " + ofPods(metric, b) + ")"
}

// rate returns the rate of a counter for each pod.
func rate(counter string, more ...string) string {
	return "sum by ($podLabel) (rate(" + ofPods(counter, more...) + "[$range]))"
}

// average returns the average of a histogram or summary for each pod.
func average(name string, more ...string) string {
	return rate(name+"_sum", more...) + " / " + rate(name+"_count", more...)
}

// share returns a share of requests, which has the defaults of shares.
func share(failed, all string) v1alpha1.CompareMetric {
	return v1alpha1.CompareMetric{Numerator: failed, Denominator: all}
}

// value returns a value with the least change that matters.
func value(query, minChange string) v1alpha1.CompareMetric {
	return v1alpha1.CompareMetric{Query: query, MinChange: ptr.To(resource.MustParse(minChange))}
}

// doubled lets only an increase to twice the old value fail: the value is coarse.
func doubled(m v1alpha1.CompareMetric) v1alpha1.CompareMetric {
	m.MinChangePercent = ptr.To[int32](100)
	return m
}

// Names and matchers of exporters.
const (
	container   = `container!=""` // the series without a container is the cgroup of the pod
	otelHTTP    = "http_server_request_duration_seconds"
	otelRPC     = "rpc_server_call_duration_seconds"
	otelRPCOld  = "rpc_server_duration_milliseconds" // semantic conventions before 1.39
	istioCount  = "istio_requests_total"
	istio       = "istio_request_duration_milliseconds"
	destination = `reporter="destination"`
	linkerd     = "response_total"
	inbound     = `direction="inbound"`
	noAdmin     = `target_addr!~".+:4191"` // the probes and scrapes of the proxy itself
	spring      = "http_server_requests_seconds"
	noActuator  = `uri!~"/actuator.*"`
	// otelServerErrors are the gRPC status codes that are errors of a server. Not all versions set error_type, or the older number.
	otelServerErrors = `rpc_response_status_code=~"UNKNOWN|DEADLINE_EXCEEDED|UNIMPLEMENTED|INTERNAL|UNAVAILABLE|DATA_LOSS"`
)

// presets are the metrics by their names. Auto has neither memory nor CPU: a pod that was just started differs.
var presets = map[v1alpha1.ComparePreset]v1alpha1.CompareMetric{
	v1alpha1.PresetCPU:    value(rate("container_cpu_usage_seconds_total", container), "50m"),
	v1alpha1.PresetMemory: value(perPod("container_memory_working_set_bytes", container), "64Mi"),
	// Periods of a container are not independent as requests are, so it is a value.
	v1alpha1.PresetThrottling: value(rate("container_cpu_cfs_throttled_periods_total", container)+" / "+
		rate("container_cpu_cfs_periods_total", container), "100m"),
	v1alpha1.PresetIstioErrors:  share(perPod(istioCount, destination, `response_code=~"5.."`), perPod(istioCount, destination)),
	v1alpha1.PresetIstioLatency: value(average(istio, destination), "5"),
	v1alpha1.PresetIstioP99: doubled(value("histogram_quantile(0.99, sum by ($podLabel, le) (rate("+
		ofPods(istio+"_bucket", destination)+"[$range])))", "10")),
	v1alpha1.PresetSpringErrors:  share(perPod(spring+"_count", `status=~"5.."`, noActuator), perPod(spring+"_count", noActuator)),
	v1alpha1.PresetSpringLatency: value(average(spring, noActuator), "5m"),
	v1alpha1.PresetOTelErrors:    share(perPod(otelHTTP+"_count", `http_response_status_code=~"5.."`), perPod(otelHTTP+"_count")),
	v1alpha1.PresetOTelLatency:   value(average(otelHTTP), "5m"),
	v1alpha1.PresetOTelRPCErrors: share(
		either(otelRPC+"_count", `error_type!=""`, otelServerErrors)+" or "+
			either(otelRPCOld+"_count", `rpc_grpc_status_code=~"2|4|12|13|14|15"`, otelServerErrors),
		perPod(otelRPC+"_count")+" or "+perPod(otelRPCOld+"_count")),
	v1alpha1.PresetOTelRPCLatency: value(average(otelRPC)+" or "+average(otelRPCOld)+" / 1000", "5m"),
	v1alpha1.PresetLinkerdErrors:  share(perPod(linkerd, inbound, noAdmin, `classification="failure"`), perPod(linkerd, inbound, noAdmin)),
	v1alpha1.PresetLinkerdLatency: value(average("response_latency_ms", inbound, noAdmin), "5"),
	// A JVM has no series before its first collection.
	v1alpha1.PresetJVMGC: doubled(value(rate("jvm_gc_pause_seconds_sum")+" or 0 * "+perPod("jvm_memory_used_bytes"), "50m")),
}

// preset returns the metric of a preset.
func preset(name v1alpha1.ComparePreset) (v1alpha1.CompareMetric, bool) {
	m, known := presets[name]
	m.Name = string(name)
	return m, known
}

// withPresets returns the metrics of a check with those of its presets. It leaves the presets that are no metrics: Auto, and those of
// another version of the operator.
func withPresets(c *v1alpha1.CompareCheck) (metrics []v1alpha1.CompareMetric, left []v1alpha1.ComparePreset) {
	metrics = slices.Clone(c.Metrics)
	for _, name := range c.Presets {
		if m, known := preset(name); known {
			metrics = append(metrics, m)
		} else {
			left = append(left, name)
		}
	}
	return metrics, left
}

// family is an exporter of requests.
type family struct {
	// name in messages.
	name string
	// names of series that show that a pod has it, if their label has the value.
	names        []string
	label, value string
	// presets are those of its errors and its latency.
	presets []v1alpha1.ComparePreset
}

// families are what Auto looks for; the first one counts.
var families = []family{
	{
		name: "OpenTelemetry (HTTP)", names: []string{otelHTTP + "_count"},
		presets: []v1alpha1.ComparePreset{v1alpha1.PresetOTelErrors, v1alpha1.PresetOTelLatency},
	},
	{
		name: "OpenTelemetry (gRPC)", names: []string{otelRPC + "_count", otelRPCOld + "_count"},
		presets: []v1alpha1.ComparePreset{v1alpha1.PresetOTelRPCErrors, v1alpha1.PresetOTelRPCLatency},
	},
	{
		name: "Istio", names: []string{istioCount}, label: "reporter", value: "destination",
		presets: []v1alpha1.ComparePreset{v1alpha1.PresetIstioErrors, v1alpha1.PresetIstioLatency},
	},
	{
		name: "Linkerd", names: []string{linkerd}, label: "direction", value: "inbound",
		presets: []v1alpha1.ComparePreset{v1alpha1.PresetLinkerdErrors, v1alpha1.PresetLinkerdLatency},
	},
	{
		name: "Spring", names: []string{spring + "_count"},
		presets: []v1alpha1.ComparePreset{v1alpha1.PresetSpringErrors, v1alpha1.PresetSpringLatency},
	},
}

// IsAuto reports whether a check of type compare has the preset Auto.
func IsAuto(c *v1alpha1.CompareCheck) bool { return slices.Contains(c.Presets, v1alpha1.PresetAuto) }

// MetricCount returns the number of metrics of a check, of which Auto is two: another process counts the same before it asks.
func MetricCount(c *v1alpha1.CompareCheck) int {
	if IsAuto(c) {
		return len(c.Metrics) + len(families[0].presets)
	}
	return len(c.Metrics)
}

// Discovery is the query of Auto, about $pods: the names of series of all families, with the labels that decide.
func Discovery() string {
	var names []string
	for _, f := range families {
		names = append(names, f.names...)
	}
	return "group by (__name__, reporter, direction) (" + ofPods("", fmt.Sprintf("__name__=~%q", strings.Join(names, "|"))) + ")"
}

// Discovered returns the metrics of Auto by the answer to Discovery. If there is no exporter, looked names all that were looked for.
func Discovered(answer []rules.Sample) (metrics []v1alpha1.CompareMetric, looked string) {
	all := make([]string, 0, len(families))
	for _, f := range families {
		all = append(all, f.name)
		if !slices.ContainsFunc(answer, func(s rules.Sample) bool {
			return slices.Contains(f.names, s.Labels["__name__"]) && s.Labels[f.label] == f.value
		}) {
			continue
		}
		for _, name := range f.presets {
			m, _ := preset(name)
			metrics = append(metrics, m)
		}
		return metrics, ""
	}
	return nil, strings.Join(all, ", ")
}

// presetsAccepted returns the problem of the presets of a check of type compare; empty if there is none. A metric must not have the
// name of a preset that the check has, or may have.
func presetsAccepted(c *v1alpha1.CompareCheck) string {
	names := slices.Clone(c.Presets)
	for i, name := range c.Presets {
		if name == v1alpha1.PresetAuto {
			for _, f := range families {
				names = append(names, f.presets...)
			}
		} else if _, known := preset(name); !known {
			return fmt.Sprintf("presets[%d]: %s is not known to this version of the operator", i, name)
		}
	}
	for i := range c.Metrics {
		if slices.Contains(names, v1alpha1.ComparePreset(c.Metrics[i].Name)) {
			return fmt.Sprintf("metrics[%d].name: %s is the name of a preset of this check; choose another", i, c.Metrics[i].Name)
		}
	}
	return ""
}

// baselineAccepted returns the problem of the baseline of a check of type compare; empty if there is none.
func baselineAccepted(c *v1alpha1.CompareCheck) string {
	metrics, _ := withPresets(c)
	if values := ValuesOnly(c, slices.Clone(metrics)); len(values) < len(metrics) {
		return "baseline: PreRelease compares only values, and a share needs old pods at the same time; set Auto or OldPods, or leave out shares"
	}
	return ""
}

// ValuesOnly returns the metrics that a check can compare: only values with baseline PreRelease.
func ValuesOnly(c *v1alpha1.CompareCheck, metrics []v1alpha1.CompareMetric) []v1alpha1.CompareMetric {
	return slices.DeleteFunc(metrics, func(m v1alpha1.CompareMetric) bool {
		return c.Baseline == v1alpha1.BaselinePreRelease && m.Query == ""
	})
}
