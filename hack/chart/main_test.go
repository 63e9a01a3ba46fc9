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

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestFill(t *testing.T) {
	facts := map[string]func(string) (any, error){
		"manager": func(path string) (any, error) {
			value := at(map[string]any{"spec": map[string]any{"replicas": int64(2), "image": "r.example:5000/i:v1", "list": []any{map[string]any{"a": "b"}}}}, path)
			if value == nil {
				return nil, errors.New("it has no " + path)
			}
			return value, nil
		},
	}
	for name, tc := range map[string]struct{ text, want, err string }{
		"number":           {text: "replicas: ${manager spec.replicas}\n", want: "replicas: 2\n"},
		"list":             {text: "  l: ${manager spec.list}\nx: 1\n", want: "  l:\n  - a: b\nx: 1\n"},
		"item":             {text: "a: ${manager spec.list.0.a}\n", want: "a: b\n"},
		"without its tag":  {text: "repository: ${manager spec.image}\n", want: "repository: r.example:5000/i\n"},
		"nothing there":    {text: "a: ${manager spec.none}\n", err: "it has no spec.none"},
		"no such object":   {text: "a: ${other spec}\n", err: "no such object"},
		"not on its own":   {text: "a: [${manager spec}]\n", err: "something is left to be filled in: ${manager spec}]"},
		"an item too many": {text: "a: ${manager spec.list.1}\n", err: "it has no spec.list.1"},
	} {
		got, err := fill(tc.text, facts)
		if tc.err == "" && (err != nil || got != tc.want) || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestSetVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "Chart.yaml")
	if err := os.WriteFile(path, []byte("name: x\nversion: 0.0.0\nappVersion: v0.0.0\nkubeVersion: y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := setVersion(path, "v1.2.3"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "name: x\nversion: 1.2.3\nappVersion: v1.2.3\nkubeVersion: y\n" {
		t.Errorf("%v\n%s", err, text)
	}
}

// What nobody has placed is refused, rather than left out of the chart.
func TestUnknown(t *testing.T) {
	manager := unstructured.Unstructured{Object: map[string]any{"kind": "Deployment", "metadata": map[string]any{"name": managerName}}}
	webhooks := unstructured.Unstructured{Object: map[string]any{"kind": "ValidatingWebhookConfiguration", "metadata": map[string]any{
		"name": "x", "annotations": map[string]any{"cert-manager.io/inject-ca-from": "ns/certificate"},
	}}}
	other := unstructured.Unstructured{Object: map[string]any{"kind": "DaemonSet", "metadata": map[string]any{"name": "x"}}}
	_, _, err := templates(&sources{standard: []unstructured.Unstructured{manager, other}, certManager: []unstructured.Unstructured{webhooks}})
	if err == nil || !strings.Contains(err.Error(), "DaemonSet x: nobody has said where in the chart it belongs") {
		t.Error(err)
	}
}

func TestObject(t *testing.T) {
	templ := &template{marks: map[string]string{"labels": "¦LABELS %%", "block": optional("x"), "first": "¦§: {{ .a }}"}}
	got, err := templ.object(map[string]any{
		"kind": "K", "metadata": map[string]any{"namespace": namespace, "annotations": map[string]any{"a": "{{ $labels.x }}"}},
		"spec": map[string]any{"block": mark + "block", "list": []any{map[string]any{"first": mark + "first", "second": "2"}}},
	})
	want := `kind: K
metadata:
  annotations:
    a: '{{ "{{" }} $labels.x }}'
  labels:
    LABELS 4
  namespace: {{ .Release.Namespace | quote }}
spec:
  {{- with .Values.x }}
  block:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  list:
  - first: {{ .a }}
    second: "2"
`
	if err != nil || got != want {
		t.Errorf("%v\n%s", err, got)
	}
	if _, err := templ.object(map[string]any{"spec": map[string]any{"list": []any{mark + "first"}}}); err == nil || !strings.Contains(err.Error(), "a mark is not alone in its line") {
		t.Error(err)
	}
	if _, err := templ.object(map[string]any{"spec": map[string]any{"list": []any{map[string]any{"a": mark + "block"}}}}); err == nil || !strings.Contains(err.Error(), "cannot be left out") {
		t.Error(err)
	}
	if _, err := templ.object(map[string]any{"a": mark + "other"}); err == nil || !strings.Contains(err.Error(), "nothing is known of the mark other") {
		t.Error(err)
	}
}
