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
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,verbs=get;list;watch;create;patch;delete

// The history of a workload is kept as ControllerRevisions that it owns: the
// templates of the versions that succeeded, whatever becomes of its ReplicaSets.

// observeHistory lists the versions of a workload that are remembered.
func (b *base) observeHistory(ctx context.Context, namespace string, uid types.UID) ([]defense.Revision, error) {
	var list appsv1.ControllerRevisionList
	if err := b.client.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{workload.IndexByOwner: string(uid)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list controllerrevisions of %s: %w", uid, err)
	}
	return workload.History(list.Items), nil
}

// remember keeps the template of the version that succeeded. A workload that has
// moved on meanwhile is not remembered as what it is now.
func (b *base) remember(ctx context.Context, change *v1alpha1.ChangeWorkload, w *defense.Workload) error {
	template, version, err := b.kind.Template(ctx, b.live, w)
	if err != nil || version != change.Spec.Reversion {
		return err
	}
	data, err := json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
	if err != nil {
		return fmt.Errorf("encode the template of %s %s/%s: %w", w.Kind, w.Namespace, w.Name, err)
	}
	apiVersion, kind := b.kind.GroupVersionKind().ToAPIVersionAndKind()
	revision := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       w.Namespace,
			Name:            change.Name,
			Labels:          ownLabels(w.Name, version),
			OwnerReferences: []metav1.OwnerReference{newOwnerReference(apiVersion, kind, w.Name, w.UID)},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: change.Spec.Release,
	}
	err = b.client.Create(ctx, revision)
	if apierrors.IsAlreadyExists(err) {
		return b.renumber(ctx, revision, w)
	}
	if err != nil {
		return fmt.Errorf("create controllerrevision %s: %w", revision.Name, err)
	}
	log.FromContext(ctx).Info("remembered a version that succeeded", "version", version, "release", change.Spec.Release)
	return nil
}

// renumber makes a version that succeeds again the newest one. One that a
// workload of the same name left behind is removed first.
func (b *base) renumber(ctx context.Context, revision *appsv1.ControllerRevision, w *defense.Workload) error {
	stored := &appsv1.ControllerRevision{}
	if err := b.live.Get(ctx, client.ObjectKeyFromObject(revision), stored); err != nil {
		return fmt.Errorf("get controllerrevision %s: %w", revision.Name, err)
	}
	if ref := metav1.GetControllerOf(stored); ref == nil || ref.UID != w.UID {
		if err := b.client.Delete(ctx, stored, client.Preconditions{UID: &stored.UID}); err != nil {
			return fmt.Errorf("remove controllerrevision %s: %w", revision.Name, err)
		}
		if err := b.client.Create(ctx, revision); err != nil {
			return fmt.Errorf("create controllerrevision %s: %w", revision.Name, err)
		}
		return nil
	}
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q},"revision":%d}`, stored.UID, stored.ResourceVersion, revision.Revision)
	if err := b.client.Patch(ctx, stored, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("renumber controllerrevision %s: %w", revision.Name, err)
	}
	return nil
}

func (b *base) forget(ctx context.Context, namespace string, r *defense.Revision) error {
	revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: r.Name}}
	if err := b.client.Delete(ctx, revision, client.Preconditions{UID: &r.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove controllerrevision %s: %w", r.Name, err)
	}
	log.FromContext(ctx).Info("forgot a version", "version", r.Version)
	return nil
}
