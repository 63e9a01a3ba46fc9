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

// service is how a simulated service answers.
type service struct {
	fresh, old int
	// requests of each pod in a minute, and the share of them that fail.
	requests, share float64
	// variation is the coefficient of variation of the share between pods.
	variation float64
	// skew is the standard deviation of the logarithm of the traffic of pods.
	skew float64
	// clumped is by how much the variance of the errors of a pod-minute exceeds that of chance; 0 for not at all.
	clumped float64
	// burstShare is the share of pod-minutes with burst further errors.
	burstShare, burst float64
	minutes           int
	// times is the ratio of the error share of new pods; 1 is healthy. failAll means that all of their requests fail.
	times   float64
	failAll bool
	// rolling: one new pod begins each minute, and one old pod ends, but the last.
	rolling bool
}

// pod is a pod of a simulated service.
type pod struct {
	name string
	// share of the requests that fail, and requests in a minute.
	share, requests float64
}

// pods returns some pods with a ratio of the usual error share.
func (s service) pods(rng *rand.Rand, prefix string, n int, times float64) []pod {
	all := make([]pod, n)
	for i := range all {
		all[i] = pod{fmt.Sprint(prefix, i), s.share * times, s.requests * math.Exp(s.skew*rng.NormFloat64())}
		if s.variation > 0 {
			shape := 1 / (s.variation * s.variation)
			all[i].share *= distuv.Gamma{Alpha: shape, Beta: shape, Src: rng}.Rand()
		}
	}
	return all
}

// minute simulates a minute of some pods.
func (s service) minute(rng *rand.Rand, pods []pod, failAll bool) (of []judge.PodMinute) {
	for _, p := range pods {
		n := distuv.Poisson{Lambda: p.requests, Src: rng}.Rand()
		events, mean := 0.0, n*p.share
		if mean > 0 && s.clumped > 0 {
			mean = distuv.Gamma{Alpha: mean / s.clumped, Beta: 1 / s.clumped, Src: rng}.Rand()
		}
		if mean > 0 {
			events = distuv.Poisson{Lambda: mean, Src: rng}.Rand()
		}
		if rng.Float64() < s.burstShare {
			events += s.burst
		}
		if events = math.Min(events, n); failAll {
			events = n
		}
		of = append(of, judge.PodMinute{Pod: p.name, Events: events, Exposure: n})
	}
	return of
}

// release simulates the minutes of a release, and returns the minute in which it fails; 0 if it does not.
func (s service) release(rng *rand.Rand, alpha float64) int {
	olds, news := s.pods(rng, "old", s.old, 1), s.pods(rng, "new", s.fresh, s.times)
	var history []judge.PodMinute
	for range 60 {
		history = append(history, s.minute(rng, olds, false)...)
	}
	c := judge.NewCounts(judge.RequestFloors, history)
	for m := 1; m <= s.minutes; m++ {
		fresh, old := news, olds
		if s.rolling {
			fresh, old = news[:min(m, len(news))], olds[min(m-1, len(olds)-1):]
		}
		if c.Add(s.minute(rng, fresh, s.failAll), s.minute(rng, old, false)); c.Fails(alpha) {
			return m
		}
	}
	return 0
}
