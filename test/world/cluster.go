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
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// How pods behave, by the prefix of their image.
const (
	// BadImage cannot be pulled.
	BadImage = "bad"
	// NeverReady runs and is never ready.
	NeverReady = "never-ready"
)

const (
	// startTakes is how long a pod takes to become ready.
	startTakes = time.Second
	// collectEvery is the pause of garbage collection after it removed something. Without it, an
	// operator that does not know yet that an owner is gone would create objects, and garbage
	// collection remove them, for ever and in no time.
	collectEvery       = time.Second
	revisionAnnotation = "deployment.kubernetes.io/revision"
	hashLabel          = appsv1.DefaultDeploymentUniqueLabelKey
)

// due returns when the cluster has to act without a change; zero for never.
func (c *cluster) due() time.Time { return c.next }

func (c *cluster) at(t time.Time) {
	if c.next.IsZero() || t.Before(c.next) {
		c.next = t
	}
}

func (c *cluster) ctx() context.Context {
	return as(context.Background(), writer{user: "system:serviceaccount:kube-system:deployment-controller"})
}

// collect removes objects whose owners are gone.
func (c *cluster) collect() {
	there := map[types.UID]bool{}
	for _, o := range c.api.objects {
		there[o.GetUID()] = true
	}
	var lost []client.Object
	for _, o := range c.api.objects {
		refs := o.GetOwnerReferences()
		if len(refs) > 0 && !slices.ContainsFunc(refs, func(ref metav1.OwnerReference) bool { return there[ref.UID] }) {
			lost = append(lost, o)
		}
	}
	if len(lost) == 0 {
		return
	}
	if again := c.collected.Add(collectEvery); time.Now().Before(again) {
		c.at(again)
		return
	}
	c.collected = time.Now()
	slices.SortFunc(lost, func(a, b client.Object) int {
		return strings.Compare(kindOf(a)+"/"+a.GetName(), kindOf(b)+"/"+b.GetName())
	})
	for _, o := range lost {
		must(c.api.client.Delete(c.ctx(), asObject(o.DeepCopyObject())))
	}
}

// runPod starts a pod.
func (c *cluster) runPod(pod *corev1.Pod) {
	if status, ok := c.chosen[pod.UID]; ok {
		next := pod.DeepCopy()
		next.Status = status
		if !equality.Semantic.DeepEqual(pod.Status, next.Status) {
			must(c.api.client.Status().Update(c.ctx(), next))
		}
		return
	}
	image := pod.Spec.Containers[0].Image
	started := pod.CreationTimestamp.Add(startTakes)
	if time.Now().Before(started) {
		c.at(started)
		return
	}
	next := pod.DeepCopy()
	next.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(started)},
	}, ContainerStatuses: []corev1.ContainerStatus{{
		Name: pod.Spec.Containers[0].Name, Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(started)}},
	}}}
	switch {
	case strings.HasPrefix(image, BadImage):
		next.Status.Phase, next.Status.PodIP = corev1.PodPending, ""
		next.Status.Conditions[1].Status, next.Status.Conditions[1].Reason = corev1.ConditionFalse, "ContainersNotReady"
		next.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image " + image},
		}}
	case strings.HasPrefix(image, NeverReady):
		next.Status.Conditions[1].Status, next.Status.Conditions[1].Reason = corev1.ConditionFalse, "ContainersNotReady"
		next.Status.ContainerStatuses[0].Ready = false
	}
	if !equality.Semantic.DeepEqual(pod.Status, next.Status) {
		must(c.api.client.Status().Update(c.ctx(), next))
	}
}

func (c *cluster) owned(d *appsv1.Deployment) []*appsv1.ReplicaSet {
	return ownedBy[*appsv1.ReplicaSet](c.api, d)
}

func (c *cluster) podsOf(rs *appsv1.ReplicaSet) []*corev1.Pod {
	return ownedBy[*corev1.Pod](c.api, rs)
}

func templateOf(t *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	t = t.DeepCopy()
	delete(t.Labels, hashLabel)
	return t
}

// roll acts as the Deployment controller.
func (c *cluster) roll(d *appsv1.Deployment) {
	var current *appsv1.ReplicaSet
	var old []*appsv1.ReplicaSet
	newest := int64(0)
	for _, rs := range c.owned(d) {
		newest = max(newest, numberOf(rs.Annotations[revisionAnnotation]))
		if current == nil && equality.Semantic.DeepEqual(templateOf(&rs.Spec.Template), templateOf(&d.Spec.Template)) {
			current = rs
		} else {
			old = append(old, rs)
		}
	}
	slices.SortFunc(old, func(a, b *appsv1.ReplicaSet) int {
		return int(numberOf(a.Annotations[revisionAnnotation]) - numberOf(b.Annotations[revisionAnnotation]))
	})
	if d.Spec.Paused {
		if current != nil && totalOf(old) == 0 {
			c.scale(current, *d.Spec.Replicas)
		}
		return
	}
	if current == nil || newest > numberOf(current.Annotations[revisionAnnotation]) {
		c.revise(d, current, newest+1)
		return
	}
	if current.Spec.MinReadySeconds != d.Spec.MinReadySeconds {
		next := current.DeepCopy()
		next.Spec.MinReadySeconds = d.Spec.MinReadySeconds
		must(c.api.client.Update(c.ctx(), next))
		return
	}
	if d.Annotations[revisionAnnotation] != current.Annotations[revisionAnnotation] {
		next := d.DeepCopy()
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, revisionAnnotation, current.Annotations[revisionAnnotation])
		must(c.api.client.Update(c.ctx(), next))
		return
	}
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		c.recreate(d, current, old)
	} else {
		c.rollOver(d, current, old)
	}
	c.cleanUp(d, old)
}

// revise makes the ReplicaSet of the template the newest one.
func (c *cluster) revise(d *appsv1.Deployment, current *appsv1.ReplicaSet, number int64) {
	c.progress[d.UID] = time.Now()
	if current != nil {
		next := current.DeepCopy()
		next.Annotations[revisionAnnotation] = strconv.FormatInt(number, 10)
		must(c.api.client.Update(c.ctx(), next))
		return
	}
	template := templateOf(&d.Spec.Template)
	sum := fnv.New32a()
	_, _ = sum.Write(textOf(&corev1.PodTemplate{Template: *template})) // it never fails
	hash := fmt.Sprintf("%08x", sum.Sum32())
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	template.Labels[hashLabel] = hash
	yes, none := true, int32(0)
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchLabels[hashLabel] = hash
	must(c.api.client.Create(c.ctx(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: d.Name + "-" + hash, Labels: maps.Clone(template.Labels),
			Annotations:     map[string]string{revisionAnnotation: strconv.FormatInt(number, 10)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name, UID: d.UID, Controller: &yes}},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: &none, MinReadySeconds: d.Spec.MinReadySeconds, Selector: selector, Template: *template},
	}))
}

func totalOf(sets []*appsv1.ReplicaSet) (total int32) {
	for _, rs := range sets {
		total += *rs.Spec.Replicas
	}
	return total
}

func (c *cluster) scale(rs *appsv1.ReplicaSet, replicas int32) {
	if *rs.Spec.Replicas == replicas {
		return
	}
	next := rs.DeepCopy()
	next.Spec.Replicas = &replicas
	must(c.api.client.Update(c.ctx(), next))
}

func (c *cluster) recreate(d *appsv1.Deployment, current *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) {
	left := 0
	for _, rs := range old {
		c.scale(rs, 0)
		left += len(c.podsOf(rs))
	}
	if left == 0 {
		c.scale(current, *d.Spec.Replicas)
	}
}

// rollOver replaces pods within surge and unavailability.
func (c *cluster) rollOver(d *appsv1.Deployment, current *appsv1.ReplicaSet, old []*appsv1.ReplicaSet) {
	replicas := *d.Spec.Replicas
	surge := scaled(d.Spec.Strategy.RollingUpdate.MaxSurge, replicas, true)
	unavailable := scaled(d.Spec.Strategy.RollingUpdate.MaxUnavailable, replicas, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	total := totalOf(old) + *current.Spec.Replicas
	switch have := *current.Spec.Replicas; {
	case have > replicas:
		c.scale(current, replicas)
		return
	case have < replicas && total < replicas+surge:
		c.scale(current, have+min(replicas-have, replicas+surge-total))
		return
	}
	// Pods that are not available go first, and are no loss.
	available := c.available(current)
	for _, rs := range old {
		available += c.available(rs)
	}
	spare := total - (replicas - unavailable) - (*current.Spec.Replicas - c.available(current))
	for _, rs := range old {
		if idle := min(*rs.Spec.Replicas-c.available(rs), spare); idle > 0 {
			c.scale(rs, *rs.Spec.Replicas-idle)
			return
		}
	}
	for _, rs := range old {
		if gone := min(*rs.Spec.Replicas, available-(replicas-unavailable)); gone > 0 {
			c.scale(rs, *rs.Spec.Replicas-gone)
			return
		}
	}
}

func scaled(v *intstr.IntOrString, of int32, up bool) int32 {
	if v == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, int(of), up)
	must(err)
	return int32(n)
}

// cleanUp removes old ReplicaSets beyond the limit of the Deployment.
func (c *cluster) cleanUp(d *appsv1.Deployment, old []*appsv1.ReplicaSet) {
	idle := slices.DeleteFunc(old, func(rs *appsv1.ReplicaSet) bool { return *rs.Spec.Replicas > 0 || len(c.podsOf(rs)) > 0 })
	for len(idle) > int(*d.Spec.RevisionHistoryLimit) {
		must(c.api.client.Delete(c.ctx(), idle[0].DeepCopy()))
		idle = idle[1:]
	}
}

func readySince(pod *corev1.Pod) (time.Time, bool) {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return condition.LastTransitionTime.Time, true
		}
	}
	return time.Time{}, false
}

// available counts the pods that were Ready long enough.
func (c *cluster) available(rs *appsv1.ReplicaSet) (n int32) {
	for _, pod := range c.podsOf(rs) {
		since, ready := readySince(pod)
		switch from := since.Add(time.Duration(rs.Spec.MinReadySeconds) * time.Second); {
		case !ready:
		case time.Now().Before(from):
			c.at(from)
		default:
			n++
		}
	}
	return n
}
