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
	// Host and Port to listen on; all addresses when Host is empty.
	Host string
	Port int
	// GetCertificate gives the certificate. Without it CertDir has one and its key in the
	// files CertName and KeyName, read again when they change.
	GetCertificate             func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	CertDir, CertName, KeyName string
	Log                        logr.Logger
}

func defaultServerLimits() network.Limits {
	return network.Limits{
		// API servers keep up to 25 for each webhook, and open more when they have more to ask.
		Connections: 512,
		PerSource:   384,
		Header:      64 << 10,
		// As much as admission reads.
		Body:        7 << 20,
		SmallBody:   128 << 10,
		LargeBodies: 8 * 7 << 20,
		Share:       time.Second,
		// API servers dial some connections long before their first requests, and close theirs
		// after 90 s without one. If this were no longer, some would be closed just when a
		// request is written.
		ReadHeader: 2 * time.Minute,
		Idle:       2 * time.Minute,
		// API servers wait for callTimeout.
		Read:     5 * time.Second,
		Write:    8 * time.Second,
		Shutdown: time.Minute,
	}
}

// boundedServer is a webhook.Server that bounds its connections, so that nobody who reaches
// the port keeps API servers out of it.
type boundedServer struct {
	// Server registers webhooks, with their metrics. It is never started.
	webhook.Server
	mux  *http.ServeMux
	port *network.Server
}

var _ webhook.Server = &boundedServer{}

// NewServer makes the server of the webhooks.
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

// Start implements webhook.Server, once.
func (s *boundedServer) Start(ctx context.Context) error { return s.port.Start(ctx) }

// StartedChecker implements webhook.Server.
func (s *boundedServer) StartedChecker() healthz.Checker { return s.port.StartedChecker() }

// serve reads a request for one of the webhooks as a whole before it is handled. From then
// until it is answered its connection gives way to none.
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
