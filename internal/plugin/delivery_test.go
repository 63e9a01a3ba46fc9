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

package plugin

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

const (
	day     = 24 * time.Hour
	success = v1alpha1.ChangeWorkloadSuccess
	suspend = v1alpha1.ChangeWorkloadSuspend
	rolled  = v1alpha1.ChangeWorkloadRollback
)

// reported is the time of the reports in these tests.
var reported = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// pastOne is a release that began so long ago, with its end after took and the failure after failed.
func pastOne(number int64, state v1alpha1.ChangeWorkloadStatusType, ago, failed, took time.Duration) v1alpha1.PreviousRelease {
	start := reported.Add(-ago)
	p := v1alpha1.PreviousRelease{Release: number, Version: strings.Repeat("a", 32), Status: state,
		StartTimeUnix: start.Unix(), UpdateTimeUnix: start.Add(took).Unix()}
	if failed > 0 {
		p.FailedTimeUnix = start.Add(failed).Unix()
	}
	return p
}

func by(p v1alpha1.PreviousRelease, user string, dryRuns ...string) v1alpha1.PreviousRelease {
	p.ReleasedBy, p.DryRuns = user, dryRuns
	return p
}

// recordedIn is the newest record of a workload, which knows these releases, the newest first.
func recordedIn(namespace, name string, releases ...v1alpha1.PreviousRelease) v1alpha1.ChangeWorkload {
	now := releases[0]
	return v1alpha1.ChangeWorkload{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "--x--" + now.Version},
		Spec: v1alpha1.ChangeWorkloadSpec{Release: now.Release, Reversion: now.Version,
			WorkloadRef: &v1alpha1.WorkloadReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: name, UID: namespace + name}},
		Status: v1alpha1.ChangeWorkloadStatus{Status: now.Status, ObservedRelease: now.Release, StartTimeUnix: now.StartTimeUnix,
			UpdateTimeUnix: now.UpdateTimeUnix, ReleaseEvidence: now.ReleaseEvidence, PreviousReleases: releases[1:]},
	}
}

func TestDeliveryOf(t *testing.T) {
	rate := func(r float64) *float64 { return &r }
	seconds := func(s int64) *int64 { return &s }
	since := reported.Add(-28 * day)
	const operator = "system:serviceaccount:operator:manager"
	for name, test := range map[string]struct {
		records []v1alpha1.ChangeWorkload
		want    []Delivery
	}{
		"no record": {want: []Delivery{}},
		"each success counts": {[]v1alpha1.ChangeWorkload{
			recordedIn("shop", "web", pastOne(2, success, day, 0, time.Minute), pastOne(1, success, 2*day, 0, time.Minute)),
			recordedIn("shop", "cart", pastOne(1, success, 3*day, 0, time.Minute)),
			recordedIn("bank", "web", pastOne(1, v1alpha1.ChangeWorkloadRunning, time.Hour, 0, 0)),
		}, []Delivery{
			{Metadata: Metadata{Name: "bank"}, Releases: 1, ReleasesPerWeek: .25},
			{Metadata: Metadata{Name: "shop"}, Releases: 3, Succeeded: 3, ReleasesPerWeek: .75, ChangeFailureRate: rate(0)},
		}},
		"a fix restores": {[]v1alpha1.ChangeWorkload{
			recordedIn("shop", "web", pastOne(3, success, 10*time.Hour, 0, 10*time.Minute),
				pastOne(2, suspend, 11*time.Hour, 10*time.Minute, 30*time.Minute), pastOne(1, success, 2*day, 0, time.Minute)),
		}, []Delivery{{Metadata: Metadata{Name: "shop"}, Releases: 3, Succeeded: 2, Failed: 1, Restored: 1, ReleasesPerWeek: .75,
			ChangeFailureRate: rate(1. / 3), MeanTimeToRestoreSeconds: seconds(3600), Notable: []NotableRelease{
				{Workload: "statefulset/web", PreviousRelease: pastOne(2, suspend, 11*time.Hour, 10*time.Minute, 30*time.Minute)}}}}},
		"the operator's rollback restores, and is no release": {[]v1alpha1.ChangeWorkload{
			recordedIn("shop", "web", by(pastOne(3, success, 60*time.Minute, 0, 10*time.Minute), operator),
				pastOne(2, rolled, 70*time.Minute, 10*time.Minute, 11*time.Minute)),
			recordedIn("shop", "past-admission", by(pastOne(3, success, 60*time.Minute, 0, 30*time.Minute), v1alpha1.FieldManager),
				pastOne(2, rolled, 70*time.Minute, 0, 10*time.Minute)),
		}, []Delivery{{Metadata: Metadata{Name: "shop"}, Releases: 2, Failed: 2, RolledBack: 2, Restored: 2, ReleasesPerWeek: .5,
			ChangeFailureRate: rate(1), MeanTimeToRestoreSeconds: seconds(20 * 60), CompleteSince: metav1.NewTime(reported.Add(-70 * time.Minute)),
			Notable: []NotableRelease{
				{Workload: "statefulset/past-admission", PreviousRelease: pastOne(2, rolled, 70*time.Minute, 0, 10*time.Minute)},
				{Workload: "statefulset/web", PreviousRelease: pastOne(2, rolled, 70*time.Minute, 10*time.Minute, 11*time.Minute)}}}}},
		"not restored yet, canceled and refused": {[]v1alpha1.ChangeWorkload{
			recordedIn("shop", "web", pastOne(3, suspend, time.Hour, time.Minute, time.Minute),
				pastOne(2, v1alpha1.ChangeWorkloadCanceled, 2*time.Hour, 0, time.Hour), pastOne(1, v1alpha1.ChangeWorkloadFailed, 3*time.Hour, 0, 0)),
		}, []Delivery{{Metadata: Metadata{Name: "shop"}, Releases: 3, Failed: 1, ReleasesPerWeek: .75, ChangeFailureRate: rate(1),
			Notable: []NotableRelease{{Workload: "statefulset/web", PreviousRelease: pastOne(3, suspend, time.Hour, time.Minute, time.Minute)}}}}},
		"observe mode": {[]v1alpha1.ChangeWorkload{
			recordedIn("shop", "web", by(pastOne(2, success, time.Hour, 0, time.Minute), "jane", v1alpha1.DryRunHold),
				by(pastOne(1, success, day, time.Minute, time.Hour), "jane", v1alpha1.DryRunHold, v1alpha1.DryRunSuspend)),
		}, []Delivery{{Metadata: Metadata{Name: "shop"}, Releases: 2, Succeeded: 2, WouldStop: 1, ReleasesPerWeek: .5, ChangeFailureRate: rate(0),
			Notable: []NotableRelease{{Workload: "statefulset/web",
				PreviousRelease: by(pastOne(1, success, day, time.Minute, time.Hour), "jane", v1alpha1.DryRunHold, v1alpha1.DryRunSuspend)}}}}},
		"older releases do not count, and records end": {[]v1alpha1.ChangeWorkload{
			recordedIn("shop", "web", pastOne(9, success, 2*day, 0, time.Minute), pastOne(8, success, 10*day, 0, time.Minute)),
			recordedIn("shop", "old", pastOne(9, success, 29*day, 0, time.Minute)),
			recordedIn("shop", "young", pastOne(1, success, day, 0, time.Minute)),
		}, []Delivery{{Metadata: Metadata{Name: "shop"}, Releases: 3, Succeeded: 3, ReleasesPerWeek: .75, ChangeFailureRate: rate(0),
			CompleteSince: metav1.NewTime(reported.Add(-10 * day))}}},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range test.want {
				d := &test.want[i]
				d.APIVersion, d.Kind = v1alpha1.GroupVersion.String(), "Delivery"
				if d.CompleteSince.IsZero() {
					d.CompleteSince = metav1.NewTime(since)
				}
			}
			got := deliveryOf(test.records, since, reported, style{operator: "operator"})
			if diff := cmp.Diff(test.want, got.Items, cmpopts.EquateEmpty(), cmpopts.EquateApprox(1e-9, 0)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestDeliveryText: the table fits 80 columns, and says how far the records reach.
func TestDeliveryText(t *testing.T) {
	bad := pastOne(9, suspend, 2*day, time.Minute, time.Minute)
	bad.Message = "pod web-0: CrashLoopBackOff"
	records := []v1alpha1.ChangeWorkload{
		recordedIn("shop-production", "web", pastOne(10, success, day, 0, time.Minute),
			by(bad, "jane", v1alpha1.DryRunSuspend, v1alpha1.DryRunHalt)),
		recordedIn("bank", "web", pastOne(1, success, day, 0, time.Minute)),
	}
	report := deliveryOf(records, reported.Add(-30*day), reported, style{})
	for name, test := range map[string]struct {
		style style
		want  string
	}{
		"default": {style{columns: 80, ascii: true}, `
NAMESPACE        RELEASES  A WEEK  FAILED  ROLLED BACK  RATE  RESTORED  WOULD
bank             1         0.2     0       0            0%              0
shop-production  2         0.5     1       0            50%   24h       1

Since 2026-10-27T12:00:00Z, from the records that exist. RATE: failed of those
with a result. RESTORED: mean time from a failure to the next success. WOULD:
passed in observe mode; enforce mode would stop them. The lead time of a change
is not known in a cluster.
- A workload has at most eleven recorded releases, so there may be more in
shop-production (complete for 2d).
`},
		"wide": {style{columns: 100, wide: true}, `
NAMESPACE        RELEASES  A WEEK  FAILED  ROLLED BACK  RATE  RESTORED  WOULD
bank             1         0.2     0       0            0%              0
shop-production  2         0.5     1       0            50%   24h       1

NAMESPACE        WORKLOAD         RELEASE  STATE    STARTED  WOULD         WHY
shop-production  statefulset/web  9        Suspend  2d ago   Suspend,Halt  pod web-0: CrashLoopBackOff

Since 2026-10-27T12:00:00Z, from the records that exist. RATE: failed of those with a result.
RESTORED: mean time from a failure to the next success. WOULD: passed in observe mode; enforce mode
would stop them. The lead time of a change is not known in a cluster.
· A workload has at most eleven recorded releases, so there may be more in shop-production (complete
for 2d).
`},
	} {
		var text strings.Builder
		test.style.delivery(&text, report, "any namespace", reported)
		for line := range strings.Lines(text.String()) {
			if n := utf8.RuneCountInString(line) - 1; !test.style.wide && n > test.style.columns {
				t.Errorf("%s: %d columns: %s", name, n, line)
			}
		}
		if diff := cmp.Diff(strings.TrimPrefix(test.want, "\n"), text.String()); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
	var text strings.Builder
	style{}.delivery(&text, deliveryOf(nil, reported, reported, style{}), "shop", reported)
	if text.String() != "There is no recorded release in shop.\n" {
		t.Errorf("nothing: %q", text.String())
	}
}

func TestParsePeriod(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"30d": 30 * day, "12h": 12 * time.Hour, "1h30m": 90 * time.Minute, "3650d": maxPeriod,
		"": 0, "30": 0, "0d": 0, "-1d": 0, "-5h": 0, "3651d": 0, "99999d": 0, "1w": 0, "d": 0, "1.5d": 0,
	} {
		got, err := parsePeriod(text)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "12h or 30d") {
			t.Errorf("%q: %v does not name a remedy", text, err)
		}
	}
}
