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

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/network"
)

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

// queryMetrics answers a query for metrics, which a stock server does not sign. So only addresses that an administrator named
// may ask, and their requests have limits of their own: they take no slot from signed requests. The address is that of the
// connection; a header with another address is not read.
func (s *Server) queryMetrics(w http.ResponseWriter, r *http.Request) {
	source := network.AddressOf(r.RemoteAddr)
	if !slices.ContainsFunc(s.opts.MetricsFrom, func(from netip.Prefix) bool { return from.Contains(source) }) {
		s.refuseMetrics(w, r, http.StatusUnauthorized,
			"queries for metrics are not signed: add the address of AlterShield Server to --altershield-metrics-from")
		return
	}
	switch encoding := r.Header.Get("Content-Encoding"); {
	// The server names the character set as the encoding.
	case encoding != "" && !strings.EqualFold(encoding, "UTF-8"), !altershield.IsJSON(r.Header.Get("Content-Type")):
		s.refuseMetrics(w, r, http.StatusUnsupportedMediaType, "the body is not application/json, or is compressed")
		return
	case s.metricRates.Take(source) != network.Granted:
		w.Header().Set("Retry-After", "1")
		s.refuseMetrics(w, r, http.StatusTooManyRequests, "too many queries for metrics per second")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.metrics)
	defer cancel()
	body, done, err := s.ReadBody(w, r)
	defer done()
	switch {
	case errors.Is(err, network.ErrTooLarge):
		s.refuseMetrics(w, r, http.StatusRequestEntityTooLarge, err.Error())
		return
	case err != nil:
		s.refuseMetrics(w, r, http.StatusBadRequest, "the body did not arrive")
		return
	}
	status, message, points := s.opts.Metrics.Answer(ctx, body)
	if status != http.StatusOK {
		s.refuseMetrics(w, r, status, message)
		return
	}
	writeJSON(w, status, metricAnswer{codeAnswer{status, message}, points})
}

func (s *Server) refuseMetrics(w http.ResponseWriter, r *http.Request, status int, message string) {
	s.refusals.Info("refused a request", "cause", message, "path", r.URL.Path, "remote", r.RemoteAddr)
	writeJSON(w, status, codeAnswer{status, message})
}
