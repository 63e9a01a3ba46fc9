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
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

var _ = Describe("an operator that comes and goes", Ordered, SpecPriority(longest), func() {
	w := inOwnWorld()

	It("restarts nothing when it comes, and takes existing versions for baselines", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, false)
		w.create(ctx, sleeper(ns, "old").Replicas(3))
		w.rolledOut(ctx, ns, "old")
		before := w.getDeployment(ctx, Default, ns, "old")
		pods := w.podUIDs(ctx, Default, ns, "old")
		Expect(pods).To(HaveLen(3))

		// Times are in whole seconds: a new manager knows only from the next second on that the Deployment is older.
		Eventually(time.Now).WithContext(ctx).Should(BeTemporally(">", before.CreationTimestamp.Add(2*time.Second)))
		w.withoutManager(ctx, func() { w.enrolNamespace(ctx, ns) }) // installed on a cluster that is already labelled
		w.kubectl(ctx, "-n", ns, "scale", "deployment", "old", "--replicas=4")
		w.rolledOut(ctx, ns, "old")
		w.kubectl(ctx, "-n", ns, "annotate", "deployment", "old", "team=x")
		Consistently(func(g Gomega) {
			d := w.getDeployment(ctx, g, ns, "old")
			g.Expect(d.Spec.Template).To(Equal(before.Spec.Template))
			g.Expect(d.Labels).To(Equal(before.Labels))
			g.Expect(w.podUIDs(ctx, g, ns, "old")).To(ContainElements(pods))
			g.Expect(w.changesIn(ctx, g, ns)).To(BeEmpty())
		}).WithContext(ctx).Should(Succeed())

		By("releasing it")
		Expect(w.patchTemplate(ctx, ns, "old", "new")).To(Succeed())
		change := w.eventuallyState(ctx, ns, "old", v1alpha1.ChangeWorkloadSuccess)
		Expect(change.Status.PassCount).To(Equal(int32(4)))
	})

	It("denies only blocked releases while it is down", func(ctx SpecContext) {
		ns, before := w.newNamespace(ctx, true), w.newNamespace(ctx, false)
		w.create(ctx, sleeper(ns, "free").Replicas(2))
		w.create(ctx, sleeper(ns, "blocked").Replicas(2))
		w.create(ctx, sleeper(ns, "repaired").Replicas(2))
		w.create(ctx, sleeper(before, "baseline").Replicas(2))
		w.rolledOut(ctx, before, "baseline")
		w.enrolNamespace(ctx, before)
		free := w.eventuallyState(ctx, ns, "free", v1alpha1.ChangeWorkloadSuccess)
		w.block(ctx, ns, "blocked")
		w.block(ctx, ns, "repaired")

		w.withoutManager(ctx, func() {
			By("releasing workloads that are not blocked")
			Expect(w.patchTemplate(ctx, ns, "free", "new")).To(Succeed())
			w.create(ctx, sleeper(ns, "new").Replicas(2))
			Expect(w.patchTemplate(ctx, before, "baseline", "new")).To(Succeed())
			for _, d := range [][2]string{{ns, "free"}, {ns, "new"}, {before, "baseline"}} {
				w.rolledOut(ctx, d[0], d[1])
			}
			By("scaling a blocked workload")
			w.kubectl(ctx, "-n", ns, "scale", "deployment", "blocked", "--replicas=3")
			w.kubectl(ctx, "-n", ns, "annotate", "deployment", "blocked", "note=x")
			w.rolledOut(ctx, ns, "blocked")
			By("releasing a blocked workload")
			_, err := w.tryKubectl(ctx, "-n", ns, "rollout", "restart", "deployment/blocked")
			Expect(err).To(HaveOccurred())
			By("releasing an override")
			Expect(w.patchDeployment(ctx, ns, "repaired", repair("repair"))).To(Succeed())
			w.rolledOut(ctx, ns, "repaired")
		})

		By("recording and verifying the releases that admission missed, without another restart")
		for _, d := range [][2]string{{ns, "free"}, {ns, "new"}, {ns, "repaired"}, {before, "baseline"}} {
			pods := w.podUIDs(ctx, Default, d[0], d[1])
			change := w.eventuallyState(ctx, d[0], d[1], v1alpha1.ChangeWorkloadSuccess)
			Expect(change.Status.PassCount).To(Equal(int32(2)), d[1])
			Expect(w.podUIDs(ctx, Default, d[0], d[1])).To(ConsistOf(pods), d[1])
			Eventually(func() string {
				out, _ := w.tryKubectl(ctx, "-n", d[0], "get", "pods", "-l", v1alpha1.OperateFinishedLabel+",app="+d[1], "-o", "name")
				return out
			}).WithContext(ctx).Should(HaveLines(2), d[1])
		}
		Expect(w.changesIn(ctx, Default, ns)).NotTo(HaveKey(free.Name))
		repaired := w.getDeployment(ctx, Default, ns, "repaired")
		Expect(repaired.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		Expect(repaired.Labels).NotTo(HaveKey(v1alpha1.IgnoredSuspendLabel))
		Eventually(func(g Gomega) {
			g.Expect(w.eventsOf(ctx, g, ns, "repaired")).To(ContainElements("AdmissionBypassed", "BlockOverridden"))
			g.Expect(w.changesIn(ctx, g, ns)).To(HaveLen(4))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.getDeployment(ctx, Default, ns, "blocked").Labels).To(HaveKey(v1alpha1.SuspendLabel))
	})
})
