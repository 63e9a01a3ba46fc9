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

// Package rules compiles and evaluates the expressions of checks of the type cel, and the expressions of ChangeKinds
// (value.go), by pure functions.
//
// A tenant may write a policy. So an expression has only functions that are quick for each
// argument, and its evaluation ends between any two calls or turns of a loop when its time or its
// memory is used up. The estimate of its cost refuses nested loops beforehand.
package rules

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/utils/lru"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// MaxCost is the largest estimated cost of an expression, in the units of the API server.
const MaxCost = celconfig.PerCallLimit

// Sizes that the estimate of the cost assumes. A larger object is evaluated as well, until
// its time or memory is used up.
const (
	usualLength = 16  // entries of a list or of a map
	usualString = 256 // characters of a string
	usualBatch  = 50  // pods
)

// Names of the variables of expressions.
const (
	varWorkload    = "workload"
	varNewTemplate = "newTemplate"
	varOldTemplate = "oldTemplate"
	varRelease     = "release"
	varPod         = "pod"
	varPods        = "pods"
	varVariables   = "variables"
	varObject      = "object"
	varOldObject   = "oldObject"
	varRequest     = "request"
	varNamespace   = "namespaceObject"
	varValue       = "value"
	varValues      = "values"
	varSamples     = "samples"
	varStatus      = "status"
	varBody        = "body"
	varRevision    = "revision"
	varSince       = "since"
)

// Scope is the subject of the rules of a check.
type Scope int

const (
	// PerPod means that rules are evaluated for each pod of a batch.
	PerPod Scope = iota
	// PerBatch means that rules are evaluated once for all pods of a batch.
	PerBatch
	// OfRelease means that rules are evaluated for a release as a whole, without its pods.
	OfRelease
	// OfRequest means that rules are evaluated for the request of a release, as in a
	// ValidatingAdmissionPolicy.
	OfRequest
	// OfResult means that the rule is evaluated for the result of a query.
	OfResult
	// OfAnswer means that the rule is evaluated for the answer of a service.
	OfAnswer
	// OfObject means that an expression is evaluated for an object of a declared kind.
	OfObject
	// OfRollout means that an expression is evaluated for an object and the time of its change.
	OfRollout
	// OfPod means that an expression is evaluated for an object and one of its pods.
	OfPod
)

// Threshold returns the rule of a failWhen as a check of the scope OfResult or OfAnswer.
func Threshold(failWhen string) *v1alpha1.CelCheck {
	return &v1alpha1.CelCheck{Rules: []v1alpha1.CelRule{{Expression: failWhen}}}
}

// ThresholdProblem returns the problem of a failWhen; empty if it compiles.
func ThresholdProblem(failWhen string, scope Scope) string {
	return strings.TrimPrefix(Problem(Threshold(failWhen), scope), "rules[0].expression: ")
}

// ScopeOf returns the scope of a check at a stage.
func ScopeOf(stage v1alpha1.PolicyStage, c *v1alpha1.CelCheck) Scope {
	switch {
	case stage == v1alpha1.StageAdmission:
		return OfRequest
	case stage == v1alpha1.StageReleasePre, stage == v1alpha1.StageReleasePost:
		return OfRelease
	case c.ForEach == v1alpha1.CelPerBatch:
		return PerBatch
	default:
		return PerPod
	}
}

// Program is a compiled check. Concurrent evaluations are allowed.
type Program struct {
	scope     Scope
	variables []expression
	rules     []expression
}

// expression is a compiled expression.
type expression struct {
	// name is set for a variable, message for a rule.
	name, message string
	program       cel.Program
}

// Compile compiles a check, or returns the program from the cache. The problem is empty, or names
// the invalid field of the check and the reason. Compile returns an error if the context ends before
// the compiler is free. Checks of the operator's policies have their own cache, so that namespaces
// with very many policies cannot evict them.
func Compile(ctx context.Context, c *v1alpha1.CelCheck, scope Scope, operators bool) (p *Program, problem string, err error) {
	return known.compile(ctx, c, scope, operators)
}

// Problem returns the problem of a check; empty if it compiles. Problems stay in the cache for
// longer than programs.
func Problem(c *v1alpha1.CelCheck, scope Scope) string { return known.problem(c, scope) }

// Compiled counts the checks that this process compiled.
func Compiled() int64 { return known.compiled.Load() }

// Sizes of the caches.
const (
	// maxOfOperator is the number of checks of the operator's policies, as many as count for a
	// workload, and maxPrograms the number of checks of other policies.
	maxOfOperator = 32
	maxPrograms   = 64
	maxProblems   = 8192
)

// maxText is the number of bytes of all expressions of a check. A program takes a hundred times
// as much memory.
const maxText = 16 << 10

var known = newCache(maxOfOperator, maxPrograms, maxProblems, compile)

// cache has programs and problems by the content and the scope of a check: the same check in many
// namespaces is compiled once.
type cache struct {
	compiler func(*v1alpha1.CelCheck, Scope) (*Program, string)
	// programs has true for checks of the operator's policies, false for all others.
	programs map[bool]*lru.Cache
	problems *lru.Cache
	// compiling is full while a check is compiled: one at a time, since that takes long, in the
	// order of the requests.
	compiling chan struct{}
	compiled  atomic.Int64
}

func newCache(operators, others, problems int, compiler func(*v1alpha1.CelCheck, Scope) (*Program, string)) *cache {
	return &cache{
		compiler: compiler, problems: lru.New(problems), compiling: make(chan struct{}, 1),
		programs: map[bool]*lru.Cache{true: lru.New(operators), false: lru.New(others)},
	}
}

type key [sha256.Size]byte

func keyOf(c *v1alpha1.CelCheck, scope Scope) key {
	data, err := json.Marshal(struct {
		*v1alpha1.CelCheck
		Scope Scope
	}{c, scope})
	if err != nil {
		panic(err) // it has only strings
	}
	return sha256.Sum256(data)
}

func (c *cache) problem(of *v1alpha1.CelCheck, scope Scope) string {
	if problem, ok := c.problems.Get(keyOf(of, scope)); ok {
		return problem.(string) //nolint:errcheck // nothing else is in it
	}
	_, problem, _ := c.compile(context.Background(), of, scope, false)
	return problem
}

// compile waits for the compiler until the context ends.
func (c *cache) compile(ctx context.Context, of *v1alpha1.CelCheck, scope Scope, operators bool) (*Program, string, error) {
	k := keyOf(of, scope)
	if p, problem := c.get(k, operators); p != nil || problem != "" {
		return p, problem, nil
	}
	select {
	case c.compiling <- struct{}{}:
		defer func() { <-c.compiling }()
	case <-ctx.Done():
		return nil, "", fmt.Errorf("the compiler of rules has too much to do: %w", ctx.Err())
	}
	if p, problem := c.get(k, operators); p != nil || problem != "" {
		return p, problem, nil
	}
	c.compiled.Add(1)
	p, problem := c.safely(of, scope)
	c.problems.Add(k, problem)
	if problem == "" {
		c.programs[operators].Add(k, p)
	}
	return p, problem, nil
}

// get returns a cached program or problem, or neither. A program of the other cache is copied into
// the given one.
func (c *cache) get(k key, operators bool) (p *Program, problem string) {
	for _, of := range []bool{operators, !operators} {
		if found, ok := c.programs[of].Get(k); ok {
			c.programs[operators].Add(k, found)
			return found.(*Program), "" //nolint:errcheck // nothing else is in it
		}
	}
	if found, ok := c.problems.Get(k); ok {
		return nil, found.(string) //nolint:errcheck // nothing else is in it
	}
	return nil, ""
}

// safely compiles a check, and turns a panic of the compiler into a problem.
func (c *cache) safely(of *v1alpha1.CelCheck, scope Scope) (p *Program, problem string) {
	defer func() {
		if r := recover(); r != nil {
			p, problem = nil, fmt.Sprintf("it cannot be compiled: %v", r)
		}
	}()
	return c.compiler(of, scope)
}

// compile compiles a check.
func compile(c *v1alpha1.CelCheck, scope Scope) (*Program, string) {
	p, left := &Program{scope: scope}, budget{text: maxText, steps: maxPatterns}
	env := base().scopes[scope]
	seen := map[string]bool{}
	for i := range c.Variables {
		v := &c.Variables[i]
		place := fmt.Sprintf("variables[%d]", i)
		name := varVariables + "." + v.Name
		if _, issues := env.Parse(name); issues.Err() != nil || seen[v.Name] {
			return nil, fmt.Sprintf("%s.name: %q is a reserved word, or another variable; choose another name", place, v.Name)
		}
		seen[v.Name] = true
		e, kind, problem := compileOne(env, v.Expression, &left)
		if problem != "" {
			return nil, place + ".expression: " + problem
		}
		e.name = name
		p.variables = append(p.variables, e)
		extended, err := env.Extend(cel.Variable(name, shallow(kind)))
		if err != nil {
			return nil, fmt.Sprintf("%s: %v", place, err)
		}
		env = extended
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		e, kind, problem := compileOne(env, r.Expression, &left)
		if problem == "" && !kind.IsExactType(cel.BoolType) {
			problem = fmt.Sprintf("it must be true or false, and is of the type %s; compare it with a value: (...) == true", kind)
		}
		if problem != "" {
			return nil, fmt.Sprintf("rules[%d].expression: %s", i, problem)
		}
		if e.message = r.Message; e.message == "" {
			e.message = "not true: " + r.Expression
		}
		p.rules = append(p.rules, e)
	}
	return p, ""
}

// budget is the rest for the expressions of a check: bytes of text, and steps of patterns.
type budget struct{ text, steps int }

// compileOne compiles one expression, and returns its type. It subtracts the expression from the
// budget.
func compileOne(env *cel.Env, text string, left *budget) (e expression, kind *cel.Type, problem string) {
	if left.text -= len(text); left.text < 0 {
		return e, nil, fmt.Sprintf("the expressions of the check have more than %d bytes together; split it into two checks", maxText)
	}
	parsed, issues := env.Parse(text)
	compiled := parsed
	if issues.Err() == nil {
		if problem = unavailable(parsed.NativeRep(), &left.steps); problem != "" {
			return e, nil, problem
		}
		compiled, issues = env.Check(parsed)
	}
	if issues.Err() != nil {
		return e, nil, "it does not compile: " + describe(issues)
	}
	cost, err := env.EstimateCost(compiled, usual{}, checker.PresenceTestHasCost(false))
	if err != nil {
		return e, nil, "its cost cannot be estimated: " + err.Error()
	}
	if cost.Max > MaxCost {
		return e, nil, fmt.Sprintf("it costs too much: up to %d units with objects of ordinary size, at most %d are allowed; "+
			"use fewer loops within loops", cost.Max, MaxCost)
	}
	e.program, err = env.Program(compiled, cel.InterruptCheckFrequency(1), cel.CustomDecoratorV2(plan))
	if err != nil {
		return e, nil, "it cannot be evaluated: " + err.Error()
	}
	return e, compiled.OutputType(), ""
}

// shallow returns a type without the types of its entries: types that grow from variable to
// variable take more and more time to compile.
func shallow(kind *cel.Type) *cel.Type {
	switch kind.Kind() {
	case cel.ListKind:
		return cel.ListType(cel.DynType)
	case cel.MapKind:
		return cel.MapType(cel.DynType, cel.DynType)
	case cel.OpaqueKind:
		if len(kind.Parameters()) > 0 {
			return cel.DynType
		}
		return kind
	default:
		return kind
	}
}

// maxIssues is the number of problems of an expression in a message, maxIssue the bytes of each.
const (
	maxIssues = 3
	maxIssue  = 300
)

// describe returns the problems that the compiler found, in one line.
func describe(issues *cel.Issues) string {
	var all []string
	for _, err := range issues.Errors() {
		if len(all) == maxIssues {
			all = append(all, "...")
			break
		}
		message := strings.ToValidUTF8(err.Message[:min(len(err.Message), maxIssue)], "")
		all = append(all, fmt.Sprintf("line %d, column %d: %s", err.Location.Line(), err.Location.Column()+1, message))
	}
	return strings.Join(all, "; ")
}

// usual estimates sizes that are known only at the evaluation.
type usual struct{}

// EstimateSize implements checker.CostEstimator.
func (usual) EstimateSize(node checker.AstNode) *checker.SizeEstimate {
	size := uint64(usualLength)
	path := node.Path()
	switch kind := node.Type(); {
	case len(path) == 0:
		// An expression made it, so the language may know the size.
		if e := node.Expr(); e != nil && e.Kind() == ast.IdentKind {
			return nil
		}
	case len(path) == 1 && (path[0] == varPods || path[0] == varValues || path[0] == varSamples):
		size = usualBatch
	case kind.IsExactType(cel.StringType):
		size = usualString
	}
	return &checker.SizeEstimate{Min: 0, Max: size}
}

// EstimateCallCost implements checker.CostEstimator.
func (usual) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}
