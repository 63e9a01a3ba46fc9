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
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

func TestInForce(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	branch := func(namespace, content string) *v1alpha1.OpsConfigInfo {
		return &v1alpha1.OpsConfigInfo{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: settings.NameBranch},
			Spec:       v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeBranch, Enable: true, Content: content},
		}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(branch("operator", "7"), branch("own", "3")).Build()
	own := map[string]string{v1alpha1.SettingAnnotationPrefix + settings.NameBranch: "5"}
	for name, test := range map[string]struct {
		operator, namespace string
		annotations         map[string]string
		want                int32
	}{
		"the operator's":  {"operator", "other", nil, 7},
		"the namespace's": {"operator", "own", nil, 3},
		"the workload's":  {"operator", "own", own, 5},
		"nobody's":        {"elsewhere", "other", nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := View{Cached: c, Operator: test.operator}.InForce(t.Context(), test.namespace, test.annotations)
			if err != nil || got.BatchSize != test.want {
				t.Errorf("batches of %d, %v, want %d", got.BatchSize, err, test.want)
			}
		})
	}
	if _, err := (View{Cached: fake.NewClientBuilder().WithScheme(runtime.NewScheme()).Build()}).InForce(t.Context(), "own", nil); err == nil {
		t.Error("no error where the settings cannot be read")
	}
}
