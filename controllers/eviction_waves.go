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

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// The evictions of a held rollout whose workload does not replace its pods itself.

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
