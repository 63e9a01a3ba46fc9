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
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// BenchmarkSubmitted measures the time from a finished pod, as a watch shows it, to the call that submits its batch. Each half
// second a Deployment of 10 pods is released, so that 20 pods a second come up.
func BenchmarkSubmitted(b *testing.B) {
	t := newBed(b, true)
	t.set(b, settings.NameTimeouts, v1alpha1.TypeTimeouts, "settle=0")
	var took []time.Duration
	for b.Loop() {
		t.server.ClearJournal()
		ns := t.namespace(b, true)
		watch, err := t.api.Watch(b.Context(), &corev1.PodList{}, client.InNamespace(ns))
		must(b, err)
		finished, deadline, next := map[string]time.Time{}, time.After(patience), time.NewTicker(time.Second/2)
		for created := 0; len(finished) < deployments*podsEach; {
			select {
			case <-next.C:
				if created < deployments {
					t.create(b, ns, created, podsEach)
					created++
				}
			case e := <-watch.ResultChan():
				pod, ok := e.Object.(*corev1.Pod)
				if !ok {
					b.Fatalf("the watch ended: %v", e.Object)
				}
				if _, seen := finished[pod.Name]; !seen && isReady(pod) {
					finished[pod.Name] = time.Now()
				}
			case <-deadline:
				b.Fatalf("%d of %d pods are Ready", len(finished), deployments*podsEach)
			}
		}
		next.Stop()
		watch.Stop()
		t.awaitSuccess(b, ns, deployments)
		for _, e := range t.server.Journal().Requests(altershield.ActionStartBatch).Accepted() {
			var r altershield.StartBatchRequest
			must(b, e.Decode(&r))
			for _, pod := range r.EffectiveTargetLocations {
				if at, ok := finished[pod]; ok {
					took = append(took, e.Time.Sub(at))
					delete(finished, pod) // a repeated call does not count
				}
			}
		}
		if len(finished) > 0 {
			b.Fatalf("%d finished pods were not submitted", len(finished))
		}
	}
	reportQuantiles(b, took)
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// reportQuantiles reports the median and the 99th percentile.
func reportQuantiles(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	at := func(q float64) float64 {
		return float64(took[min(int(q*float64(len(took))), len(took)-1)].Microseconds()) / 1000
	}
	b.ReportMetric(at(0.5), "ms-p50")
	b.ReportMetric(at(0.99), "ms-p99")
}

// BenchmarkFailover measures the time from the end of the leader, by a signal or killed, to the success of a release that is
// created right after it. Two replicas run.
func BenchmarkFailover(b *testing.B) {
	t := newBed(b, false, "--leader-elect=true")
	t.set(b, settings.NameTimeouts, v1alpha1.TypeTimeouts, "settle=0")
	leader := t.manager
	standby := t.replica(b, "replica", "--leader-elect=true")
	must(b, standby.Start(b.Context()))
	for _, end := range []string{"stopped", "killed"} {
		b.Run(end, func(b *testing.B) {
			for b.Loop() {
				ns := t.namespace(b, true)
				if end == "killed" {
					must(b, leader.Kill())
				} else {
					must(b, leader.Stop())
				}
				began := time.Now()
				t.create(b, ns, 0, 1)
				t.awaitSuccess(b, ns, 1)
				b.ReportMetric(time.Since(began).Seconds(), "s-decision")
				must(b, leader.Start(b.Context()))
				leader, standby = standby, leader
			}
		})
	}
}
