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

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// fleet is a set of workloads whose manifests are in Git. They are applied every few minutes, whatever is rolled back.
type fleet struct {
	w *world.World
	// manifests are the workloads in Git.
	manifests map[string]*appsv1.Deployment
	// denied are the answers to denied applies, by workload.
	denied map[string]string
}

// apply applies all manifests, as kubectl does. The next apply retries what is denied.
func (f *fleet) apply() {
	for _, name := range slices.Sorted(maps.Keys(f.manifests)) {
		err := f.w.Patch(name, templateOf(f.w, f.manifests[name]))
		if err != nil && !strings.Contains(err.Error(), "is in quarantine until") {
			f.w.Failf("%s: %v", name, err)
		}
		if err != nil {
			f.denied[name] = err.Error()
		}
	}
}

// goesOn lets time pass and applies all manifests every few minutes.
func (f *fleet) goesOn(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		f.w.For(3 * time.Minute)
		f.apply()
	}
}

// runs reports whether a workload has the version in Git and its release has succeeded.
func (f *fleet) runs(name string) bool {
	d, c := f.w.Deployment(name), f.w.Change(name)
	return d.Spec.Template.Spec.Containers[0].Image == f.manifests[name].Spec.Template.Spec.Containers[0].Image &&
		c != nil && c.Status.Status == v1alpha1.ChangeWorkloadSuccess && d.Status.AvailableReplicas == *d.Spec.Replicas
}

// each returns the workloads that a condition holds for.
func (f *fleet) each(holds func(name string) bool) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(f.manifests)) {
		if holds(name) {
			names = append(names, name)
		}
	}
	return names
}

// rolledBack reports whether the condition RolledBack has a reason.
func (f *fleet) rolledBack(reason string) func(name string) bool {
	return func(name string) bool {
		c := f.w.Change(name)
		return c != nil && conditionOf(c, v1alpha1.ConditionRolledBack) == reason
	}
}

// rollbacks returns the number of rollbacks by the operator.
func rollbacks(w *world.World) (n int) {
	for _, write := range w.Writes() {
		if strings.HasPrefix(write, "roll back ") {
			n++
		}
	}
	return n
}

// limited returns the metric of the alert AlterShieldRollbacksLimited. All tests of this package count on it. It has no value before the
// first rollback that waits.
func limited(t *testing.T) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "altershield_rollbacks_limited_total" {
			sum := 0.0
			for _, m := range f.GetMetric() { // summed over the kinds
				sum += m.GetCounter().GetValue()
			}
			return sum
		}
	}
	return 0
}

// TestRegistryOutage: 20 releases are under way when the registry is down for ten minutes. Settings are the defaults. Kubelets back off
// for ten seconds, doubled up to five minutes. All workloads are in one namespace, so three releases are rolled back; the others wait for
// the rollback limit, and come up when the registry is back. A rolled-back version is released again after its quarantine, because the
// manifests in Git are applied every few minutes.
func TestRegistryOutage(t *testing.T) {
	images := map[string]world.Image{}
	for i := range 20 {
		images[fmt.Sprintf("web-%02d:2", i)] = world.Image{Pull: 40 * time.Second}
	}
	before := limited(t)
	e := world.Play(t, world.Story{Name: "outage", Run: outage}, world.Options{Nodes: 5, Images: images, Verbose: *verbose})
	if wrong := slices.Concat(e.Violations, e.Errors); e.Problem != "" || len(wrong) > 0 {
		t.Errorf("%s\n%s\n%s", e.Problem, strings.Join(wrong, "\n"), e.Log)
	}
	if n := limited(t) - before; n < 10 {
		t.Errorf("the metric counts %v rollbacks that the limit refused", n)
	}
}

func outage(w *world.World) {
	strategies := []func(*appsv1.Deployment){rolling("25%", "25%"), rolling("1", "0"), recreated, rolling("100%", "0")}
	f := &fleet{w: w, manifests: map[string]*appsv1.Deployment{}, denied: map[string]string{}}
	for i := range 20 {
		name := fmt.Sprintf("web-%02d", i)
		f.manifests[name] = wrappers.MakeDeployment(world.Namespace, name).Replicas(int32(2 + i%4)).Image("good").
			With(strategies[i%len(strategies)]).Obj()
		create(w, f.manifests[name].DeepCopy())
	}
	w.Until("all run", func() bool { return len(f.each(f.runs)) == 20 })
	w.For(10 * time.Minute)
	for i := range 20 { // one after the other; the registry is down after half of them
		name := fmt.Sprintf("web-%02d", i)
		f.manifests[name].Spec.Template.Spec.Containers[0].Image = name + ":2"
		f.apply()
		w.For(5 * time.Second)
		if i == 9 {
			w.SetRegistry(false)
		}
	}
	f.goesOn(8 * time.Minute)
	// A release with pods up may have all its other pods on one node, which is tolerated.
	limited, tolerated := f.each(f.rolledBack(v1alpha1.ReasonRollbackLimit)), f.each(f.rolledBack(v1alpha1.ReasonTolerated))
	if len(limited) < 10 || len(limited)+len(tolerated)+rollbacks(w) != 20 {
		w.Failf("%s wait for the rollback limit, %s are tolerated, %d were rolled back", limited, tolerated, rollbacks(w))
	}
	w.SetRegistry(true)
	f.goesOn(10 * time.Minute)
	if n := len(f.each(f.runs)); n < 15 {
		w.Failf("%d have the version in Git ten minutes after the registry is back", n)
	}
	f.goesOn(time.Hour)
	if left := f.each(func(name string) bool { return !f.runs(name) || f.rolledBack(v1alpha1.ReasonRollbackLimit)(name) }); len(left) > 0 {
		w.Failf("%s do not have the version in Git an hour later, or still wait for the rollback limit", left)
	}
	if n := rollbacks(w); n != 3 || len(f.denied) != n {
		w.Failf("%d rollbacks, %d workloads were denied", n, len(f.denied))
	}
	reported := 0
	for _, e := range w.Events() {
		if e.Reason == v1alpha1.EventRollbackRefused && strings.Contains(e.Message, "in the last ") {
			reported++
		}
	}
	if reported < 10 {
		w.Failf("%d events report the rollback limit", reported)
	}
}

// TestServerOutage: AlterShield Server is unreachable for most of the time that checks have, and silence fails. It is back before their
// deadlines, so all checks get a verdict.
func TestServerOutage(t *testing.T) {
	e := world.Play(t, world.Story{Name: "server outage", Run: func(w *world.World) {
		create(w, web(12))
		w.Until("a batch is being checked", func() bool { return w.Change("web") != nil && len(w.Batches(w.Change("web"))) > 0 })
		must(w, w.Server().SetOutage(simulator.Refuse))
		w.For(115 * time.Second)
		must(w, w.Server().SetOutage(simulator.NoOutage))
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}}, world.Options{Server: true, Settings: on(settings.NameSilence, ""), Verbose: *verbose})
	if wrong := slices.Concat(e.Violations, e.Errors); e.Problem != "" || len(wrong) > 0 {
		t.Errorf("%s\n%s\n%s", e.Problem, strings.Join(wrong, "\n"), e.Log)
	}
}

// TestLostEntries: AlterShield Server loses the order entry of an order and the order entry of a batch. Both are started again and get
// their verdicts.
func TestLostEntries(t *testing.T) {
	e := world.Play(t, world.Story{Name: "lost entries", Run: func(w *world.World) {
		// The delay lets the answer to the start be written first.
		w.Server().Script(simulator.Script{CallbackDelay: time.Second})
		w.Server().Script(simulator.Script{Lost: true, Times: 1,
			Match: simulator.Match{CheckType: altershield.CheckOrder, Stage: altershield.StagePre}})
		w.Server().Script(simulator.Script{Lost: true, Times: 1,
			Match: simulator.Match{CheckType: altershield.CheckBatch, Stage: altershield.StagePre}})
		create(w, web(1))
		ended(w, v1alpha1.ChangeWorkloadSuccess)
		if c := w.Change("web"); conditionOf(c, v1alpha1.ConditionVerified) != v1alpha1.ReasonAllPassed || c.Status.UnverifiedCount != 0 {
			w.Failf("a check had no verdict: %+v", c.Status.Conditions)
		}
	}}, world.Options{Server: true, Settings: soon(), Verbose: *verbose})
	if wrong := slices.Concat(e.Violations, e.Errors); e.Problem != "" || len(wrong) > 0 {
		t.Errorf("%s\n%s\n%s", e.Problem, strings.Join(wrong, "\n"), e.Log)
	}
}

// TestTriesOfABrokenVersion: for days, Git has a version that never starts. It is tried again after an hour, then after twice as long
// each time, at most a day. The version before it serves all the time. When its image exists, the next try succeeds.
func TestTriesOfABrokenVersion(t *testing.T) {
	var tries []time.Time
	e := world.Play(t, world.Story{Name: "tries", Run: func(w *world.World) { tries = playTries(w) }},
		world.Options{Nodes: 5, Images: images, Verbose: *verbose})
	if wrong := slices.Concat(e.Violations, e.Errors); e.Problem != "" || len(wrong) > 0 {
		t.Errorf("%s\n%s\n%s", e.Problem, strings.Join(wrong, "\n"), e.Log)
	}
	hours := []int{1, 2, 4, 8, 16, 24, 24, 24}
	if len(tries) != len(hours)+1 {
		t.Fatalf("%d tries, want %d", len(tries), len(hours)+1)
	}
	for i, n := range hours {
		// It is rolled back after two minutes, and applied again after up to three.
		least := time.Duration(n) * time.Hour
		if between := tries[i+1].Sub(tries[i]); between < least+fails || between > least+failed+4*time.Minute {
			t.Errorf("%s between the tries %d and %d, want %s and some minutes", between, i+1, i+2, least)
		}
	}
}

func playTries(w *world.World) (tries []time.Time) {
	d := probed(4).Obj()
	f := &fleet{w: w, manifests: map[string]*appsv1.Deployment{"web": d}, denied: map[string]string{}}
	create(w, d.DeepCopy())
	until(w, v1alpha1.ChangeWorkloadSuccess)
	w.For(10 * time.Minute)
	good := version(w)
	of("missing")(d)
	for range 8 {
		for version(w) == good {
			w.For(3 * time.Minute)
			f.apply()
			if n := w.Deployment("web").Status.AvailableReplicas; n < 3 {
				w.Failf("%d pods of 4 are available", n)
			}
		}
		tries = append(tries, time.Now())
		w.Until("it is rolled back", func() bool { return version(w) == good })
		until(w, v1alpha1.ChangeWorkloadSuccess)
		if n := len(tries); quarantined(w) != 1 || rollbacks(w) != n {
			w.Failf("after try %d: %d rollbacks, %d versions in quarantine", n, rollbacks(w), quarantined(w))
		}
	}
	w.SetImage("missing", world.Image{})
	for version(w) == good {
		w.For(3 * time.Minute)
		f.apply()
	}
	tries = append(tries, time.Now())
	until(w, v1alpha1.ChangeWorkloadSuccess)
	if !f.runs("web") {
		w.Failf("the version is not released although its image exists")
	}
	return tries
}
