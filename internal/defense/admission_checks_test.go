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
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// TestIsChecked: only what releases is checked, and neither what the operator writes nor
// an undo.
func TestIsChecked(t *testing.T) {
	at := func(version string) AdmissionObject { return AdmissionObject{Version: version} }
	optedOut := at("b")
	optedOut.Labels = map[string]string{v1alpha1.DefenseLabel: v1alpha1.DefenseDisabled}
	relabelled := at("a")
	relabelled.Labels, relabelled.TemplateLabels = map[string]string{"a": "b"}, map[string]string{v1alpha1.VersionLabel: "x"}
	for name, test := range map[string]struct {
		request AdmissionRequest
		want    bool
	}{
		"created":                     {AdmissionRequest{Operation: AdmissionCreate, New: at("a")}, true},
		"released":                    {AdmissionRequest{Operation: AdmissionUpdate, Old: at("a"), New: at("b")}, true},
		"scaled":                      {AdmissionRequest{Operation: AdmissionUpdate, Old: at("a"), New: at("a")}, false},
		"other labels":                {AdmissionRequest{Operation: AdmissionUpdate, Old: at("a"), New: relabelled}, false},
		"by the operator":             {AdmissionRequest{Operation: AdmissionUpdate, Own: true, Old: at("a"), New: at("b")}, false},
		"opted out":                   {AdmissionRequest{Operation: AdmissionUpdate, Old: at("a"), New: optedOut}, false},
		"created, opted out":          {AdmissionRequest{Operation: AdmissionCreate, New: optedOut}, false},
		"opted in with a release":     {AdmissionRequest{Operation: AdmissionUpdate, Old: optedOut, New: at("a")}, true},
		"something else than a write": {AdmissionRequest{Operation: "DELETE", Old: at("a")}, false},
		"what admission saw led elsewhere": {AdmissionRequest{Operation: AdmissionUpdate, Old: AdmissionObject{Version: "a",
			Annotations: map[string]string{v1alpha1.AdmittedAnnotation: "b=a"}}, New: at("b")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.request.IsChecked(); got != test.want {
				t.Errorf("checked: %t", got)
			}
		})
	}
}

// TestAdmissionChecks: what a request comes to by what its checks came to.
func TestAdmissionChecks(t *testing.T) {
	failed := func(name, message string) AdmissionCheck {
		return AdmissionCheck{Name: name, Mode: v1alpha1.ModeEnforce, False: message}
	}
	observed := failed("shop/p/b", "no limits")
	observed.Mode = v1alpha1.ModeObserve
	advised := failed("shop/p/a", "no limits")
	advised.Suggestion = "see the handbook"
	unmade := AdmissionCheck{Name: "shop/p/c", Mode: v1alpha1.ModeEnforce, Problem: "it took\nlonger than 2s"}
	both := failed("shop/p/d", "no owner")
	both.Problem = "no such key: x"
	passed := AdmissionCheck{Name: "shop/p/e", Mode: v1alpha1.ModeEnforce}
	for name, test := range map[string]struct {
		observedBy string
		checks     []AdmissionCheck
		denial     string
		warnings   []string
		would      bool
	}{
		"nothing to check": {},
		"passed":           {checks: []AdmissionCheck{passed}},
		"refused":          {checks: []AdmissionCheck{passed, advised}, denial: "deployment sleep is refused by the check shop/p/a: no limits; see the handbook"},
		"refused by a false rule beside an error": {checks: []AdmissionCheck{both}, denial: "deployment sleep is refused by the check shop/p/d: no owner"},
		"refused by two":    {checks: []AdmissionCheck{advised, both}, denial: "deployment sleep is refused by 2 checks: shop/p/a: no limits; see the handbook | shop/p/d: no owner"},
		"in observe mode":   {checks: []AdmissionCheck{observed}, warnings: []string{"deployment sleep would be refused, in enforce mode, by the check shop/p/b: no limits"}},
		"could not be made": {checks: []AdmissionCheck{unmade}, warnings: []string{"deployment sleep passed the check shop/p/c unseen, which could not be made: it took longer than 2s"}},
		"all of it": {checks: []AdmissionCheck{observed, unmade, advised}, denial: "deployment sleep is refused by the check shop/p/a: no limits; see the handbook",
			warnings: []string{"deployment sleep would be refused, in enforce mode, by the check shop/p/b: no limits",
				"deployment sleep passed the check shop/p/c unseen, which could not be made: it took longer than 2s"}},
		"of an observed workload": {observedBy: "the annotation x", checks: []AdmissionCheck{unmade, advised}, would: true, warnings: []string{
			"allowed in observe mode, by the annotation x; enforce mode denies it: deployment sleep is refused by the check shop/p/a: no limits; see the handbook",
			"deployment sleep passed the check shop/p/c unseen, which could not be made: it took longer than 2s"}},
		"of an observed workload that passes": {observedBy: "the annotation x", checks: []AdmissionCheck{passed}},
	} {
		t.Run(name, func(t *testing.T) {
			got := AdmissionChecks{Kind: "deployment", Name: "sleep", ObservedBy: test.observedBy, Checks: test.checks}.Decide()
			if got.Denial != test.denial || got.WouldDeny != test.would || strings.Join(got.Warnings, "\n") != strings.Join(test.warnings, "\n") {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestAdmissionChecksAreBrief: however much checks have to say, all of those that refuse
// are named, and the answer is bounded.
func TestAdmissionChecksAreBrief(t *testing.T) {
	checks := AdmissionChecks{Kind: "deployment", Name: "sleep"}
	for i := range 32 {
		c := AdmissionCheck{Name: fmt.Sprintf("%s/%s/%03d", strings.Repeat("n", 63), strings.Repeat("p", 63), i), Mode: v1alpha1.ModeEnforce,
			False: strings.Repeat("ä", 1024), Suggestion: strings.Repeat("b", 1024)}
		checks.Checks = append(checks.Checks, c)
	}
	got := checks.Decide()
	if len(got.Denial) > 10<<10 || !utf8.ValidString(got.Denial) {
		t.Errorf("%d bytes: %s", len(got.Denial), got.Denial)
	}
	for i := range checks.Checks {
		if !strings.Contains(got.Denial, checks.Checks[i].Name+": ä") {
			t.Errorf("it does not name %s", checks.Checks[i].Name)
		}
		checks.Checks[i].Mode = v1alpha1.ModeObserve
	}
	got = checks.Decide()
	if got.Denial != "" || len(got.Warnings) != maxWarnings+1 || got.Warnings[maxWarnings] != "the same of 24 more checks" || len(got.Warnings[0]) > 1024 {
		t.Errorf("%d warnings: %q", len(got.Warnings), got.Warnings)
	}
}

// TestSlipped: what was recorded without a user slipped, and only that.
func TestSlipped(t *testing.T) {
	change := &v1alpha1.ChangeWorkload{Spec: v1alpha1.ChangeWorkloadSpec{Release: 2}}
	by := func(release, user string) *Workload {
		return &Workload{Annotations: map[string]string{v1alpha1.ReleaseAnnotation: release, v1alpha1.ReleasedByAnnotation: user}}
	}
	rolledBackWorkload := func() *Workload {
		w := by("2", UnknownUser)
		w.Version = versionA
		w.Annotations[v1alpha1.QuarantinedAnnotation] = versionB
		w.Annotations[v1alpha1.QuarantineReasonAnnotation] = `{"` + versionB + `":{"to":"` + versionA + `","release":1}}`
		return w
	}
	for name, test := range map[string]struct {
		workload *Workload
		want     bool
	}{
		"by nobody knows whom": {by("2", UnknownUser), true},
		"by a user":            {by("2", "somebody"), false},
		"by the operator":      {by("2", v1alpha1.FieldManager), false},
		"by a rollback that admission did not see": {rolledBackWorkload(), false},
		"another release":                          {by("3", UnknownUser), false},
		"no workload":                              {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Slipped(test.workload, change); got != test.want {
				t.Errorf("slipped: %t", got)
			}
		})
	}
}
