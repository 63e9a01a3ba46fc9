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
	"os"
	"path/filepath"
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
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	defaults "github.com/traas-stack/altershield-operator/internal/policy"
)

const (
	// holdStep is how long a wave is kept at first from being available, so how long it
	// takes to go on by itself.
	holdStep = 40 * time.Second
	// someday is when a verdict comes that a spec does not wait for: it gives it itself.
	someday = 20 * time.Minute
)

// shortHold are flags by which a hold takes seconds.
var shortHold = []string{"--hold-step=" + holdStep.String(), "--hold-guard=6s"}

// inHoldWorld gives a container, which is Ordered, a world of its own. There is no policy
// but those of the specs.
func inHoldWorld(flags ...string) *world {
	w := inOwnWorld(flags...)
	BeforeAll(func(ctx SpecContext) { w.onlyOwnPolicies(ctx) }, NodeTimeout(patience))
	return w
}

// onlyOwnPolicies turns the default policy off, as soon as it is there: a hold waits for
// its checks, too, which take minutes.
func (w *world) onlyOwnPolicies(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() error {
		return w.api.Get(ctx, types.NamespacedName{Namespace: controlplane.ManagerNamespace, Name: defaults.DefaultName}, &v1alpha1.DefensePolicy{})
	}).WithContext(ctx).Should(Succeed())
	w.withoutDefaultPolicy(ctx)
}

// holdPolicy holds rollouts in a namespace, and has a verdict on each pod after a while.
func holdPolicy(ns string, until v1alpha1.HoldUntil, verdictAfter time.Duration) *v1alpha1.DefensePolicy {
	p := healthPolicy(ns, "soak", func(c *v1alpha1.PolicyCheck) {
		c.PodHealth.Duration = &metav1.Duration{Duration: verdictAfter}
		c.Deadline = &metav1.Duration{Duration: time.Hour}
	})
	p.Spec.Hold = &v1alpha1.PolicyHold{Until: until, MaxDuration: &metav1.Duration{Duration: time.Hour}}
	return p
}

// holding creates a Deployment in a namespace of its own, whose later releases are held
// until there are verdicts.
func (w *world) holding(ctx context.Context, until v1alpha1.HoldUntil, verdictAfter time.Duration, with ...func(*appsv1.Deployment)) (ns string) {
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

// waits waits until the rollout of web waits: it has so many pods of the current version,
// and all that the strategy lets it have, of which none that is not verified is available.
// Those that are verified may not be, either, where the verdicts come fast.
func (w *world) waits(ctx context.Context, ns string, updated, all, available int32) *appsv1.Deployment {
	GinkgoHelper()
	var d *appsv1.Deployment
	Eventually(func(g Gomega) {
		d = w.getDeployment(ctx, g, ns, "web")
		g.Expect(d.Status.ObservedGeneration).To(Equal(d.Generation))
		g.Expect([]int32{d.Status.UpdatedReplicas, d.Status.Replicas, d.Status.ReadyReplicas}).To(Equal([]int32{updated, all, all}), "updated, all, ready")
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

// pass passes the checks that go on of the current release of web, as a user does who
// needs to see no more.
func (w *world) pass(ctx context.Context, ns string) {
	GinkgoHelper()
	w.passBatches(ctx, w.batchesOf(ctx, Default, w.currentChange(ctx, Default, ns, "web")))
}

// passBatches passes the checks that go on of batches.
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

// givenBack waits until nothing is left of a hold but why it ended.
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

// paceOf are the fields that a hold changes.
func paceOf(d *appsv1.Deployment) []int32 {
	return []int32{d.Spec.MinReadySeconds, ptr.Deref(d.Spec.ProgressDeadlineSeconds, 600)}
}

// expectFewWrites checks that a hold took no more writes than two for each wave, one to
// give back, and one each time that no verdict came for as long as a step, of a rollout
// that was held so often at least.
func (w *world) expectFewWrites(ctx context.Context, ns string, waves int, step time.Duration) {
	GinkgoHelper()
	Expect(w.watcher.Settle(ctx)).To(Succeed())
	figures, err := w.watcher.HeldWrites(ns, "web")
	Expect(err).NotTo(HaveOccurred())
	AddReportEntry("writes of holds", fmt.Sprintf("%d writes for %d waves", figures.Writes, figures.Waves))
	Expect(figures.Waves).To(BeNumerically(">=", waves))
	took := time.Since(w.currentChange(ctx, Default, ns, "web").CreationTimestamp.Time)
	Expect(figures.Writes).To(And(BeNumerically(">=", 1), BeNumerically("<=", 2*figures.Waves+1+int(took/(step*3/4)))))
}

// crash lets a pod of the current version of web crash again and again.
func (w *world) crash(ctx context.Context, ns string) {
	GinkgoHelper()
	w.behaves(ctx, ns, "web", "crash-loop")
}

var _ = Describe("a rollout that is held", Ordered, SpecPriority(longest), func() {
	w := inHoldWorld(shortHold...)

	It("goes on a wave at a time, when the last one is verified", func(ctx SpecContext) {
		ns := w.holding(ctx, v1alpha1.HoldEveryBatch, 15*time.Second)
		w.releaseHeld(ctx, ns, "second")
		d := w.waits(ctx, ns, 4, 10, 6)
		Expect(d.Spec.MinReadySeconds).To(BeEquivalentTo(holdStep / time.Second))
		Expect(w.kubectl(ctx, "-n", ns, "get", "cwl", "-o", "wide")).To(And(ContainSubstring("HELD"), ContainSubstring(v1alpha1.ReasonWaitingForVerdicts)))
		w.waits(ctx, ns, 8, 10, 6)
		w.verified(ctx, ns, "web")
		w.givenBack(ctx, ns, 0, 600, v1alpha1.ReasonHoldVerified)
		w.rolledOut(ctx, ns, "web")
		Eventually(func(g Gomega) {
			g.Expect(w.eventsOf(ctx, g, ns, "web")).To(ContainElements(v1alpha1.EventHoldStarted, v1alpha1.EventHoldEnded))
		}).WithContext(ctx).Should(Succeed())
		w.expectFewWrites(ctx, ns, 2, holdStep)
	})

	It("that fails replaces no more pods, though rollouts are not halted, and is repaired", func(ctx SpecContext) {
		ns := w.holding(ctx, v1alpha1.HoldEveryBatch, someday, override("halting", "false"))
		w.releaseHeld(ctx, ns, "second")
		w.waits(ctx, ns, 4, 10, 6)
		w.checked(ctx, ns)
		w.crash(ctx, ns)
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		d := w.givenBack(ctx, ns, 0, 600, v1alpha1.ReasonHoldFailed)
		Expect(d.Spec.Paused).To(BeTrue())
		Eventually(func(g Gomega) {
			g.Expect(w.getDeployment(ctx, g, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
		}).WithContext(ctx).Should(Succeed())
		Consistently(func(g Gomega) {
			d = w.getDeployment(ctx, g, ns, "web")
			g.Expect(d.Status.Replicas-d.Status.UpdatedReplicas).To(BeEquivalentTo(6), "old pods")
		}).WithContext(ctx).Should(Succeed())
		Expect(w.patchTemplate(ctx, ns, "web", "third")).To(MatchError(ContainSubstring("is suspended")))

		By("repairing it: that is held, too")
		Expect(w.patchDeployment(ctx, ns, "web", repair("good"))).To(Succeed())
		d = w.getDeployment(ctx, Default, ns, "web")
		Expect(d.Spec.Paused).To(BeFalse())
		Expect(d.Annotations).To(HaveKey(v1alpha1.HeldAnnotation))
		w.passToTheEnd(ctx, ns)
		w.givenBack(ctx, ns, 0, 600, v1alpha1.ReasonHoldVerified)
		w.rolledOut(ctx, ns, "web")
		Eventually(func(g Gomega) {
			g.Expect(w.getDeployment(ctx, g, ns, "web").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		}).WithContext(ctx).Should(Succeed())
	})

	It("is none that creates pods, scales from nothing, or stops the old pods first", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.newDefensePolicy(ctx, holdPolicy(ns, v1alpha1.HoldEveryBatch, time.Second), v1alpha1.ReasonInForce)
		free := func() {
			GinkgoHelper()
			d := w.getDeployment(ctx, Default, ns, "web")
			Expect(d.Annotations).NotTo(HaveKey(v1alpha1.HeldAnnotation))
			Expect(paceOf(d)).To(Equal([]int32{0, 600}))
		}
		w.createAdmitted(ctx, sleeper(ns, "web").Replicas(2))
		free()
		w.verified(ctx, ns, "web")
		By("releasing it while it has no pods")
		Expect(w.patchDeployment(ctx, ns, "web", `{"spec":{"replicas":0}}`)).To(Succeed())
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		free()
		Expect(w.patchDeployment(ctx, ns, "web", `{"spec":{"replicas":2}}`)).To(Succeed())
		free()
		w.verified(ctx, ns, "web")
		free()
		By("stopping the old pods first")
		Expect(w.patchDeployment(ctx, ns, "web", `{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}`)).To(Succeed())
		Expect(w.patchTemplate(ctx, ns, "web", "third")).To(Succeed())
		free()
		w.verified(ctx, ns, "web")
		free()
		Expect(w.eventsOf(ctx, Default, ns, "web")).NotTo(ContainElement(v1alpha1.EventHoldStarted))
	})

	It("leaves its fields to who applies them, server-side", func(ctx SpecContext) {
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
		Expect(paceOf(apply())).To(Equal([]int32{0, 600}), "nobody else has them")
	})

	It("leaves fields alone that are declared later on", func(ctx SpecContext) {
		ns := w.holding(ctx, v1alpha1.HoldEveryBatch, someday)
		w.releaseHeld(ctx, ns, "second")
		w.passToTheEnd(ctx, ns)
		expectPaceLeft(w.givenBack(ctx, ns, 0, 600, v1alpha1.ReasonHoldVerified))
	})

	It("is over, and nothing of it is left, when its namespace is not enrolled any more", func(ctx SpecContext) {
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
			g.Expect(conditionOf(w.currentChange(ctx, g, ns, "web").Status.Conditions, v1alpha1.ConditionHeld).Status).To(Equal(metav1.ConditionFalse))
		}).WithContext(ctx).Should(Succeed())
		w.rolledOut(ctx, ns, "web")
		manifest.Spec.MinReadySeconds, manifest.Spec.ProgressDeadlineSeconds = 6, ptr.To[int32](101)
		Expect(paceOf(w.applyServerSide(ctx, manifest))).To(Equal([]int32{6, 101}), "without a conflict")
		w.leaveUnfinished("nothing is verified, or not for a long time")
	})

	It("is not touched by kubectl apply each second", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		manifest := paced(ns)
		file := filepath.Join(GinkgoT().TempDir(), "web.json")
		write := func() {
			GinkgoHelper()
			data, err := json.Marshal(manifest)
			Expect(err).NotTo(HaveOccurred())
			Expect(os.WriteFile(file, data, 0o600)).To(Succeed())
		}
		apply := func() { GinkgoHelper(); w.kubectl(ctx, "apply", "-f", file) }
		write()
		apply()
		w.verified(ctx, ns, "web")
		w.newDefensePolicy(ctx, holdPolicy(ns, v1alpha1.HoldEveryBatch, someday), v1alpha1.ReasonInForce)
		manifest.Spec.Template.Labels["test"] = "second"
		write()
		apply()
		w.waits(ctx, ns, 2, 5, 3)
		w.checked(ctx, ns)
		w.restful(ctx, ns)
		d := w.getDeployment(ctx, Default, ns, "web")
		Expect(d.Annotations).To(HaveKey(v1alpha1.HeldAnnotation))
		for range 5 {
			apply()
			Expect(w.getDeployment(ctx, Default, ns, "web").Generation).To(Equal(d.Generation))
		}
		Eventually(func(g Gomega) {
			apply()
			w.pass(ctx, ns)
			g.Expect(w.currentChange(ctx, g, ns, "web").Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		}).WithContext(ctx).WithPolling(time.Second).Should(Succeed())
		d = w.givenBack(ctx, ns, 5, 100, v1alpha1.ReasonHoldVerified)
		apply()
		Expect(paceOf(w.getDeployment(ctx, Default, ns, "web"))).To(Equal(paceOf(d)))
		w.expectFewWrites(ctx, ns, 2, holdStep)
	})
})

// applyServerSide applies a manifest as an applier does, and forces nothing.
func (w *world) applyServerSide(ctx context.Context, manifest *appsv1.Deployment) *appsv1.Deployment {
	GinkgoHelper()
	data, err := json.Marshal(manifest)
	Expect(err).NotTo(HaveOccurred())
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: manifest.Namespace, Name: manifest.Name}}
	Expect(w.api.Patch(ctx, d, client.RawPatch(types.ApplyPatchType, data), client.FieldOwner(applierName))).To(Succeed())
	return d
}

// paced is a manifest of web that says itself what a hold changes.
func paced(ns string) *appsv1.Deployment {
	return sleeper(ns, "web").Replicas(4).MinReadySeconds(5).With(func(d *appsv1.Deployment) {
		d.TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
		d.Spec.ProgressDeadlineSeconds = ptr.To[int32](100)
	}).Obj()
}

// expectPaceLeft checks that the operator has no field that a hold changed.
func expectPaceLeft(d *appsv1.Deployment) {
	GinkgoHelper()
	for _, e := range d.ManagedFields {
		if e.Manager == v1alpha1.FieldManager && e.FieldsV1 != nil {
			Expect(string(e.FieldsV1.GetRawBytes())).NotTo(Or(ContainSubstring("f:minReadySeconds"), ContainSubstring("f:progressDeadlineSeconds")))
		}
	}
}

var _ = Describe("a rollout that is held, and what comes in between,", Ordered, SpecPriority(longest), func() {
	w := inHoldWorld(shortHold...)
	var m *meter
	BeforeAll(func(ctx SpecContext) { m = w.newMeter(ctx) }, NodeTimeout(patience))

	// held has the first wave of web wait.
	held := func(ctx context.Context, with ...func(*appsv1.Deployment)) (ns string) {
		GinkgoHelper()
		ns = w.holding(ctx, v1alpha1.HoldEveryBatch, someday, with...)
		w.releaseHeld(ctx, ns, "second")
		w.waits(ctx, ns, 4, 10, 6)
		w.checked(ctx, ns)
		return ns
	}

	It("goes back at once by kubectl rollout undo", func(ctx SpecContext) {
		ns := held(ctx)
		w.kubectl(ctx, "-n", ns, "rollout", "undo", "deployment/web")
		d := w.getDeployment(ctx, Default, ns, "web")
		Expect(d.Annotations).NotTo(HaveKey(v1alpha1.HeldAnnotation), "in the same request")
		Expect(paceOf(d)).To(Equal([]int32{0, 600}))
		Expect(d.Spec.Template.Labels).To(HaveKeyWithValue("test", "123"))
		w.rolledOut(ctx, ns, "web")
		w.passToTheEnd(ctx, ns)
		Expect(conditionOf(w.currentChange(ctx, Default, ns, "web").Status.Conditions, v1alpha1.ConditionHeld).Status).NotTo(Equal(metav1.ConditionTrue))
		Expect(paceOf(w.getDeployment(ctx, Default, ns, "web"))).To(Equal([]int32{0, 600}))
	})

	It("would be held where the workload is only observed", func(ctx SpecContext) {
		ns := w.holding(ctx, v1alpha1.HoldEveryBatch, 3*time.Second, override("observe", "true"))
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		d := w.getDeployment(ctx, Default, ns, "web")
		Expect(d.Annotations).NotTo(HaveKey(v1alpha1.HeldAnnotation))
		Expect(paceOf(d)).To(Equal([]int32{0, 600}))
		w.rolledOut(ctx, ns, "web")
		w.verified(ctx, ns, "web")
		Eventually(func(g Gomega) {
			g.Expect(w.eventsOf(ctx, g, ns, "web")).To(ContainElement(v1alpha1.EventWouldHold))
			g.Expect(w.eventsOf(ctx, g, ns, "web")).NotTo(ContainElement(v1alpha1.EventHoldStarted))
		}).WithContext(ctx).Should(Succeed())
		Expect(conditionOf(w.currentChange(ctx, Default, ns, "web").Status.Conditions, v1alpha1.ConditionHeld).Reason).To(Equal(v1alpha1.ReasonNotHeld))
	})

	It("goes on by itself, a wave at a time, while the manager is dead, and waits again when it is back", func(ctx SpecContext) {
		ns := held(ctx)
		w.observer.OperatorStops()
		Expect(w.manager.Kill()).To(Succeed())
		d := w.getDeployment(ctx, Default, ns, "web")
		ready := time.Now()
		for _, pod := range w.podsOf(ctx, Default, ns, "web") {
			if at := readyCondition(pod).LastTransitionTime.Time; at.Before(ready) {
				ready = at
			}
		}
		By("waiting until the second wave is made, and no more")
		Eventually(func(g Gomega) {
			g.Expect(w.getDeployment(ctx, g, ns, "web").Status.UpdatedReplicas).To(BeEquivalentTo(8))
		}).WithContext(ctx).Should(Succeed())
		Expect(time.Since(ready)).To(BeNumerically(">=", time.Duration(d.Spec.MinReadySeconds-1)*time.Second))
		now := w.getDeployment(ctx, Default, ns, "web")
		Expect(now.Status.Replicas-now.Status.UpdatedReplicas).To(BeNumerically(">=", 2), "old pods")
		Expect(w.manager.Start(ctx)).To(Succeed())
		w.observer.OperatorStarts()
		By("holding the second wave")
		w.checked(ctx, ns)
		Eventually(func(g Gomega) {
			now := w.getDeployment(ctx, g, ns, "web")
			g.Expect(now.Annotations).To(HaveKey(v1alpha1.HeldAnnotation))
			g.Expect(now.Status.Replicas-now.Status.UpdatedReplicas).To(BeNumerically(">=", 2), "old pods")
		}).WithContext(ctx).Should(Succeed())
		w.passToTheEnd(ctx, ns)
		w.givenBack(ctx, ns, 0, 600, v1alpha1.ReasonHoldVerified)
		w.rolledOut(ctx, ns, "web")
	})

	It("is scaled by an autoscaler", func(ctx SpecContext) {
		ns := held(ctx)
		m.set(ns, 8)
		w.autoscale(ctx, ns)
		scale := func(n int32) {
			GinkgoHelper()
			m.scale(ctx, ns, n)
			Eventually(func(g Gomega) {
				d := w.getDeployment(ctx, g, ns, "web")
				g.Expect(d.Status.ObservedGeneration).To(Equal(d.Generation))
				g.Expect(d.Status.ReadyReplicas).To(And(BeNumerically(">=", n), BeNumerically("<=", n+2)), "it may have two more than it wants")
				g.Expect(d.Annotations).To(HaveKey(v1alpha1.HeldAnnotation))
			}).WithContext(ctx).Should(Succeed())
		}
		scale(6)
		scale(8)
		w.passToTheEnd(ctx, ns)
		w.givenBack(ctx, ns, 0, 600, v1alpha1.ReasonHoldVerified)
		w.expectScaledFreely(ctx, ns)
	})

	It("has the pods of a node replaced that is lost", func(ctx SpecContext) {
		const pool = "held"
		w.addNode(ctx, pool, pool+"-a")
		ns := held(ctx, onPool(pool))
		w.addNode(ctx, pool, pool+"-b")
		Expect(w.lose(ctx, ns, pool+"-a")).To(HaveLen(10))
		w.passToTheEnd(ctx, ns)
		w.givenBack(ctx, ns, 0, 600, v1alpha1.ReasonHoldVerified)
		for _, pod := range w.podsOf(ctx, Default, ns, "web") {
			Expect(pod.Spec.NodeName).To(Equal(pool + "-b"))
		}
	})

	It("goes on a wave at a time, when kube-controller-manager was away as it was let go on", func(ctx SpecContext) {
		ns := held(ctx)
		Expect(w.cluster.RestartControllers(ctx, func() {
			d := w.getDeployment(ctx, Default, ns, "web")
			w.pass(ctx, ns)
			Eventually(func(g Gomega) {
				now := w.getDeployment(ctx, g, ns, "web")
				g.Expect(now.Spec.MinReadySeconds).To(BeNumerically("<", d.Spec.MinReadySeconds), "the wave is let go on")
			}).WithContext(ctx).Should(Succeed())
		})).To(Succeed())
		w.waits(ctx, ns, 8, 10, 6)
		w.passToTheEnd(ctx, ns)
		w.givenBack(ctx, ns, 0, 600, v1alpha1.ReasonHoldVerified)
		w.expectFewWrites(ctx, ns, 2, holdStep)
	})
})

var _ = Describe("a rollout that is held, with AlterShield Server,", Ordered, SpecPriority(longest), func() {
	w := inWorldWithoutManager()
	var sim *simulator.Simulator
	BeforeAll(func(ctx SpecContext) {
		sim = w.simulate(simulator.Options{AdmissionScene: admissionScene})
		w.manager = w.install(ctx, controlplane.ManagerOptions{Name: "defended", Args: append(serverArgs(sim.URL()), shortHold...)})
		sim.SetCallbackURLs(w.manager.CallbackAddress() + callbackPath)
		Expect(w.manager.Start(ctx)).To(Succeed())
		w.onlyOwnPolicies(ctx)
	}, NodeTimeout(patience))
	AfterEach(func() {
		if sim != nil {
			sim.ClearScripts()
		}
	})
	after := func(ns string, delay time.Duration, verdict altershield.VerdictValue) simulator.Script {
		return simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost}, Delay: delay, Verdict: verdict}
	}

	It("waits for the verdicts of the server, by the setting", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.createAdmitted(ctx, sleeper(ns, "web").Replicas(4).Setting("holding", "every"))
		w.verified(ctx, ns, "web")
		sim.Script(after(ns, 10*time.Second, altershield.VerdictPass))
		w.releaseHeld(ctx, ns, "second")
		w.waits(ctx, ns, 2, 5, 3)
		w.waits(ctx, ns, 4, 5, 3)
		w.verified(ctx, ns, "web")
		w.givenBack(ctx, ns, 0, 600, v1alpha1.ReasonHoldVerified)
		Expect(messagesOf(w.batchesOf(ctx, Default, w.orderEnded(ctx, ns, "web")))).To(HaveEach("PostFinish"))
		w.expectFewWrites(ctx, ns, 2, holdStep)
	})

	It("replaces no more pods when the server fails its first ones, though a policy passes them", func(ctx SpecContext) {
		ns := w.holding(ctx, v1alpha1.HoldEveryBatch, 3*time.Second)
		sim.Script(after(ns, 8*time.Second, altershield.VerdictFail))
		w.releaseHeld(ctx, ns, "second")
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		d := w.givenBack(ctx, ns, 0, 600, v1alpha1.ReasonHoldFailed)
		Expect(d.Spec.Paused).To(BeTrue())
		Expect(d.Status.Replicas-d.Status.UpdatedReplicas).To(BeEquivalentTo(6), "old pods")
		sim.ClearScripts()
		Expect(w.patchDeployment(ctx, ns, "web", repair("good"))).To(Succeed())
		w.verified(ctx, ns, "web")
		w.givenBack(ctx, ns, 0, 600, v1alpha1.ReasonHoldVerified)
	})

	It("is held up by a server that says nothing only for as long as that is waited for", func(ctx SpecContext) {
		w.shortTimeouts(ctx, 4*time.Second, 4*time.Second)
		ns := w.newNamespace(ctx, true)
		w.createAdmitted(ctx, sleeper(ns, "web").Replicas(4).Setting("holding", "every"))
		w.verified(ctx, ns, "web")
		silent := after(ns, 0, altershield.VerdictPass)
		silent.Never = true
		sim.Script(silent)
		w.releaseHeld(ctx, ns, "second")
		change := w.verified(ctx, ns, "web")
		w.givenBack(ctx, ns, 0, 600, v1alpha1.ReasonHoldVerified)
		Expect(messagesOf(w.batchesOf(ctx, Default, change))).To(HaveEach("PostTimeout"))
	})
})

var _ = Describe("a rollout that is held, by several replicas of the operator,", Ordered, SpecPriority(longest), func() {
	w := inWorldWithoutManager()
	var leads *controlplane.Manager
	BeforeAll(func(ctx SpecContext) {
		flags := append([]string{"--leader-elect=true"}, shortHold...)
		leads = w.install(ctx, controlplane.ManagerOptions{Name: "leads", Args: flags})
		// API servers ask this one.
		w.manager = w.install(ctx, controlplane.ManagerOptions{Name: "follows", Args: flags})
		DeferCleanup(leads.Stop)
		Expect(leads.Start(ctx)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(w.kubectl(ctx, "-n", controlplane.ManagerNamespace, "get", "leases", "-o", "jsonpath={.items[*].spec.holderIdentity}")).NotTo(BeEmpty())
		}).WithContext(ctx).Should(Succeed())
		Expect(w.manager.Start(ctx)).To(Succeed())
		w.onlyOwnPolicies(ctx)
	}, NodeTimeout(patience))

	It("stays held when the one that leads is killed", func(ctx SpecContext) {
		ns := w.holding(ctx, v1alpha1.HoldEveryBatch, someday)
		w.releaseHeld(ctx, ns, "second")
		d := w.waits(ctx, ns, 4, 10, 6)
		w.checked(ctx, ns)
		Expect(leads.Kill()).To(Succeed())
		By("waiting until the other one holds the wave on")
		Eventually(func(g Gomega) {
			g.Expect(w.getDeployment(ctx, g, ns, "web").Spec.MinReadySeconds).To(BeNumerically(">", d.Spec.MinReadySeconds))
		}).WithContext(ctx).Should(Succeed())
		w.waits(ctx, ns, 4, 10, 6)
		w.passToTheEnd(ctx, ns)
		w.givenBack(ctx, ns, 0, 600, v1alpha1.ReasonHoldVerified)
		w.expectFewWrites(ctx, ns, 2, holdStep)
	})
})

// holdStory is a release that is held until its pods are verified, wave after wave. Where
// the manager is dead as it is released, there may be nothing left to hold when it is back.
func (w *world) holdStory(ctx context.Context, ns string) {
	GinkgoHelper()
	p := holdPolicy(ns, v1alpha1.HoldEveryBatch, 4*time.Second)
	Expect(w.api.Create(ctx, p)).To(Succeed())
	w.create(ctx, sleeper(ns, "web").Replicas(4).MinReadySeconds(1))
	w.verified(ctx, ns, "web")
	Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(w.currentChange(ctx, g, ns, "web").Spec.Release).To(BeEquivalentTo(2))
	}).WithContext(ctx).Should(Succeed())
	w.verified(ctx, ns, "web")
	Eventually(func(g Gomega) {
		d := w.getDeployment(ctx, g, ns, "web")
		g.Expect(d.Annotations).NotTo(HaveKey(v1alpha1.HeldAnnotation))
		g.Expect(paceOf(d)).To(Equal([]int32{1, 600}))
		c := conditionOf(w.currentChange(ctx, g, ns, "web").Status.Conditions, v1alpha1.ConditionHeld)
		g.Expect(c.Status).To(Equal(metav1.ConditionFalse))
		g.Expect(c.Reason).To(BeElementOf(v1alpha1.ReasonHoldVerified, v1alpha1.ReasonNotHeld))
	}).WithContext(ctx).Should(Succeed())
}

// The times of a hold are those of production here.
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
	It("go on side by side, by all strategies, however long a verdict takes", func(ctx SpecContext) {
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
			r.ns = w.holding(ctx, v1alpha1.HoldEveryBatch, r.verdict, rolling(r.surge, r.unavailable), func(d *appsv1.Deployment) { d.Spec.Replicas = &r.replicas })
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
			w.expectFewWrites(ctx, r.ns, int(r.waves), 10*time.Minute)
		}
	}, NodeTimeout(time.Hour))
})
