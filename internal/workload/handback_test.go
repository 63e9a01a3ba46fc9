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
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Managed fields from an API server of 1.36.3, after a server-side apply by flux and a rollback:
// the older template had another image and label, one more variable and one more container.
const (
	appliedFields = `{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:replicas":{},"f:selector":{},"f:template":{
		"f:metadata":{"f:labels":{"f:app":{}}},
		"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{".":{},"f:name":{}}}}}}}`
	rolledBackFields = `{"f:spec":{"f:template":{"f:metadata":{"f:labels":{"f:test":{}}},"f:spec":{"f:containers":{
		"k:{\"name\":\"main\"}":{"f:env":{"k:{\"name\":\"A\"}":{".":{},"f:name":{},"f:value":{}}},"f:image":{}},
		"k:{\"name\":\"old\"}":{".":{},"f:image":{},"f:imagePullPolicy":{},"f:name":{}}}}}}}`
	givenBackFields = `{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:replicas":{},"f:selector":{},"f:template":{
		"f:metadata":{"f:labels":{"f:app":{},"f:test":{}}},
		"f:spec":{"f:containers":{
		"k:{\"name\":\"main\"}":{".":{},"f:name":{},"f:env":{"k:{\"name\":\"A\"}":{".":{},"f:name":{},"f:value":{}}},"f:image":{}},
		"k:{\"name\":\"old\"}":{".":{},"f:image":{},"f:imagePullPolicy":{},"f:name":{}}}}}}}`
	versionFields = `{"f:spec":{"f:template":{"f:metadata":{"f:labels":{"f:` + v1alpha1.VersionLabel + `":{}}}}}}`
	keyFields     = `{"f:metadata":{"f:labels":{"f:altershield.defense.antgroup.com/suspend":{}}}}`
)

func managed(manager string, operation metav1.ManagedFieldsOperationType, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: operation, APIVersion: "apps/v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
	}
}

func ownFields(fields string) metav1.ManagedFieldsEntry {
	return managed(v1alpha1.FieldManager, metav1.ManagedFieldsOperationUpdate, fields)
}

func applierFields(manager, fields string) metav1.ManagedFieldsEntry {
	return managed(manager, metav1.ManagedFieldsOperationApply, fields)
}

func TestHandBack(t *testing.T) {
	status := applierFields("prober", rolledBackFields)
	status.Subresource = "status"
	scaler := applierFields("scaler", `{"f:spec":{"f:template":{"f:metadata":{"f:annotations":{"f:a":{}}}}}}`)
	both := func(a, b string) string { // of labels of the template and of the workload
		return `{"f:metadata":` + a + `,"f:spec":` + b + `}`
	}
	for name, test := range map[string]struct {
		entries, want []metav1.ManagedFieldsEntry // nil is not due
	}{
		"to the manager that applies": {
			[]metav1.ManagedFieldsEntry{applierFields("flux", appliedFields), ownFields(rolledBackFields)},
			[]metav1.ManagedFieldsEntry{applierFields("flux", givenBackFields)},
		},
		"other fields of the operator stay": {
			[]metav1.ManagedFieldsEntry{
				ownFields(both(`{"f:labels":{"f:x":{}}}`,
					`{"f:paused":{},"f:template":{"f:metadata":{"f:labels":{"f:test":{},"f:`+v1alpha1.VersionLabel+`":{}}}}}`)),
				applierFields("flux", appliedFields),
			},
			[]metav1.ManagedFieldsEntry{
				ownFields(both(`{"f:labels":{"f:x":{}}}`,
					`{"f:paused":{},"f:template":{"f:metadata":{"f:labels":{"f:`+v1alpha1.VersionLabel+`":{}}}}}`)),
				applierFields("flux", `{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:replicas":{},"f:selector":{},"f:template":{
					"f:metadata":{"f:labels":{"f:app":{},"f:test":{}}},
					"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{".":{},"f:name":{}}}}}}}`),
			},
		},
		"to the manager with most of the template": {
			[]metav1.ManagedFieldsEntry{
				scaler, applierFields("flux", appliedFields), status, ownFields(rolledBackFields),
				managed("kubectl-set", metav1.ManagedFieldsOperationUpdate, rolledBackFields),
			},
			[]metav1.ManagedFieldsEntry{
				scaler, applierFields("flux", givenBackFields), status,
				managed("kubectl-set", metav1.ManagedFieldsOperationUpdate, rolledBackFields),
			},
		},
		"no manager applies": {
			[]metav1.ManagedFieldsEntry{
				managed("kubectl-client-side-apply", metav1.ManagedFieldsOperationUpdate, appliedFields), ownFields(rolledBackFields),
			},
			nil,
		},
		"the manager that applies has no template": {
			[]metav1.ManagedFieldsEntry{applierFields("flux", `{"f:spec":{"f:replicas":{}}}`), ownFields(rolledBackFields)}, nil,
		},
		"never rolled back":      {[]metav1.ManagedFieldsEntry{applierFields("flux", appliedFields), ownFields(keyFields)}, nil},
		"only the version label": {[]metav1.ManagedFieldsEntry{applierFields("flux", appliedFields), ownFields(versionFields)}, nil},
		"another manager with the operator's name": {
			[]metav1.ManagedFieldsEntry{applierFields("flux", appliedFields), applierFields(v1alpha1.FieldManager, rolledBackFields)}, nil,
		},
		"nothing is managed": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, due, err := HandBack(test.entries, templatePath)
			if err != nil || due != (test.want != nil) {
				t.Fatalf("due %t, %v", due, err)
			}
			if diff := cmp.Diff(readable(t, test.want), readable(t, got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if _, again, err := HandBack(got, templatePath); again || err != nil {
				t.Errorf("due again: %t, %v", again, err)
			}
			// The cache keeps only that it is due.
			u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{}}}}
			u.SetGroupVersionKind(Deployment{}.GroupVersionKind())
			u.SetManagedFields(test.entries)
			trimmed, err := trimDeployment(u)
			if err != nil {
				t.Fatal(err)
			}
			kept, ok := trimmed.(*unstructured.Unstructured)
			if !ok {
				t.Fatalf("trimmed to %T", trimmed)
			}
			w, _, err := readDeployment(kept)
			if err != nil || w.HandBack != due {
				t.Errorf("observed %+v, %v, want due %t", w, err, due)
			}
		})
	}
	if _, _, err := HandBack([]metav1.ManagedFieldsEntry{applierFields("flux", `{"f:spec":7}`), ownFields(rolledBackFields)},
		templatePath); err == nil {
		t.Error("fields that cannot be read are taken for none")
	}
}

// TestHandBackWhole: a list or map that is managed as a whole goes back, too: the content, or an object that has it.
func TestHandBackWhole(t *testing.T) {
	at, halt := Path{"spec", "http", "routes"}, Path{"spec", "strategy", "paused"}
	const scaled = `{"f:spec":{"f:replicas":{}}}`
	for name, test := range map[string]struct{ own, applied, want string }{
		"the content":           {`{"f:spec":{"f:http":{"f:routes":{}}}}`, `{"f:spec":{"f:http":{"f:hosts":{},"f:routes":{}}}}`, ""},
		"an object that has it": {`{"f:spec":{"f:http":{}}}`, `{"f:spec":{"f:http":{}}}`, ""},
		"fields beside it":      {scaled, `{"f:spec":{"f:http":{}}}`, scaled},
		"with a field that halts": {
			`{"f:spec":{".":{},"f:http":{"f:routes":{}}}}`, `{"f:spec":{"f:http":{"f:routes":{}}}}`, `{"f:spec":{}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			flux := applierFields("flux", test.applied)
			got, due, err := HandBack([]metav1.ManagedFieldsEntry{ownFields(test.own), flux}, at, halt)
			want := []metav1.ManagedFieldsEntry{flux}
			if test.want != "" {
				want = append(want, ownFields(test.want))
			}
			if test.want == test.own {
				want = nil
			}
			if err != nil || due != (want != nil) {
				t.Fatalf("due %t, %v", due, err)
			}
			if diff := cmp.Diff(readable(t, want), readable(t, got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// readable returns the entries with their fields as text in one format.
func readable(t *testing.T, entries []metav1.ManagedFieldsEntry) map[string]any {
	t.Helper()
	m := map[string]any{}
	for i := range entries {
		m[entries[i].Manager+" "+string(entries[i].Operation)+" "+entries[i].Subresource] = decodeMap(t, entries[i].FieldsV1.GetRawString())
	}
	return m
}

func TestGiveUp(t *testing.T) {
	const paces = `{"f:spec":{"f:minReadySeconds":{},"f:progressDeadlineSeconds":{}}}`
	flux := applierFields("flux", `{"f:spec":{"f:minReadySeconds":{},"f:replicas":{}}}`)
	status := ownFields(paces)
	status.Subresource = "status"
	for name, test := range map[string]struct {
		entries, want []metav1.ManagedFieldsEntry // nil is not due
	}{
		"all of an entry": {[]metav1.ManagedFieldsEntry{flux, ownFields(paces)}, []metav1.ManagedFieldsEntry{flux}},
		"a part of one": {
			[]metav1.ManagedFieldsEntry{ownFields(`{"f:spec":{"f:minReadySeconds":{},"f:paused":{}}}`), flux},
			[]metav1.ManagedFieldsEntry{ownFields(`{"f:spec":{"f:paused":{}}}`), flux},
		},
		"no field of the operator": {[]metav1.ManagedFieldsEntry{flux, ownFields(keyFields)}, nil},
		"fields of the status":     {[]metav1.ManagedFieldsEntry{status, flux}, nil},
		"fields of others":         {[]metav1.ManagedFieldsEntry{managed("kubectl-edit", metav1.ManagedFieldsOperationUpdate, paces)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			changed, due, err := GiveUp(test.entries, Deployment{}.PacePaths()...)
			if err != nil || due != (test.want != nil) {
				t.Fatalf("due is %t, error %v", due, err)
			}
			if diff := cmp.Diff(readable(t, test.want), readable(t, changed)); due && diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
