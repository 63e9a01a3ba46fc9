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

package certificates

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// remedy is the next step if a webhook configuration is missing.
const remedy = "apply the manifests of the operator again (kubectl apply -f quick-start.yaml), " +
	"or let the manager recreate them (kubectl apply -k config/samples/restore)"

// missingReport reports webhook configurations that stay missing in a condition of the setting blocking: without them no
// block is effective. The leader writes it.
type missingReport struct {
	// client reads from the cache.
	client    client.Client
	recorder  events.EventRecorder
	namespace string
	clock     clock.PassiveClock
}

// update writes the condition if it differs. The condition is absent until a configuration was missing.
func (m *missingReport) update(ctx context.Context, missing []string) error {
	message := ""
	if len(missing) > 0 {
		message = strings.Join(missing, " and ") + ": missing; no release is denied or checked at admission: " + remedy
	}
	setting := &v1alpha1.OpsConfigInfo{}
	if err := m.client.Get(ctx, types.NamespacedName{Namespace: m.namespace, Name: settings.NameBlocking}, setting); err != nil {
		return client.IgnoreNotFound(err) // The start creates it, and a later round writes the condition.
	}
	current := meta.FindStatusCondition(setting.Status.Conditions, v1alpha1.ConditionWebhooksConfigured)
	if current == nil && message == "" {
		return nil
	}
	if current != nil && (current.Status == metav1.ConditionFalse) == (message != "") &&
		v1alpha1.Detail("OpsConfigInfo", current) == message {
		return nil
	}
	return m.write(ctx, setting, message)
}

func (m *missingReport) write(ctx context.Context, setting *v1alpha1.OpsConfigInfo, message string) error {
	updated := setting.DeepCopy()
	condition := metav1.Condition{
		Type: v1alpha1.ConditionWebhooksConfigured, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonConfigured,
		ObservedGeneration: setting.Generation, LastTransitionTime: metav1.NewTime(m.clock.Now()),
	}
	if message != "" {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, v1alpha1.ReasonConfigurationMissing, message
	}
	v1alpha1.SetCondition("OpsConfigInfo", &updated.Status.Conditions, condition)
	if err := m.client.Status().Update(ctx, updated); err != nil {
		return fmt.Errorf("update status of opsconfiginfo %s/%s: %w", setting.Namespace, setting.Name, err)
	}
	if message != "" {
		m.recorder.Eventf(updated, nil, corev1.EventTypeWarning, v1alpha1.EventWebhookConfigurationMissing, "Configure",
			"%s", v1alpha1.EventMessage(v1alpha1.EventWebhookConfigurationMissing, message))
	}
	return nil
}
