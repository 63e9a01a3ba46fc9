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

package checks

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
)

// EndpointFor reads an endpoint of a type in the operator's namespace for a policy of the operator, or of
// another namespace. It returns the reason if there is none, or if the policy may not use it; the endpoint
// is then empty.
func EndpointFor(ctx context.Context, v cluster.View, of v1alpha1.EndpointType, name string, operators bool, namespace string) (
	e *v1alpha1.DefenseEndpoint, refused string, err error,
) {
	e = &v1alpha1.DefenseEndpoint{}
	err = v.Cached.Get(ctx, types.NamespacedName{Namespace: v.Operator, Name: name}, e)
	// The same sentence: it does not say which endpoints exist.
	refused = fmt.Sprintf("no endpoint %s of type %s may be used by policies of this namespace: "+
		"ask an administrator to create it in namespace %s, or to add the namespace to its allowedNamespaces", name, of, v.Operator)
	switch {
	case apierrors.IsNotFound(err):
		return e, refused, nil
	case err != nil:
		return e, "", fmt.Errorf("get defenseendpoint %s/%s: %w", v.Operator, name, err)
	case e.Spec.Type != of:
		return &v1alpha1.DefenseEndpoint{}, refused, nil
	case operators:
		return e, "", nil
	}
	ns, err := v.Namespace(ctx, namespace)
	if err != nil {
		return e, "", err
	}
	var labels map[string]string
	if ns.Meta != nil {
		labels = ns.Meta.Labels
	}
	if !endpoint.Allows(e, namespace, labels) {
		return &v1alpha1.DefenseEndpoint{}, refused, nil
	}
	return e, "", nil
}
