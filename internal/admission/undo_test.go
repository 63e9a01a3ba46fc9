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

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// makeFailed is makeBlocked because of release 4 of v1, with the history v0 and v2; the request releases v2 again.
func makeFailed() *admissionWrapper {
	w := makeBlocked().bothAnnotations(v1alpha1.SuspendedByAnnotation, "v1 4").release()
	w.Now = testNow
	w.Past = &rollback.Past{
		History: []workload.Revision{{Name: "r0", Version: "v0", Release: 1}, {Name: "r2", Version: "v2", Release: 2}},
		Changes: []v1alpha1.ChangeWorkload{{
			Spec: v1alpha1.ChangeWorkloadSpec{Reversion: "v1", Release: 4},
			Status: v1alpha1.ChangeWorkloadStatus{Status: v1alpha1.ChangeWorkloadSuspend, ObservedRelease: 4,
				DefenseCheckFailPods: []v1alpha1.PodResult{{PodInfo: v1alpha1.PodInfo{Pod: "sleep-1"}, Verdict: "unpass", Message: "find error"}}},
		}},
	}
	return w
}

func (w *admissionWrapper) past(change func(*rollback.Past)) *admissionWrapper {
	change(w.Past)
	return w
}

func (w *admissionWrapper) state(s v1alpha1.ChangeWorkloadStatusType) *admissionWrapper {
	return w.past(func(p *rollback.Past) { p.Changes[0].Status.Status = s })
}

// halted makes the operator pause the workload because of a version.
func (w *admissionWrapper) halted(version string) *admissionWrapper {
	return w.paused(true, true).bothAnnotations(v1alpha1.HaltedAnnotation, version)
}

// restored sets the workload back to v1 from v0, and blocks it because of v0.
func (w *admissionWrapper) restored() *admissionWrapper {
	left := rollback.ParseQuarantine(nil, testNow).With("v0",
		rollback.QuarantineReason{Cause: v1alpha1.ReasonRollbackRequested, Release: 3, To: "v1"})
	left.Annotate(w.Old.Annotations)
	left.Annotate(w.New.Annotations)
	return w.bothAnnotations(v1alpha1.SuspendedByAnnotation, "v0 3 record")
}

// unblocked removes the block of makeFailed.
func (w *admissionWrapper) unblocked() *admissionWrapper {
	for _, o := range []*Object{&w.Old, &w.New} {
		delete(o.Labels, v1alpha1.SuspendLabel)
		delete(o.Annotations, v1alpha1.SuspendedByAnnotation)
	}
	return w
}

// mutated returns the new object after mutation.
func mutated(w *admissionWrapper) Object {
	o := w.New
	o.Labels, o.Annotations, o.TemplateLabels = cloned(o.Labels), cloned(o.Annotations), cloned(o.TemplateLabels)
	for _, c := range Mutate(w.Request) {
		m := map[Target]map[string]string{WorkloadLabel: o.Labels, WorkloadAnnotation: o.Annotations, TemplateLabel: o.TemplateLabels}[c.Target]
		switch {
		case c.Target == WorkloadPaused:
			o.Paused = false
		case c.Remove:
			delete(m, c.Key)
		default:
			m[c.Key] = c.Value
		}
	}
	return o
}

func TestUndo(t *testing.T) {
	for name, test := range map[string]struct {
		request *admissionWrapper
		// denied is the message of validation after mutation; back reports whether the request is an undo.
		denied, back bool
	}{
		"to the last good version": {request: makeFailed(), back: true},
		"to an older one": {request: makeFailed().past(func(p *rollback.Past) { p.History[0].Version, p.History[1].Version = "v2", "v0" }),
			back: true},
		"to a baseline": {request: makeFailed().past(func(p *rollback.Past) {
			p.History = []workload.Revision{{Version: "v2", Release: rollback.BaselineRelease}}
		}), back: true},
		"halted, too":                      {request: makeFailed().halted("v1"), back: true},
		"halted, the block lifted by hand": {request: makeFailed().halted("v1").unblocked(), back: true},
		"blocked by an earlier failure":    {request: makeFailed().bothAnnotations(v1alpha1.SuspendedByAnnotation, "v0 3"), back: true},
		"to a version that never succeeded": {request: makeFailed().past(func(p *rollback.Past) {
			p.History = p.History[:1]
		}), denied: true},
		"to one in quarantine":      {request: makeFailed().bothAnnotations(v1alpha1.QuarantinedAnnotation, "v2"), denied: true},
		"while the release goes on": {request: makeFailed().state(v1alpha1.ChangeWorkloadRunning), denied: true},
		"after its success":         {request: makeFailed().state(v1alpha1.ChangeWorkloadSuccess), denied: true},
		"past a user's block": {request: makeFailed().lose(v1alpha1.SuspendedByAnnotation).oldLoses(v1alpha1.SuspendedByAnnotation),
			denied: true},
		"past a user's block, while halted": {
			request: makeFailed().halted("v1").lose(v1alpha1.SuspendedByAnnotation).oldLoses(v1alpha1.SuspendedByAnnotation), denied: true},
		"the caches do not say anything": {request: makeFailed().unknown(), denied: true},
		"the cache lacks the record":     {request: makeFailed().past(func(p *rollback.Past) { p.Changes = nil }), denied: true},
		"the record is of an earlier one": {request: makeFailed().past(func(p *rollback.Past) { p.Changes[0].Spec.Release = 3 }),
			denied: true},
		"the record is not at this one yet": {request: makeFailed().past(func(p *rollback.Past) { p.Changes[0].Status.ObservedRelease = 3 }),
			denied: true},
		"the record goes": {request: makeFailed().past(func(p *rollback.Past) { p.Changes[0].DeletionTimestamp = &metav1.Time{Time: testNow} }),
			denied: true},
		"with the block taken off":           {request: makeFailed().lose(v1alpha1.SuspendLabel), denied: true},
		"by an override, which it is then":   {request: makeFailed().label(v1alpha1.IgnoredSuspendLabel, v1alpha1.IgnoredSuspendValue)},
		"neither blocked nor halted":         {request: makeFailed().unblocked()},
		"paused by a user, the block lifted": {request: makeFailed().unblocked().paused(true, true)},
		"opted out":                          {request: makeFailed().label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled)},
		"by the operator itself":             {request: makeFailed().own()},
	} {
		t.Run(name, func(t *testing.T) {
			after := test.request.Request
			after.New = mutated(test.request)
			if verdict := Validate(after); verdict.Allowed == test.denied {
				t.Errorf("%+v, want denied %t", verdict, test.denied)
			}
			if again := Mutate(after); len(again) != 0 {
				t.Errorf("mutated again: %+v", again)
			}
			if test.back && after.IsChecked() {
				t.Error("policies are asked about an undo")
			}
			if got := test.request.GoesBack(); got != test.back {
				t.Errorf("undo %t, want %t", got, test.back)
			}
			why, held := rollback.ParseQuarantine(after.New.Annotations, testNow).Reason("v1")
			if held != test.back {
				t.Errorf("in quarantine %t, want %t", held, test.back)
			}
			if !test.back {
				return
			}
			want := rollback.QuarantineReason{Time: "2026-03-04T05:06:07Z", Pod: "sleep-1", Cause: v1alpha1.ReasonVerificationFailed,
				Reason: "unpass", Message: "find error",
				Release: 4, To: "v2", By: "jane"}
			if diff := cmp.Diff(want, why); diff != "" {
				t.Errorf("reason -want +got:\n%s", diff)
			}
			if _, halted := after.New.Annotations[v1alpha1.HaltedAnnotation]; after.New.Paused || halted {
				t.Error("still halted")
			}
			// Without mutation it is no undo: nothing would resume the workload.
			if test.request.Old.suspended() && Validate(test.request.Request).Allowed {
				t.Error("passes although mutation was down")
			}
		})
	}
}

func (w *admissionWrapper) oldLoses(key string) *admissionWrapper {
	delete(w.Old.Annotations, key)
	return w
}

func (w *admissionWrapper) unknown() *admissionWrapper { w.Past = nil; return w }

func TestWaysOn(t *testing.T) {
	const (
		annotate = "kubectl annotate deployment sleep altershield.defense.antgroup.com/rollback-to=last-success --overwrite -n default"
		again    = ". To undo the release: apply version v2 again, or " + annotate
		back     = ". To undo the release: " + annotate
	)
	for name, test := range map[string]struct {
		request *admissionWrapper
		want    string
	}{
		"failed":         {makeFailed(), again},
		"halted":         {makeFailed().halted("v1"), again},
		"a user's block": {makeFailed().lose(v1alpha1.SuspendedByAnnotation).oldLoses(v1alpha1.SuspendedByAnnotation), back},
		"restored, where waiting is enough": {makeFailed().restored(),
			". Or wait: version v1 is being restored, and the block ends when its rollout is complete"},
		"restored, and failed itself":   {makeFailed().restored().bothAnnotations(v1alpha1.SuspendedByAnnotation, "v1 4 record"), again},
		"restored, and blocked by hand": {makeFailed().restored().oldLoses(v1alpha1.SuspendedByAnnotation), back},
		"nothing to go to":              {makeFailed().past(func(p *rollback.Past) { p.History = nil }), ""},
		"all in quarantine":             {makeFailed().bothAnnotations(v1alpha1.QuarantinedAnnotation, "v0,v2"), ""},
		"nothing known":                 {makeFailed().unknown(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := test.request.Request
			r.New.Version = "v3"
			verdict := Validate(r)
			_, ways, _ := strings.Cut(verdict.Message, "=true --overwrite -n default")
			if verdict.Allowed || ways != test.want {
				t.Errorf("%+v\nwant %s", verdict, test.want)
			}
			if len(verdict.Message) > 1024 {
				t.Errorf("%d characters", len(verdict.Message))
			}
		})
	}
}

func TestUnquarantine(t *testing.T) {
	quarantined := func() *admissionWrapper {
		w := makeUpdate()
		q := rollback.ParseQuarantine(nil, testNow).With("v2",
			rollback.QuarantineReason{Cause: v1alpha1.ReasonNeverStarted, Release: 2}).With("v3",
			rollback.QuarantineReason{Cause: v1alpha1.ReasonNeverStarted, Release: 3})
		q.Annotate(w.Old.Annotations)
		q.Annotate(w.New.Annotations)
		return w
	}
	for name, test := range map[string]struct {
		request  *admissionWrapper
		held     []string
		recorded string
	}{
		"one version": {quarantined().annotation(v1alpha1.UnquarantineAnnotation, " v2"), []string{"v3"},
			`{"asked":"v2","ended":["v2"],"user":"jane","resourceVersion":"77"}`},
		"all": {quarantined().annotation(v1alpha1.UnquarantineAnnotation, "all"), nil,
			`{"asked":"all","ended":["v2","v3"],"user":"jane","resourceVersion":"77"}`},
		"no such version": {quarantined().annotation(v1alpha1.UnquarantineAnnotation, "v9"), []string{"v2", "v3"},
			`{"asked":"v9","user":"jane","resourceVersion":"77"}`},
		"set while we slept": {quarantined().bothAnnotations(v1alpha1.UnquarantineAnnotation, "v2"), []string{"v3"},
			`{"asked":"v2","ended":["v2"],"user":"unknown","resourceVersion":"77"}`},
		"with a template": {quarantined().annotation(v1alpha1.UnquarantineAnnotation, "all").release(), []string{"v2", "v3"}, ""},
		"a record is forged": {quarantined().annotation(v1alpha1.UnquarantinedAnnotation, `{"asked":"all","user":"root"}`),
			[]string{"v2", "v3"}, ""},
		"an earlier record": {quarantined().annotation(v1alpha1.UnquarantinedAnnotation, `{"asked":"all","user":"root","resourceVersion":"76"}`),
			[]string{"v2", "v3"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			after := mutated(test.request)
			again := test.request.Request
			again.New = after
			if changes := Mutate(again); len(changes) > 0 {
				t.Error("called again for the same request it changes", changes)
			}
			if _, left := after.Annotations[v1alpha1.UnquarantineAnnotation]; left {
				t.Error("not consumed")
			}
			if got := after.Annotations[v1alpha1.UnquarantinedAnnotation]; got != test.recorded {
				t.Errorf("recorded %s, want %s", got, test.recorded)
			}
			q := rollback.ParseQuarantine(after.Annotations, testNow)
			if diff := cmp.Diff(test.held, q.Versions); diff != "" {
				t.Errorf("in quarantine -want +got:\n%s", diff)
			}
			u, ok := rollback.ParseUnquarantined(test.recorded)
			for _, version := range u.Ended {
				if !q.Overridden(version) {
					t.Errorf("version %s does not count as overridden", version)
				}
			}
			if ok && !strings.Contains(u.Describe(), u.User) {
				t.Errorf("described as %q", u.Describe())
			}
		})
	}
	created := makeCreate().annotation(v1alpha1.UnquarantineAnnotation, "all").annotation(v1alpha1.UnquarantinedAnnotation, "x")
	for key := range mutated(created).Annotations {
		if key != v1alpha1.ReleaseAnnotation && key != v1alpha1.ReleasedByAnnotation {
			t.Errorf("created with %s", key)
		}
	}
}
