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

package controllers_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/world"
)

const errorRate = world.Namespace + "/policy/health"

// promAPI answers the queries of a story over connections in memory.
type promAPI struct {
	// result returns the result of a query, as JSON; empty for a connection that breaks.
	result func(query string) string
	// counter returns the counter of a pod, a time after the start of the story; nil if no query asks for a range.
	counter func(query, pod string, after time.Duration) float64
}

func (p promAPI) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go p.serve(theirs)
	return ours, nil
}

// serve answers one request.
func (p promAPI) serve(conn net.Conn) {
	defer conn.Close()
	r, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil || r.ParseForm() != nil {
		return
	}
	query := r.PostForm.Get("query")
	result := `[{"metric":{},"value":[1,"1"]}]`
	if query != "vector(1)" { // whether it is reachable
		result = p.result(query)
	}
	if result == "" {
		return
	}
	kind := "vector"
	if strings.HasSuffix(r.URL.Path, "/query_range") {
		kind, result = "matrix", p.ranges(r.PostForm)
	}
	body := fmt.Sprintf(`{"status":"success","data":{"resultType":%q,"result":%s}}`, kind, result)
	answer := http.Response{
		StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Close: true, ContentLength: int64(len(body)),
		Body: io.NopCloser(strings.NewReader(body)),
	}
	_ = answer.Write(conn) // the client may be gone
}

// podsOfQuery finds the pods in a query.
var podsOfQuery = regexp.MustCompile(`web-[a-z0-9]+-[0-9]{5}`)

// ranges answers a query about a range with one series for each of its pods.
func (p promAPI) ranges(form url.Values) string {
	number := func(name string) int {
		v, err := strconv.ParseFloat(form.Get(name), 64)
		if err != nil {
			panic(err)
		}
		return int(v)
	}
	var all []string
	for _, pod := range podsOfQuery.FindAllString(form.Get("query"), -1) {
		var values []string
		for at := number("start"); at <= number("end"); at += number("step") {
			value := p.counter(form.Get("query"), pod, time.Unix(int64(at), 0).Sub(worldStart))
			if !math.IsNaN(value) {
				values = append(values, fmt.Sprintf(`[%d,"%d"]`, at, int(value)))
			}
		}
		all = append(all, fmt.Sprintf(`{"metric":{"pod":%q},"values":[%s]}`, pod, strings.Join(values, ",")))
	}
	return "[" + strings.Join(all, ",") + "]"
}

// worldStart is the time at which stories begin.
var worldStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// comparing compares errors of new and old pods. Each pod has 600 requests a minute; a pod whose number is larger than some has errors.
func comparing(good int) world.Options {
	o := asking(nil, func(p *v1alpha1.DefensePolicy) {
		p.Spec.Hold = &v1alpha1.PolicyHold{Until: v1alpha1.HoldFirstBatch}
		p.Spec.Checks[0].Prometheus, p.Spec.Checks[0].Compare = nil, &v1alpha1.CompareCheck{
			EndpointRef: v1alpha1.EndpointReference{Name: "prom"}, Metrics: []v1alpha1.CompareMetric{{
				Name: "errors", Numerator: `sum by (pod) (errors_total{pod=~"$pods"})`, Denominator: `sum by (pod) (requests_total{pod=~"$pods"})`,
			}},
		}
	})
	api := promAPI{sample("1"), func(query, pod string, after time.Duration) float64 {
		minutes := (after + 24*time.Hour).Minutes()
		number, err := strconv.Atoi(pod[strings.LastIndex(pod, "-")+1:])
		switch {
		case err != nil:
			panic(err)
		case !strings.Contains(query, "errors_total"):
			return 600 * minutes
		case number > good:
			return 60 * minutes
		default:
			return minutes
		}
	}}
	o.Dial = api.dial
	return o
}

// comparingBefore compares the latency of new pods with that of old pods before the release. A pod whose number is larger than some is
// slow; the first ones have no latency after a while.
func comparingBefore(old, good int, with ...func(*v1alpha1.DefensePolicy)) world.Options {
	least := resource.MustParse("5")
	o := asking(nil, append([]func(*v1alpha1.DefensePolicy){func(p *v1alpha1.DefensePolicy) {
		p.Spec.Checks[0].Prometheus, p.Spec.Checks[0].Compare = nil, &v1alpha1.CompareCheck{
			EndpointRef: v1alpha1.EndpointReference{Name: "prom"}, Baseline: v1alpha1.BaselineAuto,
			Metrics: []v1alpha1.CompareMetric{{Name: "latency", Query: `sum by (pod) (latency{pod=~"$pods"})`, MinChange: &least}},
		}
	}}, with...)...)
	o.Dial = promAPI{sample("1"), func(_, pod string, after time.Duration) float64 {
		switch number, err := strconv.Atoi(pod[strings.LastIndex(pod, "-")+1:]); {
		case err != nil:
			panic(err)
		case number <= old && after > formerly+time.Minute:
			return math.NaN()
		case number > good:
			return 1000
		default:
			return 100
		}
	}}.dial
	return o
}

// surging is a Deployment that removes no old pod before a new one is available, so that each release finds all of them.
func surging(replicas int32) *appsv1.Deployment {
	d := web(replicas)
	d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{
		MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(1)),
	}
	return d
}

// formerly is about when the second release of allRecreated begins.
const formerly = 20 * time.Minute

// allRecreated is a Deployment of which no old pod lives beside a new one, and whose pods have been Ready for a while.
func allRecreated(w *world.World, replicas int32) {
	d := web(replicas)
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	create(w, d)
	until(w, v1alpha1.ChangeWorkloadSuccess)
	w.For(formerly)
}

// sample is a result with one series.
func sample(value string) func(string) string {
	return func(string) string { return fmt.Sprintf(`[{"metric":{"pod":"web"},"value":[1,%q]}]`, value) }
}

// asking has a policy with a query, and an endpoint.
func asking(result func(query string) string, with ...func(*v1alpha1.DefensePolicy)) world.Options {
	e := v1alpha1.DefenseEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: world.OperatorNamespace, Name: "prom"}}
	e.Spec = v1alpha1.DefenseEndpointSpec{Type: v1alpha1.EndpointPrometheus, URL: "http://prometheus.test"}
	o := withPolicies(noDefault(), podHealth("policy", append([]func(*v1alpha1.DefensePolicy){func(p *v1alpha1.DefensePolicy) {
		c := &p.Spec.Checks[0]
		c.PodHealth, c.Prometheus = nil, &v1alpha1.PrometheusCheck{
			EndpointRef: v1alpha1.EndpointReference{Name: "prom"}, Query: `sum(rate(errors{namespace=~".+",pod=~"$pods"}[$range]))`,
			FailWhen: "value > 0.05", Count: 3, Failures: 2,
		}
	}}, with...)...))
	o.Endpoints, o.Dial = []v1alpha1.DefenseEndpoint{e}, promAPI{result: result}.dial
	return o
}

// alerting asks for alerts instead, in the background.
func alerting(p *v1alpha1.DefensePolicy) {
	p.Spec.Checks[0].Prometheus, p.Spec.Checks[0].Alerts = nil, &v1alpha1.AlertsCheck{EndpointRef: v1alpha1.EndpointReference{Name: "prom"}}
}

// firing is a result with an alert about the workload that has no known start, and was not there before the release.
func firing(query string) string {
	if strings.HasPrefix(query, "last_over_time(ALERTS{") {
		return "[]"
	}
	return `[{"metric":{},"value":[1,"1"]},{"metric":{"alertname":"Errors","alertstate":"firing","deployment":"web"},"value":[1,"1"]}]`
}

func effect(field func(*v1alpha1.DefensePolicy) *v1alpha1.OnSilence, of v1alpha1.OnSilence) func(*v1alpha1.DefensePolicy) {
	return func(p *v1alpha1.DefensePolicy) { *field(p) = of }
}

func ofNoData(p *v1alpha1.DefensePolicy) *v1alpha1.OnSilence { return &p.Spec.OnNoData }

func ofError(p *v1alpha1.DefensePolicy) *v1alpha1.OnSilence { return &p.Spec.OnError }

// endsAs waits for the phase of the check.
func endsAs(w *world.World, phase v1alpha1.CheckPhase, reason, message string) {
	w.Until("the check is "+string(phase), func() bool { c := checkOf(w, errorRate); return c != nil && c.Phase == phase })
	if c := checkOf(w, errorRate); c.Reason != reason || !strings.Contains(c.Message, message) {
		w.Failf("the check is %+v", c)
	}
}

// queryStories are stories of checks by a Prometheus.
var queryStories = []world.Story{
	{Name: "few errors", Options: asking(sample("0.01")), Run: func(w *world.World) {
		create(w, web(2))
		endsAs(w, v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "3 of 3 evaluations had data")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		if c := checkOf(w, errorRate); !strings.Contains(c.Query, `{namespace="`+world.Namespace+`",namespace=~".+",pod=~"web-`) {
			w.Failf("asked %s", c.Query)
		}
	}},
	{Name: "many errors behind green probes, while the rollout is held", Options: asking(func(query string) string {
		if strings.Contains(query, "web-") {
			return sample("0.1")(query)
		}
		return "[]"
	}, func(p *v1alpha1.DefensePolicy) { p.Spec.Hold = &v1alpha1.PolicyHold{Until: v1alpha1.HoldFirstBatch} }), Run: func(w *world.World) {
		create(w, web(3))
		endsAs(w, v1alpha1.CheckFailed, v1alpha1.ReasonThreshold, "value 0.1; value > 0.05 is true 2 times in a row")
		until(w, v1alpha1.ChangeWorkloadSuspend)
		w.Until("it is blocked", func() bool { return labelled(w, v1alpha1.SuspendLabel) })
	}},
	{Name: "no data, which passes", Options: asking(func(string) string { return "[]" }, effect(ofNoData, v1alpha1.SilencePasses)),
		Run: func(w *world.World) {
			create(w, web(1))
			endsAs(w, v1alpha1.CheckNoData, v1alpha1.ReasonNoSeries, "0 of 3 evaluations had data")
			until(w, v1alpha1.ChangeWorkloadSuccess)
		}},
	{Name: "no data, which fails", Options: asking(func(string) string { return "[]" }, effect(ofNoData, v1alpha1.SilenceFails)),
		Run: func(w *world.World) {
			create(w, web(1))
			endsAs(w, v1alpha1.CheckNoData, v1alpha1.ReasonNoSeries, "")
			until(w, v1alpha1.ChangeWorkloadSuspend)
		}},
	{Name: "a Prometheus that is down, and must answer",
		Options: asking(func(string) string { return "" }, effect(ofError, v1alpha1.SilenceFails)), Run: func(w *world.World) {
			create(w, web(1))
			endsAs(w, v1alpha1.CheckError, v1alpha1.ReasonUnavailable, "until the deadline: endpoint prom: it")
			until(w, v1alpha1.ChangeWorkloadSuspend)
		}},
	{Name: "an alert about the workload", Options: asking(firing, alerting), Run: func(w *world.World) {
		create(w, web(2))
		endsAs(w, v1alpha1.CheckFailed, v1alpha1.ReasonAlertFiring, "alert Errors fires")
		until(w, v1alpha1.ChangeWorkloadSuspend)
		w.Until("it is blocked", func() bool { return labelled(w, v1alpha1.SuspendLabel) })
		if c := checkOf(w, errorRate); !c.Background || strings.Count(c.Query, `namespace="`+world.Namespace+`"`) != 3 {
			w.Failf("the check is %+v", c)
		}
	}},
	{Name: "no alert", Options: asking(func(string) string { return `[{"metric":{},"value":[1,"1"]}]` }, alerting), Run: func(w *world.World) {
		create(w, web(1))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.For(30 * time.Minute)
		if c := checkOf(w, errorRate); c.Phase != v1alpha1.CheckWatching {
			w.Failf("the check is %+v", c)
		}
	}},
	{Name: "more errors than old pods, while the rollout is held", Options: comparing(4), Run: func(w *world.World) {
		create(w, web(4))
		endsAs(w, v1alpha1.CheckSkipped, v1alpha1.ReasonNoOldPods, "no version succeeded before this one")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		release(w, "bad")
		endsAs(w, v1alpha1.CheckFailed, v1alpha1.ReasonWorse, "errors: 10 % of ")
		until(w, v1alpha1.ChangeWorkloadSuspend)
		if b := w.Change("web").Status.Baseline; b != nil {
			w.Failf("no check needs %+v", b)
		}
		w.Until("it is blocked", func() bool { return labelled(w, v1alpha1.SuspendLabel) })
	}},
	{Name: "as many errors as old pods, while the rollout is held", Options: comparing(1000), Run: func(w *world.World) {
		create(w, web(4))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		release(w, "second")
		endsAs(w, v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "5 of 5 evaluations had data; the last one: errors: 0.167 % of ")
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "slower than pods before the release", Options: comparingBefore(0, 4, func(p *v1alpha1.DefensePolicy) {
		p.Spec.Hold, p.Spec.Checks[0].Compare.Baseline = &v1alpha1.PolicyHold{Until: v1alpha1.HoldFirstBatch}, v1alpha1.BaselinePreRelease
	}), Run: func(w *world.World) {
		create(w, surging(4))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.For(formerly)
		for i, bad := range []func(){func() { release(w, "bad") }, func() { override(w, "worse") }} {
			bad()
			endsAs(w, v1alpha1.CheckFailed, v1alpha1.ReasonWorse, "in the 5 minutes before the release: +900 %")
			until(w, v1alpha1.ChangeWorkloadSuspend)
			if b := w.Change("web").Status.Baseline; b == nil || len(b.Pods) != 4 {
				w.Failf("release %d kept %+v", i, b)
			}
		}
	}},
	{Name: "a Prometheus that is down", Options: asking(func(string) string { return "" }), Run: func(w *world.World) {
		create(w, web(1))
		endsAs(w, v1alpha1.CheckError, v1alpha1.ReasonUnavailable, "")
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
}

// TestComparedRecreated: a release whose old pods all end at once is compared with the time before it, and one that overrides it with the
// time before both. These stories are not swept: a manager that is down at that moment finds no old pod.
func TestComparedRecreated(t *testing.T) {
	world.Reference(t, world.Story{Name: "slower", Options: comparingBefore(4, 4), Run: func(w *world.World) {
		allRecreated(w, 4)
		release(w, "bad")
		endsAs(w, v1alpha1.CheckFailed, v1alpha1.ReasonWorse, "against 100 in 4 old ones in the 5 minutes before the release: +900 %")
		until(w, v1alpha1.ChangeWorkloadSuspend)
		override(w, "worse")
		endsAs(w, v1alpha1.CheckFailed, v1alpha1.ReasonWorse, "against 100 in 4 old ones in the 5 minutes before 2000-01-01 00:")
	}})
	world.Reference(t, world.Story{Name: "as slow", Options: comparingBefore(2, 1000), Run: func(w *world.World) {
		allRecreated(w, 2)
		release(w, "second")
		endsAs(w, v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "against 100 in 2 old ones in the 5 minutes before the release: +0 %")
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}})
}

// TestComparedInBackground: a pass in the background is written, since later batches read it. The story is not swept: how many old pods are
// left when a later batch begins is luck, and a process that dies does not know how many evaluations had data.
func TestComparedInBackground(t *testing.T) {
	background := func(p *v1alpha1.DefensePolicy) {
		p.Spec.Checks[0].Wait, p.Spec.Hold = new(bool), &v1alpha1.PolicyHold{Until: v1alpha1.HoldFirstBatch}
	}
	world.Reference(t, world.Story{Name: "as slow as old pods", Options: comparingBefore(0, 1000, background), Run: func(w *world.World) {
		create(w, surging(4))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.For(formerly)
		release(w, "second")
		endsAs(w, v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "evaluations had data; the last one: latency: 100 in 1 new pod against 100 in ")
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}})
}

func TestQueries(t *testing.T) {
	for _, story := range queryStories {
		t.Run(story.Name, func(t *testing.T) { world.Reference(t, story) })
	}
}

// TestQueriesAreTried: a policy says what its queries found, and an endpoint whether it answers.
func TestQueriesAreTried(t *testing.T) {
	result := "[]"
	world.Reference(t, world.Story{Name: "tried", Options: asking(func(string) string { return result }), Run: func(w *world.World) {
		create(w, web(1))
		queriesWork := func() *metav1.Condition {
			for _, p := range world.List[*v1alpha1.DefensePolicy](w, "DefensePolicy") {
				return meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionQueriesWork)
			}
			return nil
		}
		w.Until("the query is tried", func() bool { return queriesWork() != nil })
		if c := queriesWork(); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonUnknownMetric ||
			!strings.Contains(c.Message, "errors has no series of this namespace") {
			w.Failf("the condition is %+v", c)
		}
		w.For(5 * time.Minute)
		for _, e := range w.Endpoints() {
			if !meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.ConditionReachable) ||
				!meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.ConditionAccepted) {
				w.Failf("the endpoint is %+v", e.Status)
			}
		}
		writes := 0
		for _, write := range w.Writes() {
			if strings.Contains(strings.ToLower(write), "endpoint") {
				writes++
			}
		}
		if writes != 0 || len(w.Endpoints()) != 1 { // the first write was before the story began
			w.Failf("%d writes to %d endpoints", writes, len(w.Endpoints()))
		}
	}})
}
