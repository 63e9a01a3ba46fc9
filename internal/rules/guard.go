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
	"fmt"
	"regexp/syntax"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// The cost of a call is counted when it is over, and a call cannot be interrupted. So
// what is given to one must not be so large that it takes for ever, or all memory:
// lists that hold the same list twice, and that in turn, grow with every word.

// size bounds an argument: its values, nested ones included, and the bytes of its
// strings. Without values only that of a string is bounded.
type size struct{ values, bytes int }

var (
	// usualSize is for functions that take time as their argument is long, or the
	// square of that.
	usualSize = size{5_000, 1 << 20}
	// added is for what is joined: a string would grow with every word, while a list
	// is only held.
	added = size{0, 64 << 10}
	// compared is for what is looked at once.
	compared = size{100_000, 4 << 20}
	// multiplied is for functions whose arguments multiply.
	multiplied = size{1_000, 4 << 10}
	// matched and pattern are for regular expressions.
	matched, pattern = size{1_000, 16 << 10}, size{1, 256}
)

// maxWeighed is how many values may be weighed in one evaluation.
const maxWeighed = 20_000_000

// cheap are the functions that take no longer for a larger argument, or look at it once
// and make nothing of it.
var cheap = map[string]bool{
	operators.LogicalAnd: true, operators.LogicalOr: true, operators.LogicalNot: true, operators.Conditional: true,
	operators.NotStrictlyFalse: true,
	operators.Index:            true, operators.OptIndex: true, operators.OptSelect: true,
	operators.Subtract: true, operators.Multiply: true, operators.Divide: true, operators.Modulo: true, operators.Negate: true,
	operators.Less: true, operators.LessEquals: true, operators.Greater: true, operators.GreaterEquals: true,
	"size": true, "type": true, "dyn": true, "contains": true, "startsWith": true, "endsWith": true,
	"optional.of": true, "optional.none": true, "hasValue": true, "value": true, "or": true, "orValue": true,
}

// refused are functions that make something as large as a number says. A rule, which
// is true or false, has no need of them.
var refused = map[string]bool{"lists.range": true, "format": true}

// sizeOf is how large an argument of a function may be.
func sizeOf(function string, argument int) size {
	switch function {
	case operators.Add:
		return added
	case operators.Equals, operators.NotEquals, operators.In, operators.OldIn:
		return compared
	case "replace", "join", "sets.contains", "sets.equivalent", "sets.intersects":
		return multiplied
	case "matches", "find", "findAll":
		if isPattern(function, argument) {
			return pattern
		}
		return matched
	default:
		return usualSize
	}
}

// guards bounds arguments, by the ids of their expressions.
type guards map[int64]size

// Steps of regular expressions: each x of x{500} is one. A text is compared with all of
// them at each of its characters, whatever the cost says.
const (
	// maxPattern is how many one may have.
	maxPattern = 1_000
	// maxPatterns is how many those of a check may have together that are kept with what
	// is compiled.
	maxPatterns = 5_000
)

// isPattern says that an argument of a function is a regular expression.
func isPattern(function string, argument int) bool {
	return argument == 1 && (function == "matches" || function == "find" || function == "findAll")
}

// stepsOf is how many steps a regular expression has; 0 where it is none, of which the
// compiler says more.
func stepsOf(pattern string) int {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0
	}
	compiled, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0
	}
	return len(compiled.Inst)
}

// guardedArguments are the arguments of an expression's calls that are bounded. What its
// regular expressions have is taken off the steps that are left.
func guardedArguments(of *ast.AST, steps *int) (g guards, problem string) {
	g = guards{}
	ast.PostOrderVisit(of.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind {
			return
		}
		call := e.AsCall()
		function := call.FunctionName()
		if refused[function] && problem == "" {
			problem = fmt.Sprintf("the function %s is not available in policies", function)
		}
		if cheap[function] {
			return
		}
		args := call.Args()
		if call.IsMemberFunction() {
			args = append([]ast.Expr{call.Target()}, args...)
		}
		for i, arg := range args {
			limit := sizeOf(function, i)
			if arg.Kind() != ast.LiteralKind {
				g[arg.ID()] = limit
			} else if s, ok := arg.AsLiteral().(types.String); ok && len(s) > limit.bytes && problem == "" {
				problem = fmt.Sprintf("a string of %d bytes is too long for the function %s, at most %d are allowed", len(s), function, limit.bytes)
			} else if ok && problem == "" && isPattern(function, i) {
				n := stepsOf(string(s))
				if *steps -= n; n > maxPattern || *steps < 0 {
					problem = fmt.Sprintf("a pattern is too large: at most %d steps, and %d of all patterns of the check together; x{500} has 500", maxPattern, maxPatterns)
				}
			}
		}
	}))
	return g, problem
}

// decorate lets an argument be weighed before it is given to its call. What counts the
// cost goes by these interfaces, so that each is kept.
func (g guards) decorate(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	limit, ok := g[i.ID()]
	if !ok {
		return i, nil
	}
	switch inner := i.(type) {
	case interpreter.InterpretableConst:
		return i, nil
	case interpreter.InterpretableAttribute:
		return &weighedAttribute{inner, limit}, nil
	case interpreter.InterpretableCall:
		return &weighedCall{inner, limit}, nil
	case interpreter.InterpretableConstructor:
		return &weighedConstructor{inner, limit}, nil
	default:
		return &weighed{inner, limit}, nil
	}
}

type weighed struct {
	interpreter.InterpretableV2
	limit size
}

// Exec implements interpreter.InterpretableV2.
func (w *weighed) Exec(f *interpreter.ExecutionFrame) ref.Val {
	return w.limit.weigh(f, w.InterpretableV2.Exec(f))
}

// Eval implements interpreter.InterpretableV2.
func (w *weighed) Eval(a interpreter.Activation) ref.Val { return w.Exec(interpreter.AsFrame(a)) }

type weighedAttribute struct {
	interpreter.InterpretableAttribute
	limit size
}

// Exec implements interpreter.InterpretableV2.
func (w *weighedAttribute) Exec(f *interpreter.ExecutionFrame) ref.Val {
	return w.limit.weigh(f, w.InterpretableAttribute.Exec(f))
}

// Eval implements interpreter.InterpretableV2.
func (w *weighedAttribute) Eval(a interpreter.Activation) ref.Val {
	return w.Exec(interpreter.AsFrame(a))
}

type weighedCall struct {
	interpreter.InterpretableCall
	limit size
}

// Exec implements interpreter.InterpretableV2.
func (w *weighedCall) Exec(f *interpreter.ExecutionFrame) ref.Val {
	return w.limit.weigh(f, w.InterpretableCall.Exec(f))
}

// Eval implements interpreter.InterpretableV2.
func (w *weighedCall) Eval(a interpreter.Activation) ref.Val { return w.Exec(interpreter.AsFrame(a)) }

type weighedConstructor struct {
	interpreter.InterpretableConstructor
	limit size
}

// Exec implements interpreter.InterpretableV2.
func (w *weighedConstructor) Exec(f *interpreter.ExecutionFrame) ref.Val {
	return w.limit.weigh(f, w.InterpretableConstructor.Exec(f))
}

// Eval implements interpreter.InterpretableV2.
func (w *weighedConstructor) Eval(a interpreter.Activation) ref.Val {
	return w.Exec(interpreter.AsFrame(a))
}

// meterName is under which an evaluation has its meter. No expression can say it.
const meterName = "@meter"

// meter counts what was weighed in an evaluation.
type meter struct {
	left int
	// over is nil while there is time left.
	over func() error
}

// weigh returns a value, or an error in its stead when it is too large.
func (s size) weigh(a interpreter.Activation, v ref.Val) ref.Val {
	found, _ := a.ResolveName(meterName)
	m, ok := found.(*meter)
	if !ok {
		// The compiler makes a constant of it, and of a constant pattern what is kept.
		if s == pattern {
			return types.NewErr("a pattern is either a literal, or not known before it is evaluated")
		}
		m = &meter{left: maxWeighed, over: func() error { return nil }}
	}
	if m.over() != nil {
		return types.NewErr("operation interrupted")
	}
	if text, ok := v.(types.String); ok && s == pattern && len(text) <= s.bytes && stepsOf(string(text)) > maxPattern {
		return types.NewErr("a pattern is too large: at most %d steps, of which x{500} has 500", maxPattern)
	}
	left := s
	if s.values == 0 {
		switch v.(type) {
		case types.String, types.Bytes:
			left.values = 1
		default:
			return v
		}
	}
	if !left.take(m, v) {
		return types.NewErr("a value is too large for what is done with it: at most %d values and %d bytes of strings", max(s.values, 1), s.bytes)
	}
	return v
}

// take takes what a value weighs off what is left; false when nothing is.
func (s *size) take(m *meter, v ref.Val) bool {
	s.values--
	m.left--
	if s.values < 0 || m.left < 0 {
		return false
	}
	switch v := v.(type) {
	case types.String:
		s.bytes -= len(v)
		return s.bytes >= 0
	case types.Bytes:
		s.bytes -= len(v)
		return s.bytes >= 0
	case *types.Optional:
		return !v.HasValue() || s.take(m, v.GetValue())
	case traits.Mapper:
		for it := v.Iterator(); it.HasNext() == types.True; {
			k := it.Next()
			if !s.take(m, k) || !s.take(m, v.Get(k)) {
				return false
			}
		}
	case traits.Lister:
		for it := v.Iterator(); it.HasNext() == types.True; {
			if !s.take(m, it.Next()) {
				return false
			}
		}
	default: // a number, or as small as one
	}
	return true
}
