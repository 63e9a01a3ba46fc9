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

package controllers_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/world"
)

// badValues are the values of annotations and settings that TestAnyInput tries; badLabels are those that a label may have.
var (
	badValues = []string{
		"", " ", "-1", "0", "99999999999999999999", "1e999", "true", "null", "=,=,", "after=,slow", `{"a":[[[[`, `{"from":-1,"to":[]}`,
		strings.Repeat("x", 100_000), strings.Repeat("9", 5_000), "\u202e\x1b[31m\u0000💥", "2026-11-21T12:19:04Z", "a b c d e f",
	}
	badLabels = []string{"", "0", "true", "disabled", "enforced", "99999999999999999999", "A_b.c-1", strings.Repeat("x", 63)}
)

// constants returns the values of the constants of a Go file whose names match a pattern.
func constants(t *testing.T, file, pattern string) (values []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\t`+pattern+` += "([^"]+)"`).FindAllSubmatch(text, -1) {
		values = append(values, string(m[1]))
	}
	if len(values) < 5 {
		t.Fatalf("%s has only %q", file, values)
	}
	return values
}

// TestAnyInput gives each label, annotation and setting a value that is no valid input, while a release has succeeded and while another
// one runs, and takes the value back. No process may panic, no invariant may be violated, and the next release succeeds.
func TestAnyInput(t *testing.T) {
	const labelsFile = "../apis/app.ops.cloud.alipay.com/v1alpha1/labels.go"
	names := constants(t, "../internal/settings/settings.go", `Name\w+`)
	annotations := constants(t, labelsFile, `\w+Annotation`)
	for _, name := range names {
		annotations = append(annotations, v1alpha1.SettingAnnotationPrefix+name)
	}
	for _, field := range []struct {
		name, path string
		keys       []string
		values     []string
	}{
		{"labels", "labels", constants(t, labelsFile, `\w+Label`), badLabels},
		{"annotations", "annotations", annotations, badValues},
	} {
		for i, key := range field.keys {
			t.Run(field.name+"/"+key, func(t *testing.T) {
				t.Parallel()
				for _, value := range fourth(field.values, i) {
					tryInput(t, fmt.Sprintf("%.40q", value), func(w *world.World) (restore func()) {
						d := w.Deployment("web")
						was := any(nil)
						if before, ok := map[string]map[string]string{"labels": d.Labels, "annotations": d.Annotations}[field.path][key]; ok {
							was = before
						}
						put := func(value any) {
							text, err := json.Marshal(map[string]any{"metadata": map[string]any{field.path: map[string]any{key: value}}})
							must(w, err)
							_ = w.Patch("web", string(text)) // admission may deny it
						}
						put(value)
						return func() { put(was) }
					})
				}
			})
		}
	}
	for i, name := range names {
		t.Run("settings/"+name, func(t *testing.T) {
			t.Parallel()
			for _, value := range fourth(badValues, i) {
				if strings.ContainsRune(value, '\x1b') {
					continue // a setting without content keeps it, and the observer accepts no such text
				}
				tryInput(t, fmt.Sprintf("%.40q", value), func(w *world.World) (restore func()) {
					w.Set(name, true, value)
					return func() { w.Set(name, false, "") }
				})
			}
		})
	}
}

// fourth returns every fourth value, from a value that the number chooses, or all with -world.all.
func fourth(values []string, number int) (tried []string) {
	for i, value := range values {
		if *all || (i+number)%4 == 0 {
			tried = append(tried, value)
		}
	}
	return tried
}

// tryInput plays a release with an input, and one after the input is restored.
func tryInput(t *testing.T, name string, put func(w *world.World) (restore func())) {
	t.Helper()
	e := world.Play(t, world.Story{Name: name, Run: func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		restore := put(w)
		w.For(time.Minute)
		_ = w.Patch("web", templatePatch("second")) // admission may deny it
		w.For(5 * time.Second)
		restore()
		w.For(2 * time.Minute)
		must(w, w.Patch("web", fmt.Sprintf(
			`{"metadata":{"labels":{%q:"true"}},"spec":{"template":{"metadata":{"labels":{"test":"third"}}}}}`, v1alpha1.IgnoredSuspendLabel)))
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}}, world.Options{Verbose: *verbose})
	slices.Sort(e.Violations)
	if e.Problem != "" || len(e.Violations) > 0 {
		t.Errorf("%s: %s %s\n%s", name, e.Problem, slices.Compact(e.Violations), e.Log)
	}
}
