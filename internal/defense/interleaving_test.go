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

package defense

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
)

var update = flag.Bool("update", false, "write the golden records")

// storyRecord is a release and what happens to it, in order.
type storyRecord struct {
	replicas int32
	size     int32
	verdicts map[string]string
	// polls answers polls as passed.
	polls bool
	// alone: without a server.
	alone bool
	then  []happening
}

// happening is the next act of a user or of the cluster.
type happening struct {
	name string
	do   func(*defended)
}

func podReady(i int) happening {
	return happening{fmt.Sprintf("pod %d is ready", i), func(d *defended) {
		d.in.Pods[i].Ready, d.in.Pods[i].ReadySince = true, d.in.Now
	}}
}

func rolloutComplete() happening {
	return happening{"the rollout is complete", func(d *defended) { d.stored.Rollout.Complete = true }}
}

func podsReady(n int) (all []happening) {
	for i := range n {
		all = append(all, podReady(i))
	}
	return append(all, rolloutComplete())
}

func stories() map[string]storyRecord {
	scaled := happening{"scaled up by one", func(d *defended) {
		d.stored.Replicas++
		d.Pods(1)
	}}
	again := happening{"released again", func(d *defended) {
		d.Fresh()
		d.in.Change.Spec.Release++
		d.Release(d.in.Change.Spec.Release, versionA)
	}}
	return map[string]storyRecord{
		"passes":               {replicas: 3, size: 1, then: podsReady(3)},
		"passes, in batches":   {replicas: 5, size: 2, then: podsReady(5)},
		"passes, stand-alone":  {replicas: 3, size: 2, alone: true, then: podsReady(3)},
		"a pod fails":          {replicas: 3, size: 1, verdicts: map[string]string{"POST 2": "fail"}, then: podsReady(3)},
		"a batch fails PRE":    {replicas: 4, size: 2, verdicts: map[string]string{"PRE 1": "inconc"}, then: podsReady(4)},
		"the order fails PRE":  {replicas: 2, size: 1, verdicts: map[string]string{"PRE order": "fail"}, then: podsReady(2)},
		"the order fails POST": {replicas: 2, size: 1, verdicts: map[string]string{"POST order": "fail"}, then: podsReady(2)},
		"callbacks are lost": {replicas: 2, size: 1, polls: true, verdicts: map[string]string{"POST 1": "", "PRE 2": "", "PRE order": ""},
			then: podsReady(2)},
		"a verdict never comes": {replicas: 2, size: 1, verdicts: map[string]string{"POST 1": ""}, then: podsReady(2)},
		"scaled after success":  {replicas: 2, size: 1, then: append(podsReady(2), scaled)},
		"released again":        {replicas: 2, size: 1, then: append(podsReady(2), again)},
		"replaced mid-release": {replicas: 3, size: 1, then: append(podsReady(1)[:1], happening{"replaced", func(d *defended) {
			d.Fresh()
			d.Release(2, versionB)
		}})},
	}
}

func (s storyRecord) begin() *defended {
	d := newDefended(s.replicas)
	if s.alone {
		d.in.Cluster = ""
	}
	d.BatchSize(s.size).Pods(int(s.replicas), unready)
	d.server.verdict, d.server.polls = byCheck(s.verdicts), s.polls
	return d
}

// summary is the part of a world that must not depend on the order of events.
func (d *defended) summary(t *testing.T) string {
	t.Helper()
	s := &d.in.Change.Status
	_, blocked := d.stored.Labels[v1alpha1.SuspendLabel]
	inBatches := map[string]int{}
	var messages []string
	for i := range d.in.Batches {
		b := &d.in.Batches[i]
		for _, p := range b.Spec.PodInfos {
			inBatches[fmt.Sprint(b.Spec.Attempt, " ", p.UID)]++
		}
		if b.Spec.Attempt == s.Attempt {
			messages = append(messages, b.Status.Message)
		}
	}
	for pod, n := range inBatches {
		if n > 1 {
			t.Errorf("attempt and pod %s are in %d batches", pod, n)
		}
	}
	slices.Sort(messages)
	if s.Status == v1alpha1.ChangeWorkloadCanceled {
		// The progress may differ, but nothing stays open.
		return fmt.Sprintf("status=%s blocked=%t paused=%t open=%t", s.Status, blocked, d.stored.Paused, record.OrderIsOpen(s))
	}
	return fmt.Sprintf("status=%s attempt=%d passed=%d failed=%d checking=%d preparing=%d blocked=%t paused=%t order=%s ended=%s "+
		"batches=%s unclaimed=%d",
		s.Status, s.Attempt, s.PassCount, s.FailCount, s.CheckingCount, s.PreparingCount, blocked, d.stored.Paused, s.OrderStage, s.OrderEnd,
		strings.Join(messages, ","), len(s.UnclaimedVerdicts))
}

// TestGolden runs each story in its natural order and compares every step with a recorded file.
func TestGolden(t *testing.T) {
	for name, story := range stories() {
		t.Run(name, func(t *testing.T) {
			d := story.begin()
			var record strings.Builder
			note := func(what string) {
				d.Run(t, 10*time.Minute)
				fmt.Fprintf(&record, "%s\n    %s\n", what, d.summary(t))
			}
			note("created")
			for _, h := range story.then {
				h.do(d)
				note(h.name)
			}
			fmt.Fprintf(&record, "calls\n    %s\n", strings.Join(d.server.journal, "\n    "))
			path := filepath.Join("testdata", strings.NewReplacer(" ", "_", ",", "").Replace(name)+".golden")
			if *update {
				if err := os.MkdirAll("testdata", 0o750); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(record.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), record.String()); diff != "" {
				t.Errorf("run with -update if this is meant; -want +got:\n%s", diff)
			}
		})
	}
}

// timed are the parts of a summary that depend on the order: a rollout is paused only if it fails before it is
// complete, and a release that is replaced before it began has no attempt.
var timed = regexp.MustCompile(`(paused=\w+|attempt=\d+) `)

// TestInterleavings runs each story with many random orders of its actors: reconcilers, callbacks of the server, the
// cluster, stale views, and status writes that are lost. The end is always the same.
func TestInterleavings(t *testing.T) {
	for name, story := range stories() {
		t.Run(name, func(t *testing.T) {
			ends := map[string][]uint64{}
			for seed := range uint64(150) {
				d := story.begin()
				d.scramble(t, story.then, rand.New(rand.NewPCG(seed, 42)))
				d.Run(t, 2*time.Hour)
				end := timed.ReplaceAllString(d.summary(t), "")
				if _, blocked := d.stored.Labels[v1alpha1.SuspendLabel]; d.stored.Paused && !blocked {
					t.Errorf("seed %d: paused without a block", seed)
				}
				ends[end] = append(ends[end], seed)
			}
			if len(ends) != 1 {
				for end, seeds := range ends {
					t.Errorf("%d runs (seed %d first) end as\n    %s", len(seeds), seeds[0], end)
				}
			}
		})
	}
}

// scramble runs the actors in a random order until everything has happened.
func (d *defended) scramble(t *testing.T, then []happening, random *rand.Rand) {
	t.Helper()
	for step := 0; len(then) > 0; step++ {
		if step > 5000 {
			t.Fatal("nothing changes, and it is not over")
		}
		switch random.IntN(8) {
		case 0:
			then[0].do(d)
			then = then[1:]
		case 1:
			d.flush()
		case 2:
			d.Crash()
		case 3:
			d.Stale()
		case 4:
			d.Fresh()
		case 5:
			d.Step()
		case 6:
			d.turn()
		case 7:
			d.Later(time.Duration(random.IntN(1500)) * time.Millisecond)
		}
	}
	d.Fresh()
}
