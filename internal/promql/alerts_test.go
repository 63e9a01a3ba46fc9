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

package promql

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
)

func TestAlerts(t *testing.T) {
	const recent = ` or group(last_over_time({__name__=~"ALERTS|up"}[2m]))`
	firing, earlier, err := Alerts([]string{`severity="page"`, `team=~'shop|web'`}, "ns", "shop", "2m")
	if err != nil {
		t.Fatal(err)
	}
	const m = `ns="shop",severity="page",team=~"shop|web"`
	const alerts = `ALERTS{alertstate="firing",` + m + `}`
	want := "(ALERTS_FOR_STATE{" + m + "} and ignoring (alertstate) " + alerts + " or ignoring (alertstate) " + alerts + ")" + recent
	if diff := cmp.Diff(want, firing.Text); diff != "" {
		t.Error(diff)
	}
	if want := `last_over_time(ALERTS{` + m + `}[1h])`; earlier != want {
		t.Errorf("got %s, want %s", earlier, want)
	}
	for _, text := range []string{firing.Text, earlier} {
		if _, err := parse(text); err != nil {
			t.Error(err)
		}
	}
	all, _, err := Alerts(nil, "namespace", "shop", "2m")
	if err != nil || !strings.HasPrefix(all.Text, `(ALERTS_FOR_STATE{namespace="shop"} and`) {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestMatchers: a matcher is one matcher, and cannot leave its selector.
func TestMatchers(t *testing.T) {
	for matcher, problem := range map[string]string{
		`severity="page"`:           "",
		`severity!=""`:              "",
		`team=""`:                   "",
		"team=~`a|b`":               "",
		`namespace="bank"`:          "", // it matches nothing, beside the own namespace
		`"a.b"="c"`:                 "",
		`a="$workload"`:             "matchers have no variables",
		`a=~"web$"`:                 "",
		`a="} or up{b="`:            "", // all of it is the value
		`a="\"} or up{b=\""`:        "",
		`severity`:                  "does not parse",
		`severity=page`:             "does not parse",
		`a="b",c="d"`:               "give one matcher",
		`a="b"} or up{c="d"`:        "does not parse",
		`a="b"}, up{c="d"`:          "does not parse",
		`a="b"}[1h] offset -1h # `:  "does not parse",
		"a=\"b\" # \n":              "",
		`a="b" or namespace="bank"`: "does not parse",
		`alertstate="pending"`:      "leave alertstate out",
		`alertstate=~".*"`:          "leave alertstate out",
		`__name__="up"`:             "",
		`"up"`:                      "",
		`a=~"(" `:                   "does not parse",
		``:                          "give one matcher",
		`a=~"` + strings.Repeat("x{900}", 2) + `"`: "patterns are too large",
	} {
		t.Run(matcher[:min(len(matcher), 30)], func(t *testing.T) {
			got := ""
			if _, _, err := Alerts([]string{`x="y"`, matcher}, "namespace", "shop", "2m"); err != nil {
				got = err.Error()
			}
			named := strings.Contains(matcher, "__name__") || matcher == `"up"`
			if named && got == "" || problem == "" && !named && got != "" || !strings.Contains(got, problem) ||
				got != "" && !strings.HasPrefix(got, "matchers[1]: ") {
				t.Errorf("problem %q, want %q", got, problem)
			}
		})
	}
}

// FuzzMatchers: no matcher reads alerts of another namespace.
func FuzzMatchers(f *testing.F) {
	for _, seed := range []string{`severity="page"`, `a="b"} or up{c="d"`, "a=~`x` # c", `"n s"!~'x'`, `namespace=~".*"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, matcher string) {
		firing, earlier, err := Alerts([]string{matcher}, "namespace", "shop", "2m")
		if err != nil {
			return
		}
		for _, text := range []string{firing.Text, earlier} {
			expr, err := parse(text)
			if err != nil {
				t.Fatalf("%q became %q: %v", matcher, text, err)
			}
			for _, s := range selectors(expr) {
				// The selector of recent samples has one matcher, which no user writes.
				if only := s.LabelMatchers[0]; len(s.LabelMatchers) == 1 && only.Type == labels.MatchRegexp && only.Value == "ALERTS|up" {
					continue
				}
				if !isLimited(s, "namespace", "shop") || !strings.HasPrefix(s.Name, "ALERTS") {
					t.Errorf("%q became %q", matcher, text)
				}
			}
		}
	})
}
