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

package routers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/binaries"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/verify"
	"github.com/traas-stack/altershield-operator/test/monitoring"
)

// exposition has the metrics of a kubelet and of JVMs. Pods of a neighbour and of another namespace have much larger values.
func exposition(began time.Time) string {
	var out strings.Builder
	seconds := time.Since(began).Seconds()
	for _, pod := range []struct {
		namespace, name string
		factor          float64
	}{
		{"default", "sleep-7d8-b7k2x", 1}, {"default", "sleep-6f5-c9z4w", 3}, // the mean is 2
		{"default", "sleep-canary-7d8-b7k2x", 1000}, {"default", "other-7d8-b7k2x", 1000}, {"bank", "sleep-7d8-b7k2x", 1000},
	} {
		of := fmt.Sprintf("namespace=%q,pod=%q", pod.namespace, pod.name)
		container := of + `,container="app"`
		fmt.Fprintf(&out, "container_cpu_usage_seconds_total{%s} %g\n", container, 0.1*pod.factor*seconds)
		fmt.Fprintf(&out, "container_cpu_usage_seconds_total{%s,container=\"\"} %g\n", of, 0.7*pod.factor*seconds) // the cgroup of the pod
		fmt.Fprintf(&out, "container_memory_working_set_bytes{%s} %g\n", container, 100*pod.factor)
		fmt.Fprintf(&out, "container_spec_memory_limit_bytes{%s} 400\n", container)
		fmt.Fprintf(&out, "container_memory_working_set_bytes{%s,container=\"unlimited\"} 1e9\n", of)
		fmt.Fprintf(&out, "container_spec_memory_limit_bytes{%s,container=\"unlimited\"} 0\n", of)
		fmt.Fprintf(&out, "system_load_average_1m{%s} %g\n", of, pod.factor)
		fmt.Fprintf(&out, "jvm_memory_used_bytes{%s,area=\"heap\",id=\"a\"} 1\njvm_memory_used_bytes{%s,area=\"heap\",id=\"b\"} 1\n", of, of)
		fmt.Fprintf(&out, "jvm_gc_pause_seconds_count{%s,action=\"end of minor GC\"} %g\n", of, pod.factor*seconds)
		fmt.Fprintf(&out, "jvm_gc_pause_seconds_sum{%s,action=\"end of minor GC\"} %g\n", of, 0.01*pod.factor*seconds)
	}
	return out.String()
}

// TestRealMetrics plays the queries of a stock server's plug-in, over the wire, against a real Prometheus.
func TestRealMetrics(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Prometheus")
	}
	root, err := binaries.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := monitoring.Programs(t.Context(), root, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	kubelet := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = io.WriteString(w, exposition(began))
	}))
	t.Cleanup(kubelet.Close)
	prometheus, err := monitoring.StartPrometheus(t.Context(), monitoring.PrometheusOptions{
		Programs: dir, Jobs: []monitoring.Job{{Name: "kubelet", Address: kubelet.Listener.Addr().String(), HonorLabels: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := prometheus.Close(); err != nil {
			t.Error(err)
		}
	})
	f := newFixture(t, func(f *fixture) {
		c := newClient(t, interceptor.Funcs{}, checkedObjects(prometheus.URL())...)
		f.opts.Metrics = &verify.Metrics{
			View: viewOf(c), Clock: clock.RealClock{}, Endpoint: "prom",
			Clients: endpoint.NewClients(c, clock.RealClock{}, (&net.Dialer{}).DialContext),
		}
		f.opts.MetricsFrom = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	})
	address, _ := f.start(t)
	ask := func(metric string) (status int, answer metricAnswer) {
		now := time.Now()
		body := strings.NewReplacer("cpu_util", metric, "1699998200123", fmt.Sprint(now.Add(-30*time.Minute).UnixMilli()),
			"1700000000123", fmt.Sprint(now.UnixMilli()), "30000", "1000").Replace(metricQuery)
		resp, err := http.DefaultClient.Do(toAddress(t, queryOf(body, ""), "http://"+address))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || json.NewDecoder(bytes.NewReader(text)).Decode(&answer) != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return resp.StatusCode, answer
	}
	for metric, want := range map[string]float64{
		"cpu_util": 20, "mem_util": 50, "load_load1": 2, "load_load5": 2, "load_load15": 2, "fgc_count": 0, "fgc_time": 0,
		"ygc_count": 120, "ygc_time": 1200,
	} {
		var last metricAnswer
		if err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			var status int
			status, last = ask(metric)
			// The value of a rate is right up to the times of the scrapes.
			return status == http.StatusOK && len(last.Points) > 0 && want*0.9 <= last.Points[len(last.Points)-1].Value &&
				last.Points[len(last.Points)-1].Value <= want*1.1, nil
		}); err != nil {
			t.Errorf("%s: %+v, want %g", metric, last, want)
		}
	}
	if status, answer := ask("up"); status != http.StatusBadRequest {
		t.Errorf("another metric: %d %+v", status, answer)
	}
}

// checkedObjects are a Deployment whose release has an open order, and the endpoint of a Prometheus.
func checkedObjects(url string) []client.Object {
	const version = "c6c45d23c098bdf181853a85b60b5d74"
	owned := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "sleep", UID: "sleep-uid", Controller: ptr.To(true)}}
	change := &v1alpha1.ChangeWorkload{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "sleep--x--1", UID: "change-uid", OwnerReferences: owned,
	}}
	change.Spec.Reversion = version
	change.Status.Attempt, change.Status.OrderStage = 1, v1alpha1.OrderPostSubmitted
	change.Status.OrderID = server.OrderID("cluster-uid", "sleep-uid", version, 0, 1, "change-uid")
	e := &v1alpha1.DefenseEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "operator", Name: "prom", UID: "prom"}}
	e.Spec = v1alpha1.DefenseEndpointSpec{Type: v1alpha1.EndpointPrometheus, URL: url, Limits: &v1alpha1.EndpointLimits{QPS: 100},
		Prometheus: &v1alpha1.EndpointPrometheusOptions{ScrapeInterval: &metav1.Duration{Duration: time.Second}}}
	objects := []client.Object{
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sleep", UID: "sleep-uid"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, change, e,
	}
	for _, name := range []string{"sleep-7d8", "sleep-6f5"} {
		objects = append(objects, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, OwnerReferences: owned}})
	}
	return objects
}
