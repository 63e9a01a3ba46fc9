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
package webhooks

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	decide "github.com/traas-stack/altershield-operator/internal/admission"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
)

// TestReplaceHalted: a client replaces an object that is halted by two fields, without the annotations of the halt and with
// another value of one field. A release resumes the other field, too; anything else leaves the halt.
func TestReplaceHalted(t *testing.T) {
	c := workloadtest.ChangeKind()
	c.Spec.Rollout.Halt = append(c.Spec.Rollout.Halt, v1alpha1.ChangeKindHalt{
		Path: "spec.moored", Value: apiextensionsv1.JSON{Raw: []byte("true")},
	})
	k, problem := declared.Accept(c, declared.Served{Kind: "Fleet", Namespaced: true})
	if problem != "" {
		t.Fatal(problem)
	}
	fleet := func(annotations map[string]string, anchored, moored bool, crew string) string {
		text, err := json.Marshal(annotations)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Fleet","metadata":{"name":"sleep","annotations":%s},
			"spec":{"anchored":%t,"moored":%t,"crew":{"metadata":{"labels":{"test":%q}}}}}`, text, anchored, moored, crew)
	}
	halted := map[string]string{
		v1alpha1.HaltedAnnotation:     "v1",
		v1alpha1.HaltedFromAnnotation: `[{"path":"spec.anchored","value":true},{"path":"spec.moored","value":true}]`,
	}
	for name, test := range map[string]struct {
		annotations map[string]string
		moored      bool
		crew        string
		resumes     bool
	}{
		"released":                            {halted, true, "b", true},
		"released, without annotations":       {nil, true, "b", true},
		"both resumed, without annotations":   {nil, false, "b", false},
		"something else":                      {halted, true, "a", false},
		"something else, without annotations": {nil, true, "a", false},
	} {
		t.Run(name, func(t *testing.T) {
			req := fleets.of(makeRequest(fleet(halted, true, true, "a"), fleet(test.annotations, false, test.moored, test.crew)))
			request, _, _, err := read(&req, &Options{}, declared.NewWorkloads(k))
			if err != nil {
				t.Fatal(err)
			}
			if request.New.Paused != test.moored {
				t.Errorf("paused: %t", request.New.Paused)
			}
			resumes := slices.ContainsFunc(decide.Mutate(request), func(c decide.Change) bool {
				return c.Target == decide.WorkloadPaused && c.Remove
			})
			if resumes != test.resumes {
				t.Errorf("changes %+v", decide.Mutate(request))
			}
		})
	}
}
