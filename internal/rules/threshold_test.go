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

package rules

import (
	"errors"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// TestThreshold: what a failWhen says about the series of a result.
func TestThreshold(t *testing.T) {
	one := []Sample{{Labels: map[string]string{"pod": "a"}, Value: 0.1}}
	two := []Sample{{Value: 1}, {Labels: map[string]string{"pod": "b"}, Value: 2}}
	for name, test := range map[string]struct {
		failWhen string
		samples  []Sample
		want     bool
		err      string
	}{
		"above":                    {"value > 0.05", one, true, ""},
		"below":                    {"value > 0.5", one, false, ""},
		"a whole number":           {"value > 0", one, true, ""},
		"a range":                  {"value < 0.01 || value > 0.05", one, true, ""},
		"any of several":           {"values.exists(v, v > 1.5)", two, true, ""},
		"all of several":           {"values.all(v, v > 1.5)", two, false, ""},
		"the number of series":     {"size(samples) < 3", two, true, ""},
		"a label":                  {"samples.exists(s, has(s.labels.pod) && s.labels.pod == 'b' && s.value > 1.0)", two, true, ""},
		"value of several":         {"value > 1.0", two, false, ErrManySeries.Error()},
		"value of several, unread": {"size(values) > 1 || value > 1.0", two, true, ""},
		"a label that is missing":  {"samples[0].labels.zone == 'a'", one, false, "no such key: zone"},
		"an index":                 {"values[1] > 1.0", one, false, "index out of bounds"},
	} {
		t.Run(name, func(t *testing.T) {
			program, problem, err := Compile(t.Context(), Threshold(test.failWhen), OfResult, false)
			if err != nil || problem != "" || ThresholdProblem(test.failWhen, OfResult) != "" {
				t.Fatal(problem, err)
			}
			w := NewWatch(clocktesting.NewFakePassiveClock(time.Now()), func(Policy, time.Time) {})
			got, err := w.Crosses(t.Context(), Policy{Name: "p"}, program, test.samples)
			if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %v, %v, want %v, %q", got, err, test.want, test.err)
			}
			if strings.HasPrefix(name, "value of") && test.err != "" && !errors.Is(err, ErrManySeries) {
				t.Errorf("error %v", err)
			}
		})
	}
	for failWhen, want := range map[string]string{
		"":                       "it does not compile: line 1",
		"value + 1.0":            "it must be true or false, and is of the type double",
		"object.spec == 1":       "undeclared reference to 'object'",
		"now() > value":          "not available",
		"values.matches('(a+)')": "it does not compile",
	} {
		if got := ThresholdProblem(failWhen, OfResult); !strings.HasPrefix(got, want) && !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", failWhen, got, want)
		}
	}
}

func TestThresholdOfAnswer(t *testing.T) {
	body := map[string]any{"ok": false, "errors": 3.0, "list": []any{map[string]any{"name": "a"}}}
	for name, test := range map[string]struct {
		failWhen string
		body     any
		want     bool
		err      string
	}{
		"a field":              {"!body.ok", body, true, ""},
		"a number":             {"body.errors > 3", body, false, ""},
		"a status":             {"status == 203", body, true, ""},
		"an entry":             {"body.list.exists(e, e.name == 'a')", body, true, ""},
		"a list":               {"size(body) > 0", []any{1.0}, true, ""},
		"null":                 {"body == null", nil, true, ""},
		"a field that is not":  {"body.latency > 1.0", body, false, "no such key: latency"},
		"an optional field":    {"has(body.latency) && body.latency > 1.0", body, false, ""},
		"a field of a string":  {"body.ok == true", "ok", false, "no such key: ok"},
		"no truth":             {"body.errors", body, false, "must be true or false"},
		"a field of null":      {"body.ok == true", nil, false, "no such key: ok"},
		"a comparison of text": {"body.errors > 'a'", body, false, "no such overload"},
	} {
		t.Run(name, func(t *testing.T) {
			program, problem, err := Compile(t.Context(), Threshold(test.failWhen), OfAnswer, false)
			if err == nil && problem != "" {
				err = errors.New(problem)
			}
			failures := []Failure(nil)
			if err == nil {
				failures, err = program.Evaluate(t.Context(), Input{Status: 203, Body: test.body})
			}
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
			if got := err == nil && len(failures) == 0; got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
	if got := ThresholdProblem("value > 1.0", OfAnswer); !strings.Contains(got, "undeclared reference to 'value'") {
		t.Error(got)
	}
}
