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

package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/recorder"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/traas-stack/altershield-operator/controllers"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/checks"
	observed "github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/servertime"
	"github.com/traas-stack/altershield-operator/routers"
	"github.com/traas-stack/altershield-operator/runnable"
	"github.com/traas-stack/altershield-operator/test/observer"
	"github.com/traas-stack/altershield-operator/webhooks"
)

// newProcess starts a manager. Only the scheduler may call it.
func (w *World) newProcess(number int, lag map[string]time.Duration) *Process {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Process{
		world: w, number: number, lag: lag, webhooks: http.NewServeMux(), recorded: map[eventKey]recorded{},
		ctx: ctx, cancel: cancel,
	}
	if err := p.setUp(); err != nil {
		panic(err)
	}
	for _, r := range p.runnables {
		p.running.Go(func() {
			if err := r.Start(withRunnable(ctx, r)); err != nil && ctx.Err() == nil {
				panic(err)
			}
		})
	}
	synctest.Wait()
	w.all = append(w.all, p)
	w.api.judge.OperatorStarts(time.Now())
	return p
}

// withRunnable names the task of a runnable without reconciles.
func withRunnable(ctx context.Context, r manager.Runnable) context.Context {
	if _, ok := r.(*runnable.Defaults); ok {
		return withTask(ctx, "defaults")
	}
	return ctx
}

// machineClock is the clock of a machine.
type machineClock struct{ ahead time.Duration }

func (c machineClock) Now() time.Time                  { return time.Now().Add(c.ahead) }
func (c machineClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// setUp does what main does, except for the parts of a machine: sockets, files, certificates and
// the lease.
func (p *Process) setUp() error {
	w := p.world
	kinds := w.kinds
	o := controllers.Options{Spread: func() float64 { return 0.5 }, Guard: checks.NewGuard("")}
	if w.server != nil {
		server, err := w.server.connect(p)
		if err != nil {
			return err
		}
		o.Server = server
	}
	p.cache = newCache(w.api, controllers.CacheOptions(kinds, OperatorNamespace))
	if w.past > 0 {
		p.cache.past, p.heldUntil, w.past = w.past, time.Now().Add(heldFor), 0
	}
	p.live = interceptor.NewClient(w.api.client, interceptor.Funcs{Get: p.getLive, List: p.listLive})
	p.client = &processClient{WithWatch: interceptor.NewClient(w.api.client, interceptor.Funcs{
		Create: p.create, Update: p.update, Patch: p.patch, Delete: p.delete,
		SubResourceCreate: p.evict, SubResourceUpdate: p.updateStatus, SubResourcePatch: p.patchStatus,
	}), process: p}
	mgr := &processManager{process: p}
	p.clock = servertime.New(machineClock{ahead: w.clocks[len(w.all)%len(w.clocks)]})
	p.hearDate()
	c := observed.New(mgr, observed.Options{Namespace: OperatorNamespace, Clock: p.clock, Kinds: kinds})
	o.Clients = endpoint.NewClients(c.Live, c.Clock, w.dial)
	if err := controllers.Setup(p.ctx, mgr, c, o); err != nil {
		return err
	}
	return errors.Join(
		webhooks.SetupWithManager(mgr, webhooks.Options{
			Kinds: kinds, Self: Operator, Log: mgr.GetLogger(), Settings: c.InForceRequested, Past: c.Past,
			Policies: webhooks.PoliciesBy(c.View), Rules: c.Rules, Hold: c.InForceAtAdmission, HoldSteps: c.HoldSteps,
		}),
		routers.SetupWithManager(mgr, routers.Options{
			Address: ":0", Tokens: altershield.StaticTokens{token}, Clock: c.Clock, View: c.View, Rollbacks: c, Log: mgr.GetLogger(),
		}),
		(&runnable.RollbackScanner{Cluster: c}).SetupWithManager(mgr),
		mgr.Add(&runnable.Defaults{Client: p.client, Namespace: OperatorNamespace, Log: mgr.GetLogger()}),
	)
}

// serve sends a request to the callback address.
func (p *Process) serve(r *http.Request) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	// The handler runs with the context of its lifetime, which carries the task here.
	p.callbacks.Handler(context.WithValue(p.ctx, taskKey{}, r.Context().Value(taskKey{}))).ServeHTTP(answer, r)
	return answer
}

// processManager is a manager with the methods that the operator calls; all others panic.
type processManager struct {
	ctrl.Manager
	process *Process
}

// Add implements manager.Manager.
func (m *processManager) Add(r manager.Runnable) error {
	if s, ok := r.(*routers.Server); ok {
		m.process.callbacks = s // no socket here
		return nil
	}
	m.process.useQueue(r)
	m.process.runnables = append(m.process.runnables, r)
	return nil
}

// Elected implements manager.Manager.
func (m *processManager) Elected() <-chan struct{} {
	elected := make(chan struct{})
	close(elected)
	return elected
}

// AddHealthzCheck implements manager.Manager.
func (m *processManager) AddHealthzCheck(string, healthz.Checker) error { return nil }

// AddReadyzCheck implements manager.Manager.
func (m *processManager) AddReadyzCheck(string, healthz.Checker) error { return nil }

// GetLogger implements manager.Manager.
func (m *processManager) GetLogger() logr.Logger {
	return logr.New(&logSink{world: m.process.world, process: m.process.number})
}

// GetControllerOptions implements manager.Manager.
func (m *processManager) GetControllerOptions() config.Controller {
	again := true
	return config.Controller{SkipNameValidation: &again}
}

// GetCache implements manager.Manager.
func (m *processManager) GetCache() cache.Cache { return m.process.cache }

// GetFieldIndexer implements manager.Manager.
func (m *processManager) GetFieldIndexer() client.FieldIndexer { return m.process.cache }

// GetScheme implements manager.Manager.
func (m *processManager) GetScheme() *runtime.Scheme { return scheme }

// GetRESTMapper implements manager.Manager.
func (m *processManager) GetRESTMapper() meta.RESTMapper { return mapper }

// GetClient implements manager.Manager.
func (m *processManager) GetClient() client.Client { return m.process.client }

// GetAPIReader implements manager.Manager.
func (m *processManager) GetAPIReader() client.Reader { return m.process.live }

// GetEventRecorder implements manager.Manager.
func (m *processManager) GetEventRecorder(string) recorder.EventRecorder {
	return &eventRecorder{process: m.process}
}

// GetWebhookServer implements manager.Manager.
func (m *processManager) GetWebhookServer() webhook.Server { return &webhookServer{process: m.process} }

// webhookServer collects the webhooks; there is no socket.
type webhookServer struct {
	webhook.Server
	process *Process
}

// Register implements webhook.Server.
func (s *webhookServer) Register(path string, h http.Handler) { s.process.webhooks.Handle(path, h) }

// eventRecorder keeps the events.
type eventRecorder struct {
	recorder.EventRecorder
	process *Process
}

// seriesWindow is how long client-go remembers an event.
const seriesWindow = 6 * time.Minute

// Eventf implements events.EventRecorder.
func (r *eventRecorder) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	name, key := "", eventKey{versionOf(regarding), versionOf(related), eventType, reason, action}
	if o, err := meta.Accessor(regarding); err == nil {
		name = o.GetName()
	}
	w := r.process.world
	w.mu.Lock()
	defer w.mu.Unlock()
	message := fmt.Sprintf(note, args...)
	w.api.violations = append(w.api.violations, w.api.judge.Text(Namespace, name, message)...)
	if w.forgets {
		return
	}
	if first, ok := r.process.recorded[key]; ok && time.Since(first.at) < seriesWindow {
		w.api.violations = append(w.api.violations, observer.Violation{
			Invariant: observer.RightsSuffice, Namespace: Namespace, Object: "event " + reason + " of " + name,
			Message: fmt.Sprintf("%q is lost: it is a series with %q", message, first.message),
		})
	}
	r.process.recorded[key] = recorded{message, time.Now()}
	w.events = append(w.events, Event{Name: name, Reason: reason, Message: message})
}

// versionOf identifies a version of an object as the reference in an event does.
func versionOf(of runtime.Object) string {
	if of == nil {
		return ""
	}
	o, err := meta.Accessor(of)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%T %s %s %s", of, o.GetUID(), o.GetName(), o.GetResourceVersion())
}

// logSink keeps the log, with the values of a logger.
type logSink struct {
	world   *World
	process int
	values  []any
}

// Init implements logr.LogSink.
func (s *logSink) Init(logr.RuntimeInfo) {}

// Enabled implements logr.LogSink.
func (s *logSink) Enabled(int) bool { return s.world.verbose }

// Info implements logr.LogSink.
func (s *logSink) Info(_ int, message string, values ...any) { s.log(message, nil, values) }

// Error implements logr.LogSink.
func (s *logSink) Error(err error, message string, values ...any) {
	s.world.mu.Lock()
	s.world.errors = append(s.world.errors, fmt.Sprintf("%s: %s: %v", s.name(), message, err))
	s.world.mu.Unlock()
	s.log(message, err, values)
}

func (s *logSink) log(message string, err error, values []any) {
	if !s.world.verbose {
		return
	}
	s.world.note("[%d] %s: %s %v %v", s.process, s.name(), message, err, values)
}

// WithValues implements logr.LogSink.
func (s *logSink) WithValues(values ...any) logr.LogSink {
	return &logSink{world: s.world, process: s.process, values: append(append([]any{}, s.values...), values...)}
}

// WithName implements logr.LogSink.
func (s *logSink) WithName(string) logr.LogSink { return s }

// name returns the controller and the object of a logger.
func (s *logSink) name() string {
	var parts []string
	for i := 0; i+1 < len(s.values); i += 2 {
		switch s.values[i] {
		case "controller", "namespace", "name":
			parts = append(parts, fmt.Sprint(s.values[i+1]))
		case "changeworkload":
			parts = append(parts, fmt.Sprint(s.values[i+1]))
		}
	}
	return strings.Join(parts, " ")
}

// Call sends a signed request of a user to the callback address of a process.
func (w *World) Call(method, path, body string) (status int, answer string) {
	p := w.Alive()
	timestamp := altershield.Timestamp(time.Now())
	r := httptest.NewRequestWithContext(context.Background(), method, path, textReader(body))
	r.RemoteAddr = "192.0.2.1:1234"
	r.Header.Set(altershield.HeaderPlatform, altershield.DefaultPlatform)
	r.Header.Set(altershield.HeaderTimestamp, timestamp)
	r.Header.Set(altershield.HeaderSign, altershield.Sign(timestamp, []byte(body), token))
	recorder := p.serve(r)
	return recorder.Code, recorder.Body.String()
}

// RoundTrip implements http.RoundTripper.
func (t callbackTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	w := t.server.world
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	t.server.mu.Lock()
	t.server.callbacks++
	// Sorted by body first: the callbacks of one moment come in any order.
	id := fmt.Sprintf("zz callback %s %04d", body, t.server.callbacks)
	t.server.mu.Unlock()
	w.mu.Lock()
	alive := w.alive()
	w.mu.Unlock()
	if len(alive) == 0 {
		return nil, fmt.Errorf("connection refused")
	}
	ctx := withTask(r.Context(), id)
	if err := alive[0].enter(ctx, true); err != nil {
		return nil, err
	}
	request := httptest.NewRequestWithContext(ctx, r.Method, r.URL.Path, bytes.NewReader(body))
	request.Header = r.Header
	request.RemoteAddr = "192.0.2.1:1234"
	answer := alive[0].serve(request)
	if alive[0].ctx.Err() != nil {
		return nil, io.ErrUnexpectedEOF
	}
	response := answer.Result()
	response.Request = r
	return response, nil
}

// bury ends the goroutines of dead processes, and replaces the processes after a while.
func (w *World) bury() bool {
	for _, t := range w.tasks() {
		if t.process.dead {
			w.let(t, errDead)
			return true
		}
	}
	for i, p := range w.processes {
		if p.dead && !w.down && time.Since(w.diedAt(p)) >= restartAfter {
			w.processes[i] = w.newProcess(p.number, p.lag)
			return true
		}
	}
	return false
}

// callbackTransport carries the callbacks of the server to a process that runs.
type callbackTransport struct{ server *server }
