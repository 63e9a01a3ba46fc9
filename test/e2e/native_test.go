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
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// native is a StatefulSet or a DaemonSet named sleep, in a namespace of its own.
type native struct {
	*world
	kind, namespace string
}

// manifest is the one of the walkthrough, of this kind.
func (n native) manifest(more func(spec map[string]any)) *unstructured.Unstructured {
	spec := map[string]any{
		"selector": map[string]any{"matchLabels": map[string]any{"app": "sleep"}},
		"template": map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"app": "sleep", "test": "123"}},
			"spec": map[string]any{"terminationGracePeriodSeconds": int64(0), "containers": []any{map[string]any{
				"name": "sleep", "image": "busybox", "command": []any{"/bin/sleep", "infinity"},
				"readinessProbe": map[string]any{"exec": map[string]any{"command": []any{"/bin/true"}}},
			}}},
		},
	}
	if n.kind == "statefulset" {
		spec["replicas"], spec["serviceName"] = int64(3), "sleep"
	}
	if more != nil {
		more(spec)
	}
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind(map[string]string{"statefulset": "StatefulSet", "daemonset": "DaemonSet"}[n.kind]))
	o.SetNamespace(n.namespace)
	o.SetName("sleep")
	return o
}

func (n native) get(ctx context.Context, g Gomega) *unstructured.Unstructured {
	GinkgoHelper()
	o := n.manifest(nil)
	g.Expect(n.api.Get(ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
	return o
}

func (n native) patch(ctx context.Context, patch string) error {
	return n.api.Patch(ctx, n.manifest(nil), client.RawPatch(types.MergePatchType, []byte(patch)))
}

func (n native) release(ctx context.Context, value string) error {
	return n.patch(ctx, fmt.Sprintf(`{"spec":{"template":{"metadata":{"labels":{"test":%q}}}}}`, value))
}

func (n native) pods(ctx context.Context, g Gomega) []corev1.Pod {
	GinkgoHelper()
	var list corev1.PodList
	g.Expect(n.api.List(ctx, &list, client.InNamespace(n.namespace))).To(Succeed())
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		ref := metav1.GetControllerOf(&p)
		return p.DeletionTimestamp != nil || ref == nil || strings.ToLower(ref.Kind) != n.kind
	})
}

// change waits until the current release is in a state.
func (n native) change(ctx context.Context, state v1alpha1.ChangeWorkloadStatusType) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		version := n.get(ctx, g).GetLabels()[v1alpha1.VersionLabel]
		g.Expect(version).NotTo(BeEmpty())
		change = n.changesIn(ctx, g, n.namespace)["sleep--x--"+n.kind+"-"+version]
		g.Expect(change).NotTo(BeNil())
		g.Expect(change.Status.Status).To(Equal(state))
		g.Expect(fmt.Sprint(change.Status.ObservedRelease)).To(Equal(n.get(ctx, g).GetAnnotations()[v1alpha1.ReleaseAnnotation]))
	}).WithContext(ctx).Should(Succeed())
	return change
}

func (n native) strategy(ctx context.Context, want string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		strategy, _, err := unstructured.NestedMap(n.get(ctx, g).Object, "spec", "updateStrategy")
		g.Expect(err).NotTo(HaveOccurred())
		text, err := json.Marshal(strategy)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(text)).To(Equal(want))
	}).WithContext(ctx).Should(Succeed())
}

func (n native) running(ctx context.Context) (uids []types.UID) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		pods := n.pods(ctx, g)
		g.Expect(pods).To(HaveLen(3))
		uids = nil
		for i := range pods {
			g.Expect(conditionIsTrue(&pods[i], corev1.PodReady)).To(BeTrue())
			uids = append(uids, pods[i].UID)
		}
	}).WithContext(ctx).Should(Succeed())
	slices.Sort(uids)
	return uids
}

func conditionIsTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
}

var _ = Describe("other kinds than Deployments", func() {
	w := inSharedWorld()

	for _, kind := range []string{"statefulset", "daemonset"} {
		It("plays the walkthrough with a "+kind, func(ctx SpecContext) {
			n := native{w, kind, w.newNamespace(ctx, false)}
			By("enrolling what runs already")
			Expect(w.api.Create(ctx, n.manifest(nil))).To(Succeed())
			before := n.running(ctx)
			w.enrolNamespace(ctx, n.namespace)
			Consistently(func(g Gomega) {
				g.Expect(n.running(ctx)).To(Equal(before))
				g.Expect(w.changesIn(ctx, g, n.namespace)).To(BeEmpty())
			}, 5*time.Second).WithContext(ctx).Should(Succeed())

			By("releasing")
			Expect(n.release(ctx, "1234")).To(Succeed())
			c := n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
			Expect(w.batchesOf(ctx, Default, c)).To(HaveLen(3))
			labels, _, _ := unstructured.NestedStringMap(n.get(ctx, Default).Object, "spec", "template", "metadata", "labels")
			Expect(labels).To(Equal(map[string]string{"app": "sleep", "test": "1234"}), "the template is not labelled")
			Eventually(func(g Gomega) {
				for _, pod := range n.pods(ctx, g) {
					g.Expect(pod.Labels).To(And(HaveKeyWithValue(v1alpha1.VersionLabel, c.Spec.Reversion), HaveKey(v1alpha1.OperateFinishedLabel)))
				}
			}).WithContext(ctx).Should(Succeed())

			By("failing, blocking, repairing")
			w.setVerdict(ctx, c, "unpass")
			n.change(ctx, v1alpha1.ChangeWorkloadSuspend)
			Eventually(func(g Gomega) { g.Expect(n.get(ctx, g).GetLabels()).To(HaveKey(v1alpha1.SuspendLabel)) }).WithContext(ctx).Should(Succeed())
			Expect(n.release(ctx, "12345")).To(MatchError(ContainSubstring(
				fmt.Sprintf(`admission webhook "v%[1]s.kb.io" denied the request: %[1]s sleep is suspended`, kind))))
			Expect(n.patch(ctx, `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"template":{"metadata":{"labels":{"test":"repair"}}}}}`)).To(Succeed())
			n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
			Eventually(func(g Gomega) {
				g.Expect(n.get(ctx, g).GetLabels()).NotTo(HaveKey(v1alpha1.SuspendLabel))
				g.Expect(w.changesIn(ctx, g, n.namespace)).To(HaveLen(1))
			}).WithContext(ctx).Should(Succeed())
			Expect(n.release(ctx, "12345")).To(Succeed())
			n.change(ctx, v1alpha1.ChangeWorkloadSuccess)

			By("keeping a history that its controller leaves alone")
			history := w.kubectl(ctx, "-n", n.namespace, "get", "controllerrevisions", "-l", v1alpha1.HistoryOfLabel, "--no-headers")
			Expect(history).To(HaveLines(3), "the baseline, and what succeeded since: "+history)
		})

		It("halts a "+kind+" under way, gives back what it changed, and goes back", func(ctx SpecContext) {
			n := native{w, kind, w.newNamespace(ctx, true)}
			halted, users := `{"rollingUpdate":{"maxSurge":0,"maxUnavailable":1},"type":"OnDelete"}`, `{"rollingUpdate":{"maxSurge":0,"maxUnavailable":1},"type":"RollingUpdate"}`
			if kind == "statefulset" {
				halted, users = `{"rollingUpdate":{"partition":2147483647},"type":"RollingUpdate"}`, `{"rollingUpdate":{"partition":0},"type":"RollingUpdate"}`
			}
			// A batch is verified once its pod is available, and the next pod comes then: a verdict has as long.
			Expect(w.api.Create(ctx, n.manifest(func(spec map[string]any) { spec["minReadySeconds"] = int64(20) }))).To(Succeed())
			first := n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
			Expect(n.release(ctx, "second")).To(Succeed())
			var c *v1alpha1.ChangeWorkload
			Eventually(func(g Gomega) {
				c = w.changesIn(ctx, g, n.namespace)["sleep--x--"+kind+"-"+n.get(ctx, g).GetLabels()[v1alpha1.VersionLabel]]
				g.Expect(c).NotTo(BeNil())
				batches := w.batchesOf(ctx, g, c)
				g.Expect(batches).NotTo(BeEmpty())
				g.Expect(batches[0].Status.Status).To(Equal(v1alpha1.ChangePodExecuteDone))
			}).WithContext(ctx).Should(Succeed())
			w.setVerdict(ctx, c, "unpass")
			n.strategy(ctx, halted)
			second := func(g Gomega) (found int) {
				for _, pod := range n.pods(ctx, g) {
					if pod.Labels["test"] == "second" {
						found++
					}
				}
				return found
			}
			Consistently(func(g Gomega) { g.Expect(second(g)).To(BeNumerically("<", 3)) }, 15*time.Second).WithContext(ctx).Should(Succeed())

			By("correcting the verdict")
			Expect(n.patch(ctx, `{"spec":{"minReadySeconds":null}}`)).To(Succeed())
			w.setVerdict(ctx, c, "pass")
			n.strategy(ctx, users)
			n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
			Expect(second(Default)).To(Equal(3))

			By("applying the update strategy server-side, which the operator set meanwhile")
			applied := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"updateStrategy": map[string]any{"type": "OnDelete"}}}}
			if kind == "statefulset" {
				applied.Object["spec"] = map[string]any{"updateStrategy": map[string]any{"rollingUpdate": map[string]any{"partition": int64(1)}}}
			}
			applied.SetGroupVersionKind(n.manifest(nil).GroupVersionKind())
			applied.SetNamespace(n.namespace)
			applied.SetName("sleep")
			Eventually(func() error {
				return w.api.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner("git"))
			}).WithContext(ctx).Should(Succeed())
			Expect(n.patch(ctx, fmt.Sprintf(`{"spec":{"updateStrategy":%s}}`, users))).To(Succeed())

			By("going back on request, to the revision of before")
			Expect(n.patch(ctx, `{"metadata":{"annotations":{"`+v1alpha1.RollbackToAnnotation+`":"last-success"}}}`)).To(Succeed())
			Eventually(func(g Gomega) {
				g.Expect(n.get(ctx, g).GetLabels()).To(HaveKeyWithValue(v1alpha1.VersionLabel, first.Spec.Reversion))
			}).WithContext(ctx).Should(Succeed())
			n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
			Expect(second(Default)).To(BeZero())
			natives := w.kubectl(ctx, "-n", n.namespace, "get", "controllerrevisions", "-l", "!"+v1alpha1.HistoryOfLabel, "--no-headers")
			Expect(natives).To(HaveLines(2), "the revision of before is found again: "+natives)
			Expect(n.release(ctx, "second")).To(MatchError(ContainSubstring(fmt.Sprintf(`admission webhook "q%[1]s.kb.io" denied the request: %[1]s sleep: version `, kind))))
		})

		It("rolls a "+kind+" back whose pods do not come up", func(ctx SpecContext) {
			n := native{w, kind, w.newNamespace(ctx, true)}
			o := n.manifest(func(spec map[string]any) {
				if kind == "statefulset" {
					spec["podManagementPolicy"] = "Parallel"
				}
			})
			o.SetAnnotations(map[string]string{v1alpha1.SettingAnnotationPrefix + "rollback": "5s"})
			Expect(w.api.Create(ctx, o)).To(Succeed())
			first := n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
			w.kubectl(ctx, "-n", n.namespace, "set", "image", kind+"/sleep", "sleep=busybo")
			bad := n.get(ctx, Default).GetLabels()[v1alpha1.VersionLabel]
			Eventually(func(g Gomega) {
				o := n.get(ctx, g)
				g.Expect(o.GetLabels()).To(HaveKeyWithValue(v1alpha1.VersionLabel, first.Spec.Reversion))
				g.Expect(o.GetAnnotations()).To(HaveKeyWithValue(v1alpha1.QuarantinedAnnotation, bad))
			}).WithContext(ctx).Should(Succeed())
			n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
			for _, pod := range n.pods(ctx, Default) {
				Expect(pod.Spec.Containers[0].Image).To(Equal("busybox"))
			}
		})
	}

	for _, kind := range []string{"statefulset", "daemonset"} {
		It("tells of a "+kind+" whose pods a quota refuses, and what refuses them", func(ctx SpecContext) {
			n := native{world: w, kind: kind, namespace: w.newNamespace(ctx, true)}
			Expect(n.api.Create(ctx, n.manifest(nil))).To(Succeed())
			n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
			quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: "two"},
				Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")}}}
			Expect(n.api.Create(ctx, quota)).To(Succeed())
			Eventually(func(g Gomega) {
				g.Expect(n.api.Get(ctx, client.ObjectKeyFromObject(quota), quota)).To(Succeed())
				g.Expect(quota.Status.Used).To(HaveKey(corev1.ResourcePods))
			}).WithContext(ctx).Should(Succeed())
			Expect(n.release(ctx, "second")).To(Succeed())
			Eventually(func(g Gomega) {
				version := n.get(ctx, g).GetLabels()[v1alpha1.VersionLabel]
				change := n.changesIn(ctx, g, n.namespace)["sleep--x--"+n.kind+"-"+version]
				g.Expect(change).NotTo(BeNil())
				said := conditionOf(change.Status.Conditions, v1alpha1.ConditionProgressing)
				g.Expect(said.Reason).To(Equal(v1alpha1.ReasonRolloutStuck))
				g.Expect(said.Message).To(And(ContainSubstring("pods cannot be created"), ContainSubstring("exceeded quota")))
			}).WithContext(ctx).Should(Succeed())

			By("the quota is raised, and the release goes on")
			Expect(n.api.Delete(ctx, quota)).To(Succeed())
			n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
		})
	}

	It("counts a StatefulSet whose manifest has a partition as complete when nothing was released under it", func(ctx SpecContext) {
		n := native{w, "statefulset", w.newNamespace(ctx, true)}
		Expect(w.api.Create(ctx, n.manifest(func(spec map[string]any) {
			spec["updateStrategy"] = map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"partition": int64(2)}}
		}))).To(Succeed())
		n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
		By("waiting where a release is kept back by it")
		Expect(n.release(ctx, "second")).To(Succeed())
		Eventually(func(g Gomega) {
			c := n.change(ctx, v1alpha1.ChangeWorkloadRunning)
			g.Expect(conditionOf(c.Status.Conditions, v1alpha1.ConditionProgressing).Reason).To(Equal(v1alpha1.ReasonPartitioned))
			g.Expect(c.Status.PassCount).To(Equal(int32(1)))
		}).WithContext(ctx).Should(Succeed())
		Expect(n.patch(ctx, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)).To(Succeed())
		n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
	})
})

var _ = Describe("a Deployment, a StatefulSet and a DaemonSet of one name and one template", func() {
	w := inSharedWorld()

	It("are released, failed and rolled back side by side", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		natives := []native{{w, "statefulset", ns}, {w, "daemonset", ns}}
		w.create(ctx, sleeper(ns, "sleep"))
		w.eventuallyState(ctx, ns, "sleep", v1alpha1.ChangeWorkloadSuccess)
		for _, n := range natives {
			Expect(w.api.Create(ctx, n.manifest(nil))).To(Succeed())
			n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
		}
		Expect(w.patchTemplate(ctx, ns, "sleep", "second")).To(Succeed())
		for _, n := range natives {
			Expect(n.release(ctx, "second")).To(Succeed())
		}
		w.eventuallyState(ctx, ns, "sleep", v1alpha1.ChangeWorkloadSuccess)
		for _, n := range natives {
			n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
		}
		Eventually(func(g Gomega) { g.Expect(w.changesIn(ctx, g, ns)).To(HaveLen(3)) }).WithContext(ctx).Should(Succeed())

		By("failing that of the StatefulSet")
		set, daemon := natives[0], natives[1]
		w.setVerdict(ctx, set.change(ctx, v1alpha1.ChangeWorkloadSuccess), "unpass")
		Eventually(func(g Gomega) { g.Expect(set.get(ctx, g).GetLabels()).To(HaveKey(v1alpha1.SuspendLabel)) }).WithContext(ctx).Should(Succeed())
		Expect(daemon.get(ctx, Default).GetLabels()).NotTo(HaveKey(v1alpha1.SuspendLabel))
		Expect(w.getDeployment(ctx, Default, ns, "sleep").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		Expect(set.release(ctx, "third")).To(MatchError(ContainSubstring("statefulset sleep is suspended")))
		Expect(daemon.release(ctx, "third")).To(Succeed())
		daemon.change(ctx, v1alpha1.ChangeWorkloadSuccess)

		By("rolling it back")
		Expect(set.patch(ctx, `{"metadata":{"annotations":{"`+v1alpha1.RollbackToAnnotation+`":"last-success"}}}`)).To(Succeed())
		Eventually(func(g Gomega) {
			test, _, _ := unstructured.NestedString(set.get(ctx, g).Object, "spec", "template", "metadata", "labels", "test")
			g.Expect(test).To(Equal("123"))
		}).WithContext(ctx).Should(Succeed())
		set.change(ctx, v1alpha1.ChangeWorkloadSuccess)
		Expect(w.getDeployment(ctx, Default, ns, "sleep").Spec.Template.Labels).To(HaveKeyWithValue("test", "second"))
	})
})
