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

package declared

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Workloads reads and changes the objects of a declared kind.
type Workloads struct {
	workload.Kind
	declaration *Kind
}

// NewWorkloads returns the kind of the objects of a ChangeKind.
func NewWorkloads(k *Kind) *Workloads { return &Workloads{declaration: k} }

// Declaration returns the accepted ChangeKind.
func (d *Workloads) Declaration() *Kind { return d.declaration }

// GroupVersionKind implements workload.Kind.
func (d *Workloads) GroupVersionKind() schema.GroupVersionKind { return d.declaration.GroupVersionKind }

// Object implements workload.Kind.
func (d *Workloads) Object() client.Object {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(d.declaration.GroupVersionKind)
	return u
}

// ObjectList implements workload.Kind.
func (d *Workloads) ObjectList() client.ObjectList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(d.declaration.GroupVersion().WithKind(d.declaration.Kind + "List"))
	return list
}

// Transforms implements workload.Kind.
func (d *Workloads) Transforms() map[client.Object]cache.TransformFunc {
	return map[client.Object]cache.TransformFunc{d.Object(): d.declaration.Trim}
}

// Secondary implements workload.Kind.
func (d *Workloads) Secondary() []workload.Secondary { return nil }

// PodLabels implements workload.Kind.
func (d *Workloads) PodLabels() []string { return nil }
