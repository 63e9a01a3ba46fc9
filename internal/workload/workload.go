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

// Package workload keeps what differs from one kind of workload to the next
// behind one interface: how to read it, which pods are of its current template,
// how far its rollout is. The controllers know workloads only through it.
package workload

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// Kind is one kind of workload.
type Kind interface {
	// GroupVersionKind of the workload.
	GroupVersionKind() schema.GroupVersionKind
	// Object returns an empty workload, as it is kept in the cache.
	Object() client.Object
	// ObjectList returns an empty list of workloads.
	ObjectList() client.ObjectList
	// Revision returns an empty revision (a Deployment's ReplicaSet), as it is
	// kept in the cache.
	Revision() client.Object
	// Transforms trim workloads and revisions before they enter the cache.
	Transforms() map[client.Object]cache.TransformFunc
	// Get observes a workload; nil when there is none of that name.
	Get(ctx context.Context, r client.Reader, key types.NamespacedName) (*defense.Workload, error)
	// Pods observes the pods of the workload's current template.
	Pods(ctx context.Context, r client.Reader, w *defense.Workload) ([]defense.Pod, error)
	// Template reads the pod template of a workload as it is stored, with its
	// version; nil when the workload is gone or another one of that name.
	Template(ctx context.Context, live client.Reader, w *defense.Workload) (template map[string]any, version string, err error)
	// RevisionTemplate reads the pod template of an earlier revision, as the
	// workload had it, with its version; nil when the revision is gone.
	RevisionTemplate(ctx context.Context, live client.Reader, namespace string, old *defense.OldRevision) (template map[string]any, version string, err error)
	// Images lists the container images of the workload's current template, and
	// of the one before it.
	Images(ctx context.Context, r client.Reader, w *defense.Workload) (current, previous []string, err error)
	// OwnerOfPod finds the workload that owns a pod; ok is false when the pod
	// belongs to no workload of this kind.
	OwnerOfPod(ctx context.Context, r client.Reader, pod metav1.Object) (owner Owner, ok bool, err error)
	// OwnerOfRevision finds the workload that owns a revision.
	OwnerOfRevision(revision metav1.Object) (owner Owner, ok bool)
}

// Owner is the workload that owns an object.
type Owner struct {
	Key types.NamespacedName
	UID types.UID
}

// Names of the indexes by which the controllers look objects up.
const (
	// IndexByOwner indexes pods, revisions, ChangeWorkloads and ChangePods by
	// the UID of their controller.
	IndexByOwner = "controller-uid"
	// IndexByOrder indexes ChangeWorkloads by the ids of their orders.
	IndexByOrder = "order-id"
	// IndexByNode indexes ChangePods by their ids on the server.
	IndexByNode = "node-id"
)

// OwnerUID is the IndexByOwner of an object.
func OwnerUID(o client.Object) []string {
	if ref := metav1.GetControllerOf(o); ref != nil {
		return []string{string(ref.UID)}
	}
	return nil
}

// OrderOf is the IndexByOrder of a ChangeWorkload.
func OrderOf(o client.Object) []string {
	if c, ok := o.(*v1alpha1.ChangeWorkload); ok && c.Status.OrderID != "" {
		return []string{c.Status.OrderID}
	}
	return nil
}

// NodeOf is the IndexByNode of a ChangePod.
func NodeOf(o client.Object) []string {
	if b, ok := o.(*v1alpha1.ChangePod); ok && b.Status.ChangePodID != "" {
		return []string{b.Status.ChangePodID}
	}
	return nil
}

// TrimPod drops from a pod on its way into the cache whatever no decision
// reads: all pods of the cluster are kept, because namespaces are enrolled at
// run time, so each must be small.
func TrimPod(obj any) (any, error) {
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
			Labels:            ownLabels(pod.Labels),
		},
		Spec:   corev1.PodSpec{Hostname: pod.Spec.Hostname},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP},
	}
	// Why a pod is not ready is told only of those that are not.
	hangs := defense.ObserveHang(pod) != nil
	for i := range pod.Status.Conditions {
		c := pod.Status.Conditions[i]
		c.LastProbeTime, c.ObservedGeneration, c.Message = metav1.Time{}, 0, defense.Brief(c.Message)
		switch {
		case c.Type == corev1.PodReady && !hangs:
			c.Reason, c.Message = "", ""
		case c.Type != corev1.PodReady && (c.Type != corev1.PodScheduled || !hangs):
			continue
		}
		trimmed.Status.Conditions = append(trimmed.Status.Conditions, c)
	}
	if hangs {
		trimmed.Status.InitContainerStatuses = trimContainers(pod.Status.InitContainerStatuses)
		trimmed.Status.ContainerStatuses = trimContainers(pod.Status.ContainerStatuses)
	}
	return trimmed, nil
}

func trimContainers(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	trimmed := make([]corev1.ContainerStatus, len(statuses))
	for i := range statuses {
		s := &statuses[i]
		trimmed[i] = corev1.ContainerStatus{
			Name: s.Name, State: trimState(&s.State), LastTerminationState: trimState(&s.LastTerminationState), Ready: s.Ready, RestartCount: s.RestartCount,
		}
	}
	return trimmed
}

// trimState keeps of the state of a container what says why it fails, briefly:
// in an outage all pods of a cluster may.
func trimState(s *corev1.ContainerState) (trimmed corev1.ContainerState) {
	if w := s.Waiting; w != nil {
		trimmed.Waiting = &corev1.ContainerStateWaiting{Reason: w.Reason, Message: defense.Brief(w.Message)}
	}
	if r := s.Running; r != nil {
		trimmed.Running = &corev1.ContainerStateRunning{StartedAt: r.StartedAt}
	}
	if t := s.Terminated; t != nil {
		trimmed.Terminated = &corev1.ContainerStateTerminated{
			ExitCode: t.ExitCode, Reason: t.Reason, Message: defense.Brief(t.Message), StartedAt: t.StartedAt, FinishedAt: t.FinishedAt,
		}
	}
	return trimmed
}

// TrimNamespace keeps of a namespace's managed fields only the entries that
// tell since when it is enrolled.
func TrimNamespace(obj any) (any, error) {
	ns, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	ns.Annotations = nil
	kept := ns.ManagedFields[:0:0]
	for i := range ns.ManagedFields {
		if defense.OwnsEnrolment(&ns.ManagedFields[i]) {
			kept = append(kept, ns.ManagedFields[i])
		}
	}
	ns.ManagedFields = kept
	return ns, nil
}
