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

package server

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
)

// SetCondition sets ConditionServer if there is something to report, and ends the report of a long wait.
func SetCondition(s *v1alpha1.ChangeWorkloadStatus, generation int64, now time.Time) {
	c := record.ConditionsOfRelease(s, generation, now)
	waited, says := WaitsForServer(s), serverSays(s)
	switch {
	case says.Type == "" && waited:
		c.Set(v1alpha1.ConditionServer, metav1.ConditionUnknown, v1alpha1.ReasonReleaseEnded, "")
	case says.Type == "":
	case waited:
		c.Set(says.Type, says.Status, says.Reason, "%s", says.Message)
	default:
		c.SetReason(says.Type, says.Status, says.Reason, says.Message)
	}
}

// WaitsForServer reports whether ConditionServer says that the release waits long.
func WaitsForServer(s *v1alpha1.ChangeWorkloadStatus) bool {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionServer)
	return c != nil && c.Status == metav1.ConditionFalse && strings.HasPrefix(record.Detail(c), LongWait)
}

// LongWait begins the detail of ConditionServer of a release that waits long.
const LongWait = "waits long: "

// serverSays returns ConditionServer with the worst result of the steps of the order, and of pods that passed
// without a verdict. The type is empty if there is nothing to report.
func serverSays(s *v1alpha1.ChangeWorkloadStatus) (c metav1.Condition) {
	rank := -1
	worse := func(r int, status metav1.ConditionStatus, reason, message string) {
		if r > rank {
			rank, c = r, metav1.Condition{Type: v1alpha1.ConditionServer, Status: status, Reason: reason, Message: message}
		}
	}
	for i := range s.OrderSteps {
		step := &s.OrderSteps[i]
		switch reason := step.Reason; {
		case step.Status == metav1.ConditionTrue, reason == v1alpha1.ReasonReleaseEnded, step.Type == v1alpha1.StepEnded:
			// The release does not depend on how its order ends.
			worse(0, metav1.ConditionTrue, v1alpha1.ReasonAnswered, "")
		case reason == v1alpha1.ReasonCheckFailed:
			worse(6, metav1.ConditionFalse, reason, step.Message)
		case reason == v1alpha1.ReasonRefused:
			worse(5, metav1.ConditionFalse, reason, step.Message)
		case reason == v1alpha1.ReasonNoVerdict, reason == v1alpha1.ReasonNotSubmitted:
			worse(3, metav1.ConditionFalse, v1alpha1.ReasonNoVerdict, step.Message)
		case s.OrderEnd != "": // the release no longer waits for it
		case reason == v1alpha1.ReasonPermissionDenied:
			worse(4, metav1.ConditionUnknown, reason, step.Message)
		case reason == v1alpha1.ReasonNotConfigured, reason == v1alpha1.ReasonUnprocessable:
			worse(4, metav1.ConditionUnknown, v1alpha1.ReasonRefused, step.Message)
		case reason == v1alpha1.ReasonUnreachable:
			worse(2, metav1.ConditionUnknown, reason, step.Message)
		default:
			worse(1, metav1.ConditionUnknown, v1alpha1.ReasonChecking, step.Message)
		}
	}
	if s.UnverifiedCount > 0 {
		worse(3, metav1.ConditionFalse, v1alpha1.ReasonNoVerdict, "unverifiedCount is the number of pods")
	}
	return c
}
