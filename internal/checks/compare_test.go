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

package checks

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// exported is what a Prometheus has of a pod.
type exported struct {
	// requests and errors of a minute, and latency in seconds. since and until are times after the start of the check; zero for always.
	requests, errors, latency float64
	since, until              time.Duration
	// formerly was the latency until a time after the start of the check, and bad the one until an earlier time.
	formerly, bad  float64
	changed, fixed time.Duration
}

// ranges plays the query API of Prometheus for range queries, at a step of 15 seconds.
type ranges struct {
	*httptest.Server
	mu    sync.Mutex
	pods  map[string]exported
	began time.Time
	asked []string
	// status of each answer; 0 is 200. Queries with refused in them are answered 400.
	status  int
	refused string
	// found is the result of the query of Auto, discovered the times of the query.
	found      string
	discovered []string
}

func newRanges(t *testing.T, pods map[string]exported) *ranges {
	p := &ranges{pods: pods}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		auto := strings.HasSuffix(r.URL.Path, "/query")
		if err := r.ParseForm(); err != nil || !auto && !strings.HasSuffix(r.URL.Path, "/query_range") {
			t.Errorf("%s: %v", r.URL, err)
		}
		number := func(name string) float64 {
			v, err := strconv.ParseFloat(r.Form.Get(name), 64)
			if err != nil {
				t.Error(err)
			}
			return v
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		query := r.Form.Get("query")
		p.asked = append(p.asked, query)
		if p.refused != "" && strings.Contains(query, p.refused) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if p.status != 0 {
			w.WriteHeader(p.status)
			return
		}
		if auto {
			p.discovered = append(p.discovered, r.Form.Get("time"))
			fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[%s]}}`, p.found)
			return
		}
		var all []string
		for pod, of := range p.pods {
			if !strings.Contains(query, pod) {
				continue
			}
			var values []string
			for at := number("start"); at <= number("end"); at += number("step") {
				after := time.Unix(int64(at), 0).Sub(p.began)
				if of.since != 0 && after < of.since || of.until != 0 && after > of.until {
					continue
				}
				v := of.latency
				switch {
				case of.bad != 0 && after <= of.fixed:
					v = of.bad
				case of.formerly != 0 && after <= of.changed:
					v = of.formerly
				}
				v *= (1 + 0.02*math.Sin(at+float64(len(pod))))
				if minutes := after.Minutes() + 1000; strings.Contains(query, "errors_total") || strings.Contains(query, "5..") {
					v = math.Round(of.errors * minutes)
				} else if strings.Contains(query, "requests_total") || strings.HasPrefix(query, "sum by (pod) (http") {
					v = math.Round(of.requests * minutes)
				}
				values = append(values, fmt.Sprintf(`[%d,"%g"]`, int64(at), v))
			}
			if len(values) > 0 {
				all = append(all, fmt.Sprintf(`{"metric":{"pod":%q},"values":[%s]}`, pod, strings.Join(values, ",")))
			}
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[%s]}}`, strings.Join(all, ","))
	}))
	t.Cleanup(p.Close)
	return p
}

// errorShare and slowness are metrics of a check.
func errorShare() v1alpha1.CompareMetric {
	return v1alpha1.CompareMetric{
		Name: "errors", Numerator: `sum by (pod) (errors_total{pod=~"$pods"})`, Denominator: `sum by (pod) (requests_total{pod=~"$pods"})`,
	}
}

func slowness() v1alpha1.CompareMetric {
	least := resource.MustParse("5m")
	return v1alpha1.CompareMetric{Name: "latency", Query: `latency_seconds{pod=~"$pods"}`, MinChange: &least}
}

// newComparing returns a batch of the pods web-1 and web-2 with a check of type compare, and old pods.
func newComparing(t *testing.T, server *ranges, old int, metrics ...v1alpha1.CompareMetric) *ruled {
	t.Helper()
	r := newQuerying(t, &prometheus{Server: server.Server}, func(c *v1alpha1.PolicyCheck) {
		c.Prometheus, c.Compare = nil, &v1alpha1.CompareCheck{EndpointRef: v1alpha1.EndpointReference{Name: "prom"}, Metrics: metrics}
	})
	r.s.Workload.Replicas, r.s.Batch.Name = int32(old), record.BatchName(r.s.Workload, r.s.Release.Spec.Reversion, 1)
	r.check().Type = v1alpha1.CheckTypeCompare
	for i := range old {
		r.check().OldPods = append(r.check().OldPods, fmt.Sprint("old-", i))
		r.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("old-", i)}})
	}
	server.began = r.began
	return r
}

// fleet returns two new pods and some old ones.
func fleet(fresh exported, old int, of exported) map[string]exported {
	pods := map[string]exported{"web-1": fresh, "web-2": fresh}
	for i := range old {
		pods[fmt.Sprint("old-", i)] = of
	}
	return pods
}

func TestCompareChecks(t *testing.T) {
	usual := exported{requests: 600, errors: 1, latency: 0.2}
	with := func(change func(*exported)) exported {
		e := usual
		change(&e)
		return e
	}
	for _, tc := range []struct {
		name    string
		pods    map[string]exported
		old     int
		metrics []v1alpha1.CompareMetric
		phase   v1alpha1.CheckPhase
		reason  string
		message string
		// within is the latest end after the start.
		within time.Duration
	}{
		{"healthy", fleet(usual, 5, usual), 5, []v1alpha1.CompareMetric{errorShare(), slowness()}, v1alpha1.CheckPassed, v1alpha1.ReasonPassed,
			"latency: 0.202 in 2 new pods against 0.202 in 5 old ones: +0 %", 9 * time.Minute},
		{"errors", fleet(with(func(e *exported) { e.errors = 24 }), 5, usual), 5, []v1alpha1.CompareMetric{errorShare()},
			v1alpha1.CheckFailed, v1alpha1.ReasonWorse, "errors: 4 % of 1,200 requests of 2 new pods against 0.167 % of 3,000 of 5 old ones over " +
				"1 minute: 24 times; odds 1 : ", 4 * time.Minute},
		{"all requests fail", fleet(with(func(e *exported) { e.requests, e.errors = 6, 6 }), 3,
			with(func(e *exported) { e.requests, e.errors = 6, 0 })), 3, []v1alpha1.CompareMetric{errorShare()},
			v1alpha1.CheckFailed, v1alpha1.ReasonWorse, "far more than any old pod", 6 * time.Minute},
		{"a dependency degrades both", fleet(with(func(e *exported) { e.errors = 60 }), 5, with(func(e *exported) { e.errors = 60 })), 5,
			[]v1alpha1.CompareMetric{errorShare()}, v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "errors: 10 %", 8 * time.Minute},
		{"three times as slow", fleet(with(func(e *exported) { e.latency = 0.7 }), 5, usual), 5, []v1alpha1.CompareMetric{slowness()},
			v1alpha1.CheckFailed, v1alpha1.ReasonWorse, "latency: 0.706 in 2 new pods against 0.202 in 5 old ones: +250 %", 9 * time.Minute},
		{"twice as slow, confirmed", fleet(with(func(e *exported) { e.latency = 0.4 }), 5, usual), 5, []v1alpha1.CompareMetric{slowness()},
			v1alpha1.CheckFailed, v1alpha1.ReasonWorse, "latency: 0.404 in 2 new pods against 0.202 in 5 old ones: +100 %", 11 * time.Minute},
		{"no traffic", fleet(exported{latency: 0.2}, 5, exported{latency: 0.2}), 5, []v1alpha1.CompareMetric{errorShare()},
			v1alpha1.CheckNoData, v1alpha1.ReasonFewData, "new and old pods had no requests at the same time", 13 * time.Minute},
		{"no series", nil, 5, []v1alpha1.CompareMetric{slowness()},
			v1alpha1.CheckNoData, v1alpha1.ReasonFewData, "0 new pods and 0 old ones have enough data", 13 * time.Minute},
		{"no old pod", fleet(usual, 0, usual), 0, []v1alpha1.CompareMetric{errorShare()},
			v1alpha1.CheckSkipped, v1alpha1.ReasonNoOldPods, "no version succeeded before this one", 0},
		{"a second metric fails", fleet(with(func(e *exported) { e.errors = 24 }), 5, usual), 5,
			[]v1alpha1.CompareMetric{slowness(), errorShare()},
			v1alpha1.CheckFailed, v1alpha1.ReasonWorse, "errors: 4 %", 6 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := newRanges(t, tc.pods)
			r := newComparing(t, server, tc.old, tc.metrics...)
			r.run(20 * time.Minute)
			r.ends(tc.phase, tc.reason, tc.message)
			if took := r.clock.Now().Sub(r.began); took > tc.within {
				t.Errorf("it took %s", took)
			} else if tc.name == "twice as slow, confirmed" && took < 8*time.Minute { // 1 minute, the window, and a half of it
				t.Errorf("it was confirmed after %s", took)
			}
			for _, query := range server.asked {
				if !strings.Contains(query, `namespace="ns"`) {
					t.Errorf("asked without the namespace: %s", query)
				}
			}
		})
	}
}

// TestCompareRestarts: another process decides the same, at the same time.
func TestCompareRestarts(t *testing.T) {
	usual := exported{requests: 60, errors: 0.2, latency: 0.2}
	slow := exported{requests: 60, errors: 1.2, latency: 0.42}
	end := func(restart bool) (time.Duration, *v1alpha1.CheckStatus) {
		r := newComparing(t, newRanges(t, fleet(slow, 6, usual)), 6, slowness(), errorShare())
		for until := 20 * time.Second; until < 15*time.Minute && restart; until += 20 * time.Second {
			r.run(until)
			r.restarted()
		}
		r.run(20 * time.Minute)
		return r.clock.Now().Sub(r.began).Round(20 * time.Second), r.check()
	}
	took, want := end(false)
	again, got := end(true)
	if took != again || want.Phase != v1alpha1.CheckFailed || got.Phase != want.Phase || got.Message != want.Message {
		t.Errorf("%s %s after %s; with restarts %s %s after %s", want.Phase, want.Message, took, got.Phase, got.Message, again)
	}
}

// TestCompareUnavailable: a Prometheus that does not answer is no verdict.
func TestCompareUnavailable(t *testing.T) {
	server := newRanges(t, nil)
	server.status = 502
	r := newComparing(t, server, 3, errorShare())
	r.run(20 * time.Minute)
	r.ends(v1alpha1.CheckError, v1alpha1.ReasonUnavailable, "until the deadline: endpoint prom")
}

// TestCompareNotDue: pods are not compared after each batch. Batches of an earlier attempt do not count.
func TestCompareNotDue(t *testing.T) {
	for n, skipped := range map[int]bool{1: false, 2: false, 3: true, 4: false, 6: true} {
		r := newComparing(t, newRanges(t, nil), 0, errorShare())
		const earlier = 5
		for i := 1; i < n+earlier; i++ {
			batch := r.s.Batch.DeepCopy()
			batch.Name, batch.UID = record.BatchName(r.s.Workload, r.s.Release.Spec.Reversion, int32(i)), types.UID(strconv.Itoa(i))
			batch.OwnerReferences = []metav1.OwnerReference{cluster.OwnerReference("v1", "ChangeWorkload", r.s.Release.Name, r.s.Release.UID)}
			if i <= earlier {
				batch.Spec.Attempt--
			}
			r.create(batch)
		}
		r.s.Batch.Name = record.BatchName(r.s.Workload, r.s.Release.Spec.Reversion, int32(n+earlier))
		r.run(time.Minute)
		if c := r.check(); c.Phase != v1alpha1.CheckSkipped || (c.Reason == v1alpha1.ReasonNotDue) != skipped {
			t.Errorf("batch %d: %s %s %s", n, c.Phase, c.Reason, c.Message)
		}
	}
}

// TestCompareWatches: a check in the background that passes is not written; one that needs more data says so after its due time.
func TestCompareWatches(t *testing.T) {
	watching := func(pods map[string]exported) *ruled {
		r := newComparing(t, newRanges(t, pods), 5, errorShare())
		r.s.Policies[0].Spec.Checks[0].Wait = new(bool)
		r.check().Background, r.check().Phase = true, v1alpha1.CheckWatching
		return r
	}
	r := watching(fleet(exported{requests: 600}, 5, exported{requests: 600}))
	before := r.check().DeepCopy()
	r.run(14 * time.Minute)
	if c := r.check(); c.Phase != v1alpha1.CheckWatching || c.Message != before.Message {
		t.Errorf("%+v", c)
	}
	r = watching(fleet(exported{}, 5, exported{}))
	r.run(8 * time.Minute)
	r.ends(v1alpha1.CheckRunning, v1alpha1.ReasonFewData, "no requests")
	r.run(14 * time.Minute)
	r.ends(v1alpha1.CheckNoData, v1alpha1.ReasonFewData, "no requests")
}

// TestCompareGone: a comparison ends with the window if no old pod is left.
func TestCompareGone(t *testing.T) {
	usual, slow := exported{requests: 600, latency: 0.2}, exported{requests: 600, latency: 0.4}
	for name, tc := range map[string]struct {
		pods    map[string]exported
		metrics []v1alpha1.CompareMetric
		number  int32
		after   time.Duration
		phase   v1alpha1.CheckPhase
		reason  string
		message string
	}{
		"before there were enough data": {fleet(exported{}, 5, exported{}), []v1alpha1.CompareMetric{errorShare()}, 1, 0,
			v1alpha1.CheckInconclusive, v1alpha1.ReasonNoOldPods, "hold the rollout"},
		"and earlier batches were compared": {fleet(exported{}, 5, exported{}), []v1alpha1.CompareMetric{errorShare()}, 2, 0,
			v1alpha1.CheckSkipped, v1alpha1.ReasonNoOldPods, "earlier batches were compared"},
		"after enough data": {fleet(usual, 5, usual), []v1alpha1.CompareMetric{errorShare()}, 1, 0,
			v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "errors: 0 %"},
		"before a change is confirmed": {fleet(slow, 5, usual), []v1alpha1.CompareMetric{slowness()}, 1, 8*time.Minute + 30*time.Second,
			v1alpha1.CheckInconclusive, v1alpha1.ReasonUnsteady, "not confirmed: latency: 0.404 in 2 new pods"},
		"before a change is confirmed, beside a metric without data": {fleet(exported{latency: 0.4}, 5, exported{latency: 0.2}),
			[]v1alpha1.CompareMetric{errorShare(), slowness()}, 2, 8*time.Minute + 30*time.Second,
			v1alpha1.CheckInconclusive, v1alpha1.ReasonUnsteady, "latency: 0.404 in 2 new pods"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newComparing(t, newRanges(t, tc.pods), 5, tc.metrics...)
			r.s.Batch.Name = record.BatchName(r.s.Workload, r.s.Release.Spec.Reversion, tc.number)
			r.run(tc.after)
			for _, pod := range r.check().OldPods {
				if err := r.api.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: pod}}); err != nil {
					t.Fatal(err)
				}
			}
			r.run(20 * time.Minute)
			r.ends(tc.phase, tc.reason, tc.message)
			if took := r.clock.Now().Sub(r.began); took > 10*time.Minute {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// TestCompareUndo: a version that succeeded is not compared with the one that it replaces.
func TestCompareUndo(t *testing.T) {
	r := newComparing(t, newRanges(t, nil), 0, errorShare())
	version := r.s.Release.Spec.Reversion
	r.create(&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "web-" + version, Labels: map[string]string{v1alpha1.HistoryOfLabel: "web-uid", v1alpha1.VersionLabel: version},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web-uid"}},
	}})
	if names, err := oldPods(t.Context(), r.checks.query.view, &r.s); len(names) > 0 || err != nil {
		t.Errorf("old pods %v, %v", names, err)
	}
	r.run(time.Minute)
	r.ends(v1alpha1.CheckSkipped, v1alpha1.ReasonNoOldPods, "this version succeeded before")
}

// TestCompareUnanswered: a metric that cannot be asked does not hide another that fails.
func TestCompareUnanswered(t *testing.T) {
	broken := errorShare()
	broken.Name, broken.Numerator = "broken", `sum by (pod) (many{pod=~"$pods"})`
	server := newRanges(t, fleet(exported{requests: 600, errors: 60}, 5, exported{requests: 600}))
	server.refused = "many"
	r := newComparing(t, server, 5, broken, errorShare())
	r.run(20 * time.Minute)
	r.ends(v1alpha1.CheckFailed, v1alpha1.ReasonWorse, "errors: 10 %")
}

// TestCompareUnansweredLater: a call without an answer after the window, when too few data extended it, is no pass, also after a restart.
func TestCompareUnansweredLater(t *testing.T) {
	few := exported{requests: 0.5}
	server := newRanges(t, fleet(few, 5, few))
	r := newComparing(t, server, 5, errorShare())
	for r.check() == nil || r.check().Measured < 5 || r.check().Reason != v1alpha1.ReasonFewData {
		r.run(r.clock.Now().Sub(r.began) + 10*time.Second)
	}
	server.refused = "sum by"
	for r.check().Reason == v1alpha1.ReasonFewData && r.check().Phase == v1alpha1.CheckRunning {
		r.run(r.clock.Now().Sub(r.began) + 10*time.Second)
	}
	if c := r.check(); c.Phase != v1alpha1.CheckRunning {
		t.Fatalf("%s %s %s", c.Phase, c.Reason, c.Message)
	}
	r.restarted()
	server.refused = ""
	r.run(40 * time.Minute)
	r.ends(v1alpha1.CheckNoData, v1alpha1.ReasonFewData, "errors:")
}

// TestAttempt: numbers of batches go on over attempts, and batches may have been removed.
func TestAttempt(t *testing.T) {
	batch := func(number, attempt int32, pods ...string) v1alpha1.ChangePod {
		b := v1alpha1.ChangePod{}
		b.Name, b.Spec.Attempt = record.BatchName(&workload.Workload{Name: "web"}, "v", number), attempt
		for _, pod := range pods {
			b.Spec.PodInfos = append(b.Spec.PodInfos, v1alpha1.PodInfo{Pod: pod})
		}
		return b
	}
	for name, tc := range map[string]struct {
		batches []v1alpha1.ChangePod
		of      v1alpha1.ChangePod
		want    int
		names   []string
	}{
		"first": {nil, batch(1, 1, "a"), 1, []string{"a"}},
		"with earlier ones": {
			[]v1alpha1.ChangePod{batch(1, 1, "a"), batch(2, 1, "b"), batch(3, 1, "c")}, batch(2, 1, "b"), 2, []string{"b", "a"},
		},
		"earlier ones were removed": {[]v1alpha1.ChangePod{batch(4, 1, "d")}, batch(4, 1, "d"), 4, []string{"d"}},
		"of a second attempt":       {[]v1alpha1.ChangePod{batch(2, 1, "a"), batch(3, 2, "b")}, batch(4, 2, "c", "b"), 2, []string{"c", "b"}},
		"without the first attempt": {[]v1alpha1.ChangePod{batch(3, 2, "b"), batch(4, 2, "c")}, batch(4, 2, "c"), 2, []string{"c", "b"}},
	} {
		if got := batchOfAttempt(tc.batches, &tc.of); got != tc.want {
			t.Errorf("%s: batch %d, want %d", name, got, tc.want)
		}
		if got := attemptNames(tc.batches, &tc.of); !slices.Equal(got, tc.names) {
			t.Errorf("%s: pods %v, want %v", name, got, tc.names)
		}
	}
}

func TestNewNames(t *testing.T) {
	pod := func(name string, ready bool, since time.Duration) workload.Pod {
		return workload.Pod{Name: name, Ready: ready, ReadySince: testNow.Add(since)}
	}
	batch := []workload.Pod{pod("a", true, -time.Minute), pod("restarted", false, 0)}
	released := append(slices.Clone(batch), pod("earlier", true, 0), pod("cold", true, time.Second), pod("unready", false, -time.Hour))
	if got, want := newNames(batch, released, testNow), []string{"a", "restarted", "earlier"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestCompareAlpha: metrics of all checks that are enforced share the healthy releases that may fail, and so do the looks.
func TestCompareAlpha(t *testing.T) {
	r := newComparing(t, newRanges(t, nil), 5, errorShare(), slowness())
	checks := &r.s.Policies[0].Spec.Checks
	*checks = append(*checks, *(*checks)[0].DeepCopy(), *(*checks)[0].DeepCopy())
	(*checks)[1].Name, (*checks)[2].Name, (*checks)[2].Mode = "more", "observed", v1alpha1.ModeObserve
	of := policy.Find(r.s.Policies, "operator", r.s.Selected, r.check().Name)
	if got, want := r.checks.query.alphaOf(&r.s, of), 0.01/4/3; math.Abs(got-want) > 1e-9 {
		t.Errorf("alpha %v, want %v", got, want)
	}
	// Auto counts as errors and latency before it has found any.
	(*checks)[1].Compare.Presets = []v1alpha1.ComparePreset{v1alpha1.PresetCPU, v1alpha1.PresetAuto}
	if got, want := r.checks.query.alphaOf(&r.s, of), 0.01/7/3; math.Abs(got-want) > 1e-9 {
		t.Errorf("with presets alpha %v, want %v", got, want)
	}
}

// TestCompareAuto: Auto compares what old pods expose, as of the start of the window, also in another process.
func TestCompareAuto(t *testing.T) {
	usual := exported{requests: 600, errors: 1, latency: 0.2}
	bad := usual
	bad.errors = 24
	const otel = `{"metric":{"__name__":"http_server_request_duration_seconds_count"},"value":[1,"1"]}`
	for _, tc := range []struct {
		name, found     string
		fresh           exported
		presets         []v1alpha1.ComparePreset
		metrics         []v1alpha1.CompareMetric
		phase           v1alpha1.CheckPhase
		reason, message string
		asked           int
	}{
		{"errors", otel, bad, nil, nil, v1alpha1.CheckFailed, v1alpha1.ReasonWorse, "otel-errors: 4 %", 1},
		{"healthy", otel, usual, nil, nil, v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "otel-errors: 0.167 %", 6},
		{"also named", otel, bad, []v1alpha1.ComparePreset{v1alpha1.PresetOTelErrors}, nil, v1alpha1.CheckFailed, v1alpha1.ReasonWorse,
			"otel-errors: 4 %", 1},
		{"nothing found", "", bad, nil, nil, v1alpha1.CheckNoData, v1alpha1.ReasonFewData,
			"Auto: old pods have no series of OpenTelemetry (HTTP), OpenTelemetry (gRPC), Istio, Linkerd, Spring: name presets or metrics", 1},
		{"nothing found beside a metric", "", bad, nil, []v1alpha1.CompareMetric{errorShare()}, v1alpha1.CheckFailed, v1alpha1.ReasonWorse,
			"errors: 4 %", 1},
		{"nothing found beside a healthy metric", "", usual, nil, []v1alpha1.CompareMetric{errorShare()}, v1alpha1.CheckNoData,
			v1alpha1.ReasonFewData, "Auto: old pods have no series of ", 10},
		{"of a later version", otel, bad, []v1alpha1.ComparePreset{"nginx-errors"}, nil, v1alpha1.CheckError, v1alpha1.ReasonQueryFailed,
			"the preset nginx-errors is not known to this version of the operator", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := newRanges(t, fleet(tc.fresh, 9, usual))
			server.found = tc.found
			r := newComparing(t, server, 9, tc.metrics...)
			r.s.Policies[0].Spec.Checks[0].Compare.Presets = slices.Concat(tc.presets, []v1alpha1.ComparePreset{v1alpha1.PresetAuto})
			r.s.Policies[0].Status.InForce, r.s.Policies[0].Status.InForceGeneration = &r.s.Policies[0].Spec, r.s.Policies[0].Generation
			if tc.name == "nothing found" {
				r.check().OldPods = append(r.check().OldPods, "web-2") // a pod of a StatefulSet, which has been replaced
			}
			r.run(200 * time.Second)
			r.restarted()
			r.run(20 * time.Minute)
			r.ends(tc.phase, tc.reason, tc.message)
			of := policy.Find(r.s.Policies, "operator", r.s.Selected, r.check().Name)
			want := strconv.FormatInt(of.WindowFrom(r.began).Unix(), 10)
			if n := len(server.discovered); n != tc.asked {
				t.Errorf("asked %d times", n)
			}
			for _, at := range server.discovered {
				if at != want {
					t.Errorf("asked as of %s, and the window begins at %s", at, want)
				}
			}
			for _, query := range server.asked {
				if strings.HasPrefix(query, "group by") && (strings.Count(query, "old-") != 9 || strings.Contains(query, "web-") ||
					!strings.Contains(query, `namespace="ns"`)) {
					t.Errorf("asked %s", query)
				}
			}
		})
	}
}
