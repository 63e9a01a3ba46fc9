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
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const suspendedAt = "1700000000"

// admissionWrapper builds requests on a workload that was released once, is not blocked, and is not changed.
type admissionWrapper struct{ Request }

func makeUpdate() *admissionWrapper {
	object := func() Object {
		return Object{
			Labels: map[string]string{"app": "sleep", v1alpha1.VersionLabel: "v1",
				v1alpha1.DefenseStatusLabel: v1alpha1.DefenseStatusProcessed},
			Annotations:    map[string]string{v1alpha1.ReleaseAnnotation: "4"},
			TemplateLabels: map[string]string{"app": "sleep", v1alpha1.VersionLabel: "v1"},
			Version:        "v1",
		}
	}
	w := &admissionWrapper{Request{
		Operation: Update, Kind: "deployment", Namespace: "default", Name: "sleep", User: "jane",
		Old: object(), New: object(),
	}}
	w.Old.ResourceVersion, w.New.ResourceVersion = "77", "77"
	return w
}

// makeBlocked is makeUpdate on a blocked workload.
func makeBlocked() *admissionWrapper {
	return makeUpdate().
		both(v1alpha1.SuspendLabel, suspendedAt).
		bothAnnotations(v1alpha1.SuspendedByAnnotation, "v1")
}

func makeCreate() *admissionWrapper {
	return &admissionWrapper{Request{
		Operation: Create, Kind: "deployment", Namespace: "default", Name: "sleep", User: "jane",
		New: Object{Version: "v1"},
	}}
}

// unstamped makes templates of the workload's kind unlabelled.
func (w *admissionWrapper) unstamped() *admissionWrapper {
	w.Kind, w.Unstamped = "statefulset", true
	delete(w.Old.TemplateLabels, v1alpha1.VersionLabel)
	return w.loseTemplateLabel()
}
func (w *admissionWrapper) named(name string) *admissionWrapper { w.Name = name; return w }

// quarantines puts a version in quarantine before and after the request.
func (w *admissionWrapper) quarantines(version string, why rollback.QuarantineReason) *admissionWrapper {
	for _, o := range []*Object{&w.Old, &w.New} {
		rollback.ParseQuarantine(nil, testNow).With(version, why).Annotate(o.Annotations)
	}
	return w
}

func (w *admissionWrapper) own() *admissionWrapper { w.Own = true; return w }
func (w *admissionWrapper) user(s string) *admissionWrapper {
	w.User = s
	return w
}
func (w *admissionWrapper) release() *admissionWrapper { w.New.Version = "v2"; return w }
func (w *admissionWrapper) both(key, value string) *admissionWrapper {
	w.Old.Labels[key] = value
	return w.label(key, value)
}
func (w *admissionWrapper) bothAnnotations(key, value string) *admissionWrapper {
	w.Old.Annotations[key] = value
	return w.annotation(key, value)
}
func (w *admissionWrapper) label(key, value string) *admissionWrapper {
	w.New.Labels = with(w.New.Labels, key, value)
	return w
}
func (w *admissionWrapper) annotation(key, value string) *admissionWrapper {
	w.New.Annotations = with(w.New.Annotations, key, value)
	return w
}
func (w *admissionWrapper) templateLabel(key, value string) *admissionWrapper {
	w.New.TemplateLabels = with(w.New.TemplateLabels, key, value)
	return w
}
func (w *admissionWrapper) lose(keys ...string) *admissionWrapper {
	for _, key := range keys {
		delete(w.New.Labels, key)
		delete(w.New.Annotations, key)
	}
	return w
}

// gains gives the workload an owner in the request.
func (w *admissionWrapper) gains(owner string) *admissionWrapper { w.New.Owner = owner; return w }
func (w *admissionWrapper) loseTemplateLabel() *admissionWrapper {
	delete(w.New.TemplateLabels, v1alpha1.VersionLabel)
	return w
}

// baseline makes the workload older than the operator.
func (w *admissionWrapper) baseline() *admissionWrapper {
	for _, o := range []*Object{&w.Old, &w.New} {
		o.Labels, o.Annotations, o.TemplateLabels = nil, nil, nil
	}
	return w
}
func (w *admissionWrapper) paused(before, after bool) *admissionWrapper {
	w.Old.Paused, w.New.Paused = before, after
	return w
}

func with(m map[string]string, key, value string) map[string]string {
	m = cloned(m)
	m[key] = value
	return m
}

func setLabel(key, value string) Change {
	return Change{Target: WorkloadLabel, Key: key, Value: value}
}
func dropLabel(key string) Change {
	return Change{Target: WorkloadLabel, Key: key, Remove: true}
}
func setAnnotation(key, value string) Change {
	return Change{Target: WorkloadAnnotation, Key: key, Value: value}
}
func dropAnnotation(key string) Change {
	return Change{Target: WorkloadAnnotation, Key: key, Remove: true}
}
func setTemplateLabel(value string) Change {
	return Change{Target: TemplateLabel, Key: v1alpha1.VersionLabel, Value: value}
}
func dropTemplateLabel() Change {
	return Change{Target: TemplateLabel, Key: v1alpha1.VersionLabel, Remove: true}
}

type admissionTest struct {
	request *admissionWrapper
	// want are the changes of mutation.
	want []Change
	// wantMutatedDenied and wantDenied are the answers of validation with mutation before it, and without (the webhook
	// was not reached).
	wantMutatedDenied, wantDenied bool
}

func admissionTests() map[string]admissionTest {
	const prefix = "altershield.defense.antgroup.com/"
	created := []Change{
		setLabel(v1alpha1.VersionLabel, "v1"),
		setAnnotation(v1alpha1.ReleaseAnnotation, "1"),
		setTemplateLabel("v1"),
	}
	released := func(label, annotation []Change) []Change {
		changes := []Change{setLabel(v1alpha1.VersionLabel, "v2"), dropLabel(v1alpha1.DefenseStatusLabel)}
		changes = append(changes, label...)
		changes = append(changes, annotation...)
		return append(changes, setAnnotation(v1alpha1.ReleaseAnnotation, "5"), setTemplateLabel("v2"))
	}
	overridden := func(user string) []Change {
		return released([]Change{dropLabel(v1alpha1.IgnoredSuspendLabel)},
			[]Change{setAnnotation(v1alpha1.OverrideAnnotation, "v2 77 "+user)})
	}

	noted := func(note Change) []Change {
		changes := released(nil, nil)
		return slices.Insert(changes, len(changes)-1, note)
	}

	cloned := makeCreate().templateLabel(v1alpha1.VersionLabel, "old")
	wantCloned := []Change{
		setLabel(v1alpha1.VersionLabel, "v1"),
		dropLabel(v1alpha1.DefenseStatusLabel), dropLabel(v1alpha1.IgnoredSuspendLabel), dropLabel(v1alpha1.SuspendLabel),
	}
	for _, key := range []string{v1alpha1.VersionLabel, v1alpha1.DefenseStatusLabel, v1alpha1.SuspendLabel,
		v1alpha1.IgnoredSuspendLabel, "app"} {
		cloned.label(key, "x")
	}
	for _, key := range []string{
		v1alpha1.AdmittedAnnotation, v1alpha1.HaltedAnnotation, v1alpha1.HaltedFromAnnotation, v1alpha1.OverrideAnnotation,
		v1alpha1.OverrideReportedAnnotation,
		v1alpha1.OverrideStaleAnnotation, v1alpha1.QuarantineReasonAnnotation, v1alpha1.QuarantinedAnnotation,
		v1alpha1.ReleaseAnnotation, v1alpha1.RollbackToAnnotation, v1alpha1.SettingsAlteredAnnotation, v1alpha1.SuspendedByAnnotation,
	} {
		cloned.annotation(key, "x")
		if key == v1alpha1.ReleaseAnnotation {
			wantCloned = append(wantCloned, setAnnotation(key, "1"))
		} else {
			wantCloned = append(wantCloned, dropAnnotation(key))
		}
	}
	wantCloned = append(wantCloned, setTemplateLabel("v1"))
	for _, key := range []string{"rollback", "branch", "silence", "timeouts"} {
		cloned.annotation(prefix+key, "x")
	}

	tests := map[string]admissionTest{
		"create": {request: makeCreate(), want: created},
		"create: cloned from one that is halted": {
			request: makeCreate().annotation(v1alpha1.HaltedAnnotation, "v1").annotation(v1alpha1.HaltedFromAnnotation, "2").paused(false, true),
			want: append(sorted(sorted(created, dropAnnotation(v1alpha1.HaltedAnnotation)), dropAnnotation(v1alpha1.HaltedFromAnnotation)),
				Change{Target: WorkloadPaused, Remove: true, Value: "2"}),
		},
		"create: paused by its user": {request: makeCreate().paused(false, true), want: created},
		"create: of a kind that is not held, cloned from one that was": {
			request: makeCreate().annotation(v1alpha1.HeldAnnotation, heldAt(4).String()),
			want:    sorted(created, dropAnnotation(v1alpha1.HeldAnnotation)),
		},
		"a hold that is put on a kind that is not held": {
			request: makeUpdate().annotation(v1alpha1.HeldAnnotation, heldAt(4).String()), want: []Change{dropAnnotation(v1alpha1.HeldAnnotation)},
		},
		"create, opted in": {request: makeCreate().label(v1alpha1.DefenseLabel, "enabled"), want: created},
		"create, cloned":   {request: cloned, want: wantCloned},
		"create, opted out": {
			request: makeCreate().label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled).label(v1alpha1.SuspendLabel, "1"),
		},

		"unstamped, created": {
			request: makeCreate().unstamped(), want: []Change{setLabel(v1alpha1.VersionLabel, "v1"), setAnnotation(v1alpha1.ReleaseAnnotation, "1")},
		},
		"unstamped, created with a label in the manifest": {
			request: makeCreate().unstamped().templateLabel(v1alpha1.VersionLabel, "old"),
			want:    []Change{setLabel(v1alpha1.VersionLabel, "v1"), setAnnotation(v1alpha1.ReleaseAnnotation, "1"), dropTemplateLabel()},
		},
		"unstamped, released": {
			request: makeUpdate().unstamped().release(),
			want: []Change{setLabel(v1alpha1.VersionLabel, "v2"), dropLabel(v1alpha1.DefenseStatusLabel),
				setAnnotation(v1alpha1.ReleaseAnnotation, "5")},
		},
		"unstamped, nothing changes but the label": {
			request: makeUpdate().unstamped().templateLabel(v1alpha1.VersionLabel, "old"), want: []Change{dropTemplateLabel()},
		},

		"update, nothing changes":  {request: makeUpdate()},
		"update of a baseline":     {request: makeUpdate().baseline().label("app", "x")},
		"update, labels of others": {request: makeUpdate().label("app", "x").annotation("a", "b").templateLabel("c", "d")},
		"baseline, version labels added by hand": {
			request: makeUpdate().baseline().label(v1alpha1.VersionLabel, "v1").templateLabel(v1alpha1.VersionLabel, "v1"),
			want:    []Change{dropLabel(v1alpha1.VersionLabel), dropTemplateLabel()},
		},
		"baseline, released": {
			request: makeUpdate().baseline().release(),
			want: []Change{
				setLabel(v1alpha1.VersionLabel, "v2"), setAnnotation(v1alpha1.ReleaseAnnotation, "1"), setTemplateLabel("v2"),
			},
		},
		"a release that alters settings": {
			request: makeUpdate().release().annotation(prefix+"rollback", "disabled"),
			want:    noted(setAnnotation(v1alpha1.SettingsAlteredAnnotation, `5 rollback from none to "disabled"`)),
		},
		"the next one that does not": {
			request: makeUpdate().release().bothAnnotations(prefix+"rollback", "disabled").bothAnnotations(v1alpha1.SettingsAlteredAnnotation,
				`4 rollback from none to "disabled"`),
			want: noted(dropAnnotation(v1alpha1.SettingsAlteredAnnotation)),
		},
		"settings without a release": {
			request: makeUpdate().annotation(prefix+"rollback", "disabled"),
		},
		"a release that slipped keeps its template": {
			request: makeUpdate().both(v1alpha1.VersionLabel, "v1").loseTemplateLabel().without(),
		},
		"replaced by a manifest": {
			request: makeUpdate().lose(v1alpha1.VersionLabel, v1alpha1.DefenseStatusLabel, v1alpha1.ReleaseAnnotation).loseTemplateLabel(),
			want: []Change{
				setLabel(v1alpha1.VersionLabel, "v1"), setLabel(v1alpha1.DefenseStatusLabel, v1alpha1.DefenseStatusProcessed),
				setAnnotation(v1alpha1.ReleaseAnnotation, "4"), setTemplateLabel("v1"),
			},
		},
		"changed by hand": {
			request: makeUpdate().label(v1alpha1.VersionLabel, "x").label(v1alpha1.DefenseStatusLabel, "x").
				annotation(v1alpha1.ReleaseAnnotation, "9").templateLabel(v1alpha1.VersionLabel, "x"),
			want: []Change{
				setLabel(v1alpha1.VersionLabel, "v1"), setLabel(v1alpha1.DefenseStatusLabel, v1alpha1.DefenseStatusProcessed),
				setAnnotation(v1alpha1.ReleaseAnnotation, "4"), setTemplateLabel("v1"),
			},
		},
		"all maps lost": {
			request: makeUpdate().nothing(),
			want: []Change{
				setLabel(v1alpha1.VersionLabel, "v1"), setLabel(v1alpha1.DefenseStatusLabel, v1alpha1.DefenseStatusProcessed),
				setAnnotation(v1alpha1.ReleaseAnnotation, "4"), setTemplateLabel("v1"),
			},
		},
		"the user's own keys are left alone": {
			request: makeUpdate().label(v1alpha1.SuspendLabel, "1").label(v1alpha1.IgnoredSuspendLabel, "true").
				annotation(v1alpha1.RollbackToAnnotation, "last-success").label(v1alpha1.DefenseLabel, "enabled").
				annotation(prefix+"rollback", "disabled"),
		},
		"the user's own keys can be taken off": {
			request: makeUpdate().both(v1alpha1.IgnoredSuspendLabel, "true").
				bothAnnotations(v1alpha1.RollbackToAnnotation, "last-success").
				lose(v1alpha1.IgnoredSuspendLabel, v1alpha1.RollbackToAnnotation),
		},
		"opted out": {
			request: makeUpdate().release().label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled).lose(v1alpha1.VersionLabel),
		},
		"opting in again": {
			request: makeUpdate().both(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled).release().lose(v1alpha1.DefenseLabel),
			want:    released(nil, nil),
		},
		"the operator's own write": {
			request: makeUpdate().own().label(v1alpha1.VersionLabel, "x").lose(v1alpha1.DefenseStatusLabel).
				annotation(v1alpha1.QuarantinedAnnotation, "v0").templateLabel(v1alpha1.VersionLabel, "x"),
		},

		"release": {request: makeUpdate().release(), want: released(nil, nil)},
		"release, labels lost": {
			request: makeUpdate().release().nothing(),
			want: []Change{
				setLabel(v1alpha1.VersionLabel, "v2"), setAnnotation(v1alpha1.ReleaseAnnotation, "5"), setTemplateLabel("v2"),
			},
		},
		"release, count unreadable": {
			request: makeUpdate().release().bothAnnotations(v1alpha1.ReleaseAnnotation, "x"),
			want: []Change{
				setLabel(v1alpha1.VersionLabel, "v2"), dropLabel(v1alpha1.DefenseStatusLabel),
				setAnnotation(v1alpha1.ReleaseAnnotation, "1"), setTemplateLabel("v2"),
			},
		},
		"release, count given by the user": {
			request: makeUpdate().release().annotation(v1alpha1.ReleaseAnnotation, "100"),
			want:    released(nil, nil),
		},
		"release of the operator": {
			request: makeUpdate().own().release().loseTemplateLabel().annotation(v1alpha1.QuarantinedAnnotation, "v1"),
			want: []Change{
				setLabel(v1alpha1.VersionLabel, "v2"), dropLabel(v1alpha1.DefenseStatusLabel),
				setAnnotation(v1alpha1.ReleaseAnnotation, "5"),
			},
		},
		"rollback to a template that comes to another version by now": {
			request: makeUpdate().own().release().loseTemplateLabel().annotation(v1alpha1.QuarantinedAnnotation, "v1").
				annotation(v1alpha1.QuarantineReasonAnnotation, `{"v1":{"time":"","cause":"NeverStarted","release":4,"to":"older"}}`).
				annotation(v1alpha1.ChangeCauseAnnotation, rollback.ChangeCausePrefix+"version v1 to older: NeverStarted"),
			want: []Change{
				setLabel(v1alpha1.VersionLabel, "v2"), dropLabel(v1alpha1.DefenseStatusLabel),
				setAnnotation(v1alpha1.QuarantineReasonAnnotation, `{"v1":{"time":"","cause":"NeverStarted","release":4,"to":"v2"}}`),
				setAnnotation(v1alpha1.ReleaseAnnotation, "5"),
				setAnnotation(v1alpha1.ChangeCauseAnnotation, rollback.ChangeCausePrefix+"version v1 to v2: NeverStarted"),
			},
		},
		"release with ignored-suspend and no block": {
			request: makeUpdate().release().label(v1alpha1.IgnoredSuspendLabel, "true"),
			want:    released(nil, nil),
		},
		"a block the operator sets makes a label that is there stale": {
			request: makeUpdate().both(v1alpha1.IgnoredSuspendLabel, "true").label(v1alpha1.SuspendLabel, suspendedAt).own(),
			want:    []Change{setAnnotation(v1alpha1.OverrideStaleAnnotation, "true")},
		},
		"a block set by hand, too": {
			request: makeUpdate().both(v1alpha1.IgnoredSuspendLabel, "true").label(v1alpha1.SuspendLabel, suspendedAt),
			want:    []Change{setAnnotation(v1alpha1.OverrideStaleAnnotation, "true")},
		},
		"a label set together with the block is not": {
			request: makeUpdate().label(v1alpha1.IgnoredSuspendLabel, "true").label(v1alpha1.SuspendLabel, suspendedAt),
		},
		"a label set again is fresh, though the mark of an earlier one was left": {
			request: makeBlocked().label(v1alpha1.IgnoredSuspendLabel, "true").bothAnnotations(v1alpha1.OverrideStaleAnnotation, "true"),
			want:    []Change{dropAnnotation(v1alpha1.OverrideStaleAnnotation)},
		},
		"a release that loses a quarantine is no rollback, and leaves the label fresh": {
			request: makeUpdate().release().both(v1alpha1.IgnoredSuspendLabel, "true").
				bothAnnotations(v1alpha1.QuarantinedAnnotation, "v0").lose(v1alpha1.QuarantinedAnnotation),
			want: sorted(released(nil, nil), setAnnotation(v1alpha1.QuarantinedAnnotation, "v0")),
		},
		"stale override goes with its label": {
			request: makeUpdate().both(v1alpha1.IgnoredSuspendLabel, "true").bothAnnotations(v1alpha1.OverrideStaleAnnotation, "1").
				lose(v1alpha1.IgnoredSuspendLabel),
			want: []Change{dropAnnotation(v1alpha1.OverrideStaleAnnotation)},
		},
		"stale override goes when its label no longer ignores": {
			request: makeUpdate().both(v1alpha1.IgnoredSuspendLabel, "true").bothAnnotations(v1alpha1.OverrideStaleAnnotation, "1").
				label(v1alpha1.IgnoredSuspendLabel, "false"),
			want: []Change{dropAnnotation(v1alpha1.OverrideStaleAnnotation)},
		},

		"blocked: scaled, annotated": {request: makeBlocked().annotation("a", "b").label("b", "c")},
		"blocked: release": {
			request: makeBlocked().release(), want: released(nil, nil),
			wantMutatedDenied: true, wantDenied: true,
		},
		"blocked: release, other value of ignored-suspend": {
			request: makeBlocked().release().label(v1alpha1.IgnoredSuspendLabel, "yes"), want: released(nil, nil),
			wantMutatedDenied: true, wantDenied: true,
		},
		"blocked: release of the operator": {
			request: makeBlocked().own().release(),
			want: []Change{
				setLabel(v1alpha1.VersionLabel, "v2"), dropLabel(v1alpha1.DefenseStatusLabel), setAnnotation(v1alpha1.ReleaseAnnotation, "5"),
			},
		},
		"blocked: lifted by the operator": {
			request: makeBlocked().own().lose(v1alpha1.SuspendLabel, v1alpha1.SuspendedByAnnotation),
		},
		"blocked: release while opting out": {
			request: makeBlocked().release().label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled),
			want:    []Change{setAnnotation(v1alpha1.OptedOutAnnotation, "4 -62135596800 Blocked jane")},
		},
		"blocked: opted out before": {
			request: makeBlocked().both(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled).annotation("a", "b"),
		},
		"blocked: the operator takes its block back after opting out": {
			request: makeBlocked().own().both(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled).lose(v1alpha1.SuspendLabel,
				v1alpha1.SuspendedByAnnotation),
		},
		"in quarantine: opting out, and losing what is known": {
			request: makeUpdate().bothAnnotations(v1alpha1.QuarantinedAnnotation, "v0").lose(v1alpha1.QuarantinedAnnotation).
				label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled),
			want: []Change{
				setAnnotation(v1alpha1.OptedOutAnnotation, "4 -62135596800 Quarantined jane"), setAnnotation(v1alpha1.QuarantinedAnnotation, "v0"),
			},
		},
		"opting out: what is known of an earlier time goes": {
			request: makeUpdate().bothAnnotations(v1alpha1.OptedOutAnnotation, "4 1 Blocked oncall").label(v1alpha1.DefenseLabel,
				v1alpha1.DefenseDisabled),
			want: []Change{dropAnnotation(v1alpha1.OptedOutAnnotation)},
		},
		"opted out: what the operator wrote stays as it is": {
			request: makeUpdate().both(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled).bothAnnotations(v1alpha1.OptedOutAnnotation,
				"4 1 Blocked oncall").
				lose(v1alpha1.OptedOutAnnotation).annotation(v1alpha1.ReleaseAnnotation, "100").annotation(v1alpha1.HaltedAnnotation, "v1"),
			want: []Change{
				dropAnnotation(v1alpha1.HaltedAnnotation), setAnnotation(v1alpha1.OptedOutAnnotation, "4 1 Blocked oncall"),
				setAnnotation(v1alpha1.ReleaseAnnotation, "4"),
			},
		},
		"blocked: given an owner": {
			request: makeBlocked().gains("prometheus k8s"),
			want:    []Change{setAnnotation(v1alpha1.OptedOutAnnotation, "4 -62135596800 Blocked:prometheus/k8s jane")},
		},
		"blocked: owned before": {request: makeBlocked().ownedBy("prometheus k8s").annotation("a", "b")},
		"blocked: suspend lost": {
			request:           makeBlocked().lose(v1alpha1.SuspendLabel),
			wantMutatedDenied: true, wantDenied: true,
		},
		"blocked: suspend lost with the version it is for": {
			request:           makeBlocked().lose(v1alpha1.SuspendLabel, v1alpha1.SuspendedByAnnotation),
			want:              []Change{setAnnotation(v1alpha1.SuspendedByAnnotation, "v1")},
			wantMutatedDenied: true, wantDenied: true,
		},
		"blocked: suspend changed": {
			request:           makeBlocked().label(v1alpha1.SuspendLabel, "1"),
			wantMutatedDenied: true, wantDenied: true,
		},
		"blocked: version label of the template changed": {
			request:    makeBlocked().templateLabel(v1alpha1.VersionLabel, "x"),
			want:       []Change{setTemplateLabel("v1")},
			wantDenied: true,
		},
		"blocked: blocked by hand, everything else passes": {
			request: makeUpdate().both(v1alpha1.SuspendLabel, "").annotation("a", "b"),
		},

		"override: in the release": {
			request: makeBlocked().release().label(v1alpha1.IgnoredSuspendLabel, "true"),
			want:    overridden("jane"),
		},
		"override: set before the release": {
			request: makeBlocked().release().both(v1alpha1.IgnoredSuspendLabel, "true"),
			want:    overridden("jane"),
		},
		"override: set, and not used": {request: makeBlocked().label(v1alpha1.IgnoredSuspendLabel, "true")},
		"override: back after its release, nothing changes": {
			request: makeBlocked().bothAnnotations(v1alpha1.OverrideAnnotation, "v1 70 jane").label(v1alpha1.IgnoredSuspendLabel, "true"),
		},
		"override: used before": {
			request:           makeBlocked().release().bothAnnotations(v1alpha1.OverrideAnnotation, "v2 70 jane"),
			want:              released(nil, nil),
			wantMutatedDenied: true, wantDenied: true,
		},
		"override: reported stays, the record is renewed": {
			request: makeBlocked().release().label(v1alpha1.IgnoredSuspendLabel, "true").
				bothAnnotations(v1alpha1.OverrideAnnotation, "v1 70 joe").bothAnnotations(v1alpha1.OverrideReportedAnnotation, "70"),
			want: overridden("jane"),
		},
		"override: stale": {
			request: makeBlocked().release().both(v1alpha1.IgnoredSuspendLabel, "true").
				bothAnnotations(v1alpha1.OverrideStaleAnnotation, "1"),
			want:              released(nil, nil),
			wantMutatedDenied: true, wantDenied: true,
		},
		"override: stale mark lost by a replace": {
			request: makeBlocked().release().both(v1alpha1.IgnoredSuspendLabel, "true").
				bothAnnotations(v1alpha1.OverrideStaleAnnotation, "1").lose(v1alpha1.OverrideStaleAnnotation),
			want:              released(nil, []Change{setAnnotation(v1alpha1.OverrideStaleAnnotation, "1")}),
			wantMutatedDenied: true, wantDenied: true,
		},
		"override: stale mark added by hand does not count": {
			request: makeBlocked().release().both(v1alpha1.IgnoredSuspendLabel, "true").
				annotation(v1alpha1.OverrideStaleAnnotation, "1"),
			want: released([]Change{dropLabel(v1alpha1.IgnoredSuspendLabel)}, []Change{
				setAnnotation(v1alpha1.OverrideAnnotation, "v2 77 jane"), dropAnnotation(v1alpha1.OverrideStaleAnnotation),
			}),
		},
		"override: set again after the stale one": {
			request: makeBlocked().release().bothAnnotations(v1alpha1.OverrideStaleAnnotation, "1").label(v1alpha1.IgnoredSuspendLabel, "true"),
			want: released([]Change{dropLabel(v1alpha1.IgnoredSuspendLabel)}, []Change{
				setAnnotation(v1alpha1.OverrideAnnotation, "v2 77 jane"), dropAnnotation(v1alpha1.OverrideStaleAnnotation),
			}),
		},
		"override: suspend lost with the release": {
			request: makeBlocked().release().label(v1alpha1.IgnoredSuspendLabel, "true").lose(v1alpha1.SuspendLabel),
			want: []Change{
				setLabel(v1alpha1.VersionLabel, "v2"), dropLabel(v1alpha1.DefenseStatusLabel), dropLabel(v1alpha1.IgnoredSuspendLabel),
				setAnnotation(v1alpha1.OverrideAnnotation, "v2 77 jane"), setAnnotation(v1alpha1.ReleaseAnnotation, "5"),
				dropAnnotation(v1alpha1.SuspendedByAnnotation), setTemplateLabel("v2"),
			},
		},
		"override: suspend lost": {
			request: makeBlocked().label(v1alpha1.IgnoredSuspendLabel, "true").lose(v1alpha1.SuspendLabel),
			want: []Change{
				dropLabel(v1alpha1.IgnoredSuspendLabel),
				setAnnotation(v1alpha1.OverrideAnnotation, "v1 77 jane"), dropAnnotation(v1alpha1.SuspendedByAnnotation),
			},
		},
		"override: suspend changed": {
			request: makeBlocked().label(v1alpha1.IgnoredSuspendLabel, "true").label(v1alpha1.SuspendLabel, "1"),
			want: []Change{
				dropLabel(v1alpha1.IgnoredSuspendLabel), setAnnotation(v1alpha1.OverrideAnnotation, "v1 77 jane"),
			},
		},
		"override: validated after mutation": {
			request: makeBlocked().release().annotation(v1alpha1.OverrideAnnotation, "v2 77 jane").
				label(v1alpha1.VersionLabel, "v2").templateLabel(v1alpha1.VersionLabel, "v2"),
			want: []Change{dropLabel(v1alpha1.DefenseStatusLabel), setAnnotation(v1alpha1.ReleaseAnnotation, "5")},
		},
		"override: another webhook changed the template after mutation": {
			request: makeBlocked().release().annotation(v1alpha1.OverrideAnnotation, "other 77 jane").lose(v1alpha1.DefenseStatusLabel).
				label(v1alpha1.VersionLabel, "other").templateLabel(v1alpha1.VersionLabel, "other").annotation(v1alpha1.ReleaseAnnotation, "5"),
			want: []Change{
				setLabel(v1alpha1.VersionLabel, "v2"), setAnnotation(v1alpha1.OverrideAnnotation, "v2 77 jane"), setTemplateLabel("v2"),
			},
		},
		"override: written by hand without a block": {
			request: makeUpdate().annotation(v1alpha1.OverrideAnnotation, "v1 77 joe"),
			want:    []Change{dropAnnotation(v1alpha1.OverrideAnnotation)},
		},
		"override: user with spaces": {
			request: makeBlocked().release().label(v1alpha1.IgnoredSuspendLabel, "true").user("Jane Doe  (ops)"),
			want:    overridden("Jane Doe  (ops)"),
		},
		"override: long user": {
			request: makeBlocked().release().label(v1alpha1.IgnoredSuspendLabel, "true").user("x" + strings.Repeat("é", 300)),
			want:    overridden("x" + strings.Repeat("é", 127)),
		},

		"override: of a halted workload resumes it": {
			request: makeBlocked().release().label(v1alpha1.IgnoredSuspendLabel, "true").
				bothAnnotations(v1alpha1.HaltedAnnotation, "v1").paused(true, true),
			want: append(sorted(overridden("jane"), dropAnnotation(v1alpha1.HaltedAnnotation)), Change{Target: WorkloadPaused, Remove: true}),
		},
		"override: of a workload that the user paused": {
			request: makeBlocked().release().label(v1alpha1.IgnoredSuspendLabel, "true").paused(true, true),
			want:    overridden("jane"),
		},
		"override: of a halted workload that a user resumed, paused by the release": {
			request: makeBlocked().release().label(v1alpha1.IgnoredSuspendLabel, "true").
				bothAnnotations(v1alpha1.HaltedAnnotation, "v1").paused(false, true),
			want: sorted(overridden("jane"), dropAnnotation(v1alpha1.HaltedAnnotation)),
		},
		"release of a halted workload whose block was lifted resumes it": {
			request: makeUpdate().release().bothAnnotations(v1alpha1.HaltedAnnotation, "v1").paused(true, true),
			want: append(sorted(released(nil, nil), dropAnnotation(v1alpha1.HaltedAnnotation)),
				Change{Target: WorkloadPaused, Remove: true}),
		},
		"release of a halted workload: what was changed is given back": {
			request: makeUpdate().unstamped().release().bothAnnotations(v1alpha1.HaltedAnnotation,
				"v1").bothAnnotations(v1alpha1.HaltedFromAnnotation, "2").paused(true, true),
			want: []Change{setLabel(v1alpha1.VersionLabel, "v2"), dropLabel(v1alpha1.DefenseStatusLabel), dropAnnotation(v1alpha1.HaltedAnnotation),
				dropAnnotation(v1alpha1.HaltedFromAnnotation), setAnnotation(v1alpha1.ReleaseAnnotation, "5"),
				{Target: WorkloadPaused, Remove: true, Value: "2"}},
		},
		"release of a halted workload by a manifest without annotations: what was changed is given back": {
			request: makeUpdate().unstamped().release().bothAnnotations(v1alpha1.HaltedAnnotation,
				"v1").bothAnnotations(v1alpha1.HaltedFromAnnotation, "2").
				lose(v1alpha1.HaltedAnnotation, v1alpha1.HaltedFromAnnotation).paused(true, true),
			want: []Change{setLabel(v1alpha1.VersionLabel, "v2"), dropLabel(v1alpha1.DefenseStatusLabel),
				setAnnotation(v1alpha1.ReleaseAnnotation, "5"), {Target: WorkloadPaused, Remove: true, Value: "2"}},
		},
		"resumed by a user: what says that it was halted goes": {
			request: makeBlocked().bothAnnotations(v1alpha1.HaltedAnnotation, "v1").paused(true, false),
			want:    []Change{dropAnnotation(v1alpha1.HaltedAnnotation)},
		},
		"paused by a user: what says that it was halted is not kept": {
			request: makeBlocked().bothAnnotations(v1alpha1.HaltedAnnotation, "v1").paused(false, true),
			want:    []Change{dropAnnotation(v1alpha1.HaltedAnnotation)},
		},
		"blocked: release of a halted workload": {
			request: makeBlocked().release().bothAnnotations(v1alpha1.HaltedAnnotation, "v1").paused(true, true),
			want:    released(nil, nil), wantMutatedDenied: true, wantDenied: true,
		},
	}
	for _, key := range []string{
		v1alpha1.ReleaseAnnotation, v1alpha1.SuspendedByAnnotation, v1alpha1.OverrideAnnotation, v1alpha1.OverrideReportedAnnotation,
		v1alpha1.HaltedAnnotation, v1alpha1.HaltedFromAnnotation, v1alpha1.QuarantinedAnnotation, v1alpha1.QuarantineReasonAnnotation,
		v1alpha1.AdmittedAnnotation,
	} {
		if key == v1alpha1.HaltedAnnotation || key == v1alpha1.HaltedFromAnnotation {
			// Only while the workload is paused.
			tests["restored when lost: "+key] = admissionTest{
				request: makeUpdate().bothAnnotations(key, "x").paused(true, true).lose(key), want: []Change{setAnnotation(key, "x")},
			}
			tests["restored when changed: "+key] = admissionTest{
				request: makeUpdate().bothAnnotations(key, "x").paused(true, true).annotation(key, "y"), want: []Change{setAnnotation(key, "x")},
			}
			tests["removed when added: "+key] = admissionTest{
				request: makeUpdate().paused(true, true).annotation(key, "x"), want: []Change{dropAnnotation(key)},
			}
			continue
		}
		tests["restored when lost: "+key] = admissionTest{
			request: makeUpdate().bothAnnotations(key, "x").lose(key), want: []Change{setAnnotation(key, "x")},
		}
		tests["restored when changed: "+key] = admissionTest{
			request: makeUpdate().bothAnnotations(key, "x").annotation(key, "y"), want: []Change{setAnnotation(key, "x")},
		}
		if key != v1alpha1.ReleaseAnnotation {
			tests["removed when added: "+key] = admissionTest{
				request: makeUpdate().annotation(key, "x"), want: []Change{dropAnnotation(key)},
			}
			tests["restored in a release: "+key] = admissionTest{
				request: makeUpdate().release().bothAnnotations(key, "x").lose(key),
				want:    sorted(released(nil, nil), setAnnotation(key, "x")),
			}
		}
	}
	return tests
}

// without also removes the version label from the template of the stored object.
func (w *admissionWrapper) without() *admissionWrapper {
	delete(w.Old.TemplateLabels, v1alpha1.VersionLabel)
	return w
}

// nothing removes all metadata from the new object.
func (w *admissionWrapper) nothing() *admissionWrapper {
	w.New.Labels, w.New.Annotations, w.New.TemplateLabels = nil, nil, nil
	return w
}

// withoutReleasedBy returns the changes without the user of the release, and this user.
func withoutReleasedBy(changes []Change) (rest []Change, by string) {
	for _, c := range changes {
		if c.Target == WorkloadAnnotation && c.Key == v1alpha1.ReleasedByAnnotation {
			by = c.Value
		} else {
			rest = append(rest, c)
		}
	}
	return rest, by
}

func sorted(changes []Change, change Change) []Change {
	for i, c := range changes {
		if c.Target > change.Target || c.Target == change.Target && c.Key > change.Key {
			return append(changes[:i:i], append([]Change{change}, changes[i:]...)...)
		}
	}
	return append(changes, change)
}

func applied(o Object, changes []Change) Object {
	o.Labels, o.Annotations, o.TemplateLabels = cloned(o.Labels), cloned(o.Annotations), cloned(o.TemplateLabels)
	for _, c := range changes {
		if c.Target == WorkloadPaused {
			o.Paused = false
			continue
		}
		m := map[Target]map[string]string{
			WorkloadLabel: o.Labels, WorkloadAnnotation: o.Annotations, TemplateLabel: o.TemplateLabels,
		}[c.Target]
		if c.Remove {
			delete(m, c.Key)
		} else {
			m[c.Key] = c.Value
		}
	}
	return o
}

func TestMutateAdmission(t *testing.T) {
	for name, tt := range admissionTests() {
		t.Run(name, func(t *testing.T) {
			request := tt.request.Request
			labels := maps.Clone(request.New.Labels)
			got := Mutate(request)
			rest, by := withoutReleasedBy(got)
			if diff := cmp.Diff(tt.want, rest); diff != "" {
				t.Error("changes (-want +got):\n", diff)
			}
			// Only the user of a release is named.
			counted := slices.ContainsFunc(got, func(c Change) bool {
				return c.Target == WorkloadAnnotation && c.Key == v1alpha1.ReleaseAnnotation && !c.Remove &&
					(request.released() || request.Operation == Create)
			})
			user := wording.CutAtRune(request.User, workload.MaxUser)
			if by != "" && by != user || counted && by == "" {
				t.Errorf("released by %q, want %q: %t", by, user, counted)
			}
			if diff := cmp.Diff(labels, request.New.Labels); diff != "" {
				t.Error("the request was changed (-before +after):\n", diff)
			}

			request.New = applied(request.New, got)
			if again := Mutate(request); len(again) > 0 {
				t.Error("called again for the same request it changes", again)
			}
		})
	}
}

// TestMutateAdmissionAfterOtherWebhook changes the template between two calls for the same request: the result is like
// one call with that template, and the version of the first call is remembered.
func TestMutateAdmissionAfterOtherWebhook(t *testing.T) {
	for name, tt := range admissionTests() {
		if !tt.request.released() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			request := tt.request.Request
			request.New.Version = "v3"
			want := applied(request.New, Mutate(request))

			request.New.Version = "v2"
			request.New = applied(request.New, Mutate(request))
			request.New.Version = "v3"
			got := applied(request.New, Mutate(request))
			if !request.Own && !workload.OptedOut(request.New.Labels) {
				want.Annotations = with(want.Annotations, v1alpha1.AdmittedAnnotation, "v2=v3")
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error("(-one call +two calls):\n", diff)
			}
		})
	}
}

func TestValidateAdmission(t *testing.T) {
	for name, tt := range admissionTests() {
		t.Run(name, func(t *testing.T) {
			request := tt.request.Request
			check := func(when string, denied bool) {
				t.Helper()
				got := Validate(request)
				want := Verdict{Allowed: !denied}
				if denied {
					want.Message = got.Message
					if !strings.HasPrefix(got.Message, "deployment sleep is suspended: ") || strings.Contains(got.Message, "\n") {
						t.Errorf("%s: message %q, want one line with these words", when, got.Message)
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", when, diff)
				}
			}
			check("without mutation", tt.wantDenied)
			request.New = applied(request.New, Mutate(request))
			check("after mutation", tt.wantMutatedDenied)
		})
	}
}

// TestDescribeBlock: the message of a denial has the failure, its time, and the commands that work.
func TestDescribeBlock(t *testing.T) {
	const (
		label    = "kubectl label deployment sleep altershield.defense.antgroup.com/ignored-suspend"
		set      = label + "=true --overwrite -n default"
		override = "; blocked since 2023-11-14T22:13:20Z. Override it, then release again: " + set
	)
	failed := func(change func(*v1alpha1.ChangeWorkload)) *admissionWrapper {
		w := makeFailed().both(v1alpha1.SuspendLabel, suspendedAt).bothAnnotations(v1alpha1.SuspendedByAnnotation, "v1 4 record")
		return w.past(func(p *rollback.Past) {
			p.History, p.Changes[0].UID = nil, "record"
			if change != nil {
				change(&p.Changes[0])
			}
		})
	}
	pod := func(message string) func(c *v1alpha1.ChangeWorkload) {
		return func(c *v1alpha1.ChangeWorkload) { c.Status.DefenseCheckFailPods[0].Message = message }
	}
	for name, tt := range map[string]struct {
		request *admissionWrapper
		want    string // after "deployment sleep is suspended: "
	}{
		"a pod failed": {failed(nil), "release 4 (version v1) failed: pod sleep-1: unpass: find error" + override},
		"the whole release failed": {failed(func(c *v1alpha1.ChangeWorkload) {
			c.Status.DefenseCheckFailPods = nil
			c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionVerified, Status: metav1.ConditionFalse,
				Message: "the order's PRE check failed"}}
		}), "release 4 (version v1) failed: the order's PRE check failed" + override},
		"a hostile message": {failed(pod("\x1b[31mfind\n\u202e\u009b2J\x07 error \xff" + strings.Repeat("x", 200))),
			"release 4 (version v1) failed: pod sleep-1: unpass: [31mfind 2J error \ufffd" + strings.Repeat("x", 180) + "..." + override},
		"a block by an earlier release, whose record is gone": {failed(nil).bothAnnotations(v1alpha1.SuspendedByAnnotation, "v0 3 gone"),
			"release 3 (version v0) failed" + override},
		"the quarantine says why": {failed(func(c *v1alpha1.ChangeWorkload) { c.UID = "another" }).quarantines("v1", rollback.QuarantineReason{
			Cause: v1alpha1.ReasonNeverStarted, Pod: "sleep-2", Container: "main", Reason: "ImagePullBackOff",
		}), "release 4 (version v1) failed: NeverStarted: pod sleep-2: container main: ImagePullBackOff" + override},
		"of an older build": {failed(nil).bothAnnotations(v1alpha1.SuspendedByAnnotation, "v1"), "version v1 failed" + override},
		"nothing is known":  {failed(nil).unknown(), "release 4 (version v1) failed" + override},
		"a user's block":    {failed(nil).oldLoses(v1alpha1.SuspendedByAnnotation), "a user blocked its releases" + override},
		"at an unknown time": {failed(nil).both(v1alpha1.SuspendLabel, "yes").oldLoses(v1alpha1.SuspendedByAnnotation),
			"a user blocked its releases. Override it, then release again: " + set},
		"the label was there before": {failed(nil).both(v1alpha1.IgnoredSuspendLabel, "true").bothAnnotations(v1alpha1.OverrideStaleAnnotation,
			"1"),
			"release 4 (version v1) failed: pod sleep-1: unpass: find error" + strings.Replace(override, set, label+"- -n default && "+set, 1)},
		"a name that a shell would read": {failed(nil).named("$(id)"),
			"release 4 (version v1) failed: pod sleep-1: unpass: find error" + strings.Replace(override, "deployment sleep",
				"deployment '$(id)'", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			want := fmt.Sprintf("deployment %s is suspended: %s", tt.request.Name, tt.want)
			got := Validate(tt.request.Request)
			if diff := cmp.Diff(Verdict{Message: want}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestQuarantineBounded: the message of a denial has no control characters, and its length is bounded.
func TestQuarantineBounded(t *testing.T) {
	request := makeUpdate().release().quarantines("v2",
		rollback.QuarantineReason{Cause: "RolloutStuck", Message: "\x1b[2J" + strings.Repeat("y", 5000)}).Request
	if got := ValidateQuarantine(request); got.Allowed || strings.ContainsRune(got.Message, 0x1b) || len(got.Message) > 1000 {
		t.Errorf("allowed %t, %d bytes: %q", got.Allowed, len(got.Message), got.Message)
	}
}

// TestQuarantineAdmission: a version that was rolled back is released again only by an override, which ends its
// quarantine.
func TestQuarantineAdmission(t *testing.T) {
	quarantined := func(w *admissionWrapper, versions ...string) *admissionWrapper {
		q := rollback.ParseQuarantine(nil, testNow)
		for _, v := range versions {
			q = q.With(v, rollback.QuarantineReason{Time: "2026-01-02T03:04:05Z", Cause: v1alpha1.ReasonNeverStarted, Pod: "sleep-1",
				Container: "main", Reason: "ErrImagePull"})
		}
		q.Annotate(w.Old.Annotations)
		q.Annotate(w.New.Annotations)
		return w
	}
	const message = `deployment sleep: version v2 was rolled back at 2026-01-02T03:04:05Z: NeverStarted: pod sleep-1: ` +
		`container main: ErrImagePull; release another version, or, to release this one anyway, `
	const set = message + `set the label altershield.defense.antgroup.com/ignored-suspend="true"`
	for name, test := range map[string]struct {
		request *admissionWrapper
		// denied is the message; empty if the request passes.
		denied string
		// quarantined reports whether v2 is in quarantine afterwards, overridden whether the override was used.
		quarantined, overridden bool
	}{
		"the version that was rolled back": {quarantined(makeUpdate().release(), "v0", "v2"), set, true, false},
		"another version":                  {quarantined(makeUpdate().release(), "v3"), "", false, false},
		"no release":                       {quarantined(makeUpdate(), "v1", "v2"), "", true, false},
		"with the label": {quarantined(makeUpdate().release().label(v1alpha1.IgnoredSuspendLabel, "true"), "v0", "v2"),
			"", false, true},
		"with the label, set before": {quarantined(makeUpdate().release().both(v1alpha1.IgnoredSuspendLabel, "true"), "v0", "v2"),
			"", false, true},
		"with one from before the rollback": {
			quarantined(makeUpdate().release().both(v1alpha1.IgnoredSuspendLabel, "true").bothAnnotations(v1alpha1.OverrideStaleAnnotation, "true"),
				"v2"), message +
				`remove this label, which was there before the rollback, and set it again: ` +
				`altershield.defense.antgroup.com/ignored-suspend="true"`, true, false},
		"a client that drops the annotations": {quarantined(makeUpdate().release(), "v2").lose(v1alpha1.QuarantinedAnnotation,
			v1alpha1.QuarantineReasonAnnotation), set, true, false},
		"by the operator": {quarantined(makeUpdate().own().release(), "v2"), "", true, false},
		"opted out": {quarantined(makeUpdate().release().label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled), "v2"),
			"", true, false},
		"blocked: the block says so": {quarantined(makeBlocked().release(), "v2"), "", true, false},
		"blocked, with the label": {quarantined(makeBlocked().release().label(v1alpha1.IgnoredSuspendLabel, "true"), "v0", "v2"),
			"", false, true},
		"another one, with a label that is old": {quarantined(makeUpdate().release().both(v1alpha1.IgnoredSuspendLabel, "true"), "v3"),
			"", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			request := test.request.Request
			request.New = applied(request.New, Mutate(request))
			if got := ValidateQuarantine(request); got.Message != test.denied || got.Allowed != (test.denied == "") {
				t.Errorf("%+v, want %q", got, test.denied)
			}
			q := rollback.ParseQuarantine(request.New.Annotations, testNow)
			if q.Holds("v2") != test.quarantined {
				t.Errorf("quarantined: %t, want %t", q.Holds("v2"), test.quarantined)
			}
			if q.Holds("v0") != rollback.ParseQuarantine(request.Old.Annotations, testNow).Holds("v0") {
				t.Error("the quarantine of another version changed")
			}
			_, overridden := request.New.Annotations[v1alpha1.OverrideAnnotation]
			if overridden != test.overridden || overridden && request.New.ignoresSuspend() {
				t.Errorf("overridden is %t, want %t; the label is left: %t", overridden, test.overridden, request.New.ignoresSuspend())
			}
			if again := Mutate(request); len(again) > 0 {
				t.Error("called again for the same request it changes", again)
			}
		})
	}
}

// TestRollbackRequest: a rollback request is about the release at that time.
func TestRollbackRequest(t *testing.T) {
	const to = v1alpha1.RollbackToAnnotation
	for name, test := range map[string]struct {
		request *admissionWrapper
		// want is the annotation afterwards.
		want string
	}{
		"made":                       {makeUpdate().annotation(to, "last-success"), "last-success"},
		"waiting, and an annotation": {makeUpdate().bothAnnotations(to, "last-success").annotation("a", "b"), "last-success"},
		"waiting, and a release":     {makeUpdate().bothAnnotations(to, "last-success").release(), ""},
		"with a release":             {makeUpdate().annotation(to, "last-success").release(), ""},
		"opting in": {makeUpdate().bothAnnotations(to, "last-success").both(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled).
			lose(v1alpha1.DefenseLabel), rollback.BeforeOptIn + "last-success"},
		"by the operator, over HTTP": {makeUpdate().own().annotation(to, "last-success"), "last-success"},
	} {
		t.Run(name, func(t *testing.T) {
			got := applied(test.request.New, Mutate(test.request.Request)).Annotations[to]
			if got != test.want {
				t.Errorf("there is %q, want %q", got, test.want)
			}
		})
	}
}

// TestChangeCause: the cause of a rollback does not explain the next release; the cause of a user stays.
func TestChangeCause(t *testing.T) {
	const ours, other = rollback.ChangeCausePrefix + "version v1", "my release"
	for name, test := range map[string]struct {
		request *admissionWrapper
		want    string
	}{
		"a release": {makeUpdate().bothAnnotations(v1alpha1.ChangeCauseAnnotation, ours).release(), ""},
		"rollout undo": {makeUpdate().bothAnnotations(v1alpha1.ChangeCauseAnnotation, ours).release().annotation(v1alpha1.ChangeCauseAnnotation,
			ours+" again"), ""},
		"that says why": {
			makeUpdate().bothAnnotations(v1alpha1.ChangeCauseAnnotation, ours).release().annotation(v1alpha1.ChangeCauseAnnotation, other), other},
		"no release":           {makeUpdate().bothAnnotations(v1alpha1.ChangeCauseAnnotation, ours), ours},
		"a cause of the users": {makeUpdate().bothAnnotations(v1alpha1.ChangeCauseAnnotation, other).release(), other},
		"a rollback":           {makeUpdate().own().release().annotation(v1alpha1.ChangeCauseAnnotation, ours), ours},
	} {
		t.Run(name, func(t *testing.T) {
			got := applied(test.request.New, Mutate(test.request.Request))
			if got.Annotations[v1alpha1.ChangeCauseAnnotation] != test.want {
				t.Errorf("%q, want %q", got.Annotations[v1alpha1.ChangeCauseAnnotation], test.want)
			}
		})
	}
}

// TestRollbackMakesStale: a label that is older than the rollback does not count for its quarantine.
func TestRollbackMakesStale(t *testing.T) {
	w := makeUpdate().own().release().both(v1alpha1.IgnoredSuspendLabel, "true")
	rollback.ParseQuarantine(nil, testNow).With("v1", rollback.QuarantineReason{Release: 4, To: "v2"}).Annotate(w.New.Annotations)
	got := applied(w.New, Mutate(w.Request))
	if _, stale := got.Annotations[v1alpha1.OverrideStaleAnnotation]; !stale {
		t.Errorf("not marked as stale: %v", got.Annotations)
	}
	if got.TemplateLabels[v1alpha1.VersionLabel] != "v1" || got.Labels[v1alpha1.VersionLabel] != "v2" ||
		got.Annotations[v1alpha1.ReleaseAnnotation] != "5" {
		t.Errorf("the template is touched, or the release is not recorded: %+v", got)
	}
}

// TestReleaseSaturates: whatever number a user wrote while the workload was out of the defense, the next release has a
// valid number.
func TestReleaseSaturates(t *testing.T) {
	for stored, want := range map[string]string{
		"4":                     "5",
		"9007199254740990":      "9007199254740991",
		"9007199254740991":      "9007199254740991",
		"9223372036854775807":   "9007199254740991",
		"99999999999999999999":  "9007199254740991",
		"-99999999999999999999": "1",
		"nonsense":              "1",
	} {
		r := makeUpdate().bothAnnotations(v1alpha1.ReleaseAnnotation, stored).release()
		got := ""
		for _, c := range Mutate(r.Request) {
			if c.Key == v1alpha1.ReleaseAnnotation {
				got = c.Value
			}
		}
		if got == "" {
			got = r.New.Annotations[v1alpha1.ReleaseAnnotation]
		}
		if got != want {
			t.Errorf("after %s comes %s, want %s", stored, got, want)
		}
	}
}

func TestVerdictObserved(t *testing.T) {
	denied := Verdict{Message: "deployment sleep is suspended", Warning: "releases are blocked"}
	got := denied.AsWarning("a test")
	if !got.Allowed || got.Message != "" || !strings.Contains(got.Warning, "deployment sleep is suspended") ||
		!strings.Contains(got.Warning, "a test") {
		t.Errorf("a denial became %+v", got)
	}
	if got := (Verdict{Allowed: true}).AsWarning("a test"); got != (Verdict{Allowed: true}) {
		t.Errorf("what is allowed became %+v", got)
	}
}
