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

package controllers

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	operatormetrics "github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/record"
)

// TestCount: each event is counted by one metric. An undo by a user is not counted as a rollback.
func TestCount(t *testing.T) {
	series := []string{
		"altershield_undos_total", "altershield_rollbacks_total", "altershield_rollbacks_limited_total",
		"altershield_dry_runs_total", "altershield_defense_lowered_total",
	}
	for _, test := range []struct {
		event record.Event
		want  string
	}{
		{record.Event{Reason: v1alpha1.EventReleaseUndone}, "altershield_undos_total"},
		{record.Event{Reason: v1alpha1.EventRollbackRefused, Act: v1alpha1.ReasonRollbackLimit}, "altershield_rollbacks_limited_total"},
		{record.Event{Reason: v1alpha1.EventRollbackRefused, Act: v1alpha1.ReasonRollbackRefused}, ""},
		{record.Event{Reason: v1alpha1.EventDryRun, Act: v1alpha1.DryRunSuspend}, "altershield_dry_runs_total"},
		{record.Event{Reason: v1alpha1.EventDryRun, Act: v1alpha1.DryRunRollback}, "altershield_dry_runs_total"},
		{record.Event{Reason: v1alpha1.EventDefenseChanged, Settings: []string{"blocking"}}, "altershield_defense_lowered_total"},
		// Rollbacks are counted where they happen.
		{record.Event{Reason: "RolledBack"}, ""},
	} {
		before := counted(t)
		count("StatefulSet", test.event)
		after := counted(t)
		for _, name := range series {
			want := 0.0
			if name == test.want {
				want = 1
			}
			if got := after[name] - before[name]; got != want {
				t.Errorf("%s raises %s by %v, want %v", test.event.Reason, name, got, want)
			}
		}
	}
}

// TestReportHold: each hold is counted once when it begins, and once with the reason when it ends, even if no reconcile ran between.
func TestReportHold(t *testing.T) {
	held := func(attempt int32, status metav1.ConditionStatus, reason string) v1alpha1.ChangeWorkloadStatus {
		s := v1alpha1.ChangeWorkloadStatus{Attempt: attempt}
		if reason != "" {
			s.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionHeld, Status: status, Reason: reason}}
		}
		return s
	}
	none, waits := held(1, "", ""), held(1, metav1.ConditionTrue, v1alpha1.ReasonWaitingForVerdicts)
	ended := func(reason string) v1alpha1.ChangeWorkloadStatus { return held(1, metav1.ConditionFalse, reason) }
	for name, test := range map[string]struct {
		before, after v1alpha1.ChangeWorkloadStatus
		starts        float64
		end           string
	}{
		"nothing is held":                       {none, none, 0, ""},
		"begins":                                {none, waits, 1, ""},
		"goes on":                               {waits, waits, 0, ""},
		"is verified":                           {waits, ended(v1alpha1.ReasonHoldVerified), 0, v1alpha1.ReasonHoldVerified},
		"runs out":                              {waits, ended(v1alpha1.ReasonHoldRanOut), 0, v1alpha1.ReasonHoldRanOut},
		"fails":                                 {waits, ended(v1alpha1.ReasonVerificationFailed), 0, v1alpha1.ReasonVerificationFailed},
		"was edited before the first reconcile": {none, ended(v1alpha1.ReasonHoldEdited), 1, v1alpha1.ReasonHoldEdited},
		"has ended, and its reason changes":     {ended(v1alpha1.ReasonHoldVerified), ended(v1alpha1.ReasonReleaseEnded), 0, ""},
		"is not wanted":                         {none, ended(v1alpha1.ReasonNotHeld), 0, ""},
		"is wanted late":                        {ended(v1alpha1.ReasonNotHeld), waits, 1, ""},
		"ends without a condition":              {waits, none, 0, v1alpha1.ReasonReleaseEnded},
		"the attempt before had one": {
			ended(v1alpha1.ReasonHoldVerified), held(2, metav1.ConditionTrue, v1alpha1.ReasonWaitingForVerdicts), 1, "",
		},
		"the attempt before was under way": {
			waits, held(2, metav1.ConditionTrue, v1alpha1.ReasonWaitingForVerdicts), 1, v1alpha1.ReasonReleaseEnded,
		},
		"the attempt before was, this is not": {waits, held(2, "", ""), 0, v1alpha1.ReasonReleaseEnded},
	} {
		t.Run(name, func(t *testing.T) {
			before := countedHolds(t)
			reportHold("Deployment", &test.before, &test.after)
			after := countedHolds(t)
			for _, series := range []string{
				"starts", v1alpha1.ReasonHoldVerified, v1alpha1.ReasonHoldRanOut, v1alpha1.ReasonVerificationFailed,
				v1alpha1.ReasonHoldEdited, v1alpha1.ReasonHoldStuck, v1alpha1.ReasonReleaseEnded,
			} {
				want := 0.0
				switch series {
				case "starts":
					want = test.starts
				case test.end:
					want = 1
				}
				if _, there := before[series]; !there {
					t.Errorf("%s has no series before its first count", series)
				}
				if got := after[series] - before[series]; got != want {
					t.Errorf("%s rises by %v, want %v", series, got, want)
				}
			}
		})
	}
}

// countedHolds returns the counters of starts, and of ends by reason.
func countedHolds(t *testing.T) map[string]float64 {
	t.Helper()
	operatormetrics.Begin("Deployment")
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	holds := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			of := map[string]string{}
			for _, l := range m.GetLabel() {
				of[l.GetName()] = l.GetValue()
			}
			switch {
			case of["kind"] != "Deployment": // another kind
			case f.GetName() == "altershield_hold_starts_total":
				holds["starts"] = m.GetCounter().GetValue()
			case f.GetName() == "altershield_hold_ends_total":
				holds[of["reason"]] = m.GetCounter().GetValue()
			}
		}
	}
	return holds
}

// counted returns the counters of the process, summed over their labels.
func counted(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			sums[f.GetName()] += m.GetCounter().GetValue()
		}
	}
	return sums
}
