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
	"math/rand/v2"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/traas-stack/altershield-operator/internal/judge"
)

const (
	hour, day, week, month = 60.0, 24 * hour, 7 * day, 30 * day
	// nodes of a cluster.
	nodes = 10
	// step is the time between two looks at the pods.
	step = 0.5
)

// restarting is how pods of a workload restart. Times are in minutes.
type restarting struct {
	fresh, old int
	// minutes that each new pod is checked. With rolling, a pod begins after another, and the old pod with most restarts leaves.
	minutes int
	rolling bool
	// rate at which restarts of a pod begin. clump is the mean number of restarts at once.
	rate, clump float64
	// variation is the coefficient of variation of the rate between pods.
	variation float64
	// cold is the share of pods that restart once in the first five minutes after they are Ready.
	cold float64
	// start is the longest time until a pod is Ready, and oldStart that of an old pod; each takes a tenth of it at least.
	start, oldStart float64
	// outage is the share of releases in which half of all pods restart within one minute.
	outage float64
	// badNode is the share of new pods on one node, whose pods restart once while they are checked.
	badNode float64
	// age of the old pods.
	age float64
	// bad is the share of new pods that restart once more while they are checked.
	bad float64
}

// livingPod has times from the start of the first check. It is Ready at the time ready.
type livingPod struct {
	node           string
	created, ready float64
	restarts       []float64
}

// pods returns pods that are Ready at a time, or were created at it, with their restarts until the end.
func (r restarting) pods(rng *rand.Rand, n int, end, start float64, at func(i int) (ready float64)) []livingPod {
	all := make([]livingPod, n)
	for i := range all {
		p := livingPod{node: fmt.Sprint(rng.IntN(nodes)), ready: at(i)}
		p.created = p.ready - start*(0.1+0.9*rng.Float64())
		times := 1.0
		if r.variation > 0 {
			shape := 1 / (r.variation * r.variation)
			times = distuv.Gamma{Alpha: shape, Beta: shape, Src: rng}.Rand()
		}
		for t := p.created + rng.ExpFloat64()/(r.rate*times); t < end; t += rng.ExpFloat64() / (r.rate * times) {
			p.restarts = append(p.restarts, t)
			for again := t; rng.Float64() < 1-1/r.clump; {
				again += rng.Float64()
				p.restarts = append(p.restarts, again)
			}
		}
		if rng.Float64() < r.cold {
			p.restarts = append(p.restarts, p.ready+5*rng.Float64())
		}
		all[i] = p
	}
	return all
}

// last returns the last restart in a range.
func (p *livingPod) last(from, to float64) (last float64, some bool) {
	for _, at := range p.restarts {
		if at >= from && at <= to && (!some || at > last) {
			last, some = at, true
		}
	}
	return last, some
}

// release reports whether new pods are reported as worse. Pods are compared within half a minute after a new pod restarted, and again
// half a minute later if they are worse.
func (r restarting) release(rng *rand.Rand) bool {
	spread := 0.0
	if r.rolling {
		spread = float64(r.minutes) / float64(max(r.fresh, 1))
	}
	end := float64(r.minutes) + spread*float64(r.fresh)
	news := r.pods(rng, r.fresh, end, r.start, func(i int) float64 { return spread * float64(i) })
	olds := r.pods(rng, r.old, end, r.oldStart, func(int) float64 { return -r.age })
	on := int(r.badNode * float64(r.fresh))
	glitch := rng.Float64() * float64(r.minutes)
	for i := range news {
		p := &news[i]
		if i < on {
			p.node, p.restarts = "bad", append(p.restarts, p.ready+glitch)
		}
		if rng.Float64() < r.bad {
			p.restarts = append(p.restarts, p.ready+rng.Float64()*float64(r.minutes))
		}
	}
	if rng.Float64() < r.outage {
		at := rng.Float64() * end
		for _, side := range [][]livingPod{news, olds} {
			for i := range side {
				if side[i].ready <= at && rng.Float64() < 0.5 {
					side[i].restarts = append(side[i].restarts, at+rng.Float64())
				}
			}
		}
	}
	compared, worse := judge.Restarts{}, false
	for now := step; now <= end; now += step {
		if r.rolling && len(olds) > 2 && int(now/spread) > r.old-len(olds) {
			olds = withoutWorst(olds, now)
		}
		if !worse && !slices.ContainsFunc(news, func(p livingPod) bool { _, some := p.last(now-step, now); return some && p.ready < now }) {
			continue
		}
		was := worse
		if worse = compared.Compare(r.checked(news, now), seen(olds, now)) != ""; worse && was {
			return true
		}
	}
	return false
}

// checked returns the restarts of new pods until now.
func (r restarting) checked(news []livingPod, now float64) (all []judge.PodRestarts) {
	for i := range news {
		p := &news[i]
		until := min(now, p.ready+float64(r.minutes))
		if until > p.ready {
			_, some := p.last(p.ready, until)
			all = append(all, judge.PodRestarts{Node: p.node, From: at(p.ready), Until: at(until), Restarted: some})
		}
	}
	return all
}

// seen returns the restarts of old pods until now.
func seen(olds []livingPod, now float64) (all []judge.PodRestarts) {
	for i := range olds {
		last, some := olds[i].last(olds[i].created, now)
		all = append(all, judge.PodRestarts{From: at(olds[i].created), Restarted: some, Last: at(last)})
	}
	return all
}

// at returns a time.
func at(minutes float64) time.Time {
	return time.Unix(1.8e9, 0).Add(time.Duration(minutes * float64(time.Minute)))
}

// withoutWorst removes the old pod with most restarts, as a ReplicaSet does.
func withoutWorst(olds []livingPod, now float64) []livingPod {
	worst, most := 0, -1
	for i, p := range olds {
		n := 0
		for _, at := range p.restarts {
			if at <= now {
				n++
			}
		}
		if n > most {
			worst, most = i, n
		}
	}
	return slices.Delete(olds, worst, worst+1)
}

var restartSizes = [][2]int{{1, 2}, {3, 7}, {10, 40}, {40, 20}}

// lives are how healthy pods restart.
var lives = []struct {
	name string
	of   restarting
}{
	{"once a week", restarting{rate: 1 / week, age: week}},
	{"once a day", restarting{rate: 1 / day, age: day}},
	{"once a day, old pods of 30 minutes", restarting{rate: 1 / day, age: 30}},
	{"once an hour", restarting{rate: 1 / hour, age: day}},
	{"once an hour, CV 1", restarting{rate: 1 / hour, variation: 1, age: day}},
	{"once an hour, CV 1, old pods of 30 minutes", restarting{rate: 1 / hour, variation: 1, age: 30}},
	{"once an hour, rolling, old pods of 30 minutes", restarting{rate: 1 / hour, variation: 1, age: 30, rolling: true}},
	{"10 % at their start, a day old", restarting{rate: 1 / week, cold: 0.1, age: day}},
	{"30 % at their start, a day old", restarting{rate: 1 / week, cold: 0.3, age: day}},
	{"30 % at their start, a week old", restarting{rate: 1 / day, cold: 0.3, age: week}},
	{"50 % at their start, a day old", restarting{rate: 1 / month, cold: 0.5, age: day}},
	{"50 % at their start, a week old", restarting{rate: 1 / day, cold: 0.5, age: week}},
	{"100 % at their start, a day old", restarting{rate: 1 / month, cold: 1, age: day}},
	{"100 % at their start, a week old", restarting{rate: 1 / day, cold: 1, age: week}},
	{"30 % at their start, a month old", restarting{rate: 1 / week, cold: 0.3, age: month}},
	{"50 % at their start, a month old", restarting{rate: 1 / week, cold: 0.5, age: month}},
	{"100 % at their start, a month old", restarting{rate: 1 / week, cold: 1, age: month}},
	{"30 % at their start, rolling", restarting{rate: 1 / week, cold: 0.3, age: day, rolling: true}},
	{"50 % at their start, rolling", restarting{rate: 1 / week, cold: 0.5, age: day, rolling: true}},
	{"50 % at their start, which takes up to 10 minutes", restarting{rate: 1 / week, cold: 0.5, age: day, start: 10, oldStart: 10}},
	{"100 % at their start, old pods start ten times as slowly", restarting{rate: 1 / week, cold: 1, age: day, oldStart: 10}},
	{"100 % at their start, new pods start ten times as slowly", restarting{rate: 1 / week, cold: 1, age: day, start: 10}},
	{"once a day, an outage", restarting{rate: 1 / day, age: day, outage: 1}},
	{"once a week, an outage, rolling", restarting{rate: 1 / week, age: day, outage: 1, rolling: true}},
	{"once a day, all new pods on a bad node", restarting{rate: 1 / day, age: day, badNode: 1}},
	{"once a week, half of the new pods on a bad node", restarting{rate: 1 / week, age: day, badNode: 0.5}},
}

// with returns the restarts of a release of some pods.
func (r restarting) with(size [2]int, minutes int) restarting {
	r.fresh, r.old, r.minutes, r.clump = size[0], size[1], minutes, 3
	if r.start == 0 {
		r.start = 1
	}
	if r.oldStart == 0 {
		r.oldStart = 1
	}
	return r
}

// healthyRestarts prints how often new pods of healthy releases are reported as worse.
func healthyRestarts(n int) (over []string) {
	columns := []string{"pods restart"}
	for _, size := range restartSizes {
		columns = append(columns, fmt.Sprintf("%d+%d, 5 minutes", size[0], size[1]), "30 minutes")
	}
	table(fmt.Sprintf("Healthy releases whose pods are reported to restart more often than old ones, in %%, of %d", n), columns...)
	for _, l := range lives {
		fmt.Printf("| %s |", l.name)
		for _, size := range restartSizes {
			for _, minutes := range []int{5, 30} {
				found := healthyShare(n, l.of.with(size, minutes).release)
				if found > most {
					over = append(over, fmt.Sprintf("restarts, %d+%d pods, %d minutes, %s: %.2f %%", size[0], size[1], minutes, l.name, 100*found))
				}
				fmt.Print(" ", cell(found), " |")
			}
		}
		fmt.Println()
	}
	return over
}

// powerOfRestarts prints how often bad releases are found. 5 minutes are those of the default policy.
func powerOfRestarts(n int) {
	shares := []float64{0.1, 0.2, 0.5, 1}
	columns := []string{"new+old", "old pods restart"}
	for _, share := range shares {
		columns = append(columns, fmt.Sprintf("%.0f %%", 100*share))
	}
	table(fmt.Sprintf("Releases found of which a share of new pods restarts once more, in %%, of %d", n), columns...)
	for _, size := range [][2]int{{1, 2}, {2, 3}, {3, 7}, {5, 15}, {10, 10}, {10, 40}} {
		for _, life := range []struct {
			name string
			of   restarting
		}{
			{"never", restarting{rate: 1e-9, age: week}},
			{"once a week, a day old", restarting{rate: 1 / week, age: day}},
			{"once a week, a week old", restarting{rate: 1 / week, age: week}},
		} {
			fmt.Printf("| %d+%d | %s |", size[0], size[1], life.name)
			for _, bad := range shares {
				life.of.bad = bad
				fmt.Printf(" %.0f |", 100*share(n, life.of.with(size, 5).release))
			}
			fmt.Println()
		}
	}
}
