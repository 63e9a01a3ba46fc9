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
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// check returns a check of these rules for each pod.
func check(rules ...string) *v1alpha1.CelCheck {
	c := &v1alpha1.CelCheck{ForEach: v1alpha1.CelPerPod}
	for _, r := range rules {
		c.Rules = append(c.Rules, v1alpha1.CelRule{Expression: r})
	}
	return c
}

func ofBatch(rules ...string) *v1alpha1.CelCheck {
	c := check(rules...)
	c.ForEach = v1alpha1.CelPerBatch
	return c
}

// with adds variables, each a name and an expression.
func with(c *v1alpha1.CelCheck, variables ...string) *v1alpha1.CelCheck {
	for i := 0; i < len(variables); i += 2 {
		c.Variables = append(c.Variables, v1alpha1.CelVariable{Name: variables[i], Expression: variables[i+1]})
	}
	return c
}

func object(name string, containers int) map[string]any {
	list := make([]any, containers)
	for i := range list {
		list[i] = map[string]any{"name": fmt.Sprintf("c%d", i), "image": "registry.example/web:1", "env": []any{
			map[string]any{"name": "A", "value": strings.Repeat("v", 100)},
		}}
	}
	return map[string]any{
		"metadata": map[string]any{"name": name, "labels": map[string]any{"app": "web"}},
		"spec":     map[string]any{"containers": list, "hostNetwork": false, "priority": int64(3)},
	}
}

func input(pods, containers int) Input {
	in := Input{
		Workload:    map[string]any{"spec": map[string]any{"replicas": int64(pods)}},
		NewTemplate: map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"image": "registry.example/web:1"}}}},
		Release:     map[string]any{"version": "2", "attempt": int64(1), "lastBatch": true},
	}
	for i := range pods {
		name := fmt.Sprintf("web-%d", i)
		in.Pods = append(in.Pods, Pod{Name: name, Object: object(name, containers)})
	}
	return in
}

// TestCompile: the problem of a check names its field and the remedy.
func TestCompile(t *testing.T) {
	for name, test := range map[string]struct {
		check *v1alpha1.CelCheck
		want  string
	}{
		"a field":            {check: check("has(pod.metadata.annotations.team)")},
		"loops":              {check: check("pod.spec.containers.all(c, c.image.startsWith('registry.example/'))")},
		"loops within loops": {check: check("pod.spec.containers.all(c, c.env.all(e, !e.value.contains('password')))")},
		"loops of a batch": {
			check: ofBatch("pods.all(p, p.spec.containers.all(c, has(c.resources.limits) && 'memory' in c.resources.limits))"),
		},
		"unique": {check: ofBatch("pods.all(p, pods.exists_one(q, q.spec.nodeName == p.spec.nodeName))")},
		"templates": {
			check: check("oldTemplate == null || newTemplate.spec.containers.map(c, c.name) == oldTemplate.spec.containers.map(c, c.name)"),
		},
		"a release":                {check: check("release.attempt < 3 && release.version != release.previousVersion")},
		"a variable":               {check: with(check("variables.c.image != ''"), "c", "pod.spec.containers[0]")},
		"a variable of a variable": {check: with(check("variables.ok"), "c", "pod.spec.containers[0]", "ok", "variables.c.image != ''")},
		"quantities": {
			check: check("quantity(pod.spec.containers[0].resources.limits.memory).isLessThan(quantity('1Gi'))",
				"isQuantity(string(pod.a)) && quantity('1').compareTo(quantity('2')) < 0"),
		},
		"optional fields":      {check: check("pod.metadata.?annotations['a/b'].orValue('') != ''")},
		"texts":                {check: check("pod.a.trim().lowerAscii().split('/', 2)[0].substring(1, 2).matches('^[a-z]$')")},
		"sets":                 {check: check("sets.contains(pod.a, ['x']) && sets.equivalent(pod.a, pod.b) && sets.intersects(pod.a, pod.b)")},
		"no expression":        {check: check("has("), want: "rules[0].expression: it does not compile: line 1, column 5: "},
		"not bool":             {check: check("true", "1 + 1"), want: "rules[1].expression: it must be true or false, and is of the type int"},
		"not known to be bool": {check: check("pod.spec.hostNetwork"), want: "(...) == true"},
		"unknown":              {check: check("object.spec.replicas > 1"), want: "undeclared reference to 'object'"},
		"pods of one pod":      {check: check("size(pods) > 1"), want: "undeclared reference to 'pods'"},
		"a pod of a batch":     {check: ofBatch("has(pod.spec)"), want: "undeclared reference to 'pod'"},
		"no clock": {
			check: check("now() > timestamp('2026-01-01T00:00:00Z')"),
			want:  "the function now with 0 arguments is not available",
		},
		"no authorizer": {
			check: check("authorizer.path('/').check('get').allowed()"),
			want:  "the function path with 1 arguments is not available",
		},
		"an unknown variable": {check: check("variables.x == 1"), want: "undeclared reference to 'variables'"},
		"a later variable": {
			check: with(check("true"), "a", "variables.b", "b", "1"),
			want:  "variables[0].expression: it does not compile",
		},
		"a variable of itself": {
			check: with(check("true"), "a", "variables.a + 'a'"),
			want:  "variables[0].expression: it does not compile",
		},
		"a reserved word as a variable": {check: with(check("true"), "in", "1"), want: "variables[0].name"},
		"a variable twice":              {check: with(check("true"), "a", "1", "a", "2"), want: "variables[1].name"},
		"a variable of the wrong type": {
			check: with(check("variables.a"), "a", "1"),
			want:  "rules[0].expression: it must be true or false, and is of the type int",
		},
		"an invalid pattern": {check: check("pod.metadata.name.matches('(')"), want: "rules[0].expression"},
		"costs too much": {
			check: ofBatch("pods.all(a, pods.all(b, pods.all(c, pods.all(d, a == b || c == d))))"),
			want:  "rules[0].expression: it costs too much",
		},
		"a variable that costs too much": {
			check: with(check("variables.x"), "x", "pod.a.all(a, pod.b.all(b, pod.c.all(c, pod.d.all(d, pod.e.all(e, a + b + c + d + e == 0)))))"),
			want:  "variables[0].expression: it costs too much",
		},
		"lists within lists": {
			check: check("pod.a == " + strings.Repeat("[", 100) + "1" + strings.Repeat("]", 100)),
			want:  "more than 16 loops, lists and maps within one another",
		},
		"a lot of text": {
			check: check(slices.Repeat([]string{"pod.a == '" + strings.Repeat("x", 4000) + "'"}, 5)...),
			want:  "rules[4].expression: the expressions of the check have more than 16384 bytes together",
		},
		"numbers without end": {
			check: check("lists.range(1000000000).size() > 0"),
			want:  "rules[0].expression: the function lists.range with 1 arguments is not available",
		},
		"a string without end": {
			check: check("'%.999999999f'.format([1.0]) != ''"),
			want:  "the function format with 1 arguments is not available",
		},
		"patterns that repeat": {
			check: check("pod.a.matches('x{900}') || pod.a.matches('a{900}')", "pod.a.matches('c{900}') && pod.a.matches('d{900}')",
				"pod.a.matches('e{900}')", "pod.a.matches('f{900}')"),
			want: "rules[3].expression: a pattern is too large: at most 1000 steps, and 5000 of all patterns together",
		},
		"a pattern that repeats too often": {
			check: check("pod.a.matches('(x?y?z?w?){300}')"),
			want:  "rules[0].expression: a pattern is too large",
		},
		"a pattern that is made a literal": {
			check: check("pod.a.matches(string('x{999}'))"),
			want:  "rules[0].expression: the pattern of matches must be a literal text",
		},
		"a pattern that is made another way": {check: check("pod.a.matches(b'x{999}')"), want: "rules[0].expression: it does not compile"},
		"constants that are made": {
			check: check("pod.a == duration('5m') || pod.a == timestamp('2026-01-01T00:00:00Z') || pod.a == string(1) || int('5') in pod.a"),
		},
		"a pattern that repeats": {check: check("pod.a.matches('^(a[0-9]{3}.?){1,100}$')")},
		"a long pattern": {
			check: check("pod.metadata.name.matches('" + strings.Repeat("x{999}", 100) + "')"),
			want:  "of 600 bytes is too long for matches: at most 256",
		},
		"an optional that is mapped": {check: check("pod.?a.optMap(x, x) == pod"),
			want: "the function optMap with 2 arguments is not available"},
		"an optional that is mapped flat": {check: check("pod.?a.optFlatMap(x, x) == pod"),
			want: "the function optFlatMap with 2 arguments is not available"},
		"a message": {check: check("google.protobuf.Value{} == pod"),
			want: "the message google.protobuf.Value{} is not available"},
		"an optional entry of a list": {check: check("[?pod.?a] == pod"),
			want: "rules[0].expression: an entry of a list or map is optional"},
		"an optional entry of a map": {check: check("{?'a': pod.?a} == pod"),
			want: "rules[0].expression: an entry of a list or map is optional"},
		"optional values": {check: check("pod[?'a'].or(pod.?b).orValue(1) == 1 && pod.?a.hasValue() && pod.?b.value() == 1")},
		"a key that may be of any type": {check: check("{pod.a: 1} == pod"),
			want: "a key of a map must be a literal or a call of string, int or dyn"},
		"keys": {check: check(
			"{'a': 1, string(pod.a): 2} == pod && {1: 2, int(pod.a): 3} == pod" +
				" && {dyn(pod.a): true} == pod")},
		"many nodes":               {check: check(strings.Repeat("pod.a || ", 334) + "true"), want: "it has 1003 nodes"},
		"as many nodes as allowed": {check: check(strings.Repeat("pod.a || ", 332) + "true")},
		"deep": {
			check: check(strings.Repeat("(", 2000) + "true" + strings.Repeat(")", 2000)),
			want:  "rules[0].expression: it does not compile",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, problem := ofBatchPost(test.check)
			if test.want == "" && (problem != "" || p == nil) || test.want != "" && (!strings.Contains(problem, test.want) || p != nil) {
				t.Errorf("problem %q", problem)
			}
			if strings.Contains(problem, "\n") {
				t.Errorf("of several lines: %q", problem)
			}
		})
	}
}

// TestEvaluate has the results of rules for two pods with two containers each.
func TestEvaluate(t *testing.T) {
	for name, test := range map[string]struct {
		check *v1alpha1.CelCheck
		// failures are pod/rule, err is a part of the error.
		failures []string
		err      string
	}{
		"true":                    {check: check("pod.metadata.labels.app == 'web'")},
		"false of all":            {check: check("true", "has(pod.metadata.annotations)"), failures: []string{"web-0/1", "web-1/1"}},
		"false of one":            {check: check("pod.metadata.name != 'web-1'"), failures: []string{"web-1/0"}},
		"the first that is false": {check: check("false", "1 > 2"), failures: []string{"web-0/0", "web-1/0"}},
		"a batch":                 {check: ofBatch("size(pods) == workload.spec.replicas", "pods.all(p, size(p.spec.containers) == 2)")},
		"a batch that fails":      {check: ofBatch("pods.exists(p, has(p.metadata.annotations))"), failures: []string{"/0"}},
		"null":                    {check: check("oldTemplate == null && newTemplate.spec.containers[0].image != ''")},
		"the release":             {check: check("release.attempt == 1 && release.lastBatch == true")},
		"a variable":              {check: with(check("variables.b.image.endsWith(':1')"), "b", "pod.spec.containers[0]")},
		"a list of a variable": {
			check: with(check("variables.n.all(n, n.startsWith('c')) && variables.n[0] == 'c0'", "variables.m.a == 1"),
				"n", "pod.spec.containers.map(c, c.name)", "m", "{'a': 1}"),
		},
		"a variable of variables": {
			check: with(check("variables.c"), "a", "pod.spec.containers", "b", "size(variables.a)", "c", "variables.b == 2"),
		},
		"an unused, wrong variable": {check: with(check("true"), "a", "pod.no.such")},
		"no such key":               {check: check("pod.status.phase == 'Running'"), err: "pod web-0: rules[0]: no such key: status"},
		"a wrong variable":          {check: with(check("variables.a == 1"), "a", "pod.no.such"), err: "no such key: no"},
		"of another type":           {check: check("pod.spec.priority.startsWith('a')"), err: "no such overload"},
		"false counts more than an error": {
			check: check("pod.no.such == 1", "pod.metadata.name == 'web-0'"), failures: []string{"web-1/1"}, err: "no such key",
		},
		"a part that is not evaluated": {check: check("true || pod.no.such == 1")},
		"an int beside a double":       {check: check("pod.spec.priority > 2.5")},
		"a constant that is made":      {check: check("pod.spec.priority == int('3') && string(pod.spec.priority) == string(3)")},
		"texts": {
			check: check("' Ab/c/d '.trim().lowerAscii() == 'ab/c/d' && 'a/b/c'.split('/') == ['a', 'b', 'c'] && 'a/b/c'.split('/', 2)[1] == 'b/c'",
				"'aäö'.substring(1) == 'äö' && 'aäö'.substring(1, 2) == 'ä' && 'abc'.substring(3) == '' && 'abc'.substring(1, 3) == 'bc'",
				"'x-1'.matches('^x-[0-9]$') && !matches('x', 'y')"),
		},
		"characters that are not there": {check: check("'abc'.substring(1, 4) == ''"), err: "index out of range: 4"},
		"sets": {
			check: check(
				"sets.contains([1, 2], [2]) && !sets.contains([1], [2]) && sets.equivalent([1, 2], [2, 1, 1]) && sets.intersects([1], [1, 2]) && " +
					"!sets.intersects([1], [])"),
		},
		"equality": {
			check: check(
				"dyn({'a': [2.0]}) == dyn({'a': [2]}) && {'a': 1} != {'b': 1} && {'a': 1} != {'a': 2} && [1] != [1, 2] && dyn(1) != dyn('1')",
				"1 in [2, 1] && 'a' in {'a': 1} && !('x' in pod.metadata.labels) && pod != null && optional.of(1) == optional.of(1)"),
		},
		"quantities": {
			check: check("quantity('2Gi').isGreaterThan(quantity('1e3')) && !isQuantity('1e200') && !isQuantity('x') && isQuantity('1.5e-10')"),
		},
		"numbers and times": {
			check: check("1 + 2 == 3 && 1.5 + 1.0 == 2.5 && -(2 - 3) * 4 / 2 % 3 == 2 && duration('1m') + duration('1s') == duration('61s')",
				"timestamp('2026-01-01T00:00:00Z') + duration('1h') > timestamp('2026-01-01T00:00:00Z')"),
		},
		"the meter has no valid name":      {check: with(check("variables.a == 1"), "a", "1")},
		"equality of what objects contain": {check: check("pod.spec.containers[0].env == pod.spec.containers[1].env")},
	} {
		t.Run(name, func(t *testing.T) {
			p, problem := ofBatchPost(test.check)
			if problem != "" {
				t.Fatal(problem)
			}
			failures, err := p.Evaluate(t.Context(), input(2, 2))
			var got []string
			for _, f := range failures {
				got = append(got, fmt.Sprintf("%s/%d", f.Pod, f.Rule))
			}
			if strings.Join(got, " ") != strings.Join(test.failures, " ") {
				t.Errorf("failures %v", failures)
			}
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// doubled returns nested lists in which the innermost one would be read 2^n times.
func doubled(n int, of string) string {
	for i := range n {
		v := fmt.Sprintf("v%d", i)
		of = fmt.Sprintf("[%s].map(%s, [%s, %s])", of, v, v, v)
	}
	return of
}

// doubledType returns nested loops; each makes a type from the type of the previous loop.
func doubledType(n int, format string) string {
	loops := "[1]"
	for i := range n {
		loops += fmt.Sprintf(".map(v%d, %s)", i, fmt.Sprintf(format, fmt.Sprintf("v%d", i)))
	}
	return loops
}

// nested returns variables; each contains the previous variable many times.
func nested(format string) []string {
	list, before := []string{}, "pod"
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		value := fmt.Sprintf(format, before)
		for range 3 {
			value = fmt.Sprintf(format, value)
		}
		list, before = append(list, name, value), "variables."+name
	}
	return list
}

// TestAttacks: an expression that would never end, or use all memory, is refused by the compiler,
// or fails soon.
func TestAttacks(t *testing.T) {
	grow := func(op string) []string {
		return []string{
			"a", strings.Repeat(op, 100) + "pod.metadata.name", "b", strings.Repeat("variables.a + ", 100) + "variables.a",
			"c", strings.Repeat("variables.b + ", 100) + "variables.b", "d", strings.Repeat("variables.c + ", 100) + "variables.c",
			"e", strings.Repeat("variables.d + ", 100) + "variables.d",
		}
	}
	lists := []string{"a", "[1, 2, 3, 4, 5, 6, 7, 8]"}
	for _, v := range []string{"ba", "cb", "dc", "ed", "fe", "gf", "hg"} {
		lists = append(lists, v[:1], strings.Repeat("variables."+v[1:]+" + ", 100)+"variables."+v[1:])
	}
	for name, c := range map[string]*v1alpha1.CelCheck{
		"loops over all pods within loops": ofBatch(
			"pods.all(a, pods.all(b, a.spec.containers.all(c, b.spec.containers.all(d, c.name != '' || d.name != ''))))"),
		"several of these rules": ofBatch("pods.all(a, pods.all(b, a.spec.containers.all(c, c.name != '')))",
			"pods.all(a, pods.all(b, b.spec.containers.all(c, c.name != '')))", "pods.all(a, pods.all(b, a.spec.containers.all(c, c.image != '')))"),
		"many of these rules for each pod": check(strings.Split(strings.TrimSuffix(
			strings.Repeat("pod.spec.containers.all(a, pod.spec.containers.all(b, pod.spec.containers.all(c, c.name != '')));", 12), ";"),
			";")...),
		"a string that grows":     with(check("variables.e != ''"), grow("pod.metadata.name + ")...),
		"a long string, searched": with(check("variables.e.matches('a*b*c*d*')"), grow("pod.metadata.name + ")...),
		"a string that replaces itself": with(check("variables.x.replace('v', variables.x).replace('v', variables.x) != ''"),
			"x", "pod.spec.containers.map(c, c.env[0].value).join('')"),
		"a list that grows, and is searched": with(check("9 in variables.h"), lists...),
		"a list that grows, and is walked":   with(check("variables.h.all(x, x < 9)"), lists...),
		"a list that grows, and is compared": with(check("variables.h == variables.h"), lists...),
		"a list that grows, and is summed":   with(check("variables.h.flatten() == []"), lists...),
		"a list that grows, and is a set":    with(check("sets.contains(variables.h, variables.g)"), lists...),
		"lists within lists, compared":       with(check("variables.h == variables.h"), nested("[%[1]s].map(x, [x, x])")...),
		"lists within lists, searched":       with(check("variables.h in [variables.h]"), nested("[%[1]s, %[1]s].map(x, [x, x])")...),
		"lists within lists, all loops":      check(doubled(60, "pod") + " == pod"),
		"maps within maps, compared":         with(check("variables.h == variables.h"), nested("{'a': %[1]s, 'b': %[1]s}")...),
		"a map made of lists": with(check("variables.h.flatten() == [1]"),
			nested("[[%[1]s, %[1]s]].map(x, [x, x]).map(x, [x, x])")...),
		"a slow pattern": with(check("pod.spec.containers.all(a, pod.spec.containers.all(b, !variables.x.matches('((x?){15}){15}y')))"),
			"x", "'"+strings.Repeat("x", 2000)+"'"),
		"a pattern that was made": with(check("pod.spec.containers[0].env[0].value.matches(variables.p)"),
			"p", "["+strings.TrimSuffix(strings.Repeat("'x{999}',", 300), ",")+"].join('')"),
		"a quantity of twenty million digits": check("quantity('1e20000000').isGreaterThan(quantity('1'))"),
		"a quantity of a long text":           check("quantity(pod.spec.containers[0].env[0].value) == quantity('1')"),
		"all matches of a pattern":            check("pod.spec.containers.all(c, c.image.findAll('(?:x?){300}x{300}').size() >= 0)"),
		"a text replaced in itself":           check("pod.spec.containers.all(c, c.image.replace('', c.image) != '')"),
		"a list that is made flat":            with(check("variables.h.flatten(100).size() > 0"), nested("[%[1]s, %[1]s]")...),
		"names joined":                        check("pod.spec.containers.map(c, c.image).join(pod.metadata.name) == ''"),
		"a list within lists as a key":        with(check("{'a': 1}[variables.h.map(x, x)] == 1"), nested("[%[1]s, %[1]s]")...),
		"a list within lists as a key of a map": with(check("{variables.h: 1} == {variables.h: 2} || [{variables.h: 1}][0][variables.h] == 1"),
			nested("[%[1]s, %[1]s]")...),
		"a list within lists in a message": with(check("dyn(google.protobuf.ListValue{values: variables.h}) == 1"),
			nested("[%[1]s, %[1]s]")...),
		"a list within lists in a value": with(check("dyn(google.protobuf.Value{list_value: variables.h}) == 1"),
			nested("[%[1]s, %[1]s]")...),
		"a map within maps in a message": with(check("dyn(google.protobuf.Struct{fields: {'a': dyn(variables.h)}}) == 1"),
			nested("{'a': %[1]s, 'b': %[1]s}")...),
		"a list entry that is not optional": with(check("dyn([?dyn(variables.h)]) == 1"), nested("[%[1]s, %[1]s]")...),
		"a map value that is not optional":  with(check("dyn({?'a': dyn(variables.h)}) == 1"), nested("[%[1]s, %[1]s]")...),
		"a map key that is not optional":    with(check("dyn({?dyn(variables.h): dyn(1)}) == 1"), nested("[%[1]s, %[1]s]")...),
		"macros that copy":                  check("optional.none()" + strings.Repeat(".optMap(x, x)", 24) + " == pod"),
		"types that double":                 check(doubledType(12, "{{%[1]s: %[1]s}: {%[1]s: %[1]s}}") + " == 1"),
		"types of loops that double":        check(doubledType(10, "{%[1]s: %[1]s}") + ".all(x, " + strings.Repeat("x == x && ", 300) + "false)"),
		"types of empty lists":              check("dyn([[]" + strings.Repeat(", [] + []", 440) + "]) == 1"),
		"types of lists, compared":          check(strings.Repeat("[][0] == [][0] && ", 220) + "false"),
		"a loop whose rules ask nothing":    ofBatch("pods.filter(a, pods.filter(b, pods.filter(c, false) != []) != []) != []"),
		"lists joined by a variable":        with(check("variables.a + variables.a == []"), "a", "pod.spec.containers"),
	} {
		t.Run(name, func(t *testing.T) {
			pods, containers := 200, 50
			if c.ForEach == v1alpha1.CelPerPod {
				pods = 3
			}
			attack(t, c, ScopeOf(v1alpha1.StageBatchPost, c), input(pods, containers))
		})
	}
	in := Input{Object: large(1<<20, 5000)}
	in.Object["texts"] = slices.Repeat([]any{in.Object["text"]}, 3000)
	for name, c := range map[string]*v1alpha1.CelCheck{
		"a slow pattern in a loop": check("object.many.all(i, !object.text.matches('(?:x?){300}x{300}y'))"),
		"slow patterns":            check(slices.Repeat([]string{"[1, 2, 3].all(i, !object.text.matches('(?:x?){300}x{300}y'))"}, 5)...),
		"slow patterns in a row": check("[1, 2, 3].all(i, " + strings.Repeat("!object.text.matches('(?:x?){300}x{300}y') && ", 4) +
			"true) && object.text.matches('z')"),
		"texts of a list":           check("object.texts.all(t, !t.matches('(?:x?){300}x{300}y'))"),
		"loops within loops":        check("object.many.all(a, object.many.all(b, object.many.all(c, a + b + c >= 0)))"),
		"a long text, searched":     check("object.many.all(i, " + strings.Repeat("object.long.contains('xy') || ", 100) + "true)"),
		"an error of a long text":   check("object.many.all(i, " + strings.Repeat("int(object.long) == 1 || ", 100) + "true)"),
		"a duration of a long text": check("object.many.all(i, " + strings.Repeat("duration(object.long) == duration('1s') || ", 80) + "false)"),
		"a time of a long text":     check("object.many.all(i, " + strings.Repeat("timestamp(object.long) == null || ", 80) + "true)"),
		"a number of a long text":   check("object.many.all(i, " + strings.Repeat("double(object.long) == 1.0 || ", 80) + "true)"),
		"long texts in lower case":  check("object.many.all(i, " + strings.Repeat("object.long.lowerAscii() != '' && ", 80) + "true)"),
		"parts of long texts":       check("object.many.all(i, " + strings.Repeat("object.long.substring(i) != '' && ", 80) + "true)"),
		"long texts trimmed":        check("object.many.all(i, " + strings.Repeat("object.long.trim() != '' && ", 80) + "true)"),
		"long lists, compared":      check("object.many.all(i, " + strings.Repeat("sets.contains(object.many, object.many) || ", 60) + "true)"),
		"a key of a long text":      check("object.many.all(i, " + strings.Repeat("object[object.long] == 1 || ", 100) + "true)"),
	} {
		t.Run(name, func(t *testing.T) { attack(t, c, OfRequest, in) })
	}
}

// TestErrorsOfNestedLists: no error prints a list that would be read 2^32 times.
func TestErrorsOfNestedLists(t *testing.T) {
	for _, format := range []string{
		"{'a': 1}[%s] == 1", "pod[%s] == 1", "pod[?%s] == pod.?a && pod.b", "[1][%s] == 1",
		"%s['a'] == 1", "%s.a == 1", "has(%s.a)", "%[1]s[%[1]s] == 1",
		"dyn({'a': 1})[[%s]] == 1", "{'a': 1}[dyn(optional.of(%s))] == 1", "dyn(optional.of(%s)).b == 1", "%s.orValue(1) == 1",
		"string(%s) == ''", "string(dyn(optional.of(%s))) == ''", "int(%s) == 1", "double(%s) == 1.0",
		"timestamp(%s) == null", "duration(%s) == null",
		"%s.matches('a')", "'a'.contains(%s)", "'a'.substring(%s) == ''", "quantity('1').isLessThan(%s)", "sets.contains(dyn(1), [%s])",
		"%[1]s < %[1]s", "%s - 1 == 1", "1 + %s == 1", "-%s == 1", "!%s", "%s && true", "%s ? true : false", "%s in dyn(1)",
		"dyn(1).all(x, x == %s)", "[1].exists_one(x, %s)", "%s == true || pod.no",
	} {
		t.Run(format, func(t *testing.T) {
			rule := fmt.Sprintf(format, "dyn(variables.h)")
			attack(t, with(check(rule), nested("[%[1]s, %[1]s]")...), PerPod, input(3, 50))
		})
	}
}

// attack fails unless a check is refused, or returns an error, within a second of processor time.
func attack(t *testing.T, c *v1alpha1.CelCheck, scope Scope, in Input) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime(t)
	p, problem := compile(c, scope)
	compiled := threadTime(t) - began
	if compiled >= time.Second/2 {
		t.Errorf("the compiler took %s", compiled)
	}
	if problem != "" {
		t.Logf("refused after %s: %.200s", compiled, problem)
		return
	}
	failures, err := p.Evaluate(t.Context(), in)
	took := threadTime(t) - began
	t.Logf("after %s: %d failures, %.200v", took, len(failures), err)
	if err == nil {
		t.Error("it succeeded")
	}
	if took >= time.Second {
		t.Errorf("it took %s", took)
	}
}

// ofBatchPost compiles a check of the pods of a batch.
func ofBatchPost(c *v1alpha1.CelCheck) (*Program, string) {
	return compile(c, ScopeOf(v1alpha1.StageBatchPost, c))
}

// TestScopes: each scope has its own variables only.
func TestScopes(t *testing.T) {
	in := Input{
		Workload: map[string]any{"kind": "Deployment"}, NewTemplate: map[string]any{"a": "new"}, Release: map[string]any{"version": "v"},
		Object: map[string]any{"kind": "Deployment"}, Request: map[string]any{"operation": "CREATE"},
		Namespace: map[string]any{"metadata": map[string]any{"name": "shop"}},
		Pods:      []Pod{{Name: "a", Object: map[string]any{"kind": "Pod"}}},
	}
	for name, test := range map[string]struct {
		scope   Scope
		rule    string
		problem string
		fails   bool
	}{
		"the release": {
			scope: OfRelease, rule: "workload.kind == 'Deployment' && newTemplate.a == 'new' && oldTemplate == null && release.version == 'v'",
		},
		"the release, false": {scope: OfRelease, rule: "oldTemplate != null", fails: true},
		"pods of a release":  {scope: OfRelease, rule: "pods.all(p, true)", problem: "undeclared reference to 'pods'"},
		"a pod of a release": {scope: OfRelease, rule: "pod != null", problem: "undeclared reference to 'pod'"},
		"the request": {
			scope: OfRequest,
			rule:  "object.kind == 'Deployment' && oldObject == null && request.operation == 'CREATE' && namespaceObject.metadata.name == 'shop'",
		},
		"the release of a request": {scope: OfRequest, rule: "release.version == 'v'", problem: "undeclared reference to 'release'"},
		"the authorizer": {
			scope: OfRequest, rule: "authorizer.group('').resource('pods').check('get').allowed()",
			problem: "the function group with 1 arguments is not available",
		},
		"the request of a batch":    {scope: PerBatch, rule: "request.operation == 'CREATE'", problem: "undeclared reference to 'request'"},
		"the pods of a batch":       {scope: PerBatch, rule: "pods.all(p, p.kind == 'Pod') && workload.kind == 'Deployment'"},
		"all pods, of one pod only": {scope: PerPod, rule: "pods.size() == 1", problem: "undeclared reference to 'pods'"},
	} {
		t.Run(name, func(t *testing.T) {
			p, problem := compile(check(test.rule), test.scope)
			if test.problem != "" {
				if !strings.Contains(problem, test.problem) {
					t.Errorf("problem %q", problem)
				}
				return
			}
			if problem != "" {
				t.Fatal(problem)
			}
			failures, err := p.Evaluate(t.Context(), in)
			if err != nil || test.fails != (len(failures) == 1) {
				t.Errorf("%+v, %v", failures, err)
			}
		})
	}
}

// TestInterrupted: an evaluation ends when its context ends.
func TestInterrupted(t *testing.T) {
	p, problem := ofBatchPost(ofBatch("pods.all(a, pods.all(b, a.spec.containers.all(c, c.name != '')))"))
	if problem != "" {
		t.Fatal(problem)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Evaluate(ctx, input(200, 5)); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v", err)
	}
}

// ending is an expression that is true, and ends the time of its evaluation.
type ending struct {
	cel.Program
	end context.CancelFunc
}

func (e ending) ContextEval(context.Context, any) (ref.Val, *cel.EvalDetails, error) {
	e.end()
	return types.True, nil, nil
}

// TestTimeEndsBetweenPods: pods that were not evaluated in time have not passed.
func TestTimeEndsBetweenPods(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := &Program{scope: PerPod, rules: []expression{{program: ending{end: cancel}}}}
	if failures, err := p.Evaluate(ctx, input(2, 1)); !errors.Is(err, context.Canceled) || len(failures) != 0 {
		t.Errorf("%v, error %v", failures, err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	p.rules[0].program = ending{end: cancel}
	if failures, err := p.Evaluate(ctx, input(1, 1)); err != nil || len(failures) != 0 {
		t.Errorf("of one pod: %v, error %v", failures, err)
	}
}

// TestCache: equal checks of several policies are compiled once, and the cache is bounded.
func TestCache(t *testing.T) {
	compiled := map[string]int{}
	c := newCache(2, 2, 3, func(c *v1alpha1.CelCheck, _ Scope) (*Program, string) {
		compiled[c.Rules[0].Expression]++
		if c.Rules[0].Expression == "wrong" {
			return nil, "it is wrong"
		}
		return &Program{}, ""
	})
	for i := range 4 {
		operators := i%2 == 0
		if p, problem, err := c.compile(t.Context(), check("a"), PerPod, operators); p == nil || problem != "" || err != nil {
			t.Fatal(problem, err)
		}
		if p, problem, err := c.compile(t.Context(), check("wrong"), PerPod, operators); p != nil || problem != "it is wrong" || err != nil {
			t.Fatal(problem, err)
		}
		if problem := c.problem(check("a"), PerPod) + c.problem(check("wrong"), PerPod); problem != "it is wrong" {
			t.Fatal(problem)
		}
	}
	if compiled["a"] != 1 || compiled["wrong"] != 1 {
		t.Errorf("compiled %v", compiled)
	}
	for i := range 1000 {
		if _, _, err := c.compile(t.Context(), check(fmt.Sprint(i)), PerPod, false); err != nil {
			t.Fatal(err)
		}
	}
	if c.programs[false].Len() != 2 || c.problems.Len() != 3 {
		t.Errorf("it remembers %d and %d", c.programs[false].Len(), c.problems.Len())
	}
}

// TestCacheOfOperator: very many policies of namespaces do not evict checks of the operator's
// policies, and a program that was compiled for another purpose is found.
func TestCacheOfOperator(t *testing.T) {
	compiled := map[string]int{}
	c := newCache(2, 2, 1000, func(c *v1alpha1.CelCheck, _ Scope) (*Program, string) {
		compiled[c.Rules[0].Expression]++
		return &Program{}, ""
	})
	if problem := c.problem(check("operator's"), OfRequest); problem != "" {
		t.Fatal(problem)
	}
	for i := range 10 {
		for _, text := range []string{"operator's", fmt.Sprint("tenant's ", i), fmt.Sprint("other's ", i)} {
			if p, problem, err := c.compile(t.Context(), check(text), OfRequest, text == "operator's"); p == nil || problem != "" || err != nil {
				t.Fatal(p, problem, err)
			}
		}
	}
	if compiled["operator's"] != 1 || len(compiled) != 21 {
		t.Errorf("compiled %v", compiled)
	}
}

// TestCompilerIsBusy: a wait for the compiler ends with its context.
func TestCompilerIsBusy(t *testing.T) {
	began, end := make(chan struct{}), make(chan struct{})
	c := newCache(2, 2, 3, func(c *v1alpha1.CelCheck, _ Scope) (*Program, string) {
		if c.Rules[0].Expression == "slow" {
			close(began)
			<-end
		}
		return &Program{}, ""
	})
	done := make(chan error, 1)
	go func() {
		_, _, err := c.compile(t.Context(), check("slow"), OfRequest, false)
		done <- err
	}()
	<-began
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	p, _, err := c.compile(gone, check("quick"), OfRequest, true)
	if p != nil || err == nil || !strings.Contains(err.Error(), "the compiler of rules has too much to do") {
		t.Errorf("%v, %v", p, err)
	}
	close(end)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if p, _, err := c.compile(t.Context(), check("quick"), OfRequest, true); p == nil || err != nil {
		t.Errorf("%v, %v", p, err)
	}
}

// TestManyChecks: a thousand different checks take no more memory than the cache has room for.
func TestManyChecks(t *testing.T) {
	c := newCache(maxOfOperator, maxPrograms, maxProblems, compile)
	heap := func() int {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int(stats.HeapAlloc)
	}
	// One is compiled in a few milliseconds.
	long := func(n int) *v1alpha1.CelCheck {
		rule := fmt.Sprintf("pod.metadata.name != 'n%d'", n)
		return check(rule + strings.Repeat(" && has(pod.a.b)", (1024-len(rule))/len(" && has(pod.a.b)")))
	}
	compiled := func(n int) *Program {
		p, problem, err := c.compile(t.Context(), long(n), PerPod, false)
		if problem != "" || err != nil {
			t.Fatal(problem, err)
		}
		return p
	}
	compiled(0)
	before, grown := heap(), 0
	for i := range 1000 {
		compiled(i)
		if i == maxPrograms {
			grown = heap() - before
		}
	}
	after := heap() - before
	t.Logf("%d KiB after %d checks, %d KiB after all", grown>>10, maxPrograms, after>>10)
	if c.programs[false].Len() != maxPrograms || after > grown+grown/2+1<<20 {
		t.Errorf("%d programs take %d KiB, and %d KiB after %d of them", c.programs[false].Len(), after>>10, grown>>10, maxPrograms)
	}
	if again := compiled(999); again == nil || c.compiled.Load() != 1000 {
		t.Errorf("%d were compiled", c.compiled.Load())
	}
}
