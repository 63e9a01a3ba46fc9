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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/record"
)

// podsOf returns the pods of the newest template of a Deployment, by UID.
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

// inOrder returns the batches of a release, in the order of their numbers.
func (w *world) inOrder(ctx context.Context, g Gomega, change *v1alpha1.ChangeWorkload) []v1alpha1.ChangePod {
	GinkgoHelper()
	batches := w.batchesOf(ctx, g, change)
	slices.SortFunc(batches, func(a, b v1alpha1.ChangePod) int {
		return cmp.Compare(record.BatchNumber(&a), record.BatchNumber(&b))
	})
	return batches
}

// sizesOf returns the number of pods of each batch of a release, in the order of their numbers.
func (w *world) sizesOf(ctx context.Context, g Gomega, change *v1alpha1.ChangeWorkload) []int {
	GinkgoHelper()
	var sizes []int
	for _, b := range w.inOrder(ctx, g, change) {
		sizes = append(sizes, len(b.Spec.PodInfos))
	}
	return sizes
}

// eventuallyBatches waits until n batches of the current release are done, and returns the batches that are done, in order.
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

// judge writes verdicts on a batch as a user does: unpass on the named pods, and nothing, which passes, on the others.
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

// eventuallyFailed waits until the current release is suspended because of exactly these pods, and its workload is blocked.
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

func readyCondition(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c
		}
	}
	return &corev1.PodCondition{}
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

// setGate sets the readiness gate of a pod, as the controller of a load balancer does.
func (w *world) setGate(ctx context.Context, pod *corev1.Pod, status corev1.ConditionStatus) error {
	return w.patchPodStatus(ctx, pod, fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"lastTransitionTime":%q}]}}`,
		gate, status, time.Now().UTC().Format(time.RFC3339)))
}

// lingering makes pods take ten minutes to end once they are deleted.
func lingering(d *appsv1.Deployment) {
	seconds := int64(600)
	d.Spec.Template.Spec.TerminationGracePeriodSeconds = &seconds
	metav1.SetMetaDataAnnotation(&d.Spec.Template.ObjectMeta, controlplane.TerminateAfterAnnotation, "10m")
}

// terminating counts the terminating pods of a namespace.
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

// bury removes the terminating pods, as an admin does.
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

// addNode creates a node that takes pods of one pool only.
func (w *world) addNode(ctx context.Context, pool, name string) {
	GinkgoHelper()
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1000"), corev1.ResourceMemory: resource.MustParse("1Ti"),
		corev1.ResourcePods: resource.MustParse("1000"),
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
		g.Expect(node.Spec.Taints).To(HaveLen(1), "the taint not-ready is gone")
	}).WithContext(ctx).Should(Succeed())
}

var _ = Describe("pods that go", func() {
	w := inSharedWorld()

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
		By("failing the terminating pod")
		w.judge(ctx, &batches[0], batches[0].Spec.PodInfos[0].Pod)
		w.eventuallyFailed(ctx, ns, "web", batches[0].Spec.PodInfos[0].Pod)
		w.judge(ctx, &batches[0])
		w.verified(ctx, ns, "web")
	})

	It("after they were verified, evicted by a user or by their kubelet, are replaced by pods that are verified", func(ctx SpecContext) {
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
			"conditions":[{"type":"Ready","status":"False","reason":"PodFailed"},
				{"type":"ContainersReady","status":"False","reason":"PodFailed"}]}}`)).To(Succeed())
		w.rolledOut(ctx, ns, "web")
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Expect(w.api.Delete(ctx, pressed)).To(Succeed())
		fourBatches()
		w.restful(ctx, ns)
	})
})

var _ = Describe("a workload that is deleted without its pods", func() {
	w := inSharedWorld()

	// The garbage collector looks for new kinds twice a minute. Before it knows the operator's kinds, it cannot orphan their objects.
	BeforeEach(func(ctx SpecContext) {
		ns := w.newNamespace(ctx, false)
		probe := &v1alpha1.OpsConfigInfo{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "blocking", OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "ConfigMap", Name: "absent", UID: "absent"},
			}},
			Spec: v1alpha1.OpsConfigInfoSpec{Type: "isBlockingUp"},
		}
		Expect(w.api.Create(ctx, probe)).To(Succeed())
		Eventually(func() bool {
			return apierrors.IsNotFound(w.api.Get(ctx, client.ObjectKeyFromObject(probe), probe))
		}).WithContext(ctx).Should(BeTrue())
	})

	// remade deletes a Deployment, orphans its objects, and creates it again.
	remade := func(ctx context.Context, ns string, change ...func(*appsv1.Deployment)) {
		GinkgoHelper()
		w.kubectl(ctx, "-n", ns, "delete", "deployment", "web", "--cascade=orphan")
		w.create(ctx, sleeper(ns, "web").Replicas(3).With(change...))
	}

	It("adopts them when it is created again, and they are verified again", func(ctx SpecContext) {
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
})
