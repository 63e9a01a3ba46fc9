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
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// The reads from the API server that a decision about a release asks for, and the evictions of a held rollout whose
// workload does not replace its pods itself.

// liveBatches reads the batches of a release from the API server: by their label, and by name
// the batches in the cache that have lost the label.
func (r *ChangeWorkloadReconciler) liveBatches(
	ctx context.Context, change *v1alpha1.ChangeWorkload, cached []v1alpha1.ChangePod,
) ([]v1alpha1.ChangePod, error) {
	var list v1alpha1.ChangePodList
	of := map[string]string{v1alpha1.VersionLabel: change.Spec.Reversion}
	if err := r.Live.List(ctx, &list, client.InNamespace(change.Namespace), client.MatchingLabels(of)); err != nil {
		return nil, fmt.Errorf("list changepods of %s: %w", change.Name, err)
	}
	for i := range cached {
		uid := cached[i].UID
		if slices.ContainsFunc(list.Items, func(b v1alpha1.ChangePod) bool { return b.UID == uid }) {
			continue
		}
		var batch v1alpha1.ChangePod
		switch err := r.Live.Get(ctx, client.ObjectKeyFromObject(&cached[i]), &batch); {
		case client.IgnoreNotFound(err) != nil:
			return nil, fmt.Errorf("get changepod %s: %w", cached[i].Name, err)
		case err == nil && batch.UID == uid:
			list.Items = append(list.Items, batch)
		}
	}
	return slices.DeleteFunc(list.Items, func(b v1alpha1.ChangePod) bool { return !metav1.IsControlledBy(&b, change) }), nil
}

// places returns all pods of a workload that is held by evictions, from live unless it is nil; nil for another workload.
func (r *ChangeWorkloadReconciler) places(ctx context.Context, w *workload.Workload, live client.Reader) ([]workload.Place, error) {
	kind, err := r.KindOf(w)
	by, ok := kind.(workload.NodePods)
	if err != nil || !ok || w.Hold == nil {
		return nil, err
	}
	return by.NodePods(ctx, r.Cached, live, w)
}

// maxNodesRead bounds the nodes that are read before a wave: those of the newest pods.
const maxNodesRead = 100

// loadLivePlaces reads the workload, its pods and their nodes from the API server: another manager may have evicted
// pods just now, and a pod on a node that is not Ready may still be Ready.
func (r *ChangeWorkloadReconciler) loadLivePlaces(ctx context.Context, in defense.ReleaseInput) (_ defense.ReleaseInput, err error) {
	if in.Workload, err = r.Reread(ctx, in.Workload); err != nil {
		return in, err
	}
	in.Live, in.LivePlaces = true, true
	if in.Places, err = r.places(ctx, in.Workload, r.Live); err != nil || in.Workload.Hold == nil {
		return in, err
	}
	in.Pods = nil
	for i := range in.Places {
		if in.Places[i].Current {
			in.Pods = append(in.Pods, in.Places[i].Pod)
		}
	}
	slices.SortStableFunc(in.Pods, func(a, b workload.Pod) int { return b.Created.Compare(a.Created) })
	var nodes []string
	for i := range in.Pods[:min(len(in.Pods), maxNodesRead)] {
		nodes = append(nodes, in.Pods[i].Node)
	}
	in.Pods = rollback.OnUnreachableNodes(in.Pods, in.Unreachable)
	in.Down, err = r.NodesNotReady(ctx, slices.DeleteFunc(nodes, func(name string) bool { return name == "" }))
	return in, err
}

func (r *ChangeWorkloadReconciler) refusedUntil(change *v1alpha1.ChangeWorkload) (until time.Time) {
	if at, ok := r.refused.Get(change.UID); ok {
		until = at.(time.Time) //nolint:errcheck // the cache holds nothing else
	}
	return until
}

// evictWave evicts the pods of a wave, up to the first refusal, and sets the condition of the release. It reports
// whether the condition changed. After a crash, the next decision reads which pods are gone.
func (r *ChangeWorkloadReconciler) evictWave(
	ctx context.Context, w *workload.Workload, change *v1alpha1.ChangeWorkload, pods []workload.Place,
) (noted bool, err error) {
	var block *rollback.EvictionBlock
	for i := range pods {
		p := &pods[i]
		err := evictPod(ctx, r.Client, p)
		outcome, reason, why := noteEvicted(w, err)
		if outcome == metrics.EvictionDone {
			log.FromContext(ctx).Info("evicted a pod of the next wave of a held rollout", "pod", p.Name, "uid", p.UID, "node", p.Node)
			continue
		}
		if outcome != metrics.EvictionBlocked && outcome != metrics.EvictionDenied {
			return false, fmt.Errorf("evict pod %s: %w", p.Name, err)
		}
		if wanted := wantedDelay(err); wanted > 0 { // the API server is computing the budget
			r.refused.Add(change.UID, r.Clock.Now().Add(wanted), refusedFor)
			return false, nil
		}
		r.refused.Add(change.UID, r.Clock.Now().Add(rollback.RetryEviction(&change.Status, r.Clock.Now())), refusedFor)
		if i == 0 { // else the wave has begun
			block = &rollback.EvictionBlock{Reason: reason, Message: fmt.Sprintf("pod %s is next in the held rollout: %s", p.Name, why)}
		}
		break
	}
	if len(pods) == 0 {
		return false, nil
	}
	noted, event := rollback.NoteEviction(&change.Status, w, change.Generation, r.Clock.Now(), block)
	if event != nil {
		r.Event(w, change, *event, "Evict")
	}
	return noted, nil
}
