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
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/walkthrough"
)

// walkthrough plays the walkthrough in a namespace, without its last step, which the specs of rollbacks cover. If restless, the manager may
// be killed meanwhile.
func (w *world) walkthrough(ctx context.Context, ns string, restless bool) {
	GinkgoHelper()
	player := w.player(ns)
	player.Restless = restless
	Expect(player.Play(ctx, walkthrough.Release, walkthrough.Fail, walkthrough.Blocked, walkthrough.Repair, walkthrough.GoOn)).To(Succeed())
}

// player plays steps of a walkthrough in a namespace.
func (w *world) player(ns string) *walkthrough.Player {
	return &walkthrough.Player{
		Client: w.api, Namespace: ns,
		Kubectl: func(ctx context.Context, args ...string) (string, error) {
			cmd := w.kubectlCmd(ctx, append([]string{"-n", ns}, args...)...)
			cmd.Dir = root
			out, err := cmd.CombinedOutput()
			return string(out), err
		},
		Begin: func(step walkthrough.Step) { By(step.Title) },
	}
}

var _ = Describe("the walkthrough", func() {
	w := inSharedWorld()

	It("holds word for word", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.walkthrough(ctx, ns, false)

		By("printing the columns of the documentation")
		out := w.kubectl(ctx, "-n", ns, "get", "changeworkloads")
		Expect(strings.Fields(strings.Split(out, "\n")[0])).To(Equal([]string{"NAME", "STATUS", "CREATETIME", "AGE"}))
		out = w.kubectl(ctx, "-n", ns, "get", "changepods")
		Expect(strings.Fields(strings.Split(out, "\n")[0])).To(Equal([]string{"NAME", "STATUS", "MESSAGE", "CREATETIME", "AGE"}))
		out = w.kubectl(ctx, "-n", "altershieldoperator-system", "get", "opsconfiginfo")
		Expect(strings.Fields(strings.Split(out, "\n")[0])).To(Equal([]string{"NAME", "TYPE", "ENABLED", "CONTENT", "AGE"}))

		By("reporting each step once")
		Eventually(func(g Gomega) {
			g.Expect(w.eventsOf(ctx, g, ns, "sleep")).To(ConsistOf(
				"ReleaseStarted", "ReleaseSucceeded", "ReleaseSuspended",
				"BlockOverridden", "ReleaseStarted", "ReleaseSucceeded", "BlockLifted",
				"ReleaseStarted", "ReleaseSucceeded"))
		}).WithContext(ctx).Should(Succeed())

		By("writing nothing at rest")
		w.restful(ctx, ns)
	})

	It("is what make demo plays", Label(soak), func(ctx SpecContext) {
		demo := exec.CommandContext(ctx, "make", "-s", "-C", root, "demo", "ARGS=--once")
		output, err := demo.CombinedOutput()
		out := string(output)
		Expect(err).NotTo(HaveOccurred(), out)
		Expect(out).To(ContainSubstring("Every step held."))
		Expect(out).To(ContainSubstring(walkthrough.FirstRelease + "--x--5"))
		Expect(out).To(ContainSubstring(walkthrough.Denial))

		By("without a server as well")
		Expect(out).To(MatchRegexp(`ReleaseSuspended .*: ` + staysUp + `: pod web-\S+: container web is in CrashLoopBackOff`))
		Expect(out).To(ContainSubstring("deployment web is suspended"))
		Expect(out).To(MatchRegexp(`RolledBack .*: to version \w{32}: .*: ` + staysUp + `: pod web-`))
		Expect(out).To(Or(
			MatchRegexp(`ReleaseSuspended .*: shop/answers/smoke: pod web-\S+: GET /healthz on port \d+ was answered 503`),
			ContainSubstring("This machine has no address that could stand for the IP of a pod")))

		By("with Prometheus as well")
		Expect(out).To(Or(
			And(
				MatchRegexp(`ReleaseSuspended .*: pay/few-errors/errors: value 0\.\d+; value > 0.05 is true 2 times in a row`),
				MatchRegexp(`RolledBack .*: pay/no-alerts/alerts: alert HighErrorShare fires`),
				MatchRegexp(`RolledBack .*: pay/no-worse/compare: errors: 10 % of [0-9,]+ requests of 1 new pod against 0 % of `),
				MatchRegexp(`deployment/web 6 .* rolled back +failed +\d+[ms0-9]* +true`),
			),
			ContainSubstring("this machine has no other address at which")))

		By("with a declared kind, and a DaemonSet in waves")
		Expect(out).To(MatchRegexp(`ReleaseSuspended .*: the check mesh/routes/subsets: a subset that no DestinationRule has`))
		Expect(out).To(ContainSubstring("virtualservice pay is suspended"))
		Expect(out).To(ContainSubstring("daemonset agent is suspended"))
	}, SpecTimeout(15*time.Minute))
})

var _ = Describe("the walkthrough, with a manager that is killed all along,", Ordered, Label(soak), func() {
	w := inOwnWorld()

	// The manager is killed again and again, each time a little later after its start, so that a kill hits every step.
	for round := range 3 {
		It(fmt.Sprintf("survives kill -9 of the manager at any moment, round %d", round+1), func(ctx SpecContext) {
			ns := w.newNamespace(ctx, true)
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
					w.kills++
					Expect(w.manager.Kill()).To(Succeed())
					// Not bound to the spec: the next one needs the manager.
					starting, started := context.WithTimeout(context.Background(), time.Minute)
					Expect(w.manager.Start(starting)).To(Succeed())
					started()
				}
			}()
			DeferCleanup(func() { stop(); <-stopped })
			w.walkthrough(ctx, ns, true)
			stop()
			<-stopped
			AddReportEntry("kills", kills)
			Expect(kills).To(BeNumerically(">", 3))

			By("coming to rest in the same end state")
			Consistently(func(g Gomega) {
				g.Expect(w.changesIn(ctx, g, ns)).To(HaveLen(1))
				change := w.currentChange(ctx, g, ns, "sleep")
				g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
				g.Expect(change.Status.Attempt).To(Equal(int32(1)))
				g.Expect(w.batchesOf(ctx, g, change)).To(HaveLen(5))
			}).WithContext(ctx).Should(Succeed())
		}, SpecTimeout(5*time.Minute))
	}
})

var _ = Describe("the walkthrough of another kind", func() {
	w := inSharedWorld()

	for _, of := range []walkthrough.Workload{walkthrough.StatefulSet, walkthrough.DaemonSet} {
		It("holds word for word for a "+of.Kind(), func(ctx SpecContext) {
			samples := GinkgoT().TempDir()
			Expect(of.WriteSamples(root, samples)).To(Succeed())
			player := w.player(w.newNamespace(ctx, false))
			player.Of = of
			steps := []walkthrough.Step{
				walkthrough.Release, walkthrough.Fail, walkthrough.Blocked, walkthrough.Repair, walkthrough.GoOn,
				walkthrough.Sooner(walkthrough.NeverStarts),
			}
			Expect(player.Play(ctx, of.Adapt(samples, steps...)...)).To(Succeed())
		})
	}
})
