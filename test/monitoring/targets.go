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
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Traffic is what a pod answers.
type Traffic struct {
	// Rate is in requests per second.
	Rate float64
	// Errors is the share of the requests that are answered with 500, from 0 to 1; the others are answered with 200.
	Errors float64
	// Latency is the duration of each request.
	Latency time.Duration
}

// TargetsOptions are the options of Targets.
type TargetsOptions struct {
	// Host is the address to listen at; empty is 127.0.0.1.
	Host string
	// Now is the clock of the traffic; nil is the time.
	Now func() time.Time
}

// Targets are servers in place of pods. Any number of Prometheus may scrape them. The methods may be called concurrently.
type Targets struct {
	o TargetsOptions
	// file is read by Prometheus, and lists the targets.
	file string

	mu   sync.Mutex
	pods map[types.NamespacedName]*Target
	// failed are errors of Follow.
	failed error
}

// NewTargets returns Targets without pods.
func NewTargets(o TargetsOptions) (*Targets, error) {
	if o.Host == "" {
		o.Host = localhost
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	dir, err := os.MkdirTemp("", "altershield-targets-")
	if err != nil {
		return nil, err
	}
	t := &Targets{o: o, file: filepath.Join(dir, "targets.json"), pods: map[types.NamespacedName]*Target{}}
	if err := t.write(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return t, nil
}

// TargetOptions are the options of a target.
type TargetOptions struct {
	// Family chooses the names of the metrics; empty is OpenTelemetry.
	Family Family
	// Labels are further labels of the series, beside namespace and pod.
	Labels map[string]string
	// Past is earlier traffic, in order. Each Prometheus gets its samples with the first scrape, at their own times.
	Past []Period
	// Ended is a pod that is not there any longer: it has a past and nothing else.
	Ended bool
}

// Period is traffic in the past, up to six hours ago.
type Period struct {
	Start, End time.Time
	// Step is the time between two samples.
	Step time.Duration
	Traffic
}

// Target is a pod that Prometheus scrapes. Its metrics count requests, which it only pretends to have answered.
type Target struct {
	name   types.NamespacedName
	o      TargetOptions
	now    func() time.Time
	server *http.Server
	url    string

	mu      sync.Mutex
	traffic Traffic
	// counts are the requests until the time at.
	counts counts
	at     time.Time
	past   []point
	// scraped are the runs of Prometheus that have the past already.
	scraped map[string]bool
	down    bool
}

// Add adds a pod without traffic.
func (t *Targets) Add(namespace, pod string, o TargetOptions) (*Target, error) {
	name := types.NamespacedName{Namespace: namespace, Name: pod}
	if o.Family == "" {
		o.Family = OpenTelemetry
	}
	if layouts[o.Family] == nil {
		return nil, fmt.Errorf("target %s: unknown family %q", name, o.Family)
	}
	target := &Target{name: name, o: o, now: t.o.Now, counts: newCounts(o.Family), scraped: map[string]bool{}}
	if err := target.remember(o.Past); err != nil {
		return nil, fmt.Errorf("target %s: %w", name, err)
	}
	target.at = t.o.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pods[name] != nil {
		return nil, fmt.Errorf("target %s exists", name)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(t.o.Host, "0"))
	if err != nil {
		return nil, err
	}
	target.url = "http://" + l.Addr().String() + "/metrics"
	target.server = &http.Server{Handler: target, ReadHeaderTimeout: requestTimeout}
	go func() { _ = target.server.Serve(l) }()
	t.pods[name] = target
	return target, t.write()
}

// Get returns a pod, or nil.
func (t *Targets) Get(namespace, pod string) *Target {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pods[types.NamespacedName{Namespace: namespace, Name: pod}]
}

// Remove removes a pod, if it exists.
func (t *Targets) Remove(namespace, pod string) error {
	name := types.NamespacedName{Namespace: namespace, Name: pod}
	t.mu.Lock()
	defer t.mu.Unlock()
	target := t.pods[name]
	if target == nil {
		return nil
	}
	delete(t.pods, name)
	return errors.Join(t.write(), target.server.Close())
}

// keep keeps an error for Close.
func (t *Targets) keep(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = errors.Join(t.failed, err)
}

// Close removes all pods, and returns the errors of Follow, too. It may be called only once, after the contexts of Follow have ended.
func (t *Targets) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	errs := []error{t.failed}
	for _, target := range t.pods {
		errs = append(errs, target.server.Close())
	}
	t.pods = nil
	return errors.Join(append(errs, os.RemoveAll(filepath.Dir(t.file)))...)
}

// write writes the list of targets, by a rename: Prometheus reads it at any moment.
func (t *Targets) write() error {
	groups := []map[string]any{}
	for name, target := range t.pods {
		labels := map[string]string{"namespace": name.Namespace, "pod": name.Name}
		maps.Copy(labels, target.o.Labels)
		u, err := url.Parse(target.url)
		if err != nil {
			return err
		}
		groups = append(groups, map[string]any{"targets": []string{u.Host}, "labels": labels})
	}
	data, err := json.Marshal(groups)
	if err != nil {
		return err
	}
	if err := os.WriteFile(t.file+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(t.file+".new", t.file)
}

// urls returns the URLs that a run of Prometheus scrapes.
func (t *Targets) urls(run string) (all []string) {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, target := range t.pods {
		all = append(all, target.url+"?"+url.Values{runParameter: {run}}.Encode())
	}
	return all
}

// Serve sets the traffic from now on.
func (t *Target) Serve(traffic Traffic) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.advance()
	t.traffic = traffic
}

// Burst answers n requests at once, beside the traffic. Rate has no meaning here.
func (t *Target) Burst(n int, traffic Traffic) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.advance()
	t.counts.add(float64(n), traffic)
}

// Restart resets the counters, as the restart of a container does.
func (t *Target) Restart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts, t.at = newCounts(t.o.Family), t.now()
}

// Down makes scrapes fail, or succeed again. The traffic goes on.
func (t *Target) Down(down bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.down = down
}

// Count returns the requests that were answered so far, and those of them that were answered with 500.
func (t *Target) Count() (all, failed uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.advance()
	return t.counts.passed.n + t.counts.failed.n, t.counts.failed.n
}

// advance counts the traffic until now.
func (t *Target) advance() {
	if now := t.now(); now.After(t.at) {
		t.counts.add(t.traffic.Rate*now.Sub(t.at).Seconds(), t.traffic)
		t.at = now
	}
}

// remember counts the traffic of the past.
func (t *Target) remember(past []Period) error {
	for i, p := range past {
		if p.Step <= 0 || !p.End.After(p.Start) || i > 0 && p.Start.Before(past[i-1].End) {
			return fmt.Errorf("period %d of the past needs a step, and an end after its start, and begins after the one before", i)
		}
		if now := t.now(); p.End.After(now) || p.Start.Before(now.Add(-backfill)) {
			return fmt.Errorf("period %d of the past is not within the last %s", i, backfill)
		}
		for at := p.Start; ; at = at.Add(p.Step) {
			if n := len(t.past); n == 0 || t.past[n-1].at.Before(at) {
				t.past = append(t.past, point{at, t.counts.clone()})
			}
			if at.Add(p.Step).After(p.End) {
				break
			}
			t.counts.add(p.Rate*p.Step.Seconds(), p.Traffic)
		}
	}
	return nil
}

// ServeHTTP answers a scrape.
func (t *Target) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.down {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	t.advance()
	var points []point
	run := r.URL.Query().Get(runParameter)
	if !t.scraped[run] {
		points = t.past
	}
	if !t.o.Ended {
		points = append(points[:len(points):len(points)], point{counts: t.counts})
	}
	w.Header().Set("Content-Type", contentType)
	// A Prometheus that no longer waits gets the past with its next scrape.
	if err := expose(w, t.o.Family, points); err == nil && run != "" && r.Context().Err() == nil {
		t.scraped[run] = true
	}
}
