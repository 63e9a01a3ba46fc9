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

package workload

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// Bounds of one object in the cache, in bytes unless noted: every user may create objects of 1.5
// MB, and the cache holds the objects of all namespaces.
const (
	// maxMetadata bounds the memory of the labels and annotations of an object.
	maxMetadata = 16 << 10
	// maxKept bounds the value of an annotation of an object that exceeds maxMetadata, and of an annotation of others.
	maxKept = 1 << 10
	// maxDeclared bounds the memory of an object of a declared kind.
	maxDeclared = 64 << 10
	// maxPolicy bounds the memory of the spec of a policy.
	maxPolicy = 64 << 10
	// maxName bounds names in references to other objects, which the API server does not.
	maxName = 253
	// maxOwners bounds how many owners of a revision stay.
	maxOwners = 4
	// maxContainers bounds how many container statuses of a pod stay.
	maxContainers = 64
)

// TrimOwn drops fields that no decision reads from an object of the operator's API.
func TrimOwn(obj any) (any, error) {
	if o, ok := obj.(client.Object); ok {
		trimMeta(o)
	}
	return obj, nil
}

// TrimPolicy drops fields that no decision reads from a policy, and the spec of a policy that is
// too large. The last accepted spec, in its status, stays.
func TrimPolicy(obj any) (any, error) {
	p, ok := obj.(*v1alpha1.DefensePolicy)
	if !ok {
		return obj, nil
	}
	if fits := trimMeta(p); !fits || memory(p.Spec) > maxPolicy {
		p.Labels, p.Annotations = nil, map[string]string{v1alpha1.TooLargeMark: "true"}
		p.Spec = v1alpha1.DefensePolicySpec{}
	}
	if memory(p.Status) > 2*maxPolicy {
		p.Status = v1alpha1.DefensePolicyStatus{} // not as the operator wrote it
	}
	return p, nil
}

// trimMeta drops metadata that no decision reads. It reports whether labels and annotations fit: if
// not, it keeps only short values of the kept keys, and sets TooLargeMark. A map does not become
// nil: a patch would create it, and so replace entries that the cache does not have.
func trimMeta(o metav1.Object, kept ...string) (fits bool) {
	o.SetManagedFields(nil)
	o.SetFinalizers(nil)
	o.SetOwnerReferences(controllerOnly(o.GetOwnerReferences()))
	labels, annotations := o.GetLabels(), filtered(o.GetAnnotations(), func(key, _ string) bool { return isRead(key) })
	if fits = memory(labels)+memory(annotations) <= maxMetadata; !fits {
		stays := func(key, value string) bool { return slices.Contains(kept, key) && len(value) <= maxKept }
		labels, annotations = filtered(labels, stays), filtered(annotations, stays)
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[v1alpha1.TooLargeMark] = "true"
	}
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	return fits
}

// filtered returns a copy of the entries that stay: deleting the others would free no memory.
func filtered(all map[string]string, stays func(key, value string) bool) map[string]string {
	if all == nil {
		return nil
	}
	some := map[string]string{}
	for key, value := range all {
		if stays(key, value) {
			some[key] = value
		}
	}
	return some
}

// isRead reports whether a decision may read an annotation from the cache.
func isRead(key string) bool {
	switch key {
	case v1alpha1.TooLargeMark:
		return false // only the cache sets it
	case revisionAnnotation, appsv1.DeprecatedTemplateGeneration:
		return true
	default:
		return strings.HasPrefix(key, v1alpha1.SettingAnnotationPrefix)
	}
}

// keptOfLarge returns the labels and annotations that the end of the defense of a workload reads.
func keptOfLarge() []string {
	return []string{
		v1alpha1.VersionLabel, v1alpha1.SuspendLabel,
		v1alpha1.ReleaseAnnotation, v1alpha1.SuspendedByAnnotation, v1alpha1.OverrideStaleAnnotation, v1alpha1.OptedOutAnnotation,
		v1alpha1.HaltedAnnotation, v1alpha1.HaltedFromAnnotation, v1alpha1.HeldAnnotation,
	}
}

// TrimMeta drops metadata of a workload that no decision reads. A workload that is too large counts
// as opted out: its labels and settings are not known.
func TrimMeta(u *unstructured.Unstructured) {
	if trimMeta(u, keptOfLarge()...) {
		return
	}
	labels := u.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled
	u.SetLabels(labels)
}

// TrimDeclared drops metadata of an object of a declared kind that no expression reads, and long annotations of others. If
// the object is still too large, it drops other annotations of others, then the status, then all but metadata: only labels
// and settings opt it out, as in TrimMeta. It reports whether expressions can read the object.
func TrimDeclared(u *unstructured.Unstructured) (whole bool) {
	annotations := filtered(u.GetAnnotations(), func(key, value string) bool {
		return isRead(key) || key != v1alpha1.TooLargeMark && key != corev1.LastAppliedConfigAnnotation && len(value) <= maxKept
	})
	TrimMeta(u)
	whole = u.GetAnnotations()[v1alpha1.TooLargeMark] == ""
	if whole && memory(u.GetLabels())+memory(annotations) <= maxMetadata {
		u.SetAnnotations(annotations)
	}
	if memory(u.Object) > maxDeclared {
		whole = false
		delete(u.Object, "status")
	}
	if memory(u.Object) > maxDeclared {
		u.Object = map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind(), "metadata": u.Object["metadata"]}
	}
	return whole
}

// trimStatus keeps the numbers, short texts and conditions that are read from the status of a
// workload or a ReplicaSet.
func trimStatus(status map[string]any) {
	for key, value := range status {
		switch v := value.(type) {
		case string:
			status[key] = short(v, maxName)
		case map[string]any:
			delete(status, key)
		case []any:
			status[key] = trimStatusConditions(v)
		}
	}
}

func trimStatusConditions(all []any) []any {
	var kept []any
	for _, one := range all {
		c, _ := one.(map[string]any)
		switch c["type"] {
		case string(appsv1.DeploymentAvailable), string(appsv1.DeploymentProgressing), string(appsv1.ReplicaSetReplicaFailure):
		default:
			continue
		}
		trimmed := map[string]any{}
		for _, key := range []string{"type", "status", "reason", "message", "lastTransitionTime"} {
			if text, ok := c[key].(string); ok {
				trimmed[key] = wording.Brief(text)
			}
		}
		kept = append(kept, trimmed)
	}
	return kept
}

// controllerOnly keeps the reference to the controller.
func controllerOnly(refs []metav1.OwnerReference) []metav1.OwnerReference {
	i := slices.IndexFunc(refs, func(ref metav1.OwnerReference) bool { return ref.Controller != nil && *ref.Controller })
	if i < 0 {
		return nil
	}
	return []metav1.OwnerReference{shortReference(refs[i])}
}

func shortReference(ref metav1.OwnerReference) metav1.OwnerReference {
	ref.APIVersion, ref.Kind, ref.Name = short(ref.APIVersion, maxName), short(ref.Kind, maxName), short(ref.Name, maxName)
	ref.UID = types.UID(short(string(ref.UID), maxName))
	return ref
}

// only keeps the labels of these keys.
func only(labels map[string]string, keys []string) map[string]string {
	var kept map[string]string
	for _, key := range keys {
		if v, ok := labels[key]; ok {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = v
		}
	}
	return kept
}

// short cuts a text to limit bytes. It copies the rest: a part of a string keeps the whole string
// in memory.
func short(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(strings.Clone(text[:limit]), "")
}

// worstFirst returns at most maxContainers container statuses of a pod, unhealthy containers first.
func worstFirst[T any](statuses []T, well func(*T) bool) []T {
	if len(statuses) <= maxContainers {
		return statuses
	}
	rank := func(s T) int {
		if well(&s) {
			return 1
		}
		return 0
	}
	sorted := slices.Clone(statuses)
	slices.SortStableFunc(sorted, func(a, b T) int { return cmp.Compare(rank(a), rank(b)) })
	return sorted[:maxContainers]
}

// memory estimates the size of a value in bytes, including everything it points to.
func memory(value any) int {
	v := reflect.ValueOf(value)
	return int(v.Type().Size()) + pointedTo(v)
}

func pointedTo(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.String:
		return v.Len()
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return int(v.Elem().Type().Size()) + pointedTo(v.Elem())
		}
	case reflect.Slice:
		n = v.Len() * int(v.Type().Elem().Size())
		for i := range v.Len() {
			n += pointedTo(v.Index(i))
		}
	case reflect.Map:
		n = v.Len() * int(v.Type().Key().Size()+v.Type().Elem().Size())
		for key, element := range v.Seq2() {
			n += pointedTo(key) + pointedTo(element)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += pointedTo(v.Field(i))
		}
	default: // it points to nothing
	}
	return n
}

// revisionAnnotation has the number of a revision of a Deployment.
const revisionAnnotation = "deployment.kubernetes.io/revision"

// trimWorkload trims a workload and keeps these fields of the spec. halted are the fields by which
// the operator halts it.
func trimWorkload(obj any, halted []Path, keep ...string) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	if _, due, err := HandBack(u.GetManagedFields(), templatePath); err == nil && due || owesHalt(u, halted) {
		if err := unstructured.SetNestedField(u.Object, true, trimmedHandBackPath...); err != nil {
			return nil, fmt.Errorf("trim %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
		}
	}
	if stamp := stampOf(u); stamp != "" {
		if err := unstructured.SetNestedField(u.Object, stamp, trimmedStampPath...); err != nil {
			return nil, fmt.Errorf("trim %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
		}
	}
	TrimMeta(u)
	return trim(u, Version, keep...)
}

func trimReplicaSet(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	u.SetLabels(nil) // they are the template's
	trimMeta(u, revisionAnnotation)
	return trim(u, versionOfReplicaSet, "replicas")
}

func trim(u *unstructured.Unstructured, version func(map[string]any) string, keep ...string) (any, error) {
	v, hash, err := versionAndHash(u, version)
	if err != nil {
		return nil, err
	}
	images := imagesOf(u)
	if status, ok := u.Object["status"].(map[string]any); ok {
		trimStatus(status)
	}
	if spec, ok := u.Object["spec"].(map[string]any); ok {
		for k := range spec {
			if !slices.Contains(keep, k) {
				delete(spec, k)
			}
		}
	}
	for path, value := range map[*[]string]string{&trimmedVersionPath: v, &trimmedHashPath: hash} {
		if err := unstructured.SetNestedField(u.Object, value, *path...); err != nil {
			return nil, fmt.Errorf("trim %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
		}
	}
	if err := unstructured.SetNestedStringSlice(u.Object, images, trimmedImagesPath...); err != nil {
		return nil, fmt.Errorf("trim %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	return u, nil
}
