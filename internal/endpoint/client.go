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

package endpoint

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/breaker"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/slots"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

const (
	// MaxSeries bounds the series of an answer.
	MaxSeries = 500
	// maxEndpoints is the number of endpoints whose limits and connections are remembered.
	maxEndpoints = 64
	// freshFor is how long credentials are used before their Secrets are read again.
	freshFor = time.Minute
	// dialTimeout bounds a connection, reachTimeout the call of Reach.
	dialTimeout  = 5 * time.Second
	reachTimeout = 10 * time.Second
	// failureCounts is the number of seconds for which the failure of a call makes an HTTP endpoint unreachable.
	failureCounts = 300
	// maxSentence bounds what an error quotes of Prometheus, in bytes.
	maxSentence = 200
	agent       = "altershield-operator"
)

// Error is a call without an answer. Its message is a sentence without credentials.
type Error struct {
	// Reason is one word.
	Reason, Message string
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// errCanceled is the error if the caller no longer waits.
var errCanceled = &Error{"Canceled", "it was not asked"}

// errNoPrometheus is the error of an answer of another type.
var errNoPrometheus = &Error{v1alpha1.ReasonUnavailable, "it gave no valid answer: is it a Prometheus?"}

// errManySeries is the error of an answer with too many series.
var errManySeries = &Error{v1alpha1.ReasonManySeries, fmt.Sprintf(
	"the result has more than %d series: aggregate the query with sum() or max(), or add matchers", MaxSeries)}

// Guard returns an error unless an address may be dialled, as a [net.Dialer.ControlContext].
type Guard func(ctx context.Context, network, address string, c syscall.RawConn) error

// Clients call endpoints. A process has one Clients, with the limits of each endpoint.
type Clients struct {
	secrets client.Reader
	clock   clock.PassiveClock
	dial    Dial
	resolve func(ctx context.Context, network, host string) ([]netip.Addr, error)

	mu    sync.Mutex
	known *lru.Cache
}

// Dial makes a connection to an endpoint.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Guarded returns a Dial to addresses that a guard allows. The guard gets the resolved address.
func Guarded(guard Guard) Dial {
	dialer := net.Dialer{Timeout: dialTimeout, ControlContext: func(ctx context.Context, network, address string, c syscall.RawConn) error {
		if err := guard(ctx, network, address, c); err != nil {
			return errAddress
		}
		return nil
	}}
	return dialer.DialContext
}

// NewClients returns clients that read Secrets by name from the API server.
func NewClients(secrets client.Reader, c clock.PassiveClock, dial Dial) *Clients {
	return &Clients{secrets: secrets, clock: c, dial: dial, resolve: net.DefaultResolver.LookupNetIP, known: lru.New(maxEndpoints)}
}

// endpoint has the limits and the connections of one endpoint.
type endpoint struct {
	breaker *breaker.Breaker
	// failure is the last failure, which stands for calls that the breaker stops.
	failure atomic.Pointer[Error]
	// failedAt is the time of the last failure in Unix seconds; 0 if a later call was answered.
	failedAt atomic.Int64
	limiter  *rate.Limiter
	// slots bound the calls at a time, of all namespaces and of each, and change with the limit.
	slots *slots.Slots
	limit int

	mu         sync.Mutex
	config     *config.HTTPClientConfig
	signingKey []byte
	transport  http.RoundTripper
	generation int64
	read       time.Time
}

// of returns the limits of an endpoint. They outlive changes of its spec.
func (c *Clients) of(e *v1alpha1.DefenseEndpoint) (known *endpoint, calls *slots.Slots) {
	limits := v1alpha1.EndpointLimits{}
	if e.Spec.Limits != nil {
		limits = *e.Spec.Limits
	}
	qps, concurrency := cmp.Or(limits.QPS, defaultQPS), int(cmp.Or(limits.Concurrency, defaultConcurrency))
	c.mu.Lock()
	defer c.mu.Unlock()
	if found, ok := c.known.Get(e.UID); ok {
		known = found.(*endpoint) //nolint:errcheck // nothing else is in it
	} else {
		known = &endpoint{breaker: breaker.New(c.clock), limiter: rate.NewLimiter(0, 1)}
		c.known.Add(e.UID, known)
	}
	known.limiter.SetLimit(rate.Limit(qps))
	known.limiter.SetBurst(int(qps))
	if known.limit != concurrency {
		known.slots, known.limit = slots.New(concurrency, max(concurrency/2, 1)), concurrency
	}
	return known, known.slots
}

// Query evaluates a query as of a time. The timeout bounds the call, not the wait for the limits of
// the endpoint. An answer has at most [MaxSeries] series.
func (c *Clients) Query(
	ctx context.Context, e *v1alpha1.DefenseEndpoint, work slots.Work, query string, at time.Time, timeout time.Duration,
) (samples []rules.Sample, err error) {
	err = c.limited(ctx, e, work, func(known *endpoint) (result breaker.Outcome, err error) {
		samples, result, err = c.query(ctx, e, known, query, at, timeout)
		return result, err
	})
	return samples, err
}

// QueryRange evaluates a query over a range. An answer has at most [MaxSeries] series.
func (c *Clients) QueryRange(
	ctx context.Context, e *v1alpha1.DefenseEndpoint, work slots.Work, query string, over promv1.Range, timeout time.Duration,
) (matrix model.Matrix, err error) {
	err = c.limited(ctx, e, work, func(known *endpoint) (result breaker.Outcome, err error) {
		value, result, err := c.ask(ctx, e, known, timeout, func(ctx context.Context, p promv1.API, o ...promv1.Option) (model.Value, error) {
			value, _, _, err := p.QueryRange(ctx, query, over, o...)
			return value, err
		})
		if err != nil {
			return result, err
		}
		of, ok := value.(model.Matrix)
		switch {
		case !ok:
			return result, errNoPrometheus
		case len(of) > MaxSeries:
			return result, errManySeries
		}
		matrix = of
		return result, nil
	})
	return matrix, err
}

// OneSeries returns the values of an answer to a query that has one series, or none.
func OneSeries(matrix model.Matrix) ([]model.SamplePair, error) {
	switch len(matrix) {
	case 0:
		return nil, nil
	case 1:
		return matrix[0].Values, nil
	default:
		return nil, errNoPrometheus
	}
}

// limited makes a call within the limits of its endpoint.
func (c *Clients) limited(
	ctx context.Context, e *v1alpha1.DefenseEndpoint, work slots.Work, call func(known *endpoint) (breaker.Outcome, error),
) (err error) {
	known, calls := c.of(e)
	release, err := calls.Acquire(ctx, work)
	if err != nil {
		return errCanceled
	}
	defer release()
	if err := known.limiter.Wait(ctx); err != nil {
		return errCanceled
	}
	period, _, refused := known.breaker.Allow(false)
	if refused != nil {
		return known.failure.Load()
	}
	result := breaker.Neutral
	defer func() { known.breaker.Done(period, result, err) }()
	result, err = call(known)
	if failed := (*Error)(nil); result == breaker.Failed && errors.As(err, &failed) {
		known.failure.Store(failed)
		known.failedAt.Store(c.clock.Now().Unix())
	} else if result == breaker.Answered {
		known.failedAt.Store(0)
	}
	return err
}

func (c *Clients) query(
	ctx context.Context, e *v1alpha1.DefenseEndpoint, known *endpoint, query string, at time.Time, timeout time.Duration,
) (samples []rules.Sample, result breaker.Outcome, err error) {
	value, result, err := c.ask(ctx, e, known, timeout, func(ctx context.Context, p promv1.API, o ...promv1.Option) (model.Value, error) {
		value, _, _, err := p.Query(ctx, query, at, o...)
		return value, err
	})
	if err == nil {
		samples, err = samplesOf(value)
	}
	return samples, result, err
}

// ask makes a call of a Prometheus.
func (c *Clients) ask(
	ctx context.Context, e *v1alpha1.DefenseEndpoint, known *endpoint, timeout time.Duration,
	call func(context.Context, promv1.API, ...promv1.Option) (model.Value, error),
) (model.Value, breaker.Outcome, error) {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	transport, _, err := c.transport(ctx, e, known)
	if err != nil {
		return nil, breaker.Neutral, err
	}
	body := &capped{next: transport, most: responseBytes(e)}
	made, err := api.NewClient(api.Config{Address: e.Spec.URL, Client: withoutRedirects(body)})
	if err != nil {
		return nil, breaker.Neutral, &Error{v1alpha1.ReasonInvalidPolicy, "its url cannot be used"}
	}
	value, err := call(ctx, promv1.NewAPI(made), promv1.WithTimeout(timeout), promv1.WithLimit(MaxSeries+1))
	switch {
	case err == nil:
		return value, breaker.Answered, nil
	case caller.Err() != nil:
		return nil, breaker.Neutral, errCanceled
	}
	outcome := breaker.Failed
	var of *promv1.Error
	if errors.As(err, &of) && (of.Type == promv1.ErrBadData || of.Type == promv1.ErrExec) {
		outcome = breaker.Answered
		return nil, outcome, &Error{v1alpha1.ReasonQueryFailed,
			"it refuses the query: " + wording.Shortened(wording.Printable(of.Msg), maxSentence)}
	}
	return nil, outcome, failure(ctx, body.status, err)
}

// samplesOf returns the series of an answer.
func samplesOf(value model.Value) ([]rules.Sample, error) {
	switch of := value.(type) {
	case *model.Scalar:
		return []rules.Sample{{Value: float64(of.Value)}}, nil
	case model.Vector:
		if len(of) > MaxSeries {
			return nil, errManySeries
		}
		samples := make([]rules.Sample, len(of))
		for i, s := range of {
			if s.Histogram != nil {
				return nil, &Error{v1alpha1.ReasonQueryFailed, "the result is a native histogram: use histogram_quantile() or histogram_count()"}
			}
			samples[i] = rules.Sample{Labels: make(map[string]string, len(s.Metric)), Value: float64(s.Value)}
			for name, value := range s.Metric {
				samples[i].Labels[string(name)] = string(value)
			}
		}
		return samples, nil
	default:
		return nil, errNoPrometheus
	}
}

// Sentence returns the reason of a call without an answer, and a sentence that names the endpoint and none of its Secrets.
func Sentence(e *v1alpha1.DefenseEndpoint, err error) (reason, message string) {
	failed := &Error{v1alpha1.ReasonUnavailable, "it cannot be called"}
	errors.As(err, &failed)
	switch failed.Reason {
	case v1alpha1.ReasonInvalidPolicy, v1alpha1.ReasonCredentials:
		// Names of Secrets are not for users of other namespaces.
		failed = &Error{v1alpha1.ReasonUnavailable, "it is not accepted; its condition Accepted has the cause"}
	}
	return failed.Reason, "endpoint " + e.Name + ": " + failed.Message
}

// failure returns the error of a call without a valid answer. No text of the answer is in it.
func failure(ctx context.Context, status int, err error) *Error {
	timeout, authority, host := net.Error(nil), x509.UnknownAuthorityError{}, x509.HostnameError{}
	invalid, name, login := x509.CertificateInvalidError{}, &net.DNSError{}, &oauth2.RetrieveError{}
	message := "it cannot be called"
	switch {
	case errors.Is(err, errTooLarge):
		message = "its answer is larger than limits.responseBytes, or than 1Mi for a service: shorten the result, or raise the limit"
	case errors.As(err, &login) && login.Response != nil:
		message = fmt.Sprintf("spec.auth.oauth2.tokenURL gives no token (HTTP %d): correct it or the Secret; redirects are not followed",
			login.Response.StatusCode)
	case status/100 == 3:
		message = fmt.Sprintf("it redirects (HTTP %d), and redirects are not followed: correct spec.url", status)
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		message = fmt.Sprintf("it refuses the credentials (HTTP %d): correct the Secret of spec.auth", status)
	case status == http.StatusTooManyRequests:
		message = "it has too many calls (HTTP 429): lower limits.qps"
	case ctx.Err() != nil || errors.As(err, &timeout) && timeout.Timeout():
		message = "it does not answer in time"
	case status/100 == 2:
		message = "it gave no valid answer: are spec.type and the path of spec.url right?"
	case status > 0:
		message = fmt.Sprintf("it answers HTTP %d", status)
	case errors.Is(err, errAddress):
		message = "its address may not be called: it is of this host, of the API server, or in --deny-cidrs"
	case errors.As(err, &authority):
		message = "its certificate is of an unknown authority: name it in spec.tls.caSecretRef"
	case errors.As(err, &host):
		message = "its certificate is for another name: set spec.tls.serverName, or correct spec.url"
	case errors.As(err, &invalid):
		message = "its certificate is not valid: it may have expired"
	case errors.As(err, &name):
		message = "its name is not known to DNS: correct spec.url"
	case errors.Is(err, syscall.ECONNREFUSED):
		message = "it refuses connections"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		message = "it ends connections without an answer"
	}
	return &Error{v1alpha1.ReasonUnavailable, message}
}

// Reach returns an error unless an endpoint answers. The breaker does not stop it, and closes once
// the endpoint answers again.
func (c *Clients) Reach(ctx context.Context, e *v1alpha1.DefenseEndpoint) error {
	known, _ := c.of(e)
	switch e.Spec.Type {
	case v1alpha1.EndpointAlertmanager:
		return c.Send(ctx, e, []byte("[]"))
	case v1alpha1.EndpointPrometheus:
		_, _, err := c.query(ctx, e, known, "vector(1)", time.Time{}, reachTimeout)
		if err == nil {
			known.breaker.Alive()
		}
		return err
	case v1alpha1.EndpointHTTP:
	}
	// No path of an HTTP service is known to be harmless: an answer to HEAD is enough, unless calls fail.
	answer, result, err := c.do(ctx, e, known, http.MethodHead, "", nil, reachTimeout)
	alive := result == breaker.Answered || answer.Status == http.StatusNotImplemented // it may have no HEAD
	login := answer.Status == http.StatusUnauthorized || answer.Status == http.StatusForbidden
	switch {
	case login:
		return &Error{v1alpha1.ReasonUnavailable, err.Error()}
	case alive && c.clock.Now().Unix()-known.failedAt.Load() < failureCounts:
		return known.failure.Load()
	case alive:
		return nil
	default:
		return err
	}
}

// transport returns the transport of an endpoint. It reads the Secrets again now and then, and keeps
// connections while the credentials stay. The key signs requests; it is nil if they are not signed.
func (c *Clients) transport(
	ctx context.Context, e *v1alpha1.DefenseEndpoint, known *endpoint,
) (transport http.RoundTripper, signingKey []byte, err error) {
	known.mu.Lock()
	defer known.mu.Unlock()
	now := c.clock.Now()
	if known.transport != nil && known.generation == e.Generation && now.Sub(known.read).Abs() < freshFor {
		return known.transport, known.signingKey, nil
	}
	if problem := Problem(e); problem != "" {
		return nil, nil, &Error{v1alpha1.ReasonInvalidPolicy, problem}
	}
	made, key, err := configOf(ctx, c.secrets, e)
	switch {
	case errors.Is(err, ErrCredentials):
		return nil, nil, &Error{v1alpha1.ReasonCredentials, err.Error()}
	case err != nil:
		return nil, nil, &Error{v1alpha1.ReasonUnavailable, "its Secrets could not be read from the API server"}
	}
	if known.transport == nil || !reflect.DeepEqual(made, known.config) {
		transport, err := c.made(ctx, *made)
		if err != nil {
			// The error may quote a certificate.
			return nil, nil, &Error{v1alpha1.ReasonCredentials, "spec.tls: the certificates or the key cannot be used: they must be PEM"}
		}
		if idle, ok := known.transport.(interface{ CloseIdleConnections() }); ok {
			idle.CloseIdleConnections()
		}
		known.config, known.transport = made, transport
	}
	known.signingKey, known.generation, known.read = key, e.Generation, now
	return known.transport, known.signingKey, nil
}

// made returns the transport of a configuration. The client of common/config for OAuth 2.0 follows redirects with the secret, and
// waits without end for a token.
func (c *Clients) made(ctx context.Context, of config.HTTPClientConfig) (http.RoundTripper, error) {
	ctx = context.WithoutCancel(ctx)
	login := of.OAuth2
	of.OAuth2 = nil
	plain := func(of config.HTTPClientConfig) (http.RoundTripper, error) {
		return config.NewRoundTripperFromConfigWithContext(ctx, of, agent,
			config.WithDialContextFunc(config.DialContextFunc(c.dial)), config.WithUserAgent(agent), config.WithIdleConnTimeout(freshFor))
	}
	transport, err := plain(of)
	if err != nil || login == nil {
		return transport, err
	}
	tokens, err := plain(config.HTTPClientConfig{TLSConfig: login.TLSConfig, EnableHTTP2: true})
	if err != nil {
		return nil, err
	}
	asking := withoutRedirects(tokens)
	asking.Timeout = reachTimeout
	source := clientcredentials.Config{
		ClientID: login.ClientID, ClientSecret: string(login.ClientSecret), TokenURL: login.TokenURL, Scopes: login.Scopes,
	}
	return &oauth2.Transport{Source: source.TokenSource(context.WithValue(ctx, oauth2.HTTPClient, asking)), Base: transport}, nil
}

var (
	errAddress  = errors.New("the address may not be called")
	errTooLarge = errors.New("the answer is too large")
)

func withoutRedirects(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func responseBytes(e *v1alpha1.DefenseEndpoint) int64 {
	if e.Spec.Limits == nil || e.Spec.Limits.ResponseBytes == "" {
		return defaultResponseBytes
	}
	q, err := resource.ParseQuantity(e.Spec.Limits.ResponseBytes)
	if err != nil {
		return defaultResponseBytes
	}
	return q.Value()
}

// capped bounds the bodies of responses, which the client of Prometheus reads into memory, and
// remembers the last status code.
type capped struct {
	next   http.RoundTripper
	most   int64
	status int
}

// RoundTrip implements http.RoundTripper.
func (c *capped) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	c.status = response.StatusCode
	response.Body = &cappedBody{response.Body, c.most}
	return response, nil
}

type cappedBody struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (b *cappedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		// An answer may end exactly here.
		if n, err := b.ReadCloser.Read(make([]byte, 1)); n == 0 {
			return 0, err
		}
		return 0, errTooLarge
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
