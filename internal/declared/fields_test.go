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
		"nothing":          "spec: {other: 1}",
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
			if ops, err = k.Resume(halted, from); err != nil {
				t.Fatal(err)
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
	ops, err := k.Resume(now, from)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := apply(t, now, ops); err != nil || !reflect.DeepEqual(got, object(t, "spec: {strategy: {paused: false, step: 9}}")) {
		t.Error(got, err)
	}
}

// TestResumeReadsAnnotation: the declaration may have changed, and users can write the annotation.
func TestResumeReadsAnnotation(t *testing.T) {
	k := accept(t, "things.example.com", haltSpec)
	now := object(t, "metadata: {name: a}\nspec: {template: {a: b}, pause: yes}")
	for from, want := range map[string]string{
		`[{"path":"spec.pause","value":"yes","was":"no"}]`:        "metadata: {name: a}\nspec: {template: {a: b}, pause: 'no'}",
		`[{"path":"spec.template","value":{"a":"b"},"was":"x"}]`:  "",
		`[{"path":"spec.template.a","value":"b","was":"x"}]`:      "",
		`[{"path":"spec","value":{},"was":"x"}]`:                  "",
		`[{"path":"metadata.name","value":"a","was":"x"}]`:        "",
		`[{"path":"","value":null,"was":"x"},{"path":"spec..a"}]`: "",
	} {
		if want == "" {
			want = "metadata: {name: a}\nspec: {template: {a: b}, pause: yes}"
		}
		now, want := object(t, strings.Replace("metadata: {name: a}\nspec: {template: {a: b}, pause: yes}", "yes", "'yes'", 1)),
			object(t, strings.Replace(want, "yes", "'yes'", 1))
		ops, err := k.Resume(now, from)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := apply(t, now, ops); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v; want %v", from, got, err, want)
		}
	}
	if _, err := k.Resume(now, "no"); err == nil {
		t.Error("an annotation that is none is read")
	}
}

func TestHaltIsRefused(t *testing.T) {
	k := accept(t, "things.example.com", haltSpec)
	for text, want := range map[string]string{
		"spec: {strategy: fast}":                            "spec.strategy is no object, so it has no field paused",
		"spec: {mode: '" + strings.Repeat("a", 2000) + "'}": "spec.mode has a value of 2002 bytes",
	} {
		if _, _, err := k.Halt(object(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if k := accept(t, "things.example.com", "version: v1"); k.Halted(object(t, "{}")) {
		t.Error("a kind without fields that halt is halted")
	}
}

func TestNumbers(t *testing.T) {
	k := accept(t, cloneSets, "version: v1\ncontent: [{path: spec.template}]\npods: {current: 'true'}\nrollout: {partition: spec.partition}")
	for text, want := range map[string]struct {
		replicas, partition int32
		ok                  bool
		minReady            float64
	}{
		"{}": {1, 0, true, 0},
		"spec: {replicas: 0, partition: 3, minReadySeconds: 5}":    {0, 3, true, 5},
		"spec: {replicas: 7, partition: 30%, minReadySeconds: 5s}": {7, 0, false, 0},
		"spec: {replicas: 7, partition: 4294967296}":               {7, 0, false, 0},
		"spec: {replicas: 7, partition: -1}":                       {7, 0, false, 0},
	} {
		o := object(t, text)
		partition, ok := k.Partition(o)
		if k.Replicas(o) != want.replicas || partition != want.partition || ok != want.ok || k.MinReady(o).Seconds() != want.minReady {
			t.Errorf("%s: %d, %d, %t, %s", text, k.Replicas(o), partition, ok, k.MinReady(o))
		}
		ops, err := k.SetPartition(o, 4)
		if err != nil {
			t.Fatal(err)
		}
		changed, err := apply(t, o, ops)
		if now, ok := k.Partition(changed); err != nil || now != 4 || !ok {
			t.Errorf("%s: %d, %v", text, now, err)
		}
	}
	without := accept(t, "things.example.com", "version: v1")
	if _, ok := without.Partition(object(t, "{}")); ok || without.Replicas(object(t, "spec: {replicas: 3}")) != 0 {
		t.Error("a kind without pods has a partition or replicas")
	}
	if _, err := without.SetPartition(object(t, "{}"), 1); err == nil {
		t.Error("a kind without a partition is held")
	}
}
