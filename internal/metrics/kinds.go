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
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// ofKinds have series for each kind of workload.
var ofKinds = []interface {
	DeletePartialMatch(labels prometheus.Labels) int
}{
	releases, overrides, leftWhileBlocked, verdictsCorrected, rollbacks, evictions, undos, rollbacksLimited, dryRuns, holdStarts, holdEnds,
	admissions, releaseSeconds, blockSeconds,
}

// End removes the series of a kind of workload that is no longer declared.
func End(kind string) {
	for _, of := range ofKinds {
		of.DeletePartialMatch(prometheus.Labels{"kind": kind})
	}
}

// Condition is a type of condition of ChangeKinds with a status.
type Condition struct{ Type, Status string }

// CountConditions counts ChangeKinds by their conditions.
type CountConditions func() (map[Condition]int, error)

// changeKinds counts ChangeKinds whenever the metrics are read.
type changeKinds struct {
	desc  *prometheus.Desc
	count atomic.Pointer[CountConditions]
}

var declarations = &changeKinds{desc: prometheus.NewDesc("altershield_changekinds",
	"ChangeKinds, by condition (Accepted, Served, Authorized, Intercepted or Ready) and its status: True, False or Unknown.",
	[]string{"condition", "status"}, nil)}

// ChangeKinds sets the function that counts the ChangeKinds. The last manager of a process sets it.
func ChangeKinds(count CountConditions) { declarations.count.Store(&count) }

// Describe implements prometheus.Collector.
func (c *changeKinds) Describe(descs chan<- *prometheus.Desc) { descs <- c.desc }

// Collect implements prometheus.Collector. If ChangeKinds cannot be counted, there is no series.
func (c *changeKinds) Collect(collected chan<- prometheus.Metric) {
	count := c.count.Load()
	if count == nil {
		return
	}
	counted, _ := (*count)()
	for of, n := range counted {
		collected <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n), of.Type, of.Status)
	}
}
