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

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	decide "github.com/traas-stack/altershield-operator/internal/admission"
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
	// content is the workload as JSON has it, and template its pod template; nil if the kind has none.
	content, template map[string]any
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
	templatePath, hasTemplate := kind.TemplatePath()
	if hasTemplate {
		holder, _, _ := unstructured.NestedFieldNoCopy(content, templatePath...)
		if o.template, hasTemplate = holder.(map[string]any); !hasTemplate {
			return nil, fmt.Errorf("%s: missing", templatePath)
		}
	}
	var err error
	if o.Version, err = kind.VersionOf(stored); err != nil {
		return nil, err
	}
	stopping, _ := kind.Stopping(stored)
	o.Paused, o.Unknown = stopping.Paused, stopping.Unknown
	o.Words = kind.Words(&workload.Workload{Stopping: stopping, Object: content})
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
