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

package controllers

import (
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestSetAsideEnds: the condition SetAside, which any replica may have written, ends with its time, or when another generation is in
// force.
func TestSetAsideEnds(t *testing.T) {
	for name, change := range map[string]func(p *v1alpha1.DefensePolicy, clock *clocktesting.FakePassiveClock){
		"after its time": func(_ *v1alpha1.DefensePolicy, clock *clocktesting.FakePassiveClock) {
			clock.SetTime(clock.Now().Add(rules.AsideFor))
		},
		"with another generation": func(p *v1alpha1.DefensePolicy, _ *clocktesting.FakePassiveClock) { p.Generation = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
				t.Fatal(err)
			}
			clock := clocktesting.NewFakePassiveClock(time.Unix(1_700_000_000, 0))
			p := &v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", UID: "p", Generation: 1}}
			p.Spec.Checks = []v1alpha1.PolicyCheck{{Name: "rule", Cel: &v1alpha1.CelCheck{Rules: []v1alpha1.CelRule{{Expression: "true"}}}}}
			p.Status.InForce, p.Status.InForceGeneration = p.Spec.DeepCopy(), 1
			of := rules.Policy{Namespace: "shop", Name: "p", UID: "p", Generation: 1}
			if !policy.SetAside(p, of, clock.Now(), clock.Now().Add(rules.AsideFor)) {
				t.Fatal("the policy is not set aside")
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(p).
				WithObjects(wrappers.MakeNamespace("shop").Enrolled().Obj(), p).Build()
			r := &DefensePolicyReconciler{Cluster: &cluster.Cluster{
				View:   cluster.View{Cached: c, Live: c, Operator: "operator", Kinds: workload.NewRegistry(workload.Deployment{})},
				Client: c, Clock: clock,
			}}
			reconcile := func() (after time.Duration, aside bool) {
				result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "shop"}})
				if err = errors.Join(err, c.Get(t.Context(), client.ObjectKeyFromObject(p), p)); err != nil {
					t.Fatal(err)
				}
				return result.RequeueAfter, meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionSetAside)
			}
			if after, aside := reconcile(); after != rules.AsideFor || !aside {
				t.Errorf("requeued after %s, set aside: %t", after, aside)
			}
			change(p, clock)
			if err := c.Update(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			if after, aside := reconcile(); after != 0 || aside {
				t.Errorf("requeued after %s, set aside: %t", after, aside)
			}
		})
	}
}
