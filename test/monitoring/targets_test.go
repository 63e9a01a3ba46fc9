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
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestTraffic counts requests by the clock of the test.
func TestTraffic(t *testing.T) {
	t.Parallel()
	now := time.Now()
	targets := newTargets(t, TargetsOptions{Now: func() time.Time { return now }})
	web := add(t, targets, "web-1", TargetOptions{})
	counted := func(what, want string) {
		t.Helper()
		all, failed := web.Count()
		if got := fmt.Sprintf("%d/%d", failed, all); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	counted("at first", "0/0")
	web.Serve(Traffic{Rate: 0.3, Errors: 0.5})
	for range 100 {
		now = now.Add(100 * time.Millisecond)
		web.Count()
	}
	counted("10 s at 0.3/s, in 100 steps", "1/3")
	web.Serve(Traffic{Rate: 10, Errors: 0.1})
	now = now.Add(time.Minute)
	counted("a minute at 10/s", "61/603")
	now = now.Add(-time.Hour)
	counted("the clock is set back", "61/603")
	now = now.Add(time.Hour)
	web.Serve(Traffic{})
	now = now.Add(time.Hour)
	counted("silence", "61/603")
	web.Burst(7, Traffic{Errors: 1})
	counted("a burst", "68/610")
	web.Restart()
	counted("restarted", "0/0")
}

var sample = regexp.MustCompile(`^(\w+_seconds_count|istio_requests_total)\{.*(?:code|status)="(\d+)".*\} (\d+)(?: (\d+))?$`)

// scrape returns the counts that a target exposes, in the order of its text: code: count, age.
func scrape(t *testing.T, target *Target, run string, now time.Time) string {
	t.Helper()
	resp, err := http.Get(target.url + "?run=" + run)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var counts []string
	for line := range strings.Lines(string(body)) {
		m := sample.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		age := "now"
		if m[4] != "" {
			ms, err := strconv.ParseInt(m[4], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			age = now.Sub(time.UnixMilli(ms)).String()
		}
		counts = append(counts, m[2]+": "+m[3]+", "+age)
	}
	return strings.Join(counts, "; ")
}

// TestExposition scrapes targets twice: the first scrape of a run has the past.
func TestExposition(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Millisecond)
	targets := newTargets(t, TargetsOptions{Now: func() time.Time { return now }})
	past := []Period{
		{Start: now.Add(-30 * time.Second), End: now.Add(-20 * time.Second), Step: 10 * time.Second, Traffic: Traffic{Rate: 1}},
		{Start: now.Add(-20 * time.Second), End: now, Step: 20 * time.Second, Traffic: Traffic{Rate: 1, Errors: 0.1}},
	}
	const (
		first  = "200: 0, 30s; 200: 10, 20s; 200: 28, 0s; 200: 28, now; 500: 2, 0s; 500: 2, now"
		second = "200: 28, now; 500: 2, now"
	)
	for family := range layouts {
		target := add(t, targets, strings.ToLower(string(family)), TargetOptions{Family: family, Past: past})
		for i, want := range []string{first, second, first} {
			if got := scrape(t, target, []string{"a", "a", "b"}[i], now); got != want {
				t.Errorf("%s, scrape %d: %s, want %s", family, i, got, want)
			}
		}
	}
}

// TestTargets checks the list that Prometheus reads, and what is no target.
func TestTargets(t *testing.T) {
	t.Parallel()
	now := time.Now()
	targets := newTargets(t, TargetsOptions{Now: func() time.Time { return now }})
	listed := func() (groups []struct{ Labels map[string]string }) {
		data, err := os.ReadFile(targets.file)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &groups); err != nil {
			t.Fatal(err)
		}
		return groups
	}
	web := add(t, targets, "web-1", TargetOptions{Labels: map[string]string{"node": "n1"}})
	if got, want := fmt.Sprint(listed()), "[{map[namespace:shop node:n1 pod:web-1]}]"; got != want {
		t.Errorf("listed: %s, want %s", got, want)
	}
	ok := Period{Start: now.Add(-time.Minute), End: now, Step: time.Second}
	for name, o := range map[string]TargetOptions{
		"exists":   {},
		"family":   {Family: "Other"},
		"step":     {Past: []Period{{Start: ok.Start, End: ok.End}}},
		"reversed": {Past: []Period{{Start: ok.End, End: ok.Start, Step: ok.Step}}},
		"future":   {Past: []Period{{Start: ok.Start, End: now.Add(time.Second), Step: ok.Step}}},
		"old":      {Past: []Period{{Start: now.Add(-7 * time.Hour), End: ok.End, Step: ok.Step}}},
		"overlap":  {Past: []Period{ok, ok}},
	} {
		pod := name
		if name == "exists" {
			pod = "web-1"
		}
		if _, err := targets.Add("shop", pod, o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := targets.Remove("shop", "web-1"); err != nil || len(listed()) > 0 || targets.Get("shop", "web-1") != nil {
		t.Errorf("removed: %v, listed: %v", err, listed())
	}
	if resp, err := http.Get(web.url); err == nil {
		resp.Body.Close()
		t.Error("a removed target answers")
	}
	if err := targets.Remove("shop", "web-1"); err != nil {
		t.Errorf("removed twice: %v", err)
	}
}
