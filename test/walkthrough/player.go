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

package walkthrough

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Player plays steps on a cluster, in order.
type Player struct {
	// Client reads the kinds of the operator, workloads, pods and events.
	Client client.Reader
	// Namespace is the namespace of the story.
	Namespace string
	// Of is the workload of the story. Zero is the Deployment of the samples.
	Of Workload
	// Kubectl runs a command in Namespace and at the root of the repository, where the samples are, and returns its output. It fails if the
	// command fails.
	Kubectl func(ctx context.Context, args ...string) (string, error)
	// Begin is called with each step before it is played, Note with each text for readers, Progress with the state of each wait. All three are
	// optional.
	Begin    func(step Step)
	Note     func(text string)
	Progress func(p Progress)
	// Restless reports whether the manager may be killed at any moment. Acts that are Calm are left out then, and denials are retried.
	Restless bool
	// Patience is added to the time limit of each wait, for a cluster with other work.
	Patience time.Duration

	scene *scene
}

// Progress is the state of a wait.
type Progress struct {
	What    string
	Now     string
	Elapsed time.Duration
	// Over reports whether the wait has ended.
	Over bool
}

// Play plays steps. One player plays all steps of a story.
func (p *Player) Play(ctx context.Context, steps ...Step) error {
	if p.scene == nil {
		p.scene = &scene{client: p.Client, namespace: p.Namespace, of: cmp.Or(p.Of, deployment)}
	}
	for _, step := range steps {
		if p.Begin != nil {
			p.Begin(step)
		}
		for _, act := range step.Acts {
			if err := p.act(ctx, act); err != nil {
				return fmt.Errorf("step %q: %w", step.Title, err)
			}
		}
	}
	return nil
}

func (p *Player) act(ctx context.Context, act Act) error {
	switch {
	case act.Calm && p.Restless:
		return nil
	case act.Sight != nil:
		return p.watch(ctx, act)
	case act.Do != nil:
		return act.Do(ctx)
	case act.Note != "":
		if p.Note != nil {
			p.Note(act.Note)
		}
		return nil
	case act.Denied && p.Restless:
		var last error
		err := wait.PollUntilContextTimeout(ctx, interval, patience, true, func(ctx context.Context) (bool, error) {
			last = p.run(ctx, act)
			return last == nil, nil
		})
		return errors.Join(err, last)
	default:
		return p.run(ctx, act)
	}
}

// run runs a command and checks its output.
func (p *Player) run(ctx context.Context, act Act) error {
	words, err := p.scene.words(ctx)
	if err != nil {
		return err
	}
	args := make([]string, len(act.Kubectl))
	for i, arg := range act.Kubectl {
		args[i] = words.Replace(arg)
	}
	typed := Typed(args)
	before, unknown := p.scene.version(ctx)
	out, err := p.Kubectl(ctx, args...)
	// A version that changes during a command without a release was rolled back by the operator.
	releases := !slices.Contains([]string{"annotate", "describe", "get", "label", "logs"}, args[0])
	if after, gone := p.scene.version(ctx); releases && unknown == nil && gone == nil && after != before {
		p.scene.good, p.scene.bad = before, after
	}
	switch {
	case act.Denied && err == nil:
		return fmt.Errorf("%s was not denied: %s", typed, out)
	case !act.Denied && err != nil:
		return fmt.Errorf("%s: %w: %s", typed, err, out)
	}
	for _, text := range act.Prints {
		if text = words.Replace(text); !strings.Contains(out, text) {
			return fmt.Errorf("%s does not print %q, but: %s", typed, text, out)
		}
	}
	return nil
}

// watch waits for a sight.
func (p *Player) watch(ctx context.Context, act Act) error {
	began := time.Now()
	progress := Progress{What: act.Sight.Name}
	report := func() {
		progress.Elapsed = time.Since(began)
		if p.Progress != nil {
			p.Progress(progress)
		}
	}
	err := wait.PollUntilContextTimeout(ctx, interval, act.Within+p.Patience, true, func(ctx context.Context) (bool, error) {
		now, seen, err := act.Sight.look(p.scene, ctx)
		if now != "" {
			progress.Now = now
		}
		report()
		return seen, err
	})
	progress.Over = true
	report()
	if err != nil {
		return fmt.Errorf("waited for %s, at last %q: %w", progress.What, progress.Now, err)
	}
	return nil
}
