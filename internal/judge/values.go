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

	"github.com/aclements/go-moremath/stats"
	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// Direction is the change of a value that is worse.
type Direction int

// The directions.
const (
	Increase Direction = iota
	Decrease
	Either
)

const (
	// A pod counts with minSlices slices, and with a share of minCoverage of those of the window.
	minSlices   = 3
	minCoverage = 0.6
	// borrowed are the degrees of freedom of the spread that is assumed before pods are measured; minSpread is its least, as a logarithm.
	borrowed  = 6
	minSpread = 0.10
	// spreadQuantile is the quantile of chi squared that widens the spread of few old pods.
	spreadQuantile = 0.26
	// rankAlpha is the level of the second vote.
	rankAlpha = 0.02
)

// Series are the values of a pod by slice of the window; NaN where there is none.
type Series []float64

// Values are what is compared.
type Values struct {
	New, Old []Series
	// Past are medians of the same length of old pods in the last six hours.
	Past []float64
	// Direction that is worse. MinChange is the least change that matters, in the unit of the value; it is greater than 0.
	Direction Direction
	MinChange float64
	// MinTimes is the least change that matters as a share of the old value: 0.3 is 30 %.
	MinTimes float64
	// Wide: both least changes have to be exceeded twice, MinTimes as a factor, so that a decrease can exceed it, too.
	Wide  bool
	Alpha float64
}

// Comparison is the result.
type Comparison struct {
	// New and Old are the numbers of pods with enough slices.
	New, Old int
	// Enough pods are there to compare: one new and one old one. There is nothing to compare without MinChange.
	Enough bool
	// Value and Baseline are the typical value of new and of old pods.
	Value, Baseline float64
	// P is the probability of such a change by chance.
	P float64
	// Fails: the change is worse, matters, and both votes agree.
	Fails bool
	// When is the time of old pods, for the sentence; empty for the time of new pods.
	When string
}

// Compare compares the values of new and old pods.
func (v *Values) Compare() Comparison {
	fresh, old := v.medians(v.New), v.medians(v.Old)
	c := Comparison{New: len(fresh), Old: len(old), P: 1}
	if c.Enough = c.New > 0 && c.Old > 0 && v.MinChange > 0; !c.Enough {
		return c
	}
	a, b := v.logarithms(fresh), v.logarithms(old)
	delta := stat.Mean(a, nil) - stat.Mean(b, nil)
	c.Value, c.Baseline = math.Exp(stat.Mean(a, nil))-v.MinChange, math.Exp(stat.Mean(b, nil))-v.MinChange
	spread := minSpread
	if past := finite(v.Past); len(past) > 1 {
		measured := float64(max(c.Old-1, 1))
		upper := math.Sqrt(measured / distuv.ChiSquared{K: measured}.Quantile(spreadQuantile))
		spread = max(spread, upper*stat.StdDev(v.logarithms(past), nil))
	}
	within := squares(a) + squares(b)
	freedom := float64(c.New + c.Old - 2 + borrowed)
	s := math.Sqrt((borrowed*spread*spread + within) / freedom)
	t := delta / (s * math.Sqrt(1/float64(c.New)+1/float64(c.Old)))
	c.P = v.tail(distuv.StudentsT{Mu: 0, Sigma: 1, Nu: freedom}, t)
	floors := 1.0
	if v.Wide {
		floors = 2
	}
	matters := math.Abs(math.Expm1(delta/floors)) >= v.MinTimes && math.Abs(c.Value-c.Baseline) >= floors*v.MinChange
	c.Fails = c.P <= v.Alpha && matters && v.secondVote()
	return c
}

// tail returns the probability of a value as bad as t.
func (v *Values) tail(d distuv.StudentsT, t float64) float64 {
	switch v.Direction {
	case Increase:
		return d.Survival(t)
	case Decrease:
		return d.CDF(t)
	default:
		return 2 * d.Survival(math.Abs(t))
	}
}

// medians returns the median of each pod with enough slices.
func (v *Values) medians(pods []Series) (medians []float64) {
	for _, pod := range pods {
		numbers := finite(pod)
		if len(numbers) >= minSlices && float64(len(numbers)) >= minCoverage*float64(len(pod)) {
			medians = append(medians, median(numbers))
		}
	}
	return medians
}

// secondVote compares the ranks of slices, each divided by the median of the old pods in the same slice, so that a change in the course
// of the day is none of new pods.
func (v *Values) secondVote() bool {
	slicesOf := 0
	for _, pod := range slices.Concat(v.New, v.Old) {
		slicesOf = max(slicesOf, len(pod))
	}
	var fresh, old []float64
	for i := range slicesOf {
		news, olds := column(v.New, i), column(v.Old, i)
		if len(olds) == 0 {
			continue
		}
		usual := max(median(slices.Clone(olds)), 0) + v.MinChange
		floats.Scale(1/usual, news)
		floats.Scale(1/usual, olds)
		fresh, old = append(fresh, news...), append(old, olds...)
	}
	// The test never ends if a number is NaN.
	fresh, old = finite(fresh), finite(old)
	alternative := map[Direction]stats.LocationHypothesis{
		Increase: stats.LocationGreater, Decrease: stats.LocationLess, Either: stats.LocationDiffers,
	}[v.Direction]
	result, err := stats.MannWhitneyUTest(fresh, old, alternative)
	return err == nil && result.P <= rankAlpha
}

// column returns the numbers of a slice.
func column(pods []Series, i int) (numbers []float64) {
	for _, pod := range pods {
		if i < len(pod) {
			numbers = append(numbers, pod[i])
		}
	}
	return finite(numbers)
}

func (v *Values) logarithms(values []float64) []float64 {
	logs := make([]float64, len(values))
	for i, value := range values {
		logs[i] = math.Log(max(value, 0) + v.MinChange)
	}
	return logs
}

func finite(values []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
}

// Median returns the median of the slices of a pod.
func Median(of Series) float64 { return median(finite(of)) }

// median sorts the values.
func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	return (values[(n-1)/2] + values[n/2]) / 2
}

func squares(values []float64) (sum float64) {
	mean := stat.Mean(values, nil)
	for _, v := range values {
		sum += (v - mean) * (v - mean)
	}
	return sum
}

// Sentence explains the comparison.
func (c Comparison) Sentence() string {
	old := fmt.Sprintf("%d old ones", c.Old)
	if c.When != "" {
		old += " " + c.When
	}
	if !c.Enough {
		return fmt.Sprintf("%s and %s have enough data", counted(c.New, "new pod"), old)
	}
	text := fmt.Sprintf("%.3g in %s against %.3g in %s", c.Value, counted(c.New, "new pod"), c.Baseline, old)
	if c.Baseline > 0 {
		text += fmt.Sprintf(": %+.0f %%", math.Round(100*(c.Value/c.Baseline-1))+0)
	}
	return text + odds(min(1/c.P, maxOdds))
}
