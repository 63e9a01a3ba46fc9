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
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
)

// Value is a compiled expression of a ChangeKind. Concurrent evaluations are allowed.
type Value[T bool | string] struct{ expression }

// Object has the variables of an expression of a ChangeKind. Those outside of its scope are not read.
type Object struct {
	Object, Pod map[string]any
	// Revision is nil if there is none.
	Revision map[string]any
	Since    time.Time
}

// CompileValue compiles an expression of the scope OfObject, OfRollout or OfPod. The problem is empty if it compiles.
// hides reports whether the variable object lacks a field, of which possibly only the presence is tested; an expression
// that reads one is refused. The path is empty for the variable itself.
func CompileValue[T bool | string](
	text string, scope Scope, hides func(field []string, tested bool) bool,
) (v *Value[T], problem string) {
	defer func() {
		if r := recover(); r != nil {
			v, problem = nil, fmt.Sprintf("it cannot be compiled: %v", r)
		}
	}()
	want := cel.BoolType
	if _, isText := any(*new(T)).(string); isText {
		want = cel.StringType
	}
	env := base().scopes[scope]
	e, kind, problem := compileOne(env, text, &budget{text: maxText, steps: maxPatterns})
	if problem != "" {
		return nil, problem
	}
	parsed, _ := env.Parse(text)
	if field := readsHidden(parsed.NativeRep(), hides); field != "" {
		return nil, fmt.Sprintf("it reads %s, which has content; the operator keeps only a hash of the content: read other fields", field)
	}
	if !kind.IsExactType(want) {
		remedy := "compare it with a value: (...) == true"
		if want == cel.StringType {
			remedy = "convert it: string(...)"
		}
		return nil, fmt.Sprintf("it must be of the type %s, and is of the type %s; %s", want, kind, remedy)
	}
	return &Value[T]{e}, ""
}

// Eval evaluates the expression, within maxTime of its own: it waits for nothing else.
//
//nolint:contextcheck,nolintlint // it is about the callers, which have no context where they trim or count
func (v *Value[T]) Eval(of Object) (got T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("its evaluation failed: %v", r)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), maxTime)
	defer cancel()
	value, _, err := v.program.ContextEval(ctx, map[string]any{
		varObject: of.Object, varPod: orNull(of.Pod), varRevision: orNull(of.Revision), varSince: of.Since, meterName: &meter{left: maxMade},
	})
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("it took longer than %s", maxTime)
		}
		return got, err
	}
	got, ok := value.Value().(T)
	if !ok {
		return got, fmt.Errorf("it is of the type %s", value.Type().TypeName())
	}
	return got, nil
}

// readsHidden returns the first selection from the variable object that reads a hidden field; empty for none.
func readsHidden(parsed *ast.AST, hides func(field []string, tested bool) bool) string {
	for _, e := range ast.MatchDescendants(ast.NavigateAST(parsed), ast.KindMatcher(ast.IdentKind)) {
		if e.AsIdent() != varObject {
			continue
		}
		if path, tested := selectedFrom(e); hides(path, tested) {
			return strings.Join(append([]string{varObject}, path...), ".")
		}
	}
	return ""
}

// selectedFrom returns the names of the fields that are selected from an expression, one from another, and whether only
// the presence of the last one is read.
func selectedFrom(e ast.NavigableExpr) (path []string, tested bool) {
	for {
		parent, ok := e.Parent()
		if !ok {
			return path, false
		}
		switch parent.Kind() {
		case ast.SelectKind:
			path, tested = append(path, parent.AsSelect().FieldName()), parent.AsSelect().IsTestOnly()
		case ast.CallKind:
			call := parent.AsCall()
			name, ok := fieldOf(call)
			if !ok || call.Args()[0].ID() != e.ID() {
				return path, false
			}
			path = append(path, name)
		default:
			return path, false
		}
		if e = parent; tested {
			return path, true
		}
	}
}

// fieldOf returns the name of a field that a call selects; ok is false if the call selects none, or the name is no
// literal.
func fieldOf(call ast.CallExpr) (name string, ok bool) {
	switch call.FunctionName() {
	case operators.Index, operators.OptIndex, operators.OptSelect:
		if literal := call.Args()[1]; literal.Kind() == ast.LiteralKind {
			text, ok := literal.AsLiteral().(types.String)
			return string(text), ok
		}
	}
	return "", false
}
