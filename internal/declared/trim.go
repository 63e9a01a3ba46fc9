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
	"strings"

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
	// keptStamp is the version label of the pod template, and keptHandBack is true if the operator has to give up fields.
	keptStamp    = "stamp"
	keptHandBack = "handBack"
	// keptWritten is the Unix time of the last write.
	keptWritten = "written"
	// keptTooLarge means that more fields were dropped.
	keptTooLarge = "tooLarge"
)

// trimmed is the value of keptMark. It is no JSON, so no decoder returns it, and users cannot make an object look trimmed.
const trimmed = json.Number("trimmed")

// keptOf returns the data of the content of a trimmed object; nil if the object is not trimmed.
func keptOf(object map[string]any) map[string]any {
	kept, _ := object[keptField].(map[string]any)
	if kept[keptMark] != trimmed {
		return nil
	}
	return kept
}

// whole returns an error if an object in the cache lacks fields that expressions may read.
func whole(object map[string]any) error {
	if keptOf(object)[keptTooLarge] == true {
		return ErrTooLarge
	}
	return nil
}

// written returns the Unix time of the last write of an object that is not trimmed, except of its subresources; 0 if unknown.
func written(u *unstructured.Unstructured) (at int64) {
	for _, entry := range u.GetManagedFields() {
		if entry.Time != nil && entry.Subresource == "" {
			at = max(at, entry.Time.Unix())
		}
	}
	return at
}

// Trim drops the content of an object on its way into the cache, and metadata that no decision reads. Version and images
// of the content stay, and so do ignored fields, and fields of the content that the operator reads. A trimmed object stays
// as it is.
func (k *Kind) Trim(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || keptOf(u.Object) != nil {
		return obj, nil
	}
	images := []any{}
	for _, image := range k.ImagesOf(u.Object) {
		images = append(images, image)
	}
	_, due, err := workload.LeftOver(k, u)
	kept := map[string]any{
		keptVersion: k.VersionOf(u.Object), keptImages: images, keptMark: trimmed,
		keptStamp: k.stampOf(u.Object), keptHandBack: due && err == nil,
		keptWritten: written(u),
	}
	fields := map[string]any{}
	for _, path := range k.reads() {
		if value, ok := get(u.Object, path); ok {
			fields[path.String()] = value
		}
	}
	around := k.around(u.Object)
	for i := range k.content {
		unstructured.RemoveNestedField(u.Object, k.content[i].path...)
	}
	for path, value := range fields {
		if err := unstructured.SetNestedField(u.Object, value, strings.Split(path, ".")...); err != nil {
			return nil, fmt.Errorf("trim %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
		}
	}
	for _, path := range around {
		if _, there := get(u.Object, path); there {
			continue
		}
		if err := unstructured.SetNestedMap(u.Object, map[string]any{}, path...); err != nil {
			return nil, fmt.Errorf("trim %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
		}
	}
	delete(u.Object, keptField)
	kept[keptTooLarge] = !workload.TrimDeclared(u)
	u.Object[keptField] = kept
	return u, nil
}

// around returns the paths of objects around the fields that halt and hold. The operator sets such a field only if the
// object around it exists.
func (k *Kind) around(object map[string]any) (paths []workload.Path) {
	set := []workload.Path{k.partition}
	for i := range k.halts {
		set = append(set, k.halts[i].path)
	}
	for _, path := range set {
		if len(path) < 2 {
			continue
		}
		value, _ := get(object, path[:len(path)-1])
		if _, isObject := value.(map[string]any); isObject {
			paths = append(paths, path[:len(path)-1])
		}
	}
	return paths
}

// reads returns the fields that stay in the cache, whether they are within content or not.
func (k *Kind) reads() (paths []workload.Path) {
	for _, path := range []workload.Path{k.replicas, k.minReady, k.partition, k.selects} {
		if path != nil {
			paths = append(paths, path)
		}
	}
	for i := range k.halts {
		paths = append(paths, k.halts[i].path)
	}
	for i := range k.content {
		paths = append(paths, k.content[i].ignore...)
	}
	return paths
}

// templatePath returns the path of the pod template; ok is false unless the content has exactly one.
func (k *Kind) templatePath() (path workload.Path, ok bool) {
	for i := range k.content {
		if !k.content[i].podTemplate {
			continue
		}
		if ok {
			return nil, false
		}
		path, ok = k.content[i].path, true
	}
	return path, ok
}

// stampOf returns the version label of the pod template of an object, trimmed or as the API server sent it.
func (k *Kind) stampOf(object map[string]any) string {
	if kept := keptOf(object); kept != nil {
		stamp, _ := kept[keptStamp].(string)
		return stamp
	}
	path, ok := k.templatePath()
	if !ok || k.Spec.VersionLabel != v1alpha1.VersionLabelOnTemplate {
		return ""
	}
	value, _ := get(object, path.Join("metadata", "labels", v1alpha1.VersionLabel))
	stamp, _ := value.(string)
	return stamp
}

// ContentPaths returns the paths of the content.
func (k *Kind) ContentPaths() (paths []workload.Path) {
	for i := range k.content {
		paths = append(paths, k.content[i].path)
	}
	return paths
}

// HaltPaths returns the paths of the fields that halt an object.
func (k *Kind) HaltPaths() (paths []workload.Path) {
	for i := range k.halts {
		paths = append(paths, k.halts[i].path)
	}
	return paths
}

// PacePaths returns the paths of the fields that hold an object; none if its rollouts are not held.
func (k *Kind) PacePaths() []workload.Path {
	if k.Spec.Hold != v1alpha1.HoldByPartition {
		return nil
	}
	return []workload.Path{k.partition}
}
