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

package webhooks

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	decide "github.com/traas-stack/altershield-operator/internal/admission"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/intercept"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/network"
	policies "github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/slots"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Numbers of policy checks that run at once, in all and for one namespace. Each may use a
// processor until its timeout. Policies of the operator have slots of their own, so that
// policies of namespaces do not delay them.
const (
	maxOperators            = 4
	maxOperatorsOfNamespace = 2
	maxTenants              = 4
	maxTenantsOfNamespace   = 1
)

// Policies are the policies that may apply to a workload of a namespace.
type Policies struct {
	// Policies of the namespace and of the operator's namespace, in order of precedence.
	Policies []v1alpha1.DefensePolicy
	// Operator is the name of the operator's namespace.
	Operator string
	// Namespace of the workload.
	Namespace cluster.Namespace
}

// PoliciesBy returns a function that reads Policies from a cache. Workloads are often created with their namespace,
// which the cache does not have yet: then the API server has it.
func PoliciesBy(v cluster.View) func(ctx context.Context, namespace string) (Policies, error) {
	return func(ctx context.Context, namespace string) (p Policies, err error) {
		p.Operator = v.Operator
		if p.Policies, err = v.Policies(ctx, namespace); err != nil || len(p.Policies) == 0 {
			return p, err
		}
		if p.Namespace, err = v.Namespace(ctx, namespace); err != nil || p.Namespace.Meta != nil {
			return p, err
		}
		p.Namespace, err = v.LiveNamespace(ctx, namespace)
		return p, err
	}
}

// evaluator makes the policy checks of requests for workloads of all kinds.
type evaluator struct {
	operators, tenants *slots.Slots
	watch              *rules.Watch
	// noise limits log lines that users can cause at will.
	noise *network.Log
}

func newEvaluator(o *Options) *evaluator {
	return &evaluator{
		operators: slots.New(maxOperators, maxOperatorsOfNamespace), tenants: slots.New(maxTenants, maxTenantsOfNamespace),
		watch: o.Rules, noise: network.NewLog(o.Log, clock.RealClock{}),
	}
}

// newPolicy returns the handler of policy checks at the stage Admission. If a check cannot be
// made, the request passes.
func newPolicy(o Options, kind workload.Kind, e *evaluator) handler {
	return handler{
		kind:   kind,
		name:   intercept.Policy,
		answer: e.answer(&o, kind),
		failed: passing(e.noise, "admitted a workload without the checks of policies, because of an error",
			"the checks of policies could not be made"),
	}
}

func (e *evaluator) answer(o *Options, kind workload.Kind) answerer {
	return func(ctx context.Context, req *admission.Request) (admission.Response, error) {
		request, stored, object, err := read(req, o, kind)
		if err != nil {
			return admission.Response{}, err
		}
		within, cancel := context.WithTimeout(ctx, policies.MaxAtAdmission)
		defer cancel()
		o.loadPast(within, &request, stored)
		if o.Policies == nil || object.deleting || !request.IsChecked() && !request.MayBeFrozen() {
			return admission.Allowed(""), nil
		}
		known, err := o.Policies(within, req.Namespace)
		if err != nil {
			return admission.Response{}, err
		}
		if len(known.Policies) == 0 {
			return admission.Allowed(""), nil
		}
		if known.Namespace.Meta == nil {
			return admission.Response{}, fmt.Errorf("the namespace %s was not found", req.Namespace)
		}
		if req.Namespace == known.Operator {
			return admission.Allowed(""), nil
		}
		frozen := o.validateFreeze(within, &known, &request, stored, object)
		if !frozen.Allowed {
			return admission.Denied(frozen.Message), nil
		}
		response, err := admission.Allowed(""), error(nil)
		if request.IsChecked() {
			response, err = e.check(within, o, req, &request, object, &known)
		}
		if frozen.Warning != "" && err == nil {
			response = response.WithWarnings(frozen.Warning)
		}
		return response, err
	}
}

// check makes the checks of policies that count for a request.
func (e *evaluator) check(
	ctx context.Context, o *Options, req *admission.Request, request *decide.Request, object *object, known *Policies,
) (admission.Response, error) {
	of := policies.Workload{Namespace: req.Namespace, NamespaceLabels: known.Namespace.Meta.Labels, Labels: request.New.Labels}
	checks := policies.AtAdmission(known.Policies, known.Operator, of)
	if len(checks) == 0 {
		return admission.Allowed(""), nil
	}
	in, err := inputOf(req, known.Namespace)
	if err != nil {
		return admission.Response{}, err
	}
	all := decide.Checks{
		Kind: request.Kind, Name: cmp.Or(request.Name, object.generateName),
		Checks: e.evaluate(ctx, known, req.Namespace, checks, in),
	}
	e.report(request, all.Checks)
	answer := all.Decide()
	if answer.Denial != "" {
		all.ObservedBy = observedBy(ctx, o, request)
		answer = all.Decide()
	}
	if answer.WouldDeny {
		metrics.DryRun(workload.LabelOf(object.kind.GroupVersionKind().GroupKind()), v1alpha1.DryRunDeny)
	}
	if answer.Denial != "" {
		return admission.Denied(answer.Denial).WithWarnings(answer.Warnings...), nil
	}
	return admission.Allowed("").WithWarnings(answer.Warnings...), nil
}

// report counts the results of checks, and logs checks that could not be made.
func (e *evaluator) report(r *decide.Request, checks []decide.Check) {
	for i := range checks {
		c := &checks[i]
		phase := c.Phase()
		metrics.Check(&v1alpha1.CheckStatus{Name: c.Name, Mode: c.Mode, Phase: phase})
		if phase == v1alpha1.CheckError {
			e.noise.Info("admitted a release without a check of a policy, which could not be made",
				"check", c.Name, "kind", r.Kind, "namespace", r.Namespace, "name", r.Name, "cause", c.Problem)
		}
	}
}

// evaluate makes the checks concurrently. A check without a result when the context ends has
// taken too long.
func (e *evaluator) evaluate(
	ctx context.Context, known *Policies, namespace string, checks []policies.Check, in rules.Input,
) []decide.Check {
	type outcome struct {
		of     int
		result decide.Check
	}
	results, outcomes := make([]decide.Check, len(checks)), make(chan outcome, len(checks))
	for i := range checks {
		c := &checks[i]
		results[i] = resultOf(c, tookTooLong(policies.MaxAtAdmission))
		go func() { outcomes <- outcome{i, e.make(ctx, c, known.Operator, namespace, in)} }()
	}
	for range checks {
		select {
		case o := <-outcomes:
			results[o.of] = o.result
		case <-ctx.Done():
			return results // the other checks end soon, because they have the same context
		}
	}
	return results
}

func resultOf(c *policies.Check, problem string) decide.Check {
	return decide.Check{Name: c.Name, Mode: c.Mode, Suggestion: c.Suggestion, Problem: problem}
}

func tookTooLong(limit time.Duration) string { return fmt.Sprintf("it took longer than %s", limit) }

// make waits for a slot, and makes one check.
func (e *evaluator) make(ctx context.Context, c *policies.Check, operator, namespace string, in rules.Input) (result decide.Check) {
	result = resultOf(c, "")
	defer func() {
		// A panic in this goroutine would end the process.
		if p := recover(); p != nil {
			e.noise.Error(fmt.Errorf("panic: %v\n%s", p, debug.Stack()), "a check of a policy failed", "check", c.Name)
			result = resultOf(c, "it failed, see the log of the operator")
		}
	}()
	bound, operators := e.tenants, c.IsOf(operator)
	if operators {
		bound = e.operators
	}
	release, err := bound.Acquire(ctx, slots.Work{Namespace: namespace})
	if err != nil {
		result.Problem = "too many checks are made at once"
		return result
	}
	defer func() { release() }()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	program, problem, err := rules.Compile(ctx, c.Cel, rules.OfRequest, operators)
	switch {
	case err != nil:
		result.Problem = "the compiler of rules has too much to do"
		return result
	case problem != "":
		result.Problem = problem
		return result
	}
	evaluated := release
	release = func() {} // the evaluation releases the slot
	failures, err := e.watch.Evaluate(ctx, c.Rules(operator), program, in, evaluated)
	if len(failures) > 0 {
		result.False = failures[0].Message
	}
	switch {
	case ctx.Err() != nil:
		result.Problem = tookTooLong(c.Timeout)
	case err != nil:
		result.Problem = altershield.Cut(err.Error(), maxProblem)
	}
	return result
}

// maxProblem is the length of a problem in bytes: an error of a rule may quote the object.
const maxProblem = 1024

// inputOf returns the variables of rules, as in a ValidatingAdmissionPolicy.
func inputOf(req *admission.Request, namespace cluster.Namespace) (in rules.Input, err error) {
	in.Namespace = namespace.ForRules()
	if in.Object, err = contentOf(req.Object); err != nil {
		return in, fmt.Errorf("object: %w", err)
	}
	if in.OldObject, err = contentOf(req.OldObject); err != nil {
		return in, fmt.Errorf("old object: %w", err)
	}
	in.Request, err = requestForRules(req)
	return in, err
}

// contentOf decodes an object, without its managed fields; nil if raw is empty.
func contentOf(raw runtime.RawExtension) (content map[string]any, err error) {
	if len(raw.Raw) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(raw.Raw, &content); err != nil {
		return nil, err
	}
	unstructured.RemoveNestedField(content, "metadata", "managedFields")
	return content, nil
}

// requestForRules returns a request without its objects, and without the UID of the call.
func requestForRules(req *admission.Request) (content map[string]any, err error) {
	of := req.AdmissionRequest
	of.Object, of.OldObject = runtime.RawExtension{}, runtime.RawExtension{}
	data, err := json.Marshal(of)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	if err := json.Unmarshal(data, &content); err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	for _, key := range []string{"uid", "object", "oldObject"} {
		delete(content, key)
	}
	content["dryRun"] = req.DryRun != nil && *req.DryRun
	return content, nil
}
