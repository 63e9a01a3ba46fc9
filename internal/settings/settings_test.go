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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func object(name string, kind v1alpha1.OpsConfigType, enable bool, content string) v1alpha1.OpsConfigInfo {
	return v1alpha1.OpsConfigInfo{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.OpsConfigInfoSpec{Type: kind, Enable: enable, Content: content},
	}
}

func lastValidOf(o v1alpha1.OpsConfigInfo, enable bool, content string) v1alpha1.OpsConfigInfo {
	o.Status.InForce = &v1alpha1.OpsConfigValue{Enable: enable, Content: content}
	return o
}

func TestFromObjects(t *testing.T) {
	initial := Settings{Blocking: true, Halting: true, History: 10, Rollback: true, RollbackAfter: 2 * time.Minute, BatchSize: 1, Wait: time.Minute, PreTimeout: 2 * time.Minute, PostTimeout: 2 * time.Minute, AdmissionTimeout: 2 * time.Second}
	with := func(change func(*Settings)) Settings {
		s := initial
		change(&s)
		return s
	}
	for name, test := range map[string]struct {
		objects []v1alpha1.OpsConfigInfo
		want    Settings
	}{
		"none":              {nil, initial},
		"the defaults":      {DefaultObjects("ns"), initial},
		"blocking off":      {[]v1alpha1.OpsConfigInfo{object("blocking", v1alpha1.TypeBlocking, false, "")}, with(func(s *Settings) { s.Blocking = false })},
		"branch on":         {[]v1alpha1.OpsConfigInfo{object("branch", v1alpha1.TypeBranch, true, "7")}, with(func(s *Settings) { s.BatchSize = 7 })},
		"branch off":        {[]v1alpha1.OpsConfigInfo{object("branch", v1alpha1.TypeBranch, false, "7")}, initial},
		"branch invalid":    {[]v1alpha1.OpsConfigInfo{object("branch", v1alpha1.TypeBranch, true, "seven")}, initial},
		"last valid":        {[]v1alpha1.OpsConfigInfo{lastValidOf(object("branch", v1alpha1.TypeBranch, true, "seven"), true, "7")}, with(func(s *Settings) { s.BatchSize = 7 })},
		"last valid is not": {[]v1alpha1.OpsConfigInfo{lastValidOf(object("branch", v1alpha1.TypeBranch, true, "seven"), true, "0")}, initial},
		"of another type":   {[]v1alpha1.OpsConfigInfo{lastValidOf(object("branch", v1alpha1.TypeTimeouts, true, "wait=1s"), true, "3")}, with(func(s *Settings) { s.BatchSize = 3 })},
		"unknown name":      {[]v1alpha1.OpsConfigInfo{object("branches", v1alpha1.TypeBranch, true, "7")}, initial},
		"timeouts": {[]v1alpha1.OpsConfigInfo{object("timeouts", v1alpha1.TypeTimeouts, true, "post=5s,wait=1m30s")},
			with(func(s *Settings) { s.PostTimeout, s.Wait = 5*time.Second, 90*time.Second })},
		"silence fails": {[]v1alpha1.OpsConfigInfo{object("silence", v1alpha1.TypeSilence, true, "")}, with(func(s *Settings) { s.SilenceFails = true })},
		"admission check": {[]v1alpha1.OpsConfigInfo{object("admission", v1alpha1.TypeAdmission, true, "500ms")},
			with(func(s *Settings) { s.AdmissionCheck, s.AdmissionTimeout = true, 500*time.Millisecond })},
		"admission check off": {[]v1alpha1.OpsConfigInfo{object("admission", v1alpha1.TypeAdmission, false, "500ms")}, initial},
		"history":             {[]v1alpha1.OpsConfigInfo{object("history", v1alpha1.TypeHistory, true, "3")}, with(func(s *Settings) { s.History = 3 })},
		"history off":         {[]v1alpha1.OpsConfigInfo{object("history", v1alpha1.TypeHistory, false, "3")}, with(func(s *Settings) { s.History = 0 })},
		"halting off":         {[]v1alpha1.OpsConfigInfo{object("halting", v1alpha1.TypeHalting, false, "")}, with(func(s *Settings) { s.Halting = false })},
		"timeouts off":        {[]v1alpha1.OpsConfigInfo{object("timeouts", v1alpha1.TypeTimeouts, false, "wait=1s")}, initial},
		"rollback":            {[]v1alpha1.OpsConfigInfo{object("rollback", v1alpha1.TypeRollback, true, "10m")}, with(func(s *Settings) { s.RollbackAfter = 10 * time.Minute })},
		"rollback off":        {[]v1alpha1.OpsConfigInfo{object("rollback", v1alpha1.TypeRollback, false, "10m")}, with(func(s *Settings) { s.Rollback = false })},
		"self-healing":        {[]v1alpha1.OpsConfigInfo{object("selfhealing", v1alpha1.TypeSelfHealing, true, "")}, with(func(s *Settings) { s.SelfHealing = true })},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, FromObjects(test.objects)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestOverride(t *testing.T) {
	general := Default()
	for name, test := range map[string]struct {
		annotations map[string]string
		want        func(*Settings)
		problems    []string // what each names
	}{
		"none":              {nil, func(*Settings) {}, nil},
		"of others":         {map[string]string{"branch": "5"}, func(*Settings) {}, nil},
		"branch":            {map[string]string{"branch!": "5"}, func(s *Settings) { s.BatchSize = 5 }, nil},
		"branch off":        {map[string]string{"branch!": "disabled"}, func(s *Settings) { s.BatchSize = 1 }, nil},
		"branch wrong":      {map[string]string{"branch!": "many"}, func(*Settings) {}, []string{"altershield.defense.antgroup.com/branch"}},
		"rollback":          {map[string]string{"rollback!": "10m"}, func(s *Settings) { s.RollbackAfter = 10 * time.Minute }, nil},
		"rollback off":      {map[string]string{"rollback!": "disabled"}, func(s *Settings) { s.Rollback = false }, nil},
		"rollback wrong":    {map[string]string{"rollback!": "soon"}, func(*Settings) {}, []string{`"2m"`}},
		"silence":           {map[string]string{"silence!": "enabled"}, func(s *Settings) { s.SilenceFails = true }, nil},
		"silence off":       {map[string]string{"silence!": " disabled "}, func(s *Settings) { s.SilenceFails = false }, nil},
		"silence wrong":     {map[string]string{"silence!": "loud"}, func(*Settings) {}, []string{`"enabled"`}},
		"timeouts in part":  {map[string]string{"timeouts!": "post=5m"}, func(s *Settings) { s.PostTimeout = 5 * time.Minute }, nil},
		"timeouts off":      {map[string]string{"timeouts!": "disabled"}, func(*Settings) {}, nil},
		"timeouts half bad": {map[string]string{"timeouts!": "post=5m,pre=soon"}, func(*Settings) {}, []string{"pre=soon"}},
		"several wrong":     {map[string]string{"branch!": "0", "timeouts!": "x"}, func(*Settings) {}, []string{"branch", "timeouts"}},
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
			got, problems := Override(general, annotations)
			if diff := cmp.Diff(want, got); diff != "" {
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
		object   v1alpha1.OpsConfigInfo
		accepted bool
		reason   string
		names    string // what the message names
	}{
		"valid":               {object("branch", v1alpha1.TypeBranch, true, "7"), true, v1alpha1.ReasonInForce, "in force"},
		"disabled, anything":  {object("branch", v1alpha1.TypeBranch, false, "seven"), true, v1alpha1.ReasonInForce, "in force"},
		"no number":           {object("branch", v1alpha1.TypeBranch, true, "seven"), false, v1alpha1.ReasonInvalidContent, "spec.content"},
		"too large":           {object("branch", v1alpha1.TypeBranch, true, "201"), false, v1alpha1.ReasonInvalidContent, "from 1 to 200"},
		"negative":            {object("branch", v1alpha1.TypeBranch, true, "-1"), false, v1alpha1.ReasonInvalidContent, "default"},
		"in force instead":    {lastValidOf(object("branch", v1alpha1.TypeBranch, true, "-1"), true, "7"), false, v1alpha1.ReasonInvalidContent, `content="7"`},
		"other type":          {object("branch", v1alpha1.TypeBlocking, true, ""), false, v1alpha1.ReasonTypeMismatch, "isBranch"},
		"unknown":             {object("brunch", v1alpha1.TypeBranch, true, "7"), false, v1alpha1.ReasonUnknownName, "metadata.name"},
		"rollback too soon":   {object("rollback", v1alpha1.TypeRollback, true, "10ms"), false, v1alpha1.ReasonInvalidContent, `"2m"`},
		"threshold twice":     {object("timeouts", v1alpha1.TypeTimeouts, true, "wait=5s,wait=6s"), false, v1alpha1.ReasonInvalidContent, "at most once"},
		"threshold unknown":   {object("timeouts", v1alpha1.TypeTimeouts, true, "wiat=5s"), false, v1alpha1.ReasonInvalidContent, "wait=60s"},
		"threshold too short": {object("timeouts", v1alpha1.TypeTimeouts, true, "wait=5ms"), false, v1alpha1.ReasonInvalidContent, "at least 1s"},
		"history too long":    {object("history", v1alpha1.TypeHistory, true, "101"), false, v1alpha1.ReasonInvalidContent, "from 1 to 100"},
		"admission too long":  {object("admission", v1alpha1.TypeAdmission, true, "3s"), false, v1alpha1.ReasonInvalidContent, "2.9s"},
		"threshold without":   {object("timeouts", v1alpha1.TypeTimeouts, true, ""), false, v1alpha1.ReasonInvalidContent, "wait=60s"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Assess(&test.object)
			if got.Accepted != test.accepted || got.Reason != test.reason || !strings.Contains(got.Message, test.names) {
				t.Errorf("got %+v, want accepted %t, reason %s, message with %q", got, test.accepted, test.reason, test.names)
			}
		})
	}
}

// TestDefaults sees to it that every default is valid, as Default assumes.
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
