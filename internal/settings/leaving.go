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
	"fmt"
	"strings"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// LeaveRemark begins the remark of the setting observe while the operator is being uninstalled.
const LeaveRemark = "turned on by `manager leave`, before the operator was uninstalled"

// Leave returns the setting observe for an operator that is being uninstalled: on, and locked, so that it counts for every
// workload. Its remark records the former value.
func Leave(before v1alpha1.OpsConfigInfoSpec) v1alpha1.OpsConfigInfoSpec {
	remark := LeaveRemark
	if before.Enable || before.Locked || before.Remark != "" {
		remark += wasBefore(before.Enable, before.Locked) + before.Remark
	}
	return v1alpha1.OpsConfigInfoSpec{
		Type: v1alpha1.TypeObserve, Enable: true, Content: before.Content, Locked: true,
		Remark: strings.ToValidUTF8(remark[:min(len(remark), maxRemark)], ""),
	}
}

// maxRemark is the longest remark, in bytes.
const maxRemark = 1024

func wasBefore(enable, locked bool) string {
	return fmt.Sprintf("; before: enable=%t, locked=%t, remark: ", enable, locked)
}

// BeforeLeaving returns the setting observe from before Leave; ok is false if Leave did not write the present one.
func BeforeLeaving(now v1alpha1.OpsConfigInfoSpec) (before v1alpha1.OpsConfigInfoSpec, ok bool) {
	rest, ok := strings.CutPrefix(now.Remark, LeaveRemark)
	if !ok || !now.Enable || !now.Locked {
		return now, false
	}
	before = v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve, Content: now.Content}
	for _, was := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
		if remark, found := strings.CutPrefix(rest, wasBefore(was[0], was[1])); found {
			before.Enable, before.Locked, before.Remark = was[0], was[1], remark
		}
	}
	return before, true
}
