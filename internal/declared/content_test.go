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
	"reflect"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

func decode(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var content map[string]any
	if err := utiljson.Unmarshal(text, &content); err != nil {
		t.Fatal(err)
	}
	return content
}

// apply applies the operations as the API server does.
func apply(t *testing.T, to map[string]any, ops []workload.Op) (map[string]any, error) {
	t.Helper()
	patch, err := json.Marshal(ops)
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(to)
	if err != nil {
		t.Fatal(err)
	}
	if text, err = decoded.Apply(text); err != nil {
		return nil, err
	}
	return decode(t, text), nil
}

// sleep is the sample of the walkthrough as a CloneSet, as the API server defaults it.
const sleep = `
apiVersion: apps.kruise.io/v1beta1
kind: CloneSet
metadata: {name: sleep, namespace: default, generation: 2, labels: {app: sleep}}
spec:
  replicas: 5
  selector: {matchLabels: {app: sleep}}
  template:
    metadata: {creationTimestamp: null, labels: {app: sleep, test: "123"}}
    spec:
      containers:
      - {name: sleep, image: busybox, command: [/bin/sleep, infinity], resources: {}, terminationMessagePath: /dev/termination-log,
         terminationMessagePolicy: File, imagePullPolicy: IfNotPresent}
      restartPolicy: Always
      terminationGracePeriodSeconds: 30
      dnsPolicy: ClusterFirst
      securityContext: {}
      schedulerName: default-scheduler
status: {observedGeneration: 2, updatedAvailableReplicas: 5, updateRevision: sleep-6d5c}
`

// TestVersion: a pod template has the version that it has in a Deployment, as in the walkthrough.
func TestVersion(t *testing.T) {
	k := accept(t, cloneSets, cloneSetSpec)
	o := object(t, sleep)
	const version = "c6c45d23c098bdf181853a85b60b5d74"
	if got := k.VersionOf(o); got != version {
		t.Error(got)
	}
	if got := k.ImagesOf(o); !reflect.DeepEqual(got, []string{"busybox"}) {
		t.Error(got)
	}
	for change, same := range map[string]bool{
		"spec.replicas":                               true,
		"metadata.labels.team":                        true,
		"spec.template.metadata.annotations.injected": true,
		"spec.template.metadata.labels.test":          false,
		"spec.template.metadata.annotations.other":    false,
	} {
		changed := runtime.DeepCopyJSON(o)
		if err := unstructured.SetNestedField(changed, "1234", strings.Split(change, ".")...); err != nil {
			t.Fatal(err)
		}
		if got := k.VersionOf(changed); (got == version) != same {
			t.Errorf("%s: same version %t, want %t", change, got == version, same)
		}
	}
}

func TestVersionOfParts(t *testing.T) {
	two := accept(t, "configmaps", "version: v1\ncontent: [{path: data, ignore: [a.b]}, {path: binaryData}]")
	swapped := accept(t, "configmaps", "version: v1\ncontent: [{path: binaryData}, {path: data, ignore: [a.b]}]")
	seen := map[string]string{}
	for _, text := range []string{"data: {x: '1'}", "binaryData: {x: '1'}", "data: {x: '2'}", "{}", "data: {x: '1', a: {c: d}}"} {
		v := two.VersionOf(object(t, text))
		if seen[v] != "" || len(v) != 32 {
			t.Errorf("%s has the version %s of %s", text, v, seen[v])
		}
		if seen[v] = text; swapped.VersionOf(object(t, text)) != v {
			t.Errorf("%s: the order of the parts counts", text)
		}
	}
	for text, as := range map[string]string{
		"data: {x: '1', a: {b: c}}": "data: {x: '1'}", // with the objects around what is ignored
		"data: {a: {b: c}}":         "{}",
		"data: null":                "{}",
		"data: {b: 1, a: {c: 2}}":   "data: {a: {c: 2}, b: 1}",
	} {
		if two.VersionOf(object(t, text)) != two.VersionOf(object(t, as)) {
			t.Errorf("%s has not the version of %s", text, as)
		}
	}
}

func TestRestore(t *testing.T) {
	for name, test := range map[string]struct{ spec, then, now, want string }{
		"a template": {
			"content: [{path: spec.template}]", "spec: {replicas: 1, template: {a: b}}", "spec: {replicas: 2, template: {a: c, d: e}}",
			"spec: {replicas: 2, template: {a: b}}",
		},
		"what is ignored stays": {
			"content: [{path: spec, ignore: [replicas, a.b, none.c]}]", "spec: {replicas: 1, a: {b: 1, c: 1}}",
			"spec: {replicas: 2, a: {b: 2, c: 2}}",
			"spec: {replicas: 2, a: {b: 2, c: 1}}",
		},
		"what is ignored and gone stays gone": {
			"content: [{path: spec, ignore: [replicas]}]", "spec: {replicas: 1, a: 1}", "spec: {a: 2}", "spec: {a: 1}",
		},
		"what is ignored and new stays": {
			"content: [{path: spec, ignore: [a.b]}]", "spec: {c: 1}", "spec: {a: {b: 1}, c: 2}", "spec: {a: {b: 1}, c: 1}",
		},
		"a part that is gone": {"content: [{path: data}]", "data: {a: b}", "{}", "data: {a: b}"},
		"a part that is gone with what is around it": {
			"content: [{path: spec.a.b}]", "spec: {a: {b: [1, 2]}}", "spec: {}", "spec: {a: {b: [1, 2]}}",
		},
		"a part that is new": {
			"content: [{path: data}, {path: more}]", "data: {a: b}", "data: {a: c}\nmore: {d: e}", "data: {a: b}",
		},
		"two parts below a missing field": {"content: [{path: s.a}, {path: s.b}]", "s: {a: 1, b: 2}", "{}", "s: {a: 1, b: 2}"},
		"nothing changed":                 {"content: [{path: data}]", "data: {a: b}", "data: {a: b}", "data: {a: b}"},
	} {
		t.Run(name, func(t *testing.T) {
			k := accept(t, "things.example.com", "version: v1\n"+test.spec)
			then, now, want := object(t, test.then), object(t, test.now), object(t, test.want)
			kept, err := k.History(then)
			if err != nil {
				t.Fatal(err)
			}
			ops, err := k.Restore(now, kept)
			if err != nil {
				t.Fatal(err)
			}
			got, err := apply(t, now, ops)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%v, %v; want %v", got, err, want)
			}
			if k.VersionOf(got) != k.VersionOf(then) {
				t.Error("another version is restored")
			}
			// The guards: the patch does not apply to other content.
			for _, part := range k.content {
				other := runtime.DeepCopyJSON(now)
				if err := unstructured.SetNestedField(other, "other", part.path...); err != nil {
					continue
				}
				if _, err := apply(t, other, ops); err == nil {
					t.Errorf("the patch applies although a user changed %s", part.path)
				}
			}
		})
	}
}

func TestHistoryIsBounded(t *testing.T) {
	k := accept(t, "configmaps", "version: v1\ncontent: [{path: data}]")
	_, err := k.History(map[string]any{"data": map[string]any{"a": strings.Repeat("a", MaxHistory)}})
	if err == nil || !strings.Contains(err.Error(), "at most 262144 are kept") {
		t.Error(err)
	}
	kept, err := k.History(map[string]any{"data": map[string]any{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	other := accept(t, "configmaps", "version: v1\ncontent: [{path: data}, {path: binaryData}]")
	if _, err := other.Restore(map[string]any{}, kept); err == nil || !strings.Contains(err.Error(), "another declaration") {
		t.Error(err)
	}
	if _, err := k.Restore(map[string]any{}, []byte("no")); err == nil {
		t.Error("a history that is none is restored")
	}
	if _, err := k.Restore(object(t, "data: [1]"), kept); err != nil {
		t.Error(err)
	}
	below := accept(t, "configmaps", "version: v1\ncontent: [{path: data.a}]")
	if kept, err = below.History(object(t, "data: {a: b}")); err != nil {
		t.Fatal(err)
	}
	if _, err := below.Restore(object(t, "data: text"), kept); err == nil || !strings.Contains(err.Error(), "data is no object") {
		t.Error(err)
	}
}

func TestTrim(t *testing.T) {
	k := accept(t, cloneSets, cloneSetSpec)
	u := &unstructured.Unstructured{Object: object(t, sleep+"altershield: {version: forged, trimmed: '1'}")}
	u.SetAnnotations(map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "{}", "example.com/a": "b"})
	if err := unstructured.SetNestedSlice(u.Object, []any{map[string]any{"manager": "kubectl"}}, "metadata", "managedFields"); err != nil {
		t.Fatal(err)
	}
	whole := u.DeepCopy()
	got, err := k.Trim(u)
	if err != nil {
		t.Fatal(err)
	}
	if k.VersionOf(u.Object) != k.VersionOf(whole.Object) || !reflect.DeepEqual(k.ImagesOf(u.Object), []string{"busybox"}) {
		t.Error(k.VersionOf(u.Object), k.ImagesOf(u.Object))
	}
	if _, ok := get(u.Object, workload.Path{"spec", "template"}); ok || k.Replicas(u.Object) != 5 || u.GetManagedFields() != nil {
		t.Errorf("%v", u.Object)
	}
	if want := map[string]string{"example.com/a": "b"}; !reflect.DeepEqual(u.GetAnnotations(), want) {
		t.Error(u.GetAnnotations())
	}
	before := runtime.DeepCopyJSON(u.Object)
	if _, err := k.Trim(got); err != nil || !reflect.DeepEqual(u.Object, before) {
		t.Errorf("trimmed twice: %v, %v", u.Object, err)
	}
	_, failed := k.History(u.Object)
	_, also := k.Restore(u.Object, nil)
	if !errors.Is(failed, ErrTrimmed) || !errors.Is(also, ErrTrimmed) {
		t.Error(failed, also)
	}
	if k.VersionOf(whole.Object) == "forged" {
		t.Error("a user made an object look trimmed")
	}
}

// TestTrimKeepsFields: fields that the operator reads stay, although they are content.
func TestTrimKeepsFields(t *testing.T) {
	k := accept(t, "things.example.com", "version: v1\ncontent: [{path: spec, ignore: [paused, replicas]}]\n"+
		"pods: {current: 'true'}\nrollout: {halt: [{path: spec.paused, value: true}]}")
	u := &unstructured.Unstructured{Object: object(t, "spec: {paused: true, replicas: 7, minReadySeconds: 9, a: b}\nstatus: {a: b}")}
	if _, err := k.Trim(u); err != nil {
		t.Fatal(err)
	}
	if want := object(t, "{paused: true, replicas: 7, minReadySeconds: 9}"); !reflect.DeepEqual(u.Object["spec"], any(want)) {
		t.Errorf("%v", u.Object)
	}
	if !k.Halted(u.Object) || k.MinReady(u.Object).Seconds() != 9 {
		t.Errorf("%v", u.Object)
	}
}

// TestTrimIsBounded: an object that is too large counts as opted out.
func TestTrimIsBounded(t *testing.T) {
	k := accept(t, cloneSets, cloneSetSpec)
	for _, place := range [][]string{{"status", "large"}, {"metadata", "annotations", "large"}} {
		u := &unstructured.Unstructured{Object: object(t, sleep)}
		if err := unstructured.SetNestedField(u.Object, strings.Repeat("a", 100_000), place...); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Trim(u); err != nil {
			t.Fatal(err)
		}
		if text, err := json.Marshal(u.Object); err != nil || len(text) > 1000 || !workload.OptedOut(u.GetLabels()) {
			t.Errorf("%d bytes, labels %v", len(text), u.GetLabels())
		}
	}
}
