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
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/pages"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// ErrNoCache is the error of a read of a kind that has no cache: it was removed a moment ago, or is not declared.
var ErrNoCache = errors.New("the kind is not declared, or its ChangeKind was just removed")

// Declared is a kind that a ChangeKind declares.
type Declared interface {
	workload.Kind
	Declaration() *declared.Kind
}

// Caches opens the caches of kinds.
func Caches(config *rest.Config, o cache.Options) Open {
	o.DefaultTransform, o.NewInformer = cache.TransformStripManagedFields(), pages.NewInformers()
	// A read of a kind that was removed must not start an informer.
	o.ReaderFailOnMissingInformer = true
	return func(kind workload.Kind, failed func(error)) (cache.Cache, error) {
		o := o
		o.ByObject = map[client.Object]cache.ByObject{}
		for object, trim := range kind.Transforms() {
			if !isDynamic(object) {
				continue
			}
			by := cache.ByObject{Transform: trim}
			if object.GetObjectKind().GroupVersionKind() == kind.GroupVersionKind() {
				by.Label = selects(kind)
			}
			o.ByObject[object] = by
		}
		o.DefaultWatchErrorHandler = func(ctx context.Context, r *toolscache.Reflector, err error) {
			toolscache.DefaultWatchErrorHandler(ctx, r, err)
			failed(err)
		}
		return cache.New(config, o)
	}
}

// selects selects the objects of a kind that are cached; nil for all.
func selects(kind workload.Kind) labels.Selector {
	d, ok := kind.(Declared)
	all, leaves := kind.(interface{ CachesAll() bool })
	if !ok || d.Declaration().Spec.Enrolment != v1alpha1.EnrolledByLabel || leaves && all.CachesAll() {
		return nil
	}
	return enrolled
}

// enrolled selects objects that are enrolled by label.
var enrolled = func() labels.Selector {
	has, err := labels.NewRequirement(v1alpha1.DefenseLabel, selection.In, []string{v1alpha1.DefenseEnabled, v1alpha1.DefenseEnforced})
	if err != nil {
		panic(err) // all of it is constant
	}
	return labels.NewSelector().Add(*has)
}()

// EnrolledByLabel reports whether an object with these labels is enrolled, if its kind is enrolled by label.
func EnrolledByLabel(of map[string]string) bool { return enrolled.Matches(labels.Set(of)) }

// NewClient returns a client for a manager. It reads declared kinds from their caches.
func (h *Hub) NewClient(config *rest.Config, o client.Options) (client.Client, error) {
	cached := *o.Cache
	cached.Reader = reader{hub: h, main: cached.Reader}
	o.Cache = &cached
	return client.New(config, o)
}

// reader reads objects without a Go type from the cache of their kind, and all others from the cache of the manager.
type reader struct {
	hub  *Hub
	main client.Reader
}

// Get implements client.Reader.
func (r reader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	from, err := r.of(o)
	if err != nil {
		return err
	}
	return from.Get(ctx, key, o, opts...)
}

// List implements client.Reader.
func (r reader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	from, err := r.of(list)
	if err != nil {
		return err
	}
	return from.List(ctx, list, opts...)
}

// of returns the reader of an object or a list. The cache of the manager has the objects of fixed kinds, and the metadata of
// Namespaces and of CustomResourceDefinitions; it gets no other informer by a read.
func (r reader) of(o runtime.Object) (client.Reader, error) {
	gvk := o.GetObjectKind().GroupVersionKind()
	metadata := false
	switch o.(type) {
	case *unstructured.Unstructured:
	case *unstructured.UnstructuredList:
		gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	case *metav1.PartialObjectMetadata:
		metadata = true
	case *metav1.PartialObjectMetadataList:
		metadata, gvk.Kind = true, strings.TrimSuffix(gvk.Kind, "List")
	default:
		return r.main, nil
	}
	if found := r.hub.cacheOf(gvk, metadata); found != nil {
		return found, nil
	}
	if metadata && (gvk.Group == "" || gvk.Group == crds.Group) || !metadata && r.hub.isFixed(gvk) {
		return r.main, nil
	}
	return nil, fmt.Errorf("read %s: %w", gvk, ErrNoCache)
}

// crds is the kind of a CustomResourceDefinition.
var crds = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// cacheOf returns the cache of a kind; nil if there is none.
func (h *Hub) cacheOf(gvk schema.GroupVersionKind, metadata bool) client.Reader {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, e := range h.used {
		for _, o := range objectsOf(e.kind) {
			if _, isMetadata := o.(*metav1.PartialObjectMetadata); isMetadata == metadata && o.GetObjectKind().GroupVersionKind() == gvk {
				return e.cache
			}
		}
	}
	return nil
}

// isFixed reports whether the cache of the manager has the objects of a kind, because a fixed kind reads them.
func (h *Hub) isFixed(gvk schema.GroupVersionKind) bool {
	for _, kind := range h.kinds.Fixed() {
		for o := range kind.Transforms() {
			if o.GetObjectKind().GroupVersionKind() == gvk {
				return true
			}
		}
	}
	return false
}
