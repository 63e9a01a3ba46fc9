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
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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
)

// gate plays a service. Answers may contain ID for the id of the request.
type gate struct {
	*httptest.Server
	mu     sync.Mutex
	answer http.HandlerFunc
	// bodies and ids are of the requests so far.
	bodies, ids []string
}

func newGate(t *testing.T, answer http.HandlerFunc) *gate {
	g := &gate{answer: answer}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost {
			t.Errorf("%s, %v", r.Method, err)
		}
		g.mu.Lock()
		g.bodies, g.ids = append(g.bodies, string(body)), append(g.ids, r.Header.Get("Webhook-Id"))
		answer := g.answer
		g.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *gate) set(answer http.HandlerFunc) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer = answer
}

func (g *gate) calls() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.ids)
}

func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, strings.ReplaceAll(body, "ID", r.Header.Get("Webhook-Id")))
	}
}

// inTurn gives each answer once, and then the last one again and again.
func inTurn(answers ...http.HandlerFunc) http.HandlerFunc {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		answer := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		mu.Unlock()
		answer(w, r)
	}
}

// newAsking returns a batch of two pods with a check of type service.
func newAsking(t *testing.T, g *gate, with ...func(*v1alpha1.PolicyCheck)) *ruled {
	t.Helper()
	r := newRuled(t, "true", append([]func(*v1alpha1.PolicyCheck){func(c *v1alpha1.PolicyCheck) {
		c.Cel, c.Service = nil, &v1alpha1.ServiceCheck{
			EndpointRef: v1alpha1.EndpointReference{Name: "gate"}, Parameters: map[string]v1alpha1.ParameterValue{"suite": "smoke"},
		}
	}}, with...)...)
	r.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}})
	e := &v1alpha1.DefenseEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "operator", Name: "gate", UID: "gate"}}
	e.Spec = v1alpha1.DefenseEndpointSpec{Type: v1alpha1.EndpointHTTP, URL: g.URL, Limits: &v1alpha1.EndpointLimits{QPS: 100}}
	r.create(e)
	r.s.Policies[0].Spec.OnNoData = v1alpha1.SilenceFails
	r.check().Type = v1alpha1.CheckTypeService
	r.restarted()
	return r
}

func polling(c *v1alpha1.PolicyCheck) { c.Service.Invoke = v1alpha1.ServicePolling }

func jsonWith(failWhen string) func(*v1alpha1.PolicyCheck) {
	return func(c *v1alpha1.PolicyCheck) { c.Service.Protocol, c.Service.FailWhen = v1alpha1.ServiceJSON, failWhen }
}

const firstID = "batch/ns/policy/rule/1-1"

// TestServiceRequest: the id is written before the call, and the request has all that a service may decide by.
func TestServiceRequest(t *testing.T) {
	g := newGate(t, says(200, `{"id":"ID","verdict":"pass","message":"all good","url":"https://gate/1"}`))
	r := newAsking(t, g)
	r.s.Release.Status.OrderID = "order"
	if step := r.next(); step.Write == nil || r.check().CallID != firstID || len(g.calls()) != 0 {
		t.Fatalf("%+v, calls %v", r.check(), g.calls())
	}
	r.run(time.Minute)
	r.ends(v1alpha1.CheckPassed, v1alpha1.ReasonServiceVerdict, "endpoint gate: pass: all good; https://gate/1")
	if calls := g.calls(); !slices.Equal(calls, []string{firstID}) {
		t.Errorf("calls %v", calls)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(g.bodies[0]), &got); err != nil {
		t.Fatal(err)
	}
	pod := func(name string) any { return map[string]any{"name": name, "uid": name, "ip": "", "node": ""} }
	want := map[string]any{
		"apiVersion": "app.ops.cloud.alipay.com/v1alpha1", "kind": "CheckReview", "id": firstID, "changeOrderId": "order",
		"defenseStage": "POST", "check": "ns/policy/rule", "pods": []any{pod("web-1"), pod("web-2")}, "oldPods": []any{},
		"parameters": map[string]any{"suite": "smoke"}, "deadline": r.began.Add(15 * time.Minute).UTC().Format(time.RFC3339),
		"release": map[string]any{
			"namespace": "ns", "workload": map[string]any{"kind": "Deployment", "name": "web"}, "version": r.s.Release.Spec.Reversion,
			"previousVersion": "", "attempt": 1.0, "batchNo": 3.0, "totalBatchNum": 5.0, "lastBatch": true,
			"changeStartTime": "1970-01-01T00:00:00Z",
		},
	}
	if got, want := fmt.Sprint(got), fmt.Sprint(want); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestServiceOfRelease(t *testing.T) {
	g := newGate(t, says(200, `{"id":"ID","verdict":"fail","message":"no"}`))
	r := newAsking(t, g, func(c *v1alpha1.PolicyCheck) { c.Stage = v1alpha1.StageReleasePre })
	r.s.Release.UID, r.s.Release.Status.Attempt, r.s.Release.Status.Checks = "release", 7, r.s.Batch.Status.Checks
	r.s.Batch, r.s.Release.Status.Checks[0].Stage = nil, v1alpha1.StageReleasePre
	for range 5 {
		step, err := r.checks.Next(t.Context(), r.s)
		if err != nil {
			t.Fatal(err)
		}
		if step.Write != nil {
			if d := step.Write(r.s); d.Release != nil {
				r.s.Release.Status = *d.Release
			}
		}
		r.checks.query.running.Wait()
	}
	c := r.s.Release.Status.Checks[0]
	if c.Phase != v1alpha1.CheckFailed || c.CallID != "release/ns/policy/rule/7-1" || len(g.bodies) != 1 ||
		!strings.Contains(g.bodies[0], `"defenseStage":"PRE"`) || strings.Contains(g.bodies[0], "batchNo") {
		t.Errorf("%+v, asked %v", c, g.bodies)
	}
}

// TestServiceAnswers: each answer has its phase and its sentence, and no answer passes but one that says so.
func TestServiceAnswers(t *testing.T) {
	pass := `{"id":"ID","verdict":"pass"}`
	huge := func(w http.ResponseWriter, _ *http.Request) {
		for range 10 {
			if _, err := w.Write([]byte(strings.Repeat(" ", 1<<20))); err != nil {
				return
			}
		}
		fmt.Fprint(w, pass)
	}
	for name, test := range map[string]struct {
		answer          http.HandlerFunc
		with            func(*v1alpha1.PolicyCheck)
		phase           v1alpha1.CheckPhase
		reason, message string
		failed          []string
		calls           int // 0 for several
	}{
		"fail": {
			answer: says(200, `{"id":"ID","verdict":"fail","message":"2 tests fail"}`),
			phase:  v1alpha1.CheckFailed, reason: v1alpha1.ReasonServiceVerdict, message: "endpoint gate: fail: 2 tests fail", calls: 1,
		},
		"fail of a pod": {
			answer: says(200, `{"id":"ID","verdict":"fail","pods":[{"name":"web-1","verdict":"pass"},`+
				`{"name":"web-2","verdict":"fail","message":"slow"},{"name":"web-2","verdict":"fail"}]}`),
			phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonServiceVerdict, message: "fail: pod web-2: slow",
			failed: []string{"web-2"}, calls: 1,
		},
		"inconc": {
			answer: says(200, `{"id":"ID","verdict":"inconc","message":"no traffic"}`),
			phase:  v1alpha1.CheckInconclusive, reason: v1alpha1.ReasonServiceVerdict, message: "inconc: no traffic", calls: 1,
		},
		"none": {
			answer: says(200, `{"id":"ID","verdict":"none"}`), phase: v1alpha1.CheckSkipped, reason: v1alpha1.ReasonServiceVerdict, calls: 1,
		},
		"another id": {
			answer: says(200, `{"id":"other","verdict":"pass"}`),
			phase:  v1alpha1.CheckError, reason: v1alpha1.ReasonInvalidAnswer, message: "the id of its answer is not the id of the request",
		},
		"another pod": {
			answer: says(200, `{"id":"ID","verdict":"fail","message":"slow","pods":[{"name":"bank-1","verdict":"fail"}]}`),
			phase:  v1alpha1.CheckFailed, reason: v1alpha1.ReasonServiceVerdict, message: "endpoint gate: fail: slow", calls: 1,
		},
		"another pod, and one of the batch": {
			answer: says(200, `{"id":"ID","verdict":"fail","pods":[{"name":"bank-1","verdict":"fail"},{"name":"web-2","verdict":"fail"}]}`),
			phase:  v1alpha1.CheckFailed, reason: v1alpha1.ReasonServiceVerdict, failed: []string{"web-2"}, calls: 1,
		},
		"pass with a pod that fails": {
			answer: says(200, `{"id":"ID","verdict":"pass","pods":[{"name":"web-1","verdict":"fail"}]}`),
			phase:  v1alpha1.CheckError, reason: v1alpha1.ReasonInvalidAnswer, message: "has pods that fail, and the verdict pass",
		},
		"an unknown verdict": {
			answer: says(200, `{"id":"ID","verdict":"PASS"}`),
			phase:  v1alpha1.CheckError, reason: v1alpha1.ReasonInvalidAnswer, message: "the verdict of its answer is none of pass,",
		},
		"garbage": {answer: says(200, "\x00\xff"), phase: v1alpha1.CheckError, reason: v1alpha1.ReasonInvalidAnswer, message: "not the JSON"},
		"HTML":    {answer: says(200, "<html>"), phase: v1alpha1.CheckError, reason: v1alpha1.ReasonInvalidAnswer, message: "not the JSON"},
		"nothing": {answer: says(204, ""), phase: v1alpha1.CheckError, reason: v1alpha1.ReasonInvalidAnswer, message: "not the JSON"},
		"JSON of another form": {
			answer: says(200, `{"id":["ID"],"verdict":"pass"}`), phase: v1alpha1.CheckError, reason: v1alpha1.ReasonInvalidAnswer,
		},
		"two answers": {answer: says(200, pass+pass), phase: v1alpha1.CheckError, reason: v1alpha1.ReasonInvalidAnswer},
		"10 MB":       {answer: huge, phase: v1alpha1.CheckError, reason: v1alpha1.ReasonUnavailable, message: "larger than"},
		"a redirect": {
			answer: func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "/other", http.StatusTemporaryRedirect)
			},
			phase: v1alpha1.CheckError, reason: v1alpha1.ReasonUnavailable, message: "redirects are not followed",
		},
		"too many requests": {
			answer: says(429, pass), phase: v1alpha1.CheckError, reason: v1alpha1.ReasonUnavailable,
			message: "until the deadline: endpoint gate: it has too many calls",
		},
		"an error": {answer: says(503, pass), phase: v1alpha1.CheckError, reason: v1alpha1.ReasonUnavailable, message: "HTTP 503"},
		"a refusal": {
			answer: says(422, pass), phase: v1alpha1.CheckError, reason: v1alpha1.ReasonRequestNotAccepted, message: "it answers HTTP 422", calls: 1,
		},
		"refused credentials": {
			answer: says(401, pass), phase: v1alpha1.CheckError, reason: v1alpha1.ReasonRequestNotAccepted, message: "credentials", calls: 1,
		},
		"no answer in time": {
			answer: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			with: func(c *v1alpha1.PolicyCheck) {
				c.Timeout = &metav1.Duration{Duration: 50 * time.Millisecond}
				c.Deadline = &metav1.Duration{Duration: 30 * time.Second}
			},
			phase: v1alpha1.CheckError, reason: v1alpha1.ReasonUnavailable, message: "it does not answer in time",
		},
		"running, and not polled": {
			answer: says(200, `{"id":"ID","verdict":"running"}`),
			phase:  v1alpha1.CheckError, reason: v1alpha1.ReasonInvalidAnswer, message: "set invoke to Polling",
		},
		"running to the end": {
			answer: says(200, `{"id":"ID","verdict":"running","message":"3 of 9","retryAfterSeconds":1e9}`), with: polling, calls: 4,
			phase: v1alpha1.CheckError, reason: v1alpha1.ReasonServiceRunning, message: "until the deadline: endpoint gate: running: 3 of 9",
		},
		"running with another id": {
			answer: says(200, `{"id":"other","verdict":"running"}`), with: polling, phase: v1alpha1.CheckError, reason: v1alpha1.ReasonInvalidAnswer,
		},
		"JSON that passes": {
			answer: says(200, `{"ok":true}`), with: jsonWith("!body.ok"), calls: 1,
			phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonServiceVerdict, message: "pass: HTTP 200, failWhen is false",
		},
		"JSON that fails": {
			answer: says(201, `{"ok":false}`), with: jsonWith("!body.ok && status == 201"), calls: 1,
			phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonServiceVerdict, message: "HTTP 201, !body.ok && status == 201 is true",
		},
		"JSON without the field": {
			answer: says(200, `{}`), with: jsonWith("!body.ok"),
			phase: v1alpha1.CheckError, reason: v1alpha1.ReasonInvalidAnswer, message: "failWhen cannot be evaluated: no such key: ok",
		},
		"no JSON": {
			answer: says(200, "OK"), with: jsonWith("!body.ok"),
			phase: v1alpha1.CheckError, reason: v1alpha1.ReasonInvalidAnswer, message: "not JSON",
		},
		"no endpoint": {
			answer: says(200, pass), with: func(c *v1alpha1.PolicyCheck) { c.Service.EndpointRef.Name = "other" },
			phase: v1alpha1.CheckError, reason: v1alpha1.ReasonNoEndpoint, message: "no endpoint other of type HTTP may be used",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate(t, test.answer)
			with := []func(*v1alpha1.PolicyCheck){}
			if test.with != nil {
				with = append(with, test.with)
			}
			r := newAsking(t, g, with...)
			r.run(16 * time.Minute)
			r.ends(test.phase, test.reason, test.message)
			c := r.check()
			if !slices.Equal(c.FailedPods, test.failed) || test.calls != 0 && len(g.calls()) != test.calls {
				t.Errorf("failed %v, calls %v", c.FailedPods, g.calls())
			}
			if (test.phase == v1alpha1.CheckError || test.phase == v1alpha1.CheckInconclusive) && c.OnSilence != v1alpha1.SilenceFails {
				t.Errorf("effect %q", c.OnSilence)
			}
			for _, id := range g.calls() {
				if id != firstID {
					t.Errorf("id %s", id)
				}
			}
		})
	}
}

// TestServicePolls: the call is repeated with its id after the time that the service asks for, also by another process.
func TestServicePolls(t *testing.T) {
	g := newGate(t, inTurn(says(202, "later"), says(200, `{"id":"ID","verdict":"running","retryAfterSeconds":60}`)))
	r := newAsking(t, g, polling)
	r.run(9 * time.Second)
	if n := len(g.calls()); n != 1 || r.check().Reason != v1alpha1.ReasonServiceRunning {
		t.Errorf("%d calls, %+v", n, r.check())
	}
	r.run(60 * time.Second)
	if n := len(g.calls()); n != 2 {
		t.Errorf("%d calls", n)
	}
	r.restarted()
	r.run(62 * time.Second)
	g.set(says(200, `{"id":"ID","verdict":"pass"}`))
	r.restarted()
	r.run(64 * time.Second)
	r.ends(v1alpha1.CheckPassed, v1alpha1.ReasonServiceVerdict, "endpoint gate: pass")
	if calls := g.calls(); len(calls) != 4 || len(slices.Compact(calls)) != 1 {
		t.Errorf("calls %v", calls)
	}
	// Down from before the call until long after the deadline.
	late := newAsking(t, g, polling)
	late.clock.SetTime(late.began.Add(24 * time.Hour))
	late.run(25 * time.Hour)
	late.ends(v1alpha1.CheckPassed, v1alpha1.ReasonServiceVerdict, "")
}

// TestServiceComesBack: errors are retried after 10 s, 20 s, 40 s and then every minute.
func TestServiceComesBack(t *testing.T) {
	g := newGate(t, says(500, ""))
	r := newAsking(t, g)
	var counts []int
	for _, at := range []time.Duration{5, 15, 35, 75, 140} {
		r.run(at * time.Second)
		counts = append(counts, len(g.calls()))
	}
	if !slices.Equal(counts, []int{1, 2, 3, 4, 5}) {
		t.Errorf("calls %v", counts)
	}
	r.ends(v1alpha1.CheckRunning, v1alpha1.ReasonUnavailable, "it answers HTTP 500")
	g.set(says(200, `{"id":"ID","verdict":"pass"}`))
	r.run(14 * time.Minute)
	r.ends(v1alpha1.CheckPassed, v1alpha1.ReasonServiceVerdict, "")
}

// TestServiceWriteFails: a verdict whose write failed is written again. The service is not asked for another one.
func TestServiceWriteFails(t *testing.T) {
	g := newGate(t, says(200, `{"id":"ID","verdict":"fail"}`))
	r := newAsking(t, g)
	stale := v1alpha1.CheckStatus{}
	for range 10 {
		if r.check().Phase == v1alpha1.CheckFailed {
			break
		}
		stale = *r.check().DeepCopy()
		r.next()
		r.checks.query.running.Wait()
	}
	r.ends(v1alpha1.CheckFailed, v1alpha1.ReasonServiceVerdict, "")
	*r.check() = stale // the write failed
	r.run(time.Minute)
	r.ends(v1alpha1.CheckFailed, v1alpha1.ReasonServiceVerdict, "")
	if calls := g.calls(); len(calls) != 1 {
		t.Errorf("calls %v", calls)
	}
}

func TestServiceInTheBackground(t *testing.T) {
	g := newGate(t, says(200, `{"id":"ID","verdict":"pass"}`))
	r := newAsking(t, g, inBackground)
	r.check().CallID = firstID // written when the check began
	r.run(14 * time.Minute)
	if r.check().Phase != v1alpha1.CheckWatching || r.writes != 0 || len(g.calls()) != 1 {
		t.Errorf("%+v, %d writes, calls %v", r.check(), r.writes, g.calls())
	}
	// Watching counts as passed after the deadline, so a check without a result is not Watching.
	slow := newAsking(t, newGate(t, says(202, "")), inBackground, polling)
	slow.run(14 * time.Minute)
	slow.ends(v1alpha1.CheckRunning, v1alpha1.ReasonServiceRunning, "")
	slow.run(16 * time.Minute)
	slow.ends(v1alpha1.CheckError, v1alpha1.ReasonServiceRunning, "")
}

// TestAnotherService: a policy that changes asks again, with another id.
func TestAnotherService(t *testing.T) {
	g := newGate(t, says(202, ""))
	r := newAsking(t, g, polling)
	r.run(time.Second)
	p := &r.s.Policies[0]
	p.Generation, p.Spec.Checks[0].Service.Parameters["suite"] = 2, "all"
	r.run(2 * time.Second)
	if calls := g.calls(); len(calls) != 2 || calls[1] != "batch/ns/policy/rule/1-2" || !strings.Contains(g.bodies[1], "all") {
		t.Errorf("calls %v", calls)
	}
}

// TestServicePodsAreGone: a batch without pods has nothing to check.
func TestServicePodsAreGone(t *testing.T) {
	g := newGate(t, says(202, ""))
	r := newAsking(t, g)
	for i := range r.s.Batch.Spec.PodInfos {
		r.s.Batch.Spec.PodInfos[i].UID = "before"
	}
	r.run(time.Minute)
	r.ends(v1alpha1.CheckSkipped, v1alpha1.ReasonNoPods, "no pod of the batch is left")
	if len(g.calls()) != 0 {
		t.Error("it was asked")
	}
}

// TestServiceOfOthers: a policy asks only services that its namespace may use, and no Prometheus.
func TestServiceOfOthers(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.DefenseEndpoint){
		"for the operator": func(e *v1alpha1.DefenseEndpoint) {
			e.Spec.AllowedNamespaces = &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesSame}
		},
		"a Prometheus": func(e *v1alpha1.DefenseEndpoint) { e.Spec.Type = v1alpha1.EndpointPrometheus },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate(t, says(200, `{"id":"ID","verdict":"pass"}`))
			r := newAsking(t, g)
			var e v1alpha1.DefenseEndpoint
			if err := r.api.Get(t.Context(), types.NamespacedName{Namespace: "operator", Name: "gate"}, &e); err != nil {
				t.Fatal(err)
			}
			change(&e)
			if err := r.api.Update(t.Context(), &e); err != nil {
				t.Fatal(err)
			}
			r.run(16 * time.Minute)
			r.ends(v1alpha1.CheckError, v1alpha1.ReasonNoEndpoint, "of type HTTP")
			if len(g.calls()) != 0 {
				t.Error("it was asked")
			}
		})
	}
}

// TestServiceTexts: texts of a service are bounded, and its address is one of the web.
func TestServiceTexts(t *testing.T) {
	for url, want := range map[string]string{
		"https://gate/runs/1?a=b": "done; https://gate/runs/1?a=b", "http://gate": "done; http://gate", "": "done",
		"javascript:alert(1)": "done", "file:///etc/passwd": "done", "https://": "done", "https://me:secret@gate": "done", "://": "done",
		"https://gate/\u202e": "done; https://gate/%E2%80%AE", "https://gate/" + strings.Repeat("a", 400): "done",
	} {
		if got := (&reviewAnswer{Message: "do\x1bne", URL: url}).text(); got != want {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
	long := strings.Repeat("x", 5000)
	r, problem := readReview(endpoint.Answer{Status: 200, Body: fmt.Appendf(nil,
		`{"id":"a","verdict":"fail","message":%q,"url":"https://gate/%s","pods":[{"name":"p","verdict":"fail","message":%q}]}`,
		long, strings.Repeat("y", 300), long)}, "a", []string{"p"})
	if problem != "" || len(r.Message) > 1000 {
		t.Errorf("%d bytes, %s", len(r.Message), problem)
	}
}

// TestServiceIDs: an id is of one check of one attempt, and has no dot, which separates the parts of a signed text.
func TestServiceIDs(t *testing.T) {
	r := newAsking(t, newGate(t, says(202, "")))
	of, err := find(t.Context(), r.checks.view, &r.s, r.check())
	if err != nil {
		t.Fatal(err)
	}
	of.Name = "ns/a.b/c"
	if got := callID(&r.s, of); got != "batch/ns/a:b/c/1-1" {
		t.Error(got)
	}
}
