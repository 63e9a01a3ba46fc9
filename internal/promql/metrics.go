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
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
)

// serverMetric is a metric that AlterShield Server asks for: the mean of the pods of a workload.
type serverMetric struct {
	// query has the matchers of neither the namespace nor the pods. needs names its metrics.
	query, needs string
}

const (
	cAdvisor   = " of cAdvisor, in the kubelet"
	micrometer = " of Micrometer, in the JVMs of the pods"
)

// collections returns the metric of the collections of garbage that end with an action, for each minute. A JVM has no series
// before its first collection, so a pod with any JVM counts as 0.
func collections(factor int, of, action string) serverMetric {
	return serverMetric{
		fmt.Sprintf(`%d * avg(sum by ($podLabel) (rate(jvm_gc_pause_seconds_%s{action="%s"}[$range]))`+
			` or 0 * count by ($podLabel) (jvm_memory_used_bytes))`, factor, of, action),
		"jvm_gc_pause_seconds_" + of + " and jvm_memory_used_bytes" + micrometer,
	}
}

// load returns the metric of the mean load of some minutes.
func load(minutes int) serverMetric {
	return serverMetric{
		fmt.Sprintf("avg(avg_over_time(system_load_average_1m[%dm]))", minutes), "system_load_average_1m" + micrometer,
	}
}

// serverMetrics are the metrics by the names of the server's plug-in.
var serverMetrics = map[string]serverMetric{
	"cpu_util": {
		`100 * avg(sum by ($podLabel) (rate(container_cpu_usage_seconds_total{container!=""}[$range])))`,
		"container_cpu_usage_seconds_total" + cAdvisor,
	},
	"mem_util": {
		`100 * avg(sum by ($podLabel) (container_memory_working_set_bytes{container!=""}` +
			` and on ($podLabel, container) (container_spec_memory_limit_bytes{container!=""} > 0))` +
			` / sum by ($podLabel) (container_spec_memory_limit_bytes{container!=""} > 0))`,
		"container_memory_working_set_bytes and container_spec_memory_limit_bytes" + cAdvisor + ", and containers with a memory limit",
	},
	"load_load1": load(1), "load_load5": load(5), "load_load15": load(15),
	"fgc_count": collections(60, "count", "end of major GC"), "fgc_time": collections(60_000, "sum", "end of major GC"),
	"ygc_count": collections(60, "count", "end of minor GC"), "ygc_time": collections(60_000, "sum", "end of minor GC"),
}

// ServerMetric returns the query for a metric of the pods whose names match one of some patterns, in the namespace of the variables.
// needs names what the query needs to have a result.
func ServerMetric(name string, v Variables, pods []string) (q *Query, needs string, err error) {
	metric, known := serverMetrics[name]
	if !known {
		return nil, "", fmt.Errorf("metric.name is not known: give one of %s", strings.Join(slices.Sorted(maps.Keys(serverMetrics)), ", "))
	}
	text, err := replace(metric.query, v)
	expr, unparsed := parse(text)
	ofPods, unmatched := labels.NewMatcher(labels.MatchRegexp, v.PodLabel, cmp.Or(strings.Join(Sample(pods, MaxPods), "|"), noPod))
	if err := cmp.Or(err, unparsed, unmatched); err != nil {
		return nil, "", fmt.Errorf("metric %s: %w", name, err)
	}
	for _, s := range selectors(expr) {
		s.LabelMatchers = append(s.LabelMatchers, ofPods)
	}
	q, err = limited(expr, v.NamespaceLabel, v.Namespace)
	return q, metric.needs, err
}
