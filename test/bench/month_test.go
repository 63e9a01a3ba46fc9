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

package bench

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/test/world"
)

var monthDays = flag.Int("month-days", 1, "number of days of BenchmarkMonth; 30 takes hours")

// BenchmarkMonth simulates 500 workloads in process, for a month with -month-days=30: each day releases each workload once and
// replaces each of its pods once. It reports the first and the last day: writes per release, remaining objects, and memory, with
// the simulated cluster.
func BenchmarkMonth(b *testing.B) {
	const workloads = 500
	for b.Loop() {
		story := world.Story{Name: "a month", Options: world.Options{Forgets: true}, Run: func(w *world.World) {
			enrol(w, workloads)
			var first, last figures
			for day := range *monthDays {
				before := sum(w.Written())
				for i := range workloads {
					patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"day":"%d"}}}}}`, day)
					if err := w.Patch(fmt.Sprintf("web%03d", i), patch); err != nil {
						w.Failf("%v", err)
					}
				}
				w.For(12 * time.Hour)
				released := sum(w.Written()) - before
				last = replace(w, workloads, podsReplaced)
				last.writes = float64(released)/workloads + last.writes*podsReplaced
				w.For(12*time.Hour - podsReplaced*replaceEvery)
				if day == 0 {
					first = last
				}
				b.Logf("day %d: %.1f writes per workload, %d objects, %.1f MB of heap", day+1, last.writes, last.objects, last.heap)
			}
			first.report(b, "first")
			last.report(b, "last")
		}}
		world.Bench(b, story)
	}
}
