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

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
)

// The series of rare events exist from the start: an alert does not see an increase of a
// counter that appears with its first event.
func init() {
	for _, outcome := range []string{EvictionDone, EvictionBlocked, EvictionDenied, EvictionOutdated} {
		evictions.WithLabelValues("StatefulSet", outcome)
		evictions.WithLabelValues("DaemonSet", outcome)
	}
	for _, result := range []string{"PostFinish", "Skipped", "PreFailed", "PreTimeout", "PostFailed", "PostTimeout"} {
		batches.WithLabelValues(result)
	}
	for _, outcome := range []string{
		"recorded", "duplicate", "ignored", "unknown", "refused", "malformed", "failed", "limited", "oversized", "incomplete",
	} {
		callbacks.WithLabelValues(outcome)
	}
	for _, outcome := range []string{NotificationSent, NotificationFailed, NotificationDropped} {
		Notified(outcome, 0)
	}
	for _, kind := range []string{"order", "node"} {
		foreignIDs.WithLabelValues(kind)
	}
	for _, action := range []altershield.Action{
		altershield.ActionSubmitOrder, altershield.ActionStartOrder, altershield.ActionStartBatch,
		altershield.ActionFinishNode, altershield.ActionRetrieveCheck, altershield.ActionEndOrder,
	} {
		serverRequests.WithLabelValues(string(action), string(altershield.ClassHuman))
	}
}

// Begin creates the series of rare events for a kind of workload.
func Begin(kind string) {
	for _, reason := range []string{v1alpha1.ReasonNeverStarted, v1alpha1.ReasonVerificationFailed, v1alpha1.ReasonRollbackRequested} {
		rollbacks.WithLabelValues(kind, reason)
	}
	for _, act := range []string{
		v1alpha1.DryRunSuspend, v1alpha1.DryRunHalt, v1alpha1.DryRunHold, v1alpha1.DryRunRollback, v1alpha1.DryRunDeny,
	} {
		dryRuns.WithLabelValues(kind, act)
	}
	for _, reason := range []string{
		v1alpha1.ReasonHoldVerified, v1alpha1.ReasonHoldRanOut, v1alpha1.ReasonVerificationFailed,
		v1alpha1.ReasonHoldEdited, v1alpha1.ReasonHoldStuck, v1alpha1.ReasonReleaseEnded,
	} {
		holdEnds.WithLabelValues(kind, reason)
	}
	for _, how := range []string{LeftByOptingOut, LeftByDeletion} {
		leftWhileBlocked.WithLabelValues(kind, how)
	}
	for _, webhook := range []string{"mutate", "validate", "quarantine", "policy"} {
		for _, decision := range []string{"unchanged", "changed", "denied", "failed"} {
			admissions.WithLabelValues(kind, webhook, decision)
		}
	}
	for _, one := range []*prometheus.CounterVec{overrides, verdictsCorrected, undos, rollbacksLimited, holdStarts} {
		one.WithLabelValues(kind)
	}
}
