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
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/promql"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/slots"
)

// prometheus plays the query API of Prometheus.
type prometheus struct {
	*httptest.Server
	mu sync.Mutex
	// answer returns the result of a query, as JSON, or the status of an error.
	answer func(query string) (result string, status int)
	asked  []string
	times  []string
}

func newPrometheus(t *testing.T, answer func(query string) (string, int)) *prometheus {
	p := &prometheus{answer: answer}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		p.mu.Lock()
		p.asked, p.times = append(p.asked, r.PostForm.Get("query")), append(p.times, r.PostForm.Get("time"))
		result, status := p.answer(r.PostForm.Get("query"))
		p.mu.Unlock()
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":%s}}`, result)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *prometheus) set(answer func(query string) (string, int)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

func (p *prometheus) queries() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

// value answers with one series.
func value(v float64) func(string) (string, int) {
	return func(string) (string, int) {
		return fmt.Sprintf(`[{"metric":{"pod":"web-1"},"value":[1,"%g"]}]`, v), 200
	}
}

func nothing(string) (string, int) { return "[]", 200 }

func broken(string) (string, int) { return "[]", 502 }

// byTurns answers as two replicas behind one address do.
func byTurns(a, b func(string) (string, int)) func(string) (string, int) {
	return func(query string) (string, int) {
		now := a
		a, b = b, a
		return now(query)
	}
}

const errorsQuery = `sum(rate(errors_total{namespace="bank",$podLabel=~"$pods"}[$range]))`

// newQuerying returns a batch of two pods with a check of type prometheus.
func newQuerying(t *testing.T, server *prometheus, with ...func(*v1alpha1.PolicyCheck)) *ruled {
	t.Helper()
	r := newRuled(t, "true", append([]func(*v1alpha1.PolicyCheck){func(c *v1alpha1.PolicyCheck) {
		c.Cel, c.Prometheus = nil, &v1alpha1.PrometheusCheck{
			EndpointRef: v1alpha1.EndpointReference{Name: "prom"}, Query: errorsQuery, FailWhen: "value > 0.05", Count: 4, Failures: 2,
		}
	}}, with...)...)
	r.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"team": "shop"}}})
	e := &v1alpha1.DefenseEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "operator", Name: "prom", UID: "prom"}}
	e.Spec = v1alpha1.DefenseEndpointSpec{Type: v1alpha1.EndpointPrometheus, URL: server.URL, Limits: &v1alpha1.EndpointLimits{QPS: 100}}
	r.create(e)
	r.s.Policies[0].Spec.OnNoData = v1alpha1.SilenceFails
	r.check().Type = v1alpha1.CheckTypePrometheus
	r.restarted()
	return r
}

// restarted starts another process, which may call the test server.
func (r *ruled) restarted() {
	r.restart()
	r.checks.query.clients = endpoint.NewClients(r.api, r.clock, endpoint.Guarded(anywhere))
}

// decidesAgain fails unless the check, if it has just ended, ends in the same way again after a write that failed.
func (r *ruled) decidesAgain(before v1alpha1.ChangePodStatus) {
	r.Helper()
	ended, events, writes := r.check().DeepCopy(), r.events, r.writes
	if !record.CheckIsOver(ended) || record.CheckIsOver(&before.Checks[0]) || ended.Phase == v1alpha1.CheckWatching {
		return
	}
	r.s.Batch.Status = before
	r.next()
	r.events, r.writes = events, writes
	if again := r.check(); !reflect.DeepEqual(again, ended) {
		r.Errorf("after a write that failed, the check is %+v, want %+v", again, ended)
	}
}

// run lets the check go on until a time after its start, in steps of 5 seconds or less.
func (r *ruled) run(until time.Duration) {
	r.Helper()
	for range 1000 {
		before := *r.s.Batch.Status.DeepCopy()
		step := r.next()
		r.decidesAgain(before)
		r.checks.query.running.Wait()
		end := r.began.Add(until)
		switch now := r.clock.Now(); {
		case step.Write != nil:
		case r.check().Phase != v1alpha1.CheckRunning && r.check().Phase != v1alpha1.CheckWatching:
			return
		case !now.Before(end) && step.After != resultsEvery:
			return
		case step.After == resultsEvery:
			r.clock.SetTime(now.Add(resultsEvery))
		default:
			left := end.Sub(now)
			if step.After > 0 {
				left = min(left, step.After)
			}
			r.clock.SetTime(now.Add(max(left, 0)))
		}
	}
	r.Fatal("it does not end")
}

func (r *ruled) ends(phase v1alpha1.CheckPhase, reason, message string) {
	r.Helper()
	if c := r.check(); c.Phase != phase || c.Reason != reason || !strings.Contains(c.Message, message) {
		r.Errorf("%s %s: %s, want %s %s: %s", c.Phase, c.Reason, c.Message, phase, reason, message)
	}
}

// limited is the query of newQuerying for its batch.
const limitedQuery = `sum(rate(errors_total{namespace="bank",namespace="ns",pod=~"web-1|web-2"}[2m]))`

func TestQueryPasses(t *testing.T) {
	server := newPrometheus(t, value(0.01))
	r := newQuerying(t, server)
	r.run(5 * time.Minute)
	r.ends(v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "4 of 4 evaluations had data")
	asked := server.queries()
	if len(asked) != 4 || asked[0] != limitedQuery {
		t.Errorf("asked %q", asked)
	}
	for i, at := range server.times {
		if want := fmt.Sprint(r.began.Add(2*time.Minute + time.Duration(i)*30*time.Second).Unix()); at != want {
			t.Errorf("evaluation %d as of %s, want %s", i, at, want)
		}
	}
	c, samples := r.check(), []string{`{pod="web-1"} 0.01`}
	if c.Query != limitedQuery || c.Value != "0.01" || !slices.Equal(c.Samples, samples) || c.Measured != 4 {
		t.Errorf("status %+v", c)
	}
}

func TestQueryFails(t *testing.T) {
	server := newPrometheus(t, value(0.5))
	r := newQuerying(t, server)
	r.run(5 * time.Minute)
	r.ends(v1alpha1.CheckFailed, v1alpha1.ReasonThreshold, "value 0.5; value > 0.05 is true 2 times in a row")
	if n := len(server.queries()); n != 2 || r.clock.Now().Sub(r.began) > 185*time.Second {
		t.Errorf("%d queries until %s", n, r.clock.Now().Sub(r.began))
	}
	if r.s.Batch.Status.Message != v1alpha1.ChangePodMessagePostFinish || len(r.check().FailedPods) != 0 {
		t.Errorf("batch %+v", r.s.Batch.Status)
	}
}

// TestQueryRestarts: another process continues from the status, with the same planned times.
func TestQueryRestarts(t *testing.T) {
	server := newPrometheus(t, value(0.01))
	r := newQuerying(t, server)
	for until := 10 * time.Second; until < 5*time.Minute; until += 10 * time.Second {
		r.run(until)
		r.restarted()
	}
	r.run(5 * time.Minute)
	r.ends(v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "4 of 4")
	if n := len(server.queries()); n != 4 {
		t.Errorf("%d queries", n)
	}
	// Down from before the first evaluation until long after the deadline.
	late := newQuerying(t, server)
	late.clock.SetTime(late.began.Add(24 * time.Hour))
	late.run(25 * time.Hour)
	late.ends(v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "4 of 4")
}

// TestQueryWriteFails: an answer is not lost with the write.
func TestQueryWriteFails(t *testing.T) {
	server := newPrometheus(t, value(0.5))
	r := newQuerying(t, server)
	r.run(150 * time.Second)
	before := len(server.queries())
	stale := r.check().DeepCopy()
	r.run(180 * time.Second)
	r.ends(v1alpha1.CheckFailed, v1alpha1.ReasonThreshold, "")
	*r.check() = *stale // the write was lost
	r.s.Batch.Status.Status = v1alpha1.ChangePodPostSubmitted
	r.run(200 * time.Second)
	r.ends(v1alpha1.CheckFailed, v1alpha1.ReasonThreshold, "")
	if n := len(server.queries()); n > before+2 {
		t.Errorf("%d queries, %d before", n, before)
	}
}

func TestQueryInTheBackground(t *testing.T) {
	server := newPrometheus(t, value(0.01))
	r := newQuerying(t, server, inBackground)
	r.run(14 * time.Minute)
	if r.check().Phase != v1alpha1.CheckWatching || r.writes != 0 || len(server.queries()) != 4 {
		t.Errorf("%+v, %d writes, %d queries", r.check(), r.writes, len(server.queries()))
	}
	// Another process asks again, and writes nothing.
	r.restarted()
	r.run(14*time.Minute + 30*time.Second)
	if r.writes != 0 || len(server.queries()) != 8 {
		t.Errorf("%d writes, %d queries", r.writes, len(server.queries()))
	}
	bad := newQuerying(t, newPrometheus(t, value(1)), inBackground)
	bad.run(5 * time.Minute)
	bad.ends(v1alpha1.CheckFailed, v1alpha1.ReasonThreshold, "")
}

// TestQueryBadDays: what Prometheus may do, with its phase and sentence.
func TestQueryBadDays(t *testing.T) {
	for name, test := range map[string]struct {
		answer          func(string) (string, int)
		with            func(*v1alpha1.PolicyCheck)
		phase           v1alpha1.CheckPhase
		reason, message string
	}{
		"empty": {answer: nothing, phase: v1alpha1.CheckNoData, reason: v1alpha1.ReasonNoSeries, message: "0 of 4 evaluations had data"},
		"empty is zero": {
			answer: nothing, with: func(c *v1alpha1.PolicyCheck) { c.Prometheus.Empty = v1alpha1.EmptyZero },
			phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed, message: "value 0",
		},
		"empty is zero, and bad": {
			answer: nothing, with: func(c *v1alpha1.PolicyCheck) {
				c.Prometheus.Empty, c.Prometheus.FailWhen = v1alpha1.EmptyZero, "value < 1.0"
			},
			phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonThreshold, message: "value 0",
		},
		"not a number": {
			answer: func(string) (string, int) { return `[{"metric":{},"value":[1,"NaN"]}]`, 200 },
			phase:  v1alpha1.CheckNoData, reason: v1alpha1.ReasonNotFinite,
		},
		"down": {
			answer: broken, phase: v1alpha1.CheckError, reason: v1alpha1.ReasonUnavailable, message: "until the deadline: endpoint prom: it",
		},
		"two replicas that disagree": {
			answer: byTurns(value(0.01), value(0.5)), phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed,
			message: "5 of 5 evaluations had data; the last one: value 0.01",
		},
		"two replicas, one of them empty": {
			answer: byTurns(value(0.01), nothing), phase: v1alpha1.CheckNoData, reason: v1alpha1.ReasonNoSeries,
			message: "2 of 4 evaluations had data",
		},
		"two replicas, one of them down": {
			answer: byTurns(broken, value(0.01)), phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed, message: "4 of 4",
		},
		"several series": {
			answer: func(string) (string, int) {
				return `[{"metric":{"a":"1"},"value":[1,"1"]},{"metric":{"a":"2"},"value":[1,"2"]}]`, 200
			},
			phase: v1alpha1.CheckError, reason: v1alpha1.ReasonManySeries, message: "the result has 2 series, and value exists only if",
		},
		"several series, and a rule for them": {
			answer: func(string) (string, int) {
				return `[{"metric":{"a":"1"},"value":[1,"1"]},{"metric":{"a":"2"},"value":[1,"2"]}]`, 200
			},
			with: func(c *v1alpha1.PolicyCheck) {
				c.Prometheus.FailWhen = "size(values) == 2 && samples.exists(s, s.labels.a == '2' && s.value > 1.5)"
			},
			phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonThreshold, message: `first series {a="2"} 2`,
		},
		"a label that is missing": {
			answer: value(1), with: func(c *v1alpha1.PolicyCheck) { c.Prometheus.FailWhen = "samples.all(s, s.labels.zone == 'a')" },
			phase: v1alpha1.CheckError, reason: v1alpha1.ReasonCannotEvaluate, message: "failWhen cannot be evaluated: no such key: zone",
		},
		"an unknown variable": {
			answer: value(1), with: func(c *v1alpha1.PolicyCheck) { c.Prometheus.Query = "a{b='$tenant'}" },
			phase: v1alpha1.CheckError, reason: v1alpha1.ReasonQueryFailed, message: "the variable $tenant is not known",
		},
		"no endpoint": {
			answer: value(1), with: func(c *v1alpha1.PolicyCheck) { c.Prometheus.EndpointRef.Name = "other" },
			phase: v1alpha1.CheckError, reason: v1alpha1.ReasonNoEndpoint, message: "no endpoint other of type Prometheus may be used",
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := newPrometheus(t, test.answer)
			r := newQuerying(t, server)
			if test.with != nil {
				test.with(&r.s.Policies[0].Spec.Checks[0])
				// It was accepted by another version of the operator.
				r.s.Policies[0].Status.InForce, r.s.Policies[0].Status.InForceGeneration = r.s.Policies[0].Spec.DeepCopy(), 1
			}
			r.run(16 * time.Minute)
			r.ends(test.phase, test.reason, test.message)
			if test.phase == v1alpha1.CheckError && r.check().OnSilence != v1alpha1.SilenceFails {
				t.Errorf("effect %q", r.check().OnSilence)
			}
		})
	}
}

// TestPrometheusComesBack: an outage that ends before the deadline changes nothing.
func TestPrometheusComesBack(t *testing.T) {
	server := newPrometheus(t, broken)
	r := newQuerying(t, server)
	r.run(10 * time.Minute)
	r.ends(v1alpha1.CheckRunning, v1alpha1.ReasonUnavailable, "endpoint prom: it")
	server.set(value(0.01))
	r.run(14 * time.Minute)
	r.ends(v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "4 of 4")
}

// TestAnotherQuery: a policy that changes begins again, with its new query.
func TestAnotherQuery(t *testing.T) {
	server := newPrometheus(t, value(0.5))
	r := newQuerying(t, server)
	r.run(150 * time.Second)
	p := &r.s.Policies[0]
	p.Generation, p.Spec.Checks[0].Prometheus.Query = 2, "max(latency)"
	r.run(151 * time.Second)
	if c := r.check(); c.Query != `max(latency{namespace="ns"})` || c.ConsecutiveFailures != 1 || c.Generation != 2 {
		t.Errorf("%+v", c)
	}
}

// TestPodsAreGone: a batch without pods has nothing to check.
func TestPodsAreGone(t *testing.T) {
	server := newPrometheus(t, value(0.5))
	r := newQuerying(t, server)
	for _, name := range []string{"web-1", "web-2"} {
		if err := r.api.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	r.run(5 * time.Minute)
	r.ends(v1alpha1.CheckSkipped, v1alpha1.ReasonNoPods, "no pod of the batch is left")
	if len(server.queries()) != 0 {
		t.Error("it was asked")
	}
}

func changeEndpoint(r *ruled, f func(*v1alpha1.DefenseEndpoint)) {
	var e v1alpha1.DefenseEndpoint
	if err := r.api.Get(r.Context(), types.NamespacedName{Namespace: "operator", Name: "prom"}, &e); err != nil {
		r.Fatal(err)
	}
	f(&e)
	if err := r.api.Update(r.Context(), &e); err != nil {
		r.Fatal(err)
	}
}

// TestEndpointsOfOthers: a policy uses only endpoints that its namespace may use, and reads only its own series.
func TestEndpointsOfOthers(t *testing.T) {
	onlyOperator := func(e *v1alpha1.DefenseEndpoint) {
		e.Spec.AllowedNamespaces = &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesSame}
	}
	for name, f := range map[string]func(*v1alpha1.DefenseEndpoint){
		"for the operator": onlyOperator,
		"for another team": func(e *v1alpha1.DefenseEndpoint) {
			e.Spec.AllowedNamespaces = &v1alpha1.AllowedNamespaces{
				From: v1alpha1.NamespacesSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "bank"}},
			}
		},
		"of another type": func(e *v1alpha1.DefenseEndpoint) { e.Spec.Type = v1alpha1.EndpointHTTP },
	} {
		t.Run(name, func(t *testing.T) {
			server := newPrometheus(t, value(0.5))
			r := newQuerying(t, server)
			changeEndpoint(r, f)
			r.run(16 * time.Minute)
			r.ends(v1alpha1.CheckError, v1alpha1.ReasonNoEndpoint, "ask an administrator")
			if len(server.queries()) != 0 {
				t.Error("it was asked")
			}
		})
	}
	t.Run("of its own namespace", func(t *testing.T) {
		server := newPrometheus(t, value(0.5))
		r := newQuerying(t, server)
		changeEndpoint(r, onlyOperator)
		r.create(&v1alpha1.DefenseEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "prom"}, Spec: v1alpha1.DefenseEndpointSpec{
			Type: v1alpha1.EndpointPrometheus, URL: server.URL,
		}})
		r.run(16 * time.Minute)
		r.ends(v1alpha1.CheckError, v1alpha1.ReasonNoEndpoint, "")
	})
	t.Run("a policy of the operator", func(t *testing.T) {
		server := newPrometheus(t, value(0.5))
		r := newQuerying(t, server)
		changeEndpoint(r, onlyOperator)
		r.s.Policies[0].Namespace, r.check().Name = "operator", "operator/policy/rule"
		r.run(5 * time.Minute)
		r.ends(v1alpha1.CheckFailed, v1alpha1.ReasonThreshold, "")
		if asked := server.queries()[0]; strings.Contains(asked, `namespace="ns"`) {
			t.Errorf("asked %s", asked)
		}
	})
}

// TestSecretsOfOthers: a check does not name the Secrets of its endpoint.
func TestSecretsOfOthers(t *testing.T) {
	server := newPrometheus(t, value(0.5))
	r := newQuerying(t, server)
	changeEndpoint(r, func(e *v1alpha1.DefenseEndpoint) {
		e.Spec.Auth = &v1alpha1.EndpointAuth{SecretRef: &v1alpha1.SecretReference{Name: "s3cret"}}
	})
	r.run(16 * time.Minute)
	r.ends(v1alpha1.CheckError, v1alpha1.ReasonUnavailable, "endpoint prom: it is not accepted")
	if strings.Contains(r.check().Message, "s3cret") || len(server.queries()) != 0 {
		t.Errorf("message %s", r.check().Message)
	}
}

// TestForget: a call ends with its subject.
func TestForget(t *testing.T) {
	entered, ended := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm() // without its body, the server does not notice that the client leaves
		close(entered)
		<-r.Context().Done()
		close(ended)
	}))
	defer server.Close()
	r := newQuerying(t, &prometheus{Server: server}, func(c *v1alpha1.PolicyCheck) { c.Timeout = &metav1.Duration{Duration: time.Minute} })
	r.clock.SetTime(r.began.Add(150 * time.Second))
	r.next()
	<-entered
	r.checks.Forget(r.s.Key())
	<-ended
	r.checks.query.running.Wait()
}

// TestTry: what a policy learns when its queries are tried.
func TestTry(t *testing.T) {
	// has answers a query if all of its texts are in it.
	has := func(texts ...string) func(string) (string, int) {
		return func(query string) (string, int) {
			for _, text := range texts {
				if strings.Contains(query, text) {
					return "[]", 200
				}
			}
			return value(1)(query)
		}
	}
	// finds answers the query of Auto with a name of series, and others with a value.
	finds := func(series string) func(string) (string, int) {
		return func(query string) (string, int) {
			if strings.HasPrefix(query, "group by (__name__") {
				return fmt.Sprintf(`[{"metric":{"__name__":%q},"value":[1,"1"]}]`, series), 200
			}
			return value(1)(query)
		}
	}
	auto := func(more ...v1alpha1.ComparePreset) func(*v1alpha1.PolicyCheck) {
		return func(c *v1alpha1.PolicyCheck) {
			c.Compare = &v1alpha1.CompareCheck{EndpointRef: c.Prometheus.EndpointRef, Presets: append(more, v1alpha1.PresetAuto)}
			c.Prometheus = nil
		}
	}
	for name, test := range map[string]struct {
		answer          func(string) (string, int)
		with            func(*v1alpha1.PolicyCheck)
		status          metav1.ConditionStatus
		reason, message string
	}{
		"Auto finds an exporter": {
			answer: finds("http_server_requests_seconds_count"), with: auto(v1alpha1.PresetMemory), status: metav1.ConditionTrue,
			reason: v1alpha1.ReasonSeriesFound, message: "tried for web; check rule: Auto compares spring-errors, spring-latency",
		},
		"Auto finds no exporter": {
			answer: nothing, with: auto(), status: metav1.ConditionFalse, reason: v1alpha1.ReasonNoSeries,
			message: "check rule, tried for web: Auto: the pods have no series of OpenTelemetry (HTTP), OpenTelemetry (gRPC), Istio, Linkerd",
		},
		"Auto finds requests that pods send": {
			answer: finds("istio_requests_total"), with: auto(), status: metav1.ConditionFalse, reason: v1alpha1.ReasonNoSeries,
			message: "Auto: the pods have no series of ",
		},
		"Auto while Prometheus is down": {
			answer: broken, with: auto(), status: metav1.ConditionUnknown, reason: v1alpha1.ReasonUnavailable, message: "it answers HTTP 502",
		},
		"values of no pod": {
			answer: func(string) (string, int) { return `[{"metric":{},"value":[1,"1"]}]`, 200 }, with: func(c *v1alpha1.PolicyCheck) {
				auto()(c)
				c.Compare.Presets = []v1alpha1.ComparePreset{v1alpha1.PresetCPU}
			}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonWrongLabel, message: "the result has no label pod, so pods cannot be compared",
		},
		"slices shorter than scrapes": {
			answer: value(1), with: func(c *v1alpha1.PolicyCheck) {
				auto()(c)
				c.Compare.Presets = []v1alpha1.ComparePreset{v1alpha1.PresetCPU}
				c.Compare.Slice = &metav1.Duration{Duration: 30 * time.Second}
			}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonQueryFailed, message: "compare.slice of 30s has less than two scrapes",
		},
		"a preset without series": {
			answer: has("container_cpu_"), with: func(c *v1alpha1.PolicyCheck) {
				auto()(c)
				c.Compare.Presets = []v1alpha1.ComparePreset{v1alpha1.PresetCPU}
			}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonUnknownMetric, message: "container_cpu_usage_seconds_total has no series",
		},
		"series": {answer: value(0.1), status: metav1.ConditionTrue, reason: v1alpha1.ReasonSeriesFound, message: "tried for web"},
		"unknown metric": {answer: nothing, status: metav1.ConditionFalse, reason: v1alpha1.ReasonUnknownMetric,
			message: "check rule, tried for web: errors_total has no series of this namespace in the last 2m0s"},
		"wrong label": {
			answer: has("pod=~"), status: metav1.ConditionFalse, reason: v1alpha1.ReasonWrongLabel,
			message: `none matches pod=~"-": is the label pod right?`, // the Deployment of this test has no ReplicaSet
		},
		"only the whole": {
			answer: has("rate("), status: metav1.ConditionFalse, reason: v1alpha1.ReasonNoSeries, message: "no series as of 30s ago: sum(rate(",
		},
		"a long query": {
			answer: nothing, with: func(c *v1alpha1.PolicyCheck) { c.Prometheus.Query = `{__name__="` + strings.Repeat("a", 4000) + `"}` },
			status: metav1.ConditionFalse, reason: v1alpha1.ReasonNoSeries, message: "aaa...",
		},
		"no series are fine": {
			answer: nothing, with: func(c *v1alpha1.PolicyCheck) { c.Prometheus.Empty = v1alpha1.EmptyZero },
			status: metav1.ConditionTrue, reason: v1alpha1.ReasonSeriesFound,
		},
		"several series": {
			answer: func(string) (string, int) {
				return `[{"metric":{"a":"1"},"value":[1,"1"]},{"metric":{"a":"2"},"value":[1,"2"]}]`, 200
			},
			status: metav1.ConditionFalse, reason: v1alpha1.ReasonQueryFailed, message: "value exists only if",
		},
		"down": {answer: broken, status: metav1.ConditionUnknown, reason: v1alpha1.ReasonUnavailable, message: "it answers HTTP 502"},
		"no endpoint": {
			answer: nothing, with: func(c *v1alpha1.PolicyCheck) { c.Prometheus.EndpointRef.Name = "other" },
			status: metav1.ConditionUnknown, reason: v1alpha1.ReasonNoEndpoint, message: "no endpoint other",
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := newPrometheus(t, test.answer)
			r := newQuerying(t, server)
			if test.with != nil {
				test.with(&r.s.Policies[0].Spec.Checks[0])
			}
			got, err := r.checks.Try(t.Context(), &r.s.Policies[0], r.s.Workload, r.s.Selected)
			if err != nil || got.Status != test.status || got.Reason != test.reason || !strings.Contains(got.Message, test.message) {
				t.Errorf("%+v, %v", got, err)
			}
			for _, asked := range server.queries() {
				if !strings.Contains(asked, `namespace="ns"`) {
					t.Errorf("asked %s", asked)
				}
			}
		})
	}
}

// TestEvaluatePanics: a panic of the client ends one evaluation, and not the manager.
func TestEvaluatePanics(t *testing.T) {
	e := &v1alpha1.DefenseEndpoint{}
	e.Name = "prom"
	broken := &querier{} // it has no client
	got := broken.evaluate(t.Context(), &policy.Check{}, e, slots.Work{}, &question{Query: &promql.Query{Text: "up"}}, time.Time{})
	if got == nil || got.Reason != v1alpha1.ReasonUnavailable || !strings.Contains(got.Message, "endpoint prom") {
		t.Errorf("%+v", got)
	}
}
