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

// Package intercept describes the webhooks of a kind: which requests they intercept, and what happens while the operator
// does not answer.
//
//	hooks.go       the webhooks of a kind
//	conditions.go  their match conditions, as CEL
package intercept

import (
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Each kind has these webhooks.
const (
	Mutate     = "mutate"
	Validate   = "validate"
	Quarantine = "quarantine"
	Policy     = "policy"
)

// CallTimeout is the time that an API server waits for an answer, in seconds.
const CallTimeout = 3

// Subject is a kind whose requests are intercepted.
type Subject struct {
	schema.GroupVersionKind
	Resource string
	// Changed is CEL that is true if a request changes the content of an object.
	Changed string
	// Path returns the path of a webhook.
	Path func(does string) string
	// Scope limits the rules; nil for none. Objects selects objects by their labels; nil for all.
	Scope   *admissionregistrationv1.ScopeType
	Objects *metav1.LabelSelector
}

// nameOf returns the name of a webhook, which users see in a denial: mdeployment.kb.io.
// Outside of the group apps the name contains the group.
func (s *Subject) nameOf(does string) string {
	name := does[:1] + strings.ToLower(s.Kind)
	switch s.Group {
	case appsv1.GroupName:
	case corev1.GroupName:
		name += ".core"
	default:
		name += "." + s.Group
	}
	return name + ".kb.io"
}

// Mutating returns the webhook that changes objects. A failing mutation must not stop users, so
// its failure policy is Ignore, and the admission check is skipped with it. The check makes
// AlterShield Server store an order, except in a dry run; hence the side effects.
func (s *Subject) Mutating() admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{
		Name:                    s.nameOf(Mutate),
		ClientConfig:            servedAt(s.Path(Mutate)),
		Rules:                   s.rulesOf(admissionregistrationv1.Create, admissionregistrationv1.Update),
		NamespaceSelector:       ofEnrolled(),
		ObjectSelector:          s.Objects,
		MatchPolicy:             ptr.To(admissionregistrationv1.Equivalent),
		FailurePolicy:           ptr.To(admissionregistrationv1.Ignore),
		SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNoneOnDryRun),
		ReinvocationPolicy:      ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy),
		TimeoutSeconds:          ptr.To[int32](CallTimeout),
		AdmissionReviewVersions: []string{"v1"},
	}
}

// Validating returns the webhooks that deny releases. The block must be in force while the
// operator is down, so the failure policy of its webhook is Fail. Its match conditions select
// only requests that it denies, with few exceptions. A condition that excludes requests by a
// label or an owner reads both the old and the new object, so that a request cannot exclude
// itself. If the webhooks for quarantine and policies fail, releases pass.
func (s *Subject) Validating() []admissionregistrationv1.ValidatingWebhook {
	return []admissionregistrationv1.ValidatingWebhook{
		s.validating(Quarantine, admissionregistrationv1.Ignore, quarantineConditions(s.Changed), admissionregistrationv1.Update),
		s.validating(Validate, admissionregistrationv1.Fail, blockConditions(s.Changed), admissionregistrationv1.Update),
		s.validating(Policy, admissionregistrationv1.Ignore, policyConditions(s.Changed),
			admissionregistrationv1.Create, admissionregistrationv1.Update),
	}
}

func (s *Subject) validating(
	does string, failure admissionregistrationv1.FailurePolicyType, conditions []admissionregistrationv1.MatchCondition,
	operations ...admissionregistrationv1.OperationType,
) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{
		Name:                    s.nameOf(does),
		ClientConfig:            servedAt(s.Path(does)),
		Rules:                   s.rulesOf(operations...),
		NamespaceSelector:       ofEnrolled(),
		ObjectSelector:          s.Objects,
		MatchConditions:         conditions,
		MatchPolicy:             ptr.To(admissionregistrationv1.Equivalent),
		FailurePolicy:           ptr.To(failure),
		SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
		TimeoutSeconds:          ptr.To[int32](CallTimeout),
		AdmissionReviewVersions: []string{"v1"},
	}
}

// servedAt returns the client config for a path. Its service is named as in config/webhook;
// kustomize replaces the names.
func servedAt(path string) admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{
		Namespace: "system", Name: "webhook-service", Path: &path,
	}}
}

func (s *Subject) rulesOf(operations ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: operations,
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{s.Group}, APIVersions: []string{s.Version}, Resources: []string{s.Resource}, Scope: s.Scope,
		},
	}}
}

func ofEnrolled() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue}}
}
