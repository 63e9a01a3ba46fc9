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
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/network"
)

// maxMetricQueries bounds the queries for metrics that are answered at a time.
const maxMetricQueries = 64

// MetricSource answers queries for metrics of workloads.
type MetricSource interface {
	// Answer returns the HTTP status of the answer, a sentence about an error or about missing data, and the points.
	Answer(ctx context.Context, body []byte) (status int, message string, points []altershield.Point)
}

// metricAnswer is the answer to a query for metrics. The server reads the points only, whatever the status is.
type metricAnswer struct {
	codeAnswer
	Points []altershield.Point `json:"points"`
}

// metricQueries answers queries for metrics, which a stock server does not sign. So only addresses that an administrator named
// may ask, and their requests have limits of their own: they take no slot from signed requests. The address is that of the
// connection; a header with another address is not read.
type metricQueries struct {
	source MetricSource
	from   []netip.Prefix
	rates  *network.Rates
	// slots bound the queries at a time.
	slots chan struct{}
	// timeout bounds a query with its body, which read reads.
	timeout  time.Duration
	read     func(http.ResponseWriter, *http.Request) (body []byte, done func(), err error)
	refusals *network.Log
}

// ServeHTTP implements http.Handler.
func (m *metricQueries) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, message, points := m.answer(w, r)
	switch status {
	case http.StatusOK:
		writeJSON(w, status, metricAnswer{codeAnswer{status, message}, points})
		return
	case http.StatusTooManyRequests:
		w.Header().Set("Retry-After", "1")
	}
	m.refusals.Info("refused a request", "cause", message, "path", r.URL.Path, "remote", r.RemoteAddr)
	writeJSON(w, status, codeAnswer{status, message})
}

func (m *metricQueries) answer(w http.ResponseWriter, r *http.Request) (status int, message string, points []altershield.Point) {
	source, encoding := network.AddressOf(r.RemoteAddr), r.Header.Get("Content-Encoding")
	switch {
	case !slices.ContainsFunc(m.from, func(from netip.Prefix) bool { return from.Contains(source) }):
		return http.StatusUnauthorized,
			"queries for metrics are not signed: add the address of AlterShield Server to --altershield-metrics-from", nil
	// The server names the character set as the encoding.
	case encoding != "" && !strings.EqualFold(encoding, "UTF-8"), !altershield.IsJSON(r.Header.Get("Content-Type")):
		return http.StatusUnsupportedMediaType, "the body is not application/json, or is compressed", nil
	case m.rates.Take(source) != network.Granted:
		return http.StatusTooManyRequests, "too many queries for metrics per second", nil
	}
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	default:
		return http.StatusServiceUnavailable, "too many queries for metrics at a time", nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), m.timeout)
	defer cancel()
	body, done, err := m.read(w, r)
	defer done()
	switch {
	case errors.Is(err, network.ErrTooLarge):
		return http.StatusRequestEntityTooLarge, err.Error(), nil
	case err != nil:
		return http.StatusBadRequest, "the body did not arrive", nil
	}
	return m.source.Answer(ctx, body)
}
