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

// WorkloadInput is the input of a decision about the record of a workload.
type WorkloadInput struct {
	Now      time.Time
	Workload *workload.Workload
	// Enrolled reports whether the namespace is enrolled.
	Enrolled bool
	// Observe reports whether the workload is in observe mode.
	Observe bool
	// Changes are the ChangeWorkloads that the workload owns, by UID.
	Changes []v1alpha1.ChangeWorkload
	// DefendedSince is when admission began to see every release of this workload: its namespace was enrolled, the
	// operator installed, and its kind supported. Zero while unknown.
	DefendedSince time.Time
	// Installed is when this installation began; zero while unknown.
	Installed time.Time
	// History are the remembered successful versions of the workload, at most KeepHistory.
	History     []workload.Revision
	KeepHistory int
	// SeenBefore is the version of the workload's template before its enrolment; empty when unknown.
	SeenBefore string
	// Rebaselines: versions of this kind are computed by other rules than the recorded ones were.
	Rebaselines bool
}

// WorkloadPlan is what to do about the record of a workload. At most one of TakeBack, LetGo, Baselined and Record is
// set; EnsureChange and the fields after it only without them.
type WorkloadPlan struct {
	// TakeBack: the workload left the defense, or is now in observe mode; remove the operator's block and pause, and
	// restore the pace that a hold changed.
	TakeBack bool
	// LetGo: another object owns the workload, so it is in observe mode; undo its halt or hold, which the owner would
	// fight. A block stays until a user lifts it.
	LetGo bool
	// Baselined: the record on the workload is from an earlier installation, or of another declaration of the content. It
	// proves nothing about the running version. Remove it, with its requests and its hold.
	Baselined bool
	// Resumed: a user resumed the operator's pause; remove the annotation of the halt.
	Resumed bool
	// Record is the version and the number of the release to write on the workload, never on its template.
	Record *Recording
	// Baseline: remember the template before the workload's first release, if it is found.
	Baseline bool
	// EnsureChange: the version must have its ChangeWorkload.
	EnsureChange bool
	// Processed: label the workload as processed.
	Processed bool
	// Content is the new value of ContentAnnotation; empty if it stays.
	Content string
	// HandBack: give the fields of the template back to the field manager that applies the workload.
	HandBack bool
	// Override is to be reported, once.
	Override *record.Override
	// Unquarantined is to be reported, once. Unquarantine is a request that admission missed, to be carried out.
	Unquarantined *rollback.Unquarantined
	Unquarantine  string
}

// Recording is the record that admission would have written if it had seen the release.
type Recording struct {
	Version string
	Release int64
	// Slipped: admission missed this release; otherwise only the record of a known release was lost.
	Slipped bool
	// Override is set when the release passed a block or a quarantine by IgnoredSuspendLabel and admission missed it:
	// writing it uses up the label.
	Override *record.Override
	// Admitted is the new value of AdmittedAnnotation.
	Admitted Admitted
}

// DecideWorkload returns the plan for the record of a workload: its version and release, and its ChangeWorkload.
func DecideWorkload(in WorkloadInput) WorkloadPlan {
	w := in.Workload
	if w.Deleting {
		return WorkloadPlan{}
	}
	marks := w.Marks()
	switch {
	case !in.Enrolled || workload.OptedOut(w.Labels):
		return WorkloadPlan{TakeBack: marks.Any() && !record.AnyOpen(in.Changes)}
	case in.Observe && marks.Any():
		return WorkloadPlan{TakeBack: true}
	case w.ObservingOwner() != "" && (marks.Halted || marks.Held):
		return WorkloadPlan{LetGo: true}
	}
	if in.Rebaselines && w.RecordedVersion() != "" && w.RecordedVersion() != w.Version {
		return WorkloadPlan{Baselined: true}
	}
	if first, unknown := in.ofEarlierInstallation(); first || unknown {
		return WorkloadPlan{Baselined: first} // decided again once it is known
	}
	if in.isRedeclared() {
		return WorkloadPlan{Baselined: true}
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
		Content:      w.UnrecordedContent(),
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

// wantsBaseline reports whether every release of the workload is open or was replaced while open, and the template
// before the first release is not remembered. Later, a good earlier template cannot be recognized.
func (in *WorkloadInput) wantsBaseline() bool {
	if in.KeepHistory == 0 || in.Workload.Release() == 0 || len(in.History) > 0 {
		return false
	}
	return !slices.ContainsFunc(in.Changes, func(c v1alpha1.ChangeWorkload) bool {
		return !record.IsOpen(c.Status.Status) && c.Status.Status != v1alpha1.ChangeWorkloadCanceled
	})
}

// Baseline returns the revision of a workload before its first defended release, from its other revisions, the newest
// first; nil when it is gone. A revision that was created while defended is an unrecorded release. After the second
// release, the baseline is the newest revision that is not known to be a release. A revision newer than the workload's
// belongs to a release that the cache of workloads does not show yet.
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
		return nil // before or after the workload's revision, which is not known yet
	}
	return &others[i]
}

// ofEarlierInstallation reports whether an earlier installation made the record on the workload, and its template is
// older than the defense by this installation. It is unknown until the start of this installation is known. A record
// that the operator has not processed yet is new, and so is a record with a ChangeWorkload that this installation
// began.
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
	if w.Content != nil && w.Version != w.RecordedVersion() &&
		(in.SeenBefore == w.Version || !w.Written.IsZero() && w.Written.Before(since)) {
		return true, false // a changed object of a declared kind has no revision
	}
	return !w.RevisionCreated.IsZero() && w.RevisionCreated.Before(since), false
}

// isRedeclared reports whether the recorded version is of another declaration of the content, or of other defaults of a
// CustomResourceDefinition: the version differs, but no one wrote the content. A release whose stored content differs from the
// content that admission saw is none of both.
func (in *WorkloadInput) isRedeclared() bool {
	w, newest := in.Workload, int64(0)
	if recorded := w.RecordedVersion(); recorded == "" || recorded == w.Version || !w.Unwritten() {
		return false
	}
	if c := newestChange(in.Changes); c != nil {
		newest = c.Spec.Release
	}
	return !in.ledTo(w.Release(), in.knownRelease(newest))
}

// actedSince reports whether this installation blocked the workload or quarantined a version of it: then its record
// existed and was deleted.
func (in *WorkloadInput) actedSince(since time.Time) bool {
	blocked, err := strconv.ParseInt(in.Workload.Labels[v1alpha1.SuspendLabel], 10, 64)
	if err == nil && in.Workload.Marks().Blocked && blocked >= since.Unix() {
		return true
	}
	for _, why := range rollback.ParseQuarantine(in.Workload.Annotations, since).Reasons {
		if at, err := time.Parse(time.RFC3339, why.Time); err == nil && !at.Before(since.Truncate(time.Second)) {
			return true
		}
	}
	return false
}

// InstalledBefore returns the latest possible start of an installation: the time at which its settings were first
// accepted or rejected; zero if they were not.
func InstalledBefore(operator []v1alpha1.OpsConfigInfo) (since time.Time) {
	for i := range operator {
		judged := meta.FindStatusCondition(operator[i].Status.Conditions, v1alpha1.ConditionAccepted)
		if judged != nil && (since.IsZero() || judged.LastTransitionTime.Time.Before(since)) {
			since = judged.LastTransitionTime.Time
		}
	}
	return since
}

// decideRecord compares the record on the workload with its template. The numbers of releases distinguish a lost record
// from a release that slipped, and both from a release that admission counted but whose stored template differs from
// the template that admission saw.
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
		// Not the number of the newest record, which this one may have ended.
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
		return nil // a baseline: it gets a number that no record has
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

// knownRelease returns the largest release number in the ChangeWorkloads and the history of the workload.
func (in *WorkloadInput) knownRelease(newest int64) int64 {
	for i := range in.History {
		newest = max(newest, in.History[i].Release)
	}
	return newest
}

// missedByAdmission reports whether a workload without any record was released while defended: its current revision is
// not older than its defense. Workloads from before are baselines. Times are in seconds, so within the same second the
// release is verified, which restarts nothing, unless the workload was seen before. Nor is a workload missed whose
// declaration changed.
func (in *WorkloadInput) missedByAdmission() bool {
	return !in.Workload.Unwritten() && in.defended(in.Workload.Version, in.Workload.RevisionCreated)
}

// defended reports whether a revision of the workload was created while defended.
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

// overrideWaits reports whether a user asked to pass the block and no release has used that up yet.
func overrideWaits(w *workload.Workload) bool {
	_, stale := w.Annotations[v1alpha1.OverrideStaleAnnotation]
	return w.Labels[v1alpha1.IgnoredSuspendLabel] == v1alpha1.IgnoredSuspendValue && !stale
}

// DefendedSince returns when admission began to see every release of a workload of a kind: the latest of the enrolment
// of its namespace, the installation of the operator, and the upgrade that added the kind. Zero if one of them is
// unknown. Blocking is the operator's own setting of this name.
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

// DeclaredSince is DefendedSince for a kind that a ChangeKind declares: while it is Ready, admission sees every release.
func DeclaredSince(enrolled time.Time, blocking *v1alpha1.OpsConfigInfo, c *v1alpha1.ChangeKind) time.Time {
	installed := InstalledSince(blocking)
	if c == nil || enrolled.IsZero() || installed.IsZero() || !meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionReady) {
		return time.Time{}
	}
	ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionReady).LastTransitionTime.Time
	return slices.MaxFunc([]time.Time{enrolled, installed, ready}, time.Time.Compare)
}

// InstalledSince returns when this installation of the operator began, from the condition Installed of its setting
// blocking; zero if unknown, or while the operator is being removed. A setting that only an older build judged has no
// such condition.
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

// ConditionOfKind returns the condition type of the setting blocking whose transition time is the start of the defense
// of a kind; empty for Deployments, which all versions defend.
func ConditionOfKind(kind schema.GroupVersionKind) string {
	if kind == appsv1.SchemeGroupVersion.WithKind("Deployment") {
		return ""
	}
	return v1alpha1.DefendsConditionPrefix + kind.Kind
}

// admitted returns the value of AdmittedAnnotation after the stored template is recorded.
func (in *WorkloadInput) admitted(led, slipped bool) Admitted {
	w := in.Workload
	recorded := w.RecordedVersion()
	a := ParseAdmitted(w.Annotations[v1alpha1.AdmittedAnnotation])
	switch {
	case led:
		return a.With(recorded, w.Version)
	case slipped:
		// The template that led to the replaced version may lead elsewhere now.
		return a.without(func(t AdmittedTemplate) bool { return t.Stored == recorded || t.Seen == w.Version })
	default:
		return a
	}
}

// ledTo reports whether the stored template is the result of the newest release that admission counted, although
// admission saw another template: the release is not recorded, its mark is on the template, where templates are marked,
// and the template that admission saw has no pods. Otherwise the template was changed past admission later. If both
// happened before the first decision, they cannot be distinguished; then the recorded template is right, and only its
// user may be wrong.
func (in *WorkloadInput) ledTo(release, known int64) bool {
	w := in.Workload
	recorded := w.RecordedVersion()
	return recorded != "" && recorded != w.Version && (recorded == w.Stamp || w.Unstamped) && release > known &&
		w.Labels[v1alpha1.DefenseStatusLabel] == "" &&
		!slices.ContainsFunc(w.OldRevisions, func(old workload.OldRevision) bool { return old.Version == recorded })
}
