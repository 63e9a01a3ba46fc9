//go:build linux

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

package node

import (
	"context"
	"os"

	. "github.com/onsi/gomega"

	"github.com/traas-stack/altershield-operator/test/walkthrough"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// kindStory is a story of a workload of another kind, in a namespace of its own. It plays beside the rows.
type kindStory struct {
	name, ns string
	of       walkthrough.Workload
	steps    []walkthrough.Step
	err      error
	done     chan struct{}
}

func kindStories() (stories []*kindStory) {
	for _, of := range []walkthrough.Workload{walkthrough.StatefulSet, walkthrough.DaemonSet} {
		stories = append(stories,
			&kindStory{name: "goes through the walkthrough with a " + of.Kind(), ns: of.Kind() + "-walks", of: of, steps: walkthrough.Steps()},
			&kindStory{name: "halts a " + of.Kind() + ", and rolls back one whose pods crash", ns: of.Kind() + "-crashes", of: of,
				steps: []walkthrough.Step{walkthrough.Release, walkthrough.Halted, walkthrough.Crashes}})
	}
	for _, s := range stories {
		s.done = make(chan struct{})
	}
	return stories
}

// begin plays the story. It goes on when the node of the suite that calls it is over.
func (s *kindStory) begin(ctx context.Context) {
	Expect(api.Create(ctx, wrappers.MakeNamespace(s.ns).Obj())).To(Succeed())
	go func() {
		defer close(s.done)
		s.err = s.play(context.WithoutCancel(ctx))
	}()
}

func (s *kindStory) play(ctx context.Context) error {
	samples, err := os.MkdirTemp("", "altershield-samples-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(samples)
	if err := s.of.WriteSamples(root, samples); err != nil {
		return err
	}
	player := walkthrough.Player{
		Client: api, Namespace: s.ns, Of: s.of, Patience: patience,
		Kubectl: func(ctx context.Context, args ...string) (string, error) {
			return tryKubectl(ctx, append([]string{"-n", s.ns}, args...)...)
		},
	}
	return player.Play(ctx, s.of.Adapt(samples, s.steps...)...)
}
