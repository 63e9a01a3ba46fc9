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
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/hack/binaries"
)

// patience bounds a wait, which takes seconds on a quiet machine.
const patience = 2 * time.Minute

func programs(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Prometheus")
	}
	root, err := binaries.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := Programs(t.Context(), root, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// eventually calls check until it returns nil.
func eventually(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := until(ctx, func(ctx context.Context) (bool, error) {
		err := check(ctx)
		return err == nil, err
	}); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// ends closes a server after a test, and checks that nothing is left of it.
func ends(t *testing.T, s *Server) {
	t.Helper()
	t.Cleanup(func() {
		pids := s.supervisor.PIDs()
		if t.Failed() {
			t.Logf("%s:\n%s", s.name, s.supervisor.LogTail(s.name))
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("%s: process %d is still there: %v", s.name, pid, err)
			}
		}
		if _, err := os.Stat(s.dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %s is still there: %v", s.name, s.dir, err)
		}
	})
}

func newTargets(t *testing.T, o TargetsOptions) *Targets {
	t.Helper()
	targets, err := NewTargets(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := targets.Close(); err != nil {
			t.Error(err)
		}
	})
	return targets
}

func add(t *testing.T, targets *Targets, pod string, o TargetOptions) *Target {
	t.Helper()
	target, err := targets.Add("shop", pod, o)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func startPrometheus(t *testing.T, o PrometheusOptions) *Prometheus {
	t.Helper()
	o.Programs = programs(t)
	p, err := StartPrometheus(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ends(t, p.Server)
	return p
}

func scraped(t *testing.T, p *Prometheus) {
	t.Helper()
	if err := p.Scraped(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// query returns the value of the only series of a query; NaN if there is none.
func query(t *testing.T, p *Prometheus, expr string, at time.Time) float64 {
	t.Helper()
	vector, err := p.Query(t.Context(), expr, at)
	if err != nil || len(vector) > 1 {
		t.Fatalf("%s: %v, %v", expr, vector, err)
	}
	if len(vector) == 0 {
		return math.NaN()
	}
	return float64(vector[0].Value)
}

// want compares the value of a query, to a thousandth.
func want(t *testing.T, p *Prometheus, expr string, at time.Time, value float64) {
	t.Helper()
	got := query(t, p, expr, at)
	if math.IsNaN(got) != math.IsNaN(value) || math.Abs(got-value) > math.Abs(value)/1000 {
		t.Errorf("%s is %v, want %v", expr, got, value)
	}
}

// becomes waits for the value of a query.
func becomes(t *testing.T, p *Prometheus, expr string, value float64) {
	t.Helper()
	eventually(t, expr, func(context.Context) error {
		if got := query(t, p, expr, time.Now()); got != value {
			return fmt.Errorf("it is %v, want %v", got, value)
		}
		return nil
	})
}

// TestPrometheus asks for what targets served, and for their past, before and after restarts.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	targets := newTargets(t, TargetsOptions{})
	end := time.Now().Truncate(time.Second)
	traffic := Traffic{Rate: 10, Errors: 0.1, Latency: 30 * time.Millisecond}
	past := []Period{{Start: end.Add(-4 * time.Minute), End: end, Step: 5 * time.Second, Traffic: traffic}}
	web := add(t, targets, "web-1", TargetOptions{Past: past, Labels: map[string]string{"node": "n1"}})
	add(t, targets, "mesh-1", TargetOptions{Family: Istio, Past: past})
	add(t, targets, "spring-1", TargetOptions{Family: Spring, Past: past})
	hourAgo := end.Add(-time.Hour)
	old := Period{Start: hourAgo.Add(-30 * time.Minute), End: hourAgo, Step: 15 * time.Second, Traffic: traffic}
	add(t, targets, "old-1", TargetOptions{Past: []Period{old}, Ended: true})
	p := startPrometheus(t, PrometheusOptions{Targets: targets})
	scraped(t, p)

	const requests = `http_server_request_duration_seconds_count{namespace="shop",pod="web-1"}`
	share := func(count, failed string) string {
		rate := func(labels string) string {
			return "sum by(pod)(rate(" + strings.Replace(count, "}", labels+"}", 1) + "[1m]))"
		}
		return rate(failed) + "/" + rate("")
	}
	want(t, p, "sum("+requests+")", time.Now(), 2400)
	want(t, p, `up{job="pods",namespace="shop",pod="web-1",node="n1"}`, time.Now(), 1)
	want(t, p, "sum(rate("+requests+"[1m]))", end, 10)
	want(t, p, share(requests, `,http_response_status_code="500"`), end, 0.1)
	want(t, p, share(`istio_requests_total{pod="mesh-1"}`, `,response_code=~"5.."`), end, 0.1)
	want(t, p, share(`http_server_requests_seconds_count{pod="spring-1"}`, `,status="500"`), end, 0.1)
	want(t, p, `sum(rate(istio_request_duration_milliseconds_sum[1m]))/sum(rate(istio_request_duration_milliseconds_count[1m]))`, end, 30)
	want(t, p, `sum(rate(http_server_requests_seconds_sum[1m]))/sum(rate(http_server_requests_seconds_count[1m]))`, end, 0.03)
	bucket := strings.Replace(strings.Replace(requests, "_count", "_bucket", 1), "}", `,le="0.05"}`, 1)
	want(t, p, "sum("+bucket+")", time.Now(), 2400)
	want(t, p, strings.Replace("sum("+bucket+")", "0.05", "0.025", 1), time.Now(), 0)
	const ended = `sum(http_server_request_duration_seconds_count{pod="old-1"})`
	want(t, p, ended, time.Now(), math.NaN())
	want(t, p, ended, hourAgo, 18000)

	web.Burst(50, Traffic{Errors: 1, Latency: time.Minute})
	scraped(t, p)
	want(t, p, "sum("+requests+")", time.Now(), 2450)
	want(t, p, strings.Replace(requests, "}", `,http_response_status_code="500"}`, 1), time.Now(), 290)
	web.Down(true)
	becomes(t, p, `up{pod="web-1"}`, 0)
	web.Down(false)

	url := p.URL()
	for name, end := range map[string]func() error{"Stop": p.Stop, "Kill": p.Kill} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if resp, err := p.Client().Get(url); err == nil {
			resp.Body.Close()
			t.Errorf("%s: it still answers", name)
		}
		if err := p.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if p.URL() != url {
			t.Errorf("%s: %s was %s", name, p.URL(), url)
		}
		want(t, p, ended, hourAgo, 18000)
	}
	if err := p.Empty(); err == nil {
		t.Error("a running Prometheus was emptied")
	}
	if err := errors.Join(p.Stop(), targets.Remove("shop", "old-1"), p.Empty(), p.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	scraped(t, p)
	want(t, p, ended, hourAgo, math.NaN())
	want(t, p, "sum(rate("+requests+"[1m]))", end, 10)
}

// TestAlerts delivers an alert of a pod to an Alertmanager that demands a client certificate and a password.
func TestAlerts(t *testing.T) {
	t.Parallel()
	am, err := StartAlertmanager(t.Context(), AlertmanagerOptions{
		Programs: programs(t), Access: Access{ClientCertificates: true, Basic: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	ends(t, am.Server)
	targets := newTargets(t, TargetsOptions{})
	web := add(t, targets, "web-1", TargetOptions{})
	add(t, targets, "web-2", TargetOptions{})
	rule := Rule{Alert: "Down", Expr: `up{job="pods"} == 0`, Labels: map[string]string{"severity": "page"}}
	p := startPrometheus(t, PrometheusOptions{
		Targets: targets, Alertmanagers: []*Alertmanager{am}, Rules: []Rule{rule}, Labels: map[string]string{"replica": "a"},
	})
	alerts := func(want ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			found, err := am.Alerts(ctx)
			if err != nil {
				return err
			}
			got := []string{}
			for _, a := range found {
				l := a.Labels
				got = append(got, strings.Join([]string{l["alertname"], l["pod"], l["severity"], l["replica"], a.Status.State}, " "))
			}
			if strings.Join(got, ";") != strings.Join(want, ";") {
				return fmt.Errorf("alerts %q, want %q", got, want)
			}
			return nil
		}
	}
	web.Down(true)
	eventually(t, "the alert", alerts("Down web-1 page a active"))
	becomes(t, p, `count(ALERTS_FOR_STATE{alertname="Down",pod="web-1"})`, 1)
	web.Down(false)
	eventually(t, "the end of the alert", alerts())

	broken := rule
	broken.Expr = "up{"
	if err := p.SetRules(t.Context(), broken); err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("a broken rule: %v", err)
	}
	if err := errors.Join(p.Stop(), p.Start(t.Context())); err != nil {
		t.Errorf("after a broken rule: %v", err)
	}
	if rules, err := p.API().Rules(t.Context(), nil); err != nil || len(rules.Groups) != 1 || len(rules.Groups[0].Rules) != 1 {
		t.Errorf("after a broken rule: %+v, %v", rules, err)
	}
	rule.Alert, rule.Expr, rule.For = "Up", `up{pod="web-2"} == 1`, time.Hour
	if err := p.SetRules(t.Context(), rule); err != nil {
		t.Fatal(err)
	}
	becomes(t, p, `ALERTS{alertname="Up",alertstate="pending",pod="web-2"}`, 1)
}

// TestAccess asks servers with and without what they demand.
func TestAccess(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]Access{
		"TLS": {TLS: true}, "Basic": {Basic: true}, "ClientCertificates": {ClientCertificates: true},
	} {
		p := startPrometheus(t, PrometheusOptions{Access: a})
		want(t, p, "vector(1)", time.Now(), 1)
		if scheme, _, _ := strings.Cut(p.URL(), ":"); (scheme == "https") != (a.TLS || a.ClientCertificates) {
			t.Errorf("%s: %s", name, p.URL())
		}
		client := clientOf(t, p.CA())
		resp, err := client.Get(p.URL() + "/-/ready")
		switch {
		case err != nil:
			if !a.ClientCertificates || !strings.Contains(err.Error(), "certificate required") {
				t.Errorf("%s: %v", name, err)
			}
		case a.ClientCertificates || (resp.StatusCode == http.StatusUnauthorized) != a.Basic:
			t.Errorf("%s: %s", name, resp.Status)
		}
		if resp, err := http.Get(p.URL()); err == nil && strings.HasPrefix(p.URL(), "https") {
			t.Errorf("%s: trusted without its authority: %s", name, resp.Status)
		}
	}
}

// script writes a program in place of Prometheus, and returns its directory.
func script(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "prometheus"), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestStartFails checks the error of a program that does not start, and that nothing is left of it.
func TestStartFails(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	_, err := StartPrometheus(t.Context(), PrometheusOptions{Programs: script(t, "echo no luck; exit 3")})
	if err == nil || !strings.Contains(err.Error(), "no luck") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error %v, want one with the log", err)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestPortTaken starts a program whose port is taken at the first start.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	const first = `[ -e tried ] || { touch tried; echo "address already in use"; exit 1; }`
	dir := script(t, first+"\nexec "+filepath.Join(programs(t), "prometheus")+` "$@"`)
	p, err := StartPrometheus(t.Context(), PrometheusOptions{Programs: dir})
	if err != nil {
		t.Fatal(err)
	}
	ends(t, p.Server)
	want(t, p, "vector(1)", time.Now(), 1)
}
