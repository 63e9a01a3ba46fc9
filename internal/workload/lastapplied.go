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
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// LastApplied returns a new value of the annotation of kubectl apply, after the template (at this
// path) was set back from abandoned to restored: the applied manifest, with the fields that only
// restored has. Otherwise the next apply would leave these fields in the template. Fields that are
// in both templates are not added: kubectl apply has them already, or another tool set them
// (kubectl set env, a reloader), and they have to stay. ok is false without a readable annotation.
func LastApplied(annotations map[string]string, at Path, restored, abandoned map[string]any) (applied string, ok bool) {
	stored, ok := annotations[corev1.LastAppliedConfigAnnotation]
	if !ok {
		return "", false
	}
	decoder := json.NewDecoder(strings.NewReader(stored))
	decoder.UseNumber()
	var manifest map[string]any
	if decoder.Decode(&manifest) != nil {
		return "", false
	}
	holder, ok, _ := unstructured.NestedFieldNoCopy(manifest, at[:len(at)-1]...)
	parent, isObject := holder.(map[string]any)
	if !ok || !isObject {
		return "", false
	}
	name := at[len(at)-1]
	template, ok := parent[name].(map[string]any)
	if !ok {
		template = map[string]any{}
		parent[name] = template
	}
	addBeyond(template, withLabelsRemoved(restored, []string{v1alpha1.VersionLabel}), abandoned, strategicpatch.PatchMetaFromStruct{
		T: reflect.TypeFor[corev1.PodTemplateSpec](),
	})
	data, err := json.Marshal(manifest)
	return string(data), err == nil
}

// addBeyond adds to applied the fields that restored has and abandoned has not. It adds only to
// objects that were applied: kubectl deletes an object that is in the annotation and not in the
// next manifest as a whole, with all that others added to it.
func addBeyond(applied, restored, abandoned map[string]any, schema strategicpatch.LookupPatchMeta) {
	for key, was := range restored {
		is, had := abandoned[key]
		if !had || isEmpty(is) && !isEmpty(was) {
			if _, there := applied[key]; !there {
				applied[key] = runtime.DeepCopyJSONValue(was)
				continue
			}
		}
		switch was := was.(type) {
		case map[string]any:
			to, ok := applied[key].(map[string]any)
			from, _ := is.(map[string]any)
			if ok {
				addBeyond(to, was, from, schemaOf(schema, key))
			}
		case []any:
			to, ok := applied[key].([]any)
			from, _ := is.([]any)
			if element, mergeKey := schemaOfItems(schema, key); ok && mergeKey != "" {
				applied[key] = addItemsBeyond(to, was, from, mergeKey, element)
			}
		default:
			// A different value is a default in one of them, or was set in both; in a map, it may be of
			// another tool.
			if _, there := applied[key]; !there && isStruct(schema) && !reflect.DeepEqual(was, is) {
				applied[key] = was
			}
		}
	}
}

// addItemsBeyond is addBeyond for lists whose items have a merge key.
func addItemsBeyond(applied, restored, abandoned []any, mergeKey string, schema strategicpatch.LookupPatchMeta) []any {
	for _, item := range restored {
		was, ok := item.(map[string]any)
		if !ok {
			return applied
		}
		is, to := itemLike(abandoned, was, mergeKey), itemLike(applied, was, mergeKey)
		switch {
		case to != nil:
			addBeyond(to, was, is, schema)
		case is == nil:
			applied = append(applied, runtime.DeepCopyJSONValue(was))
		}
	}
	return applied
}

// itemLike returns the item of a list with the same merge key; nil for none. Numbers have different
// types in JSON from different sources.
func itemLike(list []any, like map[string]any, mergeKey string) map[string]any {
	i := slices.IndexFunc(list, func(item any) bool {
		m, ok := item.(map[string]any)
		return ok && fmt.Sprint(m[mergeKey]) == fmt.Sprint(like[mergeKey])
	})
	if i < 0 {
		return nil
	}
	found, _ := list[i].(map[string]any)
	return found
}

// schemaOf returns the schema of a field; nil if this build does not know the field.
func schemaOf(schema strategicpatch.LookupPatchMeta, key string) strategicpatch.LookupPatchMeta {
	if schema == nil {
		return nil
	}
	field, _, err := schema.LookupPatchMetadataForStruct(key)
	if err != nil {
		return nil
	}
	return field
}

// schemaOfItems returns the schema of the items of a list, and their merge key; empty if the list
// is replaced as a whole.
func schemaOfItems(schema strategicpatch.LookupPatchMeta, key string) (strategicpatch.LookupPatchMeta, string) {
	if schema == nil {
		return nil, ""
	}
	items, meta, err := schema.LookupPatchMetadataForSlice(key)
	if err != nil || !slices.Contains(meta.GetPatchStrategies(), "merge") {
		return nil, ""
	}
	return items, meta.GetPatchMergeKey()
}

// isStruct reports whether a schema is of an object with fields, not of a map.
func isStruct(schema strategicpatch.LookupPatchMeta) bool {
	s, ok := schema.(strategicpatch.PatchMetaFromStruct)
	if !ok || s.T == nil {
		return false
	}
	t := s.T
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct
}

func isEmpty(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	default:
		return value == nil
	}
}
