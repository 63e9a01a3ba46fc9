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

// Package simulator simulates AlterShield Server for tests, for the demo, and for users
// without the Java server. It has the same endpoints, envelope, result codes, validation,
// signature and states of nodes, and all traps of the protocol. Verdicts, faults and outages
// can be scripted, and a journal has the requests and callbacks.
package simulator

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/traas-stack/altershield-operator/internal/altershield"
)

const (
	// maxBody bounds a request.
	maxBody = 4 << 20
	// callbackTimeout is the timeout of the server.
	callbackTimeout = 6 * time.Second
	// callbackContentType is the content type of the server, which is not well formed.
	callbackContentType = "application/json;UTF-8"

	defaultJournalLimit = 100_000
)

// Options of a [Simulator].
type Options struct {
	// Platform is the registered platform, [altershield.DefaultPlatform] by
	// default.
	Platform string
	// Token is the token of the platform, which signs both directions. Without a token every
	// request is refused, unless SkipSignature is set.
	Token string
	// SkipSignature accepts any signature, as a stock server does.
	SkipSignature bool
	// Scene is the registered G2 scene, [altershield.DefaultScene] by default.
	Scene string
	// AdmissionScene is the registered G1 scene, empty by default.
	AdmissionScene string
	// Unconfigured are start notifications without a step of the scene. They are answered
	// 101.
	Unconfigured []altershield.Action
	// CallbackURLs are the registered callback addresses, one per replica. A callback goes to
	// the first address, and its copies go to the others in turn.
	CallbackURLs []string
	// CallbackTransport sends callbacks. With it a test trusts its own certificate.
	CallbackTransport http.RoundTripper
	// CheckTimeout is the server's own timeout of a check; 0, the default, is no timeout.
	CheckTimeout time.Duration
	// PollsTellRunning answers polls of running checks with finished=false. A stock server
	// does not.
	PollsTellRunning bool
	// JournalLimit is how many entries are kept, 100,000 by default.
	JournalLimit int
	// OnEntry is called with each complete entry of the journal, from several goroutines. It
	// must not block.
	OnEntry func(Entry)
	// Clock is the real clock by default. Timeouts of callbacks always use the real clock.
	Clock clock.Clock
}

// Simulator is the simulated server. It is an http.Handler, and has a port of its own after
// [Simulator.Start]. End it with [Simulator.Shutdown]. Requests, callbacks, scripts and the
// journal share one state under one lock.
type Simulator struct {
	opts  Options
	clock clock.Clock
	// ctx ends with the simulator.
	ctx    context.Context
	cancel context.CancelFunc
	client *http.Client
	// idBase makes the ids of two runs differ.
	idBase int64

	mu        sync.Mutex
	closed    bool
	running   sync.WaitGroup
	callbacks []string
	scripts   []*scripted
	faults    []*faulty
	outage    Outage
	// outageEnds is closed when the outage changes.
	outageEnds chan struct{}
	orders     map[string]*order
	nodes      map[string]*node
	lastID     int

	journalMu sync.Mutex
	journal   []*Entry
	seq       int
	changed   chan struct{}

	serverMu sync.Mutex
	server   *http.Server
	address  string
}

// New makes a simulator. Without [Simulator.Start] it is a handler.
func New(o Options) *Simulator {
	o.Platform = cmp.Or(o.Platform, altershield.DefaultPlatform)
	o.Scene = cmp.Or(o.Scene, altershield.DefaultScene)
	o.JournalLimit = cmp.Or(o.JournalLimit, defaultJournalLimit)
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.CallbackTransport == nil {
		o.CallbackTransport = &http.Transport{MaxIdleConnsPerHost: 32, IdleConnTimeout: 30 * time.Second}
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Simulator{
		opts:       o,
		clock:      o.Clock,
		ctx:        ctx,
		cancel:     cancel,
		client:     &http.Client{Timeout: callbackTimeout, Transport: o.CallbackTransport},
		idBase:     o.Clock.Now().UnixMilli(),
		callbacks:  slices.Clone(o.CallbackURLs),
		outageEnds: make(chan struct{}),
		orders:     map[string]*order{},
		nodes:      map[string]*node{},
		changed:    make(chan struct{}),
	}
}

// Start serves on an address, "127.0.0.1:0" for any free port.
func (s *Simulator) Start(address string) error {
	s.serverMu.Lock()
	defer s.serverMu.Unlock()
	return s.listen(address)
}

// listen opens the listener. The caller holds serverMu.
func (s *Simulator) listen(address string) error {
	listener, err := (&net.ListenConfig{}).Listen(s.ctx, "tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	if !s.track() {
		return errors.Join(errors.New("the simulator was shut down"), listener.Close())
	}
	s.server, s.address = server, listener.Addr().String()
	go func() {
		defer s.running.Done()
		// Serve returns only after Close.
		_ = server.Serve(listener)
	}()
	return nil
}

// URL returns the address of a started simulator.
func (s *Simulator) URL() string {
	s.serverMu.Lock()
	defer s.serverMu.Unlock()
	return "http://" + s.address
}

// SetCallbackURLs replaces the callback addresses.
func (s *Simulator) SetCallbackURLs(urls ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.callbacks = slices.Clone(urls)
}

// SetOutage begins an outage, or ends it with [NoOutage]. It fails only if the port cannot be
// opened again after an outage [Refuse].
func (s *Simulator) SetOutage(o Outage) error {
	s.mu.Lock()
	s.outage = o
	close(s.outageEnds)
	s.outageEnds = make(chan struct{})
	s.mu.Unlock()

	s.serverMu.Lock()
	defer s.serverMu.Unlock()
	switch {
	case s.address == "":
		return nil
	case o == Refuse && s.server != nil:
		err := s.server.Close()
		s.server = nil
		return err
	case o != Refuse && s.server == nil:
		return s.listen(s.address)
	default:
		return nil
	}
}

// Forget loses all orders and nodes, like a server that was restored from a backup. Their
// checks end without callbacks.
func (s *Simulator) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.orders)
	clear(s.nodes)
}

// Shutdown ends the simulator. Checks under way end without callbacks. It returns when all
// goroutines have ended.
func (s *Simulator) Shutdown() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.serverMu.Lock()
	if s.server != nil {
		// Errors about connections do not matter at the end.
		_ = s.server.Close()
		s.server = nil
	}
	s.serverMu.Unlock()
	s.running.Wait()
	s.client.CloseIdleConnections()
}

// track counts a goroutine, unless the simulator was shut down.
func (s *Simulator) track() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	return true
}

// wait waits for a duration of the injected clock. It reports whether the duration ended
// ahead of the context and of the simulator.
func (s *Simulator) wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return s.ctx.Err() == nil && ctx.Err() == nil
	}
	timer := s.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	case <-s.ctx.Done():
		return false
	}
}

// reply is the answer to a request.
type reply struct {
	status int
	code   altershield.ResultCode
	msg    string
	domain any
	// checks begin after the answer was written; early checks begin ahead of it.
	checks []check
	node   string
}

// envelope is the body of an answer of the application.
type envelope struct {
	Success    bool                   `json:"success"`
	ResultCode altershield.ResultCode `json:"resultCode,omitempty"`
	Msg        string                 `json:"msg,omitempty"`
	Domain     any                    `json:"domain,omitempty"`
}

func refused(r *refusal) reply { return reply{status: r.status, code: r.code, msg: r.msg} }

// ServeHTTP implements http.Handler.
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.track() {
		panic(http.ErrAbortHandler)
	}
	defer s.running.Done()

	entry := Entry{Kind: KindRequest, Time: s.clock.Now(), Platform: r.Header.Get(altershield.HeaderPlatform)}
	content, action, ok := s.read(r)
	if !ok {
		writeJSON(w, http.StatusNotFound, map[string]any{"status": 404, "error": "Not Found", "path": r.URL.Path})
		return
	}
	entry.Action, entry.Body = action, content
	entry.Signed = altershield.Verify(r.Header.Get(altershield.HeaderSign), r.Header.Get(altershield.HeaderTimestamp), content, s.opts.Token)
	var body map[string]any
	if json.Unmarshal(content, &body) == nil {
		entry.Order, entry.Node = textOf(body, "bizExecOrderId"), textOf(body, "nodeId")
	}

	ends := s.outageChange()
	fault := s.faultOf(action, entry.Order)
	entry.Outage = fault.Outage
	var result reply
	if fault.Code == "" && fault.Outage.carriedOut() || fault.Done {
		result = s.handle(r.Context(), action, content, entry)
	}
	if fault.Code != "" {
		result.status, result.code, result.msg, result.domain = 0, fault.Code, fault.Msg, nil
	}
	// A check begins also if there is no callback about it.
	defer func() {
		for _, c := range result.checks {
			s.begin(c)
		}
	}()
	if result.node != "" {
		entry.Node = result.node
	}
	entry.Request = decodeRequest(action, content)
	entry.Code, entry.Msg, entry.HTTPStatus = result.code, result.msg, cmp.Or(result.status, http.StatusOK)
	switch fault.Outage {
	case HTTP500:
		entry.HTTPStatus = http.StatusInternalServerError
	case Refuse, Hang, Reset:
		entry.HTTPStatus = 0
	default:
	}
	kept := s.record(entry)
	s.show(s.complete(kept, func(*Entry) {}))

	for _, c := range result.checks {
		if c.script.Early {
			s.run(c)
		}
	}
	result.checks = slices.DeleteFunc(result.checks, func(c check) bool { return c.script.Early })
	s.wait(r.Context(), fault.Delay)
	if fault.Outage == Hang {
		select {
		case <-ends:
		case <-r.Context().Done():
		case <-s.ctx.Done():
		}
	}
	s.write(w, fault.Outage, result)
}

// outageChange returns a channel that the next change of the outage closes.
func (s *Simulator) outageChange() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outageEnds
}

// read reads the content of a request as the server does: it joins the lines of a body
// without newlines.
func (s *Simulator) read(r *http.Request) (content []byte, action altershield.Action, ok bool) {
	if r.Method == http.MethodGet && r.URL.Path == altershield.PathHeartbeat {
		return altershield.QueryContent(r.URL.Query()), altershield.ActionHeartbeat, true
	}
	name, isExe := strings.CutPrefix(r.URL.Path, altershield.PathExe)
	if _, known := fieldsOf[altershield.Action(name)]; !isExe || !known || r.Method != http.MethodPost {
		return nil, "", false
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, maxBody+1)
	for lines.Scan() {
		content = append(content, lines.Bytes()...)
	}
	return content, altershield.Action(name), true
}

// write writes an answer, or fails in the way of the outage.
func (s *Simulator) write(w http.ResponseWriter, outage Outage, result reply) {
	switch outage {
	case Refuse, Hang, Reset, LostReply:
		reset(w)
		return
	case HTTP500:
		http.Error(w, "Internal Server Error", http.StatusInternalServerError)
	case HTML:
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, "<html><body>Please log in.</body></html>")
	case SuccessFalse:
		writeJSON(w, http.StatusOK, envelope{})
	case Truncated:
		data, err := json.Marshal(answerOf(result))
		if err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(data[:len(data)/2])
	default:
		if result.status != 0 {
			writeJSON(w, result.status, map[string]any{"status": result.status, "error": http.StatusText(result.status), "message": result.msg})
		} else {
			writeJSON(w, http.StatusOK, answerOf(result))
		}
	}
	// The check begins after its answer was sent.
	_ = http.NewResponseController(w).Flush()
}

func answerOf(result reply) envelope {
	return envelope{
		Success:    result.code == altershield.CodeSuccess,
		ResultCode: result.code,
		Msg:        result.msg,
		Domain:     result.domain,
	}
}

// writeJSON writes a body with its length, so that a client knows whether the body is
// complete.
func writeJSON(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	w.WriteHeader(status)
	// A client that is gone needs no answer.
	_, _ = w.Write(data)
}

// reset closes the connection without an answer, and resets a TCP connection.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// decodeRequest decodes a body into the client's type, for the journal.
func decodeRequest(action altershield.Action, content []byte) any {
	switch action {
	case altershield.ActionSubmitOrder:
		return decodeAs[altershield.SubmitOrderRequest](content)
	case altershield.ActionStartOrder:
		return decodeAs[altershield.StartOrderRequest](content)
	case altershield.ActionStartBatch:
		return decodeAs[altershield.StartBatchRequest](content)
	case altershield.ActionFinishNode:
		return decodeAs[altershield.FinishNodeRequest](content)
	case altershield.ActionRetrieveCheck:
		return decodeAs[altershield.RetrieveCheckRequest](content)
	case altershield.ActionEndOrder:
		return decodeAs[altershield.EndOrderRequest](content)
	case altershield.ActionSubmitAndStart:
		return decodeAs[altershield.SubmitAndStartRequest](content)
	default:
		return nil
	}
}

func decodeAs[T any](content []byte) any {
	var request T
	if json.Unmarshal(content, &request) != nil {
		return nil
	}
	return &request
}
