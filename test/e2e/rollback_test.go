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
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// afterAWhile shortens the threshold of rollbacks for one workload.
func afterAWhile(d *appsv1.Deployment) {
	override("rollback", "5s")(d)
}

// withoutHurry gives what is released next all the time it may need on a busy
// machine.
func (w *world) withoutHurry(ctx context.Context, ns, name string) {
	GinkgoHelper()
	w.kubectl(ctx, "-n", ns, "annotate", "deployment", name, "--overwrite", v1alpha1.SettingAnnotationPrefix+"rollback=10m")
}

// setImage releases another image.
func (w *world) setImage(ctx context.Context, ns, name, image string) error {
	return w.patchContainers(ctx, ns, name, fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"sleep","image":%q}]}}}}`, image))
}

// patchContainers changes containers by name, and leaves what is not named.
func (w *world) patchContainers(ctx context.Context, ns, name, patch string) error {
	d := wrappers.MakeDeployment(ns, name).Obj()
	return w.api.Patch(ctx, d, client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
}

// shortDeadline lets what is slow be found in time.
func shortDeadline(d *appsv1.Deployment) {
	deadline := int32(4)
	d.Spec.ProgressDeadlineSeconds = &deadline
}

// rolledBackTo waits until a Deployment is back at a version and that is
// verified.
func (w *world) rolledBackTo(ctx context.Context, ns, name, version string) *appsv1.Deployment {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(w.getDeployment(ctx, g, ns, name).Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, version))
	}).WithContext(ctx).Should(Succeed())
	w.verified(ctx, ns, name)
	return w.getDeployment(ctx, Default, ns, name)
}

// eventuallyUndone waits until a release says that it was rolled back.
func (w *world) eventuallyUndone(ctx context.Context, ns, change string) (undone *v1alpha1.ChangeWorkload) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		undone = w.changesIn(ctx, g, ns)[change]
		g.Expect(undone).NotTo(BeNil())
		g.Expect(undone.Status.Status).To(Equal(v1alpha1.ChangeWorkloadRollback))
	}).WithContext(ctx).Should(Succeed())
	return undone
}

var _ = Describe("a rollback", func() {
	w := inSharedWorld()

	It("undoes a release whose pods do not come up, once, and keeps it from coming back", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "sleep").Replicas(5).With(afterAWhile))
		good := w.verified(ctx, ns, "sleep")
		Expect(w.setImage(ctx, ns, "sleep", "busybo")).To(Succeed())
		bad := w.getDeployment(ctx, Default, ns, "sleep").Labels[v1alpha1.VersionLabel]
		d := w.rolledBackTo(ctx, ns, "sleep", good.Spec.Reversion)
		Expect(*d.Spec.Replicas).To(Equal(int32(5)))
		Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.QuarantinedAnnotation, bad))
		Expect(d.Annotations[v1alpha1.QuarantineReasonAnnotation]).To(ContainSubstring("ImagePull"))
		Expect(d.Annotations).To(HaveKeyWithValue("kubernetes.io/change-cause", ContainSubstring("ImagePull")))
		Expect(w.kubectl(ctx, "-n", ns, "get", "replicasets", "--no-headers")).To(HaveLines(2), "the healthy one is found again")
		rolledBack := w.eventuallyUndone(ctx, ns, changeName(good, bad))
		Expect(conditionOf(rolledBack.Status.Conditions, v1alpha1.ConditionRolledBack).Message).To(ContainSubstring("busybo"))
		By("applying the same again")
		err := w.setImage(ctx, ns, "sleep", "busybo")
		Expect(err).To(MatchError(And(ContainSubstring(`admission webhook "qdeployment.kb.io" denied the request: deployment sleep: version `+bad+` was rolled back at `), ContainSubstring("ImagePull"))))
		By("releasing the fix")
		w.withoutHurry(ctx, ns, "sleep")
		Expect(w.setImage(ctx, ns, "sleep", "busybox:2")).To(Succeed())
		fixed := w.verified(ctx, ns, "sleep")
		Eventually(func(g Gomega) {
			g.Expect(w.changesIn(ctx, g, ns)).To(And(HaveLen(1), HaveKey(fixed.Name)))
		}).WithContext(ctx).Should(Succeed())
		w.restful(ctx, ns)
	})

	DescribeTable("finds a pod that hangs wherever it does", func(ctx SpecContext, reason string, change func(*appsv1.Deployment)) {
		ns := w.newNamespace(ctx, true)
		// With the default progress deadline of 10 minutes: what is slow would not be
		// found in time.
		w.create(ctx, sleeper(ns, "web").Replicas(2).With(slowly).MinReadySeconds(0).Setting("rollback", "after=8s,slow=8s"))
		good := w.verified(ctx, ns, "web")
		Eventually(func() error {
			d := w.getDeployment(ctx, Default, ns, "web")
			change(d)
			return w.api.Update(ctx, d)
		}).WithContext(ctx).Should(Succeed())
		bad := w.getDeployment(ctx, Default, ns, "web").Labels[v1alpha1.VersionLabel]
		w.rolledBackTo(ctx, ns, "web", good.Spec.Reversion)
		why := w.quarantineOf(ctx, Default, ns, "web")[bad]
		Expect(why.Cause).To(Equal(v1alpha1.ReasonNeverStarted))
		Expect(why.Reason).To(MatchRegexp(reason))
		Expect(why.Pod).To(HavePrefix("web-"))
		Eventually(func(g Gomega) {
			g.Expect(w.eventsOf(ctx, g, ns, "web")).To(ContainElement("RolledBack"))
		}).WithContext(ctx).Should(Succeed())
	},
		Entry("the image is not there", "^(ErrImagePull|ImagePullBackOff)$", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "busybo" }),
		Entry("it crashes again and again", "^(CrashLoopBackOff|Error)$", behave("crash-loop", nil)),
		Entry("its configuration is not there", "^CreateContainerConfigError$", behave("config-error", nil)),
		Entry("its container cannot be created", "^(CreateContainerError|RunContainerError)$", behave("create-error", nil)),
		Entry("an init container fails", "^(CrashLoopBackOff|Error)$", func(d *appsv1.Deployment) {
			behave("init-crash", nil)(d)
			d.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "prepare", Image: "busybox"}}
		}),
		Entry("its startup probe fails", "^(Error|CrashLoopBackOff)$", behave("startup-probe", nil)),
		Entry("it is never ready, beyond the progress deadline", "^NotReady$", func(d *appsv1.Deployment) {
			behave("never-ready", nil)(d)
			shortDeadline(d)
		}),
		Entry("no node takes it", "^Unschedulable$", func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "none"}
			shortDeadline(d)
		}),
		Entry("its volume is not there", "^ContainerCreating$", func(d *appsv1.Deployment) {
			behave("volume", nil)(d)
			shortDeadline(d)
		}),
		Entry("its container cannot be run", "^(CrashLoopBackOff|StartError|RunContainerError)$", behave("run-error", nil)),
		Entry("its liveness probe kills it before it was ready for long", "^(CrashLoopBackOff|Error)$", func(d *appsv1.Deployment) {
			behave("liveness", nil)(d)
			d.Spec.MinReadySeconds = 10
		}),
	)

	It("is not for what is slow: nodes that come late, containers that are ready late", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		for _, name := range []string{"node", "ready"} {
			w.create(ctx, sleeper(ns, name).Replicas(1).With(slowly).Setting("rollback", "2s"))
			w.verified(ctx, ns, name)
		}
		// The progress deadline is the default one, so they have ten minutes.
		Expect(w.patchDeployment(ctx, ns, "node", fmt.Sprintf(`{"spec":{"template":{"spec":{"nodeSelector":{"comes-late":%q}}}}}`, ns))).To(Succeed())
		Expect(w.patchDeployment(ctx, ns, "ready", fmt.Sprintf(`{"spec":{"template":{"metadata":{"labels":{%q:%q},"annotations":{%q:"15s"}}}}}`,
			controlplane.BehaviorLabel, controlplane.BehaviorLateReady, controlplane.ReadyAfterAnnotation))).To(Succeed())
		for name, why := range map[string]string{"node": corev1.PodReasonUnschedulable, "ready": "NotReady"} {
			Eventually(func(g Gomega) {
				c := conditionOf(w.currentChange(ctx, g, ns, name).Status.Conditions, v1alpha1.ConditionRolledBack)
				g.Expect(c.Reason).To(BeElementOf(v1alpha1.ReasonStillWaiting, v1alpha1.ReasonRecovered))
				g.Expect(c.Message).To(Or(ContainSubstring(why), ContainSubstring("are well again")))
				g.Expect(w.eventsOf(ctx, g, ns, name)).To(ContainElement(v1alpha1.ReasonStillWaiting))
			}).WithContext(ctx).Should(Succeed())
		}
		var nodes corev1.NodeList
		Expect(w.api.List(ctx, &nodes)).To(Succeed())
		// Not one that another spec has for its own pods.
		free := slices.IndexFunc(nodes.Items, func(n corev1.Node) bool { return len(n.Spec.Taints) == 0 })
		Expect(free).NotTo(Equal(-1))
		w.kubectl(ctx, "label", "node", nodes.Items[free].Name, "comes-late="+ns, "--overwrite")
		for _, name := range []string{"node", "ready"} {
			Expect(w.verified(ctx, ns, name).Spec.Release).To(BeEquivalentTo(2))
			Expect(w.quarantineOf(ctx, Default, ns, name)).To(BeEmpty())
		}
	})

	It("is for a quota that lets no pod be made, once that is for too long", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(2).With(slowly, shortDeadline).Setting("rollback", "after=2s,slow=6s"))
		good := w.verified(ctx, ns, "web").Spec.Reversion
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "two"},
			Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")}}}
		Expect(w.api.Create(ctx, quota)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(w.api.Get(ctx, client.ObjectKeyFromObject(quota), quota)).To(Succeed())
			g.Expect(quota.Status.Used).To(HaveKey(corev1.ResourcePods))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		bad := w.getDeployment(ctx, Default, ns, "web").Labels[v1alpha1.VersionLabel]
		w.rolledBackTo(ctx, ns, "web", good)
		why := w.quarantineOf(ctx, Default, ns, "web")[bad]
		Expect(why.Reason).To(Equal("FailedCreate"))
		Expect(why.Message).To(ContainSubstring("exceeded quota"))
	})

	It("is not for a release that has nothing to go back to, nor where nobody wants it", func(ctx SpecContext) {
		ns, foreign := w.newNamespace(ctx, true), w.newNamespace(ctx, false)
		w.create(ctx, sleeper(ns, "disabled").Replicas(2).With(slowly).Setting("rollback", "disabled"))
		w.create(ctx, sleeper(ns, "unhealthy").Replicas(2).With(slowly).With(afterAWhile))
		w.create(ctx, sleeper(ns, "suspended").Replicas(2).With(slowly, afterAWhile))
		w.create(ctx, sleeper(ns, "opted-out").Replicas(2).With(slowly, afterAWhile).Label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled))
		w.create(ctx, sleeper(foreign, "foreign").Replicas(2).With(slowly, afterAWhile))
		w.create(ctx, sleeper(ns, "witness").Replicas(2).With(slowly).Setting("rollback", "10s"))
		for _, name := range []string{"disabled", "unhealthy", "suspended", "witness"} {
			w.verified(ctx, ns, name)
		}
		w.rolledOut(ctx, ns, "opted-out")
		w.rolledOut(ctx, foreign, "foreign")
		w.setVerdict(ctx, w.currentChange(ctx, Default, ns, "suspended"), "unpass")
		w.eventuallyState(ctx, ns, "suspended", v1alpha1.ChangeWorkloadSuspend)
		w.create(ctx, sleeper(ns, "first").Replicas(2).With(afterAWhile).Image("busybo"))

		Expect(w.patchDeployment(ctx, ns, "suspended", `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"template":{"spec":{"containers":[{"name":"sleep","image":"busybo"}]}}}}`)).To(Succeed())
		for _, p := range w.podsOf(ctx, Default, ns, "unhealthy") {
			w.kubectl(ctx, "-n", ns, "annotate", "pod", p.Name, "kwok.altershield/unready=true")
			break // one of two
		}
		Eventually(func(g Gomega) {
			g.Expect(w.getDeployment(ctx, g, ns, "unhealthy").Status.ReadyReplicas).To(BeEquivalentTo(1))
		}).WithContext(ctx).Should(Succeed())
		for _, name := range []string{"disabled", "unhealthy", "opted-out"} {
			Expect(w.setImage(ctx, ns, name, "busybo")).To(Succeed())
		}
		Expect(w.setImage(ctx, foreign, "foreign", "busybo")).To(Succeed())
		Expect(w.setImage(ctx, ns, "witness", "busybo")).To(Succeed())

		Eventually(func(g Gomega) {
			g.Expect(w.quarantineOf(ctx, g, ns, "witness")).To(HaveLen(1))
		}).WithContext(ctx).Should(Succeed())
		for name, why := range map[string]string{
			"first":     "the history has no other successful version",
			"unhealthy": "is not healthy: 1 of 2 pods are ready",
			"suspended": "failed itself",
		} {
			Eventually(func(g Gomega) {
				c := conditionOf(w.currentChange(ctx, g, ns, name).Status.Conditions, v1alpha1.ConditionRolledBack)
				g.Expect(c.Reason).To(Equal(v1alpha1.ReasonRollbackRefused))
				g.Expect(c.Message).To(And(ContainSubstring("ImagePull"), ContainSubstring(why)))
				g.Expect(w.eventsOf(ctx, g, ns, name)).To(ContainElement(v1alpha1.ReasonRollbackRefused))
			}).WithContext(ctx).Should(Succeed())
		}
		for _, name := range []string{"first", "disabled", "unhealthy", "suspended", "opted-out"} {
			d := w.getDeployment(ctx, Default, ns, name)
			Expect(d.Spec.Template.Spec.Containers[0].Image).To(Equal("busybo"), name)
			Expect(d.Annotations).NotTo(HaveKey(v1alpha1.QuarantinedAnnotation), name)
		}
		Expect(w.getDeployment(ctx, Default, foreign, "foreign").Spec.Template.Spec.Containers[0].Image).To(Equal("busybo"))
	})

	It("takes the history where nothing is Ready, whatever the strategy", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(2).With(afterAWhile, func(d *appsv1.Deployment) {
			d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
		}))
		good := w.verified(ctx, ns, "web").Spec.Reversion
		Eventually(func(g Gomega) { g.Expect(w.revisionsOf(ctx, g, ns, "web")).To(HaveLen(1)) }).WithContext(ctx).Should(Succeed())
		Expect(w.setImage(ctx, ns, "web", "busybo")).To(Succeed())
		w.rolledBackTo(ctx, ns, "web", good)
		w.restful(ctx, ns)
	})

	It("goes back to what ran before the namespace was enrolled", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, false)
		w.create(ctx, sleeper(ns, "web").Replicas(2).With(slowly, afterAWhile))
		w.rolledOut(ctx, ns, "web")
		before := w.podUIDs(ctx, Default, ns, "web")
		w.enrolNamespace(ctx, ns)
		Expect(w.setImage(ctx, ns, "web", "busybo")).To(Succeed())
		Eventually(func(g Gomega) { g.Expect(w.quarantineOf(ctx, g, ns, "web")).To(HaveLen(1)) }).WithContext(ctx).Should(Succeed())
		w.verified(ctx, ns, "web")
		Expect(w.podUIDs(ctx, Default, ns, "web")).To(ConsistOf(before), "the pods that ran all along")
		Expect(w.getDeployment(ctx, Default, ns, "web").Spec.Template.Labels).NotTo(HaveKey(v1alpha1.VersionLabel))
	})

	It("leaves nothing in what kubectl applies next", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		apply := func(change func(*appsv1.Deployment)) (string, error) {
			GinkgoHelper()
			return w.tryKubectl(ctx, "apply", "-f", gitManifest(sleeper(ns, "web").Replicas(2).With(slowly, afterAWhile, change)))
		}
		bad := func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "busybo" }
		out, err := apply(func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, corev1.Container{Name: "old", Image: "busybox"})
		})
		Expect(err).NotTo(HaveOccurred(), out)
		good := w.verified(ctx, ns, "web")
		out, err = apply(bad)
		Expect(err).NotTo(HaveOccurred(), out)
		w.rolledBackTo(ctx, ns, "web", good.Spec.Reversion)
		By("applying the same again: it is the same")
		out, err = apply(bad)
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("was rolled back at "))
		By("applying the fix: it is what the manifest says")
		out, err = apply(func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers[0].Image = "busybox:fix"
			override("rollback", "10m")(d)
		})
		Expect(err).NotTo(HaveOccurred(), out)
		w.verified(ctx, ns, "web")
		Expect(w.getDeployment(ctx, Default, ns, "web").Spec.Template.Spec.Containers).To(HaveLen(1))
	})

	It("does not go to and fro between two versions that are both bad", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(4).With(slowly, afterAWhile))
		good := w.verified(ctx, ns, "web")
		Expect(w.setImage(ctx, ns, "web", "busybo")).To(Succeed())
		w.rolledBackTo(ctx, ns, "web", good.Spec.Reversion)
		By("releasing another one that does not come up either, while the one before does not any more")
		Expect(w.setImage(ctx, ns, "web", "busybo:2")).To(Succeed())
		w.rolledBackTo(ctx, ns, "web", good.Spec.Reversion)
		Expect(w.quarantineOf(ctx, Default, ns, "web")).To(HaveLen(2))
		Expect(w.getDeployment(ctx, Default, ns, "web").Annotations).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "5"))
		w.restful(ctx, ns)
	})

	It("is made on request, from the history, when its ReplicaSet is long gone", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(2).With(func(d *appsv1.Deployment) {
			none := int32(0)
			d.Spec.RevisionHistoryLimit = &none
			d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
		}))
		first := w.verified(ctx, ns, "web").Spec.Reversion
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		second := w.verified(ctx, ns, "web").Spec.Reversion
		Eventually(func(g Gomega) { g.Expect(w.revisionsOf(ctx, g, ns, "web")).To(HaveLen(2)) }).WithContext(ctx).Should(Succeed())
		request := func(to string) {
			GinkgoHelper()
			w.kubectl(ctx, "-n", ns, "annotate", "deployment", "web", v1alpha1.RollbackToAnnotation+"="+to)
			Eventually(func(g Gomega) {
				g.Expect(w.getDeployment(ctx, g, ns, "web").Annotations).NotTo(HaveKey(v1alpha1.RollbackToAnnotation))
			}).WithContext(ctx).Should(Succeed())
		}
		refused := func(why string) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				g.Expect(w.kubectl(ctx, "-n", ns, "get", "events", "--field-selector", "reason="+v1alpha1.ReasonRollbackRefused)).To(ContainSubstring(why))
			}).WithContext(ctx).Should(Succeed())
		}
		By("refusing what cannot be")
		request(second)
		refused("version " + second + " is the current one")
		request("nonsense")
		refused("the history has no successful version nonsense")
		Expect(w.getDeployment(ctx, Default, ns, "web").Annotations).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "2"))
		By("going back to the newest one")
		request("last-success")
		d := w.rolledBackTo(ctx, ns, "web", first)
		Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.QuarantinedAnnotation, second))
		Expect(d.Spec.Template.Labels).To(HaveKeyWithValue("test", "123"))
		By("refusing to go where it was rolled back from")
		request(second)
		refused("version " + second + " was rolled back at ")
		By("overriding the quarantine, which ends it")
		Expect(w.patchDeployment(ctx, ns, "web", `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"template":{"metadata":{"labels":{"test":"second"}}}}}`)).To(Succeed())
		Expect(w.verified(ctx, ns, "web").Spec.Reversion).To(Equal(second))
		d = w.getDeployment(ctx, Default, ns, "web")
		Expect(d.Annotations).NotTo(HaveKey(v1alpha1.QuarantinedAnnotation))
		Expect(d.Labels).NotTo(HaveKey(v1alpha1.IgnoredSuspendLabel))
		w.restful(ctx, ns)
	})

	It("is not made of a version that was overridden, whatever a manifest keeps", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(2).With(slowly, afterAWhile))
		good := w.verified(ctx, ns, "web").Spec.Reversion
		apply := func() {
			GinkgoHelper()
			Expect(w.patchContainers(ctx, ns, "web", `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"template":{"spec":{"containers":[{"name":"sleep","image":"busybo"}]}}}}`)).To(Succeed())
		}
		Expect(w.setImage(ctx, ns, "web", "busybo")).To(Succeed())
		w.rolledBackTo(ctx, ns, "web", good)
		apply()
		bad := w.getDeployment(ctx, Default, ns, "web").Labels[v1alpha1.VersionLabel]
		Eventually(func(g Gomega) {
			c := conditionOf(w.currentChange(ctx, g, ns, "web").Status.Conditions, v1alpha1.ConditionRolledBack)
			g.Expect(c.Reason).To(Equal(v1alpha1.ReasonRollbackRefused))
			g.Expect(c.Message).To(ContainSubstring("released again by an override"))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.getDeployment(ctx, Default, ns, "web").Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, bad))
	})

})

var _ = Describe("behind a proxy, a rollback", Ordered, SpecPriority(longest), func() {
	w := inWorldWithoutManager()

	It("lets a user's newer change win, and loses none", func(ctx SpecContext) {
		proxy, _ := w.behindCrasher(ctx)
		for name, test := range map[string]struct {
			change func(ctx context.Context, ns string)
			check  func(ctx context.Context, ns string, good, bad string)
		}{
			"a fix": {func(ctx context.Context, ns string) {
				w.withoutHurry(ctx, ns, "web")
				Expect(w.setImage(ctx, ns, "web", "busybox:fix")).To(Succeed())
			},
				func(ctx context.Context, ns string, _, _ string) {
					w.verified(ctx, ns, "web")
					d := w.getDeployment(ctx, Default, ns, "web")
					Expect(d.Spec.Template.Spec.Containers[0].Image).To(Equal("busybox:fix"))
					Expect(d.Annotations).NotTo(HaveKey(v1alpha1.QuarantinedAnnotation))
				}},
			"a scaling": {func(ctx context.Context, ns string) {
				w.kubectl(ctx, "-n", ns, "scale", "deployment/web", "--replicas=3")
			},
				func(ctx context.Context, ns string, good, bad string) {
					d := w.rolledBackTo(ctx, ns, "web", good)
					Expect(*d.Spec.Replicas).To(Equal(int32(3)))
					Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.QuarantinedAnnotation, bad))
				}},
			"an annotation": {func(ctx context.Context, ns string) {
				w.kubectl(ctx, "-n", ns, "annotate", "deployment", "web", "on-call=jane")
			},
				func(ctx context.Context, ns string, good, _ string) {
					Expect(w.rolledBackTo(ctx, ns, "web", good).Annotations).To(HaveKeyWithValue("on-call", "jane"))
				}},
			"a deletion": {func(ctx context.Context, ns string) { w.kubectl(ctx, "-n", ns, "delete", "deployment", "web") },
				func(ctx context.Context, ns string, _, _ string) {
					Eventually(func(g Gomega) { g.Expect(w.changesIn(ctx, g, ns)).To(BeEmpty()) }).WithContext(ctx).Should(Succeed())
				}},
			"deleted and created anew": {func(ctx context.Context, ns string) {
				w.kubectl(ctx, "-n", ns, "delete", "deployment", "web")
				w.create(ctx, sleeper(ns, "web"))
			}, func(ctx context.Context, ns string, _, _ string) {
				w.verified(ctx, ns, "web")
				Expect(w.getDeployment(ctx, Default, ns, "web").Annotations).NotTo(HaveKey(v1alpha1.QuarantinedAnnotation))
			}},
		} {
			By(name)
			ns := w.newNamespace(ctx, true)
			w.create(ctx, sleeper(ns, "web").Replicas(2).With(slowly, afterAWhile))
			good := w.verified(ctx, ns, "web")
			var once sync.Once
			fired := make(chan struct{})
			proxy.intercept(func(r *http.Request) error {
				if isRollback(r, ns) {
					once.Do(func() {
						defer GinkgoRecover()
						defer close(fired)
						test.change(ctx, ns)
					})
				}
				return nil
			})
			Expect(w.setImage(ctx, ns, "web", "busybo")).To(Succeed())
			bad := w.getDeployment(ctx, Default, ns, "web").Labels[v1alpha1.VersionLabel]
			Eventually(fired).WithContext(ctx).Should(BeClosed())
			test.check(ctx, ns, good.Spec.Reversion, bad)
			proxy.intercept(nil)
		}
	})
})

var _ = Describe("a rollback with AlterShield Server", Ordered, SpecPriority(longest), func() {
	w, sim, managers := inServerWorld(2)

	endedAs := func(ctx context.Context, change *v1alpha1.ChangeWorkload, how altershield.FinishState) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			ends := journalOf(sim(), change).Ends(change.Status.OrderID)
			g.Expect(ends).To(HaveLen(1))
			var end altershield.EndOrderRequest
			g.Expect(ends[0].Decode(&end)).To(Succeed())
			g.Expect(end.FinishState).To(Equal(how))
		}).WithContext(ctx).Should(Succeed())
	}

	It("ends the order, and verifies what was restored under an order of its own", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(2).With(slowly, afterAWhile))
		first := w.verified(ctx, ns, "web")
		Expect(w.setImage(ctx, ns, "web", "busybo")).To(Succeed())
		version := w.getDeployment(ctx, Default, ns, "web").Labels[v1alpha1.VersionLabel]
		w.rolledBackTo(ctx, ns, "web", first.Spec.Reversion)
		bad := w.changesIn(ctx, Default, ns)[changeName(first, version)]
		endedAs(ctx, bad, altershield.FinishRollback)
		restored := w.orderEnded(ctx, ns, "web")
		Expect(restored.Status.OrderID).NotTo(Equal(first.Status.OrderID))
		endedAs(ctx, restored, altershield.FinishSuccess)
		Expect(messagesOf(w.batchesOf(ctx, Default, restored))).To(HaveEach("PostFinish"))
	})

	It("heals what the server fails", func(ctx SpecContext) {
		w.setConfig(ctx, "selfhealing", true, "")
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(3).With(slowly))
		good := w.verified(ctx, ns, "web").Spec.Reversion
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost}, Times: 1,
			Verdict: altershield.VerdictFail, Rules: []altershield.Rule{{Name: "error rate", Msg: "5xx above 1 %", Verdict: altershield.VerdictFail}}})
		Expect(w.patchTemplate(ctx, ns, "web", "bad")).To(Succeed())
		bad := w.getDeployment(ctx, Default, ns, "web").Labels[v1alpha1.VersionLabel]
		w.rolledBackTo(ctx, ns, "web", good)
		why := w.quarantineOf(ctx, Default, ns, "web")[bad]
		Expect([]string{why.Cause, why.Reason}).To(Equal([]string{v1alpha1.ReasonVerificationFailed, "fail"}))
		Expect(why.Message).To(ContainSubstring("5xx above 1 %"))
		for _, change := range w.changesIn(ctx, Default, ns) {
			if change.Spec.Reversion == bad {
				endedAs(ctx, change, altershield.FinishRollback)
			}
		}
	})

	It("is made once for each request, whichever replica gets it", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web"))
		var versions []string
		for _, value := range []string{"", "second", "third"} {
			if value != "" {
				Expect(w.patchTemplate(ctx, ns, "web", value)).To(Succeed())
			}
			versions = append(versions, w.verified(ctx, ns, "web").Spec.Reversion)
		}
		Eventually(func(g Gomega) { g.Expect(w.revisionsOf(ctx, g, ns, "web")).To(HaveLen(3)) }).WithContext(ctx).Should(Succeed())
		put := func(replica int, body string, headers http.Header) (int, string) {
			GinkgoHelper()
			return request(ctx, http.MethodPut, managers()[replica].CallbackAddress()+"/openapi/altershield/deployment/rollback", []byte(body), headers)
		}
		of := func(name, version string) string {
			return fmt.Sprintf(`{"namespace":%q,"deploymentName":%q,"version":%q}`, ns, name, version)
		}
		sign := func(body string) http.Header { return signature(serverToken, []byte(body), time.Now()) }
		for _, test := range []struct {
			body string
			want int
			why  string
		}{
			{of("none", ""), http.StatusNotFound, "no deployment " + ns + "/none is under defense"},
			{of("web", versions[2]), http.StatusConflict, "is the current one"},
			{of("web", "nonsense"), http.StatusConflict, "the history has no successful version nonsense"},
		} {
			status, body := put(0, test.body, sign(test.body))
			Expect(status).To(Equal(test.want), body)
			Expect(body).To(ContainSubstring(test.why))
		}
		status, _ := put(0, of("web", ""), nil)
		Expect(status).To(Equal(http.StatusUnauthorized))

		headers := sign(of("web", ""))
		status, body := put(0, of("web", ""), headers)
		Expect(status).To(Equal(http.StatusAccepted), body)
		Expect(body).To(ContainSubstring("is rolled back to version " + versions[1]))
		w.rolledBackTo(ctx, ns, "web", versions[1])
		By("sending the same bytes to the other replica")
		status, body = put(1, of("web", ""), headers)
		Expect(status).To(Equal(http.StatusConflict), body)
		Expect(body).To(ContainSubstring("was accepted already"))
		By("asking anew")
		Eventually(func(g Gomega) {
			status, body = put(1, of("web", versions[0]), sign(of("web", versions[0])))
			g.Expect(status).To(Equal(http.StatusAccepted), body)
		}).WithContext(ctx).Should(Succeed())
		w.rolledBackTo(ctx, ns, "web", versions[0])
		Expect(w.quarantineOf(ctx, Default, ns, "web")).To(And(HaveLen(2), HaveKey(versions[1]), HaveKey(versions[2])))
	})
})

// rollbackStory is a release that does not come up, and goes.
func (w *world) rollbackStory(ctx context.Context, ns string) {
	GinkgoHelper()
	w.create(ctx, sleeper(ns, "web").Replicas(2).With(slowly, afterAWhile))
	good := w.verified(ctx, ns, "web")
	Expect(w.setImage(ctx, ns, "web", "busybo")).To(Succeed())
	Eventually(func(g Gomega) {
		d := w.getDeployment(ctx, g, ns, "web")
		g.Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "3"))
		g.Expect(d.Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, good.Spec.Reversion))
		quarantine := w.quarantineOf(ctx, g, ns, "web")
		g.Expect(quarantine).To(HaveLen(1))
		changes := w.changesIn(ctx, g, ns)
		g.Expect(changes).To(HaveLen(2))
		for bad := range quarantine {
			g.Expect(changes[changeName(good, bad)].Status.Status).To(Equal(v1alpha1.ChangeWorkloadRollback))
		}
		g.Expect(changes[good.Name].Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		g.Expect(changes[good.Name].Status.ObservedRelease).To(Equal(int64(3)))
		g.Expect(d.Labels).To(HaveKey(v1alpha1.DefenseStatusLabel))
	}).WithContext(ctx).Should(Succeed())
	w.verified(ctx, ns, "web")
}

// changeName is the name of the release of another version.
func changeName(of *v1alpha1.ChangeWorkload, version string) string {
	return strings.Replace(of.Name, of.Spec.Reversion, version, 1)
}

// failFirst fails the first pod of a release that is verified.
func (w *world) failFirst(ctx context.Context, ns, name string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		change = w.currentChange(ctx, g, ns, name)
		g.Expect(change.Status.PassCount).NotTo(BeZero())
	}).WithContext(ctx).Should(Succeed())
	w.setVerdict(ctx, change, "unpass")
	return change
}

// quarantined is what a workload says of a version that was rolled back.
type quarantined struct {
	Time                                time.Time
	Pod, Container                      string
	Cause, Reason, Message, To, Version string
	Release                             int64
}

// quarantineOf is what a workload says of the versions that were rolled back.
func (w *world) quarantineOf(ctx context.Context, g Gomega, ns, name string) map[string]quarantined {
	GinkgoHelper()
	annotations := w.getDeployment(ctx, g, ns, name).Annotations
	found := map[string]quarantined{}
	if reasons := annotations[v1alpha1.QuarantineReasonAnnotation]; reasons != "" {
		g.Expect(json.Unmarshal([]byte(reasons), &found)).To(Succeed())
	}
	var versions []string
	for version := range found {
		versions = append(versions, version)
	}
	if listed := annotations[v1alpha1.QuarantinedAnnotation]; listed != "" {
		g.Expect(strings.Split(listed, ",")).To(ConsistOf(versions))
	}
	return found
}

// isRollback says that a request sets the template of a Deployment back.
func isRollback(r *http.Request, ns string) bool {
	if r.Method != http.MethodPatch || !strings.Contains(r.URL.Path, "/namespaces/"+ns+"/deployments/") {
		return false
	}
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return err == nil && bytes.Contains(body, []byte("/spec/template"))
}
