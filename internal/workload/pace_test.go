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

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func TestParseHoldEnd(t *testing.T) {
	for _, e := range []HoldEnd{
		{Release: 3, Reason: v1alpha1.ReasonHoldVerified}, {Release: 3, Reason: v1alpha1.ReasonHoldEdited, User: "system:serviceaccount:a b:c"},
	} {
		if got, ok := ParseHoldEnd(e.String()); !ok || got != e {
			t.Errorf("read %+v, %t, want %+v", got, ok, e)
		}
	}
	for _, bad := range []string{"", "3", "x Verified", "0 Verified", "3 Whatever"} {
		if got, ok := ParseHoldEnd(bad); ok {
			t.Errorf("%q was read as %+v", bad, got)
		}
	}
}
