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
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

const (
	// maxProbeBody bytes of a response are read, and maxProbeBytes of a connection.
	maxProbeBody  = 4 << 10
	maxProbeBytes = 64 << 10
	probeAgent    = "altershield-operator-probe"
)

// caller calls a pod once: it makes one connection, to the given address. No text of a
// response gets into a message or a log.
type caller struct{ guard Guard }

// portOf returns the port that a probe calls.
func portOf(p *v1alpha1.ProbeCheck) int32 {
	switch {
	case p.HTTP != nil:
		return p.HTTP.Port
	case p.GRPC != nil:
		return p.GRPC.Port
	case p.TCP != nil:
		return p.TCP.Port
	default:
		return 0
	}
}

// onPort returns a copy of a probe that calls another port.
func onPort(p *v1alpha1.ProbeCheck, port int32) *v1alpha1.ProbeCheck {
	p = p.DeepCopy()
	switch {
	case p.HTTP != nil:
		p.HTTP.Port = port
	case p.GRPC != nil:
		p.GRPC.Port = port
	case p.TCP != nil:
		p.TCP.Port = port
	}
	return p
}

// call makes one call, until the context ends.
func (c *caller) call(ctx context.Context, ip string, p *v1alpha1.ProbeCheck) probeResult {
	port := portOf(p)
	if net.ParseIP(ip) == nil {
		return probeResult{Reason: "NoIP", Message: "it has no IP"}
	}
	address := net.JoinHostPort(ip, strconv.Itoa(int(port)))
	dialer := net.Dialer{KeepAlive: -1, ControlContext: c.guard}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return notConnected(ctx, port, err)
	}
	defer conn.Close()
	bounded := &boundedConn{Conn: conn, left: maxProbeBytes}
	switch {
	case p.HTTP != nil:
		return callHTTP(ctx, bounded, address, p.HTTP)
	case p.GRPC != nil:
		return callGRPC(ctx, bounded, address, p.GRPC)
	default:
		return probeResult{Outcome: probeGood, Message: fmt.Sprintf("port %d accepts connections", port)}
	}
}

// notConnected returns the result of a call that got no connection.
func notConnected(ctx context.Context, port int32, err error) (r probeResult) {
	timeout := net.Error(nil)
	switch {
	case errors.Is(err, errGuard):
		r.Reason, r.Message = "AddressRefused", "probes may not call its IP"
	case errors.Is(ctx.Err(), context.Canceled):
		r.Reason, r.Message = "Canceled", "it was not called"
	case errors.Is(err, syscall.ECONNREFUSED):
		r.Outcome, r.Reason, r.Message = probeBad, "ConnectionRefused", fmt.Sprintf("port %d refuses connections", port)
	case errors.Is(err, syscall.ECONNRESET):
		r.Outcome, r.Reason, r.Message = probeBad, "ConnectionReset", fmt.Sprintf("port %d resets connections", port)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTDOWN):
		r.Outcome, r.Reason, r.Message = probeUnanswered, "Unreachable", fmt.Sprintf("there is no route to port %d", port)
	case errors.As(err, &timeout) && timeout.Timeout():
		r.Outcome, r.Reason, r.Message = probeUnanswered, "Timeout", fmt.Sprintf("no connection to port %d within the timeout", port)
	default:
		r.Reason, r.Message = "NotCalled", fmt.Sprintf("port %d could not be called", port)
	}
	return r
}

// notAnswered returns the result of a call that was connected and got no valid response.
func notAnswered(ctx context.Context, what string, err error) probeResult {
	r := probeResult{Outcome: probeBad}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return probeResult{Reason: "Canceled", Message: "it was not called"}
	case ctx.Err() != nil:
		r.Reason, r.Message = "Timeout", what+" was not answered within the timeout"
	case errors.Is(err, errTooMuch):
		r.Reason, r.Message = "BadAnswer", what+" got a response that is too large"
	default:
		r.Reason, r.Message = "BadAnswer", what+" got no valid response"
	}
	return r
}

func callHTTP(ctx context.Context, conn net.Conn, address string, p *v1alpha1.HTTPProbe) probeResult {
	low, high, err := statusRange(p.Expect)
	if err != nil {
		return probeResult{Reason: "NotCalled", Message: err.Error()}
	}
	path, query, _ := strings.Cut(strings.ReplaceAll(cmp.Or(p.Path, "/"), "#", "%23"), "?")
	u := url.URL{Scheme: "http", Host: address, Path: path, RawQuery: query}
	if unescaped, err := url.PathUnescape(path); err == nil {
		u.Path, u.RawPath = unescaped, path
	}
	if p.Scheme == "HTTPS" {
		u.Scheme = "https"
	}
	what := fmt.Sprintf("GET %s on port %d", cmp.Or(p.Path, "/"), p.Port)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return probeResult{Reason: "NotCalled", Message: what + " could not be made"}
	}
	request.Header.Set("User-Agent", probeAgent)
	client := http.Client{
		Transport: &http.Transport{
			DialContext: once(conn), DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxProbeBytes,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // like a kubelet: the CA of a pod is not known
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return notAnswered(ctx, what, err)
	}
	defer response.Body.Close()
	r := probeResult{Outcome: probeGood, Message: fmt.Sprintf("%s was answered %d", what, response.StatusCode)}
	if response.StatusCode < low || response.StatusCode > high {
		r.Outcome, r.Reason = probeBad, "HTTP"+strconv.Itoa(response.StatusCode)
		r.Message += ", and not " + cmp.Or(p.Expect, defaultExpect)
		return r
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		return r // there is no body
	}
	if _, err := io.CopyN(io.Discard, response.Body, maxProbeBody); err != nil && !errors.Is(err, io.EOF) {
		return notAnswered(ctx, what, err)
	}
	return r
}

const defaultExpect = "200-399"

// statusRange returns the range of good status codes.
func statusRange(expect string) (low, high int, err error) {
	from, to, ranged := strings.Cut(cmp.Or(expect, defaultExpect), "-")
	if !ranged {
		to = from
	}
	low, err = strconv.Atoi(from)
	if err == nil {
		high, err = strconv.Atoi(to)
	}
	if err != nil {
		return 0, 0, errors.New("expect is neither a status code nor a range of status codes")
	}
	return low, high, nil
}

func callGRPC(ctx context.Context, conn net.Conn, address string, p *v1alpha1.GRPCProbe) probeResult {
	what := fmt.Sprintf("the health check on port %d", p.Port)
	if p.Service != "" {
		what = fmt.Sprintf("the health check of %s on port %d", p.Service, p.Port)
	}
	dial := once(conn)
	client, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(probeAgent),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithMaxHeaderListSize(maxProbeBody), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxProbeBody)))
	if err != nil {
		return probeResult{Reason: "NotCalled", Message: what + " could not be made"}
	}
	defer client.Close()
	// The request has no deadline: the server would answer DeadlineExceeded itself.
	withoutDeadline, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	answer, err := grpc_health_v1.NewHealthClient(client).Check(withoutDeadline, &grpc_health_v1.HealthCheckRequest{Service: p.Service})
	switch code := status.Code(err); {
	case code == codes.Canceled, code == codes.Unavailable, code == codes.ResourceExhausted:
		return notAnswered(ctx, what, err)
	case err != nil:
		return probeResult{Outcome: probeBad, Reason: "GRPC" + code.String(), Message: what + " was answered with the code " + code.String()}
	case answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING:
		name, known := grpc_health_v1.HealthCheckResponse_ServingStatus_name[int32(answer.GetStatus())]
		if !known {
			name = "UNKNOWN"
		}
		return probeResult{Outcome: probeBad, Reason: "NotServing", Message: what + " was answered " + name}
	default:
		return probeResult{Outcome: probeGood, Message: what + " was answered SERVING"}
	}
}

var (
	errSecond  = errors.New("a probe makes one connection")
	errTooMuch = errors.New("a probe reads no more")
)

// once returns a dialer that returns the connection at the first call, and then fails.
func once(conn net.Conn) func(context.Context, string, string) (net.Conn, error) {
	var given atomic.Bool
	return func(context.Context, string, string) (net.Conn, error) {
		if given.Swap(true) {
			return nil, errSecond
		}
		return conn, nil
	}
}

// boundedConn is a connection that stops reading after a number of bytes.
type boundedConn struct {
	net.Conn
	left int // bytes
}

// Read implements net.Conn.
func (c *boundedConn) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, errTooMuch
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}
