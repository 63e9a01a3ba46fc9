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

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// pageOfDefaults has the table of the default behaviour.
const pageOfDefaults = "docs/concepts/defaults.md"

// rowsOfDefaults returns the rows of that table, cell by cell.
func rowsOfDefaults(t *testing.T) (rows [][]string) {
	t.Helper()
	_, text, begins := strings.Cut(contentOf(t, pageOfDefaults), "<!-- defaults -->")
	text, _, ends := strings.Cut(text, "<!-- end of defaults -->")
	if !begins || !ends {
		t.Fatalf("%s has no table between the marks of defaults", pageOfDefaults)
	}
	for line := range strings.Lines(text) {
		if cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|"); len(cells) == 5 && !strings.Contains(line, "---") {
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	if len(rows) != 9 {
		t.Fatalf("%s: %d rows, want 9 with the header", pageOfDefaults, len(rows))
	}
	return rows[1:]
}

var (
	conditionShown = regexp.MustCompile("`(\\w+)` (True|False|Unknown)((?: (?:or )?`\\w+`)*)")
	eventShown     = regexp.MustCompile("events? (`\\w+`(?:, (?:then )?`\\w+`)*)")
	codeShown      = regexp.MustCompile("`(\\w+)`")
)

// TestDefaults compares the table of the default behaviour with the catalog and the settings: the conditions, events and times that it
// names. The bullets of README.md have the same times.
func TestDefaults(t *testing.T) {
	rows := rowsOfDefaults(t)
	entry := func(condition, status, reason string) bool {
		return slices.ContainsFunc(v1alpha1.Catalog(), func(e v1alpha1.Entry) bool {
			return e.Condition == condition && string(e.Status) == status && (reason == "" || e.Reason == reason)
		})
	}
	shown := 0
	for _, row := range rows {
		for _, m := range conditionShown.FindAllStringSubmatch(row[3], -1) {
			reasons := codeShown.FindAllStringSubmatch(m[3], -1)
			if len(reasons) == 0 {
				reasons = [][]string{{"", ""}}
			}
			for _, reason := range reasons {
				if shown++; !entry(m[1], m[2], reason[1]) {
					t.Errorf("%s: the catalog has no %s %s %s", row[0], m[1], m[2], reason[1])
				}
			}
		}
		for _, m := range eventShown.FindAllStringSubmatch(row[3], -1) {
			for _, event := range codeShown.FindAllStringSubmatch(m[1], -1) {
				if shown++; !entry("", "", event[1]) {
					t.Errorf("%s: the catalog has no event %s", row[0], event[1])
				}
			}
		}
	}
	if shown < 15 {
		t.Errorf("only %d conditions and events are shown", shown)
	}
	s := settings.Default()
	stays := policy.Default("operator").Spec.Checks[0].PodHealth
	for cell, want := range map[string]bool{
		rows[0][1]: s.Rollback && s.Quarantine && s.QuarantineFor == time.Hour && strings.Contains(rows[0][1], "for 1 h"),
		rows[0][2]: s.RollbackAfter == 2*time.Minute && strings.HasPrefix(rows[0][2], "2 min"),
		rows[1][1]: s.Blocking && s.Halting && strings.Contains(rows[1][1], "blocks the next one, halts the rollout"),
		rows[1][2]: stays.Duration.Duration == 5*time.Minute && s.RollbackProven == 5*time.Minute && strings.Contains(rows[1][2], "within 5 min"),
		rows[2][2]: s.RollbackSlow == 10*time.Minute && strings.HasPrefix(rows[2][2], "10 min"),
		rows[5][1]: !s.SilenceFails && strings.HasPrefix(rows[5][1], "passes"),
		rows[6][2]: s.Settle == 10*time.Second && strings.Contains(rows[6][2], "for 10 s"),
	} {
		if !want {
			t.Errorf("%q is not what the settings are by default", cell)
		}
	}
	readme := strings.Join(strings.Fields(contentOf(t, "README.md")), " ")
	for _, short := range []string{
		"after 2 minutes, and quarantines its version for 1 hour", "within 5 minutes after it was Ready", "waits 10 minutes or longer",
	} {
		if !strings.Contains(readme, short) {
			t.Errorf("README.md does not have %q, as %s has", short, pageOfDefaults)
		}
	}
}

// contentOf returns the text of a document.
func contentOf(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository(t), path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
