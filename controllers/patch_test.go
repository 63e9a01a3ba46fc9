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

package controllers

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

func TestMetadataPatch(t *testing.T) {
	observed := func() *defense.Workload {
		return &defense.Workload{
			UID: "u", ResourceVersion: "7",
			Labels:      map[string]string{v1alpha1.VersionLabel: "v", v1alpha1.SuspendLabel: "1"},
			Annotations: map[string]string{v1alpha1.ReleaseAnnotation: "2"},
		}
	}
	stored := func(labels, annotations string) string {
		return fmt.Sprintf(`{"metadata":{"uid":"u","resourceVersion":"7","labels":%s,"annotations":%s},"spec":{"replicas":3}}`, labels, annotations)
	}
	const (
		version = `"admission-webhook-altershield.antgroup.com/version":"v"`
		suspend = `"altershield.defense.antgroup.com/suspend":"1"`
		release = `"altershield.defense.antgroup.com/release":"2"`
	)
	lift := func() *workloadPatch {
		p := patchRelease(observed())
		p.dropLabel(v1alpha1.SuspendLabel)
		p.dropAnnotation("not/there")
		return p
	}
	record := func(w *defense.Workload) *workloadPatch {
		p := patchRevision(w)
		p.setLabel(v1alpha1.VersionLabel, "v")
		p.setAnnotation(v1alpha1.ReleaseAnnotation, "2")
		return p
	}
	for name, test := range map[string]struct {
		patch  *workloadPatch
		stored string
		want   string // empty: refused
	}{
		"as observed": {lift(), stored(`{`+version+`,`+suspend+`}`, `{`+release+`}`), stored(`{`+version+`}`, `{`+release+`}`)},
		"a user's edits are kept, and no hindrance": {lift(), stored(`{`+version+`,`+suspend+`,"a":"b"}`, `{`+release+`,"c":"d"}`),
			stored(`{`+version+`,"a":"b"}`, `{`+release+`,"c":"d"}`)},
		"another release":          {lift(), stored(`{`+version+`,`+suspend+`}`, `{"altershield.defense.antgroup.com/release":"3"}`), ""},
		"another version":          {lift(), stored(`{"admission-webhook-altershield.antgroup.com/version":"w",`+suspend+`}`, `{`+release+`}`), ""},
		"another block":            {lift(), stored(`{`+version+`,"altershield.defense.antgroup.com/suspend":"5"}`, `{`+release+`}`), ""},
		"no block any more":        {lift(), stored(`{`+version+`}`, `{`+release+`}`), ""},
		"no labels at all":         {record(&defense.Workload{UID: "u", ResourceVersion: "7"}), `{"metadata":{"uid":"u","resourceVersion":"7"}}`, `{"metadata":{"uid":"u","resourceVersion":"7","labels":{` + version + `},"annotations":{` + release + `}}}`},
		"labels set since":         {record(&defense.Workload{UID: "u", ResourceVersion: "7"}), `{"metadata":{"uid":"u","resourceVersion":"8","labels":{"a":"b"}}}`, ""},
		"another of the same name": {record(&defense.Workload{UID: "u", ResourceVersion: "7"}), `{"metadata":{"uid":"v","resourceVersion":"7"}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			body, err := json.Marshal(test.patch.ops)
			if err != nil {
				t.Fatal(err)
			}
			patch, err := jsonpatch.DecodePatch(body)
			if err != nil {
				t.Fatal(err)
			}
			got, err := patch.Apply([]byte(test.stored))
			if refused := err != nil; refused != (test.want == "") {
				t.Fatalf("apply: %v, want refused %t", err, test.want == "")
			}
			if test.want == "" {
				return
			}
			var gotObject, wantObject any
			if err := errors.Join(json.Unmarshal(got, &gotObject), json.Unmarshal([]byte(test.want), &wantObject)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(wantObject, gotObject); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestIsFailedTest(t *testing.T) {
	resource := schema.GroupResource{Resource: "deployments"}
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"patch that does not apply": {fmt.Errorf("patch: %w", apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", resource, "", "testing value failed", 0, false)), true},
		"invalid object":            {apierrors.NewInvalid(schema.GroupKind{Kind: "Deployment"}, "d", field.ErrorList{field.Required(field.NewPath("spec"), "")}), false},
		"conflict":                  {apierrors.NewConflict(resource, "d", errors.New("changed")), false},
		"other":                     {errors.New("connection refused"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := isFailedTest(test.err); got != test.want {
				t.Errorf("%v: %t, want %t", test.err, got, test.want)
			}
		})
	}
}
