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

package wrappers

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// TestOf finds objects as controllers do: by their owner, and by its selector.
func TestOf(t *testing.T) {
	d := MakeDeployment("shop", "web").UID("d").Replicas(3).TemplateLabel("test", "1").Obj()
	rs := MakeReplicaSet("shop", "web-1").UID("rs").Of(d).Obj()
	change := MakeChangeWorkload("shop", "web--x--v1").UID("c").Of(d).Obj()
	for name, test := range map[string]struct {
		object   client.Object
		owner    client.Object
		kind     string
		selector *metav1.LabelSelector // selects the object or its pods
	}{
		"pod of a ReplicaSet":        {MakePod("shop", "web-1-a").Of(rs).Obj(), rs, "apps/v1 ReplicaSet", rs.Spec.Selector},
		"ReplicaSet of a Deployment": {rs, d, "apps/v1 Deployment", d.Spec.Selector},
		"version of a Deployment":    {MakeControllerRevision("shop", "web--x--v1").Of(d).Obj(), d, "apps/v1 Deployment", nil},
		"release of a Deployment":    {change, d, "apps/v1 Deployment", nil},
		"batch of a release": {MakeChangePod("shop", "web--x--v1--x--1").Of(change).Obj(), change,
			"app.ops.cloud.alipay.com/v1alpha1 ChangeWorkload", nil},
	} {
		t.Run(name, func(t *testing.T) {
			ref := metav1.GetControllerOf(test.object)
			if _, remembered := test.object.(*appsv1.ControllerRevision); remembered {
				if ref != nil {
					t.Errorf("it has a controller: %+v", ref)
				}
				ref = &test.object.GetOwnerReferences()[0]
			}
			if ref == nil || ref.Name != test.owner.GetName() || ref.UID != test.owner.GetUID() || ref.APIVersion+" "+ref.Kind != test.kind {
				t.Errorf("its controller is %+v", ref)
			}
			if test.selector == nil {
				return
			}
			selector, err := metav1.LabelSelectorAsSelector(test.selector)
			if err != nil {
				t.Fatal(err)
			}
			if !selector.Matches(labels.Set(test.object.GetLabels())) {
				t.Errorf("%v does not select %v", selector, test.object.GetLabels())
			}
		})
	}
	if diff := cmp.Diff(map[string]string{"app": "web", "test": "1"}, d.Spec.Template.Labels); diff != "" {
		t.Errorf("the template of the Deployment changed: %s", diff)
	}
}

func TestBatchOf(t *testing.T) {
	change := MakeChangeWorkload("shop", "web--x--v1").Release(4).Attempt(2).Order("order", "", v1alpha1.OrderPostWait).Obj()
	got := MakeChangePod("shop", "one").Of(change).Pods("a", "b").Done(PodResult("a", "unpass")).Obj()
	want := v1alpha1.ChangePodSpec{ChangeWorkloadID: "web--x--v1", Attempt: 2, Release: 4,
		PodInfos: []v1alpha1.PodInfo{{Pod: "a", Namespace: "shop", UID: "a"}, {Pod: "b", Namespace: "shop", UID: "b"}}}
	if diff := cmp.Diff(want, got.Spec); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.Status.OrderID != "order" || got.Status.Status != v1alpha1.ChangePodExecuteDone || len(got.Status.PodResults) != 1 {
		t.Errorf("status %+v", got.Status)
	}
}

func TestRevisionOf(t *testing.T) {
	d := MakeDeployment("shop", "web").Image("busybox:2").Obj()
	var stored struct {
		Spec struct{ Template corev1.PodTemplateSpec }
	}
	if err := json.Unmarshal(MakeControllerRevision("shop", "one").Of(d).Obj().Data.Raw, &stored); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d.Spec.Template, stored.Spec.Template); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestApart checks that two objects share no memory.
func TestApart(t *testing.T) {
	first := MakeDeployment("shop", "web").Obj()
	MakeDeployment("shop", "web").Label("a", "b").TemplateLabel("a", "b").Annotation("a", "b").
		With(func(d *appsv1.Deployment) { d.Spec.Selector.MatchLabels["a"] = "b" }).Image("other")
	if diff := cmp.Diff(MakeDeployment("shop", "web").Obj(), first); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	rs := MakeReplicaSet("shop", "web-1").Of(first).Obj()
	rs.Spec.Template.Spec.Containers[0].Image = "other"
	if diff := cmp.Diff(MakeDeployment("shop", "web").Obj(), first); diff != "" {
		t.Errorf("a ReplicaSet is part of its Deployment: -want +got:\n%s", diff)
	}
}

func TestConditionsReplaceOneAnother(t *testing.T) {
	c := MakeChangeWorkload("shop", "one").
		Condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, v1alpha1.ReasonChecking).
		Condition(v1alpha1.ConditionVerified, metav1.ConditionTrue, v1alpha1.ReasonPassed).Obj()
	if n := len(c.Status.Conditions); n != 1 || c.Status.Conditions[0].Reason != v1alpha1.ReasonPassed {
		t.Errorf("%d conditions: %v", n, c.Status.Conditions)
	}
	unready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	p := MakePod("shop", "one").Condition(unready).Ready(c.CreationTimestamp.Time).Obj()
	if n := len(p.Status.Conditions); n != 1 || p.Status.Conditions[0].Status != corev1.ConditionTrue {
		t.Errorf("%d conditions: %v", n, p.Status.Conditions)
	}
}
