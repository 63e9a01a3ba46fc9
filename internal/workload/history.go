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
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// TrimRevision drops from a ControllerRevision on its way into the cache the
// template, which is read from the API server when it is needed.
func TrimRevision(obj any) (any, error) {
	if r, ok := obj.(*appsv1.ControllerRevision); ok {
		r.Data.Raw, r.Data.Object = nil, nil
		r.ManagedFields, r.Annotations = nil, nil
	}
	return obj, nil
}

// History reads the versions that the ControllerRevisions of a workload
// remember.
func History(revisions []appsv1.ControllerRevision) []defense.Revision {
	var history []defense.Revision
	for i := range revisions {
		r := &revisions[i]
		if version := r.Labels[v1alpha1.VersionLabel]; version != "" && r.DeletionTimestamp == nil {
			history = append(history, defense.Revision{Name: r.Name, UID: r.UID, Version: version, Release: r.Revision})
		}
	}
	return history
}

// LastApplied is what kubectl apply is to believe it applied last, where it has
// ever: with this template instead of the one it did apply. Otherwise the next
// apply would leave in the template what only the one that was restored has. The
// operator's own label is left out, which no manifest has.
func LastApplied(annotations map[string]string, template map[string]any) (applied string, ok bool) {
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
	spec, ok := manifest["spec"].(map[string]any)
	if !ok {
		return "", false
	}
	spec["template"] = withLabelsRemoved(template, []string{v1alpha1.VersionLabel})
	data, err := json.Marshal(manifest)
	return string(data), err == nil
}

// revisionData is what a ControllerRevision holds of a workload.
type revisionData struct {
	Spec struct {
		Template json.RawMessage `json:"template"`
	} `json:"spec"`
}

// TemplateOf reads the pod template that a ControllerRevision remembers, as it
// came from the API server, with its version.
func TemplateOf(r *appsv1.ControllerRevision) (template map[string]any, version string, err error) {
	var data revisionData
	if err := json.Unmarshal(r.Data.Raw, &data); err != nil {
		return nil, "", fmt.Errorf("read controllerrevision %s/%s: %w", r.Namespace, r.Name, err)
	}
	if template, err = decodeTemplate(data.Spec.Template); err != nil {
		return nil, "", fmt.Errorf("read controllerrevision %s/%s: %w", r.Namespace, r.Name, err)
	}
	return template, Version(template), nil
}
