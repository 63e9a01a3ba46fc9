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
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// podsOf are the pods a Deployment is to have, of its newest template, by UID.
func (w *world) podsOf(ctx context.Context, g Gomega, ns, name string) map[string]*corev1.Pod {
	GinkgoHelper()
	var list corev1.PodList
	labels := client.MatchingLabels(w.getDeployment(ctx, g, ns, name).Spec.Template.Labels)
	g.Expect(w.api.List(ctx, &list, client.InNamespace(ns), labels)).To(Succeed())
	pods := map[string]*corev1.Pod{}
	for i := range list.Items {
		if p := &list.Items[i]; p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodFailed {
			pods[string(p.UID)] = p
		}
	}
	return pods
}

// inOrder are the batches of a release by number.
func (w *world) inOrder(ctx context.Context, g Gomega, change *v1alpha1.ChangeWorkload) []v1alpha1.ChangePod {
	GinkgoHelper()
	batches := w.batchesOf(ctx, g, change)
	slices.SortFunc(batches, func(a, b v1alpha1.ChangePod) int {
		return cmp.Compare(defense.BatchNumber(&a), defense.BatchNumber(&b))
	})
	return batches
}

// sizesOf are how many pods each batch of a release has, by number.
func (w *world) sizesOf(ctx context.Context, g Gomega, change *v1alpha1.ChangeWorkload) []int {
	GinkgoHelper()
	var sizes []int
	for _, b := range w.inOrder(ctx, g, change) {
		sizes = append(sizes, len(b.Spec.PodInfos))
	}
	return sizes
}

// eventuallyBatches waits until the current release has as many batches that
// are done, and returns them by number.
func (w *world) eventuallyBatches(ctx context.Context, ns, name string, n int) []v1alpha1.ChangePod {
	GinkgoHelper()
	var done []v1alpha1.ChangePod
	Eventually(func(g Gomega) {
		done = nil
		for _, b := range w.inOrder(ctx, g, w.currentChange(ctx, g, ns, name)) {
			if b.Status.Status == v1alpha1.ChangePodExecuteDone {
				done = append(done, b)
			}
		}
		g.Expect(len(done)).To(BeNumerically(">=", n))
	}).WithContext(ctx).Should(Succeed())
	return done
}

// judge writes verdicts on a batch as a user does: unpass on the pods named, and
// nothing, which passes, on the others.
func (w *world) judge(ctx context.Context, b *v1alpha1.ChangePod, failing ...string) {
	GinkgoHelper()
	results := []v1alpha1.PodResult{}
	for _, pod := range failing {
		results = append(results, v1alpha1.PodResult{PodInfo: v1alpha1.PodInfo{Pod: pod}, Verdict: "unpass", Message: "find error"})
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"podResults": results}})
	Expect(err).NotTo(HaveOccurred())
	w.kubectl(ctx, "-n", b.Namespace, "patch", "changepod", "--subresource=status", b.Name, "--type", "merge", "-p", string(patch))
}

// eventuallyFailed waits until the current release is suspended because of
// exactly these pods, and its workload blocked.
func (w *world) eventuallyFailed(ctx context.Context, ns, name string, pods ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		change := w.currentChange(ctx, g, ns, name)
		g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuspend))
		var failed []string
		for i := range change.Status.DefenseCheckFailPods {
			failed = append(failed, change.Status.DefenseCheckFailPods[i].Pod)
		}
		g.Expect(failed).To(ConsistOf(pods))
		g.Expect(change.Status.FailCount).To(Equal(int32(len(pods))))
		g.Expect(w.getDeployment(ctx, g, ns, name).Labels).To(HaveKey(v1alpha1.SuspendLabel))
	}).WithContext(ctx).Should(Succeed())
	Expect(w.patchTemplate(ctx, ns, name, "denied")).To(MatchError(ContainSubstring("is suspended")))
}

// patchPodStatus changes the status of a pod as its owner does.
func (w *world) patchPodStatus(ctx context.Context, pod *corev1.Pod, patch string) error {
	return w.api.SubResource("status").Patch(ctx, pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
}

// annotatePod sets an annotation of a pod to a JSON value.
func (w *world) annotatePod(ctx context.Context, pod *corev1.Pod, key, value string) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, value)
	return w.api.Patch(ctx, pod.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
}

func readyCondition(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c
		}
	}
	return &corev1.PodCondition{}
}

// eventuallyUnready waits until a pod is there and not ready.
func (w *world) eventuallyUnready(ctx context.Context, ns, name string, pod *corev1.Pod) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		now := w.podsOf(ctx, g, ns, name)[string(pod.UID)]
		g.Expect(now).NotTo(BeNil())
		g.Expect(readyCondition(now).Status).To(Equal(corev1.ConditionFalse))
	}).WithContext(ctx).Should(Succeed())
}

// allAtOnce replaces all pods at once, with new ones first.
func allAtOnce(d *appsv1.Deployment) {
	all, none := intstr.FromString("100%"), intstr.FromInt32(0)
	d.Spec.Strategy = appsv1.DeploymentStrategy{
		Type:          appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &all, MaxUnavailable: &none},
	}
}

func override(setting, value string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.SettingAnnotationPrefix+setting, value)
	}
}

const gate = "example.com/in-service"

func gated(d *appsv1.Deployment) {
	d.Spec.Template.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
}

// setGate is what a load balancer's controller does.
func (w *world) setGate(ctx context.Context, pod *corev1.Pod, status corev1.ConditionStatus) error {
	return w.patchPodStatus(ctx, pod, fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"lastTransitionTime":%q}]}}`,
		gate, status, time.Now().UTC().Format(time.RFC3339)))
}

// atTheGate waits until pods of a Deployment's newest template lack nothing but
// their gate, and returns them.
func (w *world) atTheGate(ctx context.Context, ns, name string, n int) []*corev1.Pod {
	GinkgoHelper()
	var waiting []*corev1.Pod
	Eventually(func(g Gomega) {
		waiting = nil
		for _, p := range w.podsOf(ctx, g, ns, name) {
			if readyCondition(p).Reason == "ReadinessGatesNotReady" {
				waiting = append(waiting, p)
			}
		}
		g.Expect(waiting).To(HaveLen(n))
	}).WithContext(ctx).Should(Succeed())
	return waiting
}

var _ = Describe("a pod is finished", func() {
	w := inSharedWorld()

	It("when its readiness gates are open, and not before", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(2).With(gated, allAtOnce))
		for i, value := range []string{"123", "second"} {
			if i > 0 {
				Expect(w.patchTemplate(ctx, ns, "web", value)).To(Succeed())
			}
			waiting := w.atTheGate(ctx, ns, "web", 2)
			Expect(w.setGate(ctx, waiting[0], corev1.ConditionFalse)).To(Succeed())
			Expect(w.setGate(ctx, waiting[1], corev1.ConditionTrue)).To(Succeed())
			By("finding the one in a batch whose gate is open, and nothing of the other")
			batches := w.eventuallyBatches(ctx, ns, "web", 1)
			Expect(batches).To(HaveLen(1))
			Expect(batches[0].Spec.PodInfos).To(HaveExactElements(HaveField("UID", string(waiting[1].UID))))
			change := w.currentChange(ctx, Default, ns, "web")
			Expect(change.Status.PreparingCount).To(BeZero())
			Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadRunning))
			By("opening the other one's, and closing the first's for a moment")
			Expect(w.setGate(ctx, waiting[1], corev1.ConditionFalse)).To(Succeed())
			w.eventuallyUnready(ctx, ns, "web", waiting[1])
			Expect(w.setGate(ctx, waiting[0], corev1.ConditionTrue)).To(Succeed())
			w.eventuallyBatches(ctx, ns, "web", 2)
			Expect(w.currentChange(ctx, Default, ns, "web").Status.Status).To(Equal(v1alpha1.ChangeWorkloadRunning), "a gate is closed")
			Expect(w.setGate(ctx, waiting[1], corev1.ConditionTrue)).To(Succeed())
			Expect(w.sizesOf(ctx, Default, w.verified(ctx, ns, "web"))).To(Equal([]int{1, 1}))
		}
		w.restful(ctx, ns)
	})

	It("when it has been Ready for minReadySeconds on end", func(ctx SpecContext) {
		const seconds = 3
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(3).With(allAtOnce).MinReadySeconds(seconds))
		for round, shown := 0, 0; shown < 2; round++ {
			Expect(round).To(BeNumerically("<", 10), "never as fast as a pod is finished")
			if round > 0 {
				Expect(w.patchTemplate(ctx, ns, "web", strconv.Itoa(round))).To(Succeed())
			}
			var fickle *corev1.Pod
			Eventually(func(g Gomega) {
				for _, p := range w.podsOf(ctx, g, ns, "web") {
					if readyCondition(p).Status == corev1.ConditionTrue {
						fickle = p
					}
				}
				g.Expect(fickle).NotTo(BeNil())
			}).WithContext(ctx).Should(Succeed())
			By("losing one pod's readiness, and getting it back in another second")
			Expect(w.annotatePod(ctx, fickle, controlplane.UnreadyAnnotation, `"true"`)).To(Succeed())
			w.eventuallyUnready(ctx, ns, "web", fickle)
			finished := slices.ContainsFunc(w.batchesOf(ctx, Default, w.currentChange(ctx, Default, ns, "web")), func(b v1alpha1.ChangePod) bool {
				return slices.ContainsFunc(b.Spec.PodInfos, func(p v1alpha1.PodInfo) bool { return p.UID == string(fickle.UID) })
			})
			Eventually(time.Now).WithContext(ctx).Should(BeTemporally(">", readyCondition(fickle).LastTransitionTime.Add(time.Second)))
			Expect(w.annotatePod(ctx, fickle, controlplane.UnreadyAnnotation, "null")).To(Succeed())
			if finished { // the machine is busy, and it was too late
				w.verified(ctx, ns, "web")
				continue
			}
			shown++
			change := w.verified(ctx, ns, "web")
			var pods map[string]*corev1.Pod
			Eventually(func(g Gomega) {
				pods = w.podsOf(ctx, g, ns, "web")
				for _, p := range pods {
					g.Expect(p.Labels).To(HaveKey(v1alpha1.OperateFinishedLabel))
				}
			}).WithContext(ctx).Should(Succeed())
			Expect(readyCondition(pods[string(fickle.UID)]).LastTransitionTime.Time).To(BeTemporally(">", readyCondition(fickle).LastTransitionTime.Time))
			for _, b := range w.batchesOf(ctx, Default, change) {
				for _, info := range b.Spec.PodInfos {
					since := readyCondition(pods[info.UID]).LastTransitionTime.Unix()
					Expect(b.Spec.CreateTimeUnix-since).To(BeNumerically(">=", seconds), b.Name)
					label, err := strconv.ParseInt(pods[info.UID].Labels[v1alpha1.OperateFinishedLabel], 10, 64)
					Expect(err).NotTo(HaveOccurred())
					Expect(label-since).To(BeNumerically(">=", seconds), info.Pod)
				}
			}
		}
		w.restful(ctx, ns)
	})

	It("when it has sidecars, which are part of the version", func(ctx SpecContext) {
		always := corev1.ContainerRestartPolicyAlways
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(3).With(func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.InitContainers = []corev1.Container{
				{Name: "proxy", Image: "proxy:1", RestartPolicy: &always},
				{Name: "setup", Image: "setup:1"},
			}
		}))
		first := w.verified(ctx, ns, "web")
		d := w.getDeployment(ctx, Default, ns, "web")
		released := d.DeepCopy()
		released.Spec.Template.Spec.InitContainers[0].Image = "proxy:2"
		Expect(w.api.Patch(ctx, released, client.StrategicMergeFrom(d))).To(Succeed())
		second := w.verified(ctx, ns, "web")
		Expect(second.Spec.Reversion).NotTo(Equal(first.Spec.Reversion))
		Expect(w.sizesOf(ctx, Default, second)).To(Equal([]int{1, 1, 1}))
		for _, p := range w.podsOf(ctx, Default, ns, "web") {
			Expect(p.Status.InitContainerStatuses[0].State.Running).NotTo(BeNil())
			Expect(p.Status.InitContainerStatuses[1].State.Terminated).NotTo(BeNil())
		}
		w.restful(ctx, ns)
	})

	It("once only, however often its containers crash and are restarted in it", Serial, func(ctx SpecContext) {
		w.withoutDefaultPolicy(ctx)
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(3).With(slowly))
		w.verified(ctx, ns, "web")
		crash := func() {
			GinkgoHelper()
			before := w.podsOf(ctx, Default, ns, "web")
			Expect(before).NotTo(BeEmpty())
			for _, p := range before {
				w.kubectl(ctx, "-n", ns, "label", "pod", p.Name, controlplane.BehaviorLabel+"="+controlplane.BehaviorCrashLoop)
			}
			Eventually(func(g Gomega) {
				after := w.podsOf(ctx, g, ns, "web")
				for uid, p := range before {
					g.Expect(after).To(HaveKey(uid))
					g.Expect(readyCondition(after[uid]).Status).To(Equal(corev1.ConditionFalse))
					g.Expect(after[uid].Status.ContainerStatuses[0].RestartCount).To(BeNumerically(">", restartsOf(p)))
				}
			}).WithContext(ctx).Should(Succeed())
			for _, p := range before {
				w.kubectl(ctx, "-n", ns, "label", "pod", p.Name, controlplane.BehaviorLabel+"-")
			}
		}
		By("crashing in the middle of a release")
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		w.eventuallyBatches(ctx, ns, "web", 1)
		crash()
		Expect(w.sizesOf(ctx, Default, w.verified(ctx, ns, "web"))).To(Equal([]int{1, 1, 1}))
		before := w.podUIDs(ctx, Default, ns, "web")
		By("crashing after its success")
		crash()
		Eventually(func(g Gomega) {
			g.Expect(w.getDeployment(ctx, g, ns, "web").Status.AvailableReplicas).To(Equal(int32(3)))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.sizesOf(ctx, Default, w.verified(ctx, ns, "web"))).To(Equal([]int{1, 1, 1}))
		Expect(w.podUIDs(ctx, Default, ns, "web")).To(ConsistOf(before))
		w.restful(ctx, ns)
	})
})

func restartsOf(pod *corev1.Pod) int32 {
	if len(pod.Status.ContainerStatuses) == 0 {
		return 0
	}
	return pod.Status.ContainerStatuses[0].RestartCount
}

var _ = Describe("the size of batches", func() {
	w := inSharedWorld()

	It("is the threshold, whatever that is, and the rest comes at once", func(ctx SpecContext) {
		const replicas = 10
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(replicas))
		w.verified(ctx, ns, "web")
		ones := slices.Repeat([]int{1}, replicas)
		for _, tc := range []struct {
			name    string
			setting string
			want    []int
		}{
			{"off", "disabled", ones},
			{"one", "1", ones},
			{"two", "2", []int{2, 2, 2, 2, 2}},
			{"three", "3", []int{3, 3, 3, 1}},
			{"seven", "7", []int{7, 3}},
			{"ten", "10", []int{10}},
			{"more", "100", []int{10}},
		} {
			By(tc.name)
			w.kubectl(ctx, "-n", ns, "annotate", "deployment", "web", "--overwrite", v1alpha1.SettingAnnotationPrefix+"branch="+tc.setting)
			Expect(w.patchTemplate(ctx, ns, "web", tc.name)).To(Succeed())
			change := w.verified(ctx, ns, "web")
			Expect(w.sizesOf(ctx, Default, change)).To(Equal(tc.want))
			Expect(change.Status.Batches).To(Equal(int32(len(tc.want))))
			batches := w.inOrder(ctx, Default, change)
			last := batches[len(batches)-1]
			Expect(last.Spec.Last).To(BeTrue())
			var complete time.Time
			for _, c := range w.getDeployment(ctx, Default, ns, "web").Status.Conditions {
				if c.Type == appsv1.DeploymentProgressing {
					Expect(c.Reason).To(Equal("NewReplicaSetAvailable"))
					complete = c.LastUpdateTime.Time
				}
			}
			Expect(last.Spec.CreateTimeUnix).To(BeNumerically("<=", complete.Unix()+40), "long before the wait threshold")
		}
		w.restful(ctx, ns)
	})

	It("holds for hundreds of pods, scaled in the middle", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(300).Setting("branch", "50"))
		w.eventuallyBatches(ctx, ns, "web", 1)
		w.kubectl(ctx, "-n", ns, "scale", "deployment/web", "--replicas=380")
		change := w.verified(ctx, ns, "web")
		pods, full := 0, 0
		for _, size := range w.sizesOf(ctx, Default, change) {
			Expect(size).To(BeNumerically("<=", 50))
			pods += size
			full += size / 50
		}
		Expect(pods).To(Equal(380), "no pod went")
		Expect(full).To(BeNumerically(">=", 6), "what is not full came when the rollout was complete")
		// Where the first 300 had succeeded before, the others count a little later.
		Eventually(func(g Gomega) {
			g.Expect(w.currentChange(ctx, g, ns, "web").Status.PassCount).To(Equal(int32(380)))
		}).WithContext(ctx).Should(Succeed())
		w.restful(ctx, ns)
	})
})

// timesOut lets a release time out, whose next pod is verified at once then. The
// threshold is two seconds.
func (w *world) timesOut(ctx context.Context, settings ...func(*appsv1.Deployment)) {
	GinkgoHelper()
	ns := w.newNamespace(ctx, true)
	w.create(ctx, sleeper(ns, "web").Replicas(3).Setting("branch", "10").With(gated).With(settings...))
	waiting := w.atTheGate(ctx, ns, "web", 3)
	change := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadTimeOutPreThreshold)
	Expect(change.Status.UpdateTimeUnix - change.Status.EntryTimeUnix).To(BeNumerically(">=", 2))
	Expect(w.batchesOf(ctx, Default, change)).To(BeEmpty())
	Eventually(func(g Gomega) {
		g.Expect(w.eventsOf(ctx, g, ns, "web")).To(ContainElement("WaitTimedOut"))
	}).WithContext(ctx).Should(Succeed())
	By("finishing one of three pods, in batches of ten")
	Expect(w.setGate(ctx, waiting[0], corev1.ConditionTrue)).To(Succeed())
	w.eventuallyBatches(ctx, ns, "web", 1) // it is Running then, for two seconds
	Expect(w.sizesOf(ctx, Default, w.currentChange(ctx, Default, ns, "web"))).To(Equal([]int{1}))
	By("finishing the next one, which waits its time for others")
	Expect(w.setGate(ctx, waiting[1], corev1.ConditionTrue)).To(Succeed())
	batches := w.eventuallyBatches(ctx, ns, "web", 2)
	Expect(batches[1].Spec.CreateTimeUnix - batches[0].Spec.CreateTimeUnix).To(BeNumerically(">=", 2))
	By("finishing the last one")
	w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadTimeOutPreThreshold)
	Expect(w.setGate(ctx, waiting[2], corev1.ConditionTrue)).To(Succeed())
	Expect(w.sizesOf(ctx, Default, w.verified(ctx, ns, "web"))).To(Equal([]int{1, 1, 1}))
	w.restful(ctx, ns)
}

var _ = Describe("a release nothing of which finishes", func() {
	w := inSharedWorld()

	It("times out, and its next pod is verified at once", func(ctx SpecContext) {
		w.timesOut(ctx, override("timeouts", "wait=2s"))
	})
})

var _ = Describe("verdicts by hand", func() {
	w := inSharedWorld()

	It("count on any batch of a release that succeeded, one by one", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(4).Setting("branch", "2"))
		w.verified(ctx, ns, "web")
		batches := w.eventuallyBatches(ctx, ns, "web", 2)
		Expect(batches).To(HaveLen(2))
		one, other, last := batches[0].Spec.PodInfos[0].Pod, batches[0].Spec.PodInfos[1].Pod, batches[1].Spec.PodInfos[1].Pod
		w.judge(ctx, &batches[1], last)
		w.eventuallyFailed(ctx, ns, "web", last)
		w.judge(ctx, &batches[0], one, other)
		w.eventuallyFailed(ctx, ns, "web", one, other, last)
		By("correcting them one after the other")
		w.judge(ctx, &batches[1])
		w.eventuallyFailed(ctx, ns, "web", one, other)
		w.judge(ctx, &batches[0], other)
		w.eventuallyFailed(ctx, ns, "web", other)
		w.judge(ctx, &batches[0])
		change := w.verified(ctx, ns, "web")
		Expect(w.getDeployment(ctx, Default, ns, "web").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		Expect(change.Status.Batches).To(Equal(int32(2)), "nothing is verified again")
		By("failing again what was corrected")
		w.judge(ctx, &batches[1], last)
		w.eventuallyFailed(ctx, ns, "web", last)
		w.judge(ctx, &batches[1])
		w.verified(ctx, ns, "web")
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		w.verified(ctx, ns, "web")
		w.restful(ctx, ns)
	})

	It("count on any batch in the middle of a release, one by one", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		p := w.startPorter(ns)
		w.create(ctx, inFlight(ns, "web").Replicas(6))
		w.verified(ctx, ns, "web")
		p.let(2)
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		batches := w.eventuallyBatches(ctx, ns, "web", 2)
		first, second := batches[0].Spec.PodInfos[0].Pod, batches[1].Spec.PodInfos[0].Pod
		w.judge(ctx, &batches[1], second)
		w.eventuallyFailed(ctx, ns, "web", second)
		Expect(w.getDeployment(ctx, Default, ns, "web").Spec.Paused).To(BeTrue())
		w.judge(ctx, &batches[0], first)
		w.eventuallyFailed(ctx, ns, "web", first, second)
		p.letAll()
		By("correcting one of two")
		w.judge(ctx, &batches[1])
		w.eventuallyFailed(ctx, ns, "web", first)
		d := w.getDeployment(ctx, Default, ns, "web")
		Expect(d.Spec.Paused).To(BeTrue())
		Expect(d.Status.UpdatedReplicas).To(BeNumerically("<", 6))
		By("correcting the other one")
		w.judge(ctx, &batches[0])
		change := w.verified(ctx, ns, "web")
		Expect(w.sizesOf(ctx, Default, change)).To(Equal([]int{1, 1, 1, 1, 1, 1}))
		d = w.getDeployment(ctx, Default, ns, "web")
		Expect(d.Spec.Paused).To(BeFalse())
		Expect(d.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		w.restful(ctx, ns)
	})
})

// lingering makes pods take ten minutes to end once they are deleted.
func lingering(d *appsv1.Deployment) {
	seconds := int64(600)
	d.Spec.Template.Spec.TerminationGracePeriodSeconds = &seconds
	metav1.SetMetaDataAnnotation(&d.Spec.Template.ObjectMeta, controlplane.TerminateAfterAnnotation, "10m")
}

// terminating counts the pods of a namespace that are on their way out.
func (w *world) terminating(ctx context.Context, g Gomega, ns string) int {
	GinkgoHelper()
	var list corev1.PodList
	g.Expect(w.api.List(ctx, &list, client.InNamespace(ns))).To(Succeed())
	n := 0
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp != nil {
			n++
		}
	}
	return n
}

// bury removes the pods that are on their way out, as an admin does.
func (w *world) bury(ctx context.Context, ns string) {
	GinkgoHelper()
	var list corev1.PodList
	Expect(w.api.List(ctx, &list, client.InNamespace(ns))).To(Succeed())
	for i := range list.Items {
		if p := &list.Items[i]; p.DeletionTimestamp != nil {
			Expect(client.IgnoreNotFound(w.api.Delete(ctx, p, client.GracePeriodSeconds(0)))).To(Succeed())
		}
	}
}

// addNode makes a node for the pods of a namespace only.
func (w *world) addNode(ctx context.Context, pool, name string) {
	GinkgoHelper()
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1000"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("1000"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
			Labels:      map[string]string{"e2e/pool": pool},
		},
		Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: "e2e/pool", Value: pool, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room},
	}
	Expect(w.api.Create(ctx, node)).To(Succeed())
	DeferCleanup(func(ctx context.Context) { Expect(client.IgnoreNotFound(w.api.Delete(ctx, node))).To(Succeed()) })
	Eventually(func(g Gomega) {
		g.Expect(w.api.Get(ctx, client.ObjectKeyFromObject(node), node)).To(Succeed())
		g.Expect(node.Status.Conditions).To(ContainElement(And(HaveField("Type", corev1.NodeReady), HaveField("Status", corev1.ConditionTrue))))
		g.Expect(node.Spec.Taints).To(HaveLen(1), "not ready no more")
	}).WithContext(ctx).Should(Succeed())
}

// onPool keeps pods to the nodes of a pool.
func onPool(pool string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.NodeSelector = map[string]string{"e2e/pool": pool}
		d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "e2e/pool", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	}
}

// lose takes a node out of service: its pods are to be replaced, and nobody is
// there to end them.
func (w *world) lose(ctx context.Context, ns, node string) (lost []string) {
	GinkgoHelper()
	var pods corev1.PodList
	Expect(w.api.List(ctx, &pods, client.InNamespace(ns))).To(Succeed())
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Spec.NodeName == node && p.DeletionTimestamp == nil {
			lost = append(lost, string(p.UID))
		}
	}
	w.kubectl(ctx, "taint", "node", node, corev1.TaintNodeOutOfService+"=nodeshutdown:"+string(corev1.TaintEffectNoExecute))
	Eventually(func(g Gomega) {
		g.Expect(w.api.List(ctx, &pods, client.InNamespace(ns))).To(Succeed())
		for i := range pods.Items {
			if p := &pods.Items[i]; p.Spec.NodeName == node {
				g.Expect(p.DeletionTimestamp).NotTo(BeNil())
			}
		}
	}).WithContext(ctx).Should(Succeed())
	return lost
}

var _ = Describe("pods that go", func() {
	w := inSharedWorld()

	It("with their node are replaced and verified, after a release and in the middle of one", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.addNode(ctx, ns, ns+"-a")
		// Pods of a lost node linger: its kubelet does not answer.
		w.create(ctx, sleeper(ns, "web").Replicas(4).With(slowly, lingering, onPool(ns)))
		DeferCleanup(func(ctx context.Context) {
			w.kubectl(ctx, "-n", ns, "delete", "deployment", "web", "--cascade=foreground", "--wait=false")
			Eventually(func(g Gomega) {
				w.bury(ctx, ns)
				var pods corev1.PodList
				g.Expect(w.api.List(ctx, &pods, client.InNamespace(ns))).To(Succeed())
				g.Expect(pods.Items).To(BeEmpty())
			}).WithContext(ctx).Should(Succeed())
		})
		Expect(w.verified(ctx, ns, "web").Status.Batches).To(Equal(int32(4)))
		w.addNode(ctx, ns, ns+"-b")
		lost := w.lose(ctx, ns, ns+"-a")
		Expect(lost).To(HaveLen(4))
		w.eventuallyBatches(ctx, ns, "web", 8)
		w.verified(ctx, ns, "web")
		Expect(w.terminating(ctx, Default, ns)).To(Equal(4))
		w.restful(ctx, ns)

		By("losing the other node in the middle of a release")
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		w.eventuallyBatches(ctx, ns, "web", 1)
		w.addNode(ctx, ns, ns+"-c")
		lost = w.lose(ctx, ns, ns+"-b")
		Expect(lost).NotTo(BeEmpty())
		w.verified(ctx, ns, "web")
		for uid, p := range w.podsOf(ctx, Default, ns, "web") {
			Expect(p.Spec.NodeName).To(Equal(ns + "-c"))
			Expect(lost).NotTo(ContainElement(uid))
		}
		w.restful(ctx, ns)
		By("removing what was left on the lost nodes")
		w.bury(ctx, ns)
		w.restful(ctx, ns)
		w.verified(ctx, ns, "web")
	})

	It("slowly hold nothing up", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(3).With(slowly, lingering))
		DeferCleanup(w.bury, ns)
		w.verified(ctx, ns, "web")
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		batches := w.eventuallyBatches(ctx, ns, "web", 1)
		w.kubectl(ctx, "-n", ns, "delete", "pod", batches[0].Spec.PodInfos[0].Pod, "--wait=false")
		change := w.verified(ctx, ns, "web")
		Expect(w.sizesOf(ctx, Default, change)).To(Equal([]int{1, 1, 1, 1}), "the replacement is verified, too")
		Expect(w.terminating(ctx, Default, ns)).To(Equal(4), "three of the first version and one of the second")
		w.restful(ctx, ns)
		By("failing the one that is on its way out")
		w.judge(ctx, &batches[0], batches[0].Spec.PodInfos[0].Pod)
		w.eventuallyFailed(ctx, ns, "web", batches[0].Spec.PodInfos[0].Pod)
		w.judge(ctx, &batches[0])
		w.verified(ctx, ns, "web")
	})

	It("after they were verified, evicted by somebody or by their kubelet, are replaced by others that are verified", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(3).With(slowly))
		w.verified(ctx, ns, "web")
		pods := w.eventuallyBatches(ctx, ns, "web", 3)
		evicted := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: pods[1].Spec.PodInfos[0].Pod}}
		Expect(w.api.SubResource("eviction").Create(ctx, evicted, &policyv1.Eviction{ObjectMeta: evicted.ObjectMeta})).To(Succeed())
		// The batch of the pod that is gone is folded sooner or later.
		fourBatches := func() {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				s := w.currentChange(ctx, g, ns, "web").Status
				g.Expect([]int32{s.Batches, s.PassCount}).To(Equal([]int32{4, 4}))
			}).WithContext(ctx).Should(Succeed())
			w.verified(ctx, ns, "web")
		}
		fourBatches()

		By("evicting under pressure, in the middle of a release: a kubelet ends the pod, and leaves it there")
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		pods = w.eventuallyBatches(ctx, ns, "web", 1)
		pressed := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: pods[0].Spec.PodInfos[0].Pod}}
		Expect(w.patchPodStatus(ctx, pressed, `{"status":{"phase":"Failed","reason":"Evicted","message":"The node was low on resource: memory.",
			"conditions":[{"type":"Ready","status":"False","reason":"PodFailed"},{"type":"ContainersReady","status":"False","reason":"PodFailed"}]}}`)).To(Succeed())
		w.rolledOut(ctx, ns, "web")
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Expect(w.api.Delete(ctx, pressed)).To(Succeed())
		fourBatches()
		w.restful(ctx, ns)
	})
})

var _ = Describe("a workload that is deleted without its pods", func() {
	w := inSharedWorld()

	// Before the garbage collector has learnt of our kinds it cannot orphan what
	// is of them; it looks for new kinds twice a minute.
	BeforeEach(func(ctx SpecContext) {
		ns := w.newNamespace(ctx, false)
		probe := &v1alpha1.OpsConfigInfo{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "blocking", OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "ConfigMap", Name: "absent", UID: "absent"},
			}},
			Spec: v1alpha1.OpsConfigInfoSpec{Type: "isBlockingUp"},
		}
		Expect(w.api.Create(ctx, probe)).To(Succeed())
		Eventually(func() bool { return apierrors.IsNotFound(w.api.Get(ctx, client.ObjectKeyFromObject(probe), probe)) }).WithContext(ctx).Should(BeTrue())
	})

	// remade deletes a Deployment, leaves everything of it there, and creates it
	// again.
	remade := func(ctx context.Context, ns string, change ...func(*appsv1.Deployment)) {
		GinkgoHelper()
		w.kubectl(ctx, "-n", ns, "delete", "deployment", "web", "--cascade=orphan")
		w.create(ctx, sleeper(ns, "web").Replicas(3).With(change...))
	}

	It("adopts them when it is created again, and they are verified anew", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.createAdmitted(ctx, sleeper(ns, "web").Replicas(3))
		before := w.verified(ctx, ns, "web")
		pods := w.podUIDs(ctx, Default, ns, "web")
		remade(ctx, ns)
		var after *v1alpha1.ChangeWorkload
		Eventually(func(g Gomega) {
			after = w.currentChange(ctx, g, ns, "web")
			g.Expect(after.UID).NotTo(Equal(before.UID))
		}).WithContext(ctx).Should(Succeed())
		after = w.verified(ctx, ns, "web")
		Expect(w.podUIDs(ctx, Default, ns, "web")).To(ConsistOf(pods), "nothing restarts")
		Expect(after.Name).To(Equal(before.Name))
		Eventually(func(g Gomega) {
			batches := w.batchesOf(ctx, g, after)
			g.Expect(batches).To(HaveLen(3))
			for i := range batches {
				g.Expect(metav1.IsControlledBy(&batches[i], after)).To(BeTrue())
			}
			revisions := w.revisionsOf(ctx, g, ns, "web")
			g.Expect(revisions).To(HaveLen(1))
			g.Expect(revisions[0].OwnerReferences).To(HaveLen(1))
			g.Expect(revisions[0].OwnerReferences[0].UID).To(Equal(w.getDeployment(ctx, g, ns, "web").UID))
		}).WithContext(ctx).Should(Succeed())
		w.restful(ctx, ns)
	})

	It("is defended from then on, though it was blocked or in the middle of a release", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		bad := w.failInFlight(ctx, inFlight(ns, "web").Replicas(3))
		remade(ctx, ns, slowly, gated, func(d *appsv1.Deployment) { d.Spec.Template.Labels["test"] = "bad" })
		Eventually(func(g Gomega) {
			g.Expect(w.currentChange(ctx, g, ns, "web").UID).NotTo(Equal(bad.UID))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.verified(ctx, ns, "web").Name).To(Equal(bad.Name))
		d := w.getDeployment(ctx, Default, ns, "web")
		Expect(d.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		Expect(d.Spec.Paused).To(BeFalse())
		w.restful(ctx, ns)
	})
})
