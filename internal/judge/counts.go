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

package judge

import (
	"fmt"
	"math"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat/distuv"
)

// ratios are the ratios of the new error share to the old one for which evidence is collected.
var ratios = [...]float64{2, 3, 5, 10, 30}

const (
	// burst is how many times the usual errors of a pod-minute count at most.
	burst = 20
	// grossMinutes in a row with grossRequests of new pods together, in each of which their error share is grossShare above that of the
	// worst old pod, fail without evidence.
	grossMinutes, grossRequests, grossShare = 3, 15, 0.4
	// aloneTimes is how much more evidence a single new pod needs, and farTimes how much more a large difference does by itself.
	// spareEvents are added to those of old pods then, of which there may be none.
	aloneTimes, farTimes, spareEvents = 10, 10, 4
	// priorWeight, priorBase and priorEvents temper the evidence while few pods are known.
	priorWeight, priorBase, priorEvents = 4, 1.5, 0.5
	// maxOdds bounds the odds.
	maxOdds = 1e9
)

// PodMinute is a whole minute of a pod.
type PodMinute struct {
	Pod string
	// Events are errors, restarts or the like. Exposure is the number of requests in which they may occur, or 1 for the minute.
	Events, Exposure float64
}

// Floors are what a failure needs beside evidence.
type Floors struct {
	// Exposure of each side, and Events of new pods.
	Exposure, Events float64
	// Pods of the new version with events.
	Pods int
	// Points and Times are how much the new share exceeds the old one, as a difference and as a ratio.
	Points, Times float64
}

// The floors of shares of requests, and of events per pod-minute.
var (
	RequestFloors = Floors{Exposure: 100, Events: 4, Pods: 1, Points: 0.002, Times: 2}
	EventFloors   = Floors{Exposure: 10, Events: 2, Pods: 2, Times: 2}
)

// sums are the sums over the minutes of a pod.
type sums struct {
	// tempered events are bounded in each minute.
	tempered, events, exposure float64
	// shares are those of its minutes.
	shares []float64
}

// Counts is the evidence about the events of a release so far.
type Counts struct {
	floors     Floors
	logE       [len(ratios)]float64
	fresh, old map[string]sums
	// events and shares are those of minutes of old pods, in the time before the release and since. usual is the 90th percentile of the
	// events, and share the median of the shares. Both were computed when the number of minutes was learned.
	events, shares []float64
	learned        int
	usual, share   float64
	// minutes that counted, and gross those in a row with a gross failure, with their exposure.
	minutes, gross int
	grossExposure  float64
}

// NewCounts returns the evidence before the first minute. The history are minutes of old pods in the hour before the release.
func NewCounts(floors Floors, history []PodMinute) *Counts {
	c := &Counts{floors: floors, fresh: map[string]sums{}, old: map[string]sums{}}
	c.learn(exposed(history))
	return c
}

// exposed returns the minutes in which events could occur.
func exposed(minutes []PodMinute) []PodMinute {
	return slices.DeleteFunc(slices.Clone(minutes), func(m PodMinute) bool {
		return !(m.Exposure > 0) || !(m.Events >= 0) || math.IsInf(m.Events+m.Exposure, 0)
	})
}

// learn learns how many errors are usual. It sorts only when there are a tenth more minutes.
func (c *Counts) learn(old []PodMinute) {
	for _, m := range old {
		c.events, c.shares = append(c.events, m.Events), append(c.shares, m.Events/m.Exposure)
	}
	if n := len(c.events); n > c.learned+c.learned/10 {
		slices.Sort(c.events)
		slices.Sort(c.shares)
		c.learned, c.usual, c.share = n, c.events[(9*n-1)/10], c.shares[(n-1)/2]
	}
}

// Add adds a minute. It counts only if both sides have exposure.
func (c *Counts) Add(fresh, old []PodMinute) {
	fresh, old = exposed(fresh), exposed(old)
	usual, share := c.usual, c.share
	c.learn(old)
	if len(fresh) == 0 || len(old) == 0 {
		return
	}
	c.minutes++
	add := func(to map[string]sums, minutes []PodMinute) (tempered, events, exposure, worst float64) {
		for _, m := range minutes {
			x := min(m.Events, max(1, usual, burst*share*m.Exposure))
			of := to[m.Pod]
			to[m.Pod] = sums{of.tempered + x, of.events + m.Events, of.exposure + m.Exposure, append(of.shares, m.Events/m.Exposure)}
			tempered, events, exposure, worst = tempered+x, events+m.Events, exposure+m.Exposure, max(worst, m.Events/m.Exposure)
		}
		return tempered, events, exposure, worst
	}
	x, events, exposure, _ := add(c.fresh, fresh)
	xOld, _, oldExposure, worst := add(c.old, old)
	rho, k := exposure/(exposure+oldExposure), x+xOld
	for i, r := range ratios {
		c.logE[i] += x*math.Log(r) - k*math.Log(rho*r+1-rho)
	}
	if events/exposure > worst+grossShare {
		c.gross, c.grossExposure = c.gross+1, c.grossExposure+exposure
	} else {
		c.gross, c.grossExposure = 0, 0
	}
}

// temper returns by how much pods differ more than chance alone would make them differ; at least 1. A pod with more exposure counts
// more: the sum of a side depends on it.
func (c *Counts) temper() float64 {
	chi, squares, all, pods := 0.0, 0.0, 0.0, 0
	for _, side := range []map[string]sums{c.fresh, c.old} {
		sum, deviations := total(side), 0.0
		for _, pod := range side {
			expected := sum.tempered * pod.exposure / sum.exposure
			deviations += (pod.tempered - expected) * (pod.tempered - expected)
			squares += expected * expected
		}
		if sum.tempered > 0 {
			chi += deviations * float64(len(side)) / sum.tempered
		}
		all, pods = all+sum.tempered, pods+len(side)
	}
	prior := priorBase
	if all > 0 {
		prior += priorEvents * squares / all
	}
	return max(1, (priorWeight*prior+chi)/(priorWeight+float64(pods)-2))
}

func total(side map[string]sums) (sum sums) {
	for _, pod := range side {
		sum.tempered, sum.events, sum.exposure = sum.tempered+pod.tempered, sum.events+pod.events, sum.exposure+pod.exposure
	}
	return sum
}

// Odds returns the evidence that new pods have more events: fewer than 1 of so many healthy releases reach it.
func (c *Counts) Odds() float64 {
	if c.minutes == 0 {
		return 1
	}
	odds := c.mixture()
	if len(c.fresh) == 1 {
		odds /= aloneTimes
	}
	return min(max(odds, 1/(farTimes*c.far())), maxOdds)
}

// mixture returns the tempered evidence over all ratios.
func (c *Counts) mixture() float64 {
	temper, highest := c.temper(), slices.Max(c.logE[:])
	sum := 0.0
	for _, l := range c.logE {
		sum += math.Exp((l - highest) / temper)
	}
	return math.Exp(highest/temper + math.Log(sum/float64(len(ratios))))
}

// far returns how probable it is that new pods differ so much from old ones if the shares of pods have an exponential distribution: few
// pods tell little about how much they differ, and that is a lot. The share of a new pod is the median of its minutes if that is lower, so
// that bursts do not count. Its events have a geometric distribution then, and few of them are likely where hardly one is expected.
func (c *Counts) far() float64 {
	before, ratio := spareEvents/total(c.old).exposure, 0.0
	for _, pod := range c.old {
		before += pod.events / pod.exposure / float64(len(c.old))
	}
	for _, pod := range c.fresh {
		if sorted := slices.Sorted(slices.Values(pod.shares)); len(sorted) >= grossMinutes { // fewer may be one burst
			events := min(pod.events, sorted[(len(sorted)-1)/2]*pod.exposure)
			ratio += events * math.Log1p(1/(before*pod.exposure)) / float64(len(c.fresh))
		}
	}
	return distuv.F{D1: float64(2 * len(c.fresh)), D2: float64(2 * len(c.old))}.Survival(ratio)
}

// Fails reports whether the new pods fail, if a share alpha of healthy releases may.
func (c *Counts) Fails(alpha float64) bool {
	if c.isGross() {
		return c.holds()
	}
	return c.Enough() && c.Odds() >= 1/alpha && c.holds()
}

// isGross reports a gross failure, for which odds are too slow.
func (c *Counts) isGross() bool { return c.gross >= grossMinutes && c.grossExposure >= grossRequests }

// Enough reports whether the floors of exposure are reached, so that the release may pass.
func (c *Counts) Enough() bool {
	return total(c.fresh).exposure >= c.floors.Exposure && total(c.old).exposure >= c.floors.Exposure
}

// holds reports whether a failure reaches the floors of events and of their change.
func (c *Counts) holds() bool {
	fresh, old, with := total(c.fresh), total(c.old), 0
	for _, pod := range c.fresh {
		if pod.events > 0 {
			with++
		}
	}
	share, before := fresh.events/fresh.exposure, old.events/old.exposure
	return fresh.events >= c.floors.Events && with >= c.floors.Pods && share-before >= c.floors.Points && share >= c.floors.Times*before
}

// Sentence explains the evidence about events, as errors of requests, minute by minute or by other slices.
func (c *Counts) Sentence(exposure string, slice time.Duration) string {
	fresh, old := total(c.fresh), total(c.old)
	if c.minutes == 0 {
		return fmt.Sprintf("new and old pods had no %s at the same time", exposure)
	}
	share, before := fresh.events/fresh.exposure, old.events/old.exposure
	text := fmt.Sprintf("%.3g %% of %s %s of %s against %.3g %% of %s of %d old ones over %s", 100*share, grouped(fresh.exposure), exposure,
		counted(len(c.fresh), "new pod"), 100*before, grouped(old.exposure), len(c.old), Lasting(c.minutes, slice))
	if before > 0 && share > before {
		text += fmt.Sprintf(": %.3g times", share/before)
	}
	if c.isGross() {
		return text + "; far more than any old pod for " + Lasting(c.gross, slice)
	}
	return text + odds(c.Odds())
}
