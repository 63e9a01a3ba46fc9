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

package workload

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// TestDeploymentRollouts covers the rollout that is read of a Deployment.
func TestDeploymentRollouts(t *testing.T) {
	stuck := []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Message: "too late"}}
	for name, test := range map[string]struct {
		change   func(*appsv1.Deployment)
		want     Rollout
		inFlight int32
	}{
		"complete":               {func(*appsv1.Deployment) {}, Rollout{Complete: true}, 3},
		"not observed":           {func(d *appsv1.Deployment) { d.Generation = 3 }, Rollout{Stale: true}, 3},
		"an old pod runs":        {func(d *appsv1.Deployment) { d.Status.Replicas = 6 }, Rollout{}, 3},
		"a pod is not updated":   {func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 4 }, Rollout{}, 3},
		"a pod is not available": {func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 4 }, Rollout{}, 3},
		"stuck": {
			func(d *appsv1.Deployment) { d.Status.UpdatedReplicas, d.Status.Conditions = 4, stuck }, Rollout{Stuck: true, Message: "too late"}, 3,
		},
		"complete after all": {func(d *appsv1.Deployment) { d.Status.Conditions = stuck }, Rollout{Complete: true}, 3},
		"all pods at once": {func(d *appsv1.Deployment) {
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
		}, Rollout{Complete: true}, 5},
		"a strategy without parts": {func(d *appsv1.Deployment) { d.Spec.Strategy.RollingUpdate = nil }, Rollout{Complete: true}, 5},
		"one pod at least": {func(d *appsv1.Deployment) {
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{
				MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromString("1%")),
			}
		}, Rollout{Complete: true}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			quarter := ptr.To(intstr.FromString("25%"))
			d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](5), Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: quarter, MaxUnavailable: quarter},
			}}}
			d.Generation = 2
			d.Status = appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 5, UpdatedReplicas: 5, AvailableReplicas: 5}
			test.change(d)
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d)
			if err != nil {
				t.Fatal(err)
			}
			w, _, err := readDeployment(&unstructured.Unstructured{Object: content})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, w.Rollout); diff != "" {
				t.Errorf("rollout -want +got:\n%s", diff)
			}
			if w.InFlight != test.inFlight {
				t.Errorf("%d pods are replaced at a time, want %d", w.InFlight, test.inFlight)
			}
		})
	}
}
