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

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func decodeMap(t *testing.T, data string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(data), &m); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return m
}

func TestLastApplied(t *testing.T) {
	const main = `{"name":"main","image":"web:1","resources":{},"terminationMessagePath":"/dev/termination-log"}`
	for name, test := range map[string]struct {
		// applied is the template that kubectl applied, which resulted in abandoned.
		applied, abandoned, restored string
		want                         string
	}{
		"nothing more": {
			applied:   `{"spec":{"containers":[{"name":"main","image":"web:2"}]}}`,
			abandoned: `{"metadata":{},"spec":{"containers":[{"name":"main","image":"web:2","resources":{}}],"dnsPolicy":"ClusterFirst"}}`,
			restored:  `{"metadata":{},"spec":{"containers":[{"name":"main","image":"web:1","resources":{}}],"dnsPolicy":"ClusterFirst"}}`,
			want:      `{"spec":{"containers":[{"name":"main","image":"web:2"}]}}`,
		},
		"a container, a variable, a volume, a port, a label, a field": {
			applied: `{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"main","image":"web:2",
				"env":[{"name":"NEW","value":"n"}],"ports":[{"containerPort":80}]}]}}`,
			abandoned: `{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"main","image":"web:2",
				"env":[{"name":"NEW","value":"n"}],"ports":[{"containerPort":80,"protocol":"TCP"}],"resources":{}}]}}`,
			restored: `{"metadata":{"labels":{"app":"web","tier":"front","` + v1alpha1.VersionLabel + `":"v1"}},
				"spec":{"hostNetwork":true,"volumes":[{"name":"data","emptyDir":{}}],
				"containers":[{"name":"main","image":"web:1","env":[{"name":"OLD","value":"o"}],
				"ports":[{"containerPort":80,"protocol":"TCP"},{"containerPort":81,"protocol":"TCP"}],"resources":{"limits":{"cpu":"1"}}},
				{"name":"old","image":"old:1"}]}}`,
			want: `{"metadata":{"labels":{"app":"web","tier":"front"}},"spec":{"hostNetwork":true,"volumes":[{"name":"data","emptyDir":{}}],
				"containers":[{"name":"main","image":"web:2","env":[{"name":"NEW","value":"n"},{"name":"OLD","value":"o"}],
				"ports":[{"containerPort":80},{"containerPort":81,"protocol":"TCP"}],"resources":{"limits":{"cpu":"1"}}},
				{"name":"old","image":"old:1"}]}}`,
		},
		"kubectl set env, a reloader and restartedAt, before and after": {
			applied: `{"metadata":{"annotations":{"team":"a"}},"spec":{"containers":[{"name":"main","image":"web:2",
				"env":[{"name":"NEW","value":"n"}]}]}}`,
			abandoned: `{"metadata":{"annotations":{"team":"a","kubectl.kubernetes.io/restartedAt":"2"}},
				"spec":{"containers":[{"name":"main","image":"web:2",
				"env":[{"name":"NEW","value":"n"},{"name":"KEEP","value":"1"},{"name":"STAKATER_WEB_CONFIGMAP","value":"b"}]}]}}`,
			restored: `{"metadata":{"annotations":{"team":"a","kubectl.kubernetes.io/restartedAt":"1"}},
				"spec":{"containers":[{"name":"main","image":"web:1",
				"env":[{"name":"KEEP","value":"1"},{"name":"STAKATER_WEB_CONFIGMAP","value":"a"}]}]}}`,
			want: `{"metadata":{"annotations":{"team":"a"}},"spec":{"containers":[{"name":"main","image":"web:2",
				"env":[{"name":"NEW","value":"n"}]}]}}`,
		},
		"fields of other tools in both stay": {
			applied: `{"spec":{"containers":[{"name":"main","image":"web:2"}]}}`,
			abandoned: `{"metadata":{"annotations":{"restartedAt":"1"}},"spec":{"containers":[{"name":"main","image":"web:2"},
				{"name":"mesh","image":"mesh:2","env":[{"name":"A","value":"1"}]}]}}`,
			restored: `{"metadata":{"annotations":{"restartedAt":"1","old":"x"}},"spec":{"containers":[{"name":"main","image":"web:1"},
				{"name":"mesh","image":"mesh:1","env":[{"name":"A","value":"1"},{"name":"B","value":"2"}]}]}}`,
			// If annotations or mesh were added, the next apply would delete them as a whole.
			want: `{"spec":{"containers":[{"name":"main","image":"web:2"}]}}`,
		},
		"a field that only the restored one set": {
			applied:   `{"spec":{"containers":[` + main + `]}}`,
			abandoned: `{"spec":{"terminationGracePeriodSeconds":30,"containers":[` + main + `]}}`,
			restored:  `{"spec":{"terminationGracePeriodSeconds":60,"containers":[` + main + `]}}`,
			want:      `{"spec":{"terminationGracePeriodSeconds":60,"containers":[` + main + `]}}`,
		},
		"a list that is replaced as a whole, and a field of the future": {
			applied:   `{"spec":{"containers":[{"name":"main","args":["b"],"novel":{"x":1}}]}}`,
			abandoned: `{"spec":{"containers":[{"name":"main","args":["b"],"novel":{"x":1}}]}}`,
			restored:  `{"spec":{"containers":[{"name":"main","args":["a","c"],"novel":{"x":2,"y":[{"name":"z"}]},"other":[1]}]}}`,
			want:      `{"spec":{"containers":[{"name":"main","args":["b"],"novel":{"x":1,"y":[{"name":"z"}]},"other":[1]}]}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			const head = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":3,"template":`
			manifest := head + test.applied + `}}`
			restored, abandoned := decodeMap(t, test.restored), decodeMap(t, test.abandoned)
			got, ok := LastApplied(map[string]string{corev1.LastAppliedConfigAnnotation: manifest}, templatePath, restored, abandoned)
			if !ok {
				t.Fatal("not applied")
			}
			want := decodeMap(t, head+test.want+`}}`)
			if diff := cmp.Diff(want, decodeMap(t, got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(decodeMap(t, test.restored), restored) + cmp.Diff(decodeMap(t, test.abandoned), abandoned); diff != "" {
				t.Errorf("templates were changed:\n%s", diff)
			}
		})
	}
	for name, applied := range map[string]string{"no JSON": "{", "no spec": `{"metadata":{}}`} {
		if got, ok := LastApplied(map[string]string{corev1.LastAppliedConfigAnnotation: applied}, templatePath, nil, nil); ok {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got, ok := LastApplied(nil, templatePath, nil, nil); ok {
		t.Errorf("never applied: %s", got)
	}
	digits := `{"spec":{"replicas":9007199254740993,"template":{}}}`
	if got, ok := LastApplied(map[string]string{corev1.LastAppliedConfigAnnotation: digits}, templatePath, nil, nil); !ok || got != digits {
		t.Errorf("digits were lost: %s", got)
	}
}
