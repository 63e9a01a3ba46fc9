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

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
)

// failed finds a block, and a release that failed and is not blocked.
func (f *finder) failed() {
	b, c := f.blocked(), f.current()
	suspended := c != nil && c.Status.Status == v1alpha1.ChangeWorkloadSuspend
	switch {
	case b != nil && b.ByUser:
		f.add(Finding{
			Code: "BlockedByUser", Needs: NeedsAttention, What: "blocked by hand", Since: b.Since,
			Says: "A user blocked releases: each change of the pod template is denied.",
			Do: []Advice{f.override(), {
				f.kubectl("label", f.target.String(), v1alpha1.SuspendLabel+"-", v1alpha1.IgnoredSuspendLabel+"="+v1alpha1.IgnoredSuspendValue),
				"lifts the block; use when the user who set it agrees",
			}},
		})
	case b != nil:
		f.blockedByRelease(b, suspended)
	case suspended:
		f.suspended(c)
	}
	if _, stale := f.workload.Annotations[v1alpha1.OverrideStaleAnnotation]; stale && b != nil {
		f.add(Finding{
			Code: "StaleOverride", Needs: NeedsAttention, What: "stale override",
			Says: "The label " + v1alpha1.IgnoredSuspendLabel + " was there before the block, and does not count.",
			Do: []Advice{{
				f.kubectl("label", f.target.String(), v1alpha1.IgnoredSuspendLabel+"-"),
				"removes it, so that an override can set it again; remove it from the manifest as well",
			}},
		})
	}
}

func (f *finder) blockedByRelease(b *Blocked, suspended bool) {
	found := Finding{
		Code: "Blocked", Needs: NeedsAttention, What: "blocked", Since: b.Since, ReleasedBy: f.releaserOf(b.Release, b.Version),
		Says: fmt.Sprintf("Releases are blocked, because %s failed its verification: "+
			"each change of the pod template is denied, except an override release and an undo.", releaseName(b.Release, b.Version)),
	}
	if b.Because != "" {
		found.Details = append(found.Details, b.Because)
	}
	if f.halted() {
		found.What += ", halted"
		words := &f.workload.Words
		found.Details = append(found.Details,
			"The operator "+words.Halted()+" the rollout"+words.Means()+", so that no more pods are replaced by this version.")
		f.cover(v1alpha1.ConditionProgressing)
	}
	if c := f.current(); c != nil && c.Spec.Release > b.Release && record.IsOpen(c.Status.Status) {
		found.Needs, found.Says = NeedsTime, fmt.Sprintf("Releases are blocked, because %s failed its verification. "+
			"The override release, %s, is being verified: its success lifts the block.",
			releaseName(b.Release, b.Version), releaseName(c.Spec.Release, c.Spec.Reversion))
		found.Do = []Advice{f.watch(), {f.plugin("wait", f.target.String()), "waits until the release ends, with the result as exit code"}}
		f.add(found)
		return
	}
	f.cover(v1alpha1.ConditionBlocked)
	if suspended {
		f.coverFailed()
	}
	found.Do = append(f.waysOut(), f.resumeHalted()...)
	f.add(found)
}

// coverFailed notes the conditions of a failed release, which one finding reports.
func (f *finder) coverFailed() {
	f.cover(v1alpha1.ConditionVerified, v1alpha1.ConditionHeld, v1alpha1.ConditionProven)
	c := f.condition(v1alpha1.ConditionServer)
	if c != nil && (c.Reason == v1alpha1.ReasonCheckFailed || c.Reason == v1alpha1.ReasonChecking) {
		f.cover(v1alpha1.ConditionServer)
	}
}

// suspended finds a release that failed, while the workload is not blocked.
func (f *finder) suspended(c *v1alpha1.ChangeWorkload) {
	found := Finding{
		Code: "Failed", Needs: NeedsAttention, What: "failed, not blocked", Since: unixTime(c.Status.UpdateTimeUnix),
		Says: fmt.Sprintf("%s failed its verification. The workload is not blocked: the next release passes.",
			capital(releaseName(c.Spec.Release, c.Spec.Reversion))),
		ReleasedBy: f.releaserOf(c.Spec.Release, c.Spec.Reversion), Do: f.waysOut(),
	}
	if verified := f.condition(v1alpha1.ConditionVerified); verified != nil {
		found.Details = append(found.Details, cmp.Or(record.Detail(verified), verified.Message))
	}
	if blocked := f.condition(v1alpha1.ConditionBlocked); blocked != nil {
		found.Details = append(found.Details, blocked.Message)
	}
	f.cover(v1alpha1.ConditionBlocked)
	f.coverFailed()
	f.add(found)
}

func (f *finder) quarantinedVersions() {
	all := f.quarantined()
	if len(all) == 0 {
		return
	}
	slices.Reverse(all)
	newest, recorded := &all[0], f.workload.RecordedVersion()
	restored := newest.Release > 0 && newest.Release+1 == f.workload.Release() && newest.To == recorded
	found := Finding{
		Code: "Quarantined", Needs: NeedsNothing, What: countOf(len(all), "version in quarantine", "versions in quarantine"), Since: newest.Time,
		Says: capital(countOf(len(all), "version is", "versions are")) + " denied when released again.",
	}
	if restored {
		f.restored(newest, &found)
	}
	for i := range all {
		text := describeQuarantine(&all[i], f.now)
		if i > 0 || !restored {
			text = all[i].Version + ": " + text
		}
		found.Details = append(found.Details, text)
	}
	found.Do = append(found.Do, Advice{
		f.kubectl("annotate", f.target.String(), v1alpha1.UnquarantineAnnotation+"="+newest.Version),
		"lets that version be released again; use when another cause made it fail, and is over",
	})
	if recorded != "" && slices.ContainsFunc(all, func(q Quarantined) bool { return q.Version == recorded }) {
		found.Code, found.Needs, found.What = "QuarantineBypassed", NeedsAttention, "runs a version in quarantine"
		found.Says = "The workload runs a version that is in quarantine: it got past admission, and is not rolled back again."
		found.Do = append([]Advice{f.check()}, found.Do...)
	}
	f.add(found)
}

// restored describes a workload that was set back, and still needs a fix. A user who undid the release knows.
func (f *finder) restored(bad *Quarantined, found *Finding) {
	found.Code, found.Needs, found.What = "RolledBack", NeedsAttention, "rolled back"
	who, name := "the operator", capital(releaseName(bad.Release, bad.Version))
	if bad.By != "" {
		found.Code, found.Needs, found.What, who = "WentBack", NeedsNothing, "undone", bad.By
	}
	found.Says = fmt.Sprintf("%s failed, and %s set the workload back to version %s. Release a fix: version %s is denied.",
		name, who, short(bad.To), short(bad.Version))
	if bad.Cause == v1alpha1.ReasonRollbackRequested {
		found.Needs = NeedsNothing
		found.Says = fmt.Sprintf("%s was rolled back to version %s on request. Version %s is denied.", name, short(bad.To), short(bad.Version))
	}
	found.ReleasedBy = f.releaserOf(bad.Release, bad.Version)
	if f.blocked() == nil {
		found.Do = append(found.Do, f.releaseAnother())
	}
}
