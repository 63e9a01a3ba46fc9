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

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
)

func TestUnknownWords(t *testing.T) {
	const prefix = v1alpha1.SettingAnnotationPrefix
	one := func(key, value string) map[string]string { return map[string]string{key: value, "app": "sleep"} }
	for name, test := range map[string]struct {
		labels, annotations map[string]string
		want                []string
	}{
		"others' keys":       {one("defence", "disabled"), one("rollback", "2m"), nil},
		"known":              {one(prefix+"defense", "enforced"), one(prefix+"rollback", "anything"), nil},
		"the operator's own": {one(v1alpha1.VersionLabel, "v1"), one(prefix+"held", "{}"), nil},
		"a label mistyped": {one(prefix+"defence", "disabled"), nil,
			[]string{"label " + prefix + "defence is not known; the nearest known one is " + prefix + "defense"}},
		"of the other prefix": {one("admission-webhook-altershield.antgroup.com/vresion", "v1"), nil,
			[]string{"label admission-webhook-altershield.antgroup.com/vresion is not known; the nearest known one is " + v1alpha1.VersionLabel}},
		"an annotation mistyped": {nil, one(prefix+"roll-back", "2m"),
			[]string{"annotation " + prefix + "roll-back is not known; the nearest known one is " + prefix + "rollback"}},
		"a label that is an annotation": {one(prefix+"rollback", "2m"), nil,
			[]string{"label " + prefix + "rollback has no effect: it is an annotation"}},
		"an annotation that is a label": {nil, one(prefix+"ignored-suspend", "true"),
			[]string{"annotation " + prefix + "ignored-suspend has no effect: it is a label"}},
		"a value mistyped": {one(prefix+"defense", "disable"), nil,
			[]string{"label " + prefix + `defense: the value "disable" is not known; the nearest known one is "disabled"`}},
		"an override mistyped": {one(prefix+"ignored-suspend", "True"), nil,
			[]string{"label " + prefix + `ignored-suspend: the value "True" is not known; the nearest known one is "true"`}},
		"an override that is off": {one(prefix+"ignored-suspend", "false"), nil, nil},
		"a request mistyped": {nil, one(prefix+"rollback-to", "last-succses"),
			[]string{"annotation " + prefix + `rollback-to: the value "last-succses" is not known; the nearest known one is "last-success"`}},
		"a request for a version":    {nil, one(prefix+"rollback-to", "c6c45d23c098bdf181853a85b60b5d74"), nil},
		"a request that was dropped": {nil, one(prefix+"rollback-to", rollback.BeforeOptIn+"x"), nil},
		"a link of the change":       {nil, one(prefix+"change-url", "https://ci.example.com/7"), nil},
		"a parent order":             {nil, one(prefix+"change-order", "CHG-7"), nil},
		"an unusable link": {nil, one(prefix+"change-url", "ci/7"), []string{"annotation " + prefix +
			`change-url is no link: give an http or https URL without a password, of at most 512 bytes; ` +
			`AlterShield Server does not get it`}},
		"a hostile value": {nil, one(prefix+"unquarantine", "\x1b[2J\n"+strings.Repeat("y", 9999)),
			[]string{"annotation " + prefix + `unquarantine: the value "[2J ` + strings.Repeat("y", 249) +
				`..." is not known; the nearest known one is "all"`}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, UnknownWords(test.labels, test.annotations)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestUnknownWordsAreBounded(t *testing.T) {
	many := map[string]string{}
	for i := range 20 {
		many[fmt.Sprintf("%sunknown-%d", v1alpha1.SettingAnnotationPrefix, i)] = ""
	}
	if got := UnknownWords(many, nil); len(got) != maxUnknown+1 || got[maxUnknown] != "12 more labels and annotations are not known" {
		t.Errorf("%q", got)
	}
}

// TestRequestUnknownWords: unusable settings are named, too.
func TestRequestUnknownWords(t *testing.T) {
	typo := func() *admissionWrapper {
		return makeUpdate().annotation(v1alpha1.SettingAnnotationPrefix+"blocking", "of")
	}
	for name, test := range map[string]struct {
		request *admissionWrapper
		want    int
	}{
		"a user's": {typo(), 1}, "the operator's": {typo().own(), 0}, "what is right": {makeUpdate(), 0},
		"opted out": {typo().label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled), 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.request.UnknownWords(); len(got) != test.want ||
				test.want > 0 && !strings.Contains(got[0], `blocking: "of" is neither "enabled" nor "disabled"`) {
				t.Errorf("%q, want %d", got, test.want)
			}
		})
	}
}

func TestMistypedEnrolment(t *testing.T) {
	const nearestIs = " is not known; the nearest known one is admission-webhook-altershield=enabled"
	for name, test := range map[string]struct {
		key, value, want string
	}{
		"enrolled":               {v1alpha1.EnrolledLabel, "enabled", ""},
		"not enrolled":           {v1alpha1.EnrolledLabel, "disabled", ""},
		"another's":              {"kubernetes.io/metadata.name", "enabled", ""},
		"a value mistyped":       {v1alpha1.EnrolledLabel, "enable", "admission-webhook-altershield=enable: only the value enabled counts"},
		"a key mistyped":         {"admission-webhook-altersheild", "enabled", "admission-webhook-altersheild" + nearestIs},
		"a label of a workload":  {v1alpha1.DefenseLabel, "enabled", v1alpha1.DefenseLabel + nearestIs},
		"the label of a version": {v1alpha1.VersionLabel, "v1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := MistypedEnrolment(map[string]string{test.key: test.value}); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abd", 1}, {"abc", "ac", 1}, {"ac", "abc", 1}, {"kitten", "sitting", 3}} {
		if got := distance(test.a, test.b); got != test.want {
			t.Errorf("distance of %q and %q is %d, want %d", test.a, test.b, got, test.want)
		}
	}
}
