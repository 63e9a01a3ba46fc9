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
	"maps"
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
	e := &evaluation{Program: p, ctx: ctx}
	note := func(pod string, failed *Failure, of error) {
		if failed != nil {
			failed.Pod = pod
			failures = append(failures, *failed)
		}
		if err == nil && of != nil {
			err = of
			if pod != "" {
				err = fmt.Errorf("pod %s: %w", pod, of)
			}
		}
	}
	known := in.known(p.scope)
	switch p.scope {
	case OfRelease, OfRequest:
		failed, of := e.rulesOf(known, "", nil)
		note("", failed, of)
		return failures, err
	case PerBatch:
		pods := make([]any, len(in.Pods))
		for i := range in.Pods {
			pods[i] = in.Pods[i].Object
		}
		failed, of := e.rulesOf(known, varPods, pods)
		note("", failed, of)
		return failures, err
	case PerPod:
	}
	for i := range in.Pods {
		failed, of := e.rulesOf(known, varPod, in.Pods[i].Object)
		note(in.Pods[i].Name, failed, of)
		if ctx.Err() != nil {
			break
		}
	}
	return failures, err
}

// evaluation is one in the making.
type evaluation struct {
	*Program
	ctx context.Context
}

// known are the values of the names that do not depend on a subject.
func (in *Input) known(scope Scope) map[string]any {
	if scope == OfRequest {
		return map[string]any{
			varObject: orNull(in.Object), varOldObject: orNull(in.OldObject), varRequest: orNull(in.Request), varNamespace: orNull(in.Namespace),
		}
	}
	return map[string]any{
		varWorkload: orNull(in.Workload), varNewTemplate: orNull(in.NewTemplate), varOldTemplate: orNull(in.OldTemplate), varRelease: in.Release,
	}
}

// rulesOf evaluates the rules for one subject, by the name that it has if there is one,
// and the values of the others.
func (e *evaluation) rulesOf(known map[string]any, subject string, value any) (failed *Failure, err error) {
	vars := maps.Clone(known)
	vars[meterName] = &meter{left: maxMade}
	if subject != "" {
		vars[subject] = value
	}
	activation, err := cel.NewActivation(vars)
	if err != nil {
		return nil, err
	}
	for i := range e.variables {
		v := &e.variables[i]
		// Evaluated when it is first used, and kept.
		vars[v.name] = func() ref.Val { return e.value(v, activation) }
	}
	for i := range e.rules {
		value := e.value(&e.rules[i], activation)
		switch of := value.(type) {
		case types.Bool:
			if !of {
				return &Failure{Rule: i, Message: e.rules[i].message}, err
			}
		case *types.Err:
			if err == nil {
				err = fmt.Errorf("rules[%d]: %w", i, of)
			}
			if e.ctx.Err() != nil {
				return nil, err
			}
		default:
			if err == nil {
				err = fmt.Errorf("rules[%d] is of the type %s, and must be true or false", i, value.Type().TypeName())
			}
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

// value evaluates an expression; an error is a value.
func (e *evaluation) value(x *expression, activation cel.Activation) ref.Val {
	value, _, err := x.program.ContextEval(e.ctx, activation)
	if err != nil {
		return types.WrapErr(err)
	}
	return value
}
