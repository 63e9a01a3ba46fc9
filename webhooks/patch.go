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
	"strings"

	"gomodules.xyz/jsonpatch/v2"

	"github.com/traas-stack/altershield-operator/internal/defense"
)

// patch writes changes as JSON patch operations that touch nothing else. A diff
// of two typed objects would drop what this build does not know.
func patch(o *object, changes []defense.AdmissionChange) []jsonpatch.JsonPatchOperation {
	var operations []jsonpatch.JsonPatchOperation
	// created collects what goes into a map that is not there yet.
	created := map[defense.AdmissionTarget]map[string]string{}
	for _, c := range changes {
		var path string
		var parent bool
		var present map[string]string
		switch c.Target {
		case defense.WorkloadLabel:
			path, parent, present = "/metadata/labels", o.hasLabels, o.Labels
		case defense.WorkloadAnnotation:
			path, parent, present = "/metadata/annotations", o.hasAnnotations, o.Annotations
		case defense.TemplateLabel:
			path, parent, present = "/spec/template/metadata/labels", o.hasTemplateLabels, o.TemplateLabels
		case defense.WorkloadPaused:
			operations = append(operations, jsonpatch.NewOperation("remove", "/spec/paused", nil))
			continue
		}
		_, replaces := present[c.Key]
		switch {
		case c.Remove:
			operations = append(operations, jsonpatch.NewOperation("remove", path+"/"+escape(c.Key), nil))
		case replaces:
			operations = append(operations, jsonpatch.NewOperation("replace", path+"/"+escape(c.Key), c.Value))
		case parent:
			operations = append(operations, jsonpatch.NewOperation("add", path+"/"+escape(c.Key), c.Value))
		case created[c.Target] != nil:
			// The operation that creates the map holds the map itself.
			created[c.Target][c.Key] = c.Value
		default:
			m := map[string]string{c.Key: c.Value}
			created[c.Target] = m
			if c.Target == defense.TemplateLabel && !o.hasTemplateMetadata {
				operations = append(operations, jsonpatch.NewOperation("add", "/spec/template/metadata", map[string]any{"labels": m}))
			} else {
				operations = append(operations, jsonpatch.NewOperation("add", path, m))
			}
		}
	}
	return operations
}

// escape makes a key a token of a JSON pointer.
func escape(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
