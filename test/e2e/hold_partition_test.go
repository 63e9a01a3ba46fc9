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
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// heldSet is a StatefulSet of five pods whose rollouts wait for their verdicts.
type heldSet struct{ native }

// holdingSet creates one in a namespace of its own, which a policy holds.
func (w *world) holdingSet(ctx context.Context, until v1alpha1.HoldUntil, with func(spec, annotations map[string]any)) heldSet {
	GinkgoHelper()
	s := heldSet{native{w, "statefulset", w.newNamespace(ctx, true)}}
	annotations := map[string]any{}
	o := s.manifest(func(spec map[string]any) {
		spec["replicas"] = int64(5)
		if with != nil {
			with(spec, annotations)
		}
	})
	Expect(unstructured.SetNestedMap(o.Object, annotations, "metadata", "annotations")).To(Succeed())
	// Applied server-side it has no manager that owns what is set by default.
	Expect(w.api.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("creator"))).To(Succeed())
	s.change(ctx, v1alpha1.ChangeWorkloadSuccess)
	w.newDefensePolicy(ctx, holdPolicy(s.namespace, until, someday), v1alpha1.ReasonInForce)
	return s
}

func (s heldSet) partition(ctx context.Context, g Gomega) int64 {
	GinkgoHelper()
	p, _, err := unstructured.NestedInt64(s.get(ctx, g).Object, "spec", "updateStrategy", "rollingUpdate", "partition")
	g.Expect(err).NotTo(HaveOccurred())
	return p
}

// of are the names of the pods with a value in their template.
func (s heldSet) of(ctx context.Context, g Gomega, value string) (names []string) {
	GinkgoHelper()
	for _, p := range s.pods(ctx, g) {
		if p.Labels["test"] == value {
			names = append(names, p.Name)
		}
	}
	return names
}

// waits waits until the checks of so many pods of a version go on, which the partition lets
// be replaced, and no others are replaced.
func (s heldSet) waits(ctx context.Context, value string, partition int64, pods ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(s.partition(ctx, g)).To(Equal(partition))
		g.Expect(s.of(ctx, g, value)).To(ConsistOf(pods))
		c := s.current(ctx, g)
		checked := 0
		for _, b := range s.batchesOf(ctx, g, c) {
			if len(b.Status.Checks) > 0 {
				checked += len(b.Spec.PodInfos)
			}
		}
		g.Expect(checked).To(BeNumerically(">=", len(pods)))
		g.Expect(conditionOf(c.Status.Conditions, v1alpha1.ConditionHeld)).To(
			And(HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.ReasonWaitingForVerdicts)))
		g.Expect(conditionOf(c.Status.Conditions, v1alpha1.ConditionProgressing).Reason).To(Equal(v1alpha1.ReasonRollingOut))
	}).WithContext(ctx).Should(Succeed())
	Expect(s.get(ctx, Default).GetAnnotations()).To(HaveKey(v1alpha1.HeldAnnotation))
}

func (s heldSet) current(ctx context.Context, g Gomega) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	c := s.changesIn(ctx, g, s.namespace)["sleep--x--"+s.kind+"-"+s.get(ctx, g).GetLabels()[v1alpha1.VersionLabel]]
	g.Expect(c).NotTo(BeNil())
	return c
}

// pass passes the checks that go on.
func (s heldSet) pass(ctx context.Context) {
	GinkgoHelper()
	s.passBatches(ctx, s.batchesOf(ctx, Default, s.current(ctx, Default)))
}

func (s heldSet) passToTheEnd(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		s.pass(ctx)
		g.Expect(s.current(ctx, g).Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
	}).WithContext(ctx).WithPolling(time.Second).Should(Succeed())
	s.change(ctx, v1alpha1.ChangeWorkloadSuccess)
}

// given waits until nothing is left of a hold but why it ended.
func (s heldSet) given(ctx context.Context, partition int64, reason string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(s.get(ctx, g).GetAnnotations()).NotTo(HaveKey(v1alpha1.HeldAnnotation))
		if reason != "" {
			g.Expect(conditionOf(s.current(ctx, g).Status.Conditions, v1alpha1.ConditionHeld)).To(
				And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", reason)))
		}
	}).WithContext(ctx).Should(Succeed())
	Expect(s.partition(ctx, Default)).To(Equal(partition))
}

// applies applies a partition server-side, as Git does, and forces nothing.
func (s heldSet) applies(ctx context.Context, partition int64) error {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"updateStrategy": map[string]any{"rollingUpdate": map[string]any{"partition": partition}}}}}
	o.SetGroupVersionKind(s.manifest(nil).GroupVersionKind())
	o.SetNamespace(s.namespace)
	o.SetName("sleep")
	return s.api.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("git"))
}

func (s heldSet) setPartition(ctx context.Context, partition int64) {
	GinkgoHelper()
	Expect(s.patch(ctx, fmt.Sprintf(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":%d}}}}`, partition))).To(Succeed())
}

var _ = Describe("a rollout of a StatefulSet that is held", Ordered, func() {
	w := inHoldWorld(shortHold...)

	It("goes on pod by pod, when the last one is verified, and is applied server-side meanwhile", func(ctx SpecContext) {
		s := w.holdingSet(ctx, v1alpha1.HoldEveryBatch, func(spec, _ map[string]any) {
			spec["ordinals"] = map[string]any{"start": int64(7)}
		})
		Expect(s.release(ctx, "second")).To(Succeed())
		Expect(s.partition(ctx, Default)).To(BeEquivalentTo(4), "in the same request")
		s.waits(ctx, "second", 4, "sleep-11")
		By("being told that it is done by what does not know better")
		Expect(w.kubectl(ctx, "-n", s.namespace, "rollout", "status", "statefulset/sleep")).To(ContainSubstring("partitioned roll out complete: 1 new pods have been updated"))
		Expect(s.applies(ctx, 0)).To(Succeed())
		Consistently(func(g Gomega) {
			g.Expect(s.of(ctx, g, "second")).To(ConsistOf("sleep-11"))
			g.Expect(s.partition(ctx, g)).To(BeEquivalentTo(4))
		}, 5*time.Second).WithContext(ctx).Should(Succeed())
		s.pass(ctx)
		s.waits(ctx, "second", 3, "sleep-11", "sleep-10")
		Expect(s.applies(ctx, 0)).To(Succeed())
		Expect(s.partition(ctx, Default)).To(BeEquivalentTo(3))
		By("making a pod again that is kept back")
		w.kubectl(ctx, "-n", s.namespace, "delete", "pod", "sleep-8")
		Eventually(func(g Gomega) { g.Expect(s.of(ctx, g, "123")).To(ConsistOf("sleep-7", "sleep-8", "sleep-9")) }).WithContext(ctx).Should(Succeed())
		s.passToTheEnd(ctx)
		s.given(ctx, 0, v1alpha1.ReasonHoldVerified)
		for _, e := range s.get(ctx, Default).GetManagedFields() {
			if e.Manager == v1alpha1.FieldManager && e.FieldsV1 != nil {
				Expect(string(e.FieldsV1.GetRawBytes())).NotTo(ContainSubstring("f:partition"))
			}
		}
		Expect(s.applies(ctx, 1)).To(Succeed())
	})

	It("that fails with its second pod replaces no more, is repaired, held again, and applied", func(ctx SpecContext) {
		s := w.holdingSet(ctx, v1alpha1.HoldEveryBatch, func(spec, annotations map[string]any) {
			// The API server sets no partition by default where the type is named.
			spec["updateStrategy"] = map[string]any{"type": "RollingUpdate"}
			annotations[v1alpha1.SettingAnnotationPrefix+"halting"] = "disabled"
		})
		Expect(s.applies(ctx, 0)).To(Succeed())
		Expect(s.release(ctx, "second")).To(Succeed())
		s.waits(ctx, "second", 4, "sleep-4")
		s.pass(ctx)
		s.waits(ctx, "second", 3, "sleep-4", "sleep-3")
		w.setVerdict(ctx, s.current(ctx, Default), "unpass")
		s.change(ctx, v1alpha1.ChangeWorkloadSuspend)
		s.given(ctx, 2147483647, v1alpha1.ReasonHoldFailed)
		Consistently(func(g Gomega) { g.Expect(s.of(ctx, g, "second")).To(ConsistOf("sleep-4", "sleep-3")) }, 5*time.Second).WithContext(ctx).Should(Succeed())
		By("repairing it")
		Expect(s.patch(ctx, `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"template":{"metadata":{"labels":{"test":"repair"}}}}}`)).To(Succeed())
		Expect(s.partition(ctx, Default)).To(BeEquivalentTo(4), "the repair is held")
		Eventually(func() error { return s.applies(ctx, 0) }).WithContext(ctx).Should(Succeed(), "what it was halted by is not the operator's any more")
		Expect(s.partition(ctx, Default)).To(BeEquivalentTo(4))
		s.waits(ctx, "repair", 4, "sleep-4")
		By("rolling that back")
		Expect(s.patch(ctx, `{"metadata":{"annotations":{"`+v1alpha1.RollbackToAnnotation+`":"last-success"}}}`)).To(Succeed())
		Eventually(func(g Gomega) { g.Expect(s.of(ctx, g, "123")).To(HaveLen(5)) }).WithContext(ctx).Should(Succeed())
		s.given(ctx, 0, "")
		s.passToTheEnd(ctx)
	})

	It("goes on as a whole, when only its first batch is waited for", func(ctx SpecContext) {
		s := w.holdingSet(ctx, v1alpha1.HoldFirstBatch, func(_, annotations map[string]any) {
			annotations[v1alpha1.SettingAnnotationPrefix+"branch"] = "2"
		})
		Expect(s.release(ctx, "second")).To(Succeed())
		s.waits(ctx, "second", 3, "sleep-4", "sleep-3")
		Expect(w.batchesOf(ctx, Default, s.current(ctx, Default))).To(HaveLen(1))
		s.pass(ctx)
		s.given(ctx, 0, v1alpha1.ReasonHoldVerified)
		Eventually(func(g Gomega) { g.Expect(s.of(ctx, g, "second")).To(HaveLen(5)) }).WithContext(ctx).Should(Succeed())
		s.passToTheEnd(ctx)
	})

	It("stays while the manager is dead, whoever scales it, and goes on when it is back", func(ctx SpecContext) {
		s := w.holdingSet(ctx, v1alpha1.HoldEveryBatch, nil)
		Expect(s.release(ctx, "second")).To(Succeed())
		s.waits(ctx, "second", 4, "sleep-4")
		w.observer.OperatorStops()
		Expect(w.manager.Kill()).To(Succeed())
		w.kubectl(ctx, "-n", s.namespace, "scale", "statefulset/sleep", "--replicas=6")
		Eventually(func(g Gomega) { g.Expect(s.of(ctx, g, "second")).To(ConsistOf("sleep-4", "sleep-5")) }).WithContext(ctx).Should(Succeed())
		Consistently(func(g Gomega) { g.Expect(s.of(ctx, g, "second")).To(HaveLen(2)) }, holdStep).WithContext(ctx).Should(Succeed())
		Expect(w.manager.Start(ctx)).To(Succeed())
		w.observer.OperatorStarts()
		s.waits(ctx, "second", 5, "sleep-4", "sleep-5")
		By("scaling it down to what is kept back")
		w.kubectl(ctx, "-n", s.namespace, "scale", "statefulset/sleep", "--replicas=3")
		s.waits(ctx, "second", 2, "sleep-2")
		s.passToTheEnd(ctx)
		s.given(ctx, 0, v1alpha1.ReasonHoldVerified)
	})

	It("is taken over by a user, and another opts out", func(ctx SpecContext) {
		s := w.holdingSet(ctx, v1alpha1.HoldEveryBatch, nil)
		Expect(s.release(ctx, "second")).To(Succeed())
		s.waits(ctx, "second", 4, "sleep-4")
		s.setPartition(ctx, 2)
		s.given(ctx, 2, v1alpha1.ReasonHoldEdited)
		Eventually(func(g Gomega) {
			s.pass(ctx)
			c := s.current(ctx, g)
			g.Expect(conditionOf(c.Status.Conditions, v1alpha1.ConditionProgressing).Reason).To(Equal(v1alpha1.ReasonPartitioned))
			g.Expect(c.Status.Status).To(Equal(v1alpha1.ChangeWorkloadRunning))
		}).WithContext(ctx).Should(Succeed())
		s.setPartition(ctx, 0)
		s.passToTheEnd(ctx)
		Expect(s.release(ctx, "third")).To(Succeed())
		s.waits(ctx, "third", 4, "sleep-4")
		By("turning to OnDelete, and back")
		Expect(s.patch(ctx, `{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null}}}`)).To(Succeed())
		s.given(ctx, 0, v1alpha1.ReasonHoldEdited)
		Expect(s.patch(ctx, `{"spec":{"updateStrategy":{"type":"RollingUpdate"}}}`)).To(Succeed())
		s.passToTheEnd(ctx)
		Expect(s.release(ctx, "fourth")).To(Succeed())
		s.waits(ctx, "fourth", 4, "sleep-4")
		Expect(s.patch(ctx, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":"disabled"}}}`)).To(Succeed())
		s.given(ctx, 0, "")
		Eventually(func(g Gomega) { g.Expect(s.of(ctx, g, "fourth")).To(HaveLen(5)) }).WithContext(ctx).Should(Succeed())
	})

	It("leaves with its namespace", func(ctx SpecContext) {
		s := w.holdingSet(ctx, v1alpha1.HoldEveryBatch, nil)
		Expect(s.release(ctx, "second")).To(Succeed())
		s.waits(ctx, "second", 4, "sleep-4")
		w.kubectl(ctx, "label", "namespace", s.namespace, v1alpha1.EnrolledLabel+"-")
		s.given(ctx, 0, "")
		Eventually(func() error { return s.applies(ctx, 3) }).WithContext(ctx).Should(Succeed())
	})
})
