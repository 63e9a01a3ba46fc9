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
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

const (
	firstRelease  = "sleep--x--c6c45d23c098bdf181853a85b60b5d74"
	repairRelease = "sleep--x--6a8ff823a5011291b0f02a1d83c2222d"
)

// walkthrough goes through steps 1 to 5 of the story in a namespace.
func walkthrough(ctx context.Context, ns string) {
	GinkgoHelper()
	names := func(g Gomega) []string {
		var list []string
		for name := range changesIn(ctx, g, ns) {
			list = append(list, name)
		}
		return list
	}

	By("walkthrough: release")
	kubectl(ctx, "-n", ns, "apply", "-f", sample("sleep.yaml"))
	Eventually(func(g Gomega) {
		change := changesIn(ctx, g, ns)[firstRelease]
		g.Expect(change).NotTo(BeNil())
		g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		batches := batchesOf(ctx, g, change)
		g.Expect(batches).To(HaveLen(5))
		for i, b := range batches {
			g.Expect(b.Name).To(Equal(fmt.Sprintf("%s--x--%d", firstRelease, i+1)))
			g.Expect(b.Status.Status).To(Equal(v1alpha1.ChangePodExecuteDone))
			g.Expect(b.Spec.PodInfos).To(HaveLen(1))
		}
	}).WithContext(ctx).Should(Succeed())

	By("walkthrough: fail")
	failed := setVerdict(ctx, changesIn(ctx, Default, ns)[firstRelease], "unpass")
	Eventually(func(g Gomega) {
		change := changesIn(ctx, g, ns)[firstRelease]
		g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuspend))
		g.Expect(change.Status.DefenseCheckFailPods).To(HaveLen(1))
		g.Expect(change.Status.DefenseCheckFailPods[0].Pod).To(Equal(failed.Pod))
		g.Expect(change.Status.DefenseCheckFailPods[0].Message).To(Equal("find error"))
		g.Expect(getDeployment(ctx, g, ns, "sleep").Labels).To(HaveKeyWithValue(v1alpha1.SuspendLabel, MatchRegexp(`^\d{10}$`)))
	}).WithContext(ctx).Should(Succeed())

	By("walkthrough: denied")
	patch := []string{"-n", ns, "patch", "deployment", "sleep", "-p", `{"spec":{"template":{"metadata":{"labels":{"test":"test"}}}}}`, "--type", "merge"}
	// While the manager is down the API server denies all the same, saying
	// that the webhook cannot be reached.
	Eventually(func() bool { return denied("sleep")(tryKubectl(ctx, patch...)) }).WithContext(ctx).Should(BeTrue())

	By("walkthrough: repair")
	var both atomic.Bool
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		defer GinkgoRecover()
		for watching.Err() == nil {
			var list v1alpha1.ChangeWorkloadList
			if api.List(watching, &list, client.InNamespace(ns)) == nil && len(list.Items) == 2 {
				both.Store(true)
			}
		}
	}()
	kubectl(ctx, "-n", ns, "apply", "-f", sample("sleep-repair.yaml"))
	Eventually(func(g Gomega) {
		g.Expect(names(g)).To(ConsistOf(repairRelease))
		g.Expect(changesIn(ctx, g, ns)[repairRelease].Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		d := getDeployment(ctx, g, ns, "sleep")
		g.Expect(d.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		g.Expect(d.Labels).NotTo(HaveKey(v1alpha1.IgnoredSuspendLabel), "the override is used up")
	}).WithContext(ctx).Should(Succeed())
	stop()
	<-watched
	Expect(both.Load()).To(BeTrue(), "both versions were listed meanwhile")

	By("walkthrough: go on")
	kubectl(ctx, patch...)
	Eventually(func(g Gomega) {
		g.Expect(names(g)).To(HaveLen(1))
		g.Expect(names(g)).NotTo(ContainElement(repairRelease))
		g.Expect(changesIn(ctx, g, ns)[names(g)[0]].Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		g.Expect(getDeployment(ctx, g, ns, "sleep").Labels).To(HaveKey(v1alpha1.DefenseStatusLabel))
	}).WithContext(ctx).Should(Succeed())
}

var _ = Describe("the walkthrough", func() {
	It("holds word for word", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		walkthrough(ctx, ns)

		By("showing what the documentation shows")
		out := kubectl(ctx, "-n", ns, "get", "changeworkloads")
		Expect(strings.Fields(strings.Split(out, "\n")[0])).To(Equal([]string{"NAME", "STATUS", "CREATETIME"}))
		out = kubectl(ctx, "-n", ns, "get", "changepods")
		Expect(strings.Fields(strings.Split(out, "\n")[0])).To(Equal([]string{"NAME", "STATUS", "MESSAGE", "CREATETIME"}))
		out = kubectl(ctx, "-n", "altershieldoperator-system", "get", "opsconfiginfo")
		Expect(strings.Fields(strings.Split(out, "\n")[0])).To(Equal([]string{"NAME", "AGE"}))

		By("telling each turn once")
		Eventually(func(g Gomega) {
			g.Expect(eventsOf(ctx, g, ns, "sleep")).To(ConsistOf(
				"ReleaseStarted", "ReleaseSucceeded", "ReleaseSuspended",
				"BlockOverridden", "ReleaseStarted", "ReleaseSucceeded", "BlockLifted",
				"ReleaseStarted", "ReleaseSucceeded"))
		}).WithContext(ctx).Should(Succeed())

		By("writing nothing at rest")
		quiet := 0
		Eventually(func() bool {
			before := quiet
			quiet = managerWrites(ns)
			return quiet == before
		}).WithPolling(time.Second).WithContext(ctx).Should(BeTrue())
		Consistently(func() int { return managerWrites(ns) }).WithContext(ctx).Should(Equal(quiet))
	}, SpecTimeout(3*time.Minute))

	// The manager is killed and started again all along, a little later after
	// each start than the time before, so that every step is hit somewhere.
	for round := range 3 {
		It(fmt.Sprintf("survives kill -9 of the manager at any moment, round %d", round+1), func(ctx SpecContext) {
			ns := newNamespace(ctx, true)
			calm, stop := context.WithCancel(ctx)
			stopped := make(chan struct{})
			kills := 0
			go func() {
				defer close(stopped)
				defer GinkgoRecover()
				for calm.Err() == nil {
					moment := time.NewTimer(time.Duration(round*70+kills*130%1500) * time.Millisecond)
					select {
					case <-calm.Done():
					case <-moment.C:
					}
					kills++
					Expect(manager.Kill()).To(Succeed())
					// Not bound to the spec: the next one needs the manager.
					starting, started := context.WithTimeout(context.Background(), time.Minute)
					Expect(manager.Start(starting)).To(Succeed())
					started()
				}
			}()
			DeferCleanup(func() { stop(); <-stopped })
			walkthrough(ctx, ns)
			stop()
			<-stopped
			AddReportEntry("kills", kills)
			Expect(kills).To(BeNumerically(">", 3))

			By("coming to rest in the same end state")
			Consistently(func(g Gomega) {
				g.Expect(changesIn(ctx, g, ns)).To(HaveLen(1))
				change := currentChange(ctx, g, ns, "sleep")
				g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
				g.Expect(change.Status.Attempt).To(Equal(int32(1)))
				g.Expect(batchesOf(ctx, g, change)).To(HaveLen(5))
			}).WithContext(ctx).Should(Succeed())
		}, SpecTimeout(5*time.Minute))
	}

	It("is what make demo tells", func(ctx SpecContext) {
		demo := exec.CommandContext(ctx, "make", "-s", "-C", root, "demo", "ARGS=--once")
		output, err := demo.CombinedOutput()
		out := string(output)
		Expect(err).NotTo(HaveOccurred(), out)
		Expect(out).To(ContainSubstring("Every step held."))
		Expect(out).To(ContainSubstring(firstRelease + "--x--5"))
		Expect(out).To(ContainSubstring(`denied the request: deployment sleep is suspended`))
	}, SpecTimeout(10*time.Minute))
})
