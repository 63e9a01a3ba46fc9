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
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// behave makes pods behave as a label says, see the kwok stages.
func behave(behavior string, annotations map[string]string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Spec.Template.Labels[controlplane.BehaviorLabel] = behavior
		d.Spec.Template.Annotations = annotations
	}
}

var _ = Describe("enrolment", func() {
	w := inSharedWorld()

	It("takes for a baseline what it has seen before, in the same second, too", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, false)
		w.create(ctx, sleeper(ns, "old"))
		Eventually(func(g Gomega) {
			g.Expect(w.podUIDs(ctx, g, ns, "old")).NotTo(BeEmpty())
		}).WithContext(ctx).Should(Succeed())
		w.enrolNamespace(ctx, ns)
		Consistently(func(g Gomega) {
			g.Expect(w.changesIn(ctx, g, ns)).To(BeEmpty())
		}).WithContext(ctx).Should(Succeed())
	})

	It("tells who gets around a block", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		for _, name := range []string{"web", "other"} {
			w.create(ctx, sleeper(ns, name))
			w.block(ctx, ns, name)
		}
		By("opting out")
		w.kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.DefenseLabel+"="+v1alpha1.DefenseDisabled)
		Eventually(func(g Gomega) {
			g.Expect(w.eventsOf(ctx, g, ns, "web")).To(ContainElement(v1alpha1.EventOptedOut))
			d := w.getDeployment(ctx, g, ns, "web")
			g.Expect(d.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
			g.Expect(d.Annotations).To(HaveKey(v1alpha1.OptedOutAnnotation))
			out := w.currentChange(ctx, g, ns, "web").Status.OptedOut
			g.Expect(out).To(HaveField("While", v1alpha1.WhileBlocked))
			g.Expect(out).To(HaveField("User", Not(BeEmpty())))
		}).WithContext(ctx).Should(Succeed())
		By("deleting, and creating again")
		w.kubectl(ctx, "-n", ns, "delete", "deployment", "other")
		w.create(ctx, sleeper(ns, "other"))
		Eventually(func(g Gomega) {
			g.Expect(w.eventsOf(ctx, g, ns, "other")).To(ContainElements(v1alpha1.EventDeletedWhileBlocked, v1alpha1.EventCreatedAgain))
		}).WithContext(ctx).Should(Succeed())
		w.verified(ctx, ns, "other")
	})

	It("leaves other namespaces alone", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, false)
		w.create(ctx, sleeper(ns, "free").Replicas(2))
		w.rolledOut(ctx, ns, "free")
		Expect(w.patchTemplate(ctx, ns, "free", "new")).To(Succeed())
		w.rolledOut(ctx, ns, "free")
		Expect(w.changesIn(ctx, Default, ns)).To(BeEmpty())
		Expect(w.getDeployment(ctx, Default, ns, "free").Labels).NotTo(HaveKey(v1alpha1.VersionLabel))
		// AfterSuite checks that nothing was written there.
	})

	for _, leave := range []string{"opting out", "un-enrolling"} {
		It("ends by "+leave+", and the block with it", func(ctx SpecContext) {
			ns := w.newNamespace(ctx, true)
			w.create(ctx, sleeper(ns, "blocked"))
			w.create(ctx, sleeper(ns, "running").Replicas(2).With(behave("never-ready", nil)))
			w.block(ctx, ns, "blocked")
			w.eventuallyState(ctx, ns, "running", v1alpha1.ChangeWorkloadRunning)
			if leave == "opting out" {
				w.kubectl(ctx, "-n", ns, "label", "deployment", "blocked", "running", v1alpha1.DefenseLabel+"="+v1alpha1.DefenseDisabled)
			} else {
				w.kubectl(ctx, "label", "namespace", ns, v1alpha1.EnrolledLabel+"-")
			}
			Eventually(func(g Gomega) {
				d := w.getDeployment(ctx, g, ns, "blocked")
				g.Expect(d.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
				g.Expect(d.Annotations).NotTo(HaveKey(v1alpha1.SuspendedByAnnotation))
				g.Expect(w.currentChange(ctx, g, ns, "running").Status.Status).To(Equal(v1alpha1.ChangeWorkloadCanceled))
			}).WithContext(ctx).Should(Succeed())
			Expect(w.patchTemplate(ctx, ns, "blocked", "new")).To(Succeed())
			w.rolledOut(ctx, ns, "blocked")
			released := time.Now()
			Consistently(func(g Gomega) { g.Expect(w.changesIn(ctx, g, ns)).To(HaveLen(2)) }).WithContext(ctx).Should(Succeed())

			if leave == "opting out" {
				By("coming back: what was released meanwhile is recorded and verified")
				w.kubectl(ctx, "-n", ns, "label", "deployment", "blocked", v1alpha1.DefenseLabel+"-")
			} else {
				By("coming back: what was released meanwhile is a baseline, and the next release is verified")
				// The times of both have seconds, and the enrolment has to be the later one.
				Eventually(time.Now).WithContext(ctx).Should(BeTemporally(">", released.Add(2*time.Second)))
				w.enrolNamespace(ctx, ns)
				Eventually(func(g Gomega) {
					g.Expect(w.getDeployment(ctx, g, ns, "blocked").Labels).NotTo(HaveKey(v1alpha1.VersionLabel))
				}).WithContext(ctx).Should(Succeed())
				Expect(w.patchTemplate(ctx, ns, "blocked", "next")).To(Succeed())
			}
			w.eventuallyState(ctx, ns, "blocked", v1alpha1.ChangeWorkloadSuccess)
		})
	}
})

var _ = Describe("a release", func() {
	w := inSharedWorld()

	It("stays Running while the Deployment is paused, and says so", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "paused").Replicas(4).Setting("timeouts", "wait=1s"))
		w.eventuallyState(ctx, ns, "paused", v1alpha1.ChangeWorkloadSuccess)
		Expect(w.patchDeployment(ctx, ns, "paused", `{"spec":{"paused":true,"template":{"metadata":{"labels":{"test":"new"}}}}}`)).To(Succeed())
		Eventually(func(g Gomega) {
			c := w.currentChange(ctx, g, ns, "paused")
			p := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionProgressing)
			g.Expect(p).NotTo(BeNil())
			g.Expect(p.Reason).To(Equal(v1alpha1.ReasonRolloutPaused))
		}).WithContext(ctx).Should(Succeed())
		Consistently(func(g Gomega) {
			g.Expect(w.currentChange(ctx, g, ns, "paused").Status.Status).To(Equal(v1alpha1.ChangeWorkloadRunning))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.patchDeployment(ctx, ns, "paused", `{"spec":{"paused":false}}`)).To(Succeed())
		w.eventuallyState(ctx, ns, "paused", v1alpha1.ChangeWorkloadSuccess)
	})

	It("verifies pods that come later, and only those", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "grows").Replicas(2))
		w.eventuallyState(ctx, ns, "grows", v1alpha1.ChangeWorkloadSuccess)
		w.kubectl(ctx, "-n", ns, "scale", "deployment", "grows", "--replicas=4")
		Eventually(func(g Gomega) {
			c := w.currentChange(ctx, g, ns, "grows")
			g.Expect(c.Status.PassCount).To(Equal(int32(4)))
			g.Expect(c.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
			g.Expect(w.batchesOf(ctx, g, c)).To(HaveLen(4))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.changesIn(ctx, Default, ns)).To(HaveLen(1), "scaling is no release")
	})

	It("goes from Suspend back to Success when the verdict is corrected", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "fixed").Replicas(2))
		change := w.block(ctx, ns, "fixed")
		blocked := meta.FindStatusCondition(change.Status.Conditions, v1alpha1.ConditionBlocked)
		Expect(blocked).NotTo(BeNil())
		Expect(blocked.Message).To(ContainSubstring(v1alpha1.IgnoredSuspendLabel))
		w.setVerdict(ctx, change, "pass")
		w.eventuallyState(ctx, ns, "fixed", v1alpha1.ChangeWorkloadSuccess)
		Expect(w.getDeployment(ctx, Default, ns, "fixed").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		Expect(w.patchTemplate(ctx, ns, "fixed", "new")).To(Succeed())
	})

	It("is canceled by a newer one, and a version released again is a new attempt", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "twice").Replicas(2).With(behave("never-ready", nil)))
		first := w.eventuallyState(ctx, ns, "twice", v1alpha1.ChangeWorkloadRunning)
		Expect(w.patchTemplate(ctx, ns, "twice", "b")).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(w.changesIn(ctx, g, ns)[first.Name].Status.Status).To(Equal(v1alpha1.ChangeWorkloadCanceled))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.patchTemplate(ctx, ns, "twice", "123")).To(Succeed())
		Eventually(func(g Gomega) {
			again := w.changesIn(ctx, g, ns)[first.Name]
			g.Expect(again.Status.Attempt).To(Equal(int32(2)))
			g.Expect(again.Status.Status).To(Equal(v1alpha1.ChangeWorkloadRunning))
			g.Expect(again.UID).To(Equal(first.UID))
		}).WithContext(ctx).Should(Succeed())
	})

	It("works for workloads with the longest of names", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		name := strings.Repeat("long-name-", 25) + "end" // 253 characters
		Expect(name).To(HaveLen(253))
		w.create(ctx, sleeper(ns, name).Replicas(2))
		change := w.eventuallyState(ctx, ns, name, v1alpha1.ChangeWorkloadSuccess)
		Expect(len(change.Name)).To(BeNumerically("<=", 253))
		Expect(len(change.Labels[v1alpha1.DeploymentNameLabel])).To(BeNumerically("<=", 63))
		Expect(w.batchesOf(ctx, Default, change)).To(HaveLen(2))
		w.block(ctx, ns, name)
		Expect(denied(name)(w.tryKubectl(ctx, "-n", ns, "set", "image", "deployment/"+name, "sleep=busybox:2"))).To(BeTrue())
	})

	It("goes with its workload, and one of the same name starts afresh", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "phoenix").Replicas(2))
		first := w.block(ctx, ns, "phoenix")
		w.kubectl(ctx, "-n", ns, "delete", "deployment", "phoenix")
		w.create(ctx, sleeper(ns, "phoenix").Replicas(2))
		Eventually(func(g Gomega) {
			second := w.currentChange(ctx, g, ns, "phoenix")
			g.Expect(second.UID).NotTo(Equal(first.UID))
			g.Expect(second.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.getDeployment(ctx, Default, ns, "phoenix").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))

		By("even when the dependents of the first were left behind")
		w.kubectl(ctx, "-n", ns, "delete", "deployment", "phoenix", "--cascade=orphan")
		Eventually(func(g Gomega) {
			for _, c := range w.changesIn(ctx, g, ns) {
				g.Expect(c.OwnerReferences).To(BeEmpty())
			}
		}).WithContext(ctx).Should(Succeed())
		w.create(ctx, sleeper(ns, "phoenix").Replicas(2))
		Expect(w.eventuallyState(ctx, ns, "phoenix", v1alpha1.ChangeWorkloadSuccess).OwnerReferences).To(HaveLen(1))
	})

	It("of 50 Deployments of 10 pods at once succeeds for all", func(ctx SpecContext) {
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

var _ = Describe("records deleted by users", func() {
	w := inSharedWorld()

	It("do not lift a block", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(2))
		change := w.block(ctx, ns, "web")
		By("deleting the failed batch")
		w.kubectl(ctx, "-n", ns, "delete", "changepod", w.batchesOf(ctx, Default, change)[0].Name)
		Consistently(func(g Gomega) {
			g.Expect(w.currentChange(ctx, g, ns, "web").Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuspend))
			g.Expect(w.getDeployment(ctx, g, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
		}).WithContext(ctx).Should(Succeed())
		By("deleting the release: it is recorded and verified again, the block stays")
		w.kubectl(ctx, "-n", ns, "delete", "changeworkload", change.Name)
		Expect(w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess).UID).NotTo(Equal(change.UID))
		Expect(w.getDeployment(ctx, Default, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
		By("repairing")
		Expect(w.patchDeployment(ctx, ns, "web", `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"template":{"metadata":{"labels":{"test":"repair"}}}}}`)).To(Succeed())
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Expect(w.getDeployment(ctx, Default, ns, "web").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
	})
})

var _ = Describe("objects of the operator", func() {
	w := inSharedWorld()

	It("cannot be made into something else", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "fixed"))
		change := w.eventuallyState(ctx, ns, "fixed", v1alpha1.ChangeWorkloadSuccess)
		out, err := w.tryKubectl(ctx, "-n", ns, "patch", "changeworkload", change.Name, "--type=merge", "-p", `{"spec":{"reversion":"00000000000000000000000000000000"}}`)
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("cannot change"))
		out, err = w.tryKubectl(ctx, "-n", ns, "patch", "changepod", defense.ChangePodName("fixed", change.Spec.Reversion, 1), "--type=merge", "-p", `{"spec":{"podInfos":[{"pod":"other"}]}}`)
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("cannot change"))
		out, err = w.tryKubectl(ctx, "-n", ns, "patch", "changeworkload", change.Name, "--subresource=status", "--type=merge", "-p", `{"status":{"status":"Fine"}}`)
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("Unsupported value"))
	})

	It("explain themselves", func(ctx SpecContext) {
		for _, field := range []string{"changeworkload.spec.reversion", "changeworkload.status.defenseCheckFailPods", "changepod.status.podResults.verdict", "opsconfiginfo.spec.content"} {
			Expect(w.kubectl(ctx, "explain", field)).To(And(ContainSubstring("DESCRIPTION"), Not(ContainSubstring("<empty>"))), field)
		}
		Expect(w.kubectl(ctx, "get", "altershield", "-n", controlplane.ManagerNamespace)).To(ContainSubstring("blocking"))
		Expect(w.kubectl(ctx, "api-resources")).To(MatchRegexp(`(?m)^changeworkloads\s+cwl\s`))
	})
})
