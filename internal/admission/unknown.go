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

package admission

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// Unknown labels and annotations with the operator's prefixes: most are typos, which would silently have no effect.

// ownPrefixes are the prefixes of the operator's labels and annotations.
var ownPrefixes = []string{v1alpha1.SettingAnnotationPrefix, strings.TrimSuffix(v1alpha1.VersionLabel, "version")}

// maxUnknown bounds the unknown keys and values of a workload that are named.
const maxUnknown = 8

// UnknownWords names the labels and annotations of a workload, and their values, that have a prefix of the operator and
// are unknown to this version, one line each, with the nearest known one. It names values for AlterShield Server that
// cannot be used.
func UnknownWords(labels, annotations map[string]string) []string {
	isLabel := append(restoredLabels(), v1alpha1.SuspendLabel, v1alpha1.IgnoredSuspendLabel, v1alpha1.DefenseLabel)
	isAnnotation := slices.Concat(restoredAnnotations(), settings.Annotations(), userAnnotations(),
		[]string{v1alpha1.HeldAnnotation, v1alpha1.TooLargeMark, v1alpha1.ChangeURLAnnotation, v1alpha1.ChangeOrderAnnotation})
	_, _, unusable := server.OriginOf(annotations)
	unknown := slices.Concat(
		unknownIn("label", labels, isLabel, isAnnotation, "an annotation"),
		unknownIn("annotation", annotations, isAnnotation, isLabel, "a label"), unusable)
	if more := len(unknown) - maxUnknown; more > 0 {
		unknown = append(unknown[:maxUnknown], fmt.Sprintf("%d more labels and annotations are not known", more))
	}
	return unknown
}

// UnusableSettings names the setting annotations of a workload with unusable values, one line each.
func UnusableSettings(annotations map[string]string) (unusable []string) {
	for _, problem := range settings.For(nil, nil, annotations).Problems {
		unusable = append(unusable, wording.Brief(problem))
	}
	return unusable
}

func unknownIn(what string, all map[string]string, known, elsewhere []string, there string) (unknown []string) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		value, values := all[key], knownValues(key)
		switch {
		case !slices.ContainsFunc(ownPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) }):
		case slices.Contains(elsewhere, key):
			unknown = append(unknown, fmt.Sprintf("%s %s has no effect: it is %s", what, key, there))
		case !slices.Contains(known, key):
			unknown = append(unknown, fmt.Sprintf("%s %s is not known; the nearest known one is %s", what, key, nearest(key, known)))
		case len(values) > 0 && !slices.Contains(values, value) && !namesVersion(key, value):
			unknown = append(unknown, fmt.Sprintf("%s %s: the value %q is not known; the nearest known one is %q",
				what, key, wording.Brief(value), nearest(value, values)))
		}
	}
	return unknown
}

// knownValues returns the possible values of a user's label or annotation; none if it may have others, or is the
// operator's.
func knownValues(key string) []string {
	switch key {
	case v1alpha1.DefenseLabel:
		return []string{settings.Enabled, v1alpha1.DefenseDisabled, v1alpha1.DefenseEnforced}
	case v1alpha1.IgnoredSuspendLabel:
		return []string{v1alpha1.IgnoredSuspendValue, "false"}
	case v1alpha1.RollbackToAnnotation:
		return []string{rollback.LastSuccess}
	case v1alpha1.UnquarantineAnnotation:
		return []string{rollback.AllVersions}
	default:
		return nil
	}
}

// hexVersion matches the version of a template.
var hexVersion = regexp.MustCompile(`^[0-9a-f]{32}$`)

// namesVersion reports whether a request names a version, or is dropped with an event of its own.
func namesVersion(key, value string) bool {
	return (key == v1alpha1.RollbackToAnnotation || key == v1alpha1.UnquarantineAnnotation) &&
		(hexVersion.MatchString(strings.TrimSpace(value)) || strings.HasPrefix(value, rollback.BeforeOptIn))
}

// MistypedEnrolment names a label of a namespace that was meant to enrol it, or to set its defense, and has no effect;
// empty for none.
func MistypedEnrolment(labels map[string]string) string {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value := labels[key]
		switch {
		case key == v1alpha1.EnrolledLabel && value != v1alpha1.EnrolledValue && value != v1alpha1.DefenseDisabled && value != "":
			return fmt.Sprintf("%s=%s: only the value %s counts", key, value, v1alpha1.EnrolledValue)
		case key != v1alpha1.EnrolledLabel &&
			(distance(key, v1alpha1.EnrolledLabel) <= 3 || strings.HasPrefix(key, v1alpha1.SettingAnnotationPrefix)):
			return fmt.Sprintf("%s is not known; the nearest known one is %s=%s", key, v1alpha1.EnrolledLabel, v1alpha1.EnrolledValue)
		}
	}
	return ""
}

// nearest returns the word with the smallest distance to a text.
func nearest(text string, words []string) string {
	return slices.MinFunc(words, func(a, b string) int { return distance(text, a) - distance(text, b) })
}

// maxCompared bounds the compared texts, in bytes: longer texts are no typos.
const maxCompared = 128

// distance returns how many bytes have to be added, dropped or replaced to turn one text into the other.
func distance(a, b string) int {
	a, b = a[:min(len(a), maxCompared)], b[:min(len(b), maxCompared)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
