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

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
	"github.com/traas-stack/altershield-operator/test/world"
)

// podlessStories are the stories of Courses, which have no pods.
func podlessStories() (all []world.Story) {
	kinds := func(rollbacks v1alpha1.ChangeKindRollback) *workload.Registry {
		return workload.NewRegistry(workload.Deployment{}, declaredKind(workloadtest.CourseKind(rollbacks), "Course"))
	}
	heals := world.Options{Settings: on(settings.NameSelfHealing, "")}
	asksOnly := heals
	asksOnly.Kinds = kinds(v1alpha1.RollbackOnRequest)
	notReef := func(stage v1alpha1.PolicyStage) world.Options {
		return withPolicies(byRule("workload.spec.route.harbor != 'shallow' && newTemplate == null", atStage(stage)), noDefault())
	}
	for _, s := range []world.Story{
		{Name: "enrol, reach, run aground, block, repair", Options: world.Options{Unenrolled: true}, Run: repairCourse},
		{Name: "becalmed for long", Run: becalmedCourse},
		{Name: "becalmed too long, and reached", Run: lateCourse},
		{Name: "a rule at the beginning is false", Options: notReef(v1alpha1.StageReleasePre), Run: shallowCourse},
		{Name: "a rule at the end is false", Options: notReef(v1alpha1.StageReleasePost), Run: shallowCourse},
		{Name: "roll back on request", Run: rollCourseBack},
		{Name: "run aground, and heal", Options: heals, Run: healCourse},
		{Name: "run aground, and ask for the rollback", Options: asksOnly, Run: askForCourse},
		{Name: "run aground after it succeeded", Run: groundedLater},
		{Name: "a server", Options: world.Options{Server: true}, Run: courseWithServer},
		{Name: "leave while it is halted", Run: courseLeaves},
	} {
		if s.Options.Kinds == nil {
			s.Options.Kinds = kinds(v1alpha1.RollbackAutomatic)
		}
		s.Name = "course: " + s.Name
		all = append(all, s)
	}
	return all
}

// TestPodlessStories plays the stories of Courses.
func TestPodlessStories(t *testing.T) {
	for _, s := range podlessStories() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.Options.Verbose = *verbose
			e := world.Reference(t, s)
			t.Logf("%d writes\n%s", len(e.Writes), e.Log)
		})
	}
}

// TestPodlessSweep plays each story with a fault at each of its writes.
func TestPodlessSweep(t *testing.T) {
	for i, s := range podlessStories() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.Options.Verbose = *verbose
			sweep(t, s, func(reference *world.Ending) []world.Fault { return faultsOf(reference, i) })
		})
	}
}

// TestPodlessBehind plays each story with a manager whose cache of one kind is seconds behind its other caches.
func TestPodlessBehind(t *testing.T) {
	for _, s := range podlessStories() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.Options.Verbose = *verbose
			reference := world.Reference(t, s)
			for _, kind := range []string{"Course", "ChangeWorkload", "ControllerRevision"} {
				o := s.Options
				o.Lag = map[string]time.Duration{kind: 3 * time.Second}
				e := world.Play(t, s, o)
				if what := s.Problems(&reference, &e); what != "" {
					t.Errorf("%s: %s\n%s", kind, what, e.Log)
				}
			}
		})
	}
}

func makeCourse() *workloadtest.CourseObject {
	return &workloadtest.CourseObject{
		ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: "web"},
		Spec:       workloadtest.CourseSpec{Route: workloadtest.CourseRoute{Harbor: "first"}},
	}
}

// course returns the stored Course.
func course(w *world.World) *workloadtest.CourseObject { return world.Stored(w, makeCourse()) }

// steer sets fields of the Course: harbor releases another version.
func steer(w *world.World, spec string) error {
	return w.PatchObject(makeCourse(), `{"spec":{`+spec+`}}`)
}

// resumeCourse takes back the halt of the operator, as the plugin does.
func resumeCourse(w *world.World, spec string) {
	w.Until("it is halted", func() bool { return course(w).Spec.Anchored })
	override := `{"metadata":{"labels":{"` + v1alpha1.IgnoredSuspendLabel + `":"true"}},"spec":{`
	must(w, w.PatchObject(makeCourse(), override+`"anchored":null,`+spec+`}}`))
}

func toHarbor(name string) string { return fmt.Sprintf(`"route":{"harbor":%q}`, name) }

// changeOfCourse returns the current release; nil if it is not recorded.
func changeOfCourse(w *world.World) *v1alpha1.ChangeWorkload {
	c := course(w)
	return w.ChangesOf(c)[c.Labels[v1alpha1.VersionLabel]]
}

// courseIs waits until the current release is in a state.
func courseIs(w *world.World, state v1alpha1.ChangeWorkloadStatusType) {
	w.Until("the release of the course is "+string(state), func() bool {
		c := changeOfCourse(w)
		return c != nil && c.Status.Status == state &&
			fmt.Sprint(c.Status.ObservedRelease) == course(w).Annotations[v1alpha1.ReleaseAnnotation]
	})
	c := changeOfCourse(w)
	if c.Status.PassCount != 0 || len(w.Batches(c)) != 0 || c.Status.Status == v1alpha1.ChangeWorkloadTimeOutPreThreshold {
		w.Failf("a release without pods has %d batches: %+v", len(w.Batches(c)), c.Status)
	}
	w.For(10 * time.Second)
}

func courseBlocked(w *world.World, blocked bool) {
	w.Until(fmt.Sprintf("the block of the course is %t", blocked), func() bool {
		_, is := course(w).Labels[v1alpha1.SuspendLabel]
		return is == blocked
	})
}

// sailed creates a Course, and waits for its first success.
func sailed(w *world.World) (version string) {
	must(w, w.Create(makeCourse()))
	courseIs(w, v1alpha1.ChangeWorkloadSuccess)
	return course(w).Labels[v1alpha1.VersionLabel]
}

func rememberedCourses(w *world.World) (versions []string) {
	for _, r := range world.List[*appsv1.ControllerRevision](w, "ControllerRevision") {
		if r.Labels[v1alpha1.HistoryOfLabel] == string(course(w).UID) {
			versions = append(versions, r.Labels[v1alpha1.VersionLabel])
		}
	}
	return versions
}

func repairCourse(w *world.World) {
	must(w, w.Create(makeCourse()))
	w.Rest()
	w.Enrol(true)
	w.Rest()
	if n := len(w.ChangesOf(course(w))); n != 0 {
		w.Failf("%d releases of the baseline", n)
	}
	must(w, steer(w, toHarbor("second")))
	courseIs(w, v1alpha1.ChangeWorkloadSuccess)
	second := course(w).Labels[v1alpha1.VersionLabel]
	if c := changeOfCourse(w); !strings.HasPrefix(c.Name, "web--x--course-") || !slices.Contains(rememberedCourses(w), second) {
		w.Failf("released as %s, remembered %v", c.Name, rememberedCourses(w))
	}

	must(w, steer(w, toHarbor("reef")))
	courseIs(w, v1alpha1.ChangeWorkloadSuspend)
	courseBlocked(w, true)
	if err := steer(w, toHarbor("third")); err == nil || !strings.Contains(err.Error(), "course web is suspended") {
		w.Failf("a blocked course was released: %v", err)
	}
	override := `{"metadata":{"labels":{"` + v1alpha1.IgnoredSuspendLabel + `":"true"}},"spec":{`
	must(w, w.PatchObject(makeCourse(), override+``+toHarbor("repair")+`}}`))
	courseIs(w, v1alpha1.ChangeWorkloadSuccess)
	courseBlocked(w, false)
}

func becalmedCourse(w *world.World) {
	sailed(w)
	must(w, steer(w, toHarbor("second")+`,"becalmed":true`))
	w.For(5 * time.Minute)
	courseIs(w, v1alpha1.ChangeWorkloadRunning)
	must(w, steer(w, `"becalmed":null`))
	w.For(40 * time.Second)
	must(w, steer(w, `"becalmed":true`))
	w.For(40 * time.Second)
	must(w, steer(w, `"becalmed":null`))
	w.For(40 * time.Second)
	courseIs(w, v1alpha1.ChangeWorkloadRunning)
	courseIs(w, v1alpha1.ChangeWorkloadSuccess)
}

func lateCourse(w *world.World) {
	sailed(w)
	must(w, steer(w, toHarbor("second")+`,"becalmed":true`))
	courseIs(w, v1alpha1.ChangeWorkloadSuspend)
	courseBlocked(w, true)
	c := record.FindCheck(changeOfCourse(w).Status.Checks, "rollout")
	if c == nil || !strings.Contains(c.Message, "not complete within 10m0s") {
		w.Failf("the check is %+v", c)
	}
	resumeCourse(w, `"becalmed":null`)
	courseIs(w, v1alpha1.ChangeWorkloadSuccess)
	courseBlocked(w, false)
}

func shallowCourse(w *world.World) {
	sailed(w)
	must(w, steer(w, toHarbor("shallow")))
	courseIs(w, v1alpha1.ChangeWorkloadSuspend)
	courseBlocked(w, true)
	if err := steer(w, toHarbor("third")); err == nil {
		w.Failf("a blocked course was released")
	}
}

func rollCourseBack(w *world.World) {
	first := sailed(w)
	must(w, steer(w, toHarbor("second")))
	courseIs(w, v1alpha1.ChangeWorkloadSuccess)
	must(w, w.PatchObject(makeCourse(), `{"metadata":{"annotations":{"`+v1alpha1.RollbackToAnnotation+`":"last-success"}}}`))
	restoredCourse(w, first)
	if err := steer(w, toHarbor("second")); err == nil || !strings.Contains(err.Error(), "was rolled back at") {
		w.Failf("a rolled-back version was released: %v", err)
	}
}

// restoredCourse waits until the first version is restored, and has no block.
func restoredCourse(w *world.World, first string) {
	w.Until("it is rolled back", func() bool {
		c := course(w)
		return c.Labels[v1alpha1.VersionLabel] == first && c.Spec.Route.Harbor == "first"
	})
	courseIs(w, v1alpha1.ChangeWorkloadSuccess)
	courseBlocked(w, false)
}

func healCourse(w *world.World) {
	first := sailed(w)
	w.For(10 * time.Minute)
	must(w, steer(w, toHarbor("reef")))
	restoredCourse(w, first)
}

func askForCourse(w *world.World) {
	first := sailed(w)
	w.For(10 * time.Minute)
	must(w, steer(w, toHarbor("reef")))
	courseIs(w, v1alpha1.ChangeWorkloadSuspend)
	courseBlocked(w, true)
	w.For(10 * time.Minute)
	courseIs(w, v1alpha1.ChangeWorkloadSuspend)
	must(w, w.PatchObject(makeCourse(), `{"metadata":{"annotations":{"`+v1alpha1.RollbackToAnnotation+`":"last-success"}}}`))
	restoredCourse(w, first)
}

func groundedLater(w *world.World) {
	sailed(w)
	must(w, steer(w, toHarbor("second")))
	courseIs(w, v1alpha1.ChangeWorkloadSuccess)
	second := course(w).Labels[v1alpha1.VersionLabel]
	must(w, steer(w, `"rocks":"hit a rock"`))
	courseIs(w, v1alpha1.ChangeWorkloadSuspend)
	courseBlocked(w, true)
	w.Until("it leaves the history", func() bool { return !slices.Contains(rememberedCourses(w), second) })
	resumeCourse(w, `"rocks":null`)
	courseIs(w, v1alpha1.ChangeWorkloadSuccess)
	courseBlocked(w, false)
	w.Until("it is in the history", func() bool { return slices.Contains(rememberedCourses(w), second) })
}

func courseWithServer(w *world.World) {
	sailed(w)
	must(w, steer(w, toHarbor("second")))
	courseIs(w, v1alpha1.ChangeWorkloadSuccess)
	w.Until("its order ended", func() bool { return changeOfCourse(w).Status.OrderStage == v1alpha1.OrderEnded })
	if s := changeOfCourse(w).Status; s.OrderEnd != v1alpha1.FinishSuccess {
		w.Failf("the order ended %s", s.OrderEnd)
	}
}

func courseLeaves(w *world.World) {
	sailed(w)
	must(w, steer(w, toHarbor("reef")))
	courseIs(w, v1alpha1.ChangeWorkloadSuspend)
	w.Until("it is halted", func() bool { return course(w).Spec.Anchored })
	must(w, w.PatchObject(makeCourse(), `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":"disabled"}}}`))
	w.Until("it is resumed", func() bool { return !course(w).Spec.Anchored })
	courseBlocked(w, false)
}
