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

package monitoring

import (
	"cmp"
	"io"
	"math"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// Family is a set of metrics of HTTP servers.
type Family string

const (
	// OpenTelemetry has the histogram http_server_request_duration_seconds.
	OpenTelemetry Family = "OpenTelemetry"
	// Istio has the counter istio_requests_total and the histogram istio_request_duration_milliseconds, of a sidecar.
	Istio Family = "Istio"
	// Spring has the summary http_server_requests_seconds, without quantiles.
	Spring Family = "Spring"
)

const contentType = "text/plain; version=0.0.4; charset=utf-8"

// layout has the names of a family.
type layout struct {
	// counter is the name of a counter of requests; empty is none. duration is the name of a distribution of durations, in unit.
	counter, duration string
	unit              time.Duration
	// bounds are the upper bounds of the buckets, in unit, if the distribution is a histogram; without them it is a summary.
	bounds []float64
	// labels are those of all series; code is the name of the label with the status, and failed are the labels of failed requests.
	labels, failed map[string]string
	code           string
}

var layouts = map[Family]*layout{
	OpenTelemetry: {
		duration: "http_server_request_duration_seconds", unit: time.Second, code: "http_response_status_code",
		bounds: []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10},
		labels: map[string]string{"http_request_method": "GET", "http_route": "/", "url_scheme": "http"},
		failed: map[string]string{"error_type": "500"},
	},
	Istio: {
		counter: "istio_requests_total", duration: "istio_request_duration_milliseconds", unit: time.Millisecond, code: "response_code",
		bounds: []float64{.5, 1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000},
		labels: map[string]string{"reporter": "destination", "request_protocol": "http", "response_flags": "-"},
	},
	Spring: {
		duration: "http_server_requests_seconds", unit: time.Second, code: "status",
		labels: map[string]string{"method": "GET", "uri": "/", "outcome": "SUCCESS", "error": "none", "exception": "none"},
		failed: map[string]string{
			"outcome": "SERVER_ERROR", "error": "IllegalStateException", "exception": "IllegalStateException",
		},
	},
}

// point is what a target had counted at a time. The zero time is the time of the scrape.
type point struct {
	at     time.Time
	counts counts
}

// expose writes the metrics of a family. As in real programs there is no series of failed requests before the first of them.
func expose(w io.Writer, f Family, points []point) error {
	l := layouts[f]
	counter := &dto.MetricFamily{Name: &l.counter, Type: dto.MetricType_COUNTER.Enum()}
	duration := &dto.MetricFamily{Name: &l.duration, Type: dto.MetricType_HISTOGRAM.Enum()}
	if len(l.bounds) == 0 {
		duration.Type = dto.MetricType_SUMMARY.Enum()
	}
	for _, failed := range []bool{false, true} {
		for _, p := range points {
			t := p.counts.passed
			if failed {
				t = p.counts.failed
			}
			if failed && t.n == 0 {
				continue
			}
			requests := &dto.Metric{Label: l.labelsOf(failed), Counter: &dto.Counter{Value: new(float64(t.n))}}
			durations := &dto.Metric{Label: requests.Label}
			l.distribution(durations, t)
			if !p.at.IsZero() {
				requests.TimestampMs, durations.TimestampMs = new(p.at.UnixMilli()), new(p.at.UnixMilli())
			}
			counter.Metric = append(counter.Metric, requests)
			duration.Metric = append(duration.Metric, durations)
		}
	}
	for _, family := range []*dto.MetricFamily{counter, duration} {
		if family.GetName() == "" || len(family.Metric) == 0 {
			continue
		}
		if _, err := expfmt.MetricFamilyToText(w, family); err != nil {
			return err
		}
	}
	return nil
}

// labelsOf returns the labels of the series of passed or failed requests.
func (l *layout) labelsOf(failed bool) []*dto.LabelPair {
	values := map[string]string{l.code: "200"}
	for name, value := range l.labels {
		values[name] = value
	}
	if failed {
		values[l.code] = "500"
		for name, value := range l.failed {
			values[name] = value
		}
	}
	var pairs []*dto.LabelPair
	for name, value := range values {
		pairs = append(pairs, &dto.LabelPair{Name: new(name), Value: new(value)})
	}
	slices.SortFunc(pairs, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return pairs
}

// distribution sets the durations of a metric.
func (l *layout) distribution(m *dto.Metric, t tally) {
	sum := float64(t.sum) / float64(l.unit)
	if len(l.bounds) == 0 {
		m.Summary = &dto.Summary{SampleCount: new(t.n), SampleSum: &sum}
		return
	}
	m.Histogram = &dto.Histogram{SampleCount: new(t.n), SampleSum: &sum}
	var below uint64
	for i, bound := range append(slices.Clone(l.bounds), math.Inf(1)) {
		below += t.buckets[i]
		m.Histogram.Bucket = append(m.Histogram.Bucket, &dto.Bucket{UpperBound: &bound, CumulativeCount: new(below)})
	}
}

// counts are the requests that were answered, by result.
type counts struct {
	passed, failed tally
	layout         *layout
	// due and dueFailed are the parts of requests that are not counted yet.
	due, dueFailed float64
}

// tally counts requests of one result.
type tally struct {
	n   uint64
	sum time.Duration
	// buckets count the requests by their latency, each without those of the buckets before it.
	buckets []uint64
}

func newCounts(f Family) counts {
	n := len(layouts[f].bounds) + 1
	return counts{layout: layouts[f], passed: tally{buckets: make([]uint64, n)}, failed: tally{buckets: make([]uint64, n)}}
}

func (c counts) clone() counts {
	c.passed.buckets, c.failed.buckets = slices.Clone(c.passed.buckets), slices.Clone(c.failed.buckets)
	return c
}

// add counts n more requests. Parts of requests are added up until they are whole.
func (c *counts) add(n float64, traffic Traffic) {
	all := whole(&c.due, n)
	failed := min(all, whole(&c.dueFailed, float64(all)*traffic.Errors))
	bucket, _ := slices.BinarySearch(c.layout.bounds, float64(traffic.Latency)/float64(c.layout.unit))
	c.passed.add(all-failed, bucket, traffic.Latency)
	c.failed.add(failed, bucket, traffic.Latency)
}

// whole adds n to what is due, and takes the whole part of it.
func whole(due *float64, n float64) uint64 {
	const rounding = 1e-9
	*due += n
	taken := max(0, math.Floor(*due+rounding))
	*due -= taken
	return uint64(taken)
}

func (t *tally) add(n uint64, bucket int, latency time.Duration) {
	t.n += n
	t.sum += time.Duration(n) * latency
	t.buckets[bucket] += n
}
