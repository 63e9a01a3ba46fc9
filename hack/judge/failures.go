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
	"fmt"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/traas-stack/altershield-operator/internal/judge"
)

const (
	hour, day, week = 60.0, 24 * hour, 7 * day
	// grown is the age of a new pod, in minutes, when its check begins.
	grown = 1.0
)

// failures are how pods of a workload fail. Times are in minutes.
type failures struct {
	fresh, old int
	// minutes that each new pod is checked. With rolling, a pod begins after another, and the old pod with most failures leaves.
	minutes int
	rolling bool
	// restarts and losses of readiness of a pod begin at this rate. clump is the mean number of restarts of one start.
	restarts, losses, clump float64
	// variation is the coefficient of variation of both rates between pods.
	variation float64
	// cold is the share of pods that fail once in the first five minutes after their start.
	cold float64
	// outage is the share of releases in which half of all pods fail within one minute.
	outage float64
	// age of the old pods.
	age float64
	// bad is the share of new pods that restart, or lose readiness, once more while they are checked.
	badRestarts, badLosses float64
}

// failing is a pod. Times count from the start of the first check.
type failing struct {
	name           string
	began, created float64
	// restarts before the first check, and the times of later restarts and losses of readiness.
	before           float64
	last, lastLoss   float64
	restarts, losses []float64
}

// pods returns pods that were created at a time, with their failures until the end.
func (f failures) pods(rng *rand.Rand, prefix string, n int, end float64, created func(i int) float64) []failing {
	all := make([]failing, n)
	for i := range all {
		p := failing{name: fmt.Sprint(prefix, i), created: created(i)}
		p.began, p.last, p.lastLoss = max(p.created+grown, 0), math.Inf(-1), math.Inf(-1)
		times := 1.0
		if f.variation > 0 {
			shape := 1 / (f.variation * f.variation)
			times = distuv.Gamma{Alpha: shape, Beta: shape, Src: rng}.Rand()
		}
		begins := func(rate float64, each func(at float64)) {
			for at := p.created + rng.ExpFloat64()/(rate*times); at < end; at += rng.ExpFloat64() / (rate * times) {
				each(at)
			}
		}
		begins(f.restarts, func(at float64) {
			p.restart(at)
			for rng.Float64() < 1-1/f.clump { // one more of the clump
				at += rng.Float64()
				p.restart(at)
			}
		})
		begins(f.losses, p.lose)
		if rng.Float64() < f.cold {
			p.restart(p.created + grown + 5*rng.Float64())
		}
		all[i] = p
	}
	return all
}

// restart restarts a pod, which loses readiness.
func (p *failing) restart(at float64) {
	if at < 0 {
		p.before++
		p.last = max(p.last, at)
	} else {
		p.restarts = append(p.restarts, at)
	}
	p.lose(at)
}

// lose takes readiness from a pod.
func (p *failing) lose(at float64) {
	if at < 0 {
		p.lastLoss = max(p.lastLoss, at)
		return
	}
	p.losses = append(p.losses, at)
}

// between returns the last of some times in a range.
func between(times []float64, from, to float64) (last float64, some bool) {
	for _, at := range times {
		if at >= from && at <= to && (!some || at > last) {
			last, some = at, true
		}
	}
	return last, some
}

// release reports whether new pods are reported as worse.
func (f failures) release(rng *rand.Rand) bool {
	spread := 0.0
	if f.rolling {
		spread = float64(f.minutes) / float64(max(f.fresh, 1))
	}
	end := float64(f.minutes) + spread*float64(f.fresh)
	news := f.pods(rng, "new", f.fresh, end, func(i int) float64 { return spread*float64(i) - grown })
	olds := f.pods(rng, "old", f.old, end, func(int) float64 { return -f.age })
	for i := range news {
		p := &news[i]
		if at := p.began + rng.Float64()*float64(f.minutes); rng.Float64() < f.badRestarts {
			p.restart(at)
		} else if rng.Float64() < f.badLosses {
			p.lose(at)
		}
	}
	if rng.Float64() < f.outage {
		at := rng.Float64() * end
		for _, side := range [][]failing{news, olds} {
			for i := range side {
				if side[i].began <= at && rng.Float64() < 0.5 {
					side[i].restart(at + rng.Float64())
				}
			}
		}
	}
	for now := 1.0; now <= end; now++ {
		if f.rolling && len(olds) > 2 && int(now/spread) > f.old-len(olds) {
			olds = withoutWorst(olds, now)
		}
		if f.worse(news, olds, now) {
			return true
		}
	}
	return false
}

// withoutWorst removes the old pod with most restarts, as a ReplicaSet does.
func withoutWorst(olds []failing, now float64) []failing {
	worst, most := 0, -1.0
	for i, p := range olds {
		n := p.before
		for _, at := range p.restarts {
			if at <= now {
				n++
			}
		}
		if n > most {
			worst, most = i, n
		}
	}
	return append(olds[:worst:worst], olds[worst+1:]...)
}

// worse compares the failures until now, as internal/checks does.
func (f failures) worse(news, olds []failing, now float64) bool {
	compare := func(ofNew func(*failing) []float64, ofOld func(*failing) (events, exposure, last float64)) bool {
		var all judge.Failures
		events, most := 0, 0.0
		for i := range news {
			p := &news[i]
			until := min(now, p.began+float64(f.minutes))
			if until <= p.began {
				continue
			}
			m := judge.PodMinute{Pod: p.name, Exposure: until - p.began}
			if _, some := between(ofNew(p), p.began, until); some {
				m.Events = 1
				events++
			}
			most = max(most, until-p.created)
			all.Fresh = append(all.Fresh, m)
		}
		if events == 0 {
			return false
		}
		for i := range olds {
			p := &olds[i]
			n, exposure, last := ofOld(p)
			all.Old = append(all.Old, judge.PodMinute{Pod: p.name, Events: n, Exposure: exposure})
			if last >= 0 {
				all.Same++
			}
			if age := last - p.created; age <= most {
				all.Aged++
				if age >= grown {
					all.AgedFailed++
				}
			}
		}
		return all.Worse()
	}
	return compare(func(p *failing) []float64 { return p.restarts }, func(p *failing) (events, exposure, last float64) {
		last, _ = between(p.restarts, 0, now)
		for _, at := range p.restarts {
			if at <= now {
				events++
			}
		}
		if events == 0 {
			last = p.last
		}
		return events + p.before, now - p.created, last
	}) || compare(func(p *failing) []float64 { return p.losses }, func(p *failing) (events, exposure, last float64) {
		if at, some := between(p.losses, 0, now); some {
			return 1, now, at
		}
		return 0, now, p.lastLoss
	})
}

var failureSizes = [][2]int{{1, 2}, {3, 7}, {10, 40}}

// lives are how healthy pods fail.
var lives = []struct {
	name string
	of   failures
}{
	{"once a day", failures{restarts: 1 / day, losses: 1 / day, clump: 3, age: day}},
	{"once an hour", failures{restarts: 1 / hour, losses: 1 / hour, clump: 3, age: day}},
	{"once in 10 minutes", failures{restarts: 0.1, losses: 0.1, clump: 3, age: day}},
	{"once an hour, CV 1", failures{restarts: 1 / hour, losses: 1 / hour, clump: 3, variation: 1, age: day}},
	{"once an hour, old pods of 30 minutes", failures{restarts: 1 / hour, losses: 1 / hour, clump: 3, variation: 1, age: 30}},
	{"once an hour, rolling", failures{restarts: 1 / hour, losses: 1 / hour, clump: 3, variation: 1, age: day, rolling: true}},
	{"10 % at their start", failures{restarts: 1 / week, losses: 1 / week, clump: 3, cold: 0.1, age: day}},
	{"30 % at their start", failures{restarts: 1 / day, losses: 1 / day, clump: 3, cold: 0.3, age: day}},
	{"outages in 10 % of releases", failures{restarts: 1 / day, losses: 1 / day, clump: 3, outage: 0.1, age: day}},
}

// healthyFailures prints how often new pods of healthy releases are reported as worse.
func healthyFailures(n int) (over []string) {
	columns := []string{"new+old", "minutes"}
	for _, l := range lives {
		columns = append(columns, l.name)
	}
	table(fmt.Sprintf("Healthy releases whose pods are reported to fail more often than old ones, in %%, of %d", n), columns...)
	for _, size := range failureSizes {
		for _, minutes := range []int{5, 30} {
			fmt.Printf("| %d+%d | %d |", size[0], size[1], minutes)
			for _, l := range lives {
				f := l.of
				f.fresh, f.old, f.minutes = size[0], size[1], minutes
				found := healthyShare(n, f.release)
				if found > most {
					over = append(over, fmt.Sprintf("failures, %d+%d pods, %d minutes, %s: %.2f %%", size[0], size[1], minutes, l.name, 100*found))
				}
				fmt.Print(" ", cell(found), " |")
			}
			fmt.Println()
		}
	}
	return over
}

// powerOfFailures prints how often bad releases are found. 5 minutes are those of the default policy.
func powerOfFailures(n int) {
	shares := []float64{0.1, 0.2, 0.5, 1}
	columns := []string{"new+old", "failure", "minutes"}
	for _, share := range shares {
		columns = append(columns, fmt.Sprintf("%.0f %%", 100*share))
	}
	table(fmt.Sprintf("Releases found of which a share of new pods fails once more, in %%, of %d", n), columns...)
	for _, size := range [][2]int{{1, 2}, {2, 3}, {3, 7}, {5, 15}, {10, 10}, {10, 40}} {
		for _, kind := range []string{"restart", "lost readiness"} {
			for _, minutes := range []int{5, 30} {
				fmt.Printf("| %d+%d | %s | %d |", size[0], size[1], kind, minutes)
				for _, of := range shares {
					f := failures{fresh: size[0], old: size[1], minutes: minutes, restarts: 1 / week, losses: 1 / week, clump: 3, age: day,
						badRestarts: of}
					if kind != "restart" {
						f.badRestarts, f.badLosses = 0, of
					}
					fmt.Printf(" %.0f |", 100*share(n, f.release))
				}
				fmt.Println()
			}
		}
	}
}
