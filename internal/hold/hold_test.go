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

package hold

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// rollout is a model of the deployment controller and the ReplicaSet controller, as far as a hold
// depends on them: pkg/controller/deployment/rolling.go of Kubernetes, with the age of a pod
// against minReadySeconds. Time is in seconds.
type rollout struct {
	t                    *testing.T
	now                  int
	replicas             int
	surge, unavailable   int
	minReady, originally int
	// old is the number of old pods, which are always available. made are the new pods, and starts is
	// how long they take to be Ready.
	old    int
	made   []*madePod
	starts int
	// asked is the desired number of pods of the new ReplicaSet.
	asked int
	hold  *workload.Hold
	steps Times
	until v1alpha1.HoldUntil
	// verdict is how long a verdict takes after a pod is Ready, and atMost how long the hold waits for
	// it; a silent pod gets none.
	verdict, atMost int
	silent          func(i int) bool
	// sees is how far the operator's cache is behind, and ahead how far the clock of the controllers
	// is ahead of the API server's.
	sees, ahead int
	// scaled has the number of replicas by the time at which it is set. Pods in broken are never
	// Ready.
	scaled map[int]int
	broken func(i int) bool
	// dead: the operator is gone.
	dead   func(now int) bool
	writes int
	waves  int
	// again is when the operator decides again.
	again int
}

type madePod struct{ at, ready int }

func (r *rollout) isReady(p *madePod) bool { return r.now >= p.ready }

func (r *rollout) available(p *madePod) bool {
	return r.isReady(p) && r.now+r.ahead-p.ready >= r.minReady
}

func (r *rollout) verified(i int) bool {
	p := r.made[i]
	return !r.silent(i) && r.now-p.at >= 0 && r.now >= p.ready+max(r.originally, 0)+r.verdict
}

func (r *rollout) timeIsOver(i int) bool { return r.now >= r.made[i].at+r.atMost }

// step runs the controllers of Kubernetes once.
func (r *rollout) step() {
	for i := len(r.made); i < r.asked; i++ {
		p := &madePod{at: r.now, ready: r.now + r.starts + i%3}
		if r.broken != nil && r.broken(i) {
			p.ready = math.MaxInt32
		}
		r.made = append(r.made, p)
	}
	for len(r.made) > r.asked { // the youngest that are not Ready go first
		r.made = r.made[:len(r.made)-1]
	}
	total := r.old + r.asked
	if most := r.replicas + r.surge; r.asked < r.replicas && total < most {
		r.asked += min(most-total, r.replicas-r.asked)
		return
	}
	if r.asked > r.replicas {
		r.asked = r.replicas
		return
	}
	availableNew := 0
	for _, p := range r.made {
		if r.available(p) {
			availableNew++
		}
	}
	least := r.replicas - r.unavailable
	if down := min(r.old, r.old+availableNew-least); down > 0 && r.old+r.asked-least-(r.asked-availableNew) > 0 {
		r.old -= min(down, r.old+r.asked-least-(r.asked-availableNew))
	}
}

// next returns when something happens next by time alone.
func (r *rollout) next() int {
	next := math.MaxInt
	at := func(times ...int) {
		for _, t := range times {
			if t > r.now {
				next = min(next, t)
			}
		}
	}
	at(r.again)
	for t := range r.scaled {
		at(t)
	}
	for i, p := range r.made {
		at(p.at+r.sees, p.ready, p.ready+r.sees, p.ready+r.minReady-r.ahead, p.at+r.atMost)
		if !r.silent(i) {
			at(p.ready + r.originally + r.verdict)
		}
	}
	return next
}

// decides reports whether the operator decides now: it asked for it, or a pod that was created,
// became Ready or got a verdict is seen now.
func (r *rollout) decides() bool {
	if r.hold == nil || r.dead(r.now) {
		return false
	}
	return r.now == 0 || r.now == r.again || slices.ContainsFunc(r.made, func(p *madePod) bool {
		return r.now == p.at+r.sees || r.now == p.ready+r.sees || r.now == p.ready+r.originally+r.verdict
	})
}

// operate runs the operator, with a cache that may be behind.
func (r *rollout) operate(clock time.Time) {
	if !r.decides() {
		return
	}
	var pods []workload.HeldPod
	for i, p := range r.made {
		if p.at > r.now-r.sees {
			continue
		}
		h := workload.HeldPod{Created: clock.Add(time.Duration(p.at) * time.Second), Verified: r.verified(i)}
		if r.now-r.sees >= p.ready {
			h.ReadySince = clock.Add(time.Duration(p.ready) * time.Second)
		}
		pods = append(pods, h)
	}
	plan := Decide(Input{
		Now: clock.Add(time.Duration(r.now) * time.Second), Hold: r.hold, Until: r.until, AtMost: time.Duration(r.atMost) * time.Second,
		Times: r.steps, Replicas: int32(r.replicas), Made: int32(r.asked), Pods: pods,
	})
	r.again = -1
	if plan.Again > 0 {
		r.again = r.now + int((plan.Again+time.Second-1)/time.Second)
	}
	switch {
	case plan.Done:
		r.minReady, r.hold = int(r.hold.MinReadySeconds), nil
		r.writes++
	case plan.Set != nil:
		if plan.Opens {
			r.waves++
		}
		if !plan.Set.Set.Valid() {
			r.t.Fatalf("after %d s: the API server would refuse %+v", r.now, plan.Set.Set)
		}
		r.hold, r.minReady = plan.Set, int(plan.Set.Set.MinReadySeconds)
		r.writes++
	}
}

// scale scales the rollout as the deployment controller does: pods that are added during a rollout
// are shared among the old and the new ReplicaSet.
func (r *rollout) scale() {
	to, ok := r.scaled[r.now]
	if !ok {
		return
	}
	if more := to - r.replicas; more > 0 && r.old > 0 {
		share := more * r.asked / (r.old + r.asked)
		r.asked, r.old = r.asked+share, r.old+more-share
	} else if more < 0 {
		r.old += max(more, -r.old)
	}
	r.replicas = to
}

// turn runs everything that happens at this time.
func (r *rollout) turn(clock time.Time) {
	r.scale()
	for range 6 {
		r.step()
	}
	r.check()
	r.operate(clock)
	for range 6 {
		r.step()
	}
}

// check fails the test if the hold did harm.
func (r *rollout) check() {
	inFlight, serving := 0, r.old
	for i, p := range r.made {
		if r.available(p) && !r.verified(i) && !r.timeIsOver(i) && r.hold != nil && !r.dead(r.now) {
			r.t.Fatalf(
				"after %d s: pod %d of %d is available without a verdict; it was created at %d, Ready at %d; minReadySeconds %d, opened %d to %d",
				r.now, i, r.replicas, p.at, p.ready, r.minReady, r.hold.OpenedAt, r.hold.OpenedTo)
		}
		if !r.verified(i) && !r.timeIsOver(i) {
			inFlight++
		}
		if r.isReady(p) {
			serving++
		}
	}
	if most := max(r.surge+r.unavailable, 1); inFlight > most && len(r.scaled) == 0 && r.hold != nil && !r.dead(r.now) &&
		r.until == v1alpha1.HoldEveryBatch {
		r.t.Fatalf("after %d s: %d pods are in flight, the strategy allows %d", r.now, inFlight, most)
	}
	if serving < r.replicas-r.unavailable && len(r.scaled) == 0 {
		r.t.Fatalf("after %d s: %d pods serve of %d, the strategy allows %d less", r.now, serving, r.replicas, r.unavailable)
	}
}

// begin begins the release.
func (r *rollout) begin() {
	r.steps = r.steps.OrDefault()
	r.old = r.replicas
	r.hold = r.steps.Begin(2, workload.Pace{MinReadySeconds: int32(r.originally), ProgressDeadlineSeconds: 600}, r.until,
		time.Duration(r.atMost)*time.Second, Wave{})
	r.minReady = int(r.hold.Set.MinReadySeconds)
}

// run runs the rollout to its end.
func (r *rollout) run(within int) {
	clock := time.Unix(1_700_000_000, 0)
	r.begin()
	for r.now < within {
		r.turn(clock)
		if r.old == 0 && len(r.made) == r.replicas && r.hold == nil {
			return
		}
		r.now = r.next()
	}
	r.t.Fatalf("it is not over after %d s: %d old and %d new pods, minReadySeconds %d, hold %v", within, r.old, len(r.made), r.minReady,
		r.hold)
}

func never(int) bool { return false }

// TestHoldModel runs held rollouts against a model of the controllers.
func TestHoldModel(t *testing.T) {
	strategies := map[string]func(replicas int) (surge, unavailable int){
		"25%/25%": func(n int) (int, int) {
			surge, unavailable := (n+3)/4, n/4
			return surge, unavailable
		},
		"1/0":   func(int) (int, int) { return 1, 0 },
		"0/1":   func(int) (int, int) { return 0, 1 },
		"100/0": func(n int) (int, int) { return n, 0 },
	}
	for name, strategy := range strategies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, replicas := range []int{1, 2, 3, 5, 10, 20, 50, 100} {
				for _, verdict := range []int{1, 5, 60, 300, 1200} {
					for _, originally := range []int{0, 30, 900} {
						surge, unavailable := strategy(replicas)
						r := &rollout{
							t: t, replicas: replicas, surge: surge, unavailable: unavailable, originally: originally, starts: 4,
							until: v1alpha1.HoldEveryBatch, verdict: verdict, atMost: 3600, silent: never, sees: 2, dead: never,
						}
						r.run(1000 * 2000)
						if most := 2*r.waves + 2 + (verdict+originally)/60*(r.waves+1); r.writes > most {
							t.Errorf("%d replicas, verdicts after %d s, minReadySeconds %d: %d writes in %d waves", replicas, verdict, originally, r.writes,
								r.waves)
						}
						if verdict <= 300 && originally == 0 && r.writes > 2*(r.waves+1) {
							t.Errorf("%d replicas, verdicts after %d s: %d writes in %d waves, more than two each", replicas, verdict, r.writes, r.waves)
						}
					}
				}
			}
		})
	}
}

// TestHoldClocks: the clocks of the cluster may differ, and the operator may be behind.
func TestHoldClocks(t *testing.T) {
	for _, ahead := range []int{-5, 0, 5} {
		for _, sees := range []int{0, 3, 5} {
			for _, verdict := range []int{1, 20, 130, 300, 900} {
				for _, replicas := range []int{4, 20, 100} {
					r := &rollout{
						t: t, replicas: replicas, surge: (replicas + 3) / 4, unavailable: replicas / 4, starts: 2, until: v1alpha1.HoldEveryBatch,
						verdict: verdict, atMost: 3600, silent: never, sees: sees, ahead: ahead, dead: never,
					}
					r.run(200_000)
				}
			}
		}
	}
}

// TestHoldBroken: pods that are never Ready delay the others only as the strategy does, no pod
// becomes available without a verdict, and the hold ends.
func TestHoldBroken(t *testing.T) {
	for _, atMost := range []int{120, 3600} {
		r := &rollout{
			t: t, replicas: 20, surge: 5, unavailable: 5, starts: 2, until: v1alpha1.HoldEveryBatch, verdict: 30, atMost: atMost, silent: never,
			sees:   2,
			broken: func(i int) bool { return i%7 == 3 }, dead: never,
		}
		clock := time.Unix(1_700_000_000, 0)
		r.begin()
		for r.now < 20_000 {
			r.turn(clock)
			next := r.next()
			if next >= math.MaxInt32 {
				break
			}
			r.now = next
		}
		ready := 0
		for _, p := range r.made {
			if r.isReady(p) {
				ready++
			}
		}
		if ready < 15 || r.hold != nil {
			t.Errorf("waiting for at most %d s: %d new pods are Ready after %d s, %d are old, held %t", atMost, ready, r.now, r.old, r.hold != nil)
		}
	}
}

// TestHoldScaled: pods that are added during a hold are waited for like others.
func TestHoldScaled(t *testing.T) {
	for _, scaled := range []map[int]int{{30: 30}, {30: 10}, {20: 30, 100: 8}, {5: 12, 70: 40}} {
		for _, verdict := range []int{5, 60, 300} {
			r := &rollout{
				t: t, replicas: 20, surge: 5, unavailable: 5, starts: 4, until: v1alpha1.HoldEveryBatch, verdict: verdict, atMost: 3600, silent: never,
				sees:   2,
				scaled: scaled, dead: never,
			}
			r.run(100_000)
		}
	}
}

// TestHoldRunsOut: a pod without a verdict delays the others no longer than allowed.
func TestHoldRunsOut(t *testing.T) {
	for _, replicas := range []int{1, 3, 20} {
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			r := &rollout{
				t: t, replicas: replicas, surge: 1, unavailable: 0, starts: 4, until: v1alpha1.HoldEveryBatch, verdict: 20, atMost: 120,
				silent: func(i int) bool { return i == 0 || i == 7 }, dead: never,
			}
			r.run(20 * (130 + 60))
		})
	}
}

// TestHoldFirst: only the first wave is waited for.
func TestHoldFirst(t *testing.T) {
	r := &rollout{
		t: t, replicas: 20, surge: 5, unavailable: 5, starts: 4, until: v1alpha1.HoldFirstBatch, verdict: 60, atMost: 600, silent: never,
		dead: never,
	}
	r.run(300)
	if r.writes != 1 {
		t.Errorf("%d writes, want 1, which ends the hold", r.writes)
	}
}

// TestHoldDecides covers states that the model does not reach.
func TestHoldDecides(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	pod := func(ready time.Duration, verified bool) workload.HeldPod {
		return workload.HeldPod{Created: now.Add(-ready - time.Second), ReadySince: now.Add(-ready), Verified: verified}
	}
	opened := func(ago time.Duration, minReady int32) *workload.Hold {
		h := Times{}.OrDefault().Begin(2, workload.Pace{ProgressDeadlineSeconds: 600}, v1alpha1.HoldEveryBatch, 2*time.Hour, Wave{})
		h.Set.MinReadySeconds, h.Set.ProgressDeadlineSeconds = minReady, max(minReady, 7200)+600
		h.OpenedAt, h.OpenedTo = now.Add(-ago).Unix(), now.Add(-ago-time.Duration(minReady)*time.Second-slack).Unix()
		return h
	}
	for name, c := range map[string]struct {
		hold *workload.Hold
		pods []workload.HeldPod
		want func(Plan) bool
	}{
		"only verified pods are opened after an hour": {
			opened(2*time.Hour, 3600), []workload.HeldPod{pod(79*time.Minute, true), pod(75*time.Minute, false)},
			func(p Plan) bool { return p.Opens && p.Set.Set.MinReady() > 75*time.Minute },
		},
		"a wave is not closed just after it was opened, although a waiting pod is hardly younger": {
			opened(0, 300), []workload.HeldPod{pod(302*time.Second, true), pod(282*time.Second, false)},
			func(p Plan) bool { return p.Set == nil && p.Again > 5*time.Second },
		},
		"it is closed in time": {
			opened(10*time.Second, 300), []workload.HeldPod{pod(312*time.Second, true), pod(292*time.Second, false)},
			func(p Plan) bool { return p.Set != nil && !p.Opens },
		},
		"a wave that was closed before the controller acted is opened again": {
			func() *workload.Hold {
				h := opened(30*time.Second, 900)
				h.OpenedTo = now.Add(-5 * time.Minute).Unix()
				return h
			}(), []workload.HeldPod{pod(5*time.Minute, true)},
			func(p Plan) bool { return p.Opens && p.Set.Set.MinReady() == 5*time.Minute-slack },
		},
		"pods that do not exist yet are of the wave": {
			func() *workload.Hold {
				h := opened(time.Hour, 600)
				h.Until, h.OpenedAt, h.OpenedTo = v1alpha1.HoldFirstBatch, 0, 0
				return h
			}(), []workload.HeldPod{pod(time.Minute, true)},
			func(p Plan) bool { return !p.Done && p.Set == nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			plan := Decide(Input{
				Now: now, Hold: c.hold, Until: c.hold.Until, AtMost: 2 * time.Hour, Times: Times{}.OrDefault(), Replicas: 8, Made: 2, Pods: c.pods,
			})
			if !c.want(plan) {
				t.Errorf("plan %+v, set %+v", plan, plan.Set)
			}
		})
	}
}

// TestHoldUnready: a pod that is not Ready never counts as verified. The hold waits for it, or runs
// out.
func TestHoldUnready(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ready := workload.HeldPod{Created: now.Add(-10 * time.Minute), ReadySince: now.Add(-9 * time.Minute), Verified: true}
	unready := func(made time.Duration, verified bool) workload.HeldPod {
		return workload.HeldPod{Created: now.Add(-made), Verified: verified}
	}
	for name, c := range map[string]struct {
		pods            []workload.HeldPod
		done            bool
		waiting, ranOut int
	}{
		"none is Ready yet":                        {[]workload.HeldPod{unready(time.Minute, false), unready(time.Minute, false)}, false, 2, 0},
		"none is Ready in time":                    {[]workload.HeldPod{unready(time.Hour, false), unready(time.Hour, false)}, true, 0, 2},
		"one is not Ready in time":                 {[]workload.HeldPod{ready, unready(time.Hour, false)}, true, 0, 1},
		"one is verified, and not Ready again":     {[]workload.HeldPod{ready, unready(10*time.Minute, true)}, false, 1, 0},
		"not Ready again for longer than atMost":   {[]workload.HeldPod{ready, unready(time.Hour, true)}, false, 1, 0},
		"all are verified, and Ready":              {[]workload.HeldPod{ready, ready}, true, 0, 0},
		"all are verified, and none is Ready":      {[]workload.HeldPod{unready(time.Minute, true), unready(time.Minute, true)}, false, 2, 0},
		"one is verified, the other not created":   {[]workload.HeldPod{ready}, false, 0, 0},
		"one is not Ready, the other not created":  {[]workload.HeldPod{unready(time.Minute, false)}, false, 1, 0},
		"the time of one is over, one not created": {[]workload.HeldPod{unready(time.Hour, false)}, false, 0, 1},
	} {
		for _, until := range []v1alpha1.HoldUntil{v1alpha1.HoldFirstBatch, v1alpha1.HoldEveryBatch} {
			t.Run(name+", "+string(until), func(t *testing.T) {
				steps := Times{}.OrDefault()
				plan := Decide(Input{
					Now: now, Hold: steps.Begin(2, workload.Pace{ProgressDeadlineSeconds: 3600}, until, 30*time.Minute, Wave{}),
					Until: until, AtMost: 30 * time.Minute,
					Times: steps, Replicas: 2, Made: 2, Pods: c.pods,
				})
				done := plan.Done || plan.Set != nil && plan.Set.Set.MinReadySeconds == 0 // in two writes
				if done != c.done || plan.Waiting != c.waiting || plan.RanOut != c.ranOut {
					t.Errorf("plan %+v, set %+v", plan, plan.Set)
				}
			})
		}
	}
}

// TestHoldEndsLate: if the rollout made no progress for longer than the user allows, it continues
// before the user's deadline counts again.
func TestHoldEndsLate(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for _, until := range []v1alpha1.HoldUntil{v1alpha1.HoldFirstBatch, v1alpha1.HoldEveryBatch} {
		t.Run(string(until), func(t *testing.T) {
			in := Input{
				Now: now, Until: until, AtMost: time.Hour,
				Hold:  Times{}.OrDefault().Begin(2, workload.Pace{ProgressDeadlineSeconds: 600}, until, time.Hour, Wave{}),
				Times: Times{}.OrDefault(), Replicas: 1,
				Pods: []workload.HeldPod{{Created: now.Add(-15 * time.Minute), ReadySince: now.Add(-14 * time.Minute), Verified: true}},
			}
			first := Decide(in)
			if first.Done || first.Set == nil || first.Set.Set.MinReadySeconds != 0 || first.Set.Set.ProgressDeadlineSeconds <= 15*60 ||
				first.Again == 0 {
				t.Fatalf("first plan %+v", first)
			}
			in.Hold = first.Set
			if until == v1alpha1.HoldFirstBatch {
				in.Pods = append(in.Pods, workload.HeldPod{Created: now.Add(time.Second)})
			}
			if soon := Decide(in); soon.Done || soon.Set != nil || soon.Again == 0 || soon.Waiting > 0 || !soon.Over {
				t.Errorf("plan at once %+v", soon)
			}
			in.Now = now.Add(first.Again)
			if then := Decide(in); !then.Done {
				t.Errorf("last plan %+v", then)
			}
		})
	}
}

// TestHoldDead: if the operator is gone, the rollout continues one wave at a time, each within a
// bounded time.
func TestHoldDead(t *testing.T) {
	for _, dies := range []int{0, 3, 70, 75, 140, 400} {
		t.Run(fmt.Sprint(dies), func(t *testing.T) {
			r := &rollout{
				t: t, replicas: 20, surge: 5, unavailable: 5, starts: 4, until: v1alpha1.HoldEveryBatch, verdict: 60, atMost: 1800, silent: never,
				dead: func(now int) bool { return now >= dies },
			}
			clock := time.Unix(1_700_000_000, 0)
			r.begin()
			for ; r.old > 0; r.now = r.next() {
				r.turn(clock)
				if r.now > dies+5*int(maxStep/time.Second) {
					t.Fatalf("it stands still: minReadySeconds %d", r.minReady)
				}
			}
			t.Logf("over after %d s", r.now)
		})
	}
}

func TestParseHold(t *testing.T) {
	whole := Times{}.OrDefault().Begin(7, workload.Pace{MinReadySeconds: 5, ProgressDeadlineSeconds: math.MaxInt32}, v1alpha1.HoldEveryBatch,
		time.Hour, Wave{})
	if got := workload.ParseHold(whole.String()); got == nil || *got != *whole {
		t.Errorf("read %+v, want %+v", got, whole)
	}
	if whole.Set.ProgressDeadlineSeconds != math.MaxInt32 {
		t.Errorf("a rollout without a deadline got one: %+v", whole.Set)
	}
	for _, bad := range []string{
		"", "x", "{}",
		`{"release":0,"minReadySeconds":0,"progressDeadlineSeconds":600,"set":{"minReadySeconds":600,"progressDeadlineSeconds":1200}}`,
		`{"release":1,"minReadySeconds":0,"progressDeadlineSeconds":600,"set":{"minReadySeconds":600,"progressDeadlineSeconds":600}}`,
		`{"release":1,"minReadySeconds":-1,"progressDeadlineSeconds":600,"set":{"minReadySeconds":600,"progressDeadlineSeconds":1200}}`,
	} {
		if got := workload.ParseHold(bad); got != nil {
			t.Errorf("%q was read as %+v", bad, got)
		}
	}
}

func TestHoldKept(t *testing.T) {
	h := &workload.Hold{
		Release: 2, Pace: workload.Pace{MinReadySeconds: 5, ProgressDeadlineSeconds: 600},
		Set: workload.Pace{MinReadySeconds: 590, ProgressDeadlineSeconds: 2400},
		Was: &workload.Pace{MinReadySeconds: 600, ProgressDeadlineSeconds: 2400},
	}
	for name, c := range map[string]struct{ is, want workload.Pace }{
		"the operator's":              {h.Set, h.Pace},
		"the operator's, not written": {*h.Was, h.Pace},
		"the user's own":              {h.Pace, h.Pace},
		"one of the user": {
			workload.Pace{MinReadySeconds: 20, ProgressDeadlineSeconds: 2400}, workload.Pace{MinReadySeconds: 20, ProgressDeadlineSeconds: 600},
		},
		"the other of the user": {
			workload.Pace{MinReadySeconds: 590, ProgressDeadlineSeconds: 900}, workload.Pace{MinReadySeconds: 5, ProgressDeadlineSeconds: 900},
		},
		"more than its deadline": {
			workload.Pace{MinReadySeconds: 700, ProgressDeadlineSeconds: 2400}, workload.Pace{MinReadySeconds: 700, ProgressDeadlineSeconds: 1300},
		},
	} {
		if got := h.Fitting(h.Kept(c.is)); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if own := h.Own(c.is); own != slices.Contains([]string{"the operator's", "the operator's, not written", "the user's own"}, name) {
			t.Errorf("%s: own is %t", name, own)
		}
	}
}
