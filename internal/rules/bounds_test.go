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
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// peak returns the largest growth of the heap during a call, in bytes.
func peak(do func()) int {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	before := stats.HeapAlloc
	done, seen := make(chan struct{}), make(chan uint64)
	go func() {
		ticks := time.NewTicker(time.Millisecond)
		defer ticks.Stop()
		most := before
		for {
			runtime.ReadMemStats(&stats)
			most = max(most, stats.HeapAlloc)
			select {
			case <-done:
				seen <- most
				return
			case <-ticks.C:
			}
		}
	}()
	do()
	close(done)
	return int(<-seen - before)
}

// within sets the time of evaluations.
func within(t *testing.T, limit time.Duration) {
	t.Helper()
	was := maxTime
	t.Cleanup(func() { maxTime = was })
	maxTime = limit
}

// variables returns a check with eight variables of the same expression, and a rule that reads
// all of them.
func variables(expression string) *v1alpha1.CelCheck {
	var list, rule []string
	for i := range 8 {
		list = append(list, fmt.Sprintf("v%d", i), expression)
		rule = append(rule, fmt.Sprintf("size(dyn(variables.v%d)) > 0", i))
	}
	return with(check(strings.Join(rule, " && ")), list...)
}

// large returns an object with long strings and long lists.
func large(length, entries int) map[string]any {
	many := make([]any, entries)
	for i := range many {
		many[i] = int64(i)
	}
	return map[string]any{
		"long":   strings.Repeat("x", length),
		"wide":   strings.Repeat("😀", length/4),
		"middle": strings.Repeat("y", 60<<10),
		"text":   strings.Repeat("x", 16<<10),
		"short":  strings.Repeat("z", 4<<10),
		"some":   many[:min(entries, 200)],
		"many":   many,
		"deep":   map[string]any{"a": map[string]any{"b": map[string]any{"c": map[string]any{"d": map[string]any{"e": int64(1)}}}}},
	}
}

// TestMemory: an evaluation that makes too much fails, and does not use much memory.
func TestMemory(t *testing.T) {
	within(t, 2*time.Second) // so that the memory is the first bound, on a slow machine too
	// Garbage counts as growth, so GOGC must be small.
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	parts := func(format, with string, n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(fmt.Sprintf(format+",", with), n), ",") + "]"
	}
	loop := func(entries string) *v1alpha1.CelCheck {
		return variables("object.some.map(i, object.some.map(j, " + entries + "))")
	}
	for name, test := range map[string]struct {
		check *v1alpha1.CelCheck
		err   string
	}{
		"a long string, in lower case": {variables(parts("%s.lowerAscii()", "object.wide", 6)), "makes more than 16 MiB"},
		"a long string, split":         {variables(parts("%s.split('')", "object.middle", 7)), "too long for split"},
		"strings, split":               {variables(parts("%s.split('')", "object.short", 60)), "makes more than 16 MiB"},
		"strings, joined":              {variables(parts("(%[1]s + 'y')", "object.middle", 40)), "makes more than 16 MiB"},
		"strings of a loop":            {variables("object.many.map(i, object.middle + string(int(i)))"), "makes more than 16 MiB"},
		"lists of loops":               {variables(parts("%[1]s.map(i, [i, i, i])", "object.many", 4)), "makes more than 16 MiB"},
		"lists of loops in loops":      {loop("[j]"), "makes more than 16 MiB"},
		"constants of loops":           {loop("[" + strings.Repeat("1,", 200) + "1]"), "makes more than 16 MiB"},
		"quantities of loops":          {loop("quantity('99999999999999999999999999e9')"), "makes more than 16 MiB"},
		"maps of loops": {
			variables("object.many.map(i, {'a': i, 'b': i, 'c': dyn({'d': i, 'e': i, 'f': dyn([i])})})"), "makes more than 16 MiB",
		},
		"the keys of a large map": {
			check("object.map.all(a, object.map.all(b, object.map.all(c, object.map.all(d, b != ''))))"), "took longer",
		},
		"reads of a loop": {check(fmt.Sprintf("object.many.all(i, %s)",
			strings.TrimSuffix(strings.Repeat("object.deep.a.b.c.d.e == 1 && ", 30), " && "))), ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, problem := compile(test.check, OfRequest)
			if problem != "" {
				t.Fatal(problem)
			}
			in := Input{Object: large(1<<20, 4000)}
			keys := map[string]any{}
			for i := range 60_000 {
				keys[fmt.Sprint("key", i)] = ""
			}
			in.Object["map"] = keys
			var err error
			began := time.Now()
			grown := peak(func() { _, err = p.Evaluate(t.Context(), in) })
			t.Logf("%d MiB after %s: %v", grown>>20, time.Since(began), err)
			if grown > 64<<20 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			}
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestCompared: the number of values that a comparison reads is bounded, at any nesting. A large
// value may be compared with a small one.
func TestCompared(t *testing.T) {
	within(t, 10*time.Second)
	ints := func(n int) (of []any) {
		for i := range n {
			of = append(of, int64(i))
		}
		return of
	}
	object := map[string]any{
		"most": ints(maxCompared - 1), "more": ints(maxCompared), "few": ints(300), "some": ints(400),
		"lists": slices.Repeat([]any{ints(300)}, 400), "maps": slices.Repeat([]any{map[string]any{"a": ints(300)}}, 400),
		"texts": slices.Repeat([]any{strings.Repeat("x", 64<<10)}, 100), "map": map[string]any{"a": ints(maxCompared)},
	}
	for rule, large := range map[string]bool{
		"object.most == object.most":                         false,
		"object.more == object.more":                         true,
		"object.more != object.more":                         true,
		"object.lists == object.lists":                       true,
		"object.maps == object.maps":                         true,
		"object.map == object.map":                           true,
		"object.texts == object.texts":                       true,
		"object.more == object.few":                          false,
		"object.few == object.more":                          false,
		"object.map != null":                                 false,
		"optional.of(object.map) == optional.of(object.map)": true,
		"7 in object.most":                                   false,
		"object.few in object.lists":                         true,
		"'a' in object.map":                                  false,
		"sets.contains(object.few, object.few)":              false,
		"sets.contains(object.some, object.some)":            true,
		"sets.intersects(object.more, [7])":                  true,
		"sets.equivalent(object.few, [7])":                   false,
	} {
		t.Run(rule, func(t *testing.T) {
			p, problem := compile(check("("+rule+") in [true, false]"), OfRequest)
			if problem != "" {
				t.Fatal(problem)
			}
			_, err := p.Evaluate(t.Context(), Input{Object: object})
			refused := err != nil && strings.Contains(err.Error(), "values are too large to be compared")
			if large != refused || !large && err != nil {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestTime: an evaluation that takes too long is interrupted.
func TestTime(t *testing.T) {
	within(t, time.Millisecond)
	p, problem := compile(variables("object.many.map(i, object.some.map(j, j))"), OfRequest)
	if problem != "" {
		t.Fatal(problem)
	}
	_, err := p.Evaluate(t.Context(), Input{Object: large(1<<20, 4000)})
	if err == nil || !strings.Contains(err.Error(), "took longer than 1ms") {
		t.Errorf("error %v", err)
	}
}

// TestOrdinary: usual checks are far below all bounds.
func TestOrdinary(t *testing.T) {
	for name, test := range map[string]struct {
		check            *v1alpha1.CelCheck
		pods, containers int
	}{
		"containers of a deployment": {check(
			"pod.spec.containers.all(c, c.image.lowerAscii().split('/')[0] == 'registry.example' && c.name in ['c0', 'x'] || "+
				"c.env.all(e, !e.value.contains('password')))",
			"pod.spec.containers.map(c, c.name + ':' + c.image).all(n, n.contains(':'))",
			"pod.spec.containers.all(c, pod.spec.containers.exists_one(d, d.name == c.name))"), 3, 50},
		"each pod": {check("pod.metadata.labels.app.matches('^w') && " +
			"pod.spec.containers.map(c, {'n': string(c.name), 'i': c.image.substring(8)}).all(m, m.n != m.i)"), 200, 10},
		"pods of a batch": {with(ofBatch("variables.names.all(n, variables.names.exists_one(m, m == n))",
			"pods.all(p, p.spec.containers.all(c, c.env.all(e, e.name == 'A')))"),
			"names", "pods.map(p, p.metadata.name)"), 200, 10},
		"all containers of a batch": {with(ofBatch("size(variables.images) == 200", "pods.all(p, p.spec.containers.exists(c, c.name == 'c49'))",
			"pods.all(p, p.spec.containers.all(c, quantity(c.name == '' ? '1' : '2Gi').isGreaterThan(quantity('1Gi'))))"),
			"images", "pods.map(p, p.spec.containers.map(c, c.image))"), 200, 50},
	} {
		t.Run(name, func(t *testing.T) {
			p, problem := ofBatchPost(test.check)
			if problem != "" {
				t.Fatal(problem)
			}
			in, began := input(test.pods, test.containers), time.Now()
			failures, err := p.Evaluate(t.Context(), in)
			t.Logf("it took %s", time.Since(began))
			if err != nil || len(failures) > 0 {
				t.Errorf("%v, error %v", failures, err)
			}
		})
	}
}
