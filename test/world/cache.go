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

package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// form is the form of an object in a cache.
type form int

const (
	asType form = iota
	asMap
	asMetadata
)

func formOf(o runtime.Object) form {
	switch o.(type) {
	case *unstructured.Unstructured, *unstructured.UnstructuredList:
		return asMap
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		return asMetadata
	default:
		return asType
	}
}

type kindAndForm struct {
	kind string
	form form
}

func kindAndFormOf(o runtime.Object) kindAndForm {
	return kindAndForm{strings.TrimSuffix(gvkOf(o).Kind, "List"), formOf(o)}
}

// processCache is the cache of one process. Its informers read changes when the world lets them.
type processCache struct {
	api     *api
	options cache.Options
	// past is the first entry of the history that lists do not have; 0 if they have all.
	past int

	mu        sync.Mutex
	informers map[kindAndForm]*informer
}

var _ cache.Cache = &processCache{}

func newCache(a *api, o cache.Options) *processCache {
	return &processCache{api: a, options: o, informers: map[kindAndForm]*informer{}}
}

// informer has the objects of one kind as they were at some moment.
type informer struct {
	kindAndForm
	api       *api
	gvk       schema.GroupVersionKind
	transform toolscache.TransformFunc
	labels    labels.Selector
	namespace string

	// next is the position of the next entry of the history.
	next    int
	objects map[client.ObjectKey]client.Object
	indexes map[string]client.IndexerFunc
	// filed has the objects by the values of the indexes.
	filed map[indexedAs]map[client.ObjectKey]client.Object

	mu sync.Mutex
	// handlers handle each change; the handlers from served on have not handled the existing
	// objects yet.
	handlers []toolscache.ResourceEventHandler
	served   int
}

// indexedAs is a value of an index.
type indexedAs struct{ field, value string }

func (c *processCache) informerFor(o runtime.Object) *informer {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := kindAndFormOf(o)
	if i, ok := c.informers[of]; ok {
		return i
	}
	gvk := gvkOf(o)
	gvk.Kind = of.kind
	i := &informer{
		kindAndForm: of, api: c.api, gvk: gvk, objects: map[client.ObjectKey]client.Object{},
		indexes: map[string]client.IndexerFunc{}, filed: map[indexedAs]map[client.ObjectKey]client.Object{},
	}
	for object, by := range c.options.ByObject {
		if kindAndFormOf(object) == of {
			i.transform, i.labels = by.Transform, by.Label
			for namespace := range by.Namespaces {
				i.namespace = namespace
			}
		}
	}
	// A new informer lists all objects: controllers and reads wait for the list.
	i.next = c.api.history.forgotten
	for k, o := range c.api.history.base {
		if k.kind == i.kind && (i.namespace == "" || i.namespace == k.namespace) {
			i.put(client.ObjectKeyFromObject(o), i.keep(o))
		}
	}
	for {
		change, ok := i.pending()
		if !ok || c.past > 0 && i.next >= c.past {
			break
		}
		i.take(&change)
	}
	c.informers[of] = i
	return i
}

// all returns the informers in a fixed order.
func (c *processCache) all() []*informer {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*informer
	for _, i := range c.informers {
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b *informer) int { return cmp.Or(strings.Compare(a.kind, b.kind), cmp.Compare(a.form, b.form)) })
	return all
}

// pending returns the next entry of the history of this kind.
func (i *informer) pending() (change, bool) {
	for ; i.next < i.api.history.end(); i.next++ {
		if c := i.api.history.at(i.next); c.key.kind == i.kind && (i.namespace == "" || i.namespace == c.key.namespace) {
			return c, true
		}
	}
	return change{}, false
}

// repeat makes the informer pass all objects to its handlers again.
func (i *informer) repeat() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.served = 0
}

// ready reports whether there is an entry of at least an age, or a new handler.
func (i *informer) ready(age time.Duration) bool {
	if i.hasNewHandler() {
		return true
	}
	c, ok := i.pending()
	return ok && time.Since(c.at) >= age
}

func (i *informer) hasNewHandler() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.served < len(i.handlers)
}

// see handles the next entry of the history, or the existing objects with a new handler.
func (i *informer) see() {
	if i.hasNewHandler() {
		i.mu.Lock()
		handlers := i.handlers[i.served:]
		i.served = len(i.handlers)
		i.mu.Unlock()
		for _, h := range handlers {
			for _, o := range i.sorted() {
				h.OnAdd(o, true)
			}
		}
		return
	}
	c, ok := i.pending()
	if !ok {
		return
	}
	before, now := i.take(&c)
	had := before != nil
	i.mu.Lock()
	handlers := slices.Clone(i.handlers[:i.served])
	i.mu.Unlock()
	for _, h := range handlers {
		switch {
		case now != nil && had:
			h.OnUpdate(before, now)
		case now != nil:
			h.OnAdd(now, false)
		case had:
			h.OnDelete(before)
		}
	}
}

// take applies an entry of the history, and returns the object before and after it; nil if it did
// not exist.
func (i *informer) take(c *change) (before, now client.Object) {
	i.next++
	k := client.ObjectKeyFromObject(c.object)
	before = i.objects[k]
	if !c.deleted {
		now = i.keep(c.object)
	}
	i.put(k, now)
	return before, now
}

// put stores an object, or removes it if now is nil.
func (i *informer) put(k client.ObjectKey, now client.Object) {
	if before, ok := i.objects[k]; ok {
		for as := range i.indexed(before) {
			drop(i.filed, as, k)
		}
		delete(i.objects, k)
	}
	if now == nil {
		return
	}
	i.objects[k] = now
	for as := range i.indexed(now) {
		file(i.filed, as, k, now)
	}
}

// indexed returns the values of all indexes for an object.
func (i *informer) indexed(o client.Object) iter.Seq[indexedAs] {
	return func(yield func(indexedAs) bool) {
		for field, index := range i.indexes {
			for _, value := range index(o) {
				if !yield(indexedAs{field, value}) {
					return
				}
			}
		}
	}
}

// keep returns the form of an object that the cache keeps; nil if it keeps none.
func (i *informer) keep(o client.Object) client.Object {
	kept := asObject(o.DeepCopyObject())
	switch i.form {
	case asMap:
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(kept)
		if err != nil {
			panic(err) // it is an API type
		}
		u := &unstructured.Unstructured{Object: content}
		u.SetGroupVersionKind(i.gvk)
		kept = u
	case asMetadata:
		p := &metav1.PartialObjectMetadata{}
		if err := into(kept, p); err != nil {
			panic(err)
		}
		p.SetGroupVersionKind(i.gvk)
		kept = p
	case asType:
	}
	if i.labels != nil && !i.labels.Matches(labels.Set(kept.GetLabels())) {
		return nil
	}
	if i.transform != nil {
		transformed, err := i.transform(kept)
		if err != nil {
			panic(err)
		}
		object, ok := transformed.(client.Object)
		if !ok {
			panic(fmt.Sprintf("the transform made %T", transformed))
		}
		kept = object
	}
	return kept
}

func (i *informer) sorted() []client.Object { return inOrder(i.objects) }

func inOrder(objects map[client.ObjectKey]client.Object) []client.Object {
	all := make([]client.Object, 0, len(objects))
	for _, o := range objects {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b client.Object) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	return all
}

// Get implements cache.Cache.
func (c *processCache) Get(_ context.Context, k client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	i := c.informerFor(o)
	found, ok := i.objects[k]
	if !ok {
		return apierrors.NewNotFound(resourceOf(o), k.Name)
	}
	setObject(o, found)
	return nil
}

// List implements cache.Cache.
func (c *processCache) List(_ context.Context, l client.ObjectList, opts ...client.ListOption) error {
	var options client.ListOptions
	options.ApplyOptions(opts)
	i := c.informerFor(l)
	found, err := i.find(&options)
	if err != nil {
		return err
	}
	var items []runtime.Object
	for _, o := range found {
		if options.Namespace != "" && o.GetNamespace() != options.Namespace ||
			options.LabelSelector != nil && !options.LabelSelector.Matches(labels.Set(o.GetLabels())) {
			continue
		}
		if options.UnsafeDisableDeepCopy == nil || !*options.UnsafeDisableDeepCopy {
			items = append(items, o.DeepCopyObject())
		} else {
			items = append(items, o)
		}
	}
	return meta.SetList(l, items)
}

// find returns the objects that match the field selector of a list.
func (i *informer) find(options *client.ListOptions) ([]client.Object, error) {
	if options.FieldSelector == nil {
		return i.sorted(), nil
	}
	found := i.objects
	for _, r := range options.FieldSelector.Requirements() {
		if _, ok := i.indexes[r.Field]; !ok {
			return nil, fmt.Errorf("%s are not indexed by %s", i.kind, r.Field)
		}
		both := map[client.ObjectKey]client.Object{}
		for k, o := range i.filed[indexedAs{r.Field, r.Value}] {
			if _, ok := found[k]; ok {
				both[k] = o
			}
		}
		found = both
	}
	return inOrder(found), nil
}

// IndexField implements cache.Cache.
func (c *processCache) IndexField(_ context.Context, o client.Object, field string, by client.IndexerFunc) error {
	i := c.informerFor(o)
	i.indexes[field] = by
	for k, o := range maps.Clone(i.objects) {
		i.put(k, o)
	}
	return nil
}

// GetInformer implements cache.Cache.
func (c *processCache) GetInformer(_ context.Context, o client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	return c.informerFor(o), nil
}

var errNotHere = errors.New("not supported in this world")

// GetInformerForKind implements cache.Cache.
func (c *processCache) GetInformerForKind(context.Context, schema.GroupVersionKind, ...cache.InformerGetOption) (cache.Informer, error) {
	return nil, errNotHere
}

// RemoveInformer implements cache.Cache.
func (c *processCache) RemoveInformer(context.Context, client.Object) error { return errNotHere }

// Start implements cache.Cache.
func (c *processCache) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// WaitForCacheSync implements cache.Cache.
func (c *processCache) WaitForCacheSync(context.Context) bool { return true }

// AddEventHandler implements cache.Informer.
func (i *informer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handlers = append(i.handlers, h)
	return i, nil
}

// AddEventHandlerWithResyncPeriod implements cache.Informer.
func (i *informer) AddEventHandlerWithResyncPeriod(
	h toolscache.ResourceEventHandler, _ time.Duration,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

// AddEventHandlerWithOptions implements cache.Informer.
func (i *informer) AddEventHandlerWithOptions(
	h toolscache.ResourceEventHandler, _ toolscache.HandlerOptions,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(h)
}

// RemoveEventHandler implements cache.Informer.
func (i *informer) RemoveEventHandler(toolscache.ResourceEventHandlerRegistration) error {
	return errNotHere
}

// AddIndexers implements cache.Informer.
func (i *informer) AddIndexers(toolscache.Indexers) error { return errNotHere }

// HasSynced implements cache.Informer.
func (i *informer) HasSynced() bool { return true }

// HasSyncedChecker implements cache.Informer.
func (i *informer) HasSyncedChecker() toolscache.DoneChecker { return synced{} }

// IsStopped implements cache.Informer.
func (i *informer) IsStopped() bool { return false }

// synced is done from the start.
type synced struct{}

// Name implements toolscache.DoneChecker.
func (synced) Name() string { return "world" }

// Done implements toolscache.DoneChecker.
func (synced) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}
