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
	"testing"
	"time"
)

// TestRestarts compares pods whose checks began five minutes ago with old pods of a day. Two pods are on each node, and some on one.
func TestRestarts(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	began := now.Add(-5 * time.Minute)
	type pods struct {
		all, restarted int
		last           time.Time
	}
	long := now.Add(-time.Hour)
	for _, tc := range []struct {
		name  string
		fresh pods
		one   int
		old   []pods
		want  string
	}{
		{name: "all of three, and no old pod", fresh: pods{all: 3, restarted: 3}, old: []pods{{all: 7}},
			want: "3 of 3 new pods restarted while they were checked, and 0 of 7 old pods ever"},
		{name: "two of three", fresh: pods{all: 3, restarted: 2}, old: []pods{{all: 7}}},
		{name: "no new pod", fresh: pods{all: 10}, old: []pods{{all: 40}}},
		{name: "no old pod", fresh: pods{all: 10, restarted: 10}, old: []pods{{}}},
		{name: "no pods", old: []pods{{}}},
		{name: "on one node", fresh: pods{all: 10, restarted: 10}, one: 10, old: []pods{{all: 40}}},
		{name: "nine of ten on one node", fresh: pods{all: 10, restarted: 10}, one: 9, old: []pods{{all: 40}}},
		{name: "eight of ten on one node", fresh: pods{all: 10, restarted: 10}, one: 8, old: []pods{{all: 40}},
			want: "10 of 10 new pods restarted while they were checked, and 0 of 40 old pods ever"},
		{name: "a fifth of old pods was restarted", fresh: pods{all: 10, restarted: 4}, old: []pods{{all: 40, restarted: 8, last: long}}},
		{name: "more new pods were", fresh: pods{all: 10, restarted: 10}, old: []pods{{all: 40, restarted: 8, last: long}},
			want: "10 of 10 new pods restarted while they were checked, and 8 of 40 old pods ever"},
		{name: "all old pods were, long after their start", fresh: pods{all: 10, restarted: 10},
			old: []pods{{all: 40, restarted: 40, last: long}}},
		{name: "one of forty is", fresh: pods{all: 10, restarted: 10}, old: []pods{{all: 40, restarted: 1, last: began}},
			want: "10 of 10 new pods restarted while they were checked, and 1 of 40 old pods ever"},
		{name: "five of forty are", fresh: pods{all: 10, restarted: 10}, old: []pods{{all: 40, restarted: 5, last: began}}},
		{name: "five of forty were shortly before", fresh: pods{all: 10, restarted: 10},
			old: []pods{{all: 40, restarted: 5, last: began.Add(-50 * time.Second)}}},
		{name: "five of forty were before", fresh: pods{all: 10, restarted: 10},
			old:  []pods{{all: 40, restarted: 5, last: began.Add(-2 * time.Minute)}},
			want: "10 of 10 new pods restarted while they were checked, and 5 of 40 old pods ever"},
		{name: "old pods that restarted at the same time were removed", fresh: pods{all: 10, restarted: 10},
			old: []pods{{all: 40, restarted: 5, last: began}, {all: 30}}},
		{name: "old pods that restarted were removed", fresh: pods{all: 10, restarted: 5},
			old: []pods{{all: 40, restarted: 20, last: long}, {all: 20}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list := func(of pods, from time.Time) (all []PodRestarts) {
				for i := range of.all {
					node := string(rune('a' + i/2))
					if i < tc.one {
						node = ""
					}
					all = append(all, PodRestarts{Node: node, From: from, Until: now, Restarted: i < of.restarted, Last: of.last})
				}
				return all
			}
			got, r := "", Restarts{}
			for _, old := range tc.old {
				// An old pod that was created since does not count.
				got = r.Compare(list(tc.fresh, began), append(list(old, now.Add(-24*time.Hour)), list(pods{all: 9}, began)...))
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestRestartsOfBatches: old pods that restart now and then, not together with new pods, do not acquit a release of 20 hours.
func TestRestartsOfBatches(t *testing.T) {
	began := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	fresh, old := []PodRestarts{}, []PodRestarts{}
	for i := range 20 {
		from := began.Add(time.Duration(i) * time.Hour)
		fresh = append(fresh, PodRestarts{
			Node: string(rune('a' + i)), From: from, Until: from.Add(5 * time.Minute), Restarted: i >= 4 && i < 16,
		})
		old = append(old, PodRestarts{From: began.Add(-24 * time.Hour), Restarted: i >= 17, Last: from.Add(30 * time.Minute)})
	}
	if got := (&Restarts{}).Compare(fresh, old); got == "" {
		t.Error("restarts of old pods at other times acquit the new ones")
	}
}
