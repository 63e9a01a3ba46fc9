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
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// peak is how many bytes the heap grows by while something is done, at the most that was
// seen.
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

// variables are eight of the same expression, and a rule that reads all of them.
func variables(expression string) *v1alpha1.CelCheck {
	var list, rule []string
	for i := range 8 {
		list = append(list, fmt.Sprintf("v%d", i), expression)
		rule = append(rule, fmt.Sprintf("size(dyn(variables.v%d)) > 0", i))
	}
	return with(check(strings.Join(rule, " && ")), list...)
}

// large is an object with a long string in many ways, and a long list.
func large(length, entries int) map[string]any {
	many := make([]any, entries)
	for i := range many {
		many[i] = int64(i)
	}
	return map[string]any{
		"long":   strings.Repeat("x", length),
		"wide":   strings.Repeat("😀", length/4),
		"middle": strings.Repeat("y", 60<<10),
		"many":   many,
		"deep":   map[string]any{"a": map[string]any{"b": map[string]any{"c": map[string]any{"d": map[string]any{"e": int64(1)}}}}},
	}
}

// TestMemory: whatever a check makes, one evaluation stays small, and is an error.
func TestMemory(t *testing.T) {
	parts := func(format, with string, n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(fmt.Sprintf(format+",", with), n), ",") + "]"
	}
	for name, test := range map[string]struct {
		check *v1alpha1.CelCheck
		err   string
	}{
		"a long string, split":         {variables(parts("%s.split('')", "object.long", 6)), "too large for what is done with it"},
		"a long string, in lower case": {variables(parts("%s.lowerAscii()", "object.wide", 6)), "too large for what is done with it"},
		"strings, split":               {variables(parts("%s.split('')", "object.middle", 7)), "makes more than 16 MiB"},
		"strings, joined":              {variables(parts("(%[1]s + %[1]s)", "object.middle", 40)), "makes more than 16 MiB"},
		"strings, in upper case":       {variables(parts("%s.upperAscii()", "object.middle", 60)), "makes more than 16 MiB"},
		"strings, as bytes":            {variables(parts("bytes(string(%s))", "object.middle", 40)), "makes more than 16 MiB"},
		"strings of a loop":            {variables("object.many.slice(0, 100).map(i, object.middle + string(int(i)))"), "makes more than 16 MiB"},
		"lists of loops":               {variables(parts("%[1]s.map(i, [i, i, i])", "object.many", 4)), "makes more than 16 MiB"},
		"lists of loops in loops":      {variables("object.many.slice(0, 200).map(i, object.many.slice(0, 200).map(j, [j]))"), "makes more than 16 MiB"},
		"maps of loops":                {variables("object.many.map(i, {'a': i, 'b': i, 'c': dyn({'d': i, 'e': i, 'f': dyn([i])})})"), "makes more than 16 MiB"},
		"what a loop looks at": {check(fmt.Sprintf("object.many.all(i, %s)",
			strings.TrimSuffix(strings.Repeat("object.deep.a.b.c.d.e == 1 && ", 30), " && "))), "makes more than 16 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			p, problem := compile(test.check, OfRequest)
			if problem != "" {
				t.Fatal(problem)
			}
			in := Input{Object: large(1<<20, 4000)}
			var err error
			began := time.Now()
			grown := peak(func() { _, err = p.Evaluate(t.Context(), in, MaxTotalCost) })
			t.Logf("%d MiB after %s: %v", grown>>20, time.Since(began), err)
			if grown > 64<<20 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			}
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestMain(m *testing.M) {
	maxTime = time.Minute
	os.Exit(m.Run())
}

// TestTime: what the other bounds let pass for too long is interrupted.
func TestTime(t *testing.T) {
	defer func(was time.Duration) { maxTime = was }(maxTime)
	maxTime = time.Millisecond
	p, problem := compile(variables("object.many.map(i, object.many.slice(0, 20).map(j, j))"), OfRequest)
	if problem != "" {
		t.Fatal(problem)
	}
	if _, err := p.Evaluate(t.Context(), Input{Object: large(1<<20, 4000)}, MaxTotalCost); err == nil || !strings.Contains(err.Error(), "took longer than 1ms") {
		t.Errorf("error %v", err)
	}
}

// TestWalks: a list that is longer than what is walked is an error, not a long time.
func TestWalks(t *testing.T) {
	for name, test := range map[string]struct {
		rule    string
		entries int
		err     string
	}{
		"as long as may be":    {"object.many.all(a, a < 5000)", 5000, ""},
		"longer":               {"object.many.all(a, a < 5001)", 5001, "the list has 5001 entries, at most 5000 are walked"},
		"a map of it":          {"object.many.map(a, a).size() == 0", 40_000, "the list has 40000 entries, at most 5000 are walked"},
		"a filter of it":       {"object.many.filter(a, a < 3).size() == 3", 40_000, "the list has 40000 entries, at most 5000 are walked"},
		"two of it":            {"object.many.all(i, v, i == v)", 40_000, "the list has 40000 entries, at most 5000 are walked"},
		"one that was made":    {"(object.many + object.many).exists(a, a < 0)", 4000, "the list has 8000 entries, at most 5000 are walked"},
		"one of two":           {"(object.many[0] == 0 ? object.many : [1]).exists(a, a < 0)", 6000, "the list has 6000 entries, at most 5000 are walked"},
		"the entries of a map": {"object.map.all(k, k != '')", 6000, "the list has 6000 entries, at most 5000 are walked"},
		"one of the text":      {"[" + strings.TrimSuffix(strings.Repeat("1,", 5001), ",") + "].all(a, a == 1)", 1, "the list has 5001 entries, at most 5000 are walked"},
		"a part of it":         {"object.many.slice(0, 100).all(a, a < 100)", 4000, ""},
		"within another":       {"object.many.all(a, object.many.filter(b, b < 30).all(c, c >= 0))", 2500, "loops within loops"},
		"many, one by one":     {strings.TrimSuffix(strings.Repeat("object.many.all(a, a >= 0) && ", 5), " && "), 5000, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, problem := compile(check(test.rule), OfRequest)
			if problem != "" {
				t.Fatal(problem)
			}
			in := Input{Object: large(1, test.entries)}
			entries := map[string]any{}
			for i := range test.entries {
				entries[fmt.Sprint(i)] = int64(i)
			}
			in.Object["map"] = entries
			began := time.Now()
			failures, err := p.Evaluate(t.Context(), in, MaxTotalCost)
			t.Logf("after %s: %v", time.Since(began), err)
			if test.err == "" && (err != nil || len(failures) > 0) || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("%v, error %v", failures, err)
			}
		})
	}
}

// TestOrdinary: what is usual is far from all bounds.
func TestOrdinary(t *testing.T) {
	for name, test := range map[string]struct {
		check            *v1alpha1.CelCheck
		pods, containers int
	}{
		"containers of a deployment": {check("pod.spec.containers.all(c, c.image.lowerAscii().split('/')[0] == 'registry.example' && c.name in ['c0', 'x'] || c.env.all(e, !e.value.contains('password')))",
			"pod.spec.containers.map(c, c.name + ':' + c.image).join(',').size() > 0", "pod.spec.containers.map(c, c.name).distinct().size() == 50"), 3, 50},
		"pods, each": {check("pod.metadata.labels.app.matches('^w') && pod.spec.containers.map(c, {'n': string(c.name), 'i': c.image.replace('registry', 'r')}).all(m, m.n != m.i)"), 200, 10},
		"pods of a batch": {with(ofBatch("variables.names.all(n, variables.names.exists_one(m, m == n))", "pods.all(p, p.spec.containers.all(c, c.env.all(e, e.name == 'A')))"),
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
			if failures, err := p.Evaluate(t.Context(), input(test.pods, test.containers), MaxTotalCost); err != nil || len(failures) > 0 {
				t.Errorf("%v, error %v", failures, err)
			}
		})
	}
}
