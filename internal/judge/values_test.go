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
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pods returns series of ten slices around some values, each slice a little different.
func pods(values ...float64) (all []Series) {
	for i, v := range values {
		var s Series
		for slice := range 10 {
			s = append(s, v*(1+0.01*float64((slice*7+i*3)%5-2)))
		}
		all = append(all, s)
	}
	return all
}

func TestCompare(t *testing.T) {
	gap := func(n int) []Series {
		all := pods(2)
		for i := range n {
			all[0][i] = []float64{math.NaN(), math.Inf(1)}[i%2]
		}
		return all
	}
	old := pods(1, 1.05, 0.95, 1.02)
	for _, tc := range []struct {
		name  string
		of    Values
		fails bool
		says  string
	}{
		{"twice as slow on one of five", Values{New: pods(2), Old: old}, true,
			"2 in 1 new pod against 1 in 4 old ones: +99 %; odds 1 : 31,865 that chance does that"},
		{"equal", Values{New: pods(1), Old: old}, false, "1 in 1 new pod against 1 in 4 old ones: +0 %"},
		{"faster", Values{New: pods(0.4), Old: old}, false, "0.4 in 1 new pod against 1 in 4 old ones: -60 %"},
		{"faster, and that is worse", Values{New: pods(0.4), Old: old, Direction: Decrease}, true,
			"0.4 in 1 new pod against 1 in 4 old ones: -60 %; odds 1 : 228,528 that chance does that"},
		{"faster, and any change is worse", Values{New: pods(0.4), Old: old, Direction: Either}, true,
			"0.4 in 1 new pod against 1 in 4 old ones: -60 %; odds 1 : 114,264 that chance does that"},
		{"old pods always differ much", Values{New: pods(2), Old: old, Past: []float64{0.3, 3, 1, 0.5, 2}}, false,
			"2 in 1 new pod against 1 in 4 old ones: +99 %"},
		{"old pods were not measured before", Values{New: pods(2), Old: old, Past: []float64{math.NaN(), 1}}, true,
			"2 in 1 new pod against 1 in 4 old ones: +99 %; odds 1 : 31,865 that chance does that"},
		{"certain, and too small a change", Values{New: pods(1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2), Old: slices.Concat(old, old, old)}, false,
			"1.2 in 8 new pods against 1 in 12 old ones: +19 %; odds 1 : 3,144,320 that chance does that"},
		{"below the least change in its unit", Values{New: pods(2), Old: old, MinChange: 5}, false,
			"2 in 1 new pod against 1 in 4 old ones: +99 %; odds 1 : 16 that chance does that"},
		{"no old pod", Values{New: pods(2)}, false, "1 new pod and 0 old ones have enough data"},
		{"no new pod", Values{Old: old}, false, "0 new pods and 4 old ones have enough data"},
		{"four of ten slices are missing", Values{New: gap(4), Old: old}, true,
			"2.01 in 1 new pod against 1 in 4 old ones: +100 %; odds 1 : 33,715 that chance does that"},
		{"five of ten slices are missing", Values{New: gap(5), Old: old}, false, "0 new pods and 4 old ones have enough data"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.of.Alpha, tc.of.MinTimes = 0.01, 0.3
			if tc.of.MinChange == 0 {
				tc.of.MinChange = 0.05
			}
			before := fmt.Sprint(tc.of.New, tc.of.Old, tc.of.Past)
			c := tc.of.Compare()
			if diff := cmp.Diff(tc.says, c.Sentence()); diff != "" || c.Fails != tc.fails {
				t.Errorf("fails %t, want %t; -want +got:\n%s", c.Fails, tc.fails, diff)
			}
			if fmt.Sprint(tc.of.New, tc.of.Old, tc.of.Past) != before {
				t.Error("it changed its input")
			}
		})
	}
}

// TestTrend: a rise that all pods follow is no failure of new pods.
func TestTrend(t *testing.T) {
	fresh, old := pods(1, 1.02), pods(1, 0.98, 1.01)
	for _, all := range [][]Series{fresh, old} {
		for _, pod := range all {
			for slice := range pod {
				pod[slice] *= math.Pow(1.3, float64(slice))
			}
		}
	}
	v := Values{New: fresh, Old: old, MinChange: 0.01, MinTimes: 0.3, Alpha: 0.01}
	if c := v.Compare(); c.Fails {
		t.Error(c.Sentence())
	}
}

// TestMissingSlices: a rise that all pods follow is no failure of new pods whose first slices are missing, although their medians are
// higher then.
func TestMissingSlices(t *testing.T) {
	fresh, old := pods(1, 1.02, 0.98), pods(1, 0.98, 1.01, 1.02, 0.99)
	for _, pod := range slices.Concat(fresh, old) {
		for slice := 5; slice < len(pod); slice++ {
			pod[slice] *= 3
		}
	}
	for _, pod := range fresh {
		for slice := range 4 {
			pod[slice] = math.NaN()
		}
	}
	v := Values{New: fresh, Old: old, MinChange: 0.01, MinTimes: 0.3, Alpha: 0.01}
	if c := v.Compare(); c.Fails || c.P > v.Alpha {
		t.Error(c.Fails, c.Sentence())
	}
}

func TestLooks(t *testing.T) {
	for _, pods := range []int{1, 2, 3, 4, 7, 8, 100, 1000} {
		looks := 0
		for batch := range pods + 1 {
			if IsLook(batch) {
				looks++
			}
		}
		if spent := float64(looks) * LookAlpha(0.01, pods); math.Abs(spent-0.01) > 1e-9 {
			t.Errorf("%d looks at %d pods spend %v", looks, pods, spent)
		}
	}
	if got := LookAlpha(0.01, 0); got != 0.01 {
		t.Errorf("without pods a look may spend %v", got)
	}
}

// TestNegative: values below 0 end the comparison, too.
func TestNegative(t *testing.T) {
	old := []Series{{-1, -1, -1, -1, -1}, {-1, -1, -1, -1, -1}, {0, 0, 0, 0, 0}}
	v := Values{New: []Series{{5, 5, 5, 5, 5}}, Old: old, MinChange: 1, MinTimes: 0.3, Alpha: 0.01}
	if c := v.Compare(); !c.Fails {
		t.Error(c.Sentence())
	}
}

// FuzzCompare: any numbers are compared without a panic.
func FuzzCompare(f *testing.F) {
	f.Add(1.0, 2.0, 3.0, 0.5, 0)
	f.Add(math.Inf(-1), math.NaN(), -1.0, 1e300, 2)
	f.Fuzz(func(t *testing.T, a, b, c, least float64, direction int) {
		if !(least > 0) {
			return // the schema
		}
		v := Values{
			New: []Series{{a, b, c, a, b}, {c, c, c, c, c, a}}, Old: []Series{{b, b, a, c, b}, {a, a, a, a, a}}, Past: []float64{a, b, c},
			Direction: Direction(direction % 3), MinChange: least, MinTimes: 0.3, Alpha: 0.01,
		}
		if r := v.Compare(); r.Fails && !(r.P <= 0.01) {
			t.Errorf("%+v", r)
		}
	})
}
