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

package freeze

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func every(name, schedule, duration, zone string, action ...v1alpha1.FreezeAction) v1alpha1.PolicyFreeze {
	d, err := time.ParseDuration(duration)
	if err != nil {
		panic(err)
	}
	f := v1alpha1.PolicyFreeze{Name: name, Schedule: schedule, Duration: &metav1.Duration{Duration: d}, TimeZone: zone}
	for _, a := range action {
		f.Action = a
	}
	return f
}

func once(name, from, until string) v1alpha1.PolicyFreeze {
	return v1alpha1.PolicyFreeze{Name: name, From: stamp(from), Until: stamp(until)}
}

func stamp(text string) *metav1.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return &metav1.Time{Time: t}
}

func TestWindows(t *testing.T) {
	const (
		now = "2026-11-26T12:00:00Z" // a Thursday
		ny  = "America/New_York"
		be  = "Europe/Berlin"
		lh  = "Australia/Lord_Howe" // its summer time is half an hour
	)
	many := func(freezes ...v1alpha1.PolicyFreeze) []v1alpha1.PolicyFreeze { return freezes }
	for name, test := range map[string]struct {
		freezes []v1alpha1.PolicyFreeze
		now     string
		want    []string
	}{
		"none": {nil, now, nil},
		"weekend": {many(every("weekend", "0 16 * * 5", "64h", "")), now, []string{
			"weekend Deny 2026-11-27T16:00:00Z 2026-11-30T08:00:00Z", "weekend Deny 2026-12-04T16:00:00Z 2026-12-07T08:00:00Z"}},
		"at its start": {many(every("weekend", "0 16 * * FRI", "64h", "UTC")), "2026-11-27T16:00:00Z", []string{
			"weekend Deny 2026-11-27T16:00:00Z 2026-11-30T08:00:00Z", "weekend Deny 2026-12-04T16:00:00Z 2026-12-07T08:00:00Z"}},
		"half-open: over at its end": {many(every("weekend", "0 16 * * 5", "64h", "")), "2026-11-30T08:00:00Z", []string{
			"weekend Deny 2026-12-04T16:00:00Z 2026-12-07T08:00:00Z", "weekend Deny 2026-12-11T16:00:00Z 2026-12-14T08:00:00Z"}},
		"once": {many(once("year-end", "2026-12-20T00:00:00+01:00", "2027-01-04T00:00:00+01:00")), now, []string{
			"year-end Deny 2026-12-19T23:00:00Z 2027-01-03T23:00:00Z"}},
		"once, over": {many(once("last", "2026-11-01T00:00:00Z", "2026-11-26T12:00:00Z")), now, nil},
		"windows that touch are one": {many(once("a", "2026-12-01T00:00:00Z", "2026-12-02T00:00:00Z"),
			once("b", "2026-12-02T00:00:00Z", "2026-12-03T00:00:00Z"), once("within", "2026-12-01T06:00:00Z", "2026-12-01T07:00:00Z"),
			once("c", "2026-12-03T00:00:01Z", "2026-12-04T00:00:00Z"), once("third", "2027-12-03T00:00:01Z", "2027-12-04T00:00:00Z")),
			now, []string{
				"b Deny 2026-12-01T00:00:00Z 2026-12-03T00:00:00Z", "c Deny 2026-12-03T00:00:01Z 2026-12-04T00:00:00Z"}},
		"a schedule joins itself": {many(every("nights", "0 20 * * 1-5", "12h", ""), every("days", "0 8 * * 6,0", "24h", "")), now, []string{
			"nights Deny 2026-11-26T20:00:00Z 2026-11-27T08:00:00Z", "days Deny 2026-11-27T20:00:00Z 2026-11-30T08:00:00Z"}},
		"each action for itself": {many(every("soon", "0 14 * * *", "1h", "", v1alpha1.FreezeWarns), every("deny", "30 14 * * *",
			"1h", "")), now, []string{
			"soon Warn 2026-11-26T14:00:00Z 2026-11-26T15:00:00Z", "deny Deny 2026-11-26T14:30:00Z 2026-11-26T15:30:00Z",
			"soon Warn 2026-11-27T14:00:00Z 2026-11-27T15:00:00Z", "deny Deny 2026-11-27T14:30:00Z 2026-11-27T15:30:00Z"}},
		"winter time": {many(every("night", "0 22 * * *", "8h", be)), now, []string{
			"night Deny 2026-11-26T21:00:00Z 2026-11-27T05:00:00Z", "night Deny 2026-11-27T21:00:00Z 2026-11-28T05:00:00Z"}},
		"a start in the gap begins at its end": {many(every("g", "30 2 * * *", "1h", be)), "2026-03-28T12:00:00Z", []string{
			"g Deny 2026-03-29T01:00:00Z 2026-03-29T02:00:00Z", "g Deny 2026-03-30T00:30:00Z 2026-03-30T01:30:00Z"}},
		"the duration is elapsed time in spring": {many(every("g", "0 1 * * 0", "4h", be)), "2026-03-28T12:00:00Z", []string{
			"g Deny 2026-03-29T00:00:00Z 2026-03-29T04:00:00Z", "g Deny 2026-04-04T23:00:00Z 2026-04-05T03:00:00Z"}},
		"a repeated start begins once, first": {many(every("g", "30 1 * * *", "10m", ny)), "2026-10-31T12:00:00Z", []string{
			"g Deny 2026-11-01T05:30:00Z 2026-11-01T05:40:00Z", "g Deny 2026-11-02T06:30:00Z 2026-11-02T06:40:00Z"}},
		"a gap of half an hour": {many(every("g", "15 2 * * *", "10m", lh)), "2026-10-03T02:00:00Z", []string{
			"g Deny 2026-10-03T15:30:00Z 2026-10-03T15:40:00Z", "g Deny 2026-10-04T15:15:00Z 2026-10-04T15:25:00Z"}},
		"a day that does not exist": {many(every("g", "0 12 30 12 *", "1h", "Pacific/Apia")), "2011-12-29T00:00:00Z", []string{
			"g Deny 2011-12-30T10:00:00Z 2011-12-30T11:00:00Z", "g Deny 2012-12-29T22:00:00Z 2012-12-29T23:00:00Z"}},
		"leap day": {many(every("g", "0 0 29 2 *", "24h", "")), now, []string{
			"g Deny 2028-02-29T00:00:00Z 2028-03-01T00:00:00Z", "g Deny 2032-02-29T00:00:00Z 2032-03-01T00:00:00Z"}},
		"not accepted, and the others count": {many(every("bad", "0 0 30 2 *", "24h", ""), every("g", "0 14 * * *", "1h", "")), now, []string{
			"g Deny 2026-11-26T14:00:00Z 2026-11-26T15:00:00Z", "g Deny 2026-11-27T14:00:00Z 2026-11-27T15:00:00Z"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, w := range Windows(test.freezes, stamp(test.now).Time) {
				got = append(got, strings.Join([]string{w.Name, string(w.Action), w.Start.UTC().Format(time.RFC3339),
					w.End.UTC().Format(time.RFC3339)}, " "))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestProblem(t *testing.T) {
	for name, test := range map[string]struct {
		freezes []v1alpha1.PolicyFreeze
		want    string
	}{
		"none":             {nil, ""},
		"weekend":          {[]v1alpha1.PolicyFreeze{every("w", "0 16 * * 5", "64h", "Asia/Kolkata")}, ""},
		"each working day": {[]v1alpha1.PolicyFreeze{every("w", "* 9-17 * * 1-5", "1m", "")}, ""},
		"leap day":         {[]v1alpha1.PolicyFreeze{every("w", "0 0 29 2 *", "1h", "")}, ""},
		"deny and warn": {[]v1alpha1.PolicyFreeze{every("w", "0 0 * * *", "12h", ""), every("d", "0 12 * * *", "12h", "",
			v1alpha1.FreezeWarns)}, ""},
		"never": {[]v1alpha1.PolicyFreeze{every("w", "0 0 30 2 *", "1h", "")}, "spec.freezes[0].schedule: it never fires"},
		"always": {[]v1alpha1.PolicyFreeze{every("w", "0 0 * * *", "24h", "")},
			"spec.freezes: windows with the action Deny leave no gap"},
		"always, together": {[]v1alpha1.PolicyFreeze{every("w", "0 0 * * *", "12h", ""), every("d", "0 12 * * *", "12h", "")},
			"spec.freezes: windows with the action Deny leave no gap"},
		"each minute": {[]v1alpha1.PolicyFreeze{every("w", "* * * * *", "1m", "", v1alpha1.FreezeWarns)},
			"spec.freezes: windows with the action Warn leave no gap"},
		"each minute for half a year": {[]v1alpha1.PolicyFreeze{every("w", "* * * 1-6 *", "1m", "")}, "begin too often"},
		"zone in the schedule": {[]v1alpha1.PolicyFreeze{every("w", "TZ=UTC 0 0 * * 1", "1h", "")},
			"spec.freezes[0].schedule: it contains '='"},
		"what the parser panics on": {[]v1alpha1.PolicyFreeze{every("w", "TZ=0", "1h", "")}, "spec.freezes[0].schedule: it contains '='"},
		"a word":                    {[]v1alpha1.PolicyFreeze{every("w", "@daily", "1h", "")}, "spec.freezes[0].schedule: it contains '@'"},
		"seconds": {[]v1alpha1.PolicyFreeze{every("w", "0 0 16 * * 5", "1h", "")},
			"spec.freezes[0].schedule: expected exactly 5 fields"},
		"out of range": {[]v1alpha1.PolicyFreeze{every("w", "0 24 * * *", "1h", "")}, "give five cron fields, as in 0 16 * * 5"},
		"no duration": {[]v1alpha1.PolicyFreeze{every("w", "0 0 * * *", "0s", "")},
			"spec.freezes[0].duration: give at least 1m"},
		"unknown zone": {[]v1alpha1.PolicyFreeze{every("w", "0 0 * * 1", "1h", "Europe/Atlantis")},
			"spec.freezes[0].timeZone: \"Europe/Atlantis\" is not known"},
		"local zone": {[]v1alpha1.PolicyFreeze{every("w", "0 0 * * 1", "1h", "Local")},
			"spec.freezes[0].timeZone: \"Local\" is not known"},
		"path as a zone": {[]v1alpha1.PolicyFreeze{every("w", "0 0 * * 1", "1h", "../../etc/passwd")}, "spec.freezes[0].timeZone"},
		"turned round": {[]v1alpha1.PolicyFreeze{every("w", "0 0 * * 1", "1h", ""), once("o", "2026-12-02T00:00:00Z", "2026-12-01T00:00:00Z")},
			"spec.freezes[1].until: give from and a later until"},
	} {
		if got := Problem(test.freezes); (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// FuzzWindows: whatever a user writes, the computation ends, and its windows are ordered, apart, and end after the time.
func FuzzWindows(f *testing.F) {
	for _, schedule := range []string{"0 16 * * 5", "*/5 9-17 * 1-3 MON-FRI", "TZ=0", "CRON_TZ=UTC 0 0 * * *", "@every 1s",
		"* * * * *", "0 0 30 2 *", "?"} {
		f.Add(schedule, "Europe/Berlin", int64(3600), int64(1_790_000_000))
	}
	f.Fuzz(func(t *testing.T, schedule, zone string, seconds, now int64) {
		if now < 0 || now > 1<<33 || seconds < 60 || seconds > 744*3600 || len(schedule) > 128 {
			t.Skip()
		}
		freezes := []v1alpha1.PolicyFreeze{
			{Name: "a", Schedule: schedule, TimeZone: zone, Duration: &metav1.Duration{Duration: time.Duration(seconds) * time.Second}},
			once("b", "2026-12-01T00:00:00Z", "2026-12-02T00:00:00Z"),
		}
		at := time.Unix(now, 0)
		windows := Windows(freezes, at)
		if Problem(freezes) != "" {
			return
		}
		for i, w := range windows {
			if !w.End.After(w.Start.Time) || !w.End.After(at) || i > 0 && !w.Start.After(windows[i-1].End.Time) {
				t.Fatalf("at %s: %v", at, windows)
			}
		}
	})
}
