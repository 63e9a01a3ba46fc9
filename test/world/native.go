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
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	extensionsv1beta1 "k8s.io/api/extensions/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The controllers of StatefulSets and DaemonSets.

const markLabel = appsv1.ControllerRevisionHashLabelKey

// revisionsOf returns the revisions of a workload, the oldest first, without the history of the
// operator.
func (c *cluster) revisionsOf(o client.Object) []*appsv1.ControllerRevision {
	all := ownedBy[*appsv1.ControllerRevision](c.api, o)
	slices.SortFunc(all, func(a, b *appsv1.ControllerRevision) int { return cmp.Compare(a.Revision, b.Revision) })
	return all
}

// reviseNative finds or creates the revision of a template, and makes it the newest. byHash: pods
// are labelled with the hash.
func (c *cluster) reviseNative(o client.Object, template *corev1.PodTemplateSpec, byHash bool) *appsv1.ControllerRevision {
	var content map[string]any
	must(json.Unmarshal(textOf(&corev1.PodTemplate{Template: *template}), &content))
	spec, ok := content["template"].(map[string]any)
	if !ok {
		panic("a template is not an object")
	}
	spec["$patch"] = "replace"
	data, err := json.Marshal(map[string]any{"spec": map[string]any{"template": spec}})
	must(err)
	all := c.revisionsOf(o)
	newest := int64(0)
	for _, r := range all {
		newest = max(newest, r.Revision)
	}
	for _, r := range all {
		if !bytes.Equal(r.Data.Raw, data) {
			continue
		}
		if r.Revision == newest {
			return r
		}
		next := r.DeepCopy()
		next.Revision = newest + 1
		must(c.api.client.Update(c.ctx(), next))
		return next
	}
	sum := fnv.New32a()
	_, _ = sum.Write(append([]byte(kindOf(o)), data...)) // it never fails; each of the two hashes in its own way
	hash := fmt.Sprintf("%08x", sum.Sum32())
	r := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: o.GetName() + "-" + hash, Labels: maps.Clone(template.Labels),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(o, gvkOf(o))},
		},
		Revision: newest + 1,
	}
	// Real controllers copy all annotations of the workload, but their content is a matter of time,
	// except for this one.
	if number, ok := o.GetAnnotations()[appsv1.DeprecatedTemplateGeneration]; ok {
		metav1.SetMetaDataAnnotation(&r.ObjectMeta, appsv1.DeprecatedTemplateGeneration, number)
	}
	if byHash {
		metav1.SetMetaDataLabel(&r.ObjectMeta, markLabel, hash)
	}
	r.Data.Raw = data
	must(c.api.client.Create(c.ctx(), r))
	return r
}

// keepRevisions removes the oldest unused revisions beyond the limit.
func (c *cluster) keepRevisions(o client.Object, limit int32, inUse func(*appsv1.ControllerRevision) bool) {
	idle := slices.DeleteFunc(c.revisionsOf(o), inUse)
	for len(idle) > int(limit) {
		must(c.api.client.Delete(c.ctx(), idle[0].DeepCopy()))
		idle = idle[1:]
	}
}

func templateOfRevision(r *appsv1.ControllerRevision) *corev1.PodTemplateSpec {
	var data struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	must(json.Unmarshal(r.Data.Raw, &data))
	return &data.Spec.Template
}

// makeNativePod creates a pod of a workload that owns its pods itself. If the pod is refused, it
// writes an event, and tries again later.
func (c *cluster) makeNativePod(o client.Object, name, mark, node string, template *corev1.PodTemplateSpec) {
	if why := c.refusal(o.GetNamespace()); why != "" {
		c.noteFailedCreate(o, why)
		c.at(time.Now().Add(time.Minute))
		return
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: name, Labels: maps.Clone(template.Labels), Annotations: maps.Clone(template.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(o, gvkOf(o))},
		},
		Spec: *template.Spec.DeepCopy(),
	}
	pod.Spec.NodeName = cmp.Or(node, pod.Spec.NodeName)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, markLabel, mark)
	if number, ok := o.GetAnnotations()[appsv1.DeprecatedTemplateGeneration]; ok {
		metav1.SetMetaDataLabel(&pod.ObjectMeta, extensionsv1beta1.DaemonSetTemplateGenerationKey, number)
	}
	must(c.api.client.Create(c.ctx(), pod))
	c.at(time.Now().Add(startTakes))
}

// noteFailedCreate counts refused pods in one event of their workload, once a minute.
func (c *cluster) noteFailedCreate(o client.Object, why string) {
	name := client.ObjectKey{Namespace: o.GetNamespace(), Name: o.GetName() + ".failed-create"}
	var e corev1.Event
	if client.IgnoreNotFound(c.api.client.Get(c.ctx(), name, &e)) != nil || e.Name != "" {
		if time.Since(e.LastTimestamp.Time) >= time.Minute {
			e.Count, e.LastTimestamp = e.Count+1, stamp(time.Now())
			must(c.api.client.Update(c.ctx(), &e))
		}
		return
	}
	must(c.api.client.Create(c.ctx(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
		InvolvedObject: corev1.ObjectReference{UID: o.GetUID(), Namespace: o.GetNamespace(), Name: o.GetName()},
		Reason:         "FailedCreate", Message: "create Pod failed error: " + why, Type: corev1.EventTypeWarning,
		Count: 1, FirstTimestamp: stamp(time.Now()), LastTimestamp: stamp(time.Now()),
	}))
}

// availableFor reports whether a pod has been Ready long enough.
func (c *cluster) availableFor(pod *corev1.Pod, minReadySeconds int32) bool {
	since, ready := readySince(pod)
	from := since.Add(time.Duration(minReadySeconds) * time.Second)
	if ready && time.Now().Before(from) {
		c.at(from)
		return false
	}
	return ready
}

// runSet acts as the StatefulSet controller: it creates pods one after the other, or all at once,
// and replaces them one by one from the last to the partition.
func (c *cluster) runSet(s *appsv1.StatefulSet) {
	update := c.reviseNative(s, &s.Spec.Template, false)
	current := update
	for _, r := range c.revisionsOf(s) {
		if r.Name == s.Status.CurrentRevision {
			current = r
		}
	}
	c.moveSet(s, current, update)
	if stored, ok := c.api.objects[keyOf(s)].(*appsv1.StatefulSet); ok {
		c.writeSetStatus(stored, current, update)
	}
	c.keepRevisions(s, *s.Spec.RevisionHistoryLimit, func(r *appsv1.ControllerRevision) bool {
		return r.Name == current.Name || r.Name == update.Name ||
			slices.ContainsFunc(ownedBy[*corev1.Pod](c.api, s), func(p *corev1.Pod) bool { return p.Labels[markLabel] == r.Name })
	})
}

func (c *cluster) moveSet(s *appsv1.StatefulSet, current, update *appsv1.ControllerRevision) {
	byName := map[string]*corev1.Pod{}
	for _, pod := range ownedBy[*corev1.Pod](c.api, s) {
		byName[pod.Name] = pod
	}
	ordered := s.Spec.PodManagementPolicy == appsv1.OrderedReadyPodManagement
	partition := int32(0)
	if r := s.Spec.UpdateStrategy.RollingUpdate; r != nil {
		partition = *r.Partition
	}
	rolling := s.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType
	healthy := func(pod *corev1.Pod) bool { return pod != nil && c.availableFor(pod, s.Spec.MinReadySeconds) }
	pods := make([]*corev1.Pod, *s.Spec.Replicas)
	for i := range pods {
		name := fmt.Sprintf("%s-%d", s.Name, i)
		pods[i] = byName[name]
		delete(byName, name)
		switch {
		case pods[i] == nil:
			of := update
			if rolling && int32(i) < keptAt(s) {
				of = current
			}
			c.makeNativePod(s, name, of.Name, "", templateOfRevision(of))
			if ordered {
				return
			}
		case ordered && !healthy(pods[i]):
			return
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		must(c.api.client.Delete(c.ctx(), byName[name].DeepCopy()))
	}
	if !rolling {
		return
	}
	for i := len(pods) - 1; i >= int(partition); i-- {
		switch {
		case pods[i] != nil && pods[i].Labels[markLabel] != update.Name:
			must(c.api.client.Delete(c.ctx(), pods[i].DeepCopy()))
			c.at(time.Now())
			return
		case !healthy(pods[i]):
			return
		}
	}
}

// keptAt returns how many of the first pods are created at the current revision. Without a
// partition, it is the number of pods that are at that revision.
func keptAt(s *appsv1.StatefulSet) int32 {
	if r := s.Spec.UpdateStrategy.RollingUpdate; r != nil {
		return *r.Partition
	}
	return s.Status.CurrentReplicas
}

func (c *cluster) writeSetStatus(s *appsv1.StatefulSet, current, update *appsv1.ControllerRevision) {
	next := s.DeepCopy()
	n := appsv1.StatefulSetStatus{ObservedGeneration: s.Generation, CurrentRevision: current.Name, UpdateRevision: update.Name}
	for _, pod := range ownedBy[*corev1.Pod](c.api, s) {
		n.Replicas++
		if _, ready := readySince(pod); ready {
			n.ReadyReplicas++
		}
		if c.availableFor(pod, s.Spec.MinReadySeconds) {
			n.AvailableReplicas++
		}
		if pod.Labels[markLabel] == current.Name {
			n.CurrentReplicas++
		}
		if pod.Labels[markLabel] == update.Name {
			n.UpdatedReplicas++
		}
	}
	rolling := s.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType
	if rolling && n.UpdatedReplicas == n.Replicas && n.ReadyReplicas == n.Replicas {
		n.CurrentReplicas, n.CurrentRevision = n.UpdatedReplicas, n.UpdateRevision
	}
	next.Status = n
	if !equality.Semantic.DeepEqual(s.Status, next.Status) {
		must(c.api.client.Status().Update(c.ctx(), next))
	}
}

// daemonNodes is the number of nodes for DaemonSets.
const daemonNodes = 3

// runDaemon acts as the DaemonSet controller, without surge: it creates a pod on each node without
// one, and deletes old pods, at once if they are not available.
func (c *cluster) runDaemon(d *appsv1.DaemonSet) {
	revision := c.reviseNative(d, &d.Spec.Template, true)
	mark := revision.Labels[markLabel]
	onNode := map[string]*corev1.Pod{}
	for _, pod := range ownedBy[*corev1.Pod](c.api, d) {
		onNode[pod.Spec.NodeName] = pod
	}
	unavailable, old := 0, []*corev1.Pod{}
	for i := range daemonNodes {
		node := fmt.Sprintf("node-%d", i)
		pod := onNode[node]
		switch {
		case pod == nil:
			c.pods++
			c.makeNativePod(d, fmt.Sprintf("%s-%05d", d.Name, c.pods), mark, node, &d.Spec.Template)
			unavailable++
		case !c.availableFor(pod, d.Spec.MinReadySeconds):
			unavailable++
			if pod.Labels[markLabel] != mark && d.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
				must(c.api.client.Delete(c.ctx(), pod.DeepCopy()))
				c.at(time.Now())
			}
		case pod.Labels[markLabel] != mark:
			old = append(old, pod)
		}
	}
	if d.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		room := int(scaled(d.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable, daemonNodes, true)) - unavailable
		for _, pod := range old[:min(max(room, 0), len(old))] {
			must(c.api.client.Delete(c.ctx(), pod.DeepCopy()))
			c.at(time.Now())
		}
	}
	if stored, ok := c.api.objects[keyOf(d)].(*appsv1.DaemonSet); ok {
		c.writeDaemonStatus(stored, mark)
	}
	c.keepRevisions(d, *d.Spec.RevisionHistoryLimit, func(r *appsv1.ControllerRevision) bool {
		return r.Name == revision.Name ||
			slices.ContainsFunc(ownedBy[*corev1.Pod](c.api, d), func(p *corev1.Pod) bool { return p.Labels[markLabel] == r.Labels[markLabel] })
	})
}

func (c *cluster) writeDaemonStatus(d *appsv1.DaemonSet, mark string) {
	next := d.DeepCopy()
	n := appsv1.DaemonSetStatus{ObservedGeneration: d.Generation, DesiredNumberScheduled: daemonNodes}
	for _, pod := range ownedBy[*corev1.Pod](c.api, d) {
		n.CurrentNumberScheduled++
		if _, ready := readySince(pod); ready {
			n.NumberReady++
		}
		if c.availableFor(pod, d.Spec.MinReadySeconds) {
			n.NumberAvailable++
		}
		if pod.Labels[markLabel] == mark {
			n.UpdatedNumberScheduled++
		}
	}
	n.NumberUnavailable = n.DesiredNumberScheduled - n.NumberAvailable
	next.Status = n
	if !equality.Semantic.DeepEqual(d.Status, next.Status) {
		must(c.api.client.Status().Update(c.ctx(), next))
	}
}

// available returns the condition Available of a Deployment with n available pods.
func available(d *appsv1.Deployment, n int32) appsv1.DeploymentCondition {
	missing := int32(0)
	if r := d.Spec.Strategy.RollingUpdate; r != nil {
		missing = scaled(r.MaxUnavailable, *d.Spec.Replicas, false)
	}
	c := appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionFalse, LastTransitionTime: stamp(time.Now())}
	if n >= *d.Spec.Replicas-missing {
		c.Status = corev1.ConditionTrue
	}
	for _, old := range d.Status.Conditions {
		if old.Type == c.Type && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	return c
}

// replicate acts as the ReplicaSet controller.
func (c *cluster) replicate(rs *appsv1.ReplicaSet) {
	pods := c.podsOf(rs)
	why := ""
	for missing := int(*rs.Spec.Replicas) - len(pods); missing > 0; missing-- {
		if why = c.refusal(rs.Namespace); why != "" {
			break
		}
		c.pods++
		yes := true
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: rs.Namespace, Name: fmt.Sprintf("%s-%05d", rs.Name, c.pods),
				Labels: maps.Clone(rs.Spec.Template.Labels), Annotations: maps.Clone(rs.Spec.Template.Annotations),
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: rs.Name, UID: rs.UID, Controller: &yes}},
			},
			Spec: *rs.Spec.Template.Spec.DeepCopy(),
		}
		must(c.api.client.Create(c.ctx(), pod))
		c.at(time.Now().Add(startTakes))
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		_, readyA := readySince(a)
		_, readyB := readySince(b)
		switch {
		case readyA == readyB:
			return strings.Compare(b.Name, a.Name) // the newest go first
		case readyB:
			return -1
		default:
			return 1
		}
	})
	for i := 0; i < len(pods)-int(*rs.Spec.Replicas); i++ {
		must(c.api.client.Delete(c.ctx(), pods[i].DeepCopy()))
	}
	rs, ok := c.api.objects[keyOf(rs)].(*appsv1.ReplicaSet)
	if !ok {
		return
	}
	next := rs.DeepCopy()
	next.Status = appsv1.ReplicaSetStatus{
		ObservedGeneration: rs.Generation, AvailableReplicas: c.available(rs), Conditions: refused(rs.Status.Conditions, why),
	}
	for _, pod := range c.podsOf(rs) {
		next.Status.Replicas++
		if _, ready := readySince(pod); ready {
			next.Status.ReadyReplicas++
		}
	}
	if !equality.Semantic.DeepEqual(rs.Status, next.Status) {
		must(c.api.client.Status().Update(c.ctx(), next))
	}
}

// writeStatus writes the status of a Deployment.
func (c *cluster) writeStatus(d *appsv1.Deployment) {
	next := d.DeepCopy()
	s := appsv1.DeploymentStatus{ObservedGeneration: d.Generation}
	for _, rs := range c.owned(d) {
		s.Replicas += rs.Status.Replicas
		s.ReadyReplicas += rs.Status.ReadyReplicas
		s.AvailableReplicas += rs.Status.AvailableReplicas
		if equality.Semantic.DeepEqual(templateOf(&rs.Spec.Template), templateOf(&d.Spec.Template)) {
			s.UpdatedReplicas += rs.Status.Replicas
		}
	}
	s.UnavailableReplicas = max(0, s.Replicas-s.AvailableReplicas)
	before := d.Status
	before.Conditions = nil
	if !equality.Semantic.DeepEqual(before, s) {
		c.progress[d.UID] = time.Now()
	}
	complete := s.UpdatedReplicas == *d.Spec.Replicas && s.Replicas == s.UpdatedReplicas && s.AvailableReplicas == s.UpdatedReplicas
	if !complete && !d.Spec.Paused {
		stuck := c.progress[d.UID].Add(time.Duration(*d.Spec.ProgressDeadlineSeconds) * time.Second)
		if time.Now().Before(stuck) {
			c.at(stuck)
		} else {
			s.Conditions = []appsv1.DeploymentCondition{{
				Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse,
				Reason: "ProgressDeadlineExceeded", Message: "the rollout makes no progress",
			}}
		}
	}
	if c.kubelets != nil {
		s.Conditions = append(s.Conditions, available(d, s.AvailableReplicas))
	}
	next.Status = s
	if !equality.Semantic.DeepEqual(d.Status, next.Status) {
		must(c.api.client.Status().Update(c.ctx(), next))
	}
}

// refusal returns why no more pods may be created; empty if they may.
func (c *cluster) refusal(namespace string) string {
	if used := len(list[*corev1.Pod](c.api, "Pod", namespace)); c.bounded && used >= c.quota {
		return fmt.Sprintf("pods are forbidden: exceeded quota: pods, requested: pods=1, used: pods=%d, limited: pods=%d", used, c.quota)
	}
	return ""
}
