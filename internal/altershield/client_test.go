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

package altershield

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/traas-stack/altershield-operator/internal/breaker"
)

const okAnswer = `{"success":true,"resultCode":"000","msg":"","domain":{"nodeId":"n1","orderId":"o1","skipCheck":false,"url":"u"}}`

// newTestClient is a client of a handler.
func newTestClient(t *testing.T, h http.HandlerFunc, change func(*Options)) *Client {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	o := Options{URL: server.URL + "/prefix/", Platform: DefaultPlatform, Tokens: StaticTokens{token1, token2}}
	if change != nil {
		change(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func answering(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

// hijacked writes some bytes and then closes the connection.
func hijacked(write string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(conn, write)
		_ = conn.Close()
	}
}

func TestNew(t *testing.T) {
	tests := map[string]struct {
		options Options
		wantErr string
	}{
		"http":             {Options{URL: "http://as:8080", Platform: "p"}, ""},
		"https and prefix": {Options{URL: "https://as/altershield", Platform: "p"}, ""},
		"no scheme":        {Options{URL: "as:8080", Platform: "p"}, "http://host"},
		"no host":          {Options{URL: "http://", Platform: "p"}, "http://host"},
		"credentials":      {Options{URL: "http://u:secret@as", Platform: "p"}, "no user"},
		"malformed":        {Options{URL: "http://a\x00:secret", Platform: "p"}, "malformed"},
		"no platform":      {Options{URL: "http://as"}, "platform"},
		"long platform":    {Options{URL: "http://as", Platform: strings.Repeat("p", 33)}, "platform"},
		"negative limit":   {Options{URL: "http://as", Platform: "p", RateLimit: RateLimit{Burst: -1}}, "rate limits"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := New(tc.options)
			switch {
			case tc.wantErr == "" && err != nil:
				t.Error(err)
			case tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr) || strings.Contains(err.Error(), "secret")):
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
		})
	}
}

// TestRequestIsSignedAsSent: address, headers, and a signature over the exact
// bytes, by the first token.
func TestRequestIsSignedAsSent(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.UnixMilli(1700000000123))
	var got *http.Request
	var body []byte
	c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		fmt.Fprint(w, okAnswer)
	}, func(o *Options) { o.Clock = clock })

	order := testOrder()
	order.Platform = "" // filled in
	order.ChangeTitle = "发布\n"
	result, err := c.SubmitOrder(t.Context(), order)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&SubmitOrderResult{OrderID: "o1", URL: "u"}, result); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if got.Method != http.MethodPost || got.URL.Path != "/prefix/openapi/v1/exe/submitChangeExecOrder" {
		t.Errorf("%s %s", got.Method, got.URL.Path)
	}
	if strings.ContainsAny(string(body), "\r\n") || !strings.Contains(string(body), `"platform":"kubernetes"`) {
		t.Errorf("body %q", body)
	}
	want := map[string]string{
		HeaderPlatform: DefaultPlatform, HeaderTimestamp: "1700000000123",
		HeaderSign: Sign("1700000000123", body, token1), "Content-Type": "application/json;charset=UTF-8",
	}
	for name, value := range want {
		if got.Header.Get(name) != value {
			t.Errorf("%s = %q, want %q", name, got.Header.Get(name), value)
		}
	}

	if err := c.Heartbeat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got.Method != http.MethodGet || got.URL.Path != "/prefix/openapi/v1/heartbeat/config" ||
		got.Header.Get(HeaderSign) != Sign("1700000000123", []byte("{}"), token1) {
		t.Errorf("heartbeat: %s %s %v", got.Method, got.URL, got.Header)
	}
}

// mybatis is the server's message about an error of its database: the cause twice, and all of
// the SQL in between.
func mybatis(cause string) string {
	return "\n### Error updating database.  Cause: " + cause +
		"\n### The error may exist in URL [jar:file:/home/admin/altershield.jar!/mybatis/exe/mapper/ExeChangeOrderMapper.xml]" +
		"\n### The error may involve com.alipay.altershield.change.exe.dal.mapper.ExeChangeOrderMapper.insert-Inline" +
		"\n### The error occurred while setting parameters" +
		"\n### SQL: insert into altershield_exe_change_order (" + strings.Repeat("a_column_of_many, ", 100) + ")" +
		" values (" + strings.Repeat("?, ", 100) + ")" +
		"\n### Cause: " + cause + "\n; nested exception is " + cause
}

// TestErrorClasses: the class of the error of each answer.
func TestErrorClasses(t *testing.T) {
	refusal := func(code string) http.HandlerFunc {
		return answering(200, `{"success":false,"resultCode":"`+code+`","msg":"why `+token1+`\n","domain":null}`)
	}
	saying := func(code, msg string) http.HandlerFunc {
		text, err := json.Marshal(msg)
		if err != nil {
			t.Fatal(err)
		}
		return answering(200, `{"success":false,"resultCode":"`+code+`","msg":`+string(text)+`,"domain":null}`)
	}
	type is struct{ Duplicate, NotSupported, Illegal, NoCheck, Unprocessable, Ambiguous bool }
	tests := map[string]struct {
		handler   http.HandlerFunc
		wantClass Class
		wantIs    is
		wantText  string
	}{
		"000": {handler: answering(200, okAnswer)},
		"101": {refusal("101"), ClassGiveUp, is{Illegal: true}, `result code 101 "why [token]"`},
		"102": {saying("102", "authentication request fail"), ClassHuman, is{}, `result code 102 "authentication request fail"`},
		"102, something failed while it authenticated": {
			saying("102", "authentication request fail Could not get JDBC Connection"), ClassRetry, is{}, "Could not get JDBC Connection",
		},
		"102, part of the server was not loaded": {
			saying("102", "authentication request fail Invalid bound statement (not found): MetaChangePlatformMapper.getTokenByPlatform"),
			ClassRetry, is{}, "Invalid bound statement",
		},
		"103": {refusal("103"), ClassGiveUp, is{NotSupported: true}, "result code 103"},
		"104": {refusal("104"), ClassRetry, is{}, "result code 104"},
		"105": {refusal("105"), ClassGiveUp, is{}, "result code 105"},
		"106": {refusal("106"), ClassGiveUp, is{Duplicate: true}, "result code 106"},
		"151": {refusal("151"), ClassGiveUp, is{NoCheck: true}, "result code 151"},
		"901": {refusal("901"), ClassRetry, is{Ambiguous: true}, "result code 901"},
		"901, a value is too long": {
			saying("901", mybatis("com.mysql.cj.jdbc.exceptions.MysqlDataTruncation: Data truncation: Data too long for column 'creator' at row 1")),
			ClassGiveUp, is{Unprocessable: true},
			`result code 901 "com.mysql.cj.jdbc.exceptions.MysqlDataTruncation: Data truncation: Data too long for column 'creator' at row 1"`,
		},
		"901, a value is missing": {
			saying("901", mybatis("java.sql.SQLIntegrityConstraintViolationException: Column 'change_content_ref' cannot be null")),
			ClassGiveUp, is{Unprocessable: true}, "Column 'change_content_ref' cannot be null",
		},
		"901, a value is missing, and its column is not named": {
			saying("901", mybatis("java.sql.SQLException: Field 'change_phases' doesn't have a default value")),
			ClassGiveUp, is{Unprocessable: true}, "Field 'change_phases'",
		},
		"901, the database is away": {
			saying("901", mybatis("com.mysql.cj.jdbc.exceptions.CommunicationsException: Communications link failure")),
			ClassRetry, is{Ambiguous: true}, "Communications link failure",
		},
		"901, the words are those of a user": {
			saying("901", mybatis("java.net.SocketTimeoutException: Read timed out")+" Data too long for column"),
			ClassRetry, is{Ambiguous: true}, "Read timed out",
		},
		"998":                {refusal("998"), ClassRetry, is{Ambiguous: true}, "result code 998"},
		"unknown code":       {refusal("777"), ClassRetry, is{Ambiguous: true}, "result code 777"},
		"false without code": {answering(200, `{"success":false}`), ClassRetry, is{Ambiguous: true}, "HTTP 200"},
		"HTTP 400":           {answering(400, `{"status":400,"message":"JSON parse error"}`), ClassGiveUp, is{}, "HTTP 400"},
		"404 in JSON":        {answering(404, `{"status":404}`), ClassGiveUp, is{}, "HTTP 404"},
		"404 of a proxy":     {answering(404, `<html>default backend</html>`), ClassRetry, is{Ambiguous: true}, "HTTP 404"},
		"429":                {answering(429, `{}`), ClassRetry, is{Ambiguous: true}, "HTTP 429"},
		"500":                {answering(500, `{"status":500}`), ClassRetry, is{Ambiguous: true}, "HTTP 500"},
		"503":                {answering(503, `busy`), ClassRetry, is{Ambiguous: true}, "HTTP 503"},
		"redirect": {
			func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) },
			ClassRetry, is{Ambiguous: true}, "redirect",
		},
		"HTML":      {answering(200, `<html>`), ClassRetry, is{Ambiguous: true}, "no JSON object"},
		"truncated": {answering(200, okAnswer[:40]), ClassRetry, is{Ambiguous: true}, "no JSON object"},
		"truncated body": {
			hijacked("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"), ClassRetry, is{Ambiguous: true}, "reading the answer",
		},
		"connection lost":   {hijacked(""), ClassRetry, is{Ambiguous: true}, "EOF"},
		"empty":             {answering(200, ``), ClassRetry, is{Ambiguous: true}, "no JSON object"},
		"array":             {answering(200, `[1]`), ClassRetry, is{Ambiguous: true}, "no JSON object"},
		"other application": {answering(200, `{"code":0}`), ClassRetry, is{Ambiguous: true}, "no field success"},
		"too big": {
			answering(200, okAnswer+strings.Repeat(" ", maxAnswer)),
			ClassRetry, is{Ambiguous: true}, "more than 1048576 bytes",
		},
		"a long node": {
			answering(200, `{"success":true,"resultCode":"000","domain":{"nodeId":"`+strings.Repeat("n", 257)+`"}}`),
			ClassRetry, is{Ambiguous: true}, "more than 256 bytes",
		},
		"a long node, skip": {
			answering(200, `{"success":true,"resultCode":"000","domain":{"skipCheck":true,"nodeId":"`+strings.Repeat("n", 257)+`"}}`),
			ClassRetry, is{Ambiguous: true}, "more than 256 bytes",
		},
		"no node":       {answering(200, `{"success":true,"resultCode":"000","domain":{}}`), ClassRetry, is{Ambiguous: true}, "no nodeId"},
		"no node, skip": {handler: answering(200, `{"success":true,"resultCode":"000","domain":{"skipCheck":true}}`)},
		"wrong domain":  {answering(200, `{"success":true,"domain":[]}`), ClassRetry, is{Ambiguous: true}, "domain"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newTestClient(t, tc.handler, nil)
			_, err := c.StartBatch(t.Context(), testBatch())
			if got := ClassOf(err); got != tc.wantClass {
				t.Errorf("class %q, want %q: %v", got, tc.wantClass, err)
			}
			code := CodeOf(err)
			got := is{
				code == CodeDuplicate, code == CodeNotSupported, code == CodeIllegalArgument, IsNoCheck(err),
				code == CodeUnexpected && ClassOf(err) == ClassGiveUp, IsAmbiguous(err),
			}
			if diff := cmp.Diff(tc.wantIs, got); diff != "" {
				t.Errorf("predicates of %v (-want +got):\n%s", err, diff)
			}
			if err == nil {
				return
			}
			if text := err.Error(); !strings.Contains(text, tc.wantText) || !strings.Contains(text, string(ActionStartBatch)) ||
				strings.Contains(text, "insert into") || strings.Contains(text, token1) || strings.ContainsAny(text, "\n") || len(text) > 2000 {
				t.Errorf("error %q, want %q and the action", text, tc.wantText)
			}
			var e *Error
			if !errors.As(fmt.Errorf("wrapped: %w", err), &e) || e.Action != ActionStartBatch {
				t.Errorf("errors.As finds %v", e)
			}
		})
	}
}

// retryAfter returns the wait until the next try that an error asks for.
func retryAfter(err error) time.Duration {
	var e *Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.RetryAfter
}

func TestNoTokenIsForAHuman(t *testing.T) {
	c := newTestClient(t, func(http.ResponseWriter, *http.Request) { t.Error("sent") }, func(o *Options) {
		o.Tokens = NewTokenFile(t.TempDir()+"/none", clocktesting.NewFakePassiveClock(time.Now()))
	})
	if _, err := c.StartBatch(t.Context(), testBatch()); ClassOf(err) != ClassHuman || !errors.Is(err, ErrNoToken) {
		t.Errorf("error %v", err)
	}
}

// TestRefusedConnectionIsNotAmbiguous: nothing was sent.
func TestRefusedConnectionIsNotAmbiguous(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := New(Options{URL: "http://" + address, Platform: DefaultPlatform})
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range []func() error{
		func() error { _, err := c.StartBatch(t.Context(), testBatch()); return err },
		func() error { _, err := c.SubmitOrder(t.Context(), testOrder()); return err },
	} {
		if err := call(); ClassOf(err) != ClassRetry || IsAmbiguous(err) {
			t.Errorf("error %v, ambiguous %v", err, IsAmbiguous(err))
		}
	}
}

// TestQuickRetry: only harmless calls are repeated, once. A start of a batch is never repeated.
func TestQuickRetry(t *testing.T) {
	node := RetrieveCheckRequest{Base: testBase(), NodeID: "n", DefenseStage: StagePre}
	tests := map[string]struct {
		call         func(context.Context, *Client) error
		wantAttempts int
	}{
		"submit": {func(ctx context.Context, c *Client) error { _, err := c.SubmitOrder(ctx, testOrder()); return err }, 2},
		"poll":   {func(ctx context.Context, c *Client) error { _, err := c.RetrieveCheck(ctx, node); return err }, 2},
		"end": {func(ctx context.Context, c *Client) error {
			return c.EndOrder(ctx, EndOrderRequest{Base: testBase(), FinishState: FinishCancel})
		}, 2},
		"start of an order": {func(ctx context.Context, c *Client) error {
			_, err := c.StartOrder(ctx, StartOrderRequest{Base: testBase(), Start: Start{Executor: "a"}})
			return err
		}, 1},
		"start of a batch": {func(ctx context.Context, c *Client) error { _, err := c.StartBatch(ctx, testBatch()); return err }, 1},
		"finish": {func(ctx context.Context, c *Client) error {
			_, err := c.FinishNode(ctx, FinishNodeRequest{Base: testBase(), NodeID: "n"})
			return err
		}, 1},
		"synchronous": {func(ctx context.Context, c *Client) error {
			_, err := c.SubmitAndStart(ctx, SubmitAndStartRequest{Base: testBase(), Order: testOrder().Order, Executor: "a"})
			return err
		}, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var seen atomic.Int32
			var calls []Call
			c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
				seen.Add(1)
				hijacked("")(w, r)
			}, func(o *Options) { o.OnCall = func(k Call) { calls = append(calls, k) } })
			err := tc.call(t.Context(), c)
			if ClassOf(err) != ClassRetry || !IsAmbiguous(err) {
				t.Errorf("error %v", err)
			}
			if got := int(seen.Load()); got != tc.wantAttempts {
				t.Errorf("%d attempts, want %d", got, tc.wantAttempts)
			}
			if len(calls) != 1 || calls[0].Attempts != tc.wantAttempts || calls[0].Err == nil {
				t.Errorf("reported %+v", calls)
			}
		})
	}
	t.Run("5xx is not repeated", func(t *testing.T) {
		var seen atomic.Int32
		c := newTestClient(t, func(w http.ResponseWriter, _ *http.Request) { seen.Add(1); w.WriteHeader(502) }, nil)
		if _, err := c.RetrieveCheck(t.Context(), node); ClassOf(err) != ClassRetry || seen.Load() != 1 {
			t.Errorf("%d attempts, error %v", seen.Load(), err)
		}
	})
	t.Run("the second attempt may succeed", func(t *testing.T) {
		var seen atomic.Int32
		c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
			if seen.Add(1) == 1 {
				hijacked("")(w, r)
				return
			}
			fmt.Fprint(w, okAnswer)
		}, nil)
		if _, err := c.SubmitOrder(t.Context(), testOrder()); err != nil {
			t.Error(err)
		}
	})
}

// TestDeadServerHoldsNoWorker: a server that does not answer holds each call until its timeout,
// and after a few calls not at all.
func TestDeadServerHoldsNoWorker(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	var seen atomic.Int32
	var up atomic.Bool
	released := make(chan struct{})
	c := newTestClient(t, func(w http.ResponseWriter, _ *http.Request) {
		seen.Add(1)
		if up.Load() {
			fmt.Fprint(w, okAnswer)
			return
		}
		<-released
	}, func(o *Options) {
		o.Clock = clock
		o.Timeouts = Timeouts{Call: 50 * time.Millisecond}
	})
	t.Cleanup(func() { close(released) })

	started := time.Now()
	for range breaker.MaxFailures {
		_, err := c.RetrieveCheck(t.Context(), RetrieveCheckRequest{Base: testBase(), NodeID: "n", DefenseStage: StagePre})
		if ClassOf(err) != ClassRetry || !strings.Contains(err.Error(), "no answer within 50ms") {
			t.Fatal(err)
		}
	}
	if took := time.Since(started); took > 5*time.Second {
		t.Errorf("%d calls took %s", breaker.MaxFailures, took)
	}
	for range 100 {
		_, err := c.StartBatch(t.Context(), testBatch())
		if !errors.Is(err, ErrBreakerOpen) || IsAmbiguous(err) {
			t.Fatal(err)
		}
		if after := retryAfter(err); after != breaker.MinCooldown {
			t.Fatalf("retry after %s", after)
		}
	}
	if seen.Load() != breaker.MaxFailures || c.breaker.Current() != breaker.Open {
		t.Errorf("%d requests, breaker %s", seen.Load(), c.breaker.Current())
	}

	up.Store(true)
	clock.SetTime(clock.Now().Add(breaker.MinCooldown))
	if _, err := c.StartBatch(t.Context(), testBatch()); err != nil || c.breaker.Current() != breaker.Closed {
		t.Errorf("breaker %s, error %v", c.breaker.Current(), err)
	}
}

// TestBreakerCountsOnlyADeadServer: refusals and callers that go away do not count.
func TestBreakerCountsOnlyADeadServer(t *testing.T) {
	tests := map[string]struct {
		handler http.HandlerFunc
		cancel  bool
		want    breaker.State
	}{
		"refusals":       {answering(200, `{"success":false,"resultCode":"901"}`), false, breaker.Closed},
		"HTTP 400":       {answering(400, ``), false, breaker.Closed},
		"HTTP 500":       {answering(500, ``), false, breaker.Open},
		"HTML":           {answering(200, `<html>`), false, breaker.Open},
		"callers leave":  {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, true, breaker.Closed},
		"reset":          {hijacked(""), false, breaker.Open},
		"other services": {answering(200, `{}`), false, breaker.Open},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				tc.handler(w, r)
			}, nil)
			for range breaker.MaxFailures + 1 {
				ctx, cancel := context.WithCancel(t.Context())
				if tc.cancel {
					time.AfterFunc(20*time.Millisecond, cancel)
				}
				if _, err := c.StartBatch(ctx, testBatch()); err == nil {
					t.Error("no error")
				}
				cancel()
			}
			if got := c.breaker.Current(); got != tc.want {
				t.Errorf("breaker %s, want %s", got, tc.want)
			}
		})
	}
}

// TestRateLimit: a call over the limit fails at once and says when to try again.
func TestRateLimit(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	c := newTestClient(t, answering(200, okAnswer), func(o *Options) {
		o.Clock = clock
		o.RateLimit = RateLimit{PerSecond: 2, Burst: 2}
	})
	for range 2 {
		if _, err := c.StartBatch(t.Context(), testBatch()); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.StartBatch(t.Context(), testBatch())
	after := retryAfter(err)
	if !errors.Is(err, ErrThrottled) || ClassOf(err) != ClassRetry || after != 500*time.Millisecond || IsAmbiguous(err) {
		t.Fatalf("error %v, retry after %s", err, after)
	}
	clock.SetTime(clock.Now().Add(500 * time.Millisecond))
	if _, err := c.StartBatch(t.Context(), testBatch()); err != nil {
		t.Error(err)
	}
}

// TestInFlightLimit: a slow server occupies no more workers than the limit.
func TestInFlightLimit(t *testing.T) {
	arrived, released := make(chan struct{}, 2), make(chan struct{})
	c := newTestClient(t, func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-released
		fmt.Fprint(w, okAnswer)
	}, func(o *Options) { o.RateLimit.InFlight = 2 })
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			if _, err := c.StartBatch(t.Context(), testBatch()); err != nil {
				t.Error(err)
			}
		})
		<-arrived
	}
	_, err := c.StartBatch(t.Context(), testBatch())
	if after := retryAfter(err); !errors.Is(err, ErrThrottled) || after != inFlightWait {
		t.Errorf("error %v, retry after %s", err, after)
	}
	close(released)
	calls.Wait()
}

func TestRedirectIsNotFollowed(t *testing.T) {
	var seen atomic.Int32
	c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
		seen.Add(1)
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}, nil)
	if _, err := c.StartBatch(t.Context(), testBatch()); ClassOf(err) != ClassRetry || seen.Load() != 1 {
		t.Errorf("%d requests, error %v", seen.Load(), err)
	}
}

func TestRetryAfterHeader(t *testing.T) {
	tests := map[string]struct {
		header string
		want   time.Duration
	}{
		"seconds": {"7", 7 * time.Second}, "absent": {"", 0}, "date": {"Wed, 21 Oct 2015 07:28:00 GMT", 0},
		"negative": {"-1", 0}, "for ever": {"999999", maxRetryAfter},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newTestClient(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", tc.header)
				w.WriteHeader(http.StatusServiceUnavailable)
			}, nil)
			_, err := c.StartBatch(t.Context(), testBatch())
			if got := retryAfter(err); got != tc.want {
				t.Errorf("retry after %s, want %s", got, tc.want)
			}
		})
	}
}

// TestHeartbeat: its results, and that limits and the breaker do not count it.
func TestHeartbeat(t *testing.T) {
	const good = `{"success":true,"resultCode":"000","msg":"success",` +
		`"domain":{"OPSCLOUD_CLIENT_SWITCH_CHG_SRV_CHECK":"true","OPSCLOUD_CLIENT_SWITCH_OFF_CHANGE_SCENE_KEYS":""}}`
	const unbound = `{"success":false,"resultCode":"102","msg":"authentication request fail Invalid bound statement (not found)"}`
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    Class
		said    string
	}{
		"works":             {answering(200, good), "", ""},
		"denied":            {answering(200, `{"success":false,"resultCode":"102","msg":"authentication request fail"}`), ClassHuman, "102"},
		"errors only":       {answering(200, unbound), ClassRetry, "Invalid bound statement"},
		"another service":   {answering(200, `{"status":"UP"}`), ClassRetry, "no field success"},
		"connection lost":   {hijacked(""), ClassRetry, "EOF"},
		"no such path":      {answering(404, `{"status":404}`), ClassGiveUp, "HTTP 404"},
		"not there for now": {answering(503, ``), ClassRetry, "HTTP 503"},
	} {
		t.Run(name, func(t *testing.T) {
			var heartbeats, calls atomic.Int32
			c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/prefix"+PathHeartbeat {
					heartbeats.Add(1)
					test.handler(w, r)
					return
				}
				fmt.Fprint(w, okAnswer)
			}, func(o *Options) {
				o.Clock = clocktesting.NewFakePassiveClock(time.Now())
				o.RateLimit = RateLimit{PerSecond: 1, Burst: 1}
				o.OnCall = func(Call) { calls.Add(1) }
			})
			for range breaker.MaxFailures {
				if err := c.Heartbeat(t.Context()); ClassOf(err) != test.want || err != nil && !strings.Contains(err.Error(), test.said) {
					t.Errorf("heartbeat: %v, want %s: %s", err, test.want, test.said)
				}
			}
			if heartbeats.Load() < breaker.MaxFailures || calls.Load() != 0 || c.breaker.Current() != breaker.Closed {
				t.Errorf("%d heartbeats, %d calls reported, breaker %s", heartbeats.Load(), calls.Load(), c.breaker.Current())
			}
			if _, err := c.StartBatch(t.Context(), testBatch()); err != nil {
				t.Errorf("a call about a release after them: %v", err)
			}
		})
	}
	t.Run("with an open breaker", func(t *testing.T) {
		c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/prefix"+PathHeartbeat {
				fmt.Fprint(w, good)
				return
			}
			w.WriteHeader(http.StatusBadGateway)
		}, nil)
		for range breaker.MaxFailures {
			if _, err := c.StartBatch(t.Context(), testBatch()); err == nil {
				t.Fatal("no error")
			}
		}
		if err := c.Heartbeat(t.Context()); err != nil || c.breaker.Current() != breaker.HalfOpen {
			t.Errorf("heartbeat: %v; breaker %s", err, c.breaker.Current())
		}
	})
	t.Run("without a token", func(t *testing.T) {
		c := newTestClient(t, answering(200, good), func(o *Options) { o.Tokens = StaticTokens{} })
		if err := c.Heartbeat(t.Context()); ClassOf(err) != ClassHuman || !errors.Is(err, ErrNoToken) {
			t.Errorf("heartbeat: %v", err)
		}
	})
}
