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
	"math"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func partitionAt(p int32) workload.Pace { return workload.Pace{ByPartition: true, Partition: p} }

// TestBeginPartition: a batch of pods is replaced; nothing is held if the batch has all pods.
func TestBeginPartition(t *testing.T) {
	for name, c := range map[string]struct {
		own   int32
		first Wave
		want  int32 // -1 for no hold
	}{
		"one by one":                      {0, Wave{5, 1}, 4},
		"in batches":                      {0, Wave{5, 2}, 3},
		"no size of a batch is known":     {0, Wave{5, 0}, 4},
		"a batch is all pods":             {0, Wave{5, 5}, -1},
		"a batch is more than all pods":   {0, Wave{5, 200}, -1},
		"below it a user keeps some":      {2, Wave{5, 1}, 4},
		"a user keeps more":               {4, Wave{5, 2}, -1},
		"a user keeps all":                {7, Wave{5, 1}, -1},
		"a user paused it":                {math.MaxInt32, Wave{5, 1}, -1},
		"a batch is all that it replaces": {4, Wave{5, 1}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			h := testSteps.Begin(2, partitionAt(c.own), v1alpha1.HoldEveryBatch, time.Hour, c.first)
			switch {
			case h == nil && c.want >= 0:
				t.Error("it is not held")
			case h != nil && (h.Set != partitionAt(c.want) || h.Pace != partitionAt(c.own)):
				t.Errorf("it is held as %+v, want partition %d", h, c.want)
			}
		})
	}
}

func TestParseHeldPartition(t *testing.T) {
	whole := &workload.Hold{Release: 7, Until: v1alpha1.HoldFirstBatch, Pace: partitionAt(0), Set: partitionAt(3)}
	if got, want := whole.String(), `{"release":7,"until":"FirstBatch","partition":0,"set":{"partition":3}}`; got != want {
		t.Errorf("it is written as %s, want %s", got, want)
	}
	was := partitionAt(4)
	whole.Was, whole.OpenedAt, whole.OpenedTo, whole.Over = &was, 12, 11, true
	if h := workload.ParseHold(whole.String()); h == nil || h.String() != whole.String() || h.Pace != whole.Pace || *h.Was != was {
		t.Errorf("read %+v, want %+v", h, whole)
	}
	for _, bad := range []string{
		`{"release":7,"until":"FirstBatch","partition":-1,"set":{"partition":3}}`,
		`{"release":7,"until":"FirstBatch","partition":0,"set":{"minReadySeconds":0,"progressDeadlineSeconds":600}}`,
		`{"release":7,"until":"FirstBatch","minReadySeconds":0,"progressDeadlineSeconds":600,"set":{"partition":3}}`,
		`{"release":7,"until":"FirstBatch","partition":0,"set":{"partition":3},"was":{"minReadySeconds":0,"progressDeadlineSeconds":600}}`,
		`{"release":7,"until":"FirstBatch","partition":0,"set":{"partition":99999999999}}`,
	} {
		if h := workload.ParseHold(bad); h != nil {
			t.Errorf("%s is read as %+v", bad, h)
		}
	}
	// As written before there were partitions.
	text := `{"release":2,"until":"EveryBatch","minReadySeconds":0,"progressDeadlineSeconds":600,` +
		`"set":{"minReadySeconds":600,"progressDeadlineSeconds":1800},"was":{"minReadySeconds":0,"progressDeadlineSeconds":600},` +
		`"openedAt":3,"openedTo":2,"over":true}`
	if h := workload.ParseHold(text); h == nil || h.String() != text {
		t.Errorf("%s is read as %+v", text, h)
	}
	annotations := map[string]string{v1alpha1.HeldAnnotation: whole.String()}
	if usersPace.HoldOf(annotations) != nil || was.HoldOf(annotations) == nil {
		t.Error("a workload has a hold of another kind of workload")
	}
}

// TestDecidePartition: five pods, held at partition 3 in batches of two; the user's partition is 0.
func TestDecidePartition(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	// Pods were created ten minutes ago, and have been Ready for nine.
	pod := func(index int32, verified bool) workload.HeldPod {
		return workload.HeldPod{Index: index, Created: ago(10 * time.Minute), ReadySince: ago(9 * time.Minute), Verified: verified}
	}
	overdue := func(index int32) workload.HeldPod {
		return workload.HeldPod{Index: index, Created: ago(2 * time.Hour), ReadySince: ago(time.Hour)}
	}
	unready := func(index int32, made time.Duration) workload.HeldPod {
		return workload.HeldPod{Index: index, Created: ago(made)}
	}
	pods := func(all ...workload.HeldPod) []workload.HeldPod { return all }
	const stays = -2
	for name, c := range map[string]struct {
		change  func(*Input)
		pods    []workload.HeldPod
		done    bool
		set     int32 // stays for none
		waiting int
		ranOut  int
		again   time.Duration
	}{
		"no pod is created yet":                  {set: stays},
		"one is created":                         {pods: pods(pod(4, false)), set: stays, waiting: 1, again: 20*time.Minute + 5*time.Second},
		"one is verified, the other not created": {pods: pods(pod(4, true)), set: stays},
		"one is verified, the other not": {
			pods: pods(pod(4, true), pod(3, false)), set: stays, waiting: 1, again: 20*time.Minute + 5*time.Second,
		},
		"one of two pods in the same place": {pods: pods(pod(4, true), pod(4, true)), set: stays},
		"one that is recreated": {
			pods: pods(pod(4, true), pod(3, true), unready(4, time.Minute)), set: stays, waiting: 1, again: 29*time.Minute + 5*time.Second,
		},
		"all are verified":                    {pods: pods(pod(4, true), pod(3, true)), set: 1},
		"one below the partition, unverified": {pods: pods(pod(4, true), pod(3, true), pod(1, false)), set: 1},
		"verified pods below do not count":    {pods: pods(pod(4, true), pod(1, true), pod(2, true)), set: stays},
		"a user keeps two": {
			change: func(in *Input) { in.Hold.Partition = 2 }, pods: pods(pod(4, true), pod(3, true)), set: 2,
		},
		"a smaller batch by now": {change: func(in *Input) { in.Batch = 1 }, pods: pods(pod(4, true), pod(3, true)), set: 2},
		"no batches by now":      {change: func(in *Input) { in.Batch = 0 }, pods: pods(pod(4, true), pod(3, true)), set: 2},
		"only the first wave": {
			change: func(in *Input) { in.Until = v1alpha1.HoldFirstBatch }, pods: pods(pod(4, true), pod(3, true)), done: true, set: stays,
		},
		"only the first wave, unverified": {
			change: func(in *Input) { in.Until = v1alpha1.HoldFirstBatch }, pods: pods(pod(4, true), pod(3, false)), set: stays, waiting: 1,
			again: 20*time.Minute + 5*time.Second,
		},
		"only the first wave by now": {change: func(in *Input) { in.Until, in.Hold.OpenedAt = v1alpha1.HoldFirstBatch, ago(time.Minute).Unix() },
			pods: pods(pod(4, true)), done: true, set: stays},
		"the last wave is there": {change: func(in *Input) { in.Hold.Set = in.Hold.Pace },
			pods: pods(pod(4, true), pod(3, true), pod(2, true), pod(1, true)), set: stays},
		"the last wave is verified": {change: func(in *Input) { in.Hold.Set = in.Hold.Pace },
			pods: pods(pod(4, true), pod(3, true), pod(2, true), pod(1, true), pod(0, true)), done: true, set: stays},
		"scaled up": {change: func(in *Input) { in.Replicas = 7 }, pods: pods(pod(4, true), pod(3, true)), set: 5},
		"scaled up, and created": {change: func(in *Input) { in.Replicas = 6 },
			pods: pods(pod(4, true), pod(3, true), pod(5, false)), set: 4, waiting: 1},
		"scaled up where a user keeps all but one": {change: func(in *Input) { in.Replicas, in.Hold.Partition = 6, 5 }, set: 5},
		"scaled up while an older build held it": {change: func(in *Input) { in.Replicas, in.Hold.Replicas = 7, 0 },
			pods: pods(pod(4, true), pod(3, true)), set: stays},
		"scaled down":                 {change: func(in *Input) { in.Replicas = 4 }, pods: pods(pod(4, false), pod(3, true)), set: 1},
		"scaled down below the wave":  {change: func(in *Input) { in.Replicas = 3 }, pods: pods(pod(4, false)), set: 1},
		"scaled down to a batch":      {change: func(in *Input) { in.Replicas = 2 }, set: 0},
		"scaled down to what is kept": {change: func(in *Input) { in.Replicas, in.Hold.Partition = 2, 2 }, done: true, set: stays},
		"its time is over":            {pods: pods(pod(4, true), overdue(3)), set: 1, ranOut: 1},
		"the time of both is over":    {pods: pods(overdue(4), overdue(3)), set: 1, ranOut: 2},
		"the time of one is over": {
			pods: pods(pod(4, false), overdue(3)), set: stays, waiting: 1, ranOut: 1, again: 20*time.Minute + 5*time.Second,
		},
		"its time was over": {
			change: func(in *Input) { in.Hold.OpenedTo = ago(time.Minute).Unix() }, pods: pods(pod(4, true), overdue(3)), set: 1,
		},
		"its time is over, it is unready": {pods: pods(pod(4, true), unready(3, 2*time.Hour)), set: stays, waiting: 1, ranOut: 1},
		"scaled down while it waits": {change: func(in *Input) { in.Replicas = 4 }, pods: pods(pod(3, false)),
			set: 3, waiting: 1, again: 20*time.Minute + 5*time.Second},
		"verified, and not Ready again": {pods: pods(pod(4, true), workload.HeldPod{Index: 3, Created: ago(10 * time.Minute), Verified: true}),
			set: stays, waiting: 1, again: 20*time.Minute + 5*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{
				Now: now, Until: v1alpha1.HoldEveryBatch, AtMost: 30 * time.Minute, MinReady: 5 * time.Second, Times: testSteps, Replicas: 5, Batch: 2,
				Pods: c.pods,
				Hold: testSteps.Begin(2, partitionAt(0), v1alpha1.HoldEveryBatch, 30*time.Minute, Wave{5, 2}),
			}
			if c.change != nil {
				c.change(&in)
			}
			before := *in.Hold
			plan := Decide(in)
			if plan.Done != c.done || plan.Waiting != c.waiting || plan.RanOut != c.ranOut || plan.Again != c.again {
				t.Errorf("plan %+v, want done %t, %d waiting, %d ran out, again in %s", plan, c.done, c.waiting, c.ranOut, c.again)
			}
			switch {
			case plan.Set == nil:
				if c.set != stays {
					t.Errorf("no change, want partition %d", c.set)
				}
			case plan.Set.Set != partitionAt(c.set) || *plan.Set.Was != before.Set || plan.Set.Pace != before.Pace:
				t.Errorf("the hold is %+v, want partition %d", plan.Set, c.set)
			case plan.Opens != (plan.Set.OpenedAt == now.Unix()):
				t.Errorf("pods are opened: %t, and OpenedAt is %d", plan.Opens, plan.Set.OpenedAt)
			default:
				// Decided again from the same pods, as from an old cache.
				in.Hold = plan.Set
				if again := Decide(in); again.Set != nil || again.Done {
					t.Errorf("a wave is opened twice: %+v", again)
				}
			}
			if plan.Set != nil && plan.Set.Partition != before.Partition {
				t.Error("the user's partition is changed")
			}
		})
	}
}

var (
	usersPace = workload.Pace{MinReadySeconds: 5, ProgressDeadlineSeconds: 600}
	testSteps = Times{}.OrDefault()
)
