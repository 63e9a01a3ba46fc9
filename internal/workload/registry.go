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
	"slices"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// String names the workload in logs.
func (k Key) String() string { return k.GroupKind.String() + " " + k.NamespacedName.String() }

// Registry holds the kinds of workloads that are defended. It is the only list of kinds: all other
// code finds the kind of a workload by its key, the owner of its records, or the owners of its
// pods. Concurrent use is allowed: declared kinds come and go at any time.
type Registry struct {
	fixed []Kind
	now   atomic.Pointer[registered]
	// mu serializes writes of now and calls of subscribers.
	mu          sync.Mutex
	subscribers []func(added, removed []Kind)
}

// registered is an immutable list of kinds.
type registered struct {
	kinds []Kind
	// podLabels are the labels that pods keep in the cache in any case.
	podLabels []string
}

// Defended returns the registry of the kinds that the operator defends without a declaration.
func Defended() *Registry { return NewRegistry(Deployment{}, StatefulSet{}, DaemonSet{}) }

// NewRegistry returns a registry of these kinds, which stay. It panics if two of them are the same.
func NewRegistry(fixed ...Kind) *Registry {
	r := &Registry{fixed: fixed}
	now := r.with(nil)
	if len(now.kinds) != len(fixed) {
		panic("a kind is registered twice")
	}
	r.now.Store(now)
	return r
}

// with returns the fixed kinds and declared ones. The first of several declarations of one kind counts.
func (r *Registry) with(declared []Kind) *registered {
	now := &registered{podLabels: []string{v1alpha1.VersionLabel, v1alpha1.OperateFinishedLabel}}
	for _, k := range slices.Concat(r.fixed, declared) {
		if _, there := now.of(k.GroupVersionKind().GroupKind()); !there {
			now.kinds = append(now.kinds, k)
			now.podLabels = append(now.podLabels, k.PodLabels()...)
		}
	}
	now.kinds = slices.Clip(now.kinds)
	return now
}

// Declare replaces all declared kinds in one write, and then calls the subscribers.
func (r *Registry) Declare(declared ...Kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, now := r.Declared(), r.with(declared)
	r.now.Store(now)
	after := r.Declared()
	added := slices.DeleteFunc(slices.Clone(after), func(k Kind) bool { return slices.Contains(before, k) })
	removed := slices.DeleteFunc(slices.Clone(before), func(k Kind) bool { return slices.Contains(after, k) })
	if len(added)+len(removed) == 0 {
		return
	}
	for _, changed := range r.subscribers {
		changed(added, removed)
	}
}

// Subscribe calls changed with all kinds at once, and with declared kinds when they come and go. A kind whose declaration
// changed is both added and removed. changed must not call Declare or Subscribe.
func (r *Registry) Subscribe(changed func(added, removed []Kind)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subscribers = append(r.subscribers, changed)
	changed(r.Kinds(), nil)
}

// Kinds returns the registered kinds, fixed and declared, as they are now. The caller must not change the list.
func (r *Registry) Kinds() []Kind { return r.now.Load().kinds }

// Fixed returns the kinds that stay. The caller must not change the list.
func (r *Registry) Fixed() []Kind { return r.fixed }

// Declared returns the declared kinds, as they are now. The caller must not change the list.
func (r *Registry) Declared() []Kind { return r.Kinds()[len(r.fixed):] }

// Of returns a kind; ok is false if its workloads are not defended.
func (r *Registry) Of(gk schema.GroupKind) (k Kind, ok bool) { return r.now.Load().of(gk) }

func (r *registered) of(gk schema.GroupKind) (k Kind, ok bool) {
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
	for _, k := range r.Kinds() {
		if owner, ok, err = k.OwnerOfPod(ctx, reader, pod); ok || err != nil {
			return owner, ok, err
		}
	}
	return Owner{}, false, nil
}
