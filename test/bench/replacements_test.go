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
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/world"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

var (
	replacements = flag.Int("replacements", 10_000, "number of replacements with 1 workload")
	monthShare   = flag.Float64("month-share", 0.0014, "share of a month that is simulated with 500 workloads")
)

const (
	// podsReplaced is the number of pods of each workload. Each pod is replaced 10 times an hour, one after the other.
	podsReplaced = 2
	replaceEvery = time.Hour / 10 / podsReplaced
	month        = 30 * 24 * time.Hour
)

// parts is the number of parts of a run. The first and the last part are compared.
const parts = 10

// BenchmarkReplacements replaces pods repeatedly after a release succeeded, in process and in simulated time. It reports the
// first and the last tenth: time and writes per replacement, remaining objects, and memory, with the simulated cluster.
func BenchmarkReplacements(b *testing.B) {
	for _, mode := range []struct {
		name      string
		workloads int
		// each is the number of replacements of each workload.
		each int
	}{
		{"1 workload", 1, *replacements},
		{"500 workloads", 500, int(*monthShare * float64(month) / float64(replaceEvery))},
	} {
		b.Run(mode.name, func(b *testing.B) {
			for b.Loop() {
				world.Bench(b, world.Story{Name: mode.name, Options: world.Options{Forgets: true}, Run: func(w *world.World) {
					enrol(w, mode.workloads)
					var f [parts]figures
					for i := range f {
						f[i] = replace(w, mode.workloads, mode.each/parts)
						b.Logf("%.0f us, %.0f us of CPU; %.2f MB of heap, %.0f MB resident; %d objects",
							f[i].real, f[i].cpu, f[i].heap, f[i].rss, f[i].objects)
					}
					f[0].report(b, "first")
					f[parts-1].report(b, "last")
					b.ReportMetric(float64(mode.each/parts*parts*mode.workloads), "replacements")
				}})
			}
		})
	}
}

// enrol creates defended workloads, and waits until their releases succeeded.
func enrol(w *world.World, workloads int) {
	for i := range workloads {
		d := wrappers.MakeDeployment(world.Namespace, fmt.Sprintf("web%03d", i)).Replicas(podsReplaced).Image("good").
			Container(func(c *corev1.Container) { c.ReadinessProbe = &corev1.Probe{} }).Obj()
		if err := w.Create(d); err != nil {
			w.Failf("%v", err)
		}
	}
	w.Until("all releases succeeded", func() bool {
		succeeded := 0
		for _, c := range world.List[*v1alpha1.ChangeWorkload](w, "ChangeWorkload") {
			if c.Status.Status == v1alpha1.ChangeWorkloadSuccess {
				succeeded++
			}
		}
		return succeeded == workloads
	})
	w.Rest()
}

// figures are the measurements of a part of a run.
type figures struct {
	// real and cpu are microseconds, and writes is the number of writes, per replacement.
	real, cpu, writes float64
	// heap and rss are the memory at the end, in MB.
	heap, rss float64
	// objects is the number of objects at the end, and largest the size of the largest one, in bytes.
	objects, largest int
}

func (f *figures) report(b *testing.B, which string) {
	b.Helper()
	b.ReportMetric(f.real, "us-"+which)
	b.ReportMetric(f.cpu, "cpu-us-"+which)
	b.ReportMetric(f.writes, "writes-"+which)
	b.ReportMetric(float64(f.objects), "objects-"+which)
	b.ReportMetric(float64(f.largest)/1024, "KiB-largest-"+which)
	b.ReportMetric(f.heap, "MB-heap-"+which)
	b.ReportMetric(f.rss, "MB-rss-"+which)
}

// replace replaces the older pod of each workload, as often as times.
func replace(w *world.World, workloads, times int) (f figures) {
	writes, began, cpu := sum(w.Written()), now(), used()
	for range times {
		seen := map[string]bool{}
		for _, pod := range w.Pods() {
			if of := pod.OwnerReferences[0].Name; !seen[of] {
				seen[of] = true
				if err := w.Delete(pod); err != nil {
					w.Failf("%v", err)
				}
			}
		}
		w.For(replaceEvery)
	}
	count := float64(times * workloads)
	f.real = float64((now() - began).Microseconds()) / count
	f.cpu = float64((used() - cpu).Microseconds()) / count
	f.writes = float64(sum(w.Written())-writes) / count
	f.objects, f.largest = left(w)
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f.heap = float64(m.HeapAlloc) / (1 << 20)
	var err error
	if f.rss, _, err = processOf(os.Getpid()); err != nil {
		w.Failf("%v", err)
	}
	return f
}

// left returns the number of objects of the operator, and the size of the largest one in bytes.
func left(w *world.World) (objects, largest int) {
	for _, kind := range []string{"ChangeWorkload", "ChangePod", "ControllerRevision"} {
		for _, o := range world.List[client.Object](w, kind) {
			data, err := json.Marshal(o)
			if err != nil {
				w.Failf("%v", err)
			}
			objects, largest = objects+1, max(largest, len(data))
		}
	}
	return objects, largest
}

func sum(counts map[string]int) (n int) {
	for count := range maps.Values(counts) {
		n += count
	}
	return n
}

// now returns the real time, outside of the simulated world.
func now() time.Duration {
	var t syscall.Timeval
	if err := syscall.Gettimeofday(&t); err != nil {
		panic(err)
	}
	return durationOf(t)
}

// used returns the CPU time of the process.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return durationOf(u.Utime) + durationOf(u.Stime)
}

func durationOf(t syscall.Timeval) time.Duration {
	return time.Duration(t.Sec)*time.Second + time.Duration(t.Usec)*time.Microsecond
}
