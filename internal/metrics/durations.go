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
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// notCounted says what a failover does to the histograms of the leader.
const notCounted = " An end during a change of the leader may not count; none counts twice."

var (
	releaseSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "altershield_release_duration_seconds",
		Help: "Time from the start of a release until its first end, in whole seconds, by the kind of the workload and the state: " +
			"Success, Suspend, Failed, Rollback or Canceled." + notCounted,
		Buckets: []float64{15, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 24 * 3600},
	}, []string{"kind", "state"})
	blockSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "altershield_block_duration_seconds",
		Help: "Time for which releases of a workload were blocked, in seconds, by the kind of the workload. " +
			"Opting out and deleting the workload end a block, too." + notCounted,
		Buckets: []float64{60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600},
	}, []string{"kind"})
)

// ReleaseEnded records the duration of a release that ended for the first time, after the write of
// that state.
func ReleaseEnded(kind, state string, took time.Duration) {
	releaseSeconds.WithLabelValues(kind, state).Observe(took.Seconds())
}

// BlockEnded records the duration of a block that ended.
func BlockEnded(kind string, took time.Duration) {
	blockSeconds.WithLabelValues(kind).Observe(max(took, 0).Seconds())
}
