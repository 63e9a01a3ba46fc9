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
)

// TestMutateHaltStays: a halt that the operator cannot undo keeps its annotations, until the fields are changed by hand.
func TestMutateHaltStays(t *testing.T) {
	halted := func(now bool) *admissionWrapper {
		w := makeUpdate().bothAnnotations(v1alpha1.HaltedAnnotation, "v1").bothAnnotations(v1alpha1.HaltedFromAnnotation, "2").paused(true, now)
		w.Old.Stays = "set it by hand"
		return w
	}
	for name, c := range map[string]struct {
		request *admissionWrapper
		stays   bool
	}{
		"a release":         {halted(true).release(), true},
		"something else":    {halted(true).annotation("a", "b"), true},
		"resumed":           {halted(false), false},
		"released, resumed": {halted(false).release(), false},
	} {
		t.Run(name, func(t *testing.T) {
			once := admitted(c.request.Request, Mutate(c.request.Request))
			_, by := once.New.Annotations[v1alpha1.HaltedAnnotation]
			_, from := once.New.Annotations[v1alpha1.HaltedFromAnnotation]
			if once.New.Paused != c.stays || by != c.stays || from != c.stays {
				t.Errorf("paused: %t, annotations: %v", once.New.Paused, once.New.Annotations)
			}
		})
	}
}
