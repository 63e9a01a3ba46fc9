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

package declared

import (
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// keptField is the field of a trimmed object that has data of its content.
const keptField = "altershield"

// Fields of keptField.
const (
	keptVersion = "version"
	keptImages  = "images"
	keptMark    = "trimmed"
)

// trimmed is the value of keptMark. No object of an API server has a value of this type, so that users cannot make an
// object look trimmed.
const trimmed = json.Number("1")

// keptOf returns the data of the content of a trimmed object; nil if the object is not trimmed.
func keptOf(object map[string]any) map[string]any {
	kept, _ := object[keptField].(map[string]any)
	if kept[keptMark] != trimmed {
		return nil
	}
	return kept
}

// Trim drops the content of an object on its way into the cache, and metadata that no decision reads. Version and images
// of the content stay, and so do fields of the content that the operator reads. A trimmed object stays as it is.
func (k *Kind) Trim(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || keptOf(u.Object) != nil {
		return obj, nil
	}
	images := []any{}
	for _, image := range k.ImagesOf(u.Object) {
		images = append(images, image)
	}
	kept := map[string]any{keptVersion: k.VersionOf(u.Object), keptImages: images, keptMark: trimmed}
	fields := map[v1alpha1.ChangeKindPath]any{}
	for _, path := range k.reads() {
		if value, ok := get(u.Object, pathOf(path)); ok {
			fields[path] = value
		}
	}
	for i := range k.content {
		unstructured.RemoveNestedField(u.Object, k.content[i].path...)
	}
	for path, value := range fields {
		if err := unstructured.SetNestedField(u.Object, value, pathOf(path)...); err != nil {
			return nil, fmt.Errorf("trim %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
		}
	}
	delete(u.Object, keptField)
	if err := workload.TrimDeclared(u); err != nil {
		return nil, fmt.Errorf("trim %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	u.Object[keptField] = kept
	return u, nil
}

// reads returns the fields that the operator reads from an object in the cache, whether they are content or not.
func (k *Kind) reads() []v1alpha1.ChangeKindPath {
	r := &k.Spec.Rollout
	paths := []v1alpha1.ChangeKindPath{k.Spec.Replicas, r.MinReadySeconds, r.Partition}
	if k.Spec.Pods != nil {
		paths = append(paths, k.Spec.Pods.Selector)
	}
	for i := range r.Halt {
		paths = append(paths, r.Halt[i].Path)
	}
	return slices.DeleteFunc(paths, func(path v1alpha1.ChangeKindPath) bool { return path == "" })
}
