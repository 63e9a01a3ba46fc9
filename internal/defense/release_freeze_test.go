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
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func TestBeginFrozen(t *testing.T) {
	const frozen = "shop/calendar/weekend until 2026-03-04T06:06:07Z"
	annotated := func(key, value string) func(*world) {
		return func(w *world) { w.in.Workload.Annotations[key] = value }
	}
	both := func(all ...func(*world)) func(*world) {
		return func(w *world) {
			for _, change := range all {
				change(w)
			}
		}
	}
	unseen := annotated(v1alpha1.ReleasedByAnnotation, workload.UnknownUser)
	observed := func(w *world) { w.observed() }
	for name, test := range map[string]struct {
		change   func(*world)
		event    string
		message  string
		bypassed bool
	}{
		"admission saw it, as a restart": {change: func(*world) {}},
		"no freeze":                      {change: both(unseen, func(w *world) { w.in.FrozenBy = "" })},
		"admission missed it": {change: unseen, event: v1alpha1.EventAdmissionBypassed,
			message: "freeze " + frozen + "; the release is verified", bypassed: true},
		"a new workload": {change: both(unseen, func(w *world) { w.in.History = nil })},
		"with a reason": {change: annotated(v1alpha1.FreezeBrokenAnnotation, record.FreezeBreak{Release: 2, User: "jane",
			Reason: "incident 7"}.String()),
			event: v1alpha1.EventFreezeBroken, message: frozen + ": jane gave the reason: incident 7"},
		"with the reason of an earlier release": {change: both(unseen,
			annotated(v1alpha1.FreezeBrokenAnnotation, record.FreezeBreak{Release: 1, User: "jane", Reason: "incident 7"}.String())),
			event: v1alpha1.EventAdmissionBypassed, bypassed: true},
		"a version that succeeded before": {change: both(unseen, func(w *world) { w.in.History[0].Version = versionA }),
			event: v1alpha1.EventFreezeBroken, message: frozen + ": the version succeeded before"},
		"an override": {change: both(unseen, annotated(v1alpha1.OverrideAnnotation, versionA+" 7 oncall"))},
		"a rollback by the operator": {change: both(unseen, func(w *world) {
			rollback.ParseQuarantine(nil, testNow).With(versionB, rollback.QuarantineReason{Release: 1, To: versionA}).
				Annotate(w.in.Workload.Annotations)
		})},
		"observe mode": {change: observed, event: v1alpha1.EventDryRun, message: "the release would have been denied by " + frozen},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(2).Release(2, versionA)
			w.in.Change.Spec.Release = 2
			w.in.Workload.Annotations[v1alpha1.ReleasedByAnnotation] = "jane"
			w.in.FrozenBy, w.in.FrozenUntil = "shop/calendar/weekend", testNow.Add(time.Hour)
			w.in.History = []workload.Revision{{Version: versionB, Release: 1}}
			test.change(w)
			plan := w.Step()
			i := slices.IndexFunc(plan.Events, func(e record.Event) bool {
				return slices.Contains([]string{v1alpha1.EventAdmissionBypassed, v1alpha1.EventFreezeBroken, v1alpha1.EventDryRun}, e.Reason)
			})
			switch {
			case test.event == "" && i >= 0:
				t.Errorf("the event %+v", plan.Events[i])
			case test.event != "" && (i < 0 || plan.Events[i].Reason != test.event || !strings.Contains(plan.Events[i].Message, test.message)):
				t.Errorf("events %+v", plan.Events)
			}
			s := &w.in.Change.Status
			c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDefended)
			if got := c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonFreezeBypassed; got != test.bypassed ||
				(s.BypassedFreeze != "") != test.bypassed {
				t.Errorf("bypassed %q, condition %+v", s.BypassedFreeze, c)
			}
			if (s.BrokenFreeze == "shop/calendar/weekend") != (test.event == v1alpha1.EventFreezeBroken) {
				t.Errorf("broken: %q", s.BrokenFreeze)
			}
			if !test.bypassed {
				return
			}
			// The condition stays, also after a denied write, and observe mode adds to it.
			w.in.FrozenBy = ""
			NoteDenied(s, 1, testNow, WriteBlock, "no")
			NoteAccepted(s, 1, testNow, WriteBlock)
			w.observed().Step()
			c = meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDefended)
			if c.Reason != v1alpha1.ReasonFreezeBypassed || !strings.Contains(c.Message, "freeze shop/calendar/weekend; observe mode by a test") {
				t.Errorf("later: %+v", c)
			}
		})
	}
}
