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

package admission

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// The message of a denial by the block: the failure, the time of the block, and commands to continue.

// describeBlock returns the message of a request that the block denies. CI shows no warnings, so the message is
// complete.
func describeBlock(r *Request) string {
	since := ""
	if seconds, err := strconv.ParseInt(r.Old.Labels[v1alpha1.SuspendLabel], 10, 64); err == nil {
		since = "; blocked since " + time.Unix(seconds, 0).UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("%s %s is suspended: %s%s. Override it, then release again: %s%s",
		r.Kind, r.Name, wording.Brief(describeFailure(r)), since, overrideCommand(r), waysOn(r))
}

// describeFailure describes which release blocks the workload, and why. Others wrote the text of the cause.
func describeFailure(r *Request) string {
	if r.blockedByUser() {
		return "a user blocked its releases"
	}
	version, release, _ := record.ParseBlockedBy(r.Old.Annotations)
	which := "version " + version
	if release != "" {
		which = fmt.Sprintf("release %s (version %s)", release, version)
	}
	why := ""
	if failed := blockingRecord(r); failed == nil {
		if q, ok := rollback.ParseQuarantine(r.Old.Annotations, time.Time{}).Reason(version); ok {
			why = q.String()
		}
	} else if pods := failed.Status.DefenseCheckFailPods; len(pods) > 0 {
		why = record.Describe(&pods[0])
	} else {
		why = record.ConditionMessage(&failed.Status, v1alpha1.ConditionVerified)
	}
	return strings.Join(wording.NonEmpty(which+" failed", why), ": ")
}

// blockingRecord returns the record of the release that blocks the workload; nil if unknown.
func blockingRecord(r *Request) *v1alpha1.ChangeWorkload {
	if r.Past == nil {
		return nil
	}
	version, release, record := record.ParseBlockedBy(r.Old.Annotations)
	for i := range r.Past.Changes {
		c := &r.Past.Changes[i]
		if string(c.UID) == record || record == "" && c.Spec.Reversion == version && strconv.FormatInt(c.Spec.Release, 10) == release {
			return c
		}
	}
	return nil
}

// overrideCommand returns the command for an override label. A label that is older than the block counts only if it is
// set again.
func overrideCommand(r *Request) string {
	label := fmt.Sprintf("label %s %s %s", r.Kind, wording.ShellWord(r.Name), v1alpha1.IgnoredSuspendLabel)
	set := wording.Kubectl(label+"="+v1alpha1.IgnoredSuspendValue+" --overwrite", r.Namespace)
	if r.Old.ignoresSuspend() {
		return wording.Kubectl(label+"-", r.Namespace) + " && " + set
	}
	return set
}

// waysOn returns the alternatives to an override; empty for none.
func waysOn(r *Request) string {
	if r.restores() {
		return ". Or wait: version " + r.Old.Version + " is being restored, and the block ends when its rollout is complete"
	}
	if r.Past == nil {
		return ""
	}
	target := rollback.NewestRevision(
		r.Old.Content.Restorable(r.Past.History), r.Old.Version, rollback.ParseQuarantine(r.Old.Annotations, r.Now))
	if target == nil {
		return ""
	}
	again := ""
	if r.failedRecord() != nil && !r.blockedByUser() {
		again = "apply version " + wording.Brief(target.Version) + " again, or "
	}
	return ". To undo the release: " + again +
		wording.Kubectl(fmt.Sprintf("annotate %s %s %s=%s --overwrite",
			r.Kind, wording.ShellWord(r.Name), v1alpha1.RollbackToAnnotation, rollback.LastSuccess), r.Namespace)
}
