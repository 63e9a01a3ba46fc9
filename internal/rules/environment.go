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
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/decls"
	"github.com/google/cel-go/common/env"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"k8s.io/apimachinery/pkg/api/resource"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/library"
)

// The environment of rules is the project's own: the environment of the API server gets more
// functions with each version, and one function without a bound is enough to stop all checks.
// A call cannot be interrupted, so that each function here is quick for each argument. Some
// have a bound of their own.
const (
	// maxMatched and maxSplit are the bytes of a text for matches and split.
	maxMatched, maxSplit = 16 << 10, 4 << 10
	// maxJoined are the bytes of a text that + makes.
	maxJoined = 64 << 10
	// maxQuantity are the bytes of a quantity: the time for 1e20000000 is hours.
	maxQuantity = 32
	// maxExponent are the digits of its exponent.
	maxExponent = 2
	// maxCompared are the values that one comparison looks at.
	maxCompared = 100_000
)

const functionMatches = "matches"

// standard are the functions of the language that are quick as they are.
var standard = []string{
	operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot, operators.Conditional, operators.NotStrictlyFalse,
	// The comparison of == and != is replaced when an expression is planned.
	operators.Equals, operators.NotEquals,
	operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals, operators.Index,
	operators.Subtract, operators.Multiply, operators.Divide, operators.Modulo, operators.Negate,
	overloads.Size, overloads.Contains, overloads.StartsWith, overloads.EndsWith,
	overloads.TypeConvertDyn, overloads.TypeConvertType, overloads.TypeConvertInt, overloads.TypeConvertDouble,
	overloads.TypeConvertString, overloads.TypeConvertTimestamp, overloads.TypeConvertDuration,
}

// macros of the language.
var macros = []string{operators.Has, operators.All, operators.Exists, operators.ExistsOne, operators.Map, operators.Filter}

// base are the environments, which take long to make.
var base = sync.OnceValue(func() map[Scope]*cel.Env {
	subset := &env.LibrarySubset{IncludeMacros: macros}
	for _, name := range standard {
		subset.IncludeFunctions = append(subset.IncludeFunctions, env.NewFunction(name))
	}
	options := append([]cel.EnvOption{
		// The macros of optional values copy what they are called on: of a chain of them, the parser
		// makes twice as much with each.
		cel.OptionalTypes(cel.OptionalTypesVersion(0)), cel.ClearMacros(),
		cel.StdLib(cel.StdLibSubset(subset)),
		cel.HomogeneousAggregateLiterals(), cel.EagerlyValidateDeclarations(true), cel.DefaultUTCTimeZone(true),
		cel.CrossTypeNumericComparisons(true),
	}, bounded()...)
	made, err := cel.NewCustomEnv(options...)
	if err != nil {
		panic(fmt.Sprintf("the environment of expressions: %v", err))
	}
	dyn := func(names ...string) (vars []cel.EnvOption) {
		for _, name := range names {
			vars = append(vars, cel.Variable(name, cel.DynType))
		}
		return vars
	}
	ofRelease := append(dyn(varWorkload, varNewTemplate, varOldTemplate), cel.Variable(varRelease, cel.MapType(cel.StringType, cel.DynType)))
	envs := map[Scope]*cel.Env{}
	for scope, vars := range map[Scope][]cel.EnvOption{
		PerPod:    append(dyn(varPod), ofRelease...),
		PerBatch:  append([]cel.EnvOption{cel.Variable(varPods, cel.ListType(cel.DynType))}, ofRelease...),
		OfRelease: ofRelease,
		OfRequest: dyn(varObject, varOldObject, varRequest, varNamespace),
	} {
		if envs[scope], err = made.Extend(vars...); err != nil {
			panic(fmt.Sprintf("the environment of expressions: %v", err))
		}
	}
	return envs
})

// bounded declares the functions with a bound of their own.
func bounded() []cel.EnvOption {
	a, text, number := cel.TypeParamType("A"), cel.StringType, cel.IntType
	list, texts := cel.ListType(a), cel.ListType(cel.StringType)
	kinds := func(of ...*cel.Type) []*cel.Type { return of }
	sets := func(name, id string, made functions.BinaryOp) cel.EnvOption {
		return cel.Function(name, cel.Overload(id, kinds(list, list), cel.BoolType), cel.SingletonBinaryBinding(made, traits.IterableType))
	}
	return []cel.EnvOption{
		addition(),
		cel.Function(operators.In,
			cel.Overload(overloads.InList, kinds(a, list), cel.BoolType),
			cel.Overload(overloads.InMap, kinds(a, cel.MapType(a, cel.TypeParamType("B"))), cel.BoolType),
			cel.SingletonBinaryBinding(in)),
		cel.Function(functionMatches,
			cel.Overload(overloads.Matches, kinds(text, text), cel.BoolType),
			cel.MemberOverload(overloads.MatchesString, kinds(text, text), cel.BoolType),
			// Replaced when an expression is planned: the pattern is a literal.
			cel.SingletonBinaryBinding(func(_, pattern ref.Val) ref.Val { return types.MaybeNoSuchOverloadErr(pattern) })),
		sets("sets.contains", "list_sets_contains_list", setContains),
		sets("sets.equivalent", "list_sets_equivalent_list", setEquivalent),
		sets("sets.intersects", "list_sets_intersects_list", setIntersects),
		cel.Function("lowerAscii", cel.MemberOverload("string_lower_ascii", kinds(text), text, cel.UnaryBinding(lowerASCII))),
		cel.Function("trim", cel.MemberOverload("string_trim", kinds(text), text, cel.UnaryBinding(func(v ref.Val) ref.Val {
			return types.String(strings.TrimSpace(textOfValue(v)))
		}))),
		cel.Function("substring",
			cel.MemberOverload("string_substring_int", kinds(text, number), text, cel.FunctionBinding(substring)),
			cel.MemberOverload("string_substring_int_int", kinds(text, number, number), text, cel.FunctionBinding(substring))),
		cel.Function("split",
			cel.MemberOverload("string_split_string", kinds(text, text), texts, cel.FunctionBinding(split)),
			cel.MemberOverload("string_split_string_int", kinds(text, text, number), texts, cel.FunctionBinding(split))),
		library.Quantity(),
		cel.Function("quantity", cel.Overload("string_to_quantity", kinds(text), apiservercel.QuantityType, cel.UnaryBinding(quantity))),
		cel.Function("isQuantity", cel.Overload("is_quantity_string", kinds(text), cel.BoolType, cel.UnaryBinding(func(v ref.Val) ref.Val {
			return types.Bool(!types.IsError(quantity(v)))
		}))),
	}
}

// addition declares +, which joins no lists: a list that contains the list before twice, and
// so on, has no end. The macros map and filter use it for the list that they make.
func addition() cel.EnvOption {
	kinds := map[string]*cel.Type{
		overloads.AddInt64: cel.IntType, overloads.AddUint64: cel.UintType, overloads.AddDouble: cel.DoubleType,
		overloads.AddString: cel.StringType, overloads.AddList: cel.ListType(cel.TypeParamType("A")),
		overloads.AddDurationDuration: cel.DurationType,
	}
	options := []cel.FunctionOpt{
		decls.SingletonBinaryBinding(add, traits.AdderType),
		cel.Overload(overloads.AddTimestampDuration, []*cel.Type{cel.TimestampType, cel.DurationType}, cel.TimestampType),
		cel.Overload(overloads.AddDurationTimestamp, []*cel.Type{cel.DurationType, cel.TimestampType}, cel.TimestampType),
	}
	for id, kind := range kinds {
		options = append(options, cel.Overload(id, []*cel.Type{kind, kind}, kind))
	}
	return cel.Function(operators.Add, options...)
}

func add(a, b ref.Val) ref.Val {
	switch of := a.(type) {
	case types.String:
		if other, ok := b.(types.String); ok && len(of)+len(other) > maxJoined {
			return tooLong("+", len(of)+len(other), maxJoined)
		}
	case traits.MutableLister:
	case traits.Lister, types.Bytes:
		return types.NewErr("+ joins no lists")
	default: // a number, or a time
	}
	return a.(traits.Adder).Add(b) //nolint:errcheck // the binding asks for the trait
}

func tooLong(function string, bytes, atMost int) ref.Val {
	return types.NewErr("a text of %d bytes is too long for %s: at most %d are allowed", bytes, function, atMost)
}

func textOfValue(v ref.Val) string {
	s, _ := v.(types.String)
	return string(s)
}

func lowerASCII(v ref.Val) ref.Val {
	return types.String(strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, textOfValue(v)))
}

// substring is that of the characters from the first number on, up to the second one.
func substring(args ...ref.Val) ref.Val {
	s := textOfValue(args[0])
	from, _ := args[1].(types.Int)
	to := types.Int(len(s))
	if len(args) > 2 {
		to, _ = args[2].(types.Int)
	}
	begin, end, at := -1, -1, types.Int(0)
	for i := range s + " " { // the position behind the last character, too
		if at == from {
			begin = i
		}
		if at == to || i == len(s) && len(args) == 2 {
			end = i
		}
		at++
	}
	if begin < 0 || end < begin {
		return types.NewErr("substring: there are no characters %d to %d", from, to)
	}
	return types.String(s[begin:end])
}

// split has the parts of a text between separators; with a number at most so many.
func split(args ...ref.Val) ref.Val {
	s, n := textOfValue(args[0]), -1
	if len(s) > maxSplit {
		return tooLong("split", len(s), maxSplit)
	}
	if len(args) > 2 {
		of, _ := args[2].(types.Int)
		n = int(max(-1, min(of, maxSplit+1)))
	}
	return types.NewStringList(types.DefaultTypeAdapter, strings.SplitN(s, textOfValue(args[1]), n))
}

// quantity parses one of Kubernetes, such as 512Mi.
func quantity(v ref.Val) ref.Val {
	s := textOfValue(v)
	if len(s) > maxQuantity {
		return tooLong("quantity", len(s), maxQuantity)
	}
	if i := strings.LastIndexAny(s, "eE"); i >= 0 && len(strings.TrimLeft(s[i+1:], "+-")) > maxExponent {
		return types.NewErr("quantity: an exponent has at most %d digits", maxExponent)
	}
	q, err := resource.ParseQuantity(s)
	if err != nil {
		return types.WrapErr(err)
	}
	return apiservercel.Quantity{Quantity: &q}
}
