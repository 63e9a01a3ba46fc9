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
	"fmt"
	"maps"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	decide "github.com/traas-stack/altershield-operator/internal/admission"
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// object is a workload as admission reads it. It is not read into the Go type, because unknown
// fields count for the version and must not be lost.
type object struct {
	decide.Object
	kind     workload.Kind
	uid      types.UID
	deleting bool
	// generateName is metadata.generateName.
	generateName string
	// content is the workload as JSON has it, and template its pod template; nil if the kind or the object has none.
	content, template map[string]any
	images            []string
	// These report which maps exist that a patch adds to.
	hasLabels, hasAnnotations, hasTemplateMetadata, hasTemplateLabels bool
}

// parse decodes a workload like the controllers: whole numbers are int64, others float64.
func parse(raw []byte, kind workload.Kind) (*object, error) {
	var content map[string]any
	if err := json.Unmarshal(raw, &content); err != nil {
		return nil, err
	}
	stored := &unstructured.Unstructured{Object: content}
	o := &object{kind: kind, content: content}
	declaration, isDeclared := kind.(hub.Declared)
	templatePath, hasTemplate := kind.TemplatePath()
	if hasTemplate {
		holder, _, _ := unstructured.NestedFieldNoCopy(content, templatePath...)
		if o.template, hasTemplate = holder.(map[string]any); !hasTemplate && !isDeclared {
			return nil, fmt.Errorf("%s: missing", templatePath)
		}
	}
	var err error
	if o.Version, err = kind.VersionOf(stored); err != nil {
		return nil, err
	}
	o.images = workload.Images(o.template)
	if isDeclared {
		k := declaration.Declaration()
		o.images, o.Content = k.ImagesOf(content), &workload.Content{Hash: k.ContentHash(), Generation: stored.GetGeneration()}
	}
	o.readStopping(stored)
	o.Pacing, _ = kind.Pace(stored)

	o.Owner = workload.OwnerOf(stored)

	metadata, _ := content["metadata"].(map[string]any)
	o.ResourceVersion, _ = metadata["resourceVersion"].(string)
	o.generateName, _ = metadata["generateName"].(string)
	uid, _ := metadata["uid"].(string)
	o.uid = types.UID(uid)
	o.deleting = metadata["deletionTimestamp"] != nil

	templateMetadata, ok := o.template["metadata"].(map[string]any)
	o.hasTemplateMetadata = ok

	if o.Labels, o.hasLabels, err = stringMap(metadata, "labels"); err != nil {
		return nil, fmt.Errorf("metadata.%w", err)
	}
	if o.Annotations, o.hasAnnotations, err = stringMap(metadata, "annotations"); err != nil {
		return nil, fmt.Errorf("metadata.%w", err)
	}
	if o.TemplateLabels, o.hasTemplateLabels, err = stringMap(templateMetadata, "labels"); err != nil {
		return nil, fmt.Errorf("%s.metadata.%w", templatePath, err)
	}
	return o, nil
}

// readStopping sets the fields that say whether the rollout is stopped.
func (o *object) readStopping(stored *unstructured.Unstructured) {
	stopping, _ := o.kind.Stopping(stored)
	o.Paused, o.Unknown, o.Stays = stopping.Paused, stopping.Unknown, stopping.Stays
	o.Words = o.kind.Words(&workload.Workload{Stopping: stopping, Object: stored.Object})
}

// readHalted reads an object of a declared kind as one that is halted as the stored object is: a client that replaces the
// object may drop the annotation, and change only some of the fields.
func (o *object) readHalted(by *object) {
	from := by.Annotations[v1alpha1.HaltedFromAnnotation]
	if o.Content == nil || from == "" || o.Annotations[v1alpha1.HaltedFromAnnotation] == from {
		return
	}
	halted := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(o.content)}
	halted.SetAnnotations(by.Annotations)
	o.readStopping(halted)
}

// generation returns the generation that an update gives an object: the API server counts changes outside of metadata and
// status.
func generation(stored, changed *object) int64 {
	counted := func(o *object) map[string]any {
		fields := maps.Clone(o.content)
		delete(fields, "metadata")
		delete(fields, "status")
		return fields
	}
	if stored.Content.Generation == 0 || reflect.DeepEqual(counted(stored), counted(changed)) {
		return stored.Content.Generation
	}
	return stored.Content.Generation + 1
}

func stringMap(parent map[string]any, key string) (m map[string]string, present bool, err error) {
	switch content := parent[key].(type) {
	case nil:
		return nil, false, nil
	case map[string]any:
		m = make(map[string]string, len(content))
		for k, v := range content {
			s, ok := v.(string)
			if !ok {
				return nil, false, fmt.Errorf("%s[%q]: %T, want a string", key, k, v)
			}
			m[k] = s
		}
		return m, true, nil
	default:
		return nil, false, fmt.Errorf("%s: %T, want an object", key, content)
	}
}
