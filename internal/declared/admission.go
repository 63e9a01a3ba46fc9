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

package declared

import (
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/intercept"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Webhooks returns the webhooks of the kind; none if admission only observes. They lack the Service, the bundle
// and the excluded namespaces, as the webhooks of other kinds do.
func (k *Kind) Webhooks() (mutating []admissionregistrationv1.MutatingWebhook, validating []admissionregistrationv1.ValidatingWebhook) {
	if k.Spec.Admission == v1alpha1.AdmissionObserves {
		return nil, nil
	}
	s := &intercept.Subject{
		GroupVersionKind: k.GroupVersionKind, Resource: k.Resource, Changed: k.changed(), Path: k.PathOf,
		Scope: ptr.To(admissionregistrationv1.NamespacedScope),
	}
	if k.Spec.Enrolment == v1alpha1.EnrolledByLabel {
		// It selects a request whose old or new object has the label.
		s.Objects = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: v1alpha1.DefenseLabel, Operator: metav1.LabelSelectorOpIn,
			Values: []string{v1alpha1.DefenseEnabled, v1alpha1.DefenseEnforced},
		}}}
	}
	return []admissionregistrationv1.MutatingWebhook{s.Mutating()}, s.Validating()
}

// PathOf returns the path of a webhook. It has the generation of the declaration: a replica that knows another one must
// not compute versions by it.
func (k *Kind) PathOf(does string) string {
	return fmt.Sprintf("/declared/%s/%d/%s", k.Name, k.Generation, does)
}

// changed returns CEL that is true if a request changes the content. It is never an error, which would deny all requests.
// A change of an ignored field calls the webhooks, too: CEL cannot express ignored fields.
func (k *Kind) changed() string {
	var all []string
	for i := range k.content {
		all = append(all, fieldIn("object", k.content[i].path)+" != "+fieldIn("oldObject", k.content[i].path))
	}
	return strings.Join(all, " || ")
}

// fieldIn returns CEL for the optional value of a field; none if it is within a list or a text. The path is written as
// indexes, so that a field may have the name of a reserved word.
func fieldIn(object string, path workload.Path) string {
	var maps []string
	for i, name := range path {
		if i > 0 {
			maps = append(maps, "type("+object+".orValue({})) == map")
		}
		object += "[?'" + name + "']"
	}
	if maps == nil {
		return object
	}
	return "(" + strings.Join(maps, " && ") + " ? " + object + " : optional.none())"
}
