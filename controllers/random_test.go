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
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
)

// Each run plays the stories of the seeds from firstSeed on.
const firstSeed, seeds = 101, 40

// foundSeeds are the seeds of stories that once found a defect. Each run plays them, too.
var foundSeeds = []uint64{585, 1795453875000054, 1795453875000071, 1795453875000216, 1795464323000312,
	1795474371000005, 1795474371000077, 1795474371000205, 1795475141000364, 1795475141000433,
	1795479519000170, 1795479519000831, 1795479519000859}

var (
	seedOnly = flag.Uint64("world.seed", 0, "play the random story of this seed alone, as a failure names it")
	without  = flag.String("world.without", "", "leave these acts out of the random story, by their numbers")
	seedsOf  = flag.String("world.seeds", "", "play the random stories of these seeds instead, as 141-180")
)

// soakTime is the environment variable with the duration of `make test-soak`.
const soakTime = "RANDOM_STORIES_TIME"

// TestRandomStories plays stories whose acts seeds choose: acts of users, the cluster, AlterShield Server and the operator's processes.
// Invariants are checked during a story and at its end.
func TestRandomStories(t *testing.T) {
	switch {
	case *seedOnly != 0:
		skip := map[int]bool{}
		for _, number := range strings.Split(*without, ",") {
			if n, err := strconv.Atoi(number); err == nil {
				skip[n] = true
			}
		}
		if s, problem := playRandom(t, *seedOnly, skip); problem != "" {
			t.Errorf("seed %d: %s\n%s", *seedOnly, problem, s)
		}
	case os.Getenv(soakTime) != "":
		soakRandom(t)
	default:
		played := slices.Concat(foundSeeds, seedsBetween(firstSeed, firstSeed+seeds-1))
		if *seedsOf != "" {
			var first, last uint64
			if _, err := fmt.Sscanf(*seedsOf, "%d-%d", &first, &last); err != nil || first > last {
				t.Fatalf("-world.seeds has no first and last seed: %q", *seedsOf)
			}
			played = seedsBetween(first, last)
		}
		for _, seed := range played {
			t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
				t.Parallel()
				tryRandom(t, seed)
			})
		}
	}
}

func seedsBetween(first, last uint64) (all []uint64) {
	for seed := first; seed <= last; seed++ {
		all = append(all, seed)
	}
	return all
}

// mostFound is the number of failures that end a soak.
const mostFound = 3

// soakRandom plays stories of new seeds until the time is over.
func soakRandom(t *testing.T) {
	t.Helper()
	d, err := time.ParseDuration(os.Getenv(soakTime))
	if err != nil {
		t.Fatal(err)
	}
	began, found, played := time.Now(), 0, uint64(0)
	first := uint64(began.Unix()) * 1_000_000
	for ; time.Since(began) < d && found < mostFound; played++ {
		if !tryRandom(t, first+played) {
			found++
		}
	}
	t.Logf("%d random stories from seed %d on", played, first)
}

// tryRandom plays the story of a seed. If the story fails, it leaves out the acts that the failure does not need and reports the rest.
func tryRandom(t *testing.T, seed uint64) (ok bool) {
	t.Helper()
	skip := map[int]bool{}
	s, problem := playRandom(t, seed, skip)
	if problem == "" {
		return true
	}
	for number := len(s.acts); number > 0; number-- {
		skip[number] = true
		if shorter, still := playRandom(t, seed, skip); kindOfProblem(still) == kindOfProblem(problem) {
			s, problem = shorter, still
		} else {
			delete(skip, number)
		}
	}
	var left []string
	for _, number := range slices.Sorted(maps.Keys(skip)) {
		left = append(left, strconv.Itoa(number))
	}
	t.Errorf("seed %d: %s\n%s\nplay it alone with: go test ./controllers -run 'TestRandomStories$' "+
		"-world.seed %d -world.without '%s' -world.log", seed, problem, s, seed, strings.Join(left, ","))
	return false
}

// kindOfProblem returns the beginning of a problem, which has no names and times.
func kindOfProblem(problem string) string {
	kind, _, _ := strings.Cut(problem, ":")
	return kind
}

// playRandom plays the story of a seed without some of its acts.
func playRandom(t *testing.T, seed uint64, skip map[int]bool) (*randomStory, string) {
	t.Helper()
	s := newRandomStory(seed, skip)
	e := world.Play(t, world.Story{Name: fmt.Sprint("seed ", seed), Options: s.options, Run: s.play}, s.options)
	problems := e.Violations
	if e.Problem != "" {
		problems = append([]string{e.Problem}, problems...)
	}
	if *verbose {
		s.did = append(s.did, e.Log)
	}
	return s, strings.Join(problems[:min(len(problems), 5)], "\n")
}

// randomStory is a story that a seed chooses.
type randomStory struct {
	seed    uint64
	options world.Options
	// kind is the kind of the workload.
	kind  string
	nodes bool
	// acts are the numbers of the chosen acts, skip the numbers of acts to leave out.
	acts []int
	skip map[int]bool
	// did is the log.
	did []string

	w *world.World
	// wants are the fields as the user last set them.
	wants wants
	// images are the images by version, templates the patches of all templates, the first template included.
	images    map[string]string
	templates []string
	// disturbed: the cluster harmed pods, so any version may fail.
	disturbed bool
	// synced returns the manifest that a tool applies every minute; nil without a tool.
	synced func() string
	// unknown are the labels of templates released while the workload was not defended or no manager ran. The next release may have
	// come before a manager read them.
	unknown map[string]bool
}

// String returns the options and the log of the story.
func (s *randomStory) String() string {
	o := s.options
	return fmt.Sprintf("a %s, nodes: %t, server: %t, processes: %d %v, order: %d, fault: %s, lag: %v, settings: %v, policies: %d\n%s",
		s.kind, s.nodes, o.Server, o.Processes, o.Clocks, o.Seed, o.Fault, o.Lag, o.Settings, len(o.Policies), strings.Join(s.did, "\n"))
}

// oneIn returns true once in n times.
func oneIn(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func newRandomStory(seed uint64, skip map[int]bool) *randomStory {
	r := rand.New(rand.NewPCG(seed, 0))
	s := &randomStory{seed: seed, skip: skip, images: map[string]string{}, unknown: map[string]bool{}}
	s.kind = pick(r, "Deployment", "Deployment", "StatefulSet", "DaemonSet")
	o := &s.options
	o.Verbose, o.Kinds = *verbose, nativeOptions().Kinds
	o.Settings = randomSettings(r)
	if s.nodes = s.kind != "DaemonSet" && oneIn(r, 2); s.nodes {
		o.Nodes, o.Images = 3, randomImages
	}
	o.Server, o.Unenrolled = oneIn(r, 3), oneIn(r, 8)
	if oneIn(r, 4) {
		o.Processes = 2
		o.Clocks = pick(r, nil, []time.Duration{0, 150 * time.Millisecond})
	}
	if o.Processes == 2 || oneIn(r, 3) {
		o.Seed = r.Uint64() | 1
	}
	if oneIn(r, 4) {
		o.Fault = world.Fault{Kind: pick(r, append(faultKinds, world.DiesAfter, world.DiesAfter)...), At: 1 + r.IntN(60)}
	}
	if oneIn(r, 6) {
		kind := pick(r, "ChangePod", "ChangeWorkload", s.kind, "Pod", "ControllerRevision")
		o.Lag = map[string]time.Duration{kind: 3 * time.Second}
	}
	o.Policies = randomPolicies(r)
	return s
}

func randomSettings(r *rand.Rand) map[string]v1alpha1.OpsConfigValue {
	all := soon()
	some := func(n int, name, content string, enable bool) {
		if oneIn(r, n) {
			all[name] = v1alpha1.OpsConfigValue{Enable: enable, Content: content}
		}
	}
	some(2, settings.NameHolding, pick(r, "first", "every", "every,atMost=2m"), true)
	some(3, settings.NameBranch, "2", true)
	some(4, settings.NameSelfHealing, "", true)
	if some(6, settings.NameSilence, "", true); all[settings.NameSilence].Enable {
		delete(all, settings.NameHolding) // a hold that runs out before its checks end would fail
		some(2, settings.NameHolding, pick(r, "first", "every"), true)
	}
	some(6, settings.NameHalting, "", false)
	some(8, settings.NameBlocking, "", false)
	some(2, settings.NameRollback, pick(r, "after=20s,slow=1m", "1m"), true)
	some(12, settings.NameRollback, "", false)
	some(6, settings.NameQuarantine, "10m", true)
	some(10, settings.NameHistory, "1", true)
	some(20, settings.NameObserve, "", true)
	return all
}

// randomPolicies returns policies: the default policy, disabled or not, and sometimes a policy of the namespace.
func randomPolicies(r *rand.Rand) (policies []v1alpha1.DefensePolicy) {
	if oneIn(r, 2) {
		policies = append(policies, noDefault())
	}
	if oneIn(r, 2) {
		return policies
	}
	return append(policies, podHealth("policy", func(p *v1alpha1.DefensePolicy) {
		c := &p.Spec.Checks[0]
		c.PodHealth.Duration.Duration = pick(r, 10*time.Second, 90*time.Second, 4*time.Minute)
		if oneIn(r, 3) {
			inBackground(p)
		}
	}))
}

// pause returns the time before the next act.
func pause(r *rand.Rand) time.Duration {
	if oneIn(r, 5) {
		return pick(r, 3*time.Minute, 6*time.Minute, 12*time.Minute)
	}
	return pick(r, 0, 0, 200*time.Millisecond, time.Second, 3*time.Second, 10*time.Second, 20*time.Second, 45*time.Second, 90*time.Second)
}

// play plays the story.
func (s *randomStory) play(w *world.World) {
	s.w = w
	r := rand.New(rand.NewPCG(s.seed, 1))
	s.create(r)
	count := 3 + r.IntN(12)
	for number := 1; number <= count; number++ {
		// Each act has its own random numbers, so other acts can be left out.
		own := rand.New(rand.NewPCG(s.seed, uint64(100+number)))
		wait, a := pause(own), s.choose(own)
		s.acts = append(s.acts, number)
		if s.skip[number] {
			continue
		}
		s.pass(wait)
		s.logf("%d: %s%s", number, a.name, a.do(s, own))
	}
	s.calm()
	s.check("at rest")
	if s.enforcing() || oneIn(r, 2) {
		s.finish()
		s.check("after a good release")
	}
	if oneIn(r, 3) {
		s.logf("un-enrol")
		w.Enrol(false)
		s.rest()
		s.check("after the end of the defense")
	}
	if s.restarts() > 0 || s.nodes && s.isStuck() {
		s.logf("delete the workload, whose containers may crash, or be pulled, for ever")
		must(w, w.Delete(s.stored()))
	}
}

func (s *randomStory) logf(format string, args ...any) {
	s.did = append(s.did, time.Now().Format("15:04:05.0 ")+fmt.Sprintf(format, args...))
}

// pass lets time pass. A tool may apply its manifest every minute.
func (s *randomStory) pass(d time.Duration) {
	for s.synced != nil && d > time.Minute {
		s.w.For(time.Minute)
		d -= time.Minute
		_ = s.patch(s.synced()) // a tool repeats what is denied
	}
	s.w.For(d)
}

const (
	// mostRest is the longest time until the operator stops writing. restless is the highest number of writes in 20 minutes while
	// containers crash.
	mostRest = 6 * time.Hour
	restless = 100
)

// rest waits until the operator writes nothing for 20 minutes, longer than it waits for anything. It may write while containers restart.
func (s *randomStory) rest() {
	began, written, restarted := time.Now(), len(s.w.Writes()), s.restarts()
	for {
		s.w.For(20 * time.Minute)
		now, restarts := len(s.w.Writes()), s.restarts()
		restless := restarts != restarted && now-written < restless
		if now == written || restless && time.Since(began) > 2*time.Hour {
			return
		}
		if time.Since(began) > mostRest {
			writes := s.w.Writes()[written:]
			s.w.Failf("no rest: after %s there are %d writes in 20 minutes: %s",
				mostRest, len(writes), strings.Join(writes[:min(len(writes), 5)], ", "))
		}
		written, restarted = now, restarts
	}
}

// restarts returns the restarts of all containers.
func (s *randomStory) restarts() (n int32) {
	for _, pod := range s.pods() {
		for _, c := range pod.Status.ContainerStatuses {
			n += c.RestartCount
		}
	}
	return n
}
