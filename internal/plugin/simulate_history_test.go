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

package plugin

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// verdicts returns a line for each release of a report.
func verdicts(report *Simulation) (lines []string) {
	for _, r := range report.Releases {
		lines = append(lines, fmt.Sprintf("%s %d %s: %s %s", r.Workload, r.Revision, r.Outcome, r.Verdict, r.Class))
	}
	return lines
}

// TestSimulateDaemonSet: its pods have new names, and are replaced one by one.
func TestSimulateDaemonSet(t *testing.T) {
	const h, m = time.Hour, time.Minute
	revision := func(number int64, created time.Duration) client.Object {
		name := fmt.Sprintf("agent-%d", number)
		return &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(reported.Add(-created)),
				OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "agent", Controller: new(true)},
				}},
			Revision: number, Data: runtime.RawExtension{Raw: []byte(`{"spec":{"template":{"metadata":{"labels":{"a":"` + name + `"}}}}}`)},
		}
	}
	objects := []client.Object{
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "agent", UID: "agent", Labels: map[string]string{"app": "web"}}},
		revision(1, 10*h), revision(2, 4*h), revision(3, 2*h), revision(4, 2*h-20*m),
	}
	pods := map[string]pastTraffic{}
	for i := range 4 {
		// The second release goes on to all nodes. The third one fails on its first node, and the fourth replaces it.
		from := 4*h - time.Duration(i)*8*m
		until, last := 2*h-20*m-time.Duration(i)*8*m, 2*h-21*m-time.Duration(i)*8*m
		if i == 0 {
			until, last = 2*h, 2*h-21*m
			pods["agent-bad"] = pastTraffic{2*h - m, 2*h - 20*m, 600, 600}
		}
		pods[fmt.Sprint("agent-old", i)] = pastTraffic{9 * h, from, 600, 1}
		pods[fmt.Sprint("agent-two", i)] = pastTraffic{from - m, until, 600, 1}
		pods[fmt.Sprint("agent-four", i)] = pastTraffic{last, 0, 600, 1}
		pods[fmt.Sprint("agent-other-", i)] = pastTraffic{4 * h, 0, 600, 600} // of another DaemonSet
	}
	_, report, err := simulated(t, reported, pastServer(t, reported, pods).URL, objects...)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"daemonset/agent 4 runs: Passed OK", "daemonset/agent 3 replaced in 20m: Failed True", "daemonset/agent 2 ran: Passed OK",
	}
	if diff := cmp.Diff(want, verdicts(report)); diff != "" {
		t.Errorf("%s%+v", diff, report.Releases)
	}
}

// TestPodsEnded: without the start of the next release, a release ended when the last of its pods was Ready.
func TestPodsEnded(t *testing.T) {
	const h, m = time.Hour, time.Minute
	unknown := &occurrence{again: true}
	for name, tt := range map[string]struct {
		// until is the end of the pod, before now. The release began 2 hours before now.
		until time.Duration
		next  *occurrence
		want  time.Duration
	}{
		"no next release":                                    {2*h - 12*m, nil, 0},
		"the next release began":                             {2*h - 12*m, &occurrence{began: reported.Add(-90 * m)}, 90 * m},
		"the next release began before the pod was gone":     {0, &occurrence{began: reported.Add(-90 * m)}, 90 * m},
		"the next release began later than is asked":         {0, &occurrence{began: reported.Add(-10 * m)}, 10 * m},
		"its start is not known, and the pod left":           {2*h - 12*m, unknown, 2*h - 12*m},
		"and the pod left in the last step but one":          {h + 30*time.Second, unknown, h + 30*time.Second},
		"and the pod was Ready until the end of the query":   {h, unknown, 0},
		"and the pod left in the last step of the query":     {h + 15*time.Second, unknown, 0},
		"and the pod was Ready for longer than the query is": {0, unknown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := connected(t, pastServer(t, reported, map[string]pastTraffic{"web-b-bb": {2 * h, tt.until, 600, 1}}).URL)
			of := &past{
				workload:   &workload.Workload{GVK: (workload.Deployment{}).GroupVersionKind(), Namespace: "shop", Name: "web"},
				occurrence: occurrence{template: template{name: "web-b"}, began: reported.Add(-2 * h)}, next: tt.next,
			}
			pods, problem := s.history.pods(t.Context(), of, reported)
			if problem != "" {
				t.Fatal(problem)
			}
			want := time.Time{}
			if tt.want > 0 {
				want = reported.Add(-tt.want)
			}
			if !pods.ended.Equal(want) {
				t.Errorf("ended %s, want %s", pods.ended, want)
			}
		})
	}
}

// connected returns a simulation that has its endpoint.
func connected(t *testing.T, url string) *simulating {
	t.Helper()
	s := newSimulating(t, reported, url)
	var err error
	if s.policy, err = s.policyOf(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.connect(t.Context(), clusterOf(nil)); err != nil {
		t.Fatal(err)
	}
	return s
}

// fileOf writes a policy with a check that selects the workloads of webHistory.
func fileOf(t *testing.T, checks string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(`apiVersion: app.ops.cloud.alipay.com/v1alpha1
kind: DefensePolicy
metadata:
  name: policy
spec:
  workloadSelector: {matchLabels: {app: web}}
  checks:
`+checks), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// simulatedFile simulates the policy of a file on the history of webHistory.
func simulatedFile(ctx context.Context, t *testing.T, file, url string, period time.Duration) (string, *Simulation) {
	t.Helper()
	objects, _ := webHistory(reported)
	s := newSimulating(t, reported, url)
	s.file, s.timeout = file, 10*time.Minute
	report, err := s.on(ctx, clusterOf(append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})), nil, period)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	s.style.simulation(&out, report)
	return out.String(), report
}

// TestSimulateAlerts: an alert that fired for the pod of a release fails it, at its time.
func TestSimulateAlerts(t *testing.T) {
	_, pods := webHistory(reported)
	history := pastServer(t, reported, pods).Config.Handler
	began, ended := reported.Add(-2*time.Hour+3*time.Minute), reported.Add(-2*time.Hour+12*time.Minute)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		query := r.Form.Get("query")
		if !strings.Contains(query, "ALERTS") {
			history.ServeHTTP(w, r)
			return
		}
		seconds, err := strconv.ParseFloat(r.Form.Get("time"), 64)
		if err != nil {
			t.Error(err)
		}
		at := time.UnixMilli(int64(seconds * 1000))
		result := `{"metric":{},"value":[1,"1"]}`
		if strings.HasPrefix(query, "last_over_time") {
			result = ""
		} else if !at.Before(began) && at.Before(ended) {
			result += fmt.Sprintf(`,{"metric":{"alertname":"ManyErrors","pod":"web-c-cc"},"value":[1,"%d"]}`, began.Unix())
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[%s]}}`, result)
	}))
	t.Cleanup(server.Close)
	file := fileOf(t, `  - name: alerts
    deadline: 20m
    alerts: {endpointRef: {name: prometheus}, matchers: ["severity=\"page\""], interval: 30s, duration: 10m}
  - name: health
    podHealth: {}
`)
	out, report := simulatedFile(t.Context(), t, file, server.URL, 6*time.Hour)
	want := []string{
		"deployment/web 4 runs: Passed OK", "deployment/web 3 rolled back: Failed True", "statefulset/db 2 runs: Passed OK",
		"deployment/web 2 ran: Passed OK",
	}
	if diff := cmp.Diff(want, verdicts(report)); diff != "" {
		t.Error(diff)
	}
	text := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{
		"alerts: alert ManyErrors fires since 20", "Check health is not simulated: its type has no history.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q:\n%s", want, out)
		}
	}
}

// TestSimulateTimeout: a release whose queries have no answer in time is not judged, and says why.
func TestSimulateTimeout(t *testing.T) {
	_, pods := webHistory(reported)
	history := pastServer(t, reported, pods).Config.Handler
	file := fileOf(t, `  - name: errors
    deadline: 20m
    onError: Fail
    timeout: 1s
    prometheus: {endpointRef: {name: prometheus}, query: 'errors{pod=~"$pods"}', failWhen: value > 1.0}
`)
	ended := make(chan struct{})
	hangs := func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-ended:
		}
	}
	for name, tt := range map[string]struct {
		// slow is in the queries that have no result, and fault is what they have.
		slow  string
		fault http.HandlerFunc
		// judged is the number of releases that are judged, of the newest two.
		judged int
		want   string
	}{
		"of the first pod":  {"min(", refused, 1, "web 4: the start of the release is not known: endpoint prometheus: it answers HTTP 503"},
		"of pods":           {"kube_pod_status_ready", refused, 0, "web 3: its pods are not known: endpoint prometheus: it answers HTTP 503"},
		"of a check":        {"errors{", refused, 0, "web 3: errors: endpoint prometheus: it answers HTTP 503"},
		"without an answer": {"errors{", hangs, 0, "web 3: errors: endpoint prometheus: it does not answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_ = r.ParseForm()
				if strings.Contains(r.Form.Get("query"), tt.slow) {
					tt.fault(w, r)
					return
				}
				history.ServeHTTP(w, r)
			}))
			t.Cleanup(server.Close)
			out, report := simulatedFile(t.Context(), t, file, server.URL, 130*time.Minute)
			if judged := report.Summary.Releases - report.Summary.NotJudged; judged != tt.judged || report.Summary.Releases != 2 ||
				!strings.Contains(strings.Join(strings.Fields(out), " "), tt.want) {
				t.Errorf("%+v\n%s", report.Summary, out)
			}
		})
	}
	close(ended)
}

// expired is a context whose time is over when it ends.
type expired struct{ context.Context }

// Err implements context.Context.
func (e expired) Err() error {
	if e.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// TestSimulateEnds: releases that are left when the time of the simulation is over are counted, and those before have their results.
func TestSimulateEnds(t *testing.T) {
	_, pods := webHistory(reported)
	history := pastServer(t, reported, pods).Config.Handler
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		if query := r.Form.Get("query"); strings.Contains(query, "kube_pod_status_ready{") && strings.Contains(query, "db-") {
			cancel()
			<-r.Context().Done()
			return
		}
		history.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	out, report := simulatedFile(expired{ctx}, t, newSimulating(t, reported, "").file, server.URL, 6*time.Hour)
	want := []string{"deployment/web 4 runs: NotJudged NotJudged", "deployment/web 3 rolled back: Failed True"}
	if diff := cmp.Diff(want, verdicts(report)); diff != "" {
		t.Error(diff)
	}
	if text := strings.Join(strings.Fields(out), " "); !strings.Contains(text, "The simulation did not end within 10m0s: 2 releases left.") {
		t.Error(out)
	}
}

// refused answers as Prometheus does when a query takes longer than --query.timeout.
func refused(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprint(w, `{"status":"error","errorType":"timeout","error":"query timed out in expression evaluation"}`)
}
