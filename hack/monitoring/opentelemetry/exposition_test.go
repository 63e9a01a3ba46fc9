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

// Package opentelemetry has a server with the SDK of OpenTelemetry, as users have.
package opentelemetry

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

var update = flag.Bool("update", false, "record what the exporter exposes")

const (
	recorded = "../../../internal/policy/testdata/exporters/opentelemetry.txt"
	source   = "# Recorded by hack/monitoring/opentelemetry: otelhttp and otelgrpc " + otelhttp.Version +
		", the Prometheus exporter of OpenTelemetry, without\n# buckets.\n"
)

// TestExposition compares the series of a real server with those that the presets of the operator are tested with.
func TestExposition(t *testing.T) {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	serveHTTP(t, provider)
	serveRPC(t, provider)

	metrics := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(metrics.Close)
	exposed := source
	for line := range strings.Lines(get(t, metrics.URL, "")) {
		ofServers := strings.Contains(line, "http_server_request_duration_seconds") || strings.Contains(line, "rpc_server_call_duration_seconds")
		if ofServers && !strings.Contains(line, "_bucket{") {
			exposed += line
		}
	}
	if *update {
		if err := os.WriteFile(recorded, []byte(exposed), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := seriesOf(exposed), seriesOf(string(before)); !slices.Equal(got, want) {
		t.Errorf("the exporter exposes\n%s\nrecorded are\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// seriesOf returns the lines of an exposition without the values.
func seriesOf(text string) (series []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") {
			line = line[:strings.LastIndexByte(line, ' ')]
		}
		series = append(series, line)
	}
	return series
}

func get(t *testing.T, url, host string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// serveHTTP answers requests, some of them with an error.
func serveHTTP(t *testing.T, provider *metric.MeterProvider) {
	t.Helper()
	mux := http.NewServeMux()
	for path, code := range map[string]int{"/ok": http.StatusOK, "/absent": http.StatusNotFound, "/broken": http.StatusInternalServerError} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
	}
	server := httptest.NewServer(otelhttp.NewHandler(mux, "web", otelhttp.WithMeterProvider(provider)))
	t.Cleanup(server.Close)
	for _, path := range []string{"/ok", "/ok", "/absent", "/broken"} {
		get(t, server.URL+path, "web.example.com")
	}
}

// serveRPC answers calls: one succeeds, one fails by the fault of the client, and one by that of the server.
func serveRPC(t *testing.T, provider *metric.MeterProvider) {
	t.Helper()
	server := grpc.NewServer(
		grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithMeterProvider(provider))),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return status.Error(codes.Internal, "broken") }),
	)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	client, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	call := func(ctx context.Context, method, service string) codes.Code {
		request := &grpc_health_v1.HealthCheckRequest{Service: service}
		return status.Code(client.Invoke(ctx, method, request, &grpc_health_v1.HealthCheckResponse{}))
	}
	got := fmt.Sprint(call(t.Context(), grpc_health_v1.Health_Check_FullMethodName, ""),
		call(t.Context(), grpc_health_v1.Health_Check_FullMethodName, "absent"), call(t.Context(), "/shop.v1.Shop/Buy", ""))
	if got != "OK NotFound Internal" {
		t.Error(got)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	server.GracefulStop() // the calls are counted
	if err := <-served; err != nil {
		t.Error(err)
	}
}
