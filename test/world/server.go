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
	"errors"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/verify"
	"github.com/traas-stack/altershield-operator/test/observer"
)

// token is shared with AlterShield Server.
const token = "a-token-of-this-world"

func newServer(w *World, o simulator.Options) *server {
	s := &server{world: w}
	o.Token, o.OnEntry = token, s.entry
	o.CallbackURLs = []string{"http://operator" + altershield.CallbackPath}
	o.CallbackTransport = callbackTransport{s}
	s.Simulator = simulator.New(o)
	return s
}

// entry notes acknowledged verdicts.
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

// acknowledged returns the acknowledged verdicts.
func (s *server) acknowledged() []observer.Delivered {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]observer.Delivered{}, s.delivered...)
}

// Undelivered reports whether a failing verdict was not acknowledged.
func (w *World) Undelivered() bool {
	return w.server != nil && len(w.server.Journal().Callbacks().Filter(func(e simulator.Entry) bool {
		return e.Callback.Request.Verdict.Verdict == altershield.VerdictFail && (e.Answer == nil || !e.Answer.Success)
	})) > 0
}

// connect returns the connection of a process to the server.
func (s *server) connect(p *Process) (*verify.Server, error) {
	c, err := altershield.New(altershield.Options{
		URL: "http://altershield.example", Platform: altershield.DefaultPlatform, Tokens: altershield.StaticTokens{token},
		Transport: callTransport{s, p},
	})
	if err != nil {
		return nil, err
	}
	return &verify.Server{
		Client: c, Cluster: "cluster", Tenant: altershield.DefaultTenant, Scene: altershield.DefaultScene, Phase: altershield.PhaseProd,
		TargetType: altershield.DefaultTargetType,
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
