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

// Package webhooks serves admission of workloads, of each kind that is defended at
// paths of its own. It is thin: it reads a request, asks package defense, and answers
// with a minimal patch or a verdict. Where the admission check is on, it also asks
// AlterShield Server.
//
//   - workload.go: the webhooks of a kind
//   - object.go, patch.go: what is read of a workload, and how it is changed
//   - caches.go: what is known of its releases, and whether it is to be held
//   - policies.go: the checks of policies at admission
//   - gate.go, check.go, budgets.go: the admission check, the question to the server, and how
//     often it is asked
//   - server.go, leaving.go: the port, and the end of a replica
//   - configurations.go: the webhook configurations, with their match conditions
package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	decide "github.com/traas-stack/altershield-operator/internal/admission"
	"github.com/traas-stack/altershield-operator/internal/hold"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Options configures the webhooks.
type Options struct {
	// Kinds of workloads that are defended.
	Kinds *workload.Registry
	// Self is the user name the operator runs under, as the API server sees it.
	// By this and by the field manager admission recognizes the operator's own
	// requests.
	Self string
	// Clock is that of the API server, by which quarantines end; by default that of
	// this machine.
	Clock clock.PassiveClock
	// Log takes the errors that the API server does not show to users.
	Log logr.Logger
	// Checker is asked before a release while the setting admission is on. Nil
	// turns the admission check off, whatever the setting says.
	Checker Checker
	// Settings reads what is in force for a workload with these annotations in
	// a namespace; required with a Checker.
	Settings func(ctx context.Context, namespace string, annotations map[string]string) (settings.InForce, error)
	// Hold reads what is in force for a workload with these labels and annotations in a
	// namespace, with what policies say of a hold, from a cache. Nil: no rollout is held
	// by admission.
	Hold func(ctx context.Context, namespace string, labels, annotations map[string]string) (settings.InForce, error)
	// HoldSteps are the times of a hold.
	HoldSteps hold.Times
	// Past reads what is known of the releases of a workload, by namespace and UID,
	// from a cache. Nil, or an error: no request is an undo.
	Past func(ctx context.Context, namespace string, uid types.UID) (rollback.Past, error)
	// Stored reports from a cache whether a workload that is to be released is stored, by the
	// UID that the request names, which is empty when it is being created. Nil: none is.
	Stored func(ctx context.Context, kind workload.Kind, namespace, name string, uid types.UID) (bool, error)
	// Policies reads from a cache which policies may count for a workload of a
	// namespace. Nil: none do at admission.
	Policies func(ctx context.Context, namespace string) (Policies, error)
	// Rules abandons evaluations of the rules of policies that do not end; required with
	// Policies.
	Rules *rules.Watch
	// Pod is this replica's own, if it is one.
	Pod types.NamespacedName
}

func (o *Options) now() time.Time {
	if o.Clock == nil {
		return clock.RealClock{}.Now()
	}
	return o.Clock.Now()
}

// SetupWithManager registers the webhooks at the manager's webhook server.
func SetupWithManager(mgr ctrl.Manager, o Options) error {
	server := mgr.GetWebhookServer()
	ending := isEnding(mgr.GetClient(), o.Pod)
	check, evaluator := newGate(o), newEvaluator(&o) // of all kinds, which share limits
	for _, kind := range o.Kinds.Kinds() {
		for path, h := range map[string]handler{
			pathOf(mutate, kind): newMutating(o, kind, check), pathOf(validate, kind): newValidating(o, kind), pathOf(quarantine, kind): newQuarantine(o, kind),
			pathOf(policy, kind): newPolicy(o, kind, evaluator),
		} {
			server.Register(path, leaving(ending, &admission.Webhook{Handler: h}))
		}
	}
	return nil
}

// handler answers requests for workloads of one kind; failed says what an error or a
// panic comes to.
type handler struct {
	kind workload.Kind
	// name of the webhook in metrics.
	name   string
	answer answerer
	failed func(req *admission.Request, err error) admission.Response
}

// Handle implements admission.Handler.
func (h handler) Handle(ctx context.Context, req admission.Request) (response admission.Response) {
	if !concerns(&req, h.kind) {
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
		metrics.Admission(h.kind.GroupVersionKind().Kind, h.name, decision(&response, failure))
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

// concerns says whether a request writes a workload of this kind itself. The rules ask
// for nothing else; an installation may have changed them.
func concerns(req *admission.Request, kind workload.Kind) bool {
	return req.Resource.Group == kind.GroupVersionKind().Group && req.Resource.Resource == kind.Resource() && req.SubResource == "" &&
		(req.Operation == admissionv1.Create || req.Operation == admissionv1.Update)
}

func newMutating(o Options, kind workload.Kind, check *gate) handler {
	return handler{
		kind: kind,
		name: mutate,
		answer: func(ctx context.Context, req *admission.Request) (admission.Response, error) {
			request, stored, object, err := read(req, &o, kind)
			if err != nil {
				return admission.Response{}, err
			}
			response := admission.Allowed("")
			if object.deleting {
				return response, nil
			}
			o.loadHold(ctx, &request)
			o.loadPast(ctx, &request, stored)
			changes := decide.Mutate(request)
			response.Patches = patch(object, changes)
			if putBack := request.PutBack(changes); putBack != "" {
				response = response.WithWarnings(putBack)
			}
			if req.DryRun == nil || !*req.DryRun {
				response = response.WithWarnings(request.UnknownWords()...)
			}
			if check == nil || !mustAsk(req, &request) {
				return response, nil
			}
			denial, warning := check.pass(ctx, question(req, &request, stored, object), &request.New)
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
		failed: passing(o.Log, "admitted a workload without mutating it, because of an error"),
	}
}

// passing lets requests pass that cannot be answered, with warnings.
func passing(log interface {
	Error(err error, msg string, keysAndValues ...any)
}, msg string, warnings ...string) func(req *admission.Request, err error) admission.Response {
	return func(req *admission.Request, err error) admission.Response {
		log.Error(err, msg, "kind", req.Kind.Kind, "namespace", req.Namespace, "name", req.Name)
		return admission.Allowed("").WithWarnings(warnings...)
	}
}

func newValidating(o Options, kind workload.Kind) handler {
	return handler{
		kind:   kind,
		name:   validate,
		answer: judge(&o, kind, decide.Validate),
		failed: func(req *admission.Request, err error) admission.Response {
			o.Log.Error(err, "a workload cannot be validated", "kind", req.Kind.Kind, "namespace", req.Namespace, "name", req.Name)
			return admission.Errored(http.StatusInternalServerError, fmt.Errorf("cannot validate %s %s", strings.ToLower(req.Kind.Kind), req.Name))
		},
	}
}

// newQuarantine is of the releases of versions that were rolled back. It is not
// a block: if it fails, they pass, and this is reported later.
func newQuarantine(o Options, kind workload.Kind) handler {
	return handler{
		kind:   kind,
		name:   quarantine,
		answer: judge(&o, kind, decide.ValidateQuarantine),
		failed: passing(o.Log, "admitted a workload without checking its quarantine, because of an error"),
	}
}

// answerer answers a request, or says why it cannot.
type answerer func(context.Context, *admission.Request) (admission.Response, error)

// judge answers with a verdict on a request. A workload that is in observe mode is
// denied nothing.
func judge(o *Options, kind workload.Kind, verdictOn func(decide.Request) decide.Verdict) answerer {
	return func(ctx context.Context, req *admission.Request) (admission.Response, error) {
		request, stored, object, err := read(req, o, kind)
		if err != nil {
			return admission.Response{}, err
		}
		o.loadPast(ctx, &request, stored)
		verdict := verdictOn(request)
		if verdict.Allowed || object.deleting {
			return admission.Allowed(""), nil
		}
		if by := observedBy(ctx, o, &request); by != "" {
			metrics.DryRun(kind.GroupVersionKind().Kind, v1alpha1.DryRunDeny)
			return admission.Allowed("").WithWarnings(verdict.AsWarning(by).Warning), nil
		}
		return admission.Denied(verdict.Message), nil
	}
}

// observedBy says what makes the workload of a request in observe mode, if
// something does, with the annotations that the request gives it. Where its settings
// are not known none has it observed; its owner does anyway, as the match conditions of
// the block say, too.
func observedBy(ctx context.Context, o *Options, r *decide.Request) string {
	var s settings.InForce
	if o.Settings != nil {
		ctx, cancel := context.WithTimeout(ctx, settingsTimeout)
		defer cancel()
		known, err := o.Settings(ctx, r.Namespace, r.New.Annotations)
		if err != nil {
			o.Log.Error(err, "treating a workload as if no setting put it into observe mode, because its settings are not known", "kind", r.Kind, "namespace", r.Namespace, "name", r.Name)
		} else {
			s = known
		}
	}
	s.ObserveOwned(r.ObservingOwner())
	return s.ObservedBy
}

// read makes a request one that package admission decides on. It also returns the object
// that is stored, nil when it is being created, and the one that would be.
func read(req *admission.Request, o *Options, kind workload.Kind) (request decide.Request, stored, changed *object, err error) {
	own, err := isOwn(req, o.Self)
	if err != nil {
		return request, nil, nil, err
	}
	request = decide.Request{
		Operation: decide.Operation(req.Operation),
		Now:       o.now(),
		Own:       own,
		Kind:      strings.ToLower(req.Kind.Kind),
		Unstamped: !kind.Stamps(),
		Namespace: req.Namespace,
		Name:      req.Name,
		User:      req.UserInfo.Username,
	}
	if changed, err = parse(req.Object.Raw, kind); err != nil {
		return request, nil, nil, fmt.Errorf("object: %w", err)
	}
	request.New = changed.Object
	if req.Operation == admissionv1.Update {
		if stored, err = parse(req.OldObject.Raw, kind); err != nil {
			return request, nil, nil, fmt.Errorf("old object: %w", err)
		}
		request.Old = stored.Object
	}
	return request, stored, changed, nil
}

// isOwn says whether the operator sent a request. The user alone is not enough:
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
