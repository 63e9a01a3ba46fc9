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
	"fmt"
	"hash/fnv"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
)

// sail acts as the controller of Fleets. It makes one new pod more than the Fleet has ships, and
// removes an old pod for each new pod that is ready. An anchored Fleet stays as it is.
func (c *cluster) sail(f *workloadtest.FleetObject) {
	sum := fnv.New32a()
	_, _ = sum.Write(textOf(&corev1.PodTemplate{Template: f.Spec.Crew})) // it never fails
	revision := fmt.Sprintf("%08x", sum.Sum32())
	var current, old []*corev1.Pod
	ready := int32(0)
	for _, pod := range list[*corev1.Pod](c.api, "Pod", f.Namespace) {
		switch {
		case !metav1.IsControlledBy(pod, f):
		case pod.Labels[workloadtest.CrewLabel] == revision:
			current = append(current, pod)
			if _, is := readySince(pod); is {
				ready++
			}
		default:
			old = append(old, pod)
		}
	}
	next, ok := f.DeepCopyObject().(*workloadtest.FleetObject)
	if !ok {
		return
	}
	manned, total := int32(len(current)), int32(len(current)+len(old))
	next.Status = workloadtest.FleetStatus{ObservedGeneration: f.Generation, Revision: revision, Manned: manned, Ready: ready, Total: total}
	if !equality.Semantic.DeepEqual(f.Status, next.Status) {
		must(c.api.client.Status().Update(c.ctx(), next))
	}
	if f.Spec.Anchored {
		return
	}
	for ; manned < f.Spec.Ships && total <= f.Spec.Ships; manned, total = manned+1, total+1 {
		c.man(f, revision)
	}
	for i := 0; i < len(old) && ready+int32(len(old)-i) > f.Spec.Ships; i++ {
		must(c.api.client.Delete(c.ctx(), old[i].DeepCopy()))
	}
	for i := f.Spec.Ships; i < int32(len(current)); i++ {
		must(c.api.client.Delete(c.ctx(), current[i].DeepCopy()))
	}
}

// man makes a pod of a Fleet.
func (c *cluster) man(f *workloadtest.FleetObject, revision string) {
	c.pods++
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.Namespace, Name: fmt.Sprintf("%s-%s-%05d", f.Name, revision, c.pods), Labels: maps.Clone(f.Spec.Crew.Labels),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(f, workloadtest.Fleet{}.GroupVersionKind())},
		},
		Spec: *f.Spec.Crew.Spec.DeepCopy(),
	}
	metav1.SetMetaDataLabel(&pod.ObjectMeta, workloadtest.CrewLabel, revision)
	must(c.api.client.Create(c.ctx(), pod))
}
