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
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
)

// heldNodes is a DaemonSet on three nodes whose rollouts are held.
type heldNodes struct{ native }

func heldDaemon() heldNodes { return heldNodes{natives()[1]} }

const (
	heldStrategy    = `{"type":"OnDelete","rollingUpdate":{"maxUnavailable":1,"maxSurge":0}}`
	rollingStrategy = `{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":1,"maxSurge":0}}`
	deletedStrategy = `{"type":"OnDelete"}`
)

// second releases the second version and waits until its first wave is judged.
func (h heldNodes) second(w *world.World, with ...func(*appsv1.DaemonSet)) {
	d := makeDaemon()
	for _, change := range with {
		change(d)
	}
	must(w, w.Create(d))
	h.is(w, v1alpha1.ChangeWorkloadSuccess)
	h.patch(w, templatePatch("second"))
	h.judged(w, 1)
}

// judged waits until so many pods have the version, and their checks have begun.
func (h heldNodes) judged(w *world.World, pods int) {
	w.Until("the wave is judged", func() bool {
		c := h.change(w)
		if c == nil {
			return false
		}
		judged := 0
		for _, b := range w.Batches(c) {
			if slices.ContainsFunc(b.Status.Checks, func(c v1alpha1.CheckStatus) bool { return c.Name == health }) {
				judged += len(b.Spec.PodInfos)
			}
		}
		return judged >= pods && len(h.current(w)) >= pods
	})
	w.For(10 * time.Second)
}

// current returns the pods of the current version.
func (h heldNodes) current(w *world.World) []*corev1.Pod {
	want := templateOfNative(h.stored(w)).Labels["test"]
	return slices.DeleteFunc(h.podsOf(w), func(p *corev1.Pod) bool { return p.Labels["test"] != want })
}

// keeps fails unless the rollout is held and so many pods have the current version.
func (h heldNodes) keeps(w *world.World, current int) {
	n, held := len(h.current(w)), h.stored(w).GetAnnotations()[v1alpha1.HeldAnnotation]
	if is := strategyOf(h.stored(w)); held == "" || is != heldStrategy || n != current {
		w.Failf("%s with %d new pods, want %d; held: %q", is, n, current, held)
	}
}

// given waits until the hold is over and the strategy is restored.
func (h heldNodes) given(w *world.World, strategy, reason string) {
	w.Until("the hold is over", func() bool { return h.stored(w).GetAnnotations()[v1alpha1.HeldAnnotation] == "" })
	if is := strategyOf(h.stored(w)); is != strategy {
		w.Failf("the strategy is %s, want %s", is, strategy)
	}
	if reason != "" {
		w.Until("the hold ended by "+reason, func() bool {
			c := h.change(w)
			return c != nil && conditionOf(c, v1alpha1.ConditionHeld) == reason
		})
	}
}

func (h heldNodes) heldMessage(w *world.World) string {
	if said := meta.FindStatusCondition(h.change(w).Status.Conditions, v1alpha1.ConditionHeld); said != nil {
		return record.Detail(said)
	}
	return ""
}

func (h heldNodes) setStrategy(w *world.World, strategy string) {
	h.patch(w, `{"spec":{"updateStrategy":`+strategy+`}}`)
}

// loses makes the node of a pod unreachable, as the node controller reports it, with the status of the node or without.
func loses(w *world.World, pod *corev1.Pod, status corev1.ConditionStatus) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}},
	}}
	must(w, w.Create(node))
	must(w, w.PatchStatus(node, node.Status))
}

// lost sets the status of a pod on an unreachable node.
func lost(w *world.World, pod *corev1.Pod) {
	status := pod.Status.DeepCopy()
	status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
		{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: stamp(0), Reason: "NodeNotReady"},
	}
	w.SetPod(pod, status)
}

func unavailable(n int) func(*appsv1.DaemonSet) {
	return func(d *appsv1.DaemonSet) {
		d.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromInt(n))}
	}
}

// nodeStories are stories of DaemonSets whose rollouts are held.
func nodeStories() []world.Story {
	h := heldDaemon()
	every := func(more ...map[string]v1alpha1.OpsConfigValue) world.Options {
		return heldNatives("every,daemonsets", 90*time.Second, more...)
	}
	denied := every(map[string]v1alpha1.OpsConfigValue{settings.NameRollback: {}})
	denied.Broken = deniesBlocks
	slowBudgets := every()
	slowBudgets.Broken = computesBudgets
	all := []world.Story{
		{Name: "every wave", Options: every(), Run: func(w *world.World) {
			h.second(w)
			for n := range 2 {
				h.keeps(w, n+1)
				if c := h.change(w); !meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionHeld) ||
					conditionOf(c, v1alpha1.ConditionProgressing) != v1alpha1.ReasonRollingOut {
					w.Failf("the conditions are %+v", c.Status.Conditions)
				}
				h.judged(w, n+2)
			}
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
			h.given(w, rollingStrategy, v1alpha1.ReasonHoldVerified)
			h.evicted(w, 3)
		}},
		{Name: "two at a time", Options: every(), Run: func(w *world.World) {
			must(w, w.Create(daemonWith(makeDaemon(), unavailable(2))))
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
			h.patch(w, templatePatch("second"))
			h.judged(w, 2)
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
			h.given(w, strings.Replace(rollingStrategy, "1", "2", 1), v1alpha1.ReasonHoldVerified)
		}},
		{Name: "the first wave", Options: heldNatives("first,daemonsets", 90*time.Second), Run: func(w *world.World) {
			h.second(w)
			h.keeps(w, 1)
			h.given(w, rollingStrategy, v1alpha1.ReasonHoldVerified)
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
			h.evicted(w, 1)
		}},
		{Name: "not named", Options: heldNatives("every", 90*time.Second), Run: h.isNotHeld(unavailable(1), rollingStrategy)},
		{Name: "a surge", Options: every(), Run: h.isNotHeld(func(d *appsv1.DaemonSet) {
			d.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{
				MaxUnavailable: new(intstr.FromInt(0)), MaxSurge: new(intstr.FromInt(1)),
			}
		}, `{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":0,"maxSurge":1}}`)},
		{Name: "a user's OnDelete", Options: every(), Run: func(w *world.World) {
			d := makeDaemon()
			d.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
			must(w, w.Create(d))
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
			h.patch(w, templatePatch("second"))
			h.progress(w, v1alpha1.ReasonOnDelete)
			w.For(time.Hour)
			h.given(w, deletedStrategy, v1alpha1.ReasonNotHeld)
			if n := evictions(w); n != 0 {
				w.Failf("%d pods were evicted", n)
			}
		}},
		{Name: "fail with the first wave",
			Options: every(map[string]v1alpha1.OpsConfigValue{settings.NameHalting: {}, settings.NameRollback: {}}),
			Run: func(w *world.World) {
				h.second(w)
				h.crashes(w)
				h.is(w, v1alpha1.ChangeWorkloadSuspend)
				h.given(w, heldStrategy, v1alpha1.ReasonVerificationFailed)
				if h.stored(w).GetAnnotations()[v1alpha1.HaltedAnnotation] == "" {
					w.Failf("it is not halted")
				}
				w.For(time.Hour)
				if n := len(h.current(w)); n != 1 {
					w.Failf("%d pods have the failed version", n)
				}
				h.override(w, "repair")
				if a := h.stored(w).GetAnnotations(); a[v1alpha1.HaltedAnnotation] != "" {
					w.Failf("the override release is halted by %s", a[v1alpha1.HaltedAnnotation])
				}
				h.keeps(w, 0)
				h.is(w, v1alpha1.ChangeWorkloadSuccess)
				h.given(w, rollingStrategy, v1alpha1.ReasonHoldVerified)
			}},
		{Name: "fail, and undo", Options: every(), Run: func(w *world.World) {
			h.second(w)
			h.crashes(w)
			h.is(w, v1alpha1.ChangeWorkloadSuspend)
			h.given(w, heldStrategy, v1alpha1.ReasonVerificationFailed)
			h.undoes(w)
		}},
		{Name: "fail, and resume", Options: every(), Run: func(w *world.World) {
			h.second(w)
			judge(w, h.change(w), "unpass")
			h.is(w, v1alpha1.ChangeWorkloadSuspend)
			h.given(w, heldStrategy, v1alpha1.ReasonVerificationFailed)
			h.patch(w, `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"updateStrategy":{"type":"RollingUpdate"}}}`)
			w.Until("it continues", func() bool { return len(h.current(w)) == 3 })
			h.given(w, rollingStrategy, "")
		}},
		{Name: "fail while blocking is off", Options: every(map[string]v1alpha1.OpsConfigValue{settings.NameBlocking: {}}),
			Run: func(w *world.World) {
				h.second(w)
				h.crashes(w)
				h.given(w, rollingStrategy, v1alpha1.ReasonVerificationFailed)
			}},
		{Name: "fail, and roll back", Options: every(on(settings.NameSelfHealing, "")), Run: func(w *world.World) {
			h.second(w)
			judge(w, h.change(w), "unpass")
			w.Until("it is rolled back", func() bool { return h.stored(w).GetAnnotations()[v1alpha1.QuarantinedAnnotation] != "" })
			h.given(w, rollingStrategy, "")
			w.For(time.Minute)
			if n := len(h.current(w)); n != 3 {
				w.Failf("%d pods are back", n)
			}
		}},
		{Name: "undo", Options: every(), Run: func(w *world.World) {
			h.second(w)
			h.undoes(w)
		}},
		{Name: "release again", Options: every(), Run: func(w *world.World) {
			h.second(w)
			h.judged(w, 2)
			h.patch(w, templatePatch("third"))
			h.keeps(w, 0)
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
			h.given(w, rollingStrategy, v1alpha1.ReasonHoldVerified)
		}},
		{Name: "resume", Options: every(), Run: func(w *world.World) {
			h.second(w)
			h.patch(w, `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"updateStrategy":{"type":"RollingUpdate"}}}`)
			h.given(w, rollingStrategy, v1alpha1.ReasonHoldEdited)
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "apply again, then edit", Options: every(), Run: func(w *world.World) {
			h.second(w)
			h.setStrategy(w, rollingStrategy)
			h.keeps(w, 1)
			w.For(time.Second)
			h.keeps(w, 1)
			h.setStrategy(w, `{"rollingUpdate":{"maxUnavailable":2}}`)
			h.given(w, strings.Replace(rollingStrategy, "1", "2", 1), v1alpha1.ReasonHoldEdited)
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "set a surge", Options: every(), Run: func(w *world.World) {
			h.second(w)
			beside := `{"spec":{"updateStrategy":{"rollingUpdate":{"maxSurge":1}}}}`
			if err := w.PatchObject(h.make(), beside); !apierrors.IsInvalid(err) {
				w.Failf("a strategy that is not valid is refused with %v", err)
			}
			h.keeps(w, 1)
			h.setStrategy(w, `{"rollingUpdate":{"maxSurge":1,"maxUnavailable":0}}`)
			h.given(w, `{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":0,"maxSurge":1}}`, v1alpha1.ReasonHoldEdited)
			h.judged(w, 1)
			if n := len(h.current(w)); n != 1 {
				w.Failf("%d pods have the version", n) // there is no surge in this world
			}
		}},
		{Name: "set a surge past admission", Options: every(), Run: func(w *world.World) {
			h.second(w)
			w.Unseen(func() { h.setStrategy(w, `{"rollingUpdate":{"maxSurge":1}}`) })
			h.given(w, rollingStrategy, v1alpha1.ReasonHoldEdited)
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "turn to OnDelete", Options: every(), Run: func(w *world.World) {
			h.second(w)
			h.setStrategy(w, `{"type":"OnDelete","rollingUpdate":null}`)
			h.given(w, deletedStrategy, v1alpha1.ReasonHoldEdited)
			h.progress(w, v1alpha1.ReasonOnDelete)
			w.For(time.Hour)
			if n := len(h.current(w)); n != 1 {
				w.Failf("%d pods have the version", n)
			}
		}},
		{Name: "edit past admission", Options: every(), Run: func(w *world.World) {
			h.second(w)
			w.Unseen(func() { h.setStrategy(w, `{"rollingUpdate":{"maxUnavailable":2}}`) })
			h.given(w, strings.Replace(rollingStrategy, "1", "2", 1), v1alpha1.ReasonHoldEdited)
		}},
		{Name: "apply again past admission", Options: every(), Run: func(w *world.World) {
			h.second(w)
			w.Unseen(func() { h.setStrategy(w, rollingStrategy) })
			w.Until("the strategy is put back", func() bool { return strategyOf(h.stored(w)) == heldStrategy })
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
			h.given(w, rollingStrategy, v1alpha1.ReasonHoldVerified)
		}},
		{Name: "opt out, OnDelete, and opt in", Options: every(), Run: func(w *world.World) {
			h.second(w)
			h.patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":"disabled"}}}`)
			h.given(w, rollingStrategy, "")
			h.setStrategy(w, `{"type":"OnDelete"}`)
			h.patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":null}}}`)
			w.For(10 * time.Minute)
			h.given(w, heldStrategy, "") // the user's
		}},
		{Name: "leave", Options: every(), Run: func(w *world.World) {
			h.second(w)
			w.Enrol(false)
			h.given(w, rollingStrategy, "")
		}},
		{Name: "only observe", Options: every(), Run: func(w *world.World) {
			h.second(w)
			w.Set(settings.NameObserve, true, "")
			h.given(w, rollingStrategy, "")
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "turn it off", Options: every(), Run: func(w *world.World) {
			h.second(w)
			w.Set(settings.NameHolding, true, "every")
			h.given(w, rollingStrategy, v1alpha1.ReasonReleaseEnded)
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "adopted while held", Options: every(), Run: func(w *world.World) {
			h.second(w)
			w.Unseen(func() { h.patch(w, adopted(w)) })
			h.given(w, rollingStrategy, v1alpha1.ReasonReleaseEnded)
		}},
		{Name: "what admission did not", Options: every(), Run: func(w *world.World) {
			must(w, w.Create(makeDaemon()))
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
			w.Unseen(func() { h.patch(w, templatePatch("second")) })
			w.Until("it is held", func() bool { return h.stored(w).GetAnnotations()[v1alpha1.HeldAnnotation] != "" })
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
			h.given(w, rollingStrategy, v1alpha1.ReasonHoldVerified)
		}},
		{Name: "while admission is skipped", Options: every(), Run: func(w *world.World) {
			h.second(w)
			w.SkipAdmission()
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
			h.given(w, rollingStrategy, v1alpha1.ReasonHoldVerified)
		}},
		{Name: "fail while admission is skipped", Options: every(), Run: func(w *world.World) {
			h.second(w)
			w.SkipAdmission()
			h.crashes(w)
			h.is(w, v1alpha1.ChangeWorkloadSuspend)
			h.given(w, heldStrategy, v1alpha1.ReasonVerificationFailed)
		}},
		{Name: "stay while the operator is down", Options: every(), Run: func(w *world.World) {
			h.second(w)
			w.Stop()
			w.For(3 * time.Hour)
			h.keeps(w, 1)
			w.Start()
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
			h.given(w, rollingStrategy, "")
		}},
		{Name: "run out", Options: heldNatives("every,daemonsets,atMost=1m", 10*time.Minute), Run: func(w *world.World) {
			h.second(w)
			w.Until("all pods are replaced", func() bool { return len(h.current(w)) == 3 })
			h.given(w, rollingStrategy, v1alpha1.ReasonHoldRanOut)
			h.evicted(w, 3)
			h.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "run out where silence fails", Options: heldNatives("every,daemonsets,atMost=1m", 10*time.Minute, on(settings.NameSilence, "")),
			Run: func(w *world.World) {
				h.second(w)
				h.is(w, v1alpha1.ChangeWorkloadSuspend)
				h.given(w, heldStrategy, v1alpha1.ReasonVerificationFailed)
				if n := len(h.current(w)); n != 1 {
					w.Failf("%d pods have the version", n)
				}
			}},
		{Name: "a budget that refuses, and goes", Options: every(), Run: h.budget},
		{Name: "a budget that refuses half a wave", Options: every(), Run: h.halfWave},
		{Name: "a budget that is computed", Options: slowBudgets, Run: h.slowBudget},
		{Name: "a denied halt", Options: denied, Run: h.deniedHalt},
		{Name: "takes its node off the network", Options: heldNatives("every,daemonsets,atMost=10m", 90*time.Second), Run: h.nodeNotReady},
		{Name: "a node that dies", Options: heldNatives("every,daemonsets,atMost=10m", 90*time.Second), Run: h.deadNode},
		{Name: "a node that was dead", Options: heldNatives("every,daemonsets,atMost=10m", 90*time.Second), Run: h.deadBefore},
	}
	for i := range all {
		all[i].Name = "nodes: " + all[i].Name
	}
	return all
}

// daemonWith changes a DaemonSet.
func daemonWith(d *appsv1.DaemonSet, changes ...func(*appsv1.DaemonSet)) *appsv1.DaemonSet {
	for _, change := range changes {
		change(d)
	}
	return d
}

// evicted fails unless so many pods were evicted. Two managers may try the same pod.
func (h heldNodes) evicted(w *world.World, pods int) {
	names := map[string]bool{}
	for _, write := range w.Writes() {
		if pod, ok := strings.CutPrefix(write, "evict Pod "); ok {
			names[pod] = true
		}
	}
	if len(names) != pods {
		w.Failf("%d pods were evicted", len(names))
	}
}

func (h heldNodes) crashes(w *world.World) { crash(w, h.current(w)[0]) }

// undoes returns to the first version, at the pace of the user.
func (h heldNodes) undoes(w *world.World) {
	h.patch(w, `{"spec":{"template":{"metadata":{"labels":{"test":null}}}}}`)
	h.given(w, rollingStrategy, "")
	h.is(w, v1alpha1.ChangeWorkloadSuccess)
	if n := len(h.current(w)); n != 3 || h.labelled(w, v1alpha1.SuspendLabel) {
		w.Failf("%d pods are back", n)
	}
}

// isNotHeld releases a DaemonSet that is not held.
func (h heldNodes) isNotHeld(change func(*appsv1.DaemonSet), strategy string) func(*world.World) {
	return func(w *world.World) {
		must(w, w.Create(daemonWith(makeDaemon(), change)))
		h.is(w, v1alpha1.ChangeWorkloadSuccess)
		h.patch(w, templatePatch("second"))
		h.given(w, strategy, v1alpha1.ReasonNotHeld)
		w.For(time.Minute)
		if n := evictions(w); n != 0 || strategyOf(h.stored(w)) != strategy {
			w.Failf("%d pods were evicted, with %s", n, strategyOf(h.stored(w)))
		}
	}
}

// budget: the eviction of the next wave waits for a PodDisruptionBudget.
func (h heldNodes) budget(w *world.World) {
	h.second(w)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: "all"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt(3)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
	}
	must(w, w.Create(budget))
	w.Until("the refusal is reported", func() bool {
		return strings.HasPrefix(blockedBy(h.native, w), "True "+v1alpha1.ReasonDisruptionBudget+": pod web-")
	})
	tried := evictions(w)
	w.For(3 * time.Hour)
	h.keeps(w, 1)
	if n := evictions(w) - tried; n < 10 || n > 100 {
		w.Failf("the eviction was tried %d times in three hours", n)
	}
	// As the condition advises.
	next := slices.DeleteFunc(h.podsOf(w), func(p *corev1.Pod) bool { return !strings.Contains(blockedBy(h.native, w), "pod "+p.Name+" ") })[0]
	must(w, w.Delete(next))
	h.judged(w, 2)
	if said := blockedBy(h.native, w); strings.HasPrefix(said, "True") {
		w.Failf("while the hold waits for verdicts, EvictionBlocked is %s", said)
	}
	w.Until("the next refusal is reported", func() bool { return strings.HasPrefix(blockedBy(h.native, w), "True") })
	must(w, w.Delete(budget))
	h.is(w, v1alpha1.ChangeWorkloadSuccess)
	h.given(w, rollingStrategy, v1alpha1.ReasonHoldVerified)
	if said := blockedBy(h.native, w); strings.HasPrefix(said, "True") {
		w.Failf("EvictionBlocked is still %s", said)
	}
}

// halfWave: a PodDisruptionBudget refuses the second pod of a wave.
func (h heldNodes) halfWave(w *world.World) {
	must(w, w.Create(&policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: "all"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
	}))
	h.second(w, unavailable(2))
	if n, said := len(h.current(w)), blockedBy(h.native, w); n != 1 || strings.HasPrefix(said, "True") {
		w.Failf("%d pods have the version; EvictionBlocked is %s", n, said)
	}
	h.is(w, v1alpha1.ChangeWorkloadSuccess)
}

// computesBudgets refuses evictions, in turn for a PodDisruptionBudget and because the API server computes it.
func computesBudgets() func(string, func() error) error {
	tries := 0
	return func(write string, carryOut func() error) error {
		if !strings.HasPrefix(write, "evict ") || tries > 6 {
			return carryOut()
		}
		tries++
		refused := apierrors.NewTooManyRequests("the budget is not kept", 10*(tries%2))
		refused.ErrStatus.Details.Causes = append(refused.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause})
		return refused
	}
}

func (h heldNodes) slowBudget(w *world.World) {
	h.second(w)
	h.is(w, v1alpha1.ChangeWorkloadSuccess)
	// Each of two managers may report it.
	if n := eventsOf(w, v1alpha1.EventEvictionBlocked); n < 1 || n > 2 || strings.HasPrefix(blockedBy(h.native, w), "True") {
		w.Failf("%d events, and EvictionBlocked is %s", n, blockedBy(h.native, w))
	}
}

const deniedFor = 3 * time.Hour

// deniesBlocks denies the first block and all others for some time.
func deniesBlocks() func(string, func() error) error {
	var until time.Time
	return func(write string, carryOut func() error) error {
		if strings.HasPrefix(write, "block ") {
			if until.IsZero() {
				until = time.Now().Add(deniedFor)
			}
			if time.Now().Before(until) {
				of := schema.GroupResource{Group: "apps", Resource: "daemonsets"}
				return apierrors.NewForbidden(of, "web", errors.New(`admission webhook "policy.example.com" denied the request`))
			}
		}
		return carryOut()
	}
}

// deniedHalt: a policy engine refuses the block and the halt of a failed release. No more pods are evicted.
func (h heldNodes) deniedHalt(w *world.World) {
	h.second(w)
	h.crashes(w)
	h.is(w, v1alpha1.ChangeWorkloadSuspend)
	w.For(deniedFor - 10*time.Minute)
	h.keeps(w, 1)
	h.given(w, heldStrategy, v1alpha1.ReasonVerificationFailed)
}

// nodeNotReady: after its verdict, the node of the first new pod is not Ready, and its kubelet reports the pod as Ready.
func (h heldNodes) nodeNotReady(w *world.World) {
	h.second(w)
	loses(w, h.current(w)[0], corev1.ConditionFalse)
	w.For(4 * time.Minute)
	h.keeps(w, 1)
	if said := h.heldMessage(w); !strings.Contains(said, "not Ready: node "+h.current(w)[0].Spec.NodeName) {
		w.Failf("the message is %q", said)
	}
	h.given(w, rollingStrategy, v1alpha1.ReasonHoldStuck)
}

// deadNode: the node of the first new pod dies before its kubelet saw the pod.
func (h heldNodes) deadNode(w *world.World) {
	must(w, w.Create(daemonWith(makeDaemon(), unavailable(2))))
	h.is(w, v1alpha1.ChangeWorkloadSuccess)
	h.patch(w, imagePatch(world.BadImage)) // its pods stay Pending
	h.patch(w, `{"metadata":{"annotations":{"`+v1alpha1.SettingAnnotationPrefix+`rollback":"disabled"}}}`)
	w.Until("the first wave", func() bool { return evictions(w) >= 2 })
	w.For(8 * time.Minute)
	h.evicted(w, 2)
	h.given(w, strings.Replace(rollingStrategy, "1", "2", 1), "")
}

// deadBefore: a node is dead before the release. Its pod is not evicted, and takes one place of each wave.
func (h heldNodes) deadBefore(w *world.World) {
	must(w, w.Create(daemonWith(makeDaemon(), unavailable(2))))
	h.is(w, v1alpha1.ChangeWorkloadSuccess)
	dead := h.podsOf(w)[0]
	lost(w, dead)
	w.For(time.Second)
	h.patch(w, templatePatch("second"))
	h.judged(w, 1)
	if n := len(h.current(w)); n != 1 {
		w.Failf("%d pods have the version", n)
	}
	w.Until("the other nodes have the version", func() bool { return len(h.current(w)) >= 2 })
	h.given(w, strings.Replace(rollingStrategy, "1", "2", 1), v1alpha1.ReasonHoldVerified)
}

func TestHeldNodes(t *testing.T) {
	for _, s := range nodeStories() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			world.Reference(t, s)
		})
	}
}

// TestHeldNodesSweep lets the manager die before and after each of its writes.
func TestHeldNodesSweep(t *testing.T) {
	swept := []string{"two at a time", "the first wave", "fail with the first wave", "release again", "while admission is skipped"}
	for _, s := range nodeStories() {
		short := strings.TrimPrefix(s.Name, "nodes: ")
		// How such stories end depends on the time for which the manager is away.
		timed := luckBehind[s.Name] != "" || leftOut["TestBehind"][s.Name] != "" || leftOut["TestHeldNodesSweep"][s.Name] != ""
		if s.Options.Broken != nil || !slices.Contains(swept, short) && (!*all || timed) {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			sweep(t, s, deaths)
		})
	}
}
