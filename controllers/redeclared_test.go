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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
	"github.com/traas-stack/altershield-operator/test/world"
)

// declaredStories are stories of a declared Fleet that is not as a native workload is.
func declaredStories() []world.Story {
	options := world.Options{Verbose: *verbose, Kinds: workload.NewRegistry(declaredKind(workloadtest.ChangeKind(), "Fleet"))}
	return []world.Story{
		{Name: "another declaration while it is halted", Options: options, Run: redeclareHalted},
		{Name: "released while it was not enrolled", Options: options, Run: releasedOutside},
		{Name: "too large for the history", Options: options, Run: tooLargeForHistory},
		{Name: "a history that cannot be restored", Options: options, Run: refusedDeclared},
	}
}

// TestDeclared plays stories of declared kinds.
func TestDeclared(t *testing.T) {
	for _, s := range declaredStories() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			world.Reference(t, s)
		})
	}
}

// redeclareHalted changes the declaration of a Fleet that is blocked and halted: its content becomes a baseline, which no block and no
// halt outlives.
func redeclareHalted(w *world.World) {
	must(w, w.Create(ships(9)))
	fleetIs(w, v1alpha1.ChangeWorkloadSuccess)
	crew(w, "second", "")
	w.Until("a batch is done", func() bool { return batchDone(w, changeOfFleet(w)) })
	judge(w, changeOfFleet(w), "unpass")
	w.Until("it is blocked and anchored", func() bool { return fleetLabelled(w, v1alpha1.SuspendLabel) && w.Fleet("web").Spec.Anchored })
	fleetIs(w, v1alpha1.ChangeWorkloadSuspend)

	// As the declaration before it would have recorded the content.
	w.Unseen(func() {
		must(w, w.PatchFleet("web", `{"metadata":{"labels":{"`+v1alpha1.VersionLabel+`":"another"},
			"annotations":{"`+v1alpha1.ContentAnnotation+`":"another 99"}}}`))
	})
	w.Until("it is a baseline", func() bool { return !fleetLabelled(w, v1alpha1.VersionLabel) })
	w.Rest()
	if f := w.Fleet("web"); fleetLabelled(w, v1alpha1.SuspendLabel) || f.Spec.Anchored || f.Annotations[v1alpha1.HaltedAnnotation] != "" ||
		f.Annotations[v1alpha1.SuspendedByAnnotation] != "" {
		w.Failf("the baseline is blocked or halted: %+v, anchored: %t", f.ObjectMeta, f.Spec.Anchored)
	}
	lifted := func(e world.Event) bool { return e.Reason == v1alpha1.EventBlockLifted }
	if !slices.ContainsFunc(w.Events(), lifted) {
		w.Failf("no event of the lifted block: %+v", w.Events())
	}
	crew(w, "third", "")
	fleetIs(w, v1alpha1.ChangeWorkloadSuccess)
}

// releasedOutside releases a Fleet while its namespace is not enrolled, so it is not verified.
func releasedOutside(w *world.World) {
	must(w, w.Create(ships(3)))
	fleetIs(w, v1alpha1.ChangeWorkloadSuccess)
	w.Enrol(false)
	w.Rest()
	crew(w, "outside", "")
	w.Rest()
	w.Enrol(true)
	w.Rest()
	if n := len(w.ChangesOf(w.Fleet("web"))); fleetLabelled(w, v1alpha1.VersionLabel) || n != 1 {
		w.Failf("it is no baseline: %+v, %d releases", w.Fleet("web").ObjectMeta, n)
	}
	crew(w, "second", "")
	fleetIs(w, v1alpha1.ChangeWorkloadSuccess)
}

// tooLargeForHistory releases content that no history keeps: an event reports it once, and the release ends.
func tooLargeForHistory(w *world.World) {
	f := ships(1)
	f.Spec.Crew.Annotations = map[string]string{"log": strings.Repeat("x", declared.MaxHistory)}
	must(w, w.Create(f))
	fleetIs(w, v1alpha1.ChangeWorkloadSuccess)
	w.For(time.Hour)
	reported := 0
	for _, e := range w.Events() {
		if e.Reason == v1alpha1.EventWriteDenied && strings.Contains(e.Message, "at most 262144 are kept") {
			reported++
		}
	}
	if reported != 1 {
		w.Failf("it is reported %d times", reported)
	}
	c := meta.FindStatusCondition(changeOfFleet(w).Status.Conditions, v1alpha1.ConditionDefended)
	if c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "no rollback can restore it") {
		w.Failf("the release does not report it: %+v", c)
	}
	must(w, w.PatchFleet("web", `{"spec":{"crew":{"metadata":{"annotations":null}}}}`))
	fleetIs(w, v1alpha1.ChangeWorkloadSuccess)
}

const badCrew = `{"spec":{"crew":{"spec":{"containers":[{"name":"main","image":"` + world.BadImage + `"}]}}}}`

// neverUp releases a Fleet whose pods never come up, after a version that is proven.
func neverUp(w *world.World) (good string) {
	must(w, w.Create(ships(3)))
	fleetIs(w, v1alpha1.ChangeWorkloadSuccess)
	w.For(10 * time.Minute)
	good = w.Fleet("web").Labels[v1alpha1.VersionLabel]
	must(w, w.PatchFleet("web", badCrew))
	fleetIs(w, v1alpha1.ChangeWorkloadRunning)
	return good
}

// rollDeclaredBack waits until such a Fleet is rolled back without a request. Pods that stayed Ready count for the restored version.
func rollDeclaredBack(w *world.World) {
	good := neverUp(w)
	bad := changeOfFleet(w).Name
	w.Until("it is rolled back", func() bool {
		f := w.Fleet("web")
		return f.Labels[v1alpha1.VersionLabel] == good && f.Spec.Crew.Spec.Containers[0].Image == "good"
	})
	fleetIs(w, v1alpha1.ChangeWorkloadSuccess)
	for _, c := range w.ChangesOf(w.Fleet("web")) {
		if c.Name == bad && c.Status.Status != v1alpha1.ChangeWorkloadRollback {
			w.Failf("the release that was rolled back is %+v", c.Status)
		}
	}
	if c := changeOfFleet(w); c.Status.PassCount != 3 || c.Status.Attempt != 2 {
		w.Failf("the version that is restored: %+v", c.Status)
	}
	if err := w.PatchFleet("web", badCrew); err == nil || !strings.Contains(err.Error(), "is in quarantine until") {
		w.Failf("the version that was rolled back is released: %v", err)
	}
}

// refusedDeclared has a history that another program changed: the rollback is refused once, and the release says why.
func refusedDeclared(w *world.World) {
	good := neverUp(w)
	for _, r := range world.List[*appsv1.ControllerRevision](w, "ControllerRevision") {
		if r.Labels[v1alpha1.VersionLabel] == good {
			forged := r.DeepCopy()
			forged.ResourceVersion, forged.UID = "", ""
			forged.Data.Raw = []byte(strings.ReplaceAll(string(r.Data.Raw), "good", "else"))
			must(w, w.Delete(r))
			must(w, w.Create(forged))
		}
	}
	w.For(time.Hour)
	refused := 0
	for _, e := range w.Events() {
		if e.Reason == v1alpha1.EventRollbackRefused && strings.Contains(e.Message, "the template in the history for version "+good) {
			refused++
		}
	}
	c := meta.FindStatusCondition(changeOfFleet(w).Status.Conditions, v1alpha1.ConditionRolledBack)
	if refused != 1 || c == nil || c.Reason != v1alpha1.ReasonRollbackRefused || !strings.Contains(c.Message, good) {
		w.Failf("refused %d times: %+v", refused, c)
	}
	must(w, w.PatchFleet("web", strings.Replace(badCrew, world.BadImage, "fixed", 1)))
	fleetIs(w, v1alpha1.ChangeWorkloadSuccess)
}
