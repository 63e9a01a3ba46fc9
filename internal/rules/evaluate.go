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
	"fmt"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// Input is what rules are evaluated about, as JSON has it.
type Input struct {
	Workload, NewTemplate map[string]any
	// OldTemplate is nil when there is none.
	OldTemplate map[string]any
	Release     map[string]any
	// Pods of the batch that are there.
	Pods []Pod
	// Object that a request would store, OldObject that is stored, nil when it is being
	// created, the Request, and the Namespace of the object.
	Object, OldObject, Request, Namespace map[string]any
}

// Pod is one pod of a batch.
type Pod struct {
	Name   string
	Object map[string]any
}

// Failure is a rule that is false.
type Failure struct {
	// Pod is empty where it is of the batch.
	Pod string
	// Rule counts from 0.
	Rule    int
	Message string
}

// MaxTime of an evaluation. One call of a function may take as long again.
const MaxTime = 500 * time.Millisecond

// maxTime is MaxTime; tests of the other bounds, on a machine with much else to do, have
// more.
var maxTime = MaxTime

// Evaluate evaluates all rules: of each pod the first that is false. The error is the first
// there was; a rule that is false counts beside it.
func (p *Program) Evaluate(ctx context.Context, in Input) (failures []Failure, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxTime, fmt.Errorf("its rules took longer than %s", maxTime))
	defer cancel()
	for i, s := range in.subjects(p.scope) {
		if i > 0 && ctx.Err() != nil {
			// What was not looked at has not passed.
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

// subject is what the rules are evaluated for: a pod, or without one the batch, the release or
// the request, and the values of all names.
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
	case OfRequest:
		of = []subject{{vars: map[string]any{
			varObject: orNull(in.Object), varOldObject: orNull(in.OldObject), varRequest: orNull(in.Request), varNamespace: orNull(in.Namespace),
		}}}
	}
	return of
}

// rulesOf evaluates the rules for one subject.
func (p *Program) rulesOf(ctx context.Context, s subject) (failed *Failure, err error) {
	s.vars[meterName] = &meter{left: maxMade}
	activation, err := cel.NewActivation(s.vars)
	if err != nil {
		return nil, err
	}
	// An error is a value.
	evaluate := func(x *expression) ref.Val {
		value, _, err := x.program.ContextEval(ctx, activation)
		if err != nil {
			return types.WrapErr(err)
		}
		return value
	}
	for i := range p.variables {
		// Evaluated when it is first used, and kept.
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
