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

package rollback

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// FuzzQuarantine: with any annotations, each of the last ten listed versions is in quarantine, or
// its quarantine is over, and no other version is known. A quarantine that is written is bounded,
// and reads the same.
func FuzzQuarantine(f *testing.F) {
	reason, err := json.Marshal(map[string]QuarantineReason{
		"a": {Time: "2026-01-01T00:00:00Z", Cause: v1alpha1.ReasonNeverStarted, Until: "2026-01-01T01:00:00Z", Times: 3, Release: 7, To: "z"},
		"b": {Cause: v1alpha1.ReasonRollbackRequested, Overridden: "ann", Release: 8},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("a,b", string(reason), int64(1767225600))
	f.Add("a,b", string(reason), int64(1798761600))
	f.Add(" a ,,a,b,", `{"a":{"times":"many","cause":"c"},"b":{"cause":"d"}}`, int64(0))
	f.Add("a", `{"a":`, int64(0))
	f.Add("a", `[]`, int64(0))
	f.Add("", `null`, int64(0))
	f.Add(strings.Repeat("a,", 99)+"1,2,3,4,5,6,7,8,9,10,11,12", `{"1":null,"1":{"times":-1}}`, int64(-1))
	f.Add("\xff,\x00", `{"\ud800":{"message":"`+strings.Repeat("m", 5000)+`"}}`, int64(1<<40))
	f.Fuzz(func(t *testing.T, list, reasons string, seconds int64) {
		now := time.Unix(seconds, 0)
		read := map[string]string{v1alpha1.QuarantinedAnnotation: list, v1alpha1.QuarantineReasonAnnotation: reasons}
		q := ParseQuarantine(read, now)
		last := listed(list)
		if len(last) > maxQuarantined || len(q.Versions)+len(q.over) != len(last) {
			t.Fatalf("of %q, %q and %q are known", list, q.Versions, q.over)
		}
		for _, version := range last {
			if !q.Holds(version) && !slices.Contains(q.over, version) {
				t.Fatalf("version %q of %q is free", version, list)
			}
			_ = DescribeQuarantine(version, q)
		}
		const newest = "0123456789abcdef0123456789abcdef"
		with := q.With(newest, QuarantineReason{Cause: v1alpha1.ReasonNeverStarted, Release: 1})
		if !with.Holds(newest) || len(with.Versions) > maxQuarantined {
			t.Fatalf("the newest is not in quarantine, or too many are: %v", with.Versions)
		}
		if free := with.Override(newest, "ann"); free.Holds(newest) || !free.Overridden(newest) {
			t.Fatal("an override does not end it")
		}
		for _, changed := range []Quarantine{with, with.Override(newest, "ann"), with.Without(newest)} {
			written := maps.Clone(read)
			changed.Annotate(written)
			again := ParseQuarantine(written, now)
			if n := len(again.Versions) + len(again.over); n > maxQuarantined || len(again.Reasons) > 2*maxQuarantined {
				t.Fatalf("%d versions and %d reasons are kept", n, len(again.Reasons))
			}
			if !utf8Only(changed.Versions) { // no version is anything else, and JSON cannot hold it
				continue
			}
			if !slices.Equal(changed.Versions, again.Versions) {
				t.Fatalf("%q, written and read again: %q", changed.Versions, again.Versions)
			}
			for _, v := range again.Versions {
				if diff := cmp.Diff(changed.Reasons[v], again.Reasons[v]); diff != "" {
					t.Fatalf("reason of %q, written and read again (-want +got):\n%s", v, diff)
				}
			}
		}
	})
}

func utf8Only(versions []string) bool {
	return !slices.ContainsFunc(versions, func(v string) bool { return strings.ToValidUTF8(v, "") != v })
}
