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
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
)

// later is longer than a release with all its waves takes.
const later = 5 * time.Minute

// invariantStories check nothing themselves: only the invariants can fail them. The mutants that name an invariant run these stories.
func invariantStories() []world.Story {
	runs := func(w *world.World, d *appsv1.Deployment) {
		create(w, d)
		w.For(later)
	}
	runsSet := func(w *world.World, set client.Object) {
		must(w, w.Create(set))
		w.For(later)
	}
	set, optOut := heldSet(5), `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":"`+v1alpha1.DefenseDisabled+`"}}}`
	return []world.Story{
		{Name: "release", Run: func(w *world.World) { runs(w, web(2)) }},
		{Name: "batches", Options: world.Options{Settings: on(settings.NameBranch, "2")}, Run: func(w *world.World) { runs(w, web(5)) }},
		{Name: "fail", Run: func(w *world.World) {
			runs(w, web(2))
			verdict(w, "unpass")
			w.For(later)
		}},
		{Name: "fail, and release", Run: func(w *world.World) {
			runs(w, web(2))
			verdict(w, "unpass")
			w.For(later)
			_ = w.Patch("web", templatePatch("refused"))
			w.For(later)
		}},
		{Name: "never start", Run: func(w *world.World) {
			d := slow(2)
			d.Annotations = map[string]string{v1alpha1.SettingAnnotationPrefix + settings.NameRollback: "10s"}
			runs(w, d)
			patch(w, imagePatch(world.BadImage))
			w.For(6 * later)
		}},
		{Name: "never start in order", Options: nativeOptions(), Run: func(w *world.World) {
			runsSet(w, natives()[0].make())
			natives()[0].patch(w, imagePatch(world.BadImage))
			w.For(6 * later)
		}},
		{Name: "fail, pause, and opt out", Run: func(w *world.World) {
			runs(w, web(2))
			verdict(w, "unpass")
			w.For(later)
			patch(w, `{"spec":{"paused":true}}`)
			patch(w, optOut)
			w.For(later)
		}},
		{Name: "opt out, and scale", Run: func(w *world.World) {
			runs(w, web(1))
			patch(w, optOut)
			w.For(later)
			patch(w, `{"spec":{"replicas":3}}`)
			w.For(later)
		}},
		{Name: "server", Options: withServer(soon()), Run: func(w *world.World) { runs(w, web(1)) }},
		{Name: "hold", Options: held("every", 90*time.Second), Run: func(w *world.World) {
			runs(w, web(4))
			release(w, "second")
			w.For(6 * later)
		}},
		{Name: "hold, and release", Options: held("every", 90*time.Second), Run: func(w *world.World) {
			runs(w, web(4))
			release(w, "second")
			w.For(time.Minute)
			release(w, "third")
			w.For(6 * later)
		}},
		{Name: "hold a StatefulSet", Options: heldNatives("every", 90*time.Second), Run: func(w *world.World) {
			runsSet(w, set.make())
			set.patch(w, templatePatch("second"))
			w.For(6 * later)
		}},
		{Name: "hold a StatefulSet, and release", Options: heldNatives("every", 90*time.Second), Run: func(w *world.World) {
			runsSet(w, set.make())
			set.patch(w, templatePatch("second"))
			w.For(time.Minute)
			set.patch(w, templatePatch("third"))
			w.For(6 * later)
		}},
		{Name: "hold a DaemonSet", Options: heldNatives("every,daemonsets", 90*time.Second), Run: func(w *world.World) {
			d := natives()[1]
			must(w, w.Create(d.make()))
			w.For(6 * later)
			d.patch(w, templatePatch("second"))
			w.For(6 * later)
		}},
	}
}

func TestInvariants(t *testing.T) {
	for _, s := range invariantStories() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			world.Reference(t, s)
		})
	}
}
