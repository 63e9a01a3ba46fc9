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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
)

// TestLimits plays short stories in which only the observer can find a mistake. The mutants of the invariants need them.
func TestLimits(t *testing.T) {
	rolledBack := func(w *world.World, good string) {
		w.Until("it is rolled back", func() bool { return version(w) == good })
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}
	for _, s := range []world.Story{
		{Name: "some pods come up, and some do not", Options: world.Options{
			Nodes: 5, Images: map[string]world.Image{"pulled": {Pull: time.Minute}},
		}, Run: func(w *world.World) {
			d := probed(5).Obj()
			rolling("100%", "0")(d)
			create(w, d.DeepCopy())
			until(w, v1alpha1.ChangeWorkloadSuccess)
			good := version(w)
			w.CutOff(3, true)
			w.CutOff(4, true)
			patch(w, imagePatch("pulled"))
			rolledBack(w, good)
		}},
		{Name: "the pods of one node do not come up", Options: world.Options{Nodes: 5, Images: images}, Run: func(w *world.World) {
			d := probed(20).Obj()
			rolling("100%", "0")(d)
			create(w, d)
			until(w, v1alpha1.ChangeWorkloadSuccess)
			w.CutOff(4, true)
			patch(w, imagePatch("pulled"))
			w.For(time.Hour)
			w.CutOff(4, false)
			w.For(time.Hour)
		}},
		{Name: "many workloads do not come up at once", Run: func(w *world.World) {
			for i := range 6 {
				d := probed(1).Obj()
				d.Name = fmt.Sprint("web-", i)
				must(w, w.Create(d))
			}
			w.For(5 * time.Minute)
			for i := range 6 {
				_ = w.Patch(fmt.Sprint("web-", i), imagePatch(world.BadImage))
			}
			w.For(9 * time.Minute)
		}},
		{Name: "one pod of two of a StatefulSet does not come up", Options: nativeOptions(), Run: func(w *world.World) {
			set := natives()[0]
			must(w, w.Create(set.make()))
			set.is(w, v1alpha1.ChangeWorkloadSuccess)
			good := set.stored(w).GetLabels()[v1alpha1.VersionLabel]
			set.patch(w, templatePatch("second"))
			second := func() (pods []*corev1.Pod) {
				for _, pod := range set.podsOf(w) {
					if pod.Labels["test"] == "second" {
						pods = append(pods, pod)
					}
				}
				return pods
			}
			w.Until("two pods are replaced", func() bool { return len(second()) == 2 })
			crash(w, second()[0])
			w.Until("it is rolled back", func() bool { return set.stored(w).GetLabels()[v1alpha1.VersionLabel] == good })
			set.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "a user pauses a StatefulSet", Options: nativeOptions(), Run: func(w *world.World) {
			set := natives()[0]
			must(w, w.Create(set.make()))
			set.is(w, v1alpha1.ChangeWorkloadSuccess)
			set.patch(w, `{"spec":{"updateStrategy":`+set.halt+`,"template":{"metadata":{"labels":{"test":"second"}}}}}`)
			w.For(5 * time.Minute)
			set.patch(w, `{"spec":{"updateStrategy":`+set.run+`}}`)
			set.is(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "a workload is scaled after its success", Run: func(w *world.World) {
			create(w, web(1))
			until(w, v1alpha1.ChangeWorkloadSuccess)
			patch(w, `{"spec":{"replicas":3}}`)
			w.For(5 * time.Minute)
		}},
		{Name: "two versions are kept", Options: world.Options{Settings: on(settings.NameHistory, "2")}, Run: func(w *world.World) {
			create(w, web(1))
			until(w, v1alpha1.ChangeWorkloadSuccess)
			for _, value := range []string{"second", "third", "fourth"} {
				release(w, value)
				until(w, v1alpha1.ChangeWorkloadSuccess)
			}
		}},
		{Name: "a kubelet says what is not printable", Run: func(w *world.World) {
			create(w, web(1))
			until(w, v1alpha1.ChangeWorkloadSuccess)
			good, before := version(w), w.Pods()[0].UID
			patch(w, imagePatch(world.BadImage))
			w.Until("it has a pod", func() bool { return len(w.Pods()) == 2 })
			for _, pod := range w.Pods() {
				if pod.UID != before {
					w.SetPod(pod, &corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
						Name: "main", State: corev1.ContainerState{
							Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull\x1b[31m", Message: "\x1b[31mno such image\u202e"},
						},
					}}})
				}
			}
			rolledBack(w, good)
		}},
		{Name: "a user writes what is not printable", Run: func(w *world.World) {
			create(w, web(1))
			until(w, v1alpha1.ChangeWorkloadSuccess)
			patch(w, `{"metadata":{"annotations":{"altershield.defense.antgroup.com/rollback-to":"\u001b[31mx\u202e"}}}`)
			w.For(10 * time.Second)
			release(w, "second")
			until(w, v1alpha1.ChangeWorkloadSuccess)
			verdict(w, "un\x1bpass\u202e")
			until(w, v1alpha1.ChangeWorkloadSuspend)
		}},
		{Name: "the server is silent", Options: withServer(soon()), Run: func(w *world.World) {
			w.Server().Script(simulator.Script{Never: true, Match: simulator.Match{Stage: altershield.StagePost}})
			create(w, web(1))
			until(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "the server is silent, which fails", Options: withServer(merged(soon(), on(settings.NameSilence, ""))), Run: func(w *world.World) {
			w.Server().Script(simulator.Script{Never: true, Match: simulator.Match{CheckType: altershield.CheckBatch, Stage: altershield.StagePost}})
			create(w, web(1))
			w.For(10 * time.Minute)
		}},
		{Name: "the first version does not come up for an hour", Run: func(w *world.World) {
			d := web(1)
			d.Spec.Template.Spec.Containers[0].Image = world.BadImage
			create(w, d)
			w.For(time.Hour)
			patch(w, imagePatch("good"))
			until(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "a workload is deleted", Run: func(w *world.World) {
			create(w, web(1))
			until(w, v1alpha1.ChangeWorkloadSuccess)
			must(w, w.Delete(w.Deployment("web")))
		}},
	} {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.Options.Verbose = *verbose
			world.Reference(t, s)
		})
	}
}
