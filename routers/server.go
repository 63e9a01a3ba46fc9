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

// Package routers serves the callback address. It takes verdicts of AlterShield Server and
// requests for rollbacks, and lists suspended workloads. Every replica serves it.
//
// A request is untrusted until its signature over the raw bytes is verified. Until then the
// request costs little: its rate, size and time are limited, the number of connections is
// limited, and the body is not parsed. Untrusted requests do not hinder verified requests. A
// source that has authenticated has a rate of its own. Only verified requests take the slots in
// which requests are handled. If there are too many connections, the server closes one that
// delivered no verified request, from the source with the most connections.
//
//   - server.go: the limits, the paths, and the rates
//   - authenticate.go, replay.go: verify the signature, and refuse repeated requests
//   - callback.go, verdicts.go: take verdicts, and store them
//   - suspend.go: list blocked workloads
//   - rollback.go: take requests for rollbacks
//   - metrics.go: answer queries for metrics, which are not signed
//   - answer.go: the forms of answers
package routers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/semaphore"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/network"
)

const (
	// LiveTestPath shows that the address is reachable. It needs no signature and reveals
	// nothing.
	LiveTestPath = "/openapi/altershield/liveTest"
	// off is the value that turns the callback address off.
	off = "0"
	// Files in Options.CertPath, with their names in a Secret of type kubernetes.io/tls.
	certName = "tls.crt"
	keyName  = "tls.key"
)

// Options of the callback address.
type Options struct {
	// Address to listen on, as host:port or :port.
	Address string
	// CertPath is the directory of the certificate (tls.crt) and its key (tls.key). Both are
	// read again when they change. Without it the address serves plain HTTP.
	CertPath string
	// Tokens verify signatures. Without Tokens, and while there is no token, all requests
	// except LiveTestPath are refused.
	Tokens altershield.TokenSource
	// StandAlone: no AlterShield Server is configured. Signed requests of other clients are
	// still served.
	StandAlone bool
	// Recorder stores verdicts.
	Recorder Recorder
	// Rollbacks takes requests for rollbacks.
	Rollbacks Rollbacker
	// NoPut turns off the PUT paths, which ask for rollbacks.
	NoPut bool
	// View reads the workloads that are suspended.
	View cluster.View
	// Metrics answers queries for metrics from addresses in MetricsFrom.
	Metrics     MetricSource
	MetricsFrom []netip.Prefix
	// Clock gives the time.
	Clock clock.PassiveClock
	// Log gets one line per event, and never a token, a signature or a body.
	Log logr.Logger
	// OnCallback is called with the result of each request to
	// altershield.CallbackPath: an Outcome or one of the Result constants. May
	// be nil.
	OnCallback func(result string)
}

// limits bound the cost of requests.
type limits struct {
	// Limits of the port. A connection gives way to a new one until it has delivered an
	// authenticated request.
	network.Limits
	// known are the rates of sources that have authenticated, for each source. strangers are
	// the rates of other sources, for each source and for all together.
	known, strangers network.RatesOptions
	// inFlight is how many verified requests are handled at once. Others wait up to slotWait.
	inFlight int64
	slotWait time.Duration
	// record bounds the time from the arrival of a request until its verdict is stored. The
	// server gives up after 6 s.
	record time.Duration
	// late is how many verdicts the replica still tries to store after it answered their
	// requests. It tries each verdict for lateRecord, first after lateEvery and then after
	// waits that double up to lateMost.
	late                            int
	lateRecord, lateEvery, lateMost time.Duration
	// list bounds the time to list suspended workloads.
	list time.Duration
	// replays is the number of signatures that are remembered.
	replays int
	// metrics bounds the time to answer a query for metrics, and metricRates the rate of queries. The limits of the endpoint bound
	// the calls at a time.
	metrics     time.Duration
	metricRates network.RatesOptions
}

func defaultLimits() limits {
	return limits{
		Limits: network.Limits{
			// 128 MiB of bodies at most, where the default limit is 512 MiB.
			Connections: 512,
			Header:      16 << 10,
			Body:        256 << 10,
			SmallBody:   256 << 10,
			// A stranger has little time. A real request comes in one piece.
			ReadHeader: 2 * time.Second,
			Read:       2 * time.Second,
			// Longer than Read, slotWait and record together.
			Write: 15 * time.Second,
			// The manager releases its lease after Shutdown, so Shutdown is short. To store a
			// verdict takes milliseconds, or the API server is unreachable.
			Shutdown: 2 * time.Second,
		},
		// A large release causes hundreds of callbacks at once, and each is sent only once.
		// The first verified callback makes its source known.
		known: network.RatesOptions{Each: network.Rate{PerSecond: 1000, Burst: 4000}, Keys: 256, Keep: time.Hour},
		strangers: network.RatesOptions{
			Each: network.Rate{PerSecond: 100, Burst: 500}, All: network.Rate{PerSecond: 500, Burst: 2000}, Keys: 4096, Keep: time.Minute,
		},
		inFlight:   64,
		slotWait:   3 * time.Second,
		record:     5 * time.Second,
		late:       1000,
		lateRecord: 2 * time.Minute,
		lateEvery:  time.Second,
		lateMost:   10 * time.Second,
		list:       5 * time.Second,
		replays:    20_000,
		metrics:    10 * time.Second,
		// A check asks for nine metrics at once.
		metricRates: network.RatesOptions{
			Each: network.Rate{PerSecond: 20, Burst: 90}, All: network.Rate{PerSecond: 60, Burst: 270}, Keys: 256, Keep: time.Minute,
		},
	}
}

// Server serves the callback address. Each of its paths has a file.
type Server struct {
	*network.Server
	opts   Options
	limits limits

	known, strangers *network.Rates
	replays          *replays
	// handled bounds the number of requests that are handled at once.
	handled *semaphore.Weighted
	// late has one element per verdict that is stored after the answer to its request.
	late        chan struct{}
	metricRates *network.Rates
	// refusals and panics limit log lines that clients can cause at will.
	refusals, panics *network.Log
}

var (
	_ manager.Runnable               = &Server{}
	_ manager.LeaderElectionRunnable = &Server{}
)

// SetupWithManager serves the callback address on every replica of the manager.
func SetupWithManager(mgr ctrl.Manager, o Options) error {
	if o.Address == off {
		return nil
	}
	o.Recorder = NewVerdicts(o.View, mgr.GetClient(), o.Clock)
	s := newServer(o, defaultLimits())
	return errors.Join(mgr.Add(s), mgr.AddReadyzCheck("callbacks", s.StartedChecker()))
}

// newServer makes the server. It reads and opens nothing yet.
func newServer(o Options, l limits) *Server {
	s := &Server{
		opts:        o,
		limits:      l,
		known:       network.NewRates(l.known, o.Clock),
		strangers:   network.NewRates(l.strangers, o.Clock),
		replays:     newReplays(l.replays, o.Clock),
		handled:     semaphore.NewWeighted(l.inFlight),
		late:        make(chan struct{}, l.late),
		refusals:    network.NewLog(o.Log, o.Clock),
		panics:      network.NewLog(o.Log, o.Clock),
		metricRates: network.NewRates(l.metricRates, o.Clock),
	}
	// One request per connection. A connection that is kept alive stays with this pod after
	// the endpoint of the pod is gone. A verdict that is sent over it while the pod ends is
	// lost, because the server sends each verdict only once.
	s.Server = network.NewServer(network.Options{
		Name: "callbacks", Address: o.Address, AddressFlag: "callback-bind-address", Remedy: "give a free address as host:port or :port",
		CertDir: o.CertPath, CertName: certName, KeyName: keyName, CertFlag: "callback-cert-path", Handler: s.Handler,
		Source: network.SourceOf, Known: func(source netip.Addr) bool { return s.known.Remembers(source) }, Log: o.Log,
	}, l.Limits)
	return s
}

// NeedLeaderElection implements manager.LeaderElectionRunnable. Every replica serves: the
// replica that gets a verdict stores it, and the leader acts on it.
func (s *Server) NeedLeaderElection() bool { return false }

// route is the method and the handler of a path.
type route struct {
	method  string
	handler http.Handler
}

// Handler serves all paths. Work that a request begins ends with lifetime at the latest.
//
// The routes are not patterns of http.ServeMux, because http.ServeMux answers in text,
// redirects unclean paths, refuses "*" and takes HEAD for GET.
func (s *Server) Handler(lifetime context.Context) http.Handler {
	routes := map[string]route{
		altershield.CallbackPath: {http.MethodPost, s.signedBody(s.callback(lifetime))},
		altershield.MetricsPath: {http.MethodPost, &metricQueries{
			s.opts.Metrics, s.opts.MetricsFrom, s.metricRates, make(chan struct{}, maxMetricQueries), s.limits.metrics, s.ReadBody, s.refusals,
		}},
		LiveTestPath:         {http.MethodPost, http.HandlerFunc(liveTest)},
		SuspendPath:          {http.MethodGet, s.signedQuery(s.listSuspended)},
		RollbackPath:         {http.MethodPut, s.signedBody(s.takeRollback(readRollbackRequest))},
		SuspendWorkloadPath:  {http.MethodGet, s.signedQuery(s.listSuspendedWorkloads)},
		RollbackWorkloadPath: {http.MethodPut, s.signedBody(s.takeRollback(readRollbackOf(s.opts.View.Kinds)))},
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

// limited bounds the rate and the size of requests. The cheapest test comes first.
func (s *Server) limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if cause := s.tooMany(r); cause != "" {
			w.Header().Set("Retry-After", "1")
			s.reject(w, r, ResultLimited, cause, http.StatusTooManyRequests, "too many requests", true)
			return
		}
		if r.ContentLength > s.limits.Body {
			s.refuseOversized(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// tooMany returns why a request is over a rate, for the log; empty if it is not. A source that
// has authenticated has a budget that no other source can spend. Each other source has a small
// budget, and all others share one.
func (s *Server) tooMany(r *http.Request) (cause string) {
	source := network.SourceOf(r.RemoteAddr)
	if s.known.Remembers(source) {
		if s.known.Take(source) != network.Granted {
			return "too many requests per second from this address"
		}
		return ""
	}
	switch s.strangers.Take(source) {
	case network.EachSpent:
		return "too many requests per second from an address that has not authenticated"
	case network.AllSpent:
		return "too many requests per second from addresses that have not authenticated"
	default:
		return ""
	}
}

// admitted handles an authenticated request as soon as there is a slot, or answers that there
// was no slot in time. Requests wait for a slot because the server sends each verdict only once.
func (s *Server) admitted(w http.ResponseWriter, r *http.Request, handle func()) {
	s.known.Remember(network.SourceOf(r.RemoteAddr))
	network.Delivered(r.Context())
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.slotWait)
	defer cancel()
	if !s.handled.TryAcquire(1) && s.handled.Acquire(ctx, 1) != nil {
		s.refuseBusy(w, r, "too many requests at once")
		return
	}
	defer s.handled.Release(1)
	handle()
}

// refuseBusy answers a request that waited too long for its turn.
func (s *Server) refuseBusy(w http.ResponseWriter, r *http.Request, cause string) {
	w.Header().Set("Retry-After", "1")
	s.reject(w, r, ResultLimited, cause, http.StatusServiceUnavailable, cause, true)
}

func (s *Server) refuseOversized(w http.ResponseWriter, r *http.Request) {
	cause := fmt.Sprintf("the body has more than %d bytes", s.limits.Body)
	s.reject(w, r, ResultOversized, cause, http.StatusRequestEntityTooLarge, network.ErrTooLarge.Error(), false)
}

// reject counts and logs a request that is not handled, and answers it.
func (s *Server) reject(w http.ResponseWriter, r *http.Request, result, cause string, status int, msg string, retry bool) {
	s.count(r, result)
	s.refusals.Info("refused a request", "cause", cause, "path", r.URL.Path, "remote", r.RemoteAddr)
	writeJSON(w, status, altershield.CallbackResponse{Retry: retry, Msg: msg})
}

// recovered answers for a handler that panicked, and logs the panic.
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

// count counts the result of a callback. It does not count requests to other paths.
func (s *Server) count(r *http.Request, result string) {
	if s.opts.OnCallback != nil && r.URL.Path == altershield.CallbackPath {
		s.opts.OnCallback(result)
	}
}

func liveTest(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, codeAnswer{0, "Hello world"})
}
