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
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// TestIsChecked: only releases are checked, except the operator's own and undos.
func TestIsChecked(t *testing.T) {
	at := func(version string) Object { return Object{Version: version} }
	optedOut := at("b")
	optedOut.Labels = map[string]string{v1alpha1.DefenseLabel: v1alpha1.DefenseDisabled}
	relabelled := at("a")
	relabelled.Labels, relabelled.TemplateLabels = map[string]string{"a": "b"}, map[string]string{v1alpha1.VersionLabel: "x"}
	for name, test := range map[string]struct {
		request Request
		want    bool
	}{
		"created":                     {Request{Operation: Create, New: at("a")}, true},
		"released":                    {Request{Operation: Update, Old: at("a"), New: at("b")}, true},
		"scaled":                      {Request{Operation: Update, Old: at("a"), New: at("a")}, false},
		"other labels":                {Request{Operation: Update, Old: at("a"), New: relabelled}, false},
		"by the operator":             {Request{Operation: Update, Own: true, Old: at("a"), New: at("b")}, false},
		"opted out":                   {Request{Operation: Update, Old: at("a"), New: optedOut}, false},
		"created, opted out":          {Request{Operation: Create, New: optedOut}, false},
		"opted in with a release":     {Request{Operation: Update, Old: optedOut, New: at("a")}, true},
		"something else than a write": {Request{Operation: "DELETE", Old: at("a")}, false},
		"what admission saw led elsewhere": {Request{Operation: Update, Old: Object{Version: "a",
			Annotations: map[string]string{v1alpha1.AdmittedAnnotation: "b=a"}}, New: at("b")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.request.IsChecked(); got != test.want {
				t.Errorf("checked: %t", got)
			}
		})
	}
}

// TestAdmissionChecks: the answer to a request follows from its checks.
func TestAdmissionChecks(t *testing.T) {
	failed := func(name, message string) Check {
		return Check{Name: name, Mode: v1alpha1.ModeEnforce, False: message}
	}
	observed := failed("shop/p/b", "no limits")
	observed.Mode = v1alpha1.ModeObserve
	advised := failed("shop/p/a", "no limits")
	advised.Suggestion = "see the handbook"
	unmade := Check{Name: "shop/p/c", Mode: v1alpha1.ModeEnforce, Problem: "it took\nlonger than 2s"}
	both := failed("shop/p/d", "no owner")
	both.Problem = "no such key: x"
	passed := Check{Name: "shop/p/e", Mode: v1alpha1.ModeEnforce}
	for name, test := range map[string]struct {
		observedBy string
		checks     []Check
		denial     string
		warnings   []string
		would      bool
	}{
		"nothing to check": {},
		"passed":           {checks: []Check{passed}},
		"refused": {checks: []Check{passed, advised},
			denial: "deployment sleep is refused by the check shop/p/a: no limits; see the handbook"},
		"refused by a false rule beside an error": {checks: []Check{both}, denial: "deployment sleep is refused by the check shop/p/d: no owner"},
		"refused by two": {checks: []Check{advised, both},
			denial: "deployment sleep is refused by 2 checks: shop/p/a: no limits; see the handbook | shop/p/d: no owner"},
		"in observe mode": {checks: []Check{observed},
			warnings: []string{"deployment sleep would be refused, in enforce mode, by the check shop/p/b: no limits"}},
		"could not be made": {checks: []Check{unmade},
			warnings: []string{"deployment sleep passed without the check shop/p/c, which could not be made: it took longer than 2s"}},
		"all of it": {checks: []Check{observed, unmade, advised},
			denial: "deployment sleep is refused by the check shop/p/a: no limits; see the handbook",
			warnings: []string{"deployment sleep would be refused, in enforce mode, by the check shop/p/b: no limits",
				"deployment sleep passed without the check shop/p/c, which could not be made: it took longer than 2s"}},
		"of an observed workload": {observedBy: "the annotation x", checks: []Check{unmade, advised}, would: true, warnings: []string{
			"allowed in observe mode, by the annotation x; enforce mode denies it: deployment sleep is refused by the check shop/p/a: no " +
				"limits; see the handbook",
			"deployment sleep passed without the check shop/p/c, which could not be made: it took longer than 2s"}},
		"of an observed workload that passes": {observedBy: "the annotation x", checks: []Check{passed}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Checks{Kind: "deployment", Name: "sleep", ObservedBy: test.observedBy, Checks: test.checks}.Decide()
			if got.Denial != test.denial || got.WouldDeny != test.would || strings.Join(got.Warnings, "\n") != strings.Join(test.warnings, "\n") {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestAdmissionChecksAreBrief: the answer names all checks that refuse, and its length is bounded.
func TestAdmissionChecksAreBrief(t *testing.T) {
	checks := Checks{Kind: "deployment", Name: "sleep"}
	for i := range 32 {
		c := Check{Name: fmt.Sprintf("%s/%s/%03d", strings.Repeat("n", 63), strings.Repeat("p", 63), i), Mode: v1alpha1.ModeEnforce,
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
	if got.Denial != "" || len(got.Warnings) != maxWarnings+1 || got.Warnings[maxWarnings] != "24 more checks have warnings" ||
		len(got.Warnings[0]) > 1024 {
		t.Errorf("%d warnings: %q", len(got.Warnings), got.Warnings)
	}
}
