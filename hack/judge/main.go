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

// Command judge measures internal/judge on simulated releases: how many healthy releases fail, and how many bad ones are found, beside
// Kayenta's judge and a fixed threshold. It writes tables in Markdown, and draws them.
//
//   - counts.go: errors of requests
//   - values.go: latency
//   - failures.go: restarts and lost readiness
//   - kayenta.go: the other judges
//   - plots.go: the drawings
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// budget is the share of healthy releases that may fail.
	budget = 0.01
	// most is the share of simulated ones that may: a larger one is in bold, since the true share may be above the budget.
	most = 0.8 * budget
)

func main() {
	failures := flag.Bool("failures", false, "simulate only restarts of pods")
	n := flag.Int("n", 10000, "the number of simulated releases of each cell")
	plots := flag.String("plots", "", "the directory to draw in; nothing is drawn if empty")
	flag.Parse()
	if *n < 1 {
		fmt.Fprintln(os.Stderr, "judge: -n must be at least 1")
		os.Exit(2)
	}
	over := healthyRestarts(*n)
	powerOfRestarts(max(*n/10, 1))
	if *failures {
		end(over)
		return
	}
	over = append(over, healthyCounts(*n)...)
	values, kayenta := healthyValues(*n)
	over = append(over, healthyBefore(*n)...)
	powerOfCounts(max(*n/10, 1))
	found := powerOfValues(max(*n/10, 1))
	if *plots != "" {
		if err := draw(*plots, kayenta, found); err != nil {
			fmt.Fprintln(os.Stderr, "judge:", err)
			os.Exit(1)
		}
	}
	end(append(over, values...))
}

// end exits with an error if more healthy releases fail than may.
func end(over []string) {
	if len(over) > 0 {
		fmt.Fprintf(os.Stderr, "judge: more healthy releases fail than may:\n  %s\n", strings.Join(over, "\n  "))
		os.Exit(1)
	}
}

// share plays releases on all processors, each with a seed of its own, and returns the share for which play is true.
func share(n int, play func(*rand.Rand) bool) float64 { return float64(hits(0, n, play)) / float64(n) }

// healthyShare is like share, and ends after a fifth of the releases if hardly one fails.
func healthyShare(n int, play func(*rand.Rand) bool) float64 {
	first := max(n/5, 1)
	failed := hits(0, first, play)
	if failed <= first/1000 {
		return float64(failed) / float64(first)
	}
	return float64(failed+hits(first, n, play)) / float64(n)
}

// hits counts the releases with the seeds from one number up to another for which play is true.
func hits(from, to int, play func(*rand.Rand) bool) int {
	var next, hits atomic.Int64
	next.Store(int64(from))
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := next.Add(1); i <= int64(to); i = next.Add(1) {
				if play(rand.New(rand.NewPCG(1, uint64(i)))) {
					hits.Add(1)
				}
			}
		})
	}
	workers.Wait()
	return int(hits.Load())
}

var sizes = [][2]int{{1, 2}, {2, 2}, {2, 3}, {1, 9}, {3, 8}, {10, 10}, {5, 45}}

// table begins a table.
func table(title string, columns ...string) {
	fmt.Printf("\n## %s\n\n| %s |\n|%s\n", title, strings.Join(columns, " | "), strings.Repeat(" --- |", len(columns)))
}

// cell writes the share of healthy releases that fail.
func cell(share float64) string {
	if text := fmt.Sprintf("%.2f", 100*share); share <= most {
		return text
	}
	return fmt.Sprintf("**%.2f**", 100*share)
}

// answers are the ways in which services answer.
var answers = []struct {
	name string
	of   service
}{
	{"0.1 %", service{share: 0.001}},
	{"1 %, CV 1", service{share: 0.01, variation: 1}},
	{"5 %, CV 0.5", service{share: 0.05, variation: 0.5}},
	{"5 %, CV 1", service{share: 0.05, variation: 1}},
	{"bursts 1 % of 20", service{share: 0.001, burstShare: 0.01, burst: 20}},
	{"bursts 0.3 % of 40", service{share: 0.001, burstShare: 0.003, burst: 40}},
	{"1 %, clumped", service{share: 0.01, clumped: 9}},
	{"1 %, skewed traffic", service{share: 0.01, variation: 0.5, skew: 1}},
	{"1 %, rolling", service{share: 0.01, variation: 0.5, rolling: true}},
}

// healthyCounts returns the cells that are over the budget.
func healthyCounts(n int) (over []string) {
	columns := []string{"new+old", "requests"}
	for _, a := range answers {
		columns = append(columns, a.name)
	}
	table(fmt.Sprintf("Healthy releases that fail by errors within 30 minutes, in %%, of %d", n), columns...)
	for _, size := range sizes {
		for _, requests := range []float64{6, 60, 600, 6000} {
			fmt.Printf("| %d+%d | %.0f |", size[0], size[1], requests)
			for _, a := range answers {
				s := a.of
				s.fresh, s.old, s.requests, s.minutes, s.times = size[0], size[1], requests, 30, 1
				failed := healthyShare(n, func(rng *rand.Rand) bool { return s.release(rng, budget) > 0 })
				if failed > most {
					over = append(over, fmt.Sprintf("errors, %d+%d pods, %.0f requests, %s: %.2f %%", size[0], size[1], requests, a.name, 100*failed))
				}
				fmt.Print(" ", cell(failed), " |")
			}
			fmt.Println()
		}
	}
	return over
}

// latencies are the ways in which values differ.
var latencies = []struct {
	name string
	of   latency
}{
	{"plain", latency{}},
	{"correlated .5", latency{correlation: 0.5}},
	{"correlated .9", latency{correlation: 0.9}},
	{"heavy tails", latency{correlation: 0.5, heavy: 0.1}},
	{"trend, cold start, missing", latency{correlation: 0.5, trend: 0.3, cold: 1, missing: 0.1}},
}

var spreads = []float64{0.05, 0.1, 0.2, 0.3}

// healthyValues returns the cells that are over the budget, and for each spread the largest share of releases that the judge, and that
// Kayenta's judge, fails.
func healthyValues(n int) (over []string, kayenta []pair) {
	columns := []string{"new+old", "SD"}
	for _, l := range latencies {
		columns = append(columns, l.name)
	}
	table(fmt.Sprintf("Healthy releases that fail by latency, in %%, of %d; in brackets by Kayenta's judge", n), columns...)
	kayenta = make([]pair, len(spreads))
	for _, size := range sizes {
		for i, spread := range spreads {
			fmt.Printf("| %d+%d | %.0f %% |", size[0], size[1], 100*spread)
			for _, kind := range latencies {
				l := kind.of
				l.fresh, l.old, l.spread, l.noise, l.times = size[0], size[1], spread, 0.2, 1
				failed := healthyShare(n, func(rng *rand.Rand) bool { fails, _, _ := l.release(rng, budget, false); return fails })
				if failed > most {
					over = append(over, fmt.Sprintf("latency, %d+%d pods, SD %.0f %%, %s: %.2f %%", size[0], size[1], 100*spread, kind.name, 100*failed))
				}
				other := share(max(n/20, 1), func(rng *rand.Rand) bool { _, kayenta, _ := l.release(rng, budget, true); return kayenta })
				fmt.Printf(" %s (%.0f) |", cell(failed), 100*other)
				kayenta[i] = pair{max(kayenta[i][0], failed), max(kayenta[i][1], other)}
			}
			fmt.Println()
		}
	}
	return over, kayenta
}

// drifts are between the time before a release and the time after it. The first allowed ones must stay within the budget.
var drifts = []drift{
	{name: "none"}, {name: "day of 30 %", daily: 0.3}, {name: "day of 100 %", daily: 0.7}, {name: "step of 20 %", step: 0.2},
	{name: "step of 50 %", step: 0.5},
}

const allowed = 2

// healthyBefore returns the cells with allowed drifts that are over the budget, compared with the time before a release.
func healthyBefore(n int) (over []string) {
	columns := []string{"new+old", "SD"}
	for _, d := range drifts {
		columns = append(columns, d.name)
	}
	table(fmt.Sprintf("Healthy releases that fail by latency with baseline PreRelease, in %%, of %d", n), columns...)
	for _, size := range sizes {
		for _, spread := range spreads {
			fmt.Printf("| %d+%d | %.0f %% |", size[0], size[1], 100*spread)
			for i, d := range drifts {
				l := latency{fresh: size[0], old: size[1], spread: spread, noise: 0.2, correlation: 0.5, trend: 0.1, cold: 1, missing: 0.1, times: 1}
				failed := healthyShare(n, func(rng *rand.Rand) bool { return l.beforeRelease(rng, budget, d) })
				if failed > most && i < allowed {
					over = append(over, fmt.Sprintf("PreRelease, %d+%d pods, SD %.0f %%, %s: %.2f %%", size[0], size[1], 100*spread, d.name, 100*failed))
				}
				fmt.Print(" ", cell(failed), " |")
			}
			fmt.Println()
		}
	}
	return over
}

func powerOfCounts(n int) {
	table(fmt.Sprintf("Bad releases found by errors within 3, 6 and 15 minutes, in %%, of %d", n),
		"new+old", "requests", "errors before", "errors of new pods", "3", "6", "15")
	for _, size := range sizes {
		for _, s := range []service{
			{requests: 6, share: 0.001, failAll: true}, {requests: 600, share: 0.05, failAll: true}, {requests: 6000, share: 0.001, failAll: true},
			{requests: 600, share: 0.004, variation: 0.3, times: 10}, {requests: 600, share: 0.004, variation: 0.3, times: 5},
			{requests: 60, share: 0.004, variation: 0.3, times: 10},
		} {
			s.fresh, s.old, s.minutes, s.times = size[0], size[1], 15, max(s.times, 1)
			errors := fmt.Sprintf("%.1f %%", 100*s.share*s.times)
			if s.failAll {
				errors = "all"
			}
			fmt.Printf("| %d+%d | %.0f | %.1f %% | %s |", size[0], size[1], s.requests, 100*s.share, errors)
			for _, within := range []int{3, 6, 15} {
				found := share(n, func(rng *rand.Rand) bool { at := s.release(rng, budget); return at > 0 && at <= within })
				fmt.Printf(" %.0f |", 100*found)
			}
			fmt.Println()
		}
	}
}

// changes are those of the latency of bad releases.
var changes = []float64{1.1, 1.2, 1.5, 2, 3}

// powerOfValues returns for some sizes the share of bad releases that the judge finds, by change, at a spread of 10 %.
func powerOfValues(n int) map[string][]float64 {
	columns := []string{"new+old", "SD"}
	for _, change := range changes {
		columns = append(columns, fmt.Sprintf("%+.0f %%", 100*(change-1)))
	}
	table(fmt.Sprintf("Slower releases found by latency, in %%, of %d (by Kayenta's judge, by a threshold of 1.5)", n), columns...)
	all := map[string][]float64{}
	for _, size := range slices.Concat(sizes, [][2]int{{1, 4}, {3, 7}, {5, 15}, {10, 40}}) {
		for _, spread := range []float64{0.1, 0.2} {
			name := fmt.Sprintf("%d+%d", size[0], size[1])
			fmt.Printf("| %s | %.0f %% |", name, 100*spread)
			for _, change := range changes {
				l := latency{fresh: size[0], old: size[1], spread: spread, noise: 0.2, correlation: 0.5, times: change}
				var kayenta, threshold atomic.Int64
				found := share(n, func(rng *rand.Rand) bool {
					fails, k, t := l.release(rng, budget, true)
					if k {
						kayenta.Add(1)
					}
					if t {
						threshold.Add(1)
					}
					return fails
				})
				fmt.Printf(" %.0f (%.0f, %.0f) |", 100*found, 100*float64(kayenta.Load())/float64(n), 100*float64(threshold.Load())/float64(n))
				if spread == 0.1 {
					all[name] = append(all[name], found)
				}
			}
			fmt.Println()
		}
	}
	return all
}
