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
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
)

// unixTime returns a time of the API; nil for none.
func unixTime(seconds int64) *metav1.Time {
	if seconds <= 0 {
		return nil
	}
	return timeOf(time.Unix(seconds, 0))
}

func timeOf(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	m := metav1.NewTime(t.UTC())
	return &m
}

// parsedTime returns the time in an annotation; nil for none.
func parsedTime(text string) *metav1.Time {
	t, _ := time.Parse(time.RFC3339, text)
	return timeOf(t)
}

// releaseName names a release in a sentence.
func releaseName(number int64, version string) string {
	if number == 0 {
		return "version " + short(version)
	}
	return fmt.Sprintf("release %d (version %s)", number, short(version))
}

// capital returns a text with a capital letter at its beginning.
func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// countOf returns a number with its word.
func countOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// count returns a number with the plural of a thing.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// describeVersion names a version with its images.
func describeVersion(version string, images []string) string {
	if len(images) == 0 {
		return "version " + version
	}
	return fmt.Sprintf("version %s (%s)", version, strings.Join(images, ", "))
}

// shortestVersion is the least number of characters that name a version.
const shortestVersion = 6

// fullVersion returns the known version that begins so.
func fullVersion(begin string, known []string) (string, error) {
	if slices.Contains(known, begin) {
		return begin, nil
	}
	found := map[string]bool{}
	for _, version := range known {
		if len(begin) >= shortestVersion && strings.HasPrefix(version, begin) {
			found[version] = true
		}
	}
	all := slices.Sorted(maps.Keys(found))
	switch len(all) {
	case 1:
		return all[0], nil
	case 0:
		return "", fmt.Errorf("no version %q", begin)
	default:
		return "", remedy(fmt.Errorf("%q is the beginning of %d versions", begin, len(all)), "give more of it: "+strings.Join(all, ", "))
	}
}

// named joins the first of many names.
func named(names []string) string {
	slices.Sort(names)
	if more := len(names) - maxNamed; more > 0 {
		return strings.Join(names[:maxNamed], ", ") + fmt.Sprintf(", and %d more", more)
	}
	return strings.Join(names, ", ")
}

// stateOf returns the name of a release's state. A release whose state is not written yet is in Init.
func stateOf(s v1alpha1.ChangeWorkloadStatusType) string { return cmp.Or(string(s), "Init") }

// describeResult returns a verdict on a pod in one line.
func describeResult(r *v1alpha1.PodResult) string {
	parts := []string{"pod " + r.Pod, cmp.Or(r.Verdict, record.VerdictPass)}
	if r.Message != "" {
		parts = append(parts, r.Message)
	}
	return strings.Join(parts, ": ")
}

// unixText returns the time of a label, which has Unix seconds.
func unixText(value string) string {
	var seconds int64
	if _, err := fmt.Sscan(value, &seconds); err != nil {
		return value
	}
	return time.Unix(seconds, 0).UTC().Format(time.RFC3339)
}

// maxNamed is how many workloads a warning names.
const maxNamed = 20
