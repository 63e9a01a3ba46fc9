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

package settings

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// TestLeaving reads the former setting back from the remark.
func TestLeaving(t *testing.T) {
	for name, spec := range map[string]v1alpha1.OpsConfigInfoSpec{
		"off":                {},
		"off, with a remark": {Remark: "mine"},
		"off and locked":     {Locked: true},
		"on":                 {Enable: true},
		"on, with a remark":  {Enable: true, Remark: "begun on Monday; before: enable=false, locked=true, remark: x"},
	} {
		t.Run(name, func(t *testing.T) {
			spec.Type = v1alpha1.TypeObserve
			if _, leaving := BeforeLeaving(spec); leaving {
				t.Error("leaving before Leave")
			}
			left := Leave(spec)
			if !left.Enable || !left.Locked || !strings.HasPrefix(left.Remark, LeaveRemark) {
				t.Errorf("Leave returns %+v", left)
			}
			before, leaving := BeforeLeaving(left)
			if diff := cmp.Diff(spec, before); diff != "" || !leaving {
				t.Errorf("leaving: %t, before (-want +got):\n%s", leaving, diff)
			}
			// A user changed the setting since: it stays.
			left.Locked = false
			if _, leaving := BeforeLeaving(left); leaving {
				t.Error("leaving, and not locked")
			}
		})
	}
	if long := Leave(v1alpha1.OpsConfigInfoSpec{Remark: strings.Repeat("x", 1024)}); len(long.Remark) != 1024 {
		t.Errorf("a remark of %d characters", len(long.Remark))
	}
}
