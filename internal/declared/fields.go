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
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
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

// setBeside changes a field of an object that exists. A missing object around the field means that the rollout has another
// strategy, and the object may become invalid by it.
func (e *edit) setBeside(path workload.Path, value any) error {
	around := path[:len(path)-1]
	if _, ok := get(e.object, around); !ok {
		return fmt.Errorf("%s is missing, so the rollout may have another strategy, and the operator does not set %s", around, path)
	}
	return e.set(path, value)
}

// haltedField is the JSON of a field that halts an object, and of its value before the halt. The annotation
// [v1alpha1.HaltedFromAnnotation] has a list of them: the declaration may change before the object is resumed.
type haltedField struct {
	Path  string `json:"path"`
	Value any    `json:"value"`
	Was   any    `json:"was,omitempty"`
}

// maxFrom bounds the annotation, in bytes: it is kept in the cache of an object that is too large. maxHalts bounds its
// entries, as the API does.
const (
	maxFrom  = 1 << 10
	maxHalts = 4
)

// Halted reports whether all fields of an object have the values that halt it. An object of a kind without such fields
// is never halted.
func (k *Kind) Halted(object map[string]any) bool {
	return len(k.halts) > 0 && !slices.ContainsFunc(k.halts, func(h halt) bool {
		value, _ := get(object, h.path)
		return !reflect.DeepEqual(value, h.value)
	})
}

// StaysHalted reports whether a field of an object still has the value by which the operator halted it. from is the
// annotation of Halt.
func StaysHalted(object map[string]any, from string) bool {
	fields, ok := readHalted(from)
	return ok && slices.ContainsFunc(fields, func(f haltedField) bool {
		current, _ := get(object, pathOf(v1alpha1.ChangeKindPath(f.Path)))
		return reflect.DeepEqual(current, f.Value)
	})
}

// readHalted reads the annotation of Halt; ok is false if it is not as the operator wrote it.
func readHalted(from string) (fields []haltedField, ok bool) {
	err := utiljson.Unmarshal([]byte(from), &fields)
	return fields, err == nil && len(from) <= maxFrom && len(fields) <= maxHalts
}

// Halt returns the operations that stop the rollout of an object, and the value of the annotation by which Resume
// restores the fields. An object that is too large for the cache is not halted by what the cache has: it may be halted
// already, and the values of the halt would become the values before it.
func (k *Kind) Halt(object map[string]any) (ops []workload.Op, from string, err error) {
	if err := whole(object); err != nil {
		return nil, "", err
	}
	e := editOf(object)
	var fields []haltedField
	for _, h := range k.halts {
		was, _ := get(object, h.path)
		if was != nil && !isScalar(was) {
			return nil, "", fmt.Errorf("%s is a list or an object, which the operator does not replace", h.path)
		}
		fields = append(fields, haltedField{Path: h.path.String(), Value: h.value, Was: was})
		if err := e.setBeside(h.path, h.value); err != nil {
			return nil, "", err
		}
	}
	text, err := json.Marshal(fields)
	if err == nil && len(text) > maxFrom {
		err = fmt.Errorf("the fields that halt and their present values have %d bytes, and at most %d are kept", len(text), maxFrom)
	}
	if err != nil {
		return nil, "", err
	}
	return e.ops, string(text), nil
}

// Resume returns the operations that restore the fields of a halted object by the annotation of Halt. A field that
// a user changed meanwhile stays. Users can write the annotation, and the declaration may have changed since the halt:
// only fields of the declaration's halts are written. The problem names other fields that still have their value of the
// halt; it is empty if there are none.
func (k *Kind) Resume(object map[string]any, from string) (ops []workload.Op, problem string) {
	fields, ok := readHalted(from)
	if !ok {
		return nil, "the annotation " + v1alpha1.HaltedFromAnnotation + " is not as the operator wrote it; set the fields that halt by hand"
	}
	e := editOf(object)
	var stay []string
	for _, f := range fields {
		path := pathOf(v1alpha1.ChangeKindPath(f.Path))
		if current, _ := get(e.object, path); !reflect.DeepEqual(current, f.Value) {
			continue
		}
		declared := slices.ContainsFunc(k.halts, func(h halt) bool { return slices.Equal(h.path, path) })
		if !declared || !isScalar(f.Value) || f.Was != nil && !isScalar(f.Was) || e.set(path, f.Was) != nil {
			stay = append(stay, f.Path)
		}
	}
	if len(stay) > 0 {
		problem = strings.Join(stay, ", ") + ": spec.rollout.halt of the ChangeKind has no such field, or the annotation " +
			v1alpha1.HaltedFromAnnotation + " was changed; set the value by hand"
	}
	return e.ops, problem
}

// Partition returns how many pods of an object keep the previous content; ok is false if the object cannot be held: the
// field is no number of pods, or an object around it is missing.
func (k *Kind) Partition(object map[string]any) (pods int32, ok bool) {
	if k.partition == nil {
		return 0, false
	}
	if _, ok = get(object, k.partition[:len(k.partition)-1]); !ok {
		return 0, false
	}
	return number(object, k.partition, 0)
}

// Replicas returns the desired number of pods of an object; ok is false if it is unknown.
func (k *Kind) Replicas(object map[string]any) (n int32, ok bool) {
	n, _ = number(object, k.replicas, -1)
	return max(n, 0), n >= 0
}

// MinReady returns how long a pod of an object has to be Ready to be available.
func (k *Kind) MinReady(object map[string]any) time.Duration {
	seconds, _ := number(object, k.minReady, 0)
	return time.Duration(seconds) * time.Second
}

// number returns a field of an object that is a count; ok is false if it has another value.
func number(object map[string]any, path workload.Path, missing int32) (n int32, ok bool) {
	value, found := get(object, path)
	if !found {
		return missing, true
	}
	count, isNumber := value.(int64)
	if !isNumber || count < 0 || count > math.MaxInt32 {
		return missing, false
	}
	return int32(count), true
}
