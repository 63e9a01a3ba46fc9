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

package rollback

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// TestNoteRefused: a self-healing that was refused stays due, and is reported once.
func TestNoteRefused(t *testing.T) {
	for _, tc := range []struct {
		name string
		said *metav1.Condition
		due  bool
	}{
		{"nothing was said", nil, false},
		{"self-healing is due", &metav1.Condition{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonVerificationFailed}, true},
		{"pods do not come up", &metav1.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonStillWaiting}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s v1alpha1.ChangeWorkloadStatus
			if tc.said != nil {
				tc.said.Type = v1alpha1.ConditionRolledBack
				s.Conditions = append(s.Conditions, *tc.said)
			}
			if !NoteRefused(&s, 1, time.Unix(1, 0), "spec.x is no object") || NoteRefused(&s, 1, time.Unix(2, 0), "spec.x is no object") {
				t.Error("it is not reported once")
			}
			if got := HealingIsDue(&s); got != tc.due {
				t.Errorf("self-healing is due: %t, want %t: %+v", got, tc.due, s.Conditions)
			}
		})
	}
}
