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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func TestTemplateOf(t *testing.T) {
	const template = `{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"busybox","resources":{}}],` +
		`"activeDeadlineSeconds":9007199254740993}}`
	want, err := versionOfRaw([]byte(template))
	if err != nil {
		t.Fatal(err)
	}
	got, version, err := TemplateOf(&appsv1.ControllerRevision{
		Data: runtime.RawExtension{Raw: []byte(`{"spec":{"template":` + template + `}}`)},
	})
	if err != nil || version != want {
		t.Fatalf("version %s, %v, want %s", version, err, want)
	}
	again, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if version, err := versionOfRaw(again); err != nil || version != want {
		t.Errorf("written again, the version is %s, %v, want %s: digits were lost", version, err, want)
	}
	for _, data := range []string{"", "{}", `{"spec":{"template":null}}`, `{"spec":{"template":7}}`} {
		if _, _, err := TemplateOf(&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(data)}}); err == nil {
			t.Errorf("%q is taken for a template", data)
		}
	}
}

func TestRemembers(t *testing.T) {
	yes := true
	const version = "0123456789abcdef0123456789abcdef"
	object := func(labels map[string]string, owners ...metav1.OwnerReference) *appsv1.ControllerRevision {
		return &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "r", Labels: labels, OwnerReferences: owners}}
	}
	owner := func(apiVersion, kind, uid string, controller *bool) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: "web", UID: types.UID(uid), Controller: controller}
	}
	of := func(uid string) map[string]string {
		return map[string]string{v1alpha1.VersionLabel: version, v1alpha1.HistoryOfLabel: uid}
	}
	stamped := map[string]string{v1alpha1.VersionLabel: version}
	for name, test := range map[string]struct {
		object *appsv1.ControllerRevision
		want   types.UID
	}{
		"of a Deployment":  {object(of("u"), owner("apps/v1", "Deployment", "u", nil)), "u"},
		"of a StatefulSet": {object(of("u"), owner("apps/v1", "StatefulSet", "u", nil)), "u"},
		"with another owner, too": {
			object(of("u"), owner("v1", "ConfigMap", "c", nil), owner("apps/v1", "Deployment", "u", nil)), "u",
		},
		"of an earlier build":                        {object(stamped, owner("apps/v1", "Deployment", "u", &yes)), "u"},
		"a StatefulSet's own":                        {object(nil, owner("apps/v1", "StatefulSet", "u", &yes)), ""},
		"a StatefulSet's own, of a stamped template": {object(stamped, owner("apps/v1", "StatefulSet", "u", &yes)), ""},
		"another's, with the label copied":           {object(of("u"), owner("apps/v1", "StatefulSet", "v", &yes)), ""},
		"orphaned":                                   {object(of("u")), ""},
		"orphaned, of an earlier build":              {object(stamped), ""},
		"a Deployment's without a version":           {object(nil, owner("apps/v1", "Deployment", "u", &yes)), ""},
	} {
		if got := Remembers(test.object); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		indexed := HistoryOf(test.object)
		if remembered := len(History([]appsv1.ControllerRevision{*test.object})) == 1; remembered != (test.want != "") ||
			len(indexed) == 1 != remembered {
			t.Errorf("%s: in the history: %t, indexed by %v; want %q", name, remembered, indexed, test.want)
		}
	}
}
