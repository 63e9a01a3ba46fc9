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
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// object is what admission reads of a Deployment, without its type: fields
// that this build does not know count for the version and are left alone.
type object struct {
	defense.AdmissionObject
	deleting bool
	// generateName is what the API server makes a name of; there is no name yet.
	generateName string
	template     map[string]any
	// These say which parents of what a patch sets are there.
	hasLabels, hasAnnotations, hasTemplateMetadata, hasTemplateLabels bool
}

func parse(raw []byte) (*object, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var content map[string]any
	if err := decoder.Decode(&content); err != nil {
		return nil, err
	}
	spec, _ := content["spec"].(map[string]any)
	template, ok := spec["template"].(map[string]any)
	if !ok {
		return nil, errors.New("spec.template: missing")
	}
	o := &object{template: template}
	o.Version = workload.Version(template)
	o.Paused, _ = spec["paused"].(bool)

	metadata, _ := content["metadata"].(map[string]any)
	o.ResourceVersion, _ = metadata["resourceVersion"].(string)
	o.generateName, _ = metadata["generateName"].(string)
	o.deleting = metadata["deletionTimestamp"] != nil

	templateMetadata, ok := template["metadata"].(map[string]any)
	o.hasTemplateMetadata = ok

	var err error
	if o.Labels, o.hasLabels, err = stringMap(metadata, "labels"); err != nil {
		return nil, fmt.Errorf("metadata.%w", err)
	}
	if o.Annotations, o.hasAnnotations, err = stringMap(metadata, "annotations"); err != nil {
		return nil, fmt.Errorf("metadata.%w", err)
	}
	if o.TemplateLabels, o.hasTemplateLabels, err = stringMap(templateMetadata, "labels"); err != nil {
		return nil, fmt.Errorf("spec.template.metadata.%w", err)
	}
	return o, nil
}

// images lists what the containers run, each image once, those of init
// containers first.
func (o *object) images() []string {
	var images []string
	spec, _ := o.template["spec"].(map[string]any)
	for _, key := range []string{"initContainers", "containers"} {
		containers, _ := spec[key].([]any)
		for i := range containers {
			container, _ := containers[i].(map[string]any)
			if image, _ := container["image"].(string); image != "" && !slices.Contains(images, image) {
				images = append(images, image)
			}
		}
	}
	return images
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
