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

package checks

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// anywhere is a guard for the servers of these tests, which are on this machine.
func anywhere(context.Context, string, string, syscall.RawConn) error { return nil }

// TestGuard has the addresses that may be called; the API server is at 10.0.0.1.
func TestGuard(t *testing.T) {
	for address, lets := range map[string]bool{
		"10.1.2.3": true, "172.16.9.9": true, "192.168.1.2": true, "100.64.0.7": true, "198.18.0.1": true, "240.10.0.3": true, "35.190.1.1": true,
		"fd12:3456::7": true, "2a01:4f8::1": true,
		"127.0.0.1": false, "127.8.8.8": false, "0.0.0.0": false, "169.254.169.254": false, "169.254.1.1": false,
		"224.0.0.1": false, "239.1.1.1": false,
		"255.255.255.255": false, "100.100.100.200": false, "168.63.129.16": false, "192.0.0.192": false,
		"::1": false, "::": false, "fe80::1": false, "fe80::1%eth0": false, "ff02::1": false, "fd00:ec2::254": false, "fd20:ce::254": false,
		"fd00:ec2::23": false, "fd00:42::42": false,
		"::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false, "64:ff9b::7f00:1": false,
		"10.0.0.1": false, "::ffff:10.0.0.1": false,
	} {
		network := "tcp6"
		if netip.MustParseAddr(address).Is4() {
			network = "tcp4"
		}
		err := NewGuard("https://10.0.0.1:443")(t.Context(), network, net.JoinHostPort(address, "8080"), nil)
		if (err == nil) != lets || err != nil && !errors.Is(err, errGuard) {
			t.Errorf("%s: %v, want it called: %t", address, err, lets)
		}
	}
	for server, lets := range map[string]bool{
		"": true, "10.0.0.1:6443": false, "10.0.0.1": false, "https://[fd00::1]:443": true, "https://no such": false,
	} {
		if err := NewGuard(server)(t.Context(), "tcp4", "10.0.0.1:80", nil); (err == nil) != lets {
			t.Errorf("the API server at %q: %v", server, err)
		}
	}
	for address, lets := range map[string]bool{"10.8.0.1": false, "10.9.0.1": true, "fd12::1": false, "fd13::1": true} {
		network := "tcp6"
		if netip.MustParseAddr(address).Is4() {
			network = "tcp4"
		}
		guard := NewGuard("", netip.MustParsePrefix("10.8.0.0/16"), netip.MustParsePrefix("fd12::/16"))
		err := guard(t.Context(), network, net.JoinHostPort(address, "80"), nil)
		if (err == nil) != lets || err != nil && !errors.Is(err, errGuard) {
			t.Errorf("%s, where networks are denied: %v", address, err)
		}
	}
	if err := NewGuard("")(t.Context(), "udp4", "10.0.0.2:80", nil); err == nil {
		t.Error("UDP is allowed")
	}
}

// TestGuardIsAsked: no connection is made to an address that the guard refuses.
func TestGuardIsAsked(t *testing.T) {
	server, seen := serve(t, func(http.ResponseWriter, *http.Request) {})
	for name, p := range map[string]*v1alpha1.ProbeCheck{
		"http": {HTTP: &v1alpha1.HTTPProbe{Port: portOn(t, server)}}, "tcp": {TCP: &v1alpha1.TCPProbe{Port: portOn(t, server)}},
		"grpc": {GRPC: &v1alpha1.GRPCProbe{Port: portOn(t, server)}},
	} {
		for _, ip := range []string{"127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "localhost", "", "127.0.0.1:1/", "1"} {
			r := (&caller{guard: NewGuard("")}).call(t.Context(), ip, p)
			if r.Outcome != probeUnmeasured || r.Reason != "AddressRefused" && r.Reason != "NoIP" {
				t.Errorf("%s to %q: %+v", name, ip, r)
			}
		}
	}
	if n := seen.Load(); n != 0 {
		t.Errorf("the server saw %d connections", n)
	}
}

// serve starts an HTTP server that counts connections.
func serve(t *testing.T, handler http.HandlerFunc) (*httptest.Server, *atomic.Int32) {
	t.Helper()
	seen := &atomic.Int32{}
	server := httptest.NewUnstartedServer(handler)
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			seen.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	return server, seen
}

func portOn(t *testing.T, server *httptest.Server) int32 {
	t.Helper()
	return portAt(t, server.Listener)
}

func portAt(t *testing.T, l net.Listener) int32 {
	t.Helper()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return int32(n)
}

const secret = "text-of-the-pod"

// endless answers until its client is gone.
func endless(w http.ResponseWriter, r *http.Request, header func(), chunk []byte, wait time.Duration) {
	header()
	for r.Context().Err() == nil {
		if _, err := w.Write(chunk); err != nil {
			return
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		if wait > 0 {
			select {
			case <-r.Context().Done():
			case <-time.After(wait):
			}
		}
	}
}

// TestCallHTTP has the results of responses; no text of a response is kept.
func TestCallHTTP(t *testing.T) {
	other, otherSeen := serve(t, func(http.ResponseWriter, *http.Request) {})
	answer := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", other.URL+"/"+secret)
			w.Header().Set("Set-Cookie", "session="+secret)
			w.WriteHeader(code)
			fmt.Fprint(w, secret)
		}
	}
	hijack := func(raw string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, raw)
				_ = conn.Close()
			}
		}
	}
	hijackOpen := func(raw string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, raw)
				t.Cleanup(func() { _ = conn.Close() })
			}
		}
	}
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		expect  string
		scheme  string
		timeout time.Duration
		outcome probeOutcome
		reason  string
	}{
		"200":                   {handler: answer(200), outcome: probeGood},
		"404":                   {handler: answer(404), outcome: probeBad, reason: "HTTP404"},
		"500":                   {handler: answer(500), outcome: probeBad, reason: "HTTP500"},
		"404, as expected":      {handler: answer(404), expect: "404", outcome: probeGood},
		"200, not as expected":  {handler: answer(200), expect: "404", outcome: probeBad, reason: "HTTP200"},
		"a redirect":            {handler: answer(302), outcome: probeGood},
		"a redirect as failure": {handler: answer(302), expect: "200-299", outcome: probeBad, reason: "HTTP302"},
		"never answered": {
			handler: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, timeout: 200 * time.Millisecond,
			outcome: probeBad, reason: "Timeout",
		},
		"one byte a minute": {handler: func(w http.ResponseWriter, r *http.Request) {
			endless(w, r, func() {}, []byte("x"), time.Minute)
		}, timeout: 200 * time.Millisecond, outcome: probeBad, reason: "Timeout"},
		"a body without an end": {handler: func(w http.ResponseWriter, r *http.Request) {
			endless(w, r, func() { w.Header().Set("Content-Length", "100000000") }, make([]byte, 64<<10), 0)
		}, outcome: probeGood},
		"bad, and one byte a minute": {handler: func(w http.ResponseWriter, r *http.Request) {
			endless(w, r, func() { w.WriteHeader(http.StatusServiceUnavailable) }, []byte("x"), time.Minute)
		}, outcome: probeBad, reason: "HTTP503"},
		"trailers without an end": {
			handler: hijack("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n1\r\nx\r\n0\r\nA: " +
				strings.Repeat("a", 200<<10)),
			outcome: probeBad, reason: "BadAnswer",
		},
		"chunks of one byte": {
			handler: hijack(
				"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1;a="+strings.Repeat("b", 100)+"\r\nx\r\n", 4000)),
			outcome: probeBad, reason: "BadAnswer",
		},
		"another protocol": {
			handler: hijackOpen("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"), expect: "101", outcome: probeGood,
		},
		"headers without an end": {
			handler: hijack("HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", 200<<10)), outcome: probeBad, reason: "BadAnswer",
		},
		"interim answers at length": {
			handler: hijack(strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 10000)), outcome: probeBad, reason: "BadAnswer",
		},
		"no HTTP":        {handler: hijack(secret + "\r\n\r\n"), outcome: probeBad, reason: "BadAnswer"},
		"closed at once": {handler: hijack(""), outcome: probeBad, reason: "BadAnswer"},
		"no TLS":         {handler: answer(200), scheme: "HTTPS", outcome: probeBad, reason: "BadAnswer"},
	} {
		t.Run(name, func(t *testing.T) {
			server, seen := serve(t, test.handler)
			timeout := test.timeout
			if timeout == 0 {
				timeout = time.Minute
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			r := (&caller{guard: anywhere}).call(ctx, "127.0.0.1", &v1alpha1.ProbeCheck{HTTP: &v1alpha1.HTTPProbe{
				Port: portOn(t, server), Path: "/healthz", Expect: test.expect, Scheme: test.scheme,
			}})
			if r.Outcome != test.outcome || r.Reason != test.reason || strings.Contains(r.Message, secret) {
				t.Errorf("got %+v", r)
			}
			if n := seen.Load(); n != 1 {
				t.Errorf("it made %d connections", n)
			}
		})
	}
	if n := otherSeen.Load(); n != 0 {
		t.Errorf("redirects were followed %d times", n)
	}
}

// TestCallHTTPSends: a request has the path of its probe, and no cookies of earlier responses.
func TestCallHTTPSends(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://proxy.invalid:1")
	t.Setenv("http_proxy", "http://proxy.invalid:1")
	var mu sync.Mutex
	var requests []*http.Request
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		requests = append(requests, r)
		http.SetCookie(w, &http.Cookie{Name: "session", Value: secret})
	})
	server := httptest.NewTLSServer(handler) // its CA is not known
	t.Cleanup(server.Close)
	for _, path := range []string{"/healthz?full=1&x=%20", "//example.com/a%2Fb#c", "/%zz", "/@example.com:80/"} {
		r := (&caller{guard: anywhere}).call(t.Context(), "127.0.0.1", &v1alpha1.ProbeCheck{HTTP: &v1alpha1.HTTPProbe{
			Port: portOn(t, server), Path: path, Scheme: "HTTPS",
		}})
		if r.Outcome != probeGood {
			t.Fatalf("%s: %+v", path, r)
		}
	}
	for i, want := range []string{"/healthz?full=1&x=%20", "//example.com/a%2Fb%23c", "/%25zz", "/@example.com:80/"} {
		r := requests[i]
		if r.Method != http.MethodGet || r.RequestURI != want || r.Host != server.Listener.Addr().String() ||
			r.Header.Get("User-Agent") != probeAgent || !r.Close {
			t.Errorf("%s %s to %s, %v", r.Method, r.RequestURI, r.Host, r.Header)
		}
		if len(r.Header.Values("Cookie")) > 0 || len(r.Header.Values("Authorization")) > 0 {
			t.Errorf("it sends %v", r.Header)
		}
	}
}

// badHealth answers with an error.
type badHealth struct {
	grpc_health_v1.UnimplementedHealthServer
	code codes.Code
}

func (b badHealth) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if b.code == codes.OK {
		<-ctx.Done()
	}
	return nil, status.Error(b.code, secret)
}

// TestCallGRPC has the results of a gRPC health service.
func TestCallGRPC(t *testing.T) {
	good := health.NewServer()
	good.SetServingStatus("shop", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	for name, test := range map[string]struct {
		server  grpc_health_v1.HealthServer
		service string
		timeout time.Duration
		outcome probeOutcome
		reason  string
	}{
		"serving":            {server: good, outcome: probeGood},
		"not serving":        {server: good, service: "shop", outcome: probeBad, reason: "NotServing"},
		"no such service":    {server: good, service: "other", outcome: probeBad, reason: "GRPCNotFound"},
		"no health service":  {server: grpc_health_v1.UnimplementedHealthServer{}, outcome: probeBad, reason: "GRPCUnimplemented"},
		"an error":           {server: badHealth{code: codes.Internal}, outcome: probeBad, reason: "GRPCInternal"},
		"never answered":     {server: badHealth{}, timeout: 300 * time.Millisecond, outcome: probeBad, reason: "Timeout"},
		"headers at length":  {server: floods{header: true}, outcome: probeBad, reason: "GRPCInternal"},
		"100 MB":             {server: floods{message: true}, outcome: probeBad, reason: "BadAnswer"},
		"accepts, and waits": {timeout: 300 * time.Millisecond, outcome: probeBad, reason: "Timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = listener.Close() })
			if test.server != nil {
				server := grpc.NewServer()
				grpc_health_v1.RegisterHealthServer(server, test.server)
				go func() { _ = server.Serve(listener) }()
				t.Cleanup(server.Stop)
			}
			timeout := test.timeout
			if timeout == 0 {
				timeout = time.Minute
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			r := (&caller{guard: anywhere}).call(ctx, "127.0.0.1", &v1alpha1.ProbeCheck{GRPC: &v1alpha1.GRPCProbe{
				Port: portAt(t, listener), Service: test.service,
			}})
			if r.Outcome != test.outcome || r.Reason != test.reason || strings.Contains(r.Message, secret) {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// TestCallStalls: a call ends at its timeout if the pod accepts the connection and never answers.
func TestCallStalls(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	port := portAt(t, listener)
	for name, p := range map[string]*v1alpha1.ProbeCheck{
		"http": {HTTP: &v1alpha1.HTTPProbe{Port: port}}, "https": {HTTP: &v1alpha1.HTTPProbe{Port: port, Scheme: "HTTPS"}},
		"grpc": {GRPC: &v1alpha1.GRPCProbe{Port: port}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if r := (&caller{guard: anywhere}).call(ctx, "127.0.0.1", p); r.Outcome != probeBad || r.Reason != "Timeout" {
			t.Errorf("%s: %+v", name, r)
		}
		cancel()
	}
}

// floods sends very large responses.
type floods struct {
	grpc_health_v1.UnimplementedHealthServer
	header, message bool
}

func (f floods) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	r := &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}
	if f.header {
		return r, grpc.SetHeader(ctx, grpcmetadata.Pairs("words", strings.Repeat(secret, 10<<10)))
	}
	if f.message {
		much := bytes.Repeat([]byte{1}, 100<<20)
		field := binary.AppendUvarint(binary.AppendUvarint(nil, 100<<3|2), uint64(len(much))) // 100, of bytes
		r.ProtoReflect().SetUnknown(append(field, much...))
	}
	return r, nil
}

// TestCallTCP: a port is open, or is not.
func TestCallTCP(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &v1alpha1.ProbeCheck{TCP: &v1alpha1.TCPProbe{Port: portAt(t, listener)}}
	c := &caller{guard: anywhere}
	if r := c.call(t.Context(), "127.0.0.1", p); r.Outcome != probeGood {
		t.Errorf("open: %+v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := c.call(ctx, "127.0.0.1", p); r.Outcome != probeUnmeasured {
		t.Errorf("given up: %+v", r)
	}
	_ = listener.Close()
	if r := c.call(t.Context(), "127.0.0.1", p); r.Outcome != probeBad || r.Reason != "ConnectionRefused" {
		t.Errorf("closed: %+v", r)
	}
}

// TestNotConnected has the results of errors of a connection.
func TestNotConnected(t *testing.T) {
	for name, test := range map[string]struct {
		err     error
		outcome probeOutcome
		reason  string
	}{
		"refused":     {syscall.ECONNREFUSED, probeBad, "ConnectionRefused"},
		"reset":       {syscall.ECONNRESET, probeBad, "ConnectionReset"},
		"no way":      {syscall.EHOSTUNREACH, probeUnanswered, "Unreachable"},
		"no network":  {syscall.ENETUNREACH, probeUnanswered, "Unreachable"},
		"no answer":   {syscall.ETIMEDOUT, probeUnanswered, "Timeout"},
		"in time":     {context.DeadlineExceeded, probeUnanswered, "Timeout"},
		"the guard":   {fmt.Errorf("%w: wrapped", errGuard), probeUnmeasured, "AddressRefused"},
		"this system": {syscall.EMFILE, probeUnmeasured, "NotCalled"},
	} {
		r := notConnected(t.Context(), 8080, &net.OpError{Op: "dial", Err: test.err})
		if r.Outcome != test.outcome || r.Reason != test.reason {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestPlace has the ports of pods that may be called.
func TestPlace(t *testing.T) {
	declared := []corev1.ContainerPort{{ContainerPort: 8080}, {ContainerPort: 53, Protocol: corev1.ProtocolUDP}}
	for name, test := range map[string]struct {
		port   int32
		pod    func(*corev1.Pod)
		reason string
	}{
		"declared":                {8080, func(*corev1.Pod) {}, ""},
		"not declared":            {22, func(*corev1.Pod) {}, "PortNotDeclared"},
		"none at all":             {0, func(*corev1.Pod) {}, "PortNotDeclared"},
		"declared for UDP":        {53, func(*corev1.Pod) {}, "PortNotDeclared"},
		"a port of the node":      {80, func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].HostPort = 80 }, "PortNotDeclared"},
		"of an init container":    {9000, func(p *corev1.Pod) { p.Spec.InitContainers[0].RestartPolicy = nil }, "PortNotDeclared"},
		"of a sidecar":            {9000, func(*corev1.Pod) {}, ""},
		"of one for debugging":    {9001, func(*corev1.Pod) {}, "PortNotDeclared"},
		"in the network of nodes": {8080, func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "HostNetwork"},
		"at the IP of its node":   {8080, func(p *corev1.Pod) { p.Status.HostIP = p.Status.PodIP }, "HostNetwork"},
		"at another IP of it": {8080, func(p *corev1.Pod) {
			p.Status.PodIP, p.Status.HostIPs = "fd00:0::7", []corev1.HostIP{{IP: "10.9.0.1"}, {IP: "fd00::7"}}
		}, "HostNetwork"},
		"at its IP otherwise": {8080, func(p *corev1.Pod) { p.Status.PodIP = "::ffff:10.9.0.1" }, "HostNetwork"},
		"without an IP":       {8080, func(p *corev1.Pod) { p.Status.PodIP = "" }, "NoIP"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Ports: append([]corev1.ContainerPort{}, declared...)}},
			InitContainers: []corev1.Container{{
				RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{{ContainerPort: 9000}},
			}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Ports: []corev1.ContainerPort{{ContainerPort: 9001}},
			}}},
		}, Status: corev1.PodStatus{PodIP: "10.0.0.7", HostIP: "10.9.0.1"}}
		test.pod(pod)
		if r := placeOf(pod).refuses(test.port); r.Reason != test.reason {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
