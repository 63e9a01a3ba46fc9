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
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func TestAdmitted(t *testing.T) {
	many := make([]string, maxAdmitted+1)
	for i := range many {
		many[i] = fmt.Sprintf("s%d=v", i)
	}
	for name, test := range map[string]struct {
		before, seen, stored string
		want                 string
	}{
		"the first":                        {"", "a", "b", "a=b"},
		"another":                          {"a=b", "c", "d", "a=b,c=d"},
		"of the same version":              {"a=b", "c", "b", "a=b,c=b"},
		"one that leads elsewhere now":     {"a=b,c=d", "a", "e", "c=d,a=e"},
		"what led to it leads on":          {"a=b,c=d", "b", "e", "a=e,c=d,b=e"},
		"and is not kept if it leads back": {"a=b,c=d", "b", "a", "c=d,b=a"},
		"too many":                         {strings.Join(many, ","), "a", "b", strings.Join(many[2:], ",") + ",a=b"},
		"nonsense before":                  {"a,=b,c=,d=d,,e=f", "a", "b", "e=f,a=b"},
	} {
		t.Run(name, func(t *testing.T) {
			before := ParseAdmitted(test.before)
			was := before.String()
			got := before.With(test.seen, test.stored)
			if got.String() != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if diff := cmp.Diff(got, ParseAdmitted(got.String())); diff != "" {
				t.Error("it is not read as it was written:\n", diff)
			}
			if before.String() != was {
				t.Error("what was there before was changed")
			}
		})
	}
	if got := ParseAdmitted(""); got.String() != "" || got.LeadsTo("a") != "a" {
		t.Errorf("nothing is read as %q", got)
	}
}

// TestSlipped: only a record without a user slipped.
func TestSlipped(t *testing.T) {
	change := &v1alpha1.ChangeWorkload{Spec: v1alpha1.ChangeWorkloadSpec{Release: 2}}
	by := func(release, user string) *workload.Workload {
		return &workload.Workload{Annotations: map[string]string{v1alpha1.ReleaseAnnotation: release, v1alpha1.ReleasedByAnnotation: user}}
	}
	rolledBackWorkload := func() *workload.Workload {
		w := by("2", workload.UnknownUser)
		w.Version = versionA
		w.Annotations[v1alpha1.QuarantinedAnnotation] = versionB
		w.Annotations[v1alpha1.QuarantineReasonAnnotation] = `{"` + versionB + `":{"to":"` + versionA + `","release":1}}`
		return w
	}
	for name, test := range map[string]struct {
		workload *workload.Workload
		want     bool
	}{
		"by an unknown user": {by("2", workload.UnknownUser), true},
		"by a user":          {by("2", "jane"), false},
		"by the operator":    {by("2", v1alpha1.FieldManager), false},
		"by a rollback that admission did not see": {rolledBackWorkload(), false},
		"another release":                          {by("3", workload.UnknownUser), false},
		"no workload":                              {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Slipped(test.workload, change); got != test.want {
				t.Errorf("slipped: %t", got)
			}
		})
	}
}
