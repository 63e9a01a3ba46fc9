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
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/traas-stack/altershield-operator/internal/judge"
)

// latency is how long a simulated service takes. Values are log-normal around 1.
type latency struct {
	fresh, old int
	// spread is the standard deviation between pods, noise that between the slices of a pod, both of the logarithm.
	spread, noise float64
	// correlation of a slice with the one before it.
	correlation float64
	// heavy is the share of slices with a tail of Student's t with two degrees of freedom; missing is the share without a value.
	heavy, missing float64
	// trend is the amplitude of a wave that all pods follow; cold is how much slower new pods are in their first slice.
	trend, cold float64
	// times is the ratio of the values of new pods; 1 is healthy.
	times float64
}

const windowSlices = 10

// pods returns effects of pods.
func (l latency) pods(rng *rand.Rand, n int, times float64) []float64 {
	effects := make([]float64, n)
	for i := range effects {
		effects[i] = l.spread*rng.NormFloat64() + math.Log(times)
	}
	return effects
}

// window returns the values of pods in a window that begins at a slice.
func (l latency) window(rng *rand.Rand, effects []float64, slices, from int, cold float64) []judge.Series {
	of := make([]judge.Series, len(effects))
	for i, effect := range effects {
		noise := l.noise * rng.NormFloat64()
		for s := range slices {
			if s > 0 {
				noise = l.correlation*noise + math.Sqrt(1-l.correlation*l.correlation)*l.noise*rng.NormFloat64()
			}
			v := effect + noise + l.trend*math.Sin(2*math.Pi*float64(from+s)/40)
			if rng.Float64() < l.heavy {
				v += math.Abs(l.noise * distuv.StudentsT{Sigma: 1, Nu: 2, Src: rng}.Rand())
			}
			if s == 0 {
				v += math.Log1p(cold)
			}
			if rng.Float64() < l.missing {
				v = math.NaN()
			}
			of[i] = append(of[i], math.Exp(v))
		}
	}
	return of
}

// past returns medians of old pods in earlier windows.
func (l latency) past(rng *rand.Rand, effects []float64) (medians []float64) {
	for range 6 {
		for _, pod := range l.window(rng, effects, windowSlices, rng.IntN(40), 0) {
			medians = append(medians, judge.Median(pod))
		}
	}
	return medians
}

// drift is how values of all pods change between the time before a release and the time after it.
type drift struct {
	name string
	// daily is the amplitude of a wave of a day, step the standard deviation of a change with the release, both of the logarithm.
	daily, step float64
}

// beforeRelease simulates a release that is compared with old pods before it, and reports whether it fails.
func (l latency) beforeRelease(rng *rand.Rand, alpha float64, d drift) bool {
	olds, news := l.pods(rng, l.old, 1), l.pods(rng, l.fresh, l.times)
	v := judge.Values{
		Past: l.past(rng, olds), MinChange: 0.01, MinTimes: 0.3, Wide: true, Alpha: judge.LookAlpha(alpha, max(l.fresh, l.old)),
	}
	began, step := 2*math.Pi*rng.Float64(), d.step*rng.NormFloat64()
	wave := func(minute int) float64 { return d.daily * math.Sin(began+2*math.Pi*float64(minute)/(24*60)) }
	v.Old = l.window(rng, olds, windowSlices, 0, 0)
	for i, n := range looksAt(l.fresh) {
		minute, drifted := (i+1)*2*windowSlices, slices.Clone(news[:n]) // each batch takes as long as two windows
		for pod := range drifted {
			drifted[pod] += wave(minute) - wave(0) + step
		}
		v.New = l.window(rng, drifted, windowSlices, 0, l.cold)
		if !v.Compare().Fails {
			continue
		}
		if v.New = l.window(rng, drifted, windowSlices, windowSlices/2, 0); v.Compare().Fails {
			return true
		}
	}
	return false
}

// looksAt returns the numbers of new pods at the looks of a release, of which each batch has one pod.
func looksAt(pods int) (looks []int) {
	for batch := 1; batch <= pods; batch++ {
		if judge.IsLook(batch) {
			looks = append(looks, batch)
		}
	}
	return looks
}

// release simulates a release with all its looks, and reports by which judge it fails.
func (l latency) release(rng *rand.Rand, alpha float64, others bool) (fails, kayenta, threshold bool) {
	olds, news := l.pods(rng, l.old, 1), l.pods(rng, l.fresh, l.times)
	v := judge.Values{Past: l.past(rng, olds), MinChange: 0.01, MinTimes: 0.3}
	from := rng.IntN(40)
	for _, n := range looksAt(l.fresh) {
		v.Alpha = judge.LookAlpha(alpha, max(l.fresh, l.old))
		v.New, v.Old = l.window(rng, news[:n], windowSlices, from, l.cold), l.window(rng, olds, windowSlices, from, 0)
		from += windowSlices
		if others {
			kayenta = kayenta || kayentaHigh(v.New, v.Old)
			threshold = threshold || aboveThreshold(v.New, 1.5)
		}
		if !fails && v.Compare().Fails {
			v.New, v.Old = l.window(rng, news[:n], windowSlices/2, from, 0), l.window(rng, olds, windowSlices/2, from, 0)
			fails = v.Compare().Fails
		}
	}
	return fails, kayenta, threshold
}
