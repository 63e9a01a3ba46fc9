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
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	tokenA = "0123456789abcdef"
	tokenB = "fedcba9876543210"
	// callbackContentType is what the server sends.
	callbackContentType = "application/json;UTF-8"
	passed              = `{"changeCheckType":"CHANGE_BATCH","callbackRequest":{"nodeId":"node-1","changeSceneKey":"scene",` +
		`"bizExecOrderId":"order-1","verdict":{"verdict":"pass","allFinish":true,"checkPass":true},"defenseStageEnum":"POST"}}`
	refusedBody = `{"success":false,"retry":false,"msg":"refused"}`
	// patience bounds each wait. Only a test that fails waits so long.
	patience = 10 * time.Second
)

var testNow = time.UnixMilli(1_700_000_000_123)

// fixture is a server with its dependencies.
type fixture struct {
	opts   Options
	limits limits
	clock  *clocktesting.FakePassiveClock
	server *Server

	// record stands in for the Recorder.
	record func(context.Context, *altershield.Callback) (Outcome, error)
	// request stands in for the Rollbacker.
	request func(key workload.Key, version string, at time.Time) (string, error)

	mu       sync.Mutex
	recorded []altershield.Callback
	results  []string
	lines    []string
}

func newFixture(t *testing.T, edits ...func(*fixture)) *fixture {
	t.Helper()
	f := &fixture{clock: clocktesting.NewFakePassiveClock(testNow), limits: defaultLimits()}
	f.record = func(context.Context, *altershield.Callback) (Outcome, error) { return OutcomeRecorded, nil }
	f.opts = Options{
		Address:  "127.0.0.1:0",
		Tokens:   altershield.StaticTokens{tokenA},
		Recorder: f, Rollbacks: f,
		View:  viewOf(fake.NewClientBuilder().Build()),
		Clock: f.clock,
		Log: logr.New(funcr.New(func(_, args string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.lines = append(f.lines, args)
		}, funcr.Options{}).GetSink()),
		OnCallback: func(result string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.results = append(f.results, result)
		},
	}
	for _, edit := range edits {
		edit(f)
	}
	f.server = newServer(f.opts, f.limits)
	return f
}

// RequestRollback implements Rollbacker.
func (f *fixture) RequestRollback(_ context.Context, key workload.Key, version string, at time.Time) (string, error) {
	return f.request(key, version, at)
}

// Record implements Recorder.
func (f *fixture) Record(ctx context.Context, c *altershield.Callback) (Outcome, error) {
	f.mu.Lock()
	f.recorded = append(f.recorded, *c)
	f.mu.Unlock()
	return f.record(ctx, c)
}

func (f *fixture) records() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.recorded)
}

func (f *fixture) reported() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{}, f.results...)
}

// log returns the lines logged since the last call.
func (f *fixture) log() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	lines := strings.Join(f.lines, "\n")
	f.lines = nil
	return lines
}

// handler returns the handler of the server, for the duration of the test.
func (f *fixture) handler(t *testing.T) http.Handler {
	t.Helper()
	return f.server.Handler(t.Context())
}

// signed makes a callback as the server sends it.
func signed(content, token string, at time.Time) *http.Request {
	r := httptest.NewRequest(http.MethodPost, altershield.CallbackPath, strings.NewReader(content))
	r.Header.Set("Content-Type", callbackContentType)
	sign(r, content, token, at)
	return r
}

func signedGet(query, content, token string, at time.Time) *http.Request {
	r := httptest.NewRequest(http.MethodGet, SuspendPath+query, nil)
	sign(r, content, token, at)
	return r
}

func sign(r *http.Request, content, token string, at time.Time) {
	r.Header.Set(altershield.HeaderPlatform, "kubernetes")
	r.Header.Set(altershield.HeaderTimestamp, altershield.Timestamp(at))
	r.Header.Set(altershield.HeaderSign, altershield.Sign(altershield.Timestamp(at), []byte(content), token))
}

// toAddress gives a request the address of a server, so that a client can send it.
func toAddress(t *testing.T, r *http.Request, base string) *http.Request {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	out, err := http.NewRequestWithContext(t.Context(), r.Method, base+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	out.Header = r.Header
	return out
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// expect checks an answer and the headers that every answer has.
func expect(t *testing.T, w *httptest.ResponseRecorder, status int, body string) {
	t.Helper()
	if w.Code != status || w.Body.String() != body {
		t.Errorf("answer %d %s, want %d %s", w.Code, w.Body, status, body)
	}
	for key, want := range map[string]string{
		"Content-Type": "application/json", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
		"Access-Control-Allow-Origin": "",
	} {
		if got := w.Header().Get(key); got != want {
			t.Errorf("header %s is %q, want %q", key, got, want)
		}
	}
}

// newClient is a client of a cluster in memory, with the indexes of the manager's.
func newClient(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.ChangeWorkload{}, &v1alpha1.ChangePod{}).
		WithIndex(&v1alpha1.ChangeWorkload{}, workload.IndexByOwner, workload.OwnerUID).
		WithIndex(&v1alpha1.ChangeWorkload{}, workload.IndexByOrder, workload.OrderOf).
		WithIndex(&v1alpha1.ChangePod{}, workload.IndexByNode, workload.NodeOf).
		WithIndex(&v1alpha1.ChangeWorkload{}, workload.IndexByNode, workload.NodeOf).
		WithIndex(&appsv1.ControllerRevision{}, workload.IndexByOwner, workload.HistoryOf).
		WithIndex(&appsv1.ReplicaSet{}, workload.IndexByOwner, workload.OwnerUID).
		WithInterceptorFuncs(funcs).Build()
}

// viewOf is a view of the cluster whose operator is in the namespace operator.
func viewOf(c client.Reader) cluster.View {
	return cluster.View{Cached: c, Live: c, Kinds: workload.NewRegistry(workload.Deployment{}), Operator: "operator"}
}

// receive waits for a value that must arrive.
func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("gave up waiting for %s", what)
		panic("unreachable")
	}
}
