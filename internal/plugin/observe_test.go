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

package plugin

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func TestDecideOptOut(t *testing.T) {
	const label = v1alpha1.DefenseLabel
	sleep := target{kind: workload.Deployment{}, key: types.NamespacedName{Namespace: "shop", Name: "sleep"}}
	for _, tt := range []struct {
		name   string
		labels map[string]string
		undo   bool
		// want is what it has then, wantSays what is told.
		want     map[string]string
		wantSays string
	}{
		{"out", map[string]string{"a": "b"}, false, map[string]string{"a": "b", label: "disabled"}, "deployment/sleep: set the label " + label + "=disabled"},
		{"out, without any label", nil, false, map[string]string{label: "disabled"}, "deployment/sleep: set the label " + label + "=disabled"},
		{"out already", map[string]string{label: "disabled"}, false, map[string]string{label: "disabled"}, "it is out of the defense already"},
		{"out, in place of what somebody set", map[string]string{label: "enforced"}, false, map[string]string{label: "disabled"},
			"deployment/sleep: set the label " + label + `=disabled, in place of the value "enforced"`},
		{"out, in place of nothing", map[string]string{label: ""}, false, map[string]string{label: "disabled"},
			"deployment/sleep: set the label " + label + `=disabled, in place of the value ""`},
		{"back", map[string]string{label: "disabled", "a": "b"}, true, map[string]string{"a": "b"}, "deployment/sleep: remove the label " + label},
		{"back, and was never out", nil, true, nil, "it has not opted out"},
		{"back, and somebody set another value", map[string]string{label: "enforced"}, true, map[string]string{label: "enforced"},
			"it has not opted out; the label " + label + "=enforced stays"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			does := decideOptOut(sleep, tt.labels, tt.undo)
			if says := does.nothing + does.what; says != tt.wantSays {
				t.Errorf("%q, want %q", says, tt.wantSays)
			}
			stored := storedDeployment(t, func(d *appsv1.Deployment) { d.Labels = tt.labels })
			api := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(stored).Build()
			if does.nothing == "" {
				patch, err := json.Marshal(does.ops(stored))
				if err != nil {
					t.Fatal(err)
				}
				if err := api.Patch(t.Context(), stored, client.RawPatch(types.JSONPatchType, patch)); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(tt.want, stored.GetLabels()); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
		})
	}
}

// What was there before comes back by a command that is told.
func TestOptOutAdvisesUndo(t *testing.T) {
	c, out := testConnection(t)
	for _, tt := range []struct{ before, want string }{
		{"", "to let it come back: kubectl altershield opt-out deployment/sleep --undo\n"},
		{"enforced", "to let it come back: kubectl label deployment/sleep --overwrite " + v1alpha1.DefenseLabel + "=enforced\n"},
	} {
		out.Reset()
		stored := storedDeployment(t, func(d *appsv1.Deployment) {
			if tt.before != "" {
				d.Labels = map[string]string{v1alpha1.DefenseLabel: tt.before}
			}
		})
		api := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(stored, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}).Build()
		change := &changer{connection: c, dryRun: dryRunNone}
		if err := change.optOutOf(t.Context(), api, target{kind: workload.Deployment{}, key: client.ObjectKeyFromObject(stored)}, leaveFlags{}); err != nil {
			t.Fatal(err)
		}
		if !bytes.HasSuffix(out.Bytes(), []byte(tt.want)) {
			t.Errorf("%s\nwant %s", out, tt.want)
		}
	}
}
