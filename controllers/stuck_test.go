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
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/world"
)

// stuckStory is a release on nodes, with the default settings and the delays of a real cluster, and whether it is rolled back.
type stuckStory struct {
	replicas int32
	// strategy sets the strategy of the Deployment; nil is the default.
	strategy func(*appsv1.Deployment)
	// to changes the template that is released.
	to func(*appsv1.Deployment)
	// before is called before the release, meanwhile during its rollout.
	before, meanwhile func(*world.World)
	// room is the number of pods that a node can run.
	room int
	// from and until are the earliest and the latest time of the rollback, after the release began; zero if the release succeeds.
	from, until time.Duration
	// restore ends, after the rollback, an outage that would stop any version.
	restore func(*world.World)
}

const (
	// fails and failed are the earliest and the latest time of the rollback of a failing release: two minutes, with times cut to seconds
	// and the delays of a kubelet.
	fails, failed = 2*time.Minute - time.Second, 3 * time.Minute
	// slowFor and stuckFor are the same for a slow release.
	slowFor, stuckFor = 10*time.Minute - time.Second, 11 * time.Minute
)

// images are the images on the nodes.
var images = map[string]world.Image{
	"missing":     {Missing: true},
	"big":         {Pull: 3 * time.Minute},
	"pulled":      {Pull: 20 * time.Second},
	"migration":   {Ends: 4 * time.Minute},
	"straggler":   {Ready: 5 * time.Second, Straggler: 8 * time.Minute},
	"ends":        {Ends: 500 * time.Millisecond},
	"crashes":     {Ends: 8 * time.Second},
	"crashes-20s": {Ends: 20 * time.Second},
}

func of(image string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = image }
}

// unprobed sets an image and removes the readiness probe.
func unprobed(image string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		of(image)(d)
		d.Spec.Template.Spec.Containers[0].ReadinessProbe = nil
	}
}

func migrating(d *appsv1.Deployment) {
	of("good:2")(d)
	d.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "migrate", Image: "migration"}}
}

func recreated(d *appsv1.Deployment) {
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
}

// rolling sets the strategy RollingUpdate.
func rolling(surge, unavailable string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Spec.Strategy = appsv1.DeploymentStrategy{
			Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxSurge: new(intstr.Parse(surge)), MaxUnavailable: new(intstr.Parse(unavailable)),
			},
		}
	}
}

// at calls do some time after the release began.
func at(after time.Duration, do func(*world.World)) func(*world.World) {
	return func(w *world.World) {
		w.For(after)
		do(w)
	}
}

// stuckStories are releases that must be rolled back, and releases that must not.
func stuckStories() map[string]stuckStory {
	stories := map[string]stuckStory{
		"a node comes after five minutes": {replicas: 5, room: 1, strategy: rolling("1", "0"), to: of("good:2"),
			meanwhile: at(5*time.Minute, (*world.World).AddNode)},
		"a migration of four minutes":      {replicas: 3, to: migrating},
		"a migration, one pod at a time":   {replicas: 3, strategy: rolling("1", "0"), to: migrating},
		"a pull of three minutes":          {replicas: 3, to: of("big")},
		"a pull of three minutes, all new": {replicas: 3, strategy: recreated, to: of("big")},
		"maxSurge 1, and one pod is slow":  {replicas: 3, strategy: rolling("1", "0"), to: of("straggler")},
		"one bad node of five": {replicas: 20, to: of("pulled"),
			before:    func(w *world.World) { w.CutOff(4, true) },
			meanwhile: at(time.Hour, func(w *world.World) { stuckOn(w, "node-4"); w.CutOff(4, false) })},
		"a node died just before": {replicas: 6, to: of("good:2"), before: func(w *world.World) { w.KillNode(2) },
			meanwhile: at(time.Minute, func(w *world.World) { waitsFor(w, "node-2") })},
		"a node died just before, which the first new pod goes to": {replicas: 4, strategy: rolling("1", "0"), to: of("good:2"),
			before: func(w *world.World) { w.KillNode(5) }, meanwhile: at(4*time.Minute, func(w *world.World) { waitsFor(w, "node-5") })},
		"a node died just before, and returns": {replicas: 4, strategy: rolling("1", "0"), to: of("good:2"),
			before:    func(w *world.World) { w.KillNode(5) },
			meanwhile: at(4*time.Minute, func(w *world.World) { waitsFor(w, "node-5"); w.BootNode(5) })},
		"a node returns while pods of the version are on it": {replicas: 6, strategy: rolling("1", "0"), to: of("pulled"),
			meanwhile: at(50*time.Second, func(w *world.World) {
				w.KillNode(3)
				w.For(3 * time.Minute)
				w.BootNode(3)
			})},
		"all nodes are restarted": {replicas: 6, to: of("pulled"),
			meanwhile: at(30*time.Second, func(w *world.World) {
				for n := range 5 {
					w.KillNode(n + 1)
				}
				w.For(2 * time.Minute)
				for n := range 5 {
					w.BootNode(n + 1)
				}
			})},
		"a quota lets no pod be made": {replicas: 3, strategy: rolling("1", "0"), to: of("good:2"),
			before: func(w *world.World) { w.SetQuota(true, 3) }, from: slowFor, until: stuckFor},
		"a quota lets no pod be made, all new": {replicas: 3, strategy: recreated, to: of("good:2"),
			before: func(w *world.World) { w.SetQuota(true, 0) }, from: slowFor, until: stuckFor,
			restore: func(w *world.World) { w.SetQuota(false, 0) }},
	}
	strategies := map[string]func(*appsv1.Deployment){
		"default strategy": nil, "one by one": rolling("1", "0"), "in place": rolling("0", "1"), "all at once": rolling("100%", "100%"),
		"doubled": rolling("100%", "0"), "Recreate": recreated,
	}
	for name, strategy := range strategies {
		for _, replicas := range []int32{1, 3, 10, 100} {
			stories[fmt.Sprintf("no such image, %d replicas, %s", replicas, name)] =
				stuckStory{replicas: replicas, strategy: strategy, to: of("missing"), from: fails, until: failed}
		}
		for _, replicas := range []int32{1, 3, 10} {
			for _, image := range []string{"ends", "crashes", "crashes-20s"} {
				stories[fmt.Sprintf("no probe, %s, %d replicas, %s", image, replicas, name)] =
					stuckStory{replicas: replicas, strategy: strategy, to: unprobed(image), from: fails, until: failed}
			}
		}
	}
	return stories
}

// TestStuck plays the stories. Each ends with a healthy workload.
func TestStuck(t *testing.T) {
	for name, h := range stuckStories() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := world.Play(t, world.Story{Name: name, Run: h.play}, world.Options{Nodes: 5, Images: images, NodeRoom: h.room, Verbose: *verbose})
			if wrong := slices.Concat(e.Violations, e.Errors); e.Problem != "" || len(wrong) > 0 {
				t.Errorf("%s\n%s\n%s", e.Problem, strings.Join(wrong, "\n"), e.Log)
			}
		})
	}
}

func (h *stuckStory) play(w *world.World) {
	d := probed(h.replicas).Obj()
	if h.strategy != nil {
		h.strategy(d)
	}
	create(w, d.DeepCopy())
	until(w, v1alpha1.ChangeWorkloadSuccess)
	good := version(w)
	w.For(5 * time.Minute) // the version is proven then
	if h.before != nil {
		h.before(w)
	}
	h.to(d)
	must(w, w.Patch("web", templateOf(w, d)))
	released, began := version(w), time.Now()
	if h.meanwhile != nil {
		h.meanwhile(w)
	}
	if h.until == 0 {
		until(w, v1alpha1.ChangeWorkloadSuccess)
		if now := version(w); now != released || quarantined(w) > 0 {
			w.Failf("the release was rolled back to %s: %s", now, w.Deployment("web").Annotations[v1alpha1.QuarantineReasonAnnotation])
		}
		return
	}
	w.Until("it is rolled back", func() bool { return version(w) == good })
	if took := time.Since(began); took < h.from || took > h.until {
		w.Failf("it was rolled back after %s, want between %s and %s", took, h.from, h.until)
	}
	if h.restore != nil {
		h.restore(w)
	}
	until(w, v1alpha1.ChangeWorkloadSuccess)
	if now := version(w); now != good || quarantined(w) != 1 {
		w.Failf("version %s is released, %d are in quarantine", now, quarantined(w))
	}
}

// templateOf returns a patch to the template of a manifest.
func templateOf(w *world.World, d *appsv1.Deployment) string {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"spec": d.Spec.Template.Spec}}})
	must(w, err)
	return string(patch)
}

// stuckOn fails unless the release reports the node that it is stuck on.
func stuckOn(w *world.World, node string) { reports(w, v1alpha1.ReasonTolerated, node) }

// reports fails unless the release reports why it is not rolled back.
func reports(w *world.World, reason, why string) {
	for _, c := range w.Change("web").Status.Conditions {
		if c.Type == v1alpha1.ConditionRolledBack && c.Reason == reason && strings.Contains(c.Message, why) {
			return
		}
	}
	w.Failf("no condition reports %s because of %s: %+v", reason, why, w.Change("web").Status.Conditions)
}

// waitsFor fails unless a pod of the release is on a node whose kubelet has not started it.
func waitsFor(w *world.World, node string) {
	if at := w.Change("web").Status.StartTimeUnix; time.Now().After(time.Unix(at, 0).Add(fails + time.Minute)) {
		reports(w, v1alpha1.ReasonStillWaiting, node)
	}
	for _, pod := range w.Pods() {
		if pod.Spec.NodeName == node && pod.Status.StartTime == nil {
			return
		}
	}
	w.Failf("no pod waits for %s", node)
}
