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
	appsv1 "k8s.io/api/apps/v1"

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
