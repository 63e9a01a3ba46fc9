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
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// Needs says who has to do something about a finding.
type Needs string

// Values of Needs, the most pressing first.
const (
	// NeedsAttention: it stays so until somebody does something.
	NeedsAttention Needs = "Attention"
	// NeedsTime: something is waited for, and it goes on by itself.
	NeedsTime Needs = "Time"
	// NeedsNothing: it is told so that nobody wonders.
	NeedsNothing Needs = "Nothing"
	// NeedsNoWord: all is as it should be, which is told only where everything is.
	NeedsNoWord Needs = "Fine"
)

// Finding is one thing that there is to say about a workload.
type Finding struct {
	// Code is one word, for programs.
	Code string `json:"code"`
	// Needs says who has to do something about it: Attention, Time or Nothing; Fine is
	// what is as it should be.
	Needs Needs `json:"needs"`
	// What is the word for it in a list.
	What string `json:"what"`
	// Says is a sentence, Details are more of them: what the operator says.
	Says    string   `json:"says"`
	Details []string `json:"details,omitempty"`
	// Since is since when it is so.
	Since *metav1.Time `json:"since,omitempty"`
	// ReleasedBy is who released what it is about.
	ReleasedBy string `json:"releasedBy,omitempty"`
	// Do is what may be done about it, what is right most often first.
	Do []Advice `json:"do,omitempty"`
}

// Advice is a command that may be typed, and what it does.
type Advice struct {
	Command string `json:"command"`
	// Does says what the command does, and when it is right.
	Does string `json:"does"`
}

// Findings are what there is to say about a workload, the most pressing first. They
// depend on what was observed, and on the time, alone.
func Findings(s *sight, a advisor, now time.Time) []Finding {
	f := &finder{sight: s, advisor: a, now: now}
	switch {
	case s.enrolledKnown && !s.enrolled:
		f.notEnrolled()
		return f.all
	case s.optedOut():
		f.optedOutFinding()
		return f.all
	}
	f.observedFinding()
	f.failed()
	f.records()
	f.leftVersions()
	f.conditions()
	f.downPods()
	f.withoutServer()
	f.overrideLabel()
	f.unusableSettings()
	slices.SortStableFunc(f.all, func(a, b Finding) int { return cmp.Compare(a.Needs.rank(), b.Needs.rank()) })
	f.adviseOnce()
	return f.all
}

// adviseOnce leaves to a finding what the more pressing ones have not told already. While
// releases are blocked an ordinary one is denied, so none is told of.
func (f *finder) adviseOnce() {
	told := map[string]bool{}
	if f.blocked() != nil {
		told[f.releaseAnother(f.sight).Command] = true
	}
	for i := range f.all {
		f.all[i].Do = slices.DeleteFunc(f.all[i].Do, func(a Advice) bool {
			before := told[a.Command]
			told[a.Command] = true
			return before
		})
	}
}

func (n Needs) rank() int {
	return slices.Index([]Needs{NeedsAttention, NeedsTime, NeedsNothing, NeedsNoWord}, n)
}

// finder finds them for one workload.
type finder struct {
	*sight
	advisor
	now time.Time
	all []Finding
	// told are the conditions of the current release that a finding has told of.
	told []string
}

func (f *finder) add(found Finding) { f.all = append(f.all, found) }

func (f *finder) notEnrolled() {
	found := Finding{
		Code: "NotEnrolled", Needs: NeedsNothing, What: "not defended",
		Says: fmt.Sprintf("The namespace %s is not enrolled: releases of this workload are not verified, and nothing stops them.", f.workload.Namespace),
		Do:   []Advice{f.observeFirst(), f.enroll()},
	}
	if f.mistyped != "" {
		found.Needs, found.Details = NeedsAttention, []string{"A label of the namespace has no effect: " + f.mistyped + "."}
	}
	f.add(found)
}

func (f *finder) optedOutFinding() {
	_, message := f.defense()
	held := defense.DeniedBy(f.workload.Labels, f.workload.Annotations, f.now)
	found := Finding{
		Code: "OptedOut", Needs: NeedsNothing, What: "opted out",
		Says:    "The workload is taken out of the defense: its releases are not verified, and nothing stops them.",
		Details: []string{message}, Do: []Advice{f.optIn()},
	}
	if len(held.Quarantine) > 0 {
		found.Details = append(found.Details, fmt.Sprintf("%s in quarantine again once it is opted in.", countOf(len(held.Quarantine), "version is", "versions are")))
	}
	f.add(found)
}

func (f *finder) observedFinding() {
	level, message := f.defense()
	if level != DefenseObserved {
		return
	}
	if c := f.condition(v1alpha1.ConditionDefended); c == nil || c.Reason != v1alpha1.ReasonWriteDenied {
		f.tell(v1alpha1.ConditionDefended)
	}
	f.add(Finding{
		Code: "Observed", Needs: NeedsNothing, What: "observed",
		Says:    "The workload is in observe mode: its releases are verified and reported. Nothing is blocked, paused, rolled back or denied.",
		Details: []string{message}, Do: f.defendFully(f.sight),
	})
}

// condition of the current release.
func (f *finder) condition(kind string) *metav1.Condition {
	c := f.current()
	if c == nil {
		return nil
	}
	return meta.FindStatusCondition(c.Status.Conditions, kind)
}

// tell notes that conditions are told.
func (f *finder) tell(kinds ...string) { f.told = append(f.told, kinds...) }

// failed tells of a block, and of a release that failed and is not blocked.
func (f *finder) failed() {
	b, c := f.blocked(), f.current()
	suspended := c != nil && c.Status.Status == v1alpha1.ChangeWorkloadSuspend
	switch {
	case b == nil && !suspended:
		return
	case b != nil && b.ByUser:
		f.blockedByUser(b)
		return
	case b != nil:
		f.blockedByRelease(b, suspended)
		return
	}
	f.suspended(c)
}

func (f *finder) blockedByUser(b *Blocked) {
	f.add(Finding{
		Code: "BlockedByUser", Needs: NeedsAttention, What: "blocked by hand", Since: b.Since,
		Says: "Somebody blocked releases by hand: each change of the pod template is denied.",
		Do: []Advice{f.override(f.sight), {
			f.kubectl("label", f.target, v1alpha1.SuspendLabel+"-", v1alpha1.IgnoredSuspendLabel+"="+v1alpha1.IgnoredSuspendValue),
			"lifts the block; right when who set it agrees",
		}},
	})
}

func (f *finder) blockedByRelease(b *Blocked, suspended bool) {
	found := Finding{
		Code: "Blocked", Needs: NeedsAttention, What: "blocked", Since: b.Since,
		Says: fmt.Sprintf("Releases are blocked, because %s failed its verification: each change of the pod template is denied, except an override release and an undo.",
			releaseName(b.Release, b.Version)),
		ReleasedBy: f.releaserOf(b.Release, b.Version),
	}
	if b.Because != "" {
		found.Details = append(found.Details, b.Because)
	}
	c := f.current()
	overriding := c != nil && c.Spec.Release > b.Release && defense.IsOpen(c.Status.Status)
	if p := f.paused(); p != nil && p.ByOperator {
		found.What += ", halted"
		found.Details = append(found.Details, "The operator "+p.words().Halted()+" the rollout"+p.words().Means()+", so that no more pods are replaced by this version.")
		f.tell(v1alpha1.ConditionProgressing)
	}
	if overriding {
		found.Needs, found.Says = NeedsTime, fmt.Sprintf("Releases are blocked, because %s failed its verification. The override release, %s, is being verified: its success lifts the block.",
			releaseName(b.Release, b.Version), releaseName(c.Spec.Release, c.Spec.Reversion))
		found.Do = []Advice{f.watch(), f.wait()}
		f.add(found)
		return
	}
	f.tell(v1alpha1.ConditionBlocked)
	if suspended {
		f.tell(v1alpha1.ConditionVerified, v1alpha1.ConditionHeld)
		f.tellServer()
	}
	found.Do = append(f.waysOut(), f.resumeHalted()...)
	f.add(found)
}

// tellServer leaves the failing check of the order to the finding about the release.
func (f *finder) tellServer() {
	if c := f.condition(v1alpha1.ConditionServer); c != nil && (c.Reason == v1alpha1.ReasonCheckFailed || c.Reason == v1alpha1.ReasonChecking) {
		f.tell(v1alpha1.ConditionServer)
	}
}

// suspended tells of a release that failed, while the workload is not blocked.
func (f *finder) suspended(c *v1alpha1.ChangeWorkload) {
	found := Finding{
		Code: "Failed", Needs: NeedsAttention, What: "failed, not blocked", Since: unixTime(c.Status.UpdateTimeUnix),
		Says:       fmt.Sprintf("%s failed its verification. The workload is not blocked: the next release passes.", capital(releaseName(c.Spec.Release, c.Spec.Reversion))),
		ReleasedBy: f.releaserOf(c.Spec.Release, c.Spec.Reversion),
	}
	if verified := f.condition(v1alpha1.ConditionVerified); verified != nil {
		found.Details = append(found.Details, cmp.Or(defense.Detail(verified), verified.Message))
	}
	if blocked := f.condition(v1alpha1.ConditionBlocked); blocked != nil {
		found.Details = append(found.Details, tellCondition(blocked))
	}
	f.tell(v1alpha1.ConditionVerified, v1alpha1.ConditionBlocked, v1alpha1.ConditionHeld)
	f.tellServer()
	found.Do = f.waysOut()
	f.add(found)
}

// waysOut are those of a release that failed its verification.
func (f *finder) waysOut() []Advice {
	var do []Advice
	if f.blocked() != nil {
		do = append(do, f.override(f.sight))
	} else {
		do = append(do, f.releaseAnother(f.sight))
	}
	return slices.Concat(do, f.rollbackIfAny(), f.correct(f.sight))
}

// rollbackIfAny is the undo, where there is one. Requests for a rollback of what is
// in observe mode are refused.
func (f *finder) rollbackIfAny() []Advice {
	to := f.goodVersion()
	if observed, _ := f.defense(); to == nil || observed == DefenseObserved {
		return nil
	}
	return []Advice{f.rollback(to)}
}

// resumeHalted takes back what the operator halted the rollout by: what a user wanted
// before that, as a partition, stays.
func (f *finder) resumeHalted() []Advice {
	if p := f.paused(); p == nil || !p.ByOperator {
		return nil
	}
	does := "lets the rollout of the version that failed go on"
	if f.blocked() != nil {
		does += ", and leaves the block"
	}
	return []Advice{{f.goesOn(f.workload.Words.Resume), does + "; right when you know that the rest of it does no harm"}}
}

// goodVersion is the newest version that a rollback goes to; nil for none.
func (f *finder) goodVersion() *remembered {
	history := make([]defense.Revision, len(f.history))
	for i := range f.history {
		history[i] = f.history[i].Revision
	}
	version := defense.NewestSuccess(history, f.workload.RecordedVersion(), f.workload.Annotations, f.now)
	i := slices.IndexFunc(f.history, func(r remembered) bool { return r.Version == version })
	if i < 0 {
		return nil
	}
	return &f.history[i]
}

// releaserOf is who released a release, as far as is known.
func (f *finder) releaserOf(number int64, version string) string {
	for i := range f.changes {
		c := &f.changes[i]
		if c.Spec.Reversion == version && c.Spec.Release == number && c.Status.ReleasedBy != "" {
			return c.Status.ReleasedBy
		}
		for _, p := range c.Status.PreviousReleases {
			if p.Release == number && p.ReleasedBy != "" {
				return p.ReleasedBy
			}
		}
	}
	if number > 0 && number == f.workload.Release() {
		return f.workload.ReleasedBy()
	}
	return ""
}

// recordedWithin is how long the operator may take to record a release.
const recordedWithin = 30 * time.Second

// slipped says that the first release of a workload passed admission unseen. Where
// there is no revision yet, that is so for a moment only: one that is paused stays so.
func (f *finder) slipped() bool {
	w := f.workload
	if slices.ContainsFunc(f.history, func(r remembered) bool { return r.Release == defense.BaselineRelease && r.Version == w.Version }) {
		return false
	}
	return f.whole && w.RecordedVersion() == "" && f.current() == nil && releasedSince(w.RevisionCreated, f.defendedSince) &&
		(!w.RevisionCreated.IsZero() || f.now.Sub(f.written) < recordedWithin)
}

// releasedSince says whether a workload without any record may have been released while
// it was defended: its revision is newer than that, or not there yet. Within the
// second in which that began it was there before, as a rule: times are in seconds. Zero
// where it is not known when that was.
func releasedSince(revision, defended time.Time) bool {
	return !defended.IsZero() && (revision.IsZero() || revision.After(defended))
}

// records tells of a workload whose release has no record.
func (f *finder) records() {
	w := f.workload
	c := f.current()
	switch {
	case w.Deleting:
		f.add(Finding{Code: "Deleting", Needs: NeedsNothing, What: "being deleted", Says: "The workload is being deleted."})
	case f.whole && w.RecordedVersion() != "" && w.Version != "" && w.Version != w.RecordedVersion(),
		w.RecordedVersion() != "" && c == nil && f.enrolledKnown,
		f.slipped():
		found := Finding{
			Code: "NotRecorded", Needs: NeedsAttention, What: "not recorded", Since: timeOf(f.written),
			Says: "What the workload runs has no record: admission did not see its release, or the operator has not come to it. It is not verified until the operator has recorded it.",
			Do:   []Advice{f.check(), f.watch()},
		}
		if f.now.Sub(f.written) < recordedWithin {
			found.Needs, found.What = NeedsTime, "about to be recorded"
			found.Says = "The workload was written a moment ago, and the operator is about to record its release."
		}
		f.add(found)
	case w.RecordedVersion() == "" && f.enrolledKnown:
		f.add(Finding{
			Code: "Baseline", Needs: NeedsNothing, What: "baseline",
			Says: "The workload has had no recorded release. What it runs is its baseline, which is not verified; the next change of its pod template is.",
		})
	}
}

// leftVersions tells of versions in quarantine.
func (f *finder) leftVersions() {
	all := f.quarantined(f.now)
	if len(all) == 0 {
		return
	}
	slices.Reverse(all)
	newest := &all[0]
	restored := newest.Release > 0 && newest.Release+1 == f.workload.Release() && newest.To == f.workload.RecordedVersion()
	found := Finding{
		Code: "Quarantined", Needs: NeedsNothing, What: countOf(len(all), "version in quarantine", "versions in quarantine"), Since: newest.Time,
		Says: fmt.Sprintf("%s denied when released again.", capital(countOf(len(all), "version is", "versions are"))),
	}
	if restored {
		f.restoredBy(newest, &found)
	}
	for i := range all {
		q := &all[i]
		text := tellQuarantine(q, f.now)
		if i > 0 || !restored {
			text = q.Version + ": " + text
		}
		found.Details = append(found.Details, text)
	}
	found.Do = append(found.Do, f.unquarantine(newest))
	if f.workload.RecordedVersion() != "" && slices.ContainsFunc(all, func(q Quarantined) bool { return q.Version == f.workload.RecordedVersion() }) {
		found.Code, found.Needs, found.What = "QuarantineBypassed", NeedsAttention, "runs a version in quarantine"
		found.Says = "The workload runs a version that is in quarantine: it got past admission, and is not rolled back again."
		found.Do = append([]Advice{f.check()}, found.Do...)
	}
	f.add(found)
}

// restoredBy tells of a workload that is at the version that was restored, whose fix is
// still to come. Who went back, or asked for it, knows.
func (f *finder) restoredBy(left *Quarantined, found *Finding) {
	found.Code, found.Needs, found.What = "RolledBack", NeedsAttention, "rolled back"
	who := "the operator"
	if left.By != "" {
		found.Code, found.Needs, found.What, who = "WentBack", NeedsNothing, "went back", left.By
	}
	found.Says = fmt.Sprintf("%s failed, and %s went back to version %s. A fix is to be released: the version that was left is denied.",
		capital(releaseName(left.Release, left.Version)), who, short(left.To))
	if left.Cause == v1alpha1.ReasonRollbackRequested {
		found.Needs = NeedsNothing
		found.Says = fmt.Sprintf("%s was rolled back to version %s on request. The version that was left is denied.",
			capital(releaseName(left.Release, left.Version)), short(left.To))
	}
	found.ReleasedBy = f.releaserOf(left.Release, left.Version)
	if f.blocked() == nil {
		found.Do = append(found.Do, f.releaseAnother(f.sight))
	}
}

// tellQuarantine says why a version is in quarantine, and for how long.
func tellQuarantine(q *Quarantined, now time.Time) string {
	text := cmp.Or(q.Because, "why is not known")
	if q.Until != nil {
		return text + "; in quarantine for " + age(q.Until.Sub(now)) + " more"
	}
	return text + "; in quarantine until somebody ends it"
}

// conditions tells of those of the current release that nothing else has told of.
func (f *finder) conditions() {
	c := f.current()
	if c == nil {
		return
	}
	for i := range c.Status.Conditions {
		cond := &c.Status.Conditions[i]
		if slices.Contains(f.told, cond.Type) {
			continue
		}
		t := tellingOf(cond)
		found := Finding{
			Code: cond.Type + cond.Reason, Needs: t.needs, What: t.what, Says: t.says, Since: timeOf(cond.LastTransitionTime.Time),
		}
		if detail := defense.Detail(cond); detail != "" {
			found.Details = []string{detail}
		}
		f.willBeRolledBack(cond, &found)
		if t.needs == NeedsAttention || t.needs == NeedsTime {
			found.ReleasedBy = f.releaserOf(c.Spec.Release, c.Spec.Reversion)
		}
		if t.do != nil {
			found.Do = t.do(f)
		}
		f.add(found)
	}
}

// willBeRolledBack says so of pods that fail while the operator would do that.
func (f *finder) willBeRolledBack(cond *metav1.Condition, found *Finding) {
	fails := cond.Type == v1alpha1.ConditionPodsUnavailable && cond.Reason == v1alpha1.ReasonPodsFailing && cond.Status == metav1.ConditionTrue
	if !fails || !f.willRollBack() {
		return
	}
	found.Needs = NeedsTime
	found.Details = append(found.Details, fmt.Sprintf("The operator rolls the release back when they fail for longer than %s.", f.settings.RollbackAfter))
}

// willRollBack reports whether the operator rolls the current release back by itself while
// its pods fail.
func (f *finder) willRollBack() bool {
	c := f.current()
	return c != nil && defense.IsOpen(c.Status.Status) && f.settings != nil && f.settings.Rollback && !f.settings.Observe &&
		f.condition(v1alpha1.ConditionRolledBack) == nil
}

// withoutServer finds a release that continues without the server.
func (f *finder) withoutServer() {
	c := f.current()
	if c == nil || c.Status.OrderStage != v1alpha1.OrderSubmitting || c.Status.Status == v1alpha1.ChangeWorkloadInit || !defense.IsVerified(c.Status.Status) {
		return
	}
	f.add(Finding{
		Code: "WithoutServer", Needs: NeedsTime, What: "without the server",
		Says: "AlterShield Server has not accepted the order in time: the release goes on without its checks, which are made up for when it answers.",
		Do:   []Advice{f.check()},
	})
}

// overrideLabel tells of a label that does not do what it seems to.
func (f *finder) overrideLabel() {
	b := f.blocked()
	if b == nil || !b.StaleOverride {
		return
	}
	f.add(Finding{
		Code: "StaleOverride", Needs: NeedsAttention, What: "stale override",
		Says: "The label " + v1alpha1.IgnoredSuspendLabel + " was there before the block, and does not count.",
		Do: []Advice{{
			f.kubectl("label", f.target, v1alpha1.IgnoredSuspendLabel+"-"),
			"takes it off, so that it can be set again with an override; take it out of the manifest as well",
		}},
	})
}

// unusableSettings are annotations of the workload that cannot be used.
func (f *finder) unusableSettings() {
	problems := defense.UnusableSettings(f.workload.Annotations)
	if f.settings != nil {
		problems = f.settings.Problems
	}
	if len(problems) > 0 {
		f.add(Finding{
			Code: "SettingNotAccepted", Needs: NeedsAttention, What: "setting not accepted",
			Says: "A setting of the workload's own cannot be used.", Details: problems, Do: []Advice{f.overrides()},
		})
	}
}

// capital begins a sentence.
func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// countOf is a number with its word.
func countOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
