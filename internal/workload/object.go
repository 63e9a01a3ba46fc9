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
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// versionAndHash reads version and hash off a trimmed object, or computes them
// from the template of one that is not.
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
	return version(m), TemplateHash(m), nil
}

// templatePath is where Deployments and ReplicaSets have their pod template.
var templatePath = Path{"spec", "template"}

// withoutTemplate is the spec of a workload but for its template, whose fields this
// build may not be able to type.
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

// Where a trimmed object keeps what became of its template. No field of the API
// has this name.
var (
	trimmedVersionPath = []string{"altershield", "version"}
	trimmedHashPath    = []string{"altershield", "templateHash"}
	trimmedImagesPath  = []string{"altershield", "images"}
	// trimmedStampPath is the version label of the template.
	trimmedStampPath = []string{"altershield", "stamp"}
	// trimmedHandBackPath says that HandBack has something to do.
	trimmedHandBackPath = []string{"altershield", "handBack"}
)
