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

// Package hub has the caches of declared kinds, which come and go while the operator runs.
//
//	hub.go     the cache of each kind
//	reader.go  reads from the cache of the kind
//	source.go  events of the kinds for the queue of a controller
package hub

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Open returns a cache of the objects of a kind that is not started yet. It has no informers. failed is called after each
// list or watch that fails.
type Open func(kind workload.Kind, failed func(error)) (cache.Cache, error)

// Hub has a cache for each declared kind. A new declaration of a kind gets a cache of its own, which replaces the earlier
// one when it is filled. Concurrent use is allowed.
type Hub struct {
	// Open opens the cache of a kind. It is set before the hub is used.
	Open Open
	// Changed has the names of kinds whose cache is filled, or cannot be filled.
	Changed chan event.TypedGenericEvent[string]

	ctx   context.Context //nolint:containedctx // the lifetime of the caches, not of a call
	kinds *workload.Registry

	mu sync.RWMutex
	// used has the kinds of the registry, and filling their successors, by the name of the ChangeKind.
	used, filling map[string]*entry
	watches       []func(e *entry) error
}

// entry is a kind and its cache.
type entry struct {
	kind   workload.Kind
	cache  cache.Cache
	ctx    context.Context //nolint:containedctx // the lifetime of the cache
	cancel context.CancelFunc
	filled chan struct{}
}

func (e *entry) free() {
	if e != nil {
		e.cancel()
	}
}

func (e *entry) isFilled() bool {
	select {
	case <-e.filled:
		return true
	default:
		return false
	}
}

// New returns a hub that declares kinds in a registry. The caches end with ctx.
func New(ctx context.Context, kinds *workload.Registry) *Hub {
	return &Hub{
		Changed: make(chan event.TypedGenericEvent[string]), ctx: ctx, kinds: kinds,
		used: map[string]*entry{}, filling: map[string]*entry{},
	}
}

// Fill starts the cache of a kind, unless it is started, and frees the cache of another successor of the kind in use.
// filled reports whether Use may be called. At most one call of Fill, Use and Remove may run.
func (h *Hub) Fill(name string, kind workload.Kind) (filled bool, err error) {
	next, inUse := h.next(name, kind)
	if inUse {
		return true, nil
	}
	if next == nil {
		if next, err = h.start(name, kind); err != nil {
			return false, err
		}
		h.mu.Lock()
		h.filling[name] = next
		h.mu.Unlock()
	}
	return next.isFilled(), nil
}

// next returns the cache of a kind that is being filled, and frees that of another declaration; inUse: the kind has its
// place already.
func (h *Hub) next(name string, kind workload.Kind) (next *entry, inUse bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	used := h.used[name]
	inUse = used != nil && used.kind == kind
	if next = h.filling[name]; next != nil && (inUse || next.kind != kind) {
		next.free()
		delete(h.filling, name)
		next = nil
	}
	return next, inUse
}

// start starts the cache of a kind.
func (h *Hub) start(name string, kind workload.Kind) (*entry, error) {
	e := &entry{kind: kind, filled: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancel(h.ctx)
	started := false
	defer func() {
		if !started {
			e.cancel()
		}
	}()
	var err error
	failed := func(error) {
		select {
		case h.Changed <- event.TypedGenericEvent[string]{Object: name}:
		default: // the reflector tries again, and fails again
		}
	}
	if e.cache, err = h.Open(kind, failed); err != nil {
		return nil, fmt.Errorf("open the cache of %s: %w", name, err)
	}
	for _, o := range objectsOf(kind) {
		if err = e.cache.IndexField(e.ctx, o, workload.IndexByOwner, workload.OwnerUID); err != nil {
			return nil, fmt.Errorf("index %s by owner: %w", o.GetObjectKind().GroupVersionKind(), err)
		}
	}
	started = true
	go func() { _ = e.cache.Start(e.ctx) }() // it always returns nil, after the end of the context
	go func() {
		if e.cache.WaitForCacheSync(e.ctx) {
			close(e.filled)
			select {
			case h.Changed <- event.TypedGenericEvent[string]{Object: name}:
			case <-e.ctx.Done():
			}
		}
	}()
	return e, nil
}

// objectsOf returns the objects that the cache of a kind has: its workloads, and objects between them and their pods, unless the
// operator caches these in any case.
func objectsOf(kind workload.Kind) []client.Object {
	objects := []client.Object{kind.Object()}
	for _, s := range kind.Secondary() {
		objects = append(objects, s.Object)
	}
	return slices.DeleteFunc(objects, func(o client.Object) bool { return !isDynamic(o) })
}

// isDynamic reports whether an object has no Go type.
func isDynamic(o any) bool {
	switch o.(type) {
	case *unstructured.Unstructured, *unstructured.UnstructuredList, *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		return true
	default:
		return false
	}
}

// Use puts the kind whose cache is filled into the registry, in place of its predecessor.
func (h *Hub) Use(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	next := h.filling[name]
	if next == nil || !next.isFilled() {
		return nil
	}
	defer h.used[name].free() // after the registry has the new kind
	h.used[name] = next
	delete(h.filling, name)
	h.declare()
	for _, watch := range h.watches {
		if err := watch(next); err != nil {
			return fmt.Errorf("watch %s: %w", name, err)
		}
	}
	return nil
}

// Abandon frees the cache that is being filled for a kind. The kind in use stays.
func (h *Hub) Abandon(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.filling[name].free()
	delete(h.filling, name)
}

// Remove takes a kind out of the registry, and frees its caches.
func (h *Hub) Remove(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	used, next := h.used[name], h.filling[name]
	delete(h.used, name)
	delete(h.filling, name)
	if used != nil {
		h.declare()
	}
	used.free()
	next.free()
}

// declare writes the kinds in use to the registry.
func (h *Hub) declare() {
	var kinds []workload.Kind
	for _, name := range slices.Sorted(maps.Keys(h.used)) {
		kinds = append(kinds, h.used[name].kind)
	}
	h.kinds.Declare(kinds...)
}

// Used returns the kind of this name that is in use; nil if there is none.
func (h *Hub) Used(name string) workload.Kind {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if e := h.used[name]; e != nil {
		return e.kind
	}
	return nil
}

// Newest returns the newest filled cache of a kind: of the successor, or of the kind in use; nil if there is none.
func (h *Hub) Newest(name string) client.Reader {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, e := range []*entry{h.filling[name], h.used[name]} {
		if e != nil && e.isFilled() {
			return e.cache
		}
	}
	return nil
}
