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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// LimitName is the name of the ConfigMap in the operator's namespace that counts the
// automatic rollbacks. If it is deleted, counting starts again at 0.
const LimitName = "altershieldoperator-rollbacks"

// +kubebuilder:rbac:groups="",resources=configmaps,verbs=create,namespace=altershieldoperator-system
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=altershieldoperator-rollbacks,verbs=get;list;watch;update,namespace=altershieldoperator-system

// RollbackLimit reads the counted rollbacks from the cache.
func (v View) RollbackLimit(ctx context.Context) (rollback.Limit, error) {
	var counted corev1.ConfigMap
	err := v.Cached.Get(ctx, types.NamespacedName{Namespace: v.Operator, Name: LimitName}, &counted)
	if client.IgnoreNotFound(err) != nil {
		return rollback.Limit{}, fmt.Errorf("get configmap %s: %w", LimitName, err)
	}
	return rollback.ParseLimit(counted.Annotations[v1alpha1.LimitAnnotation]), nil
}

// TakeLimit counts a rollback before it starts, by compare-and-swap on the API server. A
// repeated decision is counted once. Without room TakeLimit fails with a conflict, so that
// the rollback is decided again.
func (c *Cluster) TakeLimit(ctx context.Context, w *workload.Workload) error {
	set, err := c.InForceOf(ctx, w, nil)
	if err != nil || !set.Limit {
		// Without a limit, rollbacks of many workloads must not wait for one another.
		return err
	}
	counted := &corev1.ConfigMap{}
	err = c.Live.Get(ctx, types.NamespacedName{Namespace: c.Operator, Name: LimitName}, counted)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get configmap %s: %w", LimitName, err)
	}
	missing := err != nil
	before := rollback.ParseLimit(counted.Annotations[v1alpha1.LimitAnnotation])
	after, changed, ok := before.Take(set.Settings, c.Clock.Now(), w)
	switch {
	case !ok:
		log.FromContext(ctx).Info("the rollback limit delays a rollback", "count", set.LimitCount, "window", set.LimitWindow.String())
		return apierrors.NewConflict(corev1.Resource("configmaps"), LimitName, fmt.Errorf("no room for another rollback"))
	case !changed:
		return nil
	case missing:
		counted = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.Operator, Name: LimitName}}
	}
	metav1.SetMetaDataAnnotation(&counted.ObjectMeta, v1alpha1.LimitAnnotation, after.String())
	if missing {
		err = c.Client.Create(ctx, counted)
	} else {
		err = c.Client.Update(ctx, counted)
	}
	if err != nil {
		return fmt.Errorf("count a rollback in configmap %s: %w", LimitName, err)
	}
	return nil
}
