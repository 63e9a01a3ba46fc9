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

import "math"

const (
	// failuresAlpha is the share of healthy releases whose new pods may be reported to fail more often, by each kind of failure.
	failuresAlpha = 0.01
	// sameShare of old pods that fail at the same time have a cause in common with the new ones.
	sameShare = 0.1
)

// Failures are failures of pods of one kind, such as restarts.
type Failures struct {
	// Fresh are the new pods, with one event at most: a second one would prove little. Old are the old pods, with all that is known of them.
	Fresh, Old []PodMinute
	// Same is the number of old pods that failed at the same time as the new ones.
	Same int
	// Aged is the number of old pods whose failures at the age of the new ones are known, and AgedFailed the number of those that did fail
	// at that age: many pods fail soon after their start, and no more.
	Aged, AgedFailed int
}

// Worse reports whether new pods fail more often than old ones do, and than old ones did at their age.
func (f Failures) Worse() bool {
	if f.Same > 0 && float64(f.Same) >= sameShare*float64(len(f.Old)) {
		return false
	}
	return CountTotals(EventFloors, f.Fresh, f.Old).Fails(failuresAlpha) && f.byAge() <= failuresAlpha
}

// Sentence explains the failures.
func (f Failures) Sentence(kind string) string {
	return CountTotals(EventFloors, f.Fresh, f.Old).Totals(kind)
}

// byAge returns how probable it is that as many of the new pods fail as do, if pods fail as often at their age as old ones did: Fisher's
// exact test. It is 0 if nothing is known.
func (f Failures) byAge() (p float64) {
	if f.Aged == 0 {
		return 0
	}
	failed := 0
	for _, pod := range f.Fresh {
		if pod.Events > 0 {
			failed++
		}
	}
	n, all, bad := len(f.Fresh), len(f.Fresh)+f.Aged, failed+f.AgedFailed
	for k := failed; k <= min(n, bad); k++ {
		p += math.Exp(logChoose(bad, k) + logChoose(all-bad, n-k) - logChoose(all, n))
	}
	return p
}

// logChoose returns the logarithm of the number of ways to choose k of n.
func logChoose(n, k int) float64 {
	if k < 0 || k > n {
		return math.Inf(-1)
	}
	lgamma := func(n int) float64 { l, _ := math.Lgamma(float64(n) + 1); return l }
	return lgamma(n) - lgamma(k) - lgamma(n-k)
}
