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

// Package routers serves the callback address: verdicts that AlterShield Server
// delivers, and questions about suspended workloads. Every replica serves it.
//
// What arrives is untrusted until its signature has been verified over the raw
// bytes. Until then a request may cost little: its rate, size and time and the
// number of connections are limited, and nothing of it is parsed. And it may not
// be in the way of what is true: what a source that has authenticated may send is its
// own, the slots to handle requests are for verified ones, and of too many
// connections those give way that delivered none, of the source with most of them.
package routers

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/connections"
	"github.com/traas-stack/altershield-operator/internal/ration"
)

// Files of Options.CertPath, as a mounted Secret of type kubernetes.io/tls has
// them.
const (
	certName = "tls.crt"
	keyName  = "tls.key"
)

// Options of the callback address.
type Options struct {
	// Address to listen on, as host:port or :port.
	Address string
	// CertPath is the directory of the certificate (tls.crt) and its key
	// (tls.key), read again when they change. Without it the address is served
	// over plain HTTP.
	CertPath string
	// Tokens by which signatures are verified. Without it, and while it gives
	// none, all but LiveTestPath is refused.
	Tokens altershield.TokenSource
	// StandAlone: no AlterShield Server is configured. Signed requests of others are
	// served all the same.
	StandAlone bool
	// Recorder stores verdicts.
	Recorder Recorder
	// Rollbacks takes requests for rollbacks.
	Rollbacks Rollbacker
	// NoPut turns the PUT paths off, which ask for rollbacks.
	NoPut bool
	// View reads the workloads that are suspended.
	View cluster.View
	// Clock has the time.
	Clock clock.PassiveClock
	// Log gets one line per event and never a token, a signature or a body.
	Log logr.Logger
	// OnCallback is called with the result of each request to
	// altershield.CallbackPath: an Outcome or one of the Result constants. May
	// be nil.
	OnCallback func(result string)
}

// limits bound what requests may cost.
type limits struct {
	// connections open at once, one request each. When there are more, one that has
	// delivered no authenticated request gives way. Each may have a body
	// in memory: connections times body is the most that bodies take, and has to
	// leave room for the caches within the memory limit of the manager.
	connections int
	// each is the budget of requests of a source that has authenticated, stranger
	// that of another one, and strangers that of all others together.
	each, stranger, strangers budget
	// body is the largest body that is read, in bytes; header that of all
	// headers together.
	body   int64
	header int
	// inFlight is how many verified requests are handled at once. More wait up to
	// slotWait.
	inFlight int
	slotWait time.Duration
	// The timeouts of a connection: until the headers are read (and, before them,
	// until the TLS handshake is done), until the body is read as well, and from
	// the headers until the answer is written, which has to be more than read,
	// slotWait and record together. The first two are what a stranger may take, so
	// they are short; what is true comes in one piece.
	readHeader, read, write time.Duration
	// record bounds the storing of one verdict, from when its request arrived; the
	// server gives up after 6 s.
	record time.Duration
	// late is how many verdicts are tried to be stored at once after their requests
	// were answered, each for lateRecord, first after lateEvery and then after waits
	// that double up to lateMost.
	late                            int
	lateRecord, lateEvery, lateMost time.Duration
	// list bounds the listing of suspended workloads.
	list time.Duration
	// shutdown is how long connections that are open may take when the manager
	// ends, also those whose request has not been read yet. The manager releases
	// its lease after that, so it is short: storing a verdict takes milliseconds,
	// or the API server is away.
	shutdown time.Duration
	// replays is the number of signatures that are remembered.
	replays int
}

func defaultLimits() limits {
	return limits{
		// 128 MiB of bodies at most, where the default limit is 512 MiB.
		connections: 512,
		// A large release draws hundreds of callbacks at once, and each is sent
		// only once. The first one that is verified makes its source known.
		each:       budget{rate: 1000, burst: 4000},
		stranger:   budget{rate: 100, burst: 500},
		strangers:  budget{rate: 500, burst: 2000},
		body:       256 << 10,
		header:     16 << 10,
		inFlight:   64,
		slotWait:   3 * time.Second,
		readHeader: 2 * time.Second,
		read:       4 * time.Second,
		write:      15 * time.Second,
		record:     5 * time.Second,
		late:       1000,
		lateRecord: 2 * time.Minute,
		lateEvery:  time.Second,
		lateMost:   10 * time.Second,
		list:       5 * time.Second,
		shutdown:   2 * time.Second,
		replays:    20_000,
	}
}

// Server serves the callback address.
type Server struct {
	opts   Options
	limits limits

	sources *sources
	replays *replayCache
	// slots has one element per request that is handled.
	slots chan struct{}
	// late has one element per verdict that is stored after its request.
	late chan struct{}
	// refusals, noise and panics are what others can cause at will, so each has
	// a ration of the log.
	refusals, noise, panics *ration.Log

	// listening is closed once address is known.
	listening chan struct{}
	mu        sync.Mutex
	address   net.Addr
	serving   bool
}

var (
	_ manager.Runnable               = &Server{}
	_ manager.LeaderElectionRunnable = &Server{}
)

// New makes the server. It reads and opens nothing yet.
func New(o Options) (*Server, error) { return newServer(o, defaultLimits()) }

func newServer(o Options, l limits) (*Server, error) {
	switch {
	case o.Address == "":
		return nil, errors.New("the callback address is missing")
	case o.Recorder == nil:
		return nil, errors.New("the recorder of verdicts is missing")
	case o.Rollbacks == nil:
		return nil, errors.New("the taker of rollback requests is missing")
	case o.View.Cached == nil || o.View.Kinds == nil:
		return nil, errors.New("the reader or the kinds of workloads are missing")
	case o.Clock == nil:
		return nil, errors.New("the clock is missing")
	}
	return &Server{
		opts:      o,
		limits:    l,
		sources:   newSources(l, o.Clock),
		replays:   newReplayCache(l.replays, o.Clock),
		slots:     make(chan struct{}, l.inFlight),
		late:      make(chan struct{}, l.late),
		refusals:  ration.NewLog(o.Log, o.Clock),
		noise:     ration.NewLog(o.Log, o.Clock),
		panics:    ration.NewLog(o.Log, o.Clock),
		listening: make(chan struct{}),
	}, nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable. Every replica
// serves: the replica that gets a verdict stores it, and the leader acts on it.
func (s *Server) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable, once. It serves until the context ends;
// its error names the flag to mend.
func (s *Server) Start(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	certs, err := s.watchCertificates()
	if err != nil {
		return err
	}
	open, err := s.listen(ctx)
	if err != nil {
		return err
	}
	listener := net.Listener(open)
	if certs != nil {
		listener = tls.NewListener(open, &tls.Config{
			MinVersion:     tls.VersionTLS12,
			NextProtos:     []string{"http/1.1"},
			GetCertificate: certs.GetCertificate,
		})
	}
	// What is under way when ctx ends may still be finished, in bounded time;
	// what isn't by then is cut short.
	lifetime, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	server := s.httpServer(lifetime)

	s.setServing(true)
	s.opts.Log.Info("serving callbacks", "address", listener.Addr().String(), "tls", certs != nil)
	group, ctx := errgroup.WithContext(ctx)
	if certs != nil {
		group.Go(func() error {
			if err := certs.Start(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("--callback-cert-path %q: follow changes: %w", s.opts.CertPath, err)
			}
			return nil
		})
	}
	group.Go(func() error {
		<-ctx.Done()
		s.setServing(false)
		return open.Close()
	})
	group.Go(func() error {
		err := server.Serve(listener)
		if ctx.Err() != nil {
			err = nil // it was closed above
		} else {
			err = fmt.Errorf("serve callbacks: %w", err)
		}
		s.drain(lifetime, open)
		return errors.Join(err, server.Close())
	})
	return group.Wait()
}

// drain waits for the requests that are under way. Not server.Shutdown: that
// leaves a request unanswered which is read only after it began, and a verdict is
// sent only once.
func (s *Server) drain(lifetime context.Context, open *connections.Listener) {
	grace, cancel := context.WithTimeout(lifetime, s.limits.shutdown)
	defer cancel()
	if !open.Drain(grace) {
		s.opts.Log.Info("gave up on requests that did not end in time", "timeout", s.limits.shutdown.String())
	}
}

// watchCertificates reads the certificate; nil when there is to be none.
func (s *Server) watchCertificates() (*certwatcher.CertWatcher, error) {
	if s.opts.CertPath == "" {
		return nil, nil
	}
	certs, err := certwatcher.New(filepath.Join(s.opts.CertPath, certName), filepath.Join(s.opts.CertPath, keyName))
	if err != nil {
		return nil, fmt.Errorf("--callback-cert-path %q: %w; give a directory with %s and %s that fit, or leave the flag out to serve plain HTTP",
			s.opts.CertPath, err, certName, keyName)
	}
	return certs, nil
}

func (s *Server) listen(ctx context.Context) (*connections.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", s.opts.Address)
	if err != nil {
		return nil, fmt.Errorf("--callback-bind-address %q: %w; give a free address as host:port or :port", s.opts.Address, err)
	}
	s.mu.Lock()
	s.address = listener.Addr()
	s.mu.Unlock()
	close(s.listening)
	return connections.New(listener, connections.Options{Max: s.limits.connections, Known: s.sources.isKnown, GaveWay: func(remote net.Addr) {
		s.noise.Info("a connection without a signed request gave way to a new one", "remote", remote.String())
	}}), nil
}

func (s *Server) httpServer(lifetime context.Context) *http.Server {
	// HTTP/1 only: streams would be connections that nothing counts.
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	server := &http.Server{
		Handler:                      s.Handler(lifetime),
		Protocols:                    protocols,
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            s.limits.readHeader,
		ReadTimeout:                  s.limits.read,
		WriteTimeout:                 s.limits.write,
		MaxHeaderBytes:               s.limits.header,
		ErrorLog:                     s.noise.Std(),
		ConnContext:                  connections.With,
	}
	// One request per connection. One that is kept alive stays with this pod after
	// its endpoint is gone, and whatever is written to it when the pod ends is
	// lost, where the server sends a verdict only once.
	server.SetKeepAlivesEnabled(false)
	return server
}

// Addr is the address that is listened on; nil before Start does.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address
}

func (s *Server) setServing(serving bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving = serving
}

// StartedChecker returns a check that is healthy while the server serves. It
// does not connect: the connections are limited, and a client that uses them up
// must not take the replica's webhooks out of service as well.
func (s *Server) StartedChecker() healthz.Checker {
	return func(*http.Request) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.serving {
			return errors.New("the callback address is not served")
		}
		return nil
	}
}

// route is what is served on one path.
type route struct {
	method  string
	handler http.Handler
}

// Handler serves all paths. What it begins ends with lifetime at the latest.
//
// The routes are not patterns of http.ServeMux: that answers in text, not as the
// contract says, redirects unclean paths, refuses "*" and takes HEAD for GET.
func (s *Server) Handler(lifetime context.Context) http.Handler {
	routes := map[string]route{
		altershield.CallbackPath: {http.MethodPost, s.signedBody(s.callback(lifetime))},
		LiveTestPath:             {http.MethodPost, http.HandlerFunc(liveTest)},
		SuspendPath:              {http.MethodGet, s.signedQuery(s.listSuspended)},
		RollbackPath:             {http.MethodPut, s.signedBody(s.rollBack)},
		SuspendWorkloadPath:      {http.MethodGet, s.signedQuery(s.listSuspendedWorkloads)},
		RollbackWorkloadPath:     {http.MethodPut, s.signedBody(s.rollBackWorkload)},
	}
	return s.recovered(s.limited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		route, known := routes[r.URL.Path]
		switch {
		case known && s.opts.NoPut && route.method == http.MethodPut:
			writeJSON(w, http.StatusNotFound, codeAnswer{http.StatusNotFound, "rollbacks over HTTP are turned off (--callback-put=false)"})
		case !known:
			writeJSON(w, http.StatusNotFound, codeAnswer{http.StatusNotFound, "not found"})
		case r.Method != route.method:
			w.Header().Set("Allow", route.method)
			writeJSON(w, http.StatusMethodNotAllowed, codeAnswer{http.StatusMethodNotAllowed, "the method is " + route.method})
		default:
			route.handler.ServeHTTP(w, r)
		}
	})))
}

// limited bounds rate and size of requests, the cheapest test first.
func (s *Server) limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if cause := s.sources.allow(connections.SourceOf(r.RemoteAddr)); cause != "" {
			s.count(r, ResultLimited)
			s.refusals.Info("refused a request", "cause", cause, "remote", r.RemoteAddr)
			w.Header().Set("Retry-After", "1")
			writeJSON(w, http.StatusTooManyRequests, altershield.CallbackResponse{Retry: true, Msg: "too many requests"})
			return
		}
		if r.ContentLength > s.limits.body {
			s.refuseOversized(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// admitted handles an authenticated request once there is a slot for it, or
// answers that there was none in time.
func (s *Server) admitted(w http.ResponseWriter, r *http.Request, handle func()) {
	s.sources.authenticated(connections.SourceOf(r.RemoteAddr))
	if c := connections.Of(r.Context()); c != nil {
		c.Delivered()
	}
	if !acquire(r.Context(), s.slots, s.limits.slotWait) {
		s.refuseBusy(w, r, "too many requests at once")
		return
	}
	defer func() { <-s.slots }()
	handle()
}

// refuseBusy answers a request that would have had to wait for too long.
func (s *Server) refuseBusy(w http.ResponseWriter, r *http.Request, cause string) {
	s.count(r, ResultLimited)
	s.refusals.Info("refused a request", "cause", cause, "remote", r.RemoteAddr)
	w.Header().Set("Retry-After", "1")
	writeJSON(w, http.StatusServiceUnavailable, altershield.CallbackResponse{Retry: true, Msg: cause})
}

// acquire takes one of the slots, waiting for one up to the given time: a burst
// of verdicts is worth it, because the server sends each only once.
func acquire(ctx context.Context, slots chan<- struct{}, wait time.Duration) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case slots <- struct{}{}:
		return true
	case <-ctx.Done():
	case <-timer.C:
	}
	return false
}

func (s *Server) refuseOversized(w http.ResponseWriter, r *http.Request) {
	s.count(r, ResultOversized)
	s.refusals.Info("refused a request", "cause", fmt.Sprintf("the body has more than %d bytes", s.limits.body), "remote", r.RemoteAddr)
	writeJSON(w, http.StatusRequestEntityTooLarge, altershield.CallbackResponse{Msg: "the body is too large"})
}

// recovered answers for a handler that panicked, and says so.
func (s *Server) recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				s.count(r, ResultFailed)
				s.panics.Error(fmt.Errorf("panic: %v", p), "handle a request", "remote", r.RemoteAddr, "stack", string(debug.Stack()))
				writeJSON(w, http.StatusInternalServerError, altershield.CallbackResponse{Retry: true, Msg: "internal error"})
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// count counts the result of a callback; other paths are not counted.
func (s *Server) count(r *http.Request, result string) {
	if s.opts.OnCallback != nil && r.URL.Path == altershield.CallbackPath {
		s.opts.OnCallback(result)
	}
}

// codeAnswer is the form of the answers to all but callbacks.
type codeAnswer struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// writeJSON answers, whole and at once.
func writeJSON(w http.ResponseWriter, status int, answer any) {
	body, err := json.Marshal(answer)
	if err != nil {
		// The answers are structs of plain fields: there is nothing that can't be
		// encoded.
		panic(err)
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", fmt.Sprint(len(body)))
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// A client that is gone is not an error of the operator.
	_, _ = w.Write(body)
}
