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

package defense

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// DecideBatch says what becomes of a batch. Without a server there is nobody to
// ask: the batch ends at once as Skipped, and its pods pass, unless somebody has
// written a verdict on one already. A batch that is done stays as it is,
// whatever its results say.
func DecideBatch(batch *v1alpha1.ChangePod, now time.Time) (next v1alpha1.ChangePodStatus, changed bool) {
	if batch.Status.Status == v1alpha1.ChangePodExecuteDone {
		return batch.Status, false
	}
	next = *batch.Status.DeepCopy()
	next.Status = v1alpha1.ChangePodExecuteDone
	next.Message = v1alpha1.ChangePodMessageSkipped
	passed, failed := batchResults(batch)
	next.PodResults = failed
	for _, r := range passed {
		if r.Verdict == "" {
			r.Verdict, r.Message = VerdictNone, v1alpha1.ChangePodMessageSkipped
		}
		next.PodResults = append(next.PodResults, r)
	}
	next.UpdateTime, next.UpdateTimeUnix = FormatTime(now), now.Unix()
	setCondition(&next.Conditions, batch.Generation, now, v1alpha1.ConditionChecked, metav1.ConditionFalse, v1alpha1.ReasonNoServer,
		"no AlterShield Server is configured: the pods pass without a check")
	return next, true
}

// batchResults splits the pods of a batch that is done by their verdicts.
// Results count for pods of the batch only, by UID where the result has one; a
// pod without a result passes.
func batchResults(batch *v1alpha1.ChangePod) (passed, failed []v1alpha1.PodResult) {
	for _, info := range batch.Spec.PodInfos {
		result := v1alpha1.PodResult{PodInfo: info}
		for i := range batch.Status.PodResults {
			r := &batch.Status.PodResults[i]
			if r.Pod != info.Pod || r.UID != "" && r.UID != info.UID {
				continue
			}
			// A failing entry is never hidden by another one of the same pod.
			if !VerdictFails(result.Verdict) {
				result.Verdict, result.Message = r.Verdict, r.Message
			}
		}
		if VerdictFails(result.Verdict) {
			failed = append(failed, result)
		} else {
			passed = append(passed, result)
		}
	}
	return passed, failed
}

// setCondition sets a condition; its transition time is the time of the
// decision and changes only with its status.
func setCondition(conditions *[]metav1.Condition, generation int64, now time.Time, kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...),
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	})
}
