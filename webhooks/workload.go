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

// Package webhooks serves the admission webhooks; each kind of workload has paths of its own.
// A webhook reads a request, asks package admission for a decision, and answers with a minimal
// patch or a verdict. If the admission check is on, it also asks AlterShield Server.
//
//   - workload.go: the webhooks of a kind
//   - declared.go: which declared kind a request is about
//   - object.go, patch.go: how a workload is read and changed
//   - caches.go: the releases of a workload, and its hold, from caches
//   - policies.go: policy checks at admission
//   - gate.go, check.go, budgets.go: the admission check, the question to the server, and the
//     limits of questions
//   - server.go, leaving.go: the port, and the end of a replica
//   - configurations.go: the webhook configurations with their match conditions
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
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/intercept"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/network"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Options configures the webhooks.
type Options struct {
	// Kinds of workloads that are defended.
	Kinds *workload.Registry
	// Self is the user name of the operator. Admission recognizes the operator's own
	// requests by it and by the field manager.
	Self string
	// Clock is the clock of the API server, by which quarantines end; by default the clock
	// of this machine.
	Clock clock.PassiveClock
	// Log takes errors that users do not see.
	Log logr.Logger
	// Checker is asked before a release while the setting admission is on. Nil turns the
	// admission check off.
	Checker Checker
	// Settings returns the settings in force for a workload with these annotations;
	// required with a Checker.
	Settings func(ctx context.Context, namespace string, annotations map[string]string) (settings.InForce, error)
	// Hold returns the settings in force, including the holds of policies, from a cache.
	// Nil: admission holds no rollout.
	Hold func(ctx context.Context, namespace string, labels, annotations map[string]string) (settings.InForce, error)
	// HoldSteps are the times of a hold.
	HoldSteps hold.Times
	// Past reads the releases of a workload from a cache. Nil, or an error: no request is
	// an undo.
	Past func(ctx context.Context, namespace string, uid types.UID) (rollback.Past, error)
	// Stored reports from a cache whether a workload with this UID is stored. Nil: no
	// workload is.
	Stored func(ctx context.Context, kind workload.Kind, namespace, name string, uid types.UID) (bool, error)
	// Policies reads from a cache the policies that may apply to a workload of a
	// namespace. Nil: no policies apply.
	Policies func(ctx context.Context, namespace string) (Policies, error)
	// Rules abandons evaluations of rules that do not end; required with Policies.
	Rules *rules.Watch
	// Pod is the name of this pod; empty outside of a cluster.
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
	check, evaluator := newGate(o), newEvaluator(&o) // all kinds share their limits
	noise := network.NewLog(o.Log, clock.RealClock{})
	for does, newHandler := range map[string]func(workload.Kind) admission.Handler{
		intercept.Mutate:     func(k workload.Kind) admission.Handler { return newMutating(o, k, check) },
		intercept.Validate:   func(k workload.Kind) admission.Handler { return newValidating(o, k) },
		intercept.Quarantine: func(k workload.Kind) admission.Handler { return newQuarantine(o, k) },
		intercept.Policy:     func(k workload.Kind) admission.Handler { return newPolicy(o, k, evaluator) },
	} {
		server.Register(declaredPath+does, leaving(ending, &declaredHook{o.Kinds, does, newHandler, noise}))
		for _, kind := range o.Kinds.Kinds() {
			if _, later := kind.(hub.Declared); !later {
				server.Register(pathOf(does, kind), leaving(ending, &admission.Webhook{Handler: newHandler(kind)}))
			}
		}
	}
	return nil
}

// handler answers requests for workloads of one kind.
type handler struct {
	kind workload.Kind
	// name of the webhook in metrics.
	name   string
	answer answerer
	// failed answers after an error or a panic.
	failed func(req *admission.Request, err error) admission.Response
}

// Handle implements admission.Handler.
func (h handler) Handle(ctx context.Context, req admission.Request) (response admission.Response) {
	if !concerns(&req, h.kind) {
		return admission.Allowed("")
	}
	var failure error
	defer func() {
		// controller-runtime would deny the request.
		if p := recover(); p != nil {
			failure = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		if failure != nil {
			response = h.failed(&req, failure)
		}
		metrics.Admission(workload.LabelOf(h.kind.GroupVersionKind().GroupKind()), h.name, decision(&response, failure))
	}()
	response, failure = h.answer(ctx, &req)
	return response
}

// decision returns the label of an answer in metrics.
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

// concerns reports whether a request writes a workload of this kind, and no subresource. The
// webhook rules select only such requests, unless an installation changed them.
func concerns(req *admission.Request, kind workload.Kind) bool {
	return req.Resource.Group == kind.GroupVersionKind().Group && req.Resource.Resource == kind.Resource() && req.SubResource == "" &&
		(req.Operation == admissionv1.Create || req.Operation == admissionv1.Update)
}

func newMutating(o Options, kind workload.Kind, check *gate) handler {
	return handler{
		kind: kind,
		name: intercept.Mutate,
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
		// The controller finds the release later; a denial could cause an outage.
		failed: passing(o.Log, "admitted a workload without mutating it, because of an error"),
	}
}

// passing returns a function that logs an error, and allows the request with warnings.
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
		name:   intercept.Validate,
		answer: judge(&o, kind, decide.Validate),
		failed: func(req *admission.Request, err error) admission.Response {
			o.Log.Error(err, "a workload cannot be validated", "kind", req.Kind.Kind, "namespace", req.Namespace, "name", req.Name)
			return admission.Errored(http.StatusInternalServerError, fmt.Errorf("cannot validate %s %s", strings.ToLower(req.Kind.Kind), req.Name))
		},
	}
}

// newQuarantine returns the handler that denies versions that were rolled back. If it fails,
// the release passes, and the controller reports it later.
func newQuarantine(o Options, kind workload.Kind) handler {
	return handler{
		kind:   kind,
		name:   intercept.Quarantine,
		answer: judge(&o, kind, decide.ValidateQuarantine),
		failed: passing(o.Log, "admitted a workload without checking its quarantine, because of an error"),
	}
}

// answerer answers a request, or returns an error.
type answerer func(context.Context, *admission.Request) (admission.Response, error)

// judge returns an answerer that denies by a verdict. In observe mode it warns instead.
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
			metrics.DryRun(workload.LabelOf(kind.GroupVersionKind().GroupKind()), v1alpha1.DryRunDeny)
			return admission.Allowed("").WithWarnings(verdict.AsWarning(by).Warning), nil
		}
		return admission.Denied(verdict.Message), nil
	}
}

// observedBy returns the cause of observe mode, or "". It reads the annotations of the new
// object. If the settings are not known, only an owner causes observe mode, as in
// blockConditions.
func observedBy(ctx context.Context, o *Options, r *decide.Request) string {
	var s settings.InForce
	if o.Settings != nil {
		ctx, cancel := context.WithTimeout(ctx, settingsTimeout)
		defer cancel()
		known, err := o.Settings(ctx, r.Namespace, r.New.Annotations)
		if err != nil {
			o.Log.Error(err, "treating a workload as if no setting put it into observe mode, because its settings are not known",
				"kind", r.Kind, "namespace", r.Namespace, "name", r.Name)
		} else {
			s = known
		}
	}
	s.ObserveOwned(r.ObservingOwner())
	return s.ObservedBy
}

// read converts a request for package admission. It also returns the stored object, nil when
// it is being created, and the new object.
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
		if !own {
			changed.readHalted(stored)
			request.New = changed.Object
		}
	}
	if changed.Content != nil {
		changed.Content.Generation = 1
		if stored != nil {
			changed.Content.Generation = generation(stored, changed)
		}
	}
	return request, stored, changed, nil
}

// isOwn reports whether the operator sent a request. The user name alone is not enough: on a
// developer's machine the operator runs as the developer.
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
