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
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
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
	template := func(annotations string) string {
		return k.VersionOf(object(t, "spec: {template: {metadata: {annotations: {"+annotations+"}}}}"))
	}
	if template("") != template("injected: a") || template("") == template("b: c") {
		t.Error("an ignored annotation counts, or another one does not")
	}
}

func TestVersionOfParts(t *testing.T) {
	two := accept(t, "configmaps", "version: v1\ncontent: [{path: data, ignore: [a.b]}, {path: binaryData}]")
	// An object around ignored fields is content.
	for _, texts := range [][2]string{{"data: {x: '1', a: {b: c}}", "data: {x: '1'}"}, {"data: {a: {b: c}}", "data: {}"}, {"data: {}", "{}"}} {
		if two.VersionOf(object(t, texts[0])) == two.VersionOf(object(t, texts[1])) {
			t.Errorf("%q have one version", texts)
		}
	}
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
		"data: {x: '1', a: {b: c}}": "data: {x: '1', a: {}}",
		"data: {a: {b: c}}":         "data: {a: {}}",
		"data: {a: {b: null}}":      "data: {a: {}}",
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
			"content: [{path: spec, ignore: [a.b]}]", "spec: {a: {}, c: 1}", "spec: {a: {b: 1}, c: 2}", "spec: {a: {b: 1}, c: 1}",
		},
		"what is ignored goes with an object that is new": {
			"content: [{path: spec, ignore: [canary.weight]}]", "spec: {blueGreen: {a: b}}", "spec: {canary: {weight: 5}}",
			"spec: {blueGreen: {a: b}}",
		},
		"what is ignored goes with a part that is new": {"content: [{path: spec, ignore: [replicas]}]", "{}", "spec: {replicas: 1}", "{}"},
		"what is ignored stays in a part without other content": {
			"content: [{path: spec, ignore: [replicas]}]", "spec: {replicas: 1}", "spec: {replicas: 2, a: b}", "spec: {replicas: 2}",
		},
		"what is ignored in a text": {"content: [{path: spec, ignore: [a.b]}]", "spec: {a: text}", "spec: {a: {b: 1}}", "spec: {a: text}"},
		"an object that is empty": {
			"content: [{path: spec, ignore: [selfSigned.crl]}]", "spec: {selfSigned: {}}", "spec: {ca: {secretName: a}}", "spec: {selfSigned: {}}",
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
	if _, ok := get(u.Object, workload.Path{"spec", "template"}); ok || u.GetManagedFields() != nil {
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
	for _, mark := range []string{`"1"`, `"trimmed"`, "1", "true"} {
		for _, number := range []bool{false, true} {
			decoder := json.NewDecoder(strings.NewReader(`{"altershield":{"version":"forged","trimmed":` + mark + `}}`))
			if number {
				decoder.UseNumber()
			}
			var forged map[string]any
			if err := decoder.Decode(&forged); err != nil {
				t.Fatal(err)
			}
			if k.VersionOf(forged) == "forged" {
				t.Errorf("%s makes an object look trimmed, numbers as text: %t", mark, number)
			}
		}
	}
}

// TestTrimKeepsFields: fields that the operator reads stay, although they are content.
func TestTrimKeepsFields(t *testing.T) {
	k := accept(t, "things.example.com", "version: v1\ncontent: [{path: spec, ignore: [paused, replicas, canary.weight]}]\n"+
		"replicas: spec.replicas\npods: {current: 'true'}\nrollout: {halt: [{path: spec.paused, value: true}]}")
	u := &unstructured.Unstructured{Object: object(t,
		"spec: {paused: true, replicas: 7, minReadySeconds: 9, a: b, canary: {weight: 5, c: d}}\nstatus: {a: b}")}
	if _, err := k.Trim(u); err != nil {
		t.Fatal(err)
	}
	want := object(t, "{paused: true, replicas: 7, minReadySeconds: 9, canary: {weight: 5}}")
	if !reflect.DeepEqual(u.Object["spec"], any(want)) {
		t.Errorf("%v", u.Object)
	}
	if !k.Halted(u.Object) || k.MinReady(u.Object).Seconds() != 9 {
		t.Errorf("%v", u.Object)
	}
}

// TestTrimIsBounded: labels and settings that are too large opt an object out, as they do for other kinds. Anything
// else that is too large is dropped, and nothing is computed from the rest.
func TestTrimIsBounded(t *testing.T) {
	k := accept(t, cloneSets, cloneSetSpec)
	const setting = v1alpha1.SettingAnnotationPrefix + "a"
	for name, test := range map[string]struct {
		place            []string
		bytes            int
		status, optedOut bool
		fails            bool
	}{
		"an annotation of others":    {place: []string{"metadata", "annotations", "kapp.k14s.io/original"}, bytes: 17 << 10, status: true},
		"a long setting":             {[]string{"metadata", "annotations", setting}, 17 << 10, true, true, true},
		"a label":                    {place: []string{"metadata", "labels", "a"}, bytes: 17 << 10, status: true, optedOut: true, fails: true},
		"a status":                   {place: []string{"status", "large"}, bytes: 100_000, fails: true},
		"a status of ordinary size":  {place: []string{"status", "large"}, bytes: 10_000, status: true},
		"a field that is no content": {place: []string{"spec", "large"}, bytes: 100_000, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unstructured.Unstructured{Object: object(t, sleep)}
			u.SetAnnotations(map[string]string{setting + "b": "kept", "example.com/short": "kept"})
			version := k.VersionOf(u.Object)
			if err := unstructured.SetNestedField(u.Object, strings.Repeat("a", test.bytes), test.place...); err != nil {
				t.Fatal(err)
			}
			if _, err := k.Trim(u); err != nil {
				t.Fatal(err)
			}
			if _, ok := u.Object["status"]; ok != test.status || workload.OptedOut(u.GetLabels()) != test.optedOut {
				t.Errorf("status %t, labels %v", ok, u.GetLabels())
			}
			if got := u.GetAnnotations(); !test.optedOut && (got[setting+"b"] == "" || got["example.com/short"] == "") {
				t.Errorf("%v", got)
			}
			if k.VersionOf(u.Object) != version {
				t.Error("the version is lost")
			}
			_, progress := k.ProgressOf(u.Object, time.Time{})
			_, current := k.IsCurrent(u.Object, object(t, "metadata: {labels: {controller-revision-hash: a}}"), nil)
			if errors.Is(progress, ErrTooLarge) != test.fails || errors.Is(current, ErrTooLarge) != test.fails {
				t.Errorf("%v, %v", progress, current)
			}
			if _, known := k.Replicas(u.Object); !test.status && test.place[0] == "spec" && known {
				t.Error("the number of replicas is read from an object that lacks it")
			}
			delete(u.Object, keptField)
			if text, err := json.Marshal(u.Object); err != nil || len(text) > 12_000 {
				t.Errorf("%d bytes, %v", len(text), err)
			}
		})
	}
}

// TestTrimMarks: only the cache can mark an object as too large.
func TestTrimMarks(t *testing.T) {
	k := accept(t, "things.example.com", "version: v1")
	u := &unstructured.Unstructured{Object: object(t, "apiVersion: v1\nkind: Thing\nmetadata: {name: a}")}
	u.SetAnnotations(map[string]string{v1alpha1.TooLargeMark: "true"})
	for range 2 {
		if _, err := k.ProgressOf(u.Object, time.Time{}); err != nil {
			t.Error(err)
		}
		if _, err := k.Trim(u); err != nil {
			t.Fatal(err)
		}
	}
}
