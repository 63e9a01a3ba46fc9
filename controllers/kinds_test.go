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
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
	"github.com/traas-stack/altershield-operator/test/world"
)

// fleetKinds are the kinds of Fleets: written in Go, and declared by a ChangeKind.
func fleetKinds() map[string]workload.Kind {
	return map[string]workload.Kind{"fleet": workloadtest.Fleet{}, "declared fleet": declaredKind(workloadtest.ChangeKind(), "Fleet")}
}

// declaredKind returns the kind of an accepted declaration.
func declaredKind(c *v1alpha1.ChangeKind, kind string) workload.Kind {
	k, problem := declared.Accept(c, declared.Served{Kind: kind, Namespaced: true})
	if problem != "" {
		panic(problem)
	}
	return declared.NewWorkloads(k)
}

// fleetStories are stories of a Fleet beside a Deployment of the same name.
func fleetStories() (all []world.Story) {
	kinds := fleetKinds()
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		options := world.Options{Verbose: *verbose, Kinds: workload.NewRegistry(workload.Deployment{}, kinds[name])}
		unenrolled := options
		unenrolled.Unenrolled = true
		all = append(all,
			world.Story{Name: name + ": enrol, release, fail, block, repair", Options: unenrolled, Run: repairFleet},
			world.Story{Name: name + ": halt, correct, roll back", Options: options, Run: rollFleetBack},
		)
	}
	inPlace := workloadtest.ChangeKind()
	inPlace.Spec.Pods.InPlace = true
	return append(all, world.Story{
		Name: "declared fleet in place: never up, rolled back", Run: rollDeclaredBack,
		Options: world.Options{Verbose: *verbose, Kinds: workload.NewRegistry(workload.Deployment{}, declaredKind(inPlace, "Fleet"))},
	})
}

// TestAnotherKind plays stories of Fleets: a Fleet is defended as a Deployment is, with no more code than its Kind, or with no code and a
// ChangeKind.
func TestAnotherKind(t *testing.T) {
	for _, s := range fleetStories() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			world.Reference(t, s)
		})
	}
}

// TestAnotherKindSweep lets the manager die after its writes.
func TestAnotherKindSweep(t *testing.T) {
	for _, s := range fleetStories() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			sweep(t, s, deaths)
		})
	}
}

func repairFleet(w *world.World) {
	create(w, web(2))
	must(w, w.Create(ships(3)))
	w.Until("it sails", func() bool { return w.Fleet("web").Status.Ready == 3 })
	w.Rest()
	w.Enrol(true)
	w.Rest()
	if n := len(w.ChangesOf(w.Fleet("web"))); n != 0 {
		w.Failf("%d releases of the baseline", n)
	}

	crew(w, "second", "")
	fleetIs(w, v1alpha1.ChangeWorkloadSuccess)
	c := changeOfFleet(w)
	if ref := c.Spec.WorkloadRef; ref == nil || ref.Kind != "Fleet" || ref.Name != "web" || c.Status.PassCount != 3 ||
		!strings.HasPrefix(c.Name, "web--x--fleet-") {
		w.Failf("released as %s: %+v, %d pods passed", c.Name, c.Spec, c.Status.PassCount)
	}
	for _, pod := range w.Pods() {
		if metav1.IsControlledBy(pod, w.Fleet("web")) &&
			(pod.Labels[v1alpha1.OperateFinishedLabel] == "" || pod.Labels[v1alpha1.VersionLabel] != c.Spec.Reversion) {
			w.Failf("the pod %s is not labelled", pod.Name)
		}
	}

	judge(w, changeOfFleet(w), "unpass")
	w.Until("it is blocked", func() bool { return fleetLabelled(w, v1alpha1.SuspendLabel) })
	w.For(10 * time.Second)
	err := w.PatchFleet("web", crewPatch("refused", ""))
	if err == nil || !strings.Contains(err.Error(), `"vfleet.example.com.kb.io" denied the request: fleet web is suspended`) {
		w.Failf("a blocked fleet was released: %v", err)
	}
	crew(w, "repair", `"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}`)
	fleetIs(w, v1alpha1.ChangeWorkloadSuccess)
	w.Until("the block is lifted", func() bool { return !fleetLabelled(w, v1alpha1.SuspendLabel) })
	if fleetLabelled(w, v1alpha1.IgnoredSuspendLabel) {
		w.Failf("the override is not removed")
	}
	if d := w.Deployment("web"); len(w.Changes("web")) != 0 || d.Labels[v1alpha1.SuspendLabel] != "" {
		w.Failf("the deployment of the same name was changed: %+v", d.ObjectMeta)
	}
}

func rollFleetBack(w *world.World) {
	must(w, w.Create(ships(9))) // the rollout lasts longer than the death of a process, which would else have nothing to halt
	fleetIs(w, v1alpha1.ChangeWorkloadSuccess)
	first := w.Fleet("web").Labels[v1alpha1.VersionLabel]

	crew(w, "second", "")
	w.Until("a batch is done", func() bool { return batchDone(w, changeOfFleet(w)) })
	judge(w, changeOfFleet(w), "unpass")
	w.Until("it is blocked and anchored", func() bool { return fleetLabelled(w, v1alpha1.SuspendLabel) && w.Fleet("web").Spec.Anchored })
	fleetIs(w, v1alpha1.ChangeWorkloadSuspend)
	judge(w, changeOfFleet(w), "pass")
	w.Until("the block is lifted", func() bool { return !fleetLabelled(w, v1alpha1.SuspendLabel) && !w.Fleet("web").Spec.Anchored })
	fleetIs(w, v1alpha1.ChangeWorkloadSuccess)

	must(w, w.PatchFleet("web", `{"metadata":{"annotations":{"`+v1alpha1.RollbackToAnnotation+`":"last-success"}}}`))
	w.Until("it is rolled back", func() bool {
		f := w.Fleet("web")
		return f.Labels[v1alpha1.VersionLabel] == first && f.Spec.Crew.Labels["test"] == ""
	})
	fleetIs(w, v1alpha1.ChangeWorkloadSuccess)
	err := w.PatchFleet("web", crewPatch("second", ""))
	if err == nil || !strings.Contains(err.Error(), `"qfleet.example.com.kb.io" denied the request: fleet web: version`) {
		w.Failf("a rolled-back version was released: %v", err)
	}
}

func ships(n int32) *workloadtest.FleetObject {
	return &workloadtest.FleetObject{
		ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: "web"},
		Spec: workloadtest.FleetSpec{Ships: n, Crew: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main", Image: "good", ReadinessProbe: &corev1.Probe{}}},
		}}},
	}
}

func crewPatch(value, metadata string) string {
	return fmt.Sprintf(`{"metadata":{%s},"spec":{"crew":{"metadata":{"labels":{"test":%q}}}}}`, metadata, value)
}

// crew releases another template of the Fleet.
func crew(w *world.World, value, metadata string) {
	must(w, w.PatchFleet("web", crewPatch(value, metadata)))
}

// changeOfFleet returns the current release, or nil if it is not recorded.
func changeOfFleet(w *world.World) *v1alpha1.ChangeWorkload {
	f := w.Fleet("web")
	return w.ChangesOf(f)[f.Labels[v1alpha1.VersionLabel]]
}

// fleetIs waits until the current release is in a state, and a while longer.
func fleetIs(w *world.World, state v1alpha1.ChangeWorkloadStatusType) {
	w.Until("the release of the fleet is "+string(state), func() bool {
		c := changeOfFleet(w)
		return c != nil && c.Status.Status == state &&
			fmt.Sprint(c.Status.ObservedRelease) == w.Fleet("web").Annotations[v1alpha1.ReleaseAnnotation]
	})
	w.For(10 * time.Second)
}

func fleetLabelled(w *world.World, label string) bool {
	return slices.Contains(slices.Collect(maps.Keys(w.Fleet("web").Labels)), label)
}
