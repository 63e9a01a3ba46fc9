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

package policy

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

var friday = time.Date(2026, 11, 27, 16, 0, 0, 0, time.UTC)

// freezing returns an accepted policy with windows, given as hours from friday.
func freezing(
	namespace, name string, mode v1alpha1.PolicyMode, selects map[string]string, windows ...v1alpha1.FreezeWindow,
) v1alpha1.DefensePolicy {
	spec := v1alpha1.DefensePolicySpec{Mode: mode, Freezes: []v1alpha1.PolicyFreeze{{Name: "f"}}}
	if selects != nil {
		spec.WorkloadSelector = &metav1.LabelSelector{MatchLabels: selects}
	}
	return v1alpha1.DefensePolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: 1}, Spec: spec,
		Status: v1alpha1.DefensePolicyStatus{InForce: &spec, InForceGeneration: 1, FreezeWindows: windows},
	}
}

func window(action v1alpha1.FreezeAction, from, to int) v1alpha1.FreezeWindow {
	return v1alpha1.FreezeWindow{Name: "f", Action: action,
		Start: metav1.NewTime(friday.Add(time.Duration(from) * time.Hour)), End: metav1.NewTime(friday.Add(time.Duration(to) * time.Hour))}
}

func TestFrozenAt(t *testing.T) {
	const deny, warn, operator = v1alpha1.FreezeDenies, v1alpha1.FreezeWarns, "operator"
	web := map[string]string{"app": "web"}
	shop := func(labels map[string]string) Workload { return Workload{Namespace: "shop", Labels: labels} }
	many := func(policies ...v1alpha1.DefensePolicy) []v1alpha1.DefensePolicy { return policies }
	type want struct {
		name   string
		end    int
		denies bool
	}
	for name, test := range map[string]struct {
		policies  []v1alpha1.DefensePolicy
		workloads []Workload
		want      want
	}{
		"no policy": {nil, []Workload{shop(web)}, want{}},
		"within": {many(freezing("shop", "p", v1alpha1.ModeEnforce, nil, window(deny, -1, 2))), []Workload{shop(web)},
			want{"shop/p/f", 2, true}},
		"at the start": {many(freezing("shop", "p", "", nil, window(deny, 0, 2))), []Workload{shop(web)},
			want{"shop/p/f", 2, true}},
		"at the end":       {many(freezing("shop", "p", "", nil, window(deny, -1, 0))), []Workload{shop(web)}, want{}},
		"before the start": {many(freezing("shop", "p", "", nil, window(deny, 1, 2))), []Workload{shop(web)}, want{}},
		"of the operator": {many(freezing(operator, "p", "", nil, window(deny, -1, 2))), []Workload{shop(web)},
			want{"operator/p/f", 2, true}},
		"of another namespace": {many(freezing("bank", "p", "", nil, window(deny, -1, 2))), []Workload{shop(web)}, want{}},
		"disabled":             {many(freezing("shop", "p", v1alpha1.ModeDisabled, nil, window(deny, -1, 2))), []Workload{shop(web)}, want{}},
		"not selected":         {many(freezing("shop", "p", "", web, window(deny, -1, 2))), []Workload{shop(nil)}, want{}},
		"relabelled in the request": {many(freezing("shop", "p", "", web, window(deny, -1, 2))), []Workload{shop(web), shop(nil)},
			want{"shop/p/f", 2, true}},
		"warns": {many(freezing("shop", "p", "", nil, window(warn, -1, 2))), []Workload{shop(web)}, want{"shop/p/f", 2, false}},
		"deny beats warn": {many(freezing("shop", "w", "", nil, window(warn, -1, 9)), freezing("shop", "d", "", nil, window(deny, -1, 2))),
			[]Workload{shop(web)}, want{"shop/d/f", 2, true}},
		"observed": {many(freezing("shop", "p", v1alpha1.ModeObserve, nil, window(deny, -1, 2))), []Workload{shop(web)},
			want{"shop/p/f", 2, false}},
		"an enforced one beats an observed one": {many(freezing("shop", "o", v1alpha1.ModeObserve, nil, window(deny, -1, 9)),
			freezing("shop", "d", "", nil, window(deny, -1, 2))), []Workload{shop(web)}, want{"shop/d/f", 2, true}},
		"one follows another": {many(freezing("shop", "b", "", nil, window(deny, 2, 5)), freezing("shop", "a", "", nil, window(deny, -1, 2)),
			freezing("shop", "later", "", nil, window(deny, 6, 9)), freezing("shop", "soft", "", nil, window(warn, 4, 6))),
			[]Workload{shop(web)}, want{"shop/a/f", 5, true}},
	} {
		got := want{}
		if f := FrozenAt(test.policies, operator, friday, test.workloads...); f != nil {
			got = want{f.Name, int(f.End.Sub(friday).Hours()), f.Denies()}
		}
		if got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

// TestRenewWindows: windows are computed when the policy changes and when one ends, and at no other time.
func TestRenewWindows(t *testing.T) {
	weekend := &v1alpha1.DefensePolicySpec{Freezes: []v1alpha1.PolicyFreeze{
		{Name: "f", Schedule: "0 16 * * 5", Duration: &metav1.Duration{Duration: 64 * time.Hour}},
	}}
	first, second, third := window(v1alpha1.FreezeDenies, 0, 64), window(v1alpha1.FreezeDenies, 168, 232),
		window(v1alpha1.FreezeDenies, 336, 400)
	stale := window(v1alpha1.FreezeDenies, 1, 2)
	for name, test := range map[string]struct {
		inForce *v1alpha1.DefensePolicySpec
		windows []v1alpha1.FreezeWindow
		was     int64
		hours   int
		want    []v1alpha1.FreezeWindow
		after   int
	}{
		"a new policy":           {weekend, nil, 0, 0, []v1alpha1.FreezeWindow{first, second}, 64},
		"nothing changed":        {weekend, []v1alpha1.FreezeWindow{first, stale}, 2, 1, []v1alpha1.FreezeWindow{first, stale}, 1},
		"the policy changed":     {weekend, []v1alpha1.FreezeWindow{stale}, 1, 1, []v1alpha1.FreezeWindow{first, second}, 63},
		"a window ended":         {weekend, []v1alpha1.FreezeWindow{first, second}, 2, 64, []v1alpha1.FreezeWindow{second, third}, 168},
		"the freeze was removed": {&v1alpha1.DefensePolicySpec{}, []v1alpha1.FreezeWindow{first, second}, 1, 1, nil, 0},
		"never accepted":         {nil, nil, 0, 0, nil, 0},
	} {
		s := &v1alpha1.DefensePolicyStatus{InForce: test.inForce, InForceGeneration: 2, FreezeWindows: test.windows}
		after := RenewWindows(s, test.was, friday.Add(time.Duration(test.hours)*time.Hour))
		if diff := cmp.Diff(test.want, s.FreezeWindows); diff != "" || after != time.Duration(test.after)*time.Hour {
			t.Errorf("%s: after %s, want %dh, windows -want +got:\n%s", name, after, test.after, diff)
		}
	}
}
