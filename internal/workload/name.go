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
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// LabelOf names a kind in labels of metrics and alerts: by its group, too, outside the group apps, as in StatefulSet.apps.kruise.io. So
// two kinds of one name have different labels.
func LabelOf(gk schema.GroupKind) string {
	if gk.Group == appsv1.GroupName {
		return gk.Kind
	}
	return gk.String()
}

// ArgumentOf names a kind in arguments of kubectl: in lower case, and by its group, too, if a native kind has the same name.
func ArgumentOf(gk schema.GroupKind) string {
	if gk.Group != appsv1.GroupName {
		for _, native := range Defended().Fixed() {
			if native.GroupVersionKind().Kind == gk.Kind {
				return strings.ToLower(gk.String())
			}
		}
	}
	return strings.ToLower(gk.Kind)
}
