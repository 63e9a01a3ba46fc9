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

package bench

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// BenchmarkHeld releases a Deployment that is held at every wave of one pod, in process and in simulated time, and counts the
// operator's writes of the Deployment. The check of a wave takes 90 s.
func BenchmarkHeld(b *testing.B) {
	const waves = 10
	writes := 0
	policy := v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: "policy"}}
	policy.Spec.Checks = []v1alpha1.PolicyCheck{{
		Name: "health", PodHealth: &v1alpha1.PodHealthCheck{Duration: &metav1.Duration{Duration: 90 * time.Second}},
		Deadline: &metav1.Duration{Duration: time.Hour},
	}}
	off := *policy.DeepCopy()
	off.Namespace, off.Name, off.Spec.Mode = world.OperatorNamespace, "default", v1alpha1.ModeDisabled
	o := world.Options{
		Settings: map[string]v1alpha1.OpsConfigValue{settings.NameHolding: {Enable: true, Content: "every"}},
		Policies: []v1alpha1.DefensePolicy{off, policy},
	}
	for b.Loop() {
		world.Bench(b, world.Story{Name: "held at every wave", Options: o, Run: func(w *world.World) {
			succeed := func() {
				w.Until("the release succeeds", func() bool {
					c := w.Change("web")
					return c != nil && c.Status.Status == v1alpha1.ChangeWorkloadSuccess
				})
				w.Rest()
			}
			if err := w.Create(wrappers.MakeDeployment(world.Namespace, "web").OneByOne().Replicas(waves).Obj()); err != nil {
				b.Fatal(err)
			}
			succeed()
			before := writesOf(w, "Deployment")
			if err := w.Patch("web", `{"spec":{"template":{"metadata":{"annotations":{"released":"again"}}}}}`); err != nil {
				b.Fatal(err)
			}
			succeed()
			writes += writesOf(w, "Deployment") - before
		}})
	}
	b.ReportMetric(float64(writes)/float64(b.N)/waves, "writes/wave")
}

// writesOf counts the operator's writes of a kind.
func writesOf(w *world.World, kind string) (n int) {
	for what, times := range w.Written() {
		if strings.HasSuffix(what, " "+kind) {
			n += times
		}
	}
	return n
}
