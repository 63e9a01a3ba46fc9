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
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// TestUnrecordedContent: the generation that admission expected of a new object is not corrected if the kind has none.
func TestUnrecordedContent(t *testing.T) {
	for name, test := range map[string]struct {
		recorded string
		now      Content
		want     string
	}{
		"the same":                    {"h 2", Content{Hash: "h", Generation: 2}, ""},
		"scaled":                      {"h 2", Content{Hash: "h", Generation: 3}, "h 3"},
		"a kind without generations":  {"h 1", Content{Hash: "h"}, ""},
		"such, with another hash":     {"g 1", Content{Hash: "h"}, "h 0"},
		"such, without an annotation": {"", Content{Hash: "h"}, "h 0"},
	} {
		t.Run(name, func(t *testing.T) {
			w := Workload{Version: "v", Content: &test.now, Labels: map[string]string{v1alpha1.VersionLabel: "v"},
				Annotations: map[string]string{v1alpha1.ContentAnnotation: test.recorded}}
			if got := w.UnrecordedContent(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestTemplateMissing: the error of a workload without a pod template is plain.
func TestTemplateMissing(t *testing.T) {
	_, err := Template(Deployment{}, &unstructured.Unstructured{Object: map[string]any{}})
	if err == nil || strings.Contains(err.Error(), "%!") {
		t.Error(err)
	}
}
