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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Names of the indexes of the cache.
const (
	// IndexByOwner indexes pods, revisions, ChangeWorkloads and ChangePods by the UID of their
	// controller, and the operator's history by the UID of its workload.
	IndexByOwner = "controller-uid"
	// IndexByOrder indexes ChangeWorkloads by the ids of their orders.
	IndexByOrder = "order-id"
	// IndexByNode indexes ChangePods and ChangeWorkloads by the ids of their order entries.
	IndexByNode = "node-id"
	// IndexByPod indexes ChangePods whose checks of policies may continue by the PodGroup of each of
	// their pods.
	IndexByPod = "pod-uid"
)

// OwnerUID returns the keys of an object in IndexByOwner.
func OwnerUID(o client.Object) []string {
	if ref := metav1.GetControllerOf(o); ref != nil {
		return []string{string(ref.UID)}
	}
	return nil
}

// HistoryOf returns the keys of a ControllerRevision in IndexByOwner: the UID of the workload whose
// version it remembers, if it is part of the operator's history.
func HistoryOf(o client.Object) []string {
	if uid := Remembers(o); uid != "" {
		return []string{string(uid)}
	}
	return nil
}

// OrderOf returns the keys of a ChangeWorkload in IndexByOrder.
func OrderOf(o client.Object) []string {
	if c, ok := o.(*v1alpha1.ChangeWorkload); ok && c.Status.OrderID != "" {
		return []string{c.Status.OrderID}
	}
	return nil
}

// NodeOf returns the keys of a ChangePod or ChangeWorkload in IndexByNode.
func NodeOf(o client.Object) []string {
	node := ""
	switch o := o.(type) {
	case *v1alpha1.ChangePod:
		node = o.Status.ChangePodID
	case *v1alpha1.ChangeWorkload:
		node = o.Status.OrderNodeID
	}
	if node == "" {
		return nil
	}
	return []string{node}
}

// PodGroup returns the end of a UID. An index by whole UIDs takes about 650 bytes per pod. There
// are only 256 groups, so a reader of the index has to filter out the other pods of the group.
func PodGroup(uid types.UID) string { return string(uid[max(len(uid)-2, 0):]) }

// Remembers returns the UID of the workload whose version a ControllerRevision remembers; empty if
// the revision is not part of the operator's history. The workload is an owner of the revision, not
// its controller: the controllers of StatefulSets and DaemonSets orphan revisions that do not match
// their selectors. In earlier builds the workload was the controller, but only Deployments were
// defended, which have no ControllerRevisions of their own.
func Remembers(r metav1.Object) types.UID {
	if of, ok := r.GetLabels()[v1alpha1.HistoryOfLabel]; ok {
		owned := slices.ContainsFunc(r.GetOwnerReferences(), func(ref metav1.OwnerReference) bool { return string(ref.UID) == of })
		if !owned {
			return ""
		}
		return types.UID(of)
	}
	ref := metav1.GetControllerOf(r)
	if ref == nil || r.GetLabels()[v1alpha1.VersionLabel] == "" ||
		KeyOf(r.GetNamespace(), ref).GroupKind != (Deployment{}).GroupVersionKind().GroupKind() {
		return ""
	}
	return ref.UID
}
