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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

func lockedObject(o *wrappers.OpsConfigInfoWrapper) *wrappers.OpsConfigInfoWrapper {
	return o.With(func(o *v1alpha1.OpsConfigInfo) { o.Spec.Locked = true })
}

func TestFor(t *testing.T) {
	type objects = []v1alpha1.OpsConfigInfo
	annotated := func(pairs ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[v1alpha1.SettingAnnotationPrefix+pairs[i]] = pairs[i+1]
		}
		return m
	}
	observing := named("observe", v1alpha1.TypeObserve).On("")
	for name, test := range map[string]struct {
		operator, namespace objects
		annotations         map[string]string
		change              func(*Settings)
		observedBy          string
		problem, lowered    string // a part of the one problem or setting
	}{
		"nothing": {},
		"namespace before operator": {
			operator: stored(named("branch", v1alpha1.TypeBranch).On("7")), namespace: stored(named("branch", v1alpha1.TypeBranch).On("3")),
			change: func(s *Settings) { s.BatchSize = 3 }},
		"workload before namespace": {
			namespace: stored(named("branch", v1alpha1.TypeBranch).On("3")), annotations: annotated("branch", "4"),
			change: func(s *Settings) { s.BatchSize = 4 }},
		"parts are inherited": {
			operator:    stored(named("rollback", v1alpha1.TypeRollback).On("after=3m,tolerate=0")),
			namespace:   stored(named("rollback", v1alpha1.TypeRollback).On("slow=20m")),
			annotations: annotated("rollback", "after=4m", "timeouts", "settle=0"),
			change: func(s *Settings) {
				s.RollbackAfter, s.RollbackSlow, s.RollbackTolerate, s.Settle = 4*time.Minute, 20*time.Minute, 0, 0
			}},
		"proven of the operator": {
			operator:    stored(named("rollback", v1alpha1.TypeRollback).On("proven=1h")),
			namespace:   stored(named("rollback", v1alpha1.TypeRollback).Off("proven=2m")),
			annotations: annotated("rollback", "after=4m"),
			change:      func(s *Settings) { s.RollbackAfter, s.RollbackProven = 4*time.Minute, time.Hour }},
		"proven of the operator, enabled by workload": {
			operator: stored(named("rollback", v1alpha1.TypeRollback).On("proven=1h")), annotations: annotated("rollback", "enabled"),
			change: func(s *Settings) { s.RollbackProven = time.Hour }},
		"proven of the namespace": {
			namespace: stored(named("rollback", v1alpha1.TypeRollback).On("proven=2m")), annotations: annotated("rollback", "after=4m"),
			change: func(s *Settings) {
				s.RollbackAfter, s.RollbackProven, s.RollbackOwnProven = 4*time.Minute, 2*time.Minute, true
			}},
		"proven of the workload": {
			annotations: annotated("rollback", "after=2m,proven=5m"), change: func(s *Settings) { s.RollbackOwnProven = true }},
		"proven of the workload, which is not valid": {annotations: annotated("rollback", "proven=2h"), problem: "from 1s to 1h"},
		"parts are inherited from a disabled object": {
			namespace: stored(named("rollback", v1alpha1.TypeRollback).Off("after=3m")), annotations: annotated("rollback", "enabled"),
			change: func(s *Settings) { s.RollbackAfter = 3 * time.Minute }},
		"enabled with an invalid content": {
			namespace: stored(named("branch", v1alpha1.TypeBranch).Off("many")), annotations: annotated("branch", "enabled"),
			change: func(s *Settings) { s.BatchSize = 10 }},
		"invalid in the namespace": {
			operator: stored(named("branch", v1alpha1.TypeBranch).On("7")), namespace: stored(named("branch", v1alpha1.TypeBranch).On("x")),
			change: func(s *Settings) { s.BatchSize = 7 }},
		"last valid in the namespace": {
			operator:  stored(named("branch", v1alpha1.TypeBranch).On("7")),
			namespace: stored(named("branch", v1alpha1.TypeBranch).On("x").InForce(true, "5")),
			change:    func(s *Settings) { s.BatchSize = 5 }},
		"of the cluster only": {
			namespace: stored(named("limit", v1alpha1.TypeLimit).Off(""), named("admission", v1alpha1.TypeAdmission).On("1s"))},
		"locked, by namespace": {
			operator:  stored(lockedObject(named("blocking", v1alpha1.TypeBlocking).On(""))),
			namespace: stored(named("blocking", v1alpha1.TypeBlocking).Off(""))},
		"locked, by workload": {
			operator:    stored(lockedObject(named("blocking", v1alpha1.TypeBlocking).On(""))),
			annotations: annotated("blocking", "disabled"), problem: "locked"},
		"locked by the namespace is not": {
			namespace: stored(lockedObject(named("branch", v1alpha1.TypeBranch).On("3"))), annotations: annotated("branch", "4"),
			change: func(s *Settings) { s.BatchSize = 4 }},
		"blocking off by workload": {
			annotations: annotated("blocking", "disabled"), lowered: "blocking", change: func(s *Settings) { s.Blocking = false }},
		"blocking off by both": {
			namespace: stored(named("blocking", v1alpha1.TypeBlocking).Off("")), annotations: annotated("blocking", "disabled"),
			change: func(s *Settings) { s.Blocking = false }},
		"blocking on again by workload": {
			namespace: stored(named("blocking", v1alpha1.TypeBlocking).Off("")), annotations: annotated("blocking", "enabled")},
		"holding off by workload": {
			operator:    stored(named("holding", v1alpha1.TypeHolding).On("every,atMost=1h")),
			annotations: annotated("holding", "disabled"), lowered: "holding",
			change: func(s *Settings) { s.HoldAtMost = time.Hour }},
		"holding off by workload, as it is": {annotations: annotated("holding", "disabled")},
		"holding off by both": {
			operator: stored(named("holding", v1alpha1.TypeHolding).On("every")), namespace: stored(named("holding", v1alpha1.TypeHolding).Off("")),
			annotations: annotated("holding", "disabled")},
		"holding less by workload": {
			operator: stored(named("holding", v1alpha1.TypeHolding).On("every,atMost=1h")), annotations: annotated("holding", "first"),
			change: func(s *Settings) { s.Hold, s.HoldAtMost = v1alpha1.HoldFirstBatch, time.Hour }},
		"holding, its time inherited twice": {
			operator:    stored(named("holding", v1alpha1.TypeHolding).On("first,atMost=1h")),
			namespace:   stored(named("holding", v1alpha1.TypeHolding).On("every")),
			annotations: annotated("holding", "first"),
			change:      func(s *Settings) { s.Hold, s.HoldAtMost = v1alpha1.HoldFirstBatch, time.Hour }},
		"holding DaemonSets, not inherited": {
			operator:    stored(named("holding", v1alpha1.TypeHolding).On("every,daemonsets")),
			annotations: annotated("holding", "first"),
			change:      func(s *Settings) { s.Hold = v1alpha1.HoldFirstBatch }},
		"holding on as the namespace would": {
			namespace: stored(named("holding", v1alpha1.TypeHolding).Off("every,atMost=5m")), annotations: annotated("holding", "enabled"),
			change: func(s *Settings) { s.Hold, s.HoldAtMost = v1alpha1.HoldEveryBatch, 5*time.Minute }},
		"holding, locked": {
			operator:  stored(lockedObject(named("holding", v1alpha1.TypeHolding).On("every"))),
			namespace: stored(named("holding", v1alpha1.TypeHolding).Off("")), annotations: annotated("holding", "disabled"), problem: "locked",
			change: func(s *Settings) { s.Hold = v1alpha1.HoldEveryBatch }},
		"observed by workload": {
			annotations: annotated("observe", "enabled"), lowered: "observe",
			observedBy: "the annotation altershield.defense.antgroup.com/observe", change: func(s *Settings) { s.Observe = true }},
		"observed by namespace": {
			namespace: stored(observing), observedBy: `the OpsConfigInfo "observe" of the namespace`,
			change: func(s *Settings) { s.Observe = true }},
		"observed by operator": {
			operator: stored(observing), observedBy: `the OpsConfigInfo "observe" of the operator`, change: func(s *Settings) { s.Observe = true }},
		"observed, except the workload": {operator: stored(observing), annotations: annotated("observe", "disabled")},
		"observed, locked": {
			operator: stored(lockedObject(observing)), annotations: annotated("observe", "disabled"), problem: "locked",
			observedBy: `the OpsConfigInfo "observe" of the operator`, change: func(s *Settings) { s.Observe = true }},
	} {
		t.Run(name, func(t *testing.T) {
			want := Default()
			if test.change != nil {
				test.change(&want)
			}
			got := For(test.operator, test.namespace, test.annotations)
			if diff := cmp.Diff(want, got.Settings); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if got.ObservedBy != test.observedBy {
				t.Errorf("observed by %q, want %q", got.ObservedBy, test.observedBy)
			}
			for what, test := range map[string]struct {
				got  []string
				want string
			}{"problems": {got.Problems, test.problem}, "lowered": {got.Lowered, test.lowered}} {
				if said := strings.Join(test.got, "; "); (said == "") != (test.want == "") || !strings.Contains(said, test.want) {
					t.Errorf("%s %q, want %q", what, said, test.want)
				}
			}
		})
	}
}

func TestAssessOwn(t *testing.T) {
	operator := stored(lockedObject(named("blocking", v1alpha1.TypeBlocking).On("")), named("branch", v1alpha1.TypeBranch).On("7"))
	for name, test := range map[string]struct {
		setting  *wrappers.OpsConfigInfoWrapper
		accepted bool
		reason   string
		names    string // a part of the message
	}{
		"valid":          {named("branch", v1alpha1.TypeBranch).On("3"), true, v1alpha1.ReasonInForce, ""},
		"not valid":      {named("branch", v1alpha1.TypeBranch).On("x"), false, v1alpha1.ReasonInvalidContent, "in force is the operator's"},
		"locked":         {named("blocking", v1alpha1.TypeBlocking).Off(""), false, v1alpha1.ReasonLocked, "locked"},
		"of the cluster": {named("limit", v1alpha1.TypeLimit).Off(""), false, v1alpha1.ReasonOfCluster, "operator's namespace"},
		"unknown":        {named("brunch", v1alpha1.TypeBranch).On("3"), false, v1alpha1.ReasonUnknownName, "brunch"},
	} {
		t.Run(name, func(t *testing.T) {
			got := AssessOwn(test.setting.Obj(), operator)
			if got.Accepted != test.accepted || got.Reason != test.reason || !strings.Contains(got.Message, test.names) ||
				(got.InForce != nil) != test.accepted {
				t.Errorf("got %+v, want accepted %t, reason %s, message with %q", got, test.accepted, test.reason, test.names)
			}
		})
	}
}

func TestDescribeAltered(t *testing.T) {
	set := func(name, value string) map[string]string {
		return map[string]string{v1alpha1.SettingAnnotationPrefix + name: value}
	}
	for name, test := range map[string]struct {
		before, after map[string]string
		want          string
	}{
		"nothing":        {set("branch", "5"), set("branch", "5"), ""},
		"of others":      {nil, map[string]string{"branch": "5"}, ""},
		"no setting":     {nil, set("rollback-to", "last-success"), ""},
		"new":            {nil, set("branch", "5"), `branch from none to "5"`},
		"gone":           {set("observe", "enabled"), nil, `observe from "enabled" to none`},
		"changed":        {set("rollback", "2m"), set("rollback", "10m"), `rollback from "2m" to "10m"`},
		"several":        {set("rollback", "2m"), set("blocking", "disabled"), `blocking from none to "disabled", rollback from "2m" to none`},
		"of many lines":  {nil, set("branch", "5\n6"), `branch from none to "5\n6"`},
		"of any length":  {nil, set("branch", strings.Repeat("5", 1000)), `branch from none to "` + strings.Repeat("5", 100) + `"`},
		"blanks are not": {set("branch", "5"), set("branch", " 5 "), ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := DescribeAltered(test.before, test.after); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestFormerNames reads objects of earlier builds while no object has the present name.
func TestFormerNames(t *testing.T) {
	former := stored(named("repair", v1alpha1.FormerTypeEviction).Off(""), named("brake", v1alpha1.FormerTypeLimit).On("7/1h"))
	in := FromObjects(former)
	if in.Eviction || in.LimitCount != 7 || in.LimitWindow != time.Hour {
		t.Errorf("not read: %+v", in)
	}
	for i := range former {
		if a := Assess(&former[i]); !a.Accepted {
			t.Errorf("%s: %s", former[i].Name, a.Message)
		}
	}
	both := slices.Concat(former, stored(named("eviction", v1alpha1.TypeEviction).On("")))
	if in := FromObjects(both); !in.Eviction || in.LimitCount != 7 {
		t.Errorf("the new name does not come first: %+v", in)
	}
	if !Has(former, NameEviction) || !Has(former, NameLimit) || Has(former, NameHolding) {
		t.Error("Has does not know former names")
	}
	if a := Assess(&stored(named("repair", v1alpha1.TypeEviction).On(""))[0]); a.Accepted || a.Reason != v1alpha1.ReasonUnknownName {
		t.Errorf("a former name with a new type: %+v", a)
	}
	if own := stored(named("repair", v1alpha1.FormerTypeEviction).Off("")); For(nil, own, nil).Eviction {
		t.Error("a namespace's own is not read")
	}
}

func TestLowers(t *testing.T) {
	for name, test := range map[string]struct {
		setting string
		value   *v1alpha1.OpsConfigValue
		above   v1alpha1.HoldUntil
		want    bool
	}{
		"no value":               {"blocking", nil, "", false},
		"blocking":               {"blocking", &v1alpha1.OpsConfigValue{Enable: true}, "", false},
		"blocking off":           {"blocking", &v1alpha1.OpsConfigValue{}, "", true},
		"quarantine off":         {"quarantine", &v1alpha1.OpsConfigValue{}, "", true},
		"observe":                {"observe", &v1alpha1.OpsConfigValue{Enable: true}, "", true},
		"observe off":            {"observe", &v1alpha1.OpsConfigValue{}, "", false},
		"holding off":            {"holding", &v1alpha1.OpsConfigValue{}, v1alpha1.HoldFirstBatch, true},
		"holding off, as it was": {"holding", &v1alpha1.OpsConfigValue{}, v1alpha1.HoldNone, false},
		"holding":                {"holding", &v1alpha1.OpsConfigValue{Enable: true, Content: "first"}, v1alpha1.HoldEveryBatch, false},
		"eviction off":           {"eviction", &v1alpha1.OpsConfigValue{}, "", false},
		"another":                {"silence", &v1alpha1.OpsConfigValue{}, v1alpha1.HoldEveryBatch, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Lowers(test.setting, test.value, &Settings{Hold: test.above}); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}
