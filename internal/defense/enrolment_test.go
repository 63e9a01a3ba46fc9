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

package defense

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func TestDecideWorkload(t *testing.T) {
	labels := func(kv ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	const (
		v, rel, processed = v1alpha1.VersionLabel, v1alpha1.ReleaseAnnotation, v1alpha1.DefenseStatusLabel
		suspend, ignored  = v1alpha1.SuspendLabel, v1alpha1.IgnoredSuspendLabel
		admitted          = v1alpha1.AdmittedAnnotation
	)
	for name, test := range map[string]struct {
		workload   workload.Workload
		changes    []v1alpha1.ChangeWorkload
		history    []workload.Revision
		unenrolled bool
		since      time.Time
		seen       string
		// installed is when this installation began; an hour ago if nil.
		installed *time.Time
		want      WorkloadPlan
	}{
		"baseline": {
			workload: workload.Workload{Version: versionA},
		},
		"baseline older than the defense": {
			workload: workload.Workload{Version: versionA, RevisionCreated: testNow},
			since:    testNow.Add(time.Second),
		},
		"released in the second the defense began, past admission": {
			workload: workload.Workload{Version: versionA, RevisionCreated: testNow},
			since:    testNow,
			want:     WorkloadPlan{Record: &Recording{Version: versionA, Release: 1, Slipped: true}},
		},
		"released while defended, past admission": {
			workload: workload.Workload{Version: versionA, RevisionCreated: testNow},
			since:    testNow.Add(-time.Second),
			want:     WorkloadPlan{Record: &Recording{Version: versionA, Release: 1, Slipped: true}},
		},
		"baseline seen before, in the second the defense began": {
			workload: workload.Workload{Version: versionA, RevisionCreated: testNow},
			since:    testNow,
			seen:     versionA,
		},
		"baseline seen before, released since past admission": {
			workload: workload.Workload{Version: versionB, RevisionCreated: testNow},
			since:    testNow,
			seen:     versionA,
			want:     WorkloadPlan{Record: &Recording{Version: versionB, Release: 1, Slipped: true}},
		},
		"recorded by admission": {
			workload: workload.Workload{Version: versionA, Labels: labels(v, versionA), Annotations: labels(rel, "1")},
			want:     WorkloadPlan{EnsureChange: true, Processed: true},
		},
		"processed": {
			workload: workload.Workload{Version: versionA, Labels: labels(v, versionA, processed, "processed"), Annotations: labels(rel, "1")},
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadSuccess)},
			want:     WorkloadPlan{EnsureChange: true},
		},
		"slipped: template and record differ": {
			workload: workload.Workload{Version: versionB, Labels: labels(v, versionA, processed, "processed"), Annotations: labels(rel, "1")},
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadSuccess)},
			want:     WorkloadPlan{Record: &Recording{Version: versionB, Release: 2, Slipped: true}},
		},
		"slipped back to an older version, with its record": {
			workload: workload.Workload{Version: versionA, Labels: labels(v, versionA), Annotations: labels(rel, "1")},
			changes: []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadSuspend),
				change(versionB, 2, v1alpha1.ChangeWorkloadSuccess)},
			want: WorkloadPlan{Record: &Recording{Version: versionA, Release: 3, Slipped: true}},
		},
		"record lost, release known": {
			workload: workload.Workload{Version: versionA},
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 4, v1alpha1.ChangeWorkloadSuccess)},
			want:     WorkloadPlan{Record: &Recording{Version: versionA, Release: 4}},
		},
		"number lost, release known": {
			workload: workload.Workload{Version: versionA, Labels: labels(v, versionA)},
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 4, v1alpha1.ChangeWorkloadSuccess)},
			want:     WorkloadPlan{Record: &Recording{Version: versionA, Release: 4}},
		},
		"number lost, nothing known": {
			workload: workload.Workload{Version: versionA, Labels: labels(v, versionA)},
			want:     WorkloadPlan{Record: &Recording{Version: versionA, Release: 1}},
		},
		"recorded release that slipped back before it was processed": {
			workload: workload.Workload{Version: versionA, Labels: labels(v, versionB), Annotations: labels(rel, "2")},
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadSuccess)},
			want:     WorkloadPlan{Record: &Recording{Version: versionA, Release: 2}},
		},
		"a number that a user set does not count": {
			workload: workload.Workload{Version: versionA, Labels: labels(v, versionA), Annotations: labels(rel, "9223372036854775807")},
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 4, v1alpha1.ChangeWorkloadSuccess)},
			want:     WorkloadPlan{Record: &Recording{Version: versionA, Release: 5}},
		},
		"nor a value that is no number": {
			workload: workload.Workload{Version: versionB, Labels: labels(v, versionB), Annotations: labels(rel, "99999999999999999999999")},
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 4, v1alpha1.ChangeWorkloadSuccess)},
			want:     WorkloadPlan{Record: &Recording{Version: versionB, Release: 5}},
		},
		"nor where there is no record, or the release slipped": {
			workload: workload.Workload{Version: versionB, Labels: labels(v, versionA), Annotations: labels(rel, "9007199254740991")},
			want:     WorkloadPlan{Record: &Recording{Version: versionB, Release: 1, Slipped: true}},
		},
		"but releases that nothing recorded are": {
			workload: workload.Workload{Version: versionA, Labels: labels(v, versionA), Annotations: labels(rel, "90000")},
			changes:  []v1alpha1.ChangeWorkload{change(versionB, 4, v1alpha1.ChangeWorkloadSuccess)},
			want:     WorkloadPlan{EnsureChange: true, Processed: true},
		},
		"slipped with an override": {
			workload: workload.Workload{Version: versionB, ResourceVersion: "7", Labels: labels(v, versionA, suspend, "1", ignored, "true"),
				Annotations: labels(rel, "1")},
			want: WorkloadPlan{Record: &Recording{Version: versionB, Release: 2, Slipped: true,
				Override: &record.Override{Version: versionB, ResourceVersion: "7", User: workload.UnknownUser}}},
		},
		"slipped with a stale override": {
			workload: workload.Workload{Version: versionB, Labels: labels(v, versionA, suspend, "1", ignored, "true"),
				Annotations: labels(rel, "1", v1alpha1.OverrideStaleAnnotation, "true")},
			want: WorkloadPlan{Record: &Recording{Version: versionB, Release: 2, Slipped: true}},
		},
		"admission saw another template than is stored": {
			workload: workload.Workload{Version: versionA, Stamp: versionB, Labels: labels(v, versionB), Annotations: labels(rel, "1")},
			want:     WorkloadPlan{Record: &Recording{Version: versionA, Release: 1, Admitted: Admitted{{versionB, versionA}}}},
		},
		"unstamped: admission saw another template than is stored": {
			workload: workload.Workload{Version: versionA, Unstamped: true, Labels: labels(v, versionB), Annotations: labels(rel, "1")},
			want:     WorkloadPlan{Record: &Recording{Version: versionA, Release: 1, Admitted: Admitted{{versionB, versionA}}}},
		},
		"unstamped, slipped: the release was recorded": {
			workload: workload.Workload{Version: versionA, Unstamped: true, Labels: labels(v, versionB, processed, "processed"),
				Annotations: labels(rel, "2")},
			want: WorkloadPlan{Record: &Recording{Version: versionA, Release: 3, Slipped: true}},
		},
		"admission saw another template than is stored, after other releases": {
			workload: workload.Workload{Version: versionA, Stamp: versionB, Labels: labels(v, versionB),
				Annotations: labels(rel, "6", admitted, "x=y,z="+versionB)},
			changes: []v1alpha1.ChangeWorkload{change("other", 4, v1alpha1.ChangeWorkloadSuccess)},
			want: WorkloadPlan{Record: &Recording{Version: versionA, Release: 6,
				Admitted: Admitted{{"x", "y"}, {"z", versionA}, {versionB, versionA}}}},
		},
		"admission saw another template, and nothing is stored of the difference": {
			workload: workload.Workload{Version: versionA, Stamp: versionB, Labels: labels(v, versionB), Annotations: labels(rel, "2")},
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadSuspend)},
			want:     WorkloadPlan{Record: &Recording{Version: versionA, Release: 2, Admitted: Admitted{{versionB, versionA}}}},
		},
		"admission saw another template, of a version in quarantine, with an override": {
			workload: workload.Workload{Version: versionA, Stamp: versionB, ResourceVersion: "7", Labels: labels(v, versionB, ignored, "true"),
				Annotations: labels(rel, "2", v1alpha1.QuarantinedAnnotation, versionA, v1alpha1.ReleasedByAnnotation, "jane")},
			changes: []v1alpha1.ChangeWorkload{change("other", 1, v1alpha1.ChangeWorkloadSuccess)},
			want: WorkloadPlan{Record: &Recording{Version: versionA, Release: 2, Admitted: Admitted{{versionB, versionA}},
				Override: &record.Override{Version: versionA, ResourceVersion: "7", User: "jane"}}},
		},
		"slipped: the number is known": {
			workload: workload.Workload{Version: versionA, Stamp: versionB, Labels: labels(v, versionB),
				Annotations: labels(rel, "2", admitted, "x=y,z="+versionB+","+versionA+"=u")},
			changes: []v1alpha1.ChangeWorkload{change(versionB, 2, v1alpha1.ChangeWorkloadSuccess)},
			want:    WorkloadPlan{Record: &Recording{Version: versionA, Release: 3, Slipped: true, Admitted: Admitted{{"x", "y"}}}},
		},
		"slipped: the number is remembered in the history": {
			workload: workload.Workload{Version: versionA, Stamp: versionB, Labels: labels(v, versionB), Annotations: labels(rel, "2")},
			history:  []workload.Revision{{Version: versionB, Release: 2}},
			want:     WorkloadPlan{Record: &Recording{Version: versionA, Release: 3, Slipped: true}},
		},
		"slipped: the release was recorded": {
			workload: workload.Workload{Version: versionA, Stamp: versionB, Labels: labels(v, versionB, processed, "processed"),
				Annotations: labels(rel, "2")},
			want: WorkloadPlan{Record: &Recording{Version: versionA, Release: 3, Slipped: true}},
		},
		"slipped: the template is not the one that was released": {
			workload: workload.Workload{Version: versionA, Stamp: "other", Labels: labels(v, versionB), Annotations: labels(rel, "2")},
			want:     WorkloadPlan{Record: &Recording{Version: versionA, Release: 3, Slipped: true}},
		},
		"slipped: what was released has pods": {
			workload: workload.Workload{Version: versionA, Stamp: versionB, Labels: labels(v, versionB), Annotations: labels(rel, "2"),
				OldRevisions: []workload.OldRevision{{Version: versionB, Replicas: 1}}},
			want: WorkloadPlan{Record: &Recording{Version: versionA, Release: 3, Slipped: true}},
		},
		"what is remembered stays when a record was lost": {
			workload: workload.Workload{Version: versionA, Annotations: labels(admitted, "x=y")},
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 4, v1alpha1.ChangeWorkloadSuccess)},
			want:     WorkloadPlan{Record: &Recording{Version: versionA, Release: 4, Admitted: Admitted{{"x", "y"}}}},
		},
		"override to report": {
			workload: workload.Workload{Version: versionA, Labels: labels(v, versionA, processed, "processed"),
				Annotations: labels(rel, "1", v1alpha1.OverrideAnnotation, versionA+" 7 Jane Doe")},
			want: WorkloadPlan{EnsureChange: true, Override: &record.Override{Version: versionA, ResourceVersion: "7", User: "Jane Doe"}},
		},
		"override reported": {
			workload: workload.Workload{Version: versionA, Labels: labels(v, versionA, processed, "processed"),
				Annotations: labels(rel, "1", v1alpha1.OverrideAnnotation, versionA+" 7 Jane Doe", v1alpha1.OverrideReportedAnnotation, "7")},
			want: WorkloadPlan{EnsureChange: true},
		},
		"first sight: recorded by an earlier installation": {
			workload:  processedBy(versionA, "4", testNow.Add(-time.Hour)),
			installed: &testNow,
			want:      WorkloadPlan{Baselined: true},
		},
		"first sight: the template changed before this installation": {
			workload:  processedBy(versionB, "4", testNow.Add(-time.Hour)),
			installed: &testNow,
			want:      WorkloadPlan{Baselined: true},
		},
		"first sight: the record is there, of the earlier installation": {
			workload:  processedBy(versionA, "4", testNow.Add(-time.Hour)),
			changes:   []v1alpha1.ChangeWorkload{begunAt(change(versionA, 4, v1alpha1.ChangeWorkloadSuspend), testNow.Add(-time.Minute))},
			installed: &testNow,
			want:      WorkloadPlan{Baselined: true},
		},
		"no first sight: the record is of this installation": {
			workload:  processedBy(versionA, "4", testNow.Add(-time.Hour)),
			changes:   []v1alpha1.ChangeWorkload{begunAt(change(versionA, 4, v1alpha1.ChangeWorkloadSuspend), testNow)},
			installed: &testNow,
			want:      WorkloadPlan{EnsureChange: true},
		},
		"no first sight: the record was deleted": {
			workload: processedBy(versionA, "4", testNow),
			want:     WorkloadPlan{EnsureChange: true},
		},
		"no first sight: released past admission since the installation": {
			workload:  processedBy(versionB, "4", testNow.Add(time.Second)),
			since:     testNow,
			installed: &testNow,
			want:      WorkloadPlan{Record: &Recording{Version: versionB, Release: 5, Slipped: true}},
		},
		"no first sight: admission recorded an old template just now": {
			workload: workload.Workload{Version: versionA, RevisionCreated: testNow.Add(-time.Hour), Labels: labels(v, versionA),
				Annotations: labels(rel, "4")},
			want: WorkloadPlan{EnsureChange: true, Processed: true},
		},
		"no first sight: the operator has yet to process the record": {
			workload: workload.Workload{Version: versionA, RevisionCreated: testNow.Add(-time.Hour), Labels: labels(v, versionA),
				Annotations: labels(rel, "4")},
			installed: &testNow,
			want:      WorkloadPlan{EnsureChange: true, Processed: true},
		},
		"not known since when this installation runs: waits": {
			workload:  processedBy(versionA, "4", testNow.Add(-time.Hour)),
			installed: &time.Time{},
		},
		"not known since when this installation runs, and a record: waits": {
			workload:  processedBy(versionB, "4", testNow.Add(-time.Hour)),
			changes:   []v1alpha1.ChangeWorkload{begunAt(change(versionA, 4, v1alpha1.ChangeWorkloadSuspend), testNow)},
			installed: &time.Time{},
		},
		"first sight: released while the namespace was not enrolled": {
			workload: processedBy(versionB, "4", testNow.Add(-time.Minute)),
			changes:  []v1alpha1.ChangeWorkload{begunAt(change(versionA, 4, v1alpha1.ChangeWorkloadSuccess), testNow.Add(-30*time.Minute))},
			since:    testNow,
			want:     WorkloadPlan{Baselined: true},
		},
		"no first sight: the namespace was enrolled again, and nothing was released": {
			workload: processedBy(versionA, "4", testNow.Add(-time.Minute)),
			changes:  []v1alpha1.ChangeWorkload{begunAt(change(versionA, 4, v1alpha1.ChangeWorkloadSuccess), testNow.Add(-30*time.Minute))},
			since:    testNow,
			want:     WorkloadPlan{EnsureChange: true},
		},
		"no first sight: the records were deleted, and this installation blocked it": {
			workload: func() workload.Workload {
				w := processedBy(versionA, "4", testNow.Add(-time.Hour))
				w.Labels[suspend] = strconv.FormatInt(testNow.Unix(), 10)
				w.Annotations[v1alpha1.SuspendedByAnnotation] = versionB + " 3"
				return w
			}(),
			installed: &testNow,
			want:      WorkloadPlan{EnsureChange: true},
		},
		"no first sight: the records were deleted, and this installation rolled it back": {
			workload: func() workload.Workload {
				w := processedBy(versionA, "4", testNow.Add(-time.Hour))
				rollback.ParseQuarantine(nil, testNow).With(versionB, rollback.QuarantineReason{
					Time: testNow.UTC().Format(time.RFC3339), Release: 3, To: versionA}).Annotate(w.Annotations)
				return w
			}(),
			installed: &testNow,
			want:      WorkloadPlan{EnsureChange: true},
		},
		"after first sight, older records are about no release": {
			workload: workload.Workload{Version: versionA, RevisionCreated: testNow.Add(-time.Hour), Annotations: labels(rel, "5")},
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 4, v1alpha1.ChangeWorkloadSuccess)},
			since:    testNow,
		},
		"after first sight, a release past admission": {
			workload: workload.Workload{Version: versionB, RevisionCreated: testNow, Annotations: labels(rel, "5")},
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 4, v1alpha1.ChangeWorkloadSuccess)},
			since:    testNow,
			want:     WorkloadPlan{Record: &Recording{Version: versionB, Release: 6, Slipped: true}},
		},
		"deleting": {
			workload: workload.Workload{Version: versionB, Deleting: true, Labels: labels(v, versionA)},
		},
		"opted out, blocked by the operator": {
			workload: workload.Workload{Version: versionB, Labels: labels(v, versionA, suspend, "1", v1alpha1.DefenseLabel, "disabled"),
				Annotations: labels(v1alpha1.SuspendedByAnnotation, versionA)},
			changes: []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadSuspend)},
			want:    WorkloadPlan{TakeBack: true},
		},
		"left, blocked by the operator, a release still open: that first": {
			workload: workload.Workload{Version: versionA, Labels: labels(v, versionA, suspend, "1"),
				Annotations: labels(v1alpha1.SuspendedByAnnotation, versionA)},
			changes:    []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadRunning)},
			unenrolled: true,
		},
		"left, blocked by the operator, a record that never began": {
			workload: workload.Workload{Version: versionA, Labels: labels(v, versionA, suspend, "1"),
				Annotations: labels(v1alpha1.SuspendedByAnnotation, versionA)},
			changes:    []v1alpha1.ChangeWorkload{{Spec: v1alpha1.ChangeWorkloadSpec{Reversion: versionA, Release: 1}}},
			unenrolled: true,
			want:       WorkloadPlan{TakeBack: true},
		},
		"left, blocked by the operator": {
			workload: workload.Workload{Version: versionA, Labels: labels(v, versionA, suspend, "1"),
				Annotations: labels(v1alpha1.SuspendedByAnnotation, versionA)},
			changes:    []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadCanceled)},
			unenrolled: true,
			want:       WorkloadPlan{TakeBack: true},
		},
		"redeclared": {
			workload: declaredWorkload(versionB, "new", 5),
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadSuccess)},
			want:     WorkloadPlan{Baselined: true},
		},
		"another default of the CustomResourceDefinition": {
			workload: declaredWorkload(versionB, "hash", 3),
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadRunning)},
			want:     WorkloadPlan{Baselined: true},
		},
		"declared, slipped": {
			workload: declaredWorkload(versionB, "hash", 4),
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadSuccess)},
			want:     WorkloadPlan{Record: &Recording{Version: versionB, Release: 2, Slipped: true}},
		},
		"declared without a generation, slipped": {
			workload: declaredWorkload(versionB, "hash", 0),
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadSuccess)},
			want:     WorkloadPlan{Record: &Recording{Version: versionB, Release: 2, Slipped: true}},
		},
		"declared, stored with another content than admission saw": {
			workload: func() workload.Workload {
				w := declaredWorkload(versionB, "hash", 3)
				delete(w.Labels, processed)
				return w
			}(),
			want: WorkloadPlan{Record: &Recording{Version: versionB, Release: 1, Admitted: Admitted{{versionA, versionB}}}},
		},
		"declared, scaled": {
			workload: declaredWorkload(versionA, "hash", 7),
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadSuccess)},
			want:     WorkloadPlan{EnsureChange: true, Content: "hash 7"},
		},
		"declared, at rest": {
			workload: declaredWorkload(versionA, "hash", 3),
			changes:  []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadSuccess)},
			want:     WorkloadPlan{EnsureChange: true},
		},
		"redeclared, a baseline by now": {
			workload: workload.Workload{
				Version: versionB, Content: &workload.Content{Hash: "hash", Generation: 3}, RevisionCreated: testNow,
				Annotations: labels(rel, "2", v1alpha1.ContentAnnotation, "hash 3"),
			},
			since:   testNow,
			changes: []v1alpha1.ChangeWorkload{change(versionA, 1, v1alpha1.ChangeWorkloadSuccess)},
		},
		"left, blocked by a user": {
			workload:   workload.Workload{Version: versionA, Labels: labels(v, versionA, suspend, "1")},
			unenrolled: true,
		},
		"not enrolled, slipped": {
			workload:   workload.Workload{Version: versionB, Labels: labels(v, versionA)},
			unenrolled: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := WorkloadInput{Workload: &test.workload, Enrolled: !test.unenrolled, Changes: test.changes, History: test.history,
				DefendedSince: test.since, Installed: testNow.Add(-time.Hour), SeenBefore: test.seen}
			if test.installed != nil {
				in.Installed = *test.installed
			}
			got := DecideWorkload(in)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// processedBy returns a workload with the record of versionA, processed.
func processedBy(version, release string, revision time.Time) workload.Workload {
	return workload.Workload{
		Version: version, RevisionCreated: revision, Annotations: map[string]string{v1alpha1.ReleaseAnnotation: release},
		Labels: map[string]string{v1alpha1.VersionLabel: versionA, v1alpha1.DefenseStatusLabel: v1alpha1.DefenseStatusProcessed},
	}
}

// declaredWorkload returns a processed workload of a declared kind, whose record of versionA is of generation 3.
func declaredWorkload(version, hash string, generation int64) workload.Workload {
	w := processedBy(version, "1", time.Time{})
	w.Unstamped, w.Content = true, &workload.Content{Hash: hash, Generation: generation}
	w.Annotations[v1alpha1.ContentAnnotation] = "hash 3"
	return w
}

func begunAt(c v1alpha1.ChangeWorkload, at time.Time) v1alpha1.ChangeWorkload {
	c.Status.StartTimeUnix, c.Status.ObservedRelease = at.Unix(), c.Spec.Release
	return c
}

// TestDefendedSince: an upgrade that adds a kind makes no releases of its existing workloads.
func TestDefendedSince(t *testing.T) {
	at := testNow.Add
	set, deployment := appsv1.SchemeGroupVersion.WithKind("StatefulSet"), appsv1.SchemeGroupVersion.WithKind("Deployment")
	defends := func(kind string, since time.Time) []metav1.Condition {
		return []metav1.Condition{{Type: "Defends" + kind, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(since)}}
	}
	for name, test := range map[string]struct {
		kind                schema.GroupVersionKind
		enrolled, installed time.Time
		conditions          []metav1.Condition
		want                time.Time
	}{
		"enrolled after the installation":           {deployment, at(time.Hour), at(0), nil, at(time.Hour)},
		"enrolled before it":                        {deployment, at(0), at(time.Hour), nil, at(time.Hour)},
		"not enrolled, as far as is known":          {deployment, time.Time{}, at(0), nil, time.Time{}},
		"a kind that is not known yet":              {set, at(time.Hour), at(0), defends("DaemonSet", at(0)), time.Time{}},
		"a kind known since the installation":       {set, at(time.Hour), at(0), defends("StatefulSet", at(time.Second)), at(time.Hour)},
		"a kind known since an upgrade":             {set, at(time.Hour), at(0), defends("StatefulSet", at(2*time.Hour)), at(2 * time.Hour)},
		"a Deployment, whatever else is said of it": {deployment, at(time.Hour), at(0), defends("Deployment", at(2*time.Hour)), at(time.Hour)},
		"not enrolled, of a kind that is known":     {set, time.Time{}, at(0), defends("StatefulSet", at(0)), time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			blocking := &v1alpha1.OpsConfigInfo{}
			blocking.Status.Conditions = append(slices.Clone(test.conditions), metav1.Condition{
				Type: v1alpha1.ConditionInstalled, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(test.installed),
			})
			if got := DefendedSince(test.enrolled, blocking, test.kind); !got.Equal(test.want) {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// TestInstalledSince: while the operator is being removed, or has judged nothing yet, the start is unknown; the setting
// of an older build counts by its age.
func TestInstalledSince(t *testing.T) {
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(testNow.Add(d)) }
	condition := func(kind string, status metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, LastTransitionTime: at(time.Hour)}
	}
	for name, test := range map[string]struct {
		conditions []metav1.Condition
		want       time.Time
	}{
		"noted": {[]metav1.Condition{condition(v1alpha1.ConditionInstalled, metav1.ConditionTrue)}, at(time.Hour).Time},
		"being removed": {[]metav1.Condition{
			condition(v1alpha1.ConditionAccepted, metav1.ConditionTrue), condition(v1alpha1.ConditionInstalled, metav1.ConditionFalse),
		}, time.Time{}},
		"of an older build": {[]metav1.Condition{condition(v1alpha1.ConditionAccepted, metav1.ConditionTrue)}, at(0).Time},
		"not judged yet":    {nil, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			blocking := &v1alpha1.OpsConfigInfo{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(0)}}
			blocking.Status.Conditions = test.conditions
			if got := InstalledSince(blocking); !got.Equal(test.want) {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestVerdictFails(t *testing.T) {
	for verdict, want := range map[string]bool{"": false, "pass": false, "none": false, "fail": true, "inconc": true,
		"unpass": true, "PASS": true} {
		if got := record.VerdictFails(verdict); got != want {
			t.Errorf("%q fails: %t, want %t", verdict, got, want)
		}
	}
}

func TestNamespaceEnrolled(t *testing.T) {
	for _, test := range []struct {
		name, label string
		want        bool
	}{
		{"default", v1alpha1.EnrolledValue, true},
		{"default", "disabled", false},
		{"default", "", false},
		{"kube-system", v1alpha1.EnrolledValue, false},
		{"kube-public", v1alpha1.EnrolledValue, false},
		{"kube-node-lease", v1alpha1.EnrolledValue, false},
	} {
		if got := workload.NamespaceEnrolled(test.name, map[string]string{v1alpha1.EnrolledLabel: test.label}); got != test.want {
			t.Errorf("namespace %s with %q is enrolled: %t, want %t", test.name, test.label, got, test.want)
		}
	}
}

func TestWantsBaseline(t *testing.T) {
	record := func(release int64, state v1alpha1.ChangeWorkloadStatusType) v1alpha1.ChangeWorkload {
		return v1alpha1.ChangeWorkload{Spec: v1alpha1.ChangeWorkloadSpec{Reversion: versionA, Release: release},
			Status: v1alpha1.ChangeWorkloadStatus{Status: state}}
	}
	for name, test := range map[string]struct {
		release string
		changes []v1alpha1.ChangeWorkload
		history []workload.Revision
		keep    int
		want    bool
	}{
		"first release, no record yet": {release: "1", keep: 10, want: true},
		"first release, under way": {release: "1", keep: 10, changes: []v1alpha1.ChangeWorkload{record(1, v1alpha1.ChangeWorkloadRunning)},
			want: true},
		"first release, remembered": {release: "1", keep: 10,
			history: []workload.Revision{{Version: versionB, Release: rollback.BaselineRelease}}},
		// The baseline may have been forgotten, and must not come back.
		"first release, ended":          {release: "1", keep: 1, changes: []v1alpha1.ChangeWorkload{record(1, v1alpha1.ChangeWorkloadSuccess)}},
		"first release, failed":         {release: "1", keep: 1, changes: []v1alpha1.ChangeWorkload{record(1, v1alpha1.ChangeWorkloadSuspend)}},
		"second release, no record yet": {release: "2", keep: 10, want: true},
		"second release, before the first ended": {release: "2", keep: 10, want: true,
			changes: []v1alpha1.ChangeWorkload{record(1, v1alpha1.ChangeWorkloadCanceled), record(2, v1alpha1.ChangeWorkloadRunning)}},
		"second release, and the first succeeded": {release: "2", keep: 10,
			changes: []v1alpha1.ChangeWorkload{record(1, v1alpha1.ChangeWorkloadSuccess), record(2, v1alpha1.ChangeWorkloadRunning)}},
		"second release, and the first is remembered": {release: "2", keep: 10, history: []workload.Revision{{Version: versionB, Release: 1}}},
		"no release":     {release: "0", keep: 10},
		"history is off": {release: "1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1).stored
			w.Annotations[v1alpha1.ReleaseAnnotation] = test.release
			plan := DecideWorkload(WorkloadInput{Workload: w, Enrolled: true, Changes: test.changes, History: test.history, KeepHistory: test.keep})
			if plan.Baseline != test.want {
				t.Errorf("baseline %t, want %t", plan.Baseline, test.want)
			}
		})
	}
}

// TestBaseline: the template before the first release is found also after the second release.
func TestBaseline(t *testing.T) {
	old := func(name, version string) workload.OldRevision {
		number, err := strconv.ParseInt(strings.TrimPrefix(name, "rs-"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return workload.OldRevision{Name: name, Version: version, Number: number}
	}
	stamped := func(name, version string) workload.OldRevision {
		o := old(name, version)
		o.Stamped = true
		return o
	}
	enrolled := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	after := func(name, version string) workload.OldRevision {
		o := old(name, version)
		o.Created = enrolled
		return o
	}
	recorded := []v1alpha1.ChangeWorkload{{Spec: v1alpha1.ChangeWorkloadSpec{Reversion: "recorded"}}}
	for name, test := range map[string]struct {
		release string
		// at is the number of the workload's own revision; 0 while unknown.
		at     int64
		others []workload.OldRevision
		want   string
	}{
		"first release":                     {"1", 3, []workload.OldRevision{old("rs-2", "second"), old("rs-1", "first")}, "rs-2"},
		"first release, of a stamped one":   {"1", 3, []workload.OldRevision{stamped("rs-2", "second"), old("rs-1", "first")}, "rs-2"},
		"first release, created":            {"1", 1, nil, ""},
		"first release, only the label":     {"1", 2, []workload.OldRevision{old("rs-1", versionA)}, ""},
		"first release, not seen":           {"1", 0, []workload.OldRevision{old("rs-1", "first")}, "rs-1"},
		"first release, not numbered":       {"1", -1, []workload.OldRevision{old("rs-1", "first")}, "rs-1"},
		"first release, the second is seen": {"1", 2, []workload.OldRevision{stamped("rs-3", "third"), old("rs-1", "first")}, "rs-1"},
		"the second is seen, the first not": {"1", 0, []workload.OldRevision{stamped("rs-3", "third"), old("rs-1", "first")}, ""},
		"first release, in use again":       {"1", 1, []workload.OldRevision{old("rs-2", "second")}, ""},
		"first release, numbered again":     {"1", 3, []workload.OldRevision{old("rs-2", "second")}, "rs-2"},
		"second release":                    {"2", 3, []workload.OldRevision{stamped("rs-2", "second"), old("rs-1", "first")}, "rs-1"},
		"second release, not seen":          {"2", 0, []workload.OldRevision{stamped("rs-2", "second"), old("rs-1", "first")}, "rs-1"},
		"second release, the first slipped": {"2", 3, []workload.OldRevision{old("rs-2", "recorded"), old("rs-1", "first")}, "rs-1"},
		"second release, it is gone":        {"2", 3, []workload.OldRevision{stamped("rs-2", "second")}, ""},
		"third release, of several": {"3", 4, []workload.OldRevision{stamped("rs-3", "third"), old("rs-2", "second"), old("rs-1", "first")},
			"rs-2"},
		"second release, undone to the same": {"2", 3, []workload.OldRevision{stamped("rs-2", "second"), old("rs-1", versionA)}, ""},
		"second release, a third slips": {"2", 3, []workload.OldRevision{old("rs-4", "third"), stamped("rs-2", "second"), old("rs-1", "first")},
			"rs-1"},
		// A revision from after the enrolment is a release, with or without a record.
		"first release, another slipped":           {"1", 3, []workload.OldRevision{after("rs-2", "slipped"), old("rs-1", "first")}, "rs-1"},
		"first release, only another slipped":      {"1", 2, []workload.OldRevision{after("rs-1", "slipped")}, ""},
		"first release, not seen, nor the second":  {"1", 0, []workload.OldRevision{after("rs-1", "second")}, ""},
		"first release, seen before the enrolment": {"1", 2, []workload.OldRevision{after("rs-1", "seen before")}, "rs-1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1).stored
			w.Annotations[v1alpha1.ReleaseAnnotation], w.RevisionNumber = test.release, test.at
			got := ""
			in := WorkloadInput{Workload: w, Changes: recorded, DefendedSince: enrolled, SeenBefore: "seen before"}
			if r := in.Baseline(test.others); r != nil {
				got = r.Name
			}
			if got != test.want {
				t.Errorf("the baseline is %q, want %q", got, test.want)
			}
		})
	}
}
