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

package cluster

import (
	"errors"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func TestPast(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), appsv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	meta := func(name, owner string) metav1.ObjectMeta {
		yes := true
		reference := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "sleep", UID: types.UID(owner), Controller: &yes}
		return metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{v1alpha1.VersionLabel: name},
			OwnerReferences: []metav1.OwnerReference{reference},
		}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).
		WithIndex(&v1alpha1.ChangeWorkload{}, workload.IndexByOwner, workload.OwnerUID).
		WithIndex(&appsv1.ControllerRevision{}, workload.IndexByOwner, workload.HistoryOf).
		WithObjects(&v1alpha1.ChangeWorkload{ObjectMeta: meta("a", "u")}, &v1alpha1.ChangeWorkload{ObjectMeta: meta("b", "other")},
			&appsv1.ControllerRevision{ObjectMeta: meta("c", "u"), Revision: 3}, &appsv1.ControllerRevision{ObjectMeta: meta("d", "other")}).Build()
	past, err := View{Cached: c}.Past(t.Context(), "default", "u")
	if err != nil || len(past.Changes) != 1 || past.Changes[0].Name != "a" ||
		len(past.History) != 1 || past.History[0].Version != "c" || past.History[0].Release != 3 {
		t.Errorf("%+v, %v", past, err)
	}
}
