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
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// broken is a record of a reason that was used at a resource version.
func broken(resourceVersion, reason string) string {
	return record.FreezeBreak{Release: 4, ResourceVersion: resourceVersion, User: "jane", Reason: reason}.String()
}

func TestValidateFreeze(t *testing.T) {
	until := time.Date(2026, 11, 30, 9, 0, 0, 0, time.FixedZone("", 3600))
	deny := Freeze{Name: "shop/calendar/weekend", Until: until, Denies: true}
	warn, observed, restart := Freeze{Name: "shop/calendar/weekend", Until: until}, deny, deny
	observed.Denies, observed.Observed = false, true
	restart.RestartOnly = true
	const (
		key    = v1alpha1.BreakFreezeAnnotation
		frozen = "deployment sleep is frozen until 2026-11-30T08:00:00Z by shop/calendar/weekend"
		denied = frozen + ": new releases are denied; apply it again after that time, or give a reason in the same request by the annotation " +
			key
		stay  = "; objects that were applied before it stay applied"
		again = "; the given reason was there before: give another one"
	)
	update := func() *admissionWrapper { return makeUpdate().release() }
	optedOut := func(w *admissionWrapper) *admissionWrapper {
		return w.label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled)
	}
	own := update()
	own.Own = true
	created := update()
	created.Operation = Create
	both := optedOut(update())
	both.Old.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled
	optedIn := update()
	optedIn.Old.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled
	remembered := update()
	remembered.Past = &rollback.Past{History: []workload.Revision{{Version: "v2", Release: 2}}}
	others := update()
	others.Past = &rollback.Past{History: []workload.Revision{{Version: "v0", Release: 2}}}
	kept := update().annotation(key, "incident 7")
	kept.Old.Annotations[key] = "incident 7"
	for name, test := range map[string]struct {
		request         *admissionWrapper
		freeze          Freeze
		denied, warning string
	}{
		"a release":                  {update(), deny, denied + stay, ""},
		"no release":                 {makeUpdate(), deny, "", ""},
		"a new workload":             {created, deny, "", ""},
		"the operator's own":         {own, deny, "", ""},
		"in the time of a warning":   {update(), warn, "", frozen + ", and is released nevertheless"},
		"a policy that observes":     {update(), observed, denied + stay, ""},
		"a restart of its pods":      {update(), restart, "", frozen + ", and restarts its pods"},
		"opted out before and after": {both, deny, "", ""},
		"opted out in the request":   {optedOut(update()), deny, denied + stay, ""},
		"opted in in the request":    {optedIn, deny, denied + stay, ""},
		"a version that succeeded":   {remembered, deny, "", ""},
		"another version succeeded":  {others, deny, denied + stay, ""},
		"an undo":                    {makeFailed(), deny, "", ""},
		"an override": {makeBlocked().release().label(v1alpha1.IgnoredSuspendLabel,
			v1alpha1.IgnoredSuspendValue), deny, "", ""},
		"the label of an override, not blocked": {update().label(v1alpha1.IgnoredSuspendLabel, v1alpha1.IgnoredSuspendValue), deny,
			denied + stay, ""},
		"with a reason":                  {update().annotation(key, "incident 7"), deny, "", ""},
		"with an empty reason":           {update().annotation(key, " "), deny, denied + stay, ""},
		"with the reason that lay there": {kept, deny, denied + again + stay, ""},
		"with the reason of an earlier release": {update().annotation(key, " incident 7 ").
			bothAnnotations(v1alpha1.FreezeBrokenAnnotation, broken("1", "incident 7")), deny, denied + again + stay, ""},
		"with another reason than an earlier one": {update().annotation(key, "incident 8").
			bothAnnotations(v1alpha1.FreezeBrokenAnnotation, broken("1", "incident 7")), deny, "", ""},
		"with a forged record of another time": {update().annotation(v1alpha1.FreezeBrokenAnnotation, broken("1", "incident 7")),
			deny, denied + stay, ""},
		"with a record that is no record": {update().annotation(v1alpha1.FreezeBrokenAnnotation, "incident 7"), deny, denied + stay, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ValidateFreeze(test.request.Request, test.freeze)
			if got.Message != test.denied || got.Warning != test.warning || got.Allowed != (test.denied == "") {
				t.Errorf("got %+v", got)
			}
			if strings.Contains(got.Message, "\n") {
				t.Error("the message has several lines")
			}
		})
	}
}

// TestFreezeBreak: a reason counts for one release, is taken off in it, and leaves a record with the user.
func TestFreezeBreak(t *testing.T) {
	const key = v1alpha1.BreakFreezeAnnotation
	freeze := Freeze{Name: "shop/calendar/weekend", Denies: true}
	first := makeUpdate().release().annotation(key, " incident 7 ")
	first.User, first.Old.ResourceVersion = "jane", "41"
	stored := mutated(first)
	if got, ok := stored.Annotations[key]; ok {
		t.Errorf("the annotation stays: %q", got)
	}
	want := record.FreezeBreak{Release: 5, ResourceVersion: "41", User: "jane", Reason: "incident 7"}
	if got := record.ParseFreezeBreak(stored.Annotations[v1alpha1.FreezeBrokenAnnotation]); got != want {
		t.Errorf("recorded %+v, want %+v", got, want)
	}

	// Mutation is called again after another webhook, and then validation.
	again := first.Request
	again.New = stored
	if changes := Mutate(again); len(changes) > 0 {
		t.Errorf("a second call changes %+v", changes)
	}
	if got := ValidateFreeze(again, freeze); !got.Allowed {
		t.Errorf("after mutation: %s", got.Message)
	}

	// Git brings the annotation back: without a release it is left alone, and in the next one it does not count.
	next := makeUpdate().annotation(key, "incident 7")
	next.Old.Annotations, next.Old.ResourceVersion = cloned(stored.Annotations), "42"
	next.New.Annotations[v1alpha1.FreezeBrokenAnnotation] = stored.Annotations[v1alpha1.FreezeBrokenAnnotation]
	if got := mutated(next).Annotations[key]; got != "incident 7" {
		t.Errorf("without a release it becomes %q", got)
	}
	next.release()
	if got := ValidateFreeze(next.Request, freeze); got.Allowed {
		t.Error("the same reason passed a second release")
	}
	if got := mutated(next).Annotations[v1alpha1.FreezeBrokenAnnotation]; got != stored.Annotations[v1alpha1.FreezeBrokenAnnotation] {
		t.Errorf("the record became %s", got)
	}

	// A copied manifest brings neither.
	created := makeUpdate().annotation(key, "incident 7").annotation(v1alpha1.FreezeBrokenAnnotation, broken("1", "x"))
	created.Operation, created.Old = Create, Object{}
	for _, k := range []string{key, v1alpha1.FreezeBrokenAnnotation} {
		if got, ok := mutated(created).Annotations[k]; ok {
			t.Errorf("a new workload has %s: %q", k, got)
		}
	}
}
