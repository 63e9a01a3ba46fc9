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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Key names a workload of any kind. It is the request of the controllers of workloads: one queue
// serves all kinds.
type Key struct {
	schema.GroupKind
	types.NamespacedName
}

// KeyOf returns the key of the workload that an owner reference names. The object with the
// reference is in this namespace.
func KeyOf(namespace string, ref *metav1.OwnerReference) Key {
	return Key{
		GroupKind:      schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind(),
		NamespacedName: types.NamespacedName{Namespace: namespace, Name: ref.Name},
	}
}
