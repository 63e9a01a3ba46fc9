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
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/traas-stack/altershield-operator/internal/judge"
)

// kayentaHigh is the decision of Kayenta's judge about one metric that is worse when it rises, with its defaults: the slices of all pods
// are independent samples, and the lower end of the 98 % interval of the Hodges-Lehmann estimate is above a quarter of the estimate
// (kayenta-judge: MannWhitneyClassifier, NetflixACAJudge).
func kayentaHigh(fresh, old []judge.Series) bool {
	a, b := pooled(fresh), pooled(old)
	differences := make([]float64, 0, len(a)*len(b))
	for _, x := range a {
		for _, y := range b {
			differences = append(differences, x-y)
		}
	}
	if len(differences) == 0 {
		return false
	}
	slices.Sort(differences)
	m, n := float64(len(a)), float64(len(b))
	z := distuv.UnitNormal.Quantile(0.99)
	lowest := int(m*n/2 - z*math.Sqrt(m*n*(m+n+1)/12))
	if lowest < 0 {
		return false
	}
	estimate := stat.Quantile(0.5, stat.Empirical, differences, nil)
	return differences[lowest] > 0.25*math.Abs(estimate)
}

// aboveThreshold is the decision of a fixed threshold on the mean of new pods.
func aboveThreshold(fresh []judge.Series, threshold float64) bool {
	values := pooled(fresh)
	return len(values) > 0 && stat.Mean(values, nil) > threshold
}

// pooled returns the values of all pods.
func pooled(pods []judge.Series) (values []float64) {
	for _, pod := range pods {
		for _, v := range pod {
			if !math.IsNaN(v) {
				values = append(values, v)
			}
		}
	}
	return values
}
