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
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// namespaceFacts, replicaSetFacts and podFacts are kept instead of objects that are many, or of
// which few fields matter.
type namespaceFacts struct{ enrolled bool }

type replicaSetFacts struct {
	owner types.UID
	// template identifies the pod template, content the pod template without its version label.
	template, content string
	generation        int64
	replicas          int32
	minReadySeconds   int32
	status            replicaSetCounts
	// unstamped: its template never has the version label.
	unstamped bool
}

// replicaSetCounts are the counts of the ReplicaSet controller, and the generation that it
// observed.
type replicaSetCounts struct {
	observed                   int64
	replicas, ready, available int32
}

type podFacts struct {
	owner      types.UID
	live       bool
	deleting   bool
	ready      bool
	readySince time.Time
	created    time.Time
	node       string
	// restarted: a container or a sidecar was restarted. marked: the operator marked the pod as
	// finished.
	restarted, marked bool
}

// historyFacts are kept of a version in the history that the operator keeps of a workload.
type historyFacts struct{ owner types.UID }

// factsOf returns the facts that are kept of an object.
func factsOf(o client.Object) any {
	o.SetManagedFields(nil)
	switch o := o.(type) {
	case *corev1.Namespace:
		return namespaceFacts{enrolled: o.Labels[v1alpha1.EnrolledLabel] == v1alpha1.EnrolledValue}
	case *appsv1.ReplicaSet:
		s := &o.Status
		f := replicaSetFacts{
			owner: ownerOf(o), generation: o.Generation, replicas: ptr.Deref(o.Spec.Replicas, 1), minReadySeconds: o.Spec.MinReadySeconds,
			status: replicaSetCounts{observed: s.ObservedGeneration, replicas: s.Replicas, ready: s.ReadyReplicas, available: s.AvailableReplicas},
		}
		f.template, f.content = templateOf(&o.Spec.Template)
		return f
	case *appsv1.StatefulSet:
		return likeStatefulSet(o)
	case *appsv1.DaemonSet:
		return likeDaemonSet(o)
	case *appsv1.ControllerRevision:
		if of := o.Labels[v1alpha1.HistoryOfLabel]; of != "" {
			return historyFacts{types.UID(of)}
		}
		return factsOfRevision(o)
	case *corev1.Pod:
		f := podFacts{
			owner: ownerOfPod(o), created: o.CreationTimestamp.Time, deleting: o.DeletionTimestamp != nil,
			live: o.DeletionTimestamp == nil && o.Status.Phase != corev1.PodFailed && o.Status.Phase != corev1.PodSucceeded,
			node: o.Spec.NodeName, marked: o.Labels[v1alpha1.OperateFinishedLabel] != "",
		}
		for i := range o.Status.ContainerStatuses {
			f.restarted = f.restarted || o.Status.ContainerStatuses[i].RestartCount > 0
		}
		for i := range o.Status.InitContainerStatuses { // a sidecar is one that runs
			init := &o.Status.InitContainerStatuses[i]
			f.restarted = f.restarted || init.RestartCount > 0 && init.State.Running != nil
		}
		for i := range o.Status.Conditions {
			if c := &o.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				f.ready, f.readySince = true, c.LastTransitionTime.Time
			}
		}
		return f
	default:
		return o
	}
}

func ownerOf(o metav1.Object) types.UID {
	if ref := metav1.GetControllerOf(o); ref != nil {
		return ref.UID
	}
	return ""
}

// revisionOf parses a resource version: within one cluster these are numbers in the order of all
// writes.
func revisionOf(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// factsOfRevision returns the facts of a revision of a StatefulSet or a DaemonSet; nil for other
// ControllerRevisions, as the history of the operator.
func factsOfRevision(o *appsv1.ControllerRevision) any {
	ref := metav1.GetControllerOf(o)
	if ref == nil || o.Labels[v1alpha1.HistoryOfLabel] != "" {
		return nil
	}
	mark := o.Name
	switch ref.Kind {
	case "StatefulSet":
	case "DaemonSet":
		mark = o.Labels[appsv1.ControllerRevisionHashLabelKey]
	default:
		return nil
	}
	var data struct {
		Spec struct{ Template corev1.PodTemplateSpec }
	}
	if json.Unmarshal(o.Data.Raw, &data) != nil {
		return nil
	}
	f := revisionFacts{replicaSetFacts: replicaSetFacts{owner: ref.UID, unstamped: true}, ownedBy: ownerByMark(ref.UID, mark)}
	f.template, f.content = templateOf(&data.Spec.Template)
	return f
}

// revisionFacts are kept of a revision of a StatefulSet or a DaemonSet. ownedBy is the owner of its
// pods (ownerByMark).
type revisionFacts struct {
	replicaSetFacts
	ownedBy types.UID
}

func without(m map[string]string, keys []string) map[string]string {
	m = maps.Clone(m)
	for _, key := range keys {
		delete(m, key)
	}
	if len(m) == 0 {
		return nil
	}
	return m
}

// templateOf identifies a pod template, and its content without the version label. Both ignore the
// label that the Deployment controller adds.
func templateOf(t *corev1.PodTemplateSpec) (template, content string) {
	sum := func(drop ...string) string {
		t := t.DeepCopy()
		t.Labels = without(t.Labels, drop)
		data, err := json.Marshal(t)
		if err != nil {
			panic(err) // it came out of JSON
		}
		hash := sha256.Sum256(data)
		return hex.EncodeToString(hash[:8])
	}
	const added = appsv1.DefaultDeploymentUniqueLabelKey
	return sum(added), sum(added, v1alpha1.VersionLabel)
}
