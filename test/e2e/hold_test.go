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
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	defaults "github.com/traas-stack/altershield-operator/internal/policy"
)

const (
	// holdStep is the time for which a hold at first keeps a wave from being available. After it, the rollout continues without the operator.
	holdStep = 40 * time.Second
	// someday is the time of verdicts that specs do not wait for: they pass the checks themselves.
	someday = 20 * time.Minute
)

// shortHold has the flags with which a hold takes seconds.
var shortHold = []string{"--hold-step=" + holdStep.String(), "--hold-guard=6s"}

// inHoldWorld gives an Ordered container a world of its own, in which only policies of the specs are in force.
func inHoldWorld(flags ...string) *world {
	w := inOwnWorld(flags...)
	BeforeAll(func(ctx SpecContext) { w.onlyOwnPolicies(ctx) }, NodeTimeout(patience))
	return w
}

// onlyOwnPolicies turns the default policy off as soon as it exists: a hold would wait for its checks, which take minutes.
func (w *world) onlyOwnPolicies(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() error {
		key := types.NamespacedName{Namespace: controlplane.ManagerNamespace, Name: defaults.DefaultName}
		return w.api.Get(ctx, key, &v1alpha1.DefensePolicy{})
	}).WithContext(ctx).Should(Succeed())
	w.withoutDefaultPolicy(ctx)
}

// holdPolicy returns a policy that holds rollouts in a namespace, and has a verdict on each pod after a while.
func holdPolicy(ns string, until v1alpha1.HoldUntil, verdictAfter time.Duration) *v1alpha1.DefensePolicy {
	p := healthPolicy(ns, "soak", func(c *v1alpha1.PolicyCheck) {
		c.PodHealth.Duration = &metav1.Duration{Duration: verdictAfter}
		c.Deadline = &metav1.Duration{Duration: time.Hour}
	})
	p.Spec.Hold = &v1alpha1.PolicyHold{Until: until, MaxDuration: &metav1.Duration{Duration: time.Hour}}
	return p
}

// holding creates a Deployment in a namespace of its own. Its later releases are held until there are verdicts.
func (w *world) holding(
	ctx context.Context, until v1alpha1.HoldUntil, verdictAfter time.Duration, with ...func(*appsv1.Deployment),
) (ns string) {
	GinkgoHelper()
	ns = w.newNamespace(ctx, true)
	w.createAdmitted(ctx, sleeper(ns, "web").Replicas(8).With(with...))
	w.verified(ctx, ns, "web")
	w.newDefensePolicy(ctx, holdPolicy(ns, until, verdictAfter), v1alpha1.ReasonInForce)
	return ns
}

// releaseHeld releases the next version of web, which is held from the same request on.
func (w *world) releaseHeld(ctx context.Context, ns, value string) *appsv1.Deployment {
	GinkgoHelper()
	Expect(w.patchTemplate(ctx, ns, "web", value)).To(Succeed())
	d := w.getDeployment(ctx, Default, ns, "web")
	Expect(d.Annotations).To(HaveKey(v1alpha1.HeldAnnotation), "admission holds it")
	return d
}

// waits waits until the rollout of web is held with so many pods: pods of the current version, all pods, and available pods. Unverified
// pods are not available. If verdicts come fast, even verified pods may not be available yet.
func (w *world) waits(ctx context.Context, ns string, updated, all, available int32) *appsv1.Deployment {
	GinkgoHelper()
	var d *appsv1.Deployment
	Eventually(func(g Gomega) {
		d = w.getDeployment(ctx, g, ns, "web")
		g.Expect(d.Status.ObservedGeneration).To(Equal(d.Generation))
		counts := []int32{d.Status.UpdatedReplicas, d.Status.Replicas, d.Status.ReadyReplicas}
		g.Expect(counts).To(Equal([]int32{updated, all, all}), "updated, all, ready")
		g.Expect(d.Status.AvailableReplicas).To(BeNumerically("<=", available))
		g.Expect(w.podUIDs(ctx, g, ns, "web")).To(HaveLen(int(all)))
		c := conditionOf(w.currentChange(ctx, g, ns, "web").Status.Conditions, v1alpha1.ConditionHeld)
		g.Expect(c).To(And(HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.ReasonWaitingForVerdicts)))
	}).WithContext(ctx).Should(Succeed())
	Expect(d.Annotations).To(HaveKey(v1alpha1.HeldAnnotation))
	return d
}

// checked waits until each pod of the current version is in a batch that is checked.
func (w *world) checked(ctx context.Context, ns string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		pods := 0
		for _, b := range w.batchesOf(ctx, g, w.currentChange(ctx, g, ns, "web")) {
			if len(b.Status.Checks) > 0 {
				pods += len(b.Spec.PodInfos)
			}
		}
		g.Expect(pods).To(BeNumerically(">=", len(w.podsOf(ctx, g, ns, "web"))))
	}).WithContext(ctx).Should(Succeed())
}

// passBatches passes the running checks of batches.
func (w *world) passBatches(ctx context.Context, batches []v1alpha1.ChangePod) {
	GinkgoHelper()
	for _, b := range batches {
		Eventually(func(g Gomega) {
			var now v1alpha1.ChangePod
			g.Expect(client.IgnoreNotFound(w.api.Get(ctx, client.ObjectKeyFromObject(&b), &now))).To(Succeed())
			running := false
			for i := range now.Status.Checks {
				c := &now.Status.Checks[i]
				running = running || c.Phase != v1alpha1.CheckPassed
				c.Phase = v1alpha1.CheckPassed
			}
			if running {
				g.Expect(w.api.Status().Update(ctx, &now)).To(Succeed())
			}
		}).WithContext(ctx).Should(Succeed())
	}
}

// passToTheEnd passes the checks of wave after wave, until web is verified.
func (w *world) passToTheEnd(ctx context.Context, ns string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		w.passBatches(ctx, w.batchesOf(ctx, g, w.currentChange(ctx, g, ns, "web"))) // it may not be recorded yet
		g.Expect(w.currentChange(ctx, g, ns, "web").Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
	}).WithContext(ctx).WithPolling(time.Second).Should(Succeed())
	return w.verified(ctx, ns, "web")
}

// givenBack waits until the hold has ended for a reason, and checks the fields that are given back.
func (w *world) givenBack(ctx context.Context, ns string, minReady, deadline int32, reason string) *appsv1.Deployment {
	GinkgoHelper()
	var d *appsv1.Deployment
	Eventually(func(g Gomega) {
		d = w.getDeployment(ctx, g, ns, "web")
		g.Expect(d.Annotations).NotTo(HaveKey(v1alpha1.HeldAnnotation))
		g.Expect(conditionOf(w.currentChange(ctx, g, ns, "web").Status.Conditions, v1alpha1.ConditionHeld)).To(
			And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", reason)))
	}).WithContext(ctx).Should(Succeed())
	Expect(paceOf(d)).To(Equal([]int32{minReady, deadline}), "minReadySeconds and progressDeadlineSeconds are given back")
	return d
}

// paceOf returns the fields that a hold changes.
func paceOf(d *appsv1.Deployment) []int32 {
	return []int32{d.Spec.MinReadySeconds, ptr.Deref(d.Spec.ProgressDeadlineSeconds, 600)}
}

var _ = Describe("a rollout that is held", Ordered, SpecPriority(longest), func() {
	w := inHoldWorld(shortHold...)

	It("goes on by one wave each time the last wave is verified", func(ctx SpecContext) {
		ns := w.holding(ctx, v1alpha1.HoldEveryBatch, 15*time.Second)
		w.releaseHeld(ctx, ns, "second")
		d := w.waits(ctx, ns, 4, 10, 6)
		Expect(d.Spec.MinReadySeconds).To(BeEquivalentTo(holdStep / time.Second))
		Expect(w.kubectl(ctx, "-n", ns, "get", "cwl", "-o", "wide")).To(
			And(ContainSubstring("HELD"), ContainSubstring(v1alpha1.ReasonWaitingForVerdicts)))
		w.waits(ctx, ns, 8, 10, 6)
		w.verified(ctx, ns, "web")
		expectPaceLeft(w.givenBack(ctx, ns, 0, 600, v1alpha1.ReasonHoldVerified))
		w.rolledOut(ctx, ns, "web")
		Eventually(func(g Gomega) {
			g.Expect(w.eventsOf(ctx, g, ns, "web")).To(ContainElements(v1alpha1.EventHoldStarted, v1alpha1.EventHoldEnded))
		}).WithContext(ctx).Should(Succeed())
	})

	It("leaves its fields to the manager that applies them server-side", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		manifest := paced(ns)
		apply := func() *appsv1.Deployment { GinkgoHelper(); return w.applyServerSide(ctx, manifest) }
		apply()
		w.verified(ctx, ns, "web")
		w.newDefensePolicy(ctx, holdPolicy(ns, v1alpha1.HoldEveryBatch, someday), v1alpha1.ReasonInForce)
		manifest.Spec.Template.Labels["test"] = "second"
		Expect(apply().Annotations).To(HaveKey(v1alpha1.HeldAnnotation))

		By("applying it again and again while it waits")
		w.waits(ctx, ns, 2, 5, 3)
		w.checked(ctx, ns)
		w.restful(ctx, ns)
		before := w.getDeployment(ctx, Default, ns, "web")
		for range 3 {
			d := apply()
			Expect(d.Spec).To(Equal(before.Spec))
			Expect(d.Annotations).To(Equal(before.Annotations))
			Expect(d.Generation).To(Equal(before.Generation))
			expectPaceLeft(d)
		}
		By("applying a fix")
		manifest.Spec.Template.Labels["test"] = "third"
		Expect(apply().Spec.MinReadySeconds).To(BeEquivalentTo(holdStep / time.Second))
		w.passToTheEnd(ctx, ns)
		d := w.givenBack(ctx, ns, 5, 100, v1alpha1.ReasonHoldVerified)
		expectPaceLeft(d)
		By("applying other values once it is over")
		manifest.Spec.MinReadySeconds, manifest.Spec.ProgressDeadlineSeconds = 6, ptr.To[int32](101)
		Expect(paceOf(apply())).To(Equal([]int32{6, 101}))
		manifest.Spec.MinReadySeconds, manifest.Spec.ProgressDeadlineSeconds = 0, nil
		Expect(paceOf(apply())).To(Equal([]int32{0, 600}), "no other manager owns them")
	})

	It("ends, and leaves nothing, when its namespace is no longer enrolled", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		manifest := paced(ns)
		w.applyServerSide(ctx, manifest)
		w.verified(ctx, ns, "web")
		w.newDefensePolicy(ctx, holdPolicy(ns, v1alpha1.HoldEveryBatch, someday), v1alpha1.ReasonInForce)
		manifest.Spec.Template.Labels["test"] = "second"
		w.applyServerSide(ctx, manifest)
		w.waits(ctx, ns, 2, 5, 3)
		w.checked(ctx, ns)
		w.kubectl(ctx, "label", "namespace", ns, v1alpha1.EnrolledLabel+"-")
		Eventually(func(g Gomega) {
			d := w.getDeployment(ctx, g, ns, "web")
			g.Expect(d.Annotations).NotTo(HaveKey(v1alpha1.HeldAnnotation))
			g.Expect(paceOf(d)).To(Equal([]int32{5, 100}))
			held := conditionOf(w.currentChange(ctx, g, ns, "web").Status.Conditions, v1alpha1.ConditionHeld)
			g.Expect(held.Status).To(Equal(metav1.ConditionFalse))
		}).WithContext(ctx).Should(Succeed())
		w.rolledOut(ctx, ns, "web")
		manifest.Spec.MinReadySeconds, manifest.Spec.ProgressDeadlineSeconds = 6, ptr.To[int32](101)
		Expect(paceOf(w.applyServerSide(ctx, manifest))).To(Equal([]int32{6, 101}), "without a conflict")
		w.leaveUnfinished("nothing is verified, or not for a long time")
	})

	It("is undone at once by kubectl rollout undo", func(ctx SpecContext) {
		ns := w.holding(ctx, v1alpha1.HoldEveryBatch, someday)
		w.releaseHeld(ctx, ns, "second")
		w.waits(ctx, ns, 4, 10, 6)
		w.checked(ctx, ns)
		w.kubectl(ctx, "-n", ns, "rollout", "undo", "deployment/web")
		d := w.getDeployment(ctx, Default, ns, "web")
		Expect(d.Annotations).NotTo(HaveKey(v1alpha1.HeldAnnotation), "in the same request")
		Expect(paceOf(d)).To(Equal([]int32{0, 600}))
		Expect(d.Spec.Template.Labels).To(HaveKeyWithValue("test", "123"))
		w.rolledOut(ctx, ns, "web")
		w.passToTheEnd(ctx, ns)
		held := conditionOf(w.currentChange(ctx, Default, ns, "web").Status.Conditions, v1alpha1.ConditionHeld)
		Expect(held.Status).NotTo(Equal(metav1.ConditionTrue))
		Expect(paceOf(w.getDeployment(ctx, Default, ns, "web"))).To(Equal([]int32{0, 600}))
	})

	It("of a StatefulSet goes on by one pod each time the last pod is verified, while it is applied server-side", func(ctx SpecContext) {
		s := w.holdingSet(ctx, v1alpha1.HoldEveryBatch, func(spec, _ map[string]any) {
			spec["ordinals"] = map[string]any{"start": int64(7)}
		})
		Expect(s.release(ctx, "second")).To(Succeed())
		Expect(s.partition(ctx, Default)).To(BeEquivalentTo(4), "in the same request")
		s.waits(ctx, "second", 4, "sleep-11")
		By("being taken for complete by kubectl rollout status")
		Expect(w.kubectl(ctx, "-n", s.namespace, "rollout", "status", "statefulset/sleep")).To(
			ContainSubstring("partitioned roll out complete: 1 new pods have been updated"))
		Expect(s.applies(ctx, 0)).To(Succeed())
		Consistently(func(g Gomega) {
			g.Expect(s.of(ctx, g, "second")).To(ConsistOf("sleep-11"))
			g.Expect(s.partition(ctx, g)).To(BeEquivalentTo(4))
		}, 5*time.Second).WithContext(ctx).Should(Succeed())
		s.pass(ctx)
		s.waits(ctx, "second", 3, "sleep-11", "sleep-10")
		Expect(s.applies(ctx, 0)).To(Succeed())
		Expect(s.partition(ctx, Default)).To(BeEquivalentTo(3))
		By("recreating a pod below the partition")
		w.kubectl(ctx, "-n", s.namespace, "delete", "pod", "sleep-8")
		Eventually(func(g Gomega) {
			g.Expect(s.of(ctx, g, "123")).To(ConsistOf("sleep-7", "sleep-8", "sleep-9"))
		}).WithContext(ctx).Should(Succeed())
		s.passToTheEnd(ctx)
		s.given(ctx, 0, v1alpha1.ReasonHoldVerified)
		for _, e := range s.get(ctx, Default).GetManagedFields() {
			if e.Manager == v1alpha1.FieldManager && e.FieldsV1 != nil {
				Expect(string(e.FieldsV1.GetRawBytes())).NotTo(ContainSubstring("f:partition"))
			}
		}
		Expect(s.applies(ctx, 1)).To(Succeed())
	})
})

// applyServerSide applies a manifest as an applier does, without force.
func (w *world) applyServerSide(ctx context.Context, manifest *appsv1.Deployment) *appsv1.Deployment {
	GinkgoHelper()
	data, err := json.Marshal(manifest)
	Expect(err).NotTo(HaveOccurred())
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: manifest.Namespace, Name: manifest.Name}}
	Expect(w.api.Patch(ctx, d, client.RawPatch(types.ApplyPatchType, data), client.FieldOwner(applierName))).To(Succeed())
	return d
}

// paced returns a manifest of web that sets the fields that a hold changes.
func paced(ns string) *appsv1.Deployment {
	return sleeper(ns, "web").Replicas(4).MinReadySeconds(5).With(func(d *appsv1.Deployment) {
		d.TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
		d.Spec.ProgressDeadlineSeconds = ptr.To[int32](100)
	}).Obj()
}

// expectPaceLeft checks that the operator owns no field that a hold changes.
func expectPaceLeft(d *appsv1.Deployment) {
	GinkgoHelper()
	for _, e := range d.ManagedFields {
		if e.Manager == v1alpha1.FieldManager && e.FieldsV1 != nil {
			Expect(string(e.FieldsV1.GetRawBytes())).NotTo(Or(ContainSubstring("f:minReadySeconds"), ContainSubstring("f:progressDeadlineSeconds")))
		}
	}
}

// These specs use the default times of a hold.
var _ = Describe("many rollouts that are held", Ordered, SpecPriority(longest), Label(soak), func() {
	w := inHoldWorld()

	rolling := func(surge, unavailable string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			s, u := intstr.Parse(surge), intstr.Parse(unavailable)
			d.Spec.Strategy = appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u},
			}
		}
	}
	It("go on side by side, with all strategies, however long a verdict takes", func(ctx SpecContext) {
		type rollout struct {
			replicas, waves    int32
			surge, unavailable string
			verdict            time.Duration
			ns                 string
		}
		rollouts := []rollout{
			{replicas: 50, waves: 2, surge: "25%", unavailable: "25%", verdict: 5 * time.Second},
			{replicas: 50, waves: 2, surge: "25%", unavailable: "25%", verdict: 2 * time.Minute},
			{replicas: 8, waves: 8, surge: "1", unavailable: "0", verdict: 5 * time.Second},
			{replicas: 4, waves: 4, surge: "1", unavailable: "0", verdict: 2 * time.Minute},
			{replicas: 8, waves: 8, surge: "0", unavailable: "1", verdict: 5 * time.Second},
			{replicas: 4, waves: 4, surge: "0", unavailable: "1", verdict: 2 * time.Minute},
			{replicas: 100, waves: 2, surge: "25%", unavailable: "25%", verdict: 20 * time.Second},
		}
		for i := range rollouts {
			r := &rollouts[i]
			replicas := func(d *appsv1.Deployment) { d.Spec.Replicas = &r.replicas }
			r.ns = w.holding(ctx, v1alpha1.HoldEveryBatch, r.verdict, rolling(r.surge, r.unavailable), replicas)
		}
		began := time.Now()
		for _, r := range rollouts {
			w.releaseHeld(ctx, r.ns, "second")
		}
		over := map[int]time.Duration{}
		Eventually(func(g Gomega) {
			for i, r := range rollouts {
				if over[i] == 0 && w.currentChange(ctx, g, r.ns, "web").Status.Status == v1alpha1.ChangeWorkloadSuccess {
					over[i] = time.Since(began).Round(time.Second)
				}
			}
			g.Expect(over).To(HaveLen(len(rollouts)))
		}).WithContext(ctx).WithTimeout(40 * time.Minute).WithPolling(time.Second).Should(Succeed())
		for i, r := range rollouts {
			w.verified(ctx, r.ns, "web")
			w.givenBack(ctx, r.ns, 0, 600, v1alpha1.ReasonHoldVerified)
			Expect(over[i]).To(BeNumerically(">=", time.Duration(r.waves)*r.verdict), "each wave waits for its verdict")
			AddReportEntry(fmt.Sprintf("%d pods, %s/%s, verdicts after %s: over after %s", r.replicas, r.surge, r.unavailable, r.verdict, over[i]))
		}
	}, NodeTimeout(time.Hour))
})
