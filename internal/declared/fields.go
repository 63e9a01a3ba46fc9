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
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// get returns a field of an object. A field with the value null is missing.
func get(object map[string]any, path workload.Path) (value any, ok bool) {
	value = object
	for _, name := range path {
		fields, isObject := value.(map[string]any)
		if !isObject {
			return nil, false
		}
		value = fields[name]
	}
	return value, value != nil
}

// edit collects the operations of a JSON patch. Each change has a test of the value that was read.
type edit struct {
	object map[string]any
	ops    []workload.Op
}

func editOf(object map[string]any) *edit { return &edit{object: runtime.DeepCopyJSON(object)} }

// set changes a field; nil removes it. Missing objects around the field are added.
func (e *edit) set(path workload.Path, value any) error {
	fields := e.object
	for i, name := range path[:len(path)-1] {
		below := fields[name]
		if below == nil {
			for _, inner := range slices.Backward(path[i+1:]) {
				if value != nil {
					value = map[string]any{inner: value}
				}
			}
			path = path[:i+1]
			break
		}
		next, isObject := below.(map[string]any)
		if !isObject {
			return fmt.Errorf("%s is no object, so it has no field %s", path[:i+1], path[i+1])
		}
		fields = next
	}
	name := path[len(path)-1]
	old := fields[name]
	e.ops = append(e.ops, workload.Op{Op: "test", Path: path.Pointer(), Value: old})
	switch {
	case reflect.DeepEqual(old, value):
		return nil
	case value == nil:
		e.ops = append(e.ops, workload.Op{Op: "remove", Path: path.Pointer()})
		delete(fields, name)
		return nil
	case old == nil:
		e.ops = append(e.ops, workload.Op{Op: "add", Path: path.Pointer(), Value: value})
	default:
		e.ops = append(e.ops, workload.Op{Op: "replace", Path: path.Pointer(), Value: value})
	}
	fields[name] = runtime.DeepCopyJSONValue(value)
	return nil
}

// haltedField is the JSON of a field that halts an object, and of its value before the halt. The annotation
// [v1alpha1.HaltedFromAnnotation] has a list of them: the declaration may change before the object is resumed.
type haltedField struct {
	Path  string `json:"path"`
	Value any    `json:"value"`
	Was   any    `json:"was,omitempty"`
}

// maxWas bounds the text of a value before a halt, in bytes.
const maxWas = 1 << 10

// Halted reports whether all fields of an object have the values that halt it. An object of a kind without such fields
// is never halted.
func (k *Kind) Halted(object map[string]any) bool {
	return len(k.halts) > 0 && !slices.ContainsFunc(k.halts, func(h halt) bool {
		value, _ := get(object, h.path)
		return !reflect.DeepEqual(value, h.value)
	})
}

// Halt returns the operations that stop the rollout of an object, and the value of the annotation by which Resume
// restores the fields.
func (k *Kind) Halt(object map[string]any) (ops []workload.Op, from string, err error) {
	e := editOf(object)
	var fields []haltedField
	for _, h := range k.halts {
		was, _ := get(object, h.path)
		if text, err := json.Marshal(was); err != nil || len(text) > maxWas {
			return nil, "", fmt.Errorf("%s has a value of %d bytes, which is too long to be restored: at most %d are kept",
				h.path, len(text), maxWas)
		}
		fields = append(fields, haltedField{Path: h.path.String(), Value: h.value, Was: was})
		if err := e.set(h.path, h.value); err != nil {
			return nil, "", err
		}
	}
	text, err := json.Marshal(fields)
	return e.ops, string(text), err
}

// Resume returns the operations that restore the fields of a halted object by the annotation of Halt. A field that
// a user changed meanwhile stays. Fields that no halt may write are ignored: users can write the annotation.
func (k *Kind) Resume(object map[string]any, from string) ([]workload.Op, error) {
	var fields []haltedField
	if err := utiljson.Unmarshal([]byte(from), &fields); err != nil {
		return nil, fmt.Errorf("the annotation of the halt: %w", err)
	}
	e := editOf(object)
	for _, f := range fields {
		path := pathOf(v1alpha1.ChangeKindPath(f.Path))
		if !k.mayWrite(path) {
			continue
		}
		current, _ := get(e.object, path)
		to := current
		if reflect.DeepEqual(current, f.Value) {
			to = f.Was
		}
		if err := e.set(path, to); err != nil {
			return nil, err
		}
	}
	return e.ops, nil
}

// mayWrite reports whether a halt may write a field.
func (k *Kind) mayWrite(path workload.Path) bool {
	if len(path) == 0 || slices.Contains(path, "") || slices.Contains([]string{"apiVersion", "kind", "metadata", "status"}, path[0]) {
		return false
	}
	return k.contentWith(path) == nil
}

// Partition returns how many pods of an object keep the previous content; ok is false if the field is no number of pods.
func (k *Kind) Partition(object map[string]any) (pods int32, ok bool) {
	return number(object, k.partition, 0)
}

// SetPartition returns the operations that change the partition.
func (k *Kind) SetPartition(object map[string]any, pods int32) ([]workload.Op, error) {
	if k.partition == nil {
		return nil, errors.New("spec.rollout.partition is absent")
	}
	e := editOf(object)
	err := e.set(k.partition, int64(pods))
	return e.ops, err
}

// Replicas returns the desired number of pods of an object: 1 without the field, 0 for a kind without pods.
func (k *Kind) Replicas(object map[string]any) int32 {
	if k.replicas == nil {
		return 0
	}
	replicas, _ := number(object, k.replicas, 1)
	return replicas
}

// MinReady returns how long a pod of an object has to be Ready to be available.
func (k *Kind) MinReady(object map[string]any) time.Duration {
	seconds, _ := number(object, k.minReady, 0)
	return time.Duration(seconds) * time.Second
}

// number returns a field of an object that is a count; ok is false if it has another value.
func number(object map[string]any, path workload.Path, missing int32) (n int32, ok bool) {
	value, found := get(object, path)
	if path == nil || !found {
		return missing, path != nil
	}
	count, isNumber := value.(int64)
	if !isNumber || count < 0 || count > math.MaxInt32 {
		return missing, false
	}
	return int32(count), true
}
