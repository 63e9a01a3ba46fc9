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
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gonum.org/v1/gonum/stat/distuv"
)

// minutes returns some equal minutes of some pods.
func minutes(prefix string, pods int, events, exposure float64) (of []PodMinute) {
	for i := range pods {
		of = append(of, PodMinute{fmt.Sprint(prefix, i), events, exposure})
	}
	return of
}

func TestCounts(t *testing.T) {
	type minute struct{ fresh, old []PodMinute }
	every := func(n int, m minute) (all []minute) {
		for range n {
			all = append(all, m)
		}
		return all
	}
	for _, tc := range []struct {
		name    string
		minutes []minute
		floors  Floors
		fails   bool
		enough  bool
		says    string
	}{
		{name: "no minute", says: "new and old pods had no requests at the same time"},
		{name: "one side has no requests", minutes: every(9, minute{minutes("n", 3, 0, 0), minutes("o", 5, 0, 100)}),
			says: "new and old pods had no requests at the same time"},
		{name: "healthy", minutes: every(9, minute{minutes("n", 3, 1, 200), minutes("o", 5, 1, 200)}), enough: true,
			says: "0.5 % of 5,400 requests of 3 new pods against 0.5 % of 9,000 of 5 old ones over 9 minutes"},
		{name: "ten times the errors", minutes: every(6, minute{minutes("n", 3, 8, 200), minutes("o", 8, 1, 250)}), enough: true, fails: true,
			says: "4 % of 3,600 requests of 3 new pods against 0.4 % of 12,000 of 8 old ones over 6 minutes: 10 times; " +
				"odds 1 : 30,092,564 that chance does that"},
		{name: "one new pod needs more evidence", minutes: every(15, minute{minutes("n", 1, 4, 200), minutes("o", 8, 1, 250)}), enough: true,
			says: "2 % of 3,000 requests of 1 new pod against 0.4 % of 30,000 of 8 old ones over 15 minutes: 5 times; " +
				"odds 1 : 30 that chance does that"},
		{name: "all requests fail", minutes: every(3, minute{minutes("n", 1, 6, 6), minutes("o", 2, 0, 6)}), fails: true,
			says: "100 % of 18 requests of 1 new pod against 0 % of 36 of 2 old ones over 3 minutes; " +
				"far more than any old pod for 3 minutes"},
		{name: "all requests fail on both sides", minutes: every(9, minute{minutes("n", 3, 100, 100), minutes("o", 5, 100, 100)}), enough: true,
			says: "100 % of 2,700 requests of 3 new pods against 100 % of 4,500 of 5 old ones over 9 minutes"},
		{name: "few errors", minutes: every(9, minute{minutes("n", 1, 0.3, 100), minutes("o", 5, 0, 100)}), enough: true,
			says: "0.3 % of 900 requests of 1 new pod against 0 % of 4,500 of 5 old ones over 9 minutes"},
		{name: "less than twice", minutes: every(30, minute{minutes("n", 10, 19, 1000), minutes("o", 10, 10, 1000)}), enough: true,
			says: "1.9 % of 300,000 requests of 10 new pods against 1 % of 300,000 of 10 old ones over 30 minutes: 1.9 times; " +
				"odds 1 : 3,320 that chance does that"},
		{name: "not a number", minutes: every(9, minute{minutes("n", 3, math.NaN(), 100), minutes("o", 5, 1, math.Inf(1))}),
			says: "new and old pods had no requests at the same time"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := NewCounts(RequestFloors, minutes("o", 60, 1, 250))
			for _, m := range tc.minutes {
				c.Add(m.fresh, m.old)
			}
			if c.Fails(0.01) != tc.fails || c.Enough() != tc.enough {
				t.Errorf("fails %t, want %t; enough %t, want %t", c.Fails(0.01), tc.fails, c.Enough(), tc.enough)
			}
			if diff := cmp.Diff(tc.says, c.Sentence("requests", time.Minute)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestBurst: a burst in a single minute is no evidence beyond the usual number of errors of a minute.
func TestBurst(t *testing.T) {
	c := NewCounts(RequestFloors, minutes("o", 60, 1, 250))
	for range 10 {
		c.Add(minutes("n", 3, 1, 250), minutes("o", 5, 1, 250))
	}
	c.Add(minutes("n", 1, 200, 250), minutes("o", 5, 1, 250))
	if c.Fails(0.01) {
		t.Error(c.Sentence("requests", time.Minute))
	}
}

// TestFar: a large difference between few pods fails, although little is known of how much they differ. One minute of a pod is not enough.
func TestFar(t *testing.T) {
	for minutesOfNew, fails := range map[int]bool{5: true, 1: false} {
		c := NewCounts(RequestFloors, minutes("o", 60, 1, 600))
		for i := range 5 {
			fresh := minutes("n", 2, 1, 600)
			if i >= 5-minutesOfNew {
				fresh = minutes(fmt.Sprint("bad", 5-minutesOfNew), 2, 300, 600)
			}
			c.Add(fresh, minutes("o", 3, 1, 600))
		}
		if c.Fails(0.01) != fails {
			t.Errorf("%d minutes: %s", minutesOfNew, c.Sentence("requests", time.Minute))
		}
	}
}

// TestFewEvents: an error in a minute with few requests is a large share, and says little.
func TestFewEvents(t *testing.T) {
	c := NewCounts(RequestFloors, minutes("o", 60*45, 0.06, 6))
	for i := range 4 {
		fresh := minutes("n", 5, 0, 6)
		for pod := range fresh {
			if pod < 2 && i > 0 {
				fresh[pod].Events = 1
			}
		}
		c.Add(fresh, minutes("o", 45, 0.06, 6))
	}
	if c.Fails(0.01) {
		t.Error(c.Sentence("requests", time.Minute))
	}
}

// TestNumberOfPods: events of one pod alone do not fail if the floors ask for two.
func TestNumberOfPods(t *testing.T) {
	for pods, fails := range map[int]bool{1: false, 2: true} {
		c := NewCounts(EventFloors, minutes("o", 600, 0, 1))
		for range 20 {
			c.Add(append(minutes("n", pods, 1, 1), minutes("calm", 4-pods, 0, 1)...), minutes("o", 10, 0, 1))
		}
		if c.Fails(0.01) != fails {
			t.Errorf("%d pods: %s", pods, c.Sentence("minutes", time.Minute))
		}
	}
}

// TestHealthyCounts plays healthy releases of pods that differ much. hack/judge plays ten thousand of many kinds.
func TestHealthyCounts(t *testing.T) {
	const releases = 400
	failed := 0
	for seed := range uint64(releases) {
		rng := rand.New(rand.NewPCG(7, seed))
		shares := make([]float64, 11)
		for i := range shares {
			shares[i] = distuv.Gamma{Alpha: 1, Beta: 100, Src: rng}.Rand()
		}
		side := func(prefix string, shares []float64) (of []PodMinute) {
			for i, share := range shares {
				of = append(of, PodMinute{fmt.Sprint(prefix, i), min(distuv.Poisson{Lambda: 300*share + 1e-9, Src: rng}.Rand(), 300), 300})
			}
			return of
		}
		var history []PodMinute
		for range 60 {
			history = append(history, side("o", shares[3:])...)
		}
		c, fails := NewCounts(RequestFloors, history), false
		for range 15 {
			c.Add(side("n", shares[:3]), side("o", shares[3:]))
			fails = fails || c.Fails(0.01)
		}
		if fails {
			failed++
		}
	}
	if failed > releases/100 {
		t.Errorf("%d of %d healthy releases fail", failed, releases)
	}
}

// FuzzCounts: any numbers are judged without a panic, and with finite odds.
func FuzzCounts(f *testing.F) {
	f.Add(1.0, 100.0, 2.0, 50.0, 3.0)
	f.Add(math.NaN(), -1.0, math.Inf(1), 1e300, 1e-300)
	f.Fuzz(func(t *testing.T, a, b, c, d, e float64) {
		counts := NewCounts(RequestFloors, []PodMinute{{"o", a, b}, {"p", c, d}})
		for range 4 {
			counts.Add([]PodMinute{{"n", c, d}, {"m", e, b}}, []PodMinute{{"o", a, b}, {"p", d, e}})
		}
		odds := counts.Odds()
		if math.IsNaN(odds) || odds < 0 || odds > maxOdds || strings.Contains(counts.Sentence("requests", time.Minute), "NaN") {
			t.Errorf("odds %v: %s", odds, counts.Sentence("requests", time.Minute))
		}
		counts.Fails(0.01)
	})
}
