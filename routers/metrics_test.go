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
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/internal/altershield"
)

// metricQuery is a query as the plug-in of a stock server sends it, with the headers of its HTTP client.
const metricQuery = `{"duration":30000,"workloadExternalQuery":{"kind":"Deployment","metric":{"name":"cpu_util"},"name":"sleep",` +
	`"namespace":"default"},"start":1699998200123,"end":1700000000123,"type":"workloadExternal"}`

// metricSource answers queries by a function.
type metricSource func(ctx context.Context, body []byte) (int, string, []altershield.Point)

func (m metricSource) Answer(ctx context.Context, body []byte) (int, string, []altershield.Point) {
	return m(ctx, body)
}

func queryOf(body, from string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, altershield.MetricsPath, strings.NewReader(body))
	r.RemoteAddr = from
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Content-Encoding", "UTF-8")
	r.Header.Set("Accept-Encoding", "gzip,deflate")
	r.Header.Set("User-Agent", "Apache-HttpClient/4.5.13 (Java/1.8.0_382)")
	return r
}

const (
	unsigned = `{"code":401,"message":"queries for metrics are not signed: ` +
		`add the address of AlterShield Server to --altershield-metrics-from"}`
	empty   = `{"code":200,"message":"","points":[]}`
	notJSON = `{"code":415,"message":"the body is not application/json, or is compressed"}`
)

func TestQueryMetrics(t *testing.T) {
	const server = "192.0.2.10:40000"
	points := []altershield.Point{{Timestamp: 1_700_000_000_000, Value: 0.5}, {Timestamp: 1_700_000_030_000, Value: 1e-7}}
	for name, test := range map[string]struct {
		from    string
		change  func(*http.Request)
		body    string
		closed  bool // no network may ask
		status  int
		message string
		points  []altershield.Point
		code    int
		want    string
	}{
		"the plug-in's": {status: 200, points: points, code: 200, want: `{"code":200,"message":"","points":[` +
			`{"timestamp":1700000000000,"value":0.5},` +
			`{"timestamp":1700000030000,"value":1e-7}]}`},
		"no data": {status: 200, message: "needs JVMs", points: []altershield.Point{}, code: 200,
			want: `{"code":200,"message":"needs JVMs","points":[]}`},
		"an error":          {status: 404, message: "no open order", code: 404, want: `{"code":404,"message":"no open order"}`},
		"no network":        {closed: true, code: 401, want: unsigned},
		"another address":   {from: "192.0.2.11:40000", code: 401, want: unsigned},
		"IPv4 in IPv6":      {from: "[::ffff:192.0.2.10]:1", status: 200, points: points[:0], code: 200, want: empty},
		"IPv6":              {from: "[2001:db8::7]:1", status: 200, points: points[:0], code: 200, want: empty},
		"another IPv6":      {from: "[2001:db8:0:1::7]:1", code: 401, want: unsigned},
		"no address at all": {from: "somewhere", code: 401, want: unsigned},
		"a proxy's header": {from: "198.51.100.1:1", change: func(r *http.Request) {
			r.Header.Set("X-Forwarded-For", "192.0.2.10")
			r.Header.Set("X-Real-Ip", "192.0.2.10")
			r.Header.Set("Forwarded", "for=192.0.2.10")
		}, code: 401, want: unsigned},
		"no encoding": {change: func(r *http.Request) { r.Header.Del("Content-Encoding") }, status: 200, points: points[:0], code: 200,
			want: empty},
		"gzip":   {change: func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, code: 415, want: notJSON},
		"a form": {change: func(r *http.Request) { r.Header.Set("Content-Type", "multipart/form-data") }, code: 415, want: notJSON},
		"another way": {change: func(r *http.Request) { r.Method = http.MethodGet }, code: 405,
			want: `{"code":405,"message":"the method is POST"}`},
		"two megabytes": {body: strings.Repeat("x", 2<<20), code: 413, want: `{"success":false,"retry":false,"msg":"the body is too large"}`},
		"two megabytes of unknown size": {body: strings.Repeat("x", 2<<20), change: func(r *http.Request) { r.ContentLength = -1 }, code: 413,
			want: `{"code":413,"message":"the body is too large"}`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(f *fixture) {
				f.opts.Metrics = metricSource(func(ctx context.Context, body []byte) (int, string, []altershield.Point) {
					if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > 10*time.Second || string(body) != metricQuery {
						t.Errorf("deadline %v, body %s", deadline, body)
					}
					return test.status, test.message, test.points
				})
				if !test.closed {
					f.opts.MetricsFrom = []netip.Prefix{netip.MustParsePrefix("192.0.2.10/32"), netip.MustParsePrefix("2001:db8::/64")}
				}
			})
			from, body := server, metricQuery
			if test.from != "" {
				from = test.from
			}
			if test.body != "" {
				body = test.body
			}
			r := queryOf(body, from)
			if test.change != nil {
				test.change(r)
			}
			expect(t, serve(f.handler(t), r), test.code, test.want)
			if log := f.log(); (log == "") == (test.code/100 == 4 && test.code != 405) || strings.Contains(log, metricQuery) {
				t.Errorf("log %q", log)
			}
			if reported := f.reported(); len(reported) > 0 {
				t.Errorf("counted as callbacks: %q", reported)
			}
		})
	}
}

// TestQueryMetricsRate: an address has a rate of its own, also if its callbacks are signed.
func TestQueryMetricsRate(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		f.opts.Metrics = metricSource(func(context.Context, []byte) (int, string, []altershield.Point) { return 200, "", nil })
		f.opts.MetricsFrom = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	})
	h := f.handler(t)
	callback := signed(passed, tokenA, testNow)
	callback.RemoteAddr = "192.0.2.10:1"
	if w := serve(h, callback); w.Code != http.StatusOK {
		t.Fatalf("the callback: %d", w.Code)
	}
	codes := map[int]int{}
	for range 100 {
		codes[serve(h, queryOf(metricQuery, "192.0.2.10:1")).Code]++
	}
	if got := fmt.Sprint(codes); got != "map[200:90 429:10]" {
		t.Errorf("100 queries at once: %s", got)
	}
	if w := serve(h, queryOf(metricQuery, "192.0.2.11:1")); w.Code != http.StatusOK {
		t.Errorf("another address: %d", w.Code)
	}
}

// TestQueryMetricsSlowly: a body that does not arrive ends the connection, and Prometheus is not asked.
func TestQueryMetricsSlowly(t *testing.T) {
	var asked atomic.Int32
	f := newFixture(t, func(f *fixture) {
		f.opts.Metrics = metricSource(func(context.Context, []byte) (int, string, []altershield.Point) {
			asked.Add(1)
			return 200, "", nil
		})
		f.opts.MetricsFrom = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		f.limits.Read = 50 * time.Millisecond
	})
	address, _ := f.start(t)
	conn := dial(t, address)
	write(t, conn, "POST "+altershield.MetricsPath+" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Encoding: UTF-8\r\n"+
		fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(metricQuery), metricQuery[:20]))
	if code, body := readAnswer(t, conn); code != http.StatusBadRequest || !strings.Contains(body, "the body did not arrive") {
		t.Errorf("answer %d %s", code, body)
	}
	if asked.Load() != 0 {
		t.Error("the query was answered")
	}
}
