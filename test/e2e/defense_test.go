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
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

var _ = Describe("a release", func() {
	w := inSharedWorld()

	It("of 50 Deployments of 10 pods at once succeeds for all", Label(soak), func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		began := time.Now()
		for i := range 50 {
			w.create(ctx, sleeper(ns, fmt.Sprintf("d%02d", i)).Replicas(10))
		}
		Eventually(func(g Gomega) {
			changes := w.changesIn(ctx, g, ns)
			g.Expect(changes).To(HaveLen(50))
			for _, c := range changes {
				g.Expect(c.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess), c.Name)
				g.Expect(c.Status.PassCount).To(Equal(int32(10)), c.Name)
			}
		}).WithTimeout(5 * time.Minute).WithPolling(time.Second).WithContext(ctx).Should(Succeed())
		AddReportEntry("50 Deployments of 10 pods", time.Since(began).Round(time.Millisecond).String())
		var batches v1alpha1.ChangePodList
		Expect(w.api.List(ctx, &batches, client.InNamespace(ns))).To(Succeed())
		Expect(batches.Items).To(HaveLen(500))
		Eventually(func(g Gomega) {
			var pods corev1.PodList
			g.Expect(w.api.List(ctx, &pods, client.InNamespace(ns), client.HasLabels{v1alpha1.OperateFinishedLabel})).To(Succeed())
			g.Expect(pods.Items).To(HaveLen(500))
		}).WithContext(ctx).Should(Succeed())
	}, SpecTimeout(6*time.Minute))
})

var _ = Describe("objects of the operator", func() {
	w := inSharedWorld()

	It("explain themselves", func(ctx SpecContext) {
		for _, field := range []string{
			"changeworkload.spec.reversion", "changeworkload.status.defenseCheckFailPods",
			"changepod.status.podResults.verdict", "opsconfiginfo.spec.content",
		} {
			Expect(w.kubectl(ctx, "explain", field)).To(And(ContainSubstring("DESCRIPTION"), Not(ContainSubstring("<empty>"))), field)
		}
		Expect(w.kubectl(ctx, "get", "altershield", "-n", controlplane.ManagerNamespace)).To(ContainSubstring("blocking"))
		Expect(w.kubectl(ctx, "api-resources")).To(MatchRegexp(`(?m)^changeworkloads\s+cwl\s`))
	})
})
