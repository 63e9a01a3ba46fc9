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
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

const (
	rollsDaemon = `{"rollingUpdate":{"maxSurge":0,"maxUnavailable":1},"type":"RollingUpdate"}`
	holdsDaemon = `{"rollingUpdate":{"maxSurge":0,"maxUnavailable":1},"type":"OnDelete"}`
)

// heldDaemon is a DaemonSet on three nodes whose rollouts are held.
type heldDaemon struct{ heldSet }

// holdingDaemon creates a heldDaemon in a namespace of its own, with a policy whose verdicts the spec gives.
func (w *world) holdingDaemon(ctx context.Context) heldDaemon {
	GinkgoHelper()
	d := heldDaemon{heldSet{native{w, "daemonset", w.newNamespace(ctx, true)}}}
	o := d.manifest(nil)
	o.SetAnnotations(map[string]string{v1alpha1.SettingAnnotationPrefix + "holding": "every,daemonsets"})
	// After a server-side apply, no manager owns the defaulted fields.
	Expect(w.api.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("creator"))).To(Succeed())
	d.change(ctx, v1alpha1.ChangeWorkloadSuccess)
	w.newDefensePolicy(ctx, holdPolicy(d.namespace, v1alpha1.HoldEveryBatch, someday), v1alpha1.ReasonInForce)
	return d
}

// waits waits until so many nodes have a version, and the checks of their pods are running.
func (d heldDaemon) waits(ctx context.Context, value string, nodes int) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(d.of(ctx, g, value)).To(HaveLen(nodes))
		checked := 0
		for _, b := range d.batchesOf(ctx, g, d.current(ctx, g)) {
			if len(b.Status.Checks) > 0 {
				checked += len(b.Spec.PodInfos)
			}
		}
		g.Expect(checked).To(Equal(nodes))
		g.Expect(conditionOf(d.current(ctx, g).Status.Conditions, v1alpha1.ConditionHeld)).To(
			And(HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.ReasonWaitingForVerdicts)))
	}).WithContext(ctx).Should(Succeed())
	d.strategy(ctx, holdsDaemon)
}

// fails fails the running check of the first batch.
func (d heldDaemon) fails(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		b := d.batchesOf(ctx, g, d.current(ctx, g))[0]
		for i := range b.Status.Checks {
			b.Status.Checks[i].Phase, b.Status.Checks[i].Message = v1alpha1.CheckFailed, "it answers wrongly"
		}
		g.Expect(d.api.Status().Update(ctx, &b)).To(Succeed())
	}).WithContext(ctx).Should(Succeed())
}

// ended waits until the hold has ended for a reason, and for the strategy.
func (d heldDaemon) ended(ctx context.Context, strategy, reason string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(d.get(ctx, g).GetAnnotations()).NotTo(HaveKey(v1alpha1.HeldAnnotation))
		g.Expect(conditionOf(d.current(ctx, g).Status.Conditions, v1alpha1.ConditionHeld)).To(
			And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", reason)))
	}).WithContext(ctx).Should(Succeed())
	d.strategy(ctx, strategy)
}

// applies applies the type of the strategy server-side, and forces nothing.
func (d heldDaemon) applies(ctx context.Context) error {
	strategy := map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxUnavailable": int64(1)}}
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"updateStrategy": strategy}}}
	o.SetGroupVersionKind(d.manifest(nil).GroupVersionKind())
	o.SetNamespace(d.namespace)
	o.SetName("sleep")
	return d.api.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("git"))
}

var _ = Describe("a held rollout of a DaemonSet", func() {
	w := inSharedWorld()

	It("replaces a wave each time the last one is verified, and gives the strategy back", func(ctx SpecContext) {
		d := w.holdingDaemon(ctx)
		Expect(d.release(ctx, "second")).To(Succeed())
		d.strategy(ctx, holdsDaemon)
		d.waits(ctx, "second", 1)
		By("applying the strategy of the manifest again")
		Expect(d.applies(ctx)).To(Succeed())
		d.strategy(ctx, holdsDaemon)
		d.pass(ctx)
		d.waits(ctx, "second", 2)
		d.passToTheEnd(ctx)
		d.ended(ctx, rollsDaemon, v1alpha1.ReasonHoldVerified)
		Expect(d.of(ctx, Default, "second")).To(HaveLen(3))
		Expect(d.applies(ctx)).To(Succeed(), "no other manager owns the type")
	})

	It("stays at its first wave when that fails, and goes back when it is undone", func(ctx SpecContext) {
		d := w.holdingDaemon(ctx)
		Expect(d.release(ctx, "second")).To(Succeed())
		d.waits(ctx, "second", 1)
		d.fails(ctx)
		d.change(ctx, v1alpha1.ChangeWorkloadSuspend)
		d.ended(ctx, holdsDaemon, v1alpha1.ReasonVerificationFailed)
		Expect(d.get(ctx, Default).GetAnnotations()).To(HaveKey(v1alpha1.HaltedAnnotation))
		Expect(d.get(ctx, Default).GetLabels()).To(HaveKey(v1alpha1.SuspendLabel))
		Consistently(func(g Gomega) {
			g.Expect(d.of(ctx, g, "second")).To(HaveLen(1))
		}).WithContext(ctx).WithTimeout(5 * time.Second).Should(Succeed())
		By("undoing it")
		Expect(d.release(ctx, "123")).To(Succeed())
		d.strategy(ctx, rollsDaemon)
		Eventually(func(g Gomega) {
			g.Expect(d.of(ctx, g, "123")).To(HaveLen(3))
			g.Expect(d.get(ctx, g).GetLabels()).NotTo(HaveKey(v1alpha1.SuspendLabel))
		}).WithContext(ctx).Should(Succeed())
		d.passToTheEnd(ctx)
	})
})
