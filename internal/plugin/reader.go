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
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// reader reads from the API server as the operator reads from its caches: what a workload owns is found by its UID. It reads
// each list once, in pages, so it lives for one snapshot.
type reader struct {
	client.Reader
	// narrow returns the labels by which the objects of an index are selected for one workload; nil selects all.
	narrow func(index string, kind schema.GroupKind) labels.Selector
	lists  map[string][]runtime.Object
}

func newReader(live client.Reader) *reader {
	return &reader{Reader: live, lists: map[string][]runtime.Object{}}
}

// List implements client.Reader.
func (r *reader) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	o := client.ListOptions{}
	o.ApplyOptions(opts)
	gvk, err := apiutil.GVKForObject(into, Scheme())
	if err != nil {
		return err
	}
	index, owner := indexOf(&o)
	selector := o.LabelSelector
	if index != "" && selector == nil && r.narrow != nil {
		selector = r.narrow(index, schema.GroupKind{Group: gvk.Group, Kind: strings.TrimSuffix(gvk.Kind, "List")})
	}
	key := fmt.Sprintf("%T %s %s %v", into, gvk, o.Namespace, selector)
	items, known := r.lists[key]
	if !known {
		if items, err = r.all(ctx, into, o.Namespace, selector); err != nil {
			return err
		}
		r.lists[key] = items
	}
	if index != "" {
		items = slices.DeleteFunc(slices.Clone(items), func(item runtime.Object) bool { return !isOwned(index, item, owner) })
	}
	return meta.SetList(into, items)
}

// all lists all pages.
func (r *reader) all(ctx context.Context, like client.ObjectList, namespace string, selector labels.Selector) ([]runtime.Object, error) {
	list, _, err := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page, ok := like.DeepCopyObject().(client.ObjectList)
		if !ok {
			return nil, fmt.Errorf("%T is no list", like)
		}
		return page, r.Reader.List(ctx, page,
			&client.ListOptions{Namespace: namespace, LabelSelector: selector, Limit: o.Limit, Continue: o.Continue})
	}).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return meta.ExtractList(list)
}

// indexOf returns the index of the operator by which a list is asked for, and the UID; empty for none.
func indexOf(o *client.ListOptions) (index string, owner types.UID) {
	for _, index := range []string{workload.IndexByOwner, workload.IndexByRevised} {
		if o.FieldSelector != nil {
			if value, ok := o.FieldSelector.RequiresExactMatch(index); ok {
				return index, types.UID(value)
			}
		}
	}
	return "", ""
}

// isOwned reports whether an index of the operator finds an object by this UID. ControllerRevisions belong to the workload's own
// controller or to the operator.
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
