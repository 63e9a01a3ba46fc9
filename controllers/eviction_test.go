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

package controllers_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
)

// evictionStories are stories of StatefulSets whose controller waits for a pod of an earlier version.
func evictionStories() []world.Story {
	off := nativeOptions()
	off.Settings = map[string]v1alpha1.OpsConfigValue{settings.NameEviction: {}}
	healing := nativeOptions()
	healing.Settings = on(settings.NameSelfHealing, "")
	healing.Settings[settings.NameHalting] = v1alpha1.OpsConfigValue{} // a halt gives the strategy a partition
	unrolled := nativeOptions()
	unrolled.Settings = map[string]v1alpha1.OpsConfigValue{settings.NameRollback: {}}
	heldOff := heldNatives("every", 90*time.Second, on(settings.NameSelfHealing, ""), off.Settings)
	return []world.Story{
		{Name: "a budget that refuses", Options: nativeOptions(), Run: budgetRefuses},
		{Name: "a budget that goes", Options: nativeOptions(), Run: budgetGoes},
		{Name: "a budget that allows it", Options: nativeOptions(), Run: budgetAllows},
		{Name: "a release over it", Options: off, Run: releaseOverStuck},
		{Name: "turned off, and on", Options: off, Run: evictionOff},
		{Name: "opted out", Options: off, Run: stuckAndOptedOut},
		{Name: "halted by its user", Options: off, Run: stuckAndPaused},
		{Name: "pods made all at once", Options: nativeOptions(), Run: parallelNeverStarts},
		{Name: "no place for a partition", Options: healing, Run: podRecreated},
		{Name: "no place for a partition, and the last pod", Options: healing, Run: lastPodRecreated},
		{Name: "fixed forward", Options: unrolled, Run: fixedForward},
		{Name: "fixed forward from the first version", Options: unrolled, Run: firstFixedForward},
		{Name: "fixed forward after it was halted", Options: nativeOptions(), Run: haltedFixedForward},
		{Name: "fixed forward and held", Options: heldNatives("first", 90*time.Second, unrolled.Settings), Run: fixedForward},
		{Name: "held over it", Options: heldOff, Run: heldOverStuck},
		{Name: "held over it, after it succeeded", Options: heldOff, Run: heldOverComplete},
	}
}

func TestEvict(t *testing.T) {
	for _, s := range evictionStories() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			world.Reference(t, s)
		})
	}
}

// TestEvictSweep lets each write of a story with an eviction go wrong.
func TestEvictSweep(t *testing.T) {
	s := world.Story{Name: "never starts", Options: nativeOptions(), Run: natives()[0].neverStarts}
	sweep(t, s, func(reference *world.Ending) []world.Fault {
		if !slices.Contains(reference.Writes, "evict Pod web-2") {
			t.Fatalf("nothing was evicted: %q", reference.Writes)
		}
		return faultsOf(reference, 0)
	})
}

// evictions returns the number of evictions by the operator.
func evictions(w *world.World) int { return w.Written()["evict Pod"] }

// sticks releases an image whose pods never become Ready, and waits until it is rolled back and its pod is stuck.
func sticks(w *world.World, image string, budget *policyv1.PodDisruptionBudget) (n native, first string) {
	n = natives()[0]
	must(w, w.Create(n.make()))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	if budget != nil {
		budget.ObjectMeta = metav1.ObjectMeta{Namespace: world.Namespace, Name: "quorum"}
		budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		must(w, w.Create(budget))
	}
	first = n.stored(w).GetLabels()[v1alpha1.VersionLabel]
	n.patch(w, imagePatch(image))
	w.Until("it is rolled back", func() bool { return n.stored(w).GetLabels()[v1alpha1.VersionLabel] == first })
	return n, first
}

func blockedBy(n native, w *world.World) string {
	if c := n.change(w); c != nil {
		if said := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionEvictionBlocked); said != nil {
			return string(said.Status) + " " + said.Reason + ": " + record.Detail(said)
		}
	}
	return ""
}

// isBlocked waits until the release reports why a pod is not evicted, and the next step.
func isBlocked(w *world.World, n native, reason string) {
	w.Until("EvictionBlocked is reported", func() bool { return strings.HasPrefix(blockedBy(n, w), "True "+reason+": ") })
	if said := blockedBy(n, w); !strings.HasSuffix(said, "kubectl delete pod web-2 -n "+world.Namespace) {
		w.Failf("EvictionBlocked is %s", said)
	}
}

// healed waits until all pods run the good image.
func healed(w *world.World, n native, want int) {
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	for _, pod := range n.podsOf(w) {
		if pod.Spec.Containers[0].Image != "good" {
			w.Failf("the pod %s runs %s", pod.Name, pod.Spec.Containers[0].Image)
		}
	}
	if said := blockedBy(n, w); strings.HasPrefix(said, "True") {
		w.Failf("EvictionBlocked is still %s", said)
	}
	if got := evictions(w); got != want {
		w.Failf("%d pods were evicted", got)
	}
}

// eventsOf returns the number of events with the reason.
func eventsOf(w *world.World, reason string) (n int) {
	for _, e := range w.Events() {
		if e.Reason == reason {
			n++
		}
	}
	return n
}

func minAvailable(percent string) *policyv1.PodDisruptionBudget {
	all := intstr.FromString(percent)
	return &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &all}}
}

// fixedForward: rollback is off, and the user releases a fix over a version that never starts.
func fixedForward(w *world.World) {
	n := natives()[0]
	must(w, w.Create(n.make()))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	n.patch(w, imagePatch(world.NeverReady))
	w.For(3 * time.Minute)
	n.patch(w, `{"spec":{"template":{"metadata":{"labels":{"test":"third"}},"spec":{"containers":[{"name":"main","image":"good"}]}}}}`)
	w.Until("a pod is evicted", func() bool { return evictions(w) == 1 })
	healed(w, n, 1)
	if eventsOf(w, v1alpha1.EventPodEvicted) != 1 {
		w.Failf("%v", w.Events())
	}
}

// firstFixedForward: the first version never succeeded, so the stuck pod has the currentRevision.
func firstFixedForward(w *world.World) {
	n := natives()[0]
	set := makeSet(3)
	set.Spec.Template.Spec.Containers[0].Image = world.NeverReady
	must(w, w.Create(set))
	w.For(3 * time.Minute)
	n.patch(w, imagePatch("good"))
	w.Until("a pod is evicted", func() bool { return evictions(w) == 1 })
	healed(w, n, 1)
}

// haltedFixedForward: a pod that was verified crashes, and a fix is released over the block.
func haltedFixedForward(w *world.World) {
	n := natives()[0]
	must(w, w.Create(n.slow()))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	n.patch(w, templatePatch("second"))
	w.Until("a batch is done", func() bool { return batchDone(w, n.change(w)) })
	crash(w, n.podNamed(w, "web-2"))
	w.Until("it is blocked", func() bool { return n.labelled(w, v1alpha1.SuspendLabel) })
	n.strategy(w, n.halt)
	n.override(w, "third")
	w.Until("a pod is evicted", func() bool { return evictions(w) == 1 })
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	n.allAre(w, "third")
}

// budgetRefuses: the person on call deletes the pod.
func budgetRefuses(w *world.World) {
	n, _ := sticks(w, world.NeverReady, minAvailable("100%"))
	isBlocked(w, n, v1alpha1.ReasonDisruptionBudget)
	if said := blockedBy(n, w); !strings.Contains(said, "disruption budget quorum needs 3 healthy pods and has 2 currently") {
		w.Failf("EvictionBlocked is %s", said)
	}
	at := evictions(w)
	w.For(30 * time.Minute)
	if tries := evictions(w) - at; tries < 5 || tries > 20 {
		w.Failf("it was tried %d times in 30 minutes", tries)
	}
	if events := eventsOf(w, v1alpha1.ConditionEvictionBlocked); events != 1 {
		w.Failf("%d events report it, want 1", events)
	}
	must(w, w.Delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: "web-2"}}))
	healed(w, n, evictions(w))
	if eventsOf(w, v1alpha1.EventPodEvicted) != 0 {
		w.Failf("an event reports an eviction")
	}
}

func budgetGoes(w *world.World) {
	budget := minAvailable("100%")
	n, _ := sticks(w, world.NeverReady, budget)
	isBlocked(w, n, v1alpha1.ReasonDisruptionBudget)
	w.For(time.Minute)
	must(w, w.Delete(budget))
	healed(w, n, evictions(w)+1)
	if eventsOf(w, v1alpha1.EventPodEvicted) != 1 {
		w.Failf("%v", w.Events())
	}
}

func budgetAllows(w *world.World) {
	one := intstr.FromInt32(1)
	n, _ := sticks(w, world.NeverReady, &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one}})
	healed(w, n, 1)
	if eventsOf(w, v1alpha1.ConditionEvictionBlocked) != 0 || eventsOf(w, v1alpha1.EventPodEvicted) != 1 {
		w.Failf("%v", w.Events())
	}
}

// evictionOff: the next step is reported even though eviction is off.
func evictionOff(w *world.World) {
	n, _ := sticks(w, world.BadImage, nil)
	isBlocked(w, n, v1alpha1.ReasonNotEvicted)
	w.For(30 * time.Minute)
	if evictions(w) != 0 || eventsOf(w, v1alpha1.ConditionEvictionBlocked) != 1 {
		w.Failf("%d evictions, %v", evictions(w), w.Events())
	}
	w.Set(settings.NameEviction, true, "")
	healed(w, n, 1)
}

// releaseOverStuck: another release meets the same pod.
func releaseOverStuck(w *world.World) {
	n, _ := sticks(w, world.BadImage, nil)
	isBlocked(w, n, v1alpha1.ReasonNotEvicted)
	n.patch(w, templatePatch("third"))
	isBlocked(w, n, v1alpha1.ReasonNotEvicted)
	w.Set(settings.NameEviction, true, "")
	healed(w, n, 1)
	for _, pod := range n.podsOf(w) {
		if pod.Labels["test"] != "third" {
			w.Failf("the pod %s has the labels %v", pod.Name, pod.Labels)
		}
	}
}

// stuckAndOptedOut: an opted-out workload is left alone.
func stuckAndOptedOut(w *world.World) {
	n, _ := sticks(w, world.BadImage, nil)
	isBlocked(w, n, v1alpha1.ReasonNotEvicted)
	n.patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":"disabled"}}}`)
	w.Until("EvictionBlocked is over", func() bool { return !strings.HasPrefix(blockedBy(n, w), "True") })
	w.Set(settings.NameEviction, true, "")
	w.For(10 * time.Minute)
	if evictions(w) != 0 {
		w.Failf("a pod of an opted-out workload was evicted")
	}
	n.patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":null}}}`)
	w.Until("the pod is evicted", func() bool { return evictions(w) == 1 })
}

// stuckAndPaused: a partition keeps the pod at its version.
func stuckAndPaused(w *world.World) {
	n, _ := sticks(w, world.BadImage, nil)
	isBlocked(w, n, v1alpha1.ReasonNotEvicted)
	n.patch(w, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":3}}}}`)
	w.Until("EvictionBlocked is over", func() bool { return !strings.HasPrefix(blockedBy(n, w), "True") })
	w.Set(settings.NameEviction, true, "")
	w.For(10 * time.Minute)
	if evictions(w) != 0 {
		w.Failf("a pod that the user's partition keeps was evicted")
	}
	n.patch(w, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	healed(w, n, 1)
}

// parallelNeverStarts: the controller replaces the stuck pods itself.
func parallelNeverStarts(w *world.World) {
	n := natives()[0]
	set, ok := n.make().(*appsv1.StatefulSet)
	if !ok {
		w.Failf("not a StatefulSet")
	}
	set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	n.neverStartsAs(w, client.Object(set))
	healed(w, n, 0)
}

// failsAfterAll releases a version of a StatefulSet whose strategy has a type only. A pod fails after all pods have the version.
func failsAfterAll(w *world.World, pod string) (n native) {
	n = natives()[0]
	set := makeSet(3)
	set.Spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
	must(w, w.Create(set))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	first := n.stored(w).GetLabels()[v1alpha1.VersionLabel]
	w.For(10 * time.Minute)
	n.patch(w, templatePatch("second"))
	w.Until("it is released", func() bool { return n.stored(w).GetLabels()[v1alpha1.VersionLabel] != first })
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	crash(w, n.podNamed(w, pod))
	w.Until("it is rolled back", func() bool { return n.stored(w).GetLabels()[v1alpha1.VersionLabel] == first })
	if set, ok := n.stored(w).(*appsv1.StatefulSet); !ok || set.Spec.UpdateStrategy.RollingUpdate != nil {
		w.Failf("its strategy has a partition")
	}
	return n
}

func (n native) podNamed(w *world.World, name string) *corev1.Pod {
	for _, pod := range n.podsOf(w) {
		if pod.Name == name {
			return pod
		}
	}
	return nil
}

// allAre fails if a pod has another version.
func (n native) allAre(w *world.World, version string) {
	for _, pod := range n.podsOf(w) {
		if pod.Labels["test"] != version {
			w.Failf("the pod %s has version %q", pod.Name, pod.Labels["test"])
		}
	}
}

const explicit = `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`

// podRecreated: an eviction would only recreate the pod, from the same version.
func podRecreated(w *world.World) {
	n := failsAfterAll(w, "web-0")
	w.Until("EvictionBlocked is reported", func() bool { return strings.HasPrefix(blockedBy(n, w), "True "+v1alpha1.ReasonRecreated+": ") })
	if said := blockedBy(n, w); !strings.HasSuffix(said, "kubectl patch statefulset/web --type=merge -p '"+explicit+"' -n "+world.Namespace) {
		w.Failf("EvictionBlocked is %s", said)
	}
	w.For(30 * time.Minute)
	if evictions(w) != 0 || eventsOf(w, v1alpha1.ConditionEvictionBlocked) != 1 {
		w.Failf("%d evictions, %v", evictions(w), w.Events())
	}
	n.patch(w, explicit)
	healed(w, n, 1)
	n.allAre(w, "")
}

// lastPodRecreated: the pod is recreated because its controller has not yet noticed its end.
func lastPodRecreated(w *world.World) {
	n := failsAfterAll(w, "web-2")
	failed := n.podNamed(w, "web-2").UID
	fails := func() {
		if pod := n.podNamed(w, "web-2"); pod != nil && pod.UID != failed && pod.Labels["test"] == "second" {
			failed = pod.UID
			crash(w, pod)
		}
	}
	w.Until("EvictionBlocked is reported", func() bool {
		fails()
		return strings.HasPrefix(blockedBy(n, w), "True "+v1alpha1.ReasonRecreated+": ")
	})
	isBlocked(w, n, v1alpha1.ReasonRecreated)
	at := evictions(w)
	w.For(30 * time.Minute)
	if evictions(w) != at || at == 0 || at > 3 || eventsOf(w, v1alpha1.ConditionEvictionBlocked) != 1 {
		w.Failf("%d and then %d evictions, %v", at, evictions(w)-at, w.Events())
	}
	n.patch(w, explicit)
	must(w, w.Delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: "web-2"}}))
	healed(w, n, at)
	n.allAre(w, "")
}

// heldOverStuck: the next release is held while a pod of the rolled-back version blocks its rollout.
func heldOverStuck(w *world.World) {
	h := heldSet(5)
	h.second(w)
	w.Until("the second wave", func() bool { p := h.podNamed(w, "web-3"); return p != nil && p.Labels["test"] == "second" })
	crash(w, h.podNamed(w, "web-3"))
	w.Until("it is rolled back", func() bool { return h.stored(w).GetAnnotations()[v1alpha1.QuarantinedAnnotation] != "" })
	h.given(w, 0, "")
	h.patch(w, templatePatch("third"))
	w.Until("it is held", func() bool { return h.partition(w) == 4 })
	w.Until("EvictionBlocked is reported", func() bool {
		return strings.HasPrefix(blockedBy(h.native, w), "True "+v1alpha1.ReasonNotEvicted)
	})
	w.Set(settings.NameEviction, true, "")
	w.Until("the pod is evicted", func() bool { return evictions(w) == 1 })
	h.is(w, v1alpha1.ChangeWorkloadSuccess)
	h.allAre(w, "third")
	h.given(w, 0, v1alpha1.ReasonHoldVerified)
}

// heldOverComplete: the pods that the hold keeps are recreated from the rolled-back version.
func heldOverComplete(w *world.World) {
	h := heldSet(3)
	must(w, w.Create(h.make()))
	h.is(w, v1alpha1.ChangeWorkloadSuccess)
	w.For(10 * time.Minute)
	h.patch(w, `{"metadata":{"annotations":{"`+v1alpha1.SettingAnnotationPrefix+`rollback":"proven=5m"}}}`)
	h.patch(w, templatePatch("second"))
	h.given(w, 0, v1alpha1.ReasonHoldVerified)
	h.is(w, v1alpha1.ChangeWorkloadSuccess)
	h.allAre(w, "second")
	for _, pod := range h.podsOf(w) {
		crash(w, pod)
	}
	w.Until("it is rolled back", func() bool { return h.stored(w).GetAnnotations()[v1alpha1.QuarantinedAnnotation] != "" })
	h.patch(w, templatePatch("third"))
	w.Until("it is held", func() bool { return h.partition(w) == 2 })
	w.Set(settings.NameEviction, true, "")
	w.Until("EvictionBlocked is reported", func() bool {
		return strings.HasPrefix(blockedBy(h.native, w), "True "+v1alpha1.ReasonRecreated+": ")
	})
	command := "kubectl annotate --overwrite statefulset/web " + v1alpha1.SettingAnnotationPrefix + "holding=disabled -n " + world.Namespace
	if said := blockedBy(h.native, w); !strings.HasSuffix(said, command) {
		w.Failf("EvictionBlocked is %s", said)
	}
	if evictions(w) != 0 {
		w.Failf("%d evictions", evictions(w))
	}
	h.given(w, 0, v1alpha1.ReasonHoldStuck)
	h.is(w, v1alpha1.ChangeWorkloadSuccess)
	h.allAre(w, "third")
	if evictions(w) != 3 {
		w.Failf("%d evictions", evictions(w))
	}
}
