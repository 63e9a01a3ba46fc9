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
	"math"
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/hold"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// pacing sets the pace of both objects, and of the request.
func (w *admissionWrapper) pacing(stored, asked workload.Pace) *admissionWrapper {
	w.Old.Pacing = &workload.Pacing{Pace: stored, Rolling: true, Replicas: 4}
	w.New.Pacing = &workload.Pacing{Pace: asked, Rolling: true, Replicas: 4}
	return w
}

// enforced sets the owner of both objects, which are defended by a label or not.
func (w *admissionWrapper) enforced(before, after bool) *admissionWrapper {
	w.Old.Owner, w.New.Owner = "prometheus k8s", "prometheus k8s"
	for of, enforced := range map[*Object]bool{&w.Old: before, &w.New: after} {
		of.Labels = cloned(of.Labels)
		if enforced {
			of.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseEnforced
		}
	}
	return w
}

// wantsHold sets settings that ask for a hold, and a known history.
func (w *admissionWrapper) wantsHold(history ...workload.Revision) *admissionWrapper {
	w.Hold = &WantedHold{Until: v1alpha1.HoldEveryBatch, AtMost: 30 * time.Minute, Times: testSteps}
	w.Past = &rollback.Past{History: history}
	return w
}

// heldSince holds the workload since its release 4.
func (w *admissionWrapper) heldSince() *admissionWrapper {
	return w.bothAnnotations(v1alpha1.HeldAnnotation, heldAt(4).String())
}

// admitted returns the new object with the changes of admission.
func admitted(r Request, changes []Change) Request {
	r.New.Labels, r.New.Annotations, r.New.TemplateLabels = cloned(r.New.Labels), cloned(r.New.Annotations), cloned(r.New.TemplateLabels)
	for _, c := range changes {
		m := map[Target]map[string]string{
			WorkloadLabel: r.New.Labels, WorkloadAnnotation: r.New.Annotations, TemplateLabel: r.New.TemplateLabels,
		}[c.Target]
		switch {
		case c.Target == WorkloadPaused:
			r.New.Paused = !c.Remove
		case c.Target == WorkloadPace:
			pacing := *r.New.Pacing
			pacing.Pace = c.Pace
			r.New.Pacing = &pacing
		case c.Remove:
			delete(m, c.Key)
		default:
			m[c.Key] = c.Value
		}
	}
	return r
}

func TestMutateHold(t *testing.T) {
	edited := workload.Pace{MinReadySeconds: 7, ProgressDeadlineSeconds: 2400}
	ending := heldAt(4).Ending().String()
	opened := *heldAt(4)
	opened.Set, opened.Was = workload.Pace{MinReadySeconds: 90, ProgressDeadlineSeconds: 2400}, &raisedPace
	for name, c := range map[string]struct {
		request *admissionWrapper
		pace    workload.Pace
		// held is the release that is held; 0 for none. own are the user's values.
		held int64
		own  workload.Pace
		end  string
	}{
		"a release that is to be held": {makeUpdate().pacing(usersPace, usersPace).wantsHold().release(),
			raisedPace, 5, usersPace, ""},
		"not asked for": {makeUpdate().pacing(usersPace, usersPace).release(), usersPace, 0, workload.Pace{}, ""},
		"one with a value of its own": {makeUpdate().pacing(workload.Pace{ProgressDeadlineSeconds: 600}, usersPace).wantsHold().release(),
			raisedPace, 5, usersPace, ""},
		"a version that succeeded before": {makeUpdate().pacing(usersPace, usersPace).wantsHold(workload.Revision{Version: "v2"}).release(),
			usersPace, 0, workload.Pace{}, ""},
		"no release": {makeUpdate().pacing(usersPace, usersPace).wantsHold().annotation("a", "b"), usersPace,
			0, workload.Pace{}, ""},
		"a release while one is held": {makeUpdate().pacing(raisedPace, raisedPace).heldSince().wantsHold().release(),
			raisedPace, 5, usersPace, ""},
		"a release while one is held, applied": {makeUpdate().pacing(raisedPace, usersPace).heldSince().wantsHold().release(),
			raisedPace, 5, usersPace, ""},
		"a release while one is held, edited": {makeUpdate().pacing(raisedPace, edited).heldSince().wantsHold().release(), raisedPace, 5,
			workload.Pace{MinReadySeconds: 7, ProgressDeadlineSeconds: 600}, ""},
		"a release while one is held, that is not": {makeUpdate().pacing(raisedPace, raisedPace).heldSince().release(), usersPace,
			0, workload.Pace{}, ""},
		"an undo while one is held": {makeUpdate().pacing(raisedPace,
			raisedPace).heldSince().wantsHold(workload.Revision{Version: "v2"}).release(), usersPace, 0, workload.Pace{}, ""},
		"something else while it is held": {makeUpdate().pacing(raisedPace, raisedPace).heldSince().annotation("a", "b"),
			raisedPace, 4, usersPace, ""},
		"losing what is known of the hold": {makeUpdate().pacing(raisedPace, raisedPace).heldSince().lose(v1alpha1.HeldAnnotation),
			raisedPace, 4, usersPace, ""},
		"forging a hold": {makeUpdate().pacing(usersPace, usersPace).annotation(v1alpha1.HeldAnnotation, heldAt(4).String()), usersPace,
			0, workload.Pace{}, ""},
		"applying what was before": {makeUpdate().pacing(raisedPace, usersPace).heldSince(), raisedPace, 4, usersPace, ""},
		"giving back, with an override": {makeUpdate().pacing(raisedPace, usersPace).heldSince().label(v1alpha1.IgnoredSuspendLabel, "true"),
			usersPace, 0, workload.Pace{}, "4 EditedByUser jane"},
		"applying the former values, with a former override": {
			makeUpdate().pacing(raisedPace, usersPace).heldSince().both(v1alpha1.IgnoredSuspendLabel, "true"),
			raisedPace, 4, usersPace, ""},
		"an override alone": {makeUpdate().pacing(raisedPace, raisedPace).heldSince().label(v1alpha1.IgnoredSuspendLabel, "true"),
			raisedPace, 4, usersPace, ""},
		"applying one of it": {makeUpdate().pacing(raisedPace, workload.Pace{MinReadySeconds: 600, ProgressDeadlineSeconds: 600}).heldSince(),
			raisedPace, 4, usersPace, ""},
		"setting another value": {makeUpdate().pacing(raisedPace, edited).heldSince(),
			workload.Pace{MinReadySeconds: 7, ProgressDeadlineSeconds: 600}, 0, workload.Pace{}, "4 EditedByUser jane"},
		"setting another value of both": {
			makeUpdate().pacing(raisedPace, workload.Pace{MinReadySeconds: 7, ProgressDeadlineSeconds: 700}).heldSince(),
			workload.Pace{MinReadySeconds: 7, ProgressDeadlineSeconds: 700}, 0, workload.Pace{}, "4 EditedByUser jane"},
		"opting out": {makeUpdate().pacing(raisedPace, raisedPace).heldSince().label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled), usersPace,
			0, workload.Pace{}, ""},
		"losing the label by which it is defended though owned": {makeUpdate().pacing(raisedPace, raisedPace).heldSince().enforced(true, false),
			usersPace, 0, workload.Pace{}, ""},
		"its owner's write": {makeUpdate().pacing(raisedPace, usersPace).heldSince().enforced(false, false), usersPace,
			0, workload.Pace{}, ""},
		"its owner's write of another value": {makeUpdate().pacing(raisedPace, edited).heldSince().enforced(false, false),
			workload.Pace{MinReadySeconds: 7, ProgressDeadlineSeconds: 600}, 0, workload.Pace{}, ""},
		"its owner's write, defended by a label": {makeUpdate().pacing(raisedPace, usersPace).heldSince().enforced(true, true),
			raisedPace, 4, usersPace, ""},
		"its owner's release": {makeUpdate().pacing(raisedPace, raisedPace).heldSince().enforced(false, false).release(), usersPace,
			0, workload.Pace{}, ""},
		"the operator lets pods become available": {makeUpdate().own().pacing(raisedPace,
			raisedPace).heldSince().annotation(v1alpha1.HeldAnnotation, opened.String()), opened.Set, 4, usersPace, ""},
		"the operator gives back": {makeUpdate().own().pacing(raisedPace, raisedPace).heldSince().annotation(v1alpha1.HeldAnnotation, ending),
			usersPace, 0, workload.Pace{}, ""},
		"the operator holds late": {makeUpdate().own().pacing(usersPace, usersPace).annotation(v1alpha1.HeldAnnotation, heldAt(4).String()),
			raisedPace, 4, usersPace, ""},
		"the operator, where a user was past admission": {makeUpdate().own().pacing(edited, edited).heldSince().annotation("a", "b"),
			edited, 4, usersPace, ""},
		"the operator rolls back": {makeUpdate().own().pacing(raisedPace, raisedPace).heldSince().release(), usersPace,
			0, workload.Pace{}, ""},
		"a hold that was to end": {makeUpdate().pacing(raisedPace, raisedPace).bothAnnotations(v1alpha1.HeldAnnotation, ending), usersPace,
			0, workload.Pace{}, ""},
		"creating from what was held": {
			func() *admissionWrapper {
				w := makeCreate().annotation(v1alpha1.HeldAnnotation, heldAt(4).String())
				w.New.Pacing = &workload.Pacing{Pace: raisedPace, Rolling: true, Replicas: 4}
				return w
			}(), usersPace, 0, workload.Pace{}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			once := admitted(c.request.Request, Mutate(c.request.Request))
			if again := Mutate(once); len(again) > 0 {
				t.Errorf("asked again, it changes %+v", again)
			}
			if once.New.Pace != c.pace {
				t.Errorf("pace %+v, want %+v", once.New.Pace, c.pace)
			}
			h := workload.ParseHold(once.New.Annotations[v1alpha1.HeldAnnotation])
			switch {
			case h == nil && c.held != 0, h != nil && (h.Release != c.held || h.Pace != c.own):
				t.Errorf("held as %+v, want release %d and the user's %+v", h, c.held, c.own)
			case h == nil && once.New.Annotations[v1alpha1.HeldAnnotation] != "":
				t.Errorf("the annotation is left: %s", once.New.Annotations[v1alpha1.HeldAnnotation])
			}
			if end := once.New.Annotations[v1alpha1.HoldEndedAnnotation]; end != c.end {
				t.Errorf("ended %q, want %q", end, c.end)
			}
			used := once.New.Annotations[v1alpha1.OverrideAnnotation] != ""
			if ends := name == "giving back, with an override"; used != ends || used && once.New.Labels[v1alpha1.IgnoredSuspendLabel] != "" {
				t.Errorf("the override is used up: %t", used)
			}
		})
	}
}

// TestNotHeldByAdmission: for rollouts that cannot be held, no hold is requested or made.
func TestNotHeldByAdmission(t *testing.T) {
	base := func() *admissionWrapper { return makeUpdate().pacing(usersPace, usersPace).wantsHold().release() }
	for name, w := range map[string]*admissionWrapper{
		"from nothing":        func() *admissionWrapper { w := base(); w.Old.Replicas = 0; return w }(),
		"to nothing":          func() *admissionWrapper { w := base(); w.New.Replicas = 0; return w }(),
		"not rolling":         func() *admissionWrapper { w := base(); w.New.Rolling = false; return w }(),
		"the operator":        base().own(),
		"opted out":           base().label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled),
		"of a kind without":   func() *admissionWrapper { w := base(); w.New.Pacing, w.Old.Pacing = nil, nil; return w }(),
		"no release":          makeUpdate().pacing(usersPace, usersPace).wantsHold(),
		"with unknown past":   func() *admissionWrapper { w := base(); w.Past = nil; return w }(),
		"with an invalid one": func() *admissionWrapper { w := base(); w.New.ProgressDeadlineSeconds = 1; return w }(),
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range Mutate(w.Request) {
				if c.Target == WorkloadPace || c.Key == v1alpha1.HeldAnnotation {
					t.Errorf("it is held: %+v", c)
				}
			}
			asks := name == "with unknown past" || name == "with an invalid one"
			if w.NeedsHold() != asks {
				t.Errorf("it is asked about: %t", !asks)
			}
		})
	}
}

// TestMutatePartition: the changes of admission to the partition of a StatefulSet of four pods, in batches of one.
func TestMutatePartition(t *testing.T) {
	at := partitionAt
	held := testSteps.Begin(4, at(0), v1alpha1.HoldEveryBatch, time.Hour, hold.Wave{Replicas: 4, Batch: 1})
	stepped, second := *held, at(3)
	stepped.Set, stepped.Was = at(2), &second
	heldAs := func(h *workload.Hold, from, to int32) *admissionWrapper {
		return makeUpdate().pacing(at(from), at(to)).bothAnnotations(v1alpha1.HeldAnnotation, h.String())
	}
	halted := func(from string) *admissionWrapper {
		w := makeUpdate().pacing(at(math.MaxInt32), at(math.MaxInt32)).bothAnnotations(v1alpha1.HaltedAnnotation, "v0")
		if from != "" {
			w.bothAnnotations(v1alpha1.HaltedFromAnnotation, from)
		}
		w.Old.Paused, w.New.Paused = true, true
		return w
	}
	for name, c := range map[string]struct {
		request   *admissionWrapper
		partition int32
		held      int64
		own       int32
		end       string
	}{
		"a release that is to be held":          {makeUpdate().pacing(at(0), at(0)).wantsHold().release(), 3, 5, 0, ""},
		"at a user's partition":                 {makeUpdate().pacing(at(2), at(2)).wantsHold().release(), 3, 5, 2, ""},
		"one that sets the partition":           {makeUpdate().pacing(at(0), at(1)).wantsHold().release(), 3, 5, 1, ""},
		"at a partition that keeps all but one": {makeUpdate().pacing(at(3), at(3)).wantsHold().release(), 3, 0, 0, ""},
		"one that a user paused": {makeUpdate().pacing(at(math.MaxInt32), at(math.MaxInt32)).wantsHold().release(),
			math.MaxInt32, 0, 0, ""},
		"not asked for": {makeUpdate().pacing(at(0), at(0)).release(), 0, 0, 0, ""},
		"a version that succeeded before": {makeUpdate().pacing(at(0),
			at(0)).wantsHold(workload.Revision{Version: "v2"}).release(), 0, 0, 0, ""},
		"over what was halted":                 {halted("").wantsHold().release(), 3, 5, 0, ""},
		"over what was halted at a user's":     {halted("2").wantsHold().release(), 3, 5, 2, ""},
		"over what was halted, not held":       {halted("2").release(), 2, 0, 0, ""},
		"a release while one is held":          {heldAs(&stepped, 2, 2).wantsHold().release(), 3, 5, 0, ""},
		"a release while one is held, applied": {heldAs(&stepped, 2, 0).wantsHold().release(), 3, 5, 0, ""},
		"a release while one is held, edited":  {heldAs(&stepped, 2, 1).wantsHold().release(), 3, 5, 1, ""},
		"an undo while one is held":            {heldAs(&stepped, 2, 2).wantsHold(workload.Revision{Version: "v2"}).release(), 0, 0, 0, ""},
		"something else while it is held":      {heldAs(&stepped, 2, 2).annotation("a", "b"), 2, 4, 0, ""},
		"losing what is known of the hold":     {heldAs(&stepped, 2, 2).lose(v1alpha1.HeldAnnotation), 2, 4, 0, ""},
		"applying what was before":             {heldAs(&stepped, 2, 0), 2, 4, 0, ""},
		"giving back, with an override": {heldAs(&stepped, 2, 0).label(v1alpha1.IgnoredSuspendLabel, "true"), 0, 0, 0,
			"4 EditedByUser jane"},
		"writing what was read before": {heldAs(&stepped, 2, 3), 2, 4, 0, ""},
		"setting another":              {heldAs(&stepped, 2, 1), 1, 0, 0, "4 EditedByUser jane"},
		"pausing it":                   {heldAs(&stepped, 2, math.MaxInt32), math.MaxInt32, 0, 0, "4 EditedByUser jane"},
		"turning to OnDelete":          {heldAs(&stepped, 2, workload.NoPartition), workload.NoPartition, 0, 0, "4 EditedByUser jane"},
		"turning to OnDelete with a release": {heldAs(&stepped, 2, workload.NoPartition).wantsHold().release(),
			workload.NoPartition, 0, 0, ""},
		"opting out":                             {heldAs(&stepped, 2, 2).label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled), 0, 0, 0, ""},
		"the operator lets the next be replaced": {heldAs(held, 3, 3).own().annotation(v1alpha1.HeldAnnotation, stepped.String()), 2, 4, 0, ""},
		"the operator gives back": {heldAs(&stepped, 2, 2).own().annotation(v1alpha1.HeldAnnotation, stepped.Ending().String()),
			0, 0, 0, ""},
		"the operator halts, and gives back": {
			heldAs(&stepped, 2, math.MaxInt32).own().annotation(v1alpha1.HeldAnnotation, stepped.Ending().String()), math.MaxInt32, 0, 0, ""},
		"the operator rolls back": {heldAs(&stepped, 2, 2).own().release(), 0, 0, 0, ""},
		"the operator holds late": {makeUpdate().own().pacing(at(0), at(0)).annotation(v1alpha1.HeldAnnotation, held.String()),
			3, 4, 0, ""},
		"a hold of another kind, copied": {makeUpdate().pacing(at(1), at(1)).bothAnnotations(v1alpha1.HeldAnnotation, heldAt(4).String()),
			1, 0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if c.request.Hold != nil {
				c.request.Hold.Batch = 1
			}
			changes := Mutate(c.request.Request)
			once := admitted(c.request.Request, changes)
			if again := Mutate(once); len(again) > 0 {
				t.Errorf("asked again, it changes %+v", again)
			}
			warning := c.request.PutBack(changes)
			warns := name == "applying what was before" || name == "writing what was read before"
			if warns != strings.HasPrefix(warning, "the rollout stays held") {
				t.Errorf("it warns of %q", warning)
			}
			if once.New.Pace != at(c.partition) {
				t.Errorf("pace %+v, want partition %d", once.New.Pace, c.partition)
			}
			h := workload.ParseHold(once.New.Annotations[v1alpha1.HeldAnnotation])
			switch {
			case h == nil && c.held != 0, h != nil && (h.Release != c.held || h.Pace != at(c.own)):
				t.Errorf("held as %+v, want release %d and the user's %d", h, c.held, c.own)
			case h == nil && once.New.Annotations[v1alpha1.HeldAnnotation] != "":
				t.Errorf("the annotation is left: %s", once.New.Annotations[v1alpha1.HeldAnnotation])
			}
			if end := once.New.Annotations[v1alpha1.HoldEndedAnnotation]; end != c.end {
				t.Errorf("ended %q, want %q", end, c.end)
			}
		})
	}
}
