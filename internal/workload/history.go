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

	appsv1 "k8s.io/api/apps/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// History returns the versions that the ControllerRevisions of a workload remember.
func History(revisions []appsv1.ControllerRevision) []Revision {
	var history []Revision
	for i := range revisions {
		r := &revisions[i]
		if version := r.Labels[v1alpha1.VersionLabel]; version != "" && r.DeletionTimestamp == nil && Remembers(r) != "" {
			history = append(history, Revision{
				Name: r.Name, UID: r.UID, Version: version, Release: r.Revision, Unproven: r.Labels[v1alpha1.ProvenLabel] == v1alpha1.Unproven,
				ContentHash: contentHashOf(r.Data.Raw),
			})
		}
	}
	return history
}

// revisionData is the data of a ControllerRevision.
type revisionData struct {
	Spec struct {
		Template json.RawMessage `json:"template"`
	} `json:"spec"`
}

// DataOf returns the data of a ControllerRevision that has a pod template.
func DataOf(template map[string]any) ([]byte, error) {
	data, err := json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
	if err != nil {
		return nil, fmt.Errorf("pod template: %w", err)
	}
	return data, nil
}

// TemplateOf reads the pod template of a ControllerRevision, as the API server sent it, and its
// version.
func TemplateOf(r *appsv1.ControllerRevision) (template map[string]any, version string, err error) {
	if template, version, err = ReadTemplate(r.Data.Raw); err != nil {
		return nil, "", fmt.Errorf("read controllerrevision %s/%s: %w", r.Namespace, r.Name, err)
	}
	return template, version, nil
}

// ReadTemplate reads the pod template in the data of a ControllerRevision, and its version.
func ReadTemplate(data []byte) (template map[string]any, version string, err error) {
	var of revisionData
	if err := json.Unmarshal(data, &of); err != nil {
		return nil, "", fmt.Errorf("pod template: %w", err)
	}
	if template, err = decodeTemplate(of.Spec.Template); err != nil {
		return nil, "", err
	}
	delete(template, patchDirective)
	return template, Version(template), nil
}

// patchDirective is a key that the controllers of StatefulSets and DaemonSets add to the template
// of a revision, to apply it as a strategic merge patch.
const patchDirective = "$patch"
