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

// LastApplied is what kubectl apply is to believe it applied last, where it has
// ever, after the template, at this path, was set back from the abandoned to the restored one:
// what it did apply, and what only the restored one has. Otherwise the next apply
// would leave that in the template. What the two have in common is left out: it is
// kubectl apply's already, or somebody else put it there (kubectl set env, a
// reloader), who wants it to stay.
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
	addBeyond(template, withLabelsRemoved(restored, []string{v1alpha1.VersionLabel}), abandoned, strategicpatch.PatchMetaFromStruct{T: reflect.TypeFor[corev1.PodTemplateSpec]()})
	data, err := json.Marshal(manifest)
	return string(data), err == nil
}

// addBeyond adds to what was applied what the restored object has and the abandoned
// one has not. It adds only to what was applied: kubectl deletes what it finds in
// there and not in the next manifest as a whole, with what others put into it.
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
			// A value that differs is a default in one of them, or both were set; in a
			// map of anything it may be somebody else's.
			if _, there := applied[key]; !there && isStruct(schema) && !reflect.DeepEqual(was, is) {
				applied[key] = was
			}
		}
	}
}

// addItemsBeyond is addBeyond for lists whose items have a key.
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

// itemLike finds the item of a list that has the key of another one; nil when
// there is none. Numbers are of different types in JSON of different origin.
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

// schemaOf is the schema of a field; nil when it is none that this build knows.
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

// schemaOfItems is the schema of the items of a list, and the key they are told
// apart by; empty when the list is replaced as a whole.
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

// isStruct says that a schema is of an object with fields, not of a map.
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
