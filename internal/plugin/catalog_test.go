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

package plugin

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

const conditionsPath = "../../apis/app.ops.cloud.alipay.com/v1alpha1/condition_types.go"

// TestShowsTheCatalog: each condition of a release has a finding with the message of the operator, and commands if a person has to
// act or to wait.
func TestShowsTheCatalog(t *testing.T) {
	shown := 0
	for _, e := range v1alpha1.Catalog() {
		if e.Kind != "ChangeWorkload" {
			continue
		}
		shown++
		s := newSnapshot(func(s *snapshot) {
			s.changes[0].Status.Conditions = []metav1.Condition{{Type: e.Condition, Status: e.Status, Reason: e.Reason, Message: "because of that"}}
		})
		var found *Finding
		for _, f := range findingsOf(s, testAdvisor) {
			if f.Code == e.Condition+e.Reason {
				found = &f
			}
		}
		switch {
		case found == nil:
			t.Errorf("%s %s %s: there is no finding", e.Condition, e.Status, e.Reason)
		case !slices.Contains(found.Details, "because of that"):
			t.Errorf("%s %s %s: the message of the operator is lost: %v", e.Condition, e.Status, e.Reason, found.Details)
		case e.Needs >= v1alpha1.NeedsTime && len(found.Do) == 0:
			t.Errorf("%s %s %s: no command is advised", e.Condition, e.Status, e.Reason)
		}
	}
	if shown < 60 {
		t.Errorf("only %d conditions are in the catalog", shown)
	}
}

// ofChecks are reasons of status.checks and of steps of an order alone, which have no entry in the catalog.
var ofChecks = []string{
	"SameOnOldPods", "PolicyRemoved", "NoPods", "Probing", "Unsteady", "NotMeasured", "RuleFailed", "CannotEvaluate",
	"Corrected", "Unprocessable", "ThresholdCrossed", "Measuring", "NotFinite", "ManySeries",
	"ServiceVerdict", "ServiceRunning", "InvalidAnswer", "RequestNotAccepted", "JobFailed", "JobRunning", "JobNotCreated", "SmallBatch",
	"AlertFiring", "AlertBeforeRelease", "WorseThanOldPods", "TooFewData", "NoOldPods", "NotDue",
}

// TestCatalogIsComplete: each condition, reason and event of the API has an entry with a sentence,
// and each entry that asks for an action names who acts and the next step.
func TestCatalogIsComplete(t *testing.T) {
	known := map[string]bool{}
	for _, e := range v1alpha1.Catalog() {
		known["Condition"+e.Condition], known["Reason"+e.Reason] = true, true
		if e.Condition == "" {
			known["Event"+e.Reason] = true
		}
		if !strings.HasSuffix(e.Sentence, ".") {
			t.Errorf("%+v: the sentence does not end", e)
		}
		if e.Needs == v1alpha1.NeedsAction != (e.Who != "") || e.Needs == v1alpha1.NeedsAction && e.Next == "" {
			t.Errorf("%+v: who acts, and what is the next step?", e)
		}
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.FromSlash(conditionsPath), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for _, prefix := range []string{"Condition", "Reason", "Event"} {
			literal, ok := spec.Values[0].(*ast.BasicLit)
			if !ok || !strings.HasPrefix(spec.Names[0].Name, prefix) {
				continue
			}
			value, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			if seen++; !known[prefix+value] && !slices.Contains(ofChecks, value) {
				t.Errorf("%s (%s) has no entry in the catalog", spec.Names[0].Name, value)
			}
		}
		return true
	})
	if seen < 120 {
		t.Errorf("read only %d constants", seen)
	}
}

// TestCounts bounds the terms that a person on call has to know (docs/reference/states.md).
func TestCounts(t *testing.T) {
	conditions, reasons, events := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, e := range v1alpha1.Catalog() {
		switch e.Kind {
		case "ChangeWorkload":
			conditions[e.Condition], reasons[e.Reason] = true, true
		case "":
			events[e.Reason] = true
		}
	}
	annotations := append(settings.Annotations(), v1alpha1.RollbackToAnnotation, v1alpha1.UnquarantineAnnotation,
		v1alpha1.BreakFreezeAnnotation, v1alpha1.TenantAnnotation, v1alpha1.PhaseAnnotation)
	if len(conditions) > 10 || len(reasons) > 60 || len(events) > 41 || len(annotations) > 16 {
		t.Errorf("%d conditions, %d reasons, %d events, %d annotations of users; want at most 10, 60, 41, 16",
			len(conditions), len(reasons), len(events), len(annotations))
	}
	t.Logf("ChangeWorkload: %d condition types, %d reasons; %d events; %d annotations that users write",
		len(conditions), len(reasons), len(events), len(annotations))
}

func TestTellsUnknownConditions(t *testing.T) {
	got := (&finder{snapshot: newSnapshot(nil)}).ofCondition(&metav1.Condition{Type: "Sung", Status: metav1.ConditionFalse, Reason: "Hoarse"})
	if want := "Sung is False: Hoarse."; got.Says != want || got.Needs != NeedsNothing {
		t.Errorf("got %q, needs %s; want %q", got.Says, got.Needs, want)
	}
}
