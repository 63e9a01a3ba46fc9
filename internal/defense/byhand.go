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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// takeRequest takes the state Rollback, which only somebody else can have written
// on the release the workload is at, for a request to roll it back. The state is
// what it was before: it is Rollback once that is done.
func (d *release) takeRequest() {
	if d.status.Status != v1alpha1.ChangeWorkloadRollback {
		return
	}
	d.plan.NeedsLive = !d.Live
	d.status.Status = d.formerState()
	change := d.Change.DeepCopy()
	change.Status = *d.status.DeepCopy()
	in := d.rollbackInput()
	in.Changes = append(slices.Clone(d.Others), *change)
	to, refusal := RequestRollback(in, LastSuccess)
	if refusal != "" {
		d.condition(v1alpha1.ConditionRolledBack, metav1.ConditionFalse, v1alpha1.ReasonRequestRefused, "%s", refusal)
		d.event(corev1.EventTypeWarning, v1alpha1.EventRollbackRefused, "a user wrote the state Rollback: "+refusal)
		return
	}
	// A request that is there already comes first.
	if _, asked := d.Workload.Annotations[v1alpha1.RollbackToAnnotation]; !asked {
		d.plan.RollbackTo = to
		d.actionEvent(corev1.EventTypeWarning, v1alpha1.EventRollbackRequested, "to version "+to)
	}
}

// rollbackInput is what a rollback of the release is decided from, with the other releases of the workload.
func (d *release) rollbackInput() RollbackInput {
	return RollbackInput{
		Now: d.Now, Settings: d.Settings, Workload: d.Workload, Enrolled: d.Enrolled, Changes: d.Others, Pods: d.Pods, History: d.History, Limit: d.Limit,
	}
}

// formerState is the state that the rest of the status speaks of.
func (d *release) formerState() v1alpha1.ChangeWorkloadStatusType {
	verified := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionVerified)
	switch {
	case d.status.OrderStage == v1alpha1.OrderRefused:
		return v1alpha1.ChangeWorkloadFailed
	case d.status.OrderStage == v1alpha1.OrderSubmitting, d.status.OrderStage == v1alpha1.OrderDenied:
		return v1alpha1.ChangeWorkloadInit
	case verified == nil:
		return v1alpha1.ChangeWorkloadRunning
	case verified.Status == metav1.ConditionFalse:
		return v1alpha1.ChangeWorkloadSuspend
	case verified.Reason == v1alpha1.ReasonAllPassed, verified.Reason == v1alpha1.ReasonPassedUnverified,
		verified.Reason == v1alpha1.ReasonNothingVerified:
		return v1alpha1.ChangeWorkloadSuccess
	default:
		return v1alpha1.ChangeWorkloadRunning
	}
}
