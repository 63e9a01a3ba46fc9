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
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	statesPath     = "../../docs/states.md"
	conditionsPath = "../../apis/app.ops.cloud.alipay.com/v1alpha1/condition_types.go"
)

var codeSpan = regexp.MustCompile("`([^`]+)`")

// documented are the conditions of a release as docs/states.md lists them.
func documented(t *testing.T) (rows []said) {
	t.Helper()
	data, err := os.ReadFile(filepath.FromSlash(statesPath))
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(data), "### Conditions")
	text, _, ended := strings.Cut(text, "###")
	if !found || !ended {
		t.Fatal("docs/states.md has no section Conditions")
	}
	var kinds []string
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		if names := codeSpan.FindAllStringSubmatch(cells[1], -1); names != nil {
			kinds = nil
			for _, name := range names {
				kinds = append(kinds, name[1])
			}
		}
		status, reasons, _ := strings.Cut(strings.TrimSpace(cells[2]), " ")
		for _, reason := range codeSpan.FindAllStringSubmatch(reasons, -1) {
			for _, kind := range kinds {
				rows = append(rows, said{kind, status, reason[1]})
			}
		}
	}
	if len(rows) < 80 {
		t.Fatalf("read only %d conditions off docs/states.md", len(rows))
	}
	return rows
}

// Each condition that is documented is told, and what needs somebody, or time, has
// something that may be done.
func TestTellsWhatIsDocumented(t *testing.T) {
	for _, row := range documented(t) {
		telling, ok := tellings[row]
		if !ok {
			t.Errorf("%v: nothing is told of it: add it to tellings", row)
			continue
		}
		if telling.what == "" || !strings.HasSuffix(telling.says, ".") {
			t.Errorf("%v: %q and %q are no word and sentence", row, telling.what, telling.says)
		}
		s := newSight(func(s *sight) {
			s.changes[0].Status.Conditions = []metav1.Condition{{Type: row.kind, Status: metav1.ConditionStatus(row.status), Reason: row.reason, Message: "because of that"}}
		})
		var told *Finding
		for _, f := range Findings(s, testAdvisor, testNow) {
			if f.Code == row.kind+row.reason {
				told = &f
			}
		}
		if told == nil {
			t.Errorf("%v: there is no finding", row)
			continue
		}
		if !slices.Contains(told.Details, "because of that") {
			t.Errorf("%v: what the operator says is lost: %v", row, told.Details)
		}
		if waitsAlone := row.reason == "NotYetAccepted" || row.reason == "Unconfirmed"; (told.Needs == NeedsSomebody || told.Needs == NeedsTime) && len(told.Do) == 0 && !waitsAlone {
			t.Errorf("%v: there is nothing that may be done", row)
		}
	}
}

// elsewhere are reasons of the API that are none of a release's conditions, by what they
// are of.
var elsewhere = map[string][]string{
	"of the operator's pods": {"Answers", "AnswersWithErrors"},
	"of checks and batches":  {"SameOnOldPods", "PolicyRemoved", "NoPods", "Probing", "Unsteady", "NotMeasured", "RuleFailed", "CannotEvaluate", "NoServer"},
	"of policies":            {"Invalid", "TooMany", "TooLarge", "RulesDoNotEnd"},
	"of settings": {
		"Configured", "ConfigurationMissing", "InForce", "InvalidContent", "TypeMismatch", "Locked", "OfCluster", "UnknownName", "Known", "Left",
	},
	"of events of a workload": {},
}

// Each reason of the API is told of, or is known to be of something else than a release.
func TestKnowsEachReason(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.FromSlash(conditionsPath), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Reason") {
			return true
		}
		literal, ok := spec.Values[0].(*ast.BasicLit)
		if !ok {
			return true
		}
		reason, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		seen++
		known := false
		for at := range tellings {
			known = known || at.reason == reason
		}
		for _, reasons := range elsewhere {
			known = known || slices.Contains(reasons, reason)
		}
		if !known {
			t.Errorf("%s (%s): nothing is told of it; add it to tellings, or to what is of something else", spec.Names[0].Name, reason)
		}
		return true
	})
	if seen < 80 {
		t.Fatalf("read only %d reasons", seen)
	}
}

func TestTellsUnknownConditions(t *testing.T) {
	got := tellingOf(&metav1.Condition{Type: "Sung", Status: metav1.ConditionFalse, Reason: "Hoarse"})
	if want := "Sung is False: Hoarse."; got.says != want || got.needs != NeedsNothing {
		t.Errorf("got %q, needs %s; want %q", got.says, got.needs, want)
	}
}
