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
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

// lock keeps namespaces and workloads from overriding a setting, or lets them, until
// the end of the spec.
func (w *world) lock(ctx context.Context, name string, locked bool) {
	GinkgoHelper()
	write := func(ctx context.Context, locked bool) {
		GinkgoHelper()
		w.kubectl(ctx, "-n", controlplane.ManagerNamespace, "patch", "opsconfiginfo", name, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"locked":%t}}`, locked))
		w.configAccepted(ctx, name)
	}
	write(ctx, locked)
	if locked {
		DeferCleanup(write, false)
	}
}

var _ = Describe("settings", Ordered, SpecPriority(longest), func() {
	w := inOwnWorld()

	It("are created with their defaults", func(ctx SpecContext) {
		for name, want := range map[string]v1alpha1.OpsConfigInfoSpec{
			"blocking": {Type: v1alpha1.TypeBlocking, Enable: true},
			"branch":   {Type: v1alpha1.TypeBranch, Content: "10"},
			"timeouts": {Type: v1alpha1.TypeTimeouts, Enable: true, Content: "wait=60s,pre=120s,post=120s,settle=10s"},
		} {
			Eventually(func(g Gomega) {
				var o v1alpha1.OpsConfigInfo
				g.Expect(w.api.Get(ctx, types.NamespacedName{Namespace: controlplane.ManagerNamespace, Name: name}, &o)).To(Succeed())
				o.Spec.Remark = ""
				g.Expect(o.Spec).To(Equal(want))
				g.Expect(meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionAccepted)).To(BeTrue())
			}).WithContext(ctx).Should(Succeed())
		}
	})

	It("that are invalid are refused, or reported while the last valid value stays", func(ctx SpecContext) {
		ns := controlplane.ManagerNamespace
		w.setConfig(ctx, "branch", true, "2")
		By("refusing what the schema can tell")
		for content, want := range map[string]string{"0": "from 1 to 200", "many": "from 1 to 200", "-3": "from 1 to 200", "201": "from 1 to 200"} {
			out, err := w.tryKubectl(ctx, "-n", ns, "patch", "opsconfiginfo", "branch", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"content":%q}}`, content))
			Expect(err).To(HaveOccurred(), content)
			Expect(out).To(And(ContainSubstring("spec.content"), ContainSubstring(want)))
		}
		for _, content := range []string{"", "wait=0s", "wait=5s,wait=6s", "wiat=5s", "5s"} {
			out, err := w.tryKubectl(ctx, "-n", ns, "patch", "opsconfiginfo", "timeouts", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"content":%q}}`, content))
			Expect(err).To(HaveOccurred(), content)
			Expect(out).To(ContainSubstring("wait=60s"))
		}
		out, err := w.tryKubectl(ctx, "-n", ns, "patch", "opsconfiginfo", "branch", "--type=merge", "-p", `{"spec":{"type":"isBatch"}}`)
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("Unsupported value"))

		By("reporting what it cannot")
		w.kubectl(ctx, "-n", ns, "patch", "opsconfiginfo", "branch", "--type=merge", "-p", `{"spec":{"type":"isHistory"}}`)
		w.configAccepted(ctx, "branch")
		var o v1alpha1.OpsConfigInfo
		Expect(w.api.Get(ctx, types.NamespacedName{Namespace: ns, Name: "branch"}, &o)).To(Succeed())
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionAccepted)
		Expect(c.Reason).To(Equal(v1alpha1.ReasonTypeMismatch))
		Expect(c.Message).To(ContainSubstring("spec.type"))
		Expect(o.Status.InForce).To(Equal(&v1alpha1.OpsConfigValue{Enable: true, Content: "2"}))

		unknown := &v1alpha1.OpsConfigInfo{Spec: v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeBranch, Enable: true, Content: "5"}}
		unknown.Namespace, unknown.Name = ns, "branches"
		Expect(w.api.Create(ctx, unknown)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(w.api.Delete(ctx, unknown)).To(Succeed()) })
		w.configAccepted(ctx, "branches")
		Expect(w.api.Get(ctx, client.ObjectKeyFromObject(unknown), unknown)).To(Succeed())
		Expect(meta.FindStatusCondition(unknown.Status.Conditions, v1alpha1.ConditionAccepted).Reason).To(Equal(v1alpha1.ReasonUnknownName))

		By("keeping the last valid value in force, across a restart too")
		w.withoutManager(ctx, func() {})
		managed := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(managed, "batched").Replicas(4))
		change := w.eventuallyState(ctx, managed, "batched", v1alpha1.ChangeWorkloadSuccess)
		Expect(change.Spec.CountThreshold).To(Equal(int32(2)))
	})

	It("are followed live: batches, and the wait for a full one", func(ctx SpecContext) {
		w.setConfig(ctx, "branch", true, "3")
		w.setConfig(ctx, "timeouts", true, "wait=90s,pre=120s,post=120s")
		ns := w.newNamespace(ctx, true)

		By("making full batches, and one of the rest when the rollout is complete")
		w.create(ctx, sleeper(ns, "seven").Replicas(7))
		change := w.eventuallyState(ctx, ns, "seven", v1alpha1.ChangeWorkloadSuccess)
		Expect(change.Spec.CountThreshold).To(Equal(int32(3)))
		Expect(change.Spec.WaitTimeThreshold).To(Equal(int64(90)))
		sizes := []int{}
		for _, b := range w.batchesOf(ctx, Default, change) {
			sizes = append(sizes, len(b.Spec.PodInfos))
			Expect(len(b.Spec.PodInfos)).To(BeNumerically("<=", 3))
		}
		Expect(sizes).To(ContainElement(3))
		Expect(change.Status.PassCount).To(Equal(int32(7)))

		By("not waiting for ever: with pods that come late the release times out, then goes on")
		w.setConfig(ctx, "timeouts", true, "wait=2s,pre=120s,post=120s")
		w.create(ctx, sleeper(ns, "late").Replicas(2).With(behave("late-ready", map[string]string{controlplane.ReadyAfterAnnotation: "5s"})))
		w.eventuallyState(ctx, ns, "late", v1alpha1.ChangeWorkloadTimeOutPreThreshold)
		Expect(w.eventuallyState(ctx, ns, "late", v1alpha1.ChangeWorkloadSuccess).Status.PassCount).To(Equal(int32(2)))
	})

	It("block nothing while blocking is off, nor retroactively", func(ctx SpecContext) {
		w.setConfig(ctx, "blocking", false, "")
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "free").Replicas(2))
		w.setVerdict(ctx, w.eventuallyState(ctx, ns, "free", v1alpha1.ChangeWorkloadSuccess), "fail")
		w.eventuallyState(ctx, ns, "free", v1alpha1.ChangeWorkloadSuspend)
		Expect(w.getDeployment(ctx, Default, ns, "free").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		w.kubectl(ctx, "-n", controlplane.ManagerNamespace, "patch", "opsconfiginfo", "blocking", "--type=merge", "-p", `{"spec":{"enable":true}}`)
		w.configAccepted(ctx, "blocking")
		Consistently(func(g Gomega) {
			g.Expect(w.getDeployment(ctx, g, ns, "free").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.patchTemplate(ctx, ns, "free", "new")).To(Succeed())
		w.eventuallyState(ctx, ns, "free", v1alpha1.ChangeWorkloadSuccess)
	})

	It("let a rollout that fails go on where halting is off", func(ctx SpecContext) {
		w.setConfig(ctx, "halting", false, "")
		ns := w.newNamespace(ctx, true)
		w.failInFlight(ctx, inFlight(ns, "web").Replicas(3))
		w.rolledOut(ctx, ns, "web")
		Expect(w.getDeployment(ctx, Default, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
	})

	It("keep the templates of successful versions, the newest few, and none that failed", func(ctx SpecContext) {
		w.setConfig(ctx, "history", true, "2")
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web"))
		var versions []string
		for _, value := range []string{"", "second", "third"} {
			if value != "" {
				Expect(w.patchTemplate(ctx, ns, "web", value)).To(Succeed())
			}
			versions = append(versions, w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess).Spec.Reversion)
		}
		remembered := func(want ...string) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				var got []string
				for _, r := range w.revisionsOf(ctx, g, ns, "web") {
					got = append(got, r.Labels[v1alpha1.VersionLabel])
				}
				g.Expect(got).To(ConsistOf(want))
			}).WithContext(ctx).Should(Succeed())
		}
		remembered(versions[1], versions[2])
		for _, r := range w.revisionsOf(ctx, Default, ns, "web") {
			Expect(r.Labels).NotTo(Or(HaveKey("app"), HaveKey("test")), "our labels only, never the pods'")
			Expect(string(r.Data.Raw)).To(And(ContainSubstring(`"image":"busybox"`), ContainSubstring(`"template"`)))
			Expect(r.OwnerReferences).To(HaveLen(1))
		}
		By("failing the newest after its success")
		w.setVerdict(ctx, w.currentChange(ctx, Default, ns, "web"), "unpass")
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		remembered(versions[1])
		By("correcting that")
		w.setVerdict(ctx, w.currentChange(ctx, Default, ns, "web"), "pass")
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		remembered(versions[1], versions[2])
		By("reading it as the user guide says")
		out := w.kubectl(ctx, "-n", ns, "get", "controllerrevisions", "-l", v1alpha1.DeploymentNameLabel+"=web")
		Expect(strings.Count(out, "web--x--")).To(Equal(2), out)
		By("deleting the workload: its history goes with it")
		w.kubectl(ctx, "-n", ns, "delete", "deployment", "web")
		remembered()
	})

	It("heal a release that failed its verification, in flight or after its success", func(ctx SpecContext) {
		w.setConfig(ctx, "selfhealing", true, "")
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(4).With(slowly))
		good := w.verified(ctx, ns, "web").Spec.Reversion
		By("failing in flight: halted, blocked, and back")
		Expect(w.patchTemplate(ctx, ns, "web", "bad")).To(Succeed())
		bad := w.failFirst(ctx, ns, "web")
		d := w.rolledBackTo(ctx, ns, "web", good)
		Expect(d.Spec.Paused).To(BeFalse())
		Expect(d.Annotations).NotTo(HaveKey(v1alpha1.HaltedAnnotation))
		Eventually(func(g Gomega) {
			g.Expect(w.getDeployment(ctx, g, ns, "web").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		}).WithContext(ctx).Should(Succeed())
		why := w.quarantineOf(ctx, Default, ns, "web")[bad.Spec.Reversion]
		Expect([]string{why.Cause, why.Reason, why.Message}).To(Equal([]string{v1alpha1.ReasonVerificationFailed, "unpass", "find error"}))
		w.eventuallyUndone(ctx, ns, bad.Name)
		By("failing after its success")
		Expect(w.patchTemplate(ctx, ns, "web", "late")).To(Succeed())
		late := w.verified(ctx, ns, "web")
		w.setVerdict(ctx, late, "unpass")
		w.rolledBackTo(ctx, ns, "web", good)
		w.eventuallyUndone(ctx, ns, late.Name)
		w.restful(ctx, ns)
		By("failing with nothing to go back to")
		w.create(ctx, sleeper(ns, "new"))
		change := w.block(ctx, ns, "new")
		Eventually(func(g Gomega) {
			g.Expect(conditionOf(w.changesIn(ctx, g, ns)[change.Name].Status.Conditions, v1alpha1.ConditionRolledBack).Reason).To(Equal(v1alpha1.ReasonRollbackRefused))
		}).WithContext(ctx).Should(Succeed())
	})

	DescribeTable("may change in the middle of a release", func(ctx SpecContext, size string) {
		w.inTheMiddle(ctx, func(ctx context.Context, _ string) { w.setConfig(ctx, "branch", true, size) })
	},
		Entry("batches made larger", "3"),
		Entry("batches larger than the workload", "100"),
	)

	It("that are locked are in force whatever namespaces and workloads say, until they are unlocked", func(ctx SpecContext) {
		w.setConfig(ctx, "branch", true, "2")
		w.lock(ctx, "branch", true)
		w.lock(ctx, "blocking", true)
		ns := w.newNamespace(ctx, false)
		own := w.ownSetting(ctx, ns, "blocking", v1alpha1.TypeBlocking, false, "")
		ofNamespace := w.ownSetting(ctx, ns, "timeouts", v1alpha1.TypeTimeouts, true, "wait=77s,settle=0")
		w.enrolNamespace(ctx, ns)
		w.accepted(ctx, own, v1alpha1.ReasonLocked)
		Expect(own.Status.InForce).To(BeNil())
		Expect(conditionOf(own.Status.Conditions, v1alpha1.ConditionAccepted)).To(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Message", ContainSubstring("locked"))))
		w.accepted(ctx, ofNamespace, v1alpha1.ReasonInForce)
		w.create(ctx, sleeper(ns, "web").Replicas(4).Setting("branch", "4").Setting("blocking", "disabled"))
		change := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Expect(change.Spec.CountThreshold).To(Equal(int32(2)))
		Expect(change.Spec.WaitTimeThreshold).To(Equal(int64(77)), "what is not locked is the namespace's")
		refused := conditionOf(change.Status.Conditions, v1alpha1.ConditionOverridesAccepted)
		Expect(refused.Status).To(Equal(metav1.ConditionFalse))
		for _, setting := range []string{"branch", "blocking"} {
			Expect(refused.Message).To(ContainSubstring(v1alpha1.SettingAnnotationPrefix + setting + ": "))
		}
		Expect(strings.Count(refused.Message, "is locked")).To(Equal(2), refused.Message)
		w.setVerdict(ctx, change, "unpass")
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(MatchError(ContainSubstring("deployment web is suspended")))

		By("unlocking them")
		w.lock(ctx, "branch", false)
		w.lock(ctx, "blocking", false)
		w.accepted(ctx, own, v1alpha1.ReasonInForce)
		Expect(own.Status.InForce).To(Equal(&v1alpha1.OpsConfigValue{}))
		Expect(w.patchDeployment(ctx, ns, "web", repair("second"))).To(Succeed())
		change = w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Expect(change.Spec.CountThreshold).To(Equal(int32(4)))
		Expect(conditionOf(change.Status.Conditions, v1alpha1.ConditionOverridesAccepted).Status).NotTo(Equal(metav1.ConditionFalse))
		Eventually(func(g Gomega) {
			g.Expect(w.getDeployment(ctx, g, ns, "web").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		}).WithContext(ctx).Should(Succeed())
		w.setVerdict(ctx, change, "unpass")
		change = w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(conditionOf(change.Status.Conditions, v1alpha1.ConditionBlocked).Reason).To(Equal(v1alpha1.ReasonBlockingDisabled))
		Expect(w.patchTemplate(ctx, ns, "web", "third")).To(Succeed())
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
	})

	It("say how long a release waits of which nothing finishes", func(ctx SpecContext) {
		w.setConfig(ctx, "timeouts", true, "wait=2s")
		w.timesOut(ctx)
	})
})
