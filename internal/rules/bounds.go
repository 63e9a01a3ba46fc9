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
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// Bounds of regular expressions, in steps: x{500} has 500 of them. Each character of a text is
// compared with all steps.
const (
	// maxPattern is the number of steps of one pattern, maxPatternText the number of its bytes.
	maxPattern, maxPatternText = 1_000, 256
	// maxPatterns is the number of steps of all patterns of a check.
	maxPatterns = 5_000
)

// maxNodes is the number of nodes of the syntax tree of an expression: the compiler compares
// the type of each node with the types of all earlier nodes.
const maxNodes = 1_000

// maxNesting is the number of loops, lists and maps within one another: the compiler takes
// more and more time to find their type.
const maxNesting = 16

// unavailable returns the first problem of the syntax tree of an expression: a function that is not
// available, a pattern that is no literal or too large, or a form without a bound. It subtracts the
// steps of patterns from the steps that are left.
func unavailable(parsed *ast.AST, steps *int) (problem string) {
	nodes := ast.MatchDescendants(ast.NavigateAST(parsed), ast.AllMatcher())
	if len(nodes) > maxNodes {
		return fmt.Sprintf("it has %d nodes (names, fields, literals and calls; a loop has several), at most %d are allowed; "+
			"shorten it, or split it", len(nodes), maxNodes)
	}
	for _, e := range nodes {
		switch e.Kind() {
		case ast.CallKind:
			problem = ofCall(e.AsCall(), steps)
		case ast.ListKind:
			if len(e.AsList().OptionalIndices()) > 0 {
				problem = optionalEntry
			}
		case ast.MapKind:
			problem = ofMap(e.AsMap())
		case ast.StructKind:
			problem = fmt.Sprintf("the message %s{} is not available: write a list or a map", e.AsStruct().TypeName())
		default:
		}
		if problem == "" && nesting(e) > maxNesting {
			problem = fmt.Sprintf("it has more than %d loops, lists and maps within one another", maxNesting)
		}
		if problem != "" {
			return problem
		}
	}
	return ""
}

// nesting returns the number of loops, lists and maps around an expression, itself included.
func nesting(e ast.NavigableExpr) (n int) {
	for around := true; around; e, around = e.Parent() {
		if k := e.Kind(); k == ast.ComprehensionKind || k == ast.ListKind || k == ast.MapKind {
			n++
		}
	}
	return n
}

// optionalEntry is the problem of [?a]: if a is not optional, the error prints all of a.
const optionalEntry = "an entry of a list or map is optional, as in [?a] or {?'a': b}: use orValue() instead"

// ofMap returns the problem of a map literal. A key of the same type as the value doubles the size
// of the type, and again in each map that has this map as key and value.
func ofMap(m ast.MapExpr) string {
	for _, entry := range m.Entries() {
		of := entry.AsMapEntry()
		if of.IsOptional() {
			return optionalEntry
		}
		switch key := of.Key(); {
		case key.Kind() == ast.LiteralKind:
		case key.Kind() == ast.CallKind && slices.Contains(keyFunctions, key.AsCall().FunctionName()):
		default:
			return "a key of a map must be a literal or a call of string, int or dyn: write {string(a): b} instead of {a: b}"
		}
	}
	return ""
}

// keyFunctions have a result whose type is small.
var keyFunctions = []string{overloads.TypeConvertString, overloads.TypeConvertInt, overloads.TypeConvertDyn}

// ofCall returns the problem of a call.
func ofCall(call ast.CallExpr, steps *int) string {
	name := call.FunctionName()
	if call.IsMemberFunction() && call.Target().Kind() == ast.IdentKind {
		if space := call.Target().AsIdent(); space == "lists" || available.Has(space+"."+name) {
			name = space + "." + name
		}
	}
	switch {
	case !available.Has(name):
		return fmt.Sprintf("the function %s with %d arguments is not available; docs/reference/checks.md lists the functions",
			name, len(call.Args()))
	case name == functionMatches && len(call.Args()) > 0:
		return ofPattern(call.Args()[len(call.Args())-1], steps)
	default:
		return ""
	}
}

// ofPattern returns the problem of an expression as the pattern of matches.
func ofPattern(e ast.Expr, steps *int) string {
	if e.Kind() != ast.LiteralKind {
		return "the pattern of matches must be a literal text"
	}
	s, ok := e.AsLiteral().(types.String)
	if !ok {
		return "" // the compiler reports it
	}
	if len(s) > maxPatternText {
		return fmt.Sprintf("a pattern of %d bytes is too long for matches: at most %d are allowed", len(s), maxPatternText)
	}
	parsed, err := syntax.Parse(string(s), syntax.Perl)
	if err != nil {
		return fmt.Sprintf("the pattern of matches cannot be used: %v", err)
	}
	compiled, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return fmt.Sprintf("the pattern of matches cannot be used: %v", err)
	}
	if *steps -= len(compiled.Inst); len(compiled.Inst) > maxPattern || *steps < 0 {
		return fmt.Sprintf("a pattern is too large: at most %d steps, and %d of all patterns together; x{500} has 500",
			maxPattern, maxPatterns)
	}
	return ""
}

// Memory of a value that an expression makes, in bytes.
const (
	bytesOfValue    = 64
	bytesOfEntry    = 32  // of a list
	bytesOfMapEntry = 128 // of a map
)

// maxMade is the memory that the variables and rules of a check may make for one subject, in bytes:
// no variable is freed before the rules end.
const maxMade = 16 << 20

// meterName is the variable of the meter of an evaluation. It is no valid name in an expression.
const meterName = "@meter"

// meter counts the bytes that an evaluation may still make.
type meter struct{ left int }

// metered is an expression that makes a value, or takes time. It returns an error once the time or
// the memory of its evaluation is used up.
type metered struct{ interpreter.InterpretableV2 }

// Exec implements interpreter.InterpretableV2.
func (e *metered) Exec(f *interpreter.ExecutionFrame) ref.Val {
	found, _ := f.ResolveName(meterName)
	m := found.(*meter) //nolint:errcheck // Evaluate puts it there
	if f.CheckInterrupt() {
		return types.WrapErr(interpreter.InterruptError{})
	}
	if m.left < 0 {
		return types.NewErr("it makes more than %d MiB of strings, lists and maps", maxMade>>20)
	}
	v := e.InterpretableV2.Exec(f)
	if m.left -= made(v); m.left < 0 {
		return types.NewErr("it makes more than %d MiB of strings, lists and maps", maxMade>>20)
	}
	return v
}

// Eval implements interpreter.InterpretableV2.
func (e *metered) Eval(a interpreter.Activation) ref.Val { return e.Exec(interpreter.AsFrame(a)) }

// made returns the size of a value that a function or a literal made, in bytes. Its entries were
// counted when they were made.
func made(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return bytesOfValue + len(v)
	case types.Bool, types.Int, types.Uint, types.Double, types.Null, *types.Err:
		return 0
	case traits.MutableLister: // of map or filter, one entry longer
		return bytesOfValue
	case traits.Lister:
		return bytesOfValue + bytesOfEntry*entries(v)
	case traits.Mapper:
		return bytesOfValue + bytesOfMapEntry*entries(v)
	default: // a quantity, a time
		return 2 * bytesOfValue
	}
}

// plan wraps each call and literal of an expression with the meter, and functions with their limits.
func plan(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	switch i := i.(type) {
	case interpreter.InterpretableAttribute, interpreter.InterpretableConst:
		return i, nil
	case interpreter.InterpretableConstructor:
		return &metered{i}, nil
	case interpreter.InterpretableCall:
		call, err := limited(i)
		return &metered{call}, err
	default:
		return i, nil
	}
}

// limited wraps a call with the limits of its function, if it has any.
func limited(call interpreter.InterpretableCall) (interpreter.InterpretableCall, error) {
	limit, ok := limits[call.Function()]
	if !ok {
		return call, nil
	}
	made, ok := base().calls[call.OverloadID()]
	if !ok {
		made = base().calls[call.Function()]
	}
	if call.Function() == functionMatches {
		pattern, err := patternOf(call.Args()[1])
		if err != nil {
			return nil, err
		}
		made = func(args ...ref.Val) ref.Val {
			s, ok := args[0].(types.String)
			if !ok {
				return types.MaybeNoSuchOverloadErr(args[0])
			}
			return types.Bool(pattern.MatchString(string(s)))
		}
	}
	return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), func(args ...ref.Val) ref.Val {
		if instead := limit(args); instead != nil {
			return instead
		}
		return made(args...)
	}), nil
}

// patternOf compiles the pattern of a call of matches, once for all evaluations.
func patternOf(e interpreter.InterpretableV2) (*regexp.Regexp, error) {
	if literal, ok := e.(interpreter.InterpretableConst); ok {
		if s, ok := literal.Value().(types.String); ok {
			return regexp.Compile(string(s))
		}
	}
	return nil, errors.New("the pattern of matches must be a literal text")
}
