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
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestTemplate(t *testing.T) {
	object := func(kind string, more map[string]any) unstructured.Unstructured {
		o := map[string]any{"kind": kind, "metadata": map[string]any{"name": "x", "labels": map[string]any{"a": "{{ $labels.x }}"}}}
		for key, value := range more {
			o[key] = value
		}
		return unstructured.Unstructured{Object: o}
	}
	got, err := template(object("ValidatingWebhookConfiguration", map[string]any{"webhooks": []any{map[string]any{
		"admissionReviewVersions": []any{"v1"}, "name": "w",
		"clientConfig": map[string]any{"service": map[string]any{"namespace": namespace, "name": "w." + namespace + ".svc"}},
	}}}))
	want := `kind: ValidatingWebhookConfiguration
metadata:
` + named("", inject) + `  labels:
    a: '{{ "{{" }} $labels.x }}'
` + labels + `  name: x
webhooks:
- admissionReviewVersions:
  - v1
  clientConfig:
` + caBundle + `    service:
      name: w.{{ .Release.Namespace }}.svc
      namespace: {{ .Release.Namespace | quote }}
  name: w
`
	if err != nil || got != want {
		t.Errorf("%v\n%s", err, got)
	}
	if got, err := template(object("PrometheusRule", nil)); err != nil || !strings.Contains(got, ".Values.metrics.rules.labels") {
		t.Errorf("%v\n%s", err, got)
	}
	bare := unstructured.Unstructured{Object: map[string]any{"kind": "Role", "metadata": map[string]any{"name": "x"}}}
	if got, err := template(bare); err == nil {
		t.Errorf("without labels:\n%s", got)
	}
}
