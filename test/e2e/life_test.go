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
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// verified waits until the current release of a Deployment is a success that is
// right: every pod there is was verified, in one batch of this attempt, and no
// batch is left open.
func verified(ctx context.Context, ns, name string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		d := getDeployment(ctx, g, ns, name)
		change = currentChange(ctx, g, ns, name)
		g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		g.Expect(change.Status.FailCount + change.Status.CheckingCount + change.Status.PreparingCount).To(BeZero())
		g.Expect(change.Status.ObservedRelease).To(Equal(change.Spec.Release))
		inBatches := map[string]int{}
		for _, b := range batchesOf(ctx, g, change) {
			g.Expect(b.Status.Status).To(Equal(v1alpha1.ChangePodExecuteDone), b.Name)
			g.Expect(len(b.Spec.PodInfos)).To(BeNumerically("<=", 200))
			for _, p := range b.Spec.PodInfos {
				if b.Spec.Attempt == change.Status.Attempt {
					inBatches[p.UID]++
				}
			}
		}
		uids := podUIDs(ctx, g, ns, name)
		g.Expect(uids).To(HaveLen(int(*d.Spec.Replicas)))
		for _, uid := range uids {
			g.Expect(inBatches).To(HaveKeyWithValue(string(uid), 1))
		}
	}).WithContext(ctx).Should(Succeed())
	return change
}

// restful checks that nothing is written any more.
func restful(ctx context.Context, ns string) {
	GinkgoHelper()
	before := -1
	Eventually(func() bool { // events are sent a little later
		n := managerWrites(ns)
		same := n == before
		before = n
		return same
	}).WithContext(ctx).WithPolling(time.Second).Should(BeTrue())
	Consistently(func() int { return managerWrites(ns) }).WithContext(ctx).Should(Equal(before))
}

var _ = Describe("the life of a release", func() {
	strategy := func(kind appsv1.DeploymentStrategyType, surge, unavailable string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: kind}
			if kind == appsv1.RollingUpdateDeploymentStrategyType {
				s, u := intstr.Parse(surge), intstr.Parse(unavailable)
				d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u}
			}
		}
	}
	rolling := appsv1.RollingUpdateDeploymentStrategyType

	DescribeTable("is right with any strategy", func(ctx SpecContext, replicas int, change func(*appsv1.Deployment)) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", int32(replicas), change)
		verified(ctx, ns, "web")
		Expect(patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		second := verified(ctx, ns, "web")
		Expect(changesIn(ctx, Default, ns)).To(HaveKey(second.Name))
		restful(ctx, ns)
	},
		Entry("Recreate", 3, strategy(appsv1.RecreateDeploymentStrategyType, "", "")),
		Entry("one after the other", 3, slowly),
		Entry("surge of everything", 4, strategy(rolling, "100%", "0")),
		Entry("everything unavailable", 4, strategy(rolling, "0", "100%")),
		Entry("no pods at all", 0, strategy(rolling, "1", "0")),
		Entry("a single pod", 1, strategy(rolling, "1", "0")),
	)

	DescribeTable("is right whatever happens in the middle", func(ctx SpecContext, happen func(ctx context.Context, ns string)) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 4, slowly)
		verified(ctx, ns, "web")
		Expect(patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(batchesOf(ctx, g, currentChange(ctx, g, ns, "web"))).NotTo(BeEmpty())
		}).WithContext(ctx).Should(Succeed())
		happen(ctx, ns)
		verified(ctx, ns, "web")
		restful(ctx, ns)
	},
		Entry("scaled up", func(ctx context.Context, ns string) {
			kubectl(ctx, "-n", ns, "scale", "deployment/web", "--replicas=6")
		}),
		Entry("scaled down", func(ctx context.Context, ns string) {
			kubectl(ctx, "-n", ns, "scale", "deployment/web", "--replicas=2")
		}),
		Entry("scaled to nothing and back", func(ctx context.Context, ns string) {
			kubectl(ctx, "-n", ns, "scale", "deployment/web", "--replicas=0")
			kubectl(ctx, "-n", ns, "scale", "deployment/web", "--replicas=3")
		}),
		Entry("a horizontal autoscaler at work", func(ctx context.Context, ns string) {
			for _, n := range []string{"5", "3", "6", "4"} {
				kubectl(ctx, "-n", ns, "scale", "deployment/web", "--replicas="+n)
			}
		}),
		Entry("pods deleted", func(ctx context.Context, ns string) {
			kubectl(ctx, "-n", ns, "delete", "pods", "-l", "app=web", "--wait=false")
		}),
		Entry("a pod evicted", func(ctx context.Context, ns string) {
			var pods corev1.PodList
			Expect(api.List(ctx, &pods, client.InNamespace(ns))).To(Succeed())
			eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: pods.Items[0].Name}}
			Expect(api.SubResource("eviction").Create(ctx, &pods.Items[0], eviction)).To(Succeed())
		}),
		Entry("paused and resumed", func(ctx context.Context, ns string) {
			kubectl(ctx, "-n", ns, "rollout", "pause", "deployment/web")
			Eventually(func(g Gomega) {
				g.Expect(conditionOf(currentChange(ctx, g, ns, "web").Status.Conditions, v1alpha1.ConditionProgressing).Reason).To(Equal(v1alpha1.ReasonRolloutPaused))
			}).WithContext(ctx).Should(Succeed())
			kubectl(ctx, "-n", ns, "rollout", "resume", "deployment/web")
		}),
		Entry("released anew", func(ctx context.Context, ns string) { Expect(patchTemplate(ctx, ns, "web", "third")).To(Succeed()) }),
		Entry("released three times within a second", func(ctx context.Context, ns string) {
			for _, value := range []string{"third", "fourth", "fifth"} {
				Expect(patchTemplate(ctx, ns, "web", value)).To(Succeed())
			}
		}),
		Entry("released back", func(ctx context.Context, ns string) { kubectl(ctx, "-n", ns, "rollout", "undo", "deployment/web") }),
		Entry("released back and forth", func(ctx context.Context, ns string) {
			kubectl(ctx, "-n", ns, "rollout", "undo", "deployment/web")
			Expect(patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		}),
		Entry("the same template applied again", func(ctx context.Context, ns string) { Expect(patchTemplate(ctx, ns, "web", "second")).To(Succeed()) }),
		Entry("restarted by kubectl", func(ctx context.Context, ns string) { kubectl(ctx, "-n", ns, "rollout", "restart", "deployment/web") }),
		Entry("deleted and created anew", func(ctx context.Context, ns string) {
			kubectl(ctx, "-n", ns, "delete", "deployment", "web")
			createDeployment(ctx, ns, "web", 2)
		}),
		Entry("opted out and in", func(ctx context.Context, ns string) {
			kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.DefenseLabel+"="+v1alpha1.DefenseDisabled)
			Eventually(func(g Gomega) {
				g.Expect(currentChange(ctx, g, ns, "web").Status.Status).To(Equal(v1alpha1.ChangeWorkloadCanceled))
			}).WithContext(ctx).Should(Succeed())
			kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.DefenseLabel+"-")
			Expect(patchTemplate(ctx, ns, "web", "third")).To(Succeed())
		}),
		Entry("batches made larger", func(ctx context.Context, _ string) { setConfig(ctx, "branch", true, "3") }),
		Entry("batches larger than the workload", func(ctx context.Context, _ string) { setConfig(ctx, "branch", true, "100") }),
		Entry("its record deleted", func(ctx context.Context, ns string) { kubectl(ctx, "-n", ns, "delete", "cwl", "--all") }),
		Entry("its batches deleted", func(ctx context.Context, ns string) { kubectl(ctx, "-n", ns, "delete", "cpd", "--all") }),
		Entry("pods that cease to be ready", func(ctx context.Context, ns string) {
			kubectl(ctx, "-n", ns, "annotate", "pods", "-l", "app=web", "kwok.altershield/unready=true")
			Eventually(func(g Gomega) {
				g.Expect(getDeployment(ctx, g, ns, "web").Status.ReadyReplicas).To(BeZero())
			}).WithContext(ctx).Should(Succeed())
			kubectl(ctx, "-n", ns, "annotate", "pods", "-l", "app=web", "kwok.altershield/unready-")
		}),
	)
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
