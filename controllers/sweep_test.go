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
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
)

// quietTime is longer than the shortened waits.
const quietTime = time.Minute

var (
	all     = flag.Bool("world.all", false, "try every fault at every write, and more seeds")
	verbose = flag.Bool("world.log", false, "log all that happens in the worlds of failures")
	part    = flag.Int("world.part", 0, "which third of the faults is tried, 0, 1 or 2: the soak tries the last two")
	only    = flag.String("world.fault", "", "try this fault alone, as a failure names it, or all faults that begin so")
)

func TestMain(m *testing.M) {
	flag.Parse()
	// The tests create thousands of small worlds. With fewer garbage collections they are a third faster.
	debug.SetGCPercent(800)
	debug.SetMemoryLimit(6 << 30)
	// Without a logger controller-runtime keeps each logger that is derived, in case one is set later.
	logf.SetLogger(logr.Discard())
	// Of the packages tested side by side, this one takes longest. More parallel tests give it more CPU time.
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := f.Value.Set("6"); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	if err := plans.write(); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// faultKinds are tried in turn, one at every third write. DiesAfter is tried at each write.
var faultKinds = []world.FaultKind{
	world.DiesBefore, world.AnswerLost, world.Repeated, world.Conflicts,
	world.Fails500, world.Forbids, world.Fails429, world.Rejects, world.Fails504, world.Fails503,
	world.ListsPast, world.WatchesHeld, world.WatchesRepeat,
}

// faultsOf returns the faults to try on a story: over all stories each kind of fault meets each sort of write. With -world.all each kind of
// fault meets each write of each story.
func faultsOf(reference *world.Ending, number int) (faults []world.Fault) {
	every := *all || *only != ""
	for i, f := range world.Faults(reference, false, world.DiesAfter) {
		faults = append(faults, f)
		for j, kind := range faultKinds {
			if every || (i+number)%3 == 0 && (i/3+number)%len(faultKinds) == j {
				faults = append(faults, world.Fault{Kind: kind, At: f.At})
			}
		}
	}
	for i, f := range world.Faults(reference, true, world.DiesAfter) {
		if every || (i+number)%2 == 0 {
			faults = append(faults, f)
		}
		if every || (i+number)%4 == 1 {
			faults = append(faults, world.Fault{Kind: world.AnswerLost, At: f.At, OfCalls: true})
		}
	}
	if *only != "" {
		return slices.DeleteFunc(faults, func(f world.Fault) bool { return !strings.HasPrefix(f.String()+" ", *only+" ") })
	}
	return third(faults)
}

// third returns every third fault, or all with -world.all.
func third(faults []world.Fault) (tried []world.Fault) {
	for i, f := range faults {
		if *all || i%3 == *part {
			tried = append(tried, f)
		}
	}
	return tried
}

// TestStories plays each story twice. It goes well, and in the same order both times, even if a seed chooses the order: otherwise a failure
// could not be repeated.
func TestStories(t *testing.T) {
	for _, s := range sweptStories() {
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
					t.Errorf("%s the second play differs, -first +second:\n%s", name, diff)
				}
			}
		})
	}
}

// TestSweep plays each story again with a fault at each of its writes and calls. The story must end as it does without a fault.
func TestSweep(t *testing.T) {
	for i, s := range sweptStories() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.Options.Verbose = *verbose
			sweep(t, s, func(reference *world.Ending) []world.Fault { return faultsOf(reference, i) })
		})
	}
}

// sweep plays a story with each of its faults.
func sweep(t *testing.T, s world.Story, faultsOf func(reference *world.Ending) []world.Fault) {
	t.Helper()
	reference := world.Reference(t, s)
	faults := slices.DeleteFunc(faultsOf(&reference), func(f world.Fault) bool { return slices.Contains(luckOfFaults[s.Name].of, f.Kind) })
	found := world.Sweep(t, s, &reference, faults...)
	plans.add(faults, found)
	for _, f := range found[:min(len(found), 5)] {
		t.Errorf("%s, %s:\n%s\nplay it alone with: go test ./controllers -run '%s' -world.log -world.fault '%s'\n%s",
			f.Fault, f.At, f.What, t.Name(), f.Fault, f.Log)
	}
	if len(found) > 5 {
		t.Errorf("and %d more: %s", len(found)-5, namesOf(found[5:]))
	}
	t.Logf("%d writes, %d calls, played %d times", len(reference.Writes), len(reference.Calls), len(faults)+1)
}

// deaths returns the death of the manager after every third write, or all faults with -world.all.
func deaths(reference *world.Ending) []world.Fault {
	if *all || *only != "" {
		return faultsOf(reference, 0)
	}
	return third(world.Faults(reference, false, world.DiesAfter))
}

func namesOf(found []world.Found) string {
	var names []string
	for _, f := range found {
		names = append(names, fmt.Sprintf("%s (%s)", f.Fault, f.At))
	}
	return strings.Join(names, ", ")
}

// blockAfterStatus makes an operator that reports a block before it blocks, in the wrong order.
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

// TestSweepFinds proves that the sweep can fail: an operator that writes in the wrong order ends well without a fault. Only a crash
// between the two writes finds the mistake.
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
		t.Fatalf("without a crash it ends differently, -want +got:\n%s", diff)
	}
	block := slices.IndexFunc(got.Writes, func(write string) bool { return strings.HasPrefix(write, "block ") })
	var faults []world.Fault
	for _, f := range world.Faults(&got, false, world.DiesAfter) {
		if f.At >= block { // before the block the order is right
			faults = append(faults, f)
		}
	}
	found := world.Sweep(t, story, &want, faults...)
	if len(found) != 1 || found[0].Fault.At != block+2 || !strings.Contains(found[0].What, "another state") {
		t.Errorf("found %v, want one other end state after write %d", found, block+2)
	}
}

// TestSweepFindsAForgottenWrite: an operator that forgets a write ends in another state.
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
			t.Errorf("it ends the same without any %s", forgotten)
		}
	}
}

// TestGoesRoundInCircles: an endless loop at one instant ends a story, and the problem names the writes.
func TestGoesRoundInCircles(t *testing.T) {
	var played *world.World
	story := world.Story{Name: "undo each write", Run: func(w *world.World) {
		played = w
		create(w, web(1))
		w.For(time.Hour)
	}}
	o := world.Options{Broken: func() func(string, func() error) error {
		return func(write string, carryOut func() error) error {
			err := carryOut()
			if strings.HasPrefix(write, "create ChangeWorkload") {
				for _, b := range world.List[*v1alpha1.ChangeWorkload](played, "ChangeWorkload") {
					err = errors.Join(err, played.Delete(b))
				}
			}
			return err
		}
	}}
	e := world.Play(t, story, o)
	for _, want := range []string{"the story does not end", "the operator writes: create ChangeWorkload"} {
		if !strings.Contains(e.Problem, want) {
			t.Errorf("the problem does not contain %q: %s", want, e.Problem)
		}
	}
}

// TestABatchFromAStaleView starts a manager whose cache of ChangePods is behind its cache of ChangeWorkloads. The manager does not see the
// batches that the status of the release counts, and must not put their pods into new batches.
func TestABatchFromAStaleView(t *testing.T) {
	story := stories[0]
	reference := world.Reference(t, story)
	made := slices.IndexFunc(reference.Writes, func(write string) bool { return strings.HasPrefix(write, "create ChangePod") })
	counted := slices.IndexFunc(reference.Writes[made:], func(write string) bool {
		return strings.HasPrefix(write, "update status of ChangeWorkload")
	})
	o := story.Options
	o.Lag = map[string]time.Duration{"ChangePod": 5 * time.Second}
	o.Fault = world.Fault{Kind: world.DiesAfter, At: made + counted + 1}
	o.Verbose = *verbose
	e := world.Play(t, story, o)
	late := story
	late.Moving = true
	if what := late.Problems(&reference, &e); what != "" || e.Hit == "" {
		t.Errorf("%s\n%s", what, e.Log)
	}
}

// sweptStories are the stories that TestSweep tries faults on.
func sweptStories() []world.Story {
	return slices.Concat(stories, policyStories, ruleStories, batchPreStories, releaseStories, holdStories, serverStories, recordStories,
		queryStories, jobStories)
}

// allStories are the stories of all kinds of workloads.
func allStories() []world.Story {
	return slices.Concat(sweptStories(), nativeStories(), partitionStories(), evictionStories(), nodeStories(),
		fleetStories(), podlessStories())
}

// luck names the stories whose endings may differ in a test, with the reasons. These stories must still go well and break no invariant.
// With -world.all an entry that no seed needs is logged: another order of writes may need it again. In most of these stories, users act
// while the pods of a StatefulSet or DaemonSet are replaced one by one: the time decides which pods the operator still verifies.
type luck map[string]string

// lucky notes which luck a test needs.
type lucky struct {
	luck luck
	mu   sync.Mutex
	// played are the played stories, needed the stories whose endings differed.
	played, needed map[string]bool
}

func newLucky(of luck) *lucky {
	return &lucky{luck: of, played: map[string]bool{}, needed: map[string]bool{}}
}

// logUnneeded logs the entries of its luck that no seed needs, if a test plays all seeds of all stories.
func (l *lucky) logUnneeded(t *testing.T, stories []world.Story) {
	t.Helper()
	t.Cleanup(func() {
		if !*all || slices.ContainsFunc(stories, func(s world.Story) bool { return !l.played[s.Name] }) {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(l.luck)) {
			if !l.needed[name] {
				t.Logf("no seed needs luck for %q", name)
			}
		}
	})
}

// problems returns the problems of an ending, except the differences that luck may decide.
func (l *lucky) problems(s world.Story, reference, e *world.Ending) string {
	s.Moving = true
	what := s.Problems(reference, e)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.played[s.Name] = true
	if l.luck[s.Name] == "" || what == "" {
		return what
	}
	other := *e
	other.State = reference.State
	rest := s.Problems(reference, &other)
	l.needed[s.Name] = l.needed[s.Name] || rest != what
	return rest
}

// These are the reasons why endings differ.
const (
	nextGoes     = "the workload's controller may replace the next pod before the operator halts the rollout"
	firstUnseen  = "the first of two releases in a row may be recorded or not"
	newsLate     = "the operator sees late which pods of the replaced version came up, and which batches they belong to"
	goesLate     = "the operator sees late that pods of the successful version went, before they come back"
	firstFails   = "the only pod may fail before the Deployment's status says that it was available"
	leftUncount  = "the version may be left before the crash is counted"
	lastUnknown  = "the last batch may be known as such or not"
	quotaTries   = "how many pods the quota denies before it is raised differs"
	firstHeld    = "the operator may see the workload of a first release before it sees that it replaces no pods"
	replacedLate = "the rollout may be complete when the operator sees that it would have held it"
	notHalted    = "a halt that is refused is not repeated before the rollback"
	leavesMiddle = "pods may come into a batch before the operator sees that the workload is no longer defended"
)

// luckBehind is the luck of TestBehind.
var luckBehind = luck{
	"a rule before other checks is false":         firstFails,
	"crash after it succeeded, and heal":          leftUncount,
	"hold, and opt out":                           leavesMiddle,
	"hold, and only observe":                      replacedLate,
	"hold, and apply again what was before":       lastUnknown,
	"no place for a partition":                    goesLate,
	"no place for a partition, and the last pod":  goesLate,
	"daemonset: goes down after its success":      goesLate,
	"statefulset: goes down after its success":    goesLate,
	"scale down, and up":                          lastUnknown,
	"in batches":                                  newsLate,
	"adopted while held":                          newsLate,
	"opt out":                                     leavesMiddle,
	"halt without a place for a partition":        newsLate,
	"a Deployment: adopted while halted":          leavesMiddle,
	"a Deployment: enforced removed while halted": leavesMiddle,
	"OnDelete after it left":                      leavesMiddle,
	"leaves at a user's partition":                leavesMiddle,
	"halted at a user's partition":                newsLate,
	"daemonset: cloned while halted":              newsLate,
	"statefulset: cloned while halted":            newsLate,
	"daemonset: leaves while it is halted":        leavesMiddle,
	"statefulset: leaves while it is halted":      leavesMiddle,
	"daemonset: a quota":                          quotaTries,
}

// luckOfTwo is the luck of TestTwoAtOnce.
var luckOfTwo = luck{
	"settings of a new cluster":              "the first pods may come before the default policy is in force",
	"fixed forward after it was halted":      newsLate,
	"pause":                                  newsLate,
	"leave":                                  leavesMiddle,
	"nodes: leave":                           leavesMiddle,
	"opt out":                                firstHeld,
	"edit past admission":                    firstHeld,
	"leaves at a user's partition":           leavesMiddle,
	"OnDelete after it left":                 leavesMiddle,
	"daemonset: leaves while it is halted":   leavesMiddle,
	"statefulset: leaves while it is halted": leavesMiddle,
	"daemonset: owned by another object":     leavesMiddle,
	"statefulset: owned by another object":   leavesMiddle,
	"daemonset: a quota":                     quotaTries,
	"nodes: set a surge past admission":      "the manager that does not give back does not know why",
}

// luckOfOrder is the luck of TestAnyOrder.
var luckOfOrder = luck{
	"settings of a new cluster":                   "the first pods may come before the default policy is in force",
	"fail, and roll back":                         newsLate,
	"halted at a user's partition":                newsLate,
	"turn to OnDelete":                            newsLate,
	"held over it, after it succeeded":            newsLate,
	"leave":                                       firstHeld,
	"statefulset: cloned while halted":            nextGoes,
	"daemonset: cloned while halted":              nextGoes,
	"a Deployment: adopted while halted":          leavesMiddle,
	"a Deployment: enforced removed while halted": leavesMiddle,
	"leaves at a user's partition":                leavesMiddle,
	"OnDelete after it left":                      leavesMiddle,
	"statefulset: leaves while it is halted":      leavesMiddle,
	"statefulset: owned by another object":        firstUnseen,
	"statefulset: a quota":                        quotaTries,
	"daemonset: leaves while it is halted":        leavesMiddle,
	"daemonset: a quota":                          quotaTries,
}

// luckOfFaults are the kinds of faults that the sweeps leave out of a story, because it may end differently after them.
var luckOfFaults = map[string]struct {
	of  []world.FaultKind
	why string
}{
	"crash after it succeeded, and heal": {[]world.FaultKind{world.ListsPast, world.WatchesHeld}, leftUncount},
	"hold, and only observe":             {[]world.FaultKind{world.ListsPast, world.WatchesHeld}, replacedLate},
	"hold what admission did not":        {[]world.FaultKind{world.Forbids, world.Rejects}, replacedLate},
	"fails a held rollout after its policy passed it": {[]world.FaultKind{world.DiesBefore},
		"a server sends a verdict once, and a process may die before it stores it"},
	"only observe":                  {[]world.FaultKind{world.ListsPast, world.WatchesHeld}, replacedLate},
	"course: run aground, and heal": {[]world.FaultKind{world.Forbids, world.Rejects}, notHalted},
	"fail, and roll back":           {refused, "the rollback may come before the release records that its hold ended"},
}

// refused are the answers that refuse a write.
var refused = []world.FaultKind{
	world.Conflicts, world.Fails500, world.Forbids, world.Fails429, world.Rejects, world.Fails504, world.Fails503,
}

// leftOut are the stories that a test leaves out, because they cannot go well in it.
var leftOut = map[string]luck{
	// Both managers act, so the act that the story counts happens twice.
	"TestTwoAtOnce": {
		"a budget that refuses":               "both try the eviction that the budget refuses",
		"held over it, after it succeeded":    "both evict pods",
		"halted by its user":                  "both evict a pod",
		"turned off, and on":                  "both evict a pod",
		"no place for a partition":            "both evict a pod",
		"statefulset: resumed past admission": "one may halt the rollout again",
		"daemonset: resumed past admission":   "one may halt the rollout again",
		"halted at a user's partition":        "one may keep the partition",
		"run out where silence fails":         "one may fail the release",
	},
	// Users do not wait for a manager that is behind.
	"TestBehind": {
		"what admission did not":                      "the rollout is nearly over when the operator sees it",
		"nodes: what admission did not":               "the rollout is nearly over when the operator sees it",
		"a Deployment: an outage that old pods share": "the check ends before the operator sees the outage",
	},
	"TestHeldNodesSweep": {
		"nodes: a node that dies":           "the message counts the pods that fail at that moment",
		"nodes: fail, and roll back":        notHalted,
		"nodes: set a surge past admission": "only the process that corrected the fields names them",
	},
}

// playedIn returns all stories except the stories that a test leaves out.
func playedIn(test string) []world.Story {
	return slices.DeleteFunc(allStories(), func(s world.Story) bool { return leftOut[test][s.Name] != "" })
}

// seedOf returns the first seed of a story. It depends only on the name of the story.
func seedOf(story string) uint64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(story))
	return uint64(h.Sum32()) * 1000
}

// orders returns the number of orders in which each story is played.
func orders() uint64 {
	if *all {
		return 12
	}
	return 1
}

// TestTwoAtOnce plays each story with two managers that both decide, as can happen for a moment after a lease is lost. A seed chooses what
// happens next. The number of writes is a matter of luck. The ending is not, unless luckOfTwo names the story.
func TestTwoAtOnce(t *testing.T) {
	seeds := orders()
	played := playedIn(t.Name())
	l := newLucky(luckOfTwo)
	l.logUnneeded(t, played)
	for _, s := range played {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			reference := world.Reference(t, s)
			for seed := range seeds {
				o := s.Options
				o.Processes, o.Seed, o.Verbose = 2, seedOf(s.Name)+seed, *verbose
				e := world.Play(t, s, o)
				if what := l.problems(s, &reference, &e); what != "" {
					t.Errorf("seed %d: %s\n%s", o.Seed, what, e.Log)
				}
			}
		})
	}
}

// TestTwoClocks plays a story with two managers whose clocks differ a little. When the time of a failing pod is over, neither manager
// reverts the writes of the other.
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

// TestAnyOrder plays each story with one manager in orders that seeds choose: events reach its caches in any order, mixed with its
// reconciles and the acts of the cluster. The number of writes is a matter of luck. The ending is not, unless luckOfOrder names the story.
func TestAnyOrder(t *testing.T) {
	seeds := orders()
	played := playedIn(t.Name())
	l := newLucky(luckOfOrder)
	l.logUnneeded(t, played)
	for _, s := range played {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			reference := world.Reference(t, s)
			for seed := range seeds {
				o := s.Options
				o.Seed, o.Verbose = seedOf(s.Name)+seed, *verbose
				e := world.Play(t, s, o)
				if what := l.problems(s, &reference, &e); what != "" {
					t.Errorf("seed %d: %s\n%s", o.Seed, what, e.Log)
				}
			}
		})
	}
}

// TestBehind plays each story with a manager whose cache of one kind is seconds behind its other caches. The manager waits for its own
// writes. The writes of others reach it late, and it decides again.
func TestBehind(t *testing.T) {
	kinds := []string{"ChangePod", "ChangeWorkload", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Pod", "ControllerRevision"}
	played := playedIn(t.Name())
	l := newLucky(luckBehind)
	l.logUnneeded(t, played)
	for i, s := range played {
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
				if what := l.problems(s, &reference, &e); what != "" {
					t.Errorf("%s: %s\n%s", kind, what, e.Log)
				}
			}
		})
	}
}

// TestEnrolledJustBefore: a workload is created right after its namespace is enrolled, before admission and the operator's cache know of
// it. The workload is a release, not a baseline.
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

// TestReleasedBeforeTheSettings: a workload is released while the operator starts for the first time, before the operator creates its
// settings, whose times tell when the installation began. The release is of this installation.
func TestReleasedBeforeTheSettings(t *testing.T) {
	refused := true
	story := world.Story{
		Name: "release before the settings exist",
		Options: world.Options{Bare: true, Verbose: *verbose, Broken: func() func(string, func() error) error {
			return func(write string, carryOut func() error) error {
				if refused && strings.HasPrefix(write, "create OpsConfigInfo") {
					return errors.New("refused for now")
				}
				return carryOut()
			}
		}},
		Run: func(w *world.World) {
			create(w, web(1))
			until(w, v1alpha1.ChangeWorkloadSuccess)
			w.For(5 * time.Second)
			refused = false
			w.For(2 * time.Minute)
			if c := w.Change("web"); c == nil || c.Spec.Release != 1 {
				w.Failf("the release is gone")
			}
		},
	}
	if e := world.Play(t, story, story.Options); e.Problem != "" {
		t.Errorf("%s\n%s", e.Problem, e.Log)
	}
}

// TestCallsOnceWhileBehind: a manager whose cache does not show its own writes yet does not repeat calls to AlterShield Server.
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

// TestTheBlockIsOfOneRelease: a user releases again between the decision to block a release and the block. The block must not hit the new
// release.
func TestTheBlockIsOfOneRelease(t *testing.T) {
	var played *world.World
	released := false
	story := world.Story{Name: "release again while it is blocked", Run: func(w *world.World) {
		played = w
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		verdict(w, "unpass")
		w.Until("it is released again", func() bool { return released })
		w.Rest()
		if labelled(w, v1alpha1.SuspendLabel) || w.Change("web").Status.Status != v1alpha1.ChangeWorkloadSuccess {
			w.Failf("the release after the failed release is blocked, or %s", w.Change("web").Status.Status)
		}
	}}
	story.Options.Broken = func() func(string, func() error) error {
		return func(write string, carryOut func() error) error {
			if strings.HasPrefix(write, "block ") && !released {
				released = true
				release(played, "second")
			}
			return carryOut()
		}
	}
	world.Reference(t, story)
}

// TestRecordsAreBounded: a CI keeps releasing a workload without pods, so no release ever succeeds with a pod.
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

// TestRollbackLimitIsWrittenOnlyToHold: without a rollback limit, no rollback waits and none is counted.
func TestRollbackLimitIsWrittenOnlyToHold(t *testing.T) {
	counts := func(write string) bool { return strings.Contains(write, "ConfigMap") }
	for name, test := range map[string]struct {
		settings map[string]v1alpha1.OpsConfigValue
		want     bool
	}{
		"on":  {nil, true},
		"off": {map[string]v1alpha1.OpsConfigValue{settings.NameLimit: {Content: "5/10m"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := world.Reference(t, world.Story{Name: "roll back", Options: world.Options{Settings: test.settings}, Run: releaseStuck})
			if got := slices.ContainsFunc(e.Writes, counts); got != test.want {
				t.Errorf("counted: %t, want %t; written: %q", got, test.want, e.Writes)
			}
		})
	}
}
