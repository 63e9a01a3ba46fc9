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

// Package promql prepares queries of policies, by pure functions: it replaces their variables, and
// limits them to the series of one namespace.
//
// A tenant writes the query and reads its result. So the query is parsed after its variables are
// replaced, each selector gets a matcher of the namespace, and the printed syntax tree is asked: no
// text of the tenant is. A function that reads series without a selector would evade that; the only
// one is info(), and experimental functions do not parse.
package promql

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	// MaxPods is the number of pods of a variable. Prometheus looks up at most 256 values of a
	// pattern in its index.
	MaxPods = 200
	// maxResolved bounds a query with the values of its variables, in bytes.
	maxResolved = 128 << 10
	// maxPatterns bounds all patterns that a user writes, in bytes times repetitions: the parser
	// compiles patterns, and x{1000} is a thousand times as large as x.
	maxPatterns = 64 << 10
	// maxNesting is the number of parentheses and calls within one another.
	maxNesting = 64
)

// Variables are the values of the variables of a query.
type Variables struct {
	// Namespace, Workload and Version of the release.
	Namespace, Workload, Version string
	// Pods are the pods of the batch, or of the release at a stage of the release; NewPods the pods
	// of the release, and OldPods of the version before.
	Pods, NewPods, OldPods []string
	// Range is a duration of PromQL, PodLabel and NamespaceLabel are labels of the endpoint.
	Range, PodLabel, NamespaceLabel string
}

// Example returns variables for a query that is only validated.
func Example() Variables {
	pods := []string{"web-0"}
	return Variables{
		Namespace: "default", Workload: "web", Version: "0", Pods: pods, NewPods: pods, OldPods: pods,
		Range: "2m", PodLabel: "pod", NamespaceLabel: "namespace",
	}
}

func (v Variables) values() map[string]string {
	return map[string]string{
		"namespace": v.Namespace, "workload": v.Workload, "version": v.Version, "range": v.Range,
		"podLabel": v.PodLabel, "namespaceLabel": v.NamespaceLabel,
		"pods": pattern(v.Pods), "newPods": pattern(v.NewPods), "oldPods": pattern(v.OldPods),
	}
}

// noPod matches no pod: a name does not begin with a hyphen. An empty pattern would match all
// series without the label.
const noPod = "-"

// pattern returns a pattern that matches the names of pods, in each of the three kinds of quotes.
func pattern(pods []string) string {
	pods = Sample(pods, MaxPods)
	if len(pods) == 0 {
		return noPod
	}
	return strings.ReplaceAll(strings.Join(pods, "|"), ".", "[.]")
}

// Sample returns at most a number of names, sorted: always the same ones of a list, chosen by their hash.
func Sample(names []string, most int) []string {
	names = slices.Clone(names)
	if len(names) > most {
		hash := func(s string) uint64 {
			h := fnv.New64a()
			_, _ = h.Write([]byte(s)) // it never fails
			sum := h.Sum64()          // its first bits hardly depend on the end of a name
			return (sum ^ sum>>33) * 0xff51afd7ed558ccd
		}
		slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(hash(a), hash(b)), cmp.Compare(a, b)) })
		names = names[:most]
	}
	slices.Sort(names)
	return names
}

// variable is a dollar sign with a word. Regular expressions and label_replace have dollar signs
// without a word: at the end, and $1.
var variable = regexp.MustCompile(`\$[A-Za-z_][A-Za-z0-9_]*`)

// plain has the characters of all values, so that a value cannot end a string of the query.
var plain = regexp.MustCompile(`^[A-Za-z0-9._|\[\]-]+$`)

// replace replaces the variables of a query.
func replace(query string, v Variables) (string, error) {
	values, left, failed := v.values(), maxResolved-len(query), error(nil)
	resolved := variable.ReplaceAllStringFunc(query, func(found string) string {
		value, known := values[found[1:]]
		switch left -= len(value); {
		case failed != nil:
		case !known:
			failed = fmt.Errorf("the variable %s is not known: use one of $%s", found, strings.Join(slices.Sorted(maps.Keys(values)), ", $"))
		case !plain.MatchString(value):
			failed = fmt.Errorf("the value of the variable %s cannot be part of a query", found)
		case left < 0:
			failed = fmt.Errorf("with its variables the query has more than %d KiB: use each list of pods once", maxResolved>>10)
		default:
			return value
		}
		return ""
	})
	return resolved, failed
}

// parse parses a query. Experimental functions do not parse: info() reads series without a selector.
func parse(query string) (parser.Expr, error) {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		return nil, fmt.Errorf("it does not parse: %s", first(err))
	}
	switch expr.Type() {
	case parser.ValueTypeVector, parser.ValueTypeScalar:
		return expr, nil
	default:
		return nil, fmt.Errorf("its result is of the type %s, and must be an instant vector or a scalar: "+
			"use a function as rate() or max_over_time()", expr.Type())
	}
}

// first returns the first error of the parser, with its place.
func first(err error) string {
	const most = 300
	message := err.Error()
	var all parser.ParseErrors
	if errors.As(err, &all) && len(all) > 0 {
		message = all[0].Error()
	}
	message = strings.ToValidUTF8(strings.ReplaceAll(message, "\n", " "), "?")
	return message[:min(len(message), most)]
}

// bounded returns an error if the parser could take long for a query, or much memory.
func bounded(query string) error {
	lexer := parser.Lex(query)
	left, depth := maxPatterns, 0
	pattern := false
	for {
		var item parser.Item
		lexer.NextItem(&item)
		switch item.Typ {
		case parser.EOF, parser.ERROR:
			return nil // the parser reports it
		case parser.LEFT_PAREN, parser.SUB, parser.ADD:
			// A sign may be unary, and is then within the sign before it.
			if depth++; depth > maxNesting {
				return fmt.Errorf("it has more than %d parentheses and signs within one another", maxNesting)
			}
		case parser.RIGHT_PAREN:
			depth--
		case parser.STRING:
			if pattern {
				left -= len(item.Val) * repeated(item.Val)
			}
		default:
		}
		if left < 0 {
			return errors.New("its patterns are too large: use fewer or smaller repetitions, as x{100}")
		}
		pattern = item.Typ == parser.EQL_REGEX || item.Typ == parser.NEQ_REGEX || pattern && item.Typ == parser.COMMENT
	}
}

var repetition = regexp.MustCompile(`\{[0-9,]+\}`)

// repeated returns the product of all repetitions of a pattern, at most maxPatterns + 1.
func repeated(text string) int {
	product := 1
	for _, found := range repetition.FindAllString(text, -1) {
		most := 1
		for _, part := range strings.Split(strings.Trim(found, "{}"), ",") {
			n, err := strconv.Atoi(part)
			if err == nil {
				most = max(most, n)
			}
		}
		if product *= min(most, maxPatterns); product > maxPatterns {
			return maxPatterns + 1
		}
	}
	return product
}

// Problem returns why a query cannot be evaluated; empty if it can.
func Problem(query string) string {
	if _, err := Resolve(query, Example(), ""); err != nil {
		return err.Error()
	}
	return ""
}

// Query is a query that may be asked.
type Query struct {
	// Text of the query.
	Text string
	// Problem is set instead if it cannot be asked.
	Problem string
	expr    parser.Expr
}

// Resolve replaces the variables of a query. If only is not empty, each selector of the result
// matches only series whose namespace label has that value.
func Resolve(query string, v Variables, only string) (*Query, error) {
	// The bounds are for what the user writes, not for lists of pods.
	short, err := replace(query, Example())
	if err == nil {
		err = bounded(short)
	}
	if err != nil {
		return nil, err
	}
	resolved, err := replace(query, v)
	if err != nil {
		return nil, err
	}
	expr, err := parse(resolved)
	if err != nil {
		return nil, err
	}
	if only == "" {
		return &Query{Text: expr.String(), expr: expr}, nil
	}
	return limited(expr, v.NamespaceLabel, only)
}

// limited adds a matcher of the namespace to each selector of an expression.
func limited(expr parser.Expr, label, only string) (*Query, error) {
	for _, s := range selectors(expr) {
		// Matchers that the selector has already only narrow it: all of them count.
		s.LabelMatchers = append(s.LabelMatchers, labels.MustNewMatcher(labels.MatchEqual, label, only))
	}
	text := expr.String()
	// The server reads the text, so the text has to have the matchers.
	again, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("it cannot be limited to namespace %s: %w", only, err)
	}
	for _, s := range selectors(again) {
		if !isLimited(s, label, only) {
			return nil, fmt.Errorf("it cannot be limited to namespace %s", only)
		}
	}
	return &Query{Text: text, expr: again}, nil
}

func isLimited(s *parser.VectorSelector, label, value string) bool {
	return slices.ContainsFunc(s.LabelMatchers, func(m *labels.Matcher) bool {
		return m.Type == labels.MatchEqual && m.Name == label && m.Value == value
	})
}

// selectors returns the selectors of an expression. Nothing else in it reads series.
func selectors(expr parser.Expr) (all []*parser.VectorSelector) {
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if s, ok := node.(*parser.VectorSelector); ok {
			all = append(all, s)
		}
		return nil
	})
	return all
}

// Step is a query that finds out why a query has no series: it has none itself if the last matcher
// is the reason.
type Step struct {
	// Text counts the series of a selector with some of its matchers.
	Text string
	// Metric is the name of the metric, Matcher the matcher that was added last; empty for the first step.
	Metric, Matcher, Label string
}

// maxSteps bounds the steps of a query.
const maxSteps = 12

// Explain returns the steps for the selectors of a query, over a range of time.
func (q *Query) Explain(over, namespaceLabel string) (steps []Step) {
	for _, s := range selectors(q.expr) {
		bare := &parser.VectorSelector{Name: s.Name}
		var rest []*labels.Matcher
		for _, m := range s.LabelMatchers {
			if m.Name == model.MetricNameLabel || isNamespace(m, namespaceLabel) {
				bare.LabelMatchers = append(bare.LabelMatchers, m)
				continue
			}
			rest = append(rest, m)
		}
		if s.Name == "" {
			continue // no metric to look for
		}
		count := func() string { return fmt.Sprintf("count(count_over_time(%s[%s]))", bare.String(), over) }
		steps = append(steps, Step{Text: count(), Metric: s.Name})
		for _, m := range rest {
			bare.LabelMatchers = append(bare.LabelMatchers, m)
			steps = append(steps, Step{Text: count(), Metric: s.Name, Matcher: m.String(), Label: m.Name})
		}
	}
	return steps[:min(len(steps), maxSteps)]
}

func isNamespace(m *labels.Matcher, label string) bool {
	return m.Name == label && m.Type == labels.MatchEqual
}
