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
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func newUnstructured(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	return u
}

func newUnstructuredList(gvk schema.GroupVersionKind) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	return list
}

// versionAndHash reads version and hash from a trimmed object, or computes them from the template
// of an object that is not trimmed.
func versionAndHash(u *unstructured.Unstructured, version func(map[string]any) string) (v, hash string, err error) {
	if v, ok, _ := unstructured.NestedString(u.Object, trimmedVersionPath...); ok {
		hash, _, err = unstructured.NestedString(u.Object, trimmedHashPath...)
		return v, hash, err
	}
	template, ok, err := unstructured.NestedFieldNoCopy(u.Object, templatePath...)
	if err != nil || !ok {
		return "", "", fmt.Errorf("%s %s/%s has no spec.template: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	m, ok := template.(map[string]any)
	if !ok {
		return "", "", fmt.Errorf("%s %s/%s: spec.template is not an object", u.GetKind(), u.GetNamespace(), u.GetName())
	}
	return version(m), canonicalHash(m), nil
}

// templatePath is the path of the pod template of all kinds of apps/v1.
var templatePath = Path{"spec", "template"}

// withoutTemplate returns the spec of a workload without its template: this build may not know the
// types of all fields of the template.
func withoutTemplate(content map[string]any) map[string]any {
	spec, _ := content["spec"].(map[string]any)
	rest := make(map[string]any, len(spec))
	for k, v := range spec {
		if k != "template" {
			rest[k] = v
		}
	}
	return rest
}

// Paths of data that a trimmed object keeps of its template. The API has no such fields.
var (
	trimmedVersionPath = []string{"altershield", "version"}
	trimmedHashPath    = []string{"altershield", "templateHash"}
	trimmedImagesPath  = []string{"altershield", "images"}
	// trimmedStampPath is the path of the template's version label.
	trimmedStampPath = []string{"altershield", "stamp"}
	// trimmedHandBackPath is the path of a boolean: true if HandBack has something to do.
	trimmedHandBackPath = []string{"altershield", "handBack"}
)

// read reads a workload, trimmed or as the API server sent it, and the hash of its template. It
// converts everything except the template into the typed object: a template with fields that this
// build does not know is no obstacle.
func read(obj *unstructured.Unstructured, typed client.Object) (w *Workload, hash string, err error) {
	version, hash, err := versionAndHash(obj, Version)
	if err != nil {
		return nil, "", err
	}
	content := map[string]any{"metadata": obj.Object["metadata"], "spec": withoutTemplate(obj.Object), "status": obj.Object["status"]}
	if content["status"] == nil {
		content["status"] = map[string]any{}
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, typed); err != nil {
		return nil, "", fmt.Errorf("read %s %s/%s: %w", strings.ToLower(obj.GetKind()), obj.GetNamespace(), obj.GetName(), err)
	}
	w = &Workload{
		GVK:             obj.GroupVersionKind(),
		Namespace:       typed.GetNamespace(),
		Name:            typed.GetName(),
		UID:             typed.GetUID(),
		ResourceVersion: typed.GetResourceVersion(),
		Labels:          typed.GetLabels(),
		Annotations:     typed.GetAnnotations(),
		Images:          imagesOf(obj),
		Deleting:        typed.GetDeletionTimestamp() != nil,
		Owner:           OwnerOf(typed),
		Version:         version,
	}
	w.HandBack, _, _ = unstructured.NestedBool(obj.Object, trimmedHandBackPath...)
	return w, hash, nil
}

// getAgain reads a workload once more; nil if it no longer exists.
func getAgain(ctx context.Context, r client.Reader, kind Kind, w *Workload) (*unstructured.Unstructured, error) {
	obj := newUnstructured(kind.GroupVersionKind())
	err := r.Get(ctx, types.NamespacedName{Namespace: w.Namespace, Name: w.Name}, obj)
	if err != nil || obj.GetUID() != w.UID {
		return nil, client.IgnoreNotFound(err)
	}
	return obj, nil
}

// typeFields converts only these fields of the spec of a workload into the typed object.
func typeFields(stored *unstructured.Unstructured, typed client.Object, fields ...string) error {
	spec, _ := stored.Object["spec"].(map[string]any)
	some := map[string]any{}
	for _, name := range fields {
		if value := spec[name]; value != nil {
			some[name] = value
		}
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{"spec": some}, typed); err != nil {
		return fmt.Errorf("read %s %s/%s: %w", strings.ToLower(stored.GetKind()), stored.GetNamespace(), stored.GetName(), err)
	}
	return nil
}

// stampOf reads the version label of the template, from a trimmed object or from its template.
func stampOf(u *unstructured.Unstructured) string {
	if stamp, ok, err := unstructured.NestedString(u.Object, trimmedStampPath...); ok && err == nil {
		return stamp
	}
	stamp, _, _ := unstructured.NestedString(u.Object, "spec", "template", "metadata", "labels", v1alpha1.VersionLabel)
	return stamp
}
