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
	"slices"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// TrimPod drops fields that no decision reads from a pod on its way into the cache. The cache has
// all pods of the cluster, because namespaces can be enrolled at any time.
func (r *Registry) TrimPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	trimmed := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:              pod.Name,
			Namespace:         pod.Namespace,
			UID:               pod.UID,
			ResourceVersion:   pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp,
			DeletionTimestamp: pod.DeletionTimestamp,
			OwnerReferences:   controllerOnly(pod.OwnerReferences),
			Labels:            r.trimLabels(pod.Labels),
		},
		Spec:   corev1.PodSpec{Hostname: pod.Spec.Hostname, NodeName: pod.Spec.NodeName},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, StartTime: pod.Status.StartTime},
	}
	observed := ReadPod(pod)
	if observed.Unprobed {
		trimmed.Spec.Containers = unprobed
	}
	keepsReasons := observed.Stuck != nil || observed.Restarts > 0
	trimmed.Status.Conditions = trimConditions(pod.Status.Conditions, keepsReasons)
	switch {
	case keepsReasons:
		trimmed.Status.InitContainerStatuses = trimContainers(pod.Status.InitContainerStatuses)
		trimmed.Status.ContainerStatuses = trimContainers(pod.Status.ContainerStatuses)
		trimmed.Spec.InitContainers = trimSpecs(pod.Spec.InitContainers, trimmed.Status.InitContainerStatuses)
		trimmed.Spec.Containers = slices.Concat(trimmed.Spec.Containers, trimSpecs(pod.Spec.Containers, trimmed.Status.ContainerStatuses))
	case observed.Unprobed && observed.Ready && observed.StartedAt.Before(observed.ReadySince.Add(-time.Second)):
		// The two times are equal for most pods.
		trimmed.Status.ContainerStatuses = []corev1.ContainerStatus{{
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(observed.StartedAt)}},
		}}
	}
	return trimmed, nil
}

// maxPodLabels is the largest size of the labels of a pod of which the cache keeps all, in bytes.
const maxPodLabels = 4 << 10

// trimLabels returns the labels that a pod keeps in the cache: all, unless they are large. A kind may be declared at any
// time, and select pods by any label. Texts are shared among pods.
func (r *Registry) trimLabels(labels map[string]string) map[string]string {
	size := 0
	for name, value := range labels {
		size += len(name) + len(value)
	}
	if size > maxPodLabels {
		return only(labels, r.now.Load().podLabels)
	}
	shared := make(map[string]string, len(labels))
	for name, value := range labels {
		shared[unique.Make(name).Value()] = unique.Make(value).Value()
	}
	return shared
}

// unprobed replaces the containers of a pod if one of them has no readiness probe. All pods share
// it: objects in the cache are never written.
var unprobed = []corev1.Container{{}}

// trimConditions keeps whether a pod is Ready and since when, and how far the start of a stuck pod
// came.
func trimConditions(conditions []corev1.PodCondition, keepsReasons bool) []corev1.PodCondition {
	var trimmed []corev1.PodCondition
	for i := range conditions {
		c := conditions[i]
		c.LastProbeTime, c.ObservedGeneration, c.Message = metav1.Time{}, 0, wording.Brief(c.Message)
		switch c.Type {
		case corev1.PodReady:
			if !keepsReasons {
				c.Reason, c.Message = "", ""
			}
		case corev1.PodScheduled, corev1.PodInitialized:
			if !keepsReasons {
				continue
			}
		case corev1.ContainersReady:
			if !keepsReasons {
				continue
			}
			c.Reason, c.Message = "", ""
		case corev1.DisruptionTarget:
			c.Reason, c.Message = "", ""
		default:
			continue
		}
		trimmed = append(trimmed, c)
	}
	return trimmed
}

func trimContainers(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	statuses = worstFirst(statuses, func(s *corev1.ContainerStatus) bool { return s.Ready && s.RestartCount == 0 })
	trimmed := make([]corev1.ContainerStatus, len(statuses))
	for i := range statuses {
		s := &statuses[i]
		trimmed[i] = corev1.ContainerStatus{
			Name: s.Name, State: trimState(&s.State), LastTerminationState: trimState(&s.LastTerminationState),
			Ready: s.Ready, Started: s.Started, RestartCount: s.RestartCount,
		}
	}
	return trimmed
}

// trimSpecs keeps which of the containers with these statuses are sidecars, and, in place of their
// restart rules, which may be long, which of the known ends the rules allow.
func trimSpecs(containers []corev1.Container, statuses []corev1.ContainerStatus) (trimmed []corev1.Container) {
	for i := range statuses {
		s := &statuses[i]
		at := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == s.Name })
		if at < 0 || containers[at].RestartPolicy == nil && len(containers[at].RestartPolicyRules) == 0 {
			continue
		}
		c := corev1.Container{
			Name: s.Name, RestartPolicy: containers[at].RestartPolicy,
			ReadinessProbe: &corev1.Probe{}, // else it would count as unprobed
		}
		if rules := containers[at].RestartPolicyRules; len(rules) > 0 {
			allowed := corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn}
			for _, end := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
				if allowsEnd(rules, end) {
					allowed.Values = append(allowed.Values, end.ExitCode)
				}
			}
			c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart, ExitCodes: &allowed}}
		}
		trimmed = append(trimmed, c)
	}
	return trimmed
}

// trimState keeps why a container fails, in a short text: in an outage, all pods of a cluster may
// fail.
func trimState(s *corev1.ContainerState) (trimmed corev1.ContainerState) {
	if w := s.Waiting; w != nil {
		trimmed.Waiting = &corev1.ContainerStateWaiting{Reason: w.Reason, Message: wording.Brief(w.Message)}
	}
	if r := s.Running; r != nil {
		trimmed.Running = &corev1.ContainerStateRunning{StartedAt: r.StartedAt}
	}
	if t := s.Terminated; t != nil {
		trimmed.Terminated = &corev1.ContainerStateTerminated{
			ExitCode: t.ExitCode, Reason: t.Reason, Message: wording.Brief(t.Message), StartedAt: t.StartedAt, FinishedAt: t.FinishedAt,
		}
	}
	return trimmed
}

// enrolmentField is the field of a namespace that enrols it.
var enrolmentField = metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:` + v1alpha1.EnrolledLabel + `":{}}}}`)

// TrimNamespace keeps the time of the enrolment from the managed fields of a namespace. A namespace
// with too many labels stays enrolled.
func TrimNamespace(obj any) (any, error) {
	ns, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	since := EnrolledSince(ns.ManagedFields)
	trimMeta(ns, v1alpha1.EnrolledLabel)
	if !since.IsZero() {
		ns.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: since}, FieldsV1: enrolmentField}}
	}
	return ns, nil
}
