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
)

// conditions sets the conditions of one object, at one time.
type conditions struct {
	list       *[]metav1.Condition
	generation int64
	now        time.Time
}

// set sets a condition; its transition time is the time of the decision and
// changes only with its status.
func (c conditions) set(kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
	meta.SetStatusCondition(c.list, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...),
		ObservedGeneration: c.generation, LastTransitionTime: metav1.NewTime(c.now.Truncate(time.Second)),
	})
}

// setReason sets a condition unless it says the same already in other words: the
// text of an error differs from try to try, and no write is worth that.
func (c conditions) setReason(kind string, status metav1.ConditionStatus, reason, message string) {
	if known := meta.FindStatusCondition(*c.list, kind); known == nil || known.Status != status || known.Reason != reason {
		c.set(kind, status, reason, "%s", message)
	}
}
