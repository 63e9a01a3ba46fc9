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
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
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
	It("restarts nothing, and takes what is there for a baseline", func(ctx SpecContext) {
		ns := newNamespace(ctx, false)
		createDeployment(ctx, ns, "old", 3)
		rolledOut(ctx, ns, "old")
		before := getDeployment(ctx, Default, ns, "old")
		pods := podUIDs(ctx, Default, ns, "old")
		Expect(pods).To(HaveLen(3))

		// Times are in seconds: only from the next one on a manager that has not
		// seen the Deployment before can tell.
		Eventually(time.Now).WithContext(ctx).Should(BeTemporally(">", before.CreationTimestamp.Add(2*time.Second)))
		withoutManager(ctx, func() { enrolNamespace(ctx, ns) }) // installed on a cluster that is already labelled
		kubectl(ctx, "-n", ns, "scale", "deployment", "old", "--replicas=4")
		rolledOut(ctx, ns, "old")
		kubectl(ctx, "-n", ns, "annotate", "deployment", "old", "team=x")
		Consistently(func(g Gomega) {
			d := getDeployment(ctx, g, ns, "old")
			g.Expect(d.Spec.Template).To(Equal(before.Spec.Template))
			g.Expect(d.Labels).To(Equal(before.Labels))
			g.Expect(podUIDs(ctx, g, ns, "old")).To(ContainElements(pods))
			g.Expect(changesIn(ctx, g, ns)).To(BeEmpty())
		}).WithContext(ctx).Should(Succeed())

		By("releasing it")
		Expect(patchTemplate(ctx, ns, "old", "new")).To(Succeed())
		change := eventuallyState(ctx, ns, "old", v1alpha1.ChangeWorkloadSuccess)
		Expect(change.Status.PassCount).To(Equal(int32(4)))
	}, SpecTimeout(3*time.Minute))

	It("takes for a baseline what it has seen before, in the same second, too", func(ctx SpecContext) {
		ns := newNamespace(ctx, false)
		createDeployment(ctx, ns, "old", 1)
		Eventually(func(g Gomega) {
			g.Expect(podUIDs(ctx, g, ns, "old")).NotTo(BeEmpty())
		}).WithContext(ctx).Should(Succeed())
		enrolNamespace(ctx, ns)
		Consistently(func(g Gomega) {
			g.Expect(changesIn(ctx, g, ns)).To(BeEmpty())
		}).WithContext(ctx).Should(Succeed())
	}, SpecTimeout(time.Minute))

	It("leaves other namespaces alone", func(ctx SpecContext) {
		ns := newNamespace(ctx, false)
		createDeployment(ctx, ns, "free", 2)
		rolledOut(ctx, ns, "free")
		Expect(patchTemplate(ctx, ns, "free", "new")).To(Succeed())
		rolledOut(ctx, ns, "free")
		Expect(changesIn(ctx, Default, ns)).To(BeEmpty())
		Expect(getDeployment(ctx, Default, ns, "free").Labels).NotTo(HaveKey(v1alpha1.VersionLabel))
		// AfterSuite checks that nothing was written there.
	}, SpecTimeout(time.Minute))

	for _, leave := range []string{"opting out", "un-enrolling"} {
		It("ends by "+leave+", and the block with it", func(ctx SpecContext) {
			ns := newNamespace(ctx, true)
			createDeployment(ctx, ns, "blocked", 1)
			createDeployment(ctx, ns, "running", 2, func(d *appsv1.Deployment) { behave("never-ready", nil)(d) })
			block(ctx, ns, "blocked")
			eventuallyState(ctx, ns, "running", v1alpha1.ChangeWorkloadRunning)
			if leave == "opting out" {
				kubectl(ctx, "-n", ns, "label", "deployment", "blocked", "running", v1alpha1.DefenseLabel+"="+v1alpha1.DefenseDisabled)
			} else {
				kubectl(ctx, "label", "namespace", ns, v1alpha1.EnrolledLabel+"-")
			}
			Eventually(func(g Gomega) {
				d := getDeployment(ctx, g, ns, "blocked")
				g.Expect(d.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
				g.Expect(d.Annotations).NotTo(HaveKey(v1alpha1.SuspendedByAnnotation))
				g.Expect(currentChange(ctx, g, ns, "running").Status.Status).To(Equal(v1alpha1.ChangeWorkloadCanceled))
			}).WithContext(ctx).Should(Succeed())
			Expect(patchTemplate(ctx, ns, "blocked", "new")).To(Succeed())
			rolledOut(ctx, ns, "blocked")
			Consistently(func(g Gomega) { g.Expect(changesIn(ctx, g, ns)).To(HaveLen(2)) }).WithContext(ctx).Should(Succeed())

			By("coming back: what was released meanwhile is recorded and verified")
			if leave == "opting out" {
				kubectl(ctx, "-n", ns, "label", "deployment", "blocked", v1alpha1.DefenseLabel+"-")
			} else {
				enrolNamespace(ctx, ns)
			}
			eventuallyState(ctx, ns, "blocked", v1alpha1.ChangeWorkloadSuccess)
		}, SpecTimeout(2*time.Minute))
	}
})

var _ = Describe("a release", func() {
	It("follows the settings live: batches, and the wait for a full one", func(ctx SpecContext) {
		setConfig(ctx, "branch", true, "3")
		setConfig(ctx, "timeouts", true, "wait=2s,pre=120s,post=120s")
		ns := newNamespace(ctx, true)

		By("making full batches, and one of the rest when the rollout is complete")
		createDeployment(ctx, ns, "seven", 7)
		change := eventuallyState(ctx, ns, "seven", v1alpha1.ChangeWorkloadSuccess)
		Expect(change.Spec.CountThreshold).To(Equal(int32(3)))
		Expect(change.Spec.WaitTimeThreshold).To(Equal(int64(2)))
		sizes := []int{}
		for _, b := range batchesOf(ctx, Default, change) {
			sizes = append(sizes, len(b.Spec.PodInfos))
			Expect(len(b.Spec.PodInfos)).To(BeNumerically("<=", 3))
		}
		Expect(sizes).To(ContainElement(3))
		Expect(change.Status.PassCount).To(Equal(int32(7)))

		By("not waiting for ever: with pods that come late the release times out, then goes on")
		createDeployment(ctx, ns, "late", 2, behave("late-ready", map[string]string{controlplane.ReadyAfterAnnotation: "5s"}))
		eventuallyState(ctx, ns, "late", v1alpha1.ChangeWorkloadTimeOutPreThreshold)
		Expect(eventuallyState(ctx, ns, "late", v1alpha1.ChangeWorkloadSuccess).Status.PassCount).To(Equal(int32(2)))
	}, SpecTimeout(2*time.Minute))

	It("stays Running while the Deployment is paused, and says so", func(ctx SpecContext) {
		setConfig(ctx, "timeouts", true, "wait=1s")
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "paused", 4)
		eventuallyState(ctx, ns, "paused", v1alpha1.ChangeWorkloadSuccess)
		Expect(patchDeployment(ctx, ns, "paused", `{"spec":{"paused":true,"template":{"metadata":{"labels":{"test":"new"}}}}}`)).To(Succeed())
		Eventually(func(g Gomega) {
			c := currentChange(ctx, g, ns, "paused")
			p := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionProgressing)
			g.Expect(p).NotTo(BeNil())
			g.Expect(p.Reason).To(Equal(v1alpha1.ReasonRolloutPaused))
		}).WithContext(ctx).Should(Succeed())
		Consistently(func(g Gomega) {
			g.Expect(currentChange(ctx, g, ns, "paused").Status.Status).To(Equal(v1alpha1.ChangeWorkloadRunning))
		}).WithContext(ctx).Should(Succeed())
		Expect(patchDeployment(ctx, ns, "paused", `{"spec":{"paused":false}}`)).To(Succeed())
		eventuallyState(ctx, ns, "paused", v1alpha1.ChangeWorkloadSuccess)
	}, SpecTimeout(2*time.Minute))

	It("verifies pods that come later, and only those", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "grows", 2)
		eventuallyState(ctx, ns, "grows", v1alpha1.ChangeWorkloadSuccess)
		kubectl(ctx, "-n", ns, "scale", "deployment", "grows", "--replicas=4")
		Eventually(func(g Gomega) {
			c := currentChange(ctx, g, ns, "grows")
			g.Expect(c.Status.PassCount).To(Equal(int32(4)))
			g.Expect(c.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
			g.Expect(batchesOf(ctx, g, c)).To(HaveLen(4))
		}).WithContext(ctx).Should(Succeed())
		Expect(changesIn(ctx, Default, ns)).To(HaveLen(1), "scaling is no release")
	}, SpecTimeout(time.Minute))

	It("goes from Suspend back to Success when the verdict is corrected", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "fixed", 2)
		change := block(ctx, ns, "fixed")
		blocked := meta.FindStatusCondition(change.Status.Conditions, v1alpha1.ConditionBlocked)
		Expect(blocked).NotTo(BeNil())
		Expect(blocked.Message).To(ContainSubstring(v1alpha1.IgnoredSuspendLabel))
		setVerdict(ctx, change, "pass")
		eventuallyState(ctx, ns, "fixed", v1alpha1.ChangeWorkloadSuccess)
		Expect(getDeployment(ctx, Default, ns, "fixed").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		Expect(patchTemplate(ctx, ns, "fixed", "new")).To(Succeed())
	}, SpecTimeout(time.Minute))

	It("blocks nothing while blocking is off, nor retroactively", func(ctx SpecContext) {
		setConfig(ctx, "blocking", false, "")
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "free", 2)
		setVerdict(ctx, eventuallyState(ctx, ns, "free", v1alpha1.ChangeWorkloadSuccess), "fail")
		eventuallyState(ctx, ns, "free", v1alpha1.ChangeWorkloadSuspend)
		Expect(getDeployment(ctx, Default, ns, "free").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		kubectl(ctx, "-n", controlplane.ManagerNamespace, "patch", "opsconfiginfo", "blocking", "--type=merge", "-p", `{"spec":{"enable":true}}`)
		configAccepted(ctx, "blocking")
		Consistently(func(g Gomega) {
			g.Expect(getDeployment(ctx, g, ns, "free").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		}).WithContext(ctx).Should(Succeed())
		Expect(patchTemplate(ctx, ns, "free", "new")).To(Succeed())
		eventuallyState(ctx, ns, "free", v1alpha1.ChangeWorkloadSuccess)
	}, SpecTimeout(time.Minute))

	It("is canceled by a newer one, and a version released again is a new attempt", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "twice", 2, behave("never-ready", nil))
		first := eventuallyState(ctx, ns, "twice", v1alpha1.ChangeWorkloadRunning)
		Expect(patchTemplate(ctx, ns, "twice", "b")).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(changesIn(ctx, g, ns)[first.Name].Status.Status).To(Equal(v1alpha1.ChangeWorkloadCanceled))
		}).WithContext(ctx).Should(Succeed())
		Expect(patchTemplate(ctx, ns, "twice", "123")).To(Succeed())
		Eventually(func(g Gomega) {
			again := changesIn(ctx, g, ns)[first.Name]
			g.Expect(again.Status.Attempt).To(Equal(int32(2)))
			g.Expect(again.Status.Status).To(Equal(v1alpha1.ChangeWorkloadRunning))
			g.Expect(again.UID).To(Equal(first.UID))
		}).WithContext(ctx).Should(Succeed())
	}, SpecTimeout(time.Minute))

	It("works for workloads with the longest of names", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		name := strings.Repeat("long-name-", 25) + "end" // 253 characters
		Expect(name).To(HaveLen(253))
		createDeployment(ctx, ns, name, 2)
		change := eventuallyState(ctx, ns, name, v1alpha1.ChangeWorkloadSuccess)
		Expect(len(change.Name)).To(BeNumerically("<=", 253))
		Expect(len(change.Labels[v1alpha1.WorkloadNameLabel])).To(BeNumerically("<=", 63))
		Expect(batchesOf(ctx, Default, change)).To(HaveLen(2))
		block(ctx, ns, name)
		Expect(denied(name)(tryKubectl(ctx, "-n", ns, "set", "image", "deployment/"+name, "sleep=busybox:2"))).To(BeTrue())
	}, SpecTimeout(time.Minute))

	It("goes with its workload, and one of the same name starts afresh", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "phoenix", 2)
		first := block(ctx, ns, "phoenix")
		kubectl(ctx, "-n", ns, "delete", "deployment", "phoenix")
		createDeployment(ctx, ns, "phoenix", 2)
		Eventually(func(g Gomega) {
			second := currentChange(ctx, g, ns, "phoenix")
			g.Expect(second.UID).NotTo(Equal(first.UID))
			g.Expect(second.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		}).WithContext(ctx).Should(Succeed())
		Expect(getDeployment(ctx, Default, ns, "phoenix").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))

		By("even when the dependents of the first were left behind")
		kubectl(ctx, "-n", ns, "delete", "deployment", "phoenix", "--cascade=orphan")
		Eventually(func(g Gomega) {
			for _, c := range changesIn(ctx, g, ns) {
				g.Expect(c.OwnerReferences).To(BeEmpty())
			}
		}).WithContext(ctx).Should(Succeed())
		createDeployment(ctx, ns, "phoenix", 2)
		Expect(eventuallyState(ctx, ns, "phoenix", v1alpha1.ChangeWorkloadSuccess).OwnerReferences).To(HaveLen(1))
	}, SpecTimeout(2*time.Minute))

	It("of 50 Deployments of 10 pods at once succeeds for all", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		began := time.Now()
		for i := range 50 {
			createDeployment(ctx, ns, fmt.Sprintf("d%02d", i), 10)
		}
		Eventually(func(g Gomega) {
			changes := changesIn(ctx, g, ns)
			g.Expect(changes).To(HaveLen(50))
			for _, c := range changes {
				g.Expect(c.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess), c.Name)
				g.Expect(c.Status.PassCount).To(Equal(int32(10)), c.Name)
			}
		}).WithTimeout(5 * time.Minute).WithPolling(time.Second).WithContext(ctx).Should(Succeed())
		AddReportEntry("50 Deployments of 10 pods", time.Since(began).Round(time.Millisecond).String())
		var batches v1alpha1.ChangePodList
		Expect(api.List(ctx, &batches, client.InNamespace(ns))).To(Succeed())
		Expect(batches.Items).To(HaveLen(500))
		var labelled int
		for i := range 50 {
			labelled += strings.Count(kubectl(ctx, "-n", ns, "get", "pods", "-l", v1alpha1.OperateFinishedLabel+",app="+fmt.Sprintf("d%02d", i), "-o", "name"), "\n")
		}
		Expect(labelled).To(Equal(500))
	}, SpecTimeout(6*time.Minute))
})

var _ = Describe("records deleted by users", func() {
	It("do not lift a block", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 2)
		change := block(ctx, ns, "web")
		By("deleting the failed batch")
		kubectl(ctx, "-n", ns, "delete", "changepod", batchesOf(ctx, Default, change)[0].Name)
		Consistently(func(g Gomega) {
			g.Expect(currentChange(ctx, g, ns, "web").Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuspend))
			g.Expect(getDeployment(ctx, g, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
		}).WithContext(ctx).Should(Succeed())
		By("deleting the release: it is recorded and verified again, the block stays")
		kubectl(ctx, "-n", ns, "delete", "changeworkload", change.Name)
		Expect(eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess).UID).NotTo(Equal(change.UID))
		Expect(getDeployment(ctx, Default, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
		By("repairing")
		Expect(patchDeployment(ctx, ns, "web", `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"template":{"metadata":{"labels":{"test":"repair"}}}}}`)).To(Succeed())
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Expect(getDeployment(ctx, Default, ns, "web").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
	}, SpecTimeout(2*time.Minute))
})

var _ = Describe("settings", func() {
	It("are created with their defaults", func(ctx SpecContext) {
		for name, want := range map[string]v1alpha1.OpsConfigInfoSpec{
			"blocking": {Type: v1alpha1.TypeBlocking, Enable: true},
			"branch":   {Type: v1alpha1.TypeBranch, Content: "10"},
			"timeouts": {Type: v1alpha1.TypeTimeouts, Enable: true, Content: "wait=60s,pre=120s,post=120s"},
		} {
			Eventually(func(g Gomega) {
				var o v1alpha1.OpsConfigInfo
				g.Expect(api.Get(ctx, types.NamespacedName{Namespace: controlplane.ManagerNamespace, Name: name}, &o)).To(Succeed())
				o.Spec.Remark = ""
				g.Expect(o.Spec).To(Equal(want))
				g.Expect(meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionAccepted)).To(BeTrue())
			}).WithContext(ctx).Should(Succeed())
		}
	}, SpecTimeout(time.Minute))

	It("that are invalid are refused, or reported while the last valid value stays", func(ctx SpecContext) {
		ns := controlplane.ManagerNamespace
		setConfig(ctx, "branch", true, "2")
		By("refusing what the schema can tell")
		for content, want := range map[string]string{"0": "from 1 to 200", "many": "from 1 to 200", "-3": "from 1 to 200", "201": "from 1 to 200"} {
			out, err := tryKubectl(ctx, "-n", ns, "patch", "opsconfiginfo", "branch", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"content":%q}}`, content))
			Expect(err).To(HaveOccurred(), content)
			Expect(out).To(And(ContainSubstring("spec.content"), ContainSubstring(want)))
		}
		for _, content := range []string{"", "wait=0s", "wait=5s,wait=6s", "wiat=5s", "5s"} {
			out, err := tryKubectl(ctx, "-n", ns, "patch", "opsconfiginfo", "timeouts", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"content":%q}}`, content))
			Expect(err).To(HaveOccurred(), content)
			Expect(out).To(ContainSubstring("wait=60s"))
		}
		out, err := tryKubectl(ctx, "-n", ns, "patch", "opsconfiginfo", "branch", "--type=merge", "-p", `{"spec":{"type":"isBatch"}}`)
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("Unsupported value"))

		By("reporting what it cannot")
		kubectl(ctx, "-n", ns, "patch", "opsconfiginfo", "branch", "--type=merge", "-p", `{"spec":{"type":"isHistory"}}`)
		configAccepted(ctx, "branch")
		var o v1alpha1.OpsConfigInfo
		Expect(api.Get(ctx, types.NamespacedName{Namespace: ns, Name: "branch"}, &o)).To(Succeed())
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionAccepted)
		Expect(c.Reason).To(Equal(v1alpha1.ReasonTypeMismatch))
		Expect(c.Message).To(ContainSubstring("spec.type"))
		Expect(o.Status.InForce).To(Equal(&v1alpha1.OpsConfigValue{Enable: true, Content: "2"}))

		unknown := &v1alpha1.OpsConfigInfo{Spec: v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeBranch, Enable: true, Content: "5"}}
		unknown.Namespace, unknown.Name = ns, "branches"
		Expect(api.Create(ctx, unknown)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(api.Delete(ctx, unknown)).To(Succeed()) })
		configAccepted(ctx, "branches")
		Expect(api.Get(ctx, client.ObjectKeyFromObject(unknown), unknown)).To(Succeed())
		Expect(meta.FindStatusCondition(unknown.Status.Conditions, v1alpha1.ConditionAccepted).Reason).To(Equal(v1alpha1.ReasonUnknownName))

		By("keeping the last valid value in force, across a restart too")
		withoutManager(ctx, func() {})
		managed := newNamespace(ctx, true)
		createDeployment(ctx, managed, "batched", 4)
		change := eventuallyState(ctx, managed, "batched", v1alpha1.ChangeWorkloadSuccess)
		Expect(change.Spec.CountThreshold).To(Equal(int32(2)))
	}, SpecTimeout(2*time.Minute))
})

var _ = Describe("objects of the operator", func() {
	It("cannot be made into something else", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "fixed", 1)
		change := eventuallyState(ctx, ns, "fixed", v1alpha1.ChangeWorkloadSuccess)
		out, err := tryKubectl(ctx, "-n", ns, "patch", "changeworkload", change.Name, "--type=merge", "-p", `{"spec":{"reversion":"00000000000000000000000000000000"}}`)
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("cannot change"))
		out, err = tryKubectl(ctx, "-n", ns, "patch", "changepod", defense.ChangePodName("fixed", change.Spec.Reversion, 1), "--type=merge", "-p", `{"spec":{"podInfos":[{"pod":"other"}]}}`)
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("cannot change"))
		out, err = tryKubectl(ctx, "-n", ns, "patch", "changeworkload", change.Name, "--subresource=status", "--type=merge", "-p", `{"status":{"status":"Fine"}}`)
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("Unsupported value"))
	}, SpecTimeout(time.Minute))

	It("explain themselves", func(ctx SpecContext) {
		for _, field := range []string{"changeworkload.spec.reversion", "changeworkload.status.defenseCheckFailPods", "changepod.status.podResults.verdict", "opsconfiginfo.spec.content"} {
			Expect(kubectl(ctx, "explain", field)).To(And(ContainSubstring("DESCRIPTION"), Not(ContainSubstring("<empty>"))), field)
		}
		Expect(kubectl(ctx, "get", "altershield", "-n", controlplane.ManagerNamespace)).To(ContainSubstring("blocking"))
		Expect(kubectl(ctx, "api-resources")).To(MatchRegexp(`(?m)^changeworkloads\s+cwl\s`))
	}, SpecTimeout(time.Minute))
})
