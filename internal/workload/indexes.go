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

// Names of the indexes by which the controllers look objects up.
const (
	// IndexByOwner indexes pods, revisions, ChangeWorkloads and ChangePods by
	// the UID of their controller, and what is remembered by that of its workload.
	IndexByOwner = "controller-uid"
	// IndexByOrder indexes ChangeWorkloads by the ids of their orders.
	IndexByOrder = "order-id"
	// IndexByNode indexes ChangePods and ChangeWorkloads by their ids on the server.
	IndexByNode = "node-id"
	// IndexByPod indexes ChangePods whose checks of policies may go on by the PodGroup of
	// each of their pods.
	IndexByPod = "pod-uid"
)

// OwnerUID is the IndexByOwner of an object.
func OwnerUID(o client.Object) []string {
	if ref := metav1.GetControllerOf(o); ref != nil {
		return []string{string(ref.UID)}
	}
	return nil
}

// HistoryOf is the IndexByOwner of a ControllerRevision: the workload whose version it
// remembers, if it is the operator's.
func HistoryOf(o client.Object) []string {
	if uid := Remembers(o); uid != "" {
		return []string{string(uid)}
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

// NodeOf is the IndexByNode of a ChangePod or of a ChangeWorkload.
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

// PodGroup is what pods with the same end of their UIDs share. An index by whole UIDs
// takes some 650 bytes a pod: of these groups there are 256, and whoever looks a pod up
// sorts out the others of its group.
func PodGroup(uid types.UID) string { return string(uid[max(len(uid)-2, 0):]) }

// Remembers is the UID of the workload whose version a ControllerRevision remembers;
// empty when it is none of the operator's. The workload is no controller of it: those
// of StatefulSets and DaemonSets let go of revisions that their selectors do not match.
// It was one before that was known, and only Deployments were defended then, which
// have no ControllerRevisions of their own.
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
