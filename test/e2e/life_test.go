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
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// slowly lets a rollout take its time: one pod after the other.
func slowly(d *appsv1.Deployment) {
	one, zero := intstr.FromInt32(1), intstr.FromInt32(0)
	d.Spec.MinReadySeconds = 1
	d.Spec.Strategy = appsv1.DeploymentStrategy{
		Type:          appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one, MaxUnavailable: &zero},
	}
}

// failInFlight releases a Deployment again and fails its first batch while the
// rollout is under way; it returns the failed release.
func failInFlight(ctx context.Context, ns, name string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	eventuallyState(ctx, ns, name, v1alpha1.ChangeWorkloadSuccess)
	Expect(patchTemplate(ctx, ns, name, "bad")).To(Succeed())
	Eventually(func(g Gomega) {
		change := currentChange(ctx, g, ns, name)
		batches := batchesOf(ctx, g, change)
		g.Expect(batches).NotTo(BeEmpty())
		g.Expect(batches[0].Status.Status).To(Equal(v1alpha1.ChangePodExecuteDone))
	}).WithContext(ctx).Should(Succeed())
	setVerdict(ctx, currentChange(ctx, Default, ns, name), "unpass")
	return eventuallyState(ctx, ns, name, v1alpha1.ChangeWorkloadSuspend)
}

// revisionsOf are the versions a Deployment's history has, oldest first.
func revisionsOf(ctx context.Context, g Gomega, ns, name string) []appsv1.ControllerRevision {
	GinkgoHelper()
	var list appsv1.ControllerRevisionList
	g.Expect(api.List(ctx, &list, client.InNamespace(ns), client.MatchingLabels{v1alpha1.WorkloadNameLabel: name})).To(Succeed())
	return list.Items
}

var _ = Describe("a rollout that fails", func() {
	It("is paused together with the block, and resumed by the correction", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 4, slowly)
		bad := failInFlight(ctx, ns, "web")
		d := getDeployment(ctx, Default, ns, "web")
		Expect(d.Spec.Paused).To(BeTrue())
		Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.HaltedAnnotation, bad.Spec.Reversion))
		Expect(d.Labels).To(HaveKey(v1alpha1.SuspendLabel))
		Expect(conditionOf(bad.Status.Conditions, v1alpha1.ConditionProgressing).Reason).To(Equal(v1alpha1.ReasonRolloutHalted))
		Eventually(func(g Gomega) {
			g.Expect(eventsOf(ctx, g, ns, "web")).To(ContainElement("RolloutHalted"))
		}).WithContext(ctx).Should(Succeed())
		updated := d.Status.UpdatedReplicas
		Consistently(func(g Gomega) {
			g.Expect(getDeployment(ctx, g, ns, "web").Status.UpdatedReplicas).To(BeNumerically("<=", updated+1))
		}).WithContext(ctx).Should(Succeed())
		By("correcting the verdict")
		setVerdict(ctx, bad, "pass")
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		d = getDeployment(ctx, Default, ns, "web")
		Expect(d.Spec.Paused).To(BeFalse())
		Expect(d.Annotations).NotTo(HaveKey(v1alpha1.HaltedAnnotation))
	})

	It("is resumed by a repair, also when admission is down", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		repair := `{"metadata":{"labels":{"` + v1alpha1.IgnoredSuspendLabel + `":"true"}},"spec":{"template":{"metadata":{"labels":{"test":%q}}}}}`
		createDeployment(ctx, ns, "web", 3, slowly)
		failInFlight(ctx, ns, "web")
		Expect(patchDeployment(ctx, ns, "web", fmt.Sprintf(repair, "good"))).To(Succeed())
		Expect(getDeployment(ctx, Default, ns, "web").Spec.Paused).To(BeFalse(), "in the same request")
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Eventually(func(g Gomega) {
			g.Expect(getDeployment(ctx, g, ns, "web").Annotations).NotTo(HaveKey(v1alpha1.HaltedAnnotation))
		}).WithContext(ctx).Should(Succeed())

		createDeployment(ctx, ns, "api", 3, slowly)
		failInFlight(ctx, ns, "api")
		withoutManager(ctx, func() {
			Expect(patchDeployment(ctx, ns, "api", fmt.Sprintf(repair, "good"))).To(Succeed())
		})
		eventuallyState(ctx, ns, "api", v1alpha1.ChangeWorkloadSuccess)
		Expect(getDeployment(ctx, Default, ns, "api").Spec.Paused).To(BeFalse())
	})

	It("is left to whoever paused or resumed it", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 4, slowly)
		bad := failInFlight(ctx, ns, "web")
		kubectl(ctx, "-n", ns, "rollout", "resume", "deployment/web")
		rolledOut(ctx, ns, "web")
		Eventually(func(g Gomega) {
			g.Expect(getDeployment(ctx, g, ns, "web").Annotations).NotTo(HaveKey(v1alpha1.HaltedAnnotation))
			g.Expect(currentChange(ctx, g, ns, "web").Status.CheckingCount).To(BeZero())
		}).WithContext(ctx).Should(Succeed())
		kubectl(ctx, "-n", ns, "rollout", "pause", "deployment/web")
		setVerdict(ctx, bad, "pass")
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Expect(getDeployment(ctx, Default, ns, "web").Spec.Paused).To(BeTrue(), "a user's pause")
	})

	It("takes its pause back when the workload leaves the defense", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 4, slowly)
		failInFlight(ctx, ns, "web")
		kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.DefenseLabel+"="+v1alpha1.DefenseDisabled)
		Eventually(func(g Gomega) {
			d := getDeployment(ctx, g, ns, "web")
			g.Expect(d.Spec.Paused).To(BeFalse())
			g.Expect(d.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
			g.Expect(d.Annotations).NotTo(HaveKey(v1alpha1.HaltedAnnotation))
		}).WithContext(ctx).Should(Succeed())
		rolledOut(ctx, ns, "web")
	})

	It("goes on where halting is off", func(ctx SpecContext) {
		setConfig(ctx, "halting", false, "")
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 3, slowly)
		failInFlight(ctx, ns, "web")
		rolledOut(ctx, ns, "web")
		Expect(getDeployment(ctx, Default, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
	})
})

var _ = Describe("settings of a workload's own", func() {
	It("apply to it alone, and one that is wrong is told once", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		annotated := func(key, value string) func(*appsv1.Deployment) {
			return func(d *appsv1.Deployment) {
				d.Annotations = map[string]string{v1alpha1.SettingAnnotationPrefix + key: value}
			}
		}
		createDeployment(ctx, ns, "web", 4, annotated("branch", "2"))
		createDeployment(ctx, ns, "api", 2, annotated("branch", "many"))
		change := eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Expect(change.Spec.CountThreshold).To(Equal(int32(2)))
		Expect(batchesOf(ctx, Default, change)).To(HaveLen(2))
		change = eventuallyState(ctx, ns, "api", v1alpha1.ChangeWorkloadSuccess)
		Expect(batchesOf(ctx, Default, change)).To(HaveLen(2))
		Expect(conditionOf(change.Status.Conditions, v1alpha1.ConditionOverridesAccepted).Message).To(ContainSubstring(`"many"`))
		Eventually(func(g Gomega) {
			told := 0
			for _, reason := range eventsOf(ctx, g, ns, "api") {
				if reason == v1alpha1.ReasonInvalidOverride {
					told++
				}
			}
			g.Expect(told).To(Equal(1))
		}).WithContext(ctx).Should(Succeed())
		kubectl(ctx, "-n", ns, "annotate", "deployment", "api", v1alpha1.SettingAnnotationPrefix+"branch=3", "--overwrite")
		Eventually(func(g Gomega) {
			g.Expect(string(conditionOf(currentChange(ctx, g, ns, "api").Status.Conditions, v1alpha1.ConditionOverridesAccepted).Status)).To(Equal("True"))
		}).WithContext(ctx).Should(Succeed())
	})
})

var _ = Describe("the history of a workload", func() {
	It("keeps the templates of successful versions, the newest few, and none that failed", func(ctx SpecContext) {
		setConfig(ctx, "history", true, "2")
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 1)
		var versions []string
		for _, value := range []string{"", "second", "third"} {
			if value != "" {
				Expect(patchTemplate(ctx, ns, "web", value)).To(Succeed())
			}
			versions = append(versions, eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess).Spec.Reversion)
		}
		remembered := func(want ...string) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				var got []string
				for _, r := range revisionsOf(ctx, g, ns, "web") {
					got = append(got, r.Labels[v1alpha1.VersionLabel])
				}
				g.Expect(got).To(ConsistOf(want))
			}).WithContext(ctx).Should(Succeed())
		}
		remembered(versions[1], versions[2])
		for _, r := range revisionsOf(ctx, Default, ns, "web") {
			Expect(r.Labels).To(HaveLen(2), "our labels only, never the pods'")
			Expect(string(r.Data.Raw)).To(And(ContainSubstring(`"image":"busybox"`), ContainSubstring(`"template"`)))
			Expect(r.OwnerReferences).To(HaveLen(1))
		}
		By("failing the newest after its success")
		setVerdict(ctx, currentChange(ctx, Default, ns, "web"), "unpass")
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		remembered(versions[1])
		By("correcting that")
		setVerdict(ctx, currentChange(ctx, Default, ns, "web"), "pass")
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		remembered(versions[1], versions[2])
		By("reading it as the user guide says")
		out := kubectl(ctx, "-n", ns, "get", "controllerrevisions", "-l", v1alpha1.WorkloadNameLabel+"=web")
		Expect(strings.Count(out, "deployment.apps/web")).To(Equal(2), out)
		By("deleting the workload: its history goes with it")
		kubectl(ctx, "-n", ns, "delete", "deployment", "web")
		remembered()
	})
})
