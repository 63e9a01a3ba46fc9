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

package workloadtest

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// CrewLabel is the label of a pod with the revision of its template.
const CrewLabel = "example.com/crew"

// FleetObject is the Go type of a Fleet, for models of its API server and its controller. The
// operator does not know the type.
type FleetObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   FleetSpec   `json:"spec"`
	Status FleetStatus `json:"status,omitempty"`
}

// FleetSpec is the desired state.
type FleetSpec struct {
	Ships    int32                  `json:"ships"`
	Crew     corev1.PodTemplateSpec `json:"crew"`
	Anchored bool                   `json:"anchored,omitempty"`
}

// FleetStatus is the state that the controller of Fleets reports.
type FleetStatus struct {
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
	Revision           string `json:"revision,omitempty"`
	Manned             int32  `json:"manned,omitempty"`
	Ready              int32  `json:"ready,omitempty"`
	Total              int32  `json:"total,omitempty"`
}

// FleetObjectList is a list of Fleets.
type FleetObjectList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []FleetObject `json:"items"`
}

// AddToScheme adds Fleets and Courses to a scheme.
func AddToScheme(scheme *runtime.Scheme) {
	gvk := Fleet{}.GroupVersionKind()
	scheme.AddKnownTypeWithName(gvk, &FleetObject{})
	scheme.AddKnownTypeWithName(gvk.GroupVersion().WithKind("FleetList"), &FleetObjectList{})
	scheme.AddKnownTypeWithName(gvk.GroupVersion().WithKind("Course"), &CourseObject{})
	scheme.AddKnownTypeWithName(gvk.GroupVersion().WithKind("CourseList"), &CourseObjectList{})
	metav1.AddToGroupVersion(scheme, gvk.GroupVersion())
}

// DeepCopyObject implements runtime.Object.
func (f *FleetObject) DeepCopyObject() runtime.Object {
	copied := *f
	f.ObjectMeta.DeepCopyInto(&copied.ObjectMeta)
	f.Spec.Crew.DeepCopyInto(&copied.Spec.Crew)
	return &copied
}

// DeepCopyObject implements runtime.Object.
func (l *FleetObjectList) DeepCopyObject() runtime.Object {
	copied := *l
	copied.Items = make([]FleetObject, len(l.Items))
	for i := range l.Items {
		copied.Items[i] = *l.Items[i].DeepCopyObject().(*FleetObject) //nolint:errcheck // it is a copy
	}
	return &copied
}
