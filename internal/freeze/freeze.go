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

// Package freeze computes in which times the freezes of a policy are in force. It reads no clock: the
// windows of a policy are computed when it changes, and when a window ends, and are kept in its status.
//
// A schedule is evaluated on the wall clock of its time zone. A start that the zone skips begins at the
// end of the gap, and a start that the zone repeats begins once. The duration is elapsed time. Windows
// are half-open. Windows of one action that touch are one.
package freeze

import (
	"cmp"
	"fmt"
	"slices"
	"time"
	_ "time/tzdata" // images have no database of time zones

	"github.com/robfig/cron/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

const (
	// kept is the number of windows of each action.
	kept = 2
	// maxSpan is the longest window, and maxStarts the most starts of a schedule that are looked at.
	maxSpan   = 400 * 24 * time.Hour
	maxStarts = 20_000
	// skew is more than a wall clock was ever set back or forward at once.
	skew = 25 * time.Hour
)

// parser takes five fields. Its own prefixes for time zones are refused before: it panics on some.
var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// reference is the time at which schedules are judged, so that the judgement does not depend on the
// clock. Its year has a February 29.
var reference = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// Problem returns why freezes are not accepted, with the field; empty if they are. It does not repeat
// validations of the CRD schema.
func Problem(freezes []v1alpha1.PolicyFreeze) string {
	for i := range freezes {
		field := fmt.Sprintf("spec.freezes[%d]", i)
		s, problem := begin(&freezes[i], reference)
		if problem != "" {
			return field + "." + problem
		}
		if s.schedule != nil && !s.next() {
			return field + ".schedule: it never fires; give a date that exists, as in 0 16 * * 5"
		}
	}
	for _, action := range []v1alpha1.FreezeAction{v1alpha1.FreezeDenies, v1alpha1.FreezeWarns} {
		if _, endless := windows(freezes, action, reference); endless {
			return fmt.Sprintf("spec.freezes: windows with the action %s leave no gap within %d days, or begin too often; "+
				"shorten a duration, or give fewer starts with a longer duration", action, int(maxSpan.Hours())/24)
		}
	}
	return ""
}

// Windows returns the windows of freezes that end after a time, at most two for each action, in the
// order of their starts. A window that is too long is cut.
func Windows(freezes []v1alpha1.PolicyFreeze, now time.Time) (all []v1alpha1.FreezeWindow) {
	for _, action := range []v1alpha1.FreezeAction{v1alpha1.FreezeDenies, v1alpha1.FreezeWarns} {
		of, _ := windows(freezes, action, now)
		all = append(all, of...)
	}
	slices.SortStableFunc(all, func(a, b v1alpha1.FreezeWindow) int { return a.Start.Compare(b.Start.Time) })
	return all
}

// Ends returns the first end of a window; zero without windows.
func Ends(windows []v1alpha1.FreezeWindow) (first time.Time) {
	for i := range windows {
		if end := windows[i].End.Time; first.IsZero() || end.Before(first) {
			first = end
		}
	}
	return first
}

func windows(freezes []v1alpha1.PolicyFreeze, action v1alpha1.FreezeAction, now time.Time) (all []v1alpha1.FreezeWindow, endless bool) {
	var sources []*source
	for i := range freezes {
		if cmp.Or(freezes[i].Action, v1alpha1.FreezeDenies) != action {
			continue
		}
		if s, problem := begin(&freezes[i], now); problem == "" {
			sources = append(sources, s)
		}
	}
	for after := now; len(all) < kept; {
		var first *source
		for _, s := range sources {
			if s.reaches(after) && (first == nil || s.start.Before(first.start)) {
				first = s
			}
		}
		if first == nil {
			break
		}
		w := v1alpha1.FreezeWindow{Name: first.name, Action: action, Start: metav1.NewTime(first.start), End: metav1.NewTime(first.end)}
		endless = extend(&w, sources) || endless
		all, after = append(all, w), w.End.Time
	}
	for _, s := range sources {
		endless = endless || s.starts > maxStarts
	}
	return all, endless
}

// extend adds the windows that touch a window. It reports whether the window becomes too long.
func extend(w *v1alpha1.FreezeWindow, sources []*source) bool {
	for grown := true; grown; {
		grown = false
		for _, s := range sources {
			if s.reaches(w.End.Time) && !s.start.After(w.End.Time) {
				w.Name, w.End, grown = s.name, metav1.NewTime(s.end), true
			}
		}
		if w.End.Sub(w.Start.Time) > maxSpan {
			return true
		}
	}
	return false
}

// source has one freeze, at one of its windows.
type source struct {
	name string
	// schedule is nil for a freeze that has one window.
	schedule cron.Schedule
	zone     *time.Location
	duration time.Duration
	// wall is the start on the wall clock, as if it were UTC.
	wall       time.Time
	start, end time.Time
	starts     int
}

// begin returns a freeze before its first window that may end after a time, or a problem.
func begin(f *v1alpha1.PolicyFreeze, now time.Time) (*source, string) {
	s := &source{name: f.Name}
	if f.Schedule == "" {
		if f.From == nil || f.Until == nil || !f.Until.After(f.From.Time) {
			return nil, "until: give from and a later until, or schedule and duration"
		}
		s.start, s.end = f.From.UTC(), f.Until.UTC()
		return s, ""
	}
	if f.Duration == nil || f.Duration.Duration < time.Minute {
		return nil, "duration: give at least 1m"
	}
	var err error
	if s.schedule, err = parse(f.Schedule); err != nil {
		return nil, fmt.Sprintf("schedule: %v; give five cron fields, as in 0 16 * * 5", err)
	}
	zone := cmp.Or(f.TimeZone, "UTC")
	if s.zone, err = time.LoadLocation(zone); err != nil || zone == "Local" {
		return nil, fmt.Sprintf("timeZone: %q is not known; give a name of the IANA database, as in Europe/Berlin", zone)
	}
	s.duration = f.Duration.Duration
	s.wall = wallOf(now.Add(-s.duration).In(s.zone)).Add(-skew)
	return s, ""
}

// parse reads five cron fields.
func parse(schedule string) (cron.Schedule, error) {
	for _, r := range schedule {
		switch {
		case r >= '0' && r <= '9', r >= 'A' && r <= 'Z', r >= 'a' && r <= 'z', r == '*', r == '/', r == ',', r == '-', r == ' ':
		default:
			return nil, fmt.Errorf("it contains %q", r)
		}
	}
	return parser.Parse(schedule)
}

// next moves to the next start. It reports whether a start was found.
func (s *source) next() bool {
	if s.schedule == nil || s.starts > maxStarts {
		return false
	}
	s.starts++
	if s.wall = s.schedule.Next(s.wall); s.wall.IsZero() {
		s.schedule = nil
		return false
	}
	s.start = at(s.wall, s.zone)
	s.end = s.start.Add(s.duration)
	return true
}

// reaches moves to the first window that ends after a time. It reports whether such a window exists.
func (s *source) reaches(after time.Time) bool {
	for !s.end.After(after) {
		if !s.next() {
			return false
		}
	}
	return true
}

// wallOf returns the wall clock of a time, as if it were UTC.
func wallOf(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

// at returns when a wall clock first shows a time, or, where it skips the time, the end of the gap.
func at(wall time.Time, zone *time.Location) time.Time {
	t := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), 0, 0, zone)
	began, ends := t.ZoneBounds()
	switch shown := wallOf(t); {
	case shown.After(wall):
		return began.UTC()
	case shown.Before(wall):
		return ends.UTC()
	case began.IsZero():
		return t.UTC()
	}
	_, now := t.Zone()
	_, before := began.Add(-time.Second).Zone()
	if first := t.Add(time.Duration(now-before) * time.Second); first.Before(began) && wallOf(first.In(zone)).Equal(wall) {
		return first.UTC()
	}
	return t.UTC()
}
