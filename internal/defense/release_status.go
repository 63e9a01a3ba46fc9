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
)

// What the status of a release says of it.

// explainProgress says how far the rollout has come. Of a release that succeeded it
// is over: what becomes of its pods later is told by PodsUnavailable. What is halted stays
// so, whatever its pods do.
func (d *release) explainProgress() {
	w, wasComplete := d.Workload, d.staysAt(v1alpha1.ReasonRolloutComplete, 0)
	switch {
	case d.status.Status == v1alpha1.ChangeWorkloadSuccess:
		d.explainComplete()
	case d.plan.Halt || w.haltedBy(d.Change.Spec.Reversion) && !d.plan.Resume:
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutHalted,
			"the %s is %s%s%s", w.Kind(), w.Words.Halted(), w.Words.Means(), w.by(w.Words.Resume))
	case w.Rollout.Complete || d.wasComplete():
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRolloutComplete, "")
	case (w.Paused || w.OnDelete) && wasComplete:
		d.explainComplete()
	case w.OnDelete:
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonOnDelete, "%s", w.Rollout.Progress)
	case w.Paused && !d.plan.Resume:
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutPaused, "the %s is %s%s%s",
			w.Kind(), w.Words.Halted(), w.Words.Means(), w.by(w.Words.GoOn))
	case d.stuckOn != "":
		d.becomeStuck("pods on node " + d.stuckOn + " do not come up")
	case w.NotMade != nil:
		d.becomeStuck(fmt.Sprintf("%d of %d pods cannot be created: %s", w.NotMade.Count, w.Replicas, Brief(w.NotMade.Message)))
	case w.Rollout.Stuck:
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutStuck, "%s", w.Rollout.Message)
	case w.Rollout.Partitioned || w.Partition > 0 && d.staysAt(v1alpha1.ReasonPartitioned, w.Partition):
		d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonPartitioned,
			"%d of %d pods", w.Partition, w.Replicas)
	case wasComplete:
		d.explainComplete()
	default:
		d.explainRollingOut()
	}
}

// explainComplete says that the rollout is over, whatever its pods do now.
func (d *release) explainComplete() {
	d.condition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRolloutComplete, "")
}

// wasComplete says that the rollout was complete when it was last heard of, and
// that nothing has been heard since: an annotation changed just now, say.
func (d *release) wasComplete() bool {
	return d.Workload.Rollout.Stale && d.wasProgressing(v1alpha1.ReasonRolloutComplete)
}

// alikeReplaced is said where pods are replaced by others of the same template.
const alikeReplaced = "pods of this template are replaced, too, because their revision was not found"

// explainRollingOut says that pods are being replaced. Those that have the template
// already are where the controller of the workload finds an earlier revision by its
// bytes, and those were written by an older one.
func (d *release) explainRollingOut() {
	w, again := d.Workload, ""
	if n := w.alike(); n > 0 {
		again = fmt.Sprintf("%d %s", n, alikeReplaced)
		said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionProgressing)
		if said == nil || !strings.Contains(said.Message, alikeReplaced) {
			d.event(corev1.EventTypeWarning, v1alpha1.EventRevisionNotFound, fmt.Sprintf("%d %s", n, alikeReplaced))
		}
	}
	d.condition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRollingOut, "%s", strings.Join(NonEmpty(w.Rollout.Progress, again), "; "))
}

// explainVerification says what the verification of the release came to. Pods that
// come after its success are in the counts alone, until one fails.
func (d *release) explainVerification() {
	status, reason, message := metav1.ConditionUnknown, v1alpha1.ReasonChecking, ""
	failure, first := d.failure()
	toCome, pre, post := len(d.checking)+len(d.preparing), d.waitsFor(v1alpha1.StageReleasePre), d.waitsFor(v1alpha1.StageReleasePost)
	switch {
	case failure != "":
		status, reason, message = metav1.ConditionFalse, failure, first
		if toCome > 0 {
			message += "; the verification of other pods continues"
		}
	case d.status.Status == v1alpha1.ChangeWorkloadSuccess:
		switch unverified, passed := d.unverifiedCount(), d.passCount(); {
		case unverified > 0:
			status, reason, message = metav1.ConditionTrue, v1alpha1.ReasonPassedUnverified, fmt.Sprintf("%d of %d pods", unverified, passed)
		case passed > 0:
			status, reason = metav1.ConditionTrue, v1alpha1.ReasonAllPassed
		case toCome == 0:
			reason = v1alpha1.ReasonNothingVerified
		}
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

// becomeStuck says what keeps a rollout from moving, with an event, since somebody
// has to do something about it.
func (d *release) becomeStuck(why string) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionProgressing)
	if said == nil || said.Reason != v1alpha1.ReasonRolloutStuck {
		d.warn(v1alpha1.ReasonRolloutStuck, v1alpha1.EventPodsUnavailable, why)
	}
	d.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutStuck, "%s", why)
}

// endConditions says of a release that ended that what was under way goes on no
// more: its verification, or a block that was denied. Nothing is known of its pods.
func (d *release) endConditions() {
	s := d.status
	for _, c := range []struct {
		kind   string
		over   bool
		status metav1.ConditionStatus
	}{
		{v1alpha1.ConditionBlocked, reasonOf(s, v1alpha1.ConditionBlocked) == v1alpha1.ReasonWriteDenied, metav1.ConditionFalse},
		{v1alpha1.ConditionVerified, reasonOf(s, v1alpha1.ConditionVerified) == v1alpha1.ReasonChecking, metav1.ConditionUnknown},
		{v1alpha1.ConditionServer, waitsForServer(s) || meta.IsStatusConditionPresentAndEqual(s.Conditions, v1alpha1.ConditionServer, metav1.ConditionUnknown), metav1.ConditionUnknown},
		{v1alpha1.ConditionHeld, meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionHeld), metav1.ConditionFalse},
		{v1alpha1.ConditionEvictionBlocked, meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionEvictionBlocked), metav1.ConditionFalse},
		// It speaks of pods that are being replaced.
		{v1alpha1.ConditionPodsUnavailable, reasonOf(s, v1alpha1.ConditionPodsUnavailable) != "", metav1.ConditionFalse},
	} {
		if c.over {
			d.condition(c.kind, c.status, v1alpha1.ReasonReleaseEnded, "")
		}
	}
}
