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
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func TestDecideDeletion(t *testing.T) {
	of := func(uid types.UID) *workload.Workload {
		return &workload.Workload{GVK: appsv1.SchemeGroupVersion.WithKind("Deployment"), Namespace: "default", Name: "web", UID: uid,
			Annotations: map[string]string{v1alpha1.ReleasedByAnnotation: "jane"}}
	}
	denied := func(uid types.UID, by Denied) *DeniedWorkload { return &DeniedWorkload{Workload: *of(uid), By: by} }
	blocked, quarantined := Denied{Blocked: true}, Denied{Quarantine: []string{"bad"}}
	const (
		whileBlocked     = "its releases were blocked"
		whileQuarantined = "versions of it were in quarantine (bad)"
		gone             = "the deployment was deleted while "
		again            = "jane created the deployment again, which was deleted while "
		lost             = ": block and quarantine are lost"
	)
	for name, test := range map[string]struct {
		in                          DeletionInput
		forgetDenied, forgetDeleted bool
		deleted, again              string
	}{
		"nothing is known":                    {},
		"one that was free is there":          {in: DeletionInput{Now: of("a")}},
		"it is there":                         {in: DeletionInput{Denied: denied("a", blocked), Now: of("a")}},
		"it is there, its namespace is going": {in: DeletionInput{Denied: denied("a", blocked), Now: of("a"), NamespaceEnding: true}},
		"it is there, another one was deleted": {in: DeletionInput{Denied: denied("b", blocked), Deleted: denied("a", blocked),
			Now: of("b")}},
		"gone": {in: DeletionInput{Denied: denied("a", blocked)}, forgetDenied: true,
			deleted: gone + whileBlocked},
		"gone, from quarantine": {in: DeletionInput{Denied: denied("a", quarantined)}, forgetDenied: true,
			deleted: gone + whileQuarantined},
		"gone with its namespace": {in: DeletionInput{Denied: denied("a", blocked), NamespaceEnding: true}, forgetDenied: true},
		"gone with its namespace, like one before": {in: DeletionInput{Denied: denied("b", blocked), Deleted: denied("a", blocked),
			NamespaceEnding: true}, forgetDenied: true},
		"gone, like one before": {in: DeletionInput{Denied: denied("b", quarantined), Deleted: denied("a", blocked)}, forgetDenied: true,
			deleted: gone + whileQuarantined},
		"seen only when it is there again": {in: DeletionInput{Denied: denied("a", blocked), Now: of("b")}, forgetDenied: true,
			forgetDeleted: true,
			deleted:       gone + whileBlocked, again: again + whileBlocked + lost},
		"seen only when it is there again, after another one": {in: DeletionInput{Denied: denied("b", quarantined), Deleted: denied("a", blocked),
			Now: of("c")}, forgetDenied: true, forgetDeleted: true,
			deleted: gone + whileQuarantined, again: again + whileQuarantined + lost},
		"still gone": {in: DeletionInput{Deleted: denied("a", blocked)}},
		"created again": {in: DeletionInput{Deleted: denied("a", blocked), Now: of("b")}, forgetDeleted: true,
			again: again + whileBlocked + lost},
		"it was there always": {in: DeletionInput{Deleted: denied("a", blocked), Now: of("a")}, forgetDeleted: true},
	} {
		t.Run(name, func(t *testing.T) {
			var want DeletionPlan
			want.ForgetDenied, want.ForgetDeleted = test.forgetDenied, test.forgetDeleted
			if test.deleted != "" {
				want.Deleted = &record.Event{Type: "Warning", Reason: v1alpha1.EventDeletedWhileBlocked, Message: test.deleted}
			}
			if test.again != "" {
				want.CreatedAgain = &record.Event{Type: "Warning", Reason: v1alpha1.EventDeletedWhileBlocked, Message: test.again}
			}
			if diff := cmp.Diff(want, DecideDeletion(test.in)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	t.Run("by an unknown user", func(t *testing.T) {
		now := of("b")
		now.Annotations = nil
		plan := DecideDeletion(DeletionInput{Deleted: denied("a", blocked), Now: now})
		if plan.CreatedAgain == nil ||
			plan.CreatedAgain.Message != workload.UnknownUser+" created the deployment again, which was deleted while "+whileBlocked+lost {
			t.Errorf("event %+v", plan.CreatedAgain)
		}
	})
}
