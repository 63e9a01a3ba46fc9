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
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// repeatEvery is the time until an active alert is sent again, and activeLasts the time until it ends without that.
	repeatEvery = time.Minute
	activeLasts = 4 * time.Minute
	// maxAlerts bounds the alerts to one endpoint.
	maxAlerts = 1000
)

// memory has the alerts that an endpoint took, by their labels.
type memory map[string]sent

// sent is an alert, and when it was sent.
type sent struct {
	Alert
	at time.Time
}

func keyOf(a *Alert) string {
	var key strings.Builder
	for _, name := range slices.Sorted(maps.Keys(a.Labels)) {
		key.WriteString(a.Labels[name] + "\x00")
	}
	return key.String()
}

// due returns the alerts to send now, and how many are too many: new alerts, active alerts each minute, and alerts that
// are over, once. It forgets alerts that Alertmanager ends itself.
func (m memory) due(wanted []Alert, now time.Time) (due []Alert, dropped int) {
	firing := map[string]bool{}
	slices.SortFunc(wanted, func(a, b Alert) int { return cmp.Or(a.StartsAt.Compare(b.StartsAt), cmp.Compare(keyOf(&a), keyOf(&b))) })
	dropped = max(len(wanted)-maxAlerts, 0)
	for i := range wanted {
		firing[keyOf(&wanted[i])] = true
	}
	for _, a := range wanted[dropped:] {
		key := keyOf(&a)
		before, known := m[key]
		if !known || !before.StartsAt.Equal(a.StartsAt) || a.Active && now.Sub(before.at).Abs() >= repeatEvery {
			a.EndsAt = now.Add(momentLasts)
			if a.Active {
				a.EndsAt = now.Add(activeLasts)
			}
			due = append(due, a)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		before := m[key]
		switch {
		case firing[key]:
		case !before.Active || now.Sub(before.at) >= activeLasts:
			delete(m, key)
		default:
			before.EndsAt = now
			due = append(due, before.Alert)
		}
	}
	return due, dropped
}

// took notes alerts that the endpoint took.
func (m memory) took(alerts []Alert, now time.Time) {
	for i := range alerts {
		if a := &alerts[i]; a.EndsAt.After(now) {
			m[keyOf(a)] = sent{*a, now}
		} else {
			delete(m, keyOf(a))
		}
	}
}
