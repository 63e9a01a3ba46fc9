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

package verify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
)

// asking is a cluster with a Deployment, whose release has an open order, and a Prometheus.
type asking struct {
	*Metrics
	objects []client.Object
	get     interceptor.Funcs
	change  *v1alpha1.ChangeWorkload
	e       *v1alpha1.DefenseEndpoint

	mu     sync.Mutex
	asked  []string
	answer string
	status int
	// declared are declared kinds.
	declared []workload.Kind
}

func newAsking(t *testing.T) *asking {
	a := &asking{status: 200, answer: `[{"metric":{},"values":[[1699998200.123,"0.5"],[1699998230.123,"NaN"],[1699998260.123,"1.25"]]}]`}
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.asked = append(a.asked, fmt.Sprintf("%s %s %s-%s/%s", r.URL.Path, r.FormValue("query"), r.FormValue("start"), r.FormValue("end"),
			r.FormValue("step")))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(a.status)
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":%s}}`, a.answer)
	}))
	t.Cleanup(prometheus.Close)
	owned := func(kind, name, uid string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID("uid-" + uid), Controller: ptr.To(true)}}
	}
	deployment := func(namespace, name string) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + namespace + name)}}
		d.APIVersion, d.Kind = "apps/v1", "Deployment"
		return d
	}
	sets := func(name string) *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-" + name), OwnerReferences: owned("Deployment", "sleep", "defaultsleep"),
		}}
	}
	a.change = &v1alpha1.ChangeWorkload{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "sleep--x--1", UID: "change-uid", OwnerReferences: owned("Deployment", "sleep", "defaultsleep"),
	}}
	a.change.Spec.Reversion = serverVersion
	s := &a.change.Status
	s.Attempt, s.ObservedRelease, s.OrderStage = 1, 1, v1alpha1.OrderPostSubmitted
	s.OrderID = server.OrderID("cluster-uid", "uid-defaultsleep", serverVersion, 1, 1, "change-uid")
	a.e = &v1alpha1.DefenseEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "operator", Name: "prom", UID: "prom"}}
	a.e.Spec = v1alpha1.DefenseEndpointSpec{Type: v1alpha1.EndpointPrometheus, URL: prometheus.URL, Limits: &v1alpha1.EndpointLimits{QPS: 100}}
	a.objects = []client.Object{
		deployment("default", "sleep"), deployment("default", "other"), deployment("bank", "sleep"), sets("sleep-6f5"), sets("sleep-7d8"),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "bank"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "sleep-7d8-xk2zp", OwnerReferences: owned("ReplicaSet", "sleep-7d8", "sleep-7d8"),
		}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bare"}},
	}
	a.Metrics = &Metrics{Clock: clocktesting.NewFakePassiveClock(time.UnixMilli(1_700_000_000_123)), Endpoint: "prom"}
	return a
}

// ready makes the cluster.
func (a *asking) ready(t *testing.T) *Metrics {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(a.objects, a.change, a.e)...).
		WithIndex(&v1alpha1.ChangeWorkload{}, workload.IndexByOwner, workload.OwnerUID).
		WithIndex(&appsv1.ReplicaSet{}, workload.IndexByOwner, workload.OwnerUID).WithInterceptorFuncs(a.get).Build()
	a.View = cluster.View{Cached: c, Live: c, Kinds: workload.Defended(), Operator: "operator"}
	a.View.Kinds.Declare(a.declared...)
	a.Clients = endpoint.NewClients(c, a.Clock, (&net.Dialer{}).DialContext)
	return a.Metrics
}

// pluginQuery is a query as the plug-in of a stock server sends it.
const pluginQuery = `{"duration":30000,"workloadExternalQuery":{"kind":"Deployment","metric":{"name":"load_load1"},"name":"sleep",` +
	`"namespace":"default"},"start":1699998200123,"end":1700000000123,"type":"workloadExternal"}`

func TestMetrics(t *testing.T) {
	const letters = "-[bcdfghjklmnpqrstvwxz2456789]{5}"
	asked := func(pods string) string {
		return `/api/v1/query_range avg(avg_over_time(system_load_average_1m{namespace="default",pod=~"` + pods + `"}[1m])) ` +
			"1699998200.123-1700000000.123/30"
	}
	whole := asked("sleep-6f5" + letters + "|sleep-7d8" + letters)
	points := []altershield.Point{{Timestamp: 1699998200123, Value: 0.5}, {Timestamp: 1699998260123, Value: 1.25}}
	const noOrder = "default/sleep is no workload, and no pod of a workload, whose release has an open order"
	replaced := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(pluginQuery) }
	for name, test := range map[string]struct {
		body    string
		change  func(*asking)
		status  int
		message string // a part of it
		points  []altershield.Point
		asked   string
	}{
		"the plug-in's":   {status: 200, points: points, asked: whole},
		"in another case": {body: replaced("Deployment", "deployment"), status: 200, points: points, asked: whole},
		"of a pod": {body: replaced(`"workloadExternalQuery":{"kind":"Deployment"`, `"podMetricQuery":{"kind":"Pod"`,
			"workloadExternal", "podMetric", `"sleep"`, `"sleep-7d8-xk2zp"`), status: 200, points: points, asked: asked("sleep-7d8-xk2zp")},
		"a declared kind has the name": {change: func(a *asking) {
			served := declared.Served{Kind: "Deployment", Namespaced: true}
			accepted, problem := declared.Accept(workloadtest.CourseKind(v1alpha1.RollbackNever), served)
			if problem != "" {
				panic(problem)
			}
			other := &unstructured.Unstructured{}
			other.SetGroupVersionKind(accepted.GroupVersionKind)
			other.SetNamespace("default")
			other.SetName("sleep")
			other.SetUID("uid-other")
			a.declared, a.objects = []workload.Kind{declared.NewWorkloads(accepted)}, append(a.objects, other)
		}, status: 200, points: points, asked: whole},
		"no data": {change: func(a *asking) { a.answer = "[]" }, status: 200, points: []altershield.Point{},
			message: "endpoint prom has no data: load_load1 needs system_load_average_1m of Micrometer",
			asked:   whole},
		"a bare pod": {body: replaced(`"workloadExternalQuery":{"kind":"Deployment"`, `"podMetricQuery":{"kind":"Pod"`, `"sleep"`, `"bare"`),
			status: 404, message: "default/bare is no workload"},
		"a pod that is gone": {body: replaced(`"workloadExternalQuery":{"kind":"Deployment"`, `"podMetricQuery":{"kind":"Pod"`),
			status: 404, message: noOrder},
		"another workload":    {body: replaced(`"sleep"`, `"other"`), status: 404, message: "default/other is no workload"},
		"another namespace":   {body: replaced("default", "bank"), status: 404, message: "bank/sleep is no workload"},
		"the namespace null":  {body: replaced("default", "null"), status: 404, message: "null/sleep is no workload"},
		"another kind":        {body: replaced("Deployment", "StatefulSet"), status: 404, message: noOrder},
		"a kind of no one":    {body: replaced("Deployment", "null"), status: 404, message: noOrder},
		"the order ended":     {change: stage(v1alpha1.OrderEnded), status: 404, message: noOrder},
		"not yet accepted":    {change: stage(v1alpha1.OrderSubmitting), status: 404, message: noOrder},
		"refused":             {change: stage(v1alpha1.OrderRefused), status: 404, message: noOrder},
		"no server":           {change: stage(v1alpha1.OrderNone), status: 404, message: noOrder},
		"the order of others": {change: func(a *asking) { a.change.UID = "copied" }, status: 404, message: noOrder},
		"an unknown metric":   {body: replaced("load_load1", "up"), status: 400, message: "metric.name is not known: give one of cpu_util"},
		"a hostile metric":    {body: replaced("load_load1", "cpu_util or up"), status: 400, message: "metric.name is not known"},
		"no JSON":             {body: "{", status: 400, message: "the body is no query for metrics"},
		"no endpoint": {change: func(a *asking) { a.Endpoint = "other" }, status: 503,
			message: "--altershield-metrics-endpoint: no endpoint other of type Prometheus may be used"},
		"an endpoint for others": {change: func(a *asking) {
			a.e.Spec.AllowedNamespaces = &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesSame}
		}, status: 503, message: "or to add the namespace to its allowedNamespaces"},
		"a broken endpoint": {change: func(a *asking) { a.status = 502 }, status: 503, message: "endpoint prom: it answers HTTP 502",
			asked: whole},
		"many series": {change: func(a *asking) { a.answer = `[{"metric":{"a":"1"},"values":[]},{"metric":{"a":"2"},"values":[]}]` }, status: 503,
			message: "endpoint prom: it gave no valid answer", asked: whole},
		"no API server": {change: func(a *asking) {
			a.get.List = func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
				return errors.New("down")
			}
		}, status: 503, message: "the cluster cannot be read now: try again"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAsking(t)
			if test.change != nil {
				test.change(a)
			}
			body := test.body
			if body == "" {
				body = pluginQuery
			}
			status, message, points := a.ready(t).Answer(t.Context(), []byte(body))
			if status != test.status || !strings.Contains(message, test.message) || test.message == "" && message != "" {
				t.Errorf("got %d %q, want %d %q", status, message, test.status, test.message)
			}
			if diff := cmp.Diff(test.points, points); diff != "" {
				t.Errorf("points -want +got:\n%s", diff)
			}
			if got := strings.Join(a.asked, "\n"); got != test.asked {
				t.Errorf("asked\n%s\nwant\n%s", got, test.asked)
			}
		})
	}
}

func stage(of v1alpha1.OrderStage) func(*asking) {
	return func(a *asking) { a.change.Status.OrderStage = of }
}
