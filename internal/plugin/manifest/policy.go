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

// Package manifest reads manifests as the API server does: it refuses unknown fields and invalid values, and sets defaults.
package manifest

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/config/crd"
)

// rules are the schema of a kind, and its validators.
type rules struct {
	schema *schema.Structural
	values validation.SchemaValidator
	cel    *cel.Validator
}

var policies = sync.OnceValues(func() (*rules, error) {
	definition, props := &apiextensionsv1.CustomResourceDefinition{}, &apiextensions.JSONSchemaProps{}
	if err := yaml.Unmarshal(crd.DefensePolicies, definition); err != nil {
		return nil, err
	}
	from := definition.Spec.Versions[0].Schema.OpenAPIV3Schema
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(from, props, nil); err != nil {
		return nil, err
	}
	structural, err := schema.NewStructural(props)
	if err != nil {
		return nil, err
	}
	values, _, err := validation.NewSchemaValidator(props)
	return &rules{structural, values, cel.NewValidator(structural, true, celconfig.PerCallLimit)}, err
})

// Policy returns the policy that the API server would store for an object of kind DefensePolicy, or the error of the API server. It
// changes the object.
func Policy(ctx context.Context, o *unstructured.Unstructured) (*v1alpha1.DefensePolicy, error) {
	r, err := policies()
	if err != nil {
		return nil, fmt.Errorf("the definition of DefensePolicy: %w", err)
	}
	defaulting.Default(o.Object, r.schema)
	defaulting.PruneNonNullableNullsWithoutDefaults(o.Object, r.schema)
	unstructured.RemoveNestedField(o.Object, "status") // as a create does
	p := &v1alpha1.DefensePolicy{}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, p, true)
	if runtime.IsStrictDecodingError(err) {
		return nil, err // unknown fields; validation has better words for other errors
	}
	errs := metavalidation.ValidateObjectMetaAccessor(o, true, metavalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	errs = append(errs, validation.ValidateCustomResource(nil, o.Object, r.values)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, r.schema, o.Object)...)
	if len(errs) == 0 {
		errs, _ = r.cel.Validate(ctx, nil, r.schema, o.Object, nil, celconfig.RuntimeCELCostBudget)
	}
	if len(errs) > 0 {
		return nil, apierrors.NewInvalid(o.GroupVersionKind().GroupKind(), o.GetName(), errs)
	}
	return p, err
}
