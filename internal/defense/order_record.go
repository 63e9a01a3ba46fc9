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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// OrderInput is what a decision about an order is made from.
type OrderInput struct {
	Now      time.Time
	Settings settings.Settings
	// Change is the release.
	Change *v1alpha1.ChangeWorkload
	// Defended says that the workload is there and defended. The order of
	// one that is not is only ended, and nothing is written about it.
	Defended bool
	// Calls is what this process knows of its calls about the order.
	Calls Calls
}

// OrderPlan is what to do about an order.
type OrderPlan = Plan[v1alpha1.ChangeWorkloadStatus]

// order is a decision in the making.
type order struct {
	OrderInput
	status *v1alpha1.ChangeWorkloadStatus
	plan   OrderPlan
}

func (o *order) step(kind string, status metav1.ConditionStatus, reason, message string) {
	conditions{kindStep, &o.status.OrderSteps, o.Change.Generation, o.Now}.set(kind, status, reason, "%s", message)
}

func (o *order) event(reason, message string) {
	o.plan.Events = append(o.plan.Events, Event{Type: corev1.EventTypeWarning, Reason: reason,
		Message: fmt.Sprintf("version %s: %s", o.Change.Spec.Reversion, message)})
}

// preAnswered says that the PRE check ended with an answer of the server, so
// that it has ended there.
func (o *order) preAnswered() bool {
	return meta.IsStatusConditionTrue(o.status.OrderSteps, v1alpha1.StepPreChecked)
}
