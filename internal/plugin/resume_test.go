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

package plugin

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// storedSet returns a StatefulSet as the API server has it, with this partition.
func storedSet(t *testing.T, partition int32, labels, annotations map[string]string) *unstructured.Unstructured {
	t.Helper()
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "db", UID: "w", Labels: map[string]string{"app": "db"}, Annotations: annotations,
	}}
	for key, value := range labels {
		set.Labels[key] = value
	}
	set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
		RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition}}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "main:1"}}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(set)
	if err != nil {
		t.Fatal(err)
	}
	stored := &unstructured.Unstructured{Object: content}
	stored.SetGroupVersionKind(workload.StatefulSet{}.GroupVersionKind())
	return stored
}

// TestResume restores the workload's own pace, with an override that admission uses up. Without admission no override stays.
func TestResume(t *testing.T) {
	halted := map[string]string{v1alpha1.HaltedAnnotation: "v", v1alpha1.HaltedFromAnnotation: "2"}
	held := map[string]string{v1alpha1.HeldAnnotation: `{"release":2,"until":"EveryBatch","partition":1,"set":{"partition":4}}`}
	label := map[string]string{v1alpha1.IgnoredSuspendLabel: "true"}
	for name, tt := range map[string]struct {
		partition           int32
		labels, annotations map[string]string
		away                bool
		want                int32
		writes              int
		wantErr, wantOut    string
	}{
		"halted":                           {math.MaxInt32, nil, halted, false, 2, 1, "", "because of version v"},
		"held":                             {4, nil, held, false, 1, 1, "", "end its hold"},
		"halted, with an override before":  {math.MaxInt32, label, halted, false, 2, 2, "", "label removed"},
		"halted, admission is away":        {math.MaxInt32, nil, halted, true, 2, 2, "admission did not answer", ""},
		"halted, a user resumed it before": {1, nil, halted, false, 1, 0, "neither halted nor held", ""},
		"a user's own":                     {math.MaxInt32, nil, nil, false, math.MaxInt32, 0, "patch statefulset/db", ""},
		"nothing":                          {0, nil, nil, false, 0, 0, "kubectl altershield status statefulset/db", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, out := testConnection(t)
			writes := 0
			stored := storedSet(t, tt.partition, tt.labels, tt.annotations)
			api := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(stored).WithInterceptorFuncs(interceptor.Funcs{
				Patch: func(ctx context.Context, api client.WithWatch, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
					writes++
					if err := api.Patch(ctx, o, patch); err != nil || tt.away || o.GetLabels()[v1alpha1.IgnoredSuspendLabel] == "" {
						return err
					}
					o.SetAnnotations(nil) // as admission does
					o.SetLabels(map[string]string{"app": "db"})
					return api.Update(ctx, o)
				},
			}).Build()
			s := &snapshot{target: target{kind: workload.StatefulSet{}, key: client.ObjectKeyFromObject(stored)}}
			if err := api.Get(t.Context(), s.key, stored); err != nil {
				t.Fatal(err)
			}
			if err := s.take(stored); err != nil {
				t.Fatal(err)
			}
			err := (&changer{connection: c, dryRun: dryRunNone}).resume(t.Context(), api, s)
			if (err == nil) != (tt.wantErr == "") || !strings.Contains(fmt.Sprint(err), tt.wantErr) || !strings.Contains(out.String(), tt.wantOut) {
				t.Errorf("%v, want %q; it prints\n%s", err, tt.wantErr, out)
			}
			set := &appsv1.StatefulSet{}
			if err := api.Get(t.Context(), s.key, set); err != nil {
				t.Fatal(err)
			}
			if got := *set.Spec.UpdateStrategy.RollingUpdate.Partition; got != tt.want || writes != tt.writes {
				t.Errorf("partition %d after %d writes, want %d after %d", got, writes, tt.want, tt.writes)
			}
			if diff := cmp.Diff(map[string]string{"app": "db"}, set.Labels); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
