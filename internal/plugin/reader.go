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

package plugin

import (
	"context"
	"fmt"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// pageSize is how many objects one request lists.
const pageSize = 500

// reader reads from the API server as the operator reads from its caches: lists come
// whole, what a workload owns is found by its UID, and nothing is read twice. It lives
// for one look at the cluster.
type reader struct {
	live   client.Reader
	scheme *runtime.Scheme
	// page is how many objects one request lists; 0 for all.
	page int64
	// narrow selects, of a kind of object, those that an index can find for the workload
	// that is looked at; nil for all.
	narrow func(index string, gk schema.GroupKind) labels.Selector

	mu      sync.Mutex
	lists   map[what][]runtime.Object
	objects map[what]client.Object
	// seen is all that was read, for who wants to watch it.
	seen []what
}

// what is read: one object, or those of a namespace that a selector selects.
type what struct {
	gvk             schema.GroupVersionKind
	form            form
	namespace, name string
	selector        string
}

// form is the form in which objects are read.
type form string

const (
	typed        form = "typed"
	unstructural form = "unstructured"
	metadataOnly form = "metadata"
)

func formOf(o runtime.Object) form {
	switch o.(type) {
	case runtime.Unstructured:
		return unstructural
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		return metadataOnly
	default:
		return typed
	}
}

var _ client.Reader = &reader{}

// newReader reads from an API server, by pages.
func newReader(live client.Reader, scheme *runtime.Scheme) *reader {
	return &reader{live: live, scheme: scheme, page: pageSize, lists: map[what][]runtime.Object{}, objects: map[what]client.Object{}}
}

// Get implements client.Reader.
func (r *reader) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	gvk, err := apiutil.GVKForObject(into, r.scheme)
	if err != nil {
		return err
	}
	w := what{gvk: gvk, form: formOf(into), namespace: key.Namespace, name: key.Name}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(w)
	if known, ok := r.objects[w]; ok {
		return copyInto(known, into)
	}
	if err := r.live.Get(ctx, key, into, opts...); err != nil {
		return err
	}
	kept, ok := into.DeepCopyObject().(client.Object)
	if ok {
		r.objects[w] = kept
	}
	return nil
}

func (r *reader) note(w what) {
	if !slices.Contains(r.seen, w) {
		r.seen = append(r.seen, w)
	}
}

// copyInto copies an object of the same type.
func copyInto(from, into client.Object) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(from.DeepCopyObject())
	if err != nil {
		return fmt.Errorf("copy %T: %w", from, err)
	}
	if u, ok := into.(runtime.Unstructured); ok {
		u.SetUnstructuredContent(content)
		return nil
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(content, into)
}

// List implements client.Reader.
func (r *reader) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	o := client.ListOptions{}
	o.ApplyOptions(opts)
	gvk, err := apiutil.GVKForObject(into, r.scheme)
	if err != nil {
		return err
	}
	index, owner := indexOf(&o)
	kind := schema.GroupKind{Group: gvk.Group, Kind: singular(gvk.Kind)}
	selector := o.LabelSelector
	if index != "" && selector == nil && r.narrow != nil {
		selector = r.narrow(index, kind)
	}
	w := what{gvk: gvk.GroupVersion().WithKind(kind.Kind), form: formOf(into), namespace: o.Namespace}
	if selector != nil {
		w.selector = selector.String()
	}
	items, err := r.all(ctx, w, into, &client.ListOptions{Namespace: o.Namespace, LabelSelector: selector})
	if err != nil {
		return err
	}
	if index != "" {
		items = slices.DeleteFunc(slices.Clone(items), func(item runtime.Object) bool { return !isOwned(index, item, owner) })
	}
	return meta.SetList(into, items)
}

// singular is the kind of the items of a list.
func singular(list string) string {
	if n := len(list) - len("List"); n > 0 && list[n:] == "List" {
		return list[:n]
	}
	return list
}

// indexOf is the index of the operator that a list is to be read by, and the UID that is
// looked for; empty where it is read by none.
func indexOf(o *client.ListOptions) (index string, owner types.UID) {
	if o.FieldSelector == nil {
		return "", ""
	}
	for _, index := range []string{workload.IndexByOwner, workload.IndexByRevised} {
		if value, ok := o.FieldSelector.RequiresExactMatch(index); ok {
			return index, types.UID(value)
		}
	}
	return "", ""
}

// isOwned says that an object is of the workload with this UID, as the index of the
// operator has it. What a workload remembers, and what its own controller does, are
// different ControllerRevisions.
func isOwned(index string, item runtime.Object, owner types.UID) bool {
	o, ok := item.(client.Object)
	if !ok {
		return false
	}
	of := workload.OwnerUID
	switch _, revision := item.(*appsv1.ControllerRevision); {
	case index == workload.IndexByRevised:
		of = workload.RevisedBy
	case revision:
		of = workload.HistoryOf
	}
	return slices.Contains(of(o), string(owner))
}

// all lists all pages, once.
func (r *reader) all(ctx context.Context, w what, like client.ObjectList, o *client.ListOptions) ([]runtime.Object, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(w)
	if known, ok := r.lists[w]; ok {
		return known, nil
	}
	var items []runtime.Object
	for o.Limit = r.page; ; {
		page, ok := like.DeepCopyObject().(client.ObjectList)
		if !ok {
			return nil, fmt.Errorf("%T is no list", like)
		}
		err := r.live.List(ctx, page, o)
		if apierrors.IsResourceExpired(err) && o.Continue != "" {
			// It took longer than the API server remembers: all in one, then.
			items, o.Continue, o.Limit = nil, "", 0
			continue
		}
		if err != nil {
			return nil, err
		}
		of, err := meta.ExtractList(page)
		if err != nil {
			return nil, fmt.Errorf("read a list of %s: %w", w.gvk.Kind, err)
		}
		items = append(items, of...)
		// A cache has it all, and says something there all the same.
		if o.Continue = page.GetContinue(); o.Continue == "" || r.page == 0 {
			r.lists[w] = items
			return items, nil
		}
	}
}
