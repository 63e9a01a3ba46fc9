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

package routers

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/wait"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/network"
	"github.com/traas-stack/altershield-operator/internal/pki"
)

// start runs the server until stop, which returns the result of Start.
func (f *fixture) start(t *testing.T) (address string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.server.Start(ctx) }()
	if err := wait.PollUntilContextTimeout(ctx, time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return f.server.Addr() != nil, nil
	}); err != nil {
		cancel()
		t.Fatalf("the server does not listen: %v", err)
	}
	ended, result := false, error(nil)
	stop = func() error {
		cancel()
		if !ended {
			ended, result = true, receive(t, done, "the server to end")
		}
		return result
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Start() = %v", err)
		}
	})
	return f.server.Addr().String(), stop
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// rawHeader returns the header of a callback with the signature of other content.
func rawHeader(more string) string {
	r := signed(passed, tokenA, testNow)
	var b strings.Builder
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: x\r\n", altershield.CallbackPath)
	if err := r.Header.Write(&b); err != nil {
		panic(err)
	}
	return b.String() + more + "\r\n\r\n"
}

func write(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func readAnswer(t *testing.T, conn net.Conn) (int, string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestLimits(t *testing.T) {
	s := newFixture(t).server
	if s.NeedLeaderElection() {
		t.Error("only the leader would serve")
	}
	l := s.limits
	if l.Write <= l.Read+l.slotWait+l.record || l.record >= 6*time.Second || l.ReadHeader > 2*time.Second || l.Read > 4*time.Second {
		t.Errorf("limits %+v: no time to answer", l)
	}
	// The default memory limit is 512 MiB, of which the caches take some 140.
	if bodies := int64(l.Connections) * l.SmallBody; bodies > 128<<20 {
		t.Errorf("bodies may take %d MiB", bodies>>20)
	}
}

func TestPaths(t *testing.T) {
	tests := map[string]struct {
		method, path string
		wantCode     int
		wantBody     string
		wantAllow    string
	}{
		"unknown":               {"GET", "/", 404, `{"code":404,"message":"not found"}`, ""},
		"unclean":               {"POST", "/openapi//altershield/liveTest", 404, `{"code":404,"message":"not found"}`, ""},
		"below":                 {"POST", "/openapi/altershield/liveTest/", 404, `{"code":404,"message":"not found"}`, ""},
		"asterisk":              {"OPTIONS", "*", 404, `{"code":404,"message":"not found"}`, ""},
		"rollback, wrong verb":  {"POST", RollbackPath, 405, `{"code":405,"message":"the method is PUT"}`, "PUT"},
		"rollback, unsigned":    {"PUT", RollbackPath, 401, refusedBody, ""},
		"callback, wrong verb":  {"GET", altershield.CallbackPath, 405, `{"code":405,"message":"the method is POST"}`, "POST"},
		"callback, preflight":   {"OPTIONS", altershield.CallbackPath, 405, `{"code":405,"message":"the method is POST"}`, "POST"},
		"live test, wrong verb": {"GET", LiveTestPath, 405, `{"code":405,"message":"the method is POST"}`, "POST"},
		"suspend, wrong verb":   {"HEAD", SuspendPath, 405, `{"code":405,"message":"the method is GET"}`, "GET"},
		"suspend, no signature": {"GET", SuspendPath, 401, refusedBody, ""},
		"all kinds, unsigned":   {"GET", SuspendWorkloadPath, 401, refusedBody, ""},
		"of a kind, unsigned":   {"PUT", RollbackWorkloadPath, 401, refusedBody, ""},
	}
	f := newFixture(t)
	h := f.handler(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := serve(h, httptest.NewRequest(tc.method, tc.path, nil))
			expect(t, w, tc.wantCode, tc.wantBody)
			if got := w.Header().Get("Allow"); got != tc.wantAllow {
				t.Errorf("Allow: %q, want %q", got, tc.wantAllow)
			}
		})
	}
}

// TestNoPut: without the PUT paths no request asks for a rollback. The other paths are served.
func TestNoPut(t *testing.T) {
	f := newFixture(t, func(f *fixture) { f.opts.NoPut = true })
	h := f.handler(t)
	for _, path := range []string{RollbackPath, RollbackWorkloadPath} {
		expect(t, serve(h, httptest.NewRequest(http.MethodPut, path, nil)), http.StatusNotFound,
			`{"code":404,"message":"rollbacks over HTTP are turned off (--callback-put=false)"}`)
	}
	expect(t, serve(h, httptest.NewRequest(http.MethodGet, SuspendPath, nil)), http.StatusUnauthorized, refusedBody)
}

func TestRateLimit(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		f.limits.known.Each = network.Rate{PerSecond: 1, Burst: 2}
		f.limits.strangers.Each, f.limits.strangers.All = network.Rate{PerSecond: 1, Burst: 3}, network.Rate{PerSecond: 1, Burst: 4}
	})
	h := f.handler(t)
	from := func(address string, r *http.Request) *http.Request {
		r.RemoteAddr = address
		return r
	}
	live := func(address string) *httptest.ResponseRecorder {
		return serve(h, from(address, httptest.NewRequest(http.MethodPost, LiveTestPath, nil)))
	}
	hello := func(address string) {
		t.Helper()
		expect(t, live(address), http.StatusOK, `{"code":0,"message":"Hello world"}`)
	}
	tooMany := func(w *httptest.ResponseRecorder) {
		t.Helper()
		expect(t, w, http.StatusTooManyRequests, `{"success":false,"retry":true,"msg":"too many requests"}`)
		if got := w.Header().Get("Retry-After"); got != "1" {
			t.Errorf("Retry-After: %q, want 1", got)
		}
	}
	const a, b, known = "192.0.2.1:1", "192.0.2.2:1", "[::ffff:192.0.2.3]:1"
	verdict := func(after time.Duration) *httptest.ResponseRecorder {
		return serve(h, from(known, signed(passed, tokenA, testNow.Add(after))))
	}
	const recorded = `{"success":true,"retry":false,"msg":"recorded"}`
	// The first verdict makes its source known. From then on the source spends its own budget.
	expect(t, verdict(0), http.StatusOK, recorded)
	for range 3 {
		hello(a)
	}
	tooMany(live(a)) // it has spent its own budget
	tooMany(live("192.0.2.1:2"))
	tooMany(live(b)) // and, with the first verdict, the budget of all strangers
	for i := range 2 {
		expect(t, verdict(time.Duration(i+1)*time.Millisecond), http.StatusOK, recorded)
	}
	tooMany(verdict(3 * time.Millisecond))
	if diff := cmp.Diff([]string{"recorded", "recorded", "recorded", ResultLimited}, f.reported()); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	f.clock.SetTime(testNow.Add(time.Second))
	hello(a)
	tooMany(live(a))
	tooMany(live(b))
	expect(t, verdict(4*time.Millisecond), http.StatusOK, recorded)
	// The source is forgotten after a while.
	f.clock.SetTime(testNow.Add(f.limits.known.Keep + 2*time.Second))
	if f.server.known.Remembers(network.SourceOf(known)) {
		t.Errorf("%s is known after %s", known, f.limits.known.Keep)
	}
}

// TestFlood: one source sends ten times as many requests as it may, while verdicts come from
// another source. No verdict is lost, whichever of the sources is known.
func TestFlood(t *testing.T) {
	const verdicts = 100
	f := newFixture(t)
	h := f.handler(t)
	flood := func() {
		r := signed(passed, tokenB, testNow)
		r.RemoteAddr = "192.0.2.1:1"
		serve(h, r)
	}
	each := 10 * (f.limits.strangers.Each.Burst + int(f.limits.strangers.Each.PerSecond)) / verdicts
	for i := range verdicts {
		for range each {
			flood()
		}
		r := signed(passed, tokenA, testNow.Add(time.Duration(i)*time.Millisecond))
		r.RemoteAddr = "192.0.2.2:1"
		if w := serve(h, r); w.Code != http.StatusOK {
			t.Fatalf("verdict %d: %d %s", i, w.Code, w.Body)
		}
	}
	if got := f.records(); got != verdicts {
		t.Errorf("%d verdicts were stored, want %d", got, verdicts)
	}
}

// TestRequestsAtOnce: a request for which there is no slot waits in vain, and may come again.
// A panic frees its slot.
func TestRequestsAtOnce(t *testing.T) {
	recording, goOn := make(chan struct{}), make(chan struct{})
	f := newFixture(t, func(f *fixture) {
		f.limits.inFlight, f.limits.slotWait = 1, 10*time.Millisecond
		f.record = func(context.Context, *altershield.Callback) (Outcome, error) {
			recording <- struct{}{}
			<-goOn
			panic("a bug")
		}
	})
	h := f.handler(t)
	first := make(chan *httptest.ResponseRecorder, 1)
	go func() { first <- serve(h, signed(passed, tokenA, testNow)) }()
	receive(t, recording, "the first request")
	expect(t, serve(h, signed(passed, tokenA, testNow.Add(time.Millisecond))), http.StatusServiceUnavailable,
		`{"success":false,"retry":true,"msg":"too many requests at once"}`)
	close(goOn)
	expect(t, receive(t, first, "the answer to the first"), http.StatusInternalServerError,
		`{"success":false,"retry":true,"msg":"internal error"}`)
	if log := f.log(); !strings.Contains(log, "a bug") || !strings.Contains(log, "goroutine") {
		t.Errorf("log %q, want the panic with its stack", log)
	}
	if diff := cmp.Diff([]string{ResultLimited, ResultFailed}, f.reported()); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	go func() { first <- serve(h, signed(passed, tokenA, testNow.Add(time.Millisecond))) }()
	receive(t, recording, "the one that found no slot before")
	expect(t, receive(t, first, "its answer"), http.StatusInternalServerError, `{"success":false,"retry":true,"msg":"internal error"}`)
}

// TestSlotsAreForVerifiedRequests: other requests are answered without a slot, so they take
// no slot from a verified callback.
func TestSlotsAreForVerifiedRequests(t *testing.T) {
	reading, goOn := make(chan struct{}), make(chan struct{})
	f := newFixture(t, func(f *fixture) { f.limits.inFlight, f.limits.slotWait = 1, 10*time.Millisecond })
	h := f.handler(t)
	slow := signed(passed, tokenB, testNow)
	slow.Body = &slowBody{Reader: strings.NewReader(passed), before: func() { close(reading); <-goOn }}
	first := make(chan *httptest.ResponseRecorder, 1)
	go func() { first <- serve(h, slow) }()
	receive(t, reading, "the body of the first request to be read")
	expect(t, serve(h, signed(passed, tokenA, testNow)), http.StatusOK, `{"success":true,"retry":false,"msg":"recorded"}`)
	close(goOn)
	expect(t, receive(t, first, "the answer to the first"), http.StatusUnauthorized, refusedBody)

	f.server.handled.TryAcquire(1)
	expect(t, serve(h, signed(passed, tokenB, testNow)), http.StatusUnauthorized, refusedBody)
	expect(t, serve(h, signed(passed, tokenA, testNow)), http.StatusUnauthorized, refusedBody) // repeated
	expect(t, serve(h, httptest.NewRequest(http.MethodPost, LiveTestPath, nil)), http.StatusOK, `{"code":0,"message":"Hello world"}`)
	expect(t, serve(h, signedGet("", "{}", tokenA, testNow)), http.StatusServiceUnavailable,
		`{"success":false,"retry":true,"msg":"too many requests at once"}`)
}

// TestWaitingOutlastsReading: a verified request may wait for its slot longer
// than reading may take.
func TestWaitingOutlastsReading(t *testing.T) {
	const read = 100 * time.Millisecond
	f := newFixture(t, func(f *fixture) { f.limits.Read, f.limits.inFlight = read, 1 })
	address, _ := f.start(t)
	f.server.handled.TryAcquire(1)
	time.AfterFunc(3*read, func() { f.server.handled.Release(1) })
	resp, err := http.DefaultClient.Do(toAddress(t, signed(passed, tokenA, testNow), "http://"+address))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("answer %d, want 200", resp.StatusCode)
	}
}

// countingReader is a body of any length.
type countingReader struct{ left, read int }

func (r *countingReader) Read(p []byte) (int, error) {
	n := min(len(p), r.left)
	r.left -= n
	r.read += n
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func TestOversizedBodyIsNotRead(t *testing.T) {
	const tooLarge = `{"success":false,"retry":false,"msg":"the body is too large"}`
	for name, tc := range map[string]struct {
		length   int64
		path     string
		wantRead int
	}{
		"by its length":               {10 << 20, altershield.CallbackPath, 0},
		"to where no body is read":    {10 << 20, LiveTestPath, 0},
		"chunked":                     {-1, altershield.CallbackPath, 256<<10 + 1},
		"longer than its length said": {10, altershield.CallbackPath, 256<<10 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			body := &countingReader{left: 10 << 20}
			r := httptest.NewRequest(http.MethodPost, tc.path, body)
			r.ContentLength = tc.length
			sign(r, "", tokenA, testNow)
			expect(t, serve(f.handler(t), r), http.StatusRequestEntityTooLarge, tooLarge)
			if body.read > tc.wantRead {
				t.Errorf("%d bytes were read, want at most %d", body.read, tc.wantRead)
			}
		})
	}
	t.Run("on the wire", func(t *testing.T) {
		f := newFixture(t)
		address, _ := f.start(t)
		conn := dial(t, address)
		write(t, conn, rawHeader("Content-Length: 10485760")) // and nothing of it
		if code, body := readAnswer(t, conn); code != http.StatusRequestEntityTooLarge || body != tooLarge {
			t.Errorf("by its length: %d %s", code, body)
		}
		conn = dial(t, address)
		write(t, conn, rawHeader("Transfer-Encoding: chunked")+"A00000\r\n"+strings.Repeat("x", 256<<10+1)) // no more of it
		if code, body := readAnswer(t, conn); code != http.StatusRequestEntityTooLarge || body != tooLarge {
			t.Errorf("chunked: %d %s", code, body)
		}
		if diff := cmp.Diff([]string{ResultOversized, ResultOversized}, f.reported()); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
	})
	t.Run("largest", func(t *testing.T) {
		f := newFixture(t)
		body := passed + strings.Repeat(" ", 256<<10-len(passed))
		expect(t, serve(f.handler(t), signed(body, tokenA, testNow)), http.StatusOK, `{"success":true,"retry":false,"msg":"recorded"}`)
	})
}

// TestSlowClients: each connection is closed by its own timeout; the other timeouts are long.
func TestSlowClients(t *testing.T) {
	const short = 50 * time.Millisecond
	start := func(t *testing.T, edit func(*limits)) string {
		t.Helper()
		f := newFixture(t, func(f *fixture) {
			f.limits.ReadHeader, f.limits.Read = time.Hour, time.Hour
			edit(&f.limits)
		})
		address, _ := f.start(t)
		return address
	}
	t.Run("silent", func(t *testing.T) {
		conn := dial(t, start(t, func(l *limits) { l.ReadHeader = short }))
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("the connection was not closed: %v", err)
		}
	})
	t.Run("header", func(t *testing.T) {
		conn := dial(t, start(t, func(l *limits) { l.ReadHeader = short }))
		write(t, conn, "POST / HTTP/1.1\r\nX-Slow: ")
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("the connection was not closed: %v", err)
		}
	})
	t.Run("body", func(t *testing.T) {
		conn := dial(t, start(t, func(l *limits) { l.Read = short }))
		write(t, conn, rawHeader("Content-Length: 1000")+"{")
		if code, body := readAnswer(t, conn); code != http.StatusBadRequest ||
			body != `{"success":false,"retry":true,"msg":"the body did not arrive"}` {
			t.Errorf("answer %d %s", code, body)
		}
	})
	t.Run("huge header", func(t *testing.T) {
		conn := dial(t, start(t, func(*limits) {}))
		write(t, conn, "POST / HTTP/1.1\r\nHost: x\r\nX-Huge: "+strings.Repeat("x", 32<<10))
		// The connection is closed, with the rest of the header unread.
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("answer %d, want 431", resp.StatusCode)
		}
	})
}

// TestOneRequestPerConnection: no connection is kept alive, and the answer says so.
func TestOneRequestPerConnection(t *testing.T) {
	f := newFixture(t)
	address, _ := f.start(t)
	conn := dial(t, address)
	write(t, conn, rawHeader(fmt.Sprintf("Content-Length: %d", len(passed)))+passed)
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 OK\r\n") ||
		!strings.Contains(string(answer), "\r\nConnection: close\r\n") {
		t.Errorf("answer %q, %v, want one that says the connection is closed, and its end", answer, err)
	}
}

// TestStrangersGiveWay: any number of connections without a verified request keeps no verified
// callback waiting.
func TestStrangersGiveWay(t *testing.T) {
	for name, text := range map[string]string{
		"silent":  "",
		"headers": "POST / HTTP/1.1\r\nX-Slow: ",
		"body":    rawHeader("Content-Length: 100"),
		"refused": "GET " + SuspendPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(f *fixture) {
				f.limits.Connections, f.limits.inFlight = 4, 2
				f.limits.ReadHeader, f.limits.Read, f.limits.slotWait = time.Hour, time.Hour, 0
				f.limits.Shutdown = time.Millisecond
			})
			address, _ := f.start(t)
			for range 20 {
				write(t, dial(t, address), text)
			}
			client := &http.Client{Timeout: patience}
			for i := range 5 {
				resp, err := client.Do(toAddress(t, signed(passed, tokenA, testNow.Add(time.Duration(i)*time.Millisecond)), "http://"+address))
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Errorf("answer %d, want 200", resp.StatusCode)
				}
			}
			if log := f.log(); !strings.Contains(log, "gave way to a new one") || strings.Count(log, "\n") > 3*network.Burst {
				t.Errorf("log %q, want a ration of what gave way", log)
			}
		})
	}
}

// TestVerifiedConnectionsStay: they do not give way to new connections, which wait.
func TestVerifiedConnectionsStay(t *testing.T) {
	recording, goOn := make(chan struct{}), make(chan struct{})
	f := newFixture(t, func(f *fixture) {
		f.limits.Connections = 1
		f.record = func(context.Context, *altershield.Callback) (Outcome, error) {
			close(recording)
			<-goOn
			return OutcomeRecorded, nil
		}
	})
	address, _ := f.start(t)
	first := dial(t, address)
	write(t, first, rawHeader(fmt.Sprintf("Content-Length: %d", len(passed)))+passed)
	receive(t, recording, "the verdict")
	second := dial(t, address)
	write(t, second, "POST "+LiveTestPath+" HTTP/1.1\r\nHost: x\r\n\r\n")
	if err := second.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the second connection got %v, want nothing yet", err)
	}
	close(goOn)
	if code, _ := readAnswer(t, first); code != http.StatusOK {
		t.Errorf("the first connection got %d", code)
	}
	if err := second.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if code, _ := readAnswer(t, second); code != http.StatusOK {
		t.Errorf("the second connection got %d", code)
	}
}

func TestServesOverTheWire(t *testing.T) {
	f := newFixture(t)
	if err := f.server.StartedChecker()(nil); err == nil {
		t.Error("ready before it was started")
	}
	address, stop := f.start(t)
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return f.server.StartedChecker()(nil) == nil, nil
	}); err != nil {
		t.Errorf("not ready: %v", err)
	}
	resp, err := http.DefaultClient.Do(toAddress(t, signed(passed, tokenA, testNow), "http://"+address))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	const want = `{"success":true,"retry":false,"msg":"recorded"}`
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || string(body) != want || resp.ContentLength != int64(len(want)) {
		t.Errorf("answer %d %s of %d bytes, %v", resp.StatusCode, body, resp.ContentLength, err)
	}
	conn := dial(t, address)
	write(t, conn, "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
	if code, body := readAnswer(t, conn); code != http.StatusNotFound || body != `{"code":404,"message":"not found"}` {
		t.Errorf("OPTIONS *: %d %s", code, body)
	}
	if err := stop(); err != nil {
		t.Errorf("Start() = %v", err)
	}
	if err := f.server.StartedChecker()(nil); err == nil {
		t.Error("ready after it ended")
	}
}

func TestGracefulShutdown(t *testing.T) {
	recording, goOn := make(chan struct{}), make(chan struct{})
	f := newFixture(t, func(f *fixture) {
		f.limits.Shutdown = patience
		f.record = func(ctx context.Context, _ *altershield.Callback) (Outcome, error) {
			close(recording)
			<-goOn
			return OutcomeRecorded, ctx.Err()
		}
	})
	address, stop := f.start(t)
	code := make(chan int, 1)
	r := toAddress(t, signed(passed, tokenA, testNow), "http://"+address)
	go func() {
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			code <- 0
			return
		}
		resp.Body.Close()
		code <- resp.StatusCode
	}()
	receive(t, recording, "the recorder to be called")
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return f.server.StartedChecker()(nil) != nil, nil
	}); err != nil {
		t.Error("still ready while it ends")
	}
	close(goOn)
	if got := receive(t, code, "the answer"); got != http.StatusOK {
		t.Errorf("answer %d to the request under way, want 200", got)
	}
	if err := receive(t, stopped, "the end"); err != nil {
		t.Errorf("Start() = %v", err)
	}
	if conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address); err == nil {
		conn.Close()
		t.Error("still listening")
	}
}

// TestShutdownServesWhatIsOpen: also an open connection whose request arrives only after the
// shutdown began.
func TestShutdownServesWhatIsOpen(t *testing.T) {
	f := newFixture(t, func(f *fixture) { f.limits.Shutdown, f.limits.ReadHeader = patience, patience })
	address, stop := f.start(t)
	silent, begun := dial(t, address), dial(t, address)
	request := rawHeader(fmt.Sprintf("Content-Length: %d", len(passed))) + passed
	write(t, begun, request[:20])
	third := dial(t, address) // once it is served, the others have been accepted
	write(t, third, "POST "+LiveTestPath+" HTTP/1.1\r\nHost: x\r\n\r\n")
	readAnswer(t, third)
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, patience, true, func(context.Context) (bool, error) {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err == nil {
			conn.Close()
		}
		return err != nil, nil
	}); err != nil {
		t.Fatal("still listening while it ends")
	}
	write(t, begun, request[20:])
	if code, body := readAnswer(t, begun); code != http.StatusOK {
		t.Errorf("the request that was begun: %d %s", code, body)
	}
	write(t, silent, "POST "+LiveTestPath+" HTTP/1.1\r\nHost: x\r\n\r\n")
	if code, body := readAnswer(t, silent); code != http.StatusOK {
		t.Errorf("the connection that was silent: %d %s", code, body)
	}
	if err := receive(t, stopped, "the end"); err != nil {
		t.Errorf("Start() = %v", err)
	}
	if log := f.log(); strings.Contains(log, "gave up") {
		t.Errorf("log %q, want none given up", log)
	}
}

func TestShutdownIsBounded(t *testing.T) {
	recording, ended := make(chan struct{}), make(chan struct{})
	f := newFixture(t, func(f *fixture) {
		f.limits.Shutdown, f.limits.record = 20*time.Millisecond, time.Hour
		f.record = func(ctx context.Context, _ *altershield.Callback) (Outcome, error) {
			close(recording)
			<-ctx.Done()
			close(ended)
			return "", ctx.Err()
		}
	})
	address, stop := f.start(t)
	r := toAddress(t, signed(passed, tokenA, testNow), "http://"+address)
	go func() {
		if resp, err := http.DefaultClient.Do(r); err == nil {
			resp.Body.Close()
		}
	}()
	receive(t, recording, "the recorder to be called")
	if err := stop(); err != nil {
		t.Errorf("Start() = %v", err)
	}
	receive(t, ended, "the recorder to end")
}

func TestStartFails(t *testing.T) {
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	tests := map[string]struct {
		edit func(*Options)
		want []string
	}{
		"address taken": {func(o *Options) { o.Address = taken.Addr().String() },
			[]string{`--callback-bind-address "` + taken.Addr().String() + `"`, "in use", "give a free address"}},
		"no address": {func(o *Options) { o.Address = "nonsense" }, []string{`--callback-bind-address "nonsense"`, "host:port"}},
		"no certificate": {func(o *Options) { o.CertPath = filepath.Join(t.TempDir(), "none") },
			[]string{"--callback-cert-path", "tls.crt", "leave the flag out"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(f *fixture) { tc.edit(&f.opts) })
			err := f.server.Start(t.Context())
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("Start() = %v, want one line with %q", err, want)
				}
			}
		})
	}
	t.Run("ended before", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := newFixture(t).server.Start(ctx); err != nil {
			t.Errorf("Start() = %v", err)
		}
	})
}

func TestTLS(t *testing.T) {
	crlog.SetLogger(logr.Discard()) // where the follower of certificates logs
	now := time.Now()
	ca, err := pki.NewCA("test-ca", now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	issue := func(name string) {
		t.Helper()
		pair, err := ca.IssueServer(name, []string{"127.0.0.1"}, now, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for file, data := range map[string][]byte{certName: pair.CertPEM, keyName: pair.KeyPEM} {
			if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	issue("first")
	f := newFixture(t, func(f *fixture) { f.opts.CertPath = dir })
	address, _ := f.start(t)
	roots := x509.NewCertPool()
	roots.AddCert(ca.Cert)
	connect := func(c *tls.Config) (*tls.ConnectionState, error) {
		c.RootCAs = roots
		conn, err := (&tls.Dialer{Config: c}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		tlsConn, ok := conn.(*tls.Conn)
		if !ok {
			return nil, fmt.Errorf("a connection of type %T", conn)
		}
		state := tlsConn.ConnectionState()
		return &state, nil
	}
	state, err := connect(&tls.Config{NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := state.PeerCertificates[0].Subject.CommonName; got != "first" || state.NegotiatedProtocol != "http/1.1" {
		t.Errorf("certificate of %q, protocol %q", got, state.NegotiatedProtocol)
	}
	if _, err := connect(&tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 was accepted")
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	resp, err := client.Do(toAddress(t, signed(passed, tokenA, testNow), "https://"+address))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("answer %d, want 200", resp.StatusCode)
	}
	issue("second")
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 2*patience, true, func(context.Context) (bool, error) {
		state, err := connect(&tls.Config{})
		return err == nil && state.PeerCertificates[0].Subject.CommonName == "second", nil
	}); err != nil {
		t.Errorf("the new certificate is not served: %v", err)
	}
	// Any client can cause failed handshakes, so log lines about them are limited.
	f.log()
	for range 3 * network.Burst {
		conn := dial(t, address)
		write(t, conn, "no handshake at all\r\n\r\n")
		if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Error(err)
		}
	}
	if lines := strings.Count(f.log(), "a connection failed"); lines > network.Burst {
		t.Errorf("%d lines of failed handshakes, want at most %d", lines, network.Burst)
	}
}
