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

package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
)

// servedKinds reads how the API server serves kinds.
type servedKinds struct {
	live      client.Reader
	discovery discovery.DiscoveryInterface
	// crds has the last CustomResourceDefinition of each name. The reconciler has a single worker.
	crds map[string]*apiextensionsv1.CustomResourceDefinition
}

func newServedKinds(mgr ctrl.Manager) (servedKinds, error) {
	d, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return servedKinds{}, fmt.Errorf("create the client for the kinds of the API server: %w", err)
	}
	return servedKinds{live: mgr.GetAPIReader(), discovery: d, crds: map[string]*apiextensionsv1.CustomResourceDefinition{}}, nil
}

var crdKind = apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")

// crdObject returns an empty CustomResourceDefinition of the type in the cache.
func crdObject() *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(crdKind)
	return o
}

// trimCRD keeps the name and the generation of a CustomResourceDefinition.
func trimCRD(obj any) (any, error) {
	o, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	trimmed := crdObject()
	trimmed.Name, trimmed.UID, trimmed.Generation, trimmed.ResourceVersion = o.Name, o.UID, o.Generation, o.ResourceVersion
	return trimmed, nil
}

// read returns how the API server serves the kind of a ChangeKind; the problem is empty, or why it does not. gone: there is no
// such kind.
func (a *servedKinds) read(
	ctx context.Context, cached client.Reader, c *v1alpha1.ChangeKind,
) (s declared.Served, problem string, gone bool, err error) {
	crd, err := a.crd(ctx, cached, c.Name)
	switch {
	case err != nil:
		return s, "", false, err
	case crd != nil:
		s, problem = servedBy(crd, c.Spec.Version)
		return s, problem, false, nil
	default:
		s, problem, err = a.discovered(c)
		return s, problem, problem != "", err
	}
}

// crd returns the CustomResourceDefinition of a kind; nil if there is none. It is read once for each generation.
func (a *servedKinds) crd(ctx context.Context, cached client.Reader, name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	seen, known := crdObject(), a.crds[name]
	err := cached.Get(ctx, types.NamespacedName{Name: name}, seen)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get the metadata of customresourcedefinition %s: %w", name, err)
	}
	if err == nil && known != nil && known.UID == seen.UID && known.Generation == seen.Generation && isEstablished(known) {
		return known, nil
	}
	delete(a.crds, name)
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(crdKind)
	if err := a.live.Get(ctx, types.NamespacedName{Name: name}, u); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("get customresourcedefinition %s: %w", name, err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, crd); err != nil {
		return nil, fmt.Errorf("read customresourcedefinition %s: %w", name, err)
	}
	a.crds[name] = crd
	return crd, nil
}

func isEstablished(crd *apiextensionsv1.CustomResourceDefinition) bool {
	established := func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	}
	return crd.DeletionTimestamp == nil && slices.ContainsFunc(crd.Status.Conditions, established)
}

// servedBy returns how a CustomResourceDefinition serves a version of its kind.
func servedBy(crd *apiextensionsv1.CustomResourceDefinition, version string) (s declared.Served, problem string) {
	if !isEstablished(crd) {
		return s, "the CustomResourceDefinition is not established, or is being deleted"
	}
	var served []string
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if !v.Served {
			continue
		}
		served = append(served, v.Name)
		if v.Name != version {
			continue
		}
		s = declared.Served{Kind: crd.Spec.Names.Kind, Namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped}
		if v.Schema != nil {
			s.Schema = v.Schema.OpenAPIV3Schema
		}
		if v.Subresources != nil && v.Subresources.Scale != nil && v.Subresources.Scale.LabelSelectorPath != nil {
			s.Selector = *v.Subresources.Scale.LabelSelectorPath
		}
	}
	if s.Kind == "" {
		return s, fmt.Sprintf("version %s is not served; served are %s", version, strings.Join(served, ", "))
	}
	return s, ""
}

// discovered returns how the API server serves a kind without a CustomResourceDefinition, of the core or of an aggregated API.
func (a *servedKinds) discovered(c *v1alpha1.ChangeKind) (s declared.Served, problem string, err error) {
	plural, group, _ := strings.Cut(c.Name, ".")
	version := schema.GroupVersion{Group: group, Version: c.Spec.Version}.String()
	list, err := a.discovery.ServerResourcesForGroupVersion(version)
	switch {
	case apierrors.IsNotFound(err):
		return s, fmt.Sprintf("the API server has neither a CustomResourceDefinition %s nor an API %s", c.Name, version), nil
	case err != nil:
		return s, "", fmt.Errorf("list the resources of %s: %w", version, err)
	}
	for i := range list.APIResources {
		if r := &list.APIResources[i]; r.Name == plural {
			return declared.Served{Kind: r.Kind, Namespaced: r.Namespaced}, "", nil
		}
	}
	return s, fmt.Sprintf("the API %s has no resource %s", version, plural), nil
}
