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

package controllers

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// countTimeout bounds the counting for one reading of the metrics, which waits while
// the cache starts.
const countTimeout = 2 * time.Second

// blockedWorkloads counts in the cache, by namespace, the workloads whose releases are
// blocked. Each namespace under defense has a number. Elsewhere, and on a workload that
// is opted out, the label of a block has no effect.
func blockedWorkloads(ctx context.Context, v cluster.View) (map[string]int, error) {
	// The metrics of a manager that ended are read in tests, from where its context is
	// not to be waited for.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countTimeout)
	defer cancel()
	enrolled, err := v.EnrolledNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	blocked := make(map[string]int, len(enrolled))
	for _, namespace := range enrolled {
		blocked[namespace] = 0
	}
	for _, kind := range v.Kinds.Kinds() {
		list := kind.ObjectList()
		if err := v.Cached.List(ctx, list, client.HasLabels{v1alpha1.SuspendLabel}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list blocked workloads: %w", err)
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			o, err := meta.Accessor(item)
			if err != nil {
				return err
			}
			if n, ok := blocked[o.GetNamespace()]; ok && !defense.OptedOut(o.GetLabels()) {
				blocked[o.GetNamespace()] = n + 1
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("count blocked workloads: %w", err)
		}
	}
	return blocked, nil
}
