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

package monitoring

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/traas-stack/altershield-operator/internal/pki"
)

// Certificate is the certificate of a Front.
type Certificate string

const (
	// PlainHTTP is no certificate.
	PlainHTTP Certificate = ""
	// Trusted is a certificate of the authority Front.CA.
	Trusted Certificate = "Trusted"
	// SelfSigned is a certificate of no authority.
	SelfSigned Certificate = "SelfSigned"
	// Expired is a certificate of the authority Front.CA that has expired.
	Expired Certificate = "Expired"
	// OtherName is a certificate of the authority Front.CA for another host.
	OtherName Certificate = "OtherName"
)

// FrontOptions are the options of a Front.
type FrontOptions struct {
	// Backends answer the requests in turn, with the credentials that they demand. Without backends, the answer is 502.
	Backends []*Server
	// Host is the address to listen at; empty is 127.0.0.1.
	Host        string
	Certificate Certificate
	// Token is the bearer token that requests must have; others are answered with 401. Empty demands none.
	Token string
	// Headers are headers that requests must have; others are answered with 403.
	Headers map[string]string
}

// Front is an HTTP server in front of the programs, as proxies are in production. It can also stand alone, and play a broken Prometheus.
// Its methods may be called concurrently.
type Front struct {
	o      FrontOptions
	ca     *pki.KeyPair
	url    string
	server *http.Server
	// closed ends the requests that hang.
	closed chan struct{}
	once   sync.Once

	mu       sync.Mutex
	requests []Request
	fault    Fault
	turn     int
}

// Request is a request that reached a Front.
type Request struct {
	Time         time.Time
	Method, Path string
	// Header has the credentials, too.
	Header http.Header
	// Form has the parameters of URL and body.
	Form url.Values
	// Body is the body, unless it is a form.
	Body []byte
}

// StartFront starts a Front.
func StartFront(o FrontOptions) (*Front, error) {
	if o.Host == "" {
		o.Host = localhost
	}
	f := &Front{o: o, closed: make(chan struct{})}
	serving, err := f.certificates()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(o.Host, "0"))
	if err != nil {
		return nil, err
	}
	f.url = "http://" + l.Addr().String()
	if serving != nil {
		f.url = "https://" + l.Addr().String()
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*serving}, MinVersion: tls.VersionTLS12})
	}
	f.server = &http.Server{Handler: f, ReadHeaderTimeout: requestTimeout, ErrorLog: quiet}
	go func() { _ = f.server.Serve(l) }()
	return f, nil
}

// certificates makes the authority and the certificate.
func (f *Front) certificates() (*tls.Certificate, error) {
	now, hosts := time.Now(), []string{f.o.Host, "localhost"}
	switch f.o.Certificate {
	case Expired:
		now = now.Add(-2 * validity)
	case OtherName:
		hosts = []string{"other.example.com"}
	case PlainHTTP, Trusted, SelfSigned:
	default:
		return nil, fmt.Errorf("unknown certificate %q", f.o.Certificate)
	}
	var err error
	if f.ca, err = pki.NewCA("front-ca", time.Now(), validity); err != nil || f.o.Certificate == PlainHTTP {
		return nil, err
	}
	var none *pki.KeyPair
	issuer := f.ca
	if f.o.Certificate == SelfSigned {
		issuer = none
	}
	serving, err := issuer.IssueServer("front", hosts, now, validity)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(serving.CertPEM, serving.KeyPEM)
	return &pair, err
}

// URL returns the URL, without a path.
func (f *Front) URL() string { return f.url }

// CA returns the authority of the certificate, in PEM.
func (f *Front) CA() []byte { return f.ca.CertPEM }

// Break answers all requests with a fault, before any check of credentials. Nil ends that.
func (f *Front) Break(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// Requests returns all requests so far, also those that were refused or answered with a fault.
func (f *Front) Requests() []Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

// Close ends the server and all requests.
func (f *Front) Close() error {
	var err error
	f.once.Do(func() {
		close(f.closed)
		err = f.server.Close()
	})
	return err
}

// ServeHTTP answers a request.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	request := Request{Time: time.Now(), Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone()}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	request.Form = r.Form
	if len(r.PostForm) == 0 {
		request.Body = body
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	fault, backend := f.take(request)
	if fault != nil {
		fault(w, r, f.closed)
		return
	}
	if f.o.Token != "" && r.Header.Get("Authorization") != "Bearer "+f.o.Token {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	}
	for name, value := range f.o.Headers {
		if r.Header.Get(name) != value {
			http.Error(w, "Forbidden: header "+name, http.StatusForbidden)
			return
		}
	}
	if backend == nil {
		http.Error(w, "Bad Gateway: no backend", http.StatusBadGateway)
		return
	}
	forward(w, r, backend)
}

// take keeps a request, and returns what answers it.
func (f *Front) take(request Request) (Fault, *Server) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, request)
	if f.fault != nil || len(f.o.Backends) == 0 {
		return f.fault, nil
	}
	f.turn++
	return nil, f.o.Backends[(f.turn-1)%len(f.o.Backends)]
}

// forward lets a program answer. The client's credentials are not passed on: the client of the program adds its own.
func forward(w http.ResponseWriter, r *http.Request, backend *Server) {
	proxy := httputil.ReverseProxy{
		Transport: backend.http.Transport, ErrorLog: quiet,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.Header.Del("Authorization")
			u, err := url.Parse(backend.URL())
			if err == nil {
				p.SetURL(u)
			}
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "Bad Gateway: "+err.Error(), http.StatusBadGateway)
		},
	}
	proxy.ServeHTTP(w, r)
}
