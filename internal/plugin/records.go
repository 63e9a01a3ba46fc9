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
	"cmp"
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// recordLabels returns the labels of the operator's objects about a workload. Objects of earlier builds have no others.
func recordLabels(t target) client.MatchingLabels {
	name := record.WorkloadNameLabelValue(t.key.Name)
	if kind := t.kind.GroupVersionKind().Kind; kind != (workload.Deployment{}).GroupVersionKind().Kind {
		return client.MatchingLabels{v1alpha1.WorkloadKindLabel: kind, v1alpha1.WorkloadNameLabel: name}
	}
	return client.MatchingLabels{v1alpha1.DeploymentNameLabel: name}
}

// recordsOf selects the operator's objects about a workload.
func recordsOf(t target) []client.ListOption {
	return []client.ListOption{client.InNamespace(t.key.Namespace), recordLabels(t)}
}

// releasesOf lists the releases of this very workload.
func releasesOf(ctx context.Context, r client.Reader, t target, uid types.UID) ([]v1alpha1.ChangeWorkload, error) {
	var list v1alpha1.ChangeWorkloadList
	if err := r.List(ctx, &list, recordsOf(t)...); err != nil {
		return nil, fmt.Errorf("list changeworkloads of %s: %w", t, err)
	}
	return slices.DeleteFunc(list.Items, func(change v1alpha1.ChangeWorkload) bool { return !isOwnedBy(&change, uid) }), nil
}

// batchesOf lists the batches of a release.
func batchesOf(ctx context.Context, r client.Reader, t target, change *v1alpha1.ChangeWorkload) ([]v1alpha1.ChangePod, error) {
	var list v1alpha1.ChangePodList
	if err := r.List(ctx, &list, recordsOf(t)...); err != nil {
		return nil, fmt.Errorf("list changepods of %s: %w", t, err)
	}
	return slices.DeleteFunc(list.Items, func(batch v1alpha1.ChangePod) bool { return !isOwnedBy(&batch, change.UID) }), nil
}

func isOwnedBy(o metav1.Object, uid types.UID) bool {
	owner := metav1.GetControllerOf(o)
	return owner != nil && owner.UID == uid
}

// readHistory lists the versions that a workload can be rolled back to, the newest first.
func readHistory(ctx context.Context, r client.Reader, t target, uid types.UID) ([]remembered, error) {
	var list appsv1.ControllerRevisionList
	if err := r.List(ctx, &list, recordsOf(t)...); err != nil {
		return nil, fmt.Errorf("list controllerrevisions of %s: %w", t, err)
	}
	return rememberedBy(slices.DeleteFunc(list.Items, func(r appsv1.ControllerRevision) bool { return workload.Remembers(&r) != uid })), nil
}

// revisions returns the history as the operator decides by it.
func revisions(history []remembered) []workload.Revision {
	plain := make([]workload.Revision, len(history))
	for i := range history {
		plain[i] = history[i].Revision
	}
	return plain
}

// newestFirst sorts records by the number of their releases.
func newestFirst(changes []v1alpha1.ChangeWorkload) {
	slices.SortFunc(changes, func(a, b v1alpha1.ChangeWorkload) int {
		return cmp.Or(cmp.Compare(b.Spec.Release, a.Spec.Release),
			cmp.Compare(b.Spec.CreateTimeUnix, a.Spec.CreateTimeUnix), cmp.Compare(a.Name, b.Name))
	})
}
