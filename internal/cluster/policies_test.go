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

package cluster

import (
	"testing"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestPoliciesForNone: what policies select by is known also where the cache shows no
// policy. One that it lacks is looked for at the API server, and selects by it.
func TestPoliciesForNone(t *testing.T) {
	v := viewOf(t, wrappers.MakeNamespace("prod").Enrolled().Label("env", "prod").Obj())
	v.Operator = "operator"
	w := &defense.Workload{Namespace: "prod", Labels: map[string]string{"app": "web"}}
	policies, of, err := v.PoliciesFor(t.Context(), w)
	if err != nil || len(policies) > 0 {
		t.Fatalf("%v, %v", policies, err)
	}
	if of.Namespace != "prod" || of.Labels["app"] != "web" || of.NamespaceLabels["env"] != "prod" || of.NamespaceLabels[v1alpha1.EnrolledLabel] == "" {
		t.Errorf("policies select by %+v", of)
	}
}
