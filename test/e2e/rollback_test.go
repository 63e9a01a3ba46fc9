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
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
)

// afterAWhile shortens the threshold of rollbacks for one workload.
func afterAWhile(d *appsv1.Deployment) {
	annotate(d, v1alpha1.SettingAnnotationPrefix+"rollback", "3s")
}

func annotate(d *appsv1.Deployment, key, value string) {
	if d.Annotations == nil {
		d.Annotations = map[string]string{}
	}
	d.Annotations[key] = value
}

// setImage releases another image.
func setImage(ctx context.Context, ns, name, image string) error {
	return patchDeployment(ctx, ns, name, fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"sleep","image":%q,"command":["/bin/sleep","infinity"]}]}}}}`, image))
}

// rolledBackTo waits until a Deployment is back at a version and that is
// verified.
func rolledBackTo(ctx context.Context, ns, name, version string) *appsv1.Deployment {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(getDeployment(ctx, g, ns, name).Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, version))
	}).WithContext(ctx).Should(Succeed())
	verified(ctx, ns, name)
	return getDeployment(ctx, Default, ns, name)
}

var _ = Describe("a rollback", func() {
	It("comes after 2 minutes where nothing else is said", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "sleep", 5)
		good := verified(ctx, ns, "sleep")
		Expect(setImage(ctx, ns, "sleep", "busybo")).To(Succeed())
		bad := getDeployment(ctx, Default, ns, "sleep").Labels[v1alpha1.VersionLabel]
		Eventually(func(g Gomega) {
			g.Expect(getDeployment(ctx, g, ns, "sleep").Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, good.Spec.Reversion))
		}).WithContext(ctx).WithTimeout(3 * time.Minute).Should(Succeed())
		released := changesIn(ctx, Default, ns)[changeName(good, bad)].CreationTimestamp.Time
		Expect(quarantineOf(ctx, Default, ns, "sleep")[bad].Time).To(BeTemporally("~", released.Add(2*time.Minute), 5*time.Second))
		verified(ctx, ns, "sleep")
	})

	It("undoes a release whose pods do not come up, once, and keeps it from coming back", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "sleep", 5, afterAWhile)
		good := verified(ctx, ns, "sleep")
		Expect(setImage(ctx, ns, "sleep", "busybo")).To(Succeed())
		bad := getDeployment(ctx, Default, ns, "sleep").Labels[v1alpha1.VersionLabel]
		d := rolledBackTo(ctx, ns, "sleep", good.Spec.Reversion)
		Expect(*d.Spec.Replicas).To(Equal(int32(5)))
		Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.QuarantinedAnnotation, bad))
		Expect(d.Annotations[v1alpha1.QuarantineReasonAnnotation]).To(ContainSubstring("ImagePull"))
		Expect(d.Annotations).To(HaveKeyWithValue("kubernetes.io/change-cause", ContainSubstring("ImagePull")))
		Expect(kubectl(ctx, "-n", ns, "get", "replicasets", "--no-headers")).To(HaveLines(2), "the healthy one is found again")
		rolledBack := changesIn(ctx, Default, ns)[changeName(good, bad)]
		Expect(rolledBack.Status.Status).To(Equal(v1alpha1.ChangeWorkloadRollback))
		Expect(conditionOf(rolledBack.Status.Conditions, v1alpha1.ConditionRolledBack).Message).To(ContainSubstring("busybo"))
		By("applying the same again")
		err := setImage(ctx, ns, "sleep", "busybo")
		Expect(err).To(MatchError(And(ContainSubstring(`admission webhook "qdeployment.kb.io" denied the request: deployment sleep: version `+bad+` was rolled back at `), ContainSubstring("ImagePull"))))
		By("releasing the fix")
		Expect(setImage(ctx, ns, "sleep", "busybox:2")).To(Succeed())
		fixed := verified(ctx, ns, "sleep")
		Eventually(func(g Gomega) {
			g.Expect(changesIn(ctx, g, ns)).To(And(HaveLen(1), HaveKey(fixed.Name)))
		}).WithContext(ctx).Should(Succeed())
		restful(ctx, ns)
	})

	DescribeTable("finds a pod that hangs wherever it does", func(ctx SpecContext, reason string, change func(*appsv1.Deployment)) {
		ns := newNamespace(ctx, true)
		// With the default progress deadline of 10 minutes: what merely is not ready
		// would not be found in time.
		createDeployment(ctx, ns, "web", 2, slowly, afterAWhile, func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 0 })
		good := verified(ctx, ns, "web")
		Eventually(func() error {
			d := getDeployment(ctx, Default, ns, "web")
			change(d)
			return api.Update(ctx, d)
		}).WithContext(ctx).Should(Succeed())
		bad := getDeployment(ctx, Default, ns, "web").Labels[v1alpha1.VersionLabel]
		rolledBackTo(ctx, ns, "web", good.Spec.Reversion)
		why := quarantineOf(ctx, Default, ns, "web")[bad]
		Expect(why.Cause).To(Equal(v1alpha1.ReasonNeverStarted))
		Expect(why.Reason).To(MatchRegexp(reason))
		Expect(why.Pod).To(HavePrefix("web-"))
		Expect(eventsOf(ctx, Default, ns, "web")).To(ContainElement("RolledBack"))
	},
		Entry("the image is not there", "^(ErrImagePull|ImagePullBackOff)$", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "busybo" }),
		Entry("it crashes again and again", "^(CrashLoopBackOff|Error)$", behaves("crash-loop")),
		Entry("its configuration is not there", "^CreateContainerConfigError$", behaves("config-error")),
		Entry("its container cannot be created", "^(CreateContainerError|RunContainerError)$", behaves("create-error")),
		Entry("an init container fails", "^(CrashLoopBackOff|Error)$", func(d *appsv1.Deployment) {
			behaves("init-crash")(d)
			d.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "prepare", Image: "busybox"}}
		}),
		Entry("its startup probe fails", "^(Error|CrashLoopBackOff)$", behaves("startup-probe")),
		Entry("it is never ready, beyond the progress deadline", "^NotReady$", func(d *appsv1.Deployment) {
			behaves("never-ready")(d)
			deadline := int32(4)
			d.Spec.ProgressDeadlineSeconds = &deadline
		}),
		Entry("no node takes it", "^Unschedulable$", func(d *appsv1.Deployment) { d.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "none"} }),
		Entry("its volume is not there", "^ContainerCreating$", behaves("volume")),
		Entry("its container cannot be run", "^(CrashLoopBackOff|StartError|RunContainerError)$", behaves("run-error")),
		Entry("its liveness probe kills it before it was ready for long", "^(CrashLoopBackOff|Error)$", func(d *appsv1.Deployment) {
			behaves("liveness")(d)
			d.Spec.MinReadySeconds = 10
		}),
	)

	It("is not for a release that has nothing to go back to, nor where nobody wants it", func(ctx SpecContext) {
		ns, foreign := newNamespace(ctx, true), newNamespace(ctx, false)
		createDeployment(ctx, ns, "recreate", 2, afterAWhile, func(d *appsv1.Deployment) {
			d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
		})
		createDeployment(ctx, ns, "disabled", 2, slowly, func(d *appsv1.Deployment) { annotate(d, v1alpha1.SettingAnnotationPrefix+"rollback", "disabled") })
		createDeployment(ctx, ns, "unhealthy", 2, slowly, func(d *appsv1.Deployment) { annotate(d, v1alpha1.SettingAnnotationPrefix+"rollback", "8s") })
		createDeployment(ctx, ns, "suspended", 2, slowly, afterAWhile)
		createDeployment(ctx, ns, "opted-out", 2, slowly, afterAWhile, func(d *appsv1.Deployment) { d.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled })
		createDeployment(ctx, foreign, "foreign", 2, slowly, afterAWhile)
		createDeployment(ctx, ns, "witness", 2, slowly, func(d *appsv1.Deployment) { annotate(d, v1alpha1.SettingAnnotationPrefix+"rollback", "10s") })
		for _, name := range []string{"recreate", "disabled", "unhealthy", "suspended", "witness"} {
			verified(ctx, ns, name)
		}
		rolledOut(ctx, ns, "opted-out")
		rolledOut(ctx, foreign, "foreign")
		setVerdict(ctx, currentChange(ctx, Default, ns, "suspended"), "unpass")
		eventuallyState(ctx, ns, "suspended", v1alpha1.ChangeWorkloadSuspend)
		createDeployment(ctx, ns, "first", 2, afterAWhile, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "busybo" })

		Expect(patchDeployment(ctx, ns, "suspended", `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"template":{"spec":{"containers":[{"name":"sleep","image":"busybo"}]}}}}`)).To(Succeed())
		for _, name := range []string{"recreate", "disabled", "unhealthy", "opted-out"} {
			Expect(setImage(ctx, ns, name, "busybo")).To(Succeed())
		}
		Expect(setImage(ctx, foreign, "foreign", "busybo")).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(getDeployment(ctx, g, ns, "unhealthy").Status.UpdatedReplicas).To(Equal(int32(1)))
		}).WithContext(ctx).Should(Succeed())
		kubectl(ctx, "-n", ns, "annotate", "pods", "-l", "app=unhealthy", "kwok.altershield/unready=true")
		Expect(setImage(ctx, ns, "witness", "busybo")).To(Succeed())

		Eventually(func(g Gomega) {
			g.Expect(quarantineOf(ctx, g, ns, "witness")).To(HaveLen(1))
		}).WithContext(ctx).Should(Succeed())
		for name, why := range map[string]string{
			"recreate":  "the strategy is not RollingUpdate",
			"first":     "no pods of an older version run",
			"unhealthy": "is not healthy: 0 of 2 pods are available",
			"suspended": "failed itself",
		} {
			Eventually(func(g Gomega) {
				c := conditionOf(currentChange(ctx, g, ns, name).Status.Conditions, v1alpha1.ConditionRolledBack)
				g.Expect(c.Reason).To(Equal(v1alpha1.ReasonRollbackRefused))
				g.Expect(c.Message).To(And(ContainSubstring("ImagePull"), ContainSubstring(why)))
				g.Expect(eventsOf(ctx, g, ns, name)).To(ContainElement(v1alpha1.ReasonRollbackRefused))
			}).WithContext(ctx).Should(Succeed())
		}
		for _, name := range []string{"recreate", "first", "disabled", "unhealthy", "suspended", "opted-out"} {
			d := getDeployment(ctx, Default, ns, name)
			Expect(d.Spec.Template.Spec.Containers[0].Image).To(Equal("busybo"), name)
			Expect(d.Annotations).NotTo(HaveKey(v1alpha1.QuarantinedAnnotation), name)
		}
		Expect(getDeployment(ctx, Default, foreign, "foreign").Spec.Template.Spec.Containers[0].Image).To(Equal("busybo"))
	})

	It("goes back to what ran before the namespace was enrolled", func(ctx SpecContext) {
		ns := newNamespace(ctx, false)
		createDeployment(ctx, ns, "web", 2, slowly, afterAWhile)
		rolledOut(ctx, ns, "web")
		before := podUIDs(ctx, Default, ns, "web")
		enrolNamespace(ctx, ns)
		Expect(setImage(ctx, ns, "web", "busybo")).To(Succeed())
		Eventually(func(g Gomega) { g.Expect(quarantineOf(ctx, g, ns, "web")).To(HaveLen(1)) }).WithContext(ctx).Should(Succeed())
		verified(ctx, ns, "web")
		Expect(podUIDs(ctx, Default, ns, "web")).To(ConsistOf(before), "the pods that ran all along")
		Expect(getDeployment(ctx, Default, ns, "web").Spec.Template.Labels).NotTo(HaveKey(v1alpha1.VersionLabel))
	})

	It("leaves nothing in what kubectl applies next", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		apply := func(change func(*appsv1.Deployment)) (string, error) {
			GinkgoHelper()
			d := makeDeployment(ns, "web", 2, slowly, afterAWhile, change)
			d.TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
			manifest, err := json.Marshal(d)
			Expect(err).NotTo(HaveOccurred())
			file := filepath.Join(GinkgoT().TempDir(), "web.json")
			Expect(os.WriteFile(file, manifest, 0o600)).To(Succeed())
			return tryKubectl(ctx, "apply", "-f", file)
		}
		bad := func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "busybo" }
		out, err := apply(func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, corev1.Container{Name: "old", Image: "busybox"})
		})
		Expect(err).NotTo(HaveOccurred(), out)
		good := verified(ctx, ns, "web")
		out, err = apply(bad)
		Expect(err).NotTo(HaveOccurred(), out)
		rolledBackTo(ctx, ns, "web", good.Spec.Reversion)
		By("applying the same again: it is the same")
		out, err = apply(bad)
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("was rolled back at "))
		By("applying the fix: it is what the manifest says")
		out, err = apply(func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "busybox:fix" })
		Expect(err).NotTo(HaveOccurred(), out)
		verified(ctx, ns, "web")
		Expect(getDeployment(ctx, Default, ns, "web").Spec.Template.Spec.Containers).To(HaveLen(1))
	})

	It("does not go to and fro between two versions that are both bad", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 4, slowly, afterAWhile)
		good := verified(ctx, ns, "web")
		Expect(setImage(ctx, ns, "web", "busybo")).To(Succeed())
		rolledBackTo(ctx, ns, "web", good.Spec.Reversion)
		By("releasing another one that does not come up either, while the one before does not any more")
		Expect(setImage(ctx, ns, "web", "busybo:2")).To(Succeed())
		rolledBackTo(ctx, ns, "web", good.Spec.Reversion)
		Expect(quarantineOf(ctx, Default, ns, "web")).To(HaveLen(2))
		Expect(getDeployment(ctx, Default, ns, "web").Annotations).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "5"))
		restful(ctx, ns)
	})

	It("lets a user's newer change win, and loses none", func(ctx SpecContext) {
		proxy, _ := behindCrasher(ctx)
		for name, test := range map[string]struct {
			change func(ctx context.Context, ns string)
			check  func(ctx context.Context, ns string, good, bad string)
		}{
			"a fix": {func(ctx context.Context, ns string) { Expect(setImage(ctx, ns, "web", "busybox:fix")).To(Succeed()) },
				func(ctx context.Context, ns string, _, _ string) {
					verified(ctx, ns, "web")
					d := getDeployment(ctx, Default, ns, "web")
					Expect(d.Spec.Template.Spec.Containers[0].Image).To(Equal("busybox:fix"))
					Expect(d.Annotations).NotTo(HaveKey(v1alpha1.QuarantinedAnnotation))
				}},
			"a scaling": {func(ctx context.Context, ns string) {
				kubectl(ctx, "-n", ns, "scale", "deployment/web", "--replicas=3")
			},
				func(ctx context.Context, ns string, good, bad string) {
					d := rolledBackTo(ctx, ns, "web", good)
					Expect(*d.Spec.Replicas).To(Equal(int32(3)))
					Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.QuarantinedAnnotation, bad))
				}},
			"an annotation": {func(ctx context.Context, ns string) {
				kubectl(ctx, "-n", ns, "annotate", "deployment", "web", "on-call=jane")
			},
				func(ctx context.Context, ns string, good, _ string) {
					Expect(rolledBackTo(ctx, ns, "web", good).Annotations).To(HaveKeyWithValue("on-call", "jane"))
				}},
			"a deletion": {func(ctx context.Context, ns string) { kubectl(ctx, "-n", ns, "delete", "deployment", "web") },
				func(ctx context.Context, ns string, _, _ string) {
					Eventually(func(g Gomega) { g.Expect(changesIn(ctx, g, ns)).To(BeEmpty()) }).WithContext(ctx).Should(Succeed())
				}},
			"deleted and created anew": {func(ctx context.Context, ns string) {
				kubectl(ctx, "-n", ns, "delete", "deployment", "web")
				createDeployment(ctx, ns, "web", 1)
			}, func(ctx context.Context, ns string, _, _ string) {
				verified(ctx, ns, "web")
				Expect(getDeployment(ctx, Default, ns, "web").Annotations).NotTo(HaveKey(v1alpha1.QuarantinedAnnotation))
			}},
		} {
			By(name)
			ns := newNamespace(ctx, true)
			createDeployment(ctx, ns, "web", 2, slowly, afterAWhile)
			good := verified(ctx, ns, "web")
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
			Expect(setImage(ctx, ns, "web", "busybo")).To(Succeed())
			bad := getDeployment(ctx, Default, ns, "web").Labels[v1alpha1.VersionLabel]
			Eventually(fired).WithContext(ctx).Should(BeClosed())
			test.check(ctx, ns, good.Spec.Reversion, bad)
			proxy.intercept(nil)
		}
	})

	It("is made on request, from the history, when its ReplicaSet is long gone", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 2, func(d *appsv1.Deployment) {
			none := int32(0)
			d.Spec.RevisionHistoryLimit = &none
			d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
		})
		first := verified(ctx, ns, "web").Spec.Reversion
		Expect(patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		second := verified(ctx, ns, "web").Spec.Reversion
		Eventually(func(g Gomega) { g.Expect(revisionsOf(ctx, g, ns, "web")).To(HaveLen(2)) }).WithContext(ctx).Should(Succeed())
		request := func(to string) {
			GinkgoHelper()
			kubectl(ctx, "-n", ns, "annotate", "deployment", "web", v1alpha1.RollbackToAnnotation+"="+to)
			Eventually(func(g Gomega) {
				g.Expect(getDeployment(ctx, g, ns, "web").Annotations).NotTo(HaveKey(v1alpha1.RollbackToAnnotation))
			}).WithContext(ctx).Should(Succeed())
		}
		refused := func(why string) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				g.Expect(kubectl(ctx, "-n", ns, "get", "events", "--field-selector", "reason="+v1alpha1.ReasonRollbackRefused)).To(ContainSubstring(why))
			}).WithContext(ctx).Should(Succeed())
		}
		By("refusing what cannot be")
		request(second)
		refused("version " + second + " is the current one")
		request("nonsense")
		refused("no successful version nonsense is remembered")
		Expect(getDeployment(ctx, Default, ns, "web").Annotations).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "2"))
		By("going back to the newest one")
		request("last-success")
		d := rolledBackTo(ctx, ns, "web", first)
		Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.QuarantinedAnnotation, second))
		Expect(d.Spec.Template.Labels).To(HaveKeyWithValue("test", "123"))
		By("refusing to go where it was rolled back from")
		request(second)
		refused("version " + second + " was rolled back at ")
		By("overriding the quarantine, which ends it")
		Expect(patchDeployment(ctx, ns, "web", `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"template":{"metadata":{"labels":{"test":"second"}}}}}`)).To(Succeed())
		Expect(verified(ctx, ns, "web").Spec.Reversion).To(Equal(second))
		d = getDeployment(ctx, Default, ns, "web")
		Expect(d.Annotations).NotTo(HaveKey(v1alpha1.QuarantinedAnnotation))
		Expect(d.Labels).NotTo(HaveKey(v1alpha1.IgnoredSuspendLabel))
		restful(ctx, ns)
	})

	It("heals a release that failed its verification, in flight or after its success", func(ctx SpecContext) {
		setConfig(ctx, "selfhealing", true, "")
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 4, slowly)
		good := verified(ctx, ns, "web").Spec.Reversion
		By("failing in flight: halted, blocked, and back")
		Expect(patchTemplate(ctx, ns, "web", "bad")).To(Succeed())
		bad := failFirst(ctx, ns, "web")
		d := rolledBackTo(ctx, ns, "web", good)
		Expect(d.Spec.Paused).To(BeFalse())
		Expect(d.Annotations).NotTo(HaveKey(v1alpha1.HaltedAnnotation))
		Eventually(func(g Gomega) {
			g.Expect(getDeployment(ctx, g, ns, "web").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		}).WithContext(ctx).Should(Succeed())
		why := quarantineOf(ctx, Default, ns, "web")[bad.Spec.Reversion]
		Expect([]string{why.Cause, why.Reason, why.Message}).To(Equal([]string{v1alpha1.ReasonVerificationFailed, "unpass", "find error"}))
		Expect(changesIn(ctx, Default, ns)[bad.Name].Status.Status).To(Equal(v1alpha1.ChangeWorkloadRollback))
		By("failing after its success")
		Expect(patchTemplate(ctx, ns, "web", "late")).To(Succeed())
		late := verified(ctx, ns, "web")
		setVerdict(ctx, late, "unpass")
		rolledBackTo(ctx, ns, "web", good)
		Expect(changesIn(ctx, Default, ns)[late.Name].Status.Status).To(Equal(v1alpha1.ChangeWorkloadRollback))
		restful(ctx, ns)
		By("failing with nothing to go back to")
		createDeployment(ctx, ns, "new", 1)
		change := block(ctx, ns, "new")
		Eventually(func(g Gomega) {
			g.Expect(conditionOf(changesIn(ctx, g, ns)[change.Name].Status.Conditions, v1alpha1.ConditionRolledBack).Reason).To(Equal(v1alpha1.ReasonRollbackRefused))
		}).WithContext(ctx).Should(Succeed())
	})

	It("is not made of a version that was overridden, whatever a manifest keeps", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 2, slowly, afterAWhile)
		good := verified(ctx, ns, "web").Spec.Reversion
		apply := func() {
			GinkgoHelper()
			Expect(patchDeployment(ctx, ns, "web", `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"template":{"spec":{"containers":[{"name":"sleep","image":"busybo","command":["/bin/sleep","infinity"]}]}}}}`)).To(Succeed())
		}
		Expect(setImage(ctx, ns, "web", "busybo")).To(Succeed())
		rolledBackTo(ctx, ns, "web", good)
		apply()
		bad := getDeployment(ctx, Default, ns, "web").Labels[v1alpha1.VersionLabel]
		Eventually(func(g Gomega) {
			c := conditionOf(currentChange(ctx, g, ns, "web").Status.Conditions, v1alpha1.ConditionRolledBack)
			g.Expect(c.Reason).To(Equal(v1alpha1.ReasonRollbackRefused))
			g.Expect(c.Message).To(ContainSubstring("released again by an override"))
		}).WithContext(ctx).Should(Succeed())
		Expect(getDeployment(ctx, Default, ns, "web").Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, bad))
	})

	It("holds against a GitOps tool that applies the bad version all the time", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 4, slowly, afterAWhile)
		good := verified(ctx, ns, "web").Spec.Reversion
		apply := func() error { return setImage(ctx, ns, "web", "busybo") }
		Expect(apply()).To(Succeed())
		bad := getDeployment(ctx, Default, ns, "web").Labels[v1alpha1.VersionLabel]
		Eventually(func(g Gomega) { g.Expect(quarantineOf(ctx, g, ns, "web")).To(HaveKey(bad)) }).WithContext(ctx).Should(Succeed())
		Consistently(func(g Gomega) {
			g.Expect(apply()).To(MatchError(ContainSubstring("version " + bad + " was rolled back")))
			g.Expect(getDeployment(ctx, g, ns, "web").Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, good))
		}).WithContext(ctx).Should(Succeed())
		verified(ctx, ns, "web")

		By("getting in while the operator is down: told, and left alone")
		withoutManager(ctx, func() { Expect(apply()).To(Succeed()) })
		Eventually(func(g Gomega) {
			c := conditionOf(currentChange(ctx, g, ns, "web").Status.Conditions, v1alpha1.ConditionRolledBack)
			g.Expect(c.Reason).To(Equal(v1alpha1.ReasonRollbackRefused))
			g.Expect(c.Message).To(ContainSubstring("version " + bad + " was rolled back"))
			g.Expect(eventsOf(ctx, g, ns, "web")).To(ContainElement(v1alpha1.ReasonRollbackRefused))
		}).WithContext(ctx).Should(Succeed())
		Expect(getDeployment(ctx, Default, ns, "web").Spec.Template.Spec.Containers[0].Image).To(Equal("busybo"))
		By("going back on request all the same")
		kubectl(ctx, "-n", ns, "annotate", "deployment", "web", v1alpha1.RollbackToAnnotation+"=last-success")
		rolledBackTo(ctx, ns, "web", good)
	})
})

var _ = Describe("a crash around a rollback", func() {
	It("after any write makes it exactly once", func(ctx SpecContext) {
		proxy, crashing := behindCrasher(ctx)
		Expect(len(proxy.dieAfterEach(ctx, crashing, rollbackStory))).To(BeNumerically(">", 10))
	}, SpecTimeout(15*time.Minute))

	It("right before its write makes it exactly once", func(ctx SpecContext) {
		proxy, crashing := behindCrasher(ctx)
		ns := newNamespace(ctx, true)
		dead := make(chan struct{})
		var once sync.Once
		proxy.intercept(func(r *http.Request) (err error) {
			if isRollback(r, ns) {
				once.Do(func() {
					defer GinkgoRecover()
					err = errors.New("the manager is dead")
					Expect(crashing.Kill()).To(Succeed())
					close(dead)
				})
			}
			return err
		})
		go func() {
			defer GinkgoRecover()
			<-dead
			Expect(crashing.Start(ctx)).To(Succeed())
		}()
		rollbackStory(ctx, ns)
		Expect(dead).To(BeClosed())
	})
})

var _ = Describe("a rollback with AlterShield Server", Ordered, func() {
	sim, managers := withServer(2)

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
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 2, slowly, afterAWhile)
		first := verified(ctx, ns, "web")
		Expect(setImage(ctx, ns, "web", "busybo")).To(Succeed())
		version := getDeployment(ctx, Default, ns, "web").Labels[v1alpha1.VersionLabel]
		rolledBackTo(ctx, ns, "web", first.Spec.Reversion)
		bad := changesIn(ctx, Default, ns)[changeName(first, version)]
		endedAs(ctx, bad, altershield.FinishRollback)
		restored := orderEnded(ctx, ns, "web")
		Expect(restored.Status.OrderID).NotTo(Equal(first.Status.OrderID))
		endedAs(ctx, restored, altershield.FinishSuccess)
		Expect(messagesOf(batchesOf(ctx, Default, restored))).To(HaveEach("PostFinish"))
	})

	It("heals what the server fails", func(ctx SpecContext) {
		setConfig(ctx, "selfhealing", true, "")
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 3, slowly)
		good := verified(ctx, ns, "web").Spec.Reversion
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost}, Times: 1,
			Verdict: altershield.VerdictFail, Rules: []altershield.Rule{{Name: "error rate", Msg: "5xx above 1 %", Verdict: altershield.VerdictFail}}})
		Expect(patchTemplate(ctx, ns, "web", "bad")).To(Succeed())
		bad := getDeployment(ctx, Default, ns, "web").Labels[v1alpha1.VersionLabel]
		rolledBackTo(ctx, ns, "web", good)
		why := quarantineOf(ctx, Default, ns, "web")[bad]
		Expect([]string{why.Cause, why.Reason}).To(Equal([]string{v1alpha1.ReasonVerificationFailed, "fail"}))
		Expect(why.Message).To(ContainSubstring("5xx above 1 %"))
		for _, change := range changesIn(ctx, Default, ns) {
			if change.Spec.Reversion == bad {
				endedAs(ctx, change, altershield.FinishRollback)
			}
		}
	})

	It("is made once for each request, whichever replica gets it", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 1)
		var versions []string
		for _, value := range []string{"", "second", "third"} {
			if value != "" {
				Expect(patchTemplate(ctx, ns, "web", value)).To(Succeed())
			}
			versions = append(versions, verified(ctx, ns, "web").Spec.Reversion)
		}
		Eventually(func(g Gomega) { g.Expect(revisionsOf(ctx, g, ns, "web")).To(HaveLen(3)) }).WithContext(ctx).Should(Succeed())
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
			{of("web", "nonsense"), http.StatusConflict, "no successful version nonsense is remembered"},
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
		rolledBackTo(ctx, ns, "web", versions[1])
		By("sending the same bytes to the other replica")
		status, body = put(1, of("web", ""), headers)
		Expect(status).To(Equal(http.StatusConflict), body)
		Expect(body).To(ContainSubstring("was taken already"))
		By("asking anew")
		Eventually(func(g Gomega) {
			status, body = put(1, of("web", versions[0]), sign(of("web", versions[0])))
			g.Expect(status).To(Equal(http.StatusAccepted), body)
		}).WithContext(ctx).Should(Succeed())
		rolledBackTo(ctx, ns, "web", versions[0])
		Expect(quarantineOf(ctx, Default, ns, "web")).To(And(HaveLen(2), HaveKey(versions[1]), HaveKey(versions[2])))
	})
})

// rollbackStory is a release that does not come up, and goes.
func rollbackStory(ctx context.Context, ns string) {
	GinkgoHelper()
	createDeployment(ctx, ns, "web", 2, slowly, afterAWhile)
	good := verified(ctx, ns, "web")
	Expect(setImage(ctx, ns, "web", "busybo")).To(Succeed())
	Eventually(func(g Gomega) {
		d := getDeployment(ctx, g, ns, "web")
		g.Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "3"))
		g.Expect(d.Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, good.Spec.Reversion))
		quarantine := quarantineOf(ctx, g, ns, "web")
		g.Expect(quarantine).To(HaveLen(1))
		changes := changesIn(ctx, g, ns)
		g.Expect(changes).To(HaveLen(2))
		for bad := range quarantine {
			g.Expect(changes[changeName(good, bad)].Status.Status).To(Equal(v1alpha1.ChangeWorkloadRollback))
		}
		g.Expect(changes[good.Name].Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		g.Expect(changes[good.Name].Status.ObservedRelease).To(Equal(int64(3)))
		g.Expect(d.Labels).To(HaveKey(v1alpha1.DefenseStatusLabel))
	}).WithContext(ctx).Should(Succeed())
	verified(ctx, ns, "web")
}

// behaves makes the pods do what kwok is told to.
func behaves(how string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Template.Labels["kwok.altershield/behavior"] = how }
}

// changeName is the name of the release of another version.
func changeName(of *v1alpha1.ChangeWorkload, version string) string {
	return strings.Replace(of.Name, of.Spec.Reversion, version, 1)
}

// failFirst fails the first pod of a release that is verified.
func failFirst(ctx context.Context, ns, name string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		change = currentChange(ctx, g, ns, name)
		g.Expect(change.Status.PassCount).NotTo(BeZero())
	}).WithContext(ctx).Should(Succeed())
	setVerdict(ctx, change, "unpass")
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
func quarantineOf(ctx context.Context, g Gomega, ns, name string) map[string]quarantined {
	GinkgoHelper()
	annotations := getDeployment(ctx, g, ns, name).Annotations
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
