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

package rules

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// Input has the values of the variables of rules, as JSON.
type Input struct {
	Workload, NewTemplate map[string]any
	// OldTemplate is nil if there is none.
	OldTemplate map[string]any
	Release     map[string]any
	// Pods of the batch that exist.
	Pods []Pod
	// Object is the requested object, OldObject the stored one, or nil if the request
	// creates the object, Namespace the namespace of the object.
	Object, OldObject, Request, Namespace map[string]any
	// Samples are the series of the result of a query. The variable value exists if the result
	// has one series.
	Samples []Sample
	// Status and Body are the answer of a service.
	Status int
	Body   any
}

// Sample is one series of the result of a query.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// ErrManySeries is the error of a rule that reads the variable value, although the result of the
// query has several series.
var ErrManySeries = errors.New("value exists only if the result has one series: aggregate the query with sum() or max(), " +
	"or use values")

// Crosses evaluates the rule of the scope OfResult. It reports whether the rule is true.
func (w *Watch) Crosses(ctx context.Context, of Policy, p *Program, samples []Sample) (bool, error) {
	failures, err := w.Evaluate(ctx, of, p, Input{Samples: samples}, func() {})
	if err != nil && len(samples) != 1 && strings.Contains(err.Error(), "no such attribute(s): "+varValue) {
		return false, ErrManySeries
	}
	return err == nil && len(failures) == 0, err
}

// Pod is one pod of a batch.
type Pod struct {
	Name   string
	Object map[string]any
}

// Failure is a rule that is false.
type Failure struct {
	// Pod is empty for a rule about the batch.
	Pod string
	// Rule is its index.
	Rule    int
	Message string
}

// MaxTime bounds an evaluation. One call of a function may take as long again.
const MaxTime = 500 * time.Millisecond

// maxTime is MaxTime; tests of other bounds set a longer time for busy machines.
var maxTime = MaxTime

// Evaluate evaluates all rules. It returns the first false rule of each subject, and the first
// error. Failures count beside an error.
func (p *Program) Evaluate(ctx context.Context, in Input) (failures []Failure, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxTime, fmt.Errorf("its rules took longer than %s", maxTime))
	defer cancel()
	for i, s := range in.subjects(p.scope) {
		if i > 0 && ctx.Err() != nil {
			// A subject that was not evaluated has not passed.
			if err == nil {
				err = context.Cause(ctx)
			}
			break
		}
		failed, of := p.rulesOf(ctx, s)
		if failed != nil {
			failures = append(failures, *failed)
		}
		if err == nil && of != nil {
			err = of
			if s.pod != "" {
				err = fmt.Errorf("pod %s: %w", s.pod, of)
			}
		}
	}
	return failures, err
}

// subject has the variables of one evaluation of all rules: for a pod, or for the batch, the
// release or the request if pod is empty.
type subject struct {
	pod  string
	vars map[string]any
}

func (in *Input) subjects(scope Scope) (of []subject) {
	add := func(pod, name string, value any) {
		vars := map[string]any{
			varWorkload: orNull(in.Workload), varNewTemplate: orNull(in.NewTemplate), varOldTemplate: orNull(in.OldTemplate), varRelease: in.Release,
		}
		if name != "" {
			vars[name] = value
		}
		of = append(of, subject{pod, vars})
	}
	switch scope {
	case PerPod:
		for i := range in.Pods {
			add(in.Pods[i].Name, varPod, in.Pods[i].Object)
		}
	case PerBatch:
		pods := make([]any, len(in.Pods))
		for i := range in.Pods {
			pods[i] = in.Pods[i].Object
		}
		add("", varPods, pods)
	case OfRelease:
		add("", "", nil)
	case OfResult:
		of = []subject{{vars: ofResult(in.Samples)}}
	case OfAnswer:
		if in.Body == nil {
			in.Body = types.NullValue
		}
		of = []subject{{vars: map[string]any{varStatus: in.Status, varBody: in.Body}}}
	case OfObject, OfRollout, OfPod: // Value.Eval has their variables
	case OfRequest:
		of = []subject{{vars: map[string]any{
			varObject: orNull(in.Object), varOldObject: orNull(in.OldObject), varRequest: orNull(in.Request), varNamespace: orNull(in.Namespace),
		}}}
	}
	return of
}

func ofResult(samples []Sample) map[string]any {
	values, all := make([]float64, len(samples)), make([]any, len(samples))
	for i, s := range samples {
		values[i], all[i] = s.Value, map[string]any{varValue: s.Value, "labels": s.Labels}
	}
	vars := map[string]any{varValues: values, varSamples: all}
	if len(values) == 1 {
		vars[varValue] = values[0]
	}
	return vars
}

// rulesOf evaluates the rules for one subject.
func (p *Program) rulesOf(ctx context.Context, s subject) (failed *Failure, err error) {
	s.vars[meterName] = &meter{left: maxMade}
	activation, err := cel.NewActivation(s.vars)
	if err != nil {
		return nil, err
	}
	// An error becomes a value.
	evaluate := func(x *expression) ref.Val {
		value, _, err := x.program.ContextEval(ctx, activation)
		if err != nil {
			return types.WrapErr(err)
		}
		return value
	}
	for i := range p.variables {
		// It is evaluated at its first use.
		s.vars[p.variables[i].name] = func() ref.Val { return evaluate(&p.variables[i]) }
	}
	for i := range p.rules {
		var problem error
		switch value := evaluate(&p.rules[i]).(type) {
		case types.Bool:
			if !value {
				return &Failure{Pod: s.pod, Rule: i, Message: p.rules[i].message}, err
			}
		case *types.Err:
			problem = fmt.Errorf("rules[%d]: %w", i, value)
		default:
			problem = fmt.Errorf("rules[%d] is of the type %s, and must be true or false", i, value.Type().TypeName())
		}
		if err == nil {
			err = problem
		}
		if problem != nil && ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

func orNull(object map[string]any) any {
	if object == nil {
		return types.NullValue
	}
	return object
}
