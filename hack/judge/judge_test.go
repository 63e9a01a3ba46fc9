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

package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

func TestReleases(t *testing.T) {
	for _, tc := range []struct {
		name  string
		of    service
		least float64
		most  float64
	}{
		{"healthy", service{requests: 600, share: 0.01, variation: 0.5, times: 1}, 0, 0.02},
		{"ten times the errors", service{requests: 600, share: 0.004, variation: 0.3, times: 10}, 0.95, 1},
		{"all requests fail, with little traffic", service{requests: 6, share: 0.001, times: 1, failAll: true}, 0.95, 1},
		{"rolling", service{requests: 600, share: 0.004, times: 10, rolling: true}, 0.9, 1},
	} {
		tc.of.fresh, tc.of.old, tc.of.minutes = 3, 8, 15
		if got := healthyShare(100, func(rng *rand.Rand) bool { return tc.of.release(rng, budget) > 0 }); got < tc.least || got > tc.most {
			t.Errorf("%s: %.2f fail, want %.2f to %.2f", tc.name, got, tc.least, tc.most)
		}
	}
	for _, tc := range []struct {
		name                       string
		times                      float64
		judged, kayenta, threshold [2]float64
	}{
		{"healthy", 1, [2]float64{0, 0.02}, [2]float64{0.05, 1}, [2]float64{0, 0.05}},
		{"twice as slow", 2, [2]float64{0.85, 1}, [2]float64{0.95, 1}, [2]float64{0.95, 1}},
	} {
		l := latency{fresh: 3, old: 8, spread: 0.1, noise: 0.2, correlation: 0.5, times: tc.times}
		for i, want := range [][2]float64{tc.judged, tc.kayenta, tc.threshold} {
			got := share(100, func(rng *rand.Rand) bool {
				var by [3]bool
				by[0], by[1], by[2] = l.release(rng, budget, true)
				return by[i]
			})
			if got < want[0] || got > want[1] {
				t.Errorf("%s: judge %d fails %.2f, want %v", tc.name, i, got, want)
			}
		}
	}
}

func TestRestarts(t *testing.T) {
	for _, tc := range []struct {
		name        string
		of          restarting
		least, most float64
	}{
		{"healthy", restarting{rate: 1 / hour, variation: 1, age: day}, 0, 0.02},
		{"rolling", restarting{rate: 1 / hour, variation: 1, age: 30, rolling: true}, 0, 0.02},
		{"at the start", restarting{rate: 1 / day, cold: 1, age: week}, 0, 0.02},
		{"an outage", restarting{rate: 1 / day, age: day, outage: 1, rolling: true}, 0, 0.02},
		{"a bad node", restarting{rate: 1 / day, age: day, badNode: 1}, 0, 0.02},
		{"all restart", restarting{rate: 1 / week, age: day, bad: 1}, 0.95, 1},
	} {
		if got := share(100, tc.of.with([2]int{10, 40}, 5).release); got < tc.least || got > tc.most {
			t.Errorf("%s: %.2f are worse, want %.2f to %.2f", tc.name, got, tc.least, tc.most)
		}
	}
}

func TestBeforeRelease(t *testing.T) {
	for _, tc := range []struct {
		name        string
		times       float64
		drift       drift
		least, most float64
	}{
		{"healthy", 1, drift{}, 0, 0.02},
		{"healthy, in the course of a day", 1, drift{daily: 0.3}, 0, 0.02},
		{"healthy, and the load changes with the release", 1, drift{step: 0.5}, 0.05, 0.3},
		{"three times as slow", 3, drift{daily: 0.3}, 0.9, 1},
	} {
		l := latency{fresh: 3, old: 8, spread: 0.1, noise: 0.2, correlation: 0.5, times: tc.times}
		if got := share(200, func(rng *rand.Rand) bool { return l.beforeRelease(rng, budget, tc.drift) }); got < tc.least || got > tc.most {
			t.Errorf("%s: %.2f fail, want %.2f to %.2f", tc.name, got, tc.least, tc.most)
		}
	}
}

func TestDraw(t *testing.T) {
	directory := t.TempDir()
	if err := draw(directory, make([]pair, len(spreads)), map[string][]float64{"1+2": make([]float64, len(changes))}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"judge-healthy.svg", "judge-slower.svg"} {
		if content, err := os.ReadFile(filepath.Join(directory, name)); err != nil || len(content) < 1000 {
			t.Errorf("%s has %d bytes: %v", name, len(content), err)
		}
	}
}
