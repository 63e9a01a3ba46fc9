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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// CourseKind returns a declaration of Courses, which have no pods. Their content is at spec.route, and spec.anchored halts them.
func CourseKind(rollback v1alpha1.ChangeKindRollback) *v1alpha1.ChangeKind {
	k := ChangeKind()
	k.Name = "courses.example.com"
	k.Spec.Content = []v1alpha1.ChangeKindContent{{Path: "spec.route"}}
	k.Spec.Replicas, k.Spec.Pods, k.Spec.Rollback = "", nil, rollback
	k.Spec.Rollout.MinReadySeconds = ""
	k.Spec.Rollout.Complete = "object.?status.?reached.orValue(false) == true"
	k.Spec.Rollout.Stuck = "object.?status.?aground.orValue('') + ''"
	return k
}

// CourseObject is the Go type of a Course, for models of its API server and its controller.
type CourseObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   CourseSpec   `json:"spec"`
	Status CourseStatus `json:"status,omitempty"`
}

// CourseSpec is the desired state. Becalmed, its controller does not reach the harbor. Rocks run it aground.
type CourseSpec struct {
	Route    CourseRoute `json:"route"`
	Becalmed bool        `json:"becalmed,omitempty"`
	Rocks    string      `json:"rocks,omitempty"`
	Anchored bool        `json:"anchored,omitempty"`
}

// CourseRoute is the content of a Course. The harbor "reef" runs it aground.
type CourseRoute struct {
	Harbor string `json:"harbor"`
}

// CourseStatus is the state that the controller of Courses reports.
type CourseStatus struct {
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
	Reached            bool   `json:"reached,omitempty"`
	Aground            string `json:"aground,omitempty"`
}

// Sail returns the status that the controller of Courses sets.
func (c *CourseObject) Sail() CourseStatus {
	s := CourseStatus{ObservedGeneration: c.Generation, Aground: c.Spec.Rocks}
	if c.Spec.Route.Harbor == "reef" {
		s.Aground = "ran onto the reef"
	}
	s.Reached = s.Aground == "" && !c.Spec.Becalmed && !c.Spec.Anchored
	return s
}

// CourseObjectList is a list of Courses.
type CourseObjectList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CourseObject `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (c *CourseObject) DeepCopyObject() runtime.Object {
	copied := *c
	c.ObjectMeta.DeepCopyInto(&copied.ObjectMeta)
	return &copied
}

// DeepCopyObject implements runtime.Object.
func (l *CourseObjectList) DeepCopyObject() runtime.Object {
	copied := *l
	copied.Items = make([]CourseObject, len(l.Items))
	for i := range l.Items {
		copied.Items[i] = *l.Items[i].DeepCopyObject().(*CourseObject) //nolint:errcheck // it is a copy
	}
	return &copied
}
