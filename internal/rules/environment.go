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
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/ext"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/cel/library"
)

// available lists the functions that an expression may call. A function that a new version of a
// library adds is not available, since one function without a bound could stop all checks. A call
// cannot be interrupted, so each function is quick for each argument, or has a limit in limits.
var available = sets.New(
	operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot, operators.Conditional, operators.NotStrictlyFalse,
	operators.Equals, operators.NotEquals, operators.In,
	operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals,
	operators.Index, operators.OptIndex, operators.OptSelect,
	operators.Add, operators.Subtract, operators.Multiply, operators.Divide, operators.Modulo, operators.Negate,
	overloads.Size, overloads.Contains, overloads.StartsWith, overloads.EndsWith, functionMatches,
	"lowerAscii", "trim", "substring", "split", functionLast, "sets.contains", "sets.equivalent", "sets.intersects",
	overloads.TypeConvertDyn, overloads.TypeConvertType, overloads.TypeConvertInt, overloads.TypeConvertDouble,
	overloads.TypeConvertString, overloads.TypeConvertTimestamp, overloads.TypeConvertDuration,
	"optional.of", "optional.ofNonZeroValue", "optional.none", "hasValue", "value", "or", "orValue",
	"quantity", "isQuantity", "isLessThan", "isGreaterThan", "compareTo", "add", "sub", "sign", "isInteger", "asInteger",
	"asApproximateFloat",
)

const functionMatches = overloads.Matches

// functionLast returns the last entry of a list.
const functionLast = "last"

func last(list ref.Val) ref.Val {
	l, ok := list.(traits.Lister)
	if !ok {
		return types.MaybeNoSuchOverloadErr(list)
	}
	if entries(l) == 0 {
		return types.NewErr("last: the list is empty")
	}
	return l.Get(types.Int(entries(l) - 1))
}

const (
	// maxMatched and maxSplit bound the texts of matches and split, in bytes.
	maxMatched, maxSplit = 16 << 10, 4 << 10
	// maxJoined bounds a text that + makes, in bytes.
	maxJoined = 64 << 10
	// maxQuantity bounds the text of a quantity, in bytes: 1e20000000 would take hours.
	maxQuantity = 32
	// maxExponent bounds the exponent of a quantity, in digits.
	maxExponent = 2
	// maxCompared bounds the values that one comparison reads.
	maxCompared = 100_000
)

// limits has the limits of functions: a result that is not nil replaces the call.
var limits = map[string]func(args []ref.Val) ref.Val{
	operators.Add: func(args []ref.Val) ref.Val {
		switch a := args[0].(type) {
		case types.String:
			if b, ok := args[1].(types.String); ok && len(a)+len(b) > maxJoined {
				return tooLong("+", len(a)+len(b), maxJoined)
			}
		case traits.MutableLister: // of the macros map and filter
		case traits.Lister, types.Bytes:
			// A list could contain the previous list twice, and so on.
			return types.NewErr("+ cannot join lists")
		default: // a number, or a time
		}
		return nil
	},
	operators.Equals:    func(args []ref.Val) ref.Val { return compareLimit(args[0], 1, args[1], 1) },
	operators.NotEquals: func(args []ref.Val) ref.Val { return compareLimit(args[0], 1, args[1], 1) },
	operators.In: func(args []ref.Val) ref.Val {
		if list, ok := args[1].(traits.Lister); ok {
			return compareLimit(args[0], entries(list), list, 1)
		}
		return nil
	},
	"sets.contains":   setsLimit,
	"sets.equivalent": setsLimit,
	"sets.intersects": setsLimit,
	functionMatches:   func(args []ref.Val) ref.Val { return limitText(functionMatches, args[0], maxMatched) },
	"split":           func(args []ref.Val) ref.Val { return limitText("split", args[0], maxSplit) },
	"quantity":        func(args []ref.Val) ref.Val { return limitQuantity(args[0]) },
	"isQuantity": func(args []ref.Val) ref.Val {
		if limitQuantity(args[0]) != nil {
			return types.False
		}
		return nil
	},
}

func limitText(function string, v ref.Val, atMost int) ref.Val {
	if s, ok := v.(types.String); ok && len(s) > atMost {
		return tooLong(function, len(s), atMost)
	}
	return nil
}

func tooLong(function string, bytes, atMost int) ref.Val {
	return types.NewErr("a text of %d bytes is too long for %s: at most %d are allowed", bytes, function, atMost)
}

func limitQuantity(v ref.Val) ref.Val {
	if err := limitText("quantity", v, maxQuantity); err != nil {
		return err
	}
	s, _ := v.(types.String)
	if i := strings.LastIndexAny(string(s), "eE"); i >= 0 && len(strings.TrimLeft(string(s[i+1:]), "+-")) > maxExponent {
		return types.NewErr("quantity: an exponent has at most %d digits", maxExponent)
	}
	return nil
}

// compareLimit returns the error of a comparison of values that are too large; nil if they are not.
// The comparison reads a whole value at most timesA or timesB times, and no more of one value than
// of the other. Without this limit, lists that contain the same list twice at each level would take
// exponential time: the libraries count the cost of the outer list only.
func compareLimit(a ref.Val, timesA int, b ref.Val, timesB int) ref.Val {
	if weigh(a)*timesA <= maxCompared || weigh(b)*timesB <= maxCompared {
		return nil
	}
	return types.NewErr("values are too large to be compared: at most %d values are allowed, each 64 bytes of a string count as one",
		maxCompared)
}

// setsLimit applies compareLimit to each entry of one list with each entry of another.
func setsLimit(args []ref.Val) ref.Val {
	a, ok := args[0].(traits.Lister)
	b, also := args[1].(traits.Lister)
	if !ok || !also {
		return types.MaybeNoSuchOverloadErr(args[0])
	}
	return compareLimit(a, entries(b), b, entries(a))
}

// weigh counts the values within a value, with each 64 bytes of a string as one, up to one more
// than a comparison may read.
func weigh(v ref.Val) int {
	left := maxCompared
	weighed(v, &left)
	return maxCompared - left
}

func weighed(v ref.Val, left *int) {
	if *left--; *left < 0 {
		return
	}
	switch v := v.(type) {
	case types.String:
		*left = max(*left-len(v)/64, -1)
	case *types.Optional:
		if v.HasValue() {
			weighed(v.GetValue(), left)
		}
	case traits.Lister:
		for i := 0; i < entries(v) && *left >= 0; i++ {
			weighed(v.Get(types.Int(i)), left)
		}
	case traits.Mapper:
		if *left -= entries(v); *left < 0 { // an iterator copies the keys
			*left = -1
			return
		}
		for it := v.Iterator(); *left >= 0 && it.HasNext() == types.True; {
			weighed(v.Get(it.Next()), left)
		}
	default:
	}
}

func entries(of traits.Sizer) int {
	n, _ := of.Size().(types.Int)
	return int(n)
}

// environments has the environments of the compiler by scope.
type environments struct {
	scopes map[Scope]*cel.Env
	// calls has the functions with a limit, by their names and the names of their overloads.
	calls map[string]functions.FunctionOp
}

// base returns the environments. They are made once, since that takes long.
var base = sync.OnceValue(func() environments {
	made, err := cel.NewCustomEnv(
		// The macros of optional values copy their operand: each macro of a chain doubles the syntax tree.
		cel.OptionalTypes(cel.OptionalTypesVersion(0)), cel.ClearMacros(),
		cel.StdLib(), ext.Strings(), ext.Sets(), library.Quantity(),
		cel.HomogeneousAggregateLiterals(), cel.EagerlyValidateDeclarations(true), cel.DefaultUTCTimeZone(true),
		cel.CrossTypeNumericComparisons(true),
		cel.Function(functionLast, cel.MemberOverload("list_last", []*cel.Type{cel.ListType(cel.TypeParamType("T"))},
			cel.TypeParamType("T"), cel.UnaryBinding(last))),
	)
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
	e := environments{scopes: map[Scope]*cel.Env{}, calls: map[string]functions.FunctionOp{}}
	for scope, vars := range map[Scope][]cel.EnvOption{
		PerPod:    append(dyn(varPod), ofRelease...),
		PerBatch:  append([]cel.EnvOption{cel.Variable(varPods, cel.ListType(cel.DynType))}, ofRelease...),
		OfRelease: ofRelease,
		OfRequest: dyn(varObject, varOldObject, varRequest, varNamespace),
		OfResult: {
			cel.Variable(varValue, cel.DoubleType), cel.Variable(varValues, cel.ListType(cel.DoubleType)),
			cel.Variable(varSamples, cel.ListType(cel.DynType)),
		},
		OfAnswer:  append(dyn(varBody), cel.Variable(varStatus, cel.IntType)),
		OfObject:  dyn(varObject),
		OfRollout: append(dyn(varObject), cel.Variable(varSince, cel.TimestampType)),
		OfPod:     dyn(varObject, varPod, varRevision),
	} {
		if e.scopes[scope], err = made.Extend(vars...); err != nil {
			panic(fmt.Sprintf("the environment of expressions: %v", err))
		}
	}
	for name := range limits {
		bound, err := made.Functions()[name].Bindings()
		if err != nil || len(bound) == 0 {
			panic(fmt.Sprintf("the function %s has no implementation: %v", name, err))
		}
		for _, of := range bound {
			e.calls[of.Operator] = callOf(of)
		}
	}
	e.calls[operators.Equals] = func(args ...ref.Val) ref.Val { return types.Bool(types.Equal(args[0], args[1]) == types.True) }
	e.calls[operators.NotEquals] = func(args ...ref.Val) ref.Val { return types.Bool(types.Equal(args[0], args[1]) != types.True) }
	return e
})

// callOf returns a function that calls an overload as an evaluation does.
func callOf(of *functions.Overload) functions.FunctionOp {
	return func(args ...ref.Val) ref.Val {
		switch {
		case of.OperandTrait != 0 && !args[0].Type().HasTrait(of.OperandTrait):
			return types.MaybeNoSuchOverloadErr(args[0])
		case of.Unary != nil && len(args) == 1:
			return of.Unary(args[0])
		case of.Binary != nil && len(args) == 2:
			return of.Binary(args[0], args[1])
		case of.Function != nil:
			return of.Function(args...)
		default:
			return types.MaybeNoSuchOverloadErr(args[0])
		}
	}
}
