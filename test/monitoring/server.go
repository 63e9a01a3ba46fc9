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

// Package monitoring runs real monitoring for tests and the demo: Prometheus,
// Alertmanager and kube-state-metrics, and small servers in place of pods, whose
// traffic the test sets.
//
//   - server.go: what the programs have in common: start, restart, end, access
//   - prometheus.go, alertmanager.go, kubestate.go: the programs
//   - targets.go, exposition.go: the pods that Prometheus scrapes, and their metrics
//   - follow.go: a target for each pod of a cluster
//   - front.go, faults.go: a server in front of the programs, which demands
//     credentials, records requests, and breaks when asked to
//
// A minimal use:
//
//	programs, err := monitoring.Programs(ctx, root, os.Stderr)
//	targets, err := monitoring.NewTargets(monitoring.TargetsOptions{})
//	web, err := targets.Add("shop", "web-1", monitoring.TargetOptions{})
//	p, err := monitoring.StartPrometheus(ctx, monitoring.PrometheusOptions{Programs: programs, Targets: targets})
//	web.Serve(monitoring.Traffic{Rate: 10, Errors: 0.1, Latency: 20 * time.Millisecond})
//	err = p.Scraped(ctx)
//	series, err := p.Query(ctx, `up{pod="web-1"}`, time.Now())
//
// All that is started has to be closed. The kernel ends the programs, too, if this
// process ends without that.
package monitoring

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/hack/binaries"
	"github.com/traas-stack/altershield-operator/hack/processes"
	"github.com/traas-stack/altershield-operator/internal/pki"
)

const (
	localhost = "127.0.0.1"
	// validity is the lifetime of certificates: longer than any test.
	validity = 24 * time.Hour
	// startTimeout bounds a start, which takes a second on a quiet machine.
	startTimeout = 3 * time.Minute
	// scrapeTimeout bounds the wait for scrapes of all targets.
	scrapeTimeout = 6 * time.Minute
	// stopGrace is the time between SIGTERM and SIGKILL.
	stopGrace      = 10 * time.Second
	requestTimeout = 10 * time.Second
	pollInterval   = 50 * time.Millisecond
	// portAttempts is the number of starts if another process takes a free port first.
	portAttempts = 3
)

// Programs builds the programs, once for each version, and returns their directory. The first build on a machine takes minutes.
func Programs(ctx context.Context, root string, out io.Writer) (string, error) {
	return binaries.BuildMonitoring(ctx, root, out)
}

// Username and Password are the credentials of Access.Basic.
const (
	Username     = "operator"
	Password     = "only-for-tests"
	passwordHash = "$2a$04$zE5FL8BHSuaRTRwaM8f95uZ2yUFmWJBlNCbVhMWZAg34k4g.OdUae" // bcrypt
)

// Access is what a program demands of its clients. The zero value is plain HTTP without credentials. A Front demands tokens and headers.
type Access struct {
	// TLS serves HTTPS with a certificate of the authority Server.CA.
	TLS bool
	// ClientCertificates demands a certificate of the same authority, and implies TLS.
	ClientCertificates bool
	// Basic demands Username and Password.
	Basic bool
}

// Server is a program that serves HTTP. Its address and data stay until Close, also while it is stopped.
type Server struct {
	name, program, dir, host string
	access                   Access
	ca, client               *pki.KeyPair
	ports                    []int
	// args returns the arguments of a start, and ready the path that answers 200 when the program serves.
	args       func() ([]string, error)
	ready      string
	supervisor *processes.Supervisor
	http       *http.Client
}

// newServer prepares a server: its directory, certificates and credentials.
func newServer(name, programs, host string, access Access) (_ *Server, err error) {
	access.TLS = access.TLS || access.ClientCertificates
	if host == "" {
		host = localhost
	}
	s := &Server{name: name, program: filepath.Join(programs, name), host: host, access: access, ready: "/-/ready"}
	if s.dir, err = os.MkdirTemp("", "altershield-"+name+"-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(s.dir))
		}
	}()
	if s.ca, err = pki.NewCA(name+"-ca", time.Now(), validity); err != nil {
		return nil, err
	}
	if s.client, err = s.ca.IssueClient(Username, nil, time.Now(), validity); err != nil {
		return nil, err
	}
	serving, err := s.ca.IssueServer(name, []string{host, localhost, "localhost"}, time.Now(), validity)
	if err != nil {
		return nil, err
	}
	for file, data := range map[string][]byte{"ca.crt": s.ca.CertPEM, "tls.crt": serving.CertPEM, "tls.key": serving.KeyPEM} {
		if err := os.WriteFile(s.path(file), data, 0o600); err != nil {
			return nil, err
		}
	}
	if err := s.writeYAML("web.yml", s.access.config()); err != nil {
		return nil, err
	}
	if s.http, err = httpClient(s.ca, s.client, access.Basic); err != nil {
		return nil, err
	}
	s.supervisor = processes.New(s.dir)
	return s, nil
}

// config returns the web configuration of a program.
func (a Access) config() map[string]any {
	config := map[string]any{}
	if a.TLS {
		server := map[string]any{"cert_file": "tls.crt", "key_file": "tls.key"}
		if a.ClientCertificates {
			server["client_auth_type"], server["client_ca_file"] = "RequireAndVerifyClientCert", "ca.crt"
		}
		config["tls_server_config"] = server
	}
	if a.Basic {
		config["basic_auth_users"] = map[string]string{Username: passwordHash}
	}
	return config
}

// httpClient returns a client that trusts an authority, has a certificate, and sends the credentials of Access.Basic.
func httpClient(ca, client *pki.KeyPair, basic bool) (*http.Client, error) {
	pair, err := tls.X509KeyPair(client.CertPEM, client.KeyPEM)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	}
	return &http.Client{Timeout: requestTimeout, Transport: authorized{transport, basic}}, nil
}

// authorized adds credentials to requests.
type authorized struct {
	http.RoundTripper
	basic bool
}

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.basic {
		r = r.Clone(r.Context())
		r.SetBasicAuth(Username, Password)
	}
	return a.RoundTripper.RoundTrip(r)
}

// URL returns the URL of the server, without a path.
func (s *Server) URL() string {
	scheme := "http"
	if s.access.TLS {
		scheme = "https"
	}
	return scheme + "://" + s.Address()
}

// Address returns host and port of the server.
func (s *Server) Address() string { return net.JoinHostPort(s.host, strconv.Itoa(s.ports[0])) }

// CA returns the authority that signed the certificate of the server, in PEM.
func (s *Server) CA() []byte { return s.ca.CertPEM }

// ClientCertificate returns a certificate that the server accepts, and its key, in PEM.
func (s *Server) ClientCertificate() (cert, key []byte) { return s.client.CertPEM, s.client.KeyPEM }

// Client returns an HTTP client that the server accepts.
func (s *Server) Client() *http.Client { return s.http }

// LogPath returns the path of the log of all runs.
func (s *Server) LogPath() string { return s.supervisor.LogPath(s.name) }

// Stop ends the program with SIGTERM, and keeps address and data.
func (s *Server) Stop() error { return s.supervisor.Stop(s.name, stopGrace) }

// Kill ends the program at once, as a crash does.
func (s *Server) Kill() error { return s.supervisor.Stop(s.name, 0) }

// Running reports whether the program runs.
func (s *Server) Running() bool {
	p := s.supervisor.Get(s.name)
	return p != nil && !p.Exited()
}

// Close ends the program and removes its data. It may be called only once.
func (s *Server) Close() error {
	s.http.CloseIdleConnections()
	return errors.Join(s.supervisor.StopAll(stopGrace, []string{s.name}), os.RemoveAll(s.dir))
}

// Start starts the program, which must not run, at the address of its first start, and returns when it is ready.
func (s *Server) Start(ctx context.Context) error {
	args, err := s.args()
	if err != nil {
		return err
	}
	p, err := s.supervisor.Start(s.name, s.program, args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err = until(ctx, func(ctx context.Context) (bool, error) {
		if p.Exited() {
			return true, errors.Join(errors.New("it ended"), p.Err())
		}
		_, err := s.get(ctx, s.ready)
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("start %s: %w; its log ends with:\n%s", s.name, err, s.supervisor.LogTail(s.name))
	}
	return nil
}

// begin starts the program for the first time, on free ports, and closes it if it does not start.
func (s *Server) begin(ctx context.Context, ports int) error {
	for attempt := 1; ; attempt++ {
		var err error
		if s.ports, err = processes.FreePorts(ports); err == nil {
			err = s.Start(ctx)
		}
		if err == nil {
			return nil
		}
		if attempt == portAttempts || ctx.Err() != nil || !strings.Contains(err.Error(), "address already in use") {
			return errors.Join(err, s.Close())
		}
		if err := s.Kill(); err != nil {
			return errors.Join(err, s.Close())
		}
	}
}

// get reads a path of the server.
func (s *Server) get(ctx context.Context, path string) ([]byte, error) {
	return s.do(ctx, http.MethodGet, path)
}

func (s *Server) do(ctx context.Context, method, path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.URL()+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, strings.TrimSpace(string(body)))
	}
	return body, nil
}

// path returns the path of a file of the server.
func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) writeYAML(name string, content any) error {
	data, err := yaml.Marshal(content)
	if err != nil {
		return err
	}
	return os.WriteFile(s.path(name), data, 0o600)
}

// until repeats a check until it is done, or ctx ends. It returns the last error of the check.
func until(ctx context.Context, check func(context.Context) (done bool, err error)) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		done, err := check(ctx)
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}
