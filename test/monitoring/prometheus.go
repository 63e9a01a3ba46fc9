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
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

const (
	// podsJob is the job label of the pods.
	podsJob = "pods"
	// runParameter names the URL parameter that tells targets who scrapes them: see TargetOptions.Past.
	runParameter = "run"
	// defaultInterval is short, and long enough for a scrape on a busy machine.
	defaultInterval = time.Second
	// backfill is the age that samples from the past of a target may have.
	backfill = 6 * time.Hour
)

// PrometheusOptions are the options of a Prometheus. Programs is required.
type PrometheusOptions struct {
	// Programs is the directory of the programs: see the function Programs.
	Programs string
	// Host is the address to listen at; empty is 127.0.0.1.
	Host   string
	Access Access
	// Targets are the pods to scrape, also those that are added later. Their series have the labels namespace and pod.
	Targets *Targets
	// Jobs are other servers to scrape.
	Jobs []Job
	// Rules are the first rules: see SetRules.
	Rules []Rule
	// Alertmanagers get the alerts.
	Alertmanagers []*Alertmanager
	// Labels are the external labels, such as the name of a replica.
	Labels map[string]string
	// Interval is the interval of scrapes and of rules; 0 is a second. It also bounds a scrape, so a busy machine needs most of a second.
	Interval time.Duration
}

// Job is a server that Prometheus scrapes at /metrics, by plain HTTP.
type Job struct {
	Name, Address string
	// HonorLabels keeps the labels of the series where they are those of the target.
	HonorLabels bool
}

// Rule is an alerting rule.
type Rule struct {
	Alert, Expr string
	For         time.Duration
	Labels      map[string]string
	Annotations map[string]string
}

// Prometheus is a Prometheus that runs until Close.
type Prometheus struct {
	*Server
	o   PrometheusOptions
	api promv1.API
	// run counts the starts without data.
	run int
}

// StartPrometheus starts a Prometheus without data, and returns when it is ready.
func StartPrometheus(ctx context.Context, o PrometheusOptions) (*Prometheus, error) {
	if o.Interval == 0 {
		o.Interval = defaultInterval
	}
	s, err := newServer("prometheus", o.Programs, o.Host, o.Access)
	if err != nil {
		return nil, err
	}
	p := &Prometheus{Server: s, o: o, run: 1}
	s.args = p.arguments
	if err := s.begin(ctx, 1); err != nil {
		return nil, err
	}
	client, err := api.NewClient(api.Config{Address: s.URL(), Client: s.http})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	p.api = promv1.NewAPI(client)
	return p, nil
}

// API returns a client of the HTTP API.
func (p *Prometheus) API() promv1.API { return p.api }

// Query returns the series of a query whose result is a vector, at a time.
func (p *Prometheus) Query(ctx context.Context, expr string, at time.Time) (model.Vector, error) {
	parameters := url.Values{"query": {expr}, "time": {at.UTC().Format(time.RFC3339Nano)}}
	body, err := p.get(ctx, "/api/v1/query?"+parameters.Encode())
	if err != nil {
		return nil, err
	}
	var answer struct{ Data struct{ Result model.Vector } }
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	return answer.Data.Result, nil
}

// Empty removes the data. Prometheus must be stopped.
func (p *Prometheus) Empty() error {
	if p.Running() {
		return fmt.Errorf("%s runs", p.name)
	}
	p.run++
	return os.RemoveAll(p.path("data"))
}

// SetRules replaces the rules, and returns when they are loaded. Rules that Prometheus refuses are an error, and change nothing; its log
// has the reason.
func (p *Prometheus) SetRules(ctx context.Context, rules ...Rule) error {
	before := p.o.Rules
	p.o.Rules = rules
	err := p.configure()
	if err == nil {
		_, err = p.do(ctx, http.MethodPost, "/-/reload")
	}
	if err != nil {
		p.o.Rules = before
		return errors.Join(err, p.configure())
	}
	return nil
}

// Scraped waits until the targets are those of Targets and Jobs, and each of them was scraped since the call. A target that is down
// only has to be tried. On a quiet machine it takes two intervals.
func (p *Prometheus) Scraped(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, scrapeTimeout, errors.New("prometheus is too slow"))
	defer cancel()
	since := time.Now()
	first := map[string]time.Time{}
	return until(ctx, func(ctx context.Context) (bool, error) {
		found, err := p.api.Targets(ctx)
		if err != nil {
			return false, err
		}
		want := map[string]bool{}
		for _, u := range p.o.Targets.urls(p.runID()) {
			want[u] = true
		}
		for _, job := range p.o.Jobs {
			want["http://"+job.Address+"/metrics"] = true
		}
		for _, target := range found.Active {
			if !want[target.ScrapeURL] {
				return false, fmt.Errorf("%s is still a target", target.ScrapeURL)
			}
			if target.LastScrape.After(since) && first[target.ScrapeURL].IsZero() {
				first[target.ScrapeURL] = target.LastScrape
			}
			// The samples of a scrape may be stored after it is reported; those of the one before are.
			if last := first[target.ScrapeURL]; !last.IsZero() && target.LastScrape.After(last) {
				delete(want, target.ScrapeURL)
			}
		}
		for u := range want {
			return false, fmt.Errorf("%s was not scraped", u)
		}
		return true, nil
	})
}

// runID identifies this Prometheus and its data.
func (p *Prometheus) runID() string { return p.dir + "-" + strconv.Itoa(p.run) }

// arguments writes the configuration and returns the arguments.
func (p *Prometheus) arguments() ([]string, error) {
	return []string{
		"--config.file=prometheus.yml",
		"--storage.tsdb.path=data",
		"--web.config.file=web.yml",
		"--web.listen-address=" + p.Address(),
		"--web.enable-lifecycle",
		"--scrape.discovery-reload-interval=100ms",
	}, p.configure()
}

// configure writes configuration and rules.
func (p *Prometheus) configure() error {
	interval := model.Duration(p.o.Interval).String()
	scrape := []map[string]any{}
	if p.o.Targets != nil {
		scrape = append(scrape, map[string]any{
			"job_name": podsJob, "params": map[string]any{runParameter: []string{p.runID()}},
			"file_sd_configs": []any{map[string]any{"files": []string{p.o.Targets.file}}},
		})
	}
	for _, job := range p.o.Jobs {
		scrape = append(scrape, map[string]any{
			"job_name": job.Name, "honor_labels": job.HonorLabels,
			"static_configs": []any{map[string]any{"targets": []string{job.Address}}},
		})
	}
	managers := []map[string]any{}
	for i, am := range p.o.Alertmanagers {
		manager, err := p.alertmanager(i, am)
		if err != nil {
			return err
		}
		managers = append(managers, manager)
	}
	rules := []map[string]any{}
	for _, r := range p.o.Rules {
		rules = append(rules, map[string]any{
			"alert": r.Alert, "expr": r.Expr, "for": model.Duration(r.For).String(), "labels": r.Labels, "annotations": r.Annotations,
		})
	}
	if err := p.writeYAML("rules.yml", map[string]any{"groups": []any{map[string]any{"name": "test", "rules": rules}}}); err != nil {
		return err
	}
	return p.writeYAML("prometheus.yml", map[string]any{
		"global": map[string]any{
			"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval, "external_labels": p.o.Labels,
		},
		"storage":        map[string]any{"tsdb": map[string]any{"out_of_order_time_window": model.Duration(backfill).String()}},
		"rule_files":     []string{"rules.yml"},
		"alerting":       map[string]any{"alertmanagers": managers},
		"scrape_configs": scrape,
	})
}

// alertmanager returns the configuration of a client of an Alertmanager.
func (p *Prometheus) alertmanager(i int, am *Alertmanager) (map[string]any, error) {
	name := "alertmanager-" + strconv.Itoa(i)
	for file, data := range map[string][]byte{"-ca.crt": am.ca.CertPEM, ".crt": am.client.CertPEM, ".key": am.client.KeyPEM} {
		if err := os.WriteFile(p.path(name+file), data, 0o600); err != nil {
			return nil, err
		}
	}
	config := map[string]any{"static_configs": []any{map[string]any{"targets": []string{am.Address()}}}}
	if am.access.TLS {
		config["scheme"] = "https"
		config["tls_config"] = map[string]any{"ca_file": name + "-ca.crt", "cert_file": name + ".crt", "key_file": name + ".key"}
	}
	if am.access.Basic {
		config["basic_auth"] = map[string]any{"username": Username, "password": Password}
	}
	return config, nil
}
