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

// Package network serves HTTP/1.1 on ports that every client may reach: API servers do not
// authenticate to webhooks, and requests to the callback address are not authenticated until
// their bodies are read. The resources of strangers are bounded and separate from the
// resources of others.
//
//   - server.go listens, serves within time limits, and reads bodies in bounded memory
//   - connections.go bounds open connections, and chooses the one that gives way
//   - source.go defines the sources of connections and requests
//   - rates.go bounds the rate of requests, for each source and for all together
//   - places.go bounds the use at a time, for each source and for all together
//   - log.go bounds the log lines that strangers cause
package network

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

// Options of a Server.
type Options struct {
	// Name is the subject of errors: the service.
	Name string
	// Address is the address to listen on, as host:port or :port. AddressFlag is its flag, and
	// Remedy the advice in an error.
	Address, AddressFlag, Remedy string
	// GetCertificate returns the certificate. Without it, the certificate is in CertDir, in the
	// files CertName and KeyName, which are read again when they change; CertFlag is the flag of
	// the directory. Without both the server speaks plain HTTP.
	GetCertificate                       func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	CertDir, CertName, KeyName, CertFlag string
	// Handler serves requests; lifetime ends after the grace period of the last requests.
	Handler func(lifetime context.Context) http.Handler
	// KeepAlive keeps connections for more than one request.
	KeepAlive bool
	// Source returns the source of a request from its remote address: SourceOf or AddressOf.
	Source func(remote string) netip.Addr
	// Known reports whether a source has authenticated before; nil knows none.
	Known func(source netip.Addr) bool
	Log   logr.Logger
}

// Limits bound the resources that the clients of a port may use.
type Limits struct {
	// Connections is the number of open connections. When all are open, a source with PerSource
	// of them replaces its own connections by its new ones. 0 is no limit per source.
	Connections, PerSource int
	// Header is the largest size of all headers of a request in bytes, and Body of its body. Each
	// connection may have a body of SmallBody bytes in memory; larger bodies share LargeBodies
	// bytes, of which each source leaves room for one body. All together have to leave room for
	// the caches within the memory limit of the manager.
	Header                       int
	Body, SmallBody, LargeBodies int64
	// Share is how long a large body waits for its share of memory, and then for its bytes: a slow
	// body gives way to others.
	Share time.Duration
	// ReadHeader is the time to read the headers, Read the time to read the body, Write the time
	// from the headers until the answer is written, and Idle the time between requests.
	ReadHeader, Read, Write, Idle time.Duration
	// Shutdown is the grace period of current requests when the manager ends.
	Shutdown time.Duration
}

// Server serves one port.
type Server struct {
	options Options
	limits  Limits
	large   *Places
	// noise logs lines that clients can cause at will.
	noise *Log

	mu          sync.Mutex
	address     net.Addr
	serving     bool
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
}

// NewServer returns a server that does not listen yet.
func NewServer(o Options, l Limits) *Server {
	return &Server{
		options: o, limits: l, large: NewPlaces(l.LargeBodies, max(l.LargeBodies-l.Body, 0)), noise: NewLog(o.Log, clock.RealClock{}),
	}
}

// Start serves until the context ends, once. Its error names the flag to change.
func (s *Server) Start(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	config, files, err := s.tlsConfig()
	if err != nil {
		return err
	}
	port, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.options.Address)
	if err != nil {
		return fmt.Errorf("--%s %q: %w; %s", s.options.AddressFlag, s.options.Address, err, s.options.Remedy)
	}
	bounded := listen(port, &s.options, &s.limits, func(remote net.Addr) {
		s.noise.Info("a connection without an accepted request gave way to a new one", "remote", remote.String())
	})
	listener := net.Listener(bounded)
	if config != nil {
		listener = tls.NewListener(bounded, config)
	}
	// Current requests may still finish after ctx ended, in bounded time.
	lifetime, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	server := s.httpServer(lifetime)
	s.setServing(true, port.Addr(), config)
	s.options.Log.Info("listening", "address", port.Addr().String(), "tls", config != nil)
	group, ctx := errgroup.WithContext(ctx)
	if files != nil {
		group.Go(func() error {
			if err := files.Start(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("--%s %q: follow changes: %w", s.options.CertFlag, s.options.CertDir, err)
			}
			return nil
		})
	}
	group.Go(func() error {
		<-ctx.Done()
		s.setServing(false, port.Addr(), config)
		s.finish(lifetime, server, bounded)
		return server.Close()
	})
	group.Go(func() error {
		if err := server.Serve(listener); ctx.Err() == nil {
			return fmt.Errorf("serve %s: %w", s.options.Name, err)
		}
		return nil
	})
	return group.Wait()
}

// finish stops accepting connections, and waits for the current requests. It uses Shutdown only
// if connections are kept: Shutdown does not answer a request that is read after it began.
func (s *Server) finish(lifetime context.Context, server *http.Server, open *listener) {
	grace, cancel := context.WithTimeout(lifetime, s.limits.Shutdown)
	defer cancel()
	ended := false
	if s.options.KeepAlive {
		ended = server.Shutdown(grace) == nil
	} else {
		ended = open.Close() == nil && open.drain(grace)
	}
	if !ended {
		s.options.Log.Info("gave up on requests that did not end in time", "timeout", s.limits.Shutdown.String())
	}
}

// tlsConfig returns the TLS configuration, nil for plain HTTP; files is nil if the certificate
// is not in files.
func (s *Server) tlsConfig() (config *tls.Config, files *certwatcher.CertWatcher, err error) {
	// Streams of HTTP/2 would not be counted as connections. API servers speak HTTP/1.1 only to
	// a Service, so that their requests are spread over replicas.
	config = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: s.options.GetCertificate}
	o := &s.options
	switch {
	case o.GetCertificate != nil:
		return config, nil, nil
	case o.CertDir == "":
		return nil, nil, nil
	}
	if files, err = certwatcher.New(filepath.Join(o.CertDir, o.CertName), filepath.Join(o.CertDir, o.KeyName)); err != nil {
		return nil, nil, fmt.Errorf("--%s %q: %w; give a directory with %s and %s that fit, or leave the flag out",
			o.CertFlag, o.CertDir, err, o.CertName, o.KeyName)
	}
	config.GetCertificate = files.GetCertificate
	return config, files, nil
}

func (s *Server) httpServer(lifetime context.Context) *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	server := &http.Server{
		Handler:                      s.timed(s.options.Handler(lifetime)),
		Protocols:                    protocols,
		DisableGeneralOptionsHandler: true,
		BaseContext:                  func(net.Listener) context.Context { return lifetime },
		ReadHeaderTimeout:            s.limits.ReadHeader,
		WriteTimeout:                 s.limits.Write,
		IdleTimeout:                  s.limits.Idle,
		MaxHeaderBytes:               s.limits.Header,
		ErrorLog:                     s.noise.Std(),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connectionKey{}, connectionOf(c))
		},
		ConnState: func(c net.Conn, next http.ConnState) { connectionOf(c).follow(next) },
	}
	server.SetKeepAlivesEnabled(s.options.KeepAlive)
	return server
}

// connectionOf returns the connection of a listener from a connection of an http.Server, with or
// without TLS.
func connectionOf(c net.Conn) *connection {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	return c.(*connection) //nolint:errcheck // the server has no others
}

// timed bounds the time to read the body of a request. The ReadTimeout of the server would
// include the time before the first byte of a request. A request without a body has no
// deadline: the server already reads the next bytes, and would cancel the request.
func (s *Server) timed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != http.NoBody {
			if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.limits.Read)); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// Errors of ReadBody beside those of the connection.
var (
	// ErrTooLarge is the error of a body with more bytes than the limit.
	ErrTooLarge = errors.New("the body is too large")
	// ErrTooMany is the error of too many large bodies at once.
	ErrTooMany = errors.New("too many large bodies at once")
)

// ReadBody reads the body of a request, in memory that is bounded for all requests. done is
// never nil; the caller calls it after the last use of the body.
func (s *Server) ReadBody(w http.ResponseWriter, r *http.Request) (body []byte, done func(), err error) {
	done = func() {}
	size := r.ContentLength
	if size < 0 {
		size = s.limits.Body
	}
	if size > s.limits.Body {
		return nil, done, ErrTooLarge
	}
	// A share is taken when more than a small body has arrived, not when it is announced.
	small := min(size, s.limits.SmallBody)
	body, err = readBody(nil, io.LimitReader(r.Body, small+1), int(size))
	if err != nil || int64(len(body)) <= small {
		return body, done, err
	}
	if size == small {
		return nil, done, ErrTooLarge
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.Share)
	defer cancel()
	taken, err := s.large.Take(ctx, s.options.Source(r.RemoteAddr).String(), size)
	if err != nil {
		s.noise.Info("refused a large request: there are too many at once", "remote", r.RemoteAddr)
		return nil, done, ErrTooMany
	}
	done = taken
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.limits.Share)); err != nil {
		return nil, done, err
	}
	body, err = readBody(body, io.LimitReader(r.Body, size+1-int64(len(body))), int(size))
	if err == nil && int64(len(body)) > size {
		err = ErrTooLarge
	}
	return body, done, err
}

// readBody reads the rest of a body with an announced length. It takes memory for the bytes
// that have arrived, and hardly more than the length: io.ReadAll takes up to twice as much,
// times the number of connections.
func readBody(body []byte, from io.Reader, length int) ([]byte, error) {
	if body == nil {
		body = make([]byte, 0, min(length+1, 4<<10))
	}
	for {
		if len(body) == cap(body) {
			size := 2 * cap(body)
			if whole := length + 1; len(body) < whole { // one byte more, to find the end
				size = min(size, whole)
			}
			body = append(make([]byte, 0, size), body...)
		}
		n, err := from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			return body, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (s *Server) setServing(serving bool, address net.Addr, config *tls.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving, s.address = serving, address
	if config != nil {
		s.certificate = config.GetCertificate
	}
}

// Addr returns the address that the server listens on; nil before.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address
}

// StartedChecker returns a check that is healthy while the server serves, with its certificate
// if it has one. It does not connect: a client that uses up the connections must not make the
// replica unready.
func (s *Server) StartedChecker() healthz.Checker {
	return func(*http.Request) error {
		s.mu.Lock()
		serving, certificate := s.serving, s.certificate
		s.mu.Unlock()
		if !serving {
			return fmt.Errorf("%s are not served", s.options.Name)
		}
		if certificate != nil {
			if _, err := certificate(&tls.ClientHelloInfo{}); err != nil {
				return fmt.Errorf("%s cannot be served: %w", s.options.Name, err)
			}
		}
		return nil
	}
}
