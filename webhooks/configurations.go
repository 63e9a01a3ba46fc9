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

package webhooks

import (
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/intercept"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// pathOf returns the path of a webhook: /mutate-apps-v1-deployment.
func pathOf(does string, kind workload.Kind) string {
	gvk := kind.GroupVersionKind()
	return strings.ToLower(fmt.Sprintf("/%s-%s-%s-%s", does, strings.ReplaceAll(gvk.Group, ".", "-"), gvk.Version, gvk.Kind))
}

// Configurations returns the webhook configurations for all kinds that no ChangeKind declares.
//
// config/webhook/manifests.yaml is generated from them. The installation adds
// names, the service and the excluded namespaces.
func Configurations(kinds *workload.Registry) []runtime.Object {
	return []runtime.Object{mutatingConfiguration(kinds), validatingConfiguration(kinds)}
}

func mutatingConfiguration(kinds *workload.Registry) *admissionregistrationv1.MutatingWebhookConfiguration {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{
		TypeMeta:   typeMeta("MutatingWebhookConfiguration"),
		ObjectMeta: metav1.ObjectMeta{Name: "mutating-webhook-configuration"},
	}
	for _, kind := range kinds.Kinds() {
		if _, later := kind.(hub.Declared); !later {
			c.Webhooks = append(c.Webhooks, subjectOf(kind).Mutating())
		}
	}
	return c
}

func validatingConfiguration(kinds *workload.Registry) *admissionregistrationv1.ValidatingWebhookConfiguration {
	c := &admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta:   typeMeta("ValidatingWebhookConfiguration"),
		ObjectMeta: metav1.ObjectMeta{Name: "validating-webhook-configuration"},
	}
	for _, kind := range kinds.Kinds() {
		if _, later := kind.(hub.Declared); !later {
			c.Webhooks = append(c.Webhooks, subjectOf(kind).Validating()...)
		}
	}
	return c
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: kind}
}

func subjectOf(kind workload.Kind) *intercept.Subject {
	return &intercept.Subject{
		GroupVersionKind: kind.GroupVersionKind(), Resource: kind.Resource(),
		Changed: fmt.Sprintf("object.%[1]s != oldObject.%[1]s", kind.ContentPaths()[0]),
		Path:    func(does string) string { return pathOf(does, kind) },
	}
}
