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
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"

	"github.com/traas-stack/altershield-operator/internal/breaker"
)

// Timeouts bound the stages of a call. Zero values take the default.
type Timeouts struct {
	// Dial bounds the connection, 2 s by default.
	Dial time.Duration
	// TLSHandshake bounds the handshake, 3 s by default.
	TLSHandshake time.Duration
	// ResponseHeader bounds the wait for an answer once the request was sent, 5 s
	// by default. It also bounds a synchronous check.
	ResponseHeader time.Duration
	// Call bounds the whole call with its quick retry, 8 s by default. No call holds its
	// worker for longer.
	Call time.Duration
}

func (t Timeouts) withDefaults() Timeouts {
	return Timeouts{
		Dial:           cmp.Or(t.Dial, 2*time.Second),
		TLSHandshake:   cmp.Or(t.TLSHandshake, 3*time.Second),
		ResponseHeader: cmp.Or(t.ResponseHeader, 5*time.Second),
		Call:           cmp.Or(t.Call, 8*time.Second),
	}
}

// RateLimit bounds the calls of this client. Zero values take the default. A call over a
// limit does not wait: it fails at once with [ErrThrottled].
type RateLimit struct {
	// PerSecond and Burst are 200 and 400 by default.
	PerSecond float64
	Burst     int
	// InFlight is how many calls may be under way at once, 64 by default. If it is less than
	// the number of workers, a slow server cannot occupy all workers.
	InFlight int
}

func (r RateLimit) withDefaults() RateLimit {
	return RateLimit{
		PerSecond: cmp.Or(r.PerSecond, 200),
		Burst:     cmp.Or(r.Burst, 400),
		InFlight:  cmp.Or(r.InFlight, 64),
	}
}

const (
	contentType = "application/json;charset=UTF-8"
	// maxAnswer bounds what is read of an answer.
	maxAnswer = 1 << 20
	// maxMessage bounds what an error quotes of the server.
	maxMessage = 512
	// maxCode bounds an unknown result code of the server.
	maxCode = 32
)

// inFlightWait is the wait when too many calls are under way.
const inFlightWait = 100 * time.Millisecond

// maxRetryAfter bounds the wait that a server may ask for with a Retry-After header.
const maxRetryAfter = 5 * time.Minute

// Options of a [Client].
type Options struct {
	// URL of the server, http or https, with its path prefix if it has one.
	URL string
	// Platform is the name with which the operator is registered at the server.
	Platform string
	// Tokens sign the requests. Nil signs with an empty token. A stock server accepts it,
	// because it does not enforce signatures.
	Tokens    TokenSource
	Timeouts  Timeouts
	RateLimit RateLimit
	// TLS is for servers whose certificate the system does not trust.
	TLS *tls.Config
	// Transport replaces the client's own transport in tests. Timeouts bound only the client's own.
	Transport http.RoundTripper
	// Clock is the real clock by default. Timeouts always use the real clock.
	Clock clock.PassiveClock
	// OnCall is called after each call, for metrics; it must not block.
	OnCall func(Call)
}

// Call describes a call that ended.
type Call struct {
	Action Action
	// Err is nil after a success; its class is [ClassOf].
	Err error
	// Attempts is 0 if nothing was sent.
	Attempts int
	Duration time.Duration
}

// Client calls AlterShield Server. Safe for concurrent use.
type Client struct {
	base     *url.URL
	platform string
	tokens   TokenSource
	timeouts Timeouts
	http     *http.Client
	clock    clock.PassiveClock
	breaker  *breaker.Breaker
	limiter  *rate.Limiter
	inFlight chan struct{}
	onCall   func(Call)
}

// New makes a client. It does not call the server.
func New(o Options) (*Client, error) {
	base, err := url.Parse(o.URL)
	switch {
	case err != nil:
		return nil, errors.New("the URL of AlterShield Server is malformed")
	case base.Scheme != "http" && base.Scheme != "https", base.Host == "":
		return nil, errors.New("the URL of AlterShield Server must be http://host or https://host")
	case base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return nil, errors.New("the URL of AlterShield Server must have no user, query or fragment")
	}
	if p := strings.TrimSpace(o.Platform); p == "" || len(o.Platform) > MaxPlatform {
		return nil, fmt.Errorf("the platform must have 1 to %d bytes", MaxPlatform)
	}
	timeouts, limit := o.Timeouts.withDefaults(), o.RateLimit.withDefaults()
	if limit.PerSecond < 0 || limit.Burst < 0 || limit.InFlight < 0 {
		return nil, errors.New("rate limits must be positive")
	}
	c := &Client{
		base:     base,
		platform: o.Platform,
		tokens:   o.Tokens,
		timeouts: timeouts,
		clock:    o.Clock,
		limiter:  rate.NewLimiter(rate.Limit(limit.PerSecond), limit.Burst),
		inFlight: make(chan struct{}, limit.InFlight),
		onCall:   o.OnCall,
	}
	if c.clock == nil {
		c.clock = clock.RealClock{}
	}
	if c.tokens == nil {
		c.tokens = StaticTokens{""}
	}
	c.breaker = breaker.New(c.clock)
	transport := o.Transport
	if transport == nil {
		transport = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: timeouts.Dial}).DialContext,
			TLSClientConfig:       o.TLS,
			TLSHandshakeTimeout:   timeouts.TLSHandshake,
			ResponseHeaderTimeout: timeouts.ResponseHeader,
			MaxIdleConnsPerHost:   limit.InFlight,
			IdleConnTimeout:       30 * time.Second,
			DisableCompression:    true,
		}
	}
	c.http = &http.Client{
		Transport: transport,
		// The application never redirects. Whatever else redirects must not get the
		// signature.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// Close closes idle connections. Calls remain possible.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Platform returns the name with which the operator is registered at the server.
func (c *Client) Platform() string { return c.platform }

// SubmitOrder submits an order. It repeats the call once after a transport error: at worst
// the answer is a duplicate.
func (c *Client) SubmitOrder(ctx context.Context, r SubmitOrderRequest) (*SubmitOrderResult, error) {
	return post[SubmitOrderResult](ctx, c, ActionSubmitOrder, &r, nil)
}

// StartOrder starts an order and its order-level PRE check.
func (c *Client) StartOrder(ctx context.Context, r StartOrderRequest) (*NodeResult, error) {
	return post(ctx, c, ActionStartOrder, &r, hasNodeID)
}

// StartBatch starts a batch and its PRE check. It never repeats the call, because a second
// start makes a second node.
func (c *Client) StartBatch(ctx context.Context, r StartBatchRequest) (*NodeResult, error) {
	return post(ctx, c, ActionStartBatch, &r, hasNodeID)
}

// FinishNode ends a batch or the node of an order and starts its POST check.
// SkipCheck of the answer means nothing. After an ambiguous finish,
// [CodeNotSupported] means that the server received the finish.
func (c *Client) FinishNode(ctx context.Context, r FinishNodeRequest) (*NodeResult, error) {
	return post[NodeResult](ctx, c, ActionFinishNode, &r, nil)
}

// RetrieveCheck polls a check; read the answer with [PollResult.Passed].
func (c *Client) RetrieveCheck(ctx context.Context, r RetrieveCheckRequest) (*PollResult, error) {
	return post[PollResult](ctx, c, ActionRetrieveCheck, &r, nil)
}

// EndOrder ends an order.
func (c *Client) EndOrder(ctx context.Context, r EndOrderRequest) error {
	_, err := post[struct{}](ctx, c, ActionEndOrder, &r, nil)
	return err
}

// SubmitAndStart submits an order of a G1 scene and waits for its verdict. The caller's
// deadline bounds the call. A call that reaches it does not count as a failure of the server.
func (c *Client) SubmitAndStart(ctx context.Context, r SubmitAndStartRequest) (*SubmitAndStartResult, error) {
	return post(ctx, c, ActionSubmitAndStart, &r, func(r *SubmitAndStartResult) error {
		if r.Verdict == nil || r.Verdict.Verdict == "" {
			return errors.New("the answer has no verdict")
		}
		return nil
	})
}

// Heartbeat asks the server for its global switches. Any error means that the server does not
// work, or does not accept the operator. The circuit breaker does not hold a heartbeat back, the
// limits do not count it, and it is not reported to Options.OnCall. After a heartbeat that
// succeeds, the breaker lets the next call through. The breaker stays open until that call
// succeeds, because a server may answer heartbeats and fail at everything else.
func (c *Client) Heartbeat(ctx context.Context) error {
	tokens, err := c.tokens.Tokens()
	if err != nil {
		return &Error{Action: ActionHeartbeat, Class: ClassHuman, Err: err}
	}
	got, _, err := c.attempt(ctx, call{
		action: ActionHeartbeat, method: http.MethodGet, path: PathHeartbeat, content: QueryContent(nil),
	}, tokens)
	if err != nil {
		return err
	}
	if _, err = decode[map[string]json.RawMessage](ActionHeartbeat, got, tokens, nil); err == nil {
		c.breaker.Alive()
	}
	return err
}

// lastTry is the key of what LastTry adds to a context.
type lastTry struct{}

// LastTry makes the calls with a context the last ones before their caller gives up. An
// open circuit breaker does not hold them back, unless another call has just failed.
func LastTry(ctx context.Context) context.Context { return context.WithValue(ctx, lastTry{}, true) }

func isLastTry(ctx context.Context) bool { return ctx.Value(lastTry{}) != nil }

// request is a request of the protocol.
type request interface{ platformOf() *string }

// post encodes and sends a request.
func post[T any](ctx context.Context, c *Client, action Action, r request, check func(*T) error) (*T, error) {
	if p := r.platformOf(); *p == "" {
		*p = c.platform
	}
	content, err := encode(r)
	if err != nil {
		err = &Error{Action: action, Class: ClassGiveUp, Err: err}
		c.report(Call{Action: action, Err: err})
		return nil, err
	}
	return do(ctx, c, call{action: action, method: http.MethodPost, path: PathExe + string(action), content: content, body: true}, check)
}

// encode makes the exact bytes that are signed and sent: compact JSON on one line without a
// newline at its end. The server joins the lines of a body before it verifies the signature. All
// characters beyond ASCII are escaped, so the verification does not depend on the character set
// with which the server reads.
func encode(r request) ([]byte, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return escapeNonASCII(data), nil
}

func escapeNonASCII(data []byte) []byte {
	if bytes.IndexFunc(data, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
		return data
	}
	escaped := make([]byte, 0, len(data)+len(data)/2)
	for _, r := range string(data) {
		switch {
		case r < utf8.RuneSelf:
			escaped = append(escaped, byte(r)) //nolint:gosec // below 128
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			escaped = fmt.Appendf(escaped, `\u%04x\u%04x`, high, low)
		default:
			escaped = fmt.Appendf(escaped, `\u%04x`, r)
		}
	}
	return escaped
}

// call is one exchange with the server.
type call struct {
	action  Action
	method  string
	path    string
	content []byte
	body    bool
}

// harmless reports whether the call may be repeated at once after a transport error. These
// are reads, the submission of an order (a duplicate at worst), and the end of an order (which
// stores nothing).
func (k call) harmless() bool {
	switch k.action {
	case ActionHeartbeat, ActionRetrieveCheck, ActionSubmitOrder, ActionEndOrder:
		return true
	default:
		return false
	}
}

func (c *Client) report(k Call) {
	if c.onCall != nil {
		c.onCall(k)
	}
}

// do makes a call within the limits, and repeats a harmless call once.
func do[T any](ctx context.Context, c *Client, k call, check func(*T) error) (_ *T, err error) {
	attempts, started := 0, c.clock.Now()
	defer func() {
		c.report(Call{Action: k.action, Err: err, Attempts: attempts, Duration: c.clock.Since(started)})
	}()
	if err := ctx.Err(); err != nil {
		return nil, &Error{Action: k.action, Class: ClassRetry, Err: err}
	}
	tokens, err := c.tokens.Tokens()
	if err != nil {
		return nil, &Error{Action: k.action, Class: ClassHuman, Err: err}
	}
	period, retryAfter, err := c.breaker.Allow(isLastTry(ctx))
	if err != nil {
		return nil, &Error{Action: k.action, Class: ClassRetry, RetryAfter: retryAfter, Err: err}
	}
	result := breaker.Neutral
	defer func() { c.breaker.Done(period, result, err) }()

	release, wait := c.admit()
	if release == nil {
		return nil, &Error{Action: k.action, Class: ClassRetry, RetryAfter: wait, Err: ErrThrottled}
	}
	defer release()

	var got *answer
	if got, attempts, err = c.attempt(ctx, k, tokens); err != nil {
		result = breaker.Failed
		switch {
		case errors.Is(ctx.Err(), context.Canceled),
			ctx.Err() != nil && k.action == ActionSubmitAndStart:
			result = breaker.Neutral
		}
		return nil, err
	}
	domain, err := decode(k.action, got, tokens, check)
	if isAnswer(err) {
		result = breaker.Answered
	} else {
		result = breaker.Failed
	}
	return domain, err
}

// attempt sends a call, and repeats a harmless call once.
func (c *Client) attempt(ctx context.Context, k call, tokens []string) (_ *answer, attempts int, _ error) {
	callCtx, cancel := context.WithTimeout(ctx, c.timeouts.Call)
	defer cancel()
	for ambiguous := false; ; {
		attempts++
		got, err := c.exchange(callCtx, k, tokens)
		if err == nil {
			return got, attempts, nil
		}
		ambiguous = ambiguous || !neverSent(err)
		if attempts == 1 && k.harmless() && callCtx.Err() == nil && !isTimeout(err) {
			continue
		}
		if ctx.Err() == nil && callCtx.Err() != nil {
			err = fmt.Errorf("no answer within %s: %w", c.timeouts.Call, err)
		}
		return nil, attempts, &Error{Action: k.action, Class: ClassRetry, Ambiguous: ambiguous, Err: err}
	}
}

// admit takes a place among the calls under way, and one call from the rate. If there is none,
// it returns when to try again. It never waits.
func (c *Client) admit() (release func(), wait time.Duration) {
	select {
	case c.inFlight <- struct{}{}:
	default:
		return nil, inFlightWait
	}
	now := c.clock.Now()
	reservation := c.limiter.ReserveN(now, 1)
	if !reservation.OK() {
		<-c.inFlight
		return nil, time.Second
	}
	if wait := reservation.DelayFrom(now); wait > 0 {
		reservation.CancelAt(now)
		<-c.inFlight
		return nil, wait
	}
	return func() { <-c.inFlight }, 0
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// exchange sends one signed request and reads its bounded answer. Its errors are errors of
// the transport.
func (c *Client) exchange(ctx context.Context, k call, tokens []string) (*answer, error) {
	target := *c.base
	target.Path = strings.TrimSuffix(target.Path, "/") + k.path
	var body io.Reader
	if k.body {
		body = bytes.NewReader(k.content)
	}
	req, err := http.NewRequestWithContext(ctx, k.method, target.String(), body)
	if err != nil {
		return nil, err
	}
	timestamp := Timestamp(c.clock.Now())
	req.Header.Set(HeaderPlatform, c.platform)
	req.Header.Set(HeaderTimestamp, timestamp)
	req.Header.Set(HeaderSign, Sign(timestamp, k.content, tokens[0]))
	req.Header.Set("Accept", "application/json")
	if k.body {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		// The wrapped error is enough: the address is in the configuration.
		var urlError *url.Error
		if errors.As(err, &urlError) {
			err = urlError.Err
		}
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	return &answer{
		status:     resp.StatusCode,
		retryAfter: retryAfterHeader(resp.Header.Get("Retry-After")),
		redirect:   resp.StatusCode >= 300 && resp.StatusCode < 400,
		body:       data,
	}, nil
}
