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
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
)

// readmitted applies a template again that led to the stored one.
func readmitted(w *admissionWrapper) *admissionWrapper {
	return w.bothAnnotations(v1alpha1.AdmittedAnnotation, "v0=v9,v2=v1").release()
}

// TestReadmitted: for mutation, a template that led to the stored one is no release. The rest of the request is about
// the current release.
func TestReadmitted(t *testing.T) {
	quarantine := func(w *admissionWrapper) *admissionWrapper {
		q := rollback.ParseQuarantine(nil, testNow).With("v0", rollback.QuarantineReason{Cause: v1alpha1.ReasonNeverStarted})
		q.Annotate(w.Old.Annotations)
		q.Annotate(w.New.Annotations)
		return w
	}
	lost := []Change{
		setLabel(v1alpha1.VersionLabel, "v1"), setLabel(v1alpha1.DefenseStatusLabel, v1alpha1.DefenseStatusProcessed),
		setAnnotation(v1alpha1.AdmittedAnnotation, "v0=v9,v2=v1"), setAnnotation(v1alpha1.ReleaseAnnotation, "4"), setTemplateLabel("v1"),
	}
	const prefix = v1alpha1.SettingAnnotationPrefix
	for name, test := range map[string]struct {
		request *admissionWrapper
		want    []Change
	}{
		"applied":                {request: readmitted(makeUpdate())},
		"replaced by a manifest": {request: readmitted(makeUpdate()).nothing(), want: lost},
		"with a version label": {request: readmitted(makeUpdate()).templateLabel(v1alpha1.VersionLabel, "v2"),
			want: []Change{setTemplateLabel("v1")}},
		"a baseline":                        {request: readmitted(makeUpdate()).without().loseTemplateLabel()},
		"blocked":                           {request: readmitted(makeBlocked())},
		"blocked, with a label to override": {request: readmitted(makeBlocked()).label(v1alpha1.IgnoredSuspendLabel, "true")},
		"blocked, one from before":          {request: readmitted(makeBlocked()).both(v1alpha1.IgnoredSuspendLabel, "true")},
		"halted": {request: readmitted(makeBlocked()).bothAnnotations(v1alpha1.HaltedAnnotation,
			"v1").paused(true, true)},
		"halted, not blocked": {request: readmitted(makeUpdate()).bothAnnotations(v1alpha1.HaltedAnnotation,
			"v1").paused(true, true)},
		"with a request to roll back": {request: readmitted(makeUpdate()).annotation(v1alpha1.RollbackToAnnotation, "last-success")},
		"with other settings":         {request: readmitted(makeUpdate()).annotation(prefix+"rollback", "disabled")},
		"after a rollback": {request: readmitted(makeUpdate()).bothAnnotations(v1alpha1.ChangeCauseAnnotation,
			rollback.ChangeCausePrefix+"x")},
		"with the end of a quarantine": {
			request: quarantine(readmitted(makeUpdate())).annotation(v1alpha1.UnquarantineAnnotation, "v0"),
			want: []Change{
				setAnnotation(v1alpha1.QuarantineReasonAnnotation, `{"v0":{"time":"","cause":"NeverStarted","release":0,"to":"","overridden":"jane"}}`),
				dropAnnotation(v1alpha1.QuarantinedAnnotation), dropAnnotation(v1alpha1.UnquarantineAnnotation),
				setAnnotation(v1alpha1.UnquarantinedAnnotation, `{"asked":"v0","ended":["v0"],"user":"jane","resourceVersion":"77"}`),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			request := test.request.Request
			got := Mutate(request)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error("changes (-want +got):\n", diff)
			}
			// The API server drops what it drops.
			request.New = applied(request.New, got)
			request.New.Version = request.Old.Version
			if again := Mutate(request); len(again) > 0 {
				t.Error("called again for the same request it changes", again)
			}
			if v := Validate(request); !v.Allowed {
				t.Error("blocked:", v.Message)
			}
			if v := ValidateQuarantine(request); !v.Allowed {
				t.Error("in quarantine:", v.Message)
			}
		})
	}
}

// TestStillReleases: the remembered templates make no difference to these requests.
func TestStillReleases(t *testing.T) {
	const key = v1alpha1.AdmittedAnnotation
	for name, request := range map[string]*admissionWrapper{
		"another template":                 makeUpdate().bothAnnotations(key, "v3=v1").release(),
		"it led elsewhere":                 makeUpdate().bothAnnotations(key, "v2=v3").release(),
		"another led there":                makeUpdate().bothAnnotations(key, "v2").release(),
		"the client says so":               makeUpdate().annotation(key, "v2=v1").release(),
		"the client changes what is there": makeUpdate().bothAnnotations(key, "v3=v1").annotation(key, "v2=v1").release(),
		"the operator's own write":         readmitted(makeUpdate()).own(),
	} {
		t.Run(name, func(t *testing.T) {
			got := applied(request.New, Mutate(request.Request))
			if got.Annotations[v1alpha1.ReleaseAnnotation] != "5" || got.Labels[v1alpha1.VersionLabel] != "v2" || !request.Releases() {
				t.Errorf("no release: %v %v", got.Labels, got.Annotations)
			}
			if got.Annotations[key] != request.Old.Annotations[key] {
				t.Errorf("%q, want what was there: %q", got.Annotations[key], request.Old.Annotations[key])
			}
		})
	}
	if create := makeCreate().annotation(key, "v1="); !create.Releases() {
		t.Error("creating is no release")
	}
}

// TestUndoToAdmitted: a template that led to a good version is an undo, if it leads there again.
func TestUndoToAdmitted(t *testing.T) {
	for name, test := range map[string]struct {
		admitted, stored string
		back, denied     bool
	}{
		"it leads there":            {"seen=v2", "v2", true, false},
		"it leads elsewhere":        {"seen=v2", "v9", true, true},
		"it is stored as it is":     {"seen=v2", "seen", true, true},
		"nothing is known of it":    {"", "v2", false, true},
		"it led elsewhere before":   {"seen=v9", "v2", false, true},
		"it led to what is blocked": {"seen=v1", "v2", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := makeFailed().halted("v1").bothAnnotations(v1alpha1.AdmittedAnnotation, test.admitted)
			w.New.Version = "seen"
			if w.GoesBack() != test.back {
				t.Errorf("undo %t, want %t", w.GoesBack(), test.back)
			}
			request := w.Request
			request.New = mutated(w)
			if again := Mutate(request); len(again) != 0 {
				t.Errorf("mutated again: %+v", again)
			}
			request.New.Version = test.stored
			if v := Validate(request); v.Allowed == test.denied {
				t.Errorf("%+v, want denied %t", v, test.denied)
			}
			if why, held := rollback.ParseQuarantine(request.New.Annotations, testNow).Reason("v1"); held != test.back || held && why.To != "v2" {
				t.Errorf("in quarantine %t, to %s", held, why.To)
			}
		})
	}
}

// TestForgedAdmitted: a user who writes the annotation, like editors of the status, passes neither the block nor the
// quarantine, and cannot remove a block.
func TestForgedAdmitted(t *testing.T) {
	tests := admissionTests()
	forge := func(w *admissionWrapper) map[string]*admissionWrapper {
		const value = "v2=v1,v1=v2,v3=v1,v2=v2"
		stored := *w
		stored.Old.Annotations = with(w.Old.Annotations, v1alpha1.AdmittedAnnotation, value)
		sent := *w
		sent.New.Annotations = with(w.New.Annotations, v1alpha1.AdmittedAnnotation, value)
		return map[string]*admissionWrapper{"stored": &stored, "sent": &sent}
	}
	for name, test := range tests {
		if !test.wantMutatedDenied {
			continue
		}
		for how, w := range forge(test.request) {
			t.Run(name+", "+how, func(t *testing.T) {
				request := w.Request
				if Validate(request).Allowed {
					t.Error("it passed without mutation")
				}
				request.New = applied(request.New, Mutate(request))
				if Validate(request).Allowed {
					t.Error("it passed")
				}
			})
		}
	}
	w := makeUpdate().release()
	for _, annotations := range []map[string]string{w.Old.Annotations, w.New.Annotations} {
		rollback.ParseQuarantine(nil, testNow).With("v2", rollback.QuarantineReason{Cause: v1alpha1.ReasonNeverStarted}).Annotate(annotations)
	}
	for how, w := range forge(w) {
		request := w.Request
		request.New = applied(request.New, Mutate(request))
		if ValidateQuarantine(request).Allowed {
			t.Errorf("%s, it passed the quarantine", how)
		}
	}
}

// TestSeenBefore: the version of the first call for a request is remembered with the version of the second call, after
// another webhook. The marks of the first call distinguish the calls from a client's object.
func TestSeenBefore(t *testing.T) {
	twice := func(w *admissionWrapper) Request {
		request := w.Request
		request.New = applied(request.New, Mutate(request))
		request.New.Version = "v3"
		return request
	}
	edit := func(request Request, change func(*Object)) Request {
		request.New = applied(request.New, nil)
		change(&request.New)
		return request
	}
	released := twice(makeUpdate().release())
	const key = v1alpha1.AdmittedAnnotation
	for name, test := range map[string]struct {
		request Request
		want    string
	}{
		"created":                         {twice(makeCreate()), "v1=v3"},
		"released":                        {released, "v2=v3"},
		"released, others are remembered": {twice(makeUpdate().bothAnnotations(key, "v0=v9").release()), "v0=v9,v2=v3"},
		"not released by the first call":  {twice(readmitted(makeUpdate())), "v0=v9,v2=v1"},
		"by an unknown user":              {twice(makeUpdate().user("").release()), "v2=v3"},
		"another number": {edit(released, func(o *Object) {
			o.Annotations[v1alpha1.ReleaseAnnotation] = "4"
		}), ""},
		"another user": {edit(released, func(o *Object) {
			o.Annotations[v1alpha1.ReleasedByAnnotation] = "joe"
		}), ""},
		"another template": {edit(released, func(o *Object) {
			o.TemplateLabels[v1alpha1.VersionLabel] = "v1"
		}), ""},
		"already recorded": {edit(released, func(o *Object) {
			o.Labels[v1alpha1.DefenseStatusLabel] = v1alpha1.DefenseStatusProcessed
		}), ""},
		"not changed since":        {edit(released, func(o *Object) { o.Version = "v2" }), ""},
		"changed back":             {edit(released, func(o *Object) { o.Version = "v1" }), ""},
		"what a client sends with": {edit(released, func(o *Object) { o.Annotations[key] = "v7=v1" }), "v2=v3"},
	} {
		t.Run(name, func(t *testing.T) {
			request := test.request
			request.New = applied(request.New, Mutate(request))
			if got := request.New.Annotations[key]; got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
			if again := Mutate(request); len(again) > 0 {
				t.Error("called again for the same request it changes", again)
			}
		})
	}
}
