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
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/traas-stack/altershield-operator/internal/network"
)

// ServerOptions configure the webhook server.
type ServerOptions struct {
	// Host and Port to listen on; all addresses if Host is empty.
	Host string
	Port int
	// GetCertificate returns the certificate. Without it, the certificate and its key are in
	// the files CertName and KeyName of CertDir, which are read again when they change.
	GetCertificate             func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	CertDir, CertName, KeyName string
	Log                        logr.Logger
}

func defaultServerLimits() network.Limits {
	return network.Limits{
		// An API server keeps up to 25 idle connections for each webhook, and opens more under load.
		Connections: 512,
		PerSource:   384,
		Header:      64 << 10,
		// controller-runtime reads at most as much.
		Body:        7 << 20,
		SmallBody:   128 << 10,
		LargeBodies: 8 * 7 << 20,
		Share:       time.Second,
		// API servers dial some connections long before the first request, and close idle
		// connections after 90 s. These timeouts are longer: otherwise this server could close a
		// connection while a request is written.
		ReadHeader: 2 * time.Minute,
		Idle:       2 * time.Minute,
		// API servers wait for an answer for callTimeout.
		Read:     5 * time.Second,
		Write:    8 * time.Second,
		Shutdown: time.Minute,
	}
}

// boundedServer is a webhook.Server with limits, so that other clients cannot use up its
// connections.
type boundedServer struct {
	// Server registers webhooks with their metrics. It is never started.
	webhook.Server
	mux  *http.ServeMux
	port *network.Server
}

var _ webhook.Server = &boundedServer{}

// NewServer returns the server of the webhooks.
func NewServer(o ServerOptions) webhook.Server { return newServer(o, defaultServerLimits()) }

func newServer(o ServerOptions, l network.Limits) *boundedServer {
	mux := http.NewServeMux()
	s := &boundedServer{Server: webhook.NewServer(webhook.Options{Port: o.Port, WebhookMux: mux}), mux: mux}
	s.port = network.NewServer(network.Options{
		Name: "webhooks", Address: net.JoinHostPort(o.Host, strconv.Itoa(o.Port)), AddressFlag: "webhook-port", Remedy: "give a free port",
		GetCertificate: o.GetCertificate, CertDir: o.CertDir, CertName: o.CertName, KeyName: o.KeyName, CertFlag: "webhook-cert-path",
		Handler: func(context.Context) http.Handler { return http.HandlerFunc(s.serve) }, KeepAlive: true, Source: network.AddressOf, Log: o.Log,
	}, l)
	return s
}

// WebhookMux implements webhook.Server.
func (s *boundedServer) WebhookMux() *http.ServeMux { return s.mux }

// Start implements webhook.Server. It may be called once.
func (s *boundedServer) Start(ctx context.Context) error { return s.port.Start(ctx) }

// StartedChecker implements webhook.Server.
func (s *boundedServer) StartedChecker() healthz.Checker { return s.port.StartedChecker() }

// serve reads the whole body of a request before a webhook handles it. From then until the
// answer, no new connection replaces this one.
func (s *boundedServer) serve(w http.ResponseWriter, r *http.Request) {
	if _, pattern := s.mux.Handler(r); pattern == "" {
		w.Header().Set("Connection", "close")
		http.NotFound(w, r)
		return
	}
	body, done, err := s.port.ReadBody(w, r)
	defer done()
	if err != nil {
		status := http.StatusBadRequest
		switch {
		case errors.Is(err, network.ErrTooLarge):
			status = http.StatusRequestEntityTooLarge
		case errors.Is(err, network.ErrTooMany):
			status = http.StatusServiceUnavailable
		}
		w.Header().Set("Connection", "close")
		http.Error(w, http.StatusText(status), status)
		return
	}
	network.Delivered(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	s.mux.ServeHTTP(w, r)
}
