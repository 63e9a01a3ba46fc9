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
	"slices"
	"strings"
	"testing"
	"time"
)

func nothing([]string, bool) bool { return false }

// TestCompileValue: an expression that is refused names what is wrong with it.
func TestCompileValue(t *testing.T) {
	hides := func(field []string, tested bool) bool {
		return slices.ContainsFunc([][]string{{"spec", "template"}, {"data"}}, func(content []string) bool {
			shared := min(len(field), len(content))
			return slices.Equal(field[:shared], content[:shared]) && (len(field) >= len(content) || !tested)
		})
	}
	for text, test := range map[string]struct {
		scope Scope
		want  string
	}{
		"pod.metadata.labels['h'].endsWith(object.status.updateRevision.split('-').last())": {scope: OfPod},
		"revision != null && revision.name == pod.metadata.name":                            {scope: OfPod},
		"timestamp(object.status.lastSuccessfulTime) > since":                               {scope: OfRollout},
		"has(object.spec) && object.?spec.?replicas.orValue(1) == 1":                        {scope: OfRollout},
		"object[?'spec'][?'replicas'].orValue(1) == 1":                                      {scope: OfRollout},
		"object.spec.templates == 1 && object.metadata.name == ''":                          {scope: OfObject},
		"object.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')":       {scope: OfObject},

		"object.status.ready":                {OfRollout, "it must be of the type bool, and is of the type dyn; compare it with a value"},
		"'yes'":                              {OfRollout, "of the type string"},
		"pod.metadata.name == ''":            {OfRollout, "undeclared reference to 'pod'"},
		"since > timestamp(object.status.a)": {OfPod, "undeclared reference to 'since'"},
		"object.status.a ==":                 {OfRollout, "it does not compile: line 1, column 19"},
		"now() > since":                      {OfRollout, "the function now with 0 arguments is not available"},
		"object.a.all(a, object.a.all(b, object.a.all(c, object.a.all(d, object.a.all(e, object.a.all(f, a == f))))))": {
			OfRollout, "it costs too much"},
		"object.spec.template.spec.x == 1":                             {OfPod, "it reads object.spec.template.spec.x, which has content"},
		"has(object.spec.template)":                                    {OfPod, "it reads object.spec.template,"},
		"object.spec['template'] == null":                              {OfPod, "it reads object.spec.template,"},
		"object.?spec.?template.?spec.hasValue()":                      {OfPod, "it reads object.spec.template.spec,"},
		"object[?'spec'][?'template'].hasValue()":                      {OfPod, "it reads object.spec.template,"},
		"object.spec == object.status":                                 {OfPod, "it reads object.spec,"},
		"object.spec.all(key, key != '')":                              {OfPod, "it reads object.spec,"},
		"object.spec[object.status.field] == 1":                        {OfPod, "it reads object.spec,"},
		"object == null":                                               {OfPod, "it reads object,"},
		"pod.metadata.name == object.data.name":                        {OfPod, "it reads object.data.name,"},
		"[object].exists(o, o.spec.template == null)":                  {OfPod, "it reads object,"},
		"object.status.a == 1 || object.spec.template.a == 1":          {OfPod, "it reads object.spec.template.a,"},
		strings.Repeat("object.a || ", 334) + "true":                   {OfPod, "at most 1000 are allowed; shorten it"},
		"'" + strings.Repeat("a", maxText) + "' == object.status.text": {OfPod, "more than 16384 bytes"},
	} {
		_, problem := CompileValue[bool](text, test.scope, hides)
		if test.want == "" && problem != "" || !strings.Contains(problem, test.want) {
			t.Errorf("%.100s: %q, want %q", text, problem, test.want)
		}
	}
	if _, problem := CompileValue[string]("object.status.reason", OfRollout, nothing); !strings.Contains(problem, "convert it: string(...)") {
		t.Error(problem)
	}
}

func TestEvalValue(t *testing.T) {
	of := Object{
		Object: map[string]any{"status": map[string]any{"phase": "Healthy", "revision": "web-abc", "at": "2026-11-27T22:00:00Z"}},
		Pod:    map[string]any{"metadata": map[string]any{"labels": map[string]any{"hash": "abc"}}},
		Since:  time.Date(2026, 11, 27, 21, 0, 0, 0, time.UTC),
	}
	for text, test := range map[string]struct {
		scope Scope
		want  bool
		err   string
	}{
		"pod.metadata.labels.hash == object.status.revision.split('-').last()": {scope: OfPod, want: true},
		"revision == null":                            {scope: OfPod, want: true},
		"object.status.phase == 'Degraded'":           {scope: OfRollout},
		"timestamp(object.status.at) > since":         {scope: OfRollout, want: true},
		"object.status.?none.orValue([]).last() == 1": {scope: OfRollout, err: "last: the list is empty"},
		"object.status.none == 1":                     {scope: OfRollout, err: "no such key: none"},
	} {
		v, problem := CompileValue[bool](text, test.scope, nothing)
		if problem != "" {
			t.Errorf("%s: %s", text, problem)
			continue
		}
		got, err := v.Eval(of)
		if got != test.want || (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %t, %v; want %t, %q", text, got, err, test.want, test.err)
		}
	}
	v, problem := CompileValue[string]("object.status.phase == 'Healthy' ? '' : string(object.status.phase)", OfRollout, nothing)
	if problem != "" {
		t.Fatal(problem)
	}
	if got, err := v.Eval(of); got != "" || err != nil {
		t.Error(got, err)
	}
	of.Object["status"] = map[string]any{"phase": "Degraded"}
	if got, err := v.Eval(of); got != "Degraded" || err != nil {
		t.Error(got, err)
	}
}

// TestEvalEnds: an evaluation has bounds of time and memory.
func TestEvalEnds(t *testing.T) {
	list := make([]any, 5000)
	for i := range list {
		list[i] = strings.Repeat("a", 100)
	}
	of := Object{Object: map[string]any{"a": list}}
	for text, want := range map[string]string{
		"object.a.all(x, object.a.all(y, (x + 'b') != y))": "",
		"object.a.map(x, object.a.map(y, x + y)) == []":    "it makes more than 16 MiB",
	} {
		v, problem := CompileValue[bool](text, OfObject, nothing)
		if problem != "" {
			t.Fatal(problem)
		}
		if _, err := v.Eval(of); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
