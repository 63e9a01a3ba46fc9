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
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// stuck creates a StatefulSet with OrderedReady whose release never gets ready, and waits until it is rolled back.
func (w *world) stuck(ctx context.Context, release string, before ...client.Object) (n native, first *v1alpha1.ChangeWorkload) {
	GinkgoHelper()
	n = native{w, "statefulset", w.newNamespace(ctx, true)}
	for _, o := range before {
		o.SetNamespace(n.namespace)
		Expect(w.api.Create(ctx, o)).To(Succeed())
	}
	o := n.manifest(nil)
	o.SetAnnotations(map[string]string{v1alpha1.SettingAnnotationPrefix + "rollback": "5s"})
	Expect(w.api.Create(ctx, o)).To(Succeed())
	first = n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
	Expect(n.patch(ctx, release)).To(Succeed())
	n.back(ctx, first)
	return n, first
}

// back waits until a version is restored.
func (n native) back(ctx context.Context, to *v1alpha1.ChangeWorkload) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		o := n.get(ctx, g)
		g.Expect(o.GetLabels()).To(HaveKeyWithValue(v1alpha1.VersionLabel, to.Spec.Reversion))
		g.Expect(o.GetAnnotations()).To(HaveKey(v1alpha1.QuarantinedAnnotation))
	}).WithContext(ctx).Should(Succeed())
}

// recovers waits until the workload is verified after so many evictions, without any other help.
func (n native) recovers(ctx context.Context, evicted int) {
	GinkgoHelper()
	n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
	n.running(ctx)
	for _, pod := range n.pods(ctx, Default) {
		Expect(pod.Labels).To(HaveKeyWithValue("test", "123"), pod.Name)
		Expect(pod.Spec.Containers[0].Image).To(Equal("busybox"), pod.Name)
	}
	Eventually(func(g Gomega) {
		g.Expect(n.eventsOf(ctx, g, v1alpha1.EventPodEvicted)).To(HaveLen(evicted))
	}).WithContext(ctx).Should(Succeed())
}

func (n native) eventsOf(ctx context.Context, g Gomega, reason string) (messages []string) {
	GinkgoHelper()
	var list corev1.EventList
	g.Expect(n.api.List(ctx, &list, client.InNamespace(n.namespace))).To(Succeed())
	for _, e := range list.Items {
		if e.InvolvedObject.Kind == "StatefulSet" && e.Reason == reason {
			messages = append(messages, e.Message)
		}
	}
	return messages
}

// blocked waits until the release reports why a pod is not evicted, and returns the message.
func (n native) blocked(ctx context.Context, reason string) (message string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		c := n.change(ctx, v1alpha1.ChangeWorkloadRunning)
		said := conditionOf(c.Status.Conditions, v1alpha1.ConditionEvictionBlocked)
		g.Expect(said).NotTo(BeNil())
		g.Expect(said.Status).To(Equal(metav1.ConditionTrue))
		g.Expect(said.Reason).To(Equal(reason), said.Message)
		g.Expect(n.eventsOf(ctx, g, v1alpha1.ConditionEvictionBlocked)).To(HaveLen(1)) // events are sent in the background
		message = said.Message
	}, 2*time.Minute).WithContext(ctx).Should(Succeed())
	return message
}

func budget(name string, change func(*policyv1.PodDisruptionBudgetSpec)) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}}
	b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "sleep"}}
	change(&b.Spec)
	return b
}

func everyPod(s *policyv1.PodDisruptionBudgetSpec) {
	all := intstr.FromString("100%")
	s.MinAvailable = &all
}

const (
	// noImage never leaves Pending; crashLoop runs and is not ready.
	noImage   = `{"spec":{"template":{"spec":{"containers":[{"name":"sleep","image":"busybo"}]}}}}`
	crashLoop = `{"spec":{"template":{"metadata":{"labels":{"kwok.altershield/behavior":"crash-loop"}}}}}`
)

var _ = Describe("a StatefulSet that waits for a pod of a version that was rolled back", func() {
	w := inSharedWorld()

	It("reports the command that deletes a pod if a budget prevents its eviction", func(ctx SpecContext) {
		n, _ := w.stuck(ctx, crashLoop, budget("sleep", everyPod))
		message := n.blocked(ctx, v1alpha1.ReasonDisruptionBudget)
		Expect(message).To(ContainSubstring("The disruption budget sleep needs 3 healthy pods and has 2 currently"))
		_, command, found := strings.Cut(message, "yourself: kubectl ")
		Expect(found).To(BeTrue(), message)
		Consistently(func(g Gomega) { n.change(ctx, v1alpha1.ChangeWorkloadRunning) }, 15*time.Second).WithContext(ctx).Should(Succeed())
		w.kubectl(ctx, strings.Fields(command)...)
		n.recovers(ctx, 0)
		c := n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
		Eventually(func(g Gomega) {
			c = n.change(ctx, v1alpha1.ChangeWorkloadSuccess)
			g.Expect(conditionOf(c.Status.Conditions, v1alpha1.ConditionEvictionBlocked).Status).To(Equal(metav1.ConditionFalse))
		}).WithContext(ctx).Should(Succeed())
	})

	It("reports two budgets, which no eviction passes", func(ctx SpecContext) {
		one := intstr.FromInt32(1)
		two := budget("two", func(s *policyv1.PodDisruptionBudgetSpec) { s.MaxUnavailable = &one })
		n, _ := w.stuck(ctx, crashLoop, budget("one", everyPod), two)
		Expect(n.blocked(ctx, v1alpha1.ReasonNotEvicted)).To(ContainSubstring("more than one PodDisruptionBudget"))
		w.kubectl(ctx, "-n", n.namespace, "delete", "poddisruptionbudget", "one")
		// The disruption controller counts the pods for either of the two budgets, and for the other one only after a change of it.
		w.kubectl(ctx, "-n", n.namespace, "annotate", "poddisruptionbudget", "two", "e2e/counted=again")
		n.recovers(ctx, 1)
	})
})
