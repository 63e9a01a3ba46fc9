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

package admission

import (
	"testing"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// TestContent: an object of a declared kind has the generation in which it last had the recorded version.
func TestContent(t *testing.T) {
	object := func(version, label, content string, generation int64) Object {
		o := Object{Version: version, Content: &workload.Content{Hash: "hash", Generation: generation}, Labels: map[string]string{}}
		o.Annotations = map[string]string{v1alpha1.ReleaseAnnotation: "1"}
		if label != "" {
			o.Labels[v1alpha1.VersionLabel] = label
		}
		if content != "" {
			o.Annotations[v1alpha1.ContentAnnotation] = content
		}
		return o
	}
	native := object("a", "a", "", 3)
	native.Content = nil
	left := object("a", "a", "hash 3", 4)
	left.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled
	old := object("a", "a", "hash 3", 3)
	for name, test := range map[string]struct {
		Request
		want string
	}{
		"created":             {Request{Operation: Create, New: object("a", "", "x 9", 1)}, "hash 1"},
		"released":            {Request{Operation: Update, Old: old, New: object("b", "a", "hash 3", 4)}, "hash 4"},
		"scaled":              {Request{Operation: Update, Old: old, New: object("a", "a", "hash 3", 4)}, "hash 4"},
		"forged":              {Request{Operation: Update, Old: old, New: object("a", "a", "hash 99", 3)}, "hash 3"},
		"by the operator":     {Request{Operation: Update, Own: true, Old: old, New: object("a", "a", "hash 3", 4)}, "hash 4"},
		"another version":     {Request{Operation: Update, Old: object("b", "a", "hash 3", 5), New: object("b", "a", "hash 99", 6)}, "hash 3"},
		"a baseline":          {Request{Operation: Update, Old: object("a", "", "", 5), New: object("a", "", "", 6)}, ""},
		"opted out":           {Request{Operation: Update, Old: left, New: left}, "hash 3"},
		"no declared kind":    {Request{Operation: Update, Old: native, New: native}, ""},
		"declared by another": {Request{Operation: Update, Old: object("a", "a", "old 3", 3), New: object("a", "a", "old 3", 3)}, "hash 3"},
	} {
		t.Run(name, func(t *testing.T) {
			test.Unstamped = true
			got := applied(test.New, Mutate(test.Request))
			if content := got.Annotations[v1alpha1.ContentAnnotation]; content != test.want {
				t.Errorf("%q, want %q", content, test.want)
			}
		})
	}
}
