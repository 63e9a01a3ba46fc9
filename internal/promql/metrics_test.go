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

package promql

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestServerMetric(t *testing.T) {
	const s = `k8s_ns="shop",k8s_pod=~"web-[0-9]+|web-a-[b]{5}"`
	gc := func(factor, of, action string) string {
		return factor + ` * avg(sum by (k8s_pod) (rate(jvm_gc_pause_seconds_` + of + `{action="end of ` + action + ` GC",` + s +
			`}[2m])) or 0 * count by (k8s_pod) (jvm_memory_used_bytes{` + s + `}))`
	}
	want := map[string]string{
		"cpu_util": `100 * avg(sum by (k8s_pod) (rate(container_cpu_usage_seconds_total{container!="",` + s + `}[2m])))`,
		"mem_util": `100 * avg(sum by (k8s_pod) (container_memory_working_set_bytes{container!="",` + s +
			`} and on (k8s_pod, container) (container_spec_memory_limit_bytes{container!="",` + s +
			`} > 0)) / sum by (k8s_pod) (container_spec_memory_limit_bytes{container!="",` + s + `} > 0))`,
		"load_load1":  `avg(avg_over_time(system_load_average_1m{` + s + `}[1m]))`,
		"load_load5":  `avg(avg_over_time(system_load_average_1m{` + s + `}[5m]))`,
		"load_load15": `avg(avg_over_time(system_load_average_1m{` + s + `}[15m]))`,
		"fgc_count":   gc("60", "count", "major"), "fgc_time": gc("60000", "sum", "major"),
		"ygc_count": gc("60", "count", "minor"), "ygc_time": gc("60000", "sum", "minor"),
	}
	v := Variables{Namespace: "shop", Range: "2m", PodLabel: "k8s_pod", NamespaceLabel: "k8s_ns"}
	for name := range serverMetrics {
		q, needs, err := ServerMetric(name, v, []string{"web-a-[b]{5}", "web-[0-9]+"})
		if err != nil || needs == "" {
			t.Fatalf("%s: %q, %v", name, needs, err)
		}
		// The order of the matchers is the parser's.
		if diff := cmp.Diff(sorted(want[name]), sorted(q.Text)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(serverMetrics))); diff != "" {
		t.Errorf("names -want +got:\n%s", diff)
	}
}

// sorted returns a query with the matchers of each selector in the order of the alphabet.
func sorted(query string) string {
	var out strings.Builder
	for part := range strings.SplitAfterSeq(query, "{") {
		if of, rest, ok := strings.Cut(part, "}"); ok && strings.Contains(of, "=") && strings.Contains(of, ",") {
			matchers := strings.Split(of, ",")
			slices.Sort(matchers)
			part = strings.Join(matchers, ",") + "}" + rest
		}
		out.WriteString(part)
	}
	return out.String()
}

// TestServerMetricIsBounded: no pods select no series, and a label or a name cannot end a selector.
func TestServerMetricIsBounded(t *testing.T) {
	v := Variables{Namespace: "shop", Range: "2m", PodLabel: "pod", NamespaceLabel: "namespace"}
	if q, _, err := ServerMetric("load_load1", v, nil); err != nil || !strings.Contains(q.Text, `pod=~"-"`) {
		t.Errorf("without pods: %+v, %v", q, err)
	}
	hostile := v
	hostile.PodLabel = `pod) (up) or (up`
	if q, _, err := ServerMetric("cpu_util", hostile, []string{"web"}); err == nil {
		t.Errorf("a label that ends a clause: %s", q.Text)
	}
	if _, _, err := ServerMetric("cpu_util", v, []string{"("}); err == nil {
		t.Error("a pattern that is none was accepted")
	}
	_, _, err := ServerMetric("up", v, []string{"web"})
	const unknown = "metric.name is not known: give one of cpu_util, fgc_count, fgc_time, load_load1, load_load15, load_load5, mem_util, " +
		"ygc_count, ygc_time"
	if err == nil || err.Error() != unknown {
		t.Errorf("an unknown metric: %v", err)
	}
}
