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

// Command figures compares the results of benchmarks, which it reads, with the goals for the operator, and writes them as a table
// in Markdown and as JSON. A missed goal is no failure: figures are judged by people.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// goal is a figure that the operator has to reach: the median of what a benchmark reports in a unit is at most Most.
type goal struct {
	Figure    string
	Benchmark string
	Unit      string
	Most      float64
}

var goals = []goal{
	{"50 Deployments of 10 pods, batches of 10, times the same not defended", "Release/stand-alone/batches_of_10", "x-undefended", 1.4},
	{"batches of 1", "Release/stand-alone/batches_of_1", "x-undefended", 1.7},
	{"with a server, batches of 10", "Release/with_server/batches_of_10", "x-undefended", 1.8},
	{"with a server, batches of 1", "Release/with_server/batches_of_1", "x-undefended", 2.5},
	{"writes per pod with a server, batches of 1", "Release/with_server/batches_of_1", "writes/pod", 7},
	{"batches of 10", "Release/with_server/batches_of_10", "writes/pod", 3},
	{"writes per wave of a held rollout", "Held", "writes/wave", 2},
	{"CPU seconds per 1,000 pods, stand-alone, batches of 10", "Release/stand-alone/batches_of_10", "cpu-s/1000pods", 5},
	{"pod finished until its batch is submitted, p99, 20 pods a second", "Submitted", "ms-p99", 1000},
	{"failing verdict until the block is in etcd, p99", "Verdict", "ms-p99", 500},
	{"memory at rest, 1,000 pods", "Fleet/pods=1000/enrolled", "MB-rss", 80},
	{"10,000 pods", "Fleet/pods=10000/enrolled", "MB-rss", 150},
	{"50,000 pods", "Fleet/pods=50000/enrolled", "MB-rss", 450},
	{"memory added by large objects, at rest", "Memory/large_objects", "MB-added", 30},
	{"mean time of the mutating webhook, in process", "Mutating/handler", "ms/op", 5},
	{"writes a minute at rest, 1,160 workloads", "Fleet/pods=10000/enrolled", "writes/min", 0},
	{"queries of a release that is compared, 200 at once", "Compare/with_a_check", "queries/release", 40},
	{"memory meanwhile", "Compare/with_a_check", "MB-peak", 160},
	{"leader killed until the next decision", "Failover/killed", "s-decision", 20},
	{"leader stopped until the next decision", "Failover/stopped", "s-decision", 3},
}

// growth are benchmarks of several sizes, whose figures grow with a slope: 1 is in proportion to the pods, 0 not at all.
var growth = []struct{ prefix, suffix, unit string }{
	{"Fleet/pods=", "/enrolled", "MB-rss"},
	{"Fleet/pods=", "/enrolled", "cpu-s"},
	{"Fleet/pods=", "/enrolled", "s-ready"},
}

// figure is a goal with its measurements.
type figure struct {
	Figure    string  `json:"figure"`
	Benchmark string  `json:"benchmark"`
	Unit      string  `json:"unit"`
	Goal      float64 `json:"goal"`
	// Median, Least and Greatest are of Runs measurements.
	Median   float64 `json:"median"`
	Least    float64 `json:"least"`
	Greatest float64 `json:"greatest"`
	Runs     int     `json:"runs"`
	Reached  bool    `json:"reached"`
}

// slope says how a figure grows with the number of pods.
type slope struct {
	Benchmark string             `json:"benchmark"`
	Unit      string             `json:"unit"`
	At        map[string]float64 `json:"at"`
	Slope     float64            `json:"slope"`
}

// report is all that the command knows.
type report struct {
	Figures []figure `json:"figures"`
	Growth  []slope  `json:"growth"`
}

func main() {
	out := flag.String("json", "", "the file for the figures as JSON; empty for none")
	flag.Parse()
	if err := run(os.Stdin, os.Stdout, *out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer, jsonFile string) error {
	measured, err := read(in)
	if err != nil {
		return err
	}
	r := reportOf(measured)
	if jsonFile != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(jsonFile, append(text, '\n'), 0o600); err != nil {
			return err
		}
	}
	_, err = io.WriteString(out, r.markdown())
	return err
}

// key is what a benchmark reports: its name without the number of processors, and the unit.
type key struct{ benchmark, unit string }

// read reads the results of benchmarks as the go command prints them: the name, the number of iterations, and values with their
// units. "ms/op" is added to "ns/op".
func read(in io.Reader) (map[key][]float64, error) {
	measured := map[key][]float64{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := processors.ReplaceAllString(strings.TrimPrefix(fields[0], "Benchmark"), "")
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", lines.Text(), err)
			}
			k := key{name, fields[i+1]}
			measured[k] = append(measured[k], value)
			if k.unit == "ns/op" {
				k.unit = "ms/op"
				measured[k] = append(measured[k], value/1e6)
			}
		}
	}
	return measured, lines.Err()
}

var processors = regexp.MustCompile(`-[0-9]+$`)

func reportOf(measured map[key][]float64) (r report) {
	for _, g := range goals {
		f := figure{Figure: g.Figure, Benchmark: g.Benchmark, Unit: g.Unit, Goal: g.Most}
		if values := slices.Sorted(slices.Values(measured[key{g.Benchmark, g.Unit}])); len(values) > 0 {
			f.Runs, f.Median, f.Least, f.Greatest = len(values), median(values), values[0], values[len(values)-1]
			f.Reached = f.Median <= g.Most
		}
		r.Figures = append(r.Figures, f)
	}
	for _, g := range growth {
		s := slope{Benchmark: g.prefix + "N" + g.suffix, Unit: g.unit, At: map[string]float64{}}
		var points [][2]float64
		for k, values := range measured {
			size, ok := strings.CutPrefix(k.benchmark, g.prefix)
			size, last := strings.CutSuffix(size, g.suffix)
			n, err := strconv.ParseFloat(size, 64)
			if !ok || !last || err != nil || k.unit != g.unit {
				continue
			}
			s.At[size] = median(slices.Sorted(slices.Values(values)))
			points = append(points, [2]float64{n, s.At[size]})
		}
		if len(points) > 1 {
			s.Slope = slopeOf(points)
			r.Growth = append(r.Growth, s)
		}
	}
	return r
}

func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// slopeOf is the slope of the line through points whose both coordinates are logarithms.
func slopeOf(points [][2]float64) float64 {
	var n, x, y, xx, xy float64
	for _, p := range points {
		a, b := math.Log(p[0]), math.Log(p[1])
		n, x, y, xx, xy = n+1, x+a, y+b, xx+a*a, xy+a*b
	}
	return (n*xy - x*y) / (n*xx - x*x)
}

func (r report) markdown() string {
	var b strings.Builder
	b.WriteString("| figure | goal | median | spread | runs | |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, f := range r.Figures {
		if f.Runs == 0 {
			fmt.Fprintf(&b, "| %s | %s %s | not measured | | 0 | |\n", f.Figure, number(f.Goal), f.Unit)
			continue
		}
		missed := "missed"
		if f.Reached {
			missed = ""
		}
		fmt.Fprintf(&b, "| %s | %s %s | %s | %s to %s | %d | %s |\n",
			f.Figure, number(f.Goal), f.Unit, number(f.Median), number(f.Least), number(f.Greatest), f.Runs, missed)
	}
	if len(r.Growth) == 0 {
		return b.String()
	}
	b.WriteString("\n| growth | unit | at | slope |\n| --- | --- | --- | --- |\n")
	for _, s := range r.Growth {
		var at []string
		sizes := make([]string, 0, len(s.At))
		for size := range s.At {
			sizes = append(sizes, size)
		}
		slices.SortFunc(sizes, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) })
		for _, size := range sizes {
			at = append(at, size+": "+number(s.At[size]))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %.2f |\n", s.Benchmark, s.Unit, strings.Join(at, ", "), s.Slope)
	}
	return b.String()
}

// number has three digits that matter.
func number(v float64) string {
	if math.Abs(v) >= 100 {
		return strconv.FormatFloat(math.Round(v), 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
