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

package e2e

import (
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

// ofWorkers is a patch of the template of a LeaderWorkerSet, whose pods become ready after some time. Bad pods take long: that is the time
// in which the rollout is to be halted.
func ofWorkers(value string) string {
	after := "1s"
	if value == "bad" {
		after = "20s"
	}
	return `{"spec":{"leaderWorkerTemplate":{"workerTemplate":{"metadata":{` +
		`"annotations":{"` + controlplane.ReadyAfterAnnotation + `":"` + after + `"},` +
		`"labels":{"test":"` + value + `","` + controlplane.BehaviorLabel + `":"` + controlplane.BehaviorLateReady + `"}}}}}}`
}

var _ = Describe("a LeaderWorkerSet", Ordered, SpecPriority(longest), func() {
	w := inOwnWorld()
	BeforeAll(func(ctx SpecContext) { w.run(ctx, lws) }, NodeTimeout(30*time.Minute))
	d := &declaredKind{
		world: w, kind: "leaderworkersets.leaderworkerset.x-k8s.io", gvk: [3]string{"leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"},
		name: "sleep",
	}
	partition := []string{"spec", "rolloutStrategy", "rollingUpdateConfiguration", "partition"}

	It("is released, halted at its first bad group, blocked, released over the block, and rolled back", func(ctx SpecContext) {
		d.preset = filepath.Join(root, "config", "kinds", "lws", "leaderworkerset.yaml")
		d.declare(ctx, "readyReplicas", 2)
		w.newDefensePolicy(ctx, d.noBadPods(), v1alpha1.ReasonInForce)
		w.kubectl(ctx, "-n", d.namespace, "annotate", "leaderworkerset", d.name, v1alpha1.SettingAnnotationPrefix+"timeouts=wait=5s,settle=1s")
		Expect(d.patch(ctx, `{"spec":{"replicas":3}}`)).To(Succeed())

		By("releasing another template")
		Expect(d.patch(ctx, ofWorkers("first"))).To(Succeed())
		Expect(d.change(ctx, v1alpha1.ChangeWorkloadSuccess).Status.PassCount).To(Equal(int32(6)), "leaders and workers")

		By("releasing bad pods: the rollout is halted before all groups are bad")
		Expect(d.patch(ctx, ofWorkers("bad"))).To(Succeed())
		d.halted(ctx, int64(2147483647), partition...)
		Eventually(func(g Gomega) {
			g.Expect(d.number(ctx, g, "observedGeneration")).To(Equal(d.get(ctx, g).GetGeneration()))
		}).WithContext(ctx).Should(Succeed())
		d.rest(ctx)
		Expect(d.number(ctx, Default, "updatedReplicas")).To(BeNumerically("<", 3), "old groups are left")

		By("changing the template: denied")
		Expect(d.patch(ctx, ofWorkers("second"))).To(MatchError(And(
			ContainSubstring(`admission webhook "vleaderworkerset.leaderworkerset.x-k8s.io.kb.io" denied the request: `+
				`leaderworkerset sleep is suspended`),
			ContainSubstring("the pod is bad"),
		)))

		By("releasing a good template over it: the rollout continues")
		w.kubectl(ctx, "-n", d.namespace, "label", "leaderworkerset", d.name, v1alpha1.IgnoredSuspendLabel+"=true")
		Expect(d.patch(ctx, ofWorkers("second"))).To(Succeed())
		good := d.change(ctx, v1alpha1.ChangeWorkloadSuccess)
		Expect(good.Status.PassCount).To(Equal(int32(6)))
		o := d.get(ctx, Default)
		Expect(o.GetLabels()).NotTo(HaveKey(v1alpha1.SuspendLabel))
		Expect(o.GetAnnotations()).NotTo(HaveKey(v1alpha1.HaltedAnnotation))
		kept, _, _ := unstructured.NestedInt64(o.Object, partition...)
		Expect(kept).To(BeZero())

		By("failing a release after its success, and rolling back on request")
		Expect(d.patch(ctx, ofWorkers("third"))).To(Succeed())
		w.setVerdict(ctx, d.change(ctx, v1alpha1.ChangeWorkloadSuccess), "unpass")
		d.blocked(ctx)
		w.kubectl(ctx, "-n", d.namespace, "annotate", "leaderworkerset", d.name, v1alpha1.RollbackToAnnotation+"=last-success")
		Eventually(func(g Gomega) {
			back := d.get(ctx, g)
			g.Expect(back.GetLabels()).To(HaveKeyWithValue(v1alpha1.VersionLabel, good.Labels[v1alpha1.VersionLabel]))
			g.Expect(back.GetLabels()).NotTo(HaveKey(v1alpha1.SuspendLabel))
			g.Expect(back.Object["spec"]).To(Equal(o.Object["spec"]))
		}).WithContext(ctx).Should(Succeed())
		d.change(ctx, v1alpha1.ChangeWorkloadSuccess)
		d.rest(ctx)
	}, SpecTimeout(15*time.Minute))

	It("gives everything back when its declaration is deleted", func(ctx SpecContext) {
		before := d.get(ctx, Default)
		Expect(d.patch(ctx, ofWorkers("bad"))).To(Succeed())
		d.halted(ctx, int64(2147483647), partition...)
		d.givenBack(ctx, before)
		Eventually(func(g Gomega) {
			g.Expect(d.number(ctx, g, "updatedReplicas")).To(Equal(int64(3)), "its controller continues the rollout")
		}).WithContext(ctx).Should(Succeed())
		Expect(d.patch(ctx, ofWorkers("fourth"))).To(Succeed())
		d.rest(ctx)
	}, SpecTimeout(10*time.Minute))
})
