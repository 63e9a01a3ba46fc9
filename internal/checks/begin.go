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

package checks

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// stageOf returns the stage at which a check of a release runs. A check at the stage Admission
// runs when the release begins, if admission did not see the release.
func stageOf(c *policy.Check) v1alpha1.PolicyStage {
	if c.Stage == v1alpha1.StageAdmission {
		return v1alpha1.StageReleasePre
	}
	return c.Stage
}

// podsOfBatch reads the pods of a batch that exist.
func podsOfBatch(ctx context.Context, v cluster.View, batch *v1alpha1.ChangePod) ([]workload.Pod, error) {
	pods := make([]workload.Pod, 0, len(batch.Spec.PodInfos))
	for _, info := range batch.Spec.PodInfos {
		var pod corev1.Pod
		err := v.Cached.Get(ctx, types.NamespacedName{Namespace: batch.Namespace, Name: info.Pod}, &pod)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("get pod %s/%s: %w", batch.Namespace, info.Pod, err)
		}
		if err == nil && pod.UID == types.UID(info.UID) {
			pods = append(pods, workload.ReadPod(&pod))
		}
	}
	return pods, nil
}

// podsOf reads the pods of a batch that exist, or the pods of a release.
func podsOf(ctx context.Context, v cluster.View, s *Subject) ([]workload.Pod, error) {
	if s.Batch != nil {
		return podsOfBatch(ctx, v, s.Batch)
	}
	return v.Pods(ctx, s.Workload)
}

// Begin returns the checks of policies that begin with a batch.
func Begin(ctx context.Context, v cluster.View, s *Subject) ([]record.BeginCheck, error) {
	of := s.Selected
	of.Began = time.Unix(s.Release.Status.StartTimeUnix, 0)
	selected := policy.Select(s.Policies, v.Operator, of).At(v1alpha1.StageBatchPre, v1alpha1.StageBatchPost)
	begin := make([]record.BeginCheck, 0, len(selected))
	for i := range selected {
		c := &selected[i]
		if s.Release.Status.Status == v1alpha1.ChangeWorkloadSuccess && !c.AfterSuccess() {
			continue
		}
		check := beginOf(c)
		if c.Stage == v1alpha1.StageBatchPre {
			check.Status.Stage = c.Stage
		}
		if c.Service != nil {
			check.Status.CallID = callID(s, c)
		}
		if c.Compare != nil {
			var err error
			if check.Status.OldPods, err = oldPods(ctx, v, s); err != nil {
				return nil, err
			}
		}
		if c.PodHealth != nil {
			pods, err := podsOfBatch(ctx, v, s.Batch)
			if err != nil {
				return nil, err
			}
			for j := range pods {
				if n := pods[j].Restarts; n > 0 {
					check.Status.PodsAtStart = append(check.Status.PodsAtStart, v1alpha1.PodAtStart{Pod: pods[j].Name, RestartsAtStart: n})
				}
			}
		}
		begin = append(begin, check)
	}
	return begin, nil
}

// BeginRelease returns the checks of policies that may begin at stages of a release as a
// whole. If admission did not see the release, checks at the stage Admission are among them.
func BeginRelease(ctx context.Context, v cluster.View, w *workload.Workload, change *v1alpha1.ChangeWorkload) ([]record.BeginCheck, error) {
	policies, of, err := v.PoliciesFor(ctx, w)
	if err != nil {
		return nil, err
	}
	if change.Status.Attempt > 0 && change.Status.ObservedRelease == change.Spec.Release {
		of.Began = time.Unix(change.Status.StartTimeUnix, 0)
	}
	selected := policy.Select(policies, v.Operator, of).At(v1alpha1.StageReleasePre, v1alpha1.StageReleasePost)
	if defense.Slipped(w, change) {
		// Only policies that existed at the time of the request count.
		if asked := w.RevisionCreated; !asked.IsZero() && (of.Began.IsZero() || asked.Before(of.Began)) {
			of.Began = asked
		}
		selected = append(selected, policy.Select(policies, v.Operator, of).At(v1alpha1.StageAdmission)...)
	}
	begin := make([]record.BeginCheck, len(selected))
	for i := range selected {
		begin[i] = beginOf(&selected[i])
		begin[i].Status.Stage = stageOf(&selected[i])
	}
	return begin, nil
}

func beginOf(c *policy.Check) record.BeginCheck {
	return record.BeginCheck{
		Status: v1alpha1.CheckStatus{Name: c.Name, Type: c.Type, Mode: c.Mode, Generation: c.Generation, Background: c.Background},
		Due:    c.Due(), Deadline: c.Deadline,
	}
}
