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
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
)

// quietTime is longer than the shortened waits.
const quietTime = time.Minute

var (
	all     = flag.Bool("world.all", false, "try every fault at every write, and more seeds")
	verbose = flag.Bool("world.log", false, "log all that happens in the worlds of failures")
	part    = flag.Int("world.part", 0, "which half of the faults is tried, 0 or 1: the soak tries the other one")
	only    = flag.String("world.fault", "", "try this fault alone, as a failure names it")
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Thousands of small worlds, one after the other: collecting less often makes
	// it a fifth faster.
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// faultKinds are tried in turn, one at every third write; that the process dies
// after it is tried at all of them.
var faultKinds = []world.FaultKind{
	world.DiesBefore, world.AnswerLost, world.Repeated, world.Conflicts, world.Fails500, world.Forbids, world.Fails429, world.Rejects, world.Fails504,
}

// faultsOf are the faults that are tried on a story, which is one of many: over
// all stories every kind meets every sort of write. With -world.all each meets
// each write of each story.
func faultsOf(reference *world.Ending, number int) (faults []world.Fault) {
	for i, f := range world.Faults(reference, false, world.DiesAfter) {
		faults = append(faults, f)
		for j, kind := range faultKinds {
			if *all || (i+number)%3 == 0 && (i/3+number)%len(faultKinds) == j {
				faults = append(faults, world.Fault{Kind: kind, At: f.At})
			}
		}
	}
	for i, f := range world.Faults(reference, true, world.DiesAfter) {
		if *all || (i+number)%2 == 0 {
			faults = append(faults, f)
		}
		if *all || (i+number)%4 == 1 {
			faults = append(faults, world.Fault{Kind: world.AnswerLost, At: f.At, OfCalls: true})
		}
	}
	if *only != "" {
		return slices.DeleteFunc(faults, func(f world.Fault) bool { return f.String() != *only })
	}
	return half(faults)
}

// half is every second fault, where not all are tried.
func half(faults []world.Fault) (tried []world.Fault) {
	for i, f := range faults {
		if *all || i%2 == *part {
			tried = append(tried, f)
		}
	}
	return tried
}

// TestStories tells every story twice: it goes well, and is told in the same order
// each time, also when a seed chooses it, or a failure could not be seen again.
func TestStories(t *testing.T) {
	for _, s := range slices.Concat(stories, policyStories, ruleStories, batchPreStories, releaseStories, holdStories, serverStories) {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.Options.Verbose = *verbose
			e := world.Reference(t, s)
			t.Logf("%d writes, %d calls\n%s", len(e.Writes), len(e.Calls), e.Log)
			chosen := s.Options
			chosen.Processes, chosen.Seed = 2, 1
			orders := map[string]world.Options{"in a fixed order": s.Options, "in the order of a seed": chosen}
			for name, o := range orders {
				first, second := world.Play(t, s, o), world.Play(t, s, o)
				if diff := cmp.Diff(slices.Concat(first.Writes, first.Calls), slices.Concat(second.Writes, second.Calls)); diff != "" {
					t.Errorf("%s it is told otherwise the second time, -first +second:\n%s", name, diff)
				}
			}
		})
	}
}

// TestSweep tells every story, and again with something going wrong at each of
// its writes and calls, and expects it to end the same.
func TestSweep(t *testing.T) {
	for i, s := range slices.Concat(stories, policyStories, ruleStories, batchPreStories, releaseStories, holdStories, serverStories) {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.Options.Verbose = *verbose
			reference := world.Reference(t, s)
			faults := faultsOf(&reference, i)
			found := world.Sweep(t, s, &reference, faults...)
			for _, f := range found[:min(len(found), 5)] {
				t.Errorf("%s, %s:\n%s\nsee it alone with: go test ./controllers -run '%s' -world.log -world.fault '%s'\n%s",
					f.Fault, f.At, f.What, t.Name(), f.Fault, f.Log)
			}
			if len(found) > 5 {
				t.Errorf("and %d more: %s", len(found)-5, namesOf(found[5:]))
			}
			t.Logf("%d writes, %d calls, told %d times", len(reference.Writes), len(reference.Calls), len(faults)+1)
		})
	}
}

func namesOf(found []world.Found) string {
	var names []string
	for _, f := range found {
		names = append(names, fmt.Sprintf("%s (%s)", f.Fault, f.At))
	}
	return strings.Join(names, ", ")
}

// blockAfterStatus is an operator that tells of a block before it sets it: the
// other way round than it does.
func blockAfterStatus() func(write string, carryOut func() error) error {
	var held func() error
	return func(write string, carryOut func() error) error {
		if strings.HasPrefix(write, "block ") {
			held = carryOut
			return nil
		}
		err := carryOut()
		if held != nil && strings.HasPrefix(write, "update status of ChangeWorkload") {
			block := held
			held = nil
			return errors.Join(err, block())
		}
		return err
	}
}

// TestSweepFinds proves that the sweep is no test that cannot fail: an operator
// that writes in the wrong order ends well while nothing goes wrong, and is found
// by a crash between the two writes, and by that alone.
func TestSweepFinds(t *testing.T) {
	story := world.Story{Name: "fail and block", Run: func(w *world.World) {
		create(w, web(1))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		verdict(w, "unpass")
		until(w, v1alpha1.ChangeWorkloadSuspend)
	}}
	want := world.Reference(t, story)
	story.Options.Broken = blockAfterStatus
	got := world.Reference(t, story)
	if diff := cmp.Diff(want.State, got.State); diff != "" {
		t.Fatalf("without a crash it ends otherwise, -want +got:\n%s", diff)
	}
	block := slices.IndexFunc(got.Writes, func(write string) bool { return strings.HasPrefix(write, "block ") })
	var faults []world.Fault
	for _, f := range world.Faults(&got, false, world.DiesAfter) {
		if f.At >= block { // before that the order is right
			faults = append(faults, f)
		}
	}
	found := world.Sweep(t, story, &want, faults...)
	if len(found) != 1 || found[0].Fault.At != block+2 || !strings.Contains(found[0].What, "another state") {
		t.Errorf("found %v, want one other end state after write %d", found, block+2)
	}
}

// TestSweepFindsAForgottenWrite: an operator that forgets a write ends otherwise.
func TestSweepFindsAForgottenWrite(t *testing.T) {
	story := stories[0]
	want := world.Reference(t, story)
	for _, forgotten := range []string{"create ControllerRevision", "patch Pod", "acknowledge Deployment"} {
		o := story.Options
		o.Broken = func() func(string, func() error) error {
			return func(write string, carryOut func() error) error {
				if strings.HasPrefix(write, forgotten) {
					return nil
				}
				return carryOut()
			}
		}
		e := world.Play(t, story, o)
		if !strings.Contains(story.Problems(&want, &e), "another state") {
			t.Errorf("nobody misses any %s", forgotten)
		}
	}
}

// TestGoesRoundInCircles: what would go on for ever at one instant ends a story,
// and says what went on.
func TestGoesRoundInCircles(t *testing.T) {
	var told *world.World
	story := world.Story{Name: "undo each write", Run: func(w *world.World) {
		told = w
		create(w, web(1))
		w.For(time.Hour)
	}}
	o := world.Options{Broken: func() func(string, func() error) error {
		return func(write string, carryOut func() error) error {
			err := carryOut()
			if strings.HasPrefix(write, "create ChangeWorkload") {
				for _, b := range world.List[*v1alpha1.ChangeWorkload](told, "ChangeWorkload") {
					err = errors.Join(err, told.Delete(b))
				}
			}
			return err
		}
	}}
	e := world.Play(t, story, o)
	for _, want := range []string{"goes round in circles", "the operator writes: create ChangeWorkload"} {
		if !strings.Contains(e.Problem, want) {
			t.Errorf("it says nothing of %q: %s", want, e.Problem)
		}
	}
}

// TestABatchFromAStaleView starts a manager whose cache of ChangePods is behind
// that of ChangeWorkloads: it does not see the batches that the status of the
// release counts, and must not put their pods into others.
func TestABatchFromAStaleView(t *testing.T) {
	story := stories[0]
	reference := world.Reference(t, story)
	made := slices.IndexFunc(reference.Writes, func(write string) bool { return strings.HasPrefix(write, "create ChangePod") })
	told := slices.IndexFunc(reference.Writes[made:], func(write string) bool { return strings.HasPrefix(write, "update status of ChangeWorkload") })
	o := story.Options
	o.Lag = map[string]time.Duration{"ChangePod": 5 * time.Second}
	o.Fault = world.Fault{Kind: world.DiesAfter, At: made + told + 1}
	o.Verbose = *verbose
	e := world.Play(t, story, o)
	late := story
	late.Moving = true
	if what := late.Problems(&reference, &e); what != "" || e.Hit == "" {
		t.Errorf("%s\n%s", what, e.Log)
	}
}

// luck says which endings differ, and why, where two managers decide, where a seed orders what
// happens, or where a cache is behind: these must go well, and break no invariant.
var luck = map[string]string{
	"settings of a new cluster":                  "the first pods may come before the default policy is in force",
	"enrol what runs, and release twice at once": "the first of the two releases may be recorded or not",
	"fail a check that is waited for":            "the only pod may fail before the Deployment's status says that it was available",
	"a rule before other checks is false":        "the only pod may fail before the Deployment's status says that it was available",
	"crash after it succeeded, and heal":         "the version may be left before the crash is counted",
	"hold, and leave":                            "what goes on may be ended as left or as another version's",
	"hold, and opt out":                          "pods may come into a batch before it is known that the workload opted out",
	"hold, and apply again what was before":      "the last batch may be known as such or not",
}

// seedOf is the first seed of a story: it stays as it is when others come.
func seedOf(story string) uint64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(story))
	return uint64(h.Sum32()) * 1000
}

// TestTwoAtOnce tells every story to two managers that both decide, as they may
// while a lease is lost and nobody knows, with what happens next chosen by a seed.
// What is written how often is a matter of luck; how it ends is not, but for what
// AlterShield Server was asked: there, all must end and no invariant be broken.
func TestTwoAtOnce(t *testing.T) {
	seeds := uint64(1)
	if *all {
		seeds = 20
	}
	for _, s := range slices.Concat(stories, policyStories, ruleStories, batchPreStories, releaseStories, holdStories, serverStories) {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			reference := world.Reference(t, s)
			for seed := range seeds {
				o := s.Options
				o.Processes, o.Seed, o.Verbose = 2, seedOf(s.Name)+seed, *verbose
				e := world.Play(t, s, o)
				if s.Options.Server || luck[s.Name] != "" {
					// Each may submit what the other has: nodes are checked twice then.
					e.State = reference.State
				}
				racing := s
				racing.Moving = true
				if what := racing.Problems(&reference, &e); what != "" {
					t.Errorf("seed %d: %s\n%s", o.Seed, what, e.Log)
				}
			}
		})
	}
}

// TestTwoClocks has two managers decide at once whose clocks are a little apart, when the time
// of a pod that fails is over: none takes back what the other wrote.
func TestTwoClocks(t *testing.T) {
	n := natives()[1]
	story := world.Story{Name: "a pod fails beside others that run", Options: nativeOptions(), Run: func(w *world.World) {
		must(w, w.Create(n.make()))
		n.is(w, v1alpha1.ChangeWorkloadSuccess)
		judge(w, n.change(w), "unpass")
		n.is(w, v1alpha1.ChangeWorkloadSuspend)
		crash(w, n.podsOf(w)[0])
		n.progress(w, v1alpha1.ReasonRolloutStuck)
		w.For(quietTime)
		if written := w.Written()["update status of ChangeWorkload"]; written > 20 {
			w.Failf("the status of the release was written %d times", written)
		}
	}}
	for _, ahead := range []time.Duration{150 * time.Millisecond, 1500 * time.Millisecond} {
		t.Run(ahead.String(), func(t *testing.T) {
			o := story.Options
			o.Processes, o.Clocks = 2, []time.Duration{0, ahead}
			if e := world.Play(t, story, o); e.Problem != "" || len(e.Violations) > 0 {
				t.Errorf("%s %v\n%s", e.Problem, e.Violations, e.Log)
			}
		})
	}
}

// TestAnyOrder tells every story to one manager in orders that seeds choose: what its
// caches show comes in any order, and so do its own reconciles and what the cluster does
// meanwhile. How often something is made is luck then, and so is, where users act while
// pods are replaced one by one, which pods are verified: those stories must go well, and
// no invariant may be broken.
func TestAnyOrder(t *testing.T) {
	seeds := uint64(1)
	if *all {
		seeds = 20
	}
	settled := slices.Concat(stories, policyStories, ruleStories, batchPreStories, releaseStories, holdStories, serverStories)
	for i, s := range slices.Concat(settled, nativeStories(), partitionStories(), repairStories()) {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			reference := world.Reference(t, s)
			s.Moving = true
			for seed := range seeds {
				o := s.Options
				o.Seed, o.Verbose = seedOf(s.Name)+seed, *verbose
				e := world.Play(t, s, o)
				if i >= len(settled) || luck[s.Name] != "" {
					e.State = reference.State
				}
				if what := s.Problems(&reference, &e); what != "" {
					t.Errorf("seed %d: %s\n%s", o.Seed, what, e.Log)
				}
			}
		})
	}
}

// TestBehind tells every story to a manager whose cache of one kind is seconds
// behind all others. It waits for what it wrote itself; what others wrote it learns
// late, and decides again.
func TestBehind(t *testing.T) {
	kinds := []string{"ChangePod", "ChangeWorkload", "Deployment", "ReplicaSet", "Pod", "ControllerRevision"}
	for i, s := range slices.Concat(stories, policyStories, ruleStories, batchPreStories, releaseStories, holdStories, serverStories) {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			reference := world.Reference(t, s)
			for j, kind := range kinds {
				if !*all && i%len(kinds) != j {
					continue
				}
				o := s.Options
				o.Lag, o.Verbose = map[string]time.Duration{kind: 3 * time.Second}, *verbose
				e := world.Play(t, s, o)
				if luck[s.Name] != "" {
					e.State = reference.State
				}
				late := s
				late.Moving = true
				if what := late.Problems(&reference, &e); what != "" {
					t.Errorf("%s: %s\n%s", kind, what, e.Log)
				}
			}
		})
	}
}

// TestEnrolledJustBefore: a workload is created right after its namespace is enrolled,
// when neither admission nor the operator's cache knows of that yet. It is a release
// all the same, and not a baseline that was there before.
func TestEnrolledJustBefore(t *testing.T) {
	story := world.Story{
		Name:    "create right after enrolling",
		Options: world.Options{Unenrolled: true, Verbose: *verbose, Lag: map[string]time.Duration{"Namespace": 3 * time.Second}},
		Run: func(w *world.World) {
			w.Rest()
			w.Unseen(func() {
				w.Enrol(true)
				create(w, web(2))
			})
			until(w, v1alpha1.ChangeWorkloadSuccess)
		},
	}
	if e := world.Play(t, story, story.Options); e.Problem != "" {
		t.Errorf("%s\n%s", e.Problem, e.Log)
	}
}

// TestCallsOnceWhileBehind: a manager whose cache does not show what it wrote itself
// calls AlterShield Server no second time for that.
func TestCallsOnceWhileBehind(t *testing.T) {
	story := serverStories[0]
	reference := world.Reference(t, story)
	for _, kind := range []string{"ChangePod", "ChangeWorkload"} {
		o := story.Options
		o.Lag, o.Verbose = map[string]time.Duration{kind: 3 * time.Second}, *verbose
		e := world.Play(t, story, o)
		want, got := slices.Sorted(slices.Values(reference.Calls)), slices.Sorted(slices.Values(e.Calls))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s is behind, -want +got:\n%s\n%s", kind, diff, e.Log)
		}
	}
}

// TestTheBlockIsOfOneRelease: a user releases again between the decision to block
// a release and the block. The block must not fall on what nobody found fault with.
func TestTheBlockIsOfOneRelease(t *testing.T) {
	var told *world.World
	released := false
	story := world.Story{Name: "release again while it is blocked", Run: func(w *world.World) {
		told = w
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		verdict(w, "unpass")
		w.Until("it is released again", func() bool { return released })
		w.Rest()
		if labelled(w, v1alpha1.SuspendLabel) || w.Change("web").Status.Status != v1alpha1.ChangeWorkloadSuccess {
			w.Failf("the release after the one that failed is blocked, or %s", w.Change("web").Status.Status)
		}
	}}
	story.Options.Broken = func() func(string, func() error) error {
		return func(write string, carryOut func() error) error {
			if strings.HasPrefix(write, "block ") && !released {
				released = true
				release(told, "second")
			}
			return carryOut()
		}
	}
	world.Reference(t, story)
}

// TestRecordsAreBounded: a CI goes on releasing a workload that has no pods, so that
// no release ever succeeds with one.
func TestRecordsAreBounded(t *testing.T) {
	world.Reference(t, world.Story{Name: "release without pods", Run: func(w *world.World) {
		create(w, web(0))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		for i := range 13 {
			release(w, fmt.Sprintf("release-%d", i))
			until(w, v1alpha1.ChangeWorkloadSuccess)
		}
		if n := len(w.Changes("web")); n != 11 {
			w.Failf("%d records are left, want the current one and ten", n)
		}
	}})
}

// TestBrakeIsWrittenOnlyToHold: without a limit a rollback waits for no other, so
// nothing is counted, whatever is remembered from before.
func TestBrakeIsWrittenOnlyToHold(t *testing.T) {
	counts := func(write string) bool { return strings.Contains(write, "ConfigMap") }
	for name, test := range map[string]struct {
		settings map[string]v1alpha1.OpsConfigValue
		want     bool
	}{
		"on":  {nil, true},
		"off": {map[string]v1alpha1.OpsConfigValue{settings.NameBrake: {Content: "5/10m"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := world.Reference(t, world.Story{Name: "roll back", Options: world.Options{Settings: test.settings}, Run: hang})
			if got := slices.ContainsFunc(e.Writes, counts); got != test.want {
				t.Errorf("counted: %t, want %t; written: %q", got, test.want, e.Writes)
			}
		})
	}
}
