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

package endpoint

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/breaker"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/slots"
)

const vector = `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"pod":"web-1"},"value":[1700000000,"0.5"]}]}}`

// scene is an endpoint at a test server.
type scene struct {
	*testing.T
	clock   *clocktesting.FakePassiveClock
	e       *v1alpha1.DefenseEndpoint
	secrets []client.Object
	gets    []string
	getErr  error
	guard   Guard
	clients *Clients
}

func newScene(t *testing.T, url string) *scene {
	anywhere := func(context.Context, string, string, syscall.RawConn) error { return nil }
	s := &scene{T: t, guard: anywhere, clock: clocktesting.NewFakePassiveClock(time.Now()), e: &v1alpha1.DefenseEndpoint{}}
	s.e.Namespace, s.e.Name, s.e.UID, s.e.Generation = "operator", "prom", "prom-uid", 1
	s.e.Spec = v1alpha1.DefenseEndpointSpec{Type: v1alpha1.EndpointPrometheus, URL: url}
	return s
}

func (s *scene) secret(name string, labelled bool, data map[string]string) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "operator", Name: name}, Data: map[string][]byte{}}
	if labelled {
		secret.Labels = map[string]string{v1alpha1.EndpointSecretLabel: "true"}
	}
	for key, value := range data {
		secret.Data[key] = []byte(value)
	}
	s.secrets = append(s.secrets, secret)
}

// prepare makes the clients, once.
func (s *scene) prepare() *Clients {
	if s.clients == nil {
		api := fake.NewClientBuilder().WithObjects(s.secrets...).WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
				s.gets = append(s.gets, key.String())
				if s.getErr != nil {
					return s.getErr
				}
				return c.Get(ctx, key, into, o...)
			},
			List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
				return errors.New("no Secret is listed")
			},
		}).Build()
		s.clients = NewClients(api, s.clock, Guarded(s.guard))
	}
	return s.clients
}

func (s *scene) query(timeout time.Duration) ([]rules.Sample, error) {
	s.Helper()
	return s.prepare().Query(s.Context(), s.e, slots.Work{Namespace: "shop"}, `a{pod="web-1"}`, s.clock.Now(), timeout)
}

// fails makes a query, and wants an error.
func (s *scene) fails(reason, message string) {
	s.Helper()
	_, err := s.query(5 * time.Second)
	var failed *Error
	if !errors.As(err, &failed) || failed.Reason != reason || !strings.Contains(failed.Message, message) {
		s.Errorf("error %#v, want %s: %s", err, reason, message)
	}
}

func answering(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

func TestAnswers(t *testing.T) {
	result := func(kind, of string) string {
		return fmt.Sprintf(`{"status":"success","data":{"resultType":%q,"result":%s}}`, kind, of)
	}
	many := strings.TrimSuffix(strings.Repeat(`{"metric":{},"value":[1,"1"]},`, MaxSeries+1), ",")
	for name, test := range map[string]struct {
		body string
		want []rules.Sample
		err  string
	}{
		"a vector": {body: vector, want: []rules.Sample{{Labels: map[string]string{"pod": "web-1"}, Value: 0.5}}},
		"a scalar": {body: result("scalar", `[1,"3"]`), want: []rules.Sample{{Value: 3}}},
		"nothing":  {body: result("vector", `[]`), want: []rules.Sample{}},
		"no number": {
			body: result("vector", `[{"metric":{},"value":[1,"NaN"]},{"metric":{},"value":[1,"+Inf"]}]`),
			want: []rules.Sample{{Labels: map[string]string{}, Value: math.NaN()}, {Labels: map[string]string{}, Value: math.Inf(1)}},
		},
		"too many series": {body: result("vector", "["+many+"]"), err: "more than 500 series"},
		"a matrix":        {body: result("matrix", `[]`), err: "no valid answer"},
		"a histogram": {
			body: result("vector", `[{"metric":{},"histogram":[1,{"count":"1","sum":"1","buckets":[]}]}]`), err: "native histogram",
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(answering(200, test.body))
			defer server.Close()
			got, err := newScene(t, server.URL).query(5 * time.Second)
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("error %v, want %q", err, test.err)
			}
			nan := cmp.Comparer(func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) })
			if diff := cmp.Diff(test.want, got, nan); diff != "" && err == nil {
				t.Error(diff)
			}
		})
	}
}

// TestRequest: the query goes to the API with its time, and with the credentials.
func TestRequest(t *testing.T) {
	var got *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		got = r
		answering(200, vector)(w, r)
	}))
	defer server.Close()
	s := newScene(t, server.URL+"/prometheus")
	s.secret("login", true, map[string]string{"token": "s3cret\n"})
	s.e.Spec.Auth = &v1alpha1.EndpointAuth{SecretRef: &v1alpha1.SecretReference{Name: "login"}}
	s.e.Spec.Headers = map[string]v1alpha1.HeaderValue{"X-Scope-OrgID": "shop"}
	s.clock.SetTime(time.Unix(1700000000, 0))
	if _, err := s.query(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"query": `a{pod="web-1"}`, "time": "1700000000", "timeout": "5s", "limit": "501"}
	for key, value := range want {
		if got.PostForm.Get(key) != value {
			t.Errorf("%s is %q, want %q", key, got.PostForm.Get(key), value)
		}
	}
	login, tenant := got.Header.Get("Authorization"), got.Header.Get("X-Scope-OrgID")
	if got.URL.Path != "/prometheus/api/v1/query" || login != "Bearer s3cret" || tenant != "shop" {
		t.Errorf("request to %s with %v", got.URL.Path, got.Header)
	}
}

// TestBadDays: each failure has its sentence, without any text of the answer except of Prometheus about the query.
func TestBadDays(t *testing.T) {
	page := "<html>internal: password=hunter2</html>"
	for name, test := range map[string]struct {
		handler         http.HandlerFunc
		reason, message string
	}{
		"a refused query": {
			answering(400, `{"status":"error","errorType":"bad_data","error":"parse error: unknown\u001b function"}`), v1alpha1.ReasonQueryFailed,
			"it refuses the query: parse error: unknown",
		},
		"a failed query": {
			answering(422, `{"status":"error","errorType":"execution","error":"found duplicate series"}`), v1alpha1.ReasonQueryFailed,
			"found duplicate series",
		},
		"too many calls":   {answering(429, page), v1alpha1.ReasonUnavailable, "lower limits.qps"},
		"wrong password":   {answering(401, page), v1alpha1.ReasonUnavailable, "it refuses the credentials (HTTP 401)"},
		"not allowed":      {answering(403, page), v1alpha1.ReasonUnavailable, "it refuses the credentials (HTTP 403)"},
		"another path":     {answering(404, page), v1alpha1.ReasonUnavailable, "it answers HTTP 404"},
		"a broken gateway": {answering(502, page), v1alpha1.ReasonUnavailable, "it answers HTTP 502"},
		"overload": {
			answering(503, `{"status":"error","errorType":"timeout","error":"x"}`), v1alpha1.ReasonUnavailable, "it answers HTTP 503",
		},
		"HTML":       {answering(200, page), v1alpha1.ReasonUnavailable, "no valid answer"},
		"other JSON": {answering(200, `{"password":"hunter2"}`), v1alpha1.ReasonUnavailable, "no valid answer"},
		"garbage":    {answering(200, "\x00\x1b[2J\xff{hunter2"), v1alpha1.ReasonUnavailable, "no valid answer"},
		"nothing":    {answering(200, ``), v1alpha1.ReasonUnavailable, "no valid answer"},
		"10 MB":      {answering(200, vector+strings.Repeat(" ", 10<<20)), v1alpha1.ReasonUnavailable, "larger than limits.responseBytes"},
		"a redirect": {
			func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(r.URL.Path, "/secret") {
					t.Error("it followed the redirect")
				}
				http.Redirect(w, r, "/secret", http.StatusTemporaryRedirect)
			}, v1alpha1.ReasonUnavailable, "it redirects (HTTP 307)",
		},
		"a reset": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, v1alpha1.ReasonUnavailable, "without an answer"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(test.handler)
			defer server.Close()
			s := newScene(t, server.URL)
			s.fails(test.reason, test.message)
			if _, err := s.query(5 * time.Second); strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("error %q", err)
			}
		})
	}
	t.Run("no answer in time", func(t *testing.T) {
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_ = r.ParseForm() // without its body, the server does not notice that the client leaves
			<-r.Context().Done()
		}))
		defer server.Close()
		if _, err := newScene(t, server.URL).query(50 * time.Millisecond); err == nil || err.Error() != "it does not answer in time" {
			t.Errorf("error %v", err)
		}
	})
	t.Run("nothing listens", func(t *testing.T) {
		server := httptest.NewServer(nil)
		server.Close()
		newScene(t, server.URL).fails(v1alpha1.ReasonUnavailable, "it refuses connections")
	})
}

// TestCredentials: only a labelled Secret of the endpoint's namespace is read, by its name.
func TestCredentials(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if user, password, _ := r.BasicAuth(); user != "me" || password != "s3cret" {
			t.Errorf("user %q, password %q", user, password)
		}
		answering(200, vector)(w, r)
	}))
	defer server.Close()
	for name, test := range map[string]struct {
		secret  func(*scene)
		message string
	}{
		"a user and a password": {func(s *scene) { s.secret("login", true, map[string]string{"username": "me", "password": "s3cret"}) }, ""},
		"without the label": {
			func(s *scene) { s.secret("login", false, map[string]string{"token": "s3cret"}) }, "has no Secret login with the label",
		},
		"no Secret": {func(*scene) {}, "has no Secret login with the label"},
		"no key": {
			func(s *scene) { s.secret("login", true, map[string]string{"other": "s3cret"}) }, "has neither the key token, nor",
		},
		"not allowed": {
			func(s *scene) {
				s.getErr = apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "login", nil)
			},
			"may not get Secret login",
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := asked.Load()
			s := newScene(t, server.URL)
			s.e.Spec.Auth = &v1alpha1.EndpointAuth{SecretRef: &v1alpha1.SecretReference{Name: "login"}}
			test.secret(s)
			if test.message == "" {
				if _, err := s.query(time.Minute); err != nil {
					t.Error(err)
				}
			} else if s.fails(v1alpha1.ReasonCredentials, test.message); asked.Load() != before {
				t.Error("the endpoint was called")
			}
			if !cmp.Equal(s.gets, []string{"operator/login"}) {
				t.Errorf("read %v", s.gets)
			}
		})
	}
	t.Run("changed", func(t *testing.T) {
		s := newScene(t, server.URL)
		s.e.Spec.Auth = &v1alpha1.EndpointAuth{SecretRef: &v1alpha1.SecretReference{Name: "login"}}
		s.secret("login", true, map[string]string{"username": "me", "password": "s3cret"})
		for range 3 {
			if _, err := s.query(time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		s.clock.SetTime(s.clock.Now().Add(freshFor))
		if _, err := s.query(time.Minute); err != nil || len(s.gets) != 2 {
			t.Errorf("%d reads, %v", len(s.gets), err)
		}
	})
}

func TestTLS(t *testing.T) {
	server := httptest.NewTLSServer(answering(200, vector))
	server.Config.ErrorLog = nil
	defer server.Close()
	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	ca := &v1alpha1.EndpointTLS{CASecretRef: &v1alpha1.SecretReference{Name: "ca"}}
	with := func(tls *v1alpha1.EndpointTLS, pem string) *scene {
		s := newScene(t, server.URL)
		s.e.Spec.TLS = tls
		s.secret("ca", true, map[string]string{"ca.crt": pem})
		return s
	}
	if _, err := with(ca, authority).query(time.Minute); err != nil {
		t.Error(err)
	}
	with(nil, "").fails(v1alpha1.ReasonUnavailable, "its certificate is of an unknown authority: name it in spec.tls.caSecretRef")
	with(ca, "s3cret, not PEM").fails(v1alpha1.ReasonCredentials, "they must be PEM")
	with(ca, "").fails(v1alpha1.ReasonCredentials, "has no key ca.crt")
	other := ca.DeepCopy()
	other.ServerName = "other.test"
	with(other, authority).fails(v1alpha1.ReasonUnavailable, "its certificate is for another name")
	pair := &v1alpha1.EndpointTLS{CertSecretRef: &v1alpha1.SecretReference{Name: "ca"}}
	with(pair, authority).fails(v1alpha1.ReasonCredentials, "has no key tls.crt")
}

// TestGuard: the resolved address is checked, also the address of tokens.
func TestGuard(t *testing.T) {
	server := httptest.NewServer(answering(200, vector))
	defer server.Close()
	var dialled []string
	guard := func(_ context.Context, _, address string, _ syscall.RawConn) error {
		dialled = append(dialled, address)
		return errors.New("no")
	}
	s := newScene(t, strings.Replace(server.URL, "127.0.0.1", "localhost", 1))
	s.guard = guard
	s.fails(v1alpha1.ReasonUnavailable, "its address may not be called")
	if len(dialled) == 0 || strings.HasPrefix(dialled[0], "localhost") {
		t.Errorf("checked %v", dialled)
	}
	s = newScene(t, "http://prom.test")
	s.guard = guard
	s.secret("login", true, map[string]string{"clientID": "me", "clientSecret": "s3cret"})
	s.e.Spec.Auth = &v1alpha1.EndpointAuth{OAuth2: &v1alpha1.EndpointOAuth2{
		SecretRef: v1alpha1.SecretReference{Name: "login"}, TokenURL: server.URL + "/token",
	}}
	s.fails(v1alpha1.ReasonUnavailable, "its address may not be called")
}

func TestOAuth2(t *testing.T) {
	var tokens atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			tokens.Add(1)
			answering(200, `{"access_token":"t0ken","token_type":"Bearer","expires_in":3600}`)(w, r)
			return
		}
		if r.Header.Get("Authorization") != "Bearer t0ken" {
			t.Errorf("logged in with %q", r.Header.Get("Authorization"))
		}
		answering(200, vector)(w, r)
	}))
	defer server.Close()
	s := newScene(t, server.URL)
	s.secret("login", true, map[string]string{"clientID": "me", "clientSecret": "s3cret"})
	s.e.Spec.Auth = &v1alpha1.EndpointAuth{OAuth2: &v1alpha1.EndpointOAuth2{
		SecretRef: v1alpha1.SecretReference{Name: "login"}, TokenURL: server.URL + "/token",
	}}
	for range 2 {
		if _, err := s.query(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if tokens.Load() != 1 {
		t.Errorf("%d tokens", tokens.Load())
	}
}

// TestTokenAddress: the client's secret goes to no other address, and no call waits longer for a token than for an endpoint.
func TestTokenAddress(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it followed the redirect") }))
	defer other.Close()
	for name, test := range map[string]struct {
		handler http.Handler
		message string
	}{
		"a redirect": {http.RedirectHandler(other.URL+"/token", http.StatusTemporaryRedirect), "tokenURL gives no token (HTTP 307)"},
		"HTML":       {answering(200, "<html>hunter2</html>"), "it cannot be called"},
		"refused":    {answering(401, "hunter2"), "spec.auth.oauth2.tokenURL gives no token (HTTP 401)"},
		"no answer": {http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_ = r.ParseForm() // without its body, the server does not notice that the client leaves
			<-r.Context().Done()
		}), "it does not answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			tokens := httptest.NewServer(test.handler)
			defer tokens.Close()
			s := newScene(t, "http://127.0.0.1:1")
			s.secret("login", true, map[string]string{"clientID": "me", "clientSecret": "s3cret"})
			s.e.Spec.Auth = &v1alpha1.EndpointAuth{OAuth2: &v1alpha1.EndpointOAuth2{
				SecretRef: v1alpha1.SecretReference{Name: "login"}, TokenURL: tokens.URL,
			}}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, err := s.query(time.Second)
				if err == nil || !strings.Contains(err.Error(), test.message) || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("error %v", err)
				}
			}()
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Error("the call does not end")
				tokens.CloseClientConnections()
				<-ended
			}
		})
	}
}

// TestBreaker: an endpoint that fails is not called for a while; a refused query is an answer.
func TestBreaker(t *testing.T) {
	var calls atomic.Int32
	var status atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if status.Load() == 200 {
			answering(200, vector)(w, r)
			return
		}
		answering(int(status.Load()), `{"status":"error","errorType":"bad_data","error":"no"}`)(w, r)
	}))
	defer server.Close()
	s := newScene(t, server.URL)
	s.e.Spec.Limits = &v1alpha1.EndpointLimits{QPS: 100, Concurrency: 1}
	status.Store(400)
	for range 2 * breaker.MaxFailures {
		s.fails(v1alpha1.ReasonQueryFailed, "it refuses the query")
	}
	status.Store(502)
	for range breaker.MaxFailures {
		s.fails(v1alpha1.ReasonUnavailable, "it answers HTTP 502")
	}
	before := calls.Load()
	s.fails(v1alpha1.ReasonUnavailable, "it answers HTTP 502")
	if calls.Load() != before {
		t.Error("it was called")
	}
	if err := s.clients.Reach(t.Context(), s.e); err == nil {
		t.Error("it is reachable")
	}
	status.Store(200)
	if err := s.clients.Reach(t.Context(), s.e); err != nil {
		t.Error(err)
	}
	if _, err := s.query(time.Minute); err != nil {
		t.Errorf("after it answered again: %v", err)
	}
}

// TestConcurrency: no more calls run at a time than the endpoint allows.
func TestConcurrency(t *testing.T) {
	var running, most atomic.Int32
	entered, leave := make(chan struct{}, 8), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := running.Add(1)
		defer running.Add(-1)
		most.Store(max(most.Load(), n))
		entered <- struct{}{}
		<-leave
		answering(200, vector)(w, r)
	}))
	defer server.Close()
	s := newScene(t, server.URL)
	s.e.Spec.Limits = &v1alpha1.EndpointLimits{QPS: 100, Concurrency: 2}
	s.clients = NewClients(fake.NewClientBuilder().Build(), s.clock, Guarded(s.guard))
	done := make(chan error, 6)
	for i := range 6 {
		go func() {
			_, err := s.clients.Query(t.Context(), s.e, slots.Work{Namespace: fmt.Sprint(i)}, "a", s.clock.Now(), time.Minute)
			done <- err
		}()
	}
	<-entered
	<-entered
	close(leave)
	for range 6 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if most.Load() != 2 {
		t.Errorf("%d calls at a time", most.Load())
	}
}

func TestProblem(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1alpha1.DefenseEndpointSpec)
		want   string
	}{
		"nothing":  {func(*v1alpha1.DefenseEndpointSpec) {}, ""},
		"a header": {func(s *v1alpha1.DefenseEndpointSpec) { s.Headers = map[string]v1alpha1.HeaderValue{"X-A": "b"} }, ""},
		"credentials in a header": {
			func(s *v1alpha1.DefenseEndpointSpec) {
				s.Headers = map[string]v1alpha1.HeaderValue{"authorization": "b"}
			}, "use auth for credentials",
		},
		"a cookie": {func(s *v1alpha1.DefenseEndpointSpec) { s.Headers = map[string]v1alpha1.HeaderValue{"Cookie": "b"} }, "use auth"},
		"another host": {
			func(s *v1alpha1.DefenseEndpointSpec) { s.Headers = map[string]v1alpha1.HeaderValue{"Host": "b"} }, "is set by the operator",
		},
		"two headers in one": {
			func(s *v1alpha1.DefenseEndpointSpec) { s.Headers = map[string]v1alpha1.HeaderValue{"a\r\nb": "c"} }, "is not valid",
		},
		"a selector": {
			func(s *v1alpha1.DefenseEndpointSpec) {
				s.AllowedNamespaces = &v1alpha1.AllowedNamespaces{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}}
			}, "spec.allowedNamespaces.selector",
		},
	} {
		e := &v1alpha1.DefenseEndpoint{}
		test.change(&e.Spec)
		if got := Problem(e); !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestAllows(t *testing.T) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "shop"}}
	for name, test := range map[string]struct {
		of   *v1alpha1.AllowedNamespaces
		want map[string]bool
	}{
		"nothing said": {nil, map[string]bool{"operator": true, "shop": true, "bank": true}},
		"all":          {&v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesAll}, map[string]bool{"operator": true, "shop": true}},
		"same":         {&v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesSame}, map[string]bool{"operator": true, "shop": false}},
		"selected": {
			&v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesSelector, Selector: selector},
			map[string]bool{"operator": true, "shop": true, "bank": false},
		},
		"no selector":        {&v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesSelector}, map[string]bool{"shop": false}},
		"of a later version": {&v1alpha1.AllowedNamespaces{From: "Teams"}, map[string]bool{"shop": false}},
	} {
		e := &v1alpha1.DefenseEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "operator"}}
		e.Spec.AllowedNamespaces = test.of
		for namespace, want := range test.want {
			if got := Allows(e, namespace, map[string]string{"team": namespace}); got != want {
				t.Errorf("%s: %s %v, want %v", name, namespace, got, want)
			}
		}
	}
}
