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
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// The conditions of a release.

// explainProgress sets the progress of the rollout. After Success the rollout is complete: PodsUnavailable reports
// later problems of its pods. A halted rollout stays halted, whatever its pods do.
func explainProgress(d *release) {
	w, wasComplete := d.Workload, d.staysAt(v1alpha1.ReasonRolloutComplete, 0)
	status, reason, message := metav1.ConditionFalse, "", ""
	switch {
	case d.status.Status == v1alpha1.ChangeWorkloadSuccess && (!w.WithoutPods || !w.Rollout.Stuck):
		status, reason = metav1.ConditionTrue, v1alpha1.ReasonRolloutComplete
	case d.plan.Halt || w.HaltedBy(d.Change.Spec.Reversion) && !d.plan.Resume:
		reason, message = v1alpha1.ReasonRolloutHalted, stays(d, w.DescribeStop(w.Words.Resume))
	case w.Problem != "":
		status, reason, message = metav1.ConditionUnknown, v1alpha1.ReasonExpressionFailed, w.Problem
	case w.Rollout.Complete, w.Rollout.Stale && d.wasProgressing(v1alpha1.ReasonRolloutComplete), (w.Paused || w.OnDelete) && wasComplete:
		// Also if the last known state was complete, for example after a change of an annotation.
		status, reason = metav1.ConditionTrue, v1alpha1.ReasonRolloutComplete
	case w.OnDelete:
		reason, message = v1alpha1.ReasonOnDelete, w.Rollout.Progress
	case w.Paused && !d.plan.Resume:
		reason, message = v1alpha1.ReasonRolloutPaused, stays(d, w.DescribeStop(w.Words.GoOn))
	case d.stuckOn != "":
		reason, message = v1alpha1.ReasonRolloutStuck, "pods on node "+d.stuckOn+" do not come up"
		warnOfStuck(d, message)
	case w.NotMade != nil:
		reason, message = v1alpha1.ReasonRolloutStuck, w.NotMade.Describe(w)
		warnOfStuck(d, message)
	case w.Rollout.Stuck:
		reason, message = v1alpha1.ReasonRolloutStuck, w.Rollout.Message
	case w.Rollout.Partitioned || w.Partition > 0 && d.staysAt(v1alpha1.ReasonPartitioned, w.Partition):
		reason, message = v1alpha1.ReasonPartitioned, fmt.Sprintf("%d of %d pods", w.Partition, w.Replicas)
	case wasComplete:
		status, reason = metav1.ConditionTrue, v1alpha1.ReasonRolloutComplete
	default:
		status, reason = metav1.ConditionTrue, v1alpha1.ReasonRollingOut
		message = strings.Join(wording.NonEmpty(w.Rollout.Progress, describeAlike(d)), "; ")
	}
	d.condition(v1alpha1.ConditionProgressing, status, reason, "%s", message)
}

// haltStays begins the message of a halt that the operator cannot undo.
const haltStays = "the operator cannot undo the halt: "

// stays returns the message of a stopped rollout, with why the operator cannot undo its halt. An event reports that once.
func stays(d *release, message string) string {
	if d.Workload.Stays == "" {
		return message
	}
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionProgressing)
	if said == nil || !strings.Contains(said.Message, haltStays) {
		d.event(corev1.EventTypeWarning, v1alpha1.EventWriteDenied, haltStays+d.Workload.Stays)
	}
	return message + "; " + haltStays + d.Workload.Stays
}

// alikeReplaced is the message if pods are replaced by pods of the same template.
const alikeReplaced = "pods of this template are replaced, too, because their revision was not found"

// describeAlike returns how many pods are replaced by pods of the same template: the controller of the workload finds
// an earlier revision by its bytes, and an older controller wrote these bytes. An event reports it once.
func describeAlike(d *release) string {
	n := d.Workload.Alike()
	if n == 0 {
		return ""
	}
	message := fmt.Sprintf("%d %s", n, alikeReplaced)
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionProgressing)
	if said == nil || !strings.Contains(said.Message, alikeReplaced) {
		d.event(corev1.EventTypeWarning, v1alpha1.EventRevisionNotFound, message)
	}
	return message
}

// explainVerification sets the result of the verification. Pods that come after Success are only counted, until one
// fails.
func explainVerification(d *release) {
	status, reason, message := metav1.ConditionUnknown, v1alpha1.ReasonChecking, ""
	failure, first := d.failure()
	toCome, pre := len(d.checking)+len(d.preparing), record.WaitsForCheck(d.status, v1alpha1.StageReleasePre)
	post := record.WaitsForCheck(d.status, v1alpha1.StageReleasePost)
	switch {
	case failure != "":
		status, reason, message = metav1.ConditionFalse, failure, first
		if toCome > 0 {
			message += "; the verification of other pods continues"
		}
	case d.status.Status == v1alpha1.ChangeWorkloadSuccess:
		switch unverified, passed := d.unverifiedCount(), d.passCount(); {
		case d.Workload.WithoutPods:
			status, reason = metav1.ConditionTrue, v1alpha1.ReasonRolloutComplete
		case unverified > 0:
			status, reason, message = metav1.ConditionTrue, v1alpha1.ReasonPassedUnverified, fmt.Sprintf("%d of %d pods", unverified, passed)
		case passed > 0:
			status, reason = metav1.ConditionTrue, v1alpha1.ReasonAllPassed
		case toCome == 0:
			reason = v1alpha1.ReasonNothingVerified
		}
	case d.Workload.WithoutPods:
		message = describeVerification(d)
	case d.unsettled && d.allPassed():
		message = "every pod passed; a pod that was restarted after that has to run for a minute"
	case d.allPassed() && post != nil:
		message = "every pod passed; the check " + post.Name + " is running"
	case pre != nil:
		message = "the pods wait for the check " + pre.Name
	case d.allPassed():
		message = "every pod passed; the POST check of the order is running"
	}
	d.condition(v1alpha1.ConditionVerified, status, reason, "%s", message)
}

// warnOfStuck emits, once, an event with the cause of a stuck rollout, because a person has to act.
func warnOfStuck(d *release, why string) {
	if record.ReasonOf(d.status, v1alpha1.ConditionProgressing) != v1alpha1.ReasonRolloutStuck {
		d.warn(v1alpha1.ReasonRolloutStuck, v1alpha1.EventPodsUnavailable, why)
	}
}

// endConditions ends the conditions of a release that ended: its verification, or a denied block, does not continue.
// Nothing is known about its pods.
func endConditions(d *release) {
	s := d.status
	waits := server.WaitsForServer(s) || meta.IsStatusConditionPresentAndEqual(s.Conditions, v1alpha1.ConditionServer, metav1.ConditionUnknown)
	for _, c := range []struct {
		kind   string
		over   bool
		status metav1.ConditionStatus
	}{
		{v1alpha1.ConditionBlocked, record.ReasonOf(s, v1alpha1.ConditionBlocked) == v1alpha1.ReasonWriteDenied, metav1.ConditionFalse},
		{v1alpha1.ConditionVerified, record.ReasonOf(s, v1alpha1.ConditionVerified) == v1alpha1.ReasonChecking, metav1.ConditionUnknown},
		{v1alpha1.ConditionServer, waits, metav1.ConditionUnknown},
		{v1alpha1.ConditionHeld, meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionHeld), metav1.ConditionFalse},
		{v1alpha1.ConditionEvictionBlocked, meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionEvictionBlocked), metav1.ConditionFalse},
		// It describes pods that are being replaced.
		{v1alpha1.ConditionPodsUnavailable, record.ReasonOf(s, v1alpha1.ConditionPodsUnavailable) != "", metav1.ConditionFalse},
	} {
		if c.over {
			d.condition(c.kind, c.status, v1alpha1.ReasonReleaseEnded, "")
		}
	}
}
