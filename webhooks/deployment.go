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

// Package webhooks serves admission of Deployments. It is thin: it reads a
// request, asks package defense, and answers with a minimal patch or a verdict.
// Where the admission check is on, it also asks AlterShield Server.
package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// Mutation must never stand in the way of users, so it may be skipped, and the
// admission check with it. The block must hold while the operator is down, so
// validation may not; in return its match conditions pick only requests that it
// denies unless it knows better. They say the same as defense.ValidateAdmission,
// except that they cannot tell the operator's own requests.
//
// Mutation asks AlterShield Server, which stores the question, except in a dry
// run; hence its side effects.

// +kubebuilder:webhook:path=/mutate-apps-v1-deployment,mutating=true,failurePolicy=ignore,matchPolicy=Equivalent,sideEffects=NoneOnDryRun,timeoutSeconds=3,reinvocationPolicy=IfNeeded,groups=apps,resources=deployments,verbs=create;update,versions=v1,name=mdeployment.kb.io,admissionReviewVersions=v1,patch=`{"namespaceSelector":{"matchLabels":{"admission-webhook-altershield":"enabled"}}}`
// +kubebuilder:webhook:path=/validate-apps-v1-deployment,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,sideEffects=None,timeoutSeconds=3,groups=apps,resources=deployments,verbs=update,versions=v1,name=vdeployment.kb.io,admissionReviewVersions=v1,patch=`{"namespaceSelector":{"matchLabels":{"admission-webhook-altershield":"enabled"}},"matchConditions":[{"name":"suspended","expression":"'altershield.defense.antgroup.com/suspend' in oldObject.metadata.?labels.orValue({})"},{"name":"released-or-resumed","expression":"object.spec.template != oldObject.spec.template || object.metadata.?labels['altershield.defense.antgroup.com/suspend'].orValue('') != oldObject.metadata.?labels['altershield.defense.antgroup.com/suspend'].orValue('')"},{"name":"neither-overridden-nor-opted-out","expression":"!(object.metadata.?labels['altershield.defense.antgroup.com/ignored-suspend'].orValue('') == 'true' && !(oldObject.metadata.?labels['altershield.defense.antgroup.com/ignored-suspend'].orValue('') == 'true' && 'altershield.defense.antgroup.com/override-stale' in oldObject.metadata.?annotations.orValue({}))) && object.metadata.?annotations['altershield.defense.antgroup.com/override'].orValue('').split(' ')[?1].orValue('') != oldObject.metadata.resourceVersion && object.metadata.?labels['altershield.defense.antgroup.com/defense'].orValue('') != 'disabled'"}]}`
// +kubebuilder:webhook:path=/quarantine-apps-v1-deployment,mutating=false,failurePolicy=ignore,matchPolicy=Equivalent,sideEffects=None,timeoutSeconds=3,groups=apps,resources=deployments,verbs=update,versions=v1,name=qdeployment.kb.io,admissionReviewVersions=v1,patch=`{"namespaceSelector":{"matchLabels":{"admission-webhook-altershield":"enabled"}},"matchConditions":[{"name":"rolled-back-before","expression":"'altershield.defense.antgroup.com/quarantined' in oldObject.metadata.?annotations.orValue({})"},{"name":"released","expression":"object.spec.template != oldObject.spec.template"},{"name":"not-opted-out","expression":"object.metadata.?labels['altershield.defense.antgroup.com/defense'].orValue('') != 'disabled'"}]}`

const (
	mutatePath     = "/mutate-apps-v1-deployment"
	validatePath   = "/validate-apps-v1-deployment"
	quarantinePath = "/quarantine-apps-v1-deployment"
)

// Options configures the webhooks.
type Options struct {
	// Self is the user name the operator runs under, as the API server sees
	// it. With the field manager of a request it tells the operator's own.
	Self string
	// Log takes the errors that the API server does not show to users.
	Log logr.Logger
	// Checker is asked before a release while the setting admission is on. Nil
	// turns the admission check off, whatever the setting says.
	Checker Checker
	// Settings reads the settings in force; required with a Checker.
	Settings func(context.Context) (settings.Settings, error)
	// Pod is this replica's own, if it is one.
	Pod types.NamespacedName
}

// SetupWithManager registers the webhooks at the manager's webhook server.
func SetupWithManager(mgr ctrl.Manager, o Options) error {
	if o.Checker != nil && o.Settings == nil {
		return errors.New("the admission check needs the settings")
	}
	server := mgr.GetWebhookServer()
	ending := isEnding(mgr.GetClient(), o.Pod)
	server.Register(mutatePath, leaving(ending, &admission.Webhook{Handler: newMutating(o)}))
	server.Register(validatePath, leaving(ending, &admission.Webhook{Handler: newValidating(o)}))
	server.Register(quarantinePath, leaving(ending, &admission.Webhook{Handler: newQuarantine(o)}))
	return nil
}

// handler answers requests; failed says what an error or a panic comes to.
type handler struct {
	// name of the webhook in metrics.
	name   string
	answer func(ctx context.Context, req *admission.Request) (admission.Response, error)
	failed func(req *admission.Request, err error) admission.Response
}

// Handle implements admission.Handler.
func (h handler) Handle(ctx context.Context, req admission.Request) (response admission.Response) {
	if !concerns(&req) {
		return admission.Allowed("")
	}
	var failure error
	defer func() {
		// controller-runtime would make it an error answer, which denies.
		if p := recover(); p != nil {
			failure = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		if failure != nil {
			response = h.failed(&req, failure)
		}
		metrics.Admission(h.name, decision(&response, failure))
	}()
	response, failure = h.answer(ctx, &req)
	return response
}

// decision is what a request came to, for metrics.
func decision(response *admission.Response, failure error) string {
	switch {
	case failure != nil:
		return "failed"
	case !response.Allowed:
		return "denied"
	case len(response.Patches) > 0:
		return "changed"
	default:
		return "unchanged"
	}
}

// concerns says whether a request writes a Deployment itself. The rules ask for
// nothing else; an installation may have changed them.
func concerns(req *admission.Request) bool {
	return req.Resource.Resource == "deployments" && req.SubResource == "" &&
		(req.Operation == admissionv1.Create || req.Operation == admissionv1.Update)
}

func newMutating(o Options) handler {
	check := newGate(o)
	return handler{
		name: "mutate",
		answer: func(ctx context.Context, req *admission.Request) (admission.Response, error) {
			request, stored, object, err := read(req, o.Self)
			if err != nil {
				return admission.Response{}, err
			}
			response := admission.Allowed("")
			if object.deleting {
				return response, nil
			}
			response.Patches = patch(object, defense.MutateAdmission(request))
			if check == nil || !mustAsk(req, &request) {
				return response, nil
			}
			denial, warning := check.pass(ctx, question(req, &request, stored, object))
			switch {
			case denial != "":
				return admission.Denied(denial), nil
			case warning != "":
				return response.WithWarnings(warning), nil
			default:
				return response, nil
			}
		},
		// The controller notices a release that passed unseen; a denied
		// request would be somebody's outage.
		failed: func(req *admission.Request, err error) admission.Response {
			o.Log.Error(err, "Deployment let pass unseen by admission", "namespace", req.Namespace, "name", req.Name)
			return admission.Allowed("")
		},
	}
}

func newValidating(o Options) handler {
	return handler{
		name:   "validate",
		answer: judge(o.Self, defense.ValidateAdmission),
		failed: func(req *admission.Request, err error) admission.Response {
			o.Log.Error(err, "Deployment cannot be validated", "namespace", req.Namespace, "name", req.Name)
			return admission.Errored(http.StatusInternalServerError, fmt.Errorf("cannot validate deployment %s", req.Name))
		},
	}
}

// newQuarantine is of the releases of versions that were rolled back. It is no
// block: where it fails, they pass, and are told of.
func newQuarantine(o Options) handler {
	return handler{
		name:   "quarantine",
		answer: judge(o.Self, defense.ValidateQuarantine),
		failed: func(req *admission.Request, err error) admission.Response {
			o.Log.Error(err, "Deployment let pass without a look at its quarantine", "namespace", req.Namespace, "name", req.Name)
			return admission.Allowed("")
		},
	}
}

// judge answers with a verdict on a request.
func judge(self string, validate func(defense.AdmissionRequest) defense.AdmissionVerdict) func(context.Context, *admission.Request) (admission.Response, error) {
	return func(_ context.Context, req *admission.Request) (admission.Response, error) {
		request, _, object, err := read(req, self)
		if err != nil {
			return admission.Response{}, err
		}
		verdict := validate(request)
		switch {
		case verdict.Allowed, object.deleting:
			return admission.Allowed(""), nil
		case verdict.Warning != "":
			return admission.Denied(verdict.Message).WithWarnings(verdict.Warning), nil
		default:
			return admission.Denied(verdict.Message), nil
		}
	}
}

// read makes a request one that defense decides on. It also returns the object
// that is stored, nil when it is being created, and the one that would be.
func read(req *admission.Request, self string) (request defense.AdmissionRequest, stored, changed *object, err error) {
	own, err := isOwn(req, self)
	if err != nil {
		return request, nil, nil, err
	}
	request = defense.AdmissionRequest{
		Operation: defense.AdmissionOperation(req.Operation),
		Own:       own,
		Kind:      "deployment",
		Namespace: req.Namespace,
		Name:      req.Name,
		User:      req.UserInfo.Username,
	}
	if changed, err = parse(req.Object.Raw); err != nil {
		return request, nil, nil, fmt.Errorf("object: %w", err)
	}
	request.New = changed.AdmissionObject
	if req.Operation == admissionv1.Update {
		if stored, err = parse(req.OldObject.Raw); err != nil {
			return request, nil, nil, fmt.Errorf("old object: %w", err)
		}
		request.Old = stored.AdmissionObject
	}
	return request, stored, changed, nil
}

// isOwn says whether the operator sent a request. The user alone does not tell:
// on a developer's machine both are the same.
func isOwn(req *admission.Request, self string) (bool, error) {
	if self == "" || req.UserInfo.Username != self || len(req.Options.Raw) == 0 {
		return false, nil
	}
	// CreateOptions, UpdateOptions and PatchOptions agree on this field.
	var options struct {
		FieldManager string `json:"fieldManager"`
	}
	if err := json.Unmarshal(req.Options.Raw, &options); err != nil {
		return false, fmt.Errorf("options: %w", err)
	}
	return options.FieldManager == v1alpha1.FieldManager, nil
}
