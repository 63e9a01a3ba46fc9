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

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// OwnerOf reads a summary of the workload that owns a release; nil when it is gone.
func (v View) OwnerOf(ctx context.Context, change *v1alpha1.ChangeWorkload) (*workload.Workload, error) {
	owner, ok := v.Kinds.OwnerOf(change)
	if !ok {
		return nil, nil
	}
	w, err := v.Summary(ctx, owner.Key)
	if err != nil || w == nil || w.UID != owner.UID {
		return nil, err
	}
	return w, nil
}

// Defended reports whether a release is defended now: nothing is written about a
// release that left the defense, not even a late result.
func (v View) Defended(ctx context.Context, change *v1alpha1.ChangeWorkload) (bool, error) {
	w, err := v.DefendedOwner(ctx, change)
	return w != nil, err
}

// DefendedOwner reads a summary of the workload of a release that is defended now; nil
// when it is not.
func (v View) DefendedOwner(ctx context.Context, change *v1alpha1.ChangeWorkload) (*workload.Workload, error) {
	ns, err := v.Namespace(ctx, change.Namespace)
	if err != nil || !ns.Enrolled {
		return nil, err
	}
	w, err := v.OwnerOf(ctx, change)
	if err != nil || w == nil || w.Deleting || workload.OptedOut(w.Labels) {
		return nil, err
	}
	return w, nil
}

// DefendedLive reports what the API server has: whether a release is defended although the cache does not show it.
func (v View) DefendedLive(ctx context.Context, change *v1alpha1.ChangeWorkload) (bool, error) {
	owner, ok := v.Kinds.OwnerOf(change)
	if !ok {
		return false, nil
	}
	ns, err := v.LiveNamespace(ctx, change.Namespace)
	if err != nil || !ns.Enrolled {
		return false, err
	}
	live, err := v.liveOwner(ctx, owner)
	if err != nil || live == nil {
		return false, err
	}
	return live.DeletionTimestamp == nil && !workload.OptedOut(live.Labels), nil
}

// Releases lists the ChangeWorkloads owned by a workload.
func (v View) Releases(ctx context.Context, namespace string, uid types.UID) ([]v1alpha1.ChangeWorkload, error) {
	var list v1alpha1.ChangeWorkloadList
	if err := v.Cached.List(ctx, &list, OwnedBy(namespace, uid)...); err != nil {
		return nil, fmt.Errorf("list changeworkloads of %s: %w", namespace, err)
	}
	return list.Items, nil
}

// History lists the remembered versions of a workload.
func (v View) History(ctx context.Context, namespace string, uid types.UID) ([]workload.Revision, error) {
	var list appsv1.ControllerRevisionList
	if err := v.Cached.List(ctx, &list, OwnedBy(namespace, uid)...); err != nil {
		return nil, fmt.Errorf("list controllerrevisions of %s: %w", namespace, err)
	}
	return workload.History(list.Items), nil
}

// CurrentRelease returns the record of the current release of a workload, among its records.
func CurrentRelease(w *workload.Workload, changes []v1alpha1.ChangeWorkload) *v1alpha1.ChangeWorkload {
	for i := range changes {
		if c := &changes[i]; c.Spec.Reversion == w.RecordedVersion() && metav1.GetControllerOf(c) != nil {
			return c
		}
	}
	return nil
}

// Past reads the releases and the history of a workload from the cache.
func (v View) Past(ctx context.Context, namespace string, uid types.UID) (past rollback.Past, err error) {
	if past.Changes, err = v.Releases(ctx, namespace, uid); err != nil {
		return rollback.Past{}, err
	}
	past.History, err = v.History(ctx, namespace, uid)
	return past, err
}

// OwnedBy selects the objects that a workload owns.
func OwnedBy(namespace string, uid types.UID) []client.ListOption {
	return []client.ListOption{
		client.InNamespace(namespace), client.MatchingFields{workload.IndexByOwner: string(uid)}, client.UnsafeDisableDeepCopy,
	}
}
