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

package workload

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func TestLastApplied(t *testing.T) {
	template := map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"app": "web", v1alpha1.VersionLabel: "v1"}},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "restored"}}},
	}
	for name, test := range map[string]struct {
		applied string // nothing is no annotation
		want    string // nothing is no change
	}{
		"never applied": {"", ""},
		"applied": {`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":9007199254740993,"template":{"spec":{"containers":[]}}}}`,
			`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":9007199254740993,"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"restored"}]}}}}`},
		"no JSON": {"{", ""},
		"no spec": {`{"metadata":{}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			annotations := map[string]string{}
			if test.applied != "" {
				annotations[corev1.LastAppliedConfigAnnotation] = test.applied
			}
			got, ok := LastApplied(annotations, template)
			if ok != (test.want != "") || got != test.want {
				t.Errorf("%q %t, want %q", got, ok, test.want)
			}
		})
	}
}

func TestTemplateOf(t *testing.T) {
	const template = `{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"busybox","resources":{}}],"activeDeadlineSeconds":9007199254740993}}`
	want, err := VersionOfRaw([]byte(template))
	if err != nil {
		t.Fatal(err)
	}
	got, version, err := TemplateOf(&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(`{"spec":{"template":` + template + `}}`)}})
	if err != nil || version != want {
		t.Fatalf("version %s, %v, want %s", version, err, want)
	}
	again, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if version, err := VersionOfRaw(again); err != nil || version != want {
		t.Errorf("written again it is of version %s, %v, want %s: digits were lost", version, err, want)
	}
	for _, data := range []string{"", "{}", `{"spec":{"template":null}}`, `{"spec":{"template":7}}`} {
		if _, _, err := TemplateOf(&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(data)}}); err == nil {
			t.Errorf("%q is taken for a template", data)
		}
	}
}
