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

package defense

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// FuzzRecords: any annotations and labels are read without harm, and the result is written and read again as the same.
func FuzzRecords(f *testing.F) {
	for _, seed := range []string{
		"", " ", "c6c45d23 17 jane doe", "v 1 ", "1 1700000000 Blocked jane", "1 x Quarantined u", "1 1700000000 Blocked",
		"-1 99999999999999999999 Blocked u",
		`{"asked":"all","ended":["a"],"user":"jane","resourceVersion":"3"}`, `{"asked":""}`, `{"Asked":"0","ended":[]}`, `{"asked":`, "a=b,c=d",
		"a=a,=b,b=,,a=b=c",
		strings.Repeat("a=b,", 50), "9223372036854775807", "9223372036854775808", "-1", "1e3", "\xff=\x00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if o, ok := record.ParseOverride(value); ok && strings.Join([]string{o.Version, o.ResourceVersion, o.User}, " ") != value {
			t.Fatalf("override %q reads as %+v", value, o)
		}
		if o, ok := ParseOptOut(value); ok {
			if again, ok := ParseOptOut(o.String()); !ok || again != o {
				t.Fatalf("opt-out %q reads as %+v, and then as %+v", value, o, again)
			}
		}
		if u, ok := rollback.ParseUnquarantined(value); ok {
			if again, ok := rollback.ParseUnquarantined(u.String()); !ok || again.String() != u.String() {
				t.Fatalf("unquarantined %q reads as %+v, and then as %+v", value, u, again)
			}
		}
		a := ParseAdmitted(value)
		if len(a) > maxAdmitted || !cmp.Equal(ParseAdmitted(a.String()), a) {
			t.Fatalf("admitted %q reads as %d templates, and then as others", value, len(a))
		}
		if n := workload.ParseRelease(value); n < 0 || n > workload.MaxRelease || workload.NextRelease(n) <= n && n < workload.MaxRelease {
			t.Fatalf("release %q is %d", value, n)
		}
		_, _, _ = record.ParseBlockedBy(map[string]string{v1alpha1.SuspendedByAnnotation: value})
	})
}
