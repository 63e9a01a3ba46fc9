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
	"slices"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/judge"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/promql"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// maxCompared is the number of new pods, and of old ones.
const maxCompared = 100

// oldPods returns the names of the old pods that a batch is compared with; none if it is not compared.
func oldPods(ctx context.Context, v cluster.View, s *Subject) ([]string, error) {
	batches, err := v.Batches(ctx, s.Release)
	if err != nil || !judge.IsLook(batchOfAttempt(batches, s.Batch)) {
		return nil, err
	}
	if undo, err := isUndo(ctx, v, s); err != nil || undo {
		return nil, err
	}
	old, err := v.OldPods(ctx, s.Workload)
	return readyNames(old), err
}

// readyNames returns the names of the old pods that new ones can be compared with.
func readyNames(old []workload.Pod) []string {
	old = slices.DeleteFunc(slices.Clone(old), func(pod workload.Pod) bool { return !pod.Ready })
	return promql.Sample(namesOf(old), maxCompared)
}

// batchOfAttempt returns the number of a batch within the attempt of its release, from 1: the numbers of batches go on over attempts.
// Batches may have been removed.
func batchOfAttempt(batches []v1alpha1.ChangePod, batch *v1alpha1.ChangePod) int {
	number := record.BatchNumber(batch)
	first, before := number, int32(0)
	for i := range batches {
		switch n, attempt := record.BatchNumber(&batches[i]), batches[i].Spec.Attempt; {
		case attempt < batch.Spec.Attempt:
			before = max(before, n)
		case attempt == batch.Spec.Attempt:
			first = min(first, n)
		}
	}
	if before == 0 && batch.Spec.Attempt > 1 {
		before = first - 1 // no batch of an earlier attempt is left
	}
	return int(number - before)
}

// attemptNames returns the names of the pods of a batch, and of those of earlier batches of its attempt: pods that leave keep their data.
func attemptNames(batches []v1alpha1.ChangePod, batch *v1alpha1.ChangePod) (names []string) {
	add := func(b *v1alpha1.ChangePod) {
		for _, info := range b.Spec.PodInfos {
			if !slices.Contains(names, info.Pod) {
				names = append(names, info.Pod)
			}
		}
	}
	add(batch)
	for i := range batches {
		if b := &batches[i]; b.Spec.Attempt == batch.Spec.Attempt && record.BatchNumber(b) < record.BatchNumber(batch) {
			add(b)
		}
	}
	return names
}

// isUndo reports whether the version of a release succeeded before: it is not compared, since it may be slower than what it replaces, and
// has to come back.
func isUndo(ctx context.Context, v cluster.View, s *Subject) (bool, error) {
	history, err := v.History(ctx, s.Workload.Namespace, s.Workload.UID)
	return rollback.Remembered(history, s.Release.Spec.Reversion), err
}

// without returns why a release has no old pods to compare with, whatever its batch; empty if it has.
func without(before string, undo bool) string {
	switch {
	case undo:
		return "this version succeeded before, and is not compared with the one that it replaces"
	case before == "":
		return "no version succeeded before this one"
	default:
		return ""
	}
}

// passedEarlier reports whether an earlier batch of the attempt passed a check, with all its metrics.
func passedEarlier(batches []v1alpha1.ChangePod, batch *v1alpha1.ChangePod, name string) bool {
	return slices.ContainsFunc(batches, func(b v1alpha1.ChangePod) bool {
		c := record.FindCheck(b.Status.Checks, name)
		return b.Spec.Attempt == batch.Spec.Attempt && record.BatchNumber(&b) < record.BatchNumber(batch) && c != nil &&
			c.Phase == v1alpha1.CheckPassed
	})
}

// isCompared reports whether an earlier batch than the nth was compared. One without old pods is inconclusive itself, so OldPods takes it
// as compared.
func isCompared(of *policy.Check, n int, passed bool) bool {
	return passed || of.Compare.Baseline == v1alpha1.BaselineOldPods && n > 1
}

// notCompared returns the status of a check of type compare of the nth batch that has no old pods. earlier: an earlier batch was compared.
func notCompared(next v1alpha1.CheckStatus, of *policy.Check, n int, without string, earlier bool) v1alpha1.CheckStatus {
	next.Phase, next.Reason = v1alpha1.CheckSkipped, v1alpha1.ReasonNoOldPods
	switch {
	case !judge.IsLook(n):
		next.Reason = v1alpha1.ReasonNotDue
		next.Message = fmt.Sprintf("pods are compared after the batches 1, 2, 4, 8 and so on of a release, and this is batch %d", n)
	case without != "":
		next.Message = without
	case earlier:
		next.Message = "no Ready pod of the previous version is left; earlier batches were compared"
	default:
		next.Phase, next.OnSilence = v1alpha1.CheckInconclusive, onSilence(of.OnNoData)
		next.Message = "no Ready pod of the previous version was left to compare with: hold the rollout (spec.hold)"
		if of.Compare.Baseline != v1alpha1.BaselineOldPods {
			next.Message += "; and none was known when the release began"
		}
	}
	return next
}
