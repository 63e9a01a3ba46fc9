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

package webhooks

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/traas-stack/altershield-operator/internal/connections"
	"github.com/traas-stack/altershield-operator/internal/ration"
)

// ServerOptions configure the webhook server.
type ServerOptions struct {
	// Host and Port to listen on; all addresses when Host is empty.
	Host string
	Port int
	// CertDir has a certificate and its key in the files CertName and KeyName, read
	// again when they change. They are used where TLSOptions set no GetCertificate.
	CertDir, CertName, KeyName string
	TLSOptions                 []func(*tls.Config)
	Log                        logr.Logger
}

// serverLimits bound what anybody may do who reaches the port: API servers do not
// authenticate to webhooks.
type serverLimits struct {
	// connections open at once, and of one source before others when there are as many.
	// API servers keep up to 25 for each webhook, and open more when they have more to ask.
	connections, perSource int
	// body is the largest body that is read, the same as admission reads. Up to small
	// each connection may have one in memory; larger ones have large bytes together, of
	// which one source leaves room for one body. They stay in memory until they are
	// answered. All have to leave room for the caches within the memory limit of the
	// manager.
	small, body, large int64
	header             int
	// share is how long a large request waits for its share of that, and after that
	// for the rest of its body: a slow one gives way to others.
	share time.Duration
	// The timeouts of a request: until its headers are there (and the TLS handshake
	// before the first), until all of it is after that, until it is answered, and until
	// the answer is written. API servers wait for callTimeout.
	readHeader, read, write, answer time.Duration
	// idle is for how long a connection is kept without a request, also before the first. API servers close
	// theirs after 90 s. If this were no longer, some would be closed just when a
	// request is written.
	idle time.Duration
	// shutdown is how long requests may take when the manager ends.
	shutdown time.Duration
}

func defaultServerLimits() serverLimits {
	return serverLimits{
		connections: 512,
		perSource:   384,
		small:       128 << 10,
		body:        7 << 20,
		large:       8 * 7 << 20,
		share:       time.Second,
		header:      64 << 10,
		readHeader:  3 * time.Second,
		read:        5 * time.Second,
		write:       15 * time.Second,
		answer:      3 * time.Second,
		idle:        2 * time.Minute,
		shutdown:    time.Minute,
	}
}

// boundedServer is a webhook.Server that bounds its connections, so that nobody who reaches
// the port keeps API servers out of it.
type boundedServer struct {
	// Server registers webhooks, with their metrics. It is never started.
	webhook.Server
	mux     *http.ServeMux
	options ServerOptions
	limits  serverLimits
	large   *shares
	// noise is what others can cause at will.
	noise *ration.Log

	mu          sync.Mutex
	address     net.Addr
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
}

var _ webhook.Server = &boundedServer{}

// NewServer makes the server of the webhooks.
func NewServer(o ServerOptions) webhook.Server { return newServer(o, defaultServerLimits()) }

func newServer(o ServerOptions, l serverLimits) *boundedServer {
	mux := http.NewServeMux()
	return &boundedServer{
		Server: webhook.NewServer(webhook.Options{Port: o.Port, WebhookMux: mux}), mux: mux, options: o, limits: l,
		large: newShares(l.large, l.large-l.body), noise: ration.NewLog(o.Log, clock.RealClock{}),
	}
}

// WebhookMux implements webhook.Server.
func (s *boundedServer) WebhookMux() *http.ServeMux { return s.mux }

// Start implements webhook.Server, once.
func (s *boundedServer) Start(ctx context.Context) error {
	config, files, err := s.tlsConfig()
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(s.options.Host, strconv.Itoa(s.options.Port)))
	if err != nil {
		return fmt.Errorf("--webhook-port: %w; give a free port", err)
	}
	bounded := connections.New(listener, connections.Options{
		Max: s.limits.connections, PerSource: s.limits.perSource, Source: connections.AddressOf, First: s.limits.idle, GaveWay: func(remote net.Addr) {
			s.noise.Info("a connection without a request gave way to a new one", "remote", remote.String())
		},
	})
	// What is under way when ctx ends may still be finished.
	lifetime, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	httpServer := s.httpServer(lifetime)

	s.setServing(listener.Addr(), config.GetCertificate)
	s.options.Log.Info("serving webhooks", "address", listener.Addr().String())
	group, ctx := errgroup.WithContext(ctx)
	if files != nil {
		group.Go(func() error {
			if err := files.Start(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("--webhook-cert-path %q: follow changes: %w", s.options.CertDir, err)
			}
			return nil
		})
	}
	group.Go(func() error {
		<-ctx.Done()
		s.setServing(nil, nil)
		grace, cancel := context.WithTimeout(lifetime, s.limits.shutdown)
		defer cancel()
		if err := httpServer.Shutdown(grace); err != nil {
			s.options.Log.Error(err, "gave up on requests to the webhooks that did not end in time")
		}
		return httpServer.Close()
	})
	group.Go(func() error {
		if err := httpServer.Serve(tls.NewListener(bounded, config)); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve webhooks: %w", err)
		}
		return nil
	})
	return group.Wait()
}

// tlsConfig is how the certificate is served; files is nil where it is from elsewhere.
func (s *boundedServer) tlsConfig() (config *tls.Config, files *certwatcher.CertWatcher, err error) {
	config = &tls.Config{MinVersion: tls.VersionTLS12}
	for _, option := range s.options.TLSOptions {
		option(config)
	}
	// Streams would be connections that nothing counts. To a Service API servers speak
	// nothing else, so that their requests are spread over replicas.
	config.NextProtos = []string{"http/1.1"}
	if config.GetCertificate != nil {
		return config, nil, nil
	}
	files, err = certwatcher.New(filepath.Join(s.options.CertDir, s.options.CertName), filepath.Join(s.options.CertDir, s.options.KeyName))
	if err != nil {
		return nil, nil, fmt.Errorf("--webhook-cert-path %q: %w", s.options.CertDir, err)
	}
	config.GetCertificate = files.GetCertificate
	return config, files, nil
}

func (s *boundedServer) httpServer(lifetime context.Context) *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:           s.whole(s.mux),
		Protocols:         protocols,
		BaseContext:       func(net.Listener) context.Context { return lifetime },
		ReadHeaderTimeout: s.limits.readHeader,
		WriteTimeout:      s.limits.write,
		IdleTimeout:       s.limits.idle,
		MaxHeaderBytes:    s.limits.header,
		ErrorLog:          s.noise.Std(),
		ConnContext:       connections.With,
		ConnState: func(c net.Conn, state http.ConnState) {
			if c := connections.From(c); c != nil {
				c.Changed(state)
			}
		},
	}
}

// whole reads a request for one of the webhooks as a whole before it is handled. From
// then until it is answered its connection gives way to none.
func (s *boundedServer) whole(next *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writer := http.NewResponseController(w)
		// Not the ReadTimeout of the server, which counts the time before the first byte.
		if err := writer.SetReadDeadline(time.Now().Add(s.limits.read)); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w = &promptWriter{ResponseWriter: w, limit: s.limits.answer}
		if _, pattern := next.Handler(r); pattern == "" {
			w.Header().Set("Connection", "close")
			http.NotFound(w, r)
			return
		}
		body, done, status := s.read(r, writer)
		defer done()
		if status != http.StatusOK {
			w.Header().Set("Connection", "close")
			http.Error(w, http.StatusText(status), status)
			return
		}
		if c := connections.Of(r.Context()); c != nil {
			c.Delivered()
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// read reads a body within the limits, or says with which status it is refused. Done is
// to be called when the body is needed no more.
func (s *boundedServer) read(r *http.Request, writer *http.ResponseController) (body []byte, done func(), status int) {
	done = func() {}
	if r.ContentLength > s.limits.body {
		return nil, done, http.StatusRequestEntityTooLarge
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, s.limits.small+1))
	if err != nil {
		return nil, done, http.StatusBadRequest
	}
	if int64(len(body)) <= s.limits.small {
		return body, done, http.StatusOK
	}
	source, size := connections.AddressOf(r.RemoteAddr), r.ContentLength
	if size < 0 {
		size = s.limits.body
	}
	if !s.takeLarge(r.Context(), source, size) {
		s.noise.Info("refused a large request: there are too many at once", "remote", r.RemoteAddr)
		return nil, done, http.StatusServiceUnavailable
	}
	done = func() { s.large.give(source, size) }
	if err := writer.SetReadDeadline(time.Now().Add(s.limits.share)); err != nil {
		return nil, done, http.StatusInternalServerError
	}
	rest, err := io.ReadAll(io.LimitReader(r.Body, s.limits.body-s.limits.small))
	switch {
	case err != nil:
		return nil, done, http.StatusBadRequest
	case int64(len(body)+len(rest)) > s.limits.body:
		return nil, done, http.StatusRequestEntityTooLarge
	}
	return append(body, rest...), done, http.StatusOK
}

// takeLarge waits for a share of the memory for large requests.
func (s *boundedServer) takeLarge(ctx context.Context, source netip.Addr, size int64) bool {
	ctx, cancel := context.WithTimeout(ctx, s.limits.share)
	defer cancel()
	return s.large.take(ctx, source, size)
}

// promptWriter has an answer be written in time, so that a client that does not read it
// does not keep its connection.
type promptWriter struct {
	http.ResponseWriter
	limit time.Duration
	begun bool
}

// Unwrap is for http.ResponseController.
func (w *promptWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *promptWriter) begin() {
	if w.begun {
		return
	}
	w.begun = true
	// Where it fails the write does, too.
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.limit))
}

// WriteHeader implements http.ResponseWriter.
func (w *promptWriter) WriteHeader(status int) {
	w.begin()
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *promptWriter) Write(b []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(b)
}

// shares are bytes of which one source does not take all. Safe for concurrent use.
type shares struct {
	max, perSource int64

	mu    sync.Mutex
	taken int64
	of    map[netip.Addr]int64
	// given is closed when some are given back.
	given chan struct{}
}

func newShares(most, perSource int64) *shares {
	return &shares{max: most, perSource: perSource, of: map[netip.Addr]int64{}, given: make(chan struct{})}
}

// take waits until there are as many, as long as the context allows.
func (s *shares) take(ctx context.Context, source netip.Addr, size int64) bool {
	for {
		taken, given := s.tryTake(source, size)
		if taken {
			return true
		}
		select {
		case <-given:
		case <-ctx.Done():
			return false
		}
	}
}

func (s *shares) tryTake(source netip.Addr, size int64) (taken bool, given <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken+size > s.max || s.of[source]+size > s.perSource {
		return false, s.given
	}
	s.taken += size
	s.of[source] += size
	return true, nil
}

func (s *shares) give(source netip.Addr, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken -= size
	if s.of[source] -= size; s.of[source] == 0 {
		delete(s.of, source)
	}
	close(s.given)
	s.given = make(chan struct{})
}

func (s *boundedServer) setServing(address net.Addr, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address, s.certificate = address, certificate
}

// StartedChecker implements webhook.Server: healthy while the webhooks are served, with
// a certificate. It does not connect: the connections are bounded, and a client that
// uses them up must not take the replica out of service.
func (s *boundedServer) StartedChecker() healthz.Checker {
	return func(*http.Request) error {
		s.mu.Lock()
		certificate := s.certificate
		s.mu.Unlock()
		if certificate == nil {
			return errors.New("the webhooks are not served")
		}
		if _, err := certificate(&tls.ClientHelloInfo{}); err != nil {
			return fmt.Errorf("the webhooks cannot be served: %w", err)
		}
		return nil
	}
}
