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
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// NamespaceLabel is the label of a number for one namespace. Not "namespace": that is
// what a Prometheus in Kubernetes calls the namespace that it scrapes.
const NamespaceLabel = "workload_namespace"

// CountBlocked counts the workloads that are blocked, by namespace. Each namespace
// under defense has a number.
type CountBlocked func() (map[string]int, error)

// blockedWorkloads has a number for each namespace, or one for all, whenever the
// metrics are read. So a namespace that leaves the defense leaves no number behind.
type blockedWorkloads struct {
	desc        *prometheus.Desc
	byNamespace bool
	count       atomic.Pointer[CountBlocked]
}

var _ prometheus.Collector = &blockedWorkloads{}

func newBlockedWorkloads(count CountBlocked, byNamespace bool) *blockedWorkloads {
	var labels []string
	if byNamespace {
		labels = []string{NamespaceLabel}
	}
	b := &blockedWorkloads{byNamespace: byNamespace, desc: prometheus.NewDesc(
		"altershield_blocked_workloads", "Workloads whose releases are blocked now, by namespace under defense unless --metrics-by-namespace=false.", labels, nil,
	)}
	b.count.Store(&count)
	return b
}

// Describe implements prometheus.Collector.
func (b *blockedWorkloads) Describe(descs chan<- *prometheus.Desc) { descs <- b.desc }

// Collect implements prometheus.Collector. What cannot be counted is no number, and not
// 0; it does not keep the other metrics from being read.
func (b *blockedWorkloads) Collect(collected chan<- prometheus.Metric) {
	blocked, err := (*b.count.Load())()
	together := 0.0
	for namespace, n := range blocked {
		if b.byNamespace {
			collected <- prometheus.MustNewConstMetric(b.desc, prometheus.GaugeValue, float64(n), namespace)
		}
		together += float64(n)
	}
	if b.byNamespace {
		return
	}
	if err != nil {
		together = math.NaN()
	}
	collected <- prometheus.MustNewConstMetric(b.desc, prometheus.GaugeValue, together)
}

// BlockedWorkloads lets a function count the workloads that are blocked. Of several
// managers in one process the last one's counts; they have to agree on the labels.
func BlockedWorkloads(count CountBlocked, byNamespace bool) error {
	return registerBlocked(metrics.Registry, newBlockedWorkloads(count, byNamespace))
}

func registerBlocked(r prometheus.Registerer, b *blockedWorkloads) error {
	err := r.Register(b)
	var registered prometheus.AlreadyRegisteredError
	if !errors.As(err, &registered) {
		return err
	}
	if before, ok := registered.ExistingCollector.(*blockedWorkloads); ok {
		before.count.Store(b.count.Load())
	}
	return nil
}
