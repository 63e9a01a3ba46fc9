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
	"gomodules.xyz/jsonpatch/v2"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	decide "github.com/traas-stack/altershield-operator/internal/admission"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// patch returns changes as JSON patch operations. A diff of two typed objects would drop
// unknown fields.
func patch(o *object, changes []decide.Change) []jsonpatch.JsonPatchOperation {
	var operations []jsonpatch.JsonPatchOperation
	templatePath, _ := o.kind.TemplatePath() // a kind without one is not stamped
	templateMetadata := templatePath.Join("metadata")
	// created has the maps that the patch creates.
	created := map[decide.Target]map[string]string{}
	for _, c := range changes {
		var path workload.Path
		var parent bool
		var present map[string]string
		switch c.Target {
		case decide.WorkloadLabel:
			path, parent, present = workload.Path{"metadata", "labels"}, o.hasLabels, o.Labels
		case decide.WorkloadAnnotation:
			path, parent, present = workload.Path{"metadata", "annotations"}, o.hasAnnotations, o.Annotations
		case decide.TemplateLabel:
			path, parent, present = templateMetadata.Join("labels"), o.hasTemplateLabels, o.TemplateLabels
		case decide.WorkloadPaused:
			operations = append(operations, changing(halt(o, c))...)
			continue
		case decide.WorkloadPace:
			operations = append(operations, changing(o.kind.SetPace(*o.Pacing, c.Pace))...)
			continue
		}
		_, replaces := present[c.Key]
		switch {
		case c.Remove:
			operations = append(operations, jsonpatch.NewOperation("remove", path.Join(c.Key).Pointer(), nil))
		case replaces:
			operations = append(operations, jsonpatch.NewOperation("replace", path.Join(c.Key).Pointer(), c.Value))
		case parent:
			operations = append(operations, jsonpatch.NewOperation("add", path.Join(c.Key).Pointer(), c.Value))
		case created[c.Target] != nil:
			// The operation that creates the map refers to this map.
			created[c.Target][c.Key] = c.Value
		default:
			m := map[string]string{c.Key: c.Value}
			created[c.Target] = m
			if c.Target == decide.TemplateLabel && !o.hasTemplateMetadata {
				operations = append(operations, jsonpatch.NewOperation("add", templateMetadata.Pointer(), map[string]any{"labels": m}))
			} else {
				operations = append(operations, jsonpatch.NewOperation("add", path.Pointer(), m))
			}
		}
	}
	return operations
}

// halt returns the operations that halt a workload, or resume it.
func halt(o *object, c decide.Change) []workload.Op {
	w := &workload.Workload{Object: o.content, Annotations: map[string]string{v1alpha1.HaltedFromAnnotation: c.Value}}
	w.Paused = c.Remove
	if c.Remove {
		return o.kind.Resume(w)
	}
	if o.Pacing != nil {
		w.Pace, w.Bare = o.Pace, o.Bare
	}
	return o.kind.Halt(w)
}

// changing returns the operations without tests: the object in the request cannot change.
func changing(ops []workload.Op) (operations []jsonpatch.JsonPatchOperation) {
	for _, op := range ops {
		if op.Op != "test" {
			operations = append(operations, jsonpatch.NewOperation(op.Op, op.Path, op.Value))
		}
	}
	return operations
}
