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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
)

// manyLabels returns a patch of more labels than the cache keeps.
func manyLabels(value string) string {
	labels := make([]string, 400)
	for i := range labels {
		labels[i] = fmt.Sprintf(`"label-%d":%s`, i, value)
	}
	return `{"metadata":{"labels":{` + strings.Join(labels, ",") + `}}}`
}

// TestTrace: events report users who get around a block in an allowed way.
func TestTrace(t *testing.T) {
	const optOut = `{"metadata":{"labels":{"` + v1alpha1.DefenseLabel + `":"` + v1alpha1.DefenseDisabled + `"}}}`
	const optIn = `{"metadata":{"labels":{"` + v1alpha1.DefenseLabel + `":null}}}`
	begin := func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		block(w)
	}
	beginHeld := func(w *world.World) {
		d := web(4)
		d.Annotations = map[string]string{v1alpha1.SettingAnnotationPrefix + settings.NameHolding: "first"}
		create(w, d)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		patch(w, imagePatch(world.BadImage))
		if w.Deployment("web").Annotations[v1alpha1.HeldAnnotation] == "" {
			w.Failf("it is not held")
		}
	}
	reported := func(w *world.World, reason string, parts ...string) {
		w.Until("an event "+reason+" with "+strings.Join(parts, " ... "), func() bool {
			return slices.ContainsFunc(w.Events(), func(e world.Event) bool {
				return e.Name == "web" && e.Reason == reason &&
					!slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(e.Message, part) })
			})
		})
	}
	once := func(w *world.World, reason string) {
		count := 0
		for _, e := range w.Events() {
			if e.Name == "web" && e.Reason == reason {
				count++
			}
		}
		if count != 1 {
			w.Failf("%d events %s, want 1: %v", count, reason, w.Events())
		}
	}
	free := func(w *world.World) {
		w.Until("the block is removed", func() bool { return !labelled(w, v1alpha1.SuspendLabel) })
	}
	for _, story := range []world.Story{
		{Name: "opt out while blocked", Run: func(w *world.World) {
			begin(w)
			patch(w, optOut)
			reported(w, v1alpha1.EventOptedOut, world.User+" opted the workload out", "blocked")
			free(w)
			w.Rest()
			patch(w, optIn)
			release(w, "second")
			until(w, v1alpha1.ChangeWorkloadSuccess)
			once(w, v1alpha1.EventOptedOut)
			previous := w.Change("web").Status.PreviousReleases
			if len(previous) != 1 || previous[0].OptedOut == nil || previous[0].OptedOut.User != world.User ||
				previous[0].OptedOut.While != v1alpha1.WhileBlocked {
				w.Failf("the next release has the previous releases %+v", previous)
			}
		}},
		{Name: "opt out while blocked, and in again at once", Run: func(w *world.World) {
			begin(w)
			patch(w, optOut)
			patch(w, optIn)
			reported(w, v1alpha1.EventOptedOut, world.User+" opted the workload out", "blocked")
			w.Rest()
			once(w, v1alpha1.EventOptedOut)
		}},
		{Name: "opt out with versions in quarantine", Run: func(w *world.World) {
			releaseStuck(w)
			before := w.Deployment("web").Annotations[v1alpha1.QuarantinedAnnotation]
			patch(w, optOut)
			reported(w, v1alpha1.EventOptedOut, world.User+" opted the workload out", "quarantine")
			patch(w, `{"metadata":{"annotations":{"`+v1alpha1.QuarantinedAnnotation+`":null}}}`)
			patch(w, optIn)
			w.Rest()
			once(w, v1alpha1.EventOptedOut)
			if got := w.Deployment("web").Annotations[v1alpha1.QuarantinedAnnotation]; got == "" || got != before {
				w.Failf("in quarantine is %q, was %q", got, before)
			}
			if err := w.Patch("web", imagePatch(world.BadImage)); err == nil {
				w.Failf("a version was released that is in quarantine")
			}
		}},
		{Name: "opt out past admission", Run: func(w *world.World) {
			begin(w)
			w.Unseen(func() { patch(w, optOut) })
			reported(w, v1alpha1.EventOptedOut, "field manager", "blocked")
			free(w)
			w.Rest()
			once(w, v1alpha1.EventOptedOut)
		}},
		{Name: "too large while blocked", Run: func(w *world.World) {
			begin(w)
			patch(w, manyLabels(`"x"`))
			reported(w, v1alpha1.EventDefenseChanged, "the deployment is not defended", "16 KiB")
			free(w)
			w.Rest()
			once(w, v1alpha1.EventDefenseChanged)
			if labels := w.Deployment("web").Labels; labels["label-1"] != "x" || labels[v1alpha1.DefenseLabel] != "" {
				w.Failf("the operator changed the user's labels: %v", labels)
			}
			patch(w, manyLabels("null"))
			release(w, "second")
			until(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "an unknown label and an unknown annotation", Run: func(w *world.World) {
			const prefix = v1alpha1.SettingAnnotationPrefix
			d := web(2)
			d.Annotations = map[string]string{prefix + "roll-back": "10m"}
			create(w, d)
			until(w, v1alpha1.ChangeWorkloadSuccess)
			reported(w, v1alpha1.EventUnknownMetadata, prefix+"roll-back is not known", prefix+"rollback")
			once(w, v1alpha1.EventUnknownMetadata)
			patch(w, `{"metadata":{"annotations":{"`+prefix+`roll-back":null},"labels":{"`+v1alpha1.DefenseLabel+`":"enforce"}}}`)
			reported(w, v1alpha1.EventUnknownMetadata, `the value "enforce" is not known`, `"enforced"`)
			release(w, "second")
			until(w, v1alpha1.ChangeWorkloadSuccess)
			w.Rest()
			events := slices.DeleteFunc(slices.Clone(w.Events()), func(e world.Event) bool {
				return e.Reason != v1alpha1.EventUnknownMetadata
			})
			if len(events) != 2 {
				w.Failf("want one event for each: %v", events)
			}
		}},
		{Name: "a release past admission, and annotations that are not cached", Run: func(w *world.World) {
			d := web(2)
			d.Annotations = map[string]string{"example.com/notes": "kept"}
			create(w, d)
			until(w, v1alpha1.ChangeWorkloadSuccess)
			must(w, w.Delete(w.Deployment("web")))
			w.Unseen(func() { create(w, d) })
			w.Unseen(func() { release(w, "second") })
			until(w, v1alpha1.ChangeWorkloadSuccess)
			if notes := w.Deployment("web").Annotations["example.com/notes"]; notes != "kept" {
				w.Failf("the operator removed the user's annotation: %v", w.Deployment("web").Annotations)
			}
		}},
		{Name: "opt out while nothing is denied", Run: func(w *world.World) {
			create(w, web(2))
			until(w, v1alpha1.ChangeWorkloadSuccess)
			patch(w, optOut)
			w.Rest()
			if slices.ContainsFunc(w.Events(), func(e world.Event) bool { return e.Reason == v1alpha1.EventOptedOut }) {
				w.Failf("an event reports it: %v", w.Events())
			}
		}},
		{Name: "an owner while blocked", Run: func(w *world.World) {
			begin(w)
			owners := adopted(w)
			withRelease := strings.TrimSuffix(owners, "}") + `,"spec":{"template":{"metadata":{"labels":{"test":"second"}}}}}`
			if err := w.Patch("web", withRelease); err == nil {
				w.Failf("a request that sets an owner passes the block")
			}
			patch(w, owners)
			reported(w, v1alpha1.EventOptedOut, world.User+" gave the workload the owner prometheus/k8s", "blocked")
			w.Rest()
			once(w, v1alpha1.EventOptedOut)
			if out := w.Change("web").Status.OptedOut; out == nil || out.Owner != "prometheus/k8s" || out.While != v1alpha1.WhileBlocked {
				w.Failf("OptedOut of the release is %+v", out)
			}
			release(w, "second")
			until(w, v1alpha1.ChangeWorkloadSuccess)
			once(w, v1alpha1.EventOptedOut)
		}},
		{Name: "an owner while blocked, past admission", Run: func(w *world.World) {
			begin(w)
			owners := adopted(w)
			w.Unseen(func() { patch(w, owners) })
			reported(w, v1alpha1.EventOptedOut, "gave the workload the owner prometheus/k8s", "blocked")
			w.Rest()
			once(w, v1alpha1.EventOptedOut)
		}},
		{Name: "an owner while held", Run: func(w *world.World) {
			owners := adopted(w)
			beginHeld(w)
			patch(w, owners)
			reported(w, v1alpha1.EventOptedOut, world.User+" gave the workload the owner prometheus/k8s", "held")
			w.Rest()
			once(w, v1alpha1.EventOptedOut)
		}},
		{Name: "an owner while held, past admission", Run: func(w *world.World) {
			owners := adopted(w)
			beginHeld(w)
			w.Unseen(func() { patch(w, owners) })
			reported(w, v1alpha1.EventOptedOut, "gave the workload the owner prometheus/k8s", "held")
			w.Rest()
			once(w, v1alpha1.EventOptedOut)
		}},
		{Name: "opt out while held", Run: func(w *world.World) {
			beginHeld(w)
			w.Until("the release is recorded", func() bool {
				c := w.Change("web")
				return c != nil && c.Spec.Release == 2 && c.Status.Attempt > 0
			})
			patch(w, optOut)
			reported(w, v1alpha1.EventOptedOut, world.User+" opted the workload out", "held")
			w.Rest()
			once(w, v1alpha1.EventOptedOut)
		}},
		{Name: "a request from before the enrolment", Run: func(w *world.World) {
			create(w, web(2))
			until(w, v1alpha1.ChangeWorkloadSuccess)
			release(w, "second")
			until(w, v1alpha1.ChangeWorkloadSuccess)
			w.Enrol(false)
			w.For(time.Minute)
			patch(w, asked("last-success"))
			w.For(time.Hour)
			w.Enrol(true)
			reported(w, v1alpha1.ReasonRollbackRefused, "last-success", "when its defense began")
			once(w, v1alpha1.ReasonRollbackRefused)
		}},
		{Name: "a request from before opting in", Run: func(w *world.World) {
			create(w, web(2))
			until(w, v1alpha1.ChangeWorkloadSuccess)
			patch(w, optOut)
			patch(w, asked("last-success"))
			w.For(time.Minute)
			patch(w, optIn)
			reported(w, v1alpha1.ReasonRollbackRefused, "last-success", "when its defense began")
			once(w, v1alpha1.ReasonRollbackRefused)
		}},
		{Name: "delete while blocked, and create again", Run: func(w *world.World) {
			begin(w)
			must(w, w.Delete(w.Deployment("web")))
			reported(w, v1alpha1.EventDeletedWhileBlocked, "its releases were blocked")
			create(w, web(2))
			reported(w, v1alpha1.EventDeletedWhileBlocked, world.User+" created the deployment again", "its releases were blocked")
			until(w, v1alpha1.ChangeWorkloadSuccess)
			twice := slices.DeleteFunc(w.Events(), func(e world.Event) bool { return e.Reason != v1alpha1.EventDeletedWhileBlocked })
			if len(twice) != 2 || strings.Contains(twice[0].Message, "created the deployment again") ||
				!strings.Contains(twice[1].Message, "created the deployment again") {
				w.Failf("events %v, want one for the deletion and one for the creation", twice)
			}
		}},
		{Name: "correct a verdict", Run: func(w *world.World) {
			begin(w)
			verdict(w, "pass")
			reported(w, v1alpha1.EventVerdictCorrected, "of pod ", "by field manager")
			until(w, v1alpha1.ChangeWorkloadSuccess)
			once(w, v1alpha1.EventVerdictCorrected)
			release(w, "second")
			until(w, v1alpha1.ChangeWorkloadSuccess)
			if previous := w.Change("web").Status.PreviousReleases; len(previous) != 1 || len(previous[0].Corrections) != 1 {
				w.Failf("the next release has the previous releases %+v", previous)
			}
		}},
	} {
		t.Run(story.Name, func(t *testing.T) {
			t.Parallel()
			if e := world.Play(t, story, world.Options{Verbose: *verbose}); e.Problem != "" {
				t.Errorf("%s\n%s", e.Problem, e.Log)
			}
		})
	}
}
