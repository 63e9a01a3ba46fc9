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
			if err != nil || problem != "" || ThresholdProblem(test.failWhen) != "" {
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
		"now() > value":          "not available in policies",
		"values.matches('(a+)')": "it does not compile",
	} {
		if got := ThresholdProblem(failWhen); !strings.HasPrefix(got, want) && !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", failWhen, got, want)
		}
	}
}
