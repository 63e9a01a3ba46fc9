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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/admission"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
)

// findingsOf returns the findings about a workload, the most pressing first.
func findingsOf(s *snapshot, a advisor) []Finding {
	f := &finder{snapshot: s, advisor: a}
	switch level, message := s.defense(); level {
	case DefenseNotEnrolled:
		f.notEnrolled()
		return f.all
	case DefenseOptedOut:
		f.optedOut(message)
		return f.all
	case DefenseObserved:
		f.observed(message)
	default: // defended in full, as far as is known
	}
	f.failed()
	f.records()
	f.quarantinedVersions()
	f.conditions()
	f.downPods()
	f.withoutServer()
	f.unusable()
	slices.SortStableFunc(f.all, func(a, b Finding) int { return cmp.Compare(a.Needs.rank(), b.Needs.rank()) })
	f.adviseOnce()
	return f.all
}

// adviseOnce removes advice that a more pressing finding gives. While releases are blocked, an ordinary release is denied, and is
// not advised.
func (f *finder) adviseOnce() {
	given := map[string]bool{}
	if f.blocked() != nil {
		given[f.releaseAnother().Command] = true
	}
	for i := range f.all {
		f.all[i].Do = slices.DeleteFunc(f.all[i].Do, func(a Advice) bool {
			before := given[a.Command]
			given[a.Command] = true
			return before
		})
	}
}

func (f *finder) notEnrolled() {
	found := Finding{
		Code: "NotEnrolled", Needs: NeedsNothing, What: "not defended",
		Says: fmt.Sprintf("The namespace %s is not enrolled: releases of this workload are not verified, and nothing stops them.",
			f.workload.Namespace),
		Do: []Advice{f.enroll(f.workload.Namespace, modeObserve), f.enroll(f.workload.Namespace, "")},
	}
	if mistyped := admission.MistypedEnrolment(f.namespace.Labels); mistyped != "" {
		found.Needs, found.Details = NeedsAttention, []string{"A label of the namespace has no effect: " + mistyped + "."}
	}
	f.add(found)
}

func (f *finder) optedOut(message string) {
	found := Finding{
		Code: "OptedOut", Needs: NeedsNothing, What: "opted out",
		Says:    "The workload has opted out: its releases are not verified, and nothing stops them.",
		Details: []string{message}, Do: []Advice{{f.plugin("enroll", f.target.String()), "defends it again"}},
	}
	if n := len(f.quarantined()); n > 0 {
		again := countOf(n, "version is", "versions are")
		found.Details = append(found.Details, fmt.Sprintf("%s in quarantine again once it is opted in.", again))
	}
	f.add(found)
}

func (f *finder) observed(message string) {
	if c := f.condition(v1alpha1.ConditionDefended); c == nil || c.Reason != v1alpha1.ReasonWriteDenied {
		f.cover(v1alpha1.ConditionDefended)
	}
	f.add(Finding{
		Code: "Observed", Needs: NeedsNothing, What: "observed",
		Says: "The workload is in observe mode: its releases are verified and reported. " +
			"Nothing is blocked, paused, rolled back or denied.",
		Details: []string{message}, Do: []Advice{f.enforce()},
	})
}

// recordedWithin is how long the operator may take to record a release.
const recordedWithin = 30 * time.Second

// slipped reports whether admission missed the first release of a workload. A workload without a revision, such as a paused one,
// counts for a moment only. Times are in seconds: a revision of the second in which the defense began counts as older.
func (s *snapshot) slipped() bool {
	w := s.workload
	baseline := slices.ContainsFunc(s.history, func(r remembered) bool {
		return r.Release == rollback.BaselineRelease && r.Version == w.Version
	})
	if baseline || !s.whole || w.RecordedVersion() != "" || s.current() != nil || s.defendedSince.IsZero() {
		return false
	}
	if w.RevisionCreated.IsZero() {
		return s.now.Sub(s.written) < recordedWithin
	}
	return w.RevisionCreated.After(s.defendedSince)
}

// records finds a workload whose release has no record.
func (f *finder) records() {
	w, recorded := f.workload, f.workload.RecordedVersion()
	switch {
	case w.Deleting:
		f.add(Finding{Code: "Deleting", Needs: NeedsNothing, What: "being deleted", Says: "The workload is being deleted."})
	case f.whole && recorded != "" && w.Version != recorded,
		recorded != "" && f.current() == nil && f.namespace != nil,
		f.slipped():
		found := Finding{
			Code: "NotRecorded", Needs: NeedsAttention, What: "not recorded", Since: timeOf(f.written),
			Says: "The release has no record: admission missed it, or the operator has not recorded it yet. " +
				"It is not verified until it is recorded.",
			Do: []Advice{f.check(), f.watch()},
		}
		if f.now.Sub(f.written) < recordedWithin {
			found.Needs, found.What = NeedsTime, "about to be recorded"
			found.Says = "The workload was written a moment ago, and the operator is about to record its release."
		}
		f.add(found)
	case recorded == "" && f.namespace != nil:
		f.add(Finding{
			Code: "Baseline", Needs: NeedsNothing, What: "baseline",
			Says: "The workload has had no recorded release. Its version is its baseline, which is not verified. " +
				"The next change of its pod template is verified.",
		})
	}
}

// conditions finds the conditions of the current release that no other finding reports.
func (f *finder) conditions() {
	c := f.current()
	if c == nil {
		return
	}
	for i := range c.Status.Conditions {
		cond := &c.Status.Conditions[i]
		if slices.Contains(f.covered, cond.Type) {
			continue
		}
		found := f.ofCondition(cond)
		podsFail := cond.Type == v1alpha1.ConditionPodsUnavailable && cond.Reason == v1alpha1.ReasonPodsFailing
		if podsFail && cond.Status == metav1.ConditionTrue && f.willRollBack() {
			found.Needs = NeedsTime
			found.Details = append(found.Details,
				fmt.Sprintf("The operator rolls the release back when they fail for longer than %s.", f.settings.RollbackAfter))
		}
		if found.pressing() {
			found.ReleasedBy = f.releaserOf(c.Spec.Release, c.Spec.Reversion)
		}
		f.add(found)
	}
}

// ofCondition returns the finding of a condition, by the catalog. A condition that this build does not know is printed by its reason.
func (f *finder) ofCondition(c *metav1.Condition) Finding {
	found := Finding{
		Code: c.Type + c.Reason, Needs: NeedsNothing, What: c.Reason,
		Says: fmt.Sprintf("%s is %s: %s.", c.Type, c.Status, c.Reason), Since: timeOf(c.LastTransitionTime.Time),
	}
	if e, ok := v1alpha1.Explain("ChangeWorkload", c); ok {
		found.What, found.Says, found.Do = e.Word, strings.ReplaceAll(e.Sentence, "`", ""), f.steps(e.Next)
		found.Needs = map[v1alpha1.Needs]Needs{
			v1alpha1.NeedsAction: NeedsAttention, v1alpha1.NeedsTime: NeedsTime, v1alpha1.NeedsNotice: NeedsNothing,
		}[e.Needs]
		found.Needs = cmp.Or(found.Needs, NeedsNoWord)
	}
	if detail := record.Detail(c); detail != "" {
		found.Details = []string{detail}
	}
	return found
}

// willRollBack reports whether the operator rolls the current release back by itself while its pods fail.
func (s *snapshot) willRollBack() bool {
	c := s.current()
	return c != nil && record.IsOpen(c.Status.Status) && s.settings != nil && s.settings.Rollback && !s.settings.Observe &&
		s.condition(v1alpha1.ConditionRolledBack) == nil
}

// withoutServer finds a release that continues without the server.
func (f *finder) withoutServer() {
	c := f.current()
	if c == nil || c.Status.OrderStage != v1alpha1.OrderSubmitting || c.Status.Status == v1alpha1.ChangeWorkloadInit ||
		!record.IsVerified(c.Status.Status) {
		return
	}
	f.add(Finding{
		Code: "WithoutServer", Needs: NeedsTime, What: "without the server",
		Says: "AlterShield Server has not accepted the order in time. " +
			"The release continues without its checks, which follow when the server answers.",
		Do: []Advice{f.check()},
	})
}

// unusable finds annotations of the workload that cannot be used.
func (f *finder) unusable() {
	problems := admission.UnusableSettings(f.workload.Annotations)
	if f.settings != nil {
		problems = f.settings.Problems
	}
	if len(problems) > 0 {
		f.add(Finding{
			Code: "SettingNotAccepted", Needs: NeedsAttention, What: "setting not accepted",
			Says: "A setting in an annotation of the workload cannot be used.", Details: problems, Do: f.steps(v1alpha1.StepSettings),
		})
	}
}

// summaryOf returns who has to act, and the findings in words.
func summaryOf(s *snapshot, findings []Finding) (Needs, string) {
	var words []string
	for i := range findings { // the most pressing first
		if f := &findings[i]; f.pressing() && !slices.Contains(words, f.What) {
			words = append(words, f.What)
		}
	}
	c := s.current()
	switch {
	case len(words) > 0:
		return findings[0].Needs, strings.Join(words, ", ")
	case c != nil && s.notDefended() == "":
		return NeedsNothing, stateOf(c.Status.Status)
	case len(findings) > 0:
		return NeedsNothing, findings[0].What
	default:
		return NeedsNothing, "nothing to say"
	}
}

// downPods finds the pods that are down, with the commands that help.
func (f *finder) downPods() {
	down := f.down()
	if len(down) == 0 {
		return
	}
	orStuck := ""
	if f.isStatefulSet() {
		orStuck = ", or not Ready and of an earlier version that the StatefulSet waits for"
	}
	found := Finding{
		Code: "PodsDown", Needs: NeedsAttention, What: "pods down",
		Says: capital(countOf(len(down), "pod is", "pods are")) + " in CrashLoopBackOff" + orStuck + ".",
	}
	evicts := f.settings != nil && f.settings.Eviction && !f.settings.Observe && !f.isTrue(v1alpha1.ConditionEvictionBlocked)
	for i, p := range down {
		if i < maxPodsNamed {
			found.Details = append(found.Details, p.describe())
			found.Do = append(found.Do, f.adviseDown(p)...)
		}
		// The operator evicts a pod, and the StatefulSet creates another one.
		evicts = evicts && p.old && f.waitsFor(p.Pod) && stuckFor(p.Pod, f.now) < evictedWithin
	}
	if evicts {
		found.Needs = NeedsTime
	}
	// The finding of the condition names the same pods: it gets the commands.
	if i := slices.IndexFunc(f.all, func(o Finding) bool {
		return o.Code == v1alpha1.ConditionPodsUnavailable+v1alpha1.ReasonPodsFailing
	}); i >= 0 {
		f.all[i].Do = append(found.Do, f.all[i].Do...)
		return
	}
	f.add(found)
}
