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

package promql

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/promql/parser"
)

func variables() Variables {
	return Variables{
		Namespace: "shop", Workload: "web", Version: "6a8f", Pods: []string{"web-1", "web-2"}, NewPods: []string{"web-2"},
		Range: "2m", PodLabel: "pod", NamespaceLabel: "namespace",
	}
}

func TestResolve(t *testing.T) {
	for name, test := range map[string]struct {
		query, want string
		only        string
		change      func(*Variables)
	}{
		"all variables": {
			query: `sum(rate(errors{$namespaceLabel="$namespace",$podLabel=~"$pods",w="$workload",v="$version"}[$range]))`,
			want:  `sum(rate(errors{namespace="shop",pod=~"web-1|web-2",v="6a8f",w="web"}[2m]))`,
		},
		"other pods, in single quotes and back quotes": {
			query: "a{pod=~'$newPods'} / b{pod=~`$oldPods`}", want: `a{pod=~"web-2"} / b{pod=~"-"}`,
		},
		"a dot in the name of a pod is no wildcard": {
			query: `a{pod=~"$pods"}`, want: `a{pod=~"web[.]v1"}`, change: func(v *Variables) { v.Pods = []string{"web.v1"} },
		},
		"dollar signs that are no variables": {
			query: `label_replace(a{b=~"x$"}, "c", "$1-${1}", "d", "(.*)$")`, want: `label_replace(a{b=~"x$"}, "c", "$1-${1}", "d", "(.*)$")`,
		},
		"a number": {query: "1 + time()", want: "1 + time()", only: "shop"},
		"limited to a namespace": {
			query: `sum(a) by (pod) / b{c="d"}`, want: `sum by (pod) (a{namespace="shop"}) / b{c="d",namespace="shop"}`, only: "shop",
		},
		"limited by another label": {
			query: "a", want: `a{k8s_ns="shop"}`, only: "shop", change: func(v *Variables) { v.NamespaceLabel = "k8s_ns" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := variables()
			if test.change != nil {
				test.change(&v)
			}
			q, err := Resolve(test.query, v, test.only)
			if err != nil || q.Text != test.want {
				t.Errorf("got %+v, %v, want %s", q, err, test.want)
			}
		})
	}
}

// TestOtherTenants: each way to write a selector gets the matcher of the namespace, or does not parse.
func TestOtherTenants(t *testing.T) {
	const mine = `namespace="shop"`
	for name, test := range map[string]struct {
		query string
		// selectors is the number of selectors of the result; err is part of the error instead.
		selectors int
		err       string
	}{
		"another namespace":            {query: `a{namespace="bank"}`, selectors: 1},
		"all namespaces":               {query: `a{namespace=~".*"}`, selectors: 1},
		"not the own namespace":        {query: `a{namespace!="shop"}`, selectors: 1},
		"the label twice":              {query: `a{namespace="shop",namespace="bank"}`, selectors: 1},
		"the label in quotes":          {query: `{"a", "namespace"="bank"}`, selectors: 1},
		"the label in single quotes":   {query: `{'a', 'namespace'='bank'}`, selectors: 1},
		"a label beyond ASCII":         {query: `{"héllo", "nämespace"="bank", "name.space"="bank"}`, selectors: 1},
		"escapes in a label":           {query: `{"a", "n\u0061mespace"="bank"}`, selectors: 1},
		"the name as a matcher":        {query: `{__name__="a", namespace="bank"}`, selectors: 1},
		"all names":                    {query: `{__name__=~".+"}`, selectors: 1},
		"a name that ends a selector":  {query: `{"a} or b{namespace='bank'"}`, selectors: 1},
		"a value that ends a selector": {query: `a{b="\"} or b{namespace='bank'} or c{x=\""}`, selectors: 1},
		"alternatives in a selector":   {query: `a{b="c" or namespace="bank"}`, err: "does not parse"},
		"alternatives":                 {query: `a{c="d"} or b{namespace="bank"} or c`, selectors: 3},
		"unless":                       {query: `a unless b`, selectors: 2},
		"a subquery":                   {query: `max_over_time(rate(a{namespace="bank"}[1m])[5m:30s])`, selectors: 1},
		"a subquery of a subquery":     {query: `max_over_time(sum_over_time(a[5m:1m])[1h:5m])`, selectors: 1},
		"an offset":                    {query: `a offset 5m + b offset -5m`, selectors: 2},
		"another time":                 {query: `a @ 1700000000 + b @ end() + c @ start()`, selectors: 3},
		"a range and a time":           {query: `rate(a[5m] @ 1700000000 offset 1m)`, selectors: 1},
		"absent":                       {query: `absent(a{namespace="bank"})`, selectors: 1},
		"absent over time":             {query: `absent_over_time(a{namespace="bank"}[5m])`, selectors: 1},
		"another label afterwards":     {query: `label_replace(a, "namespace", "shop", "namespace", ".*")`, selectors: 1},
		"joined labels":                {query: `label_join(a, "namespace", "-", "b", "c")`, selectors: 1},
		"the parameter of topk":        {query: `topk(scalar(a{namespace="bank"}), b)`, selectors: 2},
		"the parameter of quantile":    {query: `quantile by (namespace) (scalar(a), b)`, selectors: 2},
		"a join with other series":     {query: `a * on(pod) group_left(namespace) b{namespace="bank"}`, selectors: 2},
		"counted values":               {query: `count_values("namespace", a)`, selectors: 1},
		"a scalar":                     {query: `vector(scalar(a{namespace="bank"}))`, selectors: 1},
		"a sign":                       {query: `-a{namespace="bank"}`, selectors: 1},
		"a comment":                    {query: "a # {namespace=\"shop\"}\n", selectors: 1},
		"a comment with the matcher":   {query: "a{ # namespace=\"shop\",\n namespace=\"bank\"}", selectors: 1},
		"a comment within strings":     {query: `a{b="# c"} + d`, selectors: 2},
		"info, which has no selector":  {query: `info(a)`, err: "does not parse"},
		"info with a selector":         {query: `info(a, {namespace="bank"})`, err: "does not parse"},
		"another experimental one":     {query: `limitk(1, a)`, err: "does not parse"},
		"series as the result":         {query: `a[5m]`, err: "must be an instant vector or a scalar"},
		"a text as the result":         {query: `"a"`, err: "must be an instant vector or a scalar"},
		"two queries":                  {query: "a\n;b", err: "does not parse"},
		"a variable as a way out":      {query: `a{$namespaceLabel=~"$namespace|bank"}`, selectors: 1},
		"another variable":             {query: `a{namespace="$tenant"}`, err: "the variable $tenant is not known: use one of $namespace, $"},
		"a variable of compare":        {query: `a{service="$service"}`, err: "$service is not known"},
		"a template of Helm":           {query: `a{namespace="{{ .Release }}"}`, selectors: 1},
	} {
		t.Run(name, func(t *testing.T) {
			q, err := Resolve(test.query, variables(), "shop")
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %+v, error %v, want %q", q, err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			// The server parses the text, so its selectors count.
			parsed, err := parser.NewParser(parser.Options{}).ParseExpr(q.Text)
			if err != nil {
				t.Fatalf("the server cannot parse %s: %v", q.Text, err)
			}
			all := selectors(parsed)
			if len(all) != test.selectors || strings.Count(q.Text, mine) < test.selectors {
				t.Errorf("%d selectors in %s, want %d", len(all), q.Text, test.selectors)
			}
			for _, s := range all {
				if !isLimited(s, "namespace", "shop") {
					t.Errorf("%s reads other namespaces in %s", s, q.Text)
				}
			}
		})
	}
}

// TestVariablesAreNoQuery: values of variables cannot end a string of the query.
func TestVariablesAreNoQuery(t *testing.T) {
	for _, bad := range []string{`a"} or b{x="`, "a'", "a`", "a\n", "a\\", "a b", ""} {
		v := variables()
		v.Workload = bad
		if q, err := Resolve(`a{b="$workload"}`, v, "shop"); err == nil {
			t.Errorf("the workload %q made %s", bad, q.Text)
		}
		v = variables()
		v.Pods = []string{"web-1", bad}
		if q, err := Resolve(`a{b=~"$pods"}`, v, "shop"); err == nil && bad != "" {
			t.Errorf("the pod %q made %s", bad, q.Text)
		}
	}
}

// TestBounds: a query that takes long to parse, or much memory, is refused before.
func TestBounds(t *testing.T) {
	many := make([]string, 5000)
	for i := range many {
		many[i] = fmt.Sprintf("web-%04d-%s", i, strings.Repeat("x", 40))
	}
	v := variables()
	v.Pods = many
	q, err := Resolve(`a{pod=~"$pods"}`, v, "shop")
	if err != nil || strings.Count(q.Text, "|") != MaxPods-1 {
		t.Errorf("%d pods in the query, %v", strings.Count(q.Text, "|")+1, err)
	}
	again, err := Resolve(`a{pod=~"$pods"}`, v, "shop")
	if err != nil || again.Text != q.Text {
		t.Error("other pods were chosen at the second time")
	}
	for name, test := range map[string]struct{ query, err string }{
		"lists of pods":       {strings.Repeat(`a{pod=~"$pods"} + `, 30) + "1", "use each list of pods once"},
		"long repetitions":    {`a{b=~"(` + strings.Repeat("x", 3000) + `){100}"}`, "patterns are too large"},
		"repetitions":         {`a{b=~"` + strings.Repeat("x{1000}", 100) + `"}`, "patterns are too large"},
		"nested repetitions":  {`a{b=~"((x{100}){100}){9}"}`, "patterns are too large"},
		"after a comment":     {"a{b=~ # c\n'" + strings.Repeat("x{900}", 2) + "'}", "patterns are too large"},
		"behind a variable":   {`sum(rate(a[$range])) + b{c!~"` + strings.Repeat("x{900}", 2) + `"}`, "patterns are too large"},
		"parentheses":         {strings.Repeat("(", 2000) + "a" + strings.Repeat(")", 2000), "within one another"},
		"signs":               {strings.Repeat("-", 4000) + "a", "within one another"},
		"a broken expression": {"sum(a", "does not parse: 1:6: parse error"},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			if _, err := Resolve(test.query, v, "shop"); err == nil || !strings.Contains(err.Error(), test.err) || len(err.Error()) > 500 {
				t.Errorf("error %v, want %q", err, test.err)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func TestSample(t *testing.T) {
	if got := Sample([]string{"c", "a", "b"}, 3); !cmp.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("got %v", got)
	}
	got, reversed := Sample([]string{"a", "b", "c", "d"}, 2), Sample([]string{"d", "c", "b", "a"}, 2)
	if !cmp.Equal(got, reversed) || len(got) != 2 {
		t.Errorf("got %v and %v", got, reversed)
	}
}

func TestExplain(t *testing.T) {
	q, err := Resolve(`sum(rate(errors_total{pod=~"$pods",code="500"}[$range])) / sum(rate({__name__="x"}[$range]))`, variables(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{
		{Text: `count(count_over_time(errors_total{namespace="shop"}[2m]))`, Metric: "errors_total"},
		{
			Text: `count(count_over_time(errors_total{code="500",namespace="shop"}[2m]))`, Metric: "errors_total",
			Matcher: `code="500"`, Label: "code",
		},
		{
			Text: `count(count_over_time(errors_total{code="500",namespace="shop",pod=~"web-1|web-2"}[2m]))`, Metric: "errors_total",
			Matcher: `pod=~"web-1|web-2"`, Label: "pod",
		},
	}
	if diff := cmp.Diff(want, q.Explain("2m", "namespace")); diff != "" {
		t.Error(diff)
	}
	for _, step := range want {
		if _, err := parse(step.Text); err != nil {
			t.Errorf("%s: %v", step.Text, err)
		}
	}
}

// FuzzNamespace: no query reads series of another namespace.
func FuzzNamespace(f *testing.F) {
	for _, seed := range []string{
		`a{b="c"}`, `{"a\"b", "n s"="x"} or {__name__=~".+"}`, `max_over_time(a[5m:1m] @ end() offset 1m)`, `topk(scalar(a), b) # c`,
		"label_replace(a{x=~`$pods`}, '$1', \"$namespace\", 'b', '')", `sum without (x) (-a ^ 2) / on () group_right () b`, `a[5m] anchored`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		q, err := Resolve(query, variables(), "shop")
		if err != nil {
			return
		}
		parsed, err := parser.NewParser(parser.Options{}).ParseExpr(q.Text)
		if err != nil {
			t.Fatalf("%q became %q: %v", query, q.Text, err)
		}
		for _, s := range selectors(parsed) {
			if !isLimited(s, "namespace", "shop") {
				t.Errorf("%q became %q", query, q.Text)
			}
		}
	})
}
