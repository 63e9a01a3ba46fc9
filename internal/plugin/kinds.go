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

package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// kinds returns the native kinds, and the kinds of accepted ChangeKinds. It reads them once, and prints what is missing.
func (c *connection) kinds(ctx context.Context, api client.Client) (*workload.Registry, error) {
	if c.registry != nil {
		return c.registry, nil
	}
	registry := workload.Defended()
	var list v1alpha1.ChangeKindList
	switch err := api.List(ctx, &list); {
	case apierrors.IsForbidden(err):
		printf(c.ErrOut, "declared kinds are not known: %s\n", reasonOf(err))
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err): // no operator is installed, or an older version
	case err != nil:
		return nil, fmt.Errorf("list changekinds: %w", err)
	}
	var all []workload.Kind
	for i := range list.Items {
		kind, problem := declaredKind(ctx, api, &list.Items[i])
		if problem != "" {
			printf(c.ErrOut, "%s are not shown: %s\n", list.Items[i].Name, problem)
			continue
		}
		all = append(all, kind)
	}
	registry.Declare(all...)
	c.registry = registry
	return registry, nil
}

// skips reports whether a command goes on without the objects of a kind that it cannot list: those of a declared kind. It prints that once.
func (c *connection) skips(ctx context.Context, kind workload.Kind, err error) bool {
	d := declarationOf(kind)
	if d == nil || ctx.Err() != nil {
		return false
	}
	if !c.skipped[d.Name] {
		printf(c.ErrOut, "%s are not known: %s\n", d.Name, reasonOf(err))
		if c.skipped == nil {
			c.skipped = map[string]bool{}
		}
		c.skipped[d.Name] = true
	}
	return true
}

// knownKinds returns the kinds that were read, at least the native ones.
func (c *connection) knownKinds() *workload.Registry {
	return cmp.Or(c.registry, workload.Defended())
}

// declaredKind returns the kind of a ChangeKind that the operator accepted; the problem is empty, or why there is none.
func declaredKind(ctx context.Context, api client.Client, of *v1alpha1.ChangeKind) (kind workload.Kind, problem string) {
	said := meta.FindStatusCondition(of.Status.Conditions, v1alpha1.ConditionAccepted)
	switch {
	case said == nil:
		return nil, "the operator has not accepted the ChangeKind yet"
	case said.Status != metav1.ConditionTrue && said.Reason != v1alpha1.ReasonHaltedObjects: // then the generation before is in force
		return nil, strings.Trim(said.Reason+": "+said.Message, ": ")
	}
	served, err := servedAs(ctx, api, of)
	if err != nil {
		return nil, reasonOf(err)
	}
	accepted, problem := declared.Accept(of, served)
	if problem != "" {
		return nil, problem
	}
	return declared.NewWorkloads(accepted), ""
}

// servedAs returns how the API server serves the kind of a ChangeKind. Users may not read its CustomResourceDefinition, which is needed
// only for the path of a selector.
func servedAs(ctx context.Context, api client.Client, of *v1alpha1.ChangeKind) (served declared.Served, err error) {
	plural, group, _ := strings.Cut(of.Name, ".")
	gvk, err := api.RESTMapper().KindFor(schema.GroupVersionResource{Group: group, Version: of.Spec.Version, Resource: plural})
	if err != nil {
		return served, err
	}
	mapping, err := api.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return served, err
	}
	served = declared.Served{Kind: gvk.Kind, Namespaced: mapping.Scope.Name() == meta.RESTScopeNameNamespace}
	if p := of.Spec.Pods; p == nil || p.Find != v1alpha1.FindBySelector || p.Selector != "" || len(p.Labels) > 0 {
		return served, nil
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := api.Get(ctx, types.NamespacedName{Name: of.Name}, &crd); err != nil {
		return served, err
	}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if v.Name == gvk.Version && v.Subresources != nil && v.Subresources.Scale != nil && v.Subresources.Scale.LabelSelectorPath != nil {
			served.Selector = *v.Subresources.Scale.LabelSelectorPath
		}
	}
	return served, nil
}

// declarationOf returns the declaration of a kind; nil for a native kind.
func declarationOf(kind workload.Kind) *declared.Kind {
	if d, ok := kind.(hub.Declared); ok {
		return d.Declaration()
	}
	return nil
}

// enrolledBy reports whether labels of an object enrol it, as far as its kind requires that.
func enrolledBy(kind workload.Kind, labels map[string]string) bool {
	d := declarationOf(kind)
	return d == nil || d.Spec.Enrolment != v1alpha1.EnrolledByLabel || hub.EnrolledByLabel(labels)
}

// inNamespace selects objects of a kind in a namespace, or in all: only those with the label of the defense if the kind requires it.
func inNamespace(kind workload.Kind, namespace string) []client.ListOption {
	opts := []client.ListOption{client.InNamespace(namespace)}
	if !enrolledBy(kind, nil) {
		opts = append(opts, client.HasLabels{v1alpha1.DefenseLabel})
	}
	return slices.Clip(opts)
}

// argument names the kind of an object as an argument of kubectl.
func argument(of *metav1.TypeMeta) string {
	return workload.ArgumentOf(of.GroupVersionKind().GroupKind())
}
