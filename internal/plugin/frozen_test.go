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

package plugin

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func TestFrozenOf(t *testing.T) {
	frozen := func(namespace string, action v1alpha1.FreezeAction, from, to time.Duration) v1alpha1.DefensePolicy {
		spec := v1alpha1.DefensePolicySpec{Freezes: []v1alpha1.PolicyFreeze{{Name: "weekend"}}}
		return v1alpha1.DefensePolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "calendar", Generation: 1}, Spec: spec,
			Status: v1alpha1.DefensePolicyStatus{InForce: &spec, InForceGeneration: 1, FreezeWindows: []v1alpha1.FreezeWindow{
				{Name: "weekend", Action: action, Start: metav1.NewTime(testNow.Add(from)), End: metav1.NewTime(testNow.Add(to))},
			}},
		}
	}
	hour := time.Hour
	deny := frozen("shop", v1alpha1.FreezeDenies, -hour, hour)
	selecting := *deny.DeepCopy()
	selecting.Status.InForce.WorkloadSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "web"}}
	optedOut := func(s *snapshot) { s.workload.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled }
	ofShop, ofOperator := "deployment/sleep shop/calendar/weekend", "deployment/sleep "+operatorNamespace+"/calendar/weekend"
	for name, test := range map[string]struct {
		with   func(*snapshot)
		policy v1alpha1.DefensePolicy
		want   string
	}{
		"in a freeze":        {nil, deny, ofShop},
		"of the operator":    {nil, frozen(operatorNamespace, v1alpha1.FreezeDenies, -hour, hour), ofOperator},
		"later":              {nil, frozen("shop", v1alpha1.FreezeDenies, hour, 2*hour), ""},
		"a warning":          {nil, frozen("shop", v1alpha1.FreezeWarns, -hour, hour), ""},
		"of other workloads": {nil, selecting, ""},
		"of such a workload": {func(s *snapshot) { s.workload.Labels["tier"] = "web" }, selecting, ofShop},
		"opted out":          {optedOut, deny, ""},
		"in observe mode":    {func(s *snapshot) { s.settings.Observe = true }, deny, ""},
		"not enrolled":       {func(s *snapshot) { s.namespace.Labels = nil }, deny, ""},
	} {
		v := &census{snapshots: []*snapshot{newSnapshot(test.with)}, policies: []v1alpha1.DefensePolicy{test.policy}}
		report := frozenOf(v, operatorNamespace, "shop", testNow)
		var got []string
		for _, f := range report.Frozen {
			got = append(got, f.Workload+" "+f.Freeze)
			if !f.Until.Time.Equal(testNow.Add(hour)) {
				t.Errorf("%s: until %s", name, f.Until)
			}
		}
		if text := strings.Join(got, "\n"); text != test.want {
			t.Errorf("%s: %q, want %q", name, text, test.want)
		}
	}

	var text strings.Builder
	printFrozen(&text, frozenOf(&census{snapshots: []*snapshot{newSnapshot(nil)}, policies: []v1alpha1.DefensePolicy{deny}},
		operatorNamespace, "shop", testNow))
	printFrozen(&text, &FreezeReport{Metadata: Metadata{Name: "bank"}})
	want := "deployment/sleep is frozen until " + testNow.Add(hour).UTC().Format(time.RFC3339) + " by shop/calendar/weekend\n" +
		"No workload in bank is frozen.\n"
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
