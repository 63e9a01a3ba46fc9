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
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
)

// heldSets is a StatefulSet whose rollouts are held.
type heldSets struct{ native }

func heldSet(replicas int32) heldSets {
	n := natives()[0]
	n.make, n.pods = func() client.Object { return makeSet(replicas) }, int(replicas)
	return heldSets{n}
}

func heldNatives(content string, verdictAfter time.Duration, more ...map[string]v1alpha1.OpsConfigValue) world.Options {
	o := held(content, verdictAfter, more...)
	o.Verbose, o.Kinds = *verbose, nativeOptions().Kinds
	return o
}

// second releases the second version and waits until its first wave is judged.
func (h heldSets) second(w *world.World, with ...func(*appsv1.StatefulSet)) {
	set := h.make().(*appsv1.StatefulSet) //nolint:errcheck // always a StatefulSet
	for _, change := range with {
		change(set)
	}
	must(w, w.Create(set))
	h.is(w, v1alpha1.ChangeWorkloadSuccess)
	h.patch(w, templatePatch("second"))
	h.judged(w)
}

// judged waits until the check of each pod above the partition has begun.
func (h heldSets) judged(w *world.World) {
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
		current, old := h.split(w)
		return judged > 0 && judged == len(current) && len(old) <= int(h.partition(w))
	})
	w.For(10 * time.Second)
}

func (h heldSets) partition(w *world.World) int32 {
	set := h.stored(w).(*appsv1.StatefulSet) //nolint:errcheck // always a StatefulSet
	if r := set.Spec.UpdateStrategy.RollingUpdate; r != nil {
		return *r.Partition
	}
	return -1
}

// split returns the pods of the current version and the pods of others.
func (h heldSets) split(w *world.World) (current, old []*corev1.Pod) {
	want := templateOfNative(h.stored(w)).Labels["test"]
	for _, p := range h.podsOf(w) {
		if p.Labels["test"] == want {
			current = append(current, p)
		} else {
			old = append(old, p)
		}
	}
	return current, old
}

// keeps fails unless the hold keeps so many old pods.
func (h heldSets) keeps(w *world.World, partition int) {
	_, old := h.split(w)
	if is := h.partition(w); h.stored(w).GetAnnotations()[v1alpha1.HeldAnnotation] == "" || is != int32(partition) || len(old) != partition {
		w.Failf("partition %d with %d old pods, want %d; held: %q", is, len(old), partition,
			h.stored(w).GetAnnotations()[v1alpha1.HeldAnnotation])
	}
}

// given waits until the hold is over and the partition is restored.
func (h heldSets) given(w *world.World, partition int32, reason string) {
	w.Until("the hold is over", func() bool { return h.stored(w).GetAnnotations()[v1alpha1.HeldAnnotation] == "" })
	if is := h.partition(w); is != partition {
		w.Failf("the partition is %d, want %d", is, partition)
	}
	if reason != "" {
		w.Until("the hold ended by "+reason, func() bool {
			c := h.change(w)
			return c != nil && conditionOf(c, v1alpha1.ConditionHeld) == reason
		})
	}
}

// crashes lets the newest pod crash.
func (h heldSets) crashes(w *world.World) {
	current, _ := h.split(w)
	slices.SortFunc(current, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	crash(w, current[len(current)-1])
}

func (h heldSets) scale(w *world.World, replicas int) {
	h.patch(w, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

func (h heldSets) setPartition(w *world.World, to int) {
	h.patch(w, fmt.Sprintf(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":%d}}}}`, to))
}

func atPartition(p int32) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) {
		s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{
			Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &p},
		}
	}
}

// partitionStories are stories of StatefulSets whose rollouts are held.
func partitionStories() []world.Story {
	five := heldSet(5)
	every := func(more ...map[string]v1alpha1.OpsConfigValue) world.Options {
		return heldNatives("every", 90*time.Second, more...)
	}
	return []world.Story{
		{Name: "every wave", Options: every(), Run: func(w *world.World) {
			five.second(w)
			for kept := 4; kept > 0; kept-- {
				five.keeps(w, kept)
				if c := five.change(w); !meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionHeld) ||
					conditionOf(c, v1alpha1.ConditionProgressing) != v1alpha1.ReasonRollingOut {
					w.Failf("the conditions are %+v", c.Status.Conditions)
				}
				w.Until("the next wave begins", func() bool { return five.partition(w) != int32(kept) })
				five.judged(w)
			}
			five.keeps(w, 0)
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
			five.given(w, 0, v1alpha1.ReasonHoldVerified)
		}},
		{Name: "in batches", Options: every(on(settings.NameBranch, "2")), Run: func(w *world.World) {
			five.second(w)
			five.keeps(w, 3)
			if b := w.Batches(five.change(w)); len(b) != 1 || len(b[0].Spec.PodInfos) != 2 {
				w.Failf("%d batches, want one of two pods", len(b))
			}
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
			five.given(w, 0, v1alpha1.ReasonHoldVerified)
		}},
		{Name: "the first wave", Options: heldNatives("first", 90*time.Second), Run: func(w *world.World) {
			five.second(w)
			five.keeps(w, 4)
			five.given(w, 0, v1alpha1.ReasonHoldVerified)
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "one wave is all", Options: every(on(settings.NameBranch, "5")), Run: func(w *world.World) {
			must(w, w.Create(five.make()))
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
			five.patch(w, templatePatch("second"))
			five.given(w, 0, v1alpha1.ReasonNotHeld)
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "at a user's partition", Options: every(), Run: func(w *world.World) {
			five.second(w, atPartition(3))
			five.keeps(w, 4)
			five.given(w, 3, v1alpha1.ReasonHoldVerified)
			five.progress(w, v1alpha1.ReasonPartitioned)
			if c := five.change(w); c.Status.PassCount != 2 {
				w.Failf("%d pods passed", c.Status.PassCount)
			}
			five.setPartition(w, 0)
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "fail with the second wave", Options: every(map[string]v1alpha1.OpsConfigValue{settings.NameHalting: {}}),
			Run: func(w *world.World) {
				five.second(w)
				w.Until("the second wave", func() bool { return five.partition(w) == 3 })
				five.judged(w)
				judge(w, five.change(w), "unpass")
				five.is(w, v1alpha1.ChangeWorkloadSuspend)
				five.given(w, math.MaxInt32, v1alpha1.ReasonVerificationFailed)
				if a := five.stored(w).GetAnnotations(); a[v1alpha1.HaltedAnnotation] == "" || a[v1alpha1.HaltedFromAnnotation] != "" {
					w.Failf("halted from %q because of %q", a[v1alpha1.HaltedFromAnnotation], a[v1alpha1.HaltedAnnotation])
				}
				if _, old := five.split(w); len(old) != 3 {
					w.Failf("%d old pods are left", len(old))
				}
				five.override(w, "repair")
				if a := five.stored(w).GetAnnotations(); a[v1alpha1.HaltedAnnotation] != "" || five.partition(w) != 4 {
					w.Failf("the override release is not held: partition %d, %v", five.partition(w), a)
				}
				five.is(w, v1alpha1.ChangeWorkloadSuccess)
				five.given(w, 0, v1alpha1.ReasonHoldVerified)
			}},
		{Name: "fail at a user's partition", Options: every(), Run: func(w *world.World) {
			five.second(w, atPartition(2))
			five.crashes(w)
			five.is(w, v1alpha1.ChangeWorkloadSuspend)
			five.given(w, math.MaxInt32, v1alpha1.ReasonVerificationFailed)
			if from := five.stored(w).GetAnnotations()[v1alpha1.HaltedFromAnnotation]; from != "2" {
				w.Failf("halted from %q", from)
			}
		}},
		{Name: "fail without a place for a partition", Options: every(), Run: func(w *world.World) {
			bare := func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType }
			five.second(w, bare)
			five.keeps(w, 4)
			five.patch(w, `{"spec":{"updateStrategy":{"rollingUpdate":null}}}`)
			five.keeps(w, 4)
			five.crashes(w)
			five.is(w, v1alpha1.ChangeWorkloadSuspend)
			five.given(w, math.MaxInt32, v1alpha1.ReasonVerificationFailed)
		}},
		{Name: "halt without a place for a partition", Options: nativeOptions(), Run: func(w *world.World) {
			set := makeSet(5)
			set.Spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
			must(w, w.Create(set))
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
			five.patch(w, templatePatch("second"))
			w.Until("a batch is done", func() bool { return batchDone(w, five.change(w)) })
			judge(w, five.change(w), "unpass")
			w.Until("it is halted", func() bool { return five.partition(w) == math.MaxInt32 })
			five.patch(w, `{"spec":{"updateStrategy":{"rollingUpdate":null}}}`)
			if is := five.partition(w); is != math.MaxInt32 {
				w.Failf("after its manifest is applied, it is halted at partition %d", is)
			}
		}},
		{Name: "resume", Options: every(), Run: func(w *world.World) {
			five.second(w)
			five.patch(w, `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},
				"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
			five.given(w, 0, v1alpha1.ReasonHoldEdited)
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "fail while blocking is off", Options: every(map[string]v1alpha1.OpsConfigValue{settings.NameBlocking: {}}),
			Run: func(w *world.World) {
				five.second(w)
				five.crashes(w)
				five.given(w, 0, v1alpha1.ReasonVerificationFailed)
			}},
		{Name: "fail, and roll back", Options: every(on(settings.NameSelfHealing, "")), Run: func(w *world.World) {
			five.second(w)
			judge(w, five.change(w), "unpass")
			w.Until("it is rolled back", func() bool { return five.stored(w).GetAnnotations()[v1alpha1.QuarantinedAnnotation] != "" })
			five.given(w, 0, "")
			w.For(time.Minute)
			if current, old := five.split(w); len(current) != 5 || len(old) != 0 {
				w.Failf("%d pods are back", len(current))
			}
		}},
		{Name: "apply again, then edit", Options: every(), Run: func(w *world.World) {
			five.second(w)
			five.setPartition(w, 0)
			five.keeps(w, 4)
			five.setPartition(w, 2)
			five.given(w, 2, v1alpha1.ReasonHoldEdited)
			five.progress(w, v1alpha1.ReasonPartitioned)
			five.setPartition(w, 0)
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
			five.given(w, 0, v1alpha1.ReasonHoldEdited)
		}},
		{Name: "edit past admission", Options: every(), Run: func(w *world.World) {
			five.second(w)
			w.Unseen(func() { five.setPartition(w, 2) })
			five.given(w, 2, v1alpha1.ReasonHoldEdited)
		}},
		{Name: "pause", Options: every(), Run: func(w *world.World) {
			five.second(w)
			five.setPartition(w, math.MaxInt32)
			five.given(w, math.MaxInt32, v1alpha1.ReasonHoldEdited)
			five.progress(w, v1alpha1.ReasonRolloutPaused)
		}},
		{Name: "turn to OnDelete", Options: every(), Run: func(w *world.World) {
			five.second(w)
			five.patch(w, `{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null}}}`)
			five.given(w, -1, v1alpha1.ReasonHoldEdited)
			five.progress(w, v1alpha1.ReasonOnDelete)
		}},
		{Name: "release again", Options: every(), Run: func(w *world.World) {
			five.second(w)
			w.Until("the second wave", func() bool { return five.partition(w) == 3 })
			five.judged(w)
			five.patch(w, templatePatch("third"))
			if is := five.partition(w); is != 4 {
				w.Failf("the third version begins at partition %d", is)
			}
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
			five.given(w, 0, v1alpha1.ReasonHoldVerified)
		}},
		{Name: "undo", Options: every(), Run: func(w *world.World) {
			five.second(w)
			five.patch(w, `{"spec":{"template":{"metadata":{"labels":{"test":null}}}}}`)
			if is := five.partition(w); is != 0 {
				w.Failf("the undo begins at partition %d", is)
			}
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "what admission did not", Options: every(), Run: func(w *world.World) {
			must(w, w.Create(five.make()))
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
			w.Unseen(func() { five.patch(w, templatePatch("second")) })
			w.Until("it is held", func() bool { return five.stored(w).GetAnnotations()[v1alpha1.HeldAnnotation] != "" })
			five.judged(w)
			// The number of pods replaced before the hold differs.
			if _, old := five.split(w); five.partition(w) != 4 || len(old) < 2 {
				w.Failf("partition %d with %d old pods", five.partition(w), len(old))
			}
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
			five.given(w, 0, v1alpha1.ReasonHoldVerified)
		}},
		{Name: "while admission is skipped", Options: every(), Run: func(w *world.World) {
			five.second(w)
			w.SkipAdmission()
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
			five.given(w, 0, v1alpha1.ReasonHoldVerified)
		}},
		{Name: "fail while admission is skipped", Options: every(), Run: func(w *world.World) {
			five.second(w)
			w.SkipAdmission()
			five.crashes(w)
			five.is(w, v1alpha1.ChangeWorkloadSuspend)
			five.given(w, math.MaxInt32, v1alpha1.ReasonVerificationFailed)
		}},
		{Name: "stay while the operator is down", Options: every(), Run: func(w *world.World) {
			five.second(w)
			w.Stop()
			w.For(3 * time.Hour)
			five.keeps(w, 4)
			w.Start()
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
			five.given(w, 0, "")
		}},
		{Name: "run out", Options: heldNatives("every,atMost=1m", 10*time.Minute), Run: func(w *world.World) {
			five.second(w)
			w.Until("all pods are replaced", func() bool { _, old := five.split(w); return len(old) == 0 })
			five.given(w, 0, v1alpha1.ReasonHoldRanOut)
			if !slices.ContainsFunc(w.Events(), func(e world.Event) bool { return e.Reason == v1alpha1.EventHoldEnded }) {
				w.Failf("no event reports that the hold ran out")
			}
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "run out where silence fails", Options: heldNatives("every,atMost=1m", 10*time.Minute, on(settings.NameSilence, "")),
			Run: func(w *world.World) {
				five.second(w)
				five.is(w, v1alpha1.ChangeWorkloadSuspend)
				five.given(w, math.MaxInt32, v1alpha1.ReasonVerificationFailed)
				if _, old := five.split(w); len(old) != 4 {
					w.Failf("%d old pods are left", len(old))
				}
			}},
		{Name: "opt out", Options: every(), Run: func(w *world.World) {
			five.second(w)
			five.patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":"disabled"}}}`)
			five.given(w, 0, "")
		}},
		{Name: "leave", Options: every(), Run: func(w *world.World) {
			five.second(w)
			w.Enrol(false)
			five.given(w, 0, "")
		}},
		{Name: "only observe", Options: every(), Run: func(w *world.World) {
			five.second(w)
			w.Set(settings.NameObserve, true, "")
			five.given(w, 0, "")
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
			five.patch(w, templatePatch("third"))
			five.given(w, 0, v1alpha1.ReasonNotHeld)
		}},
		{Name: "enforced removed while held", Options: every(), Run: func(w *world.World) {
			by := prometheus(w)
			five.second(w, func(s *appsv1.StatefulSet) { defended(by, s) })
			five.keeps(w, 4)
			five.setPartition(w, 0)
			five.keeps(w, 4)
			five.patch(w, notDefended)
			five.given(w, 0, v1alpha1.ReasonReleaseEnded)
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "enforced removed past admission while held", Options: every(), Run: func(w *world.World) {
			by := prometheus(w)
			five.second(w, func(s *appsv1.StatefulSet) { defended(by, s) })
			w.SkipAdmission()
			five.patch(w, notDefended)
			five.given(w, 0, v1alpha1.ReasonReleaseEnded)
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "adopted while held", Options: every(), Run: func(w *world.World) {
			five.second(w)
			w.Unseen(func() { five.patch(w, adopted(w)) })
			five.given(w, 0, v1alpha1.ReasonReleaseEnded)
			five.setPartition(w, 3) // as the owner decides
			five.given(w, 3, "")
			five.patch(w, templatePatch("third"))
			five.given(w, 3, v1alpha1.ReasonNotHeld)
		}},
		{Name: "turn it off", Options: every(), Run: func(w *world.World) {
			five.second(w)
			w.Set(settings.NameHolding, false, "")
			five.given(w, 0, v1alpha1.ReasonReleaseEnded)
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "scale up", Options: every(), Run: func(w *world.World) {
			five.second(w)
			five.scale(w, 7)
			w.Until("the partition is raised", func() bool { return five.partition(w) == 6 })
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
			five.given(w, 0, v1alpha1.ReasonHoldVerified)
		}},
		{Name: "scale down, and up", Options: every(), Run: func(w *world.World) {
			five.second(w)
			five.scale(w, 3)
			w.Until("the last pod is replaced", func() bool { return five.partition(w) == 2 })
			five.judged(w)
			five.scale(w, 5)
			w.Until("the partition is raised", func() bool { return five.partition(w) == 4 })
			w.For(30 * time.Second)
			if current, _ := five.split(w); len(current) > 3 {
				w.Failf("%d pods have the version without a verdict", len(current))
			}
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
			five.given(w, 0, v1alpha1.ReasonHoldVerified)
		}},
		{Name: "scale down", Options: every(), Run: func(w *world.World) {
			five.second(w)
			five.scale(w, 3)
			w.Until("the last pod is replaced", func() bool { return five.partition(w) == 2 })
			five.judged(w)
			five.keeps(w, 2)
			five.is(w, v1alpha1.ChangeWorkloadSuccess)
			five.given(w, 0, v1alpha1.ReasonHoldVerified)
		}},
		{Name: "scale to nothing", Options: every(), Run: func(w *world.World) {
			five.second(w)
			five.scale(w, 0)
			five.given(w, 0, v1alpha1.ReasonReleaseEnded)
		}},
		{Name: "a DaemonSet is not", Options: every(), Run: func(w *world.World) {
			n := natives()[1]
			must(w, w.Create(n.make()))
			n.is(w, v1alpha1.ChangeWorkloadSuccess)
			n.patch(w, templatePatch("second"))
			n.is(w, v1alpha1.ChangeWorkloadSuccess)
			if c := conditionOf(n.change(w), v1alpha1.ConditionHeld); c != "" && c != v1alpha1.ReasonNotHeld ||
				n.stored(w).GetAnnotations()[v1alpha1.HeldAnnotation] != "" {
				w.Failf("Held is %q", c)
			}
		}},
	}
}

func TestHeldSets(t *testing.T) {
	for _, s := range partitionStories() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			world.Reference(t, s)
		})
	}
}

// TestHeldSetsSweep lets the manager die before and after each of its writes.
func TestHeldSetsSweep(t *testing.T) {
	swept := []string{
		"in batches", "fail at a user's partition", "what admission did not", "scale down", "release again",
		"enforced removed past admission while held",
	}
	for _, s := range partitionStories() {
		// How such stories end depends on the time for which the manager is away.
		timed := luckBehind[s.Name] != "" || leftOut["TestBehind"][s.Name] != "" || s.Name == "one wave is all"
		if !slices.Contains(swept, s.Name) && (!*all || timed) {
			continue
		}
		faults := deaths
		if timed {
			faults = func(reference *world.Ending) []world.Fault {
				return third(world.Faults(reference, false, world.DiesAfter))
			}
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			sweep(t, s, faults)
		})
	}
}
