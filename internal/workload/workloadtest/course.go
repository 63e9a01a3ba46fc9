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
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Course is a kind of object without pods. Its content is at spec.route, and spec.anchored halts it, as it halts a Fleet.
type Course struct {
	Fleet
	// Rollbacks are the rollbacks that its ChangeKind allows.
	Rollbacks v1alpha1.ChangeKindRollback
}

var _ workload.Kind = Course{}

const (
	// CourseSettles is how long the rollout of a Course has to stay complete.
	CourseSettles = time.Minute
	// CourseDeadline is how long the rollout of a Course may take.
	CourseDeadline = 10 * time.Minute
)

// GroupVersionKind implements workload.Kind.
func (Course) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Course"}
}

// Resource implements workload.Kind.
func (Course) Resource() string { return "courses" }

// TemplatePath implements workload.Kind.
func (Course) TemplatePath() workload.Path { return workload.Path{"spec", "route"} }

// Object implements workload.Kind.
func (c Course) Object() client.Object {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(c.GroupVersionKind())
	return o
}

// ObjectList implements workload.Kind.
func (c Course) ObjectList() client.ObjectList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(c.GroupVersionKind().GroupVersion().WithKind("CourseList"))
	return list
}

// Summary implements workload.Kind.
func (c Course) Summary(ctx context.Context, r client.Reader, key types.NamespacedName) (*workload.Workload, error) {
	return c.Get(ctx, r, key)
}

// Get implements workload.Kind.
func (c Course) Get(ctx context.Context, r client.Reader, key types.NamespacedName) (*workload.Workload, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(c.GroupVersionKind())
	if err := r.Get(ctx, key, o); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	var course CourseObject
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &course); err != nil {
		return nil, err
	}
	route, _, err := unstructured.NestedMap(o.Object, c.TemplatePath()...)
	w := &workload.Workload{
		GVK: c.GroupVersionKind(), Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
		Labels: o.GetLabels(), Annotations: o.GetAnnotations(), Deleting: o.GetDeletionTimestamp() != nil,
		Version: workload.Version(route), Unstamped: true, WithoutPods: true, Settle: CourseSettles, Rollbacks: c.Rollbacks,
		ProgressDeadline: CourseDeadline, Stopping: workload.Stopping{Paused: course.Spec.Anchored},
	}
	w.Words = c.Words(w)
	if s := &course.Status; s.ObservedGeneration < course.Generation {
		w.Rollout.Stale = true
	} else {
		w.Rollout.Complete, w.Rollout.Stuck, w.Rollout.Message = s.Reached, s.Aground != "", s.Aground
	}
	return w, err
}

// Pods implements workload.Kind.
func (Course) Pods(context.Context, client.Reader, *workload.Workload) ([]workload.Pod, error) {
	return nil, nil
}

// PodNames implements workload.Kind.
func (Course) PodNames(context.Context, client.Reader, *workload.Workload) ([]string, error) {
	return nil, nil
}

// PodLabels implements workload.Kind.
func (Course) PodLabels() []string { return nil }

// IsCurrent implements workload.Kind.
func (Course) IsCurrent(*workload.Workload, metav1.Object) bool { return false }

// OwnerOfPod implements workload.Kind.
func (Course) OwnerOfPod(context.Context, client.Reader, metav1.Object) (workload.Owner, bool, error) {
	return workload.Owner{}, false, nil
}

// Restore implements workload.Control.
func (Course) Restore(route map[string]any) []workload.Op {
	return []workload.Op{{Op: "replace", Path: "/spec/route", Value: route}}
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
