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

package controllers_test

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// chosen is a part of each name that users choose in TestSeries.
const chosen = "zq7"

// series counts the operator's series, except the series of policies, which are bounded where they are counted. named are the series with
// a name that users chose.
func series(t *testing.T) (count int, named []string) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if name := family.GetName(); !strings.HasPrefix(name, "altershield_") || name == "altershield_checks_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			count++
			for _, label := range m.GetLabel() {
				if strings.Contains(label.GetValue(), chosen) {
					named = append(named, family.GetName()+" "+label.GetName()+"="+label.GetValue())
				}
			}
		}
	}
	return count, named
}

// TestSeries is S11 for metrics: more workloads, policies, settings and namespaces, whatever their names, cause no more series. It runs
// alone, because other worlds count in the same registry.
func TestSeries(t *testing.T) {
	play := func(workloads int) int {
		story := world.Story{Name: "series", Run: func(w *world.World) {
			for i := range workloads {
				name := fmt.Sprintf("%s-%d", chosen, i)
				must(w, w.Create(wrappers.MakeNamespace(name).Enrolled().Obj()))
				must(w, w.Create(wrappers.MakeOpsConfigInfo(name, name, v1alpha1.TypeBranch).On("3").Obj()))
				must(w, w.Create(wrappers.MakeOpsConfigInfo(world.Namespace, name, v1alpha1.TypeBranch).On("3").Obj()))
				policy := podHealth(name)
				policy.Spec.Checks[0].Name = name
				must(w, w.Create(&policy))
				d := probed(1).Obj()
				d.Name = name
				d.Annotations = map[string]string{
					v1alpha1.SettingAnnotationPrefix + settings.NameRollback: "10s", v1alpha1.SettingAnnotationPrefix + name: name,
				}
				must(w, w.Create(d))
			}
			w.For(later)
			for i := range workloads {
				_ = w.Patch(fmt.Sprintf("%s-%d", chosen, i), imagePatch(world.BadImage))
			}
			w.For(6 * later)
		}}
		if e := world.Play(t, story, world.Options{}); e.Problem != "" {
			t.Fatal(e.Problem)
		}
		count, named := series(t)
		if len(named) > 0 {
			t.Errorf("series with names that users chose: %q", named)
		}
		return count
	}
	few := play(6)
	if many := play(20); many != few {
		t.Errorf("%d workloads have %d series, 20 have %d", 6, few, many)
	}
}
