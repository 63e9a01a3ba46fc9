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

package cluster

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// declaration returns the ChangeKind of the kind of a workload, and the hash of its content that is in force; nil if the
// kind needs no declaration, or its ChangeKind is gone.
func (v View) declaration(ctx context.Context, w *workload.Workload) (c *v1alpha1.ChangeKind, hash string, err error) {
	kind, _ := v.Kinds.Of(w.GVK.GroupKind())
	d, ok := kind.(hub.Declared)
	if !ok {
		return nil, "", nil
	}
	c = &v1alpha1.ChangeKind{}
	if err := v.Cached.Get(ctx, types.NamespacedName{Name: d.Declaration().Name}, c); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, "", nil
		}
		return nil, "", fmt.Errorf("get changekind %s: %w", d.Declaration().Name, err)
	}
	return c, d.Declaration().ContentHash(), nil
}

// Rebaselines reports whether the declaration of the content of a kind changed, and the present content of its objects
// becomes a baseline.
func (v View) Rebaselines(ctx context.Context, w *workload.Workload) (bool, error) {
	c, hash, err := v.declaration(ctx, w)
	return c != nil && c.Status.ContentHash != hash, err
}

// orUnlabelled reads a workload. The cache of a kind that is enrolled by label lacks an object that lost the label: it is read
// from the API server, as one that opted out, so that the operator takes back its block, halt or hold.
func (v View) orUnlabelled(ctx context.Context, kind workload.Kind, key types.NamespacedName,
	read func(context.Context, client.Reader, types.NamespacedName) (*workload.Workload, error),
) (*workload.Workload, error) {
	w, err := read(ctx, v.Cached, key)
	d, ok := kind.(hub.Declared)
	if w != nil || err != nil || !ok || d.Declaration().Spec.Enrolment != v1alpha1.EnrolledByLabel {
		return w, err
	}
	if w, err = read(ctx, liveObject{v.Cached, v.Live}, key); err != nil || w == nil {
		return nil, err
	}
	if !hub.EnrolledByLabel(w.Labels) { // else the cache will show it
		return w.WithOptOut(), nil
	}
	return nil, nil
}

// liveObject reads objects without a Go type from the API server, and all others from the caches.
type liveObject struct {
	client.Reader
	live client.Reader
}

// Get implements client.Reader.
func (r liveObject) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, dynamic := o.(*unstructured.Unstructured); dynamic {
		return r.live.Get(ctx, key, o, opts...)
	}
	return r.Reader.Get(ctx, key, o, opts...)
}
