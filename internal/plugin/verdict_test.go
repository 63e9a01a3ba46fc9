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
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// TestVerdictsThatConflict lets another user write while verdicts are written.
func TestVerdictsThatConflict(t *testing.T) {
	fails := func(b *v1alpha1.ChangePod, pod string) {
		for i := range b.Status.PodResults {
			if b.Status.PodResults[i].Pod == pod {
				b.Status.PodResults[i].Verdict = "fail"
			}
		}
	}
	for name, tt := range map[string]struct {
		correction correction
		// meanwhile is the write of another user.
		meanwhile func(b *v1alpha1.ChangePod)
		// want are the results that are stored afterwards.
		want     []string
		wantLeft []string
		wantErr  string
	}{
		"no result": {
			correction{Pass: true, Pods: []string{"b"}}, func(b *v1alpha1.ChangePod) { b.Status.Message = "x" },
			[]string{"2/a=pass", "2/c=fail", "2/b=pass"}, []string{"pod c"}, "",
		},
		"another pod failed": {
			correction{Pass: true}, func(b *v1alpha1.ChangePod) { fails(b, "a") },
			[]string{"2/a=fail", "2/b=fail", "2/c=fail"}, nil, "something else failed meanwhile, and stays so: batch 2: pod a: pass",
		},
		"another pod failed, which is not named": {
			correction{Pass: true, Pods: []string{"b"}}, func(b *v1alpha1.ChangePod) { fails(b, "a") },
			[]string{"2/a=fail", "2/c=fail", "2/b=pass"}, []string{"pod a", "pod c"}, "",
		},
		"another user corrected a part": {
			correction{Pass: true}, func(b *v1alpha1.ChangePod) { b.Status.PodResults[1].Verdict = "pass" },
			[]string{"2/a=pass", "2/b=pass", "2/c=pass"}, nil, "",
		},
		"another user corrected it all": {
			correction{Pass: true, Pods: []string{"b"}}, func(b *v1alpha1.ChangePod) { b.Status.PodResults[1].Verdict = "pass" },
			[]string{"2/a=pass", "2/b=pass", "2/c=fail"}, []string{"pod c"}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			change := recordOf(versionB, 2, v1alpha1.ChangeWorkloadSuspend)
			change.Namespace, change.Name, change.UID = "shop", "sleep", "r"
			batch := doneBatch("2", []v1alpha1.PodResult{resultOf("a", "pass"), resultOf("b", "fail"), resultOf("c", "fail")}, "a", "b", "c")
			batch.Namespace, batch.UID = "shop", "b"
			batch.Labels = map[string]string{v1alpha1.DeploymentNameLabel: "sleep"}
			isController := true
			batch.OwnerReferences = []metav1.OwnerReference{{Name: "sleep", UID: "r", Controller: &isController}}
			conflicted := false
			conflict := func(
				ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
			) error {
				if conflicted {
					return c.SubResource(sub).Patch(ctx, o, patch, opts...)
				}
				conflicted = true
				stored := &v1alpha1.ChangePod{}
				if err := c.Get(ctx, client.ObjectKeyFromObject(o), stored); err != nil {
					return err
				}
				tt.meanwhile(stored)
				if err := c.Status().Update(ctx, stored); err != nil {
					return err
				}
				return apierrors.NewConflict(schema.GroupResource{Resource: "changepods"}, o.GetName(), nil)
			}
			api := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(&change, &batch).WithStatusSubresource(&change, &batch).
				WithInterceptorFuncs(interceptor.Funcs{SubResourcePatch: conflict}).Build()
			s := situationOf(t, nil)
			batches, err := batchesOf(t.Context(), api, s.target, &change)
			if err != nil || len(batches) != 1 {
				t.Fatalf("%d batches, %v", len(batches), err)
			}
			f := verdictFlags{correction: tt.correction}
			done, err := f.correct(&change, batches, s.now)
			if err != nil {
				t.Fatal(err)
			}
			_, written, err := writeVerdicts(t.Context(), api, s, f, &change, done, nil)
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Fatalf("%v, want %q", err, tt.wantErr)
			}
			stored := &v1alpha1.ChangePod{}
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(&batch), stored); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, verdictsOf(&corrected{Batches: []*v1alpha1.ChangePod{stored}})); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
			if err == nil {
				if diff := cmp.Diff(tt.wantLeft, written.Left); diff != "" {
					t.Errorf("still failing (-want +got):\n%s", diff)
				}
			}
		})
	}
}
