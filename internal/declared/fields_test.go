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

package declared

import (
	"reflect"
	"strings"
	"testing"
)

const haltSpec = "version: v1\ncontent: [{path: spec.template}]\nrollout: {partition: spec.partition, " +
	"halt: [{path: spec.strategy.paused, value: true}, {path: spec.strategy.step, value: 0}, {path: spec.mode, value: Manual}]}"

func TestHaltAndResume(t *testing.T) {
	k := accept(t, "things.example.com", haltSpec)
	for name, was := range map[string]string{
		"values":           "spec: {strategy: {paused: false, step: 3}, mode: Auto, other: 1}",
		"an empty object":  "spec: {strategy: {}, mode: Auto}",
		"halted by a user": "spec: {strategy: {paused: true, step: 0}, mode: Manual}",
		"halted in part":   "spec: {strategy: {paused: true}}",
		"a null":           "spec: {strategy: {paused: null}}",
	} {
		t.Run(name, func(t *testing.T) {
			before := object(t, was)
			ops, from, err := k.Halt(before)
			if err != nil {
				t.Fatal(err)
			}
			halted, err := apply(t, before, ops)
			if err != nil || !k.Halted(halted) {
				t.Fatal(halted, err)
			}
			ops, problem := k.Resume(halted, from)
			if problem != "" {
				t.Fatal(problem)
			}
			after, err := apply(t, halted, ops)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range k.halts {
				got, _ := get(after, h.path)
				if want, _ := get(before, h.path); !reflect.DeepEqual(got, want) {
					t.Errorf("%s is %v, want %v", h.path, got, want)
				}
			}
			// The guards: the patch does not apply to other values.
			if changed, err := apply(t, object(t, "spec: {strategy: {paused: false, step: 9}}"), ops); err == nil {
				t.Errorf("the patch applies to another object: %v", changed)
			}
		})
	}
}

// TestResumeKeepsUsersValue: a field that a user changed under a halt stays.
func TestResumeKeepsUsersValue(t *testing.T) {
	k := accept(t, "things.example.com", haltSpec)
	_, from, err := k.Halt(object(t, "spec: {strategy: {paused: false, step: 3}}"))
	if err != nil {
		t.Fatal(err)
	}
	now := object(t, "spec: {strategy: {paused: true, step: 9}, mode: Manual}")
	ops, problem := k.Resume(now, from)
	if problem != "" {
		t.Fatal(problem)
	}
	if got, err := apply(t, now, ops); err != nil || !reflect.DeepEqual(got, object(t, "spec: {strategy: {paused: false, step: 9}}")) {
		t.Error(got, err)
	}
}

// TestResumeReadsAnnotation: users can write the annotation, and the declaration may have changed. Only fields of its
// halts are written, with values that a halt can have had. The problem names each other field that still has its value.
func TestResumeReadsAnnotation(t *testing.T) {
	k := accept(t, "things.example.com", haltSpec)
	const before = "metadata: {name: a}\nspec: {template: {a: b}, account: dev, strategy: {step: 0}, mode: Manual}"
	for from, test := range map[string]struct{ account, mode, problem string }{
		`[{"path":"spec.mode","value":"Manual","was":"Auto"}]`:                                       {mode: "Auto"},
		`[{"path":"spec.mode","value":"Other","was":"Auto"}]`:                                        {},
		`[{"path":"spec.account","value":"dev","was":"admin"}]`:                                      {problem: "spec.account"},
		`[{"path":"spec.account","value":"prod","was":"admin"}]`:                                     {},
		`[{"path":"spec.mode","value":"Manual","was":{"x":1}}]`:                                      {problem: "spec.mode"},
		`[{"path":"spec.template","value":{"a":"b"},"was":"x"}]`:                                     {problem: "spec.template"},
		`[{"path":"spec.template.a","value":"b","was":"x"}]`:                                         {problem: "spec.template.a"},
		`[{"path":"metadata.name","value":"a","was":"x"}]`:                                           {problem: "metadata.name"},
		`[{"path":"spec.mode.x","value":1},{"path":"spec.mode","value":"Manual"}]`:                   {mode: "-"},
		`[{"path":"spec.account","value":"dev"},{"path":"spec.mode","value":"Manual","was":"Auto"}]`: {mode: "Auto", problem: "spec.account"},
		`[{"path":"spec.strategy.paused","value":null,"was":true}]`:                                  {problem: "spec.strategy.paused"},
		`[{"path":"spec.mode","value":"Manual","was":"` + strings.Repeat("a", 2000) + `"}]`:          {problem: "the annotation"},
		`[{},{},{},{},{"path":"spec.mode","value":"Manual","was":"Auto"}]`:                           {problem: "the annotation"},
		`no`: {problem: "the annotation"},
	} {
		now, want := object(t, before), object(t, before)
		spec := want["spec"].(map[string]any) //nolint:errcheck // by before
		switch test.mode {
		case "":
		case "-":
			delete(spec, "mode")
		default:
			spec["mode"] = test.mode
		}
		ops, problem := k.Resume(now, from)
		if !strings.HasPrefix(problem, test.problem) || test.problem == "" && problem != "" {
			t.Errorf("%.80s: %q, want %q", from, problem, test.problem)
		}
		if got, err := apply(t, now, ops); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%.80s: %v, %v; want %v", from, got, err, want)
		}
	}
	// A field that became content of the declaration stays halted.
	wide := accept(t, "things.example.com", "version: v1")
	ops, problem := wide.Resume(object(t, before), `[{"path":"spec.mode","value":"Manual","was":"Auto"}]`)
	if len(ops) > 0 || !strings.HasPrefix(problem, "spec.mode") {
		t.Errorf("%v, %q", ops, problem)
	}
}

func TestHaltIsRefused(t *testing.T) {
	k := accept(t, "things.example.com", haltSpec)
	for text, want := range map[string]string{
		"spec: {strategy: fast}":             "spec.strategy is no object, so it has no field paused",
		"spec: {mode: Auto}":                 "spec.strategy is missing",
		"spec: {strategy: {}, mode: {a: b}}": "spec.mode is a list or an object",
		"spec: {strategy: {}, mode: '" + strings.Repeat("a", 2000) + "'}": "bytes, and at most 1024 are kept",
	} {
		if ops, _, err := k.Halt(object(t, text)); len(ops) > 0 || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v, want %s", ops, err, want)
		}
	}
	if k := accept(t, "things.example.com", "version: v1"); k.Halted(object(t, "{}")) {
		t.Error("a kind without fields that halt is halted")
	}
}

func TestNumbers(t *testing.T) {
	k := accept(t, cloneSets, "version: v1\ncontent: [{path: spec.template}]\nreplicas: spec.replicas\npods: {current: 'true'}\n"+
		"rollout: {partition: spec.roll.partition}")
	for text, want := range map[string]struct {
		replicas, partition int32
		known, ok           bool
		minReady            float64
	}{
		"{}": {0, 0, false, false, 0},
		"spec: {replicas: 0, roll: {partition: 3}, minReadySeconds: 5}":    {0, 3, true, true, 5},
		"spec: {replicas: 7, roll: {partition: 30%}, minReadySeconds: 5s}": {7, 0, true, false, 0},
		"spec: {replicas: 7, roll: {partition: 4294967296}}":               {7, 0, true, false, 0},
		"spec: {replicas: '7', roll: {partition: -1}}":                     {0, 0, false, false, 0},
		"spec: {roll: {}}":                        {0, 0, false, true, 0},
		"spec: {replicas: 7, strategy: OnDelete}": {7, 0, true, false, 0},
	} {
		o := object(t, text)
		partition, ok := k.Partition(o)
		replicas, known := k.Replicas(o)
		if replicas != want.replicas || known != want.known || partition != want.partition || ok != want.ok ||
			k.MinReady(o).Seconds() != want.minReady {
			t.Errorf("%s: %d, %t, %d, %t, %s", text, replicas, known, partition, ok, k.MinReady(o))
		}
	}
	without := accept(t, "things.example.com",
		"version: v1\ncontent: [{path: spec.template}]\nrollout: {complete: 'true'}\npods: {current: 'true'}")
	if _, ok := without.Partition(object(t, "{}")); ok {
		t.Error("a kind without a partition has one")
	}
	if n, known := without.Replicas(object(t, "spec: {replicas: 3}")); known {
		t.Errorf("%d replicas, although the kind does not declare their path", n)
	}
}
