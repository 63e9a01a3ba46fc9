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
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// DeliveryReport counts the releases of namespaces: the output of history -o json without a name.
type DeliveryReport struct {
	metav1.TypeMeta `json:",inline"`
	// Since is the start of the counted time.
	Since metav1.Time `json:"since"`
	// Items are the namespaces with records, by name.
	Items []Delivery `json:"items"`
}

// Delivery counts the releases of a namespace that began in the time, without the operator's rollbacks.
type Delivery struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        Metadata `json:"metadata"`
	// Releases of all states; Succeeded and Failed have a result.
	Releases  int `json:"releases"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
	// Of the failed, RolledBack were rolled back, and after Restored a later release succeeded.
	RolledBack int `json:"rolledBack"`
	Restored   int `json:"restored"`
	// WouldStop are releases that enforce mode would have blocked, halted, rolled back or denied.
	WouldStop int `json:"wouldStop"`
	// ReleasesPerWeek is the deployment frequency; for a time under a week it is the number of releases.
	ReleasesPerWeek float64 `json:"releasesPerWeek"`
	// ChangeFailureRate is the share of failed releases of those with a result; absent without one.
	ChangeFailureRate *float64 `json:"changeFailureRate,omitempty"`
	// MeanTimeToRestoreSeconds is the mean time from a failure to the next success; absent without one.
	MeanTimeToRestoreSeconds *int64 `json:"meanTimeToRestoreSeconds,omitempty"`
	// CompleteSince is the time from which the records have each release.
	CompleteSince metav1.Time `json:"completeSince"`
	// Notable are the releases that failed or would have been stopped, the newest first.
	Notable []NotableRelease `json:"notable"`
}

// NotableRelease is a release that failed, or that enforce mode would have stopped.
type NotableRelease struct {
	// Workload as kind/name.
	Workload                 string `json:"workload"`
	v1alpha1.PreviousRelease `json:",inline"`
	// Because says why it failed.
	Because string `json:"because,omitempty"`
}

// delivery prints how the releases of namespaces went.
func (a *reading) delivery(ctx context.Context, since string, everywhere bool) error {
	period, err := parsePeriod(since)
	if err != nil {
		return err
	}
	live, namespace, err := a.begin(ctx)
	if err != nil {
		return err
	}
	if everywhere {
		namespace = ""
	}
	var list v1alpha1.ChangeWorkloadList
	if err := newReader(live).List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("list changeworkloads: %w", err)
	}
	report := deliveryOf(list.Items, a.Now().Add(-period), a.Now(), a.style)
	if a.printer != nil {
		return printObject(a.Out, a.printer, report)
	}
	a.style.delivery(a.Out, report, cmp.Or(namespace, "any namespace"), a.Now())
	return nil
}

// maxPeriod is the longest time that releases are counted for.
const maxPeriod = 10 * 365 * 24 * time.Hour

// parsePeriod reads a duration that may be given in days.
func parsePeriod(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if days, is := strings.CutSuffix(text, "d"); is {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 16)
		d = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || d <= 0 || d > maxPeriod {
		return 0, remedy(fmt.Errorf("--since %s is no time", text), "give hours or days, as in 12h or 30d, at most 3650d")
	}
	return d, nil
}

// deliveryOf counts the releases since a time, by namespace, without those that the operator made.
func deliveryOf(changes []v1alpha1.ChangeWorkload, since, now time.Time, st style) *DeliveryReport {
	type key struct {
		namespace, kind, name string
		uid                   types.UID
	}
	of := map[key][]v1alpha1.ChangeWorkload{}
	for i := range changes {
		c := &changes[i]
		k := key{namespace: c.Namespace, kind: "deployment", name: c.Spec.ServiceName}
		if ref := c.Spec.WorkloadRef; ref != nil {
			k = key{c.Namespace, argument(&metav1.TypeMeta{APIVersion: ref.APIVersion, Kind: ref.Kind}), ref.Name, types.UID(ref.UID)}
		} else if owner := metav1.GetControllerOf(c); owner != nil {
			k = key{c.Namespace, argument(&metav1.TypeMeta{APIVersion: owner.APIVersion, Kind: owner.Kind}), owner.Name, owner.UID}
		}
		of[k] = append(of[k], *c)
	}
	report := &DeliveryReport{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, Since: metav1.NewTime(since), Items: []Delivery{}}
	found := map[string]*Delivery{}
	restoring := map[string]time.Duration{}
	for k, records := range of {
		d := found[k.namespace]
		if d == nil {
			d = &Delivery{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Delivery"},
				Metadata: Metadata{Name: k.namespace}, CompleteSince: report.Since, Notable: []NotableRelease{}}
			found[k.namespace] = d
		}
		newestFirst(records)
		restoring[k.namespace] += d.add(k.kind+"/"+k.name, releasesIn(records), since, st)
	}
	weeks := max(now.Sub(since).Hours()/(7*24), 1)
	for namespace, d := range found {
		d.conclude(weeks, restoring[namespace])
		report.Items = append(report.Items, *d)
	}
	slices.SortFunc(report.Items, func(a, b Delivery) int { return cmp.Compare(a.Metadata.Name, b.Metadata.Name) })
	return report
}

// add counts the releases of a workload, the newest first, and returns the time that it took to restore the failed ones.
func (d *Delivery) add(name string, releases []v1alpha1.PreviousRelease, since time.Time, st style) (restoring time.Duration) {
	if oldest := releases[len(releases)-1]; oldest.Release > 1 && oldest.StartTimeUnix > d.CompleteSince.Unix() {
		d.CompleteSince = metav1.Unix(oldest.StartTimeUnix, 0)
	}
	var restored int64 // the success that follows the release
	for i := range releases {
		r := &releases[i]
		failed := r.Status == v1alpha1.ChangeWorkloadSuspend || r.Status == v1alpha1.ChangeWorkloadRollback
		if r.StartTimeUnix >= since.Unix() && !st.isOperator(r.ReleasedBy) {
			d.count(name, r, failed)
			if failed && restored > 0 {
				d.Restored++
				restoring += time.Duration(max(restored-cmp.Or(r.FailedTimeUnix, r.UpdateTimeUnix), 0)) * time.Second
			}
		}
		if r.Status == v1alpha1.ChangeWorkloadSuccess {
			restored = r.UpdateTimeUnix
		}
	}
	return restoring
}

// count counts one release.
func (d *Delivery) count(name string, r *v1alpha1.PreviousRelease, failed bool) {
	d.Releases++
	if failed {
		d.Failed++
	}
	if r.Status == v1alpha1.ChangeWorkloadSuccess {
		d.Succeeded++
	}
	if r.Status == v1alpha1.ChangeWorkloadRollback {
		d.RolledBack++
	}
	would := slices.ContainsFunc(r.DryRuns, func(act string) bool { return act != v1alpha1.DryRunHold })
	if would {
		d.WouldStop++
	}
	if failed || would {
		d.Notable = append(d.Notable, NotableRelease{Workload: name, PreviousRelease: *r, Because: because(r)})
	}
}

// conclude computes the rates.
func (d *Delivery) conclude(weeks float64, restoring time.Duration) {
	d.ReleasesPerWeek = float64(d.Releases) / weeks
	if ended := d.Succeeded + d.Failed; ended > 0 {
		rate := float64(d.Failed) / float64(ended)
		d.ChangeFailureRate = &rate
	}
	if d.Restored > 0 {
		mean := int64(restoring.Seconds()) / int64(d.Restored)
		d.MeanTimeToRestoreSeconds = &mean
	}
	slices.SortFunc(d.Notable, func(a, b NotableRelease) int {
		return cmp.Or(cmp.Compare(b.StartTimeUnix, a.StartTimeUnix), cmp.Compare(a.Workload, b.Workload), cmp.Compare(b.Release, a.Release))
	})
}

// delivery prints a report.
func (st style) delivery(w io.Writer, r *DeliveryReport, where string, now time.Time) {
	if len(r.Items) == 0 {
		printf(w, "There is no recorded release in %s.\n", where)
		return
	}
	rows := [][]string{{"NAMESPACE", "RELEASES", "A WEEK", "FAILED", "ROLLED BACK", "RATE", "RESTORED", "WOULD"}}
	var partial []string
	for i := range r.Items {
		d := &r.Items[i]
		rate, restored := "", ""
		if d.ChangeFailureRate != nil {
			rate = fmt.Sprintf("%.0f%%", 100**d.ChangeFailureRate)
		}
		if d.MeanTimeToRestoreSeconds != nil {
			restored = age(time.Duration(*d.MeanTimeToRestoreSeconds) * time.Second)
		}
		rows = append(rows, []string{d.Metadata.Name, fmt.Sprint(d.Releases), fmt.Sprintf("%.1f", d.ReleasesPerWeek), fmt.Sprint(d.Failed),
			fmt.Sprint(d.RolledBack), rate, restored, fmt.Sprint(d.WouldStop)})
		if d.CompleteSince.After(r.Since.Time) {
			partial = append(partial, d.Metadata.Name+" (complete for "+age(now.Sub(d.CompleteSince.Time))+")")
		}
	}
	st.table(w, rows)
	if st.wide {
		st.notable(w, r, now)
	}
	printf(w, "\n")
	st.paragraph(w, "", "Since "+r.Since.UTC().Format(time.RFC3339)+", from the records that exist. RATE: failed of those with a result. "+
		"RESTORED: mean time from a failure to the next success. WOULD: passed in observe mode; enforce mode would stop them. "+
		"The lead time of a change is not known in a cluster.")
	if len(partial) > 0 {
		st.paragraph(w, "", markPlain.of(st,
			"A workload has at most eleven recorded releases, so there may be more in "+strings.Join(partial, ", ")+"."))
	}
}

// notable prints the releases that failed or would have been stopped.
func (st style) notable(w io.Writer, r *DeliveryReport, now time.Time) {
	rows := [][]string{{"NAMESPACE", "WORKLOAD", "RELEASE", "STATE", "STARTED", "WOULD", "WHY"}}
	for i := range r.Items {
		for _, n := range r.Items[i].Notable {
			rows = append(rows, []string{r.Items[i].Metadata.Name, n.Workload, fmt.Sprint(n.Release), stateOf(n.Status),
				age(now.Sub(time.Unix(n.StartTimeUnix, 0))) + " ago", strings.Join(n.DryRuns, ","), n.Because})
		}
	}
	if len(rows) > 1 {
		printf(w, "\n")
		st.table(w, rows)
	}
}
