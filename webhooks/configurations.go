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

// What the webhooks do. Each kind has one of each.
const (
	mutate     = "mutate"
	validate   = "validate"
	quarantine = "quarantine"
	policy     = "policy"
)

// callTimeout is how long an API server waits for an answer, in seconds.
const callTimeout = 3

// pathOf is where a webhook of a kind is served: /mutate-apps-v1-deployment.
func pathOf(does string, kind workload.Kind) string {
	gvk := kind.GroupVersionKind()
	return strings.ToLower(fmt.Sprintf("/%s-%s-%s-%s", does, strings.ReplaceAll(gvk.Group, ".", "-"), gvk.Version, gvk.Kind))
}

// nameOf is the name of a webhook of a kind, as users see it in a denial:
// mdeployment.kb.io. Outside of the group apps it has the group in it.
func nameOf(does string, kind workload.Kind) string {
	gvk := kind.GroupVersionKind()
	name := does[:1] + strings.ToLower(gvk.Kind)
	if gvk.Group != appsv1.GroupName {
		name += "." + gvk.Group
	}
	return name + ".kb.io"
}

// Configurations are those of the webhooks of all kinds.
//
// config/webhook/manifests.yaml is generated from them. The installation adds
// names, the service and the namespaces that are left out.
func Configurations(kinds *workload.Registry) []runtime.Object {
	return []runtime.Object{mutatingConfiguration(kinds), validatingConfiguration(kinds)}
}

// mutatingConfiguration is the configuration of the webhooks that change
// workloads. Mutation must never stand in the way of users, so it may be
// skipped, and the admission check with it. It asks AlterShield Server, which
// stores the question, except in a dry run; hence its side effects.
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

// validatingConfiguration is the configuration of the webhooks that deny
// releases. The block must hold while the operator is down, so its webhook may not be skipped. In return
// its match conditions pick only requests that it denies unless it knows
// better. A condition that excludes requests because of a label or an owner reads
// the old object as well as the new, so that no request passes unseen by what it adds itself.
// Quarantine and policies are no block: if their webhooks fail, releases pass.
func validatingConfiguration(kinds *workload.Registry) *admissionregistrationv1.ValidatingWebhookConfiguration {
	c := &admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta:   typeMeta("ValidatingWebhookConfiguration"),
		ObjectMeta: metav1.ObjectMeta{Name: "validating-webhook-configuration"},
	}
	for _, kind := range kinds.Kinds() {
		c.Webhooks = append(c.Webhooks,
			validating(quarantine, kind, admissionregistrationv1.Ignore, quarantineConditions(kind), admissionregistrationv1.Update),
			validating(validate, kind, admissionregistrationv1.Fail, blockConditions(kind), admissionregistrationv1.Update),
			validating(policy, kind, admissionregistrationv1.Ignore, policyConditions(kind), admissionregistrationv1.Create, admissionregistrationv1.Update),
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

// servedAt names the service as config/webhook does; kustomize gives it the names
// of the installation.
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

// What CEL calls the labels and annotations of the object that is stored, and of
// the one that the request would store; each may be missing.
const (
	oldLabels      = "oldObject.metadata.?labels"
	oldAnnotations = "oldObject.metadata.?annotations"
	newLabels      = "object.metadata.?labels"
	newAnnotations = "object.metadata.?annotations"
	oldOwners      = "oldObject.metadata.?ownerReferences"
	newOwners      = "object.metadata.?ownerReferences"
)

// templateChanged says in CEL that a request releases something.
func templateChanged(kind workload.Kind) string {
	return fmt.Sprintf("object.%[1]s != oldObject.%[1]s", kind.TemplatePath())
}

// blockConditions say the same as decide.Validate, except that they
// cannot recognize the operator's own requests, or undos; and what another object
// owns before and after a request they leave out, because it is denied nothing, also while the
// operator is down. Its owner could not override. A request that opts out while blocked is asked
// about, although it is allowed.
func blockConditions(kind workload.Kind) []admissionregistrationv1.MatchCondition {
	override := isValue(newLabels, v1alpha1.IgnoredSuspendLabel, v1alpha1.IgnoredSuspendValue)
	// The label was there before the block, and is not meant for it.
	stale := isValue(oldLabels, v1alpha1.IgnoredSuspendLabel, v1alpha1.IgnoredSuspendValue) + " && " +
		has(oldAnnotations, v1alpha1.OverrideStaleAnnotation)
	// Mutation, earlier in this very request, uses the label up. The annotation it
	// leaves names the resource version, after that of the template.
	notUsedUp := value(newAnnotations, v1alpha1.OverrideAnnotation) + ".split(' ')[?1].orValue('') != oldObject.metadata.resourceVersion"
	return []admissionregistrationv1.MatchCondition{
		{Name: "suspended", Expression: has(oldLabels, v1alpha1.SuspendLabel)},
		// The label may be empty, so its presence counts, too.
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

// quarantineConditions pick the releases of workloads that were rolled back.
// Only the webhook knows which versions are in quarantine, and until when.
func quarantineConditions(kind workload.Kind) []admissionregistrationv1.MatchCondition {
	return []admissionregistrationv1.MatchCondition{
		{Name: "rolled-back-before", Expression: has(oldAnnotations, v1alpha1.QuarantinedAnnotation)},
		{Name: "released", Expression: templateChanged(kind)},
		{Name: "not-opted-out", Expression: notOptedOut()},
	}
}

// policyConditions pick what releases. Only the webhook knows policies, and undos.
func policyConditions(kind workload.Kind) []admissionregistrationv1.MatchCondition {
	return []admissionregistrationv1.MatchCondition{
		{Name: "released", Expression: "oldObject == null || " + templateChanged(kind)},
		{Name: "not-opted-out", Expression: "oldObject == null && " + notOptedOutIn(newLabels) + " || oldObject != null && (" + notOptedOut() + ")"},
	}
}

// notOptedOut says in CEL that a workload is not opted out before an update, or after it.
func notOptedOut() string { return notOptedOutIn(oldLabels) + " || " + notOptedOutIn(newLabels) }

func notOptedOutIn(labels string) string {
	return fmt.Sprintf("%s != '%s'", value(labels, v1alpha1.DefenseLabel), v1alpha1.DefenseDisabled)
}

// notOwned says in CEL that these owners of a workload have no controller among them, as
// defense.OwnerOf does.
func notOwned(owners string) string {
	return fmt.Sprintf("!%s.orValue([]).exists(owner, owner.?controller.orValue(false) == true)", owners)
}

// has says in CEL that a key is there.
func has(keys, key string) string { return fmt.Sprintf("'%s' in %s.orValue({})", key, keys) }

// optional is in CEL the value of a key, or none where it is not there.
func optional(keys, key string) string { return fmt.Sprintf("%s['%s']", keys, key) }

// value is in CEL the value of a key; empty where it is not there.
func value(keys, key string) string { return optional(keys, key) + ".orValue('')" }

// isValue says in CEL that a key has a value.
func isValue(keys, key, want string) string { return fmt.Sprintf("%s == '%s'", value(keys, key), want) }
