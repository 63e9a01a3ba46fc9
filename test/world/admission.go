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

package world

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/admission"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/webhooks"
)

// configurations returns the webhook configurations of fixed and of declared kinds.
func configurations(kinds *workload.Registry) []runtime.Object {
	all := webhooks.Configurations(kinds)
	for _, kind := range kinds.Kinds() {
		if d, ok := kind.(*declared.Workloads); ok {
			mutating, validating := d.Declaration().Webhooks()
			all = append(all, &admissionregistrationv1.MutatingWebhookConfiguration{Webhooks: mutating},
				&admissionregistrationv1.ValidatingWebhookConfiguration{Webhooks: validating})
		}
	}
	return all
}

// hooksOf returns the webhooks for a resource.
func hooksOf(kinds *workload.Registry, resource schema.GroupResource) (found hooks) {
	asked := func(rules []admissionregistrationv1.RuleWithOperations) bool {
		return slices.Contains(rules[0].APIGroups, resource.Group) && slices.Contains(rules[0].Resources, resource.Resource)
	}
	for _, configuration := range configurations(kinds) {
		switch c := configuration.(type) {
		case *admissionregistrationv1.MutatingWebhookConfiguration:
			for _, h := range c.Webhooks {
				if asked(h.Rules) {
					found.mutate = hook{h.Name, *h.ClientConfig.Service.Path}
				}
			}
		case *admissionregistrationv1.ValidatingWebhookConfiguration:
			for _, h := range c.Webhooks {
				switch {
				case !asked(h.Rules):
				case *h.FailurePolicy == admissionregistrationv1.Fail:
					found.block = hook{h.Name, *h.ClientConfig.Service.Path}
				case slices.Contains(h.Rules[0].Operations, admissionregistrationv1.Create):
					found.policy = hook{h.Name, *h.ClientConfig.Service.Path}
				default:
					found.quarantine = hook{h.Name, *h.ClientConfig.Service.Path}
				}
			}
		}
	}
	return found
}

// admission sends a write of a workload through the webhooks of a running process, as their
// configuration says. Without a process, the block denies, and every other request passes.
func (w *World) admission(ctx context.Context, before, after client.Object, fieldManager string) (client.Object, error) {
	ns, ok := w.api.objects[key{"Namespace", "", after.GetNamespace()}]
	gvk := gvkOf(after)
	if _, defended := w.kinds.Of(gvk.GroupKind()); !defended || !ok || ns.GetLabels()[v1alpha1.EnrolledLabel] != v1alpha1.EnrolledValue {
		return stripped(after), nil
	}
	hooks, ok := w.hooks[gvk.GroupKind()]
	if !ok {
		hooks = hooksOf(w.kinds, resourceOf(after))
		w.hooks[gvk.GroupKind()] = hooks
	}
	request := reviewOf(writerOf(ctx).user, before, after, fieldManager)
	alive := w.alive()
	if len(alive) == 0 || w.unreached {
		after = stripped(after)
		if blocked(before, after) {
			return nil, apierrors.NewInternalError(fmt.Errorf(`failed calling webhook %q: connection refused`, hooks.block.name))
		}
		return after, nil
	}
	p := alive[0]
	review := w.review(p, hooks.mutate, request)
	if !review.Allowed {
		return nil, w.denied(hooks.mutate.name, review)
	}
	if len(review.Patch) > 0 {
		operations, err := jsonpatch.DecodePatch(review.Patch)
		if err != nil {
			return nil, err
		}
		changed, err := operations.Apply(request.Object.Raw)
		if err != nil {
			return nil, err
		}
		made, err := scheme.New(gvk)
		if err != nil {
			return nil, err
		}
		after = asObject(made)
		if err := json.Unmarshal(changed, after); err != nil {
			return nil, err
		}
	}
	after = stripped(after)
	request = reviewOf(request.UserInfo.Username, before, after, fieldManager)
	if (before == nil || released(before, after)) && !staysOut(before, after) {
		if review := w.review(p, hooks.policy, request); !review.Allowed {
			return nil, w.denied(hooks.policy.name, review)
		}
	}
	if before == nil {
		return after, nil
	}
	if blocked(before, after) {
		if review := w.review(p, hooks.block, request); !review.Allowed {
			return nil, w.denied(hooks.block.name, review)
		}
	}
	if before.GetAnnotations()[v1alpha1.QuarantinedAnnotation] != "" && released(before, after) && !staysOut(before, after) {
		if review := w.review(p, hooks.quarantine, request); !review.Allowed {
			return nil, w.denied(hooks.quarantine.name, review)
		}
	}
	return after, nil
}

// stripped returns a workload without the field whose feature is off. An API server removes it
// after the mutating and before the validating webhooks.
func stripped(o client.Object) client.Object {
	if t := templateIn(o); t == nil || t.Spec.SchedulingGroup == nil {
		return o
	}
	o = asObject(o.DeepCopyObject())
	templateIn(o).Spec.SchedulingGroup = nil
	return o
}

// blocked reports whether the match conditions of the block's webhook hold: a blocked workload
// would be released, or its block removed, without an override. A workload that is opted out, or in
// observe mode because of its owner, before and after the request does not match.
func blocked(before, after client.Object) bool {
	if before == nil {
		return false
	}
	old, labels := before.GetLabels(), after.GetLabels()
	since, suspended := old[v1alpha1.SuspendLabel]
	now, still := labels[v1alpha1.SuspendLabel]
	overridden := labels[v1alpha1.IgnoredSuspendLabel] == v1alpha1.IgnoredSuspendValue &&
		before.GetAnnotations()[v1alpha1.OverrideStaleAnnotation] == ""
	changes := released(before, after) || !still || now != since
	owned := func(o client.Object) bool {
		of := admission.Object{Labels: o.GetLabels(), Owner: workload.OwnerOf(o)}
		return of.ObservingOwner() != ""
	}
	return suspended && changes && !overridden && !staysOut(before, after) && (!owned(before) || !owned(after))
}

// staysOut reports whether a workload is opted out before a request and after it.
func staysOut(before, after client.Object) bool {
	return (before == nil || workload.OptedOut(before.GetLabels())) && workload.OptedOut(after.GetLabels())
}

func released(before, after client.Object) bool {
	return !equality.Semantic.DeepEqual(contentOf(before), contentOf(after))
}

func reviewOf(user string, before, after client.Object, fieldManager string) *admissionv1.AdmissionRequest {
	options, err := json.Marshal(map[string]string{"fieldManager": fieldManager})
	if err != nil {
		panic(err) // it is a map of strings
	}
	gvk, resource := gvkOf(after), resourceOf(after)
	r := &admissionv1.AdmissionRequest{
		UID: types.UID("review"), Kind: metav1.GroupVersionKind(gvk),
		Resource:  metav1.GroupVersionResource{Group: resource.Group, Version: gvk.Version, Resource: resource.Resource},
		Namespace: after.GetNamespace(), Name: after.GetName(), Operation: admissionv1.Create,
		UserInfo: authenticationv1.UserInfo{Username: user}, Object: runtime.RawExtension{Raw: textOf(after)},
		Options: runtime.RawExtension{Raw: options},
	}
	if before != nil {
		r.Operation, r.OldObject = admissionv1.Update, runtime.RawExtension{Raw: textOf(before)}
	}
	return r
}

// review calls a webhook of a process, and judges its warnings.
func (w *World) review(p *Process, h hook, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	review := p.review(h.path, request)
	for _, warning := range review.Warnings {
		w.api.violations = append(w.api.violations, w.api.judge.Text(Namespace, h.name, warning)...)
	}
	return review
}

// review calls a webhook of this process.
func (p *Process) review(path string, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"}, Request: request,
	})
	if err != nil {
		panic(err) // it is an API type
	}
	r := httptest.NewRequestWithContext(p.ctx, http.MethodPost, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	p.webhooks.ServeHTTP(answer, r)
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(answer.Body.Bytes(), &review); err != nil || review.Response == nil {
		panic(fmt.Sprintf("the webhook %s answered %s", path, answer.Body))
	}
	return review.Response
}

func (w *World) denied(webhook string, r *admissionv1.AdmissionResponse) error {
	status := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden}
	if r.Result != nil {
		w.api.violations = append(w.api.violations, w.api.judge.Text(Namespace, webhook, r.Result.Message)...)
		status.Message = fmt.Sprintf("admission webhook %q denied the request: %s", webhook, r.Result.Message)
	}
	return &apierrors.StatusError{ErrStatus: status}
}
