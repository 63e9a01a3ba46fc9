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

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestNamesOfKinds: kinds of one name have different labels, and a kind that is named as a native one has its group in arguments.
func TestNamesOfKinds(t *testing.T) {
	for gk, want := range map[schema.GroupKind][2]string{
		{Group: "apps", Kind: "StatefulSet"}:            {"StatefulSet", "statefulset"},
		{Group: "apps.kruise.io", Kind: "StatefulSet"}:  {"StatefulSet.apps.kruise.io", "statefulset.apps.kruise.io"},
		{Group: "apps.kruise.io", Kind: "CloneSet"}:     {"CloneSet.apps.kruise.io", "cloneset"},
		{Kind: "ConfigMap"}:                             {"ConfigMap", "configmap"},
		{Group: "networking.istio.io", Kind: "Gateway"}: {"Gateway.networking.istio.io", "gateway"},
	} {
		if got := [2]string{LabelOf(gk), ArgumentOf(gk)}; got != want {
			t.Errorf("%s: %q, want %q", gk, got, want)
		}
	}
}
