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

package metrics

import (
	"errors"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// TestPolicyChecks: the series of a policy or a check are removed after it was deleted. At most
// 500 policies have series of their own, and 32 checks of each.
func TestPolicyChecks(t *testing.T) {
	p := newPolicyChecks()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(p); err != nil {
		t.Fatal(err)
	}
	enter := func(names ...string) {
		for _, name := range names {
			p.count(&v1alpha1.CheckStatus{Name: name, Phase: v1alpha1.CheckFailed, Mode: v1alpha1.ModeEnforce})
		}
	}
	series := func() map[string]float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				got[label(m, "policy")+"/"+label(m, "check")] += m.GetCounter().GetValue()
			}
		}
		return got
	}
	want := func(what string, want map[string]float64) {
		t.Helper()
		if got := series(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}

	enter("shop/gate/smoke", "shop/gate/load", "shop/gate/load", "shop/gone/smoke", "altershield")
	all := map[string]float64{"shop/gate/smoke": 1, "shop/gate/load": 2, "shop/gone/smoke": 1, "/altershield": 1}
	want("without a list", all)
	list := func(exist map[string][]string, err error) {
		l := ListChecks(func() (map[string][]string, error) { return exist, err })
		p.list.Store(&l)
	}
	list(nil, errors.New("no cache"))
	want("cannot be listed", all)
	list(map[string][]string{"shop/gate": {"load"}}, nil)
	want("a policy and a check were deleted", map[string]float64{"shop/gate/load": 2, "/altershield": 1})
	enter("shop/gone/smoke") // its last check ends
	want("a check of a deleted policy", map[string]float64{"shop/gate/load": 2, "/altershield": 1})

	p.list.Store(nil)
	for i := range 1000 {
		enter(fmt.Sprintf("shop/p%d/check", i), fmt.Sprintf("shop/gate/c%d", i))
	}
	if got := series(); len(got) != maxPolicies+maxChecks+1 || got["other/other"] != 502 || got["shop/gate/other"] != 969 {
		t.Errorf("%d series, other policies %v, other checks %v", len(got), got["other/other"], got["shop/gate/other"])
	}
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
