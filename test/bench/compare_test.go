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
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/monitoring"
)

// BenchmarkCompare releases a second version of 200 Deployments of four pods at once, without checks and with a check of type compare, as
// in the sample compare.yaml. Each has a manager of its own, and the rollouts are held until the first pods are verified.
func BenchmarkCompare(b *testing.B) {
	for _, checked := range []bool{false, true} {
		name := "without checks"
		if checked {
			name = "with a check"
		}
		b.Run(name, func(b *testing.B) {
			t := newBed(b, false)
			t.set(b, settings.NameTimeouts, v1alpha1.TypeTimeouts, "settle=0")
			t.set(b, settings.NameHolding, v1alpha1.TypeHolding, "first")
			t.batches(b, "10")
			t.defaultPolicy(b, v1alpha1.ModeDisabled)
			var server *monitoring.Front
			answered := &atomic.Int64{}
			if checked {
				server = t.measured(b)
				server.Break(func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) { answered.Add(playOTel(w, r)) })
			}
			for b.Loop() {
				ns := t.namespace(b, true)
				t.release(b.Context(), b, ns, true, *releases, 4)
				if checked {
					t.compared(b, ns)
				}
				asked, bytes := len(ranges(server)), answered.Load()
				_, before := t.process(b)
				began := time.Now()
				t.releaseSecond(b, ns)
				took := time.Since(began)
				rss, cpu := t.process(b)
				b.ReportMetric(took.Seconds(), "s/release")
				b.ReportMetric(1000*(cpu-before)/float64(*releases), "cpu-ms/release")
				b.ReportMetric(rss, "MB-rss")
				b.ReportMetric(t.peak(b), "MB-peak")
				if checked {
					t.passes(b, ns)
					all := ranges(server)[asked:]
					if len(all) == 0 {
						b.Fatal("no check has asked")
					}
					each := float64(len(all)) / float64(*releases)
					b.ReportMetric(each, "queries/release")
					b.ReportMetric(each/all[len(all)-1].Time.Sub(all[0].Time).Minutes(), "queries/release/min")
					b.ReportMetric(float64(answered.Load()-bytes)/1024/float64(len(all)), "KiB/answer")
				}
			}
		})
	}
}

// ranges returns the queries of checks, without those that ask whether the endpoint answers.
func ranges(server *monitoring.Front) (all []monitoring.Request) {
	if server == nil {
		return nil
	}
	for _, r := range server.Requests() {
		if strings.Contains(r.Form.Get("query"), "http_server_request_duration_seconds") {
			all = append(all, r)
		}
	}
	return all
}

// podsOfQuery finds the pods in a query.
var podsOfQuery = regexp.MustCompile(`d\d+-[0-9a-z]+-[0-9a-z]+`)

// playOTel answers a query as a Prometheus with the metrics of OpenTelemetry, of pods with 600 requests a minute. It returns the size of
// the answer.
func playOTel(w http.ResponseWriter, r *http.Request) int64 {
	query := r.Form.Get("query")
	type series struct {
		Metric map[string]string `json:"metric"`
		Value  []any             `json:"value,omitempty"`
		Values [][]any           `json:"values,omitempty"`
	}
	kind, result := "vector", []series{{map[string]string{"__name__": "http_server_request_duration_seconds_count"}, []any{1, "1"}, nil}}
	if strings.HasSuffix(r.URL.Path, "/query_range") {
		kind, result = "matrix", nil
		number := func(name string) float64 {
			v, err := strconv.ParseFloat(r.Form.Get(name), 64)
			if err != nil {
				panic(err)
			}
			return v
		}
		for _, pod := range podsOfQuery.FindAllString(strings.SplitN(query, ") / ", 2)[0], -1) {
			s := series{Metric: map[string]string{"pod": pod}}
			for at := number("start"); at <= number("end"); at += number("step") {
				value := 10 * (at - 1.7e9)
				switch {
				case strings.Contains(query, "rate("):
					value = 0.1
				case strings.Contains(query, "5.."):
					value /= 1000
				}
				s.Values = append(s.Values, []any{at, strconv.FormatFloat(value, 'f', -1, 64)})
			}
			result = append(result, s)
		}
	}
	body, err := json.Marshal(map[string]any{"status": "success", "data": map[string]any{"resultType": kind, "result": result}})
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
	return int64(len(body))
}

// compared creates a policy with a check of type compare, and waits until it is in force.
func (t *bed) compared(b *testing.B, namespace string) {
	b.Helper()
	p := &v1alpha1.DefensePolicy{}
	p.Namespace, p.Name = namespace, "no-worse"
	p.Spec.Hold = &v1alpha1.PolicyHold{Until: v1alpha1.HoldFirstBatch}
	p.Spec.Checks = []v1alpha1.PolicyCheck{{Name: "compare", Compare: &v1alpha1.CompareCheck{
		EndpointRef: v1alpha1.EndpointReference{Name: "prometheus"}, Presets: []v1alpha1.ComparePreset{v1alpha1.PresetAuto},
	}}}
	must(b, t.api.Create(b.Context(), p))
	must(b, wait.PollUntilContextTimeout(b.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := t.api.Get(ctx, client.ObjectKeyFromObject(p), p)
		return meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionAccepted), err
	}))
}

// releaseSecond releases a second version of all Deployments of a namespace, and waits until it has succeeded.
func (t *bed) releaseSecond(b *testing.B, namespace string) {
	b.Helper()
	var all appsv1.DeploymentList
	must(b, t.api.List(b.Context(), &all, client.InNamespace(namespace)))
	for i := range all.Items {
		must(b, t.api.Patch(b.Context(), &all.Items[i], client.RawPatch("application/merge-patch+json",
			[]byte(`{"spec":{"template":{"metadata":{"annotations":{"version":"second"}}}}}`))))
	}
	must(b, wait.PollUntilContextTimeout(b.Context(), time.Second, 3*patience, true, func(ctx context.Context) (bool, error) {
		var list v1alpha1.ChangeWorkloadList
		err := t.api.List(ctx, &list, client.InNamespace(namespace))
		done := 0
		for i := range list.Items {
			if c := &list.Items[i]; c.Spec.Release == 2 && c.Status.Status == v1alpha1.ChangeWorkloadSuccess {
				done++
			}
		}
		return done == len(all.Items), err
	}))
}

// passes fails if no check of a namespace has compared pods.
func (t *bed) passes(b *testing.B, namespace string) {
	b.Helper()
	var batches v1alpha1.ChangePodList
	must(b, t.api.List(b.Context(), &batches, client.InNamespace(namespace)))
	phases := map[string]int{}
	for i := range batches.Items {
		for _, c := range batches.Items[i].Status.Checks {
			phases[string(c.Phase)+" "+c.Reason]++
		}
	}
	b.Logf("checks: %v", phases)
	if phases[string(v1alpha1.CheckPassed)+" "+v1alpha1.ReasonPassed] == 0 {
		b.Fatal("no pods were compared")
	}
}
