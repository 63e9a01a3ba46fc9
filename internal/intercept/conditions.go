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

package intercept

import (
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

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

// blockConditions select the requests that decide.Validate denies, with these differences:
//   - They also select the operator's own requests and undos, which CEL cannot recognize.
//   - They also select a request that opts out a blocked workload, which is allowed.
//   - They exclude a workload that another object owns before and after the request, unless the
//     label defense has the value enforced. It is never denied, even while the operator is down,
//     because its owner cannot override.
func blockConditions(changed string) []admissionregistrationv1.MatchCondition {
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
		{Name: "released-or-resumed", Expression: changed + " || " +
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
func quarantineConditions(changed string) []admissionregistrationv1.MatchCondition {
	return []admissionregistrationv1.MatchCondition{
		{Name: "rolled-back-before", Expression: has(oldAnnotations, v1alpha1.QuarantinedAnnotation)},
		{Name: "released", Expression: changed},
		{Name: "not-opted-out", Expression: notOptedOut()},
	}
}

// policyConditions select releases. Only the webhook knows policies and undos.
func policyConditions(changed string) []admissionregistrationv1.MatchCondition {
	return []admissionregistrationv1.MatchCondition{
		{Name: "released", Expression: "oldObject == null || " + changed},
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
