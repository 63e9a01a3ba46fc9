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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func evicting(onDelete bool, unavailable string) workload.Pace {
	return workload.Pace{ByEviction: true, OnDelete: onDelete, MaxUnavailable: unavailable}
}

func TestBeginByEviction(t *testing.T) {
	for name, c := range map[string]struct {
		own  workload.Pace
		held bool
	}{
		"rolling":                           {evicting(false, "1"), true},
		"a user's OnDelete":                 {evicting(true, ""), false},
		"a user's OnDelete beside a number": {evicting(true, "1"), false},
		"a surge":                           {workload.Pace{ByEviction: true, MaxUnavailable: "0", MaxSurge: "1"}, false},
	} {
		h := testSteps.Begin(2, c.own, v1alpha1.HoldEveryBatch, time.Hour, Wave{5, 1})
		if c.held != (h != nil) || h != nil && (h.Set != evicting(true, "1") || h.Pace != c.own) {
			t.Errorf("%s: it is held as %+v", name, h)
		}
	}
}

func TestParseHeldByEviction(t *testing.T) {
	whole := &workload.Hold{Release: 7, Until: v1alpha1.HoldFirstBatch, Pace: evicting(false, "10%"), Set: evicting(true, "10%")}
	want := `{"release":7,"until":"FirstBatch","type":"RollingUpdate","maxUnavailable":"10%","set":{"type":"OnDelete","maxUnavailable":"10%"}}`
	if got := whole.String(); got != want {
		t.Errorf("it is written as %s, want %s", got, want)
	}
	was := evicting(true, "10%")
	whole.Was, whole.OpenedAt, whole.OpenedTo, whole.Over = &was, 12, 11, true
	if h := workload.ParseHold(whole.String()); h == nil || h.String() != whole.String() || h.Pace != whole.Pace || *h.Was != was {
		t.Errorf("read %+v, want %+v", h, whole)
	}
	mixed := `{"release":7,"until":"FirstBatch","type":"RollingUpdate","maxUnavailable":"1","set":{"partition":3}}`
	if h := workload.ParseHold(mixed); h != nil {
		t.Errorf("%s is read as %+v", mixed, h)
	}
}

// TestKeptByEviction: what a hold with maxUnavailable 1 gives back, and which values are the user's.
func TestKeptByEviction(t *testing.T) {
	h := &workload.Hold{Pace: evicting(false, "1"), Set: evicting(true, "1")}
	halted := evicting(true, "1")
	halted.Halted = true
	surging := func(onDelete bool, unavailable string) workload.Pace {
		p := evicting(onDelete, unavailable)
		p.MaxSurge = "1"
		return p
	}
	for name, c := range map[string]struct {
		is, kept workload.Pace
		own      bool
	}{
		"a surge beside the number": {surging(true, "1"), surging(false, "1"), false},
		"a surge instead":           {surging(true, "0"), surging(false, "0"), false},
		"as it was set":             {evicting(true, "1"), evicting(false, "1"), true},
		"applied again":             {evicting(false, "1"), evicting(false, "1"), true},
		"another number":            {evicting(true, "2"), evicting(false, "2"), false},
		"a user's OnDelete":         {evicting(true, ""), evicting(true, ""), false},
		"halted":                    {halted, halted, true},
	} {
		got := h.Kept(c.is)
		if got != c.kept || h.Own(c.is) != c.own {
			t.Errorf("%s: %+v is kept, own is %t", name, got, h.Own(c.is))
		}
		if got == surging(false, "1") {
			got = evicting(false, "1")
		}
		if fits := h.Fitting(c.kept); fits != got {
			t.Errorf("%s: %+v is accepted", name, fits)
		}
	}
}

// TestDecideEviction: five nodes, of whose pods two may be unavailable. The release began an hour ago, and a wave was
// opened ten minutes ago. By default all pods are old and available.
func TestDecideEviction(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	opened := func(d time.Duration) func(*Input) { return func(in *Input) { in.Hold.OpenedAt = ago(d).Unix() } }
	// current puts a pod of the version onto a node, instead of its old pod.
	current := func(node int, change func(*workload.HeldPod)) func(*Input) {
		return func(in *Input) {
			p := workload.HeldPod{
				Node: fmt.Sprint("n", node), Created: ago(9 * time.Minute), ReadySince: ago(8 * time.Minute), Verified: true,
			}
			if change != nil {
				change(&p)
			}
			in.Pods = append(in.Pods, p)
			in.Old = slices.DeleteFunc(in.Old, func(old workload.Place) bool { return old.Node == p.Node })
		}
	}
	old := func(node int, change func(*workload.Place)) func(*Input) {
		return func(in *Input) {
			for i := range in.Old {
				if in.Old[i].Node == fmt.Sprint("n", node) {
					change(&in.Old[i])
				}
			}
		}
	}
	gone := func(node int) func(*Input) {
		return func(in *Input) {
			in.Old = slices.DeleteFunc(in.Old, func(p workload.Place) bool { return p.Node == fmt.Sprint("n", node) })
		}
	}
	four := func(in *Input) {
		for node := range 4 {
			current(node, nil)(in)
		}
	}
	unverified := func(p *workload.HeldPod) { p.Verified = false }
	unready := func(p *workload.HeldPod) { p.ReadySince = time.Time{} }
	pending := func(p *workload.HeldPod) { p.ReadySince, p.Verified = time.Time{}, false }
	down := func(p *workload.HeldPod) { p.Down = true }
	overdue := func(p *workload.HeldPod) { p.Created, p.Verified = ago(40*time.Minute), false }
	overduePending := func(p *workload.HeldPod) { overdue(p); p.ReadySince = time.Time{} }
	crashing := func(p *workload.Place) { p.Ready = false }
	young := func(p *workload.Place) { p.ReadySince = ago(time.Second) }
	lost := func(p *workload.Place) { p.Ready, p.Lost = false, true }
	first := func(in *Input) { in.Until = v1alpha1.HoldFirstBatch }
	cached := func(in *Input) { in.Live = false }
	unknown := func(in *Input) { in.Unknown = true }
	one := func(in *Input) { in.MaxUnavailable = 1 }
	never := func(in *Input) { in.Hold.OpenedAt, in.Hold.Replicas = 0, 0 }
	behind := func(in *Input) { in.Behind = true }
	// beside makes the last nodes ones that the workload does not want: they have a taint, or, uncounted, are deleted.
	beside := func(nodes, counted int32) func(*Input) {
		return func(in *Input) { in.Replicas, in.Misscheduled = 5-nodes, counted }
	}
	slow := func(in *Input) { in.MinReady = 10 * time.Minute }
	early := func(p *workload.HeldPod) { p.Created = ago(38 * time.Minute) }
	restarted := func(p *workload.HeldPod) { p.ReadySince = ago(time.Second) }
	unreadySince := func(d time.Duration) func(*workload.HeldPod) {
		return func(p *workload.HeldPod) { overduePending(p); p.UnreadySince = ago(d) }
	}
	lostSince := func(d time.Duration) func(*workload.Place) {
		return func(p *workload.Place) { lost(p); p.UnreadySince = ago(d) }
	}
	lacking := func(in *Input) { in.Lacking = 1 }
	// leaves makes the old pod of a node terminate.
	leaves := func(node int, due time.Duration) func(*Input) {
		return func(in *Input) {
			gone(node)(in)
			in.Leaving = append(in.Leaving, workload.Place{Pod: workload.Pod{Node: fmt.Sprint("n", node), Terminating: true, Deleted: ago(due)}})
		}
	}
	for name, c := range map[string]struct {
		are  []func(*Input)
		want string
	}{
		"the first wave":                      {is(never), "evict o0 o1, open"},
		"not read from the API server":        {is(never, cached), "evict o0 o1, open, needs live"},
		"the version is not recorded yet":     {is(never, unknown, func(in *Input) { in.Began = ago(time.Minute) }), "wait"},
		"one pod is evicted so far":           {is(gone(0)), "wait for 1 missing"},
		"not verified":                        {is(current(0, nil), current(1, unverified)), "wait for 1"},
		"the wave is verified":                {is(current(0, nil), current(1, nil)), "evict o2 o3, open"},
		"verified, and not Ready now":         {is(current(0, nil), current(1, unready)), "wait for 1"},
		"verified, and its node is not Ready": {is(current(0, nil), current(1, down)), "wait for 1, down n1"},
		"its kubelet never saw it":            {is(current(0, nil), current(1, pending)), "wait for 1"},
		"its kubelet never saw it, and its time is over": {
			is(opened(39*time.Minute), current(0, nil), current(1, overduePending)), "evict o2, open, 1 ran out"},
		"its node is down, and its time is over": {
			is(opened(39*time.Minute), current(0, nil), current(1, func(p *workload.HeldPod) { overdue(p); down(p) })),
			"evict o2, open, 1 ran out, down n1"},
		"it is the only one that may be unavailable": {
			is(one, opened(39*time.Minute), current(0, overduePending)), "stuck, 1 ran out"},
		"Ready, and its time is over": {is(opened(39*time.Minute), current(0, nil), current(1, overdue)), "evict o2 o3, open, 1 ran out"},
		"its time was over before": {
			is(func(in *Input) { in.Hold.OpenedTo = ago(time.Minute).Unix() }, current(0, nil), current(1, overdue)), "evict o2 o3, open"},
		"a pod that is refused":       {is(opened(39*time.Minute), lacking, current(0, early), gone(1)), "evict o2, open"},
		"an old pod is not available": {is(never, old(3, crashing)), "evict o3 o0, open"},
		"an old pod became Ready just now": {
			is(never, func(in *Input) { in.MinReady = 5 * time.Second }, old(3, young)), "evict o3 o0, open"},
		"three old pods are not available":           {is(never, old(2, crashing), old(3, crashing), old(4, crashing)), "evict o2 o3, open"},
		"an old pod is on an unreachable node":       {is(never, old(0, lost)), "evict o1, open, down n0"},
		"as many as may be are on unreachable nodes": {is(opened(time.Minute), old(0, lost), old(1, lost)), "wait, down n0 n1"},
		"they are for too long":                      {is(opened(31*time.Minute), old(0, lost), old(1, lost)), "stuck, down n0 n1"},
		"only pods on unreachable nodes are left": {
			is(four, old(4, lost)), "done, down n4"},
		"all are verified":                      {is(four, current(4, nil)), "done"},
		"the last one is missing":               {is(four, gone(4)), "wait for 1 missing"},
		"the first wave is verified":            {is(first, current(0, nil), current(1, nil)), "done"},
		"the first wave is verified, as cached": {is(first, cached, current(0, nil), current(1, nil)), "done, needs live"},
		"a node came before the first wave":     {is(first, never, current(0, nil)), "evict o1 o2, open"},
		"a node came before it was evicted": {
			is(first, func(in *Input) { in.Replicas = 6 }, current(5, nil)), "evict o0 o1, open"},
		"a node came when one was evicted": {
			is(first, func(in *Input) { in.Replicas = 6 }, current(5, nil), current(0, nil)), "evict o1, open"},
		"the nodes of the first wave went": {
			is(first, gone(0), gone(1), func(in *Input) { in.Replicas = 3 }), "evict o2 o3"},
		"pods on nodes with a taint":            {is(one, never, beside(3, 3)), "evict o0, open"},
		"the last wave is not back beside them": {is(one, beside(1, 1), gone(0)), "wait for 1 missing"},
		"the last wave is not there beside them": {
			is(one, beside(1, 1), leaves(0, 0)), "wait for 1 missing"},
		"one of them takes the place of a pod": {
			is(one, opened(39*time.Minute), beside(1, 1), current(0, overduePending)), "stuck, 1 ran out"},
		"one pod more than nodes":                    {is(one, beside(1, 0)), "wait"},
		"one pod more than nodes, for long":          {is(one, opened(31*time.Minute), beside(1, 0)), "evict o0, open"},
		"a node is deleted while a pod terminates":   {is(one, beside(1, 0), leaves(0, 0)), "wait"},
		"a node is deleted while a pod is missing":   {is(one, beside(1, 0), lacking, gone(0)), "wait"},
		"a node is deleted, a pod missing, for long": {is(one, opened(31*time.Minute), beside(1, 0), lacking, gone(0)), "stuck"},
		"more are unavailable than may be":           {is(one, opened(39*time.Minute), old(0, lost), old(1, lost)), "stuck, down n0 n1"},
		"a new pod restarted just now":               {is(slow, one, current(0, restarted)), "wait"},
		"a new pod restarted, and one more may":      {is(slow, current(0, restarted)), "evict o1, open"},
		"the version is never recorded":              {is(never, unknown, func(in *Input) { in.Began = ago(31 * time.Minute) }), "stuck"},
		"it is never recorded, as cached":            {is(never, unknown, cached), "stuck, needs live"},
		"the status is of an earlier generation":     {is(opened(39*time.Minute), behind), "wait"},
		"a blip long after a wave": {
			is(opened(90*time.Minute), one, current(0, early), gone(1)), "wait for 1 missing"},
		"a pod was deleted long after a wave": {
			is(opened(90*time.Minute), one, current(0, early), leaves(1, time.Minute)), "wait for 1 missing"},
		"it is deleted for long": {
			is(opened(90*time.Minute), one, current(0, early), leaves(1, 31*time.Minute)), "stuck"},
		"a new pod is not Ready since just now": {
			is(opened(90*time.Minute), one, current(0, unreadySince(time.Minute))), "wait, 1 ran out"},
		"nodes went long after a wave": {
			is(opened(90*time.Minute), old(0, lostSince(time.Minute)), old(1, lost)), "wait, down n0 n1"},
		"opened, and nothing was evicted": {is(opened(time.Minute)), "evict o0 o1"},
		"refused for long":                {is(opened(20 * time.Minute)), "evict o0 o1, open"},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{
				Now: now, Until: v1alpha1.HoldEveryBatch, AtMost: 30 * time.Minute, Replicas: 5,
				Hold: &workload.Hold{
					Release: 2, Pace: evicting(false, "2"), Set: evicting(true, "2"), OpenedAt: ago(10 * time.Minute).Unix(), Replicas: 3,
				},
				Nodes: Nodes{MaxUnavailable: 2, Began: ago(time.Hour), Live: true},
			}
			for i := range 5 {
				pod := workload.Pod{
					Name: fmt.Sprint("o", i), Node: fmt.Sprint("n", i), Ready: true, Created: ago(24 * time.Hour), ReadySince: ago(20 * time.Hour),
				}
				in.Old = append(in.Old, workload.Place{Pod: pod})
			}
			for _, change := range c.are {
				change(&in)
			}
			plan := Decide(in)
			if got := describePlan(&plan); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if waits := strings.HasPrefix(c.want, "wait"); waits != (plan.Again > 0 && !plan.Done && len(plan.Evict) == 0) {
				t.Errorf("again in %s: %+v", plan.Again, plan)
			}
		})
	}
}

func is(changes ...func(*Input)) []func(*Input) { return changes }

func describePlan(p *Plan) string {
	said := []string{}
	add := func(is bool, what string) {
		if is {
			said = append(said, what)
		}
	}
	var names []string
	for i := range p.Evict {
		names = append(names, p.Evict[i].Name)
	}
	add(len(names) > 0, "evict "+strings.Join(names, " "))
	add(p.Opens && p.Set != nil && p.Set.OpenedAt > 0, "open")
	add(p.Done, "done")
	add(p.Stuck, "stuck")
	switch {
	case len(said) > 0:
	case p.Waiting > 0:
		add(true, fmt.Sprintf("wait for %d", p.Waiting))
	case p.Missing > 0:
		add(true, fmt.Sprintf("wait for %d missing", p.Missing))
	default:
		add(true, "wait")
	}
	add(p.RanOut > 0, fmt.Sprintf("%d ran out", p.RanOut))
	slices.Sort(p.Down)
	add(len(p.Down) > 0, "down "+strings.Join(p.Down, " "))
	add(p.NeedsLive, "needs live")
	return strings.Join(said, ", ")
}
