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

package record

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

func TestNames(t *testing.T) {
	version := "c6c45d23c098bdf181853a85b60b5d74"
	long := strings.Repeat("a", 253)
	twin := strings.Repeat("a", 252) + "b"
	for name, test := range map[string]struct{ got, want string }{
		"changeworkload":     {ChangeWorkloadName("sleep", version), "sleep--x--c6c45d23c098bdf181853a85b60b5d74"},
		"changepod":          {ChangePodName("sleep", version, 5), "sleep--x--c6c45d23c098bdf181853a85b60b5d74--x--5"},
		"label":              {WorkloadNameLabelValue("sleep"), "sleep"},
		"label of 63 stays":  {WorkloadNameLabelValue(long[:63]), long[:63]},
		"longest that stays": {ChangeWorkloadName(long[:216], version), long[:216] + "--x--" + version},
		"cut at an alphanumeric": {WorkloadNameLabelValue(strings.Repeat("a", 50) + strings.Repeat("-.", 10) + "z"),
			strings.Repeat("a", 50) + "-aaa14cb7"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.got != test.want {
				t.Errorf("got %q, want %q", test.got, test.want)
			}
		})
	}
	for _, workload := range []string{"s", long, twin, long[:217], strings.Repeat("a.", 126) + "a"} {
		for _, name := range []string{ChangeWorkloadName(workload, version), ChangePodName(workload, version, 1),
			ChangePodName(workload, version, 99999)} {
			if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
				t.Errorf("%q is no name: %v", name, problems)
			}
		}
		if problems := validation.IsValidLabelValue(WorkloadNameLabelValue(workload)); len(problems) > 0 {
			t.Errorf("%q is no label value: %v", WorkloadNameLabelValue(workload), problems)
		}
	}
	if ChangeWorkloadName(long, version) == ChangeWorkloadName(twin, version) {
		t.Error("two long names became one")
	}
}

// TestNamesOfKinds: workloads of one name, even with one template, have different names.
func TestNamesOfKinds(t *testing.T) {
	const version = "c6c45d23c098bdf181853a85b60b5d74"
	names := map[string]string{}
	for kind, want := range map[schema.GroupVersionKind]string{
		{Group: "apps", Version: "v1", Kind: "Deployment"}:                 "web--x--" + version,
		{Group: "apps", Version: "v1", Kind: "StatefulSet"}:                "web--x--statefulset-" + version,
		{Group: "apps.kruise.io", Version: "v1beta1", Kind: "StatefulSet"}: "web--x--statefulset-e9b9a-" + version,
		{Group: "example.com", Version: "v1", Kind: "Deployment"}:          "web--x--deployment-a379a-" + version,
	} {
		w := &workload.Workload{GVK: kind, Name: "web"}
		release, batch := ReleaseName(w, version), BatchName(w, version, 2)
		if release != want || batch != want+"--x--2" {
			t.Errorf("%s: %s, %s, want %s", kind, release, batch, want)
		}
		if other, taken := names[release]; taken {
			t.Errorf("%s has the name of %s", kind, other)
		}
		names[release] = kind.String()
		long := &workload.Workload{GVK: kind, Name: strings.Repeat("a", 253)}
		if problems := validation.IsDNS1123Subdomain(BatchName(long, version, 2147483647)); len(problems) > 0 {
			t.Errorf("%s: %v", kind, problems)
		}
	}
}
