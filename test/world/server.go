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
	"sync"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/verify"
	"github.com/traas-stack/altershield-operator/test/observer"
)

// token is shared with AlterShield Server.
const token = "a-token-of-this-world"

// server is AlterShield Server, without sockets.
type server struct {
	*simulator.Simulator
	world *World

	mu        sync.Mutex
	callbacks int
	delivered []observer.Delivered
}

func newServer(w *World, o simulator.Options) *server {
	s := &server{world: w}
	o.Token, o.OnEntry = token, s.entry
	o.CallbackURLs = []string{"http://operator" + altershield.CallbackPath}
	o.CallbackTransport = callbackTransport{s}
	s.Simulator = simulator.New(o)
	return s
}

// entry notes the verdicts that were acknowledged.
func (s *server) entry(e simulator.Entry) {
	if e.Callback == nil || e.Answer == nil || !e.Answer.Success {
		return
	}
	r := &e.Callback.Request
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delivered = append(s.delivered, observer.Delivered{
		Order: r.BizExecOrderID, Node: r.NodeID, Stage: v1alpha1.CheckStage(r.Stage), OfOrder: e.Callback.CheckType == altershield.CheckOrder,
		Verdict: string(r.Verdict.Verdict), Said: e.Answer.Msg,
	})
}

// acknowledged are the verdicts that were.
func (s *server) acknowledged() []observer.Delivered {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]observer.Delivered{}, s.delivered...)
}

// Undelivered says that a verdict that fails was not acknowledged.
func (w *World) Undelivered() bool {
	return w.server != nil && len(w.server.Journal().Callbacks().Filter(func(e simulator.Entry) bool {
		return e.Callback.Request.Verdict.Verdict == altershield.VerdictFail && (e.Answer == nil || !e.Answer.Success)
	})) > 0
}

// connect is the connection of a process to the server.
func (s *server) connect(p *Process) (*verify.Server, error) {
	c, err := altershield.New(altershield.Options{
		URL: "http://altershield.example", Platform: altershield.DefaultPlatform, Tokens: altershield.StaticTokens{token}, Transport: callTransport{s, p},
	})
	if err != nil {
		return nil, err
	}
	return &verify.Server{
		Client: c, Cluster: "cluster", Tenant: altershield.DefaultTenant, Scene: altershield.DefaultScene, Phase: altershield.PhaseProd, TargetType: altershield.DefaultTargetType,
	}, nil
}

// callTransport carries the calls of a process to the server.
type callTransport struct {
	server  *server
	process *Process
}

// RoundTrip implements http.RoundTripper.
func (t callTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	p, w := t.process, t.server.world
	if err := p.enter(r.Context(), true); err != nil {
		return nil, err
	}
	if !w.forgets {
		w.calls = append(w.calls, r.URL.Path)
	}
	kind := NoFault
	if w.fault.OfCalls && len(w.calls) == w.fault.At {
		kind, w.hit = w.fault.Kind, r.URL.Path
	}
	w.note("[%d] call %d: %s %s", p.number, len(w.calls), r.URL.Path, kind)
	answer, err := serveHTTP(t.server, r)
	switch kind {
	case DiesAfter:
		p.die()
		return nil, errDead
	case AnswerLost:
		return nil, io.ErrUnexpectedEOF
	default:
	}
	if r.Context().Err() != nil {
		return nil, r.Context().Err()
	}
	return answer, err
}

// serveHTTP answers a request without a socket.
func serveHTTP(h http.Handler, r *http.Request) (response *http.Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			if aborted, ok := p.(error); !ok || !errors.Is(aborted, http.ErrAbortHandler) {
				panic(p)
			}
			response, err = nil, io.ErrUnexpectedEOF
		}
	}()
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, r)
	response = answer.Result()
	response.Request = r
	return response, nil
}

// callbackTransport carries the callbacks of the server to a process that runs.
type callbackTransport struct{ server *server }

// RoundTrip implements http.RoundTripper.
func (t callbackTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	w := t.server.world
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	t.server.mu.Lock()
	t.server.callbacks++
	// By what they say first: those of one moment come in any order.
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

// Call sends a request of a user to the callback address of a process, signed.
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
