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

package observer

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// StatefulSets and DaemonSets are judged as Deployments: a halted workload is paused, and fields
// that a Deployment lacks become an annotation, so that a change of them is seen. Their revisions
// are judged as ReplicaSets.

// likeDeployment returns the Deployment that a workload is judged as.
func likeDeployment(meta *metav1.ObjectMeta, template *corev1.PodTemplateSpec, rest any) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: *meta.DeepCopy(), Spec: appsv1.DeploymentSpec{
		Template: *template.DeepCopy(), ProgressDeadlineSeconds: ptr.To[int32](math.MaxInt32),
	}}
	data, err := json.Marshal(rest)
	if err != nil {
		panic(err) // it came out of JSON
	}
	d.Annotations = maps.Clone(d.Annotations)
	metav1.SetMetaDataAnnotation(&d.ObjectMeta, restAnnotation, string(data))
	return d
}

func likeStatefulSet(o *appsv1.StatefulSet) *appsv1.Deployment {
	rest := o.Spec.DeepCopy()
	rest.Template, rest.Replicas, rest.MinReadySeconds = corev1.PodTemplateSpec{}, nil, 0
	partition := noPartition
	if u := &rest.UpdateStrategy; u.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		u.RollingUpdate = cmp.Or(u.RollingUpdate, &appsv1.RollingUpdateStatefulSetStrategy{}) // it means the same
		partition = ptr.Deref(u.RollingUpdate.Partition, 0)
		u.RollingUpdate.Partition = nil
	}
	halted := partition == math.MaxInt32
	if halted && (o.Annotations[v1alpha1.HaltedAnnotation] != "" || o.Annotations[v1alpha1.HeldAnnotation] == "") {
		users, err := strconv.ParseInt(o.Annotations[v1alpha1.HaltedFromAnnotation], 10, 32)
		if err != nil {
			users = 0
		}
		partition = int32(users)
	}
	d := likeDeployment(&o.ObjectMeta, &o.Spec.Template, rest)
	d.Annotations[partitionAnnotation] = strconv.Itoa(int(partition))
	d.Spec.Replicas, d.Spec.MinReadySeconds, d.Spec.Paused = ptr.To(ptr.Deref(o.Spec.Replicas, 1)), o.Spec.MinReadySeconds, halted
	s := &o.Status
	d.Status = appsv1.DeploymentStatus{
		ObservedGeneration: s.ObservedGeneration, Replicas: s.Replicas, UpdatedReplicas: s.UpdatedReplicas,
		AvailableReplicas: s.AvailableReplicas,
	}
	return d
}

// indexOf returns the place of a pod in its StatefulSet, from 0.
func indexOf(pod string, d *appsv1.Deployment) int32 {
	start := int32(0)
	if o := setSpecIn(d.Annotations[restAnnotation]).Ordinals; o != nil {
		start = o.Start
	}
	return numberOf(pod) - start
}

func setSpecIn(rest string) (spec appsv1.StatefulSetSpec) {
	if json.Unmarshal([]byte(rest), &spec) != nil {
		return appsv1.StatefulSetSpec{} // it is of another kind
	}
	return spec
}

func likeDaemonSet(o *appsv1.DaemonSet) *appsv1.Deployment {
	rest := o.Spec.DeepCopy()
	rest.Template, rest.MinReadySeconds = corev1.PodTemplateSpec{}, 0
	halted := rest.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType
	evicts := halted && o.Annotations[v1alpha1.HaltedAnnotation] == "" && o.Annotations[v1alpha1.HeldAnnotation] != "" &&
		rest.UpdateStrategy.RollingUpdate != nil
	if halted && (o.Annotations[v1alpha1.HaltedAnnotation] != "" || evicts) {
		rest.UpdateStrategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
	}
	if r := rest.UpdateStrategy.RollingUpdate; evicts && r.MaxSurge != nil && r.MaxUnavailable.String() != "0" {
		r.MaxSurge = new(intstr.FromInt32(0)) // the API server would refuse both without OnDelete
	}
	d := likeDeployment(&o.ObjectMeta, &o.Spec.Template, rest)
	if evicts {
		halted, d.Annotations[evictsAnnotation] = false, "true"
	}
	delete(d.Annotations, appsv1.DeprecatedTemplateGeneration) // it follows the template
	d.Spec.MinReadySeconds, d.Spec.Paused = o.Spec.MinReadySeconds, halted
	// The status has the number of pods: in the spec, a new node would look like a change of the
	// workload.
	s, rolledOut := &o.Status, int32(0)
	if s.UpdatedNumberScheduled == s.DesiredNumberScheduled && s.NumberAvailable == s.DesiredNumberScheduled {
		rolledOut = 1
	}
	d.Status = appsv1.DeploymentStatus{
		ObservedGeneration: s.ObservedGeneration, Replicas: 1, UpdatedReplicas: rolledOut, AvailableReplicas: rolledOut,
	}
	d.Status.ReadyReplicas = s.DesiredNumberScheduled // wantedPods
	return d
}

// ownerByMark returns the UID that stands for a revision of a workload.
func ownerByMark(workload types.UID, mark string) types.UID {
	return workload + types.UID("/"+mark)
}

// ownerOfPod returns the owner of a pod: its ReplicaSet, or a revision.
func ownerOfPod(o *corev1.Pod) types.UID {
	ref := metav1.GetControllerOf(o)
	if ref == nil {
		return ""
	}
	if ref.Kind == "StatefulSet" || ref.Kind == "DaemonSet" {
		return ownerByMark(ref.UID, o.Labels[appsv1.ControllerRevisionHashLabelKey])
	}
	return ref.UID
}
