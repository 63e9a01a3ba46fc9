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
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// WorkloadInput is what a decision about a workload's record is made from.
type WorkloadInput struct {
	Now      time.Time
	Workload *workload.Workload
	// Enrolled says that the namespace is enrolled.
	Enrolled bool
	// Observe: the workload is in observe mode.
	Observe bool
	// Changes are the ChangeWorkloads owned by this very workload (by UID).
	Changes []v1alpha1.ChangeWorkload
	// DefendedSince is from when on admission should have seen every release
	// of this workload: its namespace was enrolled, the operator installed, and it knew
	// the kind.
	// Zero when that is not known.
	DefendedSince time.Time
	// Installed is since when this installation runs; zero while that is not known.
	Installed time.Time
	// History are the successful versions of the workload that are remembered, and
	// KeepHistory how many are.
	History     []workload.Revision
	KeepHistory int
	// SeenBefore is the version of the template the workload was seen with
	// before it was enrolled; empty when it was not.
	SeenBefore string
}

// WorkloadPlan is what to do about a workload's record. At most one of TakeBack,
// LetGo, Baselined and Record is set; EnsureChange and what follows it only without them.
type WorkloadPlan struct {
	// TakeBack: the workload left the defense, or is in observe mode from now on;
	// remove the operator's block and its pause, and give back what a hold changed.
	TakeBack bool
	// LetGo: another object owns the workload, so that it is in observe mode; take back
	// what halts or holds it, which the owner would fight. A block stays until somebody
	// lifts it.
	LetGo bool
	// Baselined: the record on the workload is of an earlier installation, and proves nothing
	// of the version that runs. It goes, with requests that lie there and the hold.
	Baselined bool
	// Resumed: somebody resumed what the operator had paused; what says so goes.
	Resumed bool
	// Record: write version and number of the release on the workload, never
	// on its template.
	Record *Recording
	// Baseline: the template before the workload's first release is to be
	// remembered, if it can be found.
	Baseline bool
	// EnsureChange: the version must have its ChangeWorkload.
	EnsureChange bool
	// Processed: the workload is to say that it has.
	Processed bool
	// HandBack: the fields of the template have to be given back to the field
	// manager that applies the workload.
	HandBack bool
	// Override is to be reported, once.
	Override *record.Override
	// Unquarantined is to be reported, once, and Unquarantine to be carried out,
	// which admission did not see.
	Unquarantined *rollback.Unquarantined
	Unquarantine  string
}

// Recording is what admission would have written, had it seen the release.
type Recording struct {
	Version string
	Release int64
	// Slipped: this is a release that passed admission unseen; otherwise only
	// the record of a known release was lost.
	Slipped bool
	// Override is set when the release passed a block or a quarantine by
	// IgnoredSuspendLabel, and admission did not see that: it uses the label up.
	Override *record.Override
	// Admitted is what is remembered from now on of templates that were stored
	// otherwise than admission saw them.
	Admitted Admitted
}

// DecideWorkload says what to do about the record of a workload: which version
// it releases, and that this version has its ChangeWorkload.
func DecideWorkload(in WorkloadInput) WorkloadPlan {
	w := in.Workload
	if w.Deleting {
		return WorkloadPlan{}
	}
	stopped := w.Annotations[v1alpha1.HaltedAnnotation] != "" || w.Hold != nil
	held := hasOwnBlock(w) || stopped
	switch {
	case !in.Enrolled || workload.OptedOut(w.Labels):
		return WorkloadPlan{TakeBack: held && !record.AnyOpen(in.Changes)}
	case in.Observe && held:
		return WorkloadPlan{TakeBack: true}
	case w.ObservingOwner() != "" && stopped:
		return WorkloadPlan{LetGo: true}
	}
	if first, unknown := in.ofEarlierInstallation(); first || unknown {
		return WorkloadPlan{Baselined: first} // decided again once it is known
	}
	if r := decideRecord(in); r != nil {
		return WorkloadPlan{Record: r}
	}
	if w.RecordedVersion() == "" {
		return WorkloadPlan{} // a baseline, until its template changes
	}
	plan := WorkloadPlan{
		EnsureChange: true,
		Resumed:      !w.Paused && w.Annotations[v1alpha1.HaltedAnnotation] != "",
		Processed:    w.Labels[v1alpha1.DefenseStatusLabel] != v1alpha1.DefenseStatusProcessed,
	}
	if o, ok := record.ParseOverride(w.Annotations[v1alpha1.OverrideAnnotation]); ok &&
		w.Annotations[v1alpha1.OverrideReportedAnnotation] != o.ResourceVersion {
		plan.Override = &o
	}
	plan.Baseline, plan.HandBack = in.wantsBaseline(), w.HandBack
	if u, ok := rollback.ParseUnquarantined(w.Annotations[v1alpha1.UnquarantinedAnnotation]); ok {
		plan.Unquarantined = &u
	}
	plan.Unquarantine = w.Annotations[v1alpha1.UnquarantineAnnotation]
	return plan
}

// wantsBaseline says that no release of the workload has ended but by the next
// one, and that the template before the first is not remembered. Later it is not
// looked for: what is the template before, and good, can only be told at first.
func (in *WorkloadInput) wantsBaseline() bool {
	if in.KeepHistory == 0 || in.Workload.Release() == 0 || len(in.History) > 0 {
		return false
	}
	return !slices.ContainsFunc(in.Changes, func(c v1alpha1.ChangeWorkload) bool {
		return !record.IsOpen(c.Status.Status) && c.Status.Status != v1alpha1.ChangeWorkloadCanceled
	})
}

// Baseline is the revision that a workload was at before its first release under
// defense, of its other revisions, the newest first; nil when it is gone. A revision that was
// made while defended is a release that nobody recorded. After
// the second release it is the newest one that is not known to be a release. One that
// is newer than the workload's is of a release of which the workload is not seen yet:
// caches of two kinds do not keep step.
func (in *WorkloadInput) Baseline(others []workload.OldRevision) *workload.OldRevision {
	w := in.Workload
	released := func(old workload.OldRevision) bool {
		return old.Stamped || slices.ContainsFunc(in.Changes, func(c v1alpha1.ChangeWorkload) bool { return c.Spec.Reversion == old.Version })
	}
	others = slices.DeleteFunc(slices.Clone(others), func(old workload.OldRevision) bool {
		return w.RevisionNumber > 0 && old.Number > w.RevisionNumber || in.defended(old.Version, old.Created)
	})
	i := slices.IndexFunc(others, func(old workload.OldRevision) bool { return w.Release() == 1 || !released(old) })
	switch {
	case i < 0 || others[i].Version == w.Version:
		return nil
	case w.RevisionNumber <= 0 && released(others[i]):
		return nil // before the workload's, or after it: that is told once it is seen
	}
	return &others[i]
}

// ofEarlierInstallation reports whether a record on the workload was made by an earlier installation, and
// its template is older than the defense by this one. It is unknown while nothing says when
// this installation began. A record that the operator has not processed yet is new, and so is one
// with a ChangeWorkload that this installation began.
func (in *WorkloadInput) ofEarlierInstallation() (first, unknown bool) {
	w := in.Workload
	if w.RecordedVersion() == "" || w.Labels[v1alpha1.DefenseStatusLabel] != v1alpha1.DefenseStatusProcessed {
		return false, false
	}
	if in.Installed.IsZero() {
		return false, true
	}
	since := in.Installed
	if w.Version != w.RecordedVersion() {
		since = times.Latest(since, in.DefendedSince) // released while the namespace was not enrolled
	}
	if in.actedSince(since) {
		return false, false
	}
	for i := range in.Changes {
		c := &in.Changes[i]
		began := max(c.Spec.CreateTimeUnix, c.Status.StartTimeUnix)
		if began >= since.Unix() || c.Spec.Release >= w.Release() && c.Status.Attempt > 0 && c.Status.ObservedRelease < c.Spec.Release {
			return false, false
		}
	}
	return !w.RevisionCreated.IsZero() && w.RevisionCreated.Before(since), false
}

// actedSince reports whether this installation blocked the workload or put a version of it into
// quarantine: a record that was deleted since is not first sight.
func (in *WorkloadInput) actedSince(since time.Time) bool {
	blocked, err := strconv.ParseInt(in.Workload.Labels[v1alpha1.SuspendLabel], 10, 64)
	if err == nil && hasOwnBlock(in.Workload) && blocked >= since.Unix() {
		return true
	}
	for _, why := range rollback.ParseQuarantine(in.Workload.Annotations, since).Reasons {
		if at, err := time.Parse(time.RFC3339, why.Time); err == nil && !at.Before(since.Truncate(time.Second)) {
			return true
		}
	}
	return false
}

// InstalledBefore is since when an installation runs at the latest, by when its settings were
// judged first; zero when none was.
func InstalledBefore(operator []v1alpha1.OpsConfigInfo) (since time.Time) {
	for i := range operator {
		judged := meta.FindStatusCondition(operator[i].Status.Conditions, v1alpha1.ConditionAccepted)
		if judged != nil && (since.IsZero() || judged.LastTransitionTime.Time.Before(since)) {
			since = judged.LastTransitionTime.Time
		}
	}
	return since
}

// decideRecord compares what the workload says of itself with its template.
// Releases are numbered, so the newest ChangeWorkload tells a record that was
// lost from a release that slipped, and both from one that admission counted and
// that led to another template than it saw.
func decideRecord(in WorkloadInput) *Recording {
	w := in.Workload
	recorded, release := w.RecordedVersion(), w.Release()
	newest := newestChange(in.Changes)

	var newestVersion string
	var newestRelease int64
	if newest != nil {
		newestVersion, newestRelease = newest.Spec.Reversion, newest.Spec.Release
	}
	known := in.knownRelease(newestRelease)
	switch {
	case release > known+workload.MaxReleasesUnseen && recorded == w.Version:
		// Not the number of the newest record: because of this one it may have ended.
		return &Recording{Version: w.Version, Release: workload.NextRelease(known), Admitted: in.admitted(false, false)}
	case release > known+workload.MaxReleasesUnseen:
		release = known
	}
	led := in.ledTo(release, known)
	r := &Recording{Version: w.Version, Release: max(newestRelease, release, 1), Admitted: in.admitted(led, false)}
	switch {
	case recorded == w.Version && release >= max(newestRelease, 1):
		return nil
	case recorded == "" && (newest == nil || release > newestRelease) && !in.missedByAdmission():
		return nil // a baseline: at first sight it gets a number that no record has
	case newestVersion == w.Version, newest == nil && recorded == w.Version:
		return r
	}
	user := w.ReleasedBy()
	if !led {
		user = workload.UnknownUser
		r.Release, r.Slipped, r.Admitted = workload.NextRelease(max(newestRelease, release)), true, in.admitted(false, true)
	}
	if (w.Blocked() || rollback.ParseQuarantine(w.Annotations, in.Now).Holds(w.Version)) && overrideWaits(w) {
		r.Override = &record.Override{Version: w.Version, ResourceVersion: w.ResourceVersion, User: user}
	}
	return r
}

// knownRelease is the largest number of a release of the workload that something
// but the workload itself remembers.
func (in *WorkloadInput) knownRelease(newest int64) int64 {
	for i := range in.History {
		newest = max(newest, in.History[i].Release)
	}
	return newest
}

// missedByAdmission says that a workload without any record has nevertheless
// released while defended: its current revision is not older than that. Workloads
// that were there before are baselines. Times are in seconds, so within one
// second it cannot be told: the release is verified then, which restarts
// nothing, rather than missed; unless the workload was seen before.
func (in *WorkloadInput) missedByAdmission() bool {
	return in.defended(in.Workload.Version, in.Workload.RevisionCreated)
}

// defended reports whether a revision of the workload was made while defended.
func (in *WorkloadInput) defended(version string, created time.Time) bool {
	return in.SeenBefore != version && !in.DefendedSince.IsZero() && !created.IsZero() && !created.Before(in.DefendedSince)
}

func newestChange(changes []v1alpha1.ChangeWorkload) *v1alpha1.ChangeWorkload {
	var newest *v1alpha1.ChangeWorkload
	for i := range changes {
		if newest == nil || changes[i].Spec.Release > newest.Spec.Release {
			newest = &changes[i]
		}
	}
	return newest
}

// overrideWaits says that a user asked to pass the block and no release has
// used that up yet.
func overrideWaits(w *workload.Workload) bool {
	_, stale := w.Annotations[v1alpha1.OverrideStaleAnnotation]
	return w.Labels[v1alpha1.IgnoredSuspendLabel] == v1alpha1.IgnoredSuspendValue && !stale
}

// hasOwnBlock says that the workload's block was set by the operator.
func hasOwnBlock(w *workload.Workload) bool {
	return w.Blocked() && w.Annotations[v1alpha1.SuspendedByAnnotation] != ""
}

// DefendedSince is from when on admission should have seen every release of a workload of
// a kind: the latest of the enrolment of its namespace, of the installation of the
// operator, and of the upgrade from which on it knows the kind. Zero where one of them is
// not known. Blocking is the operator's own setting of this name.
func DefendedSince(enrolled time.Time, blocking *v1alpha1.OpsConfigInfo, kind schema.GroupVersionKind) time.Time {
	if enrolled.IsZero() {
		return enrolled
	}
	installed := InstalledSince(blocking)
	if installed.IsZero() {
		return installed
	}
	since := []time.Time{enrolled, installed}
	if name := ConditionOfKind(kind); name != "" {
		known := meta.FindStatusCondition(blocking.Status.Conditions, name)
		if known == nil {
			return time.Time{}
		}
		since = append(since, known.LastTransitionTime.Time)
	}
	return slices.MaxFunc(since, time.Time.Compare)
}

// InstalledSince is since when this installation of the operator runs, as the condition
// Installed of its setting blocking says; zero where it is not known, or the operator was
// told to leave. A setting that an older build has judged has no such condition.
func InstalledSince(blocking *v1alpha1.OpsConfigInfo) time.Time {
	said := meta.FindStatusCondition(blocking.Status.Conditions, v1alpha1.ConditionInstalled)
	switch {
	case said != nil && said.Status == metav1.ConditionTrue:
		return said.LastTransitionTime.Time
	case said == nil && meta.FindStatusCondition(blocking.Status.Conditions, v1alpha1.ConditionAccepted) != nil:
		return blocking.CreationTimestamp.Time
	default:
		return time.Time{}
	}
}

// ConditionOfKind is the condition of the setting blocking that says since when workloads
// of a kind are defended; empty for Deployments, which all versions do.
func ConditionOfKind(kind schema.GroupVersionKind) string {
	if kind == appsv1.SchemeGroupVersion.WithKind("Deployment") {
		return ""
	}
	return v1alpha1.DefendsConditionPrefix + kind.Kind
}

// admitted is what AdmittedAnnotation is to say once the template that is stored is
// recorded.
func (in *WorkloadInput) admitted(led, slipped bool) Admitted {
	w := in.Workload
	recorded := w.RecordedVersion()
	a := ParseAdmitted(w.Annotations[v1alpha1.AdmittedAnnotation])
	switch {
	case led:
		return a.With(recorded, w.Version)
	case slipped:
		// Maybe what led to the version that was left leads elsewhere now.
		return a.without(func(t AdmittedTemplate) bool { return t.Stored == recorded || t.Seen == w.Version })
	default:
		return a
	}
}

// ledTo says that the template that is stored is what the newest release that
// admission counted led to, although admission saw another one: nobody has recorded
// that release, its mark is on the template, where templates are marked, and what
// admission saw has no pods.
// Otherwise the template changed past admission since. Where that came before
// anybody looked, it cannot be told apart; then the release has the template that is
// stored all the same, and only the user may be wrong.
func (in *WorkloadInput) ledTo(release, known int64) bool {
	w := in.Workload
	recorded := w.RecordedVersion()
	return recorded != "" && recorded != w.Version && (recorded == w.Stamp || w.Unstamped) && release > known &&
		w.Labels[v1alpha1.DefenseStatusLabel] == "" &&
		!slices.ContainsFunc(w.OldRevisions, func(old workload.OldRevision) bool { return old.Version == recorded })
}
