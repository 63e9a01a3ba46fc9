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
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// TestCallsOfOneKind: the result of one kind of call does not delay another kind.
func TestCallsOfOneKind(t *testing.T) {
	c := Calls{}.After(CallStart, Answer{Kind: AnswerIllegal}, testNow, 0.5)
	if call, _ := c.next(CallStart, testNow, time.Time{}); call != CallNone {
		t.Error("a start that waits for a human is repeated at once")
	}
	if call, _ := c.next(CallEnd, testNow, time.Time{}); call != CallEnd || c.triedSince(CallEnd, time.Time{}) {
		t.Error("the end waits, too")
	}
}

// TestServerSays: the condition has the worst result of the order, without steps on which the release does not depend.
func TestServerSays(t *testing.T) {
	step := func(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason}
	}
	accepted := step(v1alpha1.StepAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	passed := step(v1alpha1.StepPreChecked, metav1.ConditionTrue, v1alpha1.ReasonPassed)
	for name, test := range map[string]struct {
		steps      []metav1.Condition
		end        v1alpha1.FinishState
		unverified int32
		want       string
	}{
		"nothing is asked yet": {want: " "},
		"not reached": {
			steps: []metav1.Condition{step(v1alpha1.StepAccepted, metav1.ConditionFalse, v1alpha1.ReasonUnreachable)},
			want:  "Unknown Unreachable",
		},
		"denied": {
			steps: []metav1.Condition{step(v1alpha1.StepAccepted, metav1.ConditionFalse, v1alpha1.ReasonPermissionDenied)},
			want:  "Unknown PermissionDenied",
		},
		"refused": {steps: []metav1.Condition{step(v1alpha1.StepAccepted, metav1.ConditionFalse, v1alpha1.ReasonRefused)}, want: "False Refused"},
		"the scene is not registered": {
			steps: []metav1.Condition{accepted, step(v1alpha1.StepPreChecked, metav1.ConditionFalse, v1alpha1.ReasonNotConfigured)},
			want:  "Unknown Refused",
		},
		"checks": {
			steps: []metav1.Condition{accepted, step(v1alpha1.StepPreChecked, metav1.ConditionUnknown, v1alpha1.ReasonChecking)},
			want:  "Unknown Checking",
		},
		"failed, and the next one passed": {
			steps: []metav1.Condition{
				accepted, step(v1alpha1.StepPreChecked, metav1.ConditionFalse, v1alpha1.ReasonCheckFailed),
				step(v1alpha1.StepPostChecked, metav1.ConditionTrue, v1alpha1.ReasonPassed),
			},
			want: "False CheckFailed",
		},
		"no verdict, and then passed": {
			steps: []metav1.Condition{
				accepted, step(v1alpha1.StepPreChecked, metav1.ConditionFalse, v1alpha1.ReasonNoVerdict),
				step(v1alpha1.StepPostChecked, metav1.ConditionTrue, v1alpha1.ReasonPassed),
			},
			want: "False NoVerdict",
		},
		"not submitted in time": {
			steps: []metav1.Condition{accepted, step(v1alpha1.StepPreChecked, metav1.ConditionFalse, v1alpha1.ReasonNotSubmitted)},
			want:  "False NoVerdict",
		},
		"pods without a verdict": {steps: []metav1.Condition{accepted, passed}, unverified: 2, want: "False NoVerdict"},
		"all answered":           {steps: []metav1.Condition{accepted, passed}, want: "True Answered"},
		"its end is refused": {
			steps: []metav1.Condition{accepted, passed, step(v1alpha1.StepEnded, metav1.ConditionFalse, v1alpha1.ReasonRefused)},
			end:   v1alpha1.FinishSuccess,
			want:  "True Answered",
		},
		"replaced while it was checked": {
			steps: []metav1.Condition{accepted, step(v1alpha1.StepPreChecked, metav1.ConditionUnknown, v1alpha1.ReasonChecking)},
			end:   v1alpha1.FinishCancel,
			want:  "True Answered",
		},
	} {
		got := serverSays(&v1alpha1.ChangeWorkloadStatus{
			UnverifiedCount: test.unverified, OrderStatus: v1alpha1.OrderStatus{OrderSteps: test.steps, OrderEnd: test.end},
		})
		if is := string(got.Status) + " " + got.Reason; is != test.want {
			t.Errorf("%s: %s, want %s", name, is, test.want)
		}
	}
}

var testNow = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
