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

package settings

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

func named(name string, kind v1alpha1.OpsConfigType) *wrappers.OpsConfigInfoWrapper {
	return wrappers.MakeOpsConfigInfo("ns", name, kind)
}

func stored(settings ...*wrappers.OpsConfigInfoWrapper) (objects []v1alpha1.OpsConfigInfo) {
	for _, s := range settings {
		objects = append(objects, *s.Obj())
	}
	return objects
}

func TestFromObjects(t *testing.T) {
	initial := Settings{
		Blocking: true, Halting: true, History: 10, BatchSize: 1, AdmissionTimeout: 2 * time.Second,
		Wait: time.Minute, PreTimeout: 2 * time.Minute, PostTimeout: 2 * time.Minute, Settle: 10 * time.Second,
		Rollback: true, RollbackAfter: 2 * time.Minute, RollbackSlow: 10 * time.Minute, RollbackTolerate: 10, RollbackProven: 5 * time.Minute,
		Quarantine: true, QuarantineFor: time.Hour, Limit: true, LimitCount: 5, LimitWindow: 10 * time.Minute,
		Hold: v1alpha1.HoldNone, Eviction: true, HoldAtMost: 30 * time.Minute,
	}
	with := func(change func(*Settings)) Settings {
		s := initial
		change(&s)
		return s
	}
	for name, test := range map[string]struct {
		objects []v1alpha1.OpsConfigInfo
		want    Settings
	}{
		"none":           {nil, initial},
		"the defaults":   {DefaultObjects("ns"), initial},
		"blocking off":   {stored(named("blocking", v1alpha1.TypeBlocking).Off("")), with(func(s *Settings) { s.Blocking = false })},
		"branch on":      {stored(named("branch", v1alpha1.TypeBranch).On("7")), with(func(s *Settings) { s.BatchSize = 7 })},
		"branch off":     {stored(named("branch", v1alpha1.TypeBranch).Off("7")), initial},
		"branch invalid": {stored(named("branch", v1alpha1.TypeBranch).On("seven")), initial},
		"last valid": {
			stored(named("branch", v1alpha1.TypeBranch).On("seven").InForce(true, "7")), with(func(s *Settings) { s.BatchSize = 7 }),
		},
		"last valid is invalid": {stored(named("branch", v1alpha1.TypeBranch).On("seven").InForce(true, "0")), initial},
		"of another type": {
			stored(named("branch", v1alpha1.TypeTimeouts).On("wait=1s").InForce(true, "3")), with(func(s *Settings) { s.BatchSize = 3 }),
		},
		"unknown name": {stored(named("branches", v1alpha1.TypeBranch).On("7")), initial},
		"timeouts": {stored(named("timeouts", v1alpha1.TypeTimeouts).On("post=5s,wait=1m30s")),
			with(func(s *Settings) { s.PostTimeout, s.Wait = 5*time.Second, 90*time.Second })},
		"silence fails": {stored(named("silence", v1alpha1.TypeSilence).On("")), with(func(s *Settings) { s.SilenceFails = true })},
		"admission check": {stored(named("admission", v1alpha1.TypeAdmission).On("500ms")),
			with(func(s *Settings) { s.AdmissionCheck, s.AdmissionTimeout = true, 500*time.Millisecond })},
		"admission check off": {stored(named("admission", v1alpha1.TypeAdmission).Off("500ms")), initial},
		"history":             {stored(named("history", v1alpha1.TypeHistory).On("3")), with(func(s *Settings) { s.History = 3 })},
		"history off":         {stored(named("history", v1alpha1.TypeHistory).Off("3")), with(func(s *Settings) { s.History = 0 })},
		"halting off":         {stored(named("halting", v1alpha1.TypeHalting).Off("")), with(func(s *Settings) { s.Halting = false })},
		"timeouts off":        {stored(named("timeouts", v1alpha1.TypeTimeouts).Off("wait=1s")), initial},
		"rollback": {
			stored(named("rollback", v1alpha1.TypeRollback).On("10m")), with(func(s *Settings) { s.RollbackAfter = 10 * time.Minute }),
		},
		"rollback in parts": {stored(named("rollback", v1alpha1.TypeRollback).On("after=1m,slow=20m,tolerate=25%")), with(func(s *Settings) {
			s.RollbackAfter, s.RollbackSlow, s.RollbackTolerate = time.Minute, 20*time.Minute, 25
		})},
		"never after success": {
			stored(named("rollback", v1alpha1.TypeRollback).On("proven=0")), with(func(s *Settings) { s.RollbackProven = 0 }),
		},
		"rollback in part": {
			stored(named("rollback", v1alpha1.TypeRollback).On("tolerate=0")), with(func(s *Settings) { s.RollbackTolerate = 0 }),
		},
		"settling": {
			stored(named("timeouts", v1alpha1.TypeTimeouts).On("settle=1m")), with(func(s *Settings) { s.Settle = time.Minute }),
		},
		"settling off":     {stored(named("timeouts", v1alpha1.TypeTimeouts).On("settle=0")), with(func(s *Settings) { s.Settle = 0 })},
		"settling off, 0s": {stored(named("timeouts", v1alpha1.TypeTimeouts).On("settle=0s")), with(func(s *Settings) { s.Settle = 0 })},
		"without settling": {stored(named("timeouts", v1alpha1.TypeTimeouts).On("wait=60s,pre=120s,post=120s")), initial},
		"observe":          {stored(named("observe", v1alpha1.TypeObserve).On("")), with(func(s *Settings) { s.Observe = true })},
		"quarantine": {
			stored(named("quarantine", v1alpha1.TypeQuarantine).On("30m")), with(func(s *Settings) { s.QuarantineFor = 30 * time.Minute }),
		},
		"quarantine off": {
			stored(named("quarantine", v1alpha1.TypeQuarantine).Off("30m")), with(func(s *Settings) { s.Quarantine = false }),
		},
		"limit": {
			stored(named("limit", v1alpha1.TypeLimit).On("1/1h30m")), with(func(s *Settings) { s.LimitCount, s.LimitWindow = 1, 90*time.Minute }),
		},
		"eviction":     {stored(named("eviction", v1alpha1.TypeEviction).On("")), initial},
		"eviction off": {stored(named("eviction", v1alpha1.TypeEviction).Off("")), with(func(s *Settings) { s.Eviction = false })},
		"limit off":    {stored(named("limit", v1alpha1.TypeLimit).Off("no")), with(func(s *Settings) { s.Limit = false })},
		"holding the first": {
			stored(named("holding", v1alpha1.TypeHolding).On("first")), with(func(s *Settings) { s.Hold = v1alpha1.HoldFirstBatch }),
		},
		"holding every": {stored(named("holding", v1alpha1.TypeHolding).On("every,atMost=1h30m")), with(func(s *Settings) {
			s.Hold, s.HoldAtMost = v1alpha1.HoldEveryBatch, 90*time.Minute
		})},
		"holding DaemonSets": {stored(named("holding", v1alpha1.TypeHolding).On("every,daemonsets,atMost=1h")), with(func(s *Settings) {
			s.Hold, s.HoldDaemonSets, s.HoldAtMost = v1alpha1.HoldEveryBatch, true, time.Hour
		})},
		"holding off":     {stored(named("holding", v1alpha1.TypeHolding).Off("every,atMost=1h")), initial},
		"holding invalid": {stored(named("holding", v1alpha1.TypeHolding).On("second")), initial},
		"holding, last valid": {
			stored(named("holding", v1alpha1.TypeHolding).On("second").InForce(true, "first")),
			with(func(s *Settings) { s.Hold = v1alpha1.HoldFirstBatch }),
		},
		"rollback off": {stored(named("rollback", v1alpha1.TypeRollback).Off("10m")), with(func(s *Settings) { s.Rollback = false })},
		"self-healing": {stored(named("selfhealing", v1alpha1.TypeSelfHealing).On("")), with(func(s *Settings) { s.SelfHealing = true })},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, FromObjects(test.objects)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestAnnotations(t *testing.T) {
	operator := stored(named("branch", v1alpha1.TypeBranch).Off("7"), named("rollback", v1alpha1.TypeRollback).On("after=3m,slow=15m"))
	general := FromObjects(operator)
	for name, test := range map[string]struct {
		annotations map[string]string
		want        func(*Settings)
		problems    []string // a part of each
	}{
		"none":         {nil, func(*Settings) {}, nil},
		"of others":    {map[string]string{"branch": "5"}, func(*Settings) {}, nil},
		"branch":       {map[string]string{"branch!": "5"}, func(s *Settings) { s.BatchSize = 5 }, nil},
		"branch off":   {map[string]string{"branch!": "disabled"}, func(s *Settings) { s.BatchSize = 1 }, nil},
		"branch wrong": {map[string]string{"branch!": "many"}, func(*Settings) {}, []string{"altershield.defense.antgroup.com/branch"}},
		"rollback":     {map[string]string{"rollback!": "10m"}, func(s *Settings) { s.RollbackAfter = 10 * time.Minute }, nil},
		"rollback off": {map[string]string{"rollback!": "disabled"}, func(s *Settings) { s.Rollback = false }, nil},
		"rollback in part": {
			map[string]string{"rollback!": "slow=1h,tolerate=5%"}, func(s *Settings) { s.RollbackSlow, s.RollbackTolerate = time.Hour, 5 }, nil,
		},
		"rollback unitless": {map[string]string{"rollback!": "after=1m,slow=20"}, func(*Settings) {}, []string{"slow=20"}},
		"settling off":      {map[string]string{"timeouts!": "settle=0"}, func(s *Settings) { s.Settle = 0 }, nil},
		"rollback wrong":    {map[string]string{"rollback!": "soon"}, func(*Settings) {}, []string{`"2m"`}},
		"silence":           {map[string]string{"silence!": "enabled"}, func(s *Settings) { s.SilenceFails = true }, nil},
		"silence off":       {map[string]string{"silence!": " disabled "}, func(s *Settings) { s.SilenceFails = false }, nil},
		"branch on":         {map[string]string{"branch!": "enabled"}, func(s *Settings) { s.BatchSize = 7 }, nil},
		"rollback on":       {map[string]string{"rollback!": "enabled"}, func(*Settings) {}, nil},
		"blocking off":      {map[string]string{"blocking!": "disabled"}, func(s *Settings) { s.Blocking = false }, nil},
		"blocking wrong":    {map[string]string{"blocking!": "5"}, func(*Settings) {}, []string{`"disabled"`}},
		"halting off":       {map[string]string{"halting!": "disabled"}, func(s *Settings) { s.Halting = false }, nil},
		"self-healing":      {map[string]string{"selfhealing!": "enabled"}, func(s *Settings) { s.SelfHealing = true }, nil},
		"observe":           {map[string]string{"observe!": "enabled"}, func(s *Settings) { s.Observe = true }, nil},
		"not by workloads": {
			map[string]string{"quarantine!": "disabled", "limit!": "disabled", "history!": "1", "admission!": "enabled", "eviction!": "disabled"},
			func(*Settings) {}, nil,
		},
		"silence wrong":     {map[string]string{"silence!": "loud"}, func(*Settings) {}, []string{`"enabled"`}},
		"timeouts in part":  {map[string]string{"timeouts!": "post=5m"}, func(s *Settings) { s.PostTimeout = 5 * time.Minute }, nil},
		"timeouts off":      {map[string]string{"timeouts!": "disabled"}, func(*Settings) {}, nil},
		"timeouts half bad": {map[string]string{"timeouts!": "post=5m,pre=soon"}, func(*Settings) {}, []string{"pre=soon"}},
		"holding": {map[string]string{"holding!": "every,atMost=10m"}, func(s *Settings) {
			s.Hold, s.HoldAtMost = v1alpha1.HoldEveryBatch, 10*time.Minute
		}, nil},
		"holding on":  {map[string]string{"holding!": "enabled"}, func(s *Settings) { s.Hold = v1alpha1.HoldFirstBatch }, nil},
		"holding off": {map[string]string{"holding!": "disabled"}, func(*Settings) {}, nil},
		"holding, blanks": {
			map[string]string{"holding!": " first , atMost=5m "},
			func(s *Settings) { s.Hold, s.HoldAtMost = v1alpha1.HoldFirstBatch, 5*time.Minute }, nil,
		},
		"holding wrong": {map[string]string{"holding!": "always"}, func(*Settings) {}, []string{`write "first" or "every"`}},
		"holding too long": {
			map[string]string{"holding!": "every,atMost=3h"}, func(*Settings) {}, []string{`"atMost=3h": not a duration from 1m to 2h`},
		},
		"several wrong": {map[string]string{"branch!": "0", "timeouts!": "x"}, func(*Settings) {}, []string{"branch", "timeouts"}},
	} {
		t.Run(name, func(t *testing.T) {
			annotations := map[string]string{}
			for key, value := range test.annotations {
				if short, ours := strings.CutSuffix(key, "!"); ours {
					key = v1alpha1.SettingAnnotationPrefix + short
				}
				annotations[key] = value
			}
			want := general
			test.want(&want)
			in := For(operator, nil, annotations)
			problems := in.Problems
			if diff := cmp.Diff(want, in.Settings); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if len(problems) != len(test.problems) {
				t.Fatalf("problems %q, want %d", problems, len(test.problems))
			}
			for i, p := range problems {
				if !strings.Contains(p, test.problems[i]) || strings.Contains(p, "\n") {
					t.Errorf("problem %q, want one line that names %q", p, test.problems[i])
				}
			}
		})
	}
}

func TestAssess(t *testing.T) {
	for name, test := range map[string]struct {
		setting  *wrappers.OpsConfigInfoWrapper
		accepted bool
		reason   string
		names    string // a part of the message
	}{
		"valid":              {named("branch", v1alpha1.TypeBranch).On("7"), true, v1alpha1.ReasonInForce, ""},
		"disabled, anything": {named("branch", v1alpha1.TypeBranch).Off("seven"), true, v1alpha1.ReasonInForce, ""},
		"no number":          {named("branch", v1alpha1.TypeBranch).On("seven"), false, v1alpha1.ReasonInvalidContent, "spec.content"},
		"too large":          {named("branch", v1alpha1.TypeBranch).On("201"), false, v1alpha1.ReasonInvalidContent, "from 1 to 200"},
		"negative":           {named("branch", v1alpha1.TypeBranch).On("-1"), false, v1alpha1.ReasonInvalidContent, "default"},
		"in force instead": {
			named("branch", v1alpha1.TypeBranch).On("-1").InForce(true, "7"), false, v1alpha1.ReasonInvalidContent, `content="7"`,
		},
		"off instead": {
			named("branch", v1alpha1.TypeBranch).On("-1").InForce(false, "7"), false, v1alpha1.ReasonInvalidContent, `enable=false content="7"`,
		},
		"other type":        {named("branch", v1alpha1.TypeBlocking).On(""), false, v1alpha1.ReasonTypeMismatch, "isBranch"},
		"unknown":           {named("brunch", v1alpha1.TypeBranch).On("7"), false, v1alpha1.ReasonUnknownName, "metadata.name"},
		"rollback too soon": {named("rollback", v1alpha1.TypeRollback).On("10ms"), false, v1alpha1.ReasonInvalidContent, `"2m"`},
		"threshold twice": {
			named("timeouts", v1alpha1.TypeTimeouts).On("wait=5s,wait=6s"), false, v1alpha1.ReasonInvalidContent, "at most once",
		},
		"threshold unknown":   {named("timeouts", v1alpha1.TypeTimeouts).On("wiat=5s"), false, v1alpha1.ReasonInvalidContent, "wait=60s"},
		"threshold too short": {named("timeouts", v1alpha1.TypeTimeouts).On("wait=5ms"), false, v1alpha1.ReasonInvalidContent, "at least 1s"},
		"history too long":    {named("history", v1alpha1.TypeHistory).On("101"), false, v1alpha1.ReasonInvalidContent, "from 1 to 100"},
		"admission too long":  {named("admission", v1alpha1.TypeAdmission).On("3s"), false, v1alpha1.ReasonInvalidContent, "2.9s"},
		"settling too short":  {named("timeouts", v1alpha1.TypeTimeouts).On("settle=5ms"), false, v1alpha1.ReasonInvalidContent, "neither 0 nor"},
		"rollback part twice": {
			named("rollback", v1alpha1.TypeRollback).On("slow=5m,slow=6m"), false, v1alpha1.ReasonInvalidContent, "at most once",
		},
		"rollback no slow":    {named("rollback", v1alpha1.TypeRollback).On("slow=0"), false, v1alpha1.ReasonInvalidContent, "at least 1s"},
		"proven too long":     {named("rollback", v1alpha1.TypeRollback).On("proven=61m"), false, v1alpha1.ReasonInvalidContent, "from 1s to 1h"},
		"tolerates a number":  {named("rollback", v1alpha1.TypeRollback).On("tolerate=10"), false, v1alpha1.ReasonInvalidContent, "100%"},
		"tolerates too many":  {named("rollback", v1alpha1.TypeRollback).On("tolerate=101%"), false, v1alpha1.ReasonInvalidContent, "100%"},
		"tolerates negative":  {named("rollback", v1alpha1.TypeRollback).On("tolerate=-1%"), false, v1alpha1.ReasonInvalidContent, "100%"},
		"quarantine too long": {named("quarantine", v1alpha1.TypeQuarantine).On("25h"), false, v1alpha1.ReasonInvalidContent, "24h"},
		"quarantine unitless": {named("quarantine", v1alpha1.TypeQuarantine).On("60"), false, v1alpha1.ReasonInvalidContent, `"1h"`},
		"limit of none":       {named("limit", v1alpha1.TypeLimit).On("0/10m"), false, v1alpha1.ReasonInvalidContent, `"5/10m"`},
		"limit without time":  {named("limit", v1alpha1.TypeLimit).On("5"), false, v1alpha1.ReasonInvalidContent, `"5/10m"`},
		"limit too long":      {named("limit", v1alpha1.TypeLimit).On("5/25h"), false, v1alpha1.ReasonInvalidContent, "24h"},
		"holding DaemonSets with a value": {
			named("holding", v1alpha1.TypeHolding).On("first,daemonsets=yes"), false, v1alpha1.ReasonInvalidContent, "no value",
		},
		"holding for nothing": {named("holding", v1alpha1.TypeHolding).On(""), false, v1alpha1.ReasonInvalidContent, `"first"`},
		"holding too short": {
			named("holding", v1alpha1.TypeHolding).On("first,atMost=59s"), false, v1alpha1.ReasonInvalidContent, "from 1m to 2h",
		},
		"holding too long": {
			named("holding", v1alpha1.TypeHolding).On("first,atMost=2h1s"), false, v1alpha1.ReasonInvalidContent, "from 1m to 2h",
		},
		"holding unitless": {
			named("holding", v1alpha1.TypeHolding).On("first,atMost=30"), false, v1alpha1.ReasonInvalidContent, `"every,atMost=30m"`,
		},
		"holding twice": {
			named("holding", v1alpha1.TypeHolding).On("every,atMost=5m,atMost=6m"), false, v1alpha1.ReasonInvalidContent, "at most once",
		},
		"holding, empty part": {
			named("holding", v1alpha1.TypeHolding).On("every,"), false, v1alpha1.ReasonInvalidContent, "the parts are atMost",
		},
		"holding part first": {named("holding", v1alpha1.TypeHolding).On("atMost=5m,every"), false, v1alpha1.ReasonInvalidContent, `"first"`},
		"no thresholds":      {named("timeouts", v1alpha1.TypeTimeouts).On(""), false, v1alpha1.ReasonInvalidContent, "wait=60s"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Assess(test.setting.Obj())
			if got.Accepted != test.accepted || got.Reason != test.reason || !strings.Contains(got.Message, test.names) {
				t.Errorf("got %+v, want accepted %t, reason %s, message with %q", got, test.accepted, test.reason, test.names)
			}
		})
	}
}

// TestDefaults checks that every default is valid, as Default assumes.
func TestDefaults(t *testing.T) {
	for name, k := range known {
		if k.apply == nil {
			continue
		}
		var s Settings
		if err := k.apply(&s, k.initial); err != nil {
			t.Errorf("default of %s: %v", name, err)
		}
	}
	for _, o := range DefaultObjects("ns") {
		if a := Assess(&o); !a.Accepted {
			t.Errorf("default object %s: %s", o.Name, a.Message)
		}
	}
	if len(names()) != len(known) {
		t.Errorf("%d names are listed, %d known", len(names()), len(known))
	}
}

// TestAlsoHold checks that the strictest hold counts, with the longest time.
func TestAlsoHold(t *testing.T) {
	const none, first, every = v1alpha1.HoldNone, v1alpha1.HoldFirstBatch, v1alpha1.HoldEveryBatch
	for name, test := range map[string]struct {
		until                  v1alpha1.HoldUntil
		atMost                 time.Duration
		also                   v1alpha1.HoldUntil
		alsoAtMost, wantAtMost time.Duration
		want                   v1alpha1.HoldUntil
	}{
		"neither":                         {none, time.Hour, none, time.Minute, time.Hour, none},
		"neither is set":                  {"", time.Hour, "", time.Minute, time.Hour, ""},
		"only the other":                  {none, time.Hour, first, time.Minute, time.Minute, first},
		"the other if one is not set":     {"", time.Hour, every, time.Minute, time.Minute, every},
		"only the first":                  {first, time.Minute, none, time.Hour, time.Minute, first},
		"both the same":                   {first, time.Minute, first, time.Hour, time.Hour, first},
		"the other stricter, and shorter": {first, time.Hour, every, time.Minute, time.Hour, every},
		"the other laxer, and longer":     {every, time.Minute, first, time.Hour, time.Hour, every},
	} {
		t.Run(name, func(t *testing.T) {
			s := Settings{Hold: test.until, HoldAtMost: test.atMost}
			if s.AlsoHold(test.also, test.alsoAtMost); s.Hold != test.want || s.HoldAtMost != test.wantAtMost {
				t.Errorf("%q for %s, want %q for %s", s.Hold, s.HoldAtMost, test.want, test.wantAtMost)
			}
		})
	}
}

// TestCounts bounds the annotations that users write on workloads: settings and two requests.
func TestCounts(t *testing.T) {
	const requests, most = 2, 16
	n := len(Annotations()) + requests
	if t.Logf("annotations that users write on workloads: %d of at most %d", n, most); n > most {
		t.Errorf("%d annotations, want at most %d", n, most)
	}
}
