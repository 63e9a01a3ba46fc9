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
