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
	"slices"

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
// What a call makes is kept, by a variable for one, so that all of it together is
// bounded, too.

// size bounds an argument: its values, nested ones included, and the bytes of its
// strings, and of one that is itself a string. Without values only that is bounded.
type size struct{ values, bytes, text int }

var (
	// usualSize is for functions that take time as their argument is long, or the
	// square of that, or make as much of it.
	usualSize = size{5_000, 1 << 20, 64 << 10}
	// added is for what is joined: a string would grow with every word, while a list
	// is only held.
	added = size{0, 64 << 10, 64 << 10}
	// compared is for what is looked at once.
	compared = size{100_000, 4 << 20, 4 << 20}
	// multiplied is for functions whose arguments multiply, multiplier for all but the
	// first of them.
	multiplied, multiplier = size{1_000, 4 << 10, 4 << 10}, size{1_000, 1 << 10, 1 << 10}
	// matched and pattern are for regular expressions.
	matched, pattern = size{1_000, 16 << 10, 16 << 10}, size{1, 256, 256}
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
	case "replace", "join":
		if argument > 0 {
			return multiplier
		}
		return multiplied
	case "sets.contains", "sets.equivalent", "sets.intersects":
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

// guard is what is done at an expression.
type guard struct {
	// limit of what it may come to, as an argument; nil without.
	limit *size
	// makes says that what it comes to is new; function is what makes it, if one does.
	makes    bool
	function string
	// walks is the loop that this is the range of, turns the one whose condition this is,
	// and ends the one whose result this is.
	walks, turns, ends *loop
}

// guards are those of expressions, by their ids.
type guards map[int64]*guard

func (g guards) at(id int64) *guard {
	if g[id] == nil {
		g[id] = &guard{}
	}
	return g[id]
}

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

// guardsOf are those of an expression. What its regular expressions have is taken off the
// steps that are left.
func guardsOf(of *ast.AST, steps *int) (g guards, problem string) {
	g = guards{}
	ast.PostOrderVisit(of.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		found := ""
		switch e.Kind() {
		case ast.CallKind:
			if makes(of, e) {
				made := g.at(e.ID())
				made.makes, made.function = true, e.AsCall().FunctionName()
			}
			found = g.arguments(e.AsCall(), steps)
		case ast.ListKind, ast.MapKind:
			if !constant(e) {
				g.at(e.ID()).makes = true
			}
		case ast.ComprehensionKind:
			g.loop(e.AsComprehension())
		default:
		}
		if problem == "" {
			problem = found
		}
	}))
	return g, problem
}

// makes says whether a call makes something that has a size.
func makes(of *ast.AST, e ast.Expr) bool {
	switch function := e.AsCall().FunctionName(); function {
	case operators.Equals, operators.NotEquals, operators.In, operators.OldIn:
		return false
	default:
		if cheap[function] {
			return false
		}
	}
	switch of.GetType(e.ID()).Kind() {
	case types.BoolKind, types.IntKind, types.UintKind, types.DoubleKind, types.NullTypeKind:
		return false
	default:
		return true
	}
}

// constant says whether an expression is one that is made when it is compiled.
func constant(e ast.Expr) bool {
	switch e.Kind() {
	case ast.LiteralKind:
		return true
	case ast.ListKind:
		return !slices.ContainsFunc(e.AsList().Elements(), func(e ast.Expr) bool { return !constant(e) })
	case ast.MapKind:
		return !slices.ContainsFunc(e.AsMap().Entries(), func(e ast.EntryExpr) bool {
			return !constant(e.AsMapEntry().Key()) || !constant(e.AsMapEntry().Value())
		})
	default:
		return false
	}
}

// arguments bounds those of a call.
func (g guards) arguments(call ast.CallExpr, steps *int) (problem string) {
	function := call.FunctionName()
	if refused[function] {
		return fmt.Sprintf("the function %s is not available in policies", function)
	}
	if cheap[function] {
		return ""
	}
	args := call.Args()
	if call.IsMemberFunction() {
		args = append([]ast.Expr{call.Target()}, args...)
	}
	for i, arg := range args {
		limit := sizeOf(function, i)
		switch arg.Kind() {
		case ast.LiteralKind:
			if problem == "" {
				problem = ofLiteral(arg, function, i, steps)
			}
		case ast.ComprehensionKind:
			// What counts the cost must see a loop as it is.
			g.at(arg.AsComprehension().Result().ID()).limit = &limit
		default:
			g.at(arg.ID()).limit = &limit
		}
	}
	return problem
}

// ofLiteral is what is wrong with a literal as an argument.
func ofLiteral(arg ast.Expr, function string, argument int, steps *int) (problem string) {
	s, ok := arg.AsLiteral().(types.String)
	limit := sizeOf(function, argument)
	switch {
	case !ok:
	case len(s) > limit.text:
		return fmt.Sprintf("a string of %d bytes is too long for the function %s, at most %d are allowed", len(s), function, limit.text)
	case isPattern(function, argument):
		n := stepsOf(string(s))
		if *steps -= n; n > maxPattern || *steps < 0 {
			return fmt.Sprintf("a pattern is too large: at most %d steps, and %d of all patterns of the check together; x{500} has 500", maxPattern, maxPatterns)
		}
	}
	return ""
}

// decorate lets an expression be guarded. What counts the cost goes by these interfaces,
// so that each is kept.
func (g guards) decorate(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	at, ok := g[i.ID()]
	if !ok {
		return i, nil
	}
	switch inner := i.(type) {
	case interpreter.InterpretableConst:
		if at.turns != nil {
			return &weighed{inner, at}, nil
		}
		return i, nil
	case interpreter.InterpretableAttribute:
		// What it comes to was there before, or is counted where it is made.
		of := *at
		of.makes = false
		return &weighedAttribute{inner, &of}, nil
	case interpreter.InterpretableCall:
		return &weighedCall{inner, at}, nil
	case interpreter.InterpretableConstructor:
		return &weighedConstructor{inner, at}, nil
	default:
		return &weighed{inner, at}, nil
	}
}

type weighed struct {
	interpreter.InterpretableV2
	at *guard
}

// Exec implements interpreter.InterpretableV2.
func (w *weighed) Exec(f *interpreter.ExecutionFrame) ref.Val {
	return w.at.exec(f, w.InterpretableV2)
}

// Eval implements interpreter.InterpretableV2.
func (w *weighed) Eval(a interpreter.Activation) ref.Val { return w.Exec(interpreter.AsFrame(a)) }

type weighedAttribute struct {
	interpreter.InterpretableAttribute
	at *guard
}

// Exec implements interpreter.InterpretableV2.
func (w *weighedAttribute) Exec(f *interpreter.ExecutionFrame) ref.Val {
	return w.at.exec(f, w.InterpretableAttribute)
}

// Eval implements interpreter.InterpretableV2.
func (w *weighedAttribute) Eval(a interpreter.Activation) ref.Val {
	return w.Exec(interpreter.AsFrame(a))
}

type weighedCall struct {
	interpreter.InterpretableCall
	at *guard
}

// Exec implements interpreter.InterpretableV2.
func (w *weighedCall) Exec(f *interpreter.ExecutionFrame) ref.Val {
	return w.at.exec(f, w.InterpretableCall)
}

// Eval implements interpreter.InterpretableV2.
func (w *weighedCall) Eval(a interpreter.Activation) ref.Val { return w.Exec(interpreter.AsFrame(a)) }

type weighedConstructor struct {
	interpreter.InterpretableConstructor
	at *guard
}

// Exec implements interpreter.InterpretableV2.
func (w *weighedConstructor) Exec(f *interpreter.ExecutionFrame) ref.Val {
	return w.at.exec(f, w.InterpretableConstructor)
}

// Eval implements interpreter.InterpretableV2.
func (w *weighedConstructor) Eval(a interpreter.Activation) ref.Val {
	return w.Exec(interpreter.AsFrame(a))
}

// meterName is under which an evaluation has its meter. No expression can say it.
const meterName = "@meter"

// meter counts what was weighed in an evaluation, and what it made.
type meter struct {
	left int
	// made are the bytes that the rules made for one subject, and held those that a loop
	// needs while it goes on.
	made, held int
	// walked is how much work loops were, and open are those that go on.
	walked int
	open   []turning
	// over is nil while there is time left.
	over func() error
}

// meterOf is that of an evaluation; nil while the compiler makes constants.
func meterOf(a interpreter.Activation) *meter {
	found, _ := a.ResolveName(meterName)
	m, _ := found.(*meter)
	return m
}

// exec evaluates an expression, or returns an error in its stead.
func (g *guard) exec(f *interpreter.ExecutionFrame, inner interpreter.InterpretableV2) ref.Val {
	m := meterOf(f)
	if m == nil {
		return g.weigh(nil, inner.Exec(f))
	}
	if g.turns != nil {
		if m.turn(g.turns); m.spent() {
			return types.False // the loop ends, and its result is the error
		}
	}
	if g.makes && m.spent() {
		return tooMuch()
	}
	v := g.weigh(m, inner.Exec(f))
	if g.ends != nil {
		spent := m.spent()
		if m.end(g.ends); spent {
			return tooMuch()
		}
	}
	if types.IsUnknownOrError(v) {
		return v
	}
	if g.makes || g.ends != nil {
		if m.made += made(g.function, v); m.spent() {
			return tooMuch()
		}
	}
	if g.walks != nil {
		if err := m.walk(g.walks, v); err != nil {
			return err
		}
	}
	return v
}

// weigh weighs what is an argument.
func (g *guard) weigh(m *meter, v ref.Val) ref.Val {
	if g.limit == nil || types.IsUnknownOrError(v) {
		return v
	}
	return g.limit.weigh(m, v)
}

// weigh returns a value, or an error in its stead when it is too large.
func (s size) weigh(m *meter, v ref.Val) ref.Val {
	if m == nil {
		// The compiler makes a constant of it, and of a constant pattern what is kept.
		if s == pattern {
			return types.NewErr("a pattern is either a literal, or not known before it is evaluated")
		}
		m = &meter{left: maxWeighed, over: func() error { return nil }}
	}
	if m.over() != nil {
		return types.NewErr("operation interrupted")
	}
	left := s
	switch v := v.(type) {
	case types.String:
		if s == pattern && len(v) <= s.text && stepsOf(string(v)) > maxPattern {
			return types.NewErr("a pattern is too large: at most %d steps, of which x{500} has 500", maxPattern)
		}
		left.values, left.bytes = 1, s.text
	case types.Bytes:
		left.values, left.bytes = 1, s.text
	default:
		if s.values == 0 {
			return v
		}
	}
	if !left.take(m, v) {
		return types.NewErr("a value is too large for what is done with it: at most %d values and %d bytes of strings, and %d of a single one",
			max(s.values, 1), s.bytes, s.text)
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
