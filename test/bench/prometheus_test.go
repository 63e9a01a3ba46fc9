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
	"context"
	"flag"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/monitoring"
)

var releases = flag.Int("releases", 200, "the number of releases that BenchmarkPrometheus and BenchmarkCompare verify at once")

// BenchmarkPrometheus verifies 200 releases of two pods at once, without checks and with a check of type prometheus that has the
// defaults. Each has a manager of its own. A server that answers at once plays Prometheus.
func BenchmarkPrometheus(b *testing.B) {
	for _, checked := range []bool{false, true} {
		name := "without checks"
		if checked {
			name = "with a check"
		}
		b.Run(name, func(b *testing.B) {
			t := newBed(b, false)
			t.set(b, settings.NameTimeouts, v1alpha1.TypeTimeouts, "settle=0")
			t.batches(b, "10")
			t.defaultPolicy(b, v1alpha1.ModeDisabled)
			var server *monitoring.Front
			if checked {
				server = t.measured(b)
			}
			for b.Loop() {
				ns := t.namespace(b, true)
				asked := 0
				if checked {
					t.lowValue(b, ns)
					asked = queries(server)
				}
				_, before := t.process(b)
				began := time.Now()
				t.release(b.Context(), b, ns, true, *releases, 2)
				took := time.Since(began)
				rss, cpu := t.process(b)
				b.ReportMetric(took.Seconds(), "s/release")
				b.ReportMetric(cpu-before, "cpu-s")
				b.ReportMetric(rss, "MB-rss")
				b.ReportMetric(t.peak(b), "MB-peak")
				if checked {
					each := float64(queries(server)-asked) / float64(*releases)
					b.ReportMetric(each, "queries/release")
					b.ReportMetric(each/took.Minutes(), "queries/release/min")
				}
				if found := t.checked(b, ns); found != checked {
					b.Fatalf("pods are checked: %t", found)
				}
			}
		})
	}
}

// queries counts the queries of checks, without those that ask whether the endpoint answers.
func queries(server *monitoring.Front) (n int) {
	for _, r := range server.Requests() {
		if strings.Contains(r.Form.Get("query"), "errors_total") {
			n++
		}
	}
	return n
}

// measured creates an endpoint, and returns its server.
func (t *bed) measured(b *testing.B) *monitoring.Front {
	b.Helper()
	addresses, err := controlplane.PodAddresses(b.Context())
	must(b, err)
	if len(addresses) == 0 {
		b.Skip("this machine has no other address than loopback")
	}
	server, err := monitoring.StartFront(monitoring.FrontOptions{Host: addresses[0].String()})
	must(b, err)
	b.Cleanup(func() { must(b, server.Close()) })
	server.Break(func(w http.ResponseWriter, _ *http.Request, _ <-chan struct{}) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"0"]}]}}`)
	})
	e := &v1alpha1.DefenseEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.ManagerNamespace, Name: "prometheus"}}
	e.Spec.Type, e.Spec.URL = v1alpha1.EndpointPrometheus, server.URL()
	// The default is 5 calls a second, and all releases ask at about the same time.
	e.Spec.Limits = &v1alpha1.EndpointLimits{QPS: 50, Concurrency: 16}
	must(b, t.api.Create(b.Context(), e))
	return server
}

// lowValue creates a policy with a check that passes, and waits until it is in force.
func (t *bed) lowValue(b *testing.B, namespace string) {
	b.Helper()
	p := &v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "few-errors"}}
	p.Spec.Checks = []v1alpha1.PolicyCheck{{Name: "errors", Prometheus: &v1alpha1.PrometheusCheck{
		EndpointRef: v1alpha1.EndpointReference{Name: "prometheus"},
		Query:       `sum(rate(errors_total{pod=~"$pods"}[$range]))`, FailWhen: "value > 0.05",
	}}}
	must(b, t.api.Create(b.Context(), p))
	must(b, wait.PollUntilContextTimeout(b.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := t.api.Get(ctx, client.ObjectKeyFromObject(p), p)
		return meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionAccepted), err
	}))
}
