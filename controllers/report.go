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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// reportState logs and counts a written change of the state, the checks or the hold of a release. The series of a kind that is no
// longer declared have ended, so that its releases are not counted.
func reportState(ctx context.Context, kinds *workload.Registry, before, after *v1alpha1.ChangeWorkload) {
	reportChecks(before.Status.Checks, after.Status.Checks)
	kind := kindOf(after)
	_, counts := kinds.Of(kind)
	if counts {
		reportHold(workload.LabelOf(kind), &before.Status, &after.Status)
	}
	if took, ended := record.EndedAfter(&before.Status, &after.Status); ended && counts {
		metrics.ReleaseEnded(workload.LabelOf(kind), string(after.Status.Status), took)
	}
	if before.Status.Status != after.Status.Status {
		if counts {
			metrics.ReleaseEntered(workload.LabelOf(kind), stateName(after.Status.Status))
		}
		log.FromContext(ctx).Info("release changed state",
			"from", stateName(before.Status.Status), "to", stateName(after.Status.Status), "attempt", after.Status.Attempt)
	}
}

// reportChecks counts the checks of policies that entered a phase.
func reportChecks(before, after []v1alpha1.CheckStatus) {
	for i := range after {
		c := &after[i]
		if was := record.FindCheck(before, c.Name); c.Type != "" && (was == nil || was.Phase != c.Phase) {
			metrics.Check(c)
		}
	}
}

func conditionStatus(ok bool) metav1.ConditionStatus {
	if ok {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

const (
	// reconcileTimeout bounds one reconcile, waiting for the cache included.
	reconcileTimeout = time.Minute
	// workers is the number of concurrent reconciles of a controller: writes to the API server dominate.
	workers = 8
)

// newChangeWorkload returns the record of the current release of a workload.
func newChangeWorkload(w *workload.Workload, set settings.Settings, now time.Time) *v1alpha1.ChangeWorkload {
	name := record.ReleaseName(w, w.RecordedVersion())
	apiVersion, kindName := w.GVK.ToAPIVersionAndKind()
	return &v1alpha1.ChangeWorkload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       w.Namespace,
			Name:            name,
			Labels:          cluster.OwnLabels(w, w.RecordedVersion()),
			OwnerReferences: []metav1.OwnerReference{cluster.OwnerReference(apiVersion, kindName, w.Name, w.UID)},
		},
		Spec: v1alpha1.ChangeWorkloadSpec{
			ChangeWorkloadID:  name,
			AppName:           w.AppName(),
			ServiceName:       w.Name,
			WorkloadRef:       cluster.Reference(w),
			Reversion:         w.RecordedVersion(),
			CountThreshold:    set.BatchSize,
			WaitTimeThreshold: int64(set.Wait / time.Second),
			CreateTime:        times.Format(now),
			CreateTimeUnix:    now.Unix(),
			Release:           w.Release(),
		},
	}
}
