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
	"errors"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestUnreachableNodes: only the condition that the node controller sets counts. A missing right
// to read nodes prevents no rollback.
func TestUnreachableNodes(t *testing.T) {
	node := func(name string, kind corev1.NodeConditionType, is corev1.ConditionStatus) client.Object {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: kind, Status: is}}},
		}
	}
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	names := []string{"well", "unreachable", "unready", "pressed", "new", "gone"}
	for name, test := range map[string]struct {
		err    error
		want   []string
		failed bool
	}{
		"as they are": {nil, []string{"unreachable"}, false},
		"no right":    {apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "unreachable", nil), nil, false},
		"an outage":   {errors.New("no route to host"), nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			get := func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if test.err != nil {
					return test.err
				}
				return c.Get(ctx, key, o, opts...)
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
				node("well", corev1.NodeReady, corev1.ConditionTrue), node("unreachable", corev1.NodeReady, corev1.ConditionUnknown),
				node("unready", corev1.NodeReady, corev1.ConditionFalse), node("pressed", corev1.NodeMemoryPressure, corev1.ConditionUnknown),
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "new"}},
			).WithInterceptorFuncs(interceptor.Funcs{Get: get}).Build()
			unreachable, err := View{Live: c}.UnreachableNodes(t.Context(), names)
			got := slices.Sorted(maps.Keys(unreachable))
			if !slices.Equal(got, test.want) || (err != nil) != test.failed || err == nil && unreachable == nil {
				t.Errorf("unreachable are %q, %v; want %q", got, err, test.want)
			}
		})
	}
}
