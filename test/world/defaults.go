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

package world

import (
	"cmp"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
)

// setDefaults sets the defaults of an API server that something here reads.
func setDefaults(d *appsv1.Deployment) {
	if d.Spec.Replicas == nil {
		one := int32(1)
		d.Spec.Replicas = &one
	}
	if d.Spec.Strategy.Type == "" {
		d.Spec.Strategy.Type = appsv1.RollingUpdateDeploymentStrategyType
	}
	if d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType && d.Spec.Strategy.RollingUpdate == nil {
		surge, unavailable := intstr.FromString("25%"), intstr.FromString("25%")
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}
	}
	if d.Spec.ProgressDeadlineSeconds == nil {
		deadline := int32(600)
		d.Spec.ProgressDeadlineSeconds = &deadline
	}
	if d.Spec.RevisionHistoryLimit == nil {
		limit := int32(10)
		d.Spec.RevisionHistoryLimit = &limit
	}
	if d.Spec.Template.Spec.RestartPolicy == "" {
		d.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways
	}
}

// isWorkload reports whether an object is a workload, which passes admission.
func isWorkload(o client.Object) bool {
	_, course := o.(*workloadtest.CourseObject)
	return course || templateIn(o) != nil
}

// contentOf returns the part of a workload whose change is a release.
func contentOf(o client.Object) any {
	if course, ok := o.(*workloadtest.CourseObject); ok {
		return course.Spec.Route
	}
	return templateIn(o)
}

// templateIn returns the pod template of a workload; nil for other objects.
func templateIn(o client.Object) *corev1.PodTemplateSpec {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Template
	case *appsv1.StatefulSet:
		return &o.Spec.Template
	case *appsv1.DaemonSet:
		return &o.Spec.Template
	case *workloadtest.FleetObject:
		return &o.Spec.Crew
	default:
		return nil
	}
}

// setNativeDefaults sets the defaults of StatefulSets and DaemonSets.
func setNativeDefaults(o client.Object) {
	switch o := o.(type) {
	case *appsv1.StatefulSet:
		s := &o.Spec
		s.Replicas, s.RevisionHistoryLimit = cmp.Or(s.Replicas, ptr.To[int32](1)), cmp.Or(s.RevisionHistoryLimit, ptr.To[int32](10))
		s.PodManagementPolicy = cmp.Or(s.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
		if s.UpdateStrategy.Type == "" {
			s.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
			s.UpdateStrategy.RollingUpdate = cmp.Or(s.UpdateStrategy.RollingUpdate, &appsv1.RollingUpdateStatefulSetStrategy{})
		}
		if r := s.UpdateStrategy.RollingUpdate; r != nil && s.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
			r.Partition = cmp.Or(r.Partition, ptr.To[int32](0))
		}
	case *appsv1.DaemonSet:
		s := &o.Spec
		s.RevisionHistoryLimit = cmp.Or(s.RevisionHistoryLimit, ptr.To[int32](10))
		s.UpdateStrategy.Type = cmp.Or(s.UpdateStrategy.Type, appsv1.RollingUpdateDaemonSetStrategyType)
		if s.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
			r := cmp.Or(s.UpdateStrategy.RollingUpdate, &appsv1.RollingUpdateDaemonSet{})
			r.MaxUnavailable, r.MaxSurge = cmp.Or(r.MaxUnavailable, ptr.To(intstr.FromInt32(1))), cmp.Or(r.MaxSurge, ptr.To(intstr.FromInt32(0)))
			s.UpdateStrategy.RollingUpdate = r
		}
	}
}

// numberTemplate counts the templates of a DaemonSet, as the API server does.
func numberTemplate(before, after client.Object) {
	next, ok := after.(*appsv1.DaemonSet)
	if !ok {
		return
	}
	number := int64(1)
	if was, ok := before.(*appsv1.DaemonSet); ok {
		number = numberOf(was.Annotations[appsv1.DeprecatedTemplateGeneration])
		if !equality.Semantic.DeepEqual(was.Spec.Template, next.Spec.Template) {
			number++
		}
	}
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, appsv1.DeprecatedTemplateGeneration, strconv.FormatInt(number, 10))
}

// numberOf parses a number; 0 if it is none.
func numberOf(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
