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

package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get

// UnreachableNodes returns the nodes whose kubelet does not answer, according to the node
// controller: the status of their pods is old. A kubelet that reports itself not ready
// answers; a node that is gone soon has no pods. Nodes are read one by one, and only for
// a release that is about to be rolled back: a watch would be costly on large clusters.
func (v View) UnreachableNodes(ctx context.Context, names []string) (map[string]bool, error) {
	return v.nodesThat(ctx, names, func(ready corev1.ConditionStatus) bool { return ready == corev1.ConditionUnknown })
}

// NodesNotReady returns which of these nodes are not Ready, by the API server.
func (v View) NodesNotReady(ctx context.Context, names []string) (map[string]bool, error) {
	return v.nodesThat(ctx, names, func(ready corev1.ConditionStatus) bool { return ready != corev1.ConditionTrue })
}

func (v View) nodesThat(ctx context.Context, names []string, are func(ready corev1.ConditionStatus) bool) (map[string]bool, error) {
	found := map[string]bool{}
	for _, name := range names {
		var node corev1.Node
		switch err := v.Live.Get(ctx, types.NamespacedName{Name: name}, &node); {
		case apierrors.IsForbidden(err):
			// The roles of an earlier version lack this right.
			log.FromContext(ctx).Info("cannot read whether a node is Ready", "node", name, "cause", err.Error())
			return found, nil
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("get node %s: %w", name, err)
		default:
			for i := range node.Status.Conditions {
				if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady && are(c.Status) {
					found[name] = true
				}
			}
		}
	}
	return found, nil
}
