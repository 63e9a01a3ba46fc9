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
	"strings"
	"testing"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// TestUnknownWords: a mistyped label causes a warning, and stays.
func TestUnknownWords(t *testing.T) {
	typo := released(labelled(v1alpha1.SettingAnnotationPrefix+"defence", "disabled"))
	for name, test := range map[string]struct {
		after string
		edit  func(*admission.Request)
		warns bool
	}{
		"in an update":    {after: typo, warns: true},
		"nothing unknown": {after: released("")},
		"a dry run":       {after: typo, edit: func(req *admission.Request) { req.DryRun = ptr.To(true) }},
		"the operator's":  {after: typo, edit: asOwn},
	} {
		t.Run(name, func(t *testing.T) {
			req := makeRequest(released(""), test.after)
			if test.edit != nil {
				test.edit(&req)
			}
			got := review(t, mutatingOf(Options{Self: self}, deployments), req)
			want := "defence is not known; the nearest known one is " + v1alpha1.DefenseLabel
			warned := len(got.Warnings) == 1 && strings.Contains(got.Warnings[0], want)
			if !got.Allowed || warned != test.warns || !test.warns && len(got.Warnings) > 0 || strings.Contains(string(got.Patch), "defence") {
				t.Errorf("allowed %t, warnings %q, patch %s", got.Allowed, got.Warnings, got.Patch)
			}
		})
	}
}
