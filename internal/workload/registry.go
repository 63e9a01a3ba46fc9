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
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// String names the workload in logs.
func (k Key) String() string { return k.GroupKind.String() + " " + k.NamespacedName.String() }

// Registry holds the kinds of workloads that are defended. It is the only list of kinds: all other
// code finds the kind of a workload by its key, the owner of its records, or the owners of its
// pods.
type Registry struct {
	kinds []Kind
	// podLabels are the labels that pods keep in the cache.
	podLabels []string
}

// Defended returns the registry of the kinds that the operator defends.
func Defended() *Registry { return NewRegistry(Deployment{}, StatefulSet{}, DaemonSet{}) }

// NewRegistry returns a registry of these kinds. It panics if two of them are the same.
func NewRegistry(kinds ...Kind) *Registry {
	r := &Registry{podLabels: []string{v1alpha1.VersionLabel, v1alpha1.OperateFinishedLabel}}
	for _, k := range kinds {
		gk := k.GroupVersionKind().GroupKind()
		if _, there := r.Of(gk); there {
			panic(fmt.Sprintf("the kind %s is registered twice", gk))
		}
		r.kinds = append(r.kinds, k)
		r.podLabels = append(r.podLabels, k.PodLabels()...)
	}
	return r
}

// Kinds returns the registered kinds.
func (r *Registry) Kinds() []Kind { return slices.Clone(r.kinds) }

// Of returns a kind; ok is false if its workloads are not defended.
func (r *Registry) Of(gk schema.GroupKind) (k Kind, ok bool) {
	i := slices.IndexFunc(r.kinds, func(k Kind) bool { return k.GroupVersionKind().GroupKind() == gk })
	if i < 0 {
		return nil, false
	}
	return r.kinds[i], true
}

// OwnerOf returns the workload that owns a record; ok is false if no workload of a defended kind
// does.
func (r *Registry) OwnerOf(o metav1.Object) (owner Owner, ok bool) {
	ref := metav1.GetControllerOf(o)
	if ref == nil {
		return Owner{}, false
	}
	owner = Owner{Key: KeyOf(o.GetNamespace(), ref), UID: ref.UID}
	_, ok = r.Of(owner.Key.GroupKind)
	return owner, ok
}

// OwnerOfPod returns the workload that owns a pod, directly or through other objects; ok is false
// if no workload of a defended kind does.
func (r *Registry) OwnerOfPod(ctx context.Context, reader client.Reader, pod metav1.Object) (owner Owner, ok bool, err error) {
	for _, k := range r.kinds {
		if owner, ok, err = k.OwnerOfPod(ctx, reader, pod); ok || err != nil {
			return owner, ok, err
		}
	}
	return Owner{}, false, nil
}
