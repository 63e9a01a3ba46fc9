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

// NamespaceLabel is the label with the namespace of a workload. Prometheus uses the label
// "namespace" for the namespace that it scrapes.
const NamespaceLabel = "workload_namespace"

// Of is the group that a workload is counted in: its kind and namespace.
type Of struct{ Kind, Namespace string }

// CountWorkloads counts workloads. Each kind has a number in each enrolled namespace.
type CountWorkloads func() (map[Of]int, error)

// workloads counts the workloads of each kind in each namespace, or in all, whenever the
// metrics are read. So a namespace that leaves the defense has no series.
type workloads struct {
	desc        *prometheus.Desc
	byNamespace bool
	kinds       []string
	count       atomic.Pointer[CountWorkloads]
}

var _ prometheus.Collector = &workloads{}

func newWorkloads(name, which string, kinds []string, count CountWorkloads, byNamespace bool) *workloads {
	labels := []string{"kind"}
	if byNamespace {
		labels = append(labels, NamespaceLabel)
	}
	w := &workloads{byNamespace: byNamespace, kinds: kinds, desc: prometheus.NewDesc(
		name, "Workloads "+which+" now, by kind and, unless --metrics-by-namespace=false, by enrolled namespace.", labels, nil,
	)}
	w.count.Store(&count)
	return w
}

// Describe implements prometheus.Collector.
func (w *workloads) Describe(descs chan<- *prometheus.Desc) { descs <- w.desc }

// Collect implements prometheus.Collector. If workloads cannot be counted, their number is
// NaN instead of 0, and other metrics can still be read.
func (w *workloads) Collect(collected chan<- prometheus.Metric) {
	counted, err := (*w.count.Load())()
	together := map[string]float64{}
	for _, kind := range w.kinds {
		together[kind] = 0
		if err != nil {
			together[kind] = math.NaN()
		}
	}
	for of, n := range counted {
		if w.byNamespace {
			collected <- prometheus.MustNewConstMetric(w.desc, prometheus.GaugeValue, float64(n), of.Kind, of.Namespace)
		}
		together[of.Kind] += float64(n)
	}
	if w.byNamespace {
		return
	}
	for kind, n := range together {
		collected <- prometheus.MustNewConstMetric(w.desc, prometheus.GaugeValue, n, kind)
	}
}

// BlockedWorkloads sets the function that counts the blocked workloads. The last manager of a
// process sets it; all managers have to use the same labels.
func BlockedWorkloads(kinds []string, count CountWorkloads, byNamespace bool) error {
	w := newWorkloads("altershield_blocked_workloads", "whose releases are blocked", kinds, count, byNamespace)
	return registerWorkloads(metrics.Registry, w)
}

// HeldWorkloads sets the function that counts the workloads whose rollouts wait for their
// verdicts, as BlockedWorkloads does.
func HeldWorkloads(kinds []string, count CountWorkloads, byNamespace bool) error {
	w := newWorkloads("altershield_held_workloads", "whose rollouts wait for their verdicts", kinds, count, byNamespace)
	return registerWorkloads(metrics.Registry, w)
}

func registerWorkloads(r prometheus.Registerer, w *workloads) error {
	err := r.Register(w)
	var registered prometheus.AlreadyRegisteredError
	if !errors.As(err, &registered) {
		return err
	}
	if before, ok := registered.ExistingCollector.(*workloads); ok {
		before.count.Store(w.count.Load())
	}
	return nil
}
