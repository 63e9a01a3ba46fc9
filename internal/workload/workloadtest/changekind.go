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

package workloadtest

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// ChangeKind returns a declaration of Fleets, with the defaults of the API server: declared Fleets are defended as the
// Go type [Fleet] is.
func ChangeKind() *v1alpha1.ChangeKind {
	return &v1alpha1.ChangeKind{
		ObjectMeta: metav1.ObjectMeta{Name: "fleets.example.com", Generation: 1},
		Spec: v1alpha1.ChangeKindSpec{
			Version: "v1", Enrolment: v1alpha1.EnrolledByNamespace, VersionLabel: v1alpha1.VersionLabelOnObject,
			Content: []v1alpha1.ChangeKindContent{{Path: "spec.crew", PodTemplate: true}}, Replicas: "spec.ships",
			Pods: &v1alpha1.ChangeKindPods{
				Find:    v1alpha1.FindByOwner,
				Current: "pod.metadata.?labels[?'" + CrewLabel + "'].orValue('') == object.?status.?revision.orValue('none')",
			},
			Rollout: v1alpha1.ChangeKindRollout{
				Complete: "[object.?status.?manned, object.?status.?ready, object.?status.?total].all(n, n.orValue(0) == object.spec.ships)",
				Stuck:    "''", MinReadySeconds: "spec.minReadySeconds", Deadline: &metav1.Duration{Duration: 10 * 60e9},
				Halt: []v1alpha1.ChangeKindHalt{{Path: "spec.anchored", Value: apiextensionsv1.JSON{Raw: []byte("true")}}},
			},
			Hold: v1alpha1.HoldNever, Rollback: v1alpha1.RollbackAutomatic, Admission: v1alpha1.AdmissionEnforces,
		},
	}
}
