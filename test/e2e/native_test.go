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

// manifest returns the manifest of the walkthrough, of this kind.
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
	kinds := map[string]string{"statefulset": "StatefulSet", "daemonset": "DaemonSet"}
	o.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind(kinds[n.kind]))
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

// strategy waits for an update strategy. A StatefulSet may also have maxUnavailable 1, the default of newer Kubernetes.
func (n native) strategy(ctx context.Context, want string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		strategy, _, err := unstructured.NestedMap(n.get(ctx, g).Object, "spec", "updateStrategy")
		g.Expect(err).NotTo(HaveOccurred())
		if n.kind == "statefulset" {
			unstructured.RemoveNestedField(strategy, "rollingUpdate", "maxUnavailable")
		}
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
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

var _ = Describe("a release of a StatefulSet", func() {
	w := inSharedWorld()

	It("reports that a quota refuses its pods", func(ctx SpecContext) {
		n := native{world: w, kind: "statefulset", namespace: w.newNamespace(ctx, true)}
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

		By("deleting the quota: the release goes on")
		Expect(n.api.Delete(ctx, quota)).To(Succeed())
		n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
	})
})
