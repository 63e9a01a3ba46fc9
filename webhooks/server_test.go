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
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/internal/intercept"
	"github.com/traas-stack/altershield-operator/internal/network"
	"github.com/traas-stack/altershield-operator/internal/pki"
)

// served is a running webhook server.
type served struct {
	*boundedServer
	dir     string
	ca      *pki.KeyPair
	roots   *x509.CertPool
	address string
	stop    func() error
}

// serve starts a webhook server with one webhook, at /hook.
func serve(t *testing.T, edit func(*network.Limits), hook admission.HandlerFunc) *served {
	t.Helper()
	crlog.SetLogger(logr.Discard()) // the logger of the certificate watcher
	ca, err := pki.NewCA("test-ca", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s := &served{dir: t.TempDir(), ca: ca, roots: x509.NewCertPool()}
	s.roots.AddCert(ca.Cert)
	s.issue(t, "first")
	limits := defaultServerLimits()
	if edit != nil {
		edit(&limits)
	}
	s.boundedServer = newServer(ServerOptions{
		Host: "127.0.0.1", CertDir: s.dir, CertName: "tls.crt", KeyName: "tls.key", Log: logr.Discard(),
	}, limits)
	s.Register("/hook", &admission.Webhook{Handler: hook})
	if err := s.StartedChecker()(nil); err == nil {
		t.Error("ready before it was started")
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	s.stop = func() error {
		cancel()
		select {
		case err := <-done:
			done <- nil
			return err
		case <-time.After(time.Minute):
			return errors.New("the server does not end")
		}
	}
	t.Cleanup(func() { _ = s.stop() })
	eventually(t, "the server to be ready", func() bool { return s.StartedChecker()(nil) == nil })
	s.address = s.port.Addr().String()
	return s
}

func (s *served) issue(t *testing.T, name string) {
	t.Helper()
	pair, err := s.ca.IssueServer(name, []string{"127.0.0.1"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for file, data := range map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM} {
		if err := os.WriteFile(filepath.Join(s.dir, file), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	condition := func(context.Context) (bool, error) { return is(), nil }
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, condition); err != nil {
		t.Fatalf("gave up waiting for %s", what)
	}
}

// receive waits for a value.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		t.Fatal("gave up waiting")
		panic("unreachable")
	}
}

func allow(context.Context, admission.Request) admission.Response { return admission.Allowed("") }

// reviewOf returns an AdmissionReview of about size bytes.
func reviewOf(t *testing.T, size int) []byte {
	t.Helper()
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request:  &admissionv1.AdmissionRequest{UID: "1", Name: strings.Repeat("x", size)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// client returns a client that keeps connections, like an API server.
func (s *served) client(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Timeout: time.Minute, Transport: transport}
}

// ask sends a request and returns its HTTP status; 0 without an answer.
func (s *served) ask(t *testing.T, c *http.Client, path string, body []byte) (status int) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+s.address+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(r)
	if err != nil {
		t.Log(err)
		return 0
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode == http.StatusOK && !strings.Contains(string(answer), `"allowed":true`) {
		t.Errorf("answer %s, %v", answer, err)
	}
	return resp.StatusCode
}

// TestOthersKeepNoAPIServerOut: connections without a complete request are limited, and do not
// delay admission requests.
func TestOthersKeepNoAPIServerOut(t *testing.T) {
	header := func(length int) string {
		return fmt.Sprintf("POST /hook HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", length)
	}
	for name, test := range map[string]struct {
		secured bool
		text    func(t *testing.T) string
	}{
		"no handshake": {false, func(*testing.T) string { return "" }},
		"silent":       {true, func(*testing.T) string { return "" }},
		"headers":      {true, func(*testing.T) string { return "POST /hook HTTP/1.1\r\nX-Slow: " }},
		"body":         {true, func(*testing.T) string { return header(1000) + "{" }},
		"idle after a forged request": {true, func(t *testing.T) string {
			body := reviewOf(t, 1)
			return header(len(body)) + string(body)
		}},
		"idle after a request for another path": {true, func(*testing.T) string { return "GET / HTTP/1.1\r\nHost: x\r\n\r\n" }},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(l *network.Limits) {
				l.Connections, l.PerSource = 4, 0
				l.ReadHeader, l.Read, l.Write, l.Idle = time.Hour, time.Hour, time.Hour, time.Hour
				l.Shutdown = time.Millisecond
			}, allow)
			var others []net.Conn
			other := func() {
				conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				if test.secured {
					conn = tls.Client(conn, &tls.Config{RootCAs: s.roots, ServerName: "127.0.0.1"})
				}
				others = append(others, conn)
				if text := test.text(t); test.secured {
					// The server may close the connection during the handshake or the write.
					if _, err := conn.Write([]byte(text)); err == nil && strings.HasPrefix(name, "idle") {
						if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
							resp.Body.Close()
						}
					}
				}
			}
			client := s.client(t)
			for range 5 {
				for range 8 {
					other()
				}
				client.CloseIdleConnections() // the next request needs a new connection
				if status := s.ask(t, client, "/hook", reviewOf(t, 1)); status != http.StatusOK {
					t.Fatalf("status %d, want 200", status)
				}
			}
			open := 0
			for _, conn := range others {
				if secured, ok := conn.(*tls.Conn); ok {
					conn = secured.NetConn()
				}
				if err := conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond)); err != nil {
					continue
				}
				if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
					open++
				}
			}
			if open > 4 {
				t.Errorf("%d connections are open, want at most 4", open)
			}
		})
	}
}

// TestKeptConnectionStays: an API server that keeps sending requests keeps its connection while
// others are opened.
func TestKeptConnectionStays(t *testing.T) {
	s := serve(t, func(l *network.Limits) { l.Connections, l.PerSource = 3, 0 }, allow)
	dials := 0
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: s.roots}, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			dials++
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}}
	defer client.CloseIdleConnections()
	for range 20 {
		if status := s.ask(t, client, "/hook", reviewOf(t, 1)); status != http.StatusOK {
			t.Fatalf("status %d, want 200", status)
		}
		for range 3 {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
	}
	if dials != 1 {
		t.Errorf("%d connections, want one", dials)
	}
}

// TestBodies: bodies that are too large are refused, and large bodies are limited at once.
func TestBodies(t *testing.T) {
	entered, goOn := make(chan struct{}, 1), make(chan struct{})
	s := serve(t, func(l *network.Limits) {
		l.SmallBody, l.Body, l.LargeBodies, l.Share = 1000, 10_000, 16_000, 100*time.Millisecond
	}, func(_ context.Context, req admission.Request) admission.Response {
		if len(req.Name) == 2000 {
			entered <- struct{}{}
			<-goOn
		}
		return admission.Allowed("")
	})
	client := s.client(t)
	for size, want := range map[int]int{10: http.StatusOK, 5000: http.StatusOK, 20_000: http.StatusRequestEntityTooLarge} {
		if got := s.ask(t, client, "/hook", reviewOf(t, size)); got != want {
			t.Errorf("%d bytes: status %d, want %d", size, got, want)
		}
	}
	// One source may send one large body at once.
	first := make(chan int, 1)
	go func() { first <- s.ask(t, client, "/hook", reviewOf(t, 2000)) }()
	receive(t, entered)
	if got := s.ask(t, client, "/hook", reviewOf(t, 5000)); got != http.StatusServiceUnavailable {
		t.Errorf("a second large one: status %d, want 503", got)
	}
	if got := s.ask(t, client, "/hook", reviewOf(t, 10)); got != http.StatusOK {
		t.Errorf("a small one beside it: status %d, want 200", got)
	}
	close(goOn)
	if got := receive(t, first); got != http.StatusOK {
		t.Errorf("the first large one: status %d, want 200", got)
	}
	if got := s.ask(t, client, "/hook", reviewOf(t, 5000)); got != http.StatusOK {
		t.Errorf("after it: status %d, want 200", got)
	}
	// Large bodies that are announced and do not arrive do not count.
	for range 3 {
		conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: s.roots}}).DialContext(t.Context(), "tcp", s.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		const begun = "POST /hook HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n{"
		if _, err := io.WriteString(conn, begun); err != nil {
			t.Fatal(err)
		}
		if got := s.ask(t, client, "/hook", reviewOf(t, 5000)); got != http.StatusOK {
			t.Errorf("beside a body that does not arrive: status %d, want 200", got)
		}
	}
	if got := s.ask(t, client, "/none", reviewOf(t, 10)); got != http.StatusNotFound {
		t.Errorf("no webhook: status %d, want 404", got)
	}
}

// TestConnectionThatWaits: a connection is not closed before its first request, and the timeout
// of the request begins with the request.
func TestConnectionThatWaits(t *testing.T) {
	s := serve(t, func(l *network.Limits) { l.Read = 500 * time.Millisecond }, allow)
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: s.roots}}
	conn, err := dialer.DialContext(t.Context(), "tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read before the first request: %v, want the connection open", err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	body := reviewOf(t, 1)
	post(t, conn, len(body), string(body))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d, want 200", resp.StatusCode)
	}
}

// post writes a request that announces a body of length bytes, with this body.
func post(t *testing.T, conn net.Conn, length int, body string) {
	t.Helper()
	const header = "POST /hook HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
	if _, err := fmt.Fprintf(conn, header+"%s", length, body); err != nil {
		t.Fatal(err)
	}
}

// TestSlowRequests: the connection of a client that does not finish its request, or does not
// read the answer, is closed.
func TestSlowRequests(t *testing.T) {
	const short = 100 * time.Millisecond
	large := admission.Denied(strings.Repeat("x", 32<<20))
	s := serve(t, func(l *network.Limits) { l.Read, l.Write = short, 2*short },
		func(context.Context, admission.Request) admission.Response { return large })
	for name, body := range map[string]string{"body": "{", "answer": string(reviewOf(t, 1))} {
		t.Run(name, func(t *testing.T) {
			conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: s.roots}}).DialContext(t.Context(), "tcp", s.address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			post(t, conn, len(reviewOf(t, 1)), body)
			time.Sleep(10 * short) //nolint:forbidigo // a slow client
			if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(conn)
			if errors.Is(err, os.ErrDeadlineExceeded) || len(answer) > 32<<20 {
				t.Errorf("%d bytes, %v; want the connection to end", len(answer), err)
			}
		})
	}
}

// TestServerLife: the server answers a request in flight when the manager ends, and serves a
// new certificate without a restart.
func TestServerLife(t *testing.T) {
	entered, goOn := make(chan struct{}), make(chan struct{})
	s := serve(t, nil, func(ctx context.Context, req admission.Request) admission.Response {
		if len(req.Name) == 2 {
			close(entered)
			<-goOn
		}
		if ctx.Err() != nil {
			return admission.Denied("cut short")
		}
		return admission.Allowed("")
	})
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: s.roots, NextProtos: []string{"h2", "http/1.1"}}}
	certificate := func() (name, protocol string) {
		conn, err := dialer.DialContext(t.Context(), "tcp", s.address)
		if err != nil {
			return "", ""
		}
		defer conn.Close()
		state := conn.(*tls.Conn).ConnectionState() //nolint:errcheck // the dialer makes no other type
		return state.PeerCertificates[0].Subject.CommonName, state.NegotiatedProtocol
	}
	if name, protocol := certificate(); name != "first" || protocol != "http/1.1" {
		t.Errorf("certificate of %q, protocol %q", name, protocol)
	}
	s.issue(t, "second")
	eventually(t, "the new certificate", func() bool { name, _ := certificate(); return name == "second" })

	first, stopped := make(chan int, 1), make(chan error, 1)
	client := s.client(t)
	go func() { first <- s.ask(t, client, "/hook", reviewOf(t, 2)) }()
	receive(t, entered)
	go func() { stopped <- s.stop() }()
	eventually(t, "the server not to be ready", func() bool { return s.StartedChecker()(nil) != nil })
	close(goOn)
	if got := receive(t, first); got != http.StatusOK {
		t.Errorf("the request in flight: status %d, want 200", got)
	}
	if err := receive(t, stopped); err != nil {
		t.Errorf("Start() = %v", err)
	}
	if conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address); err == nil {
		conn.Close()
		t.Error("still listening")
	}
}

// TestServerFails: the error names the flag with the wrong value.
func TestServerFails(t *testing.T) {
	crlog.SetLogger(logr.Discard())
	s := newServer(ServerOptions{CertDir: t.TempDir(), CertName: "a", KeyName: "b"}, defaultServerLimits())
	if err := s.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "--webhook-cert-path") {
		t.Errorf("Start() = %v without a certificate", err)
	}
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	none := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return nil, errors.New("there is no certificate yet")
	}
	port := taken.Addr().(*net.TCPAddr).Port //nolint:errcheck // a TCP listener
	s = newServer(ServerOptions{Host: "127.0.0.1", Port: port, GetCertificate: none}, defaultServerLimits())
	if err := s.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "--webhook-port") {
		t.Errorf("Start() = %v on a port that is taken", err)
	}
	s = newServer(ServerOptions{Host: "127.0.0.1", GetCertificate: none}, defaultServerLimits())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	eventually(t, "the server to listen", func() bool { return s.port.Addr() != nil })
	if err := s.StartedChecker()(nil); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("ready without a certificate: %v", err)
	}
	cancel()
	if err := receive(t, done); err != nil {
		t.Errorf("Start() = %v", err)
	}
}

// TestServerLimits: request bodies in memory leave room for the caches, and the timeouts fit
// the timeouts of API servers.
func TestServerLimits(t *testing.T) {
	l := defaultServerLimits()
	if bodies := int64(l.Connections)*l.SmallBody + l.LargeBodies; bodies > 128<<20 {
		t.Errorf("bodies may take %d MiB", bodies>>20)
	}
	if min(l.Idle, l.ReadHeader) <= 90*time.Second {
		t.Error("API servers keep idle connections longer")
	}
	if l.PerSource >= l.Connections {
		t.Error("one source may have all connections")
	}
	if l.Write < l.Read+intercept.CallTimeout*time.Second {
		t.Errorf("timeouts %s, %s do not fit the timeout of API servers", l.Read, l.Write)
	}
}
