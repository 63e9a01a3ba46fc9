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
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// writer writes expressions of the environment by random bytes.
type writer struct {
	choices []byte
	// names of the variables of the enclosing loops.
	names []string
	left  int
}

func (w *writer) choose(n int) int {
	if len(w.choices) == 0 {
		return 0
	}
	c := int(w.choices[0])
	w.choices = w.choices[1:]
	return c % n
}

func pick[T any](w *writer, of ...T) T { return of[w.choose(len(of))] }

// expression returns an expression of any type: most of them do not compile.
func (w *writer) expression(depth int) string {
	if w.left--; depth <= 0 || w.left <= 0 {
		return w.leaf()
	}
	sub := func() string { return w.expression(depth - 1) }
	switch w.choose(12) {
	case 0:
		return w.leaf()
	case 1:
		return fmt.Sprintf("(%s %s %s)", sub(), pick(w, "==", "!=", "<", ">=", "in", "+", "-", "*", "/", "%", "&&", "||"), sub())
	case 2, 3:
		name := fmt.Sprintf("n%d", len(w.names))
		list := sub()
		w.names = append(w.names, name)
		body := sub()
		w.names = w.names[:len(w.names)-1]
		return fmt.Sprintf("%s.%s(%s, %s)", list, pick(w, "map", "filter", "all", "exists", "exists_one"), name, body)
	case 4:
		return fmt.Sprintf("[%s]", strings.Join([]string{sub(), sub(), sub()}[:1+w.choose(3)], ", "))
	case 5:
		return fmt.Sprintf(pick(w, "{%s: %s}", "{string(%s): %s}", "{dyn(%s): dyn(%s)}", "{?dyn(%s): dyn(%s)}"), sub(), sub())
	case 6:
		return fmt.Sprintf("%s[%s]", sub(), sub())
	case 7:
		return sub() + pick(w, ".size()", ".trim()", ".lowerAscii()", ".split('')", ".split('x')", ".substring(1)", ".orValue(1)",
			".matches('(?:x?){300}x{300}y')", ".matches('(a|b)*c')", ".isInteger()", ".sign()", ".asInteger()", ".last()")
	case 8:
		function := pick(w, "contains", "startsWith", "endsWith", "split", "add", "sub", "compareTo", "isLessThan", "substring")
		return fmt.Sprintf("%s.%s(%s)", sub(), function, sub())
	case 9:
		return fmt.Sprintf(pick(w, "[?dyn(%s)]", "google.protobuf.ListValue{values: %s}", "google.protobuf.Value{list_value: %s}",
			"google.protobuf.Struct{fields: {'a': dyn(%s)}}"), sub())
	case 10: // a chain doubles what each link copies
		link := pick(w, ".optMap(x, x)", ".optFlatMap(x, optional.of(x))", ".map(x, [x, x])", ".map(x, {x: x})", ".map(x, {dyn(x): x})", ".?a",
			".or(optional.none())", " + []")
		return pick(w, "optional.none()", "[]", sub()) + strings.Repeat(link, 1+w.choose(24))
	default:
		function := pick(w, "sets.contains", "sets.equivalent", "sets.intersects", "size", "dyn", "string", "int", "double",
			"quantity", "isQuantity", "timestamp", "duration", "type", "optional.of")
		if strings.HasPrefix(function, "sets.") {
			return fmt.Sprintf("%s(%s, %s)", function, sub(), sub())
		}
		return fmt.Sprintf("%s(%s)", function, sub())
	}
}

func (w *writer) leaf() string {
	leaves := append([]string{
		"object.long", "object.many", "object.text", "object.map", "object.short", "object", "object.deep", "1", "'x'", "true", "[]", "2.5",
		"'1e99'", "'99999999999999999999999999999e99'", "null", "object.some", "object.?no",
		"optional.none()", "{}", "variables.a", "variables.b",
	}, w.names...)
	return leaves[w.choose(len(leaves))]
}

// FuzzExpressions: no check takes longer than a second of processor time.
func FuzzExpressions(f *testing.F) {
	for i := range 64 {
		seed := make([]byte, 48)
		for j := range seed {
			seed[j] = byte((i*131 + j*(i+7)*29) >> 2)
		}
		f.Add(seed)
	}
	in := Input{Object: large(1<<20, 5000)}
	in.Object["map"] = map[string]any{"a": "b", "x": in.Object["deep"], "list": in.Object["many"]}
	f.Fuzz(func(t *testing.T, choices []byte) {
		w := &writer{choices: choices, left: 200}
		c := &v1alpha1.CelCheck{Rules: []v1alpha1.CelRule{{}}}
		for _, name := range []string{"a", "b"} {
			c.Variables = append(c.Variables, v1alpha1.CelVariable{Name: name, Expression: "dyn(" + w.expression(5) + ")"})
		}
		c.Rules[0].Expression = fmt.Sprintf("dyn(%s) == %s", w.expression(6), w.expression(5))
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		began := threadTime(t)
		p, problem := compile(c, OfRequest)
		if problem != "" {
			c.Variables = nil // the rules may compile without them
			p, problem = compile(c, OfRequest)
		}
		if problem == "" {
			_, err := p.Evaluate(t.Context(), in)
			if err != nil && strings.Contains(err.Error(), "internal error") {
				t.Fatalf("%v of %+v", err, c)
			}
		}
		if took := threadTime(t) - began; took >= time.Second {
			t.Errorf("%s for %+v", took, c)
		}
	})
}
