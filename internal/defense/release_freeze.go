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
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// bypassedFreeze begins the part of the message of ConditionDefended about a freeze.
const bypassedFreeze = "freeze "

// beginFrozen records and reports how a release began in a freeze. New workloads, rollbacks by the operator and
// overrides pass, and are reported as such. A release that admission missed is recorded as one that bypassed the freeze:
// a restart that admission saw passed with a warning.
func beginFrozen(d *release) {
	w := d.Workload
	isNew := len(d.History) == 0 && len(d.Others) == 0 && d.status.Attempt == 1
	restored := rollback.ParseQuarantine(w.Annotations, d.Now).Restored(d.Change.Spec.Reversion, d.Change.Spec.Release)
	if d.FrozenBy == "" || isNew || restored || d.status.OverriddenBy != "" {
		return
	}
	frozen := fmt.Sprintf("%s until %s", d.FrozenBy, d.FrozenUntil.UTC().Format(time.RFC3339))
	broken := record.ParseFreezeBreak(w.Annotations[v1alpha1.FreezeBrokenAnnotation])
	switch {
	case broken.Release == d.Change.Spec.Release && broken.Reason != "":
		d.status.BrokenFreeze = d.FrozenBy
		d.event(corev1.EventTypeNormal, v1alpha1.EventFreezeBroken, fmt.Sprintf("%s: %s gave the reason: %s", frozen, broken.User, broken.Reason))
	case rollback.Remembered(d.History, d.Change.Spec.Reversion):
		d.status.BrokenFreeze = d.FrozenBy
		d.event(corev1.EventTypeNormal, v1alpha1.EventFreezeBroken, frozen+": the version succeeded before")
	case d.Settings.Observe:
		dryRun(d, v1alpha1.DryRunDeny, "the release would have been denied by "+frozen)
	case w.ReleasedBy() == workload.UnknownUser:
		d.status.BypassedFreeze = d.FrozenBy
		d.event(corev1.EventTypeWarning, v1alpha1.EventAdmissionBypassed, bypassedFreeze+frozen+"; the release is verified")
	}
}
