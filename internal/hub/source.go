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

package hub

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Watch is a watch of a controller: the objects of a type, and the requests that they cause.
type Watch[R comparable] struct {
	Object     client.Object
	Handler    handler.TypedEventHandler[client.Object, R]
	Predicates []predicate.Predicate
}

// Source returns the events of all declared kinds for the queue of one controller: of those whose caches are in use, and of
// later ones. watches returns the watches of a kind. A nil hub has no events.
//
// It is no source.Kind, which would fail with its controller when the cache of a kind ends before it is filled.
func Source[R comparable](h *Hub, watches func(workload.Kind) []Watch[R]) source.TypedSource[R] {
	return source.TypedFunc[R](func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[R]) error {
		if h == nil {
			return nil
		}
		return h.watch(func(e *entry) error {
			for _, w := range watches(e.kind) {
				if !isDynamic(w.Object) {
					continue // the cache of the manager has it
				}
				// The handlers end with the cache.
				until, cancel := context.WithCancel(ctx)
				context.AfterFunc(e.ctx, cancel) //nolint:contextcheck // the context of the cache, which ends on its own
				if err := source.TypedKind(e.cache, w.Object, w.Handler, w.Predicates...).Start(until, queue); err != nil {
					cancel()
					return err
				}
			}
			return nil
		})
	})
}

// watch calls add for the caches in use, and for later ones.
func (h *Hub) watch(add func(e *entry) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watches = append(h.watches, add)
	for _, e := range h.used {
		if err := add(e); err != nil {
			return err
		}
	}
	return nil
}
