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

package notify

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func alert(name string, active bool, minutes int) Alert {
	return Alert{Labels: map[string]string{"alertname": name}, Active: active, StartsAt: ago(minutes)}
}

// TestMemory: each step is a reading some seconds after the one before.
func TestMemory(t *testing.T) {
	active, moment := alert("Failed", true, 5), alert("RolledBack", false, 1)
	later := alert("RolledBack", false, 0)
	type step struct {
		after  int
		wanted []Alert
		fails  bool
		// want has the name of each alert, and its end in seconds.
		want []string
	}
	for name, steps := range map[string][]step{
		"an active alert is sent each minute, and once when it is over": {
			{wanted: []Alert{active}, want: []string{"Failed 240"}}, {after: 10, wanted: []Alert{active}}, {after: 49, wanted: []Alert{active}},
			{after: 1, wanted: []Alert{active}, want: []string{"Failed 240"}}, {after: 10, want: []string{"Failed 0"}}, {after: 10},
		},
		"a moment is sent once": {
			{wanted: []Alert{moment}, want: []string{"RolledBack 900"}}, {after: 60, wanted: []Alert{moment}}, {after: 60},
			{after: 60, wanted: []Alert{later}, want: []string{"RolledBack 900"}},
		},
		"a later moment follows at once": {
			{wanted: []Alert{moment}, want: []string{"RolledBack 900"}}, {after: 10, wanted: []Alert{later}, want: []string{"RolledBack 900"}},
		},
		"what fails is sent again": {
			{wanted: []Alert{active, moment}, fails: true, want: []string{"Failed 240", "RolledBack 900"}},
			{after: 10, wanted: []Alert{active, moment}, want: []string{"Failed 240", "RolledBack 900"}},
			{after: 10, fails: true, want: []string{"Failed 0"}}, {after: 10, want: []string{"Failed 0"}}, {after: 10},
		},
		"an alert that was never taken is not ended": {{wanted: []Alert{active}, fails: true, want: []string{"Failed 240"}}, {after: 10}},
		"an end that cannot be sent is forgotten when Alertmanager ends the alert": {
			{wanted: []Alert{active}, want: []string{"Failed 240"}}, {after: 239, fails: true, want: []string{"Failed 0"}}, {after: 1},
		},
		"a clock that is set back": {
			{wanted: []Alert{active}, want: []string{"Failed 240"}}, {after: -3600, wanted: []Alert{active}, want: []string{"Failed 240"}},
		},
		"it fails again before the next reading": {
			{wanted: []Alert{active}, want: []string{"Failed 240"}},
			{after: 10, wanted: []Alert{alert("Failed", true, 0)}, want: []string{"Failed 240"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, now := memory{}, testNow
			for i, s := range steps {
				now = now.Add(time.Duration(s.after) * time.Second)
				due, dropped := m.due(s.wanted, now)
				var got []string
				for _, a := range due {
					got = append(got, fmt.Sprint(a.Labels["alertname"], " ", a.EndsAt.Sub(now).Seconds()))
				}
				slices.Sort(got)
				if !slices.Equal(got, s.want) || dropped > 0 {
					t.Errorf("step %d: %q, want %q", i, got, s.want)
				}
				if !s.fails {
					m.took(due, now)
				}
			}
		})
	}
}

// TestTooMany: the newest alerts are sent, and no alert ends because there are too many.
func TestTooMany(t *testing.T) {
	m, wanted := memory{}, []Alert{}
	for i := range maxAlerts + 7 {
		wanted = append(wanted, alert(fmt.Sprintf("%04d", i), true, 2*maxAlerts-i))
	}
	due, dropped := m.due(slices.Clone(wanted), testNow)
	if len(due) != maxAlerts || dropped != 7 || due[0].Labels["alertname"] != "0007" {
		t.Fatalf("%d are due, %d are dropped, the first is %v", len(due), dropped, due[0].Labels)
	}
	m.took(due, testNow)
	wanted = append(wanted, alert("new", true, 0)) // takes the place of another one, which fires on
	if due, _ := m.due(slices.Clone(wanted), testNow); len(due) != 1 || !due[0].EndsAt.After(testNow) {
		t.Errorf("with one more %d are due", len(due))
	}
	wanted = wanted[:len(wanted)-1]
	if due, dropped := m.due(slices.Clone(wanted), testNow.Add(time.Second)); len(due) != 0 || dropped != 7 {
		t.Errorf("a second later: %d are due, %d are dropped", len(due), dropped)
	}
}
