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

// TestHoldOf: a hold of another field is none. A hold of an earlier build is of the field of the kind.
func TestHoldOf(t *testing.T) {
	is := Pace{ByPartition: true, Partition: 3, Field: "spec.keep"}
	for field, want := range map[string]bool{"spec.keep": true, "": true, "spec.stay": false} {
		own, was := Pace{ByPartition: true, Partition: 1, Field: field}, Pace{ByPartition: true, Partition: 2, Field: field}
		h := is.HoldOf(map[string]string{v1alpha1.HeldAnnotation: (&Hold{Release: 2, Pace: own, Set: own.Keeping(3), Was: &was}).String()})
		if (h != nil) != want || h != nil && (h.Set != is || h.Kept(is) != Pace{ByPartition: true, Partition: 1, Field: "spec.keep"}) {
			t.Errorf("%q: %+v", field, h)
		}
	}
}

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
