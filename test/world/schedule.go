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

package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/controller"
)

// errDead is the error of everything that a dead process tries.
var errDead = errors.New("this process is dead")

type taskKey struct{}

// withTask names a goroutine that is not a reconcile.
func withTask(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, taskKey{}, id)
}

// enter waits until the goroutine may go on. It then goes on until it ends or waits for time to
// pass, unless the world chooses at each step.
func (p *Process) enter(ctx context.Context, step bool) error {
	w := p.world
	id, name := taskOf(ctx)
	w.mu.Lock()
	switch {
	case p.dead:
		w.mu.Unlock()
		return errDead
	case id == "", id == w.running && (!step || w.random == nil):
		w.mu.Unlock()
		return nil
	}
	t := &task{id: id, name: name, process: p, resume: make(chan error)}
	w.waiting = append(w.waiting, t)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return <-t.resume
}

// die ends a process at this point.
func (p *Process) die() {
	p.world.mu.Lock()
	p.dead = true
	last := !slices.ContainsFunc(p.world.processes, func(other *Process) bool { return !other.dead })
	p.world.mu.Unlock()
	p.cancel()
	if last {
		p.world.api.judge.OperatorStops(time.Now())
	}
}

// let resumes one task until it waits again or ends.
func (w *World) let(t *task, err error) {
	w.did("%s goes on", cmp.Or(t.name, t.id))
	w.mu.Lock()
	w.running = t.id
	w.waiting = slices.DeleteFunc(w.waiting, func(other *task) bool { return other == t })
	w.mu.Unlock()
	t.resume <- err
	synctest.Wait()
	w.mu.Lock()
	w.running = ""
	w.mu.Unlock()
}

// step makes one step; it returns false if none is possible before time passes. It fails the story
// if so many steps happen at once that it would never end.
func (w *World) step() bool {
	if !w.happen() {
		return false
	}
	if time.Since(w.busySince) >= time.Second {
		w.busySince, w.busySteps = time.Now(), 0
	}
	if most := w.forAll(maxStepsAtOnce); w.busySteps >= most {
		w.Failf("%d steps within a second: the story does not end; the last steps:\n%s", most, strings.Join(w.last, "\n"))
	}
	w.busySteps++
	return true
}

// forAll multiplies a number by the number of Deployments.
func (w *World) forAll(forOne int) int { return forOne * max(1, len(w.api.kinds["Deployment"])) }

// did notes a step, in case there are too many.
func (w *World) did(format string, args ...any) {
	if w.busySteps < w.forAll(maxStepsAtOnce)-lastSteps {
		return
	}
	w.last = append(w.last, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	w.last = w.last[max(0, len(w.last)-lastSteps):]
}

// happen makes one step; it returns false if none is possible before time passes.
func (w *World) happen() bool {
	synctest.Wait()
	if w.bury() {
		return true
	}
	tasks := w.tasks()
	if w.random != nil {
		return w.anyStep(tasks)
	}
	for _, p := range w.alive() {
		if p.see() {
			w.did("process %d reads changes", p.number)
			return true
		}
	}
	if len(tasks) > 0 {
		w.let(tasks[0], nil)
		return true
	}
	return w.clusterStep()
}

// clusterStep makes a step of the cluster.
func (w *World) clusterStep() bool {
	before := w.api.history.end()
	if !w.cluster.step() {
		return false
	}
	for _, c := range w.api.history.from(before) {
		w.did("the cluster writes %s %s", c.key.kind, c.key.name)
	}
	return true
}

// anyStep makes a step chosen by the seed.
func (w *World) anyStep(tasks []*task) bool {
	var steps []func()
	for _, p := range w.alive() {
		for _, i := range p.cache.all() {
			if p.ready(i) {
				steps = append(steps, func() { p.show(i) })
			}
		}
	}
	for _, t := range tasks {
		steps = append(steps, func() { w.let(t, nil) })
	}
	// The cluster is one choice among all others.
	if len(steps) == 0 || w.random.IntN(len(steps)+1) == 0 {
		if w.clusterStep() {
			return true
		}
	}
	if len(steps) == 0 {
		return false
	}
	steps[w.random.IntN(len(steps))]()
	return true
}

// tasks returns the waiting tasks in a fixed order.
func (w *World) tasks() []*task {
	w.mu.Lock()
	defer w.mu.Unlock()
	tasks := slices.Clone(w.waiting)
	slices.SortStableFunc(tasks, func(a, b *task) int {
		return cmp.Or(cmp.Compare(a.process.number, b.process.number), cmp.Compare(a.name, b.name))
	})
	return tasks
}

// diedAt notes when a process was first found dead.
func (w *World) diedAt(p *Process) time.Time {
	if p.died.IsZero() {
		p.died = time.Now()
	}
	return p.died
}

// ready reports whether an informer may read its next entry.
func (p *Process) ready(i *informer) bool {
	return i.hasNewHandler() || !time.Now().Before(p.heldUntil) && i.ready(p.lag[i.kind])
}

// see makes a cache read all that it may.
func (p *Process) see() (seen bool) {
	for _, i := range p.cache.all() {
		for p.ready(i) {
			p.show(i)
			seen = true
		}
	}
	return seen
}

// forget drops history that all caches have read, in a world that forgets.
func (w *World) forget() {
	if !w.forgets {
		return
	}
	seen := w.cluster.seen
	for _, p := range w.alive() {
		for _, i := range p.cache.all() {
			i.pending()
			seen = min(seen, i.next)
		}
	}
	w.api.history.forget(seen)
}

// pass lets time pass until a step may be possible, at most until an instant.
func (w *World) pass(until time.Time) {
	w.forget()
	next := until
	for _, at := range w.appointments() {
		if at.Before(next) {
			next = at
		}
	}
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.wake:
	}
}

// appointments returns the times of events that no queue has.
func (w *World) appointments() (at []time.Time) {
	if due := w.cluster.due(); !due.IsZero() {
		at = append(at, due)
	}
	for _, p := range w.processes {
		if p.dead && !w.down {
			at = append(at, w.diedAt(p).Add(restartAfter))
			continue
		}
		if p.dead {
			continue
		}
		for _, i := range p.cache.all() {
			if c, ok := i.pending(); ok {
				due := c.at.Add(p.lag[i.kind])
				if due.Before(p.heldUntil) {
					due = p.heldUntil
				}
				at = append(at, due)
			}
		}
	}
	return at
}

// Error implements error, for tests that recover a failure.
func (f failure) Error() string { return f.why }

// Until makes steps until a condition holds.
func (w *World) Until(what string, holds func() bool) {
	deadline := time.Now().Add(patience)
	for steps := 0; ; steps++ {
		if holds() {
			return
		}
		if steps > w.forAll(maxSteps) {
			w.Failf("gave up waiting until %s: too many steps", what)
		}
		if w.step() {
			continue
		}
		if !time.Now().Before(deadline) {
			w.Failf("gave up waiting until %s", what)
		}
		w.pass(deadline)
	}
}

// Rest makes steps until nothing was written for longer than every wait of the operator.
func (w *World) Rest() {
	deadline := time.Now().Add(patience)
	since, written := time.Now(), w.api.history.end()
	for steps := 0; ; steps++ {
		if steps > w.forAll(maxSteps) {
			w.Failf("writes do not end: too many steps")
		}
		if w.api.history.end() != written {
			since, written = time.Now(), w.api.history.end()
		}
		if w.step() {
			continue
		}
		if time.Since(since) >= quiet {
			return
		}
		if !time.Now().Before(deadline) {
			w.Failf("writes do not end")
		}
		w.pass(since.Add(quiet))
	}
}

// For makes steps for some time.
func (w *World) For(d time.Duration) {
	end := time.Now().Add(d)
	for time.Now().Before(end) {
		if !w.step() {
			w.pass(end)
		}
	}
}

// taskOf returns the task of a context; empty for code that runs as part of another task, as the
// mapping of events to requests.
func taskOf(ctx context.Context) (id, name string) {
	if id, ok := ctx.Value(taskKey{}).(string); ok {
		return id, id
	}
	if id := controller.ReconcileIDFromContext(ctx); id != "" {
		name := ""
		if l, err := logr.FromContext(ctx); err == nil {
			if s, ok := l.GetSink().(*logSink); ok {
				name = s.name()
			}
		}
		return string(id), name
	}
	return "", ""
}
