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

package observer

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func ownLabels() []string {
	return []string{v1alpha1.VersionLabel, v1alpha1.DefenseStatusLabel, v1alpha1.SuspendLabel, v1alpha1.IgnoredSuspendLabel}
}

func ownAnnotations() []string {
	return []string{
		v1alpha1.ReleaseAnnotation, v1alpha1.ReleasedByAnnotation, v1alpha1.SuspendedByAnnotation, v1alpha1.OverrideAnnotation,
		v1alpha1.OverrideReportedAnnotation, v1alpha1.OverrideStaleAnnotation, v1alpha1.HaltedAnnotation, v1alpha1.HaltedFromAnnotation,
		v1alpha1.HeldAnnotation, v1alpha1.HoldEndedAnnotation,
		v1alpha1.QuarantinedAnnotation, v1alpha1.QuarantineReasonAnnotation, v1alpha1.RollbackToAnnotation,
		v1alpha1.RollbackRequestedAnnotation, v1alpha1.UnquarantineAnnotation, v1alpha1.UnquarantinedAnnotation,
		v1alpha1.AdmittedAnnotation, v1alpha1.ContentAnnotation, v1alpha1.OptedOutAnnotation, v1alpha1.SettingsAlteredAnnotation,
	}
}

// checkDeployment judges two consecutive versions of a Deployment; defended: its namespace is
// enrolled.
func checkDeployment(before, after *appsv1.Deployment, by Writer, defended bool) []finding {
	switch by {
	case Operator:
		return slices.Concat(checkOwnFields(before, after), checkPause(before, after), checkRollback(before, after))
	case Other:
		if defended {
			return checkBlock(before, after)
		}
	case Unknown: // byEither judges it as both
	}
	return nil
}

// checkOwnFields checks S6: except for the operator's fields, both versions are equal.
func checkOwnFields(before, after *appsv1.Deployment) []finding {
	_, wasHeld := holdOf(before)
	_, isHeld := holdOf(after)
	released := !equality.Semantic.DeepEqual(before.Spec.Template, after.Spec.Template)
	foreign := func(d *appsv1.Deployment) *appsv1.Deployment {
		d = d.DeepCopy()
		d.ManagedFields, d.ResourceVersion, d.Generation = nil, "", 0
		d.Spec.Paused = false
		delete(d.Annotations, evictsAnnotation)
		if _, native := d.Annotations[restAnnotation]; (wasHeld || isHeld) && !native { // checkGivenBack checks these fields
			d.Spec.MinReadySeconds, d.Spec.ProgressDeadlineSeconds = 0, nil
		} else if wasHeld || isHeld {
			delete(d.Annotations, partitionAnnotation)
		}
		d.Labels, d.Annotations = without(d.Labels, ownLabels()), without(d.Annotations, ownAnnotations())
		if released { // a rollback
			d.Spec.Template = corev1.PodTemplateSpec{}
			// These annotations follow the template.
			delete(d.Annotations, v1alpha1.ChangeCauseAnnotation)
			delete(d.Annotations, corev1.LastAppliedConfigAnnotation)
		}
		return d
	}
	if a, b := foreign(before), foreign(after); !equality.Semantic.DeepEqual(a, b) {
		return []finding{found(OwnFields, "the operator changed fields that are not its own (-before +after):\n%s", cmp.Diff(a, b))}
	}
	return nil
}

// checkPause checks S5.
func checkPause(before, after *appsv1.Deployment) []finding {
	if before.Spec.Paused && !after.Spec.Paused && before.Annotations[v1alpha1.HaltedAnnotation] == "" {
		return []finding{found(OwnPause, "the operator removed a pause that was not its own")}
	}
	return nil
}

// checkRollback checks S1: the write that restores a template puts the current release into
// quarantine, with its cause.
func checkRollback(before, after *appsv1.Deployment) []finding {
	if equality.Semantic.DeepEqual(before.Spec.Template, after.Spec.Template) {
		return nil
	}
	left, to := before.Labels[v1alpha1.VersionLabel], after.Labels[v1alpha1.VersionLabel]
	var reasons map[string]struct {
		Cause, To string
		Release   int64
	}
	if err := json.Unmarshal([]byte(after.Annotations[v1alpha1.QuarantineReasonAnnotation]), &reasons); err != nil {
		return []finding{found(RollbackCause, "rolled back without a cause that can be read: %v", err)}
	}
	held := strings.Split(after.Annotations[v1alpha1.QuarantinedAnnotation], ",")
	release, _ := strconv.ParseInt(before.Annotations[v1alpha1.ReleaseAnnotation], 10, 64)
	for version, why := range reasons {
		if left == "" && why.Release == release && why.To == to {
			left = version // a baseline has no label
		}
	}
	switch why := reasons[left]; {
	case why.Cause == "" || !slices.Contains(held, left):
		return []finding{found(RollbackCause, "rolled back from %s, which is not in quarantine, or without a cause", left)}
	case why.Release != release || why.To != to:
		return []finding{found(RollbackCause, "rolled back from release %d of %s to %s, because of release %d, to %s",
			release, left, to, why.Release, why.To)}
	case slices.Contains(held, to):
		return []finding{found(RollbackCause, "rolled back to %s, which is in quarantine", to)}
	}
	return nil
}

// observed reports whether a workload is in observe mode by its own annotation, or because of its
// owner. The mode of its namespace is unknown here.
func observed(d *appsv1.Deployment) bool {
	owned := metav1.GetControllerOf(d) != nil && d.Labels[v1alpha1.DefenseLabel] != v1alpha1.DefenseEnforced
	return owned || d.Annotations[v1alpha1.SettingAnnotationPrefix+"observe"] == "enabled"
}

// checkBlock checks S3 for writes of users.
func checkBlock(before, after *appsv1.Deployment) []finding {
	since, blocked := before.Labels[v1alpha1.SuspendLabel]
	if !blocked || after.Labels[v1alpha1.DefenseLabel] == v1alpha1.DefenseDisabled ||
		overridden(before, after) || wentBack(before, after) || observed(after) {
		return nil
	}
	var findings []finding
	if !equality.Semantic.DeepEqual(before.Spec.Template, after.Spec.Template) {
		findings = append(findings, found(BlockHolds, "the template changed in spite of the block (-before +after):\n%s",
			cmp.Diff(before.Spec.Template, after.Spec.Template)))
	}
	if still, ok := after.Labels[v1alpha1.SuspendLabel]; !ok || still != since {
		findings = append(findings, found(BlockHolds, "the block was removed or changed, and not by the operator"))
	}
	return findings
}

// wentBack reports whether the later version is an undo of the earlier one, whose failure the
// operator blocked: admission put the earlier version into quarantine, and recorded the user.
// Whether admission was right is checked with the release.
func wentBack(before, after *appsv1.Deployment) bool {
	var reasons map[string]struct {
		Cause, To, By string
		Release       int64
	}
	if json.Unmarshal([]byte(after.Annotations[v1alpha1.QuarantineReasonAnnotation]), &reasons) != nil {
		return false
	}
	left, to := before.Labels[v1alpha1.VersionLabel], after.Labels[v1alpha1.VersionLabel]
	release, _ := strconv.ParseInt(before.Annotations[v1alpha1.ReleaseAnnotation], 10, 64)
	why := reasons[left]
	held := strings.Split(after.Annotations[v1alpha1.QuarantinedAnnotation], ",")
	return before.Annotations[v1alpha1.SuspendedByAnnotation] != "" &&
		after.Labels[v1alpha1.SuspendLabel] == before.Labels[v1alpha1.SuspendLabel] &&
		why.Cause == v1alpha1.ReasonVerificationFailed && why.By != "" && (why.To == to || led(before, to, why.To)) && why.Release == release &&
		slices.Contains(held, left) && !slices.Contains(held, to) && !slices.Contains(held, why.To)
}

// led reports whether a template led to another version than admission saw: the API server stored
// that version, and the label follows.
func led(d *appsv1.Deployment, seen, stored string) bool {
	return slices.Contains(strings.Split(d.Annotations[v1alpha1.AdmittedAnnotation], ","), seen+"="+stored)
}

// overridden reports whether the later version passed the block of the earlier one: by the record
// of admission or, while mutation was down, by the label itself, unless the label was there before
// the block.
func overridden(before, after *appsv1.Deployment) bool {
	record := strings.SplitN(after.Annotations[v1alpha1.OverrideAnnotation], " ", 3)
	if len(record) == 3 && record[1] == before.ResourceVersion && record[0] == after.Labels[v1alpha1.VersionLabel] {
		return true
	}
	_, stale := before.Annotations[v1alpha1.OverrideStaleAnnotation]
	stale = stale && before.Labels[v1alpha1.IgnoredSuspendLabel] == v1alpha1.IgnoredSuspendValue
	return after.Labels[v1alpha1.IgnoredSuspendLabel] == v1alpha1.IgnoredSuspendValue && !stale
}

// rolledOut reports whether a rollout is complete.
func rolledOut(d *appsv1.Deployment) bool {
	want := int32(1)
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	s := &d.Status
	return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == want && s.AvailableReplicas == want && s.Replicas == want
}

func optedOut(o metav1.Object) bool {
	return o.GetLabels()[v1alpha1.DefenseLabel] == v1alpha1.DefenseDisabled
}
