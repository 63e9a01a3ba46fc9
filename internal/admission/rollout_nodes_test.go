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

package admission

import (
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/hold"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// TestMutateOnDelete: the changes of admission to the update strategy of a DaemonSet.
func TestMutateOnDelete(t *testing.T) {
	of := func(onDelete bool, unavailable string) workload.Pace {
		return workload.Pace{ByEviction: true, OnDelete: onDelete, MaxUnavailable: unavailable}
	}
	surging := func(onDelete bool, unavailable string) workload.Pace {
		p := of(onDelete, unavailable)
		p.MaxSurge = "1"
		return p
	}
	rolls, stays, users := of(false, "1"), of(true, "1"), of(true, "")
	halts := stays
	halts.Halted = true
	held := testSteps.Begin(4, rolls, v1alpha1.HoldEveryBatch, time.Hour, hold.Wave{})
	heldAs := func(to workload.Pace) *admissionWrapper {
		return makeUpdate().pacing(stays, to).bothAnnotations(v1alpha1.HeldAnnotation, held.String())
	}
	halted := func() *admissionWrapper {
		w := makeUpdate().pacing(halts, halts).bothAnnotations(v1alpha1.HaltedAnnotation, "v0")
		w.Old.Paused, w.New.Paused = true, true
		return w
	}
	// unseen is a request without the status, which has the number of nodes.
	unseen := func(w *admissionWrapper) *admissionWrapper { w.New.Pacing.Replicas = 0; return w }
	back := []workload.Revision{{Version: "v2"}}
	for name, c := range map[string]struct {
		request *admissionWrapper
		want    workload.Pace
		held    int64
		end     string
	}{
		"a release that is to be held":     {makeUpdate().pacing(rolls, rolls).wantsHold().release(), stays, 5, ""},
		"in a request without a status":    {unseen(makeUpdate().pacing(rolls, rolls).wantsHold().release()), stays, 5, ""},
		"not asked for":                    {makeUpdate().pacing(rolls, rolls).release(), rolls, 0, ""},
		"a version that succeeded before":  {makeUpdate().pacing(rolls, rolls).wantsHold(back...).release(), rolls, 0, ""},
		"a user's OnDelete":                {makeUpdate().pacing(users, users).wantsHold().release(), users, 0, ""},
		"a user's OnDelete, and a number":  {makeUpdate().pacing(stays, stays).wantsHold().release(), stays, 0, ""},
		"over what was halted":             {halted().wantsHold().release(), stays, 5, ""},
		"over what was halted, not held":   {halted().release(), rolls, 0, ""},
		"a release while one is held":      {heldAs(stays).wantsHold().release(), stays, 5, ""},
		"a release, applied with its type": {heldAs(rolls).wantsHold().release(), stays, 5, ""},
		"a release, with another number":   {heldAs(of(false, "2")).wantsHold().release(), of(true, "2"), 5, ""},
		"a release, turning to OnDelete":   {heldAs(users).wantsHold().release(), users, 0, ""},
		"an undo":                          {heldAs(stays).wantsHold(back...).release(), rolls, 0, ""},
		"something else":                   {heldAs(stays).annotation("a", "b"), stays, 4, ""},
		"losing what is known of the hold": {heldAs(stays).lose(v1alpha1.HeldAnnotation), stays, 4, ""},
		"applying what was before":         {heldAs(rolls), stays, 4, ""},
		"giving back, with an override":    {heldAs(rolls).label(v1alpha1.IgnoredSuspendLabel, "true"), rolls, 0, "4 EditedByUser jane"},
		"another number":                   {heldAs(of(true, "2")), of(false, "2"), 0, "4 EditedByUser jane"},
		"another number, and its type":     {heldAs(of(false, "2")), of(false, "2"), 0, "4 EditedByUser jane"},
		"a surge beside the number":        {heldAs(surging(true, "1")), surging(false, "1"), 0, "4 EditedByUser jane"},
		"a surge instead, and its type":    {heldAs(surging(false, "0")), surging(false, "0"), 0, "4 EditedByUser jane"},
		"a release, with a surge":          {heldAs(surging(false, "0")).wantsHold().release(), surging(false, "0"), 0, ""},
		"turning to OnDelete":              {heldAs(users), users, 0, "4 EditedByUser jane"},
		"opting out":                       {heldAs(stays).label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled), rolls, 0, ""},
		"the operator evicts":              {heldAs(stays).own().annotation(v1alpha1.HeldAnnotation, held.String()), stays, 4, ""},
		"the operator gives back":          {heldAs(stays).own().annotation(v1alpha1.HeldAnnotation, held.Ending().String()), rolls, 0, ""},
		"the operator gives back a surge": {
			heldAs(surging(true, "1")).own().annotation(v1alpha1.HeldAnnotation, held.Ending().String()), rolls, 0, ""},
		"the operator halts, and gives back": {heldAs(halts).own().annotation(v1alpha1.HeldAnnotation, held.Ending().String()), halts, 0, ""},
		"the operator rolls back":            {heldAs(stays).own().release(), rolls, 0, ""},
		"the operator holds late": {
			makeUpdate().own().pacing(rolls, rolls).annotation(v1alpha1.HeldAnnotation, held.String()), stays, 4, ""},
		"a hold of another kind, copied": {
			makeUpdate().pacing(rolls, rolls).bothAnnotations(v1alpha1.HeldAnnotation, heldAt(4).String()), rolls, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			changes := Mutate(c.request.Request)
			once := admitted(c.request.Request, changes)
			if warns := name == "applying what was before"; warns != strings.HasPrefix(c.request.PutBack(changes), "the rollout stays held") {
				t.Errorf("it warns of %q", c.request.PutBack(changes))
			}
			is := *once.New.Pacing
			if !c.want.Halted {
				is.Halted = false // read from the annotation, which is gone
			}
			if is.Pace != c.want {
				t.Errorf("pace %+v, want %+v", is.Pace, c.want)
			}
			for _, change := range changes {
				if change.Target == WorkloadPaused && c.want.OnDelete {
					t.Errorf("the halt is changed, too: %+v", change)
				}
			}
			h := workload.ParseHold(once.New.Annotations[v1alpha1.HeldAnnotation])
			if h == nil && c.held != 0 || h != nil && (h.Release != c.held || h.OnDelete) {
				t.Errorf("held as %+v, want release %d", h, c.held)
			}
			if h == nil && once.New.Annotations[v1alpha1.HeldAnnotation] != "" {
				t.Errorf("the annotation is left: %s", once.New.Annotations[v1alpha1.HeldAnnotation])
			}
			if end := once.New.Annotations[v1alpha1.HoldEndedAnnotation]; end != c.end {
				t.Errorf("ended %q, want %q", end, c.end)
			}
			// As the next call reads the object.
			once.New.Pacing = &is
			once.New.Paused = is.Users(once.New.Annotations).OnDelete
			if again := Mutate(once); len(again) > 0 {
				t.Errorf("asked again, it changes %+v", again)
			}
		})
	}
}
