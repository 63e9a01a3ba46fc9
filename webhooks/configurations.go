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
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Each kind has these webhooks.
const (
	mutate     = "mutate"
	validate   = "validate"
	quarantine = "quarantine"
	policy     = "policy"
)

// callTimeout is the time that an API server waits for an answer, in seconds.
const callTimeout = 3

// pathOf returns the path of a webhook: /mutate-apps-v1-deployment.
func pathOf(does string, kind workload.Kind) string {
	gvk := kind.GroupVersionKind()
	return strings.ToLower(fmt.Sprintf("/%s-%s-%s-%s", does, strings.ReplaceAll(gvk.Group, ".", "-"), gvk.Version, gvk.Kind))
}

// nameOf returns the name of a webhook, which users see in a denial: mdeployment.kb.io.
// Outside of the group apps the name contains the group.
func nameOf(does string, kind workload.Kind) string {
	gvk := kind.GroupVersionKind()
	name := does[:1] + strings.ToLower(gvk.Kind)
	if gvk.Group != appsv1.GroupName {
		name += "." + gvk.Group
	}
	return name + ".kb.io"
}

// Configurations returns the webhook configurations for all kinds.
//
// config/webhook/manifests.yaml is generated from them. The installation adds
// names, the service and the excluded namespaces.
func Configurations(kinds *workload.Registry) []runtime.Object {
	return []runtime.Object{mutatingConfiguration(kinds), validatingConfiguration(kinds)}
}

// mutatingConfiguration returns the configuration of the webhooks that change
// workloads. A failing mutation must not stop users, so its failure policy is Ignore,
// and the admission check is skipped with it. The check makes AlterShield Server store
// an order, except in a dry run; hence the side effects.
func mutatingConfiguration(kinds *workload.Registry) *admissionregistrationv1.MutatingWebhookConfiguration {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{
		TypeMeta:   typeMeta("MutatingWebhookConfiguration"),
		ObjectMeta: metav1.ObjectMeta{Name: "mutating-webhook-configuration"},
	}
	for _, kind := range kinds.Kinds() {
		c.Webhooks = append(c.Webhooks, admissionregistrationv1.MutatingWebhook{
			Name:                    nameOf(mutate, kind),
			ClientConfig:            servedAt(pathOf(mutate, kind)),
			Rules:                   rulesOf(kind, admissionregistrationv1.Create, admissionregistrationv1.Update),
			NamespaceSelector:       ofEnrolled(),
			MatchPolicy:             ptr.To(admissionregistrationv1.Equivalent),
			FailurePolicy:           ptr.To(admissionregistrationv1.Ignore),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNoneOnDryRun),
			ReinvocationPolicy:      ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy),
			TimeoutSeconds:          ptr.To[int32](callTimeout),
			AdmissionReviewVersions: []string{"v1"},
		})
	}
	return c
}

// validatingConfiguration returns the configuration of the webhooks that deny releases. The
// block must be in force while the operator is down, so the failure policy of its webhook is
// Fail. Its match conditions select only requests that it denies, with few exceptions. A
// condition that excludes requests by a label or an owner reads both the old and the new
// object, so that a request cannot exclude itself. If the webhooks for quarantine and
// policies fail, releases pass.
func validatingConfiguration(kinds *workload.Registry) *admissionregistrationv1.ValidatingWebhookConfiguration {
	c := &admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta:   typeMeta("ValidatingWebhookConfiguration"),
		ObjectMeta: metav1.ObjectMeta{Name: "validating-webhook-configuration"},
	}
	for _, kind := range kinds.Kinds() {
		c.Webhooks = append(c.Webhooks,
			validating(quarantine, kind, admissionregistrationv1.Ignore, quarantineConditions(kind), admissionregistrationv1.Update),
			validating(validate, kind, admissionregistrationv1.Fail, blockConditions(kind), admissionregistrationv1.Update),
			validating(policy, kind, admissionregistrationv1.Ignore, policyConditions(kind),
				admissionregistrationv1.Create, admissionregistrationv1.Update),
		)
	}
	return c
}

func validating(
	does string, kind workload.Kind, failure admissionregistrationv1.FailurePolicyType, conditions []admissionregistrationv1.MatchCondition,
	operations ...admissionregistrationv1.OperationType,
) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{
		Name:                    nameOf(does, kind),
		ClientConfig:            servedAt(pathOf(does, kind)),
		Rules:                   rulesOf(kind, operations...),
		NamespaceSelector:       ofEnrolled(),
		MatchConditions:         conditions,
		MatchPolicy:             ptr.To(admissionregistrationv1.Equivalent),
		FailurePolicy:           ptr.To(failure),
		SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
		TimeoutSeconds:          ptr.To[int32](callTimeout),
		AdmissionReviewVersions: []string{"v1"},
	}
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: kind}
}

// servedAt returns the client config for a path. Its service is named as in config/webhook;
// kustomize replaces the names.
func servedAt(path string) admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{
		Namespace: "system", Name: "webhook-service", Path: &path,
	}}
}

func rulesOf(kind workload.Kind, operations ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
	gvk := kind.GroupVersionKind()
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: operations,
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{gvk.Group}, APIVersions: []string{gvk.Version}, Resources: []string{kind.Resource()},
		},
	}}
}

func ofEnrolled() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue}}
}

// CEL expressions for the metadata of the stored object and of the new object. Each value
// may be missing.
const (
	oldLabels      = "oldObject.metadata.?labels"
	oldAnnotations = "oldObject.metadata.?annotations"
	newLabels      = "object.metadata.?labels"
	newAnnotations = "object.metadata.?annotations"
	oldOwners      = "oldObject.metadata.?ownerReferences"
	newOwners      = "object.metadata.?ownerReferences"
)

// templateChanged returns CEL that is true if a request changes the template.
func templateChanged(kind workload.Kind) string {
	return fmt.Sprintf("object.%[1]s != oldObject.%[1]s", kind.TemplatePath())
}

// blockConditions select the requests that decide.Validate denies, with these differences:
//   - They also select the operator's own requests and undos, which CEL cannot recognize.
//   - They also select a request that opts out a blocked workload, which is allowed.
//   - They exclude a workload that another object owns before and after the request, unless the
//     label defense has the value enforced. It is never denied, even while the operator is down,
//     because its owner cannot override.
func blockConditions(kind workload.Kind) []admissionregistrationv1.MatchCondition {
	override := isValue(newLabels, v1alpha1.IgnoredSuspendLabel, v1alpha1.IgnoredSuspendValue)
	// The label is older than the block, so it does not override the block.
	stale := isValue(oldLabels, v1alpha1.IgnoredSuspendLabel, v1alpha1.IgnoredSuspendValue) + " && " +
		has(oldAnnotations, v1alpha1.OverrideStaleAnnotation)
	// Mutation of the same request removed the label. It set an annotation instead, whose
	// second word is the resource version.
	notUsedUp := value(newAnnotations, v1alpha1.OverrideAnnotation) + ".split(' ')[?1].orValue('') != oldObject.metadata.resourceVersion"
	return []admissionregistrationv1.MatchCondition{
		{Name: "suspended", Expression: has(oldLabels, v1alpha1.SuspendLabel)},
		// An empty label differs from a missing label.
		{Name: "released-or-resumed", Expression: templateChanged(kind) + " || " +
			optional(newLabels, v1alpha1.SuspendLabel) + " != " + optional(oldLabels, v1alpha1.SuspendLabel)},
		{Name: "neither-overridden-nor-opted-out", Expression: strings.Join([]string{
			"!(" + override + " && !(" + stale + "))", notUsedUp, "(" + notOptedOut() + ")",
		}, " && ")},
		{Name: "not-observed-because-of-its-owner", Expression: strings.Join([]string{
			isValue(oldLabels, v1alpha1.DefenseLabel, v1alpha1.DefenseEnforced), notOwned(oldOwners),
			isValue(newLabels, v1alpha1.DefenseLabel, v1alpha1.DefenseEnforced), notOwned(newOwners),
		}, " || ")},
	}
}

// quarantineConditions select the releases of workloads that were rolled back. Only the
// webhook can read which versions are in quarantine, and until when.
func quarantineConditions(kind workload.Kind) []admissionregistrationv1.MatchCondition {
	return []admissionregistrationv1.MatchCondition{
		{Name: "rolled-back-before", Expression: has(oldAnnotations, v1alpha1.QuarantinedAnnotation)},
		{Name: "released", Expression: templateChanged(kind)},
		{Name: "not-opted-out", Expression: notOptedOut()},
	}
}

// policyConditions select releases. Only the webhook knows policies and undos.
func policyConditions(kind workload.Kind) []admissionregistrationv1.MatchCondition {
	return []admissionregistrationv1.MatchCondition{
		{Name: "released", Expression: "oldObject == null || " + templateChanged(kind)},
		{Name: "not-opted-out", Expression: "oldObject == null && " + notOptedOutIn(newLabels) +
			" || oldObject != null && (" + notOptedOut() + ")"},
	}
}

// notOptedOut returns CEL that is true if a workload is not opted out before an update, or not
// after it.
func notOptedOut() string { return notOptedOutIn(oldLabels) + " || " + notOptedOutIn(newLabels) }

func notOptedOutIn(labels string) string {
	return fmt.Sprintf("%s != '%s'", value(labels, v1alpha1.DefenseLabel), v1alpha1.DefenseDisabled)
}

// notOwned returns CEL that is true if no owner is a controller, as in workload.OwnerOf.
func notOwned(owners string) string {
	return fmt.Sprintf("!%s.orValue([]).exists(owner, owner.?controller.orValue(false) == true)", owners)
}

// has returns CEL that is true if a key exists.
func has(keys, key string) string { return fmt.Sprintf("'%s' in %s.orValue({})", key, keys) }

// optional returns CEL for the optional value of a key.
func optional(keys, key string) string { return fmt.Sprintf("%s['%s']", keys, key) }

// value returns CEL for the value of a key; empty if the key is missing.
func value(keys, key string) string { return optional(keys, key) + ".orValue('')" }

// isValue returns CEL that is true if a key has a value.
func isValue(keys, key, want string) string { return fmt.Sprintf("%s == '%s'", value(keys, key), want) }
