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
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
)

// held returns settings that hold rollouts, and a policy whose verdicts come after verdictAfter.
func held(content string, verdictAfter time.Duration, more ...map[string]v1alpha1.OpsConfigValue) world.Options {
	health := podHealth("policy", func(p *v1alpha1.DefensePolicy) {
		p.Spec.Checks[0].PodHealth.Duration = &metav1.Duration{Duration: verdictAfter}
		p.Spec.Checks[0].Deadline = &metav1.Duration{Duration: time.Hour}
	})
	o := world.Options{Settings: on(settings.NameHolding, content), Policies: []v1alpha1.DefensePolicy{noDefault(), health}}
	for _, m := range more {
		maps.Copy(o.Settings, m)
	}
	return o
}

// heldInBackground returns the same with a check in the background.
func heldInBackground() world.Options {
	o := held("every", 90*time.Second)
	o.Policies[1].Spec.Checks[0].Wait = ptr.To(false)
	return o
}

// heldRelease releases a second version and waits until its first wave is judged.
func heldRelease(w *world.World, replicas int32) {
	create(w, web(replicas))
	until(w, v1alpha1.ChangeWorkloadSuccess)
	release(w, "second")
	waveJudged(w)
}

// waveJudged waits until the check of each new pod has begun, and a while longer for the writes that follow.
func waveJudged(w *world.World) {
	w.Until("the wave is judged", func() bool {
		c := w.Change("web")
		if c == nil || c.Spec.Release < 2 {
			return false
		}
		judged := 0
		for _, b := range w.Batches(c) {
			if slices.ContainsFunc(b.Status.Checks, func(c v1alpha1.CheckStatus) bool { return c.Name == health }) {
				judged += len(b.Spec.PodInfos)
			}
		}
		current, _ := podsOf(w)
		return judged > 0 && judged == len(current)
	})
	w.For(10 * time.Second)
}

// podsOf returns the pods of the current version and the pods of others.
func podsOf(w *world.World) (current, old []*corev1.Pod) {
	want := w.Deployment("web").Spec.Template.Labels["test"]
	for _, p := range w.Pods() {
		if p.Labels["test"] == want {
			current = append(current, p)
		} else {
			old = append(old, p)
		}
	}
	return current, old
}

// givenBack waits until the hold is over and its fields are restored.
func givenBack(w *world.World, minReady, deadline int32) {
	w.Until("the hold is over", func() bool { return w.Deployment("web").Annotations[v1alpha1.HeldAnnotation] == "" })
	d := w.Deployment("web")
	if d.Spec.MinReadySeconds != minReady || *d.Spec.ProgressDeadlineSeconds != deadline {
		w.Failf("minReadySeconds is %d and progressDeadlineSeconds %d, want %d and %d",
			d.Spec.MinReadySeconds, *d.Spec.ProgressDeadlineSeconds, minReady, deadline)
	}
}

// isHeld fails unless the rollout is held with at least so many old pods.
func isHeld(w *world.World, old int) {
	d := w.Deployment("web")
	if d.Annotations[v1alpha1.HeldAnnotation] == "" || d.Spec.MinReadySeconds < 60 {
		w.Failf("it is not held: minReadySeconds %d, %q", d.Spec.MinReadySeconds, d.Annotations[v1alpha1.HeldAnnotation])
	}
	if _, left := podsOf(w); len(left) < old {
		w.Failf("%d old pods are left, want %d", len(left), old)
	}
}

func endedBy(w *world.World, reason string) {
	w.Until("the hold ended by "+reason, func() bool {
		c := w.Change("web")
		return c != nil && conditionOf(c, v1alpha1.ConditionHeld) == reason
	})
}

// heldLate holds the first wave for at most a minute. The pods of the image late take longer to become Ready.
func heldLate(more ...map[string]v1alpha1.OpsConfigValue) world.Options {
	o := held("first,atMost=1m", 10*time.Second, more...)
	o.Nodes, o.Images = 2, map[string]world.Image{"late": {Ready: 90 * time.Second}}
	return o
}

// startsTooLate releases a version whose pods become Ready only after the hold ran out.
func startsTooLate(w *world.World) {
	create(w, web(4))
	until(w, v1alpha1.ChangeWorkloadSuccess)
	patch(w, `{"spec":{"template":{"metadata":{"labels":{"test":"late"}},"spec":{"containers":[{"name":"main","image":"late"}]}}}}`)
}

// holdStories are stories of held Deployments.
var holdStories = []world.Story{
	{Name: "hold every wave", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		heldRelease(w, 8)
		isHeld(w, 6)
		if c := conditionOf(w.Change("web"), v1alpha1.ConditionHeld); c != v1alpha1.ReasonWaitingForVerdicts {
			w.Failf("Held is %q", c)
		}
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
		endedBy(w, v1alpha1.ReasonHoldVerified)
	}},
	{Name: "hold every wave, with quick verdicts", Options: held("every", 5*time.Second), Run: func(w *world.World) {
		heldRelease(w, 5)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
	}},
	{Name: "too large while held", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		heldRelease(w, 8)
		must(w, w.Patch("web", manyLabels(`"x"`)))
		givenBack(w, 0, 600)
		w.Rest()
		if c := w.Change("web"); c.Status.Status != v1alpha1.ChangeWorkloadCanceled {
			w.Failf("the release is %s", c.Status.Status)
		}
	}},
	{Name: "hold the first wave", Options: held("first", 90*time.Second), Run: func(w *world.World) {
		create(w, web(8))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		release(w, "second")
		w.Until("it is held", func() bool {
			c := w.Change("web")
			return c != nil && c.Spec.Release == 2 && meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionHeld)
		})
		held := meta.FindStatusCondition(w.Change("web").Status.Conditions, v1alpha1.ConditionHeld)
		if strings.Contains(held.Message, "are verified; the next") {
			w.Failf("nothing is verified yet, and the message of Held is %q", held.Message)
		}
		waveJudged(w)
		isHeld(w, 6)
		began := time.Now()
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
		if took := time.Since(began); took > 5*time.Minute {
			w.Failf("it took %s, as if each wave were held", took)
		}
	}},
	{Name: "hold, in batches", Options: held("every", 30*time.Second, on(settings.NameBranch, "3")), Run: func(w *world.World) {
		heldRelease(w, 8)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
	}},
	{Name: "hold for a check in the background", Options: heldInBackground(), Run: func(w *world.World) {
		heldRelease(w, 8)
		w.For(time.Minute)
		isHeld(w, 6)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
	}},
	{Name: "hold for a check in the background, which fails", Options: heldInBackground(), Run: func(w *world.World) {
		heldRelease(w, 8)
		w.For(time.Minute)
		current, _ := podsOf(w)
		crash(w, current[0])
		until(w, v1alpha1.ChangeWorkloadSuspend)
		givenBack(w, 0, 600)
		if _, old := podsOf(w); !w.Deployment("web").Spec.Paused || len(old) < 6 {
			w.Failf("paused is %t with %d old pods", w.Deployment("web").Spec.Paused, len(old))
		}
	}},
	{Name: "hold, with values of its own", Options: held("every", 30*time.Second), Run: func(w *world.World) {
		d := probed(3).OneByOne().MinReadySeconds(20).Obj()
		deadline := int32(100)
		d.Spec.ProgressDeadlineSeconds = &deadline
		create(w, d)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		release(w, "second")
		waveJudged(w)
		isHeld(w, 3)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 20, 100)
	}},
	{Name: "hold, and fail", Options: held("every", 90*time.Second, map[string]v1alpha1.OpsConfigValue{settings.NameHalting: {}}),
		Run: func(w *world.World) {
			heldRelease(w, 8)
			current, _ := podsOf(w)
			crash(w, current[0])
			until(w, v1alpha1.ChangeWorkloadSuspend)
			givenBack(w, 0, 600)
			if _, old := podsOf(w); !w.Deployment("web").Spec.Paused || len(old) < 6 {
				w.Failf("paused is %t with %d old pods", w.Deployment("web").Spec.Paused, len(old))
			}
			endedBy(w, v1alpha1.ReasonVerificationFailed)
			override(w, "repair")
			until(w, v1alpha1.ChangeWorkloadSuccess)
			givenBack(w, 0, 600)
		}},
	{Name: "hold, and fail while blocking is off",
		Options: held("every", 90*time.Second, map[string]v1alpha1.OpsConfigValue{settings.NameBlocking: {}}), Run: func(w *world.World) {
			heldRelease(w, 4)
			current, _ := podsOf(w)
			crash(w, current[0])
			until(w, v1alpha1.ChangeWorkloadSuspend)
			givenBack(w, 0, 600)
			if w.Deployment("web").Spec.Paused {
				w.Failf("it is paused")
			}
		}},
	{Name: "hold, and apply again what was before", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		before := w.Deployment("web").Generation
		patch(w, `{"spec":{"minReadySeconds":0,"progressDeadlineSeconds":600}}`)
		isHeld(w, 3)
		if after := w.Deployment("web").Generation; after != before {
			w.Failf("the generation was %d and is %d", before, after)
		}
		patch(w, `{"spec":{"replicas":6}}`)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
	}},
	{Name: "hold, and edit", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		patch(w, `{"spec":{"minReadySeconds":7}}`)
		givenBack(w, 7, 600)
		endedBy(w, v1alpha1.ReasonHoldEdited)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 7, 600)
	}},
	{Name: "hold, and edit past admission", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		w.Unseen(func() { patch(w, `{"spec":{"minReadySeconds":7}}`) })
		givenBack(w, 7, 600)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 7, 600)
	}},
	{Name: "hold, and release again", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		release(w, "third")
		w.Until("it is recorded", func() bool { c := w.Change("web"); return c != nil && c.Spec.Release == 3 })
		waveJudged(w)
		isHeld(w, 1)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
	}},
	{Name: "hold, and set in a later release what it had set", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		patch(w, `{"metadata":{"annotations":{"altershield.defense.antgroup.com/holding":"disabled"}},
			"spec":{"template":{"metadata":{"labels":{"test":"third"}}}}}`)
		w.Until("it is recorded", func() bool {
			c := w.Change("web")
			return c != nil && c.Spec.Release == 3 && c.Status.ObservedRelease == 3
		})
		w.For(5 * time.Second) // a second manager may restore the fields a second time
		patch(w, `{"spec":{"progressDeadlineSeconds":2400}}`)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 2400)
	}},
	{Name: "hold, and undo", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		release(w, "first")
		givenBack(w, 0, 600)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
	}},
	{Name: "hold, and go back", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		backToFirst(w)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
	}},
	{Name: "hold, and never start", Options: held("every", 90*time.Second, on(settings.NameRollback, "after=10s,slow=20s")),
		Run: func(w *world.World) {
			create(w, web(4))
			until(w, v1alpha1.ChangeWorkloadSuccess)
			patch(w, imagePatch("bad"))
			w.Until("it is rolled back", func() bool { return quarantined(w) == 1 })
			until(w, v1alpha1.ChangeWorkloadSuccess)
			givenBack(w, 0, 600)
		}},
	{Name: "hold what admission did not", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		create(w, probed(4).MinReadySeconds(10).Obj())
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.Unseen(func() { release(w, "second") })
		w.Until("it is held", func() bool { return w.Deployment("web").Annotations[v1alpha1.HeldAnnotation] != "" })
		waveJudged(w)
		isHeld(w, 3)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 10, 600)
	}},
	{Name: "hold, and undo while the operator is down", Options: held("every", 60*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		w.Stop()
		// kubectl rollout undo restores the annotations of the ReplicaSet.
		patch(w, `{"metadata":{"annotations":{"altershield.defense.antgroup.com/held":null}},
			"spec":{"template":{"metadata":{"labels":{"test":null}}}}}`)
		w.For(time.Minute)
		w.Start()
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
	}},
	{Name: "hold, and release while the operator is down", Options: held("every", 60*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		w.Stop()
		patch(w, `{"metadata":{"annotations":{"altershield.defense.antgroup.com/held":"{\"release\":1,\"until\":\"EveryBatch\",`+
			`\"minReadySeconds\":0,\"progressDeadlineSeconds\":600,\"set\":{\"minReadySeconds\":300,\"progressDeadlineSeconds\":2400}}"}},`+
			`"spec":{"template":{"metadata":{"labels":{"test":"third"}}}}}`)
		w.For(time.Minute)
		w.Start()
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
	}},
	{Name: "hold, and release past admission after the first wave", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		heldRelease(w, 8)
		w.Until("the first wave goes on", func() bool { return w.Deployment("web").Spec.MinReadySeconds != 600 })
		w.Unseen(func() { release(w, "third") })
		w.Until("it is recorded", func() bool { c := w.Change("web"); return c != nil && c.Spec.Release == 3 })
		waveJudged(w)
		isHeld(w, 1)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
		endedBy(w, v1alpha1.ReasonHoldVerified)
	}},
	{Name: "hold while admission is skipped", Options: held("every", 60*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		w.SkipAdmission()
		w.For(30 * time.Second)
		isHeld(w, 3)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
		endedBy(w, v1alpha1.ReasonHoldVerified)
	}},
	{Name: "hold, and fail while admission is skipped", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		w.SkipAdmission()
		current, _ := podsOf(w)
		crash(w, current[0])
		until(w, v1alpha1.ChangeWorkloadSuspend)
		givenBack(w, 0, 600)
		if !w.Deployment("web").Spec.Paused {
			w.Failf("it is not paused")
		}
	}},
	{Name: "hold, and run out", Options: held("every,atMost=1m", 10*time.Minute), Run: func(w *world.World) {
		heldRelease(w, 4)
		w.Until("all pods are replaced", func() bool { _, old := podsOf(w); return len(old) == 0 })
		givenBack(w, 0, 600)
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "hold, and run out where silence fails", Options: held("every,atMost=1m", 10*time.Minute, on(settings.NameSilence, "")),
		Run: func(w *world.World) {
			heldRelease(w, 4)
			until(w, v1alpha1.ChangeWorkloadSuspend)
			givenBack(w, 0, 600)
			if _, old := podsOf(w); !w.Deployment("web").Spec.Paused || len(old) == 0 {
				w.Failf("paused is %t with %d old pods", w.Deployment("web").Spec.Paused, len(old))
			}
		}},
	{Name: "hold the first wave, which is not Ready in time", Options: heldLate(), Run: func(w *world.World) {
		startsTooLate(w)
		endedBy(w, v1alpha1.ReasonHoldRanOut)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
	}},
	{Name: "hold the first wave, which is not Ready in time, where silence fails", Options: heldLate(on(settings.NameSilence, "")),
		Run: func(w *world.World) {
			startsTooLate(w)
			until(w, v1alpha1.ChangeWorkloadSuspend)
			endedBy(w, v1alpha1.ReasonVerificationFailed)
			givenBack(w, 0, 600)
			if _, old := podsOf(w); !w.Deployment("web").Spec.Paused || len(old) < 3 {
				w.Failf("paused is %t with %d old pods", w.Deployment("web").Spec.Paused, len(old))
			}
		}},
	{Name: "hold, and opt out", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		patch(w, `{"metadata":{"labels":{"altershield.defense.antgroup.com/defense":"disabled"}}}`)
		givenBack(w, 0, 600)
	}},
	{Name: "hold, and leave", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		w.Enrol(false)
		givenBack(w, 0, 600)
	}},
	{Name: "hold, and only observe", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		w.Set(settings.NameObserve, true, "")
		givenBack(w, 0, 600)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		if slices.ContainsFunc(w.Events(), func(e world.Event) bool { return e.Reason == v1alpha1.EventDryRun }) {
			w.Failf("a dry run is reported for a hold that happened")
		}
		release(w, "third")
		endedBy(w, v1alpha1.ReasonNotHeld)
		givenBack(w, 0, 600)
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "hold, and turn it off", Options: held("every", 90*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		w.Set(settings.NameHolding, false, "")
		givenBack(w, 0, 600)
		endedBy(w, v1alpha1.ReasonReleaseEnded)
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "hold, and scale", Options: held("every", 60*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		patch(w, `{"spec":{"replicas":8}}`)
		w.For(30 * time.Second)
		patch(w, `{"spec":{"replicas":5}}`)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
	}},
	{Name: "hold, and scale to nothing", Options: held("every", 60*time.Second), Run: func(w *world.World) {
		heldRelease(w, 4)
		patch(w, `{"spec":{"replicas":0}}`)
		givenBack(w, 0, 600)
	}},
}

// TestHoldTakesFewWrites: the operator patches a held Deployment at most twice for each wave, and once to restore its fields.
func TestHoldTakesFewWrites(t *testing.T) {
	for name, waves := range map[string]int{
		"hold every wave": 2, "hold every wave, with quick verdicts": 3, "hold, with values of its own": 3,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			story := holdStories[slices.IndexFunc(holdStories, func(s world.Story) bool { return s.Name == name })]
			e := world.Reference(t, story)
			patches := len(slices.DeleteFunc(e.Writes, func(write string) bool { return write != "patch Deployment web" }))
			if patches < waves || patches > 2*waves+1 {
				t.Errorf("%d patches for %d waves", patches, waves)
			}
		})
	}
}
