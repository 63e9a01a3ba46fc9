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
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

func TestNamespace(t *testing.T) {
	v := viewOf(t,
		wrappers.MakeNamespace("enrolled").Enrolled().Obj(),
		wrappers.MakeNamespace("not-enrolled").Obj(),
		wrappers.MakeNamespace("turned-off").Label(v1alpha1.EnrolledLabel, "disabled").Obj(),
		wrappers.MakeNamespace("kube-system").Enrolled().Obj(),
		wrappers.MakeNamespace("operator").Enrolled().Obj(),
		wrappers.MakeNamespace("going").Enrolled().Deleted(time.Unix(1e9, 0)).Finalizers("kubernetes").Obj(),
	)
	for name, want := range map[string]struct{ enrolled, ending bool }{
		"enrolled": {enrolled: true}, "not-enrolled": {}, "turned-off": {}, "kube-system": {}, "operator": {},
		"going": {ending: true}, "gone": {ending: true},
	} {
		t.Run(name, func(t *testing.T) {
			ns, err := v.Namespace(t.Context(), name)
			if err != nil || ns.Enrolled != want.enrolled || ns.Ending() != want.ending {
				t.Errorf("%+v, ending %t, %v; want %+v", ns, ns.Ending(), err, want)
			}
		})
	}
}

func TestDefended(t *testing.T) {
	const version = "11111111111111111111111111111111"
	web := func() *wrappers.DeploymentWrapper { return wrappers.MakeDeployment("prod", "web").UID("web") }
	for name, test := range map[string]struct {
		workload client.Object
		operator string
		want     bool
	}{
		"defended":             {workload: web().Obj(), want: true},
		"gone":                 {},
		"another of that name": {workload: web().UID("another").Obj()},
		"terminating":          {workload: web().Deleted(time.Unix(1e9, 0)).Finalizers("x/y").Obj()},
		"opted out":            {workload: web().Label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled).Obj()},
		"the operator's":       {workload: web().Obj(), operator: "prod"},
	} {
		t.Run(name, func(t *testing.T) {
			change := wrappers.MakeChangeWorkload("prod", "change").Of(web().Obj()).Version(version).Obj()
			objects := []client.Object{wrappers.MakeNamespace("prod").Enrolled().Obj()}
			if test.workload != nil {
				objects = append(objects, test.workload)
			}
			v := viewOf(t, objects...)
			v.Operator = test.operator
			if got, err := v.Defended(t.Context(), change); err != nil || got != test.want {
				t.Errorf("%t, %v; want %t", got, err, test.want)
			}
		})
	}
	orphan := wrappers.MakeChangeWorkload("prod", "change").Obj()
	if w, err := viewOf(t).OwnerOf(t.Context(), orphan); w != nil || err != nil {
		t.Errorf("an orphan is owned by %v, %v", w, err)
	}
}
